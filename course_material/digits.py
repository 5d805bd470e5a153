"""Real handwritten digits: scikit-learn's, always at hand, or MNIST from its files."""

import functools
import importlib.util
import os
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from course_utils.launcher.language import _

# Of the scaled training images, whose pixels run from 0 to 1; a test computes them again.
MEAN, STD = 0.30514, 0.32485


class EmbeddedDigits(Dataset[tuple[torch.Tensor, int]]):
    """Scikit-learn's handwritten digits, scaled from 8 x 8 to MNIST's 28 x 28 and normalised.

    Every fifth image of each class is for testing: 1,442 images to train, 355 to test, the same
    on every machine. Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten
    Digits, UCI Machine Learning Repository, 1998 (CC BY 4.0).

    Attributes:
        data: Images, (count, 1, 28, 28) float32, zero mean and unit variance when training.
        targets: Digits, (count,) int64.
    """

    def __init__(self, train: bool = True) -> None:
        images, labels, testing = _embedded()
        rows = testing != train
        self.data = torch.from_numpy(images[rows])  # a copy: editing it leaves the cache alone
        self.targets = torch.from_numpy(labels[rows])

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data[index], int(self.targets[index])


def digits(train: bool = True, source: str = "embedded") -> Dataset:
    """Load real handwritten digits, each an image (1, 28, 28) float32, normalised, and an int.

    Args:
        train: Training split, else test split.
        source: "embedded" (1,797 images that come with scikit-learn), or "mnist" (70,000, from the
            folder MNIST/raw in the one that the environment's COURSE_DATA names).

    Raises:
        ValueError: An unknown source.
        RuntimeError: MNIST's files cannot be read; the message says how to get them.
        ModuleNotFoundError: scikit-learn, whose images are embedded, is not installed.
    """
    if source not in ("embedded", "mnist"):
        raise ValueError(_("source={source!r}: choose 'embedded' or 'mnist'", source=source))
    return _mnist(train) if source == "mnist" else EmbeddedDigits(train)


@functools.cache
def _embedded() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images (1797, 1, 28, 28), labels (1797,) and which are for testing; read once a process."""
    spec = importlib.util.find_spec("sklearn")  # found, not imported: the import takes a second
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            _(
                "digits reads images that come with scikit-learn, which is not installed: "
                "pip install 'ddp-course[lab]'"
            ),
            name="sklearn",
        )
    file = Path(spec.origin).parent / "datasets/data/digits.csv.gz"
    table = np.loadtxt(file, dtype=np.float32, delimiter=",")
    labels, testing = table[:, 64].astype(np.int64), np.zeros(len(table), dtype=bool)
    for digit in range(10):
        testing[np.flatnonzero(labels == digit)[4::5]] = True
    rows = _stretch(table[:, :64].reshape(-1, 8, 8) / 16)
    images = _stretch(rows.swapaxes(1, 2)).swapaxes(1, 2)
    return np.ascontiguousarray((images - MEAN) / STD)[:, None], labels, testing


def _stretch(images: np.ndarray) -> np.ndarray:
    """Scale (count, 8, width) to (count, 28, width), linearly between the pixels' centres.

    In NumPy, since torch would start its thread pool in the kernel, which forked ranks inherit.
    """
    at = np.clip((np.arange(28, dtype=np.float32) + 0.5) * 8 / 28 - 0.5, 0, 7)
    low = np.minimum(at.astype(int), 6)
    weight = (at - low).astype(np.float32)[:, None]
    return images[:, low] * (1 - weight) + images[:, low + 1] * weight


def _mnist(train: bool) -> Dataset:
    from torchvision import datasets, transforms  # a second, so only for those who ask

    home = Path(os.environ.get("COURSE_DATA", "")).expanduser()
    scale = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    try:
        return datasets.MNIST(home, train=train, transform=scale)
    except Exception as error:
        files = [Path(url).stem for url, _checksum in datasets.MNIST.resources]
        message = _(
            "MNIST cannot be read from {folder} ({error}). Its files are {files}. Name the folder "
            "that holds MNIST/raw by COURSE_DATA before the kernel starts, fetch them anew in one "
            "process, torchvision.datasets.MNIST({home!r}, download=True), or use the digits "
            "that need no files: digits(source='embedded').",
            folder=home / "MNIST" / "raw",
            error=error,
            files=", ".join(files),
            home=str(home),
        )
        raise RuntimeError(message) from error
