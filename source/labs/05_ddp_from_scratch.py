# %% [markdown]
# # Lab 05 · DDP from scratch
#
# Four exercises on [chapter 05](../notebooks/05_ddp_from_scratch.ipynb), 50 minutes, on any computer. You write what PyTorch's DDP does beyond the chapter's: it agrees on its
# buckets, knows what nobody used, copies nothing back, and lets you change what travels.

# %% [markdown]
# `check` trains in real workers and compares with a **specification**: one process that trains on the shards of all ranks. It also counts what was sent. Each exercise says how
# difficult it is and how important for the rest of the course, from ●○○ to ●●●.

# %%
import functools
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_utils import check, progress

# %% [markdown]
# ## 1 · Which buckets, after the first step?
#
# *Difficulty ●●○ · importance ●●○ · 12 minutes.* The best order to fill buckets is the one in which gradients really arrive. Each rank has seen an order of its own in the first
# step, and all need *the same* buckets. PyTorch takes rank 0's order.

# %% [markdown]
# **Goal:** return the buckets, lists of parameter numbers, filled in rank 0's order. `order` is a tensor, this rank's own. As in PyTorch, a bucket is closed **after** the parameter
# with which it reaches `limit_bytes`. So it may hold more than that.

# %%
example = {
    "rank 0's order": [4, 2, 3, 1, 0],
    "sizes_bytes": [40, 8, 24, 32, 100],  # of parameter 0, 1, ...
    "limit_bytes": 48,
    "wanted, on all ranks": [[4], [2, 3], [1, 0]],
}


# %%
def agreed_buckets(order, sizes_bytes, limit_bytes):
    ### BEGIN SOLUTION
    dist.broadcast(order, src=0)  # what a rank saw itself does not count
    buckets, filled_bytes = [[]], 0
    for number in order.tolist():
        if filled_bytes >= limit_bytes:
            buckets.append([])
            filled_bytes = 0
        buckets[-1].append(number)
        filled_bytes += sizes_bytes[number]
    return buckets
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What must be known to decide where a parameter goes: its own size, the bucket's so far, or both?
# </details>
# <details><summary>Hint 2: the approach</summary>
# First let all ranks have rank 0's order, a tensor. Then go through it with a list of lists, and count the bytes of the last one. If it has reached the limit, the next parameter begins a new list.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.broadcast(order, src=0)</code>; then, before a parameter is added, <code>if filled_bytes >= limit_bytes:</code>
# </details>


# %% jupyter={"source_hidden": true}
def agreed_buckets_spec(orders, sizes_bytes, limits_bytes):
    buckets = [[]]
    for number in orders[0].tolist():
        filled_bytes = sum(sizes_bytes[0][other] for other in buckets[-1])
        if filled_bytes >= limits_bytes[0]:
            buckets.append([])
        buckets[-1].append(number)
    return [buckets] * len(orders)


limits = {
    "a limit of 1 byte": 1,
    "a limit of 25 bytes": 25,
    "a limit of 100 bytes": 100,
    "a limit of 143 bytes": 143,
    "a limit of 144 bytes": 144,
    "a limit of 168 bytes": 168,
    "a limit of 300 bytes": 300,
    "room for all": 568,
    "eighty parameters": 1600,
}


def agreed_buckets_inputs(rank, world_size, case):
    sizes_bytes = [24, 120, 24, 120, 40, 40, 200]
    if case == "eighty parameters":
        sizes_bytes = [8 * (1 + 37 * k % 83) for k in range(80)]
    return torch.randperm(len(sizes_bytes)), sizes_bytes, limits[case]


options = {"cases": list(limits), "spec": agreed_buckets_spec, "inputs": agreed_buckets_inputs}

# %%
check(agreed_buckets, **options)

# %% [markdown]
# ## 2 · What did nobody use?
#
# *Difficulty ●●○ · importance ●●○ · 12 minutes.* The chapter's DDP gives a gradient of zeros to a parameter that no rank used, and an optimiser with momentum or weight decay then moves it.

# %% [markdown]
# **Goal:** called after each backward, average the gradient of every parameter that some rank used, with zeros from those that did not. Where *no* rank did, `.grad` stays `None`.
# You may send one extra small message.


# %%
class TwoExperts(nn.Module):
    def __init__(self, width=5):
        super().__init__()
        double = {"dtype": torch.float64}
        self.register_buffer("scale", 0.5 + torch.rand(4, **double))
        self.frozen = nn.Linear(4, width, **double).requires_grad_(False)
        self.tied = nn.ModuleList([nn.Linear(width, width, **double) for _ in range(2)])
        self.tied[1].weight = self.tied[0].weight
        self.experts = nn.ModuleList([nn.Linear(width, 3, **double) for _ in range(2)])

    def forward(self, inputs, path):
        hidden = self.frozen(self.scale * inputs)
        for layer in self.tied:
            hidden = torch.tanh(layer(hidden))
        return sum((1 + number) * self.experts[number](hidden) for number in path)


def learning(model):
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


# %%
def adam(model):
    return torch.optim.Adam(learning(model), lr=0.05, weight_decay=0.1)


def weights(model):
    return nn.utils.parameters_to_vector(learning(model)).detach()


def average_used_spec(models, batches):
    optimizer = adam(models[0])
    for step in zip(*batches):  # the batches of all ranks
        losses = [mse_loss(models[0](inputs, path), targets) for inputs, targets, path in step]
        optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        optimizer.step()
    return [weights(models[0])] * len(models)


# %%
def average_used(model):
    ### BEGIN SOLUTION
    used = torch.tensor([parameter.grad is not None for parameter in learning(model)]).int()
    dist.all_reduce(used, dist.ReduceOp.MAX)  # 1 where any rank has one
    for parameter, anybody in zip(learning(model), used.tolist()):
        if anybody:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A rank cannot see alone whether another one used a parameter. Which reduction answers "did anybody?" for all parameters at once?
# </details>
# <details><summary>Hint 2: the approach</summary>
# One number per parameter, 1 if it has a gradient here, reduced with <code>MAX</code>. Then go through parameters and numbers together: nothing where it is 0; else fill in zeros if need be, and average.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>used = torch.tensor([parameter.grad is not None for parameter in learning(model)]).int()</code> and
# <code>dist.all_reduce(used, dist.ReduceOp.MAX)</code>.
# </details>


# %% jupyter={"source_hidden": true}
STEPS = 3
same, fewer = "all ranks alike", "odd ranks rest an expert"
turns, nobody = "experts take turns", "nobody uses one of the experts, each time another"
idle = "one of the experts is used, with a weight of 0"  # which is -1 + 1 for number -1
apart = "one of the experts is used by even ranks alone, with a weight of 0"
upside, wider = "all ranks alike, the second expert first", "all ranks alike, wider layers"
ways = {same: [(0, 1)], fewer: [(0, 1), (1,), (0, 1), (0,)], turns: [(0,), (1,), (1,), (0,)]}
ways |= {nobody: [(0,), (0,), (1,), (1,)], upside: [(1, 0)], idle: [(0, -1)]}
ways |= {wider: [(1, 0)], apart: [(0, -1), (0,)]}


class Inside(nn.Module):
    """The same parameters under other names."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, *inputs):
        return self.inner(*inputs)


def drawn(path):
    numbers = torch.randn(6, 7, dtype=torch.float64)
    return numbers[:, :4], numbers[:, 4:], path


def same_model(case):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = TwoExperts(6 if case == wider else 5)
    return Inside(model) if case == nobody else model


def shards(rank, case):
    """The same model, and a rank's inputs, targets and path for each step."""
    choices = ways[case]
    return [drawn(choices[(rank % 2 + 2 * step) % len(choices)]) for step in range(STEPS)]


def average_used_inputs(rank, world_size, case):
    return same_model(case), shards(rank, case if world_size > 1 else same)


def average_used_budget(world_size, case):
    """In each step a ring for each of 7 gradients, 568 bytes, and for a number of all 9."""
    rounds = 2 * (world_size - 1) * STEPS
    return {"sent_messages": 8 * rounds, "sent_bytes": rounds * (568 + 9 * 8) / world_size}


def training(answer):
    """Train, and call the answer after each backward."""

    @functools.wraps(answer)
    def trained(model, batches):
        optimizer = adam(model)
        for inputs, targets, path in batches:
            optimizer.zero_grad()
            mse_loss(model(inputs, path), targets).backward()
            answer(model)
            optimizer.step()
        return weights(model)

    return trained


options = {"cases": (same, fewer, turns, nobody, idle, apart), "rtol": 1e-9}
options |= {"budget": average_used_budget}
options |= {"spec": average_used_spec, "inputs": average_used_inputs}

# %%
check(training(average_used), **options)

# %% [markdown]
# ## 3 · Must gradients be copied?
#
# *Difficulty ●○○ · importance ●●○ · 8 minutes.* With `gradient_as_bucket_view=True` and `zero_grad(set_to_none=False)`, autograd writes each gradient where the message is read, as
# the chapter has measured.

# %% [markdown]
# **Goal:** called once, before training, give every parameter a `.grad` that is a **view** of one flat tensor of zeros, and return that tensor. The training then calls
# `flat.zero_()`, `backward()`, one `all_reduce(flat)` and `step()`: nothing is packed or copied back.


# %%
def one_memory_spec(parameters, model, batches):
    after = average_used_spec(model, batches)[0]
    begins = {"gradients in it": 7, "its shape": (len(after),), "not zero at first": 0}
    return [begins | {"weights": after}] * len(model)


# %%
def one_memory(parameters):
    ### BEGIN SOLUTION
    sizes = [parameter.numel() for parameter in parameters]
    flat = parameters[0].new_zeros(sum(sizes))
    for parameter, part in zip(parameters, flat.split(sizes)):
        parameter.grad = part.view_as(parameter)  # autograd adds to it in place
    return flat
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of <code>cat</code>, <code>split</code>, <code>view_as</code>, <code>clone</code> make new memory?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make the flat tensor first, as large as all parameters together. Split it, and give each parameter its part in its own shape.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>parameter.grad = part.view_as(parameter)</code> for each part of <code>flat.split([p.numel() for p in parameters])</code>.
# </details>


# %% jupyter={"source_hidden": true}
def in_one_memory(answer):
    """Train with one all_reduce of the answer's tensor; count the gradients that lie in it."""

    @functools.wraps(answer)
    def trained(parameters, model, batches):
        flat, optimizer = answer(learning(model)), adam(model)
        if not isinstance(flat, torch.Tensor):
            return flat
        begun = int(flat.count_nonzero())
        for inputs, targets, path in batches:
            flat.zero_()
            mse_loss(model(inputs, path), targets).backward()
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            optimizer.step()
        flat_address = flat.untyped_storage().data_ptr()
        inside = [p.grad.untyped_storage().data_ptr() == flat_address for p in learning(model)]
        result = {"gradients in it": sum(inside), "its shape": tuple(flat.shape)}
        return result | {"not zero at first": begun, "weights": weights(model)}

    return trained


def one_memory_inputs(rank, world_size, case):
    return "those of the model that learn", same_model(case), shards(rank, case)


def one_memory_budget(world_size, case):
    rounds = 2 * (world_size - 1) * STEPS
    nbytes = 8 * len(weights(same_model(case)))
    return {"sent_messages": rounds, "sent_bytes": rounds * nbytes / world_size}


options = {"cases": (same, wider), "rtol": 1e-9, "budget": one_memory_budget}
options |= {"spec": one_memory_spec, "inputs": one_memory_inputs}

# %%
check(in_one_memory(one_memory), **options)

# %% [markdown]
# ## 4 · Half the bytes, and nothing lost?
#
# *Difficulty ●●● · importance ●●○ · 18 minutes.* A communication hook replaces DDP's `all_reduce` of a bucket. Yours rounds coarsely, but with **error feedback**: what rounding
# leaves over is added in the next step.

# %% [markdown]
# **Goal:** send each gradient as whole sixteenths, in int32, which is half the bytes of our double precision. Keep what is left over in `left_over`, a dict of your own, and add it
# to the same parameter's gradient in the next step. Return a future of the mean, flat and in the bucket's dtype.

# %% [markdown]
# The trap: after its first step DDP fills the bucket anew, in the order of arrival. `bucket.parameters()` says whose gradients `bucket.gradients()` are.


# %%
def compress_spec(models, batches, limits_mb):
    model, optimizer, n = models[0], adam(models[0]), len(models)
    left_over = [[torch.zeros_like(p) for p in learning(model)] for _ in models]
    for step in zip(*batches):
        sums = [torch.zeros_like(p) for p in learning(model)]
        for left, (inputs, targets, path) in zip(left_over, step):
            loss = mse_loss(model(inputs, path), targets)
            for k, gradient in enumerate(torch.autograd.grad(loss, learning(model))):
                corrected = gradient + left[k]
                sent = (16 * corrected).round() / 16
                left[k] = corrected - sent
                sums[k] += sent
        for parameter, total in zip(learning(model), sums):
            parameter.grad = total / n
        optimizer.step()
    expected = {"sent in a step": "284 bytes of int32", "mean": "float64", "something kept": True}
    return [expected | {"weights": weights(model)}] * n


# %%
def compress(left_over, bucket):
    ### BEGIN SOLUTION
    pieces = []
    for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
        corrected = gradient + left_over.get(parameter, 0)
        pieces.append((16 * corrected).round().int().flatten())
        left_over[parameter] = corrected - pieces[-1].view_as(corrected) / 16  # for the next step
    sixteenths = torch.cat(pieces)

    def mean(done):
        return done.value()[0].to(bucket.buffer().dtype) / 16 / dist.get_world_size()

    return dist.all_reduce(sixteenths, async_op=True).get_future().then(mean)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What must you remember between two steps, and under which key, if the bucket's order may change?
# </details>
# <details><summary>Hint 2: the approach</summary>
# For each parameter of the bucket: gradient and what was left over; sixteenths of that, rounded to int32; what is left over now. All sixteenths in one flat tensor, one <code>all_reduce</code>, and
# <code>then</code> the sum back in double precision, divided by 16 and by the number of ranks.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>corrected = gradient + left_over.get(parameter, 0)</code>; at last
# <code>return dist.all_reduce(sixteenths, async_op=True).get_future().then(mean)</code>, where <code>mean(done)</code> takes <code>done.value()[0]</code>.
# </details>


# %% jupyter={"source_hidden": true}
def hooked(answer):
    """Train PyTorch's DDP with the answer as its hook; look at what is sent and at its futures."""

    @functools.wraps(answer)
    def trained(model, batches, limit_mb):
        wrapped = DistributedDataParallel(model, forward_sync_buffers=False, bucket_cap_mb=limit_mb)
        sent, kept, means = Counter(), {}, set()

        def mean_of(done):
            mean = done.value()[0] if isinstance(done.value(), list) else done.value()
            means.add(str(mean.dtype).removeprefix("torch."))
            return mean

        def note(call):
            for tensor in call.input_tensors if "BROADCAST" not in call.name.name else ():  # DDP's
                sent[str(tensor.dtype).removeprefix("torch.")] += tensor.nbytes

        wrapped.register_comm_hook(kept, lambda kept, bucket: answer(kept, bucket).then(mean_of))
        optimizer = adam(model)
        dist.group.WORLD.register_pre_hook(5, note)
        for inputs, targets, path in batches:
            optimizer.zero_grad()
            mse_loss(wrapped(inputs, path), targets).backward()
            optimizer.step()
        dist.group.WORLD.unregister_pre_hook(5)
        sizes = ", ".join(f"{count / STEPS:.0f} bytes of {dtype}" for dtype, count in sent.items())
        result = {"sent in a step": sizes, "mean": ", ".join(means), "something kept": bool(kept)}
        return result | {"weights": weights(model)}

    return trained


one_bucket, upside_down = "one bucket", "one bucket, the second expert first"
many = "many small buckets"
plans = {one_bucket: (same, 25), upside_down: (upside, 25), many: (same, 1e-4)}  # limits in MiB
steep = "one bucket, gradients a thousand times as steep"
plans |= {steep: (same, 25)}


def compress_inputs(rank, world_size, case):
    route, limit_mb = plans[case]
    factor = 1000 if case == steep else 1
    batches = [(inputs, factor * targets, path) for inputs, targets, path in shards(rank, route)]
    return same_model(route), batches, limit_mb


options = {"cases": list(plans), "rtol": 1e-6, "atol": 1e-6, "world_sizes": (2, 3)}
options |= {"spec": compress_spec, "inputs": compress_inputs}

# %%
check(hooked(compress), **options)

# %% [markdown]
# ## Bonus · How few bits will do?
#
# Without a check: write a hook of your own, such as only signs or the largest hundredth of a gradient, and train chapter 04's network on the digits with it. Plot the loss against
# *bytes sent* (`trace=True` counts them), next to plain DDP and `bf16_compress_hook`. Where does error feedback begin to matter?

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [06 · What communication costs](../notebooks/06_what_communication_costs.ipynb), which opens the `all_reduce` itself.

# %%
progress("agreed_buckets", "average_used", "one_memory", "compress")
