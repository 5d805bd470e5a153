# %% [markdown]
# # Lab 14 · On a GPU: who waits?
#
# One exercise on [chapter 14](../notebooks/14_on_a_gpu_who_waits.ipynb), 15 minutes, on any computer. `check` gives your function recordings,
# real ones and made-up ones, and compares what it reads in them with a **specification**.

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
# *Difficulty ●●○ · importance ●●○ · 15 minutes.* `rows` are a recording of some steps. **Goal:** return three things. First the bytes **all-reduced** per step. Second the share of
# communication that lies beside compute kernels, 0 if there is none. Third what would help most: `"GPU"`, `"network"` or `"host"`, as computing, communication
# alone, or neither of them takes most of the steps.
#
# Kinds that count are "compute" and "collective"; a copy is neither, so time in which only copies run counts as the host's here. The specification is folded up. Below it stands an example.


# %% jupyter={"source_hidden": true}
def read_spec(recordings):
    """Event by event: at each moment, how many compute kernels and how many collectives run."""

    def read_one(rows):
        work = [row for row in rows if row.kind in ("compute", "collective")]
        starts = [(row.start_us, row.kind == "collective", 1) for row in work]
        ends = [(row.end_us, row.kind == "collective", -1) for row in work]
        running, took_us = [0, 0], Counter()
        for (at_us, talks, change), (next_us, *_) in pairwise(sorted(starts + ends)):
            running[talks] += change
            took_us[running[0] > 0, running[1] > 0] += next_us - at_us
        both_us, only_us = took_us[True, True], took_us[False, True]
        gpu_us, steps = both_us + took_us[True, False], [r.us for r in rows if r.kind == "step"]
        helps = {"GPU": gpu_us, "network": only_us, "host": sum(steps) - gpu_us - only_us}
        sent = [r.bytes for r in work if r.kind == "collective" and "AllReduce" in r.name]
        share = both_us / (both_us + only_us) if both_us + only_us else 0.0
        return sum(sent) / len(steps), share, max(helps, key=helps.get)

    return [read_one(rows) for rows in recordings]


# %%
example = [
    Row("step", "step", "main thread", 0, 100, 0, 0),
    Row("compute", "gemm", "stream 7", 10, 30, 0, 1),
    Row("collective", "ncclKernel_AllReduce_Sum", "stream 40", 30, 40, 1000, 2),
]
read_spec([example])  # 30 µs of computing, 30 of communication alone, 40 of neither


# %%
def read(rows):
    ### BEGIN SOLUTION # bytes per step, then the share beside, then the largest of three
    steps = [row.us for row in rows if row.kind == "step"]
    compute = [row for row in rows if row.kind == "compute"]
    talk = [row for row in rows if row.kind == "collective"]
    sent_bytes = sum(row.bytes for row in talk if "AllReduce" in row.name)
    compute_us, talk_us, any_us = busy_us(compute), busy_us(talk), busy_us(compute + talk)
    share = (compute_us + talk_us - any_us) / talk_us if talk else 0
    helps = {"GPU": compute_us, "network": any_us - compute_us, "host": sum(steps) - any_us}
    return sent_bytes / len(steps), share, max(helps, key=helps.get)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Add the time of all compute kernels to the time of all collectives. How much more is that than the time in which any of them runs, and what is the difference?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Three stopwatches are enough: compute kernels, collectives, and both together. The time beside is the sum of the first two less the third. Communication alone
# is the third less the first. Neither is the length of all steps less the third.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>helps = {"GPU": compute_us, "network": any_us - compute_us, "host": sum(steps) - any_us}</code>, and then <code>max(helps, key=helps.get)</code>.
# </details>

# %% [markdown]
# From the real recordings the host's rows are left out, and some others at random, so that nobody can know their numbers. The rest is made up: so many kernels of
# each kind per step, on so many streams.


# %%
@functools.cache
def real(name):
    return [row for row in recording(name) if row.kind not in ("host", "launch")]


made_up = {  # compute kernels, collectives, streams of each, the longest of each (µs)
    "no communication": (8, 0, 1, 90, 0),
    "no computing": (0, 6, 1, 0, 50),
    "nothing runs at all": (0, 0, 1, 0, 0),
    "short kernels": (12, 4, 1, 9, 9),
    "compute kernels on three streams": (30, 5, 3, 90, 20),
    "collectives on two streams": (5, 20, 2, 20, 80),
    "more of both than time": (30, 30, 3, 80, 80),
}


def invented(computes, talks, streams, compute_us, talk_us):
    """Whole microseconds, so that many kernels end where others begin."""
    steps = int(torch.randint(2, 5, ()))
    rows = [Row("step", "step", "main thread", 250.0 * k, 250.0, 0, 0) for k in range(steps)]
    every = [("compute", "gemm", computes, compute_us), ("collective", "nccl", talks, talk_us)]
    for kind, name, count, longest_us in [*every, ("copy", "Memcpy", 3, 60)]:
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
    kept = (torch.rand(len(real(case))) < 0.9).tolist()
    return [row for row, keep in zip(real(case), kept) if keep or row.kind == "step"]


cases = [*made_up, "resnet50_2xA100", "per_gradient_2xV100", "recommender_8xA100"]
check(read, spec=read_spec, inputs=read_inputs, cases=cases, world_sizes=(1, 2))

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress("read")
