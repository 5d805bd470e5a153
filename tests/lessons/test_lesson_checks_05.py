"""The eight steps that a learner writes in chapter 05, and what the check of each rejects."""

import labs
import lesson_answers
import pytest
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_05
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
    assert [there for _, there in found] == [written_there] * 2


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
