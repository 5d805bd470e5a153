# %% [markdown]
# # Lab 13 · Hold less
#
# Five exercises on [chapter 13](../notebooks/13_hold_less.ipynb), 60 minutes, on any computer: a schedule, a plan, and three tasks that somebody might give you at work. `check` runs your function in real workers and compares what they return with a **specification**. Each exercise says how difficult
# it is and how important, from ●○○ to ●●●.

# %%
import functools
import os
import tempfile
import time
import weakref
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from course_utils import Network, check, progress
from course_utils.network.trace import Trace
from course_utils.record.event import Event

# %% [markdown]
# ## 1 · What is whole, and when?
#
# *Difficulty ●●● · importance ●●○ · 18 minutes.* The chapter's `Ahead` learned its order from the step before. Write the schedule of a sharded step yourself. A `Unit` is a layer, tanh(*x* @ weight), of which each rank holds a shard:

# %% [markdown]
# | call | what it does | takes |
# | --- | --- | --- |
# | `gather()` | begins to gather the weight, which counts as whole from now on | |
# | `forward(x)` | waits for the weight, returns the layer's output | *C* |
# | `backward(gradient)` | waits for the weight, takes the gradient of the output, returns that of the input | 2 *C* |
# | `free()` | lets go of the weight | |
# | `reduce()` | begins to reduce-scatter the weight's gradient | |
# | `finish()` | waits for that; returns this rank's share of the mean gradient | |

# %% [markdown]
# **Goal:** train one step on the list `units`; the loss's gradient at the output *y* is *y* − target. Return what each unit's `finish()` returns. At no time may more than two weights be whole. Only the first gather and the last reduce-scatter may cost time. The last weight is gathered once.


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
        gradient_shard = torch.empty_like(self.shard)
        work = dist.reduce_scatter_tensor(gradient_shard, flat, async_op=True)
        self.reducing = gradient_shard, work

    def finish(self):
        gradient_shard, work = self.reducing
        work.wait()
        return gradient_shard


def step_spec(all_weights, all_x, all_targets):
    n, weights = len(all_x), [weight.requires_grad_() for weight in all_weights[0]]
    for x, target in zip(all_x, all_targets):
        for weight in weights:
            x = torch.tanh(x @ weight)
        ((x - target).square().sum() / (2 * n)).backward()
    shares = [[weight.grad.flatten().chunk(n)[rank] for weight in weights] for rank in range(n)]
    memory = {"nobody has muted the count": True, "whole at once: two at most": True}
    memory |= {"all freed": True, "gathers": 2 * len(weights) - 1}  # of the last weight one
    return [{"shares": rank_shares} | memory for rank_shares in shares]


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


def tally():
    """Is sent whole weights, then None, and says what it saw; a generator keeps that to itself."""
    whole, counts = weakref.WeakSet(), []

    def alive(at_most):
        """How many are still in memory; gloo's thread lets go of one a little later."""
        had_too_many = max(counts, default=0) > 2
        give_up_at = time.monotonic() + (0 if had_too_many else 1)
        while len(whole) > at_most and time.monotonic() < give_up_at:
            time.sleep(0.001)
        return len(whole)

    weight = yield
    while weight is not None:
        whole.add(weight)
        del weight  # or it would live as long as this waits for the next one
        counts.append(alive(2))
        weight = yield
    few = max(counts, default=0) <= 2
    yield {"whole at once: two at most": few, "all freed": alive(0) == 0, "gathers": len(counts)}


def stepping(answer):
    """Let the answer have units of the weights, and tell how much was whole."""

    @functools.wraps(answer)
    def stepped(weights, x, target):
        clock, seen = dist.new_group(), tally()
        gathered = seen.send
        gathered(None)  # it begins
        units = [Unit(weight, clock, gathered) for weight in weights]
        shares = answer(list(units), x, target)
        noted = all(unit.gathered is gathered for unit in units)  # and nobody has muted it
        return {"shares": shares, "nobody has muted the count": noted} | gathered(None)

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
# *Difficulty ●●○ · importance ●●● · 12 minutes.* Part 10 compared two ways of sharding; there are more. With *n* ranks, each divisor *s* of *n* gives one: *s* neighbouring ranks share a copy of the model, and *n* / *s* copies are kept equal.

# %% [markdown]
# A rank holds 4 / *s* times the model's weights (weights, gradients, two moments). If *s* is more than 1, two full layers come on top. All `layers` have `layer_bytes`.

# %% [markdown]
# **Goal:** return (*s*, *n* / *s*) of the fastest way whose bytes are at most `memory_bytes`, or `None` if nothing fits. `step_us(network, ranks, shard, layers, layer_bytes)` below prices a step by a replay, without computing.


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
            fields = {"kind": kind, "bytes": size, "group": group, "group_name": str(group)}
            fields |= {"parts": parts, "blocking": True, "start_s": index, "end_s": index}
            events.append(Event(rank=rank, index=index, **fields))
    return Trace(tuple(events), (0.0,) * ranks)


def step_us(network, ranks, shard, layers, layer_bytes):
    """Microseconds that all layers' calls take."""
    trace = recorded(ranks, shard, layer_bytes)
    return layers * max(trace.replay(network).finish_us) if trace.events else 0.0


def plan_spec(networks, ranks, layers, layer_bytes, memory_bytes):
    plans = []
    for network, n, count, size, memory in zip(networks, ranks, layers, layer_bytes, memory_bytes):
        times = {
            (s, n // s): step_us(network, n, s, count, size)
            for s in range(1, n + 1)
            if n % s == 0 and 4 * count * size / s + 2 * size * (s > 1) <= memory
        }
        plans.append(min(times, key=times.get, default=None))
    return plans


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
# ## 3 · Clip a sharded model
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* A colleague's training explodes now and then, and `clip_grad_norm_` of each rank's shards made it worse. Each parameter in `shards` has its part of the mean gradient in `.grad`, or `None`. The ranks of `group` hold different parts; ranks of other groups hold copies.

# %% [markdown]
# **Goal:** scale all gradients in place so that the norm of the *whole* gradient is at most `max_norm`, and return the norm it had. If that norm isn't finite, leave the gradients as they are. Gradients
# may be float16, whose largest number is 65,504. Send no more than a few numbers. The specification:


# %%
def clip_spec(all_gradients, max_norms, copies):
    world_size, clipped = len(all_gradients), []
    ranks_per_copy = world_size // copies[0]
    for rank, gradients in enumerate(all_gradients):
        first = rank // ranks_per_copy * ranks_per_copy
        one_copy = all_gradients[first : first + ranks_per_copy]
        every = [gradient for shards in one_copy for gradient in shards]
        flat = torch.cat([g.double().flatten() for g in every if g is not None])
        norm = flat.norm()
        scale = min(1.0, max_norms[0] / norm) if norm.isfinite() else 1.0
        scaled = [None if g is None else g * scale for g in gradients]
        clipped.append({"norm": norm.item(), "gradients": scaled})
    return clipped


# %%
def clip(shards, max_norm, group):
    ### BEGIN SOLUTION
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    # A rank without gradients has to call all_reduce as well; squares of float16 overflow.
    square = torch.zeros(())
    for gradient in gradients:
        square += gradient.float().square().sum()
    dist.all_reduce(square, group=group)
    norm = square.sqrt()
    if norm.isfinite() and norm > max_norm:
        for gradient in gradients:
            gradient *= max_norm / norm
    return norm
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Two ranks have norms 3 and 4. Why is the whole norm 5, and what do they have to tell each other?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Each rank adds up its squares in float32, beginning with zero, so that a rank without gradients takes part too. One <code>all_reduce</code> of one number over the group, then the root. Scale only what is too long.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>square += gradient.float().square().sum()</code>, then <code>dist.all_reduce(square, group=group)</code>.
# </details>


# %% jupyter={"source_hidden": true}
clip_cases = {  # size of numbers, dtype, largest norm
    "longer than allowed": (1.0, torch.float32, 0.5),
    "shorter than allowed": (1.0, torch.float32, 1000.0),
    "float16": (300.0, torch.float16, 1.0),
    "rank 0 has no gradients": (1.0, torch.float32, 0.5),
    "one number is infinite": (1.0, torch.float32, 0.5),
    "two copies, if there are four ranks": (1.0, torch.float32, 0.5),
}


def clip_inputs(rank, world_size, case):
    scale, dtype, max_norm = clip_cases[case]
    gradients = [(scale * torch.randn(size)).to(dtype) for size in (40, 7, 60)]
    gradients.insert(1, None)
    if case == "rank 0 has no gradients" and rank == 0 and world_size > 1:
        gradients = [None] * 4
    if case == "one number is infinite" and rank == world_size - 1:
        gradients[0][3] = float("inf")
    copies = 2 if case.startswith("two copies") and world_size == 4 else 1
    return gradients, max_norm, copies


def clipping(answer):
    """Give the answer shards and the group of its copy; return what is left of the gradients."""

    @functools.wraps(answer)
    def clipped(gradients, max_norm, copies):
        per_copy = dist.get_world_size() // copies
        groups = []
        for first in range(0, dist.get_world_size(), per_copy):
            groups.append(dist.new_group(list(range(first, first + per_copy))))
        shards = []
        for gradient in gradients:
            shard = nn.Parameter(torch.zeros(1 if gradient is None else len(gradient)))
            if gradient is not None:
                shard = nn.Parameter(torch.zeros_like(gradient))
            shard.grad = gradient
            shards.append(shard)
        norm = answer(shards, max_norm, groups[dist.get_rank() // per_copy])
        return {"norm": float(norm), "gradients": [shard.grad for shard in shards]}

    return clipped


clip_check = {"spec": clip_spec, "inputs": clip_inputs, "cases": list(clip_cases)}
clip_check |= {"world_sizes": (1, 2, 4), "budget": {"sent_bytes": 64}, "rtol": 2e-3}

# %%
check(clipping(clip), **clip_check)

# %% [markdown]
# ## 4 · Save a sharded model
#
# *Difficulty ●●○ · importance ●●● · 8 minutes.* The same colleague gathers full weights to save them on rank 0 alone. That hangs, and they would not fit there anyway. `model` and its AdamW are sharded by FSDP2, and all ranks call your function.

# %% [markdown]
# **Goal:** write a checkpoint into the folder `path`: under `"model"` and `"optimizer"` what `get_state_dict` returns, and under `"done"` the number of samples of the epoch that have been used. Each rank writes only what it holds.


# %%
def save(path, model, optimizer, done):
    ### BEGIN SOLUTION
    weights, moments = get_state_dict(model, optimizer)  # under names, not under numbers
    state = {"model": weights, "optimizer": moments, "done": done}
    dcp.save(state, checkpoint_id=path)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who knows how to write pieces of one tensor from several ranks?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>torch.distributed.checkpoint</code>, imported as <code>dcp</code>, saves a nested dict whose tensors may be DTensors. All ranks call it.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>weights, moments = get_state_dict(model, optimizer)</code>, then <code>dcp.save({...}, checkpoint_id=path)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def blocks():
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2)]).double()


def begin(weights, mesh=None):
    """A network with these weights and its AdamW, sharded if there is a mesh."""
    network = blocks()
    network.load_state_dict(weights)
    if mesh:
        for block in network:
            fully_shard(block, mesh=mesh)
        fully_shard(network, mesh=mesh)
    return network, torch.optim.AdamW(network.parameters(), lr=0.01)


def take_steps(network, optimizer, batches):
    for batch in batches:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()


def whole_state(network, optimizer):
    """Weights and moments by their names, in full."""
    weights, moments = get_state_dict(network, optimizer)
    state = dict(weights)
    for name, of_parameter in moments["state"].items():
        for kind in ("step", "exp_avg", "exp_avg_sq"):
            state[f"{name} {kind}"] = of_parameter[kind]
    for name, tensor in state.items():
        state[name] = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return state


def from_rank_0(*values):
    """What rank 0 has, on all ranks."""
    shared = list(values)
    dist.broadcast_object_list(shared)
    return shared


def new_folder():
    """A new folder, the same on all ranks."""
    (name,) = from_rank_0(tempfile.mkdtemp() if dist.get_rank() == 0 else None)
    return Path(name)


def job_inputs(rank, world_size, case):
    weights = {name: torch.randn_like(old) / 2 for name, old in blocks().state_dict().items()}
    return weights, torch.randn(4, 3, 6, dtype=torch.float64), int(torch.randint(1, 500, ()))


# %% jupyter={"source_hidden": true}
def save_spec(all_weights, all_batches, all_done):
    network, optimizer = begin(all_weights[0])
    take_steps(network, optimizer, torch.cat(all_batches, dim=1))
    saved = whole_state(network, optimizer)
    saved |= {"done": all_done[0], "pieces of a weight": len(all_done)}
    return [saved] * len(all_done)


def saving(answer):
    """Train, let the answer save, and let each rank alone read everything."""

    @functools.wraps(answer)
    def saved(weights, batches, done):
        weights, done = from_rank_0(weights, done)
        mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
        network, optimizer = begin(weights, mesh)
        take_steps(network, optimizer, batches)
        path = new_folder() / "checkpoint"
        answer(path, network, optimizer, done)
        dist.barrier()
        alone, its_optimizer = begin(blocks().state_dict())
        read_weights, moments = get_state_dict(alone, its_optimizer)
        state = {"model": read_weights, "optimizer": moments, "done": -1}
        dcp.load(state, checkpoint_id=path, no_dist=True)
        set_state_dict(
            alone, its_optimizer, model_state_dict=read_weights, optim_state_dict=moments
        )
        pieces = dcp.FileSystemReader(path).read_metadata().state_dict_metadata["model.0.0.weight"]
        facts = {"done": state["done"], "pieces of a weight": len(pieces.chunks)}
        return whole_state(alone, its_optimizer) | facts

    return saved


job_check = {"inputs": job_inputs, "cases": ("AdamW, four steps",), "allow": ("files",)}
job_check |= {"rtol": 1e-7, "timeout": 20}

# %%
check(saving(save), spec=save_spec, world_sizes=(2, 3), **job_check)

# %% [markdown]
# ## 5 · Resume it with more ranks
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* A job was ended while it saved; today you have one rank more. `folder` has checkpoints `step_000001`, `step_000002` and so on, written as in exercise 4 by fewer ranks. A checkpoint is complete
# if it contains the file `.metadata`, which is written last.

# %% [markdown]
# **Goal:** give `model` and `optimizer` the newest *complete* checkpoint, and return its `"done"`. `model` is sharded over all of today's ranks, and neither has made a step. The job had lowered its learning rate,
# and the checkpoint knows it.


# %%
def resume(folder, model, optimizer):
    ### BEGIN SOLUTION
    complete = sorted(path.parent for path in folder.glob("step_*/.metadata"))
    weights, moments = get_state_dict(model, optimizer)  # made for today's ranks, to be filled
    state = {"model": weights, "optimizer": moments, "done": 0}
    dcp.load(state, checkpoint_id=complete[-1])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    return state["done"]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>dcp.load</code> fills tensors that are there already. Where do they come from before the first step?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>get_state_dict</code> makes them, for this model on these ranks. Fill them, then hand them back with <code>set_state_dict</code>. Values that aren't tensors are replaced in the dict by <code>dcp.load</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)</code>
# </details>


# %% jupyter={"source_hidden": true}
def resume_spec(all_weights, all_batches, all_done):
    ranks = len(all_done)
    network, optimizer = begin(all_weights[0])
    take_steps(network, optimizer, torch.cat(all_batches[: max(1, ranks - 1)], dim=1)[:2])
    optimizer.param_groups[0]["lr"] = 0.002
    take_steps(network, optimizer, torch.cat(all_batches, dim=1)[2:])
    return [whole_state(network, optimizer) | {"done": all_done[0]}] * ranks


def resuming(answer):
    """Fewer ranks train and save; all ranks resume, and train on."""

    @functools.wraps(answer)
    def resumed(weights, batches, done):
        weights, done = from_rank_0(weights, done)
        folder, rank, ranks = new_folder(), dist.get_rank(), dist.get_world_size()
        writers = max(1, ranks - 1)
        mesh = DeviceMesh("cpu", list(range(writers)))
        if rank < writers:
            network, optimizer = begin(weights, mesh)
            for step in (1, 2):
                take_steps(network, optimizer, batches[step - 1 : step])
                if step == 2:
                    optimizer.param_groups[0]["lr"] = 0.002  # as a scheduler does
                model_state, moments = get_state_dict(network, optimizer)
                state = {"model": model_state, "optimizer": moments, "done": done - 2 + step}
                path = folder / f"step_{step:06}"
                dcp.save(state, checkpoint_id=path, process_group=mesh.get_group())
        dist.barrier()
        if rank == 0:
            (folder / "step_000003").mkdir()
            (folder / "step_000003" / "__0_0.distcp").write_bytes(b"interrupted")
            os.utime(folder / "step_000001")
        dist.barrier()
        network, optimizer = begin(blocks().state_dict(), DeviceMesh("cpu", list(range(ranks))))
        done_samples = answer(folder, network, optimizer)
        take_steps(network, optimizer, batches[2:])
        return whole_state(network, optimizer) | {"done": done_samples}

    return resumed


# %%
check(resuming(resume), spec=resume_spec, world_sizes=(2, 3), **job_check)

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [14 · On a GPU: who waits?](../notebooks/14_on_a_gpu_who_waits.ipynb) Or first [17 · Cut the layer](../notebooks/17_cut_the_layer.ipynb), if one layer is too large for a GPU.

# %%
progress("step", "plan", "clip", "save", "resume")
