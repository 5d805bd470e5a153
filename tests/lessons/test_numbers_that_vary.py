"""What must hold of the numbers that lessons print behind "about"."""

import math
import runpy
from functools import partial

import labs
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from course_material.language import novel
from course_tools.notebooks import build
from course_utils import digits, launch


def test_additions_are_lost_without_a_mutex_and_none_with_one():
    own = labs.definitions("01_data_parallel_and_the_gil")
    assert 50 <= own["count_together"](own["nullcontext"]())["value"] < 100
    assert own["count_together"](own["threading"].Lock())["value"] == 100


@pytest.mark.slow
@pytest.mark.parametrize("weights_do", [True, False])
def test_averaged_weights_do_for_sgd_with_momentum_and_decay_and_not_for_adam(
    monkeypatch, weights_do
):
    monkeypatch.syspath_prepend(str(build.ROOT / "notebooks"))  # the lesson imports train_ddp
    own = labs.definitions("04_ddp_training")
    own["training"] = digits(True)
    sgd = partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)
    optimizer = sgd if weights_do else torch.optim.Adam
    ddp, mine = (launch(own["by_hand"], optimizer, what)[0] for what in ("DDP", "weights"))
    assert bool((mine - ddp).abs().max() < 1e-6) is weights_do


@pytest.mark.slow
def test_readers_with_one_seed_are_one_reader_and_others_read_what_one_process_would(monkeypatch):
    monkeypatch.syspath_prepend(str(build.ROOT / "notebooks"))
    own = labs.definitions("04_ddp_training")
    own["tokens"], own["alphabet"] = novel()
    for seeds, seeds_of_one in (([0, 0], [0]), ([0, 1], [0, 1])):
        together, losses = launch(own["train_on_windows"], seeds, torch.float64, world_size=2)[0]
        alone, _ = launch(own["train_on_windows"], seeds_of_one, torch.float64, world_size=1)[0]
        assert (together - alone).abs().max() < 1e-9  # in single precision about 1e-4
        assert torch.equal(together, alone) is (seeds == [0, 0])
        assert losses[0] == pytest.approx(math.log(72), abs=0.2)
        assert losses[-1] < 3.3


@pytest.mark.slow
def test_a_gpt_in_our_ddp_and_in_pytorchs_differ_by_less_than_a_step():
    (path,) = (build.ROOT / "tests/lessons/wrong").glob("05_*.py")
    lesson = runpy.run_path(str(path))["lesson"]
    theirs = launch(lesson.train_gpt, DistributedDataParallel, 20, backend="gloo")
    ours = launch(lesson.train_gpt, lesson.Unaided, 20, backend="gloo")
    less = launch(lesson.train_gpt, lesson.Unaided, 19, backend="gloo")
    assert lesson.apart(ours, theirs) < 1e-6
    assert lesson.apart(less, theirs) > 1e-4


@pytest.fixture
def keras_lesson(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("KERAS_TORCH_DEVICE", "cpu")
    keras = pytest.importorskip("keras")
    own = labs.definitions("10_keras", keras=keras, L=keras.layers)
    training, testing = (own["nhwc"](digits(part)).tensors for part in (True, False))
    own["yardstick"] = own["chapter_10"].Yardstick(training, testing)
    return own


@pytest.mark.slow
def test_what_faults_of_keras_cost_and_that_the_same_masks_cost_next_to_nothing(keras_lesson):
    own, masks = "own digits", {"masks": False}
    runs = (own, {}), (own, {"training": False}), ("dealt", {}), ("dealt", masks)

    def losses():
        study = keras_lesson["study"]
        return [[study(seed, shards, **fault) for seed in (0, 1)] for shards, fault in runs]

    cured, no_mode, dealt, alike = torch.tensor(launch(losses, backend="gloo")[0]).mean(dim=1)
    assert 0.2 < cured < 0.35
    assert no_mode > 1.1 * cured
    assert 0.85 < alike / dealt < 1.15
