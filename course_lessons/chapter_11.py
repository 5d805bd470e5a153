"""What chapter 11 works with: nights that are played again, checks and pictures."""

import contextlib
import functools
import io
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from course_lessons import incident
from course_lessons.incident import RANKS
from course_material.language import novel
from course_utils import Network, launch, show
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.pictures.style import rank_style

PART_BATCH = 32  # windows
TORN_BYTES = 1252  # of Wednesday's checkpoint
_NIGHT_S = 2.5  # four times what a night of a few batches takes, as a quiet machine counts
_BLOCK_BYTES = 4096
_PRINTED = 0.001  # scripts print losses with three digits
_SAME = "#009E7344"
_OTHER = "#FFFFFF"

# --- Monday ---


def draw_calls(week: Path, last: int = 8) -> None:
    """Draw the last calls of each rank on Monday, in the order in which they were made.

    Args:
        week: The folder with the evidence.
        last: How many calls of each rank.
    """
    figure, axes = plt.subplots(figsize=(8, 2.4), layout="constrained")
    numbers = []
    for rank in range(RANKS):
        for call in incident.calls_of(week, rank)[-last:]:
            number = int(re.search(r"\d+", call)[0])
            numbers.append(number)
            gradients = "backward" in call
            color = rank_style(rank)["color"] + ("55" if gradients else "FF")
            axes.add_patch(plt.Rectangle((number, rank), 0.94, 0.9, fc=color, ec="#555555"))
            words = "grad" if gradients else "losses"
            ink = "black" if gradients else "white"
            axes.text(number + 0.47, rank + 0.45, words, ha="center", va="center", color=ink)
    first, end = min(numbers), max(numbers) + 1
    axes.set(xlim=(first, end), ylim=(RANKS, 0), xlabel="number of the call")
    axes.set_xticks([n + 0.47 for n in range(first, end)], range(first, end))
    axes.set_yticks([rank + 0.45 for rank in range(RANKS)], map("rank {}".format, range(RANKS)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    show(figure, "All ranks made 25 calls. In the last, three send gradients and rank 3 a loss.")


def draw_delivery(week: Path, counts: Sequence[int]) -> None:
    """Draw bytes, characters and batches of the four parts side by side.

    Args:
        week: The folder with the evidence.
        counts: Batches of each part.
    """
    paths = [week / f"delivery/part-{rank}.txt" for rank in range(RANKS)]
    texts = [path.read_text("utf-8") for path in paths]
    figure, panels = plt.subplots(1, 3, figsize=(8, 2.2), layout="constrained")
    columns = {
        "bytes": [path.stat().st_size for path in paths],
        "characters": [len(text) for text in texts],
        "batches": list(counts),
    }
    for axes, (name, values) in zip(panels, columns.items(), strict=True):
        colors = [rank_style(rank)["color"] for rank in range(RANKS)]
        bars = axes.bar(range(RANKS), values, color=colors)
        axes.bar_label(bars, [f"{value:,}" for value in values])
        axes.set(title=name, ylim=(0.9 * min(values), 1.03 * max(values)), yticks=[])
        axes.set_xticks(range(RANKS), map("part {}".format, range(RANKS)))
        axes.spines[["top", "right", "left"]].set_visible(False)
    show(figure, "Equal bytes, yet part 3 has fewer characters and one batch fewer (axes are cut).")


def arrived(batch: torch.Tensor | None) -> torch.Tensor:
    """Return a batch; one that is None never arrives, as from a disk that does not answer."""
    if batch is None:
        time.sleep(600)
    return batch


def at_night(fn: Callable, *arguments: object, **options: object) -> WorkerTimeout | None:
    """Run a function on four ranks, in a folder that is gone afterwards.

    Returns:
        What it raised if it hung, or None.
    """
    folder = TemporaryDirectory()
    silent = contextlib.redirect_stdout(io.StringIO())
    with folder, contextlib.chdir(folder.name), silent:
        try:
            launch(
                lambda: fn(*arguments, **options),
                world_size=RANKS,
                backend="gloo",
                timeout=_NIGHT_S * slowness(),
            )
        except WorkerTimeout as error:
            return error
    return None


def where(error: WorkerTimeout | None) -> list[str]:
    """Return which call each rank of a launch stood in that hung; nothing if none hung."""
    if error is None:
        return []
    lines = [error.waiting[rank].line for rank in range(RANKS)]
    return [line.code.partition("(")[0] if line else "elsewhere" for line in lines]


def draw_suspects(on_monday: Sequence[str], stands: Mapping[str, Sequence[str]]) -> None:
    """Draw in which call each rank stood, for Monday and for each suspect.

    Args:
        on_monday: The call of each rank.
        stands: The same by suspect, as `where` returns them.
    """
    rows = {"on Monday": on_monday} | dict(stands)
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 0.4), layout="constrained")
    for row, lines in enumerate(rows.values()):
        for rank in range(RANKS):
            line = lines[rank] if lines else "done"
            color = _SAME if line == on_monday[rank] else _OTHER
            axes.add_patch(plt.Rectangle((rank, row), 0.97, 0.92, fc=color, ec="#777777"))
            axes.text(rank + 0.48, row + 0.46, line, ha="center", va="center", size=9)
    axes.set(xlim=(0, RANKS), ylim=(len(rows), 0))
    axes.set_xticks([rank + 0.48 for rank in range(RANKS)], map("rank {}".format, range(RANKS)))
    axes.set_yticks([row + 0.46 for row in range(len(rows))], list(rows))
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    same = [name.partition(":")[0] for name, lines in stands.items() if lines == list(on_monday)]
    throughout = _green_throughout(same)
    show(figure, f"Where each rank stood. Green: as on Monday. {throughout}")


def _green_throughout(names: Sequence[str]) -> str:
    """Which suspects of a picture left all of a night's traces."""
    if not names:
        return "No suspect is green throughout."
    return f"Green throughout: {', '.join(names)}."


# --- Tuesday ---


def draw_used(used: torch.Tensor) -> None:
    """Draw how often each window of a part was used in a night.

    Args:
        used: For each window, in how many epochs it was trained on.
    """
    columns = 68
    rows = -(-len(used) // columns)
    grid = torch.full((rows * columns,), float("nan"))
    grid[: len(used)] = used.float()
    figure, axes = plt.subplots(figsize=(8, 1.9), layout="constrained")
    axes.imshow(grid.view(rows, columns), cmap="viridis_r", vmin=0, vmax=2.4, aspect="auto")
    for number in (used == 0).nonzero().flatten().tolist():
        axes.text(number % columns, number // columns, "×", ha="center", va="center", color="red")
    axes.set(xticks=[], yticks=[])
    counts = [int((used == times).sum()) for times in range(3)]
    show(
        figure,
        f"Windows of part 0 in the order of the text; dark: trained on in both epochs "
        f"({counts[2]}), lighter: in one ({counts[1]}), crossed out: in none ({counts[0]}).",
    )


def draw_lives(lives: Sequence[Sequence[tuple[int, int]]], saved_step: int) -> None:
    """Draw the steps of the last epoch in both lives of a job that was killed.

    Args:
        lives: For each life its steps as (epoch, step).
        saved_step: The last step of the first life that its checkpoint has.
    """
    figure, axes = plt.subplots(figsize=(8, 1.6), layout="constrained")
    epoch = lives[0][-1][0]
    for row, life in enumerate(lives):
        for step in [step for number, step in life if number == epoch]:
            lost = row == 0 and step > saved_step
            color = "white" if lost else rank_style(row)["color"] + "88"
            axes.add_patch(plt.Rectangle((step, row), 0.92, 0.86, fc=color, ec="#555555"))
            axes.text(step + 0.46, row + 0.43, str(step), ha="center", va="center", size=9)
    axes.set(xlim=(0, 15), ylim=(2, 0), xticks=[])
    axes.set_yticks([0.43, 1.43], ["first life", "second life"])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    show(
        figure,
        f"Steps of epoch {epoch}. Coloured: they are in the final weights. "
        f"Steps 0 to {saved_step} are in them twice.",
    )


# What an answer of part 3 gets: how many windows each batch of a rank has.
HANDS: dict[str, Callable[[int, int], list[int]]] = {
    "equal batches": lambda rank, world_size: [3, 3],
    "one batch fewer on the last rank": lambda rank, world_size: (
        [4, 4] if rank == world_size - 1 else [4, 4, 2]
    ),
    "unequal batches, nothing on rank 0": lambda rank, world_size: (
        [2 + rank, 1] * (rank + (world_size == 1))
    ),
}
_LETTERS, _WINDOW = 104, 17


def sgd(model: nn.Module) -> torch.optim.SGD:
    """Return the optimiser of the small models that are judged."""
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def small_model() -> nn.Sequential:
    """Return a model of 16 numbers of characters, in double precision."""
    layers = nn.Embedding(_LETTERS, 2), nn.Flatten(), nn.Linear(32, 3), nn.Tanh()
    return nn.Sequential(*layers, nn.Linear(3, _LETTERS)).double()


def training(answer: Callable) -> Callable:
    """Wrap an answer `(model, optimizer, batches)`: returns the weights that it leaves."""

    @functools.wraps(answer)
    def trained(model: nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
        wrapped = DistributedDataParallel(model)
        answer(wrapped, sgd(wrapped), batches)
        return parameters_to_vector(model.parameters()).detach()

    return trained


def epoch_options(loss_of: Callable) -> dict[str, object]:
    """Return the options by which an epoch on unequal batches is judged.

    Args:
        loss_of: The script's loss, `(model, batch, **options)`.
    """

    def spec(models: list[nn.Module], batches_of: list[list]) -> list[torch.Tensor]:
        model, optimizer = models[0], sgd(models[0])
        for step in range(max(map(len, batches_of))):
            here = [batches[step] for batches in batches_of if step < len(batches)]
            optimizer.zero_grad()
            loss_of(model, torch.cat(here)).backward()
            optimizer.step()
        return [parameters_to_vector(model.parameters()).detach()] * len(models)

    return {
        "spec": spec,
        "inputs": _epoch_inputs,
        "cases": list(HANDS),
        "timeout": 5,
        "work": _busiest,
        "rtol": 1e-6,
    }


def _epoch_inputs(rank: int, world_size: int, case: str) -> tuple[nn.Module, list[torch.Tensor]]:
    sizes = HANDS[case](rank, world_size)
    return small_model(), [torch.randint(1, _LETTERS, (size, _WINDOW)) for size in sizes]


def _busiest(world_size: int, case: str) -> float:
    """How much more the busiest rank may compute than a fair share."""
    windows = [sum(HANDS[case](rank, world_size)) for rank in range(world_size)]
    return 1.3 * world_size * max(windows) / sum(windows)


_DRAWN_SIZES = ([32, 32, 20], [32, 32, 20], [32, 32, 20], [32, 26])


def draw_epoch(answer: Callable) -> None:
    """Draw how many windows each rank hands to the model in each step of an epoch.

    Args:
        answer: `(model, optimizer, batches)`; a wrong one is drawn as well. Rank 3 has two
            batches, the others three.
    """

    def noted() -> None:
        torch.manual_seed(0)
        network = small_model()
        network.register_forward_pre_hook(lambda _, inputs: print("windows", len(inputs[0])))
        model = DistributedDataParallel(network)
        sizes = _DRAWN_SIZES[dist.get_rank()]
        batches = [torch.randint(1, _LETTERS, (size, _WINDOW)) for size in sizes]
        answer(model, sgd(model), batches)

    ending = ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            limit_s = _NIGHT_S * slowness()
            output = launch(noted, world_size=RANKS, backend="gloo", timeout=limit_s).output
    except WorkerTimeout as error:
        output, ending = error.output, " Then it hangs."
    except WorkerError as error:
        print("No picture yet:", error.failures[0].headline)
        return
    steps = []
    for text in output:
        steps.append([int(number) for number in re.findall(r"windows (\d+)", text)])
    _draw_steps(steps, ending)


def _draw_steps(steps: list[list[int]], ending: str) -> None:
    """One box for each forward of each rank, as wide as it has windows."""
    figure, axes = plt.subplots(figsize=(7, 2.1), layout="constrained")
    longest = max(map(len, steps), default=0)
    for rank, sizes in enumerate(steps):
        for step, size in enumerate(sizes):
            color = rank_style(rank)["color"] + "77" if size else "white"
            width = 0.1 + 0.85 * min(size, 32) / 32
            axes.add_patch(plt.Rectangle((step, rank), width, 0.86, fc=color, ec="#555555"))
            axes.text(step + 0.05, rank + 0.43, str(size), va="center")
    axes.set(xlim=(0, max(longest, 1)), ylim=(RANKS, 0))
    axes.set_xticks([n + 0.47 for n in range(longest)], [f"step {n}" for n in range(longest)])
    axes.set_yticks([rank + 0.43 for rank in range(RANKS)], map("rank {}".format, range(RANKS)))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    count, of = sum(map(sum, steps)), sum(map(sum, _DRAWN_SIZES))
    words = f"Step by step, ranks hand {count} of {of} windows to the model."
    show(figure, f"{words} {_who_has_none(steps)}{ending}")


def _who_has_none(steps: list[list[int]]) -> str:
    """Which ranks have no window in a step, and whether they take part in it."""
    longest = max(map(len, steps), default=0)
    if longest == 0:
        return "Nobody trains."
    sentences = []
    for step in range(longest):
        for rank, sizes in enumerate(steps):
            if step >= len(sizes):
                sentences.append(f"Rank {rank} takes no part in step {step}.")
            elif sizes[step] == 0:
                sentences.append(f"Rank {rank} takes part in step {step} with an empty batch.")
    return " ".join(sentences) or "Each rank has some in every step."


# --- Wednesday ---


@dataclass(frozen=True)
class Traces:
    """What a night leaves.

    Attributes:
        size: Whether the checkpoint is whole or short.
        loads: What `torch.load` says of it.
        row: Whether `metrics.csv` has a row for the epoch.
        writer: How the process ended that wrote it.
    """

    size: str
    loads: str
    row: str
    writer: str


WEDNESDAY = Traces("short", "central directory", "no row", "killed")


def limit_files(count_bytes: int, deadly: bool) -> None:
    """Let no file of this process become longer; what tries is killed, or gets an error."""
    handler = signal.SIG_DFL if deadly else signal.SIG_IGN
    signal.signal(signal.SIGXFSZ, handler)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (count_bytes, hard))


def lose_last_block(path: Path) -> None:
    """Fill the last 4,096 bytes of a file with zeros, as a disk does that lost a block."""
    with open(path, "r+b") as file:
        file.seek(-_BLOCK_BYTES, os.SEEK_END)
        file.write(bytes(_BLOCK_BYTES))


def lose_block(path: Path, number: int) -> None:
    """Fill a block of 4,096 bytes of a file with zeros; the first has number 0."""
    with open(path, "r+b") as file:
        file.seek(number * _BLOCK_BYTES)
        file.write(bytes(_BLOCK_BYTES))


def flip_a_bit(path: Path) -> None:
    """Change one bit in the middle of a file."""
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 4)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 64]))


def traces_of(week: Path, before: Callable | None, after: Callable | None) -> Traces:
    """Play an epoch of Tuesday's script on one rank, with something bad around its save.

    Args:
        week: The folder with the evidence.
        before: Called with the path of the checkpoint just before it is saved, or None.
        after: Called when the epoch is over, or None.
    """
    script = incident.script_of(week, "tuesday")
    save, deal = script.save, script.batches

    def night(checkpoint: Path) -> None:
        def saved(*arguments: object) -> None:
            before(checkpoint)
            save(*arguments)

        script.save = saved if before else save
        script.batches = lambda windows, epoch: deal(windows, epoch)[:3]
        script.train(week / "delivery", checkpoint, 1)
        if after:
            after(checkpoint)

    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        checkpoint, ending = Path(folder, "checkpoint.pt"), "ended well"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                launch(night, checkpoint, world_size=1, backend="gloo")
        except WorkerError as error:
            ending = "killed" if re.search("SIG(KILL|XFSZ)", str(error)) else "raised an error"
        row = "a row" if Path("metrics.csv").exists() else "no row"
        return Traces(*_file_traces(checkpoint), row, ending)


def _file_traces(checkpoint: Path) -> tuple[str, str]:
    """Whether a checkpoint is short, and what torch says of it."""
    size = "short" if checkpoint.stat().st_size == TORN_BYTES else "whole"
    try:
        torch.load(checkpoint)
    except RuntimeError as error:
        words = str(error).partition(" This is")[0]
        return size, words.rpartition("finding ")[2].rstrip(".")
    return size, "loads"


def draw_traces(traces: Mapping[str, Traces]) -> None:
    """Draw the traces of each suspect, coloured where they are Wednesday's.

    Args:
        traces: By suspect, what it left.
    """
    rows = {"on Wednesday": WEDNESDAY} | dict(traces)
    columns = {"size": "the file", "loads": "torch.load", "row": "metrics.csv", "writer": "writer"}
    figure, axes = plt.subplots(figsize=(8, 0.42 * len(rows) + 0.4), layout="constrained")
    for row, left in enumerate(rows.values()):
        for column, field in enumerate(columns):
            value = getattr(left, field)
            color = _SAME if value == getattr(WEDNESDAY, field) else _OTHER
            axes.add_patch(plt.Rectangle((column, row), 0.97, 0.92, fc=color, ec="#777777"))
            axes.text(column + 0.48, row + 0.46, value, ha="center", va="center", size=9)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.set_xticks([n + 0.48 for n in range(len(columns))], columns.values())
    axes.set_yticks([row + 0.46 for row in range(len(rows))], list(rows))
    axes.tick_params(length=0, labelbottom=False, labeltop=True)
    axes.spines[:].set_visible(False)
    same = [name for name, left in traces.items() if left == WEDNESDAY]
    show(figure, f"Green: as on Wednesday. {_green_throughout(same)}")


# --- Thursday ---


def draw_losses(week: Path) -> None:
    """Draw what each rank printed of its loss on Tuesday and on Thursday."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.7), sharey=True, layout="constrained")
    for axes, day in zip(panels, ("tuesday", "thursday"), strict=True):
        for rank, log in enumerate(incident.logs_of(week, day, "stdout.log")):
            losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", log)]
            axes.plot(range(len(losses)), losses, label=f"rank {rank}", **rank_style(rank))
        axes.set(title=day, xlabel="epoch, step")
        axes.set_xticks(range(4), ["2, 0", "2, 10", "3, 0", "3, 10"])
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("loss")
    panels[0].legend(frameon=False, ncols=2)
    show(
        figure,
        "Losses by epoch and step. On Thursday only rank 0 begins as it did on Tuesday; "
        "ranks 1 to 3 begin at 4.7.",
    )


def judging(answer: Callable) -> Callable:
    """Wrap an answer `(model, windows)`: each rank's DDP gets weights of its own first."""

    @functools.wraps(answer)
    def judged(model: nn.Module, weights: torch.Tensor, windows: torch.Tensor) -> list[float]:
        wrapped = DistributedDataParallel(model)
        vector_to_parameters(weights, model.parameters())
        losses = answer(wrapped, windows)
        return [float(loss) for loss in losses]

    return judged


def each_model_options(loss_of: Callable) -> dict[str, object]:
    """Return the options by which a function is judged that tests each rank's model alone.

    Args:
        loss_of: The script's loss, `(model, batch, **options)`.
    """

    def spec(models: list, weights: list, windows: list) -> list[list[float]]:
        losses = []
        for model, vector in zip(models, weights, strict=True):
            vector_to_parameters(vector, model.parameters())
            with torch.no_grad():
                losses.append(loss_of(model, windows[0]).item())
        return [losses] * len(models)

    return {
        "spec": spec,
        "inputs": _each_model_inputs,
        "cases": ("seven windows", "twelve windows"),
        "world_sizes": (1, 2, 3),
        "rtol": 1e-5,
        "timeout": 5,
    }


def _each_model_inputs(rank: int, world_size: int, case: str) -> tuple:
    count = 7 if case == "seven windows" else 12
    everywhere = torch.Generator().manual_seed(count)  # all ranks read the same testing text
    windows = torch.randint(1, _LETTERS, (count, _WINDOW), generator=everywhere)
    model = small_model()
    weights = torch.randn(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    return model, weights, windows


@dataclass(frozen=True)
class Replayed:
    """A night that was played again.

    Attributes:
        first_losses: What each rank printed in its first step.
        validation: The last figure that rank 0 printed.
        apart: The largest difference of a weight between rank 0 and any rank, in the end.
        moved_apart: The same of how far each weight has moved since the ranks resumed.
        each_model: What the learner's function returned on rank 0.
    """

    first_losses: list[float]
    validation: float
    apart: float
    moved_apart: float
    each_model: list[float]

    @property
    def whose(self) -> int:
        """Whose loss the validation is: 0 for rank 0's model, 1 for another rank's, 2 for none."""
        for rank, loss in enumerate(self.each_model):
            if abs(loss - self.validation) < _PRINTED:
                return min(rank, 1)
        return 2


def replay(week: Path, day: str, loss_of_each: Callable) -> Replayed:
    """Play a night on the real delivery: two epochs of Tuesday's script, then one of the day's.

    Args:
        week: The folder with the evidence.
        day: Whose script resumes from the backup that the first two epochs leave.
        loss_of_each: Takes the DDP and the testing windows, returns one loss for each rank.
    """
    tuesday, script = incident.script_of(week, "tuesday"), incident.script_of(week, day)
    delivery, backup = week / "delivery", Path("backup.pt")

    def two_epochs() -> None:
        tuesday.train(delivery, backup, 2)

    def night() -> tuple[float, float, list[float]]:
        begun, resume = [], script.resume

        def noting(checkpoint: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
            epoch = resume(checkpoint, model, optimizer)
            begun.append(parameters_to_vector(model.parameters()).detach().clone())
            return epoch

        script.resume = noting
        model = script.train(delivery, backup, 3)
        weights = parameters_to_vector(model.parameters()).detach()
        apart, moved_apart = _from_rank_0s(weights), _from_rank_0s(weights - begun[0])
        try:
            losses = loss_of_each(model, script.read(delivery / "testing.txt"))
        except NotImplementedError:
            losses = []
        return apart, moved_apart, [float(loss) for loss in losses]

    silent = contextlib.redirect_stdout(io.StringIO())
    with TemporaryDirectory() as folder, contextlib.chdir(folder), silent:
        launch(two_epochs, world_size=RANKS, backend="gloo")
        results = launch(night, world_size=RANKS, backend="gloo")
    firsts = [float(re.search(r"step 0 loss ([\d.]+)", text)[1]) for text in results.output]
    validation = float(re.findall(r"validation ([\d.]+)", results.output[0])[-1])
    return Replayed(firsts, validation, *results[0])


def _from_rank_0s(vector: torch.Tensor) -> float:
    """The largest difference of a number to rank 0's, over all ranks."""
    rank_0s = vector.clone()
    dist.broadcast(rank_0s, src=0)
    largest = (vector - rank_0s).abs().max()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return largest.item()


def draw_models(night: Replayed) -> None:
    """Draw the loss of each rank's model beside the figure that the script reported."""
    if not night.each_model:
        print("No picture yet: loss_of_each is not written.")
        return
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    colors = [rank_style(rank)["color"] for rank in range(len(night.each_model))]
    ranks = range(len(night.each_model))
    bars = axes.bar(ranks, night.each_model, color=colors)
    axes.bar_label(bars, [f"{loss:.3f}" for loss in night.each_model])
    axes.axhline(night.validation, color="black", ls="--")
    low, high = min(night.each_model), max(night.each_model)
    axes.set(ylim=(low - 0.3, high + 0.15), ylabel="loss on all of testing.txt (axis is cut)")
    axes.set_xticks(ranks, [f"model of rank {rank}" for rank in ranks])
    axes.spines[["top", "right"]].set_visible(False)
    losses = ", ".join(f"{loss:.3f}" for loss in night.each_model)
    show(figure, f"Each rank's model: {losses}. Dashed, what was reported: {night.validation}.")


# --- the appendix: 64 ranks ---

NETWORK, GRADIENT_BYTES, WINDOW_US = Network(latency_us=3, gbit_s=100), 99_488, 100


def model_says(ranks: int) -> float:
    """Return the share of a step in which a rank computes, if all have 32 windows in each step."""
    turn_us = NETWORK.latency_us + GRADIENT_BYTES / ranks * 8 / 1000 / NETWORK.gbit_s
    compute_us = PART_BATCH * WINDOW_US
    return compute_us / (compute_us + 2 * (ranks - 1) * turn_us)


def article_windows() -> list[int]:
    """Return how many windows each paragraph of the novel has."""
    numbers, alphabet = novel()
    paragraphs = "".join(alphabet[number] for number in numbers).split("\n\n")
    return [len(paragraph) // _WINDOW for paragraph in paragraphs]


def replayed(epoch: Callable, make_model: Callable, shares: Sequence[int]) -> float:
    """Return the share of time in which real ranks compute, replayed with each rank's windows.

    Args:
        epoch: `(model, optimizer, batches)`, an epoch on unequal batches.
        make_model: Returns the script's model.
        shares: Windows of each rank.
    """
    windows = novel()[0].unfold(0, _WINDOW, _WINDOW)

    def trained() -> None:
        model = make_model()
        epoch(model, sgd(model), windows[: shares[dist.get_rank()]].split(PART_BATCH))

    trace = launch(trained, world_size=len(shares), backend="gloo", trace=True).trace
    cost_us, events = {}, []
    for rank, share in enumerate(shares):
        calls = trace.of_rank(rank)
        steps = [call.index for call in calls if call.bytes == GRADIENT_BYTES]
        events += [call for call in calls if call.index >= steps[0]]
        for number, index in enumerate(steps):
            left = max(0, share - PART_BATCH * number)
            cost_us[rank, index] = WINDOW_US * min(PART_BATCH, left)
    step_by_step = replace(trace, events=tuple(events))
    replay_of = step_by_step.replay(NETWORK, lambda e: cost_us.get((e.rank, e.index), 0))
    return sum(cost_us.values()) / len(shares) / max(replay_of.finish_us)


def draw_efficiency(curves: Mapping[str, Callable], real: Mapping[int, float]) -> None:
    """Draw modelled efficiency over the number of ranks, with what real ranks replayed.

    Args:
        curves: By name, a function from a number of ranks to an efficiency from 0 to 1.
        real: By number of ranks, the replayed efficiency.
    """
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    ranks = [2**power for power in range(1, 7)]
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(ranks, [100 * curve(n) for n in ranks], label=name, **rank_style(number))
    heights = [100 * share for share in real.values()]
    axes.plot(list(real), heights, "kx", ms=9, label="replayed from real ranks")
    axes.set(xscale="log", xlabel="ranks", ylabel="efficiency (%)", ylim=(0, 102))
    axes.set_xticks(ranks, map(str, ranks))
    axes.minorticks_off()
    axes.legend(loc="lower left")
    shares = [f"{name} {curve(ranks[-1]):.1%}" for name, curve in curves.items()]
    show(figure, f"Share of the time in which {ranks[-1]} ranks compute: {', '.join(shares)}.")
