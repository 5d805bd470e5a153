"""Wrong answers to lab 03, and for each exercise another right one.

Published errors among them: a root that is always rank 0; an exchange by the bits of the ranks'
numbers, right for some world sizes only; everybody sending first; whole tensors around a ring; a
column summed in place, with its gaps; the straggler taken for the rank that waits most.
"""

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.distributed as dist

from course_utils import Network


def _me():
    return dist.get_rank(), dist.get_world_size()


def _lengths(tensor, root, receive, own_place=True):
    """Both messages of every rank; `receive(buffer, other)` receives."""
    rank, world_size = _me()
    if rank != root:
        dist.send(torch.tensor([len(tensor)]), root)
        dist.send(tensor, root)
        return None
    tensors = []
    for other in range(world_size):
        if other == root:
            tensors += [tensor] * own_place
            continue
        length = torch.empty(1, dtype=torch.int64)
        receive(length, other)
        tensors.append(tensor.new_empty(length.item()))
        receive(tensors[-1], other)
    return tensors


def gather_of_ones_own_length(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.send(tensor, root)
        return None
    tensors = [torch.empty_like(tensor) for _ in range(world_size)]
    for other in range(world_size):
        if other != root:
            dist.recv(tensors[other], other)
    tensors[root] = tensor
    return tensors


def gather_on_rank_0(tensor, root):
    return _lengths(tensor, 0, dist.recv)


def gather_in_reverse(tensor, root):
    tensors = _lengths(tensor, root, dist.recv)
    return tensors and tensors[::-1]


def gather_a_list_for_everybody(tensor, root):
    return _lengths(tensor, root, dist.recv) or [tensor]


def gather_with_an_empty_list_elsewhere(tensor, root):
    return _lengths(tensor, root, dist.recv) or []


def gather_and_forget_ones_own(tensor, root):
    return _lengths(tensor, root, dist.recv, own_place=False)


def gather_and_put_ones_own_last(tensor, root):
    tensors = _lengths(tensor, root, dist.recv, own_place=False)
    return tensors and [*tensors, tensor]


def gather_without_the_empty_ones(tensor, root):
    tensors = _lengths(tensor, root, dist.recv)
    return tensors and [each for each in tensors if len(each)]


def gather_in_one_tensor(tensor, root):
    tensors = _lengths(tensor, root, dist.recv)
    return tensors and torch.cat(tensors)


def gather_in_float32(tensor, root):
    tensors = _lengths(tensor.float(), root, dist.recv)
    return tensors and [each.to(tensor.dtype) for each in tensors]


def gather_number_by_number(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.send(torch.tensor([len(tensor)]), root)
        for number in tensor:
            dist.send(number.clone(), root)
        return None
    tensors, length = [], torch.empty(1, dtype=torch.int64)
    for other in range(world_size):
        if other != root:
            dist.recv(length, other)
        tensors.append(tensor if other == root else tensor.new_empty(length.item()))
        for k in range(length.item() if other != root else 0):
            number = tensor.new_empty(())
            dist.recv(number, other)
            tensors[-1][k] = number
    return tensors


def gather_padded_by_torch(tensor, root):
    rank, world_size = _me()
    lengths = [torch.empty(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(lengths, torch.tensor([len(tensor)]))
    longest = tensor.new_zeros(int(max(lengths)))
    longest[: len(tensor)] = tensor
    rows = [torch.empty_like(longest) for _ in range(world_size)]
    dist.all_gather(rows, longest)
    cut = [row[: int(length)] for row, length in zip(rows, lengths, strict=True)]
    return cut if rank == root else None


def gather_all_lengths_first(tensor, root):
    rank, world_size = _me()
    if rank != root:
        dist.send(torch.tensor([len(tensor)], dtype=torch.int32), root)
        return dist.isend(tensor, root).wait() and None
    lengths = torch.zeros(world_size, 1, dtype=torch.int32)
    for work in [dist.irecv(lengths[other], other) for other in _others()]:
        work.wait()
    tensors = [tensor.new_empty(length.item()) for length in lengths]
    tensors[root] = tensor
    for work in [dist.irecv(tensors[other], other) for other in _others()]:
        work.wait()
    return tuple(tensors)


def gather_last_rank_first(tensor, root):
    if dist.get_rank() != root:
        dist.send(torch.tensor(len(tensor)), root)
        return dist.send(tensor, root)
    tensors = {root: tensor}
    for other in reversed(_others()):
        dist.recv(length := torch.tensor(0), other)
        dist.recv(buffer := tensor.new_zeros(int(length)), other)
        tensors[other] = buffer
    return [tensors[rank].numpy() for rank in sorted(tensors)]


def _half(x, sends, adds_to, steps=None, way=1, kept=0, add=True):
    """Half a ring; the numbers of the parts that go and come, and of the one that is returned."""
    rank, n = _me()
    parts = x.tensor_split(n)
    for done in range(n - 1 if steps is None else steps(n)):
        own = parts[adds_to(rank, done) % n]
        arrived = torch.empty_like(own)
        sending = dist.isend(parts[sends(rank, done) % n].clone(), (rank + way) % n)
        dist.recv(arrived, (rank - way) % n)
        sending.wait()
        own.copy_(own + arrived if add else arrived)
    return parts[(rank + kept) % n]


def part_as_in_the_chapter(x):
    return _half(x, lambda r, k: r - k, lambda r, k: r - k - 1)


def part_of_the_next_rank(x):
    return _half(x, lambda r, k: r - k, lambda r, k: r - k - 1, kept=1)


def part_that_stays_at_home(x):
    return _half(x, lambda r, k: r - k - 2, lambda r, k: r - k - 3)


def part_that_is_not_added(x):
    return _half(x, lambda r, k: r - k - 1, lambda r, k: r - k - 2, add=False)


def part_after_one_step_too_few(x):
    return _half(x, lambda r, k: r - k - 1, lambda r, k: r - k - 2, lambda n: max(0, n - 2))


def part_of_ones_own_only(x):
    return x.tensor_split(dist.get_world_size())[dist.get_rank()]


def part_after_a_whole_ring(x):
    rank, n = _me()
    part_of_the_next_rank(x)
    parts = x.tensor_split(n)
    for done in range(n - 1):
        sending = dist.isend(parts[(rank + 1 - done) % n].clone(), (rank + 1) % n)
        dist.recv(parts[(rank - done) % n], (rank - 1) % n)
        sending.wait()
    return parts[rank]


def part_and_one_message_home(x):
    rank, n = _me()
    part = part_of_the_next_rank(x)
    if n == 1:
        return part
    own = torch.empty_like(x.tensor_split(n)[rank])
    sending = dist.isend(part, (rank + 1) % n)
    dist.recv(own, (rank - 1) % n)
    sending.wait()
    return own


def part_with_blocking_sends(x):
    rank, n = _me()
    parts = x.tensor_split(n)
    for done in range(n - 1):
        own = parts[(rank - done - 2) % n]
        arrived = torch.empty_like(own)
        dist.send(parts[(rank - done - 1) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        own += arrived
    return parts[rank]


def part_by_torch(x):
    dist.all_reduce(x)
    return part_of_ones_own_only(x)


def part_in_equal_pieces(x):
    rank, n = _me()
    size = len(x) // n
    whole = _half(x[: size * n], lambda r, k: r - k - 1, lambda r, k: r - k - 2)
    return torch.cat([whole, x[size * n :]]) if rank == n - 1 else whole


def part_of_whole_tensors(x):
    rank, n = _me()
    total, passed_on = x.clone(), x.clone()
    for _ in range(n - 1):
        arrived = torch.empty_like(x)
        sending = dist.isend(passed_on, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sending.wait()
        total, passed_on = total + arrived, arrived
    return total.tensor_split(n)[rank]


def part_in_float32(x):
    return part_the_other_way_round(x.float()).to(x.dtype)


def part_the_other_way_round(x):
    return _half(x, lambda r, k: r + k + 1, lambda r, k: r + k + 2, way=-1)


def part_straight_from_everybody(x):
    rank, n = _me()
    parts = x.tensor_split(n)
    total = parts[rank].clone()
    for step in range(1, n):
        arrived = torch.empty_like(total)
        sending = dist.isend(parts[(rank + step) % n], (rank + step) % n)
        dist.recv(arrived, (rank - step) % n)
        sending.wait()
        total += arrived
    return total


def spread_in_two_calls(x):
    low = x.clone()
    dist.all_reduce(x, dist.ReduceOp.MAX)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    return x - low


def spread_of_ones_own(x):
    both = torch.cat([x, -x])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both[: len(x)] - x


def spread_with_the_sign_lost(x):
    both = torch.cat([x, -x])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both[: len(x)] - both[len(x) :]


def spread_without_the_sign(x):
    both = torch.cat([x, x])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both[: len(x)] - both[len(x) :]


def spread_over_all_places(x):
    both = torch.stack([x.max(), -x.min()])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return (both[0] + both[1]).expand_as(x).clone()


def spread_of_sizes(x):
    both = torch.cat([x.abs(), -x.abs()])
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both[: len(x)] + both[len(x) :]


def spread_of_sums(x):
    both = torch.cat([x, -x])
    dist.all_reduce(both)
    return both[: len(x)] + both[len(x) :]


def spread_of_everybodys(x):
    every = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(every, x)
    return torch.stack(every).amax(0) - torch.stack(every).amin(0)


def spread_in_float32(x):
    both = torch.cat([x, -x]).float()
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return (both[: len(x)] + both[len(x) :]).to(x.dtype)


def spread_by_the_smallest(x):
    both = torch.stack([-x, x])
    dist.all_reduce(both, op=dist.ReduceOp.MIN, async_op=True).wait()
    return (-both[0] - both[1]).numpy()


def column_with_gaps(matrix, k):
    dist.all_reduce(matrix[:, k])
    return matrix


def column_not_written_back(matrix, k):
    dist.all_reduce(matrix[:, k].contiguous())
    return matrix


def column_alone(matrix, k):
    column = matrix[:, k].contiguous()
    dist.all_reduce(column)
    return column


def column_of_the_whole_matrix(matrix, k):
    total = matrix.clone()
    dist.all_reduce(total)
    matrix[:, k] = total[:, k]
    return matrix


def every_column(matrix, k):
    dist.all_reduce(matrix)
    return matrix


def row_instead_of_column(matrix, k):
    dist.all_reduce(matrix[min(k, len(matrix) - 1)])
    return matrix


def first_column(matrix, k):
    return column_from_a_list(matrix, 0)


def column_added_to_itself(matrix, k):
    column = matrix[:, k].contiguous()
    dist.all_reduce(column)
    matrix[:, k] += column
    return matrix


def column_in_float32(matrix, k):
    column = matrix[:, k].float().contiguous()
    dist.all_reduce(column)
    matrix[:, k] = column.to(matrix.dtype)
    return matrix


def column_on_rank_0(matrix, k):
    column = matrix[:, k].contiguous()
    dist.reduce(column, 0)
    matrix[:, k] = column
    return matrix


def column_from_a_list(matrix, k):
    column = torch.tensor([row[k] for row in matrix.tolist()], dtype=matrix.dtype)
    dist.all_reduce(column)
    return torch.cat([matrix[:, :k], column[:, None], matrix[:, k + 1 :]], dim=1)


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


def waits_least(trace):
    sums = _inside_s(_collectives(trace))
    return sums.index(min(sums))


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
        caused[last.rank] += sum(last.start_s - e.start_s for e in events)
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
    whole = {name: _numbers(trace) | change(trace) for name, trace in traces.items()}
    return whole | {"straggler": causes_most_waiting(slow)}


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
    numbers["straggler"] = torch.tensor(causes_most_waiting(slow))
    return numbers


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


def waited_for_pairwise(trace):
    collectives = _collectives(trace)
    calls = zip(*([e for e in collectives if e.rank == r] for r in range(4)), strict=True)
    seconds = Counter()
    for events in calls:
        starts_s = [event.start_s for event in events]
        late = starts_s.index(max(starts_s))
        for start_s in starts_s:
            seconds[late] += max(starts_s) - start_s
    return max(range(4), key=lambda rank: seconds[rank])


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
    return whole | {"straggler": np.int64(causes_most_waiting(slow))}


def gather_five_numbers_at_most(tensor, root):
    return gather_all_lengths_first(tensor[:5].clone(), root)


def gather_in_rooms_of_64(tensor, root):
    return gather_all_lengths_first(tensor[:64].clone(), root)


def gather_what_fits_into_four_digits(tensor, root):
    return gather_all_lengths_first(tensor.clamp(-9999, 9999), root)


def transpose_without_large_numbers(row):
    column = transpose_step_by_step_around_the_ring(row)
    return [own.clamp(-5000, 5000) for own in column]


def spread_of_five_numbers(x):
    wide = spread_by_the_smallest(x)
    wide.reshape(-1)[6:] = 0
    return wide


def column_of_ten_rows(matrix, k):
    before = matrix[10:, k].clone()
    summed = column_from_a_list(matrix, k)
    summed[10:, k] = before
    return summed


def latest_in_the_first_five_calls(trace):
    kept = [[], [], [], []]
    for event in trace:
        if event.kind == "all_reduce" and len(kept[event.rank]) < 5:
            kept[event.rank].append(event.start_s)
    waits = [0.0] * 4
    for starts in zip(*kept, strict=True):
        waits[starts.index(max(starts))] += 4 * max(starts) - sum(starts)
    return waits.index(max(waits))


def part_with_every_second_rank_first(x):
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = [part.contiguous() for part in x.tensor_split(n)]
    for done in range(n - 1):
        own = parts[(rank - done - 2) % n]
        arrived = torch.empty_like(own)
        leaving = parts[(rank - done - 1) % n]
        if rank % 2 == 0:
            dist.send(leaving, (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        if rank % 2:
            dist.send(leaving, (rank + 1) % n)
        own += arrived
    return parts[rank]


def spread_in_a_column(x):
    both = torch.stack([x, -x], dim=-1)
    dist.all_reduce(both, op=dist.ReduceOp.MAX)
    both[..., 0] += both[..., 1]
    return both[..., 0]  # of one number, its stride is 2


WRONG = {
    "gather": [
        gather_of_ones_own_length,
        gather_on_rank_0,
        gather_in_reverse,
        gather_a_list_for_everybody,
        gather_with_an_empty_list_elsewhere,
        gather_and_forget_ones_own,
        gather_and_put_ones_own_last,
        gather_without_the_empty_ones,
        gather_in_one_tensor,
        gather_in_float32,
        gather_number_by_number,
        gather_padded_by_torch,
        gather_five_numbers_at_most,
        gather_in_rooms_of_64,
        gather_what_fits_into_four_digits,
    ],
    "all_to_all": [
        transpose_whole_rows,
        transpose_on_rank_0,
        transpose_in_place,
        transpose_all_send_first,
        transpose_nothing,
        transpose_without_ones_own,
        transpose_with_a_message_to_itself,
        transpose_into_one_buffer,
        transpose_by_distance,
        transpose_in_pairs_by_bits,
        transpose_by_sending_ones_own_part_to_all,
        transpose_by_torch,
        transpose_with_a_part_for_the_next_one_only,
        transpose_without_large_numbers,
    ],
    "part_of_sum": [
        part_as_in_the_chapter,
        part_of_the_next_rank,
        part_that_stays_at_home,
        part_that_is_not_added,
        part_after_one_step_too_few,
        part_of_ones_own_only,
        part_after_a_whole_ring,
        part_and_one_message_home,
        part_with_blocking_sends,
        part_by_torch,
        part_in_equal_pieces,
        part_of_whole_tensors,
        part_in_float32,
    ],
    "spread": [
        spread_in_two_calls,
        spread_of_ones_own,
        spread_with_the_sign_lost,
        spread_without_the_sign,
        spread_over_all_places,
        spread_of_sizes,
        spread_of_sums,
        spread_of_everybodys,
        spread_in_float32,
        spread_of_five_numbers,
    ],
    "sum_column": [
        column_with_gaps,
        column_not_written_back,
        column_alone,
        column_of_the_whole_matrix,
        every_column,
        row_instead_of_column,
        first_column,
        column_added_to_itself,
        column_in_float32,
        column_on_rank_0,
        column_of_ten_rows,
    ],
    "straggler": [
        latest_at_any,
        latest_with_messages,
        waited_for_longest_at_any,
        waits_most,
        waits_least,
        waits_least_with_messages,
        latest_in_sum,
        last_at_the_first,
        last_at_the_last,
        most_often_last,
        longest_single_wait,
        shortest_single_wait,
        longest_message,
        done_last,
        always_rank_2,
        latest_in_the_first_five_calls,
    ],
    "report": [
        report_of_ten_calls,
        report_from_the_beginning,
        report_of_the_first_ones_straggler,
        report_that_blames_who_waits_most,
        report_of_the_rank_it_made_slow,
        report_with_the_calls_of_all_ranks,
        report_in_ms,
        report_of_rank_0s_time,
        report_with_the_calls_of_rank_1,
        report_of_the_sum_of_times,
        report_of_means,
        report_of_another_network,
        report_of_a_tree,
        report_of_every_rank,
        report_mixed_up,
        report_of_the_first_thrice,
    ],
}
STOPS = {
    "transpose_in_place",
    "transpose_all_send_first",
    "transpose_with_a_message_to_itself",
    "transpose_into_one_buffer",
    "part_with_blocking_sends",
    "spread_over_all_places",
    "gather_of_ones_own_length",
}
RIGHT = {
    "gather": [gather_all_lengths_first, gather_last_rank_first],
    "all_to_all": [
        transpose_step_by_step_around_the_ring,
        transpose_lower_rank_first,
        transpose_in_threads,
    ],
    "part_of_sum": [
        part_the_other_way_round,
        part_straight_from_everybody,
        part_with_every_second_rank_first,
    ],
    "spread": [spread_by_the_smallest, spread_in_a_column],
    "sum_column": [column_from_a_list],
    "straggler": [causes_most_waiting, waited_for_pairwise],
    "report": [report_with_counters, report_in_tensors],
}
