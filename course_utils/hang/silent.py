"""What went wrong in a launch that ended well: mistakes that torch lets pass, in the record."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from course_utils.hang.whereabouts import is_message
from course_utils.launcher.listener import Listener
from course_utils.launcher.words import ranks_named
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.record.event import (
    KINDS,
    SHARED,
    UNAVERAGED,
    UNFINISHED,
    UNWAITED,
    Event,
    Log,
    Meeting,
    meetings,
)
from course_utils.record.layouts import GAPS, SEVERAL
from course_utils.record.record import Record

Logs = Mapping[int, Log]

# Dtypes with the same bits, which add up all the same.
_ALIKE = {"uint8": "int8", "bool": "int8", "complex64": "float32", "complex128": "float64"}
_OPERATORS = {"sum", "avg", "max", "min", "product", "band", "bor", "bxor"}


class SilentMistakes(Listener):
    """Looks for them when all ranks have returned; `sentences` says what it has seen."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.sentences: list[str] = []

    def on_poll(self, members: Sequence[WorkerHandle], final: bool = False) -> None:
        """Look once, at the end, unless a rank has failed: its error says more."""
        failed = [member for member in members if member.failure or not member.settled]
        if not final or failed or len(members) < 2:
            return
        with contextlib.suppress(Exception):  # whatever goes wrong here, the launch went well
            logs = self._record.logs()
            if None not in logs.values():
                self.sentences = [*_of_each_rank(logs), *_of_meetings(logs)]


def _of_each_rank(logs: Logs) -> list[str]:
    """What a rank's calls tell by themselves."""
    sentences = []
    ranks = _ending_with(UNFINISHED, logs)
    if ranks:
        sentences.append(
            "launch: the last backward pass of a DDP model stayed unfinished on "
            f"{ranks_named(ranks)}, so its gradients are not averaged: a parameter took no part "
            "in the loss. Use it, freeze it before the model is wrapped, or wrap it with "
            "find_unused_parameters=True."
        )
    ranks = _ending_with(UNAVERAGED, logs)
    if ranks:
        sentences.append(
            "launch: an optimizer has changed a DDP model whose gradients were never averaged, on "
            f"{ranks_named(ranks)}. DDP averages them where the forward pass calls the wrapped "
            "model itself, not model.module, and outside of no_sync()."
        )
    first, ranks = _first_with(SHARED, logs)
    if first:
        sentences.append(
            f"launch: {first.kind} at {first.where}, was handed one tensor for several results on "
            f"{ranks_named(ranks)}, so all of these are the last one. Make a tensor for each: "
            "[torch.zeros_like(x) for _ in range(world_size)]."
        )
    first, ranks = _first_with(UNWAITED, logs)
    if first:
        sentences.append(
            f"launch: nobody has waited for {first.kind} at {first.where}, on "
            f"{ranks_named(ranks)}: its tensor may have been read before it was ready. Keep what "
            "the call returns, and call wait() on it."
        )
    return sentences


def _ending_with(flag: int, logs: Logs) -> list[int]:
    return [rank for rank, log in logs.items() if log.events and log.events[-1].flags & flag]


def _first_with(flag: int, logs: Logs) -> tuple[Event | None, list[int]]:
    """The first call with a flag, and the ranks that have made such a call in that line."""
    flagged = [event for log in logs.values() for event in log.events if event.flags & flag]
    if not flagged:
        return None, []
    first = min(flagged, key=lambda event: event.start_s)
    return first, sorted({event.rank for event in flagged if event.line == first.line})


def _of_meetings(logs: Logs) -> list[str]:
    """Of each kind of difference the first call that took ranks for alike which were not."""
    events = [event for log in logs.values() for event in log.events]
    complete = [meeting for meeting in meetings(events, len(logs)) if _is_complete(meeting)]
    sentences = (_first_told(find, complete) for find in _DIFFERENCES)
    return [sentence for sentence in sentences if sentence]


def _is_complete(meeting: Meeting) -> bool:
    """Whether all ranks have made one call with a tensor, or one has sent what the other took."""
    kinds = {call.kind for call in meeting.calls.values()}
    is_one = len(kinds) == 1 or kinds == {"send", "recv"}
    has_tensors = all(call.dtype and call.kind in KINDS for call in meeting.calls.values())
    return is_one and has_tensors and not meeting.missing


def _first_told(find: Callable[[Meeting], str], complete: Iterable[Meeting]) -> str:
    return next(filter(None, map(find, complete)), "")


def _dtypes(meeting: Meeting) -> str:
    calls = list(meeting.calls.values())
    dtypes = {_ALIKE.get(call.dtype, call.dtype) for call in calls}
    are_bytes = "int8" in dtypes and _kind(meeting) is None
    if len(dtypes) < 2 or are_bytes:
        return ""
    mixed = _told(meeting, lambda call: call.dtype)
    return (
        f"launch: {_call(meeting)}, was handed {mixed}: it took the bits of one for those of the "
        "other. Hand in the same dtype on every rank."
    )


def _operators(meeting: Meeting) -> str:
    operators = {call.op for call in meeting.calls.values()}
    if len(operators) < 2 or not operators <= _OPERATORS:
        return ""
    mixed = _told(meeting, lambda call: call.op)
    return (
        f"launch: {_call(meeting)}, was to compute {mixed}: the result is none of these. Name the "
        "same op on every rank."
    )


def _shapes(meeting: Meeting) -> str:
    calls = list(meeting.calls.values())
    if not KINDS[calls[0].kind].equal or any(call.queued for call in calls):
        return ""
    if len({call.dtype for call in calls}) > 1:
        return ""
    mixed = _told(meeting, lambda call: f"shape {call.shape}")
    if len({call.bytes for call in calls}) > 1:
        return (
            f"launch: {_call(meeting)}, was handed {mixed}: of the larger tensor only a part was "
            "used. Hand in the same shape on every rank."
        )
    shapes = {tuple(size for size in call.shape if size != 1) for call in calls}
    if len(shapes) > 1 and len({tuple(sorted(shape)) for shape in shapes}) == 1:
        return (
            f"launch: {_call(meeting)}, was handed {mixed}: numbers travel in the order in which "
            "they lie in memory, so they stand in other places there. Hand in the same shape on "
            "every rank."
        )
    return ""


def _layouts(meeting: Meeting) -> str:
    calls = list(meeting.calls.values())
    layouts = {call.layout for call in calls}
    is_wrong = len(layouts) > 1 or bool(layouts & {GAPS, SEVERAL})
    is_wrong |= calls[0].kind == "all_to_all" and layouts != {""}
    if not is_wrong or any(call.queued for call in calls):
        return ""
    ranks = [rank for rank, call in meeting.calls.items() if call.layout]
    return (
        f"launch: {_call(meeting)}, was handed a tensor that is not contiguous on "
        f"{ranks_named(ranks)}. Gloo takes its memory as if it were, so the result is wrong. Hand "
        "in y = x.contiguous(), and copy the result back by x.copy_(y)."
    )


_DIFFERENCES = (_dtypes, _operators, _shapes, _layouts)


def _kind(meeting: Meeting) -> str | None:
    """Of a reduction its name: bytes that are merely copied may be seen as another dtype."""
    call = next(iter(meeting.calls.values()))
    return call.kind if KINDS[call.kind].reduces else None


def _call(meeting: Meeting) -> str:
    """Such as `all_reduce at cell [3], line 5, in f: dist.all_reduce(x)`; of a message its recv."""
    calls = sorted(meeting.calls.values(), key=lambda call: call.rank)
    taken = [call for call in calls if is_message(call) and call.kind == "recv"]
    first = (taken or calls)[0]
    return f"{first.kind} at {first.where}"


def _told(meeting: Meeting, say: Callable[[Event], object]) -> str:
    """Such as `int32 on rank 0 and float32 on ranks 1 and 2`."""
    ranks_of: dict[str, list[int]] = {}
    for rank, call in sorted(meeting.calls.items()):
        ranks_of.setdefault(str(say(call)), []).append(rank)
    return " and ".join(f"{words} on {ranks_named(ranks)}" for words, ranks in ranks_of.items())
