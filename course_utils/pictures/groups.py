"""Process group by rank, as a picture: who waits where, and the chain that leads to the guilty."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_utils.flight.dumps import Call, Group
from course_utils.flight.explanation import Explanation
from course_utils.flight.wait_graph import Edge
from course_utils.launcher.language import _, english
from course_utils.launcher.words import ranks_named
from course_utils.pictures.shapes import INK
from course_utils.pictures.style import OKABE_ITO, show

_WAITS, _MEMBER, _GUILTY = "#FDEFD0", "#EEEEEE", OKABE_ITO[1]
_MOST_GROUPS, _MOST_RANKS = 24, 64  # that fit into a picture
_NAME = 32  # letters of a group's description
_STEP = {
    "arrowstyle": "->",
    "color": INK,
    "linewidth": 2,
    "connectionstyle": "arc3,rad=-0.35",
}


def plot_groups(explanation: Explanation) -> None:
    """Show for each group in which somebody waits its ranks, the guilty ones and the chain to them.

    Args:
        explanation: What `explain_dumps` returns.

    Raises:
        ValueError: Nobody waits.
    """
    groups = _groups_waited_in(explanation)
    if not groups:
        raise ValueError(_("no rank has a call pending, so there is nothing to draw"))
    with english():  # as are all other words of pictures
        figure = draw(explanation, groups)
        show(figure, words(explanation, groups))


def _groups_waited_in(explanation: Explanation) -> list[Group]:
    """Those of the chain first."""
    groups: dict[Group, None] = {}  # a set that keeps its order
    for edge in explanation.chain:
        groups[edge.call.group] = None
    for calls in explanation.verdict.pending.values():
        for call in calls:
            groups[call.group] = None
    return list(groups)[:_MOST_GROUPS]


def words(explanation: Explanation, groups: list[Group]) -> str:
    """What is to be seen."""
    count = len(groups)
    if not explanation.guilty:
        return f"{count} groups in which ranks wait; nobody is known to be guilty."
    guilty = ranks_named(explanation.guilty)
    sentence = f"{guilty} guilty, in {count} groups."
    chain = explanation.chain
    if not chain:
        return sentence
    names = [f"rank {edge.waiter}" for edge in chain]
    last_edge = chain[-1]
    names.append(f"rank {last_edge.waits_for}")
    steps = " waits for ".join(names)
    return f"{sentence} The chain: {steps}."


def draw(explanation: Explanation, groups: list[Group]) -> Figure:
    """A row for each group, a column for each rank; arrows are the steps of the chain."""
    ranks = _ranks_shown(explanation, groups)
    width = 2.5 + 0.45 * len(ranks)
    height = 0.8 + 0.42 * len(groups)
    figure, axes = plt.subplots(figsize=(width, height))
    for row, group in enumerate(groups):
        for column, rank in enumerate(ranks):
            if rank in group.members:
                _draw_cell(axes, explanation, group, rank, (column, row))
    for edge in explanation.chain:
        _draw_step(axes, edge, groups, ranks)
    names = [_name(group) for group in groups]
    axes.set_xticks(range(len(ranks)), ranks)
    axes.set_yticks(range(len(groups)), names)
    axes.set_xlim(-0.6, len(ranks) - 0.4)
    axes.set_ylim(len(groups) - 0.4, -0.8)
    axes.set_xlabel("rank (✗: guilty, #: the call it waits in, arrows: the chain)")
    axes.spines[:].set_visible(False)
    return figure


def _draw_step(axes: Axes, edge: Edge, groups: list[Group], ranks: list[int]) -> None:
    """An arrow from who waits to whom, if its group and both ranks are in the picture."""
    group = edge.call.group
    if group not in groups:
        return
    if edge.waiter in ranks and edge.waits_for in ranks:
        row = groups.index(group)
        start = (ranks.index(edge.waiter), row)
        end = (ranks.index(edge.waits_for), row)
        axes.annotate("", xy=end, xytext=start, arrowprops=_STEP)


def _ranks_shown(explanation: Explanation, groups: list[Group]) -> list[int]:
    """All ranks; of very many those that the chain and its groups need."""
    if len(explanation.world) <= _MOST_RANKS:
        return list(explanation.world)
    needed = [*explanation.guilty[:8]]
    for edge in explanation.chain:
        needed += [edge.waiter, edge.waits_for]
    for group in groups[:2]:
        needed += group.ranks[:_MOST_RANKS]
    return sorted(dict.fromkeys(needed[:_MOST_RANKS]))


def _draw_cell(
    axes: Axes, explanation: Explanation, group: Group, rank: int, at: tuple[int, int]
) -> None:
    column, row = at
    call = _waits_in(explanation, group, rank)
    if rank in explanation.guilty:
        colour = _GUILTY
        text = "✗"
    elif call is None:
        colour = _MEMBER
        text = ""
    elif call.is_message:
        colour = _WAITS
        text = "msg"
    else:
        colour = _WAITS
        last_digits = call.number % 1000
        text = f"#{last_digits}"
    corner = (column - 0.45, row - 0.42)
    box = plt.Rectangle(corner, 0.9, 0.84, facecolor=colour, edgecolor="white")
    axes.add_patch(box)
    axes.text(column, row, text, ha="center", va="center", fontsize=9, color=INK)


def _waits_in(explanation: Explanation, group: Group, rank: int) -> Call | None:
    for call in explanation.verdict.pending.get(rank, ()):
        if call.group == group:
            return call
    return None


def _name(group: Group) -> str:
    desc = group.desc
    if len(desc) > _NAME:
        beginning = desc[:_NAME]
        desc = f"{beginning}…"
    if len(group.ranks) > 4:
        return desc
    ranks = ranks_named(group.ranks)
    return f"{desc}\n{ranks}"
