"""The museum: every bug fails and every cure passes, on real ranks; what only looks cured fails."""

import inspect

import pytest
import torch
import torch.distributed as dist

from course_museum import EXHIBITS
from course_museum.exhibit import DIES, HANGS, LIES


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_bug_shows_its_symptom(name):
    exhibit = EXHIBITS[name]
    outcome = exhibit.judge(exhibit.bug)
    assert not outcome
    assert exhibit.symptom in str(outcome)


KINDS = {HANGS: "would never be done", DIES: "failed:", LIES: "wanted"}


@pytest.mark.parametrize("name", EXHIBITS)
def test_the_answer_to_the_prediction_is_what_happens(name):
    exhibit = EXHIBITS[name]
    assert KINDS[exhibit.answer] in str(exhibit.judge(exhibit.bug))


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_cure_passes(name):
    exhibit = EXHIBITS[name]
    outcome = exhibit.judge(exhibit.cure)
    assert outcome, str(outcome)


def as_many_rounds_as_the_shortest(batches):
    rounds = torch.tensor(len(batches))
    dist.all_reduce(rounds, op=dist.ReduceOp.MIN)
    return EXHIBITS["validation_of_uneven_length"].bug(batches[: int(rounds)])


def mean_of_own_means(batches):
    mean = torch.cat(batches).mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


def never_stops(losses):
    for _ in losses:
        dist.all_reduce(torch.ones(2))
    return len(losses)


def stops_with_the_first(losses):
    steps = 0
    for loss in losses:
        steps += 1
        least = loss.clone()
        dist.all_reduce(least, op=dist.ReduceOp.MIN)
        if least <= 0.5:
            break
    return steps


def reversed_order(gradients):
    for name in reversed(gradients):
        dist.all_reduce(gradients[name])
    return gradients


def all_in_one(gradients):
    flat = torch.cat(list(gradients.values()))
    dist.all_reduce(flat)
    return dict(zip(gradients, flat.split(3), strict=True))


def labels_by_remainder(first, second):
    logits = first @ second.T
    labels = (torch.arange(len(first)) + dist.get_rank()) % len(first)
    return torch.nn.functional.cross_entropy(logits, labels).item()


def times_world_size(weights, batch):
    gradient = EXHIBITS["gradient_of_a_gather"].bug(weights, batch)
    return gradient * dist.get_world_size()


def twice(weights, batch):
    return 2 * EXHIBITS["gradient_of_a_sum"].bug(weights, batch)


def divided_by_own_count(losses, samples_in_dataset):
    return losses.mean().item()


def without_ddp(batch):
    model = torch.nn.Linear(3, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    model(batch).square().mean().backward()
    dist.all_reduce(model.weight.grad)
    return model.weight.grad


def mean_of_norms(shard):
    norm = shard.norm()
    dist.all_reduce(norm)
    return (norm / dist.get_world_size()).item()


def divided_by_world_size(shard, replicated):
    squares = shard.square().sum() + replicated.square().sum()
    dist.all_reduce(squares)
    return (squares / dist.get_world_size()).sqrt().item()


def without_the_factor(weights, tokens):
    weights = weights.clone().requires_grad_()
    count = torch.tensor(float(len(tokens)))
    dist.all_reduce(count)
    ((tokens @ weights).square().sum() / count).backward()
    dist.all_reduce(weights.grad)
    return weights.grad / dist.get_world_size()


def another_seed_each_epoch(samples, epochs):
    seen = []
    for epoch in range(epochs):
        sampler = torch.utils.data.DistributedSampler(samples, seed=dist.get_rank() + epoch)
        seen.append([samples[index].item() for index in sampler])
    return seen


ONLY_LOOK_CURED = (
    ("validation_of_uneven_length", as_many_rounds_as_the_shortest),
    ("validation_of_uneven_length", mean_of_own_means),
    ("stops_on_its_own", never_stops),
    ("stops_on_its_own", stops_with_the_first),
    ("order_of_a_dictionary", reversed_order),
    ("order_of_a_dictionary", all_in_one),
    ("labels_of_nobody", labels_by_remainder),
    ("gradient_of_a_sum", twice),
    ("gradient_of_a_gather", times_world_size),
    ("loss_of_a_part", divided_by_own_count),
    ("model_without_its_wrapper", without_ddp),
    ("sum_of_norms", mean_of_norms),
    ("counted_on_every_rank", divided_by_world_size),
    ("mean_of_means", without_the_factor),
    ("the_same_epoch_again", another_seed_each_epoch),
)


@pytest.mark.parametrize(("name", "answer"), ONLY_LOOK_CURED)
def test_what_only_looks_cured_is_rejected(name, answer):
    assert not EXHIBITS[name].judge(answer)


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_bug_is_read_in_a_minute_and_has_its_source(name):
    exhibit = EXHIBITS[name]
    whole = inspect.getsource(inspect.getmodule(exhibit.bug))
    assert len(inspect.getsource(exhibit.bug).splitlines()) < 40
    assert exhibit.link in whole
    assert exhibit.link.startswith("https://github.com/")
