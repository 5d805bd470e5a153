"""The wheel, installed where nothing of the checkout is in reach, and each command used there.

Two environments are made without a network: packages that the wheel asks for are linked into them,
and no others. Their scripts lie in a folder of their own, and their home is empty.
"""

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import nbformat
import pytest
from packaging.requirements import Requirement

from course_tools.grading import sandbox

ROOT = Path(__file__).resolve().parents[2]
LEFT = shutil.ignore_patterns(".*", "__pycache__", "build", "my", "*.egg-info")
LAB = "13_hold_less"
NOT_ASKED_FOR = ("jupyterlab", "matplotlib", "torchvision", "sklearn", "nbformat", "ipywidgets")
LIBRARY = """
import sys
import torch, torch.distributed as dist
import course_utils
from course_utils import WorkerTimeout, check, launch

def total():
    number = torch.tensor(10 ** dist.get_rank())
    dist.all_reduce(number)
    return int(number)

def returns_early():
    if dist.get_rank() == 0:
        dist.barrier()

def double(number):
    return 2 * number

print(course_utils.__file__)
print("all have", launch(total, world_size=2)[:])
try:
    launch(returns_early, world_size=2, timeout=2)
except WorkerTimeout as error:
    print(error)
print(check(double, spec=lambda all: [2 * n for n in all], inputs=lambda rank, n, case: (rank,)))
try:
    from course_utils import plot_calls
except ModuleNotFoundError as error:
    print("refused:", error)
print("imported:", [name for name in sys.argv[1:] if name in sys.modules])
"""
IN_RANKS = """
import pytest, torch, torch.distributed as dist

@pytest.mark.ranks(2)
def test_sum():
    number = torch.ones(1)
    dist.all_reduce(number)
    assert number == 2
"""
SCRIPT = "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n"
READS_THE_SOLUTION = """\
    import course_tools, pathlib
    files = pathlib.Path(course_tools.__file__).parent / "files"
    answers = [*files.glob("solutions/*"), *files.glob("source/**/*")]
    raise RuntimeError(f"{len(answers)} files with solutions are in sight")
"""


class Place(NamedTuple):
    """An environment with the wheel in it, and a learner's home."""

    folder: Path
    home: Path

    def run(self, program: str, *words: str, fails: bool = False) -> str:
        """What a program of the environment prints, run in the home."""
        settings = {"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin:/usr/sbin:/sbin"}
        settings |= {"HOME": str(self.home), "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            [self.folder / "bin" / program, *words], cwd=self.home, env=settings, timeout=300,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        assert bool(done.returncode) is fails, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built of a copy, since setuptools writes into the folder that it builds from."""
    copy = tmp_path_factory.mktemp("source") / "course"
    shutil.copytree(ROOT, copy, ignore=LEFT)
    to = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--wheel-dir", str(to), "."]
    subprocess.run(command, cwd=copy, check=True, timeout=300)
    [built] = to.glob("*.whl")
    return built


def metadata_of(wheel: Path) -> email.message.Message:
    name, version, *_ = wheel.name.split("-")
    text = zipfile.ZipFile(wheel).read(f"{name}-{version}.dist-info/METADATA")
    return email.message_from_bytes(text)


def distributions(
    needs: Iterable[str], extras: Iterable[str] = ()
) -> dict[str, importlib.metadata.Distribution]:
    """By name, what these requirements ask for, and what that asks for in turn."""
    closure: dict[str, importlib.metadata.Distribution] = {}
    open_needs = [(Requirement(text), extra) for text in needs for extra in ("", *extras)]
    while open_needs:
        need, extra = open_needs.pop()
        if need.marker and not need.marker.evaluate({"extra": extra}):
            continue
        if need.name in closure or need.name == "ddp-course":
            continue
        distribution = importlib.metadata.distribution(need.name)
        closure[need.name] = distribution
        for text in distribution.requires or ():
            open_needs += [(Requirement(text), asked) for asked in ("", *need.extras)]
    return closure


def make_place(folder: Path, wheel: Path, extras: tuple[str, ...], more: tuple[str, ...]) -> Place:
    """Links packages into a new environment, and has pip install the wheel there."""
    home = folder / "home"
    home.mkdir()
    place = Place(folder / "environment", home)
    venv.create(place.folder, symlinks=True, with_pip=False)
    [packages] = place.folder.glob("lib/python*/site-packages")
    asked = metadata_of(wheel).get_all("Requires-Dist")
    for distribution in distributions([*asked, *more], extras).values():
        names = {file.parts[0] for file in distribution.files}
        for name in names - {"..", "__pycache__"}:
            link = packages / name
            if not link.is_symlink():
                link.symlink_to(distribution.locate_file(name))
    command = [sys.executable, "-m", "pip", "--python", str(place.folder / "bin" / "python")]
    command += ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(command, check=True, timeout=300)
    return place


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory) -> Place:
    """What `pip install` of the wheel brings, and pytest."""
    return make_place(tmp_path_factory.mktemp("bare"), wheel, (), ("pytest",))


@pytest.fixture(scope="module")
def full(wheel, tmp_path_factory) -> Place:
    """The wheel with its extras for learners and teachers."""
    return make_place(tmp_path_factory.mktemp("full"), wheel, ("lab", "grade"), ())


def test_lessons_and_labs_are_in_the_wheel_and_what_only_authors_need_is_not(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for folder in ("notebooks", "exercises", "solutions"):
        packed = {Path(name).name for name in names if f"/files/{folder}/" in name}
        wanted = {path.name for path in (ROOT / folder).glob("*.ipynb")}
        assert wanted <= packed
    built_anew = r"course_tools/files/.*/zh/.*\.ipynb"
    assert not any(re.match(built_anew, name) for name in names)
    assert not any(re.match(r"tests|course_tools/(site|quality|measure)", name) for name in names)
    assert wheel.stat().st_size < 10e6  # most of it is pictures


def test_its_metadata_are_those_that_an_index_shows(wheel):
    metadata = metadata_of(wheel)
    assert metadata["License-Expression"] == "MIT"
    assert "Framework :: Jupyter" in metadata.get_all("Classifier")
    assert set(metadata.get_all("Provides-Extra")) >= {"lab", "grade", "keras", "cluster"}
    base = [need for need in metadata.get_all("Requires-Dist") if "extra ==" not in need]
    assert sorted(Requirement(need).name for need in base) == ["ipython", "numpy", "torch"]


def test_the_library_works_without_what_only_lessons_need(bare):
    script = bare.home / "uses_it.py"
    script.write_text(LIBRARY)
    said = bare.run("python", str(script), *NOT_ASKED_FOR)
    assert said.startswith(f"{bare.folder}/lib")
    assert "all have [11, 11]" in said
    assert "Rank 0 waited for rank 1, which never arrived" in said
    assert "✓ passed: double" in said
    wanted = "plot_calls needs matplotlib, which is not installed: pip install 'ddp-course[lab]'"
    assert f"refused: {wanted}" in said
    assert "imported: []" in said


def test_the_pytest_plugin_comes_with_it(bare):
    (bare.home / "test_in_ranks.py").write_text(IN_RANKS)
    assert "1 passed" in bare.run("python", "-m", "pytest", "-q", "test_in_ranks.py")


def test_hang_and_lint_need_no_more_than_the_wheel(bare):
    shutil.copytree(ROOT / "tests/data/flight/absent_rank", bare.home / "dumps")
    (bare.home / "train.py").write_text(SCRIPT)
    assert "rank" in bare.run("ddp-course", "hang", "dumps")
    assert "train.py:3: meets-under-rank" in bare.run("ddp-course", "lint", "train.py", fails=True)


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("lab", "jupyterlab", "lab"),
        ("fresh", "nbformat", "lab"),
        ("progress", "nbclient", "lab"),
        ("grade", "jupytext", "grade"),
    ],
)
def test_a_command_says_which_extra_it_needs(bare, command, package, extra):
    said = bare.run("ddp-course", command, "x", fails=True)
    wanted = f"`ddp-course {command}` needs {package}, which is not installed: pip install "
    assert f"{wanted}'ddp-course[{extra}]'" in " ".join(said.split())
    assert not (bare.home / "ddp-course").exists()


def test_the_doctor_knows_that_labs_were_not_asked_for(bare):
    said = bare.run("ddp-course", "doctor")
    assert "no lessons and labs: `pip install 'ddp-course[lab]'`" in said
    assert "Nothing has to be mended: `from course_utils import launch`" in said


def test_with_its_extras_it_is_healthy(full):
    said = full.run("ddp-course", "doctor")
    assert "two workers start, meet and add up" in said
    assert "no lessons and labs" not in said
    assert "git" not in said


def test_lessons_and_labs_are_copied_out_and_jupyterlab_opens_on_them(full):
    said = full.run("ddp-course", "lab", "--show-config")
    folder = full.home / "ddp-course"
    count = len([*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("exercises/*.ipynb")])
    assert f"{count} notebooks of your own are in ddp-course/" in said
    assert len([*folder.glob("*.ipynb")]) == count
    assert (folder / "train_ddp.py").exists()
    assert (folder / "incident").is_dir()
    assert "pre_save_hook = 'course_saving.keep_pictures'" in said
    said = full.run("ddp-course", "--lang", "zh", "fresh", "lab_02")
    assert said.startswith("New: lab_02_process_groups.ipynb")
    assert "分钟" in (folder / "zh/lab_02_process_groups.ipynb").read_text(encoding="utf-8")


def answer(path: Path, name: str, text: str) -> None:
    """Writes an answer into a learner's copy, in place of its stub."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.source.startswith(f"def {name}("):
            cell.source = text
    nbformat.write(notebook, path)


def solution(lab: str, name: str) -> str:
    for cell in nbformat.read(ROOT / f"solutions/{lab}.ipynb", as_version=4).cells:
        if cell.source.startswith(f"def {name}("):
            return cell.source
    raise AssertionError(f"no {name} in {lab}")


def test_labs_are_counted_and_graded_and_no_answer_can_read_the_solutions(full):
    spy = "def step(units, x, target):\n" + READS_THE_SOLUTION
    for learner, text in (("ada", solution(LAB, "step")), ("bob", spy)):
        full.run("ddp-course", "--my", learner, "fresh", f"lab_{LAB}")
        copy = full.home / learner / f"lab_{LAB}.ipynb"
        answer(copy, "step", text)
        shutil.copytree(full.home / learner, full.home / "class/submitted" / learner)
    assert "✓ step" in full.run("ddp-course", "--my", "ada", "progress", LAB[:2])

    full.run("ddp-course", "grade", "class", "--only", LAB[:2])
    told = {}
    for learner in ("ada", "bob"):
        told[learner] = (full.home / f"class/graded/{learner}/{LAB}.txt").read_text("utf-8")
    assert "step: 1 of 1" in told["ada"]
    assert "step: 0 of 1" in told["bob"]
    if not sandbox.refused():
        assert "RuntimeError: 0 files with solutions are in sight" in told["bob"]
