"""Chapter 01: its checks reject what people write, and let pass what is right."""

import copy
import re
import threading

import labs
import pytest
import torch
import torch.distributed as dist

from course_lessons import twins
from course_tools.notebooks import build
from course_utils import check

SOURCE = build.ROOT / "source/lessons/01_data_parallel_and_the_gil.py"


@pytest.fixture(scope="module")
def answers():
    """The answers that the lesson folds, by name."""
    names = {"replica_of": twins.replica_of, "threading": threading, "torch": torch, "dist": dist}
    text = re.sub(r"^# ?", "", SOURCE.read_text(), flags=re.M)
    for number, code in enumerate(re.findall(r"<pre>\n(.*?)</pre>", text, re.S)):
        labs.run(code, f"<answer {number}>", names)
    return names


@pytest.fixture
def replica_of():
    return twins.replica_of


def in_threads(calls, wait=True):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        if wait:
            thread.join()


def data_parallel_by(replicate, run, gather=torch.cat):
    """A way to write `data_parallel`, put together from its parts."""

    def data_parallel(model, batch, devices):
        replicas = [replicate(model) for _ in range(devices)]
        shards, outputs = batch.chunk(devices), [None] * devices

        def call_of(device):
            def call():
                outputs[device] = replicas[device](shards[device])

            return call

        run([call_of(device) for device in range(devices)])
        return gather(outputs)

    return data_parallel


def one_after_the_other(calls):
    for call in calls:
        in_threads([call])


def in_this_thread(calls):
    for call in calls:
        call()


WRONG_THREADS = {
    "no thread": lambda replica_of: data_parallel_by(replica_of, in_this_thread),
    "one thread at a time": lambda replica_of: data_parallel_by(replica_of, one_after_the_other),
    "gradients stay": lambda replica_of: data_parallel_by(copy.deepcopy, in_threads),
    "not joined": lambda replica_of: data_parallel_by(
        replica_of, lambda calls: in_threads(calls, wait=False)
    ),
    "a list": lambda replica_of: data_parallel_by(replica_of, in_threads, gather=list),
    "turned round": lambda replica_of: data_parallel_by(
        replica_of, in_threads, gather=lambda outputs: torch.cat(outputs[::-1])
    ),
    "the model itself": lambda replica_of: lambda model, batch, devices: model(batch),
}


@pytest.mark.slow
@pytest.mark.parametrize("made", WRONG_THREADS.values(), ids=WRONG_THREADS)
def test_a_wrong_data_parallel_is_rejected(replica_of, made):
    wrong = made(replica_of)
    assert check(twins.by_threads(wrong), **twins.THREADS).state == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["no thread", "one thread at a time", "the model itself"])
def test_replicas_that_take_turns_are_counted_as_one_at_a_time(replica_of, name):
    outcome = check(twins.by_threads(WRONG_THREADS[name](replica_of)), **twins.THREADS)
    assert "at the same time': wanted 2, got 1" in outcome.message


@pytest.mark.slow
def test_our_own_answers_and_another_way_to_start_threads_pass(answers, replica_of):
    for right in (answers["data_parallel"], data_parallel_by(replica_of, in_threads)):
        assert check(twins.by_threads(right), **twins.THREADS | labs.PATIENT).require()
    assert check(twins.by_ranks(answers["in_processes"]), **twins.RANKS | labs.PATIENT).require()


def the_whole_batch(model, batch):
    model(batch).square().mean().backward()


def its_own_gradient(model, batch):
    shard = batch.chunk(dist.get_world_size())[dist.get_rank()]
    model(shard).square().mean().backward()


def the_sum(model, batch):
    its_own_gradient(model, batch)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def halves(model, batch):
    the_sum(model, batch)
    for parameter in model.parameters():
        parameter.grad /= 2


def only_the_first(model, batch):
    its_own_gradient(model, batch)
    gradient = next(model.parameters()).grad
    dist.all_reduce(gradient)
    gradient /= dist.get_world_size()


def the_first_shard(model, batch):
    model(batch.chunk(dist.get_world_size())[0]).square().mean().backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [the_whole_batch, its_own_gradient, the_sum, halves, only_the_first, the_first_shard],
)
def test_a_wrong_twin_is_rejected(wrong):
    assert check(twins.by_ranks(wrong), **twins.RANKS).state == "wrong"


def test_stubs_promise_about_as_many_lines_as_our_own_answers_have():
    text = SOURCE.read_text()
    for name in ("data_parallel", "in_processes"):
        answer = text.partition(f"# <pre>\n# def {name}(")[2].partition("# </pre>")[0]
        stub = text.partition(f"\ndef {name}(")[2].partition("# %%")[0]
        given = stub.partition("raise")[0].count("\n    ") - 1
        given -= stub.count("    # ")  # a comment
        assert f'"about {len(answer.splitlines()) - 1 - given} lines"' in stub


def test_a_replica_has_no_parameters_and_its_gradients_flow_back(replica_of):
    model = twins.network(4, depth=2)
    replica = replica_of(model)
    assert [*replica.parameters()] == []
    replica(torch.ones(2, 4)).sum().backward()
    flowed = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    for parameter, gradient in zip(model.parameters(), flowed, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
