"""Wrong answers to lab 08, and for each exercise other right ones.

To each broken program there is the program as it was, rightly named; a right repair, wrongly named
in the way that is nearest; and repairs that hide what is wrong: the collective dropped, the
exception swallowed, a barrier or a sleep added, everybody made to leave.
"""

import functools
import json
import math
import pickle
import threading
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import labs
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

SLUG = "08_it_hangs_lies_or_dies"
MAX, MIN = dist.ReduceOp.MAX, dist.ReduceOp.MIN
# Rank and line of each program.
NAMES = {
    "best": (1, "best = candidates.max()"),
    "clip": (2, "dist.reduce(total, dst=0)"),
    "with_border": (1, "dist.send(edge, dst=right)"),
    "careful_step": (1, "loss.backward()"),
}


def found(exercise: str, rank: int, line: str) -> Callable:
    """As the lab's own, which knows what happened when the test ran its cells."""

    def above(repair):
        @functools.wraps(repair)
        def answer(*arguments):
            lab, number = labs.RAN[SLUG], [*NAMES].index(exercise) + 1
            named_so = lab["found"](lab[f"run_{number}"], rank, line)(repair)
            return lab["and_named"](named_so)(*arguments)

        return answer

    return above


def named(exercise: str, **otherwise: Any) -> Callable:
    """Above a repair: the right names of this exercise, or one of them otherwise."""
    words = dict(zip(("rank", "line"), NAMES[exercise], strict=True))
    return found(exercise, **(words | otherwise))


def as_it_was(exercise: str) -> Callable:
    """The broken program, rightly named."""

    def as_it_was(*arguments):
        return labs.RAN[SLUG][f"{exercise}_broken"](*arguments)

    return named(exercise)(as_it_was)


def misnamed(exercise: str, repair: Callable, **otherwise: Any) -> list[Callable]:
    """A right repair under wrong names, one at a time."""
    wrong = [named(exercise, **{word: value})(repair) for word, value in otherwise.items()]
    for word, answer in zip(otherwise, wrong, strict=True):
        answer.__name__ = f"another_{word}"
    return wrong


def unnamed(exercise: str, repair: Callable) -> list[Callable]:
    """A right repair that is not named, but says so, or whose names are read off the run."""

    def says_that_it_is_named(*arguments):
        return "named rightly", repair(*arguments)

    def named_by_what_the_run_holds(*arguments):
        lab, number = labs.RAN[SLUG], [*NAMES].index(exercise) + 1
        run = lab[f"run_{number}"]
        return lab["found"](run, *sorted(run.names)[:2])(repair)(*arguments)

    return [says_that_it_is_named, named_by_what_the_run_holds]


def gathered(mine: Any) -> list[Any]:
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def lowest_for_nothing(log_probs, keep):
    best = torch.where(keep, log_probs, -torch.inf).max()
    dist.all_reduce(best, op=MAX)
    return best.item()


with_its_indentation = named("best", line="    best = candidates.max()")(lowest_for_nothing)


@named("best")
def zero_for_nothing(log_probs, keep):
    best = log_probs[keep].max() if keep.any() else log_probs.new_zeros(())
    dist.all_reduce(best, op=MAX)
    return best.item()


@named("best")
def left_by_whom_has_nothing(log_probs, keep):
    if not keep.any():
        return None
    return lowest_for_nothing(log_probs, keep)


@named("best")
def the_exception_swallowed(log_probs, keep):
    best = torch.tensor(-torch.inf, dtype=torch.float64)
    try:
        best = log_probs[keep].max()
        dist.all_reduce(best, op=MAX)
    except RuntimeError:
        pass
    return best.item()


@named("best")
def without_the_filter(log_probs, keep):
    return lowest_for_nothing(log_probs, torch.ones_like(keep))


@named("best")
def everybodys_own(log_probs, keep):
    return torch.where(keep, log_probs, -torch.inf).max().item()


@named("best")
def by_sending_objects(log_probs, keep):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, log_probs[keep].tolist())
    return max(max(own, default=-math.inf) for own in every)


def _highest_or(placeholder):
    @named("best")
    def low_for_nothing(log_probs, keep):
        found = log_probs[keep].max() if keep.any() else placeholder(log_probs)
        dist.all_reduce(found, op=MAX)
        return found.item()

    return low_for_nothing


@named("best")
def others_made_low(log_probs, keep):
    found = (log_probs * keep - 1000 * ~keep).max()
    dist.all_reduce(found, op=MAX)
    return found.item()


@named("best")
def everything_is_sent(log_probs, keep):
    return max(
        own[kept].max(initial=-1e9) for own, kept in gathered((log_probs.numpy(), keep.numpy()))
    )


@named("best")
def by_turning_the_sign(log_probs, keep):
    lowest = torch.where(keep, -log_probs, torch.inf).min().reshape(1)
    dist.all_reduce(lowest, op=MIN, async_op=True).wait()
    return -lowest[0]


def _shortened(part, limit, norm):
    return part * (limit / norm if norm > limit else 1)


def _square(part):
    return part.square().sum()


def _added_up(part):
    total = _square(part)
    dist.all_reduce(total)
    return total


def added_up_everywhere(part, limit):
    return _shortened(part, limit, _added_up(part).sqrt())


@named("clip")
def each_by_its_own_norm(part, limit):
    return _shortened(part, limit, part.norm())


@named("clip")
def reduced_at_itself(part, limit):
    total = _square(part)
    dist.reduce(total, dst=dist.get_rank())
    return _shortened(part, limit, total.sqrt())


@named("clip")
def reduced_then_waited_for(part, limit):
    total = _square(part)
    dist.reduce(total, dst=0)
    dist.barrier()
    return _shortened(part, limit, total.sqrt())


@named("clip")
def reduced_then_added_up(part, limit):
    total = _square(part)
    dist.reduce(total, dst=0)
    dist.all_reduce(total)
    return _shortened(part, limit, total.sqrt())


@named("clip")
def rank_0s_own_broadcast(part, limit):
    total = _square(part)
    dist.broadcast(total, src=0)
    return _shortened(part, limit, total.sqrt())


@named("clip")
def sum_of_the_norms(part, limit):
    norm = part.norm()
    dist.all_reduce(norm)
    return _shortened(part, limit, norm)


@named("clip")
def squared_in_place(part, limit):
    total = part.square_().sum()
    dist.all_reduce(total)
    return _shortened(part, limit, total.sqrt())


@named("clip")
def short_ones_made_long(part, limit):
    return part * (limit / _added_up(part).sqrt().clamp(min=1e-12))


@named("clip")
def divided_by_zero(part, limit):
    return part / _added_up(part).sqrt() * min(limit, _added_up(part).sqrt())


@named("clip")
def zeros_left_alone(part, limit):
    total = _square(part)
    if len(part):
        dist.all_reduce(total)
    return _shortened(part, limit, total.sqrt())


@named("clip")
def by_the_square(part, limit):
    return _shortened(part, limit, _added_up(part))


@named("clip")
def parts_are_sent(part, limit):
    return _shortened(part, limit, torch.cat(gathered(part)).norm())


@named("clip")
def to_each_of_four_in_turn(part, limit):
    total = _square(part)
    own = total
    for root in range(min(4, dist.get_world_size())):
        sums = total.clone()
        dist.reduce(sums, dst=root)
        own = sums if root == dist.get_rank() else own
    return _shortened(part, limit, own.sqrt())


@named("clip")
def reduced_then_broadcast(part, limit):
    total = _square(part)
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return _shortened(part, limit, total.sqrt())


@named("clip")
def norms_as_objects(part, limit):
    return _shortened(part, limit, math.hypot(*gathered(float(part.norm()))))


@named("clip")
def in_place_at_last(part, limit):
    every = [torch.empty(1, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, part.norm().reshape(1))
    part *= min(1.0, limit / max(torch.cat(every).norm().item(), 1e-300))
    return part


def _ring(strip):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return (rank + 1) % world_size, (rank - 1) % world_size, strip[-1:], torch.empty(1)


def begun_then_waited_for(strip):
    right, left, edge, border = _ring(strip)
    sending = dist.isend(edge, dst=right)
    dist.recv(border, src=left)
    sending.wait()
    return torch.cat([border, strip])


@named("with_border")
def all_receive_first(strip):
    right, left, edge, border = _ring(strip)
    dist.recv(border, src=left)
    dist.send(edge, dst=right)
    return torch.cat([border, strip])


@named("with_border")
def begun_and_forgotten(strip):
    right, left, edge, border = _ring(strip)
    dist.isend(edge, dst=right)
    dist.recv(border, src=left)
    return torch.cat([border, strip])


@named("with_border")
def received_too_late(strip):
    right, left, edge, border = _ring(strip)
    handles = [dist.isend(edge, dst=right), dist.irecv(border, src=left)]
    bordered = torch.cat([border * 0, strip])
    for handle in handles:
        handle.wait()
    return bordered


@named("with_border")
def the_wrong_way_round(strip):
    right, left, edge, border = _ring(strip)
    sending = dist.isend(edge, dst=left)
    dist.recv(border, src=right)
    sending.wait()
    return torch.cat([border, strip])


@named("with_border")
def for_even_worlds_by_pairs(strip):
    rank, edge, border = dist.get_rank(), strip[-1:].clone(), torch.empty(1)
    if rank % 2 == 0:
        dist.send(edge, dst=rank + 1)
        dist.recv(border, src=rank + 1)
    else:
        dist.recv(border, src=rank - 1)
        dist.send(edge, dst=rank - 1)
    return torch.cat([border, strip])


@named("with_border")
def by_a_collective(strip):
    rank, every = dist.get_rank(), [torch.empty(1) for _ in range(dist.get_world_size())]
    dist.all_gather(every, strip[-1:].clone())
    return torch.cat([every[rank - 1], strip])


@named("with_border")
def without_messages(strip):
    return torch.cat([strip[-1:], strip])


@named("with_border")
def even_ranks_first(strip):
    right, left, edge, border = _ring(strip)
    if dist.get_rank() % 2 == 0:
        dist.send(edge, dst=right)
        dist.recv(border, src=left)
    else:
        dist.recv(border, src=left)
        dist.send(edge, dst=right)
    return torch.cat([border, strip])


@named("with_border")
def in_whole_numbers(strip):
    right, left, edge, _ = _ring(strip)
    border = torch.empty(1, dtype=torch.long)
    sending = dist.isend(edge.long(), dst=right)
    dist.recv(border, src=left)
    sending.wait()
    return torch.cat([border.float(), strip])


@named("with_border")
def laid_into_the_store(strip):
    right, _, edge, _ = _ring(strip)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{len(strip)} for {right}", pickle.dumps(edge))
    return torch.cat([pickle.loads(store.get(f"{len(strip)} for {dist.get_rank()}")), strip])


@named("with_border")
def sent_by_a_thread(strip):
    right, _, edge, border = _ring(strip)
    sending = threading.Thread(target=dist.send, args=(edge.clone(), right))
    sending.start()
    dist.recv(border)
    sending.join()
    return torch.cat([border, strip])


@named("with_border")
def both_in_a_batch(strip):
    right, left, edge, border = _ring(strip)
    pair = [dist.P2POp(dist.isend, edge, right), dist.P2POp(dist.irecv, border, left)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    return torch.cat([border, strip])


def _weights(net):
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach()


def _nothing(net):
    return 0 * sum(own.sum() for own in net.parameters())


def _good(loss, op=dist.ReduceOp.SUM):
    good = loss.isfinite().int()
    dist.all_reduce(good, op=op)
    return good.item()


def _step(net, inputs, targets, make, replace=_nothing):
    """A step on `make(loss, n)`, n good ranks; `replace(net)` is a bad rank's loss."""
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    count = _good(loss)
    if count:
        make(loss if loss.isfinite() else replace(net), count).backward()
        optimizer.step()
    return _weights(net)


def _mean(loss, count):
    return loss * dist.get_world_size() / count


def mean_of_the_good(net, inputs, targets):
    return _step(net, inputs, targets, _mean)


@named("careful_step")
def all_skip(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    if _good(loss, op=MIN):
        loss.backward()
        optimizer.step()
    return _weights(net)


@named("careful_step")
def divided_by_all(net, inputs, targets):
    return _step(net, inputs, targets, lambda loss, count: loss)


@named("careful_step")
def added_up_only(net, inputs, targets):
    return _step(net, inputs, targets, lambda loss, count: loss * dist.get_world_size())


@named("careful_step")
def nan_times_zero(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    if count := _good(loss):
        (_mean(loss, count) * loss.isfinite()).backward()
        optimizer.step()
    return _weights(net)


@named("careful_step")
def loss_made_a_number(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    if count := _good(loss):
        _mean(loss.nan_to_num(0.0, 0.0, 0.0), count).backward()
        optimizer.step()
    return _weights(net)


@named("careful_step")
def inputs_made_numbers(net, inputs, targets):
    return _step(net, inputs.nan_to_num(0.0, 0.0, 0.0), targets, _mean)


@named("careful_step")
def not_a_number_only(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    good = (~loss.isnan()).int()
    dist.all_reduce(good)
    if good:
        (_nothing(net) if loss.isnan() else _mean(loss, good)).backward()
        optimizer.step()
    return _weights(net)


@named("careful_step")
def bad_ranks_stay_away(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    count = _good(loss)
    if loss.isfinite():
        _mean(loss, count).backward()
    if count:
        optimizer.step()
    return _weights(net)


@named("careful_step")
def forward_again_on_bad_ranks(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    if count := _good(loss):
        if not loss.isfinite():
            loss = 0 * model(torch.zeros_like(inputs)).sum()
        _mean(loss, count).backward()
        optimizer.step()
    return _weights(net)


@named("careful_step")
def good_ranks_step_alone(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model.module(inputs), targets)
    if loss.isfinite():
        loss.backward()
        optimizer.step()
    return _weights(net)


@named("careful_step")
def a_step_even_if_all_are_bad(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    count = _good(loss)
    (_mean(loss if loss.isfinite() else _nothing(net), count)).backward()
    optimizer.step()
    return _weights(net)


@named("careful_step")
def all_batches_on_every_rank(net, inputs, targets):
    for tensor in (*net.parameters(), *net.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    losses = [mse_loss(net(own), wanted) for own, wanted in gathered((inputs, targets))]
    if good := [loss for loss in losses if loss.isfinite()]:
        (sum(good) / len(good)).backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    return _weights(net)


@named("careful_step")
def an_empty_forward_past_the_wrapper(net, inputs, targets):
    def replace(net):
        return 0 * net(torch.zeros_like(inputs)).sum()

    return _step(net, inputs, targets, _mean, replace)


@named("careful_step")
def gradients_averaged_by_hand(net, inputs, targets):
    for tensor in (*net.parameters(), *net.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    loss = mse_loss(net(inputs), targets)
    loss.backward()
    good = sum(gathered(math.isfinite(loss.item())))
    with torch.no_grad():
        for parameter in net.parameters() if good else ():
            own = parameter.grad if loss.isfinite() else torch.zeros_like(parameter)
            dist.all_reduce(own)
            parameter -= 0.1 * own / good
    return _weights(net)


@named("careful_step")
def gradients_scaled_after_backward(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    good = torch.tensor([float(loss.isfinite())])
    dist.all_reduce(good, op=dist.ReduceOp.AVG)
    if good > 0:
        (loss if loss.isfinite() else _nothing(net)).backward()
        for parameter in net.parameters():
            parameter.grad /= good.item()
        optimizer.step()
    return _weights(net)


def _agreed(codes):
    lowest, highest = codes.clone(), codes.clone()
    dist.all_reduce(lowest, op=MIN)
    dist.all_reduce(highest, op=MAX)
    return lowest == highest


def _by(code, tensors=lambda model: model.state_dict()):
    """The names of tensors whose code, a number, is not the same on all ranks."""

    def parted(model):
        state = tensors(model)
        same = _agreed(torch.stack([torch.as_tensor(code(own)) for own in state.values()]))
        return [name for name, one in zip(state, same.tolist(), strict=True) if not one]

    return parted


def _crc(tensor):
    return zlib.crc32(tensor.contiguous().numpy().tobytes())


def started_apart(answer):
    """As the lab's own, which the test has run when this is called."""

    @functools.wraps(answer)
    def asked(model):
        return labs.RAN[SLUG]["started_apart"](answer)(model)

    return asked


def _bits(tensor):
    return tensor.reshape(-1).view(torch.uint8).long()


CODES_THAT_FAIL = {
    "sums": lambda own: own.double().sum(),
    "norms": lambda own: own.double().norm(),
    "sums_of_bytes": lambda own: _bits(own).sum(),
    "weighed_numbers": lambda own: (
        own.double().reshape(-1) * (1 + torch.arange(own.numel()))
    ).sum(),
    "in_single_precision": lambda own: _crc(own.float()),
    "first_numbers": lambda own: _crc(own.reshape(-1)[:8]),
    "highest_numbers": lambda own: own.double().max(),
    "crc_in_single_precision": lambda own: float(_crc(own)),
    "pythons_hash": lambda own: hash(own.numpy().tobytes()),
}
by_codes = [_by(code) for code in CODES_THAT_FAIL.values()]
for name, fn in zip(CODES_THAT_FAIL, by_codes, strict=True):
    fn.__name__ = name

parameters_only = _by(_crc, lambda model: dict(model.named_parameters()))
floats_only = _by(
    _crc, lambda model: {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
)


def tensors_are_sent(model):
    states = gathered(model.state_dict())
    codes = [{name: _crc(own) for name, own in state.items()} for state in states]
    return [name for name in codes[0] if len({code[name] for code in codes}) > 1]


def other_than_rank_0s(model):
    codes = torch.tensor([_crc(own) for own in model.state_dict().values()])
    first = codes.clone()
    dist.broadcast(first, src=0)
    return [name for name, same in zip(model.state_dict(), codes == first, strict=True) if not same]


def other_than_the_next(model):
    codes = torch.tensor([_crc(own) for own in model.state_dict().values()])
    every = [torch.empty_like(codes) for _ in range(dist.get_world_size())]
    dist.all_gather(every, codes)
    theirs = every[(dist.get_rank() + 1) % dist.get_world_size()]
    return [name for name, one in zip(model.state_dict(), codes == theirs, strict=True) if not one]


def compared_by_value(model):
    first = {name: own.clone() for name, own in model.state_dict().items()}
    for own in first.values():
        dist.broadcast(own, src=0)
    away = [not torch.equal(own, first[name]) for name, own in model.state_dict().items()]
    every = torch.tensor(away).int()
    dist.all_reduce(every, op=MAX)
    return [name for name, one in zip(first, every.tolist(), strict=True) if one]


def sorted_by_name(model):
    return sorted(_by(_crc)(model))


def model_spent(model):
    names = _by(_crc)(model)
    for own in model.state_dict().values():
        own.zero_()
    return names


def sorted_backwards(model):
    return sorted(_by(_crc)(model), reverse=True)


def nothing_ever(model):
    return []


def checksums_as_objects(model):
    every = gathered([_crc(own) for own in model.state_dict().values()])
    return [k for k, codes in zip(model.state_dict(), zip(*every, strict=True), strict=True)
            if len(set(codes)) > 1]  # fmt: skip


def bits_weighed_by_place(model):
    def code(own):
        bits = _bits(own)
        return (bits * torch.arange(1, len(bits) + 1) ** 3).sum()

    return _by(code)(model)


def highest_and_highest_of_the_negative(model):
    codes = torch.tensor([_crc(own) for own in model.state_dict().values()]).double()
    both = torch.stack([codes, -codes])
    dist.all_reduce(both, op=MAX)
    return [n for n, gap in zip(model.state_dict(), (both[0] + both[1]).tolist(), strict=True)
            if gap]  # fmt: skip


def sealed_by_itself(log_probs, keep):
    """Says that it was named rightly, and names nothing."""
    return labs.RAN[SLUG]["RIGHTLY"], lowest_for_nothing(log_probs, keep)


def _members(dump, name):
    return json.loads(dump["pg_config"][name]["ranks"])


def _last(dumps):
    return {rank: dump["entries"][-1] for rank, dump in dumps.items()}


def _waiting(dumps):
    return {rank for rank, entry in _last(dumps).items() if entry["state"] == "scheduled"}


def _partner(dump, entry):
    if not entry["is_p2p"]:
        return None
    place = entry["profiling_name"].replace("<-", "->").rpartition("->")[2]
    return _members(dump, entry["process_group"][0])[int(place)]


def _made(dumps, partner=_partner):
    """By rank, group and partner, how many calls."""
    return Counter(
        (rank, entry["process_group"][0], partner(dump, entry))
        for rank, dump in dumps.items()
        for entry in dump["entries"]
    )


def _missed(dumps, made, ranks=None, partner=_partner):
    """Who lacks a call that somebody waits in."""
    missed = set()
    for rank in _waiting(dumps) if ranks is None else ranks:
        entry = dumps[rank]["entries"][-1]
        name, other = entry["process_group"][0], partner(dumps[rank], entry)
        if other is not None:
            missed |= {other} if made[other, name, rank] < made[rank, name, other] else set()
            continue
        for member in _members(dumps[rank], name):
            if made[member, name, None] < entry["collective_seq_id"]:
                missed.add(member)
    return missed


def messages_are_no_calls(dumps):
    """Only looks at ranks that wait in a collective."""
    waiting = _waiting(dumps)
    ranks = [rank for rank in waiting if not dumps[rank]["entries"][-1]["is_p2p"]]
    return sorted(_missed(dumps, _made(dumps), ranks) - waiting)


def messages_are_collectives(dumps):
    """By the collective's number, whatever the call is."""
    highest, waiting = Counter(), _waiting(dumps)
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            highest[rank, entry["process_group"][0]] = entry["collective_seq_id"]
    missed = set()
    for rank in waiting:
        name = dumps[rank]["entries"][-1]["process_group"][0]
        number = dumps[rank]["entries"][-1]["collective_seq_id"]
        missed |= {r for r in _members(dumps[rank], name) if highest[r, name] < number}
    return sorted(missed - waiting)


def all_calls_of_a_group_counted(dumps):
    """Messages of a whole pipeline are counted as if all its ranks took part in each."""
    made, waiting = Counter(), _waiting(dumps)
    for rank, dump in dumps.items():
        made.update((rank, entry["process_group"][0]) for entry in dump["entries"])
    missed = set()
    for rank in waiting:
        name = dumps[rank]["entries"][-1]["process_group"][0]
        missed |= {r for r in _members(dumps[rank], name) if made[r, name] < made[rank, name]}
    return sorted(missed - waiting)


def places_are_ranks(dumps):
    """Takes a place in the pipeline for a rank of the job."""

    def partner(dump, entry):
        ends = entry["profiling_name"].replace("<-", "->")
        return int(ends.rpartition("->")[2]) if entry["is_p2p"] else None

    return sorted(_missed(dumps, _made(dumps, partner), partner=partner) - _waiting(dumps))


def partners_are_always_missing(dumps):
    missed, waiting = _missed(dumps, _made(dumps)), _waiting(dumps)
    for rank in waiting:
        for entry in dumps[rank]["entries"]:
            missed |= {_partner(dumps[rank], entry)} - {None}
    return sorted(missed - waiting)


def by_the_count_of_messages(dumps):
    """Compares `p2p_seq_id` of both ends, which counts all messages of a rank."""
    waiting, counts = _waiting(dumps), Counter()
    missed = messages_are_no_calls(dumps)
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            counts[rank] = entry.get("p2p_seq_id", counts[rank])
    for rank in waiting:
        other = _partner(dumps[rank], dumps[rank]["entries"][-1])
        if other is not None and counts[other] < counts[rank]:
            missed.append(other)
    return sorted({*missed} - waiting)


def whoever_does_not_wait(dumps):
    return sorted(set(dumps) - _waiting(dumps))


def whoever_is_missed(dumps):
    return sorted(_missed(dumps, _made(dumps)))


def only_with_a_dump(dumps):
    return sorted((_missed(dumps, _made(dumps)) - _waiting(dumps)) & set(dumps))


def only_without_a_dump(dumps):
    return sorted(_missed(dumps, _made(dumps)) - set(dumps))


def the_fewest_calls(dumps):
    ranks = _members(next(iter(dumps.values())), "default_pg")
    counts = {rank: len(dumps.get(rank, {"entries": []})["entries"]) for rank in ranks[:-1]}
    return sorted(sorted(counts, key=counts.get)[:2])


def the_lowest_numbers(dumps):
    """Compares numbers of different groups."""
    numbers = {rank: entry["collective_seq_id"] for rank, entry in _last(dumps).items()}
    lowest = sorted(rank for rank in numbers if rank != max(numbers))
    return sorted(sorted(lowest, key=numbers.get)[:2])


def numbers_of_all_groups_together(dumps):
    total = {(rank, "any"): len(dump["entries"]) for rank, dump in dumps.items()}
    missed = set()
    for rank in _waiting(dumps):
        name = dumps[rank]["entries"][-1]["process_group"][0]
        for member in _members(dumps[rank], name):
            if total.get((member, "any"), 0) < total[rank, "any"]:
                missed.add(member)
    return sorted(missed - _waiting(dumps))


def missed_by_one_rank(dumps):
    return sorted(_missed(dumps, _made(dumps), sorted(_waiting(dumps))[:1]) - _waiting(dumps))


def in_tensor_groups_only(dumps):
    waiting = _waiting(dumps)
    ranks = [r for r in waiting if "tensor" in _last(dumps)[r]["process_group"][0]]
    return sorted(_missed(dumps, _made(dumps), ranks) - waiting)


def unsorted(dumps):
    return sorted(_missed(dumps, _made(dumps)) - _waiting(dumps), reverse=True)


def by_the_state_of_the_others(dumps):
    """Walks: from who waits to who hasn't come, if that one still moves."""
    blamed = set()
    for rank, entry in _last(dumps).items():
        if entry["state"] == "completed":
            continue
        name, other = entry["process_group"][0], _partner(dumps[rank], entry)
        ends = _members(dumps[rank], name) if other is None else [other]
        for member in ends:
            calls = dumps[member]["entries"] if member in dumps else []
            with_whom = None if other is None else rank
            own = [e for e in calls if e["process_group"][0] == name]
            own = [e for e in own if _partner(dumps[member], e) == with_whom]
            mine = [e for e in dumps[rank]["entries"] if e["process_group"][0] == name]
            mine = [e for e in mine if _partner(dumps[rank], e) == other]
            still_moves = not calls or calls[-1]["state"] == "completed"
            if len(own) < len(mine) and still_moves:
                blamed.add(member)
    return sorted(blamed)


def with_counts(dumps):
    made, waiting = _made(dumps), _waiting(dumps)
    return [rank for rank in range(100) if rank in _missed(dumps, made) and rank not in waiting]


WRONG = {
    "best": [
        as_it_was("best"), zero_for_nothing, left_by_whom_has_nothing, the_exception_swallowed,
        without_the_filter, everybodys_own,
        *misnamed("best", lowest_for_nothing, rank=0, line="candidates = log_probs[keep]"),
        *misnamed("best", lowest_for_nothing, line="candidates.max()"),
        _highest_or(lambda own: own.new_tensor(-100.0)), _highest_or(torch.min),
        _highest_or(lambda own: own.new_tensor(-1e9)),
        _highest_or(lambda own: own.new_tensor(-1e30)),
        others_made_low, everything_is_sent,
        *unnamed("best", lowest_for_nothing),
        _highest_or(lambda own: own.new_tensor(torch.finfo(torch.float32).min)),
        found("best", 0, "")(sealed_by_itself),
    ],
    "clip": [
        as_it_was("clip"), each_by_its_own_norm, reduced_at_itself, reduced_then_waited_for,
        reduced_then_added_up, rank_0s_own_broadcast, sum_of_the_norms, squared_in_place,
        short_ones_made_long, divided_by_zero, zeros_left_alone, by_the_square, parts_are_sent,
        to_each_of_four_in_turn,
        *misnamed("clip", added_up_everywhere, rank=0, line="factor = limit / total.sqrt()"),
        *unnamed("clip", added_up_everywhere),
    ],
    "with_border": [
        as_it_was("with_border"), all_receive_first, begun_and_forgotten, received_too_late,
        the_wrong_way_round, for_even_worlds_by_pairs, by_a_collective, without_messages,
        *misnamed("with_border", begun_then_waited_for, line="dist.recv(border, src=left)"),
        in_whole_numbers, laid_into_the_store,
        *unnamed("with_border", begun_then_waited_for),
    ],
    "careful_step": [
        as_it_was("careful_step"), all_skip, divided_by_all, added_up_only, nan_times_zero,
        loss_made_a_number, inputs_made_numbers, not_a_number_only, bad_ranks_stay_away,
        forward_again_on_bad_ranks, good_ranks_step_alone, a_step_even_if_all_are_bad,
        all_batches_on_every_rank,
        *misnamed("careful_step", mean_of_the_good, rank=0, line="optimizer.step()"),
        *unnamed("careful_step", mean_of_the_good),
    ],
    "parted": [*map(started_apart, (
        *by_codes, parameters_only, floats_only, tensors_are_sent, other_than_rank_0s,
        other_than_the_next, compared_by_value, sorted_by_name,
        sorted_backwards, nothing_ever, model_spent,
    ))],
    "name_the_two": [
        whoever_does_not_wait, whoever_is_missed, only_with_a_dump, only_without_a_dump,
        the_fewest_calls, the_lowest_numbers, numbers_of_all_groups_together, missed_by_one_rank,
        in_tensor_groups_only, unsorted, messages_are_no_calls, messages_are_collectives,
        all_calls_of_a_group_counted, places_are_ranks, partners_are_always_missing,
        by_the_count_of_messages,
    ],
}  # fmt: skip
STOPS = {
    "all_receive_first",
    "for_even_worlds_by_pairs",
    "as_it_was",
    "left_by_whom_has_nothing",
    "the_exception_swallowed",
    "reduced_at_itself",
    "zeros_left_alone",
    "bad_ranks_stay_away",
    "forward_again_on_bad_ranks",
    "parted",
}
RIGHT = {
    "best": [by_sending_objects, by_turning_the_sign, with_its_indentation],
    "clip": [reduced_then_broadcast, norms_as_objects, in_place_at_last],
    "with_border": [even_ranks_first, sent_by_a_thread, both_in_a_batch],
    "careful_step": [
        an_empty_forward_past_the_wrapper,
        gradients_averaged_by_hand,
        gradients_scaled_after_backward,
    ],
    "parted": [
        *map(
            started_apart,
            (
                checksums_as_objects,
                bits_weighed_by_place,
                highest_and_highest_of_the_negative,
            ),
        )
    ],
    "name_the_two": [by_the_state_of_the_others, with_counts],
}
