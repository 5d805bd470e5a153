"""What chapter 16 rests on: pytest in a fork of the kernel, and versions that judge a test."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time

import labs
import psutil
import pytest
import torch
import torch.distributed as dist

from course_lessons import chapter_16_pictures as pictures
from course_lessons import versions_16
from course_lessons.chapter_16 import Version, accepted_versions, pytest_on, test_file
from course_testing.in_rank import LateRanks
from course_utils import launch
from course_utils.launcher.errors import WorkerError

test_file.__test__ = False  # it makes a file, and is no test
LESSON = labs.ROOT / "source/lessons/16_test_before_you_scale.py"


@pytest.mark.ranks(2)
def a_test_of_two_ranks():
    assert dist.get_rank() < 1


LIKE_A_KERNEL = """
import os

import pytest
import torch.distributed as dist

from course_lessons.chapter_16 import counts, pytest_on


@pytest.mark.ranks(2)
def test_of_two_ranks():
    assert dist.get_rank() < 1
    dist.barrier()


before = os.getcwd(), dict(os.environ)
printed = pytest_on(test_of_two_ranks, options="--tb=short")
assert "rank 1 of 2: assert 1 < 1" in printed
assert counts(printed) == {"passed": 0, "failed": 1}
assert (os.getcwd(), dict(os.environ)) == before
"""


def test_pytest_runs_in_a_fork_and_leaves_its_process_as_it_was(tmp_path):
    """In a process that, like a kernel, is no pytest itself."""
    script = tmp_path / "like_a_kernel.py"
    script.write_text(LIKE_A_KERNEL, encoding="utf-8")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("$ pytest test_cell.py --tb=short\n")


def test_a_failure_is_shown_inside_a_pytest_that_has_set_an_alarm():
    """As conftest does for each test: in a fork, nobody is there who could stop the alarm."""
    printed = pytest_on(a_test_of_two_ranks, options="--tb=short -o python_functions=a_test")
    assert "rank 1 of 2: assert 1 < 1" in printed


A_LONG_DIFF = """
from course_lessons.chapter_16 import pytest_on


def test_of_lists():
    assert list(range(40)) == list(range(41))


pytest_on(test_of_lists, options="--tb=short")
"""


def test_under_continuous_integration_it_prints_what_it_prints_on_a_laptop(tmp_path):
    """Where `CI` or `BUILD_NUMBER` is set, pytest shows differences in full."""
    script = tmp_path / "a_long_diff.py"
    script.write_text(A_LONG_DIFF, encoding="utf-8")
    environment = {**os.environ, "CI": "true", "BUILD_NUMBER": "7", "FORCE_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Use -v to get more diff" in done.stdout
    assert "Full diff" not in done.stdout
    assert "\x1b[" not in done.stdout


@pytest.mark.ranks(1)
def a_test_that_never_ends():
    time.sleep(600)


def test_who_stops_the_cell_stops_pytest_and_its_ranks(nothing_left):
    # As in a kernel; whoever starts the tests in the background has SIGINT ignored.
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    kernel = psutil.Process()
    before = set(kernel.children())

    def press_once_pytest_runs() -> None:
        while set(kernel.children()) <= before:
            time.sleep(0.1)
        time.sleep(1)  # until the fork itself is over
        os.kill(kernel.pid, signal.SIGINT)

    pressing = threading.Thread(target=press_once_pytest_runs)
    pressing.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            pytest_on(a_test_that_never_ends, options="-o python_functions=a_test")
        pressing.join()
    finally:
        signal.signal(signal.SIGINT, usual)


def test_seconds_stand_behind_the_word_that_strict_comparison_knows(capsys):
    printed = pytest_on(a_test_of_two_ranks, options="--co -o python_functions=a_test", whole=False)
    assert "in about " in printed.splitlines()[-1]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_file_has_all_that_its_functions_need():
    text = test_file(a_test_of_two_ranks)
    assert text.startswith("import time\n\nimport pytest\n")
    assert inspect.getsource(a_test_of_two_ranks) in text


def alike(number):
    total = torch.tensor(float(number))
    dist.all_reduce(total)
    return total.item()


def hangs_on_rank_1(number):
    if dist.get_rank() == 1:
        return 2.0 * number
    return alike(number)


def other_call_on_rank_1(number):
    if dist.get_rank() == 1:
        dist.barrier()
        return 2.0 * number
    return alike(number)


def other_shape_on_rank_1(number):
    total = torch.full((1 + dist.get_rank(),), float(number))
    dist.all_reduce(total)
    return total[0].item()


def raises_on_rank_1(number):
    if dist.get_rank() == 1:
        raise ValueError("no")
    return alike(number)


def sends(number):
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), dst=1)
    else:
        dist.recv(torch.ones(1), src=0)
    return 2.0 * number


PARTED = (
    hangs_on_rank_1, other_call_on_rank_1, other_shape_on_rank_1, raises_on_rank_1, sends,
)  # fmt: skip


def calls_twice(function):
    assert function(1) == 2.0
    assert function(3) == 6.0


def test_ranks_that_part_are_caught_and_the_next_version_is_judged_as_if_alone():
    versions = [Version(lambda: alike)]
    for function in PARTED:
        versions.append(Version(lambda function=function: function, "parts"))
        versions.append(Version(lambda: alike))
    verdicts = launch(accepted_versions, calls_twice, versions, world_size=2, backend="gloo")
    wanted = [True] + [False, True] * len(PARTED)
    assert verdicts[0] == verdicts[1] == wanted


def leaves_early(function):
    if dist.get_rank() == 0:
        calls_twice(function)


def test_a_test_whose_ranks_part_refuses_right_versions_and_says_why(capsys):
    launch(accepted_versions, leaves_early, [Version(lambda: alike)], world_size=2, backend="gloo")
    assert "would hang with a right version: this rank calls all_reduce" in capsys.readouterr().out


def test_after_the_judge_calls_are_free_again():
    def worker():
        accepted_versions(calls_twice, [Version(lambda: alike)])
        return alike(1)

    assert launch(worker, world_size=2, backend="gloo")[0] == 2.0


def test_a_stub_is_not_attempted_rather_than_a_test_that_catches_all():
    def stub(function):
        raise NotImplementedError("about 3 lines")

    with pytest.raises(WorkerError, match="about 3 lines"):
        launch(accepted_versions, stub, [Version(lambda: alike)], world_size=2, backend="gloo")


ALL = (versions_16.INDICES, versions_16.MEANS, versions_16.GRADIENTS)


def test_there_are_right_versions_and_many_wrong_ones_each_with_a_clue_of_its_own():
    for versions in ALL:
        right = [version for version in versions.values() if version.is_right]
        clues = [version.clue for version in versions.values() if not version.is_right]
        assert len(right) >= 3
        assert len(set(clues)) == len(clues) >= 8


def test_the_seeds_of_the_chapter_are_one_that_harms_and_one_that_does_not():
    """The same numbers as `late_ranks` draws: what is printed there is no luck."""
    text = LESSON.read_text(encoding="utf-8")
    assert "for seed in (5, 5, 54):" in text
    assert "late_ranks.most_ms = 1000" in text
    apart = {}
    for seed in (5, 54):
        late_ms = []
        for rank in range(2):
            test = "test_cell.py::test_sum_with_late_ranks[2-ranks]"
            late = LateRanks(seed, test)
            late.most_ms = 1000
            late_ms.append(late.delays_ms(rank, calls=2)[1])  # the first is the barrier's
        apart[seed] = abs(late_ms[0] - late_ms[1])
    assert apart[5] > 2 * 300
    assert apart[54] < 300 / 2


def test_the_table_says_which_version_passes_which_test(capsys):
    pictures.draw_verdicts({"test_a": {"right": True, "wrong": False, "slow": True}})
    assert "test_a catches 1 of 2." in capsys.readouterr().out


def test_a_picture_of_runs_reads_pytests_letters(capsys):
    printed = "$ pytest test_cell.py\n.F.F    [100%]\n2 failed, 2 passed in about 1 s"
    pictures.draw_runs(printed, [test_file, pytest_on], [1, 2])
    words = capsys.readouterr().out
    assert "test_file: passes, fails. pytest_on: passes, fails." in words


def test_samples_past_the_end_are_named(capsys):
    pictures.draw_samples(lambda samples: [samples - 1 + dist.get_rank()], 3, 2)
    assert "Past the end: 3 of rank 1." in capsys.readouterr().out


def waits_for_ever(batches):
    for losses in batches:
        dist.all_reduce(losses)
    return 1.0


def mean_of_means(batches):
    mean = torch.cat(batches).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def calls_nothing(batches):
    return torch.cat(batches).mean().item()


def not_yet(batches):
    raise NotImplementedError("about 7 lines")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (waits_for_ever, "rank 1 calls all_reduce, all_reduce, all_reduce, all_reduce, and waits"),
        (mean_of_means, "is 1.57: rank 0 calls all_reduce, and returns 1.5"),
        (calls_nothing, "rank 1 calls nothing, and returns 2."),
        (not_yet, "No picture yet: NotImplementedError: about 7 lines"),
        (lambda batches: None, "rank 1 calls nothing, and returns None."),
        (lambda batches: [batches[0]], "returns [tensor([1., 1., 1.,"),
    ],
)
def test_an_answer_is_drawn_right_or_wrong(answer, words, capsys):
    pictures.draw_validation(answer)
    assert words in capsys.readouterr().out


def test_who_reads_too_early_follows_from_the_delays(capsys):
    pictures.draw_late({1: [100.0, 500.0], 2: [100.0, 300.0]}, pause_ms=300)
    words = capsys.readouterr().out
    assert "seed 1: rank 0 reads too early. seed 2: nobody reads too early." in words


def test_what_the_linter_finds_is_counted(capsys):
    pictures.draw_findings({"a_b": ("hangs", ["a-rule"]), "c": ("lies", [])})
    assert "Of 2 bugs the linter sees 1: a-rule in a_b, which hangs." in capsys.readouterr().out
