"""Whether an exception only says that another rank is gone: an echo, never the cause.

An echo is known by where it was raised: inside torch's collectives, or by gloo, NCCL or the store,
whose messages have a beginning of their own. The words alone prove nothing. If a database says
"Connection refused", that is the cause itself.
"""

import dis
import os
import re
from types import TracebackType

import torch
import torch.distributed as dist

from course_utils.launcher import torch_private

LOST = "lost"  # the connection to a peer has ended
WAITED = "waited"  # a timer of the process group has ended
ABORTED = "aborted"  # NCCL has given the group up after an earlier failure, here or elsewhere
FROM_PEER = "from peer"  # a peer has handed its exception on, as `dcp.save` does
_TORCH = os.path.dirname(torch.__file__)
_COLLECTIVES = (
    os.path.join(_TORCH, "distributed", ""),
    os.path.join(_TORCH, "nn", "parallel", ""),
)
# In this function DDP's reducer waits for its buckets.
_BACKWARD = torch_private.name_in_stacks("torch.autograd.graph:_engine_run_backward")
# How gloo and the store begin, whoever calls them; a callback of a future puts its own before.
_BEGINNING = re.compile(
    r"(Got the following error when running the callback: \w+: )?"
    r"(\[(enforce fail at )?\S*gloo/\S+:\d+\] |\[?Rank \d+\]?:? .*monitoredBarrier)"
)
# What NCCL and torch's process group for it say, in the very words of the pinned libraries;
# tests/devices/test_nccl.py looks them up there.
NCCLS_WORDS = {
    "remote process exited": LOST,
    "NCCL operation timed out": WAITED,
    "NCCL communicator was aborted after a previous error": ABORTED,
    "NCCL operation failed": ABORTED,
}
_LOST = re.compile(
    r"Connection (was likely )?(closed|reset|refused)|Read error|Write error|Broken pipe|"
    r"by peer|Connect timeout|Socket closed"
)
_WAITED = re.compile(r"Timed out waiting|[Ww]ait timeout|timed out after|Application timeout")


def kind_of(error: BaseException, words: str) -> str:
    """LOST, WAITED or ABORTED for such an echo, else an empty text.

    Args:
        error: The exception.
        words: What it says.
    """
    if not isinstance(error, RuntimeError):
        return ""
    if not _BEGINNING.match(words) and not _was_raised_by_torch(error):
        return ""
    for nccls, kind in NCCLS_WORDS.items():
        if nccls in words:
            return kind
    if _LOST.search(words):
        return LOST
    if _WAITED.search(words):
        return WAITED
    return ""


def chain(error: BaseException) -> list[BaseException]:
    """The exception, then what caused it or was being handled when it was raised, and so on."""
    links: list[BaseException] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        links.append(link)
        seen.add(id(link))
        link = link.__cause__ or link.__context__
    return links


def _was_raised_by_torch(error: BaseException) -> bool:
    if error.__traceback__ is None:
        return False
    innermost = _innermost(error.__traceback__)
    code = innermost.tb_frame.f_code
    if code.co_filename.startswith(_COLLECTIVES) or code.co_name == _BACKWARD:
        return True
    # C++ that was called right from the learner's line, such as `work.wait()` or `store.get()`.
    operation = dis.opname[code.co_code[innermost.tb_lasti]]
    return isinstance(error, dist.DistError) and operation != "RAISE_VARARGS"


def _innermost(traceback: TracebackType) -> TracebackType:
    while traceback.tb_next:
        traceback = traceback.tb_next
    return traceback
