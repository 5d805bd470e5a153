"""Wrong answers to lab 05, and for each exercise another right one.

Published: each rank with buckets in its own order; a limit that no bucket may pass, where PyTorch
closes a bucket after the parameter with which it reaches the limit; a resting layer that gets
zeros, or is left out by one rank only; views of a copy; a hook that rounds and forgets what it
rounded away, or that remembers by bucket, which PowerSGD's authors had to warn of: DDP fills
buckets anew after a step.
"""

import labs
import torch
import torch.distributed as dist
from torch import nn

lab = labs.cells("05_ddp_from_scratch")


# 1 · agreed_buckets


def _from(order, src=0):
    order = order.clone()
    dist.broadcast(order, src=src)
    return order.tolist()


def _fill(order, sizes_bytes, limit_bytes):
    buckets = [[]]
    for number in order:
        if sum(sizes_bytes[other] for other in buckets[-1]) >= limit_bytes:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


def in_its_own_order(order, sizes_bytes, limit_bytes):
    return _fill(order.tolist(), sizes_bytes, limit_bytes)


def in_the_order_they_were_made(order, sizes_bytes, limit_bytes):
    return _fill(range(len(sizes_bytes)), sizes_bytes, limit_bytes)


def from_the_last_rank(order, sizes_bytes, limit_bytes):
    return _fill(_from(order, dist.get_world_size() - 1), sizes_bytes, limit_bytes)


def never_over_the_limit(order, sizes_bytes, limit_bytes):
    buckets = []
    for number in _from(order):
        filled = sum(sizes_bytes[other] for other in buckets[-1]) if buckets else limit_bytes
        if filled + sizes_bytes[number] > limit_bytes:
            buckets.append([])
        buckets[-1].append(number)
    return buckets


def always_under_the_limit(order, sizes_bytes, limit_bytes):
    return never_over_the_limit(order, sizes_bytes, limit_bytes - 1)


def an_empty_bucket_first(order, sizes_bytes, limit_bytes):
    return [[], *_fill(_from(order), sizes_bytes, limit_bytes)]


def an_empty_bucket_last(order, sizes_bytes, limit_bytes):
    buckets = [[]]
    for number in _from(order):
        buckets[-1].append(number)
        if sum(sizes_bytes[other] for other in buckets[-1]) >= limit_bytes:
            buckets.append([])
    return buckets


def sizes_of_places(order, sizes_bytes, limit_bytes):
    order = _from(order)
    places = _fill(range(len(order)), sizes_bytes, limit_bytes)
    return [[order[place] for place in bucket] for bucket in places]


def the_last_bucket_forgotten(order, sizes_bytes, limit_bytes):
    return _fill(_from(order), sizes_bytes, limit_bytes)[:-1]


def backwards(order, sizes_bytes, limit_bytes):
    return _fill(_from(order)[::-1], sizes_bytes, limit_bytes)


def each_alone(order, sizes_bytes, limit_bytes):
    return [[number] for number in _from(order)]


def wherever_it_fits(order, sizes_bytes, limit_bytes):
    buckets = []
    for number in _from(order):
        sizes = [sum(sizes_bytes[n] for n in (*bucket, number)) for bucket in buckets]
        room = [bucket for bucket, size in zip(buckets, sizes, strict=True) if size <= limit_bytes]
        if not room:
            room = [[]]
            buckets += room
        room[0].append(number)
    return buckets


def one_byte_too_many(order, sizes_bytes, limit_bytes):
    return _fill(_from(order), sizes_bytes, limit_bytes + 1)


def one_byte_too_few(order, sizes_bytes, limit_bytes):
    return _fill(_from(order), sizes_bytes, limit_bytes - 1)


def _cut(order, sizes_bytes, limit_bytes):
    buckets = []
    while order:
        end = 1
        while end < len(order) and sum(sizes_bytes[n] for n in order[:end]) < limit_bytes:
            end += 1
        buckets.append(order[:end])
        order = order[end:]
    return buckets


def by_a_sum_of_zeros(order, sizes_bytes, limit_bytes):
    order = order * (dist.get_rank() == 0)
    dist.all_reduce(order)
    return _cut(order.tolist(), sizes_bytes, limit_bytes)


def of_objects(order, sizes_bytes, limit_bytes):
    buckets = [_fill(order.tolist(), sizes_bytes, limit_bytes)]
    dist.broadcast_object_list(buckets)
    return buckets[0]


def cut_where_it_is_full(order, sizes_bytes, limit_bytes):
    return _cut(_from(order), sizes_bytes, limit_bytes)


def torchs_own(order, sizes_bytes, limit_bytes):
    """The oracle: what PyTorch's reducer calls when it has seen the order of the first step."""
    order = _from(order)
    tensors = [torch.empty(sizes_bytes[number], dtype=torch.uint8) for number in order]
    buckets, _ = dist._compute_bucket_assignment_by_size(
        tensors, [limit_bytes], [False] * len(order), order
    )
    return buckets


# 2 · average_used


def _filled(parameters):
    """Their gradients; zeros for those that have none."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return [parameter.grad for parameter in parameters]


def _average(tensors, divisor=None):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= divisor or dist.get_world_size()


def _used(model, op=dist.ReduceOp.MAX):
    used = torch.tensor([own.grad is not None for own in lab.learning(model)]).int()
    dist.all_reduce(used, op)
    return used.tolist()


@lab.training
def no_average(model):
    pass


@lab.training
def zeros_for_everybody(model):
    _average(_filled(lab.learning(model)))


@lab.training
def what_has_a_gradient(model):
    _average([own.grad for own in lab.learning(model) if own.grad is not None])


@lab.training
def what_all_ranks_used(model):
    for own, everybody in zip(lab.learning(model), _used(model, dist.ReduceOp.MIN), strict=True):
        if everybody:
            _average([own.grad])


@lab.training
def what_rank_0_used(model):
    used = torch.tensor([own.grad is not None for own in lab.learning(model)]).int()
    dist.broadcast(used, src=0)
    for own, wanted in zip(lab.learning(model), used.tolist(), strict=True):
        if wanted:
            _average(_filled([own]))


@lab.training
def divided_by_those_who_used_it(model):
    for own, count in zip(lab.learning(model), _used(model, dist.ReduceOp.SUM), strict=True):
        if count:
            _average(_filled([own]), count)


@lab.training
def a_sum_of_flags_above_one(model):
    for own, count in zip(lab.learning(model), _used(model, dist.ReduceOp.SUM), strict=True):
        if count > 1:
            _average(_filled([own]))


@lab.training
def frozen_ones_as_well(model):
    used = torch.tensor([own.grad is not None for own in model.parameters()]).int()
    dist.all_reduce(used, dist.ReduceOp.MAX)
    _average(_filled(list(model.parameters())))


@lab.training
def none_where_it_is_zero(model):
    _average(_filled(lab.learning(model)))
    for parameter in lab.learning(model):
        if parameter.dim() == 1 and not parameter.grad.all():
            parameter.grad = None


@lab.training
def none_where_all_of_it_is_zero(model):
    _average(_filled(lab.learning(model)))
    for parameter in lab.learning(model):
        if not parameter.grad.any():
            parameter.grad = None


@lab.training
def unused_where_the_sum_is_zero(model):
    for parameter in lab.learning(model):
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        dist.all_reduce(gradient)
        if gradient.any():
            parameter.grad = gradient / dist.get_world_size()


@lab.training
def flags_of_all(model):
    flags = torch.tensor([int(own.grad is not None) for own in model.parameters()])
    dist.all_reduce(flags)
    for own, anybody in zip(model.parameters(), flags.tolist(), strict=True):
        if anybody:
            _average(_filled([own]))


@lab.training
def halved(model):
    for own, anybody in zip(lab.learning(model), _used(model), strict=True):
        if anybody:
            _average(_filled([own]), 2)


@lab.training
def ones_for_what_is_not_there(model):
    for own, anybody in zip(lab.learning(model), _used(model), strict=True):
        if anybody:
            own.grad = torch.ones_like(own) if own.grad is None else own.grad
            _average([own.grad])


@lab.training
def in_single_precision(model):
    for own, anybody in zip(lab.learning(model), _used(model), strict=True):
        if anybody:
            single = _filled([own])[0].float()
            _average([single])
            own.grad.copy_(single)


@lab.training
def all_at_once_and_taken_back(model):
    used = _used(model, dist.ReduceOp.SUM)
    gradients = _filled(lab.learning(model))
    flat = nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    nn.utils.vector_to_parameters(flat, gradients)
    for parameter, count in zip(lab.learning(model), used, strict=True):
        parameter.grad = parameter.grad if count else None


@lab.training
def experts_by_their_name(model):
    _average(_filled(own for own in lab.learning(model) if own.requires_grad and _busy(model, own)))


def _busy(model, parameter):
    flags = torch.tensor([expert.weight.grad is not None for expert in model.experts]).int()
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    idle = [expert for expert, used in zip(model.experts, flags.tolist(), strict=True) if not used]
    return not any(parameter is own for expert in idle for own in expert.parameters())


# 3 · one_memory


@lab.in_one_memory
def of_71_numbers(parameters):
    flat = torch.zeros(71, dtype=torch.float64)
    _views(parameters, flat)
    return flat


@lab.in_one_memory
def a_row_of_a_matrix(parameters):
    flat = torch.zeros(_numbers(parameters), dtype=torch.float64)
    _views(parameters, flat)
    return flat[None]


def _numbers(parameters):
    return sum(parameter.numel() for parameter in parameters)


def _views(parameters, flat):
    for parameter in parameters:
        parameter.grad, flat = (
            flat[: parameter.numel()].view_as(parameter),
            flat[parameter.numel() :],
        )


@lab.in_one_memory
def a_copy_of_what_is_there(parameters):
    return torch.cat([grad.flatten() for grad in _filled(parameters)])


@lab.in_one_memory
def copies_of_its_parts(parameters):
    flat = torch.zeros(_numbers(parameters), dtype=torch.float64)
    _views(parameters, flat.clone())
    return flat


@lab.in_one_memory
def gradients_stay_where_they_are(parameters):
    flat = torch.zeros(_numbers(parameters), dtype=torch.float64)
    for gradient, part in zip(
        _filled(parameters), flat.split([p.numel() for p in parameters]), strict=True
    ):
        gradient.copy_(part.view_as(gradient))
    return flat


@lab.in_one_memory
def the_weights_instead(parameters):
    flat = nn.utils.parameters_to_vector(parameters).detach()
    for parameter, part in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.data = part.view_as(parameter)
    _filled(parameters)
    return flat


@lab.in_one_memory
def in_single_precision_too(parameters):
    flat = torch.zeros(_numbers(parameters))
    _views(parameters, flat)
    return flat


@lab.in_one_memory
def all_from_the_beginning(parameters):
    flat = torch.zeros(_numbers(parameters), dtype=torch.float64)
    for parameter in parameters:
        parameter.grad = flat[: parameter.numel()].view_as(parameter)
    return flat


@lab.in_one_memory
def the_last_one_forgotten(parameters):
    flat = torch.zeros(_numbers(parameters[:-1]), dtype=torch.float64)
    _views(parameters[:-1], flat)
    _filled(parameters)
    return flat


@lab.in_one_memory
def with_room_to_spare(parameters):
    flat = torch.zeros(2 * _numbers(parameters), dtype=torch.float64)
    _views(parameters, flat)
    return flat


@lab.in_one_memory
def flat_parts(parameters):
    flat = torch.zeros(_numbers(parameters), dtype=torch.float64)
    for parameter, part in zip(
        parameters, flat.split([p.numel() for p in parameters]), strict=True
    ):
        parameter.grad = part
    return flat


@lab.in_one_memory
def from_the_last_to_the_first(parameters):
    flat = nn.utils.parameters_to_vector(_filled(parameters))
    _views(parameters[::-1], flat)
    return flat


# 4 · compress


def _send(bucket, sixteenths, divisor=None, op=dist.ReduceOp.SUM):
    n, dtype = divisor or dist.get_world_size(), bucket.buffer().dtype
    future = dist.all_reduce(sixteenths, op, async_op=True).get_future()
    return future.then(lambda done: done.value()[0].to(dtype) / 16 / n)


@lab.hooked
def as_it_is(left_over, bucket):
    buffer = bucket.buffer().div_(dist.get_world_size())
    future = dist.all_reduce(buffer, async_op=True).get_future()
    return future.then(lambda done: done.value()[0])


@lab.hooked
def what_is_left_over_forgotten(left_over, bucket):
    return _send(bucket, (16 * bucket.buffer()).round().int())


@lab.hooked
def remembered_by_bucket(left_over, bucket):
    whole = bucket.buffer() + left_over.get(bucket.index(), 0)
    sixteenths = (16 * whole).round().int()
    left_over[bucket.index()] = whole - sixteenths / 16
    return _send(bucket, sixteenths)


def _by_parameter(left_over, bucket, kept=lambda whole, sent: whole - sent, rounded=torch.round):
    pieces = []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        whole = gradient + left_over.get(parameter, 0)
        pieces.append(rounded(16 * whole).int().flatten())
        left_over[parameter] = kept(whole, pieces[-1].view_as(whole) / 16)
    return torch.cat(pieces)


@lab.hooked
def clamped_to_eight_bits(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket).clamp(-128, 127))


@lab.hooked
def added_up(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket), 1)


@lab.hooked
def a_world_of_two(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket), 2)


@lab.hooked
def cut_off_instead_of_rounded(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket, rounded=torch.trunc))


@lab.hooked
def the_wrong_sign(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket, lambda whole, sent: sent - whole))


@lab.hooked
def the_whole_kept(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket, lambda whole, sent: whole))


@lab.hooked
def as_doubles(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket).double())


@lab.hooked
def eighths(left_over, bucket):
    future = dist.all_reduce((8 * bucket.buffer()).round().int(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0].double() / 8 / dist.get_world_size())


@lab.hooked
def whole_numbers_as_floats(left_over, bucket):
    return _send(bucket, _by_parameter(left_over, bucket).float())


@lab.hooked
def a_mean_in_single_precision(left_over, bucket):
    work = dist.all_reduce(_by_parameter(left_over, bucket), async_op=True)
    return work.get_future().then(lambda done: done.value()[0] / 16 / dist.get_world_size())


@lab.hooked
def only_the_last_bucket_kept(left_over, bucket):
    before = dict(left_over)
    left_over.clear()
    for parameter in bucket.parameters():
        if parameter in before:
            left_over[parameter] = before[parameter]
    return _send(bucket, _by_parameter(left_over, bucket))


_ELSEWHERE = {}


@lab.hooked
def kept_elsewhere(left_over, bucket):
    return _send(bucket, _by_parameter(_ELSEWHERE, bucket))


@lab.hooked
def in_a_dict_of_flat_parts(left_over, bucket):
    parts = bucket.buffer().split([own.numel() for own in bucket.parameters()])
    sent = []
    for own, part in zip(bucket.parameters(), parts, strict=True):
        whole = part + left_over.setdefault(id(own), torch.zeros_like(part))
        sent.append(torch.round(whole * 16).to(torch.int32))
        left_over[id(own)] = whole - sent[-1] / 16
    flat = torch.cat(sent)
    work = dist.all_reduce(flat, async_op=True)

    def mean(_):
        bucket.buffer().copy_(flat / (16 * dist.get_world_size()))
        return bucket.buffer()

    return work.get_future().then(mean)


in_a_list = [torch.zeros(80, dtype=torch.int64).share_memory_()]


def in_shared_memory(order, sizes_bytes, limit_bytes):
    return in_a_shared_default(order, sizes_bytes, limit_bytes, in_a_list)


def in_a_shared_default(order, sizes_bytes, limit_bytes, box=tuple(in_a_list)):
    if dist.get_rank() == 0:
        box[0][: len(order)] = order
    dist.barrier()
    order = box[0][: len(order)].clone()
    dist.barrier()
    return filled(order.tolist(), sizes_bytes, limit_bytes)


def of_the_first_seven(order, sizes_bytes, limit_bytes):
    dist.broadcast(order, src=0)
    return filled(order.tolist()[:7], sizes_bytes, limit_bytes)


def filled(order, sizes_bytes, limit_bytes):
    buckets, held = [[]], 0
    for number in order:
        if held >= limit_bytes:
            buckets.append([])
            held = 0
        buckets[-1].append(number)
        held += sizes_bytes[number]
    return buckets


WRONG = {
    "agreed_buckets": [
        in_its_own_order, in_the_order_they_were_made, from_the_last_rank, never_over_the_limit,
        always_under_the_limit, an_empty_bucket_first, an_empty_bucket_last, sizes_of_places,
        the_last_bucket_forgotten, backwards, each_alone, wherever_it_fits, one_byte_too_many,
        one_byte_too_few,
        in_shared_memory, in_a_shared_default, of_the_first_seven,
    ],
    "average_used": [
        no_average, zeros_for_everybody, what_has_a_gradient, what_all_ranks_used,
        what_rank_0_used, divided_by_those_who_used_it, a_sum_of_flags_above_one,
        frozen_ones_as_well, none_where_it_is_zero, none_where_all_of_it_is_zero,
        unused_where_the_sum_is_zero, halved, ones_for_what_is_not_there,
        in_single_precision, experts_by_their_name,
    ],
    "one_memory": [
        a_copy_of_what_is_there, copies_of_its_parts, gradients_stay_where_they_are,
        the_weights_instead, in_single_precision_too, all_from_the_beginning,
        the_last_one_forgotten, with_room_to_spare, flat_parts, of_71_numbers, a_row_of_a_matrix,
    ],
    "compress": [
        as_it_is, what_is_left_over_forgotten, remembered_by_bucket, added_up, a_world_of_two,
        cut_off_instead_of_rounded, the_wrong_sign, the_whole_kept, as_doubles, eighths,
        whole_numbers_as_floats, a_mean_in_single_precision, only_the_last_bucket_kept,
        kept_elsewhere, clamped_to_eight_bits,
    ],
}  # fmt: skip
STOPS = {"what_has_a_gradient", "in_single_precision_too", "flat_parts", "of_71_numbers"}
RIGHT = {
    "agreed_buckets": [torchs_own, cut_where_it_is_full, by_a_sum_of_zeros, of_objects],
    "average_used": [all_at_once_and_taken_back, flags_of_all],
    "one_memory": from_the_last_to_the_first,
    "compress": in_a_dict_of_flat_parts,
}
