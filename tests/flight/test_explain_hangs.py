"""`explain_hangs`: a job under torchrun explains its own hang, in all the ways that it is asked."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from deadline import long_enough

from course_utils import explain_dumps

ROOT = Path(__file__).parents[2]
LINE = "import course_utils\ncourse_utils.explain_hangs('hang', after_s={after_s})\n"
BEGIN = """
import os, signal, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
dist.all_reduce(torch.ones(3))
"""
RECEIVES_BEHIND_AN_ALL_REDUCE = """
if rank == 3:
    while not os.path.exists("over"):
        time.sleep(0.1)
    os._exit(0)
if rank == 2:
    dist.all_reduce(torch.ones(3), group=pair)
if rank == 0:
    dist.recv(torch.ones(2), 2)
dist.all_reduce(torch.ones(3), group=pair)
"""
DIES = """
if rank == 2:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(3))
"""
ASKS = """
if rank == 1:
    open("pid", "w").write(str(os.getpid()))
"""


def start(folder: Path, script: str, *module: str) -> subprocess.Popen:
    (folder / "train.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=4"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *module, "train.py"],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def heard(job: subprocess.Popen, folder: Path) -> str:
    """All lines up to the last one of the report; then the job is ended."""
    lines = []
    try:
        for line in job.stderr:
            lines.append(line)
            if line.startswith("  rank 3: "):  # the table is the last part but for stacks
                break
    finally:
        (folder / "over").touch()
        job.terminate()
        job.communicate(timeout=long_enough(60))
    return "".join(lines)


@pytest.mark.slow
def test_a_call_that_is_pending_for_too_long_makes_the_first_rank_report(tmp_path):
    script = LINE.format(after_s=3) + BEGIN + RECEIVES_BEHIND_AN_ALL_REDUCE
    told = heard(start(tmp_path, script), tmp_path)
    assert "Guilty: rank 3." in told
    assert re.search(r"rank 0 waits for rank 2 .* at line \d+ of train.py", told)
    assert told.count("Guilty:") == 1
    assert explain_dumps(tmp_path / "hang").guilty == [3]


@pytest.mark.slow
@pytest.mark.outer
def test_a_rank_that_dies_is_told_before_torchrun_ends_the_others(tmp_path):
    script = LINE.format(after_s=600) + BEGIN + DIES
    told = heard(start(tmp_path, script), tmp_path)
    assert "Guilty: rank 2." in told
    assert "left no dump" in told


@pytest.mark.slow
@pytest.mark.outer
def test_a_signal_to_any_rank_of_an_unchanged_script_makes_all_leave_dumps(tmp_path):
    script = BEGIN + ASKS + RECEIVES_BEHIND_AN_ALL_REDUCE
    job = start(tmp_path, script, "-m", "course_utils.watch")
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()):
        assert job.poll() is None
        time.sleep(0.1)
    os.kill(int(pid.read_text()), signal.SIGUSR1)
    told = heard(job, tmp_path)
    assert re.search(r"rank 3", told)
    assert len(list((tmp_path / "hang").iterdir())) == 4
