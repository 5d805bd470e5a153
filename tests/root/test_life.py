"""A long launch shows that it lives: the panel comes by itself, and goes at the end."""

import pytest
from kernels import warm_kernel

SETUP = """
from IPython.display import DisplayHandle
from course_utils import life, notebook
life._UNNOTICED_S = 0.5
shown = []
DisplayHandle.display = DisplayHandle.update = (
    lambda self, bundle, raw: shown.append(bundle["text/html"])
)

def trains():
    for step in range(20):
        report(step=step + 1, steps=20, loss=1 / (step + 1))
        print("step", step)
        time.sleep(0.1)
    return "trained"
"""


@pytest.fixture(scope="module")
def kernel():
    with warm_kernel(SETUP) as kernel:
        yield kernel


def drawn(kernel, cell, looks=True):
    """What running a cell led to, and every state of the panel."""
    kernel.run(f"notebook.a_person_looks = lambda: {looks}; shown.clear()", 30)
    outcome = kernel.run(cell, 60)
    return outcome, eval(kernel.run("shown", 30).value)


def test_a_long_launch_shows_its_last_lines_and_metrics_while_it_runs(kernel):
    outcome, panels = drawn(kernel, "list(launch(trains))")
    assert outcome.value == "['trained', 'trained']"
    assert any("rank 1" in panel and "loss" in panel and "step " in panel for panel in panels)
    assert panels[-1] == ""  # it is gone
    assert outcome.printed.count("step 19") == 2  # all that was printed is there instead


def test_a_launch_that_is_over_sooner_shows_none(kernel):
    kernel.run("life._UNNOTICED_S = 600", 30)  # a short launch is long on a busy machine
    outcome, panels = drawn(kernel, "launch(total)")
    kernel.run("life._UNNOTICED_S = 0.5", 30)
    assert (outcome.errors, panels) == ([], [])


def test_a_run_at_which_nobody_looks_shows_none(kernel):
    outcome, panels = drawn(kernel, "list(launch(trains))", looks=False)
    assert outcome.value == "['trained', 'trained']"
    assert panels == []


def test_it_goes_when_a_rank_fails_and_when_it_is_stopped(kernel):
    cell = "launch(lambda: (time.sleep(1.5), 1 / 0))"
    outcome, panels = drawn(kernel, cell)
    assert "ZeroDivisionError" in outcome.errors[0][1]
    assert len(panels) > 1
    assert panels[-1] == ""
    with kernel.pressing_stop(1.5):
        outcome, panels = drawn(kernel, "launch(time.sleep, 600)")
    assert outcome.errors[0][0] == "Stopped"
    assert panels[-1] == ""


def test_who_asked_for_a_panel_keeps_it(kernel):
    _, panels = drawn(kernel, "launch(trains, live=True)")
    assert "done" in panels[-1]


def test_what_cannot_start_shows_none(kernel):
    outcome, panels = drawn(kernel, "launch(trains, world_size=0)")
    assert outcome.errors[0][0] == "ValueError"
    assert panels == []
