"""Patterns of messages within a group, of which collectives are made.

Each function appends to the steps of every rank. A rank takes its steps in order: one that sends
does not wait, one that takes waits for the message.
"""

from collections.abc import Callable, Sequence

# One rank's part: (other, bytes) sends to the other, (other, None) takes what the other sends.
Step = tuple[int, float | None]
Steps = list[list[Step]]


def message(steps: Steps, source: int, target: int, size: float) -> None:
    """One rank sends, another one takes."""
    steps[source].append((target, size))
    steps[target].append((source, None))


def rotate(steps: Steps, size: Callable[[int, int], float]) -> None:
    """Let every rank send to the next one of the ring, in n - 1 turns."""
    n = len(steps)
    for turn in range(n - 1):
        for rank in range(n):
            steps[rank].append(((rank + 1) % n, size(rank, turn)))
            steps[rank].append(((rank - 1) % n, None))


def exchange(steps: Steps, in_turns: bool, size: Callable[[int, int], float]) -> None:
    """Everyone to everyone: in turns with one partner each, or everything at once."""
    n = len(steps)
    sends = [[((r + k) % n, size(r, (r + k) % n)) for k in range(1, n)] for r in range(n)]
    takes = [[((r - k) % n, None) for k in range(1, n)] for r in range(n)]
    for rank in range(n):
        if in_turns:
            both = zip(sends[rank], takes[rank], strict=True)
            steps[rank] += [step for turn in both for step in turn]
        else:
            steps[rank] += sends[rank] + takes[rank]


def down(steps: Steps, root: int, size: Callable[[int, int], float]) -> None:
    """A binomial tree from the root; `size(v, m)` for the m ranks from v on, counted from root."""
    n, mask = len(steps), 1
    while mask < n:
        mask *= 2
    while mask := mask // 2:
        for v in range(0, n, 2 * mask):
            if v + mask < n:
                amount = size(v + mask, min(mask, n - v - mask))
                message(steps, (v + root) % n, (v + mask + root) % n, amount)


def up(steps: Steps, root: int, size: Callable[[int, int], float]) -> None:
    """The same tree towards the root."""
    n, mask = len(steps), 1
    while mask < n:
        for v in range(0, n - mask, 2 * mask):
            amount = size(v + mask, min(mask, n - v - mask))
            message(steps, (v + mask + root) % n, (v + root) % n, amount)
        mask *= 2


def pipeline(steps: Steps, first: int, size: float) -> None:
    """Pass n pieces from `first` once around the ring, one behind the other."""
    n = len(steps)
    for _ in range(n):
        for hop in range(n - 1):
            message(steps, (first + hop) % n, (first + hop + 1) % n, size / n)


def fan_out(steps: Steps, root: int, sizes: Sequence[float]) -> None:
    """The root to everyone, `sizes` by place."""
    n = len(steps)
    for k in range(1, n):
        message(steps, root, (root + k) % n, sizes[(root + k) % n])


def fan_in(steps: Steps, root: int, size: float) -> None:
    """Everyone to the root."""
    n = len(steps)
    for k in range(1, n):
        message(steps, (root + k) % n, root, size)
