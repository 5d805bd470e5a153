# %% [markdown]
# # 06 · What communication costs
#
# **Why does one all-reduce win on your laptop and another on a cluster, and what would each cost on 16,384 ranks?**
#
# In 90 minutes you will be able to
#
# 1. say what a message costs from two numbers, and fit both to measurements;
# 2. write an all-reduce in four ways, prove it right, and predict its time;
# 3. say why a stopwatch on one machine names the wrong winner;
# 4. tell how near an all-reduce is to the best possible, on slow links, on two-level networks and on thousands of ranks.
#
# **Hardware:** any computer with two cores; all ranks here use gloo on the CPU.
# **Before:** [03 · Collective primitives](03_collective_primitives.ipynb) and [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Next:** [07 · Data, batches and numerics](07_data_batches_numerics.ipynb).
# **Lab:** [06 · What communication costs](../exercises/06_what_communication_costs.ipynb).

# %%
import math
import time
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist

from course_utils import Network, explore, launch, plot_timeline, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · What one message costs
#
# Two numbers go far (Hockney, 1994): the **latency** alpha, until the first byte arrives, and beta, the
# **time per byte**, one over the bandwidth. A message of *m* bytes takes alpha + *m* · beta.
#
# `trace=True` records every message of a real run. `trace.replay(network)` then asks when each would have arrived on a
# network that you describe. The messages are real, only the clock is **virtual**: it gives the same numbers in every run, on any machine.

# %%
network = Network(latency_us=10, gbit_s=80)
alpha, beta = 10, 8 / 80_000  # microseconds, and microseconds per byte: 10,000 bytes take one


def record(fn, *args, world_size):
    return launch(fn, *args, world_size=world_size, backend="gloo", trace=True)


def finish_us(results, network=network):
    """When the last rank is done, on the virtual clock."""
    return max(results.trace.replay(network).finish_us)


# %% [markdown]
# **Predict.** How many microseconds does one byte take on this network, and how many a million bytes?

# %%
predicted_us = {"1 byte": "?", "1,000,000 bytes": "?"}


def ping(size_bytes):
    message = torch.zeros(size_bytes, dtype=torch.uint8)
    if dist.get_rank() == 0:
        dist.send(message, 1)
    else:
        dist.recv(message, 0)


print("predicted:", predicted_us)
for size_bytes in (1, 1_000, 100_000, 1_000_000):
    print(f"{size_bytes:9,} bytes: {finish_us(record(ping, size_bytes, world_size=2)):6.1f} µs")

# %% [markdown]
# A thousand bytes cost hardly more than one: 10.1 and 10.0 µs, nearly all of it latency. A million cost 110, nearly all of it bandwidth.
# The two parts are equal at alpha / beta = 100,000 bytes. Remember that number: around it the fastest algorithm changes.
#
# ### One port out, one port in
#
# Each rank has two **ports**. Sending *m* bytes keeps its outgoing port busy for *m* · beta, receiving them its incoming one;
# a port carries one message at a time, but both work at once. Four ranks, a million bytes per message. First, ranks 1 to 3 send
# to rank 0. Then ranks 0 and 1 swap, and so do ranks 2 and 3.
#
# **Predict.** Three messages in the first run, four in the second: which takes longer?


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
predicted_longer = "?"
queued, paired = record(all_to_rank_0, world_size=4), record(swap_in_pairs, world_size=4)
print("predicted:", predicted_longer)
print(f"to rank 0: {finish_us(queued):.0f} µs, in pairs: {finish_us(paired):.0f} µs")
text = "Three ranks send at once, but rank 0's incoming port takes one message at a time."
plot_timeline(queued.trace.replay(network), text)

# %% [markdown]
# The three messages queue at one port: 10 + 3 · 100 = 310 µs. The four messages in pairs share no port and take 110, as one does.
# **What counts is not how much is sent, but how much passes the busiest port.** Much of what follows is this sentence.
#
# **Check yourself.** A switch ten times faster than the ranks' network cards is put between them. What does the first run gain?
#
# <details><summary>Answer</summary>
# Nothing: rank 0's own port is the narrow place. Only the latency may change.
# </details>
#
# ## 2 · Three ways to add up
#
# `all_reduce` leaves the sum of all ranks' tensors on every rank. How, it does not say. The most obvious way is **direct**: all send to
# rank 0, which adds up and sends back. A **tree** spreads that work: rank 1 sends to 0 while 3 sends to 2, then 2 sends to 0, and so on, and
# the sum travels back by the same way.


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
# In the tree, a rank's lowest binary digit that is 1 says when its turn comes to send, and to whom. Rank 6, in binary 110, adds what rank 7 sends, then
# sends to rank 4.


# %%
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


# %% [markdown]
# Both leave most ports idle most of the time. In a **ring** all of them share the work: the tensor is cut into as many chunks as there are
# ranks, and in each turn everybody sends one chunk to the right and takes one from the left.
#
# Here is a first attempt at one turn. This cell is meant to fail. **Predict:** which of the four ranks is to blame?


# %% tags=["raises-exception"]
def everybody_sends_first():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunk = torch.tensor([rank + 1.0])
    dist.send(chunk, right)
    dist.recv(chunk, left)


launch(everybody_sends_first, world_size=4, backend="gloo", timeout=4)

# %% [markdown]
# Read it aloud: ranks 0 to 3 *all send, and none receives*, at the same line. Nobody is to blame, and all are: a blocking send
# ends when the other side receives, and the other side is sending. Four bytes were enough.
#
# `isend` starts to send and returns at once, so the rank is free to receive. In the first half of the turns a rank **adds** what
# arrives; after that, each rank holds one finished chunk. In the second half the finished chunks go round.


# %%
def ring(x, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    chunks = x.tensor_split(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for turn in range(2 * (world_size - 1)):
        mine, next_one = chunks[(rank - turn) % world_size], chunks[(rank - turn - 1) % world_size]
        arrived = torch.empty_like(next_one)
        sending = dist.isend(mine, group=group, group_dst=right)
        dist.recv(arrived, group=group, group_src=left)
        sending.wait()
        if turn < world_size - 1:
            next_one += arrived
        else:
            next_one.copy_(arrived)


# %% [markdown]
# (On GPUs with NCCL, hand both to `dist.batch_isend_irecv`, or they may wait for each other.) Is it right? An all-reduce that
# looks right may not be. PyTorch's own tutorial showed a ring with a mistake until 2020 (issue 31572), and copies of it still circulate. Here is the
# mistake in our words: `send` is the rank's tensor, `total` shall become the sum.


# %%
def as_published(send, group=None):
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    received, total = torch.zeros_like(send), send.clone()
    passed_on = [torch.zeros_like(send), torch.zeros_like(send)]
    for turn in range(world_size - 1):
        sending = dist.isend(passed_on[turn % 2], (rank + 1) % world_size)
        dist.recv(passed_on[1 - turn % 2], (rank - 1) % world_size)
        sending.wait()
        total += send if turn % 2 else received
    send.copy_(total)


# %% [markdown]
# So all four are judged against `dist.all_reduce`, on 3 and 4 ranks, with ten numbers, which neither 3 nor 4 divides.
#
# **Predict.** Ranks hold 1, 2, 3 and 4, so the sum is 10. What does the published ring leave on each rank?

# %%
predicted_published = ["?", "?", "?", "?"]


def judge(algorithm):
    x = torch.arange(10) * 100 + dist.get_rank() + 1
    wanted = x.clone()
    dist.all_reduce(wanted)
    algorithm(x)
    return torch.equal(x, wanted), x[0].item()


for algorithm in (direct, tree, ring, as_published):
    runs = [launch(judge, algorithm, world_size=n, backend="gloo") for n in (3, 4)]
    right = all(equal for run in runs for equal, _ in run)
    numbers = [number for _, number in runs[1]]
    print(f"{algorithm.__name__:12} right: {right!s:5} first number on 4 ranks:", numbers)
print("predicted for as_published:", predicted_published)

# %% [markdown]
# 2, 4, 6, 8 where 10 is right: it never adds what arrived. Messages went round, nothing hung, every rank got a
# number. Only the comparison with a known sum found it out.
#
# ### Who sends how much
#
# From now on every recorded run also checks its sum. `add_up` knows what must come out: rank *r* brings *r* + 1 times a pattern.


# %%
def add_up(algorithm, size_bytes):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    pattern = torch.arange(size_bytes // 4) % 100.0
    x = (rank + 1) * pattern
    algorithm(x)
    return torch.equal(x, world_size * (world_size + 1) / 2 * pattern)


def recorded(algorithm, world_size, size_bytes):
    results = record(add_up, algorithm, size_bytes, world_size=world_size)
    assert all(results), "a wrong sum"
    return results


# %% [markdown]
# **Predict.** Eight ranks, 80,000 bytes each. Which of the three sends the most bytes in total?

# %%
predicted_most = "?"
print("predicted:", predicted_most)
print("            messages   bytes in all   most bytes into one rank")
for algorithm in (direct, tree, ring):
    traffic = recorded(algorithm, 8, 80_000).trace.traffic()
    messages, in_all = sum(traffic.sent_messages), sum(traffic.sent_bytes)
    print(f"{algorithm.__name__:12}{messages:8}{in_all:15,}{max(traffic.received_bytes):19,}")

# %% [markdown]
# All three send **the same** 1,120,000 bytes, 2(n − 1) times the tensor. They differ in two ways: the ring needs eight times as many messages,
# and spreads the bytes evenly, so that its busiest port takes in 140,000 where rank 0 of the direct way takes in 560,000. Many messages cost
# latency, a busy port costs bandwidth.
#
# Here are the ring's turns on four ranks. In each turn every rank sends a quarter and receives another.

# %%
ring_of_4 = recorded(ring, 4, 800_000)
text = "Six turns of 30 µs: in each, all send a quarter to the next rank at the same time."
plot_timeline(ring_of_4.trace.replay(network), text)

# %% [markdown]
# **Check yourself.** Why six turns for four ranks?
#
# <details><summary>Answer</summary>
# A chunk visits the three other ranks to be added up, and then, finished, three ranks that lack it: 2(n − 1).
# </details>
#
# ## 3 · Time against size
#
# Now each algorithm can be priced. With *n* ranks and *S* bytes:
#
# | | turns, one after the other | time |
# | --- | --- | --- |
# | direct | in and out, n − 1 tensors through rank 0's port each way | 2(alpha + (n − 1) · S · beta) |
# | tree | log₂ n levels up and down, whole tensors | 2 log₂ n · (alpha + S · beta) |
# | ring | 2(n − 1) turns of S / n bytes | 2(n − 1)(alpha + S / n · beta) |
#
# The tree's is for powers of two. Do the recordings agree? **Predict** the largest deviation in percent.

# %%
predicted_percent = "?"
formula = {
    direct: lambda n, size: 2 * (alpha + (n - 1) * size * beta),
    tree: lambda n, size: 2 * math.log2(n) * (alpha + size * beta),
    ring: lambda n, size: 2 * (n - 1) * (alpha + size / n * beta),
}
print(" ranks             replay    formula   deviation   (80,000 bytes)")
for n in (4, 8, 16):
    for algorithm in formula:
        took = finish_us(recorded(algorithm, n, 80_000))
        says = formula[algorithm](n, 80_000)
        assert abs(took / says - 1) < 0.001
        print(f"{n:6} {algorithm.__name__:8}{took:10.1f}{says:11.1f}{abs(took / says - 1):12.4%}")
print("predicted:", predicted_percent)

# %% [markdown]
# None, though nobody told the replay which algorithm it was looking at: it sent the recorded messages through ports, and out came the formulas. So
# they can stand in for a replay where we cannot run.
#
# Which one is fastest depends on the size. **Predict** the winner on 8 ranks for 800 bytes and for 8 million.

# %%
predicted_winner = {"800 bytes": "?", "8,000,000 bytes": "?"}
sizes = [800, 8_000, 40_000, 64_000, 160_000, 224_000, 1_600_000, 8_000_000]
took_us = {a: [finish_us(recorded(a, 8, size)) for size in sizes] for a in formula}
print("predicted:", predicted_winner)
print("     bytes   direct     tree     ring   (µs, 8 ranks)")
for i, size in enumerate(sizes):
    times = [took_us[a][i] for a in formula]
    winner = min(formula, key=lambda a: took_us[a][i])
    print(f"{size:10,}" + "".join(f"{t:9.0f}" for t in times) + f"   {winner.__name__}")

# %% [markdown]
# Each has its range. The curves cross where two formulas are equal, which is one linear equation for the size.


# %%
def crossover(one, other, n):
    """The size in bytes at which two algorithms take the same time."""
    fixed = formula[one](n, 0) - formula[other](n, 0)
    per_byte = formula[one](n, 1) - formula[other](n, 1) - fixed
    return -fixed / per_byte


crossings = {pair: crossover(*pair, 8) for pair in ((direct, tree), (tree, ring))}
for (one, other), size in crossings.items():
    print(f"{one.__name__} up to {size:9,.0f} bytes, then {other.__name__}")

# %%
figure, axes = plt.subplots(figsize=(8, 4.4))
line = np.geomspace(500, 12e6, 200)
for i, algorithm in enumerate(formula):
    style = rank_style(i)
    axes.plot(line, formula[algorithm](8, line), color=style["color"], ls=style["linestyle"])
    axes.plot(sizes, took_us[algorithm], style["marker"], color=style["color"])
    axes.plot([], [], **style, label=algorithm.__name__)
for (one, _), size in crossings.items():
    axes.plot(size, formula[one](8, size), "o", ms=15, mfc="none", mec="#555555")
axes.set(xscale="log", yscale="log", xlabel="tensor (bytes)")
axes.set_ylabel("virtual time (µs), 10 µs, 80 Gbit/s")
axes.legend(title="lines: formula; marks: 8 real ranks", loc="upper left")
text = "Every mark lies on its formula; circled, at 50,000 and 188,235 bytes, the winner changes."
show(figure, text)

# %% [markdown]
# The table agrees: direct wins at 40,000 bytes and the tree at 64,000, the tree at 160,000 and the ring at 224,000. MPI
# libraries choose by size for this reason (Thakur and others, 2005).
#
# ### Move the crossover yourself
#
# One recording, two teams: ranks 0 to 3 add up by a ring, ranks 4 to 7 directly, 40,000 bytes each. At first the direct team is done
# earlier. **Predict:** at which latency does the ring team win? Then drag the latency, and afterwards the bandwidth.


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
# Why all this, when one could simply time the real processes? Let us do it: the same functions, 8 ranks on your machine, every round in turn, the
# slowest rank counted. The ratio ring / direct of each round, with its spread, stands beside the virtual one.
#
# **Predict.** At a million bytes the ring takes less than a quarter of the direct way's time on the network. Which share does it take on your machine?

# %%
predicted_ratio = "?"


def timed(size_bytes, rounds):
    x, seconds = torch.ones(size_bytes // 4), []
    for algorithm in [direct, ring] * (rounds + 1):
        dist.barrier()
        begun = time.perf_counter()
        algorithm(x.fill_(1))
        seconds.append(time.perf_counter() - begun)
    return torch.tensor(seconds[2:]).view(rounds, 2)  # the first round warms up


loopback = {}
for size_bytes, rounds in ((8_000, 15), (1_000_000, 15), (16_000_000, 5)):
    seconds = torch.stack(launch(timed, size_bytes, rounds, world_size=8, backend="gloo"))
    direct_s, ring_s = seconds.amax(dim=0).T
    loopback[size_bytes] = (ring_s / direct_s).quantile(torch.tensor([0.25, 0.5, 0.75])).tolist()

# %% tags=["nbval-ignore-output"]
print("predicted:", predicted_ratio)
print("ring / direct, 8 ranks   network   this machine (middle half of the rounds)")
for size_bytes, (low, middle, high) in loopback.items():
    virtual = formula[ring](8, size_bytes) / formula[direct](8, size_bytes)
    print(f"{size_bytes:16,} bytes{virtual:10.2f}{middle:10.1f}   ({low:.1f} to {high:.1f})")
low, _, high = loopback[1_000_000]
verdict = "too busy or too close to tell"
if not low <= 1 <= high:
    verdict = "the ring loses" if low > 1 else "the ring wins"
print("at a million bytes the network says: the ring wins; this machine says:", verdict)

# %% [markdown]
# On the two cores on which this page was made, the ring *lost* clearly at a million bytes, where on the network it wins by
# more than four. The counts of part 2 say why. Both send the same bytes in all, and here there are no eight pairs of ports: all bytes pass through
# the same cores and the same memory. The ring gains little by spreading them, and pays for eight times as many messages. At 16 million bytes, where
# bytes count most, the two come out close to each other.
#
# With more cores your verdict may differ. That is the point: **it describes your machine's cores, not any network.** This course
# therefore never argues from loopback times.
#
# ### Fit alpha and beta
#
# Measuring is right, on the network in question. Send messages of many sizes to and fro, and fit a straight line. Least squares on *relative*
# errors, else the largest message decides alone. `ping_pong` gives the stopwatch's microseconds, its recording the virtual ones.


# %%
def ping_pong(size_bytes, rounds):
    """Microseconds one way, of each round."""
    x, took_us = torch.zeros(size_bytes, dtype=torch.uint8), []
    for _ in range(rounds):
        begun = time.perf_counter()
        for sender in (0, 1):
            (dist.send if dist.get_rank() == sender else dist.recv)(x, 1 - dist.get_rank())
        took_us.append((time.perf_counter() - begun) * 1e6 / 2)
    return took_us


# %%
def fit(sizes, times_us):
    """Alpha and beta with the least sum of squared relative errors; and these errors."""
    sizes, times_us = np.array(sizes), np.array(times_us)
    line = np.stack([np.ones(len(sizes)), sizes], axis=1) / times_us[:, None]
    alpha, beta = np.linalg.lstsq(line, np.ones(len(sizes)), rcond=None)[0]
    return alpha, beta, (alpha + beta * sizes) / times_us - 1


# %% [markdown]
# First the control: on the virtual clock we know the answer. **Predict.** Will the fit find 10 µs and 80 Gbit/s exactly?

# %%
predicted_fit = {"latency_us": "?", "gbit_s": "?"}
ping_sizes = [4**k for k in range(5, 13)]
virtual_us = [finish_us(record(ping_pong, s, 1, world_size=2)) / 2 for s in ping_sizes]
fitted_alpha, fitted_beta, virtual_error = fit(ping_sizes, virtual_us)
print("predicted:", predicted_fit)
print(f"virtual clock: latency {fitted_alpha:.3f} µs, {8 / fitted_beta / 1000:.3f} Gbit/s")
assert abs(virtual_error).max() < 1e-6

# %% [markdown]
# Exactly. Now with the stopwatch: of each size fifty rounds, of which the fastest counts, as the least disturbed one.

# %% tags=["nbval-ignore-output"]
real_us = [min(launch(ping_pong, s, 50, backend="gloo")[0]) for s in ping_sizes]
real_alpha, real_beta, real_error = fit(ping_sizes, real_us)
print(f"this machine: latency {real_alpha:.0f} µs, {8 / real_beta / 1000:.0f} Gbit/s,", end=" ")
print(f"and the line misses by up to {abs(real_error).max():.0%}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
curve, clocks = np.geomspace(1e3, 2e7), {"virtual clock": virtual_us, "stopwatch here": real_us}
for i, (name, one_way_us) in enumerate(clocks.items()):
    a, b, error = fit(ping_sizes, one_way_us)
    color, marker = rank_style(i)["color"], rank_style(i)["marker"]
    left.loglog(ping_sizes, one_way_us, marker, color=color, label=name)
    left.loglog(curve, a + b * curve, color=color)
    right.semilogx(ping_sizes, 100 * error, marker + "--", color=color)
left.set(xlabel="message (bytes)", ylabel="one way (µs)", title="times and fitted lines")
right.set(xlabel="message (bytes)", ylabel="line minus time (%)", title="residuals")
left.legend()
show(figure, "The virtual clock's points lie on their line; the stopwatch's miss theirs.")

# %% [markdown]
# The virtual clock obeys the model because it *is* the model. A real machine has caches, buffers and a scheduler, so its line misses, by the percentage that the cell printed.
# Where neighbouring sizes miss to the same side, it is not only noise. Two numbers are still a good summary, if you show the residuals.
#
# **Check yourself.** You fit to sizes up to 64 KB only. Which of the two numbers would you not trust?
#
# <details><summary>Answer</summary>
# Beta. Where latency is most of the time, the slope hardly shows; and larger messages may take another path.
# </details>
#
# ## 5 · How good can it get?
#
# However clever, an all-reduce must move some bytes. Each byte of the sum needs *n* − 1 others to be added to it, and must then reach *n* − 1 ranks. With
# all ports sharing equally, 2(n − 1) / n · S bytes pass each one. So no algorithm takes less than **2(n − 1) / n · S · beta**; Patarasuk and Yuan (2009) prove the bound
# on the bytes, and that a ring meets it.
#
# **Predict.** With 8 ranks and 8 million bytes, how many percent of that best possible speed does each algorithm reach?

# %%
predicted_share = {"direct": "?", "tree": "?", "ring": "?"}


def bound_us(n, size):
    return 2 * (n - 1) / n * size * beta


print("predicted:", predicted_share)
print("     bytes    bound   direct     tree     ring   (bound in µs, then bound / time)")
for i, size in enumerate(sizes):
    shares = [bound_us(8, size) / took_us[a][i] for a in formula]
    assert all(share < 1 for share in shares)
    print(f"{size:10,}{bound_us(8, size):9.1f}" + "".join(f"{share:9.1%}" for share in shares))

# %% [markdown]
# Direct stays at 12.5 %: one port of eight does all the work. The tree ends below 30. The ring reaches 90.9 % at 8 million
# bytes and comes as near as you like for larger ones. At 800 bytes all are under 1 %: there it is latency that counts, and the ring is the worst.
#
# NVIDIA's nccl-tests print 2(n − 1) / n · S / time as **bus bandwidth**: compare it with your port's own, and you see this share.
#
# ## 6 · One slow link, one slow rank
#
# A ring is only as good as its links. In the recording at hand let the link from rank 2 to rank 3 be ten times slower than the others; all other 55
# links stay as they are.
#
# **Predict.** By which factor does that slow the ring down, for 8,000,000 bytes and for 800? And the direct way?

# %%
predicted_factor = {"ring, 8,000,000": "?", "ring, 800": "?", "direct, 8,000,000": "?"}
print("predicted:", predicted_factor)
one_slow_link = replace(network, slow_links={(2, 3): 10})
runs = {(a, size): recorded(a, 8, size) for a in (ring, direct) for size in (8_000_000, 800)}
for (algorithm, size), run in runs.items():
    before, after = finish_us(run), finish_us(run, one_slow_link)
    times = f"{before:7.0f} -> {after:7.0f} µs, x{after / before:.1f}"
    print(f"{algorithm.__name__:7}{size:10,} bytes: {times}")

# %% [markdown]
# One bad link of 56 makes the whole ring 9.2 times slower, for in each of the 14 turns a chunk must pass it. Small messages suffer less, 2.3: the 90 µs of
# extra latency are paid twice, once in each round of the ring. The direct way never uses that link and does not notice. A ring has no slack: it
# finds your worst cable.
#
# And a slow **rank**? In the recording of four ranks, let each compute for 100 µs before it starts, but rank 2 five times slower.
#
# **Predict.** By how many microseconds is rank 0 done later?

# %%
predicted_later_us = "?"
slow_rank_2 = replace(network, slow_ranks={2: 5})
fair = ring_of_4.trace.replay(network, compute=[100] * 4)
held_up = ring_of_4.trace.replay(slow_rank_2, compute=[100] * 4)
print("predicted:", predicted_later_us)
print(f"rank 0 done at {fair.finish_us[0]:.0f} µs, and at {held_up.finish_us[0]:.0f} µs")
text = "All wait for rank 2, which computes for 500 µs instead of 100, and itself waits least."
plot_timeline(held_up, text)

# %% [markdown]
# The sum needs rank 2's numbers, so nobody can be done before they have come: rank 0 loses all of the 400 µs. No algorithm avoids that.
#
# **Check yourself.** Your all-reduces have become slow. How do you tell a slow rank from a slow link?
#
# <details><summary>Answer</summary>
# Look at the rows outside the calls. A slow rank computes longer than the others and waits least. With a slow link all compute as before, and all wait.
# </details>
#
# ## 7 · Two levels
#
# GPUs of one node talk faster than nodes do. Let 16 ranks stand in four nodes: 2 µs and 800 Gbit/s inside, 10 µs and 80 Gbit/s
# between. A **flat** ring through all 16, even in the best order, crosses from node to node in four places, and everybody waits for them.
#
# **Hierarchical**: each node first adds up so that each of its ranks owns a quarter of the node's sum (reduce-scatter). Ranks with equal local rank then add up their
# quarters across the nodes. At last each node shares its quarters (all-gather).


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


# %% [markdown]
# Inside a node the replay carries both collectives out as rings. **Predict.** By which factor is hierarchical faster, for 1,600 bytes and
# for 16 million?

# %%
predicted_gain = {"1,600 bytes": "?", "16,000,000 bytes": "?"}
two_level = Network(latency_us=2, gbit_s=800, nodes=4, between=(10, 80))
print("predicted:", predicted_gain)
print("     bytes     flat   hierarchical   gain   (µs, 16 ranks in 4 nodes)")
for size in (1_600, 160_000, 16_000_000):
    flat, layered = (recorded(a, 16, size) for a in (ring, hierarchical))
    flat_us, layered_us = finish_us(flat, two_level), finish_us(layered, two_level)
    says = 6 * (2 + size / 4 * beta / 10) + 6 * (10 + size / 16 * beta)
    assert abs(layered_us / says - 1) < 0.001
    print(f"{size:10,}{flat_us:9.0f}{layered_us:15.0f}{flat_us / layered_us:7.1f}")

# %%
two_nodes = replace(two_level, nodes=2)
replayed = recorded(hierarchical, 8, 1_600_000).trace.replay(two_nodes)
text = "Eight ranks in two nodes: add up inside a node, swap between the nodes, share inside again."
plot_timeline(replayed, text)

# %% [markdown]
# Fewer turns, 12 instead of 30, matter for small tensors. For large ones it is what passes a port between nodes: 6 sixteenths of the tensor instead of 30. That needs a port
# for every rank, as where each GPU has its own network card, and the model assumes it. Where a node's ranks share one card, less is gained.
#
# **Check yourself.** Why is the last phase not another all-reduce?
#
# <details><summary>Answer</summary>
# The quarters are finished sums already. To have them everywhere, nothing must be added, only gathered.
# </details>
#
# ## 8 · Thousands of ranks
#
# You cannot start 16,384 ranks here, but you have seen the formulas hold on 4, 8 and 16. Here are 64. A thousand would need a thousand processes and half a million
# connections, 1,024 · 1,023 / 2, all of them on your cores.

# %%
run = recorded(ring, 64, 64_000)
print("messages:", sum(run.trace.traffic().sent_messages))
print(f"replay {finish_us(run):.1f} µs, formula {formula[ring](64, 64_000):.1f} µs")

# %% [markdown]
# The ring's turns grow with *n*, a tree's levels with log₂ *n*. Can one have both, few messages *and* small ones? Yes: **halving and doubling**, Rabenseifner's
# algorithm, described by Thakur, Rabenseifner and Gropp (2005). Partners far apart swap halves and add, then quarters with nearer partners, then
# eighths; then all the way back. It takes 2 log₂ n · alpha + 2(n − 1) / n · S · beta.


# %%
def swap(partner, outgoing, incoming):
    sending = dist.isend(outgoing, partner)
    dist.recv(incoming, partner)
    sending.wait()


def halving(x):  # for powers of two
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
formula[halving] = lambda n, size: 2 * math.log2(n) * alpha + 2 * (n - 1) / n * size * beta
for n in (4, 8, 16):
    took, says = finish_us(recorded(halving, n, 80_000)), formula[halving](n, 80_000)
    assert abs(took / says - 1) < 0.001
    print(f"{n:3} ranks: replay {took:.1f} µs, formula {says:.1f} µs")

# %% [markdown]
# Now by formula. 25 MiB is the size at which DDP starts an all-reduce of gradients, its default bucket.
#
# **Predict.** At 8 ranks the ring beats the tree by more than three. Who wins at 16,384?

# %%
predicted_at_16384 = "?"
bucket_bytes = 25 * 2**20
print("predicted:", predicted_at_16384)
print("   ranks   direct     tree     ring  halving    bound   (ms, 25 MiB)")
for n in (8, 64, 1_024, 16_384):
    times = [formula[a](n, bucket_bytes) for a in formula] + [bound_us(n, bucket_bytes)]
    print(f"{n:8,}" + "".join(f"{us / 1000:9,.1f}" for us in times))

# %%
figure, axes = plt.subplots(figsize=(8, 4.4))
ranks = 2 ** np.arange(1, 15)
for i, algorithm in enumerate(formula):
    times_ms = [formula[algorithm](int(n), bucket_bytes) / 1000 for n in ranks]
    axes.loglog(ranks, times_ms, **rank_style(i), label=algorithm.__name__)
best_ms = bound_us(ranks, bucket_bytes) / 1000
axes.loglog(ranks, best_ms, color="#777777", lw=5, alpha=0.4, label="bound")
axes.axvspan(2, 16, color="#eeeeee", zorder=0)
axes.text(2.2, 8e4, "all ran\nfor real", va="top")
axes.set(xlabel="ranks", ylabel="one all-reduce of 25 MiB (ms, formula)")
axes.set_xticks([8, 64, 1_024, 16_384], ["8", "64", "1,024", "16,384"], minor=False)
axes.minorticks_off()
axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
text = "The ring follows the bound at first, then its latency takes over; halving stays near it."
show(figure, text)

# %% [markdown]
# At 16,384 ranks the ring takes 333 ms, 327.7 of which are its 32,766 turns' latency, and loses even to the tree. Halving needs 28 turns and stays within 6 %
# of the bound.
#
# The model is kind to it, though: it lets any two ranks talk at full speed, while in a real cluster far partners share cables, which is Patarasuk and Yuan's argument for rings.
# With levels, as in part 7, less travels far.
#
# **Check yourself.** Your training has 1,024 ranks and 1,000 tensors of 25 KB to reduce in every step. What do you do before choosing any algorithm?
#
# <details><summary>Answer</summary>
# Put them into one bucket of 25 MB. One by one, each pays the ring's 20 ms of latency, 20 s in all; together they pay it once. That is why DDP has buckets.
# </details>
#
# ## What you know now
#
# A message costs alpha + *m* · beta, and the busiest port decides. Few large messages through one port (direct), few turns (tree), evenly loaded ports (ring), or both
# (halving): the size, the network and the number of ranks choose the winner, and a formula that you have checked tells it in advance. A stopwatch on one
# machine does not.
#
# Next: [07 · Data, batches and numerics](07_data_batches_numerics.ipynb).
#
# *Sources.* R. Hockney, The communication challenge for MPP, Parallel Computing 20, 1994. R. Thakur, R. Rabenseifner and W. Gropp, Optimization of
# collective communication operations in MPICH, International Journal of High Performance Computing Applications 19, 2005. P. Patarasuk and X. Yuan, Bandwidth
# optimal all-reduce algorithms for clusters of workstations, Journal of Parallel and Distributed Computing 69, 2009, pages 117 to 124.
