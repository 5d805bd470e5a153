"""What a recording holds, against counts made by hand, and that recording changes nothing."""

import copy
import gc
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from deadline import hung
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from course_checks.rules import unwaited
from course_utils import Network, WorkerError, WorkerTimeout, explore, launch
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.network.trace import Event, Trace
from course_utils.record import hooks
from course_utils.record.waits import Waits


def rank_and_size() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def every_collective() -> float:
    """Call twelve collectives on tensors of known sizes; return something of all results."""
    rank, n = rank_and_size()
    one = torch.arange(6.0) + rank  # 24 bytes
    parts = [torch.full((2,), float(rank + k)) for k in range(n)]  # 8 bytes each
    got, flat = [torch.zeros(2) for _ in range(n)], torch.cat(parts)
    out, whole = torch.zeros(2), torch.zeros(2 * n)
    dist.broadcast(one, 1)
    dist.reduce(one, 1, op=dist.ReduceOp.MAX)
    dist.all_reduce(one, op=dist.ReduceOp.PRODUCT)
    dist.gather(parts[0], got if rank == 1 else None, dst=1)
    dist.scatter(out, parts if rank == 1 else None, src=1)
    dist.all_gather(got, parts[0])
    dist.all_gather_into_tensor(whole, parts[0])
    dist.reduce_scatter(out, parts)
    dist.reduce_scatter_tensor(out, flat)
    dist.all_to_all(got, parts)
    dist.all_to_all_single(whole, flat)
    dist.barrier()
    return float(whole.sum() + out.sum() + sum(map(torch.sum, got)))


def on_rank(trace: Trace, rank: int) -> list[tuple[str, int]]:
    """What a rank did, in order, as (kind, bytes), without its waits."""
    return [(e.kind, e.bytes) for e in trace.of_rank(rank) if e.kind != "wait"]


def uneven_all_to_all() -> None:
    rank, _ = rank_and_size()
    splits = [1, 3] if rank == 0 else [2, 1]
    takes = [1, 2] if rank == 0 else [3, 1]
    out = torch.zeros(sum(takes), 5)
    dist.all_to_all_single(out, torch.zeros(sum(splits), 5), takes, splits)


def messages() -> float:
    """Blocking, non-blocking, batched, tagged, and from any source."""
    rank, _ = rank_and_size()
    mine, other = torch.full((3,), float(rank)), torch.zeros(3)
    if rank == 0:
        dist.send(mine, 1)
        dist.recv(other, tag=5)
    else:
        dist.recv(other, 0)
        dist.send(mine, 0, tag=5)
    works = [dist.isend(mine, 1 - rank), dist.irecv(other, 1 - rank)]
    for work in works:
        work.wait()
    batch = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return float(other.sum())


def in_groups() -> None:
    rank, _ = rank_and_size()
    pairs = [dist.new_group([0, 1]), dist.new_group([3, 2])]
    dist.all_reduce(torch.ones(4), group=pairs[rank // 2])
    dist.broadcast(torch.ones(2), group=pairs[rank // 2], src=2 * (rank // 2) + 1)


def two_steps(wrap: object) -> list[float]:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        loss = model(torch.full((3, 4), step + 1.0)).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def fsdp(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


def unevenly_joined() -> None:
    model = DistributedDataParallel(nn.Linear(4, 1))
    with Join([model]):
        for _ in range(2 + dist.get_rank()):
            model(torch.ones(2, 4)).sum().backward()


def accumulating() -> None:
    model = DistributedDataParallel(nn.Linear(4, 1))
    with model.no_sync():
        model(torch.ones(1, 4)).sum().backward()
    model(torch.ones(1, 4)).sum().backward()


def functional() -> float:
    from torch.distributed import _functional_collectives as functional

    return float(functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD).sum())


def fails() -> None:
    dist.all_reduce(torch.ones(1))
    raise ValueError("on purpose")


def waits_for_ever() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.irecv(torch.ones(1), 0).wait()


def test_a_recorded_rank_that_fails_is_reported_like_any_other(no_hurry):
    with pytest.raises(WorkerError, match=r"ranks 0 and 1 failed: ValueError: on purpose"):
        launch(fails, trace=True)


@pytest.fixture(scope="module")
def hang():
    return hung(lambda seconds: launch(waits_for_ever, trace=True, timeout=seconds), 2)


def test_a_recorded_hang_names_the_lines_where_the_ranks_wait(hang):
    assert "rank 0: waiting in all_reduce at test_trace.py, line" in str(hang)
    assert "rank 1: waiting in wait at test_trace.py, line" in str(hang)


def test_a_hang_leaves_a_trace_of_what_never_finished(hang):
    seen = [(e.rank, e.kind, e.finished, e.of) for e in hang.trace]
    assert seen == [
        (0, "all_reduce", False, None), (1, "recv", False, None), (1, "wait", False, 0),
    ]  # fmt: skip
    assert all(event.end_s == hang.trace.ended_s[event.rank] > 1.9 for event in hang.trace)


def test_who_is_stopped_last_does_not_see_the_others_end(monkeypatch):
    """A rank whose peer is gone gets an error, which ends the call in which it hung."""
    signal_all = WorkerHandle.signal_all

    def slowly(member, number):
        signal_all(member, number)
        time.sleep(0.1)

    monkeypatch.setattr(WorkerHandle, "signal_all", slowly)
    with pytest.raises(WorkerTimeout) as caught:
        launch(waits_for_ever, trace=True, timeout=1)
    assert not any(event.finished for event in caught.value.trace)


def test_a_failure_leaves_a_trace_of_what_was_done_before(no_hurry):
    with pytest.raises(WorkerError) as caught:
        launch(fails, trace=True)
    assert [(e.kind, e.finished) for e in caught.value.trace] == [("all_reduce", True)] * 2


def test_a_rank_that_is_killed_leaves_its_trace_as_well():
    def dies() -> None:
        dist.all_reduce(torch.ones(1))
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(WorkerError, match="died of SIGKILL") as caught:
        launch(dies, trace=True)
    assert [event.kind for event in caught.value.trace] == ["all_reduce"] * 2


def test_a_failure_without_recording_has_no_trace():
    with pytest.raises(WorkerError) as caught:
        launch(fails)
    assert caught.value.trace is None


@pytest.mark.parametrize(
    "use", [Trace.traffic, lambda trace: trace.replay(Network(latency_us=1, gbit_s=1)), explore]
)
def test_the_trace_of_a_failed_launch_is_not_replayed_or_counted(hang, use):
    with pytest.raises(ValueError, match=r"a launch that failed.*plot_timeline\(error\.trace\)"):
        use(hang.trace)


def test_the_trace_of_a_failed_launch_stays_one_on_disk(hang, tmp_path):
    hang.trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == hang.trace
    assert hang.trace.failed


def test_a_trace_can_be_copied_also_when_it_was_replayed():
    trace = launch(messages, trace=True).trace
    trace.replay(Network(10, 80))
    assert copy.deepcopy(trace) == trace


def test_a_result_that_cannot_travel_is_named_by_its_own_type():
    with pytest.raises(WorkerError, match="its result, a function, cannot be sent back"):
        launch(lambda: lambda: 1, trace=True)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "other"}', "null", '{"events": [], "ended": [[]]}']
)
def test_what_is_no_saved_trace_is_refused(tmp_path, text):
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ValueError, match=r"trace\.json is not a trace"):
        Trace.load(tmp_path / "trace.json")


def test_a_launch_has_no_trace_unless_asked():
    assert launch(rank_and_size).trace is None


def test_works_that_are_thrown_away_are_let_go_of():
    def work() -> int:
        for _ in range(400):
            dist.all_reduce(torch.ones(1), async_op=True)
        (waits,) = (thing for thing in gc.get_objects() if isinstance(thing, Waits))
        held = len(waits.pending)
        dist.barrier()
        return held

    assert max(launch(work, trace=True)) < 200


def test_a_call_of_a_thread_that_does_something_else_before_begins_when_it_is_made():
    def work() -> None:
        has_met = threading.Event()

        def average() -> None:
            has_met.wait()
            dist.all_reduce(torch.ones(1))

        thread = threading.Thread(target=average)
        thread.start()
        dist.barrier()
        has_met.set()
        thread.join()

    barrier, all_reduce = launch(work, trace=True).trace.of_rank(0)
    assert (barrier.kind, all_reduce.kind) == ("barrier", "all_reduce")
    assert all_reduce.start_s >= barrier.end_s


@pytest.mark.parametrize("n", [2, 3])
def test_twelve_collectives_have_the_bytes_counted_by_hand(n):
    plain = launch(every_collective, world_size=n)
    recorded = launch(every_collective, world_size=n, trace=True)
    assert list(recorded) == list(plain)
    counted = [
        ("broadcast", 24), ("reduce", 24), ("all_reduce", 24), ("gather", 8), ("scatter", 8),
        ("all_gather", 8), ("all_gather", 8), ("reduce_scatter", 8 * n),
        ("reduce_scatter", 8 * n), ("all_to_all", 8 * n), ("all_to_all", 8 * n), ("barrier", 0),
    ]  # fmt: skip
    assert on_rank(recorded.trace, 0) == counted
    counted[4] = ("scatter", 8 * n)  # the root hands in a part for each
    assert on_rank(recorded.trace, 1) == counted


def test_a_collective_knows_operator_root_dtype_shape_and_group():
    events = launch(every_collective, trace=True).trace.of_rank(0)
    assert [e.op for e in events if e.op] == ["max", "product", "sum", "sum"]
    assert [e.root for e in events[:5]] == [1, 1, None, 1, 1]
    assert (events[0].dtype, events[0].shape, events[0].group) == ("float32", (6,), (0, 1))
    assert all(e.blocking and e.start_s <= e.end_s for e in events)


def test_uneven_parts_are_known():
    trace = launch(uneven_all_to_all, trace=True).trace
    assert [event.parts for event in trace] == [(20, 60), (40, 20)]
    assert trace.traffic("direct").bytes == ((0, 60), (40, 0))


def test_messages_of_every_style_have_peer_tag_and_their_waits():
    plain, recorded = launch(messages), launch(messages, trace=True)
    assert list(recorded) == list(plain)
    seen = [(e.kind, e.bytes, e.peer, e.tag, e.blocking, e.of) for e in recorded.trace.of_rank(0)]
    isend, irecv = ("send", 12, 1, 0, False, None), ("recv", 12, 1, 0, False, None)
    assert seen[:2] == [("send", 12, 1, 0, True, None), ("recv", 12, 1, 5, True, None)]
    for first in (2, 6):
        waits = [("wait", 12, 1, None, False, first + k) for k in range(2)]
        assert seen[first : first + 4] == [isend, irecv, *waits]
    assert recorded.trace.traffic().messages == ((0, 3), (3, 0))
    assert recorded.trace.traffic().sent_bytes == (36, 36)


def test_an_event_stands_at_the_learners_line():
    event = launch(in_groups, world_size=4, trace=True).trace.of_rank(0)[0]
    assert event.code == "dist.all_reduce(torch.ones(4), group=pairs[rank // 2])"
    assert event.place.startswith("test_trace.py, line ")
    assert event.place.endswith(", in in_groups")
    assert repr(event) == f"rank 0: all_reduce of 16 bytes at {event.place}: {event.code}"


def test_the_recording_follows_into_new_groups_with_global_ranks():
    trace = launch(in_groups, world_size=4, trace=True).trace
    assert [event.group for event in trace if event.kind == "all_reduce"] == [
        (0, 1), (0, 1), (2, 3), (2, 3),
    ]  # fmt: skip
    assert [event.root for event in trace if event.kind == "broadcast"] == [1, 1, 3, 3]
    assert trace.traffic().bytes[0][2:] == (0, 0)


def test_a_group_that_the_learner_makes_is_recorded_as_well():
    def main() -> None:
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2))

    trace = launch(main, backend=None, trace=True).trace
    assert on_rank(trace, 1) == [("all_reduce", 8)]


def test_an_asynchronous_collective_is_followed_by_its_wait():
    def both() -> None:
        first, second = (dist.all_reduce(torch.ones(k), async_op=True) for k in (1, 2))
        while not second.is_completed():
            pass
        second.wait()
        first.get_future().wait()

    events = launch(both, trace=True).trace.of_rank(1)
    assert [(e.kind, e.blocking, e.of) for e in events] == [
        ("all_reduce", False, None), ("all_reduce", False, None), ("wait", False, 1),
        ("wait", False, 0),
    ]  # fmt: skip


def test_a_collective_whose_work_has_no_future_is_recorded_as_well():
    def scatter():
        part = torch.zeros(2)
        dist.reduce_scatter_tensor(part, torch.ones(4), async_op=True).wait()
        return part.tolist()

    results = launch(scatter, world_size=2, backend="gloo", trace=True)
    assert results[0] == [2, 2]
    assert [event.kind for event in results.trace.of_rank(1)] == ["reduce_scatter", "wait"]
    assert all(event.end_s is not None for event in results.trace)


def test_object_collectives_are_their_sizes_and_their_bytes():
    def objects() -> list:
        found = [None] * 2
        dist.all_gather_object(found, {"rank": dist.get_rank()})
        return found

    results = launch(objects, trace=True)
    assert results[0] == [{"rank": 0}, {"rank": 1}]
    assert [kind for kind, _ in on_rank(results.trace, 0)] == ["all_gather", "all_gather"]
    assert on_rank(results.trace, 0)[0] == ("all_gather", 8)


def test_ddp_checks_shapes_broadcasts_once_and_reduces_one_bucket_per_step():
    results = launch(two_steps, DistributedDataParallel, trace=True)
    assert list(results) == list(launch(two_steps, DistributedDataParallel))
    weights = 4 * (4 * 8 + 8 + 8 * 2 + 2)
    done = on_rank(results.trace, 0)
    assert done[0] == ("all_gather", 8)
    assert ("broadcast", weights) in done
    reduced = [e for e in results.trace.of_rank(0) if e.kind == "all_reduce"]
    assert [(e.bytes, e.op, e.code) for e in reduced] == [(weights, "sum", "loss.backward()")] * 2
    waits = [e.of for e in results.trace.of_rank(0) if e.kind == "wait"]
    assert waits == [e.index for e in reduced]


def test_ddp_with_small_buckets_reduces_each_of_them():
    def wrap(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, bucket_cap_mb=1e-4)

    trace = launch(two_steps, wrap, trace=True).trace
    second = [e.bytes for e in trace.of_rank(1) if e.kind == "all_reduce"][-4:]
    assert len(second) > 2
    assert sum(second) % 4 == 0


def test_work_started_in_backward_is_waited_for_where_the_learner_waits():
    def step():
        weight, started = torch.ones(3, requires_grad=True), []
        weight.register_hook(lambda g: started.append(dist.all_reduce(g.clone(), async_op=True)))
        weight.sum().backward()
        for work in started:
            work.wait()

    for rank in range(2):
        waits = [e for e in launch(step, trace=True).trace.of_rank(rank) if e.kind == "wait"]
        assert [e.code for e in waits] == ["work.wait()"]


def reduce_halves(_, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    sent = dist.all_reduce(bucket.buffer().bfloat16(), async_op=True).get_future()
    return sent.then(lambda future: future.value()[0].float())


def test_work_started_by_a_communication_hook_is_waited_for_when_backward_ends():
    def step():
        model = DistributedDataParallel(nn.Linear(3, 1))
        model.register_comm_hook(None, reduce_halves)
        model(torch.ones(1, 3)).sum().backward()

    waits = [e for e in launch(step, trace=True).trace.of_rank(0) if e.kind == "wait"]
    assert [e.code for e in waits] == ["model(torch.ones(1, 3)).sum().backward()"]


def test_no_sync_sends_nothing_until_the_next_backward():
    trace = launch(accumulating, trace=True).trace
    assert [b for kind, b in on_rank(trace, 0) if kind == "all_reduce"] == [20]


def test_fsdp2_gathers_parameters_and_scatters_gradients():
    results = launch(two_steps, fsdp, trace=True)
    assert list(results) == list(launch(two_steps, fsdp))
    events = results.trace.of_rank(0)
    kinds = [e.kind for e in events if e.kind != "wait"]
    assert kinds.count("reduce_scatter") == 2
    assert kinds.count("all_gather") >= 2
    assert {e.op for e in events if e.kind == "reduce_scatter"} == {"avg"}


def test_a_rank_that_has_joined_early_still_meets_the_others():
    trace = launch(unevenly_joined, trace=True).trace
    assert unwaited(trace) is None
    assert trace.traffic("ring").sent_messages[0] > 0
    reduced = [[e for e in trace.of_rank(rank) if e.kind == "all_reduce"] for rank in range(2)]
    assert [e.op for e in reduced[0]] == [e.op for e in reduced[1]]


def test_functional_collectives_are_recorded():
    results = launch(functional, trace=True)
    assert results == [6.0, 6.0]
    (event,) = results.trace.of_rank(0)
    assert (event.kind, event.bytes, event.op, event.blocking) == ("all_reduce", 12, "sum", True)


def test_ranks_share_one_clock():
    trace = launch(every_collective, world_size=3, trace=True).trace
    barriers = [event for event in trace if event.kind == "barrier"]
    assert max(e.start_s for e in barriers) <= min(e.end_s for e in barriers)
    assert all(e.end_s <= trace.ended_s[e.rank] for e in barriers)


def test_a_trace_is_the_same_after_a_trip_through_json(tmp_path):
    trace = launch(messages, trace=True).trace
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == trace
    assert repr(trace) == "Trace(2 ranks, 20 events)"


def test_the_kernels_torch_is_as_it_was():
    wait, register = hooks.c10d.Work.wait, hooks.c10d._register_pg_in_world
    launch(messages, trace=True)
    assert (hooks.c10d.Work.wait, hooks.c10d._register_pg_in_world) == (wait, register)


def test_an_event_without_a_line_says_so():
    event = Event(rank=0, index=0, kind="barrier", bytes=0, start_s=0, end_s=0)
    assert repr(event) == "rank 0: barrier at outside of your code"


@pytest.mark.slow
def test_sixty_four_ranks_add_up_and_are_recorded():
    def sums() -> float:
        x = torch.full((64,), float(dist.get_rank()))
        dist.all_reduce(x)
        return x.sum().item()

    results = launch(sums, world_size=64, trace=True)
    assert results == [64 * 63 * 32.0] * 64
    assert [event.bytes for event in results.trace] == [256] * 64
    assert results.trace.replay(Network(latency_us=1, gbit_s=8)).finish_us[0] > 126


def fork_one_that_adds_alone() -> int:
    if not (pid := os.fork()):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(1))
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def test_what_a_process_calls_that_a_rank_has_forked_is_not_in_the_recording():
    results = launch(fork_one_that_adds_alone, world_size=1, backend=None, trace=True)
    assert results == [0]
    assert list(results.trace) == []
