"""Chapter 11: its evidence, its desk, and what the checks of its exercises reject and accept."""

import pickle
import re
from functools import partial
from pathlib import Path

import labs
import pytest
import together
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from course_lessons import chapter_11, incident
from course_lessons.chapter_11 import judging, training

LESSON = labs.ROOT / "source/lessons/11_capstone.py"
INCIDENT = labs.ROOT / "notebooks/incident"
loss_of = incident.script_of(INCIDENT, "monday").loss_of
EPOCH, EACH = chapter_11.epoch_options(loss_of), chapter_11.each_model_options(loss_of)


@pytest.fixture(scope="module")
def lesson():
    """What the cells of both exercises define."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(labs.ROOT / "notebooks")
        wanted = ("import os\n", "week = Path(", "def epoch_done", "def loss_of_each(")
        names = labs.defined(LESSON, (*wanted, "def loss_of_each_done"))
    names["loss_of"] = loss_of
    return names


def test_neither_agent_accuses_the_rank_that_did_otherwise():
    accused = []
    for node in ("node-a", "node-b"):
        said = (INCIDENT / "monday" / node / "torchrun.txt").read_text().partition("Root Cause")[2]
        accused.append(int(re.search(r"rank +: (\d)", said)[1]))
    calls = [pickle.loads(path.read_bytes()) for path in sorted(INCIDENT.glob("monday/*/calls?"))]
    last = [dump["entries"][-1]["profiling_name"] for dump in calls]
    assert last == ["gloo:all_reduce"] * 3 + ["gloo:all_gather"]
    assert 3 not in accused


def test_the_evidence_is_small_and_names_no_machine():
    files = [path for path in INCIDENT.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) < 200_000
    for path in files:
        assert not re.search(rb"(?<![\w.])/(work|root|home|tmp)/", path.read_bytes()), path


def test_each_days_script_differs_from_the_last_in_what_its_author_says():
    texts = [(INCIDENT / day / "train.py").read_text() for day in ("monday", "tuesday", "thursday")]
    old, new, last = ([line for line in text.splitlines() if line.strip()] for text in texts)
    assert len(set(new) - set(old)) == 5
    assert {line for line in set(last) - set(new) if "torch.zeros" in line}


def test_the_disk_error_is_neither_on_the_writers_node_nor_in_the_night():
    error = next(line for line in (INCIDENT / "kernel.log").open() if "I/O" in line)
    assert "node-b" in error
    begun = next(line for line in (INCIDENT / "scheduler.log").open() if line.startswith("Wed"))
    assert error[:27] < begun[:27]
    assert "Wed" not in (INCIDENT / "metrics.csv").read_text()


def test_wednesdays_traces_are_what_its_evidence_shows():
    assert (INCIDENT / "wednesday/checkpoint.pt").stat().st_size == chapter_11.TORN_BYTES
    assert chapter_11.WEDNESDAY.loads in incident.LOOKS["wednesday/error"].read(INCIDENT)
    assert "02:00:11.228 job 4713 preempted" in (INCIDENT / "scheduler.log").read_text()


def test_a_look_is_charged_once_and_what_the_chapter_shows_is_free(capsys):
    desk = incident.Desk(INCIDENT)
    desk.look("wednesday/files")
    desk.look("wednesday/files")
    desk.look("monday/calls")
    desk.show("thursday/changes")
    assert desk.minutes() == 9
    assert desk.minutes("monday") == 8
    assert "so far 9 min" in capsys.readouterr().out


def test_a_look_that_the_menu_lacks_is_named_and_costs_nothing(capsys):
    desk = incident.Desk(INCIDENT)
    desk.look("monday/call")
    assert "There is no 'monday/call'. The menu has: monday/agents," in capsys.readouterr().out
    assert desk.minutes() == 0


@pytest.mark.parametrize("name", incident.LOOKS)
def test_there_is_something_to_read_at_each_look(name):
    assert len(incident.LOOKS[name].read(INCIDENT)) > 60


def test_the_bill_has_what_was_looked_at_and_what_is_enough(capsys):
    desk = incident.Desk(INCIDENT)
    desk.look("monday/characters")
    desk.bill()
    assert "monday 5 and 7; wednesday 0 and 2;" in capsys.readouterr().out


def test_the_tool_blames_the_rank_that_did_otherwise():
    assert "Guilty: rank 3." in incident.LOOKS["monday/verdict"].read(INCIDENT)
    prices = [incident.LOOKS[f"monday/{name}"].minutes for name in ("verdict", "calls")]
    assert prices == sorted(prices)  # the bill takes the cheaper of two looks that name the rank


def _cut_longer(path: Path):
    with open(path, "ab") as file:
        file.truncate(2 * chapter_11.TORN_BYTES)


@pytest.mark.slow
def test_only_a_kill_within_the_save_leaves_all_of_wednesdays_traces():
    killed = chapter_11.traces_of(
        INCIDENT, lambda path: chapter_11.limit_files(chapter_11.TORN_BYTES, deadly=True), None
    )
    assert killed == chapter_11.WEDNESDAY
    lose_block = partial(chapter_11.lose_block, number=20)
    loads = []
    for act in (chapter_11.lose_last_block, lose_block, chapter_11.flip_a_bit, _cut_longer):
        left = chapter_11.traces_of(INCIDENT, None, act)
        assert (left.size, left.row, left.writer) == ("whole", "a row", "ended well")
        loads.append(left.loads)
    assert loads[:3] == ["central directory", "loads", "loads"]


def agreed(own):
    """Numbers of windows of all ranks, step by step."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, [len(batch) for batch in own])
    steps = max(map(len, every))
    return [sum(sizes[step] for sizes in every if step < len(sizes)) for step in range(steps)]


def step(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def nothing():
    return torch.empty(0, 17, dtype=torch.long)


def trained(model, optimizer, own, sizes, world=True, mean=False):
    own = [*own, *[nothing()] * (len(sizes) - len(own))]
    for batch, size in zip(own, sizes, strict=True):
        loss = loss_of(model, batch, reduction="sum") * (dist.get_world_size() if world else 1)
        step(optimizer, loss / (max(1, len(batch)) if mean else size))


def as_on_monday(model, optimizer, own):
    for batch in own:
        step(optimizer, loss_of(model, batch))


def as_on_tuesday(model, optimizer, own):
    as_on_monday(model, optimizer, own[:1])


def fewest_steps(model, optimizer, own):
    steps = torch.tensor(len(own))
    dist.all_reduce(steps, op=dist.ReduceOp.MIN)
    as_on_monday(model, optimizer, own[: int(steps)])


def means_of_ranks(model, optimizer, own):
    trained(model, optimizer, own, agreed(own), world=False, mean=True)


def without_the_world_size(model, optimizer, own):
    trained(model, optimizer, own, agreed(own), world=False)


def the_last_batch_again(model, optimizer, own):
    sizes = agreed(own)
    own = [*own, *[(own or [nothing()])[-1]] * (len(sizes) - len(own))]
    trained(model, optimizer, own, sizes)


def join_alone(model, optimizer, own):
    with Join([model]):
        as_on_monday(model, optimizer, own)


def join_by_who_is_left(model, optimizer, own):
    with Join([model], divide_by_initial_world_size=False):
        as_on_monday(model, optimizer, own)


def one_size_for_all(model, optimizer, own):
    sizes = agreed(own)
    trained(model, optimizer, own, [max(sizes)] * len(sizes))


def gathers_all(model, optimizer, own):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    for number in range(max(map(len, every))):
        batch = torch.cat([other[number] for other in every if number < len(other)])
        step(optimizer, loss_of(model, batch))


def counts_first(model, optimizer, own):
    trained(model, optimizer, own, agreed(own))


def asks_in_each_step(model, optimizer, own):
    own = list(own)
    while True:
        batch = own.pop(0) if own else nothing()
        size = torch.tensor(len(batch))
        dist.all_reduce(size)
        if size == 0:
            return
        loss = loss_of(model, batch, reduction="sum") * dist.get_world_size()
        step(optimizer, loss / size)


def by_join(model, optimizer, own):
    sizes = agreed(own)
    with Join([model]):
        for batch, size in zip(own, sizes, strict=False):
            loss = loss_of(model, batch, reduction="sum") * dist.get_world_size()
            step(optimizer, loss / size)


def by_hand(model, optimizer, own):
    for number, size in enumerate(agreed(own)):
        batch = own[number] if number < len(own) else nothing()
        optimizer.zero_grad()
        (loss_of(model.module, batch, reduction="sum") / size).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


WRONG_EPOCHS = [
    as_on_monday, as_on_tuesday, fewest_steps, means_of_ranks, without_the_world_size,
    the_last_batch_again, join_alone, join_by_who_is_left, one_size_for_all, gathers_all,
]  # fmt: skip


@pytest.mark.slow
def test_the_check_rejects_each_wrong_cure(subtests):
    stops = {"as_on_monday", "as_on_tuesday"}  # who hang
    wrong = list(map(training, WRONG_EPOCHS))
    together.reject(subtests, training(counts_first), wrong, EPOCH, stops)


@pytest.mark.slow
def test_other_right_cures_pass(lesson):
    right = [lesson["epoch_done"], asks_in_each_step, by_join, by_hand]
    together.accept(list(map(training, right)), EPOCH | labs.PATIENT | {"world_sizes": (3,)})


@pytest.mark.slow
def test_an_epoch_is_drawn_right_or_wrong(capsys):
    chapter_11.draw_epoch(by_hand)
    drawn = "310 of 310 windows to the model. Rank 3 takes part in step 2 with an empty batch."
    assert drawn in capsys.readouterr().out
    chapter_11.draw_epoch(fewest_steps)
    drawn = "250 of 310 windows to the model. Each rank has some in every step."
    assert drawn in capsys.readouterr().out
    chapter_11.draw_epoch(as_on_monday)
    assert "Rank 3 takes no part in step 2. Then it hangs." in capsys.readouterr().out


def _mean(model, windows):
    with torch.no_grad():
        return loss_of(model.module, windows)


def _gathered(loss):
    losses = [torch.zeros_like(loss) for _ in range(dist.get_world_size())]
    dist.all_gather(losses, loss)
    return losses


def on_its_share(model, windows):
    return _gathered(_mean(model, windows[dist.get_rank() :: dist.get_world_size()]))


def a_sum(model, windows):
    with torch.no_grad():
        return _gathered(loss_of(model.module, windows, reduction="sum"))


def its_model_alone(model, windows):
    return [_mean(model, windows)] * dist.get_world_size()


def averaged(model, windows):
    return [sum(_gathered(_mean(model, windows))) / dist.get_world_size()] * dist.get_world_size()


def rank_0s(model, windows):
    loss = _mean(model, windows)
    dist.broadcast(loss, src=0)
    return [loss] * dist.get_world_size()


def as_evaluate_does(model, windows):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    with torch.no_grad():
        loss = loss_of(model.module, windows[rank::world_size], reduction="sum")
    return [sum(_gathered(loss)) / len(windows)] * world_size


def on_rank_0_only(model, windows):
    losses = _gathered(_mean(model, windows))
    return losses if dist.get_rank() == 0 else []


def in_order_of_size(model, windows):
    return sorted(_gathered(_mean(model, windows)))


def makes_them_equal(model, windows):
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    return _gathered(_mean(model, windows))


def as_objects(model, windows):
    losses = [None] * dist.get_world_size()
    dist.all_gather_object(losses, _mean(model, windows).item())
    return losses


def by_a_sum_of_vectors(model, windows):
    losses = torch.zeros(dist.get_world_size(), dtype=torch.float64)
    with torch.no_grad():
        losses[dist.get_rank()] = loss_of(model, windows)
    dist.all_reduce(losses)
    return losses.tolist()


WRONG_TESTS = [
    on_its_share, a_sum, its_model_alone, averaged, rank_0s, as_evaluate_does, on_rank_0_only,
    in_order_of_size, makes_them_equal,
]  # fmt: skip


@pytest.mark.slow
def test_the_check_rejects_each_wrong_test_of_models(subtests):
    together.reject(subtests, judging(as_objects), list(map(judging, WRONG_TESTS)), EACH)


@pytest.mark.slow
def test_other_right_tests_of_models_pass(lesson):
    right = [lesson["loss_of_each_done"], as_objects, by_a_sum_of_vectors]
    together.accept(list(map(judging, right)), EACH | labs.PATIENT | {"world_sizes": (3,)})


@pytest.mark.slow
def test_a_replayed_thursday_has_two_models_and_its_validation_is_that_of_none(lesson, capsys):
    night = chapter_11.replay(INCIDENT, "thursday", lesson["loss_of_each_done"])
    assert night.whose == 2
    assert night.each_model[1:] == [night.each_model[1]] * 3
    assert night.first_losses[1:] == incident.first_losses(INCIDENT, "thursday")[1:]
    chapter_11.draw_models(night)
    assert "Each rank's model:" in capsys.readouterr().out
    stub = chapter_11.replay(INCIDENT, "tuesday", lesson["loss_of_each"])
    chapter_11.draw_models(stub)
    assert "loss_of_each is not written" in capsys.readouterr().out
