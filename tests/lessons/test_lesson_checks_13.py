"""The three stages that a learner writes in chapter 13, and what the check of each rejects."""

import labs
import pytest

from course_utils import check

PATH = labs.ROOT / "tests/lessons/wrong/13_hold_less.py"
pytestmark = pytest.mark.slow
ANSWERS = {"__name__": PATH.stem}
labs.run(PATH.read_text(encoding="utf-8"), str(PATH), ANSWERS)


def _each(kind):
    return [
        pytest.param(step, answer, id=f"{step}-{answer.__name__}")
        for step, answers in ANSWERS[kind].items()
        for answer in answers
    ]


@pytest.mark.parametrize(("step", "answer"), _each("WRONG"))
def test_a_wrong_stage_is_rejected(step, answer):
    adapt, limits, options, _ = ANSWERS["STEPS"][step]
    for part in labs.cheapest_first(options):
        outcome = labs.hung_or_judged(adapt(answer, **limits), part)
        if outcome.state == "wrong":
            break
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize(("step", "answer"), _each("RIGHT"))
def test_a_right_stage_passes(step, answer):
    adapt, limits, options, _ = ANSWERS["STEPS"][step]
    number = ANSWERS["RIGHT"][step].index(answer)
    assert check(adapt(answer, **limits), **labs.on_one_size(options, number)).require()


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_a_stub_is_not_attempted(step):
    adapt, limits, options, stub = ANSWERS["STEPS"][step]
    assert check(adapt(stub, **limits), **options).state == "not attempted"


def test_every_stage_has_five_wrong_answers_at_least():
    assert ANSWERS["WRONG"].keys() == ANSWERS["RIGHT"].keys() == ANSWERS["STEPS"].keys()
    assert min(map(len, ANSWERS["WRONG"].values())) >= 5
