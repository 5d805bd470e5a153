"""Trainings under NCCL made up with known truth: pipeline, data and tensor groups, 16 to 64 ranks.

`python tests/helpers/nccl_jobs.py 100` tries many more of them, and prints what isn't right.
"""

import os

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


def dumped_one_after_the_other() -> Job:
    """A job of three ranks that goes on while its dumps are written: the first one is the oldest."""
    job = Job(3)
    job.call("all_reduce", 0, 1, 2, over=[0, 1, 2])
    job.call("all_reduce", 1, 2)
    return job


def test_a_rank_whose_dump_is_older_than_a_call_is_not_blamed_for_it(tmp_path):
    job = dumped_one_after_the_other()
    job.write(tmp_path)
    last_ns = job.clock_ns
    for rank, age_ns in enumerate((3 * 10**6, 0, 0)):
        os.utime(tmp_path / f"_dump_{rank}", ns=(last_ns, last_ns - age_ns))
    explanation = explain_dumps(tmp_path)
    assert explanation.guilty == []
    assert explanation.exit_status == 4
    for rank in range(3):
        os.utime(tmp_path / f"_dump_{rank}", ns=(last_ns, last_ns + 10**12))
    assert explain_dumps(tmp_path).guilty == [0]
