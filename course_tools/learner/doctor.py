"""What is wrong with this installation? One screen: `make doctor`, or `ddp-course doctor`.

Each line begins with a sign: ✓ is well, ! works but something is missing, ✗ has to be mended, with
what to do about it. It changes nothing. It imports no package of the course until it has looked
whether it is there, so that it can say what is missing.
"""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from course_tools import INSTALLED, PACKAGES, ROOT  # which imports nothing else

WELL, MISSING, WRONG = "✓", "!", "✗"
MB, GB = 1 << 20, 1 << 30
EXTRAS = {"keras": "chapter 10", "ray": "half of chapter 09", "nbgrader": "grading by nbgrader"}
HIDDEN = {"torch", "random", "numpy", "course_utils", "types", "queue"}  # often a file's name
BROWSERS = "chromium", "chromium-browser", "google-chrome"
MEET = """
import json, sys, course_utils
from course_utils import launch
from course_utils.devices.driver import usable_gpus
import torch, torch.distributed as dist
def add():
    dist.all_reduce(one := torch.ones(1))
    return int(one)
print(json.dumps([course_utils.__file__, launch(add, world_size=2, backend="gloo", timeout=30)[:],
                  usable_gpus().refusal]))
"""


class Line(NamedTuple):
    """What was found."""

    sign: str
    said: str


def python(root: Path) -> Iterator[Line]:
    """The interpreter and the system."""
    version = platform.python_version()
    if not (3, 11) <= sys.version_info[:2] < (3, 15):
        said = (
            f"Python {version}: 3.11, 3.12, 3.13 or 3.14 is needed. Remove .venv, then `make lab "
            "PYTHON=python3.12`"
        )
        yield Line(WRONG, said)
    elif sys.platform == "win32":
        yield Line(WRONG, "Windows has no fork: install the course inside WSL 2")
    else:
        yield Line(WELL, f"Python {version} on {platform.system()}")


def packages(root: Path) -> Iterator[Line]:
    """What pyproject.toml wants, and whether it has the version that everything is tested with."""
    import tomllib  # which Python 3.10 lacks, and this file has to run there

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    for_labs = project["optional-dependencies"]["lab"]
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (root / "constraints.txt").read_text(), re.M))
    other, unasked = [], []
    for line in [*project["dependencies"], *for_labs]:
        name, _, versions = line.partition(">=")
        if not versions:
            continue
        least, _, too_new = versions.partition(",<")
        try:
            own = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if root == INSTALLED and line in for_labs:
                unasked.append(name)
                continue
            said = f"{name} is not installed: `make lab` installs it, or {_installing(root)}"
            yield Line(WRONG, said)
            continue
        if _number(own) < _number(least):
            said = f"{name} {own} is too old, {least} is needed: {_installing(root)}"
            yield Line(WRONG, said)
        elif too_new and _number(own) >= _number(too_new):
            said = f"{name} {own} is too new, below {too_new} is needed: {_installing(root)}"
            yield Line(WRONG, said)
        elif own.partition("+")[0] != pins.get(name, own):
            other.append(f"{name} {own} (tested: {pins[name]})")
    if other:
        yield Line(MISSING, f"other versions than those tested: {', '.join(other)}")
    if unasked:
        said = f"without {', '.join(unasked)}, no lessons and labs: {_installing(root)}"
        yield Line(MISSING, said)


def _installing(root: Path, extra: str = "lab") -> str:
    """The command that installs what is missing, from a wheel or from the course's own folder."""
    if root == INSTALLED:
        return f"`pip install 'ddp-course[{extra}]'`"
    return f"`pip install -c constraints.txt -e '.[{extra}]'`"


def _number(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3]]


def workers(root: Path) -> Iterator[Line]:
    """Two real workers, started from another folder, as a notebook would."""
    if not importlib.util.find_spec("torch"):
        return
    done = subprocess.run(
        [sys.executable, "-c", MEET], cwd=tempfile.gettempdir(), capture_output=True, text=True
    )
    try:
        file, sums, refusal = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        yield Line(WRONG, f"two workers cannot be started: {last[:300]}")
        return
    home = PACKAGES if root == INSTALLED else root.resolve()
    where = Path(file).resolve().parents[1]
    if where != home:
        said = (
            f"notebooks import course_utils from {where}, not from here: {_installing(root)} "
            "in this folder"
        )
        yield Line(WRONG, said)
    if sums != [2, 2]:
        yield Line(WRONG, f"two workers should add up to 2 and say {sums}")
    if refusal:
        said = f"a GPU is there, but cannot be used: {refusal}; the course runs on the CPU"
        yield Line(MISSING, said)
    yield Line(WELL, "two workers start, meet and add up")


def loopback(root: Path) -> Iterator[Line]:
    """Workers talk over 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), 2).close()
    except OSError as error:
        said = (
            f"no loopback network ({error.strerror or error}): workers talk over "
            "127.0.0.1; as root, `ip link set lo up`"
        )
        yield Line(WRONG, said)
    if (name := os.environ.get("GLOO_SOCKET_IFNAME")) and name not in {
        own for _, own in socket.if_nameindex()
    }:
        said = f"GLOO_SOCKET_IFNAME names {name}, and there is no such network: unset it"
        yield Line(WRONG, said)


def limits(root: Path) -> Iterator[Line]:
    """What a user may have open, and how many processes."""
    import resource  # which Windows lacks

    for what, flag, least in (
        (resource.RLIMIT_NOFILE, "-n", 256), (resource.RLIMIT_NPROC, "-u", 256),
    ):  # fmt: skip
        most = resource.getrlimit(what)[0]
        if 0 <= most < least:
            of = "files" if flag == "-n" else "processes and threads"
            said = (
                f"`ulimit {flag}` is {most} {of}; {least} are needed: `ulimit {flag} 4096`, or "
                "ask who runs the machine"
            )
            yield Line(WRONG, said)
    size = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= size < 8 * GB:
        said = f"`ulimit -v` is {size >> 20} MB; PyTorch alone maps more: `ulimit -v unlimited`"
        yield Line(WRONG, said)


def memory(root: Path) -> Iterator[Line]:
    """Memory, and where it is shared."""
    with contextlib.suppress(OSError):  # macOS has no such file
        found = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
        if found and int(found[1]) < 1000 * 1024:
            said = f"{int(found[1]) >> 10} MB of memory are free; a notebook needs 1,000"
            yield Line(WRONG, said)
    with contextlib.suppress(OSError):
        free = shutil.disk_usage("/dev/shm").free
        if free < 64 * MB:
            said = (
                f"/dev/shm has {free >> 20} MB: loaders with workers need 64 (Docker: "
                "--shm-size=1g)"
            )
            yield Line(MISSING, said)


def folders(root: Path) -> Iterator[Line]:
    """Where learners' copies and temporary files go."""
    own = Path(os.environ.get("COURSE_MY") or root / "my").expanduser()
    there = next(path for path in (own, *own.parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        said = (
            f"{there} cannot be written: say where your copies go, `make lab my=FOLDER` or "
            "`ddp-course --my FOLDER`"
        )
        yield Line(WRONG, said)
    try:
        with tempfile.TemporaryFile() as file:
            free = shutil.disk_usage(tempfile.gettempdir()).free
            os.posix_fallocate(file.fileno(), 0, MB) if hasattr(os, "posix_fallocate") else None
    except OSError as error:
        said = (
            f"no temporary file can be made ({error.strerror or error}): set TMPDIR to a "
            "folder that can be written"
        )
        yield Line(WRONG, said)
    else:
        if free < 200 * MB:
            yield Line(MISSING, f"{free >> 20} MB are free for temporary files: 200 are needed")
    names = {path.stem for path in own.glob("*.py")} & HIDDEN
    for name in sorted(names):
        yield Line(WRONG, f"{own / name}.py hides the module {name} from your notebooks: rename it")


def kernel(root: Path) -> Iterator[Line]:
    """What JupyterLab starts for a notebook."""
    if not importlib.util.find_spec("ipykernel"):
        said = f"ipykernel is not installed: no notebook can run; {_installing(root)}"
        yield Line(MISSING if root == INSTALLED else WRONG, said)
        return
    from jupyter_client.kernelspec import KernelSpecManager

    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except Exception as error:
        said = (
            f"Jupyter has no kernel called python3 ({type(error).__name__}): `python -m "
            "ipykernel install --sys-prefix`"
        )
        yield Line(WRONG, said)
        return
    if command not in ("python", "python3") and not _same(command, sys.executable):
        said = (
            f"notebooks would run in another Python, {command}: `python -m ipykernel "
            "install --sys-prefix`"
        )
        yield Line(WRONG, said)


def _same(one: str, other: str) -> bool:
    """The same environment; that one Python is a link to the other would not be enough."""
    return os.path.realpath(os.path.dirname(one)) == os.path.realpath(os.path.dirname(other))


def checkout(root: Path) -> Iterator[Line]:
    """The course's own folder; a wheel has none."""
    if root == INSTALLED:
        return
    for name in ("course_utils", "notebooks", "exercises"):
        if not (root / name).is_dir():
            said = (
                f"{root / name} is missing: the course has to stay where it was installed "
                "from; clone it again"
            )
            yield Line(WRONG, said)
    ready = root / ".venv/.ready"
    if ready.exists() and ready.stat().st_mtime < max(
        (root / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt")
    ):
        said = "the course is newer than what is installed: `make lab` installs what is new"
        yield Line(MISSING, said)
    if not (root / ".git").exists() or not shutil.which("git"):
        said = "no git here: the course cannot tell its version, and updates are made by hand"
        yield Line(MISSING, said)


def optional(root: Path) -> Iterator[Line]:
    """What only some need."""
    for name, what in EXTRAS.items():
        if not importlib.util.find_spec(name):
            extra = {"ray": "cluster", "nbgrader": "teach"}.get(name, name)
            said = f"without {name}, no {what}: {_installing(root, extra)}"
            yield Line(MISSING, said)
    if root != INSTALLED and not any(map(shutil.which, BROWSERS)):
        said = "no Chromium: some tests of `make test` are skipped; learners need none"
        yield Line(MISSING, said)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        if name in os.environ:
            said = f"{name} is set here, as inside a job: start JupyterLab from a fresh shell"
            yield Line(MISSING, said)


ALL: tuple[Callable[[Path], Iterator[Line]], ...] = (
    python, packages, checkout, folders, kernel, limits, memory, loopback, workers, optional,
)  # fmt: skip


def main(root: Path = ROOT) -> int:
    """Print what was found; returns 1 if anything has to be mended."""
    found = []
    for look in ALL:
        try:
            found += list(look(root))
        except Exception as error:  # a doctor who faints is of no help
            found.append(Line(WRONG, f"{look.__name__}: {type(error).__name__}: {error}"))
    for line in sorted(found, key=lambda line: (WRONG, MISSING, WELL).index(line.sign)):
        print(f"{line.sign} {line.said}")
    wrong = sum(line.sign == WRONG for line in found)
    begin = "ddp-course" if root == INSTALLED else "make lab"
    print(f"\n{wrong} to mend." if wrong else f"\nNothing has to be mended: `{begin}`.")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
