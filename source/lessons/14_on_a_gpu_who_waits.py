# %% [markdown]
# # 14 · On a GPU: who waits?
#
# **A training on two GPUs is slow, and somebody blames the network. How do you find out whether that's true?**
#
# In 80 minutes you will be able to
#
# 1. say which lines of a training loop hold up Python, which hold up only the GPU, and which hold up nothing;
# 2. measure in a recording how much communication is exposed, and which call blocks the host;
# 3. tell whether network, GPU or host sets the pace, and how far to trust that;
# 4. record your own ranks with `torch.profiler`.
#
# **Hardware:** any computer: recordings of real GPUs come with the course. With a GPU of your own three more cells run. **Before:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb).
# **Next:** [17 · Cut the layer](17_cut_the_layer.ipynb), or, if this was your side trip after 05, [06 · What communication costs](06_what_communication_costs.ipynb).
# **Lab:** [14 · On a GPU: who waits?](../exercises/14_on_a_gpu_who_waits.ipynb)

# %% jupyter={"source_hidden": true}
import os

os.environ["KINETO_LOG_LEVEL"] = "99"  # no remarks of the profiler's own; read once, by torch
import time
from collections import Counter
from contextlib import nullcontext
from statistics import median

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from course_lessons import chapter_14
from course_lessons import chapter_14_pictures as pictures
from course_material.recordings import Row, recording
from course_utils import check, hardware, launch, plot_timeline, predict, show

# %% [markdown]
# ## 1 · A recording
#
# A **kernel** is a function that runs on the GPU. Kernels wait in **streams**, which are queues: the GPU works through each of them in order. The **host**, which is your Python process, puts kernels into the queues. That is called a
# **launch**. NCCL's all-reduce is such a kernel, too.
#
# Here are three steps of ResNet-50 under DDP on two A100s, seen from rank 0.

# %%
resnet = recording("resnet50_2xA100")
counts = Counter((row.lane, row.kind) for row in resnet)
pictures.draw_counts(counts)

# %% [markdown]
# The host has two threads here: Python's own, and autograd's, which runs backward. Together they launch 3,774 times. Stream 7 computes, and stream 40 is NCCL's: in three
# steps, 15 all-reduces of gradients and 6 broadcasts of buffers. This is what a row looks like. A kernel and the host's call that launched it share the number `launch`:

# %%
print(next(row for row in resnet if row.kind == "collective"))

# %% [markdown]
# The name `ncclKernel_...` shows how old this recording is: it was made with NCCL 2.17.1, and NCCL 2.30 says `ncclDevKernel_...`. All recordings here are older than PyTorch 2.8. Meta published them as test
# data of [Holistic Trace Analysis](https://github.com/facebookresearch/HolisticTraceAnalysis) (MIT license).
#
# **Predict.** In these three steps DDP calls `all_reduce` 15 times, for buckets of 8 to 31.5 MB. How long does the host stay in such a call? We take the median.

# %%
in_call = predict("milliseconds of the host in a call of all_reduce", ...)

# %%
calls = [row for row in resnet if row.name == "c10d::allreduce_"]
kernels = [row for row in resnet if row.kind == "collective" and "AllReduce" in row.name]
in_call.measured(median(c.us for c in calls) / 1000, within=0.5)
pictures.draw_calls_and_kernels(calls, kernels)

# %% [markdown]
# The call is over after 0.3 ms, while the median kernel runs for 2.5 ms. And 8.2 MB take about as long as 31.5 MB, so it isn't only the bytes that take time. A kernel of NCCL that has started waits *on the GPU* until its
# partner on the other GPU has started as well. So its time includes both the waiting and the moving of bytes. Which part is which we can't tell here, since only rank 0 was recorded.

# %% [markdown]
# Here is the second all-reduce of the second step, with what's around it. The call is the short striped block of the autograd thread, and the kernel is the long one below.

# %%
call, kernel = calls[6], kernels[6]
meanwhile = [r for r in resnet if r.kind == "launch" and call.end_us < r.start_us < kernel.end_us]
print(len(meanwhile), "launches between the end of the call and the end of the kernel")
text = "The call ends soon. NCCL's kernel runs on next to compute, and the host goes on launching."
chapter_14.draw_lanes(resnet, call.start_us - 1000, kernel.end_us + 1000, text)

# %% [markdown]
# **Check yourself.** You read the clock before and after `dist.all_reduce(x)` on a GPU. What have you measured?
#
# <details><summary>Answer</summary>
# How long the host needs to ask for it. To time the all-reduce itself, call <code>dist.barrier()</code> first, so that you don't time how late the other rank is, and
# <code>torch.cuda.synchronize()</code> before each look at the clock.
# </details>

# %% [markdown]
# ## 2 · What `wait()` does
#
# The second recording is of a training on two V100s. It does by hand what chapter 05 called `PerParameter`: one all-reduce for each gradient, and `wait()` right
# after it.
#
# **Predict.** The kernel of one of them runs for almost half a millisecond. How long is the host in `wait()`?

# %%
in_wait = predict("microseconds of the host in wait()", ...)

# %%
by_hand = recording("per_gradient_2xV100")
reduced = [row for row in by_hand if row.kind == "collective"]
kernel = next(row for row in reduced if row.bytes == 8_388_608)
asked = next(row for row in by_hand if row.kind == "launch" and row.launch == kernel.launch)
waits = [row for row in by_hand if row.name == "cudaStreamWaitEvent"]
later = [row for row in waits if row.start_us > asked.end_us]
wait = later[1]  # all_reduce itself makes the first one, wait() the second
for row in (asked, wait, kernel):
    print(f"{row.lane:16}{row.name[:33]:34} from {row.start_us - asked.start_us:6.0f} µs,", end=" ")
    print(f"takes {row.us:3.0f} µs")
in_wait.measured(wait.us, within=1)

# %% [markdown]
# `wait()` comes down to `cudaStreamWaitEvent`, which takes the host about a microsecond. It tells the compute stream not to go on until an **event** in NCCL's stream has been reached: the end of the kernel.
# The host has moved on long before that kernel even starts.

# %%
text = "The arrow leads from the launch to its kernel. Which calls does the host make meanwhile?"
begin_us, end_us = kernel.start_us - 2700, kernel.start_us + 800
chapter_14.draw_lanes(by_hand, begin_us, end_us, text, launched=(asked, kernel))

# %% [markdown]
# The host is 2.5 ms ahead of the GPU here. While the kernel waits for its turn, the host asks for the next sums. And the streams take turns: NCCL's stream waits for a copy, and the next copy waits for NCCL's sum. In short, chapter 03's `wait()` holds up a **rank** with gloo, and a **stream** with NCCL.

# %% [markdown]
# **Check yourself.** With gloo, chapter 03 said that `work.wait()` right after `all_reduce(..., async_op=True)` is a blocking call in two lines. And with NCCL?
#
# <details><summary>Answer</summary>
# Neither line holds up the host. Together they do what a plain <code>all_reduce</code> does with NCCL: kernels that are launched afterwards have to wait.
# </details>

# %% [markdown]
# ## 3 · Write it: exposed communication
#
# Communication is **exposed** while a collective's kernel runs and no compute kernel does. Only that part could be saved by a faster network or by better overlap.
#
# **Write** (10 minutes) a function that returns a recording's exposed milliseconds. Kernels of different streams can overlap; count such a time only once. Copies don't matter here.


# %%
def exposed_ms(rows):
    # row.kind is "compute" or "collective"; each row has start_us, end_us and us
    raise NotImplementedError("about 10 lines")


# %%
check(exposed_ms, **chapter_14.EXPOSED)

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# First write a stopwatch: given some rows, in how many microseconds does at least one of them last?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Go through the rows in the order of their starts, and remember up to which moment time is counted already. Exposed is what the stopwatch says of all
# kernels together, minus what it says of the compute kernels.
# </details>
# <details><summary>Our answer</summary>
# <pre>
# def covered_us(rows):
#     total_us, counted_until_us = 0, float("-inf")
#     for row in sorted(rows, key=lambda row: row.start_us):
#         begins_us = max(row.start_us, counted_until_us)
#         total_us += max(0, row.end_us - begins_us)
#         counted_until_us = max(counted_until_us, row.end_us)
#     return total_us
#
# def exposed_ms(rows):
#     compute = [row for row in rows if row.kind == "compute"]
#     collectives = [row for row in rows if row.kind == "collective"]
#     return (covered_us(compute + collectives) - covered_us(compute)) / 1000
# </pre>
# </details>

# %% [markdown]
# The third recording is a recommendation model on eight A100s, whose ranks exchange rows of embedding tables by `all_to_all`. Here is one step of each training, cut into 75 parts. *Your* function says how much of each part is exposed:

# %%
recommender = recording("recommender_8xA100")
trainings = {"one by one": by_hand, "buckets": resnet, "recommender": recommender}
chapter_14.draw_exposed(exposed_ms, trainings)

# %% [markdown]
# And how much of the communication is hidden behind computing? It's 1 minus the exposed time divided by the time of all communication:

# %%
pictures.draw_hidden(trainings)

# %% [markdown]
# One by one, nothing is hidden. That's no wonder: each `wait()` keeps every later kernel from running next to NCCL's. DDP's buckets hide 16 %, which isn't much. Part 5 finds out why, and gives a second reason for the first training.

# %% [markdown]
# ## 4 · What `.item()` does
#
# How many rows the recommender's ranks exchange is itself a number on the GPU. Python needs it to allocate memory, and asks for it with `.item()`.
#
# **Predict.** 8 bytes are copied to the host. How long does the longest `.item()` take?

# %%
in_item = predict("microseconds of the host in the longest .item()", ...)

# %%
items = [row for row in recommender if row.name == "aten::item"]
print("µs in .item():", *sorted(round(row.us) for row in items))
longest = max(items, key=lambda row: row.us)
in_item.measured(longest.us, within=0.5)

# %%
text = "The host stays in .item(), and launches nothing, until NCCL's kernel is over."
chapter_14.draw_lanes(recommender, longest.start_us - 1300, longest.end_us + 700, text)

# %% [markdown]
# The calls took between 2 µs, when nothing had to come from the GPU, and 4,003 µs. The copy itself is short, but it's queued behind the all-to-all. `print(loss)`, `.cpu()` and `if loss > 3:` do the same.

# %% [markdown]
# ### Write it: the call that blocks
#
# *5 minutes.* `.item()` is torch's; what waits is a call of CUDA's inside it. Find the longest such call: its name begins with `cuda`, and it lies within an `aten::item` of the *same*
# thread (`row.lane`). Return its name and its microseconds, or `None` if there's no such call.


# %%
def blocked_in_item(rows):
    # row.name, row.lane, row.start_us, row.end_us, row.us
    raise NotImplementedError("about 12 lines")


# %%
check(blocked_in_item, **chapter_14.BLOCKED)

# %% [markdown]
# <details><summary>Hint</summary>
# A call lies within an <code>.item()</code> if it doesn't start before it and doesn't end after it. The longest <code>.item()</code> need not be the one that waits for a GPU.
# </details>
# <details><summary>Our answer</summary>
# <pre>
# def blocked_in_item(rows):
#     items = [row for row in rows if row.name == "aten::item"]
#     calls = [row for row in rows if row.name.startswith("cuda")]
#     longest = None
#     for item in items:
#         for call in calls:
#             inside = item.start_us <= call.start_us and call.end_us <= item.end_us
#             if not inside or call.lane != item.lane:
#                 continue
#             if longest is None or call.us > longest.us:
#                 longest = call
#     if longest is None:
#         return None
#     return longest.name, longest.us
# </pre>
# </details>

# %% [markdown]
# Which call is it here? These are all that the longest `.item()` contains. What *your* function names is marked:

# %%
pictures.draw_inside(recommender, longest, blocked_in_item)

# %% [markdown]
# It is `cudaMemcpyAsync`, of all names. A copy to ordinary (*pageable*) memory of the host [returns only when it's complete](https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html), and
# `cudaStreamSynchronize` then has nothing left to wait for. So don't search a trace for "synchronize" alone. Today's
# `.item()` [copies to pinned memory](https://github.com/pytorch/pytorch/pull/119202), and such a call returns before the copy is complete. So there `cudaStreamSynchronize` is the call that takes long.

# %% [markdown]
# ### Which stream, today?
#
# In these recordings every collective runs in a stream of NCCL's own. [Since PyTorch 2.8](https://github.com/pytorch/pytorch/pull/150398) only a collective with `async_op=True` does, which includes DDP's. A plain
# `all_reduce(x)` is launched on the current stream, between the compute kernels. In both cases, kernels that are launched after a plain call wait for its sum.

# %% [markdown]
# | the line | gloo, on the CPU | NCCL, on a GPU |
# | --- | --- | --- |
# | `all_reduce(x)` | returns when the sum is there | launches on the current stream (before 2.8: on NCCL's); later kernels wait |
# | `all_reduce(x, async_op=True)` | returns at once | launches on NCCL's stream, which waits for the kernels before it; the host and the current stream go on |
# | `work.wait()` | the host waits | the current stream waits, the host doesn't |
# | `x.item()`, `print(x)`, `x.cpu()` | nothing waits; before `work.wait()` you may read the old number | the host waits for the current stream, which knows of the sum only after `work.wait()` |
# | `torch.cuda.synchronize()` | | the host waits for all streams |
# | `dist.barrier()` | the host waits | [the host waits, for the barrier](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier) |

# %% [markdown]
# **Check yourself.** A loop prints the loss of every step. What does that cost on a GPU, and what would you do?
#
# <details><summary>Answer</summary>
# In every step the host waits until the GPU is done, and only then begins to launch the next step. Add up the losses on the GPU, and print every hundredth step.
# </details>

# %% [markdown]
# ## 5 · Is it the network?
#
# At each moment of a step, one of four things is true: a compute kernel runs, or only NCCL's kernel does, or only a copy, or nothing. A perfect network, or perfect overlap, could save the time of the second, and hardly more.
#
# **Predict.** Which of them takes the most time in ResNet's steps?

# %%
choices = ("compute", "only NCCL", "only copies", "nothing")
largest = predict("in DDP's step most time goes to", ..., choices=choices)

# %%
parts = chapter_14.shares(resnet)
largest.measured(max(parts, key=parts.get))
pictures.draw_shares(trainings)

# %% [markdown]
# In none of the three trainings does NCCL alone take the most time. With one all-reduce per gradient it takes 17 %, and the GPU has nothing to do for 46 %. With DDP's buckets, 6 % is all that a perfect network could save: most of the time, the GPU has nothing to do.
# Only in the recommender is it the largest loss: 17.5 % of the time, a little more than the 16.5 % in which the GPU has nothing to do. There a faster network, or better overlap, is worth a try.

# %%
text = "One step of each training, in 75 parts. White is time in which the GPU has nothing to do."
chapter_14.draw_steps(trainings, text)

# %% [markdown]
# At the top, the all-reduces begin when the GPU has almost nothing left to compute. Only the optimiser's step is still to come, at the right, and it needs their sums. So even without `wait()`, there would be hardly anything to hide them behind. In the middle, most of the step is empty, and not only around the all-reduces. At the bottom, the GPU has something to do most of the time.

# %% [markdown]
# **Check yourself.** Only 16 % of ResNet's communication is hidden. Would larger buckets help?
#
# <details><summary>Answer</summary>
# No. There's little computing to hide it behind: compute kernels fill only 17 % of the time.
# </details>

# %% [markdown]
# ## 6 · Who keeps the GPU idle?
#
# A kernel starts when it has been launched *and* its stream has got to it. If the GPU has much to do, kernels queue up. If it waits for its host, each one
# starts as soon as it's launched. Here is how long after its launch each compute kernel starts:

# %%
for name, rows in trainings.items():
    delays_us = chapter_14.launch_delays_us(rows)
    at_once = sum(delay < 10 for delay in delays_us) / len(delays_us)
    print(f"{name:12} median {median(delays_us):5.0f} µs, {at_once:4.0%} start within 10 µs")

# %%
text = "Half of ResNet's kernels start within 2 µs, half of the recommender's after 0.7 ms or more."
show(chapter_14.figure_of_delays(trainings), text)

# %% [markdown]
# Half of ResNet's kernels start within 2 µs of their launch: the queue is empty, and the GPU waits for its **host**. In the training one by one, the same holds for half of the kernels. The recommender's host is 0.7 ms ahead. But a profiler was running, and it works on the host. How much of this is the profiler's own doing?

# %% [markdown]
# `aten::view` is a good probe, because it moves no byte and launches nothing. As a control we take the launch itself, which is CUDA's work. If the host were simply slow, it would be slow at
# both.

# %%
view_us, launch_us = {}, {}
for name, rows in trainings.items():
    view_us[name] = median(row.us for row in rows if row.name == "aten::view")
    launch_us[name] = median(row.us for row in rows if row.name == "cudaLaunchKernel")
pictures.draw_probe(view_us, launch_us)

# %% [markdown]
# The same view takes 23 µs in one recording and 1 µs in a different one, while a launch differs by less than a factor of two. So most of those 23 µs are probably due to the recording. Let's estimate: what if each of ResNet's operators were that much shorter? (An operator that's called by a different one counts as well, since it's recorded by itself. That it loses as much
# time as a view is our assumption.)

# %%
operators = sum(row.kind == "host" and "::" in row.name for row in resnet) / 3
excess_us = view_us["buckets"] - view_us["recommender"]
saved_us = operators * excess_us
step_us = sum(row.us for row in resnet if row.kind == "step") / 3
share = parts["compute"] * step_us / (step_us - saved_us)
print(
    f"{operators:,.0f} operators, each {excess_us:.1f} µs too long: {saved_us / 1e3:.0f} ms",
    end=" ",
)
print(f"of {step_us / 1e3:.0f}. Without them, computing would fill {share:.0%} of a step.")

# %% [markdown]
# That doesn't change the answer: the host would still set the pace. But no recording can say how long a step takes when nobody is recording. To find out, time the training without a profiler.

# %% [markdown]
# **Check yourself.** What would make this training faster: a faster network, a faster GPU, or fewer and larger launches?
#
# <details><summary>Answer</summary>
# Fewer launches: <code>torch.compile</code> and <a href="https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs">CUDA graphs</a> do that, and larger batches give each launch more to do. A faster GPU would only be idle for longer.
# </details>

# %% [markdown]
# ## 7 · Your own ranks
#
# On the CPU, gloo with `async_op=True` is most like NCCL: one of gloo's threads does the work, and your program goes on. In `joins_late`, rank 0 sends a message when its call of `all_reduce` is over. Rank 1 calls `all_reduce` only after it has received that message.


# %%
def joins_late(async_op):
    x, word = torch.ones(1_000_000), torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(word, src=0)
    work = dist.all_reduce(x, async_op=async_op)
    before = x[0].item()
    if dist.get_rank() == 0:
        dist.send(word, dst=1)
    if work:
        work.wait()
    return before, x[0].item()


# %% [markdown]
# **Predict.** Both ranks bring ones, and `async_op` is true. What does rank 0 see in `x` before `wait()`? And what will happen without `async_op`?

# %%
seen = predict("rank 0 sees in x before wait()", ...)

# %%
results = launch(joins_late, True, backend="gloo", trace=True)
before, after = results[0]
seen.measured(before)
print(f"after it: {after:.0f}")
plot_timeline(results.trace)

# %% [markdown]
# The call was over before the other rank had even begun. In the picture, rank 0's call is over by the time its send begins. The long bar is the work of the all-reduce, which goes on in gloo's thread. Now the control, without `async_op`. It is meant to fail.

# %% tags=["raises-exception"]
launch(joins_late, False, backend="gloo", timeout=5)

# %% [markdown]
# Rank 0 is *waiting in all_reduce*, on the host, for a rank that is *waiting in recv* for its word. That's gloo's plain all-reduce. With NCCL, a collective [doesn't hold up the host](https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations), once NCCL has connected the ranks (in the first collective, it waits for all of them). So the host would stop later, at `.item()`: the same hang, shown in a different line.

# %% [markdown]
# ### Record them
#
# You put `profile` around the steps, and `record_function` gives a name to a part of them. On GPUs, add `ProfilerActivity.CUDA`.


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
# We make rows like those of the GPUs. On a CPU the operators do the computing themselves, and gloo's threads take the place of NCCL's stream. An event whose `is_async` is true went on after its call had returned. Here, these are gloo's collectives.


# %%
def as_row(event):
    kind, lane, size = "host", "the rank's thread", 0
    if event.name == "step":
        kind = "step"
    if event.name.startswith("aten::"):
        kind = "compute"
    if event.is_async:
        kind, lane = "collective", "gloo's threads"
        size = 4 * sum(torch.Size(shape).numel() for shape in event.input_shapes)  # float32
    span = event.time_range
    return Row(kind, event.name, lane, span.start, span.elapsed_us(), size, 0)


# %% [markdown]
# **Predict.** The gradients are 8.4 MB, and buckets close at 4 MB. How many all-reduces does each of the three steps have?

# %%
in_steps = predict("all-reduces in the first, second and third step", ..., count=3)

# %%
own_rows = launch(recorded, backend="gloo")[0]
step_rows = [row for row in own_rows if row.kind == "step"]
counted = []
for number, step in enumerate(step_rows):
    inside = [row for row in own_rows if step.start_us <= row.start_us < step.end_us]
    sizes = [row.bytes for row in inside if row.name == "gloo:all_reduce"]
    counted.append(len(sizes))
    print(f"step {number}, bytes in each all-reduce:", *(f"{size:,}" for size in sizes))
in_steps.measured(counted)

# %%
hidden = chapter_14.share_hidden(own_rows)
print(f"hidden behind computing, in all three steps: about {hidden:.0%}")
text = "Your rank 0, third step: backward computes and calls; gloo's threads carry it out."
chapter_14.draw_lanes(own_rows, step_rows[-1].start_us, step_rows[-1].end_us, text)

# %% [markdown]
# The first step has one bucket, as chapter 05 showed; then DDP knows in which order gradients arrive. `recorder.export_chrome_trace("trace.json")` writes a file that
# [Perfetto](https://ui.perfetto.dev) shows; our three recordings come from such files. Your `exposed_ms` also takes the rows made here.

# %% [markdown]
# And what does recording cost? We time the probe of part 6 in one rank, by turns without a profiler and with one:


# %%
def cost(turns=15, views=2_000):
    took_s, x = {False: [], True: []}, torch.ones(4)
    for turn in range(2 * turns):
        watched = turn % 2 == 1
        with profile(activities=[ProfilerActivity.CPU]) if watched else nullcontext():
            begun = time.perf_counter()
            for _ in range(views):
                x.view(2, 2)
            took_s[watched].append((time.perf_counter() - begun) / views)
    return took_s


pictures.draw_watched(launch(cost, world_size=1, backend="gloo")[0])

# %% [markdown]
# So take from a recording *which call waits for which*: that follows from streams and launches, and a profiler doesn't change it. But a profiler slows down the host, so it changes how *long* each wait is, and perhaps even who sets the pace. To learn how long a step takes, ask a run without a profiler. On GPUs the profiler also listens to each call of CUDA, and it can be asked for shapes, stacks and memory, so its cost there is different.

# %% [markdown]
# ## 8 · On your own GPUs
#
# A pair of **events** times what lies between them *in the stream*, while `perf_counter` times the host. Here are ten products of matrices on one GPU:


# %%
def products(size=4096):
    x = torch.randn(size, size, device="cuda")
    x @ x  # the first one loads libraries
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun = time.perf_counter()
    first.record()
    for _ in range(10):
        x @ x
    last.record()
    launched_ms = 1e3 * (time.perf_counter() - begun)
    last.synchronize()
    return launched_ms, first.elapsed_time(last)


# %% tags=["nbval-ignore-output"]
gpus = len(hardware().gpus)
if gpus < 1:
    print("no GPU here: this would print how long ten launches take, and how long their kernels.")
else:
    launched_ms, ran_ms = launch(products, world_size=1, device="cuda")[0]
    print(f"ten launches: {launched_ms:.2f} ms; ten kernels: {ran_ms:.2f} ms")

# %% [markdown]
# Two ranks can share that GPU if they use gloo. It takes tensors on a GPU as well: it copies them to the host and back. How much of the table's column for gloo is still true on a GPU?
#
# <details><summary>Answer</summary>
# Almost all of it. A plain <code>all_reduce</code> and <code>work.wait()</code> hold up the host until gloo has the sum, and with <code>async_op=True</code> the call returns early. But the sum then still has to be copied back to the GPU.
# The current stream waits for that copy, and so does the host in <code>x.item()</code> or <code>torch.cuda.synchronize()</code>.
# </details>


# %%
def all_reduce_times(size_mb=64):
    device = torch.device("cuda", torch.cuda.current_device())
    x = torch.ones(size_mb * 2**18, device=device)
    dist.all_reduce(x)  # the first one makes the connections
    torch.cuda.synchronize()
    dist.barrier()
    at_ms = []
    begun = time.perf_counter()
    work = dist.all_reduce(x, async_op=True)
    for wait in (lambda: None, work.wait, torch.cuda.synchronize):
        wait()
        at_ms.append(1e3 * (time.perf_counter() - begun))
    return at_ms


# %% tags=["nbval-ignore-output"]
if gpus < 1:
    print(
        "no GPU here: this would print when gloo's all_reduce, wait() and synchronize() are over."
    )
else:
    at_ms = launch(all_reduce_times, backend="gloo", device="cuda")[0]
    for line, ms in zip(("all_reduce", "wait()", "synchronize()"), at_ms):
        print(f"gloo, {line:14} is over after {ms:.2f} ms")

# %% [markdown]
# Now the same function with NCCL, which wants a GPU for each rank. Where there is only one, `share_gpus=True` makes two ranks share it, which NCCL [calls experimental](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-multi-rank-gpu-enable).

# %% tags=["nbval-ignore-output"]
if gpus < 1:
    print("no GPU here: this would print the same three times for NCCL.")
else:
    at_ms = launch(all_reduce_times, backend="nccl", share_gpus=gpus < 2)[0]
    for line, ms in zip(("all_reduce", "wait()", "synchronize()"), at_ms):
        print(f"NCCL, {line:14} is over after {ms:.2f} ms")

# %% [markdown]
# ## What you know now

# %%
predict()

# %% [markdown]
# Compare two of these with your own guess: `wait()` doesn't wait, on the host; and most of DDP's step goes to neither computing nor NCCL.

# %% [markdown]
# On a GPU the host launches, and streams wait. Most collectives, and `wait()`, only order streams; `.item()`, `synchronize()` and `dist.barrier()` stop the host itself. Before you blame the network, measure what's exposed, and look at what the host does while no
# kernel runs. And don't forget that a profiler takes part in what it records.

# %% [markdown]
# Practise in [lab 14](../exercises/14_on_a_gpu_who_waits.ipynb).
#
# Next: [17 · Cut the layer](17_cut_the_layer.ipynb), or, if this was your side trip after 05, [06 · What communication costs](06_what_communication_costs.ipynb).
#
# *Sources.* The recordings: Holistic Trace Analysis, Meta, MIT license; `course_material/recordings/README.md` says which they are and how they were made smaller.
# [PyTorch: CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html), and
# [torch.distributed](https://docs.pytorch.org/docs/stable/distributed.html) on synchronous and asynchronous collectives.
