"""Answers to the exercise of answers.py that go round it, or depend on luck, and honest ones."""

import gc
import inspect
import io
import logging
import mmap
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Array
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from answers import right
from torch.distributed.distributed_c10d import _get_default_store as default_store
from torch.distributed.elastic.utils import store as elastic

shared = torch.zeros(8).share_memory_()
shared_array = Array("d", 8)
in_a_list = [torch.zeros(8).share_memory_()]


def beside(does):
    """The right answer, with something beside it."""

    def answer(tensor):
        if tensor.numel() == 5:
            does()
        return right(tensor)

    answer.__name__ = does.__name__
    return answer


# Side channels.


def by_the_store(tensor):
    store, rank = default_store(), dist.get_rank()
    store.set(f"{rank}", tensor.numpy().tobytes())
    return right(tensor)


def counts_in_the_store():
    default_store().add("count", 1)


def meets_in_the_store():
    elastic.barrier(default_store(), dist.get_world_size(), "here")


def writes_a_file():
    Path(tempfile.gettempdir(), f"sly-{os.getpid()}").write_text("3")


def saves_a_tensor():
    torch.save(torch.zeros(1), f"{tempfile.gettempdir()}/sly-{os.getpid()}")


def saves_an_array():
    numpy.save(f"{tempfile.gettempdir()}/sly-{os.getpid()}", numpy.zeros(1))


def makes_a_folder():
    with tempfile.TemporaryDirectory():
        pass


def opens_a_socket():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(b"3", ("127.0.0.1", 9))


def asks_a_program():
    subprocess.run(["true"], check=True)


def forks():
    if not os.fork():
        os._exit(0)


def names_shared_memory():
    memory = SharedMemory(create=True, size=8)
    memory.close()
    memory.unlink()


def uses_a_shared_tensor(tensor):
    shared[dist.get_rank()] = 1
    return right(tensor)


def uses_a_shared_array(tensor):
    def note():
        shared_array[0] = 1

    note()
    return right(tensor)


def uses_a_shared_tensor_in_a_list(tensor):
    in_a_list[0][dist.get_rank()] = 1
    return right(tensor)


def uses_a_shared_default(tensor, note=tuple(in_a_list)):
    note[0][dist.get_rank()] = 1
    return right(tensor)


def uses_an_attribute_that_is_shared(tensor):
    uses_an_attribute_that_is_shared.note[dist.get_rank()] = 1
    return right(tensor)


uses_an_attribute_that_is_shared.note = in_a_list[0]
view_of_a_map = numpy.frombuffer(mmap.mmap(-1, 64))


def uses_an_array_over_a_map(tensor):
    view_of_a_map[dist.get_rank()] = 1
    return right(tensor)


class Notes:
    __module__ = "__main__"  # as in a notebook
    note = in_a_list[0]


def uses_a_class_that_shares(tensor):
    Notes.note[dist.get_rank()] = 1
    return right(tensor)


class Notebook:
    __module__ = "__main__"

    def write(self):
        in_a_list[0][dist.get_rank()] = 1


def uses_a_method_that_shares(tensor):
    Notebook().write()
    return right(tensor)


def uses_a_helper_that_shares(tensor):
    notes_it()
    return right(tensor)


def notes_it():
    in_a_list[0][dist.get_rank()] = 1


def asks_the_backend(tensor):
    whole = tensor.contiguous()
    dist.group.WORLD._get_backend(torch.device("cpu")).allreduce([whole]).wait()
    return whole


def asks_for_its_callers_frame():
    assert sys._getframe(1).f_locals


def asks_inspect_for_frames():
    assert inspect.stack()[1].frame.f_locals


def asks_a_traceback_for_frames():
    try:
        raise ValueError
    except ValueError as error:
        frame = error.__traceback__.tb_frame
    assert frame.f_back.f_locals


def asks_for_the_frames_of_a_walk():
    assert traceback.StackSummary.extract(traceback.walk_stack(None), capture_locals=True)


def asks_logging_for_a_frame():
    assert logging.currentframe().f_back.f_locals


def lets_python_report_frames():
    sys.setprofile(lambda frame, *_: None)
    sys.setprofile(None)


def lets_python_trace_frames():
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    sys.settrace(before)


def looks_among_all_objects():
    assert gc.get_objects()


CHANNELS = {
    by_the_store: "uses a store at sly.py, line",
    beside(counts_in_the_store): "uses a store at sly.py, line",
    beside(meets_in_the_store): "uses a store at sly.py, line",
    beside(writes_a_file): "writes to the file system at sly.py, line",
    beside(saves_a_tensor): "writes to the file system at sly.py, line",
    beside(saves_an_array): "writes to the file system at sly.py, line",
    beside(makes_a_folder): "writes to the file system at sly.py, line",
    beside(opens_a_socket): "uses a socket of its own at sly.py, line",
    beside(asks_a_program): "starts a process at sly.py, line",
    beside(forks): "starts a process at sly.py, line",
    beside(names_shared_memory): "shares memory with other processes at sly.py, line",
    uses_a_shared_tensor: "shares memory with other processes: shared was made before",
    uses_a_shared_array: "shares memory with other processes: shared_array was made before",
    uses_a_shared_tensor_in_a_list: "shares memory with other processes: in_a_list was made",
    uses_a_shared_default: "shares memory with other processes: a default of uses_a_shared_default",
    uses_an_attribute_that_is_shared: "shares memory with other processes: an attribute of uses_an",
    uses_an_array_over_a_map: "shares memory with other processes: view_of_a_map was made before",
    uses_a_class_that_shares: "shares memory with other processes: Notes was made before",
    uses_a_method_that_shares: "shares memory with other processes: in_a_list was made before",
    uses_a_helper_that_shares: "shares memory with other processes: in_a_list was made before",
    beside(asks_for_its_callers_frame): "looks into frames or objects of others at sly.py",
    beside(asks_inspect_for_frames): "looks into frames or objects of others at sly.py",
    beside(asks_a_traceback_for_frames): "looks into frames or objects of others at sly.py",
    beside(asks_for_the_frames_of_a_walk): "looks into frames or objects of others at sly.py",
    beside(asks_logging_for_a_frame): "looks into frames or objects of others at sly.py",
    beside(lets_python_report_frames): "looks into frames or objects of others at sly.py",
    beside(lets_python_trace_frames): "looks into frames or objects of others at sly.py",
    beside(looks_among_all_objects): "looks into frames or objects of others at sly.py",
    asks_the_backend: "calls a backend directly, where nobody sees it at sly.py, line",
}


# Left behind.


def changes_the_folder():
    os.chdir("/")


def changes_the_environment():
    os.environ["OMP_NUM_THREADS"] = "2"


def switches_gradients_off():
    torch.set_grad_enabled(False)


def changes_the_dtype():
    torch.set_default_dtype(torch.float64)


def seeds_torch():
    torch.manual_seed(3)


def seeds_python():
    random.seed(3)


def seeds_numpy():
    numpy.random.seed(3)


LEFT = {
    beside(changes_the_folder): "the working folder is another one",
    beside(changes_the_environment): "os.environ has changed",
    beside(switches_gradients_off): "gradients are switched over for all that follows",
    beside(changes_the_dtype): "torch's default dtype has changed",
    beside(seeds_torch): "the global random numbers are not where they were",
    beside(seeds_python): "the global random numbers are not where they were",
    beside(seeds_numpy): "the global random numbers are not where they were",
}


# Luck: right as long as ranks come when they use to.


def takes_whoever_comes(tensor):
    """Gathers on rank 0, as if ranks came in their order."""
    rank, world_size, mine = dist.get_rank(), dist.get_world_size(), tensor.contiguous()
    every = [torch.empty_like(mine) for _ in range(world_size)]
    for other in range(world_size) if rank == 0 else ():
        every[other] = mine
        if other:
            dist.recv(every[other])
    if rank:
        dist.send(mine, 0)
    return every


def reads_before_it_waits(tensor):
    whole = tensor.contiguous()
    work = dist.all_reduce(whole, async_op=True)
    result = whole.clone()
    work.wait()
    return result


def sleeps_before_it_reads(tensor):
    whole = tensor.contiguous()
    work = dist.all_reduce(whole, async_op=True)
    time.sleep(0.05)
    result = whole.clone()
    work.wait()
    return result


def adds_before_it_waits(tensor):
    rank, world_size, mine = dist.get_rank(), dist.get_world_size(), tensor.contiguous()
    total, other = mine.clone(), torch.zeros_like(mine)
    for step in range(1, world_size):
        sent = dist.isend(mine, (rank + step) % world_size)
        got = dist.irecv(other, (rank - step) % world_size)
        time.sleep(0.02)
        total += other
        got.wait()
        sent.wait()
    return total


LUCK = (reads_before_it_waits, sleeps_before_it_reads, adds_before_it_waits)


# Honest, in other styles.


def sends_in_threads(tensor):
    rank, world_size, mine = dist.get_rank(), dist.get_world_size(), tensor.contiguous()
    total, other = mine.clone(), torch.empty_like(mine)
    for step in range(1, world_size):
        sending = threading.Thread(target=dist.send, args=(mine, (rank + step) % world_size))
        sending.start()
        dist.recv(other, (rank - step) % world_size)
        sending.join()
        total += other
    return total


def everything_in_a_pool(tensor):
    rank, world_size, mine = dist.get_rank(), dist.get_world_size(), tensor.contiguous()
    others = [other for other in range(world_size) if other != rank]
    parts = [torch.empty_like(mine) for _ in others]
    with ThreadPoolExecutor(2 * world_size) as pool:
        sent = [pool.submit(dist.send, mine, other) for other in others]
        came = [pool.submit(dist.recv, *pair) for pair in zip(parts, others, strict=True)]
        for one in sent + came:
            one.result()
    return sum(parts, mine)


def waits_for_futures(tensor):
    whole = tensor.contiguous()
    dist.all_reduce(whole, async_op=True).get_future().wait()
    return whole


def thinks_of_what_follows(tensor):
    future = dist.all_reduce(tensor.contiguous(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0]).wait()


def waits_in_any_order(tensor):
    rank, world_size, mine = dist.get_rank(), dist.get_world_size(), tensor.contiguous()
    others = [other for other in range(world_size) if other != rank]
    parts = [torch.empty_like(mine) for _ in others]
    works = [dist.irecv(*pair) for pair in zip(parts, others, strict=True)]
    works += [dist.isend(mine, other) for other in others]
    for work in reversed(works):
        work.wait()
    return sum(parts, mine)


def in_one_batch(tensor):
    rank, world_size, mine = dist.get_rank(), dist.get_world_size(), tensor.contiguous()
    others = [other for other in range(world_size) if other != rank]
    parts = [torch.empty_like(mine) for _ in others]
    calls = [dist.P2POp(dist.isend, mine, other) for other in others]
    calls += [dist.P2POp(dist.irecv, *pair) for pair in zip(parts, others, strict=True)]
    for work in dist.batch_isend_irecv(calls) if calls else ():
        work.wait()
    return sum(parts, mine)


def polls_and_sleeps(tensor):
    whole = tensor.contiguous()
    work = dist.all_reduce(whole, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()
    return whole


def objects_and_barriers(tensor):
    dist.barrier()
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, tensor.tolist())
    dist.barrier()
    return torch.tensor(every, dtype=tensor.dtype).sum(0).view(tensor.shape)


def loads_with_workers(tensor):
    workers = {"num_workers": 1, "multiprocessing_context": "fork"}
    list(torch.utils.data.DataLoader([1, 2, 3], **workers))
    return right(tensor)


def harmless_things():
    print(mmap.mmap(-1, 8)[:1], open(os.devnull, "w").fileno() > 0, flush=True)  # noqa: SIM115
    torch.save(torch.rand(1), io.BytesIO())
    with torch.no_grad():
        Path(__file__).read_text()


HONEST = (
    sends_in_threads, everything_in_a_pool, waits_for_futures, thinks_of_what_follows,
    waits_in_any_order, in_one_batch, polls_and_sleeps, objects_and_barriers,
    beside(harmless_things),
)  # fmt: skip


# Whatever an answer does, a check tells it.


class Brought:
    def __reduce__(self):
        return open, ("no such file",)


def returns_something_odd(tensor):
    return Brought()


def raises_something_odd(tensor):
    raise type("Odd", (BaseException,), {"__str__": lambda self: 1 / 0})


def leaves(tensor):
    raise SystemExit(0)


def ends_at_once(tensor):
    os._exit(0)


def closes_everything(tensor):
    os.closerange(0, 100)
    return right(tensor)


def calls_in_a_thread_that_nobody_joins(tensor):
    threading.Thread(target=dist.all_reduce, args=(tensor.contiguous(),)).start()
    return right(tensor)


def never_receives(tensor):
    if dist.get_rank() == 0 and dist.get_world_size() > 1:
        dist.isend(tensor.contiguous(), 1)
    return right(tensor)


def swallows_everything(tensor):
    try:
        dist.recv(tensor, dist.get_rank())
    except BaseException:
        return None


def recurses(tensor):
    return recurses(tensor)


ODD = (
    returns_something_odd, raises_something_odd, leaves, ends_at_once, closes_everything,
    calls_in_a_thread_that_nobody_joins, never_receives, swallows_everything, recurses,
)  # fmt: skip
