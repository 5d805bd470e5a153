"""A ring all-reduce as SVG: what each rank holds after each step, standing still or moving.

A number tells its own story: its digit says which chunk it is, and the places of that digit whose
numbers are in it. 4004 is chunk 4, with what ranks 0 and 3 brought. Chapter 03 chose it so.
"""

import copy
import re
from collections.abc import Iterable
from itertools import chain, pairwise
from typing import NamedTuple

from course_tools.site.svg import Theme, Value, element, rectangle, words_at

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
DASHES = {"stroke_dasharray": "4 5", "marker_end": "url(#to)"}  # of an arrow, with a head
MARKER = {  # the head of an arrow, at the end of its line
    "id": "to",
    "orient": "auto",
    "markerWidth": 8,
    "markerHeight": 8,
    "refX": 7,
    "refY": 4,
}

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
    numbers_of_steps = []
    for listed in NUMBERS_OF_STEP.findall(figure):
        written = listed.split(",")
        numbers = list(map(int, written))
        numbers_of_steps.append(numbers)
    if not numbers_of_steps:
        raise no_ring
    first_step = numbers_of_steps[0]
    n = len(first_step)
    state = first_state(n)
    states = [state]
    for step, numbers in enumerate(numbers_of_steps, start=1):
        state = next_state(state, numbers, step)
        states.append(state)
    numbers_at_end = chain(*state)
    smallest = min(numbers_at_end)
    if shares(smallest) != n:
        raise no_ring
    steps_of_ring = 2 * (n - 1)
    if len(numbers_of_steps) != steps_of_ring:
        raise no_ring
    return states


def first_state(n: int) -> State:
    """Returns what n ranks hold at first: of each chunk, their own number."""
    state = []
    for rank in range(n):
        place = 10**rank
        chunks = []
        for chunk in range(n):
            digit = chunk + 1
            number = place * digit
            chunks.append(number)
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
        chunks = state[rank]
        chunks[chunk] = number
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
    digits = str(number)
    digit = max(digits)
    return int(digit) - 1


def shares(number: int) -> int:
    """How many ranks' numbers are in it."""
    digits = str(number)
    absent = digits.count("0")
    return len(digits) - absent


def words(states: States, summary: str) -> str:
    """Returns what the picture shows, for those who cannot see it."""
    at_first = states[0]
    n = len(at_first)
    step_count = len(states) - 1
    adding_steps = n - 1
    return (
        f"An all-reduce of {n} ranks in a ring, in {step_count} steps. "
        f"In the first {adding_steps} every rank adds the chunk that arrives, "
        f"in the others it keeps it. {summary}"
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
        theme = self.theme
        fill = theme.part
        if shares(number) == self.n:
            fill = theme.complete
        width = self.size / self.n
        left = x
        drawn = self.shape(x, y, fill=theme.panel)
        written = str(number)
        digits = written.rjust(self.n)
        for digit in digits:
            if digit in "123456789":
                drawn += rectangle(left, y, width, self.size, fill=fill)
            drawn += self.digit(digit, left, y)
            left += width
        drawn += self.shape(x, y, fill="none", stroke=theme.border)
        return drawn

    def digit(self, digit: str, left: float, y: float) -> str:
        """Returns a digit in the middle of its stripe, in squares that have room for it."""
        if self.size < SQUARE:
            return ""
        if digit == " ":
            return ""
        width = self.size / self.n
        middle = left + width / 2
        centre_y = y + self.size / 2
        baseline = centre_y + 5
        ink = self.theme.ink
        return words_at(middle, baseline, digit, fill=ink, text_anchor="middle")

    def outline(self, x: float, y: float) -> str:
        """Returns the mark of a square that is new."""
        ink = self.theme.ink
        return self.shape(x, y, rx=3, fill="none", stroke=ink, stroke_width=1.6)

    def shape(self, x: float, y: float, **style: Value) -> str:
        """Returns a rectangle of the size that all squares have."""
        return rectangle(x, y, self.size, self.size, **style)


class Ring:
    """What both pictures have: states, colours, and squares of a size."""

    def __init__(self, states: States, theme: Theme, size: float) -> None:
        self.states = states
        self.theme = theme
        at_first = states[0]
        self.n = len(at_first)
        self.squares = Squares(size, self.n, theme)

    def rank_name(self, rank: int, x: float, y: float) -> str:
        """Returns the name of a rank, which begins at x."""
        name = f"rank {rank}"
        return words_at(x, y, name, fill=self.theme.ink)

    def centred(self, x: float, y: float, text: str, **style: str) -> str:
        """Returns a line of text around x."""
        ink = self.theme.ink
        return words_at(x, y, text, **style, fill=ink, text_anchor="middle")


class StandingRing(Ring):
    """A picture with a grid of squares for each step: a row for each rank."""

    def __init__(self, states: States, theme: Theme) -> None:
        super().__init__(states, theme, SMALL)
        self.grid_size = self.n * SMALL_PITCH

    def body(self) -> str:
        """Returns all of it."""
        drawn = ""
        for rank in range(self.n):
            middle = self.top_of_row(rank) + SMALL / 2
            baseline = middle + 4
            drawn += self.rank_name(rank, 18, baseline)
        count = len(self.states)
        for step in range(count):
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
        pitch = self.grid_size + GRIDS_GAP
        return 76 + step * pitch

    def top_of_row(self, rank: int) -> float:
        """Where the squares of a rank begin."""
        return GRIDS_TOP + rank * SMALL_PITCH

    def grid(self, step: int) -> str:
        """Returns all squares after a step, below a title."""
        title = "at first"
        if step > 0:
            title = f"step {step}"
        left = self.left_of_grid(step)
        middle = left + self.grid_size / 2
        title_y = GRIDS_TOP - 12
        drawn = self.centred(middle, title_y, title)
        for rank in range(self.n):
            drawn += self.row(step, rank)
        return drawn

    def row(self, step: int, rank: int) -> str:
        """Returns a rank's squares after a step, those that are new with a mark."""
        step_before = max(0, step - 1)
        state_before = self.states[step_before]
        state = self.states[step]
        before = state_before[rank]
        after = state[rank]
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
    body = ring.body()
    height = GRIDS_TOP + ring.grid_size + 20
    return height, body


class Clock:
    """Names of CSS animations that show something for a while, or move it."""

    def __init__(self, step_count: int) -> None:
        all_steps_s = step_count * STEP_S
        self.total_s = START_S + all_steps_s + END_S
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
        end = "end"
        if to_s is not None:
            percent = self.percent(to_s)
            end = f"{percent:g}"
            frames += f"{end}%,100%{{opacity:0}}"
        name = f"s{begin:g}_{end}"
        return self._add_rule(name, frames)

    def in_turn(self, begins_s: Iterable[float]) -> list[str]:
        """The classes of what is seen in turn: each until the next begins, the last to the end."""
        classes = []
        moments_s = [*begins_s, None]  # None is the end
        for begin_s, end_s in pairwise(moments_s):
            seen = self.shown(begin_s, end_s)
            classes.append(seen)
        return classes

    def moved(self, step: int, dx: float, dy: float) -> str:
        """The class of what moves during a step, and is seen only meanwhile."""
        begin_s = self.leaves_s(step)
        end_s = self.arrives_s(step)
        begin = self.percent(begin_s)
        end = self.percent(end_s)
        just_before_begin = just_before(begin)
        just_before_end = just_before(end)
        at_first = "transform:none"
        at_last = f"transform:translate({dx:g}px,{dy:g}px)"
        frames = f"0%,{just_before_begin}%{{opacity:0;{at_first}}}"
        frames += f"{begin}%{{opacity:1;{at_first}}}"
        frames += f"{just_before_end}%{{opacity:1;{at_last}}}"
        frames += f"{end}%,100%{{opacity:0;{at_last}}}"
        name = f"m{step}_{dx:g}_{dy:g}"
        return self._add_rule(name, frames)

    def _add_rule(self, name: str, frames: str) -> str:
        """Keeps the frames of an animation; returns its name as CSS can have it."""
        without_dots = name.replace(".", "p")
        name_in_css = without_dots.replace("-", "n")
        rule = f"@keyframes {name_in_css}{{{frames}}}"
        self.rules[name_in_css] = rule
        return name_in_css

    def style(self) -> str:
        """All rules; who asked for less motion sees the end, standing still."""
        duration = f"{self.total_s:g}s"
        lines = ["<style>"]
        hidden = []
        for name, rule in self.rules.items():
            timing = "step-end"
            if name.startswith("m"):
                timing = "ease-in-out"
            animation = f"{name} {duration} {timing} infinite"
            use = f".{name}{{animation:{animation}}}"
            lines.append(rule + use)
            if not name.endswith("_end"):
                hidden.append(f".{name}")
        all_hidden = ",".join(hidden)
        still = f"*{{animation:none!important}}{all_hidden}{{opacity:0}}"
        lines.append(f"@media (prefers-reduced-motion: reduce){{{still}}}")
        lines.append("</style>\n")
        return "\n".join(lines)


def just_before(percent: float) -> str:
    """Returns the last moment before this one that frames can tell apart from it."""
    moment = percent - 0.01
    return f"{moment:.2f}"


def changed_chunk(before: list[int], after: list[int]) -> int:
    """Returns the one chunk of a rank that a step has changed."""
    changed = []
    for chunk, number in enumerate(before):
        if number != after[chunk]:
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
        for step in self.numbers_of_steps():
            for rank in range(self.n):
                drawn += self.travelling(step, rank)
        drawn += self.captions(summary)
        return drawn

    def numbers_of_steps(self) -> range:
        """Returns the numbers of the steps, from 1 to the last."""
        end = self.steps + 1
        return range(1, end)

    def arrows(self) -> str:
        """Returns the way around, with a head at the end of each arrow."""
        colour = self.theme.faint
        head = element("path", d="M0 0L8 4L0 8z", fill=colour)
        drawn = element("marker", head, **MARKER)
        for path in ARROWS:
            drawn += element("path", d=path, fill="none", stroke=colour, **DASHES)
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
            numbers = self.numbers_in(rank, chunk)
            drawn += self.filled(numbers, x, y)
            x += PITCH
        return drawn

    def numbers_in(self, rank: int, chunk: int) -> list[int]:
        """Returns what a rank holds in a chunk, in all states."""
        numbers = []
        for state in self.states:
            chunks = state[rank]
            numbers.append(chunks[chunk])
        return numbers

    def filled(self, numbers: list[int], x: float, y: float) -> str:
        """Returns one square in each of its states, of which one at a time is seen."""
        shown = []
        begins_s = []
        before = None
        for step, number in enumerate(numbers):
            if number != before:
                begin_s = self.clock.arrives_s(step)
                shown.append(number)
                begins_s.append(begin_s)
            before = number
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
        chunks_before = before[rank]
        chunks_after = after[rank]
        chunk = changed_chunk(chunks_before, chunks_after)
        chunks_of_sender = before[sender]
        number = chunks_of_sender[chunk]
        x = from_x + chunk * PITCH
        drawn = self.squares.square(number, x, from_y)
        drawn += self.squares.outline(x, from_y)
        dx = to_x - from_x
        dy = to_y - from_y
        movement = self.clock.moved(step, dx, dy)
        return element("g", drawn, class_=movement)

    def captions(self, summary: str) -> str:
        """Returns the line below, which changes with the steps."""
        texts = ["Four ranks, four chunks each: every rank needs all four sums."]
        begins_s = [0.0]
        for step in self.numbers_of_steps():
            begin_s = self.clock.leaves_s(step)
            begins_s.append(begin_s)
            caption = self.caption_of(step)
            texts.append(caption)
        last_arrival_s = self.clock.arrives_s(self.steps)
        summary_s = last_arrival_s + STEP_S - MOVE_S
        begins_s.append(summary_s)
        texts.append(summary)
        drawn = ""
        classes = self.clock.in_turn(begins_s)
        for text, seen in zip(texts, classes, strict=True):
            drawn += self.centred(430, 322, text, class_=seen)
        return drawn

    def caption_of(self, step: int) -> str:
        """Returns what is said while the chunks of a step move."""
        verb = "keeps"
        if step < self.n:
            verb = "adds"
        return f"Step {step} of {self.steps}: each rank {verb} the chunk that arrives."


def moving(states: States, summary: str, theme: Theme) -> tuple[float, str, str]:
    """Returns the height, the body and the style of a picture in which chunks go around."""
    ring = MovingRing(states, theme)
    height = 346
    body = ring.body(summary)
    style = ring.clock.style()
    return height, body, style
