# %% [markdown]
# # 14 · On a GPU: who waits?
#
# **An all-reduce on a GPU takes milliseconds, but the line of Python that asks for it is over much sooner. Who waits for the sum?**
#
# In 45 minutes you will be able to
#
# 1. say what a collective, `wait()`, `.item()` and `synchronize()` hold up: the host, or only a stream of the GPU;
# 2. read a recording of real NCCL training: launches, streams and bytes;
# 3. tell from it whether network, GPU or host sets the pace, and how far to trust it;
# 4. record your own ranks with `torch.profiler`, and find the all-reduces.
#
# **Hardware:** any computer: recordings of real GPUs come with the course. With two GPUs of your own, one more cell runs. **Before:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb).
# **Lab:** [14 · On a GPU: who waits?](../exercises/14_on_a_gpu_who_waits.ipynb)

# %% jupyter={"source_hidden": true}
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # no remarks of the profiler's own; read once, by torch
import time
from collections import Counter
from contextlib import nullcontext
from statistics import median

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from course_material.recordings import Row, recording
from course_utils import hardware, launch, predict, show
from course_utils.pictures.style import KINDS

# %% [markdown]
# ## 1 · The call is over, the sum is not there
#
# With gloo, on the CPU, a plain `all_reduce` returns when the sum is there. A GPU works differently. It has **streams**: queues of
# kernels, each queue worked off in order. The **host**, which is your Python process, only puts kernels into the queues. That is a **launch**. NCCL's
# all-reduce is such a kernel. In the recordings of this chapter it runs in a stream of its own.
#
# The file that we read first is a real training: three steps of ResNet-50 under DDP on two A100, seen from rank 0. Meta published it as test data of
# [Holistic Trace Analysis](https://github.com/facebookresearch/HolisticTraceAnalysis) under the MIT license.

# %%
resnet = recording("resnet50_2xA100")
for (lane, kind), count in sorted(Counter((row.lane, row.kind) for row in resnet).items()):
    print(f"{lane:16}{kind:12}{count:6,}")
print(next(row for row in resnet if row.kind == "collective"))

# %% [markdown]
# The host has two threads here: Python's own, and autograd's, which runs backward. Together they launch 3,774 times. Stream 7 computes, and
# stream 40 is NCCL's: in three steps, 15 all-reduces of gradients and 6 broadcasts of buffers. Each launch and its kernel share a number.
#
# **Predict.** A bucket of 31.5 MB is reduced, for which NCCL's kernel runs some milliseconds. How long is the host in the call? Put your number in the place of the three dots.

# %%
in_call = predict("milliseconds of the host in a call of all_reduce", ...)

# %%
calls = [row for row in resnet if row.name == "c10d::allreduce_"]
kernels = [row for row in resnet if row.kind == "collective" and "AllReduce" in row.name]
for call, kernel in list(zip(calls, kernels))[5:10]:  # those of the second step
    size = f"{kernel.bytes / 1e6:4.1f} MB"
    print(f"{size}: the call takes {call.us / 1000:.2f} ms, the kernel {kernel.us / 1000:.2f} ms")
print(f"median of 15 kernels: {median(k.us for k in kernels) / 1000:.2f} ms")
in_call.measured(median(c.us for c in calls) / 1000, within=0.5)

# %% [markdown]
# The host is gone after 0.3 ms, and the kernel runs for 2.5. Look at the sizes, too: 8.2 MB take about as long as 31.5 MB. A kernel of NCCL that has
# started waits *on the GPU* until its partner on the other GPU has started as well. So its time is waiting and moving in one, and only
# rank 1's recording could tell them apart.
#
# Here is the second of these all-reduces, with what is around it. The function that draws is folded up.


# %% jupyter={"source_hidden": true}
DRAWN = {"compute": "computing", "collective": "collective", "send": "launch", "wait": "in .item()"}


def look(row):
    """In which style of the course a row is drawn, if at all."""
    if row.kind == "host":
        asks = row.name.startswith(("c10d::", "nccl:", "gloo:"))
        return "collective" if asks else "wait" if row.name == "aten::item" else None
    return {"launch": "send", "copy": "compute", "step": None}.get(row.kind, row.kind)


def paint(kind):
    style = KINDS[kind]
    return {"facecolor": style.fill, "edgecolor": style.ink, "hatch": "///" if style.dash else None}


def draw(rows, start_us, end_us, text):
    """A row for each thread of the host and each stream of the GPU."""
    seen = [row for row in rows if look(row) and start_us < row.end_us and row.start_us < end_us]
    talks = {row.lane for row in seen if row.kind == "collective"}
    lanes = sorted(
        {row.lane for row in seen}, key=lambda lane: (lane in talks, lane[0] == "s", lane)
    )
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(lanes) + 1), layout="constrained")
    for kind, name in DRAWN.items():
        for place, lane in enumerate(lanes):
            own = [row for row in seen if look(row) == kind and row.lane == lane]
            least_us = (end_us - start_us) / 900  # no bar is narrower than a pixel
            bars = [(row.start_us - start_us, max(row.us, least_us)) for row in own]
            bars = [(at / 1e3, us / 1e3) for at, us in bars]
            axes.broken_barh(bars, (place - 0.36, 0.72), linewidth=0, **paint(kind))
        if kind in map(look, seen):
            axes.bar(-1, 0, label=name, linewidth=0, **paint(kind))
    names = [f"{lane}, NCCL" if lane in talks and lane[0] == "s" else lane for lane in lanes]
    axes.set(yticks=range(len(lanes)), yticklabels=names, ylim=(len(lanes) - 0.5, -0.5))
    axes.set(xlim=(0, (end_us - start_us) / 1e3), xlabel="time (ms)")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, text)


# %%
call, kernel = calls[6], kernels[6]
meanwhile = [r for r in resnet if r.kind == "launch" and call.end_us < r.start_us < kernel.end_us]
print(len(meanwhile), "launches between the end of the call and the end of the kernel")
text = "The call is a sliver. The host goes on launching while NCCL's kernel runs beside compute."
draw(resnet, call.start_us - 1000, kernel.end_us + 1000, text)

# %% [markdown]
# **Check yourself.** You read the clock before and after `dist.all_reduce(x)` on a GPU. What have you measured?
#
# <details><summary>Answer</summary>
# How long the host needs to ask for it: 0.3 ms here, with a profiler running, whatever the size. To time the all-reduce, begin with a <code>dist.barrier()</code>, so that you do not time how late the other rank is, and
# call <code>torch.cuda.synchronize()</code> before each look at the clock.
# </details>
#
# ## 2 · What `wait()` does
#
# The second training, on two V100, does by hand what chapter 05 called `PerParameter`: for each gradient one all-reduce, and `wait()` right
# after it. Here is one of them: two calls of the host, and the kernel.
#
# **Predict.** How long is the host in `wait()`, for a kernel of almost half a millisecond?

# %%
in_wait = predict("microseconds of the host in wait()", ...)

# %%
by_hand = recording("per_gradient_2xV100")
reduced = [row for row in by_hand if row.kind == "collective"]
one = next(row for row in reduced if row.bytes == 8_388_608)
(asked,) = (row for row in by_hand if row.kind == "launch" and row.launch == one.launch)
waits = [row for row in by_hand if row.name == "cudaStreamWaitEvent"]
wait = [row for row in waits if row.start_us > asked.end_us][1]  # the first belongs to the call
for row in (asked, wait, one):
    print(f"{row.lane:16}{row.name[:33]:34} from {row.start_us - asked.start_us:6.0f} µs,", end=" ")
    print(f"takes {row.us:3.0f} µs")
in_wait.measured(wait.us, within=1)

# %% [markdown]
# `wait()` comes down to `cudaStreamWaitEvent`, which takes the host about a microsecond. It puts a note into the compute stream: go no further until NCCL's kernel is
# over. The host has gone on long before that kernel even starts. So chapter 03's `wait()` holds a **rank** with gloo and a **stream** with NCCL.
#
# And the stream does wait. To see how much, we need the time in which *some* kernel runs, where those that overlap count once (`beside`, folded below).


# %% jupyter={"source_hidden": true}
def busy_us(rows):
    """The time in which at least one of the rows lasts."""
    total, until = 0.0, float("-inf")
    for row in sorted(rows, key=lambda row: row.start_us):
        total += max(0.0, row.end_us - max(row.start_us, until))
        until = max(until, row.end_us)
    return total


def beside(rows):
    """The share of communication that lies beside compute kernels."""
    compute, talk = ([r for r in rows if r.kind == kind] for kind in ("compute", "collective"))
    both_us = busy_us(compute) + busy_us(talk) - busy_us(compute + talk)
    return both_us / busy_us(talk)


# %% [markdown]
# **Predict.** How much of the communication lies beside computing in ResNet's recording, with DDP's buckets?

# %%
hidden = predict("percent of DDP's communication that lies beside compute", ...)

# %%
print(f"one by one: {len(reduced):3} all-reduces per step, {beside(by_hand):.1%} beside compute")
print(
    f"buckets:    {len(kernels) // 3:3} all-reduces per step, {beside(resnet):.1%} beside compute"
)
hidden.measured(round(100 * beside(resnet)), within=0.5)
text = "The streams take turns: NCCL's waits for a copy, and the copy after it for NCCL's sum."
draw(by_hand, one.start_us - 700, one.start_us + 1100, text)

# %% [markdown]
# One by one, nothing does, to the last microsecond. Each `wait()` costs the host next to nothing, and lets no later kernel run beside NCCL's. In the picture
# the host is 2.5 ms ahead of the GPU, so the calls in the upper row ask for kernels further right.
#
# The buckets reach 16 %, which is little. Part 4 finds out why.
#
# **Check yourself.** With gloo, chapter 03 said that `work.wait()` right after `all_reduce(..., async_op=True)` is a blocking call in two lines. And with NCCL?
#
# <details><summary>Answer</summary>
# Neither line holds the host. Together they do what a plain <code>all_reduce</code> does with NCCL: the kernels that are launched afterwards have to wait.
# </details>
#
# ## 3 · What `.item()` does
#
# The third training is a recommendation model on eight A100. Its ranks exchange rows of embedding tables by `all_to_all`, and how many come is itself a number
# on the GPU. Python needs that number, and asks `.item()` for it.
#
# **Predict.** 8 bytes are copied to the host. How long does the longest `.item()` take?

# %%
in_item = predict("microseconds of the host in the longest .item()", ...)

# %%
recommender = recording("recommender_8xA100")
items = [row for row in recommender if row.name == "aten::item"]
print("µs in .item():", *sorted(round(row.us) for row in items))
longest = max(items, key=lambda row: row.us)
talks = [row for row in recommender if row.kind == "collective" and row.end_us < longest.end_us]
last = max(talks, key=lambda row: row.end_us)
in_item.measured(longest.us, within=0.5)
print(f"the longest ends {longest.end_us - last.end_us:.0f} µs after the all-to-all before it")

# %%
text = "The host stands in .item(), and launches nothing, until NCCL's kernel is over."
draw(recommender, longest.start_us - 1300, longest.end_us + 700, text)

# %% [markdown]
# From 2 µs, in which nothing was copied from a GPU, to 4,003. The copy itself is short. But it stands in a stream behind the all-to-all, and Python
# needs its result. So here the **host** waits, and feeds the GPU no longer. `print(loss)`, `.cpu()` and `if loss > 3:` do the same.
#
# In which stream does the kernel run? The recordings are old: ResNet's names NCCL 2.17. There every collective has NCCL's stream, and the compute stream waits for it. [Since PyTorch 2.8](https://github.com/pytorch/pytorch/pull/150398) only a collective with
# `async_op=True` has it, which includes DDP's. A plain `all_reduce(x)` is put into the current stream, between the compute kernels. So what is launched later waits for the sum, then as now.
#
# | the line | gloo, on the CPU | NCCL, on a GPU |
# | --- | --- | --- |
# | `all_reduce(x)` | returns when the sum is there | launches; what the stream gets later waits for the sum |
# | `all_reduce(x, async_op=True)` | returns at once | launches; nothing waits |
# | `work.wait()` | the host waits | the stream waits, the host does not |
# | `x.item()`, `print(x)`, `x.cpu()` | nothing to wait for | the host waits for the stream |
# | `torch.cuda.synchronize()` | | the host waits for all streams |
#
# **Check yourself.** A loop prints the loss of every step. What does that cost on a GPU, and what would you do?
#
# <details><summary>Answer</summary>
# In every step the host waits until the GPU is done, and only then begins to launch the next step. Add the losses up on the GPU, and print every hundredth step.
# </details>
#
# ## 4 · Is it the network?
#
# Each moment of a step is one of three: a compute kernel runs; only NCCL runs; or no kernel runs at all. A perfect network, or perfect overlap, could save
# the second part, and hardly more.
#
# **Predict.** Which of the three takes the most time in ResNet's steps?

# %%
largest = predict("in DDP's step most time goes to", ..., choices=("compute", "NCCL", "neither"))


# %% jupyter={"source_hidden": true}
def parts(rows):
    """The shares of the steps: compute runs, only communication runs, neither runs."""
    step_us = sum(row.us for row in rows if row.kind == "step")
    compute = [row for row in rows if row.kind == "compute"]
    talk = [row for row in rows if row.kind == "collective"]
    compute_us, any_us = busy_us(compute), busy_us(compute + talk)
    return compute_us / step_us, (any_us - compute_us) / step_us, 1 - any_us / step_us


# %%
trainings = {"one by one": by_hand, "buckets": resnet, "recommender": recommender}
print("             ms/step  MB/step   compute  only NCCL  neither  beside")
for name, rows in trainings.items():
    steps = [row.us for row in rows if row.kind == "step"]
    sent_mb = sum(row.bytes for row in rows if row.kind == "collective") / len(steps) / 1e6
    shares = "{:10.0%}{:11.0%}{:9.0%}".format(*parts(rows))
    print(f"{name:12}{sum(steps) / len(steps) / 1e3:8.1f}{sent_mb:9.0f}{shares}{beside(rows):8.0%}")
shares = dict(zip(("compute", "NCCL", "neither"), parts(resnet)))
largest.measured(max(shares, key=shares.get))

# %% [markdown]
# It is the network in none of them. The recommender moves 844 MB per step, and computes beside half of it. With one all-reduce per gradient, 17 % go to NCCL alone. And DDP on two A100? Its compute stream is idle for 83 % of the time, and 6 % is all that a perfect network could save. One step of each, cut into 75 parts:


# %% jupyter={"source_hidden": true}
def within(rows, start_us, end_us):
    """What of the rows lies between two moments."""
    for row in rows:
        begin_us, over_us = max(row.start_us, start_us), min(row.end_us, end_us)
        if begin_us < over_us:
            yield row._replace(start_us=begin_us, us=over_us - begin_us)


# %% jupyter={"source_hidden": true}
figure, panels = plt.subplots(3, 1, figsize=(9, 4.6), layout="constrained")
for axes, (name, rows) in zip(panels, trainings.items()):
    step = [row for row in rows if row.kind == "step"][-1]
    cut_us = step.us / 75
    starts_us = [step.start_us + cut_us * k for k in range(75)]
    shares = [parts(list(within(rows, start, start + cut_us))) for start in starts_us]
    compute, only, _ = (100 * np.array(column) for column in zip(*shares))
    where = {"x": np.arange(75) * cut_us / 1e3, "width": cut_us / 1e3, "align": "edge"}
    axes.bar(height=compute, label="computing", linewidth=0, **where, **paint("compute"))
    axes.bar(
        height=only, bottom=compute, label="only NCCL", linewidth=0, **where, **paint("collective")
    )
    axes.set(ylabel=f"{name}\n(%)", ylim=(0, 100), xlim=(0, step.us / 1e3))
panels[0].legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False)
panels[2].set(xlabel="time since the step began (ms), each axis its own")
show(figure, "One step of each training: white is time without a kernel; copies count as white.")

# %% [markdown]
# Above, the all-reduces begin when backward is over: nothing is left to hide them behind, whatever `wait()` does. In the middle, most of the step is empty, with
# NCCL and without. Below, the GPU has something to do most of the time.
#
# **Check yourself.** Only 16 % of ResNet's communication lies beside compute kernels. Would larger buckets help?
#
# <details><summary>Answer</summary>
# No. Little can lie beside compute where there is little compute to lie beside: it fills 17 % of the time.
# </details>
#
# ## 5 · Who keeps the GPU idle?
#
# A kernel starts when it has been launched *and* its stream has got to it. If the GPU has much to do, kernels queue up. If it waits for its host, each one
# starts as soon as it is launched.
#
# How long after its launch does a compute kernel start, in the middle: microseconds, or milliseconds?

# %%
for name, rows in trainings.items():
    asked = {row.launch: row for row in rows if row.kind == "launch"}
    compute = [row for row in rows if row.kind == "compute"]
    delays_us = [row.start_us - asked[row.launch].end_us for row in compute]
    at_once = sum(delay < 10 for delay in delays_us) / len(delays_us)
    print(f"{name:12} median {median(delays_us):5.0f} µs, {at_once:4.0%} start within 10 µs")

# %% [markdown]
# ResNet's kernels start after 2 µs: the queue is empty, and the GPU waits for its **host**. The recommender's host is 0.7 ms ahead. But a profiler was
# running, and it works on the host. How much of this is the profiler's own doing?
#
# `aten::view` is a good probe. It moves no byte and launches nothing. The control is the launch itself, which is CUDA's work: a host that is slow as
# such would be slow at both.

# %%
view_us = {}
for name, rows in trainings.items():
    view_us[name] = median(row.us for row in rows if row.name == "aten::view")
    launch_us = median(row.us for row in rows if row.name == "cudaLaunchKernel")
    print(f"{name:12} a view {view_us[name]:4.1f} µs, a launch {launch_us:4.1f} µs")
operators = sum(row.kind == "host" and "::" in row.name for row in resnet) / 3
excess_us = view_us["buckets"] - view_us["recommender"]
print(
    f"ResNet: {operators:,.0f} operators per step, each perhaps {excess_us:.1f} µs too long,",
    end=" ",
)
print(f"together {operators * excess_us / 1e3:.0f} ms")
step_us = sum(row.us for row in resnet if row.kind == "step") / 3
share = parts(resnet)[0] * step_us / (step_us - operators * excess_us)
print(f"Without them, computing would fill {share:.0%} of a step.")

# %% [markdown]
# The same view takes 23 µs in one recording and 1 µs in another, while a launch differs by less than two. So most of those 23 µs are probably the recording's. If
# each operator of ResNet is 21.6 µs too long, 96 of the 222 ms per step are the profiler's own. That is an estimate, and it does not
# change the answer: without them computing would fill 30 % of a step, and the host would still set the pace.
#
# What the file cannot say: how long a step takes when nobody looks. For that one times the training without a profiler, as you do next.
#
# **Check yourself.** What would make this training faster: a faster network, a faster GPU, or fewer and larger launches?
#
# <details><summary>Answer</summary>
# Fewer launches: <code>torch.compile</code> and CUDA graphs do that, and larger batches give each launch more to do. A faster GPU would only be idle for longer.
# </details>
#
# ## 6 · Your own ranks
#
# On the CPU, gloo's `async_op=True` is what resembles NCCL: a thread of gloo works, and your line goes on. Chapter 03 proved it without a clock: rank 1 joins
# only after rank 0 has told it that its own call is over. Here it is again, together with the control that was missing there, a plain `all_reduce`.
#
# **Predict.** Both ranks bring ones. What does rank 0 see in `x` before `wait()`? And think of what happens without `async_op`.

# %%
seen = predict("rank 0 sees in x before wait()", ...)


# %%
def joins_late(async_op):
    x, told = torch.ones(1_000_000), torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(told, src=0)
    work = dist.all_reduce(x, async_op=async_op)
    before = x[0].item()
    if dist.get_rank() == 0:
        dist.send(told, dst=1)
    if work:
        work.wait()
    return before, x[0].item()


# %%
before, after = launch(joins_late, True, backend="gloo")[0]
seen.measured(before)
print(f"after it: {after:.0f}")

# %% [markdown]
# The call was over before the other rank had even begun. Now the control. It is meant to fail.

# %% tags=["raises-exception"]
launch(joins_late, False, backend="gloo", timeout=5)

# %% [markdown]
# Rank 0 is *waiting in all_reduce*, on the host, for a rank that is *waiting in recv* for its word. That is gloo's plain all-reduce. With NCCL the host would
# go on after this line as well.
#
# Now record your own ranks. `torch.profiler` goes around the steps; `record_function` gives a name to a part. From what it found we make rows like those of the
# GPUs. On a CPU the operators do the computing themselves, and gloo's threads take the place of NCCL's stream.


# %%
def steps(count):
    torch.manual_seed(0)
    network = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
    model, images = DistributedDataParallel(network, bucket_cap_mb=4), torch.randn(128, 512)
    for _ in range(count):
        with record_function("step"):
            model(images).square().mean().backward()
        yield


def recorded(count=3):
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorder:
        for _ in steps(count):
            pass
    return [as_row(event) for event in recorder.events()]


# %% [markdown]
# An event that is `is_async` went on after its call had returned. Here these are gloo's, and they say the shape of what was sent, in `float32`.


# %%
def as_row(event):
    kind = "collective" if event.is_async else "step" if event.name == "step" else "host"
    kind = "compute" if event.name.startswith("aten::") else kind
    numbers = sum(torch.Size(shape).numel() for shape in event.input_shapes if event.is_async)
    lane = "gloo's threads" if event.is_async else "the rank's thread"
    span = event.time_range
    return Row(kind, event.name, lane, span.start, span.elapsed_us(), 4 * numbers, 0)


# %% [markdown]
# The gradients are 8.4 MB, and buckets close at 4 MB. How many all-reduces does each of the three steps have?

# %%
mine = launch(recorded, backend="gloo")[0]
for number, step in enumerate(row for row in mine if row.kind == "step"):
    inside = [row for row in mine if step.start_us <= row.start_us < step.end_us]
    found = [row.bytes for row in inside if row.name == "gloo:all_reduce"]
    print(f"step {number}: {len(found)} all-reduces, of", *(f"{size:,}" for size in found), "bytes")
print(f"beside computing: about {beside(mine):.0%}")

# %%
last_step = [row for row in mine if row.kind == "step"][-1]
text = "Your rank 0, third step: backward computes and calls; gloo's threads carry it out."
draw(mine, last_step.start_us, last_step.end_us, text)

# %% [markdown]
# The first step has one bucket, as chapter 05 told; then DDP knows in which order gradients arrive. In the upper row you see the two calls, and below them their work:
# what you saw of the A100, on your machine. On GPUs add `ProfilerActivity.CUDA`. `recorder.export_chrome_trace("trace.json")` writes a file that
# [Perfetto](https://ui.perfetto.dev) shows; the three recordings were such files.
#
# And what does looking cost? Each step once with a profiler and once without, in turn, and the medians compared. Beside it, the probe of part 5.


# %% jupyter={"source_hidden": true}
def cost(turns=15, views=2_000):
    took, x, training = {False: [], True: []}, torch.ones(4), steps(2 * turns + 2)
    next(training), next(training)  # warm up
    for turn in range(2 * turns):
        watched = turn % 2 == 1
        with profile(activities=[ProfilerActivity.CPU]) if watched else nullcontext():
            begun = time.perf_counter()
            next(training)
            between = time.perf_counter()
            for _ in range(views):
                x.view(2, 2)
            ended = time.perf_counter()
        took[watched].append((between - begun, (ended - between) / views))
    return {watched: [median(each) for each in zip(*both)] for watched, both in took.items()}


# %%
costs = launch(cost, backend="gloo")[0]
(step_s, view_s), watched = costs[False], costs[True]
print(
    f"a step: about {1e3 * step_s:.1f} ms, recorded about {watched[0] / step_s:.2f} times as long"
)
print(
    f"a view: about {1e6 * view_s:.1f} µs, recorded about {watched[1] / view_s:.2f} times as long"
)

# %% [markdown]
# Recording makes each operator a little longer, which shows most in tiny ones, such as a view. What it does to a whole step this cell cannot say exactly: the two ranks share your machine with all else that runs there,
# and the number changes from run to run. On GPUs the profiler also listens to each call of CUDA, and it can be asked for shapes, stacks and memory: what it costs here says little about what it cost
# there. A recording shows faithfully who waits for whom. How *long* a step takes, ask a run without it.
#
# With two GPUs, here is the table of part 3, on your own clock.


# %% jupyter={"source_hidden": true}
def on_gpus(size_mb=256):
    x, at_ms = torch.ones(size_mb * 2**18, device="cuda"), []
    dist.all_reduce(x)  # the first one makes the connections
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work = dist.all_reduce(x, async_op=True)
    for wait in (lambda: None, work.wait, torch.cuda.synchronize):
        wait()
        at_ms.append(1e3 * (time.perf_counter() - begun))
    return at_ms


# %% tags=["nbval-ignore-output"]
if len(hardware().gpus) < 2:
    print("fewer than two GPUs here: the three recordings stand in for them")
else:
    for what, ms in zip(("all_reduce", "wait()", "synchronize()"), launch(on_gpus)[0]):
        print(f"{what:14} is over after {ms:.2f} ms")

# %% [markdown]
# ## What you know now

# %%
predict()

# %% [markdown]
# Compare two of these with your own guess. `wait()` does not wait, on the host: it takes a microsecond, and the kernel almost half a millisecond. And most of DDP's step goes to neither
# computing nor NCCL.
#
# On a GPU the host launches and streams wait. A collective costs the host no more than the asking for it, its `wait()` a microsecond, and both order streams; `.item()` and `synchronize()` stop
# the host itself. Before you blame the network, look at what computes beside NCCL, and at what the host does while no kernel runs. And do not forget that a profiler
# takes part in what it records.
#
# Next: [06 · What communication costs](06_what_communication_costs.ipynb).
#
# *Sources.* The recordings: Holistic Trace Analysis, Meta, MIT license; `course_material/recordings/README.md` says which they are and how they were made smaller.
# [PyTorch: CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html) on asynchronous execution, and
# [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html) on synchronous and asynchronous collectives.
