"""Early stopping by each rank's own validation loss."""

import torch
import torch.distributed as dist

from course_museum.exhibit import HANGS, Exhibit

TARGET = 0.5


def bug(losses):
    steps = 0
    for loss in losses:
        gradient = torch.ones(2)
        dist.all_reduce(gradient)  # stands for a step of training
        steps += 1
        if loss <= TARGET:
            break
    return steps


def cure(losses):
    steps = 0
    for loss in losses:
        gradient = torch.ones(2)
        dist.all_reduce(gradient)
        steps += 1
        of_all_ranks = loss.clone()
        dist.all_reduce(of_all_ranks)
        if of_all_ranks / dist.get_world_size() <= TARGET:
            break
    return steps


def spec(losses):
    mean_losses = torch.stack(list(losses)).mean(0)
    steps = 1 + int((mean_losses <= TARGET).nonzero()[0])
    return [steps] * len(losses)


def inputs(rank, world_size, case):
    early = 0.45 + 0.1 * torch.rand(2) + 0.2 * rank
    late = 0.6 + torch.rand(4)
    stop = 1 if case == "first numbers" else 2
    content = (0.0, 0.6, 0.3)[rank % 3]  # the mean is below the target, and not every rank
    late[stop] = content + 0.1 * torch.rand(1)
    return torch.cat([early, late])


EXHIBIT = Exhibit(
    link="https://github.com/AMD-AGI/Primus/pull/854",
    story="Near the target, one rank's own loss dipped below it: that rank left the training, and "
    "the others waited for it in the next all-reduce.",
    question="Rank 0 is content after two steps, rank 1 is not. What happens in the third?",
    answer=HANGS,
    symptom="Rank 1 waited for rank 0, which never arrived",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
