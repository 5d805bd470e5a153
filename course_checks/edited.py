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
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    answer = inspect.unwrap(fn)
    numbers = _numbers_of_cells(answer, shell)
    name = getattr(answer, "__name__", "")
    if not numbers or inspect.unwrap(shell.user_ns.get(name)) is not answer:
        return ""
    last = max(numbers)
    defines = re.compile(rf"^(async +)?[acdefls]{{2,6}} +{name}\b", re.MULTILINE)  # or nearly so
    later = []
    for number, text in enumerate(shell.user_ns["In"]):
        if number > last and defines.search(text):
            later.append(number)
    if not later:
        return ""
    return _(
        "Cell [{later}] should have defined {name} and failed: what would be checked is still that "
        "of cell [{last}]. Run your cell again until it ends without an error.",
        later=later[-1],
        name=name,
        last=last,
    )


def _numbers_of_cells(answer: Any, shell: Any) -> list[int]:
    """The numbers of the cells that have defined a function, or the functions of a class."""
    compiler = getattr(shell, "compile", None)
    number_by_file = getattr(compiler, "_filename_map", {})
    functions = vars(answer).values() if isinstance(answer, type) else (answer,)
    numbers = []
    for function in functions:
        if isinstance(function, FunctionType):
            number = number_by_file.get(function.__code__.co_filename)
            if number is not None:
                numbers.append(number)
    return numbers
