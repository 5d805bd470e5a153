"""Many launches: the thousandth costs what the first did, and kernels do not meet each other."""

import ast
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import psutil
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
    before, memory = kernel.census(), psutil.Process(kernel.pid).memory_info().rss
    outcome = kernel.run(MANY.format(times), within=380)
    left, grown = kernel.left_since(before), psutil.Process(kernel.pid).memory_info().rss - memory
    kernel.close()
    assert not outcome.errors
    seconds = ast.literal_eval(outcome.value)
    some = min(100, times // 3)
    first, last = median(seconds[:some]), median(seconds[-some:])
    print(f"{times} launches: {first * 1000:.1f} -> {last * 1000:.1f} ms, {grown / MB:+.1f} MB")
    assert not left, "left behind"
    assert grown < 4 * MB


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
