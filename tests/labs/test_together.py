"""Wrong answers in one launch: nobody is rejected for what another one did."""

import os

import pytest
import together
import torch
import torch.distributed as dist

OPTIONS = {"spec": lambda own: [sum(own)] * len(own), "inputs": lambda rank, n, case: case.tensor()}
OPTIONS |= {"world_sizes": (2,)}


def right(own):
    dist.all_reduce(own)
    return own


def right_as_well(own):
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own.contiguous())
    return sum(every)


def alone(own):
    return own


def doubled(own):
    return 2 * right(own)


def rank_1_crashes(own):
    if dist.get_rank() == 1:
        raise ValueError("no more")
    return right(own)


def moves_away(own):
    os.environ["MOVED"] = str(len(os.environ))
    return right(own)


def leaves_a_message(own):
    if dist.get_rank() == 0:
        dist.isend(torch.ones(1), dst=1)
    return own


def in_halves_for_ever(own):
    torch.set_default_dtype(torch.float16)
    dist.all_reduce = lambda own: own.mul_(2)
    return own


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        ([alone, right_as_well, doubled], {alone, doubled}),
        ([alone, rank_1_crashes, doubled], {alone, doubled}),
        ([moves_away, right_as_well], {moves_away}),
        ([leaves_a_message, right_as_well, doubled], {leaves_a_message, doubled}),
        ([in_halves_for_ever, right_as_well, doubled], {in_halves_for_ever, doubled}),
        ([rank_1_crashes], set()),
        ([], set()),
    ],
)
def test_each_is_judged_for_itself(wrong, found):
    told = together.rejected(right, wrong, OPTIONS)
    assert told.keys() == found
    assert all(told.values())


def test_a_right_answer_that_is_not_right_rejects_nobody():
    assert together.rejected(alone, [doubled, right_as_well], OPTIONS) == {}
