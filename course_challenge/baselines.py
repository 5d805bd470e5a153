"""All-reduces that everybody knows, as entries to the challenge."""

import torch
import torch.distributed as dist


def wait_for(messages):
    """Wait until all of them have left or arrived."""
    for message in messages:
        message.wait()


def send_to(ranks, x):
    """Send to all of them at once, and wait."""
    sending = [dist.isend(x, rank) for rank in ranks]
    wait_for(sending)


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
        message = dist.irecv(arrived, other)
        buffers.append(arrived)
        receiving.append(message)
    wait_for(receiving)
    x = sum(buffers, x)
    send_to(others, x)
    return x


def tree(x, league):
    """Up a binomial tree, and down again."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    step = 1
    children = []
    arrived = torch.empty_like(x)
    while step < world_size:
        next_step = 2 * step
        is_child = rank % next_step != 0
        if is_child:
            break
        child = rank + step
        if child < world_size:
            dist.recv(arrived, child)
            x += arrived
            children.append(child)
        step = next_step
    if rank != 0:
        parent = rank - step
        dist.send(x, parent)
        dist.recv(x, parent)
    send_to(reversed(children), x)
    return x


def ring(x, league):
    """Around the ring in chunks (Patarasuk and Yuan 2009)."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    right = (rank + 1) % world_size
    left = (rank - 1) % world_size
    chunks = x.tensor_split(world_size)
    turns = 2 * (world_size - 1)
    for turn in range(turns):
        place = (rank - turn) % world_size
        outgoing = chunks[place]
        incoming = chunks[place - 1]  # the last one before the first
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
    bits = world_size.bit_length() - 1
    inner = 2**bits
    if rank >= inner:
        host = rank - inner
        dist.send(x, host)
        dist.recv(x, host)
        return x
    guest = rank + inner
    has_guest = guest < world_size
    if has_guest:
        arrived = torch.empty_like(x)
        dist.recv(arrived, guest)
        x += arrived
    held = x
    split = []
    for bit in reversed(range(bits)):
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
    if has_guest:
        dist.send(x, guest)
    return x


def hierarchical(x, league):
    """Pieces summed inside the node, then with the partner in the other one, then shared."""
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    in_node = world_size // 2
    place = rank % in_node  # within the node
    first = rank - place  # rank of the node
    partner = (rank + in_node) % world_size
    end = first + in_node
    neighbours = list(range(first, end))
    neighbours.remove(rank)
    pieces = x.tensor_split(in_node)  # the one of each neighbour has its place
    own_piece = pieces[place]
    arrived = torch.empty_like(own_piece)
    sent = []
    for other in neighbours:
        piece = pieces[other - first]
        message = dist.isend(piece, other)
        sent.append(message)
    for other in neighbours:
        dist.recv(arrived, other)
        own_piece += arrived
    message = dist.isend(own_piece, partner)
    sent.append(message)
    dist.recv(arrived, partner)
    wait_for(sent)
    own_piece += arrived
    sent = [dist.isend(own_piece, other) for other in neighbours]
    for other in neighbours:
        piece = pieces[other - first]
        dist.recv(piece, other)
    wait_for(sent)
    return x


BASELINES = {
    "direct": direct,
    "tree": tree,
    "ring": ring,
    "halving and doubling": halving_and_doubling,
    "hierarchical": hierarchical,
}
