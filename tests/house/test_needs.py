"""Which cells a cell needs, read off their code."""

import pytest

from course_tools.learner.needs import needed


def test_a_cell_needs_those_that_make_its_names_and_what_these_need_in_turn():
    cells = ["import torch", "size = 3", "other = torch.ones(2)", "x = torch.ones(size)"]
    assert needed(cells, "print(x)") == [0, 1, 3]
    assert needed(cells, "print(2)") == []


def test_a_function_needs_what_it_uses_even_from_a_cell_below_it_but_not_for_its_own_names():
    cells = ["x = 1", "def outer(x):\n    return inner(x)", "def inner(y):\n    return y"]
    assert needed(cells, "outer(2)") == [1, 2]


@pytest.mark.parametrize(
    "change",
    ["x[0] = 1", "x.rate = 1", "x += 1", "x.append(1)", "fill(x)", "fill(into=x)", "del x[0]",
     "for _ in range(2):\n    x.step()", "for x in [1]:\n    pass",
     "with open('a') as x:\n    pass",
     "if True:\n    x = 2", "from a import b as x", "import x.y", "class x:\n    pass"],
)  # fmt: skip
def test_what_may_change_a_name_is_needed_as_well(change):
    assert needed(["x = []", change, "y = 1"], "print(x)") == [0, 1]


@pytest.mark.parametrize("look", ["print(x)", "launch(x, world_size=2)", "y = x", "x", "check(x)"])
def test_what_only_looks_at_a_name_is_not_needed(look):
    assert needed(["x = []", look], "print(x)") == [0]


def test_a_seed_is_needed_by_who_uses_its_module():
    assert needed(["import torch", "torch.manual_seed(0)"], "print(torch.rand(1))") == [0, 1]


@pytest.mark.parametrize(
    "doubtful",
    ["%matplotlib inline", "!ls", "from os import *", "def f():\n    global x\n    x = 1", "1 +"],
)
def test_in_doubt_all_are_needed(doubtful):
    assert needed(["y = 1", doubtful], "print(2)") == [0, 1]


def test_all_are_needed_by_a_cell_that_cannot_be_read():
    assert needed(["y = 1", "z = 2"], "%run other.py") == [0, 1]


def test_where_names_are_hidden_all_are_needed():
    assert needed(["y = 1", "exec('x = 2')", "z = 3"], "exec('print(x)')") == [0, 1, 2]
