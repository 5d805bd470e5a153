# %% [markdown]
# # 07 · Data and batches
#
# **Which samples does each rank see, and does an epoch on many ranks lose none and count none twice?**
#
# In 45 minutes you will be able to
#
# 1. say which sample goes to which rank at which step, from a sampler or a stream;
# 2. train and measure on shards of unequal length, and get what one process gets;
# 3. decide which seeds each rank has to itself, and who downloads.
#
# **Hardware:** any computer; all ranks here use gloo on the CPU, so that you can compare every digit.
# **Before:** [06 · What communication costs](06_what_communication_costs.ipynb).
# **Next:** [15 · The numbers of many ranks](15_numerics.ipynb), or straight on to [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb).
# **Lab:** [07 · Data, batches and numerics](../exercises/07_data_batches_numerics.ipynb).

# %% jupyter={"source_hidden": true}
import copy
import functools
import os
import random
import tempfile
import time
from collections import Counter
from itertools import chain
from pathlib import Path
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy, dropout
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Subset,
    get_worker_info,
)
from torch.utils.data._utils import worker as loading

from course_utils import check, digits, launch, predict, show

# %% [markdown]
# ## 1 · Who is dealt which sample?
#
# Twelve samples, two ranks, two samples per step: three steps make an epoch. The samples are their own numbers, so a batch tells which ones it holds. `when` says where `set_epoch` is called.


# %%
def deal(when, shuffle=True):
    sampler = DistributedSampler(range(12), shuffle=shuffle)
    loader = DataLoader(range(12), batch_size=2, sampler=sampler)
    epochs = [[], [], []]
    for epoch, steps in enumerate(epochs):
        if when == "before the loop":
            sampler.set_epoch(epoch)
        for batch in loader:
            if when == "inside the loop":
                sampler.set_epoch(epoch)
            steps.append(batch.tolist())
    return epochs


# %% [markdown]
# **Predict.** In how many different orders are the samples dealt in three epochs: without `set_epoch`, with it *before* the loop over batches, and with it *inside* that loop? Answer with a list of three numbers.

# %%
orders = predict("orders in three epochs: never, before, inside", ...)

# %% tags=["row-A5"]
ways = "never", "before the loop", "inside the loop"
dealt = {when: launch(deal, when, backend="gloo") for when in ways}
orders.measured([len(set(map(str, zip(*ranks)))) for ranks in dealt.values()])

# %% [markdown]
# The same as a picture, with a square per sample, coloured by its number.


# %% jupyter={"source_hidden": true}
def draw_deal(axes, ranks, title, again=()):
    """Draw ranks as rows and steps from left to right, a square per sample, coloured by number."""
    for rank, steps in enumerate(ranks):
        for i, (step, sample) in enumerate((s, n) for s, batch in enumerate(steps) for n in batch):
            x, shade, twice = i + 0.4 * step, 0.15 + 0.85 * sample / 12, (rank, step) in again
            edge = {"ec": "#DDDDDD", "hatch": "///"} if twice else {"ec": "white"}
            color, ink = plt.colormaps["cividis"](shade), "white" if shade < 0.5 else "black"
            axes.add_patch(plt.Rectangle((x, rank), 0.95, 0.9, fc=color, lw=2, **edge))
            axes.text(x + 0.47, rank + 0.47, sample, ha="center", va="center", color=ink)
    width = len(ranks[0][0])
    middles = [step * (width + 0.4) + width / 2 for step in range(len(ranks[0]))]
    axes.set_xticks(middles, [f"step {step}" for step in range(len(ranks[0]))])
    axes.set_yticks([r + 0.45 for r in range(len(ranks))], [f"rank {r}" for r in range(len(ranks))])
    axes.set(xlim=(-0.2, x + 1.2), ylim=(len(ranks), -0.1), aspect="equal", title=title)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


figure, axes = plt.subplots(3, 3, figsize=(10.5, 5), layout="constrained")
for row, (when, results) in enumerate(dealt.items()):
    for epoch, ranks in enumerate(zip(*results)):
        draw_deal(axes[row, epoch], ranks, f"epoch {epoch}, set_epoch {when}")
text = "First row: the same order three times. Second row: three orders."
show(figure, f"{text} Third row: epoch 1 repeats epoch 0.")

# %% [markdown]
# The sampler shuffles with a generator of its own, seeded by `seed + epoch`, so all ranks shuffle alike without a message. Then each takes every second card.
# If nobody tells it the epoch, it shuffles as before. Inside the loop the call comes too late: the order is fixed when the loop begins, and epoch 1 repeats epoch 0.
#
# The [Keras guide to PyTorch on several GPUs](https://keras.io/guides/distributed_training_with_torch/) gives the sampler `shuffle=False`. Does `set_epoch` help there?

# %% tags=["row-C4"]
never = launch(deal, "before the loop", False, backend="gloo")
print("orders in three epochs:", len(set(map(str, zip(*never)))))

# %% [markdown]
# No, the order is the same for ever. Shuffling belongs into the sampler, where `True` is the default. (A loader with `shuffle=True` *and* a sampler raises an error.)
#
# **Check yourself.** Somebody leaves out the sampler and sets `shuffle=True` in the loader. What do the ranks see?
#
# <details><summary>Answer</summary>
# Every rank goes through all samples. And since forked ranks start with the same random numbers (part 5), they even see the same batches at the same time.
# </details>
#
# ## 2 · Ten samples for four ranks
#
# Ten is no multiple of four, but every rank must take the same number of steps. What does the sampler do, by default and with `drop_last=True`?


# %% jupyter={"source_hidden": true}
def deal_ten(drop_last):
    return list(DistributedSampler(range(10), shuffle=False, drop_last=drop_last))


hands = [launch(deal_ten, drop, world_size=4, backend="gloo") for drop in (False, True)]
print("samples in an epoch:", [sum(map(len, ranks)) for ranks in hands])

figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
pictured = [[[[n] for n in hand] for hand in ranks] for ranks in hands]
draw_deal(axes[0], pictured[0], "default: padded", again={(2, 2), (3, 2)})
draw_deal(axes[1], pictured[1], "drop_last=True")
text = "Samples 0 and 1 are dealt a second time (hatched); or samples 8 and 9 are not dealt at all."
show(figure, text)

# %% [markdown]
# Twelve or eight, never ten. In training this matters little: after each `set_epoch` other samples are the doubled ones. In **validation** it matters: two of ten samples count twice.
#
# ### A metric that one process would have found
#
# One rank trains a small network on the digits (folded). It does so in float64, where rounding plays no part. Then eight ranks test it on the 355 test digits.

# %% jupyter={"source_hidden": true}
training, testing = digits(train=True), digits(train=False)


def train_alone(steps=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = cross_entropy(model(training.data.double()), training.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


trained = launch(train_alone, world_size=1, backend="gloo")[0]

# %% [markdown]
# A common script prints, as the loss of an epoch, the mean over the sampler's samples. `evaluate` returns that as `local`, and two ways to put the ranks' figures together.
# It takes the digits from the sampler, or from `shards`, which need not be even.


# %%
def evaluate(shards=None):
    sampler = DistributedSampler(testing, shuffle=False)
    own = Subset(testing, shards[dist.get_rank()] if shards else list(sampler))
    sums = torch.zeros(3, dtype=torch.float64)  # loss, right answers, digits
    for images, labels in DataLoader(own, batch_size=16):
        output = trained(images.double())
        right = (output.argmax(dim=1) == labels).sum()
        loss = cross_entropy(output, labels, reduction="sum")
        sums += sums.new_tensor([loss.item(), right.item(), len(labels)])
    local = sums[:2] / sums[2]
    means = local.clone()
    dist.all_reduce(means, op=dist.ReduceOp.AVG)
    dist.all_reduce(sums)
    return {"local": local, "mean of means": means, "sums": sums[:2] / sums[2]}


# %% [markdown]
# The uneven shards are eight files of 120 down to 5 digits. Four figures compete:
#
# 1. padded, as rank 0 prints it;
# 2. padded, sums and counts added;
# 3. uneven, mean of the means;
# 4. uneven, sums and counts added.
#
# **Predict.** Which show the loss and the accuracy of one process? Answer with a set, such as `{1, 3}`.

# %%
right_lines = predict("figures that are those of one process", ...)

# %%
files = torch.arange(355).split([120, 80, 60, 40, 25, 15, 10, 5])
single = launch(evaluate, [range(355)], world_size=1, backend="gloo")[0]
padded = launch(evaluate, world_size=8, backend="gloo")[0]
uneven = launch(evaluate, files, world_size=8, backend="gloo")[0]

# %% jupyter={"source_hidden": true}
found = {"one process": single["sums"], "1 padded, as rank 0 prints it": padded["local"]}
found["2 padded, sums and counts added"] = padded["sums"]
found["3 uneven, mean of the means"] = uneven["mean of means"]
found["4 uneven, sums and counts added"] = uneven["sums"]
for name, (loss, share) in found.items():
    print(f"{name:33} loss {loss:.4f}   accuracy {100 * share:.2f} %")
agree = [torch.allclose(each, single["sums"], rtol=1e-12) for each in found.values()]
right_lines.measured({n for n in range(1, 5) if agree[n]})

# %% [markdown]
# Only the fourth. Rank 0's figure is correct, but only for its own 45 digits. Padding counts five digits twice. The mean of means treats a file of 5 digits like one of 120.
#
# **Sums and counts** without padding agree with one process to twelve digits. So in validation: no padding, one `all_reduce` of sums and counts at the end of the epoch, divide last.
#
# **Check yourself.** Is the sampler's `drop_last=True` a cure in validation?
#
# <details><summary>Answer</summary>
# No: what it leaves out depends on the world size. Take <code>range(rank, len(data), world_size)</code>. Shards may differ by one, if you call <code>model.module</code>, which needs no collective, and not
# the DDP wrapper.
# </details>
#
# ## 3 · When a rank runs out of data
#
# In training, too, shards may be uneven. Below, rank 0 has three batches of eight digits, rank 1 has two. Chapter 04 showed how that ends: rank 0 waits in `backward` for a rank that has returned.


# %%
def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


# %%
def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
batches = list(DataLoader(Subset(training, range(40)), batch_size=8))
numbers_of = [(0, 2, 4), (1, 3)]  # rank 0 has three of the five batches, rank 1 two


# %%
def train_uneven(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in numbers_of[dist.get_rank()]:
        images, labels = batches[number]
        update(optimizer, cross_entropy(model(images), labels))


# %% [markdown]
# [`Join`](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html) is torch's cure. A rank that has run out stays, and answers the others' collectives with zeros until all are done.
#
# **Predict.** In the third step only rank 0 has a gradient, the mean over 8 digits. Is it divided by 2, so that each digit weighs 1/16, or by 1, so that it weighs 1/8? Answer with two
# denominators, for `divide_by_initial_world_size=True` (the default) and for `False`, such as `[8, 8]`.

# %%
divisors = predict("each of the last 8 digits weighs 1 over, by default and with False", ...)


# %%
def with_join(initial):
    model = DistributedDataParallel(make_model())
    with Join([model], divide_by_initial_world_size=initial):
        train_uneven(model)
    return parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# One process (folded) takes the same three steps, and divides the sum over the last 8 digits by 16 or by 8.


# %% jupyter={"source_hidden": true}
def one_process(divide_last_by):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for numbers, count in ((0, 1), 16), ((2, 3), 16), ((4,), divide_last_by):
        images, labels = (torch.cat(parts) for parts in zip(*(batches[n] for n in numbers)))
        update(optimizer, cross_entropy(model(images), labels, reduction="sum") / count)
    return parameters_to_vector(model.parameters()).detach()


# %%
wanted = {n: launch(one_process, n, world_size=1, backend="gloo")[0] for n in (16, 8)}
divided = []
for initial in (True, False):
    one, other = launch(with_join, initial, backend="gloo")
    assert torch.equal(one, other)  # also the rank that ran out has the last step
    divided += [n for n in wanted if torch.allclose(one, wanted[n], atol=1e-6)]
divisors.measured(divided)

# %% [markdown]
# With the default, the gradient is divided by the two ranks there were at first: **each digit weighs 1/16**, whenever it comes. With `False` it is divided by the ranks still active, here one: the last 8 digits weigh 1/8
# each, as in a script that takes the mean of its last, small batch.
#
# ## 4 · A stream has no sampler
#
# A stream of text has no length and no index, so no sampler can deal it. A loader's **workers** are processes too, and each has a copy of the dataset. This stream of ten samples splits itself by rank, by worker, or not at all.


# %%
class Stream(IterableDataset):  # no length, no index: whoever iterates gets all of it
    def __init__(self, length, split=""):
        self.length, self.split = length, split
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def __iter__(self):
        first, stride = 0, 1
        if self.split == "by rank":
            first, stride = self.rank, self.world_size
        if self.split == "by worker":  # which of the rank's workers is this process?
            first, stride = get_worker_info().id, get_worker_info().num_workers
        return iter(range(first, self.length, stride))


# %% [markdown]
# **Predict.** Three ranks, each with a loader of two workers. How many times does each sample come in an epoch: unsplit, split by rank only, split by worker only? Answer with a list of three numbers.

# %%
times_read = predict("times that each sample is read: unsplit, by rank, by worker", ...)


# %%
def read(split):
    # Two processes read for each rank; without a batch size samples come one by one.
    options = {"num_workers": 2, "multiprocessing_context": "fork", "batch_size": None}
    return list(DataLoader(Stream(10, split), **options))


# %%
often = []
for split in ("", "by rank", "by worker"):
    counted = Counter(chain(*launch(read, split, world_size=3, backend="gloo")))
    often += set(counted.values())  # the same number for all ten
times_read.measured(often)

# %% [markdown]
# Six, two and three: nothing fails, but an epoch is six, two or three times as long as you think. The stream has to be split by rank **and** worker.
#
# ### Write it
#
# *About 6 minutes.* `__iter__` gives each sample to exactly one reader, over all ranks and their workers, in any order. No two ranks may get numbers of samples that differ by more than one, since the longer rank would
# wait. A loader without workers reads in the rank itself: there `get_worker_info()` is `None`. All ranks have equally many workers.


# %%
class MyStream(Stream):
    def __iter__(self):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which samples are your rank's, whichever worker reads them? And which of these are this worker's?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Split by rank first, then what the rank has by worker. A <code>range</code> can be sliced like a list. The balance between ranks comes by itself.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>mine = range(self.rank, self.length, self.world_size)</code>, then, where there are workers, <code>mine[info.id :: info.num_workers]</code>.
# </details>


# %% jupyter={"source_hidden": true}
stream_cases = {"no workers": (7, 0), "one worker": (4, 1), "two workers": (10, 2)}
stream_cases |= {"fewer samples than readers": (1, 2)}


def as_workers(dataset, workers):
    """What a loader yields, whose workers take turns in this process, each with its own copy."""
    if not workers:
        yield from dataset
    for number in range(workers):
        info = loading.WorkerInfo(id=number, num_workers=workers, seed=number, dataset=dataset)
        with mock.patch.object(loading, "_worker_info", info):
            yield from list(copy.copy(dataset))


def streaming(kind):
    """Read two epochs on every rank; say how often each sample came, and who got more."""

    @functools.wraps(kind, updated=())
    def stream(length, workers):
        dataset, said = kind(length), {}
        for epoch in ("first", "second"):
            shards = [None] * dist.get_world_size()
            dist.all_gather_object(shards, [int(n) for n in as_workers(dataset, workers)])
            sizes = [len(shard) for shard in shards]
            counted = Counter(chain(*shards))
            said[f"{epoch} epoch: times each sample is read"] = dict(sorted(counted.items()))
            said[f"{epoch} epoch: longest less shortest shard"] = max(sizes) - min(sizes)
        return said

    return stream


def stream_spec(lengths, workers):
    world_size, said = len(lengths), {}
    for epoch in ("first", "second"):
        said[f"{epoch} epoch: times each sample is read"] = dict.fromkeys(range(lengths[0]), 1)
        said[f"{epoch} epoch: longest less shortest shard"] = int(lengths[0] % world_size > 0)
    return [said] * world_size


def stream_inputs(rank, world_size, case):
    return stream_cases[case]


stream_judged = {"spec": stream_spec, "inputs": stream_inputs, "cases": list(stream_cases)}

# %%
check(streaming(MyStream), **stream_judged)


# %% jupyter={"source_hidden": true}
class Shard(Stream):
    """The finished form. The rank was asked in __init__: a spawned worker could not tell it."""

    def __iter__(self):
        mine, info = range(self.rank, self.length, self.world_size), get_worker_info()
        return iter(mine[info.id :: info.num_workers] if info else mine)


check(streaming(Shard), **stream_judged)

# %% [markdown]
# Even so, one rank may have a sample more than another. Then it is `Join` again, or all ranks agree beforehand on the number of steps.
#
# ## 5 · Four ranks, the same random numbers
#
# Dropout, noise and augmentation draw random numbers. A forked rank is a copy of the notebook, and so is its generator. Below, four ranks draw a number each from torch, numpy and Python's `random`.


# %%
def draw(own_seed):
    if own_seed:
        torch.manual_seed(100 + dist.get_rank())
        np.random.seed(100 + dist.get_rank())
    mask = dropout(torch.ones(24)) > 0
    return mask, (torch.rand(1).item(), np.random.rand(), random.random())


# %%
torch.manual_seed(0)
masks = {}
for name, own_seed in {"as forked": False, "seeded per rank": True}.items():
    masks[name], drawn = zip(*launch(draw, own_seed, world_size=4, backend="gloo"))
    different = [len(set(numbers)) for numbers in zip(*drawn)]
    print(f"{name:15}: different numbers of torch, numpy, random: {different}")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(10, 1.9), layout="constrained")
for axis, (name, mask) in zip(axes, masks.items()):
    grid = {"cmap": "Greys", "vmin": -0.2, "vmax": 1.3, "edgecolors": "white", "linewidth": 1.5}
    axis.pcolormesh(torch.stack(mask), **grid)
    axis.set(title=f"{name}: 24 units under dropout", xticks=[], ylim=(4, 0))
    axis.set_yticks([r + 0.5 for r in range(4)], [f"rank {r}" for r in range(4)])
    axis.tick_params(length=0)
text = "Left, four ranks drop the same units (pale); right, each rank drops units of its own."
show(figure, text)

# %% [markdown]
# Python's `random` reseeds itself at a fork; torch and numpy do not. Without a fork, under `torchrun`, `torch.manual_seed(0)` at the top of the script has the same effect. The cure is a line per
# generator: a seed plus the rank. DDP makes the weights equal anyhow.
#
# And the loader's workers? Each of two ranks has two of them, and each of the four draws one number.


# %%
def noise(batch):  # the loader's workers call collate_fn: here is where augmentation happens
    return torch.rand(1).item()


# %%
def noise_of_workers(own_seed):
    if own_seed:
        torch.manual_seed(100 + dist.get_rank())
    options = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": noise}
    return list(DataLoader(range(4), sampler=DistributedSampler(range(4)), **options))


# %%
for own_seed in (False, True):
    numbers = set(chain(*launch(noise_of_workers, own_seed, backend="gloo")))
    print(f"seeded per rank: {own_seed!s:5}  different numbers: {len(numbers)}")

# %% [markdown]
# Two as forked, four when seeded. A worker's seed is a number that its rank draws, plus the worker's own number. So the workers of *one* rank differ, and those of equal ranks are twins. Seeding the ranks cures the workers too.
#
# Shuffling stays whole: `DistributedSampler` uses a generator of its own. A loader with `shuffle=True` and no sampler would not.
#
# ## 6 · One rank downloads
#
# Many scripts begin by fetching their data, and every rank runs that line. `download` stands in for a slow server, with a line every 10 ms. Each node has its own disk, here a folder.


# %% jupyter={"source_hidden": true}
def download(path):
    with path.open("w", buffering=1) as file:  # each line goes to the disk at once
        for number in range(100):
            file.write(f"sample {number}\n")
            time.sleep(0.01)


def own_path(disks):
    folder = Path(disks, os.environ["GROUP_RANK"])  # the node's number
    folder.mkdir(exist_ok=True)
    return folder / "data.txt"


def is_complete(path):
    return path.exists() and len(path.read_text().splitlines()) == 100


# %% [markdown]
# Rank 1 comes a moment after rank 0. It finds the file and, being polite, does not fetch it again. Who has complete data?


# %%
def everyone_fetches(disks):
    path = own_path(disks)
    while dist.get_rank() == 1 and not path.exists():
        time.sleep(0.001)  # rank 1 comes a moment later
    if not path.exists():
        download(path)
    return is_complete(path)


# %%
with tempfile.TemporaryDirectory() as disks:
    print("complete:", launch(everyone_fetches, disks, backend="gloo"))

# %% [markdown]
# The file was there, and most of what belongs in it was not. No error: rank 1 would train on what it found.
#
# So one rank fetches, and the others wait. The right pattern has three parts. **Local rank 0** of each node fetches, because another node has another disk. It fetches under **another name**, so that the file is either complete or not
# there, and the next start need not fetch it again. And the others wait in a call that **carries the news**: a plain barrier says "I am here", and cannot say "it went wrong".


# %%
def fetch_once_per_node(disks, fetch):
    path, trouble = own_path(disks), None
    if os.environ["LOCAL_RANK"] == "0" and not path.exists():
        try:
            fetch(path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        except Exception as error:  # whatever it is: a rank that crashed keeps the others waiting
            trouble = f"rank {dist.get_rank()}: {error}"
    news = [None] * dist.get_world_size()
    dist.all_gather_object(news, trouble)
    if any(news):
        return [words for words in news if words]  # in a script: raise, on every rank
    return is_complete(path)


# %%
def no_server(path):
    raise OSError("the server is down")


# %%
with tempfile.TemporaryDirectory() as disks:
    for server, fetch in {"down": no_server, "up": download}.items():
        nodes = {"world_size": 4, "nodes": 2}
        told = launch(fetch_once_per_node, disks, fetch, backend="gloo", **nodes)
        print(f"server {server}:", *told, sep="\n    ")

# %% [markdown]
# With the server down, all four ranks know who failed and why, and can stop together. With the server up, all have complete data. But the others wait within a collective, and that has a
# time limit: 30 minutes with gloo, 10 with NCCL. If a download takes longer, give `init_process_group` a longer `timeout=`. On a disk that all nodes share, only the test changes: `dist.get_rank() == 0`.

# %% [markdown]
# ## What you know now

# %%
predict()

# %% [markdown]
# **Next:** [15 · The numbers of many ranks](15_numerics.ipynb).
