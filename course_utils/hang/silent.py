"""What went wrong in a launch that ended well: mistakes that torch lets pass, in the record."""

import contextlib
from collections.abc import Sequence

from course_utils.launcher.listener import Listener
from course_utils.launcher.member import Member
from course_utils.launcher.words import ranks_named
from course_utils.record.event import KINDS, UNFINISHED, Log, Meeting, meetings
from course_utils.record.record import Record

# Dtypes with the same bits, which add up all the same.
_ALIKE = {"uint8": "int8", "bool": "int8", "complex64": "float32", "complex128": "float64"}


class SilentMistakes(Listener):
    """Looks for them when all ranks have returned; `sentences` says what it has seen."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.sentences: list[str] = []

    def tick(self, members: Sequence[Member], final: bool = False) -> None:
        """Look once, at the end, unless a rank has failed: its error says more."""
        failed = [member for member in members if member.failure or not member.settled]
        if not final or failed or len(members) < 2:
            return
        with contextlib.suppress(Exception):  # whatever goes wrong here, the launch went well
            logs = self._record.logs()
            if None not in logs.values():
                self.sentences = [*_unfinished(logs), *_of_two_dtypes(logs)]


def _unfinished(logs: dict[int, Log]) -> list[str]:
    """Of ranks whose last backward pass DDP has not averaged."""
    ranks = [r for r, log in logs.items() if log.events and log.events[-1].flags & UNFINISHED]
    if not ranks:
        return []
    return [
        f"launch: the last backward pass of a DDP model stayed unfinished on {ranks_named(ranks)}, "
        "so its gradients are not averaged: a parameter took no part in the loss. Use it, freeze "
        "it before the model is wrapped, or wrap it with find_unused_parameters=True."
    ]


def _of_two_dtypes(logs: dict[int, Log]) -> list[str]:
    """Of the first reduction that took the bits of one dtype for those of the other."""
    events = [event for log in logs.values() for event in log.events]
    for meeting in meetings(events, len(logs)):
        if _mixes_dtypes(meeting):
            first = meeting.calls[min(meeting.calls)]
            ranks_of: dict[str, list[int]] = {}
            for rank, call in sorted(meeting.calls.items()):
                ranks_of.setdefault(str(call.dtype), []).append(rank)
            dtypes = [f"{dtype} on {ranks_named(ranks)}" for dtype, ranks in ranks_of.items()]
            mixed = " and ".join(dtypes)
            return [
                f"launch: {first.kind} at {first.where}, was handed {mixed}: it took the bits of "
                "one for those of the other. Hand in the same dtype on every rank."
            ]
    return []


def _mixes_dtypes(meeting: Meeting) -> bool:
    calls = list(meeting.calls.values())
    kinds = {call.kind for call in calls}
    dtypes = {_ALIKE.get(str(call.dtype), str(call.dtype)) for call in calls}
    is_one_reduction = len(kinds) == 1 and calls[0].kind in KINDS and KINDS[calls[0].kind].reduces
    return is_one_reduction and not meeting.missing and len(dtypes) > 1
