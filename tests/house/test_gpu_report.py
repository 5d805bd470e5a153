"""The report on a machine's GPUs: line by line, within its time, and without names."""

import getpass
import os
import re
import socket
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
import torch
import warm_kernels

from course_tools.measure import bandwidth, gpu_items, gpu_report, gpu_workers
from course_tools.notebooks import build
from course_utils import launch
from course_utils.devices import driver, nccl


def test_without_a_gpu_it_says_what_is_missing_and_writes_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_report, "usable_gpus", driver.Gpus)
    assert gpu_report.main(tmp_path) == 0
    told = capsys.readouterr().out
    assert told.startswith("No GPU to report on: there is none here.\n")
    assert "wants one NVIDIA GPU that CUDA can use" in told
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_refused_is_told_with_the_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_report, "usable_gpus", lambda: driver.Gpus((), "too old"))
    assert gpu_report.main(tmp_path) == 0
    assert capsys.readouterr().out.startswith("No GPU to report on: too old.\n")


# As torchrun starts its workers: in a session of their own, with the stderr that is being read.
LEAVES = """
import subprocess, sys, time
def start():
    command = [sys.executable, "-c", "import time; time.sleep(1000)"]
    return subprocess.Popen(command, start_new_session=True)
"""
GENTLE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("has cleaned up", flush=True)))
print("ready", flush=True)
time.sleep(1000)
"""
PROGRAMS = {
    "good": "print('seen')",
    "bad": "import socket; print(f'on {socket.gethostname()}'); 1 / 0",
    "not here": "print('it takes two GPUs'); raise SystemExit(3)",
    "leaves a worker": LEAVES + "worker = start(); print(worker.pid, flush=True)",
    "leaves a worker and hangs": LEAVES
    + "worker = start(); print(worker.pid, flush=True); time.sleep(1000)",
    "stops gently": GENTLE,
    "hangs": "import os; print(os.getpid(), flush=True); import time; time.sleep(1000)",
}


@pytest.fixture
def report(monkeypatch, tmp_path):
    """Make a report of these programs, each within a number of seconds; the text, the status."""

    def make(limits_s: dict[str, float], whole_s: float = 100) -> tuple[str, int]:
        items = {
            name: gpu_items.Item(print, limit_s, needs_nccl=name.endswith("by NCCL"))
            for name, limit_s in limits_s.items()
        }

        def program(name: str) -> list[str]:
            return [sys.executable, "-c", PROGRAMS[name]]

        monkeypatch.setattr(gpu_report, "usable_gpus", lambda: driver.Gpus(("H100",)))
        monkeypatch.setattr(gpu_items, "items", lambda: items)
        monkeypatch.setattr(gpu_report, "program", program)
        status = gpu_report.main(tmp_path, whole_s)
        return (tmp_path / gpu_report.REPORT).read_text(), status

    return make


def test_it_ends_with_what_works_what_does_not_and_what_was_left_out(report):
    text, status = report({"good": 30, "bad": 30, "not here": 30})
    assert text.endswith("What works here: good. What does not: bad. Left out: not here.\n")
    assert "    seen\n\n**works**" in text
    assert "on HOST" in text
    assert "ZeroDivisionError" in text
    assert status == 1


def test_where_all_works_it_says_so(report):
    text, status = report({"good": 30, "not here": 30})
    assert "What does not: nothing." in text
    assert status == 0


def test_what_hangs_is_stopped_and_the_rest_goes_on(report):
    text, status = report({"hangs": 1, "good": 30})
    assert "stopped: it was not done within 1 s" in text
    assert text.endswith("What works here: good. What does not: hangs. Left out: nothing.\n")
    pid = int(text.split("## hangs")[1].split()[0])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert status == 1


def has_ended(pid: int) -> bool:
    """Whether a process is there no longer, or only as a zombie that its new parent will reap."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("name", ["leaves a worker", "leaves a worker and hangs"])
def test_a_worker_in_a_session_of_its_own_is_ended_and_nobody_waits_for_it(report, name):
    hangs = name.endswith("hangs")
    text, _ = report({name: 2 if hangs else 30, "good": 30})
    pid = int(text.split(f"## {name}")[1].split()[0])
    assert has_ended(pid)
    assert ("stopped: it was not done within 2 s" in text) == hangs
    assert "## good\n\n    seen\n\n**works**" in text


def test_what_is_stopped_may_clean_up_first(report):
    text, _ = report({"stops gently": 2})
    assert "    ready\n    has cleaned up\n    stopped: it was not done" in text


def test_when_the_time_is_over_the_rest_is_left_out(report):
    text, _ = report({"good": 30}, whole_s=0)
    assert "The time is over." in text
    assert "Left out: good." in text


def test_what_the_end_of_the_time_stops_has_not_failed(report):
    text, status = report({"hangs": 30}, whole_s=1)
    assert "stopped: the time of the whole report is over" in text
    assert "Left out: hangs." in text
    assert status == 0


def test_every_line_is_in_the_file_before_the_next_item_begins(report, monkeypatch, tmp_path):
    read = f"print(open({str(tmp_path / gpu_report.REPORT)!r}).read().count('**works**'))"
    monkeypatch.setitem(PROGRAMS, "reads", read)
    assert "    1\n" in report({"good": 30, "reads": 30})[0]


def test_no_name_of_this_machine_is_in_a_report():
    said = f"{getpass.getuser()}@{socket.gethostname()}:{Path.home()} and {gpu_report.ROOT}/tests"
    assert gpu_report.nameless(said) == "USER@HOST:HOME and COURSE/tests"


def test_a_user_whose_name_is_a_word_is_replaced_only_where_it_is_a_name(monkeypatch):
    monkeypatch.setattr(gpu_report.getpass, "getuser", lambda: "root")
    said = "broadcast of 32 bytes, root 1; root@x, /data/root/a.pt, the root's"
    wanted = "broadcast of 32 bytes, root 1; USER@x, /data/USER/a.pt, the root's"
    assert gpu_report.nameless(said) == wanted


@pytest.mark.parametrize("error", [KeyError, OSError])
def test_a_user_without_a_name_gets_a_report_as_well(monkeypatch, error):
    def has_none() -> None:
        raise error

    monkeypatch.setattr(gpu_report.getpass, "getuser", has_none)
    monkeypatch.setattr(gpu_report.Path, "home", lambda: gpu_report.Path("/"))
    assert gpu_report.nameless("a / b") == "a / b"

    def unknown() -> None:
        raise RuntimeError

    monkeypatch.setattr(gpu_report.Path, "home", unknown)
    assert gpu_report.nameless("a / b") == "a / b"


def test_its_items_are_bounded_and_every_chapter_with_workers_is_among_them():
    items = gpu_items.items()
    assert max(item.limit_s for item in items.values()) <= gpu_report.WHOLE_S / 2
    named = {f"workers of chapter {chapter}" for chapter in gpu_workers.on_real_gpus()}
    assert named >= {f"workers of chapter {chapter}" for chapter in ("01", "13", "14")}
    assert named | {"chapter 00", "chapter 04", "chapter 14"} <= items.keys()


@pytest.mark.parametrize("gpus", [1, 8])
def test_what_bounds_the_parts_of_an_item_is_less_than_what_bounds_the_item(monkeypatch, gpus):
    monkeypatch.setattr(gpu_items, "gpus", lambda: gpus)
    launched, ran = [], []

    def launches(fn, *args, timeout, **options):
        launched.append(nccl._PROBE_S + timeout)
        raise gpu_items.LeftOut

    monkeypatch.setattr(gpu_items, "launch", launches)
    monkeypatch.setattr(gpu_workers, "prepared", lambda chapter: {})
    monkeypatch.setattr(gpu_items, "torchrun", lambda *script: ran.append(gpu_items.TORCHRUN_S))
    for name, item in gpu_items.items().items():
        if name.startswith(("chapter ", "tests ")) or name in ("the machine", "bandwidth"):
            continue
        launched.clear()
        ran.clear()
        with pytest.raises(gpu_items.LeftOut):
            item.run()
        assert sum(launched + ran) + gpu_items.START_S <= item.limit_s, name


def test_what_items_wait_for_takes_as_long_as_in_the_library():
    assert gpu_items.PROBE_S >= nccl._PROBE_S
    assert gpu_items.DRIVER_S >= driver._PATIENCE_S


def test_where_two_ranks_cannot_use_nccl_what_needs_it_is_left_out_at_once(report, monkeypatch):
    monkeypatch.setitem(PROGRAMS, gpu_items.TWO_RANKS, "1 / 0")
    monkeypatch.setitem(PROGRAMS, "a hang by NCCL", "print('has run')")
    text, status = report({gpu_items.TWO_RANKS: 30, "a hang by NCCL": 30, "good": 30})
    assert 'It needs two ranks by NCCL, see "two ranks by NCCL" above.\n\n**left out**' in text
    assert "has run" not in text
    assert text.endswith(
        "here: good. What does not: two ranks by NCCL. Left out: a hang by NCCL.\n"
    )
    assert status == 1


def test_chapters_that_use_no_gpu_are_listed_with_the_reason(capsys):
    assert gpu_items.main("chapters on the CPU alone") == 3
    told = capsys.readouterr().out
    assert "chapter 02: Groups, ranks and addresses" in told
    assert "chapter 19: Plans are computed" in told
    assert "chapter 13" not in told


def test_workers_that_are_run_apart_are_workers_of_a_chapter():
    every = set().union(*gpu_workers.on_real_gpus().values())
    assert every >= gpu_items.OF_THE_CPU | gpu_items.OF_FOUR | gpu_items.OF_SEVERAL_GPUS


def test_every_chapter_that_is_run_whole_has_a_cell_that_imports_launch():
    for name in gpu_items.items():
        if re.fullmatch(r"chapter \d\d", name):
            cells = gpu_workers.notebook(name.split()[1]).cells
            assert any(map(gpu_items.imports_launch, cells))


@pytest.fixture
def on_the_cpu(monkeypatch):
    """What is run through NCCL runs through gloo."""

    def by_gloo(world_size: int = 2) -> dict:
        return {"world_size": world_size, "backend": "gloo"}

    monkeypatch.setattr(gpu_items, "by_nccl", by_gloo)
    monkeypatch.setattr(gpu_items, "gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 0)


def test_the_workers_of_a_chapter_are_run_and_named(on_the_cpu, capsys):
    gpu_items.chapter_workers("03")
    told = capsys.readouterr().out
    assert "[rank 0] hand_over: done in" in told
    assert "two_pairs: left out, 4 ranks are too many for 1 GPU" in told


def test_a_worker_that_is_not_run_says_why(on_the_cpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu_items, "in_one_launch", lambda calls, names, ranks: print(*calls))
    gpu_items.chapter_workers("00")
    gpu_items.chapter_workers("04")
    told = capsys.readouterr().out
    assert "careless: left out, it fails on purpose" in told
    assert "add_up_twice: left out, it stays on the CPU" in told
    assert "on_a_gpu: left out, it wants several GPUs" in told


def test_a_worker_that_fails_is_told_with_its_line(on_the_cpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu_workers, "on_real_gpus", lambda: {"00": {"introduce": "introduce(1)"}})
    assert gpu_items.main("workers of chapter 00") == 1
    assert "TypeError: introduce() takes 0 positional arguments" in capsys.readouterr().out


def test_a_chapters_ranks_use_nccl_where_two_are_asked_for_and_nothing_else_is_said():
    asked = []
    names = {"launch": lambda fn, *args, **options: asked.append(options)}
    exec(gpu_items.SHARING, names)
    for options in ({}, {"world_size": 4}, {"backend": "gloo"}, {"device": "cpu"}):
        names["launch"](print, **options)
    assert asked == [
        {"backend": "nccl", "share_gpus": True},
        {"world_size": 4},
        {"backend": "gloo"},
        {"device": "cpu"},
    ]


def test_the_bandwidth_is_that_of_nccl_tests():
    (size, us, bus), small = launch(bandwidth.all_reduce, (4096, 8), world_size=4)[2]
    assert size == 4096
    assert bus == pytest.approx(4096 / us / 1000 * 2 * 3 / 4)
    assert small[0] == 8


@pytest.mark.slow
def test_launch_and_torchrun_are_measured_side_by_side(on_the_cpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu_items, "gpus", lambda: 2)
    monkeypatch.setattr(gpu_items, "SIZES", (1024, 2048))
    monkeypatch.setattr(gpu_items, "TORCHRUN_S", 200)  # a slow machine may run this
    gpu_items.bandwidth()
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.startswith("1,024 bytes: launch ")
    assert "GB/s, torchrun " in second


@pytest.mark.slow
def test_a_chapter_is_run_and_what_launch_chose_is_told(monkeypatch, tmp_path, capsys):
    first = "# %%\nimport os\n\n"
    good = "# %%\nfrom course_utils import launch\n\n# %%\nlaunch(lambda: 1, world_size=4)\n"
    for name, text in (("00_good", first + good), ("01_bad", good + "\n# %%\n1 / 0\n")):
        (tmp_path / "source" / "lessons").mkdir(parents=True, exist_ok=True)
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        (tmp_path / "source" / "lessons" / f"{name}.py").write_text(text)
    monkeypatch.setattr(gpu_items, "ROOT", tmp_path)
    with warm_kernels.warm():
        gpu_items.chapter_notebook("00")
        with pytest.raises(build.BuildError, match="ZeroDivisionError"):
            gpu_items.chapter_notebook("01")
    assert "ran to its end\nlaunch: gloo on the CPU" in capsys.readouterr().out


def test_a_backward_pass_in_a_kernel_of_the_tests_is_refused_and_in_a_rank_it_is_not(tmp_path):
    imports = "import torch\nfrom course_utils import launch\n"
    backward = "def backward():\n    torch.ones(1, requires_grad=True).sum().backward()\n"
    in_rank = nbformat.v4.new_code_cell(f"{imports}{backward}launch(backward, world_size=1)")
    in_kernel = nbformat.v4.new_code_cell("backward()")
    with warm_kernels.warm():
        build.execute(nbformat.v4.new_notebook(cells=[in_rank]), tmp_path)
        with pytest.raises(build.BuildError, match="a backward pass in the kernel"):
            build.execute(nbformat.v4.new_notebook(cells=[in_rank, in_kernel]), tmp_path)
