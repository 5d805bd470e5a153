"""The challenge's leagues: networks, sizes, and the time that no all-reduce can beat on them.

`exercises/challenge.ipynb` derives every bound. n ranks, S bytes, a message takes alpha + bytes *
beta, its port bytes * beta; w = S * beta is how long a port takes for a whole tensor.
"""

from collections.abc import Callable
from typing import NamedTuple

from course_utils import Network
from course_utils.network.trace import Trace

WORLD_SIZES = (4, 6)
KIB = 1024
SIZES = {"1 KiB": KIB, "16 KiB": 16 * KIB, "128 KiB": 128 * KIB, "1 MiB": 1024 * KIB}
ALPHA = 10.0  # µs
BETA = 8 / 80_000  # µs for a byte at 80 Gbit/s
NEAR_ALPHA = 2.0  # inside a node
NEAR_BETA = 8 / 800_000  # at 800 Gbit/s
SLOWER = 20
LATE_US = 150.0


class League(NamedTuple):
    """One league: what its network is, and what no all-reduce of n ranks and S bytes can beat."""

    network: Network
    bound_us: Callable[[int, float], float]  # since `late_us`
    late_us: float = 0.0  # so late the last rank starts; times count from then on

    def time_us(self, trace: Trace) -> float:
        """How long a recording takes here."""
        compute_us = [0.0] * trace.world_size
        compute_us[-1] = self.late_us
        replay = trace.replay(self.network, compute=tuple(compute_us))
        last_us = max(replay.finish_us)
        return last_us - self.late_us


def flat_us(n: int, size: float) -> float:
    """2(n - 1) copies of each number; or all n - 1 at first hand; or something arrives later."""
    w = size * BETA
    others = n - 1
    copies = 2 * others / n
    copied_us = copies * w
    all_copies = ALPHA + copied_us
    received_us = others * w
    first_hand = ALPHA + received_us
    two_hops = 2 * ALPHA + w
    overlapped = ALPHA / others
    mixed = two_hops - overlapped
    without_copies = min(first_hand, mixed)
    return max(all_copies, without_copies)


def slow_link_us(n: int, size: float) -> float:
    """Ranks 0 and 1 wait for the slow link, or get everything through another rank."""
    w = size * BETA
    over_it = SLOWER * ALPHA
    around_it = 2 * ALPHA + w
    slow_link = min(over_it, around_it)
    flat = flat_us(n, size)
    return max(flat, slow_link)


def two_levels_us(n: int, size: float) -> float:
    """Each number goes into each node at least once, and from there to its other ranks."""
    near = size * NEAR_BETA
    far = size * BETA
    in_node = n // 2
    into_nodes = 2 * far
    not_first_in_node = n - 2
    within_nodes = not_first_in_node * near
    copies_of_all = into_nodes + 2 * within_nodes
    copied_by_each = copies_of_all / n
    all_copies = NEAR_ALPHA + copied_by_each
    copies_from_afar = into_nodes + within_nodes
    from_afar_by_each = copies_from_afar / n
    from_afar = ALPHA + from_afar_by_each
    received_us = in_node * far
    first_hand = ALPHA + received_us
    far_beta = in_node * BETA
    overlapped = NEAR_ALPHA * NEAR_BETA / far_beta
    two_hops = NEAR_ALPHA + ALPHA + near
    mixed = two_hops - overlapped
    without_copies = min(first_hand, mixed)
    return max(all_copies, from_afar, without_copies)


def late_rank_us(n: int, size: float) -> float:
    """What the late rank has leaves it by one port, and reaches the others in one hop or in two."""
    w = size * BETA
    others = n - 1
    one_hop = others * w
    hop = ALPHA + w
    two_hops = others * hop / n
    fewest_hops = min(one_hop, two_hops)
    leaving_us = max(w, fewest_hops)
    return ALPHA + leaving_us


_FLAT = Network(latency_us=ALPHA, gbit_s=80)
_SLOW_LINKS = {(0, 1): float(SLOWER), (1, 0): float(SLOWER)}
_SLOW = Network(latency_us=ALPHA, gbit_s=80, slow_links=_SLOW_LINKS)
_BETWEEN_NODES = (ALPHA, 80)
_NODES = Network(latency_us=NEAR_ALPHA, gbit_s=800, nodes=2, between=_BETWEEN_NODES)
LEAGUES = {
    "flat": League(_FLAT, flat_us),
    "slow link": League(_SLOW, slow_link_us),
    "two levels": League(_NODES, two_levels_us),
    "late rank": League(_FLAT, late_rank_us, LATE_US),
}
