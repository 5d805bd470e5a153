"""Dumps in the forms in which torch has written them since 2.5.

Sources: the headers in the wheels of torch 2.5.1 (`NCCLUtils.hpp`), 2.6.0 and 2.7.1
(`FlightRecorder.hpp`), 2.8.0, 2.9.1 and 2.10.0 (`FlightRecorder.hpp`, `FlightRecorderDetail.hpp`),
all below `torch/include/torch/csrc/distributed/c10d/`; of versions before 2.8, what fills the
fields is in `FlightRecorder.cpp` of the repository. What they say:

| torch | `version` | who writes | fields of its own |
| --- | --- | --- | --- |
| 2.5, 2.6, 2.7 | 2.4 | NCCL | |
| 2.8 | 2.9 | NCCL and gloo | `nccl_version`; `thread_name` and `thread_id` of an entry |
| 2.9, 2.10 | 2.10 | NCCL and gloo | `comm_lib_version` instead; threads as in 2.8 |

JSON, by the handler of the worker's control plane, and pickles differ in each version alike: as
JSON, numbers in `pg_status` are texts, times that are not known are 0, there are no frames, and
without entries there's no key `entries`.
"""

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

Dump = dict[str, Any]
FRAMES = [
    {"name": "all_reduce", "filename": "/x/torch/distributed/distributed_c10d.py", "line": 2806},
    {"name": "train", "filename": "/x/train.py", "line": 7},
]


def _with_all_fields(dump: Dump) -> Dump:
    """What all versions have in an entry."""
    dump = copy.deepcopy(dump)
    for number, entry in enumerate(dump["entries"]):
        over = entry["state"] == "completed"
        entry["record_id"] = number
        entry["output_sizes"] = entry["input_sizes"]
        entry["output_dtypes"] = entry["input_dtypes"]
        entry["time_discovered_started_ns"] = None
        entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 10**6 if over else None
    return dump


def by_2_5(dump: Dump) -> bytes:
    """Torch 2.5, 2.6 and 2.7."""
    dump = _with_all_fields(dump) | {"version": "2.4"}
    return pickle.dumps(dump, protocol=2)


def by_2_5_with_frames(dump: Dump) -> bytes:
    """The same, with the lines that made the calls."""
    dump = _with_all_fields(dump) | {"version": "2.4"}
    for entry in dump["entries"]:
        entry["frames"] = FRAMES
    return pickle.dumps(dump, protocol=2)


def by_2_5_as_json(dump: Dump) -> bytes:
    """Torch 2.5, 2.6 and 2.7, asked for JSON."""
    return _as_json(_with_all_fields(dump) | {"version": "2.4"})


def by_2_8(dump: Dump) -> bytes:
    """Torch 2.8: threads, and the version of NCCL."""
    dump = _with_threads(_with_all_fields(dump))
    dump |= {"version": "2.9", "nccl_version": "2.27.3"}
    return pickle.dumps(dump, protocol=2)


def by_2_9(dump: Dump) -> bytes:
    """Torch 2.9 and 2.10: the version of the library, whatever it is."""
    dump = _with_threads(_with_all_fields(dump))
    dump |= {"version": "2.10", "comm_lib_version": "2.27.5"}
    return pickle.dumps(dump, protocol=2)


def by_2_9_as_json(dump: Dump) -> bytes:
    """Torch 2.9 and 2.10, asked for JSON."""
    dump = _with_threads(_with_all_fields(dump))
    return _as_json(dump | {"version": "2.10", "comm_lib_version": "2.27.5"})


def after_the_timeout(dump: Dump) -> bytes:
    """Torch 2.9, when the watchdog has given up: it retires calls that aren't over."""
    dump = _with_threads(_with_all_fields(dump)) | {"version": "2.10"}
    for entry in dump["entries"]:
        entry["retired"] = True
    return pickle.dumps(dump, protocol=2)


def _with_threads(dump: Dump) -> Dump:
    for entry in dump["entries"]:
        entry |= {"thread_name": "python3", "thread_id": "23456244340032"}
    return dump


def _as_json(dump: Dump) -> bytes:
    for values in dump["pg_status"].values():
        for key, number in values.items():
            values[key] = str(number)
    for entry in dump["entries"]:
        entry["time_discovered_started_ns"] = 0
        entry["time_discovered_completed_ns"] = entry["time_discovered_completed_ns"] or 0
    if not dump["entries"]:
        del dump["entries"]
    return json.dumps(dump).encode()


FORMS: dict[str, Callable[[Dump], bytes]] = {
    "2.5 to 2.7": by_2_5,
    "2.5 to 2.7 with frames": by_2_5_with_frames,
    "2.5 to 2.7 as JSON": by_2_5_as_json,
    "2.8": by_2_8,
    "2.9 on": by_2_9,
    "2.9 on as JSON": by_2_9_as_json,
    "after the timeout": after_the_timeout,
}


def write(dumps: dict[int, Dump], form: str, folder: Path) -> None:
    """Leave dumps in a folder, under the names that torch gives them unless it is told others."""
    for rank, dump in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_bytes(FORMS[form](dump))
