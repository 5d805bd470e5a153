"""Collectives as messages: who sends how many bytes to whom, in which order, by which algorithm.

For n ranks, S bytes, B = S / n, and a message that costs alpha + size * beta (R. Hockney, The
communication challenge for MPP, Parallel Computing 20, 1994), on links that are all alike:

    collective      ring                     tree                         direct
    all_reduce      2(n-1)(alpha + B beta)   2 l (alpha + S beta)         2(alpha + (n-1) S beta)
    broadcast,      (n-1)(alpha + 2 B beta)  l (alpha + S beta)           alpha + (n-1) S beta
      reduce
    reduce_scatter  (n-1)(alpha + B beta)    l (alpha + S beta) + scatter alpha + (n-1) B beta
    all_gather      (n-1)(alpha + S beta)    l alpha + (n-1) S beta       alpha + (n-1) S beta
    scatter         as direct                l alpha + (n-1) B beta       alpha + (n-1) B beta
    gather          as direct                l alpha + (n-1) S beta       alpha + (n-1) S beta
    all_to_all      (n-1)(alpha + B beta)    as ring                      alpha + (n-1) B beta
    barrier         an all_reduce of no bytes

S is what one rank hands in, and what the root hands in for a scatter; l = log2 n, exact for powers
of two and an upper bound (with l rounded up) for other n. Adding up costs nothing.

ring: P. Patarasuk and X. Yuan, Bandwidth optimal all-reduce algorithms for clusters of
workstations, J. Parallel Distrib. Comput. 69, 2009; broadcast and reduce pass n pieces along the
ring, one behind the other. tree: binomial trees, and for all_gather J. Bruck's algorithm, as in
R. Thakur, R. Rabenseifner and W. Gropp, Optimization of collective communication operations in
MPICH, Int. J. High Perform. Comput. Appl. 19, 2005, where also the pairwise all_to_all is found.
direct: everything straight to the rank that needs it; an all_reduce goes to one rank and back.
"""

from collections.abc import Callable, Sequence

ALGORITHMS = ("ring", "tree", "direct")

# One rank's part: (other, bytes) sends to the other and does not wait, (other, None) waits for what
# the other sends. A rank takes its steps in order.
Step = tuple[int, float | None]
Steps = list[list[Step]]
Parts = Sequence[Sequence[int]]


def refuse_unknown(algorithm: str) -> None:
    """Raise ValueError for an algorithm that has no formula here."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: choose 'ring', 'tree' or 'direct'")


def lower(kind: str, algorithm: str, n: int, root: int, size: int, parts: Parts) -> Steps:
    """Spell a collective out.

    Args:
        kind: Such as "all_reduce".
        algorithm: "ring", "tree" or "direct".
        n: Size of the group; ranks are named by their place in it.
        root: Where a broadcast, reduce, scatter or gather starts or ends.
        size: Bytes that a rank hands in.
        parts: For scatter, reduce_scatter and all_to_all: `parts[i][j]` bytes from i for j.

    Returns:
        For each rank the list of its steps, to be taken in order.
    """
    steps: Steps = [[] for _ in range(n)]
    if kind == "barrier":
        kind, size = "all_reduce", 0
    {"ring": _by_ring, "tree": _by_tree, "direct": _directly}[algorithm](
        steps, kind, root, size, parts
    )
    return steps


def _by_ring(steps: Steps, kind: str, root: int, size: int, parts: Parts) -> None:
    n = len(steps)
    if kind == "all_reduce":
        _rotate(steps, 2 * (n - 1), lambda rank, turn: size / n)
    elif kind == "all_gather":
        _rotate(steps, n - 1, lambda rank, turn: size)
    elif kind == "reduce_scatter":
        _rotate(steps, n - 1, lambda rank, turn: parts[rank][(rank - 1 - turn) % n])
    elif kind in ("broadcast", "reduce"):  # n pieces once around the ring, one behind the other
        first = root if kind == "broadcast" else root + 1
        for hop in list(range(n - 1)) * n:
            _message(steps, first + hop, first + hop + 1, size / n)
    elif kind == "all_to_all":
        for rank in range(n):
            for k in range(1, n):  # in turns with one partner each
                to = (rank + k) % n
                steps[rank] += [(to, parts[rank][to]), ((rank - k) % n, None)]
    else:
        _directly(steps, kind, root, size, parts)


def _by_tree(steps: Steps, kind: str, root: int, size: int, parts: Parts) -> None:
    n = len(steps)
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        _up(steps, root, lambda v, count: size)
    if kind in ("all_reduce", "broadcast"):
        _down(steps, root, lambda v, count: size)
    if kind in ("scatter", "reduce_scatter"):
        own = [*parts[root][root:], *parts[root][:root]]
        _down(steps, root, lambda v, count: sum(own[v : v + count]))
    if kind == "gather":
        _up(steps, root, lambda v, count: count * size)
    if kind == "all_gather":
        for step in (2**k for k in range((n - 1).bit_length())):
            for rank in range(n):
                to = (rank - step) % n
                steps[rank] += [(to, size * min(step, n - step)), ((rank + step) % n, None)]
    if kind == "all_to_all":
        _by_ring(steps, kind, root, size, parts)


def _directly(steps: Steps, kind: str, root: int, size: int, parts: Parts) -> None:
    n = len(steps)
    others = [(root + k) % n for k in range(1, n)]
    if kind in ("all_reduce", "reduce", "gather"):
        for other in others:
            _message(steps, other, root, size)
    if kind in ("all_reduce", "broadcast", "scatter"):
        for other in others:
            _message(steps, root, other, parts[root][other] if kind == "scatter" else size)
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        for rank in range(n):
            to = [(rank + k) % n for k in range(1, n)]
            own = [size] * n if kind == "all_gather" else parts[rank]
            steps[rank] += [(other, own[other]) for other in to]
            steps[rank] += [((rank - k) % n, None) for k in range(1, n)]


def _message(steps: Steps, source: int, target: int, size: float) -> None:
    """One rank sends, another one takes; places count around the group."""
    source, target = source % len(steps), target % len(steps)
    steps[source].append((target, size))
    steps[target].append((source, None))


def _rotate(steps: Steps, turns: int, size: Callable[[int, int], float]) -> None:
    """Let every rank send to the next one of the ring, turn after turn."""
    n = len(steps)
    for turn in range(turns):
        for rank in range(n):
            steps[rank] += [((rank + 1) % n, size(rank, turn)), ((rank - 1) % n, None)]


def _edges(n: int) -> list[tuple[int, int, int]]:
    """A binomial tree from its leaves to place 0: (child, parent, places below the child)."""
    masks = [2**k for k in range((n - 1).bit_length())]
    return [(v + m, v, min(m, n - v - m)) for m in masks for v in range(0, n - m, 2 * m)]


def _up(steps: Steps, root: int, size: Callable[[int, int], float]) -> None:
    """Along the tree to the root; `size(v, m)` for the m ranks from v on, counted from the root."""
    for child, parent, below in _edges(len(steps)):
        _message(steps, child + root, parent + root, size(child, below))


def _down(steps: Steps, root: int, size: Callable[[int, int], float]) -> None:
    """Along the same tree from the root."""
    for child, parent, below in reversed(_edges(len(steps))):
        _message(steps, parent + root, child + root, size(child, below))
