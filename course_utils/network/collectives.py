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
from functools import lru_cache
from itertools import chain

ALGORITHMS = ("ring", "tree", "direct")

# (source, target, bytes), by places in the group; in a round every rank first sends all that it
# has to send in it, without waiting, and then waits for what the round brings it, both in order.
Round = list[tuple[int, int, float]]
Parts = Sequence[Sequence[int]]


def refuse_unknown(algorithm: str) -> None:
    """Raise ValueError for an algorithm that has no formula here."""
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm={algorithm!r}: choose 'ring', 'tree' or 'direct'")


@lru_cache(maxsize=32)  # a training loop calls the same ones again and again
def rounds(kind: str, algorithm: str, n: int, root: int, size: int, parts: Parts) -> list[Round]:
    """Spell a collective out, such as "all_reduce", in a group of n, where a rank hands in `size`.

    Ranks are named by their place in the group, as is the root of a broadcast, reduce, scatter or
    gather. For scatter, reduce_scatter and all_to_all there are `parts[i][j]` bytes from i for j.
    """
    if kind == "barrier":
        kind, size = "all_reduce", 0
    if kind not in ("scatter", "reduce_scatter", "all_to_all"):
        parts = [[size] * n] * n
    everybody_at_once = algorithm == "direct" and kind in ("all_gather", "reduce_scatter")
    if kind == "all_to_all" or everybody_at_once:  # else in turns with one partner each
        turns = [_shift(n, k, lambda rank, to: parts[rank][to]) for k in range(1, n)]
        return [list(chain(*turns))] if algorithm == "direct" else turns
    if algorithm == "ring" and kind not in ("scatter", "gather"):
        return _by_ring(kind, n, root, size, parts)
    masks = [2**k for k in range((n - 1).bit_length())]
    if algorithm == "tree" and kind == "all_gather":
        return [_shift(n, -m, lambda rank, to, m=m: size * min(m, n - m)) for m in masks]
    # From the leaves to place 0, by rounds: (child, parent, places from the child on).
    edges = [[(v, 0, 1) for v in range(1, n)]]
    if algorithm == "tree":
        edges = [[(v + m, v, min(m, n - v - m))] for m in masks for v in range(0, n - m, 2 * m)]
    return _by_tree(kind, edges, n, root, size, parts)


def _shift(n: int, by: int, size: Callable[[int, int], float]) -> Round:
    """Every rank sends to the one `by` places further on; `size(rank, to)`."""
    return [(rank, (rank + by) % n, size(rank, (rank + by) % n)) for rank in range(n)]


def _by_ring(kind: str, n: int, root: int, size: int, parts: Parts) -> list[Round]:
    if kind in ("broadcast", "reduce"):  # n pieces once around the ring, one behind the other
        first = root if kind == "broadcast" else root + 1
        hops = [first + hop for hop in range(n - 1)] * n
        return [[(hop % n, (hop + 1) % n, size / n)] for hop in hops]
    if kind == "all_reduce":
        return [_shift(n, 1, lambda rank, to: size / n)] * (2 * (n - 1))
    if kind == "all_gather":
        return [_shift(n, 1, lambda rank, to: size)] * (n - 1)
    return [_shift(n, 1, lambda rank, to, k=k: parts[rank][(rank - k) % n]) for k in range(1, n)]


def _by_tree(kind: str, edges: list, n: int, root: int, size: int, parts: Parts) -> list[Round]:
    """Places are counted from the root."""

    def up(size: Callable[[int, int], float]) -> list[Round]:
        """`size(v, m)` is that of the m places from v on."""
        at = [(root + place) % n for place in range(n)]
        return [[(at[v], at[to], size(v, m)) for v, to, m in one] for one in edges]

    def down(size: Callable[[int, int], float]) -> list[Round]:
        return [[(to, v, bytes_) for v, to, bytes_ in one] for one in reversed(up(size))]

    found: list[Round] = []
    if kind in ("all_reduce", "reduce", "reduce_scatter"):
        found += up(lambda v, below: size)
    if kind in ("all_reduce", "broadcast"):
        found += down(lambda v, below: size)
    if kind in ("scatter", "reduce_scatter"):
        own = [*parts[root][root:], *parts[root][:root]]
        found += down(lambda v, below: sum(own[v : v + below]))
    if kind == "gather":
        found += up(lambda v, below: below * size)
    return found
