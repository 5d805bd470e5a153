"""What is said about a hang that was told from dumps: every sentence of this room stands here."""

from collections.abc import Iterable
from pathlib import PurePath

from course_utils.flight import dumps, guilt, unpickle
from course_utils.flight.dumps import Call, Dumps, LeftOut
from course_utils.flight.guilt import Evidence, Verdict
from course_utils.flight.wait_graph import Edge
from course_utils.launcher.language import N_, _, ngettext, sentences
from course_utils.launcher.words import ranks_named

_UNNAMED = "undefined"  # what torch calls a group without a description
_MANY_STEPS = 8  # of a chain, at most
_MANY_FILES = 8  # that are left out and named one by one
_LEFT_OUT = {
    unpickle.CODE: N_(
        "it is refused, because reading it would run code ({detail}). A dump is plain data, so it "
        "is damaged, or somebody has made it to do harm."
    ),
    unpickle.LARGE: N_("it is larger than any dump, so it was not read."),
    unpickle.CUT: N_("it is cut off: the rank was probably ended while it wrote it."),
    unpickle.EMPTY: N_("it is empty: no dump, or one of a rank that was ended too early."),
    unpickle.NO_DUMP: N_("it is no dump of the flight recorder."),
    unpickle.NO_FILE: N_("it cannot be read as a file."),
    dumps.NO_RANK: N_("its name does not say which rank it is from, such as rank3 does."),
    dumps.TWICE: N_("{detail} is from the same rank, and was taken."),
    dumps.NOT_IN_GROUPS: N_("its name says rank {detail}, but no group in it has such a rank."),
}
_CERTAINTIES = {
    guilt.PROVEN: N_("How sure: proven by the numbers in the dumps."),
    guilt.LIKELY: N_("How sure: likely, but not proven by the numbers alone."),
    guilt.GUESS: N_("How sure: not at all. It is one of these, and the dumps do not say which."),
}
_WHY = {
    guilt.DIFFERENT: N_("rank {rank} calls {called}, where most others called {others}."),
    guilt.EXTRA: N_(
        "rank {rank} waits alone in {called}. All others have ended at the call before it, so it "
        "makes one call more than they do: look at the length of its loop."
    ),
    guilt.NO_DUMP: N_(
        "rank {rank} left no dump, and no other rank explains why {called} does not end. It was "
        "probably ended, or its host was lost."
    ),
    guilt.ORDER: N_(
        "rank {rank} never came to {called}. Ranks wait for each other in circles, and all circles "
        "lead through this rank, so look at the order of its calls."
    ),
    guilt.CIRCLE: N_(
        "rank {rank} waits in {called} within a circle of ranks that wait for each other: look at "
        "the order of calls there."
    ),
    guilt.STUCK: N_(
        "rank {rank} has come to {called} like all others, and yet it does not end: look at its "
        "GPU and at the network."
    ),
}
# What follows on the sentence that a rank never came.
_NEVER_CAME = {
    guilt.ABSENT: N_("It waits for nobody itself: look at what its own code does."),
    guilt.BEHIND: N_(
        "It waits itself, but its peers had the same calls pending and came all the same."
    ),
}
ABSENT_BY_GLOO = N_(
    "gloo's flight recorder notes no send and no receive, so {ranks} may wait in one. Its stack "
    "tells: course_utils.explain_hangs() records both."
)
MAY_BE_GUILTY = N_(
    "{ranks} left no dump. Others wait there, so the cause may lie there too, or "
    "it is just one more victim."
)
NOTHING_PENDING = N_("Nothing hangs: no rank has a call pending.")
NOBODY_WAITS = N_(
    "Not known: none of those who left a dump has a call pending, and {ranks} left none. Where the "
    "job hasn't ended by itself, look there first."
)
SLOW = N_(
    "Nothing hangs, as far as these dumps say: the others wait for {ranks}, but not longer than "
    "they have waited before. Whoever is always the last one makes all others slow."
)
NO_DUMPS = N_("Nothing is known: there is no dump in this folder that can be read.")
NOBODY = N_(
    "Not known: all ranks have come to the calls that are pending, and these do not end. If it is "
    "no moment in a run that goes on, it is the network or a GPU. Dump again in a minute and "
    "compare."
)
NO_FOLDER = N_("There is no folder {folder}: name the one that the dumps are in.")
NOT_WATCHED = N_("This rank cannot explain hangs: {error}")
LIVE = N_("A call has been pending for too long, or somebody asked. All dumps are in {folder}.")
STACK_OF = N_("Where the threads of rank {rank} are:")
ROW_OF_MISSING = N_("left no dump")


def text(verdict: Verdict, read: Dumps, rows: str) -> str:
    """The whole report; `rows` is a table of where every rank is."""
    parts = [_decision(verdict, read), *_victims(verdict), *_not_known(verdict, read)]
    if rows and verdict.outcome != guilt.NOTHING:
        head = _("Where every rank is:")
        parts.append(f"{head}\n{rows}")
    return "\n\n".join(parts)


def _decision(verdict: Verdict, read: Dumps) -> str:
    if verdict.slow:
        return _(SLOW, ranks=ranks_named(verdict.slow))
    if verdict.outcome == guilt.NOTHING:
        return _(NOTHING_PENDING)
    if not read.by_rank:
        return _(NO_DUMPS)
    if not verdict.evidence and not verdict.pending:
        return _(NOBODY_WAITS, ranks=ranks_named(read.missing))
    if not verdict.evidence:
        return _(NOBODY)
    guilty = ranks_named(verdict.guilty)
    head = _("Guilty: {ranks}.", ranks=guilty)
    if verdict.outcome == guilt.UNKNOWN:
        head = _("Suspected: {ranks}.", ranks=guilty)
    reasons = [f"  {reason(evidence)}" for evidence in verdict.evidence[:_MANY_STEPS]]
    if len(verdict.evidence) > _MANY_STEPS:
        count = len(verdict.evidence) - _MANY_STEPS
        more = ngettext(
            "and so {count} more rank.", "and so {count} more ranks.", count, count=count
        )
        reasons.append(f"  {more}")
    return "\n".join([head, *reasons, _(_CERTAINTIES[verdict.certainty])])


def reason(evidence: Evidence) -> str:
    """One sentence or two: why this rank."""
    called = others = ""
    if evidence.call is not None:
        called = call_named(evidence.call)
    if evidence.others is not None:
        others = _with_content(evidence.others.kind, evidence.others)
        others = _at_its_line(others, evidence.others)
        called = _with_content(called, evidence.call)
    if evidence.why == guilt.FAILED:
        return _failed(evidence, called)
    if evidence.why in _NEVER_CAME:
        return sentences(_never_came(evidence, called), _(_NEVER_CAME[evidence.why]))
    return _(_WHY[evidence.why], rank=evidence.rank, called=called, others=others)


def _failed(evidence: Evidence, called: str) -> str:
    if evidence.count == 1:
        return _(
            "rank {rank} still shows a call as pending that its peers have finished, beginning "
            "with {called}. So its own GPU no longer answers: look for a CUDA error there.",
            rank=evidence.rank,
            called=called,
        )
    return _(
        "rank {rank} still shows {count} calls as pending that its peers have finished, beginning "
        "with {called}. So its own GPU no longer answers: look for a CUDA error there.",
        rank=evidence.rank,
        count=evidence.count,
        called=called,
    )


def _never_came(evidence: Evidence, called: str) -> str:
    """That a rank never came to a call, and who waits for it."""
    if not evidence.waiting:
        return _(
            "rank {rank} never came to {called}, where others wait.",
            rank=evidence.rank,
            called=called,
        )
    return ngettext(
        "rank {rank} never came to {called}, where {waiting} waits for it.",
        "rank {rank} never came to {called}, where {waiting} wait for it, there or elsewhere.",
        len(evidence.waiting),
        rank=evidence.rank,
        called=called,
        waiting=ranks_named(evidence.waiting),
    )


def call_named(call: Call) -> str:
    """Such as `all_reduce #5 of TENSOR_PARALLEL (ranks 0 and 1) at line 7 of train.py`."""
    return _at_its_line(_named(call), call)


def _named(call: Call) -> str:
    group = group_named(call)
    if not call.is_message:
        return _("{kind} #{number} of {group}", kind=call.kind, number=call.number, group=group)
    if call.sender is None:
        return _(
            "the message from any rank to rank {receiver} in {group}",
            receiver=call.receiver,
            group=group,
        )
    return _(
        "the message from rank {sender} to rank {receiver} in {group}",
        sender=call.sender,
        receiver=call.receiver,
        group=group,
    )


def group_named(call: Call) -> str:
    """Such as `TENSOR_PARALLEL (ranks 0 and 1)`."""
    if call.group.is_default:
        return _("the default group")
    ranks = ranks_named(call.group.ranks)
    if call.group.desc == _UNNAMED:
        return _("the group of {ranks}", ranks=ranks)
    return _("{group} ({ranks})", group=call.group.desc, ranks=ranks)


def _at_its_line(description: str, call: Call) -> str:
    """With `at line 7 of train.py` at its end; as it is where the dump has no lines."""
    if call.line is None:
        return description
    file, number, _function = call.line
    return _(
        "{description} at line {number} of {file}",
        description=description,
        number=number,
        file=PurePath(file).name,
    )


def _with_content(description: str, call: Call) -> str:
    """With `with Float [4]` at its end."""
    content = call.dtypes[0] if call.dtypes else _("no data")
    if call.sizes:
        shape = list(call.sizes[0])
        content = f"{content} {shape}"
    return _("{description} with {content}", description=description, content=content)


def _victims(verdict: Verdict) -> list[str]:
    if not verdict.victims or not verdict.evidence:
        return []
    lines = [_("Victims: {ranks}.", ranks=ranks_named(verdict.victims))]
    for chain in verdict.chains[:_MANY_STEPS]:
        for edge in chain[:_MANY_STEPS]:
            lines.append(f"  {step_named(edge)}")
        if len(chain) > 1:
            lines[-1] = sentences(lines[-1], _("And that is where the chain ends."))
    different_lines = dict.fromkeys(lines)
    return ["\n".join(different_lines)]


def step_named(edge: Edge) -> str:
    """Such as `rank 0 waits for rank 1 in recv from ...`."""
    return _(
        "rank {waiter} waits for rank {waits_for} in {call}.",
        waiter=edge.waiter,
        waits_for=edge.waits_for,
        call=call_named(edge.call),
    )


def _not_known(verdict: Verdict, read: Dumps) -> list[str]:
    notes = []
    missing = set(read.missing) - set(verdict.guilty) - set(verdict.unknown)
    if verdict.unknown:
        notes.append(_(MAY_BE_GUILTY, ranks=ranks_named(verdict.unknown)))
    if missing:
        notes.append(
            _(
                "{ranks} left no dump, so nothing is known of what it did.",
                ranks=ranks_named(missing),
            )
        )
    if verdict.gloo_sinks:
        notes.append(_(ABSENT_BY_GLOO, ranks=ranks_named(verdict.gloo_sinks)))
    notes += left_out(read.left_out)
    if not notes:
        return []
    lines = [_("What could not be known:")]
    for note in notes:
        lines.append(f"  {note}")
    return ["\n".join(lines)]


def left_out(files: Iterable[LeftOut]) -> list[str]:
    """A sentence for every file that was not used."""
    notes = []
    for name, why, detail in files:
        because = _(_LEFT_OUT[why], detail=detail or _("a class or a function"))
        notes.append(_("{file} was left out: {because}", file=name, because=because))
    if len(notes) > _MANY_FILES:
        count = len(notes) - _MANY_FILES
        more = ngettext(
            "{count} more file was left out.",
            "{count} more files were left out.",
            count,
            count=count,
        )
        notes = [*notes[:_MANY_FILES], more]
    return notes


def row(pending: list[Call], last: Call | None) -> str:
    """Where a rank is, in one line."""
    if not pending and last is None:
        return _("has no call pending, and none is noted")
    if not pending:
        return _("has no call pending; its last one was {call}", call=call_named(last))
    call = call_named(pending[0])
    if len(pending) == 1:
        return _("waits in {call}", call=call)
    return _(
        "waits in {call}, and {count} more pending after it", call=call, count=len(pending) - 1
    )
