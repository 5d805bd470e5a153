"""Races of chapter 01: what is made of the clock and of the CPU time."""

import threading

import pytest
import torch

from course_lessons import device_zero, racing
from course_utils import launch


def test_the_fastest_round_counts_and_of_processes_the_slower_rank():
    # Per way: seconds on the clock, and of CPU time. Rank 1 takes part in the third way only.
    rank_0 = [[[2, 2], [4, 4], [1, 1]], [[3, 2], [1, 1.5], [0.5, 0.5]]]
    rank_1 = [[[0, 0], [0, 0], [1, 1]], [[0, 0], [0, 0], [0.8, 0.5]]]
    race = racing.result([torch.tensor(rank_0), torch.tensor(rank_1)])
    assert race == pytest.approx((2 / 1, 2 / 0.8, 1.5 / 1, 1.5 / 2))
    assert race.threads == pytest.approx(race.cores / race.cpu_time)  # in turn one core is at work


def test_both_threads_are_ready_before_either_works():
    together = threading.Barrier(2)
    clock_s, cpu_s = racing.in_threads([lambda: together.wait(60)] * 2)
    assert clock_s > 0
    assert cpu_s >= 0


def test_a_race_runs_both_works_in_all_ways():
    counts = {"runs": 0}

    def work():
        counts["runs"] += 1

    def raced():
        laps = racing.race(lambda: [work, work], rounds=3)
        return laps, counts["runs"]

    (laps, first), (_, second) = launch(raced, backend="gloo")
    assert laps.shape == (3, 3, 2)
    assert (first, second) == (2 + 3 * (2 + 2 + 1), 2 + 3 * 1)


def test_numbers_of_a_table_stand_behind_about():
    text = racing.table({"sums": racing.Race(0.97, 1.9, 1.0, 1.03)})
    assert text.splitlines()[1].split("about")[1:] == [
        " 1.90     ", " 0.97     ", " 1.00    ", " 1.03",
    ]  # fmt: skip


def test_gathered_logits_fill_device_0_and_gathered_losses_do_not():
    logits, gathered = device_zero.bytes_by_device(loss_in_replica=False)
    assert logits[0] / logits[3] == pytest.approx(9, rel=0.01)
    assert gathered == 4 * 64 * 10_000 * 4
    losses, gathered = device_zero.bytes_by_device(loss_in_replica=True)
    assert losses[0] / losses[3] == pytest.approx(1, rel=0.01)
    assert gathered == 4 * 4
