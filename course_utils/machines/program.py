"""A program that runs beside the notebook: its output, and how to wait for it."""

import contextlib
import os
import signal
import subprocess
import time
import weakref
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO


class Program:
    """A started program, in a session of its own, that sees `disk` as its working directory."""

    def __init__(self, title: str, words: list[str], env: dict[str, str], disk: Path) -> None:
        self.title = title
        with contextlib.ExitStack() as files:  # readable also when the program is gone
            self._output, self._errors = [files.enter_context(TemporaryFile()) for _ in range(2)]
            weakref.finalize(self, files.pop_all().close)
        ends = {"stdin": subprocess.DEVNULL, "stdout": self._output, "stderr": self._errors}
        self.process = subprocess.Popen(words, cwd=disk, env=env, start_new_session=True, **ends)

    @property
    def output(self) -> str:
        """What it has printed up to now."""
        return _text(self._output)

    @property
    def errors(self) -> str:
        """What it has written to its standard error up to now."""
        return _text(self._errors)

    def wait_for(self, text: str = "", timeout_s: float = 60.0) -> str:
        """Return the output when it contains `text`, or without one when the program has ended.

        Raises:
            RuntimeError: It ended with an error, or without the text.
            TimeoutError: It took longer than `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while self.process.poll() is None and not (text and text in self.output):
            if time.monotonic() > end:
                said = self.output + self.errors
                raise TimeoutError(f"{self.title!r} took over {timeout_s:g} s:\n{said}")
            time.sleep(0.02)
        code = self.process.returncode
        if text not in self.output or (code and not text):
            raise RuntimeError(f"{self.title!r} ended with {code}:\n{self.output + self.errors}")
        return self.output

    def close(self) -> None:
        """Stop it if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _text(file: IO[bytes]) -> str:
    # Not by its position, which the program writes at.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
