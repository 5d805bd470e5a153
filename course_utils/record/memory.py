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
from collections.abc import Callable
from time import monotonic
from types import CodeType, FrameType
from typing import Any, NamedTuple

from course_utils.launcher import parcel
from course_utils.launcher.stacks import Frame

KEPT = 1024  # rows of a ring that can be read
_ALL = 8 << 20  # rows of a whole record
_TOLD = {False: 2 << 20, True: 448 << 20}  # bytes of descriptions; a file takes what was written
_ROWS, _FIRST, _TOLD_BYTES, _WRONG, _HEAD = range(5)  # cells of a part's beginning
OF, PEER, _END_S, _WIDE = 3, 4, 6, 7  # cells of a row, as they stand in `Row`
ISSUED, ON_ITS_WAY = -1, -2  # in OF
_CELL = 8  # bytes
_ROW = struct.Struct("5q2d")
_TRIES = 5


class Known(NamedTuple):
    """What calls of one line with the same arguments share: a description, with its number."""

    number: int
    fields: dict[str, Any]
    code: CodeType | None  # its id stands in the key by which this is found again


class Row(NamedTuple):
    """One event.

    Attributes:
        call: Its description, the fields of an `Event`; in the file the number of it, from 0.
        number: That of the `Event`, as its `flags`.
        of: The row that it waits for; of what is no wait ISSUED, or ON_ITS_WAY until it is.
        peer: The rank that has sent, where that was not known before, else -1.
        start_s: On the system's monotonic clock, as `end_s`, which is 0 if nobody saw the end.
    """

    call: dict[str, Any]
    number: int
    flags: int
    of: int
    peer: int
    start_s: float
    end_s: float


class Memory:
    """The file, in the kernel, which reads it; `unread`: by rank why that could not be done."""

    def __init__(self, world_size: int, whole: bool) -> None:
        self.whole, self.slots = whole, _ALL if whole else KEPT + 1  # one may be being written
        self.told = _HEAD * _CELL + self.slots * _ROW.size  # where the descriptions begin
        grain = mmap.ALLOCATIONGRANULARITY
        self.part = -(-(self.told + _TOLD[whole]) // grain) * grain
        self.unread: dict[int, Exception] = {}
        self.file = parcel.anonymous_file("record")
        os.ftruncate(self.file, world_size * self.part)

    def read(self, rank: int) -> tuple[list[Row], bool] | None:
        """A rank's rows until now, and whether these are all; None if not to be relied on."""
        for _ in range(_TRIES):  # it may be writing
            try:
                rows = self._read(rank)
                self.unread.pop(rank, None)
                return rows
            except Exception as error:
                self.unread[rank] = error
        return None

    def _read(self, rank: int) -> tuple[list[Row], bool]:
        made, first, *_ = self._head(rank)
        size = min(made, self.slots) * _ROW.size
        rows = list(_ROW.iter_unpack(self._bytes(rank, _HEAD * _CELL, size)))
        now, _, size, wrong = self._head(rank)
        calls = _described(self._bytes(rank, self.told, size))
        if wrong or self._head(rank)[_FIRST] != first:
            raise ValueError("these rows have other descriptions, or none")
        kept = range(max(first, now + 1 - self.slots), made)
        found = (rows[number % self.slots] for number in kept)
        return [Row(calls[call], *numbers) for call, *numbers in found], kept.start == 0

    def _head(self, rank: int) -> tuple[int, ...]:
        return struct.unpack(f"{_HEAD}q", self._bytes(rank, 0, _HEAD * _CELL))

    def _bytes(self, rank: int, at: int, size: int) -> bytes:
        return os.pread(self.file, size, rank * self.part + at)


def _described(text: bytes) -> list[dict[str, Any]]:
    """All descriptions; the learner's lines are read now: a cell can be another one later."""
    told, calls = io.BytesIO(text), []
    while told.tell() < len(text):
        calls.append(call := parcel.Unpickler(told).load())
        if line := call.get("line"):
            frame = Frame(*line)
            call.update(place=frame.place, code=frame.code)
    return calls


class Written(NamedTuple):
    """A row that this rank has written."""

    row: int
    known: Known
    flags: int


class Writer:
    """A rank's part of the file, in the rank."""

    def __init__(self, memory: Memory, rank: int) -> None:
        self.whole, self.slots, self.told = memory.whole, memory.slots, memory.told
        self.memory = mmap.mmap(memory.file, memory.part, offset=rank * memory.part)
        cells = memoryview(self.memory)[: self.told]
        self.cells, self.seconds = cells.cast("q"), cells.cast("d")
        self.known: dict[tuple, Known] = {}
        self.counts: dict[tuple, int] = {}
        self.made, self.free = 0, self.told
        self.lock = threading.RLock()  # autograd has threads of its own

    def write(
        self, key: tuple, frame: FrameType | None, describe: Callable[..., dict[str, Any]],
        counted: tuple = (), flags: int = 0, of: int = ISSUED, start_s: float | None = None,
    ) -> Written:  # fmt: skip
        """Write a row, by default one that starts now.

        Args:
            key: What all that share a description have in common, besides their line.
            frame: The learner's.
            describe: Given the key, says what it means, where that is not known yet.
            counted: What it is counted by; by nothing where it has no number.
            flags: As in `Row`.
            of: As in `Row`.
            start_s: As in `Row`.
        """
        code, at = (frame.f_code, frame.f_lasti) if frame else (None, 0)
        place = (*key, id(code), at)
        with self.lock:
            known = self.known.get(place) or self._describe(place, frame, describe(*key))
            number = self.counts[counted] = self.counts.get(counted, 0) + 1 if counted else 0
            row, now = self.made, monotonic() if start_s is None else start_s
            at = _HEAD * _CELL + row % self.slots * _ROW.size
            _ROW.pack_into(self.memory, at, known.number, number, flags, of, -1, now, 0)
            self.made = self.cells[_ROWS] = row + 1
        return Written(row, known, flags)

    def _describe(self, key: tuple, frame: FrameType | None, fields: dict[str, Any]) -> Known:
        if code := frame and frame.f_code:
            line = frame.f_lineno or code.co_firstlineno
            fields["line"] = code.co_filename, line, code.co_name
        text = pickle.dumps(fields)
        if not self.whole and self.free + len(text) > len(self.memory):
            self.known.clear()
            self.free = self.told
            self.cells[_FIRST], self.cells[_TOLD_BYTES] = self.made, 0
        self.memory[self.free : self.free + len(text)] = text
        self.free += len(text)
        self.cells[_TOLD_BYTES] = self.free - self.told
        return self.known.setdefault(key, Known(len(self.known), fields, code))

    def put(self, row: int, cell: int, value: int) -> None:
        """Write down of a row what was not known before."""
        self.cells[_HEAD + _WIDE * row + cell] = value

    def finish(self, *rows: int) -> None:
        """Events are over; what says so first counts."""
        for row in rows:
            at = _HEAD + _WIDE * row + _END_S
            self.seconds[at] = self.seconds[at] or monotonic()

    def give_up(self) -> None:
        """What is written is not to be relied on from now on."""
        self.cells[_WRONG] = 1
