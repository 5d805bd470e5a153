"""The museum: every bug fails and every cure passes, on real ranks; what only looks cured fails."""

import inspect

import false_cures
import pytest
import together

from course_museum import EXHIBITS
from course_museum.exhibit import DIES, HANGS, LIES

KINDS = {HANGS: "would never be done", DIES: "failed:", LIES: "wanted"}


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_bug_shows_its_symptom_and_what_its_prediction_asks_for(name):
    exhibit = EXHIBITS[name]
    outcome = exhibit.judge(exhibit.bug)
    assert not outcome
    assert exhibit.symptom in str(outcome)
    assert KINDS[exhibit.answer] in str(outcome)


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_cure_passes(name):
    exhibit = EXHIBITS[name]
    outcome = exhibit.judge(exhibit.cure)
    assert outcome, str(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXHIBITS)
def test_what_only_looks_cured_is_rejected(name, subtests):
    """All false cures of an exhibit in one launch, with the right one between any two."""
    exhibit = EXHIBITS[name]
    together.reject(subtests, exhibit.cure, false_cures.FALSE[name], exhibit.options)


def test_each_exhibit_has_five_false_cures_at_least():
    assert list(false_cures.FALSE) == list(EXHIBITS)
    assert min(map(len, false_cures.FALSE.values())) >= 5


@pytest.mark.parametrize("name", false_cures.RIGHT)
def test_cures_in_another_style_pass(name):
    exhibit = EXHIBITS[name]
    together.accept(false_cures.RIGHT[name], exhibit.options | {"world_sizes": (3,)})


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_bug_is_read_in_a_minute_and_has_its_source(name):
    exhibit = EXHIBITS[name]
    whole = inspect.getsource(inspect.getmodule(exhibit.bug))
    assert len(inspect.getsource(exhibit.bug).splitlines()) < 40
    assert exhibit.link in whole
    assert exhibit.link.startswith("https://github.com/")
