"""What ranks write down while they run, in memory that outlives them.

All ranks of a launch share one anonymous file, in which each has a part of its own: a row of
numbers for every event, and behind the rows the descriptions that many of them share, such as an
`all_reduce` of so many bytes at that line. A rank writes into memory and sends nothing, so an event
costs little, and what a rank has written is there even when it was killed.
"""

import io
import itertools
import mmap
import os
import pickle
import struct
from array import array
from typing import Any, NamedTuple

from course_utils.launcher import parcel

# The file is as large as this for each rank, and takes as much memory as was written into it.
_PART = 1 << 30
_TOLD = _PART // 2  # where the descriptions begin, in bytes
_ROWS, _ENDED_S, _ENDED_CPU_S, _TOLD_BYTES, _HEAD = range(5)  # cells of a part's beginning
CALL, OF, CPU_S, START_S, END_S, WIDE = range(6)  # cells of a row
_CELL = 8  # bytes: every number is a double
_ROW = struct.Struct(f"{WIDE}d")
_ROW_0 = _HEAD * _CELL


class Part(NamedTuple):
    """What one rank has written.

    Attributes:
        calls: The descriptions.
        cells: Of each event CALL (the number of its description, from 0), OF (the event that it
            waits for, or -1), CPU_S, START_S and END_S (0 if nobody saw its end), row by row.
        ended: When its function returned (0 if it did not), and its CPU seconds since the last row.
    """

    calls: list[dict[str, Any]]
    cells: array
    ended: tuple[float, float]


class Ledger:
    """The file: in the kernel it is made, read and closed; in a rank `Writer` writes into it."""

    def __init__(self, world_size: int) -> None:
        self.file = parcel.anonymous_file("trace")
        os.ftruncate(self.file, world_size * _PART)

    def close(self) -> None:
        """Give the memory back."""
        os.close(self.file)

    def read(self, rank: int) -> Part:
        """What a rank has written until now."""
        begin = rank * _PART
        head = array("d", os.pread(self.file, _HEAD * _CELL, begin))
        told = io.BytesIO(os.pread(self.file, int(head[_TOLD_BYTES]), begin + _TOLD))
        size = int(head[_ROWS]) * WIDE * _CELL
        cells = array("d", os.pread(self.file, size, begin + _HEAD * _CELL))
        calls = []
        while told.tell() < head[_TOLD_BYTES]:
            calls.append(parcel.Unpickler(told).load())
        return Part(calls, cells, (head[_ENDED_S], head[_ENDED_CPU_S]))


class Writer:
    """A rank's part of the file, in the rank."""

    def __init__(self, ledger: Ledger, rank: int) -> None:
        self.memory = mmap.mmap(ledger.file, _PART, offset=rank * _PART)
        self.cells = memoryview(self.memory)[:_TOLD].cast("d")
        self.number, self.told = itertools.count(), itertools.count()
        self.free = _TOLD

    def describe(self, call: dict[str, Any]) -> int:
        """Write a description; return its number."""
        text = pickle.dumps(call)
        self.memory[self.free : self.free + len(text)] = text
        self.free += len(text)
        self.cells[_TOLD_BYTES] = self.free - _TOLD
        return next(self.told)

    def add(self, call: int, of: int, cpu_s: float, start_s: float, end_s: float) -> int:
        """Write a row; return its number, which its event will have."""
        number = next(self.number)
        _ROW.pack_into(self.memory, _ROW_0 + number * _ROW.size, call, of, cpu_s, start_s, end_s)
        self.cells[_ROWS] = number + 1
        return number

    def finish(self, number: int, end_s: float) -> None:
        """An event is over; what says so first counts."""
        at = _HEAD + WIDE * number + END_S
        if not self.cells[at]:
            self.cells[at] = end_s

    def correct(self, number: int, call: int) -> None:
        """Give an event another description."""
        self.cells[_HEAD + WIDE * number] = call

    def end(self, end_s: float, cpu_s: float) -> None:
        """The rank's function has returned."""
        self.cells[_ENDED_S], self.cells[_ENDED_CPU_S] = end_s, cpu_s
