"""A hang speaks early: a line after some silence, where somebody looks; it goes again."""

import pytest
from kernels import Kernel

LOOK = "import course_utils.early as early; early._STILL_S = 0.6; early.somebody_looks = lambda: {}"
SHOWN = """
from IPython.display import DisplayHandle
shown = []
DisplayHandle.display = DisplayHandle.update = (
    lambda self, bundle, raw: shown.append(bundle["text/plain"])
)
"""
HANGS = "launch(lambda: dist.get_rank() == 2 or dist.barrier(), world_size=3, timeout=3)"
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


@pytest.fixture(scope="module")
def kernel():
    kernel = Kernel()
    kernel.run(SHOWN, 30)
    yield kernel
    kernel.close()


def shown(kernel, cell, looks=True):
    kernel.run(LOOK.format(looks), 30)
    assert not kernel.run("shown.clear()", 30).errors
    outcome = kernel.run(cell, 60)
    return outcome, eval(kernel.run("shown", 30).value)


def test_the_line_says_who_is_done_and_who_waits_where_and_goes_before_the_report(kernel):
    outcome, told = shown(kernel, HANGS)
    assert outcome.errors[0][0] == "WorkerTimeout"
    line, gone = told
    assert line == (
        "No rank has called anything for 0.6 s: ranks 0 and 1 in barrier "
        f"(cell [{outcome.number}], line 1, in <lambda>); rank 2 done. Time is up after 3 s."
    )
    assert gone == ""


def test_it_goes_when_a_slow_rank_moves_on(kernel):
    outcome, told = shown(kernel, LATE)
    assert not outcome.errors
    assert "rank 0 running (cell" in told[0]
    assert "rank 1 in barrier (cell" in told[0]
    assert told[1:] == [""]


def test_a_rank_that_dies_later_did_not_die_where_it_was_asked(kernel):
    outcome, told = shown(kernel, DIES)
    assert len(told) == 2
    message = outcome.errors[0][1]
    assert "rank 0 failed: the process left with exit status 3" in message
    assert "time.sleep(2)" not in message


def test_a_rank_that_has_called_nothing_yet_is_not_asked(kernel):
    cell = "launch(lambda: (dist.get_rank() or time.sleep(2), dist.barrier())[1])"
    outcome, told = shown(kernel, cell)
    assert not outcome.errors
    assert "rank 0 without a call" in told[0]


def test_a_long_computation_of_all_ranks_is_no_silence(kernel):
    outcome, told = shown(kernel, "launch(time.sleep, 1.5)")
    assert (outcome.errors, told) == ([], [])


def test_where_outputs_are_compared_nothing_is_shown(kernel):
    outcome, told = shown(kernel, HANGS, looks=False)
    assert outcome.errors[0][0] == "WorkerTimeout"
    assert told == []
