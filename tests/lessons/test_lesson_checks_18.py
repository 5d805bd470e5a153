"""What a learner writes in chapter 18, what its checks reject, and what it shows."""

import ast
import inspect
import re
import textwrap

import labs
import lesson_answers
import pytest
import torch

from course_lessons import chapter_18, pipeline
from course_lessons import chapter_18_pictures as pictures
from course_lessons.pipeline import BlockingStage, Stage, gpipe, one_f_one_b
from course_utils import Network, WorkerTimeout, launch

SOURCE = labs.ROOT / "source/lessons/18_cut_the_stack.py"
pytestmark = pytest.mark.slow
ANSWERS = lesson_answers.answers_of("18")


def lines_of(form):
    """How many lines stand in each function of a form, in the order in which they are defined."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(form)))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    counts = []
    for function in functions:
        is_documented = ast.get_docstring(function) is not None
        body = ast.unparse(function.body[1:] if is_documented else function.body)
        counts.append(len(body.splitlines()))
    return counts


def test_stubs_promise_about_as_many_lines_as_our_own_forms_have():
    text = SOURCE.read_text(encoding="utf-8")
    forms = {"class MyStage": Stage, "def my_gpipe": gpipe, "def my_bubble": chapter_18.bubble}
    for name, form in (forms | {"def my_one_f_one_b": one_f_one_b}).items():
        stub = re.search(rf"^{name}\(.*?(?=^# %%)", text, re.M | re.S)[0]
        promised = [int(lines) for lines in re.findall(r'"about (\d+) line', stub)]
        for written, lines in zip(lines_of(form), promised, strict=True):
            assert abs(written - lines) <= 1, (name, written, lines)


@pytest.mark.parametrize("actions_of", [gpipe, one_f_one_b])
@pytest.mark.parametrize(("stages", "count"), [(2, 4), (4, 8)])
def test_gradients_are_those_of_one_process_and_the_replay_finds_the_formula(
    actions_of, stages, count
):
    step = chapter_18.train(Stage, actions_of, stages, count)
    assert chapter_18.furthest(step.gradients) < 1e-12
    assert step.idle_share() == pytest.approx(chapter_18.bubble(stages, count), abs=1e-8)


@pytest.mark.parametrize("actions_of", [gpipe, one_f_one_b])
def test_counted_ticks_are_the_end_of_the_replay(actions_of):
    step = chapter_18.train(Stage, actions_of, 4, 6)
    by_stage = [actions_of(stage, 4, 6) for stage in range(4)]
    end_us = max(step.replay().finish_us)
    assert end_us == pytest.approx(100 * pipeline.ticks(by_stage), rel=1e-6)


def test_stages_that_wait_for_each_other_have_no_ticks():
    orders = [one_f_one_b(1, 2, 2), one_f_one_b(0, 2, 2)]
    with pytest.raises(ValueError, match="wait for each other for ever"):
        pipeline.ticks(orders)


def test_with_messages_that_take_time_1f1b_idles_more_than_gpipe():
    network = Network(latency_us=10, gbit_s=100)
    shares = []
    for actions_of in (gpipe, one_f_one_b):
        shares.append(chapter_18.train(Stage, actions_of, 4, 8).idle_share(network))
    assert chapter_18.bubble(4, 8) < shares[0] < shares[1]


def test_blocking_sends_hang_under_1f1b_and_not_under_gpipe():
    options = {"world_size": 2, "backend": "gloo", "timeout": 4}
    launch(chapter_18.train_with, BlockingStage, gpipe, 4, **options)
    with pytest.raises(WorkerTimeout, match="Ranks 0 and 1 all send, and none receives"):
        launch(chapter_18.train_with, BlockingStage, one_f_one_b, 4, **options)


def test_rows_in_parts_attend_as_all_of_them_do():
    q, k, v = chapter_18.make_text(64)
    _, total, mixed = chapter_18.attend(q, k, v)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert torch.allclose(mixed / total, right, rtol=1e-12, atol=1e-14)


def not_written(*_):
    raise NotImplementedError("about 3 lines")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Stage", "stage 1 has 8 messages, 0 held in the end, gradients right"),
        ("SumOfMeans", "stage 1 has 8 messages, 0 held in the end, gradients off by 100%"),
        ("NothingReleased", "stage 1 has 8 messages, 2 held in the end, gradients right"),
    ],
)
def test_a_stage_is_drawn_with_its_messages_what_it_holds_and_its_gradients(texts, name, words):
    pictures.draw_stage(ANSWERS.names[name])
    assert words in texts[0]


def test_in_place_of_what_is_not_written_ours_is_drawn(texts, capsys):
    pictures.draw_stage(pipeline.Neighbours, Stage)
    pictures.draw_actions(not_written, gpipe, stages=3, count=2)
    pictures.draw_bubble([1, 4], {2: [0.5, 0.2]}, not_written, chapter_18.bubble)
    assert texts[0].startswith("Stage: ")
    assert texts[1].startswith("gpipe, 3 stages, 2 microbatches: all done after 12 forwards")
    assert texts[2].endswith("at most 0.0 points lie between a marker and its line.")
    assert capsys.readouterr().out.count("No picture yet") == 3


def backward_in_reverse(stage, stages, count):
    """The first stage waits for a gradient that the last one gives much later."""
    if stage == 0:
        return [("F", 0), ("B", 0), ("F", 1), ("B", 1)]
    return one_f_one_b(stages - 1, stages, count) if stage < stages - 1 else gpipe(stage, 2, count)


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (one_f_one_b, "all done after 15 forwards, and the stages hold 2, 2, 2, 1 at most"),
        (ANSWERS.names["backwards_forgotten"], "has ('B', 0) 0 times, instead of once"),
        (backward_in_reverse, "the stages wait for each other for ever"),
    ],
)
def test_a_wrong_schedule_is_drawn_and_its_fault_is_named(texts, schedule, words):
    pictures.draw_actions(schedule)
    assert words in texts[0]


def test_a_wrong_formula_is_drawn_with_how_far_it_is_off(texts):
    pictures.draw_bubble([1, 4], {2: [0.5, 0.2]}, ANSWERS.names["share_of_the_work"])
    assert "at most 50.0 points lie" in texts[0]


def test_messages_that_cross_are_drawn_until_they_hang(texts):
    options = {"world_size": 2, "backend": "gloo", "timeout": 4}
    with pytest.raises(WorkerTimeout) as hang:
        launch(chapter_18.train_with, BlockingStage, one_f_one_b, 4, **options)
    pictures.draw_waiting(hang.value)
    assert texts == [
        "Rank 0: send to 1, send to 1, and waits; rank 1: from 0, send to 0, and waits."
    ]
