"""A learner edits an answer and runs its cell and its check: what is judged is the new answer."""

import bindings
import labs
import pytest

NOTEBOOKS = sorted([*labs.ROOT.glob("source/lessons/*.py"), *labs.ROOT.glob("source/labs/*.py")])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_no_later_cell_keeps_an_answer_as_it_was(path):
    cut = labs.sources(path, cut=True)
    for answer in bindings.answers(cut, labs.sources(path)):
        assert not [*bindings.kept(answer, cut)]


KEEPING = {
    "a default": "def tried(x, step=answer):\n    return step(x)",
    "a lambda's default": "tried = lambda x, step=answer: step(x)",
    "a partial": "from functools import partial\ntried = partial(answer)",
    "a wrapper": "tried = wrapped(answer)",
    "a base class": "class tried(answer):\n    pass",
    "a decorator": "@answer\ndef tried(x):\n    return x",
    "another name": "tried = answer",
    "a list": "steps = [answer]\ndef tried(x):\n    return steps[0](x)",
    "a list that grows": "steps = []\nsteps.append(answer)\ntried = lambda x: steps[0](x)",
    "an attribute": "box.step = answer\ndef tried(x):\n    return box.step(x)",
    "a class's own name": "class tried:\n    step = answer",
}


@pytest.mark.parametrize("cell", KEEPING.values(), ids=KEEPING)
def test_each_way_to_keep_an_old_answer_is_seen(cell):
    stub = "def answer(x):\n    raise NotImplementedError('about 1 line')"
    assert [*bindings.kept("answer", [stub, cell, "check(tried, spec=spec)"])]


FOLLOWING = {
    "a function that looks it up": ("def tried(x):\n    return answer(x)", "check(tried)"),
    "a wrapper in the check": ("def wrapped(fn):\n    return fn", "check(wrapped(answer))"),
    "a binding that runs with the check": ("", "tried = [answer]\ncheck(tried[0])"),
    "a name that no check reads": ("kept = answer", "check(answer)"),
}


@pytest.mark.parametrize("cells", FOLLOWING.values(), ids=FOLLOWING)
def test_what_follows_an_edit_is_let_pass(cells):
    stub = "def answer(x):\n    raise NotImplementedError('about 1 line')"
    assert not [*bindings.kept("answer", [stub, *cells])]
