# %% [markdown]
# # Lab 03 · Collective primitives
#
# Seven exercises on [chapter 03](../notebooks/03_collective_primitives.ipynb) and a bonus, 100 minutes without the bonus, on any computer. You build
# collectives from messages, including some that torch doesn't have, find out who holds the others up, and finish with a report on your own measurements.

# %% [markdown]
# Each exercise shows an example of what is wanted, and says how difficult it is and how important for the rest of the course, from ●○○ to ●●●.
# `check` runs your function in real workers, with several world sizes, and compares what they return with a specification that is folded up. It
# also looks at the recording of their calls.

# %%
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from course_checks.cases import CASES, Case, draw, public_seed
from course_utils import Network, check, launch, plot_timeline, progress
from course_utils.network.trace import Event, Trace

# %% [markdown]
# ## 1 · How do you gather unequal lengths?
#
# *Difficulty ●●○ · importance ●●○ · 15 minutes.* During evaluation each rank finds a different number of mistakes, but `dist.gather` needs equal shapes.

# %% [markdown]
# **Goal:** on
# `root`, return the list of all ranks' one-dimensional tensors, in the order of the ranks; everywhere else, return None. Use `send` and `recv` alone. Nobody needs to send more than two messages.
#
# | root 2 | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | has | `[5, 7]` | `[]` | `[1]` |
# | returns | None | None | `[[5, 7], [], [1]]` |


# %% jupyter={"source_hidden": true}
def gather_spec(tensors, roots):
    return [tensors if rank == roots[0] else None for rank in range(len(tensors))]


# %%
def gather(tensor, root):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank != root:
        dist.send(torch.tensor([len(tensor)]), root)  # the root can't know it otherwise
        dist.send(tensor, root)
        return None
    tensors = []
    for other in range(world_size):  # rank by rank, so that nothing gets mixed up
        if other == root:
            tensors.append(tensor)  # the root's own needs no message
        else:
            length = torch.empty(1, dtype=torch.int64)
            dist.recv(length, other)
            tensors.append(tensor.new_empty(length.item()))
            dist.recv(tensors[-1], other)
    return tensors
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>recv</code> needs a tensor of the right size. Who knows that size, and how can the root find out?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Each rank sends two messages: how many numbers it has, and then the numbers. The root goes through the ranks in order. From each it receives the length,
# makes an empty tensor of that length, and receives into it. It keeps its own tensor as it is.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.recv(length, other)</code>, then <code>tensors.append(tensor.new_empty(length.item()))</code> and <code>dist.recv(tensors[-1], other)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def gather_inputs(rank, world_size, case):
    length = int(torch.randint(0, 1 + case.shape[0], ()))
    return case._replace(shape=(length,)).tensor(), case.number % world_size


def gather_budget(world_size, case):
    return {"sent_messages": 2, "sent_bytes": 8 + case.shape[0] * case.dtype.itemsize}


gather_cases = (  # each with the longest list that there may be
    Case("lists that differ in length", 0, (5,)),
    Case("a different root", 1, (60,)),
    Case("whole numbers (int64)", 2, (9,), torch.int64),
    Case("long lists in double precision", 3, (4000,), torch.float64),
)
gather_check = {"spec": gather_spec, "inputs": gather_inputs, "cases": gather_cases}
gather_check |= {"forbid": ("collectives",), "world_sizes": (1, 2, 3, 5)}
gather_check |= {"budget": gather_budget}

# %%
check(gather, **gather_check)

# %% [markdown]
# ## 2 · Who gets which token?
#
# *Difficulty ●●○ · importance ●●○ · 12 minutes.* Mixtures of experts send each token to the rank where its expert lives. Every rank has a list with one tensor for each rank.

# %% [markdown]
# **Goal:**
# return the tensors that all ranks hold for *this* rank, in the order of the ranks. Use messages alone: send one to each of the other
# ranks, with only what that rank needs.
#
# | | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | has | `[a, b, c]` | `[d, e, f]` | `[g, h, i]` |
# | returns | `[a, d, g]` | `[b, e, h]` | `[c, f, i]` |


# %% jupyter={"source_hidden": true}
def all_to_all_spec(rows):
    return [list(column) for column in zip(*rows)]


# %%
def all_to_all(row):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    column = [torch.empty_like(part) for part in row]
    column[rank] = row[rank]  # needs no message
    others = [other for other in range(world_size) if other != rank]
    # All messages start before anybody waits, so no order of the ranks can cause a deadlock.
    works = [dist.isend(row[other], other) for other in others]
    works += [dist.irecv(column[other], other) for other in others]
    for work in works:
        work.wait()
    return column
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# If every rank begins with a blocking <code>send</code>, who receives?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Start sending to all the others and receiving from all the others, then wait for all of it. What a rank has for itself needs no message.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>works = [dist.isend(row[other], other) for other in others]</code>, the same with <code>irecv</code>, then
# <code>work.wait()</code> for each.
# </details>


# %% jupyter={"source_hidden": true}
def all_to_all_inputs(rank, world_size, case):
    return [case.tensor() for _ in range(world_size)]


def all_to_all_budget(world_size, case):
    others = world_size - 1
    return {"sent_messages": others, "sent_bytes": others * case.tensor().nbytes}


all_to_all_check = {"spec": all_to_all_spec, "inputs": all_to_all_inputs, "cases": CASES[:5]}
all_to_all_check |= {"forbid": ("collectives",), "world_sizes": (1, 2, 3, 5)}
all_to_all_check |= {"budget": all_to_all_budget}

# %%
check(all_to_all, **all_to_all_check)

# %% [markdown]
# ## 3 · Which half of the ring do FSDP's gradients need?
#
# *Difficulty ●●● · importance ●●● · 20 minutes.* For its gradients, sharded training (ZeRO, FSDP) only needs the first half of your ring,
# because each rank keeps just its part of the sum. But in the chapter's ring, rank 0 is left with chunk 1.

# %% [markdown]
# **Goal:** on rank *r*, return **part
# *r*** of the sum of all `x`, which has one dimension and any length, cut by `x.tensor_split(n)`. Send *n* − 1 messages of one part,
# and no collective. All parts travel at the same time, and not one after the other. In each step, a rank may send first or receive first.
#
# | | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | has | `[1, 2, 3, 4]` | `[10, 20, 30, 40]` | `[100, 200, 300, 400]` |
# | returns | `[111, 222]` | `[333]` | `[444]` |


# %% jupyter={"source_hidden": true}
def part_of_sum_spec(tensors):
    return list(sum(tensors).tensor_split(len(tensors)))


# %%
def part_of_sum(x):
    ### BEGIN SOLUTION
    rank, n = dist.get_rank(), dist.get_world_size()
    parts = x.tensor_split(n)
    for done in range(n - 1):
        # Part p starts on rank p + 1 and goes around once, so its last stop is rank p.
        part = parts[(rank - done - 2) % n]
        arrived = torch.empty_like(part)
        sending = dist.isend(parts[(rank - done - 1) % n], (rank + 1) % n)
        dist.recv(arrived, (rank - 1) % n)
        sending.wait()
        part += arrived  # this part is what leaves next
    return parts[rank]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A part visits every rank once, and the last one keeps it. Where does part 0 have to start so that it ends on rank 0?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Let every part start one rank later than in the chapter: rank <i>r</i> begins with part <i>r</i> − 1. It adds what it receives to its own copy of that part,
# and sends the result in the next step. After <i>n</i> − 1 steps, part <i>r</i> has arrived at rank <i>r</i>.
# </details>
# <details><summary>Hint 3: the code</summary>
# Send <code>parts[(rank - done - 1) % n]</code>, and add what arrives to <code>parts[(rank - done - 2) % n]</code>.
# </details>


# %% jupyter={"source_hidden": true}
ring_network = Network(latency_us=10, gbit_s=1)


def part_of_sum_inputs(rank, world_size, case):
    return case.tensor()


def part_of_sum_budget(world_size, case):
    steps, part = world_size - 1, -(-case.shape[0] // world_size) * case.dtype.itemsize
    step_us = ring_network.latency_us + part * 8e-3 / ring_network.gbit_s
    # A ring in which every second rank sends first takes its turns: three where n is odd.
    return {"sent_messages": steps, "sent_bytes": steps * part, "finish_us": 3 * steps * step_us}


part_of_sum_cases = (
    Case("4 numbers", 0, (4,)),  # first what is easy to follow, then what is odd or empty
    Case("1 number", 1, (1,)),
    Case("7 numbers", 2, (7,)),
    Case("11 whole numbers (int64)", 3, (11,), torch.int64),
    Case("301 numbers in double precision", 4, (301,), torch.float64),
)
part_of_sum_check = {"spec": part_of_sum_spec, "inputs": part_of_sum_inputs}
part_of_sum_check |= {"cases": part_of_sum_cases, "world_sizes": (1, 2, 3, 4, 5)}
part_of_sum_check |= {"forbid": ("collectives",), "network": ring_network}
part_of_sum_check |= {"budget": part_of_sum_budget}

# %%
check(part_of_sum, **part_of_sum_check)

# %% [markdown]
# ## 4 · Highest and lowest in one call?
#
# *Difficulty ●●○ · importance ●○○ · 8 minutes.* Every call costs latency, so it pays to answer two small questions with one call.

# %% [markdown]
# **Goal:** on every rank, for each place of `x`, return the largest minus the smallest
# number that any rank has there. Call `dist.all_reduce` once, and no other collective. (No number is a NaN: part 2 of the chapter shows what MAX would make of it.)
#
# | | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | has | `[3, 8]` | `[5, -2]` | `[4, 0]` |
# | returns | `[2, 10]` | `[2, 10]` | `[2, 10]` |


# %% jupyter={"source_hidden": true}
def spread_spec(tensors):
    every = torch.stack(tensors)
    return [every.amax(0) - every.amin(0) for _ in tensors]


# %%
def spread(x):
    ### BEGIN SOLUTION
    both = torch.cat([x, -x])  # the smallest number is the largest of the negatives, negated
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return both[: len(x)] + both[len(x) :]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# An <code>all_reduce</code> has one operator. How do you get a smallest number from MAX?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The smallest of some numbers is minus the largest of their negatives. Put <code>x</code> and <code>-x</code> into one tensor.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>both = torch.cat([x, -x])</code>, then <code>dist.all_reduce(both, dist.ReduceOp.MAX)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def spread_inputs(rank, world_size, case):
    return case.tensor()


def spread_budget(world_size, case):
    """One call of twice the numbers; a second call would cost its latency once more."""
    steps, both = 2 * (world_size - 1), 2 * case.tensor().nbytes
    finish_us = steps * (1000 + both * 8e-3 / world_size)
    return {"collective_calls": 1, "finish_us": finish_us}  # said in this order


others = ("reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "all_to_all")
spread_check = {"spec": spread_spec, "inputs": spread_inputs, "budget": spread_budget}
spread_check |= {"network": Network(latency_us=1000, gbit_s=1), "cases": CASES[:5]}
spread_check |= {"require": ("all_reduce",), "forbid": (*others, "send", "recv")}

# %%
check(spread, **spread_check)

# %% [markdown]
# ## 5 · How do you sum one column?
#
# *Difficulty ●○○ · importance ●●● · 6 minutes.* A column of a matrix is a tensor with gaps, and torch lets gloo sum the wrong numbers without a word.

# %% [markdown]
# **Goal:** replace column `k` of `matrix` by its sum over all ranks,
# leave everything else as it is, and return `matrix`. Send no more than the column.
#
# | k = 1 | rank 0 | rank 1 |
# | --- | --- | --- |
# | has | `[[1, 2], [3, 4]]` | `[[10, 20], [30, 40]]` |
# | returns | `[[1, 22], [3, 44]]` | `[[10, 22], [30, 44]]` |


# %% jupyter={"source_hidden": true}
def sum_column_spec(matrices, ks):
    wanted = [matrix.clone() for matrix in matrices]
    for matrix in wanted:
        matrix[:, ks[0]] = sum(each[:, ks[0]] for each in matrices)
    return wanted


# %%
def sum_column(matrix, k):
    ### BEGIN SOLUTION
    column = matrix[:, k].contiguous()  # a copy, without the gaps
    dist.all_reduce(column)
    matrix[:, k] = column  # the sum is in the copy, so write it back
    return matrix
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What does <code>matrix[:, k].is_contiguous()</code> say?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Sum a copy of the column, which has no gaps. Then the sum is in the copy, but not in the matrix yet.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>column = matrix[:, k].contiguous()</code>, and after the sum <code>matrix[:, k] = column</code>.
# </details>


# %% jupyter={"source_hidden": true}
def sum_column_inputs(rank, world_size, case):
    return case.tensor(), case.number % case.shape[1]


sum_column_cases = (
    Case("2 x 2, the first column", 2, (2, 2)),
    Case("3 x 4, the last column", 3, (3, 4)),
    Case("40 x 9 whole numbers (int64), column 1", 1, (40, 9), torch.int64),
    Case("90 x 2 in double precision, column 1", 3, (90, 2), torch.float64),
    Case("3 x 1", 0, (3, 1)),
)
sum_column_check = {"spec": sum_column_spec, "inputs": sum_column_inputs}
sum_column_check |= {"cases": sum_column_cases}
sum_column_check |= {
    "budget": lambda n, case: {"sent_bytes": 2 * case.shape[0] * case.dtype.itemsize}
}

# %%
check(sum_column, **sum_column_check)

# %% [markdown]
# ## 6 · Who holds the others up?
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* A slow machine hides well: its own profile looks busy, and on all the others the network looks slow. Recordings say when a call
# began (`event.start_s`) and was over (`event.end_s`). No
# `all_reduce` is over before the last rank has come, so until then the others wait **for that rank**.

# %% [markdown]
# **Goal:** return the straggler among four ranks: the one for which the others wait longest, over all
# `all_reduce`s together. The recordings also contain messages, which don't count. The picture is an example.


# %% jupyter={"source_hidden": true}
def made_up(kinds, delays_s, size=8):
    """A recording of four ranks; delays_s[k, r] is how late rank r comes to collective k."""
    leave_s = delays_s.max(1).values
    every = {"bytes": size, "dtype": "float32", "blocking": True, "group": (0, 1, 2, 3)}
    return [
        Event(
            rank=rank, index=k, kind=kinds[k % len(kinds)], root=0 if len(kinds) == 2 else None,
            start_s=k + float(delays_s[k, rank]), end_s=k + float(leave_s[k]), **every
        )
        for rank in range(4)
        for k in range(len(delays_s))
    ]  # fmt: skip


def straggler_spec(traces):
    """In each all_reduce the others wait for the last rank to come."""
    waited_for_s = [0.0] * 4
    for events in meetings(traces[0]):
        last = max(events, key=lambda event: event.start_s)
        waited_for_s[last.rank] += sum(last.start_s - event.start_s for event in events)
    return [waited_for_s.index(max(waited_for_s))]


def meetings(trace):
    """For each all_reduce, the four ranks' calls of it."""
    calls = [event for event in trace if event.kind == "all_reduce" and len(event.group) == 4]
    by_rank = [[event for event in calls if event.rank == rank] for rank in range(4)]
    return zip(*by_rank)


# %%
delays_s = torch.tensor([[0.0, 0.3, 0.28, 0.0], [0.2, 0.0, 0.18, 0.0]])
example = Trace(tuple(made_up(["all_reduce"], delays_s)), (2.0,) * 4)
plot_timeline(
    example,
    "The others wait 0.62 s for rank 1, 0.42 s for rank 0, and never for rank 2, "
    "although it waits least. So straggler(example) is 1.",
    clock="time (ms), made up",
)


# %%
def straggler(trace):
    ### BEGIN SOLUTION
    calls = [
        [event for event in trace.of_rank(rank) if event.kind == "all_reduce"] for rank in range(4)
    ]
    waited_for_s = [0.0] * 4
    for events in zip(*calls):  # the first call of each rank, then the second, and so on
        last = max(events, key=lambda event: event.start_s)
        for event in events:
            waited_for_s[last.rank] += last.start_s - event.start_s
    return waited_for_s.index(max(waited_for_s))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Look at a single <code>all_reduce</code> of four ranks. Whom do the others wait for, and from when to when?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The ranks' <i>k</i>-th calls of <code>all_reduce</code> belong together. In each, find the rank that started last, and charge it with the time the others had been waiting by then. The straggler has the
# largest sum.
# </details>
# <details><summary>Hint 3: the code</summary>
# For the four calls of one <code>all_reduce</code>: <code>last = max(events, key=lambda event: event.start_s)</code>, then for each of them
# <code>waited_for_s[last.rank] += last.start_s - event.start_s</code>
# </details>


# %% jupyter={"source_hidden": true}
late_at = {  # how many calls there are, and at which it is late
    "late at first": (3, [0]),
    "late at last": (5, [4]),
    "late once, a different one often": (3, [1]),
    "late often, a different one once": (4, [0, 1, 2]),
    "late every time": (5, [0, 1, 2, 3, 4]),
    "late at the last of forty": (40, [39]),
    "two in turn, a third always nearly last": (4, [0, 1]),
}


def straggler_inputs(rank, world_size, case):
    calls, when = late_at[case]
    late, delays_s = int(torch.randint(4, ())), 0.02 * torch.rand(calls, 4)
    delays_s[when, late] += 0.5
    if case == "late once, a different one often":
        delays_s[[0, 2], late - 1] += 0.1
    elif case == "late often, a different one once":
        delays_s[3, late - 1] += 0.9
    elif case == "two in turn, a third always nearly last":
        delays_s[[2, 3], late - 1] += 0.4
        delays_s[:2, late - 2] += 0.47
        delays_s[2:, late - 2] += 0.37
    events = made_up(["all_reduce"], delays_s)
    for other in range(4):  # a message from each: the straggler's begins first, and takes long
        begin_s, end_s = ((0.0, 2.0), (2.0, 2.1), (2.0, 4.0), (2.0, 5.0))[(other - late) % 4]
        message = {"bytes": 8, "start_s": calls + begin_s, "end_s": calls + end_s}
        events.append(Event(rank=other, index=calls, kind="send", peer=(other + 1) % 4, **message))
    return Trace(tuple(events), (calls + 5.0,) * 4)


straggler_check = {"spec": straggler_spec, "inputs": straggler_inputs}
straggler_check |= {"cases": list(late_at), "world_sizes": (1,)}

# %%
check(straggler, **straggler_check)

# %% [markdown]
# This is a recording that the check tries. If your function fails at a different one, write the name of that one here.


# %% jupyter={"source_hidden": true}
def show_recording(case):
    """Draw a recording that check tries, and say who holds the others up in it."""
    number = list(late_at).index(case)
    (recording,) = draw(straggler_inputs, 0, 1, case, public_seed(0, 1, number))
    text = f"{case}: the others wait longest for rank {straggler_spec([recording])[0]}."
    plot_timeline(recording, text.capitalize(), clock="time (ms), made up")


# %%
show_recording("late at first")

# %% [markdown]
# ## 7 · What do your own measurements say?
#
# *Difficulty ●●● · importance ●●○ · 25 minutes.* [The DDP lab](../notebooks/README.md), one of the five articles this course grew out of, asks for this: compare two ways to sum gradients, and see what one slow
# rank does to all the others.

# %% [markdown]
# Begin with three **recordings** of `ten_times` on four ranks (`launch(..., trace=True).trace`): with `dist.all_reduce`; with `two_calls`; and
# with `dist.all_reduce` again, with one slow rank of your choice. Put all three into the list `recordings`.


# %%
def two_calls(tensor):
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)


def ten_times(aggregate, slow_rank=None):
    for _ in range(10):
        if dist.get_rank() == slow_rank:
            time.sleep(0.02)
        aggregate(torch.ones(100_000))


# %%
nothing = Trace(tuple(made_up(["barrier"], torch.zeros(1, 4))), (1.0,) * 4)

### BEGIN SOLUTION recordings = [nothing, nothing, nothing]  # put yours here
recordings = [
    launch(ten_times, *arguments, world_size=4, backend="gloo", trace=True).trace
    for arguments in ((dist.all_reduce,), (two_calls,), (dist.all_reduce, 2))
]
### END SOLUTION

# %% [markdown]
# **Goal:** return `{"one": ..., "two": ..., "slow": ..., "straggler": rank}`, where `one` is the recording with one call (`all_reduce`),
# `two` the one with two calls, and `slow` the one with a slow rank.

# %% [markdown]
# For each of the three, return a dict with
#
# * `calls`: how often rank 0 called what, such as `{"all_reduce": 10}`;
# * `took_s`: the seconds from the first call of any rank until all are done;
# * `inside_s`: a list of the seconds that each rank spent inside collectives;
# * `finish_us`: when the slowest rank is done on `network`.

# %% [markdown]
# Your times differ from anybody else's, so `check` computes them again from your recordings. It also tries two sets of recordings that are made up. For example, if rank 0 is inside
# collectives from 0.0 to 0.4 s and from 0.5 to 0.6 s, its entry in `inside_s` is 0.5.

# %% jupyter={"source_hidden": true}
network = Network(latency_us=10, gbit_s=10)
KINDS = ["all_reduce"], ["reduce", "broadcast"], ["all_reduce"]


def report_spec(*columns):
    def measured(trace, kinds):
        called = [event.kind for event in trace.of_rank(0)]
        calls = {kind: called.count(kind) for kind in called}
        if calls.keys() != set(kinds) or min(calls.values()) < 10:  # not of ten_times
            calls = dict.fromkeys(kinds, 10)
        inside_s = [sum(e.end_s - e.start_s for e in trace.of_rank(r)) for r in range(4)]
        took_s = max(e.end_s for e in trace) - min(e.start_s for e in trace)
        finish_us = max(trace.replay(network).finish_us)
        return {"calls": calls, "took_s": took_s, "inside_s": inside_s, "finish_us": finish_us}

    one, two, slow = map(measured, (column[0] for column in columns), KINDS)
    _, second_s, *_ = sorted(slow["inside_s"])
    late = "nobody: does a rank sleep?"
    if second_s > 0.05:
        late = straggler_spec(columns[2])[0]
    return [{"one": one, "two": two, "slow": slow, "straggler": late}]


# %%
def report(one, two, slow):
    ### BEGIN SOLUTION
    numbers = {"straggler": straggler(slow)}  # exercise 6: it only has all_reduces
    for name, trace in (("one", one), ("two", two), ("slow", slow)):
        kinds, inside_s = [event.kind for event in trace.of_rank(0)], [0.0] * 4
        for event in trace:
            inside_s[event.rank] += event.end_s - event.start_s
        numbers[name] = {
            "calls": {kind: kinds.count(kind) for kind in kinds},
            # From the first call of any rank to the last end: no rank alone sees both.
            "took_s": max(e.end_s for e in trace) - min(e.start_s for e in trace),
            "inside_s": inside_s,
            "finish_us": max(trace.replay(network).finish_us),
        }
    return numbers
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Three of the four are one line each. Which of them have you written before?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Go through the three recordings and make the same dict from each. A trace has <code>of_rank(0)</code> and
# <code>replay(network)</code>; <code>inside_s</code> and the straggler are exercise 6.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>max(e.end_s for e in trace) - min(e.start_s for e in trace)</code>,
# <code>max(trace.replay(network).finish_us)</code>, and <code>kinds.count(kind)</code>, where <code>kinds</code> lists the kinds
# of rank 0's events.
# </details>


# %% jupyter={"source_hidden": true}
slow_ranks = {"Ada's recordings": 1, "Ben's recordings": 3}  # made up; and who is slow


def report_inputs(rank, world_size, case):
    if case == "your recordings":
        return tuple(recordings)
    size, delays_s = 4 * int(torch.randint(100, 1000, ())), 0.02 * torch.rand(3, 30, 4)
    delays_s[2, :, slow_ranks[case]] += 0.1
    counts = [len(kinds) * int(torch.randint(10, 16, ())) for kinds in KINDS]
    all_events = [made_up(k, d[:n], size) for k, d, n in zip(KINDS, delays_s, counts)]
    for events, count in zip(all_events, counts):  # once more, without rank 0
        again = {"kind": "all_reduce", "group": (1, 2, 3), "group_name": "without rank 0"}
        again |= {"root": None, "index": count, "start_s": 30.0, "end_s": 30.01}
        events += [replace(events[count * rank], **again) for rank in (1, 2, 3)]
    return tuple(Trace(tuple(events), (31.0,) * 4) for events in all_events)


report_check = {"spec": report_spec, "inputs": report_inputs, "world_sizes": (1,)}
report_check |= {"cases": ("your recordings", *slow_ranks)}

# %% tags=["row-D10"]
check(report, **report_check)

# %% [markdown]
# These are your numbers, and this is your third recording.

# %% jupyter={"source_hidden": true} tags=["raises-exception", "nbval-ignore-output"]
try:
    numbers = report(*recordings)
    print(f"{'ms':8}{'modelled':>8}{'took':>8}   inside, rank by rank")
    for name in ("one", "two", "slow"):
        measured = numbers[name]
        times_s = [1e-6 * measured["finish_us"], measured["took_s"], *measured["inside_s"]]
        print(f"{name:8}" + "".join(f"{1e3 * s:8.2f}" for s in times_s))
    plot_timeline(recordings[2], "Whom do the others wait for, and in whose time does it show?")
except NotImplementedError:
    print("No report yet.")

# %% [markdown]
# **Your conclusion**, in 100 words at most, is for a person to read. A good one says
#
# * which way is faster in the model, and what changes with 1,000 numbers (try it);
# * whether your machine agrees, and how you'd find out whether that's chance;
# * how much time one slow rank costs, and in whose `inside_s` that shows.

# %% [markdown] tags=["conclusion", "points-6"]
# *Double-click here and write.*

# %% [markdown]
# ## Bonus · Fill the pipe
#
# *As long as you like; there's no check and no single answer.* In part 4 of the chapter, a ring `reduce` and a `broadcast` take 490 µs for a megabyte on eight ranks, where an
# `all_reduce` takes 315 µs. Is that the last word on reduce and broadcast?

# %% [markdown]
# Write your own, with messages along a chain of ranks: sums travel to the last rank,
# and the result travels back. If you cut the tensor into many pieces, a rank can pass one piece on while it receives the next.

# %% [markdown]
# `finish_us` runs your function in real ranks and replays the recording on the chapter's network, so the same calls always take the same time. A simple loop over 32
# pieces takes 378 µs. Which number of pieces is best, and why aren't more always better? What changes with a latency of 100 µs?


# %%
def in_one_piece(tensor, pieces=1):
    """Replace this with your own."""
    two_calls(tensor)


def finish_us(aggregate, pieces, latency_us=10):
    def worker():
        aggregate(tensor := torch.ones(250_000), pieces)
        assert tensor.eq(8).all(), "a wrong sum"

    trace = launch(worker, world_size=8, backend="gloo", trace=True).trace
    return max(trace.replay(Network(latency_us=latency_us, gbit_s=80)).finish_us)


print(f"{finish_us(in_one_piece, pieces=1):.0f} µs")

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [04 · DDP training](../notebooks/04_ddp_training.ipynb), where one of these calls trains a model.

# %%
progress("gather", "all_to_all", "part_of_sum", "spread", "sum_column", "straggler", "report")
