"""Every lab's checks on wrong answers that people write, and on other right ones."""

import labs
import pytest

from course_utils import check

pytestmark = pytest.mark.slow
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


@pytest.mark.parametrize(("slug", "name", "fn"), WRONG, ids=NAMES)
def test_a_wrong_answer_is_rejected(exercise, slug, name, fn):
    for options in labs.one_size_at_a_time(exercise(slug, name).options):
        outcome = labs.hung_or_judged(fn, options)
        if outcome.state == "wrong":  # who is wrong for some sizes is wrong for all
            break
    assert outcome.state == "wrong", f"{fn.__name__}: {outcome}"
    assert outcome.message


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_other_right_answers_pass(exercise, slug):
    for name, fn in labs.answers(slug)["RIGHT"].items():  # the labs' own run in their notebooks
        assert check(fn, **exercise(slug, name).options | labs.PATIENT).require()
