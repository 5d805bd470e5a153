"""How slow this machine is at this moment, and deadlines that are as patient as that asks for.

A limit that only says "long enough" was chosen on a quiet machine that adds a million numbers in
0.03 s. On a slower or busier one everything takes longer, and so does this addition.
"""

import time

_ADDITIONS, _QUIET_S = 1_000_000, 0.03
_RECENT_S = 1.0  # to whoever asks again and again a machine is as slow as it was just now
_measured: list[tuple[float, int]] = []  # the last one: when, and what


def slowness(recent_s: float = 0.0) -> int:
    """How many times as long as on that machine a computation takes here and now; at least 1.

    Args:
        recent_s: what was measured at most so many seconds ago is good enough.
    """
    begun, total = time.monotonic(), 0
    if _measured and begun - _measured[-1][0] < recent_s:
        return _measured[-1][1]
    for number in range(_ADDITIONS):
        total += number
    took_s = time.monotonic() - begun
    measured = max(1, int(took_s / _QUIET_S))
    _measured[:] = [(begun, measured)]
    return measured


class Deadline:
    """Over after so many seconds, and on a slow machine after as many times more.

    Args:
        seconds: what is long enough on a quiet machine, from now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self._begun = seconds, time.monotonic()

    def is_over(self) -> bool:
        """Whether it is; only then the machine is measured."""
        spent_s = time.monotonic() - self._begun
        return spent_s > self.seconds and spent_s > self.seconds * slowness(_RECENT_S)
