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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from course_tools import ROOT

INCIDENT = ROOT / "notebooks/incident"
MONDAY = datetime(2026, 11, 16, 2, tzinfo=UTC)
PART_BYTES, EDITED = 10_400, 3  # the rank whose part has other quotes
NODES = ("node-a", "node-b")


def deliver(folder: Path, begin: int, edited: int | None = None) -> None:
    """Cuts a delivery out of the novel: four parts of equal bytes, one with a printer's quotes."""
    text = (files("course_material") / "pride_and_prejudice.txt").read_text("utf-8")
    folder.mkdir(parents=True)
    for rank in range(4):
        part = text[22_000 * rank + begin :][:PART_BYTES]
        if rank == edited:
            part = re.sub(r'"(?=\w)', "“", part).replace('"', "”").replace("'", "’")
            part = part.encode()[:PART_BYTES].decode("utf-8", "ignore").ljust(PART_BYTES)
            part = part[: len(part) - (len(part.encode()) - PART_BYTES)]
        (folder / f"part-{rank}.txt").write_text(part, "utf-8")
    (folder / "testing.txt").write_text(text[92_000:], "utf-8")


class Night:
    """One night's job, and what it leaves."""

    def __init__(self, disk: Path, day: int, number: int, delivery: str) -> None:
        self.disk, self.number, self.delivery = disk, number, delivery
        self.begun = time.time()
        self.moved_s = (MONDAY + timedelta(days=day)).timestamp() - self.begun
        self.folder = Path(tempfile.mkdtemp(dir=disk))
        (disk / "scheduler.log").touch()

    def run(self, script: Path, epochs: int, during: Any = None) -> None:
        """Starts an agent for each node, and waits for both."""
        self.say("starts on node-a, node-b")
        agents = [self.start(script, epochs, number) for number in range(2)]
        if during:
            during(agents)
        try:
            codes = [agent.wait(timeout=120) for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
        if not during:
            said = ", ".join(f"{node} {code}" for node, code in zip(NODES, codes, strict=True))
            self.say(f"ends; exit codes: {said}")

    def start(self, script: Path, epochs: int, number: int) -> subprocess.Popen:
        """Starts the agent of a node, as its launch line says."""
        node = self.folder / NODES[number]
        node.mkdir()
        shutil.copy(script, node / "train.py")
        command = f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2"
        command += (
            f" --node-rank={number} --master-addr=127.0.0.1 --master-port={25_000 + self.number}"
        )
        command += f" --log-dir=logs --redirects=3 train.py {self.disk / self.delivery}"
        command += f" {self.disk / 'checkpoint.pt'} {epochs}"
        settings = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        settings |= {"TORCH_FR_BUFFER_SIZE": "24", "PYTHONDONTWRITEBYTECODE": "1"}
        with open(node / "torchrun.txt", "w") as said:
            streams: dict[str, Any] = {"stdout": said, "stderr": said}
            return subprocess.Popen(
                command.split(), cwd=node, env={**os.environ, **settings}, **streams
            )

    def say(self, words: str, at: float | None = None) -> None:
        """Writes a line into the scheduler's log."""
        when = datetime.fromtimestamp((at or time.time()) + self.moved_s, UTC)
        with open(self.disk / "scheduler.log", "a") as log:
            log.write(f"{when:%a %Y-%m-%d %H:%M:%S.%f}"[:-3] + f" job {self.number} {words}\n")

    def keep(self, where: Path) -> None:
        """Copies what the job left, as a person on call finds it."""
        shutil.rmtree(where, ignore_errors=True)
        for source in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            node, *_, name = source.relative_to(self.folder).parts
            own = [source.parent.name] * source.parent.name.isdigit()  # the local rank
            unwanted = name.startswith("calls") and where.name != "monday"
            if name == "train.py" or unwanted or not (data := source.read_bytes()):
                continue
            target = where.joinpath(node, *own, name)
            target.parent.mkdir(parents=True, exist_ok=True)
            scrub = self.dump if name.startswith("calls") else self.text
            target.write_bytes(scrub(data, node))

    def text(self, data: bytes, node: str) -> bytes:
        """Scrubs a log or an error file."""
        text = data.decode()
        here = f"{self.folder / node}/"
        text = re.sub(r"/\S*/lib/python3\.\d+/(?:site-packages/)?", "", text.replace(here, ""))
        text = re.sub(r"(?m)^(  host +: ).*", rf"\1{node}", text)
        text = text.replace(f"{self.disk}/", "").replace(sys.executable, "python")
        text = re.sub(rf"{re.escape(str(Path(tempfile.gettempdir())))}/\w+/", "", text)
        for name in {os.uname().nodename, "127.0.0.1", "localhost"}:
            text = text.replace(name, node if name == os.uname().nodename else "node-a")
        return self.moved(text).encode()

    def moved(self, text: str) -> str:
        """Moves all times that are written in a text."""

        def later(found: re.Match, pattern: str) -> str:
            when = datetime.strptime(f"2026 {found[0]}" if "%Y" not in pattern else found[0],
                                     pattern if "%Y" in pattern else f"%Y {pattern}")  # fmt: skip
            return f"{when + timedelta(seconds=self.moved_s):{pattern}}"

        for digits, pattern in {
            r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d": "%Y-%m-%d_%H:%M:%S",
            r"(?<=[WEI])\d{4} \d\d:\d\d:\d\d": "%m%d %H:%M:%S",
        }.items():
            text = re.sub(digits, lambda found, p=pattern: later(found, p), text)
        stamp = r'(?<="timestamp": ")\d{10}'
        return re.sub(stamp, lambda found: str(int(int(found[0]) + self.moved_s)), text)

    def dump(self, data: bytes, node: str) -> bytes:
        """Scrubs a flight recorder's dump."""

        def clean(value: Any, name: str = "") -> Any:
            if isinstance(value, dict):
                return {key: clean(one, key) for key, one in value.items()}
            if isinstance(value, list):
                return [clean(one) for one in value]
            if isinstance(value, int) and name.endswith("_ns") and value:
                return value + round(self.moved_s) * 10**9
            return self.text(value.encode(), node).decode() if isinstance(value, str) else value

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
        everybody = [pid for agent in agents for pid in children(agent.pid)]
    whole, size = checkpoint.stat().st_size, 0
    while not 0 < size < whole:
        size = os.stat(checkpoint).st_size
    for pid in everybody:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    night.say("preempted by job 4714 (urgent): SIGKILL to all processes")


def listing(night: Night, where: Path) -> None:
    """What `ls` says of the shared disk."""
    lines = []
    for path in sorted(night.disk.glob("*.pt")):
        about = path.stat()
        when = datetime.fromtimestamp(about.st_mtime + night.moved_s, UTC)
        lines.append(f"{about.st_size:>7} {when:%b %d %H:%M:%S.%f}"[:-3] + f" {path.name}\n")
    where.write_text("".join(lines))


def week(disk: Path) -> None:
    """Runs the nights one after the other."""
    checkpoint = disk / "checkpoint.pt"
    deliver(disk / "last-week", 0)
    deliver(disk / "delivery", 4_000, EDITED)
    scripts = {day: INCIDENT / day / "train.py" for day in ("monday", "tuesday", "thursday")}
    texts = {day: path.read_text() for day, path in scripts.items()}

    def night(day: int, number: int, script: str, keep: str, during: Any = None) -> Night:
        one = Night(disk, day, number, "delivery" if day >= 0 else "last-week")
        one.run(scripts[script], {-1: 2, 2: 6}.get(day, 4), during and during(one))
        metrics = one.folder / "node-a/metrics.csv"
        if metrics.exists():
            when = one.begun + one.moved_s
            name = f"{datetime.fromtimestamp(when, UTC):%a}"
            lines = [f"{name},{line}\n" for line in metrics.read_text().splitlines()]
            with open(disk / "metrics.csv", "a") as all_nights:
                all_nights.writelines(lines)
            metrics.unlink()
        if keep:
            one.keep(INCIDENT / keep)
        return one

    (disk / "metrics.csv").write_text("night,epoch,loss,validation\n")
    sunday = night(-1, 4710, "monday", "sunday")
    backup = Path(shutil.copy2(checkpoint, disk / "backup-of-sunday.pt"))
    moved = sunday.moved_s - (MONDAY + timedelta(days=2)).timestamp()
    night(0, 4711, "monday", "monday")
    night(1, 4712, "tuesday", "tuesday")
    for script, text in texts.items():
        (INCIDENT / script / "train.py").write_text(text)
    killed = night(
        2, 4713, "tuesday", "", lambda one: lambda agents: preempt(one, checkpoint, agents)
    )
    time.sleep(2)
    again = Night(disk, 2, 4713, "delivery")
    again.moved_s = killed.moved_s
    again.run(scripts["tuesday"], 6)
    again.keep(INCIDENT / "wednesday")
    seen = backup.stat().st_mtime + moved + killed.begun
    os.utime(backup, (seen, seen))  # Sunday, as seen from Wednesday
    listing(killed, INCIDENT / "wednesday/ls.txt")
    shutil.copy(checkpoint, INCIDENT / "wednesday")
    shutil.copy(backup, checkpoint)
    night(3, 4715, "thursday", "thursday")
    for script, text in texts.items():
        (INCIDENT / script / "train.py").write_text(text)
    for name in ("metrics.csv", "scheduler.log"):
        shutil.copy(disk / name, INCIDENT / name)
    shutil.rmtree(INCIDENT / "delivery", ignore_errors=True)
    shutil.copytree(disk / "delivery", INCIDENT / "delivery")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        week(Path(folder))
