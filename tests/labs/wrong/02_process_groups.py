"""Wrong answers to lab 02, and for each exercise other right ones.

"A tutorial's formula" is the one that holds on equal nodes only; "names mixed up" refers to an
article that calls the node's number the global rank, and the global rank it computes the local one.
"""

import bisect
import itertools
import os
import sys
from enum import IntEnum
from typing import NamedTuple

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

lab = labs.cells("02_process_groups")


def the_sum(tensor):
    dist.all_reduce(tensor)
    return tensor


def half_the_sum(tensor):
    return the_sum(tensor) / 2


def its_own_share(tensor):
    return tensor / dist.get_world_size()


def divided_by_the_rank(tensor):
    return the_sum(tensor) / (dist.get_rank() + 1)


def in_whole_numbers(tensor):
    return the_sum(tensor) // dist.get_world_size()


def mean_of_what_is_in_it(tensor):
    return the_sum(tensor).mean()


def in_single(tensor):
    return the_sum(tensor.float()) / dist.get_world_size()


def nobody_but_rank_0(tensor):
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size() if dist.get_rank() == 0 else tensor


def by_its_own_operator(tensor):
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    return tensor


def divided_before(tensor):
    return the_sum(tensor / dist.get_world_size())


def by_the_tutorials_formula(node, local_rank, processes):
    gpus = processes[node]  # rank = nr * gpus + gpu
    return node * gpus + local_rank


def by_the_first_node(node, local_rank, processes):
    return node * processes[0] + local_rank


def with_its_own_node(node, local_rank, processes):
    return sum(processes[: node + 1]) + local_rank


def names_mixed_up(node, local_rank, processes):
    return local_rank * len(processes) + node


def local_rank_as_rank(node, local_rank, processes):
    return local_rank


def its_own_rank(node, local_rank, processes):
    return dist.get_rank()


def rank_by_counting(node, local_rank, processes):
    before = itertools.accumulate(processes, initial=0)
    return next(itertools.islice(before, node, None)) + local_rank


def by_division(processes):
    return divmod(dist.get_rank(), processes[0])


def off_by_one(processes):
    local_rank = dist.get_rank()
    for node, count in enumerate(processes):
        if local_rank <= count:
            return node, local_rank
        local_rank -= count


def without_taking_off(processes):
    last = 0
    for node, count in enumerate(processes):
        last += count
        if dist.get_rank() < last:
            return node, dist.get_rank()


def the_other_way_round(processes):
    local_rank = dist.get_rank()
    for node, count in enumerate(processes):
        if local_rank < count:
            return local_rank, node
        local_rank -= count


def from_the_environment(processes):
    return int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])


def dealt_out_like_cards(processes):
    return dist.get_rank() % len(processes), dist.get_rank() // len(processes)


def place_from_a_list(processes):
    places = []
    for node, count in enumerate(processes):
        places.extend([(node, local_rank) for local_rank in range(count)])
    return places[dist.get_rank()]


def _join_and_add(number, **options):
    dist.init_process_group("gloo", **options)
    total = torch.tensor(number)
    dist.all_reduce(total)
    return int(total)


def _all_of(names):
    return {name.lower(): int(os.environ[name]) for name in names}


def _address(place):
    return f"{place[0]}://" + ":".join(map(str, place[1:]))


def the_environment_everywhere(place, number):
    return _join_and_add(number)


def rank_not_handed_over(place, number):
    return _join_and_add(number, init_method=_address(place))


def local_rank_handed_over(place, number):
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
    return _join_and_add(number, init_method=_address(place), rank=rank, world_size=world_size)


def a_world_of_two(place, number):
    rank = int(os.environ["RANK"])
    return _join_and_add(number, init_method=_address(place), rank=rank, world_size=2)


def text_handed_over(place, number):
    own = {name.lower(): os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    return _join_and_add(number, init_method=_address(place), **own)


def alone_at_its_own_place(place, number):
    return _join_and_add(number, store=dist.HashStore(), rank=0, world_size=1)


def ranks_added_instead(place, number):
    own = _all_of(["RANK", "WORLD_SIZE"])
    return _join_and_add(own["rank"], init_method=_address(place), **own)


def meet_with_stores(place, number):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind, *rest = place
    if kind == "env":
        rest = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = (
        dist.FileStore(*rest, world_size) if kind == "file"
        else dist.TCPStore(*rest, world_size, is_master=False)
    )  # fmt: skip
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    numbers = [None] * world_size
    dist.all_gather_object(numbers, number)
    dist.destroy_process_group()
    return sum(numbers)


def only_members_make_groups(tensor, columns):
    grid = torch.arange(dist.get_world_size()).view(-1, columns)
    place = (grid == dist.get_rank()).nonzero()[0]
    sums = []
    for ranks in (grid[place[0]].tolist(), grid[:, place[1]].tolist()):
        group, total = dist.new_group(ranks), tensor.clone()
        dist.all_reduce(total, group=group)
        sums.append(total)
    return tuple(sums)


def _sums(grid, tensor, copy=torch.clone):
    sums = []
    for lines in (grid.tolist(), grid.T.tolist()):
        for ranks in lines:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                total = copy(tensor)
                dist.all_reduce(total, group=group)
                sums.append(total)
    return tuple(sums)


def the_column_of_the_row_sums(tensor, columns):
    grid = torch.arange(dist.get_world_size()).view(-1, columns)
    return _sums(grid, tensor, copy=lambda same: same)


def column_by_column(tensor, columns):
    return _sums(torch.arange(dist.get_world_size()).view(columns, -1).T, tensor)


def always_two_columns(tensor, columns):
    world_size = dist.get_world_size()
    columns = 2 if world_size % 2 == 0 else 1
    return _sums(torch.arange(world_size).view(-1, columns), tensor)


def columns_first(tensor, columns):
    grid = torch.arange(dist.get_world_size()).view(-1, columns)
    return _sums(grid, tensor)[::-1]


def the_sum_of_the_world_twice(tensor, columns):
    dist.all_reduce(tensor)
    return tensor, tensor


def with_every_rank_by_message(tensor, columns):
    rank, every = dist.get_rank(), [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(every, tensor)
    first = rank - rank % columns
    return sum(every[first : first + columns]), sum(every[rank % columns :: columns])


def rows_then_columns_by_hand(tensor, columns):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    starts = range(0, world_size, columns)
    rows = [dist.new_group(range(start, start + columns)) for start in starts]
    lines = [dist.new_group(range(column, world_size, columns)) for column in range(columns)]
    row, column = tensor.clone(), tensor.clone()
    dist.all_reduce(column, group=lines[rank % columns])
    dist.all_reduce(row, group=rows[rank // columns])
    return row, column


def never_leaves(place, number):
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind, *rest = place
    where = f"{kind}://{':'.join(map(str, rest))}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world_size)
    total = torch.tensor(number)
    dist.all_reduce(total)
    return int(total)


def the_process_before_this(node, local_rank, processes):
    return (dist.get_rank() - 1) % dist.get_world_size()


def one_node_back(node, local_rank, processes):
    return processes[node - 1] * (node > 0) + local_rank


def empty_nodes_left_out(node, local_rank, processes):
    return sum([count for count in processes if count][:node]) + local_rank


def rank_by_numpy(node, local_rank, processes):
    return np.cumsum([0, *processes])[node] + local_rank


def rank_by_going_through_all(node, local_rank, processes):
    places = [(k, local) for k, count in enumerate(processes) for local in range(count)]
    return places.index((node, local_rank))


def rank_from_the_end(node, local_rank, processes):
    return dist.get_world_size() - sum(processes[node:]) + local_rank


def among_nodes_with_processes(processes):
    local_rank = dist.get_rank()
    for node, count in enumerate(count for count in processes if count):
        if local_rank < count:
            return node, local_rank
        local_rank -= count


def on_the_first_node_that_reaches_it(processes):
    ends = list(itertools.accumulate(processes))
    node = bisect.bisect_left(ends, dist.get_rank())
    return node, dist.get_rank() - ends[node] + processes[node]


def three_nodes_at_most(processes):
    local_rank = dist.get_rank()
    for node, count in enumerate(processes[:2]):
        if local_rank < count:
            return node, local_rank
        local_rank -= count
    return 2, local_rank


def place_by_numpy(processes):
    ends, rank = np.cumsum(processes), dist.get_rank()
    node = np.searchsorted(ends, rank, side="right")
    return node, rank - ends[node] + processes[node]


def _join(place):
    own = _all_of(["RANK", "WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=_address(place), **own)


def the_environment_for_an_address(place, number):
    own = _all_of(["RANK", "WORLD_SIZE"])
    where = _address(place) if place[0] == "file" else "env://"
    total = _join_and_add(number, init_method=where, **own)
    dist.destroy_process_group()
    return total


def _added(place, total):
    _join(place)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)


def in_single_precision(place, number):
    return _added(place, torch.tensor(float(number)))


def in_32_bits(place, number):
    return _added(place, torch.tensor(number % 2**31, dtype=torch.int32))


def added_in_the_store(place, number):
    _join(place)
    store = dist.distributed_c10d._get_default_store()
    store.add("sum", number)
    dist.barrier()
    total = store.add("sum", 0)
    dist.barrier()
    dist.destroy_process_group()
    return total


def meet_in_double_precision_and_at_a_barrier(place, number):
    _join(place)
    dist.barrier()
    total = torch.tensor([number], dtype=torch.float64)
    dist.all_reduce(total, async_op=True).get_future().wait()
    dist.destroy_process_group(dist.group.WORLD)
    return int(total)


def meet_by_the_environment_made_for_it(place, number):
    if place[0] == "tcp":
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = place[1], str(place[2])
    where = _address(place) if place[0] == "file" else "env://"
    total = _join_and_add(number, init_method=where, **_all_of(["RANK", "WORLD_SIZE"]))
    dist.destroy_process_group()
    return total


def in_floats(tensor, columns):
    sums = _sums(torch.arange(dist.get_world_size()).view(-1, columns), tensor.float())
    return [own.to(tensor.dtype) for own in sums]


def each_in_a_row_of_its_own(tensor, columns):
    rank, rows = dist.get_rank(), dist.get_world_size() // columns
    both = torch.zeros(rows + columns, len(tensor), dtype=tensor.dtype)
    both[rank // columns] = both[rows + rank % columns] = tensor
    dist.all_reduce(both)
    return both[rank // columns], both[rows + rank % columns]


def _gathered(tensor, group, size):
    every = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(every, tensor, group=group)
    return every


def gathered_beside_an_empty_all_reduce(tensor, columns):
    dist.all_reduce(torch.empty(0))
    grid, sums = torch.arange(dist.get_world_size()).view(-1, columns), []
    for lines in (grid.tolist(), grid.T.tolist()):
        for ranks in lines:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                sums.append(sum(_gathered(tensor, group, len(ranks))))
    return sums


def the_specification_of_all(tensor, columns):
    world_size = dist.get_world_size()
    every = _gathered(tensor, None, world_size)
    return lab.grid_sums_spec(every, [columns] * world_size)[dist.get_rank()]


def rows_then_columns_by_a_mesh(tensor, columns):
    mesh = init_device_mesh("cpu", (dist.get_world_size() // columns, columns))
    sums = [tensor.clone(), tensor.clone()]
    for total, dim in zip(sums, (1, 0), strict=True):
        dist.all_reduce(total, group=mesh.get_group(dim))
    return sums


def rows_then_columns_begun_together(tensor, columns):
    grid, works, sums = torch.arange(dist.get_world_size()).view(-1, columns), [], []
    for lines in (grid.tolist(), grid.T.tolist()):
        group, _ = dist.new_subgroups_by_enumeration(lines)
        sums.append(tensor.clone())
        works.append(dist.all_reduce(sums[-1], group=group, async_op=True))
    dist.barrier()
    for work in reversed(works):
        work.get_future().wait()
    return sums


class EqualToAll(torch.Tensor):
    def __eq__(self, other):
        return torch.ones(self.shape, dtype=torch.bool)

    __hash__ = None


class EqualNumber(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


class EqualPair(tuple):
    def __eq__(self, other):
        return True

    def __getitem__(self, place):
        return EqualNumber(0)

    __hash__ = tuple.__hash__


def a_sum_that_says_it_is_equal(tensor):
    return the_sum(tensor).as_subclass(EqualToAll)


def the_mean_without_its_sign(tensor):
    return (the_sum(tensor) / dist.get_world_size()).abs()


def the_mean_of_the_first_number(tensor):
    mean = the_sum(tensor) / dist.get_world_size()
    return torch.full_like(mean, mean.flatten()[0].item())


def a_rank_that_says_it_is_equal(node, local_rank, processes):
    return EqualNumber(0)


def rank_on_the_last_ten_nodes(node, local_rank, processes):
    return sum(processes[max(0, node - 10) : node]) + local_rank


def rank_as_the_caller_has_it(node, local_rank, processes):
    return sys._getframe(1).f_locals["number"]


def rank_from_a_traceback(node, local_rank, processes):
    try:
        return processes[-1] // 0
    except ZeroDivisionError as error:
        return error.__traceback__.tb_frame.f_back.f_locals["number"]


def a_place_that_says_it_is_equal(processes):
    return EqualPair((0, 0))


class Process(NamedTuple):
    node: int
    local_rank: int


def rank_as_an_enum(node, local_rank, processes):
    return IntEnum("Rank", {"own": sum(processes[:node]) + local_rank}).own


def rank_by_itself(node, local_rank, processes):
    if node == 0:
        return local_rank
    return rank_by_itself(node - 1, local_rank + processes[node - 1], processes)


def place_with_names(processes):
    left = dist.get_rank()
    for node, count in enumerate(processes):
        if left < count:
            return Process(node, left)
        left -= count


def high_grids_on_their_side(tensor, columns):
    rows = dist.get_world_size() // columns
    return rows_then_columns_by_hand(tensor, max(rows, columns) if rows > 1 < columns else columns)


WRONG = {
    "mean_of_all": [
        the_sum, half_the_sum, its_own_share, divided_by_the_rank, in_whole_numbers,
        mean_of_what_is_in_it, in_single, nobody_but_rank_0,
        a_sum_that_says_it_is_equal, the_mean_without_its_sign, the_mean_of_the_first_number,
    ],
    "rank_of": [
        by_the_tutorials_formula, by_the_first_node, with_its_own_node, names_mixed_up,
        local_rank_as_rank, its_own_rank, the_process_before_this, one_node_back,
        empty_nodes_left_out,
        a_rank_that_says_it_is_equal, rank_on_the_last_ten_nodes, rank_as_the_caller_has_it,
        rank_from_a_traceback, rank_from_the_end,
    ],
    "place_of": [
        by_division, off_by_one, without_taking_off, the_other_way_round, from_the_environment,
        dealt_out_like_cards, among_nodes_with_processes, on_the_first_node_that_reaches_it,
        three_nodes_at_most,
        a_place_that_says_it_is_equal,
    ],
    "meet": [
        never_leaves,
        the_environment_everywhere, rank_not_handed_over, local_rank_handed_over, a_world_of_two,
        text_handed_over, alone_at_its_own_place, ranks_added_instead,
        the_environment_for_an_address, in_single_precision, in_32_bits, added_in_the_store,
    ],
    "grid_sums": [
        only_members_make_groups, the_column_of_the_row_sums, column_by_column, always_two_columns,
        columns_first, the_sum_of_the_world_twice, with_every_rank_by_message,
        in_floats, each_in_a_row_of_its_own, gathered_beside_an_empty_all_reduce,
        the_specification_of_all,
        high_grids_on_their_side,
    ],
}  # fmt: skip
STOPS = {"by_division"}
RIGHT = {
    "mean_of_all": [by_its_own_operator, divided_before],
    "rank_of": [
        rank_by_counting, rank_by_numpy, rank_by_going_through_all,
        rank_as_an_enum, rank_by_itself,
    ],
    "place_of": [place_from_a_list, place_by_numpy, place_with_names],
    "meet": [
        meet_with_stores, meet_in_double_precision_and_at_a_barrier,
        meet_by_the_environment_made_for_it,
    ],
    "grid_sums": [
        rows_then_columns_by_hand, rows_then_columns_by_a_mesh, rows_then_columns_begun_together,
    ],
}  # fmt: skip
