"""Many launches: the thousandth costs what the first did, and kernels do not meet each other."""

import ast
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import pytest
from kernels import Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the census reads /proc")

MANY = """
seconds = []
for _ in range({}):
    started = time.perf_counter()
    assert launch(total) == [3.0, 3.0]
    seconds.append(time.perf_counter() - started)
[round(second, 4) for second in seconds]
"""
CROWD = """
def joins_itself():
    dist.init_process_group("gloo")
    return total()

for _ in range(3):
    assert launch(total, world_size=3) == [6.0, 6.0, 6.0]
    assert launch(joins_itself, backend=None) == [3.0, 3.0]
"fine"
"""
MB = 2**20


def launch_many(times: int) -> None:
    """Launch so often in one kernel; what the last ones cost beside the first is printed."""
    kernel = Kernel()
    kernel.run(MANY.format(33), within=60)  # pages are enlarged at the 64th rank
    before = kernel.census()
    first_half, first_growth = launch_and_measure(kernel, times // 2)
    second_half, second_growth = launch_and_measure(kernel, times - times // 2)
    left = kernel.left_since(before)
    kernel.close()
    some = min(100, times // 3)
    first, last = median(first_half[:some]), median(second_half[-some:])
    growths = f"{first_growth / MB:+.1f} and {second_growth / MB:+.1f} MB"
    print(f"{times} launches: {first * 1000:.1f} -> {last * 1000:.1f} ms, {growths}")
    assert not left, "left behind"
    # Linux may join small pages to a large one at any time, which adds up to 2 MB once.
    # A leak adds to both halves.
    assert min(first_growth, second_growth) < 2 * MB


def launch_and_measure(kernel: Kernel, times: int) -> tuple[list[float], int]:
    """The seconds of so many launches, and the bytes by which the kernel has grown in them."""
    memory_before = anonymous_memory(kernel.pid)
    outcome = kernel.run(MANY.format(times), within=380)
    # A launch makes some ctypes array types, which are cycles: 3 kB wait for the collector.
    kernel.run("import gc; gc.collect()", within=60)
    memory_after = anonymous_memory(kernel.pid)
    assert not outcome.errors
    return ast.literal_eval(outcome.value), memory_after - memory_before


def anonymous_memory(pid: int) -> int:
    """Bytes in memory without those of files: pages of libraries come in bit by bit."""
    status = Path(f"/proc/{pid}/status").read_text()
    [kilobytes] = re.findall(r"RssAnon:\s+(\d+) kB", status)
    return int(kilobytes) * 1024


@pytest.mark.slow
def test_fifty_launches_leave_nothing_behind() -> None:
    launch_many(50)


@pytest.mark.soak
def test_a_thousand_launches_leave_nothing_behind() -> None:
    launch_many(1000)


@pytest.mark.soak
def test_four_kernels_that_launch_at_once_do_not_collide() -> None:
    """Of two, tests/house/test_load.py shows as much in each run."""
    kernels = 4
    ready = threading.Barrier(kernels, timeout=120)

    def crowd(_: int) -> tuple[str, list]:
        kernel = Kernel()
        try:
            ready.wait()
            outcome = kernel.run(CROWD, within=120)
        finally:
            kernel.close()
        return outcome.value, outcome.errors

    with ThreadPoolExecutor(kernels) as pool:
        assert list(pool.map(crowd, range(kernels))) == [("'fine'", [])] * kernels
