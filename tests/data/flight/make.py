"""Makes the recorded hangs of this folder anew, by real ranks under gloo and torchrun.

    .venv/bin/python tests/data/flight/make.py [CASE...]

Each case is a function below, which every rank runs in a process of its own; `truth.json` says
who is guilty, nobody where nothing hangs. Each rank of one `torchrun` forks such a process for
every case, since an import of torch for each would take minutes. After some seconds a thread of
each rank leaves a dump, whatever the rank is doing. Paths and numbers of threads are taken out, so
that the files are the same for everybody but for the times.
"""

import contextlib
import gzip
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS = 4
WAIT_S = 4.0  # until the dumps are written
TRUTH = json.loads((HERE / "truth.json").read_text())  # the guilty, by case
WITH_MESSAGES = {  # left by `course_utils.explain_hangs`, since gloo itself notes no messages
    "pipeline_behind_all_reduce", "receives_in_a_circle", "straggler", "across_two_groups",
}  # fmt: skip
AS_JSON = {"absent_rank", "two_guilty"}  # the others are pickles, with lines


def absent_rank(rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank == 2:
        time.sleep(60)
    dist.all_reduce(torch.ones(4))


def dead_rank(rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))


def stopped_rank(rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.barrier()


def swapped_calls(rank):
    dist.all_reduce(torch.ones(4))
    if rank == 3:
        dist.broadcast(torch.ones(4), 0)
        dist.all_reduce(torch.ones(4))
    else:
        dist.all_reduce(torch.ones(4))
        dist.broadcast(torch.ones(4), 0)
    dist.barrier()


def other_shape(rank):
    dist.all_reduce(torch.ones(4))
    dist.all_reduce(torch.ones(400 if rank == 1 else 40_000))
    dist.barrier()


def one_step_less(rank):
    for _ in range(4 if rank == 2 else 5):
        dist.all_reduce(torch.ones(8))
    time.sleep(60)


def one_step_more(rank):
    for _ in range(6 if rank == 0 else 5):
        dist.all_reduce(torch.ones(8))
    time.sleep(60)


def two_groups_swapped(rank):
    first, second = dist.new_group(), dist.new_group()
    for group in (first, second):
        dist.all_reduce(torch.ones(2), group=group)
    if rank == 3:
        first, second = second, first
    dist.all_reduce(torch.ones(2), group=first)
    dist.all_reduce(torch.ones(2), group=second)


def across_two_groups(rank):
    rows = [dist.new_group(pair, group_desc="tensor") for pair in ([0, 1], [2, 3])]
    columns = [dist.new_group(pair, group_desc="data") for pair in ([0, 2], [1, 3])]
    for _ in range(2):
        dist.all_reduce(torch.ones(2), group=rows[rank // 2])
        dist.all_reduce(torch.ones(2), group=columns[rank % 2])
    if rank == 3:
        time.sleep(60)
    if rank == 2:
        dist.all_reduce(torch.ones(2), group=rows[1])
    if rank != 1:
        dist.all_reduce(torch.ones(2), group=columns[rank % 2])
    dist.all_reduce(torch.ones(2), group=rows[rank // 2])


def pipeline_behind_all_reduce(rank):
    replicas = [dist.new_group(pair, group_desc="data") for pair in ([0, 1], [2, 3])]
    dist.all_reduce(torch.ones(2), group=replicas[rank // 2])
    if rank == 3:
        time.sleep(60)
    if rank == 2:
        dist.all_reduce(torch.ones(2), group=replicas[1])
        dist.send(torch.ones(2), 0)
    if rank == 0:
        dist.recv(torch.ones(2), 2)
    dist.all_reduce(torch.ones(2), group=replicas[rank // 2])


def two_guilty(rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    if rank in (1, 2):
        time.sleep(60)
    dist.all_gather([torch.ones(1) for _ in range(RANKS)], torch.ones(1))


def lost_dump(rank):
    absent_rank(rank)


def receives_in_a_circle(rank):
    dist.barrier()
    if rank < 2:
        dist.recv(torch.ones(2), 1 - rank)
        dist.send(torch.ones(2), 1 - rank)


def straggler(rank):
    while True:
        if rank == 1:
            time.sleep(0.5)
        dist.all_reduce(torch.ones(4))


def finished(rank):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    time.sleep(60)


def run_rank(raw):
    """All cases, one after the other, each in a process of its own."""
    rank = int(os.environ["RANK"])
    for case in sys.argv[1].split(","):
        process = os.fork()
        if process == 0:
            run_case(case, rank, raw)
            os._exit(0)
        dump = raw / case / f"calls{rank}"
        ended = 0
        while not dump.exists() and not ended:
            ended, _ = os.waitpid(process, os.WNOHANG | os.WUNTRACED)
            time.sleep(0.1)
        (raw / f"{case}_{rank}_done").touch()
        while len(list(raw.glob(f"{case}_?_done"))) < RANKS:  # nobody may lose a peer before
            time.sleep(0.1)
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def run_case(case, rank, raw):
    """One case in one rank: its dump is left by a thread."""
    if case in WITH_MESSAGES:
        live.watch_groups()
    store = dist.FileStore(str(raw / f"store_{case}"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    dist.barrier()
    threading.Timer(WAIT_S, leave, [case, rank, raw]).start()
    try:
        globals()[case](rank)
        time.sleep(60)
    except BaseException as error:
        print(f"{case}: rank {rank}: {error!r:.150}", file=sys.stderr)
        time.sleep(60)


def leave(case, rank, raw):
    """Write this rank's dump."""
    folder = raw / case
    folder.mkdir(exist_ok=True)
    if case in WITH_MESSAGES:
        dump = pickle.dumps(live.dump(), protocol=2)
    else:
        dump = torch._C._distributed_c10d._dump_fr_trace(backend="gloo")
    part = folder / f".part{rank}"
    part.write_bytes(dump)
    part.rename(folder / f"calls{rank}")


def tidy(case, raw):
    """Put a case's dumps into this folder, without paths and numbers of threads."""
    shutil.rmtree(HERE / case, ignore_errors=True)
    (HERE / case).mkdir()
    for file in sorted((raw / case).glob("calls?")):
        if case == "lost_dump" and file.name == "calls0":
            continue
        dump = pickle.loads(file.read_bytes())
        dump.pop("stack", None)
        for entry in dump["entries"]:
            frames = entry.pop("frames", ())
            lines = [frame for frame in frames if frame["filename"].endswith("make.py")]
            if lines and case not in AS_JSON:
                entry["frames"] = [lines[0] | {"filename": "make.py"}]
            entry.pop("thread_id", None)
        if case in AS_JSON:
            with gzip.GzipFile(HERE / case / f"{file.name}.json.gz", "wb", mtime=0) as packed:
                packed.write(json.dumps(dump).encode())
        else:
            (HERE / case / file.name).write_bytes(pickle.dumps(dump, protocol=2))


def main():
    cases = sys.argv[1:] or list(TRUTH)
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"RAW": folder, "TORCH_FR_BUFFER_SIZE": "100"}
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
        command += [__file__, ",".join(cases)]
        subprocess.run(command, env=environment, check=True)
        for case in cases:
            tidy(case, Path(folder))


if __name__ == "__main__":
    if "RANK" in os.environ:
        import torch
        import torch.distributed as dist

        from course_utils.flight import live

        run_rank(Path(os.environ["RAW"]))
    else:
        main()
