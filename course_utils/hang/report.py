"""The report of a hang comes into a launch."""

from collections.abc import Mapping

from course_utils.hang import aborts, hangs
from course_utils.launcher.errors import WorkerError, WorkerTimeout
from course_utils.launcher.listener import Listener
from course_utils.launcher.stacks import Frame
from course_utils.record.record import Record


class HangReport(Listener):
    """Says why ranks hang, from their stacks and what is recorded of their calls."""

    def __init__(self, record: Record) -> None:
        self.record = record

    def explain(self, ranks: Mapping[int, list[Frame] | None], error: WorkerError) -> None:
        """Put better parts into an error."""
        logs = self.record.logs()
        if not isinstance(error, WorkerTimeout):
            aborted = error.failures and error.failures[0].headline.endswith("SIGABRT")
            if aborted and (told := aborts.reason(error.rank, logs, error.output)):
                error.parts[1] = told
            return
        done = {rank for rank, frames in ranks.items() if frames is None}
        frames = {rank: frames for rank, frames in ranks.items() if frames is not None}
        told = hangs.worker_timeout(error.seconds, frames, done, error.output, logs, error.when)
        error.parts, error.pattern = told.parts, told.pattern
        error.waiting, error.absent = told.waiting, told.absent
