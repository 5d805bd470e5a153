"""The house record of the challenge: our best entry. It stands here so that nobody need see it.

Everywhere pieces are cut into slices, so that ports are never idle while something is on its way.
"""

import torch
import torch.distributed as dist

ALPHA, BETA = 10.0, 8 / 80_000


def all_reduce(x, league):
    world_size = dist.get_world_size()
    everybody = list(range(world_size))
    w = x.nbytes * BETA
    if league == "flat":
        bytes_at_first_hand = (ALPHA / (world_size - 1) - w / world_size) * world_size
        part = bytes_at_first_hand / (world_size - 1) / max(w, 1e-9)
        return by_owners(x, everybody, everybody, min(1.0, max(0.0, part)), 16)
    if league == "slow link":
        if w > 4 * ALPHA:
            return by_ring(x, [0, 2, 1, *range(3, world_size)], 8)
        return by_owners(x, everybody, everybody[2:], 0.0, 8)
    if league == "two levels":
        return by_nodes(x)
    return late(x)


def sent_to(others, tensor):
    return [dist.isend(tensor, other) for other in others]


def finish(waiting):
    for one in waiting:
        one.wait()


def into(others, likes):
    """Tensors that arrive from others, and what one waits for."""
    arrived = [torch.empty_like(like) for like in likes]
    waits = [dist.irecv(one, other) for one, other in zip(arrived, others, strict=True)]
    return arrived, waits


def by_owners(x, members, owners, part, slices):
    """A part of x goes straight to everybody; of the rest each piece to its owner and back."""
    rank = dist.get_rank()
    cut = round(part * x.numel())
    raw, rest = x[:cut], x[cut:]
    others = [one for one in members if one != rank]
    slices = min(slices, 2 * rest.numel())  # none where everything goes straight
    cuts = [
        piece.tensor_split(slices) if slices else () for piece in rest.tensor_split(len(owners))
    ]
    by_owner = dict(zip(owners, cuts, strict=True))
    waiting = []
    for k in range(slices):
        for owner in rotated(owners, rank):
            if owner != rank:
                waiting.append(dist.isend(by_owner[owner][k], owner))
    if cut:
        waiting += sent_to(rotated(others, rank), raw)
    if rank in owners:
        for k in range(slices):
            mine = by_owner[rank][k]
            arrived, waits = into(others, [mine] * len(others))
            finish(waits)
            for one in arrived:
                mine += one
            waiting += sent_to(rotated(others, rank), mine)
    if cut:
        arrived, waits = into(others, [raw] * len(others))
        finish(waits)
        for one in arrived:
            raw += one
    for k in range(slices):
        for owner in owners:
            if owner != rank:
                dist.recv(by_owner[owner][k], owner)
    finish(waiting)
    return x


def rotated(members, rank):
    """Everybody begins with another one."""
    return [one for one in members if one > rank] + [one for one in members if one <= rank]


def by_ring(x, order, slices):
    """A ring along this order; the slices of a piece follow each other around."""
    world_size = dist.get_world_size()
    place = order.index(dist.get_rank())
    right, left = order[(place + 1) % world_size], order[place - 1]
    pieces = [piece.tensor_split(slices) for piece in x.tensor_split(world_size)]
    waiting = [dist.isend(one, right) for one in pieces[place]]
    turns = 2 * (world_size - 1)
    for turn in range(turns):
        for one in pieces[(place - turn - 1) % world_size]:
            arrived = torch.empty_like(one)
            dist.recv(arrived, left)
            if turn < world_size - 1:
                one += arrived
            else:
                one.copy_(arrived)
            if turn < turns - 1:
                waiting.append(dist.isend(one, right))
    finish(waiting)
    return x


def by_nodes(x):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    in_node = world_size // 2
    first = rank - rank % in_node
    near = [one for one in range(first, first + in_node) if one != rank]
    far = [(first + in_node) % world_size + k for k in range(in_node)]
    far = [far[(rank + k) % in_node] for k in range(in_node)]  # everybody begins with another one
    if x.nbytes * BETA * (in_node - 1) < 2:
        waiting = sent_to([*near, *far], x)
        arrived, waits = into([*near, *far], [x] * (world_size - 1))
        finish([*waits, *waiting])
        return sum(arrived, x)
    if x.nbytes * BETA * (in_node - 1) / in_node < 4:
        return in_halves(x, first, near, far)
    return hierarchy(x, first, near, in_node, 16)


def in_halves(x, first, near, far):
    """One half is added up before it crosses, the other one behind: both in two hops."""
    place = dist.get_rank() - first
    one, other = x.tensor_split(2)
    pieces = other.tensor_split(len(far))
    mine = pieces[place]
    partner = (dist.get_rank() + len(far)) % dist.get_world_size()
    waiting = sent_to(near, one)
    waiting += [dist.isend(pieces[to % len(far)], to) for to in far]
    waiting += [dist.isend(pieces[to - first], to) for to in near]
    arrived, waits = into(near, [one] * len(near))
    finish(waits)
    one += sum(arrived)
    waiting.append(dist.isend(one, partner))
    arrived, waits = into([*near, *far], [mine] * (len(near) + len(far)))
    finish(waits)
    mine += sum(arrived)
    waiting += sent_to(near, mine)
    arrived, waits = into([partner], [one])
    for to in near:
        dist.recv(pieces[to - first], to)
    finish([*waits, *waiting])
    one += arrived[0]
    return x


def hierarchy(x, first, near, in_node, slices):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    partner = (rank + in_node) % world_size
    pieces = [piece.tensor_split(slices) for piece in x.tensor_split(in_node)]
    mine, waiting = pieces[rank - first], []
    for k in range(slices):
        waiting += [dist.isend(pieces[one - first][k], one) for one in near]
    for k in range(slices):
        arrived, waits = into(near, [mine[k]] * len(near))
        finish(waits)
        for one in arrived:
            mine[k].add_(one)
        waiting.append(dist.isend(mine[k], partner))
    for k in range(slices):
        arrived, waits = into([partner], [mine[k]])
        finish(waits)
        mine[k].add_(arrived[0])
        waiting += sent_to(near, mine[k])
    for k in range(slices):
        for one in near:
            dist.recv(pieces[one - first][k], one)
    finish(waiting)
    return x


def late(x):
    """The others add up before the late one comes, which then says what it has."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    last, members = world_size - 1, list(range(world_size - 1))
    w = x.nbytes * BETA
    straight = (world_size - 1) / world_size * (ALPHA + w) - w  # what goes to all, in µs of a port
    part = min(1.0, max(0.0, straight / (world_size - 2) / max(w, 1e-9)))
    cut = round(part * x.numel())
    slices = 0 if cut == x.numel() else 12
    raw, rest = x[:cut], x[cut:]
    pieces = [
        piece.tensor_split(slices) if slices else () for piece in rest.tensor_split(len(members))
    ]
    straight_pieces = raw.tensor_split(len(members))
    if rank == last:
        waiting = [dist.isend(pieces[m][k], m) for k in range(slices) for m in members]
        if cut:
            waiting += sent_to(members, raw)
        for m in members:
            arrived, waits = into([m] * (slices + 1), [*pieces[m], straight_pieces[m]])
            finish(waits)
            for one, more in zip([*pieces[m], straight_pieces[m]], arrived, strict=True):
                one += more
        finish(waiting)
        return x
    others = [one for one in members if one != rank]
    waiting = []
    for other in rotated(others, rank):
        waiting += [dist.isend(one, other) for one in [*pieces[other], straight_pieces[other]]]
    mine = [*pieces[rank], straight_pieces[rank]]
    for other in others:
        arrived, waits = into([other] * (slices + 1), mine)
        finish(waits)
        for one, more in zip(mine, arrived, strict=True):
            one += more
    waiting += [dist.isend(one, last) for one in mine]
    if cut:
        waiting += sent_to(others, mine[-1])
        for other in others:
            dist.recv(straight_pieces[other], other)
    for one in pieces[rank]:
        arrived, waits = into([last], [one])
        finish(waits)
        one += arrived[0]
        waiting += sent_to(others, one)
    if cut:
        arrived, waits = into([last], [raw])
        finish(waits)
        raw += arrived[0]
    for k in range(slices):
        for other in others:
            dist.recv(pieces[other][k], other)
    finish(waiting)
    return x
