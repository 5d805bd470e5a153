"""Chapter 11: its evidence, and what the check of its exercise rejects and accepts."""

import pickle
import re

import labs
import pytest
import together
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join

from course_utils import check

LESSON = labs.ROOT / "source/lessons/11_capstone.py"
INCIDENT = labs.ROOT / "notebooks/incident"
WANTED = "import difflib", "week = Path(", "def job(", "loss_of =", "def epoch("


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercise define."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(labs.ROOT / "notebooks")
        return labs.defined(LESSON, WANTED)


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


def trained(loss_of, model, optimizer, own, sizes, world=True, mean=False):
    own = [*own, *[nothing()] * (len(sizes) - len(own))]
    for batch, size in zip(own, sizes, strict=True):
        loss = loss_of(model, batch, reduction="sum") * (dist.get_world_size() if world else 1)
        step(optimizer, loss / (max(1, len(batch)) if mean else size))


def answers(loss_of):
    """Wrong ones, then right ones."""

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
        sizes = agreed(own)
        trained(loss_of, model, optimizer, own, sizes, world=False, mean=True)

    def without_the_world_size(model, optimizer, own):
        trained(loss_of, model, optimizer, own, agreed(own), world=False)

    def the_last_batch_again(model, optimizer, own):
        sizes = agreed(own)
        own = [*own, *[(own or [nothing()])[-1]] * (len(sizes) - len(own))]
        trained(loss_of, model, optimizer, own, sizes)

    def join_alone(model, optimizer, own):
        with Join([model]):
            as_on_monday(model, optimizer, own)

    def join_by_who_is_left(model, optimizer, own):
        with Join([model], divide_by_initial_world_size=False):
            as_on_monday(model, optimizer, own)

    def one_size_for_all(model, optimizer, own):
        sizes = agreed(own)
        trained(loss_of, model, optimizer, own, [max(sizes)] * len(sizes))

    def gathers_all(model, optimizer, own):
        every = [None] * dist.get_world_size()
        dist.all_gather_object(every, own)
        for number in range(max(map(len, every))):
            batch = torch.cat([other[number] for other in every if number < len(other)])
            step(optimizer, loss_of(model, batch))

    def counts_first(model, optimizer, own):
        trained(loss_of, model, optimizer, own, agreed(own))

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

    wrong = [
        as_on_monday, as_on_tuesday, fewest_steps, means_of_ranks, without_the_world_size,
        the_last_batch_again, join_alone, join_by_who_is_left, one_size_for_all, gathers_all,
    ]  # fmt: skip
    return wrong, [counts_first, asks_in_each_step, by_join, by_hand]


@pytest.mark.slow
def test_the_check_rejects_each_wrong_cure(lesson, subtests):
    wrong, right = (list(map(lesson["training"], own)) for own in answers(lesson["loss_of"]))
    stops = {"as_on_monday", "as_on_tuesday"}  # who hang
    together.reject(subtests, right[0], wrong, lesson["epoch_judged"], stops)


@pytest.mark.slow
def test_other_right_cures_pass(lesson):
    for answer in answers(lesson["loss_of"])[1]:
        judged = lesson["epoch_judged"] | labs.PATIENT
        assert check(lesson["training"](answer), **judged).require()
