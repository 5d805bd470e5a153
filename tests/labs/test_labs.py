"""Every lab's checks on wrong answers that people write, and on other right ones."""

import inspect
import time
from statistics import median

import labs
import pytest

from course_utils import check

pytestmark = pytest.mark.slow
TIMES: dict[str, list[float]] = {slug: [] for slug in labs.SLUGS}
WRONG = list(labs.wrong_answers())
SIZES = inspect.signature(check).parameters["world_sizes"].default
NAMES = [f"{slug[:2]}-{name}-{fn.__name__}" for slug, name, fn in WRONG]


@pytest.fixture(scope="module")
def exercise():
    known = {}  # a lab's cells run once for all of its answers

    def find(slug, name):
        if slug not in known:
            known[slug] = labs.exercises(slug, pytest.MonkeyPatch())
        return known[slug][name]

    return find


def tried(slug, fn, options):
    begun = time.monotonic()
    outcome = check(fn, **options)
    TIMES[slug].append(time.monotonic() - begun)
    return outcome


@pytest.mark.parametrize(("slug", "name", "fn"), WRONG, ids=NAMES)
def test_a_wrong_answer_is_rejected(exercise, slug, name, fn):
    options = exercise(slug, name).options | {"timeout": 2.0}
    sizes = sorted(options.get("world_sizes", SIZES))
    for some in dict.fromkeys([tuple(sizes[:2]), tuple(sizes)]):
        outcome = tried(slug, fn, options | {"world_sizes": some})
        if outcome.state == "wrong":  # who is wrong for some sizes is wrong for all
            break
    assert outcome.state == "wrong", f"{fn.__name__}: {outcome}"
    assert outcome.message


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_other_right_answers_pass(exercise, slug):
    for name, fn in labs.answers(slug)["RIGHT"].items():  # the labs' own run in their notebooks
        assert tried(slug, fn, exercise(slug, name).options).require()


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_a_check_of_a_lab_takes_less_than_three_seconds_on_the_median(slug):
    assert not TIMES[slug] or median(TIMES[slug]) < 3  # none were tried if only this test is run
