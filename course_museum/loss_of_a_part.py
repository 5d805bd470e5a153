"""The samples of one rank, divided by the number of all."""

import torch
import torch.distributed as dist

from course_museum.exhibit import LIES, Exhibit


def bug(losses, samples_in_dataset):
    total_error = torch.zeros(())
    for loss in losses:
        total_error += loss
    return (total_error / samples_in_dataset).item()


def cure(losses, samples_in_dataset):
    total_and_count = torch.tensor([losses.sum(), float(len(losses))])
    dist.all_reduce(total_and_count)
    return (total_and_count[0] / total_and_count[1]).item()


def spec(losses, samples_in_dataset):
    return [torch.cat(list(losses)).mean().item()] * len(losses)


def inputs(rank, world_size, case):
    return torch.rand(6), 6 * world_size


EXHIBIT = Exhibit(
    link="https://github.com/ORNL/HydraGNN/pull/116",
    story="On several GPUs the loss was far below that of one GPU, and it was not better training.",
    question="Two ranks have half of the samples each. Which loss is logged?",
    answer=LIES,
    symptom="wanted 0.578976, got 0.286659",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
