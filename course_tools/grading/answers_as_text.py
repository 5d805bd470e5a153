"""Grading: a learner's answers are kept as text, and run nowhere but in ranks.

The kernel that judges runs the teacher's cells alone. Where a lab has an answer, it gets a
stand-in, and what the learner wrote is run by every rank, after the fork and after it has drawn
its inputs. So nothing that an answer does to `check`, to a name of the lab or to Python reaches the
judge; and what comes back is read as data.
"""

import ast
import inspect
import linecache
import os
import symtable
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from IPython.display import display

import course_utils
from course_checks import careful
from course_checks.check import check
from course_checks.outcome import Outcome
from course_tools.child_process import in_child_process
from course_utils.launcher import transport

PROOF = {"course": "passed"}  # in the metadata of an output: `require` came to its end


class StandIn:
    """What has an answer's name in the kernel; in a rank, calling it calls the answer."""

    def __init__(self, name: str, label: str, answers: "Answers") -> None:
        self.__name__, self.label, self.answers = name, label, answers
        self.__globals__ = answers.names  # as a function has them: `Watch` looks there

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the answer."""
        self.answers.load(self.label)
        found = self.answers.names[self.__name__]
        if found is self:
            missing = NameError(f"the answer defines no {self.__name__}")
            raise self.answers.failed.get(self.label, missing)
        return found(*args, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        """The answer's own, for checks that ask which arguments it has; only in a rank."""
        if os.getpid() == self.answers.kernel:
            raise AttributeError("no answer is run in the kernel")
        self.answers.load(self.label)
        found = self.answers.names[self.__name__]
        if found is self:
            raise AttributeError(f"the answer defines no {self.__name__}")
        return inspect.signature(found)


class Answers:
    """The answers of one notebook.

    Args:
        names: The kernel's, in which the teacher's cells run.
    """

    def __init__(self, names: dict[str, Any]) -> None:
        self.names, self.kernel = names, os.getpid()
        self.texts: dict[str, str] = {}
        self.failed: dict[str, BaseException] = {}
        self.loaded: set[str] = set()
        self.last: tuple[Callable | None, dict[str, Any], Outcome] | None = None

    def add(self, label: str, text: str, functions: list[str], values: list[str]) -> None:
        """Keep an answer's text, with a stand-in for every function that it has to define.

        Where it has to bind values, such as recordings, a process of its own works them out.
        """
        self.texts[label] = text
        remember_lines(file_of(label), text)  # in the kernel too, which shows where an answer fails
        for name in functions:
            self.names[name] = StandIn(name, label, self)
        if values:
            self.names.update(dict.fromkeys(values))
            self.names.update(in_child_process(lambda: self._values(label, values)))

    def _values(self, label: str, names: list[str]) -> dict[str, Any]:
        self.load(label)
        if label in self.failed:
            raise self.failed[label]
        return {name: self.names[name] for name in names}

    def load(self, label: str | None = None) -> None:
        """Run an answer's text and those that it needs, once, in a process that judges nothing.

        One that ends whoever runs it does no harm to the others. Without a label, run all.
        """
        if os.getpid() == self.kernel:
            raise RuntimeError("an answer is run by ranks only, not by the kernel that judges")
        given = {name for name, value in self.names.items() if not isinstance(value, StandIn)}
        wanted = needed(label, self.texts, given) if label else self.texts.keys()
        for name in [name for name in self.texts if name in wanted - self.loaded]:
            self.loaded.add(name)
            if error := run_statements(self.texts[name], file_of(name), self.names):
                self.failed[name] = error

    def check(self, fn: Callable | None, **options: Any) -> Outcome:
        """As `check`, and remember it for `require`."""
        outcome = check(_Loading(fn, self) if callable(fn) else fn, **options)
        self.last = fn, options, outcome
        return outcome


def file_of(label: str) -> str:
    """What stands for a file where a line of this text is told of."""
    return f"<{label}>"


def remember_lines(file: str, text: str) -> None:
    """Let tracebacks know the lines of a text that is in no file."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def run_statements(text: str, file: str, names: dict[str, Any]) -> BaseException | None:
    """Run a text statement by statement, past those that fail; returns what the first one raised.

    In a notebook a learner may try an answer out in its own cell; where ranks run it, that fails.
    """
    try:
        statements = ast.parse(text, file).body
    except (SyntaxError, ValueError, RecursionError) as error:
        return error
    first = None
    futures = [one for one in statements if isinstance(one, ast.ImportFrom)]
    futures = [one for one in futures if one.module == "__future__"]
    for statement in statements:
        module = ast.Module([*futures, statement], [])
        try:
            exec(compile(module, file, "exec", dont_inherit=True), names)
        except BaseException as error:  # a SystemExit, too: what follows may still be right
            first = first or error
    return first


class _Loading:
    """An answer, or what a lab has wrapped around it, called in a rank where all texts have run."""

    def __init__(self, fn: Callable, answers: Answers) -> None:
        self.__wrapped__ = self.fn = fn
        self.answers, self.__name__ = answers, getattr(fn, "__name__", "answer")

    def __call__(self, *args: Any) -> Any:
        """Call it."""
        self.answers.load(getattr(inspect.unwrap(self.fn), "label", None))
        return self.fn(*args)


_begun: list[Answers] = []


def begin(names: dict[str, Any]) -> None:
    """From now on `course_utils.check` expects answers as text."""
    _begun[:] = [Answers(names)]
    course_utils.check = _begun[0].check
    transport.Unpickler = careful.Unpickler


def answer(label: str, text: str, functions: list[str], values: list[str]) -> None:
    """Keep an answer, and the names that it has to bind: those of the teacher's, which is not told.

    Where the kernel had the teacher's text, its ranks would have it too.
    """
    _begun[0].add(label, text, functions, values)


def require(**more: Any) -> None:
    """Show the last check, and let its cell fail unless it has passed.

    Args:
        more: Other arguments of `check`, with which it has to pass as well, such as more ranks.

    Raises:
        CheckFailed: It has not.
        RuntimeError: This kernel has run the answers itself.
    """
    if not _begun or not (last := _begun[0].last):
        raise RuntimeError(
            "grade in the folder that `make handout` has made: see teaching/README.md"
        )
    fn, options, outcome = last
    _begun[0].last = None  # what is required next has to be checked before
    display(outcome)
    outcome.require()
    if more:
        again = _begun[0].check(fn, **options | more)
        display(again)
        again.require()
    display({"text/plain": "all points"}, raw=True, metadata=PROOF)


def bound(text: str) -> tuple[list[str], list[str]]:
    """The names that a cell binds at its top level: by def or class, and by assignment."""
    functions: list[str] = []
    values: list[str] = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            functions.append(node.name)
        elif isinstance(node, ast.Assign):
            inside = [part for target in node.targets for part in ast.walk(target)]
            values += [part.id for part in inside if isinstance(part, ast.Name)]
    return functions, values


def needed(label: str, texts: Mapping[str, str], given: Set[str] = frozenset()) -> set[str]:
    """The labels of the texts that this one needs, itself among them: they bind what it uses.

    What is given, such as a module that the lab has imported, needs none of them.
    """
    known = {name: binds_and_uses(text) for name, text in texts.items()}
    found = {name for name, text in texts.items() if "import *" in text} | {label}
    while True:
        uses = set().union(*(known[name][1] - known[name][0] for name in found)) - given
        more = {name for name, (binds, _) in known.items() if binds & uses} - found
        if not more:
            return found
        found |= more


def binds_and_uses(text: str) -> tuple[set[str], set[str]]:
    """The global names that a cell binds, and those that it uses."""
    try:
        tables = list(_tables(symtable.symtable(text, "<answer>", "exec")))
    except (SyntaxError, ValueError, RecursionError):  # it will fail when it is run, and say why
        return set(), set()
    symbols = [(table is tables[0], one) for table in tables for one in table.get_symbols()]
    own = [(top, one) for top, one in symbols if top or one.is_global()]
    binds = {one.get_name() for _, one in own if one.is_assigned() or one.is_imported()}
    binds |= {one.get_name() for top, one in own if top and one.is_namespace()}
    return binds, {one.get_name() for _, one in own if one.is_referenced()}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
