"""What chapter 03 shows its results with: traffic, a ring drawn step by step, tensors with gaps."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from course_lessons.drawing import reason_of
from course_utils import launch
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.launch import launch as launch_quietly
from course_utils.network.trace import Trace
from course_utils.pictures.steps import plot_steps

RANKS = 4
STEPS = 2 * (RANKS - 1)  # of a ring
IN_PLACE = ("broadcast", "all_reduce", "reduce")
WITH_LISTS = ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all")


def print_traffic(trace: Trace) -> None:
    """Print which collectives were recorded, and the bytes that each rank sends in two models."""
    print("recorded:", *dict.fromkeys(event.what for event in trace), sep="  ")
    for algorithm in ("direct", "ring"):
        sent_bytes = trace.traffic(algorithm).sent_bytes
        print(f"bytes that ranks 0 to 3 send, {algorithm:>6}:", *sent_bytes)


def draw_ring(step: Callable[[list[torch.Tensor], int], None]) -> None:
    """Run one step of a ring six times in four real ranks, and draw what they hold in between.

    A step that is wrong is drawn as well. One that raises or hangs is drawn as far as all four
    ranks came, below a line that says why it went no further.

    Args:
        step: Called with a rank's four chunks, each of shape (1,), and the number of steps done.
    """
    held = torch.zeros(RANKS, STEPS + 1, RANKS, dtype=torch.int64).share_memory_()
    steps_done = torch.zeros(RANKS, dtype=torch.int64).share_memory_()

    def worker() -> None:
        rank = dist.get_rank()
        chunks = list((10**rank * torch.arange(1, RANKS + 1)).split(1))
        held[rank, 0] = torch.cat(chunks)
        for done in range(STEPS):
            step(chunks, done)
            held[rank, done + 1] = torch.cat(chunks)
            steps_done[rank] = done + 1

    reason = ""
    try:  # a step with isend alone is one for gloo
        trace = launch(worker, world_size=RANKS, backend="gloo", trace=True, timeout=5).trace
    except WorkerError as error:
        trace, reason = error.trace, reason_of(error)
    finished = int(steps_done.min())
    if finished == 0:
        print("No picture yet:", reason)
        return
    if reason:
        print("It ends early:", reason)
    plot_steps(held[:, : finished + 1].tolist(), trace)
    print(_summary(held[:, finished].tolist()))


def _summary(last: list[list[int]]) -> str:
    """How many squares of the last grid hold what all of them should."""
    wanted = [sum(10**rank for rank in range(RANKS)) * number for number in range(1, RANKS + 1)]
    complete = 0
    for row in last:
        for value, sum_of_all in zip(row, wanted, strict=True):
            complete += value == sum_of_all
    return f"{complete} of {RANKS * RANKS} squares hold the sum of all four ranks."


def print_gaps() -> None:
    """Print which collectives of gloo are right for a tensor with gaps, handed in or received."""
    # Eight times, course_utils.launch would say at length what the table says in a word.
    table = launch_quietly(_verdicts, world_size=RANKS, backend="gloo")
    print(f"{'gaps in what is':16}{'handed in':>16}{'received':>16}")
    for name in (*IN_PLACE, *WITH_LISTS):
        verdicts = []
        for column in range(2):
            ranks_right = [rank_table[name][column] for rank_table in table]
            verdicts.append("right" if all(ranks_right) else "silently wrong")
        if name in IN_PLACE:
            verdicts[1] = "(the same)"
        print(f"{name:16}{verdicts[0]:>16}{verdicts[1]:>16}")


def _verdicts() -> dict[str, tuple[bool, bool]]:
    """In a rank: is each collective right with gaps in its input, and with gaps in its output?"""
    table = {}
    for name in (*IN_PLACE, *WITH_LISTS):
        wanted = _attempt(name, _without_gaps, _without_gaps)
        gaps_in_input = _attempt(name, _with_gaps, _without_gaps)
        gaps_in_output = _attempt(name, _without_gaps, _with_gaps)
        table[name] = (gaps_in_input == wanted, gaps_in_output == wanted)
    return table


def _without_gaps(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def _with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in every other place of a longer tensor."""
    return torch.stack([tensor, -tensor], dim=1).flatten()[::2]


def _attempt(name: str, make_input: Callable, make_output: Callable) -> list | None:
    """The numbers that this rank holds after a collective on tensors that were made like this."""
    rank, root = dist.get_rank(), 1
    tensor = make_input(torch.arange(4.0) + 100 * rank)
    tensors = [make_input(torch.arange(4.0) + 10 * part + 100 * rank) for part in range(RANKS)]
    output = make_output(torch.zeros(4))
    outputs = [make_output(torch.zeros(4)) for _ in range(RANKS)]
    if name == "broadcast":
        dist.broadcast(tensor, root)
        return tensor.tolist()
    if name == "all_reduce":
        dist.all_reduce(tensor)
        return tensor.tolist()
    if name == "reduce":
        dist.reduce(tensor, root)
        return tensor.tolist() if rank == root else None
    if name == "scatter":
        dist.scatter(output, tensors if rank == root else None, root)
        return output.tolist()
    if name == "gather":
        dist.gather(tensor, outputs if rank == root else None, root)
    elif name == "all_gather":
        dist.all_gather(outputs, tensor)
    elif name == "all_to_all":
        dist.all_to_all(outputs, tensors)
    else:
        dist.reduce_scatter(output, tensors)
        return output.tolist()
    return _lists(outputs)


def _lists(tensors: Sequence[torch.Tensor]) -> list[list[float]]:
    return [tensor.tolist() for tensor in tensors]
