# %% [markdown]
# # Lab 13 · Hold less
#
# Two exercises on [chapter 13](../notebooks/13_hold_less.ipynb), 30 minutes, on any computer. `check` runs your function in real workers, compares what they return with a
# **specification**, and replays their recording on a modelled network. Each exercise says how difficult it is and how important, from ●○○ to ●●●.

# %%
import functools
import weakref

import torch
import torch.distributed as dist

from course_utils import Network, check, progress
from course_utils.network.trace import Trace
from course_utils.record.event import Event

# %% [markdown]
# ## 1 · What is whole, and when?
#
# *Difficulty ●●● · importance ●●○ · 18 minutes.* The chapter's `Ahead` learned its order from the step before. Write the schedule of a sharded step yourself. A `Unit` is a layer, tanh(*x* @ weight), of which each rank holds a shard:
#
# | call | what it does | takes |
# | --- | --- | --- |
# | `gather()` | begins to gather the weight, which counts as whole from now on | |
# | `forward(x)` | waits for the weight, returns the layer's output | *C* |
# | `backward(gradient)` | waits for the weight, takes the gradient of the output, returns that of the input | 2 *C* |
# | `free()` | lets go of the weight | |
# | `reduce()` | begins to reduce-scatter the weight's gradient | |
# | `finish()` | waits for that; returns this rank's share of the mean gradient | |
#
# **Goal:** train one step on the list `units`; the loss's gradient at the output *y* is *y* − target. Return what each unit's `finish()` returns. Never more than two weights are whole. Only the first gather and the last reduce-scatter may cost time. The last weight is gathered once.


# %% jupyter={"source_hidden": true}
class Unit:
    """A layer whose weight comes and goes; it tells `gathered` of each whole one."""

    def __init__(self, weight, clock, gathered):
        self.n, self.shape, self.clock = dist.get_world_size(), weight.shape, clock
        self.gathered = gathered
        self.shard = weight.flatten().chunk(self.n)[dist.get_rank()].clone()
        self.whole = self.work = self.gradient = self.reducing = None

    def gather(self):
        if self.work:
            raise RuntimeError("this weight is whole already, or on its way")
        self.whole = self.shard.new_empty(self.shape)
        self.work = dist.all_gather_into_tensor(self.whole.view(-1), self.shard, async_op=True)
        self.gathered(self.whole)

    def arrived(self, computing):
        if not self.work:
            raise RuntimeError("this weight is not whole: gather() comes first")
        if self.work is not True:
            self.work.wait()
            self.work = True
        for _ in range(computing):  # takes its time on the modelled network, and sends nothing
            dist.barrier(self.clock)
        return self.whole

    def forward(self, x):
        self.x = x
        self.y = torch.tanh(x @ self.arrived(1))
        return self.y

    def backward(self, gradient):
        weight = self.arrived(2)
        inner = gradient * (1 - self.y**2)
        self.gradient = self.x.T @ inner
        return inner @ weight.T

    def free(self):
        self.arrived(0)
        self.whole = self.work = None

    def reduce(self):
        if self.gradient is None:
            raise RuntimeError("there is no gradient to reduce: backward() comes first")
        flat, self.gradient = self.gradient.flatten() / self.n, None
        mine = torch.empty_like(self.shard)
        self.reducing = mine, dist.reduce_scatter_tensor(mine, flat, async_op=True)

    def finish(self):
        mine, work = self.reducing
        work.wait()
        return mine


def step_spec(all_weights, all_x, all_targets):
    n, weights = len(all_x), [weight.requires_grad_() for weight in all_weights[0]]
    for x, target in zip(all_x, all_targets):
        for weight in weights:
            x = torch.tanh(x @ weight)
        ((x - target).square().sum() / (2 * n)).backward()
    shares = [[weight.grad.flatten().chunk(n)[rank] for weight in weights] for rank in range(n)]
    return [
        {"shares": own, "whole at once: two at most": True, "all freed": True} for own in shares
    ]


# %%
def step(units, x, target):
    ### BEGIN SOLUTION # forward, each time the next one first; then the same backwards
    units[0].gather()
    for unit, following in zip(units, [*units[1:], None]):
        if following:
            following.gather()
        x = unit.forward(x)
        if following:  # the last one is needed again at once
            unit.free()
    gradient = x - target
    for unit, following in zip(units[::-1], [*units[-2::-1], None]):
        if following:
            following.gather()
        gradient = unit.backward(gradient)
        unit.free()
        unit.reduce()
    return [unit.finish() for unit in units]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Write down which weights are whole while layer 1 of the layers 0 to 3 computes forward, and while it computes backward. Which layer's weight is needed last in forward, and first in backward?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Begin with the first gather. Then for each layer: gather the next one, compute, free. Keep the last layer. Backward is the same from the end, with a reduce-scatter after each <code>free()</code>. Wait for all of them at the
# end.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for unit, following in zip(units, [*units[1:], None]):</code>, and in backward
# <code>zip(units[::-1], [*units[-2::-1], None])</code>.
# </details>


# %% jupyter={"source_hidden": true}
stacks = {  # rows and columns of the weights
    "one layer": [(12, 12)],
    "two layers": [(12, 24), (24, 12)],
    "four layers": [(12, 12)] * 4,
    "five layers, not all alike": [(12, 24), (24, 24), (24, 6), (6, 12), (12, 12)],
}


def stepping(answer):
    """Let the answer have units of the weights, and tell how much was whole."""

    @functools.wraps(answer)
    def stepped(weights, x, target):
        clock, whole, counts = dist.new_group(), weakref.WeakSet(), []

        def gathered(weight):
            whole.add(weight)
            counts.append(len(whole))  # of those that are still somewhere in memory

        shares = answer([Unit(weight, clock, gathered) for weight in weights], x, target)
        few = {"whole at once: two at most": max(counts) <= 2, "all freed": not whole}
        return {"shares": shares} | few

    return stepped


def step_inputs(rank, world_size, case):
    seeded = torch.Generator().manual_seed(7)
    shapes, options = stacks[case], {"dtype": torch.float64}
    weights = [torch.randn(shape, generator=seeded, **options) / 4 for shape in shapes]
    return (
        weights,
        torch.randn(3, shapes[0][0], **options),
        torch.randn(3, shapes[-1][1], **options),
    )


def step_budget(world_size, case):
    """Computing, the first gather, the last reduce-scatter; and the last weight gathered once."""
    shares = [8 * rows * columns / world_size for rows, columns in stacks[case]]
    gather_us = [10 + share * 8 / 80_000 for share in shares]
    computing_us = 3 * len(shares) * 2 * 10  # a barrier is a ring of no bytes
    finish_us = (world_size - 1) * (computing_us + 2 * gather_us[0])
    return {
        "sent_bytes": (world_size - 1) * (3 * sum(shares) - shares[-1]),
        "finish_us": 1.03 * finish_us,  # messages of a barrier wait for a port now and then
    }


options = {"cases": list(stacks), "world_sizes": (1, 2, 3), "budget": step_budget}
options |= {"network": Network(latency_us=10, gbit_s=80), "rtol": 1e-9}

# %%
check(stepping(step), spec=step_spec, inputs=step_inputs, **options)

# %% [markdown]
# ## 2 · A plan for a cluster
#
# *Difficulty ●●○ · importance ●●● · 12 minutes.* Part 7 compared two ways of sharding; there are more. With *n* ranks, each divisor *s* of *n* gives one: *s* neighbouring ranks share a copy of the model, and *n* / *s* copies keep equal. A rank holds 4 / *s* times the model's weights (weights, gradients, two moments). If *s* is more than 1, two whole layers
# come on top. **Goal:** return (*s*, *n* / *s*) of the fastest way whose bytes are at most `memory_bytes`, or `None` if nothing fits. All `layers` have `layer_bytes`. `step_us` below prices a step by a replay, without computing.


# %%
def calls_of_layer(ranks, shard, layer_bytes):
    """What each rank calls: (kind, bytes handed in, group); with one copy nothing goes across."""
    for rank in range(ranks):
        inside = tuple(range(rank // shard * shard, rank // shard * shard + shard))
        across = tuple(range(rank % shard, ranks, shard))
        gathers = [("all_gather", layer_bytes // shard, inside)] * 2
        sums = [
            ("reduce_scatter", layer_bytes, inside),
            ("all_reduce", layer_bytes // shard, across),
        ]
        yield [call for call in gathers + sums if len(call[2]) > 1]


# %% jupyter={"source_hidden": true}
@functools.cache
def recorded(ranks, shard, layer_bytes):
    """The recording of ranks that would call so, for one layer."""
    events = []
    for rank, calls in enumerate(calls_of_layer(ranks, shard, layer_bytes)):
        for index, (kind, size, group) in enumerate(calls):
            parts = (size // shard,) * shard if kind == "reduce_scatter" else ()
            how = {"kind": kind, "bytes": size, "group": group, "group_name": str(group)}
            how |= {"parts": parts, "blocking": True, "start_s": index, "end_s": index}
            events.append(Event(rank=rank, index=index, **how))
    return Trace(tuple(events), ((0.0,),) * ranks)


def step_us(network, ranks, shard, layers, layer_bytes):
    """Microseconds that all layers' calls take."""
    trace = recorded(ranks, shard, layer_bytes)
    return layers * max(trace.replay(network).finish_us) if trace.events else 0.0


def plan_spec(networks, ranks, layers, layer_bytes, memory_bytes):
    found = []
    for network, n, count, size, memory in zip(networks, ranks, layers, layer_bytes, memory_bytes):
        times = {
            (s, n // s): step_us(network, n, s, count, size)
            for s in range(1, n + 1)
            if n % s == 0 and 4 * count * size / s + 2 * size * (s > 1) <= memory
        }
        found.append(min(times, key=times.get, default=None))
    return found


# %%
def plan(network, ranks, layers, layer_bytes, memory_bytes):
    ### BEGIN SOLUTION
    def needed_bytes(shard):
        return 4 * layers * layer_bytes / shard + 2 * layer_bytes * (shard > 1)

    divisors = [shard for shard in range(1, ranks + 1) if ranks % shard == 0]
    fitting = [shard for shard in divisors if needed_bytes(shard) <= memory_bytes]
    if not fitting:
        return None
    best = min(fitting, key=lambda s: step_us(network, ranks, s, layers, layer_bytes))
    return best, ranks // best
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Is the smallest group that fits always the fastest? Compare <code>step_us</code> for 1 and for the ranks of a node.
# </details>
# <details><summary>Hint 2: the approach</summary>
# List the divisors, keep those that fit, and take the one with the least time. A plan without sharding needs no room for whole layers.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>4 * layers * layer_bytes / shard + 2 * layer_bytes * (shard &gt; 1) &lt;= memory_bytes</code>
# </details>


# %% jupyter={"source_hidden": true}
clusters = {  # nodes, ranks in each, what fits just so (a shard size, bytes more), slower between
    "two nodes of four, memory for everything": (2, 4, (1, 10**9), 10),
    "two nodes of four, the whole model fits to the byte": (2, 4, (1, 0), 1),
    "two nodes of four, one byte less": (2, 4, (1, -1), 1),
    "two nodes of four, a node's share fits to the byte": (2, 4, (4, 0), 20),
    "two nodes of four, one byte less than a node's share": (2, 4, (4, -1), 20),
    "three nodes of two, almost no memory": (3, 2, (6, 0), 10),
    "two nodes of six, room for a third": (2, 6, (3, 5), 10),
    "one node of six": (1, 6, (2, 100), 1),
    "one node of four, the whole model fits to the byte": (1, 4, (1, 0), 1),
    "a byte too little for all ways": (2, 4, (8, -1), 10),
    "one rank": (1, 1, (1, 0), 1),
    "one node of six, one byte less than a half": (1, 6, (2, -1), 1),
}


def plan_inputs(rank, world_size, case):
    nodes, per_node, (shard, more), slower = clusters[case]
    low, high, layers = (int(torch.randint(1, 9, ())) for _ in range(3))
    between = (10 * low, 400 / slower) if nodes > 1 else None
    network = Network(latency_us=low, gbit_s=100 * high, nodes=nodes, between=between)
    layer_bytes = 24 * 2 ** int(torch.randint(8, 18, ()))
    needed = 4 * (layers + 2) * layer_bytes // shard + 2 * layer_bytes * (shard > 1)
    return network, nodes * per_node, layers + 2, layer_bytes, needed + more


# %%
check(plan, spec=plan_spec, inputs=plan_inputs, cases=list(clusters), world_sizes=(1, 2))

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress("step", "plan")
