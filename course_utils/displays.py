"""Pictures and tables that ranks show: without this, a rank's displays never reach the browser."""

import base64
import builtins
import contextlib
import fcntl
import html
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
from IPython.lib.pretty import pretty

from course_utils.launcher.captured_output import MARK
from course_utils.launcher.language import _
from course_utils.launcher.launch import Pieces, prefixed
from course_utils.launcher.listener import Listener
from course_utils.launcher.transport import anonymous_file
from course_utils.launcher.worker import no_keyboard

_WIDGET = "application/vnd.jupyter.widget-view+json"  # ends with the rank; its text goes on
_EMPTY_OUTPUT = {"text/plain": "Output()"}  # what is displayed in this area has rows of its own
_COUNT = struct.Struct("q")
# Of each rank are kept, at most: bytes of its first displays, bytes of its last ones, and of both
# so many displays.
_FIRST_BYTES = 8 << 20
_LAST_BYTES = 4 << 20
_MAX_DISPLAYS = 100
_MAX_LINES = 400  # of a rank's text, on the page; `results.output` has more


class Displays(Listener):
    """Brings what ranks `display`, as `plt.show()` does, below the cell, among what they print."""

    _rows: tuple[bytes, ...] = ()
    _counts: tuple[int, ...] = ()

    def on_start(self, world_size: int) -> None:
        """Make the file into which all ranks write."""
        self._file = FileIO(anonymous_file("displays"), "r+")
        # Ranks share the file's offset, but Linux doesn't lock that of a file in memory. So each
        # appends, and none overwrites what another has written.
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)
        self._shared_counts = mmap.mmap(-1, _COUNT.size * world_size)  # of displays, by rank

    @contextlib.contextmanager
    def in_worker(self, rank: int) -> Iterator[None]:
        """In a notebook, have this rank's displays written down, and nobody asked for input."""
        shell = get_ipython()
        if not shell:
            yield
            return
        publisher = _Publisher(rank, self._file, self._shared_counts)
        shell.display_pub = publisher
        with contextlib.suppress(AttributeError):  # in a terminal there is no kernel
            shell.kernel._input_request = no_keyboard  # as in `from getpass import getpass`
            # Otherwise it warns of each message that a fork sends.
            shell.kernel.session.send = _send_nothing
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
        self._counts = tuple(count for (count,) in _COUNT.iter_unpack(self._shared_counts))
        self._shared_counts.close()

    def show(self, pieces: Pieces) -> None:
        """Print what each rank printed, and display in its place what it showed."""
        page = _Page()
        for rank, pieces_of_rank in enumerate(pieces):
            self._show_rank(page, rank, pieces_of_rank)
        page.flush()

    def _show_rank(self, page: "_Page", rank: int, pieces: list[tuple[str, str]]) -> None:
        displays = self._shown(rank)
        by_mark = {shown.mark: shown for shown in displays if not shown.is_late}
        for text, mark in pieces:
            page.print(rank, text)
            if mark in by_mark:
                page.display(rank, by_mark.pop(mark))
        for shown in by_mark.values():  # their marks stood in output that was left out
            page.display(rank, shown)
        left_out = self._counts[rank] - len(displays) if self._counts else 0
        if left_out > 0:
            page.print(rank, _("[... {count:,} displays left out ...]", count=left_out))
        for shown in displays:
            if shown.is_late:
                page.display(rank, shown)

    def _shown(self, rank: int) -> list["_Shown"]:
        """What a rank showed last: an update or `clear_output` has taken the place of others."""
        displays: dict[str, _Shown] = {}
        for row in self._rows:
            with contextlib.suppress(ValueError):  # the rank was stopped while it wrote this
                rank_of_row, key, *fields = json.loads(row)
                if rank_of_row == rank:
                    _apply(displays, key, fields)
        return list(displays.values())


@dataclass
class _Shown:
    """Something that a rank displayed.

    Attributes:
        mark: where it belongs in the rank's output; see `CapturedOutput`.
        is_late: it is one of the last, which a rank writes down at its end.
        data: by kind, such as "image/png", how it looks.
        metadata: as IPython handed it over.
    """

    mark: str
    is_late: bool
    data: dict[str, Any]
    metadata: dict[str, Any] | None


def _apply(displays: dict[str, _Shown], key: str | None, fields: list) -> None:
    """Take in what a rank wrote down: a display, an update of one, or that some were cleared."""
    if key is None:
        (cleared,) = fields  # keys; none means all
        for cleared_key in cleared or list(displays):
            displays.pop(cleared_key, None)
    elif key in displays:
        _, _, data, metadata = fields
        displays[key].data = data
        displays[key].metadata = metadata
    else:
        displays[key] = _Shown(*fields)


class _Page:
    """What stands below the cell: text in one go until something is displayed."""

    def __init__(self) -> None:
        self._text = ""
        self._displaying: int | None = None  # the rank that has just displayed something

    def print(self, rank: int, text: str) -> None:
        if text:
            self._text += prefixed(rank, _shortened(text, rank))
            self._displaying = None

    def display(self, rank: int, shown: _Shown) -> None:
        if self._displaying != rank:
            self._text += f"[rank {rank}]\n"
        self.flush()
        display(shown.data, metadata=shown.metadata, raw=True)
        self._displaying = rank

    def flush(self) -> None:
        if self._text:  # ipykernel opens a socket for each thread that writes, even nothing
            sys.stdout.write(self._text)
            sys.stdout.flush()
        self._text = ""


def _shortened(text: str, rank: int) -> str:
    """The beginning and the end of a text that is too long for a page."""
    lines = text.splitlines(keepends=True)
    too_many = len(lines) - _MAX_LINES
    if too_many <= 0:
        return text
    gap = _(
        "[... {count:,} lines left out; `results = launch(...)` keeps them in "
        "results.output[{rank}] ...]",
        count=too_many,
        rank=rank,
    )
    half = _MAX_LINES // 2
    return "".join([*lines[:half], f"{gap}\n", *lines[-half:]])


def _leave_the_notebook(shell: Any) -> None:
    """A rank is a process as torchrun starts it: nobody types there, and it can end itself."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
        if shell.user_ns.get(name) is getattr(shell, "exiter", None):  # tells the kernel to end
            shell.user_ns[name] = sys.exit
    shell.showtraceback = _raise_instead  # `with ipywidgets.Output():` would show it to nobody
    for prompt in ("ps1", "ps2"):  # libraries take these as a sign of an interactive session
        if hasattr(sys, prompt):
            delattr(sys, prompt)
    if "ipykernel" in sys.modules:
        sys.argv = ["cell"]  # the kernel's command line is not that of a learner's script


def _send_nothing(*_: object, **__: object) -> None:
    """Replaces the call that sends a widget's messages: nothing is sent."""


def _raise_instead(raised: Any = None, *_: object, **__: object) -> NoReturn:
    """Let an exception end a rank, as under torchrun, instead of showing it below the cell."""
    if raised:
        _, error, _ = raised
        raise error
    raise sys.exc_info()[1]


class _Publisher(DisplayPublisher):
    """What IPython hands displays to, in a rank. It keeps as much as a page can bear."""

    def __init__(self, rank: int, file: FileIO, shared_counts: mmap.mmap) -> None:
        super().__init__()
        self._rank = rank
        self._file = file
        self._shared_counts = shared_counts
        self._count = 0  # of displays
        self._numbers = itertools.count()  # of marks
        self._bytes_left = _FIRST_BYTES
        self._is_full = False  # from then on displays are kept until the end
        self._names: set[str] = set()  # of displays that may be updated
        self._last: dict[str | None, bytes] = {}  # rows for the end
        self._keys_in_area: dict[str, list[str]] = {}  # what was displayed in an ipywidgets.Output
        self._widgets: dict[str, _ShownWidget] = {}

    def publish(
        self, data: dict[str, Any], metadata: Any = None, *, transient: Any = None, **_: object
    ) -> None:
        view = data.get(_WIDGET, {})
        data = {kind: content for kind, content in data.items() if kind != _WIDGET}
        if data == _EMPTY_OUTPUT:
            return
        mark = f"{os.getpid()}-{next(self._numbers)}"  # a rank's children display as well
        name = (transient or {}).get("display_id")
        key = name or mark
        is_new = name is None or name not in self._names
        if name is not None:
            self._names.add(name)
        if is_new:
            self._set_count(self._count + 1)
        area = _area()
        if area:
            self._keys_in_area.setdefault(area, []).append(key)
        model_id = view.get("model_id", "")
        widget = _living_widgets().get(model_id)
        if widget is not None:
            self._widgets[key] = _ShownWidget(widget, model_id, mark, data, metadata)
        row = self._row(key, mark, False, data, metadata)
        is_one_too_many = is_new and self._count > _MAX_DISPLAYS
        if len(row) > self._bytes_left or is_one_too_many:
            self._is_full = True
        if self._is_full:
            late_row = self._row(key, mark, True, data, metadata)
            self._keep_for_the_end(key, late_row)
            return
        if is_new:
            _put_into_the_output(mark)
        self._write(row)

    def set_parent(self, parent: object) -> None:
        """`with ipywidgets.Output():` says here in which message it is; no rank sends any."""

    def clear_output(self, wait: bool = False) -> None:
        area = _area()
        if area is not None:
            keys = self._keys_in_area.pop(area, [])
            self._clear(keys)
            return
        self._set_count(0)
        self._names.clear()
        self._last.clear()
        self._widgets.clear()
        row = self._row(None, [])
        if self._is_full:
            self._last[None] = row
        else:
            self._write(row)

    def _clear(self, keys: list[str]) -> None:
        """Take away what was displayed in an `ipywidgets.Output`, and nothing else."""
        if not keys:
            return
        self._set_count(self._count - len(set(keys)))
        self._names.difference_update(keys)
        for key in keys:
            self._last.pop(key, None)
            self._widgets.pop(key, None)
        self._write(self._row(None, keys))

    def write_the_last(self) -> None:
        """At the rank's end: how widgets look now, and what came when there was no room."""
        closed = []
        for key, shown in self._widgets.items():
            if not shown.is_open():
                closed.append(key)
            elif shown.has_changed():
                is_late = key in self._last
                row = self._row(key, shown.mark, is_late, shown.data, shown.metadata)
                if is_late:
                    self._last[key] = row
                else:
                    self._write(row)
        self._clear(closed)
        for row in self._last.values():
            self._file.write(row)
        self._last.clear()

    def _row(self, key: str | None, *fields: object) -> bytes:
        row = json.dumps([self._rank, key, *fields], default=_text, skipkeys=True)
        return f"\n{row}".encode()  # ends a row that another rank left unfinished

    def _write(self, row: bytes) -> None:
        self._bytes_left -= len(row)
        self._file.write(row)

    def _keep_for_the_end(self, key: str, row: bytes) -> None:
        """Keep a row, and drop the oldest ones when there is too much."""
        self._last.pop(key, None)  # what is updated counts as new
        self._last[key] = row
        total_bytes = sum(len(kept) for kept in self._last.values())
        for oldest in list(self._last):
            if len(self._last) <= _MAX_DISPLAYS and total_bytes <= _LAST_BYTES:
                break
            if oldest is not None:  # None says that all before was cleared
                self._widgets.pop(oldest, None)
                dropped = self._last.pop(oldest)
                total_bytes -= len(dropped)

    def _set_count(self, count: int) -> None:
        self._count = count
        _COUNT.pack_into(self._shared_counts, self._rank * _COUNT.size, count)


@dataclass
class _ShownWidget:
    """A widget that a rank has displayed: of the browser's there is none, so its text is shown.

    Attributes:
        widget: such as the bar of `tqdm.auto`, which goes on changing it.
        model_id: its name, which it has no more once it is closed.
        mark, data, metadata: as in `_Shown`.
    """

    widget: Any
    model_id: str
    mark: str
    data: dict[str, Any]
    metadata: dict[str, Any] | None

    def is_open(self) -> bool:
        return self.model_id in _living_widgets()

    def has_changed(self) -> bool:
        """Take in how it looks now; whether that is different."""
        text = _text_of_widget(self.widget)
        if not text or text == self.data.get("text/plain"):
            return False
        self.data = {"text/plain": text}
        return True


def _text_of_widget(widget: Any) -> str:
    """How Python shows it; if it can't any more, as of a finished bar, what its parts say."""
    try:
        return pretty(widget)
    except Exception:
        parts = [getattr(part, "value", "") for part in getattr(widget, "children", ())]
        texts = [html.unescape(part).strip() for part in parts if isinstance(part, str)]
        return " ".join(texts).replace("\u2007", " ")  # of the width of a figure


def _living_widgets() -> dict[str, Any]:
    """By its name, each widget that this process has made and not closed."""
    module = sys.modules.get("ipywidgets.widgets.widget")
    # Private. Without it, clearing an Output clears all that the rank has displayed, and a widget
    # stands as it was when it was displayed.
    return dict(getattr(module, "_instances", {}))


def _area() -> str | None:
    """The name of the `ipywidgets.Output` in which the rank displays, such as a bar of rich."""
    widgets = _living_widgets().values()
    entered = [widget for widget in widgets if getattr(widget, "msg_id", "")]
    return entered[-1].model_id if entered else None


def _put_into_the_output(mark: str) -> None:
    """Tell the kernel between which prints a display belongs."""
    with contextlib.suppress(Exception):  # the learner closed a stream, or replaced it
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(1, MARK.format(mark).encode())


def _text(value: object) -> str:
    """A picture in bytes, as a notebook keeps it; anything else as `str` has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value)
