"""The report of a hang: where every rank is, in which call, who never arrived, and what to try."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from time import monotonic

from course_utils.hang.facts import foreign_call, ranks_by_text
from course_utils.hang.rules import JOIN, SAME, diagnose
from course_utils.hang.wait_graph import WaitGraph
from course_utils.hang.whereabouts import content, is_message, locate, of_group
from course_utils.launcher.deadlines import Deadline
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.language import N_, _, capitalized
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame, from_dump
from course_utils.launcher.words import ranks_named
from course_utils.launcher.worker_handle import WorkerHandle
from course_utils.record.event import Event, Log
from course_utils.record.record import Record

# "judged": nothing more is asked until some rank moves.
_WATCHING, _ASKING, _JUDGED = "watching", "asking", "judged"
_MANY_ROWS = 8  # with more ranks than this, those that do the same share a row
_ANSWER_S = 3.0  # for ranks to write where they are; longer on a slow machine
_SIZES = "data size doesn't match"  # what gloo prints before it ends the rank that received
_UNKNOWN = N_(
    "Likely reason: more arrived in gloo than it was told to expect, most often because the ranks "
    "made one call with different shapes or dtypes (its own words stand in the rank's output)."
)


class HangReport(Listener):
    """Says where every rank is and why they hang, and why gloo ended one.

    When no rank has called anything for `quiet_s` seconds, it asks all of them where they are, and
    ends a launch that is proven to hang for ever. With the default it never asks: then it only
    explains what has ended the launch. `live.Early` says how many seconds these are in a notebook.
    """

    def __init__(self, record: Record, quiet_s: float = inf) -> None:
        self._record = record
        self.quiet_s = quiet_s
        # Ranks whose functions have returned, and that still do what they left for their end.
        self._ending: set[int] = set()

    def on_error(self, stacks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """Put better parts into an error; see `Listener.on_error`."""
        if isinstance(error, WorkerTimeout):
            graph = self.wait_graph(stacks, error.when)
            error.pattern, why = diagnose(graph)
            error.parts[1:] = [table(graph), why]
            error.waiting = graph.ranks
            error.absent = graph.absent
        elif error.failures and error.failures[0].in_english.endswith("SIGABRT"):
            why = why_aborted(error.rank, self._record.logs(), error.output)
            if why:
                error.parts[1] = why

    def wait_graph(self, stacks: Mapping[int, list[Frame] | None], now: float) -> WaitGraph:
        """Who waits for whom at the moment `now`; `stacks` is that of `on_error`."""
        logs = self._record.logs()
        all_whereabouts = []
        for rank in sorted(stacks):
            whereabouts = locate(rank, stacks[rank], logs.get(rank))
            whereabouts.is_ending = rank in self._ending
            all_whereabouts.append(whereabouts)
        return WaitGraph(all_whereabouts, now)

    def on_start(self, world_size: int) -> None:
        """Begin to watch."""
        # How many calls each rank has made, which ranks have returned, and which still end.
        self._seen: list = []
        self._watch()

    def _watch(self, already_s: float = 0.0) -> None:
        """Wait until it is quiet for `quiet_s`; `already_s` seconds of that are over."""
        self._phase = _WATCHING
        self._quiet_since = monotonic() - already_s

    def on_poll(self, workers: Sequence[WorkerHandle], final: bool = False) -> bool:
        """Ask once it has been quiet, and see what the answers say when all have come."""
        if final:  # perhaps of a launch that has never begun
            self.on_progress()
            return False
        settled = {worker.rank for worker in workers if worker.settled}
        self._ending = {rank for rank in settled if not workers[rank].is_over}
        seen = [self._record.counts(), settled, self._ending]
        if seen != self._seen:
            self._seen = seen
            self._watch()
            self.on_progress()
        elif self._phase == _ASKING:
            return self._judge(workers)
        elif self._phase == _WATCHING:
            is_quiet = monotonic() - self._quiet_since >= self.quiet_s
            if is_quiet:
                self._ask(workers)
        return False

    def _ask(self, workers: Sequence[WorkerHandle]) -> None:
        if len(workers) == 1 and not self._has_messages():
            self._phase = _JUDGED  # nobody to wait for: it computes
            return
        self._phase = _ASKING
        self._deadline = Deadline(_ANSWER_S)
        for worker in workers:
            if not worker.settled:
                worker.request_stack()

    def _judge(self, workers: Sequence[WorkerHandle]) -> bool:
        """Whether the launch must end; as long as an answer is missing, it need not."""
        late = []
        for worker in workers:
            if not worker.settled and not worker.has_written_stack():
                late.append(worker)
        if late and not self._deadline.is_over():
            for worker in late:
                worker.ask_again_if_late()
            return False
        self._phase = _JUDGED
        stacks: dict[int, list[Frame] | None] = {}
        for worker in workers:
            stacks[worker.rank] = None
            if not worker.settled:
                stacks[worker.rank] = from_dump(worker.read_stack())
        return self.on_quiet(self.wait_graph(stacks, monotonic()))

    def _has_messages(self) -> bool:
        """Whether the only rank has sent or received; its other calls need nobody else."""
        log = self._record.logs()[0]
        if log is None:
            return True
        return any(map(is_message, log.events))

    def on_progress(self) -> None:
        """Called when some rank has called something, or has ended."""

    def on_quiet(self, graph: WaitGraph) -> bool:
        """Called once when none has for `quiet_s` seconds; returns whether the launch must end."""
        return graph.hangs_for_ever


def table(graph: WaitGraph) -> str:
    """A row for every rank; where there are many, those that do the same share one."""
    rows = {}
    for rank, whereabouts in graph.ranks.items():
        rows[rank] = whereabouts.row(graph.world)
    if len(rows) > _MANY_ROWS:
        return _rows(ranks_by_text(rows).items())
    return _rows((row, [rank]) for rank, row in rows.items())


def _rows(rows: Iterable[tuple[str, list[int]]]) -> str:
    lines = []
    for row, ranks in rows:
        line = _("{ranks}: {row}", ranks=ranks_named(ranks), row=row)
        lines.append(f"  {line}")
    return "\n".join(lines)


def why_aborted(rank: int, logs: Mapping[int, Log | None], output: Sequence[str]) -> str | None:
    """What a rank that died of SIGABRT and its peers called differently; None if it was not gloo.

    Args:
        rank: The one that died.
        logs: By rank its calls, if they are known.
        output: By rank what it printed, which tells whether it was gloo.
    """
    if _SIZES not in output[rank]:
        return None
    world_size = len(output)
    # There are no stacks any more, so all ranks are taken as returned, but for the one that died:
    # it waits in its last call, whose group is looked at first.
    all_whereabouts = [locate(each, None, logs.get(each)) for each in range(world_size)]
    aborted = all_whereabouts[rank]
    aborted.state = "waiting"
    if aborted.last_call:
        aborted.open_calls = (aborted.last_call,)
    graph = WaitGraph(all_whereabouts, 0.0)
    difference = graph.difference()
    if not graph.known or difference is None:
        return _(_UNKNOWN)
    kind, meeting = difference
    calls = list(meeting.calls.values())
    texts = {call.rank: _row(call) for call in calls}
    rows = _rows(ranks_by_text(texts).items())
    group = of_group(calls[0], graph.world)
    head = _(
        "Gloo ended it, because collective #{number}{of_group} is not the same on all ranks:",
        number=meeting.number,
        of_group=group,
    )
    cure = _(SAME)
    foreign = foreign_call(graph, meeting)
    if foreign:
        cure = _(JOIN, foreign=foreign)
    elif kind in ("shape", "lines"):
        cure = _("hand in the same shape and dtype on every rank.")
    return f"{head}\n{rows}\n{capitalized(cure)}"


def _row(call: Event) -> str:
    """Such as `all_reduce, float32 of shape (4,), at cell [3], line 5, in f: dist.all_...`."""
    description = call.kind
    if call.dtype:
        description = _("{kind}, {content}", kind=call.kind, content=content(call))
    if call.line:
        return _("{description}, at {line}", description=description, line=call.where)
    return description
