"""A cell that compares a prediction whose own cell was not run: what to do is told plainly."""

import pytest
from warm_kernels import NURSERY

pytestmark = pytest.mark.slow
CELLS = '''
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="NoColor", history_manager=None)
shell.run_cell("""
import torch
import torch.distributed as dist
from course_utils import WorkerError, launch, predict

def add_up_but_rank_1_forgets():
    number = torch.ones(1)
    if dist.get_rank() == 0:
        dist.all_reduce(number)
""")
for cell in {cells!r}:
    print("CELL", cell.splitlines()[0])
    done = shell.run_cell(cell)
    print("RAISED", type(done.error_in_exec).__name__)
'''
HANGS = """# hangs
try:
    launch(add_up_but_rank_1_forgets, timeout=4)
except WorkerError as error:
    accident = error
    others_get.measured("no answer")
    raise
"""
CELL_BY_NAME = {
    "# hangs": HANGS,
    "# measures": "# measures\nothers_get.measured(3)",
    "# another name": "# another name\nprint(other)",
    "# deeper": "# deeper\ndef compare():\n    others_get.measured(1)\ncompare()",
    "# predicted": '# predicted\nothers_get = predict("they get", 3)\nothers_get.measured(3)',
}
TOLD = "others_get is a prediction, and its cell has not run yet."


@pytest.fixture(scope="module")
def said():
    """What a shell like the kernel's prints, by the first line of the cell."""
    printed = NURSERY.run(CELLS.format(cells=list(CELL_BY_NAME.values())))
    return dict(part.split("\n", 1) for part in printed.split("CELL ")[1:])


def test_a_hang_is_told_in_its_short_report_and_then_what_to_run_first(said):
    _, _, shown = said["# hangs"].partition("WorkerTimeout")  # in red
    report, _, advice = shown.partition(TOLD)
    assert "rank 0 was not done after 4 s." in report
    assert "Traceback" not in report
    assert "NameError" not in report
    assert advice.startswith(" It stands further up: run it, then this cell once more.")


@pytest.mark.parametrize("name", ["# measures", "# deeper"])
def test_without_a_failure_before_it_only_what_to_run_first_is_told(said, name):
    assert said[name].lstrip().startswith(TOLD)
    assert "RAISED NameError" in said[name]
    assert len(said[name].strip().splitlines()) == 2


def test_another_name_that_is_missing_is_told_as_ever(said):
    assert "name 'other' is not defined" in said["# another name"]
    assert "Traceback" in said["# another name"]
    assert "prediction" not in said["# another name"]


def test_who_has_predicted_sees_the_comparison(said):
    assert said["# predicted"].startswith("they get: 3; predicted 3: right\n")
