"""Validation hangs where ranks have different numbers of batches."""

import torch
import torch.distributed as dist

from course_museum.exhibit import HANGS, Exhibit


def bug(batches):
    total = torch.zeros(1)
    samples = torch.zeros(1)
    for losses in batches:
        loss_and_count = torch.stack([losses.sum(), torch.tensor(float(len(losses)))])
        dist.all_reduce(loss_and_count)
        total += loss_and_count[0]
        samples += loss_and_count[1]
    return (total / samples).item()


def cure(batches):
    loss_and_count = torch.zeros(2)
    for losses in batches:
        loss_and_count += torch.tensor([losses.sum(), float(len(losses))])
    dist.all_reduce(loss_and_count)
    return (loss_and_count[0] / loss_and_count[1]).item()


def spec(batches):
    losses = torch.cat([torch.cat(of_rank) for of_rank in batches])
    return [losses.mean().item()] * len(batches)


def inputs(rank, world_size, case):
    return [torch.rand(4) for _ in range(3 + rank)]


EXHIBIT = Exhibit(
    link="https://github.com/pytorch/torchtitan/issues/1618",
    story="The validation loop never came back: one rank was two batches ahead of the other.",
    question="Rank 0 has three batches and rank 1 has four. What does validation do?",
    answer=HANGS,
    symptom="rank 1 has called all_reduce 4 times, rank 0, which has returned, 3 times",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
