"""A sum over all ranks through which no gradient flows back."""

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_gradient

from course_museum.exhibit import LIES, Exhibit


def loss_of(means):
    return (means**2).sum()


def averaged(gradient):
    """As DDP does."""
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def bug(weights, batch):
    weights = weights.clone().requires_grad_()
    means = (batch * weights).mean(0) / dist.get_world_size()
    total = means.clone()
    dist.all_reduce(total)
    loss_of(total).backward()
    return averaged(weights.grad)


def cure(weights, batch):
    weights = weights.clone().requires_grad_()
    means = (batch * weights).mean(0) / dist.get_world_size()
    total = with_gradient.all_reduce(means)
    loss_of(total).backward()
    return averaged(weights.grad)


def spec(weights, batch):
    alone = weights[0].clone().requires_grad_()
    loss_of((torch.cat(list(batch)) * alone).mean(0)).backward()
    return [alone.grad] * len(batch)


def inputs(rank, world_size, case):
    batch = torch.rand(4, 3)
    return torch.tensor([0.5, -1.0, 2.0]), batch


EXHIBIT = Exhibit(
    link="https://github.com/lightly-ai/lightly/issues/1977",
    story="A loss summed its statistics over all ranks. The loss was right on every rank, and the "
    "gradient too small by a factor of the world size, without a word.",
    question="The loss is that of the whole batch. By which factor is the gradient wrong?",
    answer=LIES,
    symptom="wanted 0.269542, got 0.134771",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
