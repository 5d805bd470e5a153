# %% [markdown]
# # 15 · The numbers of many ranks
#
# **The numbers of many ranks aren't quite those of one process: is the difference rounding or a bug?**
#
# In 85 minutes you will be able to tell rounding from a bug, choose a global batch, and clip, average and normalise as one process would.
#
# **Hardware:** any computer; all ranks here use gloo on the CPU, so that you can compare every digit.
# **Before:** [07 · Data and batches](07_data_batches_numerics.ipynb).
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb).
# **Lab:** exercises 3 and 4 of [lab 07](../exercises/07_data_batches_numerics.ipynb).

# %% jupyter={"source_hidden": true}
import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce as functional_all_reduce
from torch.nn.functional import cross_entropy, mse_loss  # noqa: F401 - mse_loss is for you
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, Subset

from course_lessons import chapter_15
from course_lessons.chapter_15 import (
    answers,
    clip_judged,
    in_ddp,
    in_numbers,
    loss_of,
    make_model,
    noise_judged,
    small_gpt,
    update,
    windows,
)
from course_lessons.finished import go_on_with
from course_utils import check, digits, launch, predict, show

training = digits(train=True)

# %% [markdown]
# ## 1 · The average of copies
#
# Every rank holds the same 100,000 numbers, divides them by the number of ranks, and adds them up with the others. Dividing by a power of two doesn't round.
#
# **Predict.** For which of 2, 3, 4 and 8 ranks is every average equal, bit for bit, to its number? Answer with a set.

# %%
exact_for = predict("ranks whose averages of copies are all exact", ...)


def average_of_copies(numbers):
    average = numbers / dist.get_world_size()
    dist.all_reduce(average)
    return int((average != numbers).sum())


# %%
numbers = torch.from_numpy(np.random.default_rng(0).standard_normal(100_000, dtype=np.float32))
differing = {}
for world_size in (2, 3, 4, 8):
    counts = launch(average_of_copies, numbers, world_size=world_size, backend="gloo")
    differing[world_size] = counts[0]
exact_for.measured({ranks for ranks, count in differing.items() if count == 0})
chapter_15.draw_copies(differing, of=len(numbers))

# %% [markdown]
# Eight ranks aren't exact, although eight is a power of two: here it's the adding that rounds, from the third copy on. (With four ranks, adding the fourth copy rounds back to the
# exact number.) And if each addition rounds, the order of the additions matters. The first cell below compares `all_reduce` with a sum in a loop. In the second, `ring_orders` cuts
# the tensor into quarters, and tries all 24 orders of adding on each quarter. It returns those that give the same result to the last bit.


# %%
def add(dtype):
    generator = torch.Generator().manual_seed(dist.get_rank())
    brought = (1000 * torch.rand(4000, generator=generator, dtype=torch.float64)).to(dtype)
    total = brought.clone()
    dist.all_reduce(total)
    return brought, total


for dtype in (torch.int64, torch.float32, torch.float64):
    brought, totals = zip(*launch(add, dtype, world_size=4, backend="gloo"))
    assert all(torch.equal(total, totals[0]) for total in totals)  # bits agree on all ranks
    differ = (totals[0] != sum(brought)).sum().item()
    print(f"{dtype!s:14} {differ} of 4000 differ from the loop")

# %%
brought, totals = zip(*launch(add, torch.float32, world_size=4, backend="gloo"))
orders = chapter_15.ring_orders(brought, totals[0])
for quarter, fitting in enumerate(orders):
    print(f"quarter {quarter}:", " and ".join(map(str, fitting)))
show(chapter_15.ring(orders), "One of the orders that give every bit, for each quarter.")

# %% [markdown]
# Two orders fit each quarter. They differ only in the first two ranks, and *a* + *b* and *b* + *a* have the same bits. The picture shows the one that goes
# from neighbour to neighbour. Each quarter starts at a different rank: that's a **ring**. With a different algorithm or number of ranks the order changes, and with it
# the last bits.

# %% [markdown]
# ## 2 · A test that tells them apart
#
# A small GPT trains for 20 steps. One process is the reference, and we compare three runs with it. The first has two ranks. The second has two ranks as well, but a bug: its loss is halved by mistake. The third is a **control**, one process that reads each batch in reverse order.

# %% [markdown]
# **Predict.** How many of the three differences become more than a thousand times smaller if we train in float64 instead of float32?

# %%
shrinking = predict("differences that shrink in float64, of three", ...)


def long_run(dtype, order=tuple(range(8)), factor=1.0):
    model = DistributedDataParallel(small_gpt(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)  # in fewer calls
    torch.manual_seed(1)
    shard, weights = list(order[dist.get_rank() :: dist.get_world_size()]), []
    for step in range(1, 21):
        inputs, targets = windows(8)
        update(optimizer, factor * loss_of(model, inputs[shard], targets[shard]))
        if step % 2 == 0:
            weights.append(parameters_to_vector(model.parameters()).detach())
    return torch.stack(weights)


# %%
runs = {"2 ranks": (2,), "bug: 2 ranks, half the loss": (2, tuple(range(8)), 0.5)}
runs["control: 1 process, reversed"] = (1, tuple(reversed(range(8))))
apart = {}
for dtype in (torch.float32, torch.float64):
    (reference,) = launch(long_run, dtype, world_size=1, backend="gloo")
    for name, (world_size, *settings) in runs.items():
        weights = launch(long_run, dtype, *settings, world_size=world_size, backend="gloo")[0]
        apart[name, dtype] = (weights - reference).abs().amax(dim=1)

last = {kind: steps[-1].item() for kind, steps in apart.items()}
small = [1000 * last[name, torch.float64] < last[name, torch.float32] for name in runs]
shrinking.measured(sum(small))
chapter_15.draw_apart(apart)

# %% [markdown]
# In float32 the bug stands out at first, but at the end nobody can tell the three apart: by then, rounding has grown as large as the bug. In float64 the rounding shrinks, and **the bug stays**. So keep this test: *compare in float64, next to a control*. (Why the bug is so
# hard to see with AdamW, you'll see in part 4.)

# %% [markdown]
# ## 3 · Sums in bfloat16
#
# A float32 has 24 significant bits, a bfloat16 has 8.
#
# **Predict.** Eight ranks add random numbers. By which factor is the error larger in bfloat16? Answer with a power of two, such as `2**4`.

# %%
ratio = predict("bfloat16's error is float32's times", ...)


def errors_of_sum():
    generator = torch.Generator().manual_seed(dist.get_rank())
    brought = torch.randn(4000, generator=generator, dtype=torch.float64)
    exact = brought.clone()
    dist.all_reduce(exact)
    errors = {}
    for name, dtype in {"bfloat16": torch.bfloat16, "float32": torch.float32}.items():
        total = brought.to(dtype)
        dist.all_reduce(total)
        errors[name] = ((total.double() - exact).norm() / exact.norm()).item()
    return errors


# %%
errors = {"bfloat16": {}, "float32": {}}
for world_size in (2, 4, 8, 16):
    measured = launch(errors_of_sum, world_size=world_size, backend="gloo")[0]
    for name, by_ranks in errors.items():
        by_ranks[world_size] = measured[name]
ratio.measured(errors["bfloat16"][8] / errors["float32"][8], within=0.5, about=True)
chapter_15.draw_errors_by_ranks(errors)

# %% [markdown]
# With sixteen bits fewer, errors are 2¹⁶ times as large. Here some errors are positive and others negative, so they cancel in part. What if they can't? The next cells are a
# *model* without processes: each of *n* ranks brings a 1, and the ones are added one after the other, or in pairs.


# %%
def one_after_the_other(ranks):
    total = torch.zeros((), dtype=torch.bfloat16)
    for _ in range(ranks):
        total += 1
    return int(total)


def in_pairs(ranks):
    parts = torch.ones(ranks, dtype=torch.bfloat16)
    while len(parts) > 1:
        parts = parts[::2] + parts[1::2]
    return int(parts)


# %%
counts = [64, 128, 256, 512, 1024]
totals = {"one after the other": [one_after_the_other(ranks) for ranks in counts]}
totals["in pairs"] = [in_pairs(ranks) for ranks in counts]
print(totals)
show(chapter_15.ones(totals, counts), "The total, added in two ways.")

# %% [markdown]
# From 256 on, each further 1 is rounded away. A ring adds the ranks' numbers one after the other too. So with many ranks, send sums in float32, or use an algorithm that adds in pairs.
#
# ## 4 · More ranks, a different learning rate?
#
# "Multiply the learning rate by the number of GPUs" is common advice. Whether it's right depends on what stays the same. We train on 640 digits.


# %%
def train(global_batch, learning_rate, criterion=cross_entropy):
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    part = Subset(training, range(640))
    sampler = DistributedSampler(part)
    loader = DataLoader(part, global_batch // dist.get_world_size(), sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            update(optimizer, criterion(model(images), labels))
    return parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# The next cell lists five runs. In all of them the **global batch**, what all ranks take together in a step, is 64. The reference is one rank with the mean loss and a learning rate of 0.05. A sum over 64 digits is 64 times
# their mean, so runs 4 and 5 divide the learning rate by 64. **Predict.** Which of the five end with the reference's weights? Answer with a set.

# %%
same_runs = predict("runs that end with the weights of one rank", ...)
total = partial(cross_entropy, reduction="sum")


def total_times_ranks(output, labels):
    return dist.get_world_size() * total(output, labels)


runs = {
    "1: 2 ranks, rate 0.05": (2, 64, 0.05),
    "2: 4 ranks, rate 0.05": (4, 64, 0.05),
    "3: 4 ranks, rate 0.05 × 4": (4, 64, 0.2),
    "4: 4 ranks, sum loss, rate 0.05 / 64": (4, 64, 0.05 / 64, total),
    "5: 4 ranks, sum loss × 4, rate 0.05 / 64": (4, 64, 0.05 / 64, total_times_ranks),
}

# %%
(reference,) = launch(train, 64, 0.05, world_size=1, backend="gloo")
same = set()
for name, (world_size, *settings) in runs.items():
    weights = launch(train, *settings, world_size=world_size, backend="gloo")[0]
    difference = (weights - reference).abs().max().item()
    print(f"{name:42}", "differs by rounding" if difference < 1e-6 else f"by {difference:.2f}")
    if difference < 1e-6:
        same.add(int(name[0]))
same_runs.measured(same)

# %% [markdown]
# With the same global batch and a **mean** loss, the learning rate stays as it is. With a **sum** loss, DDP still divides by the number of ranks, so the gradient is four times too
# small. Run 5 makes up for that. Now the *local* batch stays 64, so four ranks take 256 digits per step. The batch has grown by a factor of four, and [Goyal and others
# (2017)](https://arxiv.org/abs/1706.02677) multiply SGD's learning rate by the same factor.


# %%
def scaled(batch, rate, samples=4096):
    """Train on a number of samples, in batches of any size; return the training loss at the end."""
    model = make_model(seed=dist.get_rank())  # each of three ranks trains alone
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(samples // batch):
        drawn = torch.randint(len(training), (batch,))
        update(optimizer, cross_entropy(model(training.data[drawn]), training.targets[drawn]))
    return cross_entropy(model(training.data), training.targets).item()


# %%
ends = {0.05: {}, 0.2: {}}
trials = {"64": (64, 1), "256": (256, 1), "256, rate × 4": (256, 4)}
for rate, losses in ends.items():
    for name, (batch, factor) in trials.items():
        losses[name] = launch(scaled, batch, rate * factor, world_size=3, backend="gloo")
assert min(ends[0.05]["256"]) > max(ends[0.05]["256, rate × 4"])
assert max(ends[0.2]["256"]) < min(ends[0.2]["256, rate × 4"])
text = "Circles are three seeds. Rate × 4 helps on the left and ruins training on the right."
show(chapter_15.batches(ends), text)

# %% [markdown]
# On the left the rule helps, but it doesn't bring back the loss of batch 64: about 0.7 against 0.27. Both trainings see 4,096 digits, which are 64 small steps or 16 large ones. The rule
# supposes that the gradient hardly changes in four small steps. At the beginning of a training it does change, as the paper says too. So try the rule, with several seeds, but don't take it for
# a law.
#
# Besides, an optimiser may hide a wrong factor. AdamW divides each gradient by a running average of its size
# ([Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980)). Below, the GPT trains for 30 steps in float64, once with its own loss and once with a quarter of it. We
# compare how far all weights have moved in these steps, and print the difference in percent.


# %%
sgd, adamw = partial(torch.optim.SGD, lr=0.1), partial(torch.optim.AdamW, lr=3e-3)
changes = {}
for name, settings in {"SGD": (sgd,), "AdamW": (adamw,), "AdamW, clipped": (adamw, 0.5)}.items():
    kind, *limit = settings
    (whole,) = launch(chapter_15.train_gpt, kind, 1.0, *limit, world_size=1, backend="gloo")
    (quarter,) = launch(chapter_15.train_gpt, kind, 0.25, *limit, world_size=1, backend="gloo")
    changes[name] = ((whole - quarter).norm() / whole.norm()).item()
    print(f"{name:15} {100 * changes[name]:.1f} %")
text = "A factor of 1/4 moves SGD and AdamW with clipping, and hardly AdamW alone."
show(chapter_15.off_one_process(changes, "difference of the moves, in percent"), text)

# %% [markdown]
# AdamW hides the bug until something else, such as clipping, depends on the gradient's **size**.
#
# ## 5 · How large a batch pays?
# A larger batch pays as long as it averages out noise. How much noise is there? S is the variance of a single sample's gradient, summed over its numbers. |G|² is the squared norm
# of the true gradient, that of all samples. [McCandlish and others (2018)](https://arxiv.org/abs/1812.06162) divide S by |G|², and call the result the **noise scale**. It's a
# number of samples.

# %% [markdown]
# ### Write it
#
# *About 8 minutes.* The gradient of *b* samples has a squared norm of |G|² + S/*b* on average. Each rank's gradient is that of *b* = `local_batch` samples, and the average over
# all *n* ranks is that of *n* · *b*. Measure both squared norms (for the first one, take the mean over the ranks), and solve for S and |G|². Below,
# `in_numbers` makes plain numbers of your two results, and looks whether you have left `gradient` as it was.


# %%
def noise_and_signal(gradient, local_batch):
    """Return S and |G|². `gradient` is this rank's, of shape (numbers,); not to be changed."""
    raise NotImplementedError("about 9 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Two equations, two unknowns: how much smaller is the squared norm of the average?
# </details>
# <details><summary>Hint 2: the approach</summary>
# small = |G|² + S/b and big = |G|² + S/(nb). Subtract one from the other.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>S = (small - big) / (1 / b - 1 / (n * b))</code> and <code>(n * b * big - b * small) / (n * b - b)</code>.
# </details>

# %%
noise_passed = check(in_numbers(noise_and_signal), **noise_judged)
noise_passed

# %%
estimate = go_on_with(noise_and_signal, noise_passed, chapter_15.two_batches)

# %% [markdown]
# Now we estimate the noise scale of the network for the digits, in float64, at three points of its training. Each estimate is from 30 rounds, in which each of four ranks takes the gradient of 32 digits. The two batches are those 32 of a rank, and the 128 of all four. The control takes the gradient of every single digit.


# %%
images, labels = training.data.double(), training.targets


def estimated_noise(model, draw, local_batch=32, rounds=30):
    variances = squared_norms = 0.0
    for _ in range(rounds):
        drawn = torch.randint(len(images), (local_batch,), generator=draw)
        loss = cross_entropy(model(images[drawn]), labels[drawn])
        gradient = parameters_to_vector(torch.autograd.grad(loss, model.parameters()))
        variance, squared_norm = estimate(gradient, local_batch)
        variances += variance
        squared_norms += squared_norm
    return float(variances / squared_norms)


def noise_at(points):
    model = make_model().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own_draw = torch.Generator().manual_seed(1000 + dist.get_rank())
    exact, estimated = {}, {}
    for step in range(max(points) + 1):
        if step in points:
            estimated[step] = estimated_noise(model, own_draw)
            if dist.get_rank() == 0:  # one rank is enough for the control
                exact[step] = chapter_15.exact_noise_scale(model, images, labels)
        drawn = torch.randint(len(images), (64,))  # the same on all ranks
        update(optimizer, cross_entropy(model(images[drawn]), labels[drawn]))
    return exact, estimated


# %%
exact, estimated = launch(noise_at, (0, 45, 90), world_size=4, backend="gloo")[0]
for steps in exact:
    print(f"{steps:3} steps: all digits {exact[steps]:.0f}, two batches {estimated[steps]:.0f}")
text = "The noise scale grows while the network trains; two batches find it, roughly."
show(chapter_15.noise(exact, estimated), text)

# %% [markdown]
# No gradient of a single digit was needed: a training with DDP computes both gradients anyway, that of each rank and their average. (`.grad` keeps the average only. A rank's own gradient is what
# a communication hook gets, as in chapter 04.)
#
# **So how large should a batch be?** The gradient of a batch as large as the noise scale is half noise: S/*b* is then as large as |G|². According to the paper, doubling a batch that is
# far smaller nearly halves the number of steps, and doubling one that is far larger hardly saves any. So a batch near the noise scale is a good choice. The training above took 64 digits: more than the noise
# scale at first (38), and less at the end (100). The noise scale grows, so larger batches pay off later in the training.
#
# ## 6 · Clipping and tokens
#
# `clip_grad_norm_` shrinks all gradients if their **global norm** is above a limit. With many ranks there are two places for it: each rank clips its own gradient, or all clip the average. We compare both with a single process.


# %%
def clipped_gradient(where, limit=0.5):
    model = small_gpt(torch.float64)
    torch.manual_seed(1)
    shard = slice(dist.get_rank(), 16, dist.get_world_size())  # of the same 16 windows
    loss_of(model, *(part[shard] for part in windows(16))).backward()
    if where == "before":
        clip_grad_norm_(model.parameters(), limit)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    if where == "after":
        clip_grad_norm_(model.parameters(), limit)
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


# %%
(one_process,) = launch(clipped_gradient, "after", world_size=1, backend="gloo")
shares = {}
for where in ("before", "after"):
    gradient = launch(clipped_gradient, where, world_size=4, backend="gloo")[0]
    difference = (gradient - one_process).norm() / one_process.norm()
    shares[f"clipped {where} the average"] = difference.item()
text = "Only clipping after the average gives what one process has."
show(chapter_15.off_one_process(shares, "off one process, in percent"), text)

# %% [markdown]
# ### Write it
#
# *About 6 minutes.* `model` is a DDP already. `pieces` are this rank's microbatches of one step, each `(inputs, targets)`. All have the same size, and all ranks have equally many.
# One process would take the mean of `mse_loss` over all pieces of all ranks, and clip its gradient to `limit`. Leave exactly this gradient in the model, and return its norm before clipping. Below,
# `in_ddp` makes the DDP, calls your function, and collects the gradients that you leave.


# %%
def clipped(model, pieces, limit):
    raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# When is the gradient complete, over pieces and over ranks?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A backward per piece, of its loss divided by the number of pieces. Clip once, at the end. The function that clips returns the norm.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return clip_grad_norm_(model.parameters(), limit)</code>, after the loop.
# </details>

# %%
check(in_ddp(clipped), **clip_judged)

# %% [markdown]
# A mean over tokens has a similar trap. Answers in a chat may have 5 tokens or 500. What isn't part of an answer has the target −100, which `cross_entropy` ignores. So it takes
# the mean over the tokens that are **left in this batch**, and four ranks take four such means, of different numbers of tokens.


# %%
def mean_over_all(model, inputs, targets):
    """A rank's share of the mean over the tokens of all ranks, which DDP is going to divide."""
    count = (targets != -100).sum()
    dist.all_reduce(count)
    return dist.get_world_size() * loss_of(model, inputs, targets, reduction="sum") / count


def gradient_of(loss):
    model = DistributedDataParallel(small_gpt(torch.float64))
    torch.manual_seed(1)
    inputs, targets = answers(16)
    shard = slice(dist.get_rank(), 16, dist.get_world_size())
    loss(model, inputs[shard], targets[shard]).backward()
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


# %%
(one_process,) = launch(gradient_of, loss_of, world_size=1, backend="gloo")
shares = {}
for name, loss in {"mean of means": loss_of, "sum × 4 / all tokens": mean_over_all}.items():
    gradient = launch(gradient_of, loss, world_size=4, backend="gloo")[0]
    shares[name] = ((gradient - one_process).norm() / one_process.norm()).item()
assert shares["mean of means"] > 0.01
assert shares["sum × 4 / all tokens"] < 1e-12
text = "The mean of means is off; sums, divided by the number of all tokens, are not."
show(chapter_15.off_one_process(shares, "off one process, in percent"), text)

# %% [markdown]
# In October 2024 this error was found with microbatches, whose means were averaged in the same way ([Unsloth](https://unsloth.ai/blog/gradient), [Hugging
# Face](https://huggingface.co/blog/gradient_accumulation)). The same month an [issue](https://github.com/huggingface/transformers/issues/34242) reported it for the ranks of DDP.
# Exercise 4 of the lab is about it.

# %% [markdown]
# ## 7 · A norm over all ranks
#
# `BatchNorm` takes the mean and the deviation of each rank's *local* batch. To synchronise it, the ranks have to add up in the middle of the forward pass, so the sums have to be
# differentiable. Below we try three all-reduces. Two ranks bring *a* and *b*, which are both 1, and each has the loss (*a* + *b*)². Both losses together are 2(*a* + *b*)². So the
# gradient of *a* should be 4(*a* + *b*) = 8.


# %%
def total_in_place(local):
    total = local.clone()
    dist.all_reduce(total)
    return total


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local):
        return total_in_place(local)

    @staticmethod
    def backward(ctx, gradient):
        return total_in_place(gradient)  # every rank's loss depends on my number


# %%
def functional_total(local):
    return functional_all_reduce(local, "sum", dist.group.WORLD)


def gradient_through(add_up):
    local = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (add_up(local) ** 2).sum().backward()
    return local.grad.item(), [str(each.message).split(". ")[0] for each in caught]


ways = {"SumOverRanks": SumOverRanks.apply, "plain all_reduce": total_in_place}
ways["functional"] = functional_total
for name, add_up in ways.items():
    gradient, warned = launch(gradient_through, add_up, backend="gloo")[0]
    print(f"{name + ':':17} {gradient:.0f}", *warned)

# %% [markdown]
# Through the plain `all_reduce` the gradient is wrong, and nothing but a warning says so. The functional one is right, but the underscore in its module's name says that it isn't
# public. Now we write the norm ourselves, since PyTorch's own, [`SyncBatchNorm`](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html), doesn't run on a CPU:


# %%
class SyncedNorm(nn.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        count = SumOverRanks.apply(torch.tensor(1.0 * len(x)))  # batches may differ in size
        mean = SumOverRanks.apply(x.sum(dim=0)) / count
        variance = SumOverRanks.apply(((x - mean) ** 2).sum(dim=0)) / count
        unbiased = variance * count / (count - 1)  # what torch keeps for eval()
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(unbiased, self.momentum)
        return (x - mean) / (variance + self.eps).sqrt() * self.weight + self.bias


# %%
def normed_gradients(norm, sizes=(2, 8, 32, 128)):
    gradients = []
    for local_batch in sizes:
        torch.manual_seed(0)
        layers = nn.Linear(784, 32), norm(32), nn.ReLU(), nn.Linear(32, 10)
        model = DistributedDataParallel(nn.Sequential(nn.Flatten(), *layers))
        shard = slice(dist.get_rank(), 4 * local_batch, dist.get_world_size())
        cross_entropy(model(training.data[shard]), training.targets[shard]).backward()
        gradients.append(parameters_to_vector(p.grad for p in model.parameters()))
    return torch.stack(gradients)


# %%
off = {}
controls = {nn.BatchNorm1d: nn.BatchNorm1d, SyncedNorm: nn.BatchNorm1d, nn.LayerNorm: nn.LayerNorm}
for norm, in_one_process in controls.items():
    (whole,) = launch(normed_gradients, in_one_process, world_size=1, backend="gloo")
    gradients = launch(normed_gradients, norm, world_size=4, backend="gloo")[0]
    off[norm.__name__] = (gradients - whole).norm(dim=1) / whole.norm(dim=1)
    print(f"{norm.__name__:11} 2 per rank: {100 * off[norm.__name__][0]:3.0f} % off")
text = "BatchNorm's error falls with the local batch; SyncedNorm and LayerNorm leave rounding only."
show(chapter_15.norms(off, (2, 8, 32, 128)), text)

# %% [markdown]
# For evaluation, `BatchNorm` keeps running statistics. They are **buffers**, and DDP averages gradients only. By default it copies rank 0's buffers to all ranks before a forward
# pass; `forward_sync_buffers=False` turns that off.
#
# **Predict.** Which statistics come closest to those of one process? With copying: (1) rank 0's, (2) the average of all ranks'. Without copying: (3) rank 0's, (4) the average of
# all ranks'. Answer with a number.


# %%
closest = predict("closest to one process are", ...)


def running_statistics(copied):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))
    model = DistributedDataParallel(network, forward_sync_buffers=copied)
    for begin in range(0, 320, 32):
        model(training.data[begin + rank : begin + 32 : world_size]).sum().backward()
    return torch.stack([network[1].running_mean, network[1].running_var])


# %%
(of_one,) = launch(running_statistics, True, world_size=1, backend="gloo")
distances = []
for copied in (True, False):
    ranks = torch.stack(launch(running_statistics, copied, world_size=4, backend="gloo"))
    for name, statistics in {"rank 0's": ranks[0], "average": ranks.mean(dim=0)}.items():
        distances.append((statistics - of_one).abs().amax(dim=1).sum().item())
        print(f"({len(distances)}) {name:8} is off by {distances[-1]:.3f}")
closest.measured(1 + distances.index(min(distances)))

# %% [markdown]
# Copying throws away what the other three ranks have seen. So **synchronise the norm**, or turn copying off and average the buffers before you save.
#
# With gradient accumulation (chapter 04), when are the buffers sent? Here's one step of three microbatches, the first two under `no_sync`.


# %%
def accumulate():
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))
    model = DistributedDataParallel(network)
    for part in range(3):
        with nullcontext() if part == 2 else model.no_sync():
            dist.barrier()  # marks the beginning of a microbatch in the record
            model(training.data[:4]).sum().backward()


trace = launch(accumulate, backend="gloo", trace=True).trace
events = trace.of_rank(0)
kinds = [event.kind for event in events]
for event in events[kinds.index("barrier") :]:
    print(event.kind if event.dtype is None else f"{event.kind} of {event.dtype}")

# %% [markdown]
# The buffers are broadcast in the first microbatch only, although it's under `no_sync`. There are two broadcasts because each carries one dtype: the means and variances are float32, the
# counter of batches is int64. The gradients are reduced in the last microbatch. Each forward pass of DDP decides about the next one: after a pass under `no_sync`, the next sends no buffers. So in every step the
# first microbatch sends them, since it comes after one whose gradients were reduced.
#
# ## What you know now

# %%
predict()

# %% [markdown]
# A difference that shrinks in float64, as its control does, is rounding. One that stays has a different cause. Three that you've seen are bugs: a sum divided by the wrong number, a gradient clipped by one
# rank's norm, and a mean of means. The fourth is meant to be so: a batch norm that sees a quarter of the batch. You have to know of it, and may synchronise it.
#
# Practise in [lab 07](../exercises/07_data_batches_numerics.ipynb), exercises 3 and 4.
#
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb).
