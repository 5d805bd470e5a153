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
PART_BYTES = 10_400
EDITED = 3  # the rank whose part has other quotes
NODES = ("node-a", "node-b")


def deliver(folder: Path, begin: int, edited: int | None = None) -> None:
    """Cuts a delivery out of the novel: four parts of equal bytes, one with a printer's quotes."""
    novel = files("course_material") / "pride_and_prejudice.txt"
    text = novel.read_text("utf-8")
    folder.mkdir(parents=True)
    for rank in range(4):
        first = 22_000 * rank + begin
        part = text[first : first + PART_BYTES]
        if rank == edited:
            part = with_printers_quotes(part)
        (folder / f"part-{rank}.txt").write_text(part, "utf-8")
    (folder / "testing.txt").write_text(text[92_000:], "utf-8")


def with_printers_quotes(part: str) -> str:
    """A part with curly quotes, which take more bytes, cut to the size of the others."""
    part = re.sub(r'"(?=\w)', "“", part)
    part = part.replace('"', "”").replace("'", "’")
    cut = part.encode()[:PART_BYTES]
    part = cut.decode("utf-8", "ignore")  # not half a sign at its end
    part = part.ljust(PART_BYTES)
    too_many_bytes = len(part.encode()) - PART_BYTES
    return part[: len(part) - too_many_bytes]


During = Callable[["Night", list[subprocess.Popen]], None]


class Night:
    """One night's job, and what it leaves."""

    def __init__(self, disk: Path, day: int, number: int, delivery: str) -> None:
        self.disk = disk
        self.number = number
        self.delivery = delivery
        self.begun = time.time()
        shown = MONDAY + timedelta(days=day)  # when it seems to begin
        self.moved_s = shown.timestamp() - self.begun
        self.folder = Path(tempfile.mkdtemp(dir=disk))
        (disk / "scheduler.log").touch()

    def run(self, script: Path, epochs: int, during: During | None = None) -> None:
        """Starts an agent for each node, and waits for both; `during` interferes with them."""
        self.say("starts on node-a, node-b")
        agents = [self.start(script, epochs, number) for number in range(2)]
        if during:
            during(self, agents)
        try:
            codes = [agent.wait(timeout=120) for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
        if not during:
            ends = [f"{node} {code}" for node, code in zip(NODES, codes, strict=True)]
            self.say(f"ends; exit codes: {', '.join(ends)}")

    def start(self, script: Path, epochs: int, number: int) -> subprocess.Popen:
        """Starts the agent of a node, as its launch line says."""
        node = self.folder / NODES[number]
        node.mkdir()
        shutil.copy(script, node / "train.py")
        command = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2"
        command += f" --node-rank={number} --master-addr=127.0.0.1"
        command += f" --master-port={25_000 + self.number}"
        command += f" --log-dir=logs --redirects=3 train.py {self.disk / self.delivery}"
        command += f" {self.disk / 'checkpoint.pt'} {epochs}"
        environment = os.environ | {
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCH_FR_BUFFER_SIZE": "24",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        with open(node / "torchrun.txt", "w") as log:
            return subprocess.Popen(
                command.split(), cwd=node, env=environment, stdout=log, stderr=log
            )

    def say(self, words: str) -> None:
        """Writes a line into the scheduler's log."""
        now = datetime.fromtimestamp(time.time() + self.moved_s, UTC)
        date = f"{now:%a %Y-%m-%d %H:%M:%S.%f}"[:-3]  # milliseconds
        with open(self.disk / "scheduler.log", "a") as log:
            log.write(f"{date} job {self.number} {words}\n")

    def keep(self, where: Path) -> None:
        """Copies what the job left, as a person on call finds it."""
        shutil.rmtree(where, ignore_errors=True)
        for source in sorted(self.folder.rglob("*")):
            if not source.is_file() or source.name == "train.py":
                continue
            is_dump = source.name.startswith("calls")
            data = source.read_bytes()
            if not data or (is_dump and where.name != "monday"):
                continue
            node = source.relative_to(self.folder).parts[0]
            target_folder = where / node
            if source.parent.name.isdigit():  # the local rank
                target_folder /= source.parent.name
            target_folder.mkdir(parents=True, exist_ok=True)
            scrub = self.dump if is_dump else self.text
            (target_folder / source.name).write_bytes(scrub(data, node))

    def text(self, data: bytes, node: str) -> bytes:
        """Scrubs a log or an error file."""
        text = data.decode()
        text = text.replace(f"{self.folder / node}/", "")
        text = re.sub(r"/\S*/lib/python3\.\d+/(?:site-packages/)?", "", text)
        text = re.sub(r"(?m)^(  host +: ).*", rf"\1{node}", text)
        text = text.replace(f"{self.disk}/", "")
        text = text.replace(sys.executable, "python")
        temporary = Path(tempfile.gettempdir())
        text = re.sub(rf"{re.escape(str(temporary))}/\w+/", "", text)
        this_machine = os.uname().nodename
        for name in {"127.0.0.1", "localhost"} - {this_machine}:
            text = text.replace(name, "node-a")
        text = text.replace(this_machine, node)
        return self.moved(text).encode()

    def moved(self, text: str) -> str:
        """Moves all times that are written in a text."""

        def moved_date(match: re.Match) -> str:
            return self._later(match[0], "%Y-%m-%d_%H:%M:%S")

        def moved_log_date(match: re.Match) -> str:
            moved = self._later(f"2026 {match[0]}", "%Y %m%d %H:%M:%S")
            return moved.partition(" ")[2]

        def moved_timestamp(match: re.Match) -> str:
            return str(int(int(match[0]) + self.moved_s))

        text = re.sub(r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d", moved_date, text)
        text = re.sub(r"(?<=[WEI])\d{4} \d\d:\d\d:\d\d", moved_log_date, text)
        return re.sub(r'(?<="timestamp": ")\d{10}', moved_timestamp, text)

    def _later(self, date: str, pattern: str) -> str:
        moved = datetime.strptime(date, pattern) + timedelta(seconds=self.moved_s)
        return f"{moved:{pattern}}"

    def dump(self, data: bytes, node: str) -> bytes:
        """Scrubs a flight recorder's dump."""

        def clean(value: Any, name: str = "") -> Any:
            if isinstance(value, dict):
                return {key: clean(item, key) for key, item in value.items()}
            if isinstance(value, list):
                return [clean(item) for item in value]
            if isinstance(value, int) and name.endswith("_ns") and value:
                return value + round(self.moved_s) * 10**9
            if isinstance(value, str):
                return self.text(value.encode(), node).decode()
            return value

        return pickle.dumps(clean(pickle.loads(data)))


def children(pid: int) -> Iterator[int]:
    """All processes below one, itself last."""
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from children(int(child))
    yield pid


def preempt(night: Night, checkpoint: Path, agents: list[subprocess.Popen]) -> None:
    """Kills the job as soon as a save has begun."""
    everybody: list[int] = []
    while len(everybody) < 6:  # the ranks, and their agents
        everybody = []
        for agent in agents:
            everybody += children(agent.pid)
    complete_bytes = checkpoint.stat().st_size
    written_bytes = 0
    while not 0 < written_bytes < complete_bytes:
        written_bytes = os.stat(checkpoint).st_size
    for pid in everybody:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    night.say("preempted by job 4714 (urgent): SIGKILL to all processes")


def listing(night: Night, where: Path) -> None:
    """What `ls` says of the shared disk."""
    lines = []
    for path in sorted(night.disk.glob("*.pt")):
        status = path.stat()
        changed = datetime.fromtimestamp(status.st_mtime + night.moved_s, UTC)
        date = f"{changed:%b %d %H:%M:%S.%f}"[:-3]  # milliseconds
        lines.append(f"{status.st_size:>7} {date} {path.name}\n")
    where.write_text("".join(lines))


def week(disk: Path) -> None:
    """Runs the nights one after the other."""
    checkpoint = disk / "checkpoint.pt"
    deliver(disk / "last-week", 0)
    deliver(disk / "delivery", 4_000, EDITED)
    scripts = {day: INCIDENT / day / "train.py" for day in ("monday", "tuesday", "thursday")}
    texts = {day: path.read_text() for day, path in scripts.items()}

    def put_scripts_back() -> None:
        for day, text in texts.items():
            (INCIDENT / day / "train.py").write_text(text)

    (disk / "metrics.csv").write_text("night,epoch,loss,validation\n")
    sunday = Night(disk, -1, 4710, "last-week")
    run_and_keep(sunday, scripts["monday"], 2, "sunday")
    shutil.copy2(checkpoint, disk / "backup-of-sunday.pt")
    run_and_keep(Night(disk, 0, 4711, "delivery"), scripts["monday"], 4, "monday")
    run_and_keep(Night(disk, 1, 4712, "delivery"), scripts["tuesday"], 4, "tuesday")
    put_scripts_back()
    wednesday(disk, scripts["tuesday"], sunday)
    shutil.copy(disk / "backup-of-sunday.pt", checkpoint)
    run_and_keep(Night(disk, 3, 4715, "delivery"), scripts["thursday"], 4, "thursday")
    put_scripts_back()
    for name in ("metrics.csv", "scheduler.log"):
        shutil.copy(disk / name, INCIDENT / name)
    shutil.rmtree(INCIDENT / "delivery", ignore_errors=True)
    shutil.copytree(disk / "delivery", INCIDENT / "delivery")


def wednesday(disk: Path, script: Path, sunday: Night) -> None:
    """Runs the job that is preempted in a save, starts it again, and keeps what both have left."""
    checkpoint = disk / "checkpoint.pt"

    def preempt_at_a_save(night: Night, agents: list[subprocess.Popen]) -> None:
        preempt(night, checkpoint, agents)

    killed = Night(disk, 2, 4713, "delivery")
    run_and_keep(killed, script, 6, "", preempt_at_a_save)
    time.sleep(2)
    again = Night(disk, 2, 4713, "delivery")
    again.moved_s = killed.moved_s
    again.run(script, 6)
    again.keep(INCIDENT / "wednesday")
    backup = disk / "backup-of-sunday.pt"
    sunday_to_wednesday_s = sunday.moved_s - (MONDAY + timedelta(days=2)).timestamp()
    saved_s = backup.stat().st_mtime + sunday_to_wednesday_s + killed.begun
    os.utime(backup, (saved_s, saved_s))  # Sunday, as seen from Wednesday
    listing(killed, INCIDENT / "wednesday/ls.txt")
    shutil.copy(checkpoint, INCIDENT / "wednesday")


def run_and_keep(
    night: Night, script: Path, epochs: int, keep_as: str, during: During | None = None
) -> None:
    """Runs a night, adds its metrics to those of the week, and keeps what it left, if wanted."""
    night.run(script, epochs, during)
    metrics = night.folder / "node-a/metrics.csv"
    if metrics.exists():
        date = datetime.fromtimestamp(night.begun + night.moved_s, UTC)
        lines = [f"{date:%a},{line}\n" for line in metrics.read_text().splitlines()]
        with open(night.disk / "metrics.csv", "a") as all_nights:
            all_nights.writelines(lines)
        metrics.unlink()
    if keep_as:
        night.keep(INCIDENT / keep_as)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        week(Path(folder))
