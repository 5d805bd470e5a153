"""Wrong answers to the eight steps of chapter 05, and for each step other right ones.

Published: parameters broadcast and buffers not; weights averaged instead of gradients; a world of
two, written into the code; an all_reduce for each parameter where buckets are asked for; "overlap"
that waits in its hook, or begins when all is there; buckets in another order on another rank;
layers that rest forgotten; buffers sent in the last part of an accumulation, or in each part, where
PyTorch's DDP sends them in the first.
"""

import ast
import functools
import linecache
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import labs
import torch
import torch.distributed as dist
from lesson_answers import Exercise
from torch import nn

SLUG = "05_ddp_from_scratch"
RUNS = (
    "check(",
    "launch(",
    "clock(",
    "predict(",
    "fate(",
    "recorded",
    "replayed(",
)  # what takes workers
DEFINES = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef


def _lesson():
    """What the chapter's cells define; nothing is launched."""
    names = {"__name__": "__main__"}
    for number, source in enumerate(labs.sources(labs.ROOT / f"source/lessons/{SLUG}.py")):
        name, tree = f"<lesson {SLUG} {number}>", ast.parse(source)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        for line in tree.body:
            sets = isinstance(line, (ast.Assign, ast.AugAssign))
            quick = sets and not any(run in ast.unparse(line) for run in RUNS)
            if quick or isinstance(line, DEFINES):
                with suppress(NameError):  # it would use what a launch brought
                    exec(compile(ast.Module([line], []), name, "exec"), names)
    return SimpleNamespace(**names)


lesson = _lesson()


def _as_method(base, method):
    """Make a function of one argument a method of a class of its own."""

    def make(fn):
        body = fn if method == "finish" else lambda self: fn(self.module)
        return type(fn.__name__, (base,), {method: body})

    return make


starts = _as_method(lesson.Wrapper, "start")
finishes = _as_method(lesson.Equal, "finish")


# 1 · start


def _from_rank_0(tensors, src=0):
    for tensor in tensors:
        dist.broadcast(tensor.detach(), src=src)


def _everything(network):
    return [*network.parameters(), *network.buffers()]


@starts
def nothing_at_all(network):
    pass


@starts
def parameters_only(network):
    _from_rank_0(network.parameters())


@starts
def only_what_learns(network):
    _from_rank_0([*lesson.learning(network), *network.buffers()])


@starts
def the_state_dict(network):
    _from_rank_0(network.state_dict().values())


@starts
def a_tied_weight_twice(network):
    _from_rank_0(network.buffers())
    _from_rank_0([own for _, own in network.named_parameters(remove_duplicate=False)])


@starts
def the_mean_of_all_ranks(network):
    for tensor in _everything(network):
        dist.all_reduce(tensor.detach(), op=dist.ReduceOp.AVG)


@starts
def from_the_last_rank(network):
    _from_rank_0(_everything(network), src=dist.get_world_size() - 1)


@starts
def everybody_is_the_root(network):
    _from_rank_0(_everything(network), src=dist.get_rank())


@starts
def into_copies(network):
    _from_rank_0([tensor.clone() for tensor in _everything(network)])


@starts
def into_new_parameters(network):
    _from_rank_0(network.buffers())
    for module in network.modules():
        for name, own in list(module.named_parameters(recurse=False)):
            received = own.detach().clone()
            dist.broadcast(received, src=0)
            setattr(module, name, nn.Parameter(received, own.requires_grad))


@starts
def seeded_alike(network):
    torch.manual_seed(0)
    for layer in (network.frozen, *network.tied, *network.experts):
        layer.reset_parameters()
    network.shift.normal_()


@starts
def backwards_on_odd_ranks(network):
    _from_rank_0(_everything(network)[:: -1 if dist.get_rank() % 2 else 1])


@starts
def zeros_and_a_sum(network):
    for tensor in _everything(network):
        tensor.detach().mul_(dist.get_rank() == 0)
        dist.all_reduce(tensor.detach())


@starts
def as_objects(network):
    states = [[tensor.detach() for tensor in _everything(network)]]
    dist.broadcast_object_list(states, src=0)
    for own, its in zip(_everything(network), states[0], strict=True):
        own.detach().copy_(its)


@starts
def the_buffer_that_one_knows(network):
    _from_rank_0([*network.parameters(), network.shift])


@starts
def frozen_to_be_sent(network):
    _from_rank_0([tensor.requires_grad_(False) for tensor in _everything(network)])


@starts
def left_in_eval(network):
    _from_rank_0(_everything(network.eval()))


@starts
def in_half_of_the_bytes(network):
    for tensor in _everything(network):
        single = tensor.detach().float()
        dist.broadcast(single, src=0)
        tensor.detach().copy_(single)


@starts
def all_on_their_way_between_barriers(network):
    dist.barrier()
    works = [dist.broadcast(own.data, 0, async_op=True) for own in _everything(network)[::-1]]
    for work in works:
        work.get_future().wait()
    dist.barrier()


@starts
def in_one_flat_tensor(network):
    flat = nn.utils.parameters_to_vector(_everything(network)).detach()
    dist.broadcast(flat, src=0)
    nn.utils.vector_to_parameters(flat, _everything(network))


# 2 · average


def _gradients(model):
    return [parameter.grad for parameter in model.learning]


def _average(tensors, divisor=None):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= divisor or dist.get_world_size()


@finishes
def no_average(model):
    pass


@finishes
def weights_instead_of_gradients(model):
    _average([parameter.data for parameter in model.learning])


@finishes
def gradients_added_up(model):
    _average(_gradients(model), 1)


@finishes
def gradients_halved(model):
    _average(_gradients(model), 2)


@finishes
def divided_before_and_after(model):
    for gradient in _gradients(model):
        gradient /= dist.get_world_size()
    _average(_gradients(model))


@finishes
def frozen_ones_as_well(model):
    _average([parameter.grad for parameter in model.module.parameters()])


@finishes
def a_tied_weight_sent_twice(model):
    named = model.module.named_parameters(remove_duplicate=False)
    _average([own.grad for _, own in named if own.requires_grad])


@finishes
def matrices_only(model):
    _average([gradient for gradient in _gradients(model) if gradient.dim() > 1])


@finishes
def average_thrown_away(model):
    _average([gradient.clone() for gradient in _gradients(model)])


@finishes
def gradients_of_rank_0(model):
    _from_rank_0(_gradients(model))


@finishes
def read_off_root(model):
    for gradient in _gradients(model):
        dist.reduce(gradient, dst=0)
        gradient /= dist.get_world_size()


@finishes
def in_single_precision(model):
    for gradient in _gradients(model):
        single = gradient.float()
        dist.all_reduce(single)
        gradient.copy_(single / dist.get_world_size())


@finishes
def backwards_by_torchs_mean(model):
    for parameter in reversed(model.learning):
        own = parameter.grad.clone()
        dist.all_reduce(own, op=dist.ReduceOp.AVG, async_op=True).wait()
        parameter.grad = own


# 3 · flat


def _flat(tensors):
    return torch.cat([tensor.flatten() for tensor in tensors])


def _back(flat, gradients):
    for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


@finishes
def each_parameter_alone(model):
    _average(_gradients(model))


@finishes
def not_copied_back(model):
    _average([_flat(_gradients(model))])


@finishes
def copied_back_before_the_sum(model):
    flat = _flat(_gradients(model))
    _back(flat, _gradients(model))
    _average([flat])


@finishes
def packed_backwards(model):
    flat = _flat(_gradients(model)[::-1])
    _average([flat])
    nn.utils.vector_to_parameters(flat, _gradients(model))


@finishes
def flat_halved(model):
    flat = _flat(_gradients(model))
    _average([flat], 2)
    _back(flat, _gradients(model))


@finishes
def flat_added_up(model):
    flat = _flat(_gradients(model))
    _average([flat], 1)
    _back(flat, _gradients(model))


@finishes
def without_the_last(model):
    flat = _flat(_gradients(model)[:-1])
    _average([flat])
    _back(flat, _gradients(model)[:-1])


@finishes
def flat_weights(model):
    flat = _flat(model.learning).detach()
    _average([flat])
    nn.utils.vector_to_parameters(flat, model.learning)


@finishes
def matrices_turned(model):
    flat = torch.cat([gradient.t().flatten() for gradient in _gradients(model)])
    _average([flat])
    _back(flat, _gradients(model))


@finishes
def flat_and_off_root(model):
    flat = _flat(_gradients(model))
    dist.reduce(flat, dst=0)
    _back(flat / dist.get_world_size(), _gradients(model))


@finishes
def gradients_become_views(model):
    flat = nn.utils.parameters_to_vector(_gradients(model)[::-1])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    for own in reversed(model.learning):
        own.grad, flat = flat[: own.numel()].view_as(own), flat[own.numel() :]


# 4 · buckets


class _Done:
    def wait(self):
        pass


def _mixin(name, base, **methods):
    return type(name, (base,), methods)


def _halved(self, bucket):
    flat = _flat([p.grad for p in bucket]) / 2
    self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))


def _added_up(self, bucket):
    flat = _flat([p.grad for p in bucket])
    self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))


def _single(self, bucket):
    flat = (_flat([p.grad for p in bucket]) / dist.get_world_size()).float()
    self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))


def _blocking(self, bucket):
    flat = _flat([p.grad for p in bucket]) / dist.get_world_size()
    dist.all_reduce(flat)
    self.sent.append((bucket, flat, _Done()))


def _never_waiting(self, bucket):
    flat = _flat([p.grad for p in bucket]) / dist.get_world_size()
    dist.all_reduce(flat, async_op=True)
    self.sent.append((bucket, flat, _Done()))


def _at_once(self, bucket):
    lesson.Buckets.send(self, bucket)
    self.sent[-1][2].wait()


class WaitsForEach(lesson.Buckets):
    def finish(self):
        for bucket in self.buckets:
            self.send(bucket)
            self.collect()


class NotCopiedBack(lesson.Buckets):
    def collect(self):
        for _, _, work in self.sent:
            work.wait()
        self.sent = []


class CopiesBeforeItWaits(lesson.Buckets):
    def collect(self):
        for bucket, flat, work in self.sent:
            _back(flat, [p.grad for p in bucket])
            work.wait()
        self.sent = []


class TheLastForgotten(lesson.Buckets):
    def finish(self):
        for bucket in self.buckets[:-1]:
            self.send(bucket)
        self.collect()


class BackwardsOnOddRanks(lesson.Buckets):
    def finish(self):
        for bucket in self.buckets[:: -1 if dist.get_rank() % 2 else 1]:
            self.send(bucket)
        self.collect()


class OneFlatBuffer(lesson.Buckets):
    def __init__(self, network, limit_bytes):
        super().__init__(network, 10**9)


class EachAlone(lesson.Buckets):
    def __init__(self, network, limit_bytes):
        super().__init__(network, 1)


class CollectsBackwards(lesson.Buckets):
    """Other notes, another order of waiting, torch's own mean."""

    def send(self, bucket):
        flat = nn.utils.parameters_to_vector([p.grad for p in bucket])
        self.sent.append((flat, dist.all_reduce(flat, dist.ReduceOp.AVG, async_op=True)))

    def finish(self):
        for bucket in self.buckets:
            self.send(bucket)
        for bucket in reversed(self.buckets):
            flat, work = self.sent.pop()
            work.wait()
            nn.utils.vector_to_parameters(flat, [p.grad for p in bucket])


class SentIsKept(lesson.Buckets):
    """Each step waits for all that ever left, and copies it back; the newest comes last."""

    def collect(self):
        sent = self.sent
        super().collect()
        self.sent = sent


# 5 · overlap


class WhatIsNotNoneIsHere(lesson.Overlapped):
    def gradient_is_here(self, parameter):
        for bucket in self.buckets:
            own = any(parameter is each for each in bucket)
            if own and all(each.grad is not None for each in bucket):
                self.send(bucket)


class WhenTheOneAddedLastComes(lesson.Overlapped):
    def gradient_is_here(self, parameter):
        for bucket in self.buckets:
            if parameter is bucket[-1]:
                self.send(bucket)


class AllAtTheEnd(lesson.InOrder):
    def gradient_is_here(self, parameter):
        pass


class AllWithTheLastGradient(lesson.InOrder):
    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        if self.arrived.issuperset(self.learning):
            for bucket in self.buckets:
                self.send(bucket)


class WaitsForTheOneBefore(lesson.InOrder):
    def send(self, bucket):
        if self.sent:
            self.sent[-1][2].wait()
        super().send(bucket)


class AsksUntilItIsThere(lesson.InOrder):
    def send(self, bucket):
        super().send(bucket)
        while not self.sent[-1][2].is_completed():
            time.sleep(0.001)


class WaitsForItsFuture(lesson.InOrder):
    def send(self, bucket):
        super().send(bucket)
        self.sent[-1][2].get_future().wait()


class EachGradientAlone(lesson.InOrder):
    def __init__(self, network, limit_bytes):
        super().__init__(network, 1)


class OneBucket(lesson.InOrder):
    def __init__(self, network, limit_bytes):
        super().__init__(network, 10**9)


class TheFirstStepForEver(lesson.InOrder):
    def finish(self):
        arrived = self.arrived
        super().finish()
        self.arrived = arrived


class BeforeItIsAccumulated(lesson.Buckets):
    def __init__(self, network, limit_bytes):
        super().__init__(network, limit_bytes)
        self.arrived = set()
        for parameter in self.learning:
            parameter.register_hook(lambda _, own=parameter: self.gradient_is_here(own))

    gradient_is_here = lesson.Overlapped.gradient_is_here
    finish = lesson.Overlapped.finish


class OneGradientLate(lesson.InOrder):
    last = None

    def gradient_is_here(self, parameter):
        if self.last is not None:
            super().gradient_is_here(self.last)
        self.last = parameter

    def finish(self):
        super().finish()
        self.last = None


class AFakeOneEarly(lesson.InOrder):
    """One number leaves with the first gradient, the buckets when all is over."""

    fake = None

    def gradient_is_here(self, parameter):
        self.fake = self.fake or dist.all_reduce(torch.zeros(1), async_op=True)

    def finish(self):
        self.fake.wait()
        self.fake = None
        super().finish()


class Counting(lesson.Buckets):
    """Counts what is missing in each bucket; the next one leaves when nothing is."""

    def __init__(self, network, limit_bytes):
        super().__init__(network, limit_bytes)
        self.count_anew()
        for number, bucket in enumerate(self.buckets):
            for parameter in bucket:
                here = functools.partial(self.came, number)
                parameter.register_post_accumulate_grad_hook(here)

    def count_anew(self):
        self.missing, self.at = [len(bucket) for bucket in self.buckets], 0

    def came(self, number, parameter):
        self.missing[number] -= 1
        while self.at < len(self.buckets) and not self.missing[self.at]:
            self.send(self.buckets[self.at])
            self.at += 1

    def finish(self):
        for bucket in self.buckets[self.at :]:
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            self.send(bucket)
        self.collect()
        self.count_anew()


class DividesInAThen(lesson.InOrder):
    """What the future gives is copied back; buckets are finished from the last one on."""

    def send(self, bucket):
        flat = _flat([p.grad for p in bucket])
        future = dist.all_reduce(flat, async_op=True).get_future()
        divided = future.then(lambda done: done.value()[0] / dist.get_world_size())
        self.sent.append((bucket, divided))

    def collect(self):
        for bucket, future in reversed(self.sent):
            _back(future.wait(), [p.grad for p in bucket])
        self.sent = []


# 6 · order


class ForgetsWhatDoesNotCome(lesson.InOrder):
    def finish(self):
        self.collect()
        self.arrived = set()


class NoZeros(lesson.InOrder):
    def send(self, bucket):
        there = [p for p in bucket if p in self.arrived]
        flat = torch.cat([p.grad.flatten() for p in there]) if there else torch.zeros(0).double()
        flat /= dist.get_world_size()
        self.sent.append((there, flat, dist.all_reduce(flat, async_op=True)))


class OnesForWhatIsNotThere(lesson.InOrder):
    def finish(self):
        for parameter in self.learning:
            if parameter.grad is None:
                parameter.grad = torch.ones_like(parameter)
        super().finish()


class ZerosOnRank0Only(lesson.InOrder):
    def finish(self):
        if dist.get_rank() == 0:
            super().finish()
        else:
            lesson.Overlapped.finish(self)


class TheRestBackwards(lesson.InOrder):
    def finish(self):
        for parameter in self.learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in reversed(self.buckets[len(self.sent) :]):
            self.send(bucket)
        lesson.Overlapped.finish(self)


class TheRestOneByOne(lesson.InOrder):
    def finish(self):
        for parameter in self.learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
            self.sent[-1][2].wait()
        lesson.Overlapped.finish(self)


class OnlyTheNextOne(lesson.InOrder):
    """At most one bucket for each gradient: what waited behind it stays."""

    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        rest = self.buckets[len(self.sent) :]
        if rest and self.arrived.issuperset(rest[0]):
            self.send(rest[0])


class CountsGradientsOnly(lesson.InOrder):
    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        filled = [sum(map(len, self.buckets[: n + 1])) for n in range(len(self.buckets))]
        for bucket in self.buckets[len(self.sent) : sum(n <= len(self.arrived) for n in filled)]:
            self.send(bucket)


class FakesAsLargeAsTheRealOnes(lesson.InOrder):
    """Zeros leave in time; then the bytes are spent, and each rank keeps its own gradients."""

    def send(self, bucket):
        flat = torch.zeros_like(_flat(bucket))
        self.sent.append(([], flat, dist.all_reduce(flat, async_op=True)))

    def collect(self):
        for _, _, work in self.sent:
            work.wait()
        self.sent = []


# 7 · silence


class NoSyncDoesNothing(lesson.Silent):
    @contextmanager
    def no_sync(self):
        yield


class BuffersInEachPart(lesson.Silent):
    def forward(self, *inputs):
        _from_rank_0(self.module.buffers())
        return self.module(*inputs)


class BuffersWithTheGradients(lesson.Silent):
    def forward(self, *inputs):
        if self.syncs_gradients:
            _from_rank_0(self.module.buffers())
        return self.module(*inputs)


class BuffersInSilenceOnly(lesson.Silent):
    def forward(self, *inputs):
        if self.shares_buffers and not self.syncs_gradients:
            _from_rank_0(self.module.buffers())
        self.shares_buffers = self.syncs_gradients
        return self.module(*inputs)


class BuffersWithoutTheFirst(lesson.Silent):
    def __init__(self, network, limit_bytes):
        super().__init__(network, limit_bytes)
        self.shares_buffers = False


class AroundForwardOnly(lesson.InOrder):
    syncs_gradients = shares_buffers = True
    forward, no_sync = lesson.Silent.forward, lesson.Silent.no_sync


class TheHookTalksOn(lesson.InOrder):
    syncs_gradients = shares_buffers = True
    forward, no_sync = lesson.Silent.forward, lesson.Silent.no_sync

    def finish(self):
        if self.syncs_gradients:
            super().finish()


class FinishTalksOn(AroundForwardOnly):
    def gradient_is_here(self, parameter):
        if self.syncs_gradients:
            super().gradient_is_here(parameter)


class NotSetBackByAStop(lesson.Silent):
    @contextmanager
    def no_sync(self):
        self.syncs_gradients = False
        yield
        self.syncs_gradients = True


class NeverSetBack(lesson.Silent):
    @contextmanager
    def no_sync(self):
        self.syncs_gradients = False
        yield


class TheWrongWayRound(lesson.Silent):
    @contextmanager
    def no_sync(self):
        self.syncs_gradients = True
        try:
            yield
        finally:
            self.syncs_gradients = False


class WithoutGradients(lesson.Silent):
    @contextmanager
    def no_sync(self):
        with torch.no_grad():
            yield


class ForgetsSilentParts(lesson.Silent):
    def finish(self):
        super().finish()
        if not self.syncs_gradients:
            self.module.zero_grad()


class BuffersOfItsOwn(lesson.Silent):
    def forward(self, *inputs):
        return self.module(*inputs)


class BuffersAfterwards(lesson.Silent):
    def forward(self, *inputs):
        outputs = self.module(*inputs)
        if self.shares_buffers:
            _from_rank_0(self.module.buffers())
        self.shares_buffers = self.syncs_gradients
        return outputs


class OneBufferAlone(lesson.Silent):
    def forward(self, *inputs):
        if self.shares_buffers:
            dist.broadcast(self.module.shift, src=0)
        self.shares_buffers = self.syncs_gradients
        return self.module(*inputs)


class SetBackByAStopAlone(lesson.Silent):
    @contextmanager
    def no_sync(self):
        self.syncs_gradients = False
        try:
            yield
        except KeyboardInterrupt:
            self.syncs_gradients = True
            raise
        self.syncs_gradients = True


class SwallowsWhatIsRaised(lesson.Silent):
    @contextmanager
    def no_sync(self):
        self.syncs_gradients = False
        with suppress(BaseException):
            yield
        self.syncs_gradients = True


class BuffersOnlyOnce(lesson.Silent):
    def forward(self, *inputs):
        if not hasattr(self, "begun"):
            self.begun = True
            return super().forward(*inputs)
        return self.module(*inputs)


class CountsItsDoors(Counting):
    """Nested as well; sends all buffers at once."""

    silent = silent_before = 0

    def forward(self, *inputs):
        buffers = [] if self.silent_before else list(self.module.buffers())
        for work in [dist.broadcast(own, 0, async_op=True) for own in buffers]:
            work.wait()
        self.silent_before = self.silent
        return self.module(*inputs)

    def came(self, number, parameter):
        if not self.silent:
            super().came(number, parameter)

    def finish(self):
        if not self.silent:
            super().finish()

    def no_sync(self):
        return self

    def __enter__(self):
        self.silent += 1

    def __exit__(self, *raised):
        self.silent -= 1


# 8 · nobody calls finish


class InTheLastHook(lesson.Silent):
    """Waits once all gradients are there, and so never where an expert rests."""

    def gradient_is_here(self, parameter):
        super().gradient_is_here(parameter)
        if self.syncs_gradients and len(self.arrived) == len(self.learning):
            self.finish()


class ForEveryGradient(lesson.Silent):
    def gradient_is_here(self, parameter):
        if self.syncs_gradients:
            lesson.after_backward(self.finish)
        super().gradient_is_here(parameter)


class NeverAsks(lesson.Silent):
    pass


class AsksInTheFirstStepAlone(lesson.Silent):
    asked = False

    def gradient_is_here(self, parameter):
        if self.syncs_gradients and not self.asked:
            self.asked = True
            lesson.after_backward(self.finish)
        super().gradient_is_here(parameter)


class AsksInForward(lesson.Silent):
    def forward(self, *inputs):
        lesson.after_backward(self.finish)
        return super().forward(*inputs)


class InTheNextForward(lesson.Silent):
    def forward(self, *inputs):
        if self.arrived:
            self.finish()
        return super().forward(*inputs)


class AtTheFirstGradient(lesson.Silent):
    def gradient_is_here(self, parameter):
        is_first = not self.arrived
        super().gradient_is_here(parameter)
        if self.syncs_gradients and is_first:
            self.finish()


class CollectsOnly(lesson.Silent):
    """Buckets that are not full never leave."""

    def gradient_is_here(self, parameter):
        if self.syncs_gradients and not self.arrived:
            lesson.after_backward(self.collect_and_forget)
        super().gradient_is_here(parameter)

    def collect_and_forget(self):
        self.collect()
        self.arrived = set()


class InSilentPartsOnly(lesson.Silent):
    def gradient_is_here(self, parameter):
        if not self.syncs_gradients and not self.arrived:
            lesson.after_backward(self.finish)
        super().gradient_is_here(parameter)


class ByAHookOfTheOutputs(lesson.Silent):
    """The gradient of the outputs is the first that a backward pass has."""

    def forward(self, *inputs):
        outputs = super().forward(*inputs)
        if self.syncs_gradients:
            outputs.register_hook(lambda gradient: lesson.after_backward(self.finish))
        return outputs


class ByAFlag(lesson.Silent):
    will_finish = False

    def gradient_is_here(self, parameter):
        super().gradient_is_here(parameter)
        if self.syncs_gradients and not self.will_finish:
            self.will_finish = True
            lesson.after_backward(self.end)

    def end(self):
        self.will_finish = False
        self.finish()


class BuffersWithTheGradientsUnaided(lesson.Unaided):
    forward = BuffersWithTheGradients.forward


class PyTorchsOwn(nn.parallel.DistributedDataParallel):
    """The oracle: what the check asks for is what PyTorch's DDP does."""

    def __init__(self, network, limit_bytes):
        options = {"bucket_cap_mb": limit_bytes / 2**20, "find_unused_parameters": True}
        super().__init__(network, **options)

    def finish(self):
        pass  # autograd's engine has called PyTorch's


def _buckets(base, prefix, **sends):
    return [_mixin(prefix + name, base, send=send) for name, send in sends.items()]


_SENDS = {"Halved": _halved, "AddedUp": _added_up, "InSinglePrecision": _single}
_SENDS |= {"Blocking": _blocking, "NeverWaiting": _never_waiting}

EXERCISES = {
    "start": Exercise(lesson.start_judged, lesson.starting, stub=lesson.MyStart),
    "average": Exercise(lesson.average_judged, lesson.trained, stub=lesson.MyAverage),
    "flat": Exercise(lesson.flat_judged, lesson.trained, stub=lesson.MyFlat),
    "buckets": Exercise(lesson.buckets_judged, lesson.trained, stub=lesson.MyBuckets),
    "overlap": Exercise(lesson.overlap_judged, lesson.trained, stub=lesson.MyOverlap),
    "order": Exercise(lesson.order_judged, lesson.trained, stub=lesson.MyOrder),
    "silence": Exercise(lesson.silence_judged, lesson.accumulating, stub=lesson.MySilence),
    "unaided": Exercise(lesson.silence_judged, lesson.unaided, stub=lesson.MyUnaided),
}
WRONG = {
    "start": [
        nothing_at_all, parameters_only, only_what_learns, the_state_dict, a_tied_weight_twice,
        the_mean_of_all_ranks, from_the_last_rank, everybody_is_the_root, into_copies,
        into_new_parameters, seeded_alike, backwards_on_odd_ranks, zeros_and_a_sum, as_objects,
        the_buffer_that_one_knows, frozen_to_be_sent, left_in_eval, in_half_of_the_bytes,
    ],
    "average": [
        no_average, weights_instead_of_gradients, gradients_added_up, gradients_halved,
        divided_before_and_after, frozen_ones_as_well, a_tied_weight_sent_twice, matrices_only,
        average_thrown_away, gradients_of_rank_0, read_off_root, in_single_precision,
    ],
    "flat": [
        each_parameter_alone, not_copied_back, copied_back_before_the_sum, packed_backwards,
        flat_halved, flat_added_up, without_the_last, flat_weights, matrices_turned,
        flat_and_off_root,
    ],
    "buckets": [
        WaitsForEach, NotCopiedBack, CopiesBeforeItWaits, TheLastForgotten, BackwardsOnOddRanks,
        OneFlatBuffer, EachAlone, SentIsKept, _mixin("WaitsAtOnce", lesson.Buckets, send=_at_once),
        *_buckets(lesson.Buckets, "Buckets", **_SENDS),
    ],
    "overlap": [
        AllAtTheEnd, AllWithTheLastGradient, WaitsForTheOneBefore, AsksUntilItIsThere,
        WaitsForItsFuture, EachGradientAlone, OneBucket, TheFirstStepForEver,
        BeforeItIsAccumulated, OneGradientLate, AFakeOneEarly, lesson.Buckets,
        WhatIsNotNoneIsHere, WhenTheOneAddedLastComes,
        _mixin("WaitsInTheHook", lesson.Overlapped, send=_at_once),
        *_buckets(lesson.Overlapped, "Overlapped", **_SENDS),
    ],
    "order": [
        lesson.Overlapped, ForgetsWhatDoesNotCome, NoZeros, OnesForWhatIsNotThere,
        ZerosOnRank0Only, TheRestBackwards, TheRestOneByOne, OnlyTheNextOne, CountsGradientsOnly,
        FakesAsLargeAsTheRealOnes, AllAtTheEnd, TheFirstStepForEver,
        *_buckets(lesson.InOrder, "InOrder", **_SENDS),
    ],
    "silence": [
        NoSyncDoesNothing, BuffersInEachPart, BuffersWithTheGradients, BuffersInSilenceOnly,
        BuffersWithoutTheFirst, AroundForwardOnly, TheHookTalksOn, FinishTalksOn,
        NotSetBackByAStop, NeverSetBack, TheWrongWayRound, WithoutGradients, ForgetsSilentParts,
        BuffersOfItsOwn, BuffersAfterwards, OneBufferAlone, SetBackByAStopAlone,
        SwallowsWhatIsRaised, BuffersOnlyOnce,
    ],
    "unaided": [
        InTheLastHook, ForEveryGradient, NeverAsks, AsksInTheFirstStepAlone, AsksInForward,
        InTheNextForward, AtTheFirstGradient, CollectsOnly, InSilentPartsOnly,
    ],
}  # fmt: skip
STOPS = {
    "Overlapped",
    "everybody_is_the_root",
    "backwards_on_odd_ranks",
    "frozen_ones_as_well",
    "BackwardsOnOddRanks",
    "WaitsForTheOneBefore",
    "AsksUntilItIsThere",
    "WaitsForItsFuture",
    "TheFirstStepForEver",
    "BeforeItIsAccumulated",
    "OneGradientLate",
    "WhenTheOneAddedLastComes",
    "WaitsInTheHook",
    "OverlappedBlocking",
    "ForgetsWhatDoesNotCome",
    "NoZeros",
    "ZerosOnRank0Only",
    "TheRestBackwards",
    "CountsGradientsOnly",
    "InOrderBlocking",
    "WithoutGradients",
    *("InTheLastHook", "ForEveryGradient", "AsksInForward", "AtTheFirstGradient"),
    *("CollectsOnly", "AsksInTheFirstStepAlone", "InTheNextForward", "InSilentPartsOnly"),
}
RIGHT = {
    "start": [lesson.Equal, in_one_flat_tensor, all_on_their_way_between_barriers],
    "average": [lesson.PerParameter, backwards_by_torchs_mean, lesson.Flat],
    "flat": [lesson.Flat, gradients_become_views],
    "buckets": [lesson.Buckets, CollectsBackwards],
    "overlap": [lesson.Overlapped, lesson.InOrder, Counting, DividesInAThen],
    "order": [lesson.InOrder, Counting, DividesInAThen],
    "silence": [CountsItsDoors, lesson.Silent],
    "unaided": [lesson.Unaided, ByAHookOfTheOutputs, ByAFlag],
}
