"""Collective by rank, as a picture: the one that a rank never called, or called differently."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.flight.explanation import Explanation
from course_utils.hang.facts import ranks_by_text
from course_utils.hang.wait_graph import differs
from course_utils.launcher.errors import WorkerTimeout
from course_utils.launcher.language import _, english
from course_utils.launcher.words import ranks_named
from course_utils.network.trace import Trace
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import HIGH, cell, rank_rows
from course_utils.pictures.style import show
from course_utils.record.event import FORWARD, Event, Meeting, meetings

_LAST = 5  # collectives
_MOST = 8  # if the calls before the last five differ as well
_WIDE = 2.5  # of a cell, which is 1 high
_MISSING = {"linewidth": 2, "linestyle": "--"}
_DIFFERS = {"linewidth": 2, "edgecolor": INK}
_IN = {"order": "kind", "evaluation": "mode", "shape": "shape or dtype"}  # else as it is called


class _Recorded(NamedTuple):
    """What is known of the calls of all ranks."""

    events: Sequence[Event]
    world_size: int
    open_calls: list[Event]


class Difference(NamedTuple):
    """In what the calls of a collective differ, and whose are marked."""

    name: str  # such as "kind" or "shape or dtype"
    ranks: set[int]  # in the minority, or all where there is no majority


def plot_calls(source: WorkerTimeout | Trace | Explanation, caption: str = "") -> None:
    """Show the last five collectives of every rank, in order; what is missing or differs is marked.

    If the first of these differs, and the one before it as well, the picture begins earlier.
    Of several groups it is the first in which a rank waits, or else the first one used.

    Args:
        source: The error of ranks that hang, `results.trace`, or what `explain_dumps` returns.
        caption: The sentence below it. By default what is missing, and in what calls differ; how
            each rank called it is in the alternative text.

    Raises:
        TypeError: `source` is none of these.
        ValueError: No rank is known to have called a collective.
    """
    events, world_size, open_calls = _recorded(source)
    collectives = []
    for meeting in meetings(events, world_size):
        if meeting.key.form == "collective":
            collectives.append(meeting)
    if not collectives:
        raise ValueError(_("no rank is known to have called a collective: look at its messages"))
    of_one_group = _of_one_group(collectives, open_calls)
    earlier, shown = of_one_group[-_MOST:-_LAST], of_one_group[-_LAST:]
    while earlier and difference(shown[0]) and difference(earlier[-1]):
        shown.insert(0, earlier.pop())
    figure = draw(shown, open_calls)
    show(figure, words(shown), caption or words(shown, in_short=True))


def _recorded(source: WorkerTimeout | Trace | Explanation) -> _Recorded:
    if isinstance(source, Trace):
        unfinished = [call for call in source.events if not call.finished]
        return _Recorded(source.events, source.world_size, unfinished)
    if not isinstance(source, WorkerTimeout | Explanation):
        raise TypeError(
            _("calls are drawn of a WorkerTimeout or of a trace, not {source!r:.80}", source=source)
        )
    events: list[Event] = []
    open_calls: list[Event] = []
    for whereabouts in source.waiting.values():
        events += whereabouts.calls
        open_calls += whereabouts.open_calls
    return _Recorded(events, len(source.waiting), open_calls)


def _of_one_group(collectives: list[Meeting], open_calls: list[Event]) -> list[Meeting]:
    """Those of the first group in which a rank waits, or else of the first one used."""
    first = collectives[0]
    for meeting in collectives:
        if any(call in open_calls for call in meeting.calls.values()):
            first = meeting
            break
    return [meeting for meeting in collectives if meeting.key == first.key]


@english()  # as are all other words of pictures
def words(shown: list[Meeting], in_short: bool = False) -> str:
    """What is missing and what differs, of several collectives in the first one.

    In short, how each rank called it is left out.
    """
    first = shown[0]
    last = shown[-1]
    collectives = f"Collectives #{first.number} to #{last.number}"
    if len(shown) == 1:
        collectives = f"Collective #{first.number}"
    ranks = ranks_named(first.members)
    sentences = [*_what_differs(shown, in_short), *_what_is_missing(shown)]
    content = ". ".join(sentences) or "all the same"
    return f"{collectives} of {ranks}: {content}."


def _what_differs(shown: list[Meeting], in_short: bool) -> list[str]:
    """A sentence on the first collective whose calls differ, if there is one."""
    for meeting in shown:
        differs_in = difference(meeting)
        if differs_in is None:
            continue
        sentence = f"#{meeting.number} differs in {differs_in.name}"
        if in_short:
            return [sentence]
        labels = {}
        for rank, call in sorted(meeting.calls.items()):
            labels[rank] = _label(call)
        parts = []
        for label, ranks in ranks_by_text(labels).items():
            named = ranks_named(ranks)
            parts.append(f"{label} on {named}")
        labels_by_rank = "; ".join(parts)
        return [f"{sentence}: {labels_by_rank}"]
    return []


def _what_is_missing(shown: list[Meeting]) -> list[str]:
    """A sentence on the first collective that a rank never called, if there is one."""
    for meeting in shown:
        if meeting.missing:
            ranks = ranks_named(meeting.missing)
            return [f"{ranks} never called #{meeting.number}"]
    return []


def difference(meeting: Meeting) -> Difference | None:
    """What its calls differ in, if they do."""
    calls = list(meeting.calls.values())
    kind = differs(calls)
    lines = {_line(call) for call in calls}
    if kind is None:
        if len(lines) == 1:
            return None
        kind = "line"
    name = _IN.get(kind, kind)
    labels = {rank: _label(call) for rank, call in meeting.calls.items()}
    counts = Counter(labels.values())
    most = max(counts.values())
    commonest = [label for label, count in counts.items() if count == most]
    if len(commonest) > 1:
        return Difference(name, set(labels))
    in_the_minority = set()
    for rank, label in labels.items():
        if label != commonest[0]:
            in_the_minority.add(rank)
    return Difference(name, in_the_minority)


def _line(call: Event) -> str:
    match = re.search(r"line \d+|$", call.place)
    return match[0]


def _shape(call: Event) -> str:
    if not call.dtype or call.kind == "barrier":
        return ""
    return str(call.shape)


def _label(call: Event) -> str:
    """What tells it from a different one, such as `all_reduce of float32 (4,), root 0, line 7`."""
    kind = call.kind
    shape = _shape(call)
    if shape:
        kind = f"{kind} of {call.dtype} {shape}"
    parts = [kind]
    if call.root is not None and call.kind != "barrier":
        parts.append(f"root {call.root}")
    line = _line(call)
    if line:
        parts.append(line)
    return ", ".join(parts)


def draw(shown: list[Meeting], open_calls: list[Event]) -> Figure:
    """Draw a row per rank and a column per collective, and in which calls ranks are held."""
    first = shown[0]
    open_calls = [*open_calls, *_begun_with(open_calls, shown)]
    ranks = sorted(first.members)
    width = len(shown) * _WIDE
    row_inches = 1.2 * HIGH
    inches_across = row_inches * width + 0.7
    inches_down = row_inches * len(ranks) + 0.4
    figure, axes = plt.subplots(figsize=(inches_across, inches_down), layout="constrained")
    rank_rows(axes, ranks, width)
    for column, meeting in enumerate(shown):
        x = column * _WIDE
        _draw_column(axes, x, meeting, ranks, open_calls)
    return figure


def _begun_with(open_calls: list[Event], shown: list[Meeting]) -> list[Event]:
    """What DDP's forward has begun right before an open call: it waits for both of them.

    It has two broadcasts of its buffers on their way, of which only the last is an open call.
    """
    begun = []
    for open_call in open_calls:
        for meeting in shown:
            call = meeting.calls.get(open_call.rank)
            if call is None or not call.flags & FORWARD:
                continue
            is_before = (call.number + 1, call.line) == (open_call.number, open_call.line)
            is_unmet = meeting.missing or difference(meeting)
            if is_before and is_unmet:
                begun.append(call)
    return begun


def _draw_column(
    axes: Axes, x: float, meeting: Meeting, ranks: list[int], open_calls: list[Event]
) -> None:
    middle = x + _WIDE / 2
    axes.text(middle, -0.1, f"#{meeting.number}", ha="center", color=INK)
    blamed = set()
    differs_in = difference(meeting)
    if differs_in is not None:
        blamed = differs_in.ranks
    for y, rank in enumerate(ranks):
        if rank in meeting.missing:
            cell(axes, x, y, "missing", (), _WIDE, **_MISSING)
            continue
        call = meeting.calls[rank]
        is_open = call in open_calls
        _draw_call(axes, (x, y), call, is_open, is_blamed=rank in blamed)


def _draw_call(
    axes: Axes, corner: tuple[float, float], call: Event, is_open: bool, is_blamed: bool
) -> None:
    x, y = corner
    lines = [call.kind]
    place = _line(call)
    if call.shape:  # "()" of a single number would be a riddle
        shape = _shape(call)
        place = f"{shape} {place}".strip()
    if place:
        lines.append(place)
    if is_open:
        lines.append("waits here")
    text = "\n".join(lines)
    ranks = (call.rank,)
    if not is_blamed:
        cell(axes, x, y, text, ranks, _WIDE)
        return
    cell(axes, x, y, text, ranks, _WIDE, **_DIFFERS)
    mark_x = x + _WIDE - 0.25
    mark_y = y + 0.33
    axes.text(mark_x, mark_y, "≠", ha="center", weight="bold", color=INK)
