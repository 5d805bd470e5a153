"""The report on a machine's GPUs: written from what is there, and without names."""

import getpass
import json
import socket
from pathlib import Path

import pytest
import warm_kernels

import bandwidth
import gpu_report
from course_utils import launch
from course_utils.devices import driver


def test_without_a_gpu_one_line_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_report, "usable_gpus", driver.Gpus)
    assert gpu_report.main(folder=tmp_path) == 0
    assert capsys.readouterr().out == "No GPU to report on: there is none here.\n"
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_refused_is_told_with_the_reason(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_report, "usable_gpus", lambda: driver.Gpus((), "too old"))
    assert gpu_report.main(folder=tmp_path) == 0
    assert capsys.readouterr().out == "No GPU to report on: too old.\n"


@pytest.mark.parametrize("fails", [False, True])
def test_each_part_stands_in_the_report_and_a_failed_one_hides_no_other(
    monkeypatch, tmp_path, capsys, fails
):
    def part(root: Path) -> tuple[str, bool]:
        if fails:
            raise RuntimeError(f"seen on {socket.gethostname()} in {Path.home()}/x")
        return "well", True

    monkeypatch.setattr(gpu_report, "usable_gpus", lambda: driver.Gpus(("H100",)))
    for name in ("machine", "tests", "chapters"):
        monkeypatch.setattr(gpu_report, name, lambda root: ("measured", True))
    monkeypatch.setattr(gpu_report, "bandwidth", part)
    assert gpu_report.main(folder=tmp_path) == int(fails)
    text = (tmp_path / gpu_report.REPORT).read_text()
    assert text.count("measured") == 3
    assert ("RuntimeError: seen on HOST in HOME/x" in text) is fails
    assert ("NOT as it should be" in text) is fails
    assert ("look for NOT in it" in capsys.readouterr().out) is fails


def test_no_name_of_this_machine_is_in_a_report():
    said = f"{getpass.getuser()}@{socket.gethostname()}:{Path.home()} and {gpu_report.HERE}/tests"
    assert gpu_report.nameless(said) == "USER@HOST:HOME and COURSE/tests"


def test_the_bandwidth_is_that_of_nccl_tests():
    (size, us, bus), small = launch(bandwidth.all_reduce, (4096, 8), world_size=4)[2]
    assert size == 4096
    assert bus == pytest.approx(4096 / us / 1000 * 2 * 3 / 4)
    assert small[0] == 8


@pytest.mark.slow
def test_launch_and_torchrun_are_measured_side_by_side(monkeypatch):
    monkeypatch.setattr(gpu_report, "usable_gpus", driver.Gpus)  # two ranks, by gloo
    text, good = gpu_report.bandwidth(gpu_report.HERE, (1024, 2048))
    assert good
    assert [line.split(" | ")[0] for line in text.splitlines()[-2:]] == ["| 1,024", "| 2,048"]


@pytest.mark.slow
def test_a_chapter_is_run_and_what_launch_chose_is_told(monkeypatch, tmp_path):
    good = "# %%\nfrom course_utils import launch\nlaunch(lambda: 1, world_size=1)\n"
    for name, text in (("00_good", good), ("01_bad", "# %%\n1 / 0\n")):
        (tmp_path / "source" / "lessons").mkdir(parents=True, exist_ok=True)
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        (tmp_path / "source" / "lessons" / f"{name}.py").write_text(text)
    monkeypatch.setattr(gpu_report, "CHAPTERS", ("00", "01"))
    with warm_kernels.warm():
        told, good = gpu_report.chapters(tmp_path)
    assert not good
    assert "00_good: ran to its end" in told
    assert "launch: " in told
    assert "ZeroDivisionError" in told
    assert json.dumps(told)
