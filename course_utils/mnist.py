"""MNIST from its four files, downloaded by one process of a machine at a time."""

import os
from pathlib import Path

from filelock import FileLock, Timeout
from torch.utils.data import Dataset

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_INSTEAD = "or use the digits that need no files: digits(source='embedded')."


def mnist(train: bool, root: str | Path | None, download: bool) -> Dataset:
    """Load `torchvision.datasets.MNIST`, normalised; see `digits` for arguments and errors."""
    from torchvision import datasets, transforms  # a second, so only for those who ask

    home = _home(root)
    if missing := _missing(home):
        if not download:
            raise FileNotFoundError(
                f"MNIST: {home / 'MNIST' / 'raw'} lacks {', '.join(missing)}. Put the four files "
                "there, point root or COURSE_DATA to the folder that holds MNIST/raw, pass "
                f"download=True, {_INSTEAD}"
            )
        _download(home)
    scale = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    try:
        return datasets.MNIST(home, train=train, transform=scale)
    except Exception as error:
        raise RuntimeError(
            f"MNIST's files in {home} cannot be read ({error}). Delete them and fetch them anew, "
            + _INSTEAD
        ) from error


def _home(root: str | Path | None) -> Path:
    home = root or os.environ.get("COURSE_DATA")
    if not home:
        raise FileNotFoundError(
            "MNIST: no folder given. Pass root=..., or set COURSE_DATA to the folder that holds "
            f"MNIST/raw before the kernel starts, {_INSTEAD}"
        )
    return Path(home).expanduser()


def _missing(home: Path) -> list[str]:
    """Which files are not there; none of them counts while somebody is still writing them."""
    raw = home / "MNIST" / "raw"
    if (home / "downloading").exists():
        return list(FILES)
    return [name for name in FILES if not (raw / name).is_file()]


def _download(home: Path) -> None:
    """Download once, however many ranks and kernels of this machine ask.

    A lock, not a barrier: it also serves a rank that calls alone and two kernels of one user,
    and the system releases it when its holder is killed.
    """
    from torchvision.datasets import MNIST

    home.mkdir(parents=True, exist_ok=True)
    lock, unfinished = FileLock(home / ".lock"), home / "downloading"
    waited = False
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waited = True
        lock.acquire()
    try:
        if waited and _missing(home):  # do not repeat, rank by rank, what has just failed
            raise RuntimeError("another rank or kernel tried just now; see its error")
        if _missing(home):
            unfinished.touch()
            MNIST(home, download=True)
    except Exception as error:
        raise RuntimeError(
            f"MNIST could not be downloaded into {home}: {str(error).strip()}. "
            f"Put the four files ({', '.join(FILES)}) into MNIST/raw there, {_INSTEAD}"
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
        lock.release()
