# %% [markdown]
# # 08 · It hangs, lies or dies
#
# **A training goes wrong at 2 a.m. What do you ask first, and who can answer?**
#
# In 90 minutes you will be able to
#
# 1. tell a hang from a slow rank, and find the rank that never arrived, its line, and the mistake before it;
# 2. catch results that are wrong without any error;
# 3. find the first failure among its echoes, and say why a rank died without a word;
# 4. find the same failures in a plain `torchrun` training, with logs, stacks, the flight recorder and the debug level, knowing to what each is deaf.
#
# **Hardware:** two cores, Linux for the part on memory; all ranks use gloo on the CPU.
# **Before:** [07 · Data and batches](07_data_batches_numerics.ipynb).
# **Next:** [09 · Many machines](09_many_machines.ipynb).
# **Lab:** [08 · It hangs, lies or dies](../exercises/08_it_hangs_lies_or_dies.ipynb).
#
# Seven cells ask you to **predict**: put your answers in place of the three dots, and a later cell shows them beside what real ranks did.

# %% jupyter={"source_hidden": true}
import faulthandler
import inspect
import io
import json
import multiprocessing
import os
import pickle
import re
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, redirect_stderr, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median, mode

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.distributed.run
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.algorithms.join import Join
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from torch.nn.parallel import DistributedDataParallel

from course_utils import WorkerError, WorkerTimeout, launch, plot_calls, predict, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# Every failure has one of three symptoms. It **hangs**: nothing moves, nobody complains. It **lies**: it ends, and the numbers are wrong. It **dies**: a rank raises an error, or is
# gone. The symptom decides what to ask first. It does not tell the cause, as part 5 will show.
#
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
# Start at the bottom of the report. *Ranks 0 and 2 waited for rank 1, which never arrived*: **who**. *In line 10, 5 times, 4 times*: **where**, and that the counts differ. *Collective #5*: **which** call. *Its
# function has returned*: rank 1 is not stuck, it is done. The picture, drawn from what the ranks printed, puts each rank's calls in order.

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(6.4, 1.9))
for rank, printed in enumerate(hang.output):
    steps = re.findall(r"step \d", printed)
    ends = "returned" if hang.waiting[rank].state == "returned" else f"step {len(steps)}\nwaits"
    for call, words in enumerate([*steps, ends]):
        fill = rank_style(rank)["color"] + "66" if call < len(steps) else "white"
        style = {"hatch": "////", "ls": "--"} if words == "returned" else {}
        box = plt.Rectangle(
            (call, rank), 0.94, 0.86, fc=fill, ec=rank_style(rank)["color"], **style
        )
        axes.add_patch(box)
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        wrong = call < len(steps) and words != f"step {call}"
        said = {"weight": "bold" if wrong else "normal", "bbox": behind if style else None}
        axes.text(call + 0.47, rank + 0.43, words, ha="center", va="center", fontsize=9, **said)
axes.set(xlim=(0, 5), ylim=(3, 0))
axes.set_xticks([call + 0.47 for call in range(5)], [f"call {call + 1}" for call in range(5)])
axes.set_yticks([rank + 0.43 for rank in range(3)], ["rank 0", "rank 1", "rank 2"])
axes.tick_params(length=0, labelbottom=False, labeltop=True)
axes.spines[:].set_visible(False)
hangs_in.measured(hang.output[0].count("step"))
show(figure, "In its third call rank 1 is in step 3, and meets the others' step 2.")

# %% [markdown]
# It hangs two steps after the mistake, because gloo counts calls, not steps. Look at what the ranks printed: `step 2: average 2.33` where 2 is right, and on rank 1 the same number under the name of step 3. **It lied twice before
# it hung.** The report says where the ranks ran out of partners, and the counts say who called less often; the mistake is somewhere before.
#
# The cure: all skip, or none. A decision that changes what ranks call is a decision of all ranks, so it takes a collective.


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


print(launch(skip_together, world_size=3, backend="gloo"))

# %% [markdown]
# **Check yourself.** Could the flag travel with the gradient, to save a message?
#
# <details><summary>Answer</summary>
# Yes: append it to the gradient as one more number, send zeros when the batch is broken, and divide by the sum of the flags. Then every rank makes one call per step, whatever happens.
# </details>
#
# ## 2 · Who never arrived?
#
# Two more hangs that many people have met, each with its cure. `evaluate_on_one` saves time: only rank 0 looks at the validation set.

# %%
batch = torch.arange(12.0).view(4, 3)


def make_model():
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))


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


# %% [markdown]
# `uneven` has three batches on rank 0 and two on rank 1, as in chapters 04 and 07.


# %%
def uneven(cured):
    model = make_model()
    with Join([model]) if cured else nullcontext():
        for _ in range(3 - dist.get_rank()):
            model(batch).sum().backward()


# %%
that_wait = predict("ranks that wait when time is up, in evaluate_on_one and in uneven", ...)


# %%
def hang_of(task, *arguments, timeout=2, **options):
    try:
        launch(task, *arguments, backend="gloo", timeout=timeout, **options)
    except WorkerTimeout as error:
        return error


# %%
waiting = []
for task in (evaluate_on_one, uneven):
    error = hang_of(task, False)
    waiting.append(sum(one.state == "waiting" for one in error.waiting.values()))
    print(f"{task.__name__}: {error.parts[-1]}")
    launch(task, True, backend="gloo")  # the cured one ends
that_wait.measured(waiting)

# %% [markdown]
# In the first, **both** ranks wait, each in another call. DDP's forward sends rank 0's buffers, here of the batch norm, to everyone. Rank 1 makes no such call for an evaluation, so it answers with its next
# training step. `model.module` is the network without the wrapper, and sends nothing.
#
# In the second, rank 1 has done all its work. `Join` lets it answer until all are done; chapter 07 says what it divides by.
#
# **Check yourself.** The model has no buffers. Does `evaluate_on_one` hang?
#
# <details><summary>Answer</summary>
# No: there is nothing to send. The mistake sleeps until somebody adds a batch norm.
# </details>
#
# ## 3 · Slow, or hung?
#
# Before you debug a hang, make sure that it is one. In `slow`, rank 2 needs 0.2 s for its part of each step, and once a whole second. In `hung`, its disk stops answering at step 3; a long sleep stands in for that. To the others both look alike: they sit in
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
# The report looks at the silence at the end. In `slow` it was shorter than an earlier one that *did* end, so perhaps nothing hangs. In `hung` nobody had ever been silent for so long. You can do the
# same by eye: with `trace=True`, the error carries the recording.

# %%
waits_least = predict("the rank that waits least, in slow and in hung", ...)

# %% jupyter={"source_hidden": true} tags=["row-D9"]
figure, sides = plt.subplots(1, 2, figsize=(8, 2.4), sharex=True, layout="constrained")
least = []
for axes, (name, error) in zip(sides, errors.items()):
    waits_s, over_s = [0.0] * 3, max(event.end_s for event in error.trace)
    for rank in range(3):
        events, free_s = error.trace.of_rank(rank), 0.0
        for event in events:
            axes.barh(rank, event.start_s - free_s, 0.6, free_s, fc="#777777")
            took_s, free_s = event.end_s - event.start_s, event.end_s
            open_ = {} if event.finished else {"hatch": "////"}
            style = {"fc": rank_style(rank)["color"] + "44", "ec": rank_style(rank)["color"]}
            axes.barh(rank, took_s, 0.6, event.start_s, **style, **open_)
            waits_s[rank] += took_s
        axes.barh(rank, over_s - free_s, 0.6, free_s, fc="#777777")
    axes.set(title=name, xlabel="s since the launch", xlim=(0, None), ylim=(2.5, -0.5))
    axes.set_yticks(range(3), ["rank 0", "rank 1", "rank 2"])
    least.append(waits_s.index(min(waits_s)))
waits_least.measured(least)
show(
    figure,
    "Grey: a rank is busy with its own; pale: it is inside all_reduce, hatched where that did not "
    "end. Rank 2 is always busy, and the others wait for it.",
)

# %% [markdown]
# Rank 2, both times. Chapter 03 found the rule, **the straggler is the rank that waits least**, and it holds for a rank that has stopped for good. So there is one question for both: who is *not* waiting? Then look at
# that rank, not at those who complain.
#
# **Check yourself.** A job reports 98 % of its time in `all_reduce` on rank 0. Is the network slow?
#
# <details><summary>Answer</summary>
# You cannot know from rank 0. If some rank waits far less than the others, look there. If all wait alike, look at the network.
# </details>
#
# ## 4 · It lies
#
# Two ranks add up two metrics. Each has a loss of 0.5 and 90 right answers, so the sums must be 1 and 180. Rank 1 begins with the other metric: its dictionary was filled in another
# order.


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


# %%
rank_0_gets = predict("loss and right answers on rank 0, added up", ...)

# %%
results = launch(add_metrics, backend="gloo", trace=True)
print("both ranks:", *results)
rank_0_gets.measured(results[0])

# %% [markdown]
# No hang, no error, and both ranks **agree** on 90.5, so comparing ranks would find nothing. Gloo adds the *n*-th call of one rank to the *n*-th of the other. What it cannot see, a recording
# can:

# %%
plot_calls(results.trace)

# %% [markdown]
# The same kind, the same shape, but from **different lines**. That alone is no mistake; here it is the only trace. The cure leaves no order to get wrong: one call.


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
    view = prepare(torch.ones(8)[::2])
    dist.all_reduce(view)
    return view.tolist()


print("with gaps:   ", launch(sum_view, backend="gloo")[0])
print("without gaps:", launch(sum_view, torch.Tensor.contiguous, backend="gloo")[0])

# %% [markdown]
# Chapter 03 looked into it: gloo adds up four neighbours in memory, gaps included. No report, no picture and no rank knows. What finds such lies is an **oracle**: one process that computes the same.
# Here both ranks bring the same numbers, so two must get twice what one gets:

# %%
for task in (add_metrics, sum_view):
    alone, together = (launch(task, world_size=n, backend="gloo")[0] for n in (1, 2))
    print(f"{task.__name__}: one process {alone}, two ranks {together}")

# %% [markdown]
# Neither pair fits. Chapters 05 and 07 did little else than this. Keep a tiny case of your training, of two ranks and three steps, that is compared with one process whenever the code changes. It finds what a tiny case can show, and not what needs a broken batch, sixty ranks or a GPU.
#
# **Check yourself.** Would it have helped to compare the gradients of all ranks after each step?
#
# <details><summary>Answer</summary>
# Not in this part: the ranks agree on the same wrong numbers. In part 1 it would have, since rank 1 had 2.33 in step 3 where the others had 3.33. And it helps against replicas that part, such as by different seeds.
# </details>
#
# ## 5 · One mistake, three symptoms
#
# Ranks hand in different shapes: somebody forgot the last, smaller batch. How bad is that? Three cases, which differ in a number or a name.


# %%
def sum_shapes(sizes):
    mine = torch.ones(sizes[dist.get_rank()])
    dist.all_reduce(mine)
    print("it gets", mine.tolist())


def send_shapes(sizes):
    mine = torch.full((sizes[dist.get_rank()],), float(dist.get_rank()))
    dist.broadcast(mine, src=1)
    return mine.tolist()


# %%
symptoms = ("hangs", "lies", "dies")
sum_3_4 = predict("all_reduce of 3 and 4 numbers", ..., choices=symptoms)
sum_4_6 = predict("all_reduce of 4 and 6 numbers", ..., choices=symptoms)
send_4_3 = predict("broadcast of 3 numbers into 4 places", ..., choices=symptoms)

# %%
error = hang_of(sum_shapes, (3, 4))
print(error.parts[-1])
print("broadcast:", *launch(send_shapes, (4, 3), backend="gloo"))
sum_3_4.measured("hangs" if error else "lies")
send_4_3.measured("lies")

# %% [markdown]
# In the first case rank 1 hangs, while rank 0 got a sum and went on: one call, two symptoms. In the second, rank 1's three ones arrive in rank 0's four places, and the last keeps what it had. The third case is meant to fail:

# %% tags=["raises-exception"]
try:
    launch(sum_shapes, (4, 6), backend="gloo", timeout=5)
except WorkerTimeout:
    sum_4_6.measured("hangs")
except WorkerError:
    sum_4_6.measured("dies")
    raise

# %% [markdown]
# First come gloo's own last words, from rank 0: it expected fewer bytes than arrived. Then the report. *Died of SIGABRT*: compiled code gave up; that is no exception, so no `try` in the rank can
# catch it. Then what differs, *rank by rank*: 4 and 6 numbers.
#
# So the symptom does not tell the cause. Gloo does not compare shapes. It looks at the bytes of each message: if there are more than the place has room for, it aborts; if there are fewer, it takes them and is content, as the broadcast shows.
# `all_reduce` cuts its tensor into pieces for several messages, so which of both happens depends on the sizes; and where one rank has a piece less than the other, a message is waited for that nobody sends. That is the hang of 3 and 4 numbers.
# Where shapes may differ, agree on them first: pad to the largest, whose size is one `all_reduce` with `MAX`.


# %%
def sum_padded(sizes):
    mine = torch.ones(sizes[dist.get_rank()])
    longest = torch.tensor(len(mine))
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    padded = nn.functional.pad(mine, (0, longest - len(mine)))
    dist.all_reduce(padded)
    return padded.tolist()


for sizes in ((3, 4), (4, 6)):
    print(sizes, launch(sum_padded, sizes, backend="gloo")[0])

# %% [markdown]
# **Check yourself.** With NCCL on GPUs, do you expect the same three symptoms?
#
# <details><summary>Answer</summary>
# The same mistake, other symptoms: they belong to the backend. Which is why one looks for the first call that differs, not at the symptom.
# </details>
#
# ## 6 · It dies
#
# ### Who was first?
#
# Rank 1 meets a bad label. Like many published scripts, it cleans up after itself, and that takes a moment: it leaves the group, closes its files, and only then does its error come out.


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
first = predict("the first error comes from rank", ...)


# %%
def death_of(task, *arguments):
    try:
        launch(task, *arguments, backend="gloo")
    except WorkerError as error:
        return error


error = death_of(train_and_clean_up)
in_time = sorted(error.failures, key=lambda failure: failure.when)
for failure in in_time:
    print(f"rank {failure.rank}: {failure.headline}")
first.measured(in_time[0].rank)

# %% [markdown]
# Rank 0's, which did nothing wrong. Its *Connection closed by peer* is an **echo**: it says that somebody else is gone. Whoever trusts the clock blames a bystander, and in a large job each rank may add its echo. `launch` puts
# echoes last. If you have only a log: leave out every line about peers, connections and timeouts, and read what is left. If nothing remains, look for the rank whose log just stops: it may have been killed, or it may sleep. Ask for its exit code, its stack and the system's log, and suspect the network last. Part 7 has two such failures.
#
# ### Out of memory
#
# Rank 1 gets a smaller machine: `setrlimit` grants it 512 MiB more than it has. The layer's output takes 256 KiB for each sample of the batch.


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


# %% [markdown]
# There is a second way to run out: no limit is set, the whole machine is full, and the system ends a process of its choice with `SIGKILL`. We do not fill your machine, we only send the signal.


# %%
def killed_by_the_system():
    dist.barrier()  # both are there
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # we imitate what the system does
    dist.barrier()


# %%
print(death_of(forward, 4096))
print("with a batch of 1024:", death_of(forward, 1024) or "done", "\n" + "-" * 80)
print(death_of(killed_by_the_system))

# %% [markdown]
# A refused allocation is an ordinary exception, with line and number of bytes: 1 GiB. Smaller batches mend it, as the run with 1024 proves; chapter 04's accumulation keeps the gradient. A rank that the system kills says **nothing**: no line, no
# last words. What is left is what it had said *before*, so let long trainings report their steps, and ask the system: on Linux, its log (`dmesg`) names the process that it killed.
#
# **Check yourself.** A job dies at random steps, each time on another rank, always with `SIGKILL`. Name two suspects and how to tell them apart.
#
# <details><summary>Answer</summary>
# Memory that grows, whose figure you report in each step; and somebody who stops jobs, such as a scheduler with a time or memory limit, whose log says so.
# </details>
#
# ## 7 · Your cluster has no `launch`
#
# So far the report did half of the work. On a cluster there is `torchrun`, a folder of logs, and you. Part 7 is a training that knows nothing of this course. It is started on purpose with
# six failures, and each time we ask the tools that PyTorch has. Here are the functions that go wrong; rank 1 is always the culprit.


# %%
def load(rank, step, fault):
    if rank == 1 and fault == "straggler":
        time.sleep(0.6)
    if rank == 1 and step == 3:
        if fault == "absent rank":
            time.sleep(600)  # its disk does not answer
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
# The sixth failure is not in the code: half of rank 1's checkpoint file is missing. `main` prepares for the night. It says which process is which rank, writes where it stands whenever it gets the signal `SIGUSR1`, and leaves what its flight
# recorder has when an exception ends it. For the `finally`, the signal by which `torchrun` ends a rank is made an exception.


# %%
def leave(*_):
    raise InterruptedError("told to end")


# %%
def main(fault):
    dist.init_process_group("gloo", timeout=timedelta(seconds=6))
    rank = dist.get_rank()
    faulthandler.register(signal.SIGUSR1, open(f"stack{rank}", "w"))
    signal.signal(signal.SIGTERM, leave)
    print(f"rank {rank} is process {os.getpid()}", flush=True)
    try:
        train(rank, fault)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(f"calls{rank}").write_bytes(_dump_fr_trace())
    dist.destroy_process_group()


# %% [markdown]
# Do not take this `finally` home as it is. Python calls the handler of a signal between two of its own steps, so a rank that waits inside a collective hears SIGTERM only when the call returns:


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
    print(f"SIGTERM came after 1 s and was heard after about {heard_s[0]:.0f} s")


_ = launch(hears_late, backend="gloo")

# %% [markdown]
# It was heard when the group's timeout ended the call. `train.py` has a timeout of 6 s, so its waiting ranks leave their dump in time. With gloo's default of 30 minutes they would not: 30 s after SIGTERM `torchrun` sends SIGKILL, which no `finally` survives.
#
# The functions go into a file `train.py`, whose last line is `record(main)(sys.argv[1])`. `record` is `torch.distributed.elastic.multiprocessing.errors.record`: it writes an exception of `main` into a file that `torchrun` reads.
# `start`, folded below, does in a folder of its own what you would type:
#
# ```text
# torchrun --standalone --nproc-per-node=2 --log-dir=logs --redirects=3 --monitor-interval=0.2 train.py "absent rank"
# ```
#
# The absent rank is started by just this. In the other jobs the same `torchrun` runs in a fork of this kernel, and each rank is a fork of it instead of a new Python (`Forked`). All else is `torchrun`'s, and we
# need not wait for three imports of torch per job.
#
# `--redirects=3` sends both streams of every rank to files; with `--tee=3` you would see them as well. While a job runs, `look` sees three times where its two processes are. It takes `py-spy dump --pid`,
# which needs no preparation, and the signal where py-spy is not installed or may not look: Linux lets it look at other processes of yours only if `kernel.yama.ptrace_scope` is 0 or you are root, and a container needs the capability `SYS_PTRACE`.

# %% jupyter={"source_hidden": true}
FAULTS = ("swapped calls", "absent rank", "straggler", "killed rank", "out of memory")
FAULTS += ("spoiled checkpoint",)
HEAD = """import faulthandler, os, signal, sys, time
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.elastic.multiprocessing.errors import record
"""
COMMAND = ["--standalone", "--nproc-per-node=2", "--log-dir=logs", "--redirects=3"]
COMMAND += ["--monitor-interval=0.2", "train.py"]
jobs = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
seen = {fault: [] for fault in FAULTS}  # where ranks 0 and 1 were, each time we looked
fork = multiprocessing.get_context("fork")


def folder_of(fault, variant=""):
    return Path(jobs.name, f"{fault} {variant}".strip().replace(" ", "-"))


def prepare(folder, fault):
    folder.mkdir()
    parts = [HEAD, *map(inspect.getsource, (load, sum_metrics, train, leave, main))]
    (folder / "train.py").write_text("\n\n".join([*parts, "record(main)(sys.argv[1])\n"]))
    for rank in range(2):
        torch.save(torch.zeros(1), folder / f"checkpoint{rank}.pt")
    if fault == "spoiled checkpoint":
        os.truncate(folder / "checkpoint1.pt", (folder / "checkpoint1.pt").stat().st_size // 2)


def start(fault, variant="", typed=False, **settings):
    """Starts train.py under torchrun on loopback; only where `typed` by a new Python."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    quiet = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    prepare(folder_of(fault, variant), fault)
    where = folder_of(fault, variant), loopback | quiet | settings
    process = fork.Process(target=torchrun, args=(*where, [*COMMAND, fault], typed))
    process.start()
    return process


def torchrun(folder, settings, command, typed):
    """In a process of its own: what a shell does, then torchrun."""
    os.setsid()
    os.chdir(folder)
    os.environ.update(settings)
    with open("torchrun.txt", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    if typed:
        python = [sys.executable, "-m", "torch.distributed.run"]
        os.execv(python[0], python + command)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, closefd=False) for n in (1, 2))
    sys.excepthook = sys.__excepthook__
    subprocess_handler.Popen = Forked
    torch.distributed.run.main(command)


class Forked:
    """In place of a new Python for train.py: a fork of this one, which has imported torch."""

    def __init__(self, args, env, stdout, stderr, **_):
        self.process = fork.Process(target=run_script, args=(args, env, stdout, stderr))
        self.process.start()
        self.pid, self.wait = self.process.pid, self.process.join

    def poll(self):
        return self.process.exitcode


def run_script(args, env, *streams):
    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream.fileno(), number)
    os.environ.update(env)
    dist.set_debug_level_from_env()  # which a new Python does when it imports torch
    torch.set_num_threads(1)
    sys.argv = list(args[2:])  # behind "python -u"
    # torchrun's store must not be asked while the other rank is forked.
    Path("born" + env["RANK"]).touch()
    while not (Path("born0").exists() and Path("born1").exists()):
        time.sleep(0.01)
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


def look(fault, process):
    """Notes three times where both ranks are, if both are at work for longer than a moment."""
    pids = []
    while process.is_alive() and len(pids) < 2:
        time.sleep(0.1)
        pids = re.findall(r"is process (\d+)", "".join(logs(fault, "stdout.log")))
    for _ in range(3):
        time.sleep(0.7)
        places = [place_of(fault, rank, int(pid)) for rank, pid in enumerate(pids)]
        if not all(places) or "calls" in "".join(places):
            return  # a rank has ended, or is in the `finally`
        seen[fault].append(tuple(places))


def finish(processes):
    for process in processes:
        process.join(timeout=120)
        if process.is_alive():
            process.terminate()  # torchrun ends its ranks
            process.join(timeout=60)


def place_of(fault, rank, pid):
    """The line of train.py in which a process is: by py-spy, or else by the signal."""
    stack = ""
    with suppress(OSError, subprocess.SubprocessError):
        spy = shutil.which("py-spy") or Path(sys.executable).with_name("py-spy")
        command = [spy, "dump", "--pid", str(pid)]
        plain = {**os.environ, "CLICOLOR_FORCE": "0", "NO_COLOR": "1"}  # a kernel asks for colours
        streams = {"capture_output": True, "text": True, "timeout": 5}
        stack = subprocess.run(command, env=plain, **streams).stdout
    if not stack:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)
        time.sleep(0.1)
        file = folder_of(fault) / f"stack{rank}"
        stack = file.read_text().rpartition("most recent")[2]
    lines = re.findall(r"train\.py(?::|\", line )(\d+)", stack)
    return code(fault, int(lines[0])) if lines else ""


def logs(fault, name, variant=""):
    """The texts of both ranks' files of this name, empty where there is none."""
    paths = [folder_of(fault, variant).glob(f"logs/*/attempt_0/{rank}/{name}") for rank in (0, 1)]
    return ["".join(path.read_text(errors="replace") for path in found) for found in paths]


def code(fault, line):
    """A line of train.py, without its comment."""
    text = (folder_of(fault) / "train.py").read_text().splitlines()[line - 1]
    return text.partition("#")[0].strip()


# %% [markdown]
# First each failure once. (As in chapter 04, `torchrun`'s store listens on all addresses of the machine while a job runs.)

# %%
first = {fault: start(fault, typed=fault == "absent rank") for fault in FAULTS}
with ThreadPoolExecutor(6) as pool:
    list(pool.map(look, first, first.values()))
finish(first.values())

# %% [markdown]
# ### What is written anyway
#
# Now you are called. Each rank has a `stderr.log`. Part 6 said how to read it: leave out echoes, and see what is left.

# %%
by_files = predict("of six failures, the error files of the ranks name the culprit of", ...)
by_detail = predict("TORCH_DISTRIBUTED_DEBUG=DETAIL names the culprit of", ...)
by_recorder = predict("the flight recorder has what it takes to find the culprit of", ...)

# %%
ECHO = re.compile("by peer|Timed out|Connection|told to end")


def from_logs(fault):
    lines = "\n".join(logs(fault, "stderr.log")).splitlines()
    errors = [line for line in lines if re.match(r"\[rank\d\]: \w*Error", line)]
    own = [line for line in errors if not ECHO.search(line)]
    return own[0] if own else "only echoes" * bool(errors)


# %% jupyter={"source_hidden": true}
said = {}


def ask(tool, read):
    """Keeps and prints what a tool says of each failure."""
    said[tool] = {fault: read(fault) for fault in FAULTS}
    for fault, words in said[tool].items():
        print(f"{fault:20}{textwrap.shorten(words, 78, placeholder=' ...') or '-'}")


# %%
ask("logs", from_logs)

# %% [markdown]
# `record` has written the same into `error.json`, with the stack and the time, which helps where a log is long. `torchrun` reads these files. It ends with a table of exit codes, whose last entry is called *Root Cause (first
# observed failure)*.


# %%
def from_error_files(fault):
    texts = [
        json.loads(text)["message"]["message"] if text else "" for text in logs(fault, "error.json")
    ]
    own = [
        f"rank {rank}: {text}" for rank, text in enumerate(texts) if text and not ECHO.search(text)
    ]
    return own[0] if own else "only echoes" * any(texts)


ask("error files", from_error_files)


# %%
def from_torchrun(fault):
    table = (folder_of(fault) / "torchrun.txt").read_text()
    codes = re.findall(r"rank +: (\d).*?exitcode +: (-?\d+)", table, re.S)
    killed = [rank for rank, code in codes if code == "-9"]
    return f"rank {killed[0]} died of SIGKILL" if killed else "failed" * bool(codes)


ask("exit codes", from_torchrun)
table = (folder_of("absent rank") / "torchrun.txt").read_text()
print("absent rank, its root cause: rank", re.search(r"Root.*?rank +: (\d)", table, re.S)[1])

# %%
errors = [json.loads(text)["message"] for text in logs("out of memory", "error.json")]
times = [error["extraInfo"]["timestamp"] for error in errors]
print("out of memory: both errors have a time in whole seconds:", all(map(str.isdigit, times)))

# %% [markdown]
# A killed rank writes nothing, and only its exit code is left: -9. For the absent rank, `torchrun` accuses **rank 0**, whose timeout ran out. *First observed* means just that: the failure with the earliest time. And these times are whole seconds. If an echo follows
# the error within the same second, as it does in some runs of this chapter, both have the same time and the lower rank is accused; a second later it would be the right one. So read the other ranks' files before you believe it. If a whole host dies, its `torchrun` is dead too, and not even an exit code is left; [chapter 09](09_many_machines.ipynb) lets one die.
#
# ### Where is everybody?
#
# A job that stands still can be asked. These are the lines that `look` saw most often:


# %%
def from_stacks(fault):
    if len(seen[fault]) < 2:  # it was over too soon
        return ""
    rank_0, rank_1 = mode(seen[fault])
    return f"rank 0: {rank_0}; rank 1: {rank_1}"


ask("stacks", from_stacks)

# %% [markdown]
# The question is part 3's: who is *not* waiting? One look cannot tell slow from hung, since rank 1 sleeps in both. The log can: in one it still grows.
#
# ### The flight recorder
#
# Each rank keeps its last calls in memory, with the lines that made them. `_dump_fr_trace` gives them as a pickle. (Its sister `_dump_fr_trace_json` leaves out the lines.) We compare the ranks call by call:


# %%
def calls(fault, rank):
    file = folder_of(fault) / f"calls{rank}"
    entries = pickle.loads(file.read_bytes())["entries"] if file.exists() else None
    return entries and [(line_of(fault, one), one["time_created_ns"] / 1e9) for one in entries]


def line_of(fault, entry):
    own = next(one for one in entry["frames"] if one["filename"].endswith("train.py"))
    return code(fault, own["line"])


# %%
def from_recorder(fault):
    mine, yours = calls(fault, 0), calls(fault, 1)
    if yours is None:
        return "rank 1 left nothing"
    for number, ((one, _), (other, _)) in enumerate(zip(mine, yours), 1):
        if one != other:
            return f"#{number} is {one} on rank 0, {other} on rank 1"
    if len(mine) > len(yours):
        return f"#{len(mine)} is missing on rank 1"
    late_s = median(other - one for (_, one), (_, other) in zip(mine, yours))
    return "rank 1 is late for most calls" if late_s > 0.1 else ""


ask("flight recorder", from_recorder)

# %% [markdown]
# It has something on all six, and the swapped calls by their lines. The command `torchfrtrace` compares for you. It does not look at lines, and wants a file of every rank. In torch 2.15 it also stops with a `KeyError` at what gloo
# recorded, because the group has two names there; the folded cell gives it one.

# %% jupyter={"source_hidden": true}
with redirect_stderr(io.StringIO()) as heard:  # it goes on speaking to this stream
    from torch.distributed.flight_recorder import fr_trace


def from_torchfrtrace(fault):
    """What `torchfrtrace FOLDER --prefix=calls` says, run here to save six imports of torch."""
    folder = folder_of(fault, "renamed")
    folder.mkdir(exist_ok=True)
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}
    for file in folder_of(fault).glob("calls?"):
        dump = pickle.loads(file.read_bytes()) | {"pg_config": {"0": group}}
        (folder / file.name).write_bytes(pickle.dumps(dump))
    heard.seek(heard.truncate(0))
    try:
        fr_trace.main([str(folder), "--prefix=calls"])
    except AssertionError as error:
        return str(error)
    found = re.findall(r"sequence number: \d+|missing ranks: .*", heard.getvalue())
    return ", ".join(found)


# %%
ask("torchfrtrace", from_torchfrtrace)

# %% [markdown]
# ### Run it again, to be told
#
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` makes the ranks compare what they are about to do, before each call. Before each of your calls it makes three of its own: a monitored barrier, and two all-gathers, of shapes and of what is to be called. So use it to search, not to train:


# %%
def time_a_call(level):
    dist.set_debug_level(level)  # a group asks for it when it is made
    group, times_s = dist.new_group(), []
    for _ in range(200):
        begun_s = time.perf_counter()
        dist.all_reduce(torch.ones(4), group=group)
        times_s.append(time.perf_counter() - begun_s)
    return median(times_s)


# %%
off_s = launch(time_a_call, dist.DebugLevel.OFF, backend="gloo")[0]
detail_s = launch(time_a_call, dist.DebugLevel.DETAIL, backend="gloo")[0]
print(f"with DETAIL an all_reduce of 4 numbers takes about {detail_s / off_s:.1f} times as long")

# %% [markdown]
# (We have seen about 2 times on a quiet machine, and about 10 on a busy one.) `monitored_barrier` is the part of it that finds
# absent ranks, and you can put it into your own code where you suspect somebody. It needs gloo: beside an NCCL group, make a second one for it, `dist.new_group(backend="gloo")`.

# %%
meet = ("absent rank", "meet")
again = [start(*meet, MEET_S="2")]
again += [start(fault, "DETAIL", TORCH_DISTRIBUTED_DEBUG="DETAIL") for fault in FAULTS]
finish(again)


# %%
def from_detail(fault, variant="DETAIL"):
    text = "\n".join(logs(fault, "stderr.log", variant))
    return "".join(re.findall(r"Error: (\[Rank 0\]: Ranks? .*)", text)[:1])


ask("DETAIL", from_detail)
print("\nmonitored_barrier: ", from_detail(*meet))

# %% [markdown]
# It knows who did not come, not why. To the swapped calls it is deaf: kind and shape are the same. Nor does it notice the straggler: a rank that arrives late has still arrived.
#
# ### Who says what
#
# The table is computed from the lines above. A tool *names it* if its own words have the culprit's number. It *shows it* if we find the culprit by comparing what it has of both ranks. It *notices* if it says that something
# failed, and not who. (The column *exit codes* looks at nothing else of what `torchrun` says.) Mind that this judge knows the answer, and there are only two ranks: with eight, compare each rank with what most of them did.


# %%
def verdict(tool, words):
    if not re.search(r"[Rr]anks?\W*1", words):
        return "notices" if words else "silent"
    return "shows it" if tool in ("stacks", "flight recorder") else "names it"


# %% jupyter={"source_hidden": true}
shades = {"names it": "#009E73AA", "shows it": "#009E7344"}
shades |= {"notices": "#F0E44288", "silent": "white"}
found = Counter()
figure, axes = plt.subplots(figsize=(9, 2.8))
for x, (tool, words) in enumerate(said.items()):
    for y, fault in enumerate(FAULTS):
        what = verdict(tool, words[fault])
        found[tool] += what in ("names it", "shows it")
        axes.add_patch(plt.Rectangle((x, y), 0.96, 0.9, fc=shades[what], ec="#999999"))
        axes.text(x + 0.48, y + 0.45, what, ha="center", va="center", fontsize=9)
axes.set(xlim=(0, len(said)), ylim=(len(FAULTS), 0))
axes.set_xticks([x + 0.48 for x in range(len(said))], said, fontsize=9)
axes.set_yticks([y + 0.45 for y in range(len(FAULTS))], FAULTS)
axes.tick_params(length=0, labelbottom=False, labeltop=True)
axes.spines[:].set_visible(False)
by_files.measured(found["error files"])
by_detail.measured(found["DETAIL"])
by_recorder.measured(found["flight recorder"])
text = ", ".join(f"{tool} {count}" for tool, count in found.items())
show(figure, f"In how many of the six failures a tool names or shows the culprit: {text}.")

# %% [markdown]
# Naming the culprit is not yet knowing the cause. The recorder and `DETAIL` say *who*; why memory ran out or a file does not open stands in that rank's log, and where its disk hangs in its stack. So go from *who* to that rank's own
# words. A view with gaps, part 4's second lie, is in none of them: every call is made, by the same line, in the same shape.
#
# **With NCCL** some of this comes by itself, and some differs. Chapter 14 has recordings of real NCCL, but none of a failure, so here is what [PyTorch's page on its variables](https://docs.pytorch.org/docs/stable/torch_nccl_environment_variables.html) says. A
# group's timeout is ten minutes, not gloo's thirty, and a watchdog thread keeps it. When that thread sees a timeout or an exception, it writes the rank's recorder to a file, so you need no `finally`. In torch 2.15 it does so by default; `TORCH_NCCL_DUMP_ON_TIMEOUT` switches it, `TORCH_FR_BUFFER_SIZE` says how many calls are kept (2,000; older versions call it `TORCH_NCCL_TRACE_BUFFER_SIZE`, and keep none by default), and `TORCH_FR_DUMP_TEMP_FILE` where the file goes, without the rank at its end. A rank that is killed leaves none. An `all_reduce` is only queued by the host and returns at once: a
# stack shows the line that waits for the GPU, which may be an innocent `.item()`. `NCCL_DEBUG=INFO` is NCCL's own: it logs which network and which interface it took. Read it when nothing starts, or when all ranks are equally slow. On hosts with InfiniBand,
# a line `NCCL INFO NET/IB : No device found.` (from [nccl#952](https://github.com/NVIDIA/nccl/issues/952)) says why: NCCL does not see the fast network.
#
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
# group. So compare numbers within one group only. Newer logs print its name (<code>PG ID</code>), and the last call that was enqueued and the last that was completed.
# </details>
#
# **`torch.distributed.debug.start_debug_server()`** shows stacks and recorders of all ranks on one web page. In torch 2.15 it wants the package `tabulate`, which torch does not bring. It listens on all addresses without a password, so we do not
# start it here: use it only in a network that you trust.
#
# **Check yourself.** Why is a group's timeout of 30 minutes not simply set to one?
#
# <details><summary>Answer</summary>
# It counts every wait, also an honest one: a rank that saves a checkpoint, or loads data, or compiles, while the others wait for it. It then kills a training that was only slow.
# </details>
#
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
# | dies of SIGABRT | With gloo: which call differs in shape? With NCCL it is mostly the watchdog after a timeout: read it as a hang | the report | the last words in `stderr.log` | 5 |
# | dies of SIGKILL | What had it said before? | its output | exit code -9; its log; the system's | 6, 7 |
#
# Three habits prevent most of it: every decision that changes what a rank calls is taken by all ranks together; what belongs together travels in one call; and the smallest case that can go wrong is kept
# and compared with one process.

# %%
jobs.cleanup()
predict()

# %% [markdown]
# ## The pager, part 1
#
# One morning you find this of a job that hung at night: four ranks on two nodes, and the last line of each. Two of them were called *root cause* by their node's `torchrun`. Note your first suspicion, and what you would look at next. The capstone,
# [chapter 11](11_capstone.ipynb), has the whole folder, and the answer.

# %%
for log in sorted(Path("incident/monday").glob("node-?/?/stderr.log")):
    last = log.read_text().splitlines()[-1]
    print(log.parent.relative_to("incident"), re.sub(r"\[/\S+ |\[node.*", "", last), sep=": ")
suspicion = predict("the pager, part 1: the rank to look at first is", ...)

# %% [markdown]
# ## What you know now
#
# A symptom is where a mistake surfaces, not where it was made: one hang had lied twice before, and one wrong shape hung, lied or died, depending on the sizes. Ask who is *not* waiting, which call is the first to differ, which error is no echo.
# You have seen what each tool says, and to what it is deaf.
#
# **Next:** [09 · Many machines](09_many_machines.ipynb), where a rank may be in another room.
