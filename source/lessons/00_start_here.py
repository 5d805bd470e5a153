# %% [markdown]
# # 00 · Start here
#
# **Can a single notebook train one model in two real processes, and is it the same model in the end?**
#
# In 15 minutes you will be able to
#
# 1. start real worker processes from a cell and tell them apart;
# 2. add up a number across processes;
# 3. train a network on handwritten digits with `DistributedDataParallel` and prove that the copies are equal;
# 4. read the message of a worker that failed.
#
# - **Hardware:** two cores are enough. With a GPU for each worker, the same cells run on the GPUs.
# - **The whole way:** [the course map](README.md), twelve chapters and their labs.
# - **Next chapter:** [01 · DataParallel and the GIL](01_data_parallel_and_the_gil.ipynb).
#
# **Your first minute.** This page is a program in pieces, called cells. Click into the grey one below and press
# <kbd>Shift</kbd>+<kbd>Enter</kbd>: it runs, what it prints appears below it, and the next cell is chosen. Go on
# like this from top to bottom. In your own copy nothing is filled in: what you see, your machine has just computed.
# You may change and repeat everything.

# %%
import os

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import digits, hardware, launch, report, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## Check-up: what can your machine show?
#
# The next cell looks at your machine and says what that means for this course. Nothing here needs a GPU:
# where there is none, the workers are processes on your cores, and they talk through **gloo**, a library
# that comes with PyTorch.

# %% tags=["nbval-ignore-output"]
machine = hardware()
assert machine.gloo, "this PyTorch has no gloo: install the course again with `make lab`"
machine

# %% [markdown]
# ## Your first two workers
#
# Each worker has a number, its **rank**, and the number of workers is the **world size**. Below,
# `launch` copies this notebook's process once per rank. Every copy runs the same function; only its rank
# tells it who it is. What the function returns comes back as a list, one entry per rank.


# %%
def introduce():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"I am rank {rank}, one of {world_size}")
    return os.getpid()


process_ids = launch(introduce, world_size=2)

# %% [markdown]
# Two lines, two writers. That they are not two turns of one loop can be checked: the operating system gives
# every process an identity number of its own. The notebook and its two workers should have three.

# %%
processes = {os.getpid(), *process_ids}
assert len(processes) == 3
print("processes:", len(processes))

# %% [markdown]
# ## A sum across workers
#
# Separate processes share no variables, so they must send messages. `all_reduce` is the one that training
# is built on: every rank gives a tensor, and the tensor is replaced by the sum.
#
# **Predict.** Four ranks hold 1, 2, 3 and 4. What does rank 3 hold afterwards, and what does rank 0? Put your
# two numbers in place of the question marks.

# %%
predicted = {"rank 0": "?", "rank 3": "?"}


# %%
def add_up():
    number = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(number)
    return number.item()


results = launch(add_up, world_size=4)
print("predicted:", predicted)
print("measured: ", results)

# %% [markdown]
# *All* in `all_reduce` means that every rank ends up with 10, not only rank 0. No worker is the master: each
# gave its part and holds the whole. Keep this in mind, soon the number will be a gradient.
#
# **Check yourself.** Rank 2 leaves out its call of `all_reduce`. What happens to the others?
#
# <details><summary>Answer</summary>
# They wait for it, until <code>launch</code> stops them at its timeout and names the rank that never arrived.
# </details>

# %% [markdown]
# ## Real digits, dealt out like cards
#
# Your data are real handwritten digits, 28 × 28 pixels each. A
# `DistributedSampler` shuffles them and deals them out: one to rank 0, one to rank 1, and so on, so that no
# digit is used twice in an epoch, which is one pass over all digits. A rank's part is called its **shard**. Here are the first eight digits of both shards.

# %%
training, testing = digits(train=True), digits(train=False)
print(len(training), "digits to train with,", len(testing), "to test with")
figure, axes = plt.subplots(2, 8, figsize=(8, 2.6))
for rank in range(2):
    shard = DistributedSampler(training, num_replicas=2, rank=rank)
    for axis, index in zip(axes[rank], shard):
        axis.imshow(training.data[index, 0], cmap="gray_r")
        axis.set(xticks=[], yticks=[], title=training.targets[index].item())
        axis.spines[:].set(color=rank_style(rank)["color"], linewidth=3)
    axes[rank, 0].set_ylabel(f"rank {rank}", fontsize=12, labelpad=10)
show(figure, "Each rank is dealt its own digits: rank 0 in the upper row, rank 1 in the lower.")

# %% [markdown]
# ## A network, and a function that trains it
#
# The network is small: 784 pixels, 256 hidden units, 10 digits. The function is ordinary PyTorch and runs
# in every rank; the three numbered lines make it distributed. `report` sends numbers to the panel you will see.
#
# On purpose, every rank seeds its weights **differently**: making them equal is the work of
# `DistributedDataParallel`, DDP for short.


# %%
def train(epochs, learning_rate=0.05, global_batch=64):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(network.to(device))  # 1: averages the gradients
    sampler = DistributedSampler(training)  # 2: deals out the digits
    loader = DataLoader(training, batch_size=global_batch // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # 3: shuffles anew in every epoch
        for images, labels in loader:
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            report(step=len(losses), steps=epochs * len(loader), loss=losses[-1])
    return {"losses": losses, "model": network}


# %% [markdown]
# Each rank will send its trained network home to the notebook, where two small functions judge it: the
# share of test digits that it names correctly, and all its weights in one long row.


# %%
def accuracy(model):
    return (model(testing.data).argmax(dim=1) == testing.targets).float().mean().item()


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# How large should a step be? The tutorial that this network comes from takes a learning rate of 0.001 and ten
# epochs. But it trains on 60,000 digits, so its epochs have about 40 times as many steps as yours.
#
# **Predict.** Which of the two rates gets above 90 % on the test digits within ten epochs?

# %%
for learning_rate in (0.001, 0.05):
    results = launch(train, 10, learning_rate)
    print(f"learning rate {learning_rate}: above 90 %:", accuracy(results[0]["model"]) > 0.9)

# %% [markdown]
# Ten of your epochs are only 230 steps: too few for 0.001 to get anywhere near the end, enough for 0.05. So 0.05
# it is, and 50 epochs, which gives you a few seconds to watch.
#
# **Predict.** After 1,150 steps, by how much will the weights of the two ranks differ? They began
# from different random numbers, and in no step did they see the same digit.

# %%
predicted_difference = "?"

# %%
results = launch(train, 50, live=True)

first, second = (weights(result["model"]) for result in results)
print("weights on each rank:         ", len(first))
print("largest difference, predicted:", predicted_difference)
print("largest difference, measured: ", (first - second).abs().max().item())

# %% [markdown]
# Exactly zero, in all 203,530 weights: not merely close. DDP gave every rank rank 0's weights before the first
# step. In every step it then replaced each rank's gradient by the average of both, with an `all_reduce`,
# during `backward()`. Equal weights and equal gradients make equal weights.
#
# ## Is it what one process would have got?
#
# **Predict.** Now one rank trains alone, with all 64 digits of every step. Will it get the same model?

# %%
alone = launch(train, 50, world_size=1)[0]

difference = (weights(alone["model"]) - first).abs().max().item()
shares = [accuracy(alone["model"]), accuracy(results[0]["model"])]
print("weights differ by less than 0.01:", difference < 0.01)
print("test accuracy is above 95 % for both:", min(shares) > 0.95)
print("and differs by at most one digit in 355:", round(355 * abs(shares[0] - shares[1])) <= 1)

# %%
figure, axes = plt.subplots(figsize=(8, 3.6))
per_epoch = [torch.tensor(run["losses"]).view(50, -1).mean(dim=1) for run in [*results, alone]]
for i, label in enumerate(["rank 0 of 2", "rank 1 of 2", "one rank alone"]):
    axes.plot(range(1, 51), per_epoch[i], label=label, markevery=(3 * i, 9), **rank_style(i))
axes.set(xlabel="epoch (23 steps each)", ylabel="cross-entropy (nats)", yscale="log")
axes.legend()
assert all(losses[0] > 1 > 0.05 > losses[-1] for losses in per_epoch)
assert torch.allclose((per_epoch[0] + per_epoch[1]) / 2, per_epoch[2], atol=0.001)
show(figure, "All losses fall from above 1 to below 0.05; the lone rank's lies between the others.")

# %% [markdown]
# Each rank's loss is the mean over its own digits, so the two curves differ a little, and the lone rank's is
# their average. The models agree up to rounding, since the average of two gradients over 32 digits *is* the gradient
# over all 64; print `difference` to see how little rounding is on your machine. Two workers found
# no other model than one: they shared its work.

# %% [markdown]
# ## When a worker fails
#
# Sooner or later one will. Below, rank 1 asks for a digit that does not exist, while rank 0 is already waiting
# for it in `all_reduce`. This cell is meant to fail. **Predict:** which rank will the message name?


# %% tags=["raises-exception"]
def careless():
    index = 2000 * dist.get_rank()
    brightness = training.data[index].mean()
    dist.all_reduce(brightness)


launch(careless, world_size=2)

# %% [markdown]
# Read it aloud:
#
# - *rank 1 failed*: **who** began it, though rank 0 was in trouble as well;
# - *IndexError*: **why**; there are 1,442 digits, and it asked for number 2000;
# - the arrow: **where**, with the number of the cell;
# - *Rank 0 was stopped*: it did nothing wrong, but it waited for a rank that was gone.
#
# Your notebook is unharmed: repair the function and run the cell again.

# %% [markdown]
# **Check yourself.** You train with `world_size=4` and the same global batch. How many digits does each rank take per step, and will
# the weights again agree with the lone rank's up to rounding?
#
# <details><summary>Answer</summary>
# 16 digits. But 1,442 is no multiple of 4: to deal equal hands, the sampler uses two digits of every epoch twice.
# The last step of each epoch is then a slightly different one, and so is the model. Try it:
# <code>launch(train, 50, world_size=4)</code>.
# </details>

# %% [markdown]
# ## Where to go next
#
# You have started real workers, let them add, trained one model in two of them, and seen one fail. But why
# processes, when threads in one process share everything and need no messages? That is the next chapter:
# [01 · DataParallel and the GIL](01_data_parallel_and_the_gil.ipynb).
