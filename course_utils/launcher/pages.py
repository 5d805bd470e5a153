"""Fewer and larger pages of memory in the kernel, so that its ranks start and end in less time.

A fork copies an entry for every page that the kernel has written, and the end of a rank drops them
again: some 95,000 pages of 4 KiB after `import torch`. Linux can put 512 neighbours into one page.
Source: Linux man-pages, madvise(2), MADV_COLLAPSE (since Linux 6.1).
"""

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

from course_utils.launcher.rank import LIBC

_WORTH_IT = 16  # ranks; a kernel with so many starts more: some 60 give back what it takes
_AT_MOST = 1 << 30  # bytes; to copy the large data of a learner would take too long
_HUGE = 2 << 20
_MADV_COLLAPSE = 25
_ranks = 0


def before_forks(count: int) -> None:
    """Enlarge the pages, once: before the launch that will have forked so many ranks.

    Before its first rank, for ranks that are there would keep the small pages alive beside them.
    """
    global _ranks
    already, _ranks = _ranks, _ranks + count
    if already < _WORTH_IT <= _ranks:
        with contextlib.suppress(OSError):  # there is no /proc on macOS
            _enlarge(Path("/proc/self/maps").read_text())


def _enlarge(maps: str) -> None:
    """Ask it of memory that belongs to no file; an older Linux declines, and nothing changes."""
    left = _AT_MOST
    for begin, size in _regions(maps):
        if size <= left:
            left -= size
            LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_COLLAPSE)


def _regions(maps: str) -> Iterator[tuple[int, int]]:
    """Where private memory begins and how many bytes large pages can hold of it."""
    for line in maps.splitlines():
        addresses, access, _, _, inode, *name = line.split()
        begin, end = (int(number, 16) for number in addresses.split("-"))
        begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and begin < end:
            yield begin, end - begin
