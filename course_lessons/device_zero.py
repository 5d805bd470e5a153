"""What `DataParallel` keeps on which device, and how long its phases take on GPUs (chapter 01).

Without GPUs, devices are entries of a list; the tensors that are counted on them are real.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.figure import Figure
from torch import nn
from torch.nn import parallel
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DataParallel, DistributedDataParallel

from course_lessons.twins import replica_of
from course_material.recordings import recording

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # of Okabe and Ito, a device each
_SHOWN_US = (60_000, 80_000)  # of the recording: the first 20 ms of a step


def bytes_by_device(loss_in_replica: bool, devices: int = 4) -> tuple[list[int], int]:
    """Count the bytes of logits, of the loss and of what the loss keeps for backward.

    Each device has 64 samples and 10,000 classes. The loss is computed of all logits, gathered on
    device 0, or in each replica, so that only the losses are gathered.

    Returns:
        The bytes of each device, and those that were gathered.
    """
    held: list[dict[int, int]] = [{} for _ in range(devices)]  # by address, each tensor once
    head = nn.Linear(16, 10_000)
    logits = [_note(held[i], head(torch.randn(64, 16))) for i in range(devices)]
    if loss_in_replica:
        losses = [_loss(held[i], logits[i]) for i in range(devices)]
        gathered = _note(held[0], torch.cat(losses))
        gathered.mean().backward()
    else:
        gathered = _note(held[0], torch.cat(logits))
        _loss(held[0], gathered).backward()
    return [sum(sizes.values()) for sizes in held], gathered.nbytes


def _note(held: dict[int, int], tensor: torch.Tensor) -> torch.Tensor:
    held[tensor.data_ptr()] = tensor.nbytes
    return tensor


def _loss(held: dict[int, int], logits: torch.Tensor) -> torch.Tensor:
    labels = torch.zeros(len(logits), dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(partial(_note, held), lambda tensor: tensor):
        return _note(held, cross_entropy(logits, labels).view(1))


def bytes_after_a_step(model: nn.Module) -> dict[str, int]:
    """Train a replica for one step with Adam.

    Returns:
        Bytes on device 0 by what they are; the last entry counts a replica's parameters.
    """
    replica = replica_of(model)
    width = next(model.parameters()).shape[1]
    replica(torch.randn(64, width)).square().mean().backward()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.step()
    parameters = list(model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    state = [tensor for kept in optimizer.state.values() for tensor in kept.values()]
    return {
        "parameters": _total(parameters),
        "gradients": _total(gradients),
        "Adam's state": _total(state),
        "parameters that Adam could step": len(list(replica.parameters())),
    }


def _total(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def bars(bytes_of: dict[str, Sequence[int]]) -> Figure:
    """The bytes of each device, a panel for each way."""
    figure, panels = plt.subplots(1, len(bytes_of), figsize=(8, 2.6), sharey=True)
    for axes, (name, sizes) in zip(panels, bytes_of.items(), strict=True):
        labels = [f"device {number}" for number in range(len(sizes))]
        drawn = axes.bar(labels, [size / 1e6 for size in sizes], color=COLOURS)
        axes.bar_label(drawn, fmt="%.1f", padding=2)
        axes.set_title(name, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="outputs and loss (MB)", ylim=(0, 27))
    return figure


def one_gpu_is_fed() -> Figure:
    """Print and draw 20 ms of a recorded training: launches of the host, kernels of one GPU."""
    first, last = _SHOWN_US
    rows = [row for row in recording("resnet50_2xA100") if first <= row.start_us < last]
    launches = [row for row in rows if row.kind == "launch"]
    kernels = [row for row in rows if row.kind == "compute"]
    begins = {row.launch: row.start_us for row in launches}
    lags_us = [kernel.start_us - begins[kernel.launch] for kernel in kernels]
    late = [begins[after.launch] > before.end_us for before, after in pairwise(kernels)]
    for name, lane in {"launches": launches, "kernels": kernels}.items():
        print(f"{len(lane)} {name} take {sum(row.us for row in lane) / 1000:.1f} of 20 ms")
    print(f"a kernel starts {statistics.median(lags_us):.0f} µs (median) after its launch began")
    print(f"{sum(late)} of {len(late)} launches began when the kernel before was done")
    figure, axes = plt.subplots(figsize=(8, 1.8))
    for place, (lane, colour) in enumerate([(launches, "#555555"), (kernels, COLOURS[2])]):
        spans = [(row.start_us / 1000, row.us / 1000) for row in lane]
        axes.broken_barh(spans, (place - 0.35, 0.7), color=colour)
    axes.set_yticks(range(2), ["host launches", "GPU computes"])
    axes.set(xlabel="time since the first step began (ms)", ylim=(1.6, -0.6))
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def timed_ms(call: Callable[[], Any], gpus: Sequence[int]) -> tuple[Any, float]:
    """Return what a call returns, and how long it and all that it queued on the GPUs took."""
    begun = time.perf_counter()
    returned = call()
    for gpu in gpus:
        torch.cuda.synchronize(gpu)
    return returned, 1000 * (time.perf_counter() - begun)


def phases_ms(model: nn.Module, batch: torch.Tensor, gpus: list[int]) -> dict[str, float]:
    """How long each phase of one step of `DataParallel` takes, by name."""
    ms = {}
    replicas, ms["replicate"] = timed_ms(lambda: parallel.replicate(model, gpus), gpus)
    shards, ms["scatter"] = timed_ms(lambda: parallel.scatter(batch, gpus), gpus)
    apply = partial(parallel.parallel_apply, replicas, shards, devices=gpus)
    outputs, ms["apply"] = timed_ms(apply, gpus)
    output, ms["gather"] = timed_ms(lambda: parallel.gather(outputs, 0), gpus)
    _, ms["backward"] = timed_ms(output.square().mean().backward, gpus)
    return ms


def step_ms_and_peak_mb(
    model: nn.Module, batch: torch.Tensor, gpus: list[int], steps: int = 20
) -> tuple[float, list[int]]:
    """The median time of a training step, and the most memory that each GPU held."""

    def step() -> None:
        model.zero_grad()
        model(batch).square().mean().backward()

    timed_ms(step, gpus)  # warm up
    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    step_ms = statistics.median(timed_ms(step, gpus)[1] for _ in range(steps))
    return step_ms, [round(torch.cuda.max_memory_allocated(gpu) / 1e6) for gpu in gpus]


def with_data_parallel(
    make_model: Callable[[int], nn.Module], samples: int = 256, width: int = 1024
) -> tuple[float, list[int], dict[str, float]]:
    """Measure `DataParallel` on all GPUs, from one process; so many samples for each GPU."""
    gpus = list(range(torch.cuda.device_count()))
    model = make_model(width).cuda()
    batch = torch.randn(samples * len(gpus), width, device="cuda")
    assert torch.allclose(DataParallel(model)(batch), model(batch), atol=1e-4)
    step_ms, peak_mb = step_ms_and_peak_mb(DataParallel(model), batch, gpus)
    return step_ms, peak_mb, phases_ms(model, batch, gpus)


def with_ddp(
    make_model: Callable[[int], nn.Module], samples: int = 256, width: int = 1024
) -> tuple[float, list[int]]:
    """Measure DDP with as many samples, on the GPU of this rank."""
    gpu = torch.cuda.current_device()
    model = DistributedDataParallel(make_model(width).cuda(), device_ids=[gpu])
    batch = torch.randn(samples, width, device="cuda")
    return step_ms_and_peak_mb(model, batch, [gpu])


def compared(
    alone: tuple[float, list[int], dict[str, float]], ranks: Sequence[tuple[float, list[int]]]
) -> str:
    """What `with_data_parallel` and `with_ddp` measured, in lines."""
    step_ms, peak_mb, phases = alone
    ddp_ms = max(rank_ms for rank_ms, _ in ranks)
    peaks_mb = [peak for _, [peak] in ranks]
    rounded = {name: round(ms, 2) for name, ms in phases.items()}
    return "\n".join(
        [
            f"DataParallel: {step_ms:.2f} ms per step, peak MB by GPU: {peak_mb}",
            f"  its phases, ms: {rounded}",
            f"DDP: {ddp_ms:.2f} ms per step, peak MB by GPU: {peaks_mb}",
        ]
    )
