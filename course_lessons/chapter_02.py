"""What chapter 02 shows its results with: nodes, the store and joining drawn; scripts started."""

import inspect
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from IPython.display import Markdown, display

from course_lessons.drawing import reason_of
from course_utils import hardware, launch, show
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.errors import WorkerError
from course_utils.pictures.style import rank_style

RANKS = 4  # on two nodes
WRONG = "#b00020"
GREY = "#eeeeee"


def draw_nodes(captions: Sequence[str], text: str, wrong: Sequence[int] = ()) -> None:
    """Draw two nodes as rows and local ranks as columns, with a caption in each rank's box.

    Args:
        captions: For each of four ranks what to write into its box.
        text: What is to be seen, in words.
        wrong: Ranks whose captions are crossed out in red.
    """
    figure, axes = plt.subplots(figsize=(7, 3.1))
    axes.set(xlim=(-0.8, 4.1), ylim=(2.1, -0.4))
    axes.axis("off")
    for n in (0, 1):
        axes.add_patch(plt.Rectangle((-0.8, n + 0.05), 4.9, 0.9, color=GREY))
        axes.text(-0.7, n + 0.5, f"node {n}", fontsize=13, va="center")
        axes.text(2 * n + 1, -0.15, f"local rank {n}", fontsize=13, ha="center")
    for rank, caption in enumerate(captions):
        left, top = 2 * (rank % 2) + 0.15, rank // 2 + 0.15
        color = rank_style(rank)["color"]
        axes.add_patch(plt.Rectangle((left, top), 1.7, 0.7, fc="white", ec=color, linewidth=4))
        axes.text(left + 0.3, top + 0.35, rank, fontsize=22, color=color, va="center")
        ink = WRONG if rank in wrong else "black"
        label = f"✗ {caption}" if rank in wrong else caption
        axes.text(left + 0.6, top + 0.35, label, fontsize=11, color=ink, va="center")
    show(figure, text)


def draw_store(keys: Sequence[str], text: str) -> None:
    """Draw the store with its keys, and the four ranks around it.

    Args:
        keys: Each ends in the number of the member that left it.
        text: What is to be seen, in words.
    """
    figure, axes = plt.subplots(figsize=(8, 3.4))
    axes.set(xlim=(0, 8), ylim=(3.4, 0))
    axes.axis("off")
    axes.add_patch(plt.Rectangle((2.6, 0.2), 2.8, 3.0, fc=GREY, ec="#555555"))
    axes.text(4, 0.45, "store", fontsize=13, ha="center", va="center")
    for row, key in enumerate(keys):
        axes.text(4, 0.9 + 0.36 * row, key, fontsize=10, ha="center", family="monospace")
    for rank, (x, y) in enumerate([(0.9, 0.9), (0.9, 2.5), (7.1, 0.9), (7.1, 2.5)]):
        color = rank_style(rank)["color"]
        box = {"boxstyle": "round,pad=0.5", "fc": "white", "ec": color, "linewidth": 3}
        axes.text(x, y, f"rank {rank}", fontsize=13, ha="center", va="center", bbox=box)
        edge = 2.6 if x < 4 else 5.4
        start = x + 0.65 if x < 4 else x - 0.65
        axes.annotate(
            "", (edge, y), xytext=(start, y), arrowprops={"arrowstyle": "<->", "color": color}
        )
    show(figure, text)


def draw_starters(printed_by_command: Mapping[str, Sequence[str]]) -> None:
    """Draw which ranks each command started, by the lines that these ranks printed.

    Args:
        printed_by_command: By command what its processes printed, `rank 0 of 4: total 10 ...`.
    """
    found = {}
    for command, lines in printed_by_command.items():
        matches = [re.match(r"rank (\d+) of (\d+): total (\d+)", line) for line in lines]
        found[command] = [match for match in matches if match]
    height = 0.62 * len(found) + 0.15
    figure, axes = plt.subplots(figsize=(9.5, height))
    axes.set(xlim=(0, 9.5), ylim=(height, 0))
    axes.axis("off")
    sentences = []
    for row, (command, ranks) in enumerate(found.items()):
        y = 0.4 + 0.62 * row
        style = {"boxstyle": "round,pad=0.4", "fc": GREY, "ec": "#555555"}
        axes.text(0.15, y, command, fontsize=9, va="center", family="monospace", bbox=style)
        for place, match in enumerate(ranks):
            rank, world_size, total = match.groups()
            x = 5.85 + 2.05 * place
            color = rank_style(int(rank))["color"]
            box = {"boxstyle": "round,pad=0.4", "fc": "white", "ec": color, "linewidth": 2.5}
            words = f"rank {rank} of {world_size}: total {total}"
            axes.text(x, y, words, fontsize=9, va="center", bbox=box)
        axes.annotate("", (5.65, y), xytext=(5.15, y), arrowprops={"arrowstyle": "->"})
        started = " and ".join(f"rank {match[1]} of {match[2]}" for match in ranks)
        sentences.append(f"{command} started {started}")
    caption = "Left, what one types; right, which ranks it started, and what they printed."
    show(figure, f"{'; '.join(sentences)}.", caption)


def draw_joining(times_s: Sequence[Sequence[float]], text: str) -> None:
    """Draw a bar for each rank from its four moments: begun, arrived, joined, left (seconds)."""
    figure, axes = plt.subplots(figsize=(8.4, 3))
    first_s = min(times_s)[0]
    for rank, moments_s in enumerate(times_s):
        begun, arrived, joined, left = [moment - first_s for moment in moments_s]
        axes.barh(rank, arrived - begun, 0.6, begun, color="#cccccc", label="getting ready")
        waits = {"color": "white", "edgecolor": "#555555", "hatch": "////"}
        axes.barh(rank, joined - arrived, 0.6, arrived, label="waiting to join", **waits)
        color = rank_style(rank)["color"]
        axes.barh(rank, left - joined, 0.6, joined, color=color, label="in the group")
    ranks = range(len(times_s))
    axes.set(yticks=ranks, yticklabels=[f"rank {rank}" for rank in ranks], ylim=(3.5, -0.5))
    axes.set_xlabel("time since the first rank was forked (s, real time)")
    axes.legend(handles=axes.containers[:3], ncols=3, loc="lower left", bbox_to_anchor=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    show(figure, text)


def draw_cards(choose: Callable[[list[str]], str]) -> None:
    """Draw which card each process takes on two nodes with two cards each, right or wrong."""
    cards = ["card 0", "card 1"]
    wanted = [cards[rank % 2] for rank in range(RANKS)]
    _draw_answers(lambda: choose(list(cards)), wanted, "On two nodes with two cards each")


def draw_row_sums(row_sum: Callable[[torch.Tensor, list[list[int]]], torch.Tensor]) -> None:
    """Draw the sum that each rank gets for its row, where rank r brings 10 ** r."""

    def answer() -> str:
        number = torch.tensor(10 ** dist.get_rank())
        return str(int(row_sum(number, [[0, 1], [2, 3]])))

    _draw_answers(answer, ["11", "11", "1100", "1100"], "With two rows of two ranks")


def _draw_answers(answer: Callable[[], object], wanted: Sequence[str], where: str) -> None:
    """Run an answer in four ranks on two nodes, and draw what each returned; `where` begins it."""

    def worker() -> str | Exception:
        try:
            return str(answer())
        except NotImplementedError:
            raise
        except Exception as error:  # a rank that fails has a box as well
            return type(error).__name__

    try:
        results = launch(worker, world_size=RANKS, nodes=2, backend="gloo", timeout=5)
    except WorkerError as error:
        print("No picture yet:", reason_of(error))
        return
    captions, wrong = list(results), []
    for rank in range(RANKS):
        if captions[rank] != wanted[rank]:
            wrong.append(rank)
    right = RANKS - len(wrong)
    text = f"{where}, right on {right} of {RANKS} ranks: {', '.join(captions)}."
    draw_nodes(captions, text, wrong)


def show_backends() -> None:
    """Display a table of backends by device; its last column is about this machine."""
    machine = hardware()
    has_gpus = len(machine.gpus) > 0
    rows = [
        ("CPU", "gloo", "any number of ranks", machine.gloo),
        (
            "NVIDIA or AMD GPU",
            "nccl",
            "one GPU per rank, unless told otherwise",
            machine.nccl and has_gpus,
        ),
        ("GPU shared by ranks", "gloo", "collectives, no send and recv", machine.gloo and has_gpus),
        ("Intel GPU", "xccl", "one GPU per rank", dist.is_xccl_available()),
        ("CPU, cluster with MPI", "mpi", "torch built from source", dist.is_mpi_available()),
    ]
    lines = ["| tensors on | backend | works for | this machine |", "| --- | --- | --- | --- |"]
    for device, backend, works_for, is_here in rows:
        lines.append(f"| {device} | `{backend}` | {works_for} | {'yes' if is_here else 'no'} |")
    display(Markdown("\n".join(lines)))


def script_of(*functions: Callable) -> str:
    """The text of a file with these functions of a notebook, which calls the last one.

    The call stands under a main guard: a spawned process imports the file again, and would
    otherwise spawn processes itself.
    """
    imports = "import argparse\nimport os\n\nimport torch\nimport torch.distributed as dist\n"
    imports += "import torch.multiprocessing as mp\n\n\n"
    body = "\n\n".join(inspect.getsource(function) for function in functions)
    return imports + body + f'\n\nif __name__ == "__main__":\n    {functions[-1].__name__}()\n'


def run(script: str, *commands: str, timeout_s: float = 100) -> list[list[str]]:
    """Run a script once per command, all at the same time; print and return their lines, sorted.

    Args:
        script: The text of `script.py`, which is written to a folder of its own.
        commands: What you would type in a terminal, such as `python script.py --epochs 3`.
        timeout_s: After so many seconds, on a slow machine later, the commands are ended.
    """
    loopback = {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(script)
        options["env"] = {**os.environ, **loopback, "OMP_NUM_THREADS": "1", "TMPDIR": folder}
        started = []
        for command in commands:
            program = _program(command)
            started.append(subprocess.Popen(program, cwd=folder, text=True, **options))
        try:
            deadline = Deadline(timeout_s)
            outputs = [_output_of(process, deadline) for process in started]
        finally:
            for process in started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
    lines = [sorted(output.splitlines()) for output in outputs]
    for command, printed in zip(commands, lines, strict=True):
        print(f"$ {command}", *printed, sep="\n")
    return lines


def _output_of(process: subprocess.Popen, deadline: Deadline) -> str:
    """What a process has printed by its end.

    Raises:
        subprocess.TimeoutExpired: The deadline was over first.
    """
    while True:
        try:
            return process.communicate(timeout=1)[0]
        except subprocess.TimeoutExpired:
            if deadline.is_over():
                raise


def _program(command: str) -> list[str]:
    """The words of a command, for the Python of this notebook."""
    name, *words = shlex.split(command)
    module = ["-m", "torch.distributed.run"] if name == "torchrun" else []
    return [sys.executable, *module, *words]


def new_python(code: str) -> str:
    """The name of the error with which code ends in a Python that has just been started."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={})
    return done.stderr.splitlines()[-1].partition(":")[0]
