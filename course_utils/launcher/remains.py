"""What processes that are stopped leave behind, because they cannot remove it themselves.

Torch makes a segment in `/dev/shm` for every tensor that a DataLoader worker hands over, and
removes its name at once. A worker that is stopped in between leaves the segment for ever.
"""

import contextlib
import os
from pathlib import Path

_SEGMENTS = Path("/dev/shm")


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
    """Remove what these processes, which are dead by now, have left in shared memory."""
    for owner in owners if _SEGMENTS.is_dir() else ():
        for segment in _SEGMENTS.glob(f"torch_{owner}_*"):
            with contextlib.suppress(OSError):
                segment.unlink()
