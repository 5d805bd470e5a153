"""Wrong answers to lab 06, and for each exercise another right one.

`as_published` has the mistake of PyTorch's own tutorial until 2020 (issue 31572): four ranks that
hold 1, 2, 3 and 4 end up with 2, 4, 6 and 8. `whole_tensors_around` passes whole tensors, as that
tutorial's ring does: right sums, too many bytes.
"""

import math

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives, distributed_c10d

lab = labs.cells("06_what_communication_costs")


def _place():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    return rank, world_size, (rank + 1) % world_size, (rank - 1) % world_size


def _swap(outgoing, target, source, like=None):
    arrived = torch.empty_like(outgoing if like is None else like)
    sending = dist.isend(outgoing.contiguous(), target)
    dist.recv(arrived, source)
    sending.wait()
    return arrived


def by_powers_of_two(x):
    rank, world_size, *_ = _place()
    step = 1
    while step < world_size:
        if rank ^ step < world_size:
            x = x + _swap(x, rank ^ step, rank ^ step)
        step *= 2
    return x


def directly(x):
    rank, world_size, *_ = _place()
    if rank != 0:
        dist.send(x, 0)
        dist.recv(x, 0)
        return x
    arrived = torch.empty_like(x)
    for other in range(1, world_size):
        dist.recv(arrived, other)
        x += arrived
    for other in range(1, world_size):
        dist.send(x, other)
    return x


def one_after_the_other(x):
    rank, world_size, *_ = _place()
    if rank > 0:
        arrived = torch.empty_like(x)
        dist.recv(arrived, rank - 1)
        x += arrived
    if rank < world_size - 1:
        dist.send(x, rank + 1)
        dist.recv(x, rank + 1)
    if rank > 0:
        dist.send(x, rank - 1)
    return x


def _up(x, like=torch.empty_like, add=torch.Tensor.add_):
    rank, world_size, *_ = _place()
    step, children = 1, []
    while step < world_size and rank % (2 * step) == 0:
        if rank + step < world_size:
            arrived = like(x)
            dist.recv(arrived, rank + step)
            add(x, arrived)
            children.append(rank + step)
        step *= 2
    if rank != 0:
        dist.send(x, rank - step)
    return rank - step, children


def _down(x, parent, children):
    if dist.get_rank() != 0:
        dist.recv(x, parent)
    for child in reversed(children):
        dist.send(x, child)
    return x


def only_up(x):
    _up(x)
    return x


def the_root_tells_everybody(x):
    rank, world_size, *_ = _place()
    _up(x)
    if rank != 0:
        dist.recv(x, 0)
    else:
        for other in range(1, world_size):
            dist.send(x, other)
    return x


def overwritten_on_the_way_up(x):
    return _down(x, *_up(x, add=torch.Tensor.copy_))


def always_single_precision(x):
    return _down(x, *_up(x, like=lambda x: torch.empty(x.shape)))


def all_reduce_under_another_name(x):
    distributed_c10d.all_reduce(x)
    return x


def all_reduce_of_the_compiler(x):
    every = list(range(dist.get_world_size()))
    return _functional_collectives.all_reduce(x, "sum", every).clone()


def _in_levels(x, levels):
    rank, world_size, *_ = _place()
    children, parent = [], None
    for step in (2**level for level in range(levels)):
        if rank % (2 * step) == 0 and rank + step < world_size:
            x = x + _received(x, rank + step)
            children.append(rank + step)
        elif rank % (2 * step) == step:
            parent = rank - step
            break
    return _down(x, parent, children)


def _received(x, source):
    arrived = torch.empty_like(x)
    dist.recv(arrived, source)
    return arrived


def the_logarithm_rounded_to_the_nearest(x):
    return _in_levels(x, round(math.log2(dist.get_world_size())))


def always_three_levels(x):
    return _in_levels(x, 3)


def nearest_child_first(x):
    parent, children = _up(x)
    return _down(x, parent, children[::-1])


def by_the_store(x):
    store, world_size = distributed_c10d._get_default_store(), dist.get_world_size()
    store.set(str(dist.get_rank()), x.numpy().tobytes())
    raw = [bytearray(store.get(str(rank))) for rank in range(world_size)]
    return sum(torch.frombuffer(own, dtype=x.dtype).view_as(x) for own in raw)


def halves_of_halves(x):
    """The other way to write a tree: each half adds up, then the first one takes the second's."""

    def up(x, first, end):
        if end - first < 2:
            return x
        middle = first + (1 << (end - first - 1).bit_length() - 1)
        x = up(x, first, middle) if rank < middle else up(x, middle, end)
        if rank == middle:
            dist.send(x, first)
        elif rank == first:
            arrived = torch.empty_like(x)
            dist.recv(arrived)
            x = x + arrived
        return x

    def down(x, first, end):
        if end - first < 2:
            return x
        middle = first + (1 << (end - first - 1).bit_length() - 1)
        if rank == first:
            dist.isend(x, middle).wait()
        elif rank == middle:
            dist.irecv(x, first).wait()
        return down(x, first, middle) if rank < middle else down(x, middle, end)

    rank, world_size = dist.get_rank(), dist.get_world_size()
    return down(up(x.clone(), 0, world_size), 0, world_size)


def gathered_and_added(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return sum(every)


def butterfly_with_guests(x):
    """Doubling: ranks beyond the last power of two bring their numbers, and are told the sum."""
    rank, world_size, *_ = _place()
    inner = 1 << (world_size.bit_length() - 1)
    if rank >= inner:
        dist.send(x, rank - inner)
        dist.recv(x, rank - inner)
        return x
    if rank + inner < world_size:
        dist.recv(arrived := torch.empty_like(x), rank + inner)
        x = x + arrived
    for k in range(inner.bit_length() - 1):
        x = x + _swap(x, rank ^ 1 << k, rank ^ 1 << k)
    if rank + inner < world_size:
        dist.send(x, rank + inner)
    return x


def as_published(x):
    _, world_size, right, left = _place()
    received, total = torch.zeros_like(x), x.clone()
    passed_on = [torch.zeros_like(x), torch.zeros_like(x)]
    for turn in range(world_size - 1):
        sending = dist.isend(passed_on[turn % 2], right)
        dist.recv(passed_on[1 - turn % 2], left)
        sending.wait()
        total += x if turn % 2 else received
    return total


def whole_tensors_around(x):
    _, world_size, right, left = _place()
    total, passing = x.clone(), x
    for _ in range(world_size - 1):
        passing = _swap(passing, right, left)
        total += passing
    return total


def _agreed(ready_us, op=dist.ReduceOp.MAX):
    agreed = ready_us.clone()
    dist.all_reduce(agreed, op=op)
    return agreed.tolist()


def _ring_us(size):
    n = dist.get_world_size()
    return 2 * (n - 1) * (lab.alpha + size / n * lab.beta)


def _walk(ready_us, bucket_bytes, took_us=_ring_us, after=max):
    free_us = 0.0
    for moment_us, size in zip(ready_us, bucket_bytes, strict=True):
        free_us = after(free_us, moment_us) + took_us(size)
    return free_us - ready_us[-1]


def by_its_own_moments(ready_us, bucket_bytes):
    return _walk(ready_us.tolist(), bucket_bytes)


def by_its_own_moments_then_the_longest(ready_us, bucket_bytes):
    left_us = torch.tensor([_walk(ready_us.tolist(), bucket_bytes)], dtype=torch.float64)
    return max(_agreed(left_us))


def when_the_first_is_ready(ready_us, bucket_bytes):
    return _walk(_agreed(ready_us, dist.ReduceOp.MIN), bucket_bytes)


def when_the_mean_is_ready(ready_us, bucket_bytes):
    sums = _agreed(ready_us, dist.ReduceOp.SUM)
    return _walk([us / dist.get_world_size() for us in sums], bucket_bytes)


def less_its_own_backward_pass(ready_us, bucket_bytes):
    latest_us = _agreed(ready_us)
    return _walk(latest_us, bucket_bytes) + latest_us[-1] - ready_us[-1].item()


def when_all_are_done(ready_us, bucket_bytes):
    return _walk(_agreed(ready_us), bucket_bytes) + _agreed(ready_us)[-1]


def all_buckets_at_once(ready_us, bucket_bytes):
    return _walk(_agreed(ready_us), bucket_bytes, after=lambda free_us, moment_us: moment_us)


def one_after_the_other_whenever(ready_us, bucket_bytes):
    return _walk(_agreed(ready_us), bucket_bytes, after=lambda free_us, moment_us: free_us)


def nothing_overlaps(ready_us, bucket_bytes):
    _agreed(ready_us)
    return sum(map(_ring_us, bucket_bytes))


def only_the_last_bucket(ready_us, bucket_bytes):
    _agreed(ready_us)
    return _ring_us(bucket_bytes[-1])


def total_less_backward(ready_us, bucket_bytes):
    return max(0.0, sum(map(_ring_us, bucket_bytes)) - _agreed(ready_us)[-1])


def latency_once(ready_us, bucket_bytes):
    def took_us(size):
        return lab.alpha + 2 * (n - 1) / n * size * lab.beta

    n = dist.get_world_size()
    return _walk(_agreed(ready_us), bucket_bytes, took_us)


def without_latency(ready_us, bucket_bytes):
    n = dist.get_world_size()
    return _walk(_agreed(ready_us), bucket_bytes, lambda size: 2 * (n - 1) / n * size * lab.beta)


def rings_of_whole_tensors(ready_us, bucket_bytes):
    n = dist.get_world_size()
    both = 2 * (n - 1)
    return _walk(_agreed(ready_us), bucket_bytes, lambda size: both * (lab.alpha + size * lab.beta))


def no_bytes_for_nothing(ready_us, bucket_bytes):
    return _walk(_agreed(ready_us), bucket_bytes, lambda size: _ring_us(size) if size else 0)


def only_half_of_the_ring(ready_us, bucket_bytes):
    return _walk(_agreed(ready_us), bucket_bytes, lambda size: _ring_us(size) / 2)


def one_all_reduce_per_bucket(ready_us, bucket_bytes):
    return _walk([_agreed(us.view(1))[0] for us in ready_us], bucket_bytes)


def everybodys_moments_gathered(ready_us, bucket_bytes):
    every = [torch.empty_like(ready_us) for _ in range(dist.get_world_size())]
    dist.all_gather(every, ready_us)
    return _walk(torch.stack(every).amax(dim=0).tolist(), bucket_bytes)


def backwards_from_the_end(ready_us, bucket_bytes):
    """Whichever bucket nothing waits before: from there on the network never rests."""
    latest_us = np.array(_agreed(ready_us))
    rest_us = np.cumsum([_ring_us(size) for size in bucket_bytes][::-1])[::-1]
    return np.max(latest_us + rest_us) - latest_us[-1]


def in_float32(ready_us, bucket_bytes):
    latest_us = ready_us.float()
    dist.all_reduce(latest_us, op=dist.ReduceOp.MAX, async_op=True).wait()
    return _walk(latest_us.double().tolist(), bucket_bytes)


def _least_squares(sizes, times_us, weights):
    line = torch.stack([torch.ones_like(sizes), sizes], dim=1) * weights[:, None]
    alpha, beta = torch.linalg.lstsq(line, (times_us * weights)[:, None]).solution.flatten()
    return alpha.item(), beta.item()


def _sums(sizes, times_us, weights):
    every = [weights, weights * sizes, weights * sizes**2]
    return torch.stack([s.sum() for s in (*every, weights * times_us, weights * sizes * times_us)])


def _solved(sums):
    w, x, xx, y, xy = sums.tolist()
    beta = (w * xy - x * y) / (w * xx - x * x)
    return (y - beta * x) / w, beta


def _added(tensor):
    dist.all_reduce(tensor)
    return tensor


def its_own_line(sizes, times_us):
    alpha, beta = _least_squares(sizes, times_us, 1 / times_us)
    return alpha, 8 / beta / 1000


def the_mean_of_all_lines(sizes, times_us):
    own = torch.tensor(_least_squares(sizes, times_us, 1 / times_us), dtype=torch.float64)
    alpha, beta = (_added(own) / dist.get_world_size()).tolist()
    return alpha, 8 / beta / 1000


def absolute_errors(sizes, times_us):
    alpha, beta = _solved(_added(_sums(sizes, times_us, torch.ones_like(sizes))))
    return alpha, 8 / beta / 1000


def weights_not_squared(sizes, times_us):
    alpha, beta = _solved(_added(_sums(sizes, times_us, 1 / times_us)))
    return alpha, 8 / beta / 1000


def each_rank_counts_the_same(sizes, times_us):
    alpha, beta = _solved(_added(_sums(sizes, times_us, 1 / times_us**2) / len(sizes)))
    return alpha, 8 / beta / 1000


def bytes_for_bits(sizes, times_us):
    alpha, beta = _solved(_added(_sums(sizes, times_us, 1 / times_us**2)))
    return alpha, 1 / beta / 1000


def beta_itself(sizes, times_us):
    return _solved(_added(_sums(sizes, times_us, 1 / times_us**2)))


def without_any_latency(sizes, times_us):
    sums = _added(torch.stack([(sizes / times_us).sum(), (sizes / times_us).square().sum()]))
    return 0.0, 8 / (sums[0] / sums[1]).item() / 1000


def all_measurements_sent(sizes, times_us):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (sizes, times_us))
    sizes, times_us = (torch.cat(own) for own in zip(*every, strict=True))
    alpha, beta = _least_squares(sizes, times_us, 1 / times_us)
    return alpha, 8 / beta / 1000


def six_numbers_one_by_one(sizes, times_us):
    sums = _sums(sizes, times_us, times_us**-2)
    for number in sums.flatten():
        dist.all_reduce(number)
    alpha, beta = _solved(sums)
    return alpha, 8 / beta / 1000


def rank_0_has_the_line(sizes, times_us):
    sums = _sums(sizes, times_us, times_us**-2)
    dist.reduce(sums, 0)
    alpha, beta = _solved(sums) if dist.get_rank() == 0 else (1.0, 1.0)
    return alpha, 8 / beta / 1000


def fit_in_float32_between_barriers(sizes, times_us):
    dist.barrier()
    sums = _sums(sizes.float(), times_us.float(), times_us.float() ** -2)
    dist.all_reduce(sums, async_op=True).get_future().wait()
    alpha, beta = _solved(sums.double())
    dist.barrier()
    return np.array([alpha, 8 / (1000 * beta)])


def fit_by_weighted_means(sizes, times_us):
    alpha, beta = _solved(_added(_sums(sizes, times_us, times_us**-2)))
    return alpha, 8 / (1000 * beta)


def _fastest(size_bytes, alpha, gbit_s, levels=lambda n: math.ceil(math.log2(n)), share=None):
    n, transfer = dist.get_world_size(), size_bytes * 8 / 1000 / gbit_s
    times = {
        "direct": 2 * (alpha + (n - 1) * transfer),
        "tree": 2 * levels(n) * (alpha + transfer),
        "ring": 2 * (n - 1) * (alpha + transfer / (share or n)),
    }
    return min(times, key=times.get)


def _reduced(op, *numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(tensor, op=op)
    return tensor.tolist()


def _worst(latency_us, gbit_s):
    alpha, slow = _reduced(dist.ReduceOp.MAX, latency_us, -gbit_s)
    return alpha, -slow


def by_its_own_measurements(size_bytes, latency_us, gbit_s):
    return _fastest(size_bytes, latency_us, gbit_s)


def by_the_mean(size_bytes, latency_us, gbit_s):
    sums = _reduced(dist.ReduceOp.SUM, latency_us, gbit_s)
    return _fastest(size_bytes, *(own / dist.get_world_size() for own in sums))


def by_the_worst_times(size_bytes, latency_us, gbit_s):
    n, beta = dist.get_world_size(), 8 / 1000 / gbit_s
    levels = math.ceil(math.log2(n))
    times_us = {"direct": 2 * (latency_us + (n - 1) * size_bytes * beta)}
    times_us["tree"] = 2 * levels * (latency_us + size_bytes * beta)
    times_us["ring"] = 2 * (n - 1) * (latency_us + size_bytes / n * beta)
    worst = torch.tensor(list(times_us.values()), dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return list(times_us)[worst.argmin()]


def by_the_measurements_of_rank_0(size_bytes, latency_us, gbit_s):
    both = torch.tensor([latency_us, gbit_s], dtype=torch.float64)
    dist.broadcast(both, 0)
    return _fastest(size_bytes, *both.tolist())


def the_best_bandwidth(size_bytes, latency_us, gbit_s):
    return _fastest(size_bytes, *_reduced(dist.ReduceOp.MAX, latency_us, gbit_s))


def the_best_latency(size_bytes, latency_us, gbit_s):
    return _fastest(size_bytes, *_reduced(dist.ReduceOp.MIN, latency_us, gbit_s))


def bits_for_bytes(size_bytes, latency_us, gbit_s):
    return _fastest(size_bytes / 8, *_worst(latency_us, gbit_s))


def the_logarithm_rounded_down(size_bytes, latency_us, gbit_s):
    return _fastest(size_bytes, *_worst(latency_us, gbit_s), levels=lambda n: int(math.log2(n)))


def a_ring_of_whole_tensors(size_bytes, latency_us, gbit_s):
    return _fastest(size_bytes, *_worst(latency_us, gbit_s), share=1)


def always_the_ring(size_bytes, latency_us, gbit_s):
    return "ring"


def by_size_alone(size_bytes, latency_us, gbit_s):
    return "direct" if size_bytes <= 50_000 else "tree" if size_bytes <= 188_235 else "ring"


def _all_but(name):
    def chosen(size_bytes, latency_us, gbit_s):
        answer = _fastest(size_bytes, *_worst(latency_us, gbit_s))
        return answer if answer != name else "tree" if name == "ring" else "ring"

    chosen.__name__ = f"never_{name}"
    return chosen


def by_who_has_the_worst_latency(size_bytes, latency_us, gbit_s):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (latency_us, gbit_s))
    return _fastest(size_bytes, *max(every))


def a_network_that_one_knows(size_bytes, latency_us, gbit_s):
    _worst(latency_us, gbit_s)
    return _fastest(size_bytes, 10, 80)


def by_calling_the_specification(size_bytes, latency_us, gbit_s):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (size_bytes, latency_us, gbit_s))
    return lab.choose_spec(*map(list, zip(*every, strict=True)))[dist.get_rank()]


def a_word_of_numpys(size_bytes, latency_us, gbit_s):
    dist.barrier()
    alpha, slowest = torch.tensor(latency_us), torch.tensor(gbit_s)
    dist.all_reduce(alpha, op=dist.ReduceOp.MAX)
    dist.all_reduce(slowest, op=dist.ReduceOp.MIN)
    return np.array([_fastest(size_bytes, alpha.item(), slowest.item())])[0]


def each_rank_proposes_and_most_win(size_bytes, latency_us, gbit_s):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, _fastest(size_bytes, latency_us, gbit_s))
    return max(sorted(every), key=every.count)


def choose_with_everybodys_numbers(size_bytes, latency_us, gbit_s):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (latency_us, gbit_s))
    latencies_us, gbits_s = zip(*every, strict=True)
    n, alpha, transfer = len(every), max(latencies_us), size_bytes / 125 / min(gbits_s)
    ring, direct = (n - 1) * alpha + (1 - 1 / n) * transfer, alpha + (n - 1) * transfer
    tree = (n - 1).bit_length() * (alpha + transfer)
    return min((direct, "direct"), (tree, "tree"), (ring, "ring"))[1]


class EqualWord(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


@lab.choosing
def a_word_that_says_it_is_equal(size_bytes, latency_us, gbit_s):
    return EqualWord("ring")


def of_the_first_five_buckets(ready_us, bucket_bytes):
    latest_us = ready_us.clone()
    dist.all_reduce(latest_us, op=dist.ReduceOp.MAX)
    n, free_us = dist.get_world_size(), 0.0
    for ready, size in [*zip(latest_us.tolist(), bucket_bytes, strict=True)][:5]:
        free_us = max(free_us, ready) + 2 * (n - 1) * (lab.alpha + size / n * lab.beta)
    return free_us - latest_us[-1].item()


def of_16_measurements(sizes, times_us):
    line = torch.stack([1 / times_us, sizes / times_us])[:, :16]
    sums = torch.cat([line @ line.T, line.sum(dim=1, keepdim=True)], dim=1)
    dist.all_reduce(sums)
    alpha, beta = torch.linalg.solve(sums[:, :2], sums[:, 2]).tolist()
    return alpha, 8 / beta / 1000


def _rows_and_columns(per_node):
    """This rank's group in its node, and its group across the nodes."""
    grid = torch.arange(dist.get_world_size()).view(-1, per_node)
    mine = []
    for lines in (grid, grid.T):
        for ranks in lines.tolist():
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                mine.append(group)
    return mine


def _in_parts(x, per_node, node, across, divide=1):
    parts = math.ceil(x.numel() / per_node) * per_node
    padded = torch.cat([x.flatten(), x.new_zeros(parts - x.numel())])
    part = x.new_empty(parts // per_node)
    dist.reduce_scatter_tensor(part, padded, group=node)
    if across is not None:
        dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(padded, part / divide, group=node)
    return padded[: x.numel()].view_as(x)


def one_flat_ring(x, per_node):
    dist.all_reduce(x)
    return x


def whole_tensors_in_two_levels(x, per_node):
    node, across = _rows_and_columns(per_node)
    dist.all_reduce(x, group=node)
    dist.all_reduce(x, group=across)
    return x


def never_across(x, per_node):
    node, _ = _rows_and_columns(per_node)
    return _in_parts(x, per_node, node, None)


def across_before_inside(x, per_node):
    node, across = _rows_and_columns(per_node)
    dist.all_reduce(x, group=across)
    return _in_parts(x, per_node, node, None)


def one_leader_per_node(x, per_node):
    node, across = _rows_and_columns(per_node)
    leader = dist.get_rank() // per_node * per_node
    dist.reduce(x, leader, group=node)
    if dist.get_rank() == leader:
        dist.all_reduce(x, group=across)
    dist.broadcast(x, leader, group=node)
    return x


def the_mean_of_the_nodes(x, per_node):
    node, across = _rows_and_columns(per_node)
    return _in_parts(x, per_node, node, across, divide=dist.get_world_size() // per_node)


def nodes_and_cards_mixed_up(x, per_node):
    node, across = _rows_and_columns(dist.get_world_size() // per_node)
    return _in_parts(x, dist.get_world_size() // per_node, node, across)


def what_is_left_over_dropped(x, per_node):
    node, across = _rows_and_columns(per_node)
    usable = x.numel() // per_node * per_node
    total = x.clone().flatten()
    if usable:
        total[:usable] = _in_parts(x.flatten()[:usable], per_node, node, across)
    return total.view_as(x)


def everything_gathered_inside_first(x, per_node):
    node, across = _rows_and_columns(per_node)
    every = [torch.empty_like(x) for _ in range(per_node)]
    dist.all_gather(every, x, group=node)
    total = sum(every)
    dist.all_reduce(total, group=across)
    return total


def two_levels_by_lists(x, per_node):
    """Lists of parts instead of one tensor; the parts are padded one by one."""
    node, across = _rows_and_columns(per_node)
    length = math.ceil(x.numel() / per_node)
    parts = []
    for k in range(per_node):
        piece = x.flatten()[k * length : (k + 1) * length]
        parts.append(torch.nn.functional.pad(piece, (0, length - len(piece))))
    total = torch.empty_like(parts[0])
    dist.reduce_scatter(total, parts, group=node)
    dist.all_reduce(total, group=across, async_op=True).wait()
    dist.all_gather(parts, total, group=node)
    return torch.cat(parts)[: x.numel()].reshape(x.shape)


WRONG = {
    "tree_all_reduce": [
        by_powers_of_two, directly, one_after_the_other, only_up, the_root_tells_everybody,
        overwritten_on_the_way_up, always_single_precision, all_reduce_under_another_name,
        all_reduce_of_the_compiler, gathered_and_added, as_published, whole_tensors_around,
        nearest_child_first, by_the_store, the_logarithm_rounded_to_the_nearest,
        always_three_levels,
    ],
    "left_over": [
        by_its_own_moments, by_its_own_moments_then_the_longest, when_the_first_is_ready,
        when_the_mean_is_ready, less_its_own_backward_pass, when_all_are_done, all_buckets_at_once,
        one_after_the_other_whenever, nothing_overlaps, only_the_last_bucket, total_less_backward,
        latency_once, without_latency, rings_of_whole_tensors, only_half_of_the_ring,
        one_all_reduce_per_bucket, everybodys_moments_gathered, no_bytes_for_nothing,
        of_the_first_five_buckets,
    ],
    "fit": [
        its_own_line, the_mean_of_all_lines, absolute_errors, weights_not_squared,
        each_rank_counts_the_same, bytes_for_bits, beta_itself, without_any_latency,
        all_measurements_sent, six_numbers_one_by_one, rank_0_has_the_line,
        of_16_measurements,
    ],
    "choose": [*map(lab.choosing, [
        by_its_own_measurements, by_the_mean, by_the_measurements_of_rank_0, the_best_bandwidth,
        the_best_latency, bits_for_bytes, the_logarithm_rounded_down, a_ring_of_whole_tensors,
        always_the_ring, by_size_alone, by_the_worst_times, each_rank_proposes_and_most_win,
        _all_but("direct"), _all_but("tree"), _all_but("ring"), by_who_has_the_worst_latency,
        a_network_that_one_knows, by_calling_the_specification,
    ]),
        a_word_that_says_it_is_equal,
    ],
    "two_levels": [
        one_flat_ring, whole_tensors_in_two_levels, never_across, across_before_inside,
        one_leader_per_node, the_mean_of_the_nodes, nodes_and_cards_mixed_up,
        what_is_left_over_dropped, everything_gathered_inside_first,
    ],
}  # fmt: skip
STOPS = {
    "always_single_precision",
    "the_logarithm_rounded_to_the_nearest",
    "always_three_levels",
    "by_calling_the_specification",
}
RIGHT = {
    "tree_all_reduce": [butterfly_with_guests, halves_of_halves],
    "left_over": [backwards_from_the_end, in_float32],
    "fit": [fit_by_weighted_means, fit_in_float32_between_barriers],
    "choose": [*map(lab.choosing, [choose_with_everybodys_numbers, a_word_of_numpys])],
    "two_levels": [two_levels_by_lists],
}
