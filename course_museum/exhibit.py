"""What an exhibit of the museum consists of, and how real ranks judge a cure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from course_checks.check import check
from course_checks.outcome import Outcome

HANGS, LIES, DIES = "hangs", "lies", "dies"


@dataclass(frozen=True)
class Exhibit:
    """A bug of a public project, small enough to be read in a minute.

    Attributes:
        link: where the project's people speak of it.
        story: what they saw there, in a sentence or two.
        question: what to predict before the bug is run.
        answer: whether it hangs, lies (a wrong result, no error) or dies.
        symptom: words that real ranks print of it.
        bug, cure: functions of one rank, with the same arguments.
        spec: what each rank should return, found by one process. It has the arguments of `bug`,
            each as a list with one entry per rank, and returns such a list.
        inputs: `inputs(rank, world_size, case)` gives a rank's arguments.
        world_sizes: numbers of ranks on which a cure is tried.
    """

    link: str
    story: str
    question: str
    answer: str
    symptom: str
    bug: Callable[..., Any]
    cure: Callable[..., Any]
    spec: Callable[..., list]
    inputs: Callable[[int, int, Any], Any]
    world_sizes: Sequence[int] = (2, 3)

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `check` for an answer."""
        return {
            "spec": self.spec,
            "inputs": self.inputs,
            "world_sizes": self.world_sizes,
            "cases": ("first numbers", "other numbers"),
            "timeout": 5.0,
        }

    def judge(self, answer: Callable[..., Any]) -> Outcome:
        """Run an answer in real ranks, on fresh numbers; the outcome is true only if it cures."""
        return check(answer, **self.options)
