"""A ring all-reduce as SVG: what each rank holds after each step, standing still or moving.

A number tells its own story: its digit says which chunk it is, and the places of that digit whose
numbers are in it. 4004 is chunk 4, with what ranks 0 and 3 brought. Chapter 03 chose it so.
"""

import itertools
import re
from itertools import pairwise

from course_tools.site.svg import Theme, element, rectangle, words_at

States = list[list[list[int]]]  # after how many steps, by which rank, in which chunk
START_S, STEP_S, MOVE_S, END_S = 0.6, 1.3, 0.8, 1.6
SQUARE, PITCH = 58, 66  # pixels, of a square and from one to the next
SMALL, SMALL_PITCH = 21, 23  # the same where nothing moves
PLACES = ((114, 56), (490, 56), (490, 196), (114, 196))  # of ranks 0 to 3, around the ring
ARROWS = ("M378 85H482", "M618 122V188", "M482 225H378", "M242 188V122")


def read(figure: str) -> States:
    """Returns all states, from the words of chapter 03's figure.

    Raises:
        ValueError: They are not those of a ring of which every step adds or replaces one chunk.
    """
    steps = []
    for listed in re.findall(r"step \d+: ([\d, ]+)", figure):
        numbers = listed.split(",")
        steps.append([int(number) for number in numbers])
    n = len(steps[0]) if steps else 0
    states = [first_state(n)]
    for step, numbers in enumerate(steps, start=1):
        state = next_state(states[-1], numbers, step)
        states.append(state)
    at_last = itertools.chain(*states[-1])
    smallest = min(at_last, default=0)
    is_complete = shares(smallest) == n
    if len(steps) != 2 * (n - 1) or not is_complete:
        raise ValueError(f"this is no ring: {figure}")
    return states


def first_state(n: int) -> list[list[int]]:
    """Returns what n ranks hold at first: of each chunk, their own number."""
    state = []
    for rank in range(n):
        place = 10**rank
        digits = range(1, n + 1)
        state.append([place * digit for digit in digits])
    return state


def next_state(before: list[list[int]], numbers: list[int], step: int) -> list[list[int]]:
    """Returns what ranks hold after a step, in which each of them came to hold one new number."""
    n = len(before)
    state = [list(chunks) for chunks in before]
    for rank, number in enumerate(numbers):
        chunk = chunk_of(number)
        possible = []
        if chunk < n:
            sender = before[rank - 1]
            arrived = sender[chunk]
            total = before[rank][chunk] + arrived
            possible = [arrived, total]
        if number not in possible:
            raise ValueError(f"rank {rank} cannot hold {number} after {step} steps")
        state[rank][chunk] = number
    return state


def chunk_of(number: int) -> int:
    """Which chunk a number belongs to, by its digit."""
    return int(max(str(number))) - 1


def shares(number: int) -> int:
    """How many ranks' numbers are in it."""
    return sum(digit != "0" for digit in str(number))


def words(states: States, summary: str) -> str:
    """Returns what the picture shows, for those who cannot see it."""
    n = len(states[0])
    steps = len(states) - 1
    return (
        f"An all-reduce of {n} ranks in a ring, in {steps} steps. In the first {n - 1} every rank "
        f"adds the chunk that arrives, in the others it keeps it. {summary}"
    )


def square(number: int, n: int, x: float, y: float, size: float, theme: Theme) -> str:
    """Returns a square with a stripe for each rank, filled where that rank's number is in.

    A stripe stands where its rank's digit does, so the last one is rank 0's.
    """
    fill = theme.complete if shares(number) == n else theme.part
    has_digits = size >= SQUARE
    width = size / n
    baseline = y + size / 2 + 5
    digit_style = {"fill": theme.ink, "text_anchor": "middle"}
    parts = [rectangle(x, y, size, size, fill=theme.panel)]
    digits = str(number).rjust(n)
    for place, digit in enumerate(digits):
        left = x + place * width
        if digit not in " 0":
            stripe = rectangle(left, y, width, size, fill=fill)
            parts.append(stripe)
        if digit != " " and has_digits:
            middle = left + width / 2
            written = words_at(middle, baseline, digit, **digit_style)
            parts.append(written)
    border = rectangle(x, y, size, size, fill="none", stroke=theme.border)
    parts.append(border)
    return "".join(parts)


def outline(x: float, y: float, size: float, theme: Theme) -> str:
    """Returns the mark of a square that is new."""
    return rectangle(x, y, size, size, rx=3, fill="none", stroke=theme.ink, stroke_width=1.6)


def steps(states: States, theme: Theme) -> tuple[float, str]:
    """Returns the height and the body of a picture with a grid for each step."""
    n = len(states[0])
    top = 62
    parts = []
    for rank in range(n):
        baseline = top + rank * SMALL_PITCH + SMALL / 2 + 4
        label = words_at(18, baseline, f"rank {rank}", fill=theme.ink)
        parts.append(label)
    for step in range(len(states)):
        grid_of_step = grid(states, step, top, theme)
        parts.append(grid_of_step)
    for first_step, does in ((1, "adds"), (n, "keeps")):
        x = left_of_grid(first_step, n)
        heading = words_at(x, 26, f"each rank {does} what arrives", fill=theme.faint)
        parts.append(heading)
    height = top + n * SMALL_PITCH + 20
    return height, "".join(parts)


def left_of_grid(step: int, n: int) -> float:
    """Where the grid of a step begins."""
    width = n * SMALL_PITCH
    return 76 + step * (width + 18)


def grid(states: States, step: int, top: float, theme: Theme) -> str:
    """Returns all squares after a step, those that are new with a mark, below a title."""
    n = len(states[0])
    left = left_of_grid(step, n)
    middle = left + n * SMALL_PITCH / 2
    title = "at first"
    before = states[0]
    if step > 0:
        title = f"step {step}"
        before = states[step - 1]
    title_style = {"fill": theme.ink, "text_anchor": "middle"}
    parts = [words_at(middle, top - 12, title, **title_style)]
    for rank, chunks in enumerate(states[step]):
        y = top + rank * SMALL_PITCH
        for chunk, number in enumerate(chunks):
            x = left + chunk * SMALL_PITCH
            parts.append(square(number, n, x, y, SMALL, theme))
            is_new = number != before[rank][chunk]
            if is_new:
                parts.append(outline(x, y, SMALL, theme))
    return "".join(parts)


class Clock:
    """Names of CSS animations that show something for a while, or move it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.whole_s = START_S + steps * STEP_S + END_S
        self.rules: dict[str, str] = {}

    def percent(self, second: float) -> float:
        """A moment as a share of the whole."""
        share = second / self.whole_s
        return round(100 * share, 2)

    def leaves_s(self, step: int) -> float:
        """When the chunks of a step (1 is the first) begin to move; 0 is the beginning."""
        if step == 0:
            return 0.0
        steps_before = step - 1
        return START_S + steps_before * STEP_S

    def arrives_s(self, step: int) -> float:
        """When the chunks of a step have arrived; 0 is the beginning."""
        if step == 0:
            return 0.0
        return self.leaves_s(step) + MOVE_S

    def shown(self, from_s: float, to_s: float | None) -> str:
        """The class of what is seen from one moment to a later one, or to the end."""
        begin = self.percent(from_s)
        end = "end" if to_s is None else f"{self.percent(to_s):g}"
        name = f"s{begin:g}_{end}".replace(".", "p")
        frames = [f"{begin:g}%{{opacity:1}}"]
        if begin > 0:
            frames.insert(0, "0%{opacity:0}")
        if to_s is not None:
            frames.append(f"{end}%,100%{{opacity:0}}")
        self._add_rule(name, frames)
        return name

    def moved(self, step: int, dx: float, dy: float) -> str:
        """The class of what moves during a step, and is seen only meanwhile."""
        name = f"m{step}_{dx:g}_{dy:g}".replace("-", "n")
        begin = self.percent(self.leaves_s(step))
        end = self.percent(self.arrives_s(step))
        at_first = "transform:none"
        at_last = f"transform:translate({dx:g}px,{dy:g}px)"
        frames = [
            f"0%,{begin - 0.01:.2f}%{{opacity:0;{at_first}}}",
            f"{begin}%{{opacity:1;{at_first}}}",
            f"{end - 0.01:.2f}%{{opacity:1;{at_last}}}",
            f"{end}%,100%{{opacity:0;{at_last}}}",
        ]
        self._add_rule(name, frames)
        return name

    def _add_rule(self, name: str, frames: list[str]) -> None:
        all_frames = "".join(frames)
        self.rules[name] = f"@keyframes {name}{{{all_frames}}}"

    def style(self) -> str:
        """All rules; who asked for less motion sees the end, standing still."""
        lines, hidden = [], []
        for name, rule in self.rules.items():
            timing = "ease-in-out" if name.startswith("m") else "step-end"
            animation = f"{name} {self.whole_s:g}s {timing} infinite"
            lines.append(f"{rule}.{name}{{animation:{animation}}}")
            if not name.endswith("_end"):
                hidden.append(f".{name}")
        all_hidden = ",".join(hidden)
        still = f"*{{animation:none!important}}{all_hidden}{{opacity:0}}"
        lines.append(f"@media (prefers-reduced-motion: reduce){{{still}}}")
        all_lines = "\n".join(lines)
        return f"<style>\n{all_lines}\n</style>\n"


def changed_chunk(before: list[int], after: list[int]) -> int:
    """Returns the one chunk of a rank that a step has changed."""
    changed = []
    for chunk in range(len(before)):
        if before[chunk] != after[chunk]:
            changed.append(chunk)
    (only_one,) = changed
    return only_one


class MovingRing:
    """A picture in which chunks go around."""

    def __init__(self, states: States, theme: Theme) -> None:
        self.states = states
        self.theme = theme
        self.n = len(states[0])
        self.steps = len(states) - 1
        self.clock = Clock(self.steps)

    def body(self, summary: str) -> str:
        """Returns all of it but the style."""
        parts = self.arrows()
        for rank in range(self.n):
            parts += self.held_by(rank)
        for step in range(1, self.steps + 1):
            for rank in range(self.n):
                chunk_on_its_way = self.travelling(step, rank)
                parts.append(chunk_on_its_way)
        parts += self.captions(summary)
        return "".join(parts)

    def arrows(self) -> list[str]:
        """Returns the way around, with a head at the end of each arrow."""
        colour = self.theme.faint
        head = element("path", d="M0 0L8 4L0 8z", fill=colour)
        size = {"markerWidth": 8, "markerHeight": 8, "refX": 7, "refY": 4}
        marker = element("marker", head, id="to", orient="auto", **size)
        parts = [marker]
        line = {"stroke": colour, "stroke_dasharray": "4 5", "marker_end": "url(#to)"}
        for path in ARROWS:
            arrow = element("path", d=path, fill="none", **line)
            parts.append(arrow)
        return parts

    def held_by(self, rank: int) -> list[str]:
        """Returns a rank's name and its chunks, each in all of its states."""
        x, y = PLACES[rank]
        _, lowest_y = PLACES[-1]
        label_y = y - 10  # where no chunk passes
        if y == lowest_y:
            label_y = y + SQUARE + 20
        label = words_at(x, label_y, f"rank {rank}", fill=self.theme.ink)
        parts = [label]
        for chunk in range(self.n):
            numbers = [state[rank][chunk] for state in self.states]
            chunk_x = x + chunk * PITCH
            parts += self.filled(numbers, chunk_x, y)
        return parts

    def filled(self, numbers: list[int], x: float, y: float) -> list[str]:
        """Returns one square in each of its states, of which one at a time is seen."""
        changes = [0]  # the steps after which it holds a new number
        for step in range(1, len(numbers)):
            if numbers[step] != numbers[step - 1]:
                changes.append(step)
        parts = []
        for step, next_change in pairwise([*changes, None]):
            from_s = self.clock.arrives_s(step)
            until_s = None
            if next_change is not None:
                until_s = self.clock.arrives_s(next_change)
            seen = self.clock.shown(from_s, until_s)
            drawn = square(numbers[step], self.n, x, y, SQUARE, self.theme)
            state = element("g", drawn, class_=seen)
            parts.append(state)
        return parts

    def travelling(self, step: int, rank: int) -> str:
        """Returns the chunk that a rank gets in a step, on its way from the rank before it."""
        sender = rank - 1
        from_x, from_y = PLACES[sender]
        to_x, to_y = PLACES[rank]
        before = self.states[step - 1]
        after = self.states[step]
        chunk = changed_chunk(before[rank], after[rank])
        number = before[sender][chunk]
        x = from_x + chunk * PITCH
        drawn = square(number, self.n, x, from_y, SQUARE, self.theme)
        drawn += outline(x, from_y, SQUARE, self.theme)
        dx = to_x - from_x
        dy = to_y - from_y
        movement = self.clock.moved(step, dx, dy)
        return element("g", drawn, class_=movement)

    def captions(self, summary: str) -> list[str]:
        """Returns the line below, which changes with the steps."""
        # By the second in which each of them comes.
        texts = {0.0: "Four ranks, four chunks each: every rank needs all four sums."}
        for step in range(1, self.steps + 1):
            does = "adds" if step < self.n else "keeps"
            begin_s = self.clock.leaves_s(step)
            texts[begin_s] = (
                f"Step {step} of {self.steps}: each rank {does} the chunk that arrives."
            )
        last_arrival_s = self.clock.arrives_s(self.steps)
        summary_s = last_arrival_s + STEP_S - MOVE_S
        texts[summary_s] = summary
        style = {"fill": self.theme.ink, "text_anchor": "middle"}
        parts = []
        for begin_s, end_s in pairwise([*texts, None]):
            seen = self.clock.shown(begin_s, end_s)
            caption = words_at(430, 322, texts[begin_s], class_=seen, **style)
            parts.append(caption)
        return parts


def moving(states: States, summary: str, theme: Theme) -> tuple[float, str, str]:
    """Returns the height, the body and the style of a picture in which chunks go around."""
    ring = MovingRing(states, theme)
    body = ring.body(summary)
    return 346, body, ring.clock.style()
