"""Two circles of tests: what `make test` runs in six minutes, and the rest of `make test-all`.

The inner circle is what a user needs to trust this machine. The outer one is what a change may
break without harming a first use: wrong answers beyond the first, hostile submissions, hand-outs,
Slurm, Ray, the Chinese edition, rules for authors, most of the site and of JupyterLab, and
whatever takes long to prove one sentence.
A test belongs to the inner circle unless a line below, or its own mark, says `outer`.
"""

import fnmatch
import re
from collections.abc import Iterable
from typing import Any

import pytest

OUTER = (
    # Many answers to each exercise; of the wrong ones the inner circle has the first of each.
    "tests/labs/test_labs.py::test_wrong_answers_are_rejected*",
    "tests/labs/test_labs.py::test_other_right_answers_pass*",
    "tests/labs/test_bonus.py::*",
    "tests/labs/test_challenge.py::*",
    "tests/labs/test_together.py::*",
    "tests/labs/test_lab_forms.py::test_each_exercise_has_five_wrong_answers*",
    "tests/labs/test_answers_on_a_second_device.py::*",
    "tests/lessons/test_lesson_checks_*",
    "tests/lessons/test_sharded.py::*",
    "tests/museum/test_museum.py::test_what_only_looks_cured*",
    "tests/museum/test_museum.py::test_cures_in_another_style*",
    "exercises/challenge.ipynb::*",
    # A class: submissions, attacks, hand-outs, plans for teachers, tests that learners write.
    "tests/checks/test_class.py::*",
    "tests/checks/test_grade.py::*",
    "tests/checks/test_grading.py::*",
    "tests/checks/test_learners_cells.py::*",
    "tests/house/test_circles.py::*",
    "tests/house/test_handout.py::*",
    "tests/house/test_interrupted.py::*",
    "tests/house/test_load.py::*",
    "tests/house/test_mutants.py::*",
    "tests/house/test_temporary_files.py::*",
    "tests/house/test_teaching.py::test_a_chapter_takes*",
    "tests/house/test_teaching.py::test_a_lab_takes*",
    "tests/house/test_teaching.py::test_a_week*",
    "tests/house/test_teaching.py::test_all_*",
    "tests/house/test_teaching.py::test_in_six_weeks*",
    "tests/house/test_teaching.py::test_pairs_write*",
    "tests/house/test_teaching.py::test_six_weeks*",
    "tests/testing/test_plugin.py::*",
    # The Chinese edition, which `make check` compares with the English one.
    "tests/house/test_zh.py::*",
    # How the course is written: what its authors ask of a change.
    "tests/house/test_architecture.py::*",
    "tests/house/test_build.py::*",
    "tests/house/test_density.py::*",
    "tests/house/test_edited_answers.py::*",
    "tests/house/test_house.py::test_taking_back_any_notebook*",
    "tests/house/test_no_durations.py::*",
    # Two hosts, Slurm and Ray beyond what the chapter's own cells show.
    "tests/lessons/test_cluster.py::*",
    "tests/lessons/test_two_hosts.py::*",
    # Chapters in a second way: on real digits, on pretended GPUs, number by number.
    "tests/lessons/test_lessons_on_mnist.py::*",
    "tests/lessons/test_numbers_that_vary.py::*",
    "tests/lessons/test_on_a_gpu.py::*",
    "tests/lessons/test_second_device.py::*",
    "tests/lessons/test_keras.py::*",
    "tests/devices/test_pretended_gpus.py::*",
    "tests/house/test_gpu_report.py::*",
    "tests/house/test_distill.py::*",
    # The site and its slides, and JupyterLab beyond one page.
    "tests/site/*",
    "tests/lessons/test_browser.py::test_a_check_that_passes*",
    "tests/lessons/test_browser.py::test_a_lesson_shows_what_was_saved_in_it*",
    "tests/lessons/test_browser.py::test_a_picture_is_*",
    "tests/lessons/test_browser.py::test_a_prediction_is_taken_up_again*",
    "tests/lessons/test_browser.py::test_after_the_last_hint*",
    "tests/lessons/test_browser.py::test_an_explanation_is_held_back*",
    "tests/lessons/test_browser.py::test_a_verdict_and_a_picture*",
    "tests/lessons/test_browser.py::test_check_in_a_new_kernel*",
    "tests/lessons/test_browser.py::test_progress_*",
    "tests/lessons/test_browser.py::test_what_a_cell_needs*",
    "tests/lessons/test_browser.py::test_what_a_learner_wrote*",
    "tests/lessons/test_browser.py::test_what_failed*",
    "tests/lessons/test_browser.py::test_what_is_old*",
    "tests/lessons/test_browser.py::test_who_begins_in_the_middle*",
    "tests/lessons/test_lesson_00.py::*",
    "tests/lessons/test_train_ddp.py::*",
    "tests/lessons/test_train_fsdp2.py::*",
    # Once more with many ranks.
    "tests/record/test_trace.py::test_sixty_four_ranks*",
    "tests/root/test_dry_run.py::test_a_dry_run_makes_the_calls_of_real_ranks*-8]",
    # Faults and waits of the launcher, one by one.
    "tests/flight/test_explain_hangs.py::test_a_call_that_is_pending*",
    "tests/hang/test_hangs.py::test_every_hang_is_explained*",
    "tests/hang/test_nccl_hangs.py::test_the_cells_for_gpus*",
    "tests/hang/test_queued.py::test_every_hang_is_explained*",
    "tests/launcher/test_a_rank_ends_as_a_program.py::test_under_launch_and_under_torchrun_the_same*",
    "tests/launcher/test_faults.py::*",
    "tests/launcher/test_alone.py::*",
    "tests/launcher/test_soak.py::*",
    "tests/launcher/test_torch_private.py::test_each_name_may_be_missing*",
    "tests/launcher/test_torch_private.py::test_each_variable*",
    "tests/launcher/test_torch_private.py::test_a_check_judges_without*",
    "tests/launcher/test_torch_private.py::test_what_is_taken_away*",
    "tests/root/test_early.py::*",
    "tests/checks/test_watch.py::*",
    "tests/checks/test_words.py::*",
    "tests/devices/test_prepare.py::*",
    "tests/house/test_ddp_course.py::*",
    "tests/house/test_wheel.py::*",
)
# One pattern for all of them: every worker asks it of every test.
IS_OUTER = re.compile("|".join(map(fnmatch.translate, OUTER)))
# A chapter with parts that start a cluster. The outer circle runs these parts, and what they need.
CHAPTER_WITH_CLUSTERS = "notebooks/09_many_machines.ipynb"
CLUSTERS = ({"part-slurm"}, {"part-slurm", "part-agents"}, {"part-ray"})
NEEDED_BY_EVERY_CLUSTER = {"part-slurm", "part-agents", "part-ray"}


def is_wholly_outer(path: str) -> bool:
    """Whether all tests of a file stand in the outer circle; the path begins at the root."""
    return IS_OUTER.match(f"{path}::*") is not None


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark every test that `make test` leaves to `make test-all`."""
    for item in items:
        if item.nodeid.startswith(CHAPTER_WITH_CLUSTERS):
            _mark_cell(item)
        elif IS_OUTER.match(item.nodeid):
            item.add_marker("outer")


def _mark_cell(item: Any) -> None:
    """Mark a cell of the chapter with clusters."""
    parts = _parts(item)
    if parts in CLUSTERS:
        item.add_marker("outer")
    elif item.cell_num == 0 or parts == NEEDED_BY_EVERY_CLUSTER:  # cell 0 has the imports
        item.add_marker("outer")
        item.add_marker("both")


def _parts(item: Any) -> set[str]:
    """The parts of its chapter that a cell belongs to, as its tags say."""
    tags = item.cell.metadata.get("tags", [])
    return {tag for tag in tags if tag.startswith("part-")}


def unmatched(items: Iterable[pytest.Item]) -> list[str]:
    """The patterns of OUTER that name no test: one was moved, and may have left the circle."""
    names = [item.nodeid for item in items]
    return [pattern for pattern in OUTER if not fnmatch.filter(names, pattern)]
