"""A name that an answer uses and that is only missing: a cell further up has not run yet."""

import re
import symtable

from course_material import verdicts
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.language import _

_MISSING = re.compile(r"NameError: name '(\w+)' is not defined")


def not_there_yet(answer: str, error: WorkerError) -> str:
    """Say which cell to run first, if it defines the name that an answer failed for; or nothing.

    Args:
        answer: The answer's name. A cell above the first one that defines it counts.
        error: What became of its launch.
    """
    if not error.failures:
        return ""
    first_failure = error.failures[0]
    missing = _MISSING.match(first_failure.headline)
    if missing is None:
        return ""
    name = missing[1]
    for cell in verdicts.saved_cells():
        defined = _defined_in(cell)
        if answer in defined:
            return ""
        if name in defined:
            return _(
                "{name} is not there yet, and a cell further up defines it. Run the cells above, "
                "then this cell once more.",
                name=name,
            )
    return ""


def _defined_in(cell: str) -> set[str]:
    """The names that a cell imports, assigns or defines at its top; none if it is no Python."""
    try:
        table = symtable.symtable(cell, "<cell>", "exec")
    except SyntaxError:  # such as of a magic
        return set()
    defined = set()
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            defined.add(symbol.get_name())
    return defined
