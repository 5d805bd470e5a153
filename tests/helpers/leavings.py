"""What a program leaves to its end, each in a file of its own: for launch, and for torchrun."""

import atexit
import concurrent.futures
import gzip
import importlib.util
import logging.handlers
import multiprocessing
import multiprocessing.util
import os
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

KEPT = []  # as a global of a notebook or a script


def write(path: Path, text: str, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    path.write_text(text)


def a_file_in_a_global(path: Path) -> None:
    KEPT.append(path.open("w"))
    KEPT[-1].write("global")


def a_file_in_a_cycle(path: Path) -> None:
    holder = {"file": path.open("w")}
    holder["itself"] = holder
    holder["file"].write("cycle")


def a_compressed_file(path: Path) -> None:
    KEPT.append(gzip.open(path, "wt"))  # noqa: SIM115, it stays open
    KEPT[-1].write("compressed")


def a_thread_that_saves(path: Path) -> None:
    threading.Thread(target=write, args=(path, "thread", 0.2)).start()


def a_daemon_thread_that_saves(path: Path) -> None:
    """It is not waited for."""
    threading.Thread(target=write, args=(path, "daemon", 100), daemon=True).start()


def a_pool_of_threads(path: Path) -> None:
    pool = concurrent.futures.ThreadPoolExecutor()
    pool.submit(write, path, "pool", 0.2)


def a_function_at_exit(path: Path) -> None:
    atexit.register(write, path, "atexit")


def a_finalizer(path: Path) -> None:
    KEPT.append(threading.Event())
    weakref.finalize(KEPT[-1], write, path, "finalizer")


def a_temporary_folder(path: Path) -> None:
    """Its name is written down; what it names is gone afterwards."""
    KEPT.append(tempfile.TemporaryDirectory(dir=path.parent, prefix="temporary"))


def holds_a_temporary_folder(says: Connection) -> None:
    """In a process of its own, such as a DataLoader's worker: until it is killed."""
    says.send(multiprocessing.util.get_temp_dir())
    time.sleep(600)


def a_handler_of_logging(path: Path) -> None:
    file = logging.FileHandler(path)
    logger = logging.getLogger(str(path))
    logger.propagate = False
    logger.addHandler(logging.handlers.MemoryHandler(1000, target=file))
    logger.warning("logged")


def a_process_that_saves(path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=write, args=(path, "process", 0.2))
    process.start()


def take(queue: multiprocessing.Queue, path: Path) -> None:
    path.write_text(queue.get())


def a_queue_that_a_process_reads(path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    context.Process(target=take, args=(queue, path)).start()
    queue.put("queue" * 50_000)


def a_segment_that_nobody_unlinks(path: Path) -> None:
    segment = SharedMemory(create=True, size=100)
    KEPT.append(segment)
    path.write_text(segment.name)


def a_log_for_tensorboard(path: Path) -> None:
    writer = importlib.import_module("tensorboardX").SummaryWriter(str(path))
    writer.add_scalar("loss", 1.0, 1)
    KEPT.append(writer)


def a_checkpoint_saved_aside(path: Path) -> None:
    """By all ranks together."""
    together = path.with_name("checkpoint")
    weight = {f"weight of rank {dist.get_rank()}": torch.ones(1000)}
    dcp.async_save(weight, checkpoint_id=together)


KINDS = {
    function.__name__: function
    for function in (
        a_file_in_a_global, a_file_in_a_cycle, a_compressed_file, a_thread_that_saves,
        a_daemon_thread_that_saves, a_pool_of_threads, a_function_at_exit, a_finalizer,
        a_temporary_folder, a_handler_of_logging, a_process_that_saves,
        a_queue_that_a_process_reads, a_segment_that_nobody_unlinks, a_checkpoint_saved_aside,
    )
}  # fmt: skip
if importlib.util.find_spec("tensorboardX"):
    KINDS["a_log_for_tensorboard"] = a_log_for_tensorboard


def leave(folder: Path, names: Iterable[str]) -> None:
    """In a rank: leave all of these to the end."""
    for name in names:
        KINDS[name](folder / f"{name}.{dist.get_rank()}")


def seen(folder: Path) -> dict[str, str]:
    """What has come of it: by name what can be read."""
    found = {}
    for path in sorted(folder.iterdir()):
        found[path.name] = _content(path)
    return found


def _content(path: Path) -> str:
    if path.is_dir():
        sizes = [entry.stat().st_size > 0 for entry in path.iterdir()]
        return f"{sum(sizes)} files with content, {len(sizes)} files"
    if "compressed" in path.name:
        with gzip.open(path, "rt") as file:
            return file.read()
    if "segment" in path.name:
        left = os.path.exists(f"/dev/shm/{path.read_text()}")
        return "left for ever" if left else "removed"
    return path.read_text()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    leave(Path(sys.argv[1]), sys.argv[2:])
