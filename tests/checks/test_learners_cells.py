"""What grading takes of a notebook: what counts when it is run from top to bottom."""

import copy
import json
import os

import labs
import nbformat
import pytest

from course_tools.grading import grade, handout, learner_cells
from course_tools.grading.learner_cells import as_python, read
from course_tools.learner import progress

HEAD = """\
# %%
import torch
import torch.distributed as dist

from course_utils import check, launch
from course_checks.cases import CASES


# %%
def total_spec(tensors):
    return [sum(tensors)] * len(tensors)


def total_inputs(rank, world_size, case):
    return case.tensor()


options = {"cases": CASES[1:2], "world_sizes": (2,), "timeout": 100.0}

"""
EXERCISE = """
# %%
def NAME(tensor):
    ### BEGIN SOLUTION
    dist.all_reduce(tensor)
    return tensor
    ### END SOLUTION


# %%
check(NAME, spec=total_spec, inputs=total_inputs, **options)
"""
# How learners arrange their cells, and what stands then where the lab has its answer.
FORMS = {
    "as_it_is": ["def NAME(tensor):\n    dist.all_reduce(tensor)\n    return tensor"],
    "timed": ["%%time\ndef NAME(tensor):\n    dist.all_reduce(tensor)\n    return tensor"],
    "with_a_helper": [
        "def add_up(tensor):\n    dist.all_reduce(tensor)\n    return tensor\nprint(add_up)",
        "def NAME(tensor):\n    return add_up(tensor)",
    ],
    "with_a_table": [
        "way = {}\nfor k in range(2):\n    way[k] = 'sum' * k",
        "def NAME(tensor):\n    assert way[1] == 'sum'\n    dist.all_reduce(tensor)\n"
        "    return tensor",
    ],
    "tries_it_out": [
        "def NAME(tensor):\n    dist.all_reduce(tensor)\n    return tensor\n"
        "print(launch(lambda: NAME(torch.ones(1)), world_size=2)[0])\nlater = 3",
    ],
    "written_anew": [
        "def NAME(tensor):\n    raise NotImplementedError('about 2 lines')",
        "def NAME(tensor):\n    dist.all_reduce(tensor)\n    return tensor",
    ],
    "with_an_import_above": [
        "def NAME(tensor):\n    every = accumulate([tensor.clone()])\n    (total,) = every\n"
        "    dist.all_reduce(total)\n    return total",
    ],
    "sends_an_object": [
        "from dataclasses import dataclass",
        "@dataclass\nclass Note:\n    numbers: torch.Tensor",
        "def NAME(tensor):\n    notes = [None] * dist.get_world_size()\n"
        "    dist.all_gather_object(notes, Note(tensor))\n"
        "    return sum(note.numbers for note in notes)",
    ],
    "is_wrong": ["def NAME(tensor):\n    return tensor"],
}
LAST = f"from course_utils import progress\nprogress({', '.join(map(repr, FORMS))})"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    root = tmp_path_factory.mktemp("lab")
    source = root / "source/labs/03_forms.py"
    source.parent.mkdir(parents=True)
    source.write_text(HEAD + "".join(EXERCISE.replace("NAME", name) for name in FORMS))
    return grade.read_lab(grade.build.Target(source, root / "solutions/03_forms.ipynb", False))


def cell(text, **more):
    return {"cell_type": "code", "metadata": {}, "source": text, "outputs": []} | more


def handed_in(lab, with_ids=True):
    """A learner's notebook, in which every exercise is solved in another form."""
    cells = []
    for own in lab.cells:
        known = {"id": own["id"]} if with_ids else {}
        name = own["name"].removeprefix("answer-")
        if own["kind"] != "answer":
            cells.append(cell(own["text"].partition("\n### BEGIN HIDDEN")[0], **known))
            continue
        texts = [text.replace("NAME", name) for text in FORMS[name]]
        made = [cell(text) for text in texts]
        made[0] |= known  # the first part stands in the lab's own cell
        cells += made
    cells[0]["source"] += "\nfrom itertools import accumulate"
    return {"cells": [*cells, cell(LAST)], "metadata": {}, "nbformat": 4, "nbformat_minor": 0}


def put(path, notebook):
    path.write_text(json.dumps({"metadata": {}, "nbformat": 4} | notebook))
    return path


def written(path, lab):
    return learner_cells.written(read(path), lab.cells)


@pytest.mark.slow
@pytest.mark.parametrize("with_ids", [True, False])
def test_what_passes_for_the_learner_passes_for_the_teacher(lab, tmp_path, with_ids):
    path = put(tmp_path / "lab.ipynb", handed_in(lab, with_ids))
    judge = grade.Judge(contained=False, slot=0)
    try:
        found = grade.judged(judge, lab, written(path, lab).cells)
    finally:
        judge.close()
    passed = {name: own["passed"] for name, own in found.items()}
    assert passed == {name: name != "is_wrong" for name in FORMS}, found
    if with_ids:
        whole = nbformat.from_dict(copy.deepcopy(handed_in(lab)) | {"nbformat_minor": 5})
        for number, own in enumerate(whole.cells):
            own.setdefault("id", f"new-{number}")
            own["execution_count"] = None
        nbformat.write(whole, path)
        lines = progress.overview(path).splitlines()
        assert lines[0] == f"{len(FORMS) - 1} of {len(FORMS)} exercises pass"
        assert "✗ is_wrong: wrong" in lines


FAILS = """\
def add_up(tensor):
    dist.all_reduce(tensor)
    return tensor[number_of_lines]"""


@pytest.mark.slow
def test_feedback_shows_the_learners_own_line(lab, tmp_path):
    cells = [cell(FAILS), cell("def is_wrong(tensor):\n    return add_up(tensor)")]
    cells.append(cell("number_of = missing\ndef timed(tensor):\n    return number_of"))
    notebook = {"cells": cells, "metadata": {}}
    judge = grade.Judge(contained=False, slot=0)
    try:
        found = grade.judged(judge, lab, written(put(tmp_path / "x.ipynb", notebook), lab).cells)
    finally:
        judge.close()
    said = found["is_wrong"]["text"]
    assert "<answer-is_wrong>, line 2, in is_wrong: return add_up(tensor)" in said
    assert "-->   3 |     return tensor[number_of_lines]" in said
    assert "NameError: name 'number_of_lines' is not defined" in said
    for own in found.values():
        assert "sealed.py" not in own["text"]


def answers_of(lab, tmp_path, *cells, **more):
    notebook = {"cells": list(cells)} | more
    return written(put(tmp_path / "x.ipynb", notebook), lab)


def others(found):
    """What comes along beside the answers."""
    return [one["text"] for one in found.cells if one["name"].startswith("code cell")]


def test_of_several_cells_that_define_an_answer_the_last_above_its_check_counts(lab, tmp_path):
    one, two, three = (cell(f"def timed(tensor):\n    return {n}") for n in (1, 2, 3))
    check = cell(next(own["text"] for own in lab.cells if own["name"] == "check-timed"))
    found = answers_of(lab, tmp_path, one, two, check, three).answers
    assert found == {"answer-timed": two["source"]}
    assert answers_of(lab, tmp_path, check, three).answers == {"answer-timed": three["source"]}


def test_an_answer_that_is_no_python_is_known_by_its_name(lab, tmp_path):
    text = "def timed(tensor):\n    return (tensor"
    assert answers_of(lab, tmp_path, cell(text)).answers == {"answer-timed": text}


def test_what_the_lab_defines_is_not_the_learners_to_define(lab, tmp_path):
    own = cell("def total_spec(tensors):\n    return tensors\nimport torch\nhere = 3\noptions = {}")
    assert others(answers_of(lab, tmp_path, own)) == ["\n\n\nhere = 3"]


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("%%time\nx = 3", "\nx = 3"),
        ("\n%%capture out\nx = 3", "\n\nx = 3"),
        ("%%bash\nls", ""),
        ("%%writefile x.py\nx = 3", ""),
        ("%matplotlib inline\nif x:\n    !ls\n    y = 3", "pass\nif x:\n    pass\n    y = 3"),
        ("dist.all_reduce?\nx = 3", "pass\nx = 3"),
    ],
)
def test_lines_of_ipython_are_left_out_and_all_others_keep_their_numbers(text, python):
    assert as_python(text) == python


def test_a_copy_of_a_different_version_says_so(lab, tmp_path):
    known = {own["id"]: "" for own in lab.cells}
    answer = cell(FORMS["as_it_is"][0].replace("NAME", "as_it_is"))

    def remarks(texts):
        return answers_of(lab, tmp_path, answer, metadata={"course": {"texts": texts}}).remarks

    assert remarks(known) == []
    del known[lab.cells[1]["id"]]
    (said,) = remarks(known)
    assert "different version of the course: 1 of 20 code cells have changed" in said


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[", ""), (b"[" * 100_000, ""), (b"[]", ""), (b"\xff", ""), (b"{}", ""),
        (b'{"nbformat": 4, "cells": [3]}', ""), (b'{"nbformat": 3, "worksheets": 3}', ""),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "metadata": 3}]}', ""),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": {}}]}', ""),
        (b'{"cells": [\n<<<<<<< HEAD\n', "marks of a merge"),
    ],
)  # fmt: skip
def test_what_is_no_notebook_is_refused(lab, tmp_path, content, why):
    (path := tmp_path / "x.ipynb").write_bytes(content)
    with pytest.raises(ValueError, match=f"x.ipynb is no notebook: .*{why}"):
        written(path, lab)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(__file__),
        os.mkfifo,
        lambda path: (path.touch(), os.truncate(path, 1 << 30)),
    ],
)
def test_what_is_no_plain_file_is_refused(lab, tmp_path, make):
    make(path := tmp_path / "x.ipynb")
    with pytest.raises(ValueError, match="is no plain file of at most 100 MB"):
        written(path, lab)


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_the_answers_of_every_lab_are_found_without_ids(slug, tmp_path):
    (target,) = handout.labs_of(labs.ROOT, [slug])
    lab = grade.read_lab(target)
    texts = labs.sources(target.source)
    found = answers_of(lab, tmp_path, *map(cell, texts))
    assert list(found.answers.values()) == [text for text in texts if "### BEGIN SOLUTION" in text]
    assert list(found.answers) == [one["name"] for one in lab.cells if one["kind"] == "answer"]
    assert others(found) == []
