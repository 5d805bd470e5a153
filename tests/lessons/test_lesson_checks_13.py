"""The three stages that a learner writes in chapter 13, and what the check of each rejects."""

import re

import labs
import pytest
import together

from course_utils import check

PATH = labs.ROOT / "tests/lessons/wrong/13_hold_less.py"
pytestmark = pytest.mark.slow
ANSWERS = {"__name__": PATH.stem}
labs.run(PATH.read_text(encoding="utf-8"), str(PATH), ANSWERS)


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_wrong_stages_are_rejected(step, subtests):
    adapt, limits, options, _ = ANSWERS["STEPS"][step]
    wrong = [adapt(answer, **limits) for answer in ANSWERS["WRONG"][step]]
    right = adapt(ANSWERS["RIGHT"][step][0], **limits)
    together.reject(subtests, right, wrong, options, ANSWERS["STOPS"])


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_other_right_stages_pass(step):
    adapt, limits, options, _ = ANSWERS["STEPS"][step]
    for number, answer in enumerate(ANSWERS["RIGHT"][step]):
        assert check(adapt(answer, **limits), **labs.on_one_size(options, number)).require()


@pytest.mark.soak
@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_wrong_stages_are_rejected_alone_and_right_ones_pass_on_every_world_size(step):
    adapt, limits, options, _ = ANSWERS["STEPS"][step]
    for answer in ANSWERS["WRONG"][step]:
        alone = labs.judged_alone(adapt(answer, **limits), options)
        assert alone.state == "wrong", answer.__name__
    for answer in ANSWERS["RIGHT"][step]:
        assert check(adapt(answer, **limits), **options | labs.PATIENT).require()


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_a_stub_is_not_attempted(step):
    adapt, limits, options, stub = ANSWERS["STEPS"][step]
    assert check(adapt(stub, **limits), **options).state == "not attempted"


def test_every_stage_has_five_wrong_answers_at_least():
    assert ANSWERS["WRONG"].keys() == ANSWERS["RIGHT"].keys() == ANSWERS["STEPS"].keys()
    assert min(map(len, ANSWERS["WRONG"].values())) >= 5


def test_the_papers_3_is_no_right_prediction_where_2_875_is_sent():
    text = (labs.ROOT / "source/lessons/13_hold_less.py").read_text(encoding="utf-8")
    within = float(re.search(r"zero3_sends\.measured\(sends, within=(.*)\)", text)[1])
    assert within * 2.875 < 3 - 2.875
