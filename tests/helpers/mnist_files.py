"""The four real files of MNIST, where they are at hand, unpacked as torchvision keeps them."""

import gzip
from pathlib import Path

import pytest

from course_utils.data import FILES

MNIST_HERE = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"
needs_mnist = pytest.mark.skipif(
    not all((MNIST_HERE / f"{name}.gz").is_file() for name in FILES),
    reason="MNIST's four .gz files are not in ../shared/data/mnist",
)


def unpack(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_bytes(gzip.decompress((MNIST_HERE / f"{name}.gz").read_bytes()))
