"""The four real files of MNIST, where they are at hand, unpacked as torchvision keeps them."""

import gzip
from pathlib import Path

import pytest

FILES = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
MNIST_HERE = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"
needs_mnist = pytest.mark.skipif(
    not all((MNIST_HERE / f"{name}.gz").is_file() for name in FILES),
    reason="MNIST's four .gz files are not in ../shared/data/mnist",
)


def unpack(folder: Path, at_most: int = 60_000) -> None:
    """Write the files, or as many digits of each as that; a file's header says how many it has."""
    folder.mkdir(parents=True)
    for name in FILES:
        whole = gzip.decompress((MNIST_HERE / f"{name}.gz").read_bytes())
        header, size = (16, 28 * 28) if "images" in name else (8, 1)
        count = min(at_most, int.from_bytes(whole[4:8]))
        start = whole[:4] + count.to_bytes(4) + whole[8:header]
        (folder / name).write_bytes(start + whole[header : header + count * size])
