"""The answers of tests/lessons/wrong: what a learner writes in a lesson, and how it is checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import labs

FOLDER = labs.ROOT / "tests/lessons/wrong"


def as_it_is(answer: Callable) -> Callable:
    """An answer that is checked by itself."""
    return answer


class Exercise(NamedTuple):
    """How the answer to an exercise is checked.

    Attributes:
        judged_by: the options of `check`, or a function that makes them, where that takes launches:
            each process of the tests reads these files, and few run the exercises.
        adapt: makes of an answer what is checked, such as a training with it.
        stub: what the lesson hands out, where a test asks what is said of it.
    """

    judged_by: dict[str, Any] | Callable[[], dict[str, Any]]
    adapt: Callable[[Any], Callable] = as_it_is
    stub: Any = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of `check`."""
        if callable(self.judged_by):
            return self.judged_by()
        return self.judged_by


class Answers:
    """What a file in the folder defines.

    Attributes:
        exercises: by name.
        wrong: by the exercise's name, answers that are to be rejected.
        right: likewise, answers that are to be accepted; the first is in the lesson's own style.
        stops: names of wrong answers that crash or hang.
        names: all that the file defines.
    """

    def __init__(self, path: Path) -> None:
        self.names: dict[str, Any] = {"__name__": path.stem}
        labs.run(path.read_text(encoding="utf-8"), str(path), self.names)
        self.exercises: dict[str, Exercise] = self.names["EXERCISES"]
        self.wrong: dict[str, list] = self.names["WRONG"]
        self.right: dict[str, list] = self.names["RIGHT"]
        self.stops: set[str] = self.names["STOPS"]


def answers_of(chapter: str) -> Answers:
    """The answers to a chapter's exercises; the chapter by its number, such as "05"."""
    (path,) = FOLDER.glob(f"{chapter}_*.py")
    return Answers(path)
