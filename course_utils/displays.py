"""Pictures and tables that ranks show: without this a rank, far from the browser, shows nothing."""

import base64
import builtins
import contextlib
import fcntl
import json
import os
import sys
from io import FileIO
from typing import Any

from IPython import get_ipython
from IPython.core.displaypub import DisplayPublisher
from IPython.display import display

from course_utils.launcher.listener import Listener
from course_utils.launcher.parcel import anonymous_file
from course_utils.launcher.rank import no_keyboard

_LIVE = "application/vnd.jupyter.widget-view+json"  # ends with the rank; its text goes on


class Displays(Listener):
    """Brings what ranks `display`, as `plt.show()` does, below the cell, in rank order."""

    _rows: tuple[bytes, ...] = ()

    def before(self, world_size: int) -> None:
        """Make the file. Its offset is shared, but of a file in memory Linux does not lock it."""
        self._file = FileIO(anonymous_file("displays"), "r+")
        fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # so each writes behind the others

    def inside(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """In a notebook, have this rank's displays written down, and nobody asked for input."""
        if shell := get_ipython():
            shell.display_pub = _Publisher(rank, self._file)
            with contextlib.suppress(AttributeError):  # in a terminal there is no kernel
                shell.kernel._input_request = no_keyboard  # as in `from getpass import getpass`
            _leave_the_notebook(shell)
        return contextlib.nullcontext()

    def close(self) -> None:
        """Read what is there, and give the file back."""
        self._file.seek(0)
        self._rows = tuple(self._file.read().splitlines())
        self._file.close()

    def show(self) -> None:
        """What each rank showed last: an update or `clear_output` has taken the place of others."""
        shown: dict[int, dict[Any, Any]] = {}
        for number, row in enumerate(self._rows):
            with contextlib.suppress(ValueError):  # a rank that was stopped amid its writing
                rank, name, data, metadata = json.loads(row)
                own = shown.setdefault(rank, {})
                own[name or number] = data, metadata
                if data is None:
                    own.clear()
        for rank, own in sorted(shown.items()):
            if own:
                print(f"[rank {rank}]")
            for data, metadata in own.values():
                display(data, metadata=metadata, raw=True)


def _leave_the_notebook(shell: Any) -> None:
    """A rank is a process as torchrun starts it: nobody types there, and it can end itself."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
        if shell.user_ns.get(name) is getattr(shell, "exiter", None):  # tells the kernel to end
            shell.user_ns[name] = sys.exit
    for prompt in ("ps1", "ps2"):  # by which libraries know that somebody types
        vars(sys).pop(prompt, None)
    if "ipykernel" in sys.modules:
        sys.argv = ["cell"]  # the kernel's command line is not that of a learner's script


class _Publisher(DisplayPublisher):
    """What IPython hands displays to, in a rank."""

    def __init__(self, rank: int, file: FileIO) -> None:
        super().__init__()
        self._rank, self._file = rank, file

    def publish(
        self, data: dict[str, Any], metadata: Any = None, *, transient: Any = None, **_: object
    ) -> None:
        kept = {kind: what for kind, what in data.items() if kind != _LIVE}
        name = (transient or {}).get("display_id")
        self._write(name, kept, metadata)

    def clear_output(self, wait: bool = False) -> None:
        self._write(None, None, None)

    def _write(self, *what: object) -> None:
        row = json.dumps([self._rank, *what], default=_text, skipkeys=True)
        self._file.write(f"\n{row}".encode())  # ends a row that another left unfinished


def _text(value: object) -> str:
    """A picture in bytes, as a notebook keeps it; of anything else what it says of itself."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
