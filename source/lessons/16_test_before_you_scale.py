# %% [markdown]
# # 16 · Test before you scale
#
# **Your code runs on one rank: how do you find out in seconds, without a GPU, whether it's right on many?**
#
# In 45 minutes you will be able to write tests that run in real ranks, read what a failing rank saw, repeat a delay, count messages, and say how good a test is.
#
# **Hardware:** any computer; all ranks here use gloo on the CPU, as they would on a server that runs tests.
# **Before:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb). **Next:** [09 · Many machines](09_many_machines.ipynb).
# **Lab:** [16 · Test before you scale](../exercises/16_test_before_you_scale.ipynb).

# %% jupyter={"source_hidden": true}
import inspect
import time

import pytest
import torch
import torch.distributed as dist

from course_lessons import chapter_16_pictures as pictures
from course_lessons.chapter_16 import Version, accepted_versions, counts, pytest_on
from course_lessons.finished import show_source
from course_lint.command import lint
from course_museum import EXHIBITS
from course_testing.in_rank import LateRanks
from course_utils import Network, launch, plot_timeline, predict

# %% [markdown]
# ## 1 · One rank proves little
#
# `mean_of_all` is meant to return the mean of all ranks' numbers. On one rank it does. The course brings a plugin for [pytest](https://docs.pytest.org). With it, a test marked with `ranks(1, 2, 3)` runs three times, in one, two and three real processes. Here are two such tests.


# %%
def mean_of_all(numbers):
    mean = numbers.mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


# %%
@pytest.mark.ranks(1, 2, 3)
def test_equal_counts(world_size):
    shards = torch.arange(4.0 * world_size).split(4)
    wanted = torch.cat(shards).mean().item()
    assert mean_of_all(shards[dist.get_rank()]) == pytest.approx(wanted)


@pytest.mark.ranks(1, 2, 3)
def test_other_counts(world_size):
    shards = [torch.arange(2.0 + 5 * rank) for rank in range(world_size)]
    wanted = torch.cat(shards).mean().item()
    assert mean_of_all(shards[dist.get_rank()]) == pytest.approx(wanted)


# %% [markdown]
# `pytest_on` writes these functions into a file `test_cell.py` and runs pytest on it. In a project of your own you'd type the command that it prints.
#
# **Predict.** Two tests with three numbers of ranks are six runs. How many of them fail?

# %%
failing = predict("runs that fail, of six", ...)

# %%
printed = pytest_on(mean_of_all, test_equal_counts, test_other_counts, options="--tb=no")
failing.measured(counts(printed)["failed"])
pictures.draw_runs(printed, (test_equal_counts, test_other_counts), (1, 2, 3))

# %% [markdown]
# Equal counts hide the mistake, however many ranks there are: the mean of means is the mean. [An issue of 2024](https://github.com/huggingface/transformers/issues/34242) reports this mistake in the library Transformers: it took a mean on each GPU, and then the mean of these. So a test needs several ranks *and* ranks that differ.
#
# ## 2 · What a failing rank saw
#
# `my_samples` cuts a data set into equal pieces, and rounds their length. The test asks whether each rank's samples exist.


# %%
def my_samples(samples):
    length = round(samples / dist.get_world_size())
    start = dist.get_rank() * length
    return list(range(start, start + length))


@pytest.mark.ranks(3)
def test_samples_exist():
    mine = my_samples(11)
    assert max(mine) < 11
    dist.barrier()  # the others stay until all have looked


# %% [markdown]
# **Predict.** Eleven samples, three ranks: which rank fails?

# %%
failing_rank = predict("the rank that fails", ..., choices=(0, 1, 2))

# %%
printed = pytest_on(my_samples, test_samples_exist)
failing_rank.measured(int(printed.partition("rank ")[2][0]))

# %% [markdown]
# The first line names the rank, and below it pytest shows *that rank's* values. If ranks print something, each has a section of its own. Which samples does each rank take?

# %%
pictures.draw_samples(my_samples, samples=11, world_size=3)

# %% [markdown]
# ## 3 · A bug from the museum
#
# The course has a museum (`course_museum/`) of bugs from public projects, each rewritten in a few lines. This one was in [torchtitan](https://github.com/pytorch/torchtitan)'s validation. The test gives four batches to rank 1, and three to rank 0.

# %%
exhibit = EXHIBITS["validation_of_uneven_length"]
bug = exhibit.bug
show_source(bug)


@pytest.mark.ranks(2)
def test_validation():
    batches = [torch.ones(4)] * (3 + dist.get_rank())
    assert bug(batches) == 1.0


# %% [markdown]
# **Predict.** What does this test do? Answer with `"passes"`, `"fails with a wrong number"` or `"hangs"`.

# %%
choices = ["passes", "fails with a wrong number", "hangs"]
outcome = predict("with three batches and four, it", ..., choices=choices)

# %%
printed = pytest_on(bug, test_validation)
happened = "passes"
if counts(printed)["failed"]:
    happened = "hangs" if "would never be done" in printed else "fails with a wrong number"
outcome.measured(happened)
print(f"\n{exhibit.story}\n{exhibit.link}")

# %% [markdown]
# A hang is a failed test, and the plugin didn't wait for a timeout. Once no rank has called anything for half a second, the plugin asks each rank where it is. Here that proves that rank 1 waits for a rank that has returned. So the test ends, and its report says who waits where.

# %%
pictures.draw_validation(bug)

# %% [markdown]
# ### Write it
#
# *About 5 minutes.* Fix this bug. `validate(batches)` returns, on every rank, the mean loss of all samples of all ranks. A batch is a tensor with one loss per sample. Ranks have different numbers of batches.


# %%
def validate(batches):
    raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Does a rank have to know the others' losses after each batch?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Add up losses and samples on each rank. Let the ranks meet once, after the loop.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>totals += torch.tensor([losses.sum(), float(len(losses))])</code> in the loop, and then <code>dist.all_reduce(totals)</code>.
# </details>

# %%
exhibit.judge(validate)

# %%
pictures.draw_validation(validate)

# %% [markdown]
# ## 4 · Ranks that come late
#
# Ranks of a test come to a call at nearly the same time, but ranks of a cluster don't. The fixture `late_ranks` makes each rank come late to each call, by delays that a seed decides. Below, somebody has forgotten a `wait()`. The pause of 0.3 s stands for work, and the delays are at most a second.


# %%
def sum_beside_work(number):
    dist.all_reduce(number, async_op=True)
    time.sleep(0.3)
    return number.item()


@pytest.mark.ranks(2)
def test_sum():
    dist.barrier()
    total = sum_beside_work(torch.ones(1))
    assert total == 2


@pytest.mark.ranks(2)
def test_sum_with_late_ranks(late_ranks):
    late_ranks.most_ms = 1000
    dist.barrier()
    total = sum_beside_work(torch.ones(1))
    assert total == 2


# %% [markdown]
# **Predict.** How many of the two tests fail?

# %%
failing_late = predict("tests that fail, of two", ...)

# %%
options = "--tb=short --rank-seed=5 -W ignore"
printed = pytest_on(sum_beside_work, test_sum, test_sum_with_late_ranks, options=options)
failing_late.measured(counts(printed)["failed"])

# %% [markdown]
# If both ranks come at the same time, the sum is there before the pause is over. But if one comes much earlier, it reads its own number. Without `-W ignore` the plugin would also have warned of work that nobody waits for. The same seed gives the same delays, while those of a different seed may be harmless.

# %%
for seed in (5, 5, 54):
    options = f"--tb=no --rank-seed={seed} -W ignore"
    pytest_on(sum_beside_work, test_sum_with_late_ranks, options=options, whole=False)

# %% [markdown]
# So a failure by chance can be repeated: the report names its seed. And these are the delays that the two seeds decide for the call after the barrier:

# %%
delays_ms = {}
for seed in (5, 54):
    late = LateRanks(seed, "test_cell.py::test_sum_with_late_ranks[2-ranks]")
    late.most_ms = 1000
    delays_ms[seed] = [late.delays_ms(rank, calls=2)[1] for rank in range(2)]
pictures.draw_late(delays_ms, pause_ms=300)

# %% [markdown]
# ## 5 · Right, but how often does it call?
#
# On a cluster each call costs a latency ([chapter 06](06_what_communication_costs.ipynb)). The fixture `trace` knows what has been called so far, so a test can demand a certain number of calls or bytes.


# %%
def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@pytest.mark.ranks(2)
def test_average(trace):
    model, rank = torch.nn.Linear(3, 2), dist.get_rank()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, rank)
    average(model)
    assert model.weight.grad.unique() == model.bias.grad.unique() == 0.5
    sent_bytes = sum(call.bytes for call in trace.calls)
    assert sent_bytes == 4 * (6 + 2)
    if rank == 0:  # one report is enough
        assert trace.kinds == ["all_reduce"]
    dist.barrier()


printed = pytest_on(average, test_average, options="--tb=short")

# %% [markdown]
# Values and bytes are right; the number of calls isn't. And what does one call too many cost where ranks are far apart? The fixture `replay` runs the recorded calls on a *modelled* network, as chapter 06 does. The model has no noise, so a test may ask for microseconds.


# %%
def average_ones():
    gradients = torch.nn.Linear(3, 2)
    for parameter in gradients.parameters():
        parameter.grad = torch.ones_like(parameter)
    average(gradients)


@pytest.mark.ranks(2)
def test_on_a_cluster(replay):
    average_ones()
    took_us = replay(latency_us=10, gbit_s=80).finish_us
    if dist.get_rank() == 0:
        assert max(took_us) < 25
    dist.barrier()


printed = pytest_on(average, average_ones, test_on_a_cluster, options="--tb=short")
results = launch(average_ones, world_size=2, backend="gloo", trace=True)
plot_timeline(results.trace.replay(Network(latency_us=10, gbit_s=80)))

# %% [markdown]
# Two calls of two steps each, at 10 µs a step: that's nearly all of it, since so few bytes take next to no time. The plugin's page, `course_testing/README.md`, lists all fixtures.
#
# ## 6 · Without running anything
#
# Some mistakes can be seen in the code alone. `ddp-course lint train.py` (its page: `course_lint/README.md`) looks for mistakes such as a call that only some ranks reach, and runs nothing.

# %%
script = """
import torch.distributed as dist
def save(model, rank):
    if rank == 0:
        dist.barrier()
"""
for finding in lint(script):
    print(f"line {finding.line}: {finding.rule}\n{finding.sentence}\n{finding.shown}")

# %% [markdown]
# The museum (`course_museum/`) has twelve real bugs, which you can run and cure as in section 3. Here is what the linter sees in them, sorted by what each bug does to a training:

# %%
rules = {}
for name, real_bug in EXHIBITS.items():
    findings = lint(inspect.getsource(real_bug.bug))
    rules[name] = real_bug.answer, [finding.rule for finding in findings]
pictures.draw_findings(rules)

# %% [markdown]
# The others go wrong in their arithmetic, or because of data, which aren't in the code. A linter costs nothing, so run it first.
#
# ## 7 · Who tests the tests?
#
# A test that passes says little, unless it would fail on wrong code. So make code wrong on purpose, and count how many of these versions your tests catch: **mutation testing** ([Jia and Harman, 2011](https://doi.org/10.1109/TSE.2010.62)).


# %%
def largest(numbers):
    highest = numbers.max()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return highest.item()


def no_all_reduce(numbers):
    highest = numbers.max()
    return highest.item()


def adds_up(numbers):
    highest = numbers.max()
    dist.all_reduce(highest, op=dist.ReduceOp.SUM)
    return highest.item()


def at_least_0(numbers):
    highest = numbers.max().clamp(min=0)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return highest.item()


def for_rank_0(numbers):
    highest = numbers.max()
    dist.reduce(highest, dst=0, op=dist.ReduceOp.MAX)
    return highest.item()


mutants = {"right": largest, "no all_reduce": no_all_reduce, "adds up": adds_up}
mutants |= {"at least 0": at_least_0, "for rank 0": for_rank_0}

# %% [markdown]
# `largest` is right. The other four are wrong: the first returns a rank's own maximum, the second the sum of all maxima, the third never less than zero, and the fourth is right on rank 0 alone. We try three tests on them, on two ranks.


# %%
def test_equal(largest):
    assert largest(torch.ones(3)) == 1


def test_rising(largest):
    assert largest(torch.arange(3.0) + dist.get_rank()) == dist.get_world_size() + 1


def test_falling(largest):
    assert largest(-torch.arange(3.0) - dist.get_rank() - 1) == -1


# %% [markdown]
# **Predict.** How many of the four does `test_rising` catch?

# %%
caught_by_rising = predict("wrong versions that test_rising catches, of four", ...)

# %%
versions = [Version(lambda mutant=mutant: mutant, clue="mutant") for mutant in mutants.values()]
verdicts = {}
for test in (test_equal, test_rising, test_falling):
    accepted = launch(accepted_versions, test, versions, world_size=2, backend="gloo")[0]
    verdicts[test.__name__] = dict(zip(mutants, accepted))
caught = {name: list(row.values()).count(False) for name, row in verdicts.items()}
caught_by_rising.measured(caught["test_rising"])
pictures.draw_verdicts(verdicts)

# %% [markdown]
# In `test_rising`, rank 1 has the largest number itself, so it's right even if only rank 0 is told the result. And "at least 0" passes because no number is negative. In `test_falling`, only rank 0 has the largest number, and it's below zero, so both are caught. In the [lab](../exercises/16_test_before_you_scale.ipynb) you write tests, and versions judge them.
#
# **Check yourself.** A test passes on 1, 2 and 4 ranks. Name three things that may still be wrong.
#
# <details><summary>Answer</summary>
#
# Ranks may have had equal data or equal counts. They may have come at the same time. And the result may be right, but sent in far too many calls.
# </details>
#
# **Next:** [09 · Many machines](09_many_machines.ipynb), where a rank may be in another room.

# %%
predict()
