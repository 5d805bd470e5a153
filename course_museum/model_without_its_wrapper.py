"""The forward pass of the model inside, past the wrapper that averages."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_museum.exhibit import LIES, Exhibit


def fresh_model():
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    return model


def bug(batch):
    wrapped = DistributedDataParallel(fresh_model())
    model = wrapped.module
    model(batch).square().mean().backward()
    return model.weight.grad


def cure(batch):
    wrapped = DistributedDataParallel(fresh_model())
    wrapped(batch).square().mean().backward()
    return wrapped.module.weight.grad


def spec(batch):
    model = fresh_model()
    model(torch.cat(list(batch))).square().mean().backward()
    return [model.weight.grad] * len(batch)


def inputs(rank, world_size, case):
    return torch.rand(4, 3)


EXHIBIT = Exhibit(
    link="https://github.com/ORNL/HydraGNN/pull/136",
    story="The model was unwrapped before training, so every process trained one of its own, on a "
    "part of the data, and only rank 0's was kept.",
    question="The model was wrapped, and its inner module is called. Are its gradients averaged?",
    answer=LIES,
    symptom="wanted 1.93124, got 1.21868",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
