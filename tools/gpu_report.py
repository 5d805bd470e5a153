"""Proves the course on this machine's GPUs and writes down what was seen: `make gpu`.

The report, gpu-report.md, is made to be attached to an issue: it has the hardware, the versions and
each result, and neither a host's nor a user's name.
"""

import getpass
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch

from bandwidth import SIZES, Row, all_reduce
from build import execute, plan, targets
from course_utils import hardware, launch
from course_utils.devices.driver import usable_gpus

HERE = Path(__file__).resolve().parents[1]
REPORT = "gpu-report.md"
CHAPTERS = ("00", "01", "04")


def main(root: Path = HERE, folder: Path = HERE) -> int:
    """Writes the report and returns 0 where everything held; without a GPU says so in a line."""
    found = usable_gpus()
    if not found.names:
        print(f"No GPU to report on: {found.refusal or 'there is none here'}.")
        return 0
    parts, held = ["# The course on this machine's GPUs"], True
    for title, tell in (
        ("Machine", machine),
        ("Tests", tests),
        ("Chapters", chapters),
        ("All-reduce", bandwidth),
    ):
        print(f"{title} ...", flush=True)
        try:
            text, good = tell(root)
        except Exception as error:  # the other parts are worth having
            text, good = f"```\n{type(error).__name__}: {error}\n```", False
        parts.append(
            f"## {title}: {'all as it should be' if good else 'NOT as it should be'}\n\n{text}"
        )
        held = held and good
    (folder / REPORT).write_text(nameless("\n\n".join(parts)) + "\n", encoding="utf-8")
    print(f"{REPORT} is written: {'everything held' if held else 'look for NOT in it'}.")
    return int(not held)


def machine(root: Path) -> tuple[str, bool]:
    """Hardware, versions, and how the GPUs are connected."""
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    lines = [str(hardware()), f"CUDA {torch.version.cuda}, NCCL {nccl}"]
    for command in (
        [
            "nvidia-smi",
            "--query-gpu=name,memory.total,driver_version,mig.mode.current",
            "--format=csv",
        ],
        ["nvidia-smi", "topo", "-m"],
    ):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            lines.append(re.sub(r"\x1b\[\d*m", "", done.stdout).strip())
        except (OSError, subprocess.TimeoutExpired):
            lines.append(f"({' '.join(command[:2])} gave no answer)")
    return fenced("\n\n".join(lines)), True


def tests(root: Path) -> tuple[str, bool]:
    """The tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-rA", "tests"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    rows = re.findall(
        r"^(?:PASSED|FAILED|ERROR|SKIPPED).*|^\d+ (?:passed|failed).*", done.stdout, re.M
    )
    return fenced("\n".join(rows) or done.stdout[-4000:] + done.stderr[-4000:]), not done.returncode


def chapters(root: Path) -> tuple[str, bool]:
    """Chapters run from end to end, what `launch` chose in them, and how long they took."""
    lines, good = [], True
    for target in (target for name in CHAPTERS for target in targets(root, [name])):
        if target.built.parent.name != "notebooks":
            continue
        notebook, begun = plan(target), time.monotonic()
        try:
            execute(notebook, target.built.parent)
            became = "ran to its end"
        except Exception as error:
            became, good = f"{type(error).__name__}: {str(error)[-2000:]}", False
        said = sorted(set(re.findall(r"launch: [^\\\n]+", str(notebook))))
        lines.append(f"{target.built.stem}: {became}, {time.monotonic() - begun:.0f} s; {said}")
    return fenced("\n".join(lines)), good


def bandwidth(root: Path, sizes: tuple[int, ...] = SIZES) -> tuple[str, bool]:
    """The same measurement in workers of `launch` and of torchrun, side by side."""
    count = len(usable_gpus().names) or 2
    mine = launch(all_reduce, sizes, world_size=count, timeout=300)[0]
    torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    done = subprocess.run(
        [sys.executable, "-m", *torchrun, str(HERE / "tools" / "bandwidth.py")],
        env=os.environ | {"BANDWIDTH_SIZES": json.dumps(sizes), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    theirs = [Row(*row) for row in json.loads(done.stdout)]
    lines = [
        f"{count} ranks; bus bandwidth by nccl-tests' formula.\n",
        "| bytes | launch µs | launch GB/s | torchrun µs | torchrun GB/s |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for own, other in zip(mine, theirs, strict=True):
        lines.append(
            f"| {own.size:,} | {own.us:,.1f} | {own.bus_gb_s:.2f} | {other.us:,.1f} | "
            f"{other.bus_gb_s:.2f} |"
        )
    return "\n".join(lines), True


def fenced(text: str) -> str:
    """Text as it is, in Markdown."""
    return f"```\n{text}\n```"


def nameless(text: str) -> str:
    """A text in which this host, its user and their folders have no name."""
    names = {str(HERE): "COURSE", str(Path.home()): "HOME", socket.gethostname(): "HOST"}
    for name, instead in (names | {getpass.getuser(): "USER"}).items():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", instead, text)
    return text


if __name__ == "__main__":
    sys.exit(main())
