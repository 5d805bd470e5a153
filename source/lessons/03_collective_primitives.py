# %% [markdown]
# # 03 · Collective primitives
#
# **What can ranks say to each other, and who waits for whom?**
#
# In 90 minutes you will be able to
#
# 1. pass messages between two ranks without a deadlock;
# 2. choose among nine collectives, and say who holds what and who sends what to whom;
# 3. keep away from results that are silently wrong: read too early, off root, with gaps;
# 4. find the rank that slows all others down.
#
# **Hardware:** two cores; all ranks use gloo on the CPU. **Before:** [02 · Process groups](02_process_groups.ipynb).
# **Next:** [04 · DDP training](04_ddp_training.ipynb).
# **Lab:** [03 · Collective primitives](../exercises/03_collective_primitives.ipynb).

# %%
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils import (
    Network,
    animate,
    digits,
    explore,
    launch,
    plot_ranks,
    plot_timeline,
)

# %% [markdown]
# ## 1 · One sends, one receives
#
# All that ranks do together is made of one move: a rank **sends** a tensor, another **receives** it. The receiver has a
# tensor of the same shape and dtype ready, which is overwritten. Below, `trace=True` records every call of every rank.
#
# **Predict.** What does each rank hold afterwards?


# %% tags=["row-D3"]
def hand_over():
    rank = dist.get_rank()
    box = torch.full((4,), rank + 1)
    before = box.clone()
    if rank == 0:
        dist.send(box, dst=1)
    else:
        dist.recv(box, src=0)
    return before, box


results = launch(hand_over, world_size=2, backend="gloo", trace=True)
before, after = zip(*results)
plot_ranks(before, after)
print(*results.trace, sep="\n")

# %% [markdown]
# Rank 0 keeps what it sent; rank 1's twos are gone. And the **trace** says so: one `send` and one `recv` of 32 bytes, each with its
# line. Squares have the colour and mark of the rank that their number comes from.
#
# Now both want to give and to take, so both send first. This cell is meant to fail, after four seconds. **Predict:** where does
# each rank stand?


# %% tags=["raises-exception", "row-D3"]
def both_send_first():
    other = 1 - dist.get_rank()
    mine, theirs = torch.full((4,), dist.get_rank()), torch.empty(4, dtype=torch.int64)
    dist.send(mine, other)
    dist.recv(theirs, other)
    return theirs


launch(both_send_first, world_size=2, backend="gloo", timeout=4)

# %% [markdown]
# Read it aloud. *Not done after 4 s*: nothing failed, nothing moved. *Waiting in send*, on **both** ranks, at the same line: each
# waits for the other to receive, and neither gets to its `recv`. 32 bytes suffice. That is a **deadlock**. Other libraries,
# such as MPI, may keep a small message in a buffer and go on; there, the mistake sleeps until the tensors grow.
#
# Two cures: agree on an **order**, or start with `isend`, which returns **at once** with a `work` to wait for.
#
# Which is faster? Times between processes of one laptop tell about the laptop. So the course **replays** what was recorded on a
# network that you describe: here a message takes 10 µs, plus its size at 80 Gbit/s. This *virtual* time is the same in every run.
#
# **Predict.** At 80 Gbit/s a megabyte needs 100 µs. How long does each exchange take?


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


def at_once(mine):
    other, theirs = 1 - dist.get_rank(), torch.empty_like(mine)
    sending = dist.isend(mine, other)
    dist.recv(theirs, other)
    sending.wait()  # until then, `mine` must not change
    return theirs


# %% tags=["row-D3"]
predicted_us = {"in_order": "?", "at_once": "?"}
network = Network(latency_us=10, gbit_s=80)

for cure in (in_order, at_once):
    exchange = lambda: cure(torch.full((250_000,), float(dist.get_rank())))[0].item()
    results = launch(exchange, world_size=2, backend="gloo", trace=True)
    took_us = max(results.trace.replay(network).finish_us)
    print(f"{cure.__name__}: got {results}, predicted {predicted_us[cure.__name__]} µs,", end=" ")
    print(f"replayed {took_us:.0f} µs")

# %% [markdown]
# Both exchange 0 and 1. In order, two messages follow one another: 2 × (10 + 100) = 220 µs. At once, they pass each other:
# 110 µs, because a network port can send and receive at the same time.
#
# With many ranks nobody wants to think of an order. `batch_isend_irecv` starts a list of sends and receives together. Here four
# ranks pass a number to the right, as in a ring.


# %%
def pass_on():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine, theirs = torch.full((2,), rank), torch.empty(2, dtype=torch.int64)
    to_the_right = dist.P2POp(dist.isend, mine, (rank + 1) % world_size)
    from_the_left = dist.P2POp(dist.irecv, theirs, (rank - 1) % world_size)
    for work in dist.batch_isend_irecv([to_the_right, from_the_left]):
        work.wait()
    return theirs[0].item()


results = launch(pass_on, world_size=4, backend="gloo", trace=True)
print("each rank got", results)
print("bytes from each rank to each:", *results.trace.traffic().bytes, sep="\n")

# %% [markdown]
# Each row of the matrix is a sender, each column a receiver. These messages were **observed**: your code sent them one by one.
#
# **Check yourself.** Five ranks stand in a ring; even ones send first, odd ones receive first. Is there a deadlock?
#
# <details><summary>Answer</summary>
# No. Ranks 4 and 0 are neighbours and both send first, so 4 waits until 0, served by 1, gets to its
# receive. One pair that takes turns is enough to break the circle of waiting.
# </details>
#
# ## 2 · One to all, all to one
#
# A **collective** is a call that every rank of the group makes. To look at nine of them we need one instrument. `see` gives four ranks
# four numbers each, runs the collective in them, and draws what they hold before and after. `who_to_whom` prints who sends how much to whom.


# %% jupyter={"source_hidden": true}
def who_to_whom(trace, *algorithms):
    """Print the calls recorded, then bytes from each rank (row) to each (column), by model."""
    for what in dict.fromkeys(event.what for event in trace):
        ranks = [str(event.rank) for event in trace if event.what == what]
        print(f"recorded on rank {', '.join(ranks)}: {what}")
    print("\nbytes, if", *(f"{name + ', to rank':>24}" for name in algorithms))
    print(" " * 9, *[f"{0:6}{1:6}{2:6}{3:6}" for _ in algorithms])
    models = [trace.traffic(name) for name in algorithms]
    for rank in range(4):
        pairs = [zip(model.bytes[rank], model.messages[rank]) for model in models]
        rows = ["".join(f"{b if count else '·':>6}" for b, count in row) for row in pairs]
        print(f"from {rank}   ", *rows)


# %%
def see(collective, numbers=4, undefined=()):
    """Run a collective in four real ranks, draw what they hold, print who sends to whom."""

    def worker():
        mine = 10 * (dist.get_rank() + 1) + torch.arange(numbers)
        before = mine.clone()
        return before, collective(mine)

    results = launch(worker, world_size=4, backend="gloo", trace=True)
    before, after = zip(*results)
    plot_ranks(before, after, undefined=undefined)
    who_to_whom(results.trace, "direct", "ring")
    return results


# %% [markdown]
# ### broadcast
#
# One rank, the source, gives all others what it has. **Predict:** what happens to the tensors of ranks 0, 2 and 3?


# %% tags=["row-D4"]
def broadcast(mine):
    dist.broadcast(mine, src=1)
    return mine


results = see(broadcast)

# %% [markdown]
# They are overwritten. Training begins with a broadcast of rank 0's weights, so that all models are equal.
#
# Now be exact about the lines below the picture. **Recorded** is what was seen: each rank called `broadcast` once. Which messages gloo made
# of it, it does not say; the two matrices are **models**. *Direct*: the source sends to each rank itself. *Ring*: each rank passes pieces
# on to the next. Is the direct model what a direct broadcast would really send? Write one and compare.


# %%
def broadcast_by_hand():
    mine = 10 * (dist.get_rank() + 1) + torch.arange(4)
    if dist.get_rank() != 1:
        dist.recv(mine, src=1)
    else:
        for other in (0, 2, 3):
            dist.send(mine, other)
    return mine


by_hand = launch(broadcast_by_hand, world_size=4, backend="gloo", trace=True)
print("same result:", all(a.equal(b) for a, (_, b) in zip(by_hand, results)))
print("observed = modelled:", by_hand.trace.traffic() == results.trace.traffic("direct"))

# %% [markdown]
# The model keeps its word. In chapter [06](06_what_communication_costs.ipynb) you write the ring, too, and learn which
# one is cheaper when.
#
# ### scatter and gather
#
# `scatter` deals a list of tensors out, one to each rank; `gather` collects one of each rank into a list. Only the root has the list: all
# others pass `None`. **Predict:** what does rank 3 hold after each?


# %% tags=["row-D4"]
def scatter(mine):
    hand = list(mine.split(1)) if dist.get_rank() == 1 else None
    piece = torch.empty(1, dtype=mine.dtype)
    dist.scatter(piece, hand, src=1)
    return piece


results = see(scatter)


# %% tags=["row-D4"]
def gather(mine):
    hand = [torch.empty_like(mine) for _ in range(4)] if dist.get_rank() == 1 else None
    dist.gather(mine, hand, dst=1)
    return hand


results = see(gather, numbers=1)

# %% [markdown]
# The matrix of `gather` is that of `scatter` with rows and columns swapped. Both have no ring of their own: every number has one
# destination, so there is nothing to pass on, and all of it goes through the root's port. With many ranks, that port is the bottleneck.
#
# ### reduce
#
# As `gather`, but the root gets the **sum** instead of a list. **Predict:** the first number on rank 1, and on rank 0.


# %% tags=["row-D4"]
def reduce(mine):
    dist.reduce(mine, dst=1)
    return mine


results = see(reduce, undefined=(0, 2, 3))

# %% [markdown]
# 10 + 20 + 30 + 40 = 100, on the root. What the others hold is marked as **undefined**. Tutorials print it all the same, and readers
# look for a meaning. Here it is once, with one number per rank, and root 0.
#
# **Predict.** Ranks hold 1, 2, 3 and 4. What is left on rank 1?


# %%
def leftovers():
    number = torch.tensor(dist.get_rank() + 1)
    dist.reduce(number, dst=0)
    return number.item()


for world_size in (2, 3, 4):
    print(f"{world_size} ranks:", list(launch(leftovers, world_size=world_size, backend="gloo")))

# %% [markdown]
# Only the first number of each line is a result. The others are half-done sums: 9 = 2 + 3 + 4 shows how gloo's chain came by on its way
# to the root. Another size, version or backend may leave something else, and none of them an error.
#
# **The cure:** read the output of `reduce` on the root only. If another rank needs it, call `all_reduce`.
#
# **Check yourself.** Rank 0 alone is to print the mean accuracy. `reduce`, `gather` or `all_reduce`?
#
# <details><summary>Answer</summary>
# <code>reduce</code>, and divide on rank 0, inside <code>if rank == 0</code>. But the <code>reduce</code> itself must stand outside
# of the <code>if</code>: every rank calls it.
# </details>
#
# ## 3 · All to all
#
# From here on there is no root. In **all_gather** everybody gets the list of a `gather`. In **reduce_scatter** the sum of a `reduce` is dealt
# out as by a `scatter`.
#
# **Predict.** The four sums are 100, 104, 108 and 112. What does rank 2 hold after each of the two?


# %% tags=["row-D4"]
def all_gather(mine):
    hand = [torch.empty_like(mine) for _ in range(4)]
    dist.all_gather(hand, mine)
    return hand


results = see(all_gather, numbers=1)


# %% tags=["row-D4"]
def reduce_scatter(mine):
    piece = torch.empty(1, dtype=mine.dtype)
    dist.reduce_scatter(piece, list(mine.split(1)))
    return piece


results = see(reduce_scatter)

# %% [markdown]
# In both, each rank sends 24 bytes, whatever the model; in the ring to one neighbour only. Training that is too large for one device
# (FSDP) lives on these two: it gathers weights before use, and keeps its own piece of the gradients' sum.
#
# ### all_reduce
#
# Data parallel training lives on this one: everybody gives a gradient and gets the sum. **Predict:** in a ring, how many
# bytes does each rank send, if it holds 32? Then step through the ring's messages, or press play.


# %% tags=["row-D4"]
def all_reduce(mine):
    dist.all_reduce(mine)
    return mine


results = see(all_reduce)

# %%
animate(results.trace)

# %% [markdown]
# Direct: everything goes to rank 0 and back, 96 bytes into one port and 96 out of it. In the ring all ranks do the same: 48 bytes each.
#
# The 24 messages go around twice. In three turns quarters are added up until each rank has one finished quarter: a
# `reduce_scatter`. In three more these are passed on: an `all_gather`. You saw the halves, 24 + 24 bytes.
#
# ### all_to_all
#
# Every rank has a list with something for each of the others. **Predict:** rank 0 holds 10, 11, 12, 13. What will it hold?


# %% tags=["row-D4"]
def all_to_all(mine):
    theirs = torch.empty_like(mine)
    dist.all_to_all(list(theirs.split(1)), list(mine.split(1)))
    return theirs


results = see(all_to_all)
before, after = zip(*results)
print("a transposed matrix:", torch.stack(after).equal(torch.stack(before).T))

# %% [markdown]
# Write the ranks' numbers as the rows of a matrix: `all_to_all` **transposes** it. Nothing is added up. Mixtures of experts send
# tokens to the rank of their expert in this way. The ring cannot save anything here, so the model takes turns in pairs.
#
# ### barrier
#
# No data at all: nobody goes on until everybody has come. Below, rank r arrives r × 0.1 seconds late.


# %% tags=["row-D4"]
def barrier(mine):
    time.sleep(0.1 * dist.get_rank())
    dist.barrier()
    return mine


results = see(barrier)
last_arrival = max(event.start_s for event in results.trace)
assert all(event.end_s >= last_arrival for event in results.trace)
plot_timeline(results.trace, "Nobody leaves the barrier before rank 3, the last, has come.")

# %% [markdown]
# The messages are empty, 0 bytes, and still they must arrive. The earlier a rank comes, the longer it waits: keep that for part 8.
#
# | you want | call |
# | --- | --- |
# | equal weights at the start | `broadcast` |
# | everybody's gradients summed, everywhere | `all_reduce` |
# | one number for a log | `reduce`, read on the root |
# | everybody's results in one place, or in all | `gather`, `all_gather` |
# | each rank its part of what one rank has read | `scatter` |
# | each rank its part of the sum | `reduce_scatter` |
# | everybody something else for everybody | `all_to_all` |
# | "wait until rank 0 has downloaded the data" | `barrier` |
#
# **Check yourself.** Why no barrier after an `all_reduce`, "to be safe"?
#
# <details><summary>Answer</summary>
# No rank has the sum before every rank has given its part: with gloo, an <code>all_reduce</code> contains a barrier. (NCCL's
# holds up the GPU, and not the line of Python: <a href="12_on_a_gpu_who_waits.ipynb">chapter 12</a>.)
# </details>
#
# ## 4 · Which sum?
#
# "Reduce" need not mean add. `op=` takes one of nine operators. Four ranks hold 6, 3, 2 and 3, in binary 110, 011, 010 and 011,
# once as integers and once as floats.
#
# **Predict.** The bitwise operators: BAND (and), BOR (or), BXOR (exclusive or).

# %%
predicted = {"BAND": "?", "BOR": "?", "BXOR": "?"}
OPERATORS = {
    name: getattr(dist.ReduceOp, name)
    for name in ("SUM", "PRODUCT", "MIN", "MAX", "AVG", "BAND", "BOR", "BXOR")
}
OPERATORS["PREMUL_SUM"] = dist._make_nccl_premul_sum(2.0)  # first times 2; made for NCCL


def try_operator(op, dtype):
    number = torch.tensor([6, 3, 2, 3][dist.get_rank()], dtype=dtype)
    try:
        dist.all_reduce(number, op)
        return number.item(), ""
    except RuntimeError as error:
        return "refused", f"{error}; rank {dist.get_rank()} now holds {number.item()}"


# %% tags=["row-D4"]
def try_all():
    dtypes = (torch.int64, torch.float32)
    return {name: [try_operator(op, dtype) for dtype in dtypes] for name, op in OPERATORS.items()}


results = launch(try_all, world_size=4, backend="gloo")
print(f"{'operator':12}{'integers':>9}{'floats':>9}   predicted")
for name, ((whole, _), (real, _)) in results[0].items():
    print(f"{name:12}{whole:>9}{real:>9}   {predicted.get(name, '')}")
for name, i in [("AVG", 0), ("BAND", 1), ("PREMUL_SUM", 1)]:
    print(f"{name}: {results[0][name][i][1]}")

# %% [markdown]
# The three error messages, in one line each. Bits of a float mean nothing, and PREMUL_SUM is for NCCL. But look at AVG on integers: the
# error came **after** the sum, and a rank that started with 6 now holds 14. Whoever catches that error goes on with a sum.
#
# **The cure:** convert to float first, or take SUM and divide with `//`.
#
# **Check yourself.** Which operator says whether *any* rank met a NaN?
#
# <details><summary>Answer</summary>
# Each rank gives 1 if it met one, else 0: <code>MAX</code> (or <code>BOR</code>) is 1 if any did. <code>MIN</code> would ask whether all did.
# </details>
#
# ## 5 · A tensor with gaps
#
# `whole[::2]` is a **view**: places 0, 2, 4 and 6 of the same memory, with gaps between. Two ranks sum such a view of eight ones.
#
# **Predict.** Which of the eight become 2?


# %%
def sum_of_a_view():
    whole = torch.ones(8)
    before = whole.clone()
    dist.all_reduce(whole[::2])
    return before, whole


before, after = zip(*launch(sum_of_a_view, world_size=2, backend="gloo"))
plot_ranks(before, after)
print("the view now holds", after[0][::2].tolist())

# %% [markdown]
# Wrong, and **no error**. Gloo took the address of the view and the length 4, and summed the first four places in memory, gaps included. The
# view shows 2, 2, 1, 1; and places 1 and 3, which nobody asked for, have changed.
#
# Which collectives do this? Run each on a view and on a copy without gaps, which `contiguous()` makes.


# %%
def with_and_without_gaps(collective):
    def numbers():
        return (torch.arange(8.0) + 10 * dist.get_rank())[::2]

    got, wanted = collective(numbers()), collective(numbers().contiguous())
    return str(got) == str(wanted)


for collective in (broadcast, reduce, all_reduce, all_gather, gather):
    results = launch(with_and_without_gaps, collective, world_size=4, backend="gloo")
    checked = results[1:2] if collective is reduce else results  # off its root: undefined
    print(f"{collective.__name__:10} {'right' if all(checked) else 'silently wrong'}")

# %% [markdown]
# Those that work **in place** lie. The cure has two halves, and the second is easily forgotten: `contiguous()` makes a *copy* of a view
# with gaps, so the result must be written back.


# %%
def sum_of_a_copy():
    whole = torch.ones(8)
    part = whole[::2].contiguous()
    dist.all_reduce(part)
    whole[::2] = part
    return torch.ones(8), whole


before, after = zip(*launch(sum_of_a_copy, world_size=2, backend="gloo"))
plot_ranks(before, after)

# %% [markdown]
# Every second place is 2, and no other. A line for your own code: `assert tensor.is_contiguous()` before an in-place collective.
#
# **Check yourself.** What does `dist.all_reduce(whole[::2].contiguous())` change in `whole`?
#
# <details><summary>Answer</summary>
# Nothing: the copy is summed and thrown away. A column, <code>matrix[:, 0]</code>, has gaps as well; a row,
# <code>matrix[0]</code>, has none.
# </details>
#
# ## 6 · Start now, wait later
#
# With `async_op=True` a collective returns **at once** with a `work`. Until `work.wait()`, the tensor belongs to the
# collective. Rank 0 reads it too early; so that "too early" is certain, rank 1 joins in only after rank 0 has told it that it has read.
#
# **Predict.** Ranks hold 1 and 2. What does rank 0 read before and after `wait()`?


# %%
def read_too_early():
    number, note = torch.tensor(dist.get_rank() + 1), torch.zeros(1)
    if dist.get_rank() == 1:
        dist.recv(note, src=0)
        time.sleep(0.1)
        dist.all_reduce(number)
        return None
    work = dist.all_reduce(number, async_op=True)
    early, finished = number.item(), work.is_completed()
    dist.send(note, dst=1)
    time.sleep(0.05)  # rank 0 has other work to do
    work.wait()
    return {"too early": early, "finished then": finished, "after wait()": number.item()}


results = launch(read_too_early, world_size=2, backend="gloo", trace=True)
print(results[0])
plot_timeline(results.trace, "Rank 0 goes on, with a send and its own code, until wait() holds it.")

# %% [markdown]
# 1 instead of 3: its own number, and no error. In general what one reads there may be anything, old, new or half-done.
#
# So why do it? To compute while others talk. A backward pass yields its gradients one after another. Below are three of a megabyte each. On
# the virtual clock we say how long computing takes: 300 µs before each `all_reduce`. **Predict:** how much of the communication
# can be hidden?


# %%
def one_by_one(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)


def overlapped(gradients):
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for work in works:
        work.wait()


def computing_us(event):
    return 300.0 if event.kind == "all_reduce" else 0.0


for way in (one_by_one, overlapped):
    step = lambda: way([torch.ones(250_000) for _ in range(3)])
    trace = launch(step, world_size=2, backend="gloo", trace=True).trace
    replay = trace.replay(network, computing_us)
    print(f"{way.__name__}: {max(replay.finish_us):.0f} µs")
    plot_timeline(replay)

# %% [markdown]
# An `all_reduce` takes 120 µs here. One by one: 3 × (300 + 120) = 1,260. Overlapped: 3 × 300 + 120 = 1,020; only the last one
# is still waited for, as nothing is left to compute beside it. In chapter [04](04_ddp_training.ipynb) you see DDP do the same.
#
# **Check yourself.** A friend calls `work = dist.all_reduce(x, async_op=True); work.wait()`. What is gained?
#
# <details><summary>Answer</summary>
# Nothing: with gloo it is a blocking call in two lines. Something useful must stand between the two. (With NCCL neither line blocks Python:
# <a href="12_on_a_gpu_who_waits.ipynb">chapter 12</a>.)
# </details>
#
# ## 7 · Is all_reduce more than reduce and broadcast?
#
# A published lab builds it from the two, trains with both, and compares the time. So do we: the same training, whose gradients are averaged
# by one or the other. Off root, what `reduce` leaves is garbage, but `broadcast` overwrites it.


# %%
training = digits(train=True)


def reduce_and_broadcast(tensor):
    dist.reduce(tensor, dst=0)
    dist.broadcast(tensor, src=0)


def train(aggregate, epochs):
    """Train on this rank's share of the digits; return the seconds, and the weights."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    shard = (training.data[rank::world_size], training.targets[rank::world_size])
    begun = time.perf_counter()
    for _ in range(epochs):
        for images, labels in zip(*(part.split(32) for part in shard)):
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            for parameter in model.parameters():
                aggregate(parameter.grad)
                parameter.grad /= world_size
            optimizer.step()
    return time.perf_counter() - begun, nn.utils.parameters_to_vector(model.parameters()).detach()


# %% [markdown]
# Both ways take turns, 15 times, so that a busy moment of the machine hits both. What is compared is the ratio
# within each turn. One rank alone is the control: it has nobody to send to.
#
# **Predict.** Which is slower, and by how much: with two ranks, with one?

# %% tags=["nbval-ignore-output", "row-D7"]
ARTICLE_S = {2: (12.084, 12.250), 1: (14.220, 14.709)}
epochs, repeats = 1, 15


def compare():
    ways = (all_reduce, reduce_and_broadcast)
    turns = [[train(way, epochs) for way in ways] for _ in range(repeats + 1)][1:]  # 1: warm-up
    assert all(torch.allclose(a, b, atol=1e-5) for (_, a), (_, b) in turns)  # the same weights
    return sorted(second_s / first_s for (first_s, _), (second_s, _) in turns)


for world_size, (first_s, second_s) in ARTICLE_S.items():
    ratios = launch(compare, world_size=world_size, backend="gloo")[0]
    print(f"{world_size} rank{'s' * (world_size > 1)}, reduce + broadcast : all_reduce")
    print(f"  the article: {second_s:.3f} s : {first_s:.3f} s = {second_s / first_s:.3f}, once")
    print(f"  this machine: {statistics.median(ratios):.3f}, between {ratios[0]:.3f}", end=" ")
    print(f"and {ratios[-1]:.3f} in {repeats} turns")
    assert ratios[-1] - ratios[0] > 0.014  # from turn to turn more than the article's difference

# %% [markdown]
# The article's 1.4 % with two ranks look like the price of sending twice. But with one rank, which has nobody to send to, it measured 3.4 %. Whatever
# made *that* difference, it was not sending (two calls instead of one are work, too). And your own ratios differ by more than
# 1.4 % from turn to turn; the cell checked it. Measured once, such a difference means nothing.
#
# Ask the replay, which has no noise. **Predict:** by which factor is reduce + broadcast slower with 2, 4 and 8 ranks?

# %% tags=["row-D7"]
predicted_ratio = {2: "?", 4: "?", 8: "?"}


def recorded(way, world_size):
    box = torch.ones(250_000)
    return launch(way, box, world_size=world_size, backend="gloo", trace=True).trace


print("µs for 1 MB: all_reduce / reduce + broadcast = ratio")
print(f"{'':9}{'ring':^22}{'tree':^22}{'direct':^22}predicted")
for world_size in (1, 2, 4, 8):
    traces = [recorded(way, world_size) for way in (all_reduce, reduce_and_broadcast)]
    print(f"{world_size} rank{'s' * (world_size > 1):4}", end="")
    for algorithm in ("ring", "tree", "direct"):
        modelled = Network(latency_us=10, gbit_s=80, algorithm=algorithm)
        one, two = (max(trace.replay(modelled).finish_us) for trace in traces)
        print(f"{one:6.0f} /{two:5.0f} = {two / one if one else 1:4.2f}  ", end="")
    print(predicted_ratio.get(world_size, ""))

# %% [markdown]
# One rank sends nothing: 0 µs either way. With more, the answer depends on the algorithm. By tree or directly, an `all_reduce` *is* a reduce and
# a broadcast: the same messages, 1.00. Only a ring gains, since it never collects the whole sum in one place. The factor is 1.83 with two
# ranks and 1.56 with eight: both ways pay the same latency, and with more ranks it is a larger part.
#
# **Check yourself.** What would you need to know before you believe "X is 1.4 % faster"?
#
# <details><summary>Answer</summary>
# How much the measurement moves when it is repeated, and what it shows where the supposed cause is absent, as with one rank here.
# </details>
#
# ## 8 · The straggler waits least
#
# The same lab lets rank 1 sleep, in four ways: 0.001 s at the start, 0.01 s at every aggregation, 0.5 s at a single one, and 6 s after a backward
# pass. It reports 10.396 s without sleep, and 12.336 s and 36.612 s with. A total says that something is slow. Can we see **who**?
#
# `nap_s` says how long rank 1 sleeps before aggregation number k. `scale` shortens all naps.


# %%
WHERE = ("nowhere", "at start", "at every aggregation", "at one aggregation", "after backward")


def nap_s(where, k):
    return {
        "nowhere": 0,
        "at start": 0.001 * (k == 0),
        "at every aggregation": 0.01,
        "at one aggregation": 0.5 * (k == 5),
        "after backward": 6 * (k == 8),  # 4 aggregations per step: before the third step's first
    }[where]


# %%
def train_with_straggler(where, scale, steps=4):
    rank, k = dist.get_rank(), 0
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    for step in range(steps):
        mine = slice(32 * (4 * step + rank), 32 * (4 * step + rank + 1))
        model.zero_grad()
        cross_entropy(model(training.data[mine]), training.targets[mine]).backward()
        for parameter in model.parameters():
            if rank == 1:
                time.sleep(scale * nap_s(where, k))
            dist.all_reduce(parameter.grad)
            k += 1


# %% [markdown]
# Four ranks, five trainings, each recorded. **Predict:** does rank 1 spend more time in `all_reduce` than
# the others, or less? Look at the last training, with the longest nap.

# %% tags=["row-D8", "row-D9"]
scale = 0.5
traces = {}
for where in WHERE:
    results = launch(train_with_straggler, where, scale, world_size=4, backend="gloo", trace=True)
    traces[where] = results.trace
plot_timeline(traces["after backward"], "Ranks 0, 2 and 3 wait in all_reduce while rank 1 sleeps.")
text = "At each of 16 aggregations, ranks 0, 2 and 3 wait until rank 1 has come."
plot_timeline(traces["at every aggregation"], text)

# %% [markdown]
# Less: it is the others who wait. Whoever looks at the profile of rank 0 sees `all_reduce` taking nearly all the time, and blames the network. Rank 1's
# green is sleep, which no profile of rank 0 shows. In the second picture the same happens stroke by stroke.
#
# So turn the question around: who spends the **least** time in `all_reduce`?


# %% tags=["nbval-ignore-output"]
heading = "ms in all_reduce        rank 0   rank 1   rank 2   rank 3   waits least"


def row(where, waits_ms):
    first, second = sorted(waits_ms)[:2]
    least = f"rank {waits_ms.index(first)}" if first < second * 2 / 3 else "nobody stands out"
    return f"{where:21}" + "".join(f"{ms:9.2f}" for ms in waits_ms) + f"   {least:17}"


print(heading, f"   (real time, naps x {scale})")
for where, trace in traces.items():
    waits_ms = [0.0] * 4
    for event in trace:
        waits_ms[event.rank] += 1e3 * (event.end_s - event.start_s)
    print(row(where, waits_ms))
assert waits_ms.index(min(waits_ms)) == 1  # the long nap after backward

# %% [markdown]
# The long naps give rank 1 away; half a millisecond at the start drowns in the noise of the machine. On the virtual clock there is
# no noise, and nobody has to sleep: we give rank 1 the article's **full** naps, and every rank 2 ms for each backward pass.


# %%
def computing_us(event):
    nap_us = 1e6 * nap_s(where, event.index) if event.rank == 1 else 0
    return 2000 * (event.index % 4 == 0) + nap_us


print(heading, "     all are done at")
for where, trace in traces.items():
    replay, waits_ms = trace.replay(network, computing_us), [0.0] * 4
    for interval in replay.intervals:
        if interval.what == "wait":
            waits_ms[interval.rank] += (interval.end_us - interval.start_us) / 1000
    print(row(where, waits_ms), f"{max(replay.finish_us) / 1000:12.2f} ms")
    assert max(replay.finish_us) - min(replay.finish_us) < 100  # all together, within 0.1 ms

# %% [markdown]
# In all four experiments **the straggler is the rank that waits least**: about 1 ms, where the others wait up to six seconds. The control, without a
# nap, accuses nobody. And the cell checked that all ranks are done within 0.1 ms of each other: an aggregation ends for all together,
# so whatever makes one rank late, wherever it happens, shows as waiting on all the *others*.
#
# Your turn: make a rank slow, then the network. Which of the two makes somebody stand out?

# %%
explore(traces["nowhere"], network, lambda event: 2000.0 * (event.index % 4 == 0))

# %% [markdown]
# A slow network makes everybody wait alike. Only a slow rank makes the others wait for it.
#
# **Check yourself.** On 63 of 64 ranks the profile says: 60 % of the time in `all_reduce`. On rank 17 it says 2 %. What do you look at?
#
# <details><summary>Answer</summary>
# At rank 17's machine: its data loading, its temperature, its neighbours. It is the one that all others wait for.
# </details>
#
# ## What you know now
#
# Nine collectives, all patterns of one move: somebody sends, somebody receives. Every rank calls them, in the same order. What you asked for without
# waiting, what has gaps, and what lies off root is not yours to read yet, or ever. And time that one rank loses, all lose, in the
# next aggregation.
#
# **Next:** [04 · DDP training](04_ddp_training.ipynb) makes one of these calls for you, at the right moment.
