"""Grading: a learner's answers are kept as text, and run nowhere but in ranks.

The kernel that judges runs the teacher's cells alone. Where a lab has an answer, it gets a
stand-in, and what the learner wrote is run by every rank, after the fork and after it has drawn
its inputs. So nothing that an answer does to `check`, to a name of the lab or to Python reaches the
judge; and what comes back is read as data.
"""

import ast
import functools
import inspect
import linecache
import os
import symtable
from collections.abc import Callable, Iterator, Mapping, Set
from types import CodeType
from typing import Any, NamedTuple

from IPython.display import display

import course_utils
from course_checks import careful
from course_checks.check import check
from course_checks.outcome import Outcome
from course_tools.child_process import in_child_process
from course_utils.launcher import transport

PROOF = {"course": "passed"}  # in the metadata of an output: `require` came to its end
Namespace = dict[str, Any]  # by name, what it stands for
NameList = list[str]


class StandIn:
    """What has an answer's name in the kernel; in a rank, calling it calls the answer."""

    def __init__(self, name: str, label: str, answers: "Answers") -> None:
        self.__name__ = name
        self.label = label
        self.answers = answers
        self.__globals__ = answers.names  # as a function has them: `Watch` looks there

    def __call__(self, *args: Any, **options: Any) -> Any:
        """Call the answer."""
        function = self._loaded()
        return function(*args, **options)

    def _loaded(self) -> Any:
        """What has the name once the answer was run."""
        answers = self.answers
        answers.load(self.label)
        function = answers.names[self.__name__]
        if function is self:
            missing = NameError(f"the answer defines no {self.__name__}")
            raise answers.failed.get(self.label, missing)
        return function

    @property
    def __signature__(self) -> inspect.Signature:
        """The answer's own, for checks that ask which arguments it has; only in a rank."""
        if os.getpid() == self.answers.kernel_pid:
            raise AttributeError("no answer is run in the kernel")
        return inspect.signature(self._loaded())


class Answers:
    """The answers of one notebook.

    Args:
        names: The kernel's, in which the teacher's cells run.
    """

    def __init__(self, names: Namespace) -> None:
        self.names = names
        self.kernel_pid = os.getpid()
        self.texts: dict[str, str] = {}  # by label
        self.failed: dict[str, BaseException] = {}  # by label
        self.loaded: set[str] = set()  # labels
        self.last_check: Any = None  # the function, the options of `check`, and the outcome

    def add(self, label: str, text: str, functions: NameList, values: NameList) -> None:
        """Keep an answer's text, with a stand-in for every function that it has to define.

        Where it has to bind values, such as recordings, a process of its own works them out.
        """
        self.texts[label] = text
        remember_lines(label, text)  # in the kernel, which shows where an answer fails
        for name in functions:
            self.names[name] = StandIn(name, label, self)
        if values:
            no_values = dict.fromkeys(values)
            self.names.update(no_values)
            work_out = functools.partial(self._values, label, values)
            answered = in_child_process(work_out)
            self.names.update(answered)

    def _values(self, label: str, names: NameList) -> Namespace:
        """What an answer binds to these names; raises what the answer has raised."""
        self.load(label)
        error = self.failed.get(label)
        if error is not None:
            raise error
        values = {}
        for name in names:
            values[name] = self.names[name]
        return values

    def load(self, label: str) -> None:
        """Run an answer's text and those that it needs, once, in a process that judges nothing.

        One that ends whoever runs it does no harm to the others.
        """
        if os.getpid() == self.kernel_pid:
            raise RuntimeError("an answer is run by ranks only, not by the kernel that judges")
        given = self._given_names()
        wanted = needed(label, self.texts, given)
        wanted -= self.loaded
        for known_label, text in self.texts.items():
            if known_label not in wanted:
                continue
            self.loaded.add(known_label)
            error = run_statements(known_label, text, self.names)
            if error:
                self.failed[known_label] = error

    def _given_names(self) -> set[str]:
        """The names that the lab has given a value; not those that wait for an answer."""
        given = set()
        for name, value in self.names.items():
            if not isinstance(value, StandIn):
                given.add(name)
        return given

    def check(self, fn: Callable, **options: Any) -> Outcome:
        """As `check`, and remember it for `require`."""
        label = inspect.unwrap(fn).label

        @functools.wraps(fn, updated=())
        def loaded(*args: Any) -> Any:
            # Before what a lab has wrapped around the answer, which may look at it.
            self.load(label)
            return fn(*args)

        outcome = check(loaded, **options)
        self.last_check = fn, options, outcome
        return outcome


def compiled(label: str, text: str | ast.Module) -> CodeType:
    """A text, or a part of it, in the form that runs; a traceback calls it by its label."""
    file = file_of(label)
    return compile(text, file, "exec", dont_inherit=True)


def file_of(label: str) -> str:
    """What tracebacks have in the place of a file's name, since the text is in no file."""
    return f"<{label}>"


def remember_lines(label: str, text: str) -> None:
    """Let tracebacks know the lines of a text that is in no file."""
    file = file_of(label)
    size = len(text)
    lines = text.splitlines(keepends=True)
    changed_at = None  # of what is in no file: linecache does not look for one then
    linecache.cache[file] = (size, changed_at, lines, file)


def run_statements(label: str, text: str, names: Namespace) -> BaseException | None:
    """Run a text statement by statement, past those that fail; returns what the first one raised.

    In a notebook a learner may try an answer out in its own cell; where ranks run it, that fails.
    """
    file = file_of(label)
    try:
        module = ast.parse(text, file)
    except (SyntaxError, ValueError, RecursionError) as error:
        return error
    first_error = None
    future_imports = []  # they hold for all that follows, each of which is compiled by itself
    for statement in module.body:
        match statement:
            case ast.ImportFrom(module="__future__"):
                future_imports.append(statement)
        part = ast.Module([*future_imports, statement], [])
        try:
            code = compiled(label, part)
            exec(code, names)
        except BaseException as error:  # a SystemExit, too: what follows may still be right
            first_error = first_error or error
    return first_error


_answers: Answers  # of the notebook that is graded


def begin(names: Namespace) -> None:
    """From now on `course_utils.check` expects answers as text."""
    global _answers
    _answers = Answers(names)
    course_utils.check = _answers.check
    transport.Unpickler = careful.Unpickler


def answer(label: str, text: str, functions: NameList, values: NameList) -> None:
    """Keep an answer, and the names that it has to bind: those of the teacher's, which is not told.

    Where the kernel had the teacher's text, its ranks would have it too.
    """
    _answers.add(label, text, functions, values)


def require(**more: Any) -> None:
    """Show the last check, and let its cell fail unless it has passed.

    Args:
        more: Other arguments of `check`, with which it has to pass as well, such as more ranks.

    Raises:
        CheckFailed: It has not.
    """
    fn, options, outcome = _answers.last_check
    _answers.last_check = None  # what is required next has to be checked before
    display(outcome)
    outcome.require()
    if more:
        all_options = options | more
        outcome = _answers.check(fn, **all_options)
        display(outcome)
        outcome.require()
    display({"text/plain": "all points"}, raw=True, metadata=PROOF)


def bound(text: str) -> tuple[NameList, NameList]:
    """The names that a cell binds at its top level: by def or class, and by assignment."""
    functions: NameList = []
    values: NameList = []
    module = ast.parse(text)
    for statement in module.body:
        match statement:
            case ast.FunctionDef() | ast.ClassDef():
                functions.append(statement.name)
            case ast.Assign():
                values += _stored_names(statement)
    return functions, values


def _stored_names(statement: ast.Assign) -> Iterator[str]:
    """The names that an assignment binds, such as x, y and z in `x, (y, z) = ...`."""
    for node in ast.walk(statement):
        match node:
            case ast.Name(ctx=ast.Store()):
                yield node.id


def needed(label: str, texts: Mapping[str, str], given: Set[str] = frozenset()) -> set[str]:
    """The labels of the texts that this one needs, itself among them: they bind what it uses.

    What is given, such as a module that the lab has imported, needs none of them.
    """
    names_by_label = {}
    labels = {label}
    for known_label, text in texts.items():
        names_by_label[known_label] = binds_and_uses(text)
        if "import *" in text:  # which may bind anything
            labels.add(known_label)
    while True:
        wanted = set()
        for known_label in labels:
            names = names_by_label[known_label]
            wanted |= names.used - names.bound
        wanted -= given
        binding = set()
        for known_label, names in names_by_label.items():
            if names.bound & wanted:
                binding.add(known_label)
        if binding <= labels:
            return labels
        labels |= binding


class Names(NamedTuple):
    """The global names of a cell."""

    bound: set[str]
    used: set[str]


def binds_and_uses(text: str) -> Names:
    """The global names that a cell binds, and those that it uses."""
    names = Names(set(), set())
    try:
        module = symtable.symtable(text, "<answer>", "exec")
    except (SyntaxError, ValueError, RecursionError):  # it will fail when it is run, and say why
        return names
    for table in _tables(module):
        is_of_module = table is module
        for symbol in table.get_symbols():
            is_global = is_of_module or symbol.is_global()
            if not is_global:
                continue
            name = symbol.get_name()
            is_defined = is_of_module and symbol.is_namespace()
            if is_defined or symbol.is_assigned() or symbol.is_imported():
                names.bound.add(name)
            if symbol.is_referenced():
                names.used.add(name)
    return names


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    """A table of symbols, and those of all functions and classes in it."""
    yield table
    for child in table.get_children():
        yield from _tables(child)
