# %% [markdown]
# # Lab 07 · Data, batches and numerics
#
# Six exercises on [chapter 07](../notebooks/07_data_batches_numerics.ipynb), 60 minutes, on any computer. You write the body of a
# function; `check` runs it in real workers and compares what they return with a **specification** of one process, on all the data. Here
# the ranks' shares are hardly ever of one length, and some rank may have nothing at all.

# %%
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler

from course_utils import check, progress

# %% [markdown]
# ## 1 · A sampler of your own
#
# *●●○, 10 minutes.* torch's `DistributedSampler` makes all hands equally long, by dealing some samples twice or not at all. Yours deals every
# sample **once**. **Goal:** in epoch *e*, all ranks shuffle alike, seeded by `seed + e`, and deal like cards: first rank 0, then rank 1.
# `len` is the length of this rank's hand. An epoch may be dealt again. Nothing is sent.


# %%
def dealt_alone(length, world_size, seed):
    order = torch.randperm(length, generator=torch.Generator().manual_seed(seed)).tolist()
    return [order[rank::world_size] for rank in range(world_size)]


def sampler_spec(lengths, seeds, epochs):
    world_size = len(lengths)
    twice = [epoch for epoch in epochs[0] for _ in range(2)]
    hands = [dealt_alone(lengths[0], world_size, seeds[0] + epoch) for epoch in twice]
    return [[(len(hand[rank]), hand[rank]) for hand in hands] for rank in range(world_size)]


# %%
class EpochSampler:
    def __init__(self, length, seed):
        self.length, self.seed, self.epoch = length, seed, 0
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def set_epoch(self, epoch):
        ### BEGIN SOLUTION
        self.epoch = epoch
        ### END SOLUTION

    def __iter__(self):
        ### BEGIN SOLUTION
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.length, generator=generator).tolist()
        return iter(order[self.rank :: self.world_size])
        ### END SOLUTION

    def __len__(self):
        ### BEGIN SOLUTION
        return len(range(self.rank, self.length, self.world_size))
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How can all ranks shuffle alike without a message? And how many cards has rank 2, if 10 are dealt to 4?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make a new generator in each <code>__iter__</code>, seeded by seed and epoch, so that an epoch can be repeated. A slice with a step deals
# the cards; the length of a <code>range</code> with the same three numbers counts them.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>order[self.rank :: self.world_size]</code>, with <code>order</code> from <code>torch.randperm(self.length, generator=...)</code>.
# </details>


# %%
def dealing(kind):
    """Ask a sampler what a loader would ask it, epoch by epoch, and each time once more."""

    @functools.wraps(kind, updated=())
    def dealt(length, seed, epochs):
        sampler, hands = kind(length, seed), []
        for epoch in epochs:
            sampler.set_epoch(epoch)
            for _ in range(2):
                hands.append((len(sampler), [int(sample) for sample in sampler]))
        return hands

    return dealt


decks = {
    "12 samples, one epoch": (12, 0, (0,)),
    "10 samples, epochs 0 and 1": (10, 7, (0, 1)),
    "2 samples, epochs 3, 2 and 3": (2, 1, (3, 2, 3)),
    "30 samples, epochs 3, 2 and 3": (30, 1, (3, 2, 3)),
    "no samples": (0, 5, (0,)),
}


def sampler_inputs(rank, world_size, case):
    return decks[case]


options = {"cases": list(decks), "world_sizes": (1, 2, 3, 4), "budget": {"sent_messages": 0}}
options["keep"] = ("random numbers",)
check(dealing(EpochSampler), spec=sampler_spec, inputs=sampler_inputs, **options)

# %% [markdown]
# ## 2 · Metrics that one process would find
#
# *●●○, 8 minutes.* After an epoch each rank has the network's `outputs` for its samples, a row each, and their `labels`. **Goal:** return
# the mean loss (`cross_entropy`) and the accuracy over all ranks' samples, as two `float`s, on every rank. Samples are too
# many to be sent: three numbers per rank are enough, whatever they are packed in.


# %%
def evaluate_spec(outputs, labels):
    all_outputs, all_labels = torch.cat(outputs), torch.cat(labels)
    right = all_outputs.argmax(dim=1) == all_labels
    loss, accuracy = cross_entropy(all_outputs, all_labels), right.double().mean()
    return [(loss.item(), accuracy.item())] * len(outputs)


# %%
def evaluate(outputs, labels):
    ### BEGIN SOLUTION
    loss = cross_entropy(outputs, labels, reduction="sum")
    right = (outputs.argmax(dim=1) == labels).sum()
    sums = torch.tensor([loss, right, len(labels)], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# One rank is right in 1 of 1, another in 0 of 9. What is the mean of their accuracies, and what is the accuracy?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Sums can be added up over ranks, means cannot. Reduce the sum of the losses, the number of right answers and the number of samples in one
# tensor, and divide last.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>cross_entropy(outputs, labels, reduction="sum")</code> is a sum, and 0 for a rank without samples, where the mean is
# <code>nan</code>.
# </details>

# %%
shares = {
    "equal shares": lambda rank, world_size: 4,
    "unequal shares": lambda rank, world_size: 2 + 5 * rank,
    "nothing for rank 0": lambda rank, world_size: 3 * rank if world_size > 1 else 3,
}


def evaluate_inputs(rank, world_size, case):
    count = 100 * shares[case](rank, world_size)
    outputs = torch.randn(count, 5, dtype=torch.float64)
    return outputs + rank, torch.randint(5, (count,))


def evaluate_budget(world_size, case):
    return {"sent_bytes": 1000 * (world_size - 1)}  # 100 samples have 4,800


options = {"cases": list(shares), "budget": evaluate_budget}
check(evaluate, spec=evaluate_spec, inputs=evaluate_inputs, **options)

# %% [markdown]
# ## 3 · A metric that is no mean
#
# *●●○, 10 minutes.* The median of all losses cannot be had from sums; the losses themselves have to meet. But `all_gather` takes tensors of one
# length only. **Goal:** return `torch.median` of all ranks' `losses` (a vector per rank, of any length and of any finite numbers), on every
# rank, as a tensor.


# %%
def median_spec(losses):
    return [torch.cat(losses).median()] * len(losses)


# %%
def median(losses):
    ### BEGIN SOLUTION
    world_size = dist.get_world_size()
    counts = [torch.tensor(0) for _ in range(world_size)]
    dist.all_gather(counts, torch.tensor(len(losses)))
    longest = max(counts)
    padded = [torch.empty(longest, dtype=losses.dtype) for _ in range(world_size)]
    dist.all_gather(padded, pad(losses, (0, longest - len(losses))))
    return torch.cat([one[:count] for one, count in zip(padded, counts)]).median()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# You may make all vectors equally long. Who has to know how long they really were?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Gather the lengths first. Pad every vector to the longest, gather, and cut off what was padded before you look for the median.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>pad(losses, (0, longest - len(losses)))</code> adds zeros at the end; later <code>one[:count]</code> takes them off.
# </details>


# %%
def median_inputs(rank, world_size, case):
    losses = 1 + torch.rand(4 * shares[case](rank, world_size), dtype=torch.float64)
    losses[::4], losses[5::8], losses[6::8] = 0, -1, 1000
    return losses


check(median, spec=median_spec, inputs=median_inputs, cases=list(shares))

# %% [markdown]
# ## 4 · Every sample weighs the same
#
# *●●○, 8 minutes.* DDP averages the ranks' gradients with equal weight. If one rank has 2 samples in this step and another has 7, each of the 2
# counts three and a half times as much. **Goal:** with `model`, a DDP already, do forward and backward so that the gradient is that of the mean
# loss over all samples, and return it with `gradients`.


# %%
def make_model():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double()


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def fair_gradient_spec(models, inputs, labels):
    cross_entropy(models[0](torch.cat(inputs)), torch.cat(labels)).backward()
    return [gradients(models[0])] * len(models)


# %%
def fair_gradient(model, inputs, labels):
    ### BEGIN SOLUTION
    count = torch.tensor(len(labels))
    dist.all_reduce(count)
    total = cross_entropy(model(inputs), labels, reduction="sum")
    loss = total * dist.get_world_size() / count
    loss.backward()
    return gradients(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# DDP adds up and divides by the world size. What must each rank's loss be, so that this is the sum over all samples, divided by their number?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Add up the counts of all ranks. A rank's loss is the sum over its own samples, times the world size, divided by the count of all.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>loss = total * dist.get_world_size() / count</code>, where <code>total</code> has <code>reduction="sum"</code>.
# </details>


# %%
def in_ddp(answer):
    """Wrap the model in DDP and call the answer."""

    @functools.wraps(answer)
    def wrapped(model, *arguments):
        return answer(DistributedDataParallel(model), *arguments)

    return wrapped


def fair_gradient_inputs(rank, world_size, case):
    count = shares[case](rank, world_size)
    inputs = torch.randn(count, 4, dtype=torch.float64)
    return make_model(), inputs, torch.randint(5, (count,))


def of_the_busiest(count):
    """What that rank may compute, in equal shares: its own, and a fifth more."""

    def work(world_size, case):
        counts = [count[case](rank, world_size) for rank in range(world_size)]
        return 1.2 * world_size * max(counts) / sum(counts)

    return work


options = {"cases": list(shares), "work": of_the_busiest(shares)}
check(in_ddp(fair_gradient), spec=fair_gradient_spec, inputs=fair_gradient_inputs, **options)

# %% [markdown]
# ## 5 · When a rank runs out of batches
#
# *●●○, 10 minutes.* Each rank has batches of 4 samples, but not equally many. **Goal:** with `model`, a DDP already, take one
# `take_step` per batch, with SGD and a rate of 0.5, until the last rank has none left, and return the `weights`. A batch weighs the same
# whenever it comes: gradients are always divided by the world size. On every rank the weights are to be the last ones.


# %%
def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def take_step(model, optimizer, inputs, labels):
    loss = cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def train_uneven_spec(models, inputs, labels):
    world_size, optimizer = len(models), torch.optim.SGD(models[0].parameters(), lr=0.5)
    for step in range(max(map(len, inputs))):
        optimizer.zero_grad()
        for own_inputs, own_labels in zip(inputs, labels):
            if step < len(own_inputs):
                loss = cross_entropy(models[0](own_inputs[step]), own_labels[step])
                (loss / world_size).backward()
        optimizer.step()
    return [weights(models[0])] * world_size


# %%
def train_uneven(model, inputs, labels):
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with Join([model]):
        for some_inputs, some_labels in zip(inputs, labels):
            take_step(model, optimizer, some_inputs, some_labels)
    return weights(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# In a plain loop, who waits for whom, and for how long? What would the rank that has run out have to answer?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>Join</code>, imported above, keeps a rank that has run out in the game: it answers with zeros, and gets the last weights at the end. Its
# default divides by the ranks that there were at first.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>with Join([model]):</code> around the loop, and nothing of the loop outside of it.
# </details>

# %%
stocks = {
    "2 batches each": lambda rank, world_size: 2,
    "the last rank has most": lambda rank, world_size: 1 + 2 * rank,
    "rank 0 has most, the last one none": lambda rank, world_size: 2 * (world_size - 1 - rank),
}


def train_uneven_inputs(rank, world_size, case):
    count = stocks[case](rank, world_size)
    inputs = torch.randn(count, 4, 4, dtype=torch.float64)
    return make_model(), inputs, torch.randint(5, (count, 4))


options = {"cases": list(stocks), "world_sizes": (1, 2, 3, 4), "timeout": 5}
options["work"] = of_the_busiest(stocks)
check(in_ddp(train_uneven), spec=train_uneven_spec, inputs=train_uneven_inputs, **options)

# %% [markdown]
# ## 6 · Go on in the middle of an epoch
#
# *●●●, 14 minutes.* A run may stop after any step. New processes load the checkpoint (that is done) and go on at the global step `position`.
# **Goal:** take `steps` steps with `take_step`, in global batches of 12, on exactly the samples that an undisturbed run would see: epoch by epoch, in
# the order of `DistributedSampler`. `data` notes which samples are read: read none for nothing.


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


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train_from_spec(models, stops):
    world_size, optimizer = len(models), momentum(models[0])
    read = [[] for _ in models]
    for step in range(stops[0][-1]):
        epoch, number = divmod(step, 3)  # 12 samples, 12 more, and the last 6
        order = torch.randperm(30, generator=torch.Generator().manual_seed(epoch))
        batch = order.split(12)[number]
        take_step(models[0], optimizer, Samples.inputs[batch], Samples.labels[batch])
        for rank in range(world_size):
            read[rank] += batch[rank::world_size].tolist()
    return [(own, weights(models[0])) for own in read]


# %%
def train_from(model, optimizer, data, position, steps):
    ### BEGIN SOLUTION
    sampler = DistributedSampler(data)
    batches = BatchSampler(sampler, 12 // dist.get_world_size(), drop_last=False)
    while steps > 0:
        epoch, done = divmod(position, len(batches))
        sampler.set_epoch(epoch)
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


# %%
def interrupting(answer):
    """Stop the training at each of `stops`; return what this rank has read, and the weights."""

    @functools.wraps(answer)
    def interrupted(model, stops):
        model, position, read = DistributedDataParallel(model), 0, []
        optimizer = momentum(model)
        for stop in stops:
            data = Samples()
            answer(model, optimizer, data, position, stop - position)
            position, read = stop, read + data.read
        return read, weights(model)

    return interrupted


plans = {
    "7 steps, undisturbed": (7,),
    "stopped after steps 3 and 6": (3, 6, 7),
    "stopped after steps 1, 2 and 5": (1, 2, 5, 7),
}


def train_from_inputs(rank, world_size, case):
    return make_model(), plans[case]


options = {"cases": list(plans), "work": 1.5}
check(interrupting(train_from), spec=train_from_spec, inputs=train_from_inputs, **options)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
