"""Wrong answers to lab 08, and for each exercise other right ones.

To each broken program there is the program as it was, rightly named; a right repair, wrongly named
in the way that is nearest; and repairs that hide what is wrong: the collective dropped, the
exception swallowed, a barrier or a sleep added, everybody made to leave.
"""

import contextlib
import functools
import math
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import labs
import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss, one_hot, pad
from torch.nn.parallel import DistributedDataParallel

SLUG = "08_it_hangs_lies_or_dies"
MAX, MIN = dist.ReduceOp.MAX, dist.ReduceOp.MIN
# Rank, line and pattern of each program.
NAMES = {
    "epoch_loss": (2, "dist.all_reduce(batch)", "uneven"),
    "best": (1, "best = candidates.max()", "exception"),
    "global_norm": (2, "dist.reduce(total, dst=0)", "root"),
    "with_border": (1, "dist.send(edge, dst=right)", "send/send"),
    "validate": (0, "return model(validation)", "evaluation"),
    "per_sample": (0, "dist.all_reduce(count)", "order"),
    "class_counts": (1, "dist.all_reduce(counts)", "shape"),
    "careful_step": (1, "loss.backward()", "backward"),
}


def found(exercise: str, rank: int, line: str, pattern: str) -> Callable:
    """As the lab's own, which knows what happened when the test ran its cells."""

    def above(repair):
        @functools.wraps(repair)
        def answer(*arguments):
            lab, number = labs.RAN[SLUG], [*NAMES].index(exercise) + 1
            return lab["found"](lab[f"run_{number}"], rank, line, pattern)(repair)(*arguments)

        return answer

    return above


def named(exercise: str, **otherwise: Any) -> Callable:
    """Above a repair: the right names of this exercise, or some of them otherwise."""
    words = dict(zip(("rank", "line", "pattern"), NAMES[exercise], strict=True))
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
        words = sorted(lab[f"run_{number}"])
        return lab["found"](words, *words[:3])(repair)(*arguments)

    return [says_that_it_is_named, named_by_what_the_run_holds]


def gathered(mine: Any) -> list[Any]:
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def ratio(sums):
    return (sums[0] / sums[1]).item()


def sum_and_count(losses):
    return torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)


def sum_at_the_end(losses):
    total = sum_and_count(losses)
    dist.all_reduce(total)
    return ratio(total)


def not_named(losses):
    return sum_at_the_end(losses)


@named("epoch_loss")
def the_collective_dropped(losses):
    return ratio(sum_and_count(losses))


@named("epoch_loss")
def as_many_batches_as_the_poorest(losses):
    fewest, total = torch.tensor(len(losses)), torch.zeros(2, dtype=torch.float64)
    dist.all_reduce(fewest, op=MIN)
    for loss in losses[:fewest]:
        batch = torch.stack([loss, torch.ones_like(loss)])
        dist.all_reduce(batch)
        total += batch
    return ratio(total)


@named("epoch_loss")
def mean_of_means(losses):
    mean = losses.mean() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


@named("epoch_loss")
def a_barrier_after_the_loop(losses):
    total = torch.zeros(2, dtype=torch.float64)
    for loss in losses:
        batch = torch.stack([loss, torch.ones_like(loss)])
        dist.all_reduce(batch)
        total += batch
    dist.barrier()
    return ratio(total)


@named("epoch_loss")
def nobody_waits(losses):
    batches = [torch.stack([loss, torch.ones_like(loss)]) for loss in losses]
    for batch in batches:
        dist.all_reduce(batch, async_op=True)
    return ratio(sum(batches, torch.zeros(2, dtype=torch.float64)))


@named("epoch_loss")
def padded_to_the_richest(losses):
    most = torch.tensor(len(losses))
    dist.all_reduce(most, op=MAX)
    rows = pad(torch.stack([losses, torch.ones_like(losses)]), (0, int(most) - len(losses)))
    total = torch.zeros(2, dtype=torch.float64)
    for batch in rows.T.contiguous():
        dist.all_reduce(batch)
        total += batch
    return ratio(total)


def lowest_for_nothing(log_probs, keep):
    best = torch.where(keep, log_probs, -torch.inf).max()
    dist.all_reduce(best, op=MAX)
    return best.item()


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
    return max(max(own, default=-1e9) for own in every)


def added_up_everywhere(part):
    total = part.square().sum()
    dist.all_reduce(total)
    return total.sqrt().item()


@named("global_norm")
def reduced_at_itself(part):
    total = part.square().sum()
    dist.reduce(total, dst=dist.get_rank())
    return total.sqrt().item()


@named("global_norm")
def for_the_root_only(part):
    total = part.square().sum()
    dist.reduce(total, dst=0)
    return total.sqrt().item() if dist.get_rank() == 0 else None


@named("global_norm")
def reduced_then_waited_for(part):
    total = part.square().sum()
    dist.reduce(total, dst=0)
    dist.barrier()
    time.sleep(0.05)
    return total.sqrt().item()


@named("global_norm")
def reduced_then_added_up(part):
    total = part.square().sum()
    dist.reduce(total, dst=0)
    dist.all_reduce(total)
    return total.sqrt().item()


@named("global_norm")
def broadcast_of_the_own(part):
    total = part.square().sum()
    dist.broadcast(total, src=0)
    return total.sqrt().item()


@named("global_norm")
def sum_of_the_norms(part):
    norm = part.norm()
    dist.all_reduce(norm)
    return norm.item()


@named("global_norm")
def reduced_then_broadcast(part):
    total = part.square().sum()
    dist.reduce(total, dst=0)
    dist.broadcast(total, src=0)
    return total.sqrt().item()


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


def _trained(net, inputs, targets, wrap=DistributedDataParallel):
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mse_loss(model(inputs), targets).backward()
    optimizer.step()
    return model.eval()


def without_ddp_in_evaluation(net, inputs, targets, validation):
    _trained(net, inputs, targets)
    return net(validation).detach() if dist.get_rank() == 0 else None


@named("validate")
def the_validation_dropped(net, inputs, targets, validation):
    _trained(net, inputs, targets)


@named("validate")
def everybody_returns(net, inputs, targets, validation):
    return _trained(net, inputs, targets)(validation).detach()


@named("validate")
def the_others_at_a_barrier(net, inputs, targets, validation):
    model, outputs = _trained(net, inputs, targets), None
    if dist.get_rank() == 0:
        outputs = model(validation).detach()
    dist.barrier()
    return outputs


@named("validate")
def in_no_sync(net, inputs, targets, validation):
    model = _trained(net, inputs, targets)
    if dist.get_rank() == 0:
        with model.no_sync(), torch.no_grad():
            return model(validation)


@named("validate")
def without_ddp_at_all(net, inputs, targets, validation):
    model = _trained(net, inputs, targets, wrap=lambda same: same)
    return model(validation).detach() if dist.get_rank() == 0 else None


@named("validate")
def validated_before_the_step(net, inputs, targets, validation):
    outputs = net(validation).detach()
    _trained(net, inputs, targets)
    return outputs if dist.get_rank() == 0 else None


@named("validate")
def all_evaluate(net, inputs, targets, validation):
    outputs = _trained(net, inputs, targets)(validation)
    return outputs.detach() if dist.get_rank() == 0 else None


def in_one_order(loss, count):
    dist.all_reduce(loss)
    dist.all_reduce(count)
    return (loss / count).item()


@named("per_sample")
def both_branches_turned(loss, count):
    first, second = (loss, count) if dist.get_rank() == 0 else (count, loss)
    dist.all_reduce(first)
    dist.all_reduce(second)
    return (loss / count).item()


@named("per_sample")
def a_barrier_between(loss, count):
    own = (count, loss) if dist.get_rank() == 0 else (loss, count)
    for tensor in own:
        dist.all_reduce(tensor)
        dist.barrier()
    return (loss / count).item()


@named("per_sample")
def rank_0_sleeps(loss, count):
    if dist.get_rank() == 0:
        time.sleep(0.05)
        dist.all_reduce(count)
        dist.all_reduce(loss)
        return (loss / count).item()
    return in_one_order(loss, count)


@named("per_sample")
def a_group_for_each(loss, count):
    groups = [dist.new_group(), dist.new_group()]
    pairs = [(loss, groups[0]), (count, groups[1])]
    for tensor, group in reversed(pairs) if dist.get_rank() == 0 else pairs:
        dist.all_reduce(tensor, group=group)
    return (loss / count).item()


@named("per_sample")
def everybodys_own_ratio(loss, count):
    return (loss / count).item()


@named("per_sample")
def mean_of_the_ratios(loss, count):
    mean = loss / count / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


@named("per_sample")
def both_in_one_tensor(loss, count):
    sums = torch.stack([loss, count])
    dist.all_reduce(sums)
    return ratio(sums)


def as_long_as_there_are_classes(outputs):
    counts = torch.bincount(outputs.argmax(dim=1), minlength=outputs.shape[1])
    dist.all_reduce(counts)
    return counts


@named("class_counts")
def as_long_as_the_longest(outputs):
    counts = torch.bincount(outputs.argmax(dim=1))
    longest = torch.tensor(len(counts))
    dist.all_reduce(longest, op=MAX)
    counts = pad(counts, (0, int(longest) - len(counts)))
    dist.all_reduce(counts)
    return counts


@named("class_counts")
def as_long_as_the_shortest(outputs):
    counts = torch.bincount(outputs.argmax(dim=1))
    shortest = torch.tensor(len(counts))
    dist.all_reduce(shortest, op=MIN)
    counts = counts[:shortest].clone()
    dist.all_reduce(counts)
    return pad(counts, (0, outputs.shape[1] - len(counts)))


@named("class_counts")
def ten_classes_always(outputs):
    counts = torch.bincount(outputs.argmax(dim=1), minlength=10)
    dist.all_reduce(counts)
    return counts


@named("class_counts")
def left_by_short_shards(outputs):
    counts = torch.bincount(outputs.argmax(dim=1))
    if len(counts) == outputs.shape[1]:
        dist.all_reduce(counts)
    return pad(counts, (0, outputs.shape[1] - len(counts)))


@named("class_counts")
def the_error_swallowed(outputs):
    counts = torch.bincount(outputs.argmax(dim=1))
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(counts)
    return pad(counts, (0, outputs.shape[1] - len(counts)))


@named("class_counts")
def nothing_is_sent(outputs):
    return torch.bincount(outputs.argmax(dim=1), minlength=outputs.shape[1])


@named("class_counts")
def by_ones_and_zeros(outputs):
    counts = one_hot(outputs.argmax(dim=1), outputs.shape[1]).sum(0)
    dist.all_reduce(counts)
    return counts


def _weights(net):
    return torch.nn.utils.parameters_to_vector(net.parameters()).detach()


def _step(net, inputs, targets, decide):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    if decide(loss):
        loss.backward()
        optimizer.step()
    return _weights(net)


def _of_all(loss, op=MIN):
    finite = loss.isfinite().int()
    dist.all_reduce(finite, op=op)
    return bool(finite)


def decided_by_all(net, inputs, targets):
    return _step(net, inputs, targets, _of_all)


@named("careful_step")
def if_any_is_finite(net, inputs, targets):
    return _step(net, inputs, targets, functools.partial(_of_all, op=MAX))


@named("careful_step")
def as_rank_0_says(net, inputs, targets):
    def decide(loss):
        finite = loss.isfinite().int()
        dist.broadcast(finite, src=0)
        return bool(finite)

    return _step(net, inputs, targets, decide)


@named("careful_step")
def never_skipped(net, inputs, targets):
    return _step(net, inputs, targets, lambda loss: True)


@named("careful_step")
def always_skipped(net, inputs, targets):
    return _step(net, inputs, targets, lambda loss: False)


@named("careful_step")
def all_go_backward_and_some_step(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    loss.backward()
    if loss.isfinite():
        optimizer.step()
    return _weights(net)


@named("careful_step")
def no_number_made_a_number(net, inputs, targets):
    return _step(net, inputs.nan_to_num(0.0, 0.0, 0.0), targets, lambda loss: True)


@named("careful_step")
def a_barrier_for_the_bad_rank(net, inputs, targets):
    def decide(loss):
        if not loss.isfinite():
            dist.barrier()
        return bool(loss.isfinite())

    return _step(net, inputs, targets, decide)


@named("careful_step")
def decided_by_the_gradients(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mse_loss(model(inputs), targets).backward()
    if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
        optimizer.step()
    return _weights(net)


@named("epoch_loss")
def losses_of_zero_left_out(losses):
    total = torch.tensor([losses.sum(), (losses != 0).sum()], dtype=torch.float64)
    dist.all_reduce(total)
    return ratio(total)


@named("epoch_loss")
def one_batch_at_least(losses):
    total = torch.tensor([losses.sum(), max(1, len(losses))], dtype=torch.float64)
    dist.all_reduce(total)
    return ratio(total)


@named("epoch_loss")
def through_the_store(losses):
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    store.set(f"losses of {rank}", pickle.dumps(losses))
    return sum_at_the_end(losses)


@named("epoch_loss")
def pairs_as_objects(losses):
    sums, counts = zip(*gathered((losses.sum().item(), len(losses))), strict=True)
    return sum(sums) / sum(counts)


@named("epoch_loss")
def in_two_calls_and_single_precision(losses):
    both = [losses.sum().float(), torch.tensor(float(len(losses)))]
    works = [dist.all_reduce(one, async_op=True) for one in both]
    dist.barrier()
    for work in works:
        work.get_future().wait()
    return both[0] / both[1]


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


@named("global_norm")
def parts_are_sent(part):
    return torch.cat(gathered(part)).norm().item()


@named("global_norm")
def the_highest_norm(part):
    norm = part.norm()
    dist.all_reduce(norm, op=MAX)
    return norm.item()


@named("global_norm")
def norms_as_objects(part):
    return math.hypot(*gathered(float(part.norm())))


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


@named("validate")
def rank_0_trains_for_all(net, inputs, targets, validation):
    inputs, targets = map(torch.cat, zip(*gathered((inputs, targets)), strict=True))
    _trained(net, inputs, targets, wrap=lambda same: same)
    return net(validation).detach() if dist.get_rank() == 0 else None


@named("validate")
def trained_by_hand(net, inputs, targets, validation):
    for tensor in (*net.parameters(), *net.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    mse_loss(net(inputs), targets).backward()
    with torch.no_grad():
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter -= 0.1 * parameter.grad / dist.get_world_size()
        outputs = net(validation)
    dist.barrier()
    return outputs if dist.get_rank() == 0 else None


@named("per_sample")
def left_by_whom_has_no_samples(loss, count):
    return in_one_order(loss, count) if count else 0.0


@named("per_sample")
def ratios_weighed_by_rank_0s_count(loss, count):
    dist.all_reduce(loss)
    dist.broadcast(count, src=0)
    return (loss / count / dist.get_world_size()).item()


@named("per_sample")
def numbers_as_objects(loss, count):
    losses, counts = zip(*gathered((loss.item(), count.item())), strict=True)
    return sum(losses) / sum(counts)


@named("class_counts")
def five_classes_always(outputs):
    counts = torch.bincount(outputs.argmax(dim=1), minlength=5)
    dist.all_reduce(counts)
    return counts


@named("class_counts")
def outputs_are_sent(outputs):
    predicted = torch.cat(gathered(outputs)).argmax(dim=1)
    return torch.bincount(predicted, minlength=outputs.shape[1])


@named("class_counts")
def predictions_are_sent(outputs):
    predicted = torch.cat(gathered(outputs.argmax(dim=1)))
    return torch.bincount(predicted, minlength=outputs.shape[1])


@named("class_counts")
def class_after_class(outputs):
    predicted = outputs.argmax(dim=1)
    counts = torch.stack([(predicted == k).sum() for k in range(outputs.shape[1])])
    dist.all_reduce(counts, async_op=True).get_future().wait()
    return counts


@named("careful_step")
def all_batches_on_every_rank(net, inputs, targets):
    for tensor in (*net.parameters(), *net.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    inputs, targets = map(torch.cat, zip(*gathered((inputs, targets)), strict=True))
    loss = mse_loss(net(inputs), targets)
    if loss.isfinite():
        loss.backward()
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    return _weights(net)


@named("careful_step")
def not_a_number_only(net, inputs, targets):
    def decide(loss):
        fine = (~loss.isnan()).int()
        dist.all_reduce(fine, op=MIN)
        return bool(fine)

    return _step(net, inputs, targets, decide)


@named("careful_step")
def as_most_ranks_say(net, inputs, targets):
    def decide(loss):
        return sum(gathered(bool(loss.isfinite()))) > dist.get_world_size() / 2

    return _step(net, inputs, targets, decide)


@named("careful_step")
def decided_by_the_sum_of_losses(net, inputs, targets):
    def decide(loss):
        total = loss.detach().clone()
        dist.all_reduce(total)
        return total.isfinite()

    return _step(net, inputs, targets, decide)


@named("careful_step")
def decided_by_objects(net, inputs, targets):
    return _step(net, inputs, targets, lambda loss: all(gathered(math.isfinite(loss.item()))))


WRONG = {
    "epoch_loss": [
        as_it_was("epoch_loss"), not_named, the_collective_dropped, mean_of_means,
        as_many_batches_as_the_poorest, a_barrier_after_the_loop, nobody_waits,
        *misnamed("epoch_loss", sum_at_the_end, rank=0, line="total += batch", pattern="returned"),
        losses_of_zero_left_out, one_batch_at_least, through_the_store,
        *unnamed("epoch_loss", sum_at_the_end),
    ],
    "best": [
        as_it_was("best"), zero_for_nothing, left_by_whom_has_nothing, the_exception_swallowed,
        without_the_filter, everybodys_own,
        *misnamed("best", lowest_for_nothing, rank=0, line="candidates = log_probs[keep]",
                  pattern="returned"),
        _highest_or(lambda own: own.new_tensor(-2.0)),
        _highest_or(lambda own: own.new_tensor(-100.0)), _highest_or(torch.min),
        others_made_low, everything_is_sent,
        *unnamed("best", lowest_for_nothing),
    ],
    "global_norm": [
        as_it_was("global_norm"), reduced_at_itself, for_the_root_only, reduced_then_waited_for,
        reduced_then_added_up, broadcast_of_the_own, sum_of_the_norms,
        *misnamed("global_norm", added_up_everywhere, rank=0, pattern="order"),
        parts_are_sent, the_highest_norm,
        *unnamed("global_norm", added_up_everywhere),
    ],
    "with_border": [
        as_it_was("with_border"), all_receive_first, begun_and_forgotten, received_too_late,
        the_wrong_way_round, for_even_worlds_by_pairs, by_a_collective, without_messages,
        *misnamed("with_border", begun_then_waited_for, line="dist.recv(border, src=left)",
                  pattern="recv/recv"),
        in_whole_numbers, laid_into_the_store,
        *unnamed("with_border", begun_then_waited_for),
    ],
    "validate": [
        as_it_was("validate"), the_validation_dropped, everybody_returns, in_no_sync,
        the_others_at_a_barrier, without_ddp_at_all, validated_before_the_step,
        *misnamed("validate", without_ddp_in_evaluation, rank=1, pattern="returned"),
        rank_0_trains_for_all,
        *unnamed("validate", without_ddp_in_evaluation),
    ],
    "per_sample": [
        as_it_was("per_sample"), both_branches_turned, a_barrier_between, rank_0_sleeps,
        a_group_for_each, everybodys_own_ratio, mean_of_the_ratios,
        *misnamed("per_sample", in_one_order, rank=1, pattern="groups"),
        left_by_whom_has_no_samples, ratios_weighed_by_rank_0s_count,
        *unnamed("per_sample", in_one_order),
    ],
    "class_counts": [
        as_it_was("class_counts"), as_long_as_the_longest, as_long_as_the_shortest,
        ten_classes_always, left_by_short_shards, the_error_swallowed, nothing_is_sent,
        *misnamed("class_counts", as_long_as_there_are_classes, rank=0, pattern="exception"),
        five_classes_always, outputs_are_sent,
        *unnamed("class_counts", as_long_as_there_are_classes),
    ],
    "careful_step": [
        as_it_was("careful_step"), if_any_is_finite, as_rank_0_says, never_skipped, always_skipped,
        all_go_backward_and_some_step, no_number_made_a_number, a_barrier_for_the_bad_rank,
        *misnamed("careful_step", decided_by_all, rank=0, pattern="uneven"),
        all_batches_on_every_rank, not_a_number_only, as_most_ranks_say,
        *unnamed("careful_step", decided_by_all),
    ],
}  # fmt: skip
RIGHT = {
    "epoch_loss": [padded_to_the_richest, pairs_as_objects, in_two_calls_and_single_precision],
    "best": [by_sending_objects, by_turning_the_sign],
    "global_norm": [reduced_then_broadcast, norms_as_objects],
    "with_border": [even_ranks_first, sent_by_a_thread, both_in_a_batch],
    "validate": [all_evaluate, trained_by_hand],
    "per_sample": [both_in_one_tensor, numbers_as_objects],
    "class_counts": [by_ones_and_zeros, class_after_class, predictions_are_sent],
    "careful_step": [
        decided_by_the_gradients,
        decided_by_the_sum_of_losses,
        decided_by_objects,
    ],
}
