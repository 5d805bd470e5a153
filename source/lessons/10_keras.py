# %% [markdown]
# # 10 · Keras 3 on DDP
#
# **A Keras model on the torch backend is a `torch.nn.Module`. So is wrapping it in DDP all there is to do?**
#
# In 70 minutes you learn to prove that training a Keras model on several ranks gives what one device would, to name what DDP doesn't see, and to use `fit()` on several ranks. No later chapter needs this one.
#
# **Hardware:** two cores; everything runs on the CPU. **Versions:** measured with Keras 3.15.1 and torch 2.15.0. **Before:** [09 · Many machines](09_many_machines.ipynb).
# **Next:** [11 · Capstone](11_capstone.ipynb). **Lab:** [10 · Keras statistics and callbacks](../exercises/10_keras.ipynb).
#
# Five cells ask you to **predict**, one to **write**.

# %% jupyter={"source_hidden": true}
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from IPython import get_ipython
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Before Keras: with this, a question for GPUs doesn't start CUDA, so we can fork.
from course_lessons import chapter_10
from course_lessons.chapter_10 import all_reduces, apart, fitting
from course_utils import check, digits, launch, predict

os.environ["KERAS_BACKEND"] = "torch"  # read once, by the import
os.environ["KERAS_TORCH_DEVICE"] = "cpu"
try:
    import keras
except ModuleNotFoundError:
    print("Needs Keras: pip install 'ddp-course[keras]' keras==3.15.1, then restart the kernel.")
    get_ipython().input_transformers_post.append(lambda lines: [])  # other cells do nothing

# %% [markdown]
# ## 1 · A convnet in forked ranks
#
# The network is that of [Keras's guide](https://keras.io/guides/distributed_training_with_torch/), a little trimmed. Images are NHWC, with the channel last. To train in a second we pool the pixels four by four and take ten times the guide's learning rate. The batch norms need a shorter memory too: momentum 0.8 instead of 0.99.

# %%
print("Keras", keras.__version__, "and torch", torch.__version__.partition("+")[0])
L = keras.layers


def convnet():
    layers = [keras.Input((28, 28, 1)), L.Rescaling(1 / 255), L.AveragePooling2D(4)]
    for filters, size, stride in ((12, 3, 1), (24, 6, 2), (32, 6, 2)):
        layers += [
            L.Conv2D(filters, size, strides=stride, padding="same", use_bias=False),
            L.BatchNormalization(scale=False, momentum=0.8),
            L.ReLU(),
        ]
    layers += [L.GlobalAveragePooling2D(), L.Dense(256, activation="relu")]
    return keras.Sequential([*layers, L.Dropout(0.5), L.Dense(10)])


# %% [markdown]
# `Rescaling` wants pixels from 0 to 255, so we undo what `digits` has done to them.


# %% tags=["row-C3"]
def nhwc(split):
    pixels = (split.data * 0.32485 + 0.30514) * 255
    return TensorDataset(pixels.permute(0, 2, 3, 1).contiguous(), split.targets)


training, testing = nhwc(digits(True)), nhwc(digits(False))
print("images:", *training.tensors[0].shape)

# %% [markdown]
# The guide starts its processes by `start_processes(..., start_method="fork")`, "to support notebooks": a new Python (`spawn`) wouldn't know the functions of your cells. `launch` does for you what the guide's `setup_device` and `cleanup` do. What does a forked rank find when it starts?

# %% tags=["row-C6", "row-C7"]
kernel, address = os.getpid(), training.tensors[0].data_ptr()


def look_around():
    print("its parent is this kernel:", os.getppid() == kernel)
    print("Keras is imported already:", "keras" in sys.modules)
    print("the images are where they were:", training.tensors[0].data_ptr() == address)
    print("its process group is ready:", dist.is_initialized())


results = launch(look_around, world_size=1, backend="gloo")
print("a process group in the kernel:", dist.is_initialized())

# %% [markdown]
# It finds everything that the kernel has, and a process group on top. That has a price: **what can't be forked mustn't be started in the kernel**. CUDA is first on that list. Keras on the torch backend asks for GPUs when it's imported, unless `KERAS_TORCH_DEVICE` names a device, as our first cell does. And `course_utils`, imported first, makes torch answer such questions without starting CUDA.

# %% [markdown]
# A step is torch's own, except for `training=True`, which part 4 is about.


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
# The guide gives each rank a `DistributedSampler` in a `DataLoader`. We take 64 images a step for all ranks together:


# %%
def dealt(shuffle=True):
    sampler = DistributedSampler(training, shuffle=shuffle)
    return DataLoader(training, batch_size=64 // dist.get_world_size(), sampler=sampler)


def train_epoch(network, optimizer, loader):
    """Returns the sum of this rank's losses, and how many images they are of."""
    sums = torch.zeros(2)
    for images, labels in loader:
        loss = take_step(network, optimizer, images, labels)
        sums += torch.tensor([loss * len(labels), len(labels)])
    return sums


# %% [markdown]
# And here is the training, which takes two epochs. After each of them a rank notes two losses: the mean over its own images, which is about what the guide prints, and the mean over both ranks' images.


# %%
def train():
    keras.utils.set_random_seed(dist.get_rank())
    model, loader, losses = convnet(), dealt(), []
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(trainable(model), lr=0.01)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        sums = train_epoch(ddp, optimizer, loader)
        own_loss = sums[0] / sums[1]
        dist.all_reduce(sums)
        losses.append((own_loss.item(), (sums[0] / sums[1]).item()))
    return losses


# %% [markdown]
# **Predict.** Two ranks note two losses in each of two epochs. How many different numbers are among the eight?

# %%
numbers = predict("different numbers among the eight", ...)

# %% tags=["row-C2", "row-C5", "row-C6", "row-C8"]
losses = launch(train, backend="gloo")
numbers.measured(len({loss for of_rank in losses for pair in of_rank for loss in pair}))
chapter_10.draw_losses(losses)

# %% [markdown]
# Two losses hold for both ranks, and four hold for one rank each. What the guide prints is **one rank's loss**, too. Reduce the sum and the count, as chapter 07 did, and every rank knows the loss of the epoch.
#
# The guide's loader has a fault as well, `DistributedSampler(shuffle=False)`:


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
# The guide's sampler never shuffles, whatever `set_epoch` says. A sampler shuffles by default, so leave the argument out.
#
# **Check yourself.** With 4 ranks you forget to divide, and leave `batch_size=64`. What has changed?
#
# <details><summary>Answer</summary>
# Each step takes 256 images, so an epoch has a quarter of the steps: a different experiment, not a faster one.
# </details>

# %% [markdown]
# ## 2 · Is it what one device would do?
#
# DDP is **synchronous**: the ranks split the batch, average gradients, and take one step. **Loosely coupled** ranks each go on with their own weights, and average *them* now and then. We try both with SGD. (Adam divides gradients by their size, so it would magnify rounding errors.)


# %%
def weights(model):
    return parameters_to_vector(trainable(model)).detach()


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


def my_shard(step):
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


# %% [markdown]
# **Predict** for three runs of ten steps whether the two ranks end with equal weights: synchronous, loosely coupled, and synchronous with `training=True`, which turns on dropout and batch norms. Answer with a list of `True` and `False`.

# %%
agree = predict("the two ranks end equal, in three runs", ..., count=3)

# %% tags=["row-C1"]
alone = {on: launch(ten_steps, on, world_size=1, backend="gloo")[0] for on in (False, True)}
runs = {"synchronous": (False,), "loosely coupled": (False, "loose")}
runs["synchronous, training=True"] = (True,)
distances = {}
for name, options in runs.items():
    ranks = launch(ten_steps, *options, backend="gloo")
    distances[name] = apart(*ranks), apart(ranks[0], alone[options[0]])
chapter_10.draw_distances(distances)
agree.measured([between == "exactly 0" for between, _ in distances.values()])

# %% [markdown]
# Synchronous is **one device, up to rounding**. Loosely coupled ranks averaged their weights halfway, and have drifted apart again since. In the last run the ranks agree with each other but not with one device, as it should be: each batch norm normalises by *its own* 32 images, and dropout draws masks for 32 images.
#
# **Check yourself.** Which run should your own project test?
#
# <details><summary>Answer</summary>
# The first. With the random and the batch-dependent parts off, any difference beyond rounding is a bug in how you distribute. Then turn them on, and expect that the ranks' weights agree.
# </details>

# %% [markdown]
# ## 3 · A yardstick for damage
#
# The rest of this chapter shows faults. Each is silent, so we measure what it costs: the **loss on the test digits**, with the fault and without it, each from three seeds. For that we take a small network, which has every part that can go wrong.


# %%
def perceptron():
    layers = [keras.Input((49,)), L.Dense(64, use_bias=False), L.BatchNormalization(momentum=0.8)]
    return keras.Sequential([*layers, L.ReLU(), L.Dropout(0.5), L.Dense(10)])


yardstick = chapter_10.Yardstick(training.tensors, testing.tensors)
yardstick.draw_shards()

# %% [markdown]
# It matters who gets which images. *Dealt*, each rank has half of a shuffled deck. With *own digits*, each rank reads files of its own, which have only five of the ten digits, as two hospitals have their own patients.
#
# `study` is the loop that you would take home; its comments number the cures.


# %%
def statistics(model):
    return [v.value.detach() for v in model.non_trainable_variables if "moving" in v.path]


def study(seed, shards, make=perceptron, training=True, masks=True, cure=average):
    keras.utils.set_random_seed(100 * seed + dist.get_rank())
    model = make()  # 1. built, since it has an Input
    ddp = DistributedDataParallel(model)
    model(torch.zeros(1, 49))  # for part 4's model, which is built too late; leave it out at home
    torch.manual_seed(100 * seed + dist.get_rank() * masks)  # 2. different masks on each rank
    optimizer = torch.optim.Adam(trainable(model), lr=0.02)
    for images, labels in yardstick.batches(seed, shards):
        take_step(ddp, optimizer, images, labels, training)  # 3. training=True in the call
    cure(statistics(model))  # 4. before anybody uses or saves them
    return yardstick.tested(model)


# %%
yardstick.measure("cured", study)
yardstick.draw(
    "Circles: three seeds; bar: their median; grey: the band of the cured, with which "
    "every fault is compared."
)

# %% [markdown]
# ## 4 · Before the first step
#
# A Keras layer makes its weights when it learns the shape of its input, so a model without `Input` has none yet. This cell is meant to fail.


# %% tags=["raises-exception"]
def wrap_unbuilt():
    DistributedDataParallel(keras.Sequential([L.Dense(8), L.Dense(2)]))


launch(wrap_unbuilt, backend="gloo")

# %% [markdown]
# "Doesn't have any parameter": **build before wrapping**. That was lucky: it failed loudly. A model of your own class may be built in part, and then DDP wraps what is there. Here the last layer is born in the first call:


# %%
class HalfBuilt(keras.Model):
    def __init__(self):
        super().__init__()
        self.body, self.head = keras.Sequential(perceptron().layers[:-1]), L.Dense(10)

    def call(self, images, training=None):
        return self.head(self.body(images, training=training))


yardstick.measure("last layer built late", study, make=HalfBuilt)
yardstick.draw("A layer that is built late costs far more with own digits than when dealt.")

# %% [markdown]
# No error. DDP doesn't know the last layer, so each rank has its own. Dealt, the loss is higher by a good third, and who would look for that? With own digits, a rank's last layer has never seen half of the digits. One call on a batch of zeros, **before** wrapping, is the cure.

# %% [markdown]
# Next: Keras layers don't look at torch's training flag. We call the network twice on the same images, in three ways.


# %%
def effects(network, model, images, **mode):
    drops = not torch.equal(network(images, **mode), network(images, **mode))
    moves = any(v.any().item() for v in statistics(model)[::2])
    return f"drops out: {drops!s:6} statistics move: {moves}"


def ways_to_train():
    model, images = convnet(), training.tensors[0][:64]
    ddp = DistributedDataParallel(model)
    print("ddp(x)                ", effects(ddp, model, images))
    print("ddp.train(), ddp(x)   ", effects(ddp.train(), model, images))
    print("ddp(x, training=True) ", effects(ddp, model, images, training=True))


results = launch(ways_to_train, world_size=1, backend="gloo")

# %% [markdown]
# Only **`training=True` in the call** counts. `ddp.train()`, with which a torch loop begins, changes nothing: the batch norms keep a mean of 0 and a variance of 1, without any error. The guide's own loop calls `model(inputs)`, so it trains without dropout and without batch statistics. What does that cost?

# %%
yardstick.measure("no training=True", study, training=False)
yardstick.draw("Without training=True the loss is higher in both panels.")

# %% [markdown]
# When neither batch norms nor dropout do their work, it's a different training, and a worse one, whichever images a rank has.
#
# ## 5 · Moving statistics
#
# In torch, DDP sends rank 0's **buffers** to all at the start of each step, and a batch norm's running mean is one (chapter 05). What is it in Keras?


# %%
def inventory():
    model = perceptron()
    for variable in model.non_trainable_variables:
        print(variable.path, *variable.shape, type(variable.value).__name__)
    print("buffers:", len([*model.buffers()]))


results = launch(inventory, world_size=1, backend="gloo")

# %% [markdown]
# No buffers at all: both moving statistics and the state of dropout's seed are `Parameter`s without a gradient, and DDP sends those **once**, when it wraps. `follow` trains for two epochs and notes the statistics after each step; after some steps it may call a `cure`.


# %%
def follow(cure=None, after=()):
    keras.utils.set_random_seed(0)
    model, history = perceptron(), []
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(trainable(model), lr=0.01)
    for step, batch in enumerate(yardstick.batches(0, "own digits")):
        take_step(ddp, optimizer, *batch)
        if step in after:
            cure(statistics(model))
        history.append(torch.cat(statistics(model)))
    return weights(model), torch.stack(history), torch.tensor(yardstick.tested(model))


# %% [markdown]
# **Predict.** After 22 steps, are the two ranks' weights equal? Are their statistics? And are their losses on the *same* test digits? Answer with a list of three `True` or `False`.

# %%
same = predict("equal on both ranks: weights, statistics, test loss", ..., count=3)

# %% tags=["row-C9"]
drifting = launch(follow, backend="gloo", trace=True)
rank_0, rank_1 = drifting
same.measured([torch.equal(*pair) for pair in zip(rank_0, rank_1)])

# %% [markdown]
# Equal weights, and yet two models: a checkpoint has the statistics of one rank only, and an accuracy added up over ranks mixes two different models.
#
# Three cures: average the statistics after **each step**, average them **once** before they are used, or take **rank 0's**, as DDP does with buffers.


# %%
def from_rank_0(tensors):
    for tensor in tensors:
        dist.broadcast(tensor, src=0)


cures = {"each step": (average, range(22)), "once": (average, [21])}
cures["rank 0's"] = from_rank_0, [21]
runs = {"no cure": drifting}
runs |= {name: launch(follow, *cure, backend="gloo", trace=True) for name, cure in cures.items()}
chapter_10.draw_drift({name: [history for _, history, _ in run] for name, run in runs.items()})

# %% tags=["row-C9"]
for name, run in runs.items():
    calls = len(run.trace.of_rank(0)) - len(drifting.trace.of_rank(0))
    rank_0, rank_1 = run[0][1][-1], run[1][1][-1]
    print(f"{name:10} ranks equal: {torch.equal(rank_0, rank_1)!s:6}{calls:4} more calls;", end=" ")
    print(f"from each step's {apart(rank_0, runs['each step'][0][1][-1])}")

# %% [markdown]
# All three make the ranks equal. But **once is as good as each step**, up to rounding, with 2 calls instead of 44: a moving statistic is a weighted sum, so it doesn't matter whether you sum first or average first. And training never reads these statistics.
#
# With rank 0's statistics the ranks are equal too, but half of the data is forgotten. Here's what that costs:

# %%
yardstick.measure("statistics of rank 0", study, cure=from_rank_0)
yardstick.draw("Statistics of rank 0 cost nothing when dealt, and something with own digits.")
both = [yardstick.losses[name, "own digits"] for name in ("statistics of rank 0", "cured")]
worse = (both[0] > both[1]).sum().item()
print("worse than averaged ones, from the same seed:", worse, "of 3 times")

# %% [markdown]
# Dealt, both ranks' statistics are estimates of the same thing. With own digits, rank 0's are estimates of the wrong thing.
#
# Keras has an option that sounds like the cure, `synchronized=True`. Does it work here?


# %%
def synchronized():
    try:
        L.BatchNormalization(synchronized=True)
    except ValueError as error:
        print(error)


results = launch(synchronized, world_size=1, backend="gloo")

# %% [markdown]
# Not in Keras 3.15, so `average` it is.
#
# **Check yourself.** Is the averaged moving *variance* that of one device?
#
# <details><summary>Answer</summary>
# Not quite. Each rank's variance is that within its own 32 images, so the average of both leaves out how far apart their means are. The averaged mean is right. In the lab you'll get the variance right, too.
# </details>

# %% [markdown]
# ## 6 · Whose dropout?
#
# Two ranks should drop different units. But the state of dropout's seed is a parameter, so DDP makes it equal on both. `masks_of` wraps the model, applies a cure, and then draws five masks.


# %%
def masks_of(seed, cure):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16,)), L.Dropout(0.5, seed=seed), L.Dense(1)])
    dropout = model.layers[0]
    DistributedDataParallel(model)
    cure(dropout.seed_generator.state)
    return torch.cat([dropout(torch.ones(1, 16), training=True) for _ in range(5)]) > 0


def no_cure(state):
    pass


def torchs_seed(state):
    torch.manual_seed(dist.get_rank())


# %%
def plus_rank(state):
    state.assign(state.value + torch.tensor([dist.get_rank(), 0]))


def far_apart(state):
    state.assign(state.value + torch.tensor([1_000_000 * dist.get_rank(), 0]))


tried = [(None, no_cure), (None, torchs_seed), (7, torchs_seed), (7, plus_rank), (7, far_apart)]
drawn = launch(lambda: [masks_of(*each) for each in tried], backend="gloo")
names = [f"seed={seed}\n{cure.__name__}" for seed, cure in tried]
chapter_10.draw_masks({name.replace("\n", ", "): pair for name, *pair in zip(names, *drawn)})

# %% [markdown]
# There are **two kinds of dropout**. Without a seed (and without a `noise_shape`), Keras 3.15 leaves dropout to torch's own generator: call `torch.manual_seed` with the rank, after any `set_random_seed`. With a seed, only the state counts, so change it after wrapping. And change it by a *large* step, because Keras adds the number of the call to it.

# %%
yardstick.measure("the same masks", study, masks=False)
yardstick.draw("The same masks on both ranks: the losses overlap with the cured ones.")

# %% [markdown]
# Dropping the same units on both ranks costs nothing that three seeds could show. With own digits the median lies a little above the cured one, but the circles overlap. Seed by rank all the same, since it's only one line. But if your loss is too high, look elsewhere.
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
    ddp.module.compile(optimizer(0.02), loss)
    images, labels = map(torch.cat, zip(*yardstick.batches(seed, shards)))
    made = [kind() for kind in callbacks]
    ddp.module.fit(images, labels, batch_size=64, callbacks=made, shuffle=False, verbose=0)
    return yardstick.tested(ddp.module)


# %% [markdown]
# **Predict** how many `all_reduce` each of its 22 steps makes.

# %%
messages = predict("all_reduce per step of fit()", ...)

# %%
run = launch(fitted, 0, "dealt", backend="gloo", trace=True)
messages.measured(all_reduces(run) / 22)

# %% [markdown]
# None: DDP prepares its averaging in the wrapper's `forward`. `ddp.module` has no wrapper, so each rank trains alone. Only `launch` warns.
#
# ### Write the cure
#
# **Write** (8 minutes). `fit()` hands all gradients to the optimiser's `apply`, as a list of tensors. Let it take the mean over **all ranks'** gradients first, then take Adam's step with that.


# %%
class AveragingAdam(keras.optimizers.Adam):
    def apply(self, gradients, trainable_variables=None):
        raise NotImplementedError("about 2 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which function of part 2 makes tensors equal to their mean over all ranks? And who still has to take the step?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Average in place, then call the parent's <code>apply</code> with the same arguments. Every rank gets the same gradients, so Adam's moments stay equal as well.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>super().apply(gradients, trainable_variables)</code> as the last line.
# </details>

# %%
check(fitting(AveragingAdam, keras), **chapter_10.fit_options(keras))

# %% [markdown]
# The picture shows how far *your* optimiser lets two ranks' weights part in four steps of `fit()`:

# %%
chapter_10.draw_parting(keras, AveragingAdam)

# %% [markdown]
# Our own answer is folded up here, with its picture.


# %% jupyter={"source_hidden": true}
class AveragingAdamDone(keras.optimizers.Adam):
    def apply(self, gradients, trainable_variables=None):
        average(gradients)
        super().apply(gradients, trainable_variables)


check(fitting(AveragingAdamDone, keras), **chapter_10.fit_options(keras))

# %%
chapter_10.draw_parting(keras, AveragingAdamDone)

# %% [markdown]
# `fit()` also has a good place for the cure of the statistics, a callback:


# %%
class AverageStatistics(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        average(statistics(self.model))


# %% [markdown]
# **Predict.** How many `all_reduce` does a step of `fit()` make with our optimiser, which averages one gradient after the other? Look at `perceptron`.

# %%
averaged = predict("all_reduce per step with AveragingAdamDone", ...)

# %%
cured = {"optimizer": AveragingAdamDone, "callbacks": [AverageStatistics]}
yardstick.measure("fit() as it comes", fitted)
run = yardstick.measure("fit() cured", fitted, **cured)
averaged.measured(all_reduces(run) // (2 * 3 * 22))  # two kinds of shards, three seeds
print("equal test losses on both ranks:", run[0] == run[1])
yardstick.draw(
    "Three faults leave the band in both panels: a late layer, a missing training=True, and\n"
    "fit() as it comes. With own digits the first and the last cost more than ten times as much.",
    "Which faults leave the grey band, and in which of both panels?",
)

# %% [markdown]
# The picture now has everything we measured. As it comes, `fit()` trains each rank alone: on half of the images when dealt, and on five of the ten digits with own digits. Cured, it's as good as the loop. What `fit()` **logs** is still one rank's loss.

# %% [markdown]
# But mind who gets the callback. This cell is meant to fail.


# %% tags=["raises-exception"]
def on_rank_0_only():
    fitted(0, "dealt", AveragingAdamDone, [AverageStatistics] * (dist.get_rank() == 0))


launch(on_rank_0_only, backend="gloo", timeout=15)

# %% [markdown]
# Collectives belong on **every** rank, files and prints on rank 0. So each rank gets the callback, and inside, after the collective, rank 0 may write. In the lab you build one.
#
# ## 8 · Keras's own distribution API
#
# `keras.distribution` promises all of this in two lines. What do they do here, on a machine without the four GPUs that the code names?


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
# `keras.distribution` accepts four GPUs that don't exist, trains on the CPU, which our first cell chose, and doesn't change a single bit. So let's ask which devices there are.


# %%
def ask_keras():
    for name in ("list_devices", "initialize"):
        try:
            getattr(keras.distribution, name)()
        except AttributeError as error:
            print(f"{name}(): {error}")


results = launch(ask_keras, world_size=1, backend="gloo")
for backend in ("jax", "tensorflow", "torch"):
    part = Path(keras.__file__).parent / "src/backend" / backend / "distribution_lib.py"
    print(f"Keras {keras.__version__} has a distribution part for {backend}:", part.exists())

# %% [markdown]
# In Keras 3.15.1, torch's backend has **no distribution part**, though [Keras's guide to that API](https://keras.io/guides/distribution/) names PyTorch too. One has been merged for a later release, with DDP in the trainer: [issue 23418](https://github.com/keras-team/keras/issues/23418) has the state. Until it's released, wrap the model in DDP yourself.

# %% [markdown]
# ## 9 · What each fault costs
#
# | what goes wrong | test loss with own digits, compared with the cured one's | cure |
# | --- | --- | --- |
# | layers built after wrapping | roughly 20 times | `Input`, or one call before |
# | `ddp.train()` alone | about 1.4 times | `training=True` in the call |
# | each rank's own moving statistics | about 1.1 times, with rank 0's | average before use |
# | the same dropout masks | about 1.2 times, which three seeds can't tell from nothing | seed by rank |
# | `fit()` as it comes | roughly 20 times | an optimiser that averages |

# %% [markdown]
# How much of that would you have noticed with dealt images? These are the costs in both:

# %%
faults = (
    "last layer built late",
    "no training=True",
    "statistics of rank 0",
    "the same masks",
    "fit() as it comes",
)
for name in faults:
    times = [yardstick.times_cured(name, kind) for kind in chapter_10.KINDS]
    print(f"{name:22} dealt about {times[0]:.1f}, own digits about {times[1]:.1f} times the cured")

# %% [markdown]
# With a well shuffled deck a late layer and `fit()` cost so little that you'd hardly look, because each rank has seen all ten digits by itself. A missing `training=True` costs more there, in proportion.

# %% [markdown]
# **Check yourself.** A colleague adds a layer with a state of its own, say a running quantile, by `add_weight(trainable=False)`. What do you ask?
#
# <details><summary>Answer</summary>
# Who makes it equal, and when. It's a parameter without a gradient: DDP sends it once and never again. And is an average of quantiles a quantile? No, so gather the data it's computed from.
# </details>
#
# How good were your predictions?

# %%
predict()

# %% [markdown]
# ## What you know now
#
# In each step of a Keras model, DDP averages the **gradients** of the weights that it found when it wrapped the model, and nothing more. All else is up to you: statistics, seeds and logs. Each takes only a line, once you know that it needs one.
#
# Practise in [lab 10](../exercises/10_keras.ipynb).
#
# **Next:** [11 · Capstone](11_capstone.ipynb) puts everything together.
