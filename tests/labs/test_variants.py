"""Variants: each is solved by its own solution and by no other, and a secret deals them."""

import datetime
import re
import shutil
from pathlib import Path

import labs
import nbformat
import pytest

import alike
import build
import cells
import copies
import course_utils
import grade
import handout
import variants
from course_checks.cases import CASES, draw, public_seed

SLUGS = sorted(path.stem for path in (labs.ROOT / "source/variants").glob("*.toml"))
CLASS = [f"learner_{number}" for number in range(30)]


def exercises(slug, picks, monkeypatch) -> dict[str, labs.Exercise]:
    """What a lab hands to check, with these variants in it."""
    text = (labs.ROOT / f"source/labs/{slug}.py").read_text()
    text = variants.varied(labs.ROOT, slug, text, picks)
    caught: dict[str, labs.Exercise] = {}
    with monkeypatch.context() as patch:
        patch.setattr(course_utils, "check", lambda fn, **options: caught.update(
            {fn.__name__: labs.Exercise(fn, options)}
        ))  # fmt: skip
        names = {"__name__": "__main__"}
        for number, cell in enumerate(cells.read_percent(text).cells):
            if cell.cell_type == "code":
                labs.run(cell.source, f"<{slug} {sorted(picks.items())} {number}>", names)
            if picks.keys() <= caught.keys() and picks:
                break
    return caught


def wanted(one: labs.Exercise, size: int) -> list[str]:
    """What its specification returns for each case, with the same numbers every time."""
    found = []
    for number, case in enumerate(one.options.get("cases", CASES)):
        seeds = [public_seed(rank, size, number) for rank in range(size)]
        drawn = [
            draw(one.options["inputs"], rank, size, case, seed) for rank, seed in enumerate(seeds)
        ]
        found.append(str(one.options["spec"](*map(list, zip(*drawn, strict=True)))))
    return found


@pytest.mark.parametrize("slug", SLUGS)
def test_a_variant_is_solved_by_its_own_solution_and_by_no_other(slug, monkeypatch):
    """Who does what another specification wants is wrong: that takes no launch to see."""
    known = variants.known(labs.ROOT, slug)
    sets = [{name: sorted(own)[n] for name, own in known.items()} for n in range(2)]
    found = [exercises(slug, picks, monkeypatch) for picks in ({}, *sets)]
    for name in known:
        size = min(n for n in labs.sizes(found[0][name].options) if n > 2)
        assert len({tuple(wanted(one[name], size)) for one in found}) == 3, name
        for one in found[1:]:
            options = one[name].options | {"world_sizes": (size,)} | labs.PATIENT
            assert course_utils.check(one[name].fn, **options), name


@pytest.mark.parametrize("slug", SLUGS)
def test_a_lab_with_variants_has_them_for_three_exercises_or_more(slug):
    known = variants.known(labs.ROOT, slug)
    assert len(known) >= 3
    assert all(len(own) >= 2 for own in known.values())


def test_what_a_lab_no_longer_has_is_noticed():
    text = (labs.ROOT / "source/labs/02_process_groups.py").read_text()
    text = text.replace("sum(processes[:node])", "0")
    with pytest.raises(cells.BuildError, match="rank_of has no longer what first replaces"):
        variants.varied(labs.ROOT, "02_process_groups", text, {"rank_of": "first"})


def test_the_secret_deals_all_variants_and_always_the_same():
    def deal(key):
        return [variants.picked(labs.ROOT, SLUGS[0], who, key) for who in CLASS]

    for exercise, own in variants.known(labs.ROOT, SLUGS[0]).items():
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
        own, lab = variants.known(labs.ROOT, SLUGS[0]), grade.lab(target, who, key)
        for exercise, name in variants.picked(labs.ROOT, SLUGS[0], who, key).items():
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


LONG = """
def total(tensor):
    rank, others = dist.get_rank(), []
    for step in range(1, dist.get_world_size()):
        received = torch.empty_like(tensor)
        dist.recv(received, (rank + step) % dist.get_world_size())
        others.append(received)
    return tensor + sum(others)
"""
RENAMED = LONG.replace("received", "got").replace("others", "all_of_them").replace(
    "    return", "    # mine\n    return"
)  # fmt: skip
OTHER = """
def total(x):
    parts = list(x.tensor_split(dist.get_world_size()))
    while parts:
        last = parts.pop()
        dist.all_reduce(last, op=dist.ReduceOp.SUM)
        if not last.numel():
            break
    return torch.cat([x, x, x])[: len(x)].clone()
"""


def test_answers_that_differ_in_names_and_remarks_alone_are_alike():
    found = alike.pairs({"ada": LONG, "bob": OTHER, "eve": RENAMED}, published="")
    assert [(one, other) for _, one, other in found] == [("ada", "eve")]


def test_short_answers_and_the_published_one_say_nothing():
    short = "def f(x):\n    return x"
    assert alike.pairs({"ada": short, "bob": short}, published="") == []
    assert alike.pairs({"ada": LONG, "bob": RENAMED}, published=LONG) == []
    assert alike.as_published({"ada": RENAMED, "bob": OTHER, "eve": "def f("}, LONG) == ["ada"]


def test_many_pairs_are_told_as_one_group():
    found = [(1.0, "ada", "bob"), (0.95, "eve", "dan"), (0.9, "bob", "cy")]
    assert alike.groups(found) == [["ada", "bob", "cy"], ["dan", "eve"]]
