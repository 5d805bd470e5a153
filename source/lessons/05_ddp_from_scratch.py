# %% [markdown]
# # 05 · DDP from scratch
#
# **What is inside `DistributedDataParallel`, and which of its parts earn their place?**
#
# In 110 minutes you will be able to
#
# 1. write your own DDP, in six small steps, and prove each equal to PyTorch's;
# 2. say what each step gains on a network, from a recording of real ranks;
# 3. launch messages from autograd hooks, while backward still computes;
# 4. recognise what breaks such code: another order on another rank, a layer that nobody used.
#
# **Hardware:** two cores; all ranks use gloo on the CPU. **Before:** [04 · DDP training](04_ddp_training.ipynb).
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb).

# %%
import inspect
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_utils import Network, WorkerError, WorkerTimeout, digits, launch, rank_style, show

# %% [markdown]
# ## 1 · Start equal
#
# We begin with the part that chapter 04 found in the constructor: all ranks take over what rank 0 has. A wrapper that does this, and as yet nothing else:


# %%
class Replica(nn.Module):
    """A network that is the same on all ranks, at the start."""

    def __init__(self, network):
        super().__init__()
        self.module = network
        for tensor in [*network.parameters(), *network.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs):
        return self.module(*inputs)

    def after_backward(self):
        pass  # here the steps to come will average


# %% [markdown]
# Two networks will go through all steps. `plain` is a deep one, nine layers of 2.2 million weights in all. `awkward` has what wrappers stumble over: a batch norm,
# whose running mean is a **buffer** and gets no gradient; a **frozen** layer; and one weight that two layers share, called **tied**.


# %%
def plain():
    layers = [nn.Flatten(), nn.Linear(784, 512), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def awkward():
    body = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), *body)
    network[1].requires_grad_(False)  # frozen
    network[5].weight = network[3].weight  # tied
    return network


# %% [markdown]
# **Predict.** Each rank seeds itself differently, and puts its rank into the running mean. What differs between two ranks
# before wrapping, and what after? Does the frozen layer need the broadcast?

# %%
predicted_different = {"before": "?", "after": "?"}


def start(wrap):
    torch.manual_seed(dist.get_rank())
    network = awkward()
    network[2].running_mean += dist.get_rank()
    return wrap(network).state_dict()


def different(results):
    return [name for name in results[0] if not torch.equal(results[0][name], results[1][name])]


print("predicted:", predicted_different)
for wrap in (lambda network: network, Replica, DistributedDataParallel):
    results = launch(start, wrap, backend="gloo", trace=True)
    sent = [event.kind for event in results.trace.of_rank(0)]
    print(f"{len(different(results)):2} tensors differ;", sent.count("broadcast"), "broadcasts")

# %% [markdown]
# All random weights and the running mean differ before, the frozen ones among them, and nothing does after: a frozen layer computes as well, so it must be
# equal everywhere. `nn.BatchNorm1d` starts its own weights at one and zero, so those agreed anyway. Ours needs a broadcast for each tensor, PyTorch packs them
# together. This happens once, so nobody minds; in every step, it will matter.
#
# **Check yourself.** `state_dict()` names 13 tensors, and 12 were broadcast. Which one is missing, and why is that right?
#
# <details><summary>Answer</summary>
# The tied weight has two names there, but <code>parameters()</code> yields each tensor once, however many names it has.
# </details>
#
# ## 2 · One `all_reduce` per parameter
#
# Chapter 04 showed that averaged gradients are DDP whatever the optimiser, and averaged weights only with plain SGD. So we average gradients: each in turn, once backward is
# over. Everything else is inherited.


# %%
class PerParameter(Replica):
    def after_backward(self):
        for parameter in self.module.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)


# %% [markdown]
# It divides first and sums then, as PyTorch does: a sum of many large gradients might overflow.
#
# All forms run in one training loop, with SGD and momentum. It is chapter 04's, with one line more for our own wrappers.


# %%
training = digits(True)


def batch(step, size=16):
    """This rank's own digits of a step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    first = (step * world_size + rank) * size
    mine = torch.arange(first, first + size) % len(training)
    return training.data[mine], training.targets[mine]


def train(wrap, network, steps=20):
    torch.manual_seed(dist.get_rank())
    model = wrap(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        if isinstance(model, Replica):
            model.after_backward()
        optimizer.step()
    state = model.module.state_dict().values()  # weights and buffers
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    return [torch.cat([t.flatten() for t in each]) for each in (state, gradients)]


# %% [markdown]
# **Predict.** After 20 steps on two ranks: how far is our model from PyTorch's, and our last gradient from its last one?

# %%
predicted_distance = {"weights": "?", "gradients": "?"}


def distance(results, others):
    """The largest difference on any rank: of a weight, and of a gradient."""
    pairs = [zip(mine, other) for mine, other in zip(results, others)]
    return [max((a - b).abs().max().item() for a, b in each) for each in zip(*pairs)]


def compare(wrap):
    away = distance(launch(train, wrap, plain, backend="gloo"), theirs)
    said = ["exactly 0" if d == 0 else "over 0.01" if d > 0.01 else "small" for d in away]
    print(f"{wrap.__name__}, 20 steps, away from PyTorch's: weights {said[0]}, gradients {said[1]}")


theirs = launch(train, DistributedDataParallel, plain, backend="gloo")
print("predicted:", predicted_distance)
compare(Replica)
compare(PerParameter)

# %% [markdown]
# Without averaging the ranks part ways. With it, two lines do all that DDP does, **bit for bit**. Everything that follows changes no number, only *when* and *in what portions* it
# travels.
#
# A published lab asks whether `reduce` and `broadcast` would do as well. They would, and chapter 03 timed the two calls alone. Here it is
# as a form of training, to be put on the clock with all others.


# %%
class ReduceThenBroadcast(Replica):
    def after_backward(self):
        for parameter in self.module.parameters():
            parameter.grad /= dist.get_world_size()
            dist.reduce(parameter.grad, dst=0)
            dist.broadcast(parameter.grad, src=0)


compare(ReduceThenBroadcast)

# %% [markdown]
# **Check yourself.** Why is a `broadcast` after every step not needed, "to be safe"?
#
# <details><summary>Answer</summary>
# Equal weights, minus equal gradients, are equal: part 2 compared both ranks, and the difference was exactly 0.
# </details>
#
# ## 3 · A clock for a step
#
# To say what a form costs we need a clock that is not this laptop's. So we record a step of eight real ranks, and replay it on a network of 10 Gbit/s with a latency of 30 µs: ordinary
# Ethernet. The replay knows the messages, but how long do ranks *compute* in between? Two rates, which we choose:

# %%
network = Network(latency_us=30, gbit_s=10)
BACKWARD_US = 1 / 1000  # per byte of gradient: a layer's work grows with its weights
COPY_US = 0.2 / 1000  # per byte that is copied from gradients to a buffer, or back: 5 GB/s

# %% [markdown]
# Each layer's backward then takes time in proportion to its weights. What remains is to see **how far backward has come when a message starts**. We do not assume it, we look: a hook on
# each parameter counts the bytes of gradients that are there, and a hook on the process group notes the count at each call.


# %%
def observed(wrap, steps=3):
    """Train; return, for each call of a collective, the bytes of gradients there were by then."""
    torch.manual_seed(dist.get_rank())
    module, ready, at_call = plain(), [0], []
    for parameter in module.parameters():
        parameter.register_hook(lambda gradient, size=parameter.nbytes: ready.append(size))
    dist.group.WORLD.register_pre_hook(5, lambda call: at_call.append(sum(ready)))
    model = wrap(module)
    for step in range(steps):
        dist.barrier()  # marks where a step begins
        images, labels = batch(step)
        model.zero_grad()
        cross_entropy(model(images), labels).backward()
        if isinstance(model, Replica):
            model.after_backward()
    dist.barrier()
    return at_call


# %% [markdown]
# From that follows what a rank computes before each event: the gradients that came since the last call, and the copies into a buffer before it is sent, and out of it when it has
# arrived. Only the per-parameter forms copy nothing.


# %%
def computing(run, copies):
    """The microseconds that a rank computes before each event of a recording."""
    took_us = {}
    for rank, at_call in enumerate(run):
        there, before, last = iter(at_call), 0, None
        for event in run.trace.of_rank(rank):
            us = 0
            if event.kind != "wait":
                now = next(there)
                us, before = BACKWARD_US * (now - before), now
            if copies and event.kind == "all_reduce":
                us += COPY_US * event.bytes  # into the buffer
            if copies and last and (last.kind == "wait" or last.kind == "all_reduce" and last.blocking):
                us += COPY_US * last.bytes  # out of it
            took_us[rank, event.index], last = us, event
    return lambda event: took_us[event.rank, event.index]


# %% [markdown]
# We replay the third step only, from barrier to barrier, as PyTorch's first one is a rehearsal. Forward and optimiser are left out: they are the same in all forms.


# %%
def third_step(run, copies=True, on=network):
    begins = {rank: [e.index for e in run.trace.of_rank(rank) if e.kind == "barrier"][2] for rank in range(8)}
    events = [event for event in run.trace if event.index > begins[event.rank]]
    return replace(run.trace, events=tuple(events)).replay(on, computing(run, copies))


def step_ms(replay):
    """When the last rank comes to the barrier at the step's end."""
    return max(i.start_us for i in replay.intervals if i.event.kind == "barrier") / 1000


replays, pace = {}, {}


def clock(wrap, copies=True):
    name = wrap.__name__
    run = launch(observed, wrap, world_size=8, backend="gloo", trace=True)
    replays[name] = third_step(run, copies)
    pace[name] = step_ms(replays[name])
    calls = [i.event for i in replays[name].intervals if i.rank == 0 and i.what == "collective"][:-1]
    print(f"{name:24}{len(calls):3} calls, {sum(e.bytes for e in calls) / 1e6:5.2f} MB", end=", ")
    print(f"{pace[name]:5.1f} ms, {pace[name] / 8.983:.2f} of backward alone")


# %% [markdown]
# **Predict.** Gradients are 8.98 MB, so backward takes 8.98 ms. How much longer is a step with an `all_reduce` for each of the 18 parameters? With `reduce` and `broadcast`? With PyTorch's DDP, buckets of 2 MB?

# %%
predicted_ms = {"PerParameter": "?", "ReduceThenBroadcast": "?", "PyTorch": "?"}


def PyTorch(network, bucket_mb=2):
    return DistributedDataParallel(network, bucket_cap_mb=bucket_mb)


print("predicted:", predicted_ms)
clock(ReduceThenBroadcast, copies=False)
clock(PerParameter, copies=False)
clock(PyTorch)

# %% [markdown]
# WORDS
#
# ## 4 · One flat buffer
#
# 18 messages pay 18 times for latency. So copy all gradients into one buffer, average that, and copy back.


# %%
class Flat(Replica):
    def after_backward(self):
        gradients = [parameter.grad for parameter in self.module.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients]) / dist.get_world_size()
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(part.view_as(gradient))


# %%
predicted_flat_ms = "?"
print("predicted:", predicted_flat_ms)
compare(Flat)
clock(Flat)

# %% [markdown]
# WORDS


# %% jupyter={"source_hidden": true}
def draw(names, text):
    """Rank 0 of some replays: what it computes above, what its port sends below."""
    figure, axes = plt.subplots(figsize=(9, 0.8 * len(names) + 1), layout="constrained")
    colors = {"compute": rank_style(2)["color"], "send": rank_style(0)["color"]}
    for row, name in enumerate(names):
        for i in replays[name].intervals:
            if i.rank == 0 and i.what in colors and i.event.kind != "barrier" or i.what == "compute" and i.rank == 0:
                span = (i.start_us / 1000, (i.end_us - i.start_us) / 1000)
                place = (row - 0.36, 0.36) if i.what == "compute" else (row, 0.3)
                axes.broken_barh([span], place, color=colors[i.what], linewidth=0)
        axes.plot([pace[name]] * 2, [row - 0.4, row + 0.34], color="black", linewidth=1.5)
        axes.text(pace[name] + 0.2, row, f"{pace[name]:.1f} ms", va="center")
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.6))
    axes.set(xlabel="virtual time of one step, rank 0 of 8 (ms)", xlim=(0, 1.12 * max(pace[n] for n in names)))
    for what, label in (("compute", "backward and copies"), ("send", "its port sends")):
        axes.plot([], [], color=colors[what], linewidth=6, label=label)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, text)


# %%
draw(["PerParameter", "Flat"], "Flat sends without gaps, but copies before and after while nothing is sent.")

# %% [markdown]
# WORDS
#
# ## 5 · Buckets
#
# Copy a part, send it, and copy the next one while the first is on its way. The parts are **buckets**: lists of parameters, closed when they hold 2 MB. We fill them
# from the last layer to the first, in which order gradients come; that will matter in part 6.


# %%
class Buckets(Replica):
    def __init__(self, network, bucket_mb=2):
        super().__init__(network)
        self.buckets, self.sent = [[]], []
        for parameter in reversed(list(network.parameters())):
            if sum(p.nbytes for p in self.buckets[-1]) >= bucket_mb * 2**20:
                self.buckets.append([])
            self.buckets[-1].append(parameter)

    def send(self, bucket):
        flat = torch.cat([p.grad.flatten() for p in bucket]) / dist.get_world_size()
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def collect(self):
        for bucket, flat, work in self.sent:
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.sent = []

    def after_backward(self):
        for bucket in self.buckets:
            self.send(bucket)
        self.collect()


# %% [markdown]
# **Predict.** Buckets pay for latency four times, `Flat` once. Which is faster?

# %%
predicted_faster = "?"
print("predicted:", predicted_faster)
compare(Buckets)
clock(Buckets)
draw(["Flat", "Buckets"], "With buckets, copies go on while the port sends.")

# %% [markdown]
# WORDS
#
# ## 6 · While backward still computes
#
# In the picture the port is idle for all of backward, though the last layer's gradients are there early. `register_post_accumulate_grad_hook` calls a function as soon as a parameter's gradient is complete
# in `.grad`. When the last one of a bucket has come, the bucket leaves.
#
# And who waits? Autograd's engine takes callbacks that it runs when backward is over: the first gradient of each backward asks for one.


# %%
queue_callback = torch.autograd.Variable._execution_engine.queue_callback


class Overlapped(Buckets):
    def __init__(self, network, bucket_mb=2):
        super().__init__(network, bucket_mb)
        self.arrived = set()
        for parameter in network.parameters():
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)

    def gradient_is_here(self, parameter):
        if not self.arrived:
            queue_callback(self.finish)  # when this backward is over
        self.arrived.add(parameter)
        for bucket in self.buckets:
            if parameter in set(bucket) and self.arrived.issuperset(bucket):
                self.send(bucket)

    def finish(self):
        self.collect()
        self.arrived = set()

    def after_backward(self):
        pass  # everything happens in backward


# %% [markdown]
# (The underscore in `_execution_engine` says that torch may change it. PyTorch's own FSDP uses this door, too.) The loop need not call `after_backward` any more.
#
# **Predict.** 12.6 ms of sending beside 9 ms of backward: how long is the step?

# %%
predicted_overlapped_ms = "?"
print("predicted:", predicted_overlapped_ms)
compare(Overlapped)
clock(Overlapped)

# %%
forms = ["PerParameter", "Flat", "Buckets", "Overlapped", "PyTorch"]
draw(forms, "Each form is faster than the one above it, and overlapped sends as PyTorch does.")

# %%
assert pace["PerParameter"] > pace["Flat"] > pace["Buckets"] > pace["Overlapped"]
for slower, faster in zip(forms, forms[1:4]):
    print(f"{slower:12} : {faster:10} = {pace[slower] / pace[faster]:.2f}")
print(f"Overlapped   : PyTorch    = {pace['Overlapped'] / pace['PyTorch']:.3f}")

# %% [markdown]
# WORDS
#
# How large should a bucket be? **Predict** the best size on this network, and on one with ten times the latency.

# %%
predicted_best_mb = {"30 us": "?", "300 us": "?"}
sizes_mb = [0.1, 0.5, 1, 2, 4, 16]
sweep = {30: [], 300: []}
for size_mb in sizes_mb:
    sized = lambda module: Overlapped(module, size_mb)
    run = launch(observed, sized, world_size=8, backend="gloo", trace=True)
    for latency_us, times_ms in sweep.items():
        times_ms.append(step_ms(third_step(run, on=replace(network, latency_us=latency_us))))
print("predicted:", predicted_best_mb)
print("bucket    ", *(f"{size:5g} MB" for size in sizes_mb))
for latency_us, times_ms in sweep.items():
    print(f"{latency_us:4} us    ", *(f"{ms:5.1f} ms" for ms in times_ms))

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
for i, (latency_us, times_ms) in enumerate(sweep.items()):
    axes.semilogx(sizes_mb, times_ms, label=f"latency {latency_us} us", **rank_style(i))
    best = times_ms.index(min(times_ms))
    axes.annotate("best", (sizes_mb[best], times_ms[best]), (0, -14), textcoords="offset points", ha="center")
axes.set(xlabel="bucket (MB)", ylabel="virtual step (ms)", ylim=(0, None))
axes.set_xticks(sizes_mb, [f"{size:g}" for size in sizes_mb])
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
show(figure, "Small buckets pay for latency, one large bucket overlaps nothing; more latency, larger buckets.")

# %% [markdown]
# WORDS
#
# ## 7 · When the ranks disagree
#
# `Overlapped` passes every test so far, and it is wrong. Nothing has asked yet what happens when gradients come in **another order** on another rank. Autograd goes back
# through what forward computed last, so the order is up to forward. Here are two layers, whose order the caller chooses; one sees the digit upright, the other upside down.


# %%
class TwoPaths(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(784, 10), nn.Linear(784, 10)

    def forward(self, images, order):
        seen = {"a": images.flatten(1), "b": images.flip(2).flatten(1)}
        return sum(getattr(self, name)(seen[name]) for name in order)


def one_backward(wrap, orders):
    torch.manual_seed(0)
    network = TwoPaths()
    model = wrap(network)
    images, labels = batch(0)
    cross_entropy(model(images, orders[dist.get_rank()]), labels).backward()
    return {name: getattr(network, name).weight.grad for name in "ab"}


# %% [markdown]
# **Predict.** Rank 0 computes a, then b; rank 1 computes b, then a. Each layer is a bucket of its own, and both are equally large. What will `Overlapped` do: hang, crash, or go on? And PyTorch?

# %%
predicted_fate = {"Overlapped": "?", "PyTorch": "?"}


def alone(network):
    return network


def judge(wrap, orders):
    """Whether each rank's gradients are the average of what the ranks have alone."""
    own = launch(one_backward, alone, orders, backend="gloo")
    results = launch(one_backward, lambda network: wrap(network, 0.01), orders, backend="gloo")
    for rank, result in enumerate(results):
        for name in "ab":
            parts = [one[name] for one in own if one[name] is not None]
            right = torch.equal(result[name], sum(parts) / 2)
            print(f"{wrap.__name__:10} rank {rank}, layer {name}:", "right" if right else "WRONG")


print("predicted:", predicted_fate)
judge(Overlapped, ["ab", "ab"])
judge(Overlapped, ["ab", "ba"])
judge(PyTorch, ["ab", "ba"])

# %% [markdown]
# WORDS
#
# Now layer b is not used on rank 1: an expert that no token chose, a head for a task that is not in this batch. This cell is meant to fail. **Predict:** which rank waits, and where?


# %% tags=["raises-exception"]
def one_forgets():
    one_backward(lambda network: Overlapped(network, 0.01), ["ab", "a"])


launch(one_forgets, backend="gloo", timeout=4)

# %% [markdown]
# WORDS

# %%
try:
    launch(one_backward, DistributedDataParallel, ["ab", "a"], backend="gloo", timeout=4)
except WorkerTimeout as error:
    print(str(error).splitlines()[2])

# %% [markdown]
# Unless you say `find_unused_parameters=True`: then PyTorch walks through the graph after every forward, to know in advance who will not come.
#
# The cure for both is one rule: **every rank sends the same buckets in the same order, whatever came**. A full bucket waits until its predecessors have left. At the end of
# backward, all that are left go, with zeros for gradients that do not exist.


# %%
class Careful(Overlapped):
    def gradient_is_here(self, parameter):
        if not self.arrived:
            queue_callback(self.finish)
        self.arrived.add(parameter)
        for bucket in self.buckets[len(self.sent) :]:
            if not self.arrived.issuperset(bucket):
                break
            self.send(bucket)

    def send(self, bucket):
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        super().send(bucket)

    def finish(self):
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
        super().finish()


# %%
judge(Careful, ["ab", "ba"])
judge(Careful, ["ab", "a"])
clock(Careful)

# %% [markdown]
# WORDS
#
# ## 8 · Tied, frozen, buffers, `no_sync`
#
# And the awkward network? **Predict** what breaks `Careful`: the tied weight, the frozen layer, or the batch norm.

# %%
predicted_culprit = "?"
print("predicted:", predicted_culprit)
try:
    launch(train, Careful, awkward, backend="gloo")
except WorkerError as error:
    print(error.failures[0].headline)
