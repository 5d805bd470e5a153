"""Predictions that are made by a click: the forms, and what is kept of them."""

import datetime
import json
import os
from types import SimpleNamespace

import ipywidgets
import pytest
from IPython import display as ipython_display

from course_material import prediction_forms, scores
from course_material.answers import parsed
from course_material.predictions import _asked
from course_tools.learner.jupyterlab.course_saving import keep_pictures
from course_tools.notebooks.cells import WIDGET_VIEW
from course_utils import predict


@pytest.fixture
def displayed(monkeypatch):
    """What is displayed, as if a person ran the cells."""
    shown = []
    monkeypatch.setattr(prediction_forms, "a_person_looks", lambda: True)
    monkeypatch.setattr(ipython_display, "display", lambda *things, **_: shown.extend(things))
    _asked.clear()
    yield shown
    _asked.clear()


def widgets(kind: type, root: ipywidgets.Widget) -> list:
    """All widgets of a kind in a form."""
    if isinstance(root, kind):
        return [root]
    return [widget for child in getattr(root, "children", ()) for widget in widgets(kind, child)]


def buttons(form: ipywidgets.Widget) -> dict[str, ipywidgets.Button]:
    return {button.description: button for button in widgets(ipywidgets.Button, form)}


def texts(form: ipywidgets.Widget) -> str:
    return "".join(text.value for text in widgets(ipywidgets.HTML, form))


def test_in_a_run_that_compares_outputs_nothing_is_displayed(capsys):
    assert not prediction_forms.a_person_looks()
    predict("it is").measured(3)
    assert capsys.readouterr().out == "it is: 3 (no prediction)\n"


def test_a_click_on_a_choice_is_the_answer(displayed, capsys):
    prediction = predict("the winner is", ..., choices=("ring", "tree"))
    form = displayed[-1]
    assert list(buttons(form)) == ["ring", "tree"]
    buttons(form)["ring"].click()
    assert "Noted: <b>ring</b>" in texts(form)
    prediction.measured("ring")
    assert capsys.readouterr().out == "the winner is: ring; predicted ring: right\n"


@pytest.mark.parametrize(
    ("typed", "verdict"),
    [
        ("400 keys", "predicted 400: right"),
        ("about 1,500", "predicted 1,500: off by 1,100"),
        ("4e2 bytes", "predicted 400: right"),
        ("2 or 3", "predicted 2 or 3: not so"),
        ("fp16", "predicted fp16: not so"),
    ],
)
def test_where_a_number_is_wanted_the_number_in_an_answer_is_read(
    typed, verdict, displayed, capsys
):
    prediction = predict("it keeps", ...)
    field = widgets(ipywidgets.Text, displayed[-1])[0]
    field.value = typed
    prediction.measured(400)
    assert capsys.readouterr().out == f"it keeps: 400; {verdict}\n"


def test_the_score_names_what_is_open_and_is_shown_anew_when_that_is_answered(monkeypatch):
    shown = []

    def display(*things, **_):
        shown.extend(things)
        return SimpleNamespace(update=lambda thing, **_: shown.append(thing))

    monkeypatch.setattr(prediction_forms, "a_person_looks", lambda: True)
    monkeypatch.setattr(ipython_display, "display", display)
    _asked.clear()
    prediction = predict("the winner is", ..., choices=("ring", "tree"))
    prediction.measured("ring")
    predict()
    assert shown[-1]["text/plain"].endswith("1 is open.\nOpen:\n  the winner is")
    assert '<a href="#predict-the-winner-is">' in shown[-1]["text/html"]
    prediction.take("ring")
    assert shown[-1]["text/plain"] == "1 of 1 predictions were right."
    _asked.clear()


def test_a_choice_that_is_a_number_comes_back_as_a_number(displayed):
    prediction = predict("the rank is", ..., choices=(0, 1))
    buttons(displayed[-1])["1"].click()
    assert prediction.answer == 1


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("6", 6),
        (" 0.5 ", 0.5),
        ("1e-3", 0.001),
        ("[1, 2]", [1, 2]),
        ("1, 2", (1, 2)),
        ("1,2", (1, 2)),
        ("203,530", 203530),
        ("1,000,000", 1000000),
        ("100, 200", (100, 200)),
        ("True", True),
        ("ring", "ring"),
        ("import os", "import os"),
        ("inf", float("inf")),
        ("0 1 0 1", (0, 1, 0, 1)),
        ("[0 1, 0  1]", (0, 1, 0, 1)),
        ("1,000 2,000", (1000, 2000)),
        ("2 or 3", "2 or 3"),
    ],
)
def test_what_is_typed_is_a_number_or_a_list_where_it_is_one(displayed, typed, answer):
    prediction = predict("it is")
    (field,) = widgets(ipywidgets.Text, displayed[-1])
    field.value = typed
    assert prediction.answer == answer


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("0 1 0 1", (0, 1, 0, 1)),
        ("0, 1, 0, 1", (0, 1, 0, 1)),
        ("0,1,0,1", (0, 1, 0, 1)),
        ("[0 1  0,1]", (0, 1, 0, 1)),
        ("(0, 1, 0, 1)", (0, 1, 0, 1)),
        ("0，1、0；1", (0, 1, 0, 1)),
        ("0, 1, 0 and 1", (0, 1, 0, 1)),
        ("1,000 2,000 3,000, 4,000", (1000, 2000, 3000, 4000)),
        ("100,200,300,400", (100, 200, 300, 400)),
        ("-1 .5 1e3 +2", (-1, 0.5, 1000.0, 2)),
        ("True False true False", (True, False, "true", False)),
        ("ring, tree, ring, tree", ("ring", "tree", "ring", "tree")),
        ("['ring', \"two trees\", ring, no]", ("ring", "two trees", "ring", "no")),
        ("8 bytes, 16 bytes, 2 bytes, 3 bytes", (8, 16, 2, 3)),
    ],
)
def test_where_four_are_wanted_spaces_commas_and_brackets_tell_them_apart(displayed, typed, answer):
    prediction = predict("they hold", ..., count=4)
    form = displayed[-1]
    (field,) = widgets(ipywidgets.Text, form)
    field.value = typed
    assert prediction.answer == answer
    noted = ", ".join(map(str, answer))
    assert f"Noted: <b>{noted}</b>" in texts(form)
    assert parsed(str(answer), 4) == answer  # as it is taken up again


@pytest.mark.parametrize(
    ("typed", "read", "count"),
    [
        ("6", "6", 1),
        ("0 1", "0, 1", 2),
        ("0 1 0 1 0", "0, 1, 0, 1, 0", 5),
        ("the same", "the, same", 2),
    ],
)
def test_it_is_said_at_once_that_more_or_fewer_are_wanted(displayed, typed, read, count):
    prediction = predict("they hold", ..., count=4)
    form = displayed[-1]
    (field,) = widgets(ipywidgets.Text, form)
    field.value = typed
    told = f"Read as <b>{read}</b>: that makes {count}, and 4 are wanted."
    assert texts(form) == told
    assert prediction.answer is ...
    assert "course-open" in bundle(form)["text/html"]
    prediction.measured([0, 1, 0, 1])
    below = displayed[-1]
    widgets(ipywidgets.Text, below)[0].value = typed
    assert texts(below) == told
    widgets(ipywidgets.Text, below)[0].value = "0 1 0 1"
    assert "they hold: [0, 1, 0, 1]; predicted [0, 1, 0, 1]: right" in texts(below)


def test_an_empty_field_is_no_answer(displayed):
    prediction = predict("it is")
    (field,) = widgets(ipywidgets.Text, displayed[-1])
    field.value = "  "
    assert prediction.answer is ...


def test_an_answer_in_the_cell_needs_no_form(displayed, capsys):
    predict("it is", 4).measured(4)
    assert displayed == []
    assert capsys.readouterr().out == "it is: 4; predicted 4: right\n"


def test_who_has_not_answered_is_asked_once_more_before_the_measurement_is_shown(displayed, capsys):
    prediction = predict("it is")
    prediction.measured(4)
    form = displayed[-1]
    assert capsys.readouterr().out == ""
    assert "4" not in texts(form)
    (field,) = widgets(ipywidgets.Text, form)
    field.value = "5"
    assert "it is: 4; predicted 5: off by 1" in texts(form)
    assert prediction.right is False


def test_who_does_not_want_to_answer_sees_the_measurement_all_the_same(displayed, capsys):
    prediction = predict("it is", ..., choices=("ring", "tree"))
    prediction.measured("<ring>")
    form = displayed[-1]
    buttons(form)["just show me"].click()
    assert "it is: &lt;ring&gt; (no prediction)" in texts(form)
    assert prediction.right is None
    prediction.measured("<ring>")
    assert displayed[-1] is form  # who has said so is not asked again
    assert capsys.readouterr().out == "it is: <ring> (no prediction)\n"


def test_an_answer_in_either_form_settles_both(displayed):
    prediction = predict("the winner is", ..., choices=("ring", "tree"))
    first = displayed[-1]
    prediction.measured("ring")
    second = displayed[-1]
    buttons(second)["tree"].click()
    assert "you predicted <b>tree</b>" in bundle(first)["text/html"]
    buttons(first)["ring"].click()
    assert "predicted ring: right" in bundle(second)["text/html"]
    assert prediction.right


def test_a_question_that_is_skipped_below_is_no_longer_open_above(displayed):
    prediction = predict("it is")
    first = displayed[-1]
    prediction.measured(4)
    buttons(displayed[-1])["just show me"].click()
    assert "course-open" not in bundle(first)["text/html"]
    assert "shown without a prediction" in bundle(first)["text/html"]


def bundle(form: ipywidgets.Widget) -> dict[str, str]:
    return form._repr_mimebundle_()


def test_a_saved_notebook_says_what_was_predicted_where_the_widget_has_ended(displayed):
    prediction = predict("the winner is", ..., choices=("ring", "<tree>"))
    form = displayed[-1]
    asked = '<div class="course-form course-open">the winner is: run this cell to answer</div>'
    assert bundle(form)["text/html"] == asked  # by `course-open` the page knows what to hold back
    buttons(form)["<tree>"].click()
    assert displayed[-2:] == [form, form]  # displayed again, so that the page has the new text
    output = {"output_type": "display_data", "data": bundle(form)}
    assert WIDGET_VIEW in output["data"]
    keep_pictures({"type": "notebook", "content": {"cells": [{"outputs": [output]}]}})
    assert WIDGET_VIEW not in output["data"]
    said = '<div class="course-form">the winner is: you predicted <b>&lt;tree&gt;</b></div>'
    assert output["data"]["text/html"] == said
    assert prediction.answer == "<tree>"


def test_what_is_saved_of_a_measurement_does_not_tell_it_before_the_answer(displayed):
    predict("the winner is", ..., choices=("ring", "tree")).measured("ring")
    form = displayed[-1]
    assert "ring" not in bundle(form)["text/html"]
    buttons(form)["tree"].click()
    assert "the winner is: ring; predicted tree: not so" in bundle(form)["text/html"]


def test_the_score_links_to_the_questions_that_were_answered_wrong(displayed):
    prediction = predict("ranks 0 to 3 hold")
    place = displayed[0].data
    prediction.answer = 3
    prediction.measured(4)
    predict()
    score = displayed[-1]
    assert score["text/plain"].endswith("Worth another look:\n  ranks 0 to 3 hold")
    assert 'href="#predict-ranks-0-to-3-hold"' in score["text/html"]
    assert 'id="predict-ranks-0-to-3-hold"' in place


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The file in which scores are kept, of a kernel of chapter 03."""
    path = tmp_path / ".predictions.json"
    monkeypatch.setenv(scores.FILE, str(path))
    monkeypatch.setenv("JPY_SESSION_NAME", "my/chapter_03_collective_primitives.ipynb")
    return path


def test_scores_are_kept_by_chapter_and_the_last_answer_counts(kept, monkeypatch):
    predict("a", 1).measured(2)
    predict("b", 1).measured(1)
    monkeypatch.setenv("JPY_SESSION_NAME", "chapter_04_ddp_training_2026-11-25.ipynb")
    predict("a", 2).measured(2)
    monkeypatch.setenv("JPY_SESSION_NAME", "my/chapter_03_collective_primitives.ipynb")
    predict("a", 2).measured(2)
    assert scores.read(kept) == {"03": {"a": True, "b": True}, "04": {"a": True}}
    assert os.listdir(kept.parent) == [kept.name]


@pytest.mark.parametrize("name", ["", "my/Untitled.ipynb", "lab_03_collective_primitives.ipynb"])
def test_elsewhere_nothing_is_kept(kept, monkeypatch, name):
    monkeypatch.setenv("JPY_SESSION_NAME", name)
    predict("a", 1).measured(2)
    assert not kept.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"03": 1}'])
def test_a_file_of_scores_that_is_broken_begins_anew(kept, text):
    kept.write_text(text)
    predict("a", 1).measured(1)
    assert json.loads(kept.read_text()) == {"03": {"a": {"right": True}}}


def test_a_file_of_the_first_learners_is_read_as_well(kept):
    kept.write_text('{"03": {"a": true, "b": false}}')
    assert scores.read(kept) == {"03": {"a": True, "b": False}}
    assert scores.kept_answer("a") is None
    predict("b", 1).measured(1)
    assert scores.read(kept) == {"03": {"a": True, "b": True}}


def test_a_folder_that_cannot_be_written_disturbs_no_lesson(kept, monkeypatch, capsys):
    monkeypatch.setenv(scores.FILE, str(kept.parent / "missing" / "file.json"))
    predict("a", 1).measured(1)
    assert capsys.readouterr().out == "a: 1; predicted 1: right\n"


def answered_days_ago(path, days: int) -> None:
    """As if the answers in a file were older."""
    entries = json.loads(path.read_text())
    day = datetime.date.today() - datetime.timedelta(days=days)
    for entry in entries["03"].values():
        entry["day"] = day.isoformat()
    path.write_text(json.dumps(entries))


@pytest.mark.parametrize("choices", [(), ("ring", "tree")])
def test_after_a_restart_the_answer_still_stands(kept, displayed, capsys, choices):
    predict("the winner is", ..., choices=choices).take("tree")
    answered_days_ago(kept, 1)
    displayed.clear()
    again = predict("the winner is", ..., choices=choices)
    form = displayed[-1]
    assert "You predicted <b>tree</b> yesterday" in texts(form)
    assert "you predicted <b>tree</b>" in bundle(form)["text/html"]
    assert list(buttons(form)) == ["answer anew"]
    again.measured("ring")
    assert displayed[-1] is form
    told = capsys.readouterr().out
    assert told == "the winner is: ring; predicted tree: not so\n"
    assert scores.read(kept) == {"03": {"the winner is": False}}


@pytest.mark.parametrize(("days", "when"), [(0, "today"), (1, "yesterday"), (9, "on 20")])
def test_it_is_said_when_one_predicted(kept, displayed, days, when):
    predict("it is").take("ring")
    answered_days_ago(kept, days)
    predict("it is")
    assert f"</b> {when}" in texts(displayed[-1])


@pytest.mark.parametrize("typed", ["6", "0.5", "[1, 2]", "1, 2", "203,530", "True", "ring", "inf"])
def test_what_was_typed_means_the_same_after_a_restart(kept, displayed, typed):
    answer = parsed(typed)
    predict("it is").take(answer)
    assert predict("it is").answer == answer


def test_what_is_taken_up_again_has_as_many_as_are_wanted(kept, displayed):
    predict("they hold", ..., count=2).take((0, "two trees"))
    again = predict("they hold", ..., count=2)
    assert again.answer == (0, "two trees")
    assert "You predicted <b>0, two trees</b> today" in texts(displayed[-1])
    assert predict("they hold", ..., count=3).answer is ...


def test_who_wants_to_answer_anew_keeps_the_old_answer_until_there_is_a_new_one(kept, displayed):
    predict("the rank is", ..., choices=(0, 1)).take(0)
    again = predict("the rank is", ..., choices=(0, 1))
    form = displayed[-1]
    buttons(form)["answer anew"].click()
    assert list(buttons(form)) == ["0", "1"]
    assert again.answer == 0
    buttons(form)["1"].click()
    assert again.answer == 1
    assert predict("the rank is", ..., choices=(0, 1)).answer == 1


def test_a_new_answer_is_not_right_before_it_is_measured(kept, displayed):
    prediction = predict("it is")
    prediction.take(4)
    prediction.measured(4)
    prediction.take(5)
    assert scores.read(kept) == {}
    prediction.measured(4)
    assert scores.read(kept) == {"03": {"it is": False}}


def test_an_answer_that_is_no_choice_any_more_is_asked_for_anew(kept, displayed):
    predict("the winner is", ..., choices=("ring", "star")).take("star")
    again = predict("the winner is", ..., choices=("ring", "tree"))
    assert again.answer is ...
    assert list(buttons(displayed[-1])) == ["ring", "tree"]


def test_an_answer_in_the_cell_counts_more_than_an_earlier_one(kept, displayed, capsys):
    predict("it is").take(4)
    predict("it is", 5).measured(5)
    assert capsys.readouterr().out == "it is: 5; predicted 5: right\n"
