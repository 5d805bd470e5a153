# %% [markdown]
# # Lab 02 · Process groups and ranks
#
# Four exercises on [chapter 02](../notebooks/02_process_groups.ipynb), 35 minutes, on any computer. You write the body of a
# function; `check` runs it in real workers, on several numbers of ranks, and compares what they return with a **specification**: a plain
# function of one process that says what is wanted. A check takes about a second and never stops the notebook.

# %%
import functools
import multiprocessing.util
import os

import torch
import torch.distributed as dist

from course_utils import check, progress

# %% [markdown]
# ## 1 · Which rank is that?
#
# *●○○, 5 minutes.* On a cluster of unlike machines, node k runs `processes[k]` processes. Ranks count through the first node, then
# through the second, and so on. **Goal:** return the rank of the process with a given local rank on a given node. The formula of
# the chapter holds for equal nodes only.
#
# With `processes = [2, 0, 3]`, local rank 1 of node 0 is rank 1, and local rank 2 of node 2 is rank 4. The check begins
# elsewhere, and shows what it begins with: the node of each process, here `[0, 0, 2, 2, 2]`, and the rank that it wants.


# %%
def rank_of(node, local_rank, processes):
    ### BEGIN SOLUTION
    return sum(processes[:node]) + local_rank
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many processes stand before node 2, if the nodes run 4, 2 and 4 of them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The rank is the number of processes before this one: all those of earlier nodes, and the local rank.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sum(processes[:node])</code> counts the processes of earlier nodes.
# </details>

# %%
clusters = {  # the node of each process
    "one node": lambda n: [0] * n,
    "a node for each process": lambda n: list(range(n)),
    "a small node first": lambda n: [0] * (n // 3) + [1] * (n - n // 3),
    "three unlike nodes": lambda n: [0] * (n // 2) + [1] * (n // 5) + [2] * (n - n // 2 - n // 5),
    "nodes without a process": lambda n: [1 + k * k // 3 for k in range(n)],
}


def processes_of(nodes):
    return [nodes.count(node) for node in range(nodes[-1] + 2)]


def of_one(answer):
    """Ask for the rank of one of these processes, not always the one that is asked."""

    @functools.wraps(answer)
    def asked(nodes, number):
        local_rank = number - nodes.index(nodes[number])
        return answer(nodes[number], local_rank, processes_of(nodes))

    return asked


def rank_of_spec(clusters, numbers):
    return numbers


def rank_of_inputs(rank, world_size, case):
    return clusters[case](world_size), int(torch.randint(world_size, ()))


options = {"cases": list(clusters), "world_sizes": (1, 2, 5, 7)}
check(of_one(rank_of), spec=rank_of_spec, inputs=rank_of_inputs, **options)

# %% [markdown]
# ## 2 · And where is this rank?
#
# *●●○, 8 minutes.* The way back. Every process asks for its own rank, and has to know which GPU to take. **Goal:** return
# the pair (node, local rank) of the process that calls `place_of`, whatever the nodes are like. A node may run no process at all.
#
# With `processes = [2, 0, 3]`, ranks 0 to 4 are (0, 0), (0, 1), (2, 0), (2, 1) and (2, 2).


# %%
def place_of(processes):
    ### BEGIN SOLUTION
    local_rank = dist.get_rank()
    for node, count in enumerate(processes):
        if local_rank < count:
            return node, local_rank
        local_rank -= count
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Division by the processes per node is out: there is no such number. Walk instead.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Begin with the rank. As long as it does not fit on the node that you stand on, take off that node's processes and go on.
# </details>
# <details><summary>Hint 3: the code</summary>
# Inside <code>for node, count in enumerate(processes):</code> return if <code>local_rank &lt; count</code>, else
# <code>local_rank -= count</code>.
# </details>


# %%
def of_this_one(answer):
    @functools.wraps(answer)
    def asked(nodes):
        return answer(processes_of(nodes))

    return asked


def place_of_spec(clusters):
    nodes = clusters[0]
    return [(node, rank - nodes.index(node)) for rank, node in enumerate(nodes)]


def place_of_inputs(rank, world_size, case):
    return clusters[case](world_size)


check(of_this_one(place_of), spec=place_of_spec, inputs=place_of_inputs, **options)

# %% [markdown]
# ## 3 · Three places to meet
#
# *●●○, 10 minutes.* Here nobody has made the group. `place` is `("env",)`, or `("tcp", address, port)`, or `("file", path)`. **Goal:** join
# a gloo group there, add up `number` over all ranks, leave the group, return the sum. The environment is
# `torchrun`'s, on two nodes where the ranks can be halved; `MASTER_PORT` is set only where the place is `("env",)`. The numbers are whole and may be large.


# %%
def meet_spec(places, numbers):
    return [sum(numbers) for _ in numbers]


# %%
def meet(place, number):
    ### BEGIN SOLUTION
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind, *rest = place
    init_method = f"{kind}://{':'.join(map(str, rest))}"
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    total = torch.tensor(number)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>init_process_group</code> takes all three as an address: <code>init_method=</code>. What does it not know where there is no
# <code>env://</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make <code>env://</code>, <code>tcp://address:port</code> or <code>file://path</code> of the tuple. Always hand over rank and world size: the
# environment has them as text, as <code>RANK</code> and <code>WORLD_SIZE</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>init_method = f"{place[0]}://" + ":".join(map(str, place[1:]))</code>
# </details>


# %%
def meet_inputs(rank, world_size, case):
    port = os.environ.get("MASTER_PORT", "0")
    if case != "env":
        os.environ.pop("MASTER_PORT", None)
    path = os.path.join(multiprocessing.util.get_temp_dir(), "meeting")
    rest = {"env": (), "tcp": ("127.0.0.1", int(port)), "file": (path,)}
    return (case, *rest[case]), int(torch.randint(2**40, ()))


options = {"backend": None, "nodes": 2, "cases": ("env", "tcp", "file")}
check(meet, spec=meet_spec, inputs=meet_inputs, world_sizes=(1, 2, 3, 4), **options)

# %% [markdown]
# ## 4 · Sums over rows and columns
#
# *●●●, 12 minutes.* The ranks stand in a grid of `columns` columns, row by row: with three columns, ranks 0, 1 and 2 are the first
# row. **Goal:** return the sum of all ranks' `tensor`, of large whole numbers, over this rank's row, and over its column, as a pair. Each is to be one
# `all_reduce` in a group of its own.


# %%
def grid_sums_spec(tensors, widths):
    ranks, columns = range(len(tensors)), widths[0]
    rows = [sum(tensors[r] for r in ranks if r // columns == rank // columns) for rank in ranks]
    return [(rows[rank], sum(tensors[rank % columns :: columns])) for rank in ranks]


# %%
def grid_sums(tensor, columns):
    ### BEGIN SOLUTION
    grid, sums = torch.arange(dist.get_world_size()).view(-1, columns), []
    for lines in (grid.tolist(), grid.T.tolist()):
        for ranks in lines:
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                total = tensor.clone()
                dist.all_reduce(total, group=group)
                sums.append(total)
    return tuple(sums)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who has to call <code>new_group</code>? And what is in <code>tensor</code> after the first <code>all_reduce</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Every rank makes every group, all rows and then all columns, in the same order. In the group that it belongs to, it adds up a
# copy.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>grid = torch.arange(dist.get_world_size()).view(-1, columns)</code> has the rows; <code>grid.T</code> has the columns.
# </details>


# %%
def grid_sums_inputs(rank, world_size, case):
    widths = [width for width in range(1, world_size + 1) if world_size % width == 0]
    width = widths[len(widths) // 2] if case == "a grid" else widths[-1 if case == "a row" else 0]
    return torch.randint(-(2**40), 2**40, (3,)), width


def grid_sums_budget(world_size, case):
    tensor, width = grid_sums_inputs(0, world_size, case)
    shares = (1 - 1 / width) + (1 - width / world_size)  # of an all_reduce over so many
    return {"sent_bytes": 2 * tensor.nbytes * shares}


shapes = ("a grid", "a row", "a column")
options = {"world_sizes": (1, 2, 4, 6), "require": ("all_reduce",), "budget": grid_sums_budget}
check(grid_sums, spec=grid_sums_spec, inputs=grid_sums_inputs, cases=shapes, **options)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
