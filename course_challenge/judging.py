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

from course_challenge.fence import Entry, Refused
from course_challenge.leagues import LEAGUES, SIZES, WORLD_SIZES, League
from course_checks.edited import overtaken
from course_checks.outcome import Outcome
from course_utils import check
from course_utils.network.trace import Trace

NAME = "all_reduce"
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
        return f"{self.league}, {self.size or f'{self.numbers} numbers'}"


@dataclass(repr=False)
class Score:
    """What an entry is worth; without points it says why.

    Attributes:
        percents: By league, world size and size: the bound as a percentage of the entry's time.
    """

    name: str
    why: str = ""
    percents: dict[tuple[str, int, str], float] = field(default_factory=dict)
    text: str = ""

    def __getitem__(self, league: str) -> float:
        percents_here = []
        for (name, _world_size, _size), percent in self.percents.items():
            if name == league:
                percents_here.append(percent)
        if not percents_here:
            return 0.0
        mean = sum(percents_here) / len(percents_here)
        return round(mean, 1)

    def __repr__(self) -> str:
        if self.why:
            return f"{self.name} scores 0.\n\n{self.why}"
        rows = [["percent of the bound", *LEAGUES]]
        for n, size in itertools.product(WORLD_SIZES, SIZES):
            row = [f"{n} ranks, {size}"]
            for league in LEAGUES:
                row.append(f"{self.percents[league, n, size]:.1f}")
            rows.append(row)
        scores = [f"{self[league]:.1f}" for league in LEAGUES]
        rows.append([f"{self.name} scores", *scores])
        return table(rows)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of one width, the first to the left."""
    widths = []
    for column in zip(*rows, strict=True):
        widths.append(max(map(len, column)))
    lines = []
    for label, *numbers in rows:
        cells = [label.ljust(widths[0])]
        cells += map(str.rjust, numbers, widths[1:])
        lines.append("  ".join(cells))
    return "\n".join(lines)


def cases() -> list[Case]:
    """For each league all sizes, fewer numbers than ranks, and a length that nobody knows."""
    names_of_lengths = {}
    for name, nbytes in SIZES.items():
        names_of_lengths[nbytes // 4] = name
    names_of_lengths[5] = ""
    names_of_lengths.setdefault(1001 + secrets.randbelow(4000), "")
    all_cases = []
    for length, name in names_of_lengths.items():
        all_cases += [Case(league, length, name) for league in LEAGUES]
    return all_cases


def spec(tensors: list[torch.Tensor], leagues: list[str]) -> list[torch.Tensor]:
    """What an all-reduce is."""
    return [sum(tensors)] * len(tensors)


def inputs(rank: int, world_size: int, case: Case) -> tuple[torch.Tensor, str]:
    """Whole numbers of 32 bits, any of them, so that nothing smaller can say what they are.

    Their sums wrap around, and do not depend on the order.
    """
    numbers = torch.randint(-(2**31), 2**31, (case.numbers,), dtype=torch.int32)
    return numbers, case.league


def judge(entry: Callable, name: str = "", **options: Any) -> Score:
    """Judge an entry, a function of a cell or an `Entry`; `options` go to `check`."""
    score = Score(name or getattr(entry, "__name__", "the entry"))
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
    stale = overtaken(fn) if callable(fn) else ""
    if stale:
        raise Refused(stale)
    return Entry.of(fn)


def judged(text: str, name: str) -> Score:
    """An entry that is a text."""
    try:
        return judge(Entry(NAME, text, f"<{NAME} of {name}>"), name)
    except Refused as refused:
        return Score(name, str(refused))


def tried(entry: Callable, **options: Any) -> Outcome:
    """The entry in real workers; raises Refused if a sum is wrong or a rule broken."""
    defaults = {"world_sizes": WORLD_SIZES, "cases": cases(), "timeout": 120.0}
    outcome = check(entry, spec=spec, inputs=inputs, **defaults | options)
    if not outcome:
        raise Refused(str(outcome))
    return outcome


def percents(outcome: Outcome, algorithms: Iterable[str]) -> dict[tuple[str, int, str], float]:
    """By league, world size and size, of the slowest of its runs; raises Refused."""
    times_us: dict[tuple[str, int, str], float] = {}
    for n, case, trace in outcome.traces:
        if not case.size:
            continue
        _refuse_uneven(trace)
        time_us = _least_time_us(trace, LEAGUES[case.league], algorithms)
        run = case.league, n, case.size
        times_us[run] = max(time_us, times_us.get(run, 0.0))
    result = {}
    for (league, n, size), time_us in times_us.items():
        bound_us = LEAGUES[league].bound_us(n, SIZES[size])
        if time_us < bound_us * (1 - 1e-9):
            where = f"{league}, {n} ranks, {size}"
            raise Refused(_TOO_FAST.format(where, time_us, bound_us))
        result[league, n, size] = 100 * bound_us / time_us
    return result


def _least_time_us(trace: Trace, league: League, algorithms: Iterable[str]) -> float:
    """How long a recording takes in a league with the best of these algorithms."""
    times_us = []
    for algorithm in algorithms:
        network = replace(league.network, algorithm=algorithm)
        modelled = league._replace(network=network)
        times_us.append(modelled.time_us(trace))
    return min(times_us)


def _refuse_uneven(trace: Trace) -> None:
    for message in trace.schedule("ring").messages:
        sent = message.sent
        taken = message.taken
        if sent.kind == "send" and sent.bytes != taken.bytes:
            ready = f"rank {taken.rank} is ready for {taken.bytes} bytes there."
            raise Refused(f"{sent!r}: {ready}")


def bounds() -> str:
    """The least time, in microseconds, by league, number of ranks and size."""
    rows = [["least µs", *LEAGUES]]
    for n, size in itertools.product(WORLD_SIZES, SIZES):
        row = [f"{n} ranks, {size}"]
        for league in LEAGUES.values():
            row.append(f"{league.bound_us(n, SIZES[size]):.2f}")
        rows.append(row)
    return table(rows)
