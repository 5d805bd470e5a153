"""What must hold of the numbers that lessons print behind "about"."""

import nbformat

import build


def definitions(slug: str) -> dict:
    """What a lesson imports and defines, by name; nothing is launched."""
    (target,) = (t for t in build.targets(build.HERE, [slug]) if t.built.parent.name == "notebooks")
    cells = [c for c in nbformat.read(target.built, as_version=4).cells if c.cell_type == "code"]
    known: dict = {}
    for cell in cells[:1] + [cell for cell in cells if "def " in cell.source]:
        if not any(word in cell.source for word in ("launch(", ".measured(")):
            exec(cell.source, known)
    return known


def test_additions_are_lost_without_a_mutex_and_none_with_one():
    own = definitions("01_data_parallel_and_the_gil")
    assert 50 <= own["count_together"](own["nullcontext"]()) < 100
    assert own["count_together"](own["threading"].Lock()) == 100
