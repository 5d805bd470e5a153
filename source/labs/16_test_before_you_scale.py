# %% [markdown]
# # Lab 16 · Test before you scale
#
# Three exercises on [chapter 16](../notebooks/16_test_before_you_scale.ipynb), 45 minutes, on any computer. You write tests, and **versions** of a function judge them: right ones that your test must accept, and wrong ones that it must catch.

# %%
import random

import pytest
import torch
import torch.distributed as dist

from course_lessons import versions_16
from course_lessons.chapter_16 import Version, accepted_versions, judged_by, tried_on  # noqa: F401
from course_utils import check, launch, progress

# %% [markdown]
# Each test is an ordinary function with `assert`. `check` runs it in 1, 2 and 3 real ranks with each version, in random order. A version counts as caught if an `assert` fails on any rank, or if ranks would wait for ever. If none is missed, you've passed; otherwise you get a clue.

# %% [markdown]
# ## 1 · Does every sample come?
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* `my_indices(samples, epoch)` says which samples this rank reads. Together the ranks read every sample, and each reads equally many, with as few repeats as possible. If it's asked for the same epoch again, it returns the same samples, but from epoch to epoch a rank's samples change. Their order is free. **Goal:** test that.


# %%
def my_indices(samples, epoch):  # one version that is right
    order = list(range(samples))
    random.Random(epoch).shuffle(order)
    world_size = dist.get_world_size()
    order += order[: -samples % world_size]
    return order[dist.get_rank() :: world_size]


# %%
def test_indices(my_indices):
    ### BEGIN SOLUTION # dist.all_gather_object shows what the other ranks read
    world_size = dist.get_world_size()
    for samples in (12, 13):
        read_by_epoch = []
        for epoch in range(2):
            own_shard = my_indices(samples, epoch)
            assert my_indices(samples, epoch) == own_shard
            shards = [None] * world_size
            dist.all_gather_object(shards, own_shard)
            everything = [index for shard in shards for index in shard]
            assert set(everything) == set(range(samples))
            for shard in shards:
                assert len(shard) == -(-samples // world_size)
            read_by_epoch.append(sorted(own_shard))
        if world_size > 1:
            assert read_by_epoch[0] != read_by_epoch[1]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which numbers of samples are harmless, and which aren't? And what can a rank not know by itself?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Try a number that 2 and 3 divide, and one that they don't. Call twice per epoch and compare. Gather all ranks' lists; compare their union with all samples, and each length with the quotient, rounded up. At the end, compare this rank's sorted samples of several epochs.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_gather_object(shards, own_shard)</code>, then
# <code>assert len(shard) == -(-samples // world_size)</code> for every shard.
# </details>

# %%
versions = versions_16.INDICES
check(tried_on(test_indices, versions), **judged_by(versions))

# %% [markdown]
# ## 2 · Is it the mean of all?
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* `mean_of_all(numbers)` takes float64 numbers and returns, on every rank, the mean of all ranks' numbers as a float, right to 12 digits. A rank may have none, though not all of them. `numbers` stays as it was. **Goal:** test this promise.


# %%
def mean_of_all(numbers):  # one version that is right
    totals = torch.tensor([numbers.sum().item(), len(numbers)], dtype=torch.float64)
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


# %%
def test_mean(mean_of_all):
    ### BEGIN SOLUTION # twice, with other counts; every rank draws all ranks' numbers
    generator = torch.Generator().manual_seed(0)
    for turn in (1, 2):
        shards = []
        for rank in range(dist.get_world_size()):
            count = 3 * turn * ((rank + turn) % 3)
            shards.append(1 + torch.rand(count, generator=generator, dtype=torch.float64))
        numbers = shards[dist.get_rank()].clone()
        result = mean_of_all(numbers)
        assert result == pytest.approx(torch.cat(shards).mean().item(), rel=1e-12)
        assert torch.equal(numbers, shards[dist.get_rank()])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# With equal counts many mistakes give the right mean. Which counts would be the hardest, and does a second call find what the first one did?
# </details>
# <details><summary>Hint 2: the approach</summary>
# With one seed, each rank draws the numbers of all ranks, with counts that differ and of which one is 0. It hands in its own, and compares the result with the mean of all, to 12 digits. It also compares its numbers with a copy made before the call. Then it does so again with other counts.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>count = 3 * turn * ((rank + turn) % 3)</code> for each rank, and <code>assert result == pytest.approx(wanted, rel=1e-12)</code>.
# </details>

# %%
versions = versions_16.MEANS
check(tried_on(test_mean, versions), **judged_by(versions))

# %% [markdown]
# ## 3 · Is it cheap as well?
#
# *Difficulty ●●● · importance ●●○ · 15 minutes.* `average_gradients(parameters)` replaces each float32 gradient by its average over all ranks. A gradient that is `None` counts as zero, and gets the average too. Frozen parameters (`requires_grad=False`) and all weights stay as they are.

# %% [markdown]
# It calls one `all_reduce`, of four bytes for each number of the parameters that aren't frozen, and nothing else. **Goal:** test all of it, to six digits. `trace.kinds` lists the calls so far, and `trace.calls[0].bytes` what this rank has handed in.


# %%
def average_gradients(parameters):  # one version that is right
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    for parameter in trained:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([parameter.grad.flatten() for parameter in trained])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [parameter.numel() for parameter in trained]
    for parameter, part in zip(trained, flat.split(sizes)):
        parameter.grad = part.view_as(parameter)


# %%
def test_average(average_gradients, trace):
    ### BEGIN SOLUTION # two that are trained, one of them without a gradient on the last rank
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    shapes = ((2, 3), (4,), (5,))
    parameters = [torch.nn.Parameter(torch.rand(shape)) for shape in shapes]
    parameters[2].requires_grad_(False)
    gradients = [[torch.rand(shape) for shape in shapes[:2]] for _ in range(world_size)]
    gradients[world_size - 1][1] = torch.zeros(4)
    parameters[0].grad = gradients[rank][0].clone()
    if rank < world_size - 1:
        parameters[1].grad = gradients[rank][1].clone()
    weights = [parameter.detach().clone() for parameter in parameters]

    average_gradients(parameters)
    for number in (0, 1):
        wanted = sum(of_rank[number] for of_rank in gradients) / world_size
        assert torch.allclose(parameters[number].grad, wanted, rtol=1e-6, atol=1e-7)
    assert parameters[2].grad is None
    for parameter, weight in zip(parameters, weights):
        assert torch.equal(parameter, weight)
    assert trace.kinds == ["all_reduce"]
    assert trace.calls[0].bytes == 4 * (6 + 4)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Make three parameters that differ as much as the promise allows. Which of them is easiest to forget?
# </details>
# <details><summary>Hint 2: the approach</summary>
# One parameter with a gradient everywhere, one whose gradient is missing on a single rank, one frozen. Seeded alike, each rank knows all gradients. Compare averages, then weights with copies, then the list of calls and the bytes of the only one.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>assert trace.kinds == ["all_reduce"]</code> and <code>assert trace.calls[0].bytes == 4 * numbers</code>, where <code>numbers</code> leaves out the frozen parameter.
# </details>

# %%
versions = versions_16.GRADIENTS
check(tried_on(test_average, versions), **judged_by(versions))

# %% [markdown]
# ## Bonus · A version of your own
#
# *No minutes, no check.* Write a wrong version that your own test accepts. A line is enough, such as a `dtype` or a count that no case has. Then add the case that catches it.

# %%
# For a my_mean of yours: {"mine": Version(lambda: my_mean, clue="rounds")}
my_versions = {}
if my_versions:
    tried = list(my_versions.values())
    accepted = launch(accepted_versions, test_mean, tried, world_size=3, backend="gloo")[0]
    print("accepted by test_mean:", dict(zip(my_versions, accepted)))

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [09 · Many machines](../notebooks/09_many_machines.ipynb), where a rank may be in another room.

# %%
progress("test_indices", "test_mean", "test_average")
