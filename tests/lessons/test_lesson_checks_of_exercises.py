"""Each check of a chapter rejects what is wrong, and accepts what is right in a different style."""

import labs
import lesson_answers
import pytest
import together

from course_utils import check

pytestmark = pytest.mark.slow
CHAPTERS = {}
for path in sorted(lesson_answers.FOLDER.glob("*.py")):
    CHAPTERS[path.stem[:2]] = lesson_answers.Answers(path)
EXERCISES = []
for chapter, answers in CHAPTERS.items():
    EXERCISES += [(chapter, name) for name in answers.exercises]


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_wrong_answers_are_rejected(chapter, name, subtests):
    answers = CHAPTERS[chapter]
    exercise = answers.exercises[name]
    right = exercise.adapt(answers.right[name][0])
    wrong = [exercise.adapt(answer) for answer in answers.wrong[name]]
    together.reject(subtests, right, wrong, exercise.options, answers.stops)


@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_other_right_answers_pass(chapter, name):
    answers = CHAPTERS[chapter]
    exercise = answers.exercises[name]
    for number, answer in enumerate(answers.right[name]):
        options = labs.on_one_size(exercise.options, number)
        assert check(exercise.adapt(answer), **options).require()


@pytest.mark.soak
@pytest.mark.parametrize(("chapter", "name"), EXERCISES)
def test_wrong_answers_are_rejected_alone_and_right_ones_pass_on_every_world_size(chapter, name):
    answers = CHAPTERS[chapter]
    exercise = answers.exercises[name]
    for answer in answers.wrong[name]:
        alone = labs.judged_alone(exercise.adapt(answer), exercise.options)
        assert alone.state == "wrong", answer.__name__
    for answer in answers.right[name]:
        assert check(exercise.adapt(answer), **exercise.options | labs.PATIENT).require()


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_exercise_has_five_wrong_answers_at_least(chapter):
    answers = CHAPTERS[chapter]
    assert answers.wrong.keys() == answers.right.keys() == answers.exercises.keys()
    assert min(map(len, answers.wrong.values())) >= 5
