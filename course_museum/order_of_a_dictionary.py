"""Collectives in the order of a dictionary, which isn't the same on all ranks."""

import torch
import torch.distributed as dist

from course_museum.exhibit import LIES, Exhibit


def bug(gradients):
    for name in gradients:
        dist.all_reduce(gradients[name])
    return gradients


def cure(gradients):
    for name in sorted(gradients):
        dist.all_reduce(gradients[name])
    return gradients


def spec(gradients):
    sums = {}
    for name in gradients[0]:
        sums[name] = sum(of_rank[name] for of_rank in gradients)
    return [sums] * len(gradients)


def inputs(rank, world_size, case):
    names = ["bias", "scale", "weight"]
    shifted = names[rank % 3 :] + names[: rank % 3]
    return {name: torch.randint(0, 100, (3,)) for name in shifted}


EXHIBIT = Exhibit(
    link="https://github.com/NVIDIA/apex/issues/19",
    story="Buckets were sent in the order of a dictionary's keys, which was another one in each "
    "process. Buckets of different sizes made that a deadlock.",
    question="Three gradients of one shape are added up, in another order on each rank. What is "
    "the sum of the weights?",
    answer=LIES,
    symptom="wanted 115, got 94",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
