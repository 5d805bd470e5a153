"""MNIST from its four files, fetched or unpacked by one process at a time."""

import fcntl
import gzip
import os
import shutil
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.utils.data import Dataset

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
INSTEAD = "or use the digits that need no files: digits(source='embedded')."


def mnist(train: bool, root: str | Path | None, download: bool) -> Dataset:
    """Load `torchvision.datasets.MNIST`, normalised; see `digits` for arguments and errors."""
    raw = _home(root) / "MNIST" / "raw"
    if _missing(raw):
        _prepare(raw, download)
    from torchvision import datasets, transforms  # a second, so only for those who ask

    scale = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    try:
        return datasets.MNIST(raw.parent.parent, train=train, transform=scale)
    except Exception as error:
        raise RuntimeError(
            f"MNIST's files in {raw} cannot be read ({error}). Delete them and fetch them anew, "
            + INSTEAD
        ) from error


def _home(root: str | Path | None) -> Path:
    home = root or os.environ.get("COURSE_DATA")
    if not home:
        raise FileNotFoundError(
            "MNIST: no folder given. Pass root=..., or set COURSE_DATA to the folder that holds "
            f"MNIST/raw before the kernel starts, {INSTEAD}"
        )
    return Path(home).expanduser()


def _missing(raw: Path) -> list[str]:
    return [name for name in FILES if not (raw / name).is_file()]


def _prepare(raw: Path, download: bool) -> None:
    """Unpack or fetch what is missing, while other ranks and kernels wait."""
    absent = [name for name in _missing(raw) if not (raw / f"{name}.gz").is_file()]
    if absent and not download:
        raise FileNotFoundError(
            f"MNIST: {raw} lacks {', '.join(absent)}. Put the four files there (plain or .gz), "
            "point root or COURSE_DATA to the folder that holds MNIST/raw, pass download=True, "
            + INSTEAD
        )
    try:
        raw.mkdir(parents=True, exist_ok=True)
        with _alone(raw / ".lock") as waited:
            if waited and _missing(raw):  # do not repeat, rank by rank, what has just failed
                raise RuntimeError(
                    "another rank or kernel tried just now and failed; see its error"
                )
            _unpack(raw, download)
            if _missing(raw):
                _download(raw)
    except Exception as error:
        how = "downloaded" if download else "unpacked"
        raise RuntimeError(
            f"MNIST could not be {how} into {raw}: {str(error).strip()}. "
            f"Put the four files there ({', '.join(FILES)}), {INSTEAD}"
        ) from error


@contextmanager
def _alone(path: Path) -> Iterator[bool]:
    """Hold the lock file; say whether another process held it first.

    A lock, not a barrier: it also serves a rank that calls alone, two "nodes" of one machine
    and two kernels, and the system releases it when its holder fails or is killed.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            waited = False
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_EX)
            waited = True
        yield waited


def _unpack(raw: Path, download: bool) -> None:
    for name in _missing(raw):
        archive, part = raw / f"{name}.gz", raw / f"{name}.part"
        if not archive.is_file():
            continue
        try:
            with gzip.open(archive) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            part.unlink(missing_ok=True)
            if not download:
                raise RuntimeError(f"{archive.name} is damaged ({error})") from error
        else:
            part.replace(raw / name)  # at once: nobody ever reads half a file


def _download(raw: Path) -> None:
    from torchvision.datasets import MNIST

    part = raw / "part"
    shutil.rmtree(part, ignore_errors=True)  # of a download that was killed
    patience = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)  # torchvision sets none, and a dropped packet would mean minutes
    try:
        MNIST(part, download=True)
        for name in FILES:
            (part / "MNIST" / "raw" / name).replace(raw / name)
    finally:
        socket.setdefaulttimeout(patience)
        shutil.rmtree(part, ignore_errors=True)
