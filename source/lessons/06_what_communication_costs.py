# %% [markdown]
# # 06 · What communication costs
#
# **Why does one all-reduce win on your laptop and another on a cluster, and how large must a batch be to hide it?**
#
# In 75 minutes you will be able to
#
# 1. say what a message costs from two numbers, and what this model leaves out;
# 2. predict the time of an all-reduce in four ways, and check it with real ranks;
# 3. fit the two numbers to published measurements, and see where two do not suffice;
# 4. work out which local batch hides the all-reduce on *n* ranks.
#
# **Hardware:** any computer with two cores; all ranks here use gloo on the CPU.
# **Before:** [03 · Collective primitives](03_collective_primitives.ipynb) and [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Next:** [07 · Data and batches](07_data_batches_numerics.ipynb).
# **Lab:** [06 · What communication costs](../exercises/06_what_communication_costs.ipynb).
#
# Six cells ask you to **predict**: put your answer in place of the three dots, and a later cell shows it beside the result. One cell asks you to **write**
# a function. If you see saved outputs here, they give answers away. Clear them first: *Edit*, *Clear Outputs of All Cells*.

# %%
import functools
import math
import time
from dataclasses import replace
from itertools import product, takewhile

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from course_utils import Network, check, explore, launch, plot_timeline, predict, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · What one message costs
#
# Two numbers go far (Hockney, 1994). The **latency** alpha is the time until the first byte arrives. The **time per byte** beta is
# one over the bandwidth. A message of *m* bytes takes alpha + *m* · beta.
#
# `trace=True` records every message of a real run, and `trace.replay(network)` works out when each would have arrived on a
# network that you describe. The messages are real, and only the clock is **virtual**. It gives the same numbers on any machine.

# %%
network = Network(latency_us=10, gbit_s=80)
alpha, beta = 10, 8 / 80_000  # microseconds, and microseconds per byte: 10,000 bytes take one


def record(fn, *args, world_size):
    return launch(fn, *args, world_size=world_size, backend="gloo", trace=True)


def finish_us(trace, network=network):
    """When the last rank is done, on the virtual clock."""
    return max(trace.replay(network).finish_us)


# %% [markdown]
# One byte takes 10.0001 µs on this network, and a million bytes take 110. The two parts are equal at alpha / beta = 100,000 bytes. Around this size the fastest algorithm changes.
#
# **What the model assumes.** Remember these five points whenever a virtual time surprises you.
#
# - Each rank has one **port** out and one port in. Each carries one message at a time, for *m* · beta, and both work at once (full duplex).
# - A send is **buffered**: the message leaves as soon as the port is free, whether or not anybody waits for it. A real `dist.send` with gloo waits for its receiver, as chapter 03 showed.
# - Adding up costs nothing. Nor does starting a call or a GPU kernel.
# - Between the ports nothing is shared. The switch is never too busy.
# - Only ranks add. A switch that adds is not in the model. Part 6 comes back to it.
#
# The second point has a consequence. Below, four ranks each send to the right, then receive from the left. On a network that buffers, this takes 10 µs. This cell fails on purpose, after four seconds.


# %% tags=["raises-exception"]
def everybody_sends_first():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    box = torch.zeros(1)
    dist.send(box, (rank + 1) % world_size)
    dist.recv(box, (rank - 1) % world_size)


launch(everybody_sends_first, world_size=4, backend="gloo", timeout=4)

# %% [markdown]
# Nobody is to blame, and all are. So a virtual time never proves that a program ends. In this chapter the proof is the real run, which is recorded first.
#
# Now two runs with messages of a million bytes. In the first, ranks 1 to 3 send to rank 0. In the second, ranks 0 and 1 swap, and so do ranks 2 and 3.
#
# **Predict.** How many µs does each run take? Answer with a list of two numbers.

# %%
ports_us = predict("µs for three to one, and for two pairs", ...)


# %%
def all_to_rank_0():
    message = torch.zeros(1_000_000, dtype=torch.uint8)
    if dist.get_rank() != 0:
        dist.send(message, 0)
    else:
        for other in (1, 2, 3):
            dist.recv(message, other)


def swap_in_pairs():
    partner = dist.get_rank() ^ 1  # 0 with 1, 2 with 3
    message = torch.zeros(1_000_000, dtype=torch.uint8)
    sending = dist.isend(message, partner)
    dist.recv(torch.empty_like(message), partner)
    sending.wait()


# %%
queued, paired = record(all_to_rank_0, world_size=4), record(swap_in_pairs, world_size=4)
ports_us.measured([round(finish_us(queued.trace)), round(finish_us(paired.trace))])
text = "Three ranks send at once, but rank 0's incoming port takes one message at a time."
plot_timeline(queued.trace.replay(network), text)

# %% [markdown]
# Three messages queue at one port: 10 + 3 · 100 = 310 µs. The four messages in pairs share no port, and take 110 µs, as one does.
# **What counts is not how much is sent, but how much passes the busiest port.**
#
# **Check yourself.** Somebody puts a switch ten times faster between the ranks' network cards. What does the first run gain?
#
# <details><summary>Answer</summary>
# Nothing: rank 0's own port is the narrow place. Only the latency may change.
# </details>
#
# ## 2 · Three ways to add up
#
# `all_reduce` leaves the sum of all ranks' tensors on every rank. The most obvious way is **direct**: all send to
# rank 0, which adds up and sends back.


# %%
def direct(x, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if rank != 0:
        dist.send(x, group=group, group_dst=0)
        dist.recv(x, group=group, group_src=0)
        return
    for other in range(1, world_size):
        arrived = torch.empty_like(x)
        dist.recv(arrived, group=group, group_src=other)
        x += arrived
    for other in range(1, world_size):
        dist.send(x, group=group, group_dst=other)


# %% [markdown]
# A **tree** spreads that work. Rank 1 sends to 0 while 3 sends to 2, then 2 sends to 0, and so on. The sum travels back the same way. The
# **ring** you have written in chapter 03: each rank sends one chunk to the right in each step, and takes one from the left. Both are folded below.


# %% jupyter={"source_hidden": true}
def tree(x, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    step, children = 1, []
    while step < world_size and rank % (2 * step) == 0:
        if rank + step < world_size:
            children.append(rank + step)
            arrived = torch.empty_like(x)
            dist.recv(arrived, group=group, group_src=rank + step)
            x += arrived
        step *= 2
    if rank != 0:
        dist.send(x, group=group, group_dst=rank - step)
        dist.recv(x, group=group, group_src=rank - step)
    for child in reversed(children):
        dist.send(x, group=group, group_dst=child)


def ring(x, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.tensor_split(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for done in range(2 * (world_size - 1)):
        mine, own = chunks[(rank - done) % world_size], chunks[(rank - done - 1) % world_size]
        arrived = torch.empty_like(own)
        sending = dist.isend(mine, group=group, group_dst=right)
        dist.recv(arrived, group=group, group_src=left)
        sending.wait()
        if done < world_size - 1:
            own += arrived
        else:
            own.copy_(arrived)


# %% [markdown]
# From now on every recorded run also checks its sum: rank *r* brings *r* + 1 times a pattern, so we know what must come out.


# %%
# Made once, by NumPy: the ranks are copies of a kernel that has it, and that must start no threads.
patterns = torch.from_numpy(np.arange(4_000_000, dtype=np.float32) % 100)


def add_up(algorithm, size_bytes):
    rank, world_size, pattern = dist.get_rank(), dist.get_world_size(), patterns[: size_bytes // 4]
    x = (rank + 1) * pattern
    algorithm(x)
    x /= world_size * (world_size + 1) / 2  # exact, as all of these are whole numbers
    assert torch.equal(x, pattern), "a wrong sum"


def recorded(algorithm, world_size, size_bytes):
    return record(add_up, algorithm, size_bytes, world_size=world_size)


# %% jupyter={"source_hidden": true}
def add_up_all(algorithms, sizes):
    for algorithm, size_bytes in product(algorithms, sizes):
        add_up(algorithm, size_bytes)
        dist.barrier()


@functools.cache  # nothing is recorded twice
def recorded_all(algorithms, world_size, sizes):
    """Record each algorithm with each size in one launch, cut at its barriers; a trace for each."""
    run = record(add_up_all, algorithms, sizes, world_size=world_size)
    events = {choice: [] for choice in product(algorithms, sizes)}
    for rank in range(world_size):
        rest = iter(run.trace.of_rank(rank))
        for own in events.values():
            own += takewhile(lambda event: event.kind != "barrier", rest)
    return {choice: replace(run.trace, events=tuple(own)) for choice, own in events.items()}


# %%
print("            messages   bytes in all   most bytes into one rank   (8 ranks, 80,000 bytes)")
for (algorithm, _), trace in recorded_all((direct, tree, ring), 8, (80_000,)).items():
    traffic = trace.traffic()
    messages, in_all = sum(traffic.sent_messages), sum(traffic.sent_bytes)
    print(f"{algorithm.__name__:12}{messages:8}{in_all:15,}{max(traffic.received_bytes):19,}")

# %% [markdown]
# All three send **the same** 1,120,000 bytes, 2(n − 1) times the tensor. The ring needs eight times as many messages. But it
# spreads the bytes evenly: its busiest port takes in 140,000 bytes, where rank 0 of the direct way takes in 560,000. Many messages cost
# latency, a busy port costs bandwidth.
#
# Here are the ring's steps on four ranks. In each step every rank sends a quarter and receives another.

# %%
ring_of_4 = recorded(ring, 4, 800_000)
text = "Six steps of 30 µs: in each, all send a quarter to the next rank at the same time."
plot_timeline(ring_of_4.trace.replay(network), text)

# %% [markdown]
# **Check yourself.** Why six steps for four ranks?
#
# <details><summary>Answer</summary>
# A chunk visits the three other ranks to be added up, and then, finished, three ranks that lack it: 2(n − 1).
# </details>
#
# ## 3 · Time against size
#
# Now each algorithm can be priced. With *n* ranks and *S* bytes:
#
# | | steps, one after the other | time |
# | --- | --- | --- |
# | direct | in and out, n − 1 tensors through rank 0's port each way | 2(alpha + (n − 1) · S · beta) |
# | tree | log₂ n levels up and down, whole tensors | 2 log₂ n · (alpha + S · beta) |
# | ring | 2(n − 1) steps of S / n bytes | 2(n − 1)(alpha + S / n · beta) |
#
# The tree's is for powers of two. Do the recordings agree?

# %%
formula = {
    direct: lambda n, size: 2 * (alpha + (n - 1) * size * beta),
    tree: lambda n, size: 2 * math.log2(n) * (alpha + size * beta),
    ring: lambda n, size: 2 * (n - 1) * (alpha + size / n * beta),
}
print(" ranks             replay    formula   (µs, 80,000 bytes)")
for n in (4, 8, 16):
    for (algorithm, size), trace in recorded_all(tuple(formula), n, (80_000,)).items():
        took, says = finish_us(trace), formula[algorithm](n, size)
        print(f"{n:6} {algorithm.__name__:8}{took:10.1f}{says:11.1f}")

# %% [markdown]
# They do, though nobody told the replay which algorithm it was looking at. It sent the recorded messages through the ports, and out came the formulas.
# So where we cannot run, we use the formulas.
#
# **Predict.** Eight ranks add up 800 bytes, then 8 million. Which of the three wins each time? Answer with a list of two words.

# %%
winners = predict("winners for 800 and 8,000,000 bytes", ...)

# %%
sizes = (800, 8_000, 40_000, 64_000, 160_000, 224_000, 1_600_000, 8_000_000)
of_8 = recorded_all(tuple(formula), 8, sizes)
took_us = {a: [finish_us(of_8[a, size]) for size in sizes] for a in formula}
best = [min(formula, key=lambda a: took_us[a][i]).__name__ for i in range(len(sizes))]
print("     bytes   direct     tree     ring   (µs, 8 ranks)")
for i, size in enumerate(sizes):
    print(f"{size:10,}" + "".join(f"{took_us[a][i]:9.0f}" for a in formula) + f"   {best[i]}")
winners.measured([best[0], best[-1]])


# %% jupyter={"source_hidden": true}
def crossover(one, other, n):
    """The size in bytes at which two algorithms take the same time: one linear equation."""
    fixed = formula[one](n, 0) - formula[other](n, 0)
    per_byte = formula[one](n, 1) - formula[other](n, 1) - fixed
    return -fixed / per_byte


figure, axes = plt.subplots(figsize=(8, 4.4))
line = np.geomspace(500, 12e6, 200)
for i, algorithm in enumerate(formula):
    style = rank_style(i)
    axes.plot(line, formula[algorithm](8, line), color=style["color"], ls=style["linestyle"])
    axes.plot(sizes, took_us[algorithm], style["marker"], color=style["color"])
    axes.plot([], [], **style, label=algorithm.__name__)
for one, other in ((direct, tree), (tree, ring)):
    size = crossover(one, other, 8)
    axes.plot(size, formula[one](8, size), "o", ms=15, mfc="none", mec="#555555")
    print(f"{one.__name__} and {other.__name__} take the same time at {size:9,.0f} bytes")
axes.set(xscale="log", yscale="log", xlabel="tensor (bytes)")
axes.set_ylabel("virtual time (µs), 10 µs, 80 Gbit/s")
axes.legend(title="lines: formula; marks: 8 real ranks", loc="upper left")
text = "Every mark lies on its formula; circled, at 50,000 and 188,235 bytes, the winner changes."
show(figure, text)

# %% [markdown]
# Each has its range. MPI
# libraries choose by size for this reason ([Thakur, Rabenseifner and Gropp, 2005](https://doi.org/10.1177/1094342005051521)).
#
# **Move the crossover yourself.** One recording, two teams: ranks 0 to 3 add up by a ring, ranks 4 to 7 directly, 40,000 bytes each. At first the direct team is done
# earlier. Drag the latency until the ring team wins. Then drag the bandwidth.


# %%
def race(size_bytes):
    teams = [dist.new_group([0, 1, 2, 3]), dist.new_group([4, 5, 6, 7])]
    algorithm, team = (ring, teams[0]) if dist.get_rank() < 4 else (direct, teams[1])
    algorithm(torch.ones(size_bytes // 4), group=team)


raced = record(race, 40_000, world_size=8)
explore(raced.trace, network)

# %%
print("latency   ring team   direct team   (µs)")
for latency_us in (10, 5, 4.5, 4, 1):
    done = raced.trace.replay(replace(network, latency_us=latency_us)).finish_us
    print(f"{latency_us:7.1f}{max(done[:4]):12.1f}{max(done[4:]):14.1f}")

# %% [markdown]
# The lead changes at 4.5 µs. Less latency helps whoever sends many messages; less bandwidth hurts whoever has a busy port.
# "The ring is fastest" is a statement about a size and a network, not about rings.
#
# **Check yourself.** What must you change so that the ring is never worth it?
#
# <details><summary>Answer</summary>
# Nothing short of infinite bandwidth: for a large enough tensor the port decides, and the ring's is the least busy.
# </details>
#
# ## 4 · What the stopwatch says
#
# Why all this, when one could time the real processes? Let us do it: the same functions, eight ranks on your machine, in turn, the
# slowest rank counted. Here is the time of the ring, divided by the time of the direct way.


# %% jupyter={"source_hidden": true}
def timed(size_bytes, rounds):
    x, seconds = torch.ones(size_bytes // 4), []
    for algorithm in [direct, ring] * (rounds + 1):
        dist.barrier()
        begun = time.perf_counter()
        algorithm(x.fill_(1))
        seconds.append(time.perf_counter() - begun)
    return torch.tensor(seconds[2:]).view(rounds, 2)  # the first round warms up


def ring_by_direct(size_bytes, rounds):
    """The median over the rounds; and the middle half of them."""
    seconds = torch.stack(launch(timed, size_bytes, rounds, world_size=8, backend="gloo"))
    direct_s, ring_s = seconds.amax(dim=0).T
    return (ring_s / direct_s).quantile(torch.tensor([0.5, 0.25, 0.75])).tolist()


# %%
print("ring / direct, 8 ranks   network   this machine (middle half of the rounds)")
for size_bytes, rounds in ((8_000, 9), (1_000_000, 9), (8_000_000, 5)):
    virtual = formula[ring](8, size_bytes) / formula[direct](8, size_bytes)
    middle, low, high = ring_by_direct(size_bytes, rounds)
    here = f"about {middle:.1f}   (about {low:.1f} to about {high:.1f})"
    print(f"{size_bytes:16,} bytes{virtual:10.2f}       {here}")

# %% [markdown]
# At a million bytes the ring wins by more than four on the network. On the two cores on which this page was made it *lost*. Part 2 says why: both send the same bytes in all,
# and here there are no eight pairs of ports. All bytes pass through the same cores and the same memory, and the ring pays for eight times as many messages.
#
# With more cores your numbers may differ. **They describe your machine's cores, not any network.** This course
# therefore never argues from loopback times.
#
# ## 5 · What others have measured
#
# Measuring is right, on the network in question. We have no cluster here. But people publish tables of [nccl-tests](https://github.com/NVIDIA/nccl-tests), NVIDIA's own
# benchmark, when they ask for help. All numbers below are copied from such threads ("out-of-place" times).
#
# ### Write the fit
#
# *About 10 minutes.* By each formula of part 3 the time is a straight line in the size: *a* + *b* · *S*. **Write** the function that finds *a* and *b* with the least sum of squared
# **relative** errors. With absolute errors the largest message would decide alone.


# %%
def fit(sizes, times_us):
    """The line's time at size 0 in µs, and its µs per byte; both arguments are numpy arrays."""
    raise NotImplementedError("about 3 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The relative error at one size is (<i>a</i> + <i>b</i> · size − time) / time. It is zero where <i>a</i> / time + <i>b</i> · size / time is 1.
# </details>
# <details><summary>Hint 2: the approach</summary>
# That is a linear system, with one row [1 / time, size / time] for each measurement, and ones on the right side. It has more rows than unknowns, and <code>np.linalg.lstsq</code> finds
# the best two numbers.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>rows = np.stack([1 / times_us, sizes / times_us], axis=1)</code>, then
# <code>a, b = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]</code>.
# </details>


# %% jupyter={"source_hidden": true}
def fit_spec(all_sizes, all_times_us):
    """What makes both derivatives of the sum of squared relative errors zero."""
    found = []
    for sizes, times_us in zip(all_sizes, all_times_us):
        u, v = 1 / times_us, sizes / times_us
        uu, uv, vv = u @ u, u @ v, v @ v
        right = np.array([u.sum(), v.sum()])
        found.append(tuple(np.linalg.solve(np.array([[uu, uv], [uv, vv]]), right).tolist()))
    return found


lines = {  # µs at size 0, µs per byte, spread of the times
    "exact times": (20.0, 1e-4, 0.0),
    "times 20 % off": (20.0, 1e-4, 0.2),
    "high latency, times 20 % off": (900.0, 3e-5, 0.2),
    "hardly any latency, times 5 % off": (0.5, 2e-3, 0.05),
}


def fit_inputs(rank, world_size, case):
    fixed, per_byte, spread = lines[case]
    sizes = 4.0 ** np.arange(5, 14)
    noise = 1 + spread * (2 * torch.rand(len(sizes), dtype=torch.float64).numpy() - 1)
    return sizes, (fixed + per_byte * sizes) * noise


judged = {"spec": fit_spec, "inputs": fit_inputs, "cases": list(lines), "world_sizes": (1,)}
judged |= {"rtol": 1e-3}

# %%
mine = check(fit, **judged)
mine


# %% jupyter={"source_hidden": true}
def finished_fit(sizes, times_us):
    rows = np.stack([1 / times_us, sizes / times_us], axis=1)  # relative errors: divide by time
    fixed_us, us_per_byte = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)[0]
    return fixed_us, us_per_byte


check(finished_fit, **judged)

# %% [markdown]
# The finished function is folded above. The first table is of **four GPUs on PCIe** that add up 256 KiB to 1 GiB
# ([nccl issue 445](https://github.com/NVIDIA/nccl/issues/445)). `compare` prints each measured time, the line's, and the deviation. It fits by your
# function, if that has passed.


# %% jupyter={"source_hidden": true}
def compare(table, *parts):
    """Fit a line to each part of a table; print the measured times beside the line's."""
    worst = 0.0
    for part in parts or (slice(None),):
        sizes, times_us = np.array(table, dtype=float)[part].T
        a, b = (fit if mine else finished_fit)(sizes, times_us)
        print(f"line: {a:.1f} µs + S / {1e-3 / b:.1f} GB/s        bytes   measured µs       line")
        for size, us in zip(sizes, times_us):
            off = (a + b * size) / us - 1
            worst = max(worst, abs(off))
            print(f"{size:43,.0f}{us:14,.1f}{a + b * size:11,.1f}{off:+8.1%}")
    return round(100 * worst)


# %%
pcie_x4 = [
    (262_144, 122.3), (524_288, 198.8), (1_048_576, 349.1), (2_097_152, 670.8),
    (4_194_304, 1_312.7), (8_388_608, 2_605.3), (16_777_216, 5_183.1), (33_554_432, 10_339),
    (67_108_864, 20_653), (134_217_728, 41_278), (268_435_456, 82_503), (536_870_912, 164_854),
    (1_073_741_824, 328_867),
]  # fmt: skip
worst = compare(pcie_x4)

# %% [markdown]
# Two numbers describe a range of 4,096 to 1 within 3 %. If it was a ring of four, the line is 6 · alpha + 1.5 · *S* · beta. Then alpha is 6.7 µs, and a port
# carries 1.5 · 3.3 = 4.9 GB/s: what nccl-tests call the **bus bandwidth**.
#
# The second table is of **two RTX 2080 Ti with an NVLink bridge** ([nccl-tests issue 44](https://github.com/NVIDIA/nccl-tests/issues/44)), from 32 KiB to 128 MiB. It is their `all_gather`: half an all-reduce, the
# same line with other factors. (Of their `all_reduce` we could read three rows only.)
#
# **Predict.** Again one line for all sizes. By how many percent does it miss at worst?

# %%
worst_miss = predict("one line for two RTX 2080 Ti misses at worst by %", ...)

# %%
nvlink_x2 = [
    (32_768, 13.39), (65_536, 16.57), (131_072, 23.07), (262_144, 31.38), (524_288, 36.00),
    (1_048_576, 47.38), (2_097_152, 70.44), (4_194_304, 120.1), (8_388_608, 212.5),
    (16_777_216, 418.5), (33_554_432, 817.8), (67_108_864, 1_568.3), (134_217_728, 3_298.6),
]  # fmt: skip
worst_miss.measured(compare(nvlink_x2), within=0.3)

# %% [markdown]
# The misses are no noise: neighbours miss to the same side. Look at 128 to 512 KiB. From 128 to 256 KiB the time grows by 8.3 µs, and from 256 to 512 KiB, twice the step, by 4.6 µs
# only. No straight line does that. Two lines do:

# %%
worst = compare(nvlink_x2, slice(0, 4), slice(4, None))

# %% [markdown]
# NCCL has **protocols**. `LL` sends 4 bytes of flags with every 4 bytes of data: it starts fast, and reaches half of the bandwidth at most. `LL128` can reach 95 %. `Simple` sends data only, and pays for slow memory barriers
# ([what a maintainer says](https://github.com/NVIDIA/nccl/issues/281)). It also has several algorithms. For each size NCCL estimates, with a model like ours, what each algorithm would take
# with each protocol, and runs the cheapest. There were [nine combinations](https://github.com/NVIDIA/nccl/issues/457) in 2021; today its source lists
# [seven algorithms and three protocols](https://github.com/NVIDIA/nccl/blob/master/src/include/plugin/nccl_tuner.h). So its times are a chain of lines. The thread does not say which ones ran here. `NCCL_DEBUG=INFO` with
# `NCCL_DEBUG_SUBSYS=TUNING` prints it.
#
# **Check yourself.** You fit to sizes up to 64 KB only. Which of the two numbers would you not trust for 25 MB?
#
# <details><summary>Answer</summary>
# Above all the time per byte. Latency is most of the time there, so the slope hardly shows. And another protocol will carry the 25 MB.
# </details>
#
# ## 6 · How good can it get?
#
# As long as **only ranks add** and each has one port in and one out, an all-reduce must move 2(n − 1) / n · S bytes through the busiest port. So it takes at least
# **2(n − 1) / n · S · beta**. [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002) prove this, and that a ring meets the bytes.


# %%
def bound_us(n, size):
    return 2 * (n - 1) / n * size * beta


print("     bytes    bound   direct     tree     ring   (bound in µs, then bound / time, 8 ranks)")
for i, size in enumerate(sizes):
    shares = [bound_us(8, size) / took_us[a][i] for a in formula]
    print(f"{size:10,}{bound_us(8, size):9.1f}" + "".join(f"{share:9.1%}" for share in shares))

# %% [markdown]
# Direct stays at 12.5 %: one port of eight does all the work. The ring reaches 90.9 % at 8 million
# bytes, and more for larger ones. At 800 bytes all are under 1 %, because there latency counts.
#
# **The bound falls with its premise.** NVIDIA's NVSwitch can add inside the switch (NVLink SHARP). A rank then sends its tensor about once and receives the sum about once. Eight H200 show 475 GB/s
# of bus bandwidth on links of 450 ([nccl-tests issue 272](https://github.com/NVIDIA/nccl-tests/issues/272)), and others see 480
# ([issue 312](https://github.com/NVIDIA/nccl-tests/issues/312)). They do not beat the cable. They beat a formula that counts a ring's bytes.
#
# **Our tree is not NCCL's.** Ours sends whole tensors, level after level. NCCL's is *pipelined*: it sends small pieces, so all levels work at once, and a rank sends about 2 *S*
# ([issue 457](https://github.com/NVIDIA/nccl/issues/457)). And there are *two* trees, each for half of the data. A leaf of one is an inner node of the other, so that no port idles
# (Sanders, Speck and Träff, Two-tree algorithms, Parallel Computing 35, 2009).
#
# ## 7 · One slow link, one slow rank
#
# In the recording at hand let the link from rank 2 to rank 3 be ten times slower. The other 55 links stay as they are.
#
# **Predict.** How many times as long does the ring of eight take then, for 8,000,000 bytes?

# %%
times_slower = predict("one slow link makes the ring slower by a factor of", ...)

# %%
one_slow_link = replace(network, slow_links={(2, 3): 10})
for algorithm, size in ((direct, 8_000_000), (ring, 800), (ring, 8_000_000)):
    before, after = (finish_us(of_8[algorithm, size], on) for on in (network, one_slow_link))
    times = f"{before:7.0f} -> {after:7.0f} µs, x{after / before:.1f}"
    print(f"{algorithm.__name__:7}{size:10,} bytes: {times}")
times_slower.measured(round(after / before, 1), within=0.15)

# %% [markdown]
# One bad link of 56 makes the whole ring 9.2 times slower, because a chunk must pass it in each of the 14 steps. The direct way never uses that link. A ring has no slack: it
# finds your worst cable.
#
# And a slow **rank**? Four ranks compute for 100 µs each and then add up 800,000 bytes. Now rank 2 needs 500 µs.
#
# **Predict.** By how many µs is rank 0 done later, with the ring and with the direct way? Answer with a list of two numbers.

# %%
later_us = predict("µs that rank 0 is later, ring and direct", ...)

# %%
slow_rank_2 = replace(network, slow_ranks={2: 5})
late = []
for run in (ring_of_4, recorded(direct, 4, 800_000)):
    fair, held_up = (run.trace.replay(net, compute=[100] * 4) for net in (network, slow_rank_2))
    late.append(round(held_up.finish_us[0] - fair.finish_us[0]))
later_us.measured(late)
plot_timeline(held_up, "Directly: while rank 2 computes, the tensors of ranks 1 and 3 arrive.")

# %% [markdown]
# The ring loses all of the 400 µs: each step waits for the one before. The direct way loses 240. The sum needs rank 2's numbers, so nobody can be done before they have come. But while it waits, rank 0
# takes in the other two tensors, which costs 160 µs in any case. How much of a delay is hidden depends on the algorithm.
#
# **Check yourself.** Your all-reduces have become slow. How do you tell a slow rank from a slow link?
#
# <details><summary>Answer</summary>
# Look at what happens outside the calls. A slow rank computes longer than the others and waits least. With a slow link all compute as before, and all wait.
# </details>
#
# ## 8 · Two levels
#
# GPUs of one node talk faster than nodes do. Let 16 ranks stand in four nodes: 2 µs and 800 Gbit/s inside, 10 µs and 80 Gbit/s
# between. A **flat** ring crosses from node to node in four places, and everybody waits for them. Where each rank has a network card, **four rings** do better: each carries a quarter of the tensor, and
# goes through the ranks of a node in an order that makes it leave by another card. `four_rings` is folded.
#
# **Hierarchical**: each node first adds up so that each of its ranks owns a quarter of the node's sum (`reduce_scatter`). Ranks with equal local rank then add up their
# quarters across the nodes. At last each node shares its quarters (`all_gather`).


# %%
def hierarchical(x, per_node=4):
    rank, rank_grid = dist.get_rank(), torch.arange(dist.get_world_size()).view(-1, per_node)
    rows, columns = rank_grid.tolist(), rank_grid.T.tolist()
    groups = {tuple(ranks): dist.new_group(ranks) for ranks in rows + columns}
    node, across = (group for ranks, group in groups.items() if rank in ranks)
    part = x.new_empty(len(x) // per_node)
    dist.reduce_scatter_tensor(part, x, group=node)
    ring(part, group=across)
    dist.all_gather_into_tensor(x, part, group=node)


# %% jupyter={"source_hidden": true}
def four_rings(x, per_node=4):
    """A ring for each quarter; ring k enters a node at its k-th rank, and visits the others."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    nodes = range(world_size // per_node)
    rings = []
    for k, quarter in enumerate(x.tensor_split(per_node)):
        order = [n * per_node + (k + j) % per_node for n in nodes for j in range(per_node)]
        place = order.index(rank)
        left, right = order[place - 1], order[(place + 1) % world_size]
        rings.append((quarter.tensor_split(world_size), place, left, right))
    for done in range(2 * (world_size - 1)):
        sending = []
        for k, (chunks, place, _, right) in enumerate(rings):
            sending.append(dist.isend(chunks[(place - done) % world_size], right, tag=k))
        for k, (chunks, place, left, _) in enumerate(rings):
            own = chunks[(place - done - 1) % world_size]
            arrived = torch.empty_like(own)
            dist.recv(arrived, left, tag=k)
            if done < world_size - 1:
                own += arrived
            else:
                own.copy_(arrived)
        for work in sending:
            work.wait()


# %%
two_level = Network(latency_us=2, gbit_s=800, nodes=4, between=(10, 80))
forms = (ring, hierarchical, four_rings)
print("     bytes one ring   hierarchical   four rings   (µs, 16 ranks in 4 nodes)")
of_16 = recorded_all(forms, 16, (1_600, 160_000, 16_000_000))
for size in (1_600, 160_000, 16_000_000):
    ring_us, layered_us, rings_us = (finish_us(of_16[a, size], two_level) for a in forms)
    print(f"{size:10,}{ring_us:9.0f}{layered_us:15.0f}{rings_us:13.0f}")

# %% [markdown]
# Fewer steps, 12 instead of 30, help small tensors. (Our four rings are slow there, because in each step they wait for each other.) For large ones it counts what passes a port between nodes: 30 sixteenths of the
# tensor with one ring, 7.5 with four, and 6 in the hierarchical way. So that way is 3.3 times as fast as one ring, but only 1.4 times as fast as four, and several rings are what NCCL builds. All this needs a network card
# for every rank, and the model assumes it.
#
# ### Three real nodes
#
# [nccl-tests issue 119](https://github.com/NVIDIA/nccl-tests/issues/119) shows three nodes of eight A100, each with four InfiniBand cards. There a maintainer of NCCL counts 24 GB/s for such a card, so 96 GB/s
# for a node. NCCL builds [flat rings](https://github.com/NVIDIA/nccl/issues/471), several of them, which share the cards. So our model **predicts** before it has seen a single time: 2 · 23/24 · *S* bytes leave each node at 96 GB/s. First the replay of 24 real ranks says whether that is what the model means.

# %%
islands = Network(latency_us=0, gbit_s=230 * 8, nodes=3, between=(0, 96 * 8))
replay_us = finish_us(recorded(ring, 24, 2_400_000).trace, islands)
print(f"2.4 MB: replay {replay_us:.1f} µs, formula {2 * 23 / 24 * 2_400_000 / 96_000:.1f} µs")

# %%
three_nodes = [
    (23_068_680, 518.4), (28_311_560, 622.4), (33_554_440, 732.9), (75_497_480, 1_678.7),
    (83_886_088, 1_876.1), (84_934_664, 1_903.9), (85_983_240, 1_757.8), (87_031_816, 1_781.5),
    (127_926_280, 2_560.7), (133_169_160, 2_666.0),
]  # fmt: skip
print("      bytes   measured   predicted   (µs, 24 A100)")
for size, us in three_nodes:
    predicted_us = 2 * 23 / 24 * size / 96_000
    print(f"{size:11,}{us:11,.1f}{predicted_us:12,.1f}{predicted_us / us - 1:+8.1%}")

# %% [markdown]
# From 86 MB on, the prediction is right within 3 %. Below, it is 9 to 11 % too low. And look where this changes: **86.0 MB take 146 µs less than 84.9 MB.** No alpha and no positive beta can say that. Most likely NCCL
# switches there to another algorithm or protocol. The thread does not say to which.
#
# For **eight A100 in one node** we found no table that we could read. [nccl-tests issue 149](https://github.com/NVIDIA/nccl-tests/issues/149) reports about 200 GB/s of bus bandwidth, and
# [nccl issue 1048](https://github.com/NVIDIA/nccl/issues/1048) 232.5. Between the three nodes above, 96 GB/s are all that eight GPUs have. That is what two levels are about.
#
# **Check yourself.** Why is the last phase of the hierarchical way not another all-reduce?
#
# <details><summary>Answer</summary>
# The quarters are finished sums already. To have them everywhere, nothing must be added, only gathered.
# </details>
#
# ## 9 · Thousands of ranks
#
# The ring's steps grow with *n*, a tree's levels with log₂ *n*. Can one have both, few messages *and* small ones? Yes: **halving and doubling**, Rabenseifner's
# algorithm. Partners far apart swap halves and add, then quarters with nearer partners, then
# eighths; then all the way back. It takes 2 log₂ n · alpha + 2(n − 1) / n · S · beta.


# %% jupyter={"source_hidden": true}
def halving(x):  # for powers of two
    def swap(partner, outgoing, incoming):
        sending = dist.isend(outgoing, partner)
        dist.recv(incoming, partner)
        sending.wait()

    rank, distance, mine, steps = dist.get_rank(), dist.get_world_size() // 2, x, []
    while distance:
        partner, halves = rank ^ distance, mine.chunk(2)
        keep, give = halves if rank < partner else halves[::-1]
        swap(partner, give, arrived := torch.empty_like(keep))
        steps.append((partner, keep, give))
        mine, distance = keep.add_(arrived), distance // 2
    for partner, keep, give in reversed(steps):
        swap(partner, keep, give)


# %%
formula[halving] = lambda n, size: 2 * math.log2(n) * alpha + bound_us(n, size)
took = finish_us(recorded(halving, 16, 80_000).trace)
print(f"16 ranks: replay {took:.1f} µs, formula {formula[halving](16, 80_000):.1f} µs\n")
bucket_bytes = 25 * 2**20  # DDP starts an all-reduce when it has so many bytes of gradients
print("   ranks   direct     tree     ring  halving    bound   (ms, 25 MiB, by formula)")
for n in (8, 64, 1_024, 16_384):
    times = [formula[a](n, bucket_bytes) for a in formula] + [bound_us(n, bucket_bytes)]
    print(f"{n:8,}" + "".join(f"{us / 1000:9,.1f}" for us in times))

# %% [markdown]
# At 16,384 ranks the ring takes 333 ms, of which 327.7 are the latency of its 32,766 steps. It loses even to our tree. Halving needs 28 steps, and stays within 6 %
# of the bound. But the model is kind to it: it lets any two ranks talk at full speed, while far partners of a real cluster share cables.
#
# ## 10 · Which local batch hides the all-reduce?
#
# That is what people want to know. DDP reduces a bucket while the backward pass computes the next gradients. If the backward pass is long enough, the all-reduce costs almost nothing. A larger local
# batch makes it longer, and the gradients stay as large as they are.
#
# We take **ResNet-50** and a small **GPT** (GPT-2 with 124 million parameters). Everything below is a **model**. A bucket goes out when its last gradient is ready and the bucket before is through. `ready` says when, as shares
# of the backward pass. (One of the course's tests holds `longer_ms` against the replay of four real ranks.)

# %%
resnet_ready, resnet_mb = [0.002, 0.06, 0.12, 0.33, 1.0], [8.2, 31.5, 26.3, 26.6, 9.7]
gpt_ready, gpt_mb = [0.31 + 0.69 * k / 12 for k in range(1, 13)] + [1.0], [28.4] * 12 + [157.5]


def longer_ms(ready, megabytes, backward_ms, n, gbit_s=100, alpha_us=3):
    """By how much the ring all-reduces of its buckets make a step longer."""
    free = 0.0
    for share, mb in zip(ready, megabytes):
        reduce_ms = 2 * (n - 1) * (alpha_us / 1000 + mb / n * 8 / gbit_s)
        free = max(free, share * backward_ms) + reduce_ms
    return free - backward_ms


# %% [markdown]
# *Where the numbers come from.* ResNet's buckets and shares are from the recording of [chapter 14](14_on_a_gpu_who_waits.ipynb). Its backward pass is two thirds of the computing there, and PyTorch's own
# [benchmark](https://github.com/pytorch/pytorch/blob/main/benchmarks/distributed/ddp/README.md) needs 97 ms for a batch of 32 on a V100: 3 ms per image. For GPT we count 6 operations per parameter and token, 1,024 tokens, and assume 100 Tflop/s: 7.6 ms
# per sequence. That is a speed of bfloat16; the gradients are counted in float32, as autocast leaves them (chapter 04). The output layer, 31 % of the work, comes first, then twelve blocks of 28.4 MB. The embedding is tied to the output, so its 157.5 MB are ready last.
#
# We call the all-reduce **hidden** if a step gets at most 5 % longer.
#
# **Predict.** From which batch on is it hidden for ResNet-50, on 16 ranks and on 1,024, with 100 Gbit/s for each rank? Answer with a list of two numbers.

# %%
hiding_batch = predict("batch that hides ResNet-50's all-reduce on 16 and 1,024 ranks", ...)

# %%
models = {"ResNet-50": (resnet_ready, resnet_mb, 3.03), "GPT, 124 M": (gpt_ready, gpt_mb, 7.6)}


def percent_longer(model, batch, n, gbit_s=100):
    ready, megabytes, step_ms = models[model]
    extra = longer_ms(ready, megabytes, batch * step_ms * 2 / 3, n, gbit_s)
    return 100 * extra / (batch * step_ms)


def hidden_from(model, n, gbit_s=100):
    """The batch with which a step gets 5 % longer, as if a batch could have half a sample."""
    too_small, enough = 0.01, 2.0**20
    while enough - too_small > 0.01:
        middle = (too_small + enough) / 2
        if percent_longer(model, middle, n, gbit_s) <= 5:
            enough = middle
        else:
            too_small = middle
    return enough


# %%
print("hidden from batch         2       16      128    1,024   16,384 ranks")
for model in models:
    for gbit_s in (100, 10):
        found = [hidden_from(model, n, gbit_s) for n in (2, 16, 128, 1024, 16_384)]
        print(f"{model:12}{gbit_s:4} Gbit/s" + "".join(f"{b:9,.1f}" for b in found))
whole = [math.ceil(hidden_from("ResNet-50", n)) for n in (16, 1024)]
hiding_batch.measured(whole, within=0.5)

# %% jupyter={"source_hidden": true}
figure, both = plt.subplots(1, 2, figsize=(9.5, 3.8), sharey=True, layout="constrained")
batches = 2 ** np.arange(0, 10)
for axes, model in zip(both, models):
    for i, n in enumerate((2, 16, 1_024, 16_384)):
        percent = [max(percent_longer(model, int(batch), n), 0.05) for batch in batches]
        axes.loglog(batches, percent, **rank_style(i), label=f"{n:,} ranks")
    axes.axhline(5, color="#777777", lw=4, alpha=0.4)
    axes.text(1, 3.6, "hidden", va="top")
    axes.set_xticks([1, 4, 16, 64, 256], [1, 4, 16, 64, 256])
    axes.set_yticks([0.1, 1, 10, 100, 1000], ["0.1", "1", "10", "100", "1,000"])
    axes.minorticks_off()
    axes.set(xlabel="local batch", title=f"{model}, 100 Gbit/s per rank (model)")
both[0].set_ylabel("step longer by (%)")
both[1].legend()
text = "On 16 ranks ResNet-50 falls below the grey line of 5 % at a batch of 11, GPT at 74."
show(figure, text)

# %% [markdown]
# The batch grows far less than the number of ranks, as long as bandwidth decides: a ring's bytes per port stay below twice the gradients. From 16 to 128 ranks ResNet-50 needs half as much again. Then the latency takes
# over, once for each bucket. Ten times less bandwidth costs about ten times the batch on 2 and 16 ranks, and less where latency counts: for ResNet-50 seven times on 128 ranks. And the last bucket is never hidden, since nothing is left to compute beside it. For GPT that is the whole embedding.
#
# ### Which bucket size?
#
# The [DDP paper](https://www.vldb.org/pvldb/vol13/p3005-li.pdf) (Li and others, VLDB 2020) measured many, and shows them as plots. We have no figures of it to quote. The benchmark above gives two as text: two nodes of eight V100, four
# cards of 100 Gbit/s in each. At 12 GB/s for such a card (issue 119 again) that makes 48 GB/s for a node. `step_ms` cuts the gradients into buckets of another size and takes the shares between the recorded ones.


# %%
def step_ms(cap_mb, gbit_s, alone_ms=97, n=16):
    """What a step of ResNet-50 takes with buckets of so many megabytes, by the model."""
    recorded_mb = np.append(0, np.cumsum(resnet_mb))
    edges = np.append(np.arange(cap_mb, recorded_mb[-1], cap_mb), recorded_mb[-1])
    ready = np.interp(edges, recorded_mb, [0, *resnet_ready])
    return alone_ms + longer_ms(ready, np.diff(edges, prepend=0), alone_ms * 2 / 3, n, gbit_s)


# %%
published_ms = {1: "108", 25: "104"}
print("bucket size   48 GB/s per node   published   10 Gbit/s per node   (ms per step, 16 ranks)")
for cap_mb in (1, 5, 25, 103):
    fast, slow = step_ms(cap_mb, 48 * 8), step_ms(cap_mb, 10)
    print(f"{cap_mb:8} MB{fast:19.1f}{published_ms.get(cap_mb, '-'):>12}{slow:21.1f}")

# %% [markdown]
# On the slow network the model has an opinion: 5 to 25 MB are best. With smaller ones latency is paid too often, and one large bucket begins when the backward pass is over. On the fast network it sees hardly a difference
# up to 25 MB, and **there it fails**: really, 1 MB costs 4 % more. Even the 104 are more than its 97.2. In the benchmark, DDP on a single GPU takes 100 already. Likely reasons: calls
# have to be started, buckets copied, and NCCL's kernels take computing units from the backward pass. Our third assumption sets all of this to zero.
#
# **Check yourself.** On 64 GPUs with 10 Gbit/s each your ResNet-50 trains with a local batch of 16. What helps, other than a faster network?
#
# <details><summary>Answer</summary>
# A larger local batch; or the same batch with accumulation, that is, one all-reduce for several backward passes (chapter 04). Fewer bytes, for example gradients in half
# precision. Another bucket size cannot help much: the sum of all buckets takes longer than the backward pass.
# </details>
#
# ## What you know now
#
# A message costs alpha + *m* · beta, and the busiest port decides. Few large messages through one port (direct), few steps (tree), evenly loaded ports (ring), or both
# (halving): size, network and number of ranks choose the winner. Two numbers, fitted, describe measured times within a few percent, as long as NCCL does the same thing at all sizes. Where they fail, the
# deviations show it. Predicted before we had seen a time, four of ten were right within 3 %, and six were 9 to 11 % too low.

# %%
predict()

# %% [markdown]
# Compare two of the six with your own guess. Rank 0 is not 400 µs late both ways: with the direct way it is 240, because it works while it waits. And 64 times as many ranks do not need
# 64 times the batch: ResNet-50 needs about five times.
#
# **Next:** [07 · Data and batches](07_data_batches_numerics.ipynb).
#
# *More sources.* R. Hockney, The communication challenge for MPP, Parallel Computing 20, 1994. Z. Hu and others, [Demystifying NCCL](https://arxiv.org/abs/2507.04786), 2025, on protocols and algorithms.
