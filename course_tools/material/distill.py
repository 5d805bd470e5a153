"""Makes the recordings of course_material/recordings from the traces that they are distilled from.

    python -m course_tools.material.distill FOLDER    with the three original traces, *.json.gz

A trace of the PyTorch profiler has an event for each operator, CUDA call, kernel and copy. What is
kept of an event is a `Row`; what is left out are CUDA calls that neither launch nor wait, and steps
beyond those in `STEPS`. All that is computed from the result is so from these events alone.
"""

import gzip
import json
import math
import operator
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from course_material.recordings import KINDS, Row
from course_tools import ROOT
from course_tools.commands import parser_of

Args = dict[str, Any]  # what an event says beside its name and its times
Event = dict[str, Any]
Events = list[Event]
Launched = dict[int, Event]  # work of a device, by the number that it shares with its launch
Sizes = dict[int, int]  # bytes, by such a number or by thread
INTO = ROOT / "course_material/recordings"
# By name: the original, and which of its steps are kept, so that all three stay below 300 KB.
STEPS = {
    "resnet50_2xA100": ("resnet50_ddp_2xA100_rank0", slice(0, 3)),
    "per_gradient_2xV100": ("per_gradient_2xV100_rank1", slice(2, 3)),
    "recommender_8xA100": ("recommender_8xA100_rank3", slice(1, 3)),
}
ON_THE_HOST = ("cpu", "cuda", "user")  # beginnings of the categories of calls and annotations
DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
WAITS = ("cudaStreamWaitEvent", "Synchronize")  # beside launches, the CUDA calls that are kept
ITEM_BYTES = {"float": 4, "int": 4, "long": 8, "long int": 8, "double": 8}
END_OF_NAME = re.compile(r"[<(]")  # of a C++ function's, before its parameters and arguments


def read(path: Path) -> Events:
    """Returns the events of a trace that last, in the order of their starts, outer before inner."""
    compressed = path.read_bytes()
    text = gzip.decompress(compressed)
    trace = json.loads(text)
    events = trace["traceEvents"]
    lasting = []
    for event in events:
        phase = event.get("ph")
        if phase == "X":
            lasting.append(event)

    def outer_before_inner(event: Event) -> tuple[float, float]:
        start_us = event["ts"]
        duration_us = event["dur"]
        return start_us, -duration_us

    return sorted(lasting, key=outer_before_inner)


def rows(events: Events, kept: slice) -> Iterator[Row]:
    """Yields the rows of a trace, for those of its steps that are kept."""
    all_steps = _steps(events)
    steps = all_steps[kept]
    first_step = steps[0]
    last_step = steps[-1]
    begin_us = first_step["ts"]
    last_begin_us = last_step["ts"]
    last_duration_us = last_step["dur"]
    end_us = last_begin_us + last_duration_us
    calls = _calls_between(events, begin_us, end_us)
    launched = _by_correlation(events)
    launching_threads = _threads_that_launch(calls, launched)
    bytes_moved = sizes(calls, launched)

    main_thread = first_step["tid"]
    number = 0
    for call in calls:
        thread = call["tid"]
        if thread not in launching_threads:
            continue
        lane = "autograd thread"
        if thread == main_thread:
            lane = "main thread"
        work = _launched_by(call, launched)
        full_name = call["name"]
        name = short(full_name)
        if call in steps:
            yield _row("step", "step", call, lane, begin_us)
        elif work:
            number += 1
            row = _row("launch", name, call, lane, begin_us)
            yield row._replace(launch=number)
            row = _row_of_work(work, bytes_moved, begin_us)
            yield row._replace(launch=number)
        elif _is_kept_on_the_host(call):
            args = call["args"]
            collective = args.get("Collective name", "")
            name_with_collective = f"{name} {collective}"
            yield _row("host", name_with_collective, call, lane, begin_us)


def _steps(events: Events) -> Events:
    """The annotations that the profiler makes, one for each step of the training."""
    steps = []
    for event in events:
        name = event["name"]
        if name.startswith("ProfilerStep"):
            steps.append(event)
    return steps


def _row(kind: str, name: str, event: Event, lane: str, begin_us: float) -> Row:
    """An event's row, as if it moved no bytes and had nothing to do with a launch."""
    event_us = event["ts"]
    since_begin_us = event_us - begin_us
    start_us = round(since_begin_us, 1)
    exact_duration_us = event["dur"]
    duration_us = round(exact_duration_us, 1)
    stripped = name.strip()
    return Row(kind, stripped, lane, start_us, duration_us, bytes=0, launch=0)


def _row_of_work(work: Event, bytes_moved: Sizes, begin_us: float) -> Row:
    """The row of what a device does, without the number of its launch."""
    args = work["args"]
    correlation = args["correlation"]
    stream = args["stream"]
    kind = _kind(work)
    full_name = work["name"]
    name = short(full_name)
    lane = f"stream {stream}"
    row = _row(kind, name, work, lane, begin_us)
    bytes_copied = args.get("bytes", 0)
    count = bytes_moved.get(correlation, bytes_copied)
    return row._replace(bytes=count)


def _calls_between(events: Events, begin_us: float, end_us: float) -> Events:
    """The calls and annotations of the host that begin in these steps."""
    calls = []
    for event in events:
        start_us = event["ts"]
        if not begin_us <= start_us < end_us:
            continue
        category = event["cat"]
        if category.startswith(ON_THE_HOST):
            calls.append(event)
    return calls


def _by_correlation(events: Events) -> Launched:
    """What a device does, by the number that it shares with the call that launches it."""
    launched = {}
    for event in events:
        category = event["cat"]
        if category in DEVICE:
            args = event["args"]
            correlation = args["correlation"]
            launched[correlation] = event
    return launched


def _launched_by(call: Event, launched: Launched) -> Event | None:
    """What a call has launched, if anything."""
    args = call["args"]
    correlation = args.get("correlation")
    return launched.get(correlation)


def _threads_that_launch(calls: Events, launched: Launched) -> set[int]:
    """The threads of which a call has launched something."""
    threads = set()
    for call in calls:
        work = _launched_by(call, launched)
        if work:
            thread = call["tid"]
            threads.add(thread)
    return threads


def _kind(work: Event) -> str:
    """What a device does: an NCCL kernel is a collective, and a copy or a kernel is called so."""
    name = work["name"]
    if name.startswith("nccl"):
        return "collective"
    category = work["cat"]
    return DEVICE[category]


def _is_kept_on_the_host(call: Event) -> bool:
    """Whether a call that launches nothing is kept: an operator, or a call of CUDA that waits."""
    category = call["cat"]
    if category != "cuda_runtime":
        return True
    name = call["name"]
    return any(wait in name for wait in WAITS)


def short(name: str) -> str:
    """Returns a name without C++'s arguments and template parameters."""
    without_type = name.removeprefix("void ")
    shortened, *_ = END_OF_NAME.split(without_type)
    return shortened or name


def sizes(calls: Events, launched: Launched) -> Sizes:
    """Returns the bytes of each NCCL kernel, by its correlation.

    As the kernel itself says; or from the shapes of the call that launched it; or, where no shapes
    were recorded, the bytes that the last clone copied: there each gradient is cloned, and the
    clone is reduced. A clone that a kernel made instead of a copy has no size: 0.
    """
    bytes_of_kernel: Sizes = {}
    bytes_of_call: dict[int, int | None] = {}  # by thread
    bytes_copied: Sizes = {}  # by thread
    for call in calls:
        thread = call["tid"]
        name = call["name"]
        work = _launched_by(call, launched)
        name_of_work = ""
        if work:
            name_of_work = work["name"]
        if name.startswith("nccl:"):
            args = call["args"]
            bytes_of_call[thread] = _bytes_of_inputs(args)
        elif name_of_work.startswith("nccl"):
            kernel = work["args"]
            size = _bytes_that_kernel_says(kernel)
            if size is None:
                size = bytes_of_call.get(thread)
            if size is None:
                size = bytes_copied.pop(thread, 0)
            correlation = kernel["correlation"]
            bytes_of_kernel[correlation] = size
        elif name == "aten::clone":
            bytes_copied.pop(thread, None)
        elif "DtoD" in name_of_work:
            args = work["args"]
            bytes_copied[thread] = args["bytes"]
    return bytes_of_kernel


def _bytes_that_kernel_says(kernel: Args) -> int | None:
    """What an NCCL kernel brings, or None if the profiler did not note it."""
    if "dtype" not in kernel:
        return None
    dtype = kernel["dtype"]
    type_name = dtype.lower()
    item_bytes = ITEM_BYTES[type_name]
    count = kernel["In msg nelems"]
    return count * item_bytes


def _bytes_of_inputs(args: Args) -> int | None:
    """All that a call's inputs hold, or None if no shapes were recorded."""
    shapes = args.get("Input Dims", [])
    types = args.get("Input type", [])
    if not shapes and not types:
        return None
    inputs = zip(shapes, types, strict=True)
    total = 0
    for shape, type_name in inputs:
        count = math.prod(shape)
        item_bytes = ITEM_BYTES[type_name]
        size = count * item_bytes
        total += size
    return total


def packed(rows_to_pack: Iterable[Row]) -> bytes:
    """Returns rows as the compressed columns that `recording` reads."""
    by_start = operator.attrgetter("start_us")
    in_order = sorted(rows_to_pack, key=by_start)
    columns = zip(*in_order, strict=True)
    kinds, names, lanes, starts_us, durations_us, sizes, launches = columns
    starts = list(map(_tenths, starts_us))
    all_but_last = starts[:-1]
    starts_before = [0, *all_but_last]
    after = list(map(operator.sub, starts, starts_before))
    took = list(map(_tenths, durations_us))
    different_names = _each_once(names)
    different_lanes = _each_once(lanes)
    words = [
        _numbered(kinds, KINDS),
        _numbered(names, different_names),
        _numbered(lanes, different_lanes),
    ]
    recording = {
        "words": words,
        "after": after,
        "took": took,
        "bytes": sizes,
        "launch": launches,
    }
    without_spaces = (",", ":")
    text = json.dumps(recording, separators=without_spaces)
    encoded = text.encode()
    return gzip.compress(encoded, mtime=0)


def _tenths(time_us: float) -> int:
    """A time in tenths of a microsecond, which are written shorter."""
    return round(time_us * 10)


def _each_once(column: Sequence[str]) -> tuple[str, ...]:
    """The different words of a column, in the order of their first rows."""
    each_once = dict.fromkeys(column)
    return tuple(each_once)


def _numbered(column: Sequence[str], words: Sequence[str]) -> tuple:
    """A column as these words, and the number of each row's word."""
    numbers = list(map(words.index, column))
    return words, numbers


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path, help="where the three original traces are")
    arguments = parser.parse_args(argv)
    for name, (original, kept) in STEPS.items():
        trace = arguments.folder / f"{original}.json.gz"
        write(name, trace, kept)
    return 0


def write(name: str, trace: Path, kept: slice) -> None:
    """Writes a recording, and says how large it is."""
    events = read(trace)
    kept_rows = list(rows(events, kept))
    recording = packed(kept_rows)
    file_name = f"{name}.json.gz"
    path = INTO / file_name
    path.write_bytes(recording)
    count = len(kept_rows)
    size = len(recording)
    print(f"{file_name}: {count:,} rows, {size:,} bytes")


if __name__ == "__main__":
    sys.exit(main())
