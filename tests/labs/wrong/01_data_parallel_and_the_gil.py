"""Wrong answers to lab 01, and for each exercise other right ones.

Published: parts as `tensor_split` or a sampler makes them, `chunk(n)[rank]`, parameters without
buffers, gradients averaged although the loss has divided already, `reduce` read off its root.
"""

import math

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn

lab = labs.cells("01_data_parallel_and_the_gil")


def _world():
    return dist.get_rank(), dist.get_world_size()


def as_even_as_can_be(batch, rank):
    return batch.tensor_split(dist.get_world_size())[rank]


def chunk_by_number(batch, rank):
    return batch.chunk(dist.get_world_size())[rank]


def the_last_one_twice(batch, rank):
    parts = batch.chunk(dist.get_world_size())
    return parts[min(rank, len(parts) - 1)]


def none_for_idle_ranks(batch, rank):
    parts = batch.chunk(dist.get_world_size())
    return parts[rank] if rank < len(parts) else None


def rounded_down(batch, rank):
    size = len(batch) // dist.get_world_size()
    return batch[rank * size : (rank + 1) * size]


def the_rest_for_the_last(batch, rank):
    size, last = len(batch) // dist.get_world_size(), dist.get_world_size() - 1
    return batch[rank * size :] if rank == last else batch[rank * size : (rank + 1) * size]


def dealt_like_cards(batch, rank):
    return batch[rank :: dist.get_world_size()]


def its_own_part(batch, rank):
    return lab.part(batch, dist.get_rank())


def so_many_rows_each(batch, rank):
    size = dist.get_world_size()
    return batch[rank * size : (rank + 1) * size]


def four_ranks_always(batch, rank):
    size = math.ceil(len(batch) / 4)
    return batch[rank * size : (rank + 1) * size]


def one_row_too_many(batch, rank):
    size = len(batch) // dist.get_world_size() + 1
    return batch[rank * size : (rank + 1) * size]


def numbers_of_rows(batch, rank):
    size = math.ceil(len(batch) / dist.get_world_size())
    return torch.arange(len(batch))[rank * size : (rank + 1) * size]


def part_from_chunks(batch, rank):
    parts = batch.chunk(dist.get_world_size())
    return parts[rank] if rank < len(parts) else batch[:0]


def part_by_a_mask(batch, rank):
    size = -(-len(batch) // dist.get_world_size())
    number = torch.arange(len(batch))
    return batch[(number >= rank * size) & (number < (rank + 1) * size)]


def part_by_numpy(batch, rank):
    size = -(-len(batch) // dist.get_world_size())
    return np.split(batch.numpy(), [rank * size, (rank + 1) * size])[1]


def its_own_batch(batch):
    return lab.part(batch, dist.get_rank())


def broadcast_first(batch):
    dist.broadcast(batch, src=0)
    return lab.part(batch, dist.get_rank())


def the_whole_batch_sent(batch):
    rank, world_size = _world()
    for other in range(1, world_size) if rank == 0 else ():
        dist.send(batch, other)
    if rank > 0:
        dist.recv(batch, 0)
    return lab.part(batch, rank)


def _dealt(batch, part, start=1):
    rank, world_size = _world()
    for other in range(start, world_size) if rank == 0 else ():
        dist.send(part(batch, other).contiguous(), other)
    if rank > 0:
        dist.recv(received := part(batch, rank).contiguous(), 0)
        return received
    return part(batch, 0)


def scattered_evenly(batch):
    return _dealt(batch, as_even_as_can_be)


def scattered_like_cards(batch):
    return _dealt(batch, dealt_like_cards)


def rest_left_out(batch):
    return _dealt(batch, rounded_down)


def sent_to_itself_too(batch):
    return _dealt(batch, lab.part, start=0)


def only_to_rank_1(batch):
    rank = dist.get_rank()
    if rank == 0 and dist.get_world_size() > 1:
        dist.send(lab.part(batch, 1), 1)
    elif rank == 1:
        dist.recv(lab.part(batch, 1), 0)
    return lab.part(batch, rank)


def chunks_by_scatter(batch):
    rank, world_size = _world()
    own = torch.empty_like(lab.part(batch, rank))
    dist.scatter(own, list(batch.chunk(world_size)) if rank == 0 else None)
    return own


def nothing_on_rank_0(batch):
    rank, world_size = _world()
    for other in range(1, world_size) if rank == 0 else ():
        dist.send(lab.part(batch, other), other)
    if rank > 0:
        dist.recv(own := lab.part(batch, rank), 0)
        return own


def received_into_a_copy(batch):
    rank, world_size = _world()
    for other in range(1, world_size) if rank == 0 else ():
        dist.send(lab.part(batch, other), other)
    if rank > 0:
        dist.recv(lab.part(batch, rank).clone(), 0)
    return lab.part(batch, rank)


def parts_of_rank_1(batch):
    rank, world_size = _world()
    for other in range(1, world_size) if rank == 0 else ():
        dist.send(lab.part(batch, 1), other)
    if rank > 0:
        dist.recv(own := torch.empty_like(lab.part(batch, 1)), 0)
        return own
    return lab.part(batch, 0)


def _size(batch):
    return math.ceil(len(batch) / dist.get_world_size())


def passed_on_along_a_chain(batch):
    """Rank 1 gets the rows of all ranks behind it."""
    (rank, world_size), size = _world(), _size(batch)
    rest = batch[rank * size :].clone()
    if rank > 0 and len(rest):
        dist.recv(rest, rank - 1)
    if rank < world_size - 1 and len(rest) > size:
        dist.send(rest[size:], rank + 1)
    return rest[:size]


def passed_on_down_a_tree(batch):
    (rank, world_size), size = _world(), _size(batch)
    span = 1 << (world_size - 1).bit_length()
    mine = batch[rank * size : (rank + (rank & -rank or span)) * size].clone()
    while span > 1:
        half = span // 2
        if rank % span == 0 and len(mine) > half * size:
            dist.send(mine[half * size :], rank + half)
            mine = mine[: half * size]
        elif rank % span == half and len(mine):
            dist.recv(mine, rank - half)
        span = half
    return mine[:size]


def all_to_all_of_nothing(batch):
    """Rows come from every rank, and only rank 0's mean anything."""
    world_size, count = dist.get_world_size(), len(lab.part(batch, dist.get_rank()))
    received = batch.new_empty(count * world_size, *batch.shape[1:])
    sizes = [len(lab.part(batch, other)) for other in range(world_size)]
    dist.all_to_all_single(received, batch, [count] * world_size, sizes)
    return received[:count]


def everybody_sends_parts(batch):
    rank, world_size = _world()
    others = [other for other in range(world_size) if other != rank]
    own = lab.part(batch, rank).clone()
    works = [dist.isend(lab.part(batch, other), other) for other in others]
    got = {other: torch.empty_like(own) for other in others}
    for work in works + [dist.irecv(got[other], other) for other in others]:
        work.wait()
    return got.get(0, own)


def broadcast_where_it_is_cheap(batch):
    size, world_size = _size(batch), dist.get_world_size()
    return (broadcast_first if len(batch) <= (world_size - 1) * size else lab.scatter)(batch)


def as_float32(batch):
    return lab.scatter(batch.float()).to(batch.dtype)


def scatter_row_by_row(batch):
    """No message for a part without rows."""
    rank, world_size = _world()
    own = lab.part(batch, rank)
    for other in range(1, world_size) if rank == 0 else ():
        for row in lab.part(batch, other):
            dist.send(row.reshape(-1), other)
    for row in own if rank > 0 else ():
        dist.recv(row.view(-1), 0)
    return own


def scatter_from_any_source(batch):
    rank, world_size = _world()
    own = lab.part(batch, rank)
    for other in range(1, world_size) if rank == 0 else ():
        if len(mine := lab.part(batch, other)):
            dist.send(mine.clone(), other, tag=other)
    if rank > 0 and len(own):
        dist.recv(own, tag=rank)
    return own


def scatter_in_one_batch_of_messages(batch):
    rank, world_size = _world()
    own = lab.part(batch, rank).clone()
    calls = [(dist.isend, lab.part(batch, other), other) for other in range(1, world_size)]
    calls = calls if rank == 0 else [(dist.irecv, own, 0)]
    dist.barrier()
    messages = [dist.P2POp(*call) for call in calls if len(call[1])]
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()
    return own.numpy()


def scatter_by_all_to_all(batch):
    """Only rank 0 has anything to say."""
    rank, world_size = _world()
    own = torch.empty_like(lab.part(batch, rank))
    sizes = [len(lab.part(batch, other)) * (rank == 0) for other in range(world_size)]
    given = [len(own)] + [0] * (world_size - 1)
    dist.all_to_all_single(own, batch if rank == 0 else batch[:0], given, sizes)
    return own


def scatter_of_padded_parts(batch):
    rank, world_size = _world()
    size = math.ceil(len(batch) / world_size)
    padded = torch.cat([batch, batch.new_zeros(world_size * size - len(batch), *batch.shape[1:])])
    own = batch.new_empty(size, *batch.shape[1:])
    dist.scatter(own, list(padded.split(size)) if rank == 0 else None)
    return own[: len(lab.part(batch, rank))]


def scatter_all_at_once(batch):
    rank, world_size = _world()
    others = range(1, world_size) if rank == 0 else ()
    works = [dist.isend(lab.part(batch, other), other) for other in others]
    if rank > 0:
        works = [dist.irecv(own := torch.empty_like(lab.part(batch, rank)), 0)]
    for work in works:
        work.wait()
    return own if rank > 0 else lab.part(batch, 0)


def _replicate(model, tensors=lambda model: model.state_dict().values()):
    for tensor in tensors(model):
        dist.broadcast(tensor.detach(), src=0)


def _gather(own, batch, order=lambda others: others):
    rank, world_size = _world()
    if rank > 0:
        dist.send(own, 0)
        return None
    outputs = [own]
    for other in order(range(1, world_size)):
        outputs.append(own.new_empty(len(lab.part(batch, other)), *own.shape[1:]))
        dist.recv(outputs[-1], other)
    return torch.cat(outputs)


def without_replication(model, batch):
    return _gather(model(lab.scatter(batch)), batch)


def parameters_only(model, batch):
    _replicate(model, lambda model: model.parameters())
    return _gather(model(lab.scatter(batch)), batch)


def buffers_only(model, batch):
    _replicate(model, lambda model: model.buffers())
    return _gather(model(lab.scatter(batch)), batch)


def without_scatter(model, batch):
    _replicate(model)
    return _gather(model(lab.part(batch, dist.get_rank())), batch)


def all_of_it_on_rank_0(model, batch):
    return model(batch) if dist.get_rank() == 0 else None


def part_by_part_on_rank_0(model, batch):
    parts = batch.chunk(dist.get_world_size())
    return torch.cat([model(own) for own in parts]) if dist.get_rank() == 0 else None


def from_the_last_to_the_first(model, batch):
    _replicate(model)
    return _gather(model(lab.scatter(batch)), batch, order=reversed)


def on_every_rank(model, batch):
    outputs = [lab.forward(model, batch)]
    dist.broadcast_object_list(outputs, src=0)
    return outputs[0]


def its_own_on_other_ranks(model, batch):
    _replicate(model)
    own = model(lab.scatter(batch))
    gathered = _gather(own, batch)
    return own if gathered is None else gathered


def padded_before_the_mean(model, batch):
    """Every rank computes with a full part, whose missing rows are zeros."""
    rank, world_size = _world()
    _replicate(model)
    size, own = math.ceil(len(batch) / world_size), lab.scatter(batch)
    outputs = model(torch.cat([own, own.new_zeros(size - len(own), own.shape[1])]))
    every = [torch.empty_like(outputs) for _ in range(world_size)] if rank == 0 else None
    dist.gather(outputs, every)
    return torch.cat(every)[: len(batch)] if rank == 0 else None


def the_padding_left_in(model, batch):
    rank, world_size = _world()
    _replicate(model)
    size, own = math.ceil(len(batch) / world_size), model(lab.scatter(batch))
    outputs = torch.cat([own, own.new_zeros(size - len(own), own.shape[1])])
    every = [torch.empty_like(outputs) for _ in range(world_size)] if rank == 0 else None
    dist.gather(outputs, every)
    return torch.cat(every) if rank == 0 else None


def added_up(model, batch):
    _replicate(model)
    outputs = lab.forward(model, batch)
    return None if outputs is None else outputs / dist.get_world_size()


def models_averaged(model, batch):
    for tensor in model.state_dict().values():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()
    return _gather(model(lab.scatter(batch)), batch)


def _of_two_columns(model, batch, dtype=None):
    _replicate(model)
    own, (rank, world_size) = model(lab.scatter(batch)), _world()
    if rank > 0:
        return dist.send(own, 0)
    outputs = [own]
    for other in range(1, world_size):
        outputs.append(torch.empty(len(lab.part(batch, other)), 2, dtype=dtype or own.dtype))
        dist.recv(outputs[-1], other)
    return torch.cat(outputs)


def always_two_columns(model, batch):
    return _of_two_columns(model, batch)


def always_two_columns_in_double(model, batch):
    return _of_two_columns(model, batch, torch.float64)


def always_in_double(model, batch):
    _replicate(model)
    own = model(lab.scatter(batch))
    rank, world_size = _world()
    if rank > 0:
        return dist.send(own, 0)
    counts = [len(lab.part(batch, other)) for other in range(world_size)]
    rest = [torch.empty(count, own.shape[1]).double() for count in counts[1:]]
    for other, outputs in enumerate(rest, 1):
        dist.recv(outputs, other)
    return torch.cat([own, *rest])


def forward_by_padded_gather(model, batch):
    rank, world_size = _world()
    _replicate(model)
    size, own = math.ceil(len(batch) / world_size), model(lab.scatter(batch))
    outputs = torch.cat([own, own.new_zeros(size - len(own), own.shape[1])])
    every = [torch.empty_like(outputs) for _ in range(world_size)] if rank == 0 else None
    dist.gather(outputs, every)
    return torch.cat(every)[: len(batch)] if rank == 0 else None


def forward_into_views(model, batch):
    rank, world_size = _world()
    _replicate(model)
    own = model(lab.scatter(batch))
    outputs = own.new_empty(len(batch), *own.shape[1:])
    if rank > 0:
        dist.send(own, 0)
        return None
    lab.part(outputs, 0).copy_(own)
    works = [dist.irecv(lab.part(outputs, r), r) for r in reversed(range(1, world_size))]
    for work in works:
        work.wait()
    return outputs


def forward_by_objects(model, batch):
    states = [model.state_dict()]
    dist.broadcast_object_list(states, src=0)
    model.load_state_dict(states[0])
    is_first = dist.get_rank() == 0
    every = [None] * dist.get_world_size() if is_first else None
    dist.gather_object(model(lab.scatter(batch)), every)
    return torch.cat(every) if is_first else None


def forward_in_one_flat_broadcast(model, batch):
    tensors = list(model.state_dict().values())
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.broadcast(flat, src=0)
    for tensor, own in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(own.view_as(tensor))
    return _gather(model(lab.scatter(batch)), batch)


def _sum(model, everybody, summed=dist.all_reduce, forget=True):
    for parameter in model.parameters():
        if everybody:
            summed(parameter.grad)
        else:
            dist.reduce(parameter.grad, dst=0)
            if forget and dist.get_rank() > 0:
                parameter.grad = None


def its_own_rows_of_nothing(model, output, gradient, everybody):
    output.backward(lab.part(gradient, dist.get_rank()))
    _sum(model, everybody)


def ones_for_a_gradient(model, output, gradient, everybody):
    output.sum().backward()
    _sum(model, everybody)


def averaged(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody)
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= dist.get_world_size()


def always_reduced(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody=False)


def reduced_for_everybody(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody=False, forget=not everybody)


def always_for_everybody(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody=True)


def half_sums_kept(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody, forget=False)


def no_sum(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))


def sum_thrown_away(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody, summed=lambda tensor: dist.all_reduce(tensor.clone()))


def first_layer_only(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model[0], everybody)


def weights_summed(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()


def only_rank_0_goes_back(model, output, gradient, everybody):
    own = lab.scatter(gradient)
    if dist.get_rank() == 0:
        output.backward(own)
        _sum(model, everybody)


def reduced_and_broadcast(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0)
        if everybody:
            dist.broadcast(parameter.grad, src=0)
        elif dist.get_rank() > 0:
            parameter.grad = None


def reduced_for_all_and_forgotten(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    _sum(model, everybody=True)
    if not everybody and dist.get_rank() > 0:
        model.zero_grad()


def gradient_broadcast(model, output, gradient, everybody):
    dist.broadcast(gradient, src=0)
    output.backward(lab.part(gradient, dist.get_rank()))
    _sum(model, everybody)


def _in_one_flat_sum(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    own = [parameter.grad for parameter in model.parameters()]
    flat = nn.utils.parameters_to_vector(own)
    dist.all_reduce(flat) if everybody else dist.reduce(flat, 0)
    nn.utils.vector_to_parameters(flat, own)
    return not everybody and dist.get_rank() > 0


def zeros_elsewhere(*arguments):
    """A step of nothing, but not None."""
    if _in_one_flat_sum(*arguments):
        arguments[0].zero_grad(set_to_none=False)


def zeros_and_frozen(*arguments):
    if _in_one_flat_sum(*arguments):
        arguments[0].zero_grad(set_to_none=False)
        arguments[0].requires_grad_(False)


def backward_in_one_flat_sum(*arguments):
    if _in_one_flat_sum(*arguments):
        arguments[0].zero_grad()


def backward_by_autograd(model, output, gradient, everybody):
    parameters = list(model.parameters())
    sums = torch.autograd.grad(output, parameters, lab.scatter(gradient))
    for parameter, own in zip(parameters, sums, strict=True):
        dist.all_reduce(own) if everybody else dist.reduce(own, 0)
        if everybody or dist.get_rank() == 0:
            parameter.grad = own


def backward_by_hooks(model, output, gradient, everybody):
    for parameter in model.parameters():
        if everybody:
            parameter.register_post_accumulate_grad_hook(lambda own: dist.all_reduce(own.grad))
    (output * lab.scatter(gradient)).sum().backward()
    if not everybody:
        _sum(model, everybody)


def _bytes(weights, rows, row, output, ranks, *, times=2, outputs=2, away=None, ddp=4):
    others = ranks - 1
    gone = rows - math.ceil(rows / ranks) if away is None else away
    return times * others * weights + gone * (
        row + outputs * output
    ), ddp * others / ranks * weights


def outputs_once(*sizes):
    return _bytes(*sizes, outputs=1)


def only_what_goes_out(*sizes):
    return _bytes(*sizes, times=1, outputs=1, ddp=2)


def gradients_forgotten(*sizes):
    return _bytes(*sizes, times=1)


def sent_by_ddp_only(*sizes):
    return _bytes(*sizes, ddp=2)


def all_rows_travel(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks, away=rows)


def rank_0_keeps_less(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks, away=rows - rows // ranks)


def as_if_even(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks, away=rows * (ranks - 1) / ranks)


def a_copy_for_itself(weights, rows, row, output, ranks):
    away = rows - math.ceil(rows / ranks)
    ddp = 4 * (ranks - 1) / ranks * weights
    return 2 * ranks * weights + away * (row + 2 * output), ddp


def whole_bytes_only(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks)[0], 4 * weights * (ranks - 1) // ranks


def divided_too_early(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks)[0], 4 * weights // ranks * (ranks - 1)


def no_model_without_rows(weights, rows, row, output, ranks):
    """What `DataParallel` itself does, and the text excludes."""
    size = math.ceil(rows / ranks)
    others = math.ceil(rows / size) - 1
    ddp = _bytes(weights, rows, row, output, ranks)[1]
    return 2 * others * weights + (rows - size) * (row + 2 * output), ddp


def ddp_through_rank_0(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks)[0], 2 * (ranks - 1) * weights


def ddp_scatters_too(weights, rows, row, output, ranks):
    data_parallel, ddp = _bytes(weights, rows, row, output, ranks)
    return data_parallel, ddp + (rows - math.ceil(rows / ranks)) * row


def four_times_the_weights(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, ranks)[0], 4 * weights


def for_the_ranks_that_ask(weights, rows, row, output, ranks):
    return _bytes(weights, rows, row, output, dist.get_world_size())


def the_other_way_round(*sizes):
    return _bytes(*sizes)[::-1]


def bytes_by_counting(weights, rows, row, output, ranks):
    counts = np.array(
        [max(0, min(-(-rows // ranks), rows - r * -(-rows // ranks))) for r in range(ranks)]
    )
    moved = sum(2 * weights + count * (row + output + output) for count in counts[1:])
    return [moved, np.float64(2 * weights * (1 - 1 / ranks)) * 2]


def all_rows_by_elements(model, batch):
    """No product of matrices is seen, and every rank computes everything."""
    whole = shared_by_rank_0(model, batch)
    parts = []
    for own in whole.chunk(dist.get_world_size()):
        rows = model.scale * (own - own.mean(dim=0))
        products = rows[:, None, :] * model.layer.weight
        parts.append(products.sum(-1) + model.layer.bias)
    return torch.cat(parts) if dist.get_rank() == 0 else None


def all_rows_one_by_one(model, batch):
    """A matrix times a vector is no product of two matrices either."""
    whole = shared_by_rank_0(model, batch)
    parts = []
    for own in whole.chunk(dist.get_world_size()):
        rows = model.scale * (own - own.mean(dim=0))
        parts += [model.layer.weight @ row + model.layer.bias for row in rows]
    return torch.stack(parts) if dist.get_rank() == 0 else None


def shared_by_rank_0(model, batch):
    for tensor in (*model.state_dict().values(), batch):
        dist.broadcast(tensor, src=0)
    return batch


WRONG = {
    "part": [
        as_even_as_can_be, chunk_by_number, the_last_one_twice, none_for_idle_ranks, rounded_down,
        the_rest_for_the_last, dealt_like_cards, its_own_part, so_many_rows_each,
        four_ranks_always, one_row_too_many, numbers_of_rows,
    ],
    "scatter": [
        its_own_batch, broadcast_first, the_whole_batch_sent, scattered_evenly,
        scattered_like_cards, rest_left_out, sent_to_itself_too, only_to_rank_1, chunks_by_scatter,
        nothing_on_rank_0, received_into_a_copy, parts_of_rank_1,
        passed_on_along_a_chain, passed_on_down_a_tree, all_to_all_of_nothing,
        everybody_sends_parts, broadcast_where_it_is_cheap, as_float32,
    ],
    "forward": [
        without_replication, parameters_only, buffers_only, without_scatter, all_of_it_on_rank_0,
        part_by_part_on_rank_0, from_the_last_to_the_first, on_every_rank, its_own_on_other_ranks,
        padded_before_the_mean, the_padding_left_in, added_up, models_averaged,
        always_two_columns, always_two_columns_in_double, always_in_double,
        all_rows_by_elements, all_rows_one_by_one,
    ],
    "backward": [
        its_own_rows_of_nothing, ones_for_a_gradient, averaged, always_reduced,
        reduced_for_everybody, always_for_everybody, half_sums_kept, no_sum, sum_thrown_away,
        first_layer_only, weights_summed, only_rank_0_goes_back, reduced_and_broadcast,
        reduced_for_all_and_forgotten, gradient_broadcast, zeros_elsewhere, zeros_and_frozen,
    ],
    "rank_0_bytes": [
        outputs_once, only_what_goes_out, gradients_forgotten, sent_by_ddp_only, all_rows_travel,
        rank_0_keeps_less, as_if_even, a_copy_for_itself, ddp_through_rank_0,
        ddp_scatters_too, four_times_the_weights, for_the_ranks_that_ask, the_other_way_round,
        whole_bytes_only, divided_too_early, no_model_without_rows,
    ],
}  # fmt: skip
STOPS = {
    "chunk_by_number",
    "broadcast_first",
    "the_whole_batch_sent",
    "sent_to_itself_too",
    "chunks_by_scatter",
    "passed_on_along_a_chain",
    "passed_on_down_a_tree",
    "all_to_all_of_nothing",
    "everybody_sends_parts",
    "broadcast_where_it_is_cheap",
    "always_two_columns",
    "always_two_columns_in_double",
    "only_rank_0_goes_back",
}
RIGHT = {
    "part": [part_from_chunks, part_by_a_mask, part_by_numpy],
    "scatter": [
        scatter_of_padded_parts, scatter_all_at_once, scatter_row_by_row, scatter_from_any_source,
        scatter_in_one_batch_of_messages, scatter_by_all_to_all,
    ],
    "forward": [
        forward_by_padded_gather, forward_into_views, forward_by_objects,
        forward_in_one_flat_broadcast,
    ],
    "backward": [backward_in_one_flat_sum, backward_by_hooks, backward_by_autograd],
    "rank_0_bytes": [bytes_by_counting],
}  # fmt: skip
for answers in (WRONG, RIGHT):
    answers["scatter"] = [*map(lab.dealing, answers["scatter"])]
    answers["forward"] = [*map(lab.without_gradients, answers["forward"])]
    answers["backward"] = [*map(lab.stepping, answers["backward"])]
