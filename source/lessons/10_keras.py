# %% [markdown]
# # 10 · Keras 3 on DDP
#
# **A Keras model on the torch backend is a `torch.nn.Module`. So is wrapping it in DDP all there is to do?**
#
# This chapter is an elective: nothing later builds on it. In 70 minutes you will be able to
#
# 1. train a Keras network in forked ranks, and prove it equal to one device;
# 2. name what DDP does not see in a Keras model: layers not yet built, moving statistics, `fit()`;
# 3. say what each of these faults costs in test loss, and when it costs nothing that you could notice;
# 4. say what Keras's own distribution API does on the torch backend.
#
# **Hardware:** two cores; everything runs on the CPU. **Before:** [09 · Many machines](09_many_machines.ipynb).
# **Next:** [11 · Capstone](11_capstone.ipynb). **Lab:** [10 · Keras statistics and callbacks](../exercises/10_keras.ipynb).
#
# Six cells ask you to **predict**: put your answer in place of the three dots, and a later cell shows it beside what real ranks did.

# %% jupyter={"source_hidden": true}
import os
import sys
from itertools import islice
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from IPython import get_ipython
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Before Keras, which looks for GPUs: this makes it look without starting CUDA, so we can fork.
from course_utils import digits, launch, predict, show
from course_utils.pictures.style import rank_style

os.environ["KERAS_BACKEND"] = "torch"  # read once, by the import
os.environ["KERAS_TORCH_DEVICE"] = "cpu"
try:
    import keras
except ModuleNotFoundError:
    print("Needs Keras: pip install -c constraints.txt -e '.[keras]', then restart the kernel.")
    get_ipython().input_transformers_post.append(lambda lines: [])  # other cells do nothing

# %% [markdown]
# ## 1 · A convnet in forked ranks
#
# The network comes from [Keras's guide on several GPUs](https://keras.io/guides/distributed_training_with_torch/). Three convolutions, each with a batch norm, then a head with dropout. Images are
# NHWC: the channel comes last, unlike in torch. To train in a second, we pool the pixels four by four and take ten times the guide's learning rate. A batch norm's memory
# must be short as well, so its momentum is 0.8 instead of 0.99.

# %%
L = keras.layers


def convnet(dropout_seed=None):
    layers = [keras.Input((28, 28, 1)), L.Rescaling(1 / 255), L.AveragePooling2D(4)]
    for filters, size, stride in ((12, 3, 1), (24, 6, 2), (32, 6, 2)):
        layers += [
            L.Conv2D(filters, size, strides=stride, padding="same", use_bias=False),
            L.BatchNormalization(scale=False, momentum=0.8),
            L.ReLU(),
        ]
    layers += [L.GlobalAveragePooling2D(), L.Dense(256, activation="relu")]
    return keras.Sequential([*layers, L.Dropout(0.5, seed=dropout_seed), L.Dense(10)])


# %% [markdown]
# `Rescaling` wants pixels from 0 to 255, so we undo what `digits` has done to them.


# %% tags=["row-C3"]
def nhwc(split):
    pixels = (split.data * 0.32485 + 0.30514) * 255
    return TensorDataset(pixels.permute(0, 2, 3, 1).contiguous(), split.targets)


training, testing = nhwc(digits(True)), nhwc(digits(False))
print("images:", *training.tensors[0].shape)

# %% [markdown]
# The guide has four functions of its own around the training loop. Our launcher does the same steps:
#
# | the guide | what it does | here |
# | --- | --- | --- |
# | `setup_device` | address, fixed port, process group, this rank's GPU | `launch`, before your function runs |
# | `prepare_dataloader` | a `DistributedSampler` in a `DataLoader` | two lines of `train` |
# | `per_device_launch_fn` | all of the above, then the loop, in each process | `train`, which `launch` runs |
# | `cleanup` | `destroy_process_group()` | `launch`, when `train` has returned |
#
# It starts its processes by `start_processes(..., start_method="fork")`, *because it is a notebook*: a new Python
# (`spawn`) would not know the functions of your cells. What does a forked rank find?

# %% tags=["row-C6", "row-C7"]
kernel, address = os.getpid(), training.tensors[0].data_ptr()


def what_a_rank_finds():
    print("its parent is this kernel:", os.getppid() == kernel)
    print("Keras is imported already:", "keras" in sys.modules)
    print("the images are where they were:", training.tensors[0].data_ptr() == address)
    print("its process group is ready:", dist.is_initialized())


results = launch(what_a_rank_finds, world_size=1, backend="gloo")
print("a process group in the kernel:", dist.is_initialized())

# %% [markdown]
# Everything, without a file or an import. That is why `launch` forks, too. The price: **what cannot be forked must not be started in the
# kernel**. CUDA is first on that list, and `import keras` on the torch backend looks for GPUs, which by default starts CUDA; every later rank
# would fail on its GPU. `course_utils`, imported first, makes torch ask the driver's library instead.
#
# A step is torch's own, but for `training=True`, which part 3 is about.


# %%
def trainable(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def take_step(network, optimizer, images, labels, training=True):
    loss = cross_entropy(network(images, training=training), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# %% [markdown]
# And the training: Adam, batches of 64 for all ranks together, two epochs.


# %%
def dealt(shuffle=True):
    """The guide's sampler and loader; 64 images a step for all ranks together."""
    sampler = DistributedSampler(training, shuffle=shuffle)
    return DataLoader(training, batch_size=64 // dist.get_world_size(), sampler=sampler)


def train_epoch(network, optimizer, loader):
    """Returns the sum of this rank's losses, and how many images they are of."""
    sums = torch.zeros(2)
    for images, labels in loader:
        loss = take_step(network, optimizer, images, labels)
        sums += torch.tensor([loss * len(labels), len(labels)])
    return sums


# %%
def train():
    keras.utils.set_random_seed(dist.get_rank())
    model, loader, losses = convnet(), dealt(), []
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(trainable(model), lr=0.01)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        sums = train_epoch(ddp, optimizer, loader)
        own = sums[0] / sums[1]  # what the guide prints
        dist.all_reduce(sums)
        losses.append((own.item(), (sums[0] / sums[1]).item()))
    return loader.batch_size, losses


# %% tags=["row-C2", "row-C6", "row-C8"]
results = launch(train, backend="gloo")
print("local batch: 64 /", len(results), "=", results[0][0])

# %% [markdown]
# **Predict.** Two ranks, two epochs, each with the rank's own mean loss and the one from reduced sums: how many different numbers?

# %%
numbers = predict("different numbers among the eight", ...)

# %% tags=["row-C5"]
for rank, (_, losses) in enumerate(results):
    for epoch, (own, reduced) in enumerate(losses):
        print(f"rank {rank}, epoch {epoch}: own loss about {own:.3f}, reduced about {reduced:.3f}")
numbers.measured(len({loss for _, losses in results for epoch in losses for loss in epoch}))

# %% [markdown]
# Six: two losses that hold for both ranks, and four that hold for one. What the guide prints is **one rank's loss**. Reduce the sum and the
# count, as chapter 07 did, and every rank knows the loss of the epoch.
#
# The guide's loader has a second fault: `DistributedSampler(shuffle=False)`, and `shuffle=False` once more in the loader.


# %% tags=["row-C4"]
def epochs_differ(shuffle):
    sampler, orders = dealt(shuffle).sampler, []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    return orders[0] != orders[1]


print("the guide's sampler shuffles:", launch(epochs_differ, False, backend="gloo"))
print("the default sampler shuffles:", launch(epochs_differ, True, backend="gloo"))

# %% [markdown]
# It never shuffles, whatever `set_epoch` says. A sampler shuffles by default; leave both `shuffle=False` out.
#
# **Check yourself.** With 4 ranks you forget to divide, and leave `batch_size=64`. What has changed?
#
# <details><summary>Answer</summary>
# Each step takes 256 images, so an epoch has a quarter of the steps: another experiment, not a faster one.
# </details>
#
# ## 2 · Is it what one device would do?
#
# Chapter 04 set data parallel against model parallel, and **synchronous** against loosely coupled. DDP is the first of each: split the
# batch, compute, average the gradients, take one step. **Loosely coupled** training lets each rank go on with its own weights, and
# averages *them* now and then. We try both: ten steps on fixed batches, with SGD. (Adam divides every gradient by its own size, so it
# would blow up the rounding in tiny ones.)


# %%
def weights(model):
    return parameters_to_vector(trainable(model)).detach()


def my_shard(step):
    """This rank's shard of the 64 images of a step."""
    shard = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = training[64 * step : 64 * (step + 1)]
    return images[shard], labels[shard]


# %%
def ten_steps(training_mode, coupling="synchronous"):
    keras.utils.set_random_seed(0)
    model = convnet()
    network = DistributedDataParallel(model) if coupling == "synchronous" else model
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    for step in range(10):
        take_step(network, optimizer, *my_shard(step), training=training_mode)
        if coupling == "loose" and step == 4:  # they meet halfway
            average(parameter.detach() for parameter in trainable(model))
    return weights(model)


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


# %% [markdown]
# How far is the weight that is furthest off, between the ranks, and from one device? With `training=True`, batch norm
# and dropout do their work; with `training=False` they are out of the way.


# %% jupyter={"source_hidden": true}
def apart(a, b):
    away = (a - b).abs().max().item()
    sizes = {0: "exactly 0", 1e-5: "under 1e-5", 1e-3: "under 1e-3"}
    return next((text for size, text in sizes.items() if away <= size), "over 1e-3")


# %% tags=["row-C1"]
alone = {on: launch(ten_steps, on, world_size=1, backend="gloo")[0] for on in (False, True)}
ways = {"synchronous": (False,), "loosely coupled": (False, "loose")}
for name, options in (ways | {"synchronous, training=True": (True,)}).items():
    ranks = launch(ten_steps, *options, backend="gloo")
    one = alone[options[0]]
    print(f"{name:27} between ranks {apart(*ranks)}, from one device {apart(ranks[0], one)}")

# %% [markdown]
# Synchronous is **one device, up to rounding**, and the ranks agree to the last bit. Loosely coupled ranks met halfway, and have parted since. In the last line the ranks agree with each
# other, but not with one device, and should not: each batch norm normalises by *its* 32 images instead of all 64, and dropout draws other masks.
#
# **Check yourself.** So which line is the one to test in your own project?
#
# <details><summary>Answer</summary>
# The first. With the random and the batch-dependent parts off, any difference beyond rounding is a bug in how you distribute. Then turn them on, and
# expect that the ranks agree.
# </details>
#
# ## 3 · A yardstick for damage
#
# The rest of this chapter shows faults. Each is silent, so we have to measure what it costs: train with the fault and without, and compare the **loss on the test digits**. One run
# proves little, so we train from three seeds, and a network small enough for that. It has all that can go wrong: a batch norm, dropout, a last layer.
# The pixels are pooled beforehand, once for all runs.


# %%
def perceptron():
    layers = [keras.Input((49,)), L.Dense(64, use_bias=False), L.BatchNormalization(momentum=0.8)]
    return keras.Sequential([*layers, L.ReLU(), L.Dropout(0.5), L.Dense(10)])


def pooled(dataset):
    """Seven times seven numbers from 0 to 1 of each image, and the labels."""
    images, labels = dataset.tensors
    return avg_pool2d(images.permute(0, 3, 1, 2) * (1 / 255), 4).flatten(1), labels


small_training, small_testing = pooled(training), pooled(testing)


# %% [markdown]
#
# It also matters who gets which images. `dealt` gives each rank its half of a shuffled deck, as a `DistributedSampler` does. With `own digits` rank 0 has those below 5 and rank 1 the others. That happens
# when each rank reads its own files, such as two hospitals with patients of their own.


# %%
def batches(seed, shards):
    """Yields two epochs of 22 batches; each holds 32 of this rank's images, and their labels."""
    images, labels = small_training
    generator, rank = torch.Generator().manual_seed(seed), dist.get_rank()
    for _ in range(2):
        order = torch.randperm(len(labels), generator=generator)
        own_digits = order[(labels[order] < 5) == (rank == 0)]
        own = own_digits if shards == "own digits" else order[rank::2]
        for chosen in own.split(32)[:22]:
            yield images[chosen], labels[chosen]


# %% [markdown]
# The statistics of batch norms get a part of their own, part 5; there you will see why they are averaged.


# %%
def statistics(model):
    return [v.value.detach() for v in model.non_trainable_variables if "moving" in v.path]


@torch.no_grad()
def tested(model):
    """Returns loss and accuracy on the test digits."""
    images, labels = small_testing
    outputs = model(images, training=False)
    right = (outputs.argmax(dim=1) == labels).float().mean()
    return cross_entropy(outputs, labels).item(), right.item()


# %% [markdown]
# `study` is the training loop that you would take home, and its comments number the cures. Its parameters switch off the first three, one at a time. Without the fourth, the model is tested as well.


# %%
def study(seed, shards, make=perceptron, training=True, own_masks=True):
    keras.utils.set_random_seed(100 * seed + dist.get_rank())
    model = make()  # 1. built, since it has an Input
    ddp = DistributedDataParallel(model)
    model(torch.zeros(1, 49))  # builds what is missing; too late for DDP
    torch.manual_seed(100 * seed + dist.get_rank() * own_masks)  # 2. other masks on each rank
    optimizer = torch.optim.Adam(trainable(model), lr=0.01)
    for images, labels in batches(seed, shards):
        take_step(ddp, optimizer, images, labels, training)  # 3. training=True in the call
    uncured = tested(model)
    average(statistics(model))  # 4. before anybody uses or saves them
    return *tested(model), *uncured


# %% jupyter={"source_hidden": true}
KINDS, SEEDS = ("dealt", "own digits"), range(3)


def over_seeds(trained=study, **fault):
    """Trains from three seeds with each kind of shards; returns what each rank has tested."""

    def all_runs():
        return [[trained(seed, kind, **fault) for seed in SEEDS] for kind in KINDS]

    return launch(all_runs, backend="gloo", timeout=120, trace=True)


def told(name, tests):
    loss, accuracy = tests.unbind(dim=-1)
    spread = "about {:.2f} to about {:.2f}".format(*loss.aminmax())
    right = f"about {100 * accuracy.median():.0f} % right"
    print(f"{name:34} loss about {loss.median():.2f}, {spread}; {right}")


# %% [markdown]
# All cures on, three seeds, the model of rank 0: this is what each fault is compared with. `find`, folded away, trains three times with each kind of shards; the first number is the median.

# %% jupyter={"source_hidden": true}
found, recorded = {}, {}


def keep(name, run, cured=True):
    chosen = slice(0, 2) if cured else slice(2, 4)  # of what `study` returns
    for shards, tests in zip(KINDS, torch.tensor(list(run)).transpose(0, 1)):
        found[name, shards] = tests[..., chosen]
        told(f"{name}, {shards}", found[name, shards][0])


def find(name, **fault):
    recorded[name] = over_seeds(**fault)
    keep(name, recorded[name])


def times_cured(name, shards):
    fault, cured = (found[key, shards][0, :, 0].median() for key in (name, "cured"))
    return fault / cured


# %%
find("cured")

# %% [markdown]
# ## 4 · Before the first step
#
# A Keras layer makes its weights when it learns the shape of its input, so a model without `Input` has none yet. This cell is meant to fail.


# %% tags=["raises-exception"]
def wrap_unbuilt():
    DistributedDataParallel(keras.Sequential([L.Dense(8), L.Dense(2)]))


launch(wrap_unbuilt, backend="gloo")

# %% [markdown]
# "Doesn't have any parameter": **build before wrapping**. This was the lucky case. A model of your own class may be built in part, and then DDP wraps what is there. Here
# it is our network, but its last layer is born in the first call.


# %%
class HalfBuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.body, self.head = keras.Sequential(perceptron().layers[:-1]), L.Dense(10)

    def call(self, images, training=None):
        return self.head(self.body(images, training=training))


# %%
find("last layer built late", make=HalfBuilt)

# %% [markdown]
# No error. DDP does not know the last layer, so each rank has its own, with weights and gradients of its own, and what the layers below learn is an average for both. With dealt images the loss is a third
# higher, more than three seeds differ by, but who would look for it? With its own digits a rank's last layer has never seen half of the digits, and gets half of the test wrong. One call on a batch of zeros, **before** wrapping, is the cure.
#
# Next: Keras layers do not look at torch's training flag. We call the network twice on the same images, in three ways.


# %%
def effects(network, model, images, **mode):
    """Whether two calls drop other units, and whether the moving means move."""
    drops = not torch.equal(network(images, **mode), network(images, **mode))
    moves = any(v.any().item() for v in statistics(model)[::2])
    return f"drops out: {drops!s:6} statistics move: {moves}"


# %%
def ways_to_train():
    model, images = convnet(), training.tensors[0][:64]
    ddp = DistributedDataParallel(model)
    print("ddp(x)                ", effects(ddp, model, images))
    print("ddp.train(), ddp(x)   ", effects(ddp.train(), model, images))
    print("ddp(x, training=True) ", effects(ddp, model, images, training=True))


results = launch(ways_to_train, world_size=1, backend="gloo")

# %% [markdown]
# Only **`training=True` in the call**. `ddp.train()`, which a torch loop begins with, is heard by nobody; the batch norms go on with a mean of 0 and a variance of 1
# for ever, without any error.
#
# **Predict.** Without `training=True`, how many times the cured test loss do we get?

# %%
unheard = predict("dealt, without training=True, in cured test losses", ...)

# %%
find("no training=True", training=False)
unheard.measured(times_cured("no training=True", "dealt"), within=0.3, about=True)

# %% [markdown]
# Without batch norm and dropout it is another training, and a worse one, whichever images a rank has.
#
# ## 5 · Statistics that drift
#
# DDP sends rank 0's **buffers** to all at the beginning of each step; in torch, a batch norm's running mean is one (chapter 07). What is it in Keras?


# %%
def inventory():
    model = perceptron()
    for variable in model.non_trainable_variables:
        print(variable.path, *variable.shape, type(variable.value).__name__)
    print("buffers:", len([*model.buffers()]))


results = launch(inventory, world_size=1, backend="gloo")

# %% [markdown]
# No buffers at all: the two moving statistics, and the state of dropout's seed, are `Parameter`s without a gradient. DDP sends these **once**, when it wraps. From then on each rank's
# statistics follow its own images. `follow` trains for an epoch and notes them after each step; after some steps it may call a `cure`.


# %%
def follow(cure=None, after=()):
    keras.utils.set_random_seed(0)
    model, history = perceptron(), []
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(trainable(model), lr=0.01)
    for step, batch in enumerate(islice(batches(0, "own digits"), 22)):
        take_step(ddp, optimizer, *batch)
        if step in after:
            cure(statistics(model))
        history.append(torch.cat(statistics(model)))
    return weights(model), torch.stack(history), torch.tensor(tested(model))


# %% [markdown]
# **Predict.** After 22 steps: are the weights of both ranks equal, their statistics, their losses on the *same* test digits? Three times `True` or `False`.

# %%
same = predict("equal on both ranks: weights, statistics, test loss", ...)

# %% tags=["row-C9"]
drifting = launch(follow, backend="gloo", trace=True)
ours, theirs = drifting
same.measured([torch.equal(*both) for both in zip(ours, theirs)])

# %% [markdown]
# Equal weights, and yet two models: they answer the same question differently. So a checkpoint has the statistics of one rank only, and an accuracy added up over ranks mixes two different models.
#
# Three cures: average the statistics after **each step**, average them **once** before they are used, or take over **rank 0's**, as DDP does with buffers.


# %%
def from_rank_0(tensors):
    for tensor in tensors:
        dist.broadcast(tensor, src=0)


# %%
cures = {"each step": (average, range(22)), "once": (average, [21])}
cures["rank 0's"] = from_rank_0, [21]
runs = {"no cure": drifting}
runs |= {name: launch(follow, *cure, backend="gloo", trace=True) for name, cure in cures.items()}

# %% tags=["row-C9"]
for name, run in runs.items():
    calls = len(run.trace.of_rank(0)) - len(drifting.trace.of_rank(0))
    ours, theirs, wanted = run[0][1][-1], run[1][1][-1], runs["each step"][0][1][-1]
    print(f"{name:10} ranks equal: {torch.equal(ours, theirs)!s:6}{calls:4} more calls;", end=" ")
    print(f"from each step's {apart(ours, wanted)}")

# %% jupyter={"source_hidden": true}
figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
ours, theirs = (result[1][-1] for result in drifting)
channel = (ours - theirs)[:64].abs().argmax()  # the one of 64 means that drifts most
for axes, name in zip(panels, ("no cure", "each step", "once")):
    for rank, (_, history, _) in enumerate(runs[name]):
        axes.plot(history[:, channel], label=f"rank {rank}", **rank_style(rank) | {"markevery": 4})
    axes.set(title=name, xlabel="step")
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("one moving mean")
panels[0].legend(frameon=False)
show(
    figure,
    "Left, the ranks end apart; middle, they never part; right, they part and meet at the end.",
)

# %% [markdown]
# All three make the ranks equal. But **once is as good as each step**, up to rounding, with 2 calls instead of 44: a moving statistic is a weighted sum of what each step
# saw, so the average of sums is the sum of averages; and training does not look at it. Rank 0's is equal everywhere as well, but forgets half of the data.
#
# What does it cost to forget it? **Predict:** rank 0's own statistics, in three runs with its own digits.

# %%
forgotten = predict("own digits, rank 0's statistics, in cured test losses", ...)

# %%
keep("statistics of rank 0", recorded["cured"], cured=False)  # the same models of rank 0
forgotten.measured(times_cured("statistics of rank 0", "own digits"), within=0.3, about=True)
worse = found["statistics of rank 0", "own digits"][0] > found["cured", "own digits"][0]
print("worse than averaged ones, from the same seed:", worse[:, 0].sum().item(), "of 3 times")

# %% [markdown]
# With dealt images, both ranks' statistics are estimates of the same thing, and the loss is the cured one. With own digits, rank 0's are estimates of the wrong thing, and each of the three models pays for it, with the same weights.
#
# Keras has a cure by name. Does it work here?


# %%
def synchronized():
    try:
        L.BatchNormalization(synchronized=True)
    except ValueError as error:
        print(error)


results = launch(synchronized, world_size=1, backend="gloo")

# %% [markdown]
# No. `average` it is.
#
# **Check yourself.** Is the averaged moving *variance* that of one device?
#
# <details><summary>Answer</summary>
# Not quite. The variance within 32 images, averaged, leaves out how the means of the two halves differ. The mean would be right. In the lab you put it right.
# </details>
#
# ## 6 · Whose dropout?
#
# Two ranks should drop different units. The state of dropout's seed is a parameter, so DDP makes it equal. `masks` draws five times after
# wrapping and a cure, of which we try four.


# %%
def masks(seed, cure):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16,)), L.Dropout(0.5, seed=seed), L.Dense(1)])
    dropout = model.layers[0]
    DistributedDataParallel(model)
    cure(dropout.seed_generator.state)
    return torch.cat([dropout(torch.ones(1, 16), training=True) for _ in range(5)]) > 0


# %%
def no_cure(state):
    pass


def torchs_seed(state):
    torch.manual_seed(dist.get_rank())


def plus_rank(state):
    state.assign(state.value + torch.tensor([dist.get_rank(), 0]))


def far_apart(state):
    state.assign(state.value + torch.tensor([1_000_000 * dist.get_rank(), 0]))


# %% jupyter={"source_hidden": true}
def compared(ours, theirs):
    shifted = torch.equal(ours[1:], theirs[:-1])
    if torch.equal(ours, theirs):
        return "the same masks"
    return "the same, one step later" if shifted else "other masks"


# %%
all_cures = no_cure, torchs_seed, plus_rank, far_apart
tried = [(seed, cure) for seed in (None, 7) for cure in all_cures]
drawn = launch(lambda: [masks(*each) for each in tried], backend="gloo")
for (seed, cure), *both in zip(tried, *drawn):
    print(f"Dropout(0.5, seed={seed})  {cure.__name__:12} {compared(*both)}")

# %% [markdown]
# There are **two kinds of dropout**. Without a seed, Keras 3.15 leaves it to torch's own generator, and the state is not even read: seed torch by rank, after building. With a
# seed, only the state counts, so move it after wrapping. But not by the rank: Keras adds the number of the call to the seed, so rank 1 is rank 0, one step ahead. Move it *far*.
#
# **Predict.** And what does it cost to drop the same units on both ranks?

# %%
alike = predict("dealt, the same masks, in cured test losses", ...)

# %%
find("the same masks", own_masks=False)
alike.measured(times_cured("the same masks", "dealt"), within=0.3, about=True)

# %% [markdown]
# Nothing that three seeds could show: the two ranges overlap. Set the seeds by rank all the same, since it is one line; but if your loss is too high, look elsewhere.
#
# ## 7 · `fit()` and its callbacks
#
# A Keras user would rather not write a loop. Does `ddp.module.fit(...)` train the wrapped model?


# %%
def fitted(seed, shards, optimizer=keras.optimizers.Adam, callbacks=()):
    """What `study` does, by fit()."""
    keras.utils.set_random_seed(100 * seed)
    ddp = DistributedDataParallel(perceptron())
    torch.manual_seed(100 * seed + dist.get_rank())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ddp.module.compile(optimizer(0.01), loss)
    images, labels = map(torch.cat, zip(*batches(seed, shards)))
    made = [kind() for kind in callbacks]
    ddp.module.fit(images, labels, callbacks=made, shuffle=False, verbose=0)
    return tested(ddp.module)


# %% [markdown]
# **Predict** the messages of each of its 44 steps.

# %%
messages = predict("all_reduce per step of fit()", ...)


# %%
def all_reduces(run):
    return [event.kind for event in run.trace.of_rank(0)].count("all_reduce")


# %%
run = launch(fitted, 0, "dealt", backend="gloo", trace=True)
messages.measured(all_reduces(run) / 44)

# %% [markdown]
# None. `fit()` calls the network inside, so the wrapper, whose forward prepares the averaging, is passed by. The ranks part ways and no error says so.
#
# The cure bypasses DDP: `fit()` hands all gradients to the optimiser, so let the **optimiser** average them. DDP has done its part when it made the ranks start
# equal. And `fit()` has a good place for the cure of the statistics, a callback.


# %%
class AveragingAdam(keras.optimizers.Adam):
    def apply(self, gradients, trainable_variables=None):
        average(gradients)
        super().apply(gradients, trainable_variables)


class AverageStatistics(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        average(statistics(self.model))


# %%
cured = {"optimizer": AveragingAdam, "callbacks": [AverageStatistics]}
find("fit() as it comes", trained=fitted)
find("fit() cured", trained=fitted, **cured)

# %%
run, steps = recorded["fit() cured"], 2 * 3 * 44  # of two kinds and three seeds
print("all_reduce per step:", all_reduces(run) // steps, "equal test losses:", run[0] == run[1])

# %% [markdown]
# As it comes, each rank trains alone on its shard. With dealt images that is a model from half of the images, with a loss a quarter higher; the other rank's work is lost. With own digits it is a model that knows
# five digits. Cured, there is one message for each of the five gradients, and one model, as good as the loop's. What `fit()` **logs** is still one rank's loss.
#
# But mind who gets the callback. This cell is meant to fail.


# %% tags=["raises-exception"]
def on_rank_0_only():
    fitted(0, "dealt", AveragingAdam, [AverageStatistics] * (dist.get_rank() == 0))


launch(on_rank_0_only, backend="gloo", timeout=15)

# %% [markdown]
# Collectives belong on **every** rank, files and prints on rank 0. So each rank gets the callback, and inside, after the collective, rank 0 may write. In the lab you
# build that one.
#
# ## 8 · Keras's own distribution API
#
# `keras.distribution` promises all of this in two lines. What do they do here, on a machine without these four GPUs?


# %%
def with_distribution(use_it):
    keras.utils.set_random_seed(0)
    if use_it:
        gpus = [f"gpu:{number}" for number in range(4)]
        mesh = keras.distribution.DeviceMesh((4,), ["batch"], gpus)
        data_parallel = keras.distribution.DataParallel(device_mesh=mesh)
        keras.distribution.set_distribution(data_parallel)
    model = convnet()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(*training[:256], batch_size=64, shuffle=False, verbose=0)
    return weights(model), {str(v.value.device) for v in model.variables}


# %%
without, with_it = (launch(with_distribution, u, world_size=1, backend="gloo")[0] for u in (0, 1))
print("weights away from those without:", apart(without[0], with_it[0]))
print("all variables are on:", *with_it[1])

# %% [markdown]
# It accepts four GPUs that nobody has, trains on the one device that our first cell has chosen, the CPU, and changes not a bit. Then let us ask which devices there are.


# %%
def ask_keras():
    for name in ("list_devices", "initialize"):
        try:
            getattr(keras.distribution, name)()
        except AttributeError as error:
            print(f"{name}(): {error}")


# %%
results = launch(ask_keras, world_size=1, backend="gloo")
for backend in ("jax", "tensorflow", "torch"):
    part = Path(keras.__file__).parent / "src/backend" / backend / "distribution_lib.py"
    print(f"Keras {keras.__version__} has a distribution part for {backend}:", part.exists())

# %% [markdown]
# Whatever has to ask the backend fails, since torch's has **no distribution part** in this release, though Keras's guide names PyTorch too. (For a later release one is merged, with DDP in the trainer;
# [issue 23418](https://github.com/keras-team/keras/issues/23418) says how far it is.) Until then, wrap it in DDP yourself.
#
# ## 9 · What each fault costs
#
# All that was measured, in one picture: a point is the test loss of rank 0's model from one seed, and the band reaches from the lowest to the highest of the cured runs.

# %% jupyter={"source_hidden": true}
figure, panels = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True, layout="constrained")
names = list(dict.fromkeys(name for name, _ in found))
for axes, shards in zip(panels, ("dealt", "own digits")):
    cured = found["cured", shards][0, :, 0]
    axes.axvspan(cured.min(), cured.max(), color="0.88")
    for row, name in enumerate(names):
        loss = found[name, shards][0, :, 0]
        axes.plot(loss, [row] * len(loss), "o", color="0.25", mfc="none")
        axes.plot(loss.median(), row, marker="|", ms=16, mew=2.5, color="black")
    axes.set(xscale="log", xlim=(0.15, 6), title=shards, xlabel="test loss (log scale)")
    axes.set_xticks([0.2, 0.3, 0.5, 1, 2, 5], ["0.2", "0.3", "0.5", "1", "2", "5"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_yticks(range(len(names)), names)
panels[0].invert_yaxis()
show(
    figure,
    "Dealt, a late layer, a missing training=True and fit() as it comes are off the band;\n"
    "with own digits so are they, the first and last of them by more than ten times.",
)

# %% [markdown]
# | what DDP does not see | what you saw | with own digits it costs | cure |
# | --- | --- | --- | --- |
# | layers built after wrapping | a last layer for each rank | half the digits | `Input`, or one call before |
# | `ddp.train()` | no dropout, no statistics | some loss, and so it does when dealt | `training=True` in the call |
# | moving statistics | one model, two answers | some loss | average them before use |
# | dropout's randomness | the same masks everywhere | nothing that we could measure | `torch.manual_seed(rank)`; a state far apart |
# | `fit()` | no message at all | half the digits | an optimiser that averages |
# | its logs | one rank's loss | | reduce sum and count |
#
# A well shuffled deck hides most of it. There statistics and masks cost nothing that we could measure, and a late layer or `fit()` a quarter to a third of the loss, where with own digits they cost more than ten times. One rank is then about as good as the other,
# and you do not notice that they are two. A missing `training=True` is not hidden: when dealt, it costs even more, 1.8 times the cured loss against 1.4.
#
# **Check yourself.** A colleague adds a layer with a state of its own, say a running quantile, by `add_weight(trainable=False)`. What do you ask?
#
# <details><summary>Answer</summary>
# Who makes it equal, and when. It is a parameter without a gradient: DDP sends it once and never again. And is an average of quantiles a quantile? No; then gather what it is
# made from.
# </details>
#
# How good were your predictions?

# %%
predict()

# %% [markdown]
# ## What you know now
#
# DDP promises equal **trainable weights**, and nothing more. In torch, buffers and habit hide the rest; in Keras, all that is not a gradient is yours: statistics, seeds, logs. Each
# takes a line, once you know to look.
#
# **Next:** [11 · Capstone](11_capstone.ipynb) puts everything together.
