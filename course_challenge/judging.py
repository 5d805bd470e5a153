"""What an entry to the challenge is worth: judged by its sums, timed by its messages.

An entry runs in real workers, a recording of its messages on a virtual clock, which is the same on
every computer. Its score in a league is the mean, over sizes and numbers of ranks, of the time that
no all-reduce can beat as a percentage of the time that the entry takes.
"""

import itertools
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from course_challenge.fence import Entry, Refused
from course_challenge.leagues import LEAGUES, SIZES, WORLD_SIZES, League
from course_checks.edited import overtaken
from course_checks.outcome import Outcome
from course_utils import check
from course_utils.network.trace import Trace

NAME = "all_reduce"
ROUNDING = 1 - 1e-9  # so much of the bound, since times are sums of rounded numbers
_TOO_FAST = (
    "{}: done after {:.6g} µs, and {:.6g} µs is the least that is possible. Either the judge has "
    "a hole or the proof has: please open an issue. Until then it does not count."
)


class Case(NamedTuple):
    """What an entry is called with; only the sizes of the challenge give points."""

    league: str
    numbers: int
    size: str = ""

    def __str__(self) -> str:
        if self.size:
            return f"{self.league}, {self.size}"
        return f"{self.league}, {self.numbers} numbers"


class Run(NamedTuple):
    """What a score counts: a league, a number of ranks, and a size."""

    league: str
    world_size: int
    size: str

    def __str__(self) -> str:
        return f"{self.league}, {self.world_size} ranks, {self.size}"


@dataclass(repr=False)
class Score:
    """What an entry is worth; without points it says why.

    Attributes:
        percents: By run, the bound as a percentage of the entry's time.
    """

    name: str
    why: str = ""
    percents: dict[Run, float] = field(default_factory=dict)
    text: str = ""

    def __getitem__(self, league: str) -> float:
        of_league = []
        for run, percent in self.percents.items():
            if run.league == league:
                of_league.append(percent)
        if not of_league:
            return 0.0
        total = sum(of_league)
        mean = total / len(of_league)
        return round(mean, 1)

    def __repr__(self) -> str:
        if self.why:
            return f"{self.name} scores 0.\n\n{self.why}"
        header = ["percent of the bound", *LEAGUES]
        rows = [header]
        for world_size, size in itertools.product(WORLD_SIZES, SIZES):
            label = f"{world_size} ranks, {size}"
            by_league = []
            for league in LEAGUES:
                run = Run(league, world_size, size)
                percent = self.percents[run]
                by_league.append(percent)
            row = _row(label, by_league)
            rows.append(row)
        label = f"{self.name} scores"
        scores = [self[league] for league in LEAGUES]
        row = _row(label, scores)
        rows.append(row)
        return table(rows)


def _row(label: str, numbers: Iterable[float], digits: int = 1) -> list[str]:
    """A row of a table: numbers with so many digits behind the point."""
    row = [label]
    for number in numbers:
        rounded = f"{number:.{digits}f}"
        row.append(rounded)
    return row


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of one width, the first to the left."""
    widths = []
    columns = zip(*rows, strict=True)
    for column in columns:
        lengths = map(len, column)
        widest = max(lengths)
        widths.append(widest)
    first_width, *other_widths = widths
    lines = []
    for label, *numbers in rows:
        first_cell = label.ljust(first_width)
        cells = [first_cell]
        cells += map(str.rjust, numbers, other_widths)
        line = "  ".join(cells)
        lines.append(line)
    return "\n".join(lines)


def cases() -> list[Case]:
    """For each league all sizes, fewer numbers than ranks, and a length that nobody knows."""
    names_of_lengths = {}
    for name, nbytes in SIZES.items():
        length = nbytes // 4
        names_of_lengths[length] = name
    fewer_than_ranks = 5
    names_of_lengths[fewer_than_ranks] = ""
    random_number = secrets.randbelow(4000)
    unknown = 1001 + random_number
    names_of_lengths.setdefault(unknown, "")
    all_cases = []
    for length, name in names_of_lengths.items():
        for league in LEAGUES:
            case = Case(league, length, name)
            all_cases.append(case)
    return all_cases


def spec(tensors: list[Tensor], leagues: list[str]) -> list[Tensor]:
    """What an all-reduce is."""
    total = sum(tensors)
    n = len(tensors)
    return [total] * n


def inputs(rank: int, world_size: int, case: Case) -> tuple[Tensor, str]:
    """Whole numbers of 32 bits, any of them, so that nothing smaller can say what they are.

    Their sums wrap around, and do not depend on the order.
    """
    bound = 2**31
    shape = (case.numbers,)
    numbers = torch.randint(-bound, bound, shape, dtype=torch.int32)
    return numbers, case.league


def judge(entry: Callable, name: str = "", **options: Any) -> Score:
    """Judge an entry, a function of a cell or an `Entry`; `options` go to `check`."""
    if not name:
        name = getattr(entry, "__name__", "the entry")
    score = Score(name)
    try:
        if not isinstance(entry, Entry):
            entry = _entry_of(entry)
        score.text = entry.text
        outcome = tried(entry, forbid=("collectives",), **options)
        score.percents = percents(outcome, ("ring",))
    except Refused as refused:
        score.why = str(refused)
    return score


def _entry_of(fn: Callable) -> Entry:
    """The entry that a function is; raises Refused."""
    if callable(fn):
        stale = overtaken(fn)
        if stale:
            raise Refused(stale)
    return Entry.of(fn)


def judged(text: str, name: str) -> Score:
    """An entry that is a text."""
    file = f"<{NAME} of {name}>"
    try:
        entry = Entry(NAME, text, file)
    except Refused as refused:
        return Score(name, str(refused))
    return judge(entry, name)


def tried(entry: Callable, **options: Any) -> Outcome:
    """The entry in real workers; raises Refused if a sum is wrong or a rule broken."""
    options.setdefault("world_sizes", WORLD_SIZES)
    options.setdefault("cases", cases())
    options.setdefault("timeout", 120.0)
    outcome = check(entry, spec=spec, inputs=inputs, **options)
    if not outcome:
        report = str(outcome)
        raise Refused(report)
    return outcome


def percents(outcome: Outcome, algorithms: Iterable[str]) -> dict[Run, float]:
    """The percentage of each run that counts, by the slowest time it took; raises Refused."""
    times_us = {}  # by run
    for world_size, case, trace in outcome.traces:
        if not case.size:
            continue
        _refuse_uneven(trace)
        league = LEAGUES[case.league]
        time_us = _least_time_us(trace, league, algorithms)
        run = Run(case.league, world_size, case.size)
        slowest_us = times_us.get(run, 0.0)
        times_us[run] = max(time_us, slowest_us)
    result = {}
    for run, time_us in times_us.items():
        league = LEAGUES[run.league]
        nbytes = SIZES[run.size]
        bound_us = league.bound_us(run.world_size, nbytes)
        least_us = bound_us * ROUNDING
        if time_us < least_us:
            sentence = _TOO_FAST.format(run, time_us, bound_us)
            raise Refused(sentence)
        percent = 100 * bound_us / time_us
        result[run] = percent
    return result


def _least_time_us(trace: Trace, league: League, algorithms: Iterable[str]) -> float:
    """How long a recording takes in a league with the best of these algorithms."""
    times_us = []
    for algorithm in algorithms:
        network = replace(league.network, algorithm=algorithm)
        modelled = league._replace(network=network)
        time_us = modelled.time_us(trace)
        times_us.append(time_us)
    return min(times_us)


def _refuse_uneven(trace: Trace) -> None:
    """Raises Refused if a message has another size than what takes it."""
    schedule = trace.schedule("ring")
    for message in schedule.messages:
        sent = message.sent
        taken = message.taken
        if sent.kind != "send":
            continue
        if sent.bytes == taken.bytes:
            continue
        ready = f"rank {taken.rank} is ready for {taken.bytes} bytes there."
        sentence = f"{sent!r}: {ready}"
        raise Refused(sentence)


def bounds() -> str:
    """The least time, in microseconds, by league, number of ranks and size."""
    header = ["least µs", *LEAGUES]
    rows = [header]
    for n, size in itertools.product(WORLD_SIZES, SIZES):
        label = f"{n} ranks, {size}"
        nbytes = SIZES[size]
        bounds_us = []
        for league in LEAGUES.values():
            bound_us = league.bound_us(n, nbytes)
            bounds_us.append(bound_us)
        row = _row(label, bounds_us, digits=2)
        rows.append(row)
    return table(rows)
