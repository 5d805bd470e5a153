"""Makes the recordings of course_material/recordings from the traces that they are distilled from.

    python -m course_tools.material.distill FOLDER    with the three original traces, *.json.gz

A trace of the PyTorch profiler has an event for each operator, CUDA call, kernel and copy. What is
kept of an event is a `Row`; what is left out are CUDA calls that neither launch nor wait, and steps
beyond those in `STEPS`. All that is computed from the result is so from these events alone.
"""

import argparse
import gzip
import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from course_material.recordings import KINDS, Row
from course_tools import ROOT

Event = dict[str, Any]
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


def read(path: Path) -> list[Event]:
    """Returns the events of a trace that last, in the order of their starts, outer before inner."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    lasting = [event for event in events if event.get("ph") == "X"]
    return sorted(lasting, key=lambda event: (event["ts"], -event["dur"]))


def rows(events: list[Event], kept: slice) -> Iterator[Row]:
    """Yields the rows of a trace, for those of its steps that are kept."""
    all_steps = [event for event in events if event["name"].startswith("ProfilerStep")]
    steps = all_steps[kept]
    begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    calls = []
    for event in events:
        if begin <= event["ts"] < end and event["cat"].startswith(ON_THE_HOST):
            calls.append(event)
    launched = {}  # by correlation, which a call and what it launches share
    for event in events:
        if event["cat"] in DEVICE:
            launched[event["args"]["correlation"]] = event
    bytes_moved = sizes(calls, launched)
    main_thread = steps[0]["tid"]
    launching_threads = set()
    for call in calls:
        if call["args"].get("correlation") in launched:
            launching_threads.add(call["tid"])

    def row(kind: str, name: str, event: Event, lane: str, count: int = 0, launch: int = 0) -> Row:
        start_us, duration_us = round(event["ts"] - begin, 1), round(event["dur"], 1)
        return Row(kind, name.strip(), lane, start_us, duration_us, count, launch)

    number = 0
    for call in calls:
        if call["tid"] not in launching_threads:
            continue
        lane = "main thread" if call["tid"] == main_thread else "autograd thread"
        name = short(call["name"])
        work = launched.get(call["args"].get("correlation"))
        if call in steps:
            yield row("step", "step", call, lane)
        elif work:
            number += 1
            is_collective = work["name"].startswith("nccl")
            kind = "collective" if is_collective else DEVICE[work["cat"]]
            args = work["args"]
            count = bytes_moved.get(args["correlation"], args.get("bytes", 0))
            stream = f"stream {args['stream']}"
            yield row("launch", name, call, lane, launch=number)
            yield row(kind, short(work["name"]), work, stream, count, number)
        elif call["cat"] != "cuda_runtime" or any(wait in call["name"] for wait in WAITS):
            collective = call["args"].get("Collective name", "")
            yield row("host", f"{name} {collective}", call, lane)


def short(name: str) -> str:
    """Returns a name without C++'s arguments and template parameters."""
    return name.removeprefix("void ").split("<")[0].split("(")[0] or name


def sizes(calls: list[Event], launched: dict[int, Event]) -> dict[int, int]:
    """Returns the bytes of each NCCL kernel, by its correlation.

    As the kernel itself says; or from the shapes of the call that launched it; or, where no shapes
    were recorded, the bytes that the last clone copied: there each gradient is cloned, and the
    clone is reduced. A clone that a kernel made instead of a copy has no size: 0.
    """
    bytes_of_kernel, bytes_of_call, bytes_copied = {}, {}, {}  # the last two by thread
    for call in calls:
        args, thread = call["args"], call["tid"]
        work = launched.get(args.get("correlation"))
        if call["name"].startswith("nccl:"):
            bytes_of_call[thread] = _bytes_of_inputs(args)
        elif work and work["name"].startswith("nccl"):
            kernel = work["args"]
            if "dtype" in kernel:
                size = kernel["In msg nelems"] * dtype_bytes(kernel["dtype"])
            elif bytes_of_call.get(thread) is not None:
                size = bytes_of_call[thread]
            else:
                size = bytes_copied.pop(thread, 0)
            bytes_of_kernel[kernel["correlation"]] = size
        elif call["name"] == "aten::clone":
            bytes_copied.pop(thread, None)
        elif work and "DtoD" in work["name"]:
            bytes_copied[thread] = work["args"]["bytes"]
    return bytes_of_kernel


def _bytes_of_inputs(args: dict[str, Any]) -> int | None:
    """All that a call's inputs hold, or None if no shapes were recorded."""
    inputs = list(zip(args.get("Input Dims", []), args.get("Input type", []), strict=True))
    if not inputs:
        return None
    return sum(math.prod(shape) * ITEM_BYTES[kind] for shape, kind in inputs)


def dtype_bytes(name: str) -> int:
    """Returns the bytes of a number, by the profiler's name of its type."""
    return ITEM_BYTES[name.lower()]


def packed(rows_to_pack: Iterable[Row]) -> bytes:
    """Returns rows as the compressed columns that `recording` reads."""
    in_order = sorted(rows_to_pack, key=lambda row: row.start_us)
    names, lanes = _distinct(row.name for row in in_order), _distinct(row.lane for row in in_order)
    starts = [round(row.start_us * 10) for row in in_order]  # in tenths of a microsecond
    columns = {
        "words": [
            [list(KINDS), [KINDS.index(row.kind) for row in in_order]],
            [names, [names.index(row.name) for row in in_order]],
            [lanes, [lanes.index(row.lane) for row in in_order]],
        ],
        "after": [start - before for before, start in pairwise([0, *starts])],
        "took": [round(row.us * 10) for row in in_order],
        "bytes": [row.bytes for row in in_order],
        "launch": [row.launch for row in in_order],
    }
    return gzip.compress(json.dumps(columns, separators=(",", ":")).encode(), mtime=0)


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the three original traces are")
    folder = parser.parse_args(argv).folder
    for name, (original, kept) in STEPS.items():
        kept_rows = list(rows(read(folder / f"{original}.json.gz"), kept))
        path = INTO / f"{name}.json.gz"
        path.write_bytes(packed(kept_rows))
        print(f"{path.name}: {len(kept_rows):,} rows, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
