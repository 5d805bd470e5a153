"""Machines with GPUs, slices and refusals, pretended by a driver that a C compiler makes here."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from deadline import long_enough

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "tests" / "helpers" / "pretended_driver.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not COMPILER and "COURSE_SKIPS_NOTHING" not in os.environ, reason="needs a C compiler, cc"
    ),
    pytest.mark.skipif(sys.platform != "linux", reason="CUDA's driver is one for Linux"),
]

HERE = """
import os
from pathlib import Path

def inits():
    log = Path(os.environ["PRETEND_LOG"])
    pids = log.read_text().split() if log.exists() else []
    return pids.count(str(os.getpid()))
"""
ONE_GPU = "2 ranks, 1 GPU; device='cuda' shares it by gloo, backend='nccl', share_gpus=True by NCCL"
MACHINES = [
    ({"PRETEND_GPUS": "0"}, "no GPU: launch uses gloo on the CPU", "no GPU here"),
    (
        {"PRETEND_GPUS": "1"},
        "1 GPU (H100): launch uses gloo on the CPU, and the GPU where you say device='cuda'",
        ONE_GPU,
    ),
    *(
        ({"PRETEND_GPUS": str(n)}, f"{n} GPUs (H100): launch uses NCCL for up to {n} ranks", "")
        for n in (2, 4, 8)
    ),
    (
        {"PRETEND_GPUS": "1", "PRETEND_NVML": "0", "PRETEND_NAME": "A100 MIG 1g.5gb"},
        "1 slice of a GPU (A100 MIG 1g.5gb), more of which no process can use: launch uses gloo",
        ONE_GPU,
    ),
    (
        {"PRETEND_NVML": "2", "PRETEND_STATUS": "802"},
        "a GPU that CUDA cannot use (system not yet initialized (CUDA error 802)): launch uses",
        "CUDA cannot use the GPU: system not yet initialized (CUDA error 802)",
    ),
    (
        {"PRETEND_GPUS": "2", "PRETEND_CUDA": "12040"},
        "its driver knows CUDA 12, this torch needs CUDA 13: update it",
        "CUDA cannot use the GPU: its driver knows CUDA 12, this torch needs CUDA 13: update it",
    ),
]


@pytest.fixture(scope="module")
def pretending(tmp_path_factory):
    """Return a function that runs Python on a text, on a machine with such GPUs."""
    assert COMPILER, "install a C compiler, such as Debian's gcc and libc6-dev"
    folder = tmp_path_factory.mktemp("driver")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        subprocess.run([COMPILER, "-shared", "-fPIC", "-o", folder / name, SOURCE], check=True)

    def run(text: str, **machine: str) -> str:
        (folder / "log").unlink(missing_ok=True)
        usual = {"PRETEND_GPUS": "2", "PRETEND_NAME": "H100", "PRETEND_LOG": str(folder / "log")}
        paths = f"{ROOT}{os.pathsep}{ROOT / 'notebooks'}"  # chapter 04 imports train_ddp.py
        usual |= {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": paths}
        environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        command = [sys.executable, "-W", "ignore", "-c", HERE + text]
        how = {"env": environment | usual | machine, "capture_output": True, "text": True}
        done = subprocess.run(command, timeout=long_enough(200), check=False, **how)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_every_machine_is_told_as_what_it_is_and_no_kernel_starts_cuda(pretending):
    told = pretending(
        f"""
import json
from course_utils import hardware, launch
from course_utils.devices import driver, prepare
for machine, *_ in json.loads({json.dumps(json.dumps(MACHINES))}):
    for name in [name for name in os.environ if name.startswith("PRETEND") and name[8:] != "LOG"]:
        del os.environ[name]
    os.environ.update({{"PRETEND_NAME": "H100"}} | machine)
    driver._driver_answer.cache_clear()
    prepare._notices_given.clear()
    print("MACHINE")
    print(hardware()._gpus())
    if len(hardware().gpus) < 2:  # NCCL itself is not pretended
        launch(lambda: 1)
print("MACHINE")
print(inits())
"""
    )
    *machines, kernels = told.split("MACHINE\n")[1:]
    assert kernels == "0\n"
    for text, (_, hardware, notice) in zip(machines, MACHINES, strict=True):
        assert hardware in text
        assert not notice or f"launch: gloo on the CPU ({notice})\n" in text


def test_no_chapters_imports_start_cuda(pretending):
    paths = sorted([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("solutions/*.ipynb")])
    cells = [
        next(c.source for c in nbformat.read(p, as_version=4).cells if c.cell_type == "code")
        for p in paths
    ]
    assert len(cells) > 20
    assert sum("import" in cell for cell in cells) > 20
    text = f"for cell in {cells!r}:\n    exec(cell, {{}})\nprint('inits', inits())"
    assert pretending(text).endswith("inits 0\n")


CULPRITS = {
    "torch.ones(1, device='cuda')": "`torch.ones(1, device='cuda')` (cell [2], line 3)",
    "ctypes.CDLL('libcuda.so.1').cuInit(0)": "something in cell [2]",
    "torch.ones(1, requires_grad=True).sum().backward()": (
        "`torch.ones(1, requires_grad=True).sum().backward()` (cell [2], line 3)"
    ),
}


BARE_DRIVER = """
import ctypes
ctypes.CDLL("libcuda.so.1").cuInit(0)
from course_utils import launch
import torch

def step() -> float:
    weight = torch.ones(3, requires_grad=True)
    weight.sum().backward()
    return weight.grad.sum().item()

print("inits", inits(), launch(step, device="cpu", world_size=2))
"""


def test_a_kernel_that_has_only_started_the_driver_still_launches_ranks_on_the_cpu(pretending):
    assert pretending(BARE_DRIVER).endswith("inits 1 [3.0, 3.0]\n")


def test_what_started_cuda_is_named_and_nothing_is_forked(pretending):
    """Each culprit in a fork of a kernel that has run its first cell."""
    told = pretending(
        f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
first = "import ctypes\\nimport torch\\nfrom course_utils import launch"
shell.run_cell(first, store_history=True)
for culprit in {[*CULPRITS]!r}:
    print("CULPRIT", flush=True)
    if not os.fork():
        for cell in (
            "import contextlib\\nwith contextlib.suppress(RuntimeError):\\n    " + culprit,
            "try:\\n    launch(print, device='cuda')\\nexcept RuntimeError as e:\\n    print(e)",
        ):
            shell.run_cell(cell, store_history=True)
        print("inits", inits(), flush=True)
        os._exit(0)
    os.wait()
"""
    )
    _, *told = told.split("CULPRIT\n")
    for said, named in zip(told, CULPRITS.values(), strict=True):
        assert said.endswith("inits 1\n")
        assert f"this kernel already uses CUDA: {named} started it. Restart the kernel" in said


REPORT = """
import pathlib
import tempfile
from course_tools.measure import gpu_report
few = "the machine", "two ranks by NCCL", "workers of chapter 00", "bandwidth"
items = gpu_report.gpu_items.items()
gpu_report.gpu_items.items = lambda: {name: items[name] for name in few}
with tempfile.TemporaryDirectory() as folder:
    print("status", gpu_report.main(pathlib.Path(folder)))
"""


def test_the_report_tells_a_driver_that_only_pretends_as_what_does_not_work(pretending):
    told = pretending(REPORT, PRETEND_GPUS="1")
    assert "1 GPU (H100)" in told
    assert "2 ranks could not add up one number by NCCL; nothing of yours was started" in told
    assert "What works here: the machine. What does not: two ranks by NCCL." in told
    assert "Left out: workers of chapter 00, bandwidth." in told
    assert told.endswith("status 1\n")
