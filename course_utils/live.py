"""What a notebook shows while workers run: the panel, and where the ranks are if they may hang."""

import contextlib
import html
import json
import math
import mmap
import struct
import sys
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from IPython import get_ipython
from IPython.display import DisplayHandle

from course_material.prediction_forms import a_person_looks
from course_utils.hang.report import HangReport, table
from course_utils.hang.wait_graph import WaitGraph
from course_utils.launcher.language import _
from course_utils.launcher.listener import Listener
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.pictures.curve import MOST_POINTS, Points, curves, note, on_any_theme
from course_utils.record.record import Record

_REDRAW_S = 0.12  # between two drawings
_QUIET_S = 5.0  # of silence, after which all positions are shown
_ALONE_S = 1.0  # the same with a single rank
_RETURNED_S = 0.5  # the same once a rank has returned: who waits for it waits for ever
_MEMORY_BYTES = 1 << 16  # for the last numbers that a rank reports; its curve stands behind them
_CURVE_BYTES = 8 + 16 * MOST_POINTS  # how many points, then two numbers for each
_MAX_CHARACTERS = 60  # of one word that a rank reports, and of the line that it printed last
_GREY = "rgba(128,128,128,.3)"  # seen on white and on black
_CARD = (
    f"display:inline-block;padding:6px 4px 4px;border:1px solid {_GREY};border-radius:6px;"
    "font:13px/1.5 var(--jp-ui-font-family,sans-serif);font-variant-numeric:tabular-nums;"
    "color:var(--jp-ui-font-color1,inherit)"
)
_RED = "#D55E00"  # of Okabe and Ito, as a wrong answer in a check; seen on white and on black
_FIGURE_SPACE = "\u2007"  # as wide as a digit
_reported: dict[str, Any] = {}  # what this rank has reported so far
_curve: Points = []  # the steps and losses among that
_memory: mmap.mmap | None = None  # where this rank reports; the kernel reads it as well


def report(**metrics: Any) -> None:
    """Show numbers of this rank, such as `step=3, loss=0.7`, in the panel of `launch(live=True)`.

    Without a panel, under `torchrun` for example, it does nothing, so that the same function runs
    unchanged there.

    Args:
        **metrics: names and numbers. `step` with `steps` draws a progress bar, and `step` with
            `loss` a curve.
    """
    if _memory is None:
        return
    for name, value in metrics.items():
        if hasattr(value, "item"):  # a tensor with one number in it
            value = value.item()
        if not isinstance(value, int | float):
            value = str(value)[:_MAX_CHARACTERS]
        _reported[name] = value
    line = json.dumps(_reported).encode() + b"\n"
    if len(line) <= _MEMORY_BYTES:
        _memory[: len(line)] = line
    # All of the curve: the kernel looks eight times a second, and a first epoch may take less.
    note(_curve, _reported)
    numbers = list(chain.from_iterable(_curve))
    points = struct.pack(f"q{len(numbers)}d", len(_curve), *numbers)
    end = _MEMORY_BYTES + len(points)
    _memory[_MEMORY_BYTES:end] = points


def _read(memory: mmap.mmap) -> dict[str, Any]:
    """What a rank has reported; nothing before its first report."""
    line = memory[: memory.find(b"\n") + 1]
    if not line:
        return {}
    with contextlib.suppress(ValueError):  # the rank is just writing
        return json.loads(line)
    return {}


def _read_curve(memory: mmap.mmap) -> Points:
    """The steps and losses that a rank has reported so far."""
    (count,) = struct.unpack_from("q", memory, _MEMORY_BYTES)
    numbers = struct.unpack_from(f"{2 * count}d", memory, _MEMORY_BYTES + 8)
    steps = numbers[::2]
    losses = numbers[1::2]
    return list(zip(steps, losses, strict=True))


class Panel(Listener):
    """One line per rank: progress, numbers, and what it printed last.

    An output that is updated, and no widget: a saved notebook keeps its last state.
    """

    view: DisplayHandle | None = None

    def on_start(self, world_size: int) -> None:
        """Make the memory that ranks report into, and show the panel."""
        self.started_s = time.monotonic()
        self.drawn_s = 0.0
        size = _MEMORY_BYTES + _CURVE_BYTES
        self.memory = [mmap.mmap(-1, size) for _rank in range(world_size)]
        self.text = _(
            "Live panel of {world_size} ranks: run this cell to see it move.", world_size=world_size
        )
        self.show()

    def show(self) -> None:
        """Display it, in a notebook; elsewhere there is none."""
        if "ipykernel" in sys.modules and get_ipython() is not None:
            self.view = DisplayHandle()
            self.view.display(self._bundle('<div class="live-panel"></div>'), raw=True)

    def in_worker(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """Let `report` of this rank write where the kernel reads."""
        global _memory
        _memory = self.memory[rank]
        return contextlib.nullcontext()

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> None:
        """Redraw, at most eight times a second."""
        now = time.monotonic()
        is_due = final or now - self.drawn_s >= _REDRAW_S
        if self.view is None or not is_due:
            return
        self.drawn_s = now
        metrics_by_rank = list(map(_read, self.memory))
        losses = list(map(_read_curve, self.memory))
        unsettled = "running"
        if final:
            unsettled = "stopped"
        seconds = now - self.started_s
        drawn = render(workers, metrics_by_rank, seconds, unsettled, losses)
        self.view.update(self._bundle(drawn), raw=True)

    def hide(self) -> None:
        """Take it away, if it is there."""
        if self.view is not None:
            self.view.update({"text/plain": "", "text/html": ""}, raw=True)

    def _bundle(self, drawn: str) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": drawn}


def render(
    workers: Sequence[WorkerHandle],
    metrics_by_rank: Sequence[dict[str, Any]],
    seconds: float,
    unsettled: str = "running",
    losses: Sequence[Points] = (),
) -> str:
    """The panel as HTML, in colours that hold in light and in dark themes.

    Args:
        workers: the handles of all ranks.
        metrics_by_rank: what each rank has reported.
        seconds: since the launch began.
        unsettled: the word for a rank that has neither returned nor failed.
        losses: by rank, its steps and losses so far.
    """
    rows = []
    for worker, metrics in zip(workers, metrics_by_rank, strict=True):
        rows.append(_row(worker, metrics, unsettled))
    body = "".join(rows)
    ranks = f"{len(workers)} ranks"
    if len(workers) == 1:
        ranks = "1 rank"
    head = f"{ranks} · {seconds:.1f} s"
    return (
        f'<div class="live-panel" style="{_CARD}"><div style="padding:0 10px">{head}</div>'
        f'<table style="border-collapse:separate;border-spacing:10px 4px">{body}</table>'
        f"{curves(losses)}</div>"
    )


def _row(worker: WorkerHandle, metrics: dict[str, Any], unsettled: str) -> str:
    """A row of the panel's table: one rank."""
    colour = on_any_theme(worker.rank)
    cells = [f'<span style="color:{colour}">●</span> <b>rank {worker.rank}</b>']
    cells.append(_bar(worker.rank, metrics, colour))
    for name in metrics:
        if name != "steps":
            cells.append(_number(name, metrics))
    cells.append(_state(worker, unsettled))
    last_line = _last_line(worker)
    if last_line:
        cells.append(f'<code style="font-size:12px">{html.escape(last_line)}</code>')
    columns = [f'<td style="white-space:pre">{cell}</td>' for cell in cells]
    return f"<tr>{''.join(columns)}</tr>"


def _state(worker: WorkerHandle, unsettled: str) -> str:
    if worker.failure:
        return f'<span style="color:{_RED}">✗ failed</span>'
    if worker.settled:
        return "✓ done"
    return unsettled


def _last_line(worker: WorkerHandle) -> str:
    """The end of the line that a rank printed last."""
    text = worker.output.end().rstrip()
    _, _, line = text.rpartition("\n")
    return line[-_MAX_CHARACTERS:]


def _number(name: str, metrics: dict[str, Any]) -> str:
    """A metric with its name, such as `loss 0.2500`, or `step 3 / 10`."""
    value = metrics[name]
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.4g}"
        if 1e-3 <= abs(value) < 1e4:
            text = f"{value:.4f}"
    if name == "step" and "steps" in metrics:
        total = str(metrics["steps"])
        text = f"{text.rjust(len(total), _FIGURE_SPACE)} / {total}"
    words = f"{name} {text}"
    return html.escape(words[:_MAX_CHARACTERS])


def _bar(rank: int, metrics: dict[str, Any], colour: str) -> str:
    """How many of its steps a rank has done, if it reports numbers for both."""
    percent = _percent_done(metrics.get("step", 0), metrics.get("steps", 0))
    border = f"{percent:.1f}%"
    filled = f"linear-gradient(90deg,{colour} {border},{_GREY} {border})"
    return (
        f'<div role="progressbar" aria-label="rank {rank}" aria-valuenow="{percent:.0f}" '
        f'style="width:150px;height:10px;border-radius:5px;background:{filled}"></div>'
    )


def _percent_done(step: Any, steps: Any) -> float:
    for value in (step, steps):
        if not isinstance(value, int | float) or not math.isfinite(value):
            return 0.0
    if steps == 0:
        return 0.0
    share = min(1.0, max(0.0, step / steps))
    return 100 * share


class Early(HangReport):
    """In a notebook: where all ranks are, while they may hang and their time is not yet up.

    Args:
        record: What the ranks call.
        timeout: Seconds until their time is up.
        counts_silence: Whether these begin anew with each sign of life; see `SilenceTimeout`.
    """

    _view: DisplayHandle | None = None

    def __init__(self, record: Record, timeout: float, counts_silence: bool = False) -> None:
        quiet_s = math.inf
        if a_person_looks():
            quiet_s = _QUIET_S
        super().__init__(record, quiet_s)
        self._timeout = timeout
        self._counts_silence = counts_silence
        self._is_alone = False
        self._asked_soon = False  # since a rank has last called something

    def on_start(self, world_size: int) -> None:
        """Begin to watch.

        A single rank that waits for a different one will wait for ever, so that is reported early,
        also when nobody looks.
        """
        super().on_start(world_size)
        self._is_alone = world_size == 1
        if self._is_alone:
            self.quiet_s = _ALONE_S

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> bool:
        """Ask sooner, once, if a rank has returned, since it makes no more calls."""
        if not self._is_alone and math.isfinite(self.quiet_s):
            self.quiet_s = _QUIET_S
            a_rank_has_returned = any(worker.settled for worker in workers)
            if a_rank_has_returned and not self._asked_soon:
                self.quiet_s = _RETURNED_S
        return super().on_poll(workers, final)

    def on_quiet(self, graph: WaitGraph) -> bool:
        """Show nothing if no rank waits for another, and nothing while ranks start.

        A long computation moves nothing that could be seen here, and GPUs take their time.
        """
        if self.quiet_s == _RETURNED_S and not graph.hangs_for_ever:
            self._asked_soon = True
            self._watch(already_s=_RETURNED_S)
            return False
        is_starting = any(rank.starts for rank in graph.ranks.values())
        waits = any(graph.waits_for.values()) and not is_starting
        if not graph.hangs_for_ever and waits and not self._is_alone:
            still = _("No rank has called anything for {seconds:g} s:", seconds=self.quiet_s)
            limit = _("Time is up after {seconds:g} s.", seconds=self._timeout)
            if self._counts_silence:
                limit = _(
                    "Time is up after {seconds:g} s without a call or a print.",
                    seconds=self._timeout,
                )
            self._show(f"{still}\n{table(graph)}\n{limit}")
        return graph.hangs_for_ever

    def on_progress(self) -> None:
        """Take away what is shown: it is no longer so."""
        self._asked_soon = False
        if self._view:
            self._view.update({"text/plain": "", "text/html": ""}, raw=True)
            self._view = None

    def _show(self, text: str) -> None:
        """Show a text, in place of one that is shown already."""
        escaped = html.escape(text)
        bundle = {"text/plain": text, "text/html": f"<pre>{escaped}</pre>"}
        if self._view:
            self._view.update(bundle, raw=True)
        else:
            self._view = DisplayHandle()
            self._view.display(bundle, raw=True)
