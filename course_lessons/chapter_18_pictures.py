"""Chapter 18's pictures: which stage does what when, by your answer too, and at what price."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from torch import nn
from torch.nn.functional import mse_loss

from course_lessons import pipeline
from course_lessons.chapter_18 import TOKEN_US, Attended, Routed, Step, gradients_of
from course_lessons.drawing import Box, bare, box_figure, first_answers, first_with_numbers
from course_lessons.pipeline import Neighbours, Schedule, Slot
from course_utils import Network, WorkerTimeout, plot_timeline, show
from course_utils.pictures.style import rank_style

_FORWARD = {"facecolor": "#0072B2", "edgecolor": "white"}
_BACKWARD = {"facecolor": "#E69F00", "edgecolor": "white", "hatch": "////"}
_BEHIND = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
_MOST_NUMBERS = 12  # of microbatches: more than so many numbers are too small to read
_GREEN, _ORANGE = "#009E7355", "#E69F0088"


def _draw_slots(axis: Axes, slots: Iterable[Slot], stages: int, with_numbers: bool) -> None:
    """A row for each stage; a bar for each microbatch that it computes."""
    for slot in slots:
        style = _FORWARD if slot.kind == "F" else _BACKWARD
        width = slot.end - slot.begin
        axis.barh(slot.stage, width, 0.84, slot.begin, linewidth=0.8, **style)
        if with_numbers:
            place = {"ha": "center", "va": "center", "fontsize": 9, "bbox": _BEHIND}
            axis.text(slot.begin + width / 2, slot.stage, str(slot.k), **place)
    names = [f"stage {number}" for number in range(stages)]
    bare(axis, yticks=range(stages), yticklabels=names, ylim=(stages - 0.5, -0.5))


def _slots_of(step: Step) -> list[Slot]:
    """When each stage computes, in ms, if messages take no time."""
    slots = []
    for bar in step.replay().intervals:
        if bar.what == "compute":
            kind, k = step.marks[bar.rank, bar.event.index]
            slots.append(Slot(bar.rank, kind, k, bar.start_us / 1000, bar.end_us / 1000))
    return slots


def _legend(figure: Any) -> None:
    patches = [Patch(label="forward", **_FORWARD), Patch(label="backward", **_BACKWARD)]
    figure.legend(handles=patches, loc="outside upper right", ncols=2, frameon=False)


# ---- what a learner wrote ------------------------------------------------------------------------


def draw_stage(*kinds: type[Neighbours]) -> None:
    """Let three stages train on two microbatches, and draw what each of them does.

    Args:
        kinds: The first one that neither raises nor hangs is drawn, also if it is wrong.
    """
    drawable = first_answers(kinds, lambda kind: lambda: _noted_stage(kind), 3)
    if drawable is None:
        return
    kind, answers = drawable
    rows, sentences = {}, []
    for stage, (notes, wrong_by) in enumerate(answers):
        boxes, counts = [], []
        for name, messages, held in notes:
            fill = _BACKWARD["facecolor"] if name in _BACK else _FORWARD["facecolor"]
            phrase = ", ".join(messages) or "no message"
            boxes.append(Box(f"{phrase}\nholds {held}", fill + "55"))
            counts.append(len(messages))
        is_right = wrong_by < 1e-10
        verdict = "right" if is_right else f"off by\n{wrong_by:.0%}"
        look = {"fill": _GREEN} if is_right else {"fill": _ORANGE, "hatch": "////"}
        boxes.append(Box(verdict, bold=True, **look))
        rows[f"stage {stage}"] = boxes
        verdict = verdict.replace("\n", " ")
        phrase = f"{sum(counts)} messages, {notes[-1][2]} held in the end, gradients {verdict}"
        sentences.append(f"stage {stage} has {phrase}")
    titles = [name for name, _, _ in answers[0][0]]
    figure = box_figure(rows, [*titles, "gradients"], width=1.35)
    caption = "A row for each stage, call by call: its messages, and what it holds then."
    show(figure, f"{kind.__name__}: {'; '.join(sentences)}.", caption)


_ACTIONS = {
    "forward of 0": ("F", 0),
    "forward of 1": ("F", 1),
    "backward of 0": ("B", 0),
    "backward of 1": ("B", 1),
}
_BACK = ("backward of 0", "backward of 1")


def _noted_stage(kind: type[Neighbours]) -> tuple[list, float]:
    """In a rank: of each action its name, its messages, what is held; how wrong gradients are."""
    rank, notes = dist.get_rank(), []

    class Noted(kind):
        def send(self, tensor: torch.Tensor, to: int) -> None:
            notes[-1][1].append(f"to {to}")
            super().send(tensor, to)

        def receive(self, source: int) -> torch.Tensor:
            notes[-1][1].append(f"from {source}")
            return super().receive(source)

    layers = []
    for number in range(dist.get_world_size()):
        torch.manual_seed(number)
        layers.append(nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double())
    inputs, targets = torch.randn(2, 2, 4, 3, dtype=torch.float64)
    model = nn.Sequential(*layers)
    mse_loss(model(inputs.flatten(0, 1)), targets.flatten(0, 1)).backward()
    right = torch.cat([gradient.flatten() for gradient in gradients_of(layers[rank])])
    model.zero_grad()
    stage = Noted(layers[rank], list(inputs), list(targets))
    for name, (action, k) in _ACTIONS.items():
        notes.append([name, [], 0])
        (stage.forward if action == "F" else stage.backward)(k)
        notes[-1][2] = len(stage.held)
    stage.run([])  # waits for what is under way
    gradients = torch.cat([gradient.flatten() for gradient in gradients_of(layers[rank])])
    return notes, ((gradients - right).abs().max() / right.abs().max()).item()


def draw_actions(*schedules: Schedule, stages: int = 4, count: int = 2) -> None:
    """Draw when each stage does what, in forwards, if messages take no time.

    Args:
        schedules: The first one that returns actions is drawn, also if it is wrong.
        stages, count: How many stages and microbatches.
    """
    for actions_of in schedules:
        try:
            by_stage = [list(actions_of(stage, stages, count)) for stage in range(stages)]
            slots = pipeline.timetable(by_stage)
            break
        except Exception as error:  # whatever a learner's function raises
            print(f"No picture yet of {actions_of.__name__}: {error or type(error).__name__}")
    else:
        return
    figure, axis = plt.subplots(figsize=(9, 0.8 + 0.3 * stages), layout="constrained")
    _draw_slots(axis, slots, stages, count <= _MOST_NUMBERS)
    for stage, actions in enumerate(by_stage):
        of_stage = [slot for slot in slots if slot.stage == stage]
        if len(of_stage) < len(actions):
            kind, k = actions[len(of_stage)]
            end = max((slot.end for slot in of_stage), default=0)
            word = "forward" if kind == "F" else "backward"
            axis.text(end, stage, f"  waits, for its {word} of {k}", va="center", fontsize=9)
    axis.set_xlabel("forwards (a backward takes two)")
    _legend(figure)
    held = ", ".join(str(_most_held(actions)) for actions in by_stage)
    name = f"{actions_of.__name__}, {stages} stages, {count} microbatches"
    show(figure, f"{name}: {_end_of(by_stage, slots, count)}, and the stages hold {held} at most.")


def _most_held(actions: Sequence[pipeline.Action]) -> int:
    """The most microbatches that have gone forward and not yet backward."""
    held = most = 0
    for kind, _ in actions:
        held += 1 if kind == "F" else -1
        most = max(most, held)
    return most


def _end_of(by_stage: Sequence, slots: Sequence[Slot], count: int) -> str:
    """How a schedule ends: done, incomplete, or with stages that wait for each other."""
    for stage, actions in enumerate(by_stage):
        try:
            pipeline.refuse_incomplete(actions, count)
        except ValueError as error:
            return f"stage {stage}: {error}"
    if len(slots) < sum(map(len, by_stage)):
        return "the stages wait for each other for ever"
    return f"all done after {max(slot.end for slot in slots):g} forwards"


# ---- what real ranks did -------------------------------------------------------------------------


def draw_whole_batch(step: Step, network: Network) -> None:
    """Draw when each rank computes and sends, on a network, if there's one microbatch."""
    text = "Green moves down in forward, and up in backward. Only one rank computes at a time."
    plot_timeline(step.replay(network), text)


def draw_schedules(steps: Mapping[str, Step]) -> None:
    """Draw steps one below the other, on the same axis, if messages take no time."""
    height = 0.7 + sum(0.5 + 0.3 * step.stages for step in steps.values())
    settings = {"figsize": (9, height), "layout": "constrained", "sharex": True, "squeeze": False}
    figure, axes = plt.subplots(len(steps), 1, **settings)
    sentences = []
    for axis, (name, step) in zip(axes[:, 0], steps.items(), strict=True):
        _draw_slots(axis, _slots_of(step), step.stages, step.count <= _MOST_NUMBERS)
        axis.set_title(name, loc="left", fontsize=10)
        end_ms = max(step.replay().finish_us) / 1000
        idle = f"a stage idles for {step.idle_share():.0%} of it"
        sentences.append(f"{name}: the step takes {end_ms:.1f} ms, and {idle}.")
    axes[-1, 0].set_xlabel("virtual ms")
    _legend(figure)
    show(figure, " ".join(sentences))


def draw_bubble(
    counts: Sequence[int],
    replayed: Mapping[int, Sequence[float]],
    *formulas: Callable[[int, int], float],
) -> None:
    """Draw the bubble by the number of microbatches: lines are a formula, markers are replays.

    Args:
        counts: Of microbatches.
        replayed: By number of stages, the share of a replayed step in which a stage idles.
        formulas: The first one that returns a number is drawn, also if it is wrong.
    """
    finely, furthest = range(1, max(counts) + 1), 0.0
    calls = [(stages, count) for stages in replayed for count in finely]
    bubble = first_with_numbers(formulas, calls)
    if bubble is None:
        return
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    colours, markers = ("#0072B2", "#D55E00", "#009E73"), ("o", "s", "^")
    for number, (stages, shares) in enumerate(replayed.items()):
        formula = [100 * bubble(stages, count) for count in finely]
        axes.plot(finely, formula, color=colours[number], linewidth=1)
        points = [100 * share for share in shares]
        style = {"color": colours[number], "marker": markers[number], "linestyle": ""}
        axes.plot(counts, points, label=f"{stages} stages", **style)
        for count, point in zip(counts, points, strict=True):
            furthest = max(furthest, abs(100 * bubble(stages, count) - point))
    bare(axes, xlabel="microbatches", ylabel="bubble, % of the step", ylim=(0, 100))
    axes.set_xticks(list(counts))
    axes.legend(frameon=False)
    words = f"Markers are replays, lines are {bubble.__name__}"
    show(figure, f"{words}: at most {furthest:.1f} points lie between a marker and its line.")


def draw_held(steps: Mapping[str, Step]) -> None:
    """Draw how many microbatches each stage holds at once, schedule by schedule."""
    figure, axes = plt.subplots(figsize=(7, 2.2), layout="constrained")
    styles = ({"facecolor": "#999999", "edgecolor": "white"}, _FORWARD)
    sentences = []
    for number, (name, step) in enumerate(steps.items()):
        places = [stage + 0.4 * number - 0.2 for stage in range(step.stages)]
        bars = axes.bar(places, step.most_held, 0.36, label=name, **styles[number])
        axes.bar_label(bars)
        held = ", ".join(map(str, step.most_held))
        sentences.append(f"{name} holds {held} microbatches at most, from the first stage on.")
    names = [f"stage {stage}" for stage in range(step.stages)]
    bare(axes, xticks=range(len(names)), xticklabels=names, ylabel="held at once")
    axes.margins(y=0.2)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    show(figure, " ".join(sentences))


def draw_waiting(hang: WorkerTimeout) -> None:
    """Draw the messages of each rank until they hang, in the order in which it called them."""
    rows, sentences = {}, []
    for rank, waiting in hang.waiting.items():
        boxes, words = [], []
        for event in waiting.calls:
            if event.kind in ("send", "recv"):
                phrase = f"send to {event.peer}" if event.kind == "send" else f"from {event.peer}"
                boxes.append(Box(phrase, rank_style(rank)["color"] + "55"))
                words.append(phrase)
        boxes[-1] = Box(f"{words[-1]},\nwaits", "white", rank_style(rank)["color"], bold=True)
        rows[f"rank {rank}"] = boxes
        sentences.append(f"rank {rank}: {', '.join(words)}, and waits")
    longest = max(map(len, rows.values()))
    for boxes in rows.values():
        boxes += [None] * (longest - len(boxes))
    titles = [f"message {number}" for number in range(1, longest + 1)]
    show(box_figure(rows, titles, width=1.2), f"{'; '.join(sentences)}.".capitalize())


def draw_attention(outcomes: Mapping[str, Mapping[str, Attended]]) -> None:
    """Draw what a rank sends and its largest tensor, for each text and each way."""
    size = (9, 0.9 + 0.6 * len(outcomes))
    figure, panels = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True)
    looks = ({"color": "#0072B2"}, {"color": "#E69F00", "hatch": "///"})
    sentences = []
    for place, (text, by_way) in enumerate(outcomes.items()):
        phrases = []
        for number, (name, outcome) in enumerate(by_way.items()):
            sizes = (outcome.largest_kib, outcome.sent_kib)
            for axes, kib in zip(panels, sizes, strict=True):
                label = name if place == 0 else None
                look = {"edgecolor": "white", "label": label, **looks[number]}
                bars = axes.barh(place + 0.4 * number - 0.2, kib, 0.36, **look)
                axes.bar_label(bars, fmt="%g", padding=3)
            verdict = "right" if outcome.is_right else "wrong"
            phrases.append(f"{name} is {verdict}, largest {sizes[0]:g} KiB, sent {sizes[1]:g}")
        sentences.append(f"{text.replace(chr(10), ' ')}: {'; '.join(phrases)}")
    titles = "largest tensor of a rank (KiB)", "sent by a rank (KiB)"
    for axes, title in zip(panels, titles, strict=True):
        bare(axes, yticks=range(len(outcomes)), yticklabels=list(outcomes), xlabel=title)
        axes.margins(x=0.12)
    panels[0].invert_yaxis()
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    caption = "Left: the largest tensor of a rank; right: what it sends. What grows with the text?"
    show(figure, f"{'. '.join(sentences)}.", caption)


def draw_experts(layers: Mapping[str, Routed]) -> None:
    """Draw how long each expert computes, and how long its rank then waits."""
    settings = {"figsize": (9, 1.9), "layout": "constrained", "sharex": True, "sharey": True}
    figure, axes = plt.subplots(1, len(layers), **settings)
    sentences = []
    for axis, (name, layer) in zip(axes, layers.items(), strict=True):
        end_us = max(layer.replay.finish_us)
        for rank, count in enumerate(layer.received):
            computes_us = TOKEN_US * count
            axis.barh(rank, computes_us, 0.8, color="#009E73")
            style = {"facecolor": "#FDEFD0", "edgecolor": "#E69F00", "hatch": "////"}
            axis.barh(rank, end_us - computes_us, 0.8, computes_us, linewidth=0, **style)
        ranks = range(len(layer.received))
        bare(axis, yticks=ranks, yticklabels=[f"expert {rank}" for rank in ranks])
        axis.set_xlabel("virtual µs")
        axis.set_title(name, loc="left", fontsize=10)
        sentences.append(f"{name}: all are done after {end_us:.0f} µs.")
    axes[0].invert_yaxis()
    show(figure, f"Green computes, yellow strokes wait. {' '.join(sentences)}")
