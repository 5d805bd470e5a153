"""What a learner writes in chapter 15, what its checks reject, and the norm that it compares."""

from contextlib import nullcontext

import labs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from course_lessons import chapter_15
from course_lessons.chapter_15 import clip_judged, in_ddp, in_numbers, noise_judged
from course_utils import check, launch

LESSON = labs.ROOT / "source/lessons/15_numerics.py"
WANTED = "import warnings", "def noise_and_signal", "def clipped(", "def average_of_copies"
WANTED = (*WANTED, "class SumOverRanks", "class SyncedNorm", "def gradient_through")
WANTED = (*WANTED, "def one_after_the_other", "images, labels =", "def noise_at", "def accumulate")
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
def test_a_wrong_place_to_clip_is_rejected(answer):
    outcome = check(in_ddp(answer), **clip_judged)
    assert outcome.state == "wrong", outcome
    assert outcome.message


def test_a_missing_return_is_told_as_none_beside_arguments_in_a_few_words():
    def no_return(model, pieces, limit):
        accumulate(model, pieces)
        clip_grad_norm_(model.parameters(), limit)

    outcome = check(in_ddp(no_return), **clip_judged)
    assert "got None" in outcome.message
    assert {row.given for row in outcome.rows} == {"1 piece, limit 0.1"}


@pytest.mark.parametrize("answer", [by_hand, all_pieces_at_once, averaged_by_hand, sent_each_time])
def test_another_right_place_to_clip_passes(answer):
    assert check(in_ddp(answer), **clip_judged).require()


def test_the_stubs_are_not_attempted(lesson):
    assert check(in_ddp(lesson["clipped"]), **clip_judged).state == "not attempted"
    stub = check(in_numbers(lesson["noise_and_signal"]), **noise_judged)
    assert stub.state == "not attempted"


def squared_norms(gradient):
    """The ranks' average of the squared norms, and that of the average."""
    small = (gradient**2).sum()
    dist.all_reduce(small)
    average = gradient.clone()
    dist.all_reduce(average)
    world_size = dist.get_world_size()
    return small / world_size, ((average / world_size) ** 2).sum()


def in_fewer_terms(gradient, local_batch):
    small, big = squared_norms(gradient)
    ranks = dist.get_world_size()
    return local_batch * ranks * (small - big) / (ranks - 1), (ranks * big - small) / (ranks - 1)


def from_gathered(gradient, local_batch):
    every = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(every, gradient)
    rows = torch.stack(every)
    variance = local_batch * rows.var(dim=0).sum()  # of a mean over the local batch, times it
    squared_norm = (rows.mean(dim=0) ** 2).sum() - variance / local_batch / len(rows)
    return variance.item(), squared_norm.item()


def of_its_own_norm(gradient, local_batch):
    _, big = squared_norms(gradient)
    few, many = local_batch, local_batch * dist.get_world_size()
    small = (gradient**2).sum()
    return (small - big) / (1 / few - 1 / many), (many * big - few * small) / (many - few)


def biased(gradient, local_batch):
    small, big = squared_norms(gradient)
    return local_batch * (small - big), big


def sum_instead_of_average(gradient, local_batch):
    ranks = dist.get_world_size()
    small, big = squared_norms(gradient)
    few, many, big = local_batch, local_batch * ranks, ranks**2 * big
    return (small - big) / (1 / few - 1 / many), (many * big - few * small) / (many - few)


def norms_not_squared(gradient, local_batch):
    small, big = (number.sqrt() for number in squared_norms(gradient))
    few, many = local_batch, local_batch * dist.get_world_size()
    return (small - big) / (1 / few - 1 / many), (many * big - few * small) / (many - few)


def the_two_exchanged(gradient, local_batch):
    return in_fewer_terms(gradient, local_batch)[::-1]


def forgets_the_local_batch(gradient, local_batch):
    return in_fewer_terms(gradient, 1)


def already_divided(gradient, local_batch):
    variance, squared_norm = in_fewer_terms(gradient, local_batch)
    return variance / squared_norm, squared_norm


def in_place(gradient, local_batch):
    noise = in_fewer_terms(gradient.clone(), local_batch)
    gradient /= dist.get_world_size()
    return noise


WRONG_NOISE = [
    of_its_own_norm, biased, sum_instead_of_average, norms_not_squared, the_two_exchanged,
    forgets_the_local_batch, already_divided, in_place,
]  # fmt: skip


@pytest.mark.parametrize("answer", WRONG_NOISE)
def test_a_wrong_noise_scale_is_rejected(answer):
    outcome = check(in_numbers(answer), **noise_judged)
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("answer", [in_fewer_terms, from_gathered, chapter_15.two_batches])
def test_a_right_noise_scale_passes(answer):
    assert check(in_numbers(answer), **noise_judged).require()


def test_two_batches_find_the_noise_scale_of_all_samples_within_a_half(lesson, monkeypatch):
    # The lesson goes on with whatever has passed, with an answer of tensors too.
    monkeypatch.setitem(lesson, "estimate", in_fewer_terms)
    measured = launch(lesson["noise_at"], (45,), world_size=4, backend="gloo")[0]
    exact, estimated = measured
    assert estimated[45] == pytest.approx(exact[45], rel=0.5)


def test_ones_in_bfloat16_stop_at_256_one_after_the_other_and_not_in_pairs(lesson):
    assert lesson["one_after_the_other"](1024) == 256
    assert lesson["in_pairs"](1024) == 1024


def test_buffers_travel_in_the_first_forward_of_an_accumulation_alone(lesson):
    trace = launch(lesson["accumulate"], backend="gloo", trace=True).trace
    kinds = [event.kind for event in trace.of_rank(0)]
    first, *others = " ".join(kinds[kinds.index("barrier") + 1 :]).split("barrier")
    assert "broadcast" in first
    assert not any("broadcast" in part for part in others)


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
        ways = lesson["SumOverRanks"].apply, lesson["functional_total"], lesson["total_in_place"]
        return [lesson["gradient_through"](add_up) for add_up in ways]

    for by_hand, functional, plain in launch(gradients, backend="gloo"):
        assert by_hand == functional == (8.0, [])
        assert plain[0] == 4.0
        assert "autograd kernel was not registered" in plain[1][0]
