"""Pictures and tables that ranks show: without this a rank, far from the browser, shows nothing."""

import base64
import builtins
import contextlib
import fcntl
import itertools
import json
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from typing import Any, NoReturn

from IPython import get_ipython
from IPython.core.displaypub import DisplayPublisher
from IPython.display import display

from course_utils.launcher.launch import Pieces, named
from course_utils.launcher.listener import Listener
from course_utils.launcher.transport import anonymous_file
from course_utils.launcher.worker import no_keyboard
from course_utils.launcher.worker_handle import MARK

_LIVE = "application/vnd.jupyter.widget-view+json"  # ends with the rank; its text goes on
_OUTPUT = {"text/plain": "Output()"}  # an empty area; what is displayed in it has rows of its own


# Of each rank: bytes and displays that are kept from the first on, and as many of the last ones.
_COUNT = struct.Struct("q")
_FIRST_BYTES, _LAST_BYTES, _AT_MOST = 8 << 20, 4 << 20, 100


class Displays(Listener):
    """Brings what ranks `display`, as `plt.show()` does, below the cell, among what they print."""

    _rows: tuple[bytes, ...] = ()
    _counts: tuple[int, ...] = ()

    def on_start(self, world_size: int) -> None:
        """Make the file. Its offset is shared, but of a file in memory Linux does not lock it."""
        self._file = FileIO(anonymous_file("displays"), "r+")
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # so each writes behind the others
        self._counted = mmap.mmap(-1, _COUNT.size * world_size)  # displays, by rank

    @contextlib.contextmanager
    def in_worker(self, rank: int) -> Iterator[None]:
        """In a notebook, have this rank's displays written down, and nobody asked for input."""
        shell = get_ipython()
        if not shell:
            yield
            return
        publisher = _Publisher(rank, self._file, self._counted)
        shell.display_pub = publisher
        with contextlib.suppress(AttributeError):  # in a terminal there is no kernel
            shell.kernel._input_request = no_keyboard  # as in `from getpass import getpass`
            shell.kernel.session.send = _send_nothing  # else it warns of each message from a fork
        _leave_the_notebook(shell)
        try:
            yield
        finally:
            publisher.write_the_last()

    def on_exit(self) -> None:
        """Read what is there, and give the file back."""
        self._file.seek(0)
        self._rows = tuple(self._file.read().splitlines())
        self._file.close()
        self._counts = tuple(count for (count,) in _COUNT.iter_unpack(self._counted))
        self._counted.close()

    def show(self, pieces: Pieces) -> None:
        """Print what each rank printed, and display in its place what it showed."""
        page = _Page()
        for rank, printed in enumerate(pieces):
            displays = self._shown(rank)
            left_out = self._counts[rank] - len(displays) if self._counts else 0
            by_mark = {one.mark: one for one in displays if not one.late}
            for text, mark in printed:
                page.print(rank, text)
                if mark in by_mark:
                    page.display(rank, by_mark.pop(mark))
            for lost in by_mark.values():  # with the mark that said where it belongs
                page.display(rank, lost)
            if left_out > 0:
                page.print(rank, f"[... {left_out:,} displays left out ...]")
            for late in (one for one in displays if one.late):
                page.display(rank, late)
        page.flush()

    def _shown(self, rank: int) -> list["_Shown"]:
        """What a rank showed last: an update or `clear_output` has taken the place of others."""
        shown: dict[str, _Shown] = {}
        for row in self._rows:
            with contextlib.suppress(ValueError):  # a rank that was stopped amid its writing
                its_rank, key, *what = json.loads(row)
                if its_rank != rank:
                    continue
                if key is None:
                    for cleared in what[0] or list(shown):
                        shown.pop(cleared, None)
                elif key in shown:
                    shown[key].data, shown[key].metadata = what[2:]
                else:
                    shown[key] = _Shown(*what)
        return list(shown.values())


@dataclass
class _Shown:
    mark: str
    late: bool  # it is one of the last, which a rank writes down at its end
    data: dict[str, Any]
    metadata: dict[str, Any] | None


class _Page:
    """What stands below the cell: text in one go until something is displayed."""

    def __init__(self) -> None:
        self._text, self._displayed = "", -1  # which rank has just displayed something

    def print(self, rank: int, text: str) -> None:
        if text:
            self._text += named(rank, text)
            self._displayed = -1

    def display(self, rank: int, shown: _Shown) -> None:
        if self._displayed != rank:
            self._text += f"[rank {rank}]\n"
        self.flush()
        display(shown.data, metadata=shown.metadata, raw=True)
        self._displayed = rank

    def flush(self) -> None:
        if self._text:  # ipykernel opens a socket for each thread that writes, even nothing
            sys.stdout.write(self._text)
            sys.stdout.flush()
        self._text = ""


def _leave_the_notebook(shell: Any) -> None:
    """A rank is a process as torchrun starts it: nobody types there, and it can end itself."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
        if shell.user_ns.get(name) is getattr(shell, "exiter", None):  # tells the kernel to end
            shell.user_ns[name] = sys.exit
    shell.showtraceback = _raise_instead  # `with ipywidgets.Output():` would show it to nobody
    for prompt in ("ps1", "ps2"):  # by which libraries know that somebody types
        vars(sys).pop(prompt, None)
    if "ipykernel" in sys.modules:
        sys.argv = ["cell"]  # the kernel's command line is not that of a learner's script


def _send_nothing(*_: object, **__: object) -> None:
    """Of what a rank's widgets would say to the browser."""


def _raise_instead(raised: Any = None, *_: object, **__: object) -> NoReturn:
    """Let an exception end a rank, as under torchrun, instead of showing it below the cell."""
    raise raised[1] if raised else sys.exc_info()[1]


class _Publisher(DisplayPublisher):
    """What IPython hands displays to, in a rank. It keeps as much as a page can bear."""

    def __init__(self, rank: int, file: FileIO, counted: mmap.mmap) -> None:
        super().__init__()
        self._rank, self._file, self._counted = rank, file, counted
        self._room, self._numbers = _FIRST_BYTES, itertools.count()
        self._names: set[str] = set()  # of what may be updated
        self._count, self._is_full = 0, False
        self._last: dict[str | None, bytes] = {}  # rows for the end
        self._in_area: dict[str, list[str]] = {}  # by an Output's name what was displayed in it

    def publish(
        self, data: dict[str, Any], metadata: Any = None, *, transient: Any = None, **_: object
    ) -> None:
        kept = {kind: what for kind, what in data.items() if kind != _LIVE}
        if kept == _OUTPUT:
            return
        mark = f"{os.getpid()}-{next(self._numbers)}"  # a rank's children display as well
        name = (transient or {}).get("display_id")
        is_new = name is None or name not in self._names
        if name is not None:
            self._names.add(name)
        if is_new:
            self._set_count(self._count + 1)
        if area := _area():
            self._in_area.setdefault(area, []).append(name or mark)
        row = self._row(name or mark, mark, False, kept, metadata)
        self._is_full |= len(row) > self._room or (is_new and self._count > _AT_MOST)
        if not self._is_full:
            if is_new:
                _put_into_the_output(mark)
            self._write(row)
        else:
            self._keep(name or mark, self._row(name or mark, mark, True, kept, metadata))

    def set_parent(self, parent: object) -> None:
        """`with ipywidgets.Output():` says here in which message it is; no rank sends any."""

    def clear_output(self, wait: bool = False) -> None:
        area = _area()
        if area is not None:
            self._clear(self._in_area.pop(area, []))
            return
        self._set_count(0)
        self._names.clear()
        self._last.clear()
        row = self._row(None, [])
        if self._is_full:
            self._last[None] = row
        else:
            self._write(row)

    def _clear(self, keys: list[str]) -> None:
        """Take away what was displayed in one Output, and nothing else."""
        if not keys:
            return
        self._set_count(self._count - len(set(keys)))
        self._names.difference_update(keys)
        for key in keys:
            self._last.pop(key, None)
        self._write(self._row(None, keys))

    def write_the_last(self) -> None:
        """At the rank's end: what came when there was no room any more."""
        for row in self._last.values():
            self._file.write(row)
        self._last.clear()

    def _row(self, key: str | None, *what: object) -> bytes:
        row = json.dumps([self._rank, key, *what], default=_text, skipkeys=True)
        return f"\n{row}".encode()  # ends a row that another left unfinished

    def _write(self, row: bytes) -> None:
        self._room -= len(row)
        self._file.write(row)

    def _keep(self, key: str, row: bytes) -> None:
        self._last.pop(key, None)
        self._last[key] = row
        size = sum(map(len, self._last.values()))
        for oldest in [key for key in self._last if key is not None]:
            if len(self._last) <= _AT_MOST and size <= _LAST_BYTES:
                break
            size -= len(self._last.pop(oldest))

    def _set_count(self, count: int) -> None:
        self._count = count
        _COUNT.pack_into(self._counted, self._rank * _COUNT.size, count)


def _area() -> str | None:
    """The name of the `ipywidgets.Output` in which the rank is, such as of a bar of rich."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    # Private. Without it what is cleared in an Output is all that the rank has displayed.
    widgets = list(getattr(module, "_instances", {}).values())
    entered = [widget for widget in widgets if getattr(widget, "msg_id", "")]
    return entered[-1].model_id if entered else None


def _put_into_the_output(mark: str) -> None:
    """Have the kernel know between which prints a display belongs."""
    with contextlib.suppress(Exception):  # the learner closed a stream, or put in another
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, MARK.format(mark).encode())


def _text(value: object) -> str:
    """A picture in bytes, as a notebook keeps it; of anything else what it says of itself."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
