# %% [markdown]
# # Lab 11 · Capstone
#
# Your project, on the model of [chapter 11](../notebooks/11_capstone.ipynb): repair a training, scale it, predict it, and report. Four exercises and an optional one, 120 minutes, on any
# computer. `check` runs your functions in real workers and compares with a **specification** of one process; the figures of your report it computes again, from your own recordings.

# %%
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler

from course_utils import Network, check, digits, launch, plot_timeline, progress
from course_utils.network.trace import Event, Trace

# %% [markdown]
# ## 1 · Repair it
#
# *●●●, 35 minutes.* `broken` runs on any number of ranks that divides 12, its losses fall, and it has six faults. **Goal:** a `train` that does on all ranks what `train_alone` does in one process: the same noise on
# each digit, the same weights, each epoch's loss as the mean over its global batches, and the share of the 22 test digits that are right. Only rank 0's `model` counts.


# %%
training, testing = digits(True), digits(False)
test_images, test_labels = testing.data[:22].double(), testing.targets[:22]


def noisy(numbers, seeds):
    """The digits of these numbers, each with noise from a seed of its own."""
    drawn = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    noise = [torch.randn(1, 28, 28, generator=generator) for generator in drawn]
    return (training.data[numbers] + 0.3 * torch.stack(noise)).double()


def weights(model):
    return parameters_to_vector(model.parameters()).detach()


def train_alone(model, rate, epochs):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=rate), []
    for epoch in range(epochs):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        total = 0
        for numbers in order.split(12):
            images = noisy(numbers, 60 * epoch + numbers)
            loss = cross_entropy(model(images), training.targets[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / 5)
    right = model(test_images).argmax(dim=1) == test_labels
    return weights(model), losses, right.sum().item() / 22


def train_spec(models, rates, epochs):
    return [train_alone(models[0], rates[0], epochs[0])] * len(models)


# %% [markdown]
# The patient, which stays as it is:


# %%
def broken(model, rate, epochs):
    world_size = dist.get_world_size()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate * world_size)
    sampler = DistributedSampler(range(60))
    loader = DataLoader(range(60), 12 // world_size, sampler=sampler)
    losses = []
    for epoch in range(epochs):
        total = 0
        for numbers in loader:
            sampler.set_epoch(epoch)
            images = noisy(numbers, range(len(numbers)))
            loss = cross_entropy(model(images), training.targets[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total / len(loader))
    own = list(DistributedSampler(range(22), shuffle=False))
    right = (model.module(test_images[own]).argmax(dim=1) == test_labels[own]).double().mean()
    dist.reduce(right, dst=0)
    return weights(model), losses, right.item() / world_size


# %%
def train(model, rate, epochs):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    sampler = DistributedSampler(range(60))
    loader = DataLoader(range(60), 12 // world_size, sampler=sampler)
    losses = torch.zeros(epochs, dtype=torch.float64)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for numbers in loader:
            images = noisy(numbers, 60 * epoch + numbers)
            loss = cross_entropy(model(images), training.targets[numbers])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[epoch] += loss.detach() / len(loader)
    dist.all_reduce(losses, op=dist.ReduceOp.AVG)
    own = slice(rank, 22, world_size)
    right = (model.module(test_images[own]).argmax(dim=1) == test_labels[own]).sum()
    dist.all_reduce(right)
    return weights(model), losses.tolist(), right.item() / 22
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Do not read, measure: in how many orders does it see the digits, how do two ranks' noises differ, what does each rank return? The result has three parts: which of them agree already on one rank?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The lines with <code>lr=</code>, <code>set_epoch</code>, <code>noisy</code>, <code>losses.append</code>, <code>own</code> and <code>reduce</code>. A digit's noise may depend on its number and the epoch only. Losses are averaged over ranks, as all
# have equal batches. Of the test digits each is to be looked at once, so hands are uneven: add up right answers, not shares.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>noisy(numbers, 60 * epoch + numbers)</code>; <code>dist.all_reduce(losses, op=dist.ReduceOp.AVG)</code> with a tensor of all epochs; <code>own = slice(rank, 22, world_size)</code>.
# </details>

# %%
runs = {"rate 0.02, 2 epochs": (0.02, 2), "rate 0.05, 3 epochs": (0.05, 3)}


def train_inputs(rank, world_size, case):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double(), *runs[case]


options = {"cases": list(runs), "world_sizes": (1, 2, 3, 4), "work": 1.5}
check(train, spec=train_spec, inputs=train_inputs, **options)

# %% [markdown]
# ## 2 · Any number of ranks, little memory
#
# *●●●, 25 minutes.* Scaling shall not change the training, so the global batch stays, whether or not the ranks divide it. And a rank has room for `at_once` samples: the model refuses more. **Goal:** with `model`, a DDP
# already, take `steps_alone`'s steps and return the `weights`. A step may cost **one** exchange of gradients, however many pieces it takes.


# %%
generator = torch.Generator().manual_seed(11)
points = torch.randn(70, 4, generator=generator, dtype=torch.float64)
labels = torch.randint(5, (70,), generator=generator)


def momentum(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def steps_alone(model, global_batch):
    optimizer = momentum(model)
    for numbers in torch.arange(70).split(global_batch):  # the last batch may be smaller
        optimizer.zero_grad()
        cross_entropy(model(points[numbers]), labels[numbers]).backward()
        optimizer.step()
    return weights(model)


def scaled_spec(models, global_batches, at_once):
    return [steps_alone(models[0], global_batches[0])] * len(models)


# %%
def scaled(model, global_batch, at_once):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    optimizer = momentum(model)

    def add_gradient(piece, count):
        loss = cross_entropy(model(points[piece]), labels[piece], reduction="sum")
        (loss * world_size / count).backward()

    for numbers in torch.arange(70).split(global_batch):
        optimizer.zero_grad()
        *pieces, last = numbers[rank::world_size].split(at_once)
        with model.no_sync():
            for piece in pieces:
                add_gradient(piece, len(numbers))
        add_gradient(last, len(numbers))
        optimizer.step()
    return weights(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Three ranks share ten samples: 4, 3 and 3. DDP adds up the ranks' gradients and divides by three. What must each sample's loss be multiplied by? And what if a rank's share has more pieces than another's?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Deal each batch like cards, cut the share into pieces, and take sums of losses, times the world size, divided by the number of samples in the whole batch. All pieces but the last go under <code>no_sync</code>, forward included. Even an
# empty share has a last piece: an empty one, whose loss is a sum of nothing.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>*pieces, last = numbers[rank::world_size].split(at_once)</code>, and
# <code>(cross_entropy(..., reduction="sum") * world_size / len(numbers)).backward()</code>.
# </details>


# %%
def in_ddp(answer):
    """Put the model in a small memory, wrap it in DDP, and call the answer."""

    @functools.wraps(answer)
    def wrapped(model, global_batch, at_once):
        def refuse_more(layer, inputs):
            if (count := len(inputs[0])) > at_once:
                raise MemoryError(f"{count} samples at once, and there is room for {at_once}")

        for layer in model:
            layer.register_forward_pre_hook(refuse_more)
        return answer(DistributedDataParallel(model), global_batch, at_once)

    return wrapped


batches = {
    "batches of 35, room for 35": (35, 35),
    "batches of 12, room for 2": (12, 2),
    "batches of 23, room for 3": (23, 3),
}


def scaled_inputs(rank, world_size, case):
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5)).double(), *batches[case]


def scaled_budget(world_size, case):
    steps = -(-70 // batches[case][0])
    return {"sent_messages": (world_size - 1) * (10 + 2 * steps)}


options = {"cases": list(batches), "world_sizes": (1, 2, 3, 5), "budget": scaled_budget}
options["work"] = 1.5
check(in_ddp(scaled), spec=scaled_spec, inputs=scaled_inputs, **options)

# %% [markdown]
# ## 3 · Predict 64 ranks
#
# *●●○, 20 minutes.* A step computes `forward_us`, then `backward_us`; gradients come in proportion to their bytes, in `buckets` of so many bytes. Each bucket is summed by a ring, one after the other. **Goal:** return the
# efficiency (computing / step) on `ranks` ranks of a network twice: when no bucket leaves before backward is over, and when each leaves as soon as it is full. The specification makes that many ranks up and replays them; you calculate, and on the check's network nothing can be replayed.


# %%
def made_up(ranks, kinds, sizes):
    """A recording in which all ranks call collectives, and then wait for them."""
    every = {"dtype": "float64", "group": tuple(range(ranks)), "start_s": 0.0, "end_s": 1.0}
    events = []
    for rank in range(ranks):
        for k, (kind, size) in enumerate(zip(kinds, sizes)):
            root = 0 if kind == "broadcast" else None
            events.append(Event(rank=rank, index=k, kind=kind, bytes=size, root=root, **every))
        for k, size in enumerate(sizes):
            place = {"rank": rank, "index": len(sizes) + k, "of": k}
            events.append(Event(kind="wait", bytes=size, **place, **every))
    return Trace(tuple(events), ((1.0, 0.0),) * ranks)


def predict_spec(buckets, forward_us, backward_us, networks, ranks):
    sizes, first_us, then_us = buckets[0], forward_us[0], backward_us[0]
    network = Network(networks[0].latency_us, networks[0].gbit_s)
    trace = made_up(ranks[0], ["all_reduce"] * len(sizes), sizes)

    def efficiency(shares):
        before_us = {k: then_us * share + (k == 0) * first_us for k, share in enumerate(shares)}
        replay = trace.replay(network, lambda event: before_us.get(event.index, 0))
        return (first_us + then_us) / max(replay.finish_us)

    at_once, in_turn = [1], [size / sum(sizes) for size in sizes]
    return [(efficiency(at_once), efficiency(in_turn))]


# %%
def predict(buckets, forward_us, backward_us, network, ranks):
    ### BEGIN SOLUTION
    def step_us(overlap):
        ready, done = forward_us + (0 if overlap else backward_us), 0
        for size in buckets:
            ready += backward_us * size / sum(buckets) if overlap else 0
            turn_us = network.latency_us + size / ranks * 8 / 1000 / network.gbit_s
            done = max(ready, done) + 2 * (ranks - 1) * turn_us
        return done

    return tuple((forward_us + backward_us) / step_us(overlap) for overlap in (False, True))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What must have happened before a bucket can begin? Two things, and the later one counts.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Go through the buckets with two clocks: when the gradients of this one are ready, and when the bucket before it was through. A ring has 2(n − 1) turns, each with the latency and with the <i>n</i>-th part of the bucket. Without
# overlap all are ready at the end of backward.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>done = max(ready, done) + 2 * (ranks - 1) * (network.latency_us + size / ranks * 8 / 1000 / network.gbit_s)</code>
# </details>


# %%
class Described(Network):
    """What a salesman tells of a network: nothing can be replayed on it."""

    def refuse_misfit(self, world_size):
        raise PermissionError("predict calculates, and replays nothing: latency_us and gbit_s do")


places = {  # ranks, latency in µs, Gbit/s, and how many buckets
    "1 rank, two buckets": (1, 10, 10, 2),
    "2 ranks, one bucket": (2, 10, 10, 1),
    "8 ranks, three buckets": (8, 30, 10, 3),
    "16 ranks, fast network": (16, 2, 100, 4),
    "64 ranks, three buckets": (64, 30, 10, 3),
    "64 ranks, fast network": (64, 2, 100, 2),
}


def predict_inputs(rank, world_size, case):
    ranks, latency_us, gbit_s, count = places[case]
    buckets = torch.randint(100_000, 2_000_000, (count,)).tolist()
    forward_us, backward_us = torch.randint(500, 5000, (2,)).tolist()
    return buckets, forward_us, backward_us, Described(latency_us, gbit_s), ranks


options = {"cases": list(places), "world_sizes": (1,), "rtol": 1e-4}
check(predict, spec=predict_spec, inputs=predict_inputs, **options)

# %% [markdown]
# ## 4 · Your report
#
# *●●●, 30 minutes.* Record your `train` of exercise 1 on two and on four ranks, with `launch(..., trace=True).trace`.

# %%
nothing = made_up(1, [], [])


def record(world_size):
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10)).double()
    options = {"world_size": world_size, "backend": "gloo", "trace": True}
    return launch(train, model, 0.05, 3, **options).trace


### BEGIN SOLUTION recordings = [nothing, nothing]  # put yours here, with the help of record
recordings = [record(2), record(4)]
### END SOLUTION

# %% [markdown]
# **Goal:** return `{"two": ..., "four": ..., "efficiency": ...}`. Of each recording, in a dict:
#
# * `calls`: how often rank 0 called what, such as `{"all_reduce": 15, "broadcast": 2}`, waits left out;
# * `sent_bytes`: the most that any rank sends, with a ring;
# * `finish_us`: when the slowest rank is done on `network`, if all compute as `computing` says;
# * `cost_us`: in that replay, how long rank 0's calls of each kind take from call to end, added up, such as `{"all_reduce": 9000.0, ...}`;
# * `bottleneck_us`: as `finish_us`, with a last rank that computes five times slower.
#
# `efficiency` is the prediction for 64 ranks on `network`, without overlap: a step computes 3,000 µs, and its gradients are one bucket, as large as the largest `all_reduce` of `four`. The specification is
# folded up, since it does what you are to do.

# %% jupyter={"source_hidden": true}
network = Network(latency_us=30, gbit_s=10)


def computing(event):
    """The microseconds that a rank computes before an event."""
    return 0 if event.kind == "wait" else 100


def report_spec(twos, fours):
    def measured(trace, ranks):
        kinds = [event.kind for event in trace.of_rank(0) if event.kind != "wait"]
        if trace.world_size != ranks or kinds.count("all_reduce") < 10:
            return f"the figures of a recording of train on {ranks} ranks"
        fair = trace.replay(network, computing)
        calls = [i for i in fair.intervals if i.what == "collective" and i.rank == 0]
        cost_us = dict.fromkeys(kinds, 0)
        for call in calls:
            cost_us[call.event.kind] += call.end_us - call.start_us
        slow = Network(30, 10, slow_ranks={ranks - 1: 5})
        return {
            "calls": {kind: kinds.count(kind) for kind in kinds},
            "sent_bytes": max(trace.traffic().sent_bytes),
            "finish_us": max(fair.finish_us),
            "cost_us": cost_us,
            "bottleneck_us": max(trace.replay(slow, computing).finish_us),
        }

    largest = max((e.bytes for e in fours[0] if e.kind == "all_reduce"), default=0)
    step = made_up(64, ["all_reduce"], [largest]).replay(network, [3000] * 64)
    efficiency = 3000 / max(step.finish_us)
    return [{"two": measured(twos[0], 2), "four": measured(fours[0], 4), "efficiency": efficiency}]


# %%
def report(two, four):
    ### BEGIN SOLUTION
    numbers = {}
    for name, trace in (("two", two), ("four", four)):
        kinds = [event.kind for event in trace.of_rank(0) if event.kind != "wait"]
        replay = trace.replay(network, computing)
        cost_us = dict.fromkeys(kinds, 0)
        for i in replay.intervals:
            if i.what == "collective" and i.rank == 0:
                cost_us[i.event.kind] += i.end_us - i.start_us
        slow = Network(30, 10, slow_ranks={trace.world_size - 1: 5})
        numbers[name] = {
            "calls": {kind: kinds.count(kind) for kind in kinds},
            "sent_bytes": max(trace.traffic().sent_bytes),
            "finish_us": max(replay.finish_us),
            "cost_us": cost_us,
            "bottleneck_us": max(trace.replay(slow, computing).finish_us),
        }
    largest = max(event.bytes for event in four if event.kind == "all_reduce")
    numbers["efficiency"] = predict([largest], 3000, 0, network, 64)[0]
    return numbers
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# All but one of the figures are a line each. Which method of a trace, and which field of a replay, has each of them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>trace.of_rank(0)</code> has the calls, <code>trace.traffic()</code> the bytes, <code>trace.replay(network, computing)</code> the times. Its <code>intervals</code> whose <code>what</code> is "collective" have rank, beginning,
# end and event. The last figure is exercise 3, with one bucket and nothing of the 3,000 µs left for overlap.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>Network(30, 10, slow_ranks={trace.world_size - 1: 5})</code>, and <code>cost_us[i.event.kind] += i.end_us - i.start_us</code> over the intervals of rank 0.
# </details>


# %%
def report_inputs(rank, world_size, case):
    if case == "your recordings":
        return tuple(recordings)
    traces = []
    for ranks in (2, 4):
        kinds = ["all_gather", "broadcast"][ranks // 4 :]
        sizes = [8 * int(torch.randint(20_000, 30_000, ())) for _ in kinds]
        kinds += ["all_reduce"] * int(torch.randint(10, 20, ()))
        sizes += [8 * int(torch.randint(1000, 10_000, ())) for _ in kinds[len(sizes) :]]
        events = list(made_up(ranks, kinds, sizes))
        again = {"kind": "all_reduce", "bytes": 4000, "group": (1, 2, 3), "blocking": True}
        again |= {"group_name": "without rank 0", "dtype": "float64", "start_s": 2.0, "end_s": 2.0}
        at_last = {"index": 2 * len(kinds), **again}
        events += [Event(rank=rank, **at_last) for rank in (1, 2, 3) if ranks == 4]
        traces.append(Trace(tuple(events), ((3.0, 0.0),) * ranks))
    return tuple(traces)


cases = ("your recordings", "Ada's recordings")
options = {"cases": cases, "world_sizes": (1,), "rtol": 1e-6}
check(report, spec=report_spec, inputs=report_inputs, **options)

# %% [markdown]
# Your figures, and your recording of four ranks on the virtual clock.

# %% tags=["raises-exception", "nbval-ignore-output", "row-D10"]
try:
    figures = report(*recordings)
    print(f"predicted efficiency on 64 ranks: {figures.pop('efficiency'):.0%}")
    for name, own in figures.items():
        print(f"{name} ranks: {own['sent_bytes']:,} bytes sent,", end=" ")
        print(f"{own['finish_us']:,.0f} µs, {own['bottleneck_us']:,.0f} µs with a slow rank")
        for kind, calls in own["calls"].items():
            print(f"  {kind:11}{calls:3} calls, {own['cost_us'][kind]:6,.0f} µs")
    text = "Where is the last rank waited for, and what do the others do meanwhile?"
    slow = Network(30, 10, slow_ranks={3: 5})
    plot_timeline(recordings[1].replay(slow, computing), text)
except NotImplementedError:
    print("No report yet.")

# %% [markdown]
# **Your conclusion**, in 200 words at most, is for a person to read. A good one says
#
# * which six faults you found in `broken`, and which measurement shows each;
# * which two kinds of calls cost most, and which of them would be gone in a longer training;
# * what one slow rank costs all, and why it is less, or more, than you expected;
# * what the prediction for 64 ranks assumes, what you would change to raise it, and what would refute it.

# %% [markdown] tags=["conclusion"]
# *Double-click here and write.*

# %% [markdown]
# ## 5 · Optional: a share of the optimiser
#
# *●●○, 20 minutes.* ZeRO-1, without looking back. **Goal:** an optimiser that takes the steps of torch's Adam, with a `weight_decay` of 0.1, on gradients averaged over the ranks, while `self.adam` keeps the state of this rank's share only, at most ⌈numbers /
# ranks⌉ of them. Whoever changes the learning rate of `self.adam`'s groups changes the steps that follow. A step calls `reduce_scatter_tensor` once and `all_gather_into_tensor` once. All ranks begin with equal parameters, whose number the ranks need not divide.


# %%
def make_model():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def slow_down(adam):
    """A schedule: from step to step, a smaller learning rate."""
    for group in adam.param_groups:
        group["lr"] *= 0.8


def adam_alone(inputs, targets, rate):
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=0.1)
    for some_inputs, some_targets in zip(inputs, targets):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(some_inputs), some_targets).backward()
        optimizer.step()
        slow_down(optimizer)
    return weights(model)


def sharded_spec(inputs, targets, rates):
    whole = adam_alone(torch.cat(inputs, dim=1), torch.cat(targets, dim=1), rates[0])
    return [(whole, "within its share")] * len(inputs)


# %%
class ShardedAdam:
    def __init__(self, parameters, lr):
        self.parameters = list(parameters)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        ### BEGIN SOLUTION # self.own, and self.adam for it
        self.own = self.flat(self.parameters).chunk(self.world_size)[self.rank].clone()
        self.adam = torch.optim.Adam([self.own], lr, weight_decay=0.1)
        ### END SOLUTION

    def flat(self, tensors):
        """All numbers in one tensor, which the ranks divide."""
        ### BEGIN SOLUTION
        one = parameters_to_vector(tensors).detach()
        return pad(one, (0, -len(one) % self.world_size))
        ### END SOLUTION

    def step(self):
        ### BEGIN SOLUTION
        whole = self.flat([parameter.grad for parameter in self.parameters])
        self.own.grad = torch.empty_like(self.own)
        dist.reduce_scatter_tensor(self.own.grad, whole / self.world_size)
        self.adam.step()
        dist.all_gather_into_tensor(whole, self.own)
        vector_to_parameters(whole, self.parameters)
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of a rank's 23 gradients does it need the sums of, and which weights does it know after its own Adam's step?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Put all in one flat tensor, with zeros at its end. A rank owns one of its chunks, as a tensor of its own that Adam steps. Reduce and scatter the gradients into its <code>grad</code>, step, gather all chunks, and put them back
# into the parameters.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>pad(one, (0, -len(one) % self.world_size))</code>; <code>dist.reduce_scatter_tensor(self.own.grad, whole / self.world_size)</code>; <code>dist.all_gather_into_tensor(whole, self.own)</code>.
# </details>


# %%
def sharding(kind):
    """Train with an optimiser of this kind; return the weights, and whether it kept its share."""

    @functools.wraps(kind, updated=())
    def trained(inputs, targets, rate):
        model = make_model()
        optimizer = kind(model.parameters(), lr=rate)
        for some_inputs, some_targets in zip(inputs, targets):
            model.zero_grad()
            nn.functional.mse_loss(model(some_inputs), some_targets).backward()
            optimizer.step()
            slow_down(optimizer.adam)
        states = optimizer.adam.state.values()
        kept = sum(tensor.numel() for state in states for tensor in state.values())
        share = -(-len(weights(model)) // dist.get_world_size())
        told = "within its share" if 0 < kept <= 2 * share + 1 else f"{kept} numbers"
        return weights(model), told

    return trained


rates = {"4 steps": 0.05, "4 long steps": 0.3}


def sharded_inputs(rank, world_size, case):
    drawn = torch.randn(4, 5, 6, dtype=torch.float64)
    return drawn[..., :4], drawn[..., 4:], rates[case]


def sharded_budget(world_size, case):
    share_bytes = 8 * -(-23 // world_size)
    return {"sent_bytes": 4 * 2 * (world_size - 1) * share_bytes}


options = {"cases": list(rates), "world_sizes": (1, 2, 3, 4), "budget": sharded_budget}
options |= {"require": ("reduce_scatter", "all_gather")}
check(sharding(ShardedAdam), spec=sharded_spec, inputs=sharded_inputs, **options)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
