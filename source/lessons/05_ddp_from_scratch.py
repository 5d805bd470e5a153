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
# **Lab:** [05 · DDP from scratch](../exercises/05_ddp_from_scratch.ipynb).

# %%
import inspect
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise, takewhile

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_utils import Network, WorkerError, WorkerTimeout, digits, launch, show
from course_utils.pictures.style import rank_style

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

# %% tags=["row-D5"]
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

# %% tags=["row-D6"]
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
            if copies and last and (last.kind == "wait" or last.blocking):
                us += COPY_US * last.bytes  # out of it
            took_us[rank, event.index], last = us, event
    return lambda event: took_us[event.rank, event.index]


# %% [markdown]
# We replay the third step only, from barrier to barrier, as PyTorch's first one is a rehearsal. Forward and optimiser are left out: they are the same in all forms.


# %%
def third_step(run, copies=True, on=network):
    events = []
    for rank in range(run.trace.world_size):
        own = run.trace.of_rank(rank)
        barriers = [event.index for event in own if event.kind == "barrier"]
        events += own[barriers[2] + 1 :]
    return replace(run.trace, events=tuple(events)).replay(on, computing(run, copies))


def step_ms(replay):
    """When the last rank comes to the barrier at the step's end."""
    calls = [i for i in replay.intervals if i.what == "collective"]
    return max(call.start_us for call in calls if call.event.kind == "barrier") / 1000


replays, pace = {}, {}


def clock(wrap, copies=True):
    name = wrap.__name__
    run = launch(observed, wrap, world_size=8, backend="gloo", trace=True)
    replays[name] = third_step(run, copies)
    pace[name] = step_ms(replays[name])
    calls = [i.event for i in replays[name].intervals if i.what == "collective" and not i.rank]
    calls.pop()  # the barrier at the end
    print(f"{name:24}{len(calls):3} calls, {sum(e.bytes for e in calls) / 1e6:5.2f} MB", end=", ")
    print(f"{pace[name]:5.1f} ms, {pace[name] / 8.983:.2f} times backward")


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
# 29.1 ms, more than three times backward alone. It adds up: 9.0 of backward; 12.6 for the bytes, as a ring of eight passes 2 · 7/8 of them through each port, 1.25 GB in a second; and 7.6 of
# **latency**, for 18 rings of 14 turns at 30 µs. `reduce` and `broadcast` take 9.5 ms more. And PyTorch's 17.3? That is where we are going, in four steps.
#
# **Check yourself.** Which of the three parts does a network of 100 Gbit/s shrink?
#
# <details><summary>Answer</summary>
# Only the bytes: 12.6 ms become 1.3. Then latency and backward are nearly all there is.
# </details>
#
# ## 4 · One flat buffer
#
# 18 messages pay 18 times for latency. So copy all gradients into one buffer, average that, and copy back. **Predict** the step's time.


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
# Still the same numbers in the weights, and 25.6 ms: instead of 18 latencies one, 0.4 ms. But two copies appeared, of 1.8 ms each. A picture shows where they are.


# %% jupyter={"source_hidden": true}
def draw(names, text):
    """Rank 0 of some replays: what it computes above, what its port sends below."""
    figure, axes = plt.subplots(figsize=(9, 0.8 * len(names) + 1), layout="constrained")
    colors = {"compute": rank_style(2)["color"], "send": rank_style(0)["color"]}
    for row, name in enumerate(names):
        for i in replays[name].intervals:
            if i.rank or i.what not in colors or i.start_us / 1000 >= pace[name]:
                continue
            span = (i.start_us / 1000, (i.end_us - i.start_us) / 1000)
            place = (row - 0.36, 0.36) if i.what == "compute" else (row, 0.3)
            axes.broken_barh([span], place, color=colors[i.what], linewidth=0)
        axes.plot([pace[name]] * 2, [row - 0.4, row + 0.34], color="black", linewidth=1.5)
        axes.text(pace[name] + 0.2, row, f"{pace[name]:.1f} ms", va="center")
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.6))
    axes.set(xlabel="virtual time of one step, rank 0 of 8 (ms)", xlim=(0, 33))
    for what, label in (("compute", "backward and copies"), ("send", "its port sends")):
        axes.plot([], [], color=colors[what], linewidth=6, label=label)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, text)


# %%
draw(
    ["PerParameter", "Flat"],
    "Flat sends without gaps, but copies before and after while nothing is sent.",
)

# %% [markdown]
# The white gaps in the upper row are latency. The lower one has few, but its port idles during both copies.
#
# **Check yourself.** For which network is `Flat` slower than `PerParameter`?
#
# <details><summary>Answer</summary>
# For one whose 17 saved latencies, 17 · 14 · alpha, are less than the two copies, 3.6 ms: below 15 µs here.
# </details>
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
# `Buckets`, by 1.4 ms. It pays 1.3 ms more of latency, and hides 2.7 ms of its copies: only the first bucket's way in and the last one's way out are left, for in between the port is busy anyway.
#
# **Check yourself.** Why does `after_backward` send all buckets before it waits for the first?
#
# <details><summary>Answer</summary>
# With <code>work.wait()</code> right after each <code>all_reduce</code>, the port would idle while the next bucket is filled.
# </details>
#
# ## 6 · While backward still computes
#
# In the picture the port is idle for all of backward, though the last layer's gradients are there early. `register_post_accumulate_grad_hook` calls a function as soon as a parameter's gradient is complete
# in `.grad`. When the last one of a bucket has come, the bucket leaves.
#
# And who waits? Autograd's engine takes callbacks that it runs when backward is over: the first gradient of each backward asks for one. (With gloo the
# rank waits there; with NCCL only a stream of its GPU, as [chapter 12](12_on_a_gpu_who_waits.ipynb) shows.)


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

# %% [markdown]
# The first bucket leaves after 2.5 ms, when a quarter of the gradients are there. From then on the port never rests, until all is sent. All forms on one clock:

# %%
forms = ["PerParameter", "Flat", "Buckets", "Overlapped", "PyTorch"]
draw(forms, "Each form is faster than the one above it, and overlapped sends as PyTorch does.")

# %%
assert pace["PerParameter"] > pace["Flat"] > pace["Buckets"] > pace["Overlapped"]
for slower, faster in pairwise(forms):
    print(f"{slower:12} : {faster:10} = {pace[slower] / pace[faster]:.2f}")

# %% [markdown]
# **Per parameter > flat > buckets > overlapped**, strictly: 1.14 · 1.06 · 1.40, together 1.68. And ours takes exactly as long as PyTorch's: the same buckets leave at the same moments, and the bars are the same bars.
#
# Mind what kind of number this is: for these rates, this network, this model. Where backward is long, overlap hides nearly everything; where it is short, only fewer bytes help.
#
#
# How large should a bucket be? **Predict** the best size on this network, and on one with ten times the latency.

# %%
predicted_best_mb = {"30 µs": "?", "300 µs": "?"}
sizes_mb = [1e-5, 1, 2, 4, 6, 16]  # the first is less than any tensor has
sweep = {30: [], 300: []}
for size_mb in sizes_mb:
    sized = lambda module: Overlapped(module, size_mb)
    run = launch(observed, sized, world_size=8, backend="gloo", trace=True)
    for latency_us, times_ms in sweep.items():
        times_ms.append(step_ms(third_step(run, on=replace(network, latency_us=latency_us))))
print("predicted:", predicted_best_mb)
print("bucket        alone", *(f"{size:5} MB" for size in sizes_mb[1:]))
for latency_us, times_ms in sweep.items():
    print(f"{latency_us:4} µs    ", *(f"{ms:5.1f} ms" for ms in times_ms))

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
for i, (latency_us, times_ms) in enumerate(sweep.items()):
    axes.plot(times_ms, label=f"latency {latency_us} µs", **rank_style(i))
    best = times_ms.index(min(times_ms))
    style = {"textcoords": "offset points", "ha": "center"}
    axes.annotate("best", (best, times_ms[best]), (0, (-16, 9)[i]), **style)
axes.set_xticks(range(6), ["each tensor\nalone", *(f"{size} MB" for size in sizes_mb[1:])])
axes.set(xlabel="bucket", ylabel="virtual step (ms)", ylim=(0, None))
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
show(
    figure, "Small buckets pay for latency, one large one overlaps nothing; the best lies between."
)

# %% [markdown]
# 2 MB with 30 µs, 4 MB with 300: with more latency, each message must carry more. One bucket of 16 MB holds everything and is `Flat` again, to the digit: 25.6. PyTorch's default is 25 MB,
# with a first bucket of 1 MB, so that something leaves early.
#
# **Check yourself.** The last layer of a language model holds half of all weights. What does that mean for overlap?
#
# <details><summary>Answer</summary>
# It is the first bucket, as tensors are not split. Its message starts early, and may last longer than all of the remaining backward: good. Were it the first layer, it would leave last, with nothing to hide behind.
# </details>
#
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
    paths, came = TwoPaths(), []
    for name in "ab":
        getattr(paths, name).weight.register_hook(lambda gradient, name=name: came.append(name))
    model = wrap(paths)
    images, labels = batch(0)
    cross_entropy(model(images, orders[dist.get_rank()]), labels).backward()
    return came, {name: getattr(paths, name).weight.grad for name in "ab"}


# %% [markdown]
# `judge` compares each rank's gradients with the average of what the ranks have alone, without a wrapper; `a0` is layer a's on rank 0.
#
# **Predict.** Rank 0 computes a, then b; rank 1 computes b, then a. Each layer is a bucket of its own, and both are equally large. What will `Overlapped` do: hang, crash,
# or go on? And PyTorch?

# %%
predicted_fate = {"Overlapped": "?", "PyTorch": "?"}


def judge(wrap, orders):
    alone = launch(one_backward, lambda paths: paths, orders, backend="gloo")
    own = [gradients for _, gradients in alone]
    results = launch(one_backward, lambda paths: wrap(paths, 0.01), orders, backend="gloo")
    print(f"{wrap.__name__:10} forward {orders[0]}, {orders[1]:2}:", end="  ")
    for rank, (_, gradients) in enumerate(results):
        for name in "ab":
            parts = [each[name] for each in own if each[name] is not None]
            right = torch.equal(gradients[name], sum(parts) / 2)
            print(f"{name}{rank}", "right" if right else "WRONG", end="  ")
    print()
    return results


print("predicted:", predicted_fate)
judge(Overlapped, ["ab", "ab"])
results = judge(Overlapped, ["ab", "ba"])
judged = judge(PyTorch, ["ab", "ba"])

# %%
figure, axes = plt.subplots(figsize=(6.5, 1.9))
for rank, (came, _) in enumerate(results):
    for turn, name in enumerate(came):
        axes.barh(rank, 0.92, 0.7, turn, color=rank_style("ab".index(name))["color"])
        label = {"color": "white", "ha": "center", "va": "center"}
        axes.text(turn + 0.46, rank, f"bucket of layer {name}", **label)
axes.set(yticks=[0, 1], yticklabels=["rank 0", "rank 1"], ylim=(1.5, -0.5))
axes.set_xticks([0.46, 1.46], ["1st all_reduce", "2nd all_reduce"])
axes.spines[:].set_visible(False)
axes.tick_params(length=0)
show(figure, "In each all_reduce, one rank sends layer a and the other layer b.")

# %% [markdown]
# No hang, no crash, no error: all four gradients are **wrong**, averages of one layer's with another's. Gloo pairs the *n*-th call of one rank with the *n*-th of the other, and both are
# 31,400 bytes long. PyTorch gets it right. Remember this whenever a wrapper "works".
#
# Now layer b is not used on rank 1: an expert that no token chose, a task that is not in this batch. This cell is meant to fail. **Predict:** which rank waits, and
# in which line?


# %% tags=["raises-exception"]
def one_forgets():
    one_backward(lambda paths: Overlapped(paths, 0.01), ["ab", "a"])


launch(one_forgets, backend="gloo", timeout=3)

# %% [markdown]
# Read it aloud. *Rank 0: waiting in wait, in collect*: for a bucket that it has sent, of 7,850 numbers, which is a layer. *Rank 1: its function has returned*, and then the cause: rank 0 has called `all_reduce` *twice*, rank 1 *once*. Rank 1's second
# bucket never filled, and nobody noticed. In a longer training it would go on, and its next step's buckets would meet rank 0's of this step.
#
# Does PyTorch know better?

# %%
try:
    launch(one_backward, DistributedDataParallel, ["ab", "a"], backend="gloo", timeout=3)
except WorkerTimeout:
    print("PyTorch hangs, too")

# %% [markdown]
# It does as well, unless one says `find_unused_parameters=True`; then it walks through the graph after each forward, to know who will not come.
#
# Both have one cure: **every rank sends the same buckets in the same order, whatever has come.** A full bucket waits until its predecessors have left. And when backward is over, all
# that remain leave, with zeros for gradients that do not exist.


# %%
class Careful(Overlapped):
    def gradient_is_here(self, parameter):
        if not self.arrived:
            queue_callback(self.finish)
        self.arrived.add(parameter)
        for bucket in takewhile(self.arrived.issuperset, self.buckets[len(self.sent) :]):
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
judged = judge(Careful, ["ab", "a"])
clock(Careful)

# %% [markdown]
# Right in both cases, and not a microsecond slower. Zeros are the right thing to send: rank 1 has nothing to say about layer b, so its average is half of what rank 0 has. (A layer that *no* rank used gets a gradient of zeros here, where
# PyTorch leaves `None`; with weight decay that differs.)
#
# **Check yourself.** Rank 1 does not use the *last* layer of a deep network. What does that cost in time?
#
# <details><summary>Answer</summary>
# The overlap: its bucket is the first in the order, so on rank 1 all others wait behind it until backward is over, and rank 0 waits for rank 1.
# </details>
#
# ## 8 · What is left
#
# The awkward network. **Predict** which of the three stops `Careful`: the tied weight, the frozen layer, or the batch norm's buffers.

# %%
predicted_culprit = "?"
print("predicted:", predicted_culprit)
try:
    launch(train, Careful, awkward, backend="gloo")
except WorkerError as error:
    print(error.failures[0].headline)

# %% [markdown]
# The **frozen** layer: it never gets a gradient, so it belongs in no bucket. What about the **tied** weight? It is used twice in forward. How often does its hook fire?


# %%
def hook_calls():
    network, calls = awkward(), []
    network[3].weight.register_post_accumulate_grad_hook(calls.append)
    images, labels = batch(0)
    cross_entropy(network(images), labels).backward()
    return len(calls)


print("the tied weight's hook was called:", launch(hook_calls, world_size=1, backend="gloo")[0])

# %% [markdown]
# Once, when both uses have been added up: nothing to do. The **buffers** change in every forward, on each rank in its own way. PyTorch broadcasts rank 0's before each
# forward, so we do.
#
# Finally **memory**. `torch.cat` makes a new buffer in each step. Would it pay to keep one? **Predict** the factor.

# %% tags=["nbval-ignore-output"]
predicted_gain = "?"


def fill(turns=15):
    pieces = [torch.ones(2_100_000 // 8) for _ in range(4)]
    kept, ratios = torch.cat(pieces), []
    for _ in range(turns):
        begun = time.perf_counter()
        new = torch.cat(pieces)
        between = time.perf_counter()
        torch.cat(pieces, out=kept)
        ratios.append((between - begun) / (time.perf_counter() - between))
        del new
    return sorted(ratios)


ratios = launch(fill, world_size=1, backend="gloo")[0]
print(
    f"predicted {predicted_gain}; a new buffer takes x{ratios[7]:.1f} as long as a kept one",
    end=" ",
)
print(f"(15 turns, x{ratios[1]:.1f} to x{ratios[-2]:.1f})")

# %% [markdown]
# New memory has to be fetched from the system page by page, if the allocator gave the old one back. Where your factor is about 1, it did not. Buckets of the
# same size come in every step, so we keep them.
#
# And **`no_sync`**: a switch that the hook looks at.
#
# ## 9 · The whole of it
#
# All that survived, in one class.


# %%
class OurDDP(nn.Module):
    """Start equal; average gradients in buckets while backward still computes."""

    def __init__(self, network, bucket_mb=25):
        super().__init__()
        self.module, self.talks = network, True
        self.from_rank_0([*network.parameters(), *network.buffers()])
        self.buckets, self.arrived, self.sent = [[]], set(), []
        for parameter in reversed([p for p in network.parameters() if p.requires_grad]):
            if sum(p.nbytes for p in self.buckets[-1]) >= bucket_mb * 2**20:
                self.buckets.append([])
            self.buckets[-1].append(parameter)
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)
        self.flats = [torch.cat([p.detach().flatten() for p in each]) for each in self.buckets]

    def from_rank_0(self, tensors):
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs):
        if self.talks:
            self.from_rank_0(self.module.buffers())
        return self.module(*inputs)

    def gradient_is_here(self, parameter):
        if not self.talks:
            return
        if not self.arrived:
            queue_callback(self.finish)  # when this backward is over
        self.arrived.add(parameter)
        for bucket in takewhile(self.arrived.issuperset, self.buckets[len(self.sent) :]):
            self.send(bucket)  # in the same order on all ranks

    def send(self, bucket):
        flat = self.flats[len(self.sent)]
        for parameter in bucket:
            if parameter.grad is None:  # this rank did not use it
                parameter.grad = torch.zeros_like(parameter)
        torch.cat([p.grad.flatten() for p in bucket], out=flat)
        flat /= dist.get_world_size()
        self.sent.append(dist.all_reduce(flat, async_op=True))

    def finish(self):
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
        for bucket, flat, work in zip(self.buckets, self.flats, self.sent):
            work.wait()
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                parameter.grad.copy_(part.view_as(parameter))
        self.arrived, self.sent = set(), []

    @contextmanager
    def no_sync(self):
        self.talks = False
        try:
            yield
        finally:
            self.talks = True


# %% [markdown]
# | line | what asked for it |
# | --- | --- |
# | `from_rank_0` in `__init__`, in `forward` | 9 tensors that differed (part 1); a batch norm's buffers (8) |
# | `/=`, `all_reduce` | equal to PyTorch, bit for bit (2) |
# | `cat`, `split` | fewer latencies (4) |
# | `buckets`, `async_op`, `wait` in turn | copies beside messages (5) |
# | the hook, `queue_callback` | messages beside backward (6) |
# | `takewhile`, zeros, the first loop of `finish` | wrong sums, and a hang (7) |
# | `requires_grad`, `flats` | a crash, and new memory in every step (8) |
#
# Now the examination. **Predict:** how far from PyTorch's after 20 steps of the awkward network, on two ranks and on four?

# %%
predicted_awkward = {2: "?", 4: "?"}


def Ours(network, bucket_mb=2):
    return OurDDP(network, bucket_mb)


methods = [each for each in vars(OurDDP).values() if inspect.isfunction(each)]
lines = sum(len(inspect.getsourcelines(method)[0]) for method in methods)
print(f"The methods of OurDDP have {lines} lines. Predicted:", predicted_awkward)
for form in (plain, awkward):
    for world_size in (2, 4):
        wraps = (Ours, PyTorch)
        both = [launch(train, w, form, world_size=world_size, backend="gloo") for w in wraps]
        away = distance(*both)
        assert max(away) == 0 if world_size == 2 else max(away) < 1e-6
        said = "exactly 0" if world_size == 2 else "less than 1e-6"
        print(
            f"{form.__name__:8} {world_size} ranks: weights, buffers and gradients away by {said}"
        )

# %% [markdown]
# On two ranks the same to the last bit, running means, tied and frozen weights included. With four, a sum depends on the order of its terms, and so on how the
# buckets are cut: PyTorch's first step has one bucket.
#
# Then `no_sync`. Chapter 04 measured that PyTorch's works only with the forward inside. **Predict:** ours, with four parts, forward inside or outside?


# %%
def accumulate(wrap, forward):
    torch.manual_seed(0)
    model = wrap(plain())
    images, labels = batch(0, size=32)
    for part, (few, answers) in enumerate(zip(images.chunk(4), labels.chunk(4))):
        quiet = model.no_sync if part < 3 else nullcontext
        with quiet() if forward == "inside" else nullcontext():
            loss = cross_entropy(model(few), answers) / 4
        with quiet():
            loss.backward()
    return [torch.cat([p.grad.flatten() for p in model.parameters()])]


# %%
predicted_all_reduces = {"inside": "?", "outside": "?"}


def whole(network):
    return OurDDP(network)  # one bucket of up to 25 MB


print("predicted for ours:", predicted_all_reduces)
for forward in ("inside", "outside"):
    wraps = (whole, DistributedDataParallel)
    both = [launch(accumulate, wrap, forward, backend="gloo", trace=True) for wrap in wraps]
    ours, pytorchs = ([e.kind for e in run.trace.of_rank(0)].count("all_reduce") for run in both)
    assert distance(*both)[0] < 1e-6
    print(f"forward {forward:8} no_sync: ours {ours} all_reduce, PyTorch {pytorchs}")

# %% [markdown]
# PyTorch decides in the forward whether the coming backward will talk: all four backwards do, the first with one bucket, the others with two. Ours decides when a gradient arrives, so a forward in the wrong place cannot
# catch it. The gradients agree either way.
#
# Last, the clock: the virtual one at eight ranks, then this machine's.

# %%
judged = judge(Ours, ["ab", "ba"]), judge(Ours, ["ab", "a"])
clock(Ours)
print(f"Ours : PyTorch = {pace['Ours'] / pace['PyTorch']:.3f}")
assert pace["Ours"] <= 1.05 * pace["PyTorch"]

# %% [markdown]
# Not a microsecond more than PyTorch's.
#
# On this machine all forms take turns, and each is compared with PyTorch in the same turn.


# %%
def take_turns(turns=15, steps=2):
    models = {wrap.__name__: wrap(plain()) for wrap in (PerParameter, Flat, Buckets, Ours, PyTorch)}
    images, labels = batch(0, size=64)
    took_s = {name: [] for name in models}
    for _ in range(turns):
        for name, model in models.items():
            dist.barrier()
            begun = time.perf_counter()
            for _ in range(steps):
                model.zero_grad()
                cross_entropy(model(images), labels).backward()
                if isinstance(model, Replica):
                    model.after_backward()
            dist.barrier()
            took_s[name].append((time.perf_counter() - begun) / steps)
    return {name: times[3:] for name, times in took_s.items()}  # 3: warm-up


# %% [markdown]
# **Predict.** Does the order of part 6 hold on two ranks of one machine?

# %% tags=["nbval-ignore-output"]
took_s = launch(take_turns, backend="gloo")[0]
print(f"PyTorch: {1e3 * sorted(took_s['PyTorch'])[6]:.0f} ms per step (median of 12 turns)")
ratios = {
    name: sorted(mine / its for mine, its in zip(times, took_s["PyTorch"]))
    for name, times in took_s.items()
    if name != "PyTorch"
}
for name, each in ratios.items():
    print(f"{name:12} x{each[6]:.2f} PyTorch's, half of the turns x{each[3]:.2f} to x{each[9]:.2f}")
if ratios["Ours"][9] / ratios["Ours"][3] > 1.15:
    print("this machine is too busy to tell ours from PyTorch's")
else:
    assert ratios["Ours"][6] <= 1.10

# %%
figure, axes = plt.subplots(figsize=(7, 2.6))
for row, each in enumerate(ratios.values()):
    spread = [[each[6] - each[3]], [each[9] - each[6]]]
    axes.errorbar(each[6], row, xerr=spread, capsize=4, **rank_style(row))
axes.axvline(1, color="#777777", linestyle=":")
axes.set(yticks=range(4), yticklabels=ratios, ylim=(3.5, -0.5), xlim=(0, None))
axes.set_xlabel("step on this machine, times PyTorch's in the same turn")
axes.spines[["top", "right"]].set_visible(False)
show(figure, "Median and middle half of twelve turns; the dotted line is PyTorch.")

# %% [markdown]
# Where the bars overlap, nobody can say who is faster. Where the order holds, it does so for other reasons: two ranks on one machine have neither the latency nor the bandwidth of our network,
# but each call wakes threads, and each new buffer costs memory. So the chapter argued from the virtual clock. What remains to be read here is the last row: where the machine was quiet
# enough, the cell has checked that ours takes at most 1.10 times PyTorch's.
#
# **Check yourself.** You freeze a layer *after* wrapping it in `OurDDP`. What happens?
#
# <details><summary>Answer</summary>
# Its gradient never comes, so its bucket and all behind it leave at the end of backward: overlap is lost. Worse, it gets a gradient of zeros, and an optimiser with weight decay would move it.
# Freeze first, wrap then; that is also PyTorch's rule.
# </details>
#
#
# ## What you know now
#
# DDP is a broadcast, some hooks and an `all_reduce` per bucket. What makes it fast is *when* messages leave; what makes it right is that all ranks send the same ones, in the same order, whatever happened to their gradients.
# You can now read PyTorch's own reducer: it has these parts and more, such as streams of GPUs, several dtypes, and buckets in the order that the first backward showed.
#
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb) opens the `all_reduce` itself. Beside the way, half an hour long:
# [12 · On a GPU: who waits?](12_on_a_gpu_who_waits.ipynb) looks at DDP on real GPUs.
