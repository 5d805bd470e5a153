"""Chapter 09's pictures of hosts: who is where, who reaches whom, and what agents did when."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from course_utils import show
from course_utils.pictures.style import rank_style

INK, GREY = "#222222", "#777777"
GOOD, BAD = "#009E73", "#D55E00"
_BOX = "round,pad=0.02,rounding_size=0.08"


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    """Axes without a frame, whose unit is an inch; y grows downwards."""
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1)
    return figure, axes


def _box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], **style: Any) -> None:
    style = {"facecolor": "#F4F4F4", "edgecolor": GREY, "linewidth": 1.2} | style
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=_BOX, **style))


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _words(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    style = {"ha": "center", "va": "center", "fontsize": 9, "color": INK} | style
    axes.text(x, y, text, **style)


def _arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], color: str, bent: float = 0
) -> None:
    line = {"arrowstyle": "-|>", "color": color, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    line["connectionstyle"] = f"arc3,rad={bent}"
    axes.annotate("", end, xytext=start, arrowprops=line)


# ---- addresses and doors -------------------------------------------------------------------------


def _interfaces(host: Any, listed: str, form: str) -> dict[str, str]:
    """Name and address of a host's interfaces, as it listed them itself."""
    if form != "namespaces":
        return {host.interface: host.address}
    found = re.findall(r"^(\w+)\S*\s.*?(\d+\.\d+\.\d+\.\d+)", listed, re.MULTILINE)
    return dict(found)


def draw_interfaces(hosts: Any, listed: Sequence[str]) -> None:
    """Draw both hosts with the interfaces that they listed, and what joins them.

    Args:
        hosts: As `course_cluster.two_hosts` gives them.
        listed: What `ip` printed on each.
    """
    joins = {"eth0": "the cable", "eth1": "the world outside"}
    sides = [_interfaces(host, text, hosts.form) for host, text in zip(hosts, listed, strict=True)]
    rows = max(len(side) for side in sides)
    figure, axes = _canvas(7.6, 0.75 + 0.5 * rows)
    for number, side in enumerate(sides):
        left = 0.1 + 4.9 * number
        _box(axes, (left, 0.35), (2.5, 0.5 * rows + 0.15))
        _words(axes, left + 1.25, 0.17, f"host {number}", weight="bold")
        for row, (name, address) in enumerate(side.items()):
            y = 0.65 + 0.5 * row
            style = {"facecolor": "white", "edgecolor": rank_style(number)["color"]}
            _box(axes, (left + 0.15, y - 0.17), (2.2, 0.34), **style)
            _words(axes, left + 1.25, y, f"{name}  {address}")
            if number == 0 and name in joins and name in sides[1]:
                axes.plot((left + 2.4, 5.1), (y, y), color=INK, lw=2)
                _words(axes, 3.8, y - 0.14, joins[name])
    words = []
    for number, side in enumerate(sides):
        listing = ", ".join(f"{name} {address}" for name, address in side.items())
        words.append(f"host {number} has {listing}")
    joined = "Lines join what reaches the other host."
    caption = f"Each box is an interface, with its address. {joined}"
    show(figure, f"{_sentence(words)} {joined}", caption)


def draw_doors(hosts: Any, left: str) -> None:
    """Draw where both ranks met, and where each of them knocked then.

    Args:
        hosts: As `course_cluster.two_hosts` gives them.
        left: The address that each rank left in the store.
    """
    if not left.startswith("127."):
        return  # an address of the host itself, which somebody may answer or not
    figure, axes = _canvas(8, 2.5)
    for host in hosts:
        x = 0.1 + 4.3 * host.number
        _box(axes, (x, 0.35), (3.5, 2.0))
        _words(axes, x + 1.75, 0.17, f"host {host.number}, {host.address}", weight="bold")
        style = {"facecolor": "white", "edgecolor": rank_style(host.number)["color"]}
        rank_x = x + (2.3 if host.number == 0 else 0.3)
        _box(axes, (rank_x, 1.0), (0.9, 0.4), **style)
        _words(axes, rank_x + 0.45, 1.2, f"rank {host.number}")
        start, end = (rank_x + 0.3, 1.43), (rank_x + 0.6, 1.43)
        _arrow(axes, start, end, BAD, bent=1.6)
        _words(axes, x + 1.75, 2.05, f"knocks at {left}: its own door", color=BAD)
    _box(axes, (0.3, 0.55), (1.0, 0.4), facecolor="white", edgecolor=INK)
    _words(axes, 0.8, 0.75, "store")
    _arrow(axes, (2.4, 1.1), (1.35, 0.8), GOOD)
    _arrow(axes, (4.7, 1.1), (1.35, 0.68), GOOD, bent=0.12)
    _words(axes, 2.95, 0.52, "they meet", color=GOOD)
    text = f"Both ranks reach the store on host 0. There each leaves {left}, so each then knocks"
    caption = "Green: both ranks reach the store. Orange: where each looks for the other one then."
    text += " at its own host, and no arrow of tensors crosses the cable."
    show(figure, text, caption)


def draw_stores(sockets: str, stranger: str, rates: str) -> None:
    """Draw two stores, where they listen, what a stranger could do, and what they hold then.

    Args:
        sockets: What `chapter_09.listening` lists.
        stranger: What the stranger printed of each store.
        rates: What host 0 printed of each store at the end.
    """
    figure, axes = _canvas(8, 1.9)
    _box(axes, (0.1, 0.3), (4.3, 1.5))
    _words(axes, 2.25, 0.14, "host 0", weight="bold")
    _box(axes, (6.6, 0.65), (1.3, 0.75), edgecolor=BAD)
    _words(axes, 7.25, 1.02, "stranger on\nthe other\nnetwork")
    ports = re.findall(r"listening on (\S+:\d+)", sockets)
    sentences = []
    for row, (name, port) in enumerate((("usual", ":23456"), ("bound", ":23457"))):
        answer = re.search(rf"the {name} store: (.*)", stranger)[1]
        rate = re.search(rf"in the {name} store: (\S+)", rates)[1]
        place = next((listed for listed in ports if listed.endswith(port)), "")
        y = 0.68 + 0.72 * row
        color = BAD if rate != "0.01" else GOOD
        _box(axes, (0.25, y - 0.27), (4.0, 0.54), facecolor="white", edgecolor=color)
        listens = f"{name} store, listens on {place}" if place else f"{name} store"
        _words(axes, 2.25, y, f"{listens}\nlearning rate 0.01, at the end {rate}")
        end = 4.35 if color == BAD else 6.0
        axes.annotate(
            "",
            (end, y),
            xytext=(6.55, 0.9 + 0.25 * row),
            arrowprops={"arrowstyle": "-|>" if color == BAD else "-[", "color": color, "lw": 1.8},
        )
        _words(axes, 5.2, y + (-0.18 if color == BAD else 0), answer, color=color)
        sentences.append(f"The {name} store answers {answer!r}, and at the end holds {rate}.")
    show(figure, " ".join(sentences))


# ---- ranks on nodes ------------------------------------------------------------------------------


def draw_cards(outputs: Sequence[str]) -> None:
    """Draw nodes, their cards, and the rank that each card's process reported.

    Args:
        outputs: What the processes printed, such as `node 1, card 0: rank 2 of 4, sum 10`.
    """
    lines = sorted("".join(outputs).splitlines())
    found = [re.match(r"node (\d+), card (\d+): rank (\d+) of \d+(.*)", line) for line in lines]
    places = [(int(m[1]), int(m[2]), int(m[3]), m[4].strip(", ")) for m in found if m]
    cards = 1 + max(card for _, card, _, _ in places)
    width = 1.3 * cards + 0.3
    nodes = 1 + max(node for node, *_ in places)
    figure, axes = _canvas(nodes * (width + 0.4), 1.6)
    for node in range(nodes):
        left = 0.2 + node * (width + 0.4)
        _box(axes, (left, 0.35), (width, 1.15))
        _words(axes, left + width / 2, 0.17, f"node {node}", weight="bold")
    for node, card, rank, extra in places:
        left = 0.4 + node * (width + 0.4) + 1.3 * card
        style = rank_style(rank)
        _box(axes, (left, 0.5), (1.1, 0.85), facecolor="white", edgecolor=style["color"], lw=2)
        axes.plot(left + 0.15, 0.65, style["marker"], color=style["color"], ms=6)
        _words(axes, left + 0.58, 0.66, f"card {card}", color=GREY)
        _words(axes, left + 0.55, 0.93, f"rank {rank}", weight="bold", fontsize=11)
        _words(axes, left + 0.55, 1.19, extra)
    caption = "Two nodes with their cards, and what the process on each card says of itself."
    show(figure, f"{'; '.join(lines)}.", caption)


def draw_names(script: str, tasks: Sequence[str], cpus: Sequence[str]) -> None:
    """Draw what the batch script and the tasks found under four of Slurm's names.

    Args:
        script: What the script printed, such as `script: 0 0 4 none`.
        tasks: What each task printed.
        cpus: What a step of four tasks gets without and with SRUN_CPUS_PER_TASK: `CPUs=4`.
    """
    columns = ("PROCID", "LOCALID", "NTASKS", "STEP_NUM_TASKS")
    ordered = sorted(tasks)
    first = ordered[0].split()[1:]
    figure, axes = _canvas(7.6, 0.5 + 0.36 * (1 + len(ordered)))
    for column, name in enumerate(columns):
        _words(axes, 2.0 + 1.5 * column, 0.2, name, color=GREY)
    for row, line in enumerate([script, *ordered]):
        who, *values = line.split()
        y = 0.55 + 0.36 * row
        label = who.rstrip(":") if row == 0 else f"task {row - 1}"
        _words(axes, 1.05, y, label, ha="right", weight="bold" if row == 0 else "normal")
        for column, value in enumerate(values):
            style = {"facecolor": "white", "edgecolor": "#BBBBBB"}
            if row == 0:
                same = value == first[column]
                style = {"facecolor": "#E8E8E8", "edgecolor": GREY}
                if not same:
                    style = {"facecolor": "#FBDCCB", "edgecolor": BAD, "linewidth": 2}
            _box(axes, (1.35 + 1.5 * column, y - 0.13), (1.3, 0.26), **style)
            _words(axes, 2.0 + 1.5 * column, y, value)
    names = ", ".join(columns)
    rows = "; ".join([script, *(f"{number}: {task}" for number, task in enumerate(ordered))])
    differs = []
    for name, in_script, in_task in zip(columns, script.split()[1:], first, strict=True):
        if in_script != in_task:
            differs.append(name)
    short, enough = (text.split("=")[1] for text in cpus)
    text = f"{names}: {rows}. The script differs from task 0 in {' and '.join(differs)} alone. "
    text += f"CPUs for four tasks: {short} without SRUN_CPUS_PER_TASK, {enough} with it."
    caption = "Above, what the batch script finds; below, its tasks. Orange: not what task 0 finds."
    show(figure, text, caption)


# ---- what agents did when ------------------------------------------------------------------------


class _Life(NamedTuple):
    """What an agent did from one meeting to the next, in seconds since the epoch of its log."""

    meets_s: float
    starts_s: float
    ends_s: float
    rank: str  # such as `rank 0 of 2`
    end: str  # such as `exit code -9`; empty if the log stops


_YEAR = 2024  # any leap year
_LOG = re.compile(r"^[IWE](\d{4} \d\d:\d\d:\d\d\.\d+) .*?\] (.*)$", re.MULTILINE)


def _lives(errors: str) -> list[_Life]:
    """Read an agent's log (LOGLEVEL=INFO): when it met others, and what its rank was."""
    lives: list[_Life] = []
    for moment, said in _LOG.findall(errors):
        when_s = datetime.strptime(f"{_YEAR}{moment}", "%Y%m%d %H:%M:%S.%f").timestamp()
        if "Rendezvous'ing" in said:
            lives.append(_Life(when_s, 0, 0, "", ""))
            continue
        if not lives:
            continue
        life = lives[-1]
        if "global_ranks=[" in said:
            life = life._replace(rank=f"rank {_number(said)}")
        elif "global_world_sizes=[" in said:
            life = life._replace(rank=f"{life.rank} of {_number(said)}")
        elif "Starting worker group" in said:
            life = life._replace(starts_s=when_s)
        elif not life.end:
            life = life._replace(ends_s=when_s, end=_end(said))
        lives[-1] = life
    return lives


def _number(said: str) -> str:
    return re.search(r"\d+", said)[0]


def _end(said: str) -> str:
    """How a life ended, by a line of the log; empty if the line says nothing of an end."""
    code = re.search(r"exitcode: (-?\d+)", said)
    if code:
        return f"exit code {code[1]}"
    if "new nodes" in said:
        return "told to stop"
    return "done" if "successfully finished" in said else ""


def _in_log(moment_s: float) -> float:
    """A moment as the log has it, whose lines do not name the year."""
    return datetime.fromtimestamp(moment_s).replace(year=_YEAR).timestamp()


def _steps_of_lives(noted: Sequence[tuple[int, float]]) -> list[str]:
    """The steps of each life, such as `steps 24 to 47`; a step that goes back begins a new one."""
    lives: list[list[int]] = []
    for step, _ in noted:
        if not lives or step <= lives[-1][-1]:
            lives.append([])
        lives[-1].append(step)
    return [f"steps {life[0]} to {life[-1]}" for life in lives]


def _steps_by_start(
    all_lives: Sequence[Sequence[_Life]], noted: Sequence[tuple[int, float]]
) -> dict[float, str]:
    """By the moment at which a rank 0 began, the steps that it noted."""
    starts_s = []
    for lives in all_lives:
        starts_s += [life.starts_s for life in lives if life.rank.startswith("rank 0 ")]
    steps = _steps_of_lives(noted)
    return dict(zip(sorted(starts_s)[-len(steps) :], steps, strict=False)) if steps else {}


def draw_agents(
    agents: Sequence[Any],
    noted: Sequence[tuple[int, float]] = (),
    cut: Mapping[int, float] | None = None,
) -> None:
    """Draw when the agents of both hosts met, which ranks they started, and how these ended.

    Args:
        agents: Programs whose `errors` are the agents' logs.
        noted: Step and loss that rank 0 noted, in all its lives.
        cut: By host the moment at which its power was cut, in seconds since the epoch.
    """
    all_lives = [_lives(agent.errors) for agent in agents]
    steps = _steps_by_start(all_lives, noted)
    zero_s = min(lives[0].meets_s for lives in all_lives)
    cuts_s = {host: _in_log(moment) - zero_s for host, moment in (cut or {}).items()}
    figure, axes = plt.subplots(figsize=(9, 2.3), layout="constrained")
    sentences, latest_s = [], max(cuts_s.values(), default=0.0)
    for lives in all_lives:
        for life in lives:
            latest_s = max(latest_s, life.ends_s - zero_s)
    for host, lives in enumerate(all_lives):
        until_s = cuts_s.get(host, latest_s)
        for life in lives:
            began_s = min(steps, key=lambda start_s: abs(start_s - life.starts_s), default=0)
            done = steps.get(began_s, "")
            _draw_life(axes, host, life, zero_s, until_s, done)
        ending = "its power is cut" if host in cuts_s else lives[-1].end
        if not ending:
            ending = f"its agent ends with {agents[host].process.returncode}"
            moment = lives[-1].ends_s - zero_s
            axes.plot(moment, host, "X", color=BAD, ms=12, zorder=4)
            _words(axes, moment, host - 0.5, ending, color=BAD)
        kills = [life.rank for life in lives if life.end == "exit code -9"]
        killed = f"{kills[0]} ends with exit code -9, " if kills else ""
        sentences.append(f"host {host}: {killed}{lives[-1].rank} at the end, {ending}")
    for host, moment in cuts_s.items():
        axes.plot(moment, host, "X", color=BAD, ms=12, zorder=4)
        _words(axes, moment, host - 0.5, "power cut", color=BAD)
    axes.set_yticks((0, 1), ("host 0", "host 1"))
    axes.set(xlabel="seconds since the first agent looked for others", ylim=(1.6, -0.7))
    axes.spines[["top", "right"]].set_visible(False)
    meeting = Patch(facecolor="#FDEFD0", edgecolor="#E69F00", hatch="///", label="agents meet")
    place = {"loc": "outside upper right", "frameon": False, "fontsize": 9}
    figure.legend(handles=[meeting], **place)
    show(figure, _sentence(sentences))


def _draw_life(
    axes: Axes, host: int, life: _Life, zero_s: float, until_s: float, done: str
) -> None:
    """A hatched bar while the agents meet, a coloured one while their rank is alive."""
    meets_s, starts_s = life.meets_s - zero_s, (life.starts_s or life.ends_s) - zero_s
    if not life.starts_s:
        starts_s = until_s
    style = {"facecolor": "#FDEFD0", "edgecolor": "#E69F00", "hatch": "///", "linewidth": 0}
    axes.barh(host, starts_s - meets_s, 0.6, meets_s, **style)
    if not life.starts_s:
        return
    ends_s = life.ends_s - zero_s if life.end else until_s
    number = int(re.search(r"\d+", life.rank)[0])
    color = rank_style(number)["color"]
    axes.barh(host, ends_s - starts_s, 0.6, starts_s, facecolor=f"{color}55", edgecolor=color)
    text = f"{life.rank}\n{done}".strip()
    if ends_s - starts_s > 0.12 * until_s:
        _words(axes, (starts_s + ends_s) / 2, host, text)
    else:
        _words(axes, ends_s + 0.02 * until_s, host, text, ha="left")
    if life.end:
        bad = life.end.startswith("exit code")
        if bad:
            axes.plot(ends_s, host, "X", color=BAD, ms=12, zorder=4)
        _words(axes, ends_s, host - 0.42, life.end, color=BAD if bad else GREY)
