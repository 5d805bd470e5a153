"""A ring all-reduce as SVG: what each rank holds after each step, standing still or moving.

A number tells its own story: its digit says which chunk it is, and the places of that digit whose
numbers are in it. 4004 is chunk 4, with what ranks 0 and 3 brought. Chapter 03 chose it so.
"""

import re
from typing import Any

States = list[list[list[int]]]  # after how many steps, by which rank, in which chunk
START_S, STEP_S, MOVE_S, END_S = 0.6, 1.3, 0.8, 1.6
SQUARE, PITCH = 58, 66  # pixels, of a square and from one to the next
PLACES = ((114, 56), (490, 56), (490, 196), (114, 196))  # of ranks 0 to 3, around the ring
ARROWS = ("M378 85H482", "M618 122V188", "M482 225H378", "M242 188V122")


def read(figure: str) -> States:
    """Returns all states, from the words of chapter 03's figure.

    Raises:
        ValueError: They are not those of a ring of which every step adds or replaces one chunk.
    """
    steps = [
        [int(number) for number in numbers.split(",")]
        for numbers in re.findall(r"step \d+: ([\d, ]+)", figure)
    ]
    n = len(steps[0]) if steps else 0
    state = [[10**rank * (chunk + 1) for chunk in range(n)] for rank in range(n)]
    states = [state]
    for numbers in steps:
        before, state = state, [list(held) for held in state]
        for rank, number in enumerate(numbers):
            chunk = chunk_of(number)
            sums = []
            if chunk < n:
                arrived = before[rank - 1][chunk]
                sums = [arrived, arrived + before[rank][chunk]]
            if number not in sums:
                raise ValueError(f"rank {rank} cannot hold {number} after {len(states)} steps")
            state[rank][chunk] = number
        states.append(state)
    if len(steps) != 2 * (n - 1) or shares(min(map(min, state))) != n:
        raise ValueError(f"this is no ring: {figure}")
    return states


def chunk_of(number: int) -> int:
    """Which chunk a number belongs to, by its digit."""
    return int(max(str(number))) - 1


def shares(number: int) -> int:
    """How many ranks' numbers are in it."""
    return sum(digit != "0" for digit in str(number))


def words(states: States, summary: str) -> str:
    """Returns what the picture shows, for those who cannot see it."""
    n, steps = len(states[0]), len(states) - 1
    return (
        f"An all-reduce of {n} ranks in a ring, in {steps} steps. In the first {n - 1} every rank "
        f"adds the chunk that arrives, in the others it keeps it. {summary}"
    )


def square(number: int, n: int, x: float, y: float, size: float, theme: Any) -> str:
    """Returns a square with a stripe for each rank, filled where that rank's number is in.

    A stripe stands where its rank's digit does, so the last one is rank 0's.
    """
    fill = theme.whole if shares(number) == n else theme.part
    box = f'x="{x:g}" y="{y:g}" width="{size}" height="{size}"'
    parts = [f'<rect {box} fill="{theme.panel}"/>']
    wide = size / n
    for place, digit in enumerate(str(number).rjust(n)):
        left = x + place * wide
        if digit not in " 0":
            stripe = f'x="{left:g}" y="{y:g}" width="{wide:g}" height="{size}"'
            parts.append(f'<rect {stripe} fill="{fill}"/>')
        if digit != " " and size >= SQUARE:
            middle = f'x="{left + wide / 2:g}" y="{y + size / 2 + 5:g}" text-anchor="middle"'
            parts.append(f'<text {middle} fill="{theme.ink}">{digit}</text>')
    parts.append(f'<rect {box} fill="none" stroke="{theme.border}"/>\n')
    return "".join(parts)


def steps(states: States, theme: Any) -> tuple[float, str]:
    """Returns the height and the body of a picture with a grid for each step."""
    n, size, pitch, gap, left, top = len(states[0]), 21, 23, 18, 76, 62
    parts = []
    for rank in range(n):
        y = top + rank * pitch + size / 2 + 4
        parts.append(f'<text x="18" y="{y}" fill="{theme.ink}">rank {rank}</text>\n')
    for step, state in enumerate(states):
        x = left + step * (n * pitch + gap)
        title = "at first" if step == 0 else f"step {step}"
        middle = f'x="{x + n * pitch / 2}" text-anchor="middle"'
        parts.append(f'<text {middle} y="{top - 12}" fill="{theme.ink}">{title}</text>\n')
        for rank, held in enumerate(state):
            for chunk, number in enumerate(held):
                where = x + chunk * pitch, top + rank * pitch
                parts.append(square(number, n, *where, size, theme))
                if step and number != states[step - 1][rank][chunk]:
                    parts.append(outline(*where, size, theme))
    for first, text in ((1, "each rank adds what arrives"), (n, "each rank keeps what arrives")):
        x = left + first * (n * pitch + gap)
        parts.append(f'<text x="{x}" y="26" fill="{theme.faint}">{text}</text>\n')
    return top + n * pitch + 20, "".join(parts)


def outline(x: float, y: float, size: float, theme: Any) -> str:
    """Returns the mark of a square that is new."""
    box = f'x="{x}" y="{y}" width="{size}" height="{size}" rx="3"'
    return f'<rect {box} fill="none" stroke="{theme.ink}" stroke-width="1.6"/>\n'


class Clock:
    """Names of CSS animations that show something for a while, or move it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.whole_s = START_S + steps * STEP_S + END_S
        self.rules: dict[str, str] = {}

    def percent(self, second: float) -> float:
        """A moment as a share of the whole."""
        return round(100 * second / self.whole_s, 2)

    def leaves_s(self, step: int) -> float:
        """When the chunks of a step (1 is the first) begin to move; 0 is the beginning."""
        return START_S + (step - 1) * STEP_S if step else 0.0

    def arrives_s(self, step: int) -> float:
        """When the chunks of a step have arrived; 0 is the beginning."""
        return self.leaves_s(step) + MOVE_S if step else 0.0

    def shown(self, from_s: float, to_s: float | None) -> str:
        """The class of what is seen from one moment to a later one, or to the end."""
        begin = self.percent(from_s)
        end = None if to_s is None else self.percent(to_s)
        name = f"s{begin:g}_{'end' if end is None else f'{end:g}'}".replace(".", "p")
        frames = "" if begin == 0 else "0%{opacity:0}"
        frames += f"{begin:g}%{{opacity:1}}"
        if end is not None:
            frames += f"{end:g}%,100%{{opacity:0}}"
        self.rules[name] = f"@keyframes {name}{{{frames}}}"
        return name

    def moved(self, step: int, dx: float, dy: float) -> str:
        """The class of what moves during a step, and is seen only meanwhile."""
        name = f"m{step}_{dx:g}_{dy:g}".replace("-", "n")
        begin_percent = self.percent(self.leaves_s(step))
        end_percent = self.percent(self.arrives_s(step))
        here, there = "transform:none", f"transform:translate({dx:g}px,{dy:g}px)"
        frames = (
            f"0%,{begin_percent - 0.01:.2f}%{{opacity:0;{here}}}"
            f"{begin_percent}%{{opacity:1;{here}}}"
            f"{end_percent - 0.01:.2f}%{{opacity:1;{there}}}"
            f"{end_percent}%,100%{{opacity:0;{there}}}"
        )
        self.rules[name] = f"@keyframes {name}{{{frames}}}"
        return name

    def style(self) -> str:
        """All rules; who asked for less motion sees the end, standing still."""
        lines = []
        for name, rule in self.rules.items():
            timing = "ease-in-out" if name.startswith("m") else "step-end"
            lines.append(f"{rule}.{name}{{animation:{name} {self.whole_s:g}s {timing} infinite}}")
        hidden = [f".{name}" for name in self.rules if not name.endswith("_end")]
        still = f"*{{animation:none!important}}{','.join(hidden)}{{opacity:0}}"
        lines.append(f"@media (prefers-reduced-motion: reduce){{{still}}}")
        return "<style>\n" + "\n".join(lines) + "\n</style>\n"


def moving(states: States, summary: str, theme: Any) -> tuple[float, str, str]:
    """Returns the height, the body and the style of a picture in which chunks go around."""
    n, steps = len(states[0]), len(states) - 1
    clock = Clock(steps)
    head = f'<path d="M0 0L8 4L0 8z" fill="{theme.faint}"/>'
    tip = 'markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto"'
    parts = [f'<marker id="to" {tip}>{head}</marker>\n']
    for arrow in ARROWS:
        line = f'stroke="{theme.faint}" fill="none" stroke-dasharray="4 5"'
        parts.append(f'<path d="{arrow}" {line} marker-end="url(#to)"/>\n')
    for rank in range(n):
        x, y = PLACES[rank]
        is_above = y < PLACES[-1][1]
        label_y = y - 10 if is_above else y + SQUARE + 20  # where no chunk passes
        label = f'x="{x}" y="{label_y}" fill="{theme.ink}"'
        parts.append(f"<text {label}>rank {rank}</text>\n")
        for chunk in range(n):
            numbers = [state[rank][chunk] for state in states]
            parts += filled(numbers, n, x + chunk * PITCH, y, clock, theme)
    for step in range(1, steps + 1):
        for rank in range(n):
            parts.append(travelling(states, step, rank, clock, theme))
    parts += captions(n, steps, summary, clock, theme)
    return 346, "".join(parts), clock.style()


def filled(numbers: list[int], n: int, x: float, y: float, clock: Clock, theme: Any) -> list[str]:
    """Returns one square in each of its states, of which one at a time is seen."""
    changes = [
        step for step in range(len(numbers)) if not step or numbers[step] != numbers[step - 1]
    ]
    parts = []
    for first, last in zip(changes, [*changes[1:], None], strict=True):
        drawn = square(numbers[first], n, x, y, SQUARE, theme)
        from_s = clock.arrives_s(first)
        to_s = None if last is None else clock.arrives_s(last)
        parts.append(f'<g class="{clock.shown(from_s, to_s)}">{drawn}</g>\n')
    return parts


def travelling(states: States, step: int, rank: int, clock: Clock, theme: Any) -> str:
    """Returns the chunk that a rank gets in a step, on its way from the rank before it."""
    n = len(states[0])
    chunks = range(n)
    chunk = next(c for c in chunks if states[step][rank][c] != states[step - 1][rank][c])
    number = states[step - 1][rank - 1][chunk]
    (from_x, from_y), (to_x, to_y) = PLACES[rank - 1], PLACES[rank]
    drawn = square(number, n, from_x + chunk * PITCH, from_y, SQUARE, theme)
    drawn += outline(from_x + chunk * PITCH, from_y, SQUARE, theme)
    return f'<g class="{clock.moved(step, to_x - from_x, to_y - from_y)}">{drawn}</g>\n'


def captions(n: int, steps: int, summary: str, clock: Clock, theme: Any) -> list[str]:
    """Returns the line below, which changes with the steps."""
    texts = ["Four ranks, four chunks each: every rank needs all four sums."]
    moments_s = [0.0]
    for step in range(1, steps + 1):
        does = "adds" if step < n else "keeps"
        texts.append(f"Step {step} of {steps}: each rank {does} the chunk that arrives.")
        moments_s.append(clock.leaves_s(step))
    texts.append(summary)
    moments_s.append(clock.arrives_s(steps) + (STEP_S - MOVE_S))
    parts = []
    for text, from_s, to_s in zip(texts, moments_s, [*moments_s[1:], None], strict=True):
        where = f'class="{clock.shown(from_s, to_s)}" x="430" y="322" text-anchor="middle"'
        parts.append(f'<text {where} fill="{theme.ink}">{text}</text>\n')
    return parts
