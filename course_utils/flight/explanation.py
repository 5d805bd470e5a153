"""`explain_dumps`: from a folder with dumps to who is guilty, for people, pictures and programs."""

import functools
import gc
import json
import textwrap
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from course_utils.flight import guilt, report
from course_utils.flight.dumps import Call, Dumps, read_folder
from course_utils.flight.guilt import FOUND, NOTHING, PROVEN, Verdict
from course_utils.flight.wait_graph import Edge
from course_utils.hang.report import table
from course_utils.hang.whereabouts import Whereabouts
from course_utils.launcher.language import _, english
from course_utils.record.event import Event

EXIT_STATUS = {FOUND: 0, NOTHING: 3, guilt.UNKNOWN: 4}
_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
}


class FlightWhereabouts(Whereabouts):
    """Where a rank is, told from its dump."""

    words: str = ""

    def row(self, world: tuple[int, ...]) -> str:
        """One line about it."""
        return self.words


@dataclass(eq=False)
class Explanation:
    """Who is guilty of a hang, and why; printed, it is the report.

    `plot_calls` and the table of the hang report take it as they take the error of a launch.

    Attributes:
        dumps: What was read.
        verdict: The decision with its evidence.
    """

    dumps: Dumps
    verdict: Verdict

    @functools.cached_property
    def waiting(self) -> dict[int, Whereabouts]:
        """Where each rank is, by rank, with all its calls."""
        return _all_whereabouts(self.dumps, self.verdict, with_calls=True)

    @property
    def guilty(self) -> list[int]:
        """The guilty global ranks, in order; the suspected ones where `sure` is False."""
        return self.verdict.guilty

    @property
    def victims(self) -> list[int]:
        """The ranks that wait, and are not guilty."""
        return self.verdict.victims

    @property
    def chain(self) -> list[Edge]:
        """The longest way from a victim to a guilty rank: who waits for whom, in which call."""
        return max(self.verdict.chains, key=len, default=[])

    @property
    def sure(self) -> bool:
        """Whether the numbers in the dumps prove it."""
        return self.verdict.outcome == FOUND and self.verdict.certainty == PROVEN

    @property
    def world(self) -> tuple[int, ...]:
        """All ranks, as a wait graph has them."""
        return self.dumps.world

    @functools.cached_property
    def ranks(self) -> dict[int, Whereabouts]:
        """Where each rank is, as a wait graph has it; what a table needs and no more."""
        return _all_whereabouts(self.dumps, self.verdict, with_calls=False)

    @property
    def exit_status(self) -> int:
        """0 if somebody is guilty, 3 if nothing hangs, 4 if it is not known."""
        return EXIT_STATUS[self.verdict.outcome]

    def __str__(self) -> str:
        return report.text(self.verdict, self.dumps, table(self) if self.world else "")

    def __repr__(self) -> str:
        """The report as the last line of a cell shows it, broken between words."""
        lines = []
        for line in str(self).splitlines():
            indent = "    " if line.startswith(" ") else ""
            parts = textwrap.wrap(line, 95, subsequent_indent=indent, break_long_words=False)
            lines += parts or [""]
        return "\n".join(lines)

    def as_json(self) -> str:
        """An object with `guilty`, `victims`, `chain`, `sure` and more, as JSON.

        It is read by programs, so its sentences are English whatever the learner reads.
        """
        with english():
            return json.dumps(self._answer(), indent=1)

    def _answer(self) -> dict[str, Any]:
        reasons = {}
        for evidence in self.verdict.evidence:
            reasons[str(evidence.rank)] = report.reason(evidence)
        return {
            "outcome": self.verdict.outcome,
            "guilty": self.guilty,
            "victims": self.victims,
            "chain": [_step(edge) for edge in self.chain],
            "sure": self.sure,
            "certainty": self.verdict.certainty if self.guilty else None,
            "reasons": reasons,
            "slow": self.verdict.slow,
            "missing": self.dumps.missing,
            "left_out": report.left_out(self.dumps.left_out),
        }


def explain_dumps(folder: str | Path) -> Explanation:
    """Say who is guilty of a hang, told from the flight recorder's dumps in a folder.

    Args:
        folder: A folder with a dump of each rank, pickled or as JSON, perhaps with gzip, under
            names that end with the rank, such as `_dump_3`. Ranks may be missing; files that are
            no dumps are named and left out. No class and no function in a file is ever loaded.

    Returns:
        What to print, to ask for `guilty`, or to hand to `plot_calls`.

    Raises:
        NotADirectoryError: There is no such folder.
    """
    collects = gc.isenabled()
    gc.disable()  # it would look through all calls of all ranks again and again
    try:
        return explain(read_folder(folder))
    finally:
        if collects:
            gc.enable()


def explain(dumps: Dumps) -> Explanation:
    """The same, of dumps that have been read."""
    return Explanation(dumps, guilt.judge(dumps))


def _all_whereabouts(dumps: Dumps, verdict: Verdict, with_calls: bool) -> dict[int, Whereabouts]:
    by_rank = {}
    for rank in dumps.world:
        by_rank[rank] = _whereabouts(rank, dumps, verdict, with_calls)
    return by_rank


def _step(edge: Edge) -> dict[str, Any]:
    return {
        "rank": edge.waiter,
        "waits_for": edge.waits_for,
        "call": edge.call.kind,
        "number": edge.call.number,
        "group": edge.call.group.desc,
        "ranks": list(edge.call.group.ranks),
    }


def _whereabouts(rank: int, dumps: Dumps, verdict: Verdict, with_calls: bool) -> Whereabouts:
    dump = dumps.by_rank.get(rank)
    if dump is None:
        silent = FlightWhereabouts(rank, "silent", known=False)
        silent.words = _(report.ROW_OF_MISSING)
        return silent
    pending = verdict.pending.get(rank, [])
    pending_ids = set(map(id, pending))
    events = []
    open_events = []
    for call in dump.calls if with_calls else ():
        if call.kind == "coalesced":
            continue
        is_open = id(call) in pending_ids
        event = _event(call, is_open)
        events.append(event)
        if is_open:
            open_events.append(event)
    place = FlightWhereabouts(rank, "running", complete=False)
    place.calls = tuple(events)
    place.open_calls = tuple(open_events)
    if pending:
        place.state = "waiting"
        place.blocker = pending[0].kind
    last_call = None
    if dump.calls:
        last_call = dump.calls[-1]
    place.words = report.row(pending, last_call)
    return place


def _event(call: Call, is_open: bool) -> Event:
    """The entry as the course's own record would have it."""
    dtype = None
    if call.dtypes:
        dtype = _DTYPES.get(call.dtypes[0], call.dtypes[0].lower())
    place = ""
    if call.line:
        file, number, _function = call.line
        place = f"line {number}, in {PurePath(file).name}"
    peer = None
    if call.kind == "send":
        peer = call.receiver
    elif call.kind == "recv":
        peer = call.sender
    shape = ()
    if call.sizes:
        shape = call.sizes[0]
    start_s = call.created_ns / 1e9
    return Event(
        rank=call.rank,
        index=call.order,
        kind=call.kind,
        bytes=0,
        start_s=start_s,
        end_s=start_s,
        peer=peer,
        dtype=dtype,
        shape=shape,
        group=call.group.ranks,
        group_name=f"{call.group.desc} {call.group.index}",
        place=place,
        finished=not is_open,
        number=call.number,
        line=call.line,
    )
