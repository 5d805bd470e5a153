"""What is said of a wrong answer: the words that lead a learner on."""

import re
import sys
import threading
import time

import answers
import pytest
import torch
import torch.distributed as dist
from IPython.core.history import HistoryManager
from IPython.core.interactiveshell import InteractiveShell

from course_checks.cases import CASES
from course_utils import check
from course_utils.launcher.worker_handle import WorkerHandle

CASE = {"cases": CASES[1:2], "world_sizes": (2,), "timeout": 60.0}


def told(fn, **options):
    exercise = {"spec": answers.spec, "inputs": answers.inputs} | CASE
    outcome = check(fn, **exercise | options)
    assert outcome.state == "wrong"
    return str(outcome)


def forgets_to_return(tensor):
    answers.right(tensor)


def returns_on_rank_0(tensor):
    total = answers.right(tensor)
    if dist.get_rank() == 0:
        return total


def returns_more(tensor):
    return 3, answers.right(tensor)


def waits_for_its_rank(tensor):
    while dist.get_rank() == 1:
        pass


def receives_only(tensor):
    dist.recv(tensor, tag=3)


def both_receive(tensor):
    dist.recv(tensor, 1 - dist.get_rank())


def one_returns_at_once(tensor):
    return tensor if dist.get_rank() == 0 else answers.right(tensor)


def prints_for_long(tensor):
    for _ in range(12_000):
        print("x" * 50)
    return tensor


def calls_itself(tensor):
    return calls_itself(tensor)


def right_at_first(tensor, known=[]):  # noqa: B006
    known.append(answers.right(tensor))
    return known[0]


def test_a_return_that_is_missing_is_named():
    missing = "Does every way through your function come to a `return`?"
    text = told(forgets_to_return)
    assert text.endswith(f"Rank 0: wanted a tensor, got None. {missing}")  # its calls are right
    assert f"Rank 1: wanted a tensor, got None. {missing}" in told(returns_on_rank_0)
    assert missing not in told(answers.alone)


def test_who_returns_too_much_is_told_so():
    assert "It returns too much: item 1 alone is what is wanted." in told(returns_more)
    only_root = {"spec": lambda tensors: [sum(tensors), None]}
    assert "Rank 1: wanted None, got a" not in told(answers.alone, **only_root)
    assert "Where None is wanted, nothing is to be returned." in told(answers.right, **only_root)


def summed_up(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    return total


MEAN = {"spec": lambda tensors: [sum(tensors) / len(tensors)] * len(tensors)}
MEAN |= {"inputs": lambda rank, *_: torch.randn(3), "cases": ("random numbers",)}


@pytest.mark.parametrize(
    ("answer", "size", "factor"),
    [
        (summed_up, 2, "2 times"),
        (lambda tensor: summed_up(tensor) / 2, 3, "3/2 times"),
        (lambda tensor: summed_up(tensor) / 9, 3, "1/3 of"),
        (lambda tensor: summed_up(tensor) / 4, 2, "1/2 of"),
    ],
)
def test_results_that_are_a_factor_off_are_told_so_and_calls_are_not_told(answer, size, factor):
    text = told(answer, **MEAN | {"world_sizes": (size,)})
    assert f"What each rank got is {factor} what is wanted. Rank 0: element [0]: wanted" in text
    assert "it called" not in text


@pytest.mark.parametrize(
    "answer",
    [
        lambda tensor: (
            summed_up(tensor) * (dist.get_rank() + 1)
        ),  # each rank has a factor of its own
        lambda tensor: summed_up(tensor).abs(),
        lambda tensor: summed_up(tensor) / 14,  # nobody divides by such a number
        lambda tensor: summed_up(tensor) * float("nan"),
    ],
)
def test_of_other_wrong_results_no_factor_is_told_and_calls_are_told(answer):
    text = told(answer, **MEAN)
    assert "What each rank got" not in text
    assert "For you to compare: it called" in text


def test_who_prints_too_much_is_told_so():
    assert "[rank 0] (more than a check keeps: print less)" in told(prints_for_long)


def test_numbers_that_look_alike_are_shown_with_all_their_digits():
    slightly = {"spec": lambda tensors: [3.13767] * 2}
    assert "wanted 3.13767, got 3.1376749" in told(lambda tensor: 3.1376749, **slightly)


def test_of_long_dicts_that_begin_alike_the_table_shows_the_item_that_differs():
    def spec(tensors):
        return [{"long": torch.arange(9.0) / 7, "said": "gAgA"}] * 2

    def answer(tensor):
        return {"long": torch.arange(9.0) / 7, "said": "ggAA"[dist.get_rank() :] + "gA"}

    text = told(answer, spec=spec)
    assert "{'said': 'gAgA'}  {'said': 'ggAAgA'}" in text
    assert "{'said': 'gAgA'}  {'said': 'gAAgA'}" in text
    assert "{'long'" in told(lambda tensor: {"long": torch.ones(9), "said": ""}, spec=spec)


def test_a_race_is_named_as_possible():
    text = told(right_at_first)
    assert "wrong with numbers drawn a moment ago" in text
    assert "a race, such as a tensor that is used before wait()" in text


def test_an_endless_loop_does_not_wait_and_no_option_is_recommended_that_a_learner_lacks():
    text = told(waits_for_its_rank, timeout=2.0)
    assert "waiting in get_rank" not in text
    assert "rank 1: running at test_words.py, line" in text
    limit = r"Rank 1 was not done after \d+ s, in which all 3 runs on 2 ranks are to be done\."
    assert re.search(limit, text)  # 2 s, or as many times more as this machine is slow
    assert "Look for an endless loop, or for work that is done far more often" in text
    assert "timeout=" not in text
    assert "timeout=" not in told(receives_only, **{"timeout": 2.0})


def test_endless_recursion_is_shortened():
    text = told(calls_itself)
    assert "RecursionError: maximum recursion depth exceeded" in text
    assert text.count("return calls_itself(tensor)") == 2
    assert "a function calls itself, and nothing ends that" in text


@pytest.fixture
def cell(monkeypatch):
    """Runs the text of a cell, as a notebook does."""
    monkeypatch.setattr(HistoryManager, "enabled", False)
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    shell.user_ns |= {"check": check, "CASE": {"world_sizes": (1,), "cases": (3,)}}

    def run(text):
        shell.run_cell(text, store_history=True)
        return str(shell.user_ns.get("outcome"))

    return run


FIRST = "def double(n):\n    return 2 * n"
CHECK = "outcome = check(double, spec=lambda own: [6], inputs=lambda *_: 3, **CASE)"


@pytest.mark.parametrize(
    "edited",
    [
        "def double(n):\n    return 2 *",
        "dfe double(n):\n    return n",
        "1 / 0\ndef double(n):\n    return n",
    ],
)
def test_a_cell_that_fails_does_not_leave_the_old_answer_to_be_judged(cell, edited, capsys):
    cell(FIRST)
    assert cell(CHECK).startswith("✓ passed: double")
    cell(edited)
    said = cell(CHECK)
    assert said.startswith("✗ wrong: double")
    assert "Cell [3] should have defined double and failed" in said
    assert "still that of cell [1]" in said
    cell(FIRST)
    assert cell(CHECK).startswith("✓ passed: double")


def test_what_other_cells_do_does_not_keep_an_answer_from_being_judged(cell, capsys):
    wrapped = "import functools\ndef wrap(f):\n    return functools.wraps(f)(lambda n: f(n))"
    cell(f"{wrapped}\n{FIRST}")
    for other in (
        "double(1 / 0)",
        "def double_spec(n): pass",
        "dbl = double\nx = (",
        "%time double(3)",
    ):
        cell(other)
        assert cell(CHECK).startswith("✓ passed: double")
    assert cell(CHECK.replace("double,", "wrap(double),")).startswith("✓ passed: double")


@pytest.mark.parametrize(
    ("fn", "who"), [(both_receive, "Ranks 0 and 1"), (one_returns_at_once, "Rank 1")]
)
def test_a_hang_that_is_proven_is_told_long_before_time_is_up(fn, who):
    text = told(fn, timeout=300.0)  # so that nothing else can end it
    assert f"{who} would never be done." in text
    assert "waiting in" in text


def test_a_rank_that_is_slow_to_say_where_it_is_is_waited_for(monkeypatch):
    looked, dump = {}, WorkerHandle.read_stack

    def dump_later(member):
        since = looked.setdefault(member.rank, time.monotonic())
        return dump(member) if time.monotonic() > since + 0.5 else ""

    monkeypatch.setattr(WorkerHandle, "read_stack", dump_later)
    assert "Ranks 0 and 1 would never be done." in told(both_receive, timeout=20.0)


def comes_late(tensor):
    if dist.get_rank() == 0:
        threading.Event().wait(1.5)
    return answers.right(tensor)


def test_who_only_comes_late_is_waited_for():
    assert check(comes_late, spec=answers.spec, inputs=answers.inputs, **CASE)


def test_many_calls_are_counted_by_kind():
    def many(tensor):
        for _ in range(7):
            dist.all_reduce(tensor.clone())
        dist.barrier()
        return tensor

    assert "For you to compare: it called all_reduce 7 times, barrier once." in told(many)
