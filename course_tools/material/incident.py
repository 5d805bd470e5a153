"""Makes the evidence of chapter 11: runs a week of trainings that fail, and keeps what they left.

    python -m course_tools.material.incident

It replaces what is in notebooks/incident, but for scripts, notes and the log of the kernels.

Each night is a real `torchrun` of that night's train.py, with four ranks under two agents. Only the
scheduler is played, by this file: it starts the jobs, kills one, and writes down what it did. What
is kept is changed in three ways: times are moved to 02:00 of their night, the two agents are called
node-a and node-b, and paths are shortened. Numbers of processes and times differ from run to run.
"""

import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from course_tools import ROOT

INCIDENT = ROOT / "notebooks/incident"
MONDAY = datetime(2026, 11, 16, 2, tzinfo=UTC)
PARTS = 4  # of a delivery, one for each rank
PART_BYTES = 10_400
FOR_TESTING = 92_000  # where in the novel begins what no part has
EDITED = 3  # the rank whose part has other quotes
NODES = ("node-a", "node-b")
LOCAL_NAMES = ("127.0.0.1", "localhost")  # what a machine calls itself
ENVIRONMENT = {
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_FR_BUFFER_SIZE": "24",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# What logs and error files say of a machine and of a time.
FOLDER_OF_PYTHON = re.compile(r"/\S*/lib/python3\.\d+/(?:site-packages/)?")
HOST = re.compile(r"^(  host +: ).*", re.MULTILINE)
DATE = re.compile(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d")
DATE_OF_LOG = re.compile(r"(?<=[WEI])\d{4} \d\d:\d\d:\d\d")  # without its year: W1116 02:00:07
TIMESTAMP = re.compile(r'(?<="timestamp": ")\d{10}')
OPENING_QUOTE = re.compile(r'"(?=\w)')  # of the novel, which has straight ones


def deliver(folder: Path, begin: int, edited: int | None = None) -> None:
    """Cuts a delivery out of the novel: four parts of equal bytes, one with a printer's quotes."""
    material = files("course_material")
    novel = material / "pride_and_prejudice.txt"
    text = novel.read_text("utf-8")
    folder.mkdir(parents=True)
    for rank in range(PARTS):
        characters_before = 22_000 * rank
        start = begin + characters_before
        end = start + PART_BYTES
        part = text[start:end]
        if rank == edited:
            part = with_printers_quotes(part)
        name = f"part-{rank}.txt"
        path = folder / name
        path.write_text(part, "utf-8")
    path = folder / "testing.txt"
    part = text[FOR_TESTING:]
    path.write_text(part, "utf-8")


def with_printers_quotes(part: str) -> str:
    """A part with curly quotes, which take more bytes, cut to the size of the others."""
    part = OPENING_QUOTE.sub("“", part)
    part = part.replace('"', "”")
    part = part.replace("'", "’")
    encoded = part.encode()
    cut = encoded[:PART_BYTES]
    part = cut.decode("utf-8", "ignore")  # not half a sign at its end
    kept = part.encode()
    missing_bytes = PART_BYTES - len(kept)
    padding = " " * missing_bytes
    return part + padding


def seeming_start_s(day: int) -> float:
    """When the night of a day seems to begin; Monday's is day 0."""
    since_monday = timedelta(days=day)
    start = MONDAY + since_monday
    return start.timestamp()


Agent = subprocess.Popen  # of torchrun, one for each node
Agents = list[Agent]
During = Callable[["Night", Agents], None]


class Night:
    """One night's job, and what it leaves."""

    def __init__(self, disk: Path, day: int, number: int, delivery: str) -> None:
        self.disk = disk
        self.number = number
        self.delivery = delivery
        self.begun = time.time()
        start_s = seeming_start_s(day)
        self.moved_s = start_s - self.begun
        folder = tempfile.mkdtemp(dir=disk)
        self.folder = Path(folder)
        log = disk / "scheduler.log"
        log.touch()
        self.scheduler_log = log

    def run(self, script: Path, epochs: int, during: During | None = None) -> None:
        """Starts an agent for each node, and waits for both; `during` interferes with them."""
        self.say("starts on node-a, node-b")
        agent_of_a = self.start(script, epochs, node_rank=0)
        agent_of_b = self.start(script, epochs, node_rank=1)
        agents = [agent_of_a, agent_of_b]
        if during:
            during(self, agents)
        try:
            code_of_a = agent_of_a.wait(timeout=120)
            code_of_b = agent_of_b.wait(timeout=120)
        finally:
            for agent in agents:
                agent.kill()
        if not during:
            codes = f"node-a {code_of_a}, node-b {code_of_b}"
            words = f"ends; exit codes: {codes}"
            self.say(words)

    def start(self, script: Path, epochs: int, node_rank: int) -> Agent:
        """Starts the agent of a node, as its launch line says."""
        name = NODES[node_rank]
        node = self.folder / name
        node.mkdir()
        copy_of_script = node / "train.py"
        shutil.copy(script, copy_of_script)
        port = 25_000 + self.number
        delivery = self.disk / self.delivery
        checkpoint = self.disk / "checkpoint.pt"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc-per-node=2",
            f"--node-rank={node_rank}",
            "--master-addr=127.0.0.1",
            f"--master-port={port}",
            "--log-dir=logs",
            "--redirects=3",
            "train.py",
            str(delivery),
            str(checkpoint),
            str(epochs),
        ]
        environment = os.environ | ENVIRONMENT
        log_path = node / "torchrun.txt"
        with log_path.open("w") as log:
            return subprocess.Popen(command, cwd=node, env=environment, stdout=log, stderr=log)

    def seems(self, time_s: float) -> datetime:
        """The date that a moment of the run seems to have."""
        seeming_s = time_s + self.moved_s
        return datetime.fromtimestamp(seeming_s, UTC)

    def say(self, words: str) -> None:
        """Writes a line into the scheduler's log."""
        now_s = time.time()
        now = self.seems(now_s)
        date = to_milliseconds(now, "%a %Y-%m-%d %H:%M:%S.%f")
        line = f"{date} job {self.number} {words}\n"
        with self.scheduler_log.open("a") as log:
            log.write(line)

    def keep(self, where: Path) -> None:
        """Copies what the job left, as a person on call finds it."""
        shutil.rmtree(where, ignore_errors=True)
        sources = self.folder.rglob("*")
        for source in sorted(sources):
            name = source.name
            if not source.is_file():
                continue
            if name == "train.py":
                continue
            is_dump = name.startswith("calls")
            is_monday = where.name == "monday"
            if is_dump and not is_monday:
                continue
            data = source.read_bytes()
            if not data:
                continue
            node = self.node_of(source)
            if is_dump:
                scrubbed = self.dump(data, node)
            else:
                scrubbed = self.text(data, node)
            folder = where / node
            name_of_folder = source.parent.name
            if name_of_folder.isdigit():  # the local rank
                folder /= name_of_folder
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / name
            target.write_bytes(scrubbed)

    def node_of(self, source: Path) -> str:
        """The node that has written a file: the first folder in the job's own."""
        place = source.relative_to(self.folder)
        return place.parts[0]

    def text(self, data: bytes, node: str) -> bytes:
        """Scrubs a log or an error file."""
        text = data.decode()
        text = self.with_short_paths(text, node)
        text = with_name_of_node(text, node)
        text = self.moved(text)
        return text.encode()

    def with_short_paths(self, text: str, node: str) -> str:
        """A text without the folders of this machine."""
        folder_of_node = self.folder / node
        start = f"{folder_of_node}/"
        text = text.replace(start, "")
        text = FOLDER_OF_PYTHON.sub("", text)
        start = f"{self.disk}/"
        text = text.replace(start, "")
        text = text.replace(sys.executable, "python")
        folder = tempfile.gettempdir()
        escaped_folder = re.escape(folder)
        temporary_folder = rf"{escaped_folder}/\w+/"
        return re.sub(temporary_folder, "", text)

    def moved(self, text: str) -> str:
        """Moves all times that are written in a text."""

        def moved_date(match: re.Match) -> str:
            date = match[0]
            return self._later(date, "%Y-%m-%d_%H:%M:%S")

        def moved_log_date(match: re.Match) -> str:
            date = match[0]
            with_year = f"2026 {date}"
            moved = self._later(with_year, "%Y %m%d %H:%M:%S")
            _year, _space, moved_day = moved.partition(" ")
            return moved_day

        def moved_timestamp(match: re.Match) -> str:
            written = match[0]
            written_s = int(written)
            seeming_s = written_s + self.moved_s
            whole_seconds = int(seeming_s)
            return str(whole_seconds)

        text = DATE.sub(moved_date, text)
        text = DATE_OF_LOG.sub(moved_log_date, text)
        return TIMESTAMP.sub(moved_timestamp, text)

    def _later(self, date: str, pattern: str) -> str:
        """A date that is written by this pattern, moved."""
        written = datetime.strptime(date, pattern)
        difference = timedelta(seconds=self.moved_s)
        moved = written + difference
        return moved.strftime(pattern)

    def dump(self, data: bytes, node: str) -> bytes:
        """Scrubs a flight recorder's dump."""
        recorded = pickle.loads(data)
        cleaned = self._cleaned(recorded, node)
        return pickle.dumps(cleaned)

    def _cleaned(self, value: Any, node: str, name: str = "") -> Any:
        """A value of a dump, scrubbed with all that is in it; times have a name in `_ns`."""
        if isinstance(value, dict):
            cleaned = {}
            for key, item in value.items():
                cleaned[key] = self._cleaned(item, node, key)
            return cleaned
        if isinstance(value, list):
            return [self._cleaned(item, node) for item in value]
        if isinstance(value, str):
            encoded = value.encode()
            scrubbed = self.text(encoded, node)
            return scrubbed.decode()
        if not isinstance(value, int):
            return value
        is_time = name.endswith("_ns")
        if is_time and value:  # 0 stands for no time
            moved_ns = self._moved_ns()
            return value + moved_ns
        return value

    def _moved_ns(self) -> int:
        """By how much a dump's times are moved: whole seconds, in nanoseconds."""
        whole_seconds = round(self.moved_s)
        return whole_seconds * 10**9


def with_name_of_node(text: str, node: str) -> str:
    """A text in which this machine is called by the node's name."""
    host_of_node = rf"\1{node}"
    text = HOST.sub(host_of_node, text)
    machine = os.uname()
    this_machine = machine.nodename
    for name in LOCAL_NAMES:
        if name != this_machine:
            text = text.replace(name, "node-a")
    return text.replace(this_machine, node)


def to_milliseconds(date: datetime, pattern: str) -> str:
    """A date written by a pattern that ends in microseconds, without the last three digits."""
    written = date.strftime(pattern)
    return written[:-3]


def children(pid: int) -> Iterator[int]:
    """All processes below one, itself last."""
    of_main_thread = Path(f"/proc/{pid}/task/{pid}/children")
    with suppress(OSError):
        text = of_main_thread.read_text()
        listed = text.split()
        for child in listed:
            child_pid = int(child)
            yield from children(child_pid)
    yield pid


def processes_of(agents: Agents) -> list[int]:
    """All processes of these agents that there are now, the agents among them."""
    pids = []
    for agent in agents:
        pids += children(agent.pid)
    return pids


def size_of(path: Path) -> int:
    """How many bytes a file has now."""
    status = path.stat()
    return status.st_size


def preempt(night: Night, checkpoint: Path, agents: Agents) -> None:
    """Kills the job as soon as a save has begun."""
    count = 0
    while count < 6:  # the ranks, and their agents
        pids = processes_of(agents)
        count = len(pids)
    complete_bytes = size_of(checkpoint)
    is_half_written = False
    while not is_half_written:
        written_bytes = size_of(checkpoint)
        is_half_written = 0 < written_bytes < complete_bytes
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    night.say("preempted by job 4714 (urgent): SIGKILL to all processes")


def listing(night: Night, where: Path) -> None:
    """What `ls` says of the shared disk."""
    lines = ""
    checkpoints = night.disk.glob("*.pt")
    for path in sorted(checkpoints):
        status = path.stat()
        size = status.st_size
        changed = night.seems(status.st_mtime)
        date = to_milliseconds(changed, "%b %d %H:%M:%S.%f")
        line = f"{size:>7} {date} {path.name}\n"
        lines += line
    where.write_text(lines)


def week(disk: Path) -> None:
    """Runs the nights one after the other."""
    checkpoint = disk / "checkpoint.pt"
    backup = disk / "backup-of-sunday.pt"
    metrics = disk / "metrics.csv"
    last_week = disk / "last-week"
    deliver(last_week, 0)
    delivery = disk / "delivery"
    deliver(delivery, 4_000, EDITED)
    metrics.write_text("night,epoch,loss,validation\n")
    monday = INCIDENT / "monday/train.py"
    tuesday = INCIDENT / "tuesday/train.py"
    thursday = INCIDENT / "thursday/train.py"
    scripts = (monday, tuesday, thursday)
    texts = {}
    for script in scripts:
        texts[script] = script.read_text()

    sunday = Night(disk, -1, 4710, "last-week")
    run_and_keep(sunday, monday, 2, "sunday")
    shutil.copy2(checkpoint, backup)
    night = Night(disk, 0, 4711, "delivery")
    run_and_keep(night, monday, 4, "monday")
    night = Night(disk, 1, 4712, "delivery")
    run_and_keep(night, tuesday, 4, "tuesday")
    put_back(texts)
    wednesday(disk, tuesday, sunday)
    shutil.copy(backup, checkpoint)
    night = Night(disk, 3, 4715, "delivery")
    run_and_keep(night, thursday, 4, "thursday")
    put_back(texts)
    keep_of_week(disk)


def keep_of_week(disk: Path) -> None:
    """Copies what all nights have written or read: metrics, the scheduler's log, the delivery."""
    metrics = disk / "metrics.csv"
    shutil.copy(metrics, INCIDENT)
    scheduler_log = disk / "scheduler.log"
    shutil.copy(scheduler_log, INCIDENT)
    delivery = disk / "delivery"
    kept_delivery = INCIDENT / "delivery"
    shutil.rmtree(kept_delivery, ignore_errors=True)
    shutil.copytree(delivery, kept_delivery)


def put_back(texts: dict[Path, str]) -> None:
    """Writes the scripts again, which went with the folders that a night replaces."""
    for path, text in texts.items():
        path.write_text(text)


def wednesday(disk: Path, script: Path, sunday: Night) -> None:
    """Runs the job that is preempted in a save, starts it again, and keeps what both have left."""
    checkpoint = disk / "checkpoint.pt"

    def preempt_at_a_save(night: Night, agents: Agents) -> None:
        preempt(night, checkpoint, agents)

    killed = Night(disk, 2, 4713, "delivery")
    run_and_keep(killed, script, 6, "", preempt_at_a_save)
    time.sleep(2)
    again = Night(disk, 2, 4713, "delivery")
    again.moved_s = killed.moved_s
    again.run(script, 6)
    kept = INCIDENT / "wednesday"
    again.keep(kept)
    backup = disk / "backup-of-sunday.pt"
    date_backup(backup, sunday, killed)
    list_of_files = kept / "ls.txt"
    listing(killed, list_of_files)
    shutil.copy(checkpoint, kept)


def date_backup(backup: Path, sunday: Night, killed: Night) -> None:
    """Dates Sunday's backup as it seems from Wednesday, whose dates are moved by something else."""
    status = backup.stat()
    seeming_s = status.st_mtime + sunday.moved_s
    saved_s = seeming_s - killed.moved_s
    times = (saved_s, saved_s)  # of the last look at it, and of the last change
    os.utime(backup, times)


def run_and_keep(
    night: Night, script: Path, epochs: int, keep_as: str, during: During | None = None
) -> None:
    """Runs a night, adds its metrics to those of the week, and keeps what it left, if wanted."""
    night.run(script, epochs, during)
    metrics = night.folder / "node-a/metrics.csv"
    if metrics.exists():
        add_to_week(night, metrics)
        metrics.unlink()
    if keep_as:
        where = INCIDENT / keep_as
        night.keep(where)


def add_to_week(night: Night, metrics: Path) -> None:
    """Adds a night's metrics to those of the week, each line with its day."""
    begun = night.seems(night.begun)
    day = begun.strftime("%a")
    text = metrics.read_text()
    lines = text.splitlines()
    metrics_of_week = night.disk / "metrics.csv"
    with metrics_of_week.open("a") as all_nights:
        for line in lines:
            line_with_day = f"{day},{line}\n"
            all_nights.write(line_with_day)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        shared_disk = Path(folder)
        week(shared_disk)
