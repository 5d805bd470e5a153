# %% [markdown]
# # 04 · DDP training
#
# **What do you add to a training loop so that several processes train one model, and how do you know that it is the right model?**
#
# In 85 minutes you will be able to
#
# 1. make a training loop distributed by changing six lines, and say what each is for;
# 2. prove that the model is the one that a single process would get, and say when exactly the ranks talk;
# 3. recognise four mistakes that raise no error;
# 4. resume a run bit for bit, accumulate gradients, compute in bfloat16, and start it all with `torchrun`.
#
# **Hardware:** two cores. Where there is a GPU for each rank, most cells use the GPUs; what is called exact is exact on CPUs. Part 1 says what GPUs change.
# **Before:** [03 · Collective primitives](03_collective_primitives.ipynb).
# **Next:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Lab:** [04 · DDP training](../exercises/04_ddp_training.ipynb).
#
# Seven cells ask you to **predict**: put your answer in place of the three dots, and a later cell shows it beside what real ranks did. One cell asks you
# to **write** a function, and a check tries it in real workers.

# %% jupyter={"source_hidden": true}
import difflib
import functools
import inspect
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from statistics import median

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import train_ddp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_material.language import SmallGPT, novel
from course_utils import check, digits, hardware, launch, predict, show
from course_utils.pictures.style import KINDS, plain_style


def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


def to_my_device(batch):
    return [tensor.to(my_device()) for tensor in batch]


# %% [markdown]
# ## 1 · Six lines
#
# Work can be divided in two ways, and the parts can be put together in two ways:
#
# | | |
# | --- | --- |
# | **data parallel** | every process holds the whole model and takes a part of each batch |
# | **model parallel** | every process holds a part of the model and sees the whole batch |
# | **synchronous** | all wait for each other in every step: one model at any time |
# | **loosely coupled** | each goes on with what it has, and the copies drift apart between meetings |
#
# DDP, `DistributedDataParallel`, is data parallel and synchronous. The numbers below will show it.
#
# The data are the small set of real digits that comes with the course. If you have MNIST's files, set `COURSE_DATA` to the folder
# that holds `MNIST/raw` before you start Jupyter, and write `"mnist"`: the same cells then use its 60,000 digits.

# %%
source = "embedded"
training, testing = digits(True, source), digits(False, source)
print(f"{len(training)} digits to train with, {len(testing)} to test with")
pixels = torch.stack([image for image, _ in islice(training, 2000)])
mean, std = pixels.mean().abs(), pixels.std()
print(f"their pixels: mean {mean:.2f}, standard deviation {std:.2f}")

# %% [markdown]
# `digits` has normalised the images: it subtracts the mean of all pixels and divides by their standard deviation. For MNIST these are the well-known
# 0.1307 and 0.3081.
#
# Here is an ordinary training loop. Its settings are those of *The DDP getting-started guide*, one of the five articles behind this course
# ([the course map](README.md) lists them): a network of 784, 256 and 10 units, cross-entropy, SGD with a learning rate of 0.001, batches of 32, and the
# loss printed every ten batches. `my_device()`, from the folded cell at the top, is the rank's GPU if `launch` gave it one, else the CPU.


# %%
def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


# %%
def tell(epoch, batch, loss):
    if batch % 10 == 0:
        print(f"epoch {epoch}, batch {batch}: loss {loss.item():.3f}")


# %%
def train_alone(epochs):
    model = mlp().to(my_device())
    loader = DataLoader(training, batch_size=32, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images.to(my_device())), labels.to(my_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tell(epoch, batch, loss)
    return model


# %% [markdown]
# It knows nothing of ranks. What will it print on rank 1, started in two processes with the same seed?


# %%
def seeded(train, epochs):
    torch.manual_seed(0)
    return train(epochs)


results = launch(seeded, train_alone, 1, world_size=2)

# %% [markdown]
# The same digits in the same order to the same model: two processes did one process's work twice. Nothing is shared unless somebody shares it.
#
# Now the distributed form. Read it, and look for what is new before the next cell tells.


# %%
def train(epochs):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(mlp().to(my_device()))
    sampler = DistributedSampler(training, num_replicas=world_size, rank=rank)
    loader = DataLoader(training, batch_size=32 // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images.to(my_device())), labels.to(my_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            tell(epoch, batch, loss)
    return model.module


# %% jupyter={"source_hidden": true}
before, after = (inspect.getsource(function).splitlines() for function in (train_alone, train))
difference = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
print("\n".join(difference))

# %% [markdown]
# | new | what it does |
# | --- | --- |
# | `rank, world_size` | who am I, and how many are we: asked of the group that is already there |
# | `DistributedDataParallel(...)` | gives all ranks rank 0's weights once, and averages the gradients in every `backward()` |
# | `DistributedSampler(...)` | deals the digits out, so that each rank has its own |
# | `32 // world_size` | **local batch = global batch / world size**: together they still take 32 digits |
# | `set_epoch(epoch)` | shuffles anew; without it every epoch has one and the same order (chapter 07 draws it) |
# | `model.module` | the network itself, out of its wrapper |
#
# The loop's heart is untouched: forward, `zero_grad`, `backward`, `step`. Will the two ranks still print the same losses?

# %% tags=["row-A3", "row-B3", "row-B8"]
launched = launch(seeded, train, 1, world_size=2)

# %% [markdown]
# They print different losses: each is the mean over a rank's *own* 16 digits. Neither is the loss of the batch of 32; part 4 comes
# back to that. Do the shards really cover the data, without overlap?
#
# **Predict.** There are 1,442 digits. How many of them does the sampler deal twice when there are four ranks? Put your number in the place of the three dots.

# %%
dealt_twice = predict("digits that four ranks get twice", ...)


# %%
def my_shard():
    return list(DistributedSampler(training))


# %% tags=["row-B8"]
for world_size in (1, 2, 4):
    shards = launch(my_shard, world_size=world_size)
    dealt = Counter(digit for shard in shards for digit in shard)
    print(f"{world_size} rank(s): local batch {32 // world_size}", end=", ")
    print(f"{len(shards[0])} digits each, {len(training) - len(dealt)} missing")
dealt_twice.measured(dealt.total() - len(dealt))

# %% [markdown]
# No digit is left out, and with two ranks none is dealt twice: 721 + 721 = 1,442. Four ranks would get 360.5
# digits each, so the sampler deals two digits twice, and all ranks get the same number. Why it insists on that, you will see in part 8.
#
# ### `device_ids`
#
# The guide writes `DDP(model, device_ids=[rank])` and runs on CPUs. What does torch say?


# %% tags=["row-A6"]
def as_in_the_guide():
    try:
        DistributedDataParallel(mlp(), device_ids=[dist.get_rank()])
    except ValueError as error:
        print(error)


results = launch(as_in_the_guide, world_size=1, device="cpu", backend="gloo")  # as in the guide


# %% [markdown]
# On a GPU `device_ids` does something useful. The folded cell shows it where there is one.


# %% tags=["nbval-ignore-output", "row-A6"] jupyter={"source_hidden": true}
def on_a_gpu():
    card = int(os.environ["LOCAL_RANK"])
    model = DistributedDataParallel(mlp().to(card), device_ids=[card])
    images = torch.zeros(4, 1, 28, 28)  # on the CPU: who moves them?
    print("images on", images.device, "outputs on", model(images).device)


if gpus := len(hardware().gpus):
    launch(on_a_gpu, world_size=gpus)
else:
    print("no GPU here: the table below says what you would see")

# %% [markdown]
# | the model is | write | and then |
# | --- | --- | --- |
# | on the CPU | `DDP(model)` | `device_ids` is an error, as you saw |
# | on one GPU per process | `DDP(model.to(card), device_ids=[card])` | DDP moves each input to that card |
# | spread over several GPUs by one process | `DDP(model)` | you move the tensors yourself |
#
# `card` is the **local** rank. With `rank`, as the guide has it, the second machine asks for cards that it does not have. That was the crash of
# [chapter 02](02_process_groups.ipynb).
#
# **Check yourself.** Your script has `batch_size=32` and grows from one to eight ranks. You change nothing else. What is the global batch?
#
# <details><summary>Answer</summary>
# 256. The loader's <code>batch_size</code> is local. There are an eighth as many steps per epoch, and it is another training.
# </details>

# %% [markdown]
# ## 2 · One model, or two that look alike?
#
# We follow all 203,530 weights, step by step. To make it hard, each rank seeds its weights **differently**. `follow` trains with
# DDP in two ranks, and without it in a lone process that takes the full batch of 32.


# %%
def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def my_batches(global_batch=32):
    size = global_batch // dist.get_world_size()
    return map(to_my_device, DataLoader(training, size, sampler=DistributedSampler(training)))


# %%
def follow(wrap, steps=20):
    torch.manual_seed(dist.get_rank())
    model = wrap(mlp().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    history = [weights(model)]
    for images, labels in islice(my_batches(), steps):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(weights(model))
    return torch.stack(history)


# %% [markdown]
# **Predict.** After 20 steps, what is the largest difference between a weight on rank 0 and the same weight on rank 1?

# %%
apart = predict("largest difference of a weight between the ranks", ...)

# %% tags=["row-A2"]
first, second = launch(follow, DistributedDataParallel)
alone = launch(follow, lambda network: network, world_size=1)[0]
between = (first - second).abs().amax(dim=1)
apart.measured(between.max())

# %% [markdown]
# How far are the two ranks from the lone process? And is that much or little, beside the distance that training has moved a weight?


# %%
def told(difference):
    return f"about {difference:.0e}" if difference else "exactly 0"


to_one, moved = ((alone - other).abs().amax(dim=1) for other in (first, alone[0]))
print("two ranks to one process, largest difference:", told(to_one.max().item()))
print("training has moved a weight by up to", told(moved[-1].item()))

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(8, 3.6))
curves = {"rank 0 to rank 1": between, "two ranks to one process": to_one}
curves["how far the weights moved"] = moved
for i, (label, curve) in enumerate(curves.items()):
    axes.plot(curve, **plain_style(i), markevery=2, clip_on=False)
    axes.text(20.5, curve[-1], label, va="center")
axes.axhline(1e-6, color="#777777", linewidth=0.8)
axes.text(20.5, 1e-6, "above: more than rounding", color="#555555", va="center")
axes.set_yscale("symlog", linthresh=1e-9)
axes.set(ylim=(-3e-10, 1e-2), xlim=(-0.5, 20), xticks=range(0, 21, 5))
axes.set(xlabel="step", ylabel="largest difference of a weight")
axes.spines[["top", "right"]].set_visible(False)
show(figure, "The ranks stay exactly equal, and equal to one process up to rounding.")

# %% [markdown]
# Between the ranks the difference is **exactly 0 after every step**. To the lone process it is rounding, and no more: the mean of two
# means over 16 digits *is* the mean over 32, but the additions come in another order.
#
# This is what "synchronous data parallel" promises: one model, whose batch several workers shared.
#
# **Check yourself.** Would the proof also hold if one rank took 20 of the 32 digits and the other 12?
#
# <details><summary>Answer</summary>
# No. DDP averages the ranks' gradients with equal weight, so each of the 12 digits would count more than each of the 20.
# The ranks would still agree with each other, on another model.
# </details>
#
# ### Let the ranks compare themselves
#
# In a long training nobody carries the weights to a notebook after each step. The ranks can find out by themselves whether they are equal.
#
# **Write** (10 minutes). `mine` are this rank's weights, in one row. Compare each weight on all ranks, and return the largest difference between any two
# ranks: the same number on every rank, and 0 where all are equal. If any rank has a `nan`, return `nan` on every rank. `mine` has to stay as it is. The check
# tries one to four ranks. It shows the pair of what you returned and how you left `mine`.


# %%
def spread(mine):
    raise NotImplementedError("about 8 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# You need not compare every rank with every other. For one weight, which two of the ranks are farthest apart?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The one with the largest value and the one with the smallest. <code>all_reduce</code> finds both values, for all weights at once. It overwrites
# its tensor, so give it copies. And don't rely on it to carry a <code>nan</code>: gloo's <code>MAX</code> and <code>MIN</code> may pass over one. Let each rank
# say in a number of its own whether it has met a <code>nan</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>largest = mine.clone()</code>, then <code>dist.all_reduce(largest, dist.ReduceOp.MAX)</code>. The same with <code>MIN</code>, and at the end
# <code>.max()</code> of the differences. Before you return it, <code>has_nan = mine.isnan().any().float()</code>, and
# <code>MAX</code> of that.
# </details>


# %% jupyter={"source_hidden": true}
def spread_spec(rows):
    """What every rank returns, and its weights, which have to be those it had."""
    all_rows = torch.stack(rows)
    return [((all_rows.amax(0) - all_rows.amin(0)).max(), row) for row in rows]


def spread_inputs(rank, world_size, case):
    weights = torch.arange(-2.0, 4.0)
    weights[2] += {"one weight differs on the last rank": 0.25 * (rank == world_size - 1)}.get(
        case, 0
    )
    weights[4] += {"rank 0 lies between the others": (0, 1, -2, 0.5)[rank]}.get(case, 0)
    weights[rank] += {"each rank differs in another weight": 0.5}.get(case, 0)
    if case == "one rank has a nan" and rank == world_size - 1:
        weights[3] = float("nan")
    return weights.roll(rank) if case == "the same weights in another order" else weights


def keeping_weights(answer):
    @functools.wraps(answer)
    def compared(mine):
        return answer(mine), mine

    return compared


cases = ("all are equal", "one weight differs on the last rank", "rank 0 lies between the others")
cases += ("each rank differs in another weight", "the same weights in another order")
cases += ("one rank has a nan",)
spread_check = {"spec": spread_spec, "inputs": spread_inputs, "cases": cases}
spread_check |= {"world_sizes": (1, 2, 3, 4)}

# %%
check(keeping_weights(spread), **spread_check)


# %% jupyter={"source_hidden": true}
def spread_done(mine):
    largest, smallest = mine.clone(), mine.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    has_nan = mine.isnan().any().float()
    dist.all_reduce(has_nan, dist.ReduceOp.MAX)
    if has_nan:
        return torch.tensor(float("nan"))
    return (largest - smallest).max()


check(keeping_weights(spread_done), **spread_check)

# %% [markdown]
# Our answer, `spread_done`, is in the folded cell above. Why does it ask for a `nan` on its own? Because the largest of several numbers is found by comparing them,
# and every comparison with a `nan` is false. Whether gloo's `MAX` and `MIN` keep it or lose it depends on where it stands and on which rank:


# %%
def without_asking(where):
    mine = torch.ones(1000)
    if dist.get_rank() == where:
        mine[500] = float("nan")
    largest, smallest = mine.clone(), mine.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    return (largest - smallest).max().item()


for rank in range(3):
    # It is gloo's MAX and MIN that we ask about.
    difference = launch(without_asking, rank, world_size=3, backend="gloo")[0]
    print(f"rank {rank} has a nan: MAX - MIN is {difference}")

# %% [markdown]
# A difference of 0 would have told you that all is well. With its question, `spread_done` is a good check for your own trainings: call it on
# `nn.utils.parameters_to_vector(model.parameters()).detach()` once an epoch, on all ranks, and stop if the result is not 0; `nan` isn't 0 either. It sends two rows of the
# model's size, about as much as two training steps.
#
# ## 3 · When do the ranks talk?
#
# "Weights are synchronised after every batch", says the guide. With `trace=True`, `launch` notes everything that a rank sends, and in which
# line. In which lines of `follow` will rank 0 talk to rank 1?

# %% tags=["row-A8"]
trace = launch(follow, DistributedDataParallel, 3, trace=True).trace
calls = Counter((e.code, e.kind, e.bytes) for e in trace.of_rank(0) if e.kind != "wait")
for (code, kind, size), times in calls.items():
    print(f"{times} x {kind:10} of {size:7,} bytes in  {code}")

# %% [markdown]
# Nothing in `optimizer.step()`: **weights are never synchronised after a batch.** They *start* equal, because the constructor
# broadcasts rank 0's: 4 bytes × 203,530 = 814,120. They *stay* equal, because every `backward()` replaces each rank's gradient by the
# average (`all_reduce`), and equal weights minus equal gradients are equal.
#
# The small ones: before the broadcast the ranks compare how many parameters they have (8 bytes) and of which shapes (96). At the
# second forward, rank 0 tells in which order the gradients came in (20 and 4), for a reason that comes now.
#
# ### Buckets
#
# DDP does not wait for the last gradient. It collects gradients in **buckets**, and sends a bucket as soon as it is full. Two kinds of hooks can watch:
# a hook on each parameter, called when its gradient is computed, and a *communication hook*, called when a bucket goes out. The network is
# deeper here, and a bucket is closed as soon as it holds 1 MiB, so that there are several. (By default that is 1 MiB for the first bucket, and 25 for each of the others.)


# %%
def deeper():
    layers = [nn.Flatten()]
    for size in (784, 512, 512):
        layers += [nn.Linear(size, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


# %%
def watch(steps=2):
    network, seen = deeper().to(my_device()), []
    model = DistributedDataParallel(network, bucket_cap_mb=1)

    def bucket_goes_out(state, bucket):
        seen.append(f"bucket {bucket.index()}: {bucket.buffer().nbytes:,} bytes")
        return default_hooks.allreduce_hook(state, bucket)  # what DDP does by itself

    model.register_comm_hook(None, bucket_goes_out)
    for name, parameter in network.named_parameters():
        parameter.register_hook(lambda gradient, name=name: seen.append(name))
    for images, labels in islice(my_batches(), steps):
        seen.append("backward")
        cross_entropy(model(images), labels).backward()
    return seen


# %% [markdown]
# `seen` is a diary: the names of the gradients as they are computed, and between them the buckets as they go out. Here is rank 0's, a line for each bucket.

# %%
results = launch(watch)
for line in " ".join(results[0]).replace(" bucket", "\n  -> bucket").split("backward ")[1:]:
    print("backward:", line.strip())

# %% [markdown]
# The first backward is DDP's rehearsal: one bucket with everything, sent at the end, while it notes in which order the gradients come,
# from the last layer to the first. From the second on, the bucket of the last layers leaves while the
# gradients of the first are still being computed. (On GPUs the two run in different streams: [chapter 14](14_on_a_gpu_who_waits.ipynb).)
# In the picture a line below the gradients marks those that share a bucket.

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(8.6, 2.7))
green, pink = KINDS["compute"], KINDS["collective"]
moment, begun, row = 0, 0, 0
for name in results[0][results[0].index("backward", 1) + 1 :]:
    if name.startswith("bucket"):
        row += 1
        axes.plot([begun + 0.05, moment - 0.11], [0.5, 0.5], color=pink.ink, linewidth=2)
        axes.barh(row, 3.6, 0.62, moment, color=pink.fill, edgecolor=pink.ink)
        axes.text(moment + 1.8, row, name, ha="center", va="center", fontsize=9)
        begun = moment
    else:
        axes.barh(0, 0.94, 0.7, moment, color=green.fill)
        label = {"ha": "center", "va": "center", "color": "white", "fontsize": 9}
        axes.text(moment + 0.47, 0, name.replace(".", "\n"), **label)
        moment += 1
axes.set(yticks=[0, 2], yticklabels=["gradient of", "all_reduce of"], ylim=(3.6, -0.6))
axes.set(xticks=[], xlabel="order of events in one backward (not to scale)")
axes.tick_params(left=False)
axes.spines[["top", "right", "left"]].set_visible(False)
show(figure, "Two of the three buckets leave before the last gradient is computed.")

# %% [markdown]
# ### By hand
#
# If that is all, you can do it yourself: broadcast rank 0's weights, then average the gradients with an `all_reduce`, whose
# default is the **sum**, and a division. Somebody who believes in synchronised weights would average those instead. `by_hand` can do either.


# %%
def start_equal(model):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


# %%
def by_hand(make_optimizer, what):
    torch.manual_seed(dist.get_rank())
    model = mlp().to(my_device())
    model = DistributedDataParallel(model) if what == "DDP" else model
    start_equal(model)
    optimizer = make_optimizer(model.parameters(), lr=0.001)
    for images, labels in islice(my_batches(), 20):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        if what == "gradients":
            average(parameter.grad for parameter in model.parameters())
        optimizer.step()
        if what == "weights":
            average(parameter.data for parameter in model.parameters())
    return weights(model)


# %% [markdown]
# **Predict.** With which optimiser does averaging the *weights* after each step give DDP's model, up to rounding: SGD (with momentum and weight decay), Adam, both, or neither?

# %%
weights_do = predict(
    "averaged weights give DDP's model with", ..., choices=("SGD", "Adam", "both", "neither")
)

# %% tags=["row-A8", "row-D6"]
fit = []
with_momentum = functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)
for name, make_optimizer in {"SGD": with_momentum, "Adam": torch.optim.Adam}.items():
    ddp = launch(by_hand, make_optimizer, "DDP")[0]
    for what in ("gradients", "weights"):
        mine = launch(by_hand, make_optimizer, what)[0]
        difference = (mine - ddp).abs().max().item()
        print(f"{name:4}: averaged {what:9}, difference to DDP {told(difference)}")
    fit += [name] * (difference < 1e-6)
weights_do.measured("both" if len(fit) == 2 else (fit or ["neither"])[0])

# %% [markdown]
# Averaged gradients give DDP's model whatever the optimiser. Averaged weights do so for SGD, here with momentum and weight decay: its step is
# linear in the gradients, so the mean of the ranks' steps is the step of their mean. Adam divides by a running mean of squares, which is not linear. The difference is real: you get a different model.
#
# **Predict.** With two ranks, the averaged gradients gave exactly DDP's weights. What will three ranks give?

# %%
with_three = predict(
    "three ranks: averaged gradients give DDP's weights",
    ...,
    choices=("exactly", "up to rounding", "no"),
)

# %%
ddp = launch(by_hand, torch.optim.SGD, "DDP", world_size=3)[0]
mine = launch(by_hand, torch.optim.SGD, "gradients", world_size=3)[0]
difference = (mine - ddp).abs().max().item()
print("three ranks: averaged gradients, difference to DDP", told(difference))
with_three.measured("no" if difference > 1e-6 else "up to rounding" if difference else "exactly")

# %% [markdown]
# Two numbers have only one sum, and halving it is exact. Three numbers can be added in different orders, and a division by three is rounded. DDP adds up whole buckets and divides before it adds; `average`
# adds up one parameter at a time and divides after. So the two agree **up to rounding**, and "bit for bit" was the luck of two ranks.
#
# **Check yourself.** Why does DDP send buckets, where `average` sends one parameter after the other?
#
# <details><summary>Answer</summary>
# Each message has a cost of its own, however small it is, and <code>average</code> begins only when backward is over. Chapter 06 puts numbers
# to both.
# </details>
#
# ## 4 · Four mistakes that raise no error
#
# By hand, or with a wrong line around DDP, all of these run to the end without a word:
#
# - **no sampler**: every rank takes the same digits;
# - **no broadcast**: every rank starts from its own weights (`DDP(..., init_sync=False)`);
# - **summed gradients**: the division is missing;
# - **one rank's loss**: printed as if it were everybody's.
#
# `mistaken`, folded below, makes one of them and returns, per step, the weights, the loss it would print and the loss of its own digits.


# %% jupyter={"source_hidden": true}
def mistaken(mistake, steps=8):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    device = my_device()
    model = mlp().to(device)
    if mistake != "no broadcast":
        start_equal(model)
    place = (1, 0) if mistake == "no sampler" else (world_size, rank)
    loader = DataLoader(training, 32 // world_size, sampler=DistributedSampler(training, *place))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    history, printed, own = [weights(model)], [], []
    for images, labels in islice(loader, steps):
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            if mistake != "summed gradients":
                parameter.grad /= world_size
        optimizer.step()
        history.append(weights(model))
        shown = loss.detach().clone()
        if mistake != "one rank's loss":
            average([shown])
        printed.append(shown.item())
        own.append(loss.item())
    return {"weights": torch.stack(history), "printed": printed, "own": own}


# %% jupyter={"source_hidden": true}
mistakes = ["no sampler", "no broadcast", "summed gradients", "one rank's loss"]


def distances_of(run):
    """Largest difference of a weight after each step: rank to rank, and rank 1 to one process."""
    w = [result["weights"] for result in run]
    return (w[0] - w[1]).abs().amax(dim=1), (w[1] - alone[: len(w[1])]).abs().amax(dim=1)


def loss_of_all(run):
    """The mean loss over the digits of both ranks, in each step."""
    return torch.tensor([result["own"] for result in run]).mean(dim=0)


# %% [markdown]
# Two distances can be watched: from rank to rank, and to the lone process of part 2.
#
# **Predict.** How many of the four mistakes leave the *first* distance at zero?

# %%
unseen = predict("mistakes of the four that leave the ranks equal", ...)

# %%
runs = {each: launch(mistaken, each) for each in ["no mistake", *mistakes]}
distances = {each: [away[5].item() for away in distances_of(run)] for each, run in runs.items()}

print("after 5 steps      rank to rank  to one process  printed loss is off by")
for each, (rank_to_rank, to_process) in distances.items():
    off = runs[each][0]["printed"][4] - loss_of_all(runs[each])[4]
    print(f"{each:16}{told(rank_to_rank):>15}{told(to_process):>16}   about {off.abs():.2f}")
unseen.measured(sum(distances[each][0] == 0 for each in mistakes))

# %% [markdown]
# The same in a picture, over eight steps:

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(2, 2, figsize=(9, 5.4), sharex=True, layout="constrained")
wide = {"color": "#BBBBBB", "linewidth": 7, "solid_capstyle": "round"}
for axis, mistake in zip(axes.flat[:3], mistakes):
    ranks, one = distances_of(runs[mistake])
    axis.plot(ranks, label="rank to rank", **wide)
    axis.plot(one, label="to one process", **plain_style(0))
    without = distances_of(runs["no mistake"])[1]
    axis.plot(without, label="the same, without the mistake", **plain_style(1))
    axis.set_yscale("symlog", linthresh=1e-9)
    axis.set(title=mistake, ylim=(-5e-10, 1), yticks=[0, 1e-8, 1e-6, 1e-4, 1e-2, 1])
    axis.set_ylabel("difference of weights")
run = runs[mistakes[3]]
axes[1, 1].plot(range(1, 9), run[0]["printed"], label="printed by rank 0", **plain_style(0))
axes[1, 1].plot(range(1, 9), loss_of_all(run), label="of all 32 digits", **plain_style(1))
axes[1, 1].set(title=mistakes[3], ylabel="cross-entropy (nats)")
axes[1, 1].legend(frameon=False, fontsize=9)
axes[1, 0].legend(frameon=False, fontsize=9, loc="center right")
for axis in axes[1]:
    axis.set_xlabel("step")
show(figure, "All four show within five steps, but only one of them between the ranks.")

# %% [markdown]
# Only the missing broadcast makes the ranks differ. Without a sampler, or with summed gradients, they agree perfectly on a wrong model: half the batch
# twice, or twice the learning rate. A distance of 1e-09 to one process is rounding, one of 1e-04 is another model. So compare with **one process**, not only between ranks. The last mistake harms no
# weight, only you: the curve you judge by is one rank's.
#
# **Check yourself.** Summed gradients trained your model better than averaged ones. What have you found?
#
# <details><summary>Answer</summary>
# That your learning rate was too small. With plain SGD, a sum over two ranks is an average with twice the learning rate.
# </details>
#
# ### The same loop for a language model
#
# Digits are a list, which a sampler deals out. A language model reads one long text, and its batch is a handful of **windows**, drawn at random. No sampler deals them, so only the
# random numbers keep the ranks' windows apart. Here `SmallGPT` learns to continue *Pride and Prejudice*, letter by letter, with AdamW and with a limit to the norm of its gradient.

# %%
tokens, alphabet = novel()
print(tokens[:9].tolist(), "is", "".join(alphabet[token] for token in tokens[:9]))
guess = math.log(len(alphabet))
print(f"{len(alphabet)} characters: a blind guess has the loss {guess:.1f}")


# %%
def draw_windows(generators):
    starts = [torch.randint(len(tokens) - 32, (8, 1), generator=each) for each in generators]
    return tokens[torch.cat(starts) + torch.arange(33)]  # 8 windows from each generator


def small_gpt(dtype):
    return SmallGPT(len(alphabet), depth=1, context=32).to(my_device(), dtype)


# %%
def read(seeds, dtype=torch.float32, steps=20):
    mine = seeds[dist.get_rank() :: dist.get_world_size()]
    generators = [torch.Generator().manual_seed(seed) for seed in mine]
    torch.manual_seed(mine[0])
    model = DistributedDataParallel(small_gpt(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    losses = []
    for _ in range(steps):
        drawn = draw_windows(generators).to(my_device())
        losses.append(cross_entropy(model(drawn[:, :-1]).mT, drawn[:, 1:]))  # the next letters
        optimizer.zero_grad()
        losses[-1].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
    return weights(model), torch.stack(losses).tolist()


# %% [markdown]
# What do four ranks learn if all of them draw with the same seed, as many scripts do "to be reproducible"? We compare them with two single processes: one reads 8 windows per step, the other
# the 4 × 8 windows that four seeds draw.

# %%
single = {
    "to one process, 8 windows": launch(read, [0], world_size=1)[0][0],
    "to one process, 32 windows": launch(read, [0, 1, 2, 3], world_size=1)[0][0],
}
for seeds in ([0, 0, 0, 0], [0, 1, 2, 3]):
    trained, losses = zip(*launch(read, seeds, world_size=4))
    first_loss, last_loss = losses[0][0], losses[0][-1]
    print(
        f"seeds {seeds}: rank 0's loss falls from about {first_loss:.1f} to about {last_loss:.1f}"
    )
    for name, other in ({"rank to rank": trained[3]} | single).items():
        print(f"    {name:27} {told((trained[0] - other).abs().max().item())}")

# %% [markdown]
# With one seed all four draw the same 8 windows, and the average of four equal gradients is that gradient. **Four ranks learn, to the last bit, what one learns from a quarter of the data.** The ranks agree and the loss
# falls, so nothing looks wrong. The cure is `seed + rank`: now four ranks learn what one process learns from all 32 windows. The ranks' weights agree all the same, because DDP starts them from rank 0's.
#
# But is this last difference still rounding? It's much larger than it was with SGD, because Adam divides small gradients by small numbers, and that enlarges their errors. There's a test: with twice as many digits, rounding nearly vanishes, and a mistake stays.

# %%
single_double = launch(read, [0, 1, 2, 3], torch.float64, world_size=1)[0][0]
four_double = launch(read, [0, 1, 2, 3], torch.float64, world_size=4)[0][0]
difference = (four_double - single_double).abs().max().item()
print("in double precision, four ranks to one process, 32 windows:", told(difference))

# %% [markdown]
# It was rounding.
#
# Clipping stands after `backward`, where the gradients are averages already: all ranks find the same norm, and no message is needed.
#
# ## 5 · Stop, and go on as if nothing had happened
#
# Longer runs get interrupted. To make it worthwhile, we use a better network, a small convnet with batch normalisation and dropout, and SGD with
# momentum. What belongs in a checkpoint? Everything that the next step depends on.


# %%
def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip


# %%
def save(path, network, optimizer, step):
    generators = [None] * dist.get_world_size()
    dist.all_gather_object(generators, torch.get_rng_state())  # rank 0 has only its own
    if dist.get_rank() == 0:
        parts = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(parts | {"position": step, "generators": generators}, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)  # killed before this, we still have the old one
    dist.barrier()  # nobody reads before the file is there


# %% [markdown]
# **One** rank writes, since all have the same parameters. (Each rank's batch normalisation keeps running statistics of its own; in every forward DDP
# replaces them by rank 0's.) But each rank has a random generator of its own, for its dropout, so rank 0 first gathers their states.
#
# **All** ranks read. `train_on`, folded below, goes on where the file says, or begins if there is no file. It trains for so many steps, and saves.


# %% jupyter={"source_hidden": true}
def train_on(path, steps, forget=None):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # each rank its own dropout
    saved = torch.load(path) if path.exists() else {}
    saved.pop(forget, None)
    network = convnet()
    if "model" in saved:
        network.load_state_dict(saved["model"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if "optimizer" in saved:
        optimizer.load_state_dict(saved["optimizer"])
    sampler = DistributedSampler(training)
    loader = DataLoader(training, 64 // world_size, sampler=sampler)
    step, losses = saved.get("position", 0), []
    while len(losses) < steps:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        batches = islice(iter(loader), done, None)  # skips what this epoch has seen already
        if "generators" in saved:  # after iter(), which draws a random number itself
            torch.set_rng_state(saved.pop("generators")[rank])
        for images, labels in islice(batches, steps - len(losses)):
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
    save(path, network, optimizer, step)
    return {"losses": losses, "weights": weights(network)}


# %% [markdown]
# One run of 46 steps (two epochs of the small set) goes undisturbed. Another stops after 30, in the middle of an epoch, and all its processes end; new ones do the
# rest.
#
# **Predict.** What is the largest difference between their weights in the end?

# %%
resumed_apart = predict("largest difference of a weight, stopped and resumed", ...)

# %%
folder = tempfile.TemporaryDirectory()
whole, halves = Path(folder.name, "undisturbed.pt"), Path(folder.name, "stopped.pt")
# Equal bit for bit: a CPU's convolution is, and a GPU's may add in a new order each time.
undisturbed = launch(train_on, whole, 46, backend="gloo")
stopped = launch(train_on, halves, 30, backend="gloo")
checkpoint = halves.read_bytes()
resumed = launch(train_on, halves, 16, backend="gloo")

# %% tags=["row-B5"]
differences = [one["weights"] - two["weights"] for one, two in zip(undisturbed, resumed)]
resumed_apart.measured(torch.stack(differences).abs().max())

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(8, 3.6))
wide, thin, dashed = ({"linewidth": 6}, {"linewidth": 1.1}, {"linewidth": 1.4, "linestyle": ":"})
for run, label, first_step, color, style in [
    (undisturbed, "undisturbed", 0, "#BBBBBB", wide),
    (stopped, "until it was stopped", 0, "black", thin),
    (resumed, "resumed", 30, "black", dashed),
]:
    losses = torch.tensor([result["losses"] for result in run]).mean(dim=0)
    axes.plot(
        range(first_step, first_step + len(losses)), losses, label=label, color=color, **style
    )
axes.axvline(29.5, color="#555555", linewidth=0.8)
axes.set(xlabel="step", ylabel="cross-entropy (nats), mean of both ranks", yscale="log")
axes.legend(frameon=False)
show(figure, "The stopped and resumed run lies exactly on the undisturbed one.")

# %% [markdown]
# The same, to the last bit, on both ranks. Now the file itself: a plain network reads it, in this notebook, without DDP, because `save` took the state
# of the network and not of its wrapper. How good is it on digits that it never saw?


# %%
network = convnet().eval()
network.load_state_dict(torch.load(halves)["model"])
with torch.no_grad():
    batches = DataLoader(testing, 500)
    right = sum((network(images).argmax(1) == labels).sum() for images, labels in batches)
print(f"right: about {100 * right / len(testing):.1f} % of the test digits")

# %% [markdown]
# Is every part of the checkpoint needed? Each run below resumes from step 30 for four steps, and forgets one part. Which one may be forgotten? The
# numbers are largest differences of a weight.


# %%
def resume(forget):
    halves.write_bytes(checkpoint)  # on the CPU again, to compare bit for bit
    return launch(train_on, halves, 4, forget, backend="gloo")[0]["weights"]


# %%
reference = resume("nothing")
for part in ("model", "optimizer", "position", "generators"):
    difference = (resume(part) - reference).abs().max().item()
    print(f"without {part:10}: {told(difference)} from the run that forgot nothing")

# %% [markdown]
# None. *Position* means epoch and batch: without it, the run sees the same digits again. And mind the comment in `train_on`: iterating over
# a loader draws from the random generator, so its state is restored after that.
#
# **Check yourself.** Every rank calls `torch.save(..., "model.pt")`. What can go wrong?
#
# <details><summary>Answer</summary>
# Two processes write one file at the same time, and it may hold a mixture. If each writes a file of its own, it is only waste: the weights are equal.
# </details>

# %% [markdown]
# ## 6 · Fewer messages, and smaller ones
#
# If a batch does not fit into memory, take it in parts and add up their gradients (**gradient accumulation**). Only the last part needs to talk; for the
# others there is `no_sync()`. Where does it belong? `accumulate` takes a global batch of 128 in parts, with the forward inside of `no_sync`, or outside.


# %%
def accumulate(forward, parts, steps=5):
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for images, labels in islice(my_batches(128), steps):
        optimizer.zero_grad()
        pieces = zip(images.chunk(parts), labels.chunk(parts))
        for part, (few, answers) in enumerate(pieces, 1):
            quiet = model.no_sync if part < parts else nullcontext  # the last one sends
            with quiet() if forward == "inside" else nullcontext():
                loss = cross_entropy(model(few), answers) / parts
                with quiet():
                    loss.backward()
        optimizer.step()
    return weights(model)


# %% [markdown]
# **Predict.** How many times per step does DDP call `all_reduce`, with four parts and the forward outside?

# %%
calls_outside = predict("all_reduce per step, four parts, forward outside", ...)


# %% jupyter={"source_hidden": true}
def note_cost(name, run, steps):
    """Count what rank 0 gave to all_reduce: times and megabytes per optimiser step."""
    sent = [event.bytes for event in run.trace.of_rank(0) if event.kind == "all_reduce"]
    cost[name] = len(sent) / steps, sum(sent) / steps / 1e6
    print(f"{name:24} {cost[name][0]:.0f} all_reduce per step, {cost[name][1]:.2f} MB")


# %% [markdown]
# `note_cost`, folded above, counts what rank 0 has called, and how many megabytes it gave. First one batch of 128 as it is, then in four parts.

# %%
cost, whole_batch = {}, launch(accumulate, "inside", 1, trace=True)
note_cost("one batch of 128", whole_batch, 5)
for forward in ("inside", "outside"):
    run = launch(accumulate, forward, 4, trace=True)
    note_cost(f"4 parts, forward {forward}", run, 5)
    difference = (run[0] - whole_batch[0]).abs().max().item()
    print(f"{'':24} {told(difference)} from the model of one batch")
calls_outside.measured(int(cost["4 parts, forward outside"][0]))

# %% [markdown]
# With the forward **outside**, `no_sync` does nothing at all: DDP decides during the forward whether the coming backward will talk. The model is right
# in both cases, up to rounding, so nothing but the trace betrays it. The other thing to remember is the division by `parts`.
#
# ### bfloat16
#
# In **mixed precision**, `autocast` computes in bfloat16 where that is safe. Forward and loss go inside it, backward outside.
# The numbers are half as long: does `all_reduce` send half the bytes?


# %%
def mixed(compressed, steps=40):
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp().to(my_device()))
    if compressed:
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for images, labels in islice(my_batches(), steps):
        with torch.autocast(my_device(), dtype=torch.bfloat16):
            outputs = model(images)
            loss = cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    grad = model.module[1].weight.grad
    return {"outputs": outputs, "loss": loss, "weights": weights(model), "gradients": grad}


# %%
for name in ("bfloat16", "compressed"):
    run = launch(mixed, name == "compressed", trace=True)
    note_cost(name, run, 40)
    difference = (run[0]["weights"] - run[1]["weights"]).abs().max().item()
    print(f"{'':24} {told(difference)} between the ranks")
for name, tensor in run[0].items():
    print(f"{name:9} {tensor.dtype}")

# %% [markdown]
# The weights, and so their gradients, stay float32: autocast alone sends as much as before. To halve the messages, the gradients themselves
# must be sent as bfloat16, by a communication hook that comes with torch. That rounds what is added up; the ranks stay equal all the same, since all receive
# the same rounded sum.
#
# **Check yourself.** PyTorch's own [recipe for mixed precision](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html) puts a `GradScaler`
# beside autocast. Why is there none here?
#
# <details><summary>Answer</summary>
# It belongs to float16: small gradients underflow there. bfloat16 has float32's range, with fewer digits.
# </details>
#
# ## 7 · How much faster?
#
# All this was about being right. Does it pay? We train the convnet with a global batch of 128, on one rank and on two, and count images per second. The
# folded cell has the clock. Beside DDP stands a control: the same work under `no_sync`, without messages. It says what the *hardware* allows.


# %% jupyter={"source_hidden": true}
def images_per_second(model, talk, images, labels, steps=3):
    dist.barrier()
    begun = time.perf_counter()
    for _ in range(steps):
        with talk():
            cross_entropy(model(images), labels).backward()
    dist.barrier()
    return steps * 128 / (time.perf_counter() - begun)


# %%
def measure():
    model, batch = DistributedDataParallel(convnet().to(my_device())), next(my_batches(128))
    images_per_second(model, nullcontext, *batch, steps=2)  # warm up: DDP arranges its buckets
    ways = {"no messages": model.no_sync, "DDP": nullcontext}
    return {name: images_per_second(model, talk, *batch) for name, talk in ways.items()}


# %% [markdown]
# Three rounds, one right after the other. Each gives a ratio, and the median counts. (With four free cores, try `(1, 4)`. The lines below then speak of four ranks.)

# %%
rounds = []
for _ in range(3):
    rounds.append([launch(measure, world_size=n)[0] for n in (1, 2)])
for kind in ("no messages", "DDP"):
    ratios = [two[kind] / one[kind] for one, two in rounds]
    print(f"2 ranks, {kind:11}: about {median(ratios):.2f} times as fast as one rank")

# %% [markdown]
# **Scaling efficiency** is the speed-up divided by the number of ranks. Read DDP's number against its control, not against the ideal of 2. The control's
# distance from the ideal is the machine: busy cores, shared memory. DDP's distance from the control is what talking costs: gradients are copied into buckets and sent, and in every step the ranks wait for each other. On a cluster that is the
# whole question, and [chapter 06](06_what_communication_costs.ipynb) computes it.
#
# ### A script to take home
#
# Real trainings are scripts. [train_ddp.py](train_ddp.py), beside this notebook, is a complete one of about 100 lines: this chapter's network, sampler, mean loss and checkpoint,
# with what a longer training wants besides. It takes a GPU where there is one and computes in bfloat16 there. It limits the norm of the averaged gradient. Stopped and started again, it goes on after its last epoch.
# Read it from `train` at its end upwards. Your own data set is one line to change.
#
# Who starts the ranks is not its business: it runs unchanged under `launch`, which has made the group already, under `torchrun`, and under Slurm's `srun`. The function `torchrun`, folded away
# below, starts `torchrun --standalone --nproc-per-node=2` on it.


# %% jupyter={"source_hidden": true}
def torchrun(script, *arguments, timeout_s=100):
    """Run a script in two ranks on the CPU, on loopback only."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = [sys.executable, "-m", "torch.distributed.run"]
        command = [*run, "--standalone", "--nproc-per-node=2", script, *arguments]
        quiet = {"OMP_NUM_THREADS": "1", "TMPDIR": folder, "CUDA_VISIBLE_DEVICES": ""}
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        environment = {**os.environ, **loopback, **quiet}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        try:
            said = process.communicate(timeout=timeout_s)[0]
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
        assert process.returncode == 0, said


# %%
with tempfile.TemporaryDirectory() as runs:
    # On the CPU both times, to compare bit for bit.
    launch(train_ddp.train, f"{runs}/launched.pt", 1, backend="gloo")
    torchrun("train_ddp.py", f"--path={runs}/started.pt", "--epochs=1")
    launched, started = (
        torch.load(f"{runs}/{name}.pt")["model"] for name in ("launched", "started")
    )
same = sum(torch.equal(launched[name], started[name]) for name in launched)
print(f"{same} of {len(launched)} tensors are the same, bit for bit")

# %% [markdown]
# Only who starts the ranks has changed. (As chapter 02 said: `torchrun` serves its store on all addresses of the machine, so use it where you trust the network.)
#
# ## 8 · One batch fewer
#
# Why did the sampler insist on equal shards? Somebody deals out 65 digits without it: 33 for rank 0, 32 for rank 1, in batches of 16. This cell is
# meant to fail. In which line will it be, and on which rank?


# %% tags=["raises-exception"]
def one_batch_fewer():
    mine = Subset(training, range(dist.get_rank(), 65, dist.get_world_size()))
    model = DistributedDataParallel(mlp())
    for images, labels in DataLoader(mine, batch_size=16):
        loss = cross_entropy(model(images), labels)
        loss.backward()
    print("done, after", len(mine), "digits")


launch(one_batch_fewer, timeout=5, backend="gloo")  # on a GPU the wait is in another line

# %% [markdown]
# Rank 0 waits in `backward`, for an average with a rank that has no third batch. Rank 1's function has returned: it did
# everything right, and is done. The last sentence of the report counts the calls:
# *3 times* here, *twice* there. No line is wrong; the number of calls is.
#
# One digit too many, and a job on a cluster stands still until a timeout ends it: by default after ten minutes with NCCL, and after thirty with gloo. The cures: a `DistributedSampler` (it deals some
# digits twice), the same with `drop_last=True` (it leaves some out), or DDP's `Join`, in chapter 07. The `drop_last` of a `DataLoader` is no cure. It would help 33 and 32 digits by chance, but not 48 and 47:

# %%
for digits_here in (33, 32, 48, 47):
    batches = len(DataLoader(range(digits_here), batch_size=16, drop_last=True))
    print(f"{digits_here} digits on a rank: {batches} batches")

# %% [markdown]
# **Check yourself.** Ranks with equal numbers of batches, but rank 0 skips a batch whose loss is `nan`. What happens?
#
# <details><summary>Answer</summary>
# The same: rank 0 makes one backward fewer, and the others wait at the end. Worse, from there on it averages different batches' gradients. Decide together, with an
# <code>all_reduce</code> of the flag.
# </details>
#
# ## What you know now

# %%
predict()

# %% [markdown]
# Two of these are easily got wrong. Only one mistake of four makes the ranks differ, so a comparison between ranks misses the other three. And with the forward outside of
# `no_sync`, DDP sends every part.
#
# DDP broadcasts the weights once, averages gradients in `backward`, and hands on the buffers of batch normalisation in `forward`. The rest is yours: deal the data out, divide the batch, reduce the
# loss, save once, and have all ranks make the same calls. And you know the proof to ask for: **exactly 0 between ranks, rounding to one process.**
#
# Next: [05 · DDP from scratch](05_ddp_from_scratch.ipynb), in which you write it yourself.
