# %% [markdown]
# # 01 · DataParallel and the GIL
#
# **`model = DataParallel(model)` uses all your GPUs in one line, with threads. Why does everybody train with processes instead?**
#
# This chapter is a detour: nothing later needs it, so you may come back another day. In 40 minutes you will be able to
#
# 1. say what a mutex is, and what Python's own, the GIL, protects and what it does not;
# 2. measure which work two threads speed up, and trust the measurement because it has a control;
# 3. write `DataParallel` in ten lines and predict when its threads gain;
# 4. count what it piles up on one device, and say what changes on GPUs.
#
# **Hardware:** two CPU cores. Two or more GPUs bring one cell to life, in part 7.
# **Before:** [00 · Start here](00_start_here.ipynb). **Next:** [02 · Process groups and ranks](02_process_groups.ipynb).
# **Lab:** [01 · DataParallel and the GIL](../exercises/01_data_parallel_and_the_gil.ipynb).

# %% jupyter={"source_hidden": true}
import copy
import hashlib
import statistics
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from itertools import pairwise

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import parallel
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel

from course_material.recordings import recording
from course_utils import hardware, launch, predict, show
from course_utils.pictures.style import KINDS, rank_style

# %% [markdown]
# ## 1 · A mutex
#
# A **thread** is a second line of execution in the same process, and it sees the same variables. Here two threads count
# together. Each reads the number, waits a moment, as a slow computer would, and writes the number plus one. Each does so 50 times.
# The argument `mutex` will matter soon; `nullcontext()` guards nothing.
#
# **Predict** what the counter says in the end. Put your number in the place of the three dots.

# %%
counted = predict("without a mutex the two threads count to", ...)


# %%
def add(counter, mutex):
    for _ in range(50):
        with mutex:
            value = counter["value"]
            time.sleep(0.0005)
            counter["value"] = value + 1


# %% [markdown]
# `count_together` starts two threads that run `add` on one counter, and waits for both.


# %%
def count_together(mutex):
    counter = {"value": 0}
    threads = [threading.Thread(target=add, args=(counter, mutex)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counter["value"]


# %%
counted.measured(count_together(nullcontext()), within=0.1, about=True)

# %% [markdown]
# Both threads read 7 and both write 8: one addition is **lost**. The cure is a **mutex**, a lock that only one thread can hold at a time. `with mutex:` takes
# it, or waits while another thread has it, and gives it back at the end.

# %%
print("with a mutex:", count_together(threading.Lock()))

# %% [markdown]
# All 100 are there. The price is that while one thread is in the guarded lines, the other stands still. Python guards *itself* in this way.
#
# **Check yourself.** Only one of the two threads takes the mutex. Is the count safe?
#
# <details><summary>Answer</summary>
# No. A mutex guards no variable; it is an agreement between those who take it. The other thread walks past it.
# </details>

# %% [markdown]
# ## 2 · The mutex inside Python
#
# Python's interpreter has one mutex for itself, the **global interpreter lock**, or GIL. A thread must hold it to run Python code. C code that
# does not touch Python objects may let go of it meanwhile.
#
# We race two pieces of work in three ways: one after the other, in two threads, and in two processes. The processes are our **control**: each has its own
# interpreter, and therefore its own GIL.


# %%
def in_turn(works):
    for work in works:
        work()


# %%
def on_one_core(work):
    torch.set_num_threads(1)  # else torch itself would use both cores in each thread
    work()


def in_threads(works):
    threads = [threading.Thread(target=on_one_core, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# %% [markdown]
# Timings are noisy, so `race`, folded below, runs all three variants seven times, one right after the other. Rank 0 does the first two; in the third, both ranks do one work each.


# %% jupyter={"source_hidden": true}
def race(make_works, rounds=7):
    works, rank = make_works(), dist.get_rank()
    in_turn(works)  # warm up
    times = torch.zeros(rounds, 3)
    for round_ in range(rounds):
        for i, way in enumerate([in_turn, in_threads, lambda works: works[rank]()]):
            dist.barrier()
            begun = time.perf_counter()
            if rank == 0 or i == 2:
                way(works)
            times[round_, i] = time.perf_counter() - begun
    return times


# %% [markdown]
# Each round gives a ratio: how many times as fast as in turn? `speed_up` returns the median of the seven ratios and the quartiles around it.


# %% jupyter={"source_hidden": true}
def speed_up(results):
    times_s = torch.stack(list(results)).amax(dim=0)  # the slower rank counts
    ratios = times_s[:, :1] / times_s[:, 1:]
    rows = ratios.quantile(torch.tensor([0.5, 0.25, 0.75]), dim=0).T.tolist()
    return dict(zip(["threads", "processes"], rows))


def print_races(races):
    for name, race in races.items():
        words = [f"{way} about {median:.2f} times as fast" for way, (median, *_) in race.items()]
        print(f"{name:>11}:", *words, sep="  ")


# %% [markdown]
# There are three kinds of work: a loop in pure Python; a checksum of a large block of bytes, which is C; and matrix products, which are C++.
#
# **Predict** how many times as fast two threads are in pure Python.

# %%
gain = predict("pure Python in two threads, times as fast as in turn", ...)


# %%
def add_up():
    total = 0
    for number in range(1_000_000):
        total += number


def multiply():
    matrix = torch.ones(512, 512)
    for _ in range(20):
        matrix @ matrix


# %% [markdown]
# The checksum runs over 30 MB. `speed_up` tells how each race went.

# %% tags=["row-B2"]
block = bytes(30_000_000)
works = {"pure Python": add_up, "checksum": lambda: hashlib.sha256(block).digest()}
works["matrices"] = multiply
races = {
    name: speed_up(launch(race, lambda work=work: [work, work], backend="gloo"))
    for name, work in works.items()
}
print_races(races)
gain.measured(races["pure Python"]["threads"][0], within=0.1, about=True)


# %% jupyter={"source_hidden": true}
def draw_races(races, text, xlabel=None):
    """Draw threads beside processes for every race: medians, with their quartiles."""
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for i, (way, hatch) in enumerate([("threads", "////"), ("processes", "")]):
        median, low, high = torch.tensor([race[way] for race in races.values()]).T
        places = torch.arange(len(races)) + 0.4 * i - 0.2
        style = {"color": rank_style(i)["color"], "edgecolor": "white", "hatch": hatch}
        bars = axes.bar(places, median, 0.36, label=f"two {way}", **style)
        axes.vlines(places + 0.13, low, high, color="black", linewidth=1)
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        labels = [f"{value:.2f}" for value in median]
        axes.bar_label(bars, labels=labels, padding=7, fontsize=9, bbox=box)
    axes.axhline(1, color="#555555", linewidth=1, linestyle="--")
    axes.set(ylim=(0, 2.6), ylabel="times as fast as in turn", xlabel=xlabel)
    axes.set_xticks(range(len(races)), races)
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, text)


# %%
draw_races(races, "Below the dashed line threads lose. Thin lines: from quartile to quartile.")

# %% [markdown]
# The processes came close to 2, so this machine had two free cores while we measured. On a busy one they do not, and then the threads' bars say nothing either.
#
# With two free cores, two threads of pure Python gain nothing. As a rule they even **lose** some percent, because they pass the interpreter to and fro. Inside C and C++ the
# same two threads do gain, if not as much as processes. So "Python threads never run in parallel" is half the truth. They do, **while they are out of Python**.
#
# **Check yourself.** Why did the GIL not protect the counter of part 1?
#
# <details><summary>Answer</summary>
# The GIL protects the interpreter from being torn between two threads. Between reading and writing your variable
# a thread may lose it, and in <code>sleep</code> it gives it away.
# </details>

# %% [markdown]
# ## 3 · Who runs when
#
# A thread in pure Python never offers the GIL. Another thread waits for the **switch interval**, 5 ms by default, and then asks for it. To make that visible, each thread notes
# the time after every 1,000 rounds of a loop. While it stands still, there are no notes. We count a switch whenever consecutive notes come from different threads.
#
# **Predict** how many switches there are while two threads run side by side for 60 ms.

# %%
switched = predict("switches in 60 ms, at 5 ms", ...)


# %%
def take_notes(notes):
    notes.append(time.perf_counter())
    while notes[-1] < notes[0] + 0.06:
        for _ in range(1000):
            pass
        notes.append(time.perf_counter())


# %% jupyter={"source_hidden": true}
def notes_of_threads(interval_s):
    sys.setswitchinterval(interval_s)
    notes = [], []
    in_threads([partial(take_notes, own) for own in notes])
    return notes


def notes_of_a_process():
    dist.barrier()
    take_notes([])  # until the system has given each process a core
    take_notes(notes := [])
    return notes


# %% jupyter={"source_hidden": true}
def switches(notes):
    merged = sorted((moment, i) for i, own in enumerate(notes) for moment in own)
    return sum(before[1] != after[1] for before, after in pairwise(merged))


def draw_notes(panels, text):
    """Draw a tick for every note, one panel per experiment, one row per thread or process."""
    figure, grid = plt.subplots(len(panels), figsize=(8, 4.2), sharex=True, layout="constrained")
    for axes, (title, (rows, names)) in zip(grid, panels.items()):
        start = min(rows[0][0], rows[1][0])
        for i, notes in enumerate(rows):
            x = [1000 * (moment - start) for moment in notes]
            axes.plot(x, [i] * len(x), "|", color=rank_style(i)["color"], markersize=13)
        axes.set(ylim=(1.6, -0.6), xlim=(-0.5, 75))
        axes.set_yticks([0, 1], names)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right", "left"]].set_visible(False)
    grid[-1].set_xlabel("time since the first note (ms, real time)")
    show(figure, text)


# %%
panels, seen = {}, {}
for ms in (5, 1):
    notes = launch(notes_of_threads, ms / 1000, world_size=1, backend="gloo")[0]
    seen[ms] = switches(notes)
    title = f"switch interval {ms} ms: {seen[ms]} switches, {sum(map(len, notes)):,} notes"
    panels[title] = notes, ["thread 0", "thread 1"]
notes = launch(notes_of_a_process, backend="gloo")
panels[f"processes: {sum(map(len, notes)):,} notes"] = notes, ["process 0", "process 1"]
switched.measured(seen[5], within=0.25, about=True)
draw_notes(panels, "Threads take turns and leave gaps; on two free cores processes leave none.")

# %% [markdown]
# One row is coloured where the other is blank: one interpreter, dealt out in slices of 5 ms. With 1 ms there are several times as many slices. The two processes ran all the time.
#
# The notes count the work that was done. A shorter interval hardly changes their number; a second interpreter nearly doubles it. The interval does matter to a thread that leaves
# Python **often**: each time it comes back, it must wait until the busy one gives way.

# %% [markdown]
# ## 4 · DataParallel in ten lines
#
# `DataParallel` has four steps: **replicate** the model on every device, **scatter** the batch, **apply** each replica to its shard in a thread, and
# **gather** the outputs on one device. Here they are, with the CPU standing in for all devices.


# %%
def mlp(width, depth=8):
    layers = [[nn.Linear(width, width), nn.ReLU()] for _ in range(depth)]
    return nn.Sequential(*[layer for pair in layers for layer in pair])


# %%
def data_parallel(model, batch, devices=2):
    replicas = [copy.deepcopy(model) for _ in range(devices)]  # replicate
    shards, outputs = batch.chunk(devices), [None] * devices  # scatter

    def apply(i):
        outputs[i] = replicas[i](shards[i])

    in_threads([partial(apply, i) for i in range(devices)])  # apply
    return torch.cat(outputs), replicas  # gather


# %% [markdown]
# Is it the same model? Compare the output, and the gradient: in backward the real one adds up the gradients of all replicas on the first device. Everything here runs
# in workers; part 8 explains why.


# %% tags=["row-B1"] jupyter={"source_hidden": true}
def compare():
    torch.manual_seed(0)
    model, batch = mlp(32), torch.randn(64, 32)
    output, replicas = data_parallel(model, batch)
    output.square().mean().backward()
    added = [sum(p.grad for p in each) for each in zip(*[r.parameters() for r in replicas])]
    plain = model(batch)
    plain.square().mean().backward()
    pairs = [(plain, output), *zip([p.grad for p in model.parameters()], added)]
    print("output and gradients are the plain model's:", all(torch.allclose(*p) for p in pairs))
    print("torch's own, without GPUs, uses the devices", DataParallel(model).device_ids)


results = launch(compare, world_size=1, backend="gloo")

# %% [markdown]
# They are equal, up to rounding. The last line says that without GPUs the real `DataParallel` uses no device at all: it calls your module and starts no
# thread. So we measure the threads of ours.
#
# **Predict.** The network has eight layers; two replicas get 64 samples each; forward only. At which width, of 8, 32, 128 and 512, do threads begin to gain 20 % or more?

# %%
first_gain = predict("the first width at which threads gain is", ..., choices=(8, 32, 128, 512))


# %%
def forwards(width, steps):
    replicas, shards = [mlp(width), mlp(width)], torch.randn(128, width).chunk(2)

    def forward(i):
        for _ in range(steps):
            replicas[i](shards[i])

    return [partial(forward, i) for i in range(2)]


# %% [markdown]
# The step counts only make each run long enough.

# %% tags=["row-B1"]
steps = {8: 200, 32: 200, 128: 100, 512: 20}
by_width = {
    width: speed_up(launch(race, partial(forwards, width, count), backend="gloo"))
    for width, count in steps.items()
}
print_races(by_width)
gains = [width for width, race in by_width.items() if race["threads"][0] >= 1.2]
first_gain.measured(gains[0] if gains else 0, about=True)  # 0: at none of them

# %%
draw_races(by_width, "Threads reach what processes do only in wide layers.", "layer width")

# %% [markdown]
# In narrow layers two threads are slower than one. A narrow layer computes for a few µs, and the rest of its time is Python that finds the next layer. A wide one spends its time in
# C++, where nobody needs the GIL. Where exactly the gain begins, and which width does worst, differs from machine to machine. A likely reason for the loss (we don't measure it) stands in part 3: a thread that
# leaves Python for a moment in every layer has to win the GIL back each time.

# %% [markdown]
# ## 5 · Why backward is different
#
# Forward is a Python loop over layers. `backward()` is **one** call: autograd walks back through the recorded operations in C++. We race two threads that each call
# `backward()` on a network of their own. `DataParallel` itself calls it once for all replicas, and on GPUs autograd brings a C++ thread for each device.
#
# **Predict** what backward gains in two threads at width 32.

# %%
backward_gain = predict("backward in two threads, times as fast as in turn", ...)


# %%
def backwards(width, steps):
    losses = [mlp(width)(torch.randn(64, width)).sum() for _ in range(2)]

    def backward(loss):
        for _ in range(steps):
            loss.backward(retain_graph=True)

    return [partial(backward, loss) for loss in losses]


# %%
at_32 = {"forward": by_width[32]}
at_32["backward"] = speed_up(launch(race, partial(backwards, 32, 150), backend="gloo"))
backward_gain.measured(at_32["backward"]["threads"][0], within=0.15, about=True)
draw_races(at_32, "Width 32: forward comes back to Python in every layer, backward once.")

# %% [markdown]
# The same small layers, and now the threads gain. So "DataParallel is slow because of the GIL" is too short: the GIL costs the forward pass of small operations. The rest of
# its slowness has other causes, next.

# %% [markdown]
# ## 6 · One device carries more
#
# Gather brings all outputs to the first device, and a loss computed there is computed for the whole batch. We count, for four devices and 10,000
# classes, the bytes of the logits, of the loss, and of what the loss keeps for backward. That is not all of a device's memory: parameters and activations come on top, the same
# everywhere, and gradients and the optimiser's state, which only device 0 keeps. On the CPU the devices are entries of a list; the tensors are real.


# %% jupyter={"source_hidden": true}
def note(held, device, tensor):
    held[device][tensor.data_ptr()] = tensor.nbytes  # each tensor once
    return tensor


def loss_on(held, device, logits):
    labels = torch.zeros(len(logits), dtype=torch.long)
    keep = partial(note, held, device)  # called with all that backward will need
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        return note(held, device, cross_entropy(logits, labels).view(1))


# %% [markdown]
# **Predict** how many times as many of these bytes device 0 has as device 3.

# %%
times_more = predict("bytes on device 0, as a multiple of device 3's", ...)


# %% jupyter={"source_hidden": true}
def bytes_by_device(loss_in_replica, samples=64, classes=10_000):
    held, head = [{} for _ in range(4)], nn.Linear(16, classes)
    logits = [note(held, i, head(torch.randn(samples, 16))) for i in range(4)]
    if loss_in_replica:
        losses = [loss_on(held, i, own) for i, own in enumerate(logits)]
        gathered = note(held, 0, torch.cat(losses))
        gathered.mean().backward()
    else:
        gathered = note(held, 0, torch.cat(logits))
        loss_on(held, 0, gathered).backward()
    return [sum(own.values()) for own in held], gathered.nbytes


# %% tags=["row-D1"]
held_bytes = {}
for name, loss_in_replica in [("gather logits", False), ("gather losses", True)]:
    counted = launch(bytes_by_device, loss_in_replica, world_size=1, backend="gloo")[0]
    held_bytes[name], gathered_bytes = counted
    first, *_, last = held_bytes[name]
    print(f"{name}: {gathered_bytes:,} bytes gathered on device 0")
    print(f"  in all {first:,} there, {last:,} on device 3, x{first / last:.1f}")
first, *_, last = held_bytes["gather logits"]
times_more.measured(first / last, within=0.05)

# %% [markdown]
# With logits, device 0 gets its own 2.6 MB, all 10.2 MB gathered, and 10.2 MB that the loss keeps. If instead each replica computes the loss of its own
# shard, four numbers are gathered.

# %% jupyter={"source_hidden": true}
figure, panels = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for axes, (name, held) in zip(panels, held_bytes.items()):
    colors = [rank_style(device)["color"] for device in range(4)]
    bars = axes.bar([f"device {i}" for i in range(4)], [n / 1e6 for n in held], color=colors)
    axes.bar_label(bars, fmt="%.1f", padding=2)
    axes.set_title(name, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set(ylabel="outputs and loss (MB)", ylim=(0, 27))
show(figure, "Gathered logits pile up on device 0; gathered losses leave all devices alike.")

# %% [markdown]
# Now outputs and loss are the same on all devices. DDP works like that: each rank has its own loss, and nothing is gathered.
#
# `DataParallel` still leaves device 0 with more. It makes its replicas anew in every step and adds up their gradients on device 0, because the optimiser steps the one module that lives there. So the `.grad` of every parameter and the
# optimiser's state are on device 0 alone. With Adam, which keeps two numbers for each parameter, that is three times the size of the parameters.
#
# **Check yourself.** Which further bytes pass through device 0 in every step of `DataParallel`?
#
# <details><summary>Answer</summary>
# The batch, when it is scattered; the parameters, sent to every replica anew; and in backward the gradients of all replicas, to be added up.
# </details>

# %% [markdown]
# ## 7 · On GPUs, threads feed devices
#
# A GPU does its work by itself. What Python does for it is to **launch** one kernel after the other, and a launch need not wait until its kernel is done. So a thread that feeds a
# GPU goes from one short operation to the next, as in the narrow layers of part 4. How much a single GPU can suffer from that shows in a recording of real training: ResNet-50 in DDP on two A100, one process per GPU
# (from Meta's *Holistic Trace Analysis*, see [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb)).

# %% jupyter={"source_hidden": true}
rows = [row for row in recording("resnet50_2xA100") if 60_000 <= row.start_us < 80_000]
lanes = {"launch": "host launches", "compute": "GPU computes"}
figure, axes = plt.subplots(figsize=(8, 1.8))
for i, (kind, color) in enumerate(zip(lanes, ["#555555", KINDS["compute"].fill])):
    spans = [(row.start_us / 1000, row.us / 1000) for row in rows if row.kind == kind]
    axes.broken_barh(spans, (i - 0.35, 0.7), color=color)
    print(f"{lanes[kind]} {len(spans)} times, {sum(took for _, took in spans):.1f} of 20 ms")
launched_us = {row.launch: row.start_us for row in rows if row.kind == "launch"}
kernels = [row for row in rows if row.kind == "compute"]
lags_us = [kernel.start_us - launched_us[kernel.launch] for kernel in kernels]
print(f"a kernel starts {statistics.median(lags_us):.0f} µs (median) after its launch began")
too_late = [launched_us[after.launch] > before.end_us for before, after in pairwise(kernels)]
print(f"{sum(too_late)} of {len(too_late)} launches began when the kernel before was done")
axes.set_yticks(range(2), lanes.values())
axes.set(xlabel="time since the first step began (ms)", ylim=(1.6, -0.6))
axes.spines[["top", "right", "left"]].set_visible(False)
show(figure, "20 ms of training: the GPU is mostly idle, waiting for the next launch.")

# %% [markdown]
# Here one interpreter feeds one GPU, and the GPU is idle most of the time. It isn't slow, it waits: most launches began when the kernel before was done already. (The profiler, which made the recording, slows the host down as well; chapter 14 asks by how much.)
# In `DataParallel` one interpreter feeds all of them.
#
# With two GPUs or more, the next cell takes the real `DataParallel` apart into its phases, and races it against DDP with the same samples per GPU.


# %% jupyter={"source_hidden": true}
def timed_ms(call, gpus):
    begun = time.perf_counter()
    result = call()
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    return result, 1000 * (time.perf_counter() - begun)


def phases_ms(model, batch, gpus):
    ms = {}
    replicas, ms["replicate"] = timed_ms(lambda: parallel.replicate(model, gpus), gpus)
    shards, ms["scatter"] = timed_ms(lambda: parallel.scatter(batch, gpus), gpus)
    apply = partial(parallel.parallel_apply, replicas, shards, devices=gpus)
    outputs, ms["apply"] = timed_ms(apply, gpus)
    output, ms["gather"] = timed_ms(lambda: parallel.gather(outputs, 0), gpus)
    ms["backward"] = timed_ms(output.square().mean().backward, gpus)[1]
    return ms


# %% jupyter={"source_hidden": true}
def step_ms_and_peak_mb(model, batch, gpus, steps=20):
    def step():
        model.zero_grad()
        model(batch).square().mean().backward()

    timed_ms(step, gpus)  # warm up
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    step_ms = statistics.median(timed_ms(step, gpus)[1] for _ in range(steps))
    return step_ms, [round(torch.cuda.max_memory_allocated(gpu) / 1e6) for gpu in gpus]


# %% jupyter={"source_hidden": true}
def with_data_parallel(samples=256, width=1024):
    gpus = list(range(torch.cuda.device_count()))
    model = mlp(width).cuda()
    batch = torch.randn(samples * len(gpus), width, device="cuda")
    assert torch.allclose(DataParallel(model)(batch), model(batch), atol=1e-4)
    result = step_ms_and_peak_mb(DataParallel(model), batch, gpus)
    return *result, phases_ms(model, batch, gpus)


def with_ddp(samples=256, width=1024):
    gpu = torch.cuda.current_device()
    model = DistributedDataParallel(mlp(width).cuda(), device_ids=[gpu])
    batch = torch.randn(samples, width, device="cuda")
    return step_ms_and_peak_mb(model, batch, [gpu])


# %% tags=["nbval-ignore-output", "row-B1", "row-D1"] jupyter={"source_hidden": true}
gpus = len(hardware().gpus)
if gpus < 2:
    print(f"{gpus or 'no'} GPU here. DataParallel would call your module as it is: no replica,")
    print("no thread, no gather. So there is nothing to race here.")
else:
    step_ms, peak_mb, phases = launch(with_data_parallel, world_size=1)[0]
    print(f"DataParallel: {step_ms:.2f} ms per step, peak MB by GPU: {peak_mb}")
    print("  phases, ms:", {name: round(ms, 2) for name, ms in phases.items()})
    ranks = launch(with_ddp, world_size=gpus)
    peaks_mb = [peak for _, [peak] in ranks]
    print(f"DDP: {max(ms for ms, _ in ranks):.2f} ms per step, peak MB by GPU: {peaks_mb}")

# %% [markdown]
# ## 8 · Threads and forks
#
# So we need processes. But a process that has threads must not be copied carelessly: **a fork copies one thread only**. Here a thread of the notebook holds
# a mutex while `launch` forks a worker, which runs `add` of part 1 with it. This cell is meant to fail: think for a moment where the worker stands when its time is up.


# %% tags=["raises-exception"]
def hold(mutex, taken, done):
    with mutex:
        taken.set()
        done.wait()


mutex, taken, done = threading.Lock(), threading.Event(), threading.Event()
holder = threading.Thread(target=hold, args=(mutex, taken, done))
holder.start()
taken.wait()
try:
    launch(add, {"value": 0}, mutex, world_size=1, backend="gloo", timeout=4)
finally:
    done.set()
    holder.join()

# %% [markdown]
# Read the report: *rank 0: waiting for a lock*, at the line `with mutex:`. The worker stands before its copy of a locked mutex, and the thread that would
# unlock it was not copied. The last sentence names the cause: a lock that the notebook held at launch stays locked in its copies.
#
# Library code has mutexes and threads too, and you do not see them. Hence the rule of this chapter: threads start inside a worker, and end there. Now
# the notebook's thread has gone:

# %% tags=["row-B2"]
counts = launch(count_together, mutex, world_size=1, backend="gloo")
print("the worker counts to", counts[0])

# %% [markdown]
# **Check yourself.** May a DDP rank start threads?
#
# <details><summary>Answer</summary>
# Yes, after the fork: gloo does, and so does autograd. It may even fork again, as a <code>DataLoader</code> with workers does; what the copies must not need
# is a lock that a thread of the rank held at that moment.
# </details>
#
# ## 9 · Python without the GIL
#
# Since 3.13 Python comes in a second build, **free-threaded**, in which threads run Python code at the same time
# ([PEP 703](https://peps.python.org/pep-0703/)). Which one is yours?

# %%
is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)  # before 3.13 it always is
print("this Python has its GIL:", is_gil_enabled())

# %% [markdown]
# If it says `True`, everything above was measured with a GIL; we have measured nothing without one. A free-threaded build may say `True` as well: it switches the GIL on again when it imports a compiled module
# that is not declared ready.
#
# It can cure the narrow end of part 4. It cannot cure the rest: parameters sent out in every step, gathering on one device, and one process that fits
# on one machine only.
#
# ## What you know now

# %%
predict()

# %% [markdown]
# Two of these are easily got wrong. Two threads of pure Python are no faster than doing the work in turn, and as a rule slower. And backward gains where forward does not, although it
# runs through the same small layers.
#
# A mutex makes others wait. The GIL is one for all Python code of a process, and C code may let go of it: threads gain in wide layers and
# in backward, not in narrow forward passes. `DataParallel` is four steps, of which one runs in threads and all lean on one device. So training takes **one process per device**.
#
# Who are these processes, and how do they find each other? [02 · Process groups and ranks](02_process_groups.ipynb).
