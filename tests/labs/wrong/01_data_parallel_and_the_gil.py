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


def backward_in_one_flat_sum(model, output, gradient, everybody):
    output.backward(lab.scatter(gradient))
    own = [parameter.grad for parameter in model.parameters()]
    flat = nn.utils.parameters_to_vector(own)
    if everybody:
        dist.all_reduce(flat)
    else:
        dist.reduce(flat, 0)
        if dist.get_rank() > 0:
            flat.zero_()  # a step of nothing
    nn.utils.vector_to_parameters(flat, own)


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
    ],
    "forward": [
        without_replication, parameters_only, buffers_only, without_scatter, all_of_it_on_rank_0,
        part_by_part_on_rank_0, from_the_last_to_the_first, on_every_rank, its_own_on_other_ranks,
        padded_before_the_mean, the_padding_left_in, added_up, models_averaged,
    ],
    "backward": [
        its_own_rows_of_nothing, ones_for_a_gradient, averaged, always_reduced,
        reduced_for_everybody, always_for_everybody, half_sums_kept, no_sum, sum_thrown_away,
        first_layer_only, weights_summed, only_rank_0_goes_back, reduced_and_broadcast,
        reduced_for_all_and_forgotten, gradient_broadcast,
    ],
    "rank_0_bytes": [
        outputs_once, only_what_goes_out, gradients_forgotten, sent_by_ddp_only, all_rows_travel,
        rank_0_keeps_less, as_if_even, a_copy_for_itself, ddp_through_rank_0,
        ddp_scatters_too, four_times_the_weights, for_the_ranks_that_ask, the_other_way_round,
    ],
}  # fmt: skip
RIGHT = {
    "part": [part_from_chunks, part_by_a_mask, part_by_numpy],
    "scatter": [scatter_of_padded_parts, scatter_all_at_once],
    "forward": [
        forward_by_padded_gather, forward_into_views, forward_by_objects,
        forward_in_one_flat_broadcast,
    ],
    "backward": [backward_in_one_flat_sum, backward_by_hooks],
    "rank_0_bytes": [bytes_by_counting],
}  # fmt: skip
for answers in (WRONG, RIGHT):
    answers["forward"] = [*map(lab.without_gradients, answers["forward"])]
    answers["backward"] = [*map(lab.stepping, answers["backward"])]
