"""A gradient that every rank has, counted once for each."""

import torch
import torch.distributed as dist

from course_museum.exhibit import LIES, Exhibit


def bug(shard, replicated):
    squares = shard.square().sum() + replicated.square().sum()
    dist.all_reduce(squares)
    return squares.sqrt().item()


def cure(shard, replicated):
    squares = shard.square().sum()
    dist.all_reduce(squares)
    return (squares + replicated.square().sum()).sqrt().item()


def spec(shard, replicated):
    whole = torch.cat([*shard, replicated[0]])
    return [whole.norm().item()] * len(shard)


def inputs(rank, world_size, case):
    shard = 1 + torch.rand(4)
    replicated = torch.full((3,), 1.5 if case == "first numbers" else 2.5)
    return shard, replicated


EXHIBIT = Exhibit(
    link="https://github.com/NVIDIA-NeMo/RL/pull/3788",
    story="Some parameters are cut across ranks, and others are the same on each. The norm counted "
    "the latter once per rank, so clipping set in too early.",
    question="A norm's weights are on all of four ranks. How often do they count?",
    answer=LIES,
    symptom="wanted 4.95924, got 5.59858",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
