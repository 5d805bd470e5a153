"""What CUDA's driver says of this machine's GPUs, asked in a process of its own.

If a kernel asked the driver itself, it would start CUDA, and then no rank could use CUDA any more.
NVML can be asked without harm, but it counts GPUs that the driver refuses, and no MIG slices.
"""

import ctypes
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

_SUCCESS, _NO_DEVICE = 0, 100  # of the driver API's CUresult
_PATIENCE_S = 60  # a machine with eight GPUs takes some seconds


@dataclass(frozen=True)
class Gpus:
    """The GPUs that CUDA leaves to this process."""

    names: tuple[str, ...] = ()  # by number
    refusal: str = ""  # why it can use none, if one is there


def usable_gpus() -> Gpus:
    """Those that torch can use, or why it cannot; this process stays without CUDA."""
    import torch  # here, since the process that asks the driver does without

    from course_utils.launcher.language import _  # likewise: that process may not find it

    if torch.version.cuda is None:
        return Gpus()
    names, version, refusal = _driver_answer(os.environ.get("CUDA_VISIBLE_DEVICES"))
    knows = version // 1000
    built_for = int(torch.version.cuda.split(".")[0])
    if names and knows < built_for:
        refusal = _(
            "its driver knows CUDA {knows}, this torch needs CUDA {built_for}: update it",
            knows=knows,
            built_for=built_for,
        )
    return Gpus((), refusal) if refusal else Gpus(tuple(names))


@functools.cache
def _driver_answer(visible: str | None) -> tuple[list[str], int, str]:
    """Names, CUDA's version times 1,000, refusal; asked once in a kernel for each `visible`."""
    from course_utils.launcher.language import _

    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__], capture_output=True, text=True, timeout=_PATIENCE_S
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return [], 0, _("its driver gave no answer within {seconds} seconds", seconds=_PATIENCE_S)
    except (OSError, ValueError):  # the process could not start, or died on its way
        return [], 0, _("its driver crashed when it was asked")


def _ask() -> tuple[list[str], int, str]:
    """Start the driver in this process, and ask it; without a driver there is nothing to tell."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], 0, ""
    status = cuda.cuInit(0)
    if status not in (_SUCCESS, _NO_DEVICE):
        word = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(word))
        reason = (word.value or b"unknown error").decode()
        return [], 0, f"{reason} (CUDA error {status})"
    names = _names(cuda) if status == _SUCCESS else []
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return names, version.value, ""


def _names(cuda: ctypes.CDLL) -> list[str]:
    """The names of all GPUs, by number."""
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return []
    names = []
    for number in range(count.value):
        device = ctypes.c_int()
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), number)
        cuda.cuDeviceGetName(name, len(name), device)
        names.append(name.value.decode(errors="replace"))
    return names


if __name__ == "__main__":
    print(json.dumps(_ask()))
