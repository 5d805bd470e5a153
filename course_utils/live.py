"""What a notebook shows while workers run: the panel, and where they are if they may hang."""

import contextlib
import html
import json
import math
import mmap
import sys
import time
from collections.abc import Sequence
from typing import Any

from IPython import get_ipython
from IPython.display import DisplayHandle

from course_material.messages import said
from course_utils.hang.report import HangReport, table
from course_utils.hang.wait_graph import WaitGraph
from course_utils.launcher.listener import Listener
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.pictures.curve import Points, curves, note
from course_utils.pictures.style import OKABE_ITO
from course_utils.record.record import Record

_EVERY_S = 0.12  # between two drawings
_STILL_S, _ALONE_S = 5.0, 1.0  # without a call, until it is said where all ranks are
_RETURNED_S = 0.5  # the same where a rank has returned: whoever waits for it waits for ever
_ROOM, _WIDEST = 1 << 16, 60  # bytes of all that a rank reports; characters of one word of it
_GREY = "rgba(128,128,128,.3)"  # seen on white and on black
_CARD = (
    f"display:inline-block;padding:6px 4px 4px;border:1px solid {_GREY};border-radius:6px;"
    "font:13px/1.5 var(--jp-ui-font-family,sans-serif);font-variant-numeric:tabular-nums;"
    "color:var(--jp-ui-font-color1,inherit)"
)
_reported: dict[str, Any] = {}  # by this rank
_memory: mmap.mmap | None = None  # of this rank, which the kernel reads as well


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
        value = getattr(value, "item", lambda v=value: v)()
        _reported[name] = value if isinstance(value, int | float) else str(value)[:_WIDEST]
    text = json.dumps(_reported).encode() + b"\n"
    if len(text) <= _ROOM:
        _memory[: len(text)] = text


def _read(memory: mmap.mmap) -> dict[str, Any]:
    with contextlib.suppress(ValueError):  # the rank is just writing
        return json.loads(memory[: memory.find(b"\n") + 1] or "{}")
    return {}


class Panel(Listener):
    """One line per rank: progress, numbers, and what it printed last.

    An output that is updated, and no widget: a saved notebook keeps its last state.
    """

    view: DisplayHandle | None = None

    def on_start(self, world_size: int) -> None:
        """Show it, in a notebook; elsewhere there is none."""
        self.started, self.shown = time.monotonic(), 0.0
        self.memory = [mmap.mmap(-1, _ROOM) for _ in range(world_size)]
        self.losses: list[Points] = [[] for _ in range(world_size)]
        self.text = f"Live panel of {world_size} ranks: run this cell to see it move."
        if "ipykernel" in sys.modules and get_ipython() is not None:
            self.view = DisplayHandle()
            self.view.display(self._bundle('<div class="live-panel"></div>'), raw=True)

    def in_worker(self, rank: int) -> contextlib.AbstractContextManager[None]:
        """Let `report` of this rank write where the kernel reads."""
        global _memory
        _memory = self.memory[rank]
        return contextlib.nullcontext()

    def on_poll(self, members: Sequence[WorkerHandle], final: bool = False) -> None:
        """Redraw, at most eight times a second."""
        now = time.monotonic()
        if self.view is not None and (final or now - self.shown >= _EVERY_S):
            self.shown = now
            told = [_read(memory) for memory in self.memory]
            for points, metrics in zip(self.losses, told, strict=True):
                note(points, metrics)
            unsettled = "stopped" if final else "running"
            drawn = render(members, told, now - self.started, unsettled, self.losses)
            self.view.update(self._bundle(drawn), raw=True)

    def _bundle(self, drawn: str) -> dict[str, str]:
        return {"text/plain": self.text, "text/html": drawn}


def render(
    members: Sequence[WorkerHandle],
    told: Sequence[dict[str, Any]],
    seconds: float,
    unsettled: str = "running",
    losses: Sequence[Points] = (),
) -> str:
    """The panel as HTML, in colours that hold in light and in dark themes.

    Of each rank there is what it has `told`, and its `losses` so far; `unsettled` is the word for
    one that still runs.
    """
    rows = "".join(_row(*one, unsettled) for one in zip(members, told, strict=True))
    head = f"{len(members)} rank{'s' * (len(members) > 1)} · {seconds:.1f} s"
    return (
        f'<div class="live-panel" style="{_CARD}"><div style="padding:0 10px">{head}</div>'
        f'<table style="border-collapse:separate;border-spacing:10px 4px">{rows}</table>'
        f"{curves(losses)}</div>"
    )


def _row(member: WorkerHandle, metrics: dict[str, Any], unsettled: str) -> str:
    colour = OKABE_ITO[member.rank % len(OKABE_ITO)].replace("#000000", "currentColor")
    state = "✗ failed" if member.failure else "✓ done" if member.settled else unsettled
    last = html.escape(member.text().rstrip().rpartition("\n")[2][-_WIDEST:])
    name = f'<span style="color:{colour}">●</span> <b>rank {member.rank}</b>'
    numbers = [_number(name, metrics) for name in metrics if name != "steps"]
    cells = [name, _bar(metrics, colour), *numbers, state]
    cells += [f'<code style="font-size:12px">{last}</code>'] * bool(last)
    return "<tr>" + "".join(f'<td style="white-space:pre">{c}</td>' for c in cells) + "</tr>"


def _number(name: str, metrics: dict[str, Any]) -> str:
    value = metrics[name]
    if isinstance(value, float):
        value = f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"
    if name == "step" and "steps" in metrics:
        total = str(metrics["steps"])
        value = f"{str(value).rjust(len(total), chr(0x2007))} / {total}"  # spaces as wide as digits
    return html.escape(f"{name} {value}"[:_WIDEST])


def _bar(metrics: dict[str, Any], colour: str) -> str:
    """How many of its steps a rank has done, where it reports numbers for both."""
    step, steps = (metrics.get(name, 0) for name in ("step", "steps"))
    numbers = all(isinstance(v, int | float) and math.isfinite(v) for v in (step, steps))
    share = 100 * min(1.0, max(0.0, step / steps)) if numbers and steps else 0
    filled = f"linear-gradient(90deg,{colour} {share:.1f}%,{_GREY} {share:.1f}%)"
    return (
        f'<div role="progressbar" aria-valuenow="{share:.0f}" '
        f'style="width:150px;height:10px;border-radius:5px;background:{filled}"></div>'
    )


class Early(HangReport):
    """In a notebook: where all ranks are, while they may hang and `timeout` is not yet over."""

    _view: DisplayHandle | None = None

    def __init__(self, record: Record, timeout: float) -> None:
        super().__init__(record, _STILL_S if somebody_looks() else math.inf)
        self._timeout, self._alone = timeout, False
        self._asked_soon = False  # since a rank has last called something

    def on_start(self, world_size: int) -> None:
        """Begin to watch; a rank alone that waits for another does so in vain, whoever looks."""
        super().on_start(world_size)
        self._alone = world_size == 1
        self.still_s = _ALONE_S if self._alone else self.still_s

    def on_poll(self, members: Sequence[WorkerHandle], final: bool = False) -> bool:
        """Ask sooner, once, where a rank has returned, since it makes no more calls."""
        if not self._alone and math.isfinite(self.still_s):
            a_rank_has_returned = any(member.settled for member in members)
            soon = a_rank_has_returned and not self._asked_soon
            self.still_s = _RETURNED_S if soon else _STILL_S
        return super().on_poll(members, final)

    def on_silence(self, graph: WaitGraph) -> bool:
        """Nothing where no rank waits for another, and nothing while ranks start.

        A long computation moves nothing that could be seen here, and GPUs take their time.
        """
        if self.still_s == _RETURNED_S and not graph.hangs_for_ever:
            self._asked_soon, self._asked = True, False
            self.since = time.monotonic() - _RETURNED_S
            return False
        starting = any(rank.starts for rank in graph.ranks.values())
        waits = any(graph.waits_for.values()) and not starting
        if not graph.hangs_for_ever and waits and not self._alone:
            still = f"No rank has called anything for {self.still_s:g} s:\n{table(graph)}"
            self.on_progress(said(f"{still}\nTime is up after {self._timeout:g} s."))
        return graph.hangs_for_ever

    def on_progress(self, text: str = "") -> None:
        """Take away what is shown, and show a text."""
        self._asked_soon = self._asked_soon and bool(text)
        bundle = {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>" * bool(text)}
        if self._view:
            self._view.update(bundle, raw=True)
            self._view = self._view if text else None
        elif text:
            self._view = DisplayHandle()
            self._view.display(bundle, raw=True)


def somebody_looks() -> bool:
    """Whether a person runs this cell: a run that compares outputs could not answer a question."""
    return getattr(getattr(get_ipython(), "kernel", None), "_allow_stdin", False)
