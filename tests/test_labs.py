"""Every lab: its stubs, its solutions, other right answers, and wrong ones that people write."""

import time
from statistics import median

import labs
import nbformat
import pytest

import progress
from course_utils import check

TIMES: list[float] = []
WRONG = list(labs.wrong_answers())
NAMES = [f"{slug[:2]}-{name}-{fn.__name__}" for slug, name, fn in WRONG]


@pytest.fixture(scope="module")
def exercise():
    known = {}  # a lab's cells run once for all of its answers

    def find(slug, name):
        if slug not in known:
            known[slug] = labs.exercises(slug, pytest.MonkeyPatch())
        return known[slug][name]

    return find


def tried(fn, options):
    begun = time.monotonic()
    outcome = check(fn, **options)
    TIMES.append(time.monotonic() - begun)
    return outcome


@pytest.mark.parametrize(("slug", "name", "fn"), WRONG, ids=NAMES)
def test_a_wrong_answer_is_rejected(exercise, slug, name, fn):
    outcome = tried(fn, exercise(slug, name).options | {"timeout": 4.0})
    assert outcome.state == "wrong", f"{fn.__name__}: {outcome}"
    assert outcome.message


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_stubs_are_not_attempted_and_solutions_and_other_right_answers_pass(slug, monkeypatch):
    solved, stubs = (labs.exercises(slug, monkeypatch, cut) for cut in (False, True))
    others = labs.answers(slug)["RIGHT"]
    assert solved.keys() == stubs.keys() == others.keys()
    for name, (fn, options) in solved.items():
        assert tried(stubs[name].fn, options).state == "not attempted"
        assert tried(fn, options).require()
        assert tried(others[name], options).require()


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_each_exercise_has_five_wrong_answers_at_least_and_three_hints(slug, monkeypatch, capsys):
    wrong, text = labs.answers(slug)["WRONG"], nbformat.read(
        labs.ROOT / f"exercises/{slug}.ipynb", as_version=4
    )  # fmt: skip
    names = labs.exercises(slug, monkeypatch)
    assert wrong.keys() == names.keys()
    assert min(map(len, wrong.values())) >= 5
    prose = "\n".join(cell.source for cell in text.cells if cell.cell_type == "markdown")
    for hint in ("Hint 1: a nudge", "Hint 2: the approach", "Hint 3: the code"):
        assert prose.count(f"<details><summary>{hint}</summary>") == len(names)
    with capsys.disabled():
        print(f"\n{slug}: {len(names)} exercises, {sum(map(len, wrong.values()))} wrong answers")


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_exercises_and_solutions_differ_in_marked_cells_only(slug):
    one, other = (
        nbformat.read(labs.ROOT / folder / f"{slug}.ipynb", as_version=4).cells
        for folder in ("exercises", "solutions")
    )
    assert len(one) == len(other)
    for mine, theirs in zip(one, other, strict=True):
        assert mine.source == theirs.source or "### BEGIN SOLUTION" in theirs.source
        assert "SOLUTION" not in mine.source


@pytest.mark.slow
def test_a_check_of_a_lab_takes_less_than_three_seconds_on_the_median(capsys):
    with capsys.disabled():
        print(f"\n{len(TIMES)} checks, {median(TIMES):.1f} s on the median", end="")
    assert median(TIMES) < 3


@pytest.mark.slow
def test_the_overview_of_all_labs_counts_what_passes_in_a_learners_notebooks(capsys):
    assert progress.main([labs.SLUGS[0][:2]]) == 0
    assert "0 of " in capsys.readouterr().out
    assert progress.main(["no such lab"]) == 1
