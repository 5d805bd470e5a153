"""A gather whose gradient stays on the rank that made it."""

import torch
import torch.distributed as dist

from course_museum.exhibit import LIES, Exhibit


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mine):
        parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, gradient):
        return gradient[dist.get_rank()]


class GatherForAll(Gather):
    @staticmethod
    def backward(ctx, gradient):
        of_all_losses = gradient.clone()
        dist.all_reduce(of_all_losses)
        return of_all_losses[dist.get_rank()]


def gradient_with(gather, weights, batch):
    weights = weights.clone().requires_grad_()
    mine = batch * weights
    everybody = gather(mine).flatten(0, 1)
    (mine @ everybody.T).logsumexp(1).mean().backward()
    dist.all_reduce(weights.grad)  # as DDP does
    return weights.grad / dist.get_world_size()


def bug(weights, batch):
    return gradient_with(Gather.apply, weights, batch)


def cure(weights, batch):
    return gradient_with(GatherForAll.apply, weights, batch)


def spec(weights, batch):
    alone = weights[0].clone().requires_grad_()
    everybody = torch.cat(list(batch)) * alone
    (everybody @ everybody.T).logsumexp(1).mean().backward()
    return [alone.grad] * len(batch)


def inputs(rank, world_size, case):
    batch = torch.rand(4, 3)
    return torch.tensor([0.5, -1.0, 2.0]), batch


EXHIBIT = Exhibit(
    link="https://github.com/lightly-ai/lightly/issues/1528",
    story="Training on two GPUs did not match training on one: what other ranks' losses had to "
    "say of this rank's samples never came back.",
    question="Each rank's loss looks at all ranks' samples. Whose losses reach a rank's samples?",
    answer=LIES,
    symptom="wanted 0.314019, got 0.246202",
    bug=bug,
    cure=cure,
    spec=spec,
    inputs=inputs,
)
