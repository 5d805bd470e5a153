# %% [markdown]
# # Lab 01 · DataParallel and the GIL
#
# Five exercises on [chapter 01](../notebooks/01_data_parallel_and_the_gil.ipynb) and a bonus, 40 minutes without the bonus, on any computer. You take `DataParallel` apart and
# build it again, with processes instead of threads: each rank stands for a device. No rank waits for a shared GIL, but
# what it needs from others has to be sent.

# %% [markdown]
# You need chapter 01, and these calls, which chapters 02 and 03 explain:
#
# | `import torch.distributed as dist` | |
# | --- | --- |
# | `dist.get_rank()`, `dist.get_world_size()` | which rank am I, and how many are we |
# | `dist.send(tensor, 2)` | a message to rank 2 |
# | `dist.recv(tensor, 0)` | a message from rank 0, put into a tensor of the same size |
# | `dist.broadcast(tensor, src=0)` | all ranks call it, and all have rank 0's numbers afterwards |
# | `dist.reduce(tensor, dst=0)` | all call it, and rank 0 has the sum; what the others have then is of no use |
# | `dist.all_reduce(tensor)` | all call it, and all have the sum |

# %% [markdown]
# You write the body of a function. `check` runs it in real workers, on several numbers of ranks, and compares what each returns with what is wanted. It shows the smallest case that fails. Each exercise says how
# difficult it is and how important for the rest of the course, from ●○○ to ●●●.

# %%
import functools
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from course_utils import Network, WorkerError, check, launch, progress

# %% [markdown]
# ## 1 · Which rows are whose?
#
# *Difficulty ●○○ · importance ●●○ · 4 minutes.* Whoever divides a batch must decide what to do with the remainder. `DataParallel` cuts as
# `batch.chunk(devices)` does: parts of ⌈rows / devices⌉ rows, until the rows run out.

# %% [markdown]
# **Goal:** return the part of `batch` that belongs to
# the given `rank`, which may be a different rank from the one that asks.
#
# | rows | ranks | rank 0 | rank 1 | rank 2 | rank 3 |
# | --- | --- | --- | --- | --- | --- |
# | 0 to 9 | 4 | 0, 1, 2 | 3, 4, 5 | 6, 7, 8 | 9 |
# | 0 to 4 | 4 | 0, 1 | 2, 3 | 4 | none: no rows, with the same columns |


# %%
def part(batch, rank):
    ### BEGIN SOLUTION
    # Rounded up. A slice that begins behind the last row is empty, so idle ranks need no rule.
    size = math.ceil(len(batch) / dist.get_world_size())
    return batch[rank * size : (rank + 1) * size]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# With five rows and four ranks, <code>batch.chunk(4)</code> has three parts. What does rank 3 find at number 3?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Compute how many rows a full part has. Rank <i>r</i> begins after <i>r</i> full parts. A slice of Python may reach beyond the end.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>size = math.ceil(len(batch) / dist.get_world_size())</code>, then the rows from <code>rank * size</code> on.
# </details>

# %% jupyter={"source_hidden": true}
shapes = {"8 rows of 3": (8, 3), "10 rows of 2": (10, 2), "5 rows of 3": (5, 3)}
shapes |= {"1 row of 4": (1, 4), "9 numbers": (9,), "3 images": (3, 2, 2)}
shapes |= {"1,003 rows of 2": (1003, 2), "no rows": (0, 2)}


def part_spec(batches, ranks):
    parts = [batch.chunk(len(batches)) for batch in batches]
    return [
        chunks[rank] if rank < len(chunks) else batch[:0]
        for batch, rank, chunks in zip(batches, ranks, parts)
    ]


def part_inputs(rank, world_size, case):
    asked = (rank + 1 + list(shapes).index(case)) % world_size
    return torch.randint(-(10**6), 10**6, shapes[case]), asked


part_check = {"spec": part_spec, "inputs": part_inputs, "cases": list(shapes)}
part_check |= {"world_sizes": (1, 2, 4, 5)}

# %%
check(part, **part_check)

# %% [markdown]
# ## 2 · Scatter
#
# *Difficulty ●●○ · importance ●●○ · 6 minutes.* In `DataParallel` only the first device has the batch, so here only rank 0's `batch` counts. On the other ranks `batch` has the same shape, and numbers
# that mean nothing.

# %% [markdown]
# **Goal:** return on every rank its own part of rank 0's batch. No row may travel to a rank that doesn't need it, and a
# part without rows needs no message.
#
# | | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | has | `[1, 2, 3, 4, 5]` | `[?, ?, ?, ?, ?]` | `[?, ?, ?, ?, ?]` |
# | returns | `[1, 2]` | `[3, 4]` | `[5]` |


# %%
def scatter(batch):
    ### BEGIN SOLUTION
    own_rows = part(batch, dist.get_rank())  # off rank 0: the right size, to receive into
    if dist.get_rank() == 0:
        for other in range(1, dist.get_world_size()):
            dist.send(part(batch, other), other)
    else:
        dist.recv(own_rows, 0)
    return own_rows
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which ranks send and which receive? How does a rank know how many rows will come?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Rank 0 sends each other rank that rank's part. Every other rank receives one message, into a tensor of the right size, which <code>part</code> of its own batch is. Rank 0
# keeps its own part and sends itself nothing.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.send(part(batch, other), other)</code> on rank 0, for each other rank. Elsewhere <code>own_rows = part(batch, dist.get_rank())</code>, then <code>dist.recv(own_rows, 0)</code>.
# </details>


# %% jupyter={"source_hidden": true}
def scatter_spec(batches):
    parts = batches[0].chunk(len(batches))
    return [*parts, *[batches[0][:0]] * (len(batches) - len(parts))]


def scatter_inputs(rank, world_size, case):
    drawn = torch.randint(-9, 10, shapes[case])
    return drawn.double() / 7 if case == "10 rows of 2" else drawn.float()


def scatter_budget(world_size, case):
    """What is for other ranks, counted as if all parts were full."""
    batch = scatter_inputs(0, world_size, case)
    rows = (world_size - 1) * math.ceil(len(batch) / world_size)
    return {"sent_bytes": rows * batch[:1].nbytes}


# %% jupyter={"source_hidden": true}
def dealing(answer):
    """Refuse an answer if more than a full part comes to or leaves another rank than 0."""

    @functools.wraps(answer)
    def dealt(batch):
        moved = []
        full_bytes = math.ceil(len(batch) / dist.get_world_size()) * batch[:1].nbytes

        def before(call):
            touched = call.input_tensors + call.output_tensors
            tensors = {tensor.data_ptr(): tensor for tensor in touched}
            moved.append(sum(tensor.nbytes for tensor in tensors.values()))

        dist.group.WORLD.register_pre_hook(5, before)
        try:
            result = answer(batch)
        finally:
            dist.group.WORLD.unregister_pre_hook(5)
        if dist.get_rank() > 0 and sum(moved) > full_bytes:
            raise ValueError(
                f"{sum(moved)} bytes come to this rank or leave it, and a full part has "
                f"{full_bytes}: rows travel that this rank does not need."
            )
        return result

    return dealt


scatter_check = {"spec": scatter_spec, "inputs": scatter_inputs, "cases": list(shapes)[:-1]}
scatter_check |= {"budget": scatter_budget, "world_sizes": (1, 2, 3, 4)}

# %%
check(dealing(scatter), **scatter_check)

# %% [markdown]
# ## 3 · Forward
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* Three steps are left: replicate, apply, gather. Only rank 0's `model` and `batch` count.

# %% [markdown]
# **Goal:** every rank computes the outputs of its part
# with rank 0's model. Return all outputs in order on rank 0, and None elsewhere. You may call your `part` and `scatter`; gradients are off.
#
# For example, with three ranks and ten rows, rank 0 computes four rows of outputs, and receives four from rank 1 and two from rank
# 2.

# %% [markdown]
# The model of the check, below, subtracts the mean of the rows that it is given. In `DataParallel` each replica sees the mean of its own part, as in batch normalisation. And as there, not every tensor of the model
# is a parameter.


# %%
class Centred(nn.Module):
    """A layer for rows less their mean, with a scale that is no parameter but a buffer."""

    def __init__(self, outputs, dtype):
        super().__init__()
        self.layer = nn.Linear(3, outputs, dtype=dtype)
        self.register_buffer("scale", 1 + torch.rand(3, dtype=dtype))

    def forward(self, rows):
        return self.layer(self.scale * (rows - rows.mean(dim=0)))


# %%
def forward(model, batch):
    ### BEGIN SOLUTION
    rank = dist.get_rank()
    for tensor in model.state_dict().values():  # replicate: parameters and buffers
        dist.broadcast(tensor, src=0)
    own_outputs = model(scatter(batch))  # apply: each rank its rows, and no thread
    if rank > 0:
        dist.send(own_outputs, 0)
        return None
    outputs = [own_outputs]
    for other in range(1, dist.get_world_size()):  # gather: one named rank after the other
        rows = len(part(batch, other))  # rank 0 dealt them out, so it knows how many will come
        outputs.append(own_outputs.new_empty(rows, *own_outputs.shape[1:]))
        dist.recv(outputs[-1], other)
    return torch.cat(outputs)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of the other three steps is left when each rank has its outputs? And how many rows will rank 2 send?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Broadcast each tensor of the model from rank 0; <code>model.state_dict()</code> has parameters and buffers. Apply the model to what your <code>scatter</code> returns. Every other rank sends its outputs to rank 0. Rank 0 goes through the other ranks in order,
# makes an empty tensor with as many rows as that rank's part, receives into it, and in the end puts all together.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for tensor in model.state_dict().values(): dist.broadcast(tensor, src=0)</code>. On rank 0, for each other rank,
# <code>outputs.append(own_outputs.new_empty(len(part(batch, other)), own_outputs.shape[1]))</code> and <code>dist.recv(outputs[-1], other)</code>; then <code>torch.cat(outputs)</code>.
# </details>


# %% jupyter={"source_hidden": true}
rows_of = {"6 rows": 6, "10 rows": 10, "5 rows": 5, "1 row": 1, "7 rows, 5 outputs in float32": 7}
rows_of |= {"203 rows": 203}


def forward_spec(models, batches):
    parts = batches[0].chunk(len(models))
    outputs = torch.cat([models[0](rows) for rows in parts]).detach()
    return [outputs] + [None] * (len(models) - 1)


def forward_inputs(rank, world_size, case):
    outputs, dtype = (5, torch.float32) if "float32" in case else (2, torch.float64)
    return Centred(outputs, dtype), torch.randint(-9, 10, (rows_of[case], 3)).to(dtype)


def largest_part(world_size, case):
    """Of all rows, in equal shares, and a little more."""
    return 1.1 * world_size * math.ceil(rows_of[case] / world_size) / rows_of[case]


# %% jupyter={"source_hidden": true}
def without_gradients(answer):
    @functools.wraps(answer)
    def computed(model, batch):
        with torch.no_grad():
            return answer(model, batch)

    return computed


forward_check = {"spec": forward_spec, "inputs": forward_inputs, "cases": list(rows_of)}
forward_check |= {"work": largest_part, "world_sizes": (1, 2, 3, 4)}

# %%
check(without_gradients(forward), **forward_check)

# %% [markdown]
# ## 4 · Backward, and who may step
#
# *Difficulty ●●● · importance ●●● · 12 minutes.* Now the way back, and the difference between `DataParallel` and DDP. Rank 0 computes the loss from all outputs. Then each step of forward is reversed: a gather
# becomes a scatter, and a broadcast becomes a sum ([torch/nn/parallel/_functions.py](https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/_functions.py) has a class for each).

# %% [markdown]
# Each rank still has `output`, which its replica made of its own rows. `gradient` is the gradient of the loss with respect to all outputs, but only rank 0's counts.

# %% [markdown]
# **Goal:** leave the gradient of the loss in each
# parameter's `.grad`: on every rank if `everybody`, else on rank 0 only, and None elsewhere. Send no more than it takes to deal out the rows of `gradient` and to add up once over the ranks.

# %% [markdown]
# **What the check does.** After your function, every rank takes a step with the gradient that its model has. The check compares the
# weights, and counts the parameters that have a gradient. (*Given* shows the model, this rank's rows, `gradient` and `everybody`.)
#
# | after the step | rank 0 | the other ranks |
# | --- | --- | --- |
# | `everybody` is False, as in `DataParallel` | new weights | the old ones, until the next broadcast |
# | `everybody` is True, as in DDP | new weights | the same new weights, and nothing was broadcast |


# %%
def backward(model, output, gradient, everybody):
    ### BEGIN SOLUTION
    output.backward(scatter(gradient))
    for parameter in model.parameters():
        if everybody:
            dist.all_reduce(parameter.grad)  # who steps for itself needs the sum itself
        else:
            dist.reduce(parameter.grad, dst=0)
            if dist.get_rank() > 0:
                parameter.grad = None  # half a sum: nobody may step with it
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which rows of <code>gradient</code> belong to this rank's outputs? And is the gradient of the whole loss a sum over the parts, or their mean?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Scatter <code>gradient</code> with your function, and call <code>output.backward</code> with this rank's rows. Then each rank's parameters have the gradient that comes from its rows. The loss already divides by
# all rows, so they are to be added: by <code>reduce</code> if one rank steps, by <code>all_reduce</code> if each steps for itself.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>output.backward(scatter(gradient))</code>, then for each parameter <code>dist.all_reduce(parameter.grad)</code>, or
# <code>dist.reduce(parameter.grad, dst=0)</code> and off rank 0 <code>parameter.grad = None</code>.
# </details>


# %% jupyter={"source_hidden": true}
def small_model():
    """The same on every rank, and nothing had to be sent for it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1, bias=False)).double()
    nn.utils.vector_to_parameters(torch.linspace(-1, 1, 8).double(), model.parameters())
    return model


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach()


# %% jupyter={"source_hidden": true}
def step(model):
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    gradients = [parameter.grad is not None for parameter in model.parameters()]
    return {"weights": weights(model), "gradients": f"{sum(gradients)} of {len(gradients)}"}


def backward_spec(models, rows, gradients, everybody):
    before = {"weights": weights(models[0]).clone(), "gradients": "0 of 3"}
    models[0](torch.cat(rows)).backward(gradients[0])
    after = step(models[0])
    return [after] + [after if everybody[0] else before] * (len(models) - 1)


# %% jupyter={"source_hidden": true}
steps = {f"{n} rows, {who} steps": (n, who) for n in (6, 10, 5) for who in ("rank 0", "every rank")}


def backward_inputs(rank, world_size, case):
    count, who = steps[case]
    size = math.ceil(count / world_size)
    own_count = len(range(count)[rank * size : (rank + 1) * size])
    rows, gradient = torch.randint(-9, 10, (own_count, 2)) / 8, torch.randint(-9, 10, (count, 1))
    return small_model(), rows.double(), gradient.double(), who == "every rank"


def backward_budget(world_size, case):
    (count, who), weights_bytes = steps[case], 8 * 8
    scattered_bytes = (world_size - 1) * math.ceil(count / world_size) * 8
    times = 2 * (world_size - 1) / world_size if who == "every rank" else 1
    return {"sent_bytes": scattered_bytes + times * weights_bytes}


# %% jupyter={"source_hidden": true}
def stepping(answer):
    """Compute the outputs, call the answer, and let every rank step."""

    @functools.wraps(answer)
    def stepped(model, rows, gradient, everybody):
        answer(model, model(rows), gradient, everybody)
        return step(model)

    return stepped


backward_check = {"spec": backward_spec, "inputs": backward_inputs, "cases": list(steps)}
backward_check |= {"budget": backward_budget, "world_sizes": (1, 2, 3, 4)}

# %%
check(stepping(backward), **backward_check)

# %% [markdown]
# **Check yourself.** Somebody writes `reduce` and then lets every rank step. The loss on rank 0 falls all the same. What is wrong?
#
# <details><summary>Answer</summary>
# Every rank but 0 steps with a gradient that is not the sum, so from now on its weights are its own. Nobody notices as long as the next step begins with a broadcast that overwrites them. Leave that
# broadcast out, to spare its bytes, and the ranks compute with different models. With <code>all_reduce</code> they need no second
# broadcast: equal weights minus equal gradients stay equal.
# </details>

# %% [markdown]
# ## 5 · What passes through rank 0?
#
# *Difficulty ●●○ · importance ●●○ · 10 minutes.* Before you buy a network, count its load. In one step of `DataParallel`, weights, batch and the gradient of the outputs leave the first device, and outputs and
# the gradients of the weights come to it. Nothing passes through a third rank.

# %% [markdown]
# In DDP each rank reads its own batch. The gradients are added up around a ring, in which each of *n*
# ranks sends 2(*n* − 1)/*n* times the bytes of the weights and receives as many ([Patarasuk and Yuan 2009](https://doi.org/10.1016/j.jpdc.2008.09.002); chapter 03 builds that ring).

# %% [markdown]
# **Goal:** return, for `DataParallel` and for DDP, the bytes that rank 0 sends and receives in one step, added up, without what stays there. The model goes to all ranks, also those without rows. `row` and `output` are the bytes of one row of the
# batch and of its outputs; a gradient is as large as what it belongs to.
#
# | weights | rows | row | output | ranks | returns |
# | --- | --- | --- | --- | --- | --- |
# | 100 | 4 | 10 | 1 | 2 | (224, 200) |
# | 100 | 4 | 10 | 1 | 4 | (636, 300) |


# %%
def rank_0_bytes(weights, rows, row, output, ranks):
    ### BEGIN SOLUTION
    others = ranks - 1
    away = rows - math.ceil(rows / ranks)  # rank 0 has a full part, also of an uneven batch
    # Weights out and their gradients back; rows out, outputs back, their gradients out again.
    data_parallel = 2 * others * weights + away * (row + 2 * output)
    ddp = 2 * (2 * others / ranks) * weights  # sent, and received
    return data_parallel, ddp
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Of 10 rows for four ranks, how many does rank 0 keep? And how often does a row's output cross the wire, in either direction?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Each of the <i>n</i> − 1 other ranks costs the weights twice: once out, and once back as gradients. Each row that rank 0 does not keep costs a row and two outputs. In DDP the rows cost nothing.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>away = rows - math.ceil(rows / ranks)</code>, and <code>away * (row + 2 * output)</code> on top of the weights.
# </details>


# %% jupyter={"source_hidden": true}
plans = {  # rows and ranks
    "a job of 2 with 8 rows": (8, 2),
    "a job of 4 with 10 rows": (10, 4),
    "a job of 4 with 5 rows": (5, 4),
    "a job of 3 with 7 rows": (7, 3),
    "a job of 8 with 3 rows": (3, 8),
    "a job of 64 with 256 rows": (256, 64),
    "a job of 1 with 8 rows": (8, 1),
}


# %% jupyter={"source_hidden": true}
def rank_0_bytes_spec(*columns):
    def wanted(weights, rows, row, output, ranks):
        sizes = [len(chunk) for chunk in torch.arange(rows).chunk(ranks)]
        out = (ranks - 1) * weights + sum(sizes[1:]) * (row + output)
        back = (ranks - 1) * weights + sum(sizes[1:]) * output
        return float(out + back), 4 * weights - 4 * weights / ranks

    return [wanted(*arguments) for arguments in zip(*columns)]


def rank_0_bytes_inputs(rank, world_size, case):
    rows, ranks = plans[case]
    weights, row, output = (4 * torch.randint(1, 1000, (3,))).tolist()
    # Not to be divided by 3: it shows who drops what comes after the point.
    weights = 3 * row + 1 if ranks == 3 else 64 * weights
    return weights, rows, row, output, ranks


rank_0_bytes_check = {"spec": rank_0_bytes_spec, "inputs": rank_0_bytes_inputs}
rank_0_bytes_check |= {"cases": list(plans), "world_sizes": (1,)}

# %%
check(rank_0_bytes, **rank_0_bytes_check)

# %% [markdown]
# Now your own functions are recorded for one step on four ranks: a layer of 100 inputs and 1,000 outputs, and 64 rows. The collectives are counted once as if everything went straight to or from rank 0,
# and once as messages around a ring. Compare rank 0's column with your formula.


# %% jupyter={"source_hidden": true}
def one_step(mode):
    model, batch = nn.Linear(100, 1000), torch.ones(64, 100)
    if mode == "DDP, ring":
        return [dist.all_reduce(parameter.detach()) for parameter in model.parameters()]
    with torch.no_grad():
        forward(model, batch)
    output = model(part(batch, dist.get_rank()))
    backward(model, output, torch.ones(64, 1000), everybody=False)


def through_each_rank(mode, algorithm):
    run = launch(one_step, mode, world_size=4, backend="gloo", trace=True)
    traffic = run.trace.traffic(algorithm)
    return [sum(both) for both in zip(traffic.sent_bytes, traffic.received_bytes)]


# %% jupyter={"source_hidden": true}
try:
    predicted = rank_0_bytes(404_000, 64, 400, 4000, 4)
    print("your formula for rank 0: {:,.0f} and {:,.0f}".format(*predicted))
    print(f"{'bytes through':22}" + "".join(f"{f'rank {rank}':>11}" for rank in range(4)))
    modes = {"DataParallel, straight": "direct", "DataParallel, rings": "ring", "DDP, ring": "ring"}
    for mode, algorithm in modes.items():
        sizes = through_each_rank(mode, algorithm)
        print(f"{mode:22}" + "".join(f"{size:>11,.0f}" for size in sizes))
except (NotImplementedError, WorkerError) as error:
    is_stub = "NotImplementedError" in repr(error)
    print("Not all five exercises are done yet." if is_stub else error)

# %% [markdown]
# With straight copies, rank 0 carries three times as much as each of the other three ranks, and every additional rank adds to its load.
# Rings pass the weights and their gradients on from rank to rank, so that those in the middle carry most; on GPUs, NCCL can do so for
# `DataParallel` too ([torch/nn/parallel/comm.py](https://github.com/pytorch/pytorch/blob/main/torch/nn/parallel/comm.py)).

# %% [markdown]
# What no ring spreads is the batch and the outputs, because they begin and end on rank 0.
#
# In DDP no rank is special. The same bytes pass through each, and they stay below four times the weights, however many ranks there are.

# %% [markdown]
# ## Bonus · The best DataParallel
#
# *As long as you like; there is no check and no single answer.* Eight ranks take one step. A message takes 10 µs to begin, and a link carries 10 Gbit/s. At first only rank 0's model, batch
# and labels count; in the end rank 0 has the gradient of the mean loss.

# %% [markdown]
# `finish_us` runs your function in real ranks and replays what they sent on this network, so the same calls always take the same time. `plain`, step by step, takes 1371 µs, and our best takes 747 µs.
# DDP, which needs no broadcast and no scatter, takes 706 µs if it sums all gradients in one call. What is yours?


# %%
def plain(model, batch, labels):
    is_first = dist.get_rank() == 0
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    rows, gradient = torch.empty(8, 100), torch.empty(8, 1000)
    dist.scatter(rows, list(batch.chunk(8)) if is_first else None)
    output = model(rows)
    every = [torch.empty(8, 1000) for _ in range(8)] if is_first else None
    dist.gather(output.detach(), every)
    dist.scatter(gradient, gradients(torch.cat(every), labels) if is_first else None)
    output.backward(gradient)
    for parameter in model.parameters():
        dist.reduce(parameter.grad, dst=0)


# %%
def gradients(outputs, labels):
    outputs.requires_grad_()
    return list(torch.autograd.grad(cross_entropy(outputs, labels), outputs)[0].chunk(8))


def finish_us(take_step):
    trace = launch(tried, take_step, world_size=8, backend="gloo", trace=True).trace
    return max(trace.replay(Network(latency_us=10, gbit_s=10)).finish_us)


# %% jupyter={"source_hidden": true}
def tried(take_step):
    """Take the step, and compare what rank 0 has with what one process would find."""
    torch.manual_seed(dist.get_rank())
    model, batch, labels = nn.Linear(100, 1000), torch.randn(64, 100), torch.randint(1000, (64,))
    wanted = torch.autograd.grad(cross_entropy(model(batch), labels), [*model.parameters()])
    take_step(model, batch, labels)
    if dist.get_rank() == 0:
        for parameter, gradient in zip(model.parameters(), wanted):
            torch.testing.assert_close(parameter.grad, gradient)


# %%
print(f"{finish_us(plain):.0f} µs")

# %% [markdown]
# <details><summary>Where could you start?</summary>
# Must the outputs come to rank 0, or only the loss? Labels are small. And what does a tensor cost that is sent in one message, in two, in sixteen that do not wait for each other (<code>async_op=True</code>)?
# </details>
#
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [02 · Process groups and ranks](../notebooks/02_process_groups.ipynb), or, if you come from chapter 03, [04 · DDP training](../notebooks/04_ddp_training.ipynb).

# %%
progress("part", "scatter", "forward", "backward", "rank_0_bytes")
