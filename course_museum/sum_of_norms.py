"""The norm of a gradient that lies in shards."""

import torch
import torch.distributed as dist

from course_museum.exhibit import LIES, Exhibit


def bug(shard):
    norm = shard.norm()
    dist.all_reduce(norm)
    return norm.item()


def cure(shard):
    squares = shard.square().sum()
    dist.all_reduce(squares)
    return squares.sqrt().item()


def spec(shard):
    return [torch.cat(list(shard)).norm().item()] * len(shard)


def inputs(rank, world_size, case):
    return 1 + torch.rand(4)


EXHIBIT = Exhibit(
    link="https://github.com/laekov/fastmoe/pull/65",
    story="A patch for clipping added up the norms of the experts' gradients. A reviewer saw that "
    "squares add up, and norms do not.",
    question="Two shards have a norm of 3 and 4. What is the norm of the whole gradient?",
    answer=LIES,
    symptom="wanted 4.22422, got 5.97208",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
