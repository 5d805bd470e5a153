"""What a wrapper of chapter 05 does in real ranks, noted as it happens: for its pictures.

The gradients of a backward pass are replaced by marked numbers. So a message tells by its content
whose gradients it carries, and a gradient tells afterwards which ranks are in it. All notes lie in
memory that outlives the ranks, so a wrapper that raises or hangs can be drawn as well.
"""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from course_lessons.chapter_05 import TwoExperts, drawn, learning
from course_lessons.drawing import reason_of
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import launch as launch_quietly

NAMES = ("t.w", "t0.b", "t1.b", "e0.w", "e0.b", "e1.w", "e1.b")  # in the order of `learning`
ZEROS, OTHER, BUFFERS = len(NAMES), len(NAMES) + 1, len(NAMES) + 2  # no gradients in a message
FACTORS = 1.0, 4.0, 10.0  # of the ranks' marks: no share is that of others, nor a mean
GRADIENT, MESSAGE, WAIT, BACKWARD_RETURNS = range(4)
_BASE = 1e4  # from the marks of a parameter to those of the next
_MOST = 100  # notes of a rank in one part
_TALKS = "ALLREDUCE", "REDUCE", "BROADCAST", "ALLGATHER", "REDUCE_SCATTER"
_ALIKE = 1e-4  # relative: what single precision leaves alike
_LIMIT_S = 5.0  # on a quiet machine; who hangs is stopped then


class Note(NamedTuple):
    """What a rank did."""

    kind: int  # GRADIENT, MESSAGE, WAIT or BACKWARD_RETURNS
    which: tuple[int, ...]  # parameters; of a wait, the message's number, from 0


class Part(NamedTuple):
    """A forward and a backward of one rank, and the finish that follows."""

    notes: list[Note]
    factors: list[float]  # by parameter, what its gradient is a multiple of afterwards


class Diary:
    """Notes of all ranks, in shared memory."""

    def __init__(self, ranks: int, parts: int) -> None:
        self._counts = torch.zeros(ranks, parts, dtype=torch.int64).share_memory_()
        self._notes = torch.zeros(ranks, parts, _MOST, 2, dtype=torch.int64).share_memory_()
        nothing = torch.full((ranks, parts, len(NAMES)), math.nan, dtype=torch.float64)
        self._factors = nothing.share_memory_()
        self.part = 0  # that this rank is in

    def note(self, kind: int, which: Sequence[int]) -> None:
        """In a rank: add a note to the part that it is in."""
        row = dist.get_rank(), self.part
        number = int(self._counts[row])
        if number == _MOST:
            return
        packed = 0
        for each in reversed(which[:15]):  # a digit each, of which 0 is none
            packed = 16 * packed + each + 1
        self._notes[*row, number] = torch.tensor([kind, packed])
        self._counts[row] = number + 1

    def note_gradients(self, network: nn.Module) -> None:
        """In a rank: what each gradient is a multiple of, now."""
        for number, parameter in enumerate(learning(network)):
            factor = _factor(number, parameter)
            self._factors[dist.get_rank(), self.part, number] = factor

    def read(self, rank: int, part: int) -> Part:
        """In the kernel: what a rank did in a part."""
        notes = []
        for kind, packed in self._notes[rank, part, : self._counts[rank, part]].tolist():
            which = []
            while packed:
                packed, digit = divmod(packed, 16)
                which.append(digit - 1)
            notes.append(Note(kind, tuple(which)))
        return Part(notes, self._factors[rank, part].tolist())


def _marks(number: int, parameter: torch.Tensor) -> torch.Tensor:
    """Numbers of a parameter's shape that no other parameter has, each a little different."""
    places = torch.arange(parameter.numel(), dtype=torch.float64)
    return (_BASE ** (number + 1) * (1 + places / 1000)).view_as(parameter)


def _mark(network: nn.Module, factor: float, diary: Diary) -> None:
    """Let backward leave marks, times a factor, in place of gradients, and note each."""
    for number, parameter in enumerate(learning(network)):
        marks = factor * _marks(number, parameter)
        parameter.register_hook(lambda _, marks=marks: marks.clone())
        noted = functools.partial(diary.note, GRADIENT, [number])
        parameter.register_post_accumulate_grad_hook(lambda _, noted=noted: noted())


def _factor(number: int, parameter: torch.Tensor) -> float:
    """What a gradient is, as a multiple of its marks; inf if they are mixed up, nan if none."""
    if parameter.grad is None:
        return math.nan
    ratios = parameter.grad.double() / _marks(number, parameter)
    mean = float(ratios.mean())
    is_alike = float((ratios - mean).abs().max()) <= _ALIKE * max(abs(mean), _ALIKE)
    return mean if is_alike else math.inf


def _whose(value: float) -> int:
    """The parameter that a number of a message belongs to, or ZEROS or OTHER."""
    if value == 0:
        return ZEROS
    exponent = math.log(abs(value), _BASE) - math.log(2, _BASE)  # of what is 0.2 to 20 times marks
    number = round(exponent)
    is_mark = abs(exponent - number) < 0.26 and 1 <= number <= len(NAMES)
    return number - 1 if is_mark else OTHER


def _contents(tensor: torch.Tensor, buffers: Sequence[torch.Tensor]) -> list[int]:
    """Whose gradients a message carries, in their order, or which buffer."""
    for number, buffer in enumerate(buffers):
        if buffer.data_ptr() == tensor.data_ptr():
            return [BUFFERS + number]
    names = [_whose(value) for value in tensor.detach().double().flatten().tolist()]
    return list(dict.fromkeys(names))


@contextmanager
def _noting(diary: Diary, network: nn.Module) -> Iterator[None]:
    """Note messages, and waits for messages, while a network is trained."""
    buffers = list(network.buffers())
    begun: Counter[int] = Counter()  # messages, by part
    known = {}  # by the id of a work the message, and the work itself so that its id stays its own
    wait = dist.Work.wait

    def at_message(call: Any) -> None:
        if call.name.name in _TALKS:
            tensors = list(call.input_tensors)
            which = [each for tensor in tensors for each in _contents(tensor, buffers)]
            diary.note(MESSAGE, which)
            begun[diary.part] += 1

    def at_wait(work: dist.Work) -> Callable:
        if id(work) not in known:  # one that nobody has named: the latest
            known[id(work)] = work, begun[diary.part] - 1
        diary.note(WAIT, [known[id(work)][1]])
        return functools.partial(wait, work)

    def naming(function: Callable) -> Callable:
        def call(*arguments: Any, **options: Any) -> Any:
            work = function(*arguments, **options)
            if work is not None:
                known[id(work)] = work, begun[diary.part] - 1
            return work

        return call

    dist.group.WORLD.register_pre_hook(6, at_message)
    try:
        with (
            mock.patch.object(dist.Work, "wait", property(at_wait)),
            mock.patch.object(dist, "all_reduce", naming(dist.all_reduce)),
        ):
            yield
    finally:
        dist.group.WORLD.unregister_pre_hook(6)


def keep(
    kind: Callable,
    paths: Sequence[Sequence[int]],
    limit_bytes: int | None = None,
    talking: Sequence[bool] = (True,),
    calls_finish: bool = True,
) -> tuple[Diary, str]:
    """Let ranks go through parts of steps in a wrapper.

    Args:
        kind: The wrapper, called with a network and, if there is one, the limit of its buckets.
        paths: For each rank the experts that its inputs use.
        limit_bytes: Of a bucket.
        talking: For each part whether it is outside of `no_sync`; the next one begins a new step.
        calls_finish: Whether the loop calls it after each backward.

    Returns:
        The diary, and why it ends early: the first failure's headline, or nothing.
    """
    diary = Diary(len(paths), len(talking))

    def worker() -> None:
        rank = dist.get_rank()
        torch.manual_seed(rank)
        network = TwoExperts()
        _mark(network, FACTORS[rank], diary)
        model = kind(network, limit_bytes) if limit_bytes else kind(network)
        with _noting(diary, network):
            for part, talks in enumerate(talking):
                diary.part = part
                if part and talking[part - 1]:
                    network.zero_grad()
                with nullcontext() if talks else model.no_sync():
                    inputs, targets, path = drawn(paths[rank])
                    mse_loss(model(inputs, path), targets).backward()
                    diary.note(BACKWARD_RETURNS, [])
                    if calls_finish:
                        model.finish()
                diary.note_gradients(network)

    try:
        limit_s = _LIMIT_S * slowness()
        launch_quietly(worker, world_size=len(paths), backend="gloo", timeout=limit_s)
    except WorkerError as error:
        return diary, reason_of(error)
    return diary, ""
