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
from functools import lru_cache
from typing import NamedTuple

from course_utils.launcher.language import _

ALGORITHMS = ("ring", "tree", "direct")

# (source, target, bytes), by places in the group.
Transfer = tuple[int, int, float]
# In a round every rank first sends all that it has to send in it, without waiting, and then waits
# for what the round brings it, both in order.
Round = list[Transfer]
Parts = Sequence[Sequence[float]]  # `parts[i][j]`: bytes from place i for place j
_IN_PARTS = ("scatter", "reduce_scatter", "all_to_all")
_UP_THE_TREE = ("all_reduce", "reduce", "reduce_scatter", "gather")
_DOWN_THE_TREE = ("all_reduce", "broadcast", "scatter", "reduce_scatter")


class Branch(NamedTuple):
    """A branch of a tree. Places are counted from the root, which has number 0."""

    child: int
    parent: int
    spoken_for: int  # how many places the child speaks for: itself and the ones after it


Tree = list[list[Branch]]  # by rounds, from the leaves to the root


def refuse_unknown(algorithm: str) -> None:
    """Raise ValueError for an algorithm that has no formula here."""
    if algorithm not in ALGORITHMS:
        raise ValueError(
            _("algorithm={algorithm!r}: choose 'ring', 'tree' or 'direct'", algorithm=algorithm)
        )


@lru_cache(maxsize=32)  # a training loop calls the same ones again and again
def rounds(kind: str, algorithm: str, n: int, root: int, size: int, parts: Parts) -> list[Round]:
    """Spell a collective out, such as "all_reduce", in a group of n, where a rank hands in `size`.

    Ranks are named by their place in the group, as is the root of a broadcast, reduce, scatter or
    gather. For scatter, reduce_scatter and all_to_all there are `parts[i][j]` bytes from i for j.
    """
    if kind == "barrier":
        return rounds("all_reduce", algorithm, n, root, 0, parts)
    if kind not in _IN_PARTS:
        parts = [[size] * n] * n
    is_direct = algorithm == "direct"
    if kind == "all_to_all" or (is_direct and kind in ("all_gather", "reduce_scatter")):
        return _between_all_pairs(algorithm, n, parts)
    if algorithm == "tree" and kind == "all_gather":
        return _all_gather_by_bruck(n, size)
    if algorithm == "tree":
        return _along_branches(kind, _binomial_tree(n), n, root, size, parts)
    if is_direct or kind in ("scatter", "gather"):
        return _along_branches(kind, _star(n), n, root, size, parts)
    return _around_the_ring(kind, n, root, size, parts)


def _between_all_pairs(algorithm: str, n: int, parts: Parts) -> list[Round]:
    """Everybody sends a part to everybody else: all at once, or in turns with one partner each."""
    turns = []
    for distance in range(1, n):
        turn = []
        for source in range(n):
            target = (source + distance) % n
            size = parts[source][target]
            turn.append((source, target, size))
        turns.append(turn)
    if algorithm != "direct":
        return turns
    at_once: Round = []
    for turn in turns:
        at_once += turn
    return [at_once]


def _all_gather_by_bruck(n: int, size: int) -> list[Round]:
    """Each round doubles what a rank holds; the last one brings only what is still missing."""
    result = []
    held = 1
    while held < n:
        brought = size * min(held, n - held)
        transfers = []
        for source in range(n):
            target = (source - held) % n
            transfers.append((source, target, brought))
        result.append(transfers)
        held *= 2
    return result


def _around_the_ring(kind: str, n: int, root: int, size: int, parts: Parts) -> list[Round]:
    if kind == "broadcast":
        return _pieces_along_the_ring(root, n, size)
    if kind == "reduce":  # from the root's neighbour on, so that it ends at the root
        return _pieces_along_the_ring(root + 1, n, size)
    turns = n - 1
    if kind == "all_reduce":
        turn = _to_the_next([size / n] * n)
        return [turn] * (2 * turns)
    if kind == "all_gather":
        turn = _to_the_next([size] * n)
        return [turn] * turns
    return _reduce_scatter_on_the_ring(n, parts)


def _reduce_scatter_on_the_ring(n: int, parts: Parts) -> list[Round]:
    """In turn k a rank hands on the sum for the rank k places back."""
    result = []
    for turn in range(1, n):
        sizes = []
        for source in range(n):
            summed_for = (source - turn) % n
            size = parts[source][summed_for]
            sizes.append(size)
        result.append(_to_the_next(sizes))
    return result


def _pieces_along_the_ring(first: int, n: int, size: int) -> list[Round]:
    """Pass n pieces from place `first` through all others, one piece behind the other."""
    one_piece_around = []
    for hop in range(n - 1):
        source = (first + hop) % n
        target = (source + 1) % n
        transfer = (source, target, size / n)
        one_piece_around.append([transfer])
    return one_piece_around * n


def _to_the_next(sizes: Sequence[float]) -> Round:
    """Every rank sends so many bytes to the next one on the ring."""
    transfers = []
    for source, size in enumerate(sizes):
        target = (source + 1) % len(sizes)
        transfers.append((source, target, size))
    return transfers


def _star(n: int) -> Tree:
    """All others hang directly on the root."""
    branches = [Branch(child, 0, 1) for child in range(1, n)]
    return [branches]


def _binomial_tree(n: int) -> Tree:
    """Half of the places are left after each round."""
    result = []
    distance = 1
    while distance < n:
        branches = []
        for parent in range(0, n - distance, 2 * distance):
            child = parent + distance
            spoken_for = min(distance, n - child)
            branches.append(Branch(child, parent, spoken_for))
        result.append(branches)
        distance *= 2
    return result


def _along_branches(
    kind: str, tree: Tree, n: int, root: int, size: int, parts: Parts
) -> list[Round]:
    """Rounds that go up the tree, down it, or both, as this kind of collective needs."""
    places = [(root + number) % n for number in range(n)]  # by their number from the root on
    result: list[Round] = []
    if kind in _UP_THE_TREE:
        for branches in tree:
            result.append(_up(kind, branches, places, size))
    if kind in _DOWN_THE_TREE:
        parts_of_root = [parts[root][place] for place in places]
        for branches in reversed(tree):
            result.append(_down(kind, branches, places, size, parts_of_root))
    return result


def _up(kind: str, branches: list[Branch], places: list[int], size: int) -> Round:
    transfers = []
    for child, parent, spoken_for in branches:
        source = places[child]
        target = places[parent]
        carried = size
        if kind == "gather":
            carried = size * spoken_for
        transfers.append((source, target, carried))
    return transfers


def _down(
    kind: str,
    branches: list[Branch],
    places: list[int],
    size: int,
    parts_of_root: Sequence[float],
) -> Round:
    transfers = []
    for child, parent, spoken_for in branches:
        source = places[parent]
        target = places[child]
        carried: float = size
        if kind in _IN_PARTS:
            end = child + spoken_for
            carried = sum(parts_of_root[child:end])
        transfers.append((source, target, carried))
    return transfers
