"""What a rank notes about each of its calls, where the kernel can read it when the rank hangs.

A stack shows in which line a rank waits, not for whom, nor how often it was there. So every call
of a process group leaves one record in memory that the rank shares with the kernel: a ring of the
last calls, and a table of the lines and groups that they name. Writing one takes a few microseconds
and never fails a call: whatever goes wrong, the notes end, and the report says less.
"""

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import torch

from course_utils.launcher.stacks import Frame

KEPT = 1024  # calls of each rank, the last ones
_HEAD = struct.Struct("<QII")  # calls made, bytes of the table, whether something went wrong
_CALL = struct.Struct("<dIBBBBHHiqq4q")
_RING, _TABLE = 64, 64 + KEPT * _CALL.size
_BYTES = _TABLE + 48 * 1024
_COLLECTIVES = "all_gather all_reduce all_to_all barrier broadcast gather reduce reduce_scatter"
_KINDS = [*_COLLECTIVES.split(), "scatter", "send", "recv", "new_group", "return"]
_DTYPES = [value for value in vars(torch).values() if isinstance(value, torch.dtype)]
_KIND = {kind: number for number, kind in enumerate(_KINDS)}
_DTYPE = {dtype: number for number, dtype in enumerate(_DTYPES)}
NONE = 0xFFFF
# What more is known about a call.
ASYNC, FORWARD, EVALUATES, BACKWARD, WRAPS, UNFINISHED = (1 << bit for bit in range(6))


@dataclass(frozen=True, repr=False)
class Call:
    """One call of one rank.

    Attributes:
        kind: "send", "recv", "new_group", or the name of a collective, such as "all_reduce".
        number: Counted from 1: the rank's collectives in this group, its messages from or to this
            peer with this tag, its calls of `new_group`.
        group: Global ranks of the process group, in its order; of `new_group`, those it is to have.
        group_name: What torch calls the group.
        line: The learner's line; None where there is none.
        when: Seconds on the system's monotonic clock.
        peer: Global rank at the other end of a message; None where any rank may be.
        root: Global rank that a broadcast, reduce, scatter or gather starts or ends at.
        flags: Such as ASYNC, or EVALUATES: DDP called it, for a model in evaluation mode.
    """

    kind: str
    number: int
    group: tuple[int, ...]
    group_name: str
    line: Frame | None
    when: float
    dtype: str | None = None
    shape: tuple[int, ...] = ()
    bytes: int = 0
    peer: int | None = None
    root: int | None = None
    tag: int = 0
    flags: int = 0

    @property
    def is_message(self) -> bool:
        """Whether it has one other end."""
        return self.kind in ("send", "recv")


@dataclass(frozen=True)
class Log:
    """What one rank has called, in order; `complete` unless its first calls are forgotten."""

    calls: tuple[Call, ...]
    complete: bool


class Notes:
    """The shared memory of one rank. It has no descriptor and no name."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _BYTES)
        self._made, self._ids = 0, {}
        self._end = _TABLE

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()

    def add(
        self,
        kind: str,
        number: int,
        line: int,
        flags: int = 0,
        group: int = NONE,
        other: int = -1,
        tag: int = 0,
        tensors: Sequence[torch.Tensor] = (),
    ) -> None:
        """In the rank: note a call; see `Call`. Lines and groups as ids, `other` as global rank."""
        shape = tuple(tensors[0].shape) if tensors else ()
        _CALL.pack_into(
            self._memory,
            _RING + self._made % KEPT * _CALL.size,
            monotonic(),
            number,
            _KIND[kind],
            _DTYPE[tensors[0].dtype] if tensors else 0xFF,
            flags,
            min(len(shape), 0xFF),
            line,
            group,
            other,
            tag,
            sum([tensor.nbytes for tensor in tensors]),
            *(*shape, 0, 0, 0, 0)[:4],
        )
        self._made += 1
        self._write_head()

    def id(self, *words: Any) -> int:
        """In the rank: the number under which the table holds these words."""
        found = self._ids.get(words)
        if found is None:
            text = ("\t".join(map(str, words)).replace("\n", " ") + "\n").encode()
            self._memory[self._end : self._end + len(text)] = text  # raises when it is full
            self._end += len(text)
            found = self._ids[words] = len(self._ids)
        return found

    def give_up(self) -> None:
        """In the rank: what is noted is not to be relied on from now on."""
        self._write_head(wrong=1)

    def _write_head(self, wrong: int = 0) -> None:
        _HEAD.pack_into(self._memory, 0, self._made, self._end - _TABLE, wrong)

    def read(self) -> Log | None:
        """In the kernel: what the rank has noted; None where that cannot be relied on."""
        made, size, wrong = _HEAD.unpack_from(self._memory, 0)
        if wrong:
            return None
        text = self._memory[_TABLE : _TABLE + size].decode(errors="replace")
        table = [row.split("\t") for row in text.splitlines()]
        kept = range(max(0, made - KEPT), made)
        try:
            return Log(tuple(self._call(number % KEPT, table) for number in kept), made <= KEPT)
        except (IndexError, ValueError):  # it was writing
            return None

    def _call(self, place: int, table: list[list[str]]) -> Call:
        fields = _CALL.unpack_from(self._memory, _RING + place * _CALL.size)
        when, number, kind, dtype, flags, dims, line, group, other, tag, size, *shape = fields
        name, *members = table[group] if group != NONE else ("",)
        kind, other = _KINDS[kind], None if other < 0 else other
        message = kind in ("send", "recv")
        return Call(
            kind=kind,
            number=number,
            group=tuple(map(int, members)),
            group_name=name,
            line=_frame(*table[line]) if line != NONE else None,
            when=when,
            dtype=None if dtype == 0xFF else str(_DTYPES[dtype]).removeprefix("torch."),
            shape=tuple(shape[:dims]),
            bytes=size,
            peer=other if message else None,
            root=None if message else other,
            tag=tag,
            flags=flags,
        )


def _frame(file: str, line: str, name: str) -> Frame:
    return Frame(file, int(line), name)
