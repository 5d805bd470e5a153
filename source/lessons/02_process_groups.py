# %% [markdown]
# # 02 · Process groups and ranks
#
# **How do processes that know nothing of each other become one group, and who is in charge?**
#
# In 60 minutes you will be able to
#
# 1. say what node, rank, local rank and world size are, and which of them chooses a GPU;
# 2. let workers meet in three ways, on a shared machine, without a collision;
# 3. start the same function with `mp.spawn`, `multiprocessing.Process` and `torchrun`;
# 4. build groups within the group, and read the report of a crash and of a hang.
#
# **Hardware:** any computer; all groups here use gloo on the CPU. GPUs only change the table in part 3.
# **Before:** [00 · Start here](00_start_here.ipynb). **Next:** [03 · Collective primitives](03_collective_primitives.ipynb).
# **Lab:** [02 · Process groups and ranks](../exercises/02_process_groups.ipynb).
#
# Six cells ask you to **predict**: write your answer in place of the three dots, and a later cell shows it beside what was measured.
# Two cells ask you to **write** a function, and real workers check it.

# %%
import argparse
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from course_utils import WorkerError, check, hardware, launch, predict, show

# %% [markdown]
# ## 1 · Is there a master?
#
# Many tutorials speak of workers that compute and of a *master* that coordinates them, and they have you set `MASTER_ADDR`.
# *The DDP getting-started guide*, an article behind this course, is one. Let us look for this master. Four ranks add up the numbers 0 to 99: each takes every fourth number, and `all_reduce`
# adds up the four results. What does rank 0 do that the others do not?


# %% tags=["row-A1"]
def share_the_work():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = torch.arange(rank, 100, world_size).sum()
    print(f"my part is {part}", end=", ")
    dist.all_reduce(part)
    print(f"the whole is {part}")
    return os.getpid()


process_ids = launch(share_the_work, world_size=4, backend="gloo")
print("processes, the notebook included:", len({os.getpid(), *process_ids}))

# %% [markdown]
# Nothing. All four did the same work and hold the same total. The fifth process is your notebook, which only waits
# for them. So where is the master?
#
# With `backend=None`, `launch` starts the ranks and leaves it to you to join them. Below, every rank connects to a **store**:
# a small dictionary that one process serves over the network. There the ranks leave each other their addresses.


# %%
def joined_store():
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    dist.barrier()  # all have joined
    return store


# %% [markdown]
# When all four have joined, the store holds four keys, one address from each rank. Then they call `all_reduce` 100 times.
#
# **Predict.** How many *more* keys are in the store after the 100 sums? A number takes the place of the three dots.

# %%
keys_of_sums = predict("more keys after 100 sums", ...)


# %% tags=["row-A1"]
def join_and_add():
    store = joined_store()
    keys = sorted(store.list_keys())
    for _ in range(100):
        dist.all_reduce(torch.ones(1))
    return keys, sorted(store.list_keys())


joined, later = launch(join_and_add, world_size=4, backend=None)[0]
print("keys after joining:", joined)
print("the same after 100 sums:", joined == later)
keys_of_sums.measured(len(later) - len(joined))

# %% [markdown]
# None, and nothing has come and gone either: there is one key for each rank, from 0 to 3, before and after. The sums went straight from rank to rank. **What is called the master is this store**: a place where addresses are
# left. It computes nothing and gives no orders, and here it happens to live in rank 0's process.
#
# The store is needed again, though. Making another group goes through it (part 6). So does NCCL, the backend for
# NVIDIA GPUs, when it builds its communicators, which are its connections between GPUs. As a rule it builds them only at the first collective
# ([`device_id=`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group) makes it do so at once).
#
# **Check yourself.** Does the store have to live in rank 0?
#
# <details><summary>Answer</summary>
# No. Any place will do that all ranks can reach: a file serves as well (part 3), and <code>torchrun</code> keeps the store in a
# process that is no rank at all (part 5).
# </details>
#
# ## 2 · Node, rank, local rank
#
# A **node** is a machine. When several nodes have several GPUs each, a process needs two numbers. Its **rank** is unique among all
# processes, however many there are; their count is the **world size**. Its **local rank** counts within its node, and says which of
# the node's GPUs it should take. `nodes=2` makes `launch` number four ranks as if they stood on two machines.
#
# **Predict.** Which local rank does rank 2 have?

# %%
local_rank_of_2 = predict("local rank of rank 2", ...)


# %% tags=["row-B4"]
def who_am_i():
    names = {"node": "GROUP_RANK", "local rank": "LOCAL_RANK", "rank": "RANK"}
    return {name: int(os.environ[variable]) for name, variable in names.items()}


places = launch(who_am_i, world_size=4, nodes=2, backend="gloo")
local_rank_of_2.measured(places[2]["local rank"])


# %% jupyter={"source_hidden": true}
from course_utils.pictures.style import rank_style


def draw_grid(captions, text):
    """Draw nodes as rows and local ranks as columns, a caption in each rank's box."""
    figure, axes = plt.subplots(figsize=(7, 3.1))
    axes.set(xlim=(-0.8, 4.1), ylim=(2.1, -0.4))
    axes.axis("off")
    for n in (0, 1):
        axes.add_patch(plt.Rectangle((-0.8, n + 0.05), 4.9, 0.9, color="#eeeeee"))
        axes.text(-0.7, n + 0.5, f"node {n}", fontsize=13, va="center")
        axes.text(2 * n + 1, -0.15, f"local rank {n}", fontsize=13, ha="center")
    for rank, caption in enumerate(captions):
        corner, color = (2 * (rank % 2) + 0.15, rank // 2 + 0.15), rank_style(rank)["color"]
        axes.add_patch(plt.Rectangle(corner, 1.7, 0.7, fc="white", ec=color, linewidth=4))
        axes.text(corner[0] + 0.3, corner[1] + 0.35, rank, fontsize=22, color=color, va="center")
        axes.text(corner[0] + 0.7, corner[1] + 0.35, caption, fontsize=12, va="center")
    show(figure, text)


# %%
captions = [f"{p['node']} × 2 + {p['local rank']}\n= rank {p['rank']}" for p in places]
draw_grid(captions, "Ranks count through both nodes; local ranks begin again at 0 on each node.")

# %% [markdown]
# With equally many processes on every node, **rank = node rank × processes per node + local rank**. These are the names that
# `torchrun` uses, and its environment variables:
#
# | name | variable | counts | from 0 to |
# | --- | --- | --- | --- |
# | node rank | `GROUP_RANK` | machines | nodes − 1 |
# | local rank | `LOCAL_RANK` | processes of one machine | processes per node − 1 |
# | rank, or global rank | `RANK` | all processes | world size − 1 |
# | world size | `WORLD_SIZE` | how many there are | |
#
# Tutorials mix them up. *Distributed Data Parallel, part 1*, one of the five articles behind this course ([the course map](README.md) lists them),
# calls the node's number "global rank", and the rank that it computes from it "local rank".
# The difference matters as soon as a process chooses its GPU. This cell is meant to fail.


# %% tags=["raises-exception", "row-B4"]
def choose_a_card():
    cards_of_this_node = ["cuda:0", "cuda:1"]
    card = cards_of_this_node[dist.get_rank()]
    dist.barrier()
    return card


launch(choose_a_card, world_size=4, nodes=2, backend="gloo")

# %% [markdown]
# The first line says **who** failed and **why**: ranks 2 and 3, the whole second node, asked for a third and a fourth card where a node
# has two. The arrow says **where**: `get_rank()` stands where the local rank belongs. Ranks 0 and 1 had made the same mistake. For
# them both numbers are equal, so they had reached the barrier.
#
# **Write** (3 minutes). Return the card that this process should take. The check runs your function on two nodes of one, two and three
# processes.


# %%
def my_card(cards_of_this_node):
    raise NotImplementedError("about 1 line")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of the variables in the table begins again at 0 on every node?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>torchrun</code> and <code>launch</code> put the local rank into the environment, as text.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>int(os.environ["LOCAL_RANK"])</code> is the place in the list.
# </details>


# %% jupyter={"source_hidden": true}
def my_card_spec(cards):
    """Each rank's card: the k-th of its node's for the k-th rank with the same cards."""
    return [own[cards[:rank].count(own)] for rank, own in enumerate(cards)]


def my_card_inputs(rank, world_size, case):
    each = world_size // 2
    return [f"card {k} of node {rank // each}" for k in range(each)]


card_check = {"spec": my_card_spec, "inputs": my_card_inputs, "nodes": 2}
card_check |= {"world_sizes": (2, 4, 6), "cases": ("a card for each process",)}

# %%
check(my_card, **card_check)


# %% jupyter={"source_hidden": true}
def my_card_done(cards_of_this_node):
    return cards_of_this_node[int(os.environ["LOCAL_RANK"])]


check(my_card_done, **card_check)

# %% [markdown]
# The folded cell above has our own answer, `my_card_done`, and its check.
#
# **Check yourself.** Why do scripts with this mistake pass every test on one machine?
#
# <details><summary>Answer</summary>
# On one node, rank and local rank are the same number. The mistake shows only when there is a second machine.
# </details>
#
# ## 3 · Three places to meet
#
# `init_process_group` has to know where the ranks leave their addresses. You tell it by `init_method`: `env://` reads
# `MASTER_ADDR` and `MASTER_PORT` from the environment, `tcp://` names both, and `file://` names a file that all can reach. Below, rank 0 is
# ready at once, rank 1 after 0.2 seconds, rank 2 after 0.4, and rank 3 after 0.6.
#
# **Predict.** After how many seconds is rank 0 in the group?

# %%
joined_s = predict("seconds until rank 0 is in the group", ...)


# %%
def join(place):
    begun, rank = time.monotonic(), int(os.environ["RANK"])
    time.sleep(0.2 * rank)
    arrived = time.monotonic()
    where = place.format(**os.environ)
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=4)
    joined = time.monotonic()
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    time.sleep(0.2)
    dist.destroy_process_group()
    return {"total": total.item(), "times": [begun, arrived, joined, time.monotonic()]}


# %% tags=["row-B7"]
with tempfile.TemporaryDirectory() as folder:
    for place in ["env://", "tcp://{MASTER_ADDR}:{MASTER_PORT}", f"file://{folder}/meeting"]:
        results = launch(join, place, world_size=4, backend=None)
        print(place.split(":")[0], "totals:", [result["total"] for result in results])

# %% [markdown]
# Three places, one group: 1 + 2 + 3 + 4 = 10 on every rank, each time. With `file://` no process served anything.
#
# And when did each rank get in? We look at the last of the three runs, with the file. The workers noted the time at four points of `join`. All processes of a machine
# read the same clock, so their times can be drawn on one axis.


# %% jupyter={"source_hidden": true}
def draw_timeline(times, text):
    """Draw a bar per rank from its four moments: begun, arrived, joined, left."""
    figure, axes = plt.subplots(figsize=(8.4, 3))
    for rank, moments in enumerate(times):
        begun, arrived, joined, left = [moment - min(times)[0] for moment in moments]
        axes.barh(rank, arrived - begun, 0.6, begun, color="#cccccc", label="getting ready")
        waits = {"color": "white", "edgecolor": "#555555", "hatch": "////"}
        axes.barh(rank, joined - arrived, 0.6, arrived, label="waiting to join", **waits)
        color = rank_style(rank)["color"]
        axes.barh(rank, left - joined, 0.6, joined, color=color, label="in the group")
    axes.set(yticks=range(4), yticklabels=[f"rank {rank}" for rank in range(4)], ylim=(3.5, -0.5))
    axes.set_xlabel("time since the first rank was forked (s, real time)")
    axes.legend(handles=axes.containers[:3], ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, text)


# %%
times = [result["times"] for result in results]
joined_s.measured(times[0][2] - times[0][0], within=0.3, about=True)
draw_timeline(times, "No rank is in the group before the last has arrived.")

# %% [markdown]
# Rank 0 was ready at once and still had to wait for rank 3, because joining is itself a collective. One rank that never comes
# keeps all the others waiting, and a slow import on one node delays every node.
#
# **Check yourself.** Yesterday's run was killed and left its meeting file behind. What may happen today?
#
# <details><summary>Answer</summary>
# The ranks read yesterday's addresses and try to reach processes that are gone: an error, or a long wait. A group that is left
# properly removes its file, but after a crash nobody does. So use a new file name for each run.
# </details>
#
# ### Backend by device
#
# The store only brings ranks together. Tensors travel through a **backend**, and where the tensors are decides which one. The last
# column is about your machine.

# %% jupyter={"source_hidden": true} tags=["nbval-ignore-output", "row-A9"]
from IPython.display import Markdown

machine = hardware()
gpus = len(machine.gpus)
rows = [
    ("CPU", "gloo", "any number of ranks", machine.gloo),
    ("NVIDIA or AMD GPU", "nccl", "one GPU per rank", machine.nccl and gpus > 0),
    ("GPU shared by ranks", "gloo", "collectives, no send and recv", machine.gloo and gpus > 0),
    ("Intel GPU", "xccl", "one GPU per rank", dist.is_xccl_available()),
    ("CPU, cluster with MPI", "mpi", "torch built from source", dist.is_mpi_available()),
]
lines = [f"| {a} | `{b}` | {c} | {'yes' if here else 'no'} |" for a, b, c, here in rows]
head = ["| tensors on | backend | works for | this machine |", "| --- | --- | --- | --- |"]
Markdown("\n".join(head + lines))

# %% [markdown]
# ## 4 · The port that is taken
#
# [PyTorch's own DDP tutorial](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html) begins with a function `setup` that joins and a
# function `cleanup` that leaves. Its port is the constant 12355, and very many scripts have copied it. Ours takes the port as an argument.


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
# Now suppose that you share a server with somebody who copied the same constant: their training already holds the port. To play them,
# the cell below asks the system for any free port and keeps it open.
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
# **EADDRINUSE**, address in use: rank 0 is the one that has to open the port, and it could not. Rank 1 only connects. It reached
# the stranger and waited there for an answer until it was stopped. Had the stranger been a training of the same kind, your rank 1 might have
# joined *that*.
#
# The cure is that nobody chooses a number. Somebody asks the system for a free port (port 0), keeps it open, and tells the
# ranks which one it is. `launch` and `torchrun --standalone` both do so.


# %% tags=["row-A4"]
def with_a_launcher():
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    cleanup()
    return total.item()


print("on the launcher's port:", launch(with_a_launcher, world_size=4, backend=None))

# %% [markdown]
# This works however many people do it at once. In your own code, leave out the two lines of `setup` that change `os.environ`:
# whatever starts the ranks has set these variables already.
#
# **Check yourself.** Why not ask the system for a free port, print it, and start the ranks by hand with that number?
#
# <details><summary>Answer</summary>
# Between the moment when you learn the number and the moment when rank 0 opens the port, somebody else may take it. This is rare but
# real. Whoever asks should keep the port open, as a launcher does.
# </details>
#
# ## 5 · Three ways to start
#
# Outside a notebook, a worker function stands in a file. This one is told its rank and where to meet.


# %%
def work(rank, world_size, epochs, place):
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)
    for _ in range(epochs):
        total = torch.tensor(rank + 1)
        dist.all_reduce(total)
    print(f"rank {rank} of {world_size}: total {total} in each of {epochs} epochs\n", end="")
    dist.destroy_process_group()


# %% [markdown]
# Before there were launchers, a person started such a script **once per node** and told it the node's number. It worked out each
# rank by the formula of part 2, and started one process per GPU with `mp.spawn`.


# %%
def one_process(gpu, args):
    rank = args.node_rank * args.gpus + gpu
    work(rank, args.nodes * args.gpus, args.epochs, f"file://{os.getcwd()}/meeting")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1, help="processes per node")
    parser.add_argument("-nr", "--node-rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(one_process, args=(args,), nprocs=args.gpus)


# %% [markdown]
# The folded cell below has two helpers. `script_of` makes a file of functions of this notebook. It adds imports and a **main guard**
# (`if __name__ == "__main__":`): a spawned process is a new Python that imports the file again, and without the guard it would spawn
# processes itself. `run` starts the file once per command, all at the same time, and prints what each command said.
#
# **Predict.** Two nodes, two processes each: which ranks does the *second* command start? Answer with a list, such as `[0, 3]`.

# %%
second_node = predict("ranks of the second command", ...)


# %% jupyter={"source_hidden": true}
import inspect
import signal
from pathlib import Path


def script_of(*functions):
    """The text of a file with these functions, which calls the last one."""
    imports = "import argparse\nimport os\n\nimport torch\nimport torch.distributed as dist\n"
    imports += "import torch.multiprocessing as mp\n\n\n"
    body = "\n\n".join(inspect.getsource(function) for function in functions)
    return imports + body + f'\n\nif __name__ == "__main__":\n    {functions[-1].__name__}()\n'


def run(script, *commands, timeout_s=100):
    """Run the script on loopback, once per command and side by side; print and return lines."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(script)
        options["env"] = {**os.environ, **loopback, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        words = [[sys.executable, *command] for command in commands]
        started = [subprocess.Popen(each, cwd=folder, text=True, **options) for each in words]
        try:
            said = [process.communicate(timeout=timeout_s)[0] for process in started]
        finally:
            for process in filter(lambda process: process.poll() is None, started):
                os.killpg(process.pid, signal.SIGTERM)
    said = [sorted(text.splitlines()) for text in said]
    for number, lines in enumerate(said):
        print(*(f"[command {number}] {line}" for line in lines), sep="\n")
    return said


# %% tags=["row-B6", "row-A7", "row-D2"]
options = ["script.py", "-n", "2", "-g", "2", "--epochs", "3"]
said = run(script_of(work, one_process, main), [*options, "-nr", "0"], [*options, "-nr", "1"])
second_node.measured([int(line.split()[1]) for line in said[1]])

# %% [markdown]
# The second node starts ranks 2 and 3, since 1 × 2 + 0 = 2 and 1 × 2 + 1 = 3. The two commands share nothing but a file, and their four processes
# became one group.
#
# The same `work` can be started with Python's own `Process`: one object per rank, started and joined in two loops. Mind that `join` returns without a word when a worker has crashed: you'd have to look at
# each `worker.exitcode`, where `mp.spawn` raises. `launch` forks its workers by hand, and then also watches, collects and stops.


# %% tags=["row-D2"]
def with_processes():
    place = f"file://{os.getcwd()}/meeting"
    workers = [mp.Process(target=work, args=(rank, 2, 3, place)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


said = run(script_of(work, with_processes), ["script.py"])

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


torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
said = run(script_of(work, under_torchrun), [*torchrun, "script.py"])

# %% [markdown]
# `python -m torch.distributed.run` is `torchrun` by its full name; the older `torch.distributed.launch` is deprecated. Here the store
# lives in the process of `torchrun` itself, so no rank is special at all. One warning: that store listens on **all** addresses of your
# machine and asks for no password. Use `torchrun` where you trust the network. `launch` stays on 127.0.0.1.
#
# ### Why not `mp.spawn` in a notebook?
#
# A spawned process is a new Python, and the function has to travel there. Python sends functions by `pickle`. Below, we pickle `work`
# and let a new Python unpack it, as `mp.spawn` would.

# %% tags=["row-A7"]
parcel = pickle.dumps(work, protocol=4)
new_python = [sys.executable, "-c", f"import pickle\npickle.loads({parcel})"]
done = subprocess.run(new_python, capture_output=True, text=True, env={})
print(parcel)
print(done.stderr.splitlines()[-1].partition(":")[0])

# %% [markdown]
# There is no code in the parcel, only two names: look up `work` in the module `__main__`. In a script, `__main__` is the file, which the new Python
# imports. Your cells are in no file, so there it finds nothing. A **forked** process needs no parcel, because it is a copy of the
# notebook's process, with everything that your cells have defined. That is why `launch` forks.
#
# **Check yourself.** What does fork forbid in return?
#
# <details><summary>Answer</summary>
# Using CUDA in the notebook before it: a GPU context does not survive the copy. Keep every <code>.cuda()</code> inside the function
# that <code>launch</code> runs; <code>launch</code> refuses otherwise.
# </details>
#
# ## 6 · Groups within the group
#
# Large trainings often add up within each node first, and then between nodes. `dist.new_group(ranks)` makes a group of some ranks, and a collective
# with `group=` runs in that group only.
#
# **Write** (8 minutes). Return the sum of `number` over the ranks of this rank's row. `rows` lists the ranks of every row, such as
# `[[0, 1], [2, 3]]`, and is the same on all ranks. Each row is to add up in a group of its own.


# %%
def row_sum(number, rows):
    raise NotImplementedError("about 6 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who has to call <code>new_group</code>? Read the first lines of its
# <a href="https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group">documentation</a>.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Every rank makes the group of every row, in the same order, and keeps the one that it belongs to. Only in that one it adds up.
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


row_check = {"spec": row_sum_spec, "inputs": row_sum_inputs, "budget": row_sum_budget}
row_check |= {"world_sizes": (2, 3, 4), "cases": ("one row", "two rows", "even and odd ranks")}

# %%
check(row_sum, **row_check)


# %% jupyter={"source_hidden": true}
def row_sum_done(number, rows):
    for ranks in rows:
        group = dist.new_group(ranks)  # every rank calls it, member or not
        if dist.get_rank() in ranks:
            mine = group
    dist.all_reduce(number, group=mine)
    return number


check(row_sum_done, **row_check)

# %% [markdown]
# Our answer, `row_sum_done`, is in the folded cell above. In it every rank calls `new_group` for every row, member or not. That looks
# wasteful, and many people first write a version in which only members call it. This cell does so, and is meant to fail.


# %% tags=["raises-exception"]
def only_members_call():
    if dist.get_rank() in (2, 3):
        dist.new_group([2, 3])  # ranks 0 and 1 are no members
    dist.barrier()
    dist.new_group([0, 1, 2, 3])


launch(only_members_call, world_size=4, nodes=2, backend="gloo", timeout=4)

# %% [markdown]
# Skipping the call does no visible harm; the *next* `new_group` hangs, and the last sentence of the report says why. Groups are numbered in the
# order of the calls. So the group of all four is number 1 for ranks 0 and 1, and number 2 for ranks 2 and 3: they look for each other under
# different numbers. In a script they would wait for torch's own timeout, which is thirty minutes with gloo. So be careful with every `if` on the rank that has a collective inside.
#
# Where do they look? **Predict.** Four ranks have joined, and all call `new_group([2, 3])`. How many *more* keys are in the store afterwards?

# %%
keys_of_group = predict("more keys after new_group([2, 3])", ...)


# %%
def make_a_group():
    store = joined_store()
    keys = set(store.list_keys())
    dist.barrier()  # all have looked
    dist.new_group([2, 3])
    dist.barrier()
    return sorted(set(store.list_keys()) - keys)


new_keys = launch(make_a_group, world_size=4, backend=None)[0]
print("new keys:", new_keys)
keys_of_group.measured(len(new_keys))

# %% [markdown]
# Two: the members left new addresses, under the number of the new group, 1. So the store is needed as long as groups are made,
# and the process that serves it has to live as long.
#
# ### A mesh makes all rows and columns
#
# For a regular grid, [`init_device_mesh`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh) makes
# the groups of all rows and all columns at once, in the right order on every rank. FSDP and tensor parallelism take such a mesh. Rank r brings
# the number r + 1.


# %%
def sums():
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("between", "within"))
    found = {}
    for name in ("within", "between"):
        number = torch.tensor(dist.get_rank() + 1)
        dist.all_reduce(number, group=mesh.get_group(name))
        found[name] = number.item()
    return found


results = launch(sums, world_size=4, nodes=2, backend="gloo")
captions = [f"within: {r['within']}\nbetween: {r['between']}" for r in results]
draw_grid(captions, "Sums within a node agree in a row, sums between nodes in a column.")

# %% [markdown]
# Rank 3 has 3 + 4 = 7 within its node. Between the nodes it has 2 + 4 = 6, together with rank 1, which has the same local rank.
#
# ## What you know now
#
# No process is in charge. Ranks meet at a store, and go back to it whenever they form another group; what they compute goes from rank to
# rank. The **rank** names a process in the world, the **local rank** chooses its GPU. And joining, like every collective, needs all.
#
# Two predictions are easily got wrong. There are no 100 or 400 new keys after 100 sums, because there's no master that would have to hear of each sum.
# And rank 0 isn't in the group after 0 seconds, although it is ready then. How many of yours were right?

# %%
predict()

# %% [markdown]
# The ranks have met. What do they say to each other? [03 · Collective primitives](03_collective_primitives.ipynb).
