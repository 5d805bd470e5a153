"""The calls that ranks of a very large world would make, without that world.

torch has a process group that is called `fake`: it says that every call is done, and sends nothing.
A rank that has joined it may be told that it is rank 700 of 1,024. It then makes the calls that
this rank would make, and the recorder of every launch sees them.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_utils.launcher import torch_private
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.language import N_, _, sentences
from course_utils.launcher.launch import Results
from course_utils.launcher.launch import launch as launch_workers
from course_utils.launcher.torch_private import C10D
from course_utils.network import alike
from course_utils.network.network import Network
from course_utils.network.schedule import ReplayError
from course_utils.network.simulation import Replay
from course_utils.network.trace import Trace
from course_utils.notebook import refuse_arguments, refuse_options, refuse_what_is_no_function
from course_utils.record.event import COLLECTIVES, Event
from course_utils.record.record import Record

PRETENDED = N_(
    "A dry run pretends: nothing is sent, so values that a rank receives are wrong, and no rank "
    "waits for another. What it shows is which calls are made, in which order, of how many bytes."
)
_SAME_TIME = 32  # processes at a time
_RANKS_WITH_INTERVALS = 64  # a replay of more has too many to draw
_MOST_MESSAGES = 1_000_000  # a ring's all_reduce sends each twice: 22 s and 2.5 GB
_HOOK = 0xD47  # the number under which our hooks are registered with a group
_FAKE = "torch.testing._internal.distributed.fake_pg:FakeStore"
_WAIT = "torch._C._distributed_c10d:FakeWork.wait"
# What two runs of a rank must have in common, whatever it receives.
_COMPARED = ("kind", "bytes", "dtype", "shape", "op", "root", "peer", "tag", "group", "line")


@dataclass(frozen=True, repr=False)
class DryRun:
    """What ranks would have called.

    Attributes:
        world_size: How many ranks are pretended.
        ranks: Those that were run, in order.
        events: Their events, rank by rank.
        values: By rank, what the function returned, computed from values that are wrong.
    """

    world_size: int
    ranks: tuple[int, ...]
    events: tuple[Event, ...]
    values: dict[int, Any]

    def __repr__(self) -> str:
        run = f"{len(self.ranks)} of {self.world_size} ranks"
        return f"DryRun({run}, {len(self.events)} events)\n{_(PRETENDED)}"

    def of_rank(self, rank: int) -> list[Event]:
        """One rank's events, in the order in which it issued them.

        Raises:
            ValueError: That rank was not run.
        """
        if rank not in self.ranks:
            raise ValueError(
                _("rank {rank} was not run: dry_run(..., ranks=[{rank}]) runs it", rank=rank)
            )
        return [event for event in self.events if event.rank == rank]

    def replay(self, network: Network) -> Replay:
        """What these calls would take on a modelled network, on a virtual clock.

        Computing takes no time. Where not all ranks were run, those that were have to make the same
        calls in groups of all ranks, and the others are taken to do so as well. A ring of more than
        64 ranks that stay in step is priced by formula, and has no intervals.

        Raises:
            ReplayError: The calls don't fit together, differ between the ranks that were run, or
                are too many messages.
            ValueError: The network doesn't fit the world.
        """
        network.refuse_misfit(self.world_size)
        if self.world_size > _RANKS_WITH_INTERVALS and self._stay_in_step(network):
            us = alike.finish_us(self._of_first(), network, self.world_size)
            return Replay((us,) * self.world_size, (), network)
        self._refuse_too_many_messages(network)
        ended_s = (0.0,) * self.world_size
        trace = Trace(self._events_of_all(), ended_s)
        return trace.replay(network)

    def _of_first(self) -> list[Event]:
        """The events of the first rank that was run."""
        return self.of_rank(self.ranks[0])

    def _stay_in_step(self, network: Network) -> bool:
        if self._difference() is not None:
            return False
        return alike.stays_in_step(self._of_first(), network, self.world_size)

    def _events_of_all(self) -> tuple[Event, ...]:
        """The events of all ranks; those that were not run call what the first one calls."""
        if len(self.ranks) == self.world_size:
            return self.events
        problem = self._difference() or self._what_not_all_share()
        if problem:
            raise ReplayError(
                _("{problem}. Run all ranks: dry_run(..., ranks='all').", problem=problem)
            )
        of_first = self._of_first()
        events = []
        for rank in range(self.world_size):
            for event in of_first:
                events.append(replace(event, rank=rank))
        return tuple(events)

    def _difference(self) -> str | None:
        """Where ranks that were run make different calls; None if they all make the same."""
        first = self._of_first()
        for rank in self.ranks[1:]:
            other = self.of_rank(rank)
            index = _first_difference(first, other)
            if index is not None:
                return _(
                    "call {index} differs: {first}; {other}",
                    index=index,
                    first=_call(first, index),
                    other=_call(other, index),
                )
        return None

    def _what_not_all_share(self) -> str | None:
        """The first call that not all ranks take part in."""
        for event in self._of_first():
            if event.kind == "wait":
                continue
            is_shared = event.kind in COLLECTIVES and len(event.group) == self.world_size
            if not is_shared:
                return _("{event}: not all ranks take part in that", event=repr(event))
        return None

    def _refuse_too_many_messages(self, network: Network) -> None:
        messages = 0
        for event in self.of_rank(self.ranks[0]):
            if event.kind in COLLECTIVES and network.algorithm != "tree":
                messages += len(event.group) ** 2
        if messages > _MOST_MESSAGES:
            raise ReplayError(
                _(
                    "{world_size} ranks would send more than {messages:,} messages, which takes "
                    "too long one by one. Use Network(..., algorithm='tree') or fewer ranks.",
                    world_size=self.world_size,
                    messages=messages,
                )
            )


def dry_run(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int,
    ranks: Sequence[int] | str | None = None,
    nodes: int = 1,
    timeout: float = 60.0,
) -> DryRun:
    """Run `fn(*args)` as ranks of a world that isn't there, and record their calls.

    Each rank is a forked process that has joined torch's `fake` group of `world_size` ranks. It
    sends nothing and receives nothing. So a function whose calls depend on what it receives can't
    be shown: every rank is run twice, with different values wherever it would receive any, and has
    to make the same calls both times. What is changed is floating-point numbers: whole numbers and
    objects that ranks exchange are taken to be what this rank itself hands in.

    Args:
        fn: As for `launch`.
        *args: As for `launch`.
        world_size: How many ranks to pretend.
        ranks: Which of them to run: by default all of up to 8, or of more the first two, the middle
            one and the last; "all"; or a list.
        nodes: Lays the ranks out as so many equal nodes.
        timeout: Seconds until the ranks must be done.

    Returns:
        The calls of the ranks that were run; its `replay` says what they would cost.

    Raises:
        ValueError, TypeError: For what cannot work; nothing was started.
        RuntimeError: What the function calls depends on what it receives.
        WorkerError, WorkerTimeout: As for `launch`.
    """
    refuse_what_is_no_function(fn)
    refuse_options(world_size, nodes, timeout, live=False, trace=True)
    refuse_arguments(fn, args)
    world_size, nodes = int(world_size), int(nodes)
    chosen = _chosen(world_size, ranks)
    events: list[Event] = []
    values: dict[int, Any] = {}
    for first in range(0, len(chosen), _SAME_TIME):
        together = chosen[first : first + _SAME_TIME]
        world = _World(fn, args, world_size, nodes, tuple(together))
        results, recorded = world.run(timeout, values_change=False)
        _results, recorded_again = world.run(timeout, values_change=True, expected=recorded)
        _refuse_what_depends_on_values(recorded, recorded_again)
        for rank, result in zip(together, results, strict=True):
            values[rank] = result
            events += recorded[rank]
    return DryRun(world_size, tuple(chosen), tuple(events), values)


def _chosen(world_size: int, ranks: Sequence[int] | str | None) -> list[int]:
    """The ranks to run, in order; raises ValueError for what cannot be."""
    if torch_private.find(_FAKE) is None:
        raise RuntimeError(_("this torch has no fake process group, so it can't run a dry run"))
    if ranks == "all" or (ranks is None and world_size <= 8):
        return list(range(world_size))
    if ranks is None:
        return [0, 1, world_size // 2, world_size - 1]
    chosen = sorted(set(ranks))
    for rank in chosen:
        if rank not in range(world_size):
            raise ValueError(
                _(
                    "there is no rank {rank!r} in a world of {world_size}",
                    rank=rank,
                    world_size=world_size,
                )
            )
    if not chosen:
        raise ValueError(_("ranks is empty: name at least one, or leave it out"))
    return chosen


@dataclass(frozen=True)
class _World:
    """Some ranks of a pretended world, which are run at the same time."""

    fn: Callable[..., Any]
    args: tuple
    world_size: int
    nodes: int
    ranks: tuple[int, ...]

    def run(
        self,
        timeout: float,
        values_change: bool,
        expected: dict[int, list[Event]] | None = None,
    ) -> tuple[Results, dict[int, list[Event]]]:
        """Run the ranks; returns what they returned, and by rank their events.

        Args:
            timeout: Seconds.
            values_change: Whether what a rank would receive is changed.
            expected: What the ranks called when it was not changed.

        Raises:
            RuntimeError: They failed, as they did not when values were not changed.
        """
        record = Record(trace=True)
        try:
            results = launch_workers(
                self._pretend,
                values_change,
                world_size=len(self.ranks),
                backend=None,
                timeout=timeout,
                listeners=[record],
            )
        except WorkerError as error:
            if expected is None:
                raise
            headline = str(error).partition("\n")[0]
            raise RuntimeError(_depends_on_values(headline)) from error
        by_rank: dict[int, list[Event]] = {rank: [] for rank in self.ranks}
        for event in record.events():
            rank = self.ranks[event.rank]
            by_rank[rank].append(replace(event, rank=rank))
        return results, by_rank

    def _pretend(self, values_change: bool) -> Any:
        """In a process of its own: join the fake group as one rank, and run the function."""
        rank = self.ranks[int(os.environ["RANK"])]
        ranks_per_node = self.world_size // self.nodes
        os.environ.update(
            RANK=str(rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_RANK=str(rank % ranks_per_node),
            LOCAL_WORLD_SIZE=str(ranks_per_node),
            GROUP_RANK=str(rank // ranks_per_node),
        )
        _Pretence(values_change).listen()
        make_store = torch_private.find(_FAKE)
        dist.init_process_group("fake", store=make_store(), rank=rank, world_size=self.world_size)
        with self._named(rank):
            return self.fn(*self.args)

    @contextlib.contextmanager
    def _named(self, rank: int) -> Iterator[None]:
        """Say of an exception which rank of the pretended world it was."""
        try:
            yield
        except Exception as error:
            whose = _(
                "This was rank {rank} of a pretended world of {world_size}.",
                rank=rank,
                world_size=self.world_size,
            )
            error.add_note(sentences(whose, _(PRETENDED)))
            raise


class _Pretence:
    """What every group of a pretended world does beside recording.

    Args:
        values_change: Whether what a rank would receive is changed.
    """

    def __init__(self, values_change: bool) -> None:
        self.values_change = values_change
        self._tensors: dict[int, list[torch.Tensor]] = {}  # of a call, by torch's number of it
        self._works: dict[int, tuple[Any, list[torch.Tensor]]] = {}  # by id of the work

    def listen(self) -> None:
        """Take part in everything from now on; no group exists so far."""
        torch_private.wrap(f"{C10D}:_register_pg_in_world", self._following)
        torch_private.wrap(f"{C10D}:Work.get_future", self._with_tensors)
        torch_private.wrap(_WAIT, _as_any_work)
        torch_private.wrap(
            "torch.nn.parallel:DistributedDataParallel.__init__", _with_a_communication_hook
        )

    def _following(self, register: Callable) -> Callable:
        """Torch's function that every new group is given to."""

        def register_and_follow(pg: Any, *args: Any, **options: Any) -> None:
            register(pg, *args, **options)
            torch_private.hook(pg, _HOOK, self._before, self._after)

        return register_and_follow

    def _before(self, call: Any) -> None:
        self._tensors[call.op_id] = call.output_tensors or call.input_tensors

    def _after(self, call: Any) -> None:
        tensors = self._tensors.pop(call.op_id, [])
        if self.values_change:
            for tensor in tensors:
                _change(tensor)
        if call.async_op:
            self._works[id(call.work)] = call.work, tensors

    def _with_tensors(self, get_future: Callable) -> Callable:
        """The future of a call. That of a fake call has no tensors in it, which hooks need."""

        def get_future_with_tensors(work: Any) -> torch.futures.Future:
            _work, tensors = self._works.pop(id(work), (None, None))
            if tensors is None:
                return get_future(work)
            future = torch.futures.Future()
            future.set_result(tensors)
            return future

        return get_future_with_tensors


def _as_any_work(_wait: Callable) -> Callable:
    """Replaces the `wait` of fake calls with that of other calls, which the recorder sees."""

    def wait(work: dist.Work, *args: Any, **options: Any) -> Any:
        return dist.Work.wait(work, *args, **options)

    return wait


def _with_a_communication_hook(wrap: Callable) -> Callable:
    """DDP's constructor. DDP asks the future of a fake call for tensors, unless it has a hook.

    So it gets one that does what DDP does without, before its first forward pass: until then the
    learner may register a different one.
    """

    def wrap_and_hook(model: nn.Module, *args: Any, **options: Any) -> None:
        wrap(model, *args, **options)

        def register(*_inputs: object) -> None:
            handle.remove()
            with contextlib.suppress(RuntimeError):  # the learner's is registered
                model.register_comm_hook(model.process_group, _average)

        handle = model.register_forward_pre_hook(register)

    return wrap_and_hook


def _average(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    gradients = bucket.buffer().div_(group.size())
    work = dist.all_reduce(gradients, group=group, async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def _change(tensor: torch.Tensor) -> None:
    """Put different numbers into a tensor that was received.

    Whole numbers stay: torch itself sends sizes and pickled objects, which must be what they are.
    """
    if tensor.is_floating_point() and tensor.device.type != "meta":
        with torch.no_grad():
            tensor.neg_().sub_(1)


def _refuse_what_depends_on_values(
    recorded: dict[int, list[Event]], recorded_again: dict[int, list[Event]]
) -> None:
    for rank, events in recorded.items():
        events_again = recorded_again[rank]
        index = _first_difference(events, events_again)
        if index is not None:
            first, second = _call(events, index), _call(events_again, index)
            problem = _("first {first}, then {second}", first=first, second=second)
            raise RuntimeError(_depends_on_values(problem))


def _depends_on_values(problem: str) -> str:
    return _(
        "What this function calls depends on the values that it receives: {problem}. A dry run "
        "receives nothing, so it can't show that: use launch.",
        problem=problem,
    )


def _first_difference(events: Sequence[Event], others: Sequence[Event]) -> int | None:
    """The place of the first call that two runs don't have in common; None if all are alike."""
    for index in range(max(len(events), len(others))):
        if index >= len(events) or index >= len(others):
            return index
        for name in _COMPARED:
            if getattr(events[index], name) != getattr(others[index], name):
                return index
    return None


def _call(events: Sequence[Event], index: int) -> str:
    return repr(events[index]) if index < len(events) else _("nothing")
