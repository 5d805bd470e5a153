"""The seven steps that a learner writes in chapter 05, and what the check of each rejects."""

import labs
import pytest

from course_utils import check

PATH = labs.ROOT / "tests/lessons/wrong/05_ddp_from_scratch.py"
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
def test_a_wrong_step_is_rejected(step, answer):
    adapt, options, _ = ANSWERS["STEPS"][step]
    for part in labs.cheapest_first(options):
        outcome = labs.hung_or_judged(adapt(answer), part)
        if outcome.state == "wrong":
            break
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize(("step", "answer"), _each("RIGHT"))
def test_another_right_step_passes(step, answer):
    adapt, options, _ = ANSWERS["STEPS"][step]
    number = ANSWERS["RIGHT"][step].index(answer)
    assert check(adapt(answer), **labs.on_one_size(options, number)).require()


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_a_stub_is_not_attempted(step):
    adapt, options, stub = ANSWERS["STEPS"][step]
    assert check(adapt(stub), **options).state == "not attempted"


def test_every_step_has_five_wrong_answers_at_least():
    assert ANSWERS["WRONG"].keys() == ANSWERS["RIGHT"].keys() == ANSWERS["STEPS"].keys()
    assert min(map(len, ANSWERS["WRONG"].values())) >= 5
