# %% [markdown]
# # Lab 07 · Data, batches and numerics
#
# Five exercises and a bonus, 50 minutes without the bonus, on any computer. Exercises 1, 2 and 5 go with [chapter 07](../notebooks/07_data_batches_numerics.ipynb), 3 and 4 with
# [chapter 15](../notebooks/15_numerics.ipynb).
#
# In the chapters, simple ways to deal samples, to add up and to average were enough. Here each of them meets a case in which it fails.

# %% [markdown]
# You write a function's body. `check` runs it in real workers and compares what they return with a **specification**: one process that has all ranks' data. The ranks' shares are
# rarely equally large, and a rank may have nothing.
#
# Each exercise says how difficult it is and how important for the rest of the course, from ●○○ to ●●●.

# %%
import functools
import itertools
import math
import re
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from course_material.language import SmallGPT, novel
from course_utils import check, progress

# %% [markdown]
# ## 1 · The rest of an epoch
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* A job may be stopped in the middle of an epoch and go on with fewer ranks, because a machine is gone. torch's `DistributedSampler`
# always begins an epoch at its first sample. And if the samples can't be dealt evenly, it deals some of them twice.

# %% [markdown]
# **Goal:** write a sampler that deals each sample **once**. In epoch *e* all ranks shuffle alike, with `torch.randperm` and a generator seeded by `seed + e`. The first `done`
# samples of that order are left out: they were dealt before, to however many ranks. The rest is dealt like cards.

# %% [markdown]
# What a rank is dealt is its **hand**, and `len` returns the hand's length. The check may ask for a hand twice. Nothing is sent.
#
# | 10 samples in this order | 8 2 5 0 9 3 7 1 6 4 |
# | --- | --- |
# | 3 ranks, `done=0` | rank 0: 8 0 7 4, rank 1: 2 9 1, rank 2: 5 3 6 |
# | 2 ranks, `done=6` | rank 0: 7 6, rank 1: 1 4 |


# %%
class EpochSampler:
    def __init__(self, length, seed):
        self.length, self.seed = length, seed
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.set_epoch(0)

    def set_epoch(self, epoch, done=0):
        ### BEGIN SOLUTION
        self.epoch, self.done = epoch, done  # both anew: the next epoch begins at its beginning
        ### END SOLUTION

    def __iter__(self):
        ### BEGIN SOLUTION
        # A generator of its own, made each time: the same hand again, and the global one untouched.
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        return iter(order[self.done + self.rank :: self.world_size])
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        # The slice above, of the places instead of the samples: nothing has to be shuffled.
        return len(range(self.done + self.rank, self.length, self.world_size))
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How can all ranks shuffle alike without a message? And at which place of the order does rank 1 begin, if 6 samples are done?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make a new generator in each <code>__iter__</code>, seeded by seed and epoch, so that a hand can be asked for twice. A slice with a step deals the cards. The length of a <code>range</code> with the same three
# numbers counts them.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>order[self.done + self.rank :: self.world_size]</code>, with <code>order</code> from <code>torch.randperm(self.length, generator=...)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def sampler_spec(lengths, seeds, epochs):
    hands = [[] for _ in lengths]
    for epoch, done in [start for start in epochs[0] for _ in range(2)]:
        generator = torch.Generator().manual_seed(seeds[0] + epoch)
        remaining = torch.randperm(lengths[0], generator=generator).tolist()[done:]
        for rank, hand in enumerate(hands):
            dealt = remaining[rank :: len(lengths)]
            hand.append((len(dealt), dealt))
    return hands


def dealing(kind):
    """Ask a sampler what a loader would ask it, epoch by epoch, and each time once more."""

    @functools.wraps(kind, updated=())
    def dealt(length, seed, epochs):
        sampler, hands = kind(length, seed), []
        for epoch, done in epochs:
            sampler.set_epoch(epoch, done) if done else sampler.set_epoch(epoch)
            for _ in range(2):
                hands.append((len(sampler), [int(sample) for sample in sampler]))
        return hands

    return dealt


# %% jupyter={"source_hidden": true}
decks = {  # samples, seed, and which epochs, each with what is done
    "12 samples, one epoch": (12, 0, [(0, 0)]),
    "10 samples, epochs 0 and 1": (10, 7, [(0, 0), (1, 0)]),
    "10 samples, 4 of epoch 0 are done, then epoch 1": (10, 3, [(0, 4), (1, 0)]),
    "30 samples, 11 of epoch 3 are done, then epochs 2 and 3": (30, 1, [(3, 11), (2, 0), (3, 0)]),
    "7 samples, 6 or 7 of epoch 2 are done": (7, 2, [(2, 6), (2, 7)]),
    "no samples": (0, 5, [(0, 0)]),
    "2,000 samples, 333 of epoch 41 are done": (2000, 123_456_789, [(41, 333), (42, 0)]),
}


def sampler_inputs(rank, world_size, case):
    return decks[case]


sampler_check = {"spec": sampler_spec, "inputs": sampler_inputs, "cases": list(decks)}
sampler_check |= {"budget": {"sent_messages": 0}, "keep": ("random numbers",)}

# %%
check(dealing(EpochSampler), **sampler_check)

# %% [markdown]
# ## 2 · The median of numbers that stay where they are
#
# *Difficulty ●●○ · importance ●○○ · 10 minutes.* The median of the ranks' medians is not the median, and a billion losses are 4 GB, too much to send for one number. But *how many
# losses are at most 0.7?* is a question that one sum answers.

# %% [markdown]
# **Goal:** return on every rank the `k`-th smallest of all ranks' `losses`, to within a hundred-thousandth. You may ask often, but few losses may travel.
#
# Each rank has a vector of numbers between minus and plus a million, perhaps an empty one. Many may be equal. `k` is the same on all ranks and counts from 1.

# %% [markdown]
# With `k` half-way up you get the median. With a larger `k` you get, say, the loss that only one sample in a hundred exceeds. The same search finds the threshold below which
# weights are pruned in a network that no rank holds alone.


# %%
def kth_smallest_spec(losses, ks):
    return [torch.cat(losses).kthvalue(ks[0]).values.item()] * len(losses)


# %%
def kth_smallest(losses, k):
    ### BEGIN SOLUTION
    low, high = -1e6, 1e6  # fewer than k losses are below `low`, at least k are at most `high`
    while high - low > 1e-6:
        middle = (low + high) / 2
        count = (losses <= middle).sum()
        dist.all_reduce(count)  # all ranks see the same sum, so all take the same turn
        if count < k:
            low = middle
        else:
            high = middle
    return high
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# You guess 0.7, and 412 of all ranks' losses are at most that. Is the 500th smallest above or below your guess? What do you guess next?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Keep two bounds between which the answer must be. Count the losses up to the middle between them, add up the ranks' counts, and move one bound to the middle. After 41 halvings a range of two
# millions is narrower than a millionth.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>count = (losses &lt;= middle).sum()</code>, then <code>dist.all_reduce(count)</code>. With <code>count &lt; k</code> the answer is above the middle.
# </details>


# %% jupyter={"source_hidden": true}
shares = {
    "equal shares": lambda rank, world_size: 4,
    "unequal shares": lambda rank, world_size: 2 + 5 * rank,
    "nothing on rank 0": lambda rank, world_size: 3 * rank if world_size > 1 else 3,
}
places = {  # which share of the losses is at most the wanted one
    "the median, equal shares": ("equal shares", 0.5),
    "the smallest, unequal shares": ("unequal shares", 0),
    "99 of 100 are smaller, unequal shares": ("unequal shares", 0.99),
    "the largest, nothing on rank 0": ("nothing on rank 0", 1),
}


# %% jupyter={"source_hidden": true}
def kth_smallest_inputs(rank, world_size, case):
    share, place = places[case]
    counts = [1000 * shares[share](each_rank, world_size) for each_rank in range(world_size)]
    width = 34 / (world_size - rank)  # the last rank's reach a million, both ways
    losses = (width * torch.randn(counts[rank], dtype=torch.float64) + 3 * rank) ** 3
    losses[::2] = (losses[::2] / 5000.1).round() * 5000.1 + 0  # many are equal, and many of those 0
    return losses.clamp(-1e6, 1e6), max(1, math.ceil(place * sum(counts)))


def kth_smallest_budget(world_size, case):
    return {"sent_bytes": 12_000 * (world_size - 1)}  # of the ranks' 16,000 to 96,000


kth_check = {"spec": kth_smallest_spec, "inputs": kth_smallest_inputs, "cases": list(places)}
kth_check |= {"budget": kth_smallest_budget, "rtol": 0.0, "atol": 1e-5}

# %%
check(kth_smallest, **kth_check)

# %% [markdown]
# ## 3 · A norm for numbers far from zero
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* A synced norm that adds up sums and squares fails far from zero. Time stamps are near 1.8 billion, their squares near 3 · 10¹⁸, where
# a float64 rounds to hundreds. The variance is the small difference of two such numbers, so it's lost.

# %% [markdown]
# **Goal:** return this rank's `rows` with the mean and the deviation of **all** ranks' rows, column by column, as the specification says. Each rank has any number of rows, perhaps
# one or none. Send only statistics, in no more messages than one `all_reduce` takes.

# %% [markdown]
# This is the forward pass of `SyncBatchNorm`, which does not run on a CPU. It too gathers statistics of each rank, and combines them ([torch/nn/modules/_functions.py](https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/_functions.py)).


# %%
def normalise_spec(rows):
    every = torch.cat(rows)
    mean, variance = every.mean(dim=0), every.var(dim=0, correction=0)
    return [(rank_rows - mean) / (variance + 1e-5).sqrt() for rank_rows in rows]


# %%
def normalise(rows):
    ### BEGIN SOLUTION
    mean = rows.sum(dim=0) / max(1, len(rows))  # no rows: 0, where mean() would be nan
    around = ((rows - mean) ** 2).sum(dim=0)  # small numbers, however far away the mean is
    statistics = torch.stack([torch.full_like(mean, len(rows)), mean, around])
    every = [torch.empty_like(statistics) for _ in range(dist.get_world_size())]
    dist.all_gather(every, statistics)
    counts, means, arounds = torch.stack(every, dim=1)
    mean = (counts * means).sum(dim=0) / counts.sum(dim=0)
    # A rank's rows lie around its own mean, and that mean lies away from the mean of all.
    variance = (arounds + counts * (means - mean) ** 2).sum(dim=0) / counts.sum(dim=0)
    return (rows - mean) / (variance + 1e-5).sqrt()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Subtract a mean before you square, and nothing is lost. Which mean does a rank know before it has heard of the others? And what is missing, if two ranks' rows lie close together, but around different means?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Each rank computes count, mean and the sum of squares <i>around its own mean</i>. Gather the three. The mean of all is the means' mean, weighted by the counts. The sum of squares around it: the ranks' sums, and for each rank its count times
# the square of the distance between its mean and the mean of all
# (<a href="https://doi.org/10.1080/00031305.1983.10483115">Chan, Golub and LeVeque 1983</a>).
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_gather(every, torch.stack([torch.full_like(mean, len(rows)), mean, around]))</code>, and then
# <code>(arounds + counts * (means - mean) ** 2).sum(dim=0) / counts.sum(dim=0)</code>. The mean of no rows is <code>nan</code>: say 0 instead.
# </details>


# %% jupyter={"source_hidden": true}
heights = {
    "50 rows each": lambda rank, world_size: 50,
    "1 row each": lambda rank, world_size: 1,
    "unequal numbers of rows": lambda rank, world_size: 1 + 120 * rank,
    "unequal numbers of rows, eight columns": lambda rank, world_size: 9 + 20 * rank,
    "no rows on the last rank": lambda rank, world_size: 50 * (max(2, world_size) - 1 - rank),
    "ranks that are days apart": lambda rank, world_size: 20 + rank,
}
# Time stamps in seconds: no two cases begin at the same time, and none at a round one.
since = (1_654_321_987.0, -310_123_456.0, 1.8e9, 987_654_321.0, 1.8e9, 1_700_450_000.0)
since = dict(zip(heights, since))


# %% jupyter={"source_hidden": true}
def normalise_inputs(rank, world_size, case):
    """Columns: around zero, time stamps, and in most cases small numbers and a constant."""
    rows = torch.randn(heights[case](rank, world_size), 4, dtype=torch.float64) + rank
    scale = torch.tensor([1, 1, 0.02, 0], dtype=torch.float64)
    days = 86_400 * rank if case == "ranks that are days apart" else 0
    rows = rows * scale + torch.tensor([0, since[case] + days, 0.5, 3], dtype=torch.float64)
    if "eight columns" in case:
        rows = torch.cat([rows, 3 * rows.flip(1)], dim=1)
    return rows[:, :2].contiguous() if case == "1 row each" else rows


def normalise_budget(world_size, case):
    """An all_reduce of three rows per rank, or as many objects; 50 rows have 1,600 bytes."""
    return {"sent_messages": 2 * (world_size - 1), "sent_bytes": 1200 * (world_size - 1)}


normalise_check = {"spec": normalise_spec, "inputs": normalise_inputs, "cases": list(heights)}
normalise_check |= {"budget": normalise_budget, "rtol": 1e-5, "atol": 1e-5}

# %%
check(normalise, **normalise_check)

# %% [markdown]
# ## 4 · Every token weighs the same
#
# *Difficulty ●●● · importance ●●● · 12 minutes.* Sentences have unequal lengths, so a batch is padded, and only real tokens count. Until October 2024 [Hugging Face's
# Trainer](https://huggingface.co/blog/gradient_accumulation) took the mean of the micro-batches' means, so that a token weighed more where there were few.

# %% [markdown]
# **Goal:** with `model`, a DDP already, and this rank's micro-batches, compute the gradient of the mean loss over **all** tokens of all ranks and micro-batches, and return it with `gradients`.

# %% [markdown]
# - A micro-batch is a pair `tokens, targets`, each (sentences, length). Where a target is -100, nothing is to be guessed: `cross_entropy` leaves it out. A micro-batch may be all padding.
# - Ranks may have different numbers of micro-batches, at least one each. There is room for the graph of one at a time.
# - Send each rank's gradients once, all in one message, and one extra small message. (DDP divides the sum of the ranks' gradients by the world size.)


# %%
def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def token_gradient_spec(models, batches):
    every = [batch for rank_batches in batches for batch in rank_batches]
    count = sum((targets != -100).sum() for _, targets in every)
    for tokens, targets in every:
        loss = cross_entropy(models[0](tokens).mT, targets, reduction="sum")
        (loss / count).backward()
    return [gradients(models[0])] * len(models)


# %%
def token_gradient(model, batches):
    ### BEGIN SOLUTION
    count = sum((targets != -100).sum() for _, targets in batches)
    dist.all_reduce(count)  # before the first backward: every gradient is divided by it
    for number, (tokens, targets) in enumerate(batches, 1):
        # DDP decides in the forward whether this backward will talk, so both stand inside.
        with nullcontext() if number == len(batches) else model.no_sync():
            loss = cross_entropy(model(tokens).mT, targets, reduction="sum")  # 0 if all is padding
            loss *= dist.get_world_size()  # which DDP is going to divide by
            (loss / count).backward()
    return gradients(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# By which number must a token's loss be divided, wherever it stands? Does any rank know that number alone? And when must it be known?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Count the targets that are not -100 in all your micro-batches, and add the counts up over the ranks, before you begin. A micro-batch's loss is a sum, times the world size, divided by that count. All
# micro-batches but the last go through forward and backward inside of <code>no_sync()</code>; their gradients add up.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>with nullcontext() if number == len(batches) else model.no_sync():</code> around forward and backward, and
# <code>cross_entropy(model(tokens).mT, targets, reduction="sum")</code>, whose scores want the alphabet in the second dimension, hence <code>mT</code>.
# </details>


# %% jupyter={"source_hidden": true}
corpora = {  # sentences and length of each micro-batch
    "2 micro-batches each": lambda rank: [(3, 6), (3, 9)],
    "more on later ranks": lambda rank: [(2, 4 + 3 * number) for number in range(1 + rank)],
    "the last of rank 0, the first of rank 1 is all padding": lambda rank: (
        [(3, 8), (2, 5), (1 + rank, 7)]
    ),
}


def token_gradient_inputs(rank, world_size, case):
    batches = []
    for rows, length in corpora[case](rank):
        ends = torch.randint(1, length + 1, (rows, 1))
        if "padding" in case and (rank, len(batches)) in ((0, 2), (1, 0)):
            ends *= 0
        real, letters = torch.arange(length) < ends, torch.randint(11, (rows, length + 1))
        batches.append((letters[:, :-1] * real, letters[:, 1:].where(real, -100)))
    return SmallGPT(11, width=8, depth=1, context=16).double(), batches


# %% jupyter={"source_hidden": true}
def in_small_memory(model, room):
    """Refuse more tokens at once, and a forward before the last one's backward."""
    waiting = []

    def refuse_more(model, given, scores):
        if (count := given[0].numel()) > room:
            raise MemoryError(f"{count} tokens at once, and there is room for {room}")
        if waiting:
            raise MemoryError("a second graph, before backward() has given the first one's back")
        if scores.requires_grad:
            waiting.append(scores.shape)
            scores.register_hook(lambda gradient: waiting.clear())

    model.register_forward_hook(refuse_more)
    return DistributedDataParallel(model)


def accumulating(answer):
    """Put the model in a small memory, wrap it in DDP, and call the answer."""

    @functools.wraps(answer)
    def accumulated(model, batches):
        room = max(tokens.numel() for tokens, _ in batches)
        return answer(in_small_memory(model, room), batches)

    return accumulated


# %% jupyter={"source_hidden": true}
def token_gradient_budget(world_size, case):
    """Enough for DDP's start, for one all_reduce of the gradients, and for one of the counts."""
    return {"sent_messages": (world_size - 1) * 10}


def of_the_busiest(world_size, case):
    """What that rank may compute, in equal shares: its own tokens, and a little more."""
    tokens = [sum(rows * length for rows, length in corpora[case](r)) for r in range(world_size)]
    return 1.2 * world_size * max(tokens) / sum(tokens)


token_check = {"spec": token_gradient_spec, "inputs": token_gradient_inputs}
token_check |= {"cases": list(corpora), "budget": token_gradient_budget, "work": of_the_busiest}
token_check |= {"rtol": 1e-5, "atol": 1e-7}

# %%
check(accumulating(token_gradient), **token_check)

# %% [markdown]
# ## 5 · Go on in the middle of an epoch
#
# *Difficulty ●●● · importance ●●○ · 12 minutes.* A run may stop after any step. New processes load the checkpoint (that is done) and go on at global step `position`, counted from 0.
# An epoch of 30 samples has three steps: of 12 samples, of 12, and of 6.

# %% [markdown]
# **Goal:** take `steps` steps with `take_step`, in global batches of 12, on exactly the samples that an undisturbed run would see: epoch by epoch, in the order of
# `DistributedSampler`. Load no sample that you skip or don't come to. `data` notes what this process reads, so use no loader with workers.


# %%
class Samples(Dataset):
    """30 samples; remembers which were read."""

    inputs = torch.linspace(-2, 2, 120, dtype=torch.float64).view(4, 30).T.contiguous()
    labels = torch.arange(30) % 5

    def __init__(self):
        self.read = []

    def __len__(self):
        return 30

    def __getitem__(self, number):
        self.read.append(int(number))
        return self.inputs[number], self.labels[number]


# %%
def take_step(model, optimizer, inputs, labels):
    loss = cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
def train_from(model, optimizer, data, position, steps):
    ### BEGIN SOLUTION
    sampler = DistributedSampler(data)
    batches = BatchSampler(sampler, 12 // dist.get_world_size(), drop_last=False)
    while steps > 0:
        epoch, done = divmod(position, len(batches))
        sampler.set_epoch(epoch)
        # Numbers only, cut before a loader reads anything; the epoch may end before `steps` do.
        some = list(batches)[done : done + steps]
        for inputs, labels in DataLoader(data, batch_sampler=some):
            take_step(model, optimizer, inputs, labels)
        position, steps = position + len(some), steps - len(some)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which epoch is step 4 in, if an epoch has 3 steps, and how many of its batches are done? Which is the first step of the epoch after that?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>divmod</code> gives epoch and batch. Skip numbers, not samples: a <code>BatchSampler</code> over the sampler is a list of lists of
# numbers, which can be cut at both ends before a loader reads anything. Then go on with the next epoch, from its beginning.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>DataLoader(data, batch_sampler=list(batches)[done : done + steps])</code> after <code>sampler.set_epoch(epoch)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def make_model():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double()


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_from_spec(models, stops):
    world_size, optimizer = len(models), momentum(models[0])
    read = [[] for _ in models]
    for step in range(stops[0][0], stops[0][-1]):
        epoch, number = divmod(step, 3)
        order = torch.randperm(30, generator=torch.Generator().manual_seed(epoch))
        batch = order.split(12)[number]
        take_step(models[0], optimizer, Samples.inputs[batch], Samples.labels[batch])
        for rank in range(world_size):
            read[rank] += batch[rank::world_size].tolist()
    return [{"read": samples, "weights": weights(models[0])} for samples in read]


# %% jupyter={"source_hidden": true}
def interrupting(answer):
    """Train from the first of `stops` to the last, and stop at each between them.

    Returns what this rank has read, and the weights.
    """

    @functools.wraps(answer)
    def interrupted(model, stops):
        model, read = DistributedDataParallel(model), []
        optimizer = momentum(model)
        for position, stop in itertools.pairwise(stops):
            data = Samples()
            answer(model, optimizer, data, position, stop - position)
            read += data.read
        return {"read": read, "weights": weights(model)}

    return interrupted


plans = {
    "7 steps, undisturbed": (0, 7),
    "stopped after steps 3 and 6": (0, 3, 6, 7),
    "stopped after steps 1, 2 and 5": (0, 1, 2, 5, 7),
    "from a checkpoint after step 4": (4, 5, 7),
    "from a checkpoint after step 1,000": (1000, 1003),
}


def train_from_inputs(rank, world_size, case):
    return make_model(), plans[case]


train_from_check = {"spec": train_from_spec, "inputs": train_from_inputs, "work": 1.5}
train_from_check |= {"cases": list(plans)}

# %%
check(interrupting(train_from), **train_from_check)

# %% [markdown]
# ## Bonus · Who takes which sentence?
#
# *As long as you like; there is no check and no single answer.* Chance has put 32 sentences of the novel into each global batch, and there they stay. But since every token weighs
# the same (exercise 4), the gradient doesn't depend on which of four ranks takes which sentence, in which micro-batch.

# %% [markdown]
# But it changes how long a step takes. In our model a micro-batch takes 100 tokens' time to begin, plus its sentences times the longest of them. And all ranks wait for the slowest.

# %% [markdown]
# `plain` deals the sentences like cards, one micro-batch per rank. Then 28 % of the ranks' time goes to real tokens; the rest is padding, waiting and beginning. Our best has 73 %. What is yours? (`lengths` are known to all ranks, so nothing has to be sent.)


# %%
def plain(lengths):
    """For each rank a list of micro-batches, each a list of places in `lengths`."""
    return [[list(range(len(lengths)))[rank::4]] for rank in range(4)]


# %% jupyter={"source_hidden": true}
def well_used(divide):
    """The share of the ranks' time in which they compute real tokens."""
    tokens = taken = 0
    for lengths in global_batches:
        hands = divide(list(lengths))
        places = sorted(place for hand in hands for micro in hand for place in micro)
        assert places == list(range(len(lengths))), "each sentence once"
        assert len(hands) == 4, "four ranks"
        assert all(hand and all(hand) for hand in hands), "a micro-batch each, and none empty"
        tokens += sum(lengths)
        taken += 4 * max(sum(units(lengths, micro) for micro in hand) for hand in hands)
    return tokens / taken


def units(lengths, micro):
    return 100 + len(micro) * max(lengths[place] for place in micro)


def sentences():
    numbers, alphabet = novel()
    text = "".join(alphabet[number] for number in numbers).replace("\n", " ")
    return re.findall(r"[^ ].*?[.!?](?= |$)", text)


# %%
lengths = torch.tensor([len(sentence) for sentence in sentences()])
order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0))
global_batches = [batch.tolist() for batch in lengths[order].split(32)]
print(f"{well_used(plain):.0%} of {len(lengths)} sentences' time is well used")

# %% [markdown]
# <details><summary>Where could one begin?</summary>
# Sort the lengths. Dealt like cards, they change nothing: why? What if one rank takes the few longest sentences, and another the many short ones? And when is it worth 100 tokens to begin a second micro-batch?
# </details>
#
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [08 · It hangs, lies or dies](../notebooks/08_it_hangs_lies_or_dies.ipynb), or first [15 · The numbers of many ranks](../notebooks/15_numerics.ipynb): is a difference rounding or a bug?

# %%
progress("EpochSampler", "kth_smallest", "normalise", "token_gradient", "train_from")
