"""Wrong answers to lab 02, and for each exercise another right one.

"A tutorial's formula" is the one that holds on equal nodes only; "names mixed up" refers to an
article that calls the node's number the global rank, and the global rank it computes the local one.
"""

import itertools
import os

import torch
import torch.distributed as dist


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


def stays_a_tensor(place, number):
    own = _all_of(["RANK", "WORLD_SIZE"])
    return torch.tensor(_join_and_add(number, init_method=_address(place), **own))


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


WRONG = {
    "rank_of": [
        by_the_tutorials_formula, by_the_first_node, with_its_own_node, names_mixed_up,
        local_rank_as_rank, its_own_rank,
    ],
    "place_of": [
        by_division, off_by_one, without_taking_off, the_other_way_round, from_the_environment,
        dealt_out_like_cards,
    ],
    "meet": [
        the_environment_everywhere, rank_not_handed_over, local_rank_handed_over, a_world_of_two,
        text_handed_over, alone_at_its_own_place, ranks_added_instead, stays_a_tensor,
    ],
    "grid_sums": [
        only_members_make_groups, the_column_of_the_row_sums, column_by_column, always_two_columns,
        columns_first, the_sum_of_the_world_twice, with_every_rank_by_message,
    ],
}  # fmt: skip
RIGHT = {
    "rank_of": rank_by_counting,
    "place_of": place_from_a_list,
    "meet": meet_with_stores,
    "grid_sums": rows_then_columns_by_hand,
}
