"""A ring all-reduce as SVG: what each rank holds after each step, standing still or moving.

A number tells its own story: its digit says which chunk it is, and the places of that digit whose
numbers are in it. 4004 is chunk 4, with what ranks 0 and 3 brought. Chapter 03 chose it so.
"""

import copy
import re
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import NamedTuple

from course_tools.site.svg import Theme, element, rectangle, words_at

State = list[list[int]]  # a number by rank and chunk
States = list[State]  # after each step; the first is before all of them
NUMBERS_OF_STEP = re.compile(r"step \d+: ([\d, ]+)")  # in the figure's words

# Where nothing moves, in pixels.
SMALL = 21  # a square
SMALL_PITCH = 23  # from one square to the next
GRIDS_TOP = 62
GRIDS_GAP = 18

# Where chunks move, in pixels.
SQUARE = 58
PITCH = 66
PLACES = ((114, 56), (490, 56), (490, 196), (114, 196))  # of ranks 0 to 3, around the ring
ARROWS = ("M378 85H482", "M618 122V188", "M482 225H378", "M242 188V122")

START_S = 0.6  # before the first step
STEP_S = 1.3  # from one step to the next
MOVE_S = 0.8  # of which chunks are on their way
END_S = 1.6  # after the last step


def read(figure: str) -> States:
    """Returns all states, from the words of chapter 03's figure.

    Raises:
        ValueError: They are not those of a ring of which every step adds or replaces one chunk.
    """
    no_ring = ValueError(f"this is no ring: {figure}")
    steps = []
    for listed in NUMBERS_OF_STEP.findall(figure):
        numbers = map(int, listed.split(","))
        steps.append(list(numbers))
    if not steps:
        raise no_ring
    n = len(steps[0])
    state = first_state(n)
    states = [state]
    for step, numbers in enumerate(steps, start=1):
        state = next_state(state, numbers, step)
        states.append(state)
    smallest = min(chain(*state))
    if shares(smallest) != n:
        raise no_ring
    if len(steps) != 2 * (n - 1):
        raise no_ring
    return states


def first_state(n: int) -> State:
    """Returns what n ranks hold at first: of each chunk, their own number."""
    state = []
    for rank in range(n):
        place = 10**rank
        chunks = [place * digit for digit in range(1, n + 1)]
        state.append(chunks)
    return state


def next_state(before: State, numbers: list[int], step: int) -> State:
    """Returns what ranks hold after a step, in which each of them came to hold one new number."""
    state = copy.deepcopy(before)
    for rank, number in enumerate(numbers):
        chunk = chunk_of(number)
        possible = _possible_numbers(before, rank, chunk)
        if number not in possible:
            raise ValueError(f"rank {rank} cannot hold {number} after {step} steps")
        state[rank][chunk] = number
    return state


def _possible_numbers(before: State, rank: int, chunk: int) -> list[int]:
    """What a rank may come to hold in a chunk: the number that arrives, or the sum with its own."""
    if chunk >= len(before):
        return []
    sender = before[rank - 1]
    receiver = before[rank]
    arrived = sender[chunk]
    total = receiver[chunk] + arrived
    return [arrived, total]


def chunk_of(number: int) -> int:
    """Which chunk a number belongs to, by its digit."""
    digit = max(str(number))
    return int(digit) - 1


def shares(number: int) -> int:
    """How many ranks' numbers are in it."""
    digits = str(number)
    return len(digits) - digits.count("0")


def words(states: States, summary: str) -> str:
    """Returns what the picture shows, for those who cannot see it."""
    n = len(states[0])
    steps = len(states) - 1
    return (
        f"An all-reduce of {n} ranks in a ring, in {steps} steps. In the first {n - 1} every rank "
        f"adds the chunk that arrives, in the others it keeps it. {summary}"
    )


class Squares(NamedTuple):
    """How the squares of a picture look, each of which shows a number."""

    size: float
    n: int  # ranks
    theme: Theme

    def square(self, number: int, x: float, y: float) -> str:
        """Returns a square with a stripe for each rank, filled where that rank's number is in.

        A stripe stands where its rank's digit does, so the last one is rank 0's.
        """
        size = self.size
        width = size / self.n
        baseline = y + size / 2 + 5
        theme = self.theme
        fill = theme.part
        if shares(number) == self.n:
            fill = theme.complete
        drawn = rectangle(x, y, size, size, fill=theme.panel)
        digits = str(number).rjust(self.n)
        for place, digit in enumerate(digits):
            if digit == " ":
                continue
            left = x + place * width
            if digit != "0":
                drawn += rectangle(left, y, width, size, fill=fill)
            if size >= SQUARE:  # there is room for digits
                middle = left + width / 2
                drawn += words_at(middle, baseline, digit, fill=theme.ink, text_anchor="middle")
        drawn += rectangle(x, y, size, size, fill="none", stroke=theme.border)
        return drawn

    def outline(self, x: float, y: float) -> str:
        """Returns the mark of a square that is new."""
        line = {"fill": "none", "stroke": self.theme.ink, "stroke_width": 1.6}
        return rectangle(x, y, self.size, self.size, rx=3, **line)


class Ring:
    """What both pictures have: states, colours, and squares of a size."""

    def __init__(self, states: States, theme: Theme, size: float) -> None:
        self.states = states
        self.theme = theme
        self.n = len(states[0])
        self.squares = Squares(size, self.n, theme)

    def rank_name(self, rank: int, x: float, y: float) -> str:
        """Returns the name of a rank, which begins at x."""
        return words_at(x, y, f"rank {rank}", fill=self.theme.ink)

    def centred(self, x: float, y: float, text: str, **style: str) -> str:
        """Returns a line of text around x."""
        return words_at(x, y, text, **style, fill=self.theme.ink, text_anchor="middle")


class StandingRing(Ring):
    """A picture with a grid of squares for each step: a row for each rank."""

    def __init__(self, states: States, theme: Theme) -> None:
        super().__init__(states, theme, SMALL)
        self.grid_size = self.n * SMALL_PITCH

    def body(self) -> str:
        """Returns all of it."""
        drawn = ""
        for rank in range(self.n):
            baseline = self.top_of_row(rank) + SMALL / 2 + 4
            drawn += self.rank_name(rank, 18, baseline)
        for step in range(len(self.states)):
            drawn += self.grid(step)
        drawn += self.heading(1, "each rank adds what arrives")
        drawn += self.heading(self.n, "each rank keeps what arrives")
        return drawn

    def heading(self, first_step: int, text: str) -> str:
        """Returns what stands above the grids from a step on."""
        x = self.left_of_grid(first_step)
        return words_at(x, 26, text, fill=self.theme.faint)

    def left_of_grid(self, step: int) -> float:
        """Where the grid of a step begins."""
        return 76 + step * (self.grid_size + GRIDS_GAP)

    def top_of_row(self, rank: int) -> float:
        """Where the squares of a rank begin."""
        return GRIDS_TOP + rank * SMALL_PITCH

    def grid(self, step: int) -> str:
        """Returns all squares after a step, below a title."""
        title = "at first"
        if step > 0:
            title = f"step {step}"
        middle = self.left_of_grid(step) + self.grid_size / 2
        drawn = self.centred(middle, GRIDS_TOP - 12, title)
        for rank in range(self.n):
            drawn += self.row(step, rank)
        return drawn

    def row(self, step: int, rank: int) -> str:
        """Returns a rank's squares after a step, those that are new with a mark."""
        step_before = max(0, step - 1)
        before = self.states[step_before][rank]
        after = self.states[step][rank]
        x = self.left_of_grid(step)
        y = self.top_of_row(rank)
        drawn = ""
        for old_number, number in zip(before, after, strict=True):
            drawn += self.squares.square(number, x, y)
            if number != old_number:
                drawn += self.squares.outline(x, y)
            x += SMALL_PITCH
        return drawn


def steps(states: States, theme: Theme) -> tuple[float, str]:
    """Returns the height and the body of a picture with a grid for each step."""
    ring = StandingRing(states, theme)
    height = GRIDS_TOP + ring.grid_size + 20
    return height, ring.body()


class Clock:
    """Names of CSS animations that show something for a while, or move it."""

    def __init__(self, steps: int) -> None:
        self.total_s = START_S + steps * STEP_S + END_S
        self.rules: dict[str, str] = {}

    def percent(self, second: float) -> float:
        """A moment as a share of the whole."""
        share = second / self.total_s
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
        frames = f"{begin:g}%{{opacity:1}}"
        if begin > 0:
            frames = f"0%{{opacity:0}}{frames}"
        if to_s is None:
            name = f"s{begin:g}_end"
        else:
            end = self.percent(to_s)
            name = f"s{begin:g}_{end:g}"
            frames += f"{end:g}%,100%{{opacity:0}}"
        return self._add_rule(name, frames)

    def in_turn(self, begins_s: Iterable[float]) -> list[str]:
        """The classes of what is seen in turn: each until the next begins, the last to the end."""
        classes = []
        for begin_s, end_s in pairwise([*begins_s, None]):
            seen = self.shown(begin_s, end_s)
            classes.append(seen)
        return classes

    def moved(self, step: int, dx: float, dy: float) -> str:
        """The class of what moves during a step, and is seen only meanwhile."""
        begin_s = self.leaves_s(step)
        end_s = self.arrives_s(step)
        begin = self.percent(begin_s)
        end = self.percent(end_s)
        just_before_begin = f"{begin - 0.01:.2f}"
        just_before_end = f"{end - 0.01:.2f}"
        at_first = "transform:none"
        at_last = f"transform:translate({dx:g}px,{dy:g}px)"
        frames = f"0%,{just_before_begin}%{{opacity:0;{at_first}}}"
        frames += f"{begin}%{{opacity:1;{at_first}}}"
        frames += f"{just_before_end}%{{opacity:1;{at_last}}}"
        frames += f"{end}%,100%{{opacity:0;{at_last}}}"
        return self._add_rule(f"m{step}_{dx:g}_{dy:g}", frames)

    def _add_rule(self, name: str, frames: str) -> str:
        """Keeps the frames of an animation; returns its name as CSS can have it."""
        name_in_css = name.replace(".", "p").replace("-", "n")
        self.rules[name_in_css] = f"@keyframes {name_in_css}{{{frames}}}"
        return name_in_css

    def style(self) -> str:
        """All rules; who asked for less motion sees the end, standing still."""
        lines = ["<style>"]
        hidden = []
        for name, rule in self.rules.items():
            timing = "step-end"
            if name.startswith("m"):
                timing = "ease-in-out"
            animation = f"{name} {self.total_s:g}s {timing} infinite"
            lines.append(f"{rule}.{name}{{animation:{animation}}}")
            if not name.endswith("_end"):
                hidden.append(f".{name}")
        all_hidden = ",".join(hidden)
        still = f"*{{animation:none!important}}{all_hidden}{{opacity:0}}"
        lines.append(f"@media (prefers-reduced-motion: reduce){{{still}}}")
        lines.append("</style>\n")
        return "\n".join(lines)


def changed_chunk(before: list[int], after: list[int]) -> int:
    """Returns the one chunk of a rank that a step has changed."""
    changed = []
    for chunk in range(len(before)):
        if before[chunk] != after[chunk]:
            changed.append(chunk)
    (only_one,) = changed
    return only_one


class MovingRing(Ring):
    """A picture in which chunks go around."""

    def __init__(self, states: States, theme: Theme) -> None:
        super().__init__(states, theme, SQUARE)
        self.steps = len(states) - 1
        self.clock = Clock(self.steps)

    def body(self, summary: str) -> str:
        """Returns all of it but the style."""
        drawn = self.arrows()
        for rank in range(self.n):
            drawn += self.held_by(rank)
        for step in range(1, self.steps + 1):
            for rank in range(self.n):
                drawn += self.travelling(step, rank)
        return drawn + self.captions(summary)

    def arrows(self) -> str:
        """Returns the way around, with a head at the end of each arrow."""
        colour = self.theme.faint
        head = element("path", d="M0 0L8 4L0 8z", fill=colour)
        size = {"markerWidth": 8, "markerHeight": 8, "refX": 7, "refY": 4}
        line = {"stroke": colour, "stroke_dasharray": "4 5", "marker_end": "url(#to)"}
        drawn = element("marker", head, id="to", orient="auto", **size)
        for path in ARROWS:
            drawn += element("path", d=path, fill="none", **line)
        return drawn

    def held_by(self, rank: int) -> str:
        """Returns a rank's name and its chunks, each in all of its states."""
        x, y = PLACES[rank]
        _, lowest_y = PLACES[-1]
        label_y = y - 10  # where no chunk passes
        if y == lowest_y:
            label_y = y + SQUARE + 20
        drawn = self.rank_name(rank, x, label_y)
        for chunk in range(self.n):
            numbers = [state[rank][chunk] for state in self.states]
            drawn += self.filled(numbers, x, y)
            x += PITCH
        return drawn

    def filled(self, numbers: list[int], x: float, y: float) -> str:
        """Returns one square in each of its states, of which one at a time is seen."""
        shown = [numbers[0]]
        begins_s = [0.0]
        for step, (before, after) in enumerate(pairwise(numbers), start=1):
            if before != after:
                begin_s = self.clock.arrives_s(step)
                shown.append(after)
                begins_s.append(begin_s)
        drawn = ""
        classes = self.clock.in_turn(begins_s)
        for number, seen in zip(shown, classes, strict=True):
            square = self.squares.square(number, x, y)
            drawn += element("g", square, class_=seen)
        return drawn

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
        drawn = self.squares.square(number, x, from_y)
        drawn += self.squares.outline(x, from_y)
        dx = to_x - from_x
        dy = to_y - from_y
        movement = self.clock.moved(step, dx, dy)
        return element("g", drawn, class_=movement)

    def captions(self, summary: str) -> str:
        """Returns the line below, which changes with the steps."""
        # By the second in which each of them comes.
        texts = {0.0: "Four ranks, four chunks each: every rank needs all four sums."}
        for step in range(1, self.steps + 1):
            verb = "adds" if step < self.n else "keeps"
            begin_s = self.clock.leaves_s(step)
            texts[begin_s] = (
                f"Step {step} of {self.steps}: each rank {verb} the chunk that arrives."
            )
        last_arrival_s = self.clock.arrives_s(self.steps)
        summary_s = last_arrival_s + STEP_S - MOVE_S
        texts[summary_s] = summary
        drawn = ""
        classes = self.clock.in_turn(texts)
        for text, seen in zip(texts.values(), classes, strict=True):
            drawn += self.centred(430, 322, text, class_=seen)
        return drawn


def moving(states: States, summary: str, theme: Theme) -> tuple[float, str, str]:
    """Returns the height, the body and the style of a picture in which chunks go around."""
    ring = MovingRing(states, theme)
    body = ring.body(summary)
    return 346, body, ring.clock.style()
