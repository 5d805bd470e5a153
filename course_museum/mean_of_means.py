"""A mean over each rank's tokens, averaged over ranks that have different numbers of them."""

import torch
import torch.distributed as dist

from course_museum.exhibit import LIES, Exhibit


def averaged(gradient):
    """As DDP does."""
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def bug(weights, tokens):
    weights = weights.clone().requires_grad_()
    loss = (tokens @ weights).square().sum() / len(tokens)
    loss.backward()
    return averaged(weights.grad)


def cure(weights, tokens):
    weights = weights.clone().requires_grad_()
    count = torch.tensor(float(len(tokens)))
    dist.all_reduce(count)
    loss = (tokens @ weights).square().sum() / count
    (loss * dist.get_world_size()).backward()
    return averaged(weights.grad)


def spec(weights, tokens):
    alone = weights[0].clone().requires_grad_()
    (torch.cat(list(tokens)) @ alone).square().mean().backward()
    return [alone.grad] * len(tokens)


def inputs(rank, world_size, case):
    return torch.tensor([0.5, -1.0, 2.0]), torch.rand(2 + 5 * rank, 3)


EXHIBIT = Exhibit(
    link="https://github.com/huggingface/transformers/issues/34242",
    story="Losses were divided by the tokens of each device, and DDP took the mean of that: tokens "
    "of a short batch weighed more than those of a long one.",
    question="Rank 0 has two tokens and rank 1 has seven. Does each token weigh the same?",
    answer=LIES,
    symptom="wanted 1.05317, got 1.06967",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
