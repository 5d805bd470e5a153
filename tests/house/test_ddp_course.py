"""`ddp-course`: one installation, into which nobody can write, and learners with their homes."""

import contextlib
import ctypes
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import other_copy
import pytest

import ddp_course
from course_tools.child_process import in_child_process
from course_tools.notebooks import cells

ROOT = Path(__file__).resolve().parents[2]
LAB = """# %%
from course_utils import check, progress

# %%
def double(x):
    raise NotImplementedError("about 1 line")

# %%
check(double, spec=lambda xs: [2 * x for x in xs], inputs=lambda rank, n, case: (rank,))

# %%
progress()
"""
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAPABILITIES_V3 = 24, 1, 0x20080522


def obey_permissions() -> None:
    """In a child: what it may not write, root may not either."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        assert libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) == 0  # for what it starts
        about, held = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
        assert libc.capget(about, held) == 0
        held[0] &= ~(1 << CAP_DAC_OVERRIDE)  # and for itself
        assert libc.capset(about, held) == 0


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the course in which nothing can be written."""
    root = tmp_path_factory.mktemp("shared") / "course"
    for package in sorted(ROOT.glob("course_*/")):
        shutil.copytree(package, root / package.name)
    shutil.copy(ROOT / "ddp_course.py", root)
    for kind, name, text in (("notebooks", "00_start_here", "# %%\n1"), ("exercises", "01_x", LAB)):
        (root / kind).mkdir()
        nbformat.write(cells.read_percent(text), root / kind / f"{name}.ipynb")
    for path in (root, *root.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield root
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


def run(installed: Path, home: Path, *command: str) -> subprocess.CompletedProcess:
    """Run a command as a learner does, in a home and with nothing else of this test's."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=home, env=environment(installed, home), timeout=200,
        preexec_fn=obey_permissions, capture_output=True, text=True, check=False,
    )  # fmt: skip


def environment(installed: Path, home: Path) -> dict[str, str]:
    home.mkdir(exist_ok=True)
    mine = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "JUPYTER_", "COURSE"))}
    return mine | {"HOME": str(home), "PYTHONPATH": str(installed)}


def say(installed: Path, home: Path, *words: str) -> str:
    """What `ddp-course` prints, run as a learner does but for a new Python, which takes seconds.

    A fork has imported Jupyter already; of the course it imports what is installed. It leaves its
    last step out, to become JupyterLab.
    """

    def learner() -> str:
        own = environment(installed, home)
        os.environ.clear()
        os.environ.update(own)
        os.chdir(home)
        obey_permissions()
        other_copy.take(installed, "")
        command = importlib.import_module("ddp_course")
        assert Path(command.__file__).parent == installed
        os.execve = lambda *_: sys.exit()
        with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
            assert command.main(words) == 0
        return out.getvalue()

    return in_child_process(learner, timeout=200)


def test_the_installed_command_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"ddp-course": "ddp_course:main"}
    assert project["tool"]["setuptools"]["py-modules"] == ["ddp_course"]


def test_without_the_courses_folder_it_says_how_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(ddp_course, "NOTEBOOKS", tmp_path / "notebooks")
    with pytest.raises(SystemExit):
        ddp_course.main([])
    assert "install it again, pip install -e '.[lab]'" in capsys.readouterr().err


def test_what_a_notebook_needs_comes_from_any_folder_also_by_its_former_name(installed, tmp_path):
    code = "from course_cluster import slurm, two_hosts; import ddp_course; "
    code += "print(ddp_course.slurm is slurm, ddp_course.two_hosts is two_hosts, "
    code += "callable(ddp_course.challenge.judge))"
    done = run(installed, tmp_path, "-c", code)
    assert (done.stdout, done.stderr) == ("True True True\n", "")


@pytest.mark.parametrize("words", [["fresh", "--no-browser"], ["progress", "--frsh"], ["fesh"]])
def test_what_it_does_not_know_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit):
        ddp_course.main(words)
    assert words[-1] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_options_in_front_count_for_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_LANG", "en")
    assert ddp_course.main(["--lang", "zh", "hang", str(tmp_path / "gone")]) == 4
    assert re.search("[\u4e00-\u9fff]", capsys.readouterr().err)
    assert ddp_course.main(["--my", "mine", "grade", str(tmp_path / "class")]) == 1
    assert f"{tmp_path}/class/submitted/NAME/" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        ddp_course.main(["--lang", "fr", "hang", str(tmp_path)])
    assert "invalid choice: 'fr'" in capsys.readouterr().err


@pytest.mark.slow
def test_jupyterlab_opens_on_the_copies_with_the_courses_settings(installed, tmp_path):
    done = run(installed, tmp_path / "ada", "-m", "ddp_course", "--show-config")
    assert done.returncode == 0, done.stderr
    assert "2 notebooks of your own are in ddp-course/: write there." in done.stdout
    assert f"root_dir = '{tmp_path / 'ada' / 'ddp-course'}'" in done.stdout
    assert "pre_save_hook = 'course_saving.keep_pictures'" in done.stdout
    assert "chapter_00_start_here.ipynb" in done.stdout


@pytest.mark.slow
def test_the_copies_may_lie_elsewhere_and_the_commands_that_it_names_say_so(installed, tmp_path):
    said = say(installed, tmp_path, "--my", "there", "fresh", "01")
    assert said.startswith("New: lab_01_x.ipynb, with 0 cells that you wrote.")
    (tmp_path / "there" / "lab_01_x.ipynb").write_text("{}")
    said = say(installed, tmp_path, "--my", "there")
    assert "lab_01_x.ipynb has a newer original: ddp-course --my there fresh lab_01_x" in said


@pytest.mark.slow
def test_two_learners_share_an_installation_and_nothing_else(installed, tmp_path):
    ada, bob = tmp_path / "ada", tmp_path / "bob"
    with pytest.raises(RuntimeError, match="PermissionError"):  # the control
        in_child_process(lambda: (obey_permissions(), (installed / "course_tools" / "new").touch()))
    for home in (ada, bob):
        assert "2 notebooks of your own" in say(installed, home)
        assert (home / "ddp-course").stat().st_mode & 0o777 == 0o700
    answered = bob / "ddp-course" / "lab_01_x.ipynb"
    notebook = nbformat.read(answered, as_version=4)
    notebook.cells[1].source = "def double(x):\n    return 2 * x  # Bob"
    nbformat.write(notebook, answered)

    for home, passed in ((ada, 0), (bob, 1)):
        said = say(installed, home, "progress")
        assert f"{passed} of 1 exercises pass" in said
    said = say(installed, bob, "fresh", "lab")
    assert "lab_01_x.ipynb is up to date." in said
    assert len(list((bob / "ddp-course").glob("lab_*"))) == 1
    assert len(list((ada / "ddp-course").glob("lab_*"))) == 1
    assert not any("Bob" in path.read_text() for path in ada.glob("ddp-course/*"))
