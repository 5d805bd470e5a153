"""`make grade`: hostile submissions get the points for the rest, and harm nobody."""

import contextlib
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import cheats
import hostile
import labs
import nbformat
import psutil
import pytest
from forty_four import Class
from warm_kernels import WARM

from course_tools.grading import grade, sandbox
from course_tools.grading.learner_cells import LabCell
from course_tools.grading.submissions import NOT_GRADED
from course_tools.notebooks import build
from course_utils.launcher.deadlines import Deadline

SLUG = "03_hostile"
pytestmark = pytest.mark.slow
contained = pytest.mark.skipif(bool(sandbox.refused()), reason=f"no sandbox: {sandbox.refused()}")


@pytest.fixture(scope="module", autouse=True)
def warm():
    """Judges are forked from a process that is warm, but the one who is attacked."""
    with mock.patch.object(grade, "subprocess", WARM):
        yield


def blank(folder: Path) -> nbformat.NotebookNode:
    """The exercise as learners get it."""
    return build.plan(build.Target(folder / f"source/labs/{SLUG}.py", folder, True))


def listening() -> socket.socket:
    """On a port that no system gives by chance, since those inside are given some too."""
    for port in range(20000, 30000):
        with contextlib.suppress(OSError):
            return socket.create_server(("127.0.0.1", port))
    raise AssertionError("no port is free")


def of(folder: Path) -> list[psutil.Process]:
    """The processes in whose environment this folder is named."""
    processes = psutil.process_iter(["environ"])
    return [process for process in processes if str(folder) in str(process.info["environ"])]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory):
    """A teacher's machine after a hostile submission was graded, and what was found."""
    folder = tmp_path_factory.mktemp("a")
    (sources := folder / "source/labs").mkdir(parents=True)
    (sources / f"{SLUG}.py").write_text(hostile.lab())
    (temporary := folder / "t").mkdir()
    (file := folder / "teachers").write_text("what only the teacher knows")
    other = Class(folder, SLUG, blank(folder), {}).hand_in("bob", 0)
    course = (labs.ROOT / "course_utils/__init__.py").read_bytes()
    with listening() as server, subprocess.Popen(["sleep", "1000"]) as bystander:
        told = {
            "file": str(file), "other": str(other), "secret": "teachers-token",
            "port": server.getsockname()[1], "process": bystander.pid,
        }  # fmt: skip
        Class(folder, SLUG, blank(folder), hostile.answers(told)).hand_in("mallory", 0)
        environment = {"TEACHERS": "teachers-token", "TMPDIR": str(temporary)}
        # Even those inside are given the path.
        environment["PATH"] = f"{os.environ['PATH']}:{temporary}"
        command = [sys.executable, "-m", "course_tools.grading.grade", folder, "--root", folder]
        command += ["--who", "mallory"]
        most_processes = 0
        with subprocess.Popen(command, cwd=labs.ROOT, env=os.environ | environment) as grading:
            deadline = Deadline(300.0)
            while grading.poll() is None and not deadline.is_over():
                most_processes = max(most_processes, len(of(temporary)))
                time.sleep(0.5)
            grading.kill()
        verdicts = json.loads((folder / f"graded/mallory/{SLUG}.json").read_text())
        yield SimpleNamespace(
            verdicts=verdicts, server=server, bystander=bystander, file=file,
            course=course, temporary=temporary, most_processes=most_processes,
        )  # fmt: skip
        bystander.kill()


@contained
@pytest.mark.parametrize("name", hostile.order())
def test_an_attack_gets_no_point_and_a_right_answer_beside_attacks_gets_its_own(attacked, name):
    said = attacked.verdicts["said"][name]
    assert attacked.verdicts["points"][name] == (name in hostile.INNOCENT), said


@contained
def test_nobody_outside_was_harmed(attacked):
    assert attacked.bystander.poll() is None
    assert attacked.file.read_text() == "what only the teacher knows"
    assert (labs.ROOT / "course_utils/__init__.py").read_bytes() == attacked.course
    attacked.server.settimeout(0)
    with pytest.raises(BlockingIOError):
        attacked.server.accept()


@contained
def test_attacks_leave_no_process_and_no_file_behind(attacked):
    # The tool, the judge, the keeper, the first inside, and ranks: so they can be seen at all.
    assert attacked.most_processes > 4
    assert of(attacked.temporary) == []
    assert list(attacked.temporary.iterdir()) == []


PROSE = """
# %% [markdown] tags=["conclusion", "points-6"]
# *Write here.*
"""


def small(folder: Path, *names: str, options: str = "") -> grade.Lab:
    """A lab of some exercises, each a launch of two ranks."""
    (sources := folder / "source/labs").mkdir(parents=True)
    text = cheats.EXERCISE.replace('"forbid": ("collectives",)', options or '"timeout": 100.0')
    (path := sources / f"{SLUG}.py").write_text(
        cheats.HEAD + "".join(text.replace("NAME", name) for name in names) + PROSE
    )
    return grade.read_lab(build.Target(path, folder / f"solutions/{SLUG}.ipynb", False))


def answered(lab: grade.Lab, **texts: str) -> list[LabCell]:
    """The lab's cells with these answers in them."""
    answers = {f"answer-{name}": {"text": hostile.SUM + text} for name, text in texts.items()}
    return [cell | answers.get(cell["name"], {}) for cell in lab.cells]


@pytest.fixture(scope="module")
def bare():
    with contextlib.closing(grade.Judge(contained=False, slot=0)) as judge:
        yield judge


@pytest.fixture(scope="module")
def judge():
    with contextlib.closing(grade.Judge(contained=True, slot=1)) as judge:
        yield judge


def test_without_a_sandbox_one_that_kills_the_judge_costs_only_its_own_points(bare, tmp_path):
    lab = small(tmp_path, "first", "kills_the_judge", "last")
    right = {name: hostile.RIGHT.replace("NAME", name) for name in ("first", "last")}
    killer = "import os\ndef kills_the_judge(tensor): os.kill(os.getppid(), 9)\n"
    found = grade.judged(bare, lab, answered(lab, **right, kills_the_judge=killer))
    assert [one["passed"] for one in found.values()] == [True, False, True]
    assert found["kills_the_judge"]["text"] == grade.WHY["died"]


CONTROLS = [
    "reads_the_teachers_file",
    "reads_another_submission",
    "calls_the_teachers_machine",
    "makes_a_namespace",
    "kills_a_process_of_the_teacher",
    "reads_the_solution",
]


def test_without_a_sandbox_these_attacks_succeed(bare, tmp_path):
    """So it is the sandbox that stops them."""
    with listening() as server, subprocess.Popen(["sleep", "1000"]) as bystander:
        told = {"port": server.getsockname()[1], "process": bystander.pid}
        told |= {"file": __file__, "other": __file__}
        lab = small(tmp_path, *CONTROLS, options=f'"timeout": 100.0, {hostile.ALLOWED}')
        texts = {name: hostile.answers(told)[name] for name in CONTROLS}
        found = grade.judged(bare, lab, answered(lab, **texts))
    assert all(one["passed"] for one in found.values()), found


@contained
def test_an_answer_that_takes_too_much_is_stopped_and_the_others_are_judged(judge, tmp_path):
    lab = small(tmp_path, "greedy", "loops", "prints")
    right = {name: hostile.RIGHT.replace("NAME", name) for name in ("loops", "prints")}
    answers = {
        "greedy": "held = []\ndef greedy(tensor):\n    while True: held.append(b'x' * (20 << 20))",
        "loops": f"while True:\n    pass\n\n\n{right['loops']}",
        "prints": f"{right['prints']}\nprint('mine')\nassert prints is not None",
    }
    cells = answered(lab, **answers)
    found = grade.judged(judge, lab, cells, all_bytes=400 << 20, cell_s=10.0)
    assert found["greedy"]["text"] == grade.WHY["memory"]
    assert found["loops"]["text"] == grade.WHY["time"]
    assert found["prints"]["passed"], found


@pytest.fixture(scope="module")
def term(tmp_path_factory) -> Path:
    """A folder with the submissions of a class, graded once."""
    root = tmp_path_factory.mktemp("c")
    small(root, "a", "b")
    models = {name: hostile.RIGHT.replace("NAME", name) for name in ("a", "b")}
    learners = Class(root, SLUG, blank(root), models)
    learners.hand_in("ada", 1)
    learners.hand_in("bob", 0, a="", b="")
    learners.hand_in("eve", 0.5, a="def a(tensor): return tensor")
    learners.place("odd", b"{", NOT_GRADED)
    assert grade.main([str(root), "--root", str(root), "--jobs", "2"]) == 0
    return root


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def totals(term: Path) -> dict[str, str]:
    return {line["student"]: line["03 total"] for line in table(term / "graded/grades.csv")}


def test_each_exercise_and_each_conclusion_has_a_column(term):
    """Whoever has handed in nothing that can be read has no points, and no zero."""
    lines = table(term / "graded/grades.csv")
    assert [*lines[0]] == ["student", "03 a", "03 b", "03 conclusion", "03 total"]
    assert [[*line.values()] for line in lines] == [
        ["ada", "2", "2", "", "4"],
        ["bob", "0", "0", "", "0"],
        ["eve", "0", "2", "", "2"],
        ["odd", "", "", "", ""],
    ]


def test_for_each_exercise_the_teacher_sees_who_failed_and_what_most_were_told(term):
    a, b = table(term / "graded/statistics.csv")
    assert [*a.values()][:5] == ["03", "a", "3", "1", "bob; eve"]
    assert [*b.values()][:5] == ["03", "b", "3", "2", "bob"]
    assert a["messages"].startswith("1 x ")
    assert "not attempted" in a["messages"]


def test_the_learner_can_be_told_what_was_wrong(term):
    said = (term / f"graded/eve/{SLUG}.txt").read_text()
    assert said.startswith("a: 0 of 2\n✗ wrong: a (2 ranks")
    assert "b: 2 of 2\n✓ passed: b (2 ranks)" in said


def test_only_what_is_new_is_graded_again_or_one_learner(term, monkeypatch, capsys):
    passed = {"passed": True, "text": ""}
    judged = mock.Mock(return_value={"a": passed, "b": passed})
    monkeypatch.setattr(grade, "Judge", mock.Mock())
    monkeypatch.setattr(grade, "judged", judged)
    common = [str(term), "--root", str(term)]
    assert grade.main(common) == 0
    assert "0 of 3 graded" in capsys.readouterr().out
    judged.assert_not_called()
    assert grade.main([*common, "--who", "bob"]) == 0
    assert "bob 03_hostile: 4 of 4" in capsys.readouterr().out
    assert totals(term) == {"ada": "4", "bob": "4", "eve": "2", "odd": ""}


def test_where_the_judge_itself_is_killed_another_one_judges(term, monkeypatch):
    for path in term.glob("graded/*/*.json"):
        path.unlink()
    judged = grade.judged

    def judged_by_one_that_is_killed(judge, *asked):
        os.kill(judge.process.pid, signal.SIGKILL)
        return judged(judge, *asked)

    monkeypatch.setattr(grade, "judged", judged_by_one_that_is_killed)
    assert grade.main([str(term), "--root", str(term), "--jobs", "1"]) == 0
    assert totals(term) == {"ada": "4", "bob": "0", "eve": "2", "odd": ""}


def test_where_there_is_nothing_to_grade_the_teacher_is_told_where_it_goes(tmp_path, capsys):
    (tmp_path / "submitted/ada").mkdir(parents=True)
    assert grade.main([str(tmp_path), "--who", "zoe"]) == 1
    said = capsys.readouterr().err
    assert "nothing of zoe to grade: put each learner's notebooks into" in said


def test_where_there_is_no_sandbox_the_teacher_is_told(term, monkeypatch, capsys):
    monkeypatch.setattr(sandbox, "refused", lambda: "unshare: Operation not permitted")
    monkeypatch.setattr(grade, "Judge", mock.Mock())
    assert grade.main([str(term), "--root", str(term)]) == 0
    said = capsys.readouterr().err
    assert "(unshare: Operation not permitted). So answers run as you" in said
