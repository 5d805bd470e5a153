"""Reads a dump that anybody may have written: plain data only, and never more than a limit.

A pickle can name functions and have them called. A dump of the flight recorder has no need for
that: it is made of dictionaries, lists, numbers and strings. So a file is looked through first,
instruction by instruction, and refused if it has any other one, or one that would make the reader
take a lot of memory. Only then does Python's own reader see it, and that one refuses classes too.
"""

import gzip
import io
import json
import pickle
import re
import struct
import zlib
from pathlib import Path
from typing import Any, NoReturn

LIMIT_BYTES = 256 * 2**20
MAX_ENTRIES = 200_000
GZIP = b"\x1f\x8b"
# Why a file is left out; `report.py` has a sentence for each.
CODE, LARGE, CUT, EMPTY, NO_DUMP, NO_FILE = "code", "large", "cut", "empty", "no dump", "no file"
_BROKEN = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)
# Instructions of a fixed length that build plain data: without an argument, or with one of 1, 2, 4
# or 8 bytes. LONG_BINPUT (r) says how long the reader's memory of objects has to be, so only a
# number below 2**22 is let through.
_PLAIN = rb"[()\]}Naeudst012l\x85-\x89\x94]|[hqK\x80].|M..|[Jj].{4}|[G\x95].{8}|r..[\x00-\x3f]\x00"
_RUN = re.compile(rb"(?:" + _PLAIN + rb")*+", re.DOTALL)
_STARTS = re.compile(rb"[hqK\x80MJjG\x95r]")  # with an argument
_LONGEST = 9  # bytes of such an instruction with its argument
_LENGTHS = {b"X": 4, b"B": 4, b"\x8c": 1, b"C": 1, b"\x8a": 1}  # bytes that say how long a text is
_KNOWN = {getattr(pickle, name) for name in pickle.__all__ if name.isupper() and len(name) > 2}


class Unreadable(Exception):
    """A file that is left out.

    Attributes:
        why: One of the constants above, such as `CUT`.
        detail: What else is known, for the report.
    """

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(why, detail)
        self.why = why
        self.detail = detail


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every class. No instruction leads here, since `_look_through` has seen them all."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse."""
        raise Unreadable(CODE, f"{module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse."""
        raise Unreadable(CODE)


def _look_through(data: bytes) -> None:
    """Go through a pickle without reading it.

    Raises:
        Unreadable: It has an instruction that builds no plain data, or it has no end.
    """
    position = 0
    while True:
        position = _RUN.match(data, position).end()
        instruction = data[position : position + 1]
        if instruction == pickle.STOP:
            return
        if instruction not in _LENGTHS:
            _refuse(data, position)
        size = _LENGTHS[instruction]
        length = int.from_bytes(data[position + 1 : position + 1 + size], "little")
        position += 1 + size + length
        if position > len(data):
            raise Unreadable(CUT)


def _refuse(data: bytes, position: int) -> NoReturn:
    """Say why the instruction at this position is not let through."""
    instruction = data[position : position + 1]
    is_last = len(data) - position < _LONGEST
    if not instruction or (is_last and _STARTS.match(instruction)):
        raise Unreadable(CUT)
    if instruction == pickle.LONG_BINPUT:
        raise Unreadable(LARGE)
    raise Unreadable(CODE if instruction in _KNOWN else NO_DUMP)


def read(path: Path) -> dict[str, Any]:
    """The dump in a file: a pickle or JSON, perhaps compressed by gzip.

    Raises:
        Unreadable: It is no dump, it is damaged, too large, or asks for more than plain data.
    """
    data = _bytes_of(path)
    if not data:
        raise Unreadable(EMPTY)
    if data.lstrip()[:1] == b"{":
        dump = _from_json(data)
    elif data[:1] == pickle.PROTO:
        dump = plain(data)
    else:
        raise Unreadable(NO_DUMP)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise Unreadable(NO_DUMP)
    if "entries" not in dump and "pg_status" not in dump:
        raise Unreadable(NO_DUMP)
    if len(dump.get("entries", [])) > MAX_ENTRIES:
        raise Unreadable(LARGE)
    return dump


def _bytes_of(path: Path) -> bytes:
    """The content of a file, unpacked."""
    if not path.is_file():  # a pipe would never end
        raise Unreadable(NO_FILE)
    try:
        if path.stat().st_size > LIMIT_BYTES:
            raise Unreadable(LARGE)
        data = path.read_bytes()
    except OSError as error:
        raise Unreadable(NO_FILE, error.strerror or "") from None
    if data[:2] != GZIP:
        return data
    try:
        with gzip.open(io.BytesIO(data)) as file:
            unpacked = file.read(LIMIT_BYTES + 1)
    except (EOFError, OSError, zlib.error):
        raise Unreadable(CUT) from None
    if len(unpacked) > LIMIT_BYTES:
        raise Unreadable(LARGE)
    return unpacked


def _from_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        at_the_end = error.pos >= len(error.doc.rstrip()) - 1
        is_cut = at_the_end or error.msg.startswith("Unterminated")
        raise Unreadable(CUT if is_cut else NO_DUMP) from None
    except (ValueError, RecursionError):
        raise Unreadable(NO_DUMP) from None


def plain(data: bytes) -> Any:
    """What a pickle holds, if it is plain data.

    Raises:
        Unreadable: It is damaged, or asks for more than plain data.
    """
    _look_through(data)
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except EOFError:
        raise Unreadable(CUT) from None
    except pickle.UnpicklingError as error:
        is_cut = "truncated" in str(error) or "exhausted" in str(error)
        raise Unreadable(CUT if is_cut else NO_DUMP) from None
    except _BROKEN:
        raise Unreadable(CUT if data[-1:] != pickle.STOP else NO_DUMP) from None
