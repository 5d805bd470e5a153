# %% [markdown]
# # Lab 12 · Send less
#
# Three exercises on [chapter 12](../notebooks/12_send_less.ipynb) and a bonus, 55 minutes without the bonus, on any computer. `check` runs your function in
# real workers and compares what they return with a **specification**. It counts bytes in their recording, so an answer that sends too much does not pass.

# %%
import copy
import functools
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_utils import Network, check, progress
from course_utils.network.trace import Trace
from course_utils.record.event import Event

# %% [markdown]
# ## 1 · Nothing is lost, only late
#
# *Difficulty ●●○ · importance ●●○ · 18 minutes.* The chapter's top-k forgets what it does not send. Write the hook with error feedback. `state.share` is the share of a bucket to send, and `state.left_over` a dict of your own, empty at first.

# %% [markdown]
# **Goal:** add to each gradient what was left over from it before, send the *k* largest of the whole bucket by absolute value, keep the rest, and return a future of the mean. The chapter's two gathers are given: `mean_of_sent(flat, places)`.

# %% [markdown]
# The trap: in the first step DDP's buckets hold the parameters in a different order from all later ones. `bucket.parameters()` says whose gradients `bucket.gradients()` are.


# %%
def mean_of_sent(flat, places):
    """The mean over ranks of `flat`, of which each sends the places that it has chosen."""
    n = dist.get_world_size()
    all_places = places.new_empty(n * len(places), dtype=torch.int32)
    all_values = flat.new_empty(n * len(places))
    dist.all_gather_into_tensor(all_places, places.int())
    dist.all_gather_into_tensor(all_values, flat[places])
    return torch.zeros_like(flat).index_add_(0, all_places.long(), all_values / n)


def ready(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


# %%
def remember_spec(all_steps, shares, orders):
    n, means = len(all_steps), []
    left_over = [torch.zeros_like(flat(steps[0])) for steps in all_steps]
    for step in zip(*all_steps):
        total = 0
        for rank, gradients in enumerate(step):
            corrected = flat(gradients) + left_over[rank]
            k = max(1, int(shares[0] * len(corrected)))
            smallest = corrected.abs().sort().values[-k]  # of those that are sent
            sent = torch.where(corrected.abs() >= smallest, corrected, 0.0)
            left_over[rank], total = corrected - sent, total + sent
        means.append(total / n)
    return [torch.stack(means)] * n


# %%
def remember(state, bucket):
    ### BEGIN SOLUTION # gradients and what is left of them, then places, then what is left now
    pieces = [
        gradient + state.left_over.get(parameter, 0)
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients())
    ]
    corrected = torch.cat([piece.flatten() for piece in pieces])
    places = corrected.abs().topk(max(1, int(state.share * len(corrected)))).indices
    unsent = corrected.clone()
    unsent[places] = 0
    sizes = [piece.numel() for piece in pieces]
    for parameter, piece in zip(bucket.parameters(), unsent.split(sizes)):
        state.left_over[parameter] = piece.view_as(parameter)  # a bucket's order may change
    return ready(mean_of_sent(corrected, places))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Under which key do you find a left-over again, if the bucket's order changes after the first step? And what of it is left when its place was sent?
# </details>
# <details><summary>Hint 2: the approach</summary>
# For each parameter of the bucket its gradient and its left-over; all in one flat tensor; the places of the <i>k</i> largest; a copy with zeros there, split and kept by parameter. The whole tensor and the places go into <code>mean_of_sent</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>gradient + state.left_over.get(parameter, 0)</code> for each pair of <code>zip(bucket.parameters(), bucket.gradients())</code>, and at the end
# <code>return ready(mean_of_sent(corrected, places))</code>.
# </details>


# %% jupyter={"source_hidden": true}
def flat(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients])


class Given(nn.Module):
    """A network whose gradients are what it is given, and arrive in an order that is given."""

    def __init__(self, gradients, order):
        super().__init__()
        self.weights = nn.ParameterList(torch.ones_like(gradient) for gradient in gradients)
        self.order = order

    def forward(self, gradients):
        return sum((self.weights[k] * gradients[k]).sum() for k in self.order)


def under_ddp(hook):
    """Let DDP call the hook; return the mean gradients of each step."""

    @functools.wraps(hook)
    def run(steps, share, order):
        network, means = Given(steps[0], order), []
        model = DistributedDataParallel(network)
        state = SimpleNamespace(share=share, left_over={})
        model.register_comm_hook(state, lambda state, bucket: hook(state, bucket))
        for gradients in steps:
            model.zero_grad()
            model(gradients).backward()
            means.append(flat([weight.grad for weight in network.weights]))
        return torch.stack(means)

    return run


remember_cases = {  # share, and the order in which forward uses the weights
    "a quarter": (0.25, (0, 1, 2)),
    "one number of 36": (0.01, (2, 1, 0)),
    "a tenth, some gradients cancel each other": (0.1, (1, 2, 0)),
    "a tenth, gradients arrive in another order": (0.1, (2, 0, 1)),
}
SIZES, STEPS = ((4, 5), (7,), (3, 3)), 5


def remember_inputs(rank, world_size, case):
    steps = [[torch.randn(s, dtype=torch.float64) for s in SIZES] for _ in range(STEPS)]
    if "cancel" in case:
        for step in steps:
            step[0][2] += 9 if rank % 2 else -9
    return steps, *remember_cases[case]


def remember_budget(world_size, case):
    sent = max(1, int(36 * remember_cases[case][0])) * (4 + 8)
    start = 8 * (world_size - 1) + 36 * 8 + 110  # DDP's own: checks, weights, buckets made anew
    return {"sent_bytes": (world_size - 1) * STEPS * sent + start}


options = {"cases": list(remember_cases), "world_sizes": (2, 3), "rtol": 1e-9, "timeout": 30}
options |= {"spec": remember_spec, "inputs": remember_inputs, "budget": remember_budget}

# %%
check(under_ddp(remember), **options)

# %% [markdown]
# ## 2 · DiLoCo, and some ranks are slow
#
# *Difficulty ●●● · importance ●●○ · 20 minutes.* Ranks train alone until they meet, and slow ones read less. So a rank counts in proportion to the number of batches that it has `read`, which may be none. `anchor` is the network as all ranks had it after the last exchange, and `outer` is an optimiser of the anchor's parameters.

# %% [markdown]
# **Goal:** the anchor's gradient is the ranks' average displacement, anchor minus network, in which each rank counts by its share of what was read. Let `outer` make one step. Then each network takes over the anchor's parameters, and each floating-point buffer takes its mean over the ranks, weighted by the same shares.

# %% [markdown]
# Inner optimisers go on too, so change tensors in place. Frozen parameters stay as they are. Send each tensor once. At the end everything is **equal to the last bit** on all ranks.


# %%
def outer_step_spec(networks, all_batches, plans):
    total = [sum(plan[k] for plan in plans) for k in range(ROUNDS)]
    anchor, outer, inner, weights = copy.deepcopy(networks[0]), None, [], []
    outer = outer_of(anchor)
    networks = [copy.deepcopy(networks[0]) for _ in networks]
    inner = [inner_of(network) for network in networks]
    for k in range(ROUNDS):
        for network, optimizer, batches, plan in zip(networks, inner, all_batches, plans):
            read_alone(network, optimizer, batches[k][: plan[k]])
        parts = [plan[k] / total[k] for plan in plans]
        with torch.no_grad():
            for start, *rank_weights in zip(learning(anchor), *map(learning, networks)):
                start.grad = start - sum(part * each for part, each in zip(parts, rank_weights))
            outer.step()
            for rank_buffers in zip(*(network.buffers() for network in networks)):
                if rank_buffers[0].is_floating_point():
                    mean = sum(part * each for part, each in zip(parts, rank_buffers))
                    for each in rank_buffers:
                        each.copy_(mean)
            for network in networks:
                for parameter, start in zip(network.parameters(), anchor.parameters()):
                    parameter.copy_(start)
        weights.append(nn.utils.parameters_to_vector(anchor.parameters()).detach().clone())
    norm = networks[0].norm
    expected = {"weights": torch.stack(weights), "equal on all ranks": True}
    expected |= {"mean": norm.running_mean, "variance": norm.running_var}
    return [expected | {"batches": int(n.norm.num_batches_tracked)} for n in networks]


# %%
def outer_step(network, anchor, outer, read):
    ### BEGIN SOLUTION # shares first; then ways, step, buffers; then on from the anchor
    total = torch.tensor(read, dtype=torch.float64)
    dist.all_reduce(total)
    share = read / total.item()
    for parameter, start in zip(network.parameters(), anchor.parameters()):
        if parameter.requires_grad:
            start.grad = share * (start - parameter).detach()  # SGD goes against it
            dist.all_reduce(start.grad)
    outer.step()
    for buffer in network.buffers():
        if buffer.is_floating_point():
            buffer *= share
            dist.all_reduce(buffer)
    with torch.no_grad():
        for parameter, start in zip(network.parameters(), anchor.parameters()):
            parameter.copy_(start)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A rank's share needs one number that nobody has alone. Which? And which way does SGD go, along a gradient or against it?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Sum <code>read</code> over ranks. Each rank multiplies its displacement (anchor minus network) by its share, and a sum over ranks gives the gradient. After <code>outer.step()</code>, which is the same on all ranks, copy the anchor into the network. Buffers: times share, then a sum.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>start.grad = share * (start - parameter).detach()</code> and <code>dist.all_reduce(start.grad)</code>, for parameters with <code>requires_grad</code>; at the end, under
# <code>torch.no_grad()</code>, <code>parameter.copy_(start)</code>.
# </details>


# %% jupyter={"source_hidden": true}
ROUNDS, MOST = 3, 4  # exchanges; batches that a rank reads at most from one to the next


class Small(nn.Module):
    """A frozen layer, a batch norm with its buffers, and two layers that learn."""

    def __init__(self):
        super().__init__()
        double = {"dtype": torch.float64}
        self.frozen = nn.Linear(3, 4, **double).requires_grad_(False)
        self.norm, self.first = nn.BatchNorm1d(4, **double), nn.Linear(4, 5, **double)
        self.last = nn.Linear(5, 2, **double)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(self.norm(self.frozen(inputs)))))


def learning(network):
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def inner_of(network):
    return torch.optim.AdamW(learning(network), lr=0.05)


def outer_of(anchor):
    return torch.optim.SGD(learning(anchor), lr=0.7, momentum=0.9, nesterov=True)


def read_alone(network, optimizer, batches):
    for drawn in batches:
        optimizer.zero_grad()
        mse_loss(network(drawn[:, :3]), drawn[:, 3:]).backward()
        optimizer.step()


def state_of(network, anchor, outer):
    held = [state["momentum_buffer"] for state in outer.state.values()]
    floats = [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]
    return flat([*floats, *anchor.parameters(), *held]).detach()


def exchanging(answer):
    """Train, exchange by the answer, and say where the ranks are then."""

    @functools.wraps(answer)
    def run(network, batches, plan):
        anchor = copy.deepcopy(network)
        inner, outer, weights = inner_of(network), outer_of(anchor), []
        for k in range(ROUNDS):
            read_alone(network, inner, batches[k][: plan[k]])
            answer(network, anchor, outer, plan[k])
            weights.append(nn.utils.parameters_to_vector(network.parameters()).detach().clone())
        state = state_of(network, anchor, outer)
        dist.broadcast(first := state.clone(), src=0)
        norm = network.norm
        result = {"weights": torch.stack(weights), "equal on all ranks": torch.equal(state, first)}
        result |= {"mean": norm.running_mean, "variance": norm.running_var}
        return result | {"batches": int(norm.num_batches_tracked)}

    return run


plans = {  # batches that a rank reads before each exchange
    "all equally fast": lambda rank: [MOST] * ROUNDS,
    "rank 0 is slow": lambda rank: [MOST if rank else 1] * ROUNDS,
    "the higher the rank the slower, and in turn": lambda rank: [4, 1 + rank % 3, 4 - rank % 4],
    "rank 1 reads nothing at first": lambda rank: [0 if rank == 1 else 3, 2, 1 + rank % 2],
}


def outer_step_inputs(rank, world_size, case):
    batches = torch.randn(ROUNDS, MOST, 6, 5, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)  # all begin alike
        return Small(), list(batches), plans[case](rank)


def outer_step_budget(world_size, case):
    """An exchange sends what learns, two buffers and one number; at the end a broadcast."""
    numbers = sum(parameter.numel() for parameter in learning(Small())) + 2 * 4 + 1
    turns = 2 * (world_size - 1) / world_size
    state = 2 * numbers + sum(parameter.numel() for parameter in learning(Small())) + 2 * 16
    return {"sent_bytes": 8 * (ROUNDS * turns * numbers + (world_size > 1) * state)}


options = {"cases": list(plans), "rtol": 1e-8, "timeout": 30, "world_sizes": (1, 2, 3)}
options |= {"spec": outer_step_spec, "inputs": outer_step_inputs, "budget": outer_step_budget}

# %%
check(exchanging(outer_step), **options)

# %% [markdown]
# ## 3 · Which one, on this cluster?
#
# *Difficulty ●●○ · importance ●●● · 17 minutes.* A `Cluster` says what you know before you rent it: ranks, network, the model's `shapes`, what a step computes, what compressing costs on top, and how many steps each method needs to the loss that you want (`None`: it never gets there).

# %% [markdown]
# **Goal:** return the name of the method whose whole training takes the least time. If several are equal, take the one that comes first. Nothing overlaps. Price all sums and gathers as rings, as chapter 06 does:
#
# | method | what a rank sends, float32 unless it says otherwise |
# | --- | --- |
# | DDP, bfloat16 | one all-reduce of all gradients; half the bytes |
# | top 1 % | two all-gathers: *k* values and *k* int32 places; *k* is 1 % of all numbers, rounded down, at least 1 |
# | PowerSGD | three all-reduces: first all parameters that it doesn't pay to compress, then all *P* together, then all *Q*. A matrix of *a* rows and *b* columns has a *P* of 4 *a* and a *Q* of 4 *b* numbers. It pays if these together are less than half of *ab*; a vector never does |
# | every 16 steps | one all-reduce of all weights, after every 16th step; steps are multiples of 16 |


# %%
class Cluster(NamedTuple):
    ranks: int
    latency_us: float
    gbit_s: float
    shapes: list  # of all parameters, such as (256, 64) or (256,)
    compute_ms: float  # of a step
    compress_ms: dict  # of a step, by method, where it takes time
    steps: dict  # by method, in the order of the table


# %%
def choose(cluster):
    ### BEGIN SOLUTION # two prices, what each method sends in a step, then whole trainings
    n, numbers = cluster.ranks, sum(map(product, cluster.shapes))
    us_per_byte = 8 / 1000 / cluster.gbit_s

    def all_reduce_us(size):
        return 2 * (n - 1) * (cluster.latency_us + size / n * us_per_byte)

    def all_gather_us(size):
        return (n - 1) * (cluster.latency_us + size * us_per_byte)

    thin = [s for s in cluster.shapes if len(s) == 2 and 2 * 4 * sum(s) < product(s)]
    uncompressed = numbers - sum(map(product, thin))
    thin_us = [all_reduce_us(4 * 4 * sum(s[side] for s in thin)) for side in (0, 1)]
    sent_us = {
        "DDP": all_reduce_us(4 * numbers),
        "bfloat16": all_reduce_us(2 * numbers),
        "top 1 %": 2 * all_gather_us(4 * max(1, numbers // 100)),
        "PowerSGD": all_reduce_us(4 * uncompressed) + sum(thin_us),
        "every 16 steps": all_reduce_us(4 * numbers) / 16,
    }
    took_ms = {
        name: steps * (cluster.compute_ms + cluster.compress_ms.get(name, 0) + sent_us[name] / 1000)
        for name, steps in cluster.steps.items()
        if steps is not None
    }
    return min(took_ms, key=took_ms.get)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of these prices contain the number of ranks, and how? What is the same for all methods?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A ring all-reduce takes 2(n − 1) turns of size / n bytes, an all-gather n − 1 turns of what one rank brings, each with its latency. Write the two as functions, then one line for each method. Steps times (computing + compressing + sending); leave out the methods that never get there.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>2 * (n - 1) * (latency_us + size / n * 8 / 1000 / gbit_s)</code> and <code>(n - 1) * (latency_us + size * 8 / 1000 / gbit_s)</code>; top-k is two gathers of
# <code>4 * max(1, numbers // 100)</code> bytes each.
# </details>
#
# The specification doesn't use these formulas: it makes a recording of each method's calls and replays it. You can call `replayed_ms(cluster, name)` to see what it finds, but your answer can't.


# %% jupyter={"source_hidden": true}
def product(shape):
    return shape[0] * (shape[1] if len(shape) == 2 else 1)


def calls(name, shapes):
    """What a rank calls in one exchange, with how many bytes."""
    numbers = sum(map(product, shapes))
    if name == "top 1 %":
        return [("all_gather", 4 * max(1, numbers // 100))] * 2
    if name == "PowerSGD":
        pays = [s for s in shapes if len(s) == 2 and 4 * (s[0] + s[1]) < s[0] * s[1] / 2]
        uncompressed = numbers - sum(map(product, pays))
        parts = uncompressed, 4 * sum(s[0] for s in pays), 4 * sum(s[1] for s in pays)
        return [("all_reduce", 4 * part) for part in parts]
    return [("all_reduce", numbers * (2 if name == "bfloat16" else 4))]


def replayed_ms(cluster, name):
    """A step of the method: what it computes, and its calls on a replay."""
    ranks, events = tuple(range(cluster.ranks)), []
    for rank in ranks:
        for index, (kind, size) in enumerate(calls(name, cluster.shapes)):
            about = {"op": "sum" if kind == "all_reduce" else None, "group": ranks}
            about |= {"start_s": 0.0, "end_s": 0.0, "blocking": True}
            events.append(Event(rank=rank, index=index, kind=kind, bytes=size, **about))
    trace = Trace(tuple(events), (0.0,) * cluster.ranks)
    network = Network(latency_us=cluster.latency_us, gbit_s=cluster.gbit_s)
    sent_ms = max(trace.replay(network).finish_us) / 1000 / (16 if name == "every 16 steps" else 1)
    return cluster.compute_ms + cluster.compress_ms.get(name, 0) + sent_ms


def choose_spec(all_clusters):
    def choice(cluster):
        took_ms = {
            name: steps * replayed_ms(cluster, name)
            for name, steps in cluster.steps.items()
            if steps is not None
        }
        least = min(took_ms.values())
        return next(name for name, ms in took_ms.items() if ms <= least * (1 + 1e-12))

    return [{where(cluster): choice(cluster) for cluster in clusters} for clusters in all_clusters]


models = {  # shapes of parameters
    "the small GPT": [(72, 64), (32, 64), (192, 64), (192,), (64, 64), (64,), (256, 64), (256,),
                      (64, 256), (64,), (64,), (64,)],
    "a wide layer": [(4096, 4096), (4096,)],
    "three numbers": [(3,)],
    "199 numbers": [(199,)],
    "a hundred and a half": [(10, 15)],
    "narrow layers": [(9, 9)] * 30 + [(16, 16), (18, 18)] * 9 + [(300, 7)]
                     + [(900, 12), (12, 700), (2000,)],
}  # fmt: skip
METHODS = "DDP", "bfloat16", "top 1 %", "PowerSGD", "every 16 steps"


def where(cluster):
    """What a message says of a cluster."""
    return f"{cluster.ranks} ranks, {cluster.latency_us:.3g} µs, {cluster.gbit_s:.3g} Gbit/s"


def for_all(answer):
    """Let the answer choose for one cluster after the other."""

    @functools.wraps(answer)
    def chosen(clusters):
        return {where(cluster): answer(cluster) for cluster in clusters}

    return chosen


def between(low, high):
    """Drawn such that each power of ten is as likely as any other."""
    return low * (high / low) ** torch.rand(()).item()


def one_cluster(case, k):
    shapes, n = models[case], 1 if k == 0 else int(torch.randint(2, 9, ()))
    latency_us = between(1, 100) if k % 3 else 0.0
    network = {"latency_us": latency_us, "gbit_s": between(0.5, 400)}
    cluster = Cluster(n, **network, shapes=shapes, compute_ms=0, compress_ms={}, steps={})
    sent_ms = max(replayed_ms(cluster, "DDP"), 1e-6)
    close = k % 2  # all methods take nearly the same: every byte and every latency counts
    compute_ms = sent_ms * between(*((0.01, 0.1) if close else (0.1, 3)))
    compress_ms = {name: sent_ms * between(0.01, 0.3) for name in METHODS[1:4]}
    if k % 8 == 0:  # nothing is sent or compressed: all that take equally many steps are equals
        steps = dict.fromkeys(METHODS, 1600) | dict.fromkeys(METHODS[: k // 8], 1616)
        return cluster._replace(ranks=1, compute_ms=compute_ms, steps=steps)
    cluster = cluster._replace(compute_ms=compute_ms, compress_ms=compress_ms)
    steps = {name: 16 * round(between(60, 100 + 40 * j)) for j, name in enumerate(METHODS)}
    if close:
        each_ms = {name: replayed_ms(cluster, name) for name in METHODS}
        all_ms = 160_000 * max(each_ms.values())
        more = {name: 1 + between(0.0005, 0.03) for name in METHODS}
        steps = {name: 16 * round(all_ms / ms / 16 * more[name]) for name, ms in each_ms.items()}
    if k % 4 < 2:
        steps[METHODS[k // 4 % 5]] = None
    return cluster._replace(steps=steps)


def choose_inputs(rank, world_size, case):
    return [one_cluster(case, k) for k in range(24)]


options = {"cases": list(models), "world_sizes": (1,), "timeout": 60}
options |= {"hide": (replayed_ms, calls)}  # which an answer is to write itself
options |= {"spec": choose_spec, "inputs": choose_inputs}

# %%
check(for_all(choose), **options)

# %% [markdown]
# ## Bonus · A point of your own on the curve
#
# *As long as you like; there is no check.* Add a method to the chapter's table and figure, such as the signs of a gradient with error feedback, DiLoCo in bfloat16, or momentum before top-k. Tune its learning rate, and DDP's too. Does any method
# land to the left of local SGD, and below it?

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [13 · Hold less](../notebooks/13_hold_less.ipynb), where ranks share what a model needs in memory.

# %%
progress("remember", "outer_step", "choose")
