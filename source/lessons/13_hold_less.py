# %% [markdown]
# # 13 · Hold less
#
# **A model no longer fits on one GPU: what does it cost if every rank holds only a share of it?**
#
# In 40 minutes you will be able to
#
# 1. turn DDP into ZeRO-1, 2 and 3 by three small changes;
# 2. say what each stage holds and sends per rank, and measure both;
# 3. hide the gathering of weights behind computing;
# 4. choose between sharding over all ranks and inside a node.
#
# **Hardware:** two cores. Where there is a GPU for each rank, ranks train on the GPUs; what is only recorded is recorded with gloo. **Before:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb) and
# [06 · What communication costs](06_what_communication_costs.ipynb); [12 · Send less](12_send_less.ipynb) is its other half. **Next:** [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb). **Lab:** [13 · Hold less](../exercises/13_hold_less.ipynb).
#
# Three cells ask you to **write** a stage, four to **predict**. Saved outputs give answers away: *Edit*, *Clear Outputs of All Cells*.

# %% jupyter={"source_hidden": true}
import functools
import os
import socket
import struct
import time
import weakref
from contextlib import suppress
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy, mse_loss, pad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from course_material.language import SmallGPT, novel
from course_utils import Network, check, launch, predict, show

# %% [markdown]
# ## 1 · What a replica holds
#
# DDP gives every rank everything: with Adam 4 bytes for a weight, 4 for its gradient and 8 for two moments. [ZeRO](https://arxiv.org/abs/1910.02054) (Rajbhandari and others, 2020) asks why *n* ranks should keep the same
# numbers *n* times. We start from chapter 05's DDP, in its shortest form.


# %%
class OurDDP(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs, **named):
        return self.module(*inputs, **named)

    def finish(self):
        for parameter in self.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)


# %% [markdown]
# The folded `report` trains eight layers, each `relu(x @ weight)` with 256 × 256 weights, on four ranks. It counts the tensors that are alive when the gradients are averaged, each piece of memory once. **Peak** is the most
# that was alive at any time, with activations and temporary tensors. What libraries allocate for themselves is not counted. Bytes come from the recording, where a collective is a ring.
#
# **Predict.** How many MiB do weights, gradients and optimiser take together on each rank, and how many would a rank hold if the team had each number only once? Answer with a list of two numbers.

# %%
held_mib = predict("MiB per rank, replicated and held once by four ranks", ...)


# %% jupyter={"source_hidden": true}
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 256) / 16)

    def forward(self, x):
        return torch.relu(x @ self.weight)


def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


def stack():
    return nn.Sequential(*[Layer() for _ in range(8)])


class Meter(TorchDispatchMode):
    """Knows all storages that operations of this rank have made and that are alive."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = weakref.WeakSet(), 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if DTensor in types:  # it comes back with the tensors that this rank holds
            return NotImplemented
        result = operation(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        self.alive.update(tensor.untyped_storage() for tensor in tensors)
        self.peak = max(self.peak, sum(storage.nbytes() for storage in self.alive))
        return result


def mib(tensors):
    """What tensors take on this rank, shared memory once."""
    own = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors if tensor is not None]
    return sum({t.data_ptr(): t.untyped_storage().nbytes() for t in own}.values()) / 2**20


def holds(model):
    weights = [*model.parameters(), *getattr(model, "whole", {}).values()]
    return [mib(weights), mib(weight.grad for weight in weights)]


def train_stack(wrap):
    """Make two steps; return what was held at the end of the last backward, and the peak."""
    torch.manual_seed(dist.get_rank())
    with Meter() as meter:
        model = wrap(stack().to(my_device()))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 256).to(my_device())).square().mean().backward()
            if hasattr(model, "finish"):
                model.finish()
            held = holds(model)
            optimizer.step()
    moments = [each for state in optimizer.state.values() for each in state.values()]
    return [*held, mib(each for each in moments if each.numel() > 1), meter.peak / 2**20]


def report(wrap, world_size=4):
    """Print a row; return what weights, gradients and optimiser take, and what was sent."""
    print("MiB per rank  weights  gradients  optimiser    sum   peak        sent per step")
    run = launch(train_stack, wrap, world_size=world_size, trace=True)
    trained = tuple(event for event in run.trace if event.kind != "broadcast")  # not the start
    sent = max(replace(run.trace, events=trained).traffic().sent_bytes) / 2
    share = 2**21 * (world_size - 1) / world_size
    weights, gradients, optimizer, peak = (max(each) for each in zip(*run))
    held = weights + gradients + optimizer
    figures = f"{weights:8.2f}{gradients:11.2f}{optimizer:11.2f}{held:7.2f}   about {peak:.1f}"
    of = f"{world_size - 1}/{world_size} of the weights"
    print(f"{wrap.__name__:13}{figures}   {sent / share:.3f} × {of}")
    return held, sent / share


# %%
replicated, _ = report(OurDDP)
held_mib.measured([replicated, replicated / 4])

# %% [markdown]
# Two MiB of weights, two of gradients, four of moments. And the ring sends twice 3/4 of the weights, as chapter 06 has it.
#
# ## 2 · ZeRO-1: an optimiser for one share
#
# A ring all-reduce is a **reduce-scatter**, after which each rank owns one finished share of the sum, and an **all-gather** of the shares. ZeRO-1 puts the optimiser's step between them. Each rank updates
# its own share of every weight, and needs moments for that share only.
#
# The frame `Shards` is folded. It replaces each parameter by this rank's **shard**: flattened, filled up with zeros to a multiple of *n*, cut in *n*. So `model.parameters()` gives shards to any optimiser. A layer that reads
# its `weight` calls `read(shard)` instead. The frame's `forward` gathers all weights first, and its `finish` reduces all gradients.


# %% jupyter={"source_hidden": true}
def cut(whole, n, rank):
    """This rank's share of a tensor, flat, with zeros at the end of the last ones."""
    flat = whole.detach().flatten()
    return pad(flat, (0, -len(flat) % n)).view(n, -1)[rank].clone()


class Shards(OurDDP):
    """Of every parameter of a module, this rank holds a shard; who reads one is given it whole.

    Args:
        module: Any module; its parameters become shards, under their own names.
        compute_dtype: What weights are gathered in and layers compute in; shards keep theirs.
        group: The ranks that share a copy of the module; all by default.
        across: This rank and those that hold the same shard of other copies.
    """

    def __init__(self, module, compute_dtype=None, group=None, across=None):
        super().__init__(module)
        self.compute_dtype, self.group, self.across = compute_dtype, group, across
        self.n, self.copies = dist.get_world_size(group), across.size() if across else 1
        self.whole, self.sent = {}, []  # weights by shard; what `collect` has to wait for
        shards = {parameter: self.shard(parameter) for parameter in module.parameters()}
        for layer in list(module.modules()):
            own = {name: shards[p] for name, p in layer._parameters.items() if p is not None}
            layer._parameters.update(own)
            layer.__class__ = self.reading(type(layer), own)
            if own and compute_dtype:
                layer.register_forward_pre_hook(self.cast, with_kwargs=True)

    def shard(self, whole):
        own = cut(whole, self.n, dist.get_rank(self.group))
        own = nn.Parameter(own, requires_grad=whole.requires_grad)
        own.whole_shape = whole.shape
        return own

    def reading(self, kind, names):
        """The same class, but whoever reads one of these parameters calls `read`."""

        def reader(name):
            return property(lambda layer: self.read(layer._parameters[name]))

        return type(kind.__name__, (kind,), {name: reader(name) for name in names})

    def cast(self, layer, inputs, named):
        def lower(value):
            floats = isinstance(value, torch.Tensor) and value.is_floating_point()
            return value.to(self.compute_dtype) if floats else value

        return tree_map(lower, (inputs, named))

    def weight(self, shard):
        """What its layer computes with."""
        low = self.compute_dtype if shard.is_floating_point() else None
        return self.gather(shard.detach().to(low or shard.dtype), shard.whole_shape)

    def read(self, shard):
        return self.whole[shard]

    def forward(self, *inputs, **named):
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)
        for shard in self.parameters():
            whole = self.whole[shard] = self.weight(shard).requires_grad_(shard.requires_grad)
            whole.shard = shard
            if shard.requires_grad:
                whole.register_post_accumulate_grad_hook(self.gradient_is_here)
        return self.module(*inputs, **named)

    def gradient_is_here(self, whole):
        """Called in backward when a weight's gradient is complete."""

    def collect(self, keep=0):
        """Wait for all reduce-scatters but the last `keep`, and add up what they brought."""
        while len(self.sent) > keep:
            shard, mine, work = self.sent.pop(0)
            work.wait()
            if self.across:
                dist.all_reduce(mine, group=self.across)
            shard.grad = mine if shard.grad is None else shard.grad + mine

    def finish(self):
        for shard, whole in self.whole.items():
            if whole.grad is not None:
                self.collect(keep=1)
                self.reduce(shard, whole.grad)
        self.collect()

    def complete(self, shard, values):
        """A shard's values, such as its gradient, of all ranks; what is no shard is whole."""
        if values is None or not hasattr(shard, "whole_shape"):
            return values
        return self.gather(values.detach(), shard.whole_shape)

    def full_state_dict(self):
        """What the module's own `state_dict()` would be, on every rank; all ranks call it."""
        own = self.module.state_dict(keep_vars=True)
        return {name: self.complete(each, each) for name, each in own.items()}

    def full_gradients(self):
        """The whole mean gradient of each parameter, or None; all ranks call it."""
        return {name: self.complete(p, p.grad) for name, p in self.module.named_parameters()}

    def load_full_state_dict(self, state):
        """Take over such a dict, which every rank has."""
        state = dict(state)
        for name, shard in self.module.state_dict(keep_vars=True).items():
            if name in state and hasattr(shard, "whole_shape"):
                if state[name].shape != shard.whole_shape:
                    shapes = tuple(shard.whole_shape), tuple(state[name].shape)
                    raise ValueError(f"{name} is {shapes[0]}, not {shapes[1]}")
                state[name] = self.shard(state[name])
        self.module.load_state_dict(state)


# %% [markdown]
# ### Write it
#
# *About 5 minutes.* `gather` makes a whole tensor of `shape` from everybody's shards; `mine` is this rank's. `reduce` starts the reduce-scatter of a gradient's **mean** and appends `(shard, mine, work)` to `self.sent`, where `mine` is the tensor that the rank's share will be in. The frame's `collect`
# waits and puts it into `shard.grad`. There are `self.n` ranks that share a copy, and `self.copies` of the model (1 until part 7).


# %%
class MyZero1(Shards):
    def gather(self, mine, shape):
        raise NotImplementedError("about 3 lines")

    def reduce(self, shard, gradient):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many numbers does the whole, filled-up tensor have? Which of them are not part of the weight?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>all_gather_into_tensor</code> fills one flat tensor, of which you keep the first numbers. On the way back: flatten, divide by all ranks, fill up, and <code>reduce_scatter_tensor</code> with <code>async_op=True</code>. Shards
# may be more precise than gradients: sum in the shard's dtype.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>flat = mine.new_empty(self.n * len(mine))</code>; <code>pad(flat, (0, self.n * len(shard) - len(flat)))</code>; <code>mine = torch.empty_like(shard)</code>.
# </details>


# %% jupyter={"source_hidden": true}
class Borrows(nn.Module):
    """Reads the weight of an inner layer, twice, as attention does, and does not call it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 7, bias=False)

    def forward(self, x):
        return x.to(self.inner.weight.dtype) @ self.inner.weight.T


class Odd(nn.Module):
    """Sizes that no number of ranks divides, a frozen layer, a tied weight, one that rests."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 5).requires_grad_(False)
        self.tied = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.tied[1].weight = self.tied[0].weight
        self.borrows, self.rests, self.last = Borrows(), nn.Linear(2, 2), nn.Linear(7, 3)
        self.double()

    def forward(self, inputs):
        hidden = self.frozen(inputs)
        for layer in self.tied:
            hidden = torch.tanh(layer(hidden))
        return self.last(self.borrows(hidden))


def odd():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Odd()


def adam(model):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)


def of_shards(model, n=1, rank=0):
    """Gradients (zeros for none) and weights, cut for a rank."""
    weights = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights]
    if n > 1:
        weights, gradients = ([cut(x, n, rank) for x in own] for own in (weights, gradients))
    return {"gradients": gradients, "weights": [each.detach().clone() for each in weights]}


def alone(network, all_batches):
    """One process trains on what all ranks have; returns the model of the last backward."""
    optimizer, n = adam(network), len(all_batches)
    for step in zip(*all_batches):
        optimizer.zero_grad()
        sum(mse_loss(network(inputs), targets) / n for inputs, targets in step).backward()
        optimizer.step()
    return [of_shards(network, n, rank) for rank in range(n)]


def watched(kind, seen, limits):
    """The class, noting the most of some things that are there at once."""
    alive, most = weakref.WeakSet(), limits.get("whole weights", 99)

    class Watched(kind):
        def gather(self, mine, shape):
            whole = super().gather(mine, shape)
            alive.add(whole.untyped_storage())
            patience = time.monotonic() + (seen["whole weights"] <= most)
            while len(alive) > most and time.monotonic() < patience:
                time.sleep(0.001)  # gloo's thread lets go of it a little later
            seen["whole weights"] = max(seen["whole weights"], len(alive))
            return whole

        def gradient_is_here(self, whole):
            gradients = sum(each.grad is not None for each in self.whole.values())
            seen["whole gradients"] = max(seen["whole gradients"], gradients)
            super().gradient_is_here(whole)
            seen["sums under way"] = max(seen["sums under way"], len(self.sent))

    return Watched


def sharded(kind, **limits):
    """Train with it; return this rank's shares, and whether little enough was there at once."""

    @functools.wraps(kind, updated=())
    def trained(batches):
        seen = dict.fromkeys(("whole weights", "whole gradients", "sums under way"), 0)
        model = watched(kind, seen, limits)(odd())
        optimizer = adam(model)
        for inputs, targets in batches:
            optimizer.zero_grad()
            mse_loss(model(inputs), targets).backward()
            model.finish()
            optimizer.step()
        few = {f"{most} {what} at most": seen[what] <= most for what, most in limits.items()}
        return of_shards(model) | few

    return trained


def judged(times, **limits):
    """Options of a check; `times`: how often a parameter may be gathered or reduced in a step."""

    def spec(all_batches):
        few = {f"{most} {what} at most": True for what, most in limits.items()}
        return [shares | few for shares in alone(odd(), all_batches)]

    def inputs(rank, world_size, case):
        numbers = torch.randn(3, 5, 7, dtype=torch.float64)
        return ([(own[:, :4], own[:, 4:]) for own in numbers],)

    def budget(world_size, case):
        own = dict(odd().named_parameters())
        shards = {name: -(-p.numel() // world_size) * 8 for name, p in own.items()}
        steps = 3 * sum(times[name] * (world_size - 1) * shards[name] for name in own)
        return {"sent_bytes": sum(p.nbytes for p in own.values()) + steps}

    options = {"cases": ["three steps"], "world_sizes": (2, 3), "rtol": 1e-9, "timeout": 10}
    return options | {"spec": spec, "inputs": inputs, "budget": budget}


# Stages 1 and 2; stage 3: forward, backward for the gradient of inputs, and a sum for each use.
twice = {name: 2 for name, _ in odd().named_parameters()}
three_times = twice | {"tied.0.weight": 2 + 1 + 2, "borrows.inner.weight": 3, "last.weight": 3}
three_times |= {"frozen.weight": 1, "frozen.bias": 1, "rests.weight": 0, "rests.bias": 0}
zero1_judged = judged(twice)
zero2_limits = {"whole gradients": 1, "sums under way": 2}
zero2_judged = judged(twice, **zero2_limits)
zero3_limits = {"whole weights": 2}
zero3_judged = judged(three_times, **zero3_limits)

# %%
check(sharded(MyZero1), **zero1_judged)


# %% jupyter={"source_hidden": true}
class Zero1(Shards):
    """The finished step."""

    def gather(self, mine, shape):
        flat = mine.new_empty(self.n * len(mine))
        dist.all_gather_into_tensor(flat, mine, group=self.group)
        return flat[: shape.numel()].view(shape)

    def reduce(self, shard, gradient):
        flat = gradient.flatten().to(shard.dtype) / (self.n * self.copies)
        flat = pad(flat, (0, self.n * len(shard) - len(flat)))
        mine = torch.empty_like(shard)
        work = dist.reduce_scatter_tensor(mine, flat, group=self.group, async_op=True)
        self.sent.append((shard, mine, work))


check(sharded(Zero1), **zero1_judged)

# %%
zero1, _ = report(Zero1)

# %% [markdown]
# The same bytes as DDP, and three of four MiB of moments are gone. We pay half a MiB for shards of weights beside whole ones, and half for those of gradients.
#
# **Check yourself.** Which optimisers may see flat shards instead of weights, and which may not?
#
# <details><summary>Answer</summary>
# Those that treat each number by itself: SGD, Adam. Not those that look at a whole matrix, such as Muon or Shampoo. For the same reason <code>clip_grad_norm_</code> now sees the norm of a share: squares have to be
# added up over the ranks.
# </details>
#
# ## 3 · ZeRO-2: gradients go when they come
#
# `Zero1` keeps all whole gradients until `finish`. But chapter 05's hook knows when each one is complete. The frame calls `gradient_is_here(whole)` then; `whole.shard` is the weight's shard.
#
# ### Write it
#
# *About 3 minutes.* Reduce the gradient at once, and let go of it. Of earlier reduce-scatters only one may still be under way, so that their buffers do not pile up: `self.collect(keep=1)`.


# %%
class MyZero2(Zero1):
    def gradient_is_here(self, whole):
        raise NotImplementedError("about 3 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who still refers to the gradient when the hook is over?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Collect earlier ones, reduce this one, and take the gradient from <code>whole</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>self.reduce(whole.shard, whole.grad)</code>, then <code>whole.grad = None</code>.
# </details>

# %%
check(sharded(MyZero2, **zero2_limits), **zero2_judged)


# %% jupyter={"source_hidden": true}
class Zero2(Zero1):
    """The finished step."""

    def gradient_is_here(self, whole):
        self.collect(keep=1)
        self.reduce(whole.shard, whole.grad)
        whole.grad = None


check(sharded(Zero2, **zero2_limits), **zero2_judged)

# %%
zero2, _ = report(Zero2)

# %% [markdown]
# Two MiB less, for nothing more sent. ZeRO-1 keeps one advantage: when several small batches accumulate, it can reduce once, and ZeRO-2 reduces after each.
#
# ## 4 · ZeRO-3: weights too
#
# Now a weight is whole only while its layer computes. Forward gathers it when it is read, and lets it go when the layer returns. But autograd saves weights for backward, so they would stay.
# With [`saved_tensors_hooks`](https://docs.pytorch.org/docs/stable/autograd.html#hooks-for-saved-tensors), `pack` gives autograd something small to keep instead, and `unpack` makes the tensor of it when backward needs it.
#
# **Predict.** Forward gathers, backward gathers again and reduce-scatters. How many times 3/4 of the weights does a step of our eight layers send?

# %%
zero3_sends = predict("times 3/4 of the weights that ZeRO-3 sends", ...)

# %% [markdown]
# ### Write it
#
# *About 6 minutes.* `Gather.apply(shard, self)`, folded, gathers a weight, and reduces its gradient when backward comes by. `self.shard_of` knows the storage of each gathered weight that is alive. `read` keeps gathered weights in `self.whole`, and `free` is
# called when a layer returns. `pack` hands on other tensors as they are. Of a weight, or of a view such as its transpose, it keeps the shard and where the view lies.


# %% jupyter={"source_hidden": true}
class Gather(torch.autograd.Function):
    """From a shard to the whole weight; its gradient goes to all shards."""

    @staticmethod
    def forward(ctx, shard, model):
        ctx.shard, ctx.model = shard, model
        whole = model.weight(shard)
        model.shard_of[whole.untyped_storage()] = shard
        return whole

    @staticmethod
    def backward(ctx, gradient):
        ctx.model.collect(keep=1)
        ctx.model.reduce(ctx.shard, gradient)
        return None, None


class Freeing(Zero1):
    """The frame of stage 3."""

    def __init__(self, module, *args, **options):
        super().__init__(module, *args, **options)
        self.shard_of = weakref.WeakKeyDictionary()  # by storages of weights that are whole
        for layer in module.modules():
            layer.register_forward_hook(self.free)

    def forward(self, *inputs, **named):
        self.whole.clear()  # what a forward pass that failed has left
        for buffer in self.module.buffers():
            dist.broadcast(buffer, src=0)
        with saved_tensors_hooks(self.pack, self.unpack):
            return self.module(*inputs, **named)

    def finish(self):
        self.collect()


# %%
class MyZero3(Freeing):
    def read(self, shard):
        raise NotImplementedError("about 3 lines")

    def free(self, layer, inputs, output):
        raise NotImplementedError("about 2 lines")

    def pack(self, tensor):
        raise NotImplementedError("about 3 lines")

    def unpack(self, kept):
        raise NotImplementedError("about 4 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Whose weights may go when a module returns? An attention layer reads those of its output layer without calling it.
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>free</code> drops the weights of all <code>layer.parameters()</code>, those of inner layers too. <code>pack</code> asks <code>self.shard_of</code> for <code>tensor.untyped_storage()</code>. <code>unpack</code> calls
# <code>self.weight(shard)</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return shard, tensor.size(), tensor.stride(), tensor.storage_offset()</code>, and back:
# <code>self.weight(shard).as_strided(size, stride, offset)</code>.
# </details>

# %%
check(sharded(MyZero3, **zero3_limits), **zero3_judged)


# %% jupyter={"source_hidden": true}
class Sharded(Freeing):
    """The finished step: ZeRO-3, for any module.

    Whoever reads a weight outside of `forward` gathers it, so all ranks have to read it.
    """

    def read(self, shard):
        if shard not in self.whole:
            self.whole[shard] = Gather.apply(shard, self)
        return self.whole[shard]

    def free(self, layer, inputs, output):
        for shard in layer.parameters():
            self.whole.pop(shard, None)

    def pack(self, tensor):
        shard = self.shard_of.get(tensor.untyped_storage())
        view = tensor.size(), tensor.stride(), tensor.storage_offset()
        return tensor if shard is None else (shard, *view)

    def unpack(self, kept):
        if isinstance(kept, torch.Tensor):
            return kept
        shard, *view = kept
        return self.weight(shard).as_strided(*view)


check(sharded(Sharded, **zero3_limits), **zero3_judged)

# %%
zero3, sends = report(Sharded)
zero3_sends.measured(sends, within=0.02)

# %% [markdown]
# A quarter of everything: 2 MiB instead of 8. And 2.875 instead of 3, since **the first weight is not gathered again.** Backward needs a weight for the gradient of its layer's *input*, and nobody asks for that of the data. So 3 is the paper's formula, and our network sends 3 − 1/8.
#
# **Check yourself.** Why is the peak above 2 MiB?
#
# <details><summary>Answer</summary>
# A rank also holds what is under way: whole weights and gradients, buffers, activations, temporary tensors of Adam.
# </details>
#
# ## 5 · The same model?
#
# PyTorch's ZeRO-3 is **FSDP2**. A **DeviceMesh** says which ranks work together. `fully_shard(block)` makes a block one unit, gathered in one message before its forward and its backward, and freed after each (ours sends one message per parameter). What is left belongs to the
# outermost unit, which stays whole in between. Shards are `DTensor`s, cut along their first dimension.


# %%
def FSDP2(network):
    mesh = init_device_mesh(my_device(), (dist.get_world_size(),))
    for block in getattr(network, "blocks", network):
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


# %%
fsdp2, _ = report(FSDP2)

# %% [markdown]
# The same shares. FSDP2 sends exactly 3: it gathers a unit before its backward without asking who will read it.
#
# Now all of them train the small GPT of chapter 05, with its tied weight and one block, in double precision: one process on all sequences, four ranks on a quarter each.


# %% jupyter={"source_hidden": true}
tokens, alphabet = novel()  # letters of Pride and Prejudice, as numbers


def train_gpt(wrap):
    """All weights, whole, after two steps and after three."""
    torch.manual_seed(7)
    model = SmallGPT(len(alphabet), width=32, depth=1).double().to(my_device())
    model = wrap(model) if wrap else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    states = []
    for step in range(3):
        drawn = tokens[torch.randint(len(tokens) - 33, (8, 1)) + torch.arange(33)]
        drawn = drawn[dist.get_rank() :: dist.get_world_size()].to(my_device())
        optimizer.zero_grad()
        cross_entropy(model(drawn[:, :-1]).mT, drawn[:, 1:]).backward()
        if hasattr(model, "finish"):
            model.finish()
        optimizer.step()
        if step > 0:
            states.append({name: own.clone() for name, own in whole(model).items()})
    return states


def whole(model):
    if hasattr(model, "full_state_dict"):
        return model.full_state_dict()
    state = getattr(model, "module", model).state_dict()
    return {k: x.full_tensor() if isinstance(x, DTensor) else x for k, x in state.items()}


def train_all(wraps):
    return [train_gpt(wrap) for wrap in wraps]


def apart(run, other):
    """The largest difference of a weight, on any rank."""
    pairs = [(own[name], other[name]) for own in run for name in other]
    return max((mine - its).abs().max().item() for mine, its in pairs)


# %% jupyter={"source_hidden": true}
((_, one),) = launch(train_gpt, None, world_size=1)
wraps = OurDDP, Zero1, Zero2, Sharded, FSDP2
ranks = launch(train_all, wraps, world_size=4)
runs = {wrap: list(zip(*own)) for wrap, own in zip(wraps, zip(*ranks))}  # after 2 steps, after 3
print("largest difference of a weight after 3 steps   to one process   to FSDP2")
for wrap, (_, run) in runs.items():
    to_one, to_fsdp2 = apart(run, one), apart(run, runs[FSDP2][1][0])
    print(f"{wrap.__name__:47}about {to_one:.0e}   about {to_fsdp2:.0e}")
less = apart(runs[Sharded][0], one)
print(f"{'Sharded after 2 steps, as a control':47}about {less:.0e}")

# %% [markdown]
# Rounding, and nothing else. `Sharded` also takes frozen layers, half precision (`compute_dtype=torch.bfloat16`, while shards and sums stay in single precision) and gives a whole `state_dict`; the course's tests try them.
#
# ### What gloo really sends
#
# The recording knows calls; the ring that carries them out is our assumption. Linux counts what really leaves each connection:


# %% jupyter={"source_hidden": true}
def tcp_bytes():
    """What the others have confirmed to have got from this rank, over all its connections."""
    total = 0
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError, struct.error):  # most are no connections
            connection = socket.socket(fileno=int(number))
            try:
                told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
                total += struct.unpack_from("Q", told, 120)[0]
            finally:
                connection.detach()
    return total


def settled():
    """The same, when nothing more comes."""
    dist.barrier()
    seen = -1
    while seen != (now := tcp_bytes()):
        seen = now
        time.sleep(0.1)
    return now


def on_the_wire(size=400_000):
    whole, part = torch.ones(size), torch.ones(size // dist.get_world_size())
    calls = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
    }
    sent = [settled()]
    for call in calls.values():
        call()
        sent.append(settled())
    return {name: (sent[i + 1] - sent[i]) / whole.nbytes for i, name in enumerate(calls)}


# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output"]
if hasattr(socket, "TCP_INFO"):  # Linux
    sent = launch(on_the_wire, world_size=4, backend="gloo")[0]  # over gloo's connections
    print("times the tensor   by a ring   gloo")
    for name, times in sent.items():
        print(f"{name:19}{1.5 if name == 'all_reduce' else 0.75:9.2f}{times:7.2f}")

# %% [markdown]
# Two of three agree. Gloo's reduce-scatter sends twice as much: PyTorch [makes it of an all-reduce](https://github.com/pytorch/pytorch/pull/118911), of which each rank keeps a part. So with gloo the stages come to 3, 3 and 4 times 3/4. NCCL has a reduce-scatter of its own, which we cannot measure here.
#
# ## 6 · Gather ahead
#
# `Sharded` waits for a weight before each layer. Let a layer compute for 60 µs forward and 120 back, with 80 Gbit/s and 10 µs between four ranks. Then a gather takes 3 · (10 + 6.6) = 50 µs, and so does a reduce-scatter. One after the other: 8 · 180 + 24 · 50 µs. The folded `Ahead` has noted the order in the step before. It starts the next gather
# *before* a layer computes.
#
# **Predict.** How many µs does its step take?

# %%
ahead_us = predict("µs of a step that gathers ahead", ...)


# %% jupyter={"source_hidden": true}
class Ahead(Sharded):
    """While a layer computes, gather what was gathered next in the step before."""

    nothing = None, None, None
    order, done, coming = (), (), nothing

    def forward(self, *inputs, **named):
        self.order, self.done, self.coming = self.done, [], self.nothing
        return super().forward(*inputs, **named)

    def begin(self, shard):
        flat, mine = shard.new_empty(self.n * len(shard)), shard.detach()
        return shard, flat, dist.all_gather_into_tensor(flat, mine, self.group, async_op=True)

    def weight(self, shard):
        began, flat, work = self.coming
        if began is not shard:  # the first one; or another order than before
            _, flat, work = self.begin(shard)
        work.wait()
        self.done.append(shard)
        following = self.order[len(self.done) : len(self.done) + 1]
        self.coming = self.begin(*following) if following else self.nothing
        return flat[: shard.whole_shape.numel()].view(shard.whole_shape)


class Computes(torch.autograd.Function):
    """A call to nobody, once in forward and twice in backward: here a layer computes."""

    @staticmethod
    def forward(ctx, x, nobody):
        ctx.nobody = nobody
        dist.barrier(nobody)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        dist.barrier(ctx.nobody)
        dist.barrier(ctx.nobody)
        return gradient, None


class Timed(Layer):
    def forward(self, x):
        weight = self.weight
        return torch.relu(Computes.apply(x, self.nobody) @ weight)


def train_timed(wrap, steps):
    nobody, _ = dist.new_subgroups(group_size=1)
    network = nn.Sequential(*[Timed() for _ in range(8)])
    for layer in network:
        layer.nobody = nobody
    model = wrap(network)
    for _ in range(steps):
        dist.barrier()
        data = torch.randn(4, 256, requires_grad=True)  # so that all layers are alike
        model(data).mean().backward()
        model.finish()


def last_step(wrap, steps=1, world_size=4):
    """The recording of a step, without what came before."""
    # Only recorded, to be replayed: no GPU need be there.
    run = launch(train_timed, wrap, steps, world_size=world_size, backend="gloo", trace=True)
    trace = run.trace
    kept = []
    for rank in range(world_size):
        own = trace.of_rank(rank)
        starts = [e.index for e in own if e.kind == "barrier" and len(e.group) == world_size]
        kept += own[starts[-1] + 1 :]
    return replace(trace, events=tuple(kept))


def step_us(trace, network, layer_us=60.0):
    """What a step takes if a layer computes so long forward, and twice as long back."""
    calls = {"barrier": layer_us}
    return max(trace.replay(network, lambda event: calls.get(event.kind, 0.0)).finish_us)


# %%
network = Network(latency_us=10, gbit_s=80)
waiting, ahead = last_step(Sharded), last_step(Ahead, steps=2)
print("layer computes   Sharded   Ahead   of which computing   (µs)")
for layer_us in (60.0, 50.0, 40.0, 20.0):
    both = [step_us(trace, network, layer_us) for trace in (waiting, ahead)]
    print(f"{layer_us:14.0f}{both[0]:10.0f}{both[1]:8.0f}{24 * layer_us:14.0f}")
ahead_us.measured(step_us(ahead, network), within=0.02)

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
looks = {"compute": ("#009E73", None, -0.36), "send": ("#0072B2", "////", 0.0)}
for row, trace in enumerate((waiting, ahead)):
    for one_bar in trace.replay(network, lambda e: 60.0 if e.kind == "barrier" else 0.0).intervals:
        if one_bar.rank == 0 and one_bar.what in looks:
            color, hatch, at = looks[one_bar.what]
            style = {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
            took_us = one_bar.end_us - one_bar.start_us
            axes.barh(row + at, took_us, 0.34, one_bar.start_us, align="edge", **style)
for label, (color, hatch, _) in looks.items():
    words = {"compute": "computes", "send": "its port sends"}[label]
    axes.bar(0, 0, color=color, hatch=hatch, edgecolor="white", label=words)
axes.set(yticks=[0, 1], yticklabels=["Sharded", "Ahead"], ylim=(1.5, -0.5))
axes.set(xlabel="virtual time of one step, rank 0 of 4 (µs)", xlim=(0, 2700))
axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
axes.spines[["top", "right", "left"]].set_visible(False)
text = "Sharded computes or sends; with Ahead only the first gather and the last sum stand alone."
show(figure, text)

# %% [markdown]
# Only the first gather and the last reduce-scatter are left over: 1440 + 2 · 50. In backward both kinds have to hide, so a layer needs 100 µs there. With less, the network decides: its 24 calls take 1192 µs at least.
# The price is memory: two layers are whole at once. FSDP2 gathers ahead too, on GPUs, and [lets you say how far](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html).
#
# ## 7 · Shard inside, replicate across
#
# Between nodes the network is slow. **Hybrid sharding** shards over the ranks of a node, and every node has a copy. After a reduce-scatter, ranks with the same shard add it up across nodes: one more condition in `collect`. A mesh of two dimensions says who is who; `fully_shard` takes it too.


# %%
def hybrid(network):
    mesh = init_device_mesh(my_device(), (2, 4), mesh_dim_names=("copy", "shard"))
    return Sharded(network, group=mesh["shard"].get_group(), across=mesh["copy"].get_group())


# %% [markdown]
# **Predict.** Two nodes of four ranks share our 2 MiB of weights: among all eight, or hybrid. How many MiB does the busiest rank send to the other node in a step? Answer with a list of two numbers.

# %%
crossing_mib = predict("MiB to the other node, all sharded and hybrid", ...)


# %% jupyter={"source_hidden": true}
def on_two_nodes(wrap):
    """Print memory and times; return the MiB that the busiest rank sends to the other node."""
    report(wrap, 8)
    trace = last_step(wrap, world_size=8)
    for gbit_s in (80, 10):
        two_level = Network(latency_us=2, gbit_s=800, nodes=2, between=(10, gbit_s))
        print(f"    {gbit_s} Gbit/s between nodes: {step_us(trace, two_level):5.0f} µs")
    sent = [row[4:] if rank < 4 else row[:4] for rank, row in enumerate(trace.traffic().bytes)]
    return max(map(sum, sent)) / 2**20


# %%
crossing_mib.measured([on_two_nodes(Sharded), on_two_nodes(hybrid)])

# %% [markdown]
# All sharded, 24 rings cross the border, each with 7/8 of a layer. Hybrid, only the sums of a rank's own shards do, 2 · 1/2 of 0.5 MiB, and through all ports at once. In all they send nearly the same, 2.875 and 2.75 times 7/8 of the weights. But on the slower network hybrid takes 2.2 ms instead of 5.9. Computing is 1.4 of both. This gain is the most that is possible: each of our rings crosses the border at one card, where NCCL builds several
# and uses all four (chapter 06). The price is twice the memory. Which
# group is best depends on memory and on both networks; the lab asks for the plan.
#
# ## 8 · One rank alone
#
# In DDP every rank has the whole model, and rank 0 alone may evaluate `model.module`. Under ZeRO-3 this is meant to fail:


# %%
def evaluate_on_rank_0():
    model = Sharded(stack())
    if dist.get_rank() == 0:
        model(torch.randn(4, 256))


# %% tags=["raises-exception"]
launch(evaluate_on_rank_0, backend="gloo", timeout=2)  # on a GPU the wait is in another line

# %% [markdown]
# Nobody has the model: rank 0 waits in `gather` for rank 1's share of the first weight, and *its function has returned*. All ranks have to read the same layers in the same order, in evaluation and when a checkpoint is saved. A rank whose data take another path hangs the others like this, or gives a layer another layer's numbers where sizes match: chapter 08 has such a lie.
#
# ## What cannot be said here
#
# How fast kernels are; what gathering takes from computing on the same GPU; how fast NCCL's reduce-scatter is; how much memory PyTorch's caching allocator keeps beyond what is alive, which can decide whether a model fits.
#
# ## What you know now
#
# An all-reduce in two halves with the optimiser between them is ZeRO-1. Gradients that go when they come make ZeRO-2, weights that come and go ZeRO-3, for at most half as many bytes again.
#
# *More.* Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), VLDB 2023: hybrid sharding, and what GPUs add to all this.

# %%
predict()
