"""Who is guilty: kinds of hangs made up of a few calls each, with and without their history."""

import pytest
from flight_dumps import Job, after_two_steps

from course_utils.flight import guilt

BOTH = pytest.mark.parametrize("only_pending", [False, True])


@BOTH
def test_a_rank_that_did_not_come_is_guilty(only_pending):
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 3)
    explanation = job.explained(only_pending=only_pending)
    assert explanation.guilty == [2]
    assert explanation.victims == [0, 1, 3]
    assert explanation.sure


@BOTH
def test_a_rank_in_a_pipelines_receive_is_a_victim_of_who_misses_the_all_reduce(only_pending):
    job = after_two_steps(4, data=[2, 3], pipeline=[0, 2])
    job.message("recv", 0, 2, "pipeline")
    job.call("all_reduce", 1)
    job.call("all_reduce", 2, group="data")
    explanation = job.explained(only_pending=only_pending)
    assert explanation.guilty == [3]
    assert [(edge.waiter, edge.waits_for) for edge in explanation.chain][-1] == (2, 3)


@BOTH
def test_a_rank_whose_gpu_failed_shows_as_pending_what_its_peers_have_finished(only_pending):
    job = after_two_steps(4)
    for _ in range(3):
        job.call("_all_gather_base", 0, 1, 2, 3, over=[0, 1, 3])
    job.call("all_reduce", 0, 1, 2, 3)
    explanation = job.explained(only_pending=only_pending)
    assert explanation.guilty == [2]
    assert explanation.verdict.evidence[0].why == guilt.FAILED


def test_a_failed_gpu_is_found_beside_a_rank_that_did_not_come():
    job = after_two_steps(6)
    for _ in range(3):
        job.call("_all_gather_base", *range(6), over=[0, 1, 3, 4, 5])
    job.call("all_reduce", 0, 1, 2, 3, 4)
    assert job.explained().guilty == [2, 5]


@BOTH
def test_a_rank_that_calls_something_else_is_guilty(only_pending):
    job = after_two_steps(4)
    job.call("all_reduce", 0, 2, 3)
    job.call("broadcast", 1)
    explanation = job.explained(only_pending=only_pending)
    assert explanation.guilty == [1]
    assert explanation.sure


@BOTH
def test_a_rank_that_hands_in_another_size_is_guilty(only_pending):
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 2)
    job.call("all_reduce", 3, size=5)
    assert job.explained(only_pending=only_pending).guilty == [3]


def test_uneven_parts_of_an_all_to_all_are_no_difference():
    job = after_two_steps(4)
    job.call("all_to_all", 0, 1, size=4)
    job.call("all_to_all", 2, size=5)
    assert job.explained().guilty == [3]


def test_a_rank_that_makes_one_call_more_than_all_others_is_guilty():
    job = after_two_steps(4)
    job.call("all_reduce", 0)
    explanation = job.explained()
    assert explanation.guilty == [0]
    assert not explanation.sure


def test_of_two_ranks_the_one_that_does_not_come_is_guilty():
    job = after_two_steps(2)
    job.call("all_reduce", 0)
    assert job.explained().guilty == [1]


def test_groups_in_another_order_are_told_by_the_minority():
    job = after_two_steps(4, first=[0, 1, 2, 3], second=[0, 1, 2, 3])
    job.call("all_reduce", 0, 1, 2, group="first")
    job.call("all_reduce", 3, group="second")
    explanation = job.explained()
    assert explanation.guilty == [3]
    assert not explanation.sure


def test_a_rank_that_stands_still_while_its_own_calls_are_pending_is_guilty():
    job = after_two_steps(8, stage=[4, 5, 6, 7])
    job.call("all_to_all", 4, 5, 6, group="stage")  # rank 7 never comes
    job.call("all_reduce", 4, 6, group="stage")  # nor does 5 here
    job.call("broadcast", 4, 6, group="stage")
    job.numbers[7, "stage"] = 0
    for rank in range(4):
        job.call("all_reduce", rank)
    explanation = job.explained()
    assert 7 in explanation.guilty
    assert set(explanation.guilty) <= {5, 7}


@BOTH
def test_a_rank_without_a_dump_is_guilty_if_nobody_else_explains_the_hang(only_pending):
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 3)
    explanation = job.explained(without=(2,), only_pending=only_pending)
    assert explanation.guilty == [2]
    assert not explanation.sure


def test_a_rank_without_a_dump_is_not_guilty_if_somebody_else_is():
    job = after_two_steps(4)
    job.call("all_reduce", 0, 2, 3)
    explanation = job.explained(without=(0,))
    assert explanation.guilty == [1]
    assert "rank 0 left no dump" in str(explanation)


def test_a_circle_of_receives_has_no_guilty_rank_for_sure():
    job = after_two_steps(2, pair=[0, 1])
    job.message("recv", 0, 1, "pair")
    job.message("recv", 1, 0, "pair")
    explanation = job.explained()
    assert explanation.guilty == [0, 1]
    assert explanation.verdict.outcome == guilt.UNKNOWN


def test_a_send_and_its_receive_meet():
    job = after_two_steps(3, pair=[0, 1])
    job.message("send", 0, 1, "pair")
    job.message("recv", 1, 0, "pair")
    job.call("all_reduce", 0, 1)
    assert job.explained().guilty == [2]


def test_a_call_to_which_all_have_come_names_nobody():
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 2, 3)
    explanation = job.explained()
    assert explanation.guilty == []
    assert explanation.exit_status == 4


def test_of_ranks_that_have_come_to_everything_those_that_finished_least_are_suspected():
    job = after_two_steps(8, one=[4, 5], other=[6, 7], experts=[4, 5, 6, 7])
    for group, ranks, over in (("one", (4, 5), ()), ("other", (6, 7), (6, 7))):
        job.call("_all_gather_base", *ranks, group=group, over=over)
    job.call("all_to_all", 4, 5, 6, 7, group="experts")
    job.call("all_reduce", 0, 1, 2, 3)
    explanation = job.explained()
    assert explanation.guilty == [4, 5]
    assert explanation.exit_status == 4


def test_nothing_hangs_where_nothing_is_pending():
    explanation = after_two_steps(4).explained()
    assert explanation.exit_status == 3
    assert explanation.guilty == explanation.victims == []


def test_a_pause_as_long_as_earlier_ones_is_no_hang():
    job = Job(2)
    for _ in range(6):
        job.clock_ns += 10**9
        job.call("all_reduce", 0, 1, over=[0, 1])
    job.call("all_reduce", 0)
    last_ns = job.clock_ns
    for pause_ns, guilty in ((5 * 10**8, []), (10**10, [1])):
        raw = {rank: job.dump(rank) | {"dumped_ns": last_ns + pause_ns} for rank in (0, 1)}
        explanation = guilt.judge(guilt_dumps(raw))
        assert explanation.guilty == guilty


def guilt_dumps(raw):
    from course_utils.flight.dumps import from_raw

    return from_raw(raw, {rank: f"_dump_{rank}" for rank in raw}, [])


def test_the_same_group_under_different_names_is_one_group():
    job = after_two_steps(4, tensor=[0, 1, 2, 3])
    job.call("all_reduce", 0, 1, 3, group="tensor")
    raw = {rank: job.dump(rank) for rank in range(4)}
    table = raw[3]["pg_config"]
    table["77"] = table.pop("1")
    raw[3]["entries"][-1]["process_group"] = ("77", "tensor")
    assert guilt.judge(guilt_dumps(raw)).guilty == [2]


@pytest.fixture
def under_gloo(monkeypatch):
    monkeypatch.setattr(Job, "backend", "gloo")


def test_gloo_notes_a_call_as_over_that_has_failed_since_a_member_never_came(under_gloo):
    job = after_two_steps(3)
    job.call("all_reduce", 0, 2, over=[0, 2])
    explanation = job.explained()
    assert explanation.guilty == [1]
    assert explanation.victims == [0, 2]


def test_gloo_notes_a_moment_later_that_a_call_is_over(under_gloo):
    job = after_two_steps(3)
    job.call("all_reduce", 0, 1, 2, over=[0, 2])
    assert job.explained().verdict.outcome == guilt.NOTHING


def test_under_gloo_the_call_before_the_missing_one_makes_no_circle(under_gloo):
    job = Job(2)
    job.call("all_reduce", 0, over=[0])
    job.call("all_reduce", 1)  # its end has not been noted yet
    job.call("all_reduce", 0)
    explanation = job.explained()
    assert explanation.guilty == [1]
    assert explanation.sure


def test_under_gloo_calls_of_two_sizes_are_not_over_for_the_others(under_gloo):
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 2)
    job.call("all_reduce", 3, size=5, over=[3])
    assert job.explained().guilty == [3]


@pytest.mark.parametrize("is_noted", [False, True])
def test_under_gloo_the_last_call_with_a_rank_that_left_no_dump_is_not_over(under_gloo, is_noted):
    job = after_two_steps(3)
    job.call("all_reduce", 0, 2, over=[0, 2] if is_noted else [])
    explanation = job.explained(without=(1,))
    assert explanation.guilty == [1]
    assert not explanation.sure


def test_where_nobody_waits_and_a_dump_is_missing_it_is_not_said_that_nothing_hangs():
    explanation = after_two_steps(3).explained(without=(1,))
    assert explanation.verdict.outcome == guilt.UNKNOWN
    assert "rank 1 left none" in str(explanation)


def test_a_failed_gpu_is_told_where_no_other_call_is_pending():
    job = after_two_steps(3)
    for _ in range(3):
        job.call("all_reduce", 0, 1, 2, over=[0, 1])
    explanation = job.explained()
    assert explanation.guilty == [2]
    assert str(explanation).startswith("Guilty: rank 2.")


def test_below_a_cell_the_report_has_no_line_that_is_broken_amid_a_word():
    job = after_two_steps(4)
    job.call("all_reduce", 0, 1, 3)
    explanation = job.explained()
    lines = repr(explanation).splitlines()
    assert max(map(len, lines)) <= 95 < max(map(len, str(explanation).splitlines()))
    assert repr(explanation).split() == str(explanation).split()


def test_a_rank_that_waits_alone_and_also_for_one_without_a_dump_is_explained():
    job = Job(4, sub=[0, 1, 2])
    job.call("all_reduce", 0, 1, 2, group="sub", over=[0, 1, 2])
    job.call("all_reduce", 0, group="sub")
    job.message("send", 0, 3, "default_pg")
    verdict = guilt.judge(guilt_dumps({rank: job.dump(rank) for rank in range(3)}))
    assert verdict.victims == [0]
    assert verdict.unknown == [3]


def test_a_group_of_which_no_member_left_a_dump_breaks_nothing(under_gloo):
    job = Job(4)
    job.call("all_reduce", 2, 3, over=[2, 3])
    raw = {rank: job.dump(rank) for rank in (2, 3)}
    for dump in raw.values():  # a table that is wrong
        dump["pg_config"]["0"]["ranks"] = "[0, 1]"
    assert guilt.judge(guilt_dumps(raw)).guilty == [0, 1]
