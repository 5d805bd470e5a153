"""Labels that count across all ranks, for logits of one rank."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

from course_museum.exhibit import DIES, Exhibit


def bug(first, second):
    logits = first @ second.T  # of this rank's pairs alone: nothing was gathered
    pairs = torch.arange(len(first))
    labels = pairs + dist.get_rank() * len(first)
    return F.cross_entropy(logits, labels).item()


def cure(first, second):
    logits = first @ second.T
    labels = torch.arange(len(first))
    return F.cross_entropy(logits, labels).item()


def spec(first, second):
    losses = []
    for one, other in zip(first, second, strict=True):
        logits = one @ other.T
        losses.append(F.cross_entropy(logits, torch.arange(len(one))).item())
    return losses


def inputs(rank, world_size, case):
    return torch.rand(4, 3), torch.rand(4, 3)


EXHIBIT = Exhibit(
    link="https://github.com/lightly-ai/lightly/pull/1177",
    story="A contrastive loss that did not gather still shifted its labels by the rank.",
    question="Each rank compares its own four pairs. On which rank does the loss fail, and how?",
    answer=DIES,
    symptom="Rank 1 failed: IndexError: Target 4 is out of bounds.",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
