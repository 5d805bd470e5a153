"""Run one test in its ranks, and carry home what each of them has to say."""

import dataclasses
import inspect
import os
import pickle
import sys
import warnings
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionInfo,
    ExceptionRepr,
    ReprEntryNative,
    ReprExceptionInfo,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest.outcomes import Exit, Skipped, XFailed

from course_testing.failure import SIZE, RankFailed
from course_utils.devices.placement import place
from course_utils.devices.prepare import DeviceSetup
from course_utils.hang.report import HangReport
from course_utils.hang.silent_mistakes import SilentMistakes
from course_utils.hang.wait_graph import WaitGraph
from course_utils.launcher import transport
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.language import _, capitalized, ngettext
from course_utils.launcher.launch import Pieces, launch, print_in_rank_order
from course_utils.launcher.listener import Listener
from course_utils.launcher.words import ranks_listed, ranks_named
from course_utils.life import SilenceTimeout
from course_utils.record.event import ASYNC, MAY_TIME_OUT, QUEUED
from course_utils.record.record import Record

_QUIET_S = 0.4  # without a call, until ranks are asked where they are
_TIMES_CROSSED = 3  # that ranks are seen waiting in different collectives, until that is a hang
_SILENCE_S = 60.0  # without a call or a print, where no timeout is given
# They read what pytest's own process prints.
_CAPTURING = ("capsys", "capsysbinary", "capfd", "capfdbinary", "capteesys")

# They keep in pytest's own process what happens, so a failing part would pass; and what to use.
_LOST = {"subtests": "pytest.mark.parametrize", "recwarn": "pytest.warns"}


class RanksWarning(UserWarning):
    """What torch lets pass in a rank, although the result may be wrong."""


@dataclasses.dataclass
class Word:
    """What a rank tells of the end of its test.

    Attributes:
        outcome: "passed", "failed", "skipped", "xfailed" or "exit".
        reason: of a skip, an xfail or an exit; of a failure its headline.
        shown: of a failure, pytest's own view of it: the lines, the values, the place.
        raised: of a failure, the type of the exception.
        warned: the warnings of this rank: message, category, file, line.
    """

    outcome: str = "passed"
    reason: str = ""
    shown: ExceptionRepr | str = ""
    raised: type[BaseException] | None = None
    warned: Sequence[tuple[str, type[Warning], str, int]] = ()


class ProvenHang(HangReport):
    """Ends a launch as soon as it is proven that its ranks will never be done.

    Where that isn't proven yet, it asks again after each further silence: a rank may have been on
    its way to where it waits now.
    """

    def __init__(self, record: Record) -> None:
        super().__init__(record, _QUIET_S)
        self._times_crossed = 0

    def on_quiet(self, graph: WaitGraph) -> bool:
        """Whether the launch must end; otherwise go on watching."""
        if graph.hangs_for_ever:
            return True
        self._times_crossed += 1
        if not _waits_crosswise(graph):
            self._times_crossed = 0
        if self._times_crossed == _TIMES_CROSSED:
            return True
        self._watch()
        return False

    def on_progress(self) -> None:
        """What was seen of the silence before no longer counts."""
        self._times_crossed = 0


def _waits_crosswise(graph: WaitGraph) -> bool:
    """Whether all ranks wait, and what they wait in are different collectives that met.

    Gloo may yet end it with an error of its own, which takes a moment.
    """
    for whereabouts in graph.ranks.values():
        call = whereabouts.call
        if whereabouts.state != "waiting" or call is None:
            return False
        if call.flags & (ASYNC | MAY_TIME_OUT | QUEUED):
            return False
    difference = graph.difference()
    return difference is not None and difference[0] == "order"


class Mailboxes(Listener):
    """A file without a name for each rank, for its last word."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item
        self._files: list[FileIO] = []
        self.words: list[Word | None] = []  # by rank, once the ranks are gone
        self.in_this_rank: FileIO | None = None

    def on_start(self, world_size: int) -> None:
        """Open them, before the fork."""
        for _rank in range(world_size):
            self._files.append(FileIO(transport.anonymous_file("word"), "r+"))

    def in_worker(self, rank: int) -> Any:
        """In a rank: remember its own file."""
        self.in_this_rank = self._files[rank]
        return super().in_worker(rank)

    def send(self, word: Word) -> None:
        """In a rank: leave the word where pytest finds it."""
        try:
            content = pickle.dumps(word)
        except Exception:  # an exception's type that was made in this rank
            word.shown, word.raised = str(word.shown), None
            content = pickle.dumps(word)
        view = memoryview(content)
        while view:
            view = view[self.in_this_rank.write(view) :]

    def on_exit(self) -> None:
        """Read all words, and close the files."""
        for file in self._files:
            file.seek(0)
            content = file.read()
            file.close()
            try:
                self.words.append(pickle.loads(content))
            except Exception:  # none, or one that was cut off when the rank was stopped
                self.words.append(None)


def run(item: pytest.Function, options: dict[str, Any], shared: dict[str, Any]) -> None:
    """Run a marked test in its ranks.

    Args:
        item: the test.
        options: the keywords of its mark.
        shared: what its fixtures have left for the launch: "trace" and "late_ranks".

    Raises:
        RankFailed: it failed in a rank, or hung.
        Exception: it was skipped, expected to fail, or could not be started.
    """
    _refuse(item)
    world_size = item.callspec.params[SIZE]
    Launch(item, world_size, options, shared).run()


def _refuse(item: pytest.Function) -> None:
    """Say of what no rank can do why, before anything starts."""
    name = item.originalname
    function = item.obj
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        pytest.fail(
            _(
                "ranks: {name} is async, and a rank has no event loop: write a plain def, and call "
                "asyncio.run() in it.",
                name=name,
            ),
            pytrace=False,
        )
    for fixture in _CAPTURING:
        if fixture in item.funcargs:
            pytest.fail(
                _(
                    "ranks: {fixture} reads what pytest's own process prints, and ranks are other "
                    "processes: their prints stand in the report, rank by rank.",
                    fixture=fixture,
                ),
                pytrace=False,
            )
    for fixture, instead in _LOST.items():
        if fixture in item.funcargs:
            pytest.fail(
                _(
                    "ranks: {fixture} keeps what happens in pytest's own process, and ranks are "
                    "other processes, so it would be lost: use {instead}.",
                    fixture=fixture,
                    instead=instead,
                ),
                pytrace=False,
            )
    if item.config.getoption("trace", False):
        pytest.fail(
            _(
                "ranks: --trace needs a keyboard, and a rank has none: print in the test, or call "
                "the function under test with one rank, without the mark."
            ),
            pytrace=False,
        )


class Launch:
    """One run of one test in so many ranks."""

    def __init__(
        self,
        item: pytest.Function,
        world_size: int,
        options: dict[str, Any],
        shared: dict[str, Any],
    ) -> None:
        self.item = item
        self.world_size = world_size
        self.options = options
        self.trace = shared.get("trace")
        self.late_ranks = shared.get("late_ranks")
        self.record = Record(trace=self.trace is not None)
        self.mistakes = SilentMistakes(self.record)
        self.mail = Mailboxes(item)

    def run(self) -> None:
        """Start the ranks, wait for them, and tell pytest how the test went."""
        if self.late_ranks is not None:
            seed = self.late_ranks.seed
            text = _("The delays of this run come again with --rank-seed={seed}.", seed=seed)
            self.item.add_report_section("call", "late_ranks", text)
        error = None
        try:
            results = self._launch()
            unfinished = results.unfinished
        except WorkerError as failure:
            error = failure
            unfinished = []
        self._warn([*self.mistakes.sentences, *unfinished])
        self._tell_outcome(error)

    def _launch(self) -> Any:
        nodes = self.options.get("nodes", 1)
        timeout = self.options.get("timeout")
        backend = self.options.get("backend", "auto")
        device = self.options.get("device", "auto")
        placement = place(backend, device, self.world_size, nodes, False)
        placement = dataclasses.replace(placement, notice="")  # on what this machine has
        listeners: list[Listener] = [DeviceSetup(placement), self.record, ProvenHang(self.record)]
        if timeout is None:
            listeners.append(SilenceTimeout(self.record, _SILENCE_S))
        if self.late_ranks is not None:
            listeners.append(self.late_ranks)
        listeners += [self.mistakes, self.mail]
        return launch(
            self._in_rank,
            world_size=self.world_size,
            backend=placement.backend,
            nodes=nodes,
            timeout=timeout or _SILENCE_S,
            listeners=listeners,
            show=self._show_output,
        )

    def _in_rank(self) -> None:
        """In a rank: call the test as pytest would, and leave a word of how it went."""
        rank = int(os.environ["RANK"])
        if self.trace is not None:
            self.trace.enter(self.record, rank)
        arguments = {}
        for name in self.item._fixtureinfo.argnames:
            arguments[name] = self.item.funcargs[name]
        with warnings.catch_warnings(record=True) as caught:
            try:
                self.item.obj(**arguments)
                word = Word()
            except Skipped as skipped:
                word = Word("skipped", str(skipped.msg))
            except BaseException as error:
                self.mail.send(self._word_of(error, caught))
                raise
        word.warned = _plain(caught)
        self.mail.send(word)

    def _word_of(self, error: BaseException, caught: list[warnings.WarningMessage]) -> Word:
        warned = _plain(caught)
        if isinstance(error, XFailed):
            return Word("xfailed", str(error.msg), warned=warned)
        if isinstance(error, Exit):
            return Word("exit", str(error.msg), warned=warned)
        info = ExceptionInfo.from_exc_info(sys.exc_info())
        shown = self.item.repr_failure(info)
        headline = _first_line(info.exconly(tryshort=True))
        if not str(error):  # such as an assert of a library: say at least where it stands
            last = info.traceback[-1]
            where = f"{Path(last.path).name}:{last.lineno + 1}"
            headline = _("{description}, at {line}", description=headline, line=where)
        return Word("failed", headline, shown, type(error), warned)

    def _show_output(self, pieces: Pieces) -> None:
        """Show what ranks printed: below a failure a section for each, with -s at once."""
        if self.item.config.getoption("capture") == "no":
            print_in_rank_order(pieces)
            return
        for rank, pieces_of_rank in enumerate(pieces):
            text = "".join(text for text, _time in pieces_of_rank)
            if text:
                self.item.add_report_section("call", f"stdout of rank {rank}", text)

    def _warn(self, sentences: Sequence[str]) -> None:
        """Pass on what was warned of in ranks, each once, and what torch has let pass there."""
        warned = {}
        for word in self.mail.words:
            for warning in word.warned if word else ():
                warned[warning] = None
        for message, category, file, line in warned:
            warnings.warn_explicit(message, category, file, line)
        file, line = _place(self.item)
        for sentence in sentences:
            warnings.warn_explicit(sentence, RanksWarning, file, line)

    def _tell_outcome(self, error: WorkerError | None) -> None:
        words = self.mail.words
        skipped = _ranks_with("skipped", words)
        if len(skipped) == self.world_size:
            pytest.skip(words[0].reason)
        if skipped:
            first = words[skipped[0]].reason
            others = sorted(set(range(self.world_size)) - set(skipped))
            message = capitalized(
                _(
                    "{ranks} skipped the test ({reason}), but {others} did not: skip on all ranks "
                    "or on none.",
                    ranks=ranks_named(skipped),
                    reason=first,
                    others=ranks_named(others),
                )
            )
            if error is not None:
                message = f"{message}\n\n{error}"
            raise RankFailed(message, self._shown_as_text(message))
        if error is None:
            return
        for outcome, tell in (("xfailed", pytest.xfail), ("exit", pytest.exit)):
            ranks = _ranks_with(outcome, words)
            if ranks:
                tell(words[ranks[0]].reason)
        self._raise_failure(error)

    def _raise_failure(self, error: WorkerError) -> None:
        """Raise what pytest shows: the root cause with pytest's own view, or the report."""
        word = None
        if error.rank is not None and not isinstance(error, WorkerTimeout):
            word = self.mail.words[error.rank]
        if word is None or word.outcome != "failed":
            message = f"{error}{self._without_debugger()}"
            shown = self._shown_as_text(message, _headline(error))
            raise RankFailed(message, shown) from None
        if self._is_expected(word.raised):
            raise _exception_of(word) from None
        others = "\n".join(self._about_other_ranks(error))
        title = _(
            "rank {rank} of {world_size}: {reason}",
            rank=error.rank,
            world_size=self.world_size,
            reason=word.reason,
        )
        closing = f"{others}{self._without_debugger()}"
        raise RankFailed(title, _with_title(word.shown, title, closing)) from None

    def _about_other_ranks(self, error: WorkerError) -> list[str]:
        """A line for each rank that failed as well, and one for those that were stopped."""
        rows = []
        stopped = set(range(self.world_size)) - {error.rank}
        for failure in error.failures[1:]:
            word = self.mail.words[failure.rank]
            if failure.is_echo or word is None or word.outcome != "failed":
                continue
            stopped.remove(failure.rank)
            row = _("Rank {rank} failed as well: {reason}", rank=failure.rank, reason=word.reason)
            rows.append(row)
        if stopped:
            row = ngettext(
                "rank {ranks} was stopped.",
                "ranks {ranks} were stopped.",
                len(stopped),
                ranks=ranks_listed(stopped),
            )
            rows.append(capitalized(row))
        return rows

    def _without_debugger(self) -> str:
        if not self.item.config.getoption("usepdb", False):
            return ""
        note = _(
            "--pdb opens in pytest's own process, where fixtures are: the rank has ended, and it "
            "had no keyboard. To look into it, print there, or run the test with -l."
        )
        return f"\n\n{note}"

    def _is_expected(self, raised: type[BaseException] | None) -> bool:
        """Whether an xfail mark asks for this type of exception, which it has to see itself."""
        mark = self.item.get_closest_marker("xfail")
        expected = mark.kwargs.get("raises") if mark else None
        return bool(expected) and raised is not None and issubclass(raised, expected)

    def _shown_as_text(self, message: str, headline: str = "") -> ReprExceptionInfo:
        """A text in the form that pytest shows, summarises and sends between processes."""
        file, line = _place(self.item)
        headline = headline or _first_line(message)
        entry = ReprEntryNative([f"{message}\n"])
        crash = ReprFileLocation(file, line, headline)
        return ReprExceptionInfo(ReprTraceback([entry], None, "native"), crash)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _headline(error: WorkerError) -> str:
    """One line for pytest's summary: what failed, and the likely reason if there is one."""
    what_failed = _first_line(error.parts[0])
    reason = error.parts[-1] if isinstance(error, WorkerTimeout) else "".join(error.parts[1:2])
    if not reason or reason == error.parts[0]:
        return what_failed
    end = "" if what_failed.endswith((".", "。")) else "."
    return f"{what_failed}{end} {_first_line(reason).rstrip(':：')}"


def _plain(caught: list[warnings.WarningMessage] | None) -> list:
    rows = []
    for warning in caught or ():
        rows.append((str(warning.message), warning.category, warning.filename, warning.lineno))
    return rows


def _place(item: pytest.Function) -> tuple[str, int]:
    file, line, _name = item.location
    return file, (line or 0) + 1


def _ranks_with(outcome: str, words: Sequence[Word | None]) -> list[int]:
    ranks = []
    for rank, word in enumerate(words):
        if word is not None and word.outcome == outcome:
            ranks.append(rank)
    return ranks


def _exception_of(word: Word) -> BaseException:
    """An exception of the type that a rank raised, which an xfail mark asks for.

    It is made without its constructor, which may want arguments that only the rank had.
    """
    error = word.raised.__new__(word.raised)
    error.args = (word.reason,)
    return error


def _with_title(shown: ExceptionRepr | str, title: str, closing: str) -> ExceptionRepr | str:
    """Pytest's view of a failure, below a line that names the rank, above one on the others."""
    if isinstance(shown, str):
        return f"{title}\n\n{shown}\n\n{closing}"
    entries = shown.reprtraceback.reprentries
    first = ReprEntryNative([f"{title}\n"])
    if not hasattr(shown, "chain"):
        shown.reprtraceback.reprentries = [first, *entries]
    else:
        traceback = shown.chain[0][0]
        traceback.reprentries = [first, *traceback.reprentries]
    if shown.reprcrash is not None:
        shown.reprcrash.message = title
    if closing:
        shown.addsection(_("the other ranks"), closing)
    return shown
