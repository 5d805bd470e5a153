"""What a check notices besides results: side channels, what is left, luck, work for all, calls."""

import logging
import signal
import traceback
from types import FunctionType

import answers
import labs
import pytest
import sly
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import course_utils
from course_checks.cases import CASES
from course_utils import Network

OFTEN = 2  # times that what chance might let pass is tried in each run, with ten cases each


def check(fn, **options):
    """Judged in this process, but for the odd ones: that a judge has its own, test_check shows."""
    return (course_utils.check if fn in sly.ODD else labs.check_here)(fn, **options)


def summed(fn, **options):
    """An answer's outcome at the exercise of answers.py."""
    exercise = {"spec": answers.spec, "inputs": answers.inputs, "timeout": 60.0}
    return check(fn, **(exercise | {"cases": CASES[:5]} | options))


@pytest.mark.parametrize(
    ("fn", "said"), sly.CHANNELS.items(), ids=lambda x: getattr(x, "__name__", "")
)
def test_a_side_channel_is_told_as_what_it_is(fn, said):
    assert f" {said}" in str(summed(fn, world_sizes=(2,)))


def test_a_side_channel_may_be_allowed():
    fn, said = next(iter(sly.CHANNELS.items()))
    assert said.startswith("uses a store")
    assert summed(fn, allow=("store",))


def test_a_specification_is_not_there_for_an_answer():
    def spec(tensors):
        return [sum(tensors) for _ in tensors]

    outcome = summed(lambda tensor: spec([tensor])[0], spec=spec, world_sizes=(1,))
    assert "a specification says what is wanted; an answer does not call it" in str(outcome)


def test_nor_is_a_copy_of_its_code(monkeypatch):
    def spec(tensors):
        return [sum(tensors) for _ in tensors]

    def copied(tensor):
        return globals()["copy_of_it"]([tensor])[0]

    copy_of_it = FunctionType(spec.__code__, {"__builtins__": __builtins__})
    monkeypatch.setitem(globals(), "copy_of_it", copy_of_it)
    outcome = summed(copied, spec=spec, world_sizes=(1,))
    assert "a specification says what is wanted; an answer does not call it" in str(outcome)


def logs():
    logging.getLogger("an answer").warning("here")


@pytest.mark.parametrize("does", [traceback.print_stack, logs], ids=["a stack", "a log"])
def test_who_prints_is_no_spy(does):
    assert summed(sly.beside(does), world_sizes=(2,))


def test_a_handler_of_signals_hears_which_one_came_and_sees_no_frame():
    def hears(tensor):
        heard = []
        before = signal.signal(signal.SIGUSR1, lambda *of: heard.append(of))
        signal.raise_signal(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, before)
        assert heard == [(signal.SIGUSR1, None)]
        return answers.right(tensor)

    assert summed(hears, world_sizes=(2,))


@pytest.mark.parametrize(("fn", "said"), sly.LEFT.items(), ids=lambda x: getattr(x, "__name__", ""))
def test_what_is_left_behind_is_told(fn, said):
    optional = ("random numbers",)
    assert f"leaves something behind: {said}." in str(summed(fn, keep=optional, world_sizes=(2,)))
    assert bool(summed(fn, world_sizes=(2,))) == ("random numbers" in said)


def test_a_group_that_the_answer_made_is_to_be_destroyed():
    def join(number):
        dist.init_process_group("gloo")
        return number

    exercise = {"inputs": lambda *_: 1, "cases": ("a",), "backend": None, "world_sizes": (2,)}
    assert "process group still exists" in str(check(join, spec=lambda own: own, **exercise))


@pytest.mark.slow
@pytest.mark.parametrize("fn", sly.LUCK, ids=lambda fn: fn.__name__)
def test_luck_never_passes(fn):
    outcomes = [summed(fn, world_sizes=(2, 3)) for _ in range(OFTEN)]
    assert not any(outcomes)


def test_whoever_comes_first_is_not_always_the_same_rank():
    def inputs(rank, world_size, case):
        return torch.randint(1, 10, (5,)).float()

    def spec(tensors):
        return [tensors] + [[None] * len(tensors)] * (len(tensors) - 1)

    def answer(tensor):
        every = sly.takes_whoever_comes(tensor)
        return every if dist.get_rank() == 0 else [None] * len(every)

    exercise = {"spec": spec, "inputs": inputs, "world_sizes": (3,), "cases": ("a",)}
    assert not any(check(answer, **exercise) for _ in range(OFTEN))


@pytest.mark.slow
@pytest.mark.parametrize("fn", sly.HONEST, ids=lambda fn: fn.__name__)
def test_other_styles_pass_however_often(fn):
    assert summed(fn).require()
    for _ in range(OFTEN - 1):
        assert summed(fn, world_sizes=(3,)).require()


def test_workers_of_a_loader_pass():
    assert summed(sly.loads_with_workers, cases=CASES[:1]).require()


@pytest.mark.parametrize("fn", sly.ODD, ids=lambda fn: fn.__name__)
def test_whatever_an_answer_does_check_tells_it_and_raises_nothing(fn):
    assert summed(fn, world_sizes=(2,), timeout=4.0).state == "wrong"


def training(weights, inputs, targets):
    """One step; what the ranks have together is the whole batch."""
    loss = ((inputs @ weights - targets) ** 2).mean()
    (gradient,) = torch.autograd.grad(loss, weights)
    return weights - 0.1 * gradient


def shares(rank, world_size, case):
    start = torch.ones(6, 2, dtype=torch.float64).requires_grad_()
    drawn = torch.randn(8, 8, dtype=torch.float64)
    return start, drawn[:, :6], drawn[:, 6:]


def whole(weights, inputs, targets):
    return [training(weights[0], torch.cat(inputs), torch.cat(targets)).detach()] * len(weights)


def everybodys(tensor):
    every = [torch.empty(8, tensor.shape[1]).double() for _ in range(dist.get_world_size())]
    dist.all_gather(every, tensor.contiguous())
    return torch.cat(every)


def gathers_and_trains(weights, inputs, targets):
    return training(weights, everybodys(inputs), everybodys(targets)).detach()


def trains_in_a_module(weights, inputs, targets):
    model = torch.nn.Linear(6, 2, bias=False).double()
    model.weight.data = weights.T.detach().clone()
    ((model(everybodys(inputs)) - everybodys(targets)) ** 2).mean().backward()
    return (weights - 0.1 * model.weight.grad.T).detach()


def trains_past_ddp(weights, inputs, targets):
    model = torch.nn.Linear(6, 2, bias=False).double()
    model.weight.data = weights.T.detach().clone()
    inner = DistributedDataParallel(model).module
    ((inner(everybodys(inputs)) - everybodys(targets)) ** 2).mean().backward()
    return (weights - 0.1 * model.weight.grad.T).detach()


def in_pieces(weights, inputs, targets):
    inputs, targets, n = everybodys(inputs), everybodys(targets), dist.get_world_size()
    steps = [
        training(weights, *own)
        for own in zip(inputs.chunk(2 * n), targets.chunk(2 * n), strict=True)
    ]
    return sum(steps).detach() / len(steps)


def one_rank_for_all(weights, inputs, targets):
    inputs, targets = everybodys(inputs), everybodys(targets)
    after = weights.detach().clone()
    if dist.get_rank() == 0:
        after = training(weights, inputs, targets).detach()
    dist.broadcast(after, 0)
    return after


def adds_products_up(weights, inputs, targets):
    inputs, targets = everybodys(inputs), everybodys(targets)
    outputs = torch.zeros_like(targets)
    for x, row in zip(inputs.T, weights, strict=True):
        outputs = torch.addcmul(outputs, x[:, None].expand_as(outputs), row.expand_as(outputs))
    ((outputs - targets) ** 2).mean().backward()
    return (weights - 0.1 * weights.grad).detach()


def divides_instead(weights, inputs, targets):
    inputs, targets = everybodys(inputs), everybodys(targets)
    outputs = (inputs[:, :, None] / (1 / weights)).sum(dim=1)
    ((outputs - targets) ** 2).mean().backward()
    return (weights - 0.1 * weights.grad).detach()


def shares_the_work(weights, inputs, targets):
    after = training(weights, inputs, targets).detach()
    dist.all_reduce(after)
    return after / dist.get_world_size()


def shares_it_in_a_wrapper(weights, inputs, targets):
    model = torch.nn.Linear(6, 2, bias=False).double()
    model.weight.data = weights.T.detach().clone()
    model = DistributedDataParallel(model)
    ((model(inputs) - targets) ** 2).mean().backward()
    return (weights - 0.1 * model.module.weight.grad.T).detach()


ALL_OF_IT = (
    gathers_and_trains, trains_in_a_module, trains_past_ddp, in_pieces, one_rank_for_all,
    adds_products_up,
)  # fmt: skip
STEP = {"spec": whole, "inputs": shares, "cases": ("a step",), "rtol": 1e-6}


@pytest.mark.parametrize("fn", ALL_OF_IT, ids=lambda fn: fn.__name__)
def test_a_rank_that_does_everybodys_work_is_told(fn):
    assert check(fn, **STEP)
    assert "Rank 0 computes 100% of what one process" in str(check(fn, **STEP, work=1.2))


def test_a_division_is_a_product():
    assert "of what one process computes that does all the work" in str(
        check(divides_instead, **STEP, work=1.2)
    )


@pytest.mark.parametrize("fn", [shares_the_work, shares_it_in_a_wrapper], ids=["by hand", "ddp"])
def test_a_share_of_the_work_passes(fn):
    assert check(fn, **STEP, work=1.2).require()
    assert check(fn, **STEP, work=lambda world_size, case: 1.2, world_sizes=(2,)).require()
    assert not check(fn, **STEP, work=0.5, world_sizes=(2,))


def with_call(call):
    def answer(tensor):
        call(tensor)
        return answers.right(tensor)

    return answer


FEIGNED = {
    "nothing in it": (lambda t: dist.all_reduce(t.new_empty(0)), "It never calls all_reduce with"),
    "not always": (
        lambda t: t.numel() != 5 or dist.all_reduce(t.clone()), "It never calls all_reduce:"
    ),
    "not everybody": (
        lambda t: [dist.all_reduce(t.clone(), group=group)
                   for group in [dist.new_group([0, 1])] if dist.get_rank() < 2],
        "Rank 2 never calls all_reduce:",
    ),
    "alone": (
        lambda t: [dist.all_reduce(t.clone(), group=group)
                   for r, group in [(r, dist.new_group([r])) for r in range(dist.get_world_size())]
                   if r == dist.get_rank()],
        "It never calls all_reduce with",
    ),
    "another": (lambda t: dist.barrier(), "It never calls all_reduce:"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "said"), FEIGNED.values(), ids=FEIGNED)
def test_a_required_call_is_to_be_made_in_earnest(call, said):
    assert said in str(summed(with_call(call), require=("all_reduce",)))


def test_a_required_call_may_be_empty_where_all_is_empty():
    answer = with_call(lambda tensor: dist.all_reduce(tensor.contiguous()))
    assert not summed(answer, require=("all_reduce",), cases=CASES[5:6]).message
    answer = with_call(lambda tensor: dist.all_reduce(tensor.clone()))
    assert summed(answer, require=("all_reduce", "send"), cases=CASES[:6]).require()


def test_a_barrier_is_no_message_but_takes_its_time():
    def with_barriers(tensor):
        dist.barrier()
        return answers.right(tensor)

    budget = {"sent_messages": 1, "finish_us": 1e6}
    options = {"world_sizes": (2,), "network": Network(latency_us=10, gbit_s=80)}
    assert summed(with_barriers, budget=budget, **options).require()
    said = str(summed(with_barriers, budget=budget | {"finish_us": 10.5}, **options))
    assert "is done after" in said


@pytest.mark.parametrize("option", ["allow", "keep"])
def test_a_word_that_is_not_known_is_an_error_for_its_author(option):
    with pytest.raises(ValueError, match="'nothing' is nothing to"):
        summed(answers.right, **{option: ("nothing",)})


def test_threads_replay_like_what_they_stand_for():
    budget = {"finish_us": 2 * 10.5, "sent_messages": 2}
    how = {"budget": budget, "network": Network(latency_us=10, gbit_s=100), "world_sizes": (3,)}
    for fn in (sly.sends_in_threads, sly.in_one_batch):
        assert summed(fn, **how).require()


def test_a_receive_from_anybody_has_a_sender_where_work_is_counted():
    def everybody_to_rank_0(own):
        if dist.get_rank():
            return dist.send(own, 0)
        total, box = own.clone(), torch.empty_like(own)
        for _ in range(dist.get_world_size() - 1):
            dist.recv(box)  # whose it is does not matter for a sum
            total += box
        return total

    def spec(owns):
        return [sum(owns), *[None] * (len(owns) - 1)]

    options = {"inputs": lambda *_: torch.randn(3), "cases": ("a",), "work": 50, "atol": 1e-6}
    assert check(everybody_to_rank_0, spec=spec, **options)
