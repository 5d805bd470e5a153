"""What an entry to the challenge is worth: judged by its sums, timed by its messages.

An entry runs in real workers, a recording of its messages on a virtual clock, which is the same on
every computer. Its score in a league is the mean, over sizes and numbers of ranks, of the time that
no all-reduce can beat as a percentage of the time that the entry takes.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from course_challenge.fence import Entry, Refused
from course_challenge.leagues import LEAGUES, SIZES, WORLD_SIZES
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
        own = [percent for key, percent in self.percents.items() if key[0] == league]
        return round(sum(own) / len(own), 1) if own else 0.0

    def __repr__(self) -> str:
        if self.why:
            return f"{self.name} scores 0.\n\n{self.why}"
        rows = [
            [f"{n} ranks, {size}", *(f"{self.percents[own, n, size]:.1f}" for own in LEAGUES)]
            for n in WORLD_SIZES
            for size in SIZES
        ]
        total = [f"{self.name} scores", *(f"{self[own]:.1f}" for own in LEAGUES)]
        return table([["percent of the bound", *LEAGUES], *rows, total])


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns of one width, the first to the left."""
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(wide[0]), *map(str.rjust, row[1:], wide[1:])]) for row in rows
    )


def cases() -> list[Case]:
    """For each league all sizes, fewer numbers than ranks, and a length that nobody knows."""
    lengths = {nbytes // 4: name for name, nbytes in SIZES.items()} | {5: ""}
    lengths.setdefault(1001 + secrets.randbelow(4000), "")
    return [Case(league, *own) for own in lengths.items() for league in LEAGUES]


def spec(tensors: list[torch.Tensor], leagues: list[str]) -> list[torch.Tensor]:
    """What an all-reduce is."""
    return [sum(tensors)] * len(tensors)


def inputs(rank: int, world_size: int, case: Case) -> tuple[torch.Tensor, str]:
    """Whole numbers of 32 bits, any of them, so that nothing smaller can say what they are.

    Their sums wrap around, and do not depend on the order.
    """
    return torch.randint(-(2**31), 2**31, (case.numbers,), dtype=torch.int32), case.league


def judge(entry: Callable, name: str = "", **options: Any) -> Score:
    """Judge an entry, a function of a cell or an `Entry`; `options` go to `check`."""
    score = Score(name or getattr(entry, "__name__", "the entry"))
    try:
        if not isinstance(entry, Entry):
            if stale := callable(entry) and overtaken(entry):
                raise Refused(stale)
            entry = Entry.of(entry)
        score.text = entry.text
        outcome = tried(entry, forbid=("collectives",), **options)
        score.percents = percents(outcome, ("ring",))
    except Refused as refused:
        score.why = str(refused)
    return score


def judged(text: str, name: str) -> Score:
    """An entry that is a text."""
    try:
        return judge(Entry(NAME, text, f"<{NAME} of {name}>"), name)
    except Refused as refused:
        return Score(name, str(refused))


def tried(entry: Callable, **options: Any) -> Outcome:
    """The entry in real workers; raises Refused if a sum is wrong or a rule broken."""
    world_sizes = {"world_sizes": WORLD_SIZES, "cases": cases(), "timeout": 120.0} | options
    outcome = check(entry, spec=spec, inputs=inputs, **world_sizes)
    if not outcome:
        raise Refused(str(outcome))
    return outcome


def percents(outcome: Outcome, algorithms: Iterable[str]) -> dict[tuple[str, int, str], float]:
    """By league, world size and size, of the slowest of its runs; raises Refused."""
    times_us: dict[tuple[str, int, str], float] = {}
    for n, case, trace in outcome.traces:
        if case.size:
            _refuse_uneven(trace)
            league, key = LEAGUES[case.league], (case.league, n, case.size)
            ways = [replace(league.network, algorithm=one) for one in algorithms]
            time_us = min(league._replace(network=way).time_us(trace) for way in ways)
            times_us[key] = max(time_us, times_us.get(key, 0.0))
    found = {}
    for (league, n, size), time_us in times_us.items():
        bound_us = LEAGUES[league].bound_us(n, SIZES[size])
        if time_us < bound_us * (1 - 1e-9):
            raise Refused(_TOO_FAST.format(f"{league}, {n} ranks, {size}", time_us, bound_us))
        found[league, n, size] = 100 * bound_us / time_us
    return found


def _refuse_uneven(trace: Trace) -> None:
    for message in trace.schedule("ring").messages:
        sent, taken = message.sent, message.taken
        if sent.kind == "send" and sent.bytes != taken.bytes:
            raise Refused(f"{sent!r}: rank {taken.rank} is ready for {taken.bytes} bytes there.")


def bounds() -> str:
    """The least time, in microseconds, by league, number of ranks and size."""
    rows = [
        [f"{n} ranks, {size}", *(f"{own.bound_us(n, SIZES[size]):.2f}" for own in LEAGUES.values())]
        for n in WORLD_SIZES
        for size in SIZES
    ]
    return table([["least µs", *LEAGUES], *rows])
