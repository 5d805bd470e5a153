# %% [markdown]
# # 01 · DataParallel and the GIL
#
# **`model = DataParallel(model)` uses all your GPUs in one line, with threads. Why does everybody train with processes instead?**
#
# In 60 minutes you will be able to
#
# 1. say what a mutex is, and what Python's own, the GIL, protects and what it does not;
# 2. measure which work two threads speed up, and trust the measurement because it has a control;
# 3. write `DataParallel` in ten lines and predict when its threads gain;
# 4. count what it piles up on one device, and say what changes on two GPUs.
#
# **Hardware:** two CPU cores. Two or more GPUs bring one cell to life, in part 7.
# **Before:** [00 · Start here](00_start_here.ipynb). **Next:** [02 · Process groups and ranks](02_process_groups.ipynb).
# **Lab:** [01 · DataParallel and the GIL](../exercises/01_data_parallel_and_the_gil.ipynb).

# %%
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

from course_utils import hardware, launch, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · A mutex
#
# A **thread** is a second line of execution in the same process: it sees the same variables. Two threads count
# together. Each reads the number, waits a moment, as for a slow computer, and writes the number plus one. The argument `mutex`
# comes into play soon; `nullcontext()` guards nothing.
#
# **Predict.** Each thread adds one, 50 times. What does the counter say in the end?

# %%
predicted_count = "?"


def add(counter, mutex):
    for _ in range(50):
        with mutex:
            value = counter["value"]
            time.sleep(0.0005)
            counter["value"] = value + 1


def count_together(mutex):
    counter = {"value": 0}
    threads = [threading.Thread(target=add, args=(counter, mutex)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counter["value"]


# %%
count = count_together(nullcontext())
print("predicted:", predicted_count)
print("measured: all 100 are there:", count == 100)
print("measured: some were lost:   ", 50 <= count < 100)

# %% [markdown]
# Both threads read 7, both write 8: one addition is **lost**. The cure is a **mutex**, a lock that one thread at a time can hold. `with mutex:` takes
# it, or waits while another thread has it, and gives it back at the end.

# %%
print("with a mutex:", count_together(threading.Lock()))

# %% [markdown]
# All 100. The price: of two threads in the guarded lines, one stands still. Keep both halves of that sentence in mind,
# for Python guards *itself* in this way.
#
# **Check yourself.** Only one of the two threads takes the mutex. Is the count safe?
#
# <details><summary>Answer</summary>
# No. A mutex guards no variable; it is an agreement between those who take it. The other thread walks past it.
# </details>

# %% [markdown]
# ## 2 · The mutex inside Python
#
# Python's interpreter has one mutex for itself, the **global interpreter lock**, GIL. A thread must hold it to run Python code. C code that
# does not touch Python objects may let go of it meanwhile.
#
# We race two pieces of work three ways: one after the other, in two threads, in two processes. The processes are our **control**: each has an
# interpreter, and a GIL, of its own.


# %%
def in_turn(works):
    for work in works:
        work()


def on_one_core(work):
    torch.set_num_threads(1)  # counts only for the thread that says it
    work()


def in_threads(works):
    threads = [threading.Thread(target=on_one_core, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# %% [markdown]
# Times lie on a busy machine. So each of seven turns runs all three ways, one right after the other, and the best time of each way counts. Rank 0
# does the first two; in the third, both ranks do one work each.


# %%
def race(make_works, turns=7):
    works, rank = make_works(), dist.get_rank()
    in_turn(works)  # warm up
    times = torch.zeros(turns, 3)
    for turn in range(turns):
        for i, way in enumerate([in_turn, in_threads, lambda works: works[rank]()]):
            dist.barrier()
            begun = time.perf_counter()
            if rank == 0 or i == 2:
                way(works)
            times[turn, i] = time.perf_counter() - begun
    return times


# %% [markdown]
# `speed_up` compares the best times, and says between which speed-ups the middle three of the seven turns lay. The processes must be nearly twice as fast, and
# steadily so. If not, the control has failed, and we conclude nothing about threads.


# %%
def speed_up(results):
    times_s = torch.stack(list(results)).amax(dim=0)  # the slower rank counts
    best_s = times_s.amin(dim=0)
    turns = (times_s[:, :1] / times_s[:, 1:]).sort(dim=0).values
    rows = torch.stack([best_s[0] / best_s[1:], turns[2], turns[-3]]).T.tolist()
    return dict(zip(["threads", "processes"], rows))


def control_held(race):
    best, low, _ = race["processes"]
    return 1.7 <= best <= 2.2 and low >= 1.5


# %%
def verdict(race):
    gain = race["threads"][0]
    if not control_held(race):
        return "this machine is too busy to tell"
    return "threads gain nothing" if gain <= 1.15 else f"threads gain x{gain:.1f}"


def print_races(races):
    for name, race in races.items():
        words = [f"{way} x{b:.2f} ({lo:.2f}–{hi:.2f})" for way, (b, lo, hi) in race.items()]
        print(f"{name:>11}:", *words, verdict(race), sep="  ")


# %% [markdown]
# Three kinds of work: a loop in pure Python; a checksum of a large block of bytes, which is C; matrix products, which are C++.
#
# **Predict.** For which of them are two threads about twice as fast as one after the other?

# %%
predicted_gain = {"pure Python": "?", "checksum": "?", "matrices": "?"}
block = bytes(30_000_000)


def add_up():
    total = 0
    for number in range(1_000_000):
        total += number


def multiply():
    matrix = torch.ones(512, 512)
    for _ in range(20):
        matrix @ matrix


# %% tags=["nbval-ignore-output", "row-B2"]
works = {"pure Python": add_up, "checksum": lambda: hashlib.sha256(block).digest()}
works["matrices"] = multiply
races = {
    name: speed_up(launch(race, lambda work=work: [work, work], backend="gloo"))
    for name, work in works.items()
}
print("predicted:", predicted_gain)
print_races(races)
if all(map(control_held, races.values())):
    python, *compiled = [race["threads"][0] for race in races.values()]
    assert python < min(compiled)

# %% [markdown]
# Now as a picture, drawn by a helper that is folded away. A question mark will say that the control failed.


# %% jupyter={"source_hidden": true}
def draw_races(races, text, xlabel=None):
    """Draw threads beside processes for every race, with the spread over the turns."""
    figure, axes = plt.subplots(figsize=(8, 3.2))
    for i, (way, hatch) in enumerate([("threads", "////"), ("processes", "")]):
        best, low, high = torch.tensor([race[way] for race in races.values()]).T
        places = torch.arange(len(races)) + 0.4 * i - 0.2
        style = {"color": rank_style(i)["color"], "edgecolor": "white", "hatch": hatch}
        bars = axes.bar(places, best, 0.36, label=f"two {way}", **style)
        axes.vlines(places + 0.11, low, high, color="black", linewidth=1)
        axes.bar_label(bars, fmt="%.2f", padding=3, fontsize=9)
    axes.axhline(1, color="#555555", linewidth=1, linestyle="--")
    axes.set(ylim=(0, 2.6), ylabel="times as fast as in turn", xlabel=xlabel)
    marks = ["" if control_held(race) else "  ?" for race in races.values()]
    axes.set_xticks(range(len(races)), [f"{n}{mark}" for n, mark in zip(races, marks)])
    axes.legend(ncols=2, loc="lower left", bbox_to_anchor=(0, 1), frameon=False)
    title = "?  this machine is too busy to tell" if any(marks) else ""
    axes.set_title(title, loc="right", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, text)


# %%
text = "A bar at the dashed line gained nothing; the thin line spans the middle turns."
draw_races(races, text)

# %% [markdown]
# On two idle cores two threads of pure Python came to x1.0: they share one interpreter. Inside C the same threads came
# to x1.9, nearly as fast as processes, and inside C++ to x1.6. So "Python threads never run in parallel" is half the truth: they do, **while they are
# out of Python**.
#
# **Check yourself.** Does the GIL not protect the counter of part 1?
#
# <details><summary>Answer</summary>
# It did not. The GIL protects the interpreter from being torn between two threads. Between your reading and your writing
# a thread may lose it, and in <code>sleep</code> it gives it away.
# </details>

# %% [markdown]
# ## 3 · Who runs when
#
# A thread in pure Python never offers the GIL. Another one waits for the **switch interval**, by default 5 ms, and then asks for it. To see that, each thread notes
# the time after every 1,000 rounds of a loop. The notes stop while it stands still.
#
# **Predict.** Two threads run side by side for 60 ms. How often do they change places?

# %%
predicted_switches = {"every 5 ms": "?", "every 1 ms": "?"}


def take_notes(notes):
    notes.append(time.perf_counter())
    while notes[-1] < notes[0] + 0.06:
        for _ in range(1000):
            pass
        notes.append(time.perf_counter())


# %%
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


# %% [markdown]
# All processes of a machine read the same clock, so their notes fit on one axis too. To change places means here: in the order of time, a note of one thread
# follows a note of the other.


# %% jupyter={"source_hidden": true}
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
def switches(notes):
    merged = sorted((moment, i) for i, own in enumerate(notes) for moment in own)
    return sum(before[1] != after[1] for before, after in pairwise(merged))


panels = {}
for ms in (5, 1):
    notes = launch(notes_of_threads, ms / 1000, world_size=1, backend="gloo")[0]
    title = f"switch interval {ms} ms: {switches(notes)} switches, {sum(map(len, notes)):,} notes"
    panels[title] = notes, ["thread 0", "thread 1"]
notes = launch(notes_of_a_process, backend="gloo")
panels[f"processes: {sum(map(len, notes)):,} notes"] = notes, ["process 0", "process 1"]
print("predicted:", predicted_switches)
draw_notes(panels, "Threads take turns and leave gaps; on two free cores processes leave none.")

# %% [markdown]
# One row is coloured where the other is blank: one interpreter, dealt out in slices. With 5 ms there were about 11 switches in 60 ms, with
# 1 ms several times as many. The two processes ran all the time.
#
# The notes count the work done: a shorter interval changed their number little, a second interpreter nearly doubled it. But the interval matters to a thread that leaves Python **often**: each time it comes back it
# must wait until the busy one gives way.
#
# **Predict.** Ten checksums beside a busy thread: how long do they wait in all, at 5 ms and at 1 ms?


# %%
def intervals_waited(call, turns=5):
    def seconds():
        begun = time.perf_counter()
        call()
        return time.perf_counter() - begun

    def be_busy():
        while not done.is_set():
            pass

    done, alone_s = threading.Event(), min(seconds() for _ in range(turns))
    busy = threading.Thread(target=be_busy)
    busy.start()
    beside_s = statistics.median(seconds() for _ in range(turns))
    done.set()
    busy.join()
    return (beside_s - alone_s) / sys.getswitchinterval()


# %%
def ten_checksums():
    for _ in range(10):
        hashlib.sha256(part).digest()


def wait_for_checksums(interval_ms):
    sys.setswitchinterval(interval_ms / 1000)
    return intervals_waited(ten_checksums)


predicted_wait_ms = {5: "?", 1: "?"}
part = block[:4_000_000]

print("predicted, ms:", predicted_wait_ms)
for interval_ms in (5, 1):
    waited = launch(wait_for_checksums, interval_ms, world_size=1, backend="gloo")[0]
    print(f"at {interval_ms} ms: waited for more than 5 intervals:", waited > 5)

# %% [markdown]
# Ten returns to Python, ten waits of one interval each: about 50 ms, against 10 ms. A waiting thread cannot say that it only needs a moment.
#
# `intervals_waited` is worth keeping. It counts **how often a call has to ask for the GIL**, and you will soon hold it to a network.
#
# **Check yourself.** Would you set the interval to 1 µs?
#
# <details><summary>Answer</summary>
# A switch costs time itself. Race the notes once more with <code>notes_of_threads(1e-6)</code> and compare how many there are.
# </details>

# %% [markdown]
# ## 4 · DataParallel in ten lines
#
# `DataParallel` has four steps: **replicate** the model on every device, **scatter** the batch, **apply** each replica to its part in a thread,
# **gather** the outputs on one device. Here they are, with the CPU in the place of all devices.


# %%
def mlp(width, depth=8):
    layers = [[nn.Linear(width, width), nn.ReLU()] for _ in range(depth)]
    return nn.Sequential(*[layer for pair in layers for layer in pair])


def data_parallel(model, batch, devices=2):
    replicas = [copy.deepcopy(model) for _ in range(devices)]  # replicate
    shards, outputs = batch.chunk(devices), [None] * devices  # scatter

    def apply(i):
        outputs[i] = replicas[i](shards[i])

    in_threads([partial(apply, i) for i in range(devices)])  # apply
    return torch.cat(outputs), replicas  # gather


# %% [markdown]
# Is it the same model? Compare the output, and the gradient: in backward the real one adds up the gradients of all replicas on the first device. All
# computing of this chapter happens in workers, by a rule that part 8 explains.


# %% tags=["row-B1"]
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
# Equal, up to rounding. The last line: without GPUs the real `DataParallel` uses no device at all; it calls your module and starts no
# thread. So for its threads we measure ours.
#
# **Predict.** Eight layers, two replicas, 64 samples each, forward only, one thread per replica. For which widths does `apply` in threads gain?

# %%
predicted_first_width_that_gains = "?"


def forwards(width, steps):
    replicas, shards = [mlp(width), mlp(width)], torch.randn(128, width).chunk(2)

    def forward(i):
        for _ in range(steps):
            replicas[i](shards[i])

    return [partial(forward, i) for i in range(2)]


# %% [markdown]
# The numbers of passes only see to it that each piece of work lasts many switch intervals.

# %% tags=["nbval-ignore-output", "row-B1"]
steps = {8: 400, 16: 400, 32: 400, 64: 300, 128: 200, 256: 100, 512: 40}
by_width = {
    width: speed_up(launch(race, partial(forwards, width, count), backend="gloo"))
    for width, count in steps.items()
}
print("predicted:", predicted_first_width_that_gains)
print_races(by_width)
if control_held(by_width[8]) and control_held(by_width[512]):
    assert by_width[8]["threads"][0] < by_width[512]["threads"][0]

# %%
text = "Processes show what was possible; threads reach it only in wide layers."
draw_races(by_width, text, "layer width")

# %% [markdown]
# On two idle cores threads gained nothing up to width 32, and x1.9 at 256 and 512; processes x1.9 to x2.0 throughout. The widths in between differ from run to run. A narrow layer computes for a few
# µs, and the rest of its time is Python that finds the next layer. A wide one spends its time in C++, where nobody needs the GIL.
#
# **Check yourself.** `on_one_core` gives each thread one core for its own computing. Why?
#
# <details><summary>Answer</summary>
# Torch can spread one operation over all cores. Two threads that both do so, four on two cores, get in each other's way, and the
# picture would show that instead of the GIL. Take the line out and race again.
# </details>

# %% [markdown]
# ## 5 · Why backward is different
#
# Forward is a Python loop over layers. `backward()` is **one** call: autograd walks back through the recorded operations in C++.
#
# **Predict.** At width 16 forward gained nothing. What will backward gain in two threads?

# %%
predicted_gain_of_backward = "?"


def backwards(width, steps):
    losses = [mlp(width)(torch.randn(64, width)).sum() for _ in range(2)]

    def backward(loss):
        for _ in range(steps):
            loss.backward(retain_graph=True)

    return [partial(backward, loss) for loss in losses]


# %%
at_16 = {"forward": by_width[16]}
at_16["backward"] = speed_up(launch(race, partial(backwards, 16, 240), backend="gloo"))
print("predicted:", predicted_gain_of_backward)
draw_races(at_16, "Width 16: what two threads gain in forward, on the left, and in backward.")
if all(map(control_held, at_16.values())):
    assert at_16["forward"]["threads"][0] < at_16["backward"]["threads"][0]

# %% [markdown]
# The same small layers, and now the threads do gain. Is it really the GIL? `intervals_waited` can tell: beside a busy thread, how often do
# forward and backward ask for it, with one layer and with eight? Ten checksums, which ask ten times, are the control.
#
# **Predict** the four numbers.

# %%
predicted_asks = {"forward": ("?", "?"), "backward": ("?", "?")}


def asks(depth):
    model, batch = mlp(512, depth), torch.randn(256, 512)
    loss = model(batch).sum()
    calls = [lambda: model(batch), lambda: loss.backward(retain_graph=True), ten_checksums]
    return [intervals_waited(call) for call in calls]


depths = [1, 2, 4, 8]
asked = torch.tensor([launch(asks, n, world_size=1, backend="gloo")[0] for n in depths])

# %%
figure, axes = plt.subplots(figsize=(8, 3))
for i, label in enumerate(["forward", "backward", "ten checksums (control)"]):
    axes.plot(depths, asked[:, i], label=label, **rank_style(i))
axes.set(xlabel="layers", ylabel="waits for the GIL\n(switch intervals)", xticks=depths)
axes.legend(frameon=False, loc="upper left")
axes.spines[["top", "right"]].set_visible(False)
quiet = 8 <= asked[:, 2].min() <= asked[:, 2].max() <= 14
axes.set_title("this machine is too busy to tell" * (not quiet), loc="right", fontsize=10)
assert asked[3, 0] > asked[3, 1] or not quiet or not all(map(control_held, at_16.values()))
show(figure, "Forward asks for the GIL in every layer; backward is one call, however many layers.")

# %% [markdown]
# The control came to ten. Forward asked again in every layer, about 20 times in eight of them. Backward asked **once or twice**, however deep the network. So its two
# threads gained x1.7 on idle cores, where those of forward gained nothing.
#
# "DataParallel is slow because of the GIL" is thus too short: the GIL costs the forward pass of small operations. The rest of
# its slowness has other causes, next.

# %% [markdown]
# ## 6 · One device carries more
#
# Gather brings all outputs to the first device, and a loss computed there is computed for the whole batch. We count, for four devices and 10,000
# classes, the bytes of logits, of the loss, and of what the loss keeps for backward. On the CPU the devices are entries of a list; the tensors are real.


# %%
def note(held, device, tensor):
    held[device][tensor.data_ptr()] = tensor.nbytes  # each tensor once
    return tensor


def loss_on(held, device, logits):
    labels = torch.zeros(len(logits), dtype=torch.long)
    keep = partial(note, held, device)  # called with all that backward will need
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        return note(held, device, cross_entropy(logits, labels).view(1))


# %% [markdown]
# **Predict.** How many times as many bytes as device 3 does device 0 get? And how many if each replica computes the loss of its own part, and the losses are gathered?

# %%
predicted_times = {"gather logits": "?", "gather losses": "?"}


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
print("predicted:", predicted_times)

# %% [markdown]
# With logits, device 0 gets its own 2.6 MB, all 10.2 MB gathered, and 10.2 MB that the loss keeps: nine times device 3's. It is full while
# the others have room. With losses, four numbers are gathered.

# %%
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
# All devices carry the same now. DDP works like that: each rank has its own loss, and nothing is gathered.
#
# **Check yourself.** Which further bytes pass through device 0 in every step of `DataParallel`?
#
# <details><summary>Answer</summary>
# The batch, when it is scattered; the parameters, sent to every replica anew; and in backward the gradients of all replicas, to be added up.
# </details>

# %% [markdown]
# ## 7 · On real GPUs
#
# With two GPUs or more, the real `DataParallel` can be taken apart into its phases, and raced against DDP: one process per GPU, the same samples per
# GPU. A GPU's work is done only when `synchronize` returns. All CUDA stays inside workers, since a process that has used it cannot fork any more.


# %%
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


# %%
def step_ms_and_peak_mb(model, batch, gpus, steps=20):
    def step():
        model.zero_grad()
        model(batch).square().mean().backward()

    timed_ms(step, gpus)  # warm up
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    step_ms = statistics.median(timed_ms(step, gpus)[1] for _ in range(steps))
    return step_ms, [round(torch.cuda.max_memory_allocated(gpu) / 1e6) for gpu in gpus]


# %% [markdown]
# One process sees all GPUs in the first function, and the second runs once per GPU.


# %%
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


# %% tags=["nbval-ignore-output", "row-B1", "row-D1"]
gpus = len(hardware().gpus)
if gpus < 2:
    print(f"{gpus or 'no'} GPU here. DataParallel would call your module as it is: no replica,")
    print("no thread, no gather. So there is nothing to race; parts 4 to 6 showed the mechanism.")
else:
    step_ms, peak_mb, phases = launch(with_data_parallel, world_size=1)[0]
    print(f"DataParallel: {step_ms:.2f} ms per step, peak MB by GPU: {peak_mb}")
    print("  phases, ms:", {name: round(ms, 2) for name, ms in phases.items()})
    ranks = launch(with_ddp, world_size=gpus)
    peaks_mb = [peak for _, [peak] in ranks]
    print(f"DDP: {max(ms for ms, _ in ranks):.2f} ms per step, peak MB by GPU: {peaks_mb}")

# %% [markdown]
# Where there are GPUs, ask three things. What does *replicate* cost, which is paid in every step, while DDP sends the model once? Is the first GPU's peak above the
# others'? And *apply*: a call returns before its GPU has done the work, so a thread that feeds a GPU spends its time in Python. Is that the narrow end of part 4?

# %% [markdown]
# ## 8 · Threads and forks
#
# Processes, then. But a process that has threads must not be copied carelessly: **a fork copies one thread only**. Here a thread of the notebook holds
# a mutex while `launch` forks a worker that runs `add` of part 1 with it. This cell is meant to fail. **Predict:** where does the worker stand when its time is up?


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
# Read the report. *Rank 0: waiting for a lock*, at the line `with mutex:`. The worker stands before its copy of a locked mutex, and the thread that would
# unlock it was not copied. No rank waits for another here, and the last sentence names the cause: a lock that the notebook held at launch stays locked in its copies.
#
# Library code has mutexes and threads, too, and you do not see them. Hence the rule of this chapter: threads start inside a worker, and end there. Now
# the notebook's thread has gone:

# %% tags=["row-B2"]
counts = launch(count_together, mutex, world_size=1, backend="gloo")
print("the worker counts to", counts[0])

# %% [markdown]
# **Check yourself.** May a DDP rank start threads?
#
# <details><summary>Answer</summary>
# Yes, after the fork: many do, gloo and data loaders among them. What it must not do is fork again while its threads hold something.
# </details>
#
# ## 9 · Python without the GIL
#
# Since 3.13 Python comes in a second build, **free-threaded**: threads run Python code at the same time. Which one is yours?

# %%
is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)  # before 3.13 it always is
print("this Python has its GIL:", is_gil_enabled())

# %% [markdown]
# If it says `True`, everything above was measured with a GIL; we have measured nothing without one. A free-threaded build says `True` as well once it has imported a compiled module
# that is not declared ready: it then switches the GIL on again.
#
# What it can cure is part 4's narrow end. What it cannot cure: parameters sent out in every step, gathering on one device, one process that fits
# one machine. And part 1 grows: more threads at the same time need more mutexes.
#
# ## What you know now
#
# A mutex makes others wait. The GIL is one for all Python code of a process, and C code may let go of it: threads gain in wide layers and
# in backward, not in narrow forward passes. `DataParallel` is four steps, of which one runs in threads and all lean on one device. So training takes **one process per device**.
#
# Who are these processes, and how do they find each other? [02 · Process groups and ranks](02_process_groups.ipynb).
