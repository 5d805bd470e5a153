"""What one rank prints, kept in the kernel: not too much of it, and cut where marks stand."""

import re

from course_utils.launcher.language import N_, _

KEPT_BYTES = 512 * 1024  # of each rank's output: the first half of these and the last
_HALF = KEPT_BYTES // 2
_END_BYTES = 4096
_LEFT_OUT = N_("[... {count:,} bytes left out ...]")
_MAX_MARKS = 4096  # what belongs to later ones is shown after the text
# A rank writes such a mark into its output where something belongs that is no text, such as a
# figure. `CapturedOutput.pieces` cuts the output there.
MARK = "\x1emark {}\x1e"
_MARK = re.compile(rb"\x1emark ([\d-]+)\x1e")
_BEGINNING_OF_MARK = re.compile(rb"\x1e[mark\d -]{0,40}\Z")  # its end hasn't arrived yet
# Where torch was built. Of `/__w/pytorch/third_party/pair.cc:464` only `pair.cc:464` is kept.
_BUILD_FOLDER = re.compile(r"/__w/\S+/(?=\w+\.\w+:\d+)")


class CapturedOutput:
    """The output of one rank, without marks; the middle is dropped when there is too much.

    Attributes:
        received_bytes: How much has arrived in all, with what was dropped.
    """

    def __init__(self) -> None:
        self.received_bytes = 0
        self._kept = bytearray()
        self._dropped_bytes = 0
        self._partial_mark = b""
        self._marks: list[tuple[int, str]] = []  # after how many bytes, and the mark's name

    def add(self, data: bytes, is_last: bool = False) -> None:
        """Take in what has arrived; `is_last` says that nothing follows."""
        self.received_bytes += len(data)
        data = self._partial_mark + data
        parts = _MARK.split(data)  # text, name of a mark, text, ..., text
        last_text = parts.pop()
        texts = parts[::2]
        names = parts[1::2]
        for text, name in zip(texts, names, strict=True):
            self._append(text)
            position = self._dropped_bytes + len(self._kept)
            if len(self._marks) < _MAX_MARKS:
                mark = (position, name.decode())
                self._marks.append(mark)
        self._partial_mark = b""
        partial = _BEGINNING_OF_MARK.search(last_text)
        if partial and not is_last:
            self._partial_mark = partial[0]
        text = last_text.removesuffix(self._partial_mark)
        self._append(text)

    def _append(self, text: bytes) -> None:
        self._kept += text
        excess = len(self._kept) - KEPT_BYTES
        if excess > 0:
            del self._kept[_HALF : _HALF + excess]
            self._dropped_bytes += excess

    def text(self) -> str:
        """All that is kept, with a note where the middle is left out."""
        return self._text(0, len(self._kept) + 1)

    def end(self) -> str:
        """The last of what is kept, without reading all of it."""
        start = len(self._kept) - _END_BYTES
        return self._text(max(0, start), len(self._kept) + 1)

    def pieces(self) -> list[tuple[str, str]]:
        """What was printed up to each mark, with the mark's name; then the rest, without a name."""
        pieces = []
        start = 0
        for position, name in self._marks:
            stop = position
            if position > _HALF:  # the text before it may have been dropped
                stop = max(_HALF, position - self._dropped_bytes)
            text = self._text(start, stop)
            pieces.append((text, name))
            start = stop
        last_text = self._text(start, len(self._kept) + 1)
        pieces.append((last_text, ""))
        return pieces

    def _text(self, start: int, stop: int) -> str:
        """The bytes from `start` to `stop` of those that are kept, readable."""
        kept = bytes(self._kept[start:stop])
        spans_the_middle = start <= _HALF < stop
        if self._dropped_bytes and spans_the_middle:
            note = _(_LEFT_OUT, count=self._dropped_bytes)
            gap = f"\n{note}\n"
            middle = _HALF - start
            before_gap = kept[:middle]
            after_gap = kept[middle:]
            kept = before_gap + gap.encode() + after_gap
        text = kept.decode(errors="replace")
        text = _BUILD_FOLDER.sub("", text)
        lines = text.split("\n")
        last_states = map(_last_state, lines)
        return "\n".join(last_states)


def is_cut(text: str) -> bool:
    """Whether it has the note that its middle is left out; asked in the language of the note."""
    template = _(_LEFT_OUT)
    before, after = template.split("{count:,}")
    return before in text and after in text


def _last_state(line: str) -> str:
    """Of a progress bar, which rewrites its line, what it looked like in the end."""
    _, _, last = line.rstrip("\r").rpartition("\r")
    return last
