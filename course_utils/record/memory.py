"""What ranks write down while they run, in memory that outlives them.

All ranks of a launch share one anonymous file, in which each has a part: a head, a row for every
event, and the descriptions that many rows share, such as an `all_reduce` of so many bytes at that
line. A rank sends nothing, so an event costs little, and is there even when the rank was killed.

Whole, the rows are all that a rank has done. Otherwise they form a ring of its last calls, and when
the descriptions have no more room, all that came before is forgotten.
"""

import ctypes
import io
import mmap
import os
import pickle
import threading
from ctypes import c_double, c_int64
from time import monotonic
from types import FrameType
from typing import Any

from course_utils.launcher import transport
from course_utils.launcher.stacks import Frame

KEPT = 1024  # rows of a ring that can be read
_ALL = 8 << 20  # rows of a whole record
_TOLD = {False: 2 << 20, True: 448 << 20}  # bytes of descriptions; a file takes what was written
ISSUED, ON_ITS_WAY = -1, -2  # in `Row.of`


class _Head(ctypes.Structure):
    # How many rows are written, how many bytes of descriptions, the first row that has one; and
    # whether nothing of it is to be relied on.
    _fields_ = [(name, c_int64) for name in ("rows", "told", "first", "wrong")]


class Row(ctypes.Structure):
    """One event; the rank that writes it knows `index` and `fields` of it as well."""

    _fields_ = [
        ("call", c_int64),  # the number of its description, from 0
        ("number", c_int64),  # that of the `Event`, as its flags
        ("flags", c_int64),
        ("of", c_int64),  # the row that it waits for; else ISSUED, or ON_ITS_WAY until it is
        ("peer", c_int64),  # the rank that has sent, where that was not known before, else -1
        ("start_s", c_double),  # on the system's monotonic clock
        ("end_s", c_double),  # likewise; 0 if nobody saw the end
        # Likewise, of the work of a call that ended when it was queued; 0 if nobody saw them.
        ("began_s", c_double),
        ("done_s", c_double),
    ]

    def finish(self) -> None:
        """The event is over; who says so first counts."""
        self.end_s = self.end_s or monotonic()


_ROWS, _ROW = ctypes.sizeof(_Head), ctypes.sizeof(Row)  # bytes: where the rows begin, and of each
Rows = list[tuple[dict[str, Any], Row]]  # each with its description, the fields of an `Event`


def made(world_size: int, whole: bool) -> list["Part"]:
    """Make the memory, before the fork; it is there as long as a part of it."""
    told = _ROWS + (_ALL if whole else KEPT + 1) * _ROW  # one row may be being written
    size = told + _TOLD[whole]
    with os.fdopen(transport.anonymous_file("record"), "r+b") as file:
        file.truncate(world_size * size)
        shared = mmap.mmap(file.fileno(), 0)
    return [Part(shared, rank * size, told, size, whole) for rank in range(world_size)]


class Part:
    """What one rank writes, and the kernel reads."""

    def __init__(self, shared: mmap.mmap, start: int, told: int, size: int, whole: bool) -> None:
        self.shared, self.whole = shared, whole
        self.told, self.end = start + told, start + size  # where the descriptions begin and end
        self.head = _Head.from_buffer(shared, start)
        self.rows = (Row * ((told - _ROWS) // _ROW)).from_buffer(shared, start + _ROWS)
        self.known: dict[tuple, int] = {}
        self.counts: dict[tuple, int] = {}
        self.lock = threading.RLock()  # autograd has threads of its own

    def read(self) -> tuple[Rows, bool]:
        """The rows until now, and whether these are all.

        Raises:
            Exception: They are not to be relied on.
        """
        before, slots = _Head.from_buffer_copy(self.head), len(self.rows)
        if before.told > self.end - self.told:  # else a spoilt head would have us copy gigabytes
            raise ValueError("more descriptions than there is room for")
        rows = (Row * min(before.rows, slots)).from_buffer_copy(self.rows)
        head = _Head.from_buffer_copy(self.head)
        calls = _described(self.shared[self.told : min(self.told + head.told, self.end)])
        if head.wrong or self.head.first != before.first:
            raise ValueError("these rows have other descriptions, or none")
        kept = range(max(before.first, head.rows + 1 - slots), before.rows)
        if before.rows > before.first and not kept:
            raise ValueError("all these rows were written anew while they were read")
        found = (rows[number % slots] for number in kept)
        return [(calls[row.call], row) for row in found], kept.start == 0

    def write(
        self, fields: dict[str, Any], frame: FrameType | None, counted: tuple = (), flags: int = 0,
        of: int = ISSUED, start_s: float = 0,
    ) -> Row:  # fmt: skip
        """Write a row, by default one that starts now, and return it as it stands in the memory.

        What an `Event` says of it are its `fields`, of a kind always the same ones, and the line
        of the learner's frame; its number is that among what is `counted` alike.
        """
        if frame:
            code = frame.f_code
            fields["line"] = code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name
        with self.lock:
            call, index = self._describe(fields), self.head.rows
            number = self.counts[counted] = self.counts.get(counted, 0) + 1 if counted else 0
            at = index % len(self.rows)
            self.rows[at] = call, number, flags, of, -1, start_s or monotonic(), 0
            self.head.rows = index + 1
        row = self.rows[at]
        row.index, row.fields = index, fields
        return row

    def _describe(self, fields: dict[str, Any]) -> int:
        """The number of a description, which is written where it is new."""
        key = tuple(fields.values())
        if key not in self.known:
            text = pickle.dumps(fields)
            if not self.whole and self.told + self.head.told + len(text) > self.end:
                self.known.clear()
                self.head.first, self.head.told = self.head.rows, 0
            at = self.told + self.head.told
            self.shared[at : min(at + len(text), self.end)] = text
            self.head.told += len(text)
            self.known[key] = len(self.known)
        return self.known[key]

    def give_up(self) -> None:
        """What is written is not to be relied on from now on."""
        self.head.wrong = 1


def _described(text: bytes) -> list[dict[str, Any]]:
    """All descriptions; the learner's lines are read now: a cell can be another one later."""
    told, calls = io.BytesIO(text), []
    while told.tell() < len(text):
        calls.append(call := transport.Unpickler(told).load())
        if line := call.get("line"):
            frame = Frame(*line)
            call.update(place=frame.place, code=frame.code)
    return calls
