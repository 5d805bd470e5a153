# %% [markdown]
# # Lab 14 · On a GPU: who waits?
#
# Four exercises on [chapter 14](../notebooks/14_on_a_gpu_who_waits.ipynb), 50 minutes, on any computer. `check` gives your functions recordings,
# real ones and made-up ones, and compares what they read in them with a **specification**.

# %%
import functools
from collections import Counter
from itertools import pairwise

import torch

from course_material.recordings import Row, recording
from course_utils import check, progress

# %% [markdown]
# The chapter's stopwatch is given. Time in which several rows overlap counts once.


# %%
def busy_us(rows):
    """The time in which at least one of the rows lasts."""
    total, until = 0.0, float("-inf")
    for row in sorted(rows, key=lambda row: row.start_us):
        total += max(0.0, row.end_us - max(row.start_us, until))
        until = max(until, row.end_us)
    return total


# %% [markdown]
# ## 1 · What would make it faster?
#
# *Difficulty ●●○ · importance ●●○ · 15 minutes.* `rows` record some steps. **Goal:** return three things. The first is the bytes **all-reduced** per step, by collectives with `"AllReduce"` in their names. The second is the share of communication that's hidden behind compute kernels, or 0 if there's no communication. The third is what takes most of the steps' time.

# %% [markdown]
# At each moment it's `"GPU"` while a compute kernel runs, else `"network"` while a collective does, else `"copies"` while a copy does, else `"host"`. So a training that mostly waits for copies is told to look at its copies, not at its host. The specification is folded up. Below it is an example.


# %% jupyter={"source_hidden": true}
def read_spec(recordings):
    """Event by event: at each moment, how many compute kernels and how many collectives run."""

    kinds = {"compute": "GPU", "collective": "network", "copy": "copies"}  # the first counts

    def read_one(rows):
        changes = []
        for row in rows:
            if row.kind in kinds:
                changes += [(row.start_us, row.kind, 1), (row.end_us, row.kind, -1)]
        running, took_us, hidden_us = Counter(), Counter(), 0.0
        for (at_us, kind, change), (next_us, *_) in pairwise(sorted(changes)):
            running[kind] += change
            busy = [name for name in kinds if running[name]]
            if busy:
                took_us[kinds[busy[0]]] += next_us - at_us
            if busy[:2] == ["compute", "collective"]:
                hidden_us += next_us - at_us
        steps = [row.us for row in rows if row.kind == "step"]
        talk_us = took_us["network"] + hidden_us
        took_us["host"] = sum(steps) - sum(took_us.values())
        talk = [row for row in rows if row.kind == "collective"]
        sent_bytes = sum(row.bytes for row in talk if "AllReduce" in row.name)
        order = ("GPU", "network", "copies", "host")
        most = max(order, key=lambda name: took_us[name])
        return sent_bytes / len(steps), hidden_us / talk_us if talk_us else 0.0, most

    return [read_one(rows) for rows in recordings]


# %%
example = [
    Row("step", "step", "main thread", 0, 100, 0, 0),
    Row("compute", "gemm", "stream 7", 10, 30, 0, 1),
    Row("collective", "ncclKernel_AllReduce_Sum", "stream 40", 30, 40, 1000, 2),
]
read_spec([example])  # 30 µs of computing, 30 of communication alone, 40 of nothing


# %%
def read(rows):
    ### BEGIN SOLUTION # bytes per step, then the share hidden, then the largest of four
    steps = [row.us for row in rows if row.kind == "step"]
    compute = [row for row in rows if row.kind == "compute"]
    talk = [row for row in rows if row.kind == "collective"]
    copies = [row for row in rows if row.kind == "copy"]
    sent_bytes = sum(row.bytes for row in talk if "AllReduce" in row.name)
    compute_us, talk_us, kernels_us = busy_us(compute), busy_us(talk), busy_us(compute + talk)
    any_us = busy_us(compute + talk + copies)
    share = (compute_us + talk_us - kernels_us) / talk_us if talk else 0
    most = {"GPU": compute_us, "network": kernels_us - compute_us}
    most |= {"copies": any_us - kernels_us, "host": sum(steps) - any_us}
    return sent_bytes / len(steps), share, max(most, key=most.get)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Add the time of all compute kernels to the time of all collectives. How much more is that than the time in which any of them runs, and what is the difference?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Four stopwatches are enough: compute kernels, collectives, both together, and both with copies. Hidden is the sum of the first two less the third. The network's time
# is the third less the first, the copies' the fourth less the third, and the host's what is left of the steps.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>most = {"GPU": compute_us, "network": kernels_us - compute_us, "copies": any_us - kernels_us, "host": sum(steps) - any_us}</code>, and then <code>max(most, key=most.get)</code>.
# </details>

# %% [markdown]
# Your function is tried on the real recordings, without the host's rows and without some others, chosen at random, so that nobody can know the results beforehand. The other cases are made up: the tables below say how many kernels of each kind a step has, and on how many streams.


# %%
@functools.cache
def real(name):
    return [row for row in recording(name) if row.kind not in ("host", "launch")]


made_up = {  # compute kernels, collectives, copies, streams, the longest of the first two (µs)
    "no communication": (8, 0, 3, 1, 90, 0),
    "no computing": (0, 6, 3, 1, 0, 50),
    "nothing runs at all": (0, 0, 0, 1, 0, 0),
    "short kernels": (12, 4, 1, 1, 9, 9),
    "mostly copies": (4, 4, 40, 1, 9, 9),
    "compute kernels on three streams": (30, 5, 3, 3, 90, 20),
    "collectives on two streams": (5, 20, 3, 2, 20, 80),
    "more of both than time": (30, 30, 3, 3, 80, 80),
}
at_once = {  # likewise, and each of them runs on three streams at once, so a sum counts it thrice
    "mostly idle, and three compute kernels at once": (3, 1, 1, 1, 50, 9),
    "mostly idle, and three collectives at once": (1, 3, 1, 1, 9, 50),
    "mostly idle, and three copies at once": (1, 1, 3, 1, 9, 9),
}


def invented(computes, collectives, copies, streams, compute_us, talk_us):
    """Whole microseconds, so that many kernels end where others begin."""
    steps = int(torch.randint(2, 5, ()))
    rows = [Row("step", "step", "main thread", 250.0 * k, 250.0, 0, 0) for k in range(steps)]
    kinds = [
        ("compute", "gemm", computes, compute_us),
        ("collective", "nccl", collectives, talk_us),
        ("copy", "Memcpy", copies, 60),
    ]
    for kind, name, count, longest_us in kinds:
        for number in range(count * steps):
            start_us = float(torch.randint(0, 250 * steps - max(longest_us, 1), ()))
            us = float(torch.randint(1, max(longest_us, 1) + 1, ()))
            of = ("_AllReduce", "_SendRecv", "_Broadcast")[number % 3] * (name == "nccl")
            lane, size = f"stream {7 + number % streams}", 4 * int(torch.randint(1, 10**6, ()))
            rows.append(Row(kind, name + of, lane, start_us, us, size * (kind != "compute"), 0))
    return sorted(rows, key=lambda row: row.start_us)


def read_inputs(rank, world_size, case):
    if case in made_up:
        return invented(*made_up[case])
    if case in at_once:
        rows = invented(*at_once[case])
        busy = [row for row in rows if row.kind != "step"]
        again = [row._replace(lane=lane) for row in busy for lane in ("stream 20", "stream 21")]
        return sorted([*rows, *again], key=lambda row: row.start_us)
    kept = (torch.rand(len(real(case))) < 0.9).tolist()
    return [row for row, keep in zip(real(case), kept) if keep or row.kind == "step"]


cases = [*made_up, *at_once, "resnet50_2xA100", "per_gradient_2xV100", "recommender_8xA100"]
check(read, spec=read_spec, inputs=read_inputs, cases=cases, world_sizes=(1, 2))

# %% [markdown]
# ## 2 · Find the straggler
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* `ranks` has the collectives of several ranks: `ranks[r][k].us` is how long the kernel of rank *r* ran in the *k*-th collective. A kernel that has started
# waits for the others, and all end together. Each rank has its own clock, so starts can't be compared.

# %% [markdown]
# **Goal:** return `(rank, us)`: for which rank the others waited longest in total, and how many µs. In each collective the last to arrive is the rank whose kernel is shortest, and each other rank waits for as long as its own kernel runs longer than that one. The specification:


# %%
def straggler_spec(traces):
    stragglers = []
    for ranks in traces:
        waited_us = [0.0] * len(ranks)
        for kernels in zip(*ranks):
            last = min(range(len(ranks)), key=lambda rank: kernels[rank].us)
            waited_us[last] += sum(kernel.us - kernels[last].us for kernel in kernels)
        rank = max(range(len(ranks)), key=lambda rank: waited_us[rank])
        stragglers.append((rank, waited_us[rank]))
    return stragglers


# %%
def straggler(ranks):
    ### BEGIN SOLUTION
    waited_us = dict.fromkeys(range(len(ranks)), 0.0)
    for k in range(len(ranks[0])):
        took_us = [kernels[k].us for kernels in ranks]
        shortest_us = min(took_us)
        last = took_us.index(shortest_us)
        waited_us[last] += sum(took_us) - len(took_us) * shortest_us
    rank = max(waited_us, key=waited_us.get)
    return rank, waited_us[rank]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The straggler itself waits for nobody. What does that mean for its kernels?
# </details>
# <details><summary>Hint 2: the approach</summary>
# For each collective, find the rank with the shortest kernel, and charge it with what all the others' kernels took longer. In the end, take the rank with the highest bill.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>waited_us[last] += sum(took_us) - len(took_us) * shortest_us</code>
# </details>


# %% jupyter={"source_hidden": true}
teams = {  # ranks, collectives, how late the straggler is (µs), how often it is
    "two ranks, one collective": (2, 1, 500, 1.0),
    "four ranks, late each time": (4, 12, 400, 1.0),
    "eight ranks, late one time in five": (8, 20, 3000, 0.2),
    "eight ranks, by turns": (8, 24, 0, 0.0),
    "late rarely, but very": (4, 10, 9000, 0.1),
}


def team_inputs(rank, world_size, case):
    count, collectives, late_us, often = teams[case]
    slow = int(torch.randint(0, count, ()))
    clocks_us = (torch.rand(count) * 1e6).round().tolist()
    ranks, at_us = [[] for _ in range(count)], 0.0
    for number in range(collectives):
        arrivals_us = torch.randperm(100)[:count].double().tolist()  # no two alike
        if number < often * collectives:
            arrivals_us[slow] += late_us
        move_us = float(torch.randint(20, 900, ()))
        end_us = at_us + max(arrivals_us) + move_us
        for kernels, clock_us, arrival_us in zip(ranks, clocks_us, arrivals_us):
            start_us = at_us + arrival_us
            name, us = "ncclKernel_AllReduce", end_us - start_us
            kernels.append(Row("collective", name, "stream 40", clock_us + start_us, us, 4096, 0))
        at_us = end_us
    return ranks


# %%
check(straggler, spec=straggler_spec, inputs=team_inputs, cases=list(teams), world_sizes=(1, 2))

# %% [markdown]
# ## 3 · Find the blocking call
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* Not only `.item()` blocks. The names of torch's operators begin with `aten::`, and those of CUDA's calls with `cuda`. Operators can call other operators, so they nest.

# %% [markdown]
# **Goal:** return `(operator, us)`: the name of the *innermost* operator of the same thread around the longest call of CUDA's, and how many µs that call took. If no operator is around it, `operator` is `None`.


# %%
def blocking_spec(traces):
    blockers = []
    for rows in traces:
        call = max((r for r in rows if r.name.startswith("cuda")), key=lambda r: r.us)
        around = [
            row
            for row in rows
            if row.name.startswith("aten::") and row.lane == call.lane
            if row.start_us <= call.start_us and call.end_us <= row.end_us
        ]
        inner = min(around, key=lambda row: row.us, default=None)
        blockers.append((inner and inner.name, call.us))
    return blockers


# %%
def blocking(rows):
    ### BEGIN SOLUTION
    call = max((row for row in rows if row.name.startswith("cuda")), key=lambda row: row.us)
    name, inner_us = None, float("inf")
    for row in rows:
        is_operator = row.name.startswith("aten::") and row.lane == call.lane
        around = row.start_us <= call.start_us and call.end_us <= row.end_us
        if is_operator and around and row.us < inner_us:
            name, inner_us = row.name, row.us
    return name, call.us
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# First find the call, then ask who's around it.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Around a call is what starts no later and ends no sooner, in the same <code>lane</code>. Of these, the shortest is the innermost.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>min(around, key=lambda row: row.us, default=None)</code>
# </details>


# %% jupyter={"source_hidden": true}
@functools.cache
def host_rows(name):
    return [row for row in recording(name) if row.kind in ("host", "launch")]


def blocking_inputs(rank, world_size, case):
    if case in recordings:
        kept = (torch.rand(len(host_rows(case))) < 0.8).tolist()
        return [row for row, keep in zip(host_rows(case), kept) if keep]
    us = float(torch.randint(1000, 5000, ()))
    nested = [("aten::nonzero", us + 60), ("aten::to", us + 40), ("aten::_to_copy", us + 20)]
    rows = [Row("host", name, "main thread", 90 - t + us, t, 0, 0) for name, t in nested]
    at_us = 20 + 5.0
    rows = [row._replace(start_us=at_us - (row.us - us) / 2) for row in rows]
    rows.append(Row("launch", "cudaMemcpyAsync", "main thread", at_us, us, 8, 1))
    rows.append(Row("host", "aten::mm", "autograd thread", at_us - 1, us + 2, 0, 0))
    rows.append(Row("host", "aten::sort", "main thread", at_us + us + 50, 3 * us, 0, 0))
    if case == "outside of all operators":
        rows = [row for row in rows if row.lane != "main thread" or row.name[:4] != "aten"]
    if case == "after an operator":
        rows.append(Row("host", "aten::add", "main thread", at_us - 4, 3, 0, 0))
    return sorted(rows, key=lambda row: row.start_us)


recordings = ("resnet50_2xA100", "per_gradient_2xV100", "recommender_8xA100")
blocked_cases = ["nested operators", "outside of all operators", "after an operator", *recordings]

# %%
check(blocking, spec=blocking_spec, inputs=blocking_inputs, cases=blocked_cases, world_sizes=(1,))

# %% [markdown]
# ## 4 · Find the exposed all-reduce
#
# *Difficulty ●●● · importance ●●○ · 10 minutes.* **Goal:** return `(k, us)`: which all-reduce of a recording is exposed for longest, counted from 0 in the order of their starts, and for how many µs, rounded to three decimal places.

# %% [markdown]
# It's exposed while no compute kernel runs. All-reduces have `"AllReduce"` in their names; there's at least one. Of equals, take the first.


# %%
def exposed_spec(traces):
    exposed = []
    for rows in traces:
        compute = [row for row in rows if row.kind == "compute"]
        reduced = [r for r in rows if r.kind == "collective" and "AllReduce" in r.name]
        reduced.sort(key=lambda row: row.start_us)
        alone_us = [round(busy_us([*compute, row]) - busy_us(compute), 3) for row in reduced]
        exposed.append((alone_us.index(max(alone_us)), max(alone_us)))
    return exposed


# %%
def most_exposed(rows):
    ### BEGIN SOLUTION
    compute = [row for row in rows if row.kind == "compute"]
    reduced = [row for row in rows if row.kind == "collective" and "AllReduce" in row.name]
    reduced.sort(key=lambda row: row.start_us)
    longest, longest_us = 0, -1.0
    for number, row in enumerate(reduced):
        near = [r for r in compute if r.start_us < row.end_us and row.start_us < r.end_us]
        exposed_us = round(busy_us([*near, row]) - busy_us(near), 3)
        if exposed_us > longest_us:
            longest, longest_us = number, exposed_us
    return longest, longest_us
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The longest all-reduce need not be the most exposed one.
# </details>
# <details><summary>Hint 2: the approach</summary>
# The stopwatch again: compute kernels together with one all-reduce, less the compute kernels alone.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>busy_us([*compute, row]) - busy_us(compute)</code>, rounded to three digits, for each all-reduce.
# </details>


# %% jupyter={"source_hidden": true}
def exposed_inputs(rank, world_size, case):
    if case == "a real one":
        rows = real("resnet50_2xA100")
        kept = (torch.rand(len(rows)) < 0.9).tolist()
        return [row for row, keep in zip(rows, kept) if keep or row.kind == "collective"]
    certain = Row("collective", "nccl_AllReduce", "stream 40", 1.0, 2.0, 4, 0)  # at least one
    return [*invented(*crowded[case]), certain]  # so rows need not come in the order of starts


crowded = {
    "few kernels": (3, 4, 3, 1, 40, 60),
    "many kernels": (12, 6, 6, 2, 30, 90),
    "no computing": (0, 5, 3, 1, 0, 50),
    "hidden almost always": (40, 6, 6, 2, 80, 60),
}

# %%
cases = [*crowded, "a real one"]
check(most_exposed, spec=exposed_spec, inputs=exposed_inputs, cases=cases, world_sizes=(1,))

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [06 · What communication costs](../notebooks/06_what_communication_costs.ipynb), or, if you come from 13, [17 · Cut the layer](../notebooks/17_cut_the_layer.ipynb).

# %%
progress("read", "straggler", "blocking", "most_exposed")
