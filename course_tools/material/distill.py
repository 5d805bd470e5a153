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
DEVICE = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}
WAITS = ("cudaStreamWaitEvent", "Synchronize")  # beside launches, the CUDA calls that are kept
ITEM_BYTES = {"float": 4, "int": 4, "long": 8, "long int": 8, "double": 8}


def read(path: Path) -> list[Event]:
    """Returns the events of a trace that last, in the order of their starts, outer before inner."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return sorted((e for e in events if e.get("ph") == "X"), key=lambda e: (e["ts"], -e["dur"]))


def rows(events: list[Event], kept: slice) -> Iterator[Row]:
    """Yields the rows of a trace, for those of its steps that are kept."""
    steps = [event for event in events if event["name"].startswith("ProfilerStep")][kept]
    begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    calls = [e for e in events if begin <= e["ts"] < end and e["cat"][:3] in ("cpu", "cud", "use")]
    launched = {event["args"]["correlation"]: event for event in events if event["cat"] in DEVICE}
    moved, main = sizes(calls, launched), steps[0]["tid"]
    threads = {e["tid"] for e in calls if e["args"].get("correlation") in launched}

    def row(kind: str, event: Event, lane: str, count: int = 0, launch: int = 0) -> Row:
        of = event["args"].get("Collective name", "") if kind == "host" else ""
        name = "step" if kind == "step" else f"{short(event['name'])} {of}".strip()
        times = round(event["ts"] - begin, 1), round(event["dur"], 1)
        return Row(kind, name, lane, *times, count, launch)

    number = 0
    for call in (call for call in calls if call["tid"] in threads):
        lane = "main thread" if call["tid"] == main else "autograd thread"
        if call in steps:
            yield row("step", call, lane)
        elif work := launched.get(call["args"].get("correlation")):
            number += 1
            kind = "collective" if work["name"].startswith("nccl") else DEVICE[work["cat"]]
            count = moved.get(work["args"]["correlation"], work["args"].get("bytes", 0))
            yield row("launch", call, lane, launch=number)
            yield row(kind, work, f"stream {work['args']['stream']}", count, number)
        elif call["cat"] != "cuda_runtime" or any(name in call["name"] for name in WAITS):
            yield row("host", call, lane)


def short(name: str) -> str:
    """Returns a name without C++'s arguments and template parameters."""
    return name.removeprefix("void ").split("<")[0].split("(")[0] or name


def sizes(calls: list[Event], launched: dict[int, Event]) -> dict[int, int]:
    """Returns the bytes of each NCCL kernel, by its correlation.

    As the kernel itself says; or from the shapes of the call that launched it; or, where no shapes
    were recorded, the bytes that the last clone copied: there each gradient is cloned, and the
    clone is reduced. A clone that a kernel made instead of a copy has no size: 0.
    """
    found, told, copied = {}, {}, {}
    for call in calls:
        args, thread = call["args"], call["tid"]
        work = launched.get(args.get("correlation"))
        if call["name"].startswith("nccl:"):
            told[thread] = [
                math.prod(shape) * ITEM_BYTES[kind]
                for shape, kind in zip(
                    args.get("Input Dims", []), args.get("Input type", []), strict=True
                )
            ]
        elif work and work["name"].startswith("nccl"):
            has = work["args"]
            own = [has["In msg nelems"] * dtype_bytes(has["dtype"])] if "dtype" in has else []
            found[has["correlation"]] = sum(own or told.get(thread) or [copied.pop(thread, 0)])
        elif call["name"] == "aten::clone":
            copied.pop(thread, None)
        elif work and "DtoD" in work["name"]:
            copied[thread] = work["args"]["bytes"]
    return found


def dtype_bytes(name: str) -> int:
    """Returns the bytes of a number, by the profiler's name of its type."""
    return ITEM_BYTES[name.lower()]


def packed(found: Iterable[Row]) -> bytes:
    """Returns rows as the compressed columns that `recording` reads."""
    found = sorted(found, key=lambda row: row.start_us)
    tenths = [round(row.start_us * 10) for row in found]
    tables = [list(KINDS), *(list(dict.fromkeys(row[i] for row in found)) for i in (1, 2))]
    columns = {
        "words": [[t, [t.index(row[i]) for row in found]] for i, t in enumerate(tables)],
        "after": [b - a for a, b in pairwise([0, *tenths])],
        "took": [round(row.us * 10) for row in found],
        "bytes": [row.bytes for row in found],
        "launch": [row.launch for row in found],
    }
    return gzip.compress(json.dumps(columns, separators=(",", ":")).encode(), mtime=0)


def main(argv: list[str] | None = None) -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where the three original traces are")
    folder = parser.parse_args(argv).folder
    for name, (original, kept) in STEPS.items():
        found = list(rows(read(folder / f"{original}.json.gz"), kept))
        path = INTO / f"{name}.json.gz"
        path.write_bytes(packed(found))
        print(f"{path.name}: {len(found):,} rows, {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
