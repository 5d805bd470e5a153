"""The rules of the hang report, told logs that are made by hand and stacks of real threads."""

import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from stalls import C10D, DDP, at, call, explained, inside

from course_utils.hang import whereabouts
from course_utils.hang.report import HangReport
from course_utils.hang.wait_graph import differs
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named
from course_utils.record.event import ASYNC, BACKWARD, FORWARD, MAY_TIME_OUT, QUEUED, Event, Log

Stacks = dict[int, list[Frame] | None]


def told(stacks: Stacks, *calls: Iterable[Event], **more) -> tuple[str | None, str]:
    """The diagnosis of ranks with these stacks and calls."""
    error = explained(stacks, *calls, **more)
    return error.pattern, error.parts[-1]


def frames_while(waits: Callable[[], object]) -> list[Frame]:
    """The stack of a thread that does not get on with something."""
    thread = threading.Thread(target=waits, daemon=True)
    thread.start()
    stack, before = [], None
    while not stack or stack != before:  # it stands still
        time.sleep(0.1)
        before, stack, frame = stack, [], sys._current_frames()[thread.ident]
        while frame and frame.f_code is not threading.Thread.run.__code__:
            stack.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
    return stack[::-1]


def taken(lock):
    lock.acquire()
    return lock


def enters(mutex) -> None:
    with mutex:
        pass


@pytest.mark.parametrize(
    ("waits", "what", "advice"),
    [
        (lambda: threading.Event().wait(), "an event", "Nobody sets it"),
        (lambda: multiprocessing.Event().wait(), "an event", "Nobody sets it"),
        (lambda: threading.Barrier(2).wait(), "a barrier of threads", "there is dist.barrier()"),
        (lambda: Future().result(), "a future", "copies of the notebook's objects, not of its"),
        (lambda: threading.Semaphore(0).acquire(), "a semaphore", "does not come to an end"),
        (lambda: taken(threading.Lock()).acquire(), "a lock", "cannot take the same Lock twice"),
        (lambda: enters(taken(threading.Lock())), "a lock", "held at launch stays locked in its"),
        (
            lambda: enters(taken(multiprocessing.Lock())),
            "a lock",
            "cannot take the same Lock twice",
        ),
    ],
)
def test_what_of_its_own_process_holds_a_rank_is_told_by_its_name(waits, what, advice):
    frames = frames_while(waits)
    pattern, text = told({0: frames}, [])
    assert (whereabouts.held_by(frames), pattern) == (what, "held")
    assert text.startswith(f"No rank waits for another: rank 0 waits for {what} of its own process")
    assert advice in text


def test_a_condition_that_nobody_notifies_is_no_lock():
    def waits() -> None:
        condition = threading.Condition()
        with condition:
            condition.wait()

    assert whereabouts.held_by(frames_while(waits)) == "a condition"


@pytest.mark.parametrize(
    "file",
    [
        "/cache/torchinductor_me/ab/cab.py",
        "<eval_with_key>.3",
        "/elsewhere/lib/python3.11/site-packages/accelerate/launchers.py",
    ],
)
def test_code_that_torch_has_generated_and_what_is_installed_is_not_the_learners(file):
    frames = [*at(), Frame(file, 628, "<module>")]
    assert whereabouts.locate(0, frames, None).line == at()[0]


def test_a_rank_that_waits_for_the_compiler_is_slow_and_not_held():
    future = f"{sys.base_prefix}/lib/python3.11/concurrent/futures/_base.py"
    compiler = f"{torch.__path__[0]}/_inductor/async_compile.py"
    stack = [*at(), Frame(compiler, 7, "wait"), Frame(future, 8, "result")]
    assert told({0: stack}, [])[0] == "running"


def test_a_rank_that_launches_ranks_waits_for_children():
    launcher = f"{torch.__path__[0]}/distributed/launcher/api.py"
    agent = f"{torch.__path__[0]}/distributed/elastic/agent/server/api.py"
    stack = [*at(), Frame(launcher, 7, "__call__"), Frame(agent, 8, "run")]
    pattern, text = told({0: stack, 1: stack}, [], [])
    assert pattern == "held"
    assert "call the training function itself, and not by mp.spawn, notebook_launcher" in text


def test_what_asks_the_group_waits_for_nobody_unless_it_calls_what_waits():
    assert (
        whereabouts.distributed_call_in([*inside("get_rank"), *inside("_get_default_group")[1:]])
        is None
    )
    state = f"{torch.__path__[0]}/distributed/checkpoint/state_dict.py"
    deeper = [*inside("get_model_state_dict", state), *inside("all_gather_object")[1:]]
    assert whereabouts.distributed_call_in(deeper) == "get_model_state_dict"


def test_names_of_torchs_insides_are_not_told():
    frames, calls = inside("__repr__"), (call(0, "all_gather"),)
    assert whereabouts.locate(0, frames, Log(calls, True)).blocker == "all_gather"
    assert whereabouts.locate(0, frames, None).blocker == "torch.distributed"


def test_a_sleep_within_a_with_statement_is_no_lock():
    assert whereabouts.held_by(frames_while(lambda: time.sleep(2))) is None


@pytest.mark.parametrize("n", [2, 48, 64])
def test_work_that_goes_on_is_slow_however_many_ranks_there_are(n):
    # All ranks come to a call within a millisecond, every 100 ms; time is up 50 ms after the last.
    logs = [
        [call(r, number=k, group=tuple(range(n)), start_s=k / 10 + r / 1e5) for k in range(1, 31)]
        for r in range(n)
    ]
    stands = dict.fromkeys(range(n), inside())
    assert told(stands, *logs, now=3.05)[0] == "slow"
    assert told(stands, *logs, now=4.0)[0] != "slow"


def test_epochs_that_take_their_time_are_progress_and_it_is_said_how_to_give_them_more():
    epochs = [[call(rank, number=k, start_s=2.0 * k) for k in range(1, 31)] for rank in (0, 1)]
    pattern, text = told({0: at(), 1: at()}, *epochs, now=61.0)
    assert pattern == "slow"
    assert "there was progress: perhaps nothing hangs" in text
    assert "such as launch(..., timeout=3600)" in text


def test_a_proven_hang_is_no_progress_however_long_the_pauses_before_it_were():
    epochs = [[call(rank, number=k, start_s=2.0 * k) for k in range(1, 31)] for rank in (0, 1)]
    epochs[0].append(call(0, number=31, start_s=62.0))
    assert told({0: inside(), 1: None}, *epochs, now=63.0)[0] == "uneven"
    assert told({0: inside(), 1: at()}, *epochs, now=63.0)[0] == "slow"


def hangs_for_ever(stack: list[Frame], event: Event) -> bool:
    """Whether rank 0 with this stack and call hangs for ever, where rank 1 has returned."""
    logs = {0: Log((event,), complete=True), 1: Log((), complete=True)}
    record = SimpleNamespace(logs=lambda: logs)
    return HangReport(record).wait_graph({0: stack, 1: None}, 99.0).hangs_for_ever


LINEAR = f"{torch.__path__[0]}/nn/modules/linear.py"
OBJECTS = inside("all_gather_object")
IN_FORWARD = inside("forward", DDP)
SENDS_BUFFERS = [*IN_FORWARD, Frame(DDP, 2385, "_distributed_broadcast_coalesced")]


@pytest.mark.parametrize(
    ("stack", "event", "is_proven"),
    [
        ([*OBJECTS, Frame(C10D, 90, "all_gather")], call(0, "all_gather"), True),
        ([*OBJECTS, Frame(C10D, 90, "_object_to_tensor")], call(0, "all_gather"), False),
        (SENDS_BUFFERS, call(0, "broadcast", flags=FORWARD), True),
        ([*IN_FORWARD, Frame(LINEAR, 90, "forward")], call(0, "broadcast", flags=FORWARD), False),
        (inside("_engine_run_backward"), call(0, flags=ASYNC | BACKWARD), True),
        (inside("_engine_run_backward"), call(0, line=6, flags=ASYNC | BACKWARD), False),
        (inside("_engine_run_backward"), call(0, flags=ASYNC | BACKWARD | QUEUED), False),
        (inside("new_group"), call(0, "new_group", dtype=None), True),
        (inside("new_group"), call(0, "new_group", dtype=None, group=(0, 2)), False),
        (inside("new_group"), call(0, "new_group", dtype=None, flags=MAY_TIME_OUT), False),
        (inside("all_gather_single"), call(0, "all_gather", flags=MAY_TIME_OUT), False),
        (inside("all_gather_single"), call(0, "all_gather", flags=ASYNC), False),
    ],
)
def test_a_hang_is_proven_only_where_a_rank_is_seen_to_wait(stack, event, is_proven):
    assert hangs_for_ever(stack, event) is is_proven


def test_a_backward_pass_may_end_as_long_as_no_rank_has_returned_that_it_needs():
    logs = {0: Log((call(0, flags=ASYNC | BACKWARD),), True), 1: Log((call(1, "recv"),), True)}
    record = SimpleNamespace(logs=lambda: logs)
    stacks = {0: inside("_engine_run_backward"), 1: inside("recv")}
    assert not HangReport(record).wait_graph(stacks, 99.0).hangs_for_ever


def test_the_first_round_of_many_ranks_says_nothing_about_what_comes():
    logs = [[call(rank, group=tuple(range(40)), start_s=rank / 10)] for rank in range(39)]
    assert told({**dict.fromkeys(range(39), inside()), 39: at()}, *logs, [], now=3.85)[0] == (
        "missing"
    )


def test_shapes_of_five_dimensions_are_told_whole():
    shapes = (2, 3, 4, 5, 6), (2, 3, 4, 5, 7)
    calls = [[call(rank, shape=shape)] for rank, shape in enumerate(shapes)]
    pattern, text = told({0: inside(), 1: inside()}, *calls)
    assert pattern == "shape"
    assert "float32 of shape (2, 3, 4, 5, 6) on rank 0, float32 of shape (2, 3, 4, 5, 7) on" in text


def test_a_receive_from_any_rank_when_all_others_have_returned_is_told():
    pattern, text = told({0: inside("recv"), 1: None}, [call(0, "recv", shape=(3,))], [])
    assert (pattern, text.split(". ")[0]) == (
        "returned",
        "Rank 0 waited for rank 1, which never arrived: its function has returned, so nobody is "
        "left to send rank 0 a message",
    )


def test_a_receive_from_any_rank_while_another_runs_may_still_be_answered():
    pattern, text = told({0: inside("recv"), 1: at()}, [call(0, "recv")], [])
    assert (pattern, "No call is seen to lack its partner" in text) == (None, True)


def test_a_receive_in_a_world_of_one_rank_is_told():
    pattern, text = told({0: inside("recv")}, [call(0, "recv", group=(0,))])
    assert (pattern, text) == ("alone", "There is no other rank that could send rank 0 a message.")


def test_who_has_forgotten_its_first_calls_is_not_said_to_lack_one():
    logs = [call(0, number=2000)], [call(1, "barrier", group_name="1", number=5)]
    assert told({0: inside(), 1: inside("barrier")}, *logs, complete=False)[0] is None
    assert told({0: inside(), 1: at()}, *logs, complete=True)[0] == "missing"


def test_a_difference_counts_only_where_an_earlier_one_cannot_be_forgotten():
    logs = [call(0, number=2000)], [call(1, "broadcast", number=2000, root=0)]
    assert told({0: inside(), 1: inside()}, *logs, complete=False)[0] is None
    same = [[call(rank, number=1999), *log] for rank, log in enumerate(logs)]
    assert told({0: inside(), 1: inside()}, *same, complete=False)[0] == "order"


def in_lines(rank: int, *lines: int) -> list[Event]:
    """A barrier of a rank in each of these lines."""
    return [call(rank, "barrier", number, line) for number, line in enumerate(lines, 1)]


def test_ranks_that_meet_from_different_lines_are_told_so_instead_of_who_lacks_a_call():
    pattern, text = told({0: inside("barrier", line=6), 1: None}, in_lines(0, 5, 6), in_lines(1, 6))
    assert pattern == "order"
    assert "Rank 1 has called barrier in that line as often, but earlier calls of different" in text
    assert "barrier (train.py, line 5) on rank 0, barrier (train.py, line 6) on rank 1" in text


def test_a_call_that_one_rank_alone_skips_in_a_loop_is_told_by_its_line():
    calls = in_lines(0, 5, 6, 5), in_lines(1, 6, 6)
    pattern, text = told({0: inside("barrier", line=5), 1: None}, *calls)
    assert (pattern, "never called barrier in that line" in text) == ("returned", True)
    calls = in_lines(0, 6, 5, 6), in_lines(1, 6, 6)
    pattern, text = told({0: inside("barrier", line=6), 1: None}, *calls)
    assert pattern == "order"
    assert "collective #2 is barrier (train.py, line 5) on rank 0, barrier (train.py, line" in text


def test_branches_of_which_each_rank_has_its_own_are_no_crossing():
    calls = in_lines(0, 3, 5, 6), in_lines(1, 4, 6)
    text = told({0: inside("barrier", line=6), 1: None}, *calls)[1]
    assert "collective #2 is barrier (train.py, line 5) on rank 0, barrier (train.py, line" in text
    calls = in_lines(0, 3, 5), in_lines(1, 4)
    pattern, text = told({0: inside("barrier", line=5), 1: None}, *calls)
    assert (pattern, "never called barrier in that line" in text) == ("returned", True)


def test_two_groups_with_one_name_are_two_groups():
    # Made by their members alone, groups of ranks 0 and 1 and of ranks 2 and 3 are both called "1".
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    logs = [[call(rank, group=pair, group_name="1")] for rank, pair in enumerate(pairs)]
    text = told({0: inside(), 1: None, 2: at(), 3: at()}, *[logs[0], [], *logs[2:]])[1]
    assert text.startswith("Rank 0 waited for rank 1, which never arrived")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({}, None),
        ({"kind": "barrier"}, "order"),
        ({"root": 1}, "root"),
        ({"bytes": 8}, "shape"),
        ({"dtype": "int32"}, "shape"),
        ({"shape": (1, 1)}, None),
    ],
)
def test_calls_that_shall_meet_differ_in_what_matters_to_torch(more, what):
    assert differs([call(0), replace(call(1), **more)]) == what


@pytest.mark.parametrize(
    ("stacks", "says"),
    [
        (
            {0: inside(), 1: inside("broadcast")},
            "in all_reduce, broadcast, and what they called before is not known: every rank of",
        ),
        ({0: inside(), 1: at()}, "Rank 0 waited for rank 1, which never arrived"),
        ({0: inside(), 1: None, 2: inside()}, "Ranks 0 and 2 waited for rank 1, which never"),
        ({0: at(), 1: at(), 2: at()}, "ranks 0, 1 and 2 only needed longer"),
        ({0: at(), 1: None}, "rank 0 only needed longer"),
    ],
)
def test_where_no_calls_are_known_the_stacks_tell_what_they_can(stacks, says):
    assert says in told(stacks)[1]


@pytest.mark.parametrize(
    ("frames", "row"),
    [
        (inside(), "waiting in all_reduce at train.py, line 7, in train: "),
        (inside("forward", DDP), "waiting in DDP's forward at train.py, line 7, in train: "),
        (inside("__init__", DDP), "waiting in DDP(model) at train.py, line 7, in train: "),
        (inside("_engine_run_backward"), "waiting in backward at train.py, line 7, in train: "),
        (at(), "running at train.py, line 7, in train: "),
        (inside()[1:], "waiting in all_reduce, outside of your code"),
        ([], "gives no answer: it is stopped by a signal, or held up inside the system"),
        (None, "its function has returned"),
    ],
)
def test_where_a_rank_is_in_one_line(frames, row):
    assert whereabouts.locate(0, frames, None).row((0, 1)) == row


def test_many_ranks_that_do_the_same_share_a_row():
    text = str(explained({**dict.fromkeys(range(9), at(3)), 9: None}))
    assert "  ranks 0, 1, 2, 3, 4, 5, 6, 7 and 8: running at train.py, line 3, in train" in text
    assert "  rank 9: its function has returned" in text


def test_a_rank_whose_result_waits_for_others_is_in_none_of_its_calls():
    returned = replace(call(0, "return", dtype=None), line=None, place="")
    result = [call(0), returned]
    error = explained({0: inside("wait_tensor")[1:], 1: None}, result, [])
    assert (error.waiting[0].state, error.waiting[0].open_calls) == ("waiting", ())


def test_a_rank_that_hands_over_its_result_is_not_starting():
    frames = [Frame("worker.py", 80, "_run_function"), Frame("worker.py", 99, "_send")]
    assert not whereabouts.locate(0, frames, None).starts
    frames = [Frame("worker.py", 70, "_run_function"), Frame("rendezvous.py", 99, "join")]
    assert whereabouts.locate(0, frames, None).starts


def test_hundreds_of_ranks_are_named_by_the_first_and_the_last_of_each_run():
    stacks = {rank: None if rank % 100 == 7 else at(3) for rank in range(300)}
    text = str(explained(stacks))
    assert "ranks 0-6, 8-106, 108-206 and 208-299 only needed longer" in text
    assert "ranks 7, 107 and 207: its function has returned" in text
    assert ranks_named(range(300)) == "ranks 0-299"


def test_where_every_rank_is_can_be_asked_of_the_error():
    error = explained({0: inside(), 1: None}, [call(0, shape=(2, 3))], [])
    first, second = error.waiting[0], error.waiting[1]
    assert (first.state, first.blocker, first.line) == ("waiting", "all_reduce", *at())
    assert (first.call.kind, first.call.number, first.call.shape) == ("all_reduce", 1, (2, 3))
    assert (second.state, second.call, error.absent) == ("returned", None, [1])
