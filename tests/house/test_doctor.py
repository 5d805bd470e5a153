"""`make doctor` recognises broken installations, most of them broken for real."""

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

import ddp_course
from course_tools.child_process import in_child_process
from course_tools.learner import doctor

ROOT = Path(__file__).resolve().parents[2]


def wrong(look, root=ROOT) -> str:
    return "\n".join(line.text for line in look(root) if line.sign == doctor.WRONG)


def missing(look, root=ROOT) -> str:
    return "\n".join(line.text for line in look(root) if line.sign == doctor.MISSING)


def version_of(name, version):
    """`importlib.metadata.version`, where one package has another version, or is not there."""
    real = importlib.metadata.version

    def told(asked):
        if asked != name:
            return real(asked)
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    return told


def without(name):
    real = importlib.util.find_spec
    return lambda asked, *more: None if asked == name else real(asked, *more)


@pytest.mark.slow
def test_this_installation_has_nothing_wrong(capsys):
    assert doctor.main() == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "two workers start, meet and add up" in said
    assert len(said.splitlines()) < 24


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        ("torch", "2.4.1", "torch 2.4.1 is too old, 2.15 is needed"),
        ("torch", "2.16.0+cu132", "torch 2.16.0+cu132 is too new, below 2.16 is needed"),
        ("torch", None, "not installed: torch;"),
        ("torchvision", None, "not installed: torchvision; mend it by `make lab`"),
    ],
)
def test_a_package_is_missing_or_too_old(monkeypatch, name, version, said):
    monkeypatch.setattr(importlib.metadata, "version", version_of(name, version))
    assert said in wrong(doctor.packages)


def test_what_was_never_installed_is_one_line(monkeypatch, tmp_path):
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)

    def nothing_is_there(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", nothing_is_there)
    (line,) = wrong(doctor.packages, tmp_path).splitlines()
    assert line.startswith("not installed: torch, numpy, ipython, ")
    assert "; mend it by `make lab`, or `pip install -c" in line
    assert list(doctor.kernel(tmp_path)) == []
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/pip").touch()
    assert "or `.venv/bin/pip install -c" in wrong(doctor.packages, tmp_path)


def test_a_wheel_without_labs_is_well_and_says_what_it_can_do(monkeypatch, capsys):
    monkeypatch.setattr(importlib.metadata, "version", version_of("jupyterlab", None))
    monkeypatch.setattr(doctor, "ALL", (doctor.python,))
    assert doctor.main() == 0
    assert "mended: `from course_utils import launch`, `ddp-course hang`" in capsys.readouterr().out


def test_a_torch_that_nobody_has_tested(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", version_of("torch", "2.15.7+cpu"))
    assert wrong(doctor.packages) == ""
    assert "torch 2.15.7+cpu (tested: " in missing(doctor.packages)


@pytest.mark.parametrize("version", [(3, 10, 1), (3, 15, 0)])
def test_a_python_that_is_too_old_or_too_new(monkeypatch, version):
    monkeypatch.setattr(sys, "version_info", version)
    assert "3.11, 3.12, 3.13 or 3.14 is needed" in wrong(doctor.python)


def test_windows(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    assert "WSL 2" in wrong(doctor.python)


@pytest.mark.parametrize(
    ("limit", "said"),
    [("NOFILE", "`ulimit -n` is 50 files"), ("NPROC", "`ulimit -u` is 50 processes and threads")],
)
def test_too_few_files_or_processes(limit, said):
    def limited():
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (50, 50))
        return wrong(doctor.limits)

    assert said in in_child_process(limited)


def test_too_little_memory_for_addresses():
    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        return wrong(doctor.limits)

    assert "`ulimit -v` is 4096 MB" in in_child_process(limited)


def test_too_little_shared_memory(monkeypatch):
    usage = namedtuple("usage", "total used free")(64 << 20, 63 << 20, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert "/dev/shm has 1 MB" in missing(doctor.memory)


def test_no_memory_is_left(monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda self: "MemAvailable:   500000 kB\n")
    assert "488 MB of memory are free" in wrong(doctor.memory)


def test_no_write_access_to_ones_copies(tmp_path, monkeypatch):
    (tmp_path / "my").mkdir(mode=0o500)

    def as_nobody():
        if os.getuid() == 0:  # whom permissions do not stop
            os.chmod(tmp_path, 0o755)
            assert ctypes.CDLL(None).prctl(24, 1, 0, 0, 0) == 0
            for path in tmp_path.parents:
                path.exists()
            os.setresuid(65534, 65534, 65534)
        return wrong(doctor.folders, Path("."))

    monkeypatch.delenv("COURSE_MY", raising=False)
    monkeypatch.chdir(tmp_path)
    assert "my cannot be written: say where your copies go" in in_child_process(as_nobody)


def test_no_temporary_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor.tempfile, "tempdir", str(tmp_path / "gone"))
    assert "no temporary file can be made (No such file or directory)" in wrong(doctor.folders)


def test_a_file_that_hides_a_module(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    (tmp_path / "torch.py").touch()
    assert "hides the module torch" in wrong(doctor.folders)


def test_no_ipykernel(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", without("ipykernel"))
    assert "ipykernel cannot be found" in wrong(doctor.kernel)


def test_the_kernel_of_another_python(tmp_path, monkeypatch):
    folder = tmp_path / "kernels/python3"
    folder.mkdir(parents=True)
    spec = {"argv": ["/usr/bin/python3", "-m", "x"], "display_name": "x", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "0")
    assert "notebooks would run in another Python, /usr/bin/python3" in wrong(doctor.kernel)


def test_no_loopback_network():
    """In a network namespace whose loopback is down."""

    def cut_off():
        libc = ctypes.CDLL(None)
        if libc.unshare(0x40000000) and libc.unshare(0x50000000):
            return None
        return wrong(doctor.loopback)

    if (said := in_child_process(cut_off)) is None:
        pytest.skip("no network namespace can be made here")
    assert "no loopback network (Cannot assign requested address)" in said or (
        "no loopback network (Network is unreachable)" in said
    )


def test_a_network_that_is_not_there(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth77")
    assert "GLOO_SOCKET_IFNAME names eth77" in wrong(doctor.loopback)


@pytest.mark.parametrize(
    ("out", "err", "said"),
    [
        ("", "ImportError: libgomp.so.1: cannot open", "cannot be started: ImportError: libgomp"),
        ("", "", "cannot be started: it ended with -11"),
        ('["/elsewhere/course_utils/__init__.py", [2, 2], ""]', "", "from /elsewhere, not from"),
        ('["x", [2, 1], ""]', "", "should add up to 2 and say [2, 1]"),
    ],
)
def test_workers_that_do_not_work(monkeypatch, out, err, said):
    done = subprocess.CompletedProcess([], -11, stdout=out, stderr=err)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert said in wrong(doctor.workers)


def test_a_stale_installation_and_no_git(tmp_path, monkeypatch):
    for name in (".venv", "course_utils", "notebooks"):
        (tmp_path / name).mkdir()
    for age, name in enumerate((".venv/.ready", "pyproject.toml", "constraints.txt")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    said = missing(doctor.checkout, tmp_path)
    assert "the course is newer than what is installed" in said
    assert "no git here" in said
    assert "exercises is missing" in wrong(doctor.checkout, tmp_path)


@pytest.mark.parametrize("name", ["keras", "ray", "nbgrader"])
def test_a_missing_extra_has_to_be_no_fault(monkeypatch, name):
    monkeypatch.setattr(importlib.util, "find_spec", without(name))
    assert wrong(doctor.optional) == ""
    assert f"without {name}, no " in missing(doctor.optional)


def test_no_browser_and_the_variables_of_a_job(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setenv("RANK", "0")
    said = missing(doctor.optional)
    assert "no Chromium: some tests" in said
    assert "RANK is set here, as inside a job" in said


def test_a_doctor_who_stumbles_goes_on(monkeypatch, capsys):
    def stumbles(root):
        raise OSError("odd")
        yield

    monkeypatch.setattr(doctor, "ALL", (stumbles, doctor.python))
    assert doctor.main() == 1
    assert capsys.readouterr().out.startswith("✗ stumbles: OSError: odd\n✓ Python")


def test_ddp_course_asks_the_doctor(monkeypatch):
    monkeypatch.setattr(doctor, "main", lambda: 7)
    assert ddp_course.main(["doctor"]) == 7
