"""All-reduces that everybody knows, as entries to the challenge."""

import torch
import torch.distributed as dist


def wait_for(messages):
    """Wait until all of them have left or arrived."""
    for message in messages:
        message.wait()


def direct(x, league):
    """Everything to rank 0, and back."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    if rank > 0:
        dist.send(x, 0)
        dist.recv(x, 0)
        return x
    others = range(1, world_size)
    buffers = []
    receiving = []
    for other in others:
        arrived = torch.empty_like(x)
        buffers.append(arrived)
        receiving.append(dist.irecv(arrived, other))
    wait_for(receiving)
    x = sum(buffers, x)
    wait_for([dist.isend(x, other) for other in others])
    return x


def tree(x, league):
    """Up a binomial tree, and down again."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    step = 1
    children = []
    arrived = torch.empty_like(x)
    while step < world_size and rank % (2 * step) == 0:
        child = rank + step
        if child < world_size:
            dist.recv(arrived, child)
            x += arrived
            children.append(child)
        step *= 2
    if rank != 0:
        parent = rank - step
        dist.send(x, parent)
        dist.recv(x, parent)
    wait_for([dist.isend(x, child) for child in reversed(children)])
    return x


def ring(x, league):
    """Around the ring in chunks (Patarasuk and Yuan 2009)."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    right = (rank + 1) % world_size
    left = (rank - 1) % world_size
    chunks = x.tensor_split(world_size)
    for turn in range(2 * (world_size - 1)):
        outgoing = chunks[(rank - turn) % world_size]
        incoming = chunks[(rank - turn - 1) % world_size]
        arrived = torch.empty_like(incoming)
        sending = dist.isend(outgoing, right)
        dist.recv(arrived, left)
        sending.wait()
        if turn < world_size - 1:
            incoming += arrived
        else:
            incoming.copy_(arrived)
    return x


def halving_and_doubling(x, league):
    """Recursive halving, then doubling (Rabenseifner); ranks beyond a power of two are guests."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    inner = 2 ** (world_size.bit_length() - 1)
    if rank >= inner:
        dist.send(x, rank - inner)
        dist.recv(x, rank - inner)
        return x
    if rank + inner < world_size:
        guest = torch.empty_like(x)
        dist.recv(guest, rank + inner)
        x += guest
    held = x
    split = []
    for bit in reversed(range(inner.bit_length() - 1)):
        partner = rank ^ 2**bit
        kept, given = held.tensor_split(2)
        if rank > partner:
            kept, given = given, kept
        arrived = torch.empty_like(kept)
        sending = dist.isend(given, partner)
        dist.recv(arrived, partner)
        sending.wait()
        kept += arrived
        split.append((kept, given, partner))
        held = kept
    for held, other, partner in reversed(split):
        sending = dist.isend(held, partner)
        dist.recv(other, partner)
        sending.wait()
        held = other
    if rank + inner < world_size:
        dist.send(x, rank + inner)
    return x


def hierarchical(x, league):
    """Pieces summed inside the node, then with the partner in the other one, then shared."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    in_node = world_size // 2
    place = rank % in_node  # within the node
    first = rank - place  # rank of the node
    partner = (rank + in_node) % world_size
    neighbours = [other for other in range(first, first + in_node) if other != rank]
    pieces = list(x.tensor_split(in_node))
    sent = [dist.isend(pieces[other - first], other) for other in neighbours]
    for other in neighbours:
        arrived = torch.empty_like(pieces[place])
        dist.recv(arrived, other)
        pieces[place] += arrived
    sent.append(dist.isend(pieces[place], partner))
    arrived = torch.empty_like(pieces[place])
    dist.recv(arrived, partner)
    wait_for(sent)
    pieces[place] += arrived
    sent = [dist.isend(pieces[place], other) for other in neighbours]
    for other in neighbours:
        dist.recv(pieces[other - first], other)
    wait_for(sent)
    return x


BASELINES = {
    "direct": direct,
    "tree": tree,
    "ring": ring,
    "halving and doubling": halving_and_doubling,
    "hierarchical": hierarchical,
}
