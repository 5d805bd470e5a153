# %% [markdown]
# # Lab 01 · DataParallel and the GIL
#
# Four exercises on [chapter 01](../notebooks/01_data_parallel_and_the_gil.ipynb), 45 minutes, on any computer. You build the `DataParallel` of the chapter so
# that it also holds for uneven batches, for failures and for evaluation, and predict when its threads pay off. Each rank of `check` is here a process
# of its own with one interpreter, given other numbers than its neighbours. Nothing is timed, so a busy computer changes nothing.

# %%
import functools
import math
import sys
import threading
import time
from itertools import pairwise

import torch
from torch import nn

from course_utils import check, progress

# %% [markdown]
# ## 1 · Scatter
#
# *●○○, 5 minutes.* `DataParallel` cuts a batch along its first dimension into parts of ⌈samples / devices⌉ samples; the last part may be
# smaller, and where nothing is left a device stays idle. **Goal:** return the list of these parts, in order, without any empty one.
#
# Ten samples for four devices become parts of 3, 3, 3 and 1. The check makes each batch of parts that it knows, and wants them back.


# %%
def scatter(batch, devices):
    ### BEGIN SOLUTION
    return list(batch.chunk(devices))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Five samples, four devices: who gets how many? PyTorch has three methods that cut a tensor, and they answer differently.
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>split</code> takes the size of a part, <code>tensor_split</code> makes exactly so many parts, as even as can be, and <code>chunk</code> makes at most so many.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>batch.chunk(devices)</code>
# </details>

# %%
batches = {  # the parts' sizes, the shape of a sample, devices
    "8 samples, 4 devices": ([2, 2, 2, 2], (), 4),
    "8 samples, 5 devices": ([2, 2, 2, 2], (), 5),
    "8 samples, 6 devices": ([2, 2, 2, 2], (3,), 6),
    "10 samples, 4 devices": ([3, 3, 3, 1], (2,), 4),
    "5 samples, 4 devices": ([2, 2, 1], (3,), 4),
    "5 samples, 2 devices": ([3, 2], (1,), 2),
    "5 samples, 1 device": ([5], (), 1),
    "1 sample, 3 devices": ([1], (4,), 3),
    "3 images, 8 devices": ([1, 1, 1], (2, 2), 8),
}


def in_one_batch(answer):
    @functools.wraps(answer)
    def scattered(parts, devices):
        return answer(torch.cat(parts), devices)

    return scattered


def scatter_spec(parts, devices):
    return parts


def scatter_inputs(rank, world_size, case):
    sizes, shape, devices = batches[case]
    return torch.randint(-9, 10, (sum(sizes), *shape)).split(sizes), devices


options = {"spec": scatter_spec, "cases": list(batches)}
check(in_one_batch(scatter), inputs=scatter_inputs, **options)

# %% [markdown]
# ## 2 · Apply
#
# *●●●, 15 minutes.* **Goal:** run replica *i* on part *i*, each in a thread of its own, all at the same time, and when all are done return the outputs in order. If
# replicas fail, raise the exception of the first of them, also when all are done. Beware: a thread takes its exception to the grave, and begins with gradients switched **on**, even where its caller is in
# `torch.no_grad()`.
#
# The replicas of the check wait for each other in `forward`, so one after the other they never get done.


# %%
def apply_spec(replicas, parts, training):
    def wanted(replicas, parts, training):
        failed = [repr(replica.error) for replica in replicas if replica.error]
        outputs = [replica.factor * part for replica, part in zip(replicas, parts)]
        return failed[0] if failed else [(output, training) for output in outputs]

    return [wanted(*own) for own in zip(replicas, parts, training)]


# %%
def apply(replicas, parts):
    ### BEGIN SOLUTION # what a thread does, then start all, join all, and look for errors
    outputs, errors, training = [None] * len(parts), {}, torch.is_grad_enabled()

    def work(i):
        try:
            with torch.set_grad_enabled(training):
                outputs[i] = replicas[i](parts[i])
        except Exception as error:
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return outputs
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Where does a thread leave its output, so that the order does not depend on who is done first? Where does it leave its exception?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Give each thread its own place in a list of outputs, and let it catch what goes wrong and note it beside its number. Start all threads, then join all, then raise the first
# error. Ask <code>torch.is_grad_enabled()</code> before you start them.
# </details>
# <details><summary>Hint 3: the code</summary>
# In the thread: <code>with torch.set_grad_enabled(training): outputs[i] = replicas[i](parts[i])</code>, inside
# <code>try</code> and <code>except Exception as error: errors[i] = error</code>.
# </details>


# %%
class Meeting:
    """Where threads wait until all of them have come."""

    def __init__(self, threads):
        self.barrier, self.threads = threading.Barrier(threads), set()

    def __deepcopy__(self, memo):  # copies of a model meet at the same place
        return self

    def wait(self):
        try:
            self.barrier.wait(timeout=3)
        except threading.BrokenBarrierError:
            parties = self.barrier.parties
            raise RuntimeError(f"not all of {parties} threads ran at the same time") from None


class Replica(nn.Module):
    """Multiplies by its factor, or fails, when all replicas have come and one more is done."""

    def __init__(self, i, meeting, ends, error):
        super().__init__()
        self.factor = nn.Parameter(torch.randint(2, 100, ()).double())
        self.name, self.meeting, self.error = f"replica {i}", meeting, error
        self.done_before, self.done = ends

    def forward(self, part):
        self.meeting.wait()
        if not self.done_before.wait(timeout=6):
            raise RuntimeError("the replica that is done before this one has not come")
        time.sleep(0.002)
        self.done.set()
        if self.error:
            raise self.error
        return self.factor * part


# %%
teams = {  # replicas, what some of them raise, with gradients, who is done first
    "one replica": (1, {}, True, 1),
    "3 replicas, the last one is done first": (3, {}, True, -1),
    "3 replicas without gradients": (3, {}, False, 1),
    "40 replicas": (40, {}, True, 1),
    "replica 2 of 3 fails": (3, {2: ValueError("no number")}, True, -1),
    "all but replica 0 of 3 fail": (3, {1: KeyError("two"), 2: ValueError("three")}, True, 1),
    "replicas 0 and 1 of 4 fail": (4, {0: OSError("one"), 1: ValueError("two")}, False, -1),
}


def apply_inputs(rank, world_size, case):
    count, errors, training, step = teams[case]
    meeting, done = Meeting(count), [threading.Event() for _ in range(count + 1)]
    done[0].set()
    ends = list(pairwise(done))[::step]
    replicas = [Replica(i, meeting, ends[i], errors.get(i)) for i in range(count)]
    return replicas, [torch.rand(2 + rank).double() for _ in replicas], training


def telling(answer):
    """What comes back, with or without gradients, or else what was raised."""

    @functools.wraps(answer)
    def apply_and_tell(replicas, parts, training):
        told = ""
        try:
            with torch.set_grad_enabled(training):
                outputs = answer(replicas, parts)
        except (ValueError, LookupError, OSError) as error:
            told = repr(error)
        if late := [replica.name for replica in replicas if not replica.done.is_set()]:
            raise RuntimeError(f"{late[0]} is not done when apply is")
        return told or [
            own if own is None else (own.detach(), own.requires_grad) for own in outputs
        ]

    return apply_and_tell


check(telling(apply), spec=apply_spec, inputs=apply_inputs, cases=list(teams))

# %% [markdown]
# ## 3 · Scatter, apply, gather
#
# *●●○, 10 minutes.* **Goal:** return the model's output for the batch, computed in threads, one for each part that `scatter` makes, and gathered in order. `backward()` through it shall leave the
# gradient in **`model`** itself, as the real `DataParallel` does. You may call your `scatter` and `apply`.
#
# The model subtracts the mean of what it sees, as BatchNorm does. In each thread that is the mean of a part.


# %%
def data_parallel_spec(models, batches, devices):
    def wanted(model, batch, count):
        size = math.ceil(len(batch) / count)
        parts = [batch[i : i + size] for i in range(0, len(batch), size)]
        output = torch.cat([model.centred(part) for part in parts])
        found = torch.autograd.grad(output.square().sum(), [*model.parameters()])
        return {"output": output.detach(), "threads": len(parts), "gradients": found}

    return [wanted(*own) for own in zip(models, batches, devices)]


# %%
def data_parallel(model, batch, devices):
    ### BEGIN SOLUTION
    parts = scatter(batch, devices)
    return torch.cat(apply([model] * len(parts), parts))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Whose gradient is it, if each thread has a <code>deepcopy</code> of the model? And what would two threads that only read the same weights have to fear?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Devices need copies because each has a memory of its own. Threads on one device share theirs: let all of them call the same model. There are as many threads as
# parts, which may be fewer than devices.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>apply([model] * len(parts), parts)</code> gives the outputs; <code>torch.cat</code> puts them back together.
# </details>


# %%
class Centred(nn.Module):
    """A layer for inputs less their mean; computes only when all threads have come."""

    def __init__(self, meeting):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 2).double())
        self.bias = nn.Parameter(torch.rand(2).double())
        self.meeting = meeting

    def centred(self, x):
        return (x - x.mean(dim=0)) @ self.weight + self.bias

    def forward(self, x):
        self.meeting.wait()
        self.meeting.threads.add(threading.get_ident())
        return self.centred(x)


# %%
jobs = {
    "6 samples, 1 device": (6, 1),
    "6 samples, 2 devices": (6, 2),
    "10 samples, 4 devices": (10, 4),
    "5 samples, 4 devices": (5, 4),
}


def data_parallel_inputs(rank, world_size, case):
    samples, devices = jobs[case]
    parts = math.ceil(samples / math.ceil(samples / devices))
    return Centred(Meeting(parts)), torch.rand(samples, 3).double(), devices


def and_back(answer):
    """The output, in how many threads the model was called, and the gradients left in it."""

    @functools.wraps(answer)
    def data_parallel_and_back(model, batch, devices):
        output = answer(model, batch, devices)
        output.square().sum().backward()
        found = [parameter.grad for parameter in model.parameters()]
        threads = len(model.meeting.threads)
        return {"output": output.detach(), "threads": threads, "gradients": found}

    return data_parallel_and_back


options = {"cases": list(jobs), "spec": data_parallel_spec}
check(and_back(data_parallel), inputs=data_parallel_inputs, **options)

# %% [markdown]
# ## 4 · From which width on?
#
# *●●○, 15 minutes.* In each layer a thread first holds the GIL for `held_us`, then computes without it: for `free_us[i]` where the layer is `widths[i]` wide. All threads run the
# same number of layers and take the GIL in turn. **Goal:** return the smallest width at which they are at least `gain` times as fast as the same work done one after the
# other, or `None`. The specification steps through time; find a formula: in the check no answer may run more than 50 lines of Python for each width.


# %%
def threads_us(held_us, free_us, layers, threads):
    """When the last thread is done."""
    gil_free, done = 0.0, [0.0] * threads
    for _ in range(layers):
        for i in range(threads):
            gil_free = max(done[i], gil_free) + held_us
            done[i] = gil_free + free_us
    return max(done)


def crossover_spec(widths, free_us, held_us, layers, threads, gains):
    def first(widths, free_us, held, layers, threads, gain):
        for width, free in sorted(zip(widths, free_us)):
            in_turn_us = threads * layers * (held + free)
            if in_turn_us >= gain * threads_us(held, free, layers, threads):
                return width

    return [first(*own) for own in zip(widths, free_us, held_us, layers, threads, gains)]


# %%
def crossover(widths, free_us, held_us, layers, threads, gain):
    ### BEGIN SOLUTION # for every width: in turn, and in threads
    for width, free in sorted(zip(widths, free_us)):
        in_turn_us = threads * layers * (held_us + free)
        free_decides_us = (threads - 1) * held_us + layers * (held_us + free)
        gil_decides_us = threads * layers * held_us + free
        if in_turn_us >= gain * max(free_decides_us, gil_decides_us):
            return width
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Draw two threads with three layers, once with <code>free</code> much longer than <code>held</code>, once much shorter. In which of the two drawings does
# somebody wait in every layer?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Wide layers: the last thread waits once, until all others have held the GIL, and then never again. Narrow layers: the GIL is never free, and when it has
# been held for all layers of all threads, the last one still has to compute. The longer of the two times is the right one.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>max((threads - 1) * held_us + layers * (held_us + free), threads * layers * held_us + free)</code>
# </details>

# %%
workloads = {  # layers, threads, gain, at least so many us with the GIL held
    "8 layers, 2 threads, x1.5": (8, 2, 1.5, 5),
    "8 layers, 2 threads, x1.9": (8, 2, 1.9, 5),
    "1 layer, 3 threads, x1.5": (1, 3, 1.5, 20),
    "3 layers, 4 threads, x3.6": (3, 4, 3.6, 5),
    "100 layers, 2 threads, x1.1": (100, 2, 1.1, 20),
    "500 layers, 4 threads, x2.5": (500, 4, 2.5, 5),
    "8 layers, 2 threads, x1.5, a slow interpreter": (8, 2, 1.5, 1e6),
    "8 layers, 2 threads, x2": (8, 2, 2.0, 5),
}


def crossover_inputs(rank, world_size, case):
    layers, threads, gain, least_us = workloads[case]
    widths = torch.arange(16, 512, 4)[torch.randperm(124)].tolist()
    ns = 1 + torch.rand(()).item()
    free_us = [round(ns * width**2 / 1000, 3) for width in widths]
    held_us = round(least_us * (1 + torch.rand(()).item()), 3)
    return widths, free_us, held_us, layers, threads, gain


def in_few_lines(answer):
    """Stops an answer that runs more than 50 lines for each width."""

    @functools.wraps(answer)
    def counted(widths, *given):
        lines = 0

        def count(frame, event, argument):
            nonlocal lines
            lines += event == "line"
            if lines > 50 * len(widths):
                raise RuntimeError("more than 50 lines for each width: find a formula")
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            return answer(widths, *given)
        finally:
            sys.settrace(before)

    return counted


options = {"cases": list(workloads), "spec": crossover_spec}
check(in_few_lines(crossover), inputs=crossover_inputs, **options)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
