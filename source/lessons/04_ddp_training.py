# %% [markdown]
# # 04 · DDP training
#
# **What do you add to a training loop so that several processes train one model, and how do you know that it is the right model?**
#
# In 155 minutes, best in two sittings of 75 and 80, you will be able to
#
# 1. turn a training loop into a distributed one with six lines, and say what each is for;
# 2. prove that the model is the one that a single process would get, and say when the ranks talk to each other;
# 3. recognise four mistakes that raise no error;
# 4. stop and resume training, send fewer and smaller messages, and write a script for `torchrun`.
#
# **Hardware:** two cores. If there's a GPU for each rank, most cells use the GPUs; what is called exact is exact on CPUs.

# %% [markdown]
# **Before:** [03 · Collective primitives](03_collective_primitives.ipynb).
# **Next:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Lab:** [04 · DDP training](../exercises/04_ddp_training.ipynb).

# %% [markdown]
# **First sitting**, parts 1 to 4: training, and the proof that it's right. **Second sitting**, parts 5 to 9: checkpoints, accumulation, speed, and a script
# of your own. A line between them says where to stop.

# %% [markdown]
# Five cells ask you to **predict**: answer below the cell or in place of its three dots, and a later cell compares your answer with what
# real ranks did. Six functions are yours to **write**.

# %% jupyter={"source_hidden": true}
import functools
import math
import os
import tempfile
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import train_ddp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_lessons import chapter_04, ddp_exercises
from course_lessons.chapter_04 import MISTAKES, format_difference, mistaken
from course_material.language import SmallGPT, novel
from course_utils import check, digits, hardware, launch, plot_timeline, predict, show

# %% [markdown]
# ## 1 · Six lines
#
# There are two ways to divide the work. In **data parallel** training, every process holds the whole model and takes a part of each batch. In **model
# parallel** training, every process holds a part of the model and sees the whole batch.

# %%
show(chapter_04.two_ways(), "Two ranks divide either the batch or the model.")

# %% [markdown]
# DDP, `DistributedDataParallel`, is data parallel. It's also **synchronous**: in every step all ranks wait for each other, so that there's one model at any time. Part 2 will
# put that to the test.

# %% [markdown]
# The data are the small set of real digits that comes with the course. If you have MNIST's files, set `COURSE_DATA` to the folder
# that holds `MNIST/raw` before you start Jupyter, and write `"mnist"` in place of
# `"embedded"` below: the same cells then use its 60,000 digits.

# %%
source = "embedded"
training, testing = digits(True, source), digits(False, source)
print(f"{len(training)} digits to train with, {len(testing)} to test with")

# %% [markdown]
# Here's an ordinary training loop. Its settings are those of *The DDP getting-started guide*, one of the five articles this course grew out of
# ([the course map](README.md) lists them): a network of 784, 256 and 10 units, SGD with a learning rate of 0.001, and batches of 32.


# %% jupyter={"source_hidden": true}
def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def print_loss(epoch, batch, loss):
    if batch % 10 == 0:
        print(f"epoch {epoch}, batch {batch}: loss {loss.item():.3f}")


# %%
def train_alone(model, data, global_batch, epochs):
    model = model.to(my_device())
    loader = DataLoader(data, batch_size=global_batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images.to(my_device())), labels.to(my_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print_loss(epoch, batch, loss)
    return model


# %% [markdown]
# This loop knows nothing of ranks. What will it print on rank 1, if we start it in two processes with the same seed?


# %%
def seeded(train_function):
    torch.manual_seed(0)
    train_function(mlp(), training, 32, 1)


results = launch(seeded, train_alone, world_size=2)

# %% [markdown]
# Both read the same digits in the same order, so two processes did the work of one twice. Nobody divides the work unless you do.

# %% [markdown]
# ### Write the six lines
#
# **Write** (12 minutes) the same loop, distributed. Each rank is given a model with *different* weights. In the end, all ranks
# should hold the weights that one process would get if it started from rank 0's weights and took the same **global batches**. (The global batch of a step is all samples that the ranks read for it together; `global_batch` is their number.)
# Shuffle in each epoch as `DistributedSampler` does (with seed 0). Return the network itself, without its wrapper.


# %%
def train(model, data, global_batch, epochs):
    raise NotImplementedError("about 6 lines to add or change; then delete this one")
    model = model.to(my_device())
    loader = DataLoader(data, batch_size=global_batch, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images.to(my_device())), labels.to(my_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print_loss(epoch, batch, loss)
    return model


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which decisions does one process make alone? The first weights, which digits to read, how many at a time, in which order.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Wrap the model in <code>DistributedDataParallel</code>. Give the loader a <code>DistributedSampler</code> in place of <code>shuffle</code>, and divide its batch size by the
# world size. Tell the sampler each epoch before it begins.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sampler.set_epoch(epoch)</code> is the first line of an epoch, and <code>model.module</code> is the network inside its wrapper.
# </details>

# %% [markdown]
# The check trains in 1, 2, 3 and 4 real ranks on 48 digits and compares the weights with those of one process.

# %%
check(ddp_exercises.by_weights(train), **ddp_exercises.SIX_LINES)

# %% [markdown]
# Right or wrong, this is what *your* loop reads in two ranks: 16 digits, in two epochs of global batches of 8.

# %%
chapter_04.draw_training(train)

# %% [markdown]
# Here's a finished loop, folded up.


# %% jupyter={"source_hidden": true}
def train_with_ddp(model, data, global_batch, epochs):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(model.to(my_device()))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    loader = DataLoader(data, batch_size=global_batch // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, (images, labels) in enumerate(loader, 1):
            loss = cross_entropy(model(images.to(my_device())), labels.to(my_device()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print_loss(epoch, batch, loss)
    return model.module


# %%
check(ddp_exercises.by_weights(train_with_ddp), **ddp_exercises.SIX_LINES)

# %% [markdown]
# It reads these digits:

# %%
chapter_04.draw_training(train_with_ddp)

# %% [markdown]
# And these are the lines in which it differs from `train_alone`:

# %%
chapter_04.print_changed_lines(train_alone, train_with_ddp)

# %% [markdown]
# <details><summary>What each of them does</summary>
#
# | new | what it does |
# | --- | --- |
# | `rank, world_size` | say who I am, and how many we are |
# | `DistributedDataParallel(...)` | gives all ranks rank 0's weights, and averages gradients in `backward()` |
# | `DistributedSampler(...)` | deals out the digits |
# | `global_batch // world_size` | together, the ranks still take 32 digits |
# | `set_epoch(epoch)` | shuffles anew in each epoch |
# | `model.module` | the network without its wrapper |
#
# </details>

# %% [markdown]
# The heart of the loop is untouched: forward, `zero_grad`, `backward`, `step`. Will the two ranks still print the same losses?

# %% tags=["row-A3", "row-B3", "row-B8"]
results = launch(seeded, train_with_ddp, world_size=2)

# %% [markdown]
# They print different losses, because each is the mean over a rank's *own* 16 digits. Neither is the loss of the batch of 32; part 4 comes
# back to that.

# %% [markdown]
# Do the shards really cover the data, without overlap?
#
# **Predict.** There are 1,442 digits. How many of them does the sampler deal twice when there are five ranks?

# %%
dealt_twice = predict("digits that five ranks get twice", ...)


# %% tags=["row-B8"]
def my_shard():
    return list(DistributedSampler(training))


for world_size in (1, 2, 5):
    shards = launch(my_shard, world_size=world_size)
    dealt = Counter(digit for shard in shards for digit in shard)
    print(f"{world_size} rank(s): {len(shards[0])} digits each", end=", ")
    print(f"{len(training) - len(dealt)} missing")
show(chapter_04.last_digits(shards), "The last digits of each rank; a shaded one was dealt before.")
dealt_twice.measured(dealt.total() - len(dealt))

# %% [markdown]
# No digit is left out, and with two ranks none is dealt twice: 721 + 721 = 1,442. Five ranks would get 288.4
# digits each, so the sampler deals three digits twice to give all ranks the same number. Part 8 shows why it insists on that.

# %% [markdown]
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
# It refuses, with a misleading text: on CPUs, `device_ids` has to be left out. On a GPU it does something useful: [DDP then moves each
# input to that GPU](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html). The next cell shows it
# if you have one.


# %% tags=["nbval-ignore-output", "row-A6"] jupyter={"source_hidden": true}
def on_a_gpu():
    gpu = int(os.environ["LOCAL_RANK"])
    model = DistributedDataParallel(mlp().to(gpu), device_ids=[gpu])
    images = torch.zeros(4, 1, 28, 28)  # on the CPU: who moves them?
    print("images on", images.device, "outputs on", model(images).device)


gpus = len(hardware().gpus)
if gpus:
    launch(on_a_gpu, world_size=gpus, device="cuda")
else:
    print("There's no GPU here.")

# %% [markdown]
# Note that `gpu` is the **local** rank. With `rank`, as in the guide, a second machine asks for GPUs it doesn't have. That was the crash in
# [chapter 02](02_process_groups.ipynb). On CPUs, and for a model that one process spreads over several GPUs, write `DDP(model)`, without `device_ids`.

# %% [markdown]
# **Check yourself.** Your script has a `DistributedSampler` and `batch_size=32`. You start it in eight ranks instead of one, and change nothing else. What is the global batch?
#
# <details><summary>Answer</summary>
# 256. The loader's <code>batch_size</code> counts what one rank reads. There are an eighth as many steps per epoch, so it's a different training run.
# </details>

# %% [markdown]
# ## 2 · One model, or two that look alike?
#
# We follow all 203,530 weights, step by step. To make the test hard, each rank seeds its weights **differently**. `follow` trains with
# DDP in two ranks, and without it in a single process that takes the full batch of 32.


# %%
def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def my_batches(global_batch=32):
    local_batch = global_batch // dist.get_world_size()
    for batch in DataLoader(training, local_batch, sampler=DistributedSampler(training)):
        yield [tensor.to(my_device()) for tensor in batch]


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
# Three distances matter: from rank to rank, from the ranks to the single process, and, for comparison, how far training has moved the weights.

# %% tags=["row-A2"]
first, second = launch(follow, DistributedDataParallel)
alone = launch(follow, lambda network: network, world_size=1)[0]
curves = {
    "rank 0 to rank 1": (first - second).abs().amax(dim=1),
    "two ranks to one process": (first - alone).abs().amax(dim=1),
    "how far the weights moved": (alone - alone[0]).abs().amax(dim=1),
}
for name, curve in curves.items():
    print(f"after 20 steps, {name}: {format_difference(curve[-1])}")
show(chapter_04.distances(curves), "Three distances, step by step.")

# %% [markdown]
# Between the ranks the difference is **exactly 0 after every step**. Between the ranks and the single process there's only rounding: the mean of two
# means over 16 digits *is* the mean over 32, but the additions come in a different order. It's one model, and several workers have shared
# its batch.

# %% [markdown]
# The line at 1e-6 is a rule of thumb. A float32 carries about seven decimal digits, so one rounding changes a number of size 1 by about 1e-7, and several of them add up. What lies below the line
# can be rounding. What lies above it usually isn't, but part 4 shows an exception.

# %% [markdown]
# **Check yourself.** Would the proof also hold if one rank took 20 of the 32 digits and the other took 12?
#
# <details><summary>Answer</summary>
# No. DDP averages the ranks' gradients with equal weight, so each of the 12 digits would count more than each of the 20.
# The ranks would still agree with each other, but on a different model.
# </details>

# %% [markdown]
# ### Let the ranks compare themselves
#
# **Write** (10 minutes). During long training, the ranks must find out by themselves whether they're equal. `values` are this rank's weights, in one row. Return the largest difference of a weight
# between any two ranks, or `nan` if any rank has a `nan`: the same number on every rank. Leave `values` as it is.


# %%
def spread(values):
    raise NotImplementedError("about 8 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# You needn't compare every rank with every other. For one weight, which two ranks are farthest apart?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The one with the largest value and the one with the smallest. <code>all_reduce</code> finds both, for all weights at once, and overwrites
# its tensor, so give it copies. Don't rely on it to carry a <code>nan</code>: let each rank say separately whether it has one.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>largest = values.clone()</code>, then <code>dist.all_reduce(largest, dist.ReduceOp.MAX)</code>. The same with <code>MIN</code>, and with <code>MAX</code>
# for <code>has_nan = values.isnan().any().float()</code>.
# </details>

# %%
check(ddp_exercises.keeping_weights(spread), **ddp_exercises.SPREAD)

# %% [markdown]
# And this is what *your* function returns in three ranks, if one weight differs, and if one is `nan`:

# %%
chapter_04.draw_spread(spread)

# %% [markdown]
# Our answer is folded up:


# %% jupyter={"source_hidden": true}
def finished_spread(values):
    largest, smallest = values.clone(), values.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    has_nan = values.isnan().any().float()
    dist.all_reduce(has_nan, dist.ReduceOp.MAX)
    if has_nan:
        return torch.tensor(float("nan"))
    return (largest - smallest).max()


# %%
check(ddp_exercises.keeping_weights(finished_spread), **ddp_exercises.SPREAD)

# %% [markdown]
# It returns the same on every rank:

# %%
chapter_04.draw_spread(finished_spread)

# %% [markdown]
# Why does `finished_spread` ask for a `nan` separately? Here's what gloo's `MAX` and `MIN` find by themselves when one of three ranks has one, at one of three places:


# %%
def without_asking(rank_with_nan):
    differences = []
    for place in (100, 500, 900):
        values = torch.ones(1000)
        values[place] = torch.nan if dist.get_rank() == rank_with_nan else 1
        largest, smallest = values.clone(), values.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        dist.all_reduce(smallest, dist.ReduceOp.MIN)
        differences.append((largest - smallest).max().item())
    return differences


for rank in range(3):  # it's gloo's MAX and MIN that we ask about
    differences = launch(without_asking, rank, world_size=3, backend="gloo")[0]
    print(f"rank {rank} has a nan at place 100, 500, 900: MAX - MIN is {differences}")

# %% [markdown]
# A difference of 0 would have told you that all is well. For a `nan`, `<` and `>` are always false, so whether `MAX` and `MIN` keep it or lose it depends on which rank has it, and where.
# `finished_spread` is a good check for your own training: call it on `weights(model)` once an epoch, on
# all ranks, and stop unless the result is 0. The call costs two `all_reduce`s of the model's size, and one of a single number.

# %% [markdown]
# ## 3 · When do the ranks talk?
#
# "Weights are synchronised after every batch", says the guide. With `trace=True`, `launch` records everything a rank sends, and the
# line that sends it. In which lines of `follow` will rank 0 talk to rank 1?

# %% tags=["row-A8"]
trace = launch(follow, DistributedDataParallel, 3, trace=True).trace
calls = Counter((e.code, e.kind, e.bytes) for e in trace.of_rank(0) if e.kind != "wait")
for (code, kind, size), times in calls.items():
    print(f"{times} x {kind:10} of {size:7,} bytes in  {code}")
plot_timeline(trace, "The same calls of both ranks, in time.")

# %% [markdown]
# There's nothing in `optimizer.step()`: **weights are never synchronised after a batch.** They *start* equal, because DDP's constructor
# broadcasts rank 0's weights: 4 bytes × 203,530 = 814,120. They *stay* equal, because every `backward()` replaces each rank's gradient with the
# average, and equal weights minus equal gradients are equal.

# %% [markdown]
# Read the picture's collectives from left to right: first the constructor's three calls, then step 1's `all_reduce`, two small broadcasts and step 2's `all_reduce`, and last that of step 3.

# %% [markdown]
# And the small messages? Before that broadcast, the ranks compare how many parameters they have (8 bytes), and which shapes and strides these have (96).
# In the second forward, rank 0 tells the others which gradients to send together, and in which order (20 and 4). The next section says why.

# %% [markdown]
# ### Buckets
#
# DDP doesn't wait for the last gradient. It collects gradients in **buckets** and sends a bucket as soon as it's full. To see several, we take a
# deeper network and close a bucket as soon as it holds 1 MiB. (By default that's 1 MiB for the first bucket and 25 for each of the others.)


# %%
def deeper():
    layers = [nn.Flatten()]
    for size in (784, 512, 512):
        layers += [nn.Linear(size, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


# %% [markdown]
# Two kinds of hooks write a diary: one on each parameter, called when its gradient is computed, and a *communication hook*, called when a bucket
# goes out.


# %%
def watch(steps=2):
    network, diary = deeper().to(my_device()), []
    model = DistributedDataParallel(network, bucket_cap_mb=1)

    def bucket_goes_out(state, bucket):
        diary.append(f"bucket {bucket.index()}: {bucket.buffer().nbytes:,} bytes")
        return default_hooks.allreduce_hook(state, bucket)  # what DDP does by itself

    model.register_comm_hook(None, bucket_goes_out)
    for name, parameter in network.named_parameters():
        parameter.register_hook(lambda gradient, name=name: diary.append(name))
    for images, labels in islice(my_batches(), steps):
        diary.append("backward")
        cross_entropy(model(images), labels).backward()
    return diary


# %%
diary = launch(watch)[0]
text = " ".join(diary).replace(" bucket", "\n  -> bucket").replace("bytes ", "bytes\n          ")
for backward in text.split("backward ")[1:]:
    print("backward:", backward.strip())
second_backward = diary[diary.index("backward", 1) + 1 :]
show(chapter_04.buckets(second_backward), "When each bucket leaves.")

# %% [markdown]
# The first backward is DDP's rehearsal: one bucket with everything, sent at the end, while it notes in which order the gradients come,
# from the last layer to the first. From the second on, the last layers' bucket leaves while the
# first layers' gradients are still being computed. The picture shows this second backward.

# %% [markdown]
# ### By hand
#
# If that's all that DDP does, you can do it yourself. Broadcast rank 0's weights. Then average the gradients: an `all_reduce`, which **sums** by
# default, and a division. If the guide were right about synchronised weights, you could just as well average the weights. `by_hand` can do either.


# %%
@torch.no_grad()
def start_equal(model):
    for parameter in model.parameters():  # and buffers, in a network that has any
        dist.broadcast(parameter, src=0)


@torch.no_grad()
def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


# %%
def by_hand(make_optimizer, averaged):
    torch.manual_seed(dist.get_rank())
    model = mlp().to(my_device())
    model = DistributedDataParallel(model) if averaged == "DDP" else model
    start_equal(model)
    optimizer = make_optimizer(model.parameters(), lr=0.001)
    for images, labels in islice(my_batches(), 20):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        if averaged == "gradients":
            average([parameter.grad for parameter in model.parameters()])
        optimizer.step()
        if averaged == "weights":
            average(model.parameters())
    return weights(model)


# %% [markdown]
# **Predict.** With which optimiser does averaging the *weights* after each step give DDP's model, up to rounding: SGD (with momentum and weight decay), Adam, both, or neither?

# %%
weights_suffice = predict(
    "averaged weights give DDP's model with", ..., choices=("SGD", "Adam", "both", "neither")
)

# %% tags=["row-A8", "row-D6"]
differences = {}
sgd = functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)
for name, make_optimizer in {"SGD": sgd, "Adam": torch.optim.Adam}.items():
    ddp = launch(by_hand, make_optimizer, "DDP")[0]
    for averaged in ("gradients", "weights"):
        result = launch(by_hand, make_optimizer, averaged)[0]
        differences[f"{name}, {averaged}"] = (result - ddp).abs().max().item()
        print(f"{name}, averaged {averaged}:", format_difference((result - ddp).abs().max()))
show(
    chapter_04.difference_bars(differences, "DDP"),
    "The line, at 1e-6, is a rule of thumb: rounding usually stays below it.",
)
agrees = tuple(difference < 1e-6 for name, difference in differences.items() if "weights" in name)
verdicts = {(True, False): "SGD", (False, True): "Adam", (True, True): "both"}
weights_suffice.measured(verdicts.get(agrees, "neither"))

# %% [markdown]
# Averaged gradients give DDP's model with either optimiser. For SGD, averaging the weights works just as well, even with momentum and weight decay: SGD's step is
# linear in the gradients, so the mean of the ranks' steps is the step of the mean gradient. Adam divides by the root of a running mean of squared gradients, which isn't linear.

# %% [markdown]
# One more question before we look for mistakes, because you'll need to tell a mistake from rounding.
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
result = launch(by_hand, torch.optim.SGD, "gradients", world_size=3)[0]
difference = (result - ddp).abs().max().item()
print("three ranks: averaged gradients, difference to DDP", format_difference(difference))
with_three.measured("no" if difference > 1e-6 else "up to rounding" if difference else "exactly")

# %% [markdown]
# Two numbers have only one sum, and halving it is exact. Three numbers can be added in different orders, and dividing by three rounds. DDP divides every gradient by three first and then adds whole buckets; `average` adds one parameter at a time and divides afterwards. So the results above were equal bit for bit only because there were two ranks, on CPUs.

# %% [markdown]
# **Check yourself.** Why does DDP send buckets, while `average` sends one parameter after another?
#
# <details><summary>Answer</summary>
# Each message has a cost of its own, however small it is, and <code>average</code> only begins when backward is over. Chapter 06 puts numbers
# on both.
# </details>

# %% [markdown]
# ## 4 · Four mistakes that raise no error
#
# Each of these mistakes is made in a loop that does DDP's work by hand, and each time the loop runs to the end without an error. What does
# each mistake do to the ranks' weights?
#
# | run | somebody writes |
# | --- | --- |
# | one sampler for all | `DistributedSampler(training, num_replicas=1, rank=0)` |
# | no broadcast | no call of `start_equal(model)` |
# | no division | `dist.all_reduce(parameter.grad)`, and nothing after it |
# | one rank's loss | `print(loss.item())` |

# %% [markdown]
# You can watch two distances: from rank to rank, and to the single process of part 2.
#
# **Predict.** How many of the four mistakes leave the *first* distance at zero?

# %%
unseen = predict("mistakes of the four that leave the ranks equal", ...)

# %%
runs = {name: launch(mistaken, name, mlp, training) for name in ("no mistake", *MISTAKES)}
print("after 8 steps        rank to rank  to one process  printed loss is off by")
equal_ranks = 0
for name, run in runs.items():
    between_ranks, to_process = chapter_04.distances_of(run, alone)
    loss_error = (run[0]["printed"][-1] - chapter_04.loss_of_all(run)[-1]).abs()
    print(f"{name:20}{format_difference(between_ranks[8]):>13}", end="")
    print(f"{format_difference(to_process[8]):>16}   about {loss_error:.2f}")
    equal_ranks += name != "no mistake" and between_ranks[8] == 0
show(chapter_04.mistakes(runs, alone), "What each mistake does, step by step.")
unseen.measured(int(equal_ranks))

# %% [markdown]
# Only the missing broadcast makes the ranks differ. With one sampler for all, both ranks read the same 16 digits in every step, instead of
# 32 together. Without the division, both learn at twice the rate. In both cases the ranks agree perfectly, but on a wrong model. So compare
# with **one process**, not only between ranks.

# %% [markdown]
# The last mistake leaves the weights alone and misleads you: the curve you're judging by belongs to one rank. (In the other runs rank 0 prints the mean of both ranks' losses. The last
# column says how far the loss it prints in step 8 is from that mean.)

# %% [markdown]
# **Check yourself.** Summed gradients trained your model better than averaged ones. What have you found?
#
# <details><summary>Answer</summary>
# That your learning rate was too small. With plain SGD, a sum over two ranks is an average with twice the learning rate.
# </details>

# %% [markdown]
# ### The same loop for a language model
#
# A sampler can deal out digits because they form a list. A language model reads one long text and draws each batch as some random **windows**. There's
# no sampler, so only random numbers keep the ranks from reading the same ones. `SmallGPT` learns to continue *Pride and Prejudice*, letter by letter.

# %% jupyter={"source_hidden": true}
tokens, alphabet = novel()
print(tokens[:9].tolist(), "is", "".join(alphabet[token] for token in tokens[:9]))
loss_of_a_guess = math.log(len(alphabet))
print(f"{len(alphabet)} characters: a blind guess has the loss {loss_of_a_guess:.1f}")


def draw_windows(generators):
    starts = [torch.randint(len(tokens) - 32, (8, 1), generator=each) for each in generators]
    return tokens[torch.cat(starts) + torch.arange(33)]  # 8 windows from each generator


def small_gpt(dtype):
    return SmallGPT(len(alphabet), depth=1, context=32).to(my_device(), dtype)


# %% [markdown]
# The loop is the one you know, with AdamW (Adam with a weight decay that shrinks the weights directly), and with a limit on the norm of the gradient (**clipping**). `cross_entropy` wants the
# characters' scores in the second dimension, and the model returns them in the last one, so `.mT` swaps the two.


# %%
def train_on_windows(seeds, dtype=torch.float32, steps=20):
    seeds_here = seeds[dist.get_rank() :: dist.get_world_size()]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds_here]
    torch.manual_seed(seeds_here[0])
    model = DistributedDataParallel(small_gpt(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    losses = []
    for _ in range(steps):
        windows = draw_windows(generators).to(my_device())
        losses.append(cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:]))  # next letters
        optimizer.zero_grad()
        losses[-1].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
    return weights(model), torch.stack(losses).tolist()


# %% [markdown]
# What do two ranks learn if both draw with the same seed, "to be reproducible"? We compare them with two single
# processes: one reads 8 windows per step, the other the 2 × 8 windows that two seeds draw.

# %%
single = {
    "one process, 8 windows": launch(train_on_windows, [0], world_size=1)[0][0],
    "one process, 16 windows": launch(train_on_windows, [0, 1], world_size=1)[0][0],
}
differences = {}
for seeds in ([0, 0], [0, 1]):
    trained, losses = zip(*launch(train_on_windows, seeds))
    print(f"seeds {seeds}: rank 0's loss falls", end=" ")
    print(f"from about {losses[0][0]:.1f} to about {losses[0][-1]:.1f}")
    for name, reference in {"rank 1": trained[1], **single}.items():
        differences[f"{seeds} to {name}"] = (trained[0] - reference).abs().max().item()
show(
    chapter_04.difference_bars(differences, "rank 0"),
    "Rank 0, compared with rank 1 and with two single processes.",
)

# %% [markdown]
# With one seed, both ranks draw the same 8 windows, and the average of two equal gradients is that gradient. **Two ranks learn, on CPUs to the last bit, what one process learns from half of the data.** The ranks agree and the loss falls, so nothing looks wrong. The cure is `seed + rank`.

# %% [markdown]
# With two seeds, the ranks should learn what one process learns from all 16 windows. But the last bar crosses the line. Is it a mistake, or still rounding? With Adam, rounding weighs more than with SGD,
# because Adam divides small gradients by small numbers. Here's a test. In double precision, a difference that comes from rounding nearly
# vanishes, but one that comes from a mistake stays.

# %%
single_double = launch(train_on_windows, [0, 1], torch.float64, world_size=1)[0][0]
two_double = launch(train_on_windows, [0, 1], torch.float64)[0][0]
difference = (two_double - single_double).abs().max().item()
print("in double precision, 2 ranks to one process:", format_difference(difference))

# %% [markdown]
# It was rounding: with two seeds, the ranks do learn from all 16 windows. Note that the loop clips after `backward`, when DDP has already averaged the gradients. So all ranks find the same norm, and
# clipping needs no message.

# %% [markdown]
# ---
#
# **This is a good place to stop.** You can write a DDP loop, and you know the proof to ask for: **exactly 0 between ranks, rounding to one
# process.** You may close the notebook now. When you come back, run all cells up to here once more, and go on with part 5.

# %% [markdown]
# ## 5 · What belongs in a checkpoint?
#
# Long runs get interrupted. To have more to lose, we take a better network, a small convnet with batch normalisation and dropout, and SGD with
# momentum. The checkpoint has to hold everything that the next step depends on.


# %% jupyter={"source_hidden": true}
def convnet():
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(7 * 7 * 32, 10),
    )  # fmt: skip


# %%
def save_all(path, network, optimizer, step):
    generators = [None] * dist.get_world_size()
    dist.all_gather_object(generators, torch.get_rng_state())  # rank 0 knows only its own
    if dist.get_rank() == 0:
        parts = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(parts | {"position": step, "generators": generators}, path.with_suffix(".new"))
        # Whoever is killed before the next line still has the old file.
        os.replace(path.with_suffix(".new"), path)
    dist.barrier()  # nobody reads before the file is there


# %% [markdown]
# **One** rank writes, since all have the same parameters. (Each rank's batch normalisation updates its own running statistics, but at the start of every forward of this loop DDP
# replaces them with rank 0's.) But each rank has its own random generator, for dropout. So `all_gather_object` collects the states first; it's an `all_gather` of any Python objects.

# %% [markdown]
# **All** ranks read:


# %%
def load_all(saved):
    network = convnet()
    if "model" in saved:
        network.load_state_dict(saved["model"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    if "optimizer" in saved:
        optimizer.load_state_dict(saved["optimizer"])
    if "generators" in saved:
        torch.set_rng_state(saved["generators"][dist.get_rank()])
    return network, model, optimizer


# %% [markdown]
# Then the ranks go on from where the file says. A `DataLoader` can't start in the middle of an epoch
# ([torchdata's](https://github.com/meta-pytorch/data/tree/main/torchdata/stateful_dataloader) can), so `batches_from` skips what has been
# read already. A `DataLoader` draws a random number whenever an iteration starts, and a run that resumes in the middle of an epoch
# starts one more than the undisturbed run. So here it has a generator of its own, and leaves dropout's alone.


# %%
def batches_from(step):
    sampler, its_own = DistributedSampler(training), torch.Generator()
    local_batch = 64 // dist.get_world_size()
    loader = DataLoader(training, local_batch, sampler=sampler, generator=its_own)
    while True:
        epoch, done = divmod(step, len(loader))
        sampler.set_epoch(epoch)
        for batch in islice(loader, done, None):
            yield batch
            step += 1


# %%
def train_on(path, steps, forget=None):
    torch.manual_seed(dist.get_rank())  # each rank has its own dropout
    saved = torch.load(path) if path.exists() else {}
    saved.pop(forget, None)
    network, model, optimizer = load_all(saved)
    position, losses = saved.get("position", 0), []
    for images, labels in islice(batches_from(position), steps):
        loss = cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    save_all(path, network, optimizer, position + steps)
    return {"losses": losses, "weights": weights(network)}


# %% [markdown]
# One run of 34 steps goes undisturbed; an epoch of the small set has 23. A second run stops after 30, in the middle of an epoch, and all its
# processes end. New processes do the remaining 4.

# %% tags=["row-B5"]
folder = tempfile.TemporaryDirectory()
undisturbed_path, path = Path(folder.name, "undisturbed.pt"), Path(folder.name, "stopped.pt")
# On CPUs: a GPU's convolution may add in a new order each time.
undisturbed = launch(train_on, undisturbed_path, 34, backend="gloo")
stopped = launch(train_on, path, 30, backend="gloo")
checkpoint = path.read_bytes()
continued = launch(train_on, path, 4, backend="gloo")
for rank in range(2):
    difference = (undisturbed[rank]["weights"] - continued[rank]["weights"]).abs().max()
    print(f"rank {rank}: the weights differ by {format_difference(difference)}")
show(chapter_04.resumed(undisturbed, stopped, continued, 30), "One run whole, one in pieces.")

# %% [markdown]
# They're the same, to the last bit, on both ranks. And the file? A plain network reads it, in this notebook, without DDP, because `save_all` took the state
# of the network and not of its wrapper. How good is it on digits it has never seen?

# %%
network = convnet().eval()
network.load_state_dict(torch.load(path)["model"])
with torch.no_grad():
    batches = DataLoader(testing, 500)
    right = sum((network(images).argmax(1) == labels).sum() for images, labels in batches)
print(f"right: about {100 * right / len(testing):.1f} % of the test digits")
show(
    chapter_04.wrong_digits(network, testing), "Some that it gets wrong: the label, or its answer?"
)

# %% [markdown]
# Do you need every part of the checkpoint? Each run below resumes from step 30, as the complete one did, and forgets one part. Which one could be left out?


# %%
def resume(forget):
    path.write_bytes(checkpoint)  # on the CPU again, to compare bit for bit
    return launch(train_on, path, 4, forget, backend="gloo")[0]["weights"]


complete, differences = continued[0]["weights"], {}
for part in ("model", "optimizer", "position", "generators"):
    differences[f"without {part}"] = (resume(part) - complete).abs().max().item()
    print(f"without {part}: {format_difference(differences[f'without {part}'])}")
show(chapter_04.difference_bars(differences, "the complete one"), "What each missing part changes.")

# %% [markdown]
# None of them. *Position* means epoch and batch: without it, the run sees the same digits again. Without the *generators*, dropout leaves out different units.

# %% [markdown]
# **Check yourself.** Every rank calls `torch.save(..., "model.pt")`. What can go wrong?
#
# <details><summary>Answer</summary>
# Several processes write one file at the same time, and it may end up as a mixture. If each writes a file of its own, that's only waste, because the weights are equal.
# </details>

# %% [markdown]
# ## 6 · Fewer messages, and smaller ones
#
# If a batch doesn't fit into memory, take it in parts and add up their gradients (**gradient accumulation**). Only the last part has to talk. For
# the others there's DDP's `no_sync()`, which keeps a backward from sending. But what has to be inside it, only the backward or the forward as well? Here are two ways to take a global batch of 128 in parts.


# %%
def forward_inside(model, parts):
    for number, (images, labels) in enumerate(parts, 1):
        with model.no_sync() if number < len(parts) else nullcontext():
            loss = cross_entropy(model(images), labels) / len(parts)
            loss.backward()


def forward_outside(model, parts):
    for number, (images, labels) in enumerate(parts, 1):
        loss = cross_entropy(model(images), labels) / len(parts)
        with model.no_sync() if number < len(parts) else nullcontext():
            loss.backward()


# %%
def accumulate(one_batch, count, steps=5):
    torch.manual_seed(0)
    model = DistributedDataParallel(mlp().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for images, labels in islice(my_batches(128), steps):
        optimizer.zero_grad()
        one_batch(model, list(zip(images.chunk(count), labels.chunk(count))))
        optimizer.step()
    return weights(model)


# %% [markdown]
# **Predict.** How many times per step does DDP call `all_reduce`, with four parts and the forward outside `no_sync()`?

# %%
calls_outside = predict("all_reduce per step, four parts, forward outside", ...)

# %%
undivided, cost = launch(accumulate, forward_inside, 1, trace=True), {}
cost["one batch of 128"] = chapter_04.cost_per_step(undivided.trace, 5)
for one_batch in (forward_inside, forward_outside):
    run = launch(accumulate, one_batch, 4, trace=True)
    cost[f"4 parts, {one_batch.__name__}"] = chapter_04.cost_per_step(run.trace, 5)
    difference = format_difference((run[0] - undivided[0]).abs().max())
    print(f"{one_batch.__name__}: {difference} from the model of one batch")
show(chapter_04.cost_bars(cost), "Calls and bytes per step.")
calls_outside.measured(int(cost["4 parts, forward_outside"][0]))

# %% [markdown]
# With the forward **outside**, `no_sync` does nothing at all: DDP decides during the forward whether the coming backward will talk ([its
# docs warn of
# that](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync)).
# The model is right both ways, up to rounding, so only the trace gives the mistake away. The other thing to remember is dividing by the number of
# parts.

# %% [markdown]
# ### bfloat16
#
# In **mixed precision**, `autocast` computes in bfloat16 where that's safe. Forward and loss go inside it, [backward goes outside](https://docs.pytorch.org/docs/stable/amp.html#torch.autocast).
# A bfloat16 number is half as long as a float32. Does `all_reduce` send half the bytes?


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
    gradient = model.module[1].weight.grad
    return {"outputs": outputs, "loss": loss, "weights": weights(model), "gradients": gradient}


# %%
cost = {}
for name in ("autocast", "autocast and hook"):
    run = launch(mixed, name == "autocast and hook", trace=True)
    cost[name] = chapter_04.cost_per_step(run.trace, 40)
    difference = (run[0]["weights"] - run[1]["weights"]).abs().max()
    print(f"{name}: the ranks differ by {format_difference(difference)}")
print(*(f"{name}: {tensor.dtype}" for name, tensor in run[0].items()), sep="\n")
show(chapter_04.cost_bars(cost), "Calls and bytes per step.")

# %% [markdown]
# The weights, and so their gradients, stay float32: autocast alone sends as much as before. To halve the messages, you have to send the gradients themselves
# as bfloat16, with a communication hook that comes with torch. That rounds the gradients. But the ranks stay equal, since all of them receive
# the same rounded sum.

# %% [markdown]
# **Check yourself.** PyTorch's own [recipe for mixed precision](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html) uses a `GradScaler`
# with autocast. Why don't we?
#
# <details><summary>Answer</summary>
# A <code>GradScaler</code> belongs to float16, where small gradients underflow. bfloat16 has float32's range, with fewer digits.
# </details>

# %% [markdown]
# ## 7 · How much faster?
#
# The training is right. Is it faster, too? We let the network of part 1 go forward and backward, on one rank and on two, and count images per second:
# once with a global batch of 64 digits, once with 1,024. As a control, the two ranks do the same work under `no_sync`, without
# messages. The control shows what the *hardware* allows.


# %%
def measure(global_batch):
    model = DistributedDataParallel(mlp().to(my_device()))
    batch = [tensor.to(my_device()) for tensor in next(iter(DataLoader(training, global_batch)))]
    ways = {"no messages": model.no_sync, "DDP": nullcontext}
    return chapter_04.images_per_second(model, batch, ways)


# %% [markdown]
# `images_per_second` lets rank 0 compute the whole batch while the others wait. Then each rank computes its share in both ways. All this takes turns,
# step by step, and the quickest of 20 steps counts, because a busy machine can only slow a step down. If you've got four free cores, set `ranks = 4` below.

# %%
ranks = 2
ratios = {}
for global_batch in (64, 1024):
    rates = launch(measure, global_batch, world_size=ranks)[0]
    for name in ("no messages", "DDP"):
        ratio = rates[name] / rates["one rank"]
        ratios[f"{global_batch:,} digits, {name}"] = ratio
        print(f"{global_batch:,} digits, {name}: about {ratio:.2f} times as fast as one rank")
        print(f"    scaling efficiency: about {100 * ratio / ranks:.0f} %")
    of_control = rates["DDP"] / rates["no messages"]
    print(f"    DDP has about {100 * of_control:.0f} % of its control's speed")
show(chapter_04.speedups(ratios, ranks), "How far is DDP from its control, with which batch?")

# %% [markdown]
# **Scaling efficiency** is the speed-up divided by the number of ranks. Compare DDP with its control, not with the ideal. With 64 digits DDP lies far behind its control, and with 1,024 it comes nearer. Messages hold the gradient, which
# has as many numbers for 64 digits as for 1,024. So the more a rank computes in a step, the less talking weighs. (If other programs keep your cores busy, even the control may be no faster than one rank, or DDP may look faster than its control. Then run the cell again.)

# %% [markdown]
# The control's distance from the ideal comes from the machine:
# busy cores, shared memory. DDP's distance from the control is what talking costs: copying gradients into buckets, sending them, and
# waiting. For a cluster, [chapter 06](06_what_communication_costs.ipynb) computes these costs.

# %% [markdown]
# ## 8 · One batch fewer
#
# Why did the sampler insist on equal shards? Suppose somebody deals out 65 digits without a sampler: 33 for rank 0, 32 for rank 1, in batches of 16.

# %%
show(chapter_04.batches_by_rank([33, 32], 16), "Rank 0 has three batches and rank 1 has two.")

# %% [markdown]
# The next cell fails on purpose. On which rank, and in which line?


# %% tags=["raises-exception"]
def one_batch_fewer():
    shard = Subset(training, range(dist.get_rank(), 65, dist.get_world_size()))
    model = DistributedDataParallel(mlp())
    for images, labels in DataLoader(shard, batch_size=16):
        loss = cross_entropy(model(images), labels)
        loss.backward()
    print("done, after", len(shard), "digits")


launch(one_batch_fewer, timeout=5, backend="gloo")  # on a GPU the wait is in a different line

# %% [markdown]
# Rank 0 waits in `backward`, for an average with a rank that has no third batch. Rank 1's function has returned: it did
# everything right and is done. The report's last paragraph counts the calls: *3 times* on rank 0, *twice* on rank 1. No single line is
# wrong, but the number of calls is.

# %% [markdown]
# Because of one digit, a whole job can stand still until a timeout ends it: after ten minutes with NCCL, after thirty with gloo
# ([unless you say otherwise](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)). gloo only gives up sooner if rank 1's process ends, because that closes
# their connection. There are two cures. One is a `DistributedSampler`, with or without its own `drop_last=True`. The other is DDP's `Join`, which chapter 07 shows.

# %% [markdown]
# The `drop_last` of a *`DataLoader`* is no cure; it only helps by chance. Two ranks with 33 and 32 digits get equally many batches, but
# two with 48 and 47 don't:

# %%
for count in (33, 32, 48, 47):
    batches = len(DataLoader(range(count), batch_size=16, drop_last=True))
    print(f"{count} digits on a rank: {batches} batches")

# %% [markdown]
# **Check yourself.** All ranks have the same number of batches, but rank 0 skips a batch whose loss is `nan`. What happens?
#
# <details><summary>Answer</summary>
# The same: rank 0 makes one backward fewer, and the others wait at the end. Worse, after the skipped batch each of rank 0's gradients is averaged with those that the others computed for the batch before. So decide together, with an
# <code>all_reduce</code> of the flag.
# </details>

# %% [markdown]
# ## 9 · A script of your own
#
# Real training jobs are scripts. Yours will take three steps. Each is a function that a check tries in real ranks; together they go into
# a file that `torchrun` starts.

# %% [markdown]
# ### Step 1: join
#
# A script doesn't know who starts it. `torchrun` sets the variables of chapter 02. Slurm's `srun` calls `RANK`, `LOCAL_RANK` and `WORLD_SIZE` [`SLURM_PROCID`,
# `SLURM_LOCALID` and `SLURM_STEP_NUM_TASKS`](https://slurm.schedmd.com/srun.html#SECTION_OUTPUT-ENVIRONMENT-VARIABLES), and leaves `MASTER_ADDR` and `MASTER_PORT` to your batch script. And `launch` has made
# the group before it calls your function.
#
# **Write** (5 minutes) `join`: make the group unless there is one, and return this rank's `torch.device`.


# %%
def join():
    raise NotImplementedError("about 10 lines")


# %%
check(ddp_exercises.joining(join), **ddp_exercises.JOIN)

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>dist.is_initialized()</code> says whether there is a group. <code>dist.init_process_group()</code> reads <code>RANK</code>, <code>WORLD_SIZE</code>,
# <code>MASTER_ADDR</code> and <code>MASTER_PORT</code>.
# </details>
# <details><summary>Hint 2: the code</summary>
# If <code>"RANK" not in os.environ</code>, copy Slurm's variables to <code>RANK</code>, <code>LOCAL_RANK</code> and <code>WORLD_SIZE</code>. The device is
# <code>torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())</code>, or the CPU. (Slurm may show each process only its own GPU, which is number 0 then.)
# </details>

# %% [markdown]
# ### Step 2: one epoch
#
# **Write** (6 minutes) `train_epoch`. `model` is a DDP already. Take a step for each batch, with the norm of the averaged gradient limited to `clip`. Return the mean loss over **all samples
# of all ranks**: a rank's last batch may be smaller than the others.


# %%
def train_epoch(model, loader, optimizer, clip, device):
    raise NotImplementedError("about 12 lines")


# %%
check(ddp_exercises.over_an_epoch(train_epoch), **ddp_exercises.EPOCH)

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The mean is one sum divided by another. Which two numbers does every rank have to add up?
# </details>
# <details><summary>Hint 2: the code</summary>
# <code>total = torch.zeros(2, device=device)</code>; in each step <code>total[0] += loss.detach() * len(labels)</code> and
# <code>total[1] += len(labels)</code>. One <code>all_reduce</code> at the end. <code>nn.utils.clip_grad_norm_</code> goes between backward and step.
# </details>

# %% [markdown]
# ### Step 3: stop and go on
#
# **Write** (8 minutes) `save` and `load`. One rank writes, with `torch.save`. If it's killed while it writes, the old file stays as it was. And no rank goes on before the file is
# there. `load` fills model and optimiser, and returns the epoch that was saved, or 0 without a file. `path` is a `Path`, and `model` is a DDP.
# The file holds a dictionary with the parts `"model"`, `"optimizer"` and `"epoch"`.


# %%
def save(path, model, optimizer, epoch):
    raise NotImplementedError("about 6 lines")


def load(path, model, optimizer):
    raise NotImplementedError("about 6 lines")


# %%
check(ddp_exercises.stopping(save, load), **ddp_exercises.STOPPING)

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>save_all</code> in part 5 does all this, and gathers generators as well.
# </details>
# <details><summary>Hint 2: the code</summary>
# <code>torch.save(parts, path.with_suffix(".new"))</code>, <code>os.replace(path.with_suffix(".new"), path)</code>, and
# <code>dist.barrier()</code> on all ranks. In <code>load</code>, pass <code>map_location=next(model.parameters()).device</code>.
# </details>

# %% [markdown]
# ### Put together
#
# [train_ddp.py](train_ddp.py) is our script: about 100 lines, with part 5's network and sampler. Begin at its end, with `train`, and read upwards. To use a data set of your own, change the line that imports `digits`. Below, your
# functions take the place of the script's own. `torchrun` starts the result in two ranks, and `launch` runs the original.

# %%
with tempfile.TemporaryDirectory() as folder_of_script:
    script = Path(folder_of_script, "my_train_ddp.py")
    functions = (join, train_epoch, save, load)
    yours = chapter_04.write_script(script, "train_ddp.py", *functions)
    print("your functions in it:", ", ".join(yours) or "none yet, so it's our script as it is")
    same, tensors = chapter_04.same_tensors(train_ddp.train, script)
print(f"{same} of {tensors} tensors are the same, bit for bit")

# %% [markdown]
# So it makes no difference who starts the ranks. (The 16 tensors are the parameters and buffers of part 5's convnet. The line that begins with `[rank 0]` is the original's, under `launch`; what `torchrun`'s ranks print isn't shown.) To keep your script, replace `script` with a path of your own. (As chapter 02 said,
# `torchrun` serves its store on all addresses of the machine, so use it where you trust the network.)

# %% [markdown]
# ## What you know now

# %%
predict()

# %% [markdown]
# Two of these predictions are easy to get wrong. Only one mistake of the four makes the ranks differ, so comparing ranks misses the other three. And with the forward outside
# `no_sync`, DDP sends the gradients of every part.

# %% [markdown]
# DDP broadcasts the weights once, averages gradients in `backward`, and copies rank 0's batch-normalisation buffers in `forward`. You do the rest: deal out the data, divide the batch, reduce the
# loss, save once, and make sure all ranks make the same calls. In [05 · DDP from scratch](05_ddp_from_scratch.ipynb) you'll write DDP itself.
#
# Practise in [lab 04](../exercises/04_ddp_training.ipynb).
