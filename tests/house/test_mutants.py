"""Small mistakes in solutions: which are made, and what becomes of those that do harm."""

import pytest

from course_tools.quality import mutants
from course_tools.quality.mutations import Mutant

CELL = """\
rank = 0  # stays
### BEGIN SOLUTION
if rank == 2 and ready:
    send(tensor, to=1)
total += 3 * recv(x)
### END SOLUTION
rank = rank + 1
"""
LAB = """\
# %%
from course_utils import check
# %%
def triple(n):
    ### BEGIN SOLUTION
    return 3 * n
    ### END SOLUTION
# %%
how = dict(inputs=lambda rank, size, case: case + rank, cases=(1,), timeout=3)
check(triple, spec=lambda own: [3 * n for n in own], **how)
"""


def test_the_marked_lines_are_changed_in_every_way_and_nothing_else_is():
    made = {one.change for one in mutants.mutants(CELL)}
    assert made >= {
        "if rank == 2 and ready: ... -> pass",
        "if rank == 2 and ready: <-> total += 3 * recv(x)",
        "if rank == 2 and ready: -> if rank != 2 and ready:",
        "if rank == 2 and ready: -> if rank == 2 or ready:",
        "if rank == 2 and ready: -> if not (rank == 2 and ready):",
        "if rank == 2 and ready: -> if True:",
        "if rank == 2 and ready: -> if rank == 1 and ready:",
        "if rank == 2 and ready: -> if world_size == 2 and ready:",
        "send(tensor, to=1) -> pass",
        "send(tensor, to=1) -> send(tensor)",
        "send(tensor, to=1) -> send(1, to=1)",
        "send(tensor, to=1) -> send(tensor, to=2)",
        "total += 3 * recv(x) -> total -= 3 * recv(x)",
        "total += 3 * recv(x) -> total += 3 / recv(x)",
    }
    assert all(one.source.startswith("rank = 0  # stays") for one in mutants.mutants(CELL))
    assert all(one.source.endswith("\nrank = rank + 1\n") for one in mutants.mutants(CELL))


DEEDS = {
    "right in another way": ("    return n + n + n", mutants.SURVIVES),
    "wrong": ("    return n", mutants.KILLED),
    "never returns": ("    while True: pass", mutants.KILLED),
    "kills its rank": ("    import os\n    os.kill(os.getpid(), 9)", mutants.KILLED),
    "leaves a file": ("    open('left', 'w').close()", mutants.KILLED),
    "ends the process when it is defined": ("    pass\nimport os\nos._exit(0)", mutants.KILLED),
    "hangs when it is defined": ("    pass\nimport time\ntime.sleep(99)", mutants.KILLED),
    "listed": ("    return n * 3", mutants.SAME),
}


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A lab of one exercise, with these mutants instead of those that would be made."""

    def made(cell):
        head = cell.partition("    ### BEGIN")[0]
        return [Mutant(name, head + body) for name, (body, _) in DEEDS.items() if head != cell]

    monkeypatch.setattr(mutants, "mutants", made)
    monkeypatch.setattr(mutants, "MOST_S", 15.0)
    (tmp_path / "99_toy.py").write_text(LAB)
    return tmp_path / "99_toy.py"


@pytest.mark.slow
def test_a_mutant_may_do_what_it_likes_and_is_judged_all_the_same(lab, nothing_left, monkeypatch):
    monkeypatch.chdir(lab.parent)
    known = {"triple": {"listed": "the same"}}
    fates = {one.change: one.fate for one in mutants.tried(lab, known, mutants.Choice())}
    assert fates == {name: fate for name, (_, fate) in DEEDS.items()}
    assert [path.name for path in lab.parent.iterdir()] == ["99_toy.py"]


def test_a_few_are_drawn_the_same_by_the_same_seed(lab):
    def drawn(seed):
        choice = mutants.Choice("triple", 3, seed)
        made = {0: [], 1: [Mutant(str(n), "") for n in range(20)]}
        return [one.change for one in mutants._drawn(made, {1: "triple"}, choice)]

    assert len(drawn(1)) == 3
    assert drawn(1) == drawn(1) != drawn(2)


def test_what_is_called_equivalent_is_still_a_mutant():
    assert mutants.stale() == []
