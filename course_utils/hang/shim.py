"""Notes as events, as long as there are notes."""

from collections.abc import Mapping

from course_utils.record import event, notes
from course_utils.record.event import Event


def logs_of(logs: Mapping[int, notes.Log | None]) -> dict[int, event.Log | None]:
    """Notes as events."""
    return {rank: log if log is None or hasattr(log, "events") else _log(rank, log)
            for rank, log in logs.items()}  # fmt: skip


def _log(rank: int, log: notes.Log) -> event.Log:
    return event.Log(tuple(_event(rank, call) for call in log.calls), log.complete)


def _event(rank: int, call: notes.Call) -> Event:
    line = call.line
    return Event(
        rank=rank, index=0, kind=call.kind, bytes=call.bytes, start_s=call.when, end_s=call.when,
        peer=call.peer, tag=call.tag, dtype=call.dtype, shape=call.shape, root=call.root,
        group=call.group, group_name=call.group_name, number=call.number, flags=call.flags,
        line=line and (line.file, line.line, line.name), place=line.place if line else "",
        code=line.code if line else "",
    )  # fmt: skip
