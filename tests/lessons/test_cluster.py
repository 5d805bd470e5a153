"""Chapter 09's schedulers, as its cells run them: Slurm's stand-ins, and Ray with all it starts."""

import functools
import importlib.util
import linecache
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch

import cells
from course_utils.machines.hosts import two_hosts

ROOT = Path(__file__).resolve().parents[2]
LESSON = ROOT / "source/lessons/09_many_machines.py"
NEEDS_RAY = pytest.mark.skipif(not importlib.util.find_spec("ray"), reason="ray is not installed")


def run_cells(part, names, only=slice(None)):
    """Run the cells of a part of the chapter, after its imports."""
    code = [c for c in cells.read_percent(LESSON.read_text()).cells if c.cell_type == "code"]
    imports = [code[0].source] if "launch" not in names else []
    own = [cell.source for cell in code if part in cell.metadata.get("tags", [])][only]
    for number, text in enumerate([*imports, *own]):
        name = f"<{part} {number} {only}>"  # so that inspect finds what it defines
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), names)
    return names


@pytest.fixture
def ray_cells():
    names = run_cells("part-ray", {"__name__": "__main__"}, slice(-1))
    # Here not in a namespace, which hides its ports and takes all processes with it.
    names["two_hosts"] = functools.partial(two_hosts, form="loopback")
    return names


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(dir="/tmp") as path:  # must be empty enough to go, too
        yield path
    assert not os.path.exists(path)


def family(folder):
    """All living processes that were started with this folder for Ray's files."""
    found = []
    for process in psutil.process_iter(["environ", "status"]):
        own = process.info["environ"] or {}
        if own.get("RAY_TMPDIR") == folder and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def listening(folder):
    """Where Ray's own processes listen; a rank's store, which is torch's, does so everywhere."""
    own = {p.pid for p in family(folder) if "ray::RayTrainWorker" not in " ".join(p.cmdline())}
    connections = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN"]
    return [(c.pid, *c.laddr) for c in connections if c.pid in own]


@pytest.mark.slow
@NEEDS_RAY
def test_under_ray_the_weights_are_launchs_all_ports_are_on_loopback_and_nothing_is_left(
    ray_cells, folder
):
    before = set(os.listdir("/dev/shm")) if sys.platform == "linux" else set()
    addresses, over = Counter(), threading.Event()

    def watch():
        while not over.wait(0.5):
            addresses.update(listening(folder))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        said, weights = ray_cells["run_ray"](folder)
    finally:
        over.set()
        watcher.join()
    assert said == "2 nodes of Ray\n"
    assert (torch.tensor(weights) - torch.tensor(ray_cells["by_launch"])).abs().max() < 1e-6
    lasting = {ip for (_, ip, _), times in addresses.items() if times > 2}
    assert {ip.removeprefix("::ffff:").split(".")[0] for ip in lasting} == {"127"}
    assert [(p.pid, p.status(), p.cmdline()[:2]) for p in family(folder)] == []
    after = set(os.listdir("/dev/shm")) if sys.platform == "linux" else set()
    assert [name for name in after - before if "plasma" in name or "ray" in name] == []


@pytest.mark.slow
@NEEDS_RAY
def test_ray_stopped_in_the_middle_leaves_nothing(ray_cells, folder):
    with pytest.raises(TimeoutError):
        ray_cells["run_ray"](folder, timeout_s=8)
    assert [(p.pid, p.status(), p.cmdline()[:2]) for p in family(folder)] == []


def test_without_ray_the_chapter_says_how_to_get_it_and_goes_on(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    names = run_cells("part-ray", {"__name__": "__main__"})
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("Ray is not installed; this brings it: ")
    assert "by_ray" not in names


@pytest.mark.slow
def test_the_slurm_script_runs_in_sruns_environment_and_gives_launchs_weights(tmp_path):
    names = run_cells("part-slurm", {"__name__": "__main__"}, slice(-1))
    said, weights = names["run_job"](str(tmp_path))
    assert sorted(said.splitlines()) == [
        "0: rank 0 of 2: node 0, local rank 0",
        "1: rank 1 of 2: node 1, local rank 0",
    ]
    assert [names["same"](own) for own in weights] == [True, True]
    assert not names["same"]([0.0] * len(weights[0]))


def test_a_rank_that_fails_under_the_slurm_script_fails_the_job(tmp_path):
    names = run_cells("part-slurm", {"__name__": "__main__"}, slice(-1))
    names["JOINING"] = "print('no rank here')\nraise SystemExit(int(os.environ['SLURM_PROCID']))\n"
    with pytest.raises(RuntimeError, match="no rank here"):
        names["run_job"](str(tmp_path))
