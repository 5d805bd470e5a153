# %% [markdown]
# # 08 · It hangs, lies or dies
#
# **A training goes wrong at 2 a.m. What do you ask first, and who can answer?**
#
# In 125 minutes, best in two sittings (parts 1 to 5, then 6 to 8), you will be able to
#
# 1. tell a hang from a slow rank, and find the rank that never arrived, its line, and the mistake before it;
# 2. catch results that are wrong without any error;
# 3. read raw logs, find the first failure among its echoes, and say why a rank died without a word;
# 4. find the same failures in a plain `torchrun` training, with logs, stacks, the flight recorder and the debug level, and know what each of them can't tell.
#
# **Hardware:** two cores, Linux for the part on memory; all ranks use gloo on the CPU.
# **Before:** [07 · Data and batches](07_data_batches_numerics.ipynb).
# **Next:** [09 · Many machines](09_many_machines.ipynb).
# **Lab:** [08 · It hangs, lies or dies](../exercises/08_it_hangs_lies_or_dies.ipynb).
#
# Five cells ask you to **predict**, two to **write** a function. Real ranks then show what is right.

# %% jupyter={"source_hidden": true}
import faulthandler
import io
import json
import os
import pickle
import re
import resource
import signal
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median, mode

import torch
import torch.distributed as dist
import torch.distributed.run
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_08
from course_lessons import chapter_08_job_pictures as job_pictures
from course_lessons import chapter_08_pictures as pictures
from course_lessons.chapter_08 import in_a_roll_call
from course_lessons.torchrun_jobs import Jobs
from course_utils import (
    WorkerError,
    WorkerTimeout,
    check,
    explain_dumps,
    launch,
    plot_calls,
    plot_ranks,
    predict,
)

# %% [markdown]
# Every failure has one of three symptoms. It **hangs**: nothing moves, nobody complains. It **lies**: it ends, but the numbers are wrong. It **dies**: a rank raises an error, or its process is
# gone. The symptom decides what to ask first. But it does not tell you the cause, as part 5 will show.

# %% [markdown]
# ## 1 · It hangs
#
# Three ranks take five steps. The "gradient" of step *k* is *k*, so the average over ranks must be *k* too. On rank 1 the batch of step 2 is broken,
# and a careful programmer has written: skip it.


# %%
def is_broken(step):
    return dist.get_rank() == 1 and step == 2


def skip_alone():
    for step in range(5):
        if is_broken(step):
            continue
        gradient = torch.full((4,), float(step))
        dist.all_reduce(gradient)
        print(f"step {step}: average {gradient[0] / dist.get_world_size():.2f}")


# %% [markdown]
# **Predict.** In which step will the other ranks hang?

# %%
hangs_in = predict("ranks 0 and 2 hang in step", ...)

# %% [markdown]
# The next cell is meant to fail.

# %% tags=["raises-exception"]
try:
    launch(skip_alone, world_size=3, backend="gloo", timeout=2)
except WorkerTimeout as error:
    hang = error  # for the picture below
    raise

# %% [markdown]
# Start at the bottom of the report. *Ranks 0 and 2 waited for rank 1, which never arrived*: that's **who**. *In line 10, 5 times, 4 times*: that's **where**, and the counts differ. *Collective #5*: that's **which** call. *Its
# function has returned*: rank 1 is not stuck, but done. The picture puts each rank's calls in order.

# %%
hangs_in.measured(hang.output[0].count("step"))
pictures.draw_calls(hang)

# %% [markdown]
# The job hangs two steps after the mistake, because gloo pairs the ranks' calls by their number and knows nothing of steps. Look at what the ranks printed: `step 2: average 2.33` where 2 is right, and on rank 1 the same number as step 3. The next
# step is wrong, too. **The job lied twice before it hung.**

# %%
pictures.draw_averages(hang)

# %% [markdown]
# The report says where the ranks ran out of partners, and the counts say who called less often. The mistake itself was made somewhere before that.

# %% [markdown]
# The cure: either all ranks skip the step, or none does. A decision that changes what ranks call has to be made by all of them, so it takes a collective.


# %%
def skip_together():
    averages = []
    for step in range(5):
        fine = torch.tensor(float(not is_broken(step)))
        dist.all_reduce(fine, op=dist.ReduceOp.MIN)  # 1 only if it is 1 on every rank
        if not fine:
            continue
        gradient = torch.full((4,), float(step))
        dist.all_reduce(gradient)
        averages.append(gradient[0].item() / dist.get_world_size())
    return averages


# %%
results = launch(skip_together, world_size=3, backend="gloo", trace=True)
print("averages on rank 0:", results[0])
pictures.draw_rounds(results.trace)

# %% [markdown]
# **Check yourself.** Could the flag travel with the gradient, to save a message?
#
# <details><summary>Answer</summary>
# Yes: append it to the gradient as one more number, send zeros when the batch is broken, and divide by the sum of the flags (if that is zero, all skip the step). Then every rank makes one call per step, whatever happens.
# </details>
#
# ## 2 · Who never arrived?
#
# Two more hangs, each with its cure. `evaluate_on_one` tries to save time: only rank 0 looks at the validation set.

# %%
batch = torch.arange(12.0).view(4, 3)


def make_model():
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))


def hang_of(task, *arguments, timeout=2, **options):
    try:
        launch(task, *arguments, backend="gloo", timeout=timeout, **options)
    except WorkerTimeout as error:
        return error


# %%
def evaluate_on_one(cured):
    model = make_model()
    for _ in range(2):
        model.train()
        model(batch).sum().backward()
        if dist.get_rank() == 0:
            model.eval()
            judge = model.module if cured else model
            judge(batch)


error = hang_of(evaluate_on_one, False)
print(*error.parts[1:], sep="\n\n")
plot_calls(error)

# %% [markdown]
# **Both** ranks wait, each in a different call: rank 0 in DDP's forward, rank 1 in its backward. The picture begins with #8, where the ranks part ways. The caption says that #8 *differs in mode*: rank 0 evaluates, while rank 1 trains. The sign ≠ marks two
# calls that came from different lines, or are of different kinds.

# %% [markdown]
# Rank 1 doesn't evaluate. So rank 0's first evaluation, in line 9, meets rank 1's second training step, in line 5. The sizes tell what each call sends:
#
# | call | what it is |
# | --- | --- |
# | #8, #9 | DDP's ranks agree on its [buckets](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp), once, after the first backward. #8 sends 5 numbers: how many buckets there are, and in which order the 4 parameters come. #9 sends the size of the only bucket |
# | #10, #11 | rank 0 sends its buffers, which are the batch norm's, to everyone: 3 means and 3 variances in #10, a count of batches in #11 |
# | #12 | rank 0 begins its next training step and sends its buffers again; rank 1 sends its 18 gradients |
#
# Up to #11, the calls of the two ranks fit each other. In #12 they don't: a broadcast meets an all-reduce, so rank 1 waits there. Rank 0 waits as well: DDP [starts both broadcasts](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/comm.cpp) of its buffers, #12 and #13, before it waits for either. (Rank 1 waits in a backward pass. The picture writes *waits here* for that only where a call is missing, so here it doesn't.)

# %% [markdown]
# `uneven` has three batches on rank 0 and two on rank 1, as in chapters 04 and 07.


# %%
def uneven(cured):
    model = make_model()
    with Join([model]) if cured else nullcontext():
        for _ in range(3 - dist.get_rank()):
            model(batch).sum().backward()


error = hang_of(uneven, False)
print(error.parts[-1])
plot_calls(error)

# %% [markdown]
# Here rank 1 has simply done all its work, and rank 0 waits for both broadcasts of its buffers, #13 and #14. Now the cures: `model.module` is the network without DDP's wrapper, so it sends nothing. `Join` lets rank 1 answer the others until all are done. (Chapter 07 says what `Join` divides by.)

# %%
for task in (evaluate_on_one, uneven):
    launch(task, True, backend="gloo")
    print(f"{task.__name__}, cured, ends")

# %% [markdown]
# **Check yourself.** Suppose that the model had no buffers. Would `evaluate_on_one` still hang?
#
# <details><summary>Answer</summary>
# No, but only by luck. Without buffers, an evaluation makes the ranks talk about one thing only: in the first forward after a backward pass, DDP's ranks agree once on its new buckets (under <code>torch.no_grad()</code>, not even that). Rank 0 waits for this agreement in its first evaluation, and rank 1's second training step answers. If there were only one step, nobody would answer, and the job would hang. And it hangs with any number of steps once somebody adds a batch norm.
# </details>

# %% [markdown]
# ### Call the roll
#
# A collective that waits for an absent rank can't say whom it waits for. But there's the **store**, the notice board where the ranks found each other: a rank that never comes leaves no note there. So
# before each epoch, let every rank sign in and then look for the others.

# %% [markdown]
# **Write** (10 minutes). Every rank calls the function with the same `name`, which is new each time. It returns the ranks that haven't called within `patience_s` seconds in all, as a sorted list.
# `store.set(key, text)` leaves a note. `store.wait([key], timedelta(...))` returns as soon as the note is there, and raises a `RuntimeError` when time is up. `store.get(key)` would wait for the note as well, without your limit.


# %%
def who_is_missing(store, name, patience_s):
    raise NotImplementedError("about 9 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Whose note is it, and of which roll call? Both belong in the key.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Leave your own note first. Then wait for one rank after the other, each time for as long as is left until a deadline that all of them share.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>deadline = time.monotonic() + patience_s</code> comes before the loop; in it, <code>left_s = max(deadline - time.monotonic(), 0.001)</code>, and the wait between <code>try</code> and <code>except RuntimeError</code>.
# </details>

# %% [markdown]
# The check calls the roll twice in real ranks. First one rank is slow but comes. Then some are absent: rank 0 as well, and more than one.

# %%
check(in_a_roll_call(who_is_missing), **chapter_08.ROLL_CALL)

# %% [markdown]
# And this is what *your* function tells four ranks while rank 2 sleeps, and after how long. Every row should name rank 2 and nobody else.

# %%
pictures.draw_roll_call(who_is_missing)

# %% [markdown]
# Our own answer is folded up here, and its picture follows.


# %% jupyter={"source_hidden": true}
def who_is_missing_done(store, name, patience_s):
    store.set(f"{name}/{dist.get_rank()}", "here")
    deadline = time.monotonic() + patience_s
    missing = []
    for rank in range(dist.get_world_size()):
        left_s = max(deadline - time.monotonic(), 0.001)
        try:
            store.wait([f"{name}/{rank}"], timedelta(seconds=left_s))
        except RuntimeError:
            missing.append(rank)
    return missing


check(in_a_roll_call(who_is_missing_done), **chapter_08.ROLL_CALL)

# %%
pictures.draw_roll_call(who_is_missing_done)

# %% [markdown]
# In a training of your own, `torch.distributed.distributed_c10d._get_default_store()` returns the store by which the ranks met. (Torch 2.15 has no public name for it.) Give your notes a corner of their own there: `dist.PrefixStore("roll call", store)`.

# %% [markdown]
# A roll call tells you who is absent, but not why. You choose how long it waits. A collective waits for the group's timeout instead, which is [thirty minutes with gloo](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group).

# %% [markdown]
# **Check yourself.** Why not gather the names with a collective instead?
#
# <details><summary>Answer</summary>
# Because a collective needs everybody. The rank you are looking for is the one that would never make the call.
# </details>

# %% [markdown]
# ## 3 · Slow, or hung?
#
# Before you debug a hang, make sure that it is one. In `slow`, rank 2 needs 0.2 s for its part of each step, and once a whole second. In `hung`, its disk stops answering at step 3, so it sleeps on. To the others both cases look alike: they sit in
# `all_reduce`.


# %%
def train(naps_s):
    for step in range(40):
        if dist.get_rank() == 2:
            time.sleep(naps_s.get(step, 0.2))
        dist.all_reduce(torch.ones(4))


# %%
errors = {}
for name, naps_s in {"slow": {2: 1.0}, "hung": {3: 600.0}}.items():
    errors[name] = hang_of(train, naps_s, world_size=3, timeout=3, trace=True)
    print(f"{name}: {errors[name].parts[-1]}")

# %% [markdown]
# The report's advice for `hung` suits calls that are missing in the code. Here the code is right, and rank 2 never came to its call. The report can't tell these two apart.
#
# The report looks at the silence at the end. In `slow` this silence was shorter than an earlier one that *did* end, so perhaps nothing hangs. In `hung` there was no earlier silence as long. You can do the
# same by eye: with `trace=True`, the error carries the recording. Look for the rank that waits least.

# %% tags=["row-D9"]
pictures.draw_waits(errors)

# %% [markdown]
# It's rank 2, both times. Chapter 03 found the rule: **the straggler is the rank that waits least**. The rule also holds for a rank that has stopped for good. So there is one question for both cases: who is *not* waiting? Then look at
# that rank, not at those who complain.

# %% [markdown]
# **Check yourself.** A job reports 98 % of its time in `all_reduce` on rank 0. Is the network slow?
#
# <details><summary>Answer</summary>
# You can't tell from rank 0 alone. If some rank waits far less than the others, look there. If all wait alike, look at the network.
# </details>

# %% [markdown]
# ## 4 · It lies
#
# Two ranks add up two metrics. Each has a loss of 0.5 and 90 right answers, so the sums must be 1 and 180. Rank 0 has a branch of its own, and somebody has written the two lines of the other branch in a different order.


# %%
def add_metrics():
    loss, right = torch.tensor([0.5]), torch.tensor([90.0])
    if dist.get_rank() == 0:
        dist.all_reduce(loss)
        dist.all_reduce(right)
    else:
        dist.all_reduce(right)
        dist.all_reduce(loss)
    return [loss.item(), right.item()]


# %% [markdown]
# **Predict.** Which two sums does rank 0 really get, the loss first?

# %%
rank_0_gets = predict("loss and right answers on rank 0, added up", ..., count=2)

# %%
results = launch(add_metrics, backend="gloo", trace=True)
print("both ranks:", *results)
rank_0_gets.measured(results[0])

# %% [markdown]
# No hang, no error, and both ranks **agree** on 90.5, so comparing ranks would find nothing. Gloo adds the *n*-th call of one rank to the *n*-th of the other. Gloo cannot see the mistake, but a recording can show it:

# %%
plot_calls(results.trace)

# %% [markdown]
# The same kind, the same shape, but from **different lines**. Different lines alone are no mistake, but here they are its only trace. The cure is a single call, which leaves no order to get wrong.


# %%
def add_metrics_at_once():
    metrics = {"loss": 0.5, "right": 90.0}
    sums = torch.tensor([metrics[name] for name in sorted(metrics)])
    dist.all_reduce(sums)
    return sums.tolist()


print(*launch(add_metrics_at_once, backend="gloo"))

# %% [markdown]
# A second lie needs no disagreement at all. Both ranks sum every other element of eight ones: a view with gaps.


# %%
def sum_view(prepare=lambda view: view):
    memory = torch.ones(8)
    view = prepare(memory[::2])
    dist.all_reduce(view)
    return memory.tolist(), view.tolist()


with_gaps = launch(sum_view, backend="gloo")[0]
without_gaps = launch(sum_view, torch.Tensor.contiguous, backend="gloo")[0]
pictures.draw_view({"with gaps": with_gaps, "without gaps": without_gaps})

# %% [markdown]
# Chapter 03 looked into it: gloo adds up four neighbours in memory, gaps included. `launch` looks at what is handed in, so it can warn you. Gloo doesn't look, so without `launch` nobody would know. What finds such lies anywhere is an **oracle**: one process that computes the same.
# Here both ranks bring the same numbers, so two ranks must get twice what one gets:

# %%
alone = launch(add_metrics, world_size=1, backend="gloo")[0]
memory, view = launch(sum_view, world_size=1, backend="gloo")[0]
two_ranks = {"add_metrics": results[0], "sum_view": with_gaps[1]}
pictures.draw_oracle({"add_metrics": alone, "sum_view": view}, two_ranks)

# %% [markdown]
# Chapters 05 and 07 used such an oracle, too. Keep a tiny case of your training, of two ranks and three steps, that is compared with one process whenever the code changes. It finds what a tiny case can show, but not what only shows with a broken batch, sixty ranks or a GPU.

# %% [markdown]
# **Check yourself.** Would it have helped to compare the gradients of all ranks after each step?
#
# <details><summary>Answer</summary>
# Not in this part: the ranks agree on the same wrong numbers. In part 1 it would have, since rank 1 had 2.33 in step 3 where the others had 3.33. Such a comparison also finds replicas that drift apart, for example because of different seeds.
# </details>

# %% [markdown]
# ## 5 · One mistake, three symptoms
#
# Ranks hand in different shapes: somebody forgot the last, smaller batch. How bad is that? We try three cases of this one mistake, with different sizes or a different collective.


# %%
def sum_shapes(sizes):
    tensor = torch.ones(sizes[dist.get_rank()])
    dist.all_reduce(tensor)
    print("it gets", tensor.tolist())


def send_shapes(sizes):
    tensor = torch.full((sizes[dist.get_rank()],), float(dist.get_rank()))
    dist.broadcast(tensor, src=1)
    return tensor.tolist()


# %% [markdown]
# **Predict.** One rank hands 3 numbers to `all_reduce`, the other one 4. Does it hang, lie or die?

# %%
symptoms = ("hangs", "lies", "dies")
sum_3_4 = predict("all_reduce of 3 and 4 numbers", ..., choices=symptoms)

# %%
symptom, of_3_4 = chapter_08.symptom_of(sum_shapes, (3, 4))
sent = launch(send_shapes, (4, 3), backend="gloo")
print("broadcast:", *sent)
sum_3_4.measured(symptom)

# %% [markdown]
# In the first case rank 1 hangs, while rank 0 got a sum and went on: one call, two symptoms. In the second case, the broadcast, rank 1's three ones arrive in rank 0's four places, and the last keeps what it had. The third case is meant to fail:

# %% tags=["raises-exception"]
try:
    launch(sum_shapes, (4, 6), backend="gloo", timeout=5)
except WorkerError as error:
    death = error  # for the picture below
    raise

# %% [markdown]
# First come gloo's own last words, from rank 0: it expected fewer bytes than arrived. Then the report. *Died of SIGABRT*: compiled code gave up. That is no exception, so no `try` in the rank can
# catch it. The report goes on to say, rank by rank, what differs: 4 and 6 numbers. Here are all three cases:

# %%
pictures.draw_symptoms(of_3_4, sent, death)

# %% [markdown]
# So the symptom does not tell the cause. Gloo does not compare shapes. It looks at the bytes of each message: if there are more than the place has room for, it aborts; if there are fewer, it takes them and is content, as the broadcast shows.

# %% [markdown]
# Gloo's `all_reduce` cuts its tensor into pieces for several messages ([in its source](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc)), so the sizes decide what happens. With 3 and 4 numbers, rank 1 waited for a message that never came.
# Where shapes may differ, agree on them first: pad each tensor to the largest size, which one `all_reduce` with `MAX` finds.


# %%
def sum_padded(sizes):
    tensor = torch.full((sizes[dist.get_rank()],), 10.0 ** dist.get_rank())
    longest = torch.tensor(len(tensor))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = nn.functional.pad(tensor, (0, longest - len(tensor)))
    dist.all_reduce(padded)
    return padded.tolist()


for sizes in ((3, 4), (4, 6)):
    before = [torch.full((sizes[rank],), 10.0**rank) for rank in range(2)]
    plot_ranks(before, launch(sum_padded, sizes, backend="gloo"))

# %% [markdown]
# **Check yourself.** With NCCL on GPUs, do you expect the same three symptoms?
#
# <details><summary>Answer</summary>
# Don't count on it. Here the sizes decided what happens, by the way in which gloo cuts tensors and counts bytes. A different backend has its own way. So look for the first call that differs, and don't trust the symptom.
# </details>

# %% [markdown]
# *This is the end of the first sitting.*

# %% [markdown]
# ## 6 · It dies
#
# ### The logs, before any report
#
# Four ranks ran under `torchrun`, and the job is dead. All you have is what each rank wrote to its `stderr.log`, and its exit code. Here are the last three lines of each, of
# a real job that was recorded. Rank 0 wrote none.

# %%
logs, exit_codes = chapter_08.raw_logs("a label")
for rank in range(4):
    print(f"rank {rank}, exit code {exit_codes[rank]}")
    for line in logs[rank].splitlines()[-3:]:
        print("   ", textwrap.shorten(line, 90, placeholder=" ..."))

# %% [markdown]
# An exit code below zero is the number of a signal. `-15` is SIGTERM, with which `torchrun` ends all the other ranks as soon as it has seen one fail. In this job it called **rank 3** the root cause.
#
# **Predict.** Which rank do you look at first?

# %%
first = predict("the rank to look at first", ..., choices=(0, 1, 2, 3))

# %%
first.measured(chapter_08.CULPRIT)

# %% [markdown]
# Rank 2. *Connection closed by peer* is an **echo**: it only says that somebody else is gone, as *Timed out waiting* only says that nobody came. Leave out the echoes, and read what is left: an `IndexError`. Rank 2's exit code says nothing, because `torchrun` ended this process before it could exit by itself.

# %% [markdown]
# But sometimes nothing is left. Here are two more jobs of the same script. In one of them rank 2 was killed, as if memory had run out; in the other its disk didn't answer any more.

# %%
pictures.draw_logs(("a kill", "a sleep"))

# %% [markdown]
# **Write** (10 minutes). Given the logs and exit codes of all ranks, return the list of ranks to look at first; it's empty if nobody failed. The check draws the culprit anew for each of six recorded jobs.


# %%
def suspects(logs, exit_codes):
    raise NotImplementedError("about 12 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Ask three questions, one after the other, and stop at the first that has an answer. Who has an error that is no echo?
# </details>
# <details><summary>Hint 2: the approach</summary>
# If there is no such error: who was ended by a signal that did not come from <code>torchrun</code>? And if nobody was: who is silent while others complain? A rank complains if its last words are an error, be it an echo or not.
# </details>
# <details><summary>Hint 3: the code</summary>
# A rank's last words are <code>log.rpartition("\n")[2]</code>. An echo has <code>by peer</code> or <code>Timed out</code> in them. A foreign signal is <code>code &lt; 0 and code != -15</code>.
# </details>

# %%
check(suspects, **chapter_08.SUSPECTS)

# %% [markdown]
# The picture has the six jobs, with each rank's last words and exit code. Rank 2 was always the culprit, and orange is whom *your* function suspects.

# %%
pictures.draw_suspects(suspects)

# %% [markdown]
# And our answer, folded up:


# %% jupyter={"source_hidden": true}
def suspects_done(logs, exit_codes):
    failed, complaining = [], []
    for rank, log in enumerate(logs):
        last_words = log.rpartition("\n")[2]
        if "Error" in last_words:
            complaining.append(rank)
            if "by peer" not in last_words and "Timed out" not in last_words:
                failed.append(rank)
    killed = [rank for rank, code in enumerate(exit_codes) if code < 0 and code != -15]
    silent = [rank for rank in range(len(logs)) if rank not in complaining]
    if not complaining:
        return killed
    return failed or killed or silent


check(suspects_done, **chapter_08.SUSPECTS)

# %%
pictures.draw_suspects(suspects_done)

# %% [markdown]
# If nothing remains but echoes, look for the rank whose log just stops. That rank may have been killed, or it may sleep. So ask for its exit code, its stack and the system's log. Suspect the network last.

# %% [markdown]
# ### Why the clock misleads
#
# Could we simply have taken the first error? Rank 1 below cleans up after itself. First it closes its connections, by leaving the group. Then it closes its files. Only then does its error come out.


# %%
def train_and_clean_up():
    rank = dist.get_rank()
    try:
        dist.barrier()  # a step that goes well
        if rank == 1:
            raise ValueError("label 11 of 10")
        dist.barrier()
    finally:
        dist.destroy_process_group()
        time.sleep(0.3 * rank)  # closes its files


# %%
def death_of(task, *arguments):
    try:
        launch(task, *arguments, backend="gloo", trace=True)
    except WorkerError as error:
        return error


pictures.draw_deaths(death_of(train_and_clean_up))

# %% [markdown]
# The echo came first. Whoever trusts the clock blames a bystander, and in a large job each rank may add its echo. That's why `launch` puts echoes last.
#
# ### Out of memory
#
# Rank 1 gets a smaller machine: `setrlimit` grants it 512 MiB more than it has. A layer's output (zeros, here) takes 256 KiB for each sample of the batch.


# %%
def limit_memory(spare_bytes):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = pages * resource.getpagesize() + spare_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def forward(batch_size):
    if dist.get_rank() == 1:
        limit_memory(512 * 2**20)
    output = torch.zeros(batch_size, 2**16)
    dist.all_reduce(output[0])


# %%
death = death_of(forward, 4096)
print(death, "\n\nwith a batch of 1024:", death_of(forward, 1024) or "done")
pictures.draw_memory({4096: 4096 * 2**18, 1024: 1024 * 2**18}, death, 512 * 2**20)

# %% [markdown]
# A refused allocation is an ordinary exception, with line and number of bytes: 1 GiB. A smaller batch mends it, as the run with 1024 proves. With chapter 04's gradient accumulation, the gradient stays that of the large batch.

# %% [markdown]
# There is a second way to run out: no limit is set, the whole machine is full, and [the system ends a process of its choice](https://docs.kernel.org/admin-guide/mm/concepts.html#oom-killer) with `SIGKILL`. We do not fill your machine, but only send the signal.


# %%
def killed_by_the_system():
    dist.barrier()  # both are there
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # we imitate what the system does
    dist.barrier()


print(death_of(killed_by_the_system))

# %% [markdown]
# A rank that the system kills says **nothing**: no line, no
# last words. What is left is what it had said *before*, so let long trainings report their steps, and ask the system: on Linux, its log (`dmesg`) names the process that it killed.

# %% [markdown]
# Shells and containers call the same death **137**, which is 128 + 9. A container or a job with a limit of its own can run out of memory while the machine has plenty: Kubernetes then says [`OOMKilled`](https://kubernetes.io/docs/tasks/configure-pod-container/assign-memory-resource/), and Slurm's [`sacct`](https://slurm.schedmd.com/sacct.html) `OUT_OF_MEMORY`.

# %% [markdown]
# **Check yourself.** A job dies at random steps, each time on a different rank, always with `SIGKILL`. Name two suspects and how to tell them apart.
#
# <details><summary>Answer</summary>
# One is memory that grows: let each rank report its memory in each step. The other is something that stops jobs, such as a scheduler with a time or memory limit: its log says so.
# </details>

# %% [markdown]
# ## 7 · Your cluster has no `launch`
#
# On a cluster there is `torchrun`, a folder of logs, and you. The training of this part knows nothing of this course. We start it six times, each time with a different failure, and ask each of PyTorch's tools about all six. These are the functions that go wrong. Rank 1 is always the culprit.


# %%
def load(rank, step, fault):
    if rank == 1 and fault == "straggler":
        time.sleep(0.6)
    if rank == 1 and step == 3:
        if fault == "absent rank":
            for _ in range(6000):  # in short naps, since Python hears a signal between them
                time.sleep(0.1)  # its disk does not answer
        if fault == "killed rank":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "out of memory":
            torch.empty(2**50)
    return torch.tensor([1.0 + rank])


# %%
def sum_metrics(swapped):
    loss, right = torch.tensor([0.5]), torch.tensor([90.0])
    if swapped:
        dist.all_reduce(right)
    dist.all_reduce(loss)
    if not swapped:
        dist.all_reduce(right)
    print(f"loss {loss.item()}, right {right.item()}")


# %%
def train(rank, fault):
    weight = torch.load(f"checkpoint{rank}.pt")
    for step in range(6):
        gradient = weight - load(rank, step, fault)
        if "MEET_S" in os.environ:
            dist.monitored_barrier(timeout=timedelta(seconds=int(os.environ["MEET_S"])))
        dist.all_reduce(gradient)
        weight -= 0.1 * gradient
        print(f"step {step}: weight {weight.item():.3f}", flush=True)
    sum_metrics(rank == 1 and fault == "swapped calls")


# %% [markdown]
# The sixth failure is not in the code: half of rank 1's checkpoint file is missing.

# %% [markdown]
# `main` prepares for the night. It prints which process is which rank. Whenever it gets the signal `SIGUSR1`, it writes down where it stands. And however training ends, the `finally` saves what the flight
# recorder has, torch's own record of the last calls. `leave` turns the signal with which `torchrun` ends a rank into an exception, so that the `finally` runs then as well.


# %%
def leave(*_):
    raise InterruptedError("told to end")


# %%
def main(fault):
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    rank = dist.get_rank()
    faulthandler.register(signal.SIGUSR1, open(f"stacks/rank{rank}", "w"))
    signal.signal(signal.SIGTERM, leave)
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    try:
        train(rank, fault)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"calls{rank}").write_bytes(_dump_fr_trace())
    dist.destroy_process_group()


# %% [markdown]
# Do not take this `finally` home as it is. Python runs a signal's handler [only between two of its own instructions](https://docs.python.org/3/library/signal.html#execution-of-python-signal-handlers), so a rank that waits inside a collective hears SIGTERM only when the call returns:


# %%
def hears_late():
    group = dist.new_group(timeout=timedelta(seconds=3))
    if dist.get_rank() == 1:
        return time.sleep(4)
    heard_s, begun_s = [], time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: heard_s.append(time.monotonic() - begun_s))
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    with suppress(RuntimeError):
        dist.all_reduce(torch.ones(1), group=group)
    return heard_s[0]


heard_s = launch(hears_late, backend="gloo")[0]
pictures.draw_signal(1, heard_s, timeout_s=3)

# %% [markdown]
# The signal was heard when the group's timeout ended the call. `train.py` has a timeout of 6 s, so its waiting ranks save the recorder's content, the **dump**, in time. With gloo's default of 30 minutes they would not: 30 s after SIGTERM `torchrun` sends SIGKILL, after which no `finally` runs. (Its `--shutdown-timeout` changes these 30 s only for a `torchrun` that is itself told to end, and not after a rank has failed.)

# %% [markdown]
# The functions go into a file `train.py`, which ends by calling `record(main)(sys.argv[1])`. `record` is `torch.distributed.elastic.multiprocessing.errors.record`: it writes an exception of `main` into a file that `torchrun` reads.
# `jobs.start` does in a folder of its own what you would type:
#
# ```text
# torchrun --standalone --nproc-per-node=2 --log-dir=logs --redirects=3 --monitor-interval=0.2 train.py "absent rank"
# ```

# %% [markdown]
# The job with the absent rank is started by exactly this line. In the other jobs the same `torchrun` runs in a fork of this kernel, and each rank is a fork of that instead of a new Python. Everything else is `torchrun`'s own. This saves us
# three imports of torch per job.

# %% [markdown]
# `--redirects=3` sends both streams of every rank to files; with `--tee=3` you would see them as well.

# %% [markdown]
# While a job runs, `jobs.look` looks three times where its two processes are. It takes [`py-spy dump --pid`](https://github.com/benfred/py-spy), which needs no preparation. Where py-spy is not installed or may not look, `jobs.look` takes the signal. (Linux lets py-spy look at other processes of yours only if [`kernel.yama.ptrace_scope`](https://docs.kernel.org/admin-guide/LSM/Yama.html) is 0 or you are root, and in a container it needs the capability `SYS_PTRACE`.)

# %% [markdown]
# First we start each failure once. (As in chapter 04, `torchrun`'s store listens on all addresses of the machine while a job runs.)

# %%
FAULTS = ("swapped calls", "absent rank", "straggler", "killed rank", "out of memory")
FAULTS += ("spoiled checkpoint",)
jobs = Jobs((load, sum_metrics, train, leave, main))
first = {fault: jobs.start(fault, typed=fault == "absent rank") for fault in FAULTS}
with ThreadPoolExecutor(6) as pool:
    list(pool.map(jobs.look, first, first.values()))
jobs.finish(first.values())

# %% [markdown]
# ### What is written anyway
#
# Now you are called. Each rank has a `stderr.log`. Part 6 said how to read it: leave out echoes, and see what is left.
#
# **Predict.** When a rank fails, `torchrun` names a root cause at its end. In how many of the six failures can you be sure that it names rank 1? Two of the six jobs don't fail at all, the swapped calls and the straggler. They count among the six, and for them it names nobody. If it depends on luck
# whom it names, you can't be sure.

# %%
by_root_cause = predict("of six failures, torchrun's root cause is sure to be right in", ...)

# %%
ECHO = re.compile("by peer|Timed out|Connection|told to end")


def from_logs(fault):
    lines = "\n".join(jobs.logs(fault, "stderr.log")).splitlines()
    errors = [line for line in lines if re.match(r"\[rank\d\]: \w*Error", line)]
    without_echoes = [line for line in errors if not ECHO.search(line)]
    if without_echoes:
        return without_echoes[0]
    return "only echoes" if errors else ""


# %% jupyter={"source_hidden": true}
answers = {}


def ask(tool, read):
    """Keeps and prints what a tool says of each failure."""
    answers[tool] = {fault: read(fault) for fault in FAULTS}
    for fault, words in answers[tool].items():
        print(f"{fault:20}{textwrap.shorten(words, 78, placeholder=' ...') or '-'}")


# %%
ask("logs", from_logs)

# %% [markdown]
# `record` has written the same into `error.json`, with the stack and the time, which helps where a log is long. `torchrun` reads these files. At its end it prints a table of exit codes, whose last entry is called *Root Cause (first observed failure)*.


# %%
def from_error_files(fault):
    texts = [
        json.loads(text)["message"]["message"] if text else ""
        for text in jobs.logs(fault, "error.json")
    ]
    without_echoes = [
        f"rank {rank}: {text}" for rank, text in enumerate(texts) if text and not ECHO.search(text)
    ]
    if without_echoes:
        return without_echoes[0]
    return "only echoes" if any(texts) else ""


ask("error files", from_error_files)


# %%
def from_torchrun(fault):
    table = (jobs.folder_of(fault) / "torchrun.txt").read_text()
    codes = re.findall(r"rank +: (\d).*?exitcode +: (-?\d+)", table, re.S)
    killed = [rank for rank, code in codes if code == "-9"]
    if killed:
        return f"rank {killed[0]} died of SIGKILL"
    return "failed" if codes else ""


ask("exit codes", from_torchrun)

# %% [markdown]
# The table always accuses one rank. But in some jobs it may be the other one next time, as you will see in the picture. For these jobs the next cell prints a sentence of ours, *rank 0 or rank 1, whichever way the second falls*, and not what `torchrun` said this time.


# %%
def from_root_cause(fault):
    table = (jobs.folder_of(fault) / "torchrun.txt").read_text()
    accused = re.findall(r"Root Cause.*?rank +: (\d)", table, re.S)
    if not accused:
        return ""
    error_of_rank_0 = jobs.logs(fault, "error.json")[0]
    if re.search("by peer|told to end", error_of_rank_0):  # an echo, at most a moment later
        return "rank 0 or rank 1, whichever way the second falls"
    return f"rank {accused[0]}"


ask("root cause", from_root_cause)

# %% [markdown]
# A killed rank writes nothing, and only its exit code is left: -9. In the job with the absent rank, `torchrun` accuses **rank 0**, whose timeout ran out. *First observed* means just that: the failure with the earliest time.

# %%
job_pictures.draw_root_causes(jobs, FAULTS)

# %% [markdown]
# These times are whole seconds. In the three other failures, rank 0's echo follows rank 1's error at once. If both fall into the same second, either may be accused, so we count that as *luck*. Read the other ranks' files before you believe a root cause.

# %% [markdown]
# If a whole host dies, its `torchrun` is dead too, and not even an exit code is left; [chapter 09](09_many_machines.ipynb) lets one die.

# %% [markdown]
# ### Where is everybody?
#
# A job that stands still can be asked. These are the lines that `jobs.look` saw most often:


# %%
def from_stacks(fault):
    if len(jobs.seen[fault]) < 2:  # it was over too soon
        return ""
    rank_0, rank_1 = mode(jobs.seen[fault])
    return f"rank 0: {rank_0}; rank 1: {rank_1}"


ask("stacks", from_stacks)
job_pictures.draw_looks(jobs, ("absent rank", "straggler"))

# %% [markdown]
# The question is part 3's: who is *not* waiting? One look cannot tell slow from hung, since rank 1 sleeps in both. The log can: the straggler's still grows.

# %% [markdown]
# ### The flight recorder
#
# Each rank keeps its last calls in memory, with the lines that made them. `_dump_fr_trace` returns these calls as a pickle. (`_dump_fr_trace_json` leaves out the lines.) We compare the ranks call by call:


# %%
def calls(fault, rank):
    file = jobs.folder_of(fault) / f"calls{rank}"
    entries = pickle.loads(file.read_bytes())["entries"] if file.exists() else None
    return entries and [(line_of(fault, call), call["time_created_ns"] / 1e9) for call in entries]


def line_of(fault, call):
    frame = next(frame for frame in call["frames"] if frame["filename"].endswith("train.py"))
    return jobs.code(fault, frame["line"])


# %%
def from_recorder(fault):
    calls_0, calls_1 = calls(fault, 0), calls(fault, 1)
    if calls_1 is None:
        return "rank 1 left nothing"
    for number, ((line_0, _), (line_1, _)) in enumerate(zip(calls_0, calls_1), 1):
        if line_0 != line_1:
            return f"#{number} is {line_0} on rank 0, {line_1} on rank 1"
    if len(calls_0) > len(calls_1):
        return f"#{len(calls_0)} is missing on rank 1"
    late_s = median(time_1 - time_0 for (_, time_0), (_, time_1) in zip(calls_0, calls_1))
    return "rank 1 is late for most calls" if late_s > 0.1 else ""


ask("flight recorder", from_recorder)

# %%
job_pictures.draw_recorders(jobs, FAULTS)

# %% [markdown]
# The recorder shows something about all six failures. Even the swapped calls show, by their lines. The command `torchfrtrace` does such a comparison for you, but it does not look at lines, and wants a file of every rank. (With `--allow-incomplete-ranks` it goes on without one, but then says of each such call that it cannot decide.) In torch 2.15 it also stops with a `KeyError` at what gloo
# recorded, because the group has two names there; the folded cell gives it one.

# %% jupyter={"source_hidden": true}
with redirect_stderr(io.StringIO()) as heard:  # it goes on speaking to this stream
    from torch.distributed.flight_recorder import fr_trace


def from_torchfrtrace(fault):
    """What `torchfrtrace FOLDER --prefix=calls` says, run here to save six imports of torch."""
    folder = jobs.folder_of(fault, "renamed")
    folder.mkdir(exist_ok=True)
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    for file in jobs.folder_of(fault).glob("calls?"):
        dump = pickle.loads(file.read_bytes()) | {"pg_config": {"0": group}}
        (folder / file.name).write_bytes(pickle.dumps(dump))
    heard.seek(heard.truncate(0))
    try:
        fr_trace.main([str(folder), "--prefix=calls"])
    except AssertionError as error:
        return str(error)
    differences = re.findall(r"sequence number: \d+|missing ranks: .*", heard.getvalue())
    return ", ".join(differences)


# %%
ask("torchfrtrace", from_torchfrtrace)

# %% [markdown]
# This course has a reader of dumps, too: `ddp-course hang FOLDER` in a terminal, `explain_dumps` in a notebook. It needs no `launch`. It reads what any training has left, under gloo or NCCL, in however many groups, with or without a file of
# every rank.


# %%
def from_explain_dumps(fault):
    if not list(jobs.folder_of(fault).glob("calls?")):
        return ""
    guilty = explain_dumps(jobs.folder_of(fault)).guilty
    return ", ".join(f"rank {rank}" for rank in guilty)


ask("explain_dumps", from_explain_dumps)

# %% [markdown]
# This reader names nobody for the swapped calls, since it doesn't look at lines, and nobody for the straggler, which hangs nothing. What it prints says why it accuses a rank, who the victims are, how sure it is, and which files of that folder are no dumps:

# %%
explain_dumps(jobs.folder_of("killed rank"))

# %% [markdown]
# ### Run it again, to be told
#
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes the ranks compare what they are about to do. Before each of your calls it makes three of its own ([in torch's source](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp)): a monitored barrier, and two all-gathers, of the length of a description and of the description itself (kind, shapes, types). So use it to search, not to train:


# %%
def time_a_call(level):
    dist.set_debug_level(level)  # a group asks for it when it is made
    group, times_s = dist.new_group(), []
    for _ in range(200):
        begun_s = time.perf_counter()
        dist.all_reduce(torch.ones(4), group=group)
        times_s.append(time.perf_counter() - begun_s)
    return times_s


off_s = launch(time_a_call, dist.DebugLevel.OFF, backend="gloo")[0]
detail_s = launch(time_a_call, dist.DebugLevel.DETAIL, backend="gloo")[0]
job_pictures.draw_costs({"OFF": off_s, "DETAIL": detail_s})

# %% [markdown]
# `monitored_barrier` is the part of `DETAIL` that finds
# absent ranks. You can put it into your own code, just before a call that hangs. It needs gloo: next to an NCCL group, make a second one for it, `dist.new_group(backend="gloo")`.

# %%
at_barrier = ("absent rank", "meet")
again = [jobs.start(*at_barrier, MEET_S="2")]
again += [jobs.start(fault, "DETAIL", TORCH_DISTRIBUTED_DEBUG="DETAIL") for fault in FAULTS]
jobs.finish(again)


# %%
def from_detail(fault, variant="DETAIL"):
    text = "\n".join(jobs.logs(fault, "stderr.log", variant))
    return "".join(re.findall(r"Error: (\[Rank 0\]: Ranks? .*)", text)[:1])


ask("DETAIL", from_detail)
print("\nmonitored_barrier: ", from_detail(*at_barrier))

# %% [markdown]
# `DETAIL` knows who did not come, but not why. It doesn't see the swapped calls, whose kind and shape are the same. Nor does it notice the straggler: a rank that arrives late has still arrived.

# %% [markdown]
# ### Who says what
#
# A tool *names it* if its own words have the culprit's number. It *shows it* if we find the culprit by comparing what it has of both ranks. It *notices* if it says that something
# failed, but not who. `torchrun`'s root cause may also name the *wrong rank*, or be right only by *luck*.

# %% [markdown]
# Mind that this judge knows the answer, and there are only two ranks: with eight, compare each rank with what most of them did.


# %%
def verdict(tool, words):
    if tool == "root cause" and "rank 0" in words:
        return "luck" if "rank 1" in words else "wrong rank"
    if not re.search(r"[Rr]anks?\W*1", words):
        return "notices" if words else "silent"
    return "shows it" if tool in ("stacks", "flight recorder") else "names it"


# %%
verdicts = {}
for tool, words in answers.items():
    verdicts[tool] = [verdict(tool, words[fault]) for fault in FAULTS]
counts = job_pictures.draw_verdicts(verdicts, FAULTS)
by_root_cause.measured(counts["root cause"])

# %% [markdown]
# Naming the culprit is not yet knowing the cause. The recorder and `DETAIL` say *who*; why memory ran out or a file doesn't open is in that rank's log, and where its disk hangs is in its stack. So once you know *who*, read that rank's own words.

# %% [markdown]
# A view with gaps, part 4's second lie, would show in none of these tools: every call is made, by the same line, in the same shape.

# %% [markdown]
# ### The same with NCCL: the watchdog
#
# On GPUs the host only queues an `all_reduce`. So a stack shows the line where the host waits for the GPU, which may be an innocent `.item()` ([chapter 14](14_on_a_gpu_who_waits.ipynb)). A **watchdog** thread in each rank keeps the time, and gives up, by default [after ten minutes](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group). These lines are from a real log ([LlamaFactory#2902](https://github.com/hiyouga/LlamaFactory/issues/2902), shortened).

# %%
for line in chapter_08.WATCHDOG.splitlines():
    print(textwrap.fill(line, 96, subsequent_indent="    "))

# %% [markdown]
# Read it word by word. `SeqNum` counts the calls of one process group, here number 1. `OpType` and `NumelIn` say what was called, and of how many numbers. *Enqueued* is how far the host has come, *completed* how far
# the GPU has. (This torch is older, and yours may say less.) In the picture:

# %%
job_pictures.draw_watchdog(chapter_08.WATCHDOG)

# %% [markdown]
# Rank 0 is stuck in a call of 25,427,968 numbers, most likely a bucket of gradients. Rank 1 is stuck in one of a single number. Both are in group 1, `PG 1`, so the two ranks can't have made the same calls: rank 1 is past call 1516, which rank 0 has not completed. What rank 1's call 1516 was
# isn't in these lines. Part 5 has shown how a call can end on one rank alone.

# %% [markdown]
# So the next thing to look at is the flight recorder. On a timeout the watchdog writes it to a file by itself. `TORCH_FR_DUMP_TEMP_FILE` says where. `TORCH_FR_BUFFER_SIZE` says how many calls it keeps, by default 2,000 in torch 2.15. ([PyTorch's page](https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html) explains both under older names, `TORCH_NCCL_DEBUG_INFO_TEMP_FILE` and `TORCH_NCCL_TRACE_BUFFER_SIZE`.) The next cell prints what an entry has. Ours was recorded with gloo.

# %%
dump = pickle.loads((jobs.folder_of("absent rank") / "calls0").read_bytes())
print(textwrap.fill(", ".join(sorted(dump["entries"][0])), 96))

# %% [markdown]
# Kind, sizes, state, times, and the frames of the call: enough to find the first call that differs. What a dump does *not* have: the numbers in the tensors, what a rank does between calls, and whatever is older than the buffer. And a rank that was killed leaves none at all.

# %% [markdown]
# ### Rings, channels and cables
#
# If nothing starts, or if all ranks are equally slow, ask NCCL itself: `NCCL_DEBUG=INFO`. These lines are from [nccl#1358](https://github.com/NVIDIA/nccl/issues/1358), of two GPUs; the number in brackets is the GPU.
#
# | line | what it says |
# | --- | --- |
# | `[0] NCCL INFO Channel 00/02 :    0   1` | channel 0 of 2: a copy of the ring, run by GPU thread blocks of its own; its order is 0, 1 |
# | `[0] NCCL INFO Ring 00 : 1 -> 0 -> 1` | in that channel rank 0 receives from 1 and sends to 1 |
# | `[0] NCCL INFO Trees [0] 1/-1/-1->0->-1` | in the tree rank 0 has one child, 1, and no parent: it is the root |
# | `[1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/direct pointer` | by which road: here straight into the other GPU's memory |

# %% [markdown]
# The table's last line matters most. Between hosts it may read `via NET/Socket/0`, as in [nccl#226](https://github.com/NVIDIA/nccl/issues/226): that's plain TCP. On hosts with InfiniBand, `NET/IB : No device found.` ([nccl#952](https://github.com/NVIDIA/nccl/issues/952)) says why.

# %% [markdown]
# ### RAS, Xid and ECC
#
# **RAS** is a service thread in each process since NCCL 2.24 ([its page](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html)). The program `ncclras`, or any TCP client on port 28028 of localhost, asks it how all processes are. It knows who doesn't answer.

# %% [markdown]
# But in [nccl#1730](https://github.com/NVIDIA/nccl/issues/1730) it said `RUNNING OK`
# of 256 ranks, while rank 118's watchdog gave up: the GPU was 120 calls behind its host. A process that answers may still wait for ever.

# %% [markdown]
# **ECC** is the error correction of a GPU's memory; `nvidia-smi -q -d ECC` shows its counts.

# %% [markdown]
# **Xid** is how NVIDIA's driver numbers what went wrong, in the kernel's log (`dmesg`, often only for root). Look there when a rank dies without a word, or when all others wait for one host.
#
# | Xid | what happened |
# | --- | --- |
# | 48 | two bits of one word are wrong: ECC can see that and not repair it ([NVIDIA](https://docs.nvidia.com/deploy/dynamic-page-retirement/visibility.html)) |
# | 63, 64 | 63: bad memory is marked, and will be replaced once the GPU is reset; 64: even marking it failed |
# | 79 | the GPU has fallen off the bus: no program reaches it any more |

# %% [markdown]
# [NVIDIA's catalog](https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) has them all, and what to do. None of this can be shown here, since no GPU of ours has failed.

# %% [markdown]
# **Check yourself.** These are lines of one real log, shortened (from [pytorch#118369](https://github.com/pytorch/pytorch/issues/118369)). `SeqNum` is the number of a call. Has rank 7 made 32,000 calls fewer than rank 0?
#
# ```text
# ... 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6, reduced_train_loss=2.590, consumed_samples=2.56e+7]
# [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96120, OpType=ALLREDUCE ...
# [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=96117, OpType=ALLREDUCE ...
# [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64088, OpType=ALLREDUCE ...
# ```
#
# <details><summary>Answer</summary>
# Not in one group. There an <code>all_reduce</code> ends only when every rank has made it, so two ranks can be apart by the few calls that are under way. Several numbers of "rank 0" in one burst suggest several groups, as a large training has: each counts its own calls, and a rank's number is that in the
# group. So compare numbers within one group only. Later logs print its name (<code>PG ID</code>), and the last call that was enqueued and the last that was completed.
# </details>

# %% [markdown]
# **`torch.distributed.debug.start_debug_server()`** shows stacks and recorders of all ranks on one web page. In torch 2.15 it wants the package `tabulate`, which is not installed with torch. It listens on all addresses without a password, so we do not
# start it here: use it only in a network that you trust.

# %% [markdown]
# **Check yourself.** Why not simply set a group's timeout to one minute, instead of 30?
#
# <details><summary>Answer</summary>
# The timeout counts every wait, even an honest one, where a rank saves a checkpoint, or loads data, or compiles, while the others wait for it. One minute would then kill a training that was only slow.
# </details>

# %% [markdown]
# ## 8 · The method
#
# | symptom | first question | with `launch` | with `torchrun` | seen in |
# | --- | --- | --- | --- | --- |
# | hangs | Was an earlier silence as long? | *perhaps nothing hangs*; the recording | stacks, looked at twice | 3, 7 |
# | hangs | Who is not waiting, and where is it instead? | the report | stacks; `DETAIL`, `monitored_barrier` | 1, 2, 7 |
# | hangs | Which is the first call that differs or lacks a partner? | `plot_calls` | the flight recorder | 1, 7 |
# | is slow | Who waits least? | the recording | stacks; the recorder's times | 3, 7 |
# | lies | What does one process compute? | a tiny oracle, kept as a test | the same | 4 |
# | lies | Do the ranks call from the same lines? | `plot_calls` of a recording | the flight recorder's frames | 4, 7 |
# | dies, with an error | Which error is no echo? | the report | `error.json` of all ranks | 6, 7 |
# | dies of SIGABRT | With gloo: which call differs in shape? With NCCL it may be the watchdog after a timeout: read that as a hang | the report | the last words in `stderr.log` | 5 |
# | dies of SIGKILL | What had it said before? | its output | exit code -9; its log; the system's | 6, 7 |

# %% [markdown]
# Three habits prevent most failures: every decision that changes what a rank calls is taken by all ranks together; what belongs together travels in one call; and the smallest case that can go wrong is kept
# and compared with one process.

# %%
jobs.cleanup()
predict()

# %% [markdown]
# ## The pager, part 1
#
# One morning you find this of a job that hung at night: four ranks on two nodes, and the last line of each. Two of them were called *root cause* by their node's `torchrun`. Note your first suspicion. The capstone,
# [chapter 11](11_capstone.ipynb), has the whole folder, and the answer.

# %%
for log in sorted(Path("incident/monday").glob("node-?/?/stderr.log")):
    last = log.read_text().splitlines()[-1]
    print(log.parent.relative_to("incident"), re.sub(r"\[/\S+ |\[node.*", "", last), sep=": ")
suspicion = "?"  # the rank to look at first

# %% [markdown]
# ## What you know now
#
# A symptom is where a mistake surfaces, not where it was made: one job had lied twice before it hung, and one mistake in a shape hung, lied or died, depending on the sizes and the call. Ask who is *not* waiting, which call is the first to differ, and which error is no echo.

# %% [markdown]
# Practise in [lab 08](../exercises/08_it_hangs_lies_or_dies.ipynb).
#
# **Next:** [09 · Many machines](09_many_machines.ipynb), where a rank may be in another room. Or first [16 · Test before you scale](16_test_before_you_scale.ipynb): how do you find such mistakes beforehand?
