"""What CUDA's driver says of this machine's GPUs, asked in a process of its own.

A kernel that asked it itself would start CUDA, and then no rank could use CUDA any more. NVML can
be asked without harm, but it counts GPUs that the driver refuses, and does not count MIG slices.
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
    """By number the names of the GPUs that CUDA leaves to this process."""

    names: tuple[str, ...] = ()
    refusal: str = ""  # why it can use none, where one is there


def usable_gpus() -> Gpus:
    """Those that torch can use, or why it cannot; this process stays without CUDA."""
    import torch  # the process that asks the driver does without

    if torch.version.cuda is None:
        return Gpus()
    names, version, refusal = _told(os.environ.get("CUDA_VISIBLE_DEVICES"))
    knows, built_for = version // 1000, int(torch.version.cuda.split(".")[0])
    if names and knows < built_for:
        refusal = f"its driver knows CUDA {knows}, this torch needs CUDA {built_for}: update it"
    return Gpus((), refusal) if refusal else Gpus(tuple(names))


@functools.cache
def _told(visible: str | None) -> tuple[list[str], int, str]:
    """Names, CUDA's version times 1,000 and a refusal, once for what is visible in a kernel."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", __file__], capture_output=True, text=True, timeout=_PATIENCE_S
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return [], 0, f"its driver gave no answer within {_PATIENCE_S} seconds"
    except (OSError, ValueError):  # the process could not start, or died on its way
        return [], 0, "its driver crashed when it was asked"


def _ask() -> tuple[list[str], int, str]:
    """Start the driver, here and now; where there is none there is nothing to tell."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return [], 0, ""
    number, word, name = ctypes.c_int(), ctypes.c_char_p(), ctypes.create_string_buffer(256)
    if (status := cuda.cuInit(0)) not in (_SUCCESS, _NO_DEVICE):
        cuda.cuGetErrorString(status, ctypes.byref(word))
        return [], 0, f"{(word.value or b'unknown error').decode()} (CUDA error {status})"
    names = []
    if status == _SUCCESS and cuda.cuDeviceGetCount(ctypes.byref(number)) == _SUCCESS:
        for index in range(number.value):
            device = ctypes.c_int()
            cuda.cuDeviceGet(ctypes.byref(device), index)
            cuda.cuDeviceGetName(name, len(name), device)
            names.append(name.value.decode(errors="replace"))
    cuda.cuDriverGetVersion(ctypes.byref(number))
    return names, number.value, ""


if __name__ == "__main__":
    print(json.dumps(_ask()))
