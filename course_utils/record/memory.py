"""The memory that ranks write their record into, which outlives them.

All ranks of a launch share one anonymous file. Each rank has a part of it: a head, a row for every
event, and descriptions, each shared by many rows, such as an `all_reduce` of so many bytes at that
line. A rank sends nothing, so an event costs little, and its row is there even if the rank is
killed.

A whole record keeps all rows. Otherwise the rows are a ring of the last calls, and once there is no
more room for descriptions, everything before is forgotten.
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
from course_utils.launcher.language import _, english
from course_utils.launcher.stacks import Frame

KEPT = 1024  # rows of a ring that can be read
_WHOLE_ROWS = 8 << 20  # rows of a whole record; a file takes only the pages that were written
_DESC_BYTES = 2 << 20  # room for descriptions beside a ring
_WHOLE_DESC_BYTES = 448 << 20  # likewise in a whole record
_MAX_COUNTS = 100_000  # counts of calls that a rank keeps beside a ring; 30 MB
_NONE = -1  # in `Row.waits_for` and `Row.peer`


class _Head(ctypes.Structure):
    _fields_ = [
        ("rows_written", c_int64),  # ever; in a ring only the last ones are still there
        ("desc_bytes", c_int64),  # how many bytes of descriptions have been written
        ("first", c_int64),  # the index of the first row whose description is still there
        ("wrong", c_int64),  # 1 if none of it can be relied on
    ]


class Row(ctypes.Structure):
    """One event, as it lies in the memory.

    A rank that writes a row gives it three attributes for itself, which don't lie there:

    Attributes:
        index: how many rows the rank had written before.
        fields: its description.
        learner_has_work: for a call, whether the learner gets its work and may wait for it.
    """

    _fields_ = [
        ("description", c_int64),  # the number of its description, from 0
        ("number", c_int64),  # as in `Event`
        ("flags", c_int64),  # likewise
        ("waits_for", c_int64),  # of a wait, the index of the row of the call waited for; else -1
        ("peer", c_int64),  # who sent, if the receiver could not know before; otherwise -1
        ("start_s", c_double),  # on the system's monotonic clock, as are the other times
        ("end_s", c_double),  # 0 if nobody saw the end
        ("began_s", c_double),  # of the work of a queued call; 0 if it was not seen
        ("done_s", c_double),  # likewise, the end of that work
        ("was_issued", c_int64),  # of a call, with trace=True: 1 once its backend has it
    ]

    @property
    def is_wait(self) -> bool:
        """Whether it is a wait for a call; otherwise it's a call, or what meets nobody."""
        return self.waits_for >= 0

    def finish(self) -> None:
        """Note that the event is over; whoever says so first counts."""
        self.end_s = self.end_s or monotonic()


_HEAD_BYTES = ctypes.sizeof(_Head)
_ROW_BYTES = ctypes.sizeof(Row)
Rows = list[tuple[dict[str, Any], Row]]  # each with its description, the fields of an `Event`


def make_parts(world_size: int, keep_all: bool) -> list["Part"]:
    """Make the memory, before the fork. It exists as long as any of its parts does."""
    slot_count = _WHOLE_ROWS if keep_all else KEPT + 1  # one row of the ring may be half written
    desc_bytes = _WHOLE_DESC_BYTES if keep_all else _DESC_BYTES
    part_bytes = _HEAD_BYTES + slot_count * _ROW_BYTES + desc_bytes
    with os.fdopen(transport.anonymous_file("record"), "r+b") as file:
        file.truncate(world_size * part_bytes)
        shared = mmap.mmap(file.fileno(), 0)
    parts = []
    for rank in range(world_size):
        parts.append(Part(shared, rank * part_bytes, slot_count, desc_bytes, keep_all))
    return parts


class Part:
    """What one rank writes and the kernel reads.

    Args:
        shared: The memory of all ranks.
        start: Where this part begins, in bytes.
        slot_count: How many rows it has room for.
        desc_bytes: How many bytes of descriptions it has room for.
        keep_all: Whether it keeps all rows instead of the last ones.
    """

    def __init__(
        self, shared: mmap.mmap, start: int, slot_count: int, desc_bytes: int, keep_all: bool
    ) -> None:
        self.keeps_all = keep_all
        self.head = _Head.from_buffer(shared, start)
        self.slots = (Row * slot_count).from_buffer(shared, start + _HEAD_BYTES)
        self._shared = shared
        self._desc_start = start + _HEAD_BYTES + slot_count * _ROW_BYTES
        self._desc_end = self._desc_start + desc_bytes
        self._descriptions: dict[tuple, int] = {}  # the number of each that is written
        self._counts: dict[tuple, int] = {}
        self._lock = threading.RLock()  # autograd has threads of its own

    def read(self) -> tuple[Rows, bool]:
        """Read the rows until now, and whether these are all that were ever written.

        Without a lock, while the rank goes on. It writes in this order: the description, if it is
        new; then the row; then the count of rows. So up to the count that stood there before we
        copied, each row is whole and has its description. But since then newer rows may have taken
        slots of a ring, and newer descriptions the place of all. What the head says after the
        copying shows which rows these are.

        Raises:
            Exception: They cannot be relied on.
        """
        slot_count = len(self.slots)
        before = _Head.from_buffer_copy(self.head)
        # Without this check, a spoilt head would have us copy gigabytes.
        if before.desc_bytes > self._desc_end - self._desc_start:
            raise ValueError(_("more descriptions than there is room for"))
        slots = (Row * min(before.rows_written, slot_count)).from_buffer_copy(self.slots)
        after = _Head.from_buffer_copy(self.head)  # the rank goes on writing
        desc_end = min(self._desc_start + after.desc_bytes, self._desc_end)
        descriptions = _described(self._shared[self._desc_start : desc_end])
        if after.wrong or self.head.first != before.first:
            raise ValueError(_("these rows have other descriptions, or none"))
        # The rank may be writing one more row than it has counted, over the oldest one.
        oldest_safe = after.rows_written + 1 - slot_count
        first = max(before.first, oldest_safe)
        if before.rows_written > before.first and first >= before.rows_written:
            raise ValueError(_("all these rows were written anew while they were read"))
        described_rows = []
        for index in range(first, before.rows_written):
            row = slots[index % slot_count]
            described_rows.append((descriptions[row.description], row))
        return described_rows, first == 0

    def write(
        self,
        fields: dict[str, Any],
        frame: FrameType | None,
        counted: tuple = (),
        flags: int = 0,
        waits_for: int = _NONE,
        start_s: float = 0,
    ) -> Row:
        """Write a row and return it as it stands in the memory.

        Args:
            fields: What an `Event` says of it; for each kind always the same ones. The line of the
                learner's frame is added.
            frame: The learner's.
            counted: The row's number is its position among the rows that have this in common;
                nothing for a row that isn't counted.
            flags: As in `Event`.
            waits_for: As in `Row`.
            start_s: On the system's monotonic clock; 0 is now.
        """
        if frame:
            code = frame.f_code
            fields["line"] = code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name
        with self._lock:
            description = self._describe(fields)
            number = 0
            if counted:
                number = self._count(counted)
            index = self.head.rows_written
            slot = index % len(self.slots)
            start_s = start_s or monotonic()
            # What is left out becomes 0.
            self.slots[slot] = description, number, flags, waits_for, _NONE, start_s
            self.head.rows_written = index + 1
        row = self.slots[slot]
        row.index = index
        row.fields = fields
        return row

    def _count(self, counted: tuple) -> int:
        """The number of a call among those that are counted with it, from 1.

        A program may give each message a different tag. Counts can't be dropped one by one: a
        counter that restarts at 1 would match the wrong calls. So when there are too many, the
        whole record is given up.
        """
        number = self._counts.get(counted, 0) + 1
        is_one_too_many = number == 1 and len(self._counts) >= _MAX_COUNTS
        if is_one_too_many and not self.keeps_all:
            self._counts.clear()
            self.give_up()
        self._counts[counted] = number
        return number

    def _describe(self, fields: dict[str, Any]) -> int:
        """The number of a description, which is written if it is new."""
        key = tuple(fields.values())
        number = self._descriptions.get(key)
        if number is None:
            self._append(pickle.dumps(fields))
            number = len(self._descriptions)
            self._descriptions[key] = number
        return number

    def _append(self, description: bytes) -> None:
        """Write a description behind the others; in a ring without room, in their place."""
        head = self.head
        start = self._desc_start + head.desc_bytes
        if not self.keeps_all and start + len(description) > self._desc_end:
            self._descriptions.clear()
            head.first = head.rows_written
            head.desc_bytes = 0
            start = self._desc_start
        end = start + len(description)
        if end > self._desc_end:  # with trace=True
            raise MemoryError(_("the trace has no room for one more kind of call"))
        self._shared[start:end] = description
        head.desc_bytes += len(description)

    def still_has(self, row: Row) -> bool:
        """Whether a row of this rank stands in its slot, or a later one has taken that."""
        return self.head.rows_written - row.index < len(self.slots)

    def give_up(self) -> None:
        """Say that nothing in here can be relied on from now on."""
        self.head.wrong = 1


def _described(text: bytes) -> list[dict[str, Any]]:
    """All descriptions. The learner's lines are read now, since a cell may be edited later."""
    stream = io.BytesIO(text)
    descriptions = []
    while stream.tell() < len(text):
        description = transport.Unpickler(stream).load()
        line = description.get("line")
        if line:
            frame = Frame(*line)
            with english():  # pictures look for the line in it
                place = frame.place
            description.update(place=place, code=frame.code)
        descriptions.append(description)
    return descriptions
