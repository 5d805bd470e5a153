# %% [markdown]
# # 05 · DDP from scratch
#
# **What is inside `DistributedDataParallel`, and which of its parts earn their place?**
#
# In 120 minutes, best in two sittings (parts 1 to 4, then 5 to 8), you will be able to
#
# 1. write your own DDP in seven small steps, each judged by real workers;
# 2. say what each step gains on a network, from a recording of real ranks;
# 3. start messages from autograd's hooks, while backward still computes;
# 4. recognise and cure what breaks such code: another order, a layer that nobody used.
#
# **Hardware:** two cores. Where there is a GPU for each rank, ranks train on the GPUs, and rounding may come out differently there. **Before:** [04 · DDP training](04_ddp_training.ipynb).
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb).
# **Lab:** [05 · DDP from scratch](../exercises/05_ddp_from_scratch.ipynb).
#
# Seven cells ask you to **write** a step. A check judges it in real workers, and a finished form follows, folded up, on which the next step builds (put your own class there if you like). Six cells ask you to
# **predict**: put your answer in place of the three dots. If you see saved outputs, they give answers away: *Edit*, *Clear Outputs of All Cells*.

# %% jupyter={"source_hidden": true}
import copy
import functools
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import takewhile
from unittest import mock

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_material.language import SmallGPT, novel
from course_utils import Network, WorkerError, WorkerTimeout, check, digits, launch, predict, show


def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


# %% [markdown]
# ## 1 · Start equal
#
# Our DDP wraps a network, as PyTorch's does. This is its frame. It does nothing yet, and each of the seven steps fills in or replaces a method.


# %%
class Wrapper(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.module = network
        self.learning = [p for p in network.parameters() if p.requires_grad]
        self.start()

    def forward(self, *inputs):
        return self.module(*inputs)

    def start(self):
        """Called once, before training."""

    def finish(self):
        """Called by the training loop after each backward."""


# %% [markdown]
# `learning` leaves **frozen** parameters out: they never get a gradient. Here is a network with everything that wrappers stumble over: a batch norm, whose running mean is a **buffer** (part of the
# model, but without gradient), a frozen layer, and a weight that two layers share, called **tied**.


# %%
def awkward():
    body = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), *body)
    network[1].requires_grad_(False)  # frozen
    network[5].weight = network[3].weight  # tied
    return network


# %% [markdown]
# **Predict.** Its `state_dict()` has 13 tensors. Each rank seeds itself differently and adds its rank to the running mean. How many of the 13 differ between two ranks, first without a
# wrapper, then in PyTorch's DDP? Answer with a list of two numbers. (`my_device()`, from the folded cell at the top, is the rank's GPU if `launch` gave it one, else the CPU.)

# %%
different = predict("tensors that differ, bare and in PyTorch's DDP", ...)


# %% tags=["row-D5"]
def started(wrap):
    torch.manual_seed(dist.get_rank())
    network = awkward().to(my_device())
    network[2].running_mean += dist.get_rank()
    return wrap(network).state_dict()


counts = []
for wrap in (nn.Sequential, DistributedDataParallel):
    one, other = launch(started, wrap)
    names = [name for name in one if not torch.equal(one[name], other[name])]
    print(f"{wrap.__name__:24}", *names)
    counts.append(len(names))
different.measured(counts)

# %% [markdown]
# Nine differ: all random weights, the frozen ones among them, and the running mean. The batch norm starts its own weights at one and zero, so those agreed anyway. In DDP
# nothing differs: its constructor has sent rank 0's tensors to everybody.
#
# ### Write it
#
# *About 4 minutes.* `start` makes `self.module` equal to rank 0's on all ranks, with all that `forward` computes with. Change its tensors in place, because an
# optimiser may hold them already, and send each tensor once.


# %%
class MyStart(Wrapper):
    def start(self):
        raise NotImplementedError("about 2 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# An optimiser asks for parameters that learn, a checkpoint for <code>state_dict()</code>. Some buffers are in neither
# (<code>persistent=False</code>). Which two methods of a module name all tensors?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Broadcast every parameter and every buffer from rank 0, in the same order on all ranks. <code>parameters()</code> names a tied weight once.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.broadcast(tensor.detach(), src=0)</code> for each of <code>[*self.module.parameters(), *self.module.buffers()]</code>.
# </details>
#
# The checks of this chapter use a still smaller network, with two experts that an input may use or not. It is folded up with all else that a check needs.


# %% jupyter={"source_hidden": true}
class TwoExperts(nn.Module):
    """Buffers, a frozen layer, two layers tied by one weight, and experts on paths of choice."""

    def __init__(self):
        super().__init__()
        double = {"dtype": torch.float64}
        self.register_buffer("scale", 0.5 + torch.rand(4, **double))
        self.register_buffer("shift", torch.randn(4, **double), persistent=False)
        self.frozen = nn.Linear(4, 5, **double).requires_grad_(False)
        self.tied = nn.ModuleList([nn.Linear(5, 5, **double) for _ in range(2)])
        self.tied[1].weight = self.tied[0].weight
        self.experts = nn.ModuleList([nn.Linear(5, 3, **double) for _ in range(2)])

    def forward(self, inputs, path):
        hidden = self.frozen(self.scale * inputs - self.shift)
        for layer in self.tied:
            hidden = torch.tanh(layer(hidden))
        return sum((1 + number) * self.experts[number](hidden) for number in path)


def tensors(network):
    return dict(network.named_parameters()) | dict(network.named_buffers())


def start_spec(networks):
    learns = sorted(name for name, own in networks[0].named_parameters() if own.requires_grad)
    started = {"learns": learns, "trains": True, **tensors(networks[0])}
    return [started] * len(networks)


def starting(kind):
    """Wrap; return the parameters that an optimiser would hold, and the buffers."""

    @functools.wraps(kind, updated=())
    def started(network):
        parameters = dict(network.named_parameters())
        kind(network)
        learns = sorted(name for name, own in parameters.items() if own.requires_grad)
        held = {"learns": learns, "trains": network.training, **parameters}
        return held | dict(network.named_buffers())

    return started


def start_inputs(rank, world_size, case):
    return TwoExperts()


def start_budget(world_size, case):
    """One broadcast of each tensor, around a ring, in as many pieces as there are ranks."""
    sizes = [tensor.nbytes for tensor in tensors(TwoExperts()).values()]
    return {"sent_messages": world_size * len(sizes), "sent_bytes": sum(sizes)}


start_judged = {"spec": start_spec, "inputs": start_inputs, "budget": start_budget}
start_judged |= {"cases": ("each rank seeded differently",)}

# %%
check(starting(MyStart), **start_judged)


# %% jupyter={"source_hidden": true}
class Equal(Wrapper):
    """The finished step."""

    def start(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)


check(starting(Equal), **start_judged)

# %% [markdown]
# **Check yourself.** `state_dict()` of `awkward` names 13 tensors, and `Equal` broadcasts 12. Which one is missing, and why is that right?
#
# <details><summary>Answer</summary>
# The tied weight has two names there, but <code>parameters()</code> yields each tensor once, however many names it has.
# </details>
#
# ## 2 · Average
#
# All ranks now start with the same weights. If they also apply the same gradients, they stay equal. This is the training loop for the whole chapter: chapter 04's, with a call of
# `finish` for our own wrappers. `plain` is a deep network of 18 parameters, 9 MB in all.


# %%
def plain():
    layers = [nn.Flatten(), nn.Linear(784, 512), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


training = digits(train=True)


def batch(step, size=16):
    """This rank's own digits of a step."""
    first = (step * dist.get_world_size() + dist.get_rank()) * size
    mine = torch.arange(first, first + size) % len(training)
    return training.data[mine].to(my_device()), training.targets[mine].to(my_device())


# %%
def train(wrap, network, steps=10):
    torch.manual_seed(dist.get_rank())
    model = wrap(network().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        if isinstance(model, Wrapper):
            model.finish()
        optimizer.step()
    return torch.cat([each.flatten() for each in model.module.state_dict().values()])


# %% [markdown]
# ### Write it
#
# *About 4 minutes.* `finish` replaces the gradient of each parameter in `self.learning` by the mean over all ranks. One `all_reduce` for each parameter.


# %%
class MyAverage(Equal):
    def finish(self):
        raise NotImplementedError("about 3 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>all_reduce</code> gives a sum. What turns a sum over ranks into a mean, however many ranks there are?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Divide each gradient by the number of ranks, then sum it in place. (PyTorch divides first as well: a sum of many large gradients might overflow.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>parameter.grad /= dist.get_world_size()</code>, then <code>dist.all_reduce(parameter.grad)</code>.
# </details>


# %% jupyter={"source_hidden": true}
STEPS, PARTS = 3, 3  # of a training; of a step, where gradients accumulate
same, other, fewer = "all ranks alike", "odd ranks in another order", "odd ranks rest an expert"
turns, swapped = "experts take turns", "all ranks in another order"
zeros, late = "zeros before backward", "the other ranks begin when rank 0's backward is over"
ways = {same: [(0, 1), (0, 1)], other: [(0, 1), (1, 0)], fewer: [(0, 1), (1,), (0, 1), (0,)]}
ways |= {turns: [(0,), (1,), (1,), (0,)], swapped: [(1, 0), (1, 0)]}


def learning(network):
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def adam(network):
    return torch.optim.Adam(learning(network), lr=0.05, weight_decay=0.1)


def weights(network):
    return nn.utils.parameters_to_vector(learning(network)).detach()


def drawn(path):
    numbers = torch.randn(6, 7, dtype=torch.float64)
    return numbers[:, :4], numbers[:, 4:], path


def shards(rank, way):
    """A rank's inputs, targets and path for each step."""
    choices = ways[way]
    return [drawn(choices[(rank % 2 + 2 * step) % len(choices)]) for step in range(STEPS)]


def same_network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TwoExperts()


def gradients(network):
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in learning(network)]
    return torch.cat([part.flatten() for part in parts])


def train_alone(network, batches):
    optimizer, found = adam(network), []
    for step in zip(*batches):  # the batches of all ranks
        losses = [mse_loss(network(inputs, path), targets) for inputs, targets, path in step]
        optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        found.append(gradients(network))
        optimizer.step()
    return {"first gradients": found[0], "weights": weights(network)}


@contextmanager
def noting(note, names=("ALLREDUCE", "BROADCAST")):
    """Call `note` with bytes and name of every such collective, when it begins."""

    def before(call):
        if call.name.name in names:
            note(sum(tensor.nbytes for tensor in call.input_tensors), call.name.name)

    dist.group.WORLD.register_pre_hook(5, before)
    try:
        yield
    finally:
        dist.group.WORLD.unregister_pre_hook(5)


@contextmanager
def noting_waits(note):
    """Call `note` whenever somebody waits for what was begun; "W" is for the same once more."""
    wait, known = dist.Work.wait, {}

    def noted(work):
        note("W" if id(work) in known else "w")
        known[id(work)] = work  # so that no other work gets its id
        return functools.partial(wait, work)

    with mock.patch.object(dist.Work, "wait", property(noted)):
        yield


def comes_late(network):
    """Let this rank begin each step when rank 0's backward is over; returns what rank 0 does."""
    others, token = range(1, dist.get_world_size()), torch.zeros(1)

    def wait_for_rank_0(network, inputs):
        dist.recv(token, src=0)

    if dist.get_rank() > 0:
        network.register_forward_pre_hook(wait_for_rank_0)
        return lambda: None
    return lambda: [dist.send(token, dst=rank) for rank in others]


def trained(kind):
    """Train; return first gradients, weights and, where there are buckets, what happened when."""

    @functools.wraps(kind, updated=())
    def run(network, limit_bytes, batches, case):
        notes, steps, found = [], [], []
        for parameter in learning(network):
            parameter.register_post_accumulate_grad_hook(lambda _: notes.append("g"))
        model = kind(network, limit_bytes) if limit_bytes else kind(network)
        let_others = comes_late(network) if case == late else list
        optimizer = adam(network)
        calls = noting(lambda *_: notes.append("A"), names=("ALLREDUCE",))
        with calls, noting_waits(notes.append):
            for inputs, targets, path in batches:
                notes.clear()
                optimizer.zero_grad(set_to_none=zeros not in case)
                mse_loss(model(inputs, path), targets).backward()
                let_others()
                model.finish()
                found.append(gradients(network))
                optimizer.step()
                steps.append("".join(notes).strip("w"))
        results = {"first gradients": found[0], "weights": weights(network)}
        return results | ({"steps": steps} if limit_bytes else {})

    return run


def in_letters(network, limit_bytes, at_once, batch):
    """What the recording of a rank's step should look like."""
    inputs, targets, path = batch
    came, text, waiting = [], "", fill(learning(network), limit_bytes)
    hooks = [own.register_post_accumulate_grad_hook(came.append) for own in learning(network)]
    mse_loss(network(inputs, path), targets).backward()
    for number in range(len(came)):
        text += "g"
        while at_once and waiting and set(waiting[0]) <= set(came[: number + 1]):
            text, waiting = text + "A", waiting[1:]
    for hook in hooks:
        hook.remove()
    return text + "A" * len(waiting)


def judged(cases, at_once=False, **more):
    """Options of a check: cases give a bucket's limit, the ranks' way, and how many calls."""

    def spec(networks, limits, batches, names):
        steps = [
            [in_letters(network, limits[0], at_once, batch) for batch in own]
            for network, own in zip(networks, batches if limits[0] else [[]] * len(batches))
        ]
        after = train_alone(networks[0], batches)
        return [after | ({"steps": own} if own else {}) for own in steps]

    def inputs(rank, world_size, case):
        limit, way = cases[case][:2]
        return same_network(), limit, shards(rank, way), case

    def budget(world_size, case):
        """The start; a ring for each call of a step; the signs by which others begin late."""
        limit, _, *known = cases[case]
        calls = len(fill(learning(TwoExperts()), limit)) if limit else known[0]
        turns = 2 * (world_size - 1) * STEPS
        signs = STEPS * (world_size - 1) * (case == late)
        begun = start_budget(world_size, case)
        return {
            "sent_messages": begun["sent_messages"] + turns * calls + signs,
            "sent_bytes": begun["sent_bytes"] + turns * 568 / world_size + 4 * signs,
        }

    options = {"cases": list(cases), "rtol": 1e-9, "world_sizes": (2, 3), "timeout": 5}
    return options | {"spec": spec, "inputs": inputs, "budget": budget} | more


average_judged = judged({same: (None, same, 7)})

# %%
check(trained(MyAverage), **average_judged)


# %% jupyter={"source_hidden": true}
class PerParameter(Equal):
    """The finished step."""

    def finish(self):
        for parameter in self.learning:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)


check(trained(PerParameter), **average_judged)

# %% [markdown]
# **Predict.** We train `plain` with it and with PyTorch's DDP, each on two ranks. After 10 steps, what is the largest difference between a weight of ours and the same weight of PyTorch's?

# %%
from_pytorch = predict("largest difference of a weight to PyTorch's", ...)


# %% tags=["row-D6"]
def apart(results, others):
    """The largest difference of a weight or buffer, on any rank."""
    return max((mine - its).abs().max().item() for mine, its in zip(results, others))


theirs = launch(train, DistributedDataParallel, plain)
drifted = apart(launch(train, Equal, plain), theirs)
print(f"without averaging, as a control: about {drifted:.2f}")
ours = launch(train, PerParameter, plain)
from_pytorch.measured(apart(ours, theirs))
print("our two ranks differ by", apart([ours[0]], [ours[1]]))

# %% [markdown]
# **Bit for bit** the same: two lines do all that DDP does for the numbers. (Averaged *weights* would be another training with Adam, as chapter 04 has shown.) What follows changes only *when* and *in what portions* gradients travel.
#
# **Check yourself.** Why is a `broadcast` of the weights after every step not needed, "to be safe"?
#
# <details><summary>Answer</summary>
# Equal weights, minus equal gradients, are equal: after ten steps our two ranks differed by exactly 0.
# </details>
#
# ## 3 · One flat buffer
#
# `PerParameter` sends 18 messages per step. What does that cost? Loopback times would tell us about this laptop, so we **replay** a recording of eight ranks on ordinary Ethernet: 10 Gbit/s, with a
# latency of 30 µs. A rank needs 1 µs of backward for each kilobyte of gradient, 9 ms in all, and copies 5 GB/s. Then we look at the same step with copies that cost nothing.
#
# The folded `clock` records one real step. Hooks note how many gradients were there when each call began, so we do not assume what overlaps. The rates are ours.

# %% jupyter={"source_hidden": true}
network = Network(latency_us=30, gbit_s=10)
BACKWARD_US = 1 / 1000  # per byte of gradient
rates = {"copies at 5 GB/s": 0.2 / 1000, "free copies": 0.0}  # µs per byte
COLORS = {"backward": "#009E73", "copies": "#E69F00", "its port sends": "#0072B2"}
HATCHES = {"backward": None, "copies": "////", "its port sends": None}
replays, shares = {}, {}  # of the forms so far, by rate and name


def one_step(kind):
    """Train a step; return how many bytes of gradients were there when each call began."""
    module, there, at_call = plain().to(my_device()), [0], []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda own: there.append(own.nbytes))
    model = kind(module)
    with noting(lambda *_: at_call.append(sum(there))):
        images, labels = batch(0)
        cross_entropy(model(images), labels).backward()
        model.finish()
    dist.barrier()
    return at_call


def computing(run, trace, copy_us):
    """Before each event: µs of copies out of a buffer, of backward, of copies into the next."""
    found = {}
    for rank, at_call in enumerate(run):
        calls, before, last = iter(at_call), 0, None
        for event in trace.of_rank(rank):
            arrived = last and (last.kind == "wait" or last.blocking) and last.kind != "barrier"
            out_us, into_us, backward_us = copy_us * last.bytes if arrived else 0, 0, 0
            if event.kind == "all_reduce":
                now = next(calls)
                backward_us, before = BACKWARD_US * (now - before), now
                into_us = copy_us * event.bytes
            found[rank, event.index], last = (out_us, backward_us, into_us), event
    return found


def step_ms(replay):
    """When the last rank comes to the barrier at the step's end."""
    calls = [i for i in replay.intervals if i.what == "collective" and i.event.kind == "barrier"]
    return max(call.start_us for call in calls) / 1000


@functools.cache  # no form is recorded twice
def recorded_all(*kinds):
    """A step of eight ranks in each form, in one launch, without the broadcasts at its start."""
    ranks = launch(lambda: [one_step(kind) for kind in kinds], world_size=8, trace=True)
    kept = [[] for _ in kinds]
    for rank in range(8):
        form = 0
        for event in ranks.trace.of_rank(rank):
            kept[form] += [event] * (event.kind != "broadcast")
            form += event.kind == "barrier"  # which ends a step
    traces = [replace(ranks.trace, events=tuple(events)) for events in kept]
    return list(zip(zip(*ranks), traces))


def recorded(kind):
    return recorded_all(kind)[0]


def replayed(run, trace, copy_us, on=network):
    share = computing(run, trace, copy_us)
    return trace.replay(on, lambda event: sum(share[event.rank, event.index])), share


def clock(kind, copies=True):
    """Print what a step of a form takes; returns its ms at both rates of copying."""
    name, (run, trace) = kind.__name__, recorded(kind)
    took_ms = []
    for rate, copy_us in rates.items():
        replay, share = replayed(run, trace, copy_us * copies)
        replays[rate, name], shares[rate, name] = replay, share
        took_ms.append(step_ms(replay))
    calls = sum(event.kind == "all_reduce" for event in trace.of_rank(0))
    told = ", ".join(f"{rate} {ms:.1f} ms" for rate, ms in zip(rates, took_ms))
    print(f"{name:13}{calls:2} calls: {told}")
    return took_ms


def draw(names, text, rate="copies at 5 GB/s"):
    """Rank 0 of some forms: what it computes above, what its port sends below."""
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(names) + 1), layout="constrained")

    def bar(what, start_us, took_us, at, high):
        style = {"color": COLORS[what], "hatch": HATCHES[what], "edgecolor": "white"}
        axes.barh(at, took_us / 1000, high, start_us / 1000, align="edge", linewidth=0, **style)

    for row, name in enumerate(names):
        end_ms = step_ms(replays[rate, name])
        for i in replays[rate, name].intervals:
            if i.rank or i.start_us / 1000 >= end_ms:
                continue
            if i.what == "send":
                bar("its port sends", i.start_us, i.end_us - i.start_us, row, 0.3)
            elif i.what == "compute":
                start_us = i.start_us
                parts = shares[rate, name][0, i.event.index]
                for what, us in zip(("copies", "backward", "copies"), parts):
                    bar(what, start_us, us, row - 0.36, 0.36)
                    start_us += us
        axes.plot([end_ms] * 2, [row - 0.4, row + 0.34], color="black", linewidth=1.5)
        axes.text(end_ms + 0.2, row, f"{end_ms:.1f} ms", va="center")
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.6))
    axes.set(xlabel="virtual time of one step, rank 0 of 8 (ms)", xlim=(0, 33))
    for what, color in COLORS.items():
        axes.bar(0, 0, color=color, hatch=HATCHES[what], edgecolor="white", label=what)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, text)


# %%
took_ms = clock(PerParameter, copies=False)

# %% [markdown]
# 29.1 ms, more than three times backward alone. It adds up: 8.98 of backward; 12.58 for the bytes, as a ring of eight passes 2 · 7/8 of them through each port; and 7.56 of
# **latency**, for 18 rings of 14 messages at 30 µs each. Latency is what we can save first: pack all gradients into one message.
#
# ### Write it
#
# *About 6 minutes.* `finish` copies all gradients into one flat tensor, averages that with a single `all_reduce`, and copies the mean back into each `.grad`.


# %%
class MyFlat(Equal):
    def finish(self):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Gradients have one or two dimensions, the buffer has one. How do you find a gradient's numbers in it again, and its shape?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Flatten and concatenate; divide; one <code>all_reduce</code>. Then split the buffer into as many numbers as each gradient has, and copy each part back in that gradient's shape.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>flat = torch.cat([p.grad.flatten() for p in self.learning])</code>; on the way back
# <code>zip(self.learning, flat.split([p.numel() for p in self.learning]))</code> and <code>p.grad.copy_(part.view_as(p))</code>.
# </details>

# %%
flat_judged = judged({same: (None, same, 1)})
check(trained(MyFlat), **flat_judged)


# %% jupyter={"source_hidden": true}
class Flat(Equal):
    """The finished step."""

    def finish(self):
        flat = torch.cat([p.grad.flatten() for p in self.learning]) / dist.get_world_size()
        dist.all_reduce(flat)
        for p, part in zip(self.learning, flat.split([p.numel() for p in self.learning])):
            p.grad.copy_(part.view_as(p))


check(trained(Flat), **flat_judged)

# %%
took_ms = clock(Flat)
draw(["PerParameter", "Flat"], "Flat sends without gaps, but its port waits for both copies.")

# %% [markdown]
# The latency of one ring instead of 18. But two copies appeared, of 1.8 ms each, during which nothing is sent.
#
# **Check yourself.** For which networks is `Flat` slower than `PerParameter`?
#
# <details><summary>Answer</summary>
# Where the 17 saved latencies of 14 messages each, 17 × 14 × *latency*, are less than the two copies, 3.6 ms: with a latency below 15 µs. With free copies, nowhere.
# </details>
#
# ## 4 · Buckets
#
# Copy a part, send it, and copy the next one while the first is on its way. The parts are **buckets**: lists of parameters, closed once they hold 2 MB. They are filled
# from the last layer to the first, because that is the order in which gradients arrive.


# %%
def fill(parameters, limit_bytes):
    buckets = [[]]
    for parameter in reversed(parameters):
        if sum(p.nbytes for p in buckets[-1]) >= limit_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


# %% [markdown]
# ### Write it
#
# *About 8 minutes.* `send` starts the `all_reduce` of one bucket and returns at once. `finish` sends all buckets and then collects them: it waits, and copies back. The check notes `g` when a gradient is there, `A` when an
# `all_reduce` begins, and `w` when you wait, except at the end. Three buckets give `gggggggAAA`, where waiting too early gives `gggggggAwAwA`. A `W` is a wait for a call that you have waited for before.


# %%
class MyBuckets(Equal):
    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network)
        self.buckets = fill(self.learning, limit_bytes)
        self.sent = []  # what `finish` has to know of each bucket that left

    def send(self, bucket):
        raise NotImplementedError("about 3 lines")

    def finish(self):
        raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which three things does <code>finish</code> need for each bucket that left? And what must be true of <code>self.sent</code> when the next step begins?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>send</code> packs the gradients as in <code>MyFlat</code>, starts an <code>all_reduce</code> with <code>async_op=True</code>, and notes bucket, buffer and work. <code>finish</code> sends all, then
# takes the notes in turn: wait, split, copy back. At last it empties the notes.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))</code>, and later
# <code>for bucket, flat, work in self.sent:</code> with <code>work.wait()</code> first.
# </details>


# %% jupyter={"source_hidden": true}
buckets_judged = judged(
    {
        "buckets of 2, 2 and 3 parameters": (100, same),
        "buckets of 3, 2 and 2 parameters": (150, same),
        "one bucket for all": (1000, same),
    }
)

# %%
check(trained(MyBuckets), **buckets_judged)


# %% jupyter={"source_hidden": true}
class Buckets(Equal):
    """The finished step."""

    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network)
        self.buckets = fill(self.learning, limit_bytes)
        self.sent = []

    def send(self, bucket):
        flat = torch.cat([p.grad.flatten() for p in bucket]) / dist.get_world_size()
        self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))

    def collect(self):
        for bucket, flat, work in self.sent:
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.sent = []

    def finish(self):
        for bucket in self.buckets:
            self.send(bucket)
        self.collect()


check(trained(Buckets), **buckets_judged)

# %% [markdown]
# **Predict.** Buckets pay for latency four times, `Flat` once. Which of the two is faster where copies cost nothing: `"Flat"`, `"Buckets"`, or `"equal"`?

# %%
faster = predict("faster where copies are free", ..., choices=("Flat", "Buckets", "equal"))

# %%
flat_ms, buckets_ms = clock(Flat), clock(Buckets)
faster.measured("Flat" if flat_ms[1] < buckets_ms[1] else "Buckets")
draw(["Flat", "Buckets"], "With buckets, most copies go on while the port sends.")

# %% [markdown]
# The order **flips**. At 5 GB/s the buckets win, because most of their copies hide behind messages. With free copies they lose by three rings' latencies, 3 · 14 · 30 µs. So buckets alone
# pay only where copies are slow. Their real use comes next: a bucket can leave *before backward is over*.
#
# Here is a good place for a break.
#
# **Check yourself.** Why does `finish` send all buckets before it waits for the first?
#
# <details><summary>Answer</summary>
# With <code>work.wait()</code> right after each <code>all_reduce</code>, the port would idle while the next bucket is packed.
# </details>
#
# ## 5 · While backward still computes
#
# In the pictures the port is idle for all of backward, though the last layer's gradients are there early. `register_post_accumulate_grad_hook` calls a function with a
# parameter as soon as its `.grad` is complete.
#
# ### Write it
#
# *About 12 minutes.* When the last gradient of a bucket has come, the bucket leaves, from within backward. Never wait there: `finish`, after backward, collects. Buckets
# of 2, 2 and 3 now give `ggAggAgggA`. Do not rely on `None` before backward: whoever calls `zero_grad(set_to_none=False)` has zeros there.


# %%
class MyOverlap(Buckets):
    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network, limit_bytes)
        self.arrived = set()
        for parameter in self.learning:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)

    def gradient_is_here(self, parameter):
        raise NotImplementedError("about 4 lines")

    def finish(self):
        raise NotImplementedError("about 2 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How do you know that a bucket is complete? And what must be forgotten before the next backward?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Note the parameter in <code>self.arrived</code>. Look for the bucket that it belongs to. If all of that bucket have arrived, send it. <code>finish</code> calls <code>self.collect()</code>, which
# the finished <code>Buckets</code> has, and empties <code>self.arrived</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>if any(parameter is own for own in bucket) and self.arrived.issuperset(bucket):</code> (with <code>in</code>, torch would compare numbers).
# </details>


# %% jupyter={"source_hidden": true}
overlap_judged = judged(
    {
        f"buckets of 2, 2 and 3, {zeros}": (100, same),
        f"buckets of 3, 2 and 2, {swapped}": (150, swapped),
        late: (100, same),
    },
    at_once=True,
)

# %%
check(trained(MyOverlap), **overlap_judged)


# %% jupyter={"source_hidden": true}
class Overlapped(Buckets):
    """The finished step."""

    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network, limit_bytes)
        self.arrived = set()
        for parameter in self.learning:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)

    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        for bucket in self.buckets:
            if any(parameter is own for own in bucket) and self.arrived.issuperset(bucket):
                self.send(bucket)

    def finish(self):
        self.collect()
        self.arrived = set()


check(trained(Overlapped), **overlap_judged)

# %% [markdown]
# **Predict.** 12.6 ms of sending, beside 9.0 ms of backward, in four buckets. How many ms does the step take, with copies at 5 GB/s?

# %%
overlapped_ms = predict("ms of a step that overlaps", ...)

# %%
took_ms = clock(Overlapped)
overlapped_ms.measured(took_ms[0], within=0.1)
forms = ["PerParameter", "Flat", "Buckets", "Overlapped"]
draw(forms, "Overlapped begins to send after 2.5 ms, and its port never rests until all is sent.")

# %% [markdown]
# The first bucket leaves when a quarter of the gradients are there. From then on the port is the bottleneck: 2.5 + 12.6 + latency. And overlap wins at *both* rates of copying. These are numbers for this model and network.
# Where backward is longer, overlap hides nearly everything; where it is shorter, only fewer bytes help.
#
# How large should a bucket be? Here with 30 µs of latency, and with ten times as much. In the column *alone*, each gradient is a bucket of its own:

# %%
sizes_mb = [1e-6, 1, 2, 4, 6, 16]  # the first is less than any tensor has
print("bucket     alone", *(f"{size:5} MB" for size in sizes_mb[1:]))
sized = [functools.partial(Overlapped, limit_bytes=int(mb * 2**20)) for mb in sizes_mb]
runs = recorded_all(*sized)
for latency_us in (30, 300):
    slower = replace(network, latency_us=latency_us)
    replayed_ms = [step_ms(replayed(*run, 0.2 / 1000, slower)[0]) for run in runs]
    print(f"{latency_us:4} µs", *(f"{ms:5.1f} ms" for ms in replayed_ms))

# %% [markdown]
# 2 MB is best with 30 µs, and 4 MB with 300: with more latency, each message has to carry more. One bucket of 16 MB holds everything and is `Flat` again, to the digit. PyTorch's default is 25 MB,
# with a first bucket of 1 MB so that something leaves early.
#
# ### Can copies be free?
#
# PyTorch has an option for that, `gradient_as_bucket_view=True`. In how many pieces of memory do the 18 gradients lie after backward? And how many of them did autograd write to that very place? A hook
# that we register before DDP's own sees each gradient as autograd leaves it.


# %%
def memory_of_gradients(as_view, to_none, steps=3):
    network, written = plain().to(my_device()), {}
    for parameter in network.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda own: written.update({own: own.grad.data_ptr()})
        )
    model = DistributedDataParallel(network, bucket_cap_mb=2, gradient_as_bucket_view=as_view)
    for step in range(steps):
        model.zero_grad(set_to_none=to_none)
        images, labels = batch(step)
        cross_entropy(model(images), labels).backward()
    pieces = {own.grad.untyped_storage().data_ptr() for own in network.parameters()}
    return len(pieces), sum(own.grad.data_ptr() == written[own] for own in network.parameters())


# %%
for as_view, to_none in ((False, True), (True, True), (True, False)):
    pieces, there = launch(memory_of_gradients, as_view, to_none)[0]
    print(f"gradient_as_bucket_view={as_view}, zero_grad(set_to_none={to_none}):")
    print(f"    {pieces} pieces, {there} of 18 gradients written there by autograd")

# %% [markdown]
# Without the option autograd writes each gradient to memory of its own, where it stays: DDP copies it into a bucket, and the mean back. With it, each `.grad` *is* a part of its bucket after backward. So the mean
# is not copied back, and a whole copy of all gradients is saved in memory.
#
# But `zero_grad()` drops these parts. In the next step autograd writes to new memory again, and DDP copies each gradient *into* the bucket. Only `set_to_none=False` keeps the parts: then autograd writes where the
# message is read, and nothing is copied. The documentation names the price of the option: such a `.grad` cannot be detached in place.
#
# **Check yourself.** The last layer of a language model holds half of all weights. What does that mean for overlap?
#
# <details><summary>Answer</summary>
# It is the first bucket, as parameters are not split. Its message starts early, with all of the remaining backward to hide behind. Were it the first layer, it would leave last, with nothing
# to hide behind.
# </details>
#
# ## 6 · When the ranks disagree
#
# `Overlapped` has passed every check so far, and it is wrong. Nothing has asked yet what happens when gradients arrive in **another order** on another rank. Autograd goes back
# through what forward computed last, so the order is up to forward. `TwoExperts` takes a path: `(0, 1)` uses expert 0 first, `(1, 0)` expert 1, and `(0,)` leaves
# expert 1 out. `fate`, folded, runs a few backward passes and compares each rank's gradients with the mean of what the ranks have alone.
#
# **Predict.** Rank 0 takes `(0, 1)`, rank 1 takes `(1, 0)`. The two experts are equally large, and each is a bucket. What becomes of `Overlapped`: `"right"`, `"wrong sums"`, `"crash"` or `"hang"`?

# %%
fates = ("right", "wrong sums", "crash", "hang")
another_order = predict("Overlapped, in another order on rank 1", ..., choices=fates)


# %% jupyter={"source_hidden": true}
def passes(wrap, paths, steps):
    """Gradients after the last of some backward passes; a rank's path may be one for each."""
    network, own = same_network(), paths[dist.get_rank()]
    model = wrap(network)
    torch.manual_seed(dist.get_rank())
    for step in range(steps):
        inputs, targets, path = drawn(own[step] if isinstance(own, list) else own)
        model.zero_grad()
        mse_loss(model(inputs, path), targets).backward()
        if isinstance(model, Wrapper):
            model.finish()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in learning(network)]


def fate(wrap, paths, steps=3):
    """What becomes of gradients when rank 0 goes the first path and rank 1 the second."""
    # How ranks that disagree end is gloo's: NCCL would let them hang.
    alone = launch(passes, lambda network: network, paths, steps, backend="gloo")
    try:
        results = launch(passes, wrap, paths, steps, backend="gloo", timeout=3)
    except WorkerTimeout:
        return "hang"
    except WorkerError as error:
        return "crash: " + error.failures[0].headline.partition(": ")[2]
    means = [sum(each) / 2 for each in zip(*alone)]
    right = all(torch.allclose(a, b) for own in results for a, b in zip(own, means))
    return "right" if right else "wrong sums"


def overlapped(network):
    return Overlapped(network, limit_bytes=100)


def pytorch(network, **options):
    return DistributedDataParallel(network, bucket_cap_mb=1e-4, **options)


# %%
another_order.measured(fate(overlapped, [(0, 1), (1, 0)]))
print("PyTorch's DDP, in another order:", fate(pytorch, [(0, 1), (1, 0)]))
print("Overlapped, in one order:", fate(overlapped, [(0, 1), (0, 1)]))

# %% [markdown]
# No hang, no crash, no error: averages of one expert's gradients with the other's. Gloo pairs the *n*-th call of one rank with the *n*-th of the other, and both carry 144 bytes. PyTorch gets it right.
#
# Now expert 1 is not used on rank 1, as happens when no token chooses it. This cell fails on purpose, after three seconds. Which rank waits, and in which line?

# %% tags=["raises-exception"]
launch(passes, Overlapped, [(0, 1), (0,)], 1, backend="gloo", timeout=3)  # as above, gloo's end

# %% [markdown]
# *Rank 0 waits in `collect`*, for the bucket that it has sent. *Rank 1's function has returned*: its bucket (here one holds everything) never filled, and nobody noticed. With several buckets it is worse: rank 1's next bucket meets
# the one that rank 0 has sent in its place.
#
# ### And PyTorch's?
#
# The same two paths, once and in a loop:

# %%
print("one backward:", fate(pytorch, [(0, 1), (0,)], steps=1))
said = fate(pytorch, [(0, 1), (0,)], steps=3)
sentences = " ".join(said.split()).replace("e.g. ", "").split(". ")
print("three backwards:", *sentences, sep="\n    ")

# %% [markdown]
# **Expected to have finished reduction in the prior iteration** is perhaps the most searched of all DDP errors. Read it from the end. *Rank 1* says it, at its *second* forward: in the first backward the parameters
# with these indices got no gradient, so a bucket never left. Without a second forward nobody notices, and rank 0 hangs, as with ours. Which parameters are they? At the debug level `DETAIL` the error names them.
# In a script you set `TORCH_DISTRIBUTED_DEBUG=DETAIL` in the environment; `launch` has imported torch already, so here the worker says it.


# %%
def in_detail(network):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    return pytorch(network)


print(*[line for line in fate(in_detail, [(0, 1), (0,)]).splitlines() if "for rank" in line])

# %% [markdown]
# There are two cures in the constructor. `find_unused_parameters=True` walks through the graph after each forward. `static_graph=True` believes that every step uses what the first one used. We try both on a
# model whose expert 1 always rests, and on one whose experts take turns.

# %%
always, in_turn = [(0,), (0,)], [[(0,), (1,), (0,)], [(1,), (0,), (1,)]]
for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
    print(options or "as it is")
    for name, paths in {"always the same": always, "in turn": in_turn}.items():
        said = fate(lambda network: pytorch(network, **options), paths)
        print(f"    {name:16}{said[:74]}")

# %% [markdown]
# `find_unused_parameters` is right in both cases, and its walk costs time in each step. `static_graph` walks only once, and refuses a graph that changes. If no parameter ever rests, you need neither. If one always does, freeze it or take it out of the model.
#
# ### Write it
#
# *About 12 minutes.* Both faults have one cure: **every rank sends the same buckets in the same order, whatever has come.** A full bucket waits until all before it have left. After backward, `finish`
# sends those that remain, with zeros for gradients that are `None`. You may change `gradient_is_here`, `send` and `finish`.


# %%
class MyOrder(Overlapped):
    def gradient_is_here(self, parameter):
        raise NotImplementedError("about 3 lines")

    def finish(self):
        raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many buckets have left so far? So which one is next? And can several leave at once?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The next bucket is <code>self.buckets[len(self.sent)]</code>. As long as there is one and it is complete, send it. <code>finish</code> gives zeros to whoever has no gradient, sends the remaining buckets, and goes on as
# before. Zeros are right: this rank has nothing to add to the sum.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for bucket in takewhile(self.arrived.issuperset, self.buckets[len(self.sent):]):</code>, and
# <code>parameter.grad = torch.zeros_like(parameter)</code> if there is none.
# </details>


# %% jupyter={"source_hidden": true}
order_judged = judged(
    {
        f"{same}, {zeros}, buckets of 2, 2, 3": (100, same),
        f"{other}, buckets of 2, 2, 3": (100, other),
        f"{fewer}, buckets of 2, 2, 3": (100, fewer),
        f"{turns}, buckets of 3, 2, 2": (150, turns),
        late: (150, same),
    },
    at_once=True,
)

# %%
check(trained(MyOrder), **order_judged)


# %% jupyter={"source_hidden": true}
class InOrder(Overlapped):
    """The finished step."""

    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        for bucket in takewhile(self.arrived.issuperset, self.buckets[len(self.sent) :]):
            self.send(bucket)

    def finish(self):
        for parameter in self.learning:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in self.buckets[len(self.sent) :]:
            self.send(bucket)
        super().finish()


check(trained(InOrder), **order_judged)

# %%
took_ms = clock(InOrder)

# %% [markdown]
# Right, and not a microsecond slower. (An expert that *no* rank used gets a gradient of zeros here, where PyTorch leaves `None`. An optimiser with weight decay would move it. The lab repairs that.)
#
# **Check yourself.** Rank 1 does not use the *last* layer of a deep network. What does that cost?
#
# <details><summary>Answer</summary>
# The overlap: that bucket is the first in the order, so on rank 1 all others wait behind it until backward is over, and rank 0 waits for rank 1.
# </details>
#
# ### A weight in two places
#
# Language models often **tie** the embedding, their first layer, and the head, their last one. The head's gradient is computed first of all.
#
# **Predict.** The course's `SmallGPT` does so. With one block it has 17 parameters. Without the tie, none of the other 16 gradients is complete before the head's. With it, when the head *is*
# the embedding, there are 16 parameters. How many of the other 15 gradients are complete before this one's?

# %%
come_before = predict("gradients of 15 that come before the tied weight's", ...)

# %%
tokens, alphabet = novel()  # letters of Pride and Prejudice, as numbers


def windows_of(count):
    starts = torch.randint(len(tokens) - 32, (count, 1))
    return tokens[starts + torch.arange(33)].to(my_device())


def arrivals(tied):
    model, came = SmallGPT(len(alphabet), depth=1, tied=tied).to(my_device()), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda own, name=name: came.append(name))
    model(tokens[None, :64].to(my_device())).sum().backward()
    return came


# %%
for tied in (False, True):
    came = launch(arrivals, tied, world_size=1)[0]
    print("tied:    " if tied else "not tied:", came[0], "...", *came[-2:])
come_before.measured(came.index("embedding.weight"))

# %% [markdown]
# All of them: it comes last. The hook is called once, when both uses have been added up, and the embedding's use is the last that backward reaches. So nothing has to be repaired, but the largest weight of many
# models leaves when backward is over and has nothing to hide behind.
#
# ## 7 · Not a word
#
# Two things are left. The **buffers** change in every forward, on each rank in its own way, so PyTorch sends rank 0's. And **`no_sync`**: when gradients of several small batches accumulate, only
# the last backward needs to average them. Which of the forwards send buffers then? Here are two steps of PyTorch's DDP, each in three parts, of which the first two stand within `no_sync`.


# %%
def what_it_sends(model, parts):
    told = []
    for number in range(parts):
        sent = set()
        averages = nullcontext() if number % 3 == 2 else model.no_sync()
        with averages, noting(lambda size, name: sent.add(name)):
            model(batch(number)[0]).sum().backward()
        told.append(" and ".join(sorted(sent)) or "nothing")
    return told


sent = launch(lambda: what_it_sends(DistributedDataParallel(awkward().to(my_device())), 6))[0]
print("first step: ", *sent[:3], sep="   ")
print("second step:", *sent[3:], sep="   ")

# %% [markdown]
# The **first** part of a step sends the buffers, although it stands within `no_sync`. The last part, which averages the gradients, does not. PyTorch's rule: a forward takes over rank 0's buffers if it is the first
# of all, or if the training forward before it was outside `no_sync`. So buffers travel once per step, at its beginning.
#
# ### Write it
#
# *About 9 minutes.* `forward` takes over rank 0's buffers by PyTorch's rule. Within `no_sync` no gradients are sent, they add up; `finish` is called there as well. After it, even after an error, the
# wrapper talks again.


# %%
class MySilence(InOrder):
    talks = True  # PyTorch: require_backward_grad_sync
    shares_buffers = True  # in the next forward; PyTorch: require_forward_param_sync

    def forward(self, *inputs):
        raise NotImplementedError("about 5 lines")

    @contextmanager
    def no_sync(self):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which methods of <code>InOrder</code> talk? What does a forward have to know of the one before it? And where does the switch stand if someone stops the cell inside of <code>no_sync</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>gradient_is_here</code> and <code>finish</code> talk only if <code>self.talks</code>. <code>no_sync</code> sets it to false, yields, and sets it back whatever happens. <code>forward</code> sends buffers if
# <code>self.shares_buffers</code>, and then notes there whether it talks itself. The gradients of silent parts stay in <code>.grad</code>, so the mean of the last part is that of all.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>try: yield</code>, <code>finally: self.talks = True</code>, on lines of their own; <code>if self.talks: super().finish()</code>; in <code>forward</code> a
# <code>dist.broadcast(buffer, src=0)</code> for each of <code>self.module.buffers()</code>, then <code>self.shares_buffers = self.talks</code>.
# </details>


# %% jupyter={"source_hidden": true}
class Drifting(TwoExperts):
    def forward(self, inputs, path):
        outputs = super().forward(inputs, path)
        self.shift.lerp_(inputs.mean(dim=0), 0.2)
        self.scale.lerp_(inputs.std(dim=0), 0.2)
        return outputs


def silence_spec(networks, batches, stopped):
    network, n = networks[0], len(networks)
    optimizer = adam(network)
    shared = {id(parameter): parameter for parameter in network.parameters()}
    replicas = [copy.deepcopy(network, dict(shared)) for _ in networks]  # with own buffers
    for step in zip(*batches):
        optimizer.zero_grad()
        for replica in replicas:
            for own, first in zip(replica.buffers(), replicas[0].buffers()):
                own.copy_(first)
        parts = list(zip(*step))
        for part in parts:
            for replica, (inputs, targets, path) in zip(replicas, part):
                (mse_loss(replica(inputs, path), targets) / (n * len(parts))).backward()
        optimizer.step()
    if len(parts) == 1:
        said = "buffers and gradients"
    else:
        said = ", ".join(["buffers", *["silent"] * (len(parts) - 2), "gradients"])
    return [{"steps": [said] * STEPS, "weights": weights(network)}] * n


def accumulating(kind):
    """Train in parts; return also which of them talk. Something may be raised before the last."""

    @functools.wraps(kind, updated=())
    def accumulated(network, batches, stopped):
        model, optimizer, steps = kind(network, 100), adam(network), []
        for parts in batches:
            optimizer.zero_grad()
            said = []
            for number, (inputs, targets, path) in enumerate(parts, 1):
                last = number == len(parts)
                if stopped and last:
                    with suppress(stopped):
                        with model.no_sync():
                            raise stopped
                        said.append("swallows")
                sent = set()
                calls = noting(lambda size, name: sent.add(name))
                with calls, nullcontext() if last else model.no_sync():
                    (mse_loss(model(inputs, path), targets) / len(parts)).backward()
                    model.finish()
                words = {"BROADCAST": "buffers", "ALLREDUCE": "gradients"}
                said.append(" and ".join(words[name] for name in words if name in sent) or "silent")
            steps.append(", ".join(said))
            optimizer.step()
        return {"steps": steps, "weights": weights(network)}

    return accumulated


silence_cases = {
    "all parts alike": [(0, 1)] * PARTS,
    "a step in one part": [(0, 1)],
    "the last part rests an expert": [(0, 1), (1, 0), (0,)],
    "somebody presses stop in no_sync": [(0, 1)] * PARTS,
    "an error is raised in no_sync": [(0, 1)] * PARTS,
}


def silence_inputs(rank, world_size, case):
    batches = [[drawn(path) for path in silence_cases[case]] for _ in range(STEPS)]
    raised = KeyboardInterrupt if "stop" in case else ValueError if "error" in case else None
    return Drifting(), batches, raised


def silence_budget(world_size, case):
    """The start, three buckets a step, and in each step one broadcast of each buffer."""
    begun = start_budget(world_size, case)
    return {
        "sent_messages": begun["sent_messages"] + STEPS * (6 * (world_size - 1) + 2 * world_size),
        "sent_bytes": begun["sent_bytes"]
        + STEPS * (2 * (world_size - 1) * 568 / world_size + 2 * 32),
    }


silence_judged = {"spec": silence_spec, "inputs": silence_inputs, "budget": silence_budget}
silence_judged |= {"cases": list(silence_cases), "rtol": 1e-9, "world_sizes": (2, 3)}

# %%
check(accumulating(MySilence), **silence_judged)

# %% [markdown]
# ## 8 · The whole of it
#
# All seven steps in one class, folded: the finished form of `MySilence` as well. It passes the last two checks, which ask for all that the others do.


# %% jupyter={"source_hidden": true}
class OurDDP(Wrapper):
    """Start equal; average gradients in buckets while backward still computes."""

    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network)
        self.talks, self.shares_buffers = True, True
        self.arrived, self.sent = set(), []
        self.buckets = fill(self.learning, limit_bytes)
        for parameter in self.learning:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)

    def start(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)

    def forward(self, *inputs):
        if self.shares_buffers:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        self.shares_buffers = self.talks  # in the next forward
        return self.module(*inputs)

    def gradient_is_here(self, parameter):
        if self.talks:
            self.arrived.add(parameter)
            for bucket in takewhile(self.arrived.issuperset, self.buckets[len(self.sent) :]):
                self.send(bucket)  # in the same order on all ranks

    def send(self, bucket):
        for parameter in bucket:
            if parameter.grad is None:  # this rank did not use it
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([p.grad.flatten() for p in bucket]) / dist.get_world_size()
        self.sent.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for bucket in self.buckets[len(self.sent) :] if self.talks else ():
            self.send(bucket)
        for bucket, (flat, work) in zip(self.buckets, self.sent):
            work.wait()
            for parameter, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                parameter.grad.copy_(part.view_as(parameter))
        self.arrived, self.sent = set(), []

    @contextmanager
    def no_sync(self):
        self.talks = False
        try:
            yield
        finally:
            self.talks = True


# %%
check(accumulating(OurDDP), **silence_judged)

# %%
check(trained(OurDDP), **order_judged | {"budget": None})  # which has no room for buffers

# %% [markdown]
# | lines | what asked for them |
# | --- | --- |
# | `start`, `shares_buffers` | tensors that differed (part 1), a batch norm's buffers (7) |
# | `/ world_size`, `all_reduce` | equal to PyTorch, bit for bit (2) |
# | `cat`, `split` | fewer latencies (3) |
# | `fill`, the hook, `async_op` | buckets that leave while backward computes (4, 5) |
# | `takewhile`, zeros, the first loop of `finish` | wrong sums, and a hang (6) |
# | `talks` | silence where nobody needs to talk (7) |
#
# Now the examination, against PyTorch's DDP with buckets of the same size: 10 steps of both networks on two ranks, and 3 on four.

# %%
PyTorchs = functools.partial(DistributedDataParallel, bucket_cap_mb=2)
for form in (plain, awkward):
    for size, steps in ((2, 10), (4, 3)):
        both = (launch(train, ddp, form, steps, world_size=size) for ddp in (OurDDP, PyTorchs))
        away = apart(*both)
        print(f"{form.__name__:8}{size} ranks:", "exactly 0" if away == 0 else f"about {away:.0e}")

# %% [markdown]
# On two ranks the same to the last bit, running means, tied and frozen weights included. With four, a sum depends on the order of its terms, and so on where the
# buckets are cut: PyTorch's first step has one bucket, until it has seen in which order gradients come.
#
# In these trainings each step has one part. So now three parts for each step, of which two stand in `no_sync`:


# %%
def train_in_parts(wrap, steps=3):
    torch.manual_seed(dist.get_rank())
    model = wrap(awkward().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in range(3 * steps):
        images, labels = batch(number)
        silent = number % 3 < 2
        with model.no_sync() if silent else nullcontext():
            (cross_entropy(model(images), labels) / 3).backward()
            if isinstance(model, Wrapper):
                model.finish()
        if not silent:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([each.flatten() for each in model.module.state_dict().values()])


# %%
away = apart(*(launch(train_in_parts, ddp) for ddp in (OurDDP, PyTorchs)))
print("awkward, 3 steps in 3 parts:", "exactly 0" if away == 0 else f"about {away:.0e}")

# %% [markdown]
# The same again, running means included, though the later parts of a step change them on each rank in its own way.
#
# And a training as language models have it: the small GPT with its tied weight, AdamW, gradients of two small batches that add up, and at last a limit to their norm.


# %%
def train_gpt(wrap, steps=10):
    torch.manual_seed(dist.get_rank())
    model = wrap(SmallGPT(len(alphabet), depth=1, context=32).to(my_device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(steps):
        optimizer.zero_grad()
        for talking in (model.no_sync, nullcontext):
            windows = windows_of(8)
            with talking():
                (cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:]) / 2).backward()
        if isinstance(model, Wrapper):
            model.finish()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
    return weights(model)


# %%
ours = functools.partial(OurDDP, limit_bytes=60_000)  # four buckets
theirs = launch(train_gpt, PyTorchs)
one_less = apart(launch(train_gpt, ours, 9), theirs)
away = apart(launch(train_gpt, ours), theirs)
print("10 steps of the GPT:", "exactly 0" if away == 0 else f"about {away:.0e}")
print(f"ours after 9, as a control: about {one_less:.0e}")

# %% [markdown]
# Bit for bit again. Clipping needs nothing from us: it comes after `finish`, when the gradients are averages already, so both ranks find the same norm.
#
# **Check yourself.** You freeze a layer *after* wrapping it in `OurDDP`. What happens?
#
# <details><summary>Answer</summary>
# Its gradient never comes, so its bucket and all behind it leave at the end of backward: the overlap is lost. Worse, it gets a gradient of zeros, and an optimiser with weight decay would move it.
# Freeze first, wrap then; that is also PyTorch's rule.
# </details>
#
# ## What you know now
#
# DDP is a broadcast, some hooks and an `all_reduce` per bucket. What makes it fast is *when* messages leave. What makes it right is that all ranks send the same ones, in the same order, whatever happened to their gradients.
# You can now read PyTorch's own [reducer](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.hpp): it has these parts and more, such as GPU streams and several dtypes. And it needs no
# `finish` in your loop: autograd's engine calls it when backward is over.

# %%
predict()

# %% [markdown]
# Compare two of the six with your own guess. Two calls in another order neither crash nor hang: the sums are silently wrong. And buckets are not faster by themselves: with free copies they lose.
#
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb) opens the `all_reduce` itself. Beside the way,
# [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb) looks at DDP on real GPUs.
