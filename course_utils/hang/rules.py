"""The rules of the report of a hang: one table, of which the first rule that applies speaks.

That is the first one over all sections: a later section looks for its facts only if no rule of the
earlier ones applies.

A section of the table looks for its facts in a `WaitGraph` (see `facts.py`). Each of its rules has
the name of a pattern, or None where nothing is proven; a condition on the facts `f`; and one or
more messages, all of which are said, with facts put in their braces. Where the facts prove nothing,
no rule names a cause: a wrong diagnosis costs more time than none.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from course_utils.hang import facts
from course_utils.hang.wait_graph import WaitGraph
from course_utils.launcher.language import N_, _, capitalized, ngettext, sentences
from course_utils.record.event import BACKWARD, DDP_INIT, EVALUATES, FORWARD

SAME = N_(
    "every rank of a group must make the same calls in the same order, as often as the others."
)
LONG_OR_ENDLESS = N_("Raise timeout= if the work is long; look for an endless loop if it is not.")
LONG_OR_MISMATCHED = N_(
    "If the work is long, raise timeout=; if it is not, look for different groups, and for a peer "
    "or a source that does not match."
)
JOIN = N_(
    "Rank {foreign.joiner} has no inputs left: at the end of join it stands in for DDP's calls. "
    "The {foreign.call.kind}{foreign.place} of rank {foreign.call.rank} is none of these: leave it "
    "out of join, or make it Joinable."
)
PAST_THE_LOOP = N_(
    "Rank {counts.other} is past the loop of line {loop}, and rank {counts.rank} goes round it "
    "once more: in line {counts.call.line[1]} rank {counts.rank} has called "
    "{counts.call.kind}{counts.in_ddp} {counts.often}, rank {counts.other} {counts.fewer_times}. "
    "All ranks must leave a loop after the same round: share what decides it."
)
_QUEUED = N_(
    "A call on a GPU returns as soon as it is queued: a rank stands still in a later line, which "
    "needs the result."
)


class Plural(NamedTuple):
    """A message in two forms."""

    for_one: str
    for_many: str
    count: str  # the fact that says which


def plural(for_one: str, for_many: str, count: str) -> Plural:
    """Mark both forms for translation, as `N_` marks a message with one."""
    return Plural(for_one, for_many, count)


# The name of a pattern, a condition on the facts, and messages about them.
Rule = tuple[str | None, Callable[[Any], object], *tuple[str | Plural, ...]]


# First, what may be no hang at all. "slow" and "starting" come before all else, also where ranks
# wait for one that is missing; the other rules here are for launches in which nobody waits.
_OVERVIEW: list[Rule] = [
    (
        "slow",
        lambda f: f.is_slow,
        N_(
            "The ranks made calls until shortly before that, so there was progress: perhaps "
            "nothing hangs. The limit timeout= counts from the start of the run: for long work "
            "give it more seconds, such as launch(..., timeout=3600). If the work is not long, "
            "look for an endless loop."
        ),
    ),
    (
        None,
        lambda f: f.silent and not f.some_wait,
        plural(
            "{silent} gave no answer, so it is not known what it waits for.",
            "{silent} gave no answer, so it is not known what they wait for.",
            "silent_count",
        ),
    ),
    (
        "starting",
        lambda f: f.starting and not f.silent,
        plural(
            "{starting} was still starting: launch makes the group before it calls your function. "
            "That takes longer the more ranks there are, and on a busy machine. Give timeout= more "
            "seconds: it counts from the start of the run.",
            "{starting} were still starting: launch makes the group before it calls your function. "
            "That takes longer the more ranks there are, and on a busy machine. Give timeout= more "
            "seconds: it counts from the start of the run.",
            "starting_count",
        ),
    ),
    (
        "held",
        lambda f: f.is_file_lock and not f.some_wait,
        plural(
            "No rank waits for another: {busy} waits for a file lock. {advice}",
            "No rank waits for another: {busy} wait for a file lock. {advice}",
            "held_count",
        ),
    ),
    (
        "held",
        lambda f: f.some_held and not f.some_wait,
        plural(
            "No rank waits for another: {busy} waits for {holder} of its own process. {advice}",
            "No rank waits for another: {busy} wait for {holder} of their own process. {advice}",
            "held_count",
        ),
    ),
    (
        None,
        lambda f: f.has_queued_messages and not f.some_wait,
        N_(
            "No call is seen to lack its partner. Either {busy} only needed longer, or messages "
            "wait for each other on the GPUs: where ranks send before they receive, use "
            "dist.batch_isend_irecv."
        ),
    ),
    (
        "running",
        lambda f: not f.some_wait,
        N_("No rank waits for another: {busy} only needed longer."),
        LONG_OR_ENDLESS,
    ),
]
_DIFFERENCES: list[Rule] = [
    (
        "exception",
        lambda f: f.exception,
        N_(
            "{name} is {by_rank}: rank {exception.rank} came to {exception.call.kind} because of "
            "an exception, which nobody hears of as long as it waits there: {exception.words} "
            "({exception.raised_at}). In an `except` or a `finally`, make no call that needs other "
            "ranks."
        ),
    ),
    ("join", lambda f: f.foreign, JOIN),
    (
        "evaluation",
        lambda f: f.kind == "order" and f.evaluating,
        N_(
            "{name} is {by_rank}. DDP's forward agrees with every rank on the model's buffers, and "
            "once on its buckets, in evaluation as well. Evaluate on every rank, or call "
            "model.module on one."
        ),
    ),
    (
        "uneven",
        lambda f: f.kind == "order" and f.counts and f.counts.call.flags & BACKWARD,
        PAST_THE_LOOP,
        N_("Under DDP the same rounds must be within no_sync(), too."),
    ),
    (
        "uneven",
        lambda f: f.kind == "order" and f.counts,
        PAST_THE_LOOP,
    ),
    (
        "new_group",
        lambda f: f.kind == "new_group",
        N_(
            "New group #{number} is {by_rank}: every rank must call new_group for every group, "
            "member or not."
        ),
    ),
    (
        "evaluation",
        lambda f: f.kind == "evaluation",
        N_(
            "DDP's forward agrees with every rank on the model's buffers, and once on its buckets. "
            "{name} does it for an evaluation{place} on {evaluating} only: the others train. "
            "Evaluate on every rank, or call model.module on one."
        ),
    ),
    (
        "order",
        lambda f: f.kind == "order" and f.some_in_backward,
        N_(
            "{name} is {by_rank}: every rank of a group must make the same calls in the same "
            "order, as often as the others. In DDP's backward one is lost where a parameter takes "
            "no part in the loss."
        ),
    ),
    (
        "order",
        lambda f: f.kind == "order",
        N_(
            "{name} is {by_rank}: every rank of a group must make the same calls in the same "
            "order, as often as the others."
        ),
    ),
    (
        "root",
        lambda f: f.kind == "root",
        N_("{name} ({call.kind}) has {by_rank}: name the same root on every rank."),
    ),
    (
        "order",
        lambda f: f.kind == "lines",
        N_(
            "{name} ({call.kind}) has {by_rank}. If these calls belong together, hand in the same "
            "shape and dtype; if they do not, one is left out or made too often: every rank of a "
            "group must make the same calls in the same order, as often as the others."
        ),
    ),
    (
        "shape",
        lambda f: f.kind == "shape",
        N_("{name} ({call.kind}) has {by_rank}: every rank must hand in the same shape and dtype."),
    ),
]
_MESSAGES: list[Rule] = [
    (
        "tag",
        lambda f: f.received.peer == f.sent.rank and f.received.tag != f.sent.tag,
        N_(
            "Rank {sent.rank} sends to rank {received.rank} with tag {sent.tag}, and rank "
            "{received.rank} receives from rank {sent.rank} with tag {received.tag}: both must "
            "name one tag."
        ),
    ),
    (
        "groups",
        lambda f: f.received.peer == f.sent.rank and f.received.group_name != f.sent.group_name,
        N_(
            "Rank {sent.rank} sends to rank {received.rank} in another group than that in which "
            "rank {received.rank} receives: both must name one group."
        ),
    ),
    (
        "peer",
        lambda f: f.received.peer != f.sent.rank and not f.may_come,
        N_(
            "Rank {sent.rank} sends to rank {received.rank}, which receives from rank "
            "{received.peer} instead, and rank {received.peer} sends it nothing: a peer is named "
            "wrongly, or a send is left out."
        ),
    ),
]
_LOST_MESSAGES: list[Rule] = [
    (
        "lost",
        lambda f: True,
        N_(
            "Rank {sent.rank} sent message #{sent.number} to rank {rank} by isend{place} and has "
            "returned without wait() on it: the message may be lost. Keep what isend returns, and "
            "wait()."
        ),
    ),
]
_ABSENCES: list[Rule] = [
    (
        "exception",
        lambda f: f.exception,
        N_(
            "{waiting} waited for {absent}, which never arrived: rank {exception.rank} handles an "
            "exception, and nobody hears of it before that has ended: {exception.words} "
            "({exception.raised_at})."
        ),
    ),
    (
        "held",
        lambda f: f.all_held and f.is_file_lock,
        N_(
            "{waiting} waited for {absent}, which never arrived: {first_waits} for a file lock. "
            "{advice}"
        ),
    ),
    (
        "held",
        lambda f: f.all_held,
        N_(
            "{waiting} waited for {absent}, which never arrived: {first_waits} for {holder} of its "
            "own process. {advice}"
        ),
    ),
    (
        "store",
        lambda f: f.key,
        N_(
            "{waiting} waited for {absent}, which never arrived: {first_waits} in the store for a "
            "key that nobody has set ({key})."
        ),
    ),
]
_MISSED_CALLS: list[Rule] = [
    (
        "missing",
        lambda f: f.missed.call.flags & DDP_INIT,
        N_(
            "{waiting} waited for {absent}, which never arrived: DDP(model) ends only when every "
            "rank has wrapped its model."
        ),
    ),
    (
        "unused",
        lambda f: f.missed.call.flags & BACKWARD and f.missed.ended_unfinished,
        N_(
            "{waiting} waited for {absent}, which never arrived: a backward pass ended there "
            "without a gradient for some parameter, so DDP has not averaged it. Let every "
            "parameter take part in the loss, or say DDP(model, find_unused_parameters=True)."
        ),
    ),
    (
        "backward",
        lambda f: f.missed.call.flags & BACKWARD and not f.all_returned,
        N_(
            "{waiting} waited for {absent}, which never arrived: DDP averages gradients inside "
            "backward, on every rank. Is backward skipped there, or does a parameter take no part "
            "in its loss?"
        ),
    ),
    (
        "returned",
        lambda f: f.all_returned and f.missed.is_recv and f.missed.call.peer is None,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned}, so nobody is "
            "left to send rank {missed.call.rank} a message. A send is left out, or a tag is wrong."
        ),
    ),
    (
        "uneven",
        lambda f: (
            f.all_returned
            and f.missed.is_send
            and f.missed.is_certain
            and f.missed.counts.fewer_times
        ),
        N_(
            "{waiting} waited for {absent}, which never arrived: in line {missed.call.line[1]} "
            "rank {missed.call.rank} has come to {missed.counts.count} messages to rank "
            "{missed.other}, and rank {missed.other}, which has returned, received "
            "{missed.counts.other_count} there. Give every rank as many rounds."
        ),
    ),
    (
        "uneven",
        lambda f: (
            f.all_returned
            and f.missed.is_recv
            and f.missed.is_certain
            and f.missed.counts.fewer_times
        ),
        N_(
            "{waiting} waited for {absent}, which never arrived: in line {missed.call.line[1]} "
            "rank {missed.call.rank} has come to {missed.counts.count} messages from rank "
            "{missed.other}, and rank {missed.other}, which has returned, sent "
            "{missed.counts.other_count} there. Give every rank as many rounds."
        ),
    ),
    (
        "returned",
        lambda f: f.all_returned and f.missed.is_send,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned}, and rank "
            "{missed.other} never received message #{missed.call.number} from rank "
            "{missed.call.rank}. A receive is left out, or a peer or a tag is wrong."
        ),
    ),
    (
        "returned",
        lambda f: f.all_returned and f.missed.is_recv,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned}, and rank "
            "{missed.other} never sent message #{missed.call.number} to rank {missed.call.rank}. A "
            "send is left out, or a peer or a tag is wrong."
        ),
    ),
    (
        "groups",
        lambda f: f.missed.other_group and f.missed.has_none_in_line and f.missed.is_certain,
        N_(
            "Rank {missed.call.rank} waits in the group of {missed.group}. In that line rank "
            "{missed.other} called {missed.call.kind} in the group of {missed.other_group}: use "
            "the same group on every rank, of a mesh the same dimension."
        ),
    ),
    (
        "uneven",
        lambda f: f.all_returned and f.missed.is_certain and f.missed.counts.fewer_times,
        N_(
            "{waiting} waited for {absent}, which never arrived: in line {missed.call.line[1]} "
            "rank {missed.call.rank} has called {missed.call.kind}{missed.counts.in_ddp} "
            "{missed.counts.often}, rank {missed.other}, which has returned, "
            "{missed.counts.fewer_times}. Give every rank as many rounds, with this call in "
            "each{missed.counts.batches}."
        ),
    ),
    (
        "order",
        lambda f: f.all_returned and f.missed.is_certain and f.missed.crossing,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned}. Rank "
            "{missed.other} has called {missed.call.kind} in that line as often, but earlier calls "
            "of different lines have met: {missed.crossing.name} is {missed.crossing.by_rank}. "
            "Does an `if` let only some ranks come to one of these lines?"
        ),
    ),
    (
        "evaluation",
        lambda f: f.all_returned and f.missed.is_certain and f.missed.call.flags & EVALUATES,
        N_(
            "{waiting} waited for {absent}, which never arrived: DDP's forward agrees with every "
            "rank on the model's buffers, and once on its buckets, in evaluation as well. Evaluate "
            "on every rank, or call model.module on one."
        ),
    ),
    (
        "backward",
        lambda f: f.all_returned and f.missed.is_certain and f.missed.call.flags & BACKWARD,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned} without this "
            "backward pass, in which DDP averages gradients. Call it on every rank, as often."
        ),
    ),
    (
        "forward",
        lambda f: f.all_returned and f.missed.is_certain and f.missed.call.flags & FORWARD,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned}. DDP's forward "
            "makes this call on every rank, but not after a step within no_sync(). Give every rank "
            "as many batches, and no_sync() for the same ones."
        ),
    ),
    (
        "thread",
        lambda f: f.missed.is_in_thread and f.missed.has_none_in_line,
        N_(
            "A thread of rank {missed.call.rank} waits in {missed.call.kind} ({missed.place}): "
            "{absent} never called it. A call in a thread needs every rank of its group as well."
        ),
    ),
    (
        "returned",
        lambda f: f.all_returned and f.missed.is_certain and f.missed.has_none_in_line,
        N_(
            "{waiting} waited for {absent}, which never arrived: {have_returned}, and rank "
            "{missed.other} never called {missed.call.kind} in that line. Is the call in an `if` "
            "that only some ranks enter, or does one return early?"
        ),
    ),
]
_UNEXPLAINED_ABSENCES: list[Rule] = [
    (
        "missing",
        lambda f: True,
        N_(
            "{waiting} waited for {absent}, which never arrived: every rank of a group must make "
            "the same calls in the same order, as often as the others."
        ),
    )
]
_MUTUAL_WAITS: list[Rule] = [
    (
        "send/send",
        lambda f: f.kinds == {"send"},
        N_(
            "{in_circle} all send, and none receives: a blocking send ends only when its peer "
            "receives. Let one side receive first, or use isend and irecv."
        ),
    ),
    (
        "recv/recv",
        lambda f: f.kinds == {"recv"},
        N_(
            "{in_circle} all receive, and none sends: a receive ends only when its peer has sent. "
            "Let one side send first."
        ),
    ),
    (
        "groups",
        lambda f: f.group_count > 1 and not f.kinds & {"send", "recv", "new_group"},
        N_(
            "{in_circle} wait for each other in different groups: every rank of a group must come "
            "to its calls, and all ranks to their groups in the same order."
        ),
    ),
    (
        "order",
        lambda f: f.in_circle and len(f.blockers) > 1,
        N_(
            "The ranks wait in different calls ({blockers_text}): every rank of a group must make "
            "the same calls in the same order, as often as the others."
        ),
    ),
    (
        "alone",
        lambda f: f.is_alone and f.blockers == {"recv"},
        N_("There is no other rank that could send rank 0 a message."),
    ),
    (
        "store",
        lambda f: f.in_store and not f.in_circle,
        plural(
            "{in_store} waits in the store for a key that nobody has set ({key}).",
            "{in_store} wait in the store for a key that nobody has set ({key}).",
            "store_count",
        ),
    ),
    (
        None,
        lambda f: not f.known,
        N_(
            "The ranks wait in {blockers_text}, and what they called before is not known: every "
            "rank of a group must make the same calls in the same order, as often as the others."
        ),
    ),
    (
        None,
        lambda f: f.blockers in ({"init_process_group"}, {"init_rpc"}),
        N_(
            "Every rank waits in the same call: do all ranks use the same address, which this "
            "machine knows, is each rank's number there once, and does world_size count them all?"
        ),
    ),
    (
        None,
        lambda f: True,
        N_("No call is seen to lack its partner."),
        LONG_OR_MISMATCHED,
    ),
]
TABLE: list[tuple[Callable[[WaitGraph], list[Any]], list[Rule]]] = [
    (facts.overview, _OVERVIEW),
    (facts.differences, _DIFFERENCES),
    (facts.message_mismatches, _MESSAGES),
    (facts.lost_messages, _LOST_MESSAGES),
    (facts.absences, _ABSENCES),
    (facts.missed_calls, _MISSED_CALLS),
    (facts.absences, _UNEXPLAINED_ABSENCES),
    (facts.mutual_waits, _MUTUAL_WAITS),
]


def diagnose(graph: WaitGraph) -> tuple[str | None, str]:
    """Say why these ranks hang: the pattern's name, which does not change, and the words."""
    pattern, words = next(_diagnoses(graph))  # the last rule always applies
    words = capitalized(words)
    if any(whereabouts.queued for whereabouts in graph.ranks.values()):
        words = sentences(words, _(_QUEUED))
    return pattern, words


def _diagnoses(graph: WaitGraph) -> Iterator[tuple[str | None, str]]:
    """What all rules that apply say, in the order of the table."""
    for find_facts, rules in TABLE:
        for section_facts in find_facts(graph):
            for pattern, applies, *messages in rules:
                if applies(section_facts):
                    words = [_put(message, vars(section_facts)) for message in messages]
                    yield pattern, sentences(*words)


def _put(message: str | Plural, by_name: dict[str, Any]) -> str:
    """A message with the facts that it names put in."""
    if isinstance(message, Plural):
        count = by_name[message.count]
        return ngettext(message.for_one, message.for_many, count, **by_name)
    return _(message, **by_name)
