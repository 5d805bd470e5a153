"""Circles in a graph of who waits for whom: by rank, the ranks that it waits for."""


def round_trip(waits_for: dict[int, set[int]]) -> list[int]:
    """Ranks that wait for each other in turn, of a graph in which each waits for somebody."""
    trip = [min(waits_for)]
    while True:
        following = min(waits_for[trip[-1]])
        if following in trip:
            return sorted(trip[trip.index(following) :])
        trip.append(following)


def circles_in(waits_for: dict[int, set[int]]) -> list[list[int]]:
    """The ranks that wait for each other, directly or through others: a list for each circle.

    Ranks that wait for nobody are taken away again and again, and so are those that nobody waits
    for; then what is left is parted into those that reach each other.
    """
    left = in_circles(waits_for)
    circles = []
    while left:
        start = min(left)
        forward = _reached(start, left)
        backward = _reached(start, _reversed(left))
        together = forward & backward
        if len(together) > 1:
            circles.append(sorted(together))
        rest = set(left) - together
        left = in_circles({rank: left[rank] & rest for rank in rest})
    return circles


def in_circles(waits_for: dict[int, set[int]]) -> dict[int, set[int]]:
    """The graph without ranks that wait for nobody in it, or that nobody in it waits for."""
    left = waits_for
    while True:
        waited_for: set[int] = set().union(*left.values())
        kept = {rank for rank, others in left.items() if others and rank in waited_for}
        if len(kept) == len(left):
            return left
        left = {rank: left[rank] & kept for rank in kept}


def _reversed(waits_for: dict[int, set[int]]) -> dict[int, set[int]]:
    waiters: dict[int, set[int]] = {rank: set() for rank in waits_for}
    for rank, others in waits_for.items():
        for other in others:
            waiters[other].add(rank)
    return waiters


def _reached(start: int, waits_for: dict[int, set[int]]) -> set[int]:
    reached = {start}
    to_visit = [start]
    while to_visit:
        for other in waits_for[to_visit.pop()] - reached:
            reached.add(other)
            to_visit.append(other)
    return reached
