"""The picture of collective by rank: what is missing or differs is marked, and told in words."""

import math
from collections.abc import Callable

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from deadline import hung
from matplotlib.figure import Figure
from recordings import event, one_message
from stalls import DDP, call, explained, inside

from course_utils import WorkerError, WorkerTimeout, launch, plot_calls
from course_utils.network.trace import Trace
from course_utils.record.event import FORWARD, Event

ALL, BARRIER, BROADCAST = ("all_reduce", 7), ("barrier", 8), ("broadcast", 9)


def hang(*lists: list[tuple[str, int]], first: tuple[int, ...] = (4,)) -> WorkerTimeout:
    """All ranks wait in the last of their calls, each of which is a kind and a line.

    Args:
        first: The shape on rank 0.
    """
    group, calls = tuple(range(len(lists))), []
    for rank, own in enumerate(lists):
        more = {"group": group, "shape": (4,) if rank else first}
        calls.append([call(rank, kind, n, line, **more) for n, (kind, line) in enumerate(own, 1)])
    stacks = {rank: inside(kind, line=line) for rank, (*_, (kind, line)) in enumerate(lists)}
    return explained(stacks, *calls)


@pytest.fixture
def drawn(monkeypatch, shown) -> Callable[[object], list[tuple[str, int]]]:
    """Draws, and tells each word with the place of its row: the rank, or -1 above all."""
    figures = []

    def draw(source: object) -> list[tuple[str, int]]:
        plot_calls(source)
        return [(text.get_text(), math.floor(text.get_position()[1])) for text in figures[-1].texts]

    def picture(figure: Figure) -> tuple[bytes, dict]:
        plt.close(figure)
        figures.append(figure.axes[0])
        return b"", {}

    monkeypatch.setattr("course_utils.pictures.style.picture", picture)
    return draw


def test_a_missing_collective_is_an_empty_cell_and_is_named(shown, drawn):
    assert ("missing", 1) in drawn(hang([ALL, BARRIER], [ALL]))
    assert shown.text == "Collectives #1 to #2 of ranks 0 and 1: rank 1 never called #2."


def test_a_collective_of_another_kind_is_marked_on_the_rank_in_the_minority(shown, drawn):
    marks = [mark for mark in drawn(hang([ALL], [ALL], [BROADCAST])) if mark[0] == "≠"]
    assert marks == [("≠", 2)]
    assert shown.text == (
        "Collective #1 of ranks 0, 1 and 2: #1 differs in kind: "
        "all_reduce of float32 (4,), line 7 on ranks 0 and 1; "
        "broadcast of float32 (4,), line 9 on rank 2."
    )


def test_of_two_that_differ_none_is_blamed_more_than_the_other(shown, drawn):
    marks = [mark for mark in drawn(hang([ALL], [ALL], first=(3,))) if mark[0] == "≠"]
    assert marks == [("≠", 0), ("≠", 1)]
    assert "#1 differs in shape or dtype" in shown.text


def test_only_the_last_collectives_are_drawn(drawn):
    said = drawn(hang([*[ALL] * 9, BARRIER], [ALL] * 9))
    assert [word for word, row in said if row < 0] == ["#6", "#7", "#8", "#9", "#10"]


def test_a_row_of_calls_that_differ_is_drawn_from_its_beginning(shown):
    same, differ = [ALL] * 4, [BROADCAST] * 7
    plot_calls(hang(same + differ, same + [BARRIER] * 7))
    assert shown.text.startswith("Collectives #5 to #11 of ranks 0 and 1: #5 differs in kind")
    plot_calls(hang(differ * 2, [BARRIER] * 14))
    assert shown.text.startswith("Collectives #7 to #14")


def test_ddps_forward_waits_for_both_broadcasts_that_it_has_begun(drawn):
    """It begins two before it waits; one that the other rank has answered is over."""
    begun = [call(0, "broadcast", number, 9, flags=FORWARD) for number in (1, 2, 3)]
    forward = inside("forward", DDP, 9)

    def waits(stack: list | None, *answers: Event) -> list[int]:
        said = drawn(explained({0: forward, 1: stack}, begun, answers))
        return [row for word, row in said if word.endswith("waits here")]

    answer = call(1, "broadcast", 1, 9, flags=FORWARD)
    assert waits(None, answer) == [0, 0]
    assert waits(inside(line=8), answer, call(1, "all_reduce", 2, 8)) == [0, 1, 0]


def test_a_recording_shows_two_collectives_that_were_swapped(shown):
    places = [("line 3", "line 4"), ("line 4", "line 3")]
    events = [
        event(rank, at, "all_reduce", 12, place=place, dtype="float32", shape=(3,))
        for rank, own in enumerate(places) for at, place in enumerate(own)
    ]  # fmt: skip
    plot_calls(Trace(tuple(events), (0.0,) * 2))
    assert "#1 differs in line: all_reduce of float32 (3,), line 3 on rank 0;" in shown.text
    assert shown.caption == "Collectives #1 to #2 of ranks 0 and 1: #1 differs in line."


def test_groups_that_share_a_name_are_told_apart(shown):
    """Of a group that only its members make, every such group has the same name."""
    calls = [
        event(rank, 0, "all_reduce", 4, group=group, group_name="1", finished=rank < 2)
        for group in ((0, 1), (2, 3)) for rank in group
    ]  # fmt: skip
    plot_calls(Trace(tuple(calls), (0.0,) * 4))
    assert shown.text == "Collective #1 of ranks 2 and 3: all the same."  # there a rank waits


def test_a_real_hang_and_a_real_recording_are_read_alike(shown):
    def work(rounds: int) -> None:
        for step in range(rounds):
            dist.all_reduce(torch.ones(2))
            if step < 1 or dist.get_rank():
                dist.broadcast(torch.ones(2), src=1)

    plot_calls(hung(lambda seconds: launch(work, 2, backend="gloo", timeout=seconds), 2))
    assert shown.text == "Collectives #1 to #4 of ranks 0 and 1: rank 0 never called #4."
    plot_calls(launch(work, 1, backend="gloo", trace=True).trace)
    assert shown.text == "Collectives #1 to #2 of ranks 0 and 1: all the same."


@pytest.mark.parametrize("wrong", [None, WorkerError(["rank 1 failed"]), [1.0]])
def test_what_has_no_calls_is_refused_with_a_sentence(wrong):
    with pytest.raises(TypeError, match="drawn of a WorkerTimeout or of a trace, not"):
        plot_calls(wrong)


def test_ranks_that_only_sent_messages_are_refused_with_a_sentence():
    for source in (one_message(), hang([("send", 3)], [("send", 3)])):
        with pytest.raises(ValueError, match="look at its messages"):
            plot_calls(source)
