"""The fault matrix: what can go wrong, each in a real kernel, ends well or in one clear error."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from faults import Fault
from faults_kernel import FAULTS, LOADER
from kernels import Kernel, Outcome, alive

pytestmark = [
    pytest.mark.slow,  # two minutes of real kernels
    pytest.mark.skipif(sys.platform != "linux", reason="the census reads /proc"),
]

HUNG_S = 60.0
AIR_S = 60  # beyond its deadline, after which a launch counts as hung
AGAIN = "list(launch(total))"
LITTER = """
ended, left = threading.Event(), socket.socket()
threading.Thread(target=ended.wait).start()
orphan = subprocess.Popen(["sleep", "600"], start_new_session=True)
paths = [f"{folder}/litter_{os.getpid()}" for folder in ("/dev/shm", tempfile.gettempdir())]
[open(path, "w").close() for path in paths]
"""
CLEAN = """
ended.set(), left.close(), orphan.kill(), orphan.wait()
[os.remove(path) for path in paths]
"""
WITH_MOUNTS = ("unshare", "--map-root-user", "--mount", "sh", "-c")
ROOMS = {
    "full": """
        mount --bind "$FOLDER" /mnt  # out of the way, then back
        for folder in /tmp /var/tmp /dev/shm; do
            case "$PREFIX/$PROJECT" in *"$folder"/*) continue; esac  # it holds what we run
            mount -t tmpfs -o size=1m small "$folder"
        done
        mkdir -p "$FOLDER" && mount --bind /mnt "$FOLDER" &&
        mount -t tmpfs -o size=1m small "$TMPDIR" && exec "$0" "$@"
    """,
    "read-only home": """
        mount --bind "$HOME" "$HOME" && mount -o remount,bind,ro "$HOME" && exec "$0" "$@"
    """,
}


class Shared:
    """The kernel of all faults that may share one; a new one if a test has lost it."""

    def __init__(self) -> None:
        self._kernel: Kernel | None = None

    def get(self) -> Kernel:
        """The kernel."""
        if self._kernel is None or not self._kernel.is_alive():
            self.close()
            self._kernel = Kernel()
        return self._kernel

    def close(self) -> None:
        """Shut it down."""
        if self._kernel:
            self._kernel.close()
            self._kernel = None


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    kernel = Shared()
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def with_a_past() -> Iterator[Shared]:
    kernel = Shared()
    yield kernel
    kernel.close()


@pytest.fixture
def kernel(shared: Shared, with_a_past: Shared, request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """A shared kernel, or one for a single fault that harms it."""
    fault = getattr(request, "param", None)
    if fault and not fault.own:
        yield (with_a_past if fault.history else shared).get()
        return
    wrap = ()
    if fault and fault.room:
        probe = "mount -t tmpfs probe /tmp"
        if subprocess.run([*WITH_MOUNTS, probe], stderr=subprocess.DEVNULL, check=False).returncode:
            pytest.skip("this user may not mount a folder, not even in a namespace of their own")
        wrap = (*WITH_MOUNTS, ROOMS[fault.room])
    kernel = Kernel(wrap)
    yield kernel
    kernel.close()


@pytest.mark.parametrize(
    ("kernel", "fault"),
    [pytest.param(f, f, id=f.name.replace(" ", "_")) for f in FAULTS],
    indirect=["kernel"],
)
def test_a_fault_ends_well_or_in_one_clear_error(kernel: Kernel, fault: Fault) -> None:
    if fault.first:
        assert not kernel.run(fault.first, HUNG_S).errors
    before = kernel.census()
    with kernel.pressing_stop(*fault.stop):
        outcome = kernel.run(fault.cell, int(fault.within) + AIR_S)
    left = kernel.left_since(before)
    if fault.last:
        assert not kernel.run(fault.last, HUNG_S).errors
    again = kernel.run(AGAIN, HUNG_S)
    judge(fault, outcome, kernel.forked() | {kernel.pid})
    assert not left, "left behind"
    assert again.value == "[3.0, 3.0]", again


def judge(fault: Fault, outcome: Outcome, pids: set[int]) -> None:
    """Right value, or one error in words that help, hold in every run, and betray nothing."""
    if fault.gives:
        assert (outcome.value, outcome.errors) == (fault.gives, [])
        return
    if len(fault.stop) > 1 and not outcome.errors and outcome.printed.split()[-1] == fault.error:
        return  # a press too many met IPython, which was showing the first
    assert [name for name, _ in outcome.errors] == [fault.error], outcome
    message = outcome.errors[0][1]
    for words in fault.says:
        assert words.replace("{cell}", f"cell [{outcome.number}]") in message, message
    assert len(message) < 6000
    assert not re.search(r"0x[0-9a-f]{5,}", message), message
    assert not re.search(r"(?<![\w.])/\w+/", message), message
    # Where process ids are as small as line numbers, equal ones would prove nothing.
    assert not pids & {int(number) for number in re.findall(r"\d{4,}", message)}, message


def test_the_matrix_holds_at_least_25_faults(capsys: pytest.CaptureFixture) -> None:
    right, wrong = (sum(bool(f.gives) is kind for f in FAULTS) for kind in (True, False))
    with capsys.disabled():
        print(f"\nfault matrix: {len(FAULTS)} faults, {right} end well, {wrong} in one clear error")
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 25


def test_the_census_would_see_whatever_is_left_behind(shared: Shared) -> None:
    kernel = shared.get()
    before = kernel.census()
    kernel.run(LITTER, HUNG_S)
    left = kernel.left_since(before, seconds=0.1)
    kernel.run(CLEAN, HUNG_S)
    assert not kernel.left_since(before)
    assert set(left) == {"processes", "descriptors", "threads", "shared memory", "temporary files"}


def test_what_ranks_printed_comes_before_the_error(shared: Shared) -> None:
    kernel = shared.get()
    kernel.run("launch(total)", HUNG_S)
    outcome = kernel.run("def work():\n    print('hello')\n    1 / 0\n\nlaunch(work)", HUNG_S)
    assert outcome.printed == "[rank 0] hello\n[rank 1] hello\n"
    assert outcome.order == ["stream", "error"]


@pytest.mark.parametrize("name", ["SIGABRT inside gloo", "leaves the group", "send meets send"])
def test_an_error_says_the_same_words_in_every_run(shared: Shared, name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name.startswith(name))
    outcomes = [shared.get().run(fault.cell, HUNG_S) for _ in range(3)]
    words = {outcome.errors[0][1].replace(f"[{outcome.number}]", "[N]") for outcome in outcomes}
    assert len(words) == 1, words


def test_two_interrupted_launches_in_a_row_leave_the_kernel_usable(shared: Shared) -> None:
    kernel = shared.get()
    before = kernel.census()
    for _ in range(2):
        with kernel.pressing_stop(0.3):
            outcome = kernel.run("launch(time.sleep, 60)", HUNG_S)
        assert outcome.errors == [("Stopped", "")]
    assert not kernel.left_since(before), "left behind"
    assert kernel.run(AGAIN, HUNG_S).value == "[3.0, 3.0]"


def test_a_killed_kernel_takes_its_ranks_and_their_children_along() -> None:
    kernel = Kernel()
    done = kernel.run("print(flush=True)", HUNG_S)
    assert not done.errors
    killer = threading.Thread(target=kill_when_busy, args=(kernel, 7))  # kernel, 2 ranks, 4 loaders
    killer.start()
    outcome = kernel.run(
        f"""
        def work():
            loader = {LOADER}
            next(iter(loader))
            time.sleep(10_000)

        launch(work)
        """,
        HUNG_S,
    )
    killer.join()
    left = wait_until_gone(kernel.folder.name)
    kernel.close()
    assert [name for name, _ in outcome.errors] == ["DeadKernelError"]
    assert not left


def kill_when_busy(kernel: Kernel, processes: int) -> None:
    """Kill the kernel, and it alone, as soon as it has so many processes."""
    end = time.monotonic() + HUNG_S
    while len(alive(kernel.folder.name)) < processes and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(kernel.pid, signal.SIGKILL)


def wait_until_gone(word: str, seconds: float = 30.0) -> set[int]:
    """Which of a kernel's processes still live after so many seconds."""
    end = time.monotonic() + seconds
    while (left := alive(word)) and time.monotonic() < end:
        time.sleep(0.02)
    return left


def test_no_process_that_these_tests_started_is_left(shared: Shared, with_a_past: Shared) -> None:
    shared.close(), with_a_past.close()  # the only ones that may live here
    assert not wait_until_gone("")
