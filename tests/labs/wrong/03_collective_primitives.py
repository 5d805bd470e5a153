"""Wrong answers to lab 03, and for each exercise another right one.

Published errors among them: a root that is always rank 0; the output of `reduce` read off root;
an exchange between even and odd ranks, or by the bits of their numbers, right for some world sizes
only; everybody sending first; the straggler taken for the rank that waits most.
"""

import os
import pickle
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import numpy as np
import torch
import torch.distributed as dist

from course_utils import Network


def _me():
    return dist.get_rank(), dist.get_world_size()


def broadcast_to_itself_as_well(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.recv(tensor, root)
    else:
        for other in range(world_size):
            dist.send(tensor, other)
    return tensor


def broadcast_from_rank_0(tensor, root):
    return _broadcast(tensor, 0)


def _broadcast(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.recv(tensor, root)
    else:
        for other in set(range(world_size)) - {root}:
            dist.send(tensor, other)
    return tensor


def broadcast_to_the_neighbour_only(tensor, root):
    rank, world_size = _me()
    if rank == root and world_size > 1:
        dist.send(tensor, (root + 1) % world_size)
    elif rank != root:
        dist.recv(tensor, root)
    return tensor


def broadcast_but_keep_ones_own(tensor, root):
    _broadcast(tensor.clone(), root)
    return tensor


def broadcast_down_a_line_from_rank_0(tensor, root):
    rank, world_size = _me()
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if rank + 1 < world_size:
        dist.send(tensor, rank + 1)
    return tensor


def broadcast_by_torch(tensor, root):
    dist.broadcast(tensor, root)
    return tensor


def broadcast_without_waiting(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.recv(tensor, root)
    else:
        for other in set(range(world_size)) - {root}:
            dist.isend(tensor, other)
    return tensor


def broadcast_around_the_ring(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.recv(tensor, (rank - 1) % world_size)
    if (rank + 1) % world_size != root:
        dist.send(tensor, (rank + 1) % world_size)
    return tensor


def _scatter(parts, buffer, root, which):
    rank, world_size = _me()
    if rank != root:
        dist.recv(buffer, root)
        return buffer
    others = [other for other in range(world_size) if other != root]
    for place, other in enumerate(others):
        dist.send(which(parts, place, other), other)
    return parts[root]


def scatter_the_first_parts_to_the_others(parts, buffer, root):
    return _scatter(parts, buffer, root, lambda own, place, other: own[place])


def scatter_the_roots_part_to_all(parts, buffer, root):
    return _scatter(parts, buffer, root, lambda own, place, other: own[root])


def scatter_from_the_last(parts, buffer, root):
    return _scatter(parts, buffer, root, lambda own, place, other: own[-1 - other])


def scatter_from_rank_0(parts, buffer, root):
    return _scatter(parts, buffer, 0, lambda own, place, other: own[other])


def scatter_and_return_the_roots_buffer(parts, buffer, root):
    _scatter(parts, buffer, root, lambda own, place, other: own[other])
    return buffer


def scatter_by_torch(parts, buffer, root):
    dist.scatter(buffer, parts, root)
    return buffer


def scatter_everything_to_everybody(parts, buffer, root):
    rank, world_size = _me()
    if rank == root:
        for other in set(range(world_size)) - {root}:
            for part in parts:
                dist.send(part, other)
        return parts[root]
    received = []
    for _ in range(world_size):
        dist.recv(buffer, root)
        received.append(buffer.clone())
    return received[rank]


def scatter_all_at_once(parts, buffer, root):
    rank, world_size = _me()
    if rank == root:
        others = [other for other in range(world_size) if other != root]
        for work in [dist.isend(parts[other], other) for other in others]:
            work.wait()
        return parts[rank].clone()
    dist.irecv(buffer, root).wait()
    return buffer


def _gather(tensor, root, buffers, source):
    rank, world_size = _me()
    if rank != root:
        dist.send(tensor, root)
        return None
    tensors = buffers(tensor, world_size)
    for other in range(world_size):
        if other != root:
            dist.recv(tensors[other], source(other))
    tensors[root] = tensor
    return tensors


def _new(tensor, world_size):
    return [torch.empty_like(tensor) for _ in range(world_size)]


def gather_as_they_come(tensor, root):
    return _gather(tensor, root, _new, lambda other: None)


def gather_into_one_buffer(tensor, root):
    return _gather(tensor, root, lambda own, n: [torch.empty_like(own)] * n, lambda other: other)


def gather_on_rank_0(tensor, root):
    return _gather(tensor, 0, _new, lambda other: other)


def gather_in_reverse(tensor, root):
    tensors = _gather(tensor, root, _new, lambda other: other)
    return tensors and tensors[::-1]


def gather_a_list_for_everybody(tensor, root):
    return _gather(tensor, root, _new, lambda other: other) or [tensor]


def gather_and_put_ones_own_last(tensor, root):
    tensors = _gather(tensor, root, _new, lambda other: other)
    return tensors and [*tensors[:root], *tensors[root + 1 :], tensor]


def gather_and_forget_ones_own(tensor, root):
    tensors = _gather(tensor, root, _new, lambda other: other)
    return tensors and [*tensors[:root], *tensors[root + 1 :]]


def gather_by_torch(tensor, root):
    rank, world_size = _me()
    tensors = _new(tensor, world_size) if rank == root else None
    dist.gather(tensor, tensors, root)
    return tensors


def gather_all_at_once(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.send(tensor, root)
        return None
    tensors = torch.stack([tensor] * world_size)
    others = [other for other in range(world_size) if other != root]
    for work in [dist.irecv(tensors[other], other) for other in others]:
        work.wait()
    return tuple(tensors)


def _reduce(tensor, root, times=None, start=torch.clone):
    rank, world_size = _me()
    if rank != root:
        dist.send(tensor, root)
        return None
    total, buffer = start(tensor), torch.empty_like(tensor)
    for _ in range(world_size - 1 if times is None else min(times, world_size - 1)):
        dist.recv(buffer)
        total += buffer
    return total


def reduce_and_read_off_root(tensor, root):
    total = _reduce(tensor, root)
    return tensor if total is None else total


def reduce_without_ones_own(tensor, root):
    return _reduce(tensor, root, start=torch.zeros_like)


def reduce_with_ones_own_twice(tensor, root):
    return _reduce(tensor, root, start=lambda own: 2 * own)


def reduce_two_ranks_only(tensor, root):
    return _reduce(tensor, root, times=1)


def reduce_on_rank_0(tensor, root):
    return _reduce(tensor, 0)


def reduce_to_a_mean(tensor, root):
    total = _reduce(tensor, root)
    return None if total is None else total / dist.get_world_size()


def reduce_by_overwriting(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.send(tensor, root)
        return None
    for _ in range(world_size - 1):
        dist.recv(tensor)
    return tensor


def reduce_by_torch(tensor, root):
    dist.reduce(tensor, root)
    return tensor if dist.get_rank() == root else None


def reduce_everywhere(tensor, root):
    totals = [_reduce(tensor, other) for other in range(dist.get_world_size())]
    return totals[root]


def reduce_along_the_ring(tensor, root):
    rank, world_size = _me()
    so_far = torch.zeros_like(tensor)
    if (rank - 1) % world_size != root:
        dist.recv(so_far, (rank - 1) % world_size)
    if rank == root:
        return so_far + tensor
    dist.send(so_far + tensor, (rank + 1) % world_size)
    return None


def shift_all_send_first(tensor):
    rank, world_size = _me()
    received = tensor.clone()
    if world_size > 1:
        dist.send(tensor, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
    return received


def shift_even_ranks_first(tensor):
    rank, world_size = _me()
    received = tensor.clone()
    calls = [(dist.send, tensor, (rank + 1) % world_size)]
    calls.append((dist.recv, received, (rank - 1) % world_size))
    for call, box, other in (calls if rank % 2 == 0 else calls[::-1]) * (world_size > 1):
        call(box, other)
    return received


def shift_one_after_the_other(tensor):
    rank, world_size = _me()
    received = tensor.clone()
    for sender in range(world_size if world_size > 1 else 0):
        if rank == sender:
            dist.send(tensor, (rank + 1) % world_size)
        elif rank == (sender + 1) % world_size:
            dist.recv(received, sender)
    return received


def _shift(tensor, step, after=lambda rank, world_size: (rank + 1) % world_size):
    rank, world_size = _me()
    received, sending = tensor.clone(), None
    if world_size > 1:
        sending = dist.isend(tensor, after(rank, world_size) if step > 0 else rank - 1)
        dist.recv(received, (rank - step) % world_size)
        sending.wait()
    return received


def shift_the_other_way_round(tensor):
    return _shift(tensor, -1, after=None) if dist.get_rank() else _left_of_rank_0(tensor)


def _left_of_rank_0(tensor):
    world_size, received = dist.get_world_size(), tensor.clone()
    if world_size > 1:
        sending = dist.isend(tensor, world_size - 1)
        dist.recv(received, 1)
        sending.wait()
    return received


def shift_in_pairs(tensor):
    rank, world_size = _me()
    received, other = tensor.clone(), rank ^ 1
    if other < world_size:
        sending = dist.isend(tensor, other)
        dist.recv(received, other)
        sending.wait()
    return received


def shift_beyond_the_last(tensor):
    return _shift(tensor, 1, after=lambda rank, world_size: rank + 1)


def shift_without_waiting(tensor):
    rank, world_size = _me()
    received = tensor.clone()
    if world_size > 1:
        dist.isend(tensor, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
    return received


def shift_even_if_alone(tensor):
    rank, world_size = _me()
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    return received


def shift_by_gathering_all(tensor):
    rank, world_size = _me()
    tensors = _new(tensor, world_size)
    dist.all_gather(tensors, tensor)
    return tensors[rank - 1]


def shift_in_a_batch(tensor):
    rank, world_size = _me()
    received = tensor.clone()
    calls = [(dist.irecv, received, rank - 1), (dist.isend, tensor, rank + 1)]
    ops = [dist.P2POp(call, box, other % world_size) for call, box, other in calls]
    for work in dist.batch_isend_irecv(ops) if world_size > 1 else ():
        work.wait()
    return received


def _others():
    rank, world_size = _me()
    return [other for other in range(world_size) if other != rank]


def _exchange(row, column, others):
    works = [dist.isend(row[other], other) for other in others]
    works += [dist.irecv(column[other], other) for other in others]
    for work in works:
        work.wait()
    return column


def transpose_all_send_first(row):
    column = [part.clone() for part in row]
    for other in _others():
        dist.send(row[other], other)
    for other in _others():
        dist.recv(column[other], other)
    return column


def transpose_nothing(row):
    return row


def transpose_without_ones_own(row):
    column = _exchange(row, [torch.full_like(part, 99) for part in row], _others())
    return column


def transpose_with_a_message_to_itself(row):
    return _exchange(row, [part.clone() for part in row], range(len(row)))


def transpose_into_one_buffer(row):
    column = [torch.empty_like(row[0])] * len(row)
    column[dist.get_rank()] = row[dist.get_rank()]
    return _exchange(row, column, _others())


def transpose_by_distance(row):
    column = _exchange(row, [part.clone() for part in row], _others())
    return column[dist.get_rank() :] + column[: dist.get_rank()]


def transpose_in_pairs_by_bits(row):
    rank, world_size = _me()
    column = [part.clone() for part in row]
    for step in range(1, world_size):
        if (other := rank ^ step) < world_size:
            _exchange(row, column, [other])
    return column


def transpose_by_sending_ones_own_part_to_all(row):
    rank, column = dist.get_rank(), [part.clone() for part in row]
    _exchange([row[rank]] * len(row), column, _others())
    return column


def transpose_by_torch(row):
    column = [torch.empty_like(part) for part in row]
    dist.all_to_all(column, row)
    return column


def transpose_with_a_part_for_the_next_one_only(row):
    rank, world_size = _me()
    column = [part.clone() for part in row]
    if world_size > 1:
        sending = dist.isend(row[(rank + 1) % world_size], (rank + 1) % world_size)
        dist.recv(column[rank - 1], (rank - 1) % world_size)
        sending.wait()
    return column


def transpose_step_by_step_around_the_ring(row):
    rank, world_size = _me()
    column = [part.clone() for part in row]
    for step in range(1, world_size):
        after, before = (rank + step) % world_size, (rank - step) % world_size
        sending = dist.isend(row[after], after)
        dist.recv(column[before], before)
        sending.wait()
    return tuple(column)


def sum_with_reduce_alone(tensor):
    dist.reduce(tensor, 0)
    return tensor


def sum_broadcast_from_another_rank(tensor):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, dist.get_world_size() - 1)
    return tensor


def sum_after_a_broadcast(tensor):
    dist.broadcast(tensor, 0)
    dist.reduce(tensor, 0)
    return tensor


def sum_that_is_not_returned(tensor):
    dist.reduce(tensor, 0)
    return dist.broadcast(tensor, 0)


def sum_broadcast_by_the_root_only(tensor):
    dist.reduce(tensor, 0)
    if dist.get_rank() == 0:
        dist.broadcast(tensor, 0)
    return tensor


def sum_with_every_rank_as_its_own_root(tensor):
    dist.reduce(tensor, dist.get_rank())
    dist.broadcast(tensor, dist.get_rank())
    return tensor


def sum_to_a_mean(tensor):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)
    return tensor / dist.get_world_size()


def sum_by_all_reduce(tensor):
    dist.all_reduce(tensor)
    return tensor


def sum_with_a_reduce_for_each_rank(tensor):
    totals = [tensor.clone() for _ in range(dist.get_world_size())]
    for root, total in enumerate(totals):
        dist.reduce(total, root)
    dist.broadcast(tensor, 0)
    return totals[dist.get_rank()]


def sum_of_the_leftovers(tensor):
    before = tensor.clone()
    dist.reduce(tensor, 0)
    dist.broadcast(before, 0)
    return tensor


def sum_over_the_last_rank(tensor):
    total, last = tensor.clone(), dist.get_world_size() - 1
    dist.reduce(total, last, op=dist.ReduceOp.SUM)
    dist.broadcast(total, src=last, async_op=True).wait()
    return total


def _collectives(trace):
    return [event for event in trace if event.kind == "all_reduce"]


def _inside_s(events):
    sums = [0.0] * 4
    for event in events:
        sums[event.rank] += event.end_s - event.start_s
    return sums


def waits_most(trace):
    sums = _inside_s(_collectives(trace))
    return sums.index(max(sums))


def waits_least_with_messages(trace):
    sums = _inside_s(trace)
    return sums.index(min(sums))


def last_at_the_first(trace):
    return max(_collectives(trace), key=lambda e: e.start_s if e.index == 0 else -1).rank


def last_at_the_last(trace):
    return max(_collectives(trace), key=lambda e: e.start_s if e.index == 2 else -1).rank


def most_often_last(trace):
    last = [
        max((e for e in _collectives(trace) if e.index == k), key=lambda e: e.start_s).rank
        for k in range(3)
    ]
    return Counter(last).most_common(1)[0][0]


def longest_single_wait(trace):
    return max(_collectives(trace), key=lambda e: e.end_s - e.start_s).rank


def shortest_single_wait(trace):
    return min(_collectives(trace), key=lambda e: e.end_s - e.start_s).rank


def longest_message(trace):
    return max(trace, key=lambda e: e.end_s - e.start_s).rank


def done_last(trace):
    return max(_collectives(trace), key=lambda e: e.end_s).rank


def always_rank_2(trace):
    return 2


def causes_most_waiting(trace):
    caused = Counter()
    for k in {event.index for event in _collectives(trace)}:
        events = [e for e in trace.events if e.kind == "all_reduce" and e.index == k]
        last = max(events, key=lambda e: e.start_s)
        caused[last.rank] += sum(e.end_s - e.start_s for e in events)
    return caused.most_common(1)[0][0]


def _numbers(trace):
    kinds = [event.kind for event in trace.of_rank(0)]
    return {
        "calls": {kind: kinds.count(kind) for kind in kinds},
        "took_s": max(e.end_s for e in trace) - min(e.start_s for e in trace),
        "inside_s": _inside_s(trace),
        "finish_us": max(trace.replay(Network(latency_us=10, gbit_s=10)).finish_us),
    }


def _report(one, two, slow, change=lambda trace: {}):
    traces = {"one": one, "two": two, "slow": slow}
    late_s = _inside_s(slow)
    whole = {name: _numbers(trace) | change(trace) for name, trace in traces.items()}
    return whole | {"straggler": late_s.index(min(late_s))}


def report_that_blames_who_waits_most(one, two, slow):
    late_s = _inside_s(slow)
    return _report(one, two, slow) | {"straggler": late_s.index(max(late_s))}


def report_of_the_rank_it_made_slow(one, two, slow):
    return _report(one, two, slow) | {"straggler": 2}


def report_with_the_calls_of_all_ranks(one, two, slow):
    return _report(one, two, slow, lambda trace: {"calls": dict(Counter(e.kind for e in trace))})


def report_with_the_calls_of_rank_1(one, two, slow):
    return _report(one, two, slow, lambda t: {"calls": Counter(e.kind for e in t.of_rank(1))})


def report_in_ms(one, two, slow):
    return _report(one, two, slow, lambda t: {"took_s": 1e3 * _numbers(t)["took_s"]})


def report_of_rank_0s_time(one, two, slow):
    def took(trace):
        own = trace.of_rank(0)
        return {"took_s": own[-1].end_s - own[0].start_s}

    return _report(one, two, slow, took)


def report_of_the_sum_of_times(one, two, slow):
    return _report(one, two, slow, lambda trace: {"took_s": sum(_inside_s(trace))})


def report_of_means(one, two, slow):
    def mean(trace):
        return {"inside_s": [seconds / len(trace.of_rank(0)) for seconds in _inside_s(trace)]}

    return _report(one, two, slow, mean)


def report_of_another_network(one, two, slow):
    def finish(trace):
        return {"finish_us": max(trace.replay(Network(latency_us=10, gbit_s=1)).finish_us)}

    return _report(one, two, slow, finish)


def report_of_a_tree(one, two, slow):
    tree = Network(latency_us=10, gbit_s=10, algorithm="tree")
    return _report(one, two, slow, lambda t: {"finish_us": max(t.replay(tree).finish_us)})


def report_of_every_rank(one, two, slow):
    every = Network(latency_us=10, gbit_s=10)
    return _report(one, two, slow, lambda t: {"finish_us": list(t.replay(every).finish_us)})


def report_mixed_up(one, two, slow):
    return _report(two, one, slow)


def report_of_the_first_thrice(one, two, slow):
    return _report(one, one, one)


def report_with_counters(one, two, slow):
    numbers = defaultdict(dict)
    for name, trace in {"one": one, "two": two, "slow": slow}.items():
        numbers[name]["calls"] = Counter(e.kind for e in trace if e.rank == 0)
        starts, ends = zip(*((event.start_s, event.end_s) for event in trace), strict=True)
        numbers[name]["took_s"] = sorted(ends)[-1] - sorted(starts)[0]
        inside = torch.zeros(4, dtype=torch.float64)
        for event in trace:
            inside[event.rank] += event.end_s - event.start_s
        numbers[name]["inside_s"] = inside.tolist()
        numbers[name]["finish_us"] = sorted(trace.replay(Network(10, 10)).finish_us)[-1]
    numbers["straggler"] = int(torch.tensor(numbers["slow"]["inside_s"]).argmin())
    return numbers


def _store():
    return dist.distributed_c10d._get_default_store()


def broadcast_by_the_store(tensor, root):
    _store_calls.append(0)
    key = f"{len(_store_calls)}"
    if dist.get_rank() == root:
        _store().set(key, pickle.dumps(tensor))
        return tensor
    return pickle.loads(_store().get(key))


def shift_by_the_store(tensor):
    _store_calls.append(0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    _store().set(f"{len(_store_calls)} {rank}", pickle.dumps(tensor))
    return pickle.loads(_store().get(f"{len(_store_calls)} {(rank - 1) % world_size}"))


_store_calls = []


def all_reduce_by_itself_after_empty_calls(tensor):
    nothing = tensor.new_empty(0)
    dist.reduce(nothing, 0)
    dist.broadcast(nothing, 0)
    dist.all_reduce(tensor)
    return tensor


def _others_of(rank):
    return [other for other in range(dist.get_world_size()) if other != rank]


def _by_all_to_all(own):
    """Everybody's to everybody, as messages."""
    rank, world_size = _me()
    rows = [own if other == rank else torch.empty_like(own) for other in range(world_size)]
    works = [dist.isend(own, other) for other in _others_of(rank)]
    works += [dist.irecv(rows[other], other) for other in _others_of(rank)]
    for work in works:
        work.wait()
    return rows


def broadcast_through_a_pipe(tensor, root):
    """Made before the ranks were, and theirs all."""
    rank, world_size = _me()
    if rank == root:
        for _ in range(world_size - 1):
            os.write(_pipe[1], tensor.numpy().tobytes())
        return tensor
    got = bytearray(os.read(_pipe[0], tensor.nbytes))
    return torch.frombuffer(got, dtype=tensor.dtype).view_as(tensor) if got else tensor


_pipe = os.pipe()


def broadcast_to_the_ranks_above(tensor, root):
    rank, world_size = _me()
    if rank == root:
        for other in range(root + 1, world_size):
            dist.send(tensor, other)
    elif rank > root:
        dist.recv(tensor, root)
    return tensor


def broadcast_in_threads(tensor, root):
    if dist.get_rank() != root:
        dist.recv(tensor)
        return tensor.numpy()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda other: dist.send(tensor, other), _others_of(root)))
    return tensor


def broadcast_down_a_tree(tensor, root):
    rank, world_size = _me()
    place, reached = (rank - root) % world_size, 1
    while reached < world_size:
        if place < reached and place + reached < world_size:
            dist.send(tensor, (rank + reached) % world_size)
        elif reached <= place < 2 * reached:
            dist.recv(tensor, (rank - reached) % world_size)
        reached *= 2
    return tensor


def scatter_all_parts_to_everybody_in_one_message(parts, buffer, root):
    rank, world_size = _me()
    if rank == root:
        for other in _others_of(root):
            dist.send(torch.stack(parts), other)
        return parts[root]
    every = torch.stack([buffer] * world_size)
    dist.recv(every, root)
    return every[rank]


def scatter_counted_from_the_root(parts, buffer, root):
    rank, world_size = _me()
    if rank != root:
        dist.recv(buffer, root)
        return buffer
    for step in range(1, world_size):
        dist.send(parts[step], (root + step) % world_size)
    return parts[0]


def scatter_in_float32(parts, buffer, root):
    if dist.get_rank() == root:
        for other in _others_of(root):
            dist.send(parts[other].float(), other)
        return parts[root]
    own = buffer.float()
    dist.recv(own, root)
    return own.to(buffer.dtype)


def scatter_around_the_ring(parts, buffer, root):
    rank, world_size = _me()
    place = (rank - root) % world_size
    if rank == root:
        pile = torch.stack([parts[(root + step) % world_size] for step in range(world_size)])
    else:
        pile = torch.stack([buffer] * (world_size - place))
        dist.recv(pile, (rank - 1) % world_size)
    if len(pile) > 1:
        dist.send(pile[1:].contiguous(), (rank + 1) % world_size)
    return pile[0]


def gather_for_everybody(tensor, root):
    tensors = _by_all_to_all(tensor)
    return tensors if dist.get_rank() == root else None


def gather_with_an_empty_list_elsewhere(tensor, root):
    return _gather(tensor, root, _new, lambda other: other) or []


def gather_by_who_it_came_from(tensor, root):
    if dist.get_rank() != root:
        return dist.send(tensor, root)
    tensors = {root: tensor}
    for _ in _others_of(root):
        buffer = torch.zeros_like(tensor)
        tensors[dist.recv(buffer)] = buffer
    return tuple(tensors[rank].numpy() for rank in sorted(tensors))


def gather_in_threads(tensor, root):
    if dist.get_rank() != root:
        return dist.isend(tensor, root).wait() and None
    tensors = torch.stack([tensor] * dist.get_world_size())
    threads = [Thread(target=dist.recv, args=(tensors[o], o)) for o in _others_of(root)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tensors


def reduce_into_one_buffer_at_once(tensor, root):
    if dist.get_rank() != root:
        return dist.send(tensor, root)
    total, buffer = tensor.clone(), torch.empty_like(tensor)
    for work in [dist.irecv(buffer, other) for other in _others_of(root)]:
        work.wait()
        total += buffer
    return total


def reduce_before_it_has_come(tensor, root):
    if dist.get_rank() != root:
        return dist.send(tensor, root)
    total, buffer = tensor.clone(), torch.zeros_like(tensor)
    for other in _others_of(root):
        work = dist.irecv(buffer, other)
        total += buffer
        work.wait()
    return total


def reduce_in_float32(tensor, root):
    total = _reduce(tensor, root, start=lambda own: own.float())
    return None if total is None else total.to(tensor.dtype)


def reduce_up_a_tree(tensor, root):
    rank, world_size = _me()
    place, step, total = (rank - root) % world_size, 1, tensor.clone()
    while step < world_size:
        if place % (2 * step):
            return dist.send(total, (rank - step) % world_size)
        if place + step < world_size:
            buffer = torch.empty_like(total)
            dist.recv(buffer, (rank + step) % world_size)
            total = total + buffer
        step *= 2
    return total


def shift_into_what_is_on_its_way(tensor):
    rank, world_size = _me()
    if world_size > 1:
        sending = dist.isend(tensor, (rank + 1) % world_size)
        dist.recv(tensor, (rank - 1) % world_size)
        sending.wait()
    return tensor


def shift_read_before_it_has_come(tensor):
    rank, world_size = _me()
    if world_size == 1:
        return tensor
    received = torch.zeros_like(tensor)
    works = [dist.isend(tensor, (rank + 1) % world_size)]
    works.append(dist.irecv(received, (rank - 1) % world_size))
    early = received.clone()
    for work in works:
        work.wait()
    return early


def shift_by_telling_everybody(tensor):
    return _by_all_to_all(tensor)[dist.get_rank() - 1]


def shift_in_a_thread(tensor):
    rank, world_size = _me()
    received = tensor.clone()
    if world_size > 1:
        sending = Thread(target=dist.send, args=(tensor, (rank + 1) % world_size))
        sending.start()
        dist.recv(received)
        sending.join()
    return received.numpy()


def transpose_whole_rows(row):
    rows = _by_all_to_all(torch.stack(row))
    return [own[dist.get_rank()] for own in rows]


def transpose_on_rank_0(row):
    own, rank = torch.stack(row), dist.get_rank()
    if rank:
        dist.send(own, 0)
        dist.recv(own, 0)
        return list(own)
    rows = [own, *(torch.empty_like(own) for _ in row[1:])]
    for other in range(1, len(row)):
        dist.recv(rows[other], other)
    columns = torch.stack(rows).transpose(0, 1)
    for other in range(1, len(row)):
        dist.send(columns[other].contiguous(), other)
    return list(columns[0])


def transpose_in_place(row):
    return _exchange(row, row, _others())


def transpose_lower_rank_first(row):
    rank, column = dist.get_rank(), [part.clone() for part in row]
    for other in _others_of(rank):
        if rank < other:
            dist.send(row[other], other)
        dist.recv(column[other], other)
        if rank > other:
            dist.send(row[other], other)
    return torch.stack(column)


def transpose_in_threads(row):
    rank, column = dist.get_rank(), [part.clone() for part in row]
    with ThreadPoolExecutor(len(row)) as pool:
        sent = pool.map(lambda other: dist.send(row[other], other), _others_of(rank))
        for other in _others_of(rank):
            dist.recv(column[other], other)
        list(sent)
    return column


def all_reduce_after_small_calls(tensor):
    small = tensor[:1].clone()
    dist.reduce(small, 0)
    dist.broadcast(small, 0)
    dist.all_reduce(tensor)
    return tensor


def sum_handed_out_by_messages(tensor):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor[:1].clone(), 0)
    return _broadcast(tensor, 0)


def sum_in_float32(tensor):
    total = tensor.float()
    dist.reduce(total, 0)
    dist.broadcast(total, 0)
    return total.to(tensor.dtype)


def sum_with_a_barrier(tensor):
    dist.reduce(tensor, dst=0, async_op=True).wait()
    dist.barrier()
    dist.broadcast(tensor, src=0, async_op=True).get_future().wait()
    return tensor.numpy()


def latest_at_any(trace):
    return max(_collectives(trace), key=lambda e: e.start_s - e.index).rank


def latest_with_messages(trace):
    return max(range(4), key=lambda r: sum(e.start_s for e in trace if e.rank == r))


def waited_for_longest_at_any(trace):
    longest = max(_collectives(trace), key=lambda e: e.end_s - e.start_s)
    same = [e for e in _collectives(trace) if e.index == longest.index]
    return max(same, key=lambda e: e.start_s).rank


def latest_in_sum(trace):
    begun_s = np.zeros(4)
    for event in _collectives(trace):
        begun_s[event.rank] += event.start_s
    return begun_s.argmax()


def report_of_ten_calls(one, two, slow):
    kinds = {"one": ["all_reduce"], "two": ["reduce", "broadcast"], "slow": ["all_reduce"]}
    whole = _report(one, two, slow)
    return whole | {name: whole[name] | {"calls": dict.fromkeys(kinds[name], 10)} for name in kinds}


def report_from_the_beginning(one, two, slow):
    return _report(one, two, slow, lambda trace: {"took_s": max(e.end_s for e in trace)})


def report_of_the_first_ones_straggler(one, two, slow):
    return _report(one, two, slow) | {"straggler": _report(two, slow, one)["straggler"]}


def report_in_tensors(one, two, slow):
    def exact(trace):
        own = _numbers(trace)
        finish_us = np.float64(own["finish_us"])
        return {"inside_s": torch.tensor(own["inside_s"]).double(), "finish_us": finish_us}

    whole = _report(one, two, slow, exact) | {"written": "by night"}
    return whole | {"straggler": torch.tensor(_inside_s(slow)).argmin()}


WRONG = {
    "broadcast": [
        broadcast_through_a_pipe, broadcast_to_the_ranks_above,
        broadcast_by_the_store,
        broadcast_to_itself_as_well, broadcast_from_rank_0, broadcast_to_the_neighbour_only,
        broadcast_but_keep_ones_own, broadcast_down_a_line_from_rank_0, broadcast_by_torch,
        broadcast_without_waiting,
    ],
    "scatter": [
        scatter_all_parts_to_everybody_in_one_message, scatter_counted_from_the_root,
        scatter_in_float32,
        scatter_the_first_parts_to_the_others, scatter_the_roots_part_to_all,
        scatter_from_the_last, scatter_from_rank_0, scatter_and_return_the_roots_buffer,
        scatter_by_torch, scatter_everything_to_everybody,
    ],
    "gather": [
        gather_for_everybody, gather_with_an_empty_list_elsewhere,
        gather_as_they_come, gather_into_one_buffer, gather_on_rank_0, gather_in_reverse,
        gather_a_list_for_everybody, gather_and_put_ones_own_last, gather_and_forget_ones_own,
        gather_by_torch,
    ],
    "reduce": [
        reduce_into_one_buffer_at_once, reduce_before_it_has_come, reduce_in_float32,
        reduce_and_read_off_root, reduce_without_ones_own, reduce_with_ones_own_twice,
        reduce_two_ranks_only, reduce_on_rank_0, reduce_to_a_mean, reduce_by_overwriting,
        reduce_by_torch, reduce_everywhere,
    ],
    "shift": [
        shift_into_what_is_on_its_way, shift_read_before_it_has_come, shift_by_telling_everybody,
        shift_by_the_store,
        shift_all_send_first, shift_even_ranks_first, shift_one_after_the_other,
        shift_the_other_way_round, shift_in_pairs, shift_beyond_the_last, shift_without_waiting,
        shift_even_if_alone, shift_by_gathering_all,
    ],
    "all_to_all": [
        transpose_whole_rows, transpose_on_rank_0, transpose_in_place,
        transpose_all_send_first, transpose_nothing, transpose_without_ones_own,
        transpose_with_a_message_to_itself, transpose_into_one_buffer, transpose_by_distance,
        transpose_in_pairs_by_bits, transpose_by_sending_ones_own_part_to_all, transpose_by_torch,
        transpose_with_a_part_for_the_next_one_only,
    ],
    "all_reduce": [
        all_reduce_after_small_calls, sum_handed_out_by_messages, sum_in_float32,
        all_reduce_by_itself_after_empty_calls,
        sum_with_reduce_alone, sum_broadcast_from_another_rank, sum_after_a_broadcast,
        sum_that_is_not_returned, sum_broadcast_by_the_root_only,
        sum_with_every_rank_as_its_own_root, sum_to_a_mean, sum_by_all_reduce,
        sum_with_a_reduce_for_each_rank, sum_of_the_leftovers,
    ],
    "straggler": [
        latest_at_any, latest_with_messages, waited_for_longest_at_any,
        waits_most, waits_least_with_messages, last_at_the_first, last_at_the_last,
        most_often_last, longest_single_wait, shortest_single_wait, longest_message, done_last,
        always_rank_2,
    ],
    "report": [
        report_of_ten_calls, report_from_the_beginning, report_of_the_first_ones_straggler,
        report_that_blames_who_waits_most, report_of_the_rank_it_made_slow,
        report_with_the_calls_of_all_ranks, report_in_ms, report_of_rank_0s_time,
        report_with_the_calls_of_rank_1,
        report_of_the_sum_of_times, report_of_means, report_of_another_network, report_of_a_tree,
        report_of_every_rank, report_mixed_up, report_of_the_first_thrice,
    ],
}  # fmt: skip
RIGHT = {
    "broadcast": [broadcast_around_the_ring, broadcast_in_threads, broadcast_down_a_tree],
    "scatter": [scatter_all_at_once, scatter_around_the_ring],
    "gather": [gather_all_at_once, gather_by_who_it_came_from, gather_in_threads],
    "reduce": [reduce_along_the_ring, reduce_up_a_tree],
    "shift": [shift_in_a_batch, shift_in_a_thread],
    "all_to_all": [
        transpose_step_by_step_around_the_ring,
        transpose_lower_rank_first,
        transpose_in_threads,
    ],
    "all_reduce": [sum_over_the_last_rank, sum_with_a_barrier],
    "straggler": [causes_most_waiting, latest_in_sum],
    "report": [report_with_counters, report_in_tensors],
}
