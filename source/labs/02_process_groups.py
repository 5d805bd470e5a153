# %% [markdown]
# # Lab 02 · Process groups and ranks
#
# Five exercises on [chapter 02](../notebooks/02_process_groups.ipynb) and a bonus, 40 minutes without the bonus, on any computer.
# Each exercise says how difficult it is and how important for the rest of the course, from ●○○ to ●●●.

# %% [markdown]
# You write the body of a function. `check` runs it in real workers, with several world sizes, and compares what they return with what is wanted.
# It takes about a second, and it never stops the notebook.

# %%
import multiprocessing.util
import os

import torch
import torch.distributed as dist

from course_utils import Network, check, launch, progress

# %% [markdown]
# ## 1 · What does a failing check say?
#
# *Difficulty ●○○ · importance ●●● · 4 minutes.* You'll see many failing checks, so here's one on purpose.

# %% [markdown]
# **Goal:** on every rank, return
# the mean of all ranks' `tensor`. The answer is already there, and it's wrong. Run the four cells below before you repair it.

# %% [markdown]
# Many exercises show a **specification** of what is wanted: a plain function for one process. It takes a list with one entry
# per rank and returns a list with one result per rank. Your own function runs on every rank and sees only that rank's entry.


# %%
def mean_of_all_spec(tensors):
    mean = sum(tensors) / len(tensors)
    return [mean for _ in tensors]


# %%
def mean_of_all(tensor):
    total = tensor.clone()
    dist.all_reduce(total)
    ### BEGIN SOLUTION return total
    # Every rank has the sum now, and the mean is the sum divided by the number of ranks.
    return total / dist.get_world_size()
    ### END SOLUTION


# %% jupyter={"source_hidden": true}
def mean_of_all_inputs(rank, world_size, case):
    if case == "a small number":
        return torch.randint(10, (), dtype=torch.float32)
    return torch.randint(-(2**40), 2**40, (3, 2), dtype=torch.float64)


mean_of_all_check = {"spec": mean_of_all_spec, "inputs": mean_of_all_inputs}
mean_of_all_check |= {"cases": ("a small number", "large numbers"), "require": ("all_reduce",)}

# %%
check(mean_of_all, **mean_of_all_check)

# %% [markdown]
# How to read it:
#
# - **The first line** names the smallest case that fails: two ranks, since on one rank sum and mean are the same.
# - **The table** has a row for each rank, and an arrow marks the wrong ones. Compare *wanted* with *got* first.
# - **The last lines** name the first difference, and its rank's calls.

# %% [markdown]
# Now repair the answer. Run its cell, and then the check again.
#
# <details><summary>Hint 1: a nudge</summary>
# By what would you have to divide on two ranks, and by what on three?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Divide the sum by the number of ranks that contributed to it.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.get_world_size()</code> is the number of ranks.
# </details>

# %% [markdown]
# ## 2 · Which rank is that?
#
# *Difficulty ●○○ · importance ●●○ · 5 minutes.* The chapter's formula only holds if all nodes run the same number of processes, and
# schedulers such as Slurm don't guarantee that. Here node *k* runs `processes[k]` processes, and ranks count through the first node, then
# the second, and so on.

# %% [markdown]
# **Goal:** return the rank of the process with this local rank on this node. It has to work for any cluster, not just the one it runs on.
#
# With `processes = [2, 0, 3]`, local rank 1 of node 0 is rank 1, and local rank 2 of node 2 is rank 4. (Where an example says it all, the
# specification is folded up.)


# %%
def rank_of(node, local_rank, processes):
    ### BEGIN SOLUTION
    # All processes of earlier nodes come first, then those before this one on its own node.
    return sum(processes[:node]) + local_rank
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# If the nodes run 4, 2 and 4 processes, how many come before node 2?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The rank is the number of processes that come before this one: all those of earlier nodes, plus the local rank.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sum(processes[:node])</code> counts the processes of earlier nodes.
# </details>

# %% jupyter={"source_hidden": true}
clusters = {  # the node of each process
    "one node": lambda n: [0] * n,
    "a node for each process": lambda n: list(range(n)),
    "a small node first": lambda n: [0] * max(1, n // 3) + [1] * (n - max(1, n // 3)),
    "three nodes, some perhaps empty": lambda n: (
        [0] * (n // 2) + [1] * (n // 5) + [2] * (n - n // 2 - n // 5)
    ),
    "nodes without a process": lambda n: [1 + k * k // 3 for k in range(n)],
}


def processes_of(nodes):
    return [nodes.count(node) for node in range(nodes[-1] + 2)]


def places(processes):
    """Node and local rank of each process, in the order of the ranks."""
    return [(node, local) for node, count in enumerate(processes) for local in range(count)]


def rank_of_spec(nodes, local_ranks, clusters):
    asked = zip(nodes, local_ranks, clusters)
    return [places(processes).index((node, local)) for node, local, processes in asked]


def rank_of_inputs(rank, world_size, case):
    """One of these processes, not always the one that is asked."""
    if case in clusters:
        nodes = clusters[case](world_size)
    else:
        nodes = torch.randint(50, (400,)).sort().values.tolist()
    processes = processes_of(nodes)
    number = int(torch.randint(len(nodes), ()))
    return *places(processes)[number], processes


cases_and_sizes = {"cases": list(clusters), "world_sizes": (1, 2, 5, 7), "hide": (places,)}
rank_of_check = cases_and_sizes | {"cases": [*clusters, "400 processes on up to 50 nodes"]}

# %%
check(rank_of, spec=rank_of_spec, inputs=rank_of_inputs, **rank_of_check)

# %% [markdown]
# ## 3 · And where is this rank?
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* Now the way back: a process knows its rank and has to find out which GPU to take.

# %% [markdown]
# **Goal:**
# return the pair (node, local rank) of the process that calls `place_of`, however many processes each node runs, even if some nodes run
# none.
#
# With `processes = [2, 0, 3]`, ranks 0 to 4 are at (0, 0), (0, 1), (2, 0), (2, 1) and (2, 2).


# %%
def place_of(processes):
    ### BEGIN SOLUTION
    local_rank = dist.get_rank()
    for node, count in enumerate(processes):
        if local_rank < count:
            return node, local_rank
        # Not on this node: leave its processes behind and count on from the next one.
        local_rank -= count
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# You can't divide by the processes per node, because there's no such number. What if you walk through the nodes instead?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Begin with the rank. While it doesn't fit on the node you have reached, subtract that node's processes and go on to the next.
# </details>
# <details><summary>Hint 3: the code</summary>
# Inside <code>for node, count in enumerate(processes):</code> return if <code>local_rank &lt; count</code>, else
# <code>local_rank -= count</code>.
# </details>


# %% jupyter={"source_hidden": true}
def place_of_spec(clusters):
    return places(clusters[0])


def place_of_inputs(rank, world_size, case):
    return processes_of(clusters[case](world_size))


# %%
check(place_of, spec=place_of_spec, inputs=place_of_inputs, **cases_and_sizes)

# %% [markdown]
# ## 4 · Three places to meet
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* All your scripts will begin like this. `torchrun` prepares everything for `env://`, but other people's scripts may use any of the
# three. Here nobody has made the group yet. `place` is `("env",)`, or `("tcp", address, port)`, or `("file",
# path)`.

# %% [markdown]
# **Goal:** join a gloo group there, add up `number` over all ranks, leave the group, and return the sum.
#
# The environment is the one `torchrun` sets, on two nodes if the world size is even. `MASTER_PORT` is set only when the place is `("env",)`. The
# numbers are whole and may be large.


# %%
def meet_spec(places, numbers):
    return [sum(numbers) for _ in numbers]


# %%
def meet(place, number):
    ### BEGIN SOLUTION
    # tcp:// and file:// only say where, so always pass the rank and the world size.
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kind, *address = place
    init_method = f"{kind}://{':'.join(map(str, address))}"
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=world_size)
    # A whole number becomes int64, so large sums stay exact.
    total = torch.tensor(number)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>init_process_group</code> takes all three as an address, <code>init_method=</code>. What does it not know unless the address is
# <code>env://</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Turn the tuple into <code>env://</code>, <code>tcp://address:port</code> or <code>file://path</code>. Always pass the rank and the world size: the
# environment has them as text, in <code>RANK</code> and <code>WORLD_SIZE</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>init_method = f"{place[0]}://" + ":".join(map(str, place[1:]))</code>
# </details>


# %% jupyter={"source_hidden": true}
def meet_inputs(rank, world_size, case):
    port = os.environ.get("MASTER_PORT", "0")
    if case != "env":
        os.environ.pop("MASTER_PORT", None)
    path = os.path.join(multiprocessing.util.get_temp_dir(), "meeting")
    addresses = {"env": (), "tcp": ("127.0.0.1", int(port)), "file": (path,)}
    return (case, *addresses[case]), int(torch.randint(-(2**40), 2**40, ()))


without_a_group = {"backend": None, "nodes": 2, "cases": ("env", "tcp", "file")}
without_a_group |= {"world_sizes": (1, 2, 3, 4)}

# %%
check(meet, spec=meet_spec, inputs=meet_inputs, **without_a_group)

# %% [markdown]
# ## 5 · Sums over rows and columns
#
# *Difficulty ●●● · importance ●●○ · 12 minutes.* Trainings that split both the data and the model arrange their ranks in a grid and
# add up in two directions. The grid has `columns` columns and is filled row by row: with three columns, ranks 0, 1 and 2 are the first row.

# %% [markdown]
# **Goal:** return a pair: the sum of `tensor` (large whole numbers) over this rank's row, and the sum over its column. Make each sum with one
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
            # Every rank makes every group, member or not, in the same order.
            group = dist.new_group(ranks)
            if dist.get_rank() in ranks:
                # all_reduce works in place, and the column needs the tensor as it was.
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
# Every rank makes every group, first all rows and then all columns, in the same order. In each group it belongs to, it adds up a
# copy. A mesh of the right shape does the first half for you.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>grid = torch.arange(dist.get_world_size()).view(-1, columns)</code> has the rows; <code>grid.T</code> has the columns.
# </details>


# %% jupyter={"source_hidden": true}
def grid_sums_inputs(rank, world_size, case):
    widths = [width for width in range(1, world_size + 1) if world_size % width == 0]
    places = {"a grid": len(widths) // 2, "a high grid": (len(widths) - 1) // 2, "a row": -1}
    bound, length = (100, 2) if case == "a grid" else (2**40, 70)
    return torch.randint(-bound, bound, (length,)), widths[places.get(case, 0)]


def grid_sums_budget(world_size, case):
    tensor, width = grid_sums_inputs(0, world_size, case)
    shares = (1 - 1 / width) + (1 - width / world_size)  # of an all_reduce over so many
    return {"sent_bytes": 2 * tensor.nbytes * shares}


grids = {"cases": ("a grid", "a high grid", "a row", "a column"), "world_sizes": (1, 2, 4, 6)}
grids |= {"require": ("all_reduce",), "budget": grid_sums_budget}

# %%
check(grid_sums, spec=grid_sums_spec, inputs=grid_sums_inputs, **grids)

# %% [markdown]
# ## Bonus · Spare the slow link
#
# *As long as you like; there's no check and no single answer.* Four ranks on two nodes add up 100,000 numbers. Between the nodes, a message takes ten times as long, both to start
# and for each byte. A plain `all_reduce` doesn't know that. With groups, fewer bytes have to cross between the nodes.

# %% [markdown]
# `finish_us` runs your function in real ranks, records what they send, and replays the recording on this network, so the same
# calls always take the same time. Two `all_reduce` calls over the groups of a mesh take 462 µs. Our best takes 302 µs. And yours?


# %%
def plain(tensor):
    dist.all_reduce(tensor)
    return tensor


def finish_us(add_up):
    trace = launch(
        lambda: add_up(torch.ones(100_000)), world_size=4, nodes=2, backend="gloo", trace=True
    ).trace
    return max(trace.replay(two_slow_nodes).finish_us)


two_slow_nodes = Network(latency_us=5, gbit_s=100, nodes=2, between=(50, 10))
print(f"one all_reduce over all: {finish_us(plain):.0f} µs")

# %% [markdown]
# <details><summary>Where to begin?</summary>
# Within a node, let each rank add up only half of the numbers (<code>reduce_scatter_tensor</code>). Which half has to cross then, and how does a rank
# get the other half back?
# </details>
#
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [03 · Collective primitives](../notebooks/03_collective_primitives.ipynb): what can ranks say to each other?

# %%
progress("mean_of_all", "rank_of", "place_of", "meet", "grid_sums")
