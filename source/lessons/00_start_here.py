# %% [markdown]
# # 00 · Start here
#
# **Can a single notebook train one model in two real processes, and is it the same model in the end?**
#
# In 25 minutes you will be able to
#
# 1. start real worker processes from a cell and tell them apart;
# 2. add up a number across processes;
# 3. train a network on handwritten digits with `DistributedDataParallel` and prove that the copies are equal;
# 4. read the message of a worker that failed.
#
# - **Hardware:** two cores are enough. With a GPU for each worker, the same cells run on the GPUs.
# - **The whole way:** [the course map](README.md), fifteen chapters and their labs.
# - **Next chapter:** [02 · Process groups and ranks](02_process_groups.ipynb). Chapter [01](01_data_parallel_and_the_gil.ipynb) asks
#   why processes and not threads; it can be read at any time.
#
# **Your first minute.** This page is a program in pieces, called cells. Click into the grey one below and press
# <kbd>Shift</kbd>+<kbd>Enter</kbd>: it runs, what it prints appears below it, and the next cell is chosen. The first cell
# takes a while, because it loads PyTorch. Go on like this from top to bottom. In your own copy nothing is filled in: what you see, your machine has just computed.
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

from course_utils import WorkerError, digits, hardware, launch, predict, report, show

# %% [markdown]
# ## What can your machine show?
#
# The next cell looks at your machine and says what that means for this course. Nothing here needs a GPU. Where
# there is none, the workers are processes on your cores, and they talk through **gloo**, a library
# that comes with PyTorch.

# %% tags=["nbval-ignore-output"]
hardware()

# %% [markdown]
# ## Your first two workers
#
# Each worker has a number, its **rank**. The number of workers is the **world size**. Below,
# `launch` copies this notebook's process once per rank. Every copy runs the same function, and only its rank
# tells it which one it is. What the function returns comes back as a list with one entry per rank.


# %%
def introduce():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    print(f"I am rank {rank}, one of {world_size}")
    return os.getpid()


process_ids = launch(introduce, world_size=2)

# %% [markdown]
# Are these really two processes, and not two rounds of one loop? The operating system gives every
# process an identity number of its own. Count the different numbers of the notebook and its two workers.

# %%
print("processes:", len({os.getpid(), *process_ids}))

# %% [markdown]
# ## A sum across workers
#
# Separate processes share no variables, so they send messages. Training is built on one
# kind of message, `all_reduce`: every rank brings a tensor, and on every rank the tensor is replaced by the sum.
#
# **Predict.** Four ranks hold 1, 2, 3 and 4. Which number does each of them hold afterwards? Put your list of four numbers, such
# as `[1, 2, 3, 4]`, in place of the three dots. The cell after it shows your answer beside what was measured.

# %%
held = predict("ranks 0 to 3 hold", ...)


# %%
def add_up():
    number = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(number)
    return number.item()


held.measured(launch(add_up, world_size=4))

# %% [markdown]
# *All* in `all_reduce` means that every rank ends up with the sum 10, and no rank is special. Soon the number will be a
# gradient.
#
# **Check yourself.** Rank 2 leaves out its call of `all_reduce`. What happens to the others?
#
# <details><summary>Answer</summary>
# They wait for it, until <code>launch</code> stops them and names the rank that never arrived. To see it, write
# <code>if dist.get_rank() != 2:</code> above the call, indent the call, and start with
# <code>launch(add_up, world_size=4, timeout=5)</code>, which gives up after five seconds.
# </details>
#
# ## Real digits, dealt out like cards
#
# Your data are real handwritten digits, of 8 × 8 pixels, enlarged to 28 × 28. A `DistributedSampler` shuffles them and
# deals them out: one to rank 0, one to rank 1, and so on. A rank's part is called its **shard**. In one pass over
# all digits, called an epoch, each digit belongs to one shard only, as long as the digits can be dealt out evenly. Here are the
# first eight digits of both shards.

# %% jupyter={"source_hidden": true}
from course_utils.pictures.style import rank_style

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
# The network is small: 784 pixels, 256 hidden units, 10 digits. A training step is ordinary PyTorch.


# %%
def new_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def step(model, optimizer, images, labels):
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# %% [markdown]
# The function below runs in every rank, and three numbered lines make it distributed. On purpose, every rank seeds its weights **differently**:
# to make them equal is the work of `DistributedDataParallel`, DDP for short. The 64 digits of a step are divided among the ranks.
# `report` sends numbers to the panel that you will see.


# %%
def train(epochs, learning_rate=0.05, global_batch=64):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)
    model = DistributedDataParallel(new_network().to(device))  # 1: averages the gradients
    sampler = DistributedSampler(training)  # 2: deals out the digits
    loader = DataLoader(training, batch_size=global_batch // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # 3: shuffles anew in every epoch
        for images, labels in loader:
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            report(step=len(losses), steps=epochs * len(loader), loss=losses[-1])
    return {"losses": losses, "model": model.module}


# %% [markdown]
# Each rank sends its trained network home to the notebook. There, two small functions look at it: one gives the
# percentage of test digits that it names correctly, the other puts all its weights into one long row.


# %%
def accuracy(model):
    right = model(testing.data).argmax(dim=1) == testing.targets
    return 100 * right.float().mean().item()


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# 50 epochs are 1,150 steps, which gives you a few seconds to watch.
#
# **Predict.** By how much will the weights of the two ranks differ in the end? They began from different random numbers, and the ranks
# never saw the same digit in the same step. Answer with the largest difference that you expect between two weights, such as `0.01`.

# %%
largest = predict("largest difference between the ranks", ...)

# %%
results = launch(train, 50, live=True)

first, second = (weights(result["model"]) for result in results)
print("weights on each rank:", len(first))
largest.measured((first - second).abs().max().item())

# %% [markdown]
# Exactly zero, in all 203,530 weights. Before the first step, DDP gave every rank the weights of rank 0. Then, in every step, it
# replaced each rank's gradient by the average of both, with an `all_reduce` during `backward()`. Equal weights and equal
# gradients make equal weights.
#
# ## Is it what one process would have got?
#
# Now one rank trains alone, with all 64 digits of every step. For a fair comparison, both trainings have to start from the same weights
# and see the same digits. The weights are the same: those of seed 0, which DDP copied to rank 1. And the digits?


# %%
def digits_of_step(step, world_size):
    samplers = [DistributedSampler(training, world_size, rank) for rank in range(world_size)]
    size = 64 // world_size
    part = slice(step * size, (step + 1) * size)
    return {index for sampler in samplers for index in list(sampler)[part]}


steps = range(23)
equal = [digits_of_step(step, 1) == digits_of_step(step, 2) for step in steps]
print("one rank and two ranks take the same digits in", sum(equal), "of 23 steps")

# %% [markdown]
# In every step of the epoch: the sampler shuffles with the same seed for any number of ranks, and only deals the digits out differently.
#
# **Predict.** Will the lone rank's model be the same as that of the two?

# %%
same = predict("the model is the same", ..., choices=("exactly", "up to rounding", "no"))

# %%
alone = launch(train, 50, world_size=1)[0]
difference = (weights(alone["model"]) - first).abs().max().item()
same.measured("no" if difference > 0.01 else "up to rounding" if difference else "exactly")
print(f"largest difference between two weights: about {difference:.1e}")
print(f"test digits that are right, alone:       about {accuracy(alone['model']):.1f} %")
print(f"test digits that are right, two ranks:   about {accuracy(results[0]['model']):.1f} %")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(8, 3.6))
per_epoch = [torch.tensor(run["losses"]).view(50, -1).mean(dim=1) for run in [*results, alone]]
for i, label in enumerate(["rank 0 of 2", "rank 1 of 2", "one rank alone"]):
    axes.plot(range(1, 51), per_epoch[i], label=label, markevery=(3 * i, 9), **rank_style(i))
axes.set(xlabel="epoch (23 steps each)", ylabel="cross-entropy (nats)", yscale="log")
axes.legend()
show(figure, "All losses fall from above 1 to below 0.05; the lone rank's lies between the others.")

# %% [markdown]
# Each rank's loss is the mean over its own digits. So the two curves differ a little, and the lone rank's is
# their average. In the same way, the average of two gradients over 32 digits each *is* the gradient over all 64. Only the order of the
# additions differs, and with it the rounding. Two workers did not find another model than one. They shared its work.
#
# ## When a worker fails
#
# Sooner or later one will. Below, rank 1 asks for a digit that does not exist, while rank 0 is already waiting
# for it in `all_reduce`. This cell is meant to fail.
#
# **Predict.** Which rank will the message blame? Answer with its number.

# %%
blamed = predict("the message blames rank", ..., choices=(0, 1))


# %% tags=["raises-exception"]
def careless():
    index = 2000 * dist.get_rank()
    brightness = training.data[index].mean()
    dist.all_reduce(brightness)


try:
    launch(careless, world_size=2)
except WorkerError as error:
    blamed.measured(error.rank)
    raise

# %% [markdown]
# Such a message tells you four things:
#
# - **who** began it: *rank 1 failed*, though rank 0 was in trouble as well;
# - **why**: *IndexError*, since there are 1,442 digits and it asked for number 2000;
# - **where**: the arrow stands at the line, and above it is the number of the cell;
# - **what became of the others**: *Rank 0 was stopped*. It did nothing wrong, but it waited for a rank that was gone.
#
# Your notebook is unharmed. Repair the function and run the cell again.
#
# **Check yourself.** You train with `world_size=4` and the same global batch. How many digits does each rank take per step, and will
# the weights again agree with the lone rank's up to rounding?
#
# <details><summary>Answer</summary>
# 16 digits. But 1,442 is no multiple of 4: to deal equal shards, the sampler uses two digits of every epoch twice.
# The last step of each epoch is then a slightly different one, and so is the model. Try it:
# <code>launch(train, 50, world_size=4)</code>.
# </details>
#
# ## What you know now
#
# You have started real workers, let them add, trained one model in two of them, and seen one fail. How many of your predictions were right?

# %%
predict()

# %% [markdown]
# Two of them are easily got wrong. The ranks saw different digits, and yet the difference between their weights isn't small, it is exactly
# zero. And two ranks don't find a different model than one rank alone; but for rounding, it is the same.
#
# You called a process group into being without seeing it. How do the workers find each other, and is any of them in
# charge? [02 · Process groups and ranks](02_process_groups.ipynb).
