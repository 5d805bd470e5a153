"""Every lab's notebooks: how many exercises and wrong answers, hints, and what is cut out."""

import ast
import re
import shutil

import labs
import nbformat
import pytest
from warm_kernels import warm

from course_tools.learner import progress
from course_utils import check


@pytest.mark.slow
@pytest.mark.parametrize("slug", labs.SLUGS)
def test_each_exercise_has_five_wrong_answers_at_least_and_three_hints(slug, capsys):
    answers = labs.answers(slug)
    wrong, right = answers["WRONG"], answers["RIGHT"]
    text = nbformat.read(labs.ROOT / f"exercises/{slug}.ipynb", as_version=4)
    assert wrong.keys() == right.keys()
    assert min(map(len, wrong.values())) >= 5
    prose = "\n".join(cell.source for cell in text.cells if cell.cell_type == "markdown")
    for hint in ("Hint 1: a nudge", "Hint 2: the approach", "Hint 3: the code"):
        assert prose.count(f"<details><summary>{hint}</summary>") == len(right)
    with capsys.disabled():
        print(f"\n{slug}: {len(right)} exercises, {sum(map(len, wrong.values()))} wrong answers")


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


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_the_overview_knows_of_every_exercise(slug):
    last_cell = labs.sources(labs.ROOT / f"source/labs/{slug}.py")[-1]
    names = [argument.value for argument in ast.parse(last_cell).body[-1].value.args]
    assert last_cell.startswith("progress(")
    assert names == labs.names(slug)


OPENING = {"02_process_groups": "mean_of_all"}  # handed out with a wrong answer, to read its check


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "said"), [("exercises", "–"), ("solutions", "✓")])
@pytest.mark.parametrize("slug", labs.SLUGS)
def test_no_exercise_is_attempted_and_every_solution_passes(folder, said, slug):
    """In what is saved; that it is what a check says when run, nbval shows."""
    text = nbformat.read(labs.ROOT / folder / f"{slug}.ipynb", as_version=4)
    compared = [c for c in text.cells if "nbval-ignore-output" not in c.metadata.get("tags", [])]
    outputs = [out for cell in compared for out in cell.get("outputs", []) if "data" in out]
    begun = [re.match("([–✓✗]) [^:]*: (\\w+)", out.data.get("text/plain", "")) for out in outputs]
    marks = {name: mark for mark, name in (found.groups() for found in begun if found)}
    wanted = dict.fromkeys(labs.names(slug), said)
    if said == "–" and slug in OPENING:
        wanted[OPENING[slug]] = "✗"
    assert marks == wanted


@pytest.mark.slow
def test_the_overview_counts_what_passes_in_a_learners_own_labs(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    assert progress.main([]) == 1
    assert "no labs of your own yet" in capsys.readouterr().err
    slug = labs.SLUGS[0]
    solved = nbformat.read(labs.ROOT / f"solutions/{slug}.ipynb", as_version=4)
    nbformat.write(solved, tmp_path / f"lab_{slug}_2026-11-22.ipynb")  # the newest copy counts
    shutil.copy(labs.ROOT / f"exercises/{slug}.ipynb", tmp_path / f"lab_{slug}.ipynb")
    with warm():
        assert progress.main([slug[:2]]) == 0
    count = len(labs.names(slug))
    assert f"{count} of {count} exercises pass" in capsys.readouterr().out
    assert progress.main(["no such lab"]) == 1


def test_the_first_case_of_a_grid_makes_a_table_that_fits_the_page(monkeypatch):
    exercise = labs.exercises("02_process_groups", monkeypatch)["grid_sums"]
    outcome = check(answer_of_no_sums, **exercise.options)
    table = str(outcome).split("\n\n")[1]
    assert max(map(len, table.splitlines())) < 100


def answer_of_no_sums(tensor, columns):
    return tensor, tensor
