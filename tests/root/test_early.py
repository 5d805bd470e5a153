"""A hang speaks early: a line after some silence, where somebody looks; it goes again."""

import pytest
from kernels import Kernel

LOOK = "import course_utils.live as live; live._QUIET_S = 0.6; live.a_person_looks = lambda: {}"
SHOWN = """
from IPython.display import DisplayHandle
shown = []
DisplayHandle.display = DisplayHandle.update = (
    lambda self, bundle, raw: shown.append(bundle["text/plain"])
)
"""
HANGS = "launch(lambda: dist.get_rank() == 2 or dist.barrier(), world_size=3, timeout={})"
COMPUTES = """
def computes():
    dist.barrier()
    time.sleep(9 * (dist.get_rank() == 2))
    dist.barrier()
launch(computes, world_size=3, timeout=3)
"""
LATE = """
def late():
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(2)
    dist.barrier()
launch(late)
"""
DIES = """
def dies():
    dist.barrier()
    if dist.get_rank() == 0:
        time.sleep(2)
        os._exit(3)
    dist.barrier()
launch(dies)
"""

SOON = "live._QUIET_S = 30.0"
LEFT_BEHIND = """
def left_behind():
    pair = dist.new_group([0, 1])
    if dist.get_rank() == 0:
        time.sleep(2)
    if dist.get_rank() < 2:
        dist.barrier(pair)
launch(left_behind, world_size=3)
"""


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel(is_warm=True)
    kernel.run(SHOWN, 30)
    yield kernel
    kernel.close()


def shown(kernel, cell, looks=True):
    kernel.run(LOOK.format(looks), 30)
    assert not kernel.run("shown.clear()", 30).errors
    outcome = kernel.run(cell, 60)
    return outcome, eval(kernel.run("shown", 30).value)


def test_the_line_says_where_all_are_and_goes_before_the_report(kernel):
    outcome, told = shown(kernel, COMPUTES)
    assert outcome.errors[0][0] == "WorkerTimeout"
    line, gone = told
    head, *rows, last = (row for row in line.split("\n") if not row.startswith("    "))
    assert head == "No rank has called anything for 0.6 s:"
    waits, works = "waiting in barrier at cell", "running at cell"
    for rank, row in enumerate(rows):
        assert row.startswith(f"  rank {rank}: {works if rank == 2 else waits}")
    assert last == "Time is up after 3 s."
    assert gone == ""


def test_it_goes_when_a_slow_rank_moves_on(kernel):
    outcome, told = shown(kernel, LATE)
    assert not outcome.errors
    assert "rank 0: running at cell" in told[0]
    assert "rank 1: waiting in barrier at cell" in told[0]
    assert told[0].endswith("\nTime is up after 60 s without a call or a print.")
    assert told[1:] == [""]


def test_a_rank_that_dies_later_did_not_die_where_it_was_asked(kernel):
    outcome, told = shown(kernel, DIES)
    assert len(told) == 2
    message = outcome.errors[0][1]
    assert "rank 0 failed: the process left with exit status 3" in message
    assert "time.sleep(2)" not in message


def test_a_rank_that_has_called_nothing_yet_may_be_asked(kernel):
    cell = "launch(lambda: (dist.get_rank() or time.sleep(2), dist.barrier())[1])"
    outcome, told = shown(kernel, cell)
    assert not outcome.errors
    assert "rank 0: running at cell" in told[0]


MEETS_AT_ITS_END = """
import atexit
def saves_and_meets():
    time.sleep(2)
    dist.barrier()
def meets_at_its_end():
    if dist.get_rank() == 2:
        atexit.register(saves_and_meets)
        return "early"
    dist.barrier()
    return "late"
list(launch(meets_at_its_end, world_size=3))
"""
SENDS_FROM_A_THREAD = """
import _thread
import sys
def sends_later():
    time.sleep(2)
    dist.send(torch.ones(1), 0)
def sends_from_a_thread():
    number = torch.zeros(1)
    if dist.get_rank() == 1:
        sys.setswitchinterval(10)  # the thread begins when this one waits, as on a busy machine
        _thread.start_new_thread(sends_later, ())
        dist.recv(number, 0)
    else:
        dist.recv(number, 1)
        dist.send(number + 1, 1)
    return number.item()
list(launch(sends_from_a_thread))
"""


@pytest.mark.parametrize(
    ("cell", "results"),
    [(MEETS_AT_ITS_END, "['late', 'late', 'early']"), (SENDS_FROM_A_THREAD, "[1.0, 2.0]")],
)
def test_ranks_are_not_given_up_while_an_exit_function_or_a_thread_may_still_call(
    kernel, cell, results
):
    outcome, _ = shown(kernel, cell)
    assert not outcome.errors
    assert outcome.value == results


def test_a_long_computation_of_all_ranks_is_no_silence(kernel):
    outcome, told = shown(kernel, "launch(time.sleep, 1.5)")
    assert (outcome.errors, told) == ([], [])


SLOW_TO_START = """
from course_utils.devices import prepare
inside = prepare.DeviceSetup.in_worker
def late(self, rank):
    if rank:
        time.sleep(2)  # as a GPU's context takes
    return inside(self, rank)
prepare.DeviceSetup.in_worker = late
try:
    launch(dist.barrier, world_size=3)
finally:
    prepare.DeviceSetup.in_worker = inside
"""
ALL_JOIN = """
def all_join():
    os.environ["WORLD_SIZE"] = "3"
    dist.init_process_group("gloo")
launch(all_join, backend=None, timeout=3)
"""


def test_ranks_that_start_are_no_silence(kernel):
    outcome, told = shown(kernel, SLOW_TO_START)
    assert (outcome.errors, told) == ([], [])


def test_ranks_of_which_none_waits_for_another_are_no_silence(kernel):
    outcome, told = shown(kernel, ALL_JOIN)
    assert outcome.errors[0][0] == "WorkerTimeout"
    assert told == []


A_BACKWARD = """
live._ALONE_S = 0.2
def computes():
    x = y = torch.ones(1000, 1000, requires_grad=True)
    for _ in range(20):
        y = y @ x / 1000
    dist.barrier()
    y.sum().backward()
launch(computes, world_size=1)
"""


@pytest.mark.parametrize("looks", [True, False])
def test_a_long_backward_of_a_rank_alone_is_no_hang(kernel, looks):
    outcome, told = shown(kernel, A_BACKWARD, looks)
    assert (outcome.errors, told) == ([], [])


FOR_EVER = {
    "one has returned": HANGS.format(50),
    "alone": "launch(lambda: dist.recv(torch.ones(1)), world_size=1, timeout=50)",
    "both receive": "launch(lambda: dist.recv(torch.ones(1), 1 - dist.get_rank()), timeout=50)",
}


@pytest.mark.parametrize("name", FOR_EVER)
def test_where_all_wait_and_nobody_can_wake_them_the_report_comes_at_once(kernel, name):
    outcome, told = shown(kernel, FOR_EVER[name])
    kind, message = outcome.errors[0]
    assert kind == "WorkerTimeout"
    assert "would never be done." in message
    assert "waiting in " in message
    assert told == []


LEAVES_OUT = """
import warnings
warnings.simplefilter("ignore")
def leaves_out():
    x, two, both = torch.ones(2), torch.ones(4), [None, None]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    {before}
    if dist.get_rank() == 0:
        return
    {call}
launch(leaves_out, timeout=50)
"""
DDP_MODEL = "from torch.nn.parallel import DistributedDataParallel as DDP; "
WRAPPED = f"{DDP_MODEL}model = DDP(model); model(torch.ones(3, 2)).sum().backward()"
FORWARD = f"{DDP_MODEL}model = DDP(model); output = model(torch.ones(3, 2))"
# By function: what comes before the call that rank 0 leaves out, and that call.
LEFT_OUT = {
    "all_gather_into_tensor": ("", "dist.all_gather_into_tensor(two, x)"),
    "reduce_scatter_tensor": ("", "dist.reduce_scatter_tensor(x, two)"),
    "all_to_all_single": ("", "dist.all_to_all_single(x, x.clone())"),
    "all_gather_object": ("", "dist.all_gather_object(both, 'mine')"),
    "broadcast_object_list": ("", "dist.broadcast_object_list(both)"),
    "new_group": ("", "dist.new_group([0, 1])"),
    "DDP's constructor": (DDP_MODEL, "DDP(model)"),
    "DDP's forward": (WRAPPED, "model(torch.ones(3, 2))"),
    "DDP's backward": (FORWARD, "output.sum().backward()"),
}


@pytest.mark.parametrize("function", LEFT_OUT)
def test_whatever_function_makes_the_call_that_a_rank_has_left_out(kernel, function):
    before, call = LEFT_OUT[function]
    outcome, _ = shown(kernel, LEAVES_OUT.format(before=before, call=call))
    assert "rank 1 would never be done." in outcome.errors[0][1]


COMES_LATE = """
def comes_late():
    pair = dist.new_group([0, 1])
    both, number = [None, None], torch.ones(2)
    if dist.get_rank() == 2:
        return
    if dist.get_rank() == 0:
        time.sleep(2)
    dist.all_gather_object(both, "mine", pair)
    dist.all_to_all_single(number, number.clone(), group=pair)
    dist.new_group([0, 1], use_local_synchronization=True)
    dist.broadcast_object_list(both, 0, pair)
launch(comes_late, world_size=3)
"""
FORWARD_COMES_LATE = """
from torch.nn.parallel import DistributedDataParallel as DDP
def forward_comes_late():
    if dist.get_rank() == 2:
        return
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = DDP(model, process_group=dist.new_group([0, 1], use_local_synchronization=True))
    for _step in range(2):
        if dist.get_rank() == 0:
            time.sleep(1)
        output = model(torch.ones(3, 2))
        if dist.get_rank() == 0:
            time.sleep(1)
        output.sum().backward()
launch(forward_comes_late, world_size=3)
"""
NEW_GROUP_GIVES_UP = """
from datetime import timedelta
def gives_up():
    if dist.get_rank() == 0:
        return
    try:
        dist.new_group([0, 1], timeout=timedelta(seconds=2))
    except RuntimeError:
        print("went on")
launch(gives_up)
"""


@pytest.mark.parametrize("cell", [COMES_LATE, FORWARD_COMES_LATE, NEW_GROUP_GIVES_UP])
def test_a_call_that_ends_in_the_end_is_waited_for_whatever_function_makes_it(kernel, cell):
    outcome, _ = shown(kernel, cell)
    assert not outcome.errors


ONE_OF_TWO = """
def one_of_two():
    if dist.get_rank() == 0:
        works = [dist.irecv(torch.ones(1), 1, tag=tag) for tag in (1, 2)]
        works[1].wait()
        return
    time.sleep(2)
    dist.send(torch.ones(1), 0, tag=2)
launch(one_of_two)
"""


def test_what_may_go_on_is_left_alone(kernel):
    outcome, told = shown(kernel, ONE_OF_TWO)
    assert not outcome.errors
    assert told


A_THREAD_SENDS = """
import threading
def sends_later():
    if dist.get_rank() == 1:
        dist.recv(torch.ones(1), 0)
        return
    threading.Timer(2, dist.send, (torch.ones(1), 1)).start()
    dist.recv(torch.ones(1), 1, tag=5)
launch(sends_later, timeout=4)
"""


A_TIMER = """
from datetime import timedelta
def gives_up():
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    try:
        dist.recv(torch.ones(1), 1 - dist.get_rank(), group)
    except RuntimeError:
        return "went on"
launch(gives_up)
"""


def test_a_groups_own_timer_may_still_end_the_wait(kernel):
    outcome, told = shown(kernel, A_TIMER)
    assert not outcome.errors
    assert told


def test_a_thread_of_a_rank_may_still_wake_another(kernel):
    outcome, told = shown(kernel, A_THREAD_SENDS)
    assert "not done after 4 s" in outcome.errors[0][1]  # rank 0 alone, and in its own time
    assert told


def test_a_rank_alone_waits_in_vain_whoever_looks(kernel):
    outcome, told = shown(kernel, FOR_EVER["alone"], looks=False)
    assert "rank 0 would never be done." in outcome.errors[0][1]
    assert "There is no other rank that could send rank 0 a message." in outcome.errors[0][1]
    assert told == []


def test_where_outputs_are_compared_nothing_is_shown_and_nothing_ends_early(kernel):
    outcome, told = shown(kernel, HANGS.format(2), looks=False)
    kind, message = outcome.errors[0]
    assert kind == "WorkerTimeout"
    assert "not done after 2 s" in message
    assert told == []


RETURNS_AT_WORK = """
import threading
def saves_later():
    def save():
        time.sleep(2)
        dist.barrier()
    if dist.get_rank() == 1:
        threading.Thread(target=save).start()
        return
    dist.barrier()
launch(saves_later)
"""


def test_a_thread_of_a_rank_that_has_returned_may_still_come_to_a_call(kernel):
    outcome, told = shown(kernel, RETURNS_AT_WORK)
    assert not outcome.errors
    assert told


def test_a_rank_that_has_returned_is_waited_for_in_vain_and_that_is_told_at_once(kernel):
    outcome, told = shown(kernel, f"{SOON}; {HANGS.format(60)}")
    assert "ranks 0 and 1 would never be done" in outcome.errors[0][1]
    assert told == []


def test_ranks_that_work_on_when_another_has_returned_are_left_alone(kernel):
    outcome, told = shown(kernel, f"{SOON}\n{LEFT_BEHIND}")
    assert not outcome.errors
    assert told == []
