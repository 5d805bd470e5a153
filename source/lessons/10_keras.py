# %% [markdown]
# # 10 · Keras 3 on DDP
#
# **A Keras model on the torch backend is a `torch.nn.Module`. So is wrapping it in DDP all there is to do?**
#
# In 80 minutes you will be able to
#
# 1. train a Keras network in forked ranks, and prove it equal to one device;
# 2. name what DDP does not see in a Keras model: layers not yet built, moving statistics, `fit()`;
# 3. measure each of these faults, cure it, and measure again;
# 4. say what Keras's own distribution API does on the torch backend.
#
# **Hardware:** two cores; everything runs on the CPU. **Before:** [09 · Many machines](09_many_machines.ipynb).
# **Next:** [11 · Capstone](11_capstone.ipynb). **Lab:** [10 · Keras statistics and callbacks](../exercises/10_keras.ipynb).

# %%
import os
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from IPython import get_ipython
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# Before Keras, which looks for GPUs: this makes it look without starting CUDA, so we can fork.
from course_utils import digits, launch, show
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
# The network comes from a Keras guide on several GPUs. Three convolutions, each with a batch norm, then a head with dropout. Images are
# NHWC: the channel comes last, unlike in torch. We shorten the training to 1,442 digits, and the memory of the batch norms with it, from a
# momentum of 0.99 to 0.9.

# %%
L = keras.layers


def convnet(dropout_seed=None):
    layers = [keras.Input((28, 28, 1)), L.Rescaling(1 / 255)]
    for filters, size, stride in ((12, 3, 1), (24, 6, 2), (32, 6, 2)):
        layers += [
            L.Conv2D(filters, size, strides=stride, padding="same", use_bias=False),
            L.BatchNormalization(scale=False, momentum=0.9),
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
# And the training: Adam with a rate of 0.001, batches of 64 for all ranks together, two epochs. What the guide prints at the end of each is `own`.


# %% tags=["row-C2", "row-C6", "row-C8"]
def train(epochs=2):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    keras.utils.set_random_seed(rank)
    model = convnet()
    ddp = DistributedDataParallel(model)
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=64 // world_size, sampler=sampler)
    optimizer, losses = torch.optim.Adam(trainable(model), lr=0.001), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2)
        for images, labels in loader:
            loss = take_step(ddp, optimizer, images, labels)
            sums += torch.tensor([loss * len(labels), len(labels)])
        own = sums[0] / sums[1]
        dist.all_reduce(sums)
        losses.append((own.item(), (sums[0] / sums[1]).item()))
    return loader.batch_size, losses


results = launch(train, backend="gloo")
print("local batch: 64 /", len(results), "=", results[0][0])

# %% [markdown]
# **Predict.** Two ranks, two epochs, each with the rank's own mean loss and the one from reduced sums: how many different numbers?

# %% tags=["nbval-ignore-output"]
predicted_numbers = "?"
print("predicted:", predicted_numbers)
for rank, (_, losses) in enumerate(results):
    for epoch, (own, reduced) in enumerate(losses):
        print(f"rank {rank}, epoch {epoch}: own loss {own:.4f}, reduced {reduced:.4f}")

# %% tags=["row-C5"]
ours, theirs = (losses for _, losses in results)
print("different numbers:", len({loss for epoch in ours + theirs for loss in epoch}))
print("reduced loss is the same on both ranks:", [a[1] == b[1] for a, b in zip(ours, theirs)])
print("and falls:", ours[0][1] > ours[1][1])

# %% [markdown]
# Six: two losses that hold for both ranks, and four that hold for one. What the guide prints is **one rank's loss**. Reduce the sum and the
# count, as chapter 07 did, and every rank knows the loss of the epoch.
#
# Its loader has a second fault: `DistributedSampler(shuffle=False)`, and `shuffle=False` once more in the loader.


# %% tags=["row-C4"]
def epochs_differ(shuffle):
    sampler = DistributedSampler(training, shuffle=shuffle)
    orders = []
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


def my_share(step):
    """This rank's part of the 64 images of a step."""
    share = slice(dist.get_rank(), None, dist.get_world_size())
    images, labels = training[64 * step : 64 * (step + 1)]
    return images[share], labels[share]


def ten_steps(training_mode, coupling="synchronous"):
    keras.utils.set_random_seed(0)
    model = convnet()
    network = DistributedDataParallel(model) if coupling == "synchronous" else model
    optimizer = torch.optim.SGD(trainable(model), lr=0.05)
    for step in range(10):
        take_step(network, optimizer, *my_share(step), training=training_mode)
        if coupling == "loose" and step == 4:  # they meet halfway
            for parameter in trainable(model):
                dist.all_reduce(parameter.detach(), op=dist.ReduceOp.AVG)
    return weights(model)


# %% [markdown]
# **Predict.** How far is the weight that is furthest off, between the ranks, and from one device? With `training=True`, batch norm
# and dropout do their work; with `training=False` they are out of the way.

# %% tags=["row-C1"]
predicted = {"synchronous": "?", "loosely coupled": "?", "synchronous, training=True": "?"}


def apart(a, b):
    away = (a - b).abs().max().item()
    sizes = {0: "exactly 0", 1e-5: "under 1e-5", 1e-3: "under 1e-3"}
    return next((text for size, text in sizes.items() if away <= size), "over 1e-3")


print("predicted:", predicted)
for name, options in zip(predicted, [(False,), (False, "loose"), (True,)]):
    alone = launch(ten_steps, options[0], world_size=1, backend="gloo")[0]
    ranks = launch(ten_steps, *options, backend="gloo")
    print(f"{name:27} between ranks {apart(*ranks)}, from one device {apart(ranks[0], alone)}")

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
# ## 3 · Before the first step
#
# A Keras layer makes its weights when it learns the shape of its input, so a model without `Input` has none yet. This cell is meant to fail.


# %% tags=["raises-exception"]
def wrap_unbuilt():
    DistributedDataParallel(keras.Sequential([L.Dense(8), L.Dense(2)]))


launch(wrap_unbuilt, backend="gloo")

# %% [markdown]
# "Doesn't have any parameter": **build before wrapping**. This was the lucky case. A model of your own class may be built in part. **Predict:** what does DDP say
# then?

# %%
predicted_message = "?"


class TwoLayers(keras.Model):
    def __init__(self):
        super().__init__()
        self.first, self.second = L.Dense(8, name="first"), L.Dense(2, name="second")
        self.first.build((None, 4))

    def call(self, inputs):
        return self.second(self.first(inputs))


def wrap(build_all):
    keras.utils.set_random_seed(dist.get_rank())
    model = TwoLayers()
    if build_all:
        model(torch.zeros(1, 4))  # a call builds what is missing
    ddp = DistributedDataParallel(model)
    ddp(torch.ones(3, 4) + dist.get_rank()).sum().backward()
    return {"/".join(v.path.split("/")[-2:]): v.value.grad for v in model.trainable_variables}


# %%
print("predicted:", predicted_message)
for build_all in (False, True):
    ours, theirs = launch(wrap, build_all, backend="gloo")
    equal = [torch.equal(a, b) for a, b in zip(ours.values(), theirs.values())]
    print(f"built before: {build_all!s:5} equal gradients:", dict(zip(ours, equal)))

# %% [markdown]
# Nothing. The second layer, born after wrapping, has its own weights and its own gradients on each rank. One call on a batch of zeros, before wrapping,
# is the cure.
#
# Next: Keras layers do not look at torch's training flag. We call the network twice on the same images, in three ways. **Predict:** which
# way drops anything out, and moves the batch norms' statistics?

# %%
predicted_way = "?"


def ways():
    keras.utils.set_random_seed(0)
    model = convnet()
    ddp, (images, _) = DistributedDataParallel(model), training[:64]
    for way, options in (
        ("ddp(x)", {}),
        ("ddp.train(), ddp(x)", {}),
        ("ddp(x, training=True)", {"training": True}),
    ):
        if "train()" in way:
            ddp.train()
        drops = not torch.equal(ddp(images, **options), ddp(images, **options))
        moves = any(v.value.any() for v in model.non_trainable_variables if "mean" in v.path)
        print(f"{way:22} drops out: {drops!s:6} statistics move: {bool(moves)}")


print("predicted:", predicted_way)
results = launch(ways, world_size=1, backend="gloo")

# %% [markdown]
# Only **`training=True` in the call**. `ddp.train()`, which a torch loop begins with, is heard by nobody; the batch norms would go on with a mean of 0 and a variance of 1
# for ever, without any error.
#
# ## 4 · Statistics that drift
#
# DDP sends rank 0's **buffers** to all before each forward; in torch, a batch norm's running mean is one (chapter 07). What is it in Keras?


# %%
def inventory():
    model = convnet()
    for variable in model.non_trainable_variables[:2] + model.non_trainable_variables[-1:]:
        print(variable.path, *variable.shape, type(variable.value).__name__)
    print("non-trainable:", len(model.non_trainable_variables), "buffers:", len([*model.buffers()]))


results = launch(inventory, world_size=1, backend="gloo")

# %% [markdown]
# No buffers at all: the six moving statistics, and the state of dropout's seed, are `Parameter`s without a gradient. DDP sends these **once**, when it wraps. From then on each rank's
# statistics follow its own images. `follow` trains for an epoch and notes them after each step. It can call a `cure`, in each step or at the end.


# %%
def statistics(model):
    return [v.value.detach() for v in model.non_trainable_variables if "moving" in v.path]


def follow(cure=None, when=None):
    keras.utils.set_random_seed(0)
    model = convnet()
    ddp = DistributedDataParallel(model)
    optimizer, history = torch.optim.Adam(trainable(model), lr=0.001), []
    for step in range(22):
        take_step(ddp, optimizer, *my_share(step))
        if when == "each step":
            cure(statistics(model))
        history.append(torch.cat(statistics(model)))
    if when == "at the end":
        cure(statistics(model))
    images, labels = testing.tensors
    with torch.no_grad():
        test_loss = cross_entropy(model(images, training=False), labels)
    return torch.stack(history), torch.cat(statistics(model)), weights(model), test_loss


# %% [markdown]
# **Predict.** After 22 steps: are the weights of both ranks equal, their statistics, their losses on the *same* test digits?

# %% tags=["row-C9"]
predicted_equal = {"weights": "?", "statistics": "?", "test loss": "?"}


def equal(results):
    ours, theirs = results
    return [torch.equal(ours[part], theirs[part]) for part in (2, 1, 3)]


drifting = launch(follow, backend="gloo", trace=True)
print("predicted:", predicted_equal)
print("measured: ", dict(zip(predicted_equal, equal(drifting))))

# %% [markdown]
# Equal weights, and yet two models: they answer the same question differently. So a checkpoint of rank 0, and an accuracy added up over ranks, are of nobody's
# model.
#
# Three cures: average the statistics after **each step**, average them **once** before they are used, or take over **rank 0's**, as DDP does with buffers.


# %%
def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)


def from_rank_0(tensors):
    for tensor in tensors:
        dist.broadcast(tensor, src=0)


# %% [markdown]
# **Predict.** Which cures make the ranks equal? And how far are the statistics of the other two from those averaged in each step?

# %% tags=["row-C9"]
predicted_away = {"once": "?", "rank 0's": "?"}
cures = {"each step": (average, "each step"), "once": (average, "at the end")}
cures["rank 0's"] = (from_rank_0, "at the end")
runs = {"no cure": drifting}
runs |= {name: launch(follow, *cure, backend="gloo", trace=True) for name, cure in cures.items()}
print("predicted:", predicted_away)
for name, run in runs.items():
    calls = len(run.trace.of_rank(0)) - len(drifting.trace.of_rank(0))
    away = apart(run[0][1], runs["each step"][0][1])
    print(f"{name:10} ranks equal: {all(equal(run))!s:6}{calls:4} more calls;", end=" ")
    print(f"from each step's {away}")

# %%
figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
channel = (drifting[0][1] - drifting[1][1]).abs().argmax()  # the one that drifts most
for axes, name in zip(panels, ("no cure", "each step", "once")):
    lines = torch.stack([torch.cat([h, last[None]])[:, channel] for h, last, *_ in runs[name]])
    for rank, line in enumerate(lines - lines.mean(dim=0)):
        axes.plot(line, label=f"rank {rank}", **rank_style(rank) | {"markevery": 4})
    axes.set(title=name, xlabel="step")
    axes.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("one moving statistic,\naway from the ranks' mean")
panels[0].legend(frameon=False)
show(
    figure,
    "Left, the ranks end apart; middle, they never part; right, they part and meet at the end.",
)

# %% [markdown]
# All three make the ranks equal. But **once is as good as each step**, up to rounding, with 6 calls instead of 132: a moving statistic is a weighted sum of what each step
# saw, so the average of sums is the sum of averages; and training does not look at it. Rank 0's is equal everywhere as well, but forgets half of the data.
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
# Not quite. The variance within 32 images, averaged, leaves out how the means of the two halves differ. That is usually small. The mean would be right.
# </details>
#
# ## 5 · Whose dropout?
#
# Two ranks should drop different units, or half of the randomness is lost. The state of dropout's seed is a parameter, so DDP makes it equal. `masks` draws five times after
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


# %% [markdown]
# **Predict.** Which cures help a dropout layer without a seed, and which one with `seed=7`?

# %%
predicted_cures = {None: "?", 7: "?"}
drawn = {}
print("predicted:", predicted_cures)
for seed in (None, 7):
    for cure in (no_cure, torchs_seed, plus_rank, far_apart):
        ours, theirs = drawn[seed, cure] = launch(masks, seed, cure, backend="gloo")
        same, shifted = torch.equal(ours, theirs), torch.equal(ours[1:], theirs[:-1])
        said_of = (
            "the same masks" if same else "the same, one step later" if shifted else "other masks"
        )
        print(f"Dropout(0.5, seed={seed})  {cure.__name__:12} {said_of}")

# %% [markdown]
# The masks with `seed=7`, as a picture: a row for each call, a square for each unit, the dropped ones dark.

# %%
figure, panels = plt.subplots(2, 3, figsize=(9, 3.4), layout="constrained")
for column, cure in enumerate((no_cure, plus_rank, far_apart)):
    for rank, axes in enumerate(panels[:, column]):
        axes.imshow(drawn[7, cure][rank], cmap="cividis", aspect="auto")
        axes.set(xticks=[], yticks=range(5), ylabel=f"rank {rank}, step")
    panels[0, column].set_title(cure.__name__.replace("_", " "))
    panels[1, column].set_xlabel("16 units")
show(
    figure,
    "Left, equal; middle, rank 1 is one row ahead of rank 0; right, they have nothing in common.",
)

# %% [markdown]
# There are **two kinds of dropout**. Without a seed, Keras 3.15 leaves it to torch's own generator, and the state is not even read: seed torch by rank, after building. With a
# seed, only the state counts, so move it after wrapping. But not by the rank: Keras adds the number of the call to the seed, so rank 1 is rank 0, one step ahead. Move it *far*.
#
# ## 6 · `fit()` and its callbacks
#
# A Keras user would rather not write a loop. Does `ddp.module.fit(...)` train the wrapped model? **Predict** the messages per step.


# %%
def fit(optimizer):
    keras.utils.set_random_seed(0)
    model = convnet()
    DistributedDataParallel(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)
    loader = DataLoader(training, batch_size=32, sampler=DistributedSampler(training))
    logs = model.fit(loader, epochs=1, shuffle=False, verbose=0).history
    return weights(model), logs["loss"]


def all_reduces(run):
    return [event.kind for event in run.trace.of_rank(0)].count("all_reduce")


# %%
predicted_messages = "?"
run = launch(lambda: fit(keras.optimizers.SGD(0.05)), backend="gloo", trace=True)
print("predicted:", predicted_messages, "measured:", all_reduces(run) // 23)
print("weights equal on both ranks:", torch.equal(run[0][0], run[1][0]))

# %% [markdown]
# None. `fit()` calls the network inside, so the wrapper, whose forward prepares the averaging, is passed by. The ranks part ways and no error says so.
#
# The cure leaves DDP to its own: `fit()` hands all gradients to the optimiser, so let the **optimiser** average them. DDP has done its part when it made the ranks start
# equal.


# %%
class AveragingSGD(keras.optimizers.SGD):
    def apply(self, gradients, trainable_variables=None):
        for gradient in gradients:
            dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
        super().apply(gradients, trainable_variables)


run = launch(lambda: fit(AveragingSGD(0.05)), backend="gloo", trace=True)
print("all_reduce per step:", all_reduces(run) // 23)
print("weights equal on both ranks:", torch.equal(run[0][0], run[1][0]))
print("logged losses equal:", run[0][1] == run[1][1])

# %% [markdown]
# One message for each of ten variables, and equal weights. What `fit()` **logs** is still one rank's loss, and statistics and seeds need their cures as before. A good place
# for them is a callback. But mind who gets one:


# %% tags=["raises-exception"]
class AverageStatistics(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        average(statistics(self.model))


def fit_with(callbacks):
    keras.utils.set_random_seed(0)
    model = convnet()
    model.compile(AveragingSGD(0.05), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = (each[dist.get_rank() : 64 : 2] for each in training.tensors)
    model.fit(images, labels, callbacks=callbacks, shuffle=False, verbose=0)
    return torch.cat(statistics(model))


def on_rank_0_only():
    return fit_with([AverageStatistics()] if dist.get_rank() == 0 else [])


launch(on_rank_0_only, backend="gloo", timeout=3)

# %% [markdown]
# Collectives belong on **every** rank, files and prints on rank 0. So each rank gets the callback, and inside, after the collective, rank 0 may write. In the lab you
# build that one.

# %%
without = launch(fit_with, [], backend="gloo")
on_all = launch(lambda: fit_with([AverageStatistics()]), backend="gloo")
print("statistics equal without the callback:", torch.equal(*without))
print("with the callback on all ranks:       ", torch.equal(*on_all))

# %% [markdown]
# ## 7 · Keras's own distribution API
#
# `keras.distribution` promises all of this in two lines. **Predict:** what do they do here, on a machine without these four GPUs?


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
predicted_effect = "?"
print("predicted:", predicted_effect)
without, with_it = (launch(with_distribution, u, world_size=1, backend="gloo")[0] for u in (0, 1))
print("weights away from those without:", apart(without[0], with_it[0]))
print("all variables are on:", *with_it[1])

# %% [markdown]
# It accepts four GPUs that nobody has, trains on one device, and changes not a bit. Then let us ask which devices there are.


# %%
def ask_keras():
    for name in ("list_devices", "initialize"):
        try:
            getattr(keras.distribution, name)()
        except AttributeError as error:
            print(f"{name}(): {error}")


results = launch(ask_keras, world_size=1, backend="gloo")
backends = Path(keras.__file__).parent / "src/backend"
has_part = {
    b: (backends / b / "distribution_lib.py").exists() for b in ("jax", "tensorflow", "torch")
}
print("Keras", keras.__version__, "has a distribution part for:", has_part)

# %% [markdown]
# Whatever has to ask the backend fails, since torch's has **no distribution part** in this release, though Keras's guide names PyTorch too. (A part for torch has been proposed, as pull request 22638 of `keras-team/keras`.) Until then, DDP is the way.
#
# ## 8 · The whole of it
#
# What you would take home: part 1's loop, with its five cures marked.


# %%
def train_cured(epochs=4):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = convnet()  # 1. built, since it has an Input
    ddp = DistributedDataParallel(model)
    torch.manual_seed(rank)  # 2. dropout without a seed: other masks on each rank
    sampler = DistributedSampler(training)
    loader = DataLoader(training, batch_size=64 // world_size, sampler=sampler)
    optimizer = torch.optim.Adam(trainable(model), lr=0.001)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            take_step(ddp, optimizer, images, labels)  # 3. has training=True
        average(statistics(model))  # 4. before anybody uses or saves them
    images, labels = testing[rank::world_size]
    with torch.no_grad():
        right = (model(images, training=False).argmax(dim=1) == labels).sum()
    counts = torch.tensor([right, len(labels)])
    dist.all_reduce(counts)  # 5. figures of all ranks
    return weights(model), torch.cat(statistics(model)), counts


# %%
cured = launch(train_cured, backend="gloo")
names = ("weights", "moving statistics", "right answers, of")
for name, ours, theirs in zip(names, *cured):
    print(f"{name:18} on both ranks: {apart(ours, theirs)} apart")
right, count = cured[0][2].tolist()
print(f"{count} test digits, each judged once; over half of them rightly: {right > count / 2}")

# %% [markdown]
# | what DDP does not see | what you saw | cure |
# | --- | --- | --- |
# | layers built after wrapping | other gradients on each rank | `Input`, or one call before |
# | `ddp.train()` | no dropout, no statistics | `training=True` in the call |
# | moving statistics | one model, two answers | average them before use |
# | dropout's randomness | the same masks everywhere | `torch.manual_seed(rank)`; a state far apart |
# | `fit()` | no message at all | an optimiser that averages |
# | its logs | one rank's loss | reduce sum and count |
#
# **Check yourself.** A colleague adds a layer with a state of its own, say a running quantile, by `add_weight(trainable=False)`. What do you ask?
#
# <details><summary>Answer</summary>
# Who makes it equal, and when. It is a parameter without a gradient: DDP sends it once and never again. And is an average of quantiles a quantile? No; then gather what it is
# made from.
# </details>
#
# ## What you know now
#
# DDP promises equal **trainable weights**, and nothing more. In torch, buffers and habit hide the rest; in Keras, all that is not a gradient is yours: statistics, seeds, logs. Each
# takes a line, once you know to look.
#
# **Next:** [11 · Capstone](11_capstone.ipynb) puts everything together.
