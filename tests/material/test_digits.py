"""Real digits: the embedded ones anywhere, MNIST on its real files where they are."""

import hashlib
import importlib
import sys

import pytest
import torch
from mnist_files import FILES, needs_mnist
from torch import nn
from torch.utils.data import DataLoader

from course_material import digits as module
from course_material.digits import MEAN, STD, digits
from course_tools.child_process import in_child_process

# Failures


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match="source='cifar': choose 'embedded' or 'mnist'"):
        digits(source="cifar")


def test_mnist_without_files_says_where_it_looked_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    remedies = r"COURSE_DATA.*MNIST\(.*, download=True\), or use .*source='embedded'"
    with pytest.raises(RuntimeError, match=remedies) as caught:
        digits(source="mnist")
    assert all(name in str(caught.value) for name in (str(tmp_path / "MNIST" / "raw"), *FILES))
    assert not list(tmp_path.iterdir())


def test_files_that_are_not_mnist_are_an_error_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in FILES:
        (raw / name).write_bytes(bytes(100))
    with pytest.raises(RuntimeError, match=r"cannot be read.*fetch them anew"):
        digits(source="mnist")


# MNIST from its files


@needs_mnist
def test_the_real_files_are_read(unpacked, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(unpacked))
    train, test = (digits(t, source="mnist") for t in (True, False))
    assert (len(train), len(test)) == (60_000, 10_000)
    images = (unpacked / "MNIST" / "raw" / "train-images-idx3-ubyte").read_bytes()
    assert hashlib.md5(images).hexdigest() == "6bbc9ace898e44ae57da46a324031adb"


@needs_mnist
def test_mnist_is_found_through_the_environment_and_normalised(unpacked, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(unpacked))
    train = digits(source="mnist")
    image, label = train[0]
    assert (image.shape, image.dtype, label) == ((1, 28, 28), torch.float32, 5)
    sample = torch.stack([train[i][0] for i in range(2000)])
    assert abs(sample.mean()) < 0.02
    assert abs(sample.std() - 1) < 0.02


# The embedded digits


def test_an_embedded_digit_is_an_image_and_an_int():
    train = digits()
    image, label = train[3]
    assert (image.shape, image.dtype, image.is_contiguous()) == ((1, 28, 28), torch.float32, True)
    assert type(label) is int
    assert label == train.targets[3] == 3
    assert train.data.shape == (1442, 1, 28, 28)
    assert train.targets.dtype == torch.int64


def test_the_split_covers_scikit_learns_digits_once_and_a_fifth_of_each_class_is_for_testing():
    from sklearn.datasets import load_digits

    train, test = digits(), digits(train=False)
    whole = torch.bincount(torch.from_numpy(load_digits().target))
    parts = [torch.bincount(part.targets, minlength=10) for part in (train, test)]
    assert torch.equal(parts[0] + parts[1], whole)
    assert torch.equal(parts[1], whole // 5)


def test_the_split_is_the_same_on_every_machine():
    testing = module._embedded()[2].nonzero()[0]
    assert testing[:5].tolist() == [33, 36, 37, 40, 44]
    assert testing.sum() == 322086


def test_images_are_what_torch_interpolates_from_scikit_learns():
    from sklearn.datasets import load_digits

    small = torch.from_numpy(load_digits().images).float()[:, None] / 16
    large = nn.functional.interpolate(small, size=(28, 28), mode="bilinear")
    ours = torch.from_numpy(module._embedded()[0]) * STD + MEAN
    torch.testing.assert_close(ours, large, atol=1e-5, rtol=0)


def test_mean_and_deviation_are_those_of_the_training_images():
    pixels = digits().data.double()
    assert abs(pixels.mean()) < 1e-4
    assert abs(pixels.std(correction=0) - 1) < 1e-4


def test_editing_one_data_set_leaves_the_next_alone():
    digits().data.zero_()
    assert digits().data.std() > 0.9


def test_loading_the_embedded_digits_imports_neither_sklearn_nor_torchvision():
    unwanted = {"sklearn", "scipy", "torchvision"}

    def imported() -> set[str]:
        for name in [*sys.modules]:
            if name.partition(".")[0] in unwanted | {"course_material"}:
                del sys.modules[name]
        importlib.import_module("course_material.digits").digits()
        return unwanted & {*sys.modules}

    assert in_child_process(imported) == set()


@pytest.fixture
def one_thread():
    """Of torch: with batches as small as these, two spend their time in waiting for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_an_mlp_learns_the_embedded_digits_in_seconds():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        for images, labels in DataLoader(digits(), batch_size=32, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    test = digits(train=False)
    accuracy = (model(test.data).argmax(1) == test.targets).float().mean()
    assert accuracy > 0.9
