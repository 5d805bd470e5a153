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

from collections.abc import Sequence

from course_utils import patterns
from course_utils.patterns import Steps

ALGORITHMS = ("ring", "tree", "direct")


def lower(
    kind: str, algorithm: str, n: int, root: int, size: int, parts: Sequence[Sequence[int]]
) -> Steps:
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
    if kind == "all_reduce" and algorithm != "ring":
        size_of = {"size": size, "parts": parts}
        first = lower("reduce", algorithm, n, 0, **size_of)
        return _after(first, lower("broadcast", algorithm, n, 0, **size_of))
    if kind == "all_reduce":
        patterns.rotate(steps, lambda rank, turn: size / n)
        patterns.rotate(steps, lambda rank, turn: size / n)
        return steps
    _BY_NAME[kind](steps, algorithm, root, size, parts)
    return steps


def _after(first: Steps, second: Steps) -> Steps:
    return [before + behind for before, behind in zip(first, second, strict=True)]


def _broadcast(steps: Steps, algorithm: str, root: int, size: int, parts: object) -> None:
    if algorithm == "ring":
        patterns.pipeline(steps, root, size)
    elif algorithm == "tree":
        patterns.down(steps, root, lambda v, count: size)
    else:
        patterns.fan_out(steps, root, [size] * len(steps))


def _reduce(steps: Steps, algorithm: str, root: int, size: int, parts: object) -> None:
    if algorithm == "ring":
        patterns.pipeline(steps, root + 1, size)
    elif algorithm == "tree":
        patterns.up(steps, root, lambda v, count: size)
    else:
        patterns.fan_in(steps, root, size)


def _gather(steps: Steps, algorithm: str, root: int, size: int, parts: object) -> None:
    if algorithm == "tree":
        patterns.up(steps, root, lambda v, count: count * size)
    else:
        patterns.fan_in(steps, root, size)


def _scatter(
    steps: Steps, algorithm: str, root: int, size: int, parts: Sequence[Sequence[int]]
) -> None:
    own, n = parts[root], len(steps)
    if algorithm == "tree":
        turned = [own[(i + root) % n] for i in range(n)]
        patterns.down(steps, root, lambda v, count: sum(turned[v : v + count]))
    else:
        patterns.fan_out(steps, root, own)


def _all_gather(steps: Steps, algorithm: str, root: int, size: int, parts: object) -> None:
    n = len(steps)
    if algorithm == "ring":
        patterns.rotate(steps, lambda rank, turn: size)
    elif algorithm == "direct":
        patterns.exchange(steps, False, lambda source, target: size)
    else:
        step = 1
        while step < n:
            for rank in range(n):
                steps[rank].append(((rank - step) % n, size * min(step, n - step)))
                steps[rank].append(((rank + step) % n, None))
            step *= 2


def _reduce_scatter(
    steps: Steps, algorithm: str, root: int, size: int, parts: Sequence[Sequence[int]]
) -> None:
    n = len(steps)
    if algorithm == "ring":
        patterns.rotate(steps, lambda rank, turn: parts[rank][(rank - 1 - turn) % n])
    elif algorithm == "direct":
        patterns.exchange(steps, False, lambda source, target: parts[source][target])
    else:
        _reduce(steps, algorithm, 0, size, parts)
        _scatter(steps, algorithm, 0, size, parts)


def _all_to_all(
    steps: Steps, algorithm: str, root: int, size: int, parts: Sequence[Sequence[int]]
) -> None:
    patterns.exchange(steps, algorithm != "direct", lambda source, target: parts[source][target])


_BY_NAME = {
    "broadcast": _broadcast, "reduce": _reduce, "gather": _gather, "scatter": _scatter,
    "all_gather": _all_gather, "reduce_scatter": _reduce_scatter, "all_to_all": _all_to_all,
}  # fmt: skip
