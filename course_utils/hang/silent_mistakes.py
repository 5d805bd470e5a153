"""What went wrong in a launch that ended well: mistakes that torch lets pass, in the record."""

import contextlib
from collections.abc import Callable, Mapping, Sequence

from course_utils.hang.facts import on_ranks
from course_utils.hang.wait_graph import differ_in
from course_utils.launcher.language import N_, _
from course_utils.launcher.listener import Listener
from course_utils.launcher.words import ranks_named
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.record.event import (
    KINDS,
    SHARED,
    UNAVERAGED,
    UNFINISHED,
    UNHEARD,
    UNWAITED,
    Event,
    Log,
    Meeting,
    meetings,
)
from course_utils.record.layouts import GAPS, SEVERAL
from course_utils.record.record import Record

Logs = Mapping[int, Log]

# Dtypes whose sums have the same bits, so that no harm is done where ranks mix them.
_ALIKE = {"uint8": "int8", "bool": "int8", "complex64": "float32", "complex128": "float64"}
_OPERATORS = {"sum", "avg", "max", "min", "product", "band", "bor", "bxor"}

# By the flag of a rank's last event.
_OF_RANKS = {
    UNFINISHED: N_(
        "launch: the last backward pass of a DDP model stayed unfinished on {ranks}, so "
        "its gradients are not averaged. Either an exception ended it, or a parameter took "
        "no part in the loss: use that, freeze it before the model is wrapped, or wrap the "
        "model with find_unused_parameters=True."
    ),
    UNAVERAGED: N_(
        "launch: an optimizer has changed a DDP model whose gradients were never averaged, "
        "on {ranks}. DDP averages them where the forward pass calls the wrapped model "
        "itself, not model.module, and outside of no_sync()."
    ),
    UNHEARD: N_(
        "launch: an optimizer has changed parameters of a DDP model whose gradients DDP "
        "did not average, on {ranks}. DDP listens to those that need a gradient, with "
        "their dtype, when the model is wrapped: unfreeze or convert them before that, or "
        "wrap the model anew."
    ),
}
_OTHER_WEIGHTS = N_(
    "launch: at its last backward pass, a DDP model had other weights on {ranks} than on rank 0, "
    "although DDP averages gradients. Call the optimizer and the scheduler alike on every rank. "
    "Load weights on every rank, or before the model is wrapped: then DDP copies rank 0's."
)
_ONE_FOR_SEVERAL = N_(
    "launch: {call}, was handed one tensor for several results on {ranks}, so all of "
    "these are the last one. Make a tensor for each: [torch.zeros_like(x) for _ in "
    "range(world_size)]."
)
_UNWAITED_BARRIER = N_(
    "launch: nobody has waited for {call}, on {ranks}, so it held nobody up. Keep what "
    "the call returns, and call wait() on it."
)
_UNWAITED_CALL = N_(
    "launch: nobody has waited for {call}, on {ranks}: its tensor may have been read "
    "before it was ready. Keep what the call returns, and call wait() on it."
)


class SilentMistakes(Listener):
    """Looks for them when all ranks have returned; `sentences` says what it has seen."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.sentences: list[str] = []

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
        """Look once, at the end, unless a rank has failed: its error says more."""
        if not final or len(workers) < 2:
            return
        for worker in workers:
            if worker.failure or not worker.settled:
                return
        with contextlib.suppress(Exception):  # whatever goes wrong here, the launch went well
            logs = self._record.logs()
            if None not in logs.values():
                self.sentences = _of_each_rank(logs) + _of_meetings(logs)


def _of_each_rank(logs: Logs) -> list[str]:
    """What a rank's calls tell by themselves."""
    sentences = []
    for flag, sentence in _OF_RANKS.items():
        ranks = _ending_with(flag, logs)
        if ranks:
            sentences.append(_(sentence, ranks=ranks_named(ranks)))
    if not sentences:  # gradients that were not averaged make weights differ as well
        ranks = _with_other_weights(logs)
        if ranks:
            sentences.append(_(_OTHER_WEIGHTS, ranks=ranks_named(ranks)))
    events = _all_events(logs)
    # A barrier has no tensor. It doesn't hide a call that has one.
    barriers = [event for event in events if event.kind == "barrier"]
    others = [event for event in events if event.kind != "barrier"]
    for flag, calls, sentence in (
        (SHARED, events, _ONE_FOR_SEVERAL),
        (UNWAITED, barriers, _UNWAITED_BARRIER),
        (UNWAITED, others, _UNWAITED_CALL),
    ):
        first, ranks = _first_with(flag, calls)
        if first:
            call = _kind_and_line(first)
            sentences.append(_(sentence, call=call, ranks=ranks_named(ranks)))
    return sentences


def _ending_with(flag: int, logs: Logs) -> list[int]:
    """The ranks whose last event has a flag."""
    ranks = []
    for rank, log in logs.items():
        if log.events and log.events[-1].flags & flag:
            ranks.append(rank)
    return ranks


def _with_other_weights(logs: Logs) -> list[int]:
    """The ranks on which some DDP model's last weights in training were not those of rank 0."""
    weights_of = {}
    for rank, log in logs.items():
        if not log.events or log.events[-1].kind != "return":
            return []
        weights_of[rank] = log.events[-1].weights
    numbers_of_models = {len(weights) for weights in weights_of.values()}
    if len(numbers_of_models) > 1:  # which of them belong together is not known
        return []
    ranks = set()
    for position in range(numbers_of_models.pop()):
        gradients_on_rank_0, checksum_on_rank_0 = weights_of[0][position]
        differing = []
        for rank, weights in weights_of.items():
            gradients_seen, checksum = weights[position]
            if checksum == 0 or gradients_seen != gradients_on_rank_0:  # they can't be compared
                differing = []
                break
            if checksum != checksum_on_rank_0:
                differing.append(rank)
        ranks.update(differing)
    return sorted(ranks)


def _first_with(flag: int, events: Sequence[Event]) -> tuple[Event | None, list[int]]:
    """The first call with a flag, and the ranks that have made such a call in that line."""
    flagged = [event for event in events if event.flags & flag]
    if not flagged:
        return None, []
    first = min(flagged, key=lambda event: event.start_s)
    ranks = {event.rank for event in flagged if event.line == first.line}
    return first, sorted(ranks)


def _all_events(logs: Logs) -> list[Event]:
    events: list[Event] = []
    for log in logs.values():
        events += log.events
    return events


def _of_meetings(logs: Logs) -> list[str]:
    """For each kind of difference, the first meeting whose ranks differ so."""
    complete = []
    for meeting in meetings(_all_events(logs), len(logs)):
        if _is_complete(meeting):
            complete.append(meeting)
    sentences = []
    for describe in _DIFFERENCES:
        for meeting in complete:
            sentence = describe(meeting)
            if sentence:
                sentences.append(sentence)
                break
    return sentences


def _is_complete(meeting: Meeting) -> bool:
    """Whether every member took part, with a tensor.

    All made one kind of collective, or one sent a message and the other received it.
    """
    if meeting.missing:
        return False
    calls = meeting.calls.values()
    kinds = {call.kind for call in calls}
    if len(kinds) > 1 and kinds != {"send", "recv"}:
        return False
    return all(call.dtype and call.kind in KINDS for call in calls)


def _dtypes(meeting: Meeting) -> str:
    calls = list(meeting.calls.values())
    dtypes = {_ALIKE.get(call.dtype, call.dtype) for call in calls}
    # Bytes that are merely copied may be seen as a different dtype.
    only_copied = "int8" in dtypes and not KINDS[calls[0].kind].reduces
    if len(dtypes) < 2 or only_copied:
        return ""
    mixed = _by_rank(meeting, lambda call: call.dtype)
    return _(
        "launch: {call}, was handed {mixed}: it took the bits of one for those of the other. Hand "
        "in the same dtype on every rank.",
        call=_call(meeting),
        mixed=mixed,
    )


def _operators(meeting: Meeting) -> str:
    operators = {call.op for call in meeting.calls.values()}
    if len(operators) < 2 or not operators <= _OPERATORS:
        return ""
    mixed = _by_rank(meeting, lambda call: call.op)
    return _(
        "launch: {call}, was to compute {mixed}: the result is none of these. Name the same op on "
        "every rank.",
        call=_call(meeting),
        mixed=mixed,
    )


def _shapes(meeting: Meeting) -> str:
    calls = list(meeting.calls.values())
    if not KINDS[calls[0].kind].equal or _some_queued(calls):
        return ""
    if differ_in(calls, "dtype"):
        return ""
    mixed = _by_rank(meeting, lambda call: _("shape {shape}", shape=call.shape))
    if differ_in(calls, "bytes"):
        return _(
            "launch: {call}, was handed {mixed}: of the larger tensor only a part was used. Hand "
            "in the same shape on every rank.",
            call=_call(meeting),
            mixed=mixed,
        )
    if _are_transposed(calls):
        return _(
            "launch: {call}, was handed {mixed}: numbers travel in the order in which they lie in "
            "memory, so they stand in other places there. Hand in the same shape on every rank.",
            call=_call(meeting),
            mixed=mixed,
        )
    return ""


def _are_transposed(calls: list[Event]) -> bool:
    """Whether tensors have the same sizes, but in different orders; sizes of 1 do not matter."""
    shapes, sorted_shapes = set(), set()
    for call in calls:
        sizes = [size for size in call.shape if size != 1]
        shapes.add(tuple(sizes))
        sorted_shapes.add(tuple(sorted(sizes)))
    return len(shapes) > 1 and len(sorted_shapes) == 1


def _layouts(meeting: Meeting) -> str:
    calls = list(meeting.calls.values())
    layouts = {call.layout for call in calls}
    is_wrong = len(layouts) > 1 or GAPS in layouts or SEVERAL in layouts
    if calls[0].kind == "all_to_all" and layouts != {""}:
        is_wrong = True
    if not is_wrong or _some_queued(calls):
        return ""
    ranks = [rank for rank, call in meeting.calls.items() if call.layout]
    return _(
        "launch: {call}, was handed a tensor that is not contiguous on {ranks}. Gloo takes its "
        "memory as if it were, so the result is wrong. Hand in y = x.contiguous(), and copy the "
        "result back by x.copy_(y).",
        call=_call(meeting),
        ranks=ranks_named(ranks),
    )


# Each says what is wrong with a meeting, and nothing where that is not.
_DIFFERENCES = (_dtypes, _operators, _shapes, _layouts)


def _some_queued(calls: list[Event]) -> bool:
    return any(call.queued for call in calls)


def _call(meeting: Meeting) -> str:
    """Such as `all_reduce at cell [3], line 5, in f: dist.all_reduce(x)`; of a message its recv."""
    calls = [meeting.calls[rank] for rank in sorted(meeting.calls)]
    first = calls[0]
    for call in calls:
        if call.kind == "recv":
            first = call
    return _kind_and_line(first)


def _kind_and_line(call: Event) -> str:
    return _("{kind} at {line}", kind=call.kind, line=call.where)


def _by_rank(meeting: Meeting, describe: Callable[[Event], object]) -> str:
    """Such as `int32 on rank 0 and float32 on ranks 1 and 2`."""
    descriptions = {rank: str(describe(call)) for rank, call in sorted(meeting.calls.items())}
    parts = on_ranks(descriptions)
    return _(" and ").join(parts)
