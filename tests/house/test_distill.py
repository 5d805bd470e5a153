"""What the recordings are made from: a small trace, and the originals where they are at hand."""

import gzip
from pathlib import Path

import pytest

from course_material.recordings import Row, recording
from course_tools.material import distill

ORIGINALS = Path(__file__).resolve().parents[3] / "shared/data/nccl"
needs_originals = pytest.mark.skipif(
    not all((ORIGINALS / f"{name}.json.gz").is_file() for name, _ in distill.STEPS.values()),
    reason="the three original traces are not in ../shared/data/nccl",
)


def event(cat, name, ts, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def trace(*events):
    """Two steps of 100 µs, in the second of which the events are."""
    steps = [event("user_annotation", f"ProfilerStep#{k}", 1000 + 100 * k, 100) for k in (0, 1)]
    return sorted([*steps, *events], key=lambda e: (e["ts"], -e["dur"]))


def launched(name, ts, tid=1, **args):
    """A kernel on stream 7, and its launch 5 µs earlier."""
    call = event("cuda_runtime", "cudaLaunchKernel", ts - 5, 2, tid, correlation=ts)
    return call, event("kernel", name, ts, 20, 0, correlation=ts, stream=7, **args)


def kept(*events):
    return [row for row in distill.rows(trace(*events), slice(1, 2)) if row.kind != "step"]


def test_a_launch_and_its_kernel_share_a_number_and_names_lose_their_arguments():
    assert kept(*launched("void at::add<float>(int)", 1150)) == [
        Row("launch", "cudaLaunchKernel", "main thread", 45, 2, 0, 1),
        Row("compute", "at::add", "stream 7", 50, 20, 0, 1),
    ]


def test_other_steps_other_calls_of_cuda_and_idle_threads_are_left_out():
    early, idle = launched("gemm", 1050), event("cpu_op", "aten::view", 1110, 1, tid=9)
    quick = event("cuda_runtime", "cudaEventQuery", 1120, 1)
    assert kept(*early, idle, quick) == []


def test_operators_and_calls_that_wait_are_kept_on_the_thread_that_makes_them():
    backward = launched("gemm", 1130, tid=2)
    calls = [event("cuda_runtime", "cudaStreamSynchronize", 1110 + t, 1, tid=t) for t in (1, 2)]
    rows = kept(*backward, *launched("gemm", 1170), *calls)
    waits = [row.lane for row in rows if row.kind == "host"]
    assert waits == ["main thread", "autograd thread"]


@pytest.mark.parametrize(
    ("before", "said", "wanted"),
    [
        ([], {"In msg nelems": 6, "dtype": "Float"}, 24),
        ([("nccl:all_reduce", {"Input Dims": [[3, 5]], "Input type": ["long"]})], {}, 120),
        ([("nccl:all_reduce", {"Input Dims": [[2], [4]], "Input type": ["int", "float"]})], {}, 24),
        ([], {}, 0),
    ],
)
def test_bytes_are_what_the_kernel_says_or_the_call(before, said, wanted):
    calls = [event("user_annotation", name, 1140, 8, **args) for name, args in before]
    *_, talk = kept(*calls, *launched("ncclKernel_AllReduce(x)", 1150, **said))
    assert (talk.kind, talk.name, talk.bytes) == ("collective", "ncclKernel_AllReduce", wanted)


@pytest.mark.parametrize(("cloned_at", "wanted"), [(1105, 4096), (1120, 0)])
def test_where_no_size_was_recorded_it_is_what_the_last_clone_copied(cloned_at, wanted):
    clone = event("cpu_op", "aten::clone", cloned_at, 15)
    copy = event("cuda_runtime", "cudaMemcpyAsync", 1110, 2, correlation=1)
    moved = event("gpu_memcpy", "Memcpy DtoD", 1113, 2, 0, correlation=1, stream=7, bytes=4096)
    *_, talk = kept(clone, copy, moved, *launched("ncclKernel_AllReduce(x)", 1150))
    assert talk.bytes == wanted


@pytest.mark.slow
@needs_originals
@pytest.mark.parametrize("name", distill.STEPS)
def test_the_recordings_are_what_the_originals_give(name):
    original, steps = distill.STEPS[name]
    path = distill.INTO / f"{name}.json.gz"
    rows = list(distill.rows(distill.read(ORIGINALS / f"{original}.json.gz"), steps))
    made, there = (gzip.decompress(one) for one in (distill.packed(rows), path.read_bytes()))
    assert made == there  # the header says which Python has written it
    assert len(recording(name)) == len(rows)
