"""Whether an answer is what the learner wrote last: a cell that fails leaves the old one."""

import inspect
import re
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

from course_utils.launcher.language import _


def overtaken(fn: Callable) -> str:
    """Say which later cell should have defined this answer and failed, or nothing."""
    shell = _shell()
    answer = inspect.unwrap(fn)
    numbers = _numbers_of_cells(answer, shell)
    if not numbers:
        return ""
    name = getattr(answer, "__name__", "")
    of_that_name = shell.user_ns.get(name)
    if inspect.unwrap(of_that_name) is not answer:
        return ""
    last = max(numbers)
    later = _last_cell_that_defines(name, shell)
    if later <= last:
        return ""
    return _(
        "Cell [{later}] should have defined {name} and failed: what would be checked is still that "
        "of cell [{last}]. Run your cell again until it ends without an error.",
        later=later,
        name=name,
        last=last,
    )


def _shell() -> Any:
    """The notebook's shell, or None elsewhere."""
    ipython = sys.modules.get("IPython")
    if not hasattr(ipython, "get_ipython"):
        return None
    return ipython.get_ipython()


def _last_cell_that_defines(name: str, shell: Any) -> int:
    """The number of the last cell that defines a name, or nearly so; -1 if none does."""
    defines = re.compile(rf"^(async +)?[acdefls]{{2,6}} +{name}\b", re.MULTILINE)
    last = -1
    for number, text in enumerate(shell.user_ns["In"]):
        if defines.search(text):
            last = number
    return last


def _numbers_of_cells(answer: Any, shell: Any) -> list[int]:
    """The numbers of the cells that have defined a function, or the functions of a class."""
    compiler = getattr(shell, "compile", None)
    number_by_file = getattr(compiler, "_filename_map", {})
    functions = (answer,)
    if isinstance(answer, type):
        functions = vars(answer).values()
    numbers = []
    for function in functions:
        if isinstance(function, FunctionType):
            file = function.__code__.co_filename
            number = number_by_file.get(file)
            if number is not None:
                numbers.append(number)
    return numbers
