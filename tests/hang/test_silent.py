"""Mistakes that torch lets pass are said after the run, and right programs are left in peace."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from course_utils import launch

ANY = torch.ones(2)


def always(rank: int) -> bool:
    return True


def on_rank_0(rank: int) -> bool:
    return rank == 0


class Half(nn.Module):
    """Half of it takes no part, unless it is asked for the whole."""

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self.used, self.unused, self.whole = nn.Linear(2, 1), nn.Linear(2, 1), whole

    def forward(self, x):
        return self.used(x) + self.unused(x) if self.whole else self.used(x)


@pytest.fixture
def said(capfd):
    """What `launch` says after a run."""

    def run(work, **options) -> list[str]:
        launch(work, backend="gloo", device="cpu", **options)
        lines = capfd.readouterr().out.splitlines()
        return [line for line in lines if line.startswith("launch: ") and " on the CPU" not in line]

    return run


def test_a_step_in_which_a_parameter_took_no_part_is_said_once(said):
    def work() -> None:
        step(DistributedDataParallel(Half()))

    (line,) = said(work)
    assert "stayed unfinished on ranks 0 and 1, so its gradients are not averaged" in line
    assert "find_unused_parameters=True" in line


def test_an_all_reduce_of_two_dtypes_is_said_with_its_line(said):
    def work() -> int:
        dtype = torch.float32 if dist.get_rank() else torch.int32
        tensor = torch.ones(3, dtype=dtype)
        for _ in range(2):
            dist.all_reduce(tensor)

    (line,) = said(work)
    assert "launch: all_reduce at test_silent.py, line" in line
    assert "dist.all_reduce(tensor), was handed int32 on rank 0 and float32 on rank 1" in line


@pytest.mark.parametrize("way", ["module", "no_sync"])
def test_a_model_that_is_trained_without_averaging_is_said(way, said):
    def work() -> None:
        model = DistributedDataParallel(Half(whole=True))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            if way == "module":
                step(model.module)
            else:
                with model.no_sync():
                    step(model)
            dist.all_reduce(torch.ones(1))  # such as of the loss, for a report
            optimizer.step()
            optimizer.zero_grad()

    (line,) = said(work)
    assert "gradients were never averaged, on ranks 0 and 1" in line


def trained_on_other_data(when_to_load: str = "", rank_steps=always, rank_schedules=always):
    model = DistributedDataParallel(Half(whole=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    rank = dist.get_rank()
    better_weights = Half(whole=True).state_dict()
    if when_to_load == "before the training" and rank == 0:
        model.module.load_state_dict(better_weights)
    for batch in range(3):
        optimizer.zero_grad()
        model(torch.full((2,), rank + batch + 1.0)).sum().backward()
        if rank_steps(rank):
            optimizer.step()
        if rank_schedules(rank):
            schedule.step()
    if when_to_load == "after the training" and rank == 0:
        model.module.load_state_dict(better_weights)
        model.module(ANY)


def only_rank_0_steps() -> None:
    trained_on_other_data(rank_steps=on_rank_0)


def only_rank_0_schedules() -> None:
    trained_on_other_data(rank_schedules=on_rank_0)


def only_rank_0_loads() -> None:
    trained_on_other_data(when_to_load="before the training")


@pytest.mark.parametrize("work", [only_rank_0_steps, only_rank_0_schedules, only_rank_0_loads])
def test_weights_that_part_although_ddp_averages_are_said_with_their_ranks(work, said):
    (line,) = said(work, world_size=3)
    assert "had other weights on ranks 1 and 2 than on rank 0" in line


def only_rank_0_loads_at_the_end() -> None:
    trained_on_other_data(when_to_load="after the training")


def uneven_and_trained() -> None:
    model = DistributedDataParallel(Half(whole=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for batch in range(2 + dist.get_rank()):
            optimizer.zero_grad()
            model(torch.full((2,), batch + 1.0)).sum().backward()
            optimizer.step()


def weights_averaged_now_and_then() -> None:
    model = DistributedDataParallel(Half(whole=True))
    groups_of_one = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    state = PostLocalSGDState(None, groups_of_one[dist.get_rank()], start_localSGD_iter=1)
    model.register_comm_hook(state, post_localSGD_hook)
    trained(model, lambda model: model(torch.full((2,), dist.get_rank() + 1.0)).sum().backward())


def weights_in_another_order_and_half_precision() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 1))
    module = module.to(memory_format=torch.channels_last, dtype=torch.bfloat16)
    model = DistributedDataParallel(module)
    images = torch.full((1, 3, 3, 3), dist.get_rank() + 1.0, dtype=torch.bfloat16)
    trained(model, lambda model: model(images).sum().backward())


def half_frozen(wrap_anew: bool = False, by_hand: bool = False) -> None:
    """Gradual unfreezing, as in detectron2#2486."""
    module = Half(whole=True)
    module.unused.requires_grad_(False)
    model = DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    for step_number in range(4):
        if step_number == 2:
            module.unused.requires_grad_(True)
            if wrap_anew:
                model = DistributedDataParallel(module)
        optimizer.zero_grad()
        step(model)
        if by_hand and step_number >= 2:
            for weight in module.unused.parameters():
                dist.all_reduce(weight.grad)
        optimizer.step()


def converted(before: bool = False, after: bool = False) -> None:
    module = Half(whole=True)
    if before:
        module.half()
    model = DistributedDataParallel(module)
    if not after:
        model.half()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(ANY.to(module.used.weight.dtype)).sum().backward()
    optimizer.step()
    if after:
        model.half()


@pytest.mark.parametrize("work", [half_frozen, converted])
def test_parameters_that_ddp_does_not_listen_to_are_told_of(work, said):
    (line,) = said(work)
    assert "parameters of a DDP model whose gradients DDP did not average, on ranks 0 and 1" in line


@pytest.mark.parametrize(
    "work",
    [
        lambda: half_frozen(wrap_anew=True),
        lambda: half_frozen(by_hand=True),
        lambda: converted(before=True),
        lambda: converted(after=True),
    ],
)
def test_parameters_that_ddp_listens_to_or_somebody_else_averages_are_not(work, said):
    assert said(work) == []


def test_gradients_averaged_by_hand_in_half_precision_are_averaged(said):
    def work() -> None:
        model = DistributedDataParallel(Half(whole=True))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with model.no_sync():
            step(model)
        for parameter in model.parameters():
            half = parameter.grad.half()
            dist.all_reduce(half)
            parameter.grad.copy_(half / dist.get_world_size())
        optimizer.step()

    assert said(work) == []


def test_a_backward_pass_that_an_exception_ended_is_not_put_down_to_a_parameter(said):
    def work() -> None:
        model = DistributedDataParallel(Half(whole=True))

        def refuse(_gradient: torch.Tensor) -> None:
            raise ArithmeticError("nan found")

        model.module.unused.weight.register_hook(refuse)
        with contextlib.suppress(ArithmeticError):
            step(model)

    (line,) = said(work)
    assert "Either an exception ended it, or a parameter took no part in the loss" in line


def one_tensor_for_all() -> None:
    dist.all_gather([torch.zeros(2)] * 2, ANY)


def other_dtype_to_broadcast() -> None:
    dist.broadcast(torch.ones(3, dtype=torch.float32 if dist.get_rank() else torch.int32), 0)


def other_dtype_to_receive() -> None:
    if dist.get_rank():
        dist.recv(torch.ones(2, dtype=torch.float16), 0)
    else:
        dist.send(torch.ones(2, dtype=torch.bfloat16), 1)


def other_dtype_to_gather() -> None:
    mine = torch.ones(3, dtype=torch.float32 if dist.get_rank() else torch.int32)
    dist.all_gather([torch.zeros_like(mine) for _ in range(2)], mine)


def other_dtype_to_reduce_and_scatter() -> None:
    dtype = torch.float32 if dist.get_rank() else torch.int32
    dist.reduce_scatter_tensor(torch.ones(1, dtype=dtype), torch.ones(2, dtype=dtype))


def transposed_on_one_rank() -> None:
    dist.broadcast(torch.ones(2, 3) if dist.get_rank() else torch.ones(3, 2), 0)


def more_room_than_is_sent() -> None:
    dist.broadcast(torch.ones(6) if dist.get_rank() else torch.ones(4), 0)


def more_room_than_a_message() -> None:
    if dist.get_rank():
        dist.recv(torch.ones(6), 0)
    else:
        dist.send(torch.ones(4), 1)


def other_operator() -> None:
    dist.all_reduce(ANY.clone(), dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)


def a_column() -> None:
    dist.all_reduce(torch.ones(2, 2)[:, 0])


def a_view_on_one_rank() -> None:
    square = torch.ones(2, 2)
    dist.broadcast(square.t() if dist.get_rank() else square, 0)


def parts_that_are_views() -> None:
    square = torch.ones(2, 2)
    dist.scatter(square, None if dist.get_rank() else [square.t(), square.t()])


def a_view_to_receive() -> None:
    dist.all_to_all_single(torch.zeros(2, 2).t(), torch.ones(2, 2))


def nobody_waits() -> None:
    for _ in range(3):
        dist.all_reduce(ANY.clone(), async_op=True)


def only_the_last_is_waited_for() -> None:
    for _ in range(3):
        work = dist.all_reduce(ANY.clone(), async_op=True)
    work.wait()


def a_barrier_nobody_waits_for() -> None:
    dist.barrier(async_op=True)


WRONG = {
    one_tensor_for_all: "all_gather|was handed one tensor for several results on ranks 0 and 1",
    other_dtype_to_broadcast: "broadcast|was handed int32 on rank 0 and float32 on rank 1",
    other_dtype_to_receive: "recv|was handed bfloat16 on rank 0 and float16 on rank 1",
    other_dtype_to_gather: "all_gather|was handed int32 on rank 0 and float32 on rank 1",
    other_dtype_to_reduce_and_scatter: "reduce_scatter|was handed int32 on rank 0 and float32",
    transposed_on_one_rank: "broadcast|shape (3, 2) on rank 0 and shape (2, 3) on rank 1",
    more_room_than_is_sent: "broadcast|shape (4,) on rank 0 and shape (6,) on rank 1",
    more_room_than_a_message: "recv|shape (4,) on rank 0 and shape (6,) on rank 1",
    other_operator: "all_reduce|was to compute sum on rank 0 and max on rank 1",
    a_column: "all_reduce|was handed a tensor that is not contiguous on ranks 0 and 1",
    a_view_on_one_rank: "broadcast|was handed a tensor that is not contiguous on rank 1",
    parts_that_are_views: "scatter|was handed a tensor that is not contiguous on rank 0",
    a_view_to_receive: "all_to_all|was handed a tensor that is not contiguous on ranks 0 and 1",
    nobody_waits: "nobody has waited for all_reduce|on ranks 0 and 1",
    only_the_last_is_waited_for: "nobody has waited for all_reduce|on ranks 0 and 1",
    a_barrier_nobody_waits_for: "nobody has waited for barrier|so it held nobody up",
}


@pytest.mark.parametrize("work", WRONG)
def test_what_passes_and_is_wrong_is_said_once_with_its_line(work, said):
    (line,) = said(work)
    call, words = WRONG[work].split("|")
    assert f"{call} at test_silent.py, line" in line
    assert words in line


def test_a_barrier_that_nobody_waits_for_hides_no_other_call(said):
    def work() -> None:
        dist.barrier(async_op=True)
        dist.all_reduce(ANY.clone(), async_op=True)

    barrier, all_reduce = said(work)
    assert "nobody has waited for barrier at test_silent.py, line" in barrier
    assert "nobody has waited for all_reduce at test_silent.py, line" in all_reduce


def test_a_column_is_summed_wrongly_by_gloo_and_a_copy_is_not():
    def work() -> tuple[list, list]:
        column = torch.arange(4.0).view(2, 2)[:, 0]
        copy = column.clone()
        dist.all_reduce(column)
        dist.all_reduce(copy)
        return column.tolist(), copy.tolist()

    summed, right = launch(work, backend="gloo", device="cpu")[0]
    assert right == [0, 4]
    assert summed != right  # once torch mends it, nothing is to be said


def step(model: nn.Module) -> None:
    model(ANY).sum().backward()


def allows_unused() -> None:
    step(DistributedDataParallel(Half(), find_unused_parameters=True))


def frozen() -> None:
    model = Half()
    model.unused.requires_grad_(False)
    step(DistributedDataParallel(model))


def without_sync() -> None:
    model = DistributedDataParallel(Half(whole=True))
    step(model)
    with model.no_sync():
        step(model)


def without_sync_and_unused() -> None:
    model = DistributedDataParallel(Half())
    with model.no_sync():
        step(model)


def static_graph() -> None:
    model = DistributedDataParallel(Half(), static_graph=True)
    for _ in range(3):
        step(model)


def forward_alone() -> None:
    model = DistributedDataParallel(Half(whole=True))
    step(model)
    model(ANY)


def evaluated() -> None:
    model = DistributedDataParallel(Half()).eval()
    with torch.no_grad():
        model(ANY)


def uneven() -> None:
    model = DistributedDataParallel(Half(whole=True))
    with Join([model]):
        for _ in range(2 + dist.get_rank()):
            step(model)


def two_models() -> None:
    first, second = (DistributedDataParallel(Half(whole=True)) for _ in range(2))
    second(first(ANY).expand(2)).sum().backward()
    step(first)


def goes_away() -> None:
    model = DistributedDataParallel(Half(whole=True))
    step(model)
    del model
    step(Half())


def bits_alike() -> None:
    dtype = torch.bool if dist.get_rank() else torch.uint8
    dist.all_reduce(torch.ones(3, dtype=dtype), op=dist.ReduceOp.MAX)


def trained(model: nn.Module, gradients, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        gradients(model)
        optimizer.step()
        optimizer.zero_grad()


def averaged_by_hand() -> None:
    def gradients(model: nn.Module) -> None:
        step(model.module)
        for weight in model.parameters():
            dist.all_reduce(weight.grad)

    trained(DistributedDataParallel(Half(whole=True)), gradients)


def averaged_weights() -> None:
    model = DistributedDataParallel(Half(whole=True))
    trained(model, lambda model: step(model.module))
    with torch.no_grad():
        for weight in model.parameters():
            dist.all_reduce(weight, op=dist.ReduceOp.AVG)


def accumulated() -> None:
    def gradients(model: nn.Module) -> None:
        with model.no_sync():
            step(model)
        step(model)

    trained(DistributedDataParallel(Half(whole=True)), gradients)


def with_a_hook_of_its_own() -> None:
    model = DistributedDataParallel(Half(whole=True))

    def hook(state, bucket):
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, hook)
    trained(model, step)


def loaded_for_an_evaluation() -> None:
    model = DistributedDataParallel(Half(whole=True))
    model.module.load_state_dict(Half(whole=True).state_dict())
    trained(Half(whole=True), step)


def one_of_two_is_averaged() -> None:
    trained(DistributedDataParallel(Half(whole=True)), step)
    trained(DistributedDataParallel(Half(whole=True)), lambda model: step(model.module))


def waited_for() -> None:
    works = [dist.all_reduce(ANY.clone(), async_op=True) for _ in range(40)]
    for work in works:
        work.wait()


def polled() -> None:
    work = dist.all_reduce(ANY.clone(), async_op=True)
    while not work.is_completed():
        pass


def handed_on() -> None:
    futures = [dist.all_reduce(ANY.clone(), async_op=True).get_future() for _ in range(2)]
    torch.futures.wait_all(futures)


def met_at_a_barrier() -> None:
    dist.all_reduce(ANY.clone(), async_op=True)
    dist.barrier()


def in_a_batch() -> None:
    other = 1 - dist.get_rank()
    calls = [dist.P2POp(dist.isend, ANY, other), dist.P2POp(dist.irecv, ANY.clone(), other)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()


def views_that_gloo_copies() -> None:
    wide = torch.ones(2, 4)
    dist.all_gather([torch.zeros(2) for _ in range(2)], wide[:, 0])
    dist.all_gather_into_tensor(torch.zeros(4), wide[:, 0])
    dist.gather(wide[:, 0], None if dist.get_rank() else [torch.zeros(2) for _ in range(2)])
    dist.reduce_scatter_tensor(torch.zeros(1), wide[:, 0])


def views_that_lie_alike() -> None:
    image = torch.ones(1, 3, 2, 2).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    dist.broadcast(torch.ones(2, 3).t(), 0)
    dist.all_reduce(torch.ones(2, 2)[1:])


def other_shapes_in_the_same_order() -> None:
    dist.broadcast(torch.ones(6) if dist.get_rank() else torch.ones(2, 3), 0)
    dist.broadcast(torch.ones(3, 1) if dist.get_rank() else torch.ones(1, 3), 0)


def raw_bytes() -> None:
    if dist.get_rank():
        dist.recv(torch.empty(8, dtype=torch.uint8), 0)
    else:
        dist.send(torch.ones(2), 1)


def uneven_parts() -> None:
    rank = dist.get_rank()
    sizes = [[1, 2], [3, 4]]
    taken = [sizes[0][rank], sizes[1][rank]]
    out = torch.zeros(sum(taken))
    dist.all_to_all_single(out, torch.ones(sum(sizes[rank])), taken, sizes[rank])
    dist.all_gather_object([None, None], "x" * rank)
    dist.scatter_object_list([None], [1, "two"], src=0)


def of_no_elements() -> None:
    dist.all_gather([torch.zeros(0)] * 2, torch.zeros(0))


def tries_and_goes_on() -> None:
    with contextlib.suppress(RuntimeError):
        dist.reduce(ANY, dst=7)
    dist.all_reduce(ANY.clone())


RIGHT = [
    allows_unused, frozen, without_sync, without_sync_and_unused, static_graph, forward_alone,
    evaluated, uneven, two_models, goes_away, bits_alike, tries_and_goes_on, averaged_by_hand,
    averaged_weights, accumulated, with_a_hook_of_its_own, loaded_for_an_evaluation,
    one_of_two_is_averaged, waited_for, polled, handed_on, met_at_a_barrier, in_a_batch,
    views_that_gloo_copies, views_that_lie_alike,
    other_shapes_in_the_same_order, raw_bytes, uneven_parts, of_no_elements, trained_on_other_data,
    only_rank_0_loads_at_the_end, uneven_and_trained, weights_averaged_now_and_then,
    weights_in_another_order_and_half_precision,
]  # fmt: skip


@pytest.mark.parametrize("work", RIGHT)
def test_of_a_right_program_nothing_is_said(work, said):
    assert said(work) == []


def test_of_one_rank_which_has_nobody_to_average_with_nothing_is_said(said):
    assert said(lambda: step(DistributedDataParallel(Half())), world_size=1) == []
