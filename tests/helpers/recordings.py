"""Recordings written by hand, and a place where figures land instead of a notebook."""

from typing import Any

import pytest

from course_utils import Network
from course_utils.network.trace import Event, Trace

NETWORK = Network(latency_us=10, gbit_s=80)


class Shown(list):
    """What would be displayed: (data, metadata) of each output."""

    def __call__(self, data: dict[str, Any], metadata: Any = None, raw: bool = False) -> None:
        self.append((data, metadata))

    @property
    def text(self) -> str:
        """The last picture in words."""
        return self[-2][0]["text/plain"].removeprefix("Figure: ")

    @property
    def caption(self) -> str:
        """What is seen below it."""
        return self[-1][0]["text/plain"]


def event(rank: int, index: int, kind: str, size: int, n: int = 2, **fields: Any) -> Event:
    fields = {"group": tuple(range(n)), "blocking": True, "start_s": 0.0, "end_s": 0.0} | fields
    return Event(rank=rank, index=index, kind=kind, bytes=size, **fields)


def one_message(size: int = 10_000) -> Trace:
    """Rank 0 sends, rank 1 asks for it 5 ms later; both have it after 7 ms."""
    return Trace(
        (
            event(0, 0, "send", size, peer=1, tag=0, start_s=1.0, end_s=1.007),
            event(1, 0, "recv", size, peer=0, tag=0, start_s=1.005, end_s=1.007),
        ),
        (1.010, 1.008),
    )


def ring(n: int) -> Trace:
    """A ring all-reduce written with isend and irecv."""
    events = []
    for rank in range(n):
        for at in range(0, 8 * (n - 1), 4):
            to, fro = {"peer": (rank + 1) % n, "tag": 0}, {"peer": (rank - 1) % n, "tag": 0}
            events += [
                event(rank, at, "send", 4096, n, blocking=False, **to),
                event(rank, at + 1, "recv", 4096, n, blocking=False, **fro),
                event(rank, at + 2, "wait", 0, n, of=at),
                event(rank, at + 3, "wait", 0, n, of=at + 1),
            ]
    return Trace(tuple(events), (0.0,) * n)


def straggler(kind: str = "all_reduce", root: int | None = None) -> Trace:
    """Three ranks in one collective; rank 2 calls it 20 ms after the others."""
    times = [(0.0, 0.025), (0.001, 0.025), (0.020, 0.025)]
    events = [
        event(rank, 0, kind, 960, 3, root=root, start_s=start, end_s=end)
        for rank, (start, end) in enumerate(times)
    ]
    return Trace(tuple(events), (0.025,) * 3)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What would be displayed in a notebook."""
    shown = Shown()
    monkeypatch.setattr("course_utils.pictures.style.display", shown)
    monkeypatch.setattr("course_utils.pictures.style.get_ipython", object)
    return shown
