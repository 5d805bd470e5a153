"""The challenge's leagues: networks, sizes, and the time that no all-reduce can beat on them.

`exercises/challenge.ipynb` derives every bound. n ranks, S bytes, a message takes alpha + bytes *
beta, its port bytes * beta; w = S * beta is how long a port takes for a whole tensor.
"""

from collections.abc import Callable
from typing import NamedTuple

from course_utils import Network
from course_utils.network.trace import Trace

WORLD_SIZES = (4, 6)
SIZES = {"1 KiB": 2**10, "16 KiB": 2**14, "128 KiB": 2**17, "1 MiB": 2**20}
ALPHA, BETA = 10.0, 8 / 80_000  # 10 µs, 80 Gbit/s
NEAR_ALPHA, NEAR_BETA = 2.0, 8 / 800_000  # inside a node: 2 µs, 800 Gbit/s
SLOWER, LATE_US = 20, 150.0


class League(NamedTuple):
    """One league: what its network is, and what no all-reduce of n ranks and S bytes can beat."""

    network: Network
    bound_us: Callable[[int, float], float]  # since `late_us`
    late_us: float = 0.0  # so late the last rank starts; times count from then on

    def time_us(self, trace: Trace) -> float:
        """How long a recording takes here."""
        late = [0.0] * trace.world_size
        late[-1] = self.late_us
        replay = trace.replay(self.network, compute=tuple(late))
        return max(replay.finish_us) - self.late_us


def flat_us(n: int, size: float) -> float:
    """2(n - 1) copies of each number; or all n - 1 at first hand; or something arrives later."""
    w = size * BETA
    all_copies = ALPHA + 2 * (n - 1) / n * w
    first_hand = ALPHA + (n - 1) * w
    mixed = 2 * ALPHA + w - ALPHA / (n - 1)
    return max(all_copies, min(first_hand, mixed))


def slow_link_us(n: int, size: float) -> float:
    """Ranks 0 and 1 wait for the slow link, or get everything through another rank."""
    slow_link = SLOWER * ALPHA
    around_it = 2 * ALPHA + size * BETA
    return max(flat_us(n, size), min(slow_link, around_it))


def two_levels_us(n: int, size: float) -> float:
    """Each number goes into each node at least once, and from there to its other ranks."""
    near = size * NEAR_BETA
    far = size * BETA
    in_node = n // 2
    all_copies = NEAR_ALPHA + (2 * far + 2 * (n - 2) * near) / n
    from_afar = ALPHA + (2 * far + (n - 2) * near) / n
    first_hand = ALPHA + in_node * far
    mixed = NEAR_ALPHA + ALPHA + near - NEAR_ALPHA * NEAR_BETA / (in_node * BETA)
    return max(all_copies, from_afar, min(first_hand, mixed))


def late_rank_us(n: int, size: float) -> float:
    """What the late rank has leaves it by one port, and reaches the others in one hop or in two."""
    w = size * BETA
    one_hop = (n - 1) * w
    two_hops = (n - 1) * (ALPHA + w) / n
    return ALPHA + max(w, min(one_hop, two_hops))


_FLAT = Network(latency_us=ALPHA, gbit_s=80)
_SLOW_LINKS = {(0, 1): float(SLOWER), (1, 0): float(SLOWER)}
_SLOW = Network(latency_us=ALPHA, gbit_s=80, slow_links=_SLOW_LINKS)
_NODES = Network(latency_us=NEAR_ALPHA, gbit_s=800, nodes=2, between=(ALPHA, 80))
LEAGUES = {
    "flat": League(_FLAT, flat_us),
    "slow link": League(_SLOW, slow_link_us),
    "two levels": League(_NODES, two_levels_us),
    "late rank": League(_FLAT, late_rank_us, LATE_US),
}
