"""Who meets whom: the k-th call that a rank makes of something meets everybody else's k-th.

Replay, checks, the report of a hang and the pictures all ask this one function.
"""

from collections.abc import Iterable
from typing import NamedTuple

from course_utils.record.event import Event

Key = tuple[object, ...]


class Meeting(NamedTuple):
    """One message or one collective, as far as its ranks have come to it."""

    key: Key  # what its calls are counted by, see `key_of`
    number: int  # the how-manieth of its key it is, from 1
    # Global ranks that it takes: of a message its sender, or None if that may be any rank, and its
    # receiver; else the group in its order.
    members: tuple[int | None, ...]
    calls: dict[int, Event]  # by rank, those that have come to it

    @property
    def missing(self) -> list[int | None]:
        """The members that have not come to it, in the group's order."""
        return [member for member in self.members if member not in self.calls]


def key_of(event: Event) -> Key | None:
    """What a rank counts a call by; None for what meets nobody, a wait or the end."""
    group = event.group_name, event.group
    if event.kind == "send":
        return "message", event.rank, event.peer, event.tag, *group
    if event.kind == "recv":
        return "message", event.peer, event.rank, event.tag, *group
    if event.kind == "new_group":
        return ("new_group",)
    return None if event.kind in ("wait", "return") else ("collective", *group)


def meetings(events: Iterable[Event], world_size: int, anew: bool = False) -> list[Meeting]:
    """Let all calls meet; in each key they are in order, and keys come as they were first called.

    Args:
        events: Of all ranks, each rank's in its order. An event that knows its number is taken at
            its word, since the first ones may be forgotten; the others are counted here.
        world_size: How many ranks there are: all of them meet to make a group.
        anew: Count all of them here: a recording may have been cut, or put together of several.
    """
    found: dict[Key, tuple[dict[int, int], dict[int, Meeting]]] = {}
    for event in events:
        if (key := key_of(event)) is None:
            continue
        counts, own = found.get(key) or found.setdefault(key, ({}, {}))
        known, rank = 0 if anew else event.number, event.rank
        number = counts[rank] = known or counts.get(rank, 0) + 1
        if number not in own:
            special = {"message": key[1:3], "new_group": tuple(range(world_size))}
            own[number] = Meeting(key, number, special.get(key[0], event.group), {})
        own[number].calls[rank] = event
    return [own[number] for _, own in found.values() for number in sorted(own)]
