# %% [markdown]
# # 07 · Data and batches
#
# **Which samples does each rank see, and how do you make an epoch that loses nothing and counts nothing twice?**
#
# In 60 minutes you will be able to say which sample goes to which rank, train and measure on uneven shards, and decide who gets which seed and who downloads.
#
# **Hardware:** any computer; all ranks here use gloo on the CPU.
# **Before:** [06 · What communication costs](06_what_communication_costs.ipynb).
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb), or first [15 · The numbers of many ranks](15_numerics.ipynb).
# **Lab:** [07 · Data, batches and numerics](../exercises/07_data_batches_numerics.ipynb), exercises 1, 2 and 5.

# %% jupyter={"source_hidden": true}
import random
import tempfile
import time
from collections import Counter
from datetime import timedelta
from itertools import chain

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

from course_lessons import chapter_07
from course_lessons.chapter_07 import fetch_judged, fetching, stream_judged, streaming
from course_utils import check, digits, launch, predict, show

# %% [markdown]
# ## 1 · Who is dealt which sample?
#
# Two ranks share twelve samples, and each takes two per step, so three steps make an epoch. Each sample is its own number, so you can read off a batch which samples it holds.
# `when` says where `set_epoch` is called.


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
orders = predict("orders in three epochs: never, before, inside", ..., count=3)

# %% tags=["row-A5"]
places = "never", "before the loop", "inside the loop"
dealt = {when: launch(deal, when, backend="gloo") for when in places}
counts = [chapter_07.count_orders(ranks) for ranks in dealt.values()]
orders.measured(counts)
show(chapter_07.three_epochs(dealt), f"Different orders in the three epochs of each row: {counts}.")

# %% [markdown]
# The sampler shuffles with a generator of its own, seeded by `seed + epoch`, so all ranks shuffle alike without a message. Inside the loop the call comes too late, because the
# order is fixed when the loop begins. So epoch 1 repeats the order of epoch 0.
#
# The [Keras guide](https://keras.io/guides/distributed_training_with_torch/) gives the sampler `shuffle=False`. Does `set_epoch` help there?

# %% tags=["row-C4"]
unshuffled = launch(deal, "before the loop", False, backend="gloo")
print("orders in three epochs:", chapter_07.count_orders(unshuffled))

# %% [markdown]
# No, the order stays the same forever. Shuffling belongs in the sampler, where `True` is the default.
#
# ## 2 · Ten samples for four ranks
#
# Ten isn't a multiple of four, but every rank must take the same number of steps. What does the sampler do?


# %%
def deal_ten(drop_last):
    return list(DistributedSampler(range(10), shuffle=False, drop_last=drop_last))


padded, dropped = (launch(deal_ten, drop, world_size=4, backend="gloo") for drop in (False, True))
text = "Samples 0 and 1 are dealt a second time (hatched); or samples 8 and 9 are not dealt at all."
show(chapter_07.ten_samples(padded, dropped), text)

# %% [markdown]
# The ranks take twelve samples or eight, never ten. In training this matters little: the order is new in each epoch, so each time different samples are doubled or left out. And in
# **validation**? One rank trains a small network on the digits, in float64, so that rounding can't explain a difference. Then eight ranks test it.

# %%
training, testing = digits(train=True), digits(train=False)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
def train_alone(steps=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        update(optimizer, cross_entropy(model(training.data.double()), training.targets))
    return model


trained = launch(train_alone, world_size=1, backend="gloo")[0]

# %% [markdown]
# `evaluate` returns the mean loss and the accuracy: first this rank's own, as `local`, then those of all ranks, put together in two ways. The digits come from the sampler, or from
# `shards`, which needn't be of equal size.


# %%
def evaluate(shards=None):
    indices = list(DistributedSampler(testing, shuffle=False))
    if shards:
        indices = shards[dist.get_rank()]
    images, labels = testing.data[indices].double(), testing.targets[indices]
    output = trained(images)
    loss = cross_entropy(output, labels, reduction="sum")
    right = (output.argmax(dim=1) == labels).sum()
    sums = torch.stack([loss, right.double(), torch.tensor(float(len(labels))).double()]).detach()
    local = sums[:2] / sums[2]
    means = local.clone()
    dist.all_reduce(means, op=dist.ReduceOp.AVG)
    dist.all_reduce(sums)
    return {"local": local, "mean of means": means, "sums": sums[:2] / sums[2]}


# %% [markdown]
# The uneven shards are eight files of 120 down to 5 digits. **Predict.** Which of these four give the loss and the accuracy that one process finds? With the sampler, which pads:
# (1) what rank 0 finds for its own digits; (2) all ranks' sums, divided by the sum of their counts. With the uneven shards: (3) the mean of all ranks' means; (4) all ranks' sums,
# divided by the sum of their counts. Answer with a set, such as `{1, 3}`.

# %%
right_lines = predict("figures that are those of one process", ...)

# %%
files = torch.arange(355).split([120, 80, 60, 40, 25, 15, 10, 5])
single = launch(evaluate, [torch.arange(355)], world_size=1, backend="gloo")[0]["sums"]
with_padding = launch(evaluate, world_size=8, backend="gloo")[0]
uneven = launch(evaluate, files, world_size=8, backend="gloo")[0]

figures = {"1 padded, rank 0": with_padding["local"], "2 padded, sums": with_padding["sums"]}
figures |= {"3 uneven, means": uneven["mean of means"], "4 uneven, sums": uneven["sums"]}
equal = [torch.allclose(values, single, rtol=1e-12) for values in figures.values()]
right_lines.measured({number for number in range(1, 5) if equal[number - 1]})
on_it = ", ".join(name for name, is_equal in zip(figures, equal) if is_equal)
text = f"The line is what one process finds. Of the four ways, on it in both panels: {on_it}."
show(chapter_07.metrics({"one process": single} | figures), text)

# %% [markdown]
# Rank 0's figure holds for its own 45 digits. Padding counts five digits twice. The mean of means treats 5 digits like 120. So in validation, don't pad. Add up **sums and counts**
# over all ranks, and divide last.
#
# **Check yourself.** Is the sampler's `drop_last=True` a cure?
#
# <details><summary>Answer</summary>
# No: it leaves samples out, and which ones depends on the world size.
# </details>

# %% [markdown]
# ## 3 · When a rank runs out of data
#
# In training, too, shards may be uneven. Below, rank 0 has three batches of eight digits and rank 1 has two. Without a cure, rank 0 would wait in its third `backward` for a rank
# that has left the loop already.

# %%
batches = list(DataLoader(Subset(training, range(40)), batch_size=8))
BATCHES_OF_RANKS = [(0, 2, 4), (1, 3)]


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


# %%
def with_join(initial):
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model], divide_by_initial_world_size=initial):
        for number in BATCHES_OF_RANKS[dist.get_rank()]:
            images, labels = batches[number]
            update(optimizer, cross_entropy(model(images), labels))
    return parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# Under [`Join`](https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html), a rank that has run out answers the others' collectives with zeros. In the third step, only rank 0 has a gradient, the mean over 8 digits.
#
# **Predict.** DDP divides the ranks' sum of gradients. With which weight does each of these 8 digits enter the result, by default and with `divide_by_initial_world_size=False`?
# Answer with two denominators: `[32, 16]` would say 1/32 by default, and 1/16 with `False`.

# %%
divisors = predict(
    "each of the last 8 digits weighs 1 over, by default and with False", ..., count=2
)


# %%
def one_process(divide_last_by):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for numbers, divisor in ((0, 1), 16), ((2, 3), 16), ((4,), divide_last_by):
        images = torch.cat([batches[number][0] for number in numbers])
        labels = torch.cat([batches[number][1] for number in numbers])
        loss = cross_entropy(model(images), labels, reduction="sum") / divisor
        update(optimizer, loss)
    return parameters_to_vector(model.parameters()).detach()


# %%
wanted = {n: launch(one_process, n, world_size=1, backend="gloo")[0] for n in (8, 16, 32)}
divided_by = []
for initial in (True, False):
    rank_0, rank_1 = launch(with_join, initial, backend="gloo")
    assert torch.equal(rank_0, rank_1)  # the rank that ran out has the last step as well
    divided_by += [n for n in wanted if torch.allclose(rank_0, wanted[n], atol=1e-6)]
divisors.measured(divided_by)
text = f"A digit weighs 1/16 in steps 0 and 1, and by default 1/{divided_by[0]} in step 2."
show(chapter_07.weights_of_digits(divided_by[0]), text)

# %% [markdown]
# By default, the sum is divided by the number of ranks at the start, which is two. So in all three steps a digit weighs 1/16. With `False`, it's divided by the number of ranks
# that still have data. In the last step that's only one, so its digits weigh twice as much as the others.

# %% [markdown]
# ## 4 · A stream has no sampler
#
# A stream has no length, so no sampler can deal it: the dataset itself has to know who reads which sample. And a loader's **workers** are processes, each with a copy of the
# dataset, so they have to be told apart, too.


# %%
class Stream(IterableDataset):
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
# **Predict.** Three ranks, each with a loader of two workers. How many times is each sample read in an epoch if the stream isn't split, if it's split by rank only, and if it's
# split by worker only? Answer with a list of three numbers.

# %%
times_read = predict("times that each sample is read: unsplit, by rank, by worker", ..., count=3)


# %%
def read(split):
    # Two processes read for each rank; without a batch size samples come one by one.
    options = {"num_workers": 2, "multiprocessing_context": "fork", "batch_size": None}
    return list(DataLoader(Stream(10, split), **options))


# %%
counts_by_split = []
for split in ("", "by rank", "by worker"):
    counts = Counter(chain(*launch(read, split, world_size=3, backend="gloo")))
    counts_by_split += set(counts.values())  # the same number for all ten
times_read.measured(counts_by_split)
chapter_07.draw_stream(Stream)

# %% [markdown]
# Nothing fails, but an epoch is two, three or six times as long as it should be. The picture shows the unsplit stream on two ranks with two workers each: these are four readers, so
# each sample is read four times.

# %% [markdown]
# ### Write it
#
# *About 6 minutes.* `__iter__` has to give each sample to exactly one reader among all the ranks' workers, in any order. The ranks' numbers of samples may differ by one at most. A
# loader without workers reads in the rank itself: there `get_worker_info()` is `None`. All ranks have equally many workers.


# %%
class MyStream(Stream):
    def __iter__(self):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which samples are your rank's, whichever worker reads them? And which of these are this worker's?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Split by rank first, then what the rank has by worker. A <code>range</code> can be sliced like a list.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>mine = range(self.rank, self.length, self.world_size)</code>, then, where there are workers, <code>mine[info.id :: info.num_workers]</code>.
# </details>

# %%
chapter_07.draw_stream(MyStream)
check(streaming(MyStream), **stream_judged)

# %% [markdown]
# ## 5 · Four ranks, the same random numbers
#
# Dropout, noise and augmentation draw random numbers. A forked rank is a copy of the notebook, so its random generators are copies as well. Below, four ranks draw a number each
# from torch, numpy and Python's `random`.


# %%
def draw(seed_by_rank):
    if seed_by_rank:
        torch.manual_seed(100 + dist.get_rank())
        np.random.seed(100 + dist.get_rank())
    mask = dropout(torch.ones(24)) > 0
    return mask, (torch.rand(1).item(), np.random.rand(), random.random())


# %%
masks = {}
for name, seed_by_rank in {"as forked": False, "seeded per rank": True}.items():
    masks[name], drawn = zip(*launch(draw, seed_by_rank, world_size=4, backend="gloo"))
    different = [len(set(numbers)) for numbers in zip(*drawn)]
    print(f"{name:15}: different numbers of torch, numpy, random: {different}")

text = "Left, four ranks drop the same units (pale); right, each rank drops units of its own."
show(chapter_07.dropout_masks(masks), text)

# %% [markdown]
# Python's `random` reseeds itself at a fork; torch and numpy do not. `torchrun` doesn't fork the ranks. But there, too, they draw the same numbers once all of them have called
# `torch.manual_seed(0)`. The cure is to add the rank to the seed.

# %% [markdown]
# And what do the loader's workers draw? Below, each of two ranks has two workers, and each of these four draws one number.


# %%
def noise(batch):  # the loader's workers call collate_fn: here is where augmentation happens
    return torch.rand(1).item()


def noise_of_workers(seed_by_rank):
    if seed_by_rank:
        torch.manual_seed(100 + dist.get_rank())
    options = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": noise}
    return list(DataLoader(range(4), sampler=DistributedSampler(range(4)), **options))


# %% [markdown]
# **Predict.** How many different numbers do the four workers draw, as forked and when each rank is seeded? Answer with a list of two.

# %%
different_noise = predict(
    "different numbers of four workers: as forked, seeded per rank", ..., count=2
)

# %%
drawn_by_workers = [launch(noise_of_workers, seeded, backend="gloo") for seeded in (False, True)]
counts = [len(set(chain(*ranks))) for ranks in drawn_by_workers]
different_noise.measured(counts)
text = f"Equal numbers have equal colours. Different numbers left and right: {counts}."
show(chapter_07.worker_noise(drawn_by_workers), text)

# %% [markdown]
# A worker's seed is a number that its rank draws, plus the worker's own number. Ranks with equal generators draw equal numbers, so their workers agree in pairs. Seeding the ranks cures the workers too.

# %% [markdown]
# ## 6 · One rank downloads
#
# `download` stands in for a slow server. Both ranks need the same file. Rank 1 comes a moment after rank 0, finds the file, and doesn't fetch it again.


# %%
def everyone_fetches(disks):
    path = chapter_07.path_on(disks)
    while dist.get_rank() == 1 and not path.exists():
        time.sleep(0.001)  # rank 1 comes a moment later
    if not path.exists():
        chapter_07.download(path)
    return chapter_07.is_complete(path)


with tempfile.TemporaryDirectory() as disks:
    print("complete:", launch(everyone_fetches, disks, backend="gloo"))

# %% [markdown]
# Rank 1 found the file, but most of its content was still missing. There's no error: rank 1 would train on what it found.
#
# ### Write it
#
# *About 5 minutes.* Only one rank of each node calls `fetch_once`. At every moment, `data` has to be either complete or absent. Return `None` if all went well, and otherwise the
# text of the error.


# %%
def fetch_once(disk, fetch):
    """`disk.has(name)`, `disk.rename(old, new)` and `fetch(name)`, which may raise an OSError.

    If `data` is there, it is complete. A `part` may be left over from an interrupted start.
    """
    raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which name can half a file have, so that nobody takes it for a whole one?
# </details>
# <details><summary>Hint 2: the approach</summary>
# If data is there, nothing is to be done. Otherwise fetch under a different name, and rename it when it's complete.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>fetch("part")</code> and <code>disk.rename("part", "data")</code> in a <code>try</code>, and <code>return str(error)</code> in its <code>except OSError as error</code>.
# </details>

# %%
check(fetching(fetch_once), **fetch_judged)

# %% [markdown]
# Now on real files. Local rank 0 of each node fetches, and the others wait in a call that **carries the news**, since a barrier can't say "it went wrong". They wait in a **group of their own**, whose timeout is as long as a download, not as long as a step.


# %%
def fetch_on_each_node(disks, fetch, patience_s=3600):
    downloads = dist.new_group(timeout=timedelta(seconds=patience_s))
    path, trouble = chapter_07.path_on(disks), None
    part = path.with_suffix(".part")
    if dist.get_node_local_rank() == 0 and not path.exists():
        try:
            fetch(part)
            part.rename(path)
        except OSError as error:
            trouble = f"rank {dist.get_rank()}: {error}"
    news = [None] * dist.get_world_size()
    dist.all_gather_object(news, trouble, group=downloads)
    failures = [words for words in news if words]
    return failures or chapter_07.is_complete(path)  # in a script: raise, on every rank


# %%
show(chapter_07.who_waits(), "One rank of each node fetches; all four meet, whatever happened.")

# Three starts on the same two disks: the server is down, then up, then down again.
with tempfile.TemporaryDirectory() as disks:
    for fetch in chapter_07.no_server, chapter_07.download, chapter_07.no_server:
        answers = launch(fetch_on_each_node, disks, fetch, world_size=4, nodes=2, backend="gloo")
        print(f"{fetch.__name__}:", *answers, sep="\n  ")

# %% [markdown]
# Each line is a rank's answer. At the first start, even rank 3 hears what went wrong on ranks 0 and 2. The second start fetches the file, and the third finds it complete and needs no server. And the timeout?
# Here's the same function with a patience of 0.3 s, which is shorter than the download.


# %%
def impatient(disks):
    try:
        return fetch_on_each_node(disks, chapter_07.download, patience_s=0.3)
    except RuntimeError:
        return f"rank {dist.get_rank()} gave up"


with tempfile.TemporaryDirectory() as disks:
    print(*launch(impatient, disks, backend="gloo"), sep=", ")

# %% [markdown]
# Rank 1 gave up while rank 0 was still fetching, and then rank 0 found nobody to tell. By default a group waits [30 minutes with gloo and 10 with NCCL](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group), and a large download may take longer.
#
# ## What you know now

# %%
predict()

# %% [markdown]
# Each rank takes its own samples and draws its own random numbers, and so does each of its loader's workers. But the shuffled order, the sums and counts, and the news of a
# download are the same on all ranks.
#
# Practise in [lab 07](../exercises/07_data_batches_numerics.ipynb).
#
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb), or first [15 · The numbers of many ranks](15_numerics.ipynb): is a difference rounding or a bug?
