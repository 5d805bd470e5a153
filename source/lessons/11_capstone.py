# %% [markdown]
# # 11 · Capstone: from a broken script to a report
#
# **A training script runs, its loss falls, and it is wrong in seven places. How do you find them, prove the cure, and say what 64 ranks would bring?**
#
# In 95 minutes you will be able to
#
# 1. find faults by measuring the parts of a script, not by reading it;
# 2. prove a repaired script equal to one process, and test the proof;
# 3. predict its efficiency on up to 1,024 ranks from a recording of eight, and check the prediction;
# 4. write a report whose every figure somebody else can compute again.
#
# **Hardware:** two cores; all ranks use gloo on the CPU. **Before:** [10 · Keras](10_keras.ipynb).
# **Lab:** [11 · Capstone](../exercises/11_capstone.ipynb), where you do the same to another script.

# %%
import json
import os
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import Network, digits, launch, plot_timeline, show
from course_utils.network.trace import Trace
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · The script
#
# The network subtracts the mean image, which it carries as a **buffer**: a constant that is saved with the weights.

# %%
training, testing = digits(True), digits(False)


class DigitNet(nn.Sequential):
    def __init__(self):
        hidden = [nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        super().__init__(nn.Linear(784, 256), nn.ReLU(), *hidden, nn.Linear(256, 10))
        self.register_buffer("mean", training.data.mean(dim=0).flatten())

    def forward(self, images):
        return super().forward(images.flatten(1) - self.mean)


# %% [markdown]
# And the script itself. It trains on 640 digits with noise added to them, in global batches of 64. Its parts are methods, so that we can measure each, and replace it. Give it two
# minutes. Its faults are hard to see; most of them have stood in published tutorials.


# %%
class Script:
    dtype = torch.float32

    def __init__(self):
        torch.manual_seed(0)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.model = self.wrap(DigitNet().to(self.dtype))
        self.optimizer = torch.optim.SGD(self.model.parameters(), self.rate(), momentum=0.9)
        self.sampler = DistributedSampler(range(640))
        self.loader = DataLoader(range(640), 64 // self.world_size, sampler=self.sampler)

    def wrap(self, network):
        return DistributedDataParallel(network, bucket_cap_mb=0.25)

    def rate(self):
        return 0.05 * self.world_size

    def batches(self, epoch):
        return self.loader

    def augment(self, images, numbers, epoch):
        return images + 0.5 * torch.randn(images.shape)

    def step(self, numbers, epoch):
        images = self.augment(training.data[numbers], numbers, epoch).to(self.dtype)
        loss = cross_entropy(self.model(images), training.targets[numbers])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def loss_to_print(self, loss):
        return loss.item()

    def train(self, epochs):
        losses = []
        for epoch in epochs:
            for numbers in self.batches(epoch):
                loss = self.step(numbers, epoch)
            losses.append(self.loss_to_print(loss))
        return losses

    @torch.no_grad()
    def validate(self):
        if self.rank == 0:
            right = self.model(testing.data.to(self.dtype)).argmax(dim=1) == testing.targets
            return right.sum().item(), len(right)

    def save(self, path):
        torch.save(self.model.state_dict(), path)

    def resume(self, path):
        self.model.load_state_dict(torch.load(path))


# %% [markdown]
# A first run: one epoch, then the test digits. On one rank all is well. The second cell is meant to fail. **Predict:** which rank waits on four, and in which line?


# %%
def on(world_size, fn, *arguments, **options):
    return launch(fn, *arguments, world_size=world_size, backend="gloo", **options)


def first_run(script):
    run = script()
    return run.train(range(1)), run.validate()


losses, (right, count) = on(1, first_run, Script)[0]
print(f"one rank: loss {losses[0]:.2f}, {right} of {count} right")

# %% tags=["raises-exception"]
on(4, first_run, Script, timeout=6)

# %% [markdown]
# Read it aloud. *Rank 0: waiting in DDP's forward*, in `validate`; the others *have returned*. Only rank 0 validates, and calls the wrapper, which broadcasts its buffers before each forward. Without
# a buffer the script would have worked, until the day when somebody adds one.
#
# This was the one loud fault. All others are silent.
#
# ## 2 · Silent faults
#
# Five are in this part; the sixth waits for a recording, in part 4.
#
# ### Validation
#
# The popular cure for the hang: let all ranks validate, with a sampler, and add up. **Predict:** of how many digits do four ranks speak, and how many eight?


# %%
class Sampled(Script):
    def hand(self):
        return list(DistributedSampler(testing, shuffle=False))

    @torch.no_grad()
    def validate(self):
        own = self.hand()
        output = self.model.module(testing.data[own].to(self.dtype))
        right = (output.argmax(dim=1) == testing.targets[own]).sum()
        sums = torch.stack([right, torch.tensor(len(own))])
        dist.all_reduce(sums)
        return tuple(sums.tolist())


class Counted(Sampled):
    def hand(self):
        return list(range(self.rank, len(testing), self.world_size))


# %%
predicted_digits = {"4 ranks": "?", "8 ranks": "?"}
print("predicted:", predicted_digits)
for script in (Sampled, Counted):
    for world_size in (1, 4, 8):
        results = on(world_size, lambda: script().validate())
        print(f"{script.__name__:8} {world_size} ranks: {results[0][1]} digits of {len(testing)}")

# %% [markdown]
# 356 and 360 of 355: the sampler deals some digits twice, so that all hands are equally long. Without it the hands differ by one digit, which does no harm here, as `model.module` sends nothing.
#
# ### Order
#
# The measurement: in how many different orders does the script see its digits in three epochs? From now on each cell shows the broken part, the cure, and both measured.


# %%
class Shuffled(Counted):
    def batches(self, epoch):
        self.sampler.set_epoch(epoch)
        return self.loader


def orders(script):
    run = script()
    return len({str([batch.tolist() for batch in run.batches(epoch)]) for epoch in range(3)})


for script in (Counted, Shuffled):
    print(f"{script.__name__:8} orders in 3 epochs:", on(4, orders, script)[0])

# %% [markdown]
# One order, three times: nobody told the sampler the epoch.
#
# ### Noise
#
# **Predict.** Four ranks augment their digits. How many different noises are there among them?
#
# A seed per rank would be a cure. We take a better one, a seed **per sample and epoch**: then the noise does not depend on who holds the digit, and a run on four ranks can be compared with one.


# %%
class Noisy(Shuffled):
    def augment(self, images, numbers, epoch):
        seeds = (640 * epoch + numbers).tolist()
        own = [torch.Generator().manual_seed(seed) for seed in seeds]
        noise = [torch.randn(images.shape[1:], generator=generator) for generator in own]
        return images + 0.5 * torch.stack(noise)


def noise(script):
    run = script()
    numbers = next(iter(run.batches(0)))
    return run.augment(torch.zeros(len(numbers), 1, 28, 28), numbers, 0)


# %%
predicted_noises = "?"
print("predicted:", predicted_noises)
for script in (Shuffled, Noisy):
    results = on(4, noise, script)
    print(
        f"{script.__name__:8} different noises on 4 ranks:", len(torch.stack(results).unique(dim=0))
    )

# %% [markdown]
# One before, four after. And as nothing is drawn from a generator that lives on, there is nothing random to be saved with a checkpoint.
#
# ### Learning rate
#
# The measurement: train one epoch on one rank and on four. The global batch is 64 on both, so the weights must agree.


# %%
class Rated(Noisy):
    def rate(self):
        return 0.05


def weights_after(script, epochs):
    run = script()
    run.train(epochs)
    return parameters_to_vector(run.model.parameters()).detach()


for script in (Noisy, Rated):
    one, four = (on(n, weights_after, script, range(1))[0] for n in (1, 4))
    away = (one - four).abs().max().item()
    print(f"{script.__name__:8} weights of 4 ranks and of 1 within 0.001: {away < 0.001}")

# %% [markdown]
# "Multiply the rate by the number of ranks" belongs to a larger global batch. Here the batch stayed, and only the rate grew.
#
# ### Loss
#
# The measurement: every rank says what it would print. The loss *of the training* is one number. **Predict:** how many different numbers do four ranks have?


# %%
class Averaged(Rated):
    def loss_to_print(self, loss):
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        return loss.item()


predicted_losses = "?"
print("predicted:", predicted_losses)
for script in (Rated, Averaged):
    results = on(4, lambda: script().train(range(1))[0])
    print(f"{script.__name__:8} rank by rank:", *(f"{loss:.3f}" for loss in results))

# %% [markdown]
# Four numbers, of which the screen would have shown rank 0's.
#
# ### Checkpoint
#
# Two measurements. Each rank gets a disk of its own: who writes on it? Then new processes go on from rank 0's file: do they end where an undisturbed run ends?


# %%
class Resumable(Averaged):
    def save(self, path):
        if self.rank == 0:
            parts = {"model": self.model.module, "optimizer": self.optimizer}
            torch.save({name: part.state_dict() for name, part in parts.items()}, path)

    def resume(self, path):
        saved = torch.load(path)
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])


def stop(script, folder):
    run = script()
    run.train(range(1))
    run.save(Path(folder, f"disk of rank {run.rank}"))


def go_on(script, path):
    run = script()
    run.resume(path)
    run.train(range(1, 3))
    return parameters_to_vector(run.model.parameters()).detach()


# %%
undisturbed = on(2, weights_after, Averaged, range(3))[0]
for script in (Averaged, Resumable):
    with TemporaryDirectory() as folder:
        on(2, stop, script, folder)
        files = len(os.listdir(folder))
        resumed = on(2, go_on, script, Path(folder, "disk of rank 0"))[0]
    equal = torch.equal(resumed, undisturbed)
    print(f"{script.__name__:9} ranks that write: {files}, resumed bit for bit: {equal}")

# %% [markdown]
# Both ranks wrote, and neither the optimiser's momentum. Now one writes, and the training goes on as if nothing had happened. (Bit for bit on two
# ranks, where a sum has only one order. On more, expect rounding: DDP's first step after a restart may add up in another order.)
#
# **Check yourself.** On a shared disk both would have written the same file at once. Why might a test on your laptop never notice?
#
# <details><summary>Answer</summary>
# Both write the same bytes. It goes wrong only when one is stopped half-way, or reads while another writes.
# </details>
#
# ## 3 · The proof, and a test of the proof
#
# `Resumable` has no fault that we know of. That is not the same as no fault. The proof compares it with `alone`: a training of the same kind in one process, written anew, without DDP, sampler and loader; only the noise is the same function.


# %%
def alone():
    torch.manual_seed(0)
    model = DigitNet().double()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for epoch in range(3):
        order = torch.randperm(640, generator=torch.Generator().manual_seed(epoch))
        for numbers in order.split(64):
            images = Noisy.augment(None, training.data[numbers], numbers, epoch).double()
            loss = cross_entropy(model(images), training.targets[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    right = (model(testing.data.double()).argmax(dim=1) == testing.targets).sum().item()
    return parameters_to_vector(model.parameters()).detach(), losses, (right, len(testing))


# %% [markdown]
# Everything in float64, where rounding is far below anything that a fault does (chapter 07). **Predict:** on 1, 2, 4 and 8 ranks, how far are weights and losses from those of one process?


# %%
def whole_run(script):
    run = type("Exact", (script,), {"dtype": torch.float64})()
    losses = run.train(range(3))
    return parameters_to_vector(run.model.parameters()).detach(), losses, run.validate()


def compare(results):
    """On the worst rank: largest difference in the weights, in the losses, and what it counted."""
    weights, losses, _ = truth
    off = [(own - weights).abs().max().item() for own, _, _ in results]
    loss_off = [abs(a - b) for _, own, _ in results for a, b in zip(own, losses)]
    return max(off), max(loss_off), results[0][2]


# %%
predicted_distance = {"weights": "?", "losses": "?"}
truth = on(1, alone)[0]
print("predicted:", predicted_distance)
print(f"alone: losses {', '.join(f'{loss:.3f}' for loss in truth[1])}; {truth[2]} right")
for world_size in (1, 2, 4, 8):
    weights, loss, counted = compare(on(world_size, whole_run, Resumable))
    small = weights < 1e-12 and loss < 1e-12
    print(f"{world_size} ranks: weights and losses within 1e-12: {small}; {counted} right")
    assert small
    assert counted == truth[2]

# %% [markdown]
# The same training, on any number of ranks. But would the proof notice a fault? We put each one back, alone, on two ranks, and look. **Predict:** which figure gives away which fault?

# %%
predicted_noticed = {"augment": "?", "rate": "?", "loss_to_print": "?", "hand": "?"}
before = dict.fromkeys(["batches", "augment", "rate", "loss_to_print"], Script) | {"hand": Sampled}
noticed = {"nothing": compare(on(2, whole_run, Resumable))}
for part, origin in before.items():
    faulty = type("Faulty", (Resumable,), {part: getattr(origin, part)})
    noticed[part] = compare(on(2, whole_run, faulty))
print("predicted:", predicted_noticed)

# %%
columns = "largest difference\nin the weights", "largest difference\nin the losses", "right answers"
figure, axes = plt.subplots(figsize=(7.5, 3.2))
for row, (part, (weights, loss, counted)) in enumerate(noticed.items()):
    wrong = weights > 1e-12, loss > 1e-12, counted != truth[2]
    texts = [f"{x:.1g}" if x > 1e-12 else "rounding" for x in (weights, loss)]
    texts.append(f"{counted[0]} of {counted[1]}")
    for column, (text, is_wrong) in enumerate(zip(texts, wrong)):
        color = {"fc": "#D55E00", "hatch": "//"} if is_wrong else {"fc": "#DDEBF7"}
        axes.add_patch(plt.Rectangle((column, row), 0.96, 0.92, ec="white", lw=0, **color))
        box = {"fc": "white", "ec": "none", "pad": 2} if is_wrong else None
        axes.text(column + 0.48, row + 0.46, text, ha="center", va="center", bbox=box)
    assert any(wrong) == (part != "nothing")
axes.set_yticks([row + 0.46 for row in range(len(noticed))], noticed)
axes.set_xticks([0.48, 1.48, 2.48], columns)
axes.set(xlim=(0, 3), ylim=(len(noticed), 0), ylabel="put back")
axes.xaxis.tick_top()
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
show(
    figure,
    "Every fault that is put back shows in one column at least (hatched); without one, none.",
)

# %% [markdown]
# Each fault is seen, and no figure sees them all: the printed loss is wrong with perfect weights, and so is the count. And look at the right answers: with one order for ever, and with equal noise, there are *more* of them, 312. A score that goes up
# proves nothing. A proof that was never tried on a fault may prove nothing either.
#
# **Check yourself.** The checkpoint is missing in this table. Which run would you have to add?
#
# <details><summary>Answer</summary>
# One that stops and goes on, compared with the same <code>truth</code>.
# </details>
#
# ## 4 · Scale it, with the recording
#
# Now 1, 2, 4 and 8 real ranks, recorded. The bytes are those of a ring. **Predict:** which calls does the repaired script make in a step, and how many bytes does a rank send on eight ranks, if its gradients are 1.34 MB?


# %%
def three_steps(script):
    run = script()
    for numbers in islice(run.batches(0), 3):
        dist.barrier()  # marks where a step begins
        run.step(numbers, 0)
    dist.barrier()


def last_step(trace):
    """Of a recording what lies between the last two barriers."""
    events = []
    for rank in range(trace.world_size):
        own = trace.of_rank(rank)
        *_, begin, end = [event.index for event in own if event.kind == "barrier"]
        events += own[begin + 1 : end]
    return replace(trace, events=tuple(events))


def record_step(script, world_size):
    """A recording of the third step: the first two are DDP's rehearsal."""
    return last_step(on(world_size, three_steps, script, trace=True).trace)


def calls(trace):
    return [event.what for event in trace.of_rank(0) if event.kind != "wait"]


# %%
predicted_step = {"calls": "?", "bytes sent on 8 ranks": "?"}
print("predicted:", predicted_step)
for world_size in (1, 2, 4, 8):
    trace = record_step(Resumable, world_size)
    print(f"{world_size} ranks: rank 0 sends {trace.traffic().sent_bytes[0]:9,.0f} bytes")
print("calls:", *calls(trace), sep="\n  ")

# %% [markdown]
# The three `all_reduce` calls are DDP's buckets. But nobody asked for a `broadcast`: it is the mean image, sent again in every step, though it never changes. That is the sixth silent fault, and the last of seven. It makes nothing
# wrong, only slow, and only a recording shows it.


# %%
class Repaired(Resumable):
    def wrap(self, network):
        options = {"bucket_cap_mb": 0.25, "forward_sync_buffers": False}
        return DistributedDataParallel(network, **options)


recorded = {n: record_step(Repaired, n) for n in (8, 16)}
print("calls:", *calls(recorded[8]), sep="\n  ")
weights, loss, counted = compare(on(2, whole_run, Repaired))
print("still equal to one process:", max(weights, loss) < 1e-12 and counted == truth[2])

# %% [markdown]
# Every repair goes through the proof again.
#
# ## 5 · Predict 64 ranks
#
# We say what a step computes: 1 ms forward and 2 ms backward on each rank, whatever their number. Gradients come in proportion to their bytes. Two networks: ordinary Ethernet, and one with a tenth of the latency and ten times the bandwidth.
#
# The recording can be replayed with and without overlap: either a bucket leaves as soon as its gradients are there, or all wait for the end of backward.

# %%
FORWARD_US, BACKWARD_US = 1000, 2000
networks = {"30 µs, 10 Gbit/s": Network(30, 10), "3 µs, 100 Gbit/s": Network(3, 100)}
buckets = [e.bytes for e in recorded[8].of_rank(0) if e.kind == "all_reduce"]


def replayed_us(trace, network, overlap):
    first = min(event.index for event in trace)

    def computing(event):
        """The microseconds that a rank computes before this event."""
        start = FORWARD_US if event.index == first else 0
        share = event.bytes / sum(buckets) if overlap else event.index == first
        return start + BACKWARD_US * share if event.kind == "all_reduce" else 0

    return trace.replay(network, computing)


# %%
trace, ethernet = record_step(Repaired, 4), networks["30 µs, 10 Gbit/s"]
text = "Each bucket leaves while backward computes the next; after the last, all only wait."
plot_timeline(replayed_us(trace, ethernet, True), text)

# %% [markdown]
# For more ranks than we can run, chapter 06's formula stands in: a bucket begins when its gradients are there and the one before it is through, and takes 2(n − 1)(alpha + S / n · beta).
#
# **Predict.** How far is the formula from the replays of 8 and 16 real ranks?


# %%
def formula_us(n, network, overlap, buckets=buckets, work=1):
    """When the last bucket of a step is through; `work` times as much is computed."""
    ready, done = work * (FORWARD_US + (0 if overlap else BACKWARD_US)), 0
    for size in buckets:
        ready += work * BACKWARD_US * size / sum(buckets) if overlap else 0
        turn_us = network.latency_us + size / n * 8 / 1000 / network.gbit_s
        done = max(ready, done) + 2 * (n - 1) * turn_us
    return done


predicted_per_cent = "?"
print("predicted:", predicted_per_cent)
for name, network in networks.items():
    for n, trace in recorded.items():
        for overlap in (True, False):
            real_us = max(replayed_us(trace, network, overlap).finish_us)
            away = abs(formula_us(n, network, overlap) / real_us - 1)
            print(f"{name:18}{n:3} ranks: {real_us:6.0f} µs, formula {away:.4%} away")
            assert away < 1e-6

# %% [markdown]
# Nothing. Mind what this checks: that 8 and 16 real ranks make the calls that the formula assumes, in that order and of that size. Whether your network is one of 30 µs and 10 Gbit/s, only a measurement there can tell (chapter 06).
#
# **Efficiency** is the share of a step in which a rank computes. **Predict** it for 64 ranks, and for 1,024.


# %%
predicted_efficiency = {"64 ranks": "?", "1,024 ranks": "?"}


def efficiency(n, network, overlap):
    return (FORWARD_US + BACKWARD_US) / formula_us(n, network, overlap)


print("predicted:", predicted_efficiency)
print(
    "ranks" + "".join(f"{name:>26}" for name in networks),
    "\n     " + "   without   with overlap" * 2,
)
for n in (8, 16, 64, 256, 1024):
    row = [efficiency(n, net, o) for net in networks.values() for o in (False, True)]
    print(f"{n:5}" + "".join(f"{share:13.0%}" for share in row))

# %%
figure, panels = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
ranks = [2**k for k in range(1, 11)]
for axes, (name, network) in zip(panels, networks.items()):
    for i, overlap in enumerate((True, False)):
        style = rank_style(i)
        line = [100 * efficiency(n, network, overlap) for n in ranks]
        axes.plot(ranks, line, color=style["color"], linestyle=style["linestyle"])
        for n, trace in recorded.items():
            step_us = max(replayed_us(trace, network, overlap).finish_us)
            share = 100 * (FORWARD_US + BACKWARD_US) / step_us
            axes.plot(n, share, style["marker"], color=style["color"], ms=8)
        axes.plot([], [], **style, label="with overlap" if overlap else "without")
    axes.set(xscale="log", title=name, xlabel="ranks", ylim=(0, 104))
    axes.set_xticks([2, 8, 16, 64, 256, 1024], ["2", "8", "16", "64", "256", "1,024"])
    axes.minorticks_off()
    axes.axvline(64, color="#999999", lw=1, zorder=0)
panels[0].set_ylabel("efficiency (%)")
panels[0].legend(title="lines: formula; marks: real ranks")
show(figure, "Overlap helps while backward lasts; past 64 ranks the ring's latency eats the rest.")

# %% [markdown]
# Overlap hides at most what backward lasts. Three buckets pay 126 latencies each on 64 ranks, 11.3 ms on Ethernet, beside 3 ms of computing. A ring's latency grows with the ranks, which is why libraries change to trees and to
# two-level schemes (chapter 06). **Predict:** which of these helps most on 64 ranks and Ethernet?

# %%
predicted_best = "?"
one_bucket = [sum(buckets)]
choices = {
    "as it is": {},
    "one bucket": {"buckets": one_bucket},
    "four times the local batch": {"work": 4},
    "both": {"buckets": one_bucket, "work": 4},
}
print("predicted:", predicted_best)
for name, change in choices.items():
    step_us = formula_us(64, ethernet, True, **change)
    share = change.get("work", 1) * (FORWARD_US + BACKWARD_US) / step_us
    print(f"{name:28}{step_us / 1000:5.1f} ms per step, efficiency {share:.0%}")

# %% [markdown]
# Both together, as one would hope; and nearly all of that is the local batch: 20 % become 63. One bucket saves 252 latencies, 7.6 ms, but has no backward left to hide behind.
#
# A larger local batch is another training: its global batch is four times as large, and only now is the learning rate a question (chapter 07).
#
# **Check yourself.** The script keeps its global batch of 64, so on 64 ranks each computes one digit per step. What is its efficiency then, roughly?
#
# <details><summary>Answer</summary>
# A rank computes 3 ms / 64, and the rest of the step hardly changes: below one per cent. Predictions of efficiency say nothing without saying what stays the same.
# </details>
#
# ## 6 · The report
#
# A report is **data that somebody else can compute again**: figures with names and units, the recording they come from, and the code in between. This one is a dictionary, and its recording is saved beside it.


# %%
def figures(trace, trained):
    """All figures of the report, from the recording of a step and the results of a run."""
    weights, loss, (right, count) = compare(trained)
    return {
        "training": {
            "equal to one process within 1e-12": max(weights, loss) < 1e-12,
            "right answers": f"{right} of {count}",
        },
        f"a step on {trace.world_size} ranks": {
            "calls": calls(trace),
            "sent_bytes_per_rank": round(trace.traffic().sent_bytes[0]),
            "virtual_ms": round(max(replayed_us(trace, ethernet, True).finish_us) / 1000, 2),
        },
        "predicted for 64 ranks": {
            name: f"{efficiency(64, network, True):.0%}" for name, network in networks.items()
        },
    }


# %%
folder = TemporaryDirectory()
recorded[8].save(Path(folder.name, "step.json"))
report = figures(recorded[8], on(2, whole_run, Repaired))
print(json.dumps(report, indent=2, ensure_ascii=False))

# %% [markdown]
# Whoever gets it has the notebook and the recording, and computes all of it again. **Predict** what `audit` says of a report in which somebody has rounded 20 % up.


# %%
def audit(report):
    """Every figure that does not come out again."""
    again = figures(Trace.load(Path(folder.name, "step.json")), on(2, whole_run, Repaired))
    return [
        f"{name}: {part} was said to be {said}, and is {again[part][name]}"
        for part, said_of_part in report.items()
        for name, said in said_of_part.items()
        if again[part][name] != said
    ]


predicted_audit = "?"
print("predicted:", predicted_audit)
print("as written: ", audit(report) or "every figure found again")
flattered = json.loads(json.dumps(report))
flattered["predicted for 64 ranks"]["30 µs, 10 Gbit/s"] = "30%"
print("rounded up: ", *audit(flattered))

# %% [markdown]
# Beside the figures a report has words: what was repaired and which measurement showed it, what the prediction assumes (a flat ring, equal ranks, 3 ms of computing), and what would refute it. In the lab that part is read by
# a person, and the figures by the checker.
#
# ## 7 · Optional: each rank keeps a share of the optimiser
#
# Adam keeps two numbers per weight, and under DDP every rank keeps all of them. **ZeRO-1** (Rajbhandari and others, 2020) gives each rank a share: `reduce_scatter` brings a rank the sum of *its* gradients, its own Adam updates
# *its* weights, and `all_gather` brings the weights to everybody.


# %%
class ShardedAdam:
    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        shares = self.flat(self.parameters).chunk(dist.get_world_size())
        self.own = shares[dist.get_rank()].clone()
        self.adam = torch.optim.Adam([self.own], lr)

    def flat(self, tensors):
        """All in one, with zeros at the end so that the ranks' shares are equal."""
        one = parameters_to_vector(tensors).detach()
        return pad(one, (0, -len(one) % dist.get_world_size()))

    def step(self):
        whole = self.flat([parameter.grad for parameter in self.parameters])
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(self.own.grad, whole / dist.get_world_size())
        self.adam.step()
        dist.all_gather_into_tensor(whole, self.own)  # gradients before, weights now
        vector_to_parameters(whole, self.parameters)


# %% [markdown]
# The other side is DDP with torch's Adam. Three steps on four ranks. **Predict.** How do the weights differ, in float64? The gradients and weights of the network are 1.34 MB each: how many bytes of state has a rank, and how many does it
# send, in float32?


# %%
def adam_steps(kind, dtype=torch.float32):
    torch.manual_seed(0)
    network = DigitNet().to(dtype)
    options = {"bucket_cap_mb": 0.25, "forward_sync_buffers": False}
    model = network if kind is ShardedAdam else DistributedDataParallel(network, **options)
    optimizer = kind(network.parameters(), lr=0.001)
    for batch in torch.arange(192).split(64):
        dist.barrier()
        own = batch[dist.get_rank() :: dist.get_world_size()]
        loss = cross_entropy(model(training.data[own].to(dtype)), training.targets[own])
        network.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()
    adam = optimizer.adam if kind is ShardedAdam else optimizer
    state = [tensor for numbers in adam.state.values() for tensor in numbers.values()]
    weights = parameters_to_vector(network.parameters()).detach()
    return weights, sum(tensor.nbytes for tensor in state)


# %%
predicted_sharded = {"difference": "?", "state_bytes": "?", "sent_bytes": "?"}
print("predicted:", predicted_sharded)
both = [on(4, adam_steps, kind, torch.float64) for kind in (torch.optim.Adam, ShardedAdam)]
away = max((a - b).abs().max().item() for (a, _), (b, _) in zip(*both))
print("largest difference below 1e-12:", away < 1e-12)
for kind in (torch.optim.Adam, ShardedAdam):
    results = on(4, adam_steps, kind, trace=True)
    step = last_step(results.trace)
    print(f"{kind.__name__:12} state {results[0][1]:9,} bytes;", end=" ")
    print(f"sends {step.traffic().sent_bytes[0]:,} bytes in:", *calls(step))

# %% [markdown]
# The state halves with each doubling of the ranks. Beside it, what does not:

# %%
state_bytes = {n: on(n, adam_steps, ShardedAdam)[0][1] for n in (1, 2, 4, 8)}
figure, axes = plt.subplots(figsize=(7, 2.6))
kept = {"weights": 4 * len(both[0][0][0]), "gradients": 4 * len(both[0][0][0])}
for row, own_bytes in enumerate(state_bytes.values()):
    left = 0
    for i, (name, size) in enumerate((kept | {"Adam's state": own_bytes}).items()):
        style = {"color": rank_style(i)["color"], "hatch": ("", "..", "//")[i], "ec": "white"}
        axes.barh(row, size / 1e6, left=left / 1e6, label=name if row == 0 else None, **style)
        left += size
axes.set_yticks(range(4), [f"{n} rank{'s' * (n > 1)}" for n in state_bytes])
axes.set(xlabel="kept by one rank (MB)", ylim=(3.5, -0.5))
axes.legend(loc="lower right", ncols=3, bbox_to_anchor=(1, 1), frameon=False)
axes.spines[["top", "right"]].set_visible(False)
show(figure, "Adam's state is half of all at first, and shrinks with the ranks; the rest stays.")

# %% [markdown]
# The same training to rounding, a quarter of the state on four ranks, and 12 bytes more on the wire: the padding. (`own` and its gradient are a second copy of the share, which a more careful form would avoid.) `reduce_scatter` and `all_gather` are the two halves of a ring's `all_reduce` (chapter 06), only with a step of Adam in between. Sharding the
# gradients and weights as well is what `fully_shard` does, FSDP2.
#
# **Check yourself.** What has this form lost that DDP had?
#
# <details><summary>Answer</summary>
# The overlap: nothing leaves before backward is over. With buckets and hooks as in chapter 05 it could.
# </details>
#
# ## What you can do now
#
# You can start workers, make them talk, and read the report when they hang. You know what DDP does, for you have written one, and what each of its parts earns. You can say what a collective costs on a network that you do not
# have. You find out whether many ranks do the training of one, and you know that a falling loss is no evidence. You can put all of it into a report that others can check.
#
# Now do it once without help: [lab 11](../exercises/11_capstone.ipynb) has another broken script, and asks for a report of your own. After that take a script that is *yours*. Chapter [09](09_many_machines.ipynb) ends with the systems beyond DDP and what each is for. Whichever you
# take, the question stays the one of [the first page](00_start_here.ipynb): what do the ranks really do, and how do you know?
