# %% [markdown]
# # 13 · Hold less
#
# **A model no longer fits on one GPU: what does it cost if every rank holds only a share of it?**
#
# In 105 minutes, best in two sittings of 55 and 50, you will be able to
#
# 1. say how many bytes a model takes per GPU, for any size and any number of GPUs;
# 2. turn DDP into ZeRO-1, 2 and 3, and measure what each holds and sends;
# 3. train, clip, save and resume a sharded model with PyTorch's FSDP2;
# 4. hide the gathering of weights behind computing, and choose who shards with whom.
#
# **Hardware:** two cores. Where there's a GPU for each rank, ranks train on the GPUs. Steps that are only recorded use gloo.
# **Before:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb) and [06 · What communication costs](06_what_communication_costs.ipynb);
# [12 · Send less](12_send_less.ipynb) is its other half.
# **Next:** [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb). **Lab:** [13 · Hold less](../exercises/13_hold_less.ipynb).

# %% [markdown]
# **First sitting**, parts 1 to 5: the formula, and three stages by hand. **Second sitting**, parts 6 to 11: activations, clipping, FSDP2, checkpoints and time.
#
# Six cells ask you to **write**, five to **predict**. A finished form appears when yours has passed, or when you ask for it.

# %% jupyter={"source_hidden": true}
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import train_fsdp2
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.utils import clip_grad_norm_

from course_lessons import chapter_13, sharding
from course_lessons import chapter_13_pictures as pictures
from course_lessons.chapter_04 import torchrun
from course_lessons.drawing import draw_pairs
from course_lessons.finished import go_on_with, show_source, show_when_passed
from course_lessons.sharding import Ahead, Freeing, OurDDP, Shards
from course_utils import Network, WorkerTimeout, check, launch, plot_calls, predict

# %% [markdown]
# ## 1 · Sixteen bytes
#
# Large models train with Adam in **mixed precision**: layers compute in bfloat16, the optimiser in float32. A parameter takes
#
# | | bytes |
# | --- | --- |
# | weight and gradient in bfloat16 | 2 + 2 |
# | the optimiser's weight and two moments in float32 | 4 + 4 + 4 |

# %% [markdown]
# DDP gives all of it to every rank. [ZeRO](https://arxiv.org/abs/1910.02054) (Rajbhandari and others, 2020) asks why *n* ranks should hold the same bytes *n* times, and divides them by *n* in three **stages**. Stage 1 divides
# the optimiser's 12 bytes, stage 2 the gradients as well, and stage 3 everything.

# %% [markdown]
# **Predict.** A GPU has 80 GB. Here are four cases: 7B (billion) parameters on 8 GPUs, 7B on 64, 70B on 8, and 70B on 64. Which is the first stage that fits in each? Answer with a list of four numbers: 0 is DDP, and 9 means that no stage
# fits.

# %%
first_that_fits = predict("first stage for 7B on 8 and 64, 70B on 8 and 64", ..., count=4)

# %% [markdown]
# ### Write the formula
#
# **Write** (6 minutes) the bytes that one rank holds. `stage` is 0 (DDP), 1, 2 or 3.


# %%
def bytes_per_rank(parameters, world_size, stage):
    raise NotImplementedError("about 8 lines")


# %%
memory = check(bytes_per_rank, **chapter_13.MEMORY)
memory

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Three sums are enough: bytes of weights, of gradients, and of the optimiser. From which stage on is each divided?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Begin with 2, 2 and 12 times <code>parameters</code>. Stage 2 also does what stage 1 does, so ask <code>stage &gt;= 1</code>, not <code>stage == 1</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>if stage &gt;= 1: optimizer /= world_size</code>, then the same for gradients and weights.
# </details>

# %% [markdown]
# Right or wrong, this is what *your* formula says of both models (ours, until yours is written). The chapter then goes on with a right one.

# %%
rank_bytes = go_on_with(bytes_per_rank, memory, chapter_13.bytes_per_rank)
pictures.draw_memory(bytes_per_rank, chapter_13.bytes_per_rank)

# %%
models = [(7, 8), (7, 64), (70, 8), (70, 64)]
first_stages = []
for billions, gpus in models:
    stages_gb = [rank_bytes(billions * 10**9, gpus, stage) / 1e9 for stage in range(4)]
    fitting = [stage for stage in range(4) if stages_gb[stage] <= 80]
    first_stages.append(fitting[0] if fitting else 9)
first_that_fits.measured(first_stages)

# %% [markdown]
# Stage 1 already fits 7B. What isn't divided sets a floor: 4 bytes per parameter under stage 1, so 280 GB for 70B on any number of GPUs. Only stage 3 has no floor. For 70B it needs at least 14 GPUs: 1,120 / 80.

# %% [markdown]
# The formula leaves out **activations** (part 6), buffers of communication, and what PyTorch's allocator keeps. So 80 GB are less than they look.
#
# **Check yourself.** How many bytes per parameter does training in plain float32 take?
#
# <details><summary>Answer</summary>
# Also 16: 4 for the weight, 4 for the gradient, 8 for the moments. Mixed precision makes layers faster and activations smaller, but it doesn't change this sum.
# </details>

# %% [markdown]
# ## 2 · What a replica holds
#
# Does the formula hold? We train eight layers of 256 × 256 weights on four ranks, in float32: 524,288 parameters of 16 bytes, so 8 MiB. We begin with chapter 05's DDP in its shortest form.

# %%
show_source(OurDDP)

# %% [markdown]
# `measure` counts the bytes of all tensors that are alive when gradients are averaged; memory that two tensors share counts once. **Peak** is the most at any time, with activations and temporary tensors. How much is sent is counted in the recording, as if each collective were a
# ring.

# %%
rows = {"OurDDP": chapter_13.measure(OurDDP)}

# %% [markdown]
# 8 MiB, as the formula says. And the ring sends 2 · 3/4 of the weights, as in chapter 06.

# %% [markdown]
# ## 3 · ZeRO-1: an optimiser for one share
#
# A ring all-reduce is a **reduce-scatter**, after which each rank has one finished share of the sum, and an **all-gather** of the shares. ZeRO-1 puts the optimiser's step between the two.

# %%
pictures.draw_two_halves()

# %% [markdown]
# The frame `Shards` replaces each parameter by this rank's **shard**: the parameter is flattened, filled up with zeros to a multiple of *n*, and cut into *n*. So `model.parameters()` gives shards to the optimiser. `forward` first gathers all
# weights, which layers read; `finish` reduces all gradients.

# %% [markdown]
# ### Write the two halves
#
# **Write** (8 minutes) `gather`, which makes a full tensor of `shape` from everybody's shards (`local` is this rank's), and `reduce`, which starts the reduce-scatter of a gradient's **mean**. `reduce` then appends `(shard, local, work)`
# to `self.pending`; there, `local` is a new tensor that will hold this rank's share of the mean.

# %% [markdown]
# The frame's `collect` waits for `work`, and puts `local` into `shard.grad`. `self.shard_count` ranks share a copy of the model. There are `self.copy_count` copies (1 until part 10). The mean is over the ranks of all copies.


# %%
class MyZero1(Shards):
    def gather(self, local, shape):
        raise NotImplementedError("about 3 lines")

    def reduce(self, shard, gradient):
        raise NotImplementedError("about 5 lines")


# %%
zero1 = check(chapter_13.staged(MyZero1), **chapter_13.ZERO1)
zero1

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many numbers does the full, filled-up tensor have? Which of them aren't part of the weight?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>all_gather_into_tensor</code> fills one flat tensor, of which you keep the first numbers. On the way back: flatten, divide by the number of all ranks, fill up, and <code>reduce_scatter_tensor</code> with <code>async_op=True</code>.
# Shards may be more precise than gradients, so sum in the shard's dtype.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>flat = local.new_empty(self.shard_count * len(local))</code>; <code>torch.nn.functional.pad(mean, (0, self.shard_count * len(shard) - len(mean)))</code>; <code>local = torch.empty_like(shard)</code>.
# </details>

# %% [markdown]
# This is what *yours* makes of a weight with the numbers 1 to 5, in three ranks:

# %%
pictures.draw_pieces(MyZero1, sharding.Zero1)

# %%
Zero1 = go_on_with(MyZero1, zero1, sharding.Zero1)
rows["Zero1"] = chapter_13.measure(Zero1)
pictures.draw_held(rows)

# %% [markdown]
# It sends the same bytes as DDP, and three of four MiB of moments are gone. Our frame pays half a MiB for shards of weights next to the full ones, and half for those of gradients.

# %% [markdown]
# **Check yourself.** Which optimisers may see flat shards instead of weights, and which may not?
#
# <details><summary>Answer</summary>
# Those that treat each number by itself may: SGD, Adam. Those that look at a whole matrix, such as <a href="https://docs.pytorch.org/docs/stable/generated/torch.optim.Muon.html">Muon</a>, may not.
# </details>

# %% [markdown]
# ## 4 · ZeRO-2: gradients go when they come
#
# ZeRO-1 keeps all full gradients until `finish`. But chapter 05's hook knows when each is complete: the frame then calls `gradient_is_ready(full)`, where `full.shard` is the weight's shard.

# %% [markdown]
# ### Write the hook
#
# **Write** (4 minutes): reduce the gradient at once, and let go of it. Only one earlier reduce-scatter may still be under way, so that buffers don't pile up: `self.collect(keep=1)`.


# %%
class MyZero2(sharding.Zero1):
    def gradient_is_ready(self, full):
        raise NotImplementedError("about 3 lines")


# %%
zero2 = check(
    chapter_13.staged(MyZero2, **chapter_13.ZERO2_LIMITS),
    **chapter_13.ZERO2,
)
zero2

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who still refers to the gradient when the hook is over?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Collect earlier ones, reduce this one, and take the gradient away from <code>full</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>self.reduce(full.shard, full.grad)</code>, then <code>full.grad = None</code>.
# </details>

# %% [markdown]
# This is what exists at which time, in one step of four layers with *your* hook:

# %%
pictures.draw_alive(MyZero2, sharding.Zero2)

# %%
Zero2 = go_on_with(MyZero2, zero2, sharding.Zero2)
rows["Zero2"] = chapter_13.measure(Zero2)
pictures.draw_held(rows)

# %% [markdown]
# Two MiB less, and nothing more is sent. ZeRO-1 keeps one advantage: when several small batches accumulate, it can reduce once, while ZeRO-2 reduces after each.

# %% [markdown]
# ## 5 · ZeRO-3: weights too
#
# Now a weight is full only while its layer computes. Four things happen to it:

# %%
pictures.draw_reading()

# %% [markdown]
# **Read** gathers it in forward; **free** lets go of it when the layer returns. But autograd saves weights for backward, so they would stay. With
# [`saved_tensors_hooks`](https://docs.pytorch.org/docs/stable/autograd.html#hooks-for-saved-tensors), `pack` gives autograd something small to keep, and `unpack` turns it back into the tensor.

# %% [markdown]
# **Predict.** Forward gathers each weight once, backward reduce-scatters each gradient once. Backward also gathers a weight whenever it reads one, and it reads one only to compute the gradient of its layer's *input*. How many times 3/4
# of the weights does a step of our eight layers send?

# %%
zero3_sends = predict("times 3/4 of the weights that ZeRO-3 sends", ...)

# %% [markdown]
# ### Write all four
#
# **Write** (12 minutes). `Gather.apply(shard, self)` from `sharding` gathers a weight, and reduces its gradient when backward comes by. `self.full` keeps gathered weights, by their shards; `self.shard_of` knows the shard of each full weight's storage.
# `pack` hands on other tensors as they are.

# %% [markdown]
# Of a weight, or of a view of it such as its transpose, `pack` keeps the shard and how the view lies in memory: `tensor.size()`, `tensor.stride()` and `tensor.storage_offset()`.


# %%
class MyZero3(Freeing):
    def read(self, shard):
        raise NotImplementedError("about 3 lines")

    def free(self, layer, inputs, output):
        raise NotImplementedError("about 2 lines")

    def pack(self, tensor):
        raise NotImplementedError("about 4 lines")

    def unpack(self, kept):
        raise NotImplementedError("about 4 lines")


# %%
zero3 = check(
    chapter_13.staged(MyZero3, **chapter_13.ZERO3_LIMITS),
    **chapter_13.ZERO3,
)
zero3

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Whose weights may go when a module returns? PyTorch's <code>nn.MultiheadAttention</code> reads those of its output layer without calling that layer.
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
pictures.draw_alive(MyZero3, sharding.Zero3)

# %%
Zero3 = go_on_with(MyZero3, zero3, sharding.Zero3)
rows["Zero3"] = chapter_13.measure(Zero3)
zero3_sends.measured(rows["Zero3"].sent, within=0.02)
pictures.draw_held(rows)

# %% [markdown]
# A quarter of everything: 2 MiB instead of 8. It sends 2.875 and not 3, since the first weight isn't gathered again: nobody asks for the gradient of the data. The paper says 3; with eight layers, ours sends 3 − 1/8.

# %% [markdown]
# **Check yourself.** Why is the peak above 2 MiB?
#
# <details><summary>Answer</summary>
# A rank also holds what is under way: full weights and gradients, buffers, activations, and Adam's temporary tensors.
# </details>

# %% [markdown]
# ---
#
# **Here ends the first sitting.** You can say what a model takes, and you have built all three stages.
#
# ---

# %% [markdown]
# ## 6 · What sharding leaves: activations
#
# Backward needs what forward computed, so autograd keeps it. The feed-forward block of a transformer has three parts: a linear layer that turns *d* numbers into 4*d*, a GELU, and a linear layer back to *d*. Every rank has its own sequences, so
# its activations aren't shards of anything.

# %% [markdown]
# **Activation checkpointing** keeps only each block's *input*, and computes the block again in backward.
#
# **Predict.** A linear layer's backward needs its input; so does a GELU's. With checkpointing, how many times less does a chain of such blocks keep? (Weights don't count.)

# %%
times_less = predict("times less kept for backward", ...)

# %% [markdown]
# ### Write it
#
# **Write** (8 minutes) it as an `autograd.Function`, used as `Recompute.apply(block, x)`. What `forward` computes there isn't recorded by autograd. In `backward`, compute the block again, this time recorded, and run backward through it: its parameters need
# gradients too.


# %%
class MyRecompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, x):
        raise NotImplementedError("about 3 lines")

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("about 6 lines; return None, and the gradient of x")


# %%
recompute = check(chapter_13.recomputing(MyRecompute), **chapter_13.RECOMPUTE)
recompute

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Where does the second computation begin? Its input must be a leaf, so that its gradient stops there.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Forward: <code>ctx.save_for_backward(x)</code>, and the block itself as an attribute of <code>ctx</code>. Backward: a detached copy of x that requires a gradient, the block under <code>torch.enable_grad()</code>, and
# <code>backward(gradient)</code> on its output.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>x = x.detach().requires_grad_()</code>; <code>y.backward(gradient)</code>; <code>return None, x.grad</code>.
# </details>

# %%
Recompute = go_on_with(MyRecompute, recompute, sharding.Recompute)
pictures.draw_recomputing(MyRecompute, sharding.Recompute)

# %% [markdown]
# Now six such blocks run on one, two and four ranks, sharded by FSDP2 (part 8). Each rank has 32 rows of 64 numbers:

# %%
kept = chapter_13.measure_activations(Recompute)
pictures.draw_saved(kept, (1, 2, 4))
times_less.measured(kept["plain"][-1].saved_kib / kept["recompute"][-1].saved_kib, within=0.01)

# %% [markdown]
# 9 times less: a plain block keeps *d* for the first layer's input, 4*d* for the GELU's and 4*d* for the second layer's, while a recomputed one keeps only *d*. More ranks change nothing. The price is one more forward: 12 blocks are computed instead of 6. On CPUs, gradients are the same to the last bit.

# %% [markdown]
# PyTorch has it as `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`.
#
# **Check yourself.** A block has dropout. What goes wrong with ours?
#
# <details><summary>Answer</summary>
# The second computation draws a different mask, so the gradients belong to a different output. PyTorch's saves the state of the random numbers, and restores it.
# </details>

# %% [markdown]
# ## 7 · The norm is global
#
# If a gradient's norm is above `max_norm`, clipping scales the gradient down to that norm. The norm is of *all* parameters together, and each rank only sees its shards.
#
# **Predict.** Two ranks hold one number of a gradient each: 3 and 4. Both call `clip_grad_norm_` with `max_norm=1` on what they hold. Which two numbers are left?

# %%
left_over = predict("the two numbers after each rank has clipped its own", ..., count=2)


# %%
def clip_local_and_global():
    shard = nn.Parameter(torch.zeros(1))
    number = torch.tensor([3.0, 4.0])[dist.get_rank()]
    shard.grad = number.reshape(1).clone()
    clip_grad_norm_([shard], max_norm=1.0)
    square = number**2
    dist.all_reduce(square)
    norm = square.sqrt()
    return shard.grad.item(), (number * min(1.0, 1.0 / norm)).item()


# %%
# Arithmetic of two numbers: no GPU is needed.
by_rank = launch(clip_local_and_global, backend="gloo", device="cpu")
alone, together = zip(*by_rank)
print("each by its own norm:", *[f"{number:.2f}" for number in alone])
print("by the norm of all:  ", *[f"{number:.2f}" for number in together])
pictures.draw_clipped((3, 4), {"by its own": alone, "by all": together})
left_over.measured([round(number, 3) for number in alone])

# %% [markdown]
# Alone, each rank sees a norm of 3 or 4 and scales to 1. The two numbers are now equal, so the step goes in a *different direction*, and nothing complains. The norm of all is √(9 + 16) = 5: squares are added up over ranks, then the
# root is taken.

# %% [markdown]
# ## 8 · FSDP2
#
# PyTorch's ZeRO-3 is **FSDP2**. A **DeviceMesh** says which ranks work together. `fully_shard(block)` makes a block one unit: its weights are gathered in one all-gather before its forward and its backward, and freed after each. Parameters outside of all blocks belong to the outermost unit, which by default stays whole from forward to backward.

# %%
show_source(chapter_13.train_plain)

# %% [markdown]
# ### Write it for many ranks
#
# **Write** (10 minutes) the same loop for a network that all ranks share. `network` is an `nn.Sequential` of blocks; each block is a unit, and so is the network. `batches` are this rank's. Return *full* weights. Shards are **DTensors**: `shard.full_tensor()` gathers one, and
# `clip_grad_norm_` adds up the squares of all shards.


# %%
def train(network, batches, max_norm):
    raise NotImplementedError("about 6 lines to add or change; then delete this one")
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    for inputs in batches:
        optimizer.zero_grad()
        network(inputs).square().mean().backward()
        clip_grad_norm_(network.parameters(), max_norm)
        optimizer.step()
    return network.state_dict()


# %%
trained = check(chapter_13.judged_training(train), **chapter_13.TRAINING)
trained

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>fully_shard</code> replaces parameters. So who must not have seen the old ones?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A mesh of all ranks; <code>fully_shard</code> on each block, then on the network; only then the optimiser. At the end, gather each tensor of <code>network.state_dict()</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>mesh = init_device_mesh("cpu", (dist.get_world_size(),))</code>, <code>fully_shard(block, mesh=mesh)</code>, and
# <code>{name: shard.full_tensor() for name, shard in network.state_dict().items()}</code>.
# </details>

# %% [markdown]
# Which calls does *your* step make? A block that is a unit of its own is gathered by itself:

# %%
pictures.draw_units(train, chapter_13.train_sharded)
show_when_passed(trained, chapter_13.train_sharded)


# %% [markdown]
# Does it hold and send what ours does?


# %%
def FSDP2(network):
    mesh = init_device_mesh(chapter_13.my_device(), (dist.get_world_size(),))
    for block in getattr(network, "blocks", network):
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


# %%
rows["FSDP2"] = chapter_13.measure(FSDP2)
pictures.draw_held(rows)

# %% [markdown]
# FSDP2 holds the same shares. It sends exactly 3, since it gathers a unit before its backward without asking who will read it. Do all of them train the same model? We train the small GPT of chapter 05, which has a tied weight, in double precision:

# %%
chapter_13.compare_training([OurDDP, Zero1, Zero2, Zero3, FSDP2])

# %% [markdown]
# They differ by rounding, and nothing else. For mixed precision, `fully_shard` takes a [`MixedPrecisionPolicy`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html); with `reshard_after_forward=False` weights stay full
# until backward, much as under ZeRO-2.

# %% [markdown]
# ## 9 · Four ranks save, three go on
#
# [`train_fsdp2.py`](train_fsdp2.py) is a script to take home. What trains stands at its top, in thirty lines like those you've just written: `sharded_network` and `train`. The functions below them make it a job that may be stopped. Each rank writes its own shards:

# %%
show_source(train_fsdp2.save)
show_source(train_fsdp2.load)

# %% [markdown]
# An epoch has three batches of 12 samples. Four ranks train two steps, so they stop in **mid-epoch**:

# %%
folder = tempfile.TemporaryDirectory()
stopped = launch(train_fsdp2.train, folder.name, 2, world_size=4)

# %%
saved = Path(folder.name, "step_000002")
print(*sorted(file.name for file in saved.iterdir()))
pictures.draw_checkpoint(saved, "model.0.0.weight", readers=3)

# %% [markdown]
# `.metadata` is written last and says where each piece is, so a folder without it is a save that was interrupted. Each reader takes the rows that *it* holds, whoever wrote them. The optimiser's moments are sharded alike.

# %% [markdown]
# The data need a position as well. This is lab 07's sampler as a generator: the epoch's order is the same on every rank, what's done is left out, and the rest is dealt to however many ranks there are.

# %%
show_source(train_fsdp2.batches)
parts = [(4, 0, 2), (3, 2, 1)]  # ranks, first step, steps
pictures.draw_dealing(train_fsdp2.batches, train_fsdp2.DATA, parts)

# %% [markdown]
# Now three ranks go on, to the end of the second epoch's second batch. Do they end with the same model as a training that nobody disturbed? The control is an undisturbed training of one step less:

# %%
resumed = launch(train_fsdp2.train, folder.name, 5, world_size=3)
with tempfile.TemporaryDirectory() as other:
    before = launch(train_fsdp2.train, Path(other, "less"), 4, world_size=1)
    undisturbed = launch(train_fsdp2.train, Path(other, "whole"), 5, world_size=1)[0]
print(f"stopped and resumed: about {chapter_13.apart(resumed, undisturbed):.0e}")
print(f"one step less:       about {chapter_13.apart(before, undisturbed):.0e}")

# %% [markdown]
# Rounding again: three ranks add in a different order. The same file runs under `torchrun`, here in two ranks, which find the checkpoint of step 5 and train one more step:

# %%
printed = torchrun("train_fsdp2.py", folder.name, "6")
print(*[line for line in printed.splitlines() if line.startswith("step")])

# %% [markdown]
# ### One rank alone
#
# Under DDP every rank has the whole model, so rank 0 alone may evaluate it. Under ZeRO-3 this is meant to fail:


# %%
def evaluate_on_rank_0():
    model = Zero3(chapter_13.stack())
    if dist.get_rank() == 0:
        model(torch.randn(4, 256))


# %% tags=["raises-exception"]
try:
    launch(evaluate_on_rank_0, backend="gloo", timeout=2)  # a GPU waits in a different line
except WorkerTimeout as hang:
    plot_calls(hang)
    raise

# %% [markdown]
# Nobody has the model. Rank 0 waits in `gather` for rank 1's share of the first weight, but rank 1's *function has returned*. So all ranks have to call layers, saves and `full_tensor()`, and in the same order. If one rank's data take a different path, the others hang like this.

# %% [markdown]
# ## 10 · Who shards with whom?
#
# Between nodes the network is slow. **Hybrid sharding** shards over the ranks of a node, and every node has a copy. After a reduce-scatter, ranks with the same shard add it up across nodes.

# %%
pictures.draw_mesh()


# %% [markdown]
# A mesh of two dimensions says who is who; `fully_shard` takes it too. We price both ways on a modelled network: 2 µs and 800 Gbit/s inside a node, 10 µs and 80 or 10 Gbit/s between nodes. A layer computes for 60 µs forward and 120 back.


# %%
def hybrid(network):
    mesh = init_device_mesh(chapter_13.my_device(), (2, 4), mesh_dim_names=("copy", "shard"))
    return Zero3(network, group=mesh["shard"].get_group(), across=mesh["copy"].get_group())


# %%
pairs = {}
for wrap in (Zero3, hybrid):
    chapter_13.measure(wrap, 8)
    trace = chapter_13.last_step(wrap, world_size=8)
    crossing = chapter_13.price_two_nodes(trace)
    print(f"    the busiest rank sends {max(crossing):.2f} MiB to the other node")
    pairs[wrap.__name__] = trace.traffic().bytes
draw_pairs(pairs, per_node=4, unit="MiB")

# %% [markdown]
# In the priced step the data need a gradient too, so that all layers are alike and there are 24 calls, not 23. If all eight ranks shard together, each call is a ring that crosses the border with 7/8 of a layer. With hybrid sharding only sums of a rank's shards cross, 2 · 1/2 of 0.5 MiB. The price is twice the memory.

# %% [markdown]
# On the slower network that's 2.2 ms instead of 5.9 ms, of which 1.4 ms are computing. It's an **upper bound** of the gain: each of our rings crosses the border at one card, where NCCL builds several rings and uses all four cards (chapter 06).
# The lab asks for the best plan.

# %% [markdown]
# ## 11 · Gather ahead
#
# `Zero3` waits for a weight before each layer. Let a layer compute for 60 µs forward and 120 back, and let the network between four ranks have 80 Gbit/s and 10 µs. A gather then takes 3 · (10 + 6.6) = 50 µs, as does a reduce-scatter. One
# after the other, that's 8 · 180 + 24 · 50 µs.

# %% [markdown]
# `Ahead` (read it with `show_source(Ahead)`) noted the order of the layers in the step before, and starts the next gather *before* a layer computes. Computing and communication can overlap, but nothing can start before what it needs is there.
#
# **Predict.** How many µs does its step take?

# %%
ahead_us = predict("µs of a step that gathers ahead", ...)

# %%
network = Network(latency_us=10, gbit_s=80)
traces = {"Zero3": chapter_13.last_step(Zero3), "Ahead": chapter_13.last_step(Ahead, steps=2)}
layers_us, steps_us = (20.0, 40.0, 50.0, 60.0), {}
for name, trace in traces.items():
    steps_us[name] = [chapter_13.step_us(trace, network, layer_us) for layer_us in layers_us]
pictures.draw_hiding(layers_us, steps_us)
ahead_us.measured(chapter_13.step_us(traces["Ahead"], network), within=0.02)

# %%
pictures.draw_steps(traces, network)

# %% [markdown]
# Only the first gather and the last reduce-scatter are left: 1440 + 2 · 50. In backward, a gather and a reduce-scatter have to hide behind each layer, so the layer has to compute for 100 µs there. If it computes for less, the network sets the pace: its 24 calls take 1192 µs at least.

# %% [markdown]
# The price is memory: two layers are full at once. FSDP2 gathers ahead too, on GPUs, and [lets you say how far](https://docs.pytorch.org/tutorials/intermediate/FSDP_tutorial.html).
#
# **Check yourself.** Does it help to gather *two* layers ahead here?
#
# <details><summary>Answer</summary>
# No. A layer's computing already hides a whole gather, so the second weight would only take up memory until its turn comes. It helps where layers differ in size.
# </details>

# %% [markdown]
# ## What can't be said here
#
# A laptop can't tell you how fast kernels are, how fast NCCL's reduce-scatter is, or how much gathering slows down computing on the same GPU. Nor can it tell how much memory PyTorch's caching allocator keeps beyond what's alive, which can decide whether a model fits.

# %% [markdown]
# ## What you know now
#
# Sixteen bytes per parameter, divided stage by stage. An all-reduce in two halves with the optimiser between them is ZeRO-1. If gradients go when they come, that's ZeRO-2. If weights come and go as well, that's ZeRO-3, which sends at most half as many bytes again.

# %% [markdown]
# Activations aren't divided, but they can be computed again. Norms, saves and full tensors are matters of all ranks.
#
# *More.* Y. Zhao and others, [PyTorch FSDP](https://arxiv.org/abs/2304.11277), VLDB 2023: hybrid sharding, and what GPUs add to all this.
#
# Practise in [lab 13](../exercises/13_hold_less.ipynb).
#
# **Next:** [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb) Or first [17 · Cut the layer](17_cut_the_layer.ipynb), if one layer is too large for a GPU.

# %%
predict()
