"""Chapter 09's schedulers, as its cells run them: a real Slurm, its recording, and Ray."""

import contextlib
import functools
import importlib.util
import json
import linecache
import math
import multiprocessing
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import labs
import psutil
import pytest
from deadline import within
from torch.distributed import run as torchrun
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from course_cluster import slurm
from course_cluster.hosts import two_hosts
from course_tools.notebooks import cells

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
    for process in psutil.process_iter(["environ", "status", "cmdline"]):
        own = process.info["environ"] or {}
        if own.get("RAY_TMPDIR") == folder and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def listening(folder):
    """Where Ray's own processes listen; a rank's store, which is torch's, does so everywhere."""
    named = {p.pid: " ".join(p.info["cmdline"] or ()) for p in family(folder)}  # who may be gone
    own = {pid for pid, name in named.items() if "ray::RayTrainWorker" not in name}
    connections = [c for c in psutil.net_connections("tcp") if c.status == "LISTEN"]
    return [(c.pid, *c.laddr) for c in connections if c.pid in own]


@contextlib.contextmanager
def watched(folder, enough=math.inf):
    """Yields where Ray listens for longer than a moment; from `enough` places on, it is killed."""
    addresses, lasting, over = Counter(), set(), threading.Event()

    def watch():
        while not over.wait(0.5):
            addresses.update(listening(folder))
            lasting.update((ip, port) for (_, ip, port), times in addresses.items() if times > 2)
            if len(lasting) >= enough:
                for process in family(folder):
                    if "job.py" in process.info["cmdline"]:
                        process.kill()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lasting
    finally:
        over.set()
        watcher.join()


def only_on_loopback(addresses):
    return {ip.removeprefix("::ffff:").split(".")[0] for ip, _ in addresses} == {"127"}


@pytest.mark.soak  # the strict run of the chapter compares what it says
@NEEDS_RAY
def test_under_ray_the_weights_are_launchs_all_ports_are_on_loopback_and_nothing_is_left(
    ray_cells, folder
):
    before = set(os.listdir("/dev/shm")) if sys.platform == "linux" else set()
    with watched(folder) as addresses:
        said = ray_cells["run_ray"](folder)
    weights = f"20 steps: {ray_cells['by_launch']:.4f}"
    first, second = "a life from step 0", r"a life from step [48]"
    assert re.fullmatch(f"2 nodes of Ray\n{first}\n{second}\n{weights}\n", said)
    assert only_on_loopback(addresses)
    assert [p.info["cmdline"] for p in family(folder)] == []
    after = set(os.listdir("/dev/shm")) if sys.platform == "linux" else set()
    assert [name for name in after - before if "plasma" in name or "ray" in name] == []


@pytest.mark.slow
@NEEDS_RAY
def test_ray_killed_in_the_middle_was_on_loopback_alone_and_leaves_nothing(ray_cells, folder):
    with watched(folder, enough=8) as addresses, pytest.raises(RuntimeError, match="ended with -9"):
        ray_cells["run_ray"](folder)
    assert only_on_loopback(addresses)
    assert [p.info["cmdline"] for p in family(folder)] == []


@pytest.mark.slow
def test_without_ray_the_chapter_says_how_to_get_it_and_goes_on(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    names = run_cells("part-ray", {"__name__": "__main__"})
    *_, last = capsys.readouterr().out.splitlines()
    pin = re.search(r"^ray==.*", (ROOT / "constraints.txt").read_text(), re.M)[0]
    assert last == f"Ray is not installed; this brings it: pip install 'ddp-course[cluster]' {pin}"
    assert "by_ray" not in names


def of_slurm():
    """Our own daemons of Slurm (a chapter may run beside), and the folders of their state."""
    daemons, alive = ("slurmctld", "slurmd", "slurmstepd", "munged"), set()
    for own in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if own.name().startswith(daemons):
                alive.add(own.pid)
    return alive | {*Path(tempfile.gettempdir()).glob("slurm-*")}


@pytest.fixture
def slurm_said(monkeypatch, tmp_path_factory):
    """The module, with folders of its own, and with the line that it says once unsaid."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("s")))  # short
    slurm._say_once.cache_clear()
    before = of_slurm()
    yield slurm
    assert of_slurm() <= before


@pytest.mark.slow
def test_a_real_slurm_says_what_its_recording_says_and_leaves_nothing(slurm_said, capsys, tmp_path):
    who = re.search(r'WHO = """(.*?)"""', LESSON.read_text(), re.DOTALL)[1]
    with within(300), slurm_said.two_nodes(tmp_path) as cluster:
        slurm_or_skip(capsys)
        (tmp_path / "who.sh").write_text(who)
        real = cluster.submit("who.sh").wait_for("over").splitlines()
    recorded = json.loads(slurm_said.RECORDED.read_text())["who.sh"].splitlines()
    assert sorted(real) == sorted(recorded)
    assert (real[0], real[-3:]) == (recorded[0], recorded[-3:])


def slurm_or_skip(capsys):
    """Skip a test that needs a real Slurm where there is none."""
    line = capsys.readouterr().out
    if "slurm: a recording" in line:
        pytest.skip(f"{line}: apt install slurmctld slurmd slurm-client munge")


def state_at_its_end(cluster, job):
    """What Slurm says of a job that is over: state, exit code, how often it was requeued."""
    while True:
        shown = cluster.run(f"scontrol show job --oneliner {job.number}")
        state = re.search(r"JobState=(\w+)", shown)[1]
        if state not in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING"):
            code = int(re.search(r"ExitCode=(\d+)", shown)[1])
            restarts = int(re.search(r"Restarts=(\d+)", shown)[1])
            return state, code, restarts


ENDS = "print('over')"
FAILS = "raise SystemExit(3)"
IS_TOLD = """
import os, signal, time
def leave(*_):
    os._exit(75)
signal.signal(signal.SIGTERM, leave)
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    print("waits", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "at_its_end"),
    [(ENDS, ("COMPLETED", 0, 0)), (FAILS, ("FAILED", 3, 0)), (IS_TOLD, ("COMPLETED", 0, 1))],
    ids=["success", "failure", "told to end, then success"],
)
def test_the_batch_script_of_chapter_09_ends_as_its_training_did(
    slurm_said, capsys, tmp_path, program, at_its_end
):
    script = re.search(r'NIGHT = """(.*?)"""', LESSON.read_text(), re.DOTALL)[1]
    (tmp_path / "night.sh").write_text(script)
    (tmp_path / "night.py").write_text(program)
    with within(300), slurm_said.two_nodes(tmp_path) as cluster:
        slurm_or_skip(capsys)
        job = cluster.submit("night.sh")
        while program == IS_TOLD and job.log.count("waits") < 2:
            time.sleep(0.05)
        cluster.run(f"scancel --signal=TERM {job.number}" if program == IS_TOLD else "true")
        assert state_at_its_end(cluster, job) == at_its_end


@pytest.mark.slow
def test_agents_that_srun_starts_restart_a_dead_rank_as_the_recording_says(slurm_said, capsys):
    with within(300), slurm_said.two_nodes():
        slurm_or_skip(capsys)
    names = run_cells("part-agents", {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert printed.endswith(json.loads(slurm_said.RECORDED.read_text())["agents.sh"])
    assert printed.endswith(f"20 steps by 2 ranks: {names['by_launch']:.4f}\n")


WITHOUT_A_NUMBER_PER_NODE = """#!/bin/bash
#SBATCH --nodes=2 --ntasks=3 --error=/dev/null
python told.py
srun --output=task%t.json python told.py
echo over
"""


@pytest.mark.slow
def test_lab_09_knows_who_it_is_in_a_step_that_asked_for_no_number_of_tasks_per_node(
    slurm_said, capsys, tmp_path
):
    (tmp_path / "told.py").write_text("import json, os; print(json.dumps({**os.environ}))")
    (tmp_path / "three.sh").write_text(WITHOUT_A_NUMBER_PER_NODE)
    with within(300), slurm_said.two_nodes(tmp_path) as cluster:
        slurm_or_skip(capsys)
        script, _ = cluster.submit("three.sh").wait_for("over").splitlines()
    ranks_of = labs.cells("09_many_machines").ranks_of
    assert ranks_of(json.loads(script)) == (0, 0, 1, 1)
    # A file for each task: srun cuts long lines that two tasks print at the same time.
    tasks = [(tmp_path / f"task{number}.json").read_text() for number in range(3)]
    places = [ranks_of(json.loads(task)) for task in tasks]
    assert places == [(0, 0, 3, 2), (1, 1, 3, 2), (2, 0, 3, 1)]


def test_an_agent_that_meets_nobody_gives_up_after_the_ten_minutes_of_chapter_09():
    assert RendezvousTimeout().join.total_seconds() == 600
    text = LESSON.read_text()
    assert "gives up after ten minutes" in text
    assert "`RendezvousTimeoutError`" in text


def agent_for(name, port, seconds):
    config = LaunchConfig(1, 1, 1, run_id=name, rdzv_backend="c10d")
    config.rdzv_endpoint = f"127.0.0.1:{port}"
    elastic_launch(config, "sleep")(str(seconds))


@pytest.mark.slow
def test_of_two_trainings_that_share_an_endpoint_the_second_ends_with_the_first():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    forked = multiprocessing.get_context("fork").Process
    first = forked(target=agent_for, args=("first", port, 6))
    second = forked(target=agent_for, args=("second", port, 300))
    with within(100):
        first.start()
        while socket.socket().connect_ex(("127.0.0.1", port)):
            time.sleep(0.05)
        second.start()
        first.join()
        second.join()
    assert first.exitcode == 0
    assert second.exitcode == 1


def test_torchrun_restarts_no_rank_by_default_as_chapter_09_says():
    assert torchrun.parse_args(["train.py"]).max_restarts == 0
    assert "no rank is ever restarted, since 0 is the default" in LESSON.read_text()


def test_without_slurm_a_line_says_so_and_a_job_has_the_recorded_log(
    slurm_said, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(slurm_said.shutil, "which", lambda *name, **where: None)
    with slurm_said.two_nodes(tmp_path) as cluster:
        assert cluster.run("scancel 1") == ""
        assert "20 steps" in cluster.submit("night.sh").wait_for("life 2")
    said = capsys.readouterr().out
    assert re.search("^slurm: a recording .*(no slurmctld here|namespaces)", said, re.MULTILINE)


def test_where_folders_have_long_names_a_line_says_what_to_do(
    slurm_said, monkeypatch, capsys, tmp_path
):
    (long := tmp_path / ("n" * 70)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with slurm_said.two_nodes(tmp_path):
        assert re.search(
            "recording .*(shorter TMPDIR|no slurm|namespaces)", capsys.readouterr().out
        )


@pytest.mark.slow
def test_a_slurm_that_does_not_start_is_replaced_by_its_recording(
    slurm_said, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(slurm_said, "program", lambda name: "/bin/false")
    monkeypatch.setattr(slurm_said, "PATIENCE_S", 0.2)
    with slurm_said.two_nodes(tmp_path) as cluster:
        assert type(cluster) is slurm_said.Recording
    assert "slurm: a recording (" in capsys.readouterr().out
