# %% [markdown]
# # 00 · Start here
#
# **Can one notebook train one model in two processes, and is it still the same model?**
#
# Find out in 35 minutes. You'll start real workers, write the line that their training rests on, and see what happens when one forgets a call.
#
# **Hardware:** two CPU cores, or a GPU for each worker.

# %% tags=["keep-output"]
from course_lessons import chapter_00
from course_utils import show

caption = "Two workers, one network: each has digits of its own, and they share their gradients."
show(chapter_00.two_workers(), caption)

# %% [markdown]
# **How this page works.** It's made of cells. Click the grey one above the picture and press <kbd>Shift</kbd>+<kbd>Enter</kbd>: it
# runs, its output appears underneath, and the next cell is selected. Go on like this. The first cells take a few seconds to load PyTorch.
# After a break, *Run > Run All Above Selected Cell* brings you back.

# %% jupyter={"source_hidden": true}
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from course_lessons.drawing import draw_columns
from course_utils import (
    WorkerError,
    check,
    digits,
    hardware,
    launch,
    plot_calls,
    predict,
    report,
)

# %% [markdown]
# ## Two workers
#
# `launch` copies this notebook's process once for each worker, and every copy runs the same function. A worker has a number, its
# **rank**; how many workers there are is the **world size**. What the function returns comes back as a list, with one entry for each rank.


# %%
def introduce():
    print(f"I'm rank {dist.get_rank()} of {dist.get_world_size()}")
    return os.getpid()


process_ids = launch(introduce, world_size=2)
print("processes, with the notebook's own:", len({os.getpid(), *process_ids}))

# %% [markdown]
# ## Write one line
#
# The workers share no variables, so they send each other messages. On CPUs, the library **gloo** carries them. `dist.all_reduce(x)` is a **collective**:
# all ranks call it together, each brings a tensor, and on every rank that tensor is replaced by the sum of all.
#
# **Write** (2 minutes) the missing line: return the average. Then run the cells below it, one after the other: they check your line and draw
# what it does.


# %%
def average(gradient):
    dist.all_reduce(gradient)  # now it holds the sum over all ranks
    raise NotImplementedError("about 1 line")


# %% jupyter={"source_hidden": true}
def average_in_one_process(gradients):
    """What every rank should return, worked out without any messages."""
    return [sum(gradients) / len(gradients)] * len(gradients)


def gradient_of(rank, world_size, case):
    return torch.randn(3) if case == "random numbers" else torch.tensor([10.0 * (rank + 1)])


average_check = {"spec": average_in_one_process, "inputs": gradient_of, "world_sizes": (2, 3, 4)}
average_check["cases"] = "one number", "random numbers"

# %%
check(average, **average_check)

# %% [markdown]
# And this is what *your* line does when three ranks bring 10, 20 and 60:

# %%
chapter_00.draw_average(average)

# %% [markdown]
# If the check says *wrong*, its table shows what each rank was given, what was wanted, and what your line returned. Change the line, run its cell,
# and then run the check again.
#
# <details><summary>Hint</summary>
# The sum has to be divided by the number of ranks. Which function in <code>introduce</code> tells you that number?
# </details>
# <details><summary>Our answer</summary>
# <code>return gradient / dist.get_world_size()</code>
# </details>

# %% [markdown]
# ## Watch two workers learn
#
# `DistributedDataParallel`, DDP for short, averages every gradient in every step. Here it trains a small network on handwritten digits.
# Don't read the next two cells yet: run them. We'll come back to their three numbered lines.

# %%
training, testing = digits(train=True), digits(train=False)


def new_network():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def step(model, optimizer, images, labels):
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


# %%
def train(epochs, learning_rate=0.05, global_batch=64):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(rank)  # on purpose: each rank makes up weights of its own
    model = DistributedDataParallel(new_network().to(device))  # 1
    sampler = DistributedSampler(training)  # 2
    loader = DataLoader(training, batch_size=global_batch // world_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    losses = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # 3
        for images, labels in loader:
            losses.append(step(model, optimizer, images.to(device), labels.to(device)))
            report(step=len(losses), steps=epochs * len(loader), loss=losses[-1])
    return {"losses": losses, "model": model.module}


# %% [markdown]
# `launch` starts two ranks unless you ask for a different number, and with `live=True` you can watch both train. They go through all 1,442 digits 25 times. At 64 digits
# a step, that's 23 steps each time and 575 in all.

# %%
results = launch(train, 25, live=True)

# %% [markdown]
# ## One worker forgets a call
#
# Now for the classic accident. Four ranks want to add up 1, 2, 3 and 4, but rank 2 forgets its call.
#
# **Predict** what the other three get: run the next cell and click your answer. The cell after it shows your answer next to what was measured.

# %%
others_get = predict("the other ranks get", ..., choices=("7", "an error", "no answer"))


# %% tags=["raises-exception"]
def add_up_but_rank_2_forgets():
    number = torch.tensor(dist.get_rank() + 1)
    if dist.get_rank() != 2:
        dist.all_reduce(number)
    return number.item()


try:
    launch(add_up_but_rank_2_forgets, world_size=4, timeout=4)
except WorkerError as error:
    accident = error
    others_get.measured(chapter_00.what_the_others_got(error))
    raise

# %% [markdown]
# The red error isn't what the three ranks got. `launch` raised it in your notebook, after it had given up on them and stopped all workers. The ranks themselves got no answer at all.
# That's a **hang**: nobody fails, and nobody gets any further. The error says which ranks wait, in which line, for whom, and why. Your notebook is unharmed.

# %% [markdown]
# Here's the same story as a picture:

# %%
plot_calls(accident)

# %% [markdown]
# That's the whole course in miniature: workers, a sum, a training run, a hang. The rest of this chapter takes a closer look, and
# [the course map](README.md) shows where it goes from here.

# %% [markdown]
# First, what does your machine have to offer? Nothing here needs a GPU. Unless there's a GPU for each worker, all workers compute on the CPU and talk through gloo.
# Words in the list that you don't know yet can wait.

# %% tags=["nbval-ignore-output"]
hardware()

# %% [markdown]
# ## One sum, and then another
#
# **Predict.** Four ranks hold 1, 2, 3 and 4, and each calls `all_reduce` *twice*. What do ranks 0 to 3 hold in the end? Run the next cell
# and type your answer below it: four numbers, such as 1, 2, 3, 4.

# %%
held = predict("ranks 0 to 3 hold", ..., count=4)


# %%
def add_up_twice():
    number = torch.tensor(dist.get_rank() + 1)
    numbers = [number.item()]
    for _ in range(2):
        dist.all_reduce(number)
        numbers.append(number.item())
    return numbers


numbers_of_ranks = launch(add_up_twice, world_size=4)
held.measured([numbers[-1] for numbers in numbers_of_ranks])
caption = "A number in one colour is still the rank's own; a striped one is new."
draw_columns(numbers_of_ranks, ["at first", "after one sum", "after two"], caption)

# %% [markdown]
# `all_reduce` writes the sum into the tensor itself. After the first call every rank holds 10, so the second adds up four tens. If you
# still need the old value, make a copy first.

# %% [markdown]
# ## Digits, dealt out like cards
#
# The network learns from real handwritten digits. A `DistributedSampler` shuffles them and deals them out: one to rank 0, one to rank 1,
# and so on. A rank's part is its **shard**, and one pass over all digits is an **epoch**. Here are the first eight digits of each shard.

# %%
print(len(training), "digits to train with,", len(testing), "to test with")
show(chapter_00.shards(training), "The upper row was dealt to rank 0, the lower row to rank 1.")

# %% [markdown]
# ## Three lines make it distributed
#
# Now look at the numbered lines in `train`:
#
# 1. **DDP** copies rank 0's weights to every rank before the first step. In each `backward()`, it then replaces every gradient by its average over the ranks.
# 2. **The sampler** deals out the digits.
# 3. **`set_epoch`** makes the sampler shuffle differently in every epoch.


# %%
def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def same(difference):
    if difference == 0:
        return "exactly"
    return "up to rounding" if difference < 0.01 else "no"


# %% [markdown]
# **Predict.** In every step the two ranks saw different digits, and in the end each rank returned its network to the notebook. Are all the
# weights of the two networks the same?

# %%
choices = "exactly", "up to rounding", "no"
equal_ranks = predict("both ranks have the same weights", ..., choices=choices)

# %%
weights_0, weights_1 = (weights(result["model"]) for result in results)
difference = (weights_0 - weights_1).abs().max().item()
equal_ranks.measured(same(difference))
print(f"largest difference among {len(weights_0):,} weights: {difference}")

# %% [markdown]
# Both started from rank 0's weights, whatever their own seeds were. In each step both got the same average, so both optimisers made the same step.
# Equal weights and equal steps make equal weights, to the last bit.

# %% [markdown]
# ## What would one process have got?
#
# Let one rank train alone, with all 64 digits of each step. For a fair comparison, it has to start from the same weights. It does, because
# rank 0's seed is 0 in both runs. It also has to see the same digits in each step, so count the steps in which it does.


# %%
def digits_of_step(step, world_size):
    samplers = [DistributedSampler(training, world_size, rank) for rank in range(world_size)]
    size = 64 // world_size
    part = slice(step * size, (step + 1) * size)
    return {index for sampler in samplers for index in list(sampler)[part]}


steps_alike = [digits_of_step(step, 1) == digits_of_step(step, 2) for step in range(23)]
print("one rank and two ranks take the same digits in", sum(steps_alike), "of the first 23 steps")
chapter_00.draw_one_step(training)

# %% [markdown]
# It does in all of them. The order of the digits depends on the sampler's seed and on the epoch, but not on the number of ranks: only the dealing differs. So the steps agree in all later epochs, too.
#
# **Predict.** Does one rank, training alone, end up with the same weights as the two?

# %%
choices = "exactly", "up to rounding", "no"
equal_alone = predict("one rank alone has the same weights", ..., choices=choices)

# %%
alone = launch(train, 25, world_size=1)[0]
difference = (weights(alone["model"]) - weights_0).abs().max().item()
equal_alone.measured(same(difference))
print(f"largest difference between two weights: about {difference:.1e}")

# %% [markdown]
# The average of two gradients over 32 digits each is the gradient over all 64. Only the order of the additions differs, and with it the rounding.
# Two workers don't find a different model; they share the work of finding it.
#
# Does the difference matter? Count the test digits that each network gets right.


# %%
def accuracy(model):
    right = model(testing.data).argmax(dim=1) == testing.targets
    return 100 * right.float().mean().item()


print(f"right, trained by one rank:  about {accuracy(alone['model']):.1f} %")
print(f"right, trained by two ranks: about {accuracy(results[0]['model']):.1f} %")
models = {"one rank alone": alone["model"], "two ranks": results[0]["model"]}
chapter_00.draw_misread(testing, models)

# %% [markdown]
# And the losses on the way there? Each rank only sees the loss of its own digits, so two ranks have two curves.

# %%
runs = {"rank 0 of 2": results[0], "rank 1 of 2": results[1], "one rank alone": alone}
losses = {name: run["losses"] for name, run in runs.items()}
figure = chapter_00.losses(losses, steps_per_epoch=23)
show(figure, "Each point of a curve is the mean loss of the 23 steps of an epoch.")

# %% [markdown]
# ## When a worker fails
#
# Sooner or later, a worker will fail. Two cells below, each of four ranks picks a digit and measures how bright it is, and then the ranks add up the
# four numbers. That cell fails on purpose.
#
# **Predict.** Look at `careless` in that cell, but don't run it yet. Which rank will the message blame?

# %%
blamed = predict("the message blames rank", ..., choices=(0, 1, 2, 3))


# %% tags=["raises-exception"]
def careless():
    index = 500 * dist.get_rank()
    brightness = training.data[index].mean()
    dist.all_reduce(brightness)
    return brightness.item()


try:
    sums = launch(careless, world_size=4)
    print("repaired: the four add up to", round(sums[0], 2))
except WorkerError as error:
    blamed.measured(error.rank)
    raise

# %% [markdown]
# There are 1,442 digits, and rank 3 asks for number 1,500. Read such a message from the top: **who** failed first, **why**, **where** (the arrow marks the line, below the number of its cell), and **what became
# of the others**. The other ranks did nothing wrong, but they waited for a rank that was gone.

# %% [markdown]
# Your notebook is unharmed once more. Repair the function and run its cell again: once it's right, the cell says so and prints the sum.

# %% [markdown]
# **Check yourself.** You train with `world_size=4` and the same global batch. How many digits does each rank take in a step, and does it still
# match the training with one rank up to rounding?
#
# <details><summary>Answer</summary>
# 16 digits. But 1,442 isn't a multiple of 4, so to deal equal shards the sampler uses two digits of every epoch twice. The last step of each epoch is
# then a slightly different one, and so is the model. Try it: <code>launch(train, 25, world_size=4)</code>.
# </details>

# %% [markdown]
# ## What you know now
#
# You've started real workers, written the line that averages their gradients, trained one model in two of them, and read the messages of a hang
# and of a crash. How many of your predictions were right?

# %%
predict()

# %% [markdown]
# You've been using a process group all along without seeing it. How do the workers find each other, and is one of them in charge?
#
# **Next:** [02 · Process groups and ranks](02_process_groups.ipynb). Chapter [01](01_data_parallel_and_the_gil.ipynb), on threads instead of processes,
# is an appendix that you can read at any time.
