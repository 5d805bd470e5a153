"""Reads a dump that anybody may have written: plain data only, and never more than a limit.

A pickle can name functions and have them called. A dump of the flight recorder has no need for
that: it is made of dictionaries, lists, numbers and strings. So only the instructions for these
are known here, and whatever else a file asks for ends the reading. The reader is Python's own
slow one, since the fast one allocates whatever memory a hostile file tells it to.
"""

import gzip
import io
import json
import pickle
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
# What builds plain data, by name in the module pickle; two instructions can have one function.
_PLAIN = """
    PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2
    LONG LONG1 FLOAT BINFLOAT UNICODE BINUNICODE SHORT_BINUNICODE BINBYTES SHORT_BINBYTES
    EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST LIST APPEND APPENDS EMPTY_DICT DICT SETITEM
    SETITEMS GET BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE
"""


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


class _PlainUnpickler(pickle._Unpickler):  # the one that is written in Python
    """Builds plain data, and refuses every class and every call."""

    dispatch = {  # noqa: RUF012  the class that it is derived from has it so
        getattr(pickle, name)[0]: pickle._Unpickler.dispatch[getattr(pickle, name)[0]]
        for name in _PLAIN.split()
    }

    def find_class(self, module: str, name: str) -> NoReturn:
        """Never reached, since no instruction leads here; refuses all the same."""
        raise Unreadable(CODE, f"{module}.{name}")


def _refuse(unpickler: _PlainUnpickler) -> NoReturn:
    raise Unreadable(CODE)


for _instruction in pickle._Unpickler.dispatch:
    _PlainUnpickler.dispatch.setdefault(_instruction, _refuse)


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
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except EOFError:
        raise Unreadable(CUT) from None
    except pickle.UnpicklingError as error:
        is_cut = "truncated" in str(error) or "exhausted" in str(error)
        raise Unreadable(CUT if is_cut else NO_DUMP) from None
    except _BROKEN:
        raise Unreadable(CUT if data[-1:] != pickle.STOP else NO_DUMP) from None
