"""What chapter 16 and its lab test with: pytest in a fork of the kernel, and versions that judge.

`pytest_on` writes functions of a notebook into a test file and runs pytest on it. `tried_on` lets a
learner's test judge many versions of a function in one launch, and says which it has caught.
"""

import functools
import inspect
import os
import re
import shlex
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

HEAD = "import time\n\nimport pytest\nimport torch\nimport torch.distributed as dist\n\n\n"
# Variables that change what pytest prints: under continuous integration it shortens nothing.
_TASTES = ("CI", "BUILD_NUMBER", "PYTEST_ADDOPTS", "NO_COLOR", "FORCE_COLOR", "PY_COLORS")
# Of plugins ours alone, so that every machine prints the same.
_QUIET = ("-q", "-p", "course_testing.plugin", "-p", "no:cacheprovider", "--color=no", "-rN")
# Pytest's own faulthandler stops its alarm after a failure. In a fork of a pytest that has set one,
# the thread that would answer isn't there, and it waits for ever.
_QUIET += ("-p", "no:faulthandler")
_SECONDS = re.compile(r"\bin (\d+\.\d+)s\b.*?(=*)$", re.MULTILINE)

# The judge's hook has the smallest number, so it runs before that of the recorder: a call that it
# forbids is not recorded.
_HOOK = 1
_PASSED, _FAILED = 0, 1  # what a rank tells of a test that is over; calls have larger numbers
_MESSAGES = ("SEND", "RECV", "RECVANYSOURCE")


def test_file(*functions: Callable) -> str:
    """The text of a test file with these functions of a notebook."""
    return HEAD + "\n\n".join(inspect.getsource(function) for function in functions)


def pytest_on(*functions: Callable, options: str = "", whole: bool = True) -> str:
    """Write functions into `test_cell.py`, run pytest on it, and print what it says.

    Pytest runs in a fork of this kernel, which spares it importing torch again.

    Args:
        functions: those under test, and tests.
        options: as typed in a terminal, such as `--rank-seed=3`.
        whole: print all of it; else the last line alone.

    Returns:
        What pytest has printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_cell.py").write_text(test_file(*functions), encoding="utf-8")
        printed = _in_a_fork(folder, ["test_cell.py", *_QUIET, *shlex.split(options)])
    printed = _SECONDS.sub(r"in about \1 s \2", printed).replace(" \n", "\n").strip()
    print(" ".join(["$ pytest test_cell.py", *shlex.split(options)]))
    print(printed if whole else printed.splitlines()[-1])
    return printed


def _in_a_fork(folder: str, arguments: list[str]) -> str:
    """What pytest prints in a child of this process, whose working folder is `folder`."""
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            _become_pytest(folder, arguments, output.fileno())
        try:
            os.waitpid(child, 0)
        except BaseException:  # the stop button: no pytest goes on behind the learner's back
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)
            raise
        output.seek(0)
        return output.read().decode(errors="replace")


def _become_pytest(folder: str, arguments: list[str], output: int) -> None:
    """In the child: run pytest, and end without what a kernel does at its end."""
    try:
        os.chdir(folder)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
        sys.stderr = sys.stdout
        for name in _TASTES:
            os.environ.pop(name, None)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # gloo, as on a server that runs tests
        os.environ["COLUMNS"] = "100"
        pytest.main(arguments)
        sys.stdout.flush()
    except BaseException:
        os.write(output, traceback.format_exc().encode())
    finally:
        os._exit(0)


def counts(printed: str) -> dict[str, int]:
    """How many tests passed and failed, read off pytest's last line."""
    last_line = printed.splitlines()[-1]
    numbers = {"passed": 0, "failed": 0}
    for number, word in re.findall(r"(\d+) (passed|failed)", last_line):
        numbers[word] = int(number)
    return numbers


@dataclass(frozen=True)
class Version:
    """A version of a function that is to be tested.

    Attributes:
        make: returns the version, made anew, so that it remembers nothing of earlier tests.
        clue: of a wrong version, when it goes wrong; empty for a right one.
        from_ranks: of a wrong version, the smallest number of ranks on which it is wrong.
    """

    make: Callable[[], Callable]
    clue: str = ""
    from_ranks: int = 2

    @property
    def is_right(self) -> bool:
        """Whether a test has to accept it."""
        return not self.clue


@dataclass
class Call:
    """A collective that this rank has called.

    Attributes:
        kind: its name, such as "all_reduce".
        bytes: what the rank has handed in.
    """

    kind: str
    bytes: int


@dataclass
class Calls:
    """What a version has called until now, named as in the plugin's fixture `trace`."""

    calls: list[Call] = field(default_factory=list)

    @property
    def kinds(self) -> list[str]:
        """The name of each call."""
        return [call.kind for call in self.calls]


class Stopped(BaseException):
    """The ranks have parted: this one calls what another one doesn't. It would be a hang."""


class Judge:
    """In a rank: lets a test judge one version after another, whatever becomes of each.

    Before each collective, and at the end of a test, the ranks tell each other what they are about
    to do. Where they differ, pytest would have a hang, or a failure that stops the others; here the
    test is over on all ranks, and the next version begins.
    """

    def __init__(self) -> None:
        self._side_group = dist.new_group()
        self._calls: Calls | None = None
        dist.group.WORLD.register_pre_hook(_HOOK, self._before_call)

    def accepts(self, test: Callable, version: Version) -> bool:
        """Whether the test passes on all ranks with this version. All ranks call it together."""
        function = version.make()
        self._calls = Calls()
        arguments = {}
        if "trace" in inspect.signature(test).parameters:
            arguments["trace"] = self._calls
        state = _PASSED
        try:
            test(lambda *values: function(*values), **arguments)
        except NotImplementedError:
            raise
        except Stopped as stopped:
            state = _FAILED
            if version.is_right:
                print(f"would hang with a right version: {stopped}")
        except Exception as error:
            state = _FAILED
            if version.is_right:
                _say_where(error)
        worst = self._await_all(state)
        self._calls = None
        return worst == _PASSED

    def close(self) -> None:
        """Let calls pass from now on."""
        dist.group.WORLD.unregister_pre_hook(_HOOK)

    def _await_all(self, state: int) -> int:
        """Tell the others that the test is over here, until it is over everywhere."""
        while True:
            highest, _lowest = self._meet(state)
            if highest <= _FAILED:
                return highest

    def _before_call(self, call: Any) -> None:
        if self._calls is None:
            return
        name = call.name.name
        if name in _MESSAGES:
            raise RuntimeError("tests of this lab use collectives, no send or recv")
        tensors = call.input_tensors or call.output_tensors
        shapes = [(tensor.numel(), str(tensor.dtype)) for tensor in tensors]
        fingerprint = zlib.crc32(f"{name} {call.root} {shapes}".encode())
        if name.startswith("ALLGATHER"):  # each rank may hand in another number of bytes
            fingerprint = zlib.crc32(name.encode())
        kind = _KINDS.get(name, name.lower())
        highest, lowest = self._meet(2 + fingerprint)
        if highest != lowest:
            raise Stopped(f"this rank calls {kind}, and another one doesn't, or not so")
        self._calls.calls.append(Call(kind, sum(t.numel() * t.element_size() for t in tensors)))

    def _meet(self, code: int) -> tuple[int, int]:
        """The highest and the lowest code of all ranks."""
        extremes = torch.tensor([code, -code])
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX, group=self._side_group)
        return int(extremes[0]), -int(extremes[1])


_KINDS = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLGATHER_BASE": "all_gather"}
_KINDS |= {"REDUCE": "reduce", "BROADCAST": "broadcast", "BARRIER": "barrier"}


def _say_where(error: Exception) -> None:
    """Print of a right version that was refused which line of the test has refused it."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.name.startswith("test_"):
            place = frame
    text = str(error).partition("\n")[0]
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    print(f"refuses a right version in line {place.lineno}: {place.line} ({reason})")


def tried_on(test: Callable, versions: Mapping[str, Version]) -> Callable:
    """Make an answer for `check` of a learner's test.

    Args:
        test: takes a version, and `trace` if it wants to; it runs in every rank.
        versions: right ones and wrong ones, by name.

    Returns:
        A function of one rank that takes an order of versions and returns how many of either kind
        the test has accepted and caught.
    """

    @functools.wraps(test)
    def judged(order: torch.Tensor) -> dict[str, str]:
        dist.broadcast(order, src=0)
        names = list(versions)
        shuffled = [names[int(place)] for place in order]
        accepted = accepted_versions(test, [versions[name] for name in shuffled])
        verdicts = dict(zip(shuffled, accepted, strict=True))
        return _summary(versions, verdicts)

    return judged


def accepted_versions(test: Callable, versions: Sequence[Version]) -> list[bool | None]:
    """In a rank: which versions a test accepts; None for those that aren't wrong on so few."""
    judge = Judge()
    accepted = []
    for version in versions:
        if is_tried(version, dist.get_world_size()):
            accepted.append(judge.accepts(test, version))
        else:
            accepted.append(None)
    judge.close()
    return accepted


def is_tried(version: Version, world_size: int) -> bool:
    """Whether a test on so many ranks could tell this version from a right one."""
    return version.is_right or world_size >= version.from_ranks


def _summary(versions: Mapping[str, Version], verdicts: Mapping[str, bool | None]) -> dict:
    right = wrong = accepted = caught = 0
    missed = []
    for name, version in versions.items():
        verdict = verdicts[name]
        if verdict is None:
            continue
        if version.is_right:
            right += 1
            accepted += verdict
        else:
            wrong += 1
            caught += not verdict
            if verdict:
                missed.append(version.clue)
    if missed and dist.get_rank() == 0 and accepted == right:
        print(f"not caught yet: a version that {missed[0]}")
    return _as_result(accepted, right, caught, wrong)


def _as_result(accepted: int, right: int, caught: int, wrong: int) -> dict[str, str]:
    return {
        "right versions accepted": f"{accepted} of {right}",
        "wrong versions caught": f"{caught} of {wrong}",
    }


def judged_by(versions: Mapping[str, Version]) -> dict[str, Any]:
    """The arguments of `check` for a test that `tried_on` has wrapped."""

    def spec(orders: list) -> list[dict[str, str]]:
        tried = [version for version in versions.values() if is_tried(version, len(orders))]
        right = sum(version.is_right for version in tried)
        wrong = len(tried) - right
        return [_as_result(right, right, wrong, wrong)] * len(orders)

    def inputs(rank: int, world_size: int, case: str) -> torch.Tensor:
        return torch.randperm(len(versions))

    return {"spec": spec, "inputs": inputs, "cases": ["all versions"], "world_sizes": (1, 2, 3)}
