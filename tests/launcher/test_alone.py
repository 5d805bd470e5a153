"""The launcher stands alone: it loads no other room, and without them it keeps its law."""

import pytest
import torch
import torch.distributed as dist

from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.launch import launch
from course_utils.launcher.listener import Listener

pytestmark = pytest.mark.usefixtures("nothing_left")

LOADED = """
import sys, course_utils.launcher.launch
print(sorted({name.split(".")[1] for name in sys.modules if name.startswith("course_utils.")}))
"""


def test_importing_it_loads_no_other_room(script):
    assert script(LOADED).stdout.read() == "['launcher']\n"


class Told(Listener):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def before(self, world_size: int) -> None:
        self.seen.append(f"before {world_size}")

    def tick(self, members, final: bool = False) -> None:
        self.seen += ["tick"] * final

    def explain(self, ranks, error) -> None:
        self.seen.append(f"explain {ranks}")
        error.parts[1] = "The listener knows better."

    def close(self) -> None:
        self.seen.append("close")


def test_a_listener_hears_of_a_launch_from_its_beginning_to_its_end():
    told = Told()
    assert list(launch(dist.get_rank, backend="gloo", listeners=[told])) == [0, 1]
    assert told.seen == ["before 2", "tick", "close"]


def test_a_listener_says_better_why_a_launch_failed():
    told = Told()
    with pytest.raises(WorkerError, match=r"(?s)ZeroDivisionError.*The listener knows better"):
        launch(lambda: 1 / 0, world_size=1, listeners=[told])
    assert told.seen == ["before 1", "explain {}", "tick", "close"]


def test_a_listener_that_fails_hides_no_error():
    class Fails(Listener):
        def explain(self, ranks, error) -> None:
            raise KeyError("nothing here")

    with pytest.raises(WorkerError, match="ZeroDivisionError") as caught:
        launch(lambda: 1 / 0, world_size=1, listeners=[Fails()])
    assert caught.value.__notes__ == ["Fails could not explain it: KeyError: 'nothing here'"]


def test_a_listener_inside_a_rank_is_there_before_the_group_and_sees_an_error_pass():
    class Inside(Listener):
        def inside(self, rank: int) -> "Inside":
            self.rank = rank
            return self

        def __enter__(self) -> None:
            print("enters", self.rank, dist.is_initialized(), flush=True)

        def __exit__(self, kind: type | None, *_: object) -> None:
            print("leaves", kind and kind.__name__, flush=True)

    with pytest.raises(WorkerError) as caught:
        launch(lambda: 1 / dist.get_rank(), backend="gloo", listeners=[Inside()])
    first, second = caught.value.output
    assert first == "enters 0 False\nleaves ZeroDivisionError\n"
    assert second == "enters 1 False\nleaves None\n"


def test_law_6_without_a_hang_report_a_time_out_says_who_does_not_wait():
    def work() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(WorkerTimeout) as caught:
        launch(work, backend="gloo", timeout=1.0)
    head, rows, why = caught.value.parts
    assert head == "rank 0 was not done after 1 s."
    assert "rank 0: waiting in all_reduce at test_alone.py, line" in rows
    assert rows.endswith("rank 1: its function has returned")
    assert why == "Rank 0 waited, rank 1 did not: look there first."
