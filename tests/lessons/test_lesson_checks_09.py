"""What a learner writes in chapter 09, the interval between saves, and its picture's model."""

import math
import random

import labs
import pytest

from course_lessons import chapter_09
from course_utils import check

LESSON = labs.ROOT / "source/lessons/09_many_machines.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercise define."""
    return labs.defined(LESSON, ("def save_interval",))


def forgets_the_machines(save_s, machine_mtbf_h, machines):
    return math.sqrt(2 * save_s * machine_mtbf_h * 3600)


def forgets_the_two(save_s, machine_mtbf_h, machines):
    return math.sqrt(save_s * machine_mtbf_h * 3600 / machines)


def in_minutes(save_s, machine_mtbf_h, machines):
    return math.sqrt(2 * save_s * machine_mtbf_h * 3600 / machines) / 60


def mixes_units(save_s, machine_mtbf_h, machines):
    return math.sqrt(2 * save_s * machine_mtbf_h / machines)


def forgets_the_root(save_s, machine_mtbf_h, machines):
    return 2 * save_s * machine_mtbf_h * 3600 / machines


def more_machines_fail_less(save_s, machine_mtbf_h, machines):
    return math.sqrt(2 * save_s * machine_mtbf_h * 3600 * machines)


def divides_after_the_root(save_s, machine_mtbf_h, machines):
    return math.sqrt(2 * save_s * machine_mtbf_h * 3600) / machines


def once_an_hour(save_s, machine_mtbf_h, machines):
    return 3600.0


WRONG = [
    forgets_the_machines, forgets_the_two, in_minutes, mixes_units, forgets_the_root,
    more_machines_fail_less, divides_after_the_root, once_an_hour,
]  # fmt: skip


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_interval_is_rejected(answer):
    outcome = check(answer, **chapter_09.INTERVAL)
    assert outcome.state == "wrong", outcome
    assert outcome.message


def in_logarithms(save_s, machine_mtbf_h, machines):
    logarithm = math.log(7200) + math.log(save_s) + math.log(machine_mtbf_h) - math.log(machines)
    return math.exp(logarithm / 2)


def test_right_intervals_pass(lesson):
    for answer in (in_logarithms, lesson["save_interval_done"]):
        assert check(answer, **chapter_09.INTERVAL).require()
    assert check(lesson["save_interval"], **chapter_09.INTERVAL).state == "not attempted"


def _goodput(interval, save, mtbf, restart, work):
    """Simulated, with failures in restarts as well, as Daly's formula counts them."""
    draw, now, done = random.Random(0), 0.0, 0.0
    dies = draw.expovariate(1 / mtbf)
    while done < work:
        if now + interval + save <= dies:
            now += interval + save
            done += interval
            continue
        now = dies
        dies = now + draw.expovariate(1 / mtbf)
        while now + restart > dies:
            now, dies = dies, dies + draw.expovariate(1 / mtbf)
        now += restart
    return done / now


@pytest.mark.parametrize("interval", [10, 50, 200])
def test_the_formula_is_what_a_long_simulation_gives(interval):
    figures = {"interval": interval, "save": 5, "mtbf": 240, "restart": 10}
    assert _goodput(**figures, work=2_000_000) == pytest.approx(
        chapter_09.expected_goodput(**figures), rel=0.02
    )


def test_youngs_interval_is_near_the_best_of_dalys_formula():
    best = max(range(5, 300), key=lambda t: chapter_09.expected_goodput(t, 5, 240, 10))
    assert best == pytest.approx(math.sqrt(2 * 5 * 240), rel=0.1)
