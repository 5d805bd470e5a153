"""Of a learner's answer, what chapters draw: what ranks return, or a line that says why not."""

from collections.abc import Callable

from course_utils import WorkerError
from course_utils.launcher.deadlines import slowness
from course_utils.launcher.launch import launch as launch_quietly

_DRAWING_S = 20.0  # on a quiet machine, for what is drawn; an answer that hangs ends then


def answers_to_draw(worker: Callable, world_size: int) -> list | None:
    """What the ranks return; None, below a line that says why, if an answer raises or hangs."""
    try:
        return launch_quietly(
            worker, world_size=world_size, backend="gloo", timeout=_DRAWING_S * slowness()
        )
    except WorkerError as error:
        print("No picture yet:", error.failures[0].headline if error.failures else error)
        return None


def reason_of(error: WorkerError) -> str:
    """The first failure's headline; of ranks that hang, what the report says last, which is why."""
    return error.failures[0].headline if error.failures else error.parts[-1]
