"""The hang report, in a real kernel: guilty rank and line, and the right diagnosis or none."""

import re
import sys
from collections.abc import Iterator

import pytest
from hangs import CONTROLS, PATTERNS, SETUP, SIDE_BY_SIDE, Hang, reports
from kernels import Kernel, warm_kernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernels' census reads /proc")
HANGS = PATTERNS + CONTROLS


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with warm_kernel(SETUP) as kernel:
        yield kernel


def judge(hang: Hang, pattern: str | None, text: str) -> None:
    """Guilty rank and line are named, and no wrong diagnosis."""
    assert pattern == hang.pattern, text
    assert f"rank {hang.guilty}" in text or re.search(rf"ranks [\d, and]*\b{hang.guilty}\b", text)
    for words in hang.says:
        assert words in text, text
    named = {int(number) for number in re.findall(r"line (\d+)", text)}
    for line in hang.lines:
        # Of a loop that never ends the report names the first line.
        assert named & {line, line - 1}, text
    assert len(text) < 1500


@pytest.mark.slow
def test_every_hang_is_explained(kernel: Kernel, subtests: pytest.Subtests) -> None:
    for hang, (pattern, text) in zip(HANGS, reports(kernel, HANGS), strict=True):
        with subtests.test(hang.name):
            judge(hang, pattern, text)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, len(HANGS), SIDE_BY_SIDE))
def test_every_hang_is_explained_twenty_times_in_the_same_words(
    kernel: Kernel, subtests: pytest.Subtests, first: int
) -> None:
    some = HANGS[first : first + SIDE_BY_SIDE]
    runs = [reports(kernel, some) for _ in range(20)]
    for hang, *told in zip(some, *runs, strict=True):
        with subtests.test(hang.name):
            for pattern, text in told:
                judge(hang, pattern, text)
            assert len(set(told)) == 1 or hang.pattern == "slow"


def test_the_names_of_all_hangs_differ() -> None:
    assert len({hang.name for hang in HANGS}) == len(HANGS)
