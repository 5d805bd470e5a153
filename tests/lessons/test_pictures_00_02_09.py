"""Pictures of chapters 00, 01, 02 and 09: a learner's wrong answer, and what programs logged."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from course_lessons import (
    chapter_00,
    chapter_01_pictures,
    chapter_02,
    chapter_09_charts,
    chapter_09_pictures,
    drawing,
)


@pytest.fixture
def shown(monkeypatch):
    """What all pictures that are shown say in words."""
    sentences = []
    for module in (chapter_00, chapter_01_pictures, chapter_02, chapter_09_charts, drawing):
        monkeypatch.setattr(module, "show", lambda figure, text, *_: sentences.append(text))
    monkeypatch.setattr(
        chapter_09_pictures, "show", lambda figure, text, *_: sentences.append(text)
    )
    return sentences


def own_gradient(gradient):
    return gradient


def the_sum(gradient):
    dist.all_reduce(gradient)
    return gradient


def of_two_ranks(gradient):
    dist.all_reduce(gradient)
    return gradient / 2


def right_average(gradient):
    dist.all_reduce(gradient)
    return gradient / dist.get_world_size()


def not_written(*_):
    raise NotImplementedError("about 1 line")


@pytest.mark.parametrize(
    ("answer", "returns"),
    [
        (own_gradient, "10, 20, 60"),
        (the_sum, "90, 90, 90"),
        (of_two_ranks, "45, 45, 45"),
        (right_average, "30, 30, 30"),
        (not_written, "nothing yet, nothing yet, nothing yet"),
        (lambda gradient: None, "None, None, None"),
    ],
)
def test_an_average_is_drawn_whatever_it_returns(shown, answer, returns):
    chapter_00.draw_average(answer)
    sentences = []
    for rank, returned in enumerate(returns.split(", ")):
        has = (10, 20, 60)[rank]
        sentences.append(f"Rank {rank}: has {has}, average returns {returned}, wanted 30.")
    assert shown == [" ".join(sentences)]


@pytest.mark.parametrize("answer", [the_sum, of_two_ranks, right_average])
def test_what_all_ranks_have_brought_is_painted_as_no_rank_s_own(monkeypatch, answer):
    """Each rank's own number has one colour, and all others are striped."""
    givers = []
    monkeypatch.setattr(drawing, "cell", lambda *place: givers.append(place[4]))
    chapter_00.draw_average(answer)
    assert givers == [[0], [1], [2], *[[0, 1, 2]] * 6]


def test_an_average_that_raises_is_not_drawn_and_a_line_says_why(shown, capsys):
    chapter_00.draw_average(lambda gradient: gradient.nonsense)
    assert shown == []
    assert "AttributeError" in capsys.readouterr().out


def in_this_thread(model, batch, devices):
    return model(batch)


def half_of_the_batch(model, batch, devices):
    return model(batch[:6])


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (in_this_thread, "1 thread computed 12 of 12 samples; right outputs (✓): 12."),
        (half_of_the_batch, "1 thread computed 6 of 12 samples; right outputs (✓): 0."),
    ],
)
def test_a_data_parallel_without_threads_is_drawn(shown, answer, text):
    chapter_01_pictures.draw_threads(answer)
    assert shown[0].endswith(text)


def test_threads_are_numbered_by_their_samples_whoever_came_first():
    late, early, of_nothing = 30, 10, 20
    seen = [(late, [6, 7, 8]), (of_nothing, []), (early, [0, 1, 2]), (late, [3])]
    assert chapter_01_pictures._in_order_of_samples(seen) == [early, late, of_nothing]


def test_gradients_of_a_twin_that_does_not_exchange_them_are_off(shown):
    def own_shard(model, batch):
        model(batch.chunk(2)[dist.get_rank()]).square().mean().backward()

    def whole_batch(model, batch):
        model(batch).square().mean().backward()

    chapter_01_pictures.draw_gradients(own_shard)
    chapter_01_pictures.draw_gradients(whole_batch)
    assert "rank 0: 0% off" not in shown[0]
    assert shown[1].endswith("rank 0: 0% off, rank 1: 0% off.")


def test_a_diary_notes_what_each_write_made_of_the_counter():
    counter = chapter_01_pictures.Diary(value=0)
    counter["value"] += 1
    counter["value"] += 1
    assert [value for _, _, value in counter.written] == [1, 2]
    assert counter["value"] == 2


def test_who_started_whom_is_read_off_the_lines_and_warnings_are_passed_over(shown):
    lines = ["W1127 a warning", "rank 2 of 4: total 10 in each of 3 epochs"]
    chapter_02.draw_starters({"python script.py -nr 1": lines})
    assert shown == ["python script.py -nr 1 started rank 2 of 4."]


def log(*lines):
    """An agent's log with a line for each (seconds, words)."""
    return "\n".join(f"I1127 09:00:{seconds:09.6f} 2 api.py:1] {said}" for seconds, said in lines)


HOST_0 = log(
    (1, "Rendezvous'ing worker group"),
    *[(2, "  global_ranks=[0]"), (2, "  global_world_sizes=[2]"), (2, "Starting worker group")],
    *[(8, "Detected 1 new nodes from group_rank=0; will restart"), (9, "Rendezvous'ing worker")],
    *[(11, "  global_ranks=[0]"), (11, "  global_world_sizes=[2]"), (11, "Starting worker group")],
    (15, "worker group successfully finished."),
)
HOST_1 = log(
    (1, "Rendezvous'ing worker group"),
    *[(2, "  global_ranks=[1]"), (2, "  global_world_sizes=[2]"), (2, "Starting worker group")],
    *[(7, "failed (exitcode: -9) local_rank: 0 (pid: 5)"), (7, "Rendezvous'ing worker group")],
    *[(11, "  global_ranks=[1]"), (11, "  global_world_sizes=[2]"), (11, "Starting worker group")],
    (15, "worker group successfully finished."),
)


def agents(*logs, returncode=0):
    return [
        SimpleNamespace(errors=text, process=SimpleNamespace(returncode=returncode))
        for text in logs
    ]


def test_two_lives_of_two_agents_are_read_off_their_logs(shown):
    noted = [(step, 0.0) for step in [*range(28), *range(24, 48)]]
    chapter_09_pictures.draw_agents(agents(HOST_0, HOST_1), noted)
    assert shown == [
        "Host 0: rank 0 of 2 at the end, done; "
        "host 1: rank 1 of 2 ends with exit code -9, rank 1 of 2 at the end, done."
    ]
    assert chapter_09_pictures._steps_of_lives(noted) == ["steps 0 to 27", "steps 24 to 47"]


def test_an_agent_whose_log_stops_ends_with_its_exit_code(shown):
    until_start = "\n".join(HOST_1.splitlines()[:4])
    both = agents(until_start.replace("ranks=[1]", "ranks=[0]"), until_start, returncode=1)
    chapter_09_pictures.draw_agents(both)
    assert shown[0].endswith("host 1: rank 1 of 2 at the end, its agent ends with 1.")


def test_lives_of_a_slurm_job_are_read_off_its_log(shown):
    night = ["life 0, nodes: 2", "saved after step 8", "exit status 75", "life 1, nodes: 2"]
    night += ["saved after step 16", "Node failure on node2", "life 2, nodes: 1", "exit status 0"]
    chapter_09_charts.draw_night(night)
    assert shown[0].startswith("Life 0, 2 nodes, step 0 to 8: SIGTERM")
    assert shown[0].endswith("life 2, 1 node, step 16 to 20: exit status 0.")


def in_minutes(save_s, machine_mtbf_h, machines):
    return math.sqrt(2 * save_s * machine_mtbf_h * 3600 / machines) / 60


def as_a_tensor(save_s, machine_mtbf_h, machines):
    return torch.tensor(3600.0)


@pytest.mark.parametrize("answer", [in_minutes, as_a_tensor])
def test_a_wrong_interval_is_drawn(shown, answer):
    chapter_09_charts.draw_intervals(answer, in_minutes, save_s=60, machine_mtbf_h=1200)
    assert shown[0].startswith(f"{answer.__name__}: ")


def test_in_place_of_an_interval_that_is_not_written_ours_is_drawn(shown):
    chapter_09_charts.draw_intervals(not_written, in_minutes, save_s=60, machine_mtbf_h=1200)
    assert shown[0].startswith("in_minutes: ")
