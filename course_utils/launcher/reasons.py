"""The likely reason for a failure, if its words or its place tell one."""

import errno
import linecache
import re
import socket
from collections.abc import Sequence

from course_utils.launcher import echoes
from course_utils.launcher.language import N_, _, sentences
from course_utils.launcher.stacks import Frame, learners_frame

_ON_THE_CPU = N_(
    "this launch runs on the CPU, and the line asks for a GPU: take 'cuda' only where "
    "torch.cuda.is_available(), and gloo where it is not"
)
_BY_DEATH = {  # how a process died: the reason
    "died of SIGKILL": N_(
        "something outside killed it, most often the system because memory ran out: "
        "use a smaller batch or model, or fewer ranks"
    ),
    "died of SIGSEGV": N_("compiled code touched memory that is not its own"),
    "died of SIGABRT": N_(
        "compiled code gave up (its own words, if any, stand in the rank's output)"
    ),
    "died of SIGBUS": N_(
        "shared memory is full or a mapped file shrank: look at the size of /dev/shm"
    ),
    "died of SIGFPE": N_("an integer was divided by zero in compiled code"),
    "died of SIGALRM": N_(
        "an alarm rang that the function had set, and it has no handler for it: "
        "give signal.signal one"
    ),
    "died of SIGTERM": N_("something asked this one process to end"),
    "left with exit status": N_("os._exit ends a process at once; let the function return instead"),
}
_TWICE = "mark a variable ready only once"
_REENTRANT = N_(
    "a checkpoint with use_reentrant=True runs a backward pass "
    "of its own inside of yours: use checkpoint(..., use_reentrant=False)"
)
_BY_WORDS = {  # a pattern of the headline: the reason
    "can't allocate memory": N_(
        "it asks for more memory than this machine has left, or than a limit "
        "of the system, a container or a scheduler allows"
    ),
    "BdbQuit": N_("a rank has no keyboard, so a debugger ends at once; print instead"),
    "DataLoader worker .*killed by signal: Killed": N_(
        "something outside killed it, most often the "
        "system because memory ran out: use fewer workers, or hold less in the dataset"
    ),
    "cannot be sent back: RecursionError": N_(
        "it is nested too deeply to be sent: return it flat, such as a list of its parts"
    ),
    "RecursionError": N_("a function calls itself, and nothing ends that"),
    "initialize the default process group twice": N_(
        "launch makes the group before your function "
        "runs: leave init_process_group() out, or make the group yourself, once, under "
        "launch(..., backend=None)"
    ),
    "cannot be rebuilt: .*Default process group": N_(
        "a DDP model belongs to its process group, "
        "which ends with the rank: return model.module or model.module.state_dict()"
    ),
    "its result, a (coroutine|generator|async_generator)": N_(
        "calling such a function runs nothing "
        "of it: return what it makes, such as list(...) or asyncio.run(...)"
    ),
    "not used in producing loss": N_(
        "a parameter took no part in the loss, so DDP still waited for its gradient when the next "
        "step began: use it, freeze it by requires_grad_(False), or allow it by "
        "DistributedDataParallel(model, find_unused_parameters=True)"
    ),
    _TWICE: N_(
        "find_unused_parameters=True looks at what the model last returned, and took a parameter "
        "for unused that got a gradient all the same: call the model once before each backward "
        "pass, and use its parameters only within forward"
    ),
    "Found no NVIDIA|not compiled with CUDA|No CUDA GPUs|at least one CUDA device": _ON_THE_CPU,
    "device_ids and output_device arguments only work with": N_(
        "the model is on the CPU, where DistributedDataParallel takes no device_ids: leave them out"
    ),
    "EADDRINUSE": N_(
        "something listens on that port already: a second rank that says it is rank 0 "
        "(each rank's number is int(os.environ['RANK'])), or a different program"
    ),
    r"Dist\w*Error: .*to connect to": N_(
        "no rank serves the address in MASTER_ADDR and MASTER_PORT: rank 0 has to "
        "make its group there, at the same address as the others"
    ),
    r"(in|out)LengthPerRank\[myRank\]": N_(
        "in all_to_all_single, what a rank sends to itself and "
        "what it expects of itself differ: entry j of rank i's input_split_sizes has to be entry i "
        "of rank j's output_split_sizes"
    ),
    r"Global rank \d+ is not part of group": N_(
        "src and dst are ranks of the whole launch: of a "
        "rank's number within a group, write group_src= or group_dst="
    ),
    r"Expected parameter `\w+` of type torch.Tensor": N_(
        "a collective works on tensors: make one of the number, such as torch.tensor(number)"
    ),
    r"Options, arg0: \S*ReduceOp\)": N_("op= takes an operation such as dist.ReduceOp.SUM"),
    r"unexpected pos \d+ vs \d+|No space left on device|failed writing file": N_(
        "a file could not be written to its end, most often because the disk is full"
    ),
    "Pair is not connected": N_(
        "gloo connects a rank with the others, not with itself: copy what a rank would send itself"
    ),
    "PytorchStreamReader failed": N_(
        "the file was not whole when it was read, most often because ranks wrote it at the same "
        "time: let one rank save it, and all others wait in a barrier before they read"
    ),
    "'DistributedDataParallel' object has no attribute": N_(
        "what the model has beside forward is at model.module, but DDP averages gradients only "
        "where the forward pass calls the wrapped model itself"
    ),
    "'torch.distributed' has no attribute '(rank|world_size|size)'": N_(
        "both are functions: dist.get_rank() is this rank's number, and dist.get_world_size() is "
        "how many ranks there are"
    ),
    "not compatible with an interactive environment": N_(
        "Lightning was imported in the notebook "
        "and took this rank for it: import it inside the function that launch runs"
    ),
}
_COMMAND_LINE = N_(
    "argparse reads the command line, and a rank has none: hand it a list, such as parse_args([])"
)
_READS_THE_COMMAND_LINE = re.compile(r"\bparse_(known_)?args\(\s*\)")
_BY_FILE = {  # a pattern of a file among its frames: the reason
    r"launchers/multiprocessing\.py$": N_(
        "launch has started the ranks already: use Trainer(strategy='ddp'), not 'ddp_notebook'"
    ),
}
_NO_GROUP = N_(
    "group= takes what dist.new_group() returns, neither a number nor a list of ranks: leave it "
    "out where all ranks are meant"
)
# What torch says of a number and of a list, in the functions that look the group up.
_TAKEN_FOR_A_GROUP = re.compile(
    r"Group \d+ is not registered|unhashable type: 'list'|'int' object has no attribute 'all"
)
_COLLECTIVES = re.compile(r"torch/distributed/distributed_c10d\.py$")
_CHECKPOINT = re.compile(r"torch/utils/checkpoint\.py$")
_SPAWNED = N_(
    "a process that is started by spawn cannot see what a cell defines: leave out "
    "multiprocessing_context= and mp.spawn, or move the function or class into a file"
)
# What a spawned process prints as it ends, and what the rank says that has lost it.
_UNSEEN = re.compile(
    r"Can't get attribute '.*' on <module '__main__'"  # up to Python 3.13
    r"|module '__main__' has no attribute"
)
_LOST_PROCESS = re.compile(
    "DataLoader worker|BrokenProcessPool|EOFError|ConnectionResetError|ProcessExitedException"
)
_CRASHED_AT = N_(
    "compiled code touched memory that is not its own, called from the line shown above"
)
RACE = N_(
    "each of these ranks wants to listen on that port, as rank 0 does, and one of them was first: "
    "each rank's number is int(os.environ['RANK'])"
)
_WAITED = N_(
    "the group's own timeout ran out: another rank did not come to this call in time, or not at all"
)
_LOST = N_(
    "another rank left the group, such as by destroy_process_group(), before this one was done "
    "with it"
)
_PEER_PROCESS_ENDED = N_("a process at the other end, such as a DataLoader's worker, has ended")
# `loss = dist.all_reduce(`: what is assigned, and the call.
_KEPT = re.compile(r"([\w.]+)\s*=\s*(?:torch\.distributed|dist)\.(all_reduce|broadcast|reduce)\(")
_USED = re.compile(r"(?:torch\.distributed|dist)\.(all_reduce|broadcast|reduce)\(.*\)\s*[.+*/\[-]")
_A_LITTLE = 12  # lines
_UNKNOWN_HOST = re.compile(r"network addresses of \((\S+), \d+\) cannot be retrieved")
_UNKNOWN_INTERFACE = "Unable to find address for: "


def of_failure(headline: str, frames: Sequence[Frame], output: str, died: bool = False) -> str:
    """The likely reason for a failure, or an empty text.

    Args:
        headline: What the exception says, or how the process died.
        frames: Of the stack at which it failed, outermost first.
        output: What the rank printed.
        died: Whether the process died, rather than raising an exception.
    """
    if died:
        return _of_death(headline, frames)
    if _UNKNOWN_INTERFACE in headline:
        return interface()
    if _LOST_PROCESS.search(headline) and _UNSEEN.search(output):
        return _(_SPAWNED)
    is_in_a_checkpoint = _is_in_file(_CHECKPOINT, frames)
    if _TWICE in headline and is_in_a_checkpoint:
        return _(_REENTRANT)
    for pattern, reason in _BY_WORDS.items():
        if re.search(pattern, headline, re.DOTALL):
            return _(reason)
    for pattern, reason in _BY_FILE.items():
        if _is_in_file(pattern, frames):
            return _(reason)
    return _of_lines(headline, frames)


def _is_in_file(pattern: str | re.Pattern[str], frames: Sequence[Frame]) -> bool:
    return any(re.search(pattern, frame.file) for frame in frames)


def _of_lines(headline: str, frames: Sequence[Frame]) -> str:
    """What the words do not tell alone, but with the lines that led there."""
    if _reads_the_command_line(frames):
        return _(_COMMAND_LINE)
    innermost = frames[-1:]
    is_in_a_collective = _is_in_file(_COLLECTIVES, innermost)
    if is_in_a_collective and _TAKEN_FOR_A_GROUP.search(headline):
        return _(_NO_GROUP)
    if headline.startswith("ZeroDivisionError") and _counts_devices(frames):
        return _(_ON_THE_CPU)
    if "NoneType" in headline:
        call, advice = _call_whose_none_was_used(frames)
        if call:
            return _(
                "{call} changes its tensor and returns None: {advice}", call=call, advice=advice
            )
    is_loader = any("torch/utils/data" in frame.file for frame in frames)
    # Once the notebook has looked at torch.cuda, torch says so of each fork. A rank that is to use
    # a GPU doesn't start then, so this is a rank on the CPU, or a process that it has forked.
    if frames and not is_loader and "initialize CUDA in forked subprocess" in headline:
        return _(_ON_THE_CPU)
    if is_loader and re.match("ConnectionResetError|EOFError", headline):
        return _(_PEER_PROCESS_ENDED)
    return ""


def _of_death(headline: str, frames: Sequence[Frame]) -> str:
    if "died of SIGSEGV" in headline and any(frame.is_learners for frame in frames):
        return _(_CRASHED_AT)
    for pattern, reason in _BY_DEATH.items():
        if pattern in headline:
            return _(reason)
    return ""


def _reads_the_command_line(frames: Sequence[Frame]) -> bool:
    """Whether argparse failed, and was handed no list."""
    is_by_argparse = False
    reads_it = False
    for frame in frames:
        if re.search(r"\bargparse\.py$", frame.file):
            is_by_argparse = True
        line = linecache.getline(frame.file, frame.line)
        if _READS_THE_COMMAND_LINE.search(line):
            reads_it = True
    return is_by_argparse and reads_it


def _counts_devices(frames: Sequence[Frame]) -> bool:
    """Whether the learner's line uses a number of devices, such as `rank % device_count()`."""
    frame = learners_frame(list(frames))
    if frame is None:
        return False
    line = linecache.getline(frame.file, frame.line)
    return "device_count()" in line


def _call_whose_none_was_used(frames: Sequence[Frame]) -> tuple[str, str]:
    """The collective whose result, None, the failing line uses.

    It is called in that line, or its result was assigned a few lines above, as in
    `loss = dist.all_reduce(loss)`.

    Returns:
        The collective's name and what to do; two empty texts if there's no such line.
    """
    frame = learners_frame(list(frames))
    if frame is None:
        return "", ""
    failed = linecache.getline(frame.file, frame.line)
    used = _USED.search(failed)
    if used:
        return used[1], _("call it in a line of its own, and use the tensor")
    line_before = max(0, frame.line - _A_LITTLE)
    for number in range(frame.line, line_before, -1):
        line = linecache.getline(frame.file, number)
        assignment = _KEPT.search(line)
        if not assignment:
            continue
        name, call = assignment.groups()
        escaped = re.escape(name)
        is_used = re.search(rf"(?<![\w.]){escaped}(?!\w)", failed)
        statement = _statement(frame.file, number)
        if is_used and "async_op" not in statement:
            return call, _("leave out the `=` before it")
    return "", ""


def _statement(file: str, first_line: int) -> str:
    """The text from a line on, until its brackets are closed."""
    text = ""
    for number in range(first_line, first_line + _A_LITTLE):
        text += linecache.getline(file, number)
        if text.count("(") <= text.count(")"):
            break
    return text


def of_echo(echo: str, world_size: int) -> str:
    """What an echo says about the other ranks, if it is all that there is."""
    if echo == echoes.WAITED:
        return _(_WAITED)
    if echo == echoes.LOST and world_size > 1:
        return _(_LOST)
    return ""


def interface() -> str:
    """Which network interfaces there are."""
    names = ", ".join(name for _number, name in socket.if_nameindex())
    return _(
        "GLOO_SOCKET_IFNAME names no network interface of this machine, which has {names}",
        names=names,
    )


def of_start(error: OSError, rank: int, world_size: int) -> str:
    """Why no rank could be started, or not all of them, and what to do."""
    words = error.strerror or str(error)
    start = _(
        "rank {rank} of {world_size} could not be started: {words}.",
        rank=rank,
        world_size=world_size,
        words=words,
    )
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
        advice = _(
            "Use fewer ranks, or raise the limits that `ulimit -n` (open files) and `ulimit -u` "
            "(processes) show."
        )
        return sentences(start, advice)
    if error.errno == errno.ENOMEM:
        advice = _("Use fewer ranks, or let go of what the notebook holds in memory.")
        return sentences(start, advice)
    if error.errno == errno.EADDRNOTAVAIL:
        return _("launch needs the address 127.0.0.1, which this machine does not have.")
    if "temporary directory" in str(error):
        return _(
            "launch finds no folder for temporary files: set TMPDIR to one that can be written."
        )
    return _("No rank could be started: {words}.", words=words)


def unknown_host(output: Sequence[str]) -> str:
    """Why ranks that are not done may wait: for a host that they looked for in vain."""
    for text in output:
        host = _UNKNOWN_HOST.search(text)
        if host:
            return _(
                "nobody here knows a host named {name}: leave MASTER_ADDR as it is, or set it to "
                "127.0.0.1",
                name=host[1],
            )
    return ""
