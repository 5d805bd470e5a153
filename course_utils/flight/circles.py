"""Circles in a graph of who waits for whom: by rank, the ranks that it waits for."""

Graph = dict[int, set[int]]


def round_trip(waits_for: Graph) -> list[int]:
    """Ranks that wait for each other in turn, of a graph in which each waits for somebody."""
    trip = []
    rank = min(waits_for)
    while rank not in trip:
        trip.append(rank)
        rank = min(waits_for[rank])
    start = trip.index(rank)
    return sorted(trip[start:])


def circles_in(waits_for: Graph) -> list[list[int]]:
    """The ranks that wait for each other, directly or through others: a list for each circle.

    Ranks that wait for nobody are taken away again and again, and so are those that nobody waits
    for; then what is left is parted into those that reach each other.
    """
    graph = in_circles(waits_for)
    circles = []
    while graph:
        start = min(graph)
        forward = _reached(start, graph)
        backward = _reached(start, _reversed(graph))
        together = forward & backward
        if len(together) > 1:
            circles.append(sorted(together))
        others = set(graph) - together
        graph = in_circles(_among(others, graph))
    return circles


def in_circles(waits_for: Graph) -> Graph:
    """The graph without ranks that wait for nobody in it, or that nobody in it waits for."""
    graph = waits_for
    while True:
        waited_for: set[int] = set().union(*graph.values())
        kept = {rank for rank, others in graph.items() if others and rank in waited_for}
        if len(kept) == len(graph):
            return graph
        graph = _among(kept, graph)


def _among(ranks: set[int], waits_for: Graph) -> Graph:
    """The part of a graph that is between these ranks."""
    return {rank: waits_for[rank] & ranks for rank in ranks}


def _reversed(waits_for: Graph) -> Graph:
    waiters: Graph = {rank: set() for rank in waits_for}
    for rank, others in waits_for.items():
        for other in others:
            waiters[other].add(rank)
    return waiters


def _reached(start: int, waits_for: Graph) -> set[int]:
    reached = {start}
    to_visit = [start]
    while to_visit:
        rank = to_visit.pop()
        new = waits_for[rank] - reached
        reached |= new
        to_visit += new
    return reached
