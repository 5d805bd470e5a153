"""Trainings under NCCL made up with known truth: pipeline, data and tensor groups, 16 to 64 ranks.

`python tests/helpers/nccl_jobs.py 100` tries many more of them, and prints what isn't right.
"""

import os
from pathlib import Path

import nccl_jobs
import pytest
from flight_dumps import Job
from nccl_jobs import KILLED, KINDS, LESS, OTHER_CALL, OTHER_SIZE, STOPPED

from course_utils import explain_dumps
from course_utils.flight import guilt

SEEDS = range(4)


@pytest.mark.parametrize("kind", [STOPPED, KILLED, OTHER_SIZE, OTHER_CALL, LESS])
def test_the_rank_that_went_wrong_is_named(kind):
    for seed in SEEDS:
        job, lost = nccl_jobs.random_job(seed, kind)
        grade = nccl_jobs.grade(job, job.explained(lost))
        assert not job.hangs or grade in nccl_jobs.GOOD, (seed, grade)


def test_of_two_ranks_that_stopped_at_once_no_other_is_named():
    for seed in SEEDS:
        job, lost = nccl_jobs.random_job(seed, STOPPED, 2)
        guilty = set(job.explained(lost).guilty)
        assert guilty, seed
        assert guilty <= job.truth, seed


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_named_for_sure_who_has_done_nothing(kind):
    for seed in SEEDS:
        job, lost = nccl_jobs.random_job(seed, kind, 1 + seed % 2)
        explanation = job.explained(lost)
        assert not explanation.sure or set(explanation.guilty) <= job.truth, seed


def test_a_rank_that_makes_a_step_less_is_where_all_circles_meet():
    job, lost = nccl_jobs.random_job(2, LESS)
    (evidence,) = job.explained(lost).verdict.evidence
    assert {evidence.rank} == job.truth
    assert evidence.why == guilt.ORDER


@pytest.fixture
def dumped_one_after_the_other(tmp_path) -> tuple[Path, int]:
    """Dumps of a job that goes on while they are written, the first one early; and the time."""
    job = Job(3)
    for _ in range(6):
        job.call("all_reduce", 0, 1, 2, over=[0, 1, 2])
        job.clock_ns += 10**8
    job.clock_ns -= 5 * 10**7  # half as long as before
    job.call("all_reduce", 1, 2)
    job.write(tmp_path)
    last_ns = job.clock_ns
    for rank, age_ns in enumerate((3 * 10**6, 0, 0)):
        os.utime(tmp_path / f"_dump_{rank}", ns=(last_ns, last_ns - age_ns))
    return tmp_path, last_ns


def test_dumps_that_are_written_at_different_moments_are_no_hang(dumped_one_after_the_other):
    folder, _ = dumped_one_after_the_other
    explanation = explain_dumps(folder)
    assert explanation.guilty == []
    assert explanation.verdict.slow == [0]


def test_a_rank_that_left_its_dump_before_a_call_and_never_came_is_named_but_not_for_sure(
    dumped_one_after_the_other,
):
    folder, last_ns = dumped_one_after_the_other
    for rank in (1, 2):
        os.utime(folder / f"_dump_{rank}", ns=(last_ns, last_ns + 10**10))
    explanation = explain_dumps(folder)
    assert explanation.guilty == [0]
    assert not explanation.sure
