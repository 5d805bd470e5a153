"""The pytest plugin: `@pytest.mark.ranks(2, 4)` runs a test in real ranks, once for each number.

Every run of pytest loads this module, so it imports nothing but pytest. What needs torch is
imported by the first test that has the mark. `course_testing/README.md` says how it is used.
"""

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from course_testing.failure import SIZE, RankFailed

MARK = "ranks"
SHARED = pytest.StashKey[dict[str, Any]]()  # what fixtures hand to the launch of their test
_OPTIONS = {"backend", "device", "nodes", "timeout"}
_MARK_HELP = (
    "ranks(*world_sizes, backend='auto', device='auto', nodes=1, timeout=None): "
    "run the test in so many real ranks, once for each of these numbers."
)
# Python 3.12 and later warn of each fork beside threads; here a rank touches none of theirs.
_OF_FORKS = r"ignore:.* use of fork\(\) may lead:DeprecationWarning:course_utils\.launcher"
_LARGEST_SEED = 10**6


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that repeats the delays of `late_ranks`."""
    group = parser.getgroup("ranks", "tests in real ranks")
    text = "the seed of the delays of late_ranks, to repeat a run"
    group.addoption("--rank-seed", type=int, default=None, metavar="N", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, and draw a seed if none is given."""
    config.addinivalue_line("markers", _MARK_HELP)
    config.addinivalue_line("filterwarnings", _OF_FORKS)
    if config.option.rank_seed is None:
        config.option.rank_seed = random.SystemRandom().randrange(_LARGEST_SEED)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each number of ranks."""
    mark = metafunc.definition.get_closest_marker(MARK)
    if mark is None:
        return
    problem = _problem_of_mark(mark)
    if problem:
        pytest.fail(problem, pytrace=False)
    if SIZE not in metafunc.fixturenames:
        metafunc.fixturenames.append(SIZE)
    names = []
    for world_size in mark.args:
        names.append("1-rank" if world_size == 1 else f"{world_size}-ranks")
    metafunc.parametrize(SIZE, mark.args, indirect=True, ids=names)


def _problem_of_mark(mark: pytest.Mark) -> str:
    """What is wrong with the arguments of a mark; nothing if they are right."""
    if not mark.args:
        return "ranks: say how many ranks the test needs, such as @pytest.mark.ranks(1, 2, 4)."
    for world_size in mark.args:
        if type(world_size) is not int or world_size < 1:
            return f"ranks: {world_size!r} is no number of ranks: write whole numbers from 1 on."
    unknown = sorted(set(mark.kwargs) - _OPTIONS)
    if unknown:
        options = ", ".join(sorted(_OPTIONS))
        return f"ranks: there is no option {unknown[0]}. The options are {options}."
    nodes = mark.kwargs.get("nodes", 1)
    if type(nodes) is not int or nodes < 1:
        return f"ranks: nodes={nodes!r}: write a whole number of at least 1."
    for world_size in mark.args:
        if world_size % nodes:
            return f"ranks: {world_size} ranks cannot be laid out as {nodes} equal nodes."
    timeout = mark.kwargs.get("timeout")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        return f"ranks: timeout={timeout!r}: write a number of seconds above 0."
    return ""


@pytest.fixture
def _number_of_ranks(request: pytest.FixtureRequest) -> int:
    if not hasattr(request, "param"):
        from course_testing import refusals  # here, since few tests need it

        refusals.without_mark("world_size")
    return request.param


@pytest.fixture
def world_size(_number_of_ranks: int) -> int:
    """How many ranks this test runs in."""
    return _number_of_ranks


@pytest.fixture
def trace(request: pytest.FixtureRequest) -> Any:
    """What the ranks of this test have called until now: calls, bytes, messages."""
    _refuse_without_mark(request, "trace")
    from course_testing.in_rank import RankTrace  # here, since it imports torch

    shared = _shared(request.node)
    if "trace" not in shared:
        shared["trace"] = RankTrace()
    return shared["trace"]


@pytest.fixture
def replay(trace: Any) -> Any:
    """Call it with a network, such as `replay(latency_us=10, gbit_s=80)`: the run on that one."""
    return trace.replay


@pytest.fixture
def late_ranks(request: pytest.FixtureRequest) -> Any:
    """Let each rank come late to each of its calls, by seeded delays that differ by rank."""
    _refuse_without_mark(request, "late_ranks")
    from course_testing.in_rank import LateRanks  # here, since it imports torch

    seed = request.config.option.rank_seed
    delays = LateRanks(seed, request.node.nodeid)
    _shared(request.node)["late_ranks"] = delays
    return delays


def _shared(item: pytest.Item) -> dict[str, Any]:
    return item.stash.setdefault(SHARED, {})


def _refuse_without_mark(request: pytest.FixtureRequest, name: str) -> None:
    if request.node.get_closest_marker(MARK) is None:
        from course_testing import refusals  # here, since few tests need it

        refusals.without_mark(name)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a mark on what would run in pytest's own process all the same."""
    if item.get_closest_marker(MARK) is None:
        return
    from course_testing import refusals  # here, since few tests need it

    if isinstance(item, pytest.Function) and type(item).runtest is not pytest.Function.runtest:
        refusals.kind_of_test(type(item).__name__)
    if not hasattr(os, "fork"):
        refusals.without_fork()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in its ranks; leave all other tests to pytest."""
    mark = pyfuncitem.get_closest_marker(MARK)
    if mark is None:
        return None
    from course_testing import runner  # here, since it imports torch

    runner.run(pyfuncitem, mark.kwargs, _shared(pyfuncitem))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """Show what the rank has seen instead of the launch."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, RankFailed):
        failed = call.excinfo.value
        if report.outcome == "failed":
            report.longrepr = failed.shown or str(failed)
    return report
