"""The eight steps that a learner writes in chapter 05, and what the check of each rejects."""

import labs
import pytest
import together
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_05
from course_utils import check, launch

PATH = labs.ROOT / "tests/lessons/wrong/05_ddp_from_scratch.py"
pytestmark = pytest.mark.slow
ANSWERS = {"__name__": PATH.stem}
labs.run(PATH.read_text(encoding="utf-8"), str(PATH), ANSWERS)


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_wrong_steps_are_rejected(step, subtests):
    adapt, options, _ = ANSWERS["STEPS"][step]
    right, wrong = adapt(ANSWERS["RIGHT"][step][0]), [*map(adapt, ANSWERS["WRONG"][step])]
    together.reject(subtests, right, wrong, options, ANSWERS["STOPS"])


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_other_right_steps_pass(step):
    adapt, options, _ = ANSWERS["STEPS"][step]
    for number, answer in enumerate(ANSWERS["RIGHT"][step]):
        assert check(adapt(answer), **labs.on_one_size(options, number)).require()


@pytest.mark.soak
@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_wrong_steps_are_rejected_alone_and_right_ones_pass_on_every_world_size(step):
    adapt, options, _ = ANSWERS["STEPS"][step]
    for answer in ANSWERS["WRONG"][step]:
        assert labs.judged_alone(adapt(answer), options).state == "wrong", answer.__name__
    for answer in ANSWERS["RIGHT"][step]:
        assert check(adapt(answer), **options | labs.PATIENT).require()


@pytest.mark.parametrize("step", ANSWERS["STEPS"])
def test_a_stub_is_not_attempted(step):
    adapt, options, stub = ANSWERS["STEPS"][step]
    assert check(adapt(stub), **options).state == "not attempted"


def test_every_step_has_five_wrong_answers_at_least():
    assert ANSWERS["WRONG"].keys() == ANSWERS["RIGHT"].keys() == ANSWERS["STEPS"].keys()
    assert min(map(len, ANSWERS["WRONG"].values())) >= 5


@pytest.mark.parametrize("step", ["silence", "unaided"])
def test_the_checks_of_silence_and_of_its_end_ask_for_what_pytorchs_ddp_does(step):
    adapt, options, _ = ANSWERS["STEPS"][step]
    answer = adapt(ANSWERS["PyTorchsOwn"])
    uncounted = options | labs.PATIENT | {"budget": None}  # PyTorch's messages are others
    assert check(answer, **uncounted).require()


def test_three_parts_of_a_step_leave_weights_and_buffers_as_pytorchs_ddp_does():
    lesson, old_rule = ANSWERS["lesson"], ANSWERS["BuffersWithTheGradientsUnaided"]
    theirs, ours, control = (
        launch(lesson.train_in_parts, wrap, backend="gloo")
        for wrap in (DistributedDataParallel, lesson.Unaided, old_rule)
    )
    assert lesson.apart(ours, theirs) < 1e-6
    assert lesson.apart(control, theirs) > 1e-3


@pytest.mark.parametrize(("to_none", "written_there"), [(True, 0), (False, 18)])
def test_autograd_writes_into_buckets_only_if_gradients_are_not_set_to_none(to_none, written_there):
    found = launch(ANSWERS["lesson"].memory_of_gradients, True, to_none, backend="gloo")
    assert [there for _, there in found] == [written_there] * 2


def test_a_loop_that_calls_no_finish_trains_as_with_pytorchs_ddp_and_step_7_does_not():
    lesson = ANSWERS["lesson"]
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
