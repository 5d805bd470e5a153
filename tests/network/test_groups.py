"""Groups that only their members make may share one name: who they are tells them apart."""

import torch
import torch.distributed as dist
from test_network import NETWORK, event, trace_of

from course_utils import launch


def a_group_each() -> None:
    dist.all_reduce(torch.ones(4), group=dist.new_group([dist.get_rank()]))


def test_two_pairs_with_one_name_meet_by_themselves():
    pairs = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    trace = trace_of(
        *(event(r, 0, "all_reduce", 1000, group=pairs[r], group_name="1") for r in pairs), n=4
    )
    assert trace.replay(NETWORK).finish_us == (20.1,) * 4
    assert trace.traffic().messages == ((0, 2, 0, 0), (2, 0, 0, 0), (0, 0, 0, 2), (0, 0, 2, 0))


def test_real_ranks_with_a_group_each_of_one_name_are_replayed_and_counted():
    trace = launch(a_group_each, trace=True).trace
    assert {event.group_name for event in trace} == {"1"}
    assert trace.replay(NETWORK).finish_us == (0.0, 0.0)
    assert trace.traffic().messages == ((0, 0), (0, 0))
