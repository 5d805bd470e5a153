# %% [markdown]
# # 06 · What communication costs
#
# **Why does one all-reduce win on your laptop and another on a cluster, and how large must a batch be to hide it?**
#
# In 100 minutes you will be able to
#
# 1. say what a message costs from two numbers, and what this model leaves out;
# 2. write the cost of an all-reduce as a formula, and check it with real ranks;
# 3. fit the two numbers to published measurements, and judge how far to trust them;
# 4. work out which local batch hides the all-reduce on *n* ranks.
#
# **Hardware:** any computer with two cores; all ranks here use gloo on the CPU.
# **Before:** [03 · Collective primitives](03_collective_primitives.ipynb) and [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Next:** [07 · Data and batches](07_data_batches_numerics.ipynb).
# **Lab:** [06 · What communication costs](../exercises/06_what_communication_costs.ipynb).
#

# %% [markdown]
# Five cells ask you to **predict**: put your answer in place of the three dots, and a later cell shows it next to the result. Four cells ask you to **write** a function. Saved
# outputs give answers away. Clear them first: *Edit*, *Clear Outputs of All Cells*.

# %%
import functools
import math
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from course_lessons import chapter_06
from course_lessons import chapter_06_pictures as pictures
from course_lessons.chapter_06 import halving, recorded, recorded_all, ring, several_rings, tree
from course_lessons.drawing import draw_pairs
from course_lessons.finished import go_on_with
from course_utils import Network, check, explore, launch, plot_timeline, predict

# %% [markdown]
# ## 1 · What one message costs
#
# Two numbers describe a message well (Hockney, 1994). The **latency** alpha is the time until the first byte arrives. The **time per byte** beta is
# one over the bandwidth. A message of *m* bytes takes alpha + *m* · beta.

# %% [markdown]
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
# One byte takes 10.0001 µs on this network, and a million bytes take 110. The two parts are equal at alpha / beta = 100,000 bytes.

# %% [markdown]
# **What the model assumes.** Remember these five points whenever a virtual time surprises you.
#
# - Each rank has one **port** out and one port in. A port carries one message at a time, which keeps it busy for *m* · beta. The two ports work at the same time.
# - A send is **buffered**: the message leaves as soon as the port is free, whether or not anybody waits for it. A real `dist.send` with gloo waits for its receiver (chapter 03).
# - Adding up and copying cost nothing. Nor does starting a call or a GPU kernel.
# - Nothing is shared between the ports. The switch is never too busy.
# - Only ranks add. Part 6 comes back to switches that do.

# %% [markdown]
# The second point has a consequence. Below, four ranks each send to the right, then receive from the left. By the model this takes 10 µs. With real ranks it never ends: the cell
# fails on purpose, after four seconds.


# %% tags=["raises-exception"]
def everybody_sends_first():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    box = torch.zeros(1)
    dist.send(box, (rank + 1) % world_size)
    dist.recv(box, (rank - 1) % world_size)


launch(everybody_sends_first, world_size=4, backend="gloo", timeout=4)

# %% [markdown]
# No single rank is to blame: each waits for the next one. So a virtual time doesn't prove that a program ends. In this chapter the proof is always a real run: it is recorded
# first, and replayed afterwards.

# %% [markdown]
# Now two runs with messages of a million bytes. In the first, ranks 1 to 3 send to rank 0. In the second, ranks 0 and 1 swap, and so do ranks 2 and 3.

# %% [markdown]
# **Predict.** How many µs does each run take? Answer with a list of two numbers.

# %%
ports_us = predict("µs for three to one, and for two pairs", ..., count=2)


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

# %% [markdown]
# **Check yourself.** Somebody puts a switch ten times faster between the ranks' network cards. What does the first run gain?
#
# <details><summary>Answer</summary>
# Nothing: rank 0's own port is the narrow place. Only the latency may change.
# </details>

# %% [markdown]
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
# A **tree** spreads that work. Rank 1 sends to 0 while 3 sends to 2, then 2 sends to 0, and so on. The sum travels back the same way. You'll write one in the lab.
#
# The **ring** you wrote in chapter 03: in each step, each rank sends one chunk to the right and takes one from the left.

# %% [markdown]
# Both are imported. Every recorded run also checks its sum: rank *r* brings *r* + 1 times a pattern, so we know what must come out.

# %%
of_80_kb = recorded_all((direct, tree, ring), 8, (80_000,))
pictures.draw_traffic({way.__name__: trace for (way, _), trace in of_80_kb.items()})

# %% [markdown]
# All three send **the same** 1,120,000 bytes, 2(n − 1) times the tensor. The ring needs eight times as many messages. But it
# spreads the bytes evenly: its busiest port takes in 140,000 bytes, where rank 0 of the direct way takes in 560,000. Each message that has to wait for the one before costs
# latency, and each byte at the busiest port costs time too.

# %% [markdown]
# Here are the ring's steps on four ranks. In each step every rank sends one quarter and receives a different one.

# %%
ring_of_4 = recorded(ring, 4, 800_000)
text = "Six steps of 30 µs: in each, all send a quarter to the next rank at the same time."
plot_timeline(ring_of_4.replay(network), text)

# %% [markdown]
# **Check yourself.** Why six steps for four ranks?
#
# <details><summary>Answer</summary>
# A chunk takes n − 1 = 3 steps round the other ranks, until all have added their part. It takes 3 more to bring the finished sum to the ranks that lack it. That makes 2(n − 1).
# </details>

# %% [markdown]
# ## 3 · Time against size
#
# ### Write the price
#
# *About 12 minutes.* Now each algorithm can be priced. The table says what can only happen one after the other, with *n* ranks and *S* bytes.
#
# | | steps, one after the other |
# | --- | --- |
# | direct | in and out, n − 1 tensors through rank 0's port each way |
# | tree | log₂ n levels up and as many down, whole tensors |
# | ring | 2(n − 1) steps of S / n bytes |


# %%
def all_reduce_us(algorithm, n, size, alpha, beta):
    """What an all-reduce takes in µs, by "direct", "tree" (n is a power of two) or "ring"."""
    raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A step costs alpha once, and beta for each byte of the busiest port. For the direct way: do the tensors that queue at rank 0's port each pay the latency?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Part 1 has it: three messages at one port took 10 + 3 · 100 µs, not 3 · 110. They travel at the same time and queue only for their bytes. In the tree and in the ring, a step begins when the one
# before has arrived, so each step pays alpha.
# </details>
# <details><summary>Hint 3: the code</summary>
# The ring's line is <code>return 2 * (n - 1) * (alpha + size / n * beta)</code>.
# </details>

# %% [markdown]
# The check records real ranks at eight rank counts, from 2 to 9, and replays them with a latency and a bandwidth that are new each time. Your formula must say the same.

# %%
price_check = chapter_06.price_check(direct)
price = check(all_reduce_us, **price_check)
price

# %% [markdown]
# Each mark is your result for one case (ours, until yours is written), divided by what the replay says. So all marks of a right formula lie on the line at 1.

# %%
price_us = go_on_with(all_reduce_us, price, chapter_06.all_reduce_us)
pictures.draw_formula(price_check, all_reduce_us, chapter_06.all_reduce_us)


def time_us(algorithm, n, size):
    """On the network of this chapter."""
    return price_us(algorithm.__name__, n, size, alpha, beta)


# %% [markdown]
# Nobody told the replay which algorithm it was looking at. It sent the recorded messages through the ports, and out came the formulas. So for networks and rank counts that we
# can't record, we may use the formulas.
#
# **Predict.** Eight ranks add up 800 bytes, then 8 million. Which of the three wins each time? Answer with a list of two words.

# %%
winners = predict("winners for 800 and 8,000,000 bytes", ..., count=2)

# %%
sizes = (800, 8_000, 40_000, 64_000, 160_000, 224_000, 1_600_000, 8_000_000)
algorithms = (direct, tree, ring)
of_8 = recorded_all(algorithms, 8, sizes)
took_us = {a: [finish_us(of_8[a, size]) for size in sizes] for a in algorithms}
best = [min(algorithms, key=lambda a: took_us[a][i]).__name__ for i in range(len(sizes))]
print("     bytes   direct     tree     ring   (µs, 8 ranks)")
for i, size in enumerate(sizes):
    print(f"{size:10,}" + "".join(f"{took_us[a][i]:9.0f}" for a in algorithms) + f"   {best[i]}")
winners.measured([best[0], best[-1]])
chapter_06.draw_times(time_us, took_us, sizes)

# %% [markdown]
# Each algorithm is the best for some sizes. That's why MPI libraries choose by size ([Thakur, Rabenseifner and Gropp, 2005](https://doi.org/10.1177/1094342005051521)).

# %% [markdown]
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
latencies_us, teams_us = (1, 2, 4, 4.5, 5, 8, 10), {"ring team": [], "direct team": []}
for latency_us in latencies_us:
    done = raced.trace.replay(replace(network, latency_us=latency_us)).finish_us
    teams_us["ring team"].append(max(done[:4]))
    teams_us["direct team"].append(max(done[4:]))
pictures.draw_race(latencies_us, teams_us)

# %% [markdown]
# The lead changes at 4.5 µs. Less latency helps the team that sends many messages, one after the other. Less bandwidth hurts the team with the busier port.
# "The ring is fastest" is a statement about a size and a network, not about rings.

# %% [markdown]
# **Check yourself.** What must you change so that the ring is never worth it?
#
# <details><summary>Answer</summary>
# The bandwidth would have to be infinite. With any other, a large enough tensor makes the busiest port decide, and the ring's ports are the least busy.
# </details>

# %% [markdown]
# ## 4 · What the stopwatch says
#
# Why all this, when one could time the real processes? Let's do it: the same functions, with eight ranks on your machine. Ring and direct run in turn, and the slowest rank's time
# counts. Here is the ring's time divided by that of the direct way.


# %%
print("ring / direct, 8 ranks   network   this machine (middle half of the rounds)")
for size_bytes, rounds in ((8_000, 9), (1_000_000, 9), (8_000_000, 5)):
    virtual = time_us(ring, 8, size_bytes) / time_us(direct, 8, size_bytes)
    middle, low, high = chapter_06.ring_by_direct(direct, size_bytes, rounds)
    here = f"about {middle:.1f}   (about {low:.1f} to about {high:.1f})"
    print(f"{size_bytes:16,} bytes{virtual:10.2f}       {here}")

# %% [markdown]
# On the network, the ring wins by a factor of more than four at a million bytes. On the two cores that made this page it *lost*. Part 2 says why: both send the same bytes, and here
# all bytes pass through the same cores and the same memory. All that remains of the ring is its price, eight times as many messages.

# %% [markdown]
# With more cores your numbers may differ. **They describe your machine's cores, not any network.** That's why this course never argues from times between processes of one machine.

# %% [markdown]
# ## 5 · What others have measured
#
# Measuring is right, on the network in question. We have no cluster here. But people publish tables of [nccl-tests](https://github.com/NVIDIA/nccl-tests), NVIDIA's own
# benchmark, when they ask for help. All numbers below are copied from such threads. (They are the "out-of-place" times, where the result goes to a tensor of its own.)

# %% [markdown]
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


# %%
fitted = check(fit, **chapter_06.fit_check)
fitted

# %% [markdown]
# Here is your line, or ours until yours is written, through nine made-up times. They lie up to 20 % off a straight line.

# %%
fit_line = go_on_with(fit, fitted, chapter_06.fit)
pictures.draw_fit(fit, chapter_06.fit)

# %% [markdown]
# The first table is of **four GPUs on PCIe** that add up 256 KiB to 1 GiB ([nccl issue 445](https://github.com/NVIDIA/nccl/issues/445)). The picture shows the line that your
# function finds, or ours until it has passed, and the percentage by which that line is off.

# %%
pcie_x4 = [
    (262_144, 122.3), (524_288, 198.8), (1_048_576, 349.1), (2_097_152, 670.8),
    (4_194_304, 1_312.7), (8_388_608, 2_605.3), (16_777_216, 5_183.1), (33_554_432, 10_339),
    (67_108_864, 20_653), (134_217_728, 41_278), (268_435_456, 82_503), (536_870_912, 164_854),
    (1_073_741_824, 328_867),
]  # fmt: skip
pictures.draw_lines(pcie_x4, fit_line)

# %% [markdown]
# Two numbers describe sizes that differ by a factor of 4,096, to within 3.2 %. If NCCL used a ring of four, the line is 6 · alpha + 1.5 · *S* · beta. Then alpha is 40.1 / 6 = 6.7
# µs, and a port carries about 1.5 · 3.28 = 4.9 GB/s. nccl-tests call this the [**bus bandwidth**](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md).

# %% [markdown]
# The second table is of **two RTX 2080 Ti with an NVLink bridge** ([nccl-tests issue 44](https://github.com/NVIDIA/nccl-tests/issues/44)), from 32 KiB to 128 MiB. These are times
# of `all_gather`, the second half of an all-reduce. Its formula is a line too, with other factors. (Only three rows of their `all_reduce` are legible.)
#
# Does one line fit all sizes here, too?

# %%
nvlink_x2 = [
    (32_768, 13.39), (65_536, 16.57), (131_072, 23.07), (262_144, 31.38), (524_288, 36.00),
    (1_048_576, 47.38), (2_097_152, 70.44), (4_194_304, 120.1), (8_388_608, 212.5),
    (16_777_216, 418.5), (33_554_432, 817.8), (67_108_864, 1_568.3), (134_217_728, 3_298.6),
]  # fmt: skip
pictures.draw_lines(nvlink_x2, fit_line)

# %% [markdown]
# It misses by up to 28 %, and the misses aren't noise: neighbours miss to the same side. Look at 128 to 512 KiB. From 128 to 256 KiB the time grows by 8.3 µs, and from 256 to 512 KiB, twice the step, by 4.6 µs
# only. No straight line does that. Two lines do:

# %%
pictures.draw_lines(nvlink_x2, fit_line, (slice(0, 4), slice(4, None)))

# %% [markdown]
# NCCL has **protocols**. Under `LL`, 4 bytes of flags travel with every 4 bytes of data. The flag tells the receiver that the data has come, so `LL` starts fast, but reaches half
# of the bandwidth at most. `LL128` has 8 bytes of flags for 120 of data, and can reach 95 %. `Simple` sends data only, and has to wait for slow memory barriers instead
# ([what a maintainer says](https://github.com/NVIDIA/nccl/issues/281)).

# %% [markdown]
# It also has several algorithms; today its source lists [seven, and three protocols](https://github.com/NVIDIA/nccl/blob/master/src/include/plugin/nccl_tuner.h). For each size NCCL
# estimates, with a model like ours, what each algorithm would take with each protocol, and runs the cheapest. So its times are pieces of several lines. The thread doesn't say
# which algorithms ran here. Newer versions of NCCL print their choice if you set `NCCL_DEBUG=INFO` and `NCCL_DEBUG_SUBSYS=TUNING` ([how to read the
# log](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/logging.html)).

# %% [markdown]
# So how far may one trust a line **outside** the sizes it was fitted to? Here the four smallest sizes of each table predict its largest.

# %%
pictures.draw_beyond({"four on PCIe": pcie_x4, "two on NVLink": nvlink_x2}, fit_line)

# %% [markdown]
# On PCIe the line holds within 4 %, 512 times beyond the last size it was fitted to. On NVLink it says more than three times the real time. Nothing in the line warns you, so measure once where you need it.

# %% [markdown]
# **Check yourself.** You fit to sizes up to 64 KB only. Which of the two numbers would you not trust for 25 MB?
#
# <details><summary>Answer</summary>
# Above all the time per byte. Latency is most of the time there, so the slope hardly shows. And a different protocol may carry the 25 MB.
# </details>

# %% [markdown]
# ## 6 · How good can it get?
#
# If **only ranks add**, through one port in and one out, at least 2(n − 1) / n · S bytes pass the busiest port. So an all-reduce takes **2(n − 1) / n · S · beta** or more.
# [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002) prove this. The ring reaches this lower bound, but for its latency.


# %%
def bound_us(n, size):
    return 2 * (n - 1) / n * size * beta


shares = {}
for a in algorithms:
    shares[a.__name__] = [bound_us(8, size) / us for size, us in zip(sizes, took_us[a])]
pictures.draw_bound(sizes, shares)

# %% [markdown]
# Direct stays at 12.5 %: one port of eight does all the work. The ring reaches 90.9 % at 8 million
# bytes, and more for larger ones. At 800 bytes all are under 1 %, because there latency counts.

# %% [markdown]
# **The bound falls with its premise.** NVIDIA's NVSwitch can add inside the switch (NVLink SHARP). A rank then sends its tensor about once and receives the sum about once.

# %% [markdown]
# Eight H200 show 475 GB/s
# of bus bandwidth on links of 450 ([nccl-tests issue 272](https://github.com/NVIDIA/nccl-tests/issues/272)), and others see 480
# ([issue 312](https://github.com/NVIDIA/nccl-tests/issues/312)). They don't beat the cable. nccl-tests compute the bus bandwidth from the bytes that a ring would send, and with
# SHARP fewer are sent.

# %% [markdown]
# **Our tree is not NCCL's.** Ours sends whole tensors, level after level. NCCL's is *pipelined*: it sends small pieces, so all levels work at once, and a rank sends about 2 *S*
# ([issue 457](https://github.com/NVIDIA/nccl/issues/457)).

# %% [markdown]
# There are *two* trees in NCCL, each for half of the data. A leaf of one is an inner node of the other, so that no port idles (Sanders, Speck and Träff, Two-tree algorithms,
# Parallel Computing 35, 2009).

# %% [markdown]
# ## 7 · One slow link, one slow rank
#
# In the recordings of part 3, let the link from rank 2 to rank 3 be ten times slower. The other 55 links stay as they are.

# %% [markdown]
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
text = "Rank 2's outgoing port never rests, and in the end everybody waits for it."
plot_timeline(of_8[ring, 8_000_000].replay(one_slow_link), text)

# %% [markdown]
# One bad link of 56 makes the whole ring 9.2 times slower, because a chunk must pass it in each of the 14 steps. The direct way never uses that link. A ring is as slow as its worst cable.

# %% [markdown]
# And a slow **rank**? Four ranks compute for 100 µs each and then add up 800,000 bytes. Now rank 2 needs 500 µs.

# %% [markdown]
# **Predict.** By how many µs is rank 0 done later, with the ring and with the direct way? Answer with a list of two numbers.

# %%
later_us = predict("µs that rank 0 is later, ring and direct", ..., count=2)

# %%
slow_rank_2 = replace(network, slow_ranks={2: 5})
late = []
for trace in (ring_of_4, recorded(direct, 4, 800_000)):
    fair, held_up = (trace.replay(net, compute=[100] * 4) for net in (network, slow_rank_2))
    late.append(round(held_up.finish_us[0] - fair.finish_us[0]))
later_us.measured(late)
plot_timeline(held_up, "Directly: while rank 2 computes, the tensors of ranks 1 and 3 arrive.")

# %% [markdown]
# The ring loses all of the 400 µs, since each step waits for the one before. The direct way loses 240. Nobody is done before rank 2's numbers come. But while rank 0 waits for them,
# it takes in the other two tensors, which costs 160 µs in any case. How much delay is hidden depends on the algorithm.

# %% [markdown]
# **Check yourself.** Your all-reduces have become slow. How can you tell whether a rank is slow or a link?
#
# <details><summary>Answer</summary>
# Look at what happens outside the calls. A slow rank computes longer than the others and waits least. With a slow link all compute as before, and all wait.
# </details>

# %% [markdown]
# ## 8 · Two levels
#
# GPUs of one node talk faster than nodes do. Put 16 ranks on four nodes: 2 µs and 800 Gbit/s inside, 10 µs and 80 Gbit/s
# between.

# %% [markdown]
# A **flat** ring crosses from node to node in four places, and everybody waits for them. Where each rank has a network card, **four rings** do better: each carries a quarter of the tensor, and
# goes through the ranks of a node in an order that makes it leave by a different card. That's the imported `several_rings`.

# %% [markdown]
# **Hierarchical**: each node first adds up so that each of its ranks owns a quarter of the node's sum (`reduce_scatter`). Ranks with equal local rank then add up their
# quarters across the nodes. Finally, each node shares its quarters (`all_gather`).


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


# %%
def four_rings(x):
    several_rings(x, per_node=4)


# %%
two_level = Network(latency_us=2, gbit_s=800, nodes=4, between=(10, 80))
forms = (ring, hierarchical, four_rings)
print("     bytes one ring   hierarchical   four rings   (µs, 16 ranks in 4 nodes)")
of_16 = recorded_all(forms, 16, (160_000, 16_000_000))
for size in (160_000, 16_000_000):
    ring_us, layered_us, rings_us = (finish_us(of_16[a, size], two_level) for a in forms)
    print(f"{size:10,}{ring_us:9.0f}{layered_us:15.0f}{rings_us:13.0f}")
by_form = {form.__name__: of_16[form, 16_000_000].traffic().bytes for form in forms}
draw_pairs(by_form, per_node=4)

# %% [markdown]
# Fewer steps, 12 instead of 30, help small tensors. (The four rings are slow there: in each of the 30 steps a rank waits for its message in all four rings, and one of these
# messages always comes from another node.) For large ones,
# what counts is how much passes a port between nodes: 30 sixteenths of the tensor with one ring, 7.5 with four, 6 in the hierarchical way.

# %% [markdown]
# So the hierarchical way is 3.3 times as fast as one ring, but only 1.4 times as fast as four, and several rings are what NCCL builds. All this needs a network card for every rank,
# and the model assumes it.

# %% [markdown]
# ### Write what passes a card
#
# *About 10 minutes.* For large tensors the cards between the nodes decide. **Write** how long the busiest one is busy, for *S* bytes on nodes of *k* ranks, each with a card of its own. Leave latency
# out, and all that happens inside a node.


# %%
def crossing_us(algorithm, nodes, per_node, size, beta):
    """How long the busiest card is busy, in µs: "one ring", "several rings" or "two levels"."""
    raise NotImplementedError("about 6 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The text above gives the results for four nodes of four: 30 sixteenths of the tensor, then 7.5, then 6. Where do the 30 come from, and what are they divided by?
# </details>
# <details><summary>Hint 2: the approach</summary>
# In one ring, all 2(n − 1) chunks of a link cross at one card. With several rings each card gets the ring of its own part of the tensor. In two levels, a card carries a ring of only as many ranks as there are nodes, for
# its part of the tensor.
# </details>
# <details><summary>Hint 3: the code</summary>
# Two levels: <code>return 2 * (nodes - 1) / nodes * size / per_node * beta</code>.
# </details>

# %% [markdown]
# The check records all three in eight layouts, from two nodes of two to six nodes of two, and replays them on a network where only the cards cost time.

# %%
crossing_check = chapter_06.crossing_check(hierarchical)
crossing = check(crossing_us, **crossing_check)
crossing

# %%
card_us = go_on_with(crossing_us, crossing, chapter_06.crossing_us)
pictures.draw_formula(crossing_check, crossing_us, chapter_06.crossing_us)

# %% [markdown]
# And on larger clusters, with 8 ranks in each node:

# %%
node_counts, ways_ms = (2, 4, 16, 128), {}
for way in ("one ring", "several rings", "two levels"):
    ways_ms[way] = [card_us(way, nodes, 8, 25 * 2**20, beta) / 1000 for nodes in node_counts]
pictures.draw_cards(node_counts, ways_ms)

# %% [markdown]
# With many nodes, two levels save hardly any bytes over several rings. What they save then is steps.

# %% [markdown]
# ### Three real nodes
#
# [nccl-tests issue 119](https://github.com/NVIDIA/nccl-tests/issues/119) shows three nodes of eight A100s, each with four InfiniBand cards. There a maintainer of NCCL counts 24 GB/s for such a card, so 96 GB/s
# for a node.

# %% [markdown]
# NCCL builds [flat rings](https://github.com/NVIDIA/nccl/issues/471), several of them, which share the cards. So our model **predicts** before it has seen a single time: 2 · 23/24
# · *S* bytes leave each node at 96 GB/s. First we check this formula against the replay of 24 real ranks.

# %%
islands = Network(latency_us=0, gbit_s=230 * 8, nodes=3, between=(0, 96 * 8))
replay_us = finish_us(recorded(ring, 24, 2_400_000), islands)
print(f"2.4 MB: replay {replay_us:.1f} µs, formula {2 * 23 / 24 * 2_400_000 / 96_000:.1f} µs")

# %%
three_nodes = [
    (23_068_680, 518.4), (28_311_560, 622.4), (33_554_440, 732.9), (75_497_480, 1_678.7),
    (83_886_088, 1_876.1), (84_934_664, 1_903.9), (85_983_240, 1_757.8), (87_031_816, 1_781.5),
    (127_926_280, 2_560.7), (133_169_160, 2_666.0),
]  # fmt: skip
pictures.draw_three_nodes(three_nodes, gb_s=96, ranks=24)

# %% [markdown]
# From 86 MB on, the prediction is right within 3 %. Below, it is 9 to 11 % too low. And look where this changes: **86.0 MB take 146 µs less than 84.9 MB.** No line with a positive beta can say that. Most likely NCCL
# switches there to a different algorithm or protocol. The thread doesn't say to which.

# %% [markdown]
# And **eight A100s in one node**? [nccl-tests issue 149](https://github.com/NVIDIA/nccl-tests/issues/149) reports about 200 GB/s of bus bandwidth, and [nccl issue
# 1048](https://github.com/NVIDIA/nccl/issues/1048) 232.5. Between the three nodes above, the eight GPUs of a node share 96 GB/s. That's why it pays to add inside the nodes first.

# %% [markdown]
# **Check yourself.** Why doesn't the hierarchical way end with an all-reduce?
#
# <details><summary>Answer</summary>
# The quarters are finished sums already. To have them everywhere, nothing must be added, only gathered.
# </details>

# %% [markdown]
# ## 9 · Thousands of ranks
#
# The ring's steps grow with *n*, a tree's levels with log₂ *n*. **Halving and doubling**, Rabenseifner's algorithm, has few messages *and* small ones. First, partners far apart
# swap halves of their tensors and add. Then nearer ones swap quarters, then eighths, until each rank has one finished piece. The pieces are gathered by the same steps in reverse.
# The price is 2 log₂ n · alpha + 2(n − 1) / n · S · beta.


# %%
def halving_us(n, size):
    return 2 * math.log2(n) * alpha + bound_us(n, size)


took = finish_us(recorded(halving, 16, 80_000))
print(f"16 ranks: replay {took:.1f} µs, formula {halving_us(16, 80_000):.1f} µs")
bucket_bytes = 25 * 2**20  # DDP starts an all-reduce when it has so many bytes of gradients
ranks = (8, 64, 1_024, 16_384)
formulas = {a.__name__: functools.partial(time_us, a) for a in algorithms}
formulas |= {"halving": halving_us, "bound": bound_us}
in_ms = {}
for name, formula in formulas.items():
    in_ms[name] = [formula(n, bucket_bytes) / 1000 for n in ranks]
pictures.draw_ranks(ranks, in_ms)

# %% [markdown]
# At 16,384 ranks the ring takes 333 ms, of which 327.7 are the latency of its 32,766 steps. It loses even to our tree. Halving needs 28 steps, and stays within 6 % of the bound. But
# the model is kind to it: on a real cluster, far partners share cables.

# %% [markdown]
# ## 10 · Which local batch hides the all-reduce?
#
# DDP reduces a bucket while the backward pass computes the next gradients. A larger local batch makes the backward pass longer, and the gradients stay as large as they are. So from
# some batch on, all the all-reduces together take no longer than the backward pass.

# %% [markdown]
# ### Write the batch that hides
#
# *About 8 minutes.* **Write** this batch as a closed form: the number of samples, whole or not, whose backward pass takes exactly as long as all the rings of *n* ranks, one ring for each bucket, one after the other.


# %%
def hiding_batch(n, gradient_bytes, buckets, backward_us, alpha, beta):
    """Samples per rank; backward_us is what one sample's backward pass takes."""
    raise NotImplementedError("about 3 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What do the buckets pay together that a single ring of all gradients doesn't pay?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The bytes are the same, however they are cut. But each bucket's ring pays for its 2(n − 1) steps. Divide the sum by what a sample takes.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>all_reduces_us = 2 * (n - 1) * (buckets * alpha + gradient_bytes / n * beta)</code>
# </details>

# %%
hiding_check = chapter_06.hiding_check(direct)
hiding = check(hiding_batch, **hiding_check)
hiding

# %%
closed_form = go_on_with(hiding_batch, hiding, chapter_06.hiding_batch)
pictures.draw_formula(hiding_check, hiding_batch, chapter_06.hiding_batch)

# %% [markdown]
# For a language model a sample is a **token**, and the formula gets simpler. With *P* parameters, a backward pass takes about 4 *P* operations per token, and a forward pass [2
# *P*](https://arxiv.org/abs/2001.08361). In a ring a GPU sends about twice the gradients, which is 8 *P* bytes in float32. Say it does *C* operations per second, and sends *W*
# bytes per second.

# %% [markdown]
# **Predict.** A GPT of 1,240 million parameters replaces one of 124 million, on the same GPUs. How many times as many tokens per GPU hide its all-reduces?

# %%
times_tokens = predict("times as many tokens, for ten times the parameters", ...)


# %%
def hiding_tokens(parameters, n, teraflops=100, gbit_s=100, gradient_bytes=4):
    """By the closed form, with 13 buckets and a latency of 3 µs."""
    backward_us = 4 * parameters / (teraflops * 1e6)  # a teraflop is a million operations a µs
    return closed_form(n, gradient_bytes * parameters, 13, backward_us, 3, 8 / gbit_s / 1000)


# %%
print(
    "      parameters     tokens per GPU on 16 ranks   (100 Tflop/s, 100 Gbit/s, float32 gradients)"
)
for parameters in (124_000_000, 1_240_000_000, 12_400_000_000):
    print(f"{parameters:16,}{hiding_tokens(parameters, 16):31,.0f}")
growth = hiding_tokens(1_240_000_000, 16) / hiding_tokens(124_000_000, 16)
times_tokens.measured(round(growth, 1), within=0.1)

# %% [markdown]
# The size of the model cancels: 8 *P* / *W* seconds of sending, 4 *P* / *C* seconds of computing per token. What's left is **2 · C / W tokens per GPU**, 16,000 here, times (n − 1) /
# n. With gradients in bfloat16, half as many tokens are enough. *C* is what your GPU achieves, not what its data sheet says.

# %% [markdown]
# ### Bucket by bucket
#
# The closed form is only a lower limit. It lets the network work all the time, but the first bucket isn't ready at once, and nothing is left to compute while the last one travels. So now each bucket gets its own time.

# %% [markdown]
# We take **ResNet-50** and a small **GPT** (GPT-2 with 124 million parameters). Everything below is a **model**. A bucket is sent when its last gradient is ready and the bucket
# before it has been reduced. `ready` says how much of the backward pass is over by then. (One of the course's tests holds `longer_ms` against the replay of four real ranks.)

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
# [benchmark](https://github.com/pytorch/pytorch/blob/main/benchmarks/distributed/ddp/README.md) needs 97 ms for a batch of 32 on a V100: 3 ms per image.

# %% [markdown]
# For GPT we count 6 operations per parameter and token, 1,024 tokens, and 100 Tflop/s: 7.6 ms per sequence. That's bfloat16's speed, but autocast leaves gradients in float32
# (chapter 04). The output layer, 31 % of the work, comes first, then twelve blocks of 28.4 MB. The embedding is tied to the output, so its 157.5 MB come last.

# %% [markdown]
# We call the all-reduce **hidden** if a step gets at most 5 % longer.

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
def two_limits(model, n):
    """The two limits: all buckets beside the backward pass; the last one in 5 % of a step."""
    _, megabytes, step_ms = models[model]
    beta = 8e-5  # 100 Gbit/s
    all_bytes, last_bytes = 1e6 * sum(megabytes), 1e6 * megabytes[-1]
    beside = closed_form(n, all_bytes, len(megabytes), 1000 * step_ms * 2 / 3, 3, beta)
    after = closed_form(n, last_bytes, 1, 1000 * step_ms * 0.05, 3, beta)
    return beside, after


print("batch at 100 Gbit/s                2       16      128    1,024   16,384 ranks")
ranks, limits = (2, 16, 128, 1_024, 16_384), {}
for model in models:
    beside, after = zip(*[two_limits(model, n) for n in ranks])
    hidden = [hidden_from(model, n) for n in ranks]
    rows = {"all buckets": beside, "last bucket": after, "both": hidden}
    rows["both, 10 Gbit/s"] = [hidden_from(model, n, gbit_s=10) for n in ranks]
    limits[model] = rows
    for name, batches in rows.items():
        print(f"{model:11}{name:16}" + "".join(f"{batch:9,.1f}" for batch in batches))
pictures.draw_limits(ranks, limits)

# %%
chapter_06.draw_hiding(percent_longer, list(models))

# %% [markdown]
# In each case the last bucket's limit is the larger one, and for ResNet-50 it decides alone. For GPT that limit is about 16 % too low at up to 128 ranks, because the buckets before
# are still on their way when the last one is ready. At 16,384 ranks it is 45 % too low.

# %% [markdown]
# The batch grows far less than the number of ranks, as long as bandwidth decides: a ring's bytes per port stay below twice the gradients. From 16 to 128 ranks ResNet-50 needs half as much again. Then the latency takes
# over, once for each bucket.

# %% [markdown]
# Ten times less bandwidth costs about ten times the batch on 2 and 16 ranks, and less where latency counts: for ResNet-50 seven times on 128 ranks.

# %% [markdown]
# ### Which bucket size?
#
# The [DDP paper](https://www.vldb.org/pvldb/vol13/p3005-li.pdf) (Li and others, VLDB 2020) measured many sizes, but shows the times only as plots, without numbers to quote.

# %% [markdown]
# PyTorch's benchmark has numbers for two bucket sizes, measured on two nodes of eight V100, with four cards of 100 Gbit/s in each. The maintainer of issue 119 counts 12 GB/s for
# such a card, so 48 GB/s for a node.
# `step_ms` cuts the gradients into buckets of a different size and takes the shares between the recorded ones.


# %%
def step_ms(cap_mb, gbit_s, alone_ms=97, n=16):
    """What a step of ResNet-50 takes with buckets of so many megabytes, by the model."""
    recorded_mb = np.append(0, np.cumsum(resnet_mb))
    edges = np.append(np.arange(cap_mb, recorded_mb[-1], cap_mb), recorded_mb[-1])
    ready = np.interp(edges, recorded_mb, [0, *resnet_ready])
    return alone_ms + longer_ms(ready, np.diff(edges, prepend=0), alone_ms * 2 / 3, n, gbit_s)


# %%
caps_mb, by_network = (1, 5, 25, 103), {}
for name, gbit_s in {"10 Gbit/s": 10, "48 GB/s": 48 * 8}.items():
    by_network[name] = [step_ms(cap_mb, gbit_s) for cap_mb in caps_mb]
pictures.draw_buckets(caps_mb, by_network, published_ms={1: 108, 25: 104})

# %% [markdown]
# On the slow network the size matters: by the model, 5 to 25 MB are best. With smaller ones latency is paid too often, and a single large bucket can only start when the backward
# pass is over.

# %% [markdown]
# On the fast network the model sees hardly a difference up to 25 MB, and **there it fails**: measured, 1 MB costs 4 % more than 25. Even the 104 are more than its 97.2. In the
# benchmark, DDP on a single GPU takes 100 already.

# %% [markdown]
# Likely reasons: calls have to be started, buckets copied, and NCCL's kernels take computing units from the backward pass. The model of part 1 sets all of this to zero.

# %% [markdown]
# **Check yourself.** On 64 GPUs with 10 Gbit/s each your ResNet-50 trains with a local batch of 16. What helps, other than a faster network?
#
# <details><summary>Answer</summary>
# A larger local batch; or the same batch with accumulation, that is, one all-reduce for several backward passes (chapter 04). Fewer bytes, for example gradients in half
# precision. A different bucket size can't help much: the sum of all buckets takes longer than the backward pass.
# </details>

# %% [markdown]
# ## What you know now
#
# A message costs alpha + *m* · beta, and the busiest port decides. The direct way has the fewest steps but one very busy port, the tree has few steps, the ring has evenly loaded
# ports, and halving has both. Which of them wins depends on the size, the network and the number of ranks.

# %% [markdown]
# Two numbers, fitted, describe measured times within a few percent, as long as NCCL does the same thing at all sizes. Where they fail, the
# deviations show it. Of the ten times that we predicted for three real nodes, four were right within 3 %, and six were 9 to 11 % too low.

# %%
predict()

# %% [markdown]
# Compare two of the five with your own guess. Rank 0 isn't 400 µs late both ways: with the direct way it's 240, because it works while it waits. And a model with ten times the
# parameters doesn't need more tokens per GPU: it sends ten times as much, and computes ten times as long.

# %% [markdown]
# Practise in [lab 06](../exercises/06_what_communication_costs.ipynb).
#
# **Next:** [07 · Data and batches](07_data_batches_numerics.ipynb).

# %% [markdown]
# *More sources.* R. Hockney, The communication challenge for MPP, Parallel Computing 20, 1994. Z. Hu and others, [Demystifying NCCL](https://arxiv.org/abs/2507.04786), 2025, on protocols and algorithms.
