"""The evidence of chapter 11, and a desk that counts what it costs to look at it.

The evidence lies in a folder, `notebooks/incident`, whose README says what is real in it. What a
look costs is our estimate of what a person needs to open a file and read it; nobody measured it.
"""

import difflib
import importlib.util
import json
import pickle
import re
import shutil
import string
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

import matplotlib.pyplot as plt

from course_utils import explain_dumps, show

RANKS = 4


def script_of(week: Path, day: str) -> ModuleType:
    """Return the script of a day as a module, under a name of its own.

    Args:
        week: The folder with the evidence.
        day: `monday`, `tuesday` or `thursday`.
    """
    spec = importlib.util.spec_from_file_location(f"train_{day}", week / day / "train.py")
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # the evidence stays as it is
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def lines_of(week: Path, day: str, first: str, last: str) -> str:
    """Return the lines of a day's script from one text to the next."""
    text = (week / day / "train.py").read_text()
    return text[text.index(first) : text.index(last)].rstrip()


def calls_of(week: Path, rank: int) -> list[str]:
    """Return a rank's calls on Monday, oldest first, as its flight recorder has them.

    Returns:
        Texts such as `call 25, in train: loss.backward()`: the number of the call, and the
        innermost line of the script.
    """
    (file,) = (week / "monday").glob(f"*/calls{rank}")
    code = (week / "monday/train.py").read_text().splitlines()
    calls = []
    for entry in pickle.loads(file.read_bytes())["entries"]:
        frame = next(frame for frame in entry["frames"] if frame["filename"] == "train.py")
        line = code[frame["line"] - 1].strip()
        calls.append(f"call {entry['collective_seq_id']}, in {frame['name']}: {line}")
    return calls


def first_losses(week: Path, day: str) -> list[float]:
    """Return the loss that each rank printed in the night's first step, by rank."""
    losses = []
    for log in logs_of(week, day, "stdout.log"):
        losses.append(float(re.search("step 0 loss (.*)", log)[1]))
    return losses


def logs_of(week: Path, day: str, name: str) -> list[str]:
    """Return one kind of log of all ranks of a day, in the order of ranks."""
    folders = [week / day / f"node-{node}" / local for node in "ab" for local in "01"]
    return [(folder / name).read_text() for folder in folders]


def _agents(week: Path) -> str:
    """The end of what both agents said on Monday, without the lines that lie inside of torch."""
    ends = []
    for node in ("node-a", "node-b"):
        words = (week / "monday" / node / "torchrun.txt").read_text()
        end = "Root Cause" + words.partition("Root Cause")[2]
        ends.append(re.sub(r' +File "torch/.*\n(?: {6,}.*\n)+', "", end))
    return "\n".join(ends)


def _last_words(week: Path) -> str:
    lines = []
    for rank, log in enumerate(logs_of(week, "monday", "stderr.log")):
        words = log.strip().splitlines()[-1].partition("]: ")[2]
        lines.append(f"rank {rank}: {words[:150]}")
    return "\n".join(lines)


def _last_calls(week: Path) -> str:
    lines = []
    for rank in range(RANKS):
        lines += [f"rank {rank}: {call}" for call in calls_of(week, rank)[-2:]]
    return "\n".join(lines)


def _sizes(week: Path) -> str:
    files = sorted(week.glob("delivery/*"))
    return "\n".join(f"{path.stat().st_size:6} bytes  {path.name}" for path in files)


def _characters(week: Path) -> str:
    lines = []
    for rank in range(RANKS):
        text = (week / f"delivery/part-{rank}.txt").read_text("utf-8")
        unusual = "".join(sorted(set(text) - set(string.printable)))
        lines.append(f"part {rank}: {len(text):,} characters; not in ASCII: {unusual or 'none'}")
    return "\n".join(lines)


def _verdict(week: Path) -> str:
    """What `ddp-course hang` prints of Monday's dumps, which it wants in one folder."""
    with TemporaryDirectory() as folder:
        for dump in week.glob("monday/node-?/calls?"):
            shutil.copy(dump, folder)
        return str(explain_dumps(folder))


def _changes(before: str, after: str) -> Callable[[Path], str]:
    def changed(week: Path) -> str:
        old = (week / before / "train.py").read_text().splitlines()
        new = (week / after / "train.py").read_text().splitlines()
        lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        return "\n".join(line for line in lines if line[0] in "+-")

    return changed


def _error(week: Path) -> str:
    """What rank 3 said on Wednesday when it loaded the checkpoint."""
    error = json.loads((week / "wednesday/node-b/1/error.json").read_text())
    return error["message"]["message"].partition(" This can")[0]


def _torn(week: Path) -> str:
    torn = (week / "wednesday/checkpoint.pt").read_bytes()
    epoch = re.search(rb"epoch.*?K(.)", torn, re.DOTALL)[1][0]  # K: a small number follows
    return f"{len(torn):,} bytes, which begin like a whole checkpoint and say: epoch {epoch}"


def _file(name: str) -> Callable[[Path], str]:
    return lambda week: (week / name).read_text().rstrip()


def _printed(ranks: Iterable[int]) -> Callable[[Path], str]:
    def printed(week: Path) -> str:
        parts = []
        for rank in ranks:
            log = logs_of(week, "thursday", "stdout.log")[rank]
            parts.append("\n".join(log.splitlines()[1:]))
        return "\n\n".join(parts)

    return printed


@dataclass(frozen=True)
class Look:
    """Something that one can look at.

    Attributes:
        minutes: Our estimate of what it takes to open it and read it.
        about: What the menu says of it.
        read: Takes the folder with the evidence, returns what there is to read.
    """

    minutes: int
    about: str
    read: Callable[[Path], str]


LOOKS = {
    "monday/agents": Look(3, "how the agents of torchrun on both nodes end", _agents),
    "monday/last words": Look(4, "the last line of each rank's stderr.log", _last_words),
    "monday/calls": Look(8, "each rank's last two calls, unpickled", _last_calls),
    "monday/sizes": Look(1, "the sizes of the delivered files", _sizes),
    "monday/characters": Look(5, "what the delivered files consist of", _characters),
    "monday/verdict": Look(2, "the last hint: ddp-course hang on the dumps", _verdict),
    "tuesday/changes": Look(4, "what Ben changed", _changes("monday", "tuesday")),
    "wednesday/error": Look(3, "the error of the second start", _error),
    "wednesday/files": Look(1, "the files on the shared disk", _file("wednesday/ls.txt")),
    "wednesday/kernel": Look(4, "what the kernels of both nodes logged", _file("kernel.log")),
    "wednesday/torn": Look(8, "the bytes of the spoiled file", _torn),
    "wednesday/metrics": Look(1, "what rank 0 noted of all nights", _file("metrics.csv")),
    "thursday/changes": Look(4, "what Chi changed", _changes("tuesday", "thursday")),
    "thursday/rank 0": Look(2, "what rank 0 printed", _printed([0])),
    "thursday/all ranks": Look(5, "what all four ranks printed", _printed(range(RANKS))),
}
_YOURS, _ENOUGH = "#0072B2", "#BBBBBB"
# The cheapest looks by which a cause can be named, before any experiment.
ENOUGH = {
    "monday": ("monday/verdict", "monday/characters"),
    "wednesday": ("wednesday/files", "wednesday/metrics"),
    "thursday": ("thursday/changes", "thursday/all ranks"),
}


class Desk:
    """The desk of whoever is on call: what it has looked at, and for how long.

    Args:
        week: The folder with the evidence.
    """

    def __init__(self, week: Path) -> None:
        self.week = week
        self.seen: list[str] = []

    def menu(self) -> None:
        """Print what there is to look at, and what each look costs."""
        print("minutes  look")
        for name, look in LOOKS.items():
            print(f"{look.minutes:7}  {name:20} {look.about}")

    def look(self, name: str) -> None:
        """Print a piece of evidence, and charge for it once.

        Args:
            name: As the menu has it.
        """
        if name not in LOOKS:
            print(f"There is no {name!r}. The menu has: {', '.join(LOOKS)}.")
            return
        if name not in self.seen:
            self.seen.append(name)
        print(f"{name}: {LOOKS[name].minutes} min; so far {self.minutes()} min")
        self.show(name)

    def show(self, name: str) -> None:
        """Print a piece of evidence that the chapter itself looks at; it costs nothing."""
        print(LOOKS[name].read(self.week))

    def minutes(self, night: str = "") -> int:
        """Return the minutes spent on looking, for one night or for all."""
        return sum(LOOKS[name].minutes for name in self.seen if name.startswith(night))

    def bill(self) -> None:
        """Draw what was looked at, night by night, with the least that would have been enough."""
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        nights = list(ENOUGH)
        for row, night in enumerate(nights):
            yours = [name for name in self.seen if name.startswith(night)]
            _draw_looks(axes, row - 0.2, yours, _YOURS)
            _draw_looks(axes, row + 0.2, ENOUGH[night], _ENOUGH)
        axes.set(xlabel="minutes of looking; blue: yours, grey: enough to name the cause")
        axes.set_yticks(range(len(nights)), nights)
        axes.set_xlim(0, 30)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        parts = []
        for night in nights:
            enough = sum(LOOKS[name].minutes for name in ENOUGH[night])
            parts.append(f"{night} {self.minutes(night)} and {enough}")
        show(figure, f"Minutes of looking, yours and enough to name a cause: {'; '.join(parts)}.")


def _draw_looks(axes: plt.Axes, row: float, names: Sequence[str], color: str) -> None:
    """One bar for each look, one after the other, with its name."""
    start = 0
    for name in names:
        minutes = LOOKS[name].minutes
        axes.barh(row, minutes, 0.36, start, color=color, edgecolor="white")
        label = name.partition("/")[2]
        turned = 90 if minutes <= 2 else 0
        ink = "black" if color == _ENOUGH else "white"
        place = {"ha": "center", "va": "center", "size": 9, "rotation": turned, "color": ink}
        axes.text(start + minutes / 2, row, label, **place)
        start += minutes
