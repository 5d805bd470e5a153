"""Wrong answers to lab 12, and for each exercise other right ones.

Published: an error memory by the number of a bucket, as in PyTorch's PowerSGD, which may only begin
when DDP has filled its buckets anew; a memory that is not emptied where something was sent; an
outer optimiser on each rank's own way; a mean that counts slow ranks fully; buffers forgotten.
"""

from math import prod

import labs
import numpy as np
import torch
import torch.distributed as dist

lab = labs.cells("12_send_less")


# 1 · remember


def _largest(whole, share, by=torch.abs):
    return by(whole).topk(max(1, int(share * len(whole)))).indices


def _pieces(state, bucket):
    """Gradients and what is left over of them, by parameter."""
    both = zip(bucket.parameters(), bucket.gradients(), strict=True)
    return [gradient + state.left_over.get(parameter, 0) for parameter, gradient in both]


def _keep(state, bucket, rest):
    at = 0
    for parameter in bucket.parameters():
        state.left_over[parameter] = rest[at : at + parameter.numel()].view_as(parameter)
        at += parameter.numel()


def _without(whole, places):
    rest = whole.clone()
    rest[places] = 0
    return rest


def _remembering(whole_of=None, places_of=_largest, rest_of=_without, send=lab.mean_of_sent):
    def hook(state, bucket):
        pieces = whole_of(state, bucket) if whole_of else _pieces(state, bucket)
        whole = lab.flat(pieces)
        places = places_of(whole, state.share)
        _keep(state, bucket, rest_of(whole, places))
        return lab.ready(send(whole, places))

    return hook


def _named(name, hook):
    hook.__name__ = name
    return hook


def without_memory(state, bucket):
    whole = bucket.buffer()
    state.left_over["something"] = whole
    return lab.ready(lab.mean_of_sent(whole, _largest(whole, state.share)))


def by_the_place_in_the_bucket(state, bucket):
    whole = bucket.buffer() + state.left_over.get(bucket.index(), 0)
    places = _largest(whole, state.share)
    state.left_over[bucket.index()] = _without(whole, places)
    return lab.ready(lab.mean_of_sent(whole, places))


def from_the_second_step_on(state, bucket):
    """As PyTorch's PowerSGD: what the first step leaves over is lost."""
    whole = bucket.buffer() + state.left_over.get("rest", 0)
    places = _largest(whole, state.share)
    if state.left_over:
        state.left_over["rest"] = _without(whole, places)
    else:
        state.left_over["rest"] = torch.zeros_like(whole)
    return lab.ready(lab.mean_of_sent(whole, places))


def only_the_gradients_rest(state, bucket):
    """What was left over before and was not sent now either is forgotten."""
    whole = lab.flat(_pieces(state, bucket))
    places = _largest(whole, state.share)
    _keep(state, bucket, _without(bucket.buffer().clone(), places))
    return lab.ready(lab.mean_of_sent(whole, places))


def chosen_before_adding(state, bucket):
    places = _largest(bucket.buffer(), state.share)
    whole = lab.flat(_pieces(state, bucket))
    _keep(state, bucket, _without(whole, places))
    return lab.ready(lab.mean_of_sent(whole, places))


def each_parameter_for_itself(state, bucket):
    pieces, at, chosen = _pieces(state, bucket), 0, []
    for piece in pieces:
        chosen.append(at + _largest(piece.flatten(), state.share))
        at += piece.numel()
    whole, places = lab.flat(pieces), torch.cat(chosen)
    _keep(state, bucket, _without(whole, places))
    return lab.ready(lab.mean_of_sent(whole, places))


def everything_sent(state, bucket):
    whole = lab.flat(_pieces(state, bucket))
    return lab.ready(lab.mean_of_sent(whole, torch.arange(len(whole))))


def the_mean_is_what_was_sent(state, bucket):
    """The rest is taken from the mean of all, not from what this rank sent."""
    whole = lab.flat(_pieces(state, bucket))
    mean = lab.mean_of_sent(whole, _largest(whole, state.share))
    _keep(state, bucket, whole - mean)
    return lab.ready(mean)


def all_places_with_places_of_64_bits(state, bucket):
    whole = lab.flat(_pieces(state, bucket))
    places, n = _largest(whole, state.share), dist.get_world_size()
    _keep(state, bucket, _without(whole, places))
    all_places, all_values = places.new_empty(n * len(places)), whole.new_empty(n * len(places))
    dist.all_gather_into_tensor(all_places, places)
    dist.all_gather_into_tensor(all_values, whole[places])
    return lab.ready(torch.zeros_like(whole).index_add_(0, all_places, all_values / n))


def a_sum(whole, places):
    return lab.mean_of_sent(whole, places) * dist.get_world_size()


def one_value_per_place(whole, places):
    mean, n = lab.mean_of_sent(whole, places), dist.get_world_size()
    mean[places] = whole[places] / n
    return mean


def through_a_dense_sum(state, bucket):
    """Right numbers, and as many bytes as DDP sends."""
    whole = lab.flat(_pieces(state, bucket))
    places = _largest(whole, state.share)
    _keep(state, bucket, rest := _without(whole, places))
    dist.all_reduce(sent := whole - rest)
    return lab.ready(sent / dist.get_world_size())


def by_address_and_in_place(state, bucket):
    parameters, gradients = bucket.parameters(), bucket.gradients()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.data_ptr() in state.left_over:
            gradient += state.left_over[parameter.data_ptr()]
    whole = bucket.buffer()
    k = max(1, int(state.share * whole.numel()))
    places = whole.square().argsort(descending=True)[:k]
    mean = lab.mean_of_sent(whole, places)
    whole[places] = 0
    for parameter, gradient in zip(parameters, gradients, strict=True):
        state.left_over[parameter.data_ptr()] = gradient.clone()
    return lab.ready(mean)


def in_one_message(state, bucket):
    """Lists of tensors, gathered; the future is chained."""
    whole = lab.flat(_pieces(state, bucket))
    places, n = _largest(whole, state.share), dist.get_world_size()
    _keep(state, bucket, _without(whole, places))
    found = [[torch.empty_like(own) for _ in range(n)] for own in (places.int(), whole[places])]
    dist.all_gather(found[0], places.int())
    work = dist.all_gather(found[1], whole[places], async_op=True)

    def mean(done):
        total = torch.zeros_like(whole)
        for own_places, values in zip(*found, strict=True):
            total[own_places.long()] += values
        return total / n

    return work.get_future().then(mean)


# 2 · outer_step


def _share(read):
    total = torch.tensor(float(read), dtype=torch.float64)
    dist.all_reduce(total)
    return read / total.item()


def _even(read):
    return 1 / dist.get_world_size()


def _mean_way(network, anchor, share, sign=1.0):
    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        start.grad = sign * share * (start - own).detach()
        dist.all_reduce(start.grad)


def _mean_buffers(network, share):
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer *= share
            dist.all_reduce(buffer)


@torch.no_grad()
def _go_on(network, anchor):
    for own, start in zip(network.parameters(), anchor.parameters(), strict=True):
        own.copy_(start)


def _step(share_of=_share, sign=1.0, buffers=True, goes_on=True):
    def answer(network, anchor, outer, read):
        share = share_of(read)
        _mean_way(network, anchor, share, sign)
        outer.step()
        if buffers:
            _mean_buffers(network, share)
        if goes_on:
            _go_on(network, anchor)

    return answer


def the_plain_mean(network, anchor, outer, read):
    share = _share(read)
    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        own.data *= share
        dist.all_reduce(own.data)
        start.data.copy_(own.data)
    _mean_buffers(network, share)


def its_own_outer_step_then_the_mean(network, anchor, outer, read):
    share = _share(read)
    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        start.grad = (start - own).detach()
    outer.step()
    for start in lab.learning(anchor):
        start.data *= share
        dist.all_reduce(start.data)
    _mean_buffers(network, share)
    _go_on(network, anchor)


def gradients_add_up(network, anchor, outer, read):
    share = _share(read)
    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        way = share * (start - own).detach()
        dist.all_reduce(way)
        start.grad = way if start.grad is None else start.grad + way
    outer.step()
    _mean_buffers(network, share)
    _go_on(network, anchor)


def the_way_of_rank_0(network, anchor, outer, read):
    share = _share(read)
    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        start.grad = (start - own).detach()
        dist.broadcast(start.grad, 0)
    outer.step()
    _mean_buffers(network, share)
    _go_on(network, anchor)


def buffers_counted_evenly(network, anchor, outer, read):
    _mean_way(network, anchor, _share(read))
    outer.step()
    _mean_buffers(network, 1 / dist.get_world_size())
    _go_on(network, anchor)


def buffers_of_rank_0(network, anchor, outer, read):
    _step(buffers=False)(network, anchor, outer, read)
    for buffer in network.buffers():
        if buffer.is_floating_point():
            dist.broadcast(buffer, 0)


def shared_and_divided_again(network, anchor, outer, read):
    share = _share(read) / dist.get_world_size()
    _mean_way(network, anchor, share)
    outer.step()
    _mean_buffers(network, share * dist.get_world_size())
    _go_on(network, anchor)


def the_slow_are_left_out(network, anchor, outer, read):
    most = torch.tensor(float(read), dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    share = _share(read if read == most else 0)
    _mean_way(network, anchor, share)
    outer.step()
    _mean_buffers(network, share)
    _go_on(network, anchor)


def new_parameters(network, anchor, outer, read):
    """The inner optimiser holds the old ones still."""
    share = _share(read)
    _mean_way(network, anchor, share)
    outer.step()
    _mean_buffers(network, share)
    for module, start in zip(network.children(), anchor.children(), strict=True):
        for name, own in start.named_parameters():
            again = torch.nn.Parameter(own.detach().clone(), requires_grad=own.requires_grad)
            setattr(module, name, again)


def one_memory_for_both(network, anchor, outer, read):
    share = _share(read)
    _mean_way(network, anchor, share)
    outer.step()
    _mean_buffers(network, share)
    for own, start in zip(network.parameters(), anchor.parameters(), strict=True):
        own.data = start.data


def gathered_and_added_from_ones_own(network, anchor, outer, read):
    """The same numbers in another order on each rank: not equal to the last bit."""
    n, rank, share = dist.get_world_size(), dist.get_rank(), _share(read)

    def added(own):
        every = [torch.empty_like(own) for _ in range(n)]
        dist.all_gather(every, own.contiguous())
        return sum(every[(rank + k) % n] for k in range(n))

    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        start.grad = added(share * (start - own).detach())
    outer.step()
    _mean_buffers(network, share)
    _go_on(network, anchor)


def sent_twice(network, anchor, outer, read):
    _step()(network, anchor, outer, read)
    for own in network.parameters():
        dist.broadcast(own.data, 0)


def counted_batches_too(network, anchor, outer, read):
    _step()(network, anchor, outer, read)
    dist.all_reduce(network.norm.num_batches_tracked, op=dist.ReduceOp.MAX)


def in_one_flat_message(network, anchor, outer, read):
    """All ways, buffers and the count of what was read in one sum."""
    mine, starts = lab.learning(network), lab.learning(anchor)
    floats = [own for own in network.buffers() if own.is_floating_point()]
    ways = [start.detach() - own.detach() for own, start in zip(mine, starts, strict=True)]
    flat = read * torch.cat([own.flatten() for own in [*ways, *floats]])
    message = torch.cat([flat, flat.new_tensor([read])])
    dist.all_reduce(message)
    means = (message[:-1] / message[-1]).split([own.numel() for own in [*ways, *floats]])
    for start, mean in zip(starts, means, strict=False):
        start.grad = mean.view_as(start)
    for buffer, mean in zip(floats, means[len(starts) :], strict=True):
        buffer.copy_(mean.view_as(buffer))
    outer.step()
    torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(starts).detach(), mine)


def weights_first_then_their_way(network, anchor, outer, read):
    """The mean of weights, whose way is the mean way."""
    share = torch.tensor([float(read)], dtype=torch.float64)
    dist.all_reduce(share)
    share = read / share
    with torch.no_grad():
        for own in [*lab.learning(network), *network.buffers()]:
            if own.is_floating_point():
                own.mul_(share.view([1] * own.ndim))
                dist.all_reduce(own)
    outer.zero_grad()
    for own, start in zip(lab.learning(network), lab.learning(anchor), strict=True):
        start.grad = start.detach() - own.detach()
    outer.step()
    lab_state = dict(anchor.named_parameters())
    network.load_state_dict(lab_state | dict(network.named_buffers()))


# 3 · choose


def _choose(
    reduced=lambda c, size: 2 * (c.ranks - 1) * (c.latency_us + size / c.ranks * 0.008 / c.gbit_s),
    gathered=lambda c, size: (c.ranks - 1) * (c.latency_us + size * 0.008 / c.gbit_s),
    pays=lambda a, b: 4 * (a + b) < a * b / 2,
    rest=True, k=lambda numbers: max(1, numbers // 100), place_bytes=4, calls=3, often=16,
    compress=True, steps=True, never=None, half=2, best=min, together=True, computes=True,
):  # fmt: skip
    """The prices with one of them changed."""

    def answer(c):
        numbers = sum(map(prod, c.shapes))
        thin = [s for s in c.shapes if len(s) == 2 and pays(*s)]
        other = numbers - sum(map(prod, thin)) if rest else 0
        p, q = (16 * sum(s[side] for s in thin) for side in (0, 1))
        parts = {3: [4 * other, p, q], 2: [4 * other + p, q], 1: [4 * other + p + q]}[calls]
        each = k(numbers)
        tops = [4 * each, place_bytes * each] if together else [(4 + place_bytes) * each]
        sent_us = {
            "DDP": reduced(c, 4 * numbers),
            "bfloat16": reduced(c, half * numbers),
            "top 1 %": sum(gathered(c, size) for size in tops),
            "PowerSGD": sum(reduced(c, size) for size in parts),
            "every 16 steps": reduced(c, 4 * numbers) / often,
        }
        took = {}
        for name, count in c.steps.items():
            if count is None and never is None:
                continue
            ms = c.compute_ms * computes + compress * c.compress_ms.get(name, 0)
            took[name] = (count if steps else 1) * (ms + sent_us[name] / 1000) if count else never
        return best(took, key=took.get)

    return answer


def _changed(**prices):
    return {name: lab.for_all(_named(name, _choose(**how))) for name, how in prices.items()}


def _reduce(c, size, turns=2, alpha=1.0, share=None, bits=0.008):
    n = c.ranks
    each = size / (share or n) * bits / c.gbit_s
    return turns * (n - 1) * (alpha * c.latency_us + each)


PRICES = _changed(
    bits_for_bytes={"reduced": lambda c, size: _reduce(c, size, bits=0.001)},
    without_latency={"reduced": lambda c, size: _reduce(c, size, alpha=0)},
    rings_of_whole_tensors={"reduced": lambda c, size: _reduce(c, size, share=1)},
    twice_the_bytes_for_any_number={
        "reduced": lambda c, size: 2 * c.latency_us + 2 * size * 0.008 / c.gbit_s
    },
    gathers_as_sums={"gathered": _reduce},
    gathers_for_any_number={"gathered": lambda c, size: c.latency_us + size * 0.008 / c.gbit_s},
    every_matrix_pays={"pays": lambda a, b: True},
    whatever_is_smaller_pays={"pays": lambda a, b: 4 * (a + b) < a * b},
    vectors_for_nothing={"rest": False},
    not_even_one={"k": lambda numbers: numbers // 100},
    places_of_64_bits={"place_bytes": 8},
    two_calls_for_powersgd={"calls": 2},
    one_gather={"together": False},
    in_every_step={"often": 1},
    compressed_for_nothing={"compress": False},
    the_fastest_step={"steps": False},
    who_never_arrives_is_first={"never": 0.0},
    bfloat16_is_float32={"half": 4},
    without_computing={"computes": False},
)


def the_fewest_steps(c):
    return min((own for own in c.steps if c.steps[own]), key=c.steps.get)


def always_less_often(c):
    return "every 16 steps" if c.steps["every 16 steps"] else "DDP"


def by_bandwidth_alone(c):
    return "DDP" if c.gbit_s > 100 else "bfloat16" if c.gbit_s > 25 else always_less_often(c)


def in_seconds_with_numpy(c):
    n, numbers = c.ranks, sum(int(np.prod(shape)) for shape in c.shapes)
    matrices = np.array([s for s in c.shapes if len(s) == 2] or [(1, 1)], dtype=float)
    a, b = matrices[8 * matrices.sum(axis=1) < matrices.prod(axis=1)].T
    latency_s, byte_s = c.latency_us * 1e-6, 8e-9 / c.gbit_s
    sizes = {
        "DDP": [4 * numbers], "bfloat16": [2 * numbers], "every 16 steps": [4 * numbers],
        "PowerSGD": [4 * (numbers - (a * b).sum()), 16 * a.sum(), 16 * b.sum()],
    }  # fmt: skip
    ring_s = {
        name: sum((2 * n - 2) * latency_s + (2 - 2 / n) * size * byte_s for size in own)
        for name, own in sizes.items()
    }
    ring_s["every 16 steps"] /= 16
    ring_s["top 1 %"] = (n - 1) * (2 * latency_s + 8 * max(1, int(numbers / 100)) * byte_s)
    best, least_s = None, float("inf")
    for name, steps in c.steps.items():
        if steps:
            each_s = (c.compute_ms + c.compress_ms.get(name, 0)) / 1000 + ring_s[name]
            if steps * each_s < least_s * (1 - 1e-12):
                best, least_s = name, steps * each_s
    return best


def answers_that_differ_in_k(cluster):
    return _least(cluster, lambda numbers: max(1, round(numbers / 100)))


def the_last_of_equals(cluster):
    return _least(cluster, lambda numbers: max(1, numbers // 100), of_equals=-1)


def by_the_pricing_of_the_specification(cluster):
    replayed_ms = labs.RAN["12_send_less"]["replayed_ms"]
    took_ms = {
        name: steps * replayed_ms(cluster, name)
        for name, steps in cluster.steps.items()
        if steps is not None
    }
    return min(took_ms, key=took_ms.get)


def the_least_by_a_list(cluster):
    return _least(cluster, lambda numbers: max(1, numbers // 100))


def _least(cluster, k_of, of_equals=0):
    n, alpha, beta = cluster.ranks, cluster.latency_us, 8 / 1000 / cluster.gbit_s
    numbers = sum(map(prod, cluster.shapes))
    thin = [s for s in cluster.shapes if len(s) == 2 and 8 * sum(s) < prod(s)]
    rest = numbers - sum(map(prod, thin))

    def ring_us(size):
        return 2 * (n - 1) * (alpha + size / n * beta)

    sent_us = [ring_us(4 * numbers), ring_us(2 * numbers)]
    sent_us.append(2 * (n - 1) * (alpha + 4 * k_of(numbers) * beta))
    columns, rows = sum(s[1] for s in thin), sum(s[0] for s in thin)
    sent_us.append(ring_us(16 * columns) + ring_us(16 * rows) + ring_us(4 * rest))
    sent_us.append(ring_us(4 * numbers) / 16)
    took_ms = {}
    for us, (name, steps) in zip(sent_us, cluster.steps.items(), strict=True):
        if steps is not None:
            each_ms = cluster.compute_ms + cluster.compress_ms.get(name, 0) + us / 1000
            took_ms[name] = steps * each_ms
    least = min(took_ms.values()) * (1 + 1e-12)
    return [name for name, ms in took_ms.items() if ms <= least][of_equals]


WRONG = {
    "remember": [*map(lab.under_ddp, [
        without_memory, by_the_place_in_the_bucket, from_the_second_step_on,
        only_the_gradients_rest, chosen_before_adding, each_parameter_for_itself, everything_sent,
        the_mean_is_what_was_sent, all_places_with_places_of_64_bits, through_a_dense_sum,
        _named("nothing_is_emptied", _remembering(rest_of=lambda whole, places: whole)),
        _named("what_was_sent_is_kept",
               _remembering(rest_of=lambda w, places: w - _without(w, places))),
        _named("half_is_forgotten", _remembering(rest_of=lambda w, at: _without(w, at) / 2)),
        _named("the_largest_with_their_signs",
               _remembering(places_of=lambda w, share: _largest(w, share, by=torch.clone))),
        _named("one_too_many", _remembering(
            places_of=lambda w, share: _largest(w, share + 1 / len(w)))),
        _named("a_sum_for_a_mean", _remembering(send=a_sum)),
        _named("one_value_for_each_place", _remembering(send=one_value_per_place)),
    ])],
    "outer_step": [*map(lab.exchanging, [
        the_plain_mean, its_own_outer_step_then_the_mean, gradients_add_up, the_way_of_rank_0,
        buffers_counted_evenly, buffers_of_rank_0, shared_and_divided_again,
        the_slow_are_left_out, new_parameters, one_memory_for_both,
        gathered_and_added_from_ones_own, sent_twice, counted_batches_too,
        _named("everybody_counts_the_same", _step(share_of=_even)),
        _named("the_wrong_way_round", _step(sign=-1.0)),
        _named("buffers_forgotten", _step(buffers=False)),
        _named("the_networks_stay_where_they_are", _step(goes_on=False)),
        _named("no_share_at_all", _step(share_of=lambda read: 1.0)),
    ])],
    "choose": [
        *PRICES.values(),
        *map(lab.for_all, [the_fewest_steps, always_less_often, by_bandwidth_alone]),
        *map(lab.for_all, [answers_that_differ_in_k, the_last_of_equals]),
        lab.for_all(by_the_pricing_of_the_specification),
    ],
}  # fmt: skip
RIGHT = {
    "remember": [*map(lab.under_ddp, [by_address_and_in_place, in_one_message])],
    "outer_step": [*map(lab.exchanging, [in_one_flat_message, weights_first_then_their_way])],
    "choose": [
        lab.for_all(in_seconds_with_numpy),
        lab.for_all(_named("again", _choose())),
        lab.for_all(the_least_by_a_list),
    ],
}
