# %% [markdown]
# # 15 · The numbers of many ranks
#
# **Many ranks end with other numbers than one process: is this difference rounding or a bug?**
#
# In 65 minutes you will be able to
#
# 1. say what a larger global batch asks of the learning rate, of clipping and of a mean over tokens;
# 2. tell rounding from a bug;
# 3. decide which statistics each rank has to itself.
#
# **Hardware:** any computer; all ranks here use gloo on the CPU, so that you can compare every digit.
# **Before:** [07 · Data and batches](07_data_batches_numerics.ipynb).
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb).
# **Lab:** exercises 3 and 4 of [lab 07](../exercises/07_data_batches_numerics.ipynb).

# %% jupyter={"source_hidden": true}
import functools
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, parameters_to_vector
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    Subset,
)

from course_material.language import SmallGPT, novel
from course_utils import check, digits, launch, predict, show
from course_utils.pictures.style import plain_style

# %%
training, testing = digits(train=True), digits(train=False)


# %%
def make_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


# %%
def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %% [markdown]
# ## 1 · A language model draws its own batches
#
# From here on a small GPT trains beside the digits. No sampler deals its batches: each step draws **windows** of *Pride and Prejudice* at random places.

# %%
story, alphabet = novel()
CONTEXT = 32


# %%
def windows(count):
    """Inputs and, a character further on, targets: (count, CONTEXT) each."""
    starts = torch.randint(len(story) - CONTEXT, (count, 1))
    drawn = story[starts + torch.arange(CONTEXT + 1)]
    return drawn[:, :-1], drawn[:, 1:]


# %%
def small_gpt(dtype=torch.float32):
    torch.manual_seed(0)
    return SmallGPT(len(alphabet), width=32, depth=1, context=CONTEXT).to(dtype)


def loss_of(model, inputs, targets, **options):
    return cross_entropy(model(inputs).flatten(0, -2), targets.flatten(), **options)


# %%
def texts(seed_by_rank):
    torch.manual_seed(1 + seed_by_rank * dist.get_rank())
    return [tuple(window) for window in windows(160)[0].tolist()]


# %%
for seed_by_rank in (False, True):
    drawn = chain(*launch(texts, seed_by_rank, world_size=4, backend="gloo"))
    print(f"seeded by rank: {seed_by_rank!s:5}  different windows of 640: {len(set(drawn))}")

# %% [markdown]
# Chapter 04 showed what becomes of ranks that are seeded alike: four learn, bit for bit, what one learns. The cure is a seed plus the rank. *Bit for bit* holds for some numbers of ranks only. How many of 100,000 random numbers
# are not equal to the average of *n* copies of themselves?


# %%
def average_of_copies(numbers):
    average = numbers / dist.get_world_size()
    dist.all_reduce(average)
    return int((average != numbers).sum())


numbers = torch.from_numpy(np.random.default_rng(0).standard_normal(100_000, dtype=np.float32))
for n in (2, 3, 4, 8):
    print(n, "ranks:", launch(average_of_copies, numbers, world_size=n, backend="gloo")[0])

# %% [markdown]
# Dividing by a power of two does not round, and yet eight ranks differ: what rounds is the adding, of the third, fifth or seventh copy. With four ranks nothing of that is left in the end.
#
# ## 2 · More ranks, another learning rate?
#
# "Multiply the learning rate by the number of GPUs" is common advice. Whether it is right depends on what stays the same. We train on 1,280 digits.


# %%
def train(global_batch, learning_rate, criterion=cross_entropy):
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    part = Subset(training, range(1280))
    sampler = DistributedSampler(part)
    loader = DataLoader(part, global_batch // dist.get_world_size(), sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            update(optimizer, criterion(model(images), labels))
    return parameters_to_vector(model.parameters()).detach()


# %%
total = partial(cross_entropy, reduction="sum")


def total_times_ranks(output, labels):
    return dist.get_world_size() * total(output, labels)


# %%
runs = {
    "1: 2 ranks, rate 0.05": (2, 64, 0.05),
    "2: 4 ranks, rate 0.05": (4, 64, 0.05),
    "3: 4 ranks, rate 0.05 × 4": (4, 64, 0.2),
    "4: 4 ranks, sum loss, rate 0.05 / 64": (4, 64, 0.05 / 64, total),
    "5: 4 ranks, sum loss × 4, rate 0.05 / 64": (4, 64, 0.05 / 64, total_times_ranks),
}

# %% [markdown]
# In all five the **global batch** stays 64, so the local batch shrinks from 64 to 32 to 16. The reference is one rank with the mean loss and a rate of 0.05. **Predict.** Which of the five end with the reference's weights? Answer with a set.

# %%
same_runs = predict("runs that end with the weights of one rank", ...)

# %%
(reference,) = launch(train, 64, 0.05, world_size=1, backend="gloo")
equal_runs, ended = set(), {}

# %%
for name, (world_size, *settings) in runs.items():
    ended[name] = launch(train, *settings, world_size=world_size, backend="gloo")
    difference = (ended[name][0] - reference).abs().max().item()
    print(f"{name:42}", "differs by rounding" if difference < 1e-6 else f"by {difference:.2f}")
    equal_runs |= {int(name[0])} if difference < 1e-6 else set()
same_runs.measured(equal_runs)

# %% [markdown]
# With the same global batch and a **mean** loss nothing needs changing: the average of four means over 16 digits is the mean over 64. With a **sum** loss, DDP's division by four is one too many, so the
# loss is multiplied by the world size.
#
# ### A larger global batch
#
# Now the **local batch** stays 64, so four ranks take 256 digits per step, in a quarter of the steps. That is another training. [Goyal and others (2017)](https://arxiv.org/abs/1706.02677) multiply SGD's rate by the factor of the batch. They
# **warm up**: the rate grows from the old one to the new one (ours grows from near zero). For Adam, [Malladi and others (2022)](https://arxiv.org/abs/2205.10287) multiply it by the square root of that factor, and scale the betas and `eps` too, which we do not.
# What counts is the global batch, not who computes it, so each of three ranks trains alone, on a seed of its own.


# %%
def scaled(make_optimizer, batch, rate, warm_up, samples=8192):
    """Train on a number of samples, in batches of any size; return the training loss at the end."""
    seed, steps = dist.get_rank(), samples // batch
    model = make_model(seed)
    optimizer = make_optimizer(model.parameters())
    for step in range(steps):
        grown = min(1, (step + 1) / (1 + warm_up * steps))  # in even steps to 1, then it stays
        optimizer.param_groups[0]["lr"] = rate * grown
        drawn = torch.randint(len(training), (batch,))
        update(optimizer, cross_entropy(model(training.data[drawn]), training.targets[drawn]))
    return cross_entropy(model(training.data), training.targets).item()


# %% jupyter={"source_hidden": true}
SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
trials = {"64": (64, 1, 0), "256": (256, 1, 0), "256,\nrate × 2": (256, 2, 0)}
trials |= {"256,\nrate × 4": (256, 4, 0), "256, × 4,\nwarm-up": (256, 4, 0.2)}
ends = {(SGD, 0.05): {}, (SGD, 0.2): {}, (AdamW, 0.01): {}}


def every_trial(kind, rate):
    return [scaled(kind, batch, rate * factor, more) for batch, factor, more in trials.values()]


for (kind, rate), losses in ends.items():
    ranks = launch(every_trial, kind, rate, world_size=3, backend="gloo")
    losses |= dict(zip(trials, zip(*ranks)))

_, as_before, _, larger, warmed = ends[SGD, 0.05].values()
assert min(as_before) > max(larger)
assert np.median(warmed) > np.median(larger)
_, as_before, twice, larger, warmed = ends[SGD, 0.2].values()
assert max(as_before) < min(twice)
assert min(larger + warmed) > 1.5
small, as_before, root, larger, warmed = ends[AdamW, 0.01].values()
assert max(small + warmed) < min(larger)
assert np.median(as_before) < np.median(warmed)
assert np.median(as_before) < np.median(root)

figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.9), sharey=True, layout="constrained")
for axis, ((kind, rate), losses) in zip(axes, ends.items()):
    for place, each in enumerate(losses.values()):
        axis.plot([place - 0.25, place + 0.25], [np.median(each)] * 2, color="#222222", lw=2)
        spots = place + np.linspace(-0.16, 0.16, 3)
        axis.plot(spots, each, "o", ms=6, mfc="none", mec="#555555")
    axis.set_xticks(range(len(losses)), losses, fontsize=8)
    axis.set(yscale="log", title=f"{kind.__name__}, rate {rate}", xlabel="global batch")
    axis.grid(axis="y", color="#DDDDDD")
axes[0].set_ylabel("training loss at the end (nats)")
text = "Circles are three seeds, lines their medians. Rate × 4 helps on the left, ruins the middle"
show(figure, f"{text}, and needs a warm-up on the right.")

# %% [markdown]
# The same number of digits was read in every run. (The middle panel's *256* are the runs of *rate × 4* on the left.) Three seeds show:
#
# - **SGD, 0.05:** at the old rate the larger batch stays far behind. Rate × 4 makes up much of it. With our warm-up the median is worse.
# - **SGD, 0.2:** the old rate does better than any larger one. At 0.8 next to nothing is learnt, with a warm-up or without.
# - **AdamW, 0.01:** at 0.04 a warm-up over the first fifth of the steps is worth a lot: its worst seed beats the best one without. But the old rate's median is lower, and lower than that of × 2, the square root.
#
# So the **global batch** is what counts, not the number of ranks. While it stays, so does the rate. When it grows, scaling the rate and warming up are things to try, over several seeds, and no laws.
#
# **Check yourself.** Your script has `batch_size=64` in the loader and you go from 1 to 8 GPUs. Which of the two cases is it?
#
# <details><summary>Answer</summary>
# The second: the loader's number is the local batch, so the global one is now 512, with an eighth of the steps per epoch. For the first write <code>batch_size=64 // world_size</code>.
# </details>
#
# ### The bug that Adam swallows
#
# Run 4 above forgot a factor of four, and SGD ended elsewhere. With the GPT we try that on AdamW, which divides each gradient by its own running size
# ([Kingma and Ba, 2015](https://arxiv.org/abs/1412.6980)), and on AdamW with its gradients clipped to a norm of 0.5 (part 3). `factor` multiplies the loss, and all is in float64.


# %%
def train_gpt(make_optimizer, factor=1.0, limit=float("inf")):
    model = small_gpt(torch.float64)
    start = parameters_to_vector(model.parameters()).detach()
    optimizer = make_optimizer(model.parameters())
    torch.manual_seed(1)
    for _ in range(30):
        optimizer.zero_grad()
        (factor * loss_of(model, *windows(8))).backward()
        clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
    return parameters_to_vector(model.parameters()).detach() - start


# %% [markdown]
# **Predict.** Four optimisers: 1 SGD, 2 AdamW, 3 AdamW with `eps` 1e-12, 4 AdamW with clipping. Which move the weights more than 5 % differently when the loss is four times too small? Answer with a set.

# %%
moved = predict("optimisers that a factor of 1/4 moves by over 5 %", ...)

# %%
adamw = partial(torch.optim.AdamW, lr=3e-3)
optimizers = {"1 SGD": (partial(torch.optim.SGD, lr=0.1),), "2 AdamW": (adamw,)}
optimizers |= {"3 AdamW, eps 1e-12": (partial(adamw, eps=1e-12),), "4 AdamW, clipped": (adamw, 0.5)}
over = set()

# %%
for name, (kind, *limit) in optimizers.items():
    way, other = (
        launch(train_gpt, kind, factor, *limit, world_size=1, backend="gloo")[0]
        for factor in (1.0, 0.25)
    )
    per_cent = 100 * ((way - other).norm() / way.norm()).item()
    print(f"{name:19} {per_cent:.2f} %")
    over |= {int(name[0])} if per_cent > 5 else set()
moved.measured(over)

# %% [markdown]
# SGD goes another way. AdamW's steps hardly change: what is left of the factor comes from `eps`, which is added to the gradient's size, and a smaller `eps` leaves less. So AdamW hides a wrong factor until something looks at the
# **size** of the gradient. A clipping limit does: small gradients are no longer clipped, and the way changes after all.
#
# ## 3 · Clip once, after the average
#
# `clip_grad_norm_` adds up the squares of *all* gradients. If the root, the **global norm**, is above a limit, it shrinks them all by the same factor. Where does it belong when four ranks average? Either each rank clips its own
# gradient, or all clip the average.


# %%
def clipped_gradient(where, limit=0.5):
    model = small_gpt(torch.float64)
    torch.manual_seed(1)
    own = slice(dist.get_rank(), 16, dist.get_world_size())  # of the same 16 windows
    loss_of(model, *(part[own] for part in windows(16))).backward()
    if where == "before":
        clip_grad_norm_(model.parameters(), limit)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
    if where == "after":
        clip_grad_norm_(model.parameters(), limit)
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


# %%
(lone,) = launch(clipped_gradient, "after", world_size=1, backend="gloo")
for where in ("before", "after"):
    ours = launch(clipped_gradient, where, world_size=4, backend="gloo")[0]
    away = 100 * ((ours - lone).norm() / lone.norm()).item()
    print(f"clipped {where:6} the average: norm {ours.norm():.3f}, {away:.1f} % off one process")

# %% [markdown]
# Only *after* is equal. *Before*, ranks with a large gradient are shrunk more than others, and the average of four vectors of norm 0.5 is shorter than 0.5.
# With accumulation there are several backward passes, and the place is yours to find.
#
# ### Write it
#
# *About 6 minutes.* `model` is a DDP already, its gradients are `None`, and `pieces` are this rank's micro-batches of one step: a list of `(inputs, targets)`, all of one size, equally many on all ranks. Leave in the gradients what one process would have from
# the mean of `mse_loss` over all pieces of all ranks, clipped to `limit`. Return the global norm as it was before clipping.


# %%
def clipped(model, pieces, limit):
    raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The norm of a sum is not the sum of the norms. When is the gradient complete, over pieces and over ranks?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Accumulate: a backward per piece, of its loss divided by the number of pieces. Clip once, when the last backward is over. The function that clips returns the norm. (<code>model.no_sync()</code> around all pieces but the last saves messages; the result is the same.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return clip_grad_norm_(model.parameters(), limit)</code>, after the loop.
# </details>


# %% jupyter={"source_hidden": true}
clip_cases = {"one piece": (1, 0.1), "three pieces": (3, 0.1), "a limit never reached": (2, 1e6)}


@dataclass
class Step:
    """A rank's arguments, which a table shows in a few words."""

    model: nn.Module
    pieces: list
    limit: float

    def __repr__(self):
        pieces = f"{len(self.pieces)} piece{'s' * (len(self.pieces) > 1)}"
        return f"{pieces}, limit {self.limit:,.10g}"


def told_of(model, norm):
    flat = parameters_to_vector(parameter.grad for parameter in model.parameters())
    return {"norm before clipping": norm, "gradient": flat}


def in_ddp(answer):
    @functools.wraps(answer)
    def gradient(step):
        model = DistributedDataParallel(step.model)
        return told_of(model, answer(model, step.pieces, step.limit))

    return gradient


def clip_spec(steps):
    model, every = steps[0].model, [piece for step in steps for piece in step.pieces]
    for inputs, targets in every:
        (mse_loss(model(inputs), targets) / len(every)).backward()
    norm = clip_grad_norm_(model.parameters(), steps[0].limit)
    return [told_of(model, norm.item())] * len(steps)


def clip_inputs(rank, world_size, case):
    count, limit = clip_cases[case]
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    numbers = (1 + rank) * torch.randn(count, 3, 6, dtype=torch.float64)
    return Step(model, [(piece[:, :4], piece[:, 4:]) for piece in numbers], limit)


clip_judged = {"spec": clip_spec, "inputs": clip_inputs, "cases": list(clip_cases)}
clip_judged |= {"rtol": 1e-5, "atol": 1e-8}  # torch adds 1e-6 to the norm it divides by

# %%
check(in_ddp(clipped), **clip_judged)


# %% jupyter={"source_hidden": true}
def clipped_once(model, pieces, limit):
    """The finished form."""
    for number, (inputs, targets) in enumerate(pieces, 1):
        with nullcontext() if number == len(pieces) else model.no_sync():
            (mse_loss(model(inputs), targets) / len(pieces)).backward()
    return clip_grad_norm_(model.parameters(), limit)


check(in_ddp(clipped_once), **clip_judged)

# %% [markdown]
# ## 4 · Every token weighs the same
#
# Digits come one label to a sample. Sequences do not: answers in a chat have 5 tokens or 500, and what is not answer is masked by the target −100, which `cross_entropy` ignores. Its mean then is a mean over the tokens **that are left in this batch**.
# Four ranks, or four accumulated pieces, make four such means.


# %%
def answers(count):
    inputs, targets = windows(count)
    lengths = torch.randint(1, CONTEXT, (count, 1))
    return inputs, torch.where(torch.arange(CONTEXT) < lengths, targets, -100)


# %%
def fair(model, inputs, targets):
    """A rank's share of the mean over the tokens of all ranks, for one piece."""
    count = (targets != -100).sum()
    dist.all_reduce(count)
    return dist.get_world_size() * loss_of(model, inputs, targets, reduction="sum") / count


# %%
def gradient_of(loss, pieces=1):
    model = DistributedDataParallel(small_gpt(torch.float64))
    torch.manual_seed(1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own = [part.chunk(world_size)[rank].chunk(pieces) for part in answers(16)]
    for inputs, targets in zip(*own):
        (loss(model, inputs, targets) / pieces).backward()
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


# %%
(by_token,) = launch(gradient_of, loss_of, world_size=1, backend="gloo")
means = {"1 process, 4 pieces, mean of means": (1, loss_of, 4)}
means |= {"4 ranks, mean of means": (4, loss_of), "4 ranks, sum × 4 / all tokens": (4, fair)}

# %%
for name, (world_size, *settings) in means.items():
    ours = launch(gradient_of, *settings, world_size=world_size, backend="gloo")[0]
    away = 100 * ((ours - by_token).norm() / by_token.norm()).item()
    print(f"{name:35} {away:.1f} % off" if away > 1e-9 else f"{name:35} equal to rounding")

# %% [markdown]
# Ranks and pieces are off by the same 7.6 %: where few tokens are left, each weighs more. In October 2024 this was found in many trainers at once, in accumulation
# ([Unsloth](https://unsloth.ai/blog/gradient), [Hugging Face](https://huggingface.co/blog/gradient_accumulation) with [its repair](https://github.com/huggingface/transformers/pull/34191)). The cure divides the **sum** by the number of all
# tokens, over ranks and pieces, which has to be known before the first backward. `fair` counts one piece at a time; exercise 4 of the lab counts all.
#
# ## 5 · Rounding, or a bug?
#
# "Equal to rounding" hid something. Every addition rounds, so three numbers may have two sums, while *a + b* and *b + a* are always the same:

# %%
print((0.1 + 0.2) + 0.3 == 0.1 + (0.2 + 0.3), 0.1 + 0.2 == 0.2 + 0.1)

# %% [markdown]
# Now on ranks: each brings 4,000 random numbers. We compare `all_reduce` with a plain loop that adds rank 0, 1, 2 and 3, bit for bit.


# %%
def add(dtype):
    generator = torch.Generator().manual_seed(dist.get_rank())
    mine = (1000 * torch.rand(4000, generator=generator, dtype=torch.float64)).to(dtype)
    total = mine.clone()
    dist.all_reduce(total)
    return mine, total


# %%
for dtype in (torch.int64, torch.float32, torch.float64):
    for world_size in (2, 4):
        brought, totals = zip(*launch(add, dtype, world_size=world_size, backend="gloo"))
        assert all(torch.equal(total, totals[0]) for total in totals)  # bits agree on all ranks
        differ = (totals[0] != sum(brought)).sum().item()
        print(f"{dtype!s:14} {world_size} ranks: {differ} of 4000 differ from the loop")

# %% [markdown]
# Whole numbers agree, and so do two ranks, for *a + b = b + a*. Four ranks in floating point differ in more than a quarter of the sums, by the last digit. Between the **ranks**, however, the cell found equal bits in all six cases: each sum is made
# once, and then handed on.
#
# Rounding leaves a trace. We cut the tensor into four quarters, and try some orders of adding on each (folded). The right order must give all 1,000 sums, bit for bit.

# %% jupyter={"source_hidden": true}
brought, totals = zip(*launch(add, torch.float32, world_size=4, backend="gloo"))
for quarter in range(4):
    part = slice(1000 * quarter, 1000 * quarter + 1000)
    for order in (3, 2, 1, 0), (0, 3, 2, 1), (1, 0, 3, 2), (2, 1, 0, 3), (0, 1, 2, 3):
        if torch.equal(sum(brought[rank][part] for rank in order), totals[0][part]):
            print(f"quarter {quarter}: all bits agree with the order {order}")

# %% [markdown]
# That is what a **ring** would give: each quarter sets out from another rank. (The first two of an order may change places, for *a + b = b + a*.) Another algorithm or another number of ranks adds in another order, and last bits change. Nothing is wrong then.
#
# ### How large may rounding get?
#
# A small difference is no proof of rounding, and a large one no proof of a bug. The GPT trains for 40 steps with AdamW, on the same 8 windows per step. Three runs are compared with one process: two ranks; two ranks whose loss lacks a factor of two, a bug like that of part 2; and a
# **control**, one process with the windows of each batch in reverse order: no ranks, only a different order of adding.


# %%
def long_run(dtype, order=tuple(range(8)), factor=1.0):
    model = DistributedDataParallel(small_gpt(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)  # in fewer calls
    torch.manual_seed(1)
    own, weights = list(order[dist.get_rank() :: dist.get_world_size()]), []
    for step in range(1, 41):
        inputs, targets = windows(8)
        update(optimizer, factor * loss_of(model, inputs[own], targets[own]))
        if step % 4 == 0:
            weights.append(parameters_to_vector(model.parameters()).detach())
    return torch.stack(weights)


# %% [markdown]
# **Predict.** For each of the three runs take the largest difference of any weight after step 40. How many of the three are at least a thousand times smaller in float64 than in float32?

# %%
shrink = predict("differences that shrink in float64, of three", ...)

# %% jupyter={"source_hidden": true}
backwards = tuple(reversed(range(8)))
kinds = {"2 ranks": (2,), "control: 1 process, reversed": (1, backwards)}
kinds |= {"bug: 2 ranks, factor forgotten": (2, tuple(range(8)), 0.5)}
apart = {}
for dtype in (torch.float32, torch.float64):
    (undivided,) = launch(long_run, dtype, world_size=1, backend="gloo")
    for name, (world_size, *settings) in kinds.items():
        weights = launch(long_run, dtype, *settings, world_size=world_size, backend="gloo")[0]
        apart[name, dtype] = (weights - undivided).abs().amax(dim=1)

last = {kind: steps[-1].item() for kind, steps in apart.items()}
small = [1000 * last[name, torch.float64] < last[name, torch.float32] for name in kinds]
shrink.measured(sum(small))
assert min(last[name, torch.float32] for name in kinds) > 1e-4
assert max(last[name, torch.float64] for name in list(kinds)[:2]) < 1e-9
assert last[list(kinds)[2], torch.float64] > 1e-4

figure, axes = plt.subplots(1, 2, figsize=(10.5, 3.8), sharey=True, layout="constrained")
for axis, dtype in zip(axes, (torch.float32, torch.float64)):
    for number, name in enumerate(kinds):
        style = plain_style(number) | {"markersize": 5, "markevery": 3}
        axis.plot(range(4, 41, 4), apart[name, dtype], label=name, **style)
    axis.set(title=str(dtype).removeprefix("torch."), xlabel="step", yscale="log", ylim=(1e-14, 1))
axes[0].set_ylabel("largest difference of a weight")
axes[0].legend(fontsize=9, loc="lower left")
text = "Left, in float32, the three lines meet. Right, in float64, rounding ends below 1e-9"
show(figure, f"{text}, the bug above 1e-4.")

# %% [markdown]
# In float32 nobody can tell them apart: rounding is as large as the bug, in the control as well. AdamW divides by the size of a gradient, so where that is nearly zero, rounding may decide about a whole step. In float64
# rounding ends below 1e-9, and **the bug stays above 1e-4**. That is the test to keep: *compare in float64, beside a control*.
#
# The weights of the ranks have to agree bit for bit, and so do two runs, here on the CPU with gloo:

# %%
once = ended["2: 4 ranks, rate 0.05"]  # of part 2
again = launch(train, 64, 0.05, world_size=4, backend="gloo")
print("rank 0 and rank 3:", torch.equal(once[0], once[3]))
print("two runs:         ", torch.equal(once[0], again[0]))

# %% [markdown]
# So this is the table to keep:
#
# | compared | equal | check with |
# | --- | --- | --- |
# | parameters of the ranks of one run | bit for bit | `torch.equal` |
# | the same run twice (here: CPU and gloo) | bit for bit | `torch.equal` |
# | several ranks with one process | to rounding, in float64 | `torch.allclose(a, b, rtol=0, atol=1e-9)` |
#
# ## 6 · BatchNorm looks at the local batch
#
# `BatchNorm` takes mean and deviation of the batch. Under DDP that is each rank's *local* batch. torch's `SyncBatchNorm` takes the global one. It refuses to run on a CPU, but the idea fits in a few lines that run anywhere: add up counts, sums and squared
# distances over the ranks.
#
# But `dist.all_reduce` works in place, and autograd has no derivative for it. So an `autograd.Function` says what to do in backward. Every rank's loss depends on my number through the total. So its gradient is the sum of all ranks' gradients of the total: `all_reduce` again.


# %%
class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, mine):
        total = mine.clone()
        dist.all_reduce(total)
        return total

    backward = forward


# %% [markdown]
# What if one calls `dist.all_reduce` without it? Each of two ranks brings a 1, and has the square of the total as its loss. Both losses together, 2(*a* + *b*)², have the gradient 4(*a* + *b*) = 8.


# %%
def total_in_place(mine):
    total = mine.clone()
    dist.all_reduce(total)
    return total


def gradient_through(add_up):
    mine = torch.ones(1, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        (add_up(mine) ** 2).sum().backward()
    return mine.grad.item(), [str(each.message).split(". ")[0] for each in caught]


# %%
for add_up in (SumOverRanks.apply, total_in_place):
    print(*launch(gradient_through, add_up, backend="gloo")[0])

# %% [markdown]
# A wrong gradient, and no error: only a warning, which is easily lost in a log. (PyTorch has all-reduces with a derivative in `torch.distributed._functional_collectives`, which is not public yet.)


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


# %% [markdown]
# We compare the gradients of four ranks with one process on the same digits. The control is `LayerNorm`, the GPT's norm, which looks at one sample at a time.


# %%
def normed(norm):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), norm(32), nn.ReLU(), nn.Linear(32, 10))


# %%
def normed_gradient(norm, local_batch):
    torch.manual_seed(0)
    model = DistributedDataParallel(normed(norm))
    own = slice(dist.get_rank(), 4 * local_batch, dist.get_world_size())
    cross_entropy(model(training.data[own]), training.targets[own]).backward()
    return parameters_to_vector(parameter.grad for parameter in model.parameters())


# %% jupyter={"source_hidden": true}
sizes = (2, 4, 8, 16, 32, 64, 128, 256)


def normed_gradients(norm):
    return torch.stack([normed_gradient(norm, size) for size in sizes])


alone = {nn.BatchNorm1d: None, nn.LayerNorm: None}
for norm in alone:
    (alone[norm],) = launch(normed_gradients, norm, world_size=1, backend="gloo")
alone[SyncedNorm] = alone[nn.BatchNorm1d]
off = {}
for norm in (nn.BatchNorm1d, SyncedNorm, nn.LayerNorm):
    whole = alone[norm]
    ours = launch(normed_gradients, norm, world_size=4, backend="gloo")[0]
    off[norm.__name__] = (ours - whole).norm(dim=1) / whole.norm(dim=1)
    at_2, *_, at_32 = (100 * off[norm.__name__][:5]).tolist()
    print(f"{norm.__name__:11}  2 per rank: {at_2:3.0f} % off,  32 per rank: {at_32:2.0f} % off")

figure, axis = plt.subplots(figsize=(8, 3.8))
for number, (name, errors) in enumerate(off.items()):
    axis.plot(sizes, errors, label=name, **plain_style(number))
axis.set(xscale="log", yscale="log", ylim=(1e-8, 10))
axis.set_xticks(sizes, sizes)
axis.minorticks_off()
axis.set(xlabel="local batch (digits per rank)", ylabel="relative error of the gradient")
axis.legend()
text = "BatchNorm's error falls with the local batch; SyncedNorm and LayerNorm leave rounding only."
show(figure, text)

# %% [markdown]
# At 2 digits per rank BatchNorm's gradient is off by more than twice its own size. `SyncedNorm` *is* the BatchNorm of the global batch. What does that cost?

# %%
for norm in (nn.BatchNorm1d, SyncedNorm):
    trace = launch(normed_gradient, norm, 32, world_size=4, backend="gloo", trace=True).trace
    calls = [event.kind for event in trace.of_rank(0)].count("all_reduce")
    print(f"{norm.__name__:11} all_reduce calls per step: {calls}")

# %% [markdown]
# One call is DDP's own; ours adds three in forward and two in backward. torch's adds two, an `all_gather` in forward and an `all_reduce` in backward
# ([source](https://github.com/pytorch/pytorch/blob/main/torch/nn/modules/_functions.py)).
#
# Does the other gradient train worse? Two ranks train three seeds, 150 steps each, with 2 and with 32 digits per rank. Rank 0's model is tested in `eval()` (folded).


# %% jupyter={"source_hidden": true}
class ThreeSeeds(nn.Module):
    """Three networks as `normed` makes them, with one norm: each of its columns is by itself."""

    def __init__(self, norm):
        super().__init__()
        networks = []
        for seed in range(3):
            torch.manual_seed(seed)
            networks.append(normed(norm))
        self.first = nn.ModuleList(network[1] for network in networks)
        self.norm = norm(3 * 32)
        self.last = nn.ModuleList(network[4] for network in networks)

    def forward(self, images):  # (3, batch, 1, 28, 28), different digits for each network
        columns = [layer(its.flatten(1)) for layer, its in zip(self.first, images)]
        activated = self.norm(torch.cat(columns, dim=1)).relu().chunk(3, dim=1)
        return [layer(its) for layer, its in zip(self.last, activated)]


def three_losses(outputs, labels):
    return [cross_entropy(ours, theirs) for ours, theirs in zip(outputs, labels)]


def test_losses(norm, local_batch):
    model = DistributedDataParallel(ThreeSeeds(norm))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for _ in range(150):  # all ranks draw the same digits and take their own
        drawn = torch.randint(len(training), (3, world_size * local_batch))
        own = drawn[:, rank::world_size]
        update(optimizer, sum(three_losses(model(training.data[own]), training.targets[own])))
    network = model.module.eval()
    with torch.no_grad():
        outputs = network([testing.data] * 3)
    return sorted(loss.item() for loss in three_losses(outputs, [testing.targets] * 3))


tested = {}
for size in (2, 32):
    for norm in (nn.BatchNorm1d, SyncedNorm):
        losses = launch(test_losses, norm, size, backend="gloo")[0]
        tested[norm, size] = best, *_, worst = losses
        print(f"{size:2} per rank, {norm.__name__:11}: about {best:.2f} to about {worst:.2f}")
assert 2 * max(tested[SyncedNorm, 2]) < min(tested[nn.BatchNorm1d, 2])
assert min(tested[SyncedNorm, 32]) < max(tested[nn.BatchNorm1d, 32])
assert min(tested[nn.BatchNorm1d, 32]) < max(tested[SyncedNorm, 32])

# %% [markdown]
# With 2 digits per rank the worst seed of `SyncedNorm` has less than half the loss of the best of BatchNorm. With 32 per rank, three seeds cannot tell them apart, 17 % or not.
# So where the local batch is small, a few large images for instance, synchronise, or take a norm that never looks across samples. Where it is not, synchronising gained nothing here, and it costs messages in each layer.
#
# ### The statistics that you save
#
# For testing, BatchNorm keeps a running mean and variance. These are **buffers**, not parameters: they get no gradient, so nothing averages them. By default DDP copies rank 0's buffers to all ranks before the first forward pass of each step;
# `forward_sync_buffers=False` turns that off (older torch calls it `broadcast_buffers`).


# %%
def running_statistics(copied):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10))
    model = DistributedDataParallel(network, forward_sync_buffers=copied)
    for begin in range(0, 320, 32):
        model(training.data[begin + rank : begin + 32 : world_size]).sum().backward()
    return torch.stack([network[1].running_mean, network[1].running_var])


# %% [markdown]
# **Predict.** Whose statistics come closest to those of one process after ten steps: with copying (1) rank 0's or (2) the average of the four, without copying (3) rank 0's or (4) the average? Answer with a number.

# %%
closest = predict("closest to one process are", ...)

# %%
(of_one,) = launch(running_statistics, True, world_size=1, backend="gloo")
distances = []

# %%
for copied in (True, False):
    ranks = torch.stack(launch(running_statistics, copied, world_size=4, backend="gloo"))
    print(f"copied before each step: {copied}; equal: {torch.equal(ranks[0], ranks[3])}")
    for who, own in ("rank 0", ranks[0]), ("the average", ranks.mean(dim=0)):
        mean, variance = (own - of_one).abs().amax(dim=1).tolist()
        distances.append(mean + variance)
        name = f"{len(distances)} {who}"
        print(f"    {name:13} is off one process by {mean:.2f} (mean), {variance:.2f} (variance)")
closest.measured(1 + distances.index(min(distances)))

# %% [markdown]
# Copying does not make the ranks equal: each has added its own last batch since. Nor does it average: it throws away what the other three had found, at each step, so an average at the end hardly helps. Without copying, the average
# of the running means is that of one process; that of the variances lacks the spread between ranks. If you save rank 0's model, you save statistics of a quarter of the digits. So **synchronise the norm**, or turn copying off
# and average the buffers before you save.

# %% [markdown]
# ## What you know now

# %%
predict()

# %% [markdown]
# **Next:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb).
