"""A sampler that is never told the epoch."""

import torch
from torch.utils.data import DataLoader, DistributedSampler

from course_museum.exhibit import LIES, Exhibit


def bug(samples, epochs):
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=2, sampler=sampler)
    seen = []
    for _ in range(epochs):
        seen.append(torch.cat(list(loader)).tolist())
    return seen


def cure(samples, epochs):
    sampler = DistributedSampler(samples)
    loader = DataLoader(samples, batch_size=2, sampler=sampler)
    seen = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        seen.append(torch.cat(list(loader)).tolist())
    return seen


def spec(samples, epochs):
    world_size = len(samples)
    dealt = []
    for rank in range(world_size):
        sampler = DistributedSampler(samples[rank], num_replicas=world_size, rank=rank)
        of_rank = []
        for epoch in range(epochs[rank]):
            sampler.set_epoch(epoch)
            of_rank.append([samples[rank][index].item() for index in sampler])
        dealt.append(of_rank)
    return dealt


def inputs(rank, world_size, case):
    first = 100 if case == "first numbers" else 500
    return torch.arange(first, first + 6 * world_size), 3


EXHIBIT = Exhibit(
    link="https://github.com/huggingface/transformers/issues/4398",
    story="A trainer used a DistributedSampler and never called set_epoch.",
    question="Three epochs are shuffled. In how many different orders does a rank see its samples?",
    answer=LIES,
    symptom="item 1: item 0: wanted 101, got 108",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
