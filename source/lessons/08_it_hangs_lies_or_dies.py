# %% [markdown]
# # 08 · It hangs, lies or dies
#
# **A training goes wrong at 2 a.m. What do you ask first, and who can answer?**
#
# In 80 minutes you will be able to
#
# 1. tell a hang from a slow rank, and find the rank that never arrived, its line, and the mistake before it;
# 2. catch results that are wrong without any error;
# 3. find the first failure among its echoes, and say why a rank died without a word;
# 4. choose among PyTorch's own tools, having seen what each says about the same four mistakes.
#
# **Hardware:** two cores, Linux for the part on memory; all ranks use gloo on the CPU.
# **Before:** [07 · Data, batches and numerics](07_data_batches_numerics.ipynb).
# **Next:** [09 · Many machines](09_many_machines.ipynb).
# **Lab:** [08 · It hangs, lies or dies](../exercises/08_it_hangs_lies_or_dies.ipynb).
#
# Six cells ask you to **predict**: put your answers in place of the three dots, and a later cell shows them beside what real ranks did.

# %% jupyter={"source_hidden": true}
import io
import os
import pickle
import re
import resource
import signal
import time
from contextlib import nullcontext, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import _dump_fr_trace
from torch.distributed.algorithms.join import Join
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
# Chapter 03 looked into it: gloo adds up four neighbours in memory, gaps included. No report, no picture and no rank knows. What finds every lie is an **oracle**: one process that computes the same.
# Here both ranks bring the same numbers, so two must get twice what one gets:

# %%
for task in (add_metrics, sum_view):
    alone, together = (launch(task, world_size=n, backend="gloo")[0] for n in (1, 2))
    print(f"{task.__name__}: one process {alone}, two ranks {together}")

# %% [markdown]
# Neither pair fits. Chapters 05 and 07 did little else than this. Keep a tiny case of your training, of two ranks and three steps, that is compared with one process whenever the code changes.
#
# **Check yourself.** Would it have helped to compare the gradients of all ranks after each step?
#
# <details><summary>Answer</summary>
# Neither here nor above: the ranks agree on the same wrong numbers. It helps against replicas that part, such as by different seeds.
# </details>
#
# ## 5 · One mistake, three symptoms
#
# Ranks hand in different shapes: somebody forgot the last, smaller batch. How bad is that? Three cases, which differ in a number or a name.


# %%
def sum_shapes(sizes):
    mine = torch.ones(sizes[dist.get_rank()])
    dist.all_reduce(mine)


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
# Rank 1's three ones arrive in rank 0's four places, and the last keeps what it had. The third case is meant to fail:

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
# So the symptom does not tell the cause. Gloo does not compare shapes, it counts bytes as they come: too few, and it waits for the rest; too many, and it aborts; if the byte counts match, gloo notices nothing.
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
# echoes last. If you have only a log: leave out every line about peers, connections and timeouts, and read what is left. If nothing remains, suspect the network.
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
# ## 7 · What PyTorch offers
#
# Elsewhere you will not have `launch`. We try four of PyTorch's own tools on the same four mistakes, each for a second or two; `one_call_less` is the skipped batch of part 1, in short.


# %%
def one_call_less():
    for _ in range(2 if dist.get_rank() == 1 else 3):
        dist.all_reduce(torch.ones(4))


mistakes = {
    "one call less": one_call_less,
    "shapes 4 and 6": lambda: sum_shapes((4, 6, 6)),
    "swapped": add_metrics,
    "with gaps": sum_view,
}

# %% [markdown]
# The first tool is the **timeout of the group**. The second is the **debug level** `DETAIL`: before each call, ranks compare what they are about to do. In a script one sets
# `TORCH_DISTRIBUTED_DEBUG=DETAIL`; torch reads that when it is imported, which in a notebook was long before the ranks were forked, so ours call a function.


# %%
def with_timeout(mistake):
    dist.init_process_group("gloo", timeout=timedelta(seconds=1))
    mistake()


def with_detail(mistake):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    with_timeout(mistake)


# %% jupyter={"source_hidden": true}
def outcome(work, *arguments, **options):
    """What a launch of three ranks says of its end, in one line."""
    try:
        with redirect_stdout(io.StringIO()):  # gloo's own log, full of times
            launch(work, *arguments, world_size=3, **options)
        return "no error"
    except WorkerTimeout as error:
        return error.parts[-1]
    except WorkerError as error:
        causes = sorted(failure.headline for failure in error.failures if not failure.is_echo)
        return causes[0] if causes else error.failures[0].headline


# %%
said = {}
for name, mistake in mistakes.items():
    said[name] = {
        "timeout": outcome(with_timeout, mistake, backend=None, timeout=20),
        "DETAIL": outcome(with_detail, mistake, backend=None, timeout=20),
        "launch": outcome(mistake, backend="gloo", timeout=2),
    }

# %% jupyter={"source_hidden": true}
for name, tools in said.items():
    print(f"\n{name}")
    for tool, words in tools.items():
        words = words.split(" for ")[0] if tool == "timeout" else words  # for send or for recv
        print(f"  {tool:8}", words if tool == "launch" else words[-77:])

# %% [markdown]
# The timeout (ten minutes with NCCL and half an hour with gloo, unless you say otherwise) ends the wait and names nobody. `DETAIL` names rank 1, or the two shapes. It sends a message more for each call, so turn it on to search, not to train. To swapped calls and to gaps
# **all three are deaf**: nothing differs that they look at.
#
# The third tool is **`monitored_barrier`**, put where you suspect that somebody is missing. It needs gloo: beside an NCCL group, make a second one with `dist.new_group(backend="gloo")`. The fourth is the **flight recorder**: each
# rank keeps its last calls in memory, with the lines that made them. Here a function with an underscore reads it; on a cluster with NCCL, each rank can write it to a file when it times out, and the command `torchfrtrace` compares the files.


# %%
def meet_before_each_call():
    for _ in range(2 if dist.get_rank() == 1 else 3):
        dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks=True)
        dist.all_reduce(torch.ones(4))


print("monitored_barrier:", outcome(meet_before_each_call, backend="gloo"))


# %%
def with_flight_recorder(mistake):
    with suppress(RuntimeError):
        with_timeout(mistake)
    last = pickle.loads(_dump_fr_trace())["entries"][-1]
    own = next(one for one in last["frames"] if "/torch/" not in one["filename"])
    return f"#{last['collective_seq_id']} {last['input_sizes']}, line {own['line']}"


# %%
for name, mistake in mistakes.items():
    kept = launch(with_flight_recorder, mistake, world_size=3, backend=None)
    odd = [f"rank {rank}" for rank in range(3) if kept.count(kept[rank]) == 1]
    said[name]["flight recorder"] = odd[0] if odd else "no error"
    print(f"{name:14}", *kept, sep="   ")

# %% [markdown]
# The barrier names rank 1, too. The flight recorder has the missing call (#2 where the others have #3), the shapes, and for the swapped calls the two lines. It leaves the comparing to you. Put together, each field
# computed from what was said:


# %% jupyter={"source_hidden": true}
def verdict(words):
    if words == "no error":
        return "silent"
    return "names it" if re.search(r"anks? [012]|4.*6", words) else "notices"


tools = [*said["swapped"]]
shades = {"names it": "#009E7388", "notices": "#F0E44288", "silent": "white"}
figure, axes = plt.subplots(figsize=(8, 2.4))
for y, words in enumerate(said.values()):
    for x, tool in enumerate(tools):
        what = verdict(words[tool])
        axes.add_patch(plt.Rectangle((x, y), 0.96, 0.9, fc=shades[what], ec="#999999"))
        axes.text(x + 0.48, y + 0.45, what, ha="center", va="center")
axes.set(xlim=(0, len(tools)), ylim=(len(said), 0))
axes.set_xticks([x + 0.48 for x in range(len(tools))], tools)
axes.set_yticks([y + 0.45 for y in range(len(said))], said)
axes.tick_params(length=0, labelbottom=False, labeltop=True)
axes.spines[:].set_visible(False)
named = {tool: sum(verdict(w[tool]) == "names it" for w in said.values()) for tool in tools}
text = ", ".join(f"{tool} {count}" for tool, count in named.items())
show(figure, f"How many of the four mistakes a tool names: {text}. The gaps, nobody.")

# %% [markdown]
# No tool has them all, and the last row has none: for it there is only the oracle of part 4. Ours has an advantage that you should know about: `launch` sees all ranks of one machine from outside. On a cluster, begin with
# `DETAIL` on two ranks of your own machine; a mistake that shows there is found in seconds.
#
# **Check yourself.** Why is a group timeout of 30 minutes not simply set to one?
#
# <details><summary>Answer</summary>
# It counts every wait, also an honest one: a rank that saves a checkpoint, or loads data, or compiles, while the others wait for it. It then kills a training that was only slow.
# </details>
#
# ## 8 · The method
#
# | symptom | first question | tool | seen in |
# | --- | --- | --- | --- |
# | hangs | Was an earlier silence as long? | the report's *perhaps nothing hangs*; the recording | part 3 |
# | hangs | Who is not waiting, and where is it instead? | the report; `monitored_barrier`, `DETAIL` | 1, 2, 7 |
# | hangs | Which is the first call that differs or lacks a partner? | `plot_calls`; the flight recorder | 1, 7 |
# | is slow | Who waits least? | the recording | 3 |
# | lies | What does one process compute? | a tiny oracle, kept as a test | 4 |
# | lies | Do the ranks call from the same lines? | `plot_calls` of a recording; the flight recorder | 4, 7 |
# | dies, with an error | Which error is no echo? | the report; a log without peers and timeouts | 6 |
# | dies of SIGABRT | Which call differs in shape? | the report; `DETAIL` | 5, 7 |
# | dies of SIGKILL | What had it said before? | its output; the system's log | 6 |
#
# Three habits prevent most of it: every decision that changes what a rank calls is taken by all ranks together; what belongs together travels in one call; and the smallest case that can go wrong is kept
# and compared with one process.

# %%
predict()

# %% [markdown]
# ## What you know now
#
# A symptom is where a mistake surfaces, not where it was made: one hang had lied twice before, and one wrong shape hung, lied or died, depending on the sizes. Ask who is *not* waiting, which call is the first to differ, which error is no echo.
# You have seen what each tool says, and to what it is deaf.
#
# **Next:** [09 · Many machines](09_many_machines.ipynb), where a rank may be in another room.
