"""Chapter 08's pictures, parts 1 to 6: who stands where, what lies, and what a death leaves."""

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lessons.chapter_08 import CULPRIT, JOBS, RANKS, Absence, in_a_roll_call, raw_logs
from course_lessons.drawing import Box, box_figure, draw_boxes, paint, reason_of
from course_utils import launch, show
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.network.trace import Trace
from course_utils.pictures.style import OKABE_ITO, rank_style

_ORANGE = "#E69F0088"
_MIB = 2**20


def _bare(axes: Axes, ranks: Sequence[int], **settings: object) -> None:
    """A row for each rank, without a frame at the top and at the right."""
    names = [f"rank {rank}" for rank in ranks]
    axes.set(yticks=range(len(names)), yticklabels=names, **settings)
    axes.set(ylim=(len(names) - 0.5, -0.5))
    axes.spines[["top", "right"]].set_visible(False)


# ---- part 1: it hangs ----------------------------------------------------------------------------


def draw_calls(hang: WorkerTimeout) -> None:
    """Draw each rank's calls in order, with the step in which it made them.

    Args:
        hang: What part 1's launch of three ranks ended with; each rank prints its steps.
    """
    rows = {}
    for rank, printed in enumerate(hang.output):
        boxes = []
        for call, step in enumerate(re.findall(r"step (\d)", printed)):
            boxes.append(_made(rank, f"step {step}", bold=int(step) != call))
        if hang.waiting[rank].state == "returned":
            boxes.append(Box("returned", edge=rank_style(rank)["color"]))
        else:
            words = f"step {len(boxes)}\nwaits"
            boxes.append(Box(words, edge=rank_style(rank)["color"], hatch="////"))
        rows[f"rank {rank}"] = boxes
    columns = [f"call {call + 1}" for call in range(5)]
    figure = box_figure(rows, columns, width=1.1)
    show(figure, "In its third call rank 1 is in step 3, and meets the others' step 2.")


def _made(rank: int, words: str, bold: bool = False) -> Box:
    """A call that a rank has made."""
    color = rank_style(rank)["color"]
    return Box(words, fill=f"{color}55", edge=color, bold=bold)


def draw_averages(hang: WorkerTimeout) -> None:
    """Draw the average that each rank has printed for each step, and the right one.

    Args:
        hang: As for `draw_calls`; the right average of step k is k.
    """
    figure, axes = plt.subplots(figsize=(6.5, 2.6), layout="constrained")
    axes.plot(range(5), range(5), color="#777777", linewidth=1, label="right")
    sentences = []
    for rank, printed in enumerate(hang.output):
        found = re.findall(r"step (\d): average ([\d.]+)", printed)
        steps = [int(step) for step, _ in found]
        averages = [float(average) for _, average in found]
        style = rank_style(rank) | {
            "linestyle": "",
            "markerfacecolor": "none",
            "markersize": 11 - 2 * rank,
        }
        axes.plot(steps, averages, label=f"rank {rank}", **style)
        wrong = []
        for step, average in zip(steps, averages, strict=True):
            if average != step:
                wrong.append(f"{average:g} in step {step}")
        if wrong:
            sentences.append(f"rank {rank}: {', '.join(wrong)}")
    axes.set(xlabel="step", ylabel="average gradient", xticks=range(5), yticks=range(5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    show(figure, f"Wrong are: {'; '.join(sentences)}.")


def draw_rounds(trace: Trace) -> None:
    """Draw each rank's calls in order: the flag of a step, and its gradient if it isn't skipped.

    Args:
        trace: The recording of a launch whose flags are reduced by MIN.
    """
    rows, words_of_rank = {}, []
    for rank in range(trace.world_size):
        step, boxes = -1, []
        for call in trace.of_rank(rank):
            if call.op == "min":
                step += 1
                boxes.append(Box(f"flag {step}", edge=rank_style(rank)["color"]))
            else:
                boxes.append(_made(rank, f"step {step}"))
        rows[f"rank {rank}"] = boxes
        words_of_rank.append([box.words for box in boxes])
    columns = [f"call {call + 1}" for call in range(len(words_of_rank[0]))]
    agree = "every rank" if words_of_rank.count(words_of_rank[0]) == len(rows) else "rank 0"
    calls = ", ".join(words_of_rank[0])
    show(box_figure(rows, columns, width=0.85), f"The calls of {agree}: {calls}.")


# ---- part 2: the roll call -----------------------------------------------------------------------


def draw_roll_call(who_is_missing: Callable) -> None:
    """Let four ranks call the roll while rank 2 is absent, and draw what each says, and when.

    Args:
        who_is_missing: As for `in_a_roll_call`; a wrong one is drawn as well.
    """
    absence = Absence("rank 2 is absent", never=(2,))

    def timed(*arguments: object) -> tuple[list[int], float, float]:
        begun_s = time.monotonic()
        missing = who_is_missing(*arguments)
        return missing, begun_s, time.monotonic()

    try:
        lists = launch(in_a_roll_call(timed), absence, world_size=RANKS, backend="gloo")
    except WorkerError as error:
        print("No picture yet:", reason_of(error))
        return
    calls = {rank: answers[1] for rank, answers in enumerate(lists) if len(answers) > 1}
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 2.4), layout="constrained")
    draw_boxes(left, _said(calls), [f"of rank {rank}" for rank in range(RANKS)])
    _draw_patience(right, calls)
    named = [missing for missing, *_ in calls.values()]
    text = f"Rank 2 is absent. The other three name: {named}. Right: from call to answer."
    show(figure, text)


def _said(calls: Mapping[int, tuple]) -> dict[str, list[Box | None]]:
    """What each rank says of each rank, as rows of boxes."""
    rows: dict[str, list[Box | None]] = {}
    for rank in range(RANKS):
        if rank not in calls:
            rows[f"rank {rank} is asleep"] = [None] * RANKS
            continue
        missing = calls[rank][0]
        if not isinstance(missing, Collection):  # a wrong answer may return anything
            rows[f"rank {rank} says {missing}"] = [Box("?")] * RANKS
            continue
        boxes: list[Box | None] = []
        for other in range(RANKS):
            is_missing = other in missing
            color = "#d5000055" if is_missing else rank_style(other)["color"] + "44"
            boxes.append(Box("missing" if is_missing else "here", color))
        rows[f"rank {rank} says"] = boxes
    return rows


def _draw_patience(axes: Axes, calls: Mapping[int, tuple]) -> None:
    """How long each rank was in its roll call."""
    first_s = min(begun_s for _, begun_s, _ in calls.values())
    for rank, (_, begun_s, over_s) in calls.items():
        color = rank_style(rank)["color"]
        took_s = max(over_s - begun_s, 0.01)
        axes.barh(rank, took_s, 0.6, begun_s - first_s, fc=f"{color}44", ec=color)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    _bare(axes, range(RANKS), xlabel="s (dashed: the patience)")
    axes.set_xlim(0, max(1.2, axes.get_xlim()[1]))


# ---- part 3: slow, or hung? ----------------------------------------------------------------------


def draw_waits(errors: Mapping[str, WorkerTimeout]) -> None:
    """Draw when three ranks were busy and when they waited, and print who waits least.

    Args:
        errors: By name, what a launch with a recording ended with.
    """
    figure, sides = plt.subplots(1, 2, figsize=(8, 2.7), sharex=True, layout="constrained")
    figure.get_layout_engine().set(wspace=0.08)
    for axes, (name, error) in zip(sides, errors.items(), strict=True):
        waits_s = _draw_side(axes, error)
        _bare(axes, range(3), title=name, xlabel="s since the launch", xlim=(0, None))
        print(f"{name}: rank {waits_s.index(min(waits_s))} waits least")
    _explain_waits(figure)
    text = (
        "Grey: a rank is busy with its own; pale: it is inside all_reduce, hatched where that did "
        "not end. Rank 2 is always busy, and the others wait for it."
    )
    show(figure, text, "A row for each rank, in its colour. Which rank waits least?")


def _explain_waits(figure: Figure) -> None:
    """What grey, pale and hatched bars are."""
    looks = {
        "busy with its own": {"facecolor": "#777777"},
        "inside all_reduce": {"facecolor": "#DDDDDD", "edgecolor": "#777777"},
        "inside one that did not end": {
            "facecolor": "#DDDDDD",
            "edgecolor": "#777777",
            "hatch": "////",
        },
    }
    patches = [Patch(label=label, **look) for label, look in looks.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=3, frameon=False)


def _draw_side(axes: Axes, error: WorkerTimeout) -> list[float]:
    """One recording; returns the seconds that each rank waited."""
    waits_s = [0.0] * 3
    over_s = max(event.end_s for event in error.trace)
    for rank in range(3):
        color, free_s = rank_style(rank)["color"], 0.0
        for event in error.trace.of_rank(rank):
            axes.barh(rank, event.start_s - free_s, 0.6, free_s, fc="#777777")
            took_s, free_s = event.end_s - event.start_s, event.end_s
            style = {} if event.finished else {"hatch": "////"}
            axes.barh(rank, took_s, 0.6, event.start_s, fc=color + "44", ec=color, **style)
            waits_s[rank] += took_s
        axes.barh(rank, over_s - free_s, 0.6, free_s, fc="#777777")
    return waits_s


# ---- part 4: it lies -----------------------------------------------------------------------------


def draw_view(results: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draw eight numbers in memory after the sum, and what a view of every other one reads.

    Args:
        results: By name, the eight numbers and the four of the view.
    """
    figure, panels = plt.subplots(1, len(results), figsize=(9.5, 1.5), layout="constrained")
    sentences = []
    for axes, (name, (memory, view)) in zip(panels, results.items(), strict=True):
        below: list[Box | None] = []
        for value in view:
            below += [_number(value, wanted=2), None]
        rows = {"memory": [_number(value) for value in memory], "handed in": below}
        draw_boxes(axes, rows, [str(place) for place in range(len(memory))])
        axes.set_title(name, fontsize=10)
        numbers = ", ".join(f"{value:g}" for value in memory)
        read = ", ".join(f"{value:g}" for value in view)
        sentences.append(f"{name}: in memory {numbers}; in what was handed in {read}")
    colours = "Blue was added up; orange should have been."
    caption = f"{colours} Compare the memory with what was handed in, which is a part of it."
    show(figure, f"{'. '.join(sentences)}. {colours}", caption)


def _number(value: float, wanted: float | None = None) -> Box:
    """A number: blue if it has been added up, orange if it isn't what is wanted."""
    fill = OKABE_ITO[0] + "44" if value > 1 else "white"
    if wanted is not None and value != wanted:
        return Box(f"{value:g}", _ORANGE, bold=True)
    return Box(f"{value:g}", fill)


def draw_oracle(
    alone: Mapping[str, Sequence[float]], together: Mapping[str, Sequence[float]]
) -> None:
    """Draw what one process gets, what two ranks should get of it, and what they get.

    Args:
        alone: By task, the numbers of one process.
        together: By task, those of two ranks.
    """
    widths = [len(numbers) for numbers in alone.values()]
    settings = {"figsize": (9, 1.8), "layout": "constrained", "width_ratios": widths}
    figure, panels = plt.subplots(1, len(alone), **settings)
    sentences = []
    for axes, (name, numbers) in zip(panels, alone.items(), strict=True):
        twice = [2 * value for value in numbers]
        rows = {
            "one process": [Box(f"{value:g}") for value in numbers],
            "twice that": [Box(f"{value:g}") for value in twice],
            "two ranks": _compared(together[name], twice),
        }
        draw_boxes(axes, rows, [""] * len(numbers))
        axes.set_title(name, fontsize=10)
        is_wanted, is_found = _listed(twice), _listed(together[name])
        sentences.append(f"{name}: wanted {is_wanted}, and two ranks have {is_found}")
    show(figure, f"{'. '.join(sentences)}.")


def _compared(values: Sequence[float], wanted: Sequence[float]) -> list[Box]:
    """Numbers as boxes; what isn't as wanted is orange."""
    boxes = []
    for value, right in zip(values, wanted, strict=True):
        if value == right:
            boxes.append(Box(f"{value:g}"))
        else:
            boxes.append(Box(f"{value:g} ≠", _ORANGE, bold=True))
    return boxes


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


# ---- part 5: one mistake, three symptoms ---------------------------------------------------------


def draw_symptoms(hang: WorkerTimeout, lie: Sequence[list[float]], death: WorkerError) -> None:
    """Draw what two ranks handed in, and what became of either.

    Args:
        hang: Of an all-reduce of 3 and 4 numbers.
        lie: What a broadcast from rank 1 left in 4 and 3 places.
        death: Of an all-reduce of 4 and 6 numbers.
    """
    ends = {
        "all_reduce of 3 and 4 numbers": [(3, _end_of(hang, 0)), (4, _end_of(hang, 1))],
        "broadcast of 3 numbers into 4": [(4, f"has {_listed(lie[0])}"), (3, "has sent")],
        "all_reduce of 4 and 6 numbers": [(4, _death_of(death, 0)), (6, _death_of(death, 1))],
    }
    figure, panels = plt.subplots(3, 1, figsize=(7, 3.4), layout="constrained")
    sentences = []
    for axes, (name, ranks) in zip(panels, ends.items(), strict=True):
        rows = {}
        for rank, (size, end) in enumerate(ranks):
            rows[f"rank {rank}"] = [_made(rank, "")] * size
            axes.text(size + 0.2, rank + 0.45, end, va="center", fontsize=9, weight="bold")
        draw_boxes(axes, rows, [""] * 10)
        axes.set_title(name, fontsize=10, loc="left", pad=-4)
        sentences.append(f"{name}: rank 0 {ranks[0][1]}, rank 1 {ranks[1][1]}")
    words = "What each rank hands in, and how it ends."
    caption = f"{words} Compare the ends: one mistake, three times."
    show(figure, f"{words} {'. '.join(sentences)}.", caption)


def _end_of(hang: WorkerTimeout, rank: int) -> str:
    """What a rank has printed, or where it waits."""
    if hang.waiting[rank].state == "returned":
        return re.sub(r"\.0|[\[\]]", "", hang.output[rank].strip().removeprefix("it "))
    return f"waits in {hang.waiting[rank].blocker}"


def _death_of(death: WorkerError, rank: int) -> str:
    """What has ended a rank."""
    first = death.failures[0]
    if rank == first.rank:
        return first.headline.removeprefix("the process ")
    return "was stopped"


# ---- part 6: it dies -----------------------------------------------------------------------------


def draw_logs(jobs: Sequence[str]) -> None:
    """Draw the last words and the exit code of each rank in recorded jobs.

    Args:
        jobs: Keys of `JOBS`.
    """
    rows = {job: _last_words(job, ()) for job in jobs}
    columns = [f"rank {rank}" for rank in range(RANKS)]
    sentences = []
    for job, boxes in rows.items():
        words = "; ".join(box.words.replace("\n", ", ") for box in boxes)
        sentences.append(f"{job}: {words}")
    figure = box_figure(rows, columns, width=1.8)
    caption = "The last words in each rank's log, and its exit code. Which rank would you look at?"
    show(figure, f"Last words and exit codes, by rank. {'. '.join(sentences)}.", caption)


def _last_words(job: str, suspected: Sequence[int]) -> list[Box]:
    """The end of each rank's log, and its exit code; orange is who is suspected."""
    logs, exit_codes = raw_logs(job)
    boxes = []
    for rank, code in enumerate(exit_codes):
        last = logs[rank].rpartition("\n")[2].partition(": ")[2]
        words = last.partition(":")[0] or "nothing"
        for echo in ("Connection closed by peer", "Timed out"):
            if echo in last:
                words = echo
        boxes.append(Box(f"{words}\nexit code {code}", _ORANGE if rank in suspected else "white"))
    return boxes


def draw_suspects(suspects: Callable) -> None:
    """Draw whom a function suspects in each recorded job, in which rank 2 failed first.

    Args:
        suspects: Takes logs and exit codes of all ranks, returns ranks. A wrong one is drawn too.
    """
    rows, right = {}, 0
    for job in JOBS:
        try:
            answer = list(suspects(*raw_logs(job)))
        except Exception as error:  # a learner's: any is told
            print(f"No picture yet: {type(error).__name__}: {error}")
            return
        rows[job] = _last_words(job, answer)
        right += answer == ([] if job == "nothing" else [CULPRIT])
    figure = box_figure(rows, [f"rank {rank}" for rank in range(RANKS)], width=1.8)
    show(figure, f"Last words, exit code; coloured: suspected. Right in {right} of 6 jobs.")


def draw_deaths(error: WorkerError) -> None:
    """Draw when each rank's last call ended, when its error came out, and what it was.

    Calls and errors are timed by two clocks. The first error is taken to come out when that rank's
    last call has ended, which is some milliseconds too early.

    Args:
        error: What a launch with a recording ended with.
    """
    in_order = sorted(error.failures, key=lambda failure: failure.when)
    over_s = error.trace.of_rank(in_order[0].rank)[-1].end_s
    begun_s = min(event.start_s for event in error.trace)
    figure, axes = plt.subplots(figsize=(8, 1.9), layout="constrained")
    for failure in in_order:
        rank, free_s = failure.rank, 0.0
        for event in error.trace.of_rank(rank):
            took_s = event.end_s - event.start_s
            axes.barh(rank, took_s, 0.5, event.start_s - begun_s, **_in_a_call())
            free_s = event.end_s - begun_s
        out_s = failure.when - in_order[0].when + over_s - begun_s
        axes.barh(rank, out_s - free_s, 0.5, free_s, **paint("compute"))
        axes.plot(out_s, rank, "X", color="black", markersize=9)
        axes.text(out_s + 0.012, rank, failure.headline, va="center", fontsize=9)
    _bare(axes, range(2), xlabel="s since the first call (crosses: errors)", xlim=(0, None))
    axes.set_xlim(0, 1.45 * axes.get_xlim()[1])  # room for the words
    words = ", then ".join(f"rank {failure.rank}'s {failure.headline}" for failure in in_order)
    colours = "Yellow: in a call; green: own code."
    caption = f"{colours} Whose error comes out first, and which of them is the cause?"
    show(figure, f"In the order of time: {words}. {colours}", caption)


def _in_a_call() -> dict[str, str]:
    """How a call that has ended looks: not hatched, which in this chapter says that it did not."""
    return paint("wait") | {"hatch": ""}


def draw_memory(asked_bytes: Mapping[int, int], death: WorkerError, spare_bytes: int) -> None:
    """Draw what two batches ask for beside what was left.

    Args:
        asked_bytes: By batch size, what the layer's output takes.
        death: How the first of them ended; it says how much was asked for.
        spare_bytes: What the limit left.
    """
    refused = int(re.search(r"allocate (\d+) bytes", death.failures[0].headline)[1])
    figure, axes = plt.subplots(figsize=(9, 1.6), layout="constrained")
    for row, size_bytes in enumerate(asked_bytes.values()):
        is_refused = size_bytes == refused
        style = {"fc": _ORANGE, "ec": _ORANGE} if is_refused else paint("compute")
        axes.barh(row, size_bytes / _MIB, 0.6, **style)
        words = f"{size_bytes / _MIB:.0f} MiB, {'refused' if is_refused else 'granted'}"
        axes.text(size_bytes / _MIB + 10, row, words, va="center", fontsize=9)
    axes.axvline(spare_bytes / _MIB, color="black", linestyle="--", linewidth=1)
    names = [f"batch of {batch}" for batch in asked_bytes]
    axes.set(yticks=range(len(names)), yticklabels=names, xlabel="MiB (dashed: what is left)")
    axes.set(xlim=(0, 1300))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    sizes = [f"{size_bytes / _MIB:.0f}" for size_bytes in asked_bytes.values()]
    show(figure, f"{' and '.join(sizes)} MiB are asked for; {refused / _MIB:.0f} are refused.")


def draw_signal(waited_s: float, heard_s: float, timeout_s: float) -> None:
    """Draw when a rank that waits in a collective was sent a signal, and when it heard it.

    Args:
        waited_s: Seconds from the call until the signal was sent.
        heard_s: Seconds from the call until the handler ran.
        timeout_s: The group's timeout.
    """
    figure, axes = plt.subplots(figsize=(8, 1.5), layout="constrained")
    axes.barh(0, heard_s, 0.5, **paint("wait"))
    axes.axvline(timeout_s, 0, 0.6, color="black", linestyle="--", linewidth=1)
    arrow = {"arrowstyle": "-|>", "color": OKABE_ITO[1], "linewidth": 2}
    for at_s, words in ((waited_s, "SIGTERM is sent"), (heard_s, "its handler runs")):
        axes.annotate(
            words, (at_s, -0.25), (at_s, -0.85), arrowprops=arrow, ha="center", fontsize=9
        )
    _bare(axes, range(1), xlabel="s since the call (dashed: the group's timeout)", xlim=(0, 3.8))
    axes.set_ylim(0.5, -1.1)
    sent = f"SIGTERM was sent after {waited_s:g} s"
    show(figure, f"In all_reduce: {sent} and heard after about {heard_s:.0f} s.")
