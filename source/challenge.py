# %% [markdown]
# # The challenge · Who writes the fastest all-reduce?
#
# You are given four networks. Write an all-reduce that is as fast on them as can be. Real workers run it, with real messages, and a virtual clock says how long it would take. So
# your score is the same on every computer, and a slow laptop can win.

# %% [markdown]
# Nobody can be infinitely fast: for each network there is a time that no all-reduce can beat, and it is proven below. Your score is that time as
# a percentage of yours. **100 is perfect.** There is no solution in `solutions/`. There is a *house record* on the board, and it can be beaten.

# %% [markdown]
# **Before:** [06 · What communication costs](../notebooks/06_what_communication_costs.ipynb), and its [lab](06_what_communication_costs.ipynb).
# **Minutes:** 20 to read; then as many as you like. **Hardware:** any computer with two cores.

# %%
import torch
import torch.distributed as dist

import course_challenge as challenge

# %% [markdown]
# ## 1 · Your entry
#
# An entry is one cell with a function `all_reduce(x, league)`. Every rank calls it with a one-dimensional tensor `x`, and it returns the sum of all ranks' `x`. It may overwrite `x`.
# `league` is the name of the network, so one entry can do something different on each.

# %% [markdown]
# Here is the plain ring of chapter 03, to begin with. Change it.


# %%
def all_reduce(x, league):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    chunks = x.tensor_split(world_size)
    for turn in range(2 * (world_size - 1)):
        mine, next_one = chunks[(rank - turn) % world_size], chunks[(rank - turn - 1) % world_size]
        arrived = torch.empty_like(next_one)
        sending = dist.isend(mine, right)
        dist.recv(arrived, left)
        sending.wait()
        if turn < world_size - 1:
            next_one += arrived
        else:
            next_one.copy_(arrived)
    return x


# %%
challenge.judge(all_reduce)

# %% [markdown]
# The ring is good where tensors are large and all links alike. Small tensors show what its many turns cost. On the other three networks it waits.

# %% [markdown]
# ### What an entry may use
#
# - **Messages:** `dist.send`, `recv`, `isend`, `irecv` and `batch_isend_irecv`. No collective: you are writing one. A message holds what stands in the tensor when you hand it over.
# What arrives is there once you have waited.
# - **Tensors and plain Python:** functions, loops, lists, `torch`'s functions that make, cut and add tensors, and `math`. Helpers stand in the same cell.
# - **Nothing else.** No files, no clock, no shared memory, no imports of other modules. Whatever leads there is refused, with its line:


# %%
def shortcut(x, league):
    dist.all_reduce(x)
    return x


challenge.judge(shortcut)

# %% [markdown]
# Sums have to be right, also for lengths that aren't scored, and with numbers that are drawn while you wait. They are whole numbers of 32 bits, of all sizes. So none of them can be
# sent in fewer bytes, and their sums, which wrap around, do not depend on the order.

# %% [markdown]
# ## 2 · The leagues
#
# Each league has 4 and 6 ranks, and tensors of 1 KiB, 16 KiB, 128 KiB and 1 MiB. A message costs alpha + bytes · beta, as in chapter 06.
# Each rank has one port out and one port in. Both work at once, and each carries one message at a time. Adding up is free.

# %% [markdown]
# | league | the network |
# | --- | --- |
# | `"flat"` | All links alike: alpha = 10 µs, beta = 0.0001 µs per byte (80 Gbit/s). |
# | `"slow link"` | The same, but between ranks 0 and 1 everything takes 20 times as long, in both directions. |
# | `"two levels"` | Two nodes: ranks 0 and 1, or 0 to 2, share the first. Inside a node 2 µs and 800 Gbit/s; between nodes 10 µs and 80 Gbit/s. |
# | `"late rank"` | As flat, but the last rank starts 150 µs after the others. The time counts from then on. |

# %% [markdown]
# A league's score is the mean over its eight cases. Here are the times that cannot be beaten:

# %%
print(challenge.bounds())

# %% [markdown]
# ## 3 · Why nobody can be faster
#
# Let *n* be the number of ranks and *w* the time for which a whole tensor keeps a port busy, its bytes times beta. *T* is the time at which all are done.

# %% [markdown]
# **A number has to travel.** Take one place of the tensor. Before the first rank knows the sum there, each of the other *n* − 1 has sent something about it. After that, each of the
# other *n* − 1 still has to receive something about it. So 2(*n* − 1) messages carry that place.

# %% [markdown]
# This holds for every place, and *n* incoming ports share the work. One of them is busy for 2(*n* − 1)/*n* · *w* at least, and nothing arrives before alpha:
#
# > *T* ≥ alpha + 2(*n* − 1)/*n* · *w*
#
# This is the bound of [Patarasuk and Yuan (2009)](https://doi.org/10.1016/j.jpdc.2008.09.002), and of
# [Chan and others (2007)](https://doi.org/10.1002/cpe.1206). It takes for granted that each number in a message speaks of one place.

# %% [markdown]
# **First hand or later.** Many books add log₂ *n* · alpha. That holds where a rank can do nothing else while a message is under way. Here it can: all may send to all at once, and
# after one alpha everything is there. But it costs bytes.

# %% [markdown]
# What a rank sends before alpha is *first hand*: it knows its own numbers only. Whatever it has learnt from others leaves after alpha, and arrives after 2 alpha.

# %% [markdown]
# Look at one rank. Let *f* be the port time of all places that it learns at first hand alone. Each of those takes *n* − 1 copies. Each other place takes at least one message that arrives after 2 alpha.

# %% [markdown]
# So *T* ≥ alpha + (*n* − 1) *f* + (*w* − *f*), and *T* ≥ 2 alpha + *w* − *f*. The first grows with *f* and the second falls. They meet at *f* = alpha / (*n* − 1), and there
#
# > *T* ≥ 2 alpha + *w* − alpha / (*n* − 1), or, if everything fits in at first hand, *T* ≥ alpha + (*n* − 1) *w*

# %% [markdown]
# The smaller of these two holds, and so does the first bound. The larger of the two results is the bound of the **flat** league.

# %% [markdown]
# **Slow link.** A slower link makes nothing faster, so the flat bound holds. Besides, rank 0 has two choices. It waits for the slow link: 20 alpha. Or all that it learns of rank 1 comes
# through somebody else, every place of it, and arrives after 2 alpha: *T* ≥ 2 alpha + *w*. The smaller of these two holds as well.

# %% [markdown]
# **Two levels.** Let *alpha′* and *w′* be latency and port time inside a node, alpha and *w* those between nodes.

# %% [markdown]
# Of the 2(*n* − 1) messages about a place at least two go between the nodes, one in each direction. The others may stay inside:
#
# > *T* ≥ alpha′ + (2 *w* + 2(*n* − 2) *w′*) / *n*

# %% [markdown]
# Every rank needs at least one message about each place that knows of the other node. None arrives before alpha. Into each node at least one comes from outside:
#
# > *T* ≥ alpha + (2 *w* + (*n* − 2) *w′*) / *n*

# %% [markdown]
# And again: at first hand, from the *n*/2 ranks of the other node, or by way of a third rank, after alpha + alpha′. As before, the two meet:
#
# > *T* ≥ alpha + alpha′ + *w′* − alpha′ · *w′* / (*w* · *n*/2), or at first hand alone *T* ≥ alpha + *n*/2 · *w*

# %% [markdown]
# The smaller of the last two holds. The largest of the three results is the bound.

# %% [markdown]
# **Late rank.** Time counts from its start. Each other rank needs a whole tensor's worth of news, and none arrives before alpha: *T* ≥ alpha + *w*. The late rank sends each place
# directly to *d* others, averaged over the places. That keeps its outgoing port busy: *T* ≥ alpha + *d w*.

# %% [markdown]
# The other *n* − 1 − *d* learn it from somebody else, after 2 alpha. Shared by *n* − 1 incoming ports that is *T* ≥ 2 alpha + (1 − *d*/(*n* − 1)) *w*. The two meet, and there
#
# > *T* ≥ alpha + (*n* − 1)(alpha + *w*)/*n*, or, if it sends everything to all, *T* ≥ alpha + (*n* − 1) *w*

# %% [markdown]
# The smaller of these two holds, and alpha + *w* as well. The larger of the two results is the bound.

# %% [markdown]
# All this bounds what messages can do. Whether the bounds can be *reached* is another question. In the flat league we come within half a percent. Where the house record stays
# below, nobody knows yet: find a faster entry, or a better bound.

# %% [markdown]
# ## 4 · The board
#
# Here is what six well-known ways are worth. *Direct* sends everything to rank 0 and back. *Halving and doubling* is
# [Rabenseifner's algorithm](https://doi.org/10.1177/1094342005051521). *Hierarchical* adds up inside a node, then across, then shares. *Torch's own* is `dist.all_reduce`, at the best of the
# model's ring, tree and direct.

# %%
print(challenge.board())

# %% [markdown]
# ## 5 · Hand it in
#
# Save this notebook. Then, in a terminal, `make challenge name=Ada` judges your last cell with a function `all_reduce`, prints the board with your name on it, and keeps your best in
# `challenge.jsonl`, beside this notebook. (Without the course's folder: `ddp-course challenge Ada`.)

# %% [markdown]
# A class puts its files into one folder, each under its own name, and `make challenge merge=FOLDER` prints one board. With `again=1` every entry in them is judged anew.
#
# <details><summary>Hint 1: a nudge</summary>
# Which percentages are the ring's worst? What do all ranks do while a message of 1 KiB is under way?
# </details>
# <details><summary>Hint 2: the approach</summary>
# In the flat league three ways follow from the proof: everything at first hand; pieces to their owners and back; and for large tensors the same in slices, so that no port
# is idle. Draw the ports with <code>plot_timeline</code>.
# </details>

# %% [markdown]
# *Sources.* R. Hockney, The communication challenge for MPP, Parallel Computing 20, 1994: the model. P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
# workstations, 2009. E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, Collective communication: theory, practice, and experience, 2007. R. Thakur, R. Rabenseifner and W. Gropp,
# Optimization of collective communication operations in MPICH, 2005. How first hand and later are told apart, and the bounds of the three other leagues, are ours.
