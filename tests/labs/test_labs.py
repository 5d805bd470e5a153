"""Every lab's checks on wrong answers that people write, and on other right ones."""

import labs
import pytest
import together

from course_utils import check

pytestmark = pytest.mark.slow
EXERCISES = [(slug, name) for slug in labs.SLUGS for name in labs.names(slug)]


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    """What an answer writes into the working folder is not left in the course's."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def exercise():
    known = {}  # a lab's cells run once for all of its answers

    def find(slug, name):
        if slug not in known:
            known[slug] = labs.exercises(slug, pytest.MonkeyPatch())
        return known[slug][name]

    return find


each = pytest.mark.parametrize(
    ("slug", "name"), EXERCISES, ids=[f"{slug[:2]}-{name}" for slug, name in EXERCISES]
)


@each
def test_a_first_wrong_answer_is_rejected(exercise, slug, name):
    """One of each exercise, for `make test`; that each is rejected alone, `make soak` asks."""
    wrong = labs.answers(slug)["WRONG"][name][0]
    assert labs.judged_alone(wrong, exercise(slug, name).options).state == "wrong"


@each
def test_wrong_answers_are_rejected(exercise, slug, name, subtests):
    """All but the first, which is rejected above."""
    known, right = labs.answers(slug), labs.right(slug, name)[0]
    wrong, alone = known["WRONG"][name][1:], known.get("STOPS", ())
    if name in alone:
        alone = [fn.__name__ for fn in wrong]
    together.reject(subtests, right, wrong, exercise(slug, name).options, alone)


@pytest.mark.soak
@each
def test_wrong_answers_are_rejected_alone(exercise, slug, name, subtests):
    for fn in labs.answers(slug)["WRONG"][name]:
        with subtests.test(fn.__name__):
            assert labs.judged_alone(fn, exercise(slug, name).options).state == "wrong"


LAB_04 = "04_ddp_training"
TOLD_BY_RESULTS = [  # of likely mistakes
    (LAB_04, "train", "without_set_epoch", "by `set_epoch(epoch)`"),
    (LAB_04, "train", "without_a_sampler", "reads all digits, in an order of its own"),
    (LAB_04, "train", "batch_not_divided", "takes its share of the global batch"),
    (LAB_04, "global_losses", "losses_summed", "These are the sums of the ranks' losses"),
    (LAB_04, "first_fork", "fork_from_the_mean", "A mean is rounded"),
]


@pytest.mark.parametrize(
    ("slug", "name", "answer", "sentence"),
    TOLD_BY_RESULTS,
    ids=[answer for _, _, answer, _ in TOLD_BY_RESULTS],
)
def test_a_message_names_the_mistake(exercise, slug, name, answer, sentence):
    (fn,) = [fn for fn in labs.answers(slug)["WRONG"][name] if fn.__name__ == answer]
    assert sentence in check(fn, **exercise(slug, name).options).message


TOLD = {  # what some wrong answers are told: the reason, and not what follows from it
    ("08_it_hangs_lies_or_dies", "best"): ("another_line", "line (the program has no such line)"),
    ("09_many_machines", "train"): ("cannot_start_again", "rank 0, start 1: ValueError: no way on"),
    ("11_capstone", "save"): ("save_nothing", "after the first save there is no file"),
}


@pytest.mark.parametrize(("slug", "name"), TOLD, ids=lambda word: word[:2])
def test_a_message_names_the_reason(exercise, slug, name):
    answer, said = TOLD[slug, name]
    fn = [fn for fn in labs.answers(slug)["WRONG"][name] if fn.__name__ == answer][-1]
    options = next(labs.cheapest_first(exercise(slug, name).options))
    assert said in check(fn, **options).message


def test_what_is_wrong_everywhere_is_first_told_of_an_ordinary_case(exercise):
    slug, name = "03_collective_primitives", "part_of_sum"
    as_in_the_chapter = labs.answers(slug)["WRONG"][name][0]
    told = check(as_in_the_chapter, **exercise(slug, name).options)
    assert told.where == "2 ranks, 4 numbers"
    assert all(row.given.count(",") == 3 for row in told.rows)


@pytest.mark.parametrize("slug", labs.SLUGS)
def test_other_right_answers_pass(exercise, slug):
    for name in labs.answers(slug)["RIGHT"]:
        for number in range(2):
            options = labs.on_one_size(exercise(slug, name).options, number)
            if some := labs.right(slug, name)[number::2]:
                together.accept(some, options)


@pytest.mark.soak
@pytest.mark.parametrize("slug", labs.SLUGS)
def test_other_right_answers_pass_on_every_world_size(exercise, slug):
    for name in labs.answers(slug)["RIGHT"]:
        for fn in labs.right(slug, name):
            assert check(fn, **exercise(slug, name).options | labs.PATIENT).require()
