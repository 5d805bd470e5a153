# %% [markdown]
# # 03 · Collective primitives
#
# **What can ranks say to each other, and who waits for whom?**
#
# In 85 minutes you will be able to
#
# 1. pass messages between two ranks without a deadlock;
# 2. choose among nine collectives, and say who holds what before and after;
# 3. write a ring all-reduce from messages alone;
# 4. avoid results that are silently wrong, and find the rank that holds all the others up.
#
# **Hardware:** two cores. If there's a GPU for each rank, ranks talk through NCCL, except in the cells about gloo.

# %% [markdown]
# **Before:** [02 · Process groups](02_process_groups.ipynb).
# **Next:** [04 · DDP training](04_ddp_training.ipynb).
# **Lab:** [03 · Collective primitives](../exercises/03_collective_primitives.ipynb).

# %% [markdown]
# Five cells ask you to **predict**: answer below the cell or in place of its three dots, and a later cell compares your answer with what real ranks did. One cell asks you to **write** a function.

# %%
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course_checks.cases import CASES, Case
from course_lessons.chapter_03 import draw_ring, print_gaps, print_traffic
from course_utils import Network, check, digits, explore, launch, plot_ranks, plot_timeline, predict

# %% [markdown]
# ## 1 · One sends, one receives
#
# Nearly everything that ranks do together can be built from one move: one rank **sends** a tensor and a second one **receives** it. (Some
# [network switches](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-nvls-enable) can also add.) The receiver
# prepares a tensor of the same shape and dtype, and the message overwrites it. With `trace=True`, `launch` records every call.


# %%
def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


# %% tags=["row-D3"]
def hand_over():
    rank = dist.get_rank()
    tensor = torch.full((4,), rank + 1, device=my_device())
    before = tensor.clone()
    if rank == 0:
        dist.send(tensor, dst=1)
    else:
        dist.recv(tensor, src=0)
    return before, tensor


results = launch(hand_over, world_size=2, trace=True)
before, after = zip(*results)
plot_ranks(before, after)

# %% [markdown]
# Rank 0 keeps what it sent, and rank 1's twos are gone. A square has the colour and the mark of the rank its number
# comes from. The recording is called the **trace**. It tells the same story:

# %%
print(*results.trace, sep="\n")

# %% [markdown]
# Now both ranks want to send *and* to receive, and both send first. This cell fails on purpose, after four seconds. Before you run
# it: which line will each rank be waiting in?


# %% tags=["raises-exception", "row-D3"]
def both_send_first():
    rank = dist.get_rank()
    outgoing, incoming = torch.full((4,), rank), torch.empty(4, dtype=torch.int64)
    dist.send(outgoing, 1 - rank)
    dist.recv(incoming, 1 - rank)
    return incoming


launch(both_send_first, world_size=2, backend="gloo", timeout=4)  # sends differ between backends

# %% [markdown]
# Both wait in `send`. Each waits for the other to receive, and neither ever reaches its `recv`: that's a **deadlock**.
# [MPI](https://www.mpi-forum.org/docs/mpi-4.1/mpi41-report.pdf), an older standard for messages (section 3.4), allows `send` to buffer a
# message and go on. Where small messages are buffered, the same mistake stays hidden until the tensors grow.
#
# One cure is to agree on an order:


# %%
def in_order(outgoing):
    other, incoming = 1 - dist.get_rank(), torch.empty_like(outgoing)
    if dist.get_rank() == 0:
        dist.send(outgoing, other)
        dist.recv(incoming, other)
    else:
        dist.recv(incoming, other)
        dist.send(outgoing, other)
    return incoming


# %% [markdown]
# The other cure is to start both messages together. `batch_isend_irecv` takes a list of messages and returns at once, with something to `wait()` for.


# %%
def at_once(outgoing):
    other, incoming = 1 - dist.get_rank(), torch.empty_like(outgoing)
    sending = dist.P2POp(dist.isend, outgoing, other)
    receiving = dist.P2POp(dist.irecv, incoming, other)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()  # until then, leave both tensors alone
    return incoming


# %% [markdown]
# Which is faster? Times measured between two processes of one laptop only tell you about that laptop. So we **replay** the recording on a
# network of our own: a message takes 10 µs plus its size at 80 Gbit/s, and a rank can send and receive at the same time. This
# *virtual* time is the same in every run.

# %% [markdown]
# **Predict.** Each rank sends a megabyte, which is 100 µs at 80 Gbit/s. How many µs does the exchange take in order, and how many at once?
# Answer with two numbers.

# %%
exchange_us = predict("µs in order, and at once", ..., count=2)


# %% tags=["row-D3"]
def exchange(cure):
    outgoing = torch.full((250_000,), float(dist.get_rank()))
    return cure(outgoing)[0].item()


network = Network(latency_us=10, gbit_s=80)
finish_us = []
for cure in (in_order, at_once):
    # A blocking send that waits is gloo's.
    results = launch(exchange, cure, world_size=2, backend="gloo", trace=True)
    print(f"{cure.__name__}: ranks 0 and 1 now hold {list(results)}")
    finish_us.append(round(max(results.trace.replay(network).finish_us)))
exchange_us.measured(finish_us)

# %% [markdown]
# In order, the second message waits for the first: 2 × (10 + 100) = 220 µs. At once, they pass each other on the way, so 110 µs are enough.

# %% [markdown]
# In other people's code you'll also meet `isend` on its own, followed by a plain `recv`. That works with gloo. But NCCL, the library for GPUs, runs a rank's messages in the order
# of its calls. So both sends come first again, and large messages
# [hang](https://github.com/NVIDIA/nccl/issues/479). A batch works with both.

# %% [markdown]
# **Check yourself.** Five ranks sit in a circle, and each has a message for the next one. Even ranks send first, odd ranks receive first. Is there a deadlock?
#
# <details><summary>Answer</summary>
# No. Ranks 4 and 0 are neighbours and both send first. But rank 1 receives first, so rank 0's message leaves, rank 0 reaches its receive,
# and rank 4 can go on. One pair that takes turns is enough to break the circle of waiting.
# </details>

# %% [markdown]
# ## 2 · One to all, all to one
#
# A **collective** is a call that every rank of the group makes. We'll look at nine of them through one instrument: `see` gives four ranks
# some numbers each, runs the collective, and draws what they hold before and after.


# %%
def see(collective, numbers=4, undefined=(), traffic=True):
    def worker():
        tensor = 10 * (dist.get_rank() + 1) + torch.arange(numbers, device=my_device())
        before = tensor.clone()
        return before, collective(tensor)

    results = launch(worker, world_size=4, trace=True)
    before, after = zip(*results)
    plot_ranks(before, after, undefined=undefined)
    if traffic:
        print_traffic(results.trace)
    return results


# %% [markdown]
# ### broadcast
#
# One rank, called the **root**, gives everybody what it has.


# %% tags=["row-D4"]
def broadcast(tensor):
    dist.broadcast(tensor, src=1)
    return tensor


results = see(broadcast)

# %% [markdown]
# Training begins like this: a broadcast of rank 0's weights makes all the models equal.

# %% [markdown]
# The line *recorded* says which calls were really made. We can't see into how many messages gloo cuts them, so the bytes come from two
# models. In the *direct* one, the root sends to each rank itself. In the *ring*, each rank passes pieces on to the next.

# %% [markdown]
# ### scatter and gather
#
# `scatter` hands out a list of tensors, one per rank. Only the root has the list; the others pass `None`.


# %% tags=["row-D4"]
def scatter(tensor):
    parts = list(tensor.split(1)) if dist.get_rank() == 1 else None
    part = torch.empty_like(tensor[:1])
    dist.scatter(part, parts, src=1)
    return part


results = see(scatter)

# %% [markdown]
# (The recording shows two sizes: the root handed in 32 bytes, the others only a tensor of 8 to be filled.)
#
# `gather` is the way back: the root collects one tensor from each rank.


# %% tags=["row-D4"]
def gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(4)] if dist.get_rank() == 1 else None
    dist.gather(tensor, parts, dst=1)
    return parts


results = see(gather, numbers=1)

# %% [markdown]
# In `scatter` and in `gather`, each number has only one destination, so a ring would have nothing to pass on, and both models give the same
# bytes. Everything goes through the root, which becomes the bottleneck when there are many ranks.

# %% [markdown]
# ### reduce
#
# `reduce` is like `gather`, but the root gets the **sum** instead of a list.


# %% tags=["row-D4"]
def reduce(tensor):
    dist.reduce(tensor, dst=1)
    return tensor


results = see(reduce, undefined=(0, 2, 3))

# %% [markdown]
# On the root, 10 + 20 + 30 + 40 = 100, with a stripe for each rank whose number is in the sum. The others must not use what they hold,
# because torch [promises the result to the root only](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce). Some
# tutorials print it anyway, so let's look at it once.

# %% [markdown]
# **Predict.** Four ranks hold 1, 2, 3 and 4. They call `reduce` with root 0, which then holds 10. What will gloo leave on rank 1 this time:
# its own 2, the sum 10, or neither?

# %%
left_over = predict(
    "after a reduce to rank 0, rank 1 holds", ..., choices=("its own 2", "the sum 10", "neither")
)


# %%
def leftovers():
    number = torch.tensor(dist.get_rank() + 1)
    dist.reduce(number, dst=0)
    return number.item()


results = launch(leftovers, world_size=4, backend="gloo")  # what is left over is gloo's
left_over.measured({2: "its own 2", 10: "the sum 10"}.get(results[1], "neither"))

# %% [markdown]
# Neither. This is what all the ranks hold, with two, three and four of them:

# %%
for world_size in (2, 3, 4):
    results = launch(leftovers, world_size=world_size, backend="gloo")  # again gloo's leftovers
    print(f"{world_size} ranks: {list(results)}")

# %% [markdown]
# Only the first number of each list is a result. The others are unfinished sums: 9 is 2 + 3 + 4, on its way to the root.
# A different version or backend may leave something else, and no error tells you.
#
# **The cure:** read the output of `reduce` on the root only. If others need it, call `all_reduce`.

# %% [markdown]
# **Check yourself.** Only rank 0 should print the mean accuracy. Do you call `reduce`, `gather` or `all_reduce`?
#
# <details><summary>Answer</summary>
# <code>reduce</code>. Rank 0 then divides and prints, inside <code>if rank == 0</code>. The <code>reduce</code> itself goes outside
# the <code>if</code>, because every rank has to call it.
# </details>

# %% [markdown]
# ### Which sum?
#
# Reducing doesn't have to mean adding: `op=` takes other operators too. Four ranks hold 6, 3, 2 and 3 (in binary 110, 011, 010 and 011),
# once as integers and once as floats.


# %%
OPERATORS = ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")


def try_operators(dtype):
    outcomes = {}
    for name in OPERATORS:
        number = torch.tensor([6, 3, 2, 3][dist.get_rank()], dtype=dtype)
        try:
            dist.all_reduce(number, getattr(dist.ReduceOp, name))
            outcomes[name] = f"{number.item()}"
        except RuntimeError:
            outcomes[name] = f"refused, holds {number.item()}"
    return outcomes


# %% tags=["row-D4"]
# Which operators there are, and for what, is gloo's matter.
integers = launch(try_operators, torch.int64, world_size=4, backend="gloo")[0]
floats = launch(try_operators, torch.float32, world_size=4, backend="gloo")[0]
print(f"{'operator':12}{'integers':20}floats, each on rank 0")
for name in OPERATORS:
    print(f"{name:12}{integers[name]:20}{floats[name]}")

# %% [markdown]
# BAND, BOR and BXOR work bit by bit (and, or, exclusive or), which makes no sense for floats. But look at AVG of integers: it's refused only **after** the numbers have been added.
# Rank 0 started with 6 and now holds 14, so a program that catches this error goes on with a sum in place of its own number.

# %% [markdown]
# **The cure:** convert to float first, or take SUM and divide with `//`.
#
# MAX has a trap of its own. This time rank 1 brings a NaN.


# %%
def largest():
    number = torch.tensor([1.0, float("nan"), 3.0, 4.0][dist.get_rank()])
    is_nan = number.isnan().int()
    dist.all_reduce(number, dist.ReduceOp.MAX)
    dist.all_reduce(is_nan, dist.ReduceOp.MAX)
    return number.item(), is_nan.item()


results = launch(largest, world_size=4, backend="gloo")  # what becomes of a NaN is gloo's
print("the largest of 1, nan, 3 and 4:", [maximum for maximum, _ in results])
print("does any rank have a NaN?      ", [is_nan for _, is_nan in results])

# %% [markdown]
# The NaN is gone, and it took the 3 and the 4 with it, because `<` and `>` are always false for a NaN. So you can't find a NaN by MAX or MIN of the numbers. **The cure:** look for
# it separately. Each rank brings a flag, and MAX of the flags is 1 if any rank has one.

# %% [markdown]
# ## 3 · Without a root
#
# From here on there's no root. With `all_gather`, every rank gets the list that `gather` gave the root.


# %% tags=["row-D4"]
def all_gather(tensor):
    parts = [torch.empty_like(tensor) for _ in range(4)]
    dist.all_gather(parts, tensor)
    return parts


results = see(all_gather, numbers=1)

# %% [markdown]
# To fill a list of tensors costs extra, and how much depends on the backend. Some backends gather into one block of memory, and then copy it into the list's tensors. NCCL in torch
# 2.15 makes one broadcast for each tensor ([its source](https://github.com/pytorch/pytorch/tree/main/torch/csrc/distributed/c10d/nccl2)).
# `all_gather_into_tensor` hands you the block, in one call. Later chapters use this form.


# %% tags=["row-D4"]
def all_gather_into_tensor(tensor):
    gathered = tensor.new_empty(4 * len(tensor))
    dist.all_gather_into_tensor(gathered, tensor)
    return gathered


results = see(all_gather_into_tensor, numbers=1)

# %% [markdown]
# With `reduce_scatter`, each rank gets *its* part of the sum. Which number will rank 2 get? `reduce_scatter_tensor` cuts one tensor into
# equal parts; `reduce_scatter` itself takes a list of them.


# %% tags=["row-D4"]
def reduce_scatter(tensor):
    part = tensor.new_empty(len(tensor) // 4)
    dist.reduce_scatter_tensor(part, tensor)
    return part


results = see(reduce_scatter)

# %% [markdown]
# Fully sharded training ([FSDP](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html), chapter 13), for models that are too large for one device, is built on
# `all_gather` and `reduce_scatter`. It gathers weights just before using them, and each rank keeps only its shard of the
# summed gradients.

# %% [markdown]
# ### all_to_all
#
# Now every rank has something different for each of the others. Before you run the cell: rank 1 holds 20, 21, 22 and 23. What will it hold
# afterwards? The list form is `all_to_all`, the tensor form `all_to_all_single`.


# %% tags=["row-D4"]
def all_to_all(tensor):
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor)
    return received


results = see(all_to_all)

# %% [markdown]
# Read the ranks' numbers as the rows of a matrix: `all_to_all` **transposes** it, and nothing is added. [Mixtures of experts](https://arxiv.org/abs/2006.16668) need this. In these
# models each
# token goes to one or a few of many sub-networks, which live on different ranks.

# %% [markdown]
# ### barrier
#
# No data at all: nobody goes on until everybody has come. Here, rank *r* arrives *r* × 0.1 seconds late.


# %% tags=["row-D4"]
def barrier():
    time.sleep(0.1 * dist.get_rank())
    dist.barrier()


results = launch(barrier, world_size=4, trace=True)
plot_timeline(results.trace, "Nobody leaves the barrier before rank 3, the last, has come.")

# %% [markdown]
# | you want | call |
# | --- | --- |
# | equal weights at the start | `broadcast` |
# | the sum of everybody's gradients, everywhere | `all_reduce` |
# | one number for a log | `reduce`, read on the root |
# | everybody's results, in one place or everywhere | `gather`, `all_gather_into_tensor` |
# | for each rank a part of what one rank has read | `scatter` |
# | for each rank a part of the sum | `reduce_scatter_tensor` |
# | something different from everybody for everybody | `all_to_all_single` |
# | "wait until rank 0 has downloaded the data" | `barrier` |

# %% [markdown]
# **Check yourself.** A colleague puts a barrier after every `all_reduce`, "to be safe". Why doesn't it help?
#
# <details><summary>Answer</summary>
# No rank has the sum before every rank has brought its part: with gloo, an <code>all_reduce</code> is a barrier already. (With NCCL it's the GPU that waits, and not the line of
# Python, as chapter 14 shows.)
# </details>

# %% [markdown]
# ## 4 · The ring
#
# Data parallel training depends on **all_reduce**: every rank brings its gradient, and every rank gets the sum. The *direct* way is to send
# everything to rank 0, which adds it up and sends the sum back. With four ranks and 32 bytes each, that makes 192 bytes in all, and the
# busiest rank sends 96.

# %% [markdown]
# A **ring** has no centre. It cuts the tensor into as many chunks as there are ranks. In each step, every rank sends one chunk to the next rank and
# receives one from the rank before. In the first *n* − 1 steps, each rank adds what it receives to its own chunk. In *n* − 1 more steps, the finished chunks travel on to everybody.

# %% [markdown]
# **Predict.** How many bytes do the four ranks send **in all**, and how many does **the busiest** send? Answer with two numbers.

# %%
ring_bytes = predict("bytes in a ring: in all, and by the busiest rank", ..., count=2)


# %% tags=["row-D4"]
def all_reduce(tensor):
    dist.all_reduce(tensor)
    return tensor


results = see(all_reduce, traffic=False)
per_rank_bytes = results.trace.traffic("ring").sent_bytes
ring_bytes.measured([sum(per_rank_bytes), max(per_rank_bytes)])

# %% [markdown]
# A ring doesn't send fewer bytes: six steps of 8 bytes on four ranks are 192 bytes again. What it halves here is the load of the **busiest rank**, because it shares
# the work out equally.

# %% [markdown]
# Each of *n* ranks sends 2(*n* − 1)/*n* times the tensor. That's less than twice the tensor, however many ranks there are. [Patarasuk and Yuan
# (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002)
# prove that in an all-reduce made of messages the busiest rank can't send less than that.

# %% [markdown]
# ### Write the ring
#
# *About 20 minutes.* Write **one step**, with messages only. It changes the list `chunks`, or the chunks in it, and returns nothing. `done` is the number of steps already taken,
# so it's 0 at first. All ranks have to send at the same time, because the check measures the bytes that they send and the µs that this takes on our network.


# %%
def ring_step(chunks, done):
    """Send one chunk on; add the one that arrives to your own, or replace your own."""
    raise NotImplementedError("about 9 lines")


# %% [markdown]
# `in_a_ring` turns a step into an all-reduce: it cuts `x` into chunks, takes 2(*n* − 1) steps and puts the chunks together again.


# %%
def in_a_ring(step):
    def ring(x):
        world_size = dist.get_world_size()
        chunks = list(x.tensor_split(world_size))
        for done in range(2 * (world_size - 1)):
            step(chunks, done)
        return torch.cat(chunks)

    ring.__name__ = step.__name__  # so that the check speaks of your step
    return ring


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# At first, rank 0 sends chunk 0, rank 1 chunk 1, and so on. After that, a rank sends what it has just received. Which chunk is that, on rank 0,
# in the second step? And in the third?
# </details>
# <details><summary>Hint 2: the approach</summary>
# After <i>done</i> steps, rank <i>r</i> sends chunk <i>r</i> − <i>done</i> and receives chunk <i>r</i> − <i>done</i> − 1, both modulo the
# number of ranks. Start both messages together, as in <code>at_once</code>, and receive into a new tensor. While <i>done</i> is less than <i>n</i> − 1, add; after that, replace.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.P2POp(dist.isend, chunks[(rank - done) % n], (rank + 1) % n)</code> and <code>dist.P2POp(dist.irecv, arrived, (rank - 1) % n)</code> go into one
# <code>batch_isend_irecv</code>. Finally, <code>chunk += arrived</code> or <code>chunk.copy_(arrived)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def ring_spec(tensors):
    return [sum(tensors) for _ in tensors]


def ring_inputs(rank, world_size, case):
    return case.tensor()


def ring_budget(world_size, case):
    """Chunks only, and all ranks at once: what 2(n - 1) steps take on the network."""
    steps = 2 * (world_size - 1)
    chunk_bytes = -(-case.shape[0] // world_size) * case.dtype.itemsize
    step_us = network.latency_us + chunk_bytes * 8e-3 / network.gbit_s
    return {"sent_bytes": steps * chunk_bytes, "finish_us": steps * step_us}


two_numbers = Case("2 numbers", 0, (2,))  # first: a chunk for each of two ranks, and none empty
ring_check = {
    "spec": ring_spec, "inputs": ring_inputs, "cases": (two_numbers, *CASES[:3], CASES[4]),
    "world_sizes": (1, 2, 3, 4), "forbid": ("collectives",),
    "budget": ring_budget, "network": network,
}  # fmt: skip

# %%
check(in_a_ring(ring_step), **ring_check)

# %% [markdown]
# Right or wrong, this is what *your* step does in four ranks. Rank 0 brings 1, 2, 3 and 4, rank 1 ten times as much, and so on.
# So a digit's place tells you the rank, and the digit is one more than the chunk's number: 3300 is the sum of chunk 2 of ranks 2
# and 3. A square that holds anything else is white.

# %%
draw_ring(ring_step)

# %% [markdown]
# Here's a finished step, folded up. It passes the same check.


# %% jupyter={"source_hidden": true}
def finished_step(chunks, done):
    rank, n = dist.get_rank(), dist.get_world_size()
    leaving = chunks[(rank - done) % n]
    chunk = chunks[(rank - done - 1) % n]  # the rank before has just worked on this one
    arrived = torch.empty_like(chunk)
    sending = dist.P2POp(dist.isend, leaving, (rank + 1) % n)
    receiving = dist.P2POp(dist.irecv, arrived, (rank - 1) % n)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    if done < n - 1:
        chunk += arrived
    else:
        chunk.copy_(arrived)


check(in_a_ring(finished_step), **ring_check)

# %% [markdown]
# Follow chunk 0. In the first step, rank 0 sends its 1 to rank 1, which adds its own 10 and holds 11. Rank 1 sends this 11 on to rank 2, which then holds
# 111. An arrow that leaves at the bottom comes in at the top, because after rank 3 comes rank 0.

# %% tags=["row-D4"]
draw_ring(finished_step)

# %% [markdown]
# After three steps each rank has one finished chunk: that was a `reduce_scatter`. Three more carry the finished chunks to everybody: an `all_gather`.

# %% [markdown]
# ### Would two calls do as well?
#
# [The DDP lab](README.md), one of the five articles this course grew out of, builds an `all_reduce` from a `reduce` and a `broadcast`. With two ranks it measured 12.084 s for the
# one call, and 12.250 s for the two, once each. But with a single rank, which sends nothing, the gap was even larger, so it needn't come from the messages. Let's replay both ways
# without noise.


# %%
def reduce_and_broadcast(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)  # overwrites what reduce left over elsewhere


def on_a_megabyte(summing):
    summing(torch.ones(250_000, device=my_device()))


# %% tags=["row-D7"]
ring_network = Network(latency_us=10, gbit_s=80, algorithm="ring")
print("µs for 1 MB, and MB sent, each for all_reduce / reduce + broadcast")
for world_size in (2, 4, 8):
    traces = []
    for summing in (all_reduce, reduce_and_broadcast):
        traces.append(launch(on_a_megabyte, summing, world_size=world_size, trace=True).trace)
    one_call_us, two_calls_us = (max(trace.replay(ring_network).finish_us) for trace in traces)
    one_call_bytes, two_calls_bytes = (trace.traffic("ring").sent_bytes for trace in traces)
    print(f"{world_size} ranks   ring{one_call_us:6.0f} /{two_calls_us:5.0f} µs", end="")
    print(
        f"   in all {sum(one_call_bytes) / 1e6:4.1f} /{sum(two_calls_bytes) / 1e6:5.1f} MB", end=""
    )
    print(f"   busiest rank {max(one_call_bytes) / 1e6:.2f} / {max(two_calls_bytes) / 1e6:.2f} MB")

# %% [markdown]
# One call is faster, although in all both ways send the same number of bytes. The ring divides them equally, and every rank sends in every
# step. With two calls the load is unequal: of eight ranks, the busiest sends 2.00 MB instead of 1.75. And some ranks are idle until the first piece has come round to them.

# %% [markdown]
# ## 5 · A tensor with gaps
#
# `tensor[::2]` is a **view**: places 0, 2, 4 and 6 of the same memory, with gaps. Gloo is told where a tensor begins and how many numbers
# it has. Two ranks hold eight ones each and sum only this view.
#
# **Predict.** What do the eight numbers become? Answer with all eight.

# %%
after_the_view = predict("eight ones, after the sum of tensor[::2]", ..., count=8)


# %%
def sum_of_a_view():
    tensor = torch.ones(8)
    before = tensor.clone()
    dist.all_reduce(tensor[::2])
    return before, tensor


# NCCL refuses such a tensor.
before, after = zip(*launch(sum_of_a_view, world_size=2, backend="gloo"))
plot_ranks(before, after)
after_the_view.measured(after[0].int())

# %% [markdown]
# That's wrong, and torch says nothing. Only `launch` warns you. Gloo summed the first four places in memory. Places 4 and 6 lack the other rank's
# numbers, and places 1 and 3, which nobody asked for, have changed. Which collectives do this?
# In the table's first column, the tensor that a rank hands in has gaps. In its second column, the tensor that receives the result has them.

# %%
print_gaps()

# %% [markdown]
# The three that work in place are wrong, and so are `scatter` and the output of `reduce_scatter`. Where the result is right, gloo works on a copy. NCCL is stricter: it
# refuses such a tensor and says *Tensors must be contiguous*
# ([ProcessGroupNCCLUtils.cpp](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCLUtils.cpp)).
#
# The cure has two halves, and the second is easily forgotten: `contiguous()` makes a *copy*, so you have to write the result back.


# %%
def sum_of_a_copy():
    tensor = torch.ones(8, device=my_device())
    without_gaps = tensor[::2].contiguous()
    dist.all_reduce(without_gaps)
    tensor[::2] = without_gaps
    return tensor.int().tolist()


print(launch(sum_of_a_copy, world_size=2)[0])

# %% [markdown]
# A line for your own code: `assert tensor.is_contiguous()` before a collective.
#
# **Check yourself.** What does `dist.all_reduce(tensor[::2].contiguous())` change in `tensor`?
#
# <details><summary>Answer</summary>
# Nothing: the copy is summed and thrown away. A column of a matrix, <code>matrix[:, 0]</code>, has gaps as well. A row, <code>matrix[0]</code>, has none.
# </details>

# %% [markdown]
# ## 6 · Start now, wait later
#
# With `async_op=True` a collective returns at once and gives you something to wait for. Until `wait()`, the tensor isn't yours. Here rank 0 reads too early. To make
# sure of that, rank 1 joins in only once rank 0 has sent it a note.


# %%
def read_too_early():
    number, note = torch.tensor(dist.get_rank() + 1), torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(note, src=0)
        dist.all_reduce(number)
        return None
    work = dist.all_reduce(number, async_op=True)
    early = number.item()
    dist.send(note, dst=1)
    work.wait()
    return {"too early": early, "after wait()": number.item()}


# Gloo only: with NCCL a sum is queued on the GPU, as chapter 14 shows.
print(launch(read_too_early, world_size=2, backend="gloo")[0])

# %% [markdown]
# So why start early? To compute while the network works. A backward pass yields its gradients one by one: here there are three of a megabyte each, and each takes 300 µs to compute
# on the virtual clock. Ranks 0 and 1 form one pair, and wait for every sum straight away. Ranks 2 and 3 form a second pair, and wait for all three sums at the end.


# %%
def two_pairs():
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    pair, waits_at_once = pairs[dist.get_rank() // 2], dist.get_rank() < 2
    works = []
    for _ in range(3):
        gradient = torch.ones(250_000, device=my_device())
        works.append(dist.all_reduce(gradient, group=pair, async_op=True))
        if waits_at_once:
            works[-1].wait()
    for work in works:
        work.wait()


trace = launch(two_pairs, world_size=4, trace=True).trace
plot_timeline(trace.replay(network, lambda event: 300.0 * (event.kind == "all_reduce")))

# %% [markdown]
# One by one: 3 × (300 + 120) = 1,260 µs. Overlapped: 3 × 300 + 120 = 1,020 µs, because only the last sum has nothing left to hide behind. In chapter [04](04_ddp_training.ipynb) you'll see
# DDP do the same.
#
# **Check yourself.** A friend writes `work = dist.all_reduce(x, async_op=True); work.wait()`. What does that gain?
#
# <details><summary>Answer</summary>
# Nothing: with gloo it's a blocking call in two lines. Something useful has to happen in between. (With NCCL neither line blocks Python, as chapter 14 shows.)
# </details>

# %% [markdown]
# ## 7 · Who holds the others up?
#
# *The DDP lab* also lets one rank sleep during training. The total time it reports tells you *that* something
# is slow. Can we see **who**? Four ranks train, with a sum for each parameter. Rank 1 sleeps half a second before its third sum. We
# add up each rank's time inside `all_reduce`.

# %% [markdown]
# **Predict.** Does rank 1 spend less time inside `all_reduce` than the other ranks, as much, or more?

# %%
in_the_call = predict(
    "time of the late rank in all_reduce", ..., choices=("less", "as much", "more")
)

# %%
training = digits(train=True)


def train(nap_s):
    rank, device = dist.get_rank(), my_device()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    for step in range(4):
        batch = slice(32 * (4 * step + rank), 32 * (4 * step + rank + 1))
        outputs = model(training.data[batch].to(device))
        model.zero_grad()
        cross_entropy(outputs, training.targets[batch].to(device)).backward()
        for k, parameter in enumerate(model.parameters()):
            time.sleep(nap_s * (rank == 1 and step == 0 and k == 2))
            dist.all_reduce(parameter.grad)


# %% tags=["row-D8"]
trace = launch(train, 0.5, world_size=4, backend="gloo", trace=True).trace  # NCCL only queues
inside_s = [sum(e.end_s - e.start_s for e in trace.of_rank(rank)) for rank in range(4)]
print("ms in all_reduce, ranks 0 to 3:", ", ".join(f"about {1000 * s:.0f}" for s in inside_s))
difference_s = inside_s[1] - inside_s[0]
words = "less" if difference_s < -0.25 else "more" if difference_s > 0.25 else "as much"
in_the_call.measured(words)

# %% [markdown]
# Less: it's the others that wait. Rank 0 spends more than half a second inside `all_reduce`, so its profile makes the network look slow.
#
# The article tries four naps. We needn't sleep for those. We record one run without a nap, assume that a backward pass takes 2 ms, and add the naps on the virtual clock.


# %%
NAPS_MS = {  # ms that rank 1 sleeps before sum k; a step has four sums
    "nowhere": lambda k: 0,
    "at the start": lambda k: 1 * (k == 0),
    "at every sum": lambda k: 10,
    "at one sum": lambda k: 500 * (k == 5),
    "after a backward pass": lambda k: 6000 * (k == 8),
}


def with_naps(nap_ms):
    def computing_us(event):
        backward_us = 2000 * (event.index % 4 == 0)
        return backward_us + 1000 * nap_ms(event.index) * (event.rank == 1)

    return trace.replay(network, computing_us)


# %% tags=["row-D8", "row-D9"]
trace = launch(train, 0.0, world_size=4, trace=True).trace
print("ms in all_reduce       rank 0   rank 1   rank 2   rank 3   all are done at")
for name, nap_ms in NAPS_MS.items():
    replay, waiting_ms = with_naps(nap_ms), [0.0] * 4
    for bar in replay.intervals:
        if bar.what == "wait":
            waiting_ms[bar.rank] += (bar.end_us - bar.start_us) / 1000
    columns = "".join(f"{ms:9.2f}" for ms in waiting_ms)
    print(f"{name:21}{columns}{max(replay.finish_us) / 1000:12.2f} ms")
plot_timeline(
    with_naps(NAPS_MS["at every sum"]), "Ranks 0, 2 and 3 wait 16 times, each time for rank 1."
)

# %% [markdown]
# With each of the four naps, the **straggler**, the rank that is late, waits least: about 1 ms, where the others wait up to six seconds. Yet all are done together, as the
# picture shows, because a sum ends for everybody at the same time.

# %% [markdown]
# Why does it wait even less with a nap at every sum than with no nap at all? While it sleeps, the others take those steps of the ring
# that don't need it. That saves it 0.32 ms, or two latencies of 10 µs in each of 16 sums.

# %% [markdown]
# That's enough to find one straggler. If several ranks are late in turn, look at who comes **last** to each sum. You write this in exercise 6 of [the
# lab](../exercises/03_collective_primitives.ipynb).

# %% [markdown]
# Run the next cell and move its sliders (only the picture is saved here). Make a rank slow, then the network. Which of the two makes one rank differ from the others?

# %%
explore(trace, network, lambda event: 2000.0 * (event.index % 4 == 0))

# %% [markdown]
# Only a slow rank does: the others wait for it. On a slow network everybody waits alike.
#
# **Check yourself.** On 63 of 64 ranks the profile says: 60 % of the time in `all_reduce`. On rank 17 it says 2 %. What do you look at?
#
# <details><summary>Answer</summary>
# At rank 17's machine: its data loading, its temperature, what else runs on it. It's the one that all the others wait for.
# </details>

# %% [markdown]
# ## What you know now
#
# All nine collectives can be built from sending and receiving. Every rank of the group calls them, in the same order. Don't read a result before `wait()`, don't hand in a view
# with gaps, and read the result of a `reduce` on the root only. And when one rank loses time, all the others lose it at the next sum.

# %% [markdown]
# Practise in [lab 03](../exercises/03_collective_primitives.ipynb).
#
# How many predictions were right? After that, [04 · DDP training](04_ddp_training.ipynb) makes one of these calls for you, at the right moment.

# %%
predict()
