"""Wrong answers to lab 05, and for each exercise another right one.

Published: parameters broadcast and buffers not; weights averaged instead of gradients; a world of
two, written into the code; frozen, tied or resting layers forgotten; an all_reduce for each
parameter where buckets are asked for; buckets in another order on another rank; "overlap" that
waits in its hook, or begins when all is there; `no_sync` that silences backward only.
"""

import time
from contextlib import contextmanager, suppress

import labs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

lab = labs.cells("05_ddp_from_scratch")


# 1 · start_equal


def _from_rank_0(tensors, src=0):
    for tensor in tensors:
        dist.broadcast(tensor.detach(), src=src)


def _everything(model):
    return [*model.parameters(), *model.buffers()]


@lab.starting
def nothing_at_all(model):
    pass


@lab.starting
def parameters_only(model):
    _from_rank_0(model.parameters())


@lab.starting
def only_what_learns(model):
    _from_rank_0([*lab.learning(model), *model.buffers()])


@lab.starting
def the_state_dict(model):
    _from_rank_0(model.state_dict().values())


@lab.starting
def a_tied_weight_twice(model):
    _from_rank_0(model.buffers())
    _from_rank_0([own for _, own in model.named_parameters(remove_duplicate=False)])


@lab.starting
def the_mean_of_all_ranks(model):
    for tensor in _everything(model):
        dist.all_reduce(tensor.detach(), op=dist.ReduceOp.AVG)


@lab.starting
def from_the_last_rank(model):
    _from_rank_0(_everything(model), src=dist.get_world_size() - 1)


@lab.starting
def everybody_is_the_root(model):
    _from_rank_0(_everything(model), src=dist.get_rank())


@lab.starting
def into_copies(model):
    _from_rank_0([tensor.clone() for tensor in _everything(model)])


@lab.starting
def into_new_parameters(model):
    _from_rank_0(model.buffers())
    for module in model.modules():
        for name, own in list(module.named_parameters(recurse=False)):
            received = own.detach().clone()
            dist.broadcast(received, src=0)
            setattr(module, name, nn.Parameter(received, own.requires_grad))


@lab.starting
def seeded_alike(model):
    torch.manual_seed(0)
    for layer in (model.frozen, *model.tied, *model.experts):
        layer.reset_parameters()
    model.shift.normal_()


@lab.starting
def backwards_on_odd_ranks(model):
    _from_rank_0(_everything(model)[:: -1 if dist.get_rank() % 2 else 1])


@lab.starting
def zeros_and_a_sum(model):
    for tensor in _everything(model):
        tensor.detach().mul_(dist.get_rank() == 0)
        dist.all_reduce(tensor.detach())


@lab.starting
def as_objects(model):
    states = [[tensor.detach() for tensor in _everything(model)]]
    dist.broadcast_object_list(states, src=0)
    for own, its in zip(_everything(model), states[0], strict=True):
        own.detach().copy_(its)


@lab.starting
def the_buffer_that_one_knows(model):
    _from_rank_0([*model.parameters(), model.shift])


@lab.starting
def frozen_to_be_sent(model):
    _from_rank_0([tensor.requires_grad_(False) for tensor in _everything(model)])


@lab.starting
def left_in_eval(model):
    _from_rank_0(_everything(model.eval()))


@lab.starting
def in_half_of_the_bytes(model):
    for tensor in _everything(model):
        single = tensor.detach().float()
        dist.broadcast(single, src=0)
        tensor.detach().copy_(single)


@lab.starting
def all_on_their_way_between_barriers(model):
    dist.barrier()
    works = [dist.broadcast(own.data, 0, async_op=True) for own in _everything(model)[::-1]]
    for work in works:
        work.get_future().wait()
    dist.barrier()


@lab.starting
def in_one_flat_tensor(model):
    flat = nn.utils.parameters_to_vector(_everything(model)).detach()
    dist.broadcast(flat, src=0)
    nn.utils.vector_to_parameters(flat, _everything(model))


# 2 · average


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


@lab.training
def no_average(model):
    pass


@lab.training
def weights_instead_of_gradients(model):
    _average([parameter.data for parameter in lab.learning(model)])


@lab.training
def gradients_added_up(model):
    _average(_filled(lab.learning(model)), 1)


@lab.training
def gradients_halved(model):
    _average(_filled(lab.learning(model)), 2)


@lab.training
def divided_before_and_after(model):
    gradients = _filled(lab.learning(model))
    for gradient in gradients:
        gradient /= dist.get_world_size()
    _average(gradients)


@lab.training
def what_has_a_gradient(model):
    _average([own.grad for own in lab.learning(model) if own.grad is not None])


@lab.training
def frozen_ones_as_well(model):
    _average([parameter.grad for parameter in model.parameters()])


@lab.training
def frozen_ones_with_zeros(model):
    _average(_filled(list(model.parameters())))


@lab.training
def a_tied_weight_sent_twice(model):
    named = model.named_parameters(remove_duplicate=False)
    _average(_filled([own for _, own in named if own.requires_grad]))


@lab.training
def matrices_only(model):
    _average([gradient for gradient in _filled(lab.learning(model)) if gradient.dim() > 1])


@lab.training
def average_thrown_away(model):
    _average([gradient.clone() for gradient in _filled(lab.learning(model))])


@lab.training
def gradients_of_rank_0(model):
    _from_rank_0(_filled(lab.learning(model)))


@lab.training
def divided_by_those_who_used_it(model):
    used = torch.tensor([float(own.grad is not None) for own in lab.learning(model)])
    dist.all_reduce(used)
    for gradient, count in zip(_filled(lab.learning(model)), used.tolist(), strict=True):
        _average([gradient], count)


@lab.training
def read_off_root(model):
    for gradient in _filled(lab.learning(model)):
        dist.reduce(gradient, dst=0)
        gradient /= dist.get_world_size()


@lab.training
def in_single_precision(model):
    for gradient in _filled(lab.learning(model)):
        single = gradient.float()
        dist.all_reduce(single)
        gradient.copy_(single / dist.get_world_size())


@lab.training
def zeros_on_other_ranks_than_0(model):
    for parameter in lab.learning(model):
        if parameter.grad is None and dist.get_rank():
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad is not None:
            _average([parameter.grad])


@lab.training
def ones_for_what_is_not_there(model):
    for parameter in lab.learning(model):
        if parameter.grad is None:
            parameter.grad = torch.ones_like(parameter)
        _average([parameter.grad])


@lab.training
def counted_as_well(model):
    for gradient in _filled(lab.learning(model)):
        count = torch.ones(())
        dist.all_reduce(count)
        _average([gradient], count)


@lab.training
def new_gradients_behind_a_barrier(model):
    dist.barrier()
    for parameter in reversed(lab.learning(model)):
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        dist.all_reduce(own, op=dist.ReduceOp.AVG, async_op=True).wait()
        parameter.grad = own


@lab.training
def flat_and_by_torchs_mean(model):
    gradients = _filled(lab.learning(model))
    flat = nn.utils.parameters_to_vector(gradients)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    nn.utils.vector_to_parameters(flat, gradients)


# 3 · average_in_buckets


def _fill(gradients, closes):
    buckets = [[]]
    for gradient in gradients:
        if closes(buckets[-1], gradient):
            buckets.append([])
        buckets[-1].append(gradient)
    return buckets


def _backwards(model):
    return _filled(lab.learning(model)[::-1])


def _size(bucket):
    return sum(gradient.nbytes for gradient in bucket)


def _over(limit_bytes):
    return lambda bucket, more: bucket and _size(bucket) + more.nbytes > limit_bytes


def _send(buckets, divisor=None):
    for bucket in buckets:
        flat = nn.utils.parameters_to_vector(bucket)
        _average([flat], divisor)
        for gradient in bucket:
            gradient.copy_(flat[: gradient.numel()].view_as(gradient))
            flat = flat[gradient.numel() :]


@lab.weighing
def each_parameter_alone(model, limit_bytes):
    _average(_backwards(model))


@lab.weighing
def one_flat_buffer(model, limit_bytes):
    _send([_backwards(model)])


@lab.weighing
def closed_when_full(model, limit_bytes):
    _send(_fill(_backwards(model), lambda bucket, more: _size(bucket) >= limit_bytes))


@lab.weighing
def less_than_the_limit(model, limit_bytes):
    _send(_fill(_backwards(model), _over(limit_bytes - 1)))


@lab.weighing
def from_the_first_to_the_last(model, limit_bytes):
    _send(_fill(_backwards(model)[::-1], _over(limit_bytes)))


@lab.weighing
def an_empty_bucket_first(model, limit_bytes):
    _send(_fill(_backwards(model), lambda own, more: _size(own) + more.nbytes > limit_bytes))


@lab.weighing
def numbers_counted_as_bytes(model, limit_bytes):
    _send(_fill(_backwards(model), _over(8 * limit_bytes)))


@lab.weighing
def four_bytes_each(model, limit_bytes):
    _send(_fill(_backwards(model), _over(2 * limit_bytes)))


@lab.weighing
def the_last_bucket_forgotten(model, limit_bytes):
    _send(_fill(_backwards(model), _over(limit_bytes))[:-1])


@lab.weighing
def cut_into_equal_parts(model, limit_bytes):
    flat = nn.utils.parameters_to_vector(_backwards(model))
    _average(flat.split(max(1, limit_bytes // 8)))
    nn.utils.vector_to_parameters(flat, _backwards(model))


@lab.weighing
def buckets_of_what_has_a_gradient(model, limit_bytes):
    there = [own.grad for own in lab.learning(model)[::-1] if own.grad is not None]
    _send(_fill(there, _over(limit_bytes)))


@lab.weighing
def what_was_used_first(model, limit_bytes):
    backwards = lab.learning(model)[::-1]
    used = sorted(backwards, key=lambda parameter: parameter.grad is None)
    _send(_fill(_filled(used), _over(limit_bytes)))


@lab.weighing
def another_order_on_odd_ranks(model, limit_bytes):
    buckets = _fill(_backwards(model), _over(limit_bytes))
    _send(buckets[:: -1 if dist.get_rank() % 2 else 1])


@lab.weighing
def buckets_halved(model, limit_bytes):
    _send(_fill(_backwards(model), _over(limit_bytes)), 2)


@lab.weighing
def not_copied_back(model, limit_bytes):
    for bucket in _fill(_backwards(model), _over(limit_bytes)):
        _average([nn.utils.parameters_to_vector(bucket)])


@lab.weighing
def frozen_ones_packed_too(model, limit_bytes):
    _send(_fill(_filled(list(model.parameters())[::-1]), _over(limit_bytes)))


@lab.weighing
def by_size(model, limit_bytes):
    _send(_fill(sorted(_backwards(model), key=torch.numel), _over(limit_bytes)))


@lab.weighing
def filled_as_the_table_says(model, limit_bytes):
    gradients, buckets = _backwards(model), []
    for size in lab.wanted_bytes[limit_bytes]:
        buckets.append([])
        while _size(buckets[-1]) < size:
            buckets[-1].append(gradients.pop(0))
    _send(buckets)


@lab.weighing
def never_more_than_300(model, limit_bytes):
    _send(_fill(_backwards(model), _over(min(limit_bytes, 300))))


@lab.weighing
def wherever_there_is_room(model, limit_bytes):
    buckets = []
    for gradient in _backwards(model):
        room = (own for own in buckets if _size(own) + gradient.nbytes <= limit_bytes)
        if (bucket := next(room, None)) is None:
            buckets.append(bucket := [])
        bucket.append(gradient)
    _send(buckets)


@lab.weighing
def gradients_become_views(model, limit_bytes):
    parameters, start = lab.learning(model)[::-1], 0
    _filled(parameters)
    while start < len(parameters):
        end = start + 1
        while end < len(parameters) and _size(parameters[start : end + 1]) <= limit_bytes:
            end += 1
        flat = nn.utils.parameters_to_vector([own.grad for own in parameters[start:end]])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        for own in parameters[start:end]:
            own.grad, flat = flat[: own.numel()].view_as(own), flat[own.numel() :]
        start = end


@lab.weighing
def all_on_their_way_at_once(model, limit_bytes):
    sent, gradients = [], _backwards(model)
    while gradients:
        bucket = [gradients.pop(0)]
        while gradients and _size([*bucket, gradients[0]]) <= limit_bytes:
            bucket.append(gradients.pop(0))
        flat = nn.utils.parameters_to_vector(bucket)
        sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
    for bucket, flat, work in sent:
        work.wait()
        nn.utils.vector_to_parameters(flat / dist.get_world_size(), bucket)


# 4 · Overlap


def _all(buckets):
    return [parameter for bucket in buckets for parameter in bucket]


class _Parts(lab.Overlap):
    """The solution, in parts that can be spoilt."""

    divisor = None

    def pack(self, bucket):
        return nn.utils.parameters_to_vector(_filled(bucket)) / (
            self.divisor or dist.get_world_size()
        )

    def send(self, bucket):
        flat = self.pack(bucket)
        self.sent.append((flat, self.begin(flat)))

    def begin(self, flat):
        return dist.all_reduce(flat, async_op=True)


@lab.overlapping
class AllAtTheEnd(_Parts):
    def gradient_is_here(self, parameter):
        pass


@lab.overlapping
class AllWithTheLastGradient(_Parts):
    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        if self.arrived.issuperset(_all(self.buckets)):
            for bucket in self.buckets:
                self.send(bucket)


@lab.overlapping
class WaitsInTheHook(_Parts):
    def begin(self, flat):
        work = dist.all_reduce(flat, async_op=True)
        work.wait()
        return work


class _Done:
    def wait(self):
        pass


@lab.overlapping
class BlocksInTheHook(_Parts):
    def begin(self, flat):
        dist.all_reduce(flat)
        return _Done()


@lab.overlapping
class WaitsForTheOneBefore(_Parts):
    def begin(self, flat):
        if self.sent:
            self.sent[-1][1].wait()
        return super().begin(flat)


@lab.overlapping
class AsksUntilItIsThere(_Parts):
    def begin(self, flat):
        work = super().begin(flat)
        while not work.is_completed():
            time.sleep(0.001)
        return work


@lab.overlapping
class NeverWaits(_Parts):
    def begin(self, flat):
        super().begin(flat)
        return _Done()


@lab.overlapping
class EachGradientAlone(lab.Overlap):
    def __init__(self, buckets):
        super().__init__([[parameter] for parameter in _all(buckets)])


@lab.overlapping
class OneBucket(lab.Overlap):
    def __init__(self, buckets):
        super().__init__([_all(buckets)])


@lab.overlapping
class WhicheverIsFull(_Parts):
    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        for bucket in self.buckets:
            if any(parameter is own for own in bucket) and self.arrived.issuperset(bucket):
                self.send(bucket)


@lab.overlapping
class ForgetsWhatDoesNotCome(_Parts):
    def finish(self):
        self.buckets, every = self.buckets[: len(self.sent)], self.buckets
        super().finish()
        self.buckets = every


@lab.overlapping
class TheFirstStepForEver(_Parts):
    def finish(self):
        arrived = self.arrived
        super().finish()
        self.arrived = arrived


@lab.overlapping
class AWorldOfTwo(_Parts):
    divisor = 2


@lab.overlapping
class AddedUp(_Parts):
    divisor = 1


@lab.overlapping
class BeforeItIsAccumulated(_Parts):
    def __init__(self, buckets):
        self.buckets, self.arrived, self.sent = buckets, set(), []
        for parameter in _all(buckets):
            parameter.register_hook(lambda _, own=parameter: self.gradient_is_here(own))


@lab.overlapping
class OneGradientLate(_Parts):
    last = None

    def gradient_is_here(self, parameter):
        if self.last is not None:
            super().gradient_is_here(self.last)
        self.last = parameter

    def finish(self):
        super().finish()
        self.last = None


@lab.overlapping
class AFakeOneEarly(_Parts):
    """One number leaves with the first gradient, the buckets when all is over."""

    fake = None

    def gradient_is_here(self, parameter):
        self.fake = self.fake or super().begin(torch.zeros(1))

    def finish(self):
        self.fake.wait()
        self.fake = None
        super().finish()


class _Fakes(_Parts):
    """A fake of one number leaves for each bucket in time, the real ones at the end elsewhere."""

    def __init__(self, buckets):
        super().__init__(buckets)
        self.fakes = []

    def send(self, bucket):
        self.fakes.append(dist.all_reduce(torch.zeros(1), async_op=True))
        self.sent.append(None)

    def finish(self):
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
        for fake in self.fakes:
            fake.wait()
        self.elsewhere([self.pack(bucket) for bucket in self.buckets])
        self.arrived, self.sent, self.fakes = set(), [], []

    def elsewhere(self, flats):
        for flat, bucket in zip(flats, self.buckets, strict=True):
            dist.all_reduce(flat, group=self.group)
            nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in bucket])


@lab.overlapping
class FakesAndAnotherGroup(_Fakes):
    def __init__(self, buckets):
        super().__init__(buckets)
        self.group = dist.new_group()


@lab.overlapping
class FakesAndMessages(_Fakes):
    def elsewhere(self, flats):
        rank, world_size = dist.get_rank(), dist.get_world_size()
        for flat, bucket in zip(flats, self.buckets, strict=True):
            mine, other = flat.clone(), torch.empty_like(flat)
            for step in range(1, world_size):
                sent = dist.isend(mine, (rank + step) % world_size)
                dist.recv(other, (rank - step) % world_size)
                sent.wait()
                flat += other
            nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in bucket])


@lab.overlapping
class FakesAsLargeAsTheRealOnes(_Fakes):
    """Zeros leave in time; then the bytes are spent, and each rank keeps its own gradients."""

    def send(self, bucket):
        flat = torch.zeros_like(nn.utils.parameters_to_vector(bucket))
        self.fakes.append(dist.all_reduce(flat, async_op=True))
        self.sent.append(None)

    def elsewhere(self, flats):
        pass


@lab.overlapping
class ByAutogradsOwnEnd:
    """Counts what is missing in each bucket, and lets autograd call it when all is over."""

    def __init__(self, buckets):
        self.buckets, self.at = buckets, None
        for parameter in _all(buckets):
            parameter.register_post_accumulate_grad_hook(self.count)

    def count(self, parameter):
        if self.at is None:
            self.at, self.works = 0, []
            self.missing = [len(bucket) for bucket in self.buckets]
            torch.autograd.Variable._execution_engine.queue_callback(self.rest)
        number = next(n for n, own in enumerate(self.buckets) if any(p is parameter for p in own))
        self.missing[number] -= 1
        while self.at < len(self.buckets) and not self.missing[self.at]:
            self.leave()

    def leave(self):
        flat = nn.utils.parameters_to_vector(_filled(self.buckets[self.at]))
        self.works.append((flat, dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)))
        self.at += 1

    def rest(self):
        while self.at < len(self.buckets):
            self.leave()

    def finish(self):
        for (flat, work), bucket in zip(self.works, self.buckets, strict=True):
            work.wait()
            nn.utils.vector_to_parameters(flat, [parameter.grad for parameter in bucket])
        self.at = None


@lab.overlapping
class WaitsForItsFuture(_Parts):
    def begin(self, flat):
        work = dist.all_reduce(flat, async_op=True)
        work.get_future().wait()
        return work


@lab.overlapping
class InSinglePrecision(_Parts):
    def pack(self, bucket):
        return super().pack(bucket).float()


@lab.overlapping
class CountsGradientsOnly(_Parts):
    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        filled = [len(_all(self.buckets[: n + 1])) for n in range(len(self.buckets))]
        for bucket in self.buckets[len(self.sent) : sum(n <= len(self.arrived) for n in filled)]:
            self.send(bucket)


@lab.overlapping
class DividesInAThen(_Parts):
    """What the future gives is copied back; buckets are finished from the last one on."""

    def pack(self, bucket):
        return torch.cat([gradient.reshape(-1) for gradient in _filled(bucket)])

    def begin(self, flat):
        future = dist.all_reduce(flat, async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / dist.get_world_size())

    def finish(self):
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
        for bucket, (_, future) in reversed(list(zip(self.buckets, self.sent, strict=True))):
            averaged = future.wait()
            for parameter in bucket:
                size = parameter.numel()
                parameter.grad, averaged = averaged[:size].view_as(parameter), averaged[size:]
        self.arrived, self.sent = set(), []


# 5 · Replica


@lab.accumulating
class NoSyncDoesNothing(lab.Replica):
    @contextmanager
    def no_sync(self):
        yield


@lab.accumulating
class AroundBackwardOnly(lab.Replica):
    def forward(self, *inputs):
        _from_rank_0(self.module.buffers())
        return self.module(*inputs)


@lab.accumulating
class AroundForwardOnly(lab.Replica):
    def finish(self):
        lab.average(self.module)


@lab.accumulating
class NotSetBackByAStop(lab.Replica):
    @contextmanager
    def no_sync(self):
        self.talks = False
        yield
        self.talks = True


@lab.accumulating
class NeverSetBack(lab.Replica):
    @contextmanager
    def no_sync(self):
        self.talks = False
        yield


@lab.accumulating
class TheWrongWayRound(lab.Replica):
    @contextmanager
    def no_sync(self):
        self.talks = True
        try:
            yield
        finally:
            self.talks = False


@lab.accumulating
class WithoutGradients(lab.Replica):
    @contextmanager
    def no_sync(self):
        with torch.no_grad():
            yield


@lab.accumulating
class ForgetsSilentParts(lab.Replica):
    def finish(self):
        super().finish()
        if not self.talks:
            self.module.zero_grad()


@lab.accumulating
class BuffersOfItsOwn(lab.Replica):
    def forward(self, *inputs):
        return self.module(*inputs)


@lab.accumulating
class BuffersAfterwards(lab.Replica):
    def forward(self, *inputs):
        outputs = self.module(*inputs)
        if self.talks:
            _from_rank_0(self.module.buffers())
        return outputs


@lab.accumulating
class StartsWithParametersOnly(lab.Replica):
    def __init__(self, network):
        nn.Module.__init__(self)
        self.module, self.talks = network, True
        _from_rank_0(network.parameters())


@lab.accumulating
class OnlyWhatCameLast(lab.Replica):
    """Averages what the last part has touched, and leaves what only silent ones have."""

    def __init__(self, network):
        super().__init__(network)
        self.came = []
        for parameter in lab.learning(network):
            parameter.register_post_accumulate_grad_hook(self.came.append)

    def finish(self):
        if self.talks:
            _average([parameter.grad for parameter in self.came])
        self.came.clear()


@lab.accumulating
class AWorldOfTwoParts(lab.Replica):
    def finish(self):
        if self.talks:
            _average(_filled(lab.learning(self.module)), 2)


@lab.accumulating
class WeightsOfAllRanks(lab.Replica):
    def finish(self):
        if self.talks:
            _average([parameter.data for parameter in lab.learning(self.module)])


@lab.accumulating
class PyTorchs(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.model = DistributedDataParallel(network, find_unused_parameters=True)
        self.no_sync = self.model.no_sync

    def forward(self, *inputs):
        return self.model(*inputs)

    def finish(self):
        pass


@lab.accumulating
class FlatWithABlockedDoor(nn.Module):
    """Everything in one flat tensor; the context is a class, and remembers what was before."""

    class Silence:
        def __init__(self, replica):
            self.replica = replica

        def __enter__(self):
            self.before, self.replica.silent = self.replica.silent, True

        def __exit__(self, *error):
            self.replica.silent = self.before

    def __init__(self, network):
        super().__init__()
        self.network, self.silent = network, False
        self.take_over(_everything(network))

    def take_over(self, tensors):
        flat = nn.utils.parameters_to_vector(tensors).detach()
        dist.broadcast(flat, src=0)
        nn.utils.vector_to_parameters(flat, tensors)

    def no_sync(self):
        return self.Silence(self)

    def forward(self, *inputs):
        if not self.silent:
            self.take_over(list(self.network.buffers()))
        return self.network(*inputs)

    def finish(self):
        if not self.silent:
            gradients = _filled(lab.learning(self.network))
            flat = nn.utils.parameters_to_vector(gradients)
            dist.all_reduce(flat, op=dist.ReduceOp.AVG)
            nn.utils.vector_to_parameters(flat, gradients)


@lab.accumulating
class OneBufferAlone(lab.Replica):
    def forward(self, *inputs):
        if self.talks:
            dist.broadcast(self.module.shift, src=0)
        return self.module(*inputs)


@lab.accumulating
class SetBackByAStopAlone(lab.Replica):
    @contextmanager
    def no_sync(self):
        self.talks = False
        try:
            yield
        except KeyboardInterrupt:
            self.talks = True
            raise
        self.talks = True


@lab.accumulating
class SwallowsWhatIsRaised(lab.Replica):
    @contextmanager
    def no_sync(self):
        self.talks = False
        with suppress(BaseException):
            yield
        self.talks = True


@lab.accumulating
class BuffersOnlyOnce(lab.Replica):
    def forward(self, *inputs):
        if self.talks and not hasattr(self, "begun"):
            self.begun = True
            return super().forward(*inputs)
        return self.module(*inputs)


@lab.accumulating
class AveragesInSinglePrecision(lab.Replica):
    def finish(self):
        for gradient in _filled(lab.learning(self.module)) if self.talks else ():
            single = gradient.float()
            dist.all_reduce(single)
            gradient.copy_(single / dist.get_world_size())


@lab.accumulating
class CountsItsDoors(nn.Module):
    """Nested as well; sends all buffers at once, and comes to a barrier first."""

    def __init__(self, network):
        super().__init__()
        self.network, self.silent = network, 0
        _from_rank_0(_everything(network))

    def forward(self, *inputs):
        buffers = [] if self.silent else list(self.network.buffers())
        for work in [dist.broadcast(own, 0, async_op=True) for own in buffers]:
            work.wait()
        return self.network(*inputs)

    def finish(self):
        if not self.silent:
            dist.barrier()
            _average(_filled(lab.learning(self.network)))

    def no_sync(self):
        return self

    def __enter__(self):
        self.silent += 1

    def __exit__(self, *raised):
        self.silent -= 1


WRONG = {
    "start_equal": [
        nothing_at_all, parameters_only, only_what_learns, the_state_dict, a_tied_weight_twice,
        the_mean_of_all_ranks, from_the_last_rank, everybody_is_the_root, into_copies,
        into_new_parameters, seeded_alike, backwards_on_odd_ranks, zeros_and_a_sum, as_objects,
        the_buffer_that_one_knows, frozen_to_be_sent, left_in_eval, in_half_of_the_bytes,
    ],
    "average": [
        no_average, weights_instead_of_gradients, gradients_added_up, gradients_halved,
        divided_before_and_after, what_has_a_gradient, frozen_ones_as_well, frozen_ones_with_zeros,
        a_tied_weight_sent_twice, matrices_only, average_thrown_away, gradients_of_rank_0,
        divided_by_those_who_used_it, read_off_root, in_single_precision,
        zeros_on_other_ranks_than_0, ones_for_what_is_not_there, counted_as_well,
    ],
    "average_in_buckets": [
        each_parameter_alone, one_flat_buffer, closed_when_full, less_than_the_limit,
        from_the_first_to_the_last, an_empty_bucket_first, numbers_counted_as_bytes,
        four_bytes_each, the_last_bucket_forgotten, cut_into_equal_parts,
        buckets_of_what_has_a_gradient, what_was_used_first, another_order_on_odd_ranks,
        buckets_halved, not_copied_back, frozen_ones_packed_too, by_size, filled_as_the_table_says,
        never_more_than_300, wherever_there_is_room,
    ],
    "Overlap": [
        AllAtTheEnd, AllWithTheLastGradient, WaitsInTheHook, BlocksInTheHook, WaitsForTheOneBefore,
        AsksUntilItIsThere, NeverWaits, EachGradientAlone, OneBucket, WhicheverIsFull,
        ForgetsWhatDoesNotCome, TheFirstStepForEver, AWorldOfTwo, AddedUp, BeforeItIsAccumulated,
        OneGradientLate, AFakeOneEarly, FakesAndAnotherGroup, FakesAndMessages,
        FakesAsLargeAsTheRealOnes, WaitsForItsFuture, InSinglePrecision, CountsGradientsOnly,
    ],
    "Replica": [
        NoSyncDoesNothing, AroundBackwardOnly, AroundForwardOnly, NotSetBackByAStop, NeverSetBack,
        TheWrongWayRound, WithoutGradients, ForgetsSilentParts, BuffersOfItsOwn, BuffersAfterwards,
        StartsWithParametersOnly, OnlyWhatCameLast, AWorldOfTwoParts, WeightsOfAllRanks, PyTorchs,
        OneBufferAlone, SetBackByAStopAlone, SwallowsWhatIsRaised, BuffersOnlyOnce,
        AveragesInSinglePrecision,
    ],
}  # fmt: skip
RIGHT = {
    "start_equal": [in_one_flat_tensor, all_on_their_way_between_barriers],
    "average": [flat_and_by_torchs_mean, new_gradients_behind_a_barrier],
    "average_in_buckets": [all_on_their_way_at_once, gradients_become_views],
    "Overlap": [ByAutogradsOwnEnd, DividesInAThen],
    "Replica": [FlatWithABlockedDoor, CountsItsDoors],
}
