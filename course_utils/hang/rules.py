"""The rules of the report of a hang: one table; the first row whose facts are there speaks.

A section of the table looks for its facts in a `WaitGraph`; a row has the name of the pattern (None
where nothing is proven), whether it applies to these facts, and the sentences about them. Where
the facts prove nothing, no row names a cause: a wrong diagnosis costs more time than none.
"""

from collections.abc import Callable, Iterator
from types import SimpleNamespace as Facts

from course_utils.hang import facts
from course_utils.hang.wait_graph import WaitGraph
from course_utils.record.event import BACKWARD, EVALUATES, FORWARD, WRAPS

SAME = "every rank of a group must make the same calls in the same order, as often as the others."
_ARRIVED = "{Waiting} waited for {absent}, which never arrived: "
_LONG = "Raise timeout= if the work is long; look for an endless loop if it is not."
_UNEVEN = (
    "in line {call.line[1]} rank {rank} has called {call.kind}{in_ddp} {often}, rank {other}, "
    "which {then}, {rarer}. Give every rank as many rounds, with this call in each{batches}."
)
JOIN = (
    "Rank {joiner} has no inputs left: at the end of join it stands in for DDP's calls. "
    "The {foreign.kind}{foreign_there} of rank {foreign.rank} is none of these: leave it out of "
    "join, or make it Joinable."
)
_PAST = (
    "Rank {other} is past the loop of line {loop}, and rank {rank} goes round it once more: in "
    "line {call.line[1]} rank {rank} has called {call.kind}{in_ddp} {often}, rank {other} "
    "{rarer}. All ranks must leave a loop after the same round: share what decides it."
)
_QUEUED = (
    " A call on a GPU returns as soon as it is queued: a rank stands still in a later line, which "
    "needs the result."
)
_BUFFERS = "DDP's forward agrees with every rank on the model's buffers, and once on its buckets"

Row = tuple[str | None, Callable[[Facts], object], str]
TABLE: list[tuple[Callable[[WaitGraph], Iterator[Facts]], list[Row]]] = [
    (facts.of_all, [
        ("slow", lambda f: f.slow,
         "The ranks made calls until shortly before that, so there was progress: perhaps nothing "
         "hangs. The limit timeout= counts from the start of the run: for long work give it more "
         "seconds, such as launch(..., timeout=3600). If the work is not long, look for an endless "
         "loop."),
        (None, lambda f: f.silent and not f.waiting,
         "{silent} gave no answer, so it is not known what {they} for."),
        ("starting", lambda f: f.Starting and not f.silent,
         "{Starting} still starting: launch makes the group before it calls your function. That "
         "takes longer the more ranks there are, and on a busy machine. Give timeout= more "
         "seconds: it counts from the start of the run."),
        ("held", lambda f: f.held and not f.waiting,
         "No rank waits for another: {who} {wait} for {what}{of_its}. {advice}"),
        (None, lambda f: f.messages and not f.waiting,
         "No call is seen to lack its partner. Either {who} only needed longer, or messages wait "
         "for each other on the GPUs: where ranks send before they receive, use "
         "dist.batch_isend_irecv."),
        ("running", lambda f: not f.waiting,
         "No rank waits for another: {who} only needed longer. " + _LONG),
    ]),
    (facts.of_difference, [
        ("exception", lambda f: f.handler is not None,
         "{Name} is {by}: rank {handler} came to {stands} because of an exception, which nobody "
         "hears of as long as it waits there: {handles} ({raised_at}). In an `except` or "
         "a `finally`, make no call that needs other ranks."),
        ("join", lambda f: f.foreign,
         JOIN),
        ("evaluation", lambda f: f.what == "order" and f.alone,
         "{Name} is {by}. " + _BUFFERS + ", in evaluation as well. Evaluate on every rank, or call "
         "model.module on one."),
        ("uneven", lambda f: f.what == "order" and f.rarer, _PAST),
        ("new_group", lambda f: f.what == "new_group",
         "New group #{number} is {by}: every rank must call new_group for every group, member or "
         "not."),
        ("evaluation", lambda f: f.what == "evaluation",
         _BUFFERS + ". {Name} does it for an evaluation{there} on {alone} only: the others train. "
         "Evaluate on every rank, or call model.module on one."),
        ("order", lambda f: f.what == "order" and f.one_in_backward,
         "{Name} is {by}: " + SAME + " In DDP's backward one is lost where a parameter takes no "
         "part in the loss."),
        ("order", lambda f: f.what == "order", "{Name} is {by}: " + SAME),
        ("root", lambda f: f.what == "root",
         "{Name} ({call.kind}) has {by}: name the same root on every rank."),
        ("order", lambda f: f.what == "lines",
         "{Name} ({call.kind}) has {by}. If these calls belong together, hand in the same shape "
         "and dtype; if they do not, one is left out or made too often: " + SAME),
        ("shape", lambda f: f.what == "shape",
         "{Name} ({call.kind}) has {by}: every rank must hand in the same shape and dtype."),
    ]),
    (facts.of_messages, [
        ("tag", lambda f: f.taken.peer == f.rank and f.taken.tag != f.sent.tag,
         "Rank {rank} sends to rank {other} with tag {sent.tag}, and rank {other} receives from "
         "rank {rank} with tag {taken.tag}: both must name one tag."),
        ("groups", lambda f: f.taken.peer == f.rank and f.taken.group_name != f.sent.group_name,
         "Rank {rank} sends to rank {other} in another group than that in which rank {other} "
         "receives: both must name one group."),
        ("peer", lambda f: f.taken.peer != f.rank and not f.may_come,
         "Rank {rank} sends to rank {other}, which receives from rank {taken.peer} instead, and "
         "rank {taken.peer} sends it nothing: a peer is named wrongly, or a send is left out."),
    ]),
    (facts.of_lost_messages, [
        ("lost", lambda f: True,
         "Rank {sent.rank} sent message #{sent.number} to rank {rank} by isend{there} and has "
         "returned without wait() on it: the message may be lost. Keep what isend returns, and "
         "wait()."),
    ]),
    (facts.of_absence, [
        ("exception", lambda f: f.handles,
         _ARRIVED + "rank {handler} handles an exception, and nobody hears of it before that has "
         "ended: {handles} ({raised_at})."),
        ("held", lambda f: f.held,
         _ARRIVED + "{it} for {what}{of_its}. {advice}"),
        ("store", lambda f: f.key,
         _ARRIVED + "{it} in the store for a key that nobody has set ({key})."),
        ("missing", lambda f: f.flags & WRAPS,
         _ARRIVED + "DDP(model) ends only when every rank has wrapped its model."),
        ("unused", lambda f: f.flags & BACKWARD and f.unfinished,
         _ARRIVED + "a backward pass ended there without a gradient for some parameter, so DDP has "
         "not averaged it. Let every parameter take part in the loss, or say "
         "DDP(model, find_unused_parameters=True)."),
        ("backward", lambda f: f.flags & BACKWARD and not f.over,
         _ARRIVED + "DDP averages gradients inside backward, on every rank. Is backward skipped "
         "there, or does a parameter take no part in its loss?"),
        ("returned", lambda f: f.over and f.message and f.call.peer is None,
         _ARRIVED + "{gone}, so nobody is left to send rank {rank} a message. A send is left out, "
         "or a tag is wrong."),
        ("uneven", lambda f: f.over and f.message and f.sure and 0 < f.met_here < f.here,
         _ARRIVED + "in line {call.line[1]} rank {rank} has come to {here} messages {toward} "
         "rank {other}, and rank {other}, which has returned, {did} {met_here} there. Give every "
         "rank as many rounds."),
        ("returned", lambda f: f.over and f.message,
         _ARRIVED + "{gone}, and rank {other} never {did} message #{call.number} {way} rank {rank}."
         " A {deed} is left out, or a peer or a tag is wrong."),
        ("groups", lambda f: f.elsewhere and not f.rarer and f.sure,
         "Rank {rank} waits in the group of {group}. In that line rank {other} called {call.kind} "
         "in the group of {elsewhere}: use the same group on every rank, of a mesh the same "
         "dimension."),
        ("uneven", lambda f: f.over and f.sure and f.rarer, _ARRIVED + _UNEVEN),
        ("evaluation", lambda f: f.over and f.sure and f.flags & EVALUATES,
         _ARRIVED + _BUFFERS + ", in evaluation as well. Evaluate on every rank, or call "
         "model.module on one."),
        ("backward", lambda f: f.over and f.sure and f.flags & BACKWARD,
         _ARRIVED + "{gone} without this backward pass, in which DDP averages gradients. Call it "
         "on every rank, as often."),
        ("forward", lambda f: f.over and f.sure and f.flags & FORWARD,
         _ARRIVED + "{gone}. DDP's forward makes this call on every rank, but not after a step "
         "within no_sync(). Give every rank as many batches, and no_sync() for the same ones."),
        ("thread", lambda f: f.thread and not f.rarer,
         "A thread of rank {rank} waits in {call.kind} ({there}): {absent} never called it. A call "
         "in a thread needs every rank of its group as well."),
        ("returned", lambda f: f.over and f.sure,
         _ARRIVED + "{gone}, and rank {other} never called {call.kind} in that line. Is the call "
         "in an `if` that only some ranks enter, or does one return early?"),
        ("missing", lambda f: True, _ARRIVED + SAME),
    ]),
    (facts.of_waiting, [
        ("send/send", lambda f: f.kinds == {"send"},
         "{Inside} all send, and none receives: a blocking send ends only when its peer receives. "
         "Let one side receive first, or use isend and irecv."),
        ("recv/recv", lambda f: f.kinds == {"recv"},
         "{Inside} all receive, and none sends: a receive ends only when its peer has sent. Let "
         "one side send first."),
        ("groups", lambda f: f.groups > 1 and not f.kinds & {"send", "recv", "new_group"},
         "{Inside} wait for each other in different groups: every rank of a group must come to its "
         "calls, and all ranks to their groups in the same order."),
        ("order", lambda f: f.Inside and len(f.names) > 1,
         "The ranks wait in different calls ({what}): " + SAME),
        ("alone", lambda f: f.alone and f.names == {"recv"},
         "There is no other rank that could send rank 0 a message."),
        ("store", lambda f: f.in_store and not f.Inside,
         "{in_store} {wait} in the store for a key that nobody has set ({code})."),
        (None, lambda f: not f.known,
         "The ranks wait in {what}, and what they called before is not known: " + SAME),
        (None, lambda f: f.names in ({"init_process_group"}, {"init_rpc"}),
         "Every rank waits in the same call: do all ranks use the same address, which this machine "
         "knows, is each rank's number there once, and does world_size count them all?"),
        (None, lambda f: True,
         "No call is seen to lack its partner. If the work is long, raise timeout=; if it is not, "
         "look for different groups, and for a peer or a source that does not match."),
    ]),
]  # fmt: skip


def diagnose(graph: WaitGraph) -> tuple[str | None, str]:
    """Say why these ranks hang: the pattern's name, which does not change, and the words."""
    pattern, words = next(
        (pattern, text.format(**vars(found)))
        for find, rows in TABLE
        for found in find(graph)
        for pattern, applies, text in rows
        if applies(found)
    )
    if any(one.queued for one in graph.ranks.values()):
        words += _QUEUED
    return pattern, words
