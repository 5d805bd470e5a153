"""What must hold of the numbers that lessons print behind "about"."""

import ast
from functools import partial

import nbformat
import pytest
import torch

import build
from course_utils import digits, launch


def definitions(slug: str) -> dict:
    """What a lesson imports and defines, by name; nothing is launched."""
    (target,) = (t for t in build.targets(build.HERE, [slug]) if t.built.parent.name == "notebooks")
    cells = [c for c in nbformat.read(target.built, as_version=4).cells if c.cell_type == "code"]
    kinds, known = (ast.Import, ast.ImportFrom, ast.FunctionDef), {}
    for node in (node for cell in cells for node in ast.parse(cell.source).body):
        if isinstance(node, kinds):
            exec(ast.unparse(node), known)
    return known


def test_additions_are_lost_without_a_mutex_and_none_with_one():
    own = definitions("01_data_parallel_and_the_gil")
    assert 50 <= own["count_together"](own["nullcontext"]()) < 100
    assert own["count_together"](own["threading"].Lock()) == 100


@pytest.mark.parametrize("weights_do", [True, False])
def test_averaged_weights_do_for_sgd_with_momentum_and_decay_and_not_for_adam(
    monkeypatch, weights_do
):
    monkeypatch.syspath_prepend(str(build.HERE / "notebooks"))  # the lesson imports train_ddp
    own = definitions("04_ddp_training")
    own["training"] = digits(True)
    sgd = partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)
    optimizer = sgd if weights_do else torch.optim.Adam
    ddp, mine = (launch(own["by_hand"], optimizer, what)[0] for what in ("DDP", "weights"))
    assert bool((mine - ddp).abs().max() < 1e-6) is weights_do
