"""Unpacks what learners or platforms have packed.

A zip is somebody else's. That no name leads out of the folder and no entry becomes a link, zipfile
sees to; but a few kilobytes may become terabytes, and times are lost.
"""

import os
import time
import zipfile
import zlib
from pathlib import Path

MOST_BYTES = 4 << 30  # unpacked
FAULTS = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError)


def unpack(path: Path, into: Path, most_bytes: int = MOST_BYTES) -> str:
    """Write a zip's files below a folder, with their times; returns what became of it."""
    if path.is_symlink():
        return "refused: it is a link"
    try:
        with _opened(path) as archive:
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if size > most_bytes:
                return f"refused: {size >> 20} MB, {most_bytes >> 20} at most"
            for entry in entries:
                if entry.is_dir():
                    continue
                if not entry.filename.startswith("__MACOSX/"):
                    _place(archive, entry, into)
    except FAULTS as error:
        return f"refused: {error or type(error).__name__}"
    return "unpacked"


def _opened(path: Path) -> zipfile.ZipFile:
    """macOS writes UTF-8 and does not say so: zipfile takes it for the letters of MS-DOS."""
    try:
        return zipfile.ZipFile(path, metadata_encoding="utf-8")
    except UnicodeDecodeError:
        return zipfile.ZipFile(path)


def _place(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, into: Path) -> None:
    """Write a file, unless it is there and somebody has changed it since."""
    # mktime asks for no weekday and no day of the year, and with -1 it finds out of summer time.
    packed_s = time.mktime((*entry.date_time, 0, 0, -1))
    target = into / entry.filename
    if target.exists():
        changed_s = target.stat().st_mtime
        if changed_s >= packed_s:
            return
    extracted = archive.extract(entry, into)
    os.utime(extracted, (packed_s, packed_s))
