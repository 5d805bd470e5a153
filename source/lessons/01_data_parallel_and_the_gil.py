# %% [markdown]
# # 01 · DataParallel and the GIL
#
# **`model = DataParallel(model)` uses all your GPUs in one line, with threads. Why does everybody train with processes instead?**
#
# An appendix: **skip it on a first reading**. In 45 minutes you'll write `DataParallel` with threads and its twin with processes, and measure both.
#
# **Hardware:** two CPU cores; one cell is for several GPUs.

# %% [markdown]
# **Before:** [00 · Start here](00_start_here.ipynb). **Next:** [02 · Process groups and ranks](02_process_groups.ipynb).
# **Lab:** [01 · DataParallel and the GIL](../exercises/01_data_parallel_and_the_gil.ipynb), best done after chapter 03.

# %% jupyter={"source_hidden": true}
import hashlib
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel

from course_lessons import chapter_01_pictures, device_zero, racing
from course_lessons.twins import RANKS, THREADS, by_ranks, by_threads, network, replica_of
from course_utils import check, hardware, launch, predict, show

# %% [markdown]
# ## 1 · A mutex
#
# A **thread** is a second line of execution in the same process, and it sees the same variables. Here, two threads count
# together. Fifty times, each of them reads the counter, waits a moment, as a slow computer would, and writes back the number it has read, plus one.


# %%
def add(counter, mutex):
    for _ in range(50):
        with mutex:
            value = counter["value"]
            time.sleep(0.0005)
            counter["value"] = value + 1


# %%
def count_together(mutex):
    counter = chapter_01_pictures.Diary(value=0)  # a dict that notes who writes what when
    threads = [threading.Thread(target=add, args=(counter, mutex)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counter


# %% [markdown]
# The argument `mutex` will matter in a moment. For now it's `nullcontext()`, which guards nothing.
#
# **Predict.** What does the counter say in the end?

# %%
counted = predict("without a mutex the two threads count to", ...)

# %%
unguarded = count_together(nullcontext())
counted.measured(unguarded["value"], within=0.1, about=True)

# %% [markdown]
# Both threads read, say, 7, and both write 8: one addition is lost. As the threads sleep at the same time, they lose almost every second addition.

# %% [markdown]
# The cure is a **mutex**, a lock that only one thread can hold at a time. `with mutex:` takes it, or waits while a different thread has it,
# and gives it back at the end.

# %% tags=["row-B2"]
guarded = count_together(threading.Lock())
print("with a mutex:", guarded["value"])
chapter_01_pictures.draw_counting({"without a mutex": unguarded, "with a mutex": guarded})

# %% [markdown]
# All 100 are there. The price is that one thread stands still while the other is in the guarded lines.

# %% [markdown]
# ## 2 · The mutex inside Python
#
# Python's interpreter has one mutex for itself, the **global interpreter lock**, or GIL. A thread has to hold it while it runs Python code.
# C and C++ code may let go of the lock, as long as it doesn't touch Python objects. Does that make threads faster? We race three kinds of work.


# %%
def add_up():
    total = 0
    for number in range(1_000_000):
        total += number


def checksum(block=bytes(30_000_000)):  # C
    hashlib.sha256(block).digest()


def multiply():  # C++
    matrix = torch.ones(512, 512)
    for _ in range(20):
        matrix @ matrix


# %% [markdown]
# Two equal pieces of work are done in three ways: one after the other ("in turn"), in two threads, and in two processes. The
# processes are the **control**: each has an interpreter, and so a GIL, of its own. The clock starts when both threads, or both processes,
# are ready, and the fastest of four rounds counts.

# %% [markdown]
# **Predict.** In pure Python, how many times as fast are two threads, compared with the same work in turn?

# %%
gain = predict("pure Python in two threads, times as fast as in turn", ...)


# %% tags=["row-B2"]
def race(make_works):
    return racing.result(launch(racing.race, make_works, backend="gloo"))


races = {
    "pure Python": race(lambda: [add_up, add_up]),
    "checksum": race(lambda: [checksum, checksum]),
    "matrices": race(lambda: [multiply, multiply]),
}
gain.measured(races["pure Python"].threads, within=0.1, about=True)

# %%
show(racing.bars(races), "Below the dashed line, threads lose. Processes are the control.")

# %% [markdown]
# Look at the control first: if two processes don't come close to 2, this machine was busy, and the other bars prove nothing. Run the race again.

# %% [markdown]
# A second measurement explains the threads' bars. It takes two numbers: how many cores the threads kept at work, and how much CPU time they needed, compared with the
# work in turn. Divide the first number by the second, and you get how many times as fast the threads were, which is the height of their bar above.

# %% tags=["row-B2"]
chapter_01_pictures.draw_cores(races)

# %% [markdown]
# Two threads of pure Python keep *one* core at work, since only the holder of the GIL runs. In C and C++ they
# keep more at work, so "Python threads never run in parallel" is only half the truth: they do run in parallel **while they're out of Python**.

# %% [markdown]
# **Check yourself.** Why didn't the GIL protect the counter of part 1?
#
# <details><summary>Answer</summary>
# The GIL protects the interpreter, not your variables. Between reading the counter and writing it, a thread may lose the GIL. Here it even gives it up itself,
# because <code>sleep</code> does.
# </details>

# %% [markdown]
# ## 3 · Write DataParallel
#
# In each step, `DataParallel` **scatters** the batch, **replicates** the model on every device, **applies** each replica to its shard in a
# thread of its own, and **gathers** the outputs. `replica_of(model)` is here already: like [torch's
# own](https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/replicate.py), it makes a copy whose gradients flow back to the
# original.

# %% [markdown]
# **Write** (5 minutes) the four steps, with one thread for each replica. `devices` is a number, such as 2
# (torch's own takes a list of GPUs); the CPU stands in for all of them. The check compares outputs and gradients with the plain model's, and counts how many replicas
# run at the same time.


# %%
def data_parallel(model, batch, devices):
    # scatter, replicate, apply, gather
    raise NotImplementedError("about 11 lines")


# %% tags=["row-B1"]
check(by_threads(data_parallel), **THREADS)

# %% [markdown]
# And this is what *your* function does with twelve samples and two devices:

# %%
chapter_01_pictures.draw_threads(data_parallel)

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>batch.chunk(devices)</code> scatters, <code>torch.cat</code> gathers, and each thread can put its output into its place in a list.
# </details>
# <details><summary>Hint 2: the approach</summary>
# A function <code>apply(device)</code> computes one output. <code>count_together</code> shows how to start threads, and then to wait for them.
# </details>
# <details><summary>Our answer</summary>
# <pre>
# def data_parallel(model, batch, devices):
#     replicas = [replica_of(model) for _ in range(devices)]
#     shards = batch.chunk(devices)
#     outputs = [None] * devices
#     def apply(device):
#         outputs[device] = replicas[device](shards[device])
#     threads = [threading.Thread(target=apply, args=(device,)) for device in range(devices)]
#     for thread in threads:
#         thread.start()
#     for thread in threads:
#         thread.join()
#     return torch.cat(outputs)
# </pre>
# </details>

# %% [markdown]
# And torch's own `DataParallel`? Where there are no GPUs, it uses no device at all and simply calls your module. That's why part 4 measures threads of our own.

# %% tags=["row-B1"]
devices = launch(lambda: DataParallel(network(4)).device_ids, world_size=1, backend="gloo")[0]
print("devices that DataParallel uses here:", devices)

# %% [markdown]
# ## 4 · When do its threads pay off?
#
# Two replicas of eight layers get 64 samples each, forward only. A wide layer spends its time in C++; a narrow one is soon done there, and then Python calls the next layer.

# %% [markdown]
# **Predict** the first width, of 8, 32, 128 and 512, at which two threads gain 20 % or more.

# %%
first_gain = predict("the first width at which threads gain is", ..., choices=(8, 32, 128, 512))


# %%
def forwards(width, steps):
    replicas = [replica_of(network(width)) for _ in range(2)]
    shards = torch.randn(128, width).chunk(2)

    def forward(device):
        for _ in range(steps):
            replicas[device](shards[device])

    return [partial(forward, device) for device in range(2)]


# %% tags=["row-B1"]
steps = {8: 200, 32: 200, 128: 100, 512: 20}  # so that each takes long enough
by_width = {width: race(partial(forwards, width, count)) for width, count in steps.items()}
widths_that_gain = [width for width, result in by_width.items() if result.threads >= 1.2]
first_gain.measured(next(iter(widths_that_gain), 0), about=True)  # 0: at none of them

# %%
show(
    racing.bars(by_width, "layer width"),
    "Eight layers of each width. Below the dashed line, threads lose.",
)
print(racing.table(by_width))

# %% [markdown]
# As in part 2, look at the control first: if it's far below 2, this machine was busy, so run the race again.
#
# Which column explains a bar that lies below 1? If few *cores* were at work, the threads waited for each other. If *CPU time* has grown,
# the threads did something that the work in turn doesn't need: most likely, they handed the GIL over after every layer. Which width does worst on your machine?

# %% [markdown]
# ## 5 · What each device holds
#
# `DataParallel` gathers all outputs on device 0, where the loss is computed. With four devices and 10,000 classes we count the bytes of the logits, of
# the loss, and of what the loss keeps for backward. The devices are only names here, but the tensors are real.

# %% [markdown]
# **Predict.** Device 0 has more of these bytes than device 3. How many times as many?

# %%
times_more = predict("bytes on device 0, as a multiple of device 3's", ...)

# %% tags=["row-D1"]
bytes_of = {}
for name, loss_in_replica in {"gather logits": False, "gather losses": True}.items():
    bytes_and_gathered = launch(
        device_zero.bytes_by_device, loss_in_replica, world_size=1, backend="gloo"
    )
    bytes_of[name], gathered = bytes_and_gathered[0]
    print(f"{name}: {gathered:,} bytes gathered")
logits = bytes_of["gather logits"]
times_more.measured(logits[0] / logits[3], within=0.05)
show(device_zero.bars(bytes_of), "What each device holds.")

# %% [markdown]
# Device 3 has its own logits, 2.6 MB. Device 0 has its own, too. It also has all four gathered (10.2 MB), and as much again
# that the loss keeps. Together that's nine times as much. But if each replica computes the loss of its own shard, only four numbers are gathered.

# %% [markdown]
# That cures outputs and loss. But what about the gradients, and what an optimiser keeps? Count them after one step with Adam.

# %% tags=["row-D1"]
kept = launch(device_zero.bytes_after_a_step, network(32), world_size=1, backend="gloo")[0]
chapter_01_pictures.draw_after_a_step(kept)

# %% [markdown]
# Gradients flow back to the one module on device 0, and the optimiser only steps that module. So gradients and Adam's state, three times the size of the
# parameters, are on device 0 alone.

# %% [markdown]
# **Check yourself.** Which further bytes pass through device 0 in every step?
#
# <details><summary>Answer</summary>
# The batch, when it is scattered; the parameters, which are sent to every replica anew; and the gradients of all replicas, to be added up.
# </details>

# %% [markdown]
# ## 6 · The twin with processes
#
# Now do the same with one process for each device. Every rank already has the model and the batch; it takes its own shard, computes its own loss, and runs backward.
#
# **Write** (3 minutes) the rest: afterwards, every parameter's `.grad` should hold the gradient of the whole batch, on every rank.


# %%
def in_processes(model, batch):
    shard = batch.chunk(dist.get_world_size())[dist.get_rank()]
    model(shard).square().mean().backward()
    raise NotImplementedError("about 3 lines")


# %%
check(by_ranks(in_processes), **RANKS)

# %% [markdown]
# And this is the gradient that *your* function leaves in each of two ranks:

# %%
chapter_01_pictures.draw_gradients(in_processes)

# %% [markdown]
# <details><summary>Hint</summary>
# Now every <code>parameter.grad</code> holds the gradient of this rank's shard. Average each of them, as in chapter 00.
# </details>
# <details><summary>Our answer</summary>
# <pre>
# def in_processes(model, batch):
#     shard = batch.chunk(dist.get_world_size())[dist.get_rank()]
#     model(shard).square().mean().backward()
#     for parameter in model.parameters():
#         dist.all_reduce(parameter.grad)
#         parameter.grad /= dist.get_world_size()
# </pre>
# </details>

# %% [markdown]
# Compare the two. The twin with processes sends no parameters, scatters nothing, and gathers no outputs. Every rank has all the gradients, so each can
# take the step with an optimiser of its own, and no rank is special. This is what DDP does.

# %% [markdown]
# And on GPUs, which do their work by themselves? There, Python only **launches** *kernels*, the functions that run on the GPU, one after the other. This recording shows how well one interpreter feeds one GPU: ResNet-50 in
# DDP on two A100s (from Meta's [Holistic Trace Analysis](https://github.com/facebookresearch/HolisticTraceAnalysis)).

# %%
show(device_zero.one_gpu_is_fed(), "20 ms of training on one GPU.")

# %% [markdown]
# The GPU isn't slow; it's waiting. Most launches began only after the previous kernel had finished. (The profiler slows the host down as
# well; [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb) asks by how much.) `DataParallel` has one interpreter for *all* GPUs. If
# you've got two or more, the next cell races the real one against DDP.

# %% tags=["nbval-ignore-output", "row-B1", "row-D1"]
gpus = len(hardware().gpus)
if gpus < 2:
    print(f"{gpus or 'no'} GPU here: DataParallel would just call your module.")
else:
    alone = launch(device_zero.with_data_parallel, network, world_size=1, device="cuda")[0]
    ranks = launch(device_zero.with_ddp, network, world_size=gpus, device="cuda")
    print(device_zero.compared(alone, ranks))

# %% [markdown]
# ## 7 · Python without the GIL
#
# Since 3.13, Python also comes in a **free-threaded** build, without a GIL ([PEP 703](https://peps.python.org/pep-0703/)). That may cure the
# narrow layers of part 4, but not the load on device 0 in part 5. (To compare, run this chapter on the free-threaded Python 3.14: torch 2.15 doesn't come for
# the one of 3.13.) Which build is yours?

# %%
is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)  # before 3.13 it always is
print("this Python has its GIL:", is_gil_enabled())

# %% [markdown]
# ## What you know now

# %%
predict()

# %% [markdown]
# The GIL is a mutex for all Python code of a process, so threads only gain while they're out of Python. `DataParallel` runs one of its four steps in threads
# and leans on device 0 in the other three; its twin with processes needs neither. [PyTorch's
# documentation](https://docs.pytorch.org/docs/stable/distributed.html#basics) gives much the same two reasons for **one process for each device**: no parameters have to be sent, and no interpreter is shared.

# %% [markdown]
# Who are these processes, and how do they find each other? [02 · Process groups and ranks](02_process_groups.ipynb).
#
# When you have read chapter 03, practise in [lab 01](../exercises/01_data_parallel_and_the_gil.ipynb).
