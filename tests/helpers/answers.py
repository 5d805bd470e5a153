"""Answers to one exercise, the sum over all ranks by messages: right, wrong and dishonest."""

import gc
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from course_checks.cases import draw, public_seed

another_name = dist.all_reduce
kept = torch.zeros(1)


def spec(tensors):
    return [sum(tensors) for _ in tensors]


def inputs(rank, world_size, case):
    return case.tensor()


def right(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = tensor.contiguous()
    total, other = mine.clone(), torch.empty_like(mine)
    for step in range(1, world_size):
        sent = dist.isend(mine, (rank + step) % world_size)
        dist.recv(other, (rank - step) % world_size)
        sent.wait()
        total += other
    return total


def stub(tensor):
    raise NotImplementedError("about 6 lines")


# Right, in ways that a careless check would reject.


def changes_its_input(tensor):
    total = right(tensor)
    tensor.zero_()
    return total


def returns_a_view(tensor):
    return torch.stack([right(tensor), torch.zeros_like(tensor)])[0]


def returns_a_parameter(tensor):
    total = right(tensor)
    return torch.nn.Parameter(total) if total.is_floating_point() else total


def keeps_what_it_returns(tensor):
    global kept
    kept.zero_()  # what was returned last is no longer what it was
    kept = right(tensor)
    return kept


def leaves_a_group_behind(tensor):
    dist.new_group([0])
    return right(tensor)


# Wrong.


def alone(tensor):
    return tensor


def constant(tensor):
    return torch.tensor([3.0])


def nothing(tensor):
    right(tensor)


def a_list(tensor):
    return right(tensor).tolist()


def double(tensor):
    return right(tensor).double()


def a_column(tensor):
    return right(tensor)[:, None]


def on_another_device(tensor):
    return right(tensor).to("meta")


def a_lambda(tensor):
    return lambda: tensor


def right_for_two(tensor):
    return right(tensor) if dist.get_world_size() < 3 else tensor


def sums_a_strided_view(tensor):
    dist.all_reduce(tensor)
    return tensor


def crashes_on_rank_1(tensor):
    return right(tensor) if dist.get_rank() != 1 else 1 / 0


def is_killed(tensor):
    os.kill(os.getpid(), signal.SIGKILL)


def leaves_the_group(tensor):
    total = right(tensor)
    dist.destroy_process_group()
    return total


def waits_for_ever(tensor):
    if dist.get_world_size() == 2 and dist.get_rank() == 1:
        dist.recv(tensor, 0)
    return right(tensor)


def turns_for_ever(tensor):
    while dist.get_rank() == 1:
        time.sleep(0.01)
    return tensor


def wrong_and_then_for_ever(tensor):
    if tensor.numel() > 1:
        dist.recv(tensor, 0)
    return tensor + 1


def does_not_wait(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    other = tensor.clone()
    for step in range(1, world_size):
        sent = dist.isend(tensor, (rank + step) % world_size)
        dist.irecv(other, (rank - step) % world_size)
        sent.wait()
    return other


def prints_much(tensor):
    print("\n".join(f"line {number}" for number in range(20)))
    return tensor


# Dishonest: right in public, or said to be.


def says_passed(tensor):
    print("✓ passed: says_passed (1, 2 and 3 ranks)")
    return tensor


def by_another_name(tensor):
    tensor = tensor.contiguous()
    another_name(tensor)
    return tensor


def by_the_lowest_name(tensor):
    tensor = tensor.contiguous()
    dist.group.WORLD.allreduce([tensor]).wait()
    return tensor


def from_the_callers_frames(tensor):
    """Finds the inputs there, and draws what the other ranks get, as check does."""
    frame, found = sys._getframe(), {}
    while frame:
        found = dict(frame.f_locals) | found
        frame = frame.f_back
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for case in found["cases"]:
        drawn = [draw(found["inputs"], r, world_size, case, public_seed(r, world_size, case.number))
                 for r in range(world_size)]  # fmt: skip
        if torch.equal(drawn[rank][0], tensor):
            return sum(own for (own,) in drawn)
    return tensor


def from_anywhere_in_memory(tensor):
    """Looks for a list of tensors whose own entry it was given."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for own in gc.get_objects():
        many = type(own) is list and len(own) == world_size > 1
        if many and all(isinstance(one, torch.Tensor) for one in own) and own[rank] is tensor:
            return sum(own)
    return tensor
