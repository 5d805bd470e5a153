"""What chapter 05 works with: the frame, our finished form of each step, checks, replays, figures.

Checks train a network with two experts on real ranks. Its parameters that learn come in seven
tensors of 568 bytes in all; a step's recording is a string such as `ggAggAgggA`.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any
from unittest import mock

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from course_material.digits import digits
from course_utils import Network, launch, show
from course_utils.launcher import torch_private
from course_utils.network.simulation import Replay
from course_utils.network.trace import Trace

TRAINING = digits(train=True)


def my_device() -> str:
    """In a rank: its GPU, if `launch` gave it one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


# The frame, and what is trained in it.


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


def plain() -> nn.Sequential:
    """A deep network of 18 parameters, 8.6 MiB in all."""
    layers = [nn.Flatten(), nn.Linear(784, 512), nn.ReLU()]
    for _ in range(7):
        layers += [nn.Linear(512, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(512, 10))


def batch(step: int, size: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's own digits of a step: images of shape (size, 1, 28, 28), labels of (size,)."""
    first = (step * dist.get_world_size() + dist.get_rank()) * size
    places = torch.arange(first, first + size) % len(TRAINING)
    return TRAINING.data[places].to(my_device()), TRAINING.targets[places].to(my_device())


def fill(parameters, limit_bytes):
    buckets = [[]]
    for parameter in reversed(parameters):
        if sum(p.nbytes for p in buckets[-1]) >= limit_bytes:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets


def after_backward(callback: Callable[[], None]) -> None:
    """Let autograd call a function when the backward pass that is running is over.

    Only what backward itself calls, such as a hook, may ask for this. PyTorch's DDP does so in C++.

    Raises:
        RuntimeError: No backward pass is running, or this torch has no such queue.
    """
    engine = torch_private.find("torch.autograd:Variable._execution_engine")
    if engine is None:
        raise RuntimeError("this version of torch has no Variable._execution_engine")
    engine.queue_callback(callback)


# Our finished forms.


class Equal(Wrapper):
    def start(self):
        for tensor in [*self.module.parameters(), *self.module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)


class PerParameter(Equal):
    def finish(self):
        for parameter in self.learning:
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)


class Flat(Equal):
    def finish(self):
        flat = torch.cat([p.grad.flatten() for p in self.learning]) / dist.get_world_size()
        dist.all_reduce(flat)
        parts = flat.split([p.numel() for p in self.learning])
        for p, part in zip(self.learning, parts, strict=True):
            p.grad.copy_(part.view_as(p))


class Buckets(Equal):
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
            parts = flat.split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad.copy_(part.view_as(p))
        self.sent = []

    def finish(self):
        for bucket in self.buckets:
            self.send(bucket)
        self.collect()


class Overlapped(Buckets):
    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network, limit_bytes)
        self.arrived = set()
        for parameter in self.learning:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)

    def gradient_is_here(self, parameter):
        self.arrived.add(parameter)
        for bucket in self.buckets:
            if any(parameter is p for p in bucket) and self.arrived.issuperset(bucket):
                self.send(bucket)

    def finish(self):
        self.collect()
        self.arrived = set()


class InOrder(Overlapped):
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


class Silent(InOrder):
    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network, limit_bytes)
        self.syncs_gradients = True  # PyTorch: require_backward_grad_sync
        self.shares_buffers = True  # in the next forward; PyTorch: require_forward_param_sync

    def forward(self, *inputs):
        if self.shares_buffers:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)
        self.shares_buffers = self.syncs_gradients
        return self.module(*inputs)

    def gradient_is_here(self, parameter):
        if self.syncs_gradients:
            super().gradient_is_here(parameter)

    def finish(self):
        if self.syncs_gradients:
            super().finish()

    @contextmanager
    def no_sync(self):
        self.syncs_gradients = False
        try:
            yield
        finally:
            self.syncs_gradients = True


class Unaided(Silent):
    def gradient_is_here(self, parameter):
        if self.syncs_gradients and not self.arrived:  # the first gradient of this backward
            after_backward(self.finish)
        super().gradient_is_here(parameter)


# What the checks train, and what they note.


class TwoExperts(nn.Module):
    """Buffers, a frozen layer, two layers tied by one weight, and experts on paths of choice."""

    def __init__(self) -> None:
        super().__init__()
        double = {"dtype": torch.float64}
        self.register_buffer("scale", 0.5 + torch.rand(4, **double))
        self.register_buffer("shift", torch.randn(4, **double), persistent=False)
        self.frozen = nn.Linear(4, 5, **double).requires_grad_(False)
        self.tied = nn.ModuleList([nn.Linear(5, 5, **double) for _ in range(2)])
        self.tied[1].weight = self.tied[0].weight
        self.experts = nn.ModuleList([nn.Linear(5, 3, **double) for _ in range(2)])

    def forward(self, inputs: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        hidden = self.frozen(self.scale * inputs - self.shift)
        for layer in self.tied:
            hidden = torch.tanh(layer(hidden))
        return sum((1 + number) * self.experts[number](hidden) for number in path)


class Drifting(TwoExperts):
    """Its buffers change in every forward, on each rank in its own way."""

    def forward(self, inputs: torch.Tensor, path: Sequence[int]) -> torch.Tensor:
        outputs = super().forward(inputs, path)
        self.shift.lerp_(inputs.mean(dim=0), 0.2)
        self.scale.lerp_(inputs.std(dim=0), 0.2)
        return outputs


class Batches:
    """A rank's batches by step, which a table of a check shows in two words."""

    def __init__(self, steps: list) -> None:
        self.steps = steps

    def __iter__(self) -> Iterator:
        return iter(self.steps)

    def __repr__(self) -> str:
        return f"{len(self.steps)} steps"


STEPS, PARTS = 3, 3  # of a training; of a step, where gradients accumulate
ALIKE, OTHER_ORDER = "all ranks alike", "odd ranks in another order"
RESTING = "odd ranks rest an expert"
TURNS, SWAPPED = "experts take turns", "all ranks in another order"
ZEROS = "zeros before backward"
LATE = "the other ranks begin when rank 0's backward is over"
PATHS = {
    ALIKE: [(0, 1), (0, 1)],
    OTHER_ORDER: [(0, 1), (1, 0)],
    RESTING: [(0, 1), (1,), (0, 1), (0,)],
    TURNS: [(0,), (1,), (1,), (0,)],
    SWAPPED: [(1, 0), (1, 0)],
}
LEARNING_BYTES = 568


def learning(network: nn.Module) -> list[nn.Parameter]:
    """Its parameters that are not frozen."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def weights(network: nn.Module) -> torch.Tensor:
    """All that learns, in one dimension."""
    return nn.utils.parameters_to_vector(learning(network)).detach()


def gradients(network: nn.Module) -> torch.Tensor:
    """All gradients in one dimension, with zeros for those that are None."""
    parts = []
    for parameter in learning(network):
        gradient = parameter.grad
        if gradient is None:
            gradient = torch.zeros_like(parameter)
        parts.append(gradient.flatten())
    return torch.cat(parts)


def same_network() -> TwoExperts:
    """The same on each rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return TwoExperts()


def drawn(path: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, Sequence[int]]:
    """Inputs of shape (6, 4), targets of shape (6, 3), and the path."""
    numbers = torch.randn(6, 7, dtype=torch.float64)
    return numbers[:, :4], numbers[:, 4:], path


def _adam(network: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(learning(network), lr=0.05, weight_decay=0.1)


@contextmanager
def noting(note: Callable, names: Sequence[str] = ("ALLREDUCE", "BROADCAST")) -> Iterator[None]:
    """Call `note` with bytes and name of every such collective, when it begins."""

    def before(call: Any) -> None:
        if call.name.name in names:
            note(sum(tensor.nbytes for tensor in call.input_tensors), call.name.name)

    dist.group.WORLD.register_pre_hook(5, before)
    try:
        yield
    finally:
        dist.group.WORLD.unregister_pre_hook(5)


@contextmanager
def _noting_waits(note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` whenever somebody waits for what was begun; "W" is for the same once more."""
    wait = dist.Work.wait
    known = {}

    def noted(work: dist.Work) -> Callable:
        note("W" if id(work) in known else "w")
        known[id(work)] = work  # so that no other work gets its id
        return functools.partial(wait, work)

    with mock.patch.object(dist.Work, "wait", property(noted)):
        yield


# Part 1.


def _tensors(network: nn.Module) -> dict[str, torch.Tensor]:
    return dict(network.named_parameters()) | dict(network.named_buffers())


def _names_that_learn(parameters: dict[str, nn.Parameter]) -> list[str]:
    return sorted(name for name, parameter in parameters.items() if parameter.requires_grad)


def _start_spec(networks: list[nn.Module]) -> list[dict]:
    first = networks[0]
    names = _names_that_learn(dict(first.named_parameters()))
    return [{"learns": names, "trains": True, **_tensors(first)}] * len(networks)


def starting(kind: type) -> Callable:
    """Wrap; return the parameters that an optimiser would hold, and the buffers."""

    @functools.wraps(kind, updated=())
    def started(network: nn.Module) -> dict:
        parameters = dict(network.named_parameters())
        kind(network)
        held = {"learns": _names_that_learn(parameters), "trains": network.training}
        return held | parameters | dict(network.named_buffers())

    return started


def _start_inputs(rank: int, world_size: int, case: str) -> TwoExperts:
    return TwoExperts()


def _start_budget(world_size: int, case: str) -> dict[str, float]:
    """One broadcast of each tensor, around a ring, in as many pieces as there are ranks."""
    sizes = [tensor.nbytes for tensor in _tensors(TwoExperts()).values()]
    return {"sent_messages": world_size * len(sizes), "sent_bytes": sum(sizes)}


start_judged = {
    "spec": _start_spec, "inputs": _start_inputs, "budget": _start_budget,
    "cases": ("each rank seeded differently",),
}  # fmt: skip


# Parts 2 to 6.


def _comes_late(network: nn.Module) -> Callable[[], None]:
    """Let this rank begin each step when rank 0's backward is over; returns what rank 0 does."""
    token = torch.zeros(1)

    def wait_for_rank_0(network: nn.Module, inputs: tuple) -> None:
        dist.recv(token, src=0)

    def let_others_begin() -> None:
        if dist.get_rank() == 0:
            for rank in range(1, dist.get_world_size()):
                dist.send(token, dst=rank)

    if dist.get_rank() > 0:
        network.register_forward_pre_hook(wait_for_rank_0)
    return let_others_begin


def trained(kind: type) -> Callable:
    """Train; return first gradients, weights and, where there are buckets, what happened when."""

    @functools.wraps(kind, updated=())
    def run(network: nn.Module, limit_bytes: int | None, batches: Batches, case: str) -> dict:
        notes, steps, after_steps = [], [], []
        for parameter in learning(network):
            parameter.register_post_accumulate_grad_hook(lambda _: notes.append("g"))
        model = kind(network, limit_bytes) if limit_bytes else kind(network)
        let_others_begin = _comes_late(network) if case == LATE else list
        optimizer = _adam(network)
        calls = noting(lambda *_: notes.append("A"), names=("ALLREDUCE",))
        with calls, _noting_waits(notes.append):
            for inputs, targets, path in batches:
                notes.clear()
                optimizer.zero_grad(set_to_none=ZEROS not in case)
                mse_loss(model(inputs, path), targets).backward()
                let_others_begin()
                model.finish()
                after_steps.append(gradients(network))
                optimizer.step()
                steps.append("".join(notes).strip("w"))
        results = {"first gradients": after_steps[0], "weights": weights(network)}
        if limit_bytes:
            results["steps"] = steps
        return results

    return run


def _train_alone(network: nn.Module, batches: list[Batches]) -> dict[str, torch.Tensor]:
    """The same training in one process."""
    optimizer = _adam(network)
    after_steps = []
    for step in zip(*batches, strict=True):  # the batches of all ranks
        losses = [mse_loss(network(inputs, path), targets) for inputs, targets, path in step]
        optimizer.zero_grad()
        (sum(losses) / len(losses)).backward()
        after_steps.append(gradients(network))
        optimizer.step()
    return {"first gradients": after_steps[0], "weights": weights(network)}


def _in_letters(network: nn.Module, limit_bytes: int, at_once: bool, step: tuple) -> str:
    """What the recording of a rank's step should look like."""
    inputs, targets, path = step
    arrived = []
    letters = ""
    waiting = fill(learning(network), limit_bytes)
    hooks = []
    for parameter in learning(network):
        hooks.append(parameter.register_post_accumulate_grad_hook(arrived.append))
    mse_loss(network(inputs, path), targets).backward()
    for number in range(len(arrived)):
        letters += "g"
        while at_once and waiting and set(waiting[0]) <= set(arrived[: number + 1]):
            letters += "A"
            waiting = waiting[1:]
    for hook in hooks:
        hook.remove()
    return letters + "A" * len(waiting)


def _judged(cases: dict[str, tuple], at_once: bool = False) -> dict[str, Any]:
    """Options of a check: cases give a bucket's limit, the ranks' paths, and how many calls."""

    def spec(networks: list, limits: list, batches: list, names: list) -> list[dict]:
        wanted = []
        for network, steps in zip(networks, batches, strict=True):
            letters = {}
            if limits[0]:
                texts = [_in_letters(network, limits[0], at_once, step) for step in steps]
                letters = {"steps": texts}
            wanted.append(letters)
        after = _train_alone(networks[0], batches)
        return [after | letters for letters in wanted]

    def inputs(rank: int, world_size: int, case: str) -> tuple:
        limit_bytes, name = cases[case][:2]
        choices = PATHS[name]
        steps = [drawn(choices[(rank % 2 + 2 * step) % len(choices)]) for step in range(STEPS)]
        return same_network(), limit_bytes, Batches(steps), case

    def budget(world_size: int, case: str) -> dict[str, float]:
        """The start; a ring for each call of a step; the signs by which others begin late."""
        limit_bytes, _, *known = cases[case]
        calls = len(fill(learning(TwoExperts()), limit_bytes)) if limit_bytes else known[0]
        turns = 2 * (world_size - 1) * STEPS
        signs = 0
        if case == LATE:
            signs = STEPS * (world_size - 1)
        start = _start_budget(world_size, case)
        return {
            "sent_messages": start["sent_messages"] + turns * calls + signs,
            "sent_bytes": start["sent_bytes"] + turns * LEARNING_BYTES / world_size + 4 * signs,
        }

    return {
        "cases": list(cases), "rtol": 1e-9, "world_sizes": (2, 3), "timeout": 5,
        "spec": spec, "inputs": inputs, "budget": budget,
    }  # fmt: skip


average_judged = _judged({ALIKE: (None, ALIKE, 7)})
flat_judged = _judged({ALIKE: (None, ALIKE, 1)})
buckets_judged = _judged(
    {
        "buckets of 2, 2 and 3 parameters": (100, ALIKE),
        "buckets of 3, 2 and 2 parameters": (150, ALIKE),
        "one bucket for all": (1000, ALIKE),
    }
)
overlap_judged = _judged(
    {
        f"buckets of 2, 2 and 3, {ZEROS}": (100, ALIKE),
        f"buckets of 3, 2 and 2, {SWAPPED}": (150, SWAPPED),
        LATE: (100, ALIKE),
    },
    at_once=True,
)
order_judged = _judged(
    {
        f"{ALIKE}, {ZEROS}, buckets of 2, 2, 3": (100, ALIKE),
        f"{OTHER_ORDER}, buckets of 2, 2, 3": (100, OTHER_ORDER),
        f"{RESTING}, buckets of 2, 2, 3": (100, RESTING),
        f"{TURNS}, buckets of 3, 2, 2": (150, TURNS),
        LATE: (150, ALIKE),
    },
    at_once=True,
)


# Parts 7 and 8.


def _silence_spec(networks: list[nn.Module], batches: list[Batches], stopped: list) -> list[dict]:
    network, n = networks[0], len(networks)
    optimizer = _adam(network)
    shared = {id(parameter): parameter for parameter in network.parameters()}
    replicas = [copy.deepcopy(network, dict(shared)) for _ in networks]  # with buffers apart
    for step in zip(*batches, strict=True):
        optimizer.zero_grad()
        for replica in replicas:
            for buffer, first in zip(replica.buffers(), replicas[0].buffers(), strict=True):
                buffer.copy_(first)
        parts = list(zip(*step, strict=True))
        for part in parts:
            for replica, (inputs, targets, path) in zip(replicas, part, strict=True):
                (mse_loss(replica(inputs, path), targets) / (n * len(parts))).backward()
        optimizer.step()
    words = "buffers and gradients"
    if len(parts) > 1:
        words = ", ".join(["buffers", *["silent"] * (len(parts) - 2), "gradients"])
    return [{"steps": [words] * STEPS, "weights": weights(network)}] * n


def accumulating(kind: type, calls_finish: bool = True) -> Callable:
    """Train in parts; return also which of them talk. Something may be raised before the last.

    Without `calls_finish`, backward itself has to leave gradients that are averages.
    """
    words = {"BROADCAST": "buffers", "ALLREDUCE": "gradients"}

    @functools.wraps(kind, updated=())
    def accumulated(network: nn.Module, batches: Batches, stopped: type | None) -> dict:
        model = kind(network, 100)
        optimizer = _adam(network)
        steps = []
        for parts in batches:
            optimizer.zero_grad()
            texts = []
            for number, (inputs, targets, path) in enumerate(parts, 1):
                is_last = number == len(parts)
                if stopped and is_last:
                    with suppress(stopped):
                        with model.no_sync():
                            raise stopped
                        texts.append("swallows")
                names = set()
                calls = noting(lambda size, name, names=names: names.add(name))
                with calls, nullcontext() if is_last else model.no_sync():
                    (mse_loss(model(inputs, path), targets) / len(parts)).backward()
                    if calls_finish:
                        model.finish()
                sent = [words[name] for name in words if name in names]
                texts.append(" and ".join(sent) or "silent")
            steps.append(", ".join(texts))
            optimizer.step()
        return {"steps": steps, "weights": weights(network)}

    return accumulated


def unaided(kind: type) -> Callable:
    """Train in parts as `accumulating` does, in a loop that never calls `finish`."""
    return accumulating(kind, calls_finish=False)


SILENCE_CASES = {
    "all parts alike": [(0, 1)] * PARTS,
    "a step in one part": [(0, 1)],
    "the last part rests an expert": [(0, 1), (1, 0), (0,)],
    "somebody presses stop in no_sync": [(0, 1)] * PARTS,
    "an error is raised in no_sync": [(0, 1)] * PARTS,
}


def _silence_inputs(rank: int, world_size: int, case: str) -> tuple:
    steps = []
    for _ in range(STEPS):
        steps.append([drawn(path) for path in SILENCE_CASES[case]])
    raised = None
    if "stop" in case:
        raised = KeyboardInterrupt
    elif "error" in case:
        raised = ValueError
    return Drifting(), Batches(steps), raised


def _silence_budget(world_size: int, case: str) -> dict[str, float]:
    """The start, three buckets a step, and in each step one broadcast of each buffer."""
    start = _start_budget(world_size, case)
    turns = 2 * (world_size - 1)
    messages = STEPS * (3 * turns + 2 * world_size)
    step_bytes = turns * LEARNING_BYTES / world_size + 2 * 32
    return {
        "sent_messages": start["sent_messages"] + messages,
        "sent_bytes": start["sent_bytes"] + STEPS * step_bytes,
    }


silence_judged = {
    "spec": _silence_spec, "inputs": _silence_inputs, "budget": _silence_budget,
    "cases": list(SILENCE_CASES), "rtol": 1e-9, "world_sizes": (2, 3), "timeout": 5,
}  # fmt: skip


# One step of eight ranks, replayed on ordinary Ethernet.

network = Network(latency_us=30, gbit_s=10)
BACKWARD_US = 1 / 1000  # per byte of gradient
RATES = {"copies at 5 GB/s": 0.2 / 1000, "free copies": 0.0}  # µs per byte
COLORS = {"backward": "#009E73", "copies": "#E69F00", "its port sends": "#0072B2"}
HATCHES = {"backward": None, "copies": "////", "its port sends": None}
_replays: dict[tuple[str, str], tuple[Replay, dict]] = {}  # of the forms so far, by rate and name


def one_step(kind: Callable, weights: Mapping[str, torch.Tensor]) -> list[int]:
    """Compute gradients in a form; return how many bytes of them were there at each call."""
    with torch.device("meta"):  # without memory, since the weights have theirs
        module = plain()
    module.load_state_dict(weights, assign=True)
    arrived_bytes, at_call = [0], []
    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: arrived_bytes.append(p.nbytes))
    model = kind(module)
    with noting(lambda *_: at_call.append(sum(arrived_bytes))):
        images, labels = batch(0)
        cross_entropy(model(images), labels).backward()
        model.finish()
    dist.barrier()
    return at_call


def computing(run: Sequence, trace: Trace, copy_us: float) -> dict[tuple[int, int], tuple]:
    """Before each event: µs of copies out of a buffer, of backward, of copies into the next."""
    shares = {}
    for rank, at_call in enumerate(run):
        calls = iter(at_call)
        before, last = 0, None
        for event in trace.of_rank(rank):
            arrived = last and (last.kind == "wait" or last.blocking) and last.kind != "barrier"
            out_us = copy_us * last.bytes if arrived else 0
            into_us, backward_us = 0, 0
            if event.kind == "all_reduce":
                now = next(calls)
                backward_us = BACKWARD_US * (now - before)
                before = now
                into_us = copy_us * event.bytes
            shares[rank, event.index] = out_us, backward_us, into_us
            last = event
    return shares


def step_ms(replay: Replay) -> float:
    """When the last rank comes to the barrier at the step's end."""
    starts_us = []
    for interval in replay.intervals:
        if interval.what == "collective" and interval.event.kind == "barrier":
            starts_us.append(interval.start_us)
    return max(starts_us) / 1000


def all_steps(*kinds: Callable) -> list[list[int]]:
    """`one_step` of each form, with the same weights, which no form changes."""
    weights = plain().to(my_device()).state_dict()
    return [one_step(kind, weights) for kind in kinds]


@functools.cache  # no form is recorded twice
def recorded_all(*kinds: Callable) -> list[tuple]:
    """A step of eight ranks in each form, in one launch, without the broadcasts at its start."""
    ranks = launch(all_steps, *kinds, world_size=8, trace=True)
    kept = [[] for _ in kinds]
    for rank in range(8):
        form = 0
        for event in ranks.trace.of_rank(rank):
            if event.kind != "broadcast":
                kept[form].append(event)
            form += event.kind == "barrier"  # which ends a step
    traces = [replace(ranks.trace, events=tuple(events)) for events in kept]
    runs = zip(*ranks, strict=True)
    return list(zip(runs, traces, strict=True))


def recorded(kind: Callable) -> tuple:
    """What `one_step` returned on each rank, and the trace."""
    return recorded_all(kind)[0]


def replayed(run: Sequence, trace: Trace, copy_us: float, on: Network = network) -> tuple:
    """The replay of a step on a network, and what ranks compute before each event."""
    shares = computing(run, trace, copy_us)
    return trace.replay(on, lambda event: sum(shares[event.rank, event.index])), shares


def clock(kind: type, copies: bool = True) -> list[float]:
    """Print what a step of a form takes; returns its ms at both rates of copying."""
    name = kind.__name__
    run, trace = recorded(kind)
    took_ms, texts = [], []
    for rate, copy_us in RATES.items():
        replay, shares = replayed(run, trace, copy_us * copies)
        _replays[rate, name] = replay, shares
        took_ms.append(step_ms(replay))
        texts.append(f"{rate} {took_ms[-1]:.1f} ms")
    calls = sum(event.kind == "all_reduce" for event in trace.of_rank(0))
    print(f"{name:13}{calls:2} calls: {', '.join(texts)}")
    return took_ms


def draw(names: Sequence[str], text: str, rate: str = "copies at 5 GB/s") -> None:
    """Rank 0 of some forms: what it computes above, what its port sends below.

    Draws nothing and says what to run first, if a form has not been clocked.
    """
    missing = [name for name in names if (rate, name) not in _replays]
    if missing:
        calls = " and ".join(f"clock({name})" for name in missing)
        print(f"No picture yet: first run the cells above that call {calls}.")
        return
    figure, axes = plt.subplots(figsize=(9, 0.75 * len(names) + 1), layout="constrained")

    def bar(name: str, start_us: float, took_us: float, bottom: float, height: float) -> None:
        style = {"color": COLORS[name], "hatch": HATCHES[name], "edgecolor": "white"}
        left_ms = start_us / 1000
        axes.barh(bottom, took_us / 1000, height, left_ms, align="edge", linewidth=0, **style)

    for row, name in enumerate(names):
        replay, shares = _replays[rate, name]
        end_ms = step_ms(replay)
        for interval in replay.intervals:
            start_us = interval.start_us
            if interval.rank or start_us / 1000 >= end_ms:
                continue
            if interval.what == "send":
                bar("its port sends", start_us, interval.end_us - start_us, row, 0.3)
            elif interval.what == "compute":
                parts_us = shares[0, interval.event.index]
                for part, us in zip(("copies", "backward", "copies"), parts_us, strict=True):
                    bar(part, start_us, us, row - 0.36, 0.36)
                    start_us += us
        axes.plot([end_ms] * 2, [row - 0.4, row + 0.34], color="black", linewidth=1.5)
        axes.text(end_ms + 0.2, row, f"{end_ms:.1f} ms", va="center")
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -0.6))
    axes.set(xlabel="virtual time of one step, rank 0 of 8 (ms)", xlim=(0, 33))
    for name, color in COLORS.items():
        axes.bar(0, 0, color=color, hatch=HATCHES[name], edgecolor="white", label=name)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False)
    axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, text)
