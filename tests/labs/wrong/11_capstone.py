"""Wrong answers to lab 11, and for each exercise another right one.

To `train`: the broken script itself, every single fault of it left in an otherwise repaired one,
and cures that are none. To `report`: among others figures that somebody made up.
"""

import contextlib
from types import SimpleNamespace

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import Network

lab = labs.cells("11_capstone")


def _train(model, rate, epochs, **faults):
    """A repaired training, but for what `faults` say."""
    told = SimpleNamespace(**faults)
    own = lambda name, otherwise: getattr(told, name, otherwise)  # noqa: E731
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = own("wrap", DistributedDataParallel)(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * own("factor", 1))
    sampler = DistributedSampler(range(60))
    loader = DataLoader(range(60), 12 // own("divisor", world_size), sampler=sampler)
    losses = torch.zeros(epochs, dtype=torch.float64)
    for epoch in range(epochs):
        if own("set_epoch", "before") == "before":
            sampler.set_epoch(epoch)
        for numbers in loader:
            if own("set_epoch", "") == "inside":
                sampler.set_epoch(epoch)
            images = lab.noisy(numbers, own("seeds", _seeds)(numbers, epoch))
            loss = cross_entropy(model(images), lab.training.targets[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[epoch] = own("add", _mean_of_5)(losses[epoch], loss.detach())
    losses = own("together", _averaged)(losses)
    right = own("judge", _counted)(getattr(model, "module", model), rank, world_size)
    return lab.weights(model), losses.tolist(), right


def _seeds(numbers, epoch):
    return 60 * epoch + numbers


def _mean_of_5(so_far, loss):
    return so_far + loss / 5


def _averaged(losses):
    dist.all_reduce(losses)
    return losses / dist.get_world_size()


def _right(model, own):
    return model(lab.test_images[own]).argmax(dim=1) == lab.test_labels[own]


def _counted(model, rank, world_size):
    right = _right(model, slice(rank, 22, world_size)).sum()
    dist.all_reduce(right)
    return right.item() / 22


def _padded(model, rank, world_size):
    right = _right(model, list(DistributedSampler(range(22), shuffle=False))).double()
    sums = torch.stack([right.sum(), torch.tensor(float(len(right)))])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def _off_root(model, rank, world_size):
    right = _right(model, slice(rank, 22, world_size)).sum()
    dist.reduce(right, dst=0)
    return right.item() / 22


def _mean_of_means(model, rank, world_size):
    mean = _right(model, slice(rank, 22, world_size)).double().mean()
    dist.all_reduce(mean)
    return mean.item() / world_size


def _own_share(model, rank, world_size):
    return _right(model, slice(rank, 22, world_size)).double().mean().item()


def _whole_on_each(model, rank, world_size):
    return _right(model, slice(22)).double().mean().item()


def as_it_was(model, rate, epochs):
    return lab.broken(model, rate, epochs)


def _trained(name, **faults):
    def answer(model, rate, epochs):
        told = {key: fault() if key in ("factor",) else fault for key, fault in faults.items()}
        return _train(model, rate, epochs, **told)

    answer.__name__ = name
    return answer


_FAULTS = {
    "set_epoch_inside": {"set_epoch": "inside"},
    "without_set_epoch": {"set_epoch": "never"},
    "noise_by_place_in_the_batch": {"seeds": lambda numbers, epoch: range(len(numbers))},
    "same_noise_in_each_epoch": {"seeds": lambda numbers, epoch: numbers},
    "noise_seeded_by_rank": {
        "seeds": lambda numbers, epoch: 1000 * dist.get_rank() + torch.arange(len(numbers))
    },
    "rate_times_ranks": {"factor": lambda: dist.get_world_size()},
    "rate_over_ranks": {"factor": lambda: 1 / dist.get_world_size()},
    "loss_of_this_rank": {"together": lambda losses: losses},
    "losses_summed": {"together": lambda losses: _averaged(losses) * dist.get_world_size()},
    "loss_of_the_last_batch": {"add": lambda so_far, loss: loss},
    "loss_added_up": {"add": lambda so_far, loss: so_far + loss},
    "test_padded": {"judge": _padded},
    "test_read_off_root": {"judge": _off_root},
    "test_mean_of_means": {"judge": _mean_of_means},
    "test_of_this_rank": {"judge": _own_share},
    "batch_not_divided": {"divisor": 1},
    "without_ddp": {"wrap": lambda model: model},
}
_LEFT_IN = [_trained(name, **faults) for name, faults in _FAULTS.items()]
every_rank_tests_all = _trained("every_rank_tests_all", judge=_whole_on_each)


def _scaled(
    model, global_batch, at_once, weigh=None, quiet=True, rate=1.0, share=None, batches=None,
    reduction="sum", last_talks=True, zero=True,
):  # fmt: skip
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 * rate, momentum=0.9)
    weigh = weigh or (lambda own, whole: world_size / whole)
    for numbers in batches or torch.arange(70).split(global_batch):
        if zero:
            optimizer.zero_grad()
        own = numbers[rank::world_size] if share is None else share(numbers, rank, world_size)
        pieces = own.split(at_once)
        for place, piece in enumerate(pieces, 1):
            silent = quiet and not (last_talks and place == len(pieces))
            with model.no_sync() if silent else contextlib.nullcontext():
                output = model(lab.points[piece])
                loss = cross_entropy(output, lab.labels[piece], reduction=reduction)
                (loss * weigh(len(own), len(numbers))).backward()
        optimizer.step()
    return lab.weights(model)


@lab.in_ddp
def scaled_mean_of_each_piece(model, global_batch, at_once):
    parts = lambda own, whole: 1 / max(1, -(-own // at_once))  # noqa: E731
    return _scaled(model, global_batch, at_once, parts, reduction="mean")


@lab.in_ddp
def scaled_by_its_own_share(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, lambda own, whole: 1 / max(own, 1))


@lab.in_ddp
def scaled_without_the_ranks(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, lambda own, whole: 1 / whole)


@lab.in_ddp
def scaled_by_the_full_batch(model, global_batch, at_once):
    size = dist.get_world_size()
    return _scaled(model, global_batch, at_once, lambda own, whole: size / global_batch)


@lab.in_ddp
def scaled_rate_times_ranks(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, rate=dist.get_world_size())


@lab.in_ddp
def scaled_talking_all_the_time(model, global_batch, at_once):
    """Each piece is exchanged: with uneven pieces a hang, else too many messages."""
    return _scaled(model, global_batch, at_once, quiet=False)


@lab.in_ddp
def scaled_never_talking(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, last_talks=False)


@lab.in_ddp
def scaled_all_at_once(model, global_batch, at_once):
    return _scaled(model, global_batch, 70)


@lab.in_ddp
def scaled_dropping_the_rest(model, global_batch, at_once):
    even = lambda n, r, w: n[: len(n) // w * w][r::w]  # noqa: E731
    return _scaled(model, global_batch, at_once, share=even)


@lab.in_ddp
def scaled_without_the_last_batch(model, global_batch, at_once):
    whole = [n for n in torch.arange(70).split(global_batch) if len(n) == global_batch]
    return _scaled(model, global_batch, at_once, batches=whole)


@lab.in_ddp
def scaled_with_the_whole_batch_on_each(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, share=lambda n, r, w: n)


@lab.in_ddp
def scaled_a_batch_per_rank(model, global_batch, at_once):
    """The local batch is kept, so the global one grows: another training."""
    return _scaled(model, global_batch * dist.get_world_size(), at_once)


@lab.in_ddp
def scaled_never_cleared(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, zero=False)


@lab.in_ddp
def scaled_by_blocks(model, global_batch, at_once):
    block = lambda n, r, w: n.tensor_split(w)[r]  # noqa: E731
    return _scaled(model, global_batch, at_once, share=block)


def _predict(
    buckets, forward_us, backward_us, network, ranks, *, turns=None, part=None, ready_at=None,
    in_turn=max, beta=8 / 1000, upside_down=False, at_start=1,
):  # fmt: skip
    turns = 2 * (ranks - 1) if turns is None else turns
    results = []
    for overlap in (False, True):
        ready = at_start * forward_us + (0 if overlap else backward_us)
        done = 0
        for size in buckets:
            if overlap:
                ready += ready_at(backward_us) if ready_at else backward_us * size / sum(buckets)
            piece = size / ranks if part is None else part(size)
            done = in_turn(ready, done) + turns * (
                network.latency_us + piece * beta / network.gbit_s
            )
        share = (forward_us + backward_us) / max(done, forward_us + backward_us)
        results.append(1 / share if upside_down else share)
    return tuple(results)


def predict_whole_tensors(*told):
    return _predict(*told, part=lambda size: size)


def predict_half_the_turns(*told):
    return _predict(*told, turns=told[-1] - 1)


def predict_2n_turns(*told):
    return _predict(*told, turns=2 * told[-1])


def predict_one_latency(buckets, forward_us, backward_us, network, ranks):
    quick = Network(0, network.gbit_s)
    later = network.latency_us * len(buckets)
    one, other = _predict(buckets, forward_us, backward_us, quick, ranks)
    computed = forward_us + backward_us
    return computed / (computed / one + later), computed / (computed / other + later)


def predict_a_tree(*told):
    levels = (told[-1] - 1).bit_length()
    return _predict(*told, turns=2 * levels, part=lambda size: size)


def predict_in_bits(*told):
    return _predict(*told, beta=1 / 1000)


def predict_all_buckets_side_by_side(*told):
    return _predict(*told, in_turn=lambda ready, done: ready)


def predict_hidden_in_forward(*told):
    return _predict(*told, at_start=0)


def predict_equal_buckets(*told):
    return _predict(*told, ready_at=lambda us: us / len(told[0]))


def predict_upside_down(*told):
    return _predict(*told, upside_down=True)


def predict_the_longer_of_both(buckets, forward_us, backward_us, network, ranks):
    """The popular estimate: whatever takes longer hides the other."""
    computed = forward_us + backward_us
    alone, _ = _predict(buckets, forward_us, backward_us, network, ranks)
    return alone, computed / max(computed, computed / alone - computed)


def predict_the_other_way_round(*told):
    return _predict(*told)[::-1]


def predict_without_overlap_twice(*told):
    return (_predict(*told)[0],) * 2


def predict_by_steps(buckets, forward_us, backward_us, network, ranks):
    """What is still to be sent after backward, counted from the end."""
    beta_us = 8 / 1000 / network.gbit_s
    took = [2 * (ranks - 1) * (network.latency_us + size / ranks * beta_us) for size in buckets]
    computed, longest = forward_us + backward_us, 0.0
    for first in range(len(buckets)):
        begun = forward_us + backward_us * sum(buckets[: first + 1]) / sum(buckets)
        longest = max(longest, begun + sum(took[first:]))
    return computed / (computed + sum(took)), computed / longest


def _figures(trace, change=lambda trace: {}):
    kinds = [event.kind for event in trace.of_rank(0) if event.kind != "wait"]
    replay = trace.replay(lab.network, lab.computing)
    cost_us = dict.fromkeys(kinds, 0.0)
    for i in replay.intervals:
        if i.rank == 0 and i.what == "collective":
            cost_us[i.event.kind] += i.end_us - i.start_us
    slow = Network(30, 10, slow_ranks={trace.world_size - 1: 5})
    figures = {
        "calls": {kind: kinds.count(kind) for kind in kinds},
        "sent_bytes": max(trace.traffic().sent_bytes),
        "finish_us": max(replay.finish_us),
        "cost_us": cost_us,
        "bottleneck_us": max(trace.replay(slow, lab.computing).finish_us),
    }
    return figures | change(trace)


def _efficiency(trace, size=None):
    size = size or max(event.bytes for event in trace if event.kind == "all_reduce")
    return 3000 / (3000 + 126 * (30 + size / 64 * 8 / 10_000))


def _report(two, four, change=lambda trace: {}, **more):
    told = {"two": _figures(two, change), "four": _figures(four, change)}
    return told | {"efficiency": _efficiency(four)} | more


def report_by_formula(two, four):
    return _report(two, four)


def report_made_up(two, four):
    """What one would like to see."""
    figures = {"calls": {"all_reduce": 17}, "sent_bytes": 1_000_000, "finish_us": 4000.0}
    figures |= {"cost_us": {"all_reduce": 1700.0}, "bottleneck_us": 12_000.0}
    return {"two": figures, "four": figures, "efficiency": 0.95}


def report_efficiency_rounded_up(two, four):
    return _report(two, four, efficiency=round(_efficiency(four) + 0.05, 1))


def report_efficiency_a_hair_better(two, four):
    return _report(two, four, efficiency=1.001 * _efficiency(four))


def report_of_other_recordings(two, four):
    """The figures are right, but of recordings that nobody handed in."""
    kinds, sizes = ["all_reduce"] * 15, [62_800] * 15
    return _report(*(lab.made_up(ranks, kinds, sizes) for ranks in (2, 4)))


def report_without_the_bottleneck(two, four):
    same = lambda t: {"bottleneck_us": max(t.replay(lab.network, lab.computing).finish_us)}  # noqa: E731
    return _report(two, four, same)


def report_of_another_bottleneck(two, four):
    def halved(trace):
        slow = Network(30, 10, slow_ranks={trace.world_size - 1: 2})
        return {"bottleneck_us": max(trace.replay(slow, lab.computing).finish_us)}

    return _report(two, four, halved)


def report_with_waits(two, four):
    def calls(trace):
        kinds = [event.kind for event in trace.of_rank(0)]
        return {"calls": {kind: kinds.count(kind) for kind in kinds}}

    return _report(two, four, calls)


def report_of_all_ranks_calls(two, four):
    def calls(trace):
        kinds = [event.kind for event in trace if event.kind != "wait"]
        return {"calls": {kind: kinds.count(kind) for kind in kinds}}

    return _report(two, four, calls)


def report_of_all_bytes(two, four):
    return _report(two, four, lambda trace: {"sent_bytes": sum(trace.traffic().sent_bytes)})


def report_of_bytes_handed_in(two, four):
    return _report(two, four, lambda trace: {"sent_bytes": sum(e.bytes for e in trace.of_rank(0))})


def report_without_computing(two, four):
    return _report(two, four, lambda t: {"finish_us": max(t.replay(lab.network).finish_us)})


def report_of_a_tree(two, four):
    tree = Network(30, 10, algorithm="tree")
    finish = lambda t: {"finish_us": max(t.replay(tree, lab.computing).finish_us)}  # noqa: E731
    return _report(two, four, finish)


def report_of_two_twice(two, four):
    return _report(two, two)


def report_of_the_first_gradient(two, four):
    first = next(event.bytes for event in four if event.kind == "all_reduce")
    smallest = min(event.bytes for event in four if event.kind == "all_reduce")
    return _report(two, four, efficiency=_efficiency(four, min(first, smallest)))


def report_on_its_own_clock(two, four):
    """Real time, which differs from run to run."""
    took = lambda t: {"finish_us": 1e6 * max(e.end_s for e in t)}  # noqa: E731
    return _report(two, four, took)


class _Sharded:
    """ZeRO-1 in separate parts, each of which a wrong answer may replace."""

    def __init__(self, parameters, lr):
        self.parameters, self.lr = list(parameters), lr
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.start()

    def start(self):
        self.own = self.shares(parameters_to_vector(self.parameters).detach())[self.rank].clone()
        self.adam = torch.optim.Adam([self.own], self.lr, weight_decay=0.1)

    def shares(self, one):
        return pad(one, (0, -len(one) % self.world_size)).chunk(self.world_size)

    def average(self, one):
        return one / self.world_size

    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters])
        every = torch.cat(self.shares(gradient))
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(self.own.grad, self.average(every))
        self.adam.step()
        dist.all_gather_into_tensor(every, self.own)
        self.put(every[: len(gradient)])

    def put(self, whole):
        vector_to_parameters(whole, self.parameters)


class sharded_sums(_Sharded):
    def average(self, one):
        return one


class sharded_without_the_rest(_Sharded):
    """Nothing is put at the end: where the ranks do not divide the numbers, it crashes."""

    def shares(self, one):
        return one.chunk(self.world_size)


class sharded_shares_of_rank_0(_Sharded):
    def start(self):
        super().start()
        self.own.copy_(self.shares(parameters_to_vector(self.parameters).detach())[0])


class sharded_never_put_back(_Sharded):
    def put(self, whole):
        pass


class sharded_whole_state(_Sharded):
    """Right weights, but every rank keeps everything."""

    def start(self):
        self.adam = torch.optim.Adam(self.parameters, self.lr, weight_decay=0.1)

    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters]) / self.world_size
        every = pad(gradient, (0, -len(gradient) % self.world_size))
        own = torch.empty_like(every[: len(every) // self.world_size])
        dist.reduce_scatter_tensor(own, every)
        dist.all_gather_into_tensor(every, own)
        split = every[: len(gradient)].split([p.numel() for p in self.parameters])
        for parameter, part in zip(self.parameters, split, strict=True):
            parameter.grad.copy_(part.view_as(parameter))
        self.adam.step()


class sharded_by_all_reduce(_Sharded):
    """The share is cut out of an all_reduce: twice the bytes, and no reduce_scatter."""

    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters])
        every = torch.cat(self.shares(self.average(gradient)))
        dist.all_reduce(every)
        self.own.grad = every.chunk(self.world_size)[self.rank].clone()
        self.adam.step()
        dist.all_gather_into_tensor(every, self.own)
        self.put(every[: len(gradient)])


class sharded_with_its_own_gradient(_Sharded):
    def step(self):
        before = self.own.clone()
        super().step()
        self.own.copy_(before)
        self.own.grad = self.shares(parameters_to_vector([p.grad for p in self.parameters]))[
            self.rank
        ]
        self.adam.step()


class sharded_gathered_before_the_step(_Sharded):
    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters])
        every = torch.cat(self.shares(gradient))
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(self.own.grad, self.average(every))
        dist.all_gather_into_tensor(every, self.own)
        self.adam.step()
        self.put(every[: len(gradient)])


class sharded_new_adam_each_step(_Sharded):
    def step(self):
        self.adam = torch.optim.Adam([self.own], self.lr, weight_decay=0.1)
        super().step()


class sharded_without_decay(_Sharded):
    def start(self):
        super().start()
        self.adam = torch.optim.Adam([self.own], self.lr)


class sharded_sgd(_Sharded):
    def start(self):
        super().start()
        self.adam = torch.optim.SGD([self.own], self.lr, momentum=0.9)


class sharded_in_lists(_Sharded):
    """The same calls with lists of tensors."""

    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters])
        parts = [part.contiguous() for part in self.shares(self.average(gradient))]
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter(self.own.grad, parts)
        self.adam.step()
        dist.all_gather(parts, self.own)
        self.put(torch.cat(parts)[: len(gradient)])


def _sharding(kind):
    return lab.sharding(kind)


def train_all_of_it_past_ddp(model, rate, epochs):
    return lab.train_alone(DistributedDataParallel(model).module, rate, epochs)


@lab.in_ddp
def scaled_the_whole_batch_in_pieces(model, global_batch, at_once):
    optimizer = lab.momentum(model)
    for numbers in torch.arange(70).split(global_batch):
        optimizer.zero_grad()
        for piece in numbers.split(at_once):
            outputs = model.module(lab.points[piece])
            loss = cross_entropy(outputs, lab.labels[piece], reduction="sum")
            (loss / len(numbers)).backward()
        optimizer.step()
    return lab.weights(model)


def _by_hand(model, rate, epochs, op=dist.ReduceOp.AVG, equal=True, deal=None, together=True):
    """Without DDP: a broadcast, and an average of each gradient."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters() if equal else ():
        dist.broadcast(parameter.data, 0)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=rate), []
    for epoch in range(epochs):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        own = (
            deal(order, rank, world_size)
            if deal
            else [b[rank::world_size] for b in order.split(12)]
        )
        told = []
        for numbers in own:
            loss = cross_entropy(
                model(lab.noisy(numbers, _seeds(numbers, epoch))), lab.training.targets[numbers]
            )
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, op=op)
            optimizer.step()
            told.append(loss.item())
        every = [told] * world_size
        if together:
            dist.all_gather_object(every, told)
        losses.append(np.mean(every))
    return lab.weights(model).numpy(), tuple(losses), np.float64(_counted(model, rank, world_size))


def train_by_hand(model, rate, epochs):
    return _by_hand(model, rate, epochs)


def train_in_blocks_of_each_batch(model, rate, epochs):
    return _by_hand(
        model, rate, epochs, deal=lambda order, r, n: [b.chunk(n)[r] for b in order.split(12)]
    )


def train_on_sums_of_gradients(model, rate, epochs):
    return _by_hand(model, rate, epochs, op=dist.ReduceOp.SUM)


def train_from_ones_own_weights(model, rate, epochs):
    return _by_hand(model, rate, epochs, equal=False)


def train_on_other_batches(model, rate, epochs):
    return _by_hand(model, rate, epochs, deal=lambda order, r, n: order.chunk(n)[r].split(12 // n))


def train_and_tell_ones_own_losses(model, rate, epochs):
    return _by_hand(model, rate, epochs, together=False)


def train_at_one_rate(model, rate, epochs):
    return _by_hand(model, 0.02, epochs)


def train_two_epochs(model, rate, epochs):
    return _by_hand(model, rate, 2)


def train_on_rank_0_and_tell(model, rate, epochs):
    box = [lab.train_alone(model, rate, epochs) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(box)
    return box[0]


def train_the_whole_batch_on_each_rank(model, rate, epochs):
    """DDP, and an average of equal gradients."""
    model = DistributedDataParallel(model)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=rate), []
    for epoch in range(epochs):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        total = 0
        for numbers in order.split(12):
            loss = cross_entropy(
                model(lab.noisy(numbers, _seeds(numbers, epoch))), lab.training.targets[numbers]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / 5)
    return (
        lab.weights(model),
        losses,
        _counted(model.module, dist.get_rank(), dist.get_world_size()),
    )


@lab.in_ddp
def scaled_in_more_room(model, global_batch, at_once):
    model.module.room = 70
    return _scaled(model, global_batch, 70)


@lab.in_ddp
def scaled_all_on_rank_0(model, global_batch, at_once):
    return _scaled(model, global_batch, at_once, share=lambda n, r, w: n if r == 0 else n[:0])


@lab.in_ddp
def scaled_in_batches_of_12(model, global_batch, at_once):
    return _scaled(model, 12, at_once)


def _summed_at_last(model, global_batch, at_once, together):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = lab.momentum(model)
    for numbers in torch.arange(70).split(global_batch):
        optimizer.zero_grad()
        for piece in numbers.tensor_split(world_size)[rank].split(at_once):
            outputs = model.module(lab.points[piece])
            (cross_entropy(outputs, lab.labels[piece], reduction="sum") / len(numbers)).backward()
        together([parameter.grad for parameter in model.parameters()])
        optimizer.step()
    return lab.weights(model)


def _in_one(gradients):
    whole = parameters_to_vector(gradients)
    dist.all_reduce(whole)
    vector_to_parameters(whole, gradients)


@lab.in_ddp
def scaled_with_an_exchange_for_each_parameter(model, global_batch, at_once):
    return _summed_at_last(
        model, global_batch, at_once, lambda all_: list(map(dist.all_reduce, all_))
    )


@lab.in_ddp
def scaled_past_ddp(model, global_batch, at_once):
    return _summed_at_last(model, global_batch, at_once, _in_one)


@lab.in_ddp
def scaled_one_by_one(model, global_batch, at_once):
    return _scaled(model, global_batch, 1)


def predict_by_replay(buckets, forward_us, backward_us, network, ranks):
    """The specification's way."""
    trace = lab.made_up(ranks, ["all_reduce"] * len(buckets), buckets)

    def efficiency(shares):
        before_us = {k: backward_us * own + (k == 0) * forward_us for k, own in enumerate(shares)}
        replay = trace.replay(network, lambda event: before_us.get(event.index, 0))
        return (forward_us + backward_us) / max(replay.finish_us)

    return efficiency([1]), efficiency([size / sum(buckets) for size in buckets])


def predict_largest_first(buckets, *told):
    return _predict(sorted(buckets, reverse=True), *told)


def predict_one_bucket(buckets, *told):
    return _predict([sum(buckets)], *told)


def predict_whole_bytes(*told):
    return np.array(_predict(*told, part=lambda size: size // told[-1]))


def report_of_the_largest_of_two(two, four):
    return _report(two, four, efficiency=_efficiency(two))


def report_of_the_largest_of_all(two, four):
    return _report(two, four, efficiency=_efficiency(four, max(event.bytes for event in four)))


def report_of_rank_0s_bytes(two, four):
    return _report(two, four, lambda trace: {"sent_bytes": trace.traffic().sent_bytes[0]})


def report_of_rank_1s_calls(two, four):
    def calls(trace):
        kinds = [event.kind for event in trace.of_rank(1) if event.kind != "wait"]
        return {"calls": {kind: kinds.count(kind) for kind in kinds}}

    return _report(two, four, calls)


def report_in_numpy(two, four):
    def exact(trace):
        replay = trace.replay(lab.network, lab.computing)
        return {"finish_us": np.max(replay.finish_us), "notes": "none"}

    return _report(two, four, exact)


class sharded_beside_a_full_one(_Sharded):
    """What it shows keeps its share; what steps keeps everything."""

    def start(self):
        super().start()
        self.full = torch.optim.Adam(self.parameters, self.lr, weight_decay=0.1)

    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters])
        every = torch.cat(self.shares(self.average(gradient)))
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(self.own.grad, every)
        self.adam.step()
        dist.all_gather_into_tensor(every, self.own.grad)
        vector_to_parameters(every[: len(gradient)], [p.grad for p in self.parameters])
        self.full.step()


class sharded_at_one_rate(_Sharded):
    def start(self):
        super().start()
        self.adam = torch.optim.Adam([self.own], 0.05, weight_decay=0.1)


class sharded_adamw(_Sharded):
    def start(self):
        super().start()
        self.adam = torch.optim.AdamW([self.own], self.lr, weight_decay=0.1)


class sharded_without_blocking(_Sharded):
    def average(self, one):
        return one

    def step(self):
        gradient = parameters_to_vector([p.grad for p in self.parameters])
        every = torch.cat(self.shares(gradient))
        self.own.grad = torch.empty_like(self.own)
        how = {"op": dist.ReduceOp.AVG, "async_op": True}
        dist.reduce_scatter_tensor(self.own.grad, every, **how).wait()
        self.adam.step()
        dist.all_gather_into_tensor(every, self.own, async_op=True).wait()
        self.put(every[: len(gradient)])


WRONG = {
    "train": [
        train_on_rank_0_and_tell, train_the_whole_batch_on_each_rank, train_on_sums_of_gradients,
        train_from_ones_own_weights, train_on_other_batches, train_and_tell_ones_own_losses,
        train_at_one_rate, train_two_epochs,
        train_all_of_it_past_ddp, as_it_was, *_LEFT_IN,
    ],
    "scaled": [
        scaled_in_more_room, scaled_all_on_rank_0, scaled_in_batches_of_12,
        scaled_with_an_exchange_for_each_parameter,
        scaled_the_whole_batch_in_pieces,
        scaled_mean_of_each_piece, scaled_by_its_own_share, scaled_without_the_ranks,
        scaled_by_the_full_batch, scaled_rate_times_ranks, scaled_talking_all_the_time,
        scaled_never_talking, scaled_all_at_once, scaled_dropping_the_rest,
        scaled_without_the_last_batch, scaled_with_the_whole_batch_on_each,
        scaled_a_batch_per_rank, scaled_never_cleared,
    ],
    "predict": [
        predict_by_replay, predict_largest_first, predict_one_bucket,
        predict_whole_tensors, predict_half_the_turns, predict_2n_turns, predict_one_latency,
        predict_a_tree, predict_in_bits, predict_all_buckets_side_by_side,
        predict_hidden_in_forward, predict_equal_buckets, predict_upside_down,
        predict_the_longer_of_both, predict_the_other_way_round, predict_without_overlap_twice,
    ],
    "report": [
        report_of_the_largest_of_two, report_of_the_largest_of_all, report_of_rank_0s_bytes,
        report_of_rank_1s_calls,
        report_made_up, report_efficiency_rounded_up, report_efficiency_a_hair_better,
        report_of_other_recordings, report_without_the_bottleneck, report_of_another_bottleneck,
        report_with_waits, report_of_all_ranks_calls, report_of_all_bytes,
        report_of_bytes_handed_in, report_without_computing, report_of_a_tree,
        report_of_two_twice, report_of_the_first_gradient, report_on_its_own_clock,
    ],
    "ShardedAdam": [
        _sharding(kind) for kind in (
            sharded_sums, sharded_without_the_rest, sharded_shares_of_rank_0,
            sharded_never_put_back, sharded_whole_state, sharded_by_all_reduce,
            sharded_with_its_own_gradient, sharded_gathered_before_the_step,
            sharded_new_adam_each_step, sharded_without_decay, sharded_sgd,
            sharded_beside_a_full_one, sharded_at_one_rate, sharded_adamw,
        )
    ],
}  # fmt: skip
RIGHT = {
    "train": [every_rank_tests_all, train_by_hand, train_in_blocks_of_each_batch],
    "scaled": [scaled_by_blocks, scaled_past_ddp, scaled_one_by_one],
    "predict": [predict_by_steps, predict_whole_bytes],
    "report": [report_by_formula, report_in_numpy],
    "ShardedAdam": [_sharding(sharded_in_lists), _sharding(sharded_without_blocking)],
}
