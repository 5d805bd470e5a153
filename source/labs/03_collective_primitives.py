# %% [markdown]
# # Lab 03 · Collective primitives
#
# Nine exercises on [chapter 03](../notebooks/03_collective_primitives.ipynb), 100 minutes, on any computer. You make collectives of
# messages, find out who holds the others up, and end with a report of your own measurements. `check` runs your function in real
# workers and compares what it returns with a **specification**, a plain function of one process. It also reads the recording of
# what was called.

# %%
import time
from dataclasses import replace

import torch
import torch.distributed as dist

from course_utils import Network, check, launch, plot_timeline, progress
from course_utils.checks.cases import CASES
from course_utils.network.trace import Event, Trace

SENDABLE = CASES[:5]  # send refuses tensors with gaps, gloo empty ones from just any source

# %% [markdown]
# ## 1 · One tells all
#
# *●○○, 6 minutes.* Every rank has a tensor of the same shape. **Goal:** return on every rank what `root` holds, by `send` and `recv`
# alone. A plain loop will do: nobody needs to send more than world size − 1 messages.


# %%
def broadcast_spec(tensors, roots):
    return [tensors[roots[0]] for _ in tensors]


# %%
def broadcast(tensor, root):
    ### BEGIN SOLUTION
    if dist.get_rank() != root:
        dist.recv(tensor, root)
        return tensor
    for other in range(dist.get_world_size()):
        if other != root:
            dist.send(tensor, other)
    return tensor
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Two kinds of ranks run the same function. What does the root do, and what do the others?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The root sends its tensor to every other rank, in a loop. Each of those receives once, into the tensor that it has.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.recv(tensor, root)</code> on the others; <code>dist.send(tensor, other)</code> on the root, but not to itself.
# </details>


# %%
def rooted(rank, world_size, case):
    return case.tensor(), case.number % world_size


by_messages = {"forbid": ("collectives",), "world_sizes": (1, 2, 3, 5), "cases": SENDABLE}
loop = {"budget": lambda world_size, case: {"sent_messages": world_size - 1}}
check(broadcast, spec=broadcast_spec, inputs=rooted, **by_messages, **loop)

# %% [markdown]
# ## 2 · One hands out
#
# *●○○, 6 minutes.* On `root`, `parts` is a list with a tensor for each rank; elsewhere it is None. `buffer` has the shape of a part.
# **Goal:** return part r on rank r, by `send` and `recv` alone. Nobody needs to send more than world size − 1 messages, nor more
# bytes than the parts of the other ranks have.


# %%
def scatter_spec(lists, buffers, roots):
    return lists[roots[0]]


# %%
def scatter(parts, buffer, root):
    ### BEGIN SOLUTION
    if dist.get_rank() != root:
        dist.recv(buffer, root)
        return buffer
    for other, part in enumerate(parts):
        if other != root:
            dist.send(part, other)
    return parts[root]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What changes in <code>broadcast</code> if everybody gets something else? And what becomes of the root's own part?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The root walks through its list and sends part r to rank r. Its own part it returns.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for other, part in enumerate(parts):</code>
# </details>


# %%
def scatter_inputs(rank, world_size, case):
    root = case.number % world_size
    parts = [case.tensor() for _ in range(world_size)]
    return parts if rank == root else None, torch.zeros_like(parts[0]), root


def no_part_twice(world_size, case):
    others = world_size - 1
    return {"sent_messages": others, "sent_bytes": others * case.tensor().nbytes}


parts_only = by_messages | {"budget": no_part_twice}
check(scatter, spec=scatter_spec, inputs=scatter_inputs, **parts_only)

# %% [markdown]
# ## 3 · One collects
#
# *●○○, 6 minutes.* The way back. **Goal:** return on `root` the list of all ranks' tensors, in the order of ranks, and None on every
# other rank, by `send` and `recv` alone. All tensors have the same shape, and nobody needs to send more than one message.


# %%
def gather_spec(tensors, roots):
    return [tensors if rank == roots[0] else None for rank in range(len(tensors))]


# %%
def gather(tensor, root):
    ### BEGIN SOLUTION
    if dist.get_rank() != root:
        dist.send(tensor, root)
        return None
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    for other, buffer in enumerate(tensors):
        if other != root:
            dist.recv(buffer, other)
    tensors[root] = tensor
    return tensors
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many buffers does the root need, if it is to keep all tensors?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The root makes an empty tensor for each rank, and receives into number r from rank r. Whoever receives from anybody mixes them up.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]</code>
# </details>

# %%
check(gather, spec=gather_spec, inputs=rooted, **by_messages, budget={"sent_messages": 1})

# %% [markdown]
# ## 4 · One adds up
#
# *●●○, 8 minutes.* **Goal:** return on `root` the sum of all ranks' tensors, and None on every other rank, by `send` and `recv` alone. Again
# one message of each is enough. No list is needed: one buffer, added to the sum as often as something comes.


# %%
def reduce_spec(tensors, roots):
    return [sum(tensors) if rank == roots[0] else None for rank in range(len(tensors))]


# %%
def reduce(tensor, root):
    ### BEGIN SOLUTION
    if dist.get_rank() != root:
        dist.send(tensor, root)
        return None
    total, buffer = tensor.clone(), torch.empty_like(tensor)
    for _ in range(dist.get_world_size() - 1):
        dist.recv(buffer)
        total += buffer
    return total
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Does it matter for a sum who comes first?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The root begins with its own tensor, receives world size − 1 times into one buffer, and adds it each time.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.recv(buffer)</code> without a source takes what comes first; then <code>total += buffer</code>.
# </details>

# %%
check(reduce, spec=reduce_spec, inputs=rooted, **by_messages, budget={"sent_messages": 1})

# %% [markdown]
# ## 5 · Everybody at once
#
# *●●○, 10 minutes.* The ranks stand in a ring: after the last comes rank 0. **Goal:** send `tensor` to the rank after this one, return what
# the rank before it sends, by messages alone. All at once: on the modelled network of the check there is time for one message,
# not for two in turn. A rank that is alone keeps its own.


# %%
def shift_spec(tensors):
    return [tensors[rank - 1] for rank in range(len(tensors))]


# %%
def shift(tensor):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size == 1:
        return tensor
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % world_size)
    dist.recv(received, (rank - 1) % world_size)
    sending.wait()
    return received
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# If every rank begins with <code>send</code>, who receives?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Start to send, receive, and only then wait until the sending is done. Receive into a new tensor: the old one is still on its way.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sending = dist.isend(tensor, (rank + 1) % world_size)</code>, and <code>sending.wait()</code> at the end.
# </details>

# %%
in_time = {"budget": lambda n, case: {"finish_us": 10.5 * (n > 1)}}
in_time["network"] = Network(latency_us=10, gbit_s=1)
check(shift, spec=shift_spec, inputs=lambda r, n, case: case.tensor(), **by_messages, **in_time)

# %% [markdown]
# ## 6 · A transpose
#
# *●●●, 15 minutes.* Every rank has a list with a tensor for each rank. Written below each other, the lists are a matrix. **Goal:** return
# column r of it on rank r: the tensors that all ranks have for this one, in the order of ranks. By messages alone, one for each other
# rank, with what is for that rank.


# %%
def all_to_all_spec(rows):
    return [list(column) for column in zip(*rows)]


# %%
def all_to_all(row):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    column = [torch.empty_like(part) for part in row]
    column[rank] = row[rank]
    others = [other for other in range(world_size) if other != rank]
    works = [dist.isend(row[other], other) for other in others]
    works += [dist.irecv(column[other], other) for other in others]
    for work in works:
        work.wait()
    return column
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# In exercise 5 each rank sent to one other. What if it is to all others?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Start to send to all others and to receive from all others, then wait for all of it. What a rank has for itself needs no message.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>works = [dist.isend(row[other], other) for other in others]</code>, the same with <code>irecv</code>, then
# <code>work.wait()</code> for each.
# </details>


# %%
def all_to_all_inputs(rank, world_size, case):
    return [case.tensor() for _ in range(world_size)]


check(all_to_all, spec=all_to_all_spec, inputs=all_to_all_inputs, **parts_only)

# %% [markdown]
# ## 7 · Two make one
#
# *●○○, 6 minutes.* Now with torch's own collectives. **Goal:** return on every rank the sum of all ranks' tensors, by one
# `dist.reduce` and one `dist.broadcast`, and nothing else. Remember what `reduce` leaves on ranks that it does not go to.


# %%
def all_reduce_spec(tensors):
    return [sum(tensors) for _ in tensors]


# %%
def all_reduce(tensor):
    ### BEGIN SOLUTION
    dist.reduce(tensor, 0)
    dist.broadcast(tensor, 0)
    return tensor
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which rank has the sum after <code>reduce</code>? No other has anything to broadcast.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Reduce to a rank, whichever it is, and broadcast from the same.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.reduce(tensor, 0)</code>, then <code>dist.broadcast(tensor, 0)</code>; both work in place.
# </details>

# %%
options = {"require": ("reduce", "broadcast"), "world_sizes": (1, 2, 3, 5), "cases": CASES[:6]}
once = {"budget": lambda world_size, case: {"sent_bytes": 2 * case.tensor().nbytes}}
once["forbid"] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "recv")
check(all_reduce, spec=all_reduce_spec, inputs=lambda r, n, case: case.tensor(), **options, **once)

# %% [markdown]
# ## 8 · Who holds the others up?
#
# *●●○, 12 minutes.* A recording says when a rank called (`event.start_s`) and when that was done (`event.end_s`). Nobody is done with an
# `all_reduce` before the last has come. **Goal:** return the straggler of four ranks: the one for which the others, over all
# `all_reduce`s together, wait longest. There are also messages in the recordings, which do not count. The specification is folded up;
# below it stands an example.


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
    """In sum it comes latest."""
    calls = [event for event in traces[0] if event.kind == "all_reduce"]
    return [max(range(4), key=lambda r: sum(e.start_s for e in calls if e.rank == r))]


# %%
delays_s = torch.tensor([[0.0, 0.3, 0.1, 0.0], [0.2, 0.0, 0.1, 0.0]])
example = Trace(tuple(made_up(["all_reduce"], delays_s)), ((2.0, 0.0),) * 4)
plot_timeline(
    example, "For rank 1 the others wait 0.8 s, for rank 0 0.5 s: straggler(example) is 1"
)


# %%
def straggler(trace):
    ### BEGIN SOLUTION
    inside_s = [0.0] * 4
    for event in trace:
        if event.kind == "all_reduce":
            inside_s[event.rank] += event.end_s - event.start_s
    return inside_s.index(min(inside_s))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Whoever is waited for does not wait. What does that make of its own time in <code>all_reduce</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Add up, for each rank, how long it is inside of its <code>all_reduce</code>s. The straggler has the smallest sum.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>inside_s[event.rank] += event.end_s - event.start_s</code>
# </details>


# %%
late_at = {  # how many calls there are, and at which it is late
    "late at first": (3, [0]),
    "late at last": (5, [4]),
    "late once, another often": (3, [1]),
    "late often, another once": (4, [0, 1, 2]),
    "late every time": (5, [0, 1, 2, 3, 4]),
}


def straggler_inputs(rank, world_size, case):
    calls, when = late_at[case]
    late, delays_s = int(torch.randint(4, ())), 0.02 * torch.rand(calls, 4)
    delays_s[when, late] += 0.5
    if case == "late once, another often":
        delays_s[[0, 2], late - 1] += 0.1
    elif case == "late often, another once":
        delays_s[3, late - 1] += 0.9
    events = made_up(["all_reduce"], delays_s)
    for other in range(4):  # a message from each: the straggler's begins first, and takes long
        begin_s, end_s = ((0.0, 2.0), (2.0, 2.1), (2.0, 4.0), (2.0, 5.0))[(other - late) % 4]
        message = {"bytes": 8, "start_s": calls + begin_s, "end_s": calls + end_s}
        events.append(Event(rank=other, index=calls, kind="send", peer=(other + 1) % 4, **message))
    return Trace(tuple(events), ((calls + 5.0, 0.0),) * 4)


options = {"cases": list(late_at), "world_sizes": (1,)}
check(straggler, spec=straggler_spec, inputs=straggler_inputs, **options)

# %% [markdown]
# ## 9 · Your report
#
# *●●●, 30 minutes.* A published lab asks for this: compare two ways to aggregate, and see what one slow rank does to all. Begin with three
# **recordings** of `ten_times` on four ranks (`launch(..., trace=True).trace`): with `dist.all_reduce`; with your `all_reduce` of
# exercise 7; and with `dist.all_reduce` again, where one rank of your choice is slow.


# %%
def ten_times(aggregate, slow_rank=None):
    for _ in range(10):
        if dist.get_rank() == slow_rank:
            time.sleep(0.02)
        aggregate(torch.ones(100_000))


nothing = Trace(tuple(made_up(["barrier"], torch.zeros(1, 4))), ((1.0, 0.0),) * 4)

### BEGIN SOLUTION recordings = [nothing, nothing, nothing]  # put yours here
recordings = [
    launch(ten_times, *how, world_size=4, backend="gloo", trace=True).trace
    for how in ((dist.all_reduce,), (all_reduce,), (dist.all_reduce, 2))
]
### END SOLUTION

# %% [markdown]
# **Goal:** return `{"one": ..., "two": ..., "slow": ..., "straggler": rank}`. Of each recording, in a dict:
#
# * `calls`: how often rank 0 called what, such as `{"all_reduce": 10}`;
# * `took_s`: seconds from the first call of any rank until all are done;
# * `inside_s`: the list of how many seconds each rank was inside of collectives;
# * `finish_us`: when the slowest rank is done on `network`.
#
# Your times are your own; `check` computes them again from your recordings. The specification is folded up, since
# it does what you are to do.

# %% jupyter={"source_hidden": true}
network = Network(latency_us=10, gbit_s=10)
KINDS = ["all_reduce"], ["reduce", "broadcast"], ["all_reduce"]


def report_spec(*columns):
    def measured(trace, kinds):
        made = [event.kind for event in trace.of_rank(0)]
        calls = {kind: made.count(kind) for kind in made}
        if calls.keys() != set(kinds) or min(calls.values()) < 10:  # not of ten_times
            calls = dict.fromkeys(kinds, 10)
        inside_s = [sum(e.end_s - e.start_s for e in trace.of_rank(r)) for r in range(4)]
        took_s = max(e.end_s for e in trace) - min(e.start_s for e in trace)
        finish_us = max(trace.replay(network).finish_us)
        return {"calls": calls, "took_s": took_s, "inside_s": inside_s, "finish_us": finish_us}

    one, two, slow = map(measured, (column[0] for column in columns), KINDS)
    least_s, second_s, *_ = sorted(slow["inside_s"])
    late = slow["inside_s"].index(least_s) if second_s > 0.05 else "nobody: does a rank sleep?"
    return [{"one": one, "two": two, "slow": slow, "straggler": late}]


# %%
def report(one, two, slow):
    ### BEGIN SOLUTION
    numbers = {"straggler": straggler(slow)}
    for name, trace in (("one", one), ("two", two), ("slow", slow)):
        kinds, inside_s = [event.kind for event in trace.of_rank(0)], [0.0] * 4
        for event in trace:
            inside_s[event.rank] += event.end_s - event.start_s
        numbers[name] = {
            "calls": {kind: kinds.count(kind) for kind in kinds},
            "took_s": max(e.end_s for e in trace) - min(e.start_s for e in trace),
            "inside_s": inside_s,
            "finish_us": max(trace.replay(network).finish_us),
        }
    return numbers
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Three of the four are one line each. Which have you written before?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Go through the three recordings, and make the same dict of each. A trace has <code>of_rank(0)</code> and
# <code>replay(network)</code>; <code>inside_s</code> and the straggler are exercise 8.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>max(e.end_s for e in trace) - min(e.start_s for e in trace)</code>,
# <code>max(trace.replay(network).finish_us)</code>, and <code>kinds.count(kind)</code> where <code>kinds</code> are those
# of rank 0's events.
# </details>


# %% tags=["row-D10"]
others = {"Ada's recordings": 1, "Ben's recordings": 3}  # made up; and who is slow


def report_inputs(rank, world_size, case):
    if case == "your recordings":
        return tuple(recordings)
    size, delays_s = 4 * int(torch.randint(100, 1000, ())), 0.02 * torch.rand(3, 30, 4)
    delays_s[2, :, others[case]] += 0.1
    counts = [len(kinds) * int(torch.randint(10, 16, ())) for kinds in KINDS]
    made = [made_up(k, d[:n], size) for k, d, n in zip(KINDS, delays_s, counts)]
    for events, count in zip(made, counts):  # once more, without rank 0
        again = {"kind": "all_reduce", "group": (1, 2, 3), "group_name": "without rank 0"}
        again |= {"root": None, "index": count, "start_s": 30.0, "end_s": 30.01}
        events += [replace(events[count * rank], **again) for rank in (1, 2, 3)]
    return tuple(Trace(tuple(events), ((31.0, 0.0),) * 4) for events in made)


cases = ("your recordings", *others)
check(report, spec=report_spec, inputs=report_inputs, world_sizes=(1,), cases=cases)

# %% [markdown]
# These are your numbers, and your third recording.

# %% tags=["raises-exception", "nbval-ignore-output"]
try:
    numbers = report(*recordings)
    print(f"{'ms':8}{'modelled':>8}{'took':>8}   inside, rank by rank")
    for name in ("one", "two", "slow"):
        own = numbers[name]
        times_s = [1e-6 * own["finish_us"], own["took_s"], *own["inside_s"]]
        print(f"{name:8}" + "".join(f"{1e3 * s:8.2f}" for s in times_s))
    plot_timeline(recordings[2], "Whom do the others wait for, and where does it show?")
except NotImplementedError:
    print("No report yet.")

# %% [markdown]
# **Your conclusion**, in 100 words at most, is for a person to read. A good one says
#
# * which of the two ways is faster on the model, and what 1000 numbers instead of 100,000 change there (try it);
# * whether your machine agrees with the model, and how you would find out if that is chance;
# * how much longer all take because of one slow rank, and in whose time inside it shows.

# %% [markdown] tags=["conclusion"]
# *Double-click here and write.*

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
