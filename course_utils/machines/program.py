"""A program that runs beside the notebook: its output, and how to wait for it."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path


class Program:
    """A started program, in a session of its own, that sees `disk` as its working directory."""

    def __init__(self, title: str, words: list[str], env: dict[str, str], disk: Path) -> None:
        self.title, self._texts = title, ["", ""]
        with contextlib.ExitStack() as stack:
            self._files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            self.process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=self._files[0], stderr=self._files[1],
                cwd=disk, env=env, start_new_session=True,
            )  # fmt: skip
            stack.pop_all()  # open as long as it runs

    @property
    def output(self) -> str:
        """What it has printed up to now."""
        return self._read(0)

    @property
    def errors(self) -> str:
        """What it has written to its standard error up to now."""
        return self._read(1)

    def wait_for(self, text: str = "", timeout_s: float = 60.0) -> str:
        """Return the output when it contains `text`, or without one when the program has ended.

        Raises:
            RuntimeError: It ended with an error, or without the text.
            TimeoutError: It took longer than `timeout_s`.
        """
        end = time.monotonic() + timeout_s
        while not (text and text in self.output):
            code, said = self.process.poll(), self.output + self.errors
            if code or (code == 0 and text not in self.output):
                raise RuntimeError(f"{self.title!r} ended with {code}:\n{said}")
            if code == 0:
                break
            if time.monotonic() > end:
                raise TimeoutError(f"{self.title!r} took over {timeout_s:g} s:\n{said}")
            time.sleep(0.02)
        return self.output

    def close(self) -> None:
        """Stop it if it still runs, and keep what it has said."""
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for number, file in enumerate(self._files):
            self._read(number)
            file.close()

    def _read(self, number: int) -> str:
        file = self._files[number]
        if not file.closed:
            size = os.fstat(file.fileno()).st_size
            self._texts[number] = os.pread(file.fileno(), size, 0).decode(errors="replace")
        return self._texts[number]
