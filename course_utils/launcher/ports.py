"""Which rank listens on a port that a different rank wanted as well."""

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_IN_USE = re.compile(r"port: (\d+), .*EADDRINUSE")
_TABLES = "/proc/net/tcp", "/proc/net/tcp6"
_LISTENS = "0A"  # a state, as Linux writes it


def port_in_use(headline: str) -> int | None:
    """The port of which torch says that somebody listens on it already."""
    match = _IN_USE.search(headline)
    if match is None:
        return None
    return int(match[1])


def who_listens(port: int, pids: Mapping[int, int]) -> int | None:
    """Of these ranks, with their process ids, the one that listens on a port; None if none does.

    Only Linux tells.
    """
    links = {f"socket:[{inode}]" for inode in _inodes(port)}
    inherited = _open_files(os.getpid())  # each rank has the notebook's
    links.difference_update(inherited)
    for rank, pid in pids.items():
        files = _open_files(pid)
        if not links.isdisjoint(files):
            return rank
    return None


def _inodes(port: int) -> Iterable[str]:
    """The system's numbers of the sockets that listen there."""
    for table in _TABLES:
        with contextlib.suppress(OSError):
            text = Path(table).read_text()
            _title, *rows = text.splitlines()
            for row in rows:
                fields = row.split()
                address = fields[1]
                state = fields[3]
                inode = fields[9]
                _ip, _colon, number = address.rpartition(":")
                if state == _LISTENS and int(number, 16) == port:
                    yield inode


def _open_files(pid: int) -> Iterable[str]:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                yield os.readlink(entry)
