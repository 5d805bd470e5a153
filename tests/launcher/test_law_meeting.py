"""The law of launch, lines 2 and 3: threads that a fork leaves behind, and where ranks meet."""

import importlib
import inspect
import multiprocessing
import os
import socket
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from deadline import long_enough
from torch import nn
from torch.utils.data import DataLoader

from course_utils import WorkerError, launch
from course_utils.launcher import rendezvous, worker_group

pytestmark = pytest.mark.usefixtures("nothing_left")
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def total() -> float:
    tensor = torch.full((1000,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return tensor[0].item()


def parallel_work() -> int:
    """Operations that torch spreads over threads; returns how many it may use."""
    square = torch.ones(1500, 1500)
    assert (square @ square)[0, 0] == 1500
    nn.Conv2d(3, 16, 3)(torch.ones(16, 3, 64, 64)).sum().backward()
    torch.ones(3_000_000, requires_grad=True).sin().sum().backward()
    torch.linalg.svd(torch.ones(200, 200))
    return torch.get_num_threads()


@pytest.fixture(scope="module")
def a_kernel_that_has_used_threads():
    old = torch.get_num_threads()
    torch.set_num_threads(max(2, old))
    yield parallel_work()
    torch.set_num_threads(old)


def test_law_2_ranks_work_after_the_kernel_used_threads(a_kernel_that_has_used_threads):
    assert a_kernel_that_has_used_threads > 1
    assert list(launch(parallel_work, world_size=3)) == [1, 1, 1]


def test_law_2_the_threads_of_the_kernel_work_afterwards(a_kernel_that_has_used_threads):
    launch(parallel_work)
    assert parallel_work() == a_kernel_that_has_used_threads


def work_on_two_threads() -> int:
    torch.set_num_threads(2)
    return parallel_work()


def test_law_2_a_rank_may_ask_for_more_threads(a_kernel_that_has_used_threads):
    assert list(launch(work_on_two_threads, timeout=30)) == [2, 2]


def test_law_2_a_rank_may_do_so_while_others_compute(a_kernel_that_has_used_threads):
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            parallel_work()

    with ThreadPoolExecutor(1) as pool:
        computing = pool.submit(compute)
        try:
            assert list(launch(work_on_two_threads, timeout=60)) == [2, 2]
        finally:
            over.set()
        computing.result()


def test_law_2_a_process_whose_threads_did_not_survive_a_fork_launches(
    a_kernel_that_has_used_threads,
):
    parallel_work()
    process = multiprocessing.get_context("fork").Process(target=launch, args=(os.getpid,))
    process.start()
    process.join(60)
    process.kill()
    process.join()
    assert process.exitcode == 0


def test_law_2_a_rank_of_a_thread_has_one_thread_too(a_kernel_that_has_used_threads):
    results = []
    thread = threading.Thread(target=lambda: results.extend(launch(parallel_work)))
    thread.start()
    thread.join()
    assert results == [1, 1]


def listening() -> list[str]:
    """Where this process and its threads accept connections, while its group is alive."""
    total()
    dist.new_group([0, 1])
    dist.barrier()
    connections = psutil.Process().net_connections(kind="inet")
    found = [c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN]
    found += [c.laddr.ip for c in connections if c.type == 2]  # UDP
    dist.barrier()
    return found


def joining(fn) -> object:
    dist.init_process_group("gloo")
    return fn()


def test_law_3_nothing_listens_beyond_loopback_in_a_group_made_by_launch():
    for addresses in launch(listening, world_size=3):
        assert set(addresses) == {"127.0.0.1"}


def test_law_3_nothing_listens_beyond_loopback_in_a_group_made_by_the_learner():
    results = launch(joining, listening, world_size=3, backend=None)
    for addresses in results:
        assert set(addresses) == {"127.0.0.1"}
    assert len(results[0]) == len(results[1]) + 1  # rank 0 serves the store


def test_law_3_a_listener_on_all_interfaces_would_be_seen():
    def everywhere() -> list[str]:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        return listening() if store.port else []

    for addresses in launch(everywhere):
        assert {"::", "0.0.0.0"} & set(addresses)


def test_law_3_the_kernel_itself_never_listens(monkeypatch):
    def listening(process: int) -> list[tuple[str, int]]:
        seen = psutil.Process(process).net_connections(kind="inet")
        return sorted(c.laddr for c in seen if c.status == psutil.CONN_LISTEN)

    before = listening(os.getpid())  # a server of other tests, in the same process
    assert list(launch(lambda: listening(os.getppid()))) == [before, before]


@linux
def test_law_3_the_store_of_a_group_has_no_name_and_no_port(monkeypatch):
    def where(path: str, size: int) -> None:
        raise OSError(os.readlink(path))

    monkeypatch.setattr(dist, "FileStore", where)
    with pytest.raises(WorkerError, match=r"OSError: /memfd:rendezvous \(deleted\)"):
        launch(total, world_size=1)


def test_law_3_without_anonymous_files_the_store_is_in_a_private_folder(monkeypatch):
    def where(path: str, size: int) -> None:
        raise OSError(stat.filemode(Path(path).parent.stat().st_mode))

    monkeypatch.setattr(rendezvous.os.path, "exists", lambda path: False)
    assert list(launch(total)) == [3.0, 3.0]
    monkeypatch.setattr(dist, "FileStore", where)
    with pytest.raises(WorkerError, match="OSError: drwx------"):
        launch(total, world_size=1)


def test_law_3_a_port_is_of_one_launch_alone():
    ports = {launch(os.getenv, "MASTER_PORT", world_size=1)[0] for _ in range(5)}
    assert len(ports) > 1
    assert ports.isdisjoint({"29500", None})


@pytest.mark.parametrize("backend", ["gloo", None])
def test_law_3_launches_at_the_same_time_do_not_meet(backend):
    work = (joining, total) if backend is None else (total,)
    results = {}

    def one(number: int) -> None:
        for turn in range(4):
            found = launch(*work, world_size=number + 2, backend=backend)
            results[number, turn] = list(found)

    threads = [threading.Thread(target=one, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {(n, t): [(3.0, 6.0)[n]] * (n + 2) for n in (0, 1) for t in range(4)}


def published(port: int, host: str = "localhost") -> float:
    """The `setup()` of many tutorials."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = host, str(port)
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=3)
    return total()


def a_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_law_3_a_setup_with_a_port_of_its_own_works_as_under_plain_python():
    assert list(launch(published, a_free_port(), world_size=3, backend=None)) == [6.0] * 3


def test_law_3_a_port_of_its_own_that_is_taken_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as somebody_else:
        taken = somebody_else.getsockname()[1]
        with pytest.raises(WorkerError, match=r"^rank 0 failed: .*EADDRINUSE"):
            launch(published, taken, "127.0.0.1", world_size=3, backend=None)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who listens")
@pytest.mark.parametrize("world_size", [2, 3])
def test_law_3_whichever_rank_is_late_at_a_port_the_words_are_the_same(world_size, monkeypatch):
    port = a_free_port()
    monkeypatch.setattr(worker_group, "_GRACE_S", long_enough(worker_group._GRACE_S))

    def all_are_rank_0(first: int) -> None:
        time.sleep(0 if int(os.environ["RANK"]) == first else 0.3)
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", address, rank=0, world_size=world_size)

    told = set()
    for first in (0, 1):
        with pytest.raises(WorkerError) as caught:
            launch(all_are_rank_0, first, world_size=world_size, backend=None)
        told.add(str(caught.value))
    (words,) = told
    racing = "0 and 1" if world_size == 2 else "0, 1 and 2"
    assert words.startswith(f"of ranks {racing}, all but one failed: DistNetworkError: ")
    assert "each of these ranks wants to listen on that port, as rank 0 does" in words
    assert "stopped" not in words


def test_law_3_the_port_of_launch_may_be_written_as_an_address():
    def joining_by_address() -> float:
        address = "tcp://{MASTER_ADDR}:{MASTER_PORT}".format_map(os.environ)
        dist.init_process_group("gloo", address, rank=int(os.environ["RANK"]), world_size=3)
        return total()

    assert list(launch(joining_by_address, world_size=3, backend=None)) == [6.0] * 3


def test_law_3_torch_asks_who_serves_a_store_where_launch_answers():
    torchs = importlib.import_module("torch.distributed.rendezvous")
    assert inspect.signature(torchs._agent_store_serves).parameters.keys() == {"hostname", "port"}
    assert "_agent_store_serves(hostname, port)" in inspect.getsource(torchs._create_c10d_store)


def test_the_environment_is_that_of_torchrun():
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    seen = launch(lambda: [int(os.environ[name]) for name in names], world_size=4, nodes=2)
    assert list(seen) == [[0, 0, 0, 4, 2], [1, 1, 0, 4, 2], [2, 0, 1, 4, 2], [3, 1, 1, 4, 2]]


def made_again() -> list[float]:
    """Once: the store of a third group would still hold the addresses of the second."""
    sums = [total()]
    dist.destroy_process_group()
    dist.init_process_group("gloo")
    return [*sums, total()]


def asked_from_afar() -> list[float]:
    me, peer = dist.get_rank(), 1 - dist.get_rank()
    rpc = importlib.import_module("torch.distributed.rpc")
    rpc.init_rpc(f"worker{me}", rank=me, world_size=2)
    found = rpc.rpc_sync(f"worker{peer}", torch.add, args=(torch.ones(2), me))
    rpc.shutdown()
    return found.tolist()


def a_client_of_the_store() -> bytes:
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(*address, is_master=False)
    store.set(f"from {dist.get_rank()}", "hello")
    return store.get(f"from {1 - dist.get_rank()}")


def in_threads() -> list[float]:
    sums, groups = [], [dist.new_group([0, 1]) for _ in range(2)]

    def add(group: dist.ProcessGroup) -> None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor, group=group)
        sums.append(tensor.item())

    threads = [threading.Thread(target=add, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sums


ALLOWED_IN_A_SCRIPT = {
    made_again: [[3.0] * 2] * 2,
    asked_from_afar: [[1.0, 1.0], [2.0, 2.0]],
    a_client_of_the_store: [b"hello"] * 2,
    in_threads: [[2.0] * 2] * 2,
}


@pytest.mark.parametrize("used", [False, True])
def test_a_loader_in_a_rank_knows_the_cells_where_python_would_not_fork(monkeypatch, used):
    class Squares(torch.utils.data.Dataset):  # local, as a class of a cell: cannot be pickled
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index**2

    choice = multiprocessing.context._default_context
    server = multiprocessing.get_context("forkserver")  # the default on Linux since Python 3.14
    monkeypatch.setattr(choice, "_default_context", server)
    monkeypatch.setattr(choice, "_actual_context", server if used else None)

    def work() -> tuple[str, list]:
        loaded = list(DataLoader(Squares(), num_workers=1))
        return multiprocessing.get_start_method(), torch.cat(loaded).tolist()

    assert list(launch(work, backend=None)) == [("fork", [0, 1, 4, 9])] * 2
    assert multiprocessing.get_start_method() == "forkserver"


@pytest.mark.parametrize(("work", "wanted"), ALLOWED_IN_A_SCRIPT.items())
def test_law_3_what_a_script_may_do_works_in_the_group_of_launch(work, wanted):
    assert list(launch(work)) == wanted


def test_law_3_without_what_torch_keeps_private_ranks_meet_all_the_same(monkeypatch):
    torchs = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.delattr(torchs, "_torchelastic_use_agent_store")
    assert list(launch(total)) == [3.0, 3.0]
    monkeypatch.setattr(torchs, "_torchelastic_use_agent_store", lambda: True, raising=False)
    assert list(launch(joining, total, backend=None)) == [3.0, 3.0]


def test_law_3_nccl_has_no_service_on_a_port_of_its_own_unless_one_asks_for_it(monkeypatch):
    assert launch(os.getenv, "NCCL_RAS_ENABLE", world_size=1)[0] == "0"
    with monkeypatch.context() as patch:
        patch.setenv("NCCL_RAS_ENABLE", "1")
        assert launch(os.getenv, "NCCL_RAS_ENABLE", world_size=1)[0] == "1"
