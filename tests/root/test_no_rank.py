"""What fails outside of any rank, and what is said of it: `launch(fn())`, `spawn`, wrong calls."""

import re

import pytest
from warm_kernels import NURSERY

pytestmark = pytest.mark.slow
CELLS = '''
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="NoColor", history_manager=None)
shell.run_cell("""
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from course_utils import launch

def greet(rank, word):
    print(word, rank)

def start(count):
    launch(add_up, world_size=count)

def add_up(count=1):
    number = torch.full((count,), dist.get_rank() + 1)
    dist.all_reduce(number)
    return number.tolist()
""")
for cell in {cells!r}:
    print("CELL", cell)
    shell.run_cell(cell)
'''
MISTAKES = {
    "launch(add_up())": "launch(add_up), not launch(add_up()).",
    "launch(add_up(3), world_size=4)": "launch(add_up), not launch(add_up()).",
    "dist.get_world_size()": "launch(fn), not launch(fn()).",
}
SPAWNS = "mp.spawn(greet, args=('hello',))"
SPAWNS_A_FILES = "mp.spawn(dist.is_initialized)"
REFUSED = {  # by cell: the frames that its traceback has
    "launch(add_up, args=(3,))": ["launch(add_up, args=(3,))"],
    "launch(add_up, 1, 2)": ["launch(add_up, 1, 2)"],
    "launch(add_up, backend='mpi')": ["launch(add_up, backend='mpi')"],
    "start(2.5)": ["start(2.5)", "launch(add_up, world_size=count)"],
}
OTHERS = ["raise ValueError('default')", "print(launch(add_up, world_size=3))"]


@pytest.fixture(scope="module")
def said():
    """What a shell like the kernel's prints, by cell."""
    source = CELLS.format(cells=[*MISTAKES, SPAWNS, SPAWNS_A_FILES, *REFUSED, *OTHERS])
    printed = NURSERY.run(source)
    return dict(part.split("\n", 1) for part in printed.split("CELL ")[1:])


@pytest.mark.parametrize("cell", MISTAKES)
def test_below_torchs_error_stands_where_it_ran_and_what_to_write(said, cell):
    error, _, told = said[cell].rpartition("This ran in the notebook itself, which is no rank. ")
    assert "Default process group has not been initialized" in error
    assert told.strip() == f"launch calls it in every rank: write {MISTAKES[cell]}"


def test_a_function_of_a_cell_cannot_be_spawned_and_launch_is_named_instead(said):
    error, _, told = said[SPAWNS].rpartition("spawn starts new Pythons, which cannot import ")
    assert "ProcessExitedException" in error
    assert told.strip().endswith("its ranks know it: write launch(greet, world_size=1).")


def test_of_a_function_that_fails_in_a_spawned_python_torch_speaks_alone(said):
    assert "ProcessRaisedException" in said[SPAWNS_A_FILES]
    assert "launch" not in said[SPAWNS_A_FILES]


@pytest.mark.parametrize("cell", REFUSED)
def test_the_traceback_of_a_refused_call_ends_at_the_learners_line(said, cell):
    assert re.findall(r"^-+> \d+ +(.*)", said[cell], re.MULTILINE) == REFUSED[cell]
    assert "course_utils" not in said[cell]


@pytest.mark.parametrize("cell", OTHERS)
def test_of_other_cells_nothing_is_said(said, cell):
    assert "which is no rank" not in said[cell]


def test_ranks_work_as_ever(said):
    assert "[[6], [6], [6]]" in said[OTHERS[1]]
