"""The hang report, in a real kernel: guilty rank and line, and the right diagnosis or none."""

import re
import sys
from collections.abc import Iterator

import pytest
from hangs import CONTROLS, PATTERNS, SETUP, TIMEOUT_S, Hang
from kernels import Kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernels' census reads /proc")
HUNG_S = 60.0
# The cell ends with the report instead of with its error, so that its fields are seen as well.
CAUGHT = """
from course_utils import WorkerTimeout

started = time.monotonic()
try:
    {}
except WorkerTimeout as error:
    print(time.monotonic() - started, error.pattern, error.absent, sep="|")
    print(error)
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    assert not kernel.run(SETUP, HUNG_S).errors
    yield kernel
    kernel.close()


def report(kernel: Kernel, hang: Hang) -> tuple[float, str, str]:
    """Seconds that the launch took, the pattern, and the report with `[N]` for the cell."""
    function, _, launch = hang.cell.rpartition("\n\n")
    # The function stands first, so that its lines are counted from 1.
    outcome = kernel.run(f"{function}\n" + CAUGHT.format(launch), HUNG_S)
    assert not outcome.errors, outcome.errors
    first, _, text = outcome.printed.partition("\n")
    seconds, pattern, _ = first.split("|")
    return float(seconds), pattern, text.replace(f"[{outcome.number}]", "[N]")


def judge(hang: Hang, text: str, pattern: str) -> None:
    """Guilty rank and line are named, and no wrong diagnosis."""
    assert pattern == str(hang.pattern), text
    assert f"rank {hang.guilty}" in text or re.search(rf"ranks [\d, and]*\b{hang.guilty}\b", text)
    for words in hang.says:
        assert words in text, text
    named = {int(number) for number in re.findall(r"line (\d+)", text)}
    for line in hang.lines:
        # Of a loop that never ends the report names the first line.
        assert named & {line, line - 1}, text


@pytest.mark.slow
@pytest.mark.parametrize("hang", PATTERNS + CONTROLS, ids=lambda hang: hang.name.replace(" ", "_"))
def test_a_hang_is_explained(kernel: Kernel, hang: Hang) -> None:
    seconds, pattern, text = report(kernel, hang)
    judge(hang, text, pattern)
    assert seconds < TIMEOUT_S + 1
    assert len(text) < 1500


def test_there_are_at_least_twelve_patterns_and_their_names_differ() -> None:
    names = [hang.name for hang in PATTERNS + CONTROLS]
    assert len(PATTERNS) >= 12
    assert len(set(names)) == len(names)


@pytest.mark.soak
@pytest.mark.parametrize("hang", PATTERNS + CONTROLS, ids=lambda hang: hang.name.replace(" ", "_"))
def test_a_hang_is_explained_twenty_times(
    kernel: Kernel, hang: Hang, capsys: pytest.CaptureFixture
) -> None:
    runs = [report(kernel, hang) for _ in range(20)]
    late = max(seconds for seconds, _, _ in runs) - TIMEOUT_S
    texts = {text for _, _, text in runs}
    with capsys.disabled():
        print(f"\n20 runs, at most {late:.2f} s late, {len(texts)} texts: {hang.name}", end=" ")
    for _, pattern, text in runs:
        judge(hang, text, pattern)
    assert late < 1
    assert len(texts) == 1 or hang.pattern == "slow", texts
