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
# 4. avoid results that are silently wrong, and find the rank that holds all others up.
#
# **Hardware:** two cores. Where there is a GPU for each rank, ranks talk through NCCL, but for the cells about gloo. **Before:** [02 · Process groups](02_process_groups.ipynb).
# **Next:** [04 · DDP training](04_ddp_training.ipynb).
# **Lab:** [03 · Collective primitives](../exercises/03_collective_primitives.ipynb).
#
# Six cells ask you to **predict**: put your answer in place of the three dots, and a later cell shows it beside what real ranks did. One cell asks you to **write**
# a function. If you see saved outputs here, they give answers away. Clear them first: *Edit*, *Clear Outputs of All Cells*.

# %% jupyter={"source_hidden": true}
import functools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course_checks.cases import CASES
from course_utils import Network, check, digits, explore, launch, plot_ranks, plot_timeline, predict
from course_utils.pictures.steps import plot_steps


def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


# %% [markdown]
# ## 1 · One sends, one receives
#
# Everything that ranks do together is made of one move: one rank **sends** a tensor and another **receives** it. The receiver
# prepares a tensor of the same shape and dtype, and the message overwrites it. `trace=True` records every call of every rank.
# `my_device()`, from the folded cell at the top, is the rank's GPU if `launch` gave it one, else the CPU.


# %% tags=["row-D3"]
def hand_over():
    rank = dist.get_rank()
    box = torch.full((4,), rank + 1, device=my_device())
    before = box.clone()
    if rank == 0:
        dist.send(box, dst=1)
    else:
        dist.recv(box, src=0)
    return before, box


results = launch(hand_over, world_size=2, trace=True)
before, after = zip(*results)
plot_ranks(before, after)
print(*results.trace, sep="\n")

# %% [markdown]
# Rank 0 keeps what it sent, and rank 1's twos are gone. The recording, called the **trace**, says the same: one `send` and one `recv` of 32
# bytes, each with its line. A square has the colour and the mark of the rank that its number comes from.
#
# Now both ranks want to give and to take, and both send first. This cell fails on purpose, after four seconds. Where does
# each rank stand when it fails?


# %% tags=["raises-exception", "row-D3"]
def both_send_first():
    other = 1 - dist.get_rank()
    mine, theirs = torch.full((4,), dist.get_rank()), torch.empty(4, dtype=torch.int64)
    dist.send(mine, other)
    dist.recv(theirs, other)
    return theirs


launch(both_send_first, world_size=2, backend="gloo", timeout=4)  # a send of gloo waits

# %% [markdown]
# Both ranks wait in `send`, at the same line. Each waits until the other one receives, and neither reaches its
# `recv`: a **deadlock**. MPI, another library, may keep a small message in a buffer and let the sender go on. There the same mistake
# stays hidden until the tensors grow.
#
# There are two cures. The ranks can agree on an order. Or they start with `isend`, which returns at once and gives you a `work` to wait for.


# %%
def in_order(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    if dist.get_rank() == 0:
        dist.send(mine, other)
        dist.recv(theirs, other)
    else:
        dist.recv(theirs, other)
        dist.send(mine, other)
    return theirs


# %%
def at_once(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    sending = dist.isend(mine, other)
    dist.recv(theirs, other)
    sending.wait()  # until then, `mine` must not change
    return theirs


# %% [markdown]
# Which one is faster? Times between two processes of a laptop tell you about the laptop. So the course **replays** a recording on a
# network that you describe. Here a message takes 10 µs plus its size at 80 Gbit/s, and a rank can send and receive at the same time. This
# *virtual* time is the same in every run.
#
# **Predict.** Each rank sends a megabyte, which takes 100 µs at 80 Gbit/s. How many µs does the exchange take in order, and how many at once? Answer with
# a list of two numbers.

# %%
exchange_us = predict("µs in order, and at once", ...)

# %% tags=["row-D3"]
network = Network(latency_us=10, gbit_s=80)
took_us = []
for cure in (in_order, at_once):
    exchange = lambda: cure(torch.full((250_000,), float(dist.get_rank())))[0].item()
    # The cure with isend is one for gloo.
    results = launch(exchange, world_size=2, backend="gloo", trace=True)
    took_us.append(round(max(results.trace.replay(network).finish_us)))
    print(f"{cure.__name__}: ranks 0 and 1 now hold {list(results)}")
exchange_us.measured(took_us)

# %% [markdown]
# In order, one message follows the other: 2 × (10 + 100) = 220 µs. At once, they pass each other on the way, and 110 µs are enough.
#
# `isend` first is a cure with gloo, but not everywhere. NCCL, the library for GPUs, can line up a rank's messages to one peer in the order of its calls. Then both sends stand before both receives
# again, and large messages [hang](https://github.com/NVIDIA/nccl/issues/479). `batch_isend_irecv` takes all messages at once and starts them together, so it works with both libraries (with NCCL we can't show it here: that takes two GPUs):


# %%
def in_a_batch(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    sending = dist.P2POp(dist.isend, mine, other)
    receiving = dist.P2POp(dist.irecv, theirs, other)
    for work in dist.batch_isend_irecv([sending, receiving]):
        work.wait()
    return theirs


def batched_exchange():
    return in_a_batch(torch.full((4,), dist.get_rank(), device=my_device()))[0].item()


print("ranks 0 and 1 now hold", list(launch(batched_exchange, world_size=2)))

# %% [markdown]
# **Check yourself.** Five ranks stand in a circle, and each has something for the next one. Even ranks send first, odd ranks receive first. Is there a deadlock?
#
# <details><summary>Answer</summary>
# No. Ranks 4 and 0 are neighbours and both send first. But rank 1 receives first, so rank 0's message leaves, rank 0 reaches its receive,
# and rank 4 goes on. One pair that takes turns is enough to break the circle of waiting.
# </details>
#
# ## 2 · One to all, all to one
#
# A **collective** is a call that every rank of the group makes. We look at nine of them with one instrument, folded up below: `see` gives
# four ranks four numbers each, runs the collective in them, and draws what they hold before and after.


# %% jupyter={"source_hidden": true}
def see(collective, numbers=4, undefined=()):
    """Run a collective in four real ranks, draw what they hold, print what each rank sends."""

    def worker():
        mine = 10 * (dist.get_rank() + 1) + torch.arange(numbers, device=my_device())
        before = mine.clone()
        return before, collective(mine)

    results = launch(worker, world_size=4, trace=True)
    before, after = zip(*results)
    plot_ranks(before, after, undefined=undefined)
    print("recorded:", *dict.fromkeys(event.what for event in results.trace), sep="  ")
    for how in ("direct", "ring"):
        print(f"bytes that ranks 0 to 3 send, {how:>6}:", *results.trace.traffic(how).sent_bytes)
    return results


# %% [markdown]
# ### broadcast
#
# One rank, the root, gives all others what it has.


# %% tags=["row-D4"]
def broadcast(mine):
    dist.broadcast(mine, src=1)
    return mine


results = see(broadcast)

# %% [markdown]
# Ranks 0, 2 and 3 now hold what rank 1 holds. Training begins with a broadcast of rank 0's weights, so that all models are equal.
#
# *Recorded* is what was seen: every rank called `broadcast`. We cannot see gloo's messages, so the two lines of bytes are models.
# *Direct*: the root sends to each rank itself. *Ring*: each rank passes pieces on to the next one.
#
# ### scatter and gather
#
# `scatter` hands out a list of tensors, one to each rank. `gather` collects one tensor of each rank in a list. Only the root has the list; all
# others pass `None`.


# %% tags=["row-D4"]
def scatter(mine):
    parts = list(mine.split(1)) if dist.get_rank() == 1 else None
    part = torch.empty_like(mine[:1])
    dist.scatter(part, parts, src=1)
    return part


results = see(scatter)


# %% tags=["row-D4"]
def gather(mine):
    parts = [torch.empty_like(mine) for _ in range(4)] if dist.get_rank() == 1 else None
    dist.gather(mine, parts, dst=1)
    return parts


results = see(gather, numbers=1)

# %% [markdown]
# Each number has one destination, so a ring has nothing to pass on. Everything goes through the root's port, which
# becomes the bottleneck when there are many ranks.
#
# ### reduce
#
# `reduce` is like `gather`, but the root gets the **sum** instead of a list.


# %% tags=["row-D4"]
def reduce(mine):
    dist.reduce(mine, dst=1)
    return mine


results = see(reduce, undefined=(0, 2, 3))

# %% [markdown]
# On the root, 10 + 20 + 30 + 40 = 100. The stripes show whose numbers are in a sum. The result of all other ranks is **undefined**.
# Tutorials print it all the same, and readers look for a meaning. So let us look at it once.
#
# **Predict.** Four ranks hold 1, 2, 3 and 4, and call `reduce` with root 0, which then holds 10. What does rank 1 hold?

# %%
left_over = predict("after a reduce to rank 0, rank 1 holds", ...)


# %%
def leftovers():
    number = torch.tensor(dist.get_rank() + 1)
    dist.reduce(number, dst=0)
    return number.item()


for world_size in (2, 3, 4):  # what is left over is gloo's
    results = launch(leftovers, world_size=world_size, backend="gloo")
    print(f"{world_size} ranks: {list(results)}")
left_over.measured(results[1])

# %% [markdown]
# Only the first number of each list is a result. The others are unfinished sums: 9 = 2 + 3 + 4 shows the way that gloo's messages took to the root.
# With another size, version or backend you may find something else, and no error tells you.
#
# **The cure:** read the output of `reduce` on the root only. If another rank needs it, call `all_reduce`.
#
# **Check yourself.** Rank 0 alone shall print the mean accuracy. Do you call `reduce`, `gather` or `all_reduce`?
#
# <details><summary>Answer</summary>
# <code>reduce</code>, and rank 0 divides and prints, inside <code>if rank == 0</code>. The <code>reduce</code> itself stands outside
# of the <code>if</code>, because every rank has to call it.
# </details>
#
# ## 3 · All to all
#
# From here on there is no root. With `all_gather`, every rank gets the list of a `gather`. With `reduce_scatter`, each rank gets its part of the sum.


# %% tags=["row-D4"]
def all_gather(mine):
    parts = [torch.empty_like(mine) for _ in range(4)]
    dist.all_gather(parts, mine)
    return parts


results = see(all_gather, numbers=1)


# %% tags=["row-D4"]
def reduce_scatter(mine):
    part = torch.empty_like(mine[:1])
    dist.reduce_scatter(part, list(mine.split(1)))
    return part


results = see(reduce_scatter)

# %% [markdown]
# Fully sharded data parallel training (FSDP), for models that are too large for one device, is built on these two. It gathers
# weights before it uses them, and each rank keeps only its shard of the summed gradients.
#
# ### all_reduce
#
# Data parallel training lives on this one: every rank gives its gradient, and every rank gets the sum. *Direct* means that all
# send their tensors to rank 0, which sends the sum back. A **ring** has no centre. It cuts the tensor into as many chunks as there are ranks. In
# each step, every rank sends one chunk to the next rank and receives one from the rank before. In the first half of the steps a rank adds what it receives. In the second
# half, finished chunks go round.
#
# **Predict.** Four ranks hold 32 bytes each. How many bytes does each rank send in a ring until all have the sum?

# %%
sent_bytes = predict("bytes that each rank sends in a ring", ...)


# %% tags=["row-D4"]
def all_reduce(mine):
    dist.all_reduce(mine)
    return mine


results = see(all_reduce)
sent_bytes.measured(results.trace.traffic("ring").sent_bytes[0])

# %% [markdown]
# Six steps of 8 bytes: three to add up, three to pass on. That stays below twice the tensor, however many ranks there are. Directly, rank 0 sends 96 bytes and
# receives 96, and more with every further rank. In all, both ways send the same 192 bytes; the ring shares them out equally. [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002) describe
# it and prove that the busiest rank cannot send less in any all-reduce that is made of messages.
#
# ### Write the ring
#
# *About 20 minutes.* `in_a_ring` makes an all-reduce of a step: it cuts `x` into a list of chunks, takes 2(n − 1) steps, and puts the chunks together again. **Write
# one step**, with messages only. It changes the list or the chunks in it. `done` counts from 0 and says how many steps are behind you. The picture further down shows what four real ranks
# hold after each step. Look at it first if you like.


# %%
def ring_step(chunks, done):
    """Send a chunk on; add the one that comes to your own, or replace your own."""
    raise NotImplementedError("about 9 lines")


# %%
def in_a_ring(step):
    @functools.wraps(step)  # the check speaks of your step by its name
    def ring(x):
        world_size = dist.get_world_size()
        chunks = list(x.tensor_split(world_size))
        for done in range(2 * (world_size - 1)):
            step(chunks, done)
        return torch.cat(chunks)

    return ring


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# At first, rank 0 sends chunk 0, rank 1 chunk 1, and so on. What a rank has just received is what it sends next. Which chunk is that, on rank 0,
# in the second step? And in the third?
# </details>
# <details><summary>Hint 2: the approach</summary>
# After <i>done</i> steps, rank <i>r</i> sends chunk <i>r</i> − <i>done</i> and receives chunk <i>r</i> − <i>done</i> − 1, both modulo the
# number of ranks. Start to send without waiting, receive into a new tensor, then wait for the sending. As long as <i>done</i> is less than <i>n</i> − 1, add; afterwards, replace.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sending = dist.isend(chunks[(rank - done) % n], (rank + 1) % n)</code>, then <code>dist.recv(arrived, (rank - 1) % n)</code> and
# <code>sending.wait()</code>. At last <code>own += arrived</code> or <code>own.copy_(arrived)</code>.
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


judged = {"spec": ring_spec, "inputs": ring_inputs, "budget": ring_budget, "network": network}
judged |= {"forbid": ("collectives",), "world_sizes": (1, 2, 3, 4)}
judged |= {"cases": (*CASES[:3], CASES[4])}

# %%
check(in_a_ring(ring_step), **judged)

# %% [markdown]
# `fill_up`, folded below, runs a step function in four real ranks, notes what each rank holds after every step, and draws it. Rank *r* brings 1, 10, 100 or
# 1000 times the numbers 1, 2, 3, 4. So a digit tells the chunk, and its place tells the rank: 3300 is chunk 2 of ranks 2 and 3.


# %% jupyter={"source_hidden": true}
def fill_up(step):
    """Draw what four ranks hold after each step; they note it themselves."""

    def worker():
        chunks = list((10 ** dist.get_rank() * torch.arange(1, 5)).split(1))
        held = [torch.cat(chunks).tolist()]
        for done in range(6):
            step(chunks, done)
            held.append(torch.cat(chunks).tolist())
        return held

    try:  # with isend, as above, a step is one for gloo
        results = launch(worker, world_size=4, backend="gloo", trace=True, timeout=5)
    except RuntimeError as error:  # what a rank raised, or a hang
        return print("No picture yet:", error.failures[0].headline if error.failures else error)
    plot_steps(results, results.trace)


# %%
fill_up(ring_step)  # yours

# %% [markdown]
# Here is a finished step, folded up. It has passed the same check. (On GPUs it would hand both messages to `batch_isend_irecv`, as in part 1.)


# %% jupyter={"source_hidden": true}
def finished_step(chunks, done):
    rank, n = dist.get_rank(), dist.get_world_size()
    own = chunks[(rank - done - 1) % n]  # what comes, the rank before has just worked on
    arrived = torch.empty_like(own)
    sending = dist.isend(chunks[(rank - done) % n], (rank + 1) % n)  # all send at once
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
    if done < n - 1:
        own += arrived
    else:
        own.copy_(arrived)


check(in_a_ring(finished_step), **judged)

# %% tags=["row-D4"]
fill_up(finished_step)

# %% [markdown]
# Follow chunk 0. In the first step rank 0 sends it to rank 1, which adds its own 10 and holds 11. Then rank 1 sends this 11 to rank 2, which holds
# 111. After three steps each rank has one finished chunk, in all four colours: that was a `reduce_scatter`. In three more steps the finished chunks
# travel to everybody: an `all_gather`. An arrow that leaves at the bottom comes in at the top, because after rank 3 comes rank 0.
#
# Chapter [06](06_what_communication_costs.ipynb) asks when a ring is worth its many messages.
#
# ### all_to_all
#
# Every rank has a list with something for each of the others.


# %% tags=["row-D4"]
def all_to_all(mine):
    theirs = torch.empty_like(mine)
    dist.all_to_all(list(theirs.split(1)), list(mine.split(1)))
    return theirs


results = see(all_to_all)

# %% [markdown]
# Read the four ranks' numbers as the rows of a matrix: `all_to_all` **transposes** it. Nothing is added up. Mixtures of experts use it: in these models each
# token is sent to one or a few of many sub-networks, and these live on different ranks.
#
# ### barrier
#
# No data at all: nobody goes on until everybody has come. Below, rank *r* arrives *r* × 0.1 seconds late.


# %% tags=["row-D4"]
def barrier():
    time.sleep(0.1 * dist.get_rank())
    dist.barrier()


results = launch(barrier, world_size=4, trace=True)
plot_timeline(results.trace, "Nobody leaves the barrier before rank 3, the last, has come.")

# %% [markdown]
# The earlier a rank comes, the longer it waits. Remember this for part 8.
#
# | you want | call |
# | --- | --- |
# | equal weights at the start | `broadcast` |
# | everybody's gradients summed, everywhere | `all_reduce` |
# | one number for a log | `reduce`, read on the root |
# | everybody's results in one place, or in all | `gather`, `all_gather` |
# | each rank its part of what one rank has read | `scatter` |
# | each rank its part of the sum | `reduce_scatter` |
# | something different from everybody for everybody | `all_to_all` |
# | "wait until rank 0 has downloaded the data" | `barrier` |
#
# **Check yourself.** Why is a barrier after an `all_reduce`, "to be safe", of no use?
#
# <details><summary>Answer</summary>
# No rank has the sum before every rank has given its part: with gloo, an <code>all_reduce</code> contains a barrier. (NCCL's
# holds up the GPU, and not the line of Python: <a href="14_on_a_gpu_who_waits.ipynb">chapter 14</a>.)
# </details>
#
# ## 4 · Which sum?
#
# To reduce need not mean to add. `op=` takes other operators too. Four ranks hold 6, 3, 2 and 3, in binary 110, 011, 010 and 011,
# once as integers and once as floats.


# %%
def try_operator(name, dtype):
    number = torch.tensor([6, 3, 2, 3][dist.get_rank()], dtype=dtype)
    try:
        dist.all_reduce(number, getattr(dist.ReduceOp, name))
        return number.item()
    except RuntimeError as error:
        return f"refused, rank {dist.get_rank()} holds {number.item()}: {error}"


# %% tags=["row-D4"]
print(f"{'operator':10}{'integers':>9}{'floats':>9}")
for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR"):
    values = [  # which operators there are is gloo's matter
        launch(try_operator, name, dtype, world_size=4, backend="gloo")[0]
        for dtype in (torch.int64, torch.float32)
    ]
    print(f"{name:10}" + "".join(f"{str(value)[:7]:>9}" for value in values))
    print(*(f"    {value}\n" for value in values if isinstance(value, str)), sep="", end="")

# %% [markdown]
# BAND, BOR and BXOR work bit by bit (and, or, exclusive or), and the bits of a float have no such meaning. But look at AVG on integers: the
# error came **after** the sum. Rank 0 started with 6 and now holds 14. A program that catches this error goes on with a sum.
#
# **The cure:** convert to float first, or take SUM and divide with `//`.
#
# **Check yourself.** Which operator says whether *any* rank met a NaN?
#
# <details><summary>Answer</summary>
# Each rank gives 1 if it met one, else 0. <code>MAX</code> (or <code>BOR</code>) is 1 if any did. <code>MIN</code> would ask whether all did.
# </details>
#
# ## 5 · A tensor with gaps
#
# `whole[::2]` is a **view**: it has places 0, 2, 4 and 6 of the same memory, with gaps between them. Two ranks hold eight ones each and sum only this view.
#
# **Predict.** What do the eight numbers of `whole` become? Answer with a list of eight.

# %%
whole_after = predict("whole, after the sum of whole[::2]", ...)


# %%
def sum_of_a_view():
    whole = torch.ones(8)
    before = whole.clone()
    dist.all_reduce(whole[::2])
    return before, whole


# NCCL refuses such a tensor.
before, after = zip(*launch(sum_of_a_view, world_size=2, backend="gloo"))
plot_ranks(before, after)
whole_after.measured(after[0].int())

# %% [markdown]
# Wrong, and **no error**. Gloo took the address of the view and the length 4, and summed the first four places in memory. Places 4 and 6
# lack the other rank's numbers, and places 1 and 3, which nobody asked for, have changed.
#
# Which collectives do this? The folded cell runs each one twice: first with gaps in what a rank hands in, then in what it gets back.


# %% jupyter={"source_hidden": true}
def without_gaps(x):
    return x.clone()


def with_gaps(x):
    return torch.stack([x, -x], dim=1).flatten()[::2]


def attempt(name, handed_in, got_back):
    """What a rank holds after a collective on tensors that these two functions make."""
    rank, at_root = dist.get_rank(), dist.get_rank() == 1
    mine, many = (torch.arange(4.0 * n).reshape(n, 4) + 100 * rank for n in (1, 4))
    mine, many = handed_in(mine[0]), [handed_in(row) for row in many]
    one, four = got_back(torch.zeros(4)), [got_back(torch.zeros(4)) for _ in range(4)]
    call, result = {
        "broadcast": (lambda: dist.broadcast(mine, 1), mine),
        "all_reduce": (lambda: dist.all_reduce(mine), mine),
        "reduce": (lambda: dist.reduce(mine, 1), mine if at_root else None),
        "scatter": (lambda: dist.scatter(one, many if at_root else None, 1), one),
        "gather": (lambda: dist.gather(mine, four if at_root else None, 1), four),
        "all_gather": (lambda: dist.all_gather(four, mine), four),
        "reduce_scatter": (lambda: dist.reduce_scatter(one, many), one),
        "all_to_all": (lambda: dist.all_to_all(four, many), four),
    }[name]
    call()
    return str(result)


def verdict(name, *makes):
    runs = (  # gloo's verdict
        launch(attempt, name, *how, world_size=4, backend="gloo")
        for how in (makes, (without_gaps, without_gaps))
    )
    return "right" if [*next(runs)] == [*next(runs)] else "silently wrong"


# %%
print(f"{'gaps in what':16}{'is handed in':>16}{'comes back':>16}")
for name in ("broadcast", "all_reduce", "reduce"):
    print(f"{name:16}{verdict(name, with_gaps, without_gaps):>16}{'(the same)':>16}")
for name in ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"):
    first, second = (without_gaps, with_gaps), (with_gaps, without_gaps)
    print(f"{name:16}{verdict(name, *second):>16}{verdict(name, *first):>16}")

# %% [markdown]
# The three that work in place are wrong. So are `scatter`, on either side, and the output of `reduce_scatter`. The others copy, and are right. NCCL is stricter: it
# refuses a tensor with gaps and says *Tensors must be contiguous*.
#
# The cure has two halves, and the second one is easily forgotten. `contiguous()` makes a *copy* of a view with gaps, so you have to write the result back.


# %%
def sum_of_a_copy():
    whole = torch.ones(8, device=my_device())
    part = whole[::2].contiguous()
    dist.all_reduce(part)
    whole[::2] = part
    return whole.int().tolist()


print(launch(sum_of_a_copy, world_size=2)[0])

# %% [markdown]
# A line for your own code: `assert tensor.is_contiguous()` before a collective.
#
# **Check yourself.** What does `dist.all_reduce(whole[::2].contiguous())` change in `whole`?
#
# <details><summary>Answer</summary>
# Nothing: the copy is summed and thrown away. A column of a matrix, <code>matrix[:, 0]</code>, has gaps as well; a row,
# <code>matrix[0]</code>, has none.
# </details>
#
# ## 6 · Start now, wait later
#
# With `async_op=True` a collective returns at once and gives you a `work`. Until `work.wait()`, the tensor belongs to the
# collective. Below, ranks hold 1 and 2, and rank 0 reads too early. To make that certain, rank 1 joins in only after rank 0 has sent it a note.


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


# On a GPU two streams would race, and now one number is read, now the other.
print(launch(read_too_early, world_size=2, backend="gloo")[0])

# %% [markdown]
# Rank 0 read 1, its own number, instead of 3, and there was no error. In general you may find anything there: old, new or half-done.
#
# So why start early? To compute while the network works. A backward pass yields its gradients one after another: here three of a megabyte each. On
# the virtual clock we say that each takes 300 µs to compute. Ranks 0 and 1 wait for each sum at once. Ranks 2 and 3, another pair, wait for all three at the end.


# %%
def two_pairs():
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine, early = pairs[dist.get_rank() // 2], dist.get_rank() < 2
    works = []
    for _ in range(3):
        gradient = torch.ones(250_000, device=my_device())
        works.append(dist.all_reduce(gradient, group=mine, async_op=True))
        if early:
            works[-1].wait()
    for work in works:
        work.wait()


trace = launch(two_pairs, world_size=4, trace=True).trace
plot_timeline(trace.replay(network, lambda event: 300.0 * (event.kind == "all_reduce")))

# %% [markdown]
# An `all_reduce` takes 120 µs here. One by one: 3 × (300 + 120) = 1,260 µs. Overlapped: 3 × 300 + 120 = 1,020 µs. Only the last sum
# is still waited for, because nothing is left to compute beside it. In chapter [04](04_ddp_training.ipynb) you see DDP do the same.
#
# **Check yourself.** A friend writes `work = dist.all_reduce(x, async_op=True); work.wait()`. What does that gain?
#
# <details><summary>Answer</summary>
# Nothing: with gloo it is a blocking call in two lines. Something useful must stand between the two. (With NCCL neither line blocks Python:
# <a href="14_on_a_gpu_who_waits.ipynb">chapter 14</a>.)
# </details>
#
# ## 7 · Is all_reduce more than reduce and broadcast?
#
# One of the five articles behind this course, [the DDP lab](README.md), builds an `all_reduce` from a `reduce` and a `broadcast`. It trains with both and reports
# 12.084 s against 12.250 s with two ranks: 1.4 % more. With *one* rank, which has nobody to send to, it reports 14.220 s against 14.709 s: 3.4 % more. So the
# difference is not the price of sending. A single measurement of each cannot tell 1.4 % from chance.
#
# A replay has no noise. **Predict.** With eight ranks that send in rings: how many times as long do `reduce` and `broadcast` take as an `all_reduce`?

# %%
times_as_long = predict("reduce and broadcast take, times an all_reduce", ...)


# %%
def reduce_and_broadcast(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)  # overwrites what reduce left off root


def recorded(way, world_size):
    box = torch.ones(250_000)
    on_my_device = lambda: way(box.to(my_device()))
    return launch(on_my_device, world_size=world_size, trace=True).trace


def replayed_us(way, world_size, algorithm):
    model = Network(latency_us=10, gbit_s=80, algorithm=algorithm)
    return max(recorded(way, world_size).replay(model).finish_us)


# %% tags=["row-D7"]
print("µs for 1 MB: all_reduce / reduce + broadcast = ratio")
for world_size in (2, 4, 8):
    print(f"{world_size} ranks", end="")
    for algorithm in ("direct", "tree", "ring"):
        ways = (all_reduce, reduce_and_broadcast)
        one, two = (replayed_us(way, world_size, algorithm) for way in ways)
        print(f"   {algorithm}{one:6.0f} /{two:5.0f} = {two / one:.2f}", end="")
    print()
times_as_long.measured(round(two / one, 2), within=0.05)

# %% [markdown]
# Directly or along a tree, our model makes an `all_reduce` of a reduce and a broadcast, so 1.00 is no discovery. The ring is different. Does it gain because it sends less?

# %%
for way in (all_reduce, reduce_and_broadcast):
    sent_mb = [size / 1e6 for size in recorded(way, 8).traffic("ring").sent_bytes]
    in_all, busiest = sum(sent_mb), max(sent_mb)
    print(f"{way.__name__:20}: {in_all:.1f} MB in all, {busiest:.2f} MB by the busiest rank")

# %% [markdown]
# No: in all they send the same. But in the ring `all_reduce` every rank sends and receives in every step, so no link stands idle.
#
# This is no law about reduce and broadcast. Here they pass the tensor on in *n* pieces along a chain, and the last rank waits until the first piece has come all the way, twice. With
# more and smaller pieces this wait shrinks. What remains with eight ranks is 2 MB on each of the chain's seven links, against 1.75 MB on each of the ring's eight: both 14 MB. The lab's bonus tries it.
#
# **Check yourself.** What would you need to know before you believe "X is 1.4 % faster"?
#
# <details><summary>Answer</summary>
# How much the measurement changes when it is repeated, and what it shows where the supposed cause is absent, as with one rank here.
# </details>
#
# ## 8 · Who holds the others up?
#
# The same lab lets rank 1 sleep during training, and reports the total time: 10.396 s without sleep, 12.336 s and 36.612 s with. A total says that
# something is slow. Can we see **who**? Below, four ranks train, and rank 1 sleeps for half a second before its third sum. The cell adds up how long each rank is inside `all_reduce`.
#
# **Predict.** Rank 1 comes late. Does it spend less time in `all_reduce` than the other ranks, as much, or more?

# %%
in_the_call = predict(
    "time of the late rank in all_reduce", ..., choices=("less", "as much", "more")
)

# %%
images = digits(train=True)


def train(nap_s):
    rank, device = dist.get_rank(), my_device()
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    for step in range(4):
        mine = slice(32 * (4 * step + rank), 32 * (4 * step + rank + 1))
        outputs = model(images.data[mine].to(device))
        model.zero_grad()
        cross_entropy(outputs, images.targets[mine].to(device)).backward()
        for k, parameter in enumerate(model.parameters()):
            time.sleep(nap_s * (rank == 1 and step == 0 and k == 2))
            dist.all_reduce(parameter.grad)


# %% tags=["row-D8"]
trace = launch(train, 0.5, world_size=4, backend="gloo", trace=True).trace  # NCCL only queues
inside_s = [sum(e.end_s - e.start_s for e in trace.of_rank(rank)) for rank in range(4)]
print("ms in all_reduce, ranks 0 to 3:", ", ".join(f"about {1000 * s:.0f}" for s in inside_s))
ratio = inside_s[1] / inside_s[0]
in_the_call.measured("less" if ratio < 0.7 else "more" if ratio > 1.4 else "as much")

# %% [markdown]
# Less: it is the others who wait. In the profile of rank 0, `all_reduce` takes nearly all the time, so one blames the network. The sleep
# shows in rank 1's profile only.
#
# The lab has four experiments: 0.001 s of sleep at the start, 0.01 s at every sum, 0.5 s at a single one, and 6 s after a backward pass. In a replay
# nobody has to sleep. We take a recording without sleep, say that a backward pass takes 2 ms, and add the full naps on the virtual clock.

# %%
trace = launch(train, 0.0, world_size=4, trace=True).trace
NAPS_MS = {  # before sum number k; there are four in each step
    "nowhere": lambda k: 0,
    "at the start": lambda k: 1 * (k == 0),
    "at every sum": lambda k: 10,
    "at one sum": lambda k: 500 * (k == 5),
    "after a backward pass": lambda k: 6000 * (k == 8),
}


# %%
def replayed(where):
    def computing_us(event):
        nap_ms = NAPS_MS[where](event.index) if event.rank == 1 else 0
        return 2000 * (event.index % 4 == 0) + 1000 * nap_ms

    return trace.replay(network, computing_us)


# %% tags=["row-D8", "row-D9"]
print("ms in all_reduce       rank 0   rank 1   rank 2   rank 3   all are done at")
for where in NAPS_MS:
    replay, waits_ms = replayed(where), [0.0] * 4
    for bar in replay.intervals:
        if bar.what == "wait":
            waits_ms[bar.rank] += (bar.end_us - bar.start_us) / 1000
    row = "".join(f"{ms:9.2f}" for ms in waits_ms)
    print(f"{where:21}{row}{max(replay.finish_us) / 1000:12.2f} ms")
plot_timeline(replayed("at every sum"), "Ranks 0, 2 and 3 wait 16 times, each time for rank 1.")

# %% [markdown]
# In all four experiments **the straggler is the rank that waits least**: about 1 ms, where the others wait up to six seconds. Without a nap all wait
# alike. And in every row the ranks are done together: a sum ends for all at the same time, so whatever makes one rank late shows as waiting on all the *others*.
#
# That is enough to find one straggler. If several ranks are late in turn, a rank that is always nearly last waits least of all, and yet nobody waits for it. So look at who comes **last** to each sum; the lab
# has you write this.
#
# Run the next cell and move its sliders (what is saved here is the picture alone). Make a rank slow, then the network. Which of the two makes one
# rank differ from the others?

# %%
explore(trace, network, lambda event: 2000.0 * (event.index % 4 == 0))

# %% [markdown]
# A slow network makes everybody wait alike. Only a slow rank makes the others wait for it.
#
# **Check yourself.** On 63 of 64 ranks the profile says: 60 % of the time in `all_reduce`. On rank 17 it says 2 %. What do you look at?
#
# <details><summary>Answer</summary>
# At rank 17's machine: its data loading, its temperature, what else runs on it. It is the one that all others wait for.
# </details>
#
# ## What you know now
#
# All nine collectives are patterns of one move: somebody sends, somebody receives. Every rank calls them, in the same order. Do not read a result before `wait()`,
# through a view with gaps, or off the root. And what one rank loses in time, all lose in the next sum.

# %%
predict()

# %% [markdown]
# Two of the six are easily got wrong. `reduce` neither leaves rank 1's own 2 where it was, nor does it write the 10 there too: it left 9. And
# the sum of `whole[::2]` doesn't change every second place to 2, 1, 2, 1 and so on: it changed the first four.
#
# **Next:** [04 · DDP training](04_ddp_training.ipynb) makes one of these calls for you, at the right moment.
