# %% [markdown]
# # 02 · Process groups and ranks
#
# **How do processes that know nothing of each other become one group, and who is in charge?**
#
# In 50 minutes you will be able to
#
# 1. say what node, rank, local rank and world size are, and compute one from the others;
# 2. let workers meet in three ways, on a shared machine, without a collision;
# 3. start the same function with `multiprocessing.Process`, `mp.spawn` and `torchrun`;
# 4. build groups within the group, and read the report of a crash and of a hang.
#
# **Hardware:** any computer; all groups here use gloo on the CPU. GPUs only change the table in part 3.
# **Before:** [01 · DataParallel and the GIL](01_data_parallel_and_the_gil.ipynb). **Next:** [03 · Collective primitives](03_collective_primitives.ipynb).
# **Lab:** [02 · Process groups and ranks](../exercises/02_process_groups.ipynb).

# %%
import argparse
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from IPython.display import Markdown

from course_utils import WorkerError, hardware, launch, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · Is there a master?
#
# Tutorials speak of workers that compute and a *master* that coordinates them, and make you set `MASTER_ADDR`.
# Let us look for it. Four ranks share the numbers 0 to 99 among them; each adds up its part, then all add
# up the parts. What does rank 0 do that the others do not?


# %% tags=["row-A1"]
def share_the_work():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    part = torch.arange(rank, 100, world_size).sum()
    print("my part is", part.item(), end=", ")
    dist.all_reduce(part)
    print("the whole is", part.item())
    return os.getpid()


process_ids = launch(share_the_work, world_size=4, backend="gloo")
assert len({os.getpid(), *process_ids}) == 5  # the notebook and four workers

# %% [markdown]
# Nothing. Five processes with five process ids: your notebook, which only waits, and four workers
# that did the same work and hold the same whole. So where is the master?
#
# With `backend=None`, `launch` leaves joining to you. Below, each rank opens a **store**, a small dictionary that one
# process serves over the network, and joins through it. Then they add up 100 times.
#
# **Predict.** How many keys does the store hold after joining, and how many after the 100 sums?

# %% tags=["row-A1"]
predicted = {"keys after joining": "?", "keys after 100 sums": "?"}


def join_and_add():
    rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    dist.barrier()  # all have joined
    keys = {"keys after joining": store.num_keys()}
    for _ in range(100):
        dist.all_reduce(torch.ones(1))
    return keys | {"keys after 100 sums": store.num_keys()}


results = launch(join_and_add, world_size=4, backend=None)
print("predicted:", predicted)
print("measured: ", results[0])

# %% [markdown]
# Four keys: each rank left the address at which it can be reached, and read those of the others. The 100 sums added none:
# they went straight from rank to rank. **The "master" is this notice board and nothing else.** It tells
# workers nothing and computes nothing. Here it happens to live in rank 0's process.
#
# **Check yourself.** Must the notice board live in rank 0?
#
# <details><summary>Answer</summary>
# No. Any process that all can reach will do: a file serves as well (part 3), and <code>torchrun</code> keeps the board in a
# process that is no rank at all (part 5).
# </details>
#
# ## 2 · Node, rank, local rank
#
# A **node** is a machine. Many nodes with many GPUs each need two kinds of numbers: one that is unique in
# the whole **world**, and one that says which GPU of its node a process takes. `nodes=2` makes `launch` number four ranks
# as if they stood on two machines.
#
# **Predict.** Which node and which local rank has rank 2?

# %% tags=["row-B4"]
predicted = {"node": "?", "local rank": "?"}


def who_am_i():
    names = {"node": "GROUP_RANK", "local rank": "LOCAL_RANK", "rank": "RANK"}
    return {name: int(os.environ[variable]) for name, variable in names.items()}


grid = launch(who_am_i, world_size=4, nodes=2, backend="gloo")
print("rank 2, predicted:", predicted)
print("rank 2, measured: ", grid[2])

# %% [markdown]
# These environment variables are the ones that `torchrun` sets. Published tutorials mix the names up; one on which this
# course is built calls the node's number the global rank, and the number that it computes from it the local rank.
#
# | right name | variable | counts | from 0 to | in that article |
# | --- | --- | --- | --- | --- |
# | node rank | `GROUP_RANK` | machines | nodes − 1 | "global rank" |
# | local rank | `LOCAL_RANK` | processes of one machine | processes per node − 1 | "gpu" |
# | rank, or global rank | `RANK` | all processes | world size − 1 | "local rank" |
# | world size | `WORLD_SIZE` | how many there are | | nodes × GPUs per node |


# %% jupyter={"source_hidden": true}
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
rank_of = [place["node"] * 2 + place["local rank"] for place in grid]
assert rank_of == [place["rank"] for place in grid] == [0, 1, 2, 3]
captions = [f"{p['node']} × 2 + {p['local rank']}\n= rank {p['rank']}" for p in grid]
draw_grid(captions, "Ranks count through both nodes; local ranks begin again at 0 on each node.")

# %% [markdown]
# The cell also checked the formula on all four ranks: **rank = node rank × processes per node + local rank**. Tutorials
# write it `rank = nr * gpus + gpu`. The local rank is the one to choose a GPU with. What happens to somebody
# who takes the other? This cell is meant to fail. **Predict:** which ranks will it name?


# %% tags=["raises-exception", "row-B4"]
def choose_a_card():
    cards_of_this_node = ["cuda:0", "cuda:1"]
    card = cards_of_this_node[dist.get_rank()]
    dist.barrier()
    return card


launch(choose_a_card, world_size=4, nodes=2, backend="gloo")

# %% [markdown]
# Read it aloud. *Ranks 2 and 3 failed*: the whole second node. *IndexError*: there is no third card in a node of two. The
# arrow: `get_rank()` where the local rank belongs. *Ranks 0 and 1 were stopped*: they were right by luck, and waited in the barrier.
#
# **Check yourself.** Why do such scripts survive every test on one machine?
#
# <details><summary>Answer</summary>
# On one node, rank and local rank are the same number. The mistake shows on the second machine only:
# <code>int(os.environ["LOCAL_RANK"])</code> is right on both.
# </details>
#
# ## 3 · Three places to meet
#
# `init_process_group` needs a place where the ranks leave their addresses, and takes it as `init_method`: `env://` reads
# `MASTER_ADDR` and `MASTER_PORT`, `tcp://` names both, `file://` names a file that all can reach. Below, rank 0 is ready at once,
# rank 3 after 0.6 seconds.
#
# **Predict.** After how many seconds is rank 0 in the group?

# %%
predicted_joined_s = "?"


def join(place):
    begun, rank = time.monotonic(), int(os.environ["RANK"])
    time.sleep(0.2 * rank)
    arrived = time.monotonic()
    init_method = place.format(**os.environ)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=4)
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
    print("left behind in the folder:", os.listdir(folder))

# %% [markdown]
# Three places, one group: 1 + 2 + 3 + 4 = 10 on every rank, each time. With `file://` no process served anything, not even rank 0.
#
# And when did each rank get in? The workers noted the time at four points of `join`. All processes of a machine
# read the same monotonic clock, so their times can be drawn on one axis.


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
last_arrival = max(arrived for _, arrived, _, _ in times)
assert all(joined >= last_arrival for _, _, joined, _ in times)
print("seconds until rank 0 is in the group, predicted:", predicted_joined_s)
print("measured: more than 0.5 is", times[0][2] - times[0][0] > 0.5)
draw_timeline(times, "No rank is in the group before the last has arrived.")

# %% [markdown]
# Rank 0 was ready at once and got in after more than half a second all the same: joining is itself a collective. One rank that never comes
# keeps all the others waiting, and a slow import on one node is paid on every node.
#
# **Check yourself.** Yesterday's run was killed and left its meeting file. What may happen today?
#
# <details><summary>Answer</summary>
# The ranks read yesterday's addresses and try to reach processes that are gone: an error, or a long wait. The file goes when the
# group ends properly. After a crash nobody removes it, so take a new name for every run.
# </details>
#
# ### Backend by device
#
# The store only brings ranks together. Their tensors travel through a **backend**, which depends on where the tensors
# are. The first three columns are true anywhere; the last is about your machine.

# %% tags=["nbval-ignore-output", "row-A9"]
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
# Here is the beginning of many tutorials, where the port is the constant 12355. Ours takes it as an argument.
# `setup` joins, `cleanup` leaves. Without a launcher it is rank 0 that opens the port, so `as_published` removes the
# variable by which `launch` says that it has done so.


# %%
def setup(rank, world_size, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)


def cleanup():
    dist.destroy_process_group()


def as_published(port):
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE")
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), port)
    cleanup()


# %% [markdown]
# Now you share a server with somebody who followed the same tutorial: their training already holds the port. We let the system choose
# one, hold it, and write 12355 in its place where it is shown.
#
# **Predict.** Which rank fails, and what does the other one do meanwhile?

# %% tags=["row-A4"]
with socket.create_server(("127.0.0.1", 0)) as somebody_else:
    taken = somebody_else.getsockname()[1]
    try:
        launch(as_published, taken, backend=None)
    except WorkerError as error:
        words = str(error).replace(str(taken), "12355").replace(". port", ".\nport").split("\n")
        print(*words[:2], words[-1], sep="\n")

# %% [markdown]
# **EADDRINUSE**: rank 0 could not open the port. Rank 1 meanwhile had connected to the stranger and waited for answers; it was stopped.
# Had the stranger been a training of the same kind, your rank might have joined *it*.
#
# The cure: nobody chooses a number. The system is asked for a free port (port 0), and whoever asked keeps it and tells the
# ranks. `launch` and `torchrun --standalone` do so.


# %% tags=["row-A4"]
def with_a_launcher():
    setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    cleanup()
    return total.item()


print("without a number of ours:", launch(with_a_launcher, world_size=4, backend=None))

# %% [markdown]
# The same `setup`, and it works however many people do it at once: 10 on each rank. In your own code leave out both lines that set
# `os.environ`, and let whatever starts the ranks set them.
#
# **Check yourself.** Why not ask the system for a free port, print it, and start the ranks with that number by hand?
#
# <details><summary>Answer</summary>
# Between asking and opening it again the port is free, and somebody else may get it. It is rare, but real: whoever
# asks should keep the port open, as a launcher does.
# </details>
#
# ## 5 · Three ways to start
#
# Without a notebook, a function must stand in a file. This one does what ranks do, told who it is and where to meet.
# The next one is how scripts did it before there were launchers: started **once per node**, by hand, with the node's number, it computes each
# rank by the formula and starts one process per GPU with `mp.spawn`.


# %%
def work(rank, world_size, epochs, place):
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)
    for _ in range(epochs):
        total = torch.tensor(rank + 1)
        dist.all_reduce(total)
    print(f"rank {rank} of {world_size}: total {total.item()} in each of {epochs} epochs\n", end="")
    dist.destroy_process_group()


# %%
def one_process(gpu, args):
    rank = args.node_rank * args.gpus + gpu
    work(rank, args.nodes * args.gpus, args.epochs, args.place)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1, help="processes per node")
    parser.add_argument("-nr", "--node-rank", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--place", default=f"file://{os.getcwd()}/meeting")
    args = parser.parse_args()
    mp.spawn(one_process, args=(args,), nprocs=args.gpus)


# %% [markdown]
# A file needs its own imports and a **main guard**: a spawned process is a new Python that imports the file again, and without the
# guard it would spawn in its turn. `script_of` makes such a file of functions of this notebook; `run`, folded away, starts it once per command, side
# by side, and prints all lines, sorted.
#
# **Predict.** Two nodes, two processes each: which ranks does the *second* command start?


# %% jupyter={"source_hidden": true}
def run(script, *commands, timeout_s=100):
    """Run the script on loopback, once per command and side by side; print the sorted lines."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(script)
        options["env"] = {**os.environ, **loopback, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        words = [[sys.executable, *command] for command in commands]
        started = [subprocess.Popen(each, cwd=folder, text=True, **options) for each in words]
        try:
            said = "".join(process.communicate(timeout=timeout_s)[0] for process in started)
        finally:
            for process in filter(lambda process: process.poll() is None, started):
                os.killpg(process.pid, signal.SIGTERM)
    print("\n".join(sorted(said.splitlines())))


# %% tags=["row-B6", "row-A7", "row-D2"]
def script_of(*functions):
    imports = "import argparse\nimport os\n\nimport torch\nimport torch.distributed as dist\n"
    imports += "import torch.multiprocessing as mp\n\n\n"
    body = "\n\n".join(inspect.getsource(function) for function in functions)
    return imports + body + f'\n\nif __name__ == "__main__":\n    {functions[-1].__name__}()\n'


options = ["script.py", "-n", "2", "-g", "2", "--epochs", "3"]
run(script_of(work, one_process, main), [*options, "-nr", "0"], [*options, "-nr", "1"])

# %% [markdown]
# Ranks 2 and 3, since 1 × 2 + 0 = 2 and 1 × 2 + 1 = 3. Four processes of two scripts, which share nothing but a file, became one group.
#
# The same `work`, started with Python's own `Process` (`mp` passes it on): one object per rank, started and
# joined in two loops. This is what `launch` is made of, before it watches, collects and stops.


# %% tags=["row-D2"]
def with_processes():
    place = f"file://{os.getcwd()}/meeting"
    workers = [mp.Process(target=work, args=(rank, 2, 3, place)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


run(script_of(work, with_processes), ["script.py"])

# %% [markdown]
# And `torchrun`, which replaces the parser, the formula and `spawn`. It starts the file once per rank, with the variables of
# part 2 set:
#
# | by hand | with `torchrun` |
# | --- | --- |
# | `-n 2 -g 2 -nr 1` | `--nnodes=2 --nproc-per-node=2 --node-rank=1` |
# | `rank = nr * gpus + gpu` | `RANK`, `LOCAL_RANK` and `WORLD_SIZE` are there |
# | an address and a port for all | one machine: `--standalone`; several: a later chapter |


# %% tags=["row-D2"]
def under_torchrun():
    work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 3, "env://")
    if os.environ["RANK"] == "0":
        print("torchrun serves the store:", os.environ["TORCHELASTIC_USE_AGENT_STORE"])


torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
run(script_of(work, under_torchrun), [*torchrun, "script.py"])

# %% [markdown]
# `python -m torch.distributed.run` is `torchrun` by its full name; the older `torch.distributed.launch` is its deprecated form. The store
# lives in `torchrun` itself: no rank is the master. One warning: it listens on **all** addresses of your machine, without a
# password, so use it where you trust the network. `launch` stays on 127.0.0.1.
#
# ### Why not `mp.spawn` in a notebook?
#
# **Predict.** `work` is defined above. What will a freshly spawned Python say when told to call it?


# %% tags=["row-A7"]
def spawn_from_a_cell():
    os.dup2(complaints.fileno(), 2)  # the spawned process writes its error there
    mp.spawn(work, args=(1, 1, "env://"), nprocs=1)


with tempfile.TemporaryFile("w+") as complaints:
    try:
        launch(spawn_from_a_cell, world_size=1, backend=None)
    except WorkerError as error:
        print(str(error).split("\n")[0])
    complaints.seek(0)
    print(re.findall("Can't get attribute 'work'", complaints.read())[-1])

# %% [markdown]
# A function travels to a spawned process as a *name*: "look up `work` in `__main__`". The new Python's `__main__` is empty, for your
# cells are in no file that it could import. A **forked** process needs no name: it is a copy of the notebook, with every
# cell's work in it. That is why `launch` forks.
#
# **Check yourself.** What does fork forbid in return?
#
# <details><summary>Answer</summary>
# CUDA in the notebook before it: a GPU context does not survive the copy. Keep every <code>.cuda()</code> inside the function
# that <code>launch</code> runs; <code>launch</code> refuses otherwise.
# </details>
#
# ## 6 · Groups within the group
#
# Large trainings add up within nodes and across them. `dist.new_group` makes a group of some ranks, and `group=` has
# a collective run there only. In the picture of part 2 the rows are {0, 1} and {2, 3}, the columns {0, 2} and {1, 3}.
#
# **Predict.** Rank r holds r + 1. What is rank 3's sum over its row, its column, and the world?

# %%
predicted = {"row": "?", "column": "?", "world": "?"}


def sums():
    rank, rank_grid = dist.get_rank(), torch.arange(4).view(2, 2)
    groups = {"row": rank_grid.tolist(), "column": rank_grid.T.tolist(), "world": [[0, 1, 2, 3]]}
    result = {}
    for name, lists in groups.items():
        for ranks in lists:
            group = dist.new_group(ranks)  # every rank calls it, member or not
            if rank in ranks:
                number = torch.tensor(rank + 1)
                dist.all_reduce(number, group=group)
                result[name] = number.item()
    return result


# %%
results = launch(sums, world_size=4, nodes=2, backend="gloo")
print("rank 3, predicted:", predicted)
print("rank 3, measured: ", results[3])
assert [result["row"] for result in results] == [3, 3, 7, 7]
assert [result["column"] for result in results] == [4, 6, 4, 6]
captions = [f"row {result['row']}\ncolumn {result['column']}" for result in results]
draw_grid(captions, "Row sums agree within a node, column sums between the nodes.")

# %% [markdown]
# Row 3 + 4 = 7, column 2 + 4 = 6, world 10. The whole bookkeeping is one `arange(4).view(2, 2)`.
#
# Look at the comment in `sums`: *every rank calls it, member or not*. That looks wasteful, so somebody spares the
# others the call. This cell is meant to fail. **Predict:** in which line, and who waits for whom?


# %% tags=["raises-exception"]
def only_members_call():
    if dist.get_rank() in (2, 3):
        dist.new_group([2, 3])  # ranks 0 and 1 are no members
    dist.barrier()
    dist.new_group([0, 1, 2, 3])


launch(only_members_call, world_size=4, nodes=2, backend="gloo", timeout=4)

# %% [markdown]
# Treacherous: the spared call went well. It is the *next* group that nobody gets into. Groups are numbered in the order of
# calls: for ranks 0 and 1 this is the first, for ranks 2 and 3 the second, and they look for each other under different numbers. Left
# alone, they would wait many minutes for torch's own timeout. `timeout=4` had `launch` ask every rank where it stands.
#
# **Check yourself.** Where in this report is the cause?
#
# <details><summary>Answer</summary>
# In its last sentence: the first new group is another one on ranks 2 and 3. They made it above the line where they
# wait, inside an <code>if</code> on the rank. Most hangs begin in such an <code>if</code>.
# </details>
#
# ## What you know now
#
# No process is in charge. Ranks meet at a notice board, which is forgotten once they know each other; then they are equals. **Rank**
# names a process in the world, **local rank** its GPU on a node. And joining, like every collective, needs all.
#
# They have met; what do they say to each other? [03 · Collective primitives](03_collective_primitives.ipynb).
