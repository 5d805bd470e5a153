"""The pytest plugin, run by pytest's own `pytester` on files as users write them."""

import subprocess
import sys

import pytest
import torch.distributed as dist

from course_testing import in_rank, runner  # noqa: F401, see `imported`
from course_utils import launch

pytest_plugins = "pytester"
HEAD = """
import time
import warnings

import pytest
import torch
import torch.distributed as dist

"""


@pytest.fixture(scope="module")
def imported():
    """All that a launch imports: pytester forgets modules that are first imported inside a run."""
    launch(dist.barrier, world_size=2, trace=True)


@pytest.fixture
def outcome_of(imported, pytester, monkeypatch):
    """Returns a function that runs a text as a test file, in this process."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("COLUMNS", "200")  # so that the summary has room for messages

    def run(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(HEAD + source)
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)

    return run


def test_an_assert_that_fails_on_rank_2_shows_the_values_of_rank_2(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(3)
def test_place():
    rank = dist.get_rank()
    values = [rank, rank * 10]
    if rank == 2:
        assert values == [2, 21]
    dist.barrier()
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([
        "rank 2 of 3: assert [[]2, 20] == [[]2, 21]",
        ">           assert values == [[]2, 21]",
        "E             At index 1 diff: 20 != 21",
        "Ranks 0 and 1 were stopped.",
        "FAILED *test_place[[]3-ranks] - rank 2 of 3: assert [[]2, 20] == [[]2, 21]",
    ])  # fmt: skip


def test_what_other_ranks_saw_stands_below_in_a_line_each(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(3)
def test_seven():
    assert dist.get_rank() == 7
""")
    lines = result.stdout.lines
    shown = {f"Rank {rank} failed as well: assert {rank} == 7" for rank in range(3)}
    assert len(shown & set(lines)) >= 1
    assert any("assert 0 == 7" in line for line in lines)


def test_a_hang_ends_with_the_report(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(2)
def test_returns_early():
    if dist.get_rank() == 0:
        dist.barrier()
""")
    result.stdout.fnmatch_lines(["rank 0 would never be done.", "*waiting in barrier at test_*"])
    result.stdout.fnmatch_lines(["Rank 0 waited for rank 1, which never arrived*"])


def test_a_hang_that_begins_after_a_computation_is_noticed_as_well(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(2)
def test_order():
    if dist.get_rank() == 0:
        time.sleep(1.5)
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(1))
""")
    result.stdout.fnmatch_lines(["ranks 0 and 1 would never be done."])
    result.stdout.fnmatch_lines(["Collective #1 is barrier * on rank 0, all_reduce * on rank 1*"])


def test_a_rank_that_only_computes_is_no_hang(outcome_of):
    outcome_of("""
@pytest.mark.ranks(2)
def test_slow_rank():
    if dist.get_rank() == 0:
        time.sleep(4)
    dist.barrier()
""").assert_outcomes(passed=1)


def test_a_rank_that_dies_is_named_with_its_signal(outcome_of):
    result = outcome_of("""
import os, signal
@pytest.mark.ranks(2)
def test_dies():
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
""")
    result.stdout.fnmatch_lines(["rank 1 failed: the process died of SIGKILL"])


def test_the_summary_names_the_reason_and_not_only_the_signal(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(2)
def test_shapes():
    tensor = torch.ones(4 + dist.get_rank())
    dist.all_gather([torch.empty_like(tensor)] * 2, tensor)

@pytest.mark.ranks(2)
def test_alone():
    if dist.get_rank() == 0:
        dist.barrier()
""")
    result.stdout.fnmatch_lines([
        "FAILED *test_shapes*died of SIGABRT. Gloo ended it, because collective #? is not *",
        "FAILED *test_alone*rank 0 would never be done. Rank 0 waited for rank 1, which never *",
    ])  # fmt: skip


def test_an_exception_without_words_says_at_least_where(outcome_of):
    result = outcome_of("""
def checked():
    raise AssertionError

@pytest.mark.ranks(2)
def test_it():
    checked()
""")
    result.stdout.fnmatch_lines(["FAILED *test_it*rank ? of 2: AssertionError, at test_*.py:10"])


def test_sizes_fixtures_classes_and_parameters_go_together(outcome_of):
    result = outcome_of(
        """
@pytest.fixture(scope="module")
def weights():
    return torch.arange(4.0)

@pytest.mark.ranks(1, 2)
class TestSum:
    @pytest.mark.parametrize("factor", [1, 3])
    def test_scaled(self, weights, factor, world_size, tmp_path):
        total = weights * factor
        dist.all_reduce(total)
        assert total.tolist() == (weights * factor * world_size).tolist()
        assert dist.get_world_size() == world_size

    @pytest.mark.ranks(3)
    def test_own_mark_counts(self, world_size):
        assert world_size == 3

def test_plain():
    assert not dist.is_initialized()
""",
        "-v",
    )
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["*::TestSum::test_scaled[[]*2-ranks* PASSED*"])


def test_output_of_each_rank_has_a_section_of_its_own(outcome_of):
    source = """
@pytest.mark.ranks(2)
def test_prints():
    print("hello from", dist.get_rank())
    dist.barrier()
    assert dist.get_rank() != 1
"""
    result = outcome_of(source)
    result.stdout.fnmatch_lines([
        "*Captured stdout of rank 0 call*", "hello from 0",
        "*Captured stdout of rank 1 call*", "hello from 1",
    ])  # fmt: skip
    result = outcome_of(source, "-s")
    result.stdout.fnmatch_lines(["*[[]rank 0] hello from 0", "[[]rank 1] hello from 1"])


def test_skips_and_expected_failures_are_what_they_are_without_ranks(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(2)
def test_skips():
    pytest.skip("not today")

@pytest.mark.ranks(2)
def test_xfails():
    pytest.xfail("known")

@pytest.mark.ranks(2)
@pytest.mark.xfail(raises=KeyError)
def test_raises():
    {}["a"]

@pytest.mark.ranks(2)
@pytest.mark.xfail(raises=KeyError)
def test_raises_otherwise():
    raise OSError("disk")
""")
    result.assert_outcomes(skipped=1, xfailed=2, failed=1)
    result.stdout.fnmatch_lines(["rank ? of 2: OSError: disk"])


def test_a_skip_on_some_ranks_is_a_failure(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(2)
def test_half():
    if dist.get_rank() == 1:
        pytest.skip("not here")
""")
    result.stdout.fnmatch_lines(["Rank 1 skipped the test (not here), but rank 0 did not*"])


def test_warnings_of_ranks_and_silent_mistakes_come_home(outcome_of):
    result = outcome_of("""
@pytest.mark.ranks(2)
def test_warns():
    warnings.warn("careful")

@pytest.mark.ranks(2)
def test_nobody_waits():
    dist.all_reduce(torch.ones(3), async_op=True)
    time.sleep(0.1)
""")
    result.assert_outcomes(passed=2, warnings=2)
    result.stdout.fnmatch_lines(["*UserWarning: careful"])
    result.stdout.fnmatch_lines(["*RanksWarning: launch: nobody has waited for all_reduce*"])


REFUSED = {
    "async": ("async def test_it(): pass", "ranks: test_it is async, and a rank has no event*"),
    "capsys": ("def test_it(capsys): pass", "ranks: capsys reads what pytest's own process*"),
    "subtests": ("def test_it(subtests): pass", "ranks: subtests keeps what happens in pytest's*"),
    "recwarn": ("def test_it(recwarn): pass", "ranks: recwarn keeps what * use pytest.warns."),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_rank_can_do_is_refused_with_a_sentence(outcome_of, name):
    source, sentence = REFUSED[name]
    result = outcome_of(f"@pytest.mark.ranks(2)\n{source}\n")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([sentence])


def test_a_unittest_and_a_fixture_without_the_mark_are_refused(outcome_of):
    result = outcome_of("""
import unittest
class TestOld(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_it(self):
        pass

def test_no_mark(trace):
    pass

def test_no_mark_either(world_size):
    pass
""")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["ranks: pytest runs this test as a TestCaseFunction*"])
    result.stdout.fnmatch_lines(["The fixture trace is for tests that run in ranks*"])


MARKS = {
    "()": "ranks: say how many ranks the test needs*",
    "(0)": "ranks: 0 is no number of ranks*",
    "('2')": "ranks: '2' is no number of ranks*",
    "(2, world=3)": "ranks: there is no option world. The options are backend, device*",
    "(3, nodes=2)": "ranks: 3 ranks cannot be laid out as 2 equal nodes.",
    "(2, timeout=-1)": "ranks: timeout=-1: write a number of seconds above 0.",
}


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_that_cannot_be_meant_is_refused(outcome_of, mark):
    result = outcome_of(f"@pytest.mark.ranks{mark}\ndef test_it(): pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([MARKS[mark]])


def test_trace_counts_calls_bytes_and_messages_and_can_be_replayed(outcome_of):
    outcome_of("""
@pytest.mark.ranks(4)
def test_bytes(trace, replay):
    dist.all_reduce(torch.ones(4))
    assert trace.kinds == ["all_reduce"]
    assert trace.calls[0].bytes == 16
    traffic = trace.traffic()
    assert traffic.sent_bytes == (24, 24, 24, 24)
    assert traffic.sent_messages == (6, 6, 6, 6)
    assert trace.kinds == ["all_reduce"]  # asking is no call of the test's
    slow = replay(latency_us=100, gbit_s=1)
    fast = replay(latency_us=10, gbit_s=1)
    assert max(fast.finish_us) < max(slow.finish_us)
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    assert [event.kind for event in trace.events] == ["all_reduce", "all_reduce", "wait"]
    assert trace.events[2].of == 1
""").assert_outcomes(passed=1)


LATE = """
SLEPT = []

@pytest.mark.ranks(3)
def test_late(late_ranks, monkeypatch):
    monkeypatch.setattr(time, "sleep", SLEPT.append)
    for _ in range(3):
        dist.barrier()
    print(f"slept {SLEPT}")
    assert dist.get_rank() == 9
"""


def test_late_ranks_come_late_alike_with_the_same_seed(outcome_of):
    def slept(*options: str) -> list[str]:
        result = outcome_of(LATE, *options)
        return [line for line in result.stdout.lines if line.startswith("slept [")]

    first, again, different = slept("--rank-seed=3"), slept("--rank-seed=3"), slept("--rank-seed=4")
    assert len(set(first)) == 3
    assert first == again
    assert not set(first) & set(different)


def test_late_ranks_are_as_late_as_they_say(outcome_of):
    told = """
    told_s = [delay_ms / 1000 for delay_ms in late_ranks.delays_ms(dist.get_rank(), calls=3)]
    assert SLEPT == told_s
"""
    test = LATE.replace("    assert dist.get_rank() == 9\n", told)
    outcome_of(test).assert_outcomes(passed=1)


def test_the_seed_of_late_ranks_is_shown_where_a_test_fails(outcome_of):
    result = outcome_of(LATE)
    result.stdout.fnmatch_lines(["The delays of this run come again with --rank-seed=*"])


NOBODY = """
class NoDebugger:
    def __init__(self, **options): pass
    def reset(self): pass
    def interaction(self, frame, traceback): pass
"""


def test_pdb_says_that_it_cannot_enter_a_rank(outcome_of, pytester):
    pytester.makepyfile(nobody=NOBODY)
    pytester.syspathinsert()
    source = "@pytest.mark.ranks(2)\ndef test_it(): assert dist.get_rank() == 7\n"
    result = outcome_of(source, "--pdb", "--pdbcls=nobody:NoDebugger")
    result.stdout.fnmatch_lines(["--pdb opens in pytest's own process*"])


def test_x_ends_the_run_after_the_first_failure(outcome_of):
    source = "@pytest.mark.ranks(2, 3, 4)\ndef test_it(): assert dist.get_rank() == 7\n"
    outcome_of(source, "-x").assert_outcomes(failed=1)


@pytest.mark.slow
def test_xdist_brings_the_ranks_view_home(pytester, monkeypatch):
    pytester.makepyfile(HEAD + "@pytest.mark.ranks(2, 3)\ndef test_it():\n"
        "    rank = dist.get_rank()\n    assert rank != 1\n")  # fmt: skip
    result = pytester.runpytest_subprocess("-n", "2", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["rank 1 of 2: assert 1 != 1", ">       assert rank != 1"])


def test_nothing_is_left_behind(outcome_of, nothing_left):
    outcome_of("""
@pytest.mark.ranks(2)
def test_passes(trace, late_ranks):
    dist.barrier()

@pytest.mark.ranks(2)
def test_fails():
    assert dist.get_rank() == 7

@pytest.mark.ranks(2)
def test_hangs():
    if dist.get_rank() == 0:
        dist.barrier()
""").assert_outcomes(passed=1, failed=2)


def test_pytest_starts_without_torch_and_the_library():
    program = (
        "import sys, course_testing.plugin; "
        "print([name for name in sys.modules if name in ('torch', 'IPython', 'course_utils')])"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.check_output(command, text=True) == "[]\n"
