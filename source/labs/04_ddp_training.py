# %% [markdown]
# # Lab 04 · DDP training
#
# Five exercises on [chapter 04](../notebooks/04_ddp_training.ipynb) and a bonus, 55 minutes without the bonus, on any computer. You write distributed training that reports one loss, that can be stopped,
# whose batches needn't fit into memory, and that notices when its ranks drift apart.

# %% [markdown]
# `check` runs your code in 1, 2 and 3 real workers and compares it with the same training in one process, on all the data. Ranks have to agree with that process,
# and not only with each other. Each exercise says how difficult it is, and how important for the rest of the course, from ●○○ to ●●●.

# %%
import functools
import itertools
import multiprocessing.util
from contextlib import chdir, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_lessons import ddp_mistakes
from course_utils import check, digits, launch, progress

# %% [markdown]
# ## 1 · Six lines, from memory
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* Every DDP script contains these lines. Leave one out and usually nothing fails; you just train a different model. `train_alone` trains on 60 digits in one process, in
# a new order in each epoch.

# %% [markdown]
# **Goal:** train the same model on all ranks with DDP, in the same global batches, and return its `weights`. Training starts from rank 0's `model`; the other ranks get
# different numbers. The order of epoch *k* below is also the one of `DistributedSampler`.


# %%
training = digits(True)
images, labels = training.data[:60], training.targets[:60]
sixty_digits = TensorDataset(images, labels)


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %%
def train_alone(model, global_batch, epochs):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(global_batch):
            loss = cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return weights(model)


# %%
def train(model, global_batch, epochs):
    ### BEGIN SOLUTION
    model = DistributedDataParallel(model)  # rank 0's weights for all, then averaged gradients
    sampler = DistributedSampler(sixty_digits)
    loader = DataLoader(sixty_digits, global_batch // dist.get_world_size(), sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # else every epoch has the first one's order
        for some_images, some_labels in loader:
            loss = cross_entropy(model(some_images), some_labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return weights(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which four things does one process decide alone? Where it starts, which digits it takes, how many at a time, and in which order.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Wrap the model in DDP, deal out <code>sixty_digits</code> with a <code>DistributedSampler</code>, divide the batch by the world size, and
# tell the sampler the epoch before each epoch begins. The optimiser stays as it is.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>loader = DataLoader(sixty_digits, global_batch // dist.get_world_size(), sampler=sampler)</code>, and as the first line of an
# epoch <code>sampler.set_epoch(epoch)</code>.
# </details>


# %% jupyter={"source_hidden": true}
lengths = {"one epoch, batches of 12": (12, 1), "three epochs, batches of 30": (30, 3)}


def train_spec(models, global_batches, epochs):
    return [train_alone(models[0], global_batches[0], epochs[0])] * len(models)


def train_inputs(rank, world_size, case):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), *lengths[case]


# %% jupyter={"source_hidden": true}
def same_order_again(models, global_batches, epochs):
    for _ in range(epochs[0]):
        trained = train_alone(models[0], global_batches[0], 1)
    return [trained] * len(models)


def batch_not_divided(models, global_batches, epochs):
    return train_spec(models, [global_batches[0] * len(models)], epochs)


def shuffled(models, global_batches, epochs):
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.05)
    loader = DataLoader(sixty_digits, global_batches[0], shuffle=True)
    for _ in range(epochs[0]):
        for some_images, some_labels in loader:
            optimizer.zero_grad()
            cross_entropy(models[0](some_images), some_labels).backward()
            optimizer.step()
    return [weights(models[0])] * len(models)


# %% jupyter={"source_hidden": true}
train_mistakes = {  # what comes of likely mistakes, by the sentence that the check then says
    ddp_mistakes.SAME_ORDER: same_order_again,
    ddp_mistakes.OWN_ORDERS: shuffled,
    ddp_mistakes.BATCH_NOT_DIVIDED: batch_not_divided,
}
train_check = {"spec": train_spec, "inputs": train_inputs, "cases": list(lengths)}
train_check |= {"rtol": 1e-4, "mistakes": train_mistakes}
train_check |= {"work": 1.5}  # half as much again as its share

# %%
check(train, **train_check)

# %% [markdown]
# ## 2 · The loss of everybody
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* A rank knows the loss of its own samples. The curve you want to see is the loss of the global batch, but asking for it in every step would slow the training
# down.

# %% [markdown]
# **Goal:** train with DDP and `sgd`, one step per row of `inputs` and `targets`, and return the global losses of all steps as one tensor in double precision, on every rank. The losses may cost **one**
# `all_reduce` in all. Leave DDP's options alone: some send further messages. `take_step` takes a step and returns the loss of what it's given.
#
# | three steps | rank 0 | rank 1 |
# | --- | --- | --- |
# | its own losses | `[0.9, 0.5, 0.3]` | `[0.7, 0.7, 0.1]` |
# | returns | `[0.8, 0.6, 0.2]` | `[0.8, 0.6, 0.2]` |


# %%
def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def take_step(model, optimizer, inputs, targets):
    loss = mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# %%
def global_losses(model, inputs, targets):
    ### BEGIN SOLUTION
    model = DistributedDataParallel(model)
    optimizer, losses = sgd(model), []
    for some_inputs, some_targets in zip(inputs, targets):
        losses.append(take_step(model, optimizer, some_inputs, some_targets))
    # Nobody needs them before the end: all steps' losses travel together.
    losses = torch.stack(losses)
    dist.all_reduce(losses)
    # The mean of the ranks' means is the mean of all, because all have equally many samples.
    return losses / dist.get_world_size()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Two ranks find 0.4 and 0.8 on equally many samples. What would one process have found? And when do you need to know it?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Keep the loss of each step. After the last step, stack them, add them up over the ranks, and divide.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>losses = torch.stack(losses)</code>, then <code>dist.all_reduce(losses)</code>, then a division by
# <code>dist.get_world_size()</code>.
# </details>


# %% jupyter={"source_hidden": true}
def make_model():
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def global_losses_spec(models, inputs, targets):
    optimizer, batches = sgd(models[0]), zip(torch.cat(inputs, dim=1), torch.cat(targets, dim=1))
    losses = [take_step(models[0], optimizer, *batch) for batch in batches]
    return [torch.stack(losses)] * len(models)


counts = {"1 step": 1, "8 steps": 8}


# %% jupyter={"source_hidden": true}
def global_losses_inputs(rank, world_size, case):
    numbers = torch.randn(counts[case], 5, 6, dtype=torch.float64)
    return make_model(), numbers[..., :4], numbers[..., 4:]


def ddp_messages(world_size, steps, more=0):
    """Enough for DDP's start, for one all_reduce in each step, and for so many more."""
    return {"sent_messages": (world_size - 1) * (10 + 2 * (steps + more))}


def global_losses_budget(world_size, case):
    return ddp_messages(world_size, counts[case], more=1)


def sums_of_losses(*lists):
    return [losses * len(lists[0]) for losses in global_losses_spec(*lists)]


global_losses_check = {"spec": global_losses_spec, "inputs": global_losses_inputs}
global_losses_check |= {"cases": list(counts), "budget": global_losses_budget, "work": 1.5}
global_losses_check |= {"mistakes": {ddp_mistakes.SUM_OF_LOSSES: sums_of_losses}}

# %%
check(global_losses, **global_losses_check)

# %% [markdown]
# ## 3 · Stop, and go on
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* Every long job gets stopped at some point: by a time limit, by a crash, or by you. `Training` trains with DDP and momentum, and each rank adds noise to its inputs, from its own generator.

# %% [markdown]
# **Goal:** write `save` and `resume`. `check` trains a few steps and calls `save`. Later, as new processes would, it makes a new
# `Training` from different numbers, calls `resume`, and trains on. In the end, weights and `steps` have to be those of
# training that was never stopped. The saved training may go on as well: `save` changes nothing in it.

# %% [markdown]
# - Every rank has its own disk. `save` leaves **one file, on rank 0's disk**, and nothing anywhere else. Before `resume`, that file has been copied to every disk.
# - Write the file with `torch.save`. You decide what is in it, with one exception: a plain network, without DDP, has to be able to load
#   `torch.load(path)["model"]`.

# %% [markdown]
# A failing check shows the `files` on a rank's disk, `steps`, what a plain network has `loaded`, and the weights `in the end`: of the resumed training, and of the
# saved one that `went on`.


# %%
class Training:
    def __init__(self, network, seed):
        self.model = DistributedDataParallel(network)
        self.optimizer = sgd(self.model)
        self.generator = torch.Generator().manual_seed(seed)  # a different seed on each rank
        self.steps = 0

    def train(self, inputs, targets):
        for some_inputs, some_targets in zip(inputs, targets):
            noise = 0.5 * torch.randn(some_inputs.shape, generator=self.generator).double()
            take_step(self.model, self.optimizer, some_inputs + noise, some_targets)
            self.steps += 1


# %%
class Stoppable(Training):
    def save(self, path):
        ### BEGIN SOLUTION
        generators = [None] * dist.get_world_size()
        # All call it: rank 0 cannot know the others' generators.
        dist.all_gather_object(generators, self.generator.get_state())
        if dist.get_rank() == 0:
            network = self.model.module.state_dict()  # of the network, not of its wrapper
            states = {"model": network, "optimizer": self.optimizer.state_dict()}
            torch.save(states | {"generators": generators, "steps": self.steps}, path)
        ### END SOLUTION

    def resume(self, path):
        ### BEGIN SOLUTION
        saved = torch.load(path)  # on every rank: DDP gave out rank 0's weights when it was made
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.generator.set_state(saved["generators"][dist.get_rank()])
        self.steps = saved["steps"]
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Four things have to be saved. Which of them differs from rank to rank, so that rank 0 can't save it alone?
# </details>
# <details><summary>Hint 2: the approach</summary>
# All ranks take part in collecting the generators' states, as objects or as tensors. Then rank 0 alone writes them, with the states of network and optimiser and the count of steps. To resume, every rank loads the
# file, fills the network inside the wrapper and the optimiser, and takes the state of its own generator. (If you stack the states in one tensor, give <code>set_state</code> a <code>clone()</code> of the row.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_gather_object(generators, self.generator.get_state())</code> fills a list of <code>None</code>s. The network is <code>self.model.module</code>. In <code>resume</code>:
# <code>self.generator.set_state(saved["generators"][dist.get_rank()])</code>.
# </details>


# %% jupyter={"source_hidden": true}
numbers = itertools.count()


def own_disk(name):
    """A place for a checkpoint on a disk that no other rank sees, and that was never used."""
    place = f"disk of rank {dist.get_rank()}, {next(numbers)}"
    folder = Path(multiprocessing.util.get_temp_dir(), place, "checkpoints")
    folder.mkdir(parents=True)
    return folder / name


def files_on(disk):
    files = [file for file in disk.rglob("*") if file.is_file()]
    return sorted(file.relative_to(disk).as_posix() for file in files)


def copied(path):
    """The file of rank 0's disk, on another disk of this rank."""
    written, copy = [path.read_bytes() if path.exists() else None], own_disk(path.name)
    dist.broadcast_object_list(written, src=0)
    if written[0] is not None:
        copy.write_bytes(written[0])
    return copy


# %% jupyter={"source_hidden": true}
def stopping(kind):
    """Train until the stop, save; with new numbers resume, and train to the end."""

    @functools.wraps(kind, updated=())
    def stopped(networks, seeds, inputs, targets, stop):
        first = kind(networks[0], seeds[0])
        path = trained_and_saved(first, inputs[:stop], targets[:stop])
        dist.barrier()  # who writes elsewhere has done so
        files, copy = files_on(path.parents[1]), copied(path)
        first.train(inputs[stop:], targets[stop:])
        # What only memory holds is of this one now; new processes would have nothing.
        trained_and_saved(kind(networks[1], 5), inputs[:stop], targets[:stop])
        again = kind(networks[1], seeds[1])
        with chdir(copy.parents[1]):
            again.resume(copy)
        again.train(inputs[stop:], targets[stop:])
        outcome = {"files": files, "steps": again.steps, "loaded": loaded(copy)}
        return outcome | {"in the end": weights(again.model), "went on": weights(first.model)}

    return stopped


# %% jupyter={"source_hidden": true}
def trained_and_saved(training, inputs, targets):
    """Train and save on a disk, in whose top folder the program works; returns where."""
    path = own_disk(f"step {len(inputs)}.pt")
    training.train(inputs, targets)
    with chdir(path.parents[1]):
        training.save(path)
    return path


def loaded(path):
    """What a plain network gets from the file."""
    network = make_model()
    network.load_state_dict(torch.load(path)["model"])
    return weights(network)


# %% jupyter={"source_hidden": true}
def stoppable_spec(networks, seeds, inputs, targets, stops):
    network, optimizer = networks[0][0], sgd(networks[0][0])
    generators = [torch.Generator().manual_seed(pair[0]) for pair in seeds]
    for step, (shards, answers) in enumerate(zip(zip(*inputs), zip(*targets))):
        if step == stops[0]:
            halfway = weights(network).clone()
        noises = [0.5 * torch.randn(x.shape, generator=g) for x, g in zip(shards, generators)]
        noisy = [shard + noise.double() for shard, noise in zip(shards, noises)]
        take_step(network, optimizer, torch.cat(noisy), torch.cat(answers))
    outcome = {"steps": len(inputs[0]), "loaded": halfway}
    outcome |= {"in the end": weights(network), "went on": weights(network)}
    files_by_rank = [[f"checkpoints/step {stops[0]}.pt"]] + [[] for _ in networks[1:]]
    return [{"files": files} | outcome for files in files_by_rank]


# %% jupyter={"source_hidden": true}
stops = {"stopped after two steps of four": (2, 4), "stopped after three steps of five": (3, 5)}


def stoppable_inputs(rank, world_size, case):
    stop, steps = stops[case]
    drawn, seeds = torch.randn(steps, 5, 6, dtype=torch.float64), torch.randint(1000, (2,))
    networks = [make_model(), make_model()]
    return networks, seeds.tolist(), drawn[..., :4], drawn[..., 4:], stop


stoppable_check = {"spec": stoppable_spec, "inputs": stoppable_inputs, "cases": list(stops)}
stoppable_check |= {"allow": ("files",)}

# %%
check(stopping(Stoppable), **stoppable_check)

# %% [markdown]
# ## 4 · A batch in parts
#
# *Difficulty ●●● · importance ●●○ · 12 minutes.* Large models train with batches that no GPU can hold. A row of `inputs` is too large, so each rank takes it in `parts`, made by `chunk`; the last
# may be smaller. The model refuses more, and a sample takes up room until its `backward()`.

# %% [markdown]
# **Goal:** with `model`, which is a DDP already, take one `sgd` step per row, as if the row were taken as a whole, and return the `weights`. Each step may cost one
# `all_reduce`, however many parts there are.

# %% [markdown]
# A row of 10 samples in 4 parts is taken as 3, 3, 3 and 1, and each sample counts for a tenth of this rank's loss. In the chapter, all parts had the same size.


# %%
def accumulate(model, inputs, targets, parts):
    ### BEGIN SOLUTION
    optimizer = sgd(model)
    for some_inputs, some_targets in zip(inputs, targets):
        optimizer.zero_grad()  # once per row: gradients of the parts add up
        pairs = list(zip(some_inputs.chunk(parts), some_targets.chunk(parts)))
        for number, (part_inputs, part_targets) in enumerate(pairs, 1):
            # DDP decides in the forward whether this backward will talk, so both go inside.
            with nullcontext() if number == len(pairs) else model.no_sync():
                loss = mse_loss(model(part_inputs), part_targets)
                loss *= len(part_inputs) / len(some_inputs)  # a small part counts less
                loss.backward()
        optimizer.step()
    return weights(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Parts of 3, 3, 3 and 1: how much does each sample count if you add up the parts' mean losses and divide by 4? And when does DDP decide
# whether a <code>backward()</code> talks?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Gradients add up until <code>zero_grad()</code>. Multiply each part's mean loss by its share of the row. Forward and backward of all parts but
# the last go into <code>no_sync()</code>; <code>step()</code> comes once, after the last.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>with nullcontext() if number == len(pairs) else model.no_sync():</code> around the forward, the loss times
# <code>len(part_inputs) / len(some_inputs)</code>, and the backward.
# </details>


# %% jupyter={"source_hidden": true}
def accumulate_spec(models, inputs, targets, parts):
    optimizer = sgd(models[0])
    for batch in zip(torch.cat(inputs, dim=1), torch.cat(targets, dim=1)):
        take_step(models[0], optimizer, *batch)
    return [weights(models[0])] * len(models)


def in_small_memory(model, room):
    for layer in model:
        layer.register_forward_hook(functools.partial(refuse_more, room, {}))
    return DistributedDataParallel(model)


def refuse_more(room, held, layer, given, output):
    """Refuse more samples at once; what has a graph is held until its backward."""
    count, waiting, key = len(given[0]), sum(held.values()), object()
    if count + waiting > room:
        also = f" and {waiting} more that wait for their backward()" * (waiting > 0)
        raise MemoryError(f"{count} samples{also}, but there's only room for {room}")
    if output.requires_grad:
        held[key] = count
        output.register_hook(lambda gradient: held.update({key: 0}))


# %% jupyter={"source_hidden": true}
def accumulating(answer):
    """Put the model in a small memory, wrap it in DDP, and call the answer."""

    @functools.wraps(answer)
    def accumulated(model, inputs, targets, parts):
        room = -(-inputs.shape[1] // parts)
        return answer(in_small_memory(model, room), inputs, targets, parts)

    return accumulated


sizes = {"8 samples in 1 part": (8, 1), "8 samples in 2 parts": (8, 2)}
sizes |= {"10 in 4 parts": (10, 4), "9 in 4 parts, which chunk makes 3": (9, 4)}


# %% jupyter={"source_hidden": true}
def accumulate_inputs(rank, world_size, case):
    size, parts = sizes[case]
    drawn = torch.randn(4, size, 6, dtype=torch.float64)
    return make_model(), drawn[..., :4], drawn[..., 4:], parts


def accumulate_budget(world_size, case):
    return ddp_messages(world_size, steps=4)


accumulate_check = {"spec": accumulate_spec, "inputs": accumulate_inputs, "work": 1.5}
accumulate_check |= {"cases": list(sizes), "budget": accumulate_budget}

# %%
check(accumulating(accumulate), **accumulate_check)

# %% [markdown]
# ## 5 · Find the fork
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* Overnight, the ranks of a long run have drifted apart, or one of them has met a `nan`, and the loss on rank 0 shows nothing. But each rank
# has kept its `history`: its weights after every step, in a tensor of shape (steps, weights).

# %% [markdown]
# **Goal:** return the first step after which the ranks' weights aren't all equal, or any of them is a `nan`: the same `int` on every rank, and −1 if it never happens.
#
# | after step | 0 | 1 | 2 |
# | --- | --- | --- | --- |
# | rank 0 has | `[5., 1.]` | `[5., 2.]` | `[5., 3.]` |
# | rank 1 has | `[5., 1.]` | `[5., 2.5]` | `[5., 3.]` |
# | both return | | 1 | |


# %%
def first_fork(history):
    ### BEGIN SOLUTION
    largest, smallest = history.clone(), history.clone()
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    dist.all_reduce(smallest, dist.ReduceOp.MIN)
    # MAX and MIN may lose a nan, so each rank says by itself where it has one.
    is_bad = history.isnan().any(dim=1).int()
    dist.all_reduce(is_bad, dist.ReduceOp.MAX)
    is_bad |= (largest != smallest).any(dim=1).int()
    bad_steps = is_bad.nonzero().flatten().tolist()
    return bad_steps[0] if bad_steps else -1
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# It's <code>spread</code> of the chapter, for each step separately. And what becomes of a <code>nan</code> in <code>MAX</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>MAX</code> and <code>MIN</code> of all histories tell you where the ranks differ. A flag for each step tells you where a rank has a <code>nan</code>; <code>MAX</code> of the flags tells everybody.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>is_bad = history.isnan().any(dim=1).int()</code>, then an <code>all_reduce</code> with <code>dist.ReduceOp.MAX</code>, then <code>is_bad.nonzero()</code>.
# </details>


# %% jupyter={"source_hidden": true}
def first_unlike(reference, histories):
    """The first step in which a rank's weights aren't those of the reference; a nan never is."""
    differs = (torch.stack(histories) != reference).any(dim=2).any(dim=0)
    bad_steps = differs.nonzero().flatten().tolist()
    return [bad_steps[0] if bad_steps else -1] * len(histories)


def first_fork_spec(histories):
    return first_unlike(histories[0], histories)


def unlike_the_mean(histories):
    return first_unlike(sum(histories) / len(histories), histories)


# %% jupyter={"source_hidden": true}
# Which rank goes astray (-1: the last), after which step, at which weight, and whether for good.
forks = {
    "never": (None, 0, 0, False),
    "the last rank, from step 3 on": (-1, 3, 4, True),
    "rank 0, after step 5 only": (0, 5, 0, False),
    "a nan on rank 0, from step 2 on": (0, 2, 1, True),
    "a nan on the last rank, after step 4 only": (-1, 4, 2, False),
}


# %% jupyter={"source_hidden": true}
def first_fork_inputs(rank, world_size, case):
    common = torch.Generator().manual_seed(list(forks).index(case))
    history = torch.randn(8, 6, generator=common) - 3
    forked, step, place, for_good = forks[case]
    if forked is not None and rank == forked % world_size:
        last = len(history) if for_good else step + 1
        wrong = float("nan") if "nan" in case else history[step:last, place] + torch.rand(()) + 0.1
        history[step:last, place] = wrong
    return history


first_fork_check = {"spec": first_fork_spec, "inputs": first_fork_inputs, "cases": list(forks)}
first_fork_check |= {"mistakes": {ddp_mistakes.UNLIKE_THE_MEAN: unlike_the_mean}}

# %%
check(first_fork, **first_fork_check)

# %% [markdown]
# ## Bonus · How few bytes do two ranks need?
#
# *As long as you like; there's no check and no single answer.* Two ranks train the chapter's network, each on half of the digits,
# for five epochs at most. With DDP, as in `plain`, rank 0 sends 188 MB, and the network gets about 97 % of test digits right.

# %% [markdown]
# Are so many bytes necessary? Our best solution sends 2.0 MB, with as many digits right. In the end both ranks have to hold the same network;
# everything else, such as rate, optimiser and batch, is up to you.
#
# `tried` runs your function in real ranks, counts what rank 0 sends, and tests its network.


# %%
def plain(network):
    model, sampler = DistributedDataParallel(network), DistributedSampler(training)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for some_images, some_labels in DataLoader(training, 16, sampler=sampler):
            loss = cross_entropy(model(some_images), some_labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# %% jupyter={"source_hidden": true}
def trained(way):
    torch.manual_seed(dist.get_rank())
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    way(network)
    with torch.no_grad():
        right = [network(some).argmax(dim=1) == wanted for some, wanted in DataLoader(testing, 500)]
    return torch.cat(right).float().mean().item(), weights(network)


def tried(way):
    run = launch(trained, way, world_size=2, backend="gloo", trace=True)
    (right, first), (_, second) = run
    assert torch.equal(first, second), "the ranks have different networks"
    sent_mb = run.trace.traffic().sent_bytes[0] / 1e6
    print(f"sent: {sent_mb:.1f} MB, right: about {100 * right:.1f} % of the test digits")


# %%
testing = digits(False)
tried(plain)

# %% [markdown]
# <details><summary>Where could you start?</summary>
# The ranks needn't talk in every step. What if each trains alone for an epoch, and you average the weights afterwards (<i>local SGD</i>, <a href="https://arxiv.org/abs/1805.09767">Stich 2018</a>)? And does an average need four bytes for each number?
# </details>
#
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [05 · DDP from scratch](../notebooks/05_ddp_from_scratch.ipynb), where you write DDP itself.

# %%
progress("train", "global_losses", "Stoppable", "accumulate", "first_fork")
