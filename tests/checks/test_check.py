"""An answer against its specification: what is rejected and how, what is accepted, what is said."""

import gc
import math
import sys
import threading
import time
from collections import Counter

import answers
import pytest
import torch
import torch.distributed as dist
from deadline import long_enough

from course_checks import attempt
from course_checks.cases import CASES
from course_checks.outcome import CheckFailed
from course_utils import Network, check, progress

WRONG = {
    answers.alone: "Rank 0: element [0]: wanted",
    answers.constant: "1 rank, 5 numbers",
    answers.nothing: "wanted a tensor, got None",
    answers.a_list: "wanted a tensor, got list [",
    answers.double: "wanted dtype float32, got float64",
    answers.a_column: "wanted shape (1,), got (1, 1)",
    answers.on_another_device: "cannot be sent back",
    answers.a_lambda: "what it returns, a function, cannot be sent back",
    answers.right_for_two: "3 ranks, 1 number",
    answers.sums_a_strided_view: "every other one of 6 numbers",
    answers.crashes_on_rank_1: "Rank 1 failed: ZeroDivisionError",
    answers.is_killed: "SIGKILL",
    answers.leaves_the_group: "the process group is gone",
    answers.waits_for_ever: "rank 1: waiting in recv at answers.py, line",
    answers.turns_for_ever: "No rank waits for another: rank 1 only needed longer",
    answers.wrong_and_then_for_ever: "1 rank, 1 number",
    answers.does_not_wait: "was never waited for",
    answers.says_passed: "[rank 0] ✓ passed: says_passed",
    answers.by_another_name: "is to be solved without all_reduce",
    answers.by_the_lowest_name: "is to be solved without all_reduce",
    answers.from_the_callers_frames: "looks into frames or objects of others at answers.py",
    answers.from_anywhere_in_memory: "looks into frames or objects of others at answers.py",
}
RIGHT = (
    answers.right, answers.changes_its_input, answers.returns_a_view, answers.returns_a_parameter,
    answers.keeps_what_it_returns, answers.leaves_a_group_behind,
)  # fmt: skip


def summed(fn, **options):
    """An answer's outcome at the exercise of answers.py."""
    exercise = {"spec": answers.spec, "inputs": answers.inputs, "timeout": 60.0}
    return check(fn, **(exercise | options))


@pytest.mark.parametrize("fn", [answers.crashes_on_rank_1, answers.waits_for_ever])
def test_a_case_that_raises_or_hangs_shows_what_was_given_and_wanted(fn):
    outcome = summed(fn, timeout=4.0)
    assert all(row.given and row.wanted for row in outcome.rows)
    _headline, table, *_message = str(outcome).split("\n\n")
    head = table.splitlines()[0]
    assert head.split() == ["rank", "given", "wanted"]  # nothing was got
    assert outcome._repr_html_().count("<th") == 3


@pytest.mark.parametrize(("fn", "said"), WRONG.items(), ids=[fn.__name__ for fn in WRONG])
def test_a_wrong_answer_is_told_and_raises_nothing(fn, said):
    forbid = () if fn is answers.sums_a_strided_view else ("all_reduce",)
    ends = "for_ever" not in fn.__name__
    timeout_s = 60.0 if ends else 4.0
    if fn is answers.turns_for_ever:  # it gets all of its time: nothing else shows that it hangs
        timeout_s = 2.0
    outcome = summed(fn, forbid=forbid, timeout=timeout_s)
    assert outcome.state == "wrong"
    assert said in str(outcome)
    assert not outcome


def test_an_answer_that_spoils_its_record_does_not_seem_to_call_nothing():
    def spoils(tensor):
        dist.all_reduce(tensor)
        (own,) = (one for one in gc.get_objects() if type(one).__name__ == "Recorder")
        own.writer._shared[own.writer._desc_start : own.writer._desc_start + 8] = b"no row, "
        return tensor

    outcome = summed(spoils, forbid=("collectives",), world_sizes=(1,), cases=CASES[:1])
    assert "Rank 0 has spoilt the recording of what it calls" in str(outcome)


def calls_for(seconds, tensor):
    """The right answer, after calls that go on for so long, as rank 0's clock says."""
    began_s = time.monotonic()
    goes_on = torch.ones(1)
    while goes_on:
        threading.Event().wait(0.02)  # time.sleep is cut short where ranks come late
        goes_on[0] = time.monotonic() - began_s < seconds
        dist.broadcast(goes_on, 0)
    return answers.right(tensor)


@pytest.fixture
def quiet(monkeypatch):
    """A machine as quick as the one on which limits were chosen, whatever else runs on this one."""
    monkeypatch.setattr(attempt, "slowness", lambda *_: 1)


ONE = {"world_sizes": (2,), "cases": CASES[1:2]}


def test_who_still_calls_something_when_time_is_up_is_slow_and_gets_more(quiet):
    timeout_s = long_enough(2.0)
    in_each_of_three_runs = 0.4 * timeout_s
    assert summed(
        lambda tensor: calls_for(in_each_of_three_runs, tensor), **ONE, timeout=timeout_s
    ).require()


def test_who_calls_something_for_ever_is_wrong_after_more_time(quiet, monkeypatch):
    monkeypatch.setattr(attempt, "_MOST", 2)
    outcome = summed(lambda tensor: calls_for(math.inf, tensor), **ONE, timeout=2.0)
    assert outcome.state == "wrong"
    assert "not done after 4 s" in str(outcome)


@pytest.mark.parametrize("fn", [answers.waits_for_ever, answers.turns_for_ever])
def test_who_calls_nothing_any_more_gets_no_more_time(quiet, fn):
    outcome = summed(fn, **ONE, timeout=4.0)
    assert outcome.state == "wrong"
    assert "not done after 4 s" in str(outcome) or "would never be done" in str(outcome)


def computes_long(tensor):
    threading.Event().wait(2.0)  # without a call; time.sleep is cut short
    return answers.right(tensor)


def test_on_a_slow_machine_an_answer_has_so_many_times_its_time(monkeypatch):
    exercise = {"world_sizes": (1,), "cases": CASES[1:2], "timeout": 0.5}
    monkeypatch.setattr(attempt, "slowness", lambda *_: 1)
    assert summed(computes_long, **exercise).state == "wrong"
    monkeypatch.setattr(attempt, "slowness", lambda *_: 100)
    assert summed(computes_long, **exercise).require()


def test_a_machine_that_was_slow_when_an_answer_began_is_taken_for_slow(monkeypatch):
    measured = iter([100])
    monkeypatch.setattr(attempt, "slowness", lambda *_: next(measured, 1))
    exercise = {"world_sizes": (1,), "cases": CASES[1:2], "timeout": 0.5}
    assert summed(computes_long, **exercise).require()


def test_a_counter_is_as_good_as_a_dict_with_its_counts():
    wanted = {"spec": lambda words: [{"a": 2, "b": 1} for _ in words], "world_sizes": (1,)}
    assert check(Counter, inputs=lambda *_: "aba", **wanted)
    assert "item 'a': wanted 2, got 3" in str(check(Counter, inputs=lambda *_: "abaa", **wanted))


def test_a_wrong_answer_is_an_error_where_it_is_required_to_be_right():
    with pytest.raises(CheckFailed, match="✗ wrong: alone"):
        summed(answers.alone).require()


def test_a_stub_is_not_attempted_and_does_not_pass():
    outcome = summed(answers.stub)
    assert str(outcome) == "– not attempted: stub (about 6 lines)"
    with pytest.raises(CheckFailed):
        outcome.require()


def test_a_gap_in_one_rank_is_not_attempted_either():
    def half(tensor):
        if dist.get_rank() == 1:
            raise NotImplementedError
        return dist.recv(tensor, 1) if dist.get_world_size() > 1 else tensor

    assert summed(half).state == "not attempted"


def test_what_torch_has_not_implemented_is_a_wrong_answer():
    outcome = summed(lambda tensor: torch.empty(2, device="meta").numpy(force=True))
    assert outcome.state == "wrong"


def test_what_is_no_function_is_wrong_and_none_is_not_attempted():
    assert summed(3).state == "wrong"
    assert summed(None).state == "not attempted"


def test_an_answer_with_other_parameters_is_wrong():
    assert "takes 0 positional arguments but 1 was given" in str(summed(lambda: 1))


@pytest.mark.parametrize("fn", RIGHT, ids=lambda fn: fn.__name__)
def test_a_right_answer_passes(fn):
    sizes, told = ((3, 1, 2, 5), "1, 2, 3 and 5") if fn is answers.right else ((3, 1), "1 and 3")
    outcome = summed(fn, world_sizes=sizes)
    assert str(outcome) == f"✓ passed: {fn.__name__} ({told} ranks)"
    assert outcome.require() is outcome
    assert outcome


def test_the_smallest_failing_case_is_shown_rank_by_rank():
    lines = str(summed(answers.right_for_two)).splitlines()
    assert lines[0] == "✗ wrong: right_for_two (3 ranks, 1 number)"
    assert lines[2].split() == ["rank", "given", "wanted", "got"]
    given = [line.removeprefix("→").split() for line in lines[3:6]]
    assert [row[0] for row in given] == ["0", "1", "2"]
    assert [row[1] == row[3] for row in given] == [True] * 3
    assert lines[-1].endswith("It called nothing.")


def place(node, local_rank):
    return node


def place_in_a_class(*where):
    return where[0]


def judged_places(fn):
    def spec(nodes, local_ranks):
        return [10 * node + local for node, local in zip(nodes, local_ranks, strict=True)]

    return check(fn, spec=spec, inputs=lambda rank, size, case: (rank, 1), cases=["a place"])


def test_several_arguments_are_shown_with_their_names():
    outcome = judged_places(place)
    assert [row.given for row in outcome.rows] == ["node=0, local_rank=1"]
    assert [row.given for row in judged_places(place_in_a_class).rows] == ["0, 1"]
    failing = judged_places(lambda node, local: node / 0)
    assert [row.given for row in failing.rows] == ["node=0, local=1"]


def test_where_no_call_is_wanted_it_is_no_reproach_that_there_was_none():
    def its_place(node, local_rank):
        return 10 * node + (node == 0)

    outcome = judged_places(its_place)
    assert "2 ranks" in outcome.where
    assert outcome.message == "Rank 1: wanted 11, got 10."


def test_what_is_wrong_on_two_ranks_is_not_tried_on_more_where_it_might_hang(monkeypatch):
    tried = []

    def noted(name, watch, inputs, world_size, *arguments, **options):
        tried.append(world_size)
        return attempt.attempt(name, watch, inputs, world_size, *arguments, **options)

    monkeypatch.setattr(sys.modules["course_checks.check"], "attempt", noted)
    assert not summed(answers.alone, world_sizes=(1, 2, 3, 4))
    assert tried == [1, 2]
    tried.clear()
    assert summed(answers.right, world_sizes=(1, 2, 3))
    assert tried == [1, 2, 3]


def test_the_same_failure_is_told_in_the_same_words_again():
    first, second = summed(answers.alone), summed(answers.alone)
    assert str(first) == str(second)
    assert first._repr_html_() == second._repr_html_()


def test_html_is_escaped_and_has_a_row_per_rank():
    outcome = check(
        lambda tag: f"{tag}<b>", spec=lambda tags: tags, inputs=lambda *_: "<i>", world_sizes=(2,)
    )
    page = outcome._repr_html_()
    assert page.count("<tr") == 3
    assert "&lt;i&gt;&lt;b&gt;" in page
    assert "<i>" not in page


def test_what_is_printed_in_other_cases_is_not_shown_and_much_is_cut(capsys):
    text = str(summed(answers.prints_much))
    assert capsys.readouterr().out == ""
    assert text.count("[rank 1]") == 9
    assert text.endswith("[rank 1] ... and 12 more lines")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"spec": lambda tensors: tensors[:1]}, "one output for each of 2 ranks, got 1 outputs"),
        ({"spec": lambda tensors: sum(tensors).sum()}, "one output for each of 2 ranks"),
        ({"spec": lambda tensors: 1 / 0}, "spec failed on 2 ranks, 1 number: ZeroDivisionError"),
        ({"inputs": lambda rank, n, case: 1 / 0}, r"inputs\(\d, 2, 1 number\) failed: ZeroDiv"),
        ({"inputs": lambda *_: torch.tensor(time.monotonic_ns())}, "inputs may depend on"),
        ({"inputs": lambda rank, n, case: (case.tensor(),) * (rank + 1)}, "as many arguments"),
        ({"forbid": "all_reduce"}, "is never recorded"),
        ({"forbid": ("allreduce",)}, "'allreduce' is never recorded; there are: send, recv"),
        ({"budget": {"bytes": 3}}, "'bytes' is no budget; there are: collective_calls, sent_bytes"),
        ({"budget": {"finish_us": 3}}, "needs network="),
        ({"world_sizes": ()}, "at least one world size"),
        ({"cases": ()}, "at least one world size and one case"),
    ],
)
def test_an_exercise_that_cannot_be_meant_is_an_error_for_its_author(options, said):
    fn = answers.right if "arguments" not in said else lambda *own: 1
    with pytest.raises(ValueError, match=said):
        summed(fn, **({"world_sizes": (2,)} | options))


def test_of_an_answer_that_runs_on_one_rank_alone_nobody_says_on_how_many():
    def doubled(tensor):
        return 2 * tensor

    options = {"spec": lambda tensors: [2 * tensors[0]], "world_sizes": (1,)}
    assert str(summed(doubled, **options)) == "✓ passed: doubled"
    assert str(summed(answers.right, **options)).startswith("✗ wrong: right (1 number)")


def test_what_is_required_must_be_called_at_each_world_size_above_one():
    text = str(summed(answers.right, require=("send", "all_reduce")))
    assert text.startswith("✗ wrong: right (2 ranks, 1 number)")
    assert "It never calls all_reduce" in text
    assert summed(answers.right, require=("send", "recv"), forbid=("collectives",))


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ({"sent_messages": 1}, "Rank 0 sends 2 messages; 1 are enough. Its calls: 2 x at answers"),
        ({"sent_bytes": 39}, "(2 ranks, 300 numbers in double precision)"),
        ({"finish_us": 20.01}, "µs on the modelled network; 20.01 µs are enough"),
    ],
)
def test_a_budget_counts_what_one_rank_spends(budget, said):
    network = Network(latency_us=10, gbit_s=8)
    assert said in str(summed(answers.right, budget=budget, network=network))


def test_calls_of_collectives_are_told_before_the_time_that_they_take():
    def in_two_calls(tensor):
        dist.all_reduce(tensor.clone())
        tensor = tensor.contiguous()
        dist.all_reduce(tensor)
        return tensor

    budget = {"collective_calls": 1, "finish_us": 1}
    said = str(summed(in_two_calls, budget=budget, network=Network(latency_us=10, gbit_s=8)))
    assert "Rank 0 makes 2 collective calls; 1 would do. Its calls: 1 x at" in said


def test_a_budget_may_depend_on_world_size_and_case():
    def budget(world_size, case):
        size = case.tensor().nbytes
        return {"sent_messages": world_size - 1, "sent_bytes": size * (world_size - 1)}

    assert summed(answers.right, budget=budget)


def test_a_training_is_checked_like_a_collective():
    def inputs(rank, world_size, case):
        features = torch.randn(case, 2)
        return features, features.sum(1) + 0.1 * torch.randn(case)

    def train(features, targets, count=1, reduce=dist.all_reduce):
        weights = torch.zeros(2, requires_grad=True)
        for _ in range(3):
            error = ((features @ weights - targets) ** 2).sum() / count
            (gradient,) = torch.autograd.grad(error, weights)
            reduce(gradient)
            weights = (weights - 0.1 * gradient).detach().requires_grad_()
        return {"weights": weights.detach()}

    def spec(features, targets):
        whole = torch.cat(features), torch.cat(targets)
        return [train(*whole, len(whole[1]), reduce=lambda _: None) for _ in features]

    def answer(features, targets):
        return train(features, targets, len(targets) * dist.get_world_size())

    def local(features, targets):
        return train(features, targets, len(targets), reduce=lambda _: None)

    exercise = {"spec": spec, "inputs": inputs, "cases": (4, 7)}
    assert check(answer, **exercise, rtol=1e-4)
    assert "item 'weights': element [0]" in str(check(local, **exercise, rtol=1e-4))


def test_an_answer_may_make_the_group_itself():
    def join(number):
        dist.init_process_group("gloo")
        total = torch.tensor(number)
        dist.all_reduce(total)
        dist.destroy_process_group()
        return int(total)

    def inputs(rank, world_size, case):
        return int(torch.randint(100, ()))

    exercise = {"inputs": inputs, "cases": ("a", "b"), "backend": None, "nodes": 2}
    assert check(join, spec=lambda numbers: [sum(numbers)] * len(numbers), **exercise)
    assert not check(join, spec=lambda numbers: numbers, **exercise)
    assert not check(lambda n: n, spec=lambda own: [sum(own)] * len(own), **exercise)


def test_the_overview_shows_each_answer_as_it_was_last():
    summed(answers.alone)
    summed(answers.stub)
    lines = repr(progress()).splitlines()
    assert "✗ alone: wrong" in lines
    assert "– stub: not attempted" in lines
    assert " exercises pass" in lines[0]
    assert progress()._repr_html_().count("<tr>") == len(lines) - 1


def test_the_overview_counts_exercises_that_no_check_has_tried():
    summed(answers.right)
    before = len(progress())
    first, *lines = repr(progress("right", "of_another_cell")).splitlines()
    assert first.endswith(f" of {before + 1} exercises pass")
    assert lines[:2] == ["✓ right: passed", "– of_another_cell: not checked yet"]


def test_a_check_leaves_nothing_behind(nothing_left):
    assert summed(answers.right)
    assert not summed(answers.crashes_on_rank_1)


def test_the_random_numbers_of_the_kernel_go_on_as_if_nothing_had_been_checked():
    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    summed(answers.right)
    assert torch.rand(2).equal(wanted)


def test_the_cases_have_odd_empty_whole_double_and_strided_tensors():
    made = [case.tensor() for case in CASES]
    assert [case.number for case in CASES] == list(range(len(CASES)))
    assert {0, 1, 5} <= {tensor.numel() for tensor in made}
    assert {torch.int64, torch.float32, torch.float64} == {tensor.dtype for tensor in made}
    assert [tensor.is_contiguous() for tensor in made].count(False) == 1
