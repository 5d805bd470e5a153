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

WELL = "✓"
MISSING = "!"
WRONG = "✗"
MB = 1 << 20
GB = 1 << 30
LEAST_LIMIT = 256  # open files, and processes
EXTRAS = {  # by package: the extra that installs it, and what it is for
    "keras": ("keras", "chapter 10"),
    "ray": ("cluster", "Ray in chapter 09"),
    "nbgrader": ("teach", "grading by nbgrader"),
}
HIDDEN = {"torch", "random", "numpy", "course_utils", "types", "queue"}  # often a file's name
BROWSERS = "chromium", "chromium-browser", "google-chrome"
MEET = """
import json
import course_utils
from course_utils import launch
from course_utils.devices.driver import usable_gpus
import torch
import torch.distributed as dist

def add():
    sum_of_ones = torch.ones(1)
    dist.all_reduce(sum_of_ones)
    return int(sum_of_ones)

results = launch(add, world_size=2, backend="gloo", timeout=30)
print(json.dumps([course_utils.__file__, results[:], usable_gpus().refusal]))
"""


class Line(NamedTuple):
    """A line of the report."""

    sign: str
    text: str


def python(root: Path) -> Iterator[Line]:
    """The interpreter and the system."""
    version = platform.python_version()
    is_supported = (3, 11) <= sys.version_info[:2] < (3, 15)
    if not is_supported:
        text = (
            f"Python {version}: 3.11, 3.12, 3.13 or 3.14 is needed. Remove .venv, then `make lab "
            "PYTHON=python3.12`"
        )
        yield Line(WRONG, text)
    elif sys.platform == "win32":
        yield Line(WRONG, "Windows has no fork: install the course inside WSL 2")
    else:
        yield Line(WELL, f"Python {version} on {platform.system()}")


def packages(root: Path) -> Iterator[Line]:
    """What pyproject.toml wants, and whether it has the version that everything is tested with."""
    wanted, for_labs = _requirements(root)
    pins = _pins(root)
    command = _installing(root)
    absent = []
    untested = []
    not_asked_for = []
    for requirement in [*wanted, *for_labs]:
        name, _at_least, versions = requirement.partition(">=")
        if not versions:
            continue
        installed = _installed_version(name)
        if installed is None:
            if root == INSTALLED and requirement in for_labs:
                not_asked_for.append(name)
            else:
                absent.append(name)
            continue
        problem = _version_problem(installed, versions)
        release, _, _ = installed.partition("+")
        tested = pins.get(name, release)
        if problem:
            yield Line(WRONG, f"{name} {installed} is {problem}: {command}")
        elif release != tested:
            untested.append(f"{name} {installed} (tested: {tested})")
    if absent:
        names = ", ".join(absent)
        ways = f"`make lab`, or {command}"
        if root == INSTALLED:
            ways = command
        yield Line(WRONG, f"not installed: {names}; mend it by {ways}")
    if untested:
        names = ", ".join(untested)
        yield Line(MISSING, f"other versions than those tested: {names}")
    if not_asked_for:
        names = ", ".join(not_asked_for)
        yield Line(MISSING, f"without {names}, no lessons and labs: {command}")


def _requirements(root: Path) -> tuple[list[str], list[str]]:
    """What pyproject.toml wants, and what it wants for lessons and labs."""
    import tomllib  # which Python 3.10 lacks, and this file has to run there

    text = (root / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    extras = project["optional-dependencies"]
    return project["dependencies"], extras["lab"]


def _pins(root: Path) -> dict[str, str]:
    """By package, the version that everything is tested with."""
    constraints = (root / "constraints.txt").read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+)", constraints, re.MULTILINE)
    return dict(pins)


def _installed_version(name: str) -> str | None:
    """The version of a package that is there, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_problem(installed: str, versions: str) -> str:
    """Why a version will not do, or nothing; `versions` is such as `2.15,<2.16` or `2.15`."""
    number = _number(installed)
    least, _below, too_new = versions.partition(",<")
    if number < _number(least):
        return f"too old, {least} is needed"
    if too_new and number >= _number(too_new):
        return f"too new, below {too_new} is needed"
    return ""


def _installing(root: Path, extra: str = "lab") -> str:
    """The command that installs what is missing, from a wheel or from the course's own folder."""
    if root == INSTALLED:
        return f"`pip install 'ddp-course[{extra}]'`"
    pip = "pip"
    if (root / ".venv/bin/pip").exists():
        pip = ".venv/bin/pip"
    return f"`{pip} install -c constraints.txt -e '.[{extra}]'`"


def _number(version: str) -> list[int]:
    """The three numbers of a version, or as many as it has."""
    release, _, _ = version.partition("+")
    parts = re.findall(r"\d+", release)
    return list(map(int, parts[:3]))


def workers(root: Path) -> Iterator[Line]:
    """Two real workers, started from another folder, as a notebook would."""
    if not importlib.util.find_spec("torch"):
        return
    command = [sys.executable, "-c", MEET]
    elsewhere = tempfile.gettempdir()
    run = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True)
    try:
        last_line = run.stdout.splitlines()[-1]
        file, sums, refusal = json.loads(last_line)
    except (ValueError, IndexError):
        reason = f"it ended with {run.returncode}"
        errors = run.stderr.strip().splitlines()
        if errors:
            reason = errors[-1]
        yield Line(WRONG, f"two workers cannot be started: {reason[:300]}")
        return
    home = root.resolve()
    if root == INSTALLED:
        home = PACKAGES
    imported_from = Path(file).resolve().parents[1]
    if imported_from != home:
        text = (
            f"notebooks import course_utils from {imported_from}, not from here: "
            f"{_installing(root)} in this folder"
        )
        yield Line(WRONG, text)
    if sums != [2, 2]:
        yield Line(WRONG, f"two workers should add up to 2 and say {sums}")
    if refusal:
        text = f"a GPU is there, but cannot be used: {refusal}; the course runs on the CPU"
        yield Line(MISSING, text)
    yield Line(WELL, "two workers start, meet and add up")


def loopback(root: Path) -> Iterator[Line]:
    """Workers talk over 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            connection = socket.create_connection(server.getsockname(), 2)
            connection.close()
    except OSError as error:
        text = (
            f"no loopback network ({error.strerror or error}): workers talk over "
            "127.0.0.1; as root, `ip link set lo up`"
        )
        yield Line(WRONG, text)
    wanted = os.environ.get("GLOO_SOCKET_IFNAME")
    if not wanted:
        return
    networks = [name for _number, name in socket.if_nameindex()]
    if wanted not in networks:
        text = f"GLOO_SOCKET_IFNAME names {wanted}, and there is no such network: unset it"
        yield Line(WRONG, text)


def limits(root: Path) -> Iterator[Line]:
    """What a user may have open, and how many processes."""
    import resource  # which Windows lacks

    counted = [
        (resource.RLIMIT_NOFILE, "-n", "files"),
        (resource.RLIMIT_NPROC, "-u", "processes and threads"),
    ]
    for limit, flag, things in counted:
        most, _ = resource.getrlimit(limit)
        if 0 <= most < LEAST_LIMIT:
            text = (
                f"`ulimit {flag}` is {most} {things}; {LEAST_LIMIT} are needed: "
                f"`ulimit {flag} 4096`, or ask who runs the machine"
            )
            yield Line(WRONG, text)
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    if 0 <= size < 8 * GB:
        text = f"`ulimit -v` is {size >> 20} MB; PyTorch alone maps more: `ulimit -v unlimited`"
        yield Line(WRONG, text)


def memory(root: Path) -> Iterator[Line]:
    """Memory, and where it is shared."""
    megabytes = _free_megabytes()
    if megabytes is not None and megabytes < 1000:
        text = f"{megabytes} MB of memory are free; a notebook needs 1,000"
        yield Line(WRONG, text)
    with contextlib.suppress(OSError):
        free = shutil.disk_usage("/dev/shm").free
        if free < 64 * MB:
            text = (
                f"/dev/shm has {free >> 20} MB: loaders with workers need 64 (Docker: "
                "--shm-size=1g)"
            )
            yield Line(MISSING, text)


def _free_megabytes() -> int | None:
    """How much memory is free, or None if the system doesn't say."""
    try:
        meminfo = Path("/proc/meminfo").read_text()
    except OSError:  # macOS has no such file
        return None
    available = re.search(r"MemAvailable: +(\d+)", meminfo)
    if available is None:
        return None
    kilobytes = int(available[1])
    return kilobytes >> 10


def folders(root: Path) -> Iterator[Line]:
    """Where learners' copies and temporary files go."""
    chosen = os.environ.get("COURSE_MY") or root / "my"
    copies = Path(chosen).expanduser()
    existing = copies
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK | os.X_OK):
        text = (
            f"{existing} cannot be written: say where your copies go, `make lab my=FOLDER` or "
            "`ddp-course --my FOLDER`"
        )
        yield Line(WRONG, text)
    yield from _temporary_files()
    written = {path.stem for path in copies.glob("*.py")}
    for name in sorted(written & HIDDEN):
        file = copies / f"{name}.py"
        yield Line(WRONG, f"{file} hides the module {name} from your notebooks: rename it")


def _temporary_files() -> Iterator[Line]:
    """Whether a temporary file can be made, and how much room there is for more."""
    try:
        with tempfile.TemporaryFile() as file:
            folder = tempfile.gettempdir()
            free = shutil.disk_usage(folder).free
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, MB)
    except OSError as error:
        text = (
            f"no temporary file can be made ({error.strerror or error}): set TMPDIR to a "
            "folder that can be written"
        )
        yield Line(WRONG, text)
        return
    if free < 200 * MB:
        yield Line(MISSING, f"{free >> 20} MB are free for temporary files: 200 are needed")


def kernel(root: Path) -> Iterator[Line]:
    """What JupyterLab starts for a notebook."""
    if _installed_version("ipykernel") is None:
        return  # as `packages` says
    if not importlib.util.find_spec("ipykernel"):
        text = f"ipykernel cannot be found: no notebook can run; {_installing(root)}"
        yield Line(WRONG, text)
        return
    from jupyter_client.kernelspec import KernelSpecManager

    try:
        kernel_spec = KernelSpecManager().get_kernel_spec("python3")
        command = kernel_spec.argv[0]
    except Exception as error:
        text = (
            f"Jupyter has no kernel called python3 ({type(error).__name__}): `python -m "
            "ipykernel install --sys-prefix`"
        )
        yield Line(WRONG, text)
        return
    if command not in ("python", "python3") and not _same(command, sys.executable):
        text = (
            f"notebooks would run in another Python, {command}: `python -m ipykernel "
            "install --sys-prefix`"
        )
        yield Line(WRONG, text)


def _same(program: str, other: str) -> bool:
    """The same environment; that one Python is a link to the other would not be enough."""
    folder = os.path.dirname(program)
    other_folder = os.path.dirname(other)
    return os.path.realpath(folder) == os.path.realpath(other_folder)


def checkout(root: Path) -> Iterator[Line]:
    """The course's own folder; a wheel has none."""
    if root == INSTALLED:
        return
    for name in ("course_utils", "notebooks", "exercises"):
        folder = root / name
        if not folder.is_dir():
            text = (
                f"{folder} is missing: the course has to stay where it was installed "
                "from; clone it again"
            )
            yield Line(WRONG, text)
    if _is_newer_than_installed(root):
        text = "the course is newer than what is installed: `make lab` installs what is new"
        yield Line(MISSING, text)
    has_git = shutil.which("git") is not None
    if not has_git or not (root / ".git").exists():
        text = "no git here: the course cannot tell its version, and updates are made by hand"
        yield Line(MISSING, text)


def _is_newer_than_installed(root: Path) -> bool:
    """Whether what the course asks for has changed since `make lab` installed it."""
    ready = root / ".venv/.ready"
    if not ready.exists():
        return False
    installed_at = ready.stat().st_mtime
    pyproject = root / "pyproject.toml"
    constraints = root / "constraints.txt"
    wanted_at = max(pyproject.stat().st_mtime, constraints.stat().st_mtime)
    return wanted_at > installed_at


def optional(root: Path) -> Iterator[Line]:
    """What only some need."""
    for name, (extra, purpose) in EXTRAS.items():
        if not importlib.util.find_spec(name):
            command = _installing(root, extra)
            yield Line(MISSING, f"without {name}, no {purpose}: {command}")
    has_browser = any(map(shutil.which, BROWSERS))
    if root != INSTALLED and not has_browser:
        text = "no Chromium: some tests of `make test` are skipped; learners need none"
        yield Line(MISSING, text)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        if name in os.environ:
            text = f"{name} is set here, as inside a job: start JupyterLab from a fresh shell"
            yield Line(MISSING, text)


ALL: tuple[Callable[[Path], Iterator[Line]], ...] = (
    python, packages, checkout, folders, kernel, limits, memory, loopback, workers, optional,
)  # fmt: skip


def main(root: Path = ROOT) -> int:
    """Print the report; returns 1 if anything has to be mended."""
    by_sign: dict[str, list[str]] = {WRONG: [], MISSING: [], WELL: []}
    for line in _report(root):
        texts = by_sign[line.sign]
        texts.append(line.text)
    for sign, texts in by_sign.items():
        for text in texts:
            print(f"{sign} {text}")
    to_mend = len(by_sign[WRONG])
    if to_mend:
        print(f"\n{to_mend} to mend.")
        return 1
    commands = _commands_to_begin_with(root)
    print(f"\nNothing has to be mended: {commands}.")
    return 0


def _commands_to_begin_with(root: Path) -> str:
    """What a learner can do here, as Markdown: open JupyterLab if it is installed."""
    if _installed_version("jupyterlab") is None:
        return "`from course_utils import launch`, `ddp-course hang`, `ddp-course lint`"
    if root == INSTALLED:
        return "`ddp-course`"
    return "`make lab`"


def _report(root: Path) -> Iterator[Line]:
    """Yields what each of ALL has to say."""
    for look in ALL:
        try:
            yield from look(root)
        except Exception as error:  # a doctor who faints is of no help
            kind = type(error).__name__
            yield Line(WRONG, f"{look.__name__}: {kind}: {error}")


if __name__ == "__main__":
    sys.exit(main())
