# %% [markdown]
# # 02 · Process groups and ranks
#
# **How do processes that know nothing of each other become one group, and who is in charge?**
#
# In 70 minutes you will be able to
#
# 1. say what node, rank, local rank and world size are, and which chooses a GPU;
# 2. let workers meet in three ways, without a port collision;
# 3. start a function with `mp.spawn`, `multiprocessing.Process` and `torchrun`;
# 4. build groups within the group, and read the report of a crash and of a hang.
#
# **Hardware:** any computer; all groups here use gloo on the CPU.

# %% [markdown]
# **Before:** [00 · Start here](00_start_here.ipynb). **Next:** [03 · Collective primitives](03_collective_primitives.ipynb).
# **Lab:** [02 · Process groups and ranks](../exercises/02_process_groups.ipynb).

# %% [markdown]
# Five cells ask you to **predict**: run the cell and answer in the form below it, or write your answer in place of the three dots. A later cell compares it with what was measured.
# Two cells ask you to **write** a function, and real workers check it.

# %%
import argparse
import os
import pickle
import socket
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from course_lessons import chapter_02
from course_utils import WorkerError, check, launch, plot_ranks, predict

# %% [markdown]
# ## 1 · Is there a master?
#
# Many tutorials talk about workers that compute and a *master* that coordinates them, and they tell you to set `MASTER_ADDR`.

# %% [markdown]
# Let's look for that master. Four ranks add up the numbers 0 to 99: each takes every fourth number, and `all_reduce` adds up the four results.


# %%
def share_the_work():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = torch.arange(rank, 100, world_size).sum()
    total = part.clone()
    dist.all_reduce(total)
    return part, total, os.getpid()


# %% tags=["row-A1"]
parts, totals, process_ids = zip(*launch(share_the_work, world_size=4, backend="gloo"))
plot_ranks(parts, totals)
print("processes, the notebook included:", len({os.getpid(), *process_ids}))

# %% [markdown]
# All four did the same work and hold the same total. The fifth process is your notebook, which only waits for them. So where is the master?

# %% [markdown]
# How do the ranks find each other? With `backend=None`, `launch` only starts them, and your function has to join the group itself. Here, every rank connects to a **store**: a
# small dictionary
# that one process serves over the network. Here `launch` has started that server in rank 0's process, so our code connects to it as a client on all four ranks, with
# `is_master=False`. In the store the ranks leave each other their addresses.


# %%
def joined_store():
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    dist.barrier()  # all have joined
    return store


# %% [markdown]
# Once all four have joined, the store holds four keys: one address from each rank. Then they call `all_reduce` 100 times.
#
# **Predict.** How many *more* keys are in the store after the 100 sums? Answer with a number.

# %%
keys_of_sums = predict("more keys after 100 sums", ...)


# %%
def join_and_add():
    store = joined_store()
    keys = sorted(store.list_keys())
    for _ in range(100):
        dist.all_reduce(torch.ones(1))
    return keys, sorted(store.list_keys())


# %% tags=["row-A1"]
joined, later = launch(join_and_add, world_size=4, backend=None)[0]
chapter_02.draw_store(later, f"The store after 100 sums, with {len(later)} keys.")
print("keys before and after the sums:", len(joined), "and", len(later))
keys_of_sums.measured(len(later) - len(joined))

# %% [markdown]
# None. The store has no new keys for the sums: once gloo knows the addresses, it connects the ranks directly, and the numbers go straight
# from rank to rank. **What people call the master is this store**, a place where addresses are left. It computes nothing and gives no
# orders, and it only happens to live in rank 0's process.

# %% [markdown]
# **Check yourself.** Does the store have to live in rank 0?
#
# <details><summary>Answer</summary>
# No. Any place will do that all ranks can reach: even a file (part 3). And <code>torchrun</code> keeps the store in a
# process that is no rank at all (part 5).
# </details>

# %% [markdown]
# ## 2 · Node, rank, local rank
#
# A **node** is a machine. Where several nodes have several GPUs each, a process needs two numbers. Its **rank** is unique among all
# processes, and their count is the **world size**. Its **local rank** only counts within its node, and says which of the node's GPUs it should take.
# (A GPU is also called a **card** below.)

# %% [markdown]
# Ranks count through the first node, then through the second. With `nodes=2`, `launch` numbers its four ranks as if they were on two machines.

# %% [markdown]
# **Predict.** Which local ranks do ranks 0, 1, 2 and 3 have? Answer with four numbers, such as 5 6 7 8.

# %%
local_ranks = predict("local ranks of ranks 0 to 3", ..., count=4)


# %%
def who_am_i():
    variables = {"node": "GROUP_RANK", "local rank": "LOCAL_RANK", "rank": "RANK"}
    return {name: int(os.environ[variable]) for name, variable in variables.items()}


# %% tags=["row-B4"]
places = launch(who_am_i, world_size=4, nodes=2, backend="gloo")
captions = [
    f"{place['node']} × 2 + {place['local rank']}\n= rank {place['rank']}" for place in places
]
chapter_02.draw_nodes(captions, "The four ranks on their two nodes, with node and local rank.")
local_ranks.measured([place["local rank"] for place in places])

# %% [markdown]
# If all nodes run the same number of processes, **rank = node rank × processes per node + local rank**.

# %% [markdown]
# These are the names and the environment variables that `torchrun` uses, PyTorch's own launcher (part 5):
#
# | name | variable | counts | from 0 to |
# | --- | --- | --- | --- |
# | node rank | `GROUP_RANK` | machines | nodes − 1 |
# | local rank | `LOCAL_RANK` | processes of one machine | processes per node − 1 |
# | rank, or global rank | `RANK` | all processes | world size − 1 |
# | world size | `WORLD_SIZE` | how many there are | |

# %% [markdown]
# Tutorials often mix up these names: some call the node's number "global rank", and the rank they compute from it "local rank". The difference matters as soon as a process chooses
# its GPU. This cell fails on purpose:


# %% tags=["raises-exception", "row-B4"]
def choose_a_card():
    cards_of_this_node = ["cuda:0", "cuda:1"]
    card = cards_of_this_node[dist.get_rank()]
    dist.barrier()
    return card


launch(choose_a_card, world_size=4, nodes=2, backend="gloo")

# %% [markdown]
# The first line says **who** failed and **why**: ranks 2 and 3, the whole second node, asked for a third and a fourth card where there
# are two. The arrow says **where**. Ranks 0 and 1 made the same mistake, but it doesn't show: on the first node, rank and local rank are equal.


# %%
def by_global_rank(cards_of_this_node):
    return cards_of_this_node[dist.get_rank()]


chapter_02.draw_cards(by_global_rank)

# %% [markdown]
# **Write** (3 minutes). Return the card this process should take. The check runs your function on two nodes with one, two and three
# processes each, with as many cards in a node or with one more.


# %%
def my_card(cards_of_this_node):
    raise NotImplementedError("about 1 line")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which variable in the table begins again at 0 on every node?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>torchrun</code> and <code>launch</code> put the local rank into the environment, as text.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>int(os.environ["LOCAL_RANK"])</code> is the place in the list.
# </details>


# %% jupyter={"source_hidden": true}
def my_card_spec(cards):
    """A node's first rank takes its first card, the second rank its second card, and so on."""
    return [own[cards[:rank].count(own)] for rank, own in enumerate(cards)]


def my_card_inputs(rank, world_size, case):
    each = world_size // 2
    cards = each + 1 if case == "two nodes, a card more" else each
    return [f"card {k} of node {rank // each}" for k in range(cards)]


card_check = {
    "spec": my_card_spec, "inputs": my_card_inputs, "nodes": 2,
    "world_sizes": (2, 4, 6),
    "cases": ("two nodes, a card for each process", "two nodes, a card more"),
}  # fmt: skip

# %%
check(my_card, **card_check)

# %% [markdown]
# And this is who takes which card when *your* function runs on two nodes with two cards each:

# %%
chapter_02.draw_cards(my_card)

# %% [markdown]
# Our own answer is folded up here. Run the next two cells to check it and to draw it.


# %% jupyter={"source_hidden": true}
def my_card_done(cards_of_this_node):
    return cards_of_this_node[int(os.environ["LOCAL_RANK"])]


check(my_card_done, **card_check)

# %%
chapter_02.draw_cards(my_card_done)

# %% [markdown]
# **Check yourself.** Why does a script that chooses its GPU by rank pass every test on one machine?
#
# <details><summary>Answer</summary>
# On one node, rank and local rank are the same number. The mistake only shows when there's a second machine.
# </details>

# %% [markdown]
# ## 3 · Three places to meet
#
# `init_process_group` has to know where the ranks leave their addresses. `init_method` tells it: `env://` reads
# `MASTER_ADDR` and `MASTER_PORT` from the environment, `tcp://` names both, and `file://` names a file that all ranks can reach.


# %%
def join(place):
    begun, rank = time.monotonic(), int(os.environ["RANK"])
    time.sleep(0.2 * rank)  # rank 3 is the last to come
    arrived = time.monotonic()
    address = place.format(**os.environ)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=4)
    joined = time.monotonic()
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    time.sleep(0.2)
    dist.destroy_process_group()
    return {"total": total.item(), "times": [begun, arrived, joined, time.monotonic()]}


# %% [markdown]
# `join` makes some ranks late on purpose: rank 0 is ready as soon as its process runs, rank 1 after 0.2 seconds, rank 2 after 0.4 and rank 3 after 0.6.
#
# **Predict.** At the moment when rank 0 gets into the group, how many of the other three ranks have come?

# %%
others = predict("other ranks that have come when rank 0 gets in", ...)

# %% tags=["row-B7"]
times = {}
with tempfile.TemporaryDirectory() as folder:
    for place in ["env://", "tcp://{MASTER_ADDR}:{MASTER_PORT}", f"file://{folder}/meeting"]:
        results = launch(join, place, world_size=4, backend=None)
        method = place.split(":")[0]
        times[method] = [result["times"] for result in results]
        print(method, "totals:", [result["total"] for result in results])

# %% [markdown]
# Three places, one group: 1 + 2 + 3 + 4 = 10 on every rank, each time. With `file://`, no process had to serve anything.

# %% [markdown]
# And when did each rank get in? Each noted the time at
# four points of `join`. All processes of a machine read the same clock, so their times fit on one axis. (`launch` starts the ranks one after the other, so a later rank's time
# begins a little later.)

# %%
chapter_02.draw_joining(
    times["file"], "With a file: when each rank is ready, waits, and is in the group."
)
begun, _, in_group, _ = times["file"][0]
print(f"with a file, rank 0 got in after about {in_group - begun:.1f} seconds")
others.measured(sum(arrived <= in_group for _, arrived, _, _ in times["file"][1:]))
for method, moments in times.items():
    last_arrival = max(arrived for _, arrived, _, _ in moments)
    print(
        method,
        "nobody is in before the last has come:",
        all(entered >= last_arrival for _, _, entered, _ in moments),
    )

# %% [markdown]
# Rank 0 was ready at once and still had to wait for all three others, up to rank 3. It took more than 0.6 seconds, because rank 3's process also started later. While the ranks join, gloo connects each
# with every other, so joining needs them all. One rank that never comes keeps all the others waiting, and if one node is slow to import its modules, it delays every node.

# %% [markdown]
# **Check yourself.** Yesterday's run was killed and left its meeting file behind. What may happen today?
#
# <details><summary>Answer</summary>
# The ranks read yesterday's addresses and try to reach processes that are gone: that gives an error, or a long wait. Ranks that leave the group properly remove the file, but after
# a crash nobody does. So use a new file name for each run.
# </details>

# %% [markdown]
# ### Backend by device
#
# The store only brings ranks together. Tensors travel through a **backend**, and which one depends on the device that they are on. The last
# column describes your machine; [torch's own table](https://docs.pytorch.org/docs/stable/distributed.html#backends) lists every call.

# %% tags=["nbval-ignore-output", "row-A9"]
chapter_02.show_backends()

# %% [markdown]
# ## 4 · The port that is taken
#
# [PyTorch's own DDP tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html) begins with a `setup` that joins and a
# `cleanup` that leaves. Its port is the constant 12355. Ours takes the port as an argument.


# %%
def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


def as_published(port):
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), port)
    cleanup()


# %% [markdown]
# Now suppose you share a server with somebody who copied the same constant, and their training already holds the port. The next cell plays
# their part: it asks the system for a free port and keeps it open.
#
# **Predict.** Which of our two ranks fails because of that: `0`, `1` or `"both"`?

# %%
failing = predict("the rank that fails is", ..., choices=(0, 1, "both"))

# %% tags=["row-A4"]
with socket.create_server(("127.0.0.1", 0)) as somebody_else:
    try:
        launch(as_published, somebody_else.getsockname()[1], backend=None)
    except WorkerError as error:
        failing.measured(error.rank)
        print(f"\n{error}")

# %% [markdown]
# **EADDRINUSE**, address in use: rank 0 has to open the port, and couldn't. Rank 1 only connects. It reached
# the stranger and waited for an answer until it was stopped. If the stranger had been a training like yours, rank 1 might have joined *its* group.

# %% [markdown]
# The cure is not to choose a number at all. Whoever starts the ranks asks the system for a free port, keeps it open and tells the ranks its number.
# `launch` and `torchrun --standalone` both do this.


# %% tags=["row-A4"]
def with_a_launcher():
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    cleanup()
    return total.item()


print("on the launcher's port:", launch(with_a_launcher, world_size=4, backend=None))

# %% [markdown]
# In your own code, leave out the two lines of `setup` that change `os.environ`: whatever starts the ranks has already set these variables.
#
# **Check yourself.** Why not ask the system for a free port, print it, and start the ranks by hand with that number?
#
# <details><summary>Answer</summary>
# Between the moment you learn the number and the moment rank 0 opens the port, somebody else may take it. That's rare but
# real. Whoever asks should keep the port open, as a launcher does.
# </details>

# %% [markdown]
# ## 5 · Three ways to start
#
# Outside a notebook, a worker function lives in a file. This one is told its rank and where to meet.


# %%
def work(rank, world_size, epochs, place):
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)
    for _ in range(epochs):
        total = torch.tensor(rank + 1)
        dist.all_reduce(total)
    line = f"rank {rank} of {world_size}: total {total} in each of {epochs} epochs\n"
    print(line, end="")  # line and end in one write, so that ranks don't mix theirs
    dist.destroy_process_group()


# %% [markdown]
# Without a launcher, you start such a script **once per node** and tell it the node's number. It works out the ranks by the formula of part
# 2, and starts one process per GPU. Python's own `Process` can do that, with one object per rank. One loop starts them all, and a second one waits with `join` until they're done.


# %%
def one_process(gpu, args):
    rank = args.node_rank * args.gpus + gpu
    work(rank, args.nodes * args.gpus, args.epochs, f"file://{os.getcwd()}/meeting")


# %%
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1, help="processes per node")
    parser.add_argument("-nr", "--node-rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    workers = [mp.Process(target=one_process, args=(gpu, args)) for gpu in range(args.gpus)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


# %% [markdown]
# `script_of` makes a file of our functions, with imports and a call. `run` starts it once per command, as you would in two terminals.

# %% tags=["row-B6", "row-D2"]
node_0 = "python script.py -n 2 -g 2 --epochs 3 -nr 0"
node_1 = "python script.py -n 2 -g 2 --epochs 3 -nr 1"
printed = chapter_02.run(chapter_02.script_of(work, one_process, main), node_0, node_1)
ways = dict(zip([node_0, node_1], printed, strict=True))
chapter_02.draw_starters(ways)

# %% [markdown]
# The second node started ranks 2 and 3, since 1 × 2 + 0 = 2 and 1 × 2 + 1 = 3. The two commands have nothing in common but the file where their ranks meet, and yet the four
# processes became one group.

# %% [markdown]
# But note that `Process.join` raises no error when a worker has crashed. You'd have to look at each `worker.exitcode` yourself, whereas `mp.spawn`
# [passes the error on](https://docs.pytorch.org/docs/stable/multiprocessing.html#spawning-subprocesses). `launch`, too, starts its processes
# one by one, but it also watches them, collects their results and stops any that hang.

# %% [markdown]
# `mp.spawn` can start the same `work` in one line, and gives each process its rank as the first argument.
#
# A spawned process is a new Python that imports the file again. Without the **main guard**, `if __name__ == "__main__":`, it would try to
# spawn processes of its own, which Python [stops with an
# error](https://docs.python.org/3/library/multiprocessing.html#the-spawn-and-forkserver-start-methods). So `script_of` writes that guard, too.


# %% tags=["row-A7", "row-D2"]
def with_spawn():
    place = f"file://{os.getcwd()}/meeting"
    mp.spawn(work, args=(2, 3, place), nprocs=2)


spawning = chapter_02.script_of(work, with_spawn)
print("...", *spawning.splitlines()[-4:], sep="\n")
ways["python script.py"] = chapter_02.run(spawning, "python script.py")[0]

# %% [markdown]
# The third way is `torchrun`. It replaces the parser, the formula and `spawn`: it starts the file once per rank and sets the variables
# of part 2.
#
# | by hand | with `torchrun` |
# | --- | --- |
# | `-n 2 -g 2 -nr 1` | `--nnodes=2 --nproc-per-node=2 --node-rank=1` |
# | `rank = nr * gpus + gpu` | `RANK`, `LOCAL_RANK` and `WORLD_SIZE` are set |
# | an address and a port that all agree on | one machine: `--standalone`; several: [chapter 09](09_many_machines.ipynb) |


# %% tags=["row-D2"]
def under_torchrun():
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    work(rank, world_size, 3, "env://")


command = "torchrun --standalone --nproc-per-node=2 script.py"
ways[command] = chapter_02.run(chapter_02.script_of(work, under_torchrun), command)[0]
chapter_02.draw_starters(ways)

# %% [markdown]
# Here the store lives in the process of `torchrun` itself, so no rank is special at all. A warning, though: that store listens on **all**
# addresses of your machine and asks for no password, so use `torchrun` only where you trust the network ([PyTorch's security
# policy](https://github.com/pytorch/pytorch/security/policy) says so too). `launch` stays on 127.0.0.1.

# %% [markdown]
# `python -m torch.distributed.run` is `torchrun` by its full name. The older `torch.distributed.launch` is
# [deprecated](https://docs.pytorch.org/docs/stable/distributed.html#launch-utility).

# %% [markdown]
# ### Why not `mp.spawn` in a notebook?
#
# The function has to travel to the new Python, and Python sends functions by `pickle`. Let's pickle `work` and have a new Python unpack it, as `mp.spawn` would.

# %% tags=["row-A7"]
pickled = pickle.dumps(work, protocol=4)
print(pickled)
print(chapter_02.new_python(f"import pickle\npickle.loads({pickled})"))

# %% [markdown]
# There's no code in there, only two names: look up `work` in the module `__main__`. In a script, `__main__` is the file, which the new Python
# imports. Your cells are in no file, so it finds nothing.

# %% [markdown]
# A **forked** process needs no pickle, because it's a copy of the notebook's process, with everything your cells have defined. That's why `launch` forks.

# %% [markdown]
# **Check yourself.** What must you not do in the notebook, so that it can be forked?
#
# <details><summary>Answer</summary>
# Use CUDA before you call <code>launch</code>: a forked process <a href="https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing">can't use
# CUDA</a> once its parent has. Keep every <code>.cuda()</code> inside the function
# that <code>launch</code> runs. Otherwise <code>launch</code> refuses to start.
# </details>

# %% [markdown]
# ## 6 · Groups within the group
#
# Large trainings often add up within each node first, and then between nodes, where links are slower (chapter 13's hybrid sharding does
# so). `dist.new_group(ranks)` makes a group of some of the ranks, and a collective with `group=` runs in that group only.

# %% [markdown]
# **Write** (8 minutes). Return the sum of `number` over this rank's row. `rows` lists the ranks of every row, such as
# `[[0, 1], [2, 3]]`, and is the same on all ranks. Each row adds up in a group of its own.


# %%
def row_sum(number, rows):
    raise NotImplementedError("about 6 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who has to call <code>new_group</code>? Read the first lines of its
# <a href="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group">documentation</a>.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Every rank makes the group of every row, in the same order, and keeps the one it belongs to. It adds up in that one only.
# </details>
# <details><summary>Hint 3: the code</summary>
# In a loop over <code>rows</code>, call <code>group = dist.new_group(ranks)</code> before you ask
# <code>if dist.get_rank() in ranks:</code>.
# </details>


# %% jupyter={"source_hidden": true}
def row_sum_spec(numbers, rows):
    """Each rank's result: the sum of the numbers in its row."""
    sums = {rank: sum(numbers[other] for other in row) for row in rows[0] for rank in row}
    return [sums[rank] for rank in range(len(numbers))]


def row_sum_inputs(rank, world_size, case):
    half = world_size // 2
    rows = {
        "one row": [list(range(world_size))],
        "two rows": [list(range(half)), list(range(half, world_size))],
        "even and odd ranks": [list(range(0, world_size, 2)), list(range(1, world_size, 2))],
    }
    return torch.randint(2**40, ()), rows[case]


def row_sum_budget(world_size, case):
    longest = max(map(len, row_sum_inputs(0, world_size, case)[1]))
    return {"sent_bytes": 2 * 8 * (1 - 1 / longest)}  # of one all_reduce of one number


row_check = {
    "spec": row_sum_spec, "inputs": row_sum_inputs, "budget": row_sum_budget,
    "world_sizes": (2, 3, 4), "cases": ("one row", "two rows", "even and odd ranks"),
}  # fmt: skip

# %%
check(row_sum, **row_check)

# %% [markdown]
# Here's what *your* function does with the rows `[[0, 1], [2, 3]]`. Rank *r* brings 1, 10, 100 or 1000, so the digits tell whose numbers are in a sum.

# %%
chapter_02.draw_row_sums(row_sum)

# %% [markdown]
# And our answer, folded up:


# %% jupyter={"source_hidden": true}
def row_sum_done(number, rows):
    for ranks in rows:
        group = dist.new_group(ranks)  # every rank calls it, member or not
        if dist.get_rank() in ranks:
            group_of_my_row = group
    dist.all_reduce(number, group=group_of_my_row)
    return number


check(row_sum_done, **row_check)

# %%
chapter_02.draw_row_sums(row_sum_done)

# %% [markdown]
# In our answer, every rank calls `new_group` for every row, member or not. Isn't that wasteful? Let's have only the members call it. This
# cell fails on purpose:


# %% tags=["raises-exception"]
def only_members_call():
    if dist.get_rank() in (2, 3):
        dist.new_group([2, 3])  # ranks 0 and 1 are no members
    dist.barrier()
    dist.new_group([0, 1, 2, 3])


launch(only_members_call, world_size=4, nodes=2, backend="gloo", timeout=4)

# %% [markdown]
# Skipping the call does no visible harm at first, but the *next* `new_group` hangs. Groups are numbered in the
# order of the calls, so the group of all four is number 1 for ranks 0 and 1, but number 2 for ranks 2 and 3. Each rank waits for the others under its own number, so they never
# find each other. In a script that lasts until [torch's own timeout](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group), thirty minutes
# with gloo.

# %% [markdown]
# Where do the members of a new group look for each other? **Predict.** Four ranks have joined, and all call `new_group([2, 3])`. How many *more* keys are in the store afterwards?

# %%
keys_of_group = predict("more keys after new_group([2, 3])", ...)


# %%
def make_a_group():
    store = joined_store()
    keys = set(store.list_keys())
    dist.barrier()  # all have looked
    dist.new_group([2, 3])
    dist.barrier()
    return sorted(keys), sorted(set(store.list_keys()) - keys)


# %%
keys, new_keys = launch(make_a_group, world_size=4, backend=None)[0]
chapter_02.draw_store(
    [*keys, *new_keys], f"The store has the keys {', '.join(new_keys)} in addition."
)
keys_of_group.measured(len(new_keys))

# %% [markdown]
# Two: the members left new addresses, under the new group's number, 1. So the store is needed whenever a group is made, and the process that serves it has to live until the last
# group exists.

# %% [markdown]
# NCCL, the backend for NVIDIA GPUs, needs the store as well. For the first group, rank 0 leaves [an
# identifier](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html) there, which all ranks need to connect
# their GPUs. Further NCCL groups are [split off from the first one if you pass `device_id`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group), and all ranks take part in that.

# %% [markdown]
# What happens if a rank calls a collective in a group that it isn't in?


# %%
def outside_the_group():
    group = dist.new_group([2, 3])
    number = torch.tensor(dist.get_rank() + 1)
    before = number.clone()
    with warnings.catch_warnings(record=True) as caught:
        dist.broadcast(number, src=2, group=group)
    return before, number, [str(warning.message) for warning in caught]


before, after, caught = zip(*launch(outside_the_group, world_size=4, backend="gloo"))
plot_ranks(before, after)
print(*caught, sep="\n")

# %% [markdown]
# Ranks 0 and 1 get a warning, keep their own numbers, and go on. Note that `src=2` is a rank of the **world**, even in a group of two.

# %% [markdown]
# ### A mesh makes all rows and columns
#
# For a regular grid, [`init_device_mesh`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh) makes
# the groups of all rows and columns at once, in the right order on every rank. FSDP and tensor parallelism take such a mesh. Rank *r* brings
# the number *r* + 1.


# %%
def sums():
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    totals = {}
    for name in ("within", "between"):
        number = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(number, group=mesh.get_group(name))
        totals[name] = number.item()
    return totals


# %%
results = launch(sums, world_size=4, nodes=2, backend="gloo")
captions = [f"within: {r['within']}\nbetween: {r['between']}" for r in results]
chapter_02.draw_nodes(
    captions, "Sums within a node agree in a row, sums between nodes in a column."
)

# %% [markdown]
# Rank 3 has 3 + 4 = 7 within its node. Between the nodes it has 2 + 4 = 6, together with rank 1, which has the same local rank.

# %% [markdown]
# ## What you know now
#
# No process is in charge. Ranks meet at a store, and go back to it whenever they form a new group. What they compute goes directly from rank to rank. The **rank** identifies a
# process among all, and the **local rank** chooses its GPU. And with gloo, nobody is in the group before everybody has come.

# %% [markdown]
# How many of your predictions were right?

# %%
predict()

# %% [markdown]
# Practise in [lab 02](../exercises/02_process_groups.ipynb). And now that the ranks have met, what do they say to each other? [03 · Collective primitives](03_collective_primitives.ipynb).
