"""The guilty are named in dumps of every torch from 2.5 on, whatever the form."""

import pytest
from flight_dumps import Job, after_two_steps
from flight_versions import FORMS, write

from course_utils import explain_dumps


def absent() -> Job:
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 3)
    return job


def behind_a_receive() -> Job:
    job = after_two_steps(4, data=[2, 3], pipeline=[0, 2])
    job.message("recv", 0, 2, "pipeline")
    job.call("all_reduce", 1)
    job.call("all_reduce", 3, group="data")
    return job


def failed_gpu() -> Job:
    job = after_two_steps(4)
    for _ in range(3):
        job.call("_all_gather_base", 0, 1, 2, 3, over=[0, 1, 3])
    job.call("all_reduce", 0, 1, 2, 3)
    return job


def other_call() -> Job:
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 3)
    job.call("broadcast", 2)
    return job


JOBS = [absent, behind_a_receive, failed_gpu, other_call]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("make", JOBS)
def test_in_dumps_of_each_version_the_same_rank_is_guilty(make, form, tmp_path):
    job = make()
    write({rank: job.dump(rank) for rank in job.entries}, form, tmp_path)
    assert explain_dumps(tmp_path).guilty == [2]


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_whose_entries_are_overwritten_is_known_by_its_status(form, tmp_path):
    job = absent()
    dumps = {rank: job.dump(rank) for rank in job.entries}
    dumps[3]["entries"] = []
    write(dumps, form, tmp_path)
    assert explain_dumps(tmp_path).guilty == [2]


@pytest.mark.parametrize("form", ["2.9 on", "2.9 on as JSON"])
def test_messages_that_go_together_have_the_state_of_their_batch(form, tmp_path):
    job = after_two_steps(4, pipeline=[0, 1, 2])
    for _ in range(2):
        in_a_batch(job, 0, 1, over=True)
    job.message("send", 0, 1, "pipeline")
    job.call("all_reduce", 2, 1)
    dumps = {rank: job.dump(rank) for rank in job.entries}
    dumps[1]["entries"] = dumps[1]["entries"][-3:]  # the receiver's buffer holds no more
    write(dumps, form, tmp_path)
    explanation = explain_dumps(tmp_path)
    assert explanation.guilty == [3]
    assert [(edge.waiter, edge.waits_for) for edge in explanation.chain] == [(0, 1), (1, 3)]


def in_a_batch(job: Job, sender: int, receiver: int, over: bool) -> None:
    """A message, and the entry at each end that alone knows whether it is over."""
    for kind, rank, peer in (("send", sender, receiver), ("recv", receiver, sender)):
        job.message(kind, rank, peer, "pipeline")
        (*_, entry) = job.entries[rank]
        state = {"state": "completed", "retired": True} if over else {}
        job.entries[rank].append(entry | {"profiling_name": "nccl:coalesced"} | state)
