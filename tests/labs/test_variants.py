"""Variants: each is solved by its own solution and by no other, and a secret deals them."""

import datetime
import itertools
import re
import shutil
from pathlib import Path

import dealt
import labs
import nbformat
import pytest

import build
import cells
import copies
import course_utils
import grade
import handout
import variants

SLUGS = sorted(path.stem for path in (labs.ROOT / "source/variants").glob("*.toml"))
MADE = [slug for slug in SLUGS if slug in labs.SLUGS]  # of which what they need is installed
# Of these a specification does not say all that is wanted, or takes longer than a launch.
IN_RANKS = ("best", "careful_step", "choose", "clip", "parted", "with_border")
LAB = "02_process_groups"
CLASS = [f"learner_{number}" for number in range(30)]


@pytest.mark.slow
@pytest.mark.parametrize("slug", MADE)
def test_a_variant_is_solved_by_its_own_solution_and_by_no_other(slug):
    """Who does what another specification wants is wrong: that takes no launch to see."""
    known = variants.known(labs.ROOT, slug)
    found = [dealt.judged(slug, number) for number in range(3)]
    alone = dealt.ALONE.get(slug, ())
    for number in (1, 2):
        own = {name: found[number][name, number] for name in known}
        if together := {name: own[name] for name in known if name not in alone}:
            assert dealt.in_one_launch(together)
        for fn, options in (own[name] for name in alone):
            cases = options["cases"][len(options["cases"]) // 2 :][:1]
            assert labs.check_here(fn, **options | labs.PATIENT | {"cases": cases})
    for name, (judge, whose) in itertools.product(known, [(1, 2), (2, 0)]):
        one, answer = found[judge][name, judge], found[judge][name, whose]
        in_ranks = name in IN_RANKS or (name, judge) == (min(known), 1)
        if in_ranks or not dealt.told_apart(one, found[whose][name, whose]):
            few = {"world_sizes": (dealt.size_of(one),)}
            outcome = labs.check_here(answer.fn, **answer.options | few)
            assert outcome.state == "wrong", (name, judge, whose)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("slug", MADE)
def test_each_version_accepts_its_own_solution_and_no_other(slug, number):
    for (name, whose), (fn, options) in dealt.judged(slug, number).items():
        if whose == number:
            assert course_utils.check(fn, **options | labs.PATIENT), name
        else:
            parts = labs.cheapest_first(options)
            assert not all(labs.hung_or_judged(fn, part) for part in parts), (name, whose)


@pytest.mark.parametrize("slug", SLUGS)
def test_a_lab_has_variants_of_three_exercises_or_of_all_that_it_has(slug):
    known = variants.known(labs.ROOT, slug)
    assert len(known) >= min(3, len(labs.names(slug)))
    assert known.keys() <= set(labs.names(slug))
    assert all(len(own) >= 2 for own in known.values())


def test_every_lab_has_variants():
    assert {path.stem for path in (labs.ROOT / "source/labs").glob("[0-9]*.py")} == set(SLUGS)


def test_what_a_lab_no_longer_has_is_noticed():
    text = (labs.ROOT / "source/labs/02_process_groups.py").read_text()
    text = text.replace("sum(processes[:node])", "0")
    with pytest.raises(cells.BuildError, match="rank_of has no longer what first replaces"):
        variants.varied(labs.ROOT, "02_process_groups", text, {"rank_of": "first"})


def test_the_secret_deals_all_variants_and_always_the_same():
    def deal(key):
        return [variants.picked(labs.ROOT, LAB, who, key) for who in CLASS]

    for exercise, own in variants.known(labs.ROOT, LAB).items():
        assert {picks[exercise] for picks in deal(b"one")} == set(own)
    assert deal(b"one") == deal(b"one") != deal(b"another")


def test_each_learner_is_handed_the_own_variant_and_graded_by_it(tmp_path, capsys):
    (tmp_path / "class.txt").write_text("learner_0\nlearner_1\n\n")
    options = ["--to", str(tmp_path), "--students", str(tmp_path / "class.txt"), "02"]
    assert handout.main(options) == 0
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    key = variants.secret(tmp_path)
    (target,) = [t for t in build.targets(labs.ROOT, ["02"]) if "solutions" in t.built.parts]
    for who in ("learner_0", "learner_1"):
        path = tmp_path / f"hand_out/{who}/lab_02_process_groups.ipynb"
        texts = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
        own, lab = variants.known(labs.ROOT, LAB), grade.lab(target, who, key)
        for exercise, name in variants.picked(labs.ROOT, LAB, who, key).items():
            assert own[exercise][name]["yours"] in texts
        assert "SOLUTION" not in texts
        assert grade.texts(path, lab).keys() == set(lab.answers.values())


def test_a_repository_for_learners_has_no_solutions(tmp_path):
    handout.withheld(labs.ROOT, tmp_path / "course")
    names = {path.name for path in (tmp_path / "course").iterdir()}
    with pytest.raises(cells.BuildError, match="is there already"):
        handout.withheld(labs.ROOT, tmp_path / "course")
    assert {"course_utils", "exercises", "notebooks", "tools", "Makefile"} <= names
    assert not names & {"solutions", "source", "tests", "teaching", ".git", "my"}
    marked = "BEGIN " + "SOLUTION"
    assert not [p for p in (tmp_path / "course/exercises").glob("*") if marked in p.read_text()]
    readme = (tmp_path / "course/README.md").read_text()
    assert "    make lab" in readme
    assert "    make test" not in readme
    for path in (tmp_path / "course").rglob("*.md"):
        links = re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text())
        assert [to for to in links if not (path.parent / to).exists()] == [], path


def test_a_lab_that_was_handed_out_is_not_replaced_by_the_published_one(tmp_path):
    """Else `make lab` would advise it, and the learner would solve another exercise."""
    (tmp_path / "class.txt").write_text("ada\n")
    handout.hand_out_variants(tmp_path, ["ada"], ["02"], labs.ROOT)
    folder, name = tmp_path / "my", "lab_02_process_groups"
    assert not [said for said in copies.lay_out(labs.ROOT, folder) if "newer" in said]
    mine = Path(shutil.copy(tmp_path / f"hand_out/ada/{name}.ipynb", folder))
    assert copies.lay_out(labs.ROOT, folder) == []
    said = copies.fresh(labs.ROOT, folder, name, datetime.date(2026, 11, 22))
    assert "handed out to you" in said
    assert [path.name for path in folder.glob("lab_02*")] == [mine.name]
