"""The likely reason stands below words of torch and Python that do not say it themselves."""

import argparse
import io
import os
import signal
import socket
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.launcher import errors, reasons
from course_utils.launcher.errors import Failure
from course_utils.launcher.stacks import Frame

pytestmark = pytest.mark.usefixtures("nothing_left")


class Half(nn.Module):
    """Half of it takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, x):
        return self.used(x)


class Again(nn.Linear):
    """A checkpoint within DDP."""

    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=True)


def takes_a_command_line() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs")
    parser.parse_args()


def leaves_half_out() -> None:
    model = DistributedDataParallel(Half())
    for _ in range(2):
        model(torch.ones(1)).sum().backward()


def goes_back_within_backward() -> None:
    model = DistributedDataParallel(Again(1, 1), find_unused_parameters=True)
    model(torch.ones(1, requires_grad=True)).sum().backward()


def uses_a_parameter_past_forward() -> None:
    model = DistributedDataParallel(Half(), find_unused_parameters=True)
    outputs = model(torch.ones(1)) + model.module.unused(torch.ones(1))
    outputs.sum().backward()


def takes_a_missing_interface() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "eth9"
    dist.init_process_group("gloo")


def takes_a_port_twice() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.environ["MASTER_PORT"] = str(server.getsockname()[1])
        dist.init_process_group("gloo")


def uses_what_all_reduce_returns() -> torch.Tensor:
    loss = torch.ones(1)
    loss = dist.all_reduce(loss)
    return loss / dist.get_world_size()


def takes_a_rank_of_the_group_for_one_of_all() -> None:
    groups = [dist.new_group([rank]) for rank in range(2)]
    rank = dist.get_rank()
    dist.broadcast(torch.ones(1), src=1 - rank, group=groups[rank])


def sends_itself_more_than_it_expects() -> None:
    to_itself_three = [3, 1] if dist.get_rank() == 0 else [1, 3]
    dist.all_to_all_single(torch.zeros(4), torch.ones(4), [2, 2], to_itself_three)


def computes_with_what_all_reduce_returns() -> float:
    return dist.all_reduce(torch.ones(1)).item()


def takes_its_device_in_turn() -> None:
    torch.accelerator.set_device_index(dist.get_rank() % torch.accelerator.device_count())


def rings_where_nobody_listens() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    time.sleep(60)


def sends_itself_a_message() -> None:
    rank = dist.get_rank()
    given, taken = torch.ones(2), torch.zeros(2)
    messages = [dist.P2POp(dist.isend, given, rank), dist.P2POp(dist.irecv, taken, rank)]
    for work in dist.batch_isend_irecv(messages):
        work.wait()


def reads_half_a_checkpoint() -> None:
    whole = io.BytesIO()
    torch.save(torch.ones(1000), whole)
    torch.load(io.BytesIO(whole.getvalue()[:1000]))


def calls_a_method_of_the_wrapped_model() -> None:
    model = nn.Linear(1, 1)
    model.encode = model.forward
    DistributedDataParallel(model).encode(torch.ones(1))


CASES = [
    (sends_itself_a_message, "gloo connects a rank with the others, not with itself"),
    (reads_half_a_checkpoint, "the file was not whole when it was read"),
    (calls_a_method_of_the_wrapped_model, "is at model.module, but DDP averages"),
    (rings_where_nobody_listens, "an alarm rang that the function had set"),
    (lambda: torch.empty(10**15), "more memory than this machine has left"),
    (computes_with_what_all_reduce_returns, "all_reduce changes .* call it in a line of its own"),
    (uses_what_all_reduce_returns, "all_reduce changes its tensor and returns None"),
    (lambda: dist.all_reduce(3.5), r"such as torch.tensor\(number\)"),
    (lambda: dist.all_reduce(torch.ones(1), op="sum"), "such as dist.ReduceOp.SUM"),
    (lambda: dist.all_reduce(torch.ones(1), group=0), "what dist.new_group\\(\\) returns"),
    (lambda: dist.broadcast(torch.ones(1), 0, group=0), "what dist.new_group\\(\\) returns"),
    (lambda: dist.all_reduce(torch.ones(1), group=[0, 1]), "neither a number nor a list"),
    (takes_a_rank_of_the_group_for_one_of_all, "write group_src= or group_dst="),
    (sends_itself_more_than_it_expects, "what it expects of itself differ"),
    (lambda: torch.save({"w": torch.ones(4000)}, "/dev/full"), "because the disk is full"),
    (lambda: torch.ones(1).cuda(), "this launch runs on the CPU"),
    (takes_its_device_in_turn, "this launch runs on the CPU"),
    (lambda: DistributedDataParallel(nn.Linear(1, 1), [dist.get_rank()]), "leave them out"),
    (lambda: DistributedDataParallel(nn.Linear(1, 1)), "return model.module or"),
    (takes_a_command_line, r"such as parse_args\(\[\]\)"),
    (leaves_half_out, "find_unused_parameters=True"),
    (goes_back_within_backward, "use_reentrant=False"),
    (uses_a_parameter_past_forward, "use its parameters only within forward"),
    (lambda: dist.world_size, r"dist.get_world_size\(\) is how many ranks there are"),
]


@pytest.mark.parametrize(("work", "reason"), CASES)
def test_a_launch_tells_the_likely_reason(work, reason, no_hurry):
    with pytest.raises(WorkerError, match=f"(?s)ranks 0 and 1 failed.*Likely reason: .*{reason}"):
        launch(work, world_size=2, backend="gloo", device="cpu")


def reaches_no_proxy() -> None:
    raise ConnectionError("Unable to connect to proxy: 10.0.0.1 refused")


def tells_of_a_program() -> None:
    raise RuntimeError("ffmpeg left with exit status 1 on clip 3; it died of SIGKILL before")


def divides_by_a_different_zero() -> float:
    rounds = torch.cuda.device_count()
    batches = 0
    return rounds / batches


def keeps_lists_in_a_set() -> None:
    {[0, 1]}  # noqa: B018


def hands_argparse_a_list() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.parse_args(["--lr", "abc"])


def uses_a_different_none() -> None:
    lr = None
    loss = torch.ones(1)
    work = dist.all_reduce(
        loss,
        async_op=True,
    )
    work.wait()
    work = lr + 1


def keeps_none_and_never_uses_it() -> None:
    loss = torch.ones(1)
    settings = None
    nothing = dist.all_reduce(loss)  # noqa: F841
    settings.lr = 1


def caught_and_printed_something_else() -> None:
    print("AttributeError: Can't get attribute 'Net' on <module '__main__'>")
    raise ValueError("learning rate is negative")


@pytest.mark.parametrize(
    "work",
    [
        reaches_no_proxy,
        tells_of_a_program,
        keeps_lists_in_a_set,
        divides_by_a_different_zero,
        hands_argparse_a_list,
        uses_a_different_none,
        keeps_none_and_never_uses_it,
        caught_and_printed_something_else,
    ],
)
def test_no_reason_is_made_up_of_words_that_only_sound_alike(work):
    with pytest.raises(WorkerError) as caught:
        launch(work, world_size=2, backend="gloo", device="cpu")
    assert "Likely reason" not in str(caught.value)


@pytest.mark.parametrize("level", ["INFO", "DETAIL"])
def test_parameters_are_named_where_the_notebook_asks_torch_to(level, monkeypatch):
    """As torch itself advises, below that error."""
    names = r"did not receive grad .*: unused\.bias, unused\.weight"
    with monkeypatch.context() as only_here:
        only_here.setenv("TORCH_DISTRIBUTED_DEBUG", level)
        with pytest.raises(WorkerError, match=names):
            launch(leaves_half_out, world_size=2, backend="gloo", device="cpu")


def test_a_result_that_is_nested_too_deeply_calls_no_function_of_the_learners():
    words = "its result, a Node, cannot be sent back: RecursionError: maximum recursion depth"
    why = errors.worker_error([Failure(0, 0.0, words)], 1, [""]).parts[1]
    assert why.startswith("Likely reason: it is nested too deeply to be sent")


MEETINGS = [
    (takes_a_missing_interface, r"which has \w+"),
    (takes_a_port_twice, "something listens on that port already"),
]


@pytest.mark.parametrize(("work", "reason"), MEETINGS)
def test_a_group_that_cannot_be_made_tells_the_likely_reason(work, reason):
    with pytest.raises(WorkerError, match=f"(?s)Likely reason: .*{reason}"):
        launch(work, world_size=1, backend=None, device="cpu")


def test_a_host_that_nobody_knows_is_named_where_the_time_is_up():
    def work() -> None:
        os.environ["MASTER_ADDR"] = "master-node.invalid"
        dist.init_process_group("gloo")

    with pytest.raises(WorkerTimeout, match="nobody here knows a host named master-node"):
        launch(work, backend=None, timeout=4)


def test_a_look_at_cuda_in_the_notebook_does_not_change_why_a_rank_has_none():
    """Torch then speaks of forks, which no rank is to hear of."""
    torch.cuda.is_available()
    with pytest.raises(WorkerError, match="Likely reason: this launch runs on the CPU"):
        launch(lambda: torch.ones(1).cuda())


@pytest.mark.parametrize(
    "printed",
    [
        "AttributeError: Can't get attribute 'Mine' on <module '__main__' (built-in)>",
        "AttributeError: module '__main__' has no attribute 'Mine'",  # from Python 3.14 on
    ],
)
def test_what_a_spawned_process_cannot_see_is_told(printed):
    failure = Failure(0, 0.0, "RuntimeError: DataLoader worker exited unexpectedly")
    why = errors.worker_error([failure], 1, [printed]).parts[1]
    assert why.startswith("Likely reason: a process that is started by spawn cannot see")


def test_a_killed_worker_of_a_loader_has_most_often_had_no_memory():
    words = "RuntimeError: DataLoader worker is killed by signal: Killed. "
    why = errors.worker_error([Failure(0, 0.0, words)], 1, [""]).parts[1]
    assert why.startswith("Likely reason: something outside killed it, most often the system")


def test_a_loader_whose_worker_is_gone_is_no_rank_that_left():
    frames = [Frame("/lib/torch/utils/data/dataloader.py", 3, "_next")]
    failure = Failure(0, 0.0, "ConnectionResetError: [Errno 104] Connection reset by peer", frames)
    why = errors.worker_error([failure], 1, [""]).parts[1]
    assert why == f"Likely reason: {reasons._PEER_PROCESS_ENDED}."


def test_lightning_in_a_rank_is_told_where_to_be_imported():
    words = "MisconfigurationException: `Trainer(strategy='ddp')` is not compatible with an"
    failure = Failure(0, 0.0, f"{words} interactive environment.")
    assert "import it inside the function" in errors.worker_error([failure], 1, [""]).parts[1]
    frames = [Frame("/lib/lightning/strategies/launchers/multiprocessing.py", 3, "launch")]
    nested = errors.worker_error([Failure(0, 0.0, "RuntimeError: x", frames)], 1, [""])
    assert "not 'ddp_notebook'" in nested.parts[1]
