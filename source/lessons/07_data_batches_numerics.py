# %% [markdown]
# # 07 · Data, batches and numerics
#
# **Which samples does each rank see, and are the numbers of many ranks the numbers of one?**
#
# In 105 minutes you will be able to
#
# 1. say which sample goes to which rank at which step, and shuffle, pad and count them rightly;
# 2. train and measure on shards of unequal length, and get what one process gets;
# 3. say when more ranks need another learning rate, and when they do not;
# 4. tell rounding from a bug, and decide which statistics, seeds and files each rank has to itself.
#
# **Hardware:** any computer; all ranks here use gloo on the CPU, so that you can compare every digit.
# **Before:** [06 · What communication costs](06_what_communication_costs.ipynb).
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb).
# **Lab:** [07 · Data, batches and numerics](../exercises/07_data_batches_numerics.ipynb).

# %%
import os
import random
import tempfile
import time
from collections import Counter
from functools import partial
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy, dropout
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_utils import WorkerError, digits, launch, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · Who is dealt which sample?
#
# Twelve samples, two ranks, two samples per step: three steps make an epoch. The samples are their own numbers, so a batch
# tells which ones it holds. `when` says where `set_epoch` is called.


# %%
samples = range(12)


def deal(when, shuffle=True):
    sampler = DistributedSampler(samples, shuffle=shuffle)
    loader = DataLoader(samples, batch_size=2, shuffle=False, sampler=sampler)
    epochs = []
    for epoch in range(3):
        if when == "before the loop":
            sampler.set_epoch(epoch)
        steps = []
        for batch in loader:
            if when == "inside the loop":
                sampler.set_epoch(epoch)
            steps.append(batch.tolist())
        epochs.append(steps)
    return epochs


# %% [markdown]
# **Predict.** In three epochs, in how many different orders are the samples dealt without `set_epoch`, and in how many with it?

# %% tags=["row-A5"]
predicted = {"never": "?", "before the loop": "?"}


def count_orders(results):
    return len({str(epoch) for epoch in zip(*results)})


dealt = {when: launch(deal, when, backend="gloo") for when in predicted}
print("predicted:", predicted)
print("measured: ", {when: count_orders(results) for when, results in dealt.items()})
for results in dealt.values():
    for epoch in zip(*results):  # each sample goes to exactly one rank
        assert sorted(torch.tensor(epoch).flatten().tolist()) == [*samples]

# %% [markdown]
# The same as a picture, for which `draw_deal`, folded away, draws a square per sample, coloured by its number.


# %% jupyter={"source_hidden": true}
def draw_deal(axes, ranks, title, again=()):
    """Draw ranks as rows and steps from left to right, a square per sample, coloured by number."""
    for rank, steps in enumerate(ranks):
        for i, (step, sample) in enumerate((s, n) for s, batch in enumerate(steps) for n in batch):
            x, shade, twice = i + 0.4 * step, 0.15 + 0.85 * sample / 12, (rank, step) in again
            edge = {"ec": "#D55E00", "hatch": "///"} if twice else {"ec": "white"}
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


# %%
figure, axes = plt.subplots(2, 3, figsize=(10.5, 3.2), layout="constrained")
for row, (when, name) in enumerate({"never": "without", "before the loop": "with"}.items()):
    for epoch, ranks in enumerate(zip(*dealt[when])):
        draw_deal(axes[row, epoch], ranks, f"epoch {epoch}, {name} set_epoch")
show(
    figure,
    "Above, the same picture three times; below, three different ones, each with all samples.",
)

# %% [markdown]
# Without `set_epoch`: one order, three times. The sampler shuffles with a generator of its own, seeded by `seed + epoch`, so that all
# ranks shuffle alike without a message, and then takes every second card. Unless somebody tells it the epoch, it shuffles as before.
# Leaving the call out is a popular error; an article behind this course makes it too.
#
# ### Three ways not to shuffle
#
# **Predict.** `set_epoch` is called, but *inside* the loop over batches. How many orders in three epochs? And how many with
# `shuffle=False` in the sampler, as in another of our articles?

# %% tags=["row-C4"]
predicted = {"inside the loop": "?", "shuffle=False": "?"}

inside = launch(deal, "inside the loop", backend="gloo")
never = launch(deal, "before the loop", False, backend="gloo")
print("predicted:", predicted)
print("measured: ", {"inside the loop": count_orders(inside), "shuffle=False": count_orders(never)})
for epoch, steps in enumerate(inside[0]):
    print(f"inside the loop, epoch {epoch}, rank 0 sees {steps}")

# %% [markdown]
# The order is fixed when the loop begins. A `set_epoch` after that does nothing for this epoch and comes one epoch late: epoch 1
# repeats epoch 0.
#
# With `DistributedSampler(shuffle=False)` the samples are dealt in the same order for ever, whatever `set_epoch` says. That article has
# `shuffle=False` in the loader as well, where it is harmless. What if you mend it there, and not in the sampler?


# %%
def shuffle_twice():
    DataLoader(samples, shuffle=True, sampler=DistributedSampler(samples, shuffle=False))


try:
    launch(shuffle_twice, backend="gloo")
except WorkerError as error:
    print(str(error).split("\n")[0])

# %% [markdown]
# A loader either shuffles by itself or has a sampler that does. So leave `shuffle` out of the loader; in the sampler `True` is the default.
#
# **Check yourself.** Somebody leaves out the sampler and sets `shuffle=True` in the loader. What do the ranks see?
#
# <details><summary>Answer</summary>
# Every rank goes through all samples: with two ranks an epoch takes each of them as many steps as one alone. And since forked ranks start
# with the same random numbers (part 7), they even see the same batches at the same time.
# </details>
#
# ## 2 · Ten samples for four ranks
#
# Ten is no multiple of four, but every rank must take the same number of steps. **Predict.** How many samples does an epoch have, by default and
# with `drop_last=True`?

# %%
predicted = {"default": "?", "drop_last": "?"}


def deal_ten(drop_last):
    return list(DistributedSampler(range(10), shuffle=False, drop_last=drop_last))


padded = launch(deal_ten, False, world_size=4, backend="gloo")
dropped = launch(deal_ten, True, world_size=4, backend="gloo")
counts = [Counter(chain(*hands)) for hands in (padded, dropped)]
print("predicted:", predicted)
print("measured: ", {"default": counts[0].total(), "drop_last": counts[1].total()})
print("dealt twice:", [n for n in range(10) if counts[0][n] == 2], end=", ")
print("never dealt:", [n for n in range(10) if counts[1][n] == 0])

# %%
figure, axes = plt.subplots(1, 2, figsize=(7, 3.2), layout="constrained")
batches_of_one = [[[[n] for n in hand] for hand in hands] for hands in (padded, dropped)]
draw_deal(axes[0], batches_of_one[0], "default: padded", again={(2, 2), (3, 2)})
draw_deal(axes[1], batches_of_one[1], "drop_last=True")
show(
    figure,
    "Samples 0 and 1 are dealt a second time (hatched); or samples 8 and 9 are not dealt at all.",
)

# %% [markdown]
# Twelve or eight, never ten. In training neither matters much: with `set_epoch`, others are doubled or left out in every epoch. In
# **validation** it does matter: two of ten samples count twice.
#
# ### A metric that one process would have found
#
# One rank trains a small judge of digits, in float64 so that rounding plays no part. Then eight ranks let it judge the 355 test digits.

# %%
training, testing = digits(train=True), digits(train=False)


def train_judge(steps=40):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = cross_entropy(model(training.data.double()), training.targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


judge = launch(train_judge, world_size=1, backend="gloo")[0]

# %% [markdown]
# One of our articles prints as the loss of an epoch: the sum of batch loss × batch size, divided by the sampler's number of samples. `evaluate` returns that, and
# two ways to put the ranks' figures together. It takes the digits from the sampler, or from `hands`, which need not be even.


# %%
def evaluate(hands=None):
    sampler = DistributedSampler(testing, shuffle=False)
    own = Subset(testing, hands[dist.get_rank()] if hands else list(sampler))
    sums = torch.zeros(3, dtype=torch.float64)  # loss, right answers, digits
    for images, labels in DataLoader(own, batch_size=16):
        output = judge(images.double())
        right = (output.argmax(dim=1) == labels).sum()
        loss = cross_entropy(output, labels) * len(labels)
        sums += torch.stack([loss, right, torch.tensor(len(labels))])
    local = sums[:2] / sums[2]
    mean_of_means = local.clone()
    dist.all_reduce(mean_of_means, op=dist.ReduceOp.AVG)
    dist.all_reduce(sums)
    return {"local": local, "mean of means": mean_of_means, "sums": sums}


# %% [markdown]
# The uneven hands are eight files of 120 down to 5 digits. **Predict.** Which of the six lines below show the loss and the accuracy of one process?

# %%
predicted_lines = []
files = torch.arange(355).split([120, 80, 60, 40, 25, 15, 10, 5])
alone = launch(evaluate, [range(355)], world_size=1, backend="gloo")[0]
padded = launch(evaluate, world_size=8, backend="gloo")
uneven = launch(evaluate, files, world_size=8, backend="gloo")
table = [
    ("one process", alone["sums"]),
    ("1 padded, as printed by rank 0", padded[0]["local"]),
    ("2 padded, as printed by rank 1", padded[1]["local"]),
    ("3 padded, sums and counts added", padded[0]["sums"]),
    ("4 uneven, as printed by rank 0", uneven[0]["local"]),
    ("5 uneven, mean of the means", uneven[0]["mean of means"]),
    ("6 uneven, sums and counts added", uneven[0]["sums"]),
]

# %%
print("predicted:", predicted_lines)
for name, (loss, right, *count) in table:
    counted = f"{right:3.0f} of {count[0]:.0f}" if count else " " * 10
    loss, accuracy = loss / (count or [1])[0], right / (count or [1])[0]
    print(f"{name:32} {counted}  loss {loss:.4f}  accuracy {100 * accuracy:.2f} %")
assert torch.equal(uneven[0]["sums"][1:], alone["sums"][1:])  # whole numbers: exactly
assert torch.allclose(uneven[0]["sums"], alone["sums"], rtol=1e-12, atol=0)

# %% [markdown]
# Only line 6. The article's formula is right, but for **one rank**: it is the mean over its own 45 digits. Rank 0 prints 0.66 and rank 1
# 0.59, where one process finds 0.57. Padding counts five digits twice: 336 of 360. The mean of means treats a file of 5 digits like one of 120.
#
# **Sums and counts** without padding give 331 of 355, exactly, and a loss that agrees to twelve digits. One `all_reduce` of three numbers does it, at
# the end of the epoch. So: no padding in validation, reduce sums and counts, divide last.
#
# **Check yourself.** Is the sampler's `drop_last=True` a cure in validation?
#
# <details><summary>Answer</summary>
# No. It leaves out up to world size − 1 samples, so the figure depends on the world size again. Take
# <code>range(rank, len(data), world_size)</code>: hands may differ by one, since evaluation needs no collective in each step, if you call
# <code>model.module</code> and not the DDP wrapper.
# </details>
#
# ## 3 · When a rank runs out of data
#
# In training the hands may be uneven too: files of unequal length, streams, filters. Below, rank 0 has three batches of eight digits, rank 1
# has two.


# %%
def make_model(dtype=torch.float32):
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(*layers).to(dtype)


def step(model, loss, learning_rate=0.1):
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= learning_rate * parameter.grad


batches = list(DataLoader(Subset(training, range(40)), batch_size=8))
hands = [(0, 2, 4), (1, 3)]  # rank 0 has three of the five batches, rank 1 two


# %% [markdown]
# This cell is meant to fail. **Predict:** which rank waits, in which line?


# %% tags=["raises-exception"]
def train_uneven(model):
    for number in hands[dist.get_rank()]:
        images, labels = batches[number]
        step(model, cross_entropy(model(images), labels))


def without_join():
    train_uneven(DistributedDataParallel(make_model()))


launch(without_join, backend="gloo", timeout=4)

# %% [markdown]
# Read it aloud. *Rank 0, waiting in backward*: that is where DDP averages gradients, and its third gradient has nobody to be averaged with.
# *Rank 1, its function has returned*: it did nothing wrong, its data were used up. Left alone, rank 0 would wait many minutes for torch's own timeout.
#
# `Join` is torch's cure. A rank that has run out stays, and answers the others' collectives with zeros until all are done. But an average of two
# ranks with one gradient: what is it divided by?
#
# **Predict.** In step 3, does the one gradient count in full or by half, by default? `one_process` does both, for comparison.

# %%
predicted_last_step = "?"


def with_join(divide_by_initial_world_size):
    model = DistributedDataParallel(make_model())
    with Join([model], divide_by_initial_world_size=divide_by_initial_world_size):
        train_uneven(model)
    return parameters_to_vector(model.parameters())


def one_process(divide_last_by):
    model = make_model()
    for numbers, divisor in ((0, 1), 16), ((2, 3), 16), ((4,), divide_last_by):
        images, labels = (torch.cat(parts) for parts in zip(*(batches[n] for n in numbers)))
        step(model, cross_entropy(model(images), labels, reduction="sum") / divisor)
    return parameters_to_vector(model.parameters())


# %%
alone = {
    divisor: launch(one_process, divisor, world_size=1, backend="gloo")[0] for divisor in (16, 8)
}
print("predicted:", predicted_last_step)
for initial in (True, False):
    joined = launch(with_join, initial, backend="gloo")
    assert torch.equal(joined[0], joined[1])  # also the rank that ran out has the last step
    for divisor, weights in alone.items():
        equal = torch.allclose(joined[0], weights, rtol=0, atol=1e-6)
        print(f"divide_by_initial_world_size={initial!s:5}  last sum / {divisor:2}: equal {equal}")

# %% [markdown]
# By half. With the default, `True`, the gradient is divided by the two ranks there were at first: **each digit weighs 1/16**, whenever it comes.
# With `False` it is divided by the ranks still active, here one: the last 8 digits weigh 1/8 each, as in a script that takes the mean of its last, small
# batch. Each is a right answer to another question. In both, the two ranks end with equal weights.
#
# **Check yourself.** In one step rank 0 has 8 digits and rank 1 only 3. Both take the mean. What does DDP do, and what would one process do?
#
# <details><summary>Answer</summary>
# DDP averages the two means, so each digit of rank 1 weighs 1/6 and each of rank 0 1/16; one process would give 1/11 to all. The cure: on each rank
# the <em>sum</em> of the loss × world size / 11, where the 11 comes from an <code>all_reduce</code> of the counts.
# </details>
#
# ## 4 · More ranks, another learning rate?
#
# "Multiply the learning rate by the number of GPUs" is common advice. Is it right? That depends on what stays the same. We train on
# 1,280 digits, and the sampler deals so that each global batch is the same set of digits on 1, 2 and 4 ranks.


# %%
part = Subset(training, range(1280))


def train(global_batch, learning_rate, criterion=cross_entropy, dtype=torch.float32):
    model = DistributedDataParallel(make_model(dtype))
    sampler = DistributedSampler(part)
    loader = DataLoader(part, global_batch // dist.get_world_size(), sampler=sampler)
    images_of_part, labels_of_part = training.data[:1280].to(dtype), training.targets[:1280]
    run = {"losses": [], "weights": []}
    for epoch in range(6):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            step(model, criterion(model(images.to(dtype)), labels), learning_rate)
        with torch.no_grad():
            loss = cross_entropy(model.module(images_of_part), labels_of_part)
        run["losses"].append(loss.item())
        run["weights"].append(parameters_to_vector(model.parameters()))
    return run


# %% [markdown]
# First the **global batch** stays 64, so the local batch shrinks from 64 to 32 to 16. The reference is one rank with a rate of 0.05. We compare
# all weights after six epochs.
#
# **Predict.** Which of these six runs end with the same weights as the reference?

# %%
predicted_same = []

total = partial(cross_entropy, reduction="sum")


def total_times_ranks(output, labels):
    return dist.get_world_size() * total(output, labels)


runs = {
    "2 ranks, rate 0.05": (2, 64, 0.05),
    "4 ranks, rate 0.05": (4, 64, 0.05),
    "4 ranks, rate 0.05 × 4": (4, 64, 0.2),
    "1 rank,  sum loss, rate 0.05 / 64": (1, 64, 0.05 / 64, total),
    "4 ranks, sum loss, rate 0.05 / 64": (4, 64, 0.05 / 64, total),
    "4 ranks, sum loss × 4, rate 0.05 / 64": (4, 64, 0.05 / 64, total_times_ranks),
}


# %%
def apart(run, other):
    return [(a - b).abs().max().item() for a, b in zip(run["weights"], other["weights"])]


reference = launch(train, 64, 0.05, world_size=1, backend="gloo")[0]
print("predicted:", predicted_same)
for name, (world_size, *settings) in runs.items():
    runs[name] = launch(train, *settings, world_size=world_size, backend="gloo")[0]
    difference = apart(runs[name], reference)[-1]
    same = "same to rounding" if difference < 1e-6 else f"differs by {difference:.2f}"
    print(f"{name:38} {same}")

# %% [markdown]
# With the same global batch and a **mean** loss nothing needs changing: DDP averages, and the average of four means over 16 digits is the mean
# over 64. If you multiply the rate all the same, you train at another rate and get another model. With a **sum** loss, DDP's division by four is
# one too many: multiply the loss by the world size.
#
# Now the **local batch** stays 64, so that four ranks take 256 digits per step, in a quarter of the steps. That is another training. For it Goyal
# and others (Accurate, Large Minibatch SGD, 2017) multiply the rate by the same factor as the batch. We try that from two starting points.

# %%
curves = {}
for rate in (0.05, 0.2):
    for label, world_size, batch, factor in [
        ("1 rank, batch 64", 1, 64, 1),
        ("4 ranks, global batch 64", 4, 64, 1),
        ("4 ranks, global batch 256", 4, 256, 1),
        ("4 ranks, global batch 256, rate × 4", 4, 256, 4),
    ]:
        results = launch(train, batch, rate * factor, world_size=world_size, backend="gloo")
        curves[rate, label] = results[0]["losses"]

ends = [losses[-1] for losses in curves.values()]
assert abs(ends[1] - ends[0]) < 1e-4  # the same global batch
assert ends[2] > 3 * ends[0]  # a larger one at the old rate
assert ends[3] < 1.5 * ends[0]  # at rate × 4
assert ends[7] > 10 * ends[4]

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
for i, ((rate, label), losses) in enumerate(curves.items()):
    axis, style = axes[i // 4], rank_style(i % 4)
    axis.plot(range(1, 7), losses, label=label, markersize=11 - 2 * (i % 4), **style)
    axis.set(title=f"rate {rate} for one rank", xlabel="epoch", yscale="log", xticks=range(1, 7))
axes[0].set_ylabel("loss over the 1,280 digits (nats)")
axes[0].legend(fontsize=9)
text = "Equal global batches, equal curves. The larger batch needs rate × 4 on the left"
show(figure, f"{text}; on the right, rate × 4 ruins it.")

# %% [markdown]
# On the left the rule works: at the old rate the larger batch is far behind after six epochs; with rate × 4 it catches up in the end.
# On the right the same rule fails: at 0.8 the network learns next to nothing.
#
# So the **global batch** is what counts, not the number of ranks. While it stays, so does the rate. When it grows, scaling the rate is a
# heuristic, something to try, with a slow start (warm-up), and not a law.
#
# **Check yourself.** Your script has `batch_size=64` in the loader and you go from 1 to 8 GPUs. Which of the two cases is it?
#
# <details><summary>Answer</summary>
# The second: the loader's number is the local batch, so the global one is now 512, with an eighth of the steps per epoch. For the first
# write <code>batch_size=64 // world_size</code>.
# </details>
#
# ## 5 · Equal, or equal to rounding?
#
# "Same to rounding" hid something. **Predict** the two lines: does it matter in which *order* numbers are added, and which of two comes *first*?

# %%
predicted = {"order": "?", "first": "?"}

print("predicted:", predicted)
print("order:", (0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3), " first:", 0.1 + 0.2 == 0.2 + 0.1)

# %% [markdown]
# Every addition rounds. So three numbers may have two sums, but *a + b* and *b + a* are always the same. Now on ranks: each brings 4,000 random
# numbers. We compare `all_reduce` with a plain loop that adds rank 0, 1, 2 and 3, bit for bit.


# %%
def add(dtype):
    generator = torch.Generator().manual_seed(dist.get_rank())
    mine = (1000 * torch.rand(4000, generator=generator, dtype=torch.float64)).to(dtype)
    total = mine.clone()
    dist.all_reduce(total)
    return mine, total


for dtype in (torch.int64, torch.float32, torch.float64):
    for world_size in (2, 4):
        brought, totals = zip(*launch(add, dtype, world_size=world_size, backend="gloo"))
        assert all(torch.equal(total, totals[0]) for total in totals)  # bits agree on all ranks
        same = (totals[0] == sum(brought)).sum().item()
        error = ((totals[0] - sum(brought)).abs() / sum(brought)).max().item()
        size = f"largest difference 1e{np.log10(error):.0f} of the sum" if error else ""
        print(f"{dtype!s:14} {world_size} ranks: {same} of 4000 as in the loop  {size}")

# %% [markdown]
# Whole numbers: all equal. Two ranks: all equal, for *a + b = b + a*. Four ranks in floating point: more than a quarter of the sums differ, by the
# last digit, and float64 moves that digit further back. Between the **ranks**, however, the cell found equal bits in all six cases: each sum is made once,
# and then handed on.
#
# ### Which order did it take?
#
# Rounding leaves a trace, so we can find out. Cut the tensor into four quarters, and try five orders of adding on each. A right order must give all
# 1,000 sums, bit for bit.

# %%
brought, totals = zip(*launch(add, torch.float32, world_size=4, backend="gloo"))
orders = [(3, 2, 1, 0), (0, 3, 2, 1), (1, 0, 3, 2), (2, 1, 0, 3), (0, 1, 2, 3)]
agree = [sum(brought[rank] for rank in order) == totals[0] for order in orders]
agree = torch.stack(agree).view(len(orders), 4, 1000).sum(dim=2).T / 10  # quarters × orders, %
for quarter, row in enumerate(agree):
    print(
        f"quarter {quarter}: all bits agree with",
        [o for o, share in zip(orders, row) if share == 100],
    )

# %% [markdown]
# One order for each quarter, and for each another one. How well do the wrong orders fare?

# %%
figure, axis = plt.subplots(figsize=(7.5, 3.2))
axis.imshow(agree, cmap="cividis", vmin=60, vmax=100, aspect="auto")
for quarter, order in np.ndindex(*agree.shape):
    value = agree[quarter, order].item()
    style = {"weight": "bold"} if value == 100 else {"color": "white" if value < 82 else "black"}
    axis.text(order, quarter, f"{value:.0f} %", ha="center", va="center", **style)
axis.set_xticks(range(5), [" + ".join(map(str, order)) for order in orders])
axis.set_yticks(range(4), [f"quarter {i}" for i in range(4)])
axis.set_xlabel("order in which the ranks' numbers are added")
show(
    figure,
    "Sums that agree in all bits: a wrong order still gives most of them, the right one gives all.",
)

# %% [markdown]
# That is a **ring**, betrayed by its rounding: each quarter sets out from another rank and grows as it goes round. Another algorithm or another
# number of ranks adds in another order, and last bits change. Nothing is wrong then.
#
# ### Rounding, or a bug?
#
# Back to part 4: the weights after each epoch, compared with one process. **Predict.** In float64 instead of float32, which differences
# shrink: those of the right runs, or that of the sum loss with its forgotten factor?

# %%
predicted_shrinks = "?"
wide = {}
for name, world_size, *settings in [
    ("1 rank", 1, 64, 0.05),
    ("2 ranks", 2, 64, 0.05),
    ("4 ranks", 4, 64, 0.05),
    ("factor forgotten", 4, 64, 0.05 / 64, total),
]:
    in_float64 = partial(train, dtype=torch.float64)
    wide[name] = launch(in_float64, *settings, world_size=world_size, backend="gloo")[0]

again = launch(train, 64, 0.05, world_size=4, backend="gloo")
print("4 ranks twice, bit for bit equal:", apart(again[0], runs["4 ranks, rate 0.05"])[-1] == 0)
print("ranks 0 and 3, bit for bit equal:", apart(again[0], again[3])[-1] == 0)

# %%
names = "2 ranks, rate 0.05", "4 ranks, rate 0.05", "4 ranks, sum loss, rate 0.05 / 64"
float32 = [apart(runs[name], reference) for name in names]
float64 = [apart(wide[name], wide["1 rank"]) for name in list(wide)[1:]]
assert max(float32[1]) < 1e-6
assert max(float64[1]) < 1e-14
assert min(float64[2]) > 0.01

figure, axis = plt.subplots(figsize=(8, 4))
for i, name in enumerate(list(wide)[1:]):
    for dtype, values, fill in [("float32", float32[i], "full"), ("float64", float64[i], "none")]:
        style = {**rank_style(i), "fillstyle": fill, "markersize": 8}
        axis.plot(range(1, 7), values, label=f"{name}, {dtype}", **style)
axis.set(xlabel="epoch", ylabel="largest difference of a weight", yscale="log", ylim=(1e-18, 10))
axis.legend(ncols=3, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1))
show(
    figure, "In float64 the rounding of 2 and 4 ranks falls below 1e-14; the bug stays where it is."
)

# %% [markdown]
# This is the test to keep: **in float64 rounding shrinks, by nearly nine orders of magnitude; a bug does not**. And the table to keep:
#
# | compared | equal | check with |
# | --- | --- | --- |
# | ranks of one run | bit for bit | `torch.equal` |
# | the same run twice (here: CPU and gloo) | bit for bit | `torch.equal` |
# | 2 or 4 ranks with one process | to rounding | `torch.allclose` |
#
# **Check yourself.** Two ranks: `all_reduce` gives exactly *a + b*. Why do their weights still differ from one process?
#
# <details><summary>Answer</summary>
# The order inside each rank. One process adds over 64 digits in its matrix product, two ranks over 32 each and then the halves: other partial
# sums, other rounding.
# </details>
#
# ## 6 · BatchNorm looks at the local batch
#
# `BatchNorm` subtracts the mean of the batch and divides by its deviation. Under DDP that is each rank's *local* batch. `SyncBatchNorm` takes
# the global one. On a CPU it says:


# %%
def ask_sync_batch_norm():
    nn.SyncBatchNorm(1)(training.data[:4])


try:
    launch(ask_sync_batch_norm, backend="gloo")
except WorkerError as error:
    print(str(error).split("\n")[0])

# %% [markdown]
# So it needs GPUs (or XPUs, or another maker's device, which torch calls `privateuseone`). There, `nn.SyncBatchNorm.convert_sync_batchnorm(model)`
# puts it in place of every BatchNorm, before DDP wraps the model. But the idea fits in a few lines that run anywhere: add up sums and squares
# over the ranks. The gradient flows back through these sums, so it needs an `all_reduce` as well.


# %%
class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mine):
        total = mine.clone()
        dist.all_reduce(total)
        return total

    backward = forward  # each rank's number is in every rank's total


class SyncedNorm(nn.BatchNorm1d):
    def forward(self, x):
        sums = SumOverRanks.apply(torch.stack([x.sum(dim=0), (x * x).sum(dim=0)]))
        mean, square = sums / (len(x) * dist.get_world_size())
        deviation = (square - mean * mean + self.eps).sqrt()
        return (x - mean) / deviation * self.weight + self.bias


# %% [markdown]
# The test: gradients of four ranks after `backward`, against one process on the same digits. The control is `LayerNorm`, which looks at one
# sample at a time.
#
# **Predict.** By how many per cent is the gradient with BatchNorm off when each rank has 32 digits? And when it has 2?

# %%
predicted_per_cent = {32: "?", 2: "?"}
sizes = (2, 4, 8, 16, 32, 64, 128, 256)


def gradient(norm, local_batch):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(784, 32), norm(32), nn.ReLU(), nn.Linear(32, 10)
    model = DistributedDataParallel(nn.Sequential(*layers))
    own = slice(rank, 4 * local_batch, world_size)  # of the same digits on 1 and on 4 ranks
    cross_entropy(model(training.data[own]), training.targets[own]).backward()
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


def gradients(*norms):
    return [torch.stack([gradient(norm, size) for size in sizes]) for norm in norms]


# %%
norms = nn.BatchNorm1d, SyncedNorm, nn.LayerNorm
on_one = nn.BatchNorm1d, nn.BatchNorm1d, nn.LayerNorm
four = launch(gradients, *norms, world_size=4, backend="gloo")[0]
one = launch(gradients, *on_one, world_size=1, backend="gloo")[0]
off = [(ours - true).norm(dim=1) / true.norm(dim=1) for ours, true in zip(four, one)]
batch_norm = {size: round(100 * error.item()) for size, error in zip(sizes, off[0])}
print("predicted per cent:", predicted_per_cent)
print("measured per cent: ", batch_norm)
assert max(off[1].max(), off[2].max()) < 1e-5

# %% [markdown]
# And for all sizes, beside the sum over ranks and the control:

# %%
figure, axis = plt.subplots(figsize=(8, 3.8))
for i, norm in enumerate(norms):
    axis.plot(sizes, off[i], label=norm.__name__, **rank_style(i))
axis.set(xscale="log", yscale="log", ylim=(1e-8, 10))
axis.set_xticks(sizes, sizes)
axis.minorticks_off()
axis.set(xlabel="local batch (digits per rank)", ylabel="relative error of the gradient")
axis.legend()
show(
    figure,
    "BatchNorm's error falls with the local batch; SyncedNorm and LayerNorm leave rounding only.",
)

# %% [markdown]
# At 2 digits per rank the gradient is off by more than twice its own size, at 32 by 17 %, at 256 by 4 %. With the sum over ranks, `SyncedNorm` *is*
# the BatchNorm of the global batch.
#
# So always SyncBatchNorm? 17 % sounds bad, but is it? Let us train with 2 and with 32 digits per rank, print the loss, and count what a step sends.


# %%
def train_with(norm, local_batch, steps):
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(784, 32), norm(32), nn.ReLU(), nn.Linear(32, 10)
    model = DistributedDataParallel(nn.Sequential(*layers))
    sampler = DistributedSampler(training)
    losses = []
    for images, labels in DataLoader(training, local_batch, sampler=sampler):
        loss = cross_entropy(model(images), labels)
        step(model, loss)
        losses.append(loss.detach())
        if len(losses) == steps:
            break
    mean_of_last = torch.stack(losses[-10:]).mean()
    dist.all_reduce(mean_of_last, op=dist.ReduceOp.AVG)
    return mean_of_last.item()


# %%
for local_batch, steps in ((2, 150), (32, 11)):
    for norm in (nn.BatchNorm1d, SyncedNorm):
        loss = launch(train_with, norm, local_batch, steps, world_size=4, backend="gloo")[0]
        print(f"local batch {local_batch:2}, {norm.__name__:11} after {steps:3} steps: {loss:.1f}")
for norm in (nn.BatchNorm1d, SyncedNorm):
    trace = launch(gradient, norm, 32, world_size=4, backend="gloo", trace=True).trace
    calls = [event.kind for event in trace.of_rank(0)].count("all_reduce")
    print(f"{norm.__name__:11} all_reduce calls per step: {calls}")

# %% [markdown]
# "Always use SyncBatchNorm" is wrong as a rule. With 2 digits per rank the statistics are noise, and the sum over ranks saves the training. With 32
# both stand at nearly the same loss after one epoch: another gradient, but here as good a one. And it costs two more `all_reduce` calls per layer and step. So use it where the local batch is
# small, a few large images for instance, or take a norm that never looks across samples.
#
# ### The statistics that you save
#
# For testing, BatchNorm keeps a running mean and variance. These are **buffers**, not parameters: they get no gradient, so nothing averages them.
# By default DDP copies rank 0's buffers to all ranks before each forward pass; `forward_sync_buffers=False` turns that off (older torch calls it
# `broadcast_buffers`).
#
# **Predict.** After ten steps of four ranks, are the running means of all ranks equal? Is their average that of one process?

# %%
predicted = {"ranks equal": "?", "average is that of one process": "?"}


def running_statistics(forward_sync_buffers):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))
    model = DistributedDataParallel(network, forward_sync_buffers=forward_sync_buffers)
    for begin in range(0, 320, 32):
        model(training.data[begin + rank : begin + 32 : world_size]).sum().backward()
    return torch.stack([network[1].running_mean, network[1].running_var])


# %%
alone = launch(running_statistics, True, world_size=1, backend="gloo")[0]
print("predicted:", predicted)
print("copied | ranks equal | largest difference from one process: mean, variance")
for copied in (True, False):
    ranks = torch.stack(launch(running_statistics, copied, world_size=4, backend="gloo"))
    for who, own in ("rank 0", ranks[0]), ("average of ranks", ranks.mean(dim=0)):
        mean, variance = (own - alone).abs().amax(dim=1).tolist()
        equal = torch.equal(ranks[0], ranks[3])
        print(f"{copied!s:6} | {equal!s:11} | {who:16} {mean:.2f}, {variance:.2f}")

# %% [markdown]
# Not equal, even with copying: each rank has added its own last batch since. And copying averages nothing: rank 0 is equally far off with and without
# it, for it has seen a quarter of the digits. Without copying, the *average* of the running means is that of one process; that of the variances lacks
# the spread between ranks. So if you save rank 0's model, you save rank 0's statistics. Average the buffers first, or synchronise the norm.
#
# ## 7 · Four ranks, the same random numbers
#
# Dropout, noise and augmentation draw random numbers. A forked rank is a copy of the notebook, and so is its generator. **Predict.** Of these three
# sources, which gives four ranks four different numbers?

# %%
predicted = {"torch": "?", "numpy": "?", "random": "?"}
torch.manual_seed(0)


def draw(own_seed):
    if own_seed:
        torch.manual_seed(100 + dist.get_rank())
        np.random.seed(100 + dist.get_rank())
    mask = dropout(torch.ones(24)) > 0
    return mask, [torch.rand(1).item(), np.random.rand(), random.random()]


masks = {}
print("predicted:      ", predicted)
for name, own_seed in {"as forked": False, "seeded per rank": True}.items():
    mask, drawn = zip(*launch(draw, own_seed, world_size=4, backend="gloo"))
    masks[name] = torch.stack(mask)
    print(f"{name:15}:", {source: len(set(own)) for source, own in zip(predicted, zip(*drawn))})

# %% [markdown]
# And the masks that dropout made on the four ranks:

# %%
figure, axes = plt.subplots(1, 2, figsize=(10, 1.9), layout="constrained")
for axis, (name, mask) in zip(axes, masks.items()):
    axis.pcolormesh(mask, cmap="Blues", vmin=-0.2, vmax=1.3, edgecolors="white", linewidth=1.5)
    axis.set(title=f"{name}: 24 units under dropout", xticks=[], ylim=(4, 0))
    axis.set_yticks([r + 0.5 for r in range(4)], [f"rank {r}" for r in range(4)])
    axis.tick_params(length=0)
assert [len(mask.unique(dim=0)) for mask in masks.values()] == [1, 4]
show(
    figure, "Left, four ranks drop the same units (pale); right, each rank drops units of its own."
)

# %% [markdown]
# Python's `random` reseeds itself at a fork; torch and numpy do not. Without a fork, under `torchrun`, `torch.manual_seed(0)` at the top of the script has the
# same effect. The samples differ, but the noise on them is the same on all ranks: there is less of it than you think. The cure is a line per
# generator: a seed plus the rank. DDP makes the weights equal anyhow.
#
# And the loader's workers? Each of two ranks has two of them, and each of the four draws one number.


# %%
def noise(batch):
    return torch.rand(1).item()  # an augmentation, made in a worker of the loader


def noise_of_workers(own_seed):
    if own_seed:
        torch.manual_seed(100 + dist.get_rank())
    options = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": noise}
    return list(DataLoader(range(4), sampler=DistributedSampler(range(4)), **options))


for name, own_seed in {"as forked": False, "seeded per rank": True}.items():
    numbers = launch(noise_of_workers, own_seed, backend="gloo")
    print(f"{name:15}: {len(set(chain(*numbers)))} different numbers from four workers")

# %% [markdown]
# A worker's seed is a number that its rank draws, plus the worker's own number. So the workers of *one* rank differ, and those of equal ranks are
# twins. Seeding the ranks cures the workers too.
#
# **Check yourself.** Why does seeding per rank not break the shuffling, though `DistributedSampler` is used after it?
#
# <details><summary>Answer</summary>
# It shuffles with its own generator, made anew from <code>seed + epoch</code>. A loader with <code>shuffle=True</code> and no sampler would draw from the rank's
# generator: ranks with seeds of their own then deal overlapping hands.
# </details>
#
# ## 8 · One rank downloads
#
# Many scripts begin by fetching their data, and every rank runs that line. We need no network to see what happens: `download` stands in for a
# slow server, with a line every 10 ms. Each node has its own disk, here a folder.


# %%
def download(path):
    with path.open("w") as file:
        for number in range(100):
            file.write(f"sample {number}\n")
            file.flush()
            time.sleep(0.01)


def own_disk(disks):
    folder = Path(disks, os.environ["GROUP_RANK"])  # the node's number
    folder.mkdir(exist_ok=True)
    return folder / "data.txt"


def is_complete(path):
    return path.exists() and len(path.read_text().splitlines()) == 100


# %% [markdown]
# **Predict.** Rank 1 comes a moment after rank 0, finds the file and, being polite, does not fetch it again. Who has complete data?

# %%
predicted_complete = ["?", "?"]


def everyone_fetches(disks):
    path = own_disk(disks)
    while dist.get_rank() == 1 and not path.exists():
        time.sleep(0.001)  # rank 1 comes a moment later
    if not path.exists():
        download(path)
    return is_complete(path)


with tempfile.TemporaryDirectory() as disks:
    complete = launch(everyone_fetches, disks, backend="gloo")
print("predicted:", predicted_complete)
print("measured: ", complete)

# %% [markdown]
# The file was there, and most of what belongs in it was not. No error: rank 1 would train on what it found.
#
# So one rank fetches, and the others wait in a barrier. We try that on one node, on two, and with a server that is down. **Predict:** which of the
# three goes well?


# %%
def one_fetches(disks, fetch):
    path = own_disk(disks)
    if dist.get_rank() == 0:
        try:
            fetch(path)
        except OSError as error:
            return f"gave up: {error}"
    dist.barrier()
    return is_complete(path)


def no_server(path):
    raise OSError("the server is down")


# %%
with tempfile.TemporaryDirectory() as disks:
    print("one node: ", launch(one_fetches, disks, download, backend="gloo"))
with tempfile.TemporaryDirectory() as disks:
    print("two nodes:", launch(one_fetches, disks, download, world_size=4, nodes=2, backend="gloo"))
    try:
        launch(one_fetches, disks, no_server, backend="gloo", timeout=2)
    except WorkerError as error:
        print("server down:", error)

# %% [markdown]
# Only the first. On two nodes, ranks 2 and 3 have another disk than rank 0. And when rank 0 gives up, it never reaches the barrier: rank 1 waits
# for it, and nobody says why. A barrier says "I am here"; it cannot say "it went wrong".
#
# The right pattern has three parts. **Local rank 0** of each node fetches. It fetches under **another name**, so that the file is either complete or not
# there. And the barrier **carries the news**.


# %%
def fetch_once_per_node(disks, fetch):
    path, trouble = own_disk(disks), None
    if os.environ["LOCAL_RANK"] == "0":
        try:
            fetch(path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
        except OSError as error:
            trouble = f"rank {dist.get_rank()}: {error}"
    news = [None] * dist.get_world_size()
    dist.all_gather_object(news, trouble)  # a barrier that carries the news
    if any(news):
        return [words for words in news if words]  # in a script: raise, on every rank
    return is_complete(path)


# %%
with tempfile.TemporaryDirectory() as disks:
    for fetch in (no_server, download):
        results = launch(fetch_once_per_node, disks, fetch, world_size=4, nodes=2, backend="gloo")
        print(*results, sep="\n")

# %% [markdown]
# Four ranks on two nodes. With the server down, all four know who failed and why, and stop together; with the server up, all four have complete
# data.
#
# **Check yourself.** All nodes mount one shared disk. What changes?
#
# <details><summary>Answer</summary>
# The test: <code>dist.get_rank() == 0</code> instead of the local rank. The other name and the news stay as they are.
# </details>
#
# ## What you know now
#
# `set_epoch` comes before the loop; validation reduces sums and counts; `Join` keeps uneven ranks together, and you know what it divides by. The
# **global batch** decides about the learning rate. Ranks agree bit for bit, world sizes to rounding, and float64 tells rounding from a bug. Batch
# statistics are each rank's own unless you sum them; random numbers are common unless you seed them.
#
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb). [00 · Start here](00_start_here.ipynb) ended with a question about four ranks
# and 1,442 digits: you can now answer it with a picture.
