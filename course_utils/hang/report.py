"""The report of a hang: where every rank is, in which call, who never arrived, and what to try."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import monotonic

from course_utils.hang import whereabouts
from course_utils.hang.facts import beside_join, ranks_by_text
from course_utils.hang.rules import JOIN, SAME, diagnose
from course_utils.hang.wait_graph import WaitGraph
from course_utils.hang.whereabouts import content, is_message, of_group
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame, from_dump
from course_utils.launcher.words import ranks_named
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.record.event import Event, Log
from course_utils.record.record import Record

_ROWS = 8  # ranks with a row of their own; of more, those that do the same share one
_ANSWER_S = 3.0  # for ranks to write where they are; longer on a slow machine
_SIZES = "data size doesn't match"  # what gloo prints before it ends the rank that received
_UNKNOWN = (
    "Likely reason: more arrived in gloo than it was told to expect, most often because the ranks "
    "made one call with different shapes or dtypes (its own words stand in the rank's output)."
)


class HangReport(Listener):
    """Says where every rank is and why they hang, and why gloo ended one.

    It asks all ranks after `still_s` seconds without a call, and ends a launch that is proven to
    hang for ever. `since` is when they last called something, and 0 once they were asked.
    """

    def __init__(self, record: Record, still_s: float = inf) -> None:
        self._record, self.still_s = record, still_s

    def on_error(self, ranks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """Put better parts into an error; see `Listener.on_error`."""
        if isinstance(error, WorkerTimeout):
            graph = self.wait_graph(ranks, error.when)
            error.pattern, why = diagnose(graph)
            error.parts[1:] = table(graph), why
            error.waiting, error.absent = graph.ranks, graph.absent
        elif error.failures and error.failures[0].headline.endswith("SIGABRT"):
            why = why_aborted(error.rank, self._record.logs(), error.output)
            error.parts[1] = why or error.parts[1]

    def wait_graph(self, ranks: Mapping[int, list[Frame] | None], now: float) -> WaitGraph:
        """All ranks at the moment `now`; `ranks` is that of `on_error`."""
        logs = self._record.logs()
        stands = (whereabouts.of(rank, ranks[rank], logs.get(rank)) for rank in sorted(ranks))
        return WaitGraph(stands, now)

    def on_start(self, world_size: int) -> None:
        """Begin to watch."""
        self._seen, self.since, self._asked = [], monotonic(), False

    def on_poll(self, members: Sequence[WorkerHandle], final: bool = False) -> bool:
        """Ask, and see what that says once all have answered."""
        if final:  # perhaps of a launch that has never begun
            self.on_progress()
        elif (seen := [self._record.counts(), [m.settled for m in members]]) != self._seen:
            self._seen, self.since, self._asked = seen, monotonic(), False
            self.on_progress()
        elif self._asked and self.since:
            answered = [m.has_written_stack() for m in members if not m.settled]
            if False in answered and not self._answering.is_over():
                return False
            self.since = 0.0  # told
            stacks = {m.rank: None if m.settled else from_dump(m.read_stack()) for m in members}
            return self.on_silence(self.wait_graph(stacks, monotonic()))
        elif not self._asked and monotonic() - self.since >= self.still_s:
            self._asked, self._answering = True, Deadline(_ANSWER_S)
            if len(members) == 1 and not self._has_messages():
                self.since = 0.0  # nobody to wait for: it computes
                return False
            for member in members:
                if not member.settled:
                    member.request_stack()
        return False

    def _has_messages(self) -> bool:
        """Whether a rank alone has sent or received: in all else it only waits for itself."""
        log = self._record.logs()[0]
        return log is None or any(is_message(call) for call in log.events)

    def on_progress(self) -> None:
        """Some rank has called something, or has ended."""

    def on_silence(self, graph: WaitGraph) -> bool:
        """None has; returns whether the launch shall end."""
        return graph.hangs_for_ever


def table(graph: WaitGraph) -> str:
    """A row for every rank; where there are many, those that do the same share one."""
    told = {rank: one.row(graph.world) for rank, one in graph.ranks.items()}
    each = ((row, [rank]) for rank, row in told.items())
    return _rows(ranks_by_text(told).items() if len(told) > _ROWS else each)


def _rows(told: Iterable[tuple[str, list[int]]]) -> str:
    return "\n".join(f"  {ranks_named(who)}: {row}" for row, who in told)


def why_aborted(rank: int, logs: Mapping[int, Log | None], output: Sequence[str]) -> str | None:
    """What a rank that died of SIGABRT and its peers called differently; None if it was not gloo.

    Whether it was gloo, what the rank printed tells.
    """
    if _SIZES not in output[rank]:
        return None
    stands = [whereabouts.of(number, None, logs.get(number)) for number in range(len(output))]
    stands[rank].state, stands[rank].open = "waiting", stands[rank].calls[-1:]
    graph = WaitGraph(stands, 0.0)
    if not graph.known or not (found := graph.difference()):
        return _UNKNOWN
    what, meeting = found
    rows = _rows(ranks_by_text({rank: _row(call) for rank, call in meeting.calls.items()}).items())
    group = of_group(next(iter(meeting.calls.values())), graph.world)
    cure = "hand in the same shape and dtype on every rank."
    if what not in ("shape", "lines"):
        cure = SAME
    beside = beside_join(graph, meeting)
    if beside["foreign"]:
        cure = JOIN.format(**beside)
    head = f"Gloo ended it, because collective #{meeting.number}{group} is not the same on all"
    return f"{head} ranks:\n{rows}\n{cure[0].upper()}{cure[1:]}"


def _row(call: Event) -> str:
    """Such as `all_reduce, float32 of shape (4,), at cell [3], line 5, in f: dist.all_...`."""
    what = f"{call.kind}, {content(call)}" if call.dtype else call.kind
    return f"{what}, at {call.where}" if call.line else what
