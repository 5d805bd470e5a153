"""What a learner writes in chapter 13, and what the check of each rejects."""

import ast
import inspect
import re
import textwrap

import labs
import lesson_answers
import pytest

from course_lessons import chapter_13, sharding
from course_lessons import chapter_13_pictures as pictures

SOURCE = labs.ROOT / "source/lessons/13_hold_less.py"
pytestmark = pytest.mark.slow
ANSWERS = lesson_answers.answers_of("13")


def test_stubs_promise_about_as_many_lines_as_our_own_forms_have():
    text = SOURCE.read_text(encoding="utf-8")
    forms = {
        "bytes_per_rank": [chapter_13.bytes_per_rank],
        "MyZero1": [sharding.Zero1.gather, sharding.Zero1.reduce],
        "MyZero2": [sharding.Zero2.gradient_is_ready],
        "MyZero3": [getattr(sharding.Sharded, name) for name in ("read", "free", "pack", "unpack")],
        "MyRecompute": [sharding.Recompute.forward, sharding.Recompute.backward],
    }
    for name, functions in forms.items():
        stub = re.search(rf"^(?:def|class) {name}\(.*?(?=^# %%)", text, re.M | re.S)[0]
        promised = [int(lines) for lines in re.findall(r'"about (\d+) lines', stub)]
        tree = [ast.parse(textwrap.dedent(inspect.getsource(function))) for function in functions]
        for module, lines in zip(tree, promised, strict=True):
            body = [
                line
                for line in module.body[0].body
                if not isinstance(line, ast.Expr) or not isinstance(line.value, ast.Constant)
            ]
            written = sum(line.end_lineno - line.lineno + 1 for line in body)
            assert abs(written - lines) <= 1, (name, written)


def test_the_papers_3_is_no_right_prediction_where_2_875_is_sent():
    text = SOURCE.read_text(encoding="utf-8")
    within = float(re.search(r"zero3_sends\.measured\(rows\[.*\]\.sent, within=(.*)\)", text)[1])
    assert within * 2.875 < 3 - 2.875


def test_a_learners_own_stage_is_drawn_right_or_wrong_or_not_at_all(monkeypatch, capsys):
    captions = []
    monkeypatch.setattr(pictures, "show", lambda figure, text: captions.append(text))
    pictures.draw_pieces(sharding.Zero1)
    pictures.draw_pieces(ANSWERS.names["AddedUp"])
    pictures.draw_alive(sharding.Zero1)
    pictures.draw_alive(sharding.Zero2)
    pictures.draw_memory(ANSWERS.names["all_by_the_stage"])
    assert "in their places" in captions[0]
    assert "not there yet" in captions[1]
    assert "all 4 full gradients" in captions[2]
    assert "two full gradients" in captions[3]
    assert "70B on 64: stages 1, 2, 3" in captions[4]
    pictures.draw_pieces(sharding.Shards)
    assert capsys.readouterr().out.startswith("No picture yet")
