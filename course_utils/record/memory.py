"""What ranks write down while they run, in memory that outlives them.

All ranks of a launch share one anonymous file, in which each has a part of its own: a row of
numbers for every event, and behind the rows the descriptions that many of them share, such as an
`all_reduce` of so many bytes at that line. A rank writes into memory and sends nothing, so an event
costs little, and what a rank has written is there even when it was killed.

Whole, the rows are all that a rank has done. Otherwise they form a ring of its last calls, and when
the descriptions have no more room, all that came before is forgotten.
"""

import io
import mmap
import os
import pickle
import struct
import threading
from array import array
from collections.abc import Iterator
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple

from course_utils.launcher import parcel

KEPT = 1024  # rows of a ring that can be read
_ALL = 8 << 20  # rows of a whole record
_TOLD = {False: 2 << 20, True: 448 << 20}  # bytes of descriptions; a file takes what was written
_ROWS, _FIRST, _TOLD_BYTES, _WRONG, _HEAD = range(5)  # cells of a part's beginning
_, _, _, OF, PEER, _, END_S, WIDE = range(8)  # cells of a row that are written later
ISSUED, ON_ITS_WAY = -1, -2  # in OF
_CELL = 8  # bytes: every number is a double
_ROW = struct.Struct(f"{WIDE}d")
_TRIES = 5


class Known(NamedTuple):
    """What all calls have in common that come from one line, with the same arguments.

    Attributes:
        number: Of its description.
        fields: Those of an `Event`.
        kept: Objects whose ids stand in the key by which it is found again.
    """

    number: int
    fields: dict[str, Any]
    kept: tuple[Any, ...]


class Row(NamedTuple):
    """One event, in numbers.

    Attributes:
        call: The number of its description, from 0.
        number: That of the `Event`, as its `flags`.
        of: The row that it waits for; of what is no wait ISSUED, or ON_ITS_WAY until it is.
        peer: The rank that has sent, where that was not known before, else -1.
        start_s: On the system's monotonic clock, as `end_s`, which is 0 if nobody saw the end.
    """

    call: float
    number: float
    flags: float
    of: float
    peer: float
    start_s: float
    end_s: float


class Part(NamedTuple):
    """What one rank has written.

    Attributes:
        calls: The descriptions.
        rows: Of each event.
        first: The number of the first of these rows; those before it are forgotten.
    """

    calls: list[dict[str, Any]]
    rows: list[Row]
    first: int


class Memory:
    """The file: in the kernel it is made, read and closed; in a rank `Writer` writes into it.

    Attributes:
        unread: By rank why what it has written could not be read.
    """

    def __init__(self, world_size: int, whole: bool) -> None:
        self.whole, self.slots = whole, _ALL if whole else KEPT + 1  # one may be being written
        self.told = _HEAD * _CELL + self.slots * _ROW.size  # where the descriptions begin
        grain = mmap.ALLOCATIONGRANULARITY
        self.part = -(-(self.told + _TOLD[whole]) // grain) * grain
        self.unread: dict[int, Exception] = {}
        self.file = parcel.anonymous_file("record")
        os.ftruncate(self.file, world_size * self.part)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.file)

    def read(self, rank: int) -> Part | None:
        """What a rank has written until now; None where that cannot be relied on."""
        for _ in range(_TRIES):  # it may be writing
            try:
                part = self._read(rank)
                self.unread.pop(rank, None)
                return part
            except Exception as error:
                self.unread[rank] = error
        return None

    def _read(self, rank: int) -> Part:
        head = self._cells(rank, 0, _HEAD)
        made = int(head[_ROWS])
        cells = self._cells(rank, _HEAD, WIDE * min(made, self.slots))
        head, first = self._cells(rank, 0, _HEAD), head[_FIRST]
        size, begin = int(head[_TOLD_BYTES]), rank * self.part + self.told
        calls = list(_loaded(os.pread(self.file, size, begin)))
        if self._cells(rank, 0, _HEAD)[_FIRST] != first or head[_WRONG]:
            raise ValueError("these rows have other descriptions, or none")
        kept = range(max(int(first), int(head[_ROWS]) + 1 - self.slots), made)
        rows = list(map(Row, *(cells[cell::WIDE] for cell in range(WIDE))))
        return Part(calls, [rows[number % self.slots] for number in kept], kept.start)

    def _cells(self, rank: int, at: int, count: int) -> array:
        return array("d", os.pread(self.file, count * _CELL, rank * self.part + at * _CELL))


def _loaded(text: bytes) -> Iterator[dict[str, Any]]:
    told = io.BytesIO(text)
    while told.tell() < len(text):
        yield parcel.Unpickler(told).load()


class Writer:
    """A rank's part of the file, in the rank.

    Attributes:
        known: What has a description, by all that it is made of.
        lock: For whoever writes a row: autograd has threads of its own.
    """

    def __init__(self, memory: Memory, rank: int) -> None:
        self.whole, self.slots, self.told = memory.whole, memory.slots, memory.told
        self.memory = mmap.mmap(memory.file, memory.part, offset=rank * memory.part)
        self.cells = memoryview(self.memory)[: self.told].cast("d")
        self.known: dict[tuple, Known] = {}
        self.lock, self.made, self.free = threading.RLock(), 0, self.told

    def known_as(self, key: tuple, frame: FrameType | None, *kept: Any, **fields: Any) -> Known:
        """Describe what was not known by this key before, at the learner's frame."""
        if frame:
            code = frame.f_code
            fields["line"] = code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name
        number = self._describe(fields)
        self.known[key] = Known(number, fields, (*kept, frame and frame.f_code))
        return self.known[key]

    def _describe(self, fields: dict[str, Any]) -> int:
        text = pickle.dumps(fields)
        if not self.whole and self.free + len(text) > len(self.memory):
            self.known.clear()
            self.free = self.told
            self.cells[_FIRST], self.cells[_TOLD_BYTES] = self.made, 0
        self.memory[self.free : self.free + len(text)] = text
        self.free += len(text)
        self.cells[_TOLD_BYTES] = self.free - self.told
        return len(self.known)

    def add(
        self, call: int, number: int, flags: int, of: int = ISSUED, start_s: float | None = None
    ) -> int:
        """Write a row, by default one that starts now; return its number."""
        row, start_s = self.made, monotonic() if start_s is None else start_s
        at = _HEAD * _CELL + row % self.slots * _ROW.size
        _ROW.pack_into(self.memory, at, call, number, flags, of, -1, start_s, 0)
        self.made = row + 1
        self.cells[_ROWS] = row + 1
        return row

    def put(self, row: int, cell: int, value: float) -> None:
        """Write down of a row what was not known before."""
        self.cells[_HEAD + WIDE * row + cell] = value

    def finish(self, row: int) -> None:
        """An event is over; what says so first counts."""
        at = _HEAD + WIDE * row + END_S
        if not self.cells[at]:
            self.cells[at] = monotonic()

    def give_up(self) -> None:
        """What is written is not to be relied on from now on."""
        self.cells[_WRONG] = 1
