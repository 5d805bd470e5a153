"""How slow this machine is at this moment, and deadlines that are as patient as that asks for.

A limit that only says "long enough" was chosen on a quiet machine that adds a million numbers in
0.03 s. On a slower or busier one everything takes longer, and so does this addition.
"""

import time

_ADDITIONS = 1_000_000
_QUIET_S = 0.03
_RECENT_S = 1.0  # a deadline that is asked again and again measures once in this time
_measured: list[tuple[float, int]] = []  # the last measurement: when, and how slow


def slowness(recent_s: float = 0.0) -> int:
    """How many times as long as on that machine a computation takes here and now; at least 1.

    It is measured, which takes 0.03 s on a quiet machine, and so many times that here.

    Args:
        recent_s: A measurement that is at most this many seconds old is good enough.
    """
    began_s = time.monotonic()
    for measured_s, measured_slowness in _measured:
        if began_s - measured_s < recent_s:
            return measured_slowness
    total = 0
    for number in range(_ADDITIONS):
        total += number
    took_s = time.monotonic() - began_s
    slowness_now = max(1, int(took_s / _QUIET_S))
    _measured[:] = [(began_s, slowness_now)]
    return slowness_now


class Deadline:
    """Over after so many seconds, and on a slow machine after as many times more.

    Args:
        seconds: What is long enough on a quiet machine, from now on.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began_s = time.monotonic()

    def is_over(self) -> bool:
        """Whether it is. The machine is measured only when the seconds themselves have passed."""
        spent_s = time.monotonic() - self._began_s
        if spent_s <= self.seconds:
            return False
        return spent_s > self.seconds * slowness(_RECENT_S)
