# %% [markdown]
# # Lab 06 · What communication costs
#
# Five exercises on [chapter 06](../notebooks/06_what_communication_costs.ipynb) and a bonus, 75 minutes without the bonus, on any computer. Each exercise says how difficult it is
# and how important for the rest of the course, from ●○○ to ●●●.

# %% [markdown]
# `check` runs your function in real workers, compares what they return with a **specification**, and replays their recording on a modelled network: a right sum that takes too many
# bytes or too long does not pass. It measures virtual time, so a slow computer changes nothing.

# %%
import functools
import math
from collections import Counter

import torch
import torch.distributed as dist

from course_checks.cases import CASES
from course_utils import Network, check, progress

network = Network(latency_us=10, gbit_s=80)
alpha, beta = 10, 8 / 80_000  # microseconds, and microseconds per byte

# %% [markdown]
# ## 1 · Up the tree and down again
#
# *Difficulty ●●○ · importance ●○○ · 12 minutes.* The chapter imports its tree. Write your own: on many ranks it adds up small tensors, such as a loss, much faster than a ring.

# %% [markdown]
# **Goal:** return the sum of all ranks' `x` on every rank, by messages alone. With *n* ranks no rank may send more than log₂ *n* messages, rounded up, and all must be done within
# the chapter's time, 2 log₂ *n* · (alpha + *S* · beta), with its logarithm rounded up too. Any number of ranks may call it.


# %%
def tree_all_reduce_spec(tensors):
    return [sum(tensors) for _ in tensors]


# %%
def tree_all_reduce(x):
    ### BEGIN SOLUTION # rank and world size, then up, then down
    rank, world_size = dist.get_rank(), dist.get_world_size()
    step, children, arrived = 1, [], torch.empty_like(x)
    while step < world_size and rank % (2 * step) == 0:
        if rank + step < world_size:
            dist.recv(arrived, rank + step)
            x += arrived
            children.append(rank + step)
        step *= 2
    if rank != 0:
        dist.send(x, rank - step)
        dist.recv(x, rank - step)
    for child in reversed(children):
        dist.send(x, child)
    return x
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Write down, for six ranks, who sends to whom in each round. Which rank has nobody at the other end, and in which round?
# </details>
# <details><summary>Hint 2: the approach</summary>
# In rounds of step 1, 2, 4 and so on: a rank that is a multiple of twice the step receives from the rank one step further, if there is
# one, and adds. Any other rank sends to the one a step before it, and is done with the way up. The finished sum travels back over the same edges, the last first.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>while step &lt; world_size and rank % (2 * step) == 0:</code> says how long a rank receives. After it, <code>rank - step</code> is its
# parent. Note the children, for the way down.
# </details>


# %%
def tree_all_reduce_inputs(rank, world_size, case):
    return case.tensor()


def tree_all_reduce_budget(world_size, case):
    levels = math.ceil(math.log2(world_size))
    return {
        "sent_messages": levels,
        "finish_us": 2 * levels * (alpha + case.tensor().nbytes * beta),
    }


options = {"cases": CASES[:5], "world_sizes": (1, 2, 4, 5, 9), "forbid": ("collectives",)}
options |= {"budget": tree_all_reduce_budget, "network": network}
check(tree_all_reduce, spec=tree_all_reduce_spec, inputs=tree_all_reduce_inputs, **options)

# %% [markdown]
# ## 2 · How much of the all-reduce is left over?
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* In part 10 of the chapter all ranks are equally fast. Real ranks aren't. A bucket can be reduced when it is ready on **every**
# rank and the bucket before it has been reduced.

# %% [markdown]
# `ready_us` says when this rank's own buckets were ready, in µs since the backward pass began; its last entry is the end of this rank's backward pass.

# %% [markdown]
# **Goal:** return, as the same float on every rank, how many µs after the end of the slowest rank's backward pass the last bucket has been reduced. Price each bucket by the
# chapter's ring with the alpha
# and beta above. One `all_reduce` is enough, of one number per bucket.

# %% [markdown]
# | 2 ranks | bucket of 100,000 bytes | bucket of 20,000 bytes |
# | --- | --- | --- |
# | ready on rank 0, on rank 1 | 100, 120 | 200, 180 |
# | all-reduce takes | 2 · (10 + 5) = 30 | 2 · (10 + 1) = 22 |
# | from, to | 120 to 150 | 200 to 222: **22 µs** longer than 200 |


# %% jupyter={"source_hidden": true}
def left_over_spec(all_ready_us, all_bucket_bytes):
    n, free_us = len(all_ready_us), 0.0
    latest_us = torch.stack(list(all_ready_us)).amax(dim=0).tolist()
    for ready_us, size in zip(latest_us, all_bucket_bytes[0]):
        free_us = max(free_us, ready_us) + 2 * (n - 1) * (alpha + size / n * beta)
    return [free_us - latest_us[-1] for _ in all_ready_us]


# %%
def left_over(ready_us, bucket_bytes):
    ### BEGIN SOLUTION # agree first, then bucket by bucket
    dist.all_reduce(ready_us, op=dist.ReduceOp.MAX)  # a sum needs everybody, so the last one counts
    n, free_us = dist.get_world_size(), 0.0
    for latest_us, size in zip(ready_us.tolist(), bucket_bytes):
        begin_us = max(free_us, latest_us)  # the network has one bucket at a time
        free_us = begin_us + 2 * (n - 1) * (alpha + size / n * beta)
    return free_us - ready_us[-1].item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# For the first bucket in the table: who decides when it starts, and which <code>ReduceOp</code> finds it out for all buckets at once?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Take the maximum of the ready times over all ranks. Then go through the buckets. Each one starts when it is ready and the network is free, whichever is later, and takes the ring's
# time. What counts at the end is when the network is free, less the latest end of a backward pass.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>free_us = max(free_us, latest_us) + 2 * (n - 1) * (alpha + size / n * beta)</code> for each bucket.
# </details>


# %% jupyter={"source_hidden": true}
trainings = {  # bytes of the buckets, and how long a backward pass takes, in µs
    "one bucket": ([400_000], 300),
    "three small buckets, a long backward pass": ([30_000, 50_000, 9_000], 2_000),
    "three buckets, about as long as the backward pass": ([900_000, 700_000, 100_000], 600),
    "five large buckets, a short backward pass": ([2_000_000] * 4 + [300_000], 500),
    "a last bucket of no bytes": ([100_000, 100_000, 0], 400),
    "sixty buckets": ([50_000, 400_000, 7_000, 90_000] * 15, 4_000),
}


def left_over_inputs(rank, world_size, case):
    bucket_bytes, backward_us = trainings[case]
    gaps = 0.1 + torch.rand(len(bucket_bytes), dtype=torch.float64)
    slower = 1 + torch.rand((), dtype=torch.float64)
    return gaps.cumsum(0) / gaps.sum() * backward_us * slower, bucket_bytes


def left_over_budget(world_size, case):
    turns, numbers = 2 * (world_size - 1), len(trainings[case][0])
    return {"sent_bytes": turns / world_size * numbers * 8, "sent_messages": turns}


options = {"cases": list(trainings), "budget": left_over_budget, "world_sizes": (1, 2, 3, 5)}
options["atol"] = 1e-3  # µs: float32 holds a few milliseconds no better

# %%
check(left_over, spec=left_over_spec, inputs=left_over_inputs, **options)

# %% [markdown]
# ## 3 · One line through everybody's measurements
#
# *Difficulty ●●○ · importance ●○○ · 15 minutes.* You fitted a line to one table. Now the measurements are spread over the ranks: each has timed messages of its own, some ranks
# many, some a single one.

# %% [markdown]
# **Goal:** return (latency in µs, Gbit/s) of the one line with the least sum of squared **relative** errors over the measurements of all ranks, as two floats, the same on every
# rank. Measurements may not travel: one `all_reduce` of at most six numbers is enough.


# %%
def fit_spec(all_sizes, all_times_us):
    sizes, times_us = torch.cat(all_sizes), torch.cat(all_times_us)
    line = torch.stack([torch.ones_like(sizes), sizes], dim=1) / times_us[:, None]
    alpha, beta = torch.linalg.lstsq(line, torch.ones_like(line[:, :1])).solution.flatten().tolist()
    return [(alpha, 8 / beta / 1000) for _ in all_sizes]


# %%
def fit(sizes, times_us):
    ### BEGIN SOLUTION
    line = torch.stack([1 / times_us, sizes / times_us])
    sums = torch.cat([line @ line.T, line.sum(dim=1, keepdim=True)], dim=1)
    dist.all_reduce(sums)
    alpha, beta = torch.linalg.solve(sums[:, :2], sums[:, 2]).tolist()
    return alpha, 8 / beta / 1000
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The mean of all ranks' own lines is a different line. But what does a fit need to know of the measurements? Set the derivatives to zero, and look at what is left.
# </details>
# <details><summary>Hint 2: the approach</summary>
# With <i>u</i> = 1 / time and <i>v</i> = size / time, the line should make <i>u</i> · alpha + <i>v</i> · beta equal to 1, as nearly as can be. The derivatives vanish where
# Σ<i>uu</i> · alpha + Σ<i>uv</i> · beta = Σ<i>u</i> and Σ<i>uv</i> · alpha + Σ<i>vv</i> · beta = Σ<i>v</i>. Sums can be added up over ranks.
# </details>
# <details><summary>Hint 3: the code</summary>
# With <code>line = torch.stack([1 / times_us, sizes / times_us])</code> the sums are <code>line @ line.T</code> and
# <code>line.sum(dim=1)</code>; after their <code>all_reduce</code>, <code>torch.linalg.solve</code>.
# </details>

# %%
networks = {  # latency in µs, Gbit/s, and how many sizes a rank has timed
    "eight sizes on each rank": (10, 80, lambda rank: 8),
    "the more, the higher the rank": (50, 1, lambda rank: 5 + 40 * rank),
    "many on rank 0, one on any other": (240, 15, lambda rank: 1 if rank else 9),
}


def fit_inputs(rank, world_size, case):
    latency_us, gbit_s, count = networks[case]
    sizes = 4 ** (2 + 10 * torch.rand(count(rank), dtype=torch.float64))
    noise = 0.8 + 0.4 * torch.rand(len(sizes), dtype=torch.float64)
    return sizes, (latency_us + sizes * 8 / gbit_s / 1000) * noise


def fit_budget(world_size, case):
    turns = 2 * (world_size - 1)
    return {"sent_bytes": turns / world_size * 6 * 8, "sent_messages": turns}


options = {"cases": list(networks), "budget": fit_budget, "rtol": 1e-4}
check(fit, spec=fit_spec, inputs=fit_inputs, **options)

# %% [markdown]
# ## 4 · Choose, and agree
#
# *Difficulty ●●○ · importance ●●○ · 13 minutes.* Every rank has measured the network, and no two measured the same. If one chooses the ring and another the tree, each waits for a
# message that never comes.

# %% [markdown]
# **Goal:** return `"direct"`, `"tree"` or `"ring"`: whichever takes the least time for `size_bytes` on all *n* ranks, given the **worst** latency and the **worst** bandwidth that any rank has measured.


# %%
def turns_of(world_size):
    """For each algorithm its turns; a turn is messages (source, target, share of the tensor)."""
    ranks, others = range(world_size), range(1, world_size)
    steps = [2**k for k in range((world_size - 1).bit_length())]
    up = [[(r + step, r, 1) for r in range(0, world_size - step, 2 * step)] for step in steps]
    down = [[(parent, child, 1) for child, parent, _ in turn] for turn in reversed(up)]
    around = [(r, (r + 1) % world_size, 1 / world_size) for r in ranks]
    return {
        "direct": [[(r, 0, 1) for r in others], [(0, r, 1) for r in others]],
        "tree": up + down,
        "ring": [around] * (2 * len(others)),
    }


# %% [markdown]
# The specification knows the networks and how far off each rank's measurements are. A turn, that is, all messages that are sent at the same time, takes as long as its busiest
# port. The algorithm whose turns take the least time in all wins.


# %%
def choose_spec(cases, draws):
    measured = [measure(cases[0], rank, draw) for rank, draw in enumerate(draws)]
    sizes_bytes, latencies_us, gbits_s = zip(*measured)

    def took_us(turn):
        ports = Counter()
        for source, target, share in turn:
            ports["out", source] += share
            ports["in", target] += share
        busiest_bytes = max(ports.values()) * sizes_bytes[0]
        return max(latencies_us) + busiest_bytes * 8 / 1000 / min(gbits_s)

    turns = turns_of(len(draws))
    times_us = {name: sum(map(took_us, own)) for name, own in turns.items()}
    return [min(times_us, key=times_us.get) for _ in draws]


# %%
def choose(size_bytes, latency_us, gbit_s):
    ### BEGIN SOLUTION # agree first, then three formulas
    worst = torch.tensor([latency_us, 8 / 1000 / gbit_s], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    n, (alpha, beta) = dist.get_world_size(), worst.tolist()
    times_us = {
        "direct": 2 * (alpha + (n - 1) * size_bytes * beta),
        "tree": 2 * math.ceil(math.log2(n)) * (alpha + size_bytes * beta),
        "ring": 2 * (n - 1) * (alpha + size_bytes / n * beta),
    }
    return min(times_us, key=times_us.get)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which <code>ReduceOp</code> finds the worst latency? Is the worst bandwidth the largest or the smallest?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make both numbers such that larger is worse: alpha, and beta, the time per byte. After one <code>all_reduce</code> everybody knows the same two, and
# works out the chapter's three formulas, the tree's with its logarithm rounded up.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_reduce(worst, op=dist.ReduceOp.MAX)</code> with <code>worst = torch.tensor([latency_us, 8 / 1000 / gbit_s])</code>.
# </details>

# %%
situations = {  # bytes, latency in µs, Gbit/s
    "800 bytes": (800, 10, 80),
    "100,000 bytes, 10 µs, 80 Gbit/s": (100_000, 10, 80),
    "100,000 bytes, 10 µs, 1 Gbit/s": (100_000, 10, 1),
    "100,000 bytes, 100 µs, 80 Gbit/s": (100_000, 100, 80),
    "30,000 bytes, and 8 Gbit/s for rank 1": (30_000, 10, 80),
    "250,000 bytes, and 200 µs for rank 0": (250_000, 10, 80),
    "200,000 bytes, 200 µs for rank 0, 8 Gbit/s for rank 1": (200_000, 10, 80),
    "25 MiB": (25 * 2**20, 10, 80),
    "47,000 bytes, near an edge": (47_000, 10, 80),
    "160,000 bytes, near an edge": (160_000, 10, 80),
}


def measure(case, rank, draw):
    """What a rank has: the size, and the latency and the bandwidth that it has measured."""
    size_bytes, latency_us, gbit_s = situations[case]
    latency_us *= 20 if "µs for rank 0" in case and rank == 0 else 1
    gbit_s /= 10 if "Gbit/s for rank 1" in case and rank == 1 else 1
    spread = 0.02 if "near an edge" in case else 0.2
    one, other = (1 + spread * (2 * torch.tensor(draw) - 1)).tolist()
    return size_bytes, latency_us * one, gbit_s * other


def choosing(answer):
    """Let the answer choose by what its rank has measured."""

    @functools.wraps(answer)
    def chosen(case, draw):
        return answer(*measure(case, dist.get_rank(), draw))

    return chosen


def choose_inputs(rank, world_size, case):
    return case, torch.rand(2).tolist()


options = {"cases": list(situations), "world_sizes": (2, 6, 8)}
check(choosing(choose), spec=choose_spec, inputs=choose_inputs, **options)

# %% [markdown]
# ## 5 · Two levels
#
# *Difficulty ●●● · importance ●●○ · 20 minutes.* Ranks stand in nodes of `per_node`, in order; inside a node a byte is ten times as fast as between nodes. One ring through all of
# them leaves each node by one card only, while the other cards are idle.

# %% [markdown]
# **Goal:** return the sum of all ranks' `x` on every rank, within the time of two levels: add up inside each node, so that each rank has its part of the node's sum; add up these
# parts across nodes; share them inside the node. Any number of nodes and any shape must work, though the check has two nodes only. Collectives are allowed, and are replayed as rings.


# %%
def two_levels_spec(tensors, all_per_node):
    return [sum(tensors) for _ in tensors]


# %%
def two_levels(x, per_node):
    ### BEGIN SOLUTION # groups first, and every rank makes all of them
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for first in range(0, world_size, per_node):
        ranks = list(range(first, first + per_node))
        group = dist.new_group(ranks)
        if rank in ranks:
            node = group
    for local_rank in range(per_node):
        ranks = list(range(local_rank, world_size, per_node))
        group = dist.new_group(ranks)
        if rank in ranks:
            across = group
    part_length = math.ceil(x.numel() / per_node)
    padded = torch.zeros(part_length * per_node, dtype=x.dtype)
    padded[: x.numel()] = x.flatten()
    part = torch.empty(part_length, dtype=x.dtype)
    dist.reduce_scatter_tensor(part, padded, group=node)
    dist.all_reduce(part, group=across)
    dist.all_gather_into_tensor(padded, part, group=node)
    return padded[: x.numel()].view_as(x)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which ranks talk to each other in the first step, and which in the second? How many groups does that make, and who has to call <code>new_group</code> for each of them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A group for each node, and one for each local rank; every rank makes all of them, in the same order. A tensor whose length cannot be divided by <code>per_node</code> needs some zeros first. Then
# <code>reduce_scatter_tensor</code> inside, <code>all_reduce</code> across, and <code>all_gather_into_tensor</code> inside.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.reduce_scatter_tensor(part, padded, group=node)</code>, then <code>dist.all_reduce(part, group=across)</code>.
# </details>


# %%
lengths = {
    "one number": (1,),
    "an odd length": (1_001,),
    "two dimensions": (30, 50),
    "a megabyte": (250_000,),
}
two_nodes = Network(latency_us=2, gbit_s=800, nodes=2, between=(10, 80))


def two_levels_inputs(rank, world_size, case):
    return torch.randint(-1000, 1000, lengths[case], dtype=torch.float32), world_size // 2


def two_levels_budget(world_size, case):
    per_node = world_size // 2
    part = math.ceil(math.prod(lengths[case]) / per_node)  # numbers, of 4 bytes each
    inside_us = 2 * (per_node - 1) * (2 + 4 * part * beta / 10)
    between_us = 2 * (10 + 4 * math.ceil(part / 2) * beta)
    return {"finish_us": inside_us + between_us + 0.01}


options = {"cases": list(lengths), "world_sizes": (2, 4, 6), "budget": two_levels_budget}
options["network"] = two_nodes
check(two_levels, spec=two_levels_spec, inputs=two_levels_inputs, **options)

# %% [markdown]
# ## Bonus · Where does your own line break?
#
# *As long as you like; there is no check and no single answer.* Time `dist.all_reduce` on a machine of your own: take ten sizes from 1 KiB to 100 MB, and of twenty calls each the
# fastest, where a call takes as long as its slowest rank. On GPUs take NCCL, and synchronise before you read the clock.

# %% [markdown]
# Fit one line, print the deviation per size, and look for neighbours that miss to the same side. From which size on do you need a second line? `make gpu` writes such a table where
# there are GPUs. Or find one of nccl-tests for a machine that you know.

# %% [markdown]
# Whoever wants to write the fastest all-reduce for a given network goes on with [the challenge](challenge.ipynb).

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [07 · Data and batches](../notebooks/07_data_batches_numerics.ipynb): which samples does each rank see?

# %%
progress("tree_all_reduce", "left_over", "fit", "choose", "two_levels")
