"""The eight steps that a learner writes in chapter 05, and what the check of each rejects."""

import labs
import lesson_answers
import pytest
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_05
from course_lessons import chapter_05_pictures as pictures
from course_utils import check, launch

pytestmark = pytest.mark.slow
ANSWERS = lesson_answers.answers_of("05")


@pytest.mark.parametrize("exercise", ANSWERS.exercises.values(), ids=ANSWERS.exercises.keys())
def test_a_stub_is_not_attempted(exercise):
    assert check(exercise.adapt(exercise.stub), **exercise.options).state == "not attempted"


@pytest.mark.parametrize("step", ["silence", "unaided"])
def test_the_checks_of_silence_and_of_its_end_ask_for_what_pytorchs_ddp_does(step):
    exercise = ANSWERS.exercises[step]
    answer = exercise.adapt(ANSWERS.names["PyTorchsOwn"])
    uncounted = exercise.options | labs.PATIENT | {"budget": None}  # PyTorch's messages are others
    assert check(answer, **uncounted).require()


def test_three_parts_of_a_step_leave_weights_and_buffers_as_pytorchs_ddp_does():
    lesson, old_rule = ANSWERS.names["lesson"], ANSWERS.names["BuffersWithTheGradientsUnaided"]
    theirs, ours, control = (
        launch(lesson.train_in_parts, wrap, backend="gloo")
        for wrap in (DistributedDataParallel, lesson.Unaided, old_rule)
    )
    assert lesson.apart(ours, theirs) < 1e-6
    assert lesson.apart(control, theirs) > 1e-3


@pytest.mark.parametrize(("to_none", "written_there"), [(True, 0), (False, 18)])
def test_autograd_writes_into_buckets_only_if_gradients_are_not_set_to_none(to_none, written_there):
    found = launch(ANSWERS.names["lesson"].memory_of_gradients, True, to_none, backend="gloo")
    for places in found:
        assert sum(in_place for _, in_place in places) == written_there
        assert len({piece for piece, _ in places}) == 4


def test_a_loop_that_calls_no_finish_trains_as_with_pytorchs_ddp_and_step_7_does_not():
    lesson = ANSWERS.names["lesson"]
    theirs, ours, control = (
        launch(lesson.train_as_is, wrap, lesson.awkward, 5, backend="gloo")
        for wrap in (DistributedDataParallel, lesson.Unaided, lesson.Silent)
    )
    assert lesson.apart(ours, theirs) < 1e-6
    assert lesson.apart(control, theirs) > 1e-3


def test_a_torch_without_a_queue_of_callbacks_says_so(monkeypatch):
    monkeypatch.setattr(chapter_05.torch_private, "find", lambda name: None)
    with pytest.raises(RuntimeError, match="this version of torch has no"):
        chapter_05.after_backward(list)


def wrong(step, name):
    return next(answer for answer in ANSWERS.wrong[step] if answer.__name__ == name)


@pytest.mark.parametrize(
    ("step", "name", "options", "text"),
    [
        ("average", "gradients_added_up", {}, "AwAwAwAwAwAwAw with t.w; t0.b"),
        ("average", "matrices_only", {}, "Afterwards 6 of 14 gradients are right."),
        ("flat", "packed_backwards", {}, "|Aw with e1.b e1.w e0.b e0.w t1.b t0.b t.w. Afterwards"),
        ("flat", "flat_weights", {}, "|Aw with other. Afterwards 0 of 14"),
        ("flat", "without_the_last", {}, "Afterwards 12 of 14 gradients are right."),
        ("flat", "flat_added_up", {}, "Afterwards 0 of 14 gradients are right."),
    ],
)
def test_a_wrong_step_is_drawn_as_it_is(texts, step, name, options, text):
    pictures.draw_step(wrong(step, name), **options)
    assert texts[0].startswith(f"{name}, ")
    assert text in texts[0]


def test_messages_that_are_not_of_the_same_gradients_give_wrong_sums(texts):
    paths = [(0, 1), (1, 0)]
    pictures.draw_step(chapter_05.Overlapped, paths=paths, limit_bytes=100)
    pictures.draw_step(chapter_05.InOrder, paths=paths, limit_bytes=100)
    assert "6 of 14 gradients are right" in texts[0]
    assert "14 of 14 gradients are right" in texts[1]


def test_gradients_of_a_message_that_differs_are_drawn_as_mixed(monkeypatch):
    cells, captions = [], []
    draw_cell = pictures.cell

    def cell(axes, x, y, text, *arguments, **box):
        cells.append(text)
        draw_cell(axes, x, y, text, *arguments, **box)

    monkeypatch.setattr(pictures, "cell", cell)
    monkeypatch.setattr(pictures, "show", lambda figure, text, caption: captions.append(caption))
    pictures.draw_step(chapter_05.Overlapped, paths=[(0, 1), (1, 0)], limit_bytes=100)
    assert sum(text.endswith(" mix ≠") for text in cells) == 8
    assert "A mix is" in captions[0]


def test_a_form_that_has_not_been_clocked_leaves_a_sentence_and_no_picture(monkeypatch, capsys):
    monkeypatch.setattr(chapter_05, "_replays", {})
    figures = chapter_05.plt.get_fignums()
    chapter_05.draw(["PerParameter", "Flat"], "a text")
    said = capsys.readouterr().out
    assert "clock(PerParameter) and clock(Flat)" in said
    assert chapter_05.plt.get_fignums() == figures


def test_a_step_that_hangs_is_drawn_as_far_as_it_came_and_says_why(texts, capsys):
    pictures.draw_step(chapter_05.Overlapped, paths=[(0, 1), (0,)], limit_bytes=1000)
    assert "rank 0: gggggggA|w with" in texts[0]
    assert "rank 1: ggggg| with no message" in texts[0]
    assert capsys.readouterr().out.startswith("Overlapped ends early: ")


def test_a_step_without_no_sync_is_drawn_in_parts(texts):
    pictures.draw_parts(chapter_05.Silent)
    assert "part 2, no_sync: ggggggg| with no message" in texts[0]
    assert "28 of 28 gradients are right" in texts[0]


def test_what_is_not_written_is_drawn_by_ours(texts, capsys):
    stubs = {step: exercise.stub for step, exercise in ANSWERS.exercises.items()}
    pictures.draw_start(stubs["start"], chapter_05.Equal)
    pictures.draw_step(stubs["average"], chapter_05.PerParameter)
    pictures.draw_parts(stubs["silence"], chapter_05.Silent)
    assert [text.split()[0].strip(",") for text in texts] == ["Equal", "PerParameter", "Silent"]
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == [
        "No picture yet",
        "No picture yet of MyAverage",
        "No picture yet of MySilence",
    ]


@pytest.mark.parametrize(
    ("name", "right", "sent"),
    [("parameters_only", 29, "9 of 11"), ("into_copies", 11, "0 of 11")],
)
def test_copies_that_differ_are_drawn(texts, name, right, sent):
    pictures.draw_start(wrong("start", name))
    assert f"{right} of 33 copies are rank 0's. Rank 0 sent {sent}" in texts[0]
