"""What a ring of very many ranks costs, where all of them do the same at the same time.

`Trace.replay` makes an object of every message, and a ring of 1,024 ranks sends two million of them
for one all_reduce. On links that are all alike, no rank of a ring is ever ahead of the others, as
long as nothing has a root. So one clock is enough, and each call takes what its formula in
`collectives.py` says. Tests compare that with `Trace.replay`.
"""

from collections.abc import Sequence

from course_utils.network.network import Network
from course_utils.record.event import Event

# By kind: how many messages each rank sends one after the other, for each of its n - 1 neighbours
# on the way around, and whether a message is an n-th of what the rank hands in.
_ON_A_RING = {
    "all_reduce": (2, True),
    "reduce_scatter": (1, True),
    "all_to_all": (1, True),
    "all_gather": (1, False),
    "barrier": (2, True),
}


def stays_in_step(events: Sequence[Event], network: Network, world_size: int) -> bool:
    """Whether ranks that all make these calls do so at the same time on that network."""
    links_are_alike = network.between is None and not network.slow_links
    if network.algorithm != "ring" or not links_are_alike:
        return False
    for event in events:
        if event.kind == "wait":
            continue
        if event.kind not in _ON_A_RING or len(event.group) != world_size:
            return False
        sizes = set(event.parts)
        if len(sizes) > 1:
            return False
    return True


def finish_us(events: Sequence[Event], network: Network, world_size: int) -> float:
    """Virtual microseconds until all ranks are done, if `stays_in_step`.

    Args:
        events: What each rank calls and waits for, in its order; computing takes no time.
        network: What they run on.
        world_size: How many ranks there are.
    """
    latency_us, us_per_byte = network.link(0, 1, world_size)
    now_us = last_end_us = 0.0
    end_us = {}  # by index of a call, when it is over
    for event in events:
        if event.kind == "wait":
            now_us = max(now_us, end_us[event.of])
            continue
        turns, in_parts = _ON_A_RING[event.kind]
        size = event.bytes
        if in_parts:
            size = event.bytes / world_size
        messages = turns * (world_size - 1)
        takes_us = messages * (latency_us + size * us_per_byte)
        start_us = max(now_us, last_end_us)  # the collectives of a group follow each other
        last_end_us = start_us + takes_us
        end_us[event.index] = last_end_us
        if event.blocking:
            now_us = last_end_us
    return max(now_us, last_end_us)
