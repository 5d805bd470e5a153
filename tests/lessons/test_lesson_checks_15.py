"""What a learner writes in chapter 15, what its checks reject, and the norm that it compares."""

from contextlib import nullcontext

import labs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from course_utils import check, launch

LESSON = labs.ROOT / "source/lessons/15_numerics.py"
WANTED = "import functools", "def clipped(", "clip_judged =", "def clipped_once"
WANTED = (*WANTED, "class SumOverRanks", "class SyncedNorm", "def gradient_through")
WANTED = (*WANTED, "def average_of_copies")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercises define."""
    return labs.defined(LESSON, WANTED)


def accumulate(model, pieces, divide=True):
    for number, (inputs, targets) in enumerate(pieces, 1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            (mse_loss(model(inputs), targets) / (len(pieces) if divide else 1)).backward()


def each_piece(model, pieces, limit):
    for number, (inputs, targets) in enumerate(pieces, 1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            (mse_loss(model(inputs), targets) / len(pieces)).backward()
        norm = clip_grad_norm_(model.parameters(), limit)
    return norm


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)


def each_rank(model, pieces, limit):
    with model.no_sync():
        for inputs, targets in pieces:
            (mse_loss(model(inputs), targets) / len(pieces)).backward()
    norm = clip_grad_norm_(model.parameters(), limit)
    average(model)
    return norm


def each_parameter(model, pieces, limit):
    accumulate(model, pieces)
    return max(clip_grad_norm_([parameter], limit) for parameter in model.parameters())


def by_value(model, pieces, limit):
    accumulate(model, pieces)
    norm = clip_grad_norm_(model.parameters(), 1e9)
    clip_grad_value_(model.parameters(), limit)
    return norm


def not_at_all(model, pieces, limit):
    accumulate(model, pieces)
    return clip_grad_norm_(model.parameters(), float("inf"))


def sum_of_the_pieces(model, pieces, limit):
    accumulate(model, pieces, divide=False)
    return clip_grad_norm_(model.parameters(), limit)


def norm_after_clipping(model, pieces, limit):
    accumulate(model, pieces)
    clip_grad_norm_(model.parameters(), limit)
    return clip_grad_norm_(model.parameters(), limit)


def always_to_the_limit(model, pieces, limit):
    accumulate(model, pieces)
    norm = clip_grad_norm_(model.parameters(), float("inf"))
    for parameter in model.parameters():
        parameter.grad *= limit / norm
    return norm


def the_last_piece_alone(model, pieces, limit):
    for inputs, targets in pieces:
        model.zero_grad()
        mse_loss(model(inputs), targets).backward()
    return clip_grad_norm_(model.parameters(), limit)


def a_sum_of_norms(model, pieces, limit):
    accumulate(model, pieces)
    norm = sum(parameter.grad.norm() for parameter in model.parameters())
    for parameter in model.parameters():
        parameter.grad *= min(1.0, limit / norm)
    return norm


def divided_by_the_ranks_again(model, pieces, limit):
    accumulate(model, pieces)
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()
    return clip_grad_norm_(model.parameters(), limit)


def by_hand(model, pieces, limit):
    accumulate(model, pieces)
    gradients = [parameter.grad for parameter in model.parameters()]
    norm = sum((gradient**2).sum() for gradient in gradients) ** 0.5
    for gradient in gradients:
        gradient *= min(1.0, limit / norm)
    return norm.item()


def all_pieces_at_once(model, pieces, limit):
    inputs, targets = map(torch.cat, zip(*pieces, strict=True))
    mse_loss(model(inputs), targets).backward()
    return clip_grad_norm_(model.parameters(), limit)


def averaged_by_hand(model, pieces, limit):
    with model.no_sync():
        sum(mse_loss(model(inputs), targets) for inputs, targets in pieces).backward()
    for parameter in model.parameters():
        parameter.grad /= len(pieces)
    average(model)
    return clip_grad_norm_(model.parameters(), limit)


def sent_each_time(model, pieces, limit):
    for inputs, targets in pieces:
        (mse_loss(model(inputs), targets) / len(pieces)).backward()
    return clip_grad_norm_(model.parameters(), limit)


WRONG_CLIPS = [
    each_piece, each_rank, each_parameter, by_value, not_at_all, sum_of_the_pieces,
    norm_after_clipping, always_to_the_limit, the_last_piece_alone, a_sum_of_norms,
    divided_by_the_ranks_again,
]  # fmt: skip


@pytest.mark.parametrize("answer", WRONG_CLIPS)
def test_a_wrong_place_to_clip_is_rejected(lesson, answer):
    outcome = check(lesson["in_ddp"](answer), **lesson["clip_judged"])
    assert outcome.state == "wrong", outcome
    assert outcome.message


def test_a_missing_return_is_told_as_none_beside_arguments_in_a_few_words(lesson):
    def no_return(model, pieces, limit):
        accumulate(model, pieces)
        clip_grad_norm_(model.parameters(), limit)

    outcome = check(lesson["in_ddp"](no_return), **lesson["clip_judged"])
    assert "got None" in outcome.message
    assert {row.given for row in outcome.rows} == {"1 piece, limit 0.1"}


@pytest.mark.parametrize("answer", [by_hand, all_pieces_at_once, averaged_by_hand, sent_each_time])
def test_another_right_place_to_clip_passes(lesson, answer):
    assert check(lesson["in_ddp"](answer), **lesson["clip_judged"]).require()


def test_the_finished_form_passes_and_the_stub_is_not_attempted(lesson):
    assert check(lesson["in_ddp"](lesson["clipped_once"]), **lesson["clip_judged"]).require()
    stub = check(lesson["in_ddp"](lesson["clipped"]), **lesson["clip_judged"])
    assert stub.state == "not attempted"


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_the_synced_norm_is_that_of_one_process_on_batches_of_unequal_size(lesson, offset):
    samples = offset + torch.randn(11, 3, generator=torch.Generator().manual_seed(0))

    def on_ranks(norm, cuts):
        mine = samples[cuts[dist.get_rank()] : cuts[dist.get_rank() + 1]].clone()
        layer = norm(3)
        normed = layer(mine.requires_grad_())
        (normed**3).sum().backward()
        statistics = [layer.running_mean, layer.running_var]
        return normed.detach(), mine.grad, layer.eval()(mine).detach(), *statistics

    alone = launch(on_ranks, nn.BatchNorm1d, [0, 11], world_size=1, backend="gloo")[0]
    ranks = launch(on_ranks, lesson["SyncedNorm"], [0, 1, 4, 11], world_size=3, backend="gloo")
    close = {"rtol": 1e-3, "atol": 1e-3 if not offset else 5e-3}
    for number, wanted in enumerate(alone):
        got = [own[number] for own in ranks]
        got = torch.cat(got) if number < 3 else got[1]
        torch.testing.assert_close(got, wanted, **close)


@pytest.mark.parametrize(("world_size", "exact"), [(2, True), (3, False), (4, True), (8, False)])
def test_an_average_of_copies_is_the_number_on_two_and_on_four_ranks(lesson, world_size, exact):
    numbers = torch.randn(10_000)
    options = {"world_size": world_size, "backend": "gloo"}
    differing = launch(lesson["average_of_copies"], numbers, **options)[0]
    assert (differing == 0) is exact


def test_backward_through_a_plain_all_reduce_is_wrong_and_only_warns(lesson):
    def gradients():
        return [
            lesson["gradient_through"](add_up)
            for add_up in (lesson["SumOverRanks"].apply, lesson["total_in_place"])
        ]

    for right, wrong in launch(gradients, backend="gloo"):
        assert right == (8.0, [])
        assert wrong[0] == 4.0
        assert "autograd kernel was not registered" in wrong[1][0]
