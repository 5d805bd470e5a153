"""What is said about a hang that was told from dumps: every sentence of this room stands here."""

from collections.abc import Iterable
from pathlib import PurePath

from course_utils.flight import dumps, guilt, unpickle
from course_utils.flight.dumps import Call, Dumps
from course_utils.flight.guilt import Edge, Evidence, Verdict
from course_utils.launcher.words import ranks_named

_UNNAMED = "undefined"  # what torch calls a group without a description
_MANY_STEPS = 8  # of a chain, at most
_MANY_FILES = 8  # that are left out and named one by one
_LEFT_OUT = {
    unpickle.CODE: "it is refused, because reading it would run code ({detail}). A dump is plain "
    "data, so it is damaged, or somebody has made it to do harm.",
    unpickle.LARGE: "it is larger than any dump, so it was not read.",
    unpickle.CUT: "it is cut off: the rank was probably ended while it wrote it.",
    unpickle.EMPTY: "it is empty: the rank was probably ended before it could write.",
    unpickle.NO_DUMP: "it is no dump of the flight recorder.",
    unpickle.NO_FILE: "it cannot be read as a file.",
    dumps.NO_RANK: "its name does not say which rank it is from, such as rank3 does.",
    dumps.TWICE: "{detail} is from the same rank, and was taken.",
    dumps.NOT_IN_GROUPS: "its name says rank {detail}, but no group in it has such a rank.",
}
_CERTAINTIES = {
    guilt.PROVEN: "How sure: proven by the numbers in the dumps.",
    guilt.LIKELY: "How sure: likely, but not proven by the numbers alone.",
    guilt.GUESS: "How sure: not at all. It is one of these, and the dumps do not say which.",
}
_WHY = {
    guilt.DIFFERENT: "rank {rank} calls {called}, where {waiters} called {others}.",
    guilt.FAILED: "rank {rank} still shows {calls} as pending that its peers have finished, "
    "beginning with {called}. So its own GPU no longer answers: look for a CUDA error there.",
    guilt.ABSENT: "rank {rank} never came to {called}, where {waiters}. It waits for nobody "
    "itself: look at what its own code does.",
    guilt.EXTRA: "rank {rank} waits alone in {called}. All others have ended at the call "
    "before it, so it makes one call more than they do: look at the length of its loop.",
    guilt.BEHIND: "rank {rank} never came to {called}, where {waiters}. It waits itself, but its "
    "peers had the same calls pending and came all the same.",
    guilt.NO_DUMP: "rank {rank} left no dump, and no other rank explains why {called} does "
    "not end. It was probably ended, or its host was lost.",
    guilt.MINORITY: "rank {rank} never came to {called}, where most of its group are. They all "
    "wait for each other in a circle, so look at the order of its calls.",
    guilt.CIRCLE: "rank {rank} waits in {called} within a circle of ranks that wait for "
    "each other: look at the order of calls there.",
    guilt.STUCK: "rank {rank} has come to {called} like all others, and yet it does not end: "
    "look at its GPU and at the network.",
}
ABSENT_BY_GLOO = (
    "gloo's flight recorder notes no send and no receive, so {ranks} may wait in one. Its stack "
    "tells: course_utils.explain_hangs() records both."
)
MAY_BE_GUILTY = (
    "{ranks} left no dump. Others wait there, so the cause may lie there too, or "
    "it is just one more victim."
)
NOTHING_PENDING = "Nothing hangs: no rank has a call pending."
SLOW = (
    "Nothing hangs, as far as these dumps say: the others wait for {ranks}, but not longer than "
    "they have waited before. Whoever is always the last one makes all others slow."
)
NO_DUMPS = "Nothing is known: there is no dump in this folder that can be read."
NOBODY = (
    "Not known: all ranks have come to the calls that are pending, and these do not end. If it is "
    "no moment in a run that goes on, it is the network or a GPU. Dump again in a minute and "
    "compare."
)
NO_FOLDER = "There is no folder {folder}: name the one that the dumps are in."


def text(verdict: Verdict, read: Dumps, rows: str) -> str:
    """The whole report; `rows` is a table of where every rank is."""
    parts = [_decision(verdict, read), *_victims(verdict), *_not_known(verdict, read)]
    if rows and verdict.outcome != guilt.NOTHING:
        parts.append(f"Where every rank is:\n{rows}")
    return "\n\n".join(parts)


def _decision(verdict: Verdict, read: Dumps) -> str:
    if verdict.slow:
        return SLOW.format(ranks=ranks_named(verdict.slow))
    if verdict.outcome == guilt.NOTHING:
        return NOTHING_PENDING
    if not read.by_rank:
        return NO_DUMPS
    if not verdict.evidence:
        return NOBODY
    head = f"Guilty: {ranks_named(verdict.guilty)}."
    if verdict.outcome == guilt.UNKNOWN:
        head = f"Suspected: {ranks_named(verdict.guilty)}."
    reasons = [f"  {reason(evidence)}" for evidence in verdict.evidence[:_MANY_STEPS]]
    if len(verdict.evidence) > _MANY_STEPS:
        reasons.append(f"  and so {len(verdict.evidence) - _MANY_STEPS} more ranks.")
    return "\n".join([head, *reasons, _CERTAINTIES[verdict.certainty]])


def reason(evidence: Evidence) -> str:
    """One sentence or two: why this rank."""
    called = others = ""
    if evidence.call is not None:
        called = call_named(evidence.call)
    if evidence.others is not None:
        others = _with_content(evidence.others)
        called = f"{call_named(evidence.call)} with {_content(evidence.call)}"
    waiters = "others wait"
    if evidence.why == guilt.DIFFERENT:
        waiters = "most others"
    elif len(evidence.waiting) == 1:
        waiters = f"{ranks_named(evidence.waiting)} waits for it"
    elif evidence.waiting:
        waiters = f"{ranks_named(evidence.waiting)} wait for it, there or elsewhere"
    calls = "a call" if evidence.count == 1 else f"{evidence.count} calls"
    return _WHY[evidence.why].format(
        rank=evidence.rank, called=called, waiters=waiters, others=others, calls=calls
    )


def call_named(call: Call) -> str:
    """Such as `all_reduce #5 of TENSOR_PARALLEL (ranks 0 and 1) at line 7 of train.py`."""
    place = place_of(call)
    if call.is_message:
        sender = "any rank" if call.sender is None else f"rank {call.sender}"
        return f"the message from {sender} to rank {call.receiver} in {group_named(call)}{place}"
    return f"{call.kind} #{call.number} of {group_named(call)}{place}"


def group_named(call: Call) -> str:
    """Such as `TENSOR_PARALLEL (ranks 0 and 1)`."""
    if call.group.is_default:
        return "the default group"
    if call.group.desc == _UNNAMED:
        return f"the group of {ranks_named(call.group.ranks)}"
    return f"{call.group.desc} ({ranks_named(call.group.ranks)})"


def place_of(call: Call) -> str:
    """Such as ` at line 7 of train.py`; nothing where the dump has no lines."""
    if call.line is None:
        return ""
    file, number, _ = call.line
    return f" at line {number} of {PurePath(file).name}"


def _content(call: Call) -> str:
    dtype = call.dtypes[0] if call.dtypes else "no data"
    shape = list(call.sizes[0]) if call.sizes else ""
    return f"{dtype} {shape}".strip()


def _with_content(call: Call) -> str:
    return f"{call.kind} with {_content(call)}{place_of(call)}"


def _victims(verdict: Verdict) -> list[str]:
    if not verdict.victims or not verdict.evidence:
        return []
    lines = [f"Victims: {ranks_named(verdict.victims)}."]
    for chain in verdict.chains[:_MANY_STEPS]:
        lines += [f"  {step_named(edge)}" for edge in chain[:_MANY_STEPS]]
        if len(chain) > 1:
            lines[-1] = f"{lines[-1]} And that is where the chain ends."
    return ["\n".join(dict.fromkeys(lines))]


def step_named(edge: Edge) -> str:
    """Such as `rank 0 waits for rank 1 in recv from ...`."""
    return f"rank {edge.waiter} waits for rank {edge.waits_for} in {call_named(edge.call)}."


def _not_known(verdict: Verdict, read: Dumps) -> list[str]:
    lines = []
    missing = set(read.missing) - set(verdict.guilty) - set(verdict.unknown)
    if verdict.unknown:
        lines.append(f"  {MAY_BE_GUILTY.format(ranks=ranks_named(verdict.unknown))}")
    if missing:
        lines.append(f"  {ranks_named(missing)} left no dump, so nothing is known of what it did.")
    if verdict.gloo_sinks:
        lines.append("  " + ABSENT_BY_GLOO.format(ranks=ranks_named(verdict.gloo_sinks)))
    lines += [f"  {sentence}" for sentence in left_out(read.left_out)]
    if not lines:
        return []
    return ["\n".join(["What could not be known:", *lines])]


def left_out(files: Iterable[tuple[str, str, str]]) -> list[str]:
    """A sentence for every file that was not used."""
    sentences = []
    for name, why, detail in files:
        because = _LEFT_OUT[why].format(detail=detail or "a class or a function")
        sentences.append(f"{name} was left out: {because}")
    if len(sentences) > _MANY_FILES:
        more = len(sentences) - _MANY_FILES
        sentences = [*sentences[:_MANY_FILES], f"{more} more files were left out."]
    return sentences


def row(pending: list[Call], last: Call | None) -> str:
    """Where a rank is, in one line."""
    if not pending and last is None:
        return "has no call pending, and none is noted"
    if not pending:
        return f"has no call pending; its last one was {call_named(last)}"
    more = ""
    if len(pending) > 1:
        more = f", and {len(pending) - 1} more pending after it"
    return f"waits in {call_named(pending[0])}{more}"


NOT_WATCHED = "This rank cannot explain hangs: {error}"
LIVE = "A call has been pending for too long, or somebody asked. All dumps are in {folder}."
STACK_OF = "Where the threads of rank {rank} are:"
ROW_OF_MISSING = "left no dump"
