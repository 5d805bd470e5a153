"""Variants: each is solved by its own solution and by no other, and a secret deals them."""

import itertools

import dealt
import labs
import nbformat
import pytest

import alike
import build
import cells
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
            assert course_utils.check(fn, **options | labs.PATIENT | {"cases": cases})
    for name, (judge, whose) in itertools.product(known, [(1, 2), (2, 0)]):
        one, answer = found[judge][name, judge], found[judge][name, whose]
        in_ranks = name in IN_RANKS or (name, judge) == (min(known), 1)
        if in_ranks or not dealt.told_apart(one, found[whose][name, whose]):
            few = {"world_sizes": (dealt.size_of(one),)}
            outcome = course_utils.check(answer.fn, **answer.options | few)
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
    assert {"course_utils", "exercises", "notebooks", "tools", "Makefile"} <= names
    assert not names & {"solutions", "source", "tests", "teaching", ".git", "my"}
    marked = "BEGIN " + "SOLUTION"
    assert not [p for p in (tmp_path / "course/exercises").glob("*") if marked in p.read_text()]


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
