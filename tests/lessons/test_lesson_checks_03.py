"""The ring that a learner writes in chapter 03: what its check rejects, and what its picture shows.

Published errors among them: whole tensors instead of chunks, and a ring that never adds what
arrived, which stood in PyTorch's own tutorial until 2020 (pytorch issue 31572).
"""

import re

import labs
import pytest
import torch
import torch.distributed as dist

from course_lessons import chapter_03
from course_utils import Network, check, launch

LESSON = labs.ROOT / "source/lessons/03_collective_primitives.py"
WANTED = ("import torch\n", "def ring_step", "def in_a_ring", "def ring_spec")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercise define; the network stands in a cell of its own."""
    names = {"__name__": "__main__"}
    call = re.search(r"^network = (Network\(.*\))$", LESSON.read_text(), re.M)[1]
    names["network"] = eval(call, {"Network": Network})
    for number, source in enumerate(labs.sources(LESSON)):
        if any(wanted in source for wanted in (*WANTED, "def finished_step")):
            source = source.replace("check(in_a_ring(finished_step), **ring_check)", "")
            labs.run(source, f"<lesson 03 {number}>", names)
    return names


def _me(chunks, done):
    """Ranks after and before, and the chunks that go and come."""
    rank, n = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % n, (rank - 1) % n, chunks[(rank - done) % n], chunks[(rank - done - 1) % n]


def _exchange(mine, own, after, before):
    arrived = torch.empty_like(own)
    sending = dist.isend(mine, after)
    dist.recv(arrived, before)
    sending.wait()
    return arrived


def _take(own, arrived, adds):
    own.copy_(own + arrived if adds else arrived)


def all_send_first(chunks, done):
    after, before, mine, own = _me(chunks, done)
    arrived = torch.empty_like(own)
    dist.send(mine, after)
    dist.recv(arrived, before)
    _take(own, arrived, done < len(chunks) - 1)


def even_ranks_send_first(chunks, done):
    after, before, mine, own = _me(chunks, done)
    arrived = torch.empty_like(own)
    calls = [(dist.send, mine, after), (dist.recv, arrived, before)]
    for call, tensor, other in calls if dist.get_rank() % 2 == 0 else calls[::-1]:
        call(tensor, other)
    _take(own, arrived, done < len(chunks) - 1)


def always_adds(chunks, done):
    after, before, mine, own = _me(chunks, done)
    _take(own, _exchange(mine, own, after, before), adds=True)


def never_adds(chunks, done):
    after, before, mine, own = _me(chunks, done)
    _take(own, _exchange(mine, own, after, before), adds=False)


def adds_once_too_often(chunks, done):
    after, before, mine, own = _me(chunks, done)
    _take(own, _exchange(mine, own, after, before), adds=done < len(chunks))


def sends_the_same_chunk_again(chunks, done):
    after, before, mine, own = _me(chunks, 0)
    _take(own, _exchange(mine, own, after, before), adds=done < len(chunks) - 1)


def sends_the_chunk_that_comes(chunks, done):
    after, before, _, own = _me(chunks, done)
    _take(own, _exchange(own, own, after, before), adds=done < len(chunks) - 1)


def counts_up(chunks, done):
    after, before, *_ = _me(chunks, done)
    rank, n = dist.get_rank(), len(chunks)
    mine, own = chunks[(rank + done) % n], chunks[(rank + done - 1) % n]
    _take(own, _exchange(mine, own, after, before), adds=done < n - 1)


def whole_tensors(chunks, done):
    after, before, *_ = _me(chunks, done)
    if done < len(chunks) - 1:
        kept = _kept.setdefault(0, torch.cat(chunks)) if done else torch.cat(chunks)
        _kept[0] = _exchange(kept, kept, after, before)
        for chunk, arrived in zip(chunks, _kept[0].tensor_split(len(chunks)), strict=True):
            chunk += arrived


_kept = {}


def by_torch(chunks, done):
    for chunk in chunks if done == 0 else ():
        dist.all_reduce(chunk)


def with_a_part_lost(chunks, done):
    if dist.get_rank() != dist.get_world_size() - 1:
        after, before, mine, own = _me(chunks, done)
        _take(own, _exchange(mine, own, after, before), adds=done < len(chunks) - 1)


def in_a_batch(chunks, done):
    after, before, mine, own = _me(chunks, done)
    arrived = torch.empty_like(own)
    calls = [(dist.irecv, arrived, before), (dist.isend, mine, after)]
    for work in dist.batch_isend_irecv([dist.P2POp(*call) for call in calls]):
        work.wait()
    _take(own, arrived, done < len(chunks) - 1)


def the_other_way_round(chunks, done):
    after, before, *_ = _me(chunks, done)
    rank, n = dist.get_rank(), len(chunks)
    mine, own = chunks[(rank + done) % n], chunks[(rank + done + 1) % n]
    _take(own, _exchange(mine, own, before, after), adds=done < n - 1)


def puts_another_into_the_list(chunks, done):
    after, before, mine, own = _me(chunks, done)
    arrived = _exchange(mine, own, after, before)
    place = (dist.get_rank() - done - 1) % len(chunks)
    chunks[place] = chunks[place] + arrived if done < len(chunks) - 1 else arrived


WRONG = [
    all_send_first, even_ranks_send_first, always_adds, never_adds, adds_once_too_often,
    sends_the_same_chunk_again, sends_the_chunk_that_comes, counts_up, whole_tensors, by_torch,
    with_a_part_lost,
]  # fmt: skip


@pytest.mark.parametrize("step", WRONG)
def test_a_wrong_step_is_rejected(lesson, step):
    options = lesson["ring_check"] | labs.HUNG
    for size in (2, 3):
        outcome = check(lesson["in_a_ring"](step), **options | {"world_sizes": (size,)})
        if outcome.state == "wrong":
            break
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("step", [in_a_batch, the_other_way_round, puts_another_into_the_list])
def test_another_right_step_passes(lesson, step):
    assert check(lesson["in_a_ring"](step), **lesson["ring_check"] | labs.PATIENT).require()


def test_the_check_cell_judges_the_step_as_it_was_last_written(lesson, monkeypatch):
    check_cell = next(text for text in labs.sources(LESSON) if text.startswith("check(in_a_ring"))
    outcomes = []
    for step in (never_adds, lesson["finished_step"], never_adds):
        monkeypatch.setitem(lesson, "ring_step", step)
        outcomes.append(eval(check_cell, lesson).state)
    assert outcomes == ["wrong", "passed", "wrong"]


def test_a_stub_is_not_attempted_and_has_no_picture(lesson, capsys):
    ring = lesson["in_a_ring"](lesson["ring_step"])
    assert check(ring, **lesson["ring_check"]).state == "not attempted"
    chapter_03.draw_ring(lesson["ring_step"])
    assert "No picture yet: NotImplementedError: about 9 lines" in capsys.readouterr().out


@pytest.fixture
def drawn(monkeypatch):
    """What ranks held, by rank and steps done, of each ring that is drawn."""
    grids = []
    monkeypatch.setattr(chapter_03, "plot_steps", lambda held, trace: grids.append(held))
    return grids


def fails_in_the_third_step(chunks, done):
    if done == 2:
        raise ValueError("so far and no further")
    in_a_batch(chunks, done)


def hangs_in_the_second_step(chunks, done):
    all_send_first(chunks, done) if done else in_a_batch(chunks, done)


@pytest.mark.parametrize(("step", "complete"), [("finished_step", 16), (never_adds, 0)])
def test_the_picture_shows_what_the_ranks_held(lesson, drawn, capsys, step, complete):
    chapter_03.draw_ring(lesson.get(step, step))
    last = [number for rank in drawn[0] for number in rank[-1]]
    assert sum(number in (1111, 2222, 3333, 4444) for number in last) == complete
    assert [len(rank) for rank in drawn[0]] == [7] * 4
    assert f"{complete} of 16 squares hold the sum" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("step", "steps_done", "reason"),
    [
        (fails_in_the_third_step, 2, "ValueError: so far and no further"),
        (hangs_in_the_second_step, 1, "all send, and none receives"),
    ],
)
def test_a_step_that_fails_or_hangs_is_drawn_as_far_as_it_came(
    drawn, capsys, step, steps_done, reason
):
    chapter_03.draw_ring(step)
    assert [len(rank) for rank in drawn[0]] == [steps_done + 1] * 4
    assert reason in capsys.readouterr().out


def test_a_nan_on_one_rank_is_lost_by_max_and_found_by_its_flag():
    """What the chapter says of MAX, wherever the NaN is."""

    def largest(nan_on):
        number = torch.tensor([1.0, 2.0, 3.0, 4.0][dist.get_rank()])
        if dist.get_rank() == nan_on:
            number = torch.tensor(float("nan"))
        is_nan = number.isnan().int()
        for tensor in (number, is_nan):
            dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return number.item(), is_nan.item()

    for nan_on in range(4):
        results = list(launch(largest, nan_on, world_size=4, backend="gloo"))
        assert [flag for _, flag in results] == [1] * 4
    number, _ = launch(largest, 1, world_size=4, backend="gloo")[0]
    assert number == 1.0
