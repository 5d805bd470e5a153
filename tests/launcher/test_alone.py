"""The launcher stands alone: it loads no other room, and without them it keeps its law."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from course_utils.launcher import stack_writer
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.launch import launch
from course_utils.launcher.listener import Listener
from course_utils.launcher.worker_handle import WorkerHandle

pytestmark = pytest.mark.usefixtures("nothing_left")

LOADED = """
import sys, course_utils.launcher.launch
print(sorted({name.split(".")[1] for name in sys.modules if name.startswith("course_utils.")}))
"""


@pytest.mark.slow
def test_importing_it_loads_no_other_room(script):
    assert script(LOADED).stdout.read() == "['launcher']\n"


class Told(Listener):
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_start(self, world_size: int) -> None:
        self.seen.append(f"on_start {world_size}")

    def on_poll(self, workers, final: bool = False) -> None:
        self.seen += ["on_poll"] * final

    def on_error(self, ranks, error) -> None:
        self.seen.append(f"on_error {ranks}")
        error.parts[1] = "The listener knows better."

    def on_exit(self) -> None:
        self.seen.append("on_exit")


def test_a_listener_hears_of_a_launch_from_its_beginning_to_its_end():
    told = Told()
    assert list(launch(dist.get_rank, backend="gloo", listeners=[told])) == [0, 1]
    assert told.seen == ["on_start 2", "on_poll", "on_exit"]


def test_a_listener_says_better_why_a_launch_failed():
    told = Told()
    with pytest.raises(WorkerError, match=r"(?s)ZeroDivisionError.*The listener knows better"):
        launch(lambda: 1 / 0, world_size=1, listeners=[told])
    assert told.seen == ["on_start 1", "on_error {}", "on_poll", "on_exit"]


def test_a_listener_that_fails_hides_no_error():
    class Fails(Listener):
        def on_error(self, ranks, error) -> None:
            raise KeyError("nothing here")

    with pytest.raises(WorkerError, match="ZeroDivisionError") as caught:
        launch(lambda: 1 / 0, world_size=1, listeners=[Fails()])
    assert caught.value.__notes__ == ["Fails could not explain it: KeyError: 'nothing here'"]


@pytest.mark.parametrize("fails_when_final_is", [[False], [True], [False, True]])
def test_a_listener_that_fails_while_it_looks_ends_no_launch(fails_when_final_is):
    class Fails(Listener):
        def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
            if final in fails_when_final_is:
                raise KeyError("nothing here")

    told = Told()
    words = "goes on without its listener Fails, which failed: KeyError: 'nothing here'"
    with pytest.warns(RuntimeWarning, match=words) as warned:
        assert list(launch(dist.get_rank, backend="gloo", listeners=[Fails(), told])) == [0, 1]
    assert len(warned) == 1
    assert told.seen == ["on_start 2", "on_poll", "on_exit"]


def test_a_listener_that_fails_when_time_is_up_gives_no_time_and_hides_no_error():
    class Fails(Listener):
        def on_timeout(self) -> float:
            raise KeyError("nothing here")

    words = "goes on without its listener Fails, which failed: KeyError: 'nothing here'"
    with pytest.warns(RuntimeWarning, match=words), pytest.raises(WorkerTimeout):
        launch(time.sleep, 600, timeout=0.5, listeners=[Fails()])


def test_a_listener_inside_a_rank_is_there_before_the_group_and_sees_an_error_pass(no_hurry):
    class Inside(Listener):
        def in_worker(self, rank: int) -> "Inside":
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


def test_a_rank_may_be_asked_for_its_stack_before_it_can_answer(monkeypatch):
    fork = os.fork

    def fork_and_ask() -> int:
        if pid := fork():
            for number in stack_writer.two_unused_signals():
                os.kill(pid, number)
        return pid

    monkeypatch.setattr(os, "fork", fork_and_ask)
    assert list(launch(dist.get_rank, world_size=4)) == [0, 1, 2, 3]


def test_a_rank_amid_python_code_survives_being_asked_where_it_is_a_thousand_times():
    """From a handler in C, it would read frames that are half made: it died within 500 times."""

    class Asks(Listener):
        def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
            for _ in range(0 if final or workers[0].settled else 400):
                workers[0].request_stack()
                time.sleep(0.0001)

    def work() -> None:
        for _ in range(100_000):
            sorted(range(20), key=lambda number: -number)  # Python, called by C, called by Python

    assert list(launch(work, world_size=1, listeners=[Asks()])) == [None]


def test_law_6_without_a_hang_report_a_time_out_says_where_each_rank_is():
    def work() -> None:
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(WorkerTimeout) as caught:
        launch(work, backend="gloo", timeout=1.0)
    head, rows = caught.value.parts
    assert head == "rank 0 was not done after 1 s."
    assert "rank 0: at test_alone.py, line" in rows
    assert rows.endswith("rank 1: its function has returned")


CHAPTER = """
import ast, inspect, linecache, sys
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import launch

file = sys.argv[1]
tree, names = ast.parse(open(file).read()), {"launch": launch}
ours = lambda node: isinstance(node, ast.ImportFrom) and node.module.startswith("course_")
kinds = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
defined = [node for node in tree.body if isinstance(node, kinds) and not ours(node)]
exec(compile(ast.Module(defined, []), file, "exec"), names)
for call in ast.walk(tree):
    if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "launch":
        if all(isinstance(name, ast.Name) and name.id in names for name in call.args):
            try:
                results = eval(compile(ast.Expression(call), file, "eval"), names)
                print(call.args[0].id, "returned", len(results))
            except WorkerError as error:
                print(call.args[0].id, "told:", str(error).partition("\\n")[0])
print({name.split(".")[1] for name in sys.modules if name.startswith("course_utils.")})
"""


@pytest.mark.slow
def test_it_runs_the_functions_of_chapter_02_with_the_other_rooms_deleted(tmp_path):
    root = Path(__file__).parents[2]
    shutil.copytree(root / "course_utils/launcher", tmp_path / "course_utils/launcher")
    (tmp_path / "course_utils/__init__.py").touch()
    lesson = root / "source/lessons/02_process_groups.py"
    command = [sys.executable, "-c", CHAPTER, str(lesson)]
    found = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=found, capture_output=True, text=True)
    shutil.rmtree(tmp_path / "course_utils")
    assert not done.returncode, done.stderr
    said = done.stdout.splitlines()
    for name in ("share_the_work", "join_and_add", "who_am_i", "sums", "with_a_launcher"):
        assert f"{name} returned 4" in said
    assert any(line.startswith("only_members_call told: ranks 0, 1") for line in said)
    assert said[-1] == "{'launcher'}"
