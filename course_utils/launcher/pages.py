"""Larger pages of memory in the kernel, so that ranks start and end in less time.

A fork copies an entry for every page that the kernel has written, and the end of a rank drops them
again: some 95,000 pages of 4 KiB after `import torch`. Linux can put 512 neighbours into one page.
Source: Linux man-pages, madvise(2), MADV_COLLAPSE (since Linux 6.1; an older one declines).
"""

import contextlib
import ctypes
from pathlib import Path

from course_utils.launcher.rank import LIBC

_WORTH_IT = 16  # ranks; a kernel with so many starts more: some 60 give back what it takes
_AT_MOST, _HUGE, _MADV_COLLAPSE = 1 << 30, 2 << 20, 25  # not a learner's data of many gigabytes
_ranks = 0


def before_forks(count: int) -> None:
    """Enlarge them once, before the first rank of the launch that makes it worth while.

    Ranks that are there already would keep the small pages alive beside the large ones.
    """
    global _ranks
    _ranks, already = _ranks + count, _ranks
    left = _AT_MOST if already < _WORTH_IT <= _ranks else 0
    with contextlib.suppress(OSError):  # there is no /proc on macOS
        for line in Path("/proc/self/maps").read_text().splitlines() if left else ():
            addresses, access, _, _, inode, *name = line.split()
            begin, end = (int(number, 16) for number in addresses.split("-"))
            begin, end = -(-begin // _HUGE) * _HUGE, end // _HUGE * _HUGE
            private = access == "rw-p" and inode == "0" and name in ([], ["[heap]"])
            if private and 0 < (size := end - begin) <= left:
                left -= size
                LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_COLLAPSE)
