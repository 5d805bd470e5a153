"""Whether an exception only says that another rank is gone: an echo, never the cause.

An echo is known by where it was raised: inside torch's collectives, or by gloo, NCCL or the store,
whose text has a beginning of its own. The words alone prove nothing. A database that says
"Connection refused" is the cause itself.
"""

import dis
import os
import re

import torch
import torch.distributed as dist

LOST, WAITED = "lost", "waited"  # a peer's connection has ended; a timer of the group has
TOLD = "told"  # a peer has handed its exception on, as `dcp.save` does
_TORCH = os.path.dirname(torch.__file__)
_COLLECTIVES = os.path.join(_TORCH, "distributed", ""), os.path.join(_TORCH, "nn", "parallel", "")
_BACKWARD = "_engine_run_backward"  # in which DDP's reducer waits for its buckets
# How gloo and the store begin, whoever calls them; a callback of a future puts its own before.
_BEGINNING = re.compile(
    r"(Got the following error when running the callback: \w+: )?"
    r"(\[(enforce fail at )?\S*gloo/\S+:\d+\] |\[?Rank \d+\]?:? .*monitoredBarrier)"
)
_LOST = re.compile(
    r"Connection (was likely )?(closed|reset|refused)|Read error|Write error|Broken pipe|"
    r"by peer|Connect timeout|Socket closed|remote process exited"
)
_WAITED = re.compile(r"Timed out waiting|[Ww]ait timeout|timed out after|Application timeout")


def kind_of(error: BaseException, words: str) -> str:
    """LOST or WAITED for such an echo, else an empty text; `words` is what the exception says."""
    if not isinstance(error, RuntimeError):
        return ""
    if not _BEGINNING.match(words) and not _was_raised_by_torch(error):
        return ""
    if _LOST.search(words):
        return LOST
    return WAITED if _WAITED.search(words) else ""


def chain(error: BaseException) -> list[BaseException]:
    """The exception, and those that it was caused by or raised amid, the first one last."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and id(link) not in map(id, links):
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _was_raised_by_torch(error: BaseException) -> bool:
    traceback = error.__traceback__
    if traceback is None:
        return False
    while traceback.tb_next:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    if code.co_filename.startswith(_COLLECTIVES) or code.co_name == _BACKWARD:
        return True
    # C++ that was called right from the learner's line, such as `work.wait()` or `store.get()`.
    operation = dis.opname[code.co_code[traceback.tb_lasti]]
    return isinstance(error, dist.DistError) and operation != "RAISE_VARARGS"
