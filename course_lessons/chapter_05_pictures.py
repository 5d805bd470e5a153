"""Chapter 05's pictures: what a learner's own wrapper sends, and when, in real ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle

from course_lessons.chapter_05 import TwoExperts
from course_lessons.chapter_05_diary import (
    BACKWARD_RETURNS,
    BUFFERS,
    FACTORS,
    GRADIENT,
    MESSAGE,
    NAMES,
    OTHER,
    WAIT,
    ZEROS,
    Note,
    Part,
    keep,
)
from course_lessons.drawing import answers_to_draw
from course_utils import show
from course_utils.pictures.shapes import INK
from course_utils.pictures.squares import cell, rank_rows
from course_utils.pictures.style import OKABE_ITO, first_of, rank_style, together

# ---- messages of a step, rank by rank ------------------------------------------------------------

_UNIT = 0.43  # inches of a gradient
_BACKWARD_ORDER = range(len(NAMES) - 1, -1, -1)
_WORDS = {ZEROS: "zeros", OTHER: "other", BUFFERS: "scale", BUFFERS + 1: "shift"}
_ON_ITS_WAY, _WRONG = OKABE_ITO[0], "#B00020"
_LINES_HIGH = 0.17  # of two messages that are on their way at once
_WIDE = {WAIT: 0.4, BACKWARD_RETURNS: 0.3}
_KEY = "(g: a gradient; A: a message; w: a wait; |: backward returns.)"


class _Row(NamedTuple):
    """What is drawn of a rank in a part, and which factors its gradients should have then."""

    name: str
    rank: int
    part: Part
    wanted: list[float]
    ranks: int  # in all
    times: int = 1  # that gradients have been added up


def draw_step(
    *kinds: Callable,
    paths: Sequence[Sequence[int]] = ((0, 1), (0, 1)),
    limit_bytes: int | None = None,
    calls_finish: bool = True,
) -> None:
    """Draw one step of a wrapper in real ranks: gradients, messages, waits, what comes of it.

    Args:
        kinds: The first one that is written is drawn, also if it is wrong, raises or hangs.
        paths: For each rank the experts that its inputs use.
        limit_bytes: Of a bucket; None for wrappers that have none.
        calls_finish: Whether the loop calls `finish` after backward.
    """
    for kind in kinds:
        diary, reason = keep(kind, paths, limit_bytes, calls_finish=calls_finish)
        if _is_written(kind, reason):
            break
    wanted = [_mean(paths, number) for number in range(len(NAMES))]
    rows = []
    for rank in range(len(paths)):
        rows.append(_Row(f"rank {rank}", rank, diary.read(rank, 0), wanted, len(paths)))
    steps = together([_letters(row.part.notes) for row in rows], ": ")
    name, verdict = kind.__name__, _verdict(rows)
    question = "Which messages leave before backward returns, at the dotted line?"
    text = f"{name}, {first_of(steps)} {verdict} {_KEY}"
    remark = "Only gradients are judged here, of one step."
    if any(_mixed(row, _different(rows)) for row in rows):
        remark = "A mix is a sum of different gradients."
    show(_strips(rows), text, f"{name}. {question} {verdict} {remark}")


def draw_parts(*kinds: Callable, calls_finish: bool = True) -> None:
    """Draw rank 0 in a step of three parts, two of them within `no_sync`, and in the next part.

    Args:
        kinds: The first one that is written is drawn, also if it is wrong, raises or hangs.
        calls_finish: Whether the loop calls `finish` after each backward.
    """
    talking = False, False, True, False
    for kind in kinds:
        diary, reason = keep(kind, [(0, 1)] * 2, 100, talking, calls_finish)
        if _is_written(kind, reason):
            break
    alone, mean = FACTORS[0], sum(FACTORS[:2]) / 2
    names = "part 1, no_sync", "part 2, no_sync", "part 3", "next step, no_sync"
    rows = []
    for part, wanted in enumerate((alone, 2 * alone, 3 * mean, alone)):
        times = part % 3 + 1
        row = _Row(names[part], 0, diary.read(0, part), [wanted] * len(NAMES), 2, times)
        rows.append(row)
    steps = [f"{row.name}: {_letters(row.part.notes)}" for row in rows]
    name, verdict = kind.__name__, _verdict(rows)
    question = "What is sent in which part, and what does the rank have then?"
    text = f"{name}, rank 0. {'. '.join(steps)}. {verdict}"
    show(_strips(rows), text, f"{name}, rank 0. {question} {verdict}")


def _is_written(kind: Callable, reason: str) -> bool:
    """Whether something can be drawn; says so if not, or if it ends early."""
    if reason.startswith("NotImplementedError"):
        print(f"No picture yet of {kind.__name__}: {reason}")
        return False
    if reason:
        print(f"{kind.__name__} ends early:", reason)
    return True


def _mean(paths: Sequence[Sequence[int]], number: int) -> float:
    """What a gradient's factor should be, if experts without inputs give zeros."""
    expert = NAMES[number][:2]
    shares = []
    for rank, path in enumerate(paths):
        rests = expert in ("e0", "e1") and int(expert[1]) not in path
        shares.append(0 if rests else FACTORS[rank])
    return sum(shares) / len(paths)


def _names(which: Sequence[int]) -> list[str]:
    return [NAMES[each] if each < len(NAMES) else _WORDS[each] for each in which]


def _letters(notes: Sequence[Note]) -> str:
    """A step as the checks write it, with the end of backward: "ggAggAgggA|www"."""
    letters = {GRADIENT: "g", MESSAGE: "A", WAIT: "w", BACKWARD_RETURNS: "|"}
    text = "".join(letters[kind] for kind, _ in notes)
    contents = [" ".join(_names(which)) for kind, which in notes if kind == MESSAGE]
    return f"{text} with {'; '.join(contents) or 'no message'}"


def _is_right(factor: float, wanted: float) -> bool:
    return math.isclose(factor, wanted, rel_tol=1e-4)


def _verdict(rows: Sequence[_Row]) -> str:
    """How many gradients are what they should be at each row's end."""
    right = total = 0
    for row in rows:
        for factor, wanted in zip(row.part.factors, row.wanted, strict=True):
            right += _is_right(factor, wanted)
            total += 1
    return f"Afterwards {right} of {total} gradients are right."


def _different(rows: Sequence[_Row]) -> set[int]:
    """The messages, from 0, that do not carry the same gradients on all ranks."""
    carried = []
    for row in rows:
        carried.append([set(which) for kind, which in row.part.notes if kind == MESSAGE])
    differing = set()
    for number in range(max(map(len, carried))):
        contents = [messages[number] for messages in carried if number < len(messages)]
        without_zeros = [content for content in contents if ZEROS not in content]
        if any(content != without_zeros[0] for content in without_zeros):
            differing.add(number)
    return differing


def _mixed(row: _Row, different: set[int]) -> set[int]:
    """The gradients that are wrong and were sent in one of these messages, so with others."""
    messages = [which for kind, which in row.part.notes if kind == MESSAGE]
    mixed = set()
    for number, which in enumerate(messages):
        if number in different:
            mixed.update(which)
    wrong = set()
    for number, factor in enumerate(row.part.factors):
        if number in mixed and not math.isnan(factor) and not _is_right(factor, row.wanted[number]):
            wrong.add(number)
    return wrong


def _strips(rows: Sequence[_Row]) -> Figure:
    """Draw two lines for each row: what happens, and the gradients in the end."""
    ranks = {row.rank for row in rows}
    different = _different(rows) if len(ranks) > 1 else set()
    figure, axes = plt.subplots(layout="constrained")
    top, right, ticks = 0.0, 0.0, {}
    for row in rows:
        end, lanes = _strip(axes, top, row, different)
        ticks[top + 0.5] = row.name
        below = top + 1.0 + _LINES_HIGH * (lanes + 1)
        right = max(right, end, _gradients(axes, below, row, _mixed(row, different)))
        ticks[below + 0.5] = "then has"
        top = below + 1.45
    axes.set(xlim=(-0.1, right + 0.1), ylim=(top - 0.2, -0.35), xticks=[])
    axes.set_yticks(list(ticks), ticks.values())
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.set_size_inches(_UNIT * (right + 0.2) + 0.8, _UNIT * top + 0.65)
    _legend(figure, rows[0].rank)
    return figure


def _strip(axes: Axes, top: float, row: _Row, different: set[int]) -> tuple[float, int]:
    """Draw what a rank does, from left to right; returns where it ends, and lanes below."""
    x, starts, ends = 0.0, [], {}
    for kind, which in row.part.notes:
        width = _WIDE.get(kind, 1.0)
        if kind == GRADIENT:
            cell(axes, x, top, NAMES[which[0]], (row.rank,))
        elif kind == MESSAGE:
            words = _names(which)
            width = max(1.0, sum(0.3 + 0.18 * len(word) for word in words)) + 0.1
            _message(axes, (x, top), width, " ".join(words), len(starts), different)
            starts.append(x)
        elif kind == BACKWARD_RETURNS:
            axes.plot([x + 0.15] * 2, [top, top + 1], color=INK, linewidth=1.5, linestyle=":")
        else:
            ends.setdefault(which[0], x + 0.2)
            axes.text(x + 0.2, top + 0.56, "w", ha="center", va="center", size=9, color=INK)
        x += width
    return x, _on_their_way(axes, top + 1.05, starts, ends, x)


def _message(
    axes: Axes,
    corner: tuple[float, float],
    width: float,
    words: str,
    number: int,
    different: set[int],
) -> None:
    x, y = corner
    color = _WRONG if number in different else INK
    style = {"facecolor": "white", "edgecolor": color, "linewidth": 1.8}
    box = FancyBboxPatch((x + 0.1, y + 0.1), width - 0.2, 0.82, "round,pad=0,rounding_size=0.1")
    box.set(**style)
    axes.add_patch(box)
    axes.text(x + width / 2, y + 0.53, words, ha="center", va="center", size=9, color=INK)
    sign = f"#{number + 1} ≠" if number in different else f"#{number + 1}"
    axes.text(x + 0.12, y - 0.02, sign, size=7.5, color=color)


def _on_their_way(
    axes: Axes, top: float, starts: Sequence[float], ends: Mapping[int, float], last: float
) -> int:
    """Draw a line for each message until somebody waits for it; returns how many lanes it takes."""
    lanes: list[float] = []  # where the latest line of each ends
    for number, start in enumerate(starts):
        end = ends.get(number, last)
        lane = 0
        while lane < len(lanes) and lanes[lane] > start:
            lane += 1
        lanes[lane:] = [end, *lanes[lane + 1 :]]
        y = top + _LINES_HIGH * lane
        style = "-" if number in ends else (0, (1, 1))
        axes.plot([start + 0.15, end], [y, y], color=_ON_ITS_WAY, linewidth=3, linestyle=style)
    return len(lanes)


def _gradients(axes: Axes, top: float, row: _Row, mixed: set[int]) -> float:
    """Draw a rank's gradients in the end; returns where they end."""
    width = 2.1
    for place, number in enumerate(_BACKWARD_ORDER):
        factor, wanted = row.part.factors[number], row.wanted[number]
        if number in mixed:  # a multiple of its marks all the same, where they are far larger
            factor = math.inf
        right = _is_right(factor, wanted)
        box = {} if right else {"edgecolor": _WRONG, "linewidth": 2, "linestyle": "--"}
        text = f"{NAMES[number]} {_amount(factor)}"
        ranks = _givers(factor, row)
        cell(axes, place * width, top, text if right else f"{text} ≠", ranks, width, **box)
    return len(NAMES) * width


def _amount(factor: float) -> str:
    if math.isnan(factor):
        return "–"
    if math.isinf(factor) or abs(factor) > 1000:
        return "mix"
    return f"{factor:.3g}"


def _givers(factor: float, row: _Row) -> tuple[int, ...]:
    """The ranks whose marks make up a factor: one, or all of them, added up or averaged."""
    everybody = tuple(range(row.ranks))
    sum_of_all = row.times * sum(FACTORS[: row.ranks])
    givers = {sum_of_all: everybody, sum_of_all / row.ranks: everybody}
    for rank in everybody:
        share = row.times * FACTORS[rank]
        givers |= {share: (rank,), share / row.ranks: (rank,)}
    for known, ranks in givers.items():
        if _is_right(factor, known):
            return ranks
    return ()


def _legend(figure: Figure, rank: int) -> None:
    color = rank_style(rank)["color"]
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=color + "4D", edgecolor=color, label="a gradient comes"),
        Rectangle((0, 0), 1, 1, facecolor="white", edgecolor=INK, linewidth=1.8, label="a message"),
        Line2D([], [], color=_ON_ITS_WAY, linewidth=3, label="on its way, until a wait (w)"),
        Line2D([], [], color=INK, linewidth=1.5, linestyle=":", label="backward returns"),
    ]
    style = {"loc": "outside upper left", "ncols": 4, "frameon": False, "fontsize": 9}
    figure.legend(handles=handles, **style)


# ---- copies --------------------------------------------------------------------------------------


def draw_copies(states_by_name: Mapping[str, Sequence[Mapping[str, torch.Tensor]]]) -> None:
    """Draw whose values each rank's tensors have.

    Args:
        states_by_name: For each wrapper the ranks' state; the first one's are what each rank had.
    """
    before = next(iter(states_by_name.values()))
    names = list(before[0])
    labels, owners, sentences = [], [], []
    for wrapper, states in states_by_name.items():
        for rank, state in enumerate(states):
            labels.append(f"{wrapper}, rank {rank}")
            owners.append([_owners(state[name], before, name) for name in names])
        different = [name for name in names if not torch.equal(states[0][name], states[1][name])]
        sentences.append(f"{wrapper}: {len(different)} of {len(names)} tensors differ")
    show(_owned(names, labels, owners), f"{'. '.join(sentences)}.")


def draw_start(*kinds: Callable) -> None:
    """Draw whose values three ranks have once they are wrapped, and how often each was sent.

    Args:
        kinds: The first one that neither raises nor hangs is drawn, also if it is wrong.
    """
    for kind in kinds:
        results = answers_to_draw(lambda kind=kind: _start(kind), world_size=3)
        if results is not None:
            break
    before, after, sent = zip(*results, strict=True)
    names = list(before[0])
    owners = []
    for state in after:
        owners.append([_owners(state[name], before, name) for name in names])
    figure = _owned(names, ["rank 0", "rank 1", "rank 2"], owners, sent[0])
    right = sum(ranks[:1] == (0,) for row in owners for ranks in row)
    show(
        figure,
        f"{kind.__name__} on three ranks: {right} of {3 * len(names)} copies are rank 0's. Rank 0 "
        f"sent {sum(count > 0 for count in sent[0])} of {len(names)} tensors, in {sum(sent[0])} "
        "calls.",
    )


def _start(kind: Callable) -> tuple[dict, dict, list[int]]:
    """In a rank: all tensors before and after wrapping, and calls by tensor."""
    torch.manual_seed(dist.get_rank())
    network = TwoExperts()
    held = dict(network.named_parameters()) | dict(network.named_buffers())
    before = {name: tensor.detach().clone() for name, tensor in held.items()}
    pointers = []

    def at_call(call: object) -> None:
        pointers.extend(tensor.data_ptr() for tensor in call.input_tensors)

    dist.group.WORLD.register_pre_hook(6, at_call)
    kind(network)
    dist.group.WORLD.unregister_pre_hook(6)
    after = {name: tensor.detach().clone() for name, tensor in held.items()}
    return before, after, [pointers.count(tensor.data_ptr()) for tensor in held.values()]


def _owners(tensor: torch.Tensor, before: Sequence[Mapping], name: str) -> tuple[int, ...]:
    """The ranks that had these values."""
    ranks = range(len(before))
    return tuple(rank for rank in ranks if torch.equal(tensor, before[rank][name]))


def _owned(
    names: Sequence[str],
    labels: Sequence[str],
    owners: Sequence[Sequence[tuple[int, ...]]],
    sent: Sequence[int] = (),
) -> Figure:
    """Draw a column per tensor and a row per copy; below, how often it was sent."""
    row_names = list(labels)
    if sent:
        row_names.append("times sent")
    rows = len(row_names)
    figure, axes = plt.subplots(figsize=(0.5 * len(names) + 2.2, 0.42 * rows + 1.3))
    rank_rows(axes, range(rows), len(names))
    axes.set_yticks([row + 0.5 for row in range(rows)], row_names)
    for column, name in enumerate(names):
        short = name.replace("weight", "w").replace("bias", "b").removeprefix("0.")
        axes.text(column + 0.4, -0.1, short, rotation=45, size=8)
        for row, whose in enumerate(owners):
            ranks = whose[column]
            text = "=" if len(ranks) > 1 else "/".join(map(str, ranks)) or "?"
            cell(axes, column, row, text, ranks)
        if sent:
            axes.text(column + 0.5, rows - 0.45, sent[column], ha="center", va="center", size=9)
    return figure


# ---- what the chapter measures -------------------------------------------------------------------


def draw_sizes(sizes_mib: Sequence[float], ms_by_latency: Mapping[int, Sequence[float]]) -> None:
    """Draw a step's ms by the size of buckets; the first size is a bucket for each gradient."""
    figure, axes = plt.subplots(figsize=(7.5, 3), layout="constrained")
    places = range(len(sizes_mib))
    sentences = []
    for number, (latency_us, all_ms) in enumerate(ms_by_latency.items()):
        style = {"color": OKABE_ITO[number], "marker": "os"[number], "label": f"{latency_us} µs"}
        axes.plot(places, all_ms, **style)
        best = all_ms.index(min(all_ms))
        axes.plot(best, all_ms[best], "o", ms=15, mfc="none", mec=INK)
        for place, ms in zip(places, all_ms, strict=True):
            above = 11 if latency_us == max(ms_by_latency) else -20
            style = {"textcoords": "offset points", "ha": "center", "size": 9}
            axes.annotate(f"{ms:.1f}", (place, ms), (0, above), **style)
        numbers = ", ".join(f"{ms:.1f}" for ms in all_ms)
        sentences.append(f"{latency_us} µs: {numbers} ms")
    axes.set_xticks(places, ["alone", *(f"{size:g} MiB" for size in sizes_mib[1:])])
    axes.set(xlabel="limit of a bucket", ylabel="ms of a step", ylim=(0, None))
    axes.margins(y=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(title="latency", frameon=False)
    show(figure, f"From each gradient alone to one bucket. {'; '.join(sentences)}.")


def draw_memory(places_by_name: Mapping[str, Sequence[tuple[int, bool]]]) -> None:
    """Draw gradients in pieces of memory, and which of them autograd wrote there.

    Args:
        places_by_name: By options, for each gradient its piece, and whether autograd wrote there.
    """
    count = len(next(iter(places_by_name.values())))
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(places_by_name) + 0.6), layout="constrained")
    rank_rows(axes, range(len(places_by_name)), count)
    axes.set_yticks([row + 0.5 for row in range(len(places_by_name))], list(places_by_name))
    sentences = []
    for row, (name, places) in enumerate(places_by_name.items()):
        pieces = [piece for piece, _ in places]
        for piece in set(pieces):
            first, width = pieces.index(piece), pieces.count(piece)
            style = {"facecolor": "#EEEEEE", "edgecolor": INK, "linewidth": 1.5}
            axes.add_patch(Rectangle((first + 0.04, row + 0.12), width - 0.08, 0.76, **style))
        for column, (_, in_place) in enumerate(places):
            style = {"facecolor": OKABE_ITO[2], "edgecolor": "white"}
            if not in_place:
                style = {"facecolor": "white", "edgecolor": OKABE_ITO[4], "hatch": "////"}
            axes.add_patch(Rectangle((column + 0.2, row + 0.28), 0.6, 0.44, **style))
        written = sum(in_place for _, in_place in places)
        sentences.append(f"{name}: {len(set(pieces))} pieces, {written} of {count} written there")
    handles = [
        Rectangle((0, 0), 1, 1, fc=OKABE_ITO[2], label="a gradient, written here by autograd"),
        Rectangle((0, 0), 1, 1, fc="white", ec=OKABE_ITO[4], hatch="////", label="copied here"),
        Rectangle((0, 0), 1, 1, fc="#EEEEEE", ec=INK, linewidth=1.5, label="one piece of memory"),
    ]
    style = {"loc": "outside upper left", "ncols": 3, "frameon": False, "fontsize": 9}
    figure.legend(handles=handles, **style)
    text = f"{'. '.join(sentences)}.".replace("\n", ", ")
    show(figure, text, "Look how many pieces of memory there are, and who writes into them.")


def draw_arrivals(came_by_name: Mapping[str, Sequence[str]]) -> None:
    """Draw in which order gradients are complete, and where embedding and head stand."""
    rows = len(came_by_name)
    figure, axes = plt.subplots(figsize=(9, 0.6 * rows + 0.5), layout="constrained")
    rank_rows(axes, range(rows), max(map(len, came_by_name.values())))
    axes.set_yticks([row + 0.5 for row in range(rows)], list(came_by_name))
    sentences = []
    for row, (name, came) in enumerate(came_by_name.items()):
        for place, parameter in enumerate(came):
            kind = parameter.split(".")[0]
            is_end = kind in ("head", "embedding")
            color = OKABE_ITO[4] if is_end else "#EEEEEE"
            box = {"facecolor": color, "edgecolor": INK if is_end else "#999999"}
            cell(axes, place, row, kind[:3] + "." if is_end else str(place + 1), (), **box)
        order = came.index("embedding.weight")
        sentences.append(f"{name}: {order} gradients before the embedding's, of {len(came)}")
    axes.set_xlabel(
        "gradients in the order in which they are complete (hea.: head, emb.: embedding)"
    )
    show(figure, f"{'. '.join(sentences)}.")


def draw_sent(sent_by_part: Sequence[str], parts: int = 3) -> None:
    """Draw which parts of a step send buffers (BROADCAST) and gradients (ALLREDUCE)."""
    figure, axes = plt.subplots(figsize=(8, 1.6), layout="constrained")
    names = {"buffers": "BROADCAST", "gradients": "ALLREDUCE"}
    rank_rows(axes, range(2), len(sent_by_part) * 1.6)
    axes.set_yticks((0.5, 1.5), list(names))
    ticks = []
    for number, sent in enumerate(sent_by_part):
        for row, call in enumerate(names.values()):
            box = {"facecolor": "white", "edgecolor": "#999999", "linestyle": ":"}
            if call in sent:
                box = {"facecolor": OKABE_ITO[5], "edgecolor": INK}
            cell(axes, number * 1.6, row, "sent" if call in sent else "–", (), 1.6, **box)
        silence = "\nno_sync" if (number + 1) % parts else ""
        ticks.append(f"step {number // parts + 1}, part {number % parts + 1}{silence}")
    axes.set_xticks([1.6 * number + 0.8 for number in range(len(ticks))], ticks, size=8)
    show(figure, f"Part by part: {', '.join(sent_by_part)}.")
