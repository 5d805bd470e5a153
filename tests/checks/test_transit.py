"""A tensor belongs to torch from isend or irecv until wait(), also where real gloo forgives."""

import threading
from time import monotonic

import pytest
import torch
import torch.distributed as dist

from course_utils import Network, check

NETWORK = Network(latency_us=10, gbit_s=1)


def _ends():
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % size, (rank - 1) % size


def waits_for_both(own, box, to, by):
    sending, coming = dist.isend(own, to), dist.irecv(box, by)
    coming.wait()
    sending.wait()
    return box


def in_a_batch(own, box, to, by):
    pair = [dist.P2POp(dist.isend, own, to), dist.P2POp(dist.irecv, box, by)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return box


def in_a_thread(own, box, to, by):
    thread = threading.Thread(target=dist.send, args=(own, to))
    thread.start()
    dist.recv(box, by)
    thread.join()
    return box


def from_anybody(own, box, to, by):
    sending = dist.isend(own, to)
    assert dist.recv(box) == by
    sending.wait()
    return box


def changes_it_after_the_wait(own, box, to, by):
    own = own.clone()
    sending = dist.isend(own, to)
    dist.recv(box, by)
    sending.wait()
    return own.copy_(box)


def fills_what_it_has_sent(own, box, to, by):
    later = torch.zeros_like(own)
    sending = dist.isend(later, to)
    later.copy_(own)
    dist.recv(box, by)
    sending.wait()
    return box


def writes_over_it_in_flight(own, box, to, by):
    own = own.clone()
    sending = dist.isend(own, to)
    dist.recv(box, by)
    own.copy_(box)
    sending.wait()
    return own


def hides_that_in_a_batch(own, box, to, by):
    own = own.clone()
    pair = [dist.P2POp(dist.isend, own, to), dist.P2POp(dist.irecv, box, by)]
    sending, coming = dist.batch_isend_irecv(pair)
    coming.wait()
    own.copy_(box)
    sending.wait()
    return own


def reads_before_it_waits(own, box, to, by):
    box.fill_(torch.nan)
    sending, coming = dist.isend(own, to), dist.irecv(box, by)
    until = monotonic() + 0.3
    while box.isnan().any() and monotonic() < until:
        pass  # on real gloo this ends at once
    read = box.clone()
    coming.wait()
    sending.wait()
    return read


def receives_into_what_it_sends(own, box, to, by):
    own = own.clone()
    for work in [dist.isend(own, to), dist.irecv(own, by)]:
        work.wait()
    return own


def sends_what_still_arrives(own, box, to, by):
    coming = dist.irecv(box, by)
    dist.send(box[:1], to)
    coming.wait()
    return box


RIGHT = [
    waits_for_both, in_a_batch, in_a_thread, from_anybody, changes_it_after_the_wait
]  # fmt: skip
CHANGED = [fills_what_it_has_sent, writes_over_it_in_flight, hides_that_in_a_batch]


def passed_on(fn, dtype=torch.float64):
    """The outcome of an answer that hands its tensor to the next rank."""

    def answer(own):
        return fn(own, torch.zeros_like(own), *_ends())

    def inputs(rank, world_size, case):
        return torch.randn(300, dtype=torch.float64).mul(9).to(dtype)

    options = {"budget": {"finish_us": 60}, "network": NETWORK, "world_sizes": (2, 3)}
    options["cases"] = ("300 numbers",)
    return check(answer, spec=lambda owns: [owns[-1], *owns[:-1]], inputs=inputs, **options)


@pytest.mark.parametrize("fn", RIGHT, ids=lambda fn: fn.__name__)
def test_who_waits_is_right_in_any_style(fn):
    assert passed_on(fn)


@pytest.mark.parametrize("fn", CHANGED, ids=lambda fn: fn.__name__)
def test_what_is_being_sent_is_not_to_be_touched(fn):
    said = str(passed_on(fn))
    assert "the tensor that you sent at" in said
    assert "has changed before this wait() for it" in said
    assert f"in {fn.__name__}" in said


@pytest.mark.parametrize("fn", [receives_into_what_it_sends, sends_what_still_arrives])
def test_one_tensor_is_not_on_two_ways(fn):
    assert "this tensor is still on its way since" in str(passed_on(fn))


def test_what_arrives_is_there_after_the_wait_and_not_before():
    assert "wanted" in str(passed_on(reads_before_it_waits))


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64, torch.bfloat16, torch.int8])
def test_any_numbers_are_passed_on(dtype):
    assert passed_on(waits_for_both, dtype)


def test_not_a_number_stays_what_it_is():
    def answer(own):
        return waits_for_both(own * torch.nan, torch.zeros_like(own), *_ends()).isnan().all()

    options = {"world_sizes": (2,), "cases": ("nan",)}
    assert check(answer, spec=lambda owns: [True] * 2, inputs=lambda *_: torch.ones(3), **options)


def test_an_empty_tensor_of_numpys_is_passed_on():
    def answer(own):
        return waits_for_both(torch.from_numpy(own.numpy()[3:].copy()), torch.zeros(0), *_ends())

    def spec(owns):
        return [own[3:] for own in owns]

    assert check(answer, spec=spec, inputs=lambda *_: torch.ones(3), world_sizes=(2,))


def test_one_number_of_a_column_is_passed_on_whatever_its_stride():
    def answer(own):
        return waits_for_both(own[:, 0], torch.zeros(1, 2)[:, 0], *_ends())

    def spec(owns):
        return [own[:, 0] for own in reversed(owns)]

    assert check(answer, spec=spec, inputs=lambda *_: torch.rand(1, 2), world_sizes=(2,))


def test_a_tensor_with_gaps_is_refused_in_torchs_words():
    def answer(own):
        dist.send(own[::2], _ends()[0])

    said = check(answer, spec=list, inputs=lambda *_: torch.ones(4), world_sizes=(2,))
    assert "contiguous" in str(said)
