"""Unpacks what learners or platforms have packed, and nothing that would lie elsewhere.

A zip is somebody else's: names may lead out of the folder, entries may be links, and a few
kilobytes may become terabytes. Such entries are left out, and named.
"""

import os
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from course_tools.grading import class_files

MOST_FILES = 10_000
MOST_BYTES = 200 << 20  # of a learner's zip, unpacked
MOST_BYTES_OF_ALL = 4 << 30  # of the zip of a class
FAULTS = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, NotImplementedError)


def unpack(path: Path, into: Path, most: int = MOST_BYTES) -> str:
    """Write a zip's files below a folder, with their times; returns what became of it."""
    if not stat.S_ISREG(path.lstat().st_mode):
        return "refused: it is no plain file"
    try:
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if not _is_of_the_system(entry)]
            size = sum(entry.file_size for entry in entries)
            if len(entries) > MOST_FILES or size > most:
                return f"refused: {len(entries)} files of {size >> 20} MB, {most >> 20} at most"
            left_out = [text for entry in entries for text in _place(archive, entry, into)]
    except FAULTS as error:
        return f"refused: {error or type(error).__name__}"
    return "; ".join([f"{len(entries) - len(left_out)} files unpacked", *left_out])


def _is_of_the_system(entry: zipfile.ZipInfo) -> bool:
    name = PurePosixPath(entry.filename)
    return entry.is_dir() or "__MACOSX" in name.parts or name.name == ".DS_Store"


def _place(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, into: Path) -> Iterator[str]:
    """Write one file, if it is not there; yields why it is left out."""
    name = _name(entry)
    parts = name.split("/")
    target = into.joinpath(*parts)
    if stat.S_ISLNK(entry.external_attr >> 16):
        yield f"{name!r} is left out: it is a link"
        return
    if not all(map(class_files.is_folder_name, parts)) or ":" in parts[0]:
        yield f"{name!r} is left out: its name leads elsewhere"
        return
    if not target.parent.resolve().is_relative_to(into.parent.resolve()) or target.is_symlink():
        yield f"{name!r} is left out: a link is in its way"
        return
    changed = time.mktime((*entry.date_time, 0, 0, -1))
    if target.exists() and target.stat().st_mtime >= changed:
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    os.utime(target, (changed, changed))


def _name(entry: zipfile.ZipInfo) -> str:
    """macOS writes UTF-8 and does not say so: zipfile takes it for the letters of MS-DOS."""
    if entry.flag_bits & 0x800:
        return entry.filename
    try:
        return entry.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return entry.filename
