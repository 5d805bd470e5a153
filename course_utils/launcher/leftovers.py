"""What ranks get from the system that they cannot care for themselves: pages, shared memory."""

import contextlib
import ctypes
import os
from pathlib import Path

from course_utils.launcher.rank import LIBC

_WORTH_IT = 16  # ranks; a kernel with so many starts more: some 60 give back what it takes
_AT_MOST, _HUGE, _MADV_COLLAPSE = 1 << 30, 2 << 20, 25  # not a learner's data of many gigabytes
_MAPS, _SEGMENTS = Path("/proc/self/maps"), Path("/dev/shm")
_ranks = 0


def enlarge_pages(count: int) -> None:
    """Once, before the first rank of the launch that makes it worth while.

    A fork copies an entry for every page that the kernel has written, and the end of a rank drops
    them again: some 95,000 pages of 4 KiB after `import torch`. Linux can put 512 neighbours into
    one page; ranks that are there already would keep the small pages alive beside the large ones.
    Source: Linux man-pages, madvise(2), MADV_COLLAPSE (since Linux 6.1; an older one declines).
    """
    global _ranks
    _ranks, already = _ranks + count, _ranks
    left = _AT_MOST if already < _WORTH_IT <= _ranks and _MAPS.exists() else 0
    for line in _MAPS.read_text().splitlines() if left else ():
        addresses, access, _, _, inode, *name = line.split()
        begin, end = (int(number, 16) for number in addresses.split("-"))
        begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
        private = access == "rw-p" and inode == "0" and name in ([], ["[heap]"])
        if private and 0 < (size := end - begin) <= left:
            left -= size
            LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_COLLAPSE)


def family(groups: set[int]) -> set[int]:
    """The process ids of all members of these process groups, where the system can be asked."""
    found = set(groups)
    with contextlib.suppress(OSError):  # no /proc, or no descriptor left to look into it
        for name in filter(str.isdigit, os.listdir("/proc") if groups else ()):
            with contextlib.suppress(OSError):  # it has just ended
                if os.getpgid(int(name)) in groups:
                    found.add(int(name))
    return found


def remove_segments(owners: set[int]) -> None:
    """Remove what these processes, which are dead by now, have left in shared memory.

    Torch makes a segment for every tensor that a DataLoader worker hands over, and removes its
    name at once. A worker that is stopped in between leaves the segment for ever.
    """
    for owner in owners if _SEGMENTS.is_dir() else ():
        for segment in _SEGMENTS.glob(f"torch_{owner}_*"):
            with contextlib.suppress(OSError):
                segment.unlink()
