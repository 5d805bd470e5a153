"""`launch` as a notebook calls it: the launcher, with all its listeners."""

import inspect
import math
from collections.abc import Callable
from itertools import pairwise
from numbers import Integral, Real
from traceback import extract_tb, walk_tb
from typing import Any

from IPython import get_ipython
from torch.multiprocessing import ProcessExitedException, start_processes

from course_material.prediction_forms import a_person_looks
from course_utils.devices import prepare
from course_utils.devices.placement import place
from course_utils.displays import Displays
from course_utils.hang.silent_mistakes import SilentMistakes
from course_utils.launcher.errors import WorkerError
from course_utils.launcher.language import _, sentences
from course_utils.launcher.launch import Results
from course_utils.launcher.launch import launch as launch_workers
from course_utils.launcher.listener import Listener
from course_utils.launcher.stop_button import Stopped
from course_utils.life import LatePanel, SilenceTimeout
from course_utils.live import Early, Panel
from course_utils.network.trace import Trace
from course_utils.record.record import Record
from course_utils.trained_copies import TrainedCopies

# Parameters that `torch.multiprocessing.spawn` hands in, and what a rank asks for them here.
_ASKED_FOR = {
    "rank": "dist.get_rank()",
    "world_size": "dist.get_world_size()",
    "local_rank": "os.environ['LOCAL_RANK']",
}
# What other launchers call the number of ranks.
_WORLD_SIZES = "num_processes", "nprocs", "nproc_per_node", "num_workers", "n_procs", "processes"
_LONG_SILENCE_S = 60.0  # without a call or a print, where nobody says how long ranks may take
_REFUSE = __name__, place.__module__  # the modules that say which arguments launch does not take
_LONGEST_S = 1e9  # thirty years; torch's clock ends somewhere beyond that


def launch(
    fn: Callable[..., Any],
    *args: Any,
    world_size: int = 2,
    backend: str | None = "auto",
    device: str = "auto",
    nodes: int = 1,
    timeout: float | None = None,
    live: bool = False,
    trace: bool = False,
    share_gpus: bool = False,
    **unknown: Any,
) -> Results:
    """Run `fn(*args)` in `world_size` forked workers that have joined one process group.

    The function asks `torch.distributed` for its rank and runs unchanged under `torchrun`.
    Whatever the workers print or display appears in rank order when they are done.

    One thing differs from `torchrun`: a fork inherits the notebook's random numbers. Torch and
    NumPy draw the same on every rank, and again in every launch, until the function seeds them,
    such as by `torch.manual_seed(seed + rank)`; Python's own `random` differs. A file that is open
    in the notebook has one position for all ranks, so open files inside the function.

    Args:
        fn: any function, also one of a notebook cell, a lambda or a closure.
        *args: handed to every rank as they are; nothing is pickled on the way in.
        world_size: how many ranks, at least 1.
        backend: "auto" takes NCCL where there are several GPUs and one for each rank, else gloo
            on the CPU; "gloo" or "nccl"; None leaves `init_process_group()` to `fn`.
        device: "auto", "cpu" or "cuda"; `backend="gloo", device="cuda"` lets ranks share GPUs.
        nodes: lays the ranks out as so many equal nodes, so that local and global rank differ.
        timeout: seconds until all ranks must be done. Without it, ranks may go on as long as they
            call or print something: the launch ends after 60 s of silence, or as many times more
            as this machine is slow at that moment. What a rank has returned is rebuilt in the
            notebook, which nothing but the stop button ends.
        live: shows a panel with progress, metrics (see `report`) and output while they run.
        trace: records every send, receive, collective and wait.
        share_gpus: with `backend="nccl"`, lets several ranks use one GPU. That is experimental in
            NCCL, meant for about two ranks on a GPU, and may hang.
        **unknown: what is no option of launch is refused, with what to write instead.

    Returns:
        A list with what each rank returned. Tensors arrive on the CPU, detached, contiguous.
        Its `trace` is the recording.

    Raises:
        ValueError, TypeError, RuntimeError: for what cannot work; nothing was started.
        WorkerError: a rank failed; the message names the root cause, its rank and its line.
        WorkerTimeout: the ranks were not done in time; the message says where each of them was.
        KeyboardInterrupt: the stop button was pressed. If all ranks had returned by then, the
            exception has their results: in the next cell, `sys.last_value.results`.
    """
    record = Record(bool(trace))
    mistakes = SilentMistakes(record)
    displays = Displays()
    try:
        _refuse_unknown_options(fn, unknown)
        silence_ends_it = timeout is None
        if timeout is None:
            timeout = _LONG_SILENCE_S
        refuse_what_is_no_function(fn)
        refuse_options(world_size, nodes, timeout, live, trace)
        refuse_arguments(fn, args)
        world_size, nodes = int(world_size), int(nodes)  # numpy's integers are welcome
        timeout = float(min(timeout, _LONGEST_S))
        record.timeout_s = timeout
        placement = place(backend, device, world_size, nodes, share_gpus)
        ready = prepare.DeviceSetup(placement)
        early = Early(record, timeout, counts_silence=silence_ends_it)
        listeners: list[Listener] = [ready, record, early, displays, *_panels(live)]
        if silence_ends_it:
            listeners.append(SilenceTimeout(record, _LONG_SILENCE_S))
        copies = TrainedCopies(fn, args)
        listeners += [mistakes, copies]
        results = launch_workers(
            fn,
            *args,
            world_size=world_size,
            backend=placement.backend,
            nodes=nodes,
            timeout=timeout,
            listeners=listeners,
            show=displays.show,
        )
    except BaseException as error:
        if isinstance(error, WorkerError):
            error.trace = _trace(record)
        if isinstance(error, Stopped) and error.results is not None:
            error.results.trace = _trace(record)
        raise
    for sentence in [*mistakes.sentences, copies.sentence(results)]:
        if sentence:
            print(sentence)
    results.trace = _trace(record)
    for sentence in results.unfinished:
        print(sentence)
    return results


def _panels(live: bool) -> list[Listener]:
    """What shows the ranks at work: at once if that is asked for, else after a while."""
    if live:
        return [Panel()]
    if a_person_looks():
        return [LatePanel()]
    return []


def _trace(record: Record) -> Trace | None:
    if not record.trace:
        return None
    return Trace(record.events(), record.ended_s, record.failed)


def _refuse_unknown_options(fn: Any, unknown: dict[str, Any]) -> None:
    """Say what to write instead of an option that other launchers have, or of the function's."""
    for name in unknown:
        if name == "args":
            advice = _("write launch(fn, 1, 2), not launch(fn, args=(1, 2))")
        elif name in _WORLD_SIZES:
            advice = _("write world_size= for the number of ranks")
        elif name in _parameters(fn):
            advice = _(
                "launch hands on no keywords: write launch(lambda: fn({name}=...))", name=name
            )
        else:
            advice = _(
                "its options are world_size, backend, device, nodes, timeout, live and trace"
            )
        raise TypeError(_("launch has no option {name}: {advice}.", name=name, advice=advice))


def _parameters(fn: Any) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # no function, or one that is written in C
        return []


def refuse_what_is_no_function(fn: Any) -> None:
    """Refuse a text, the result of a call and the like, and say what to write instead."""
    if isinstance(fn, str):
        raise TypeError(
            _(
                "launch needs a function, got a text: write launch(fn); a script is started by "
                "!torchrun --nproc-per-node=2 train.py."
            )
        )
    if not callable(fn):
        got = "None" if fn is None else type(fn).__name__
        raise TypeError(
            _(
                "launch needs a function, got {got}: write launch(fn) or launch(fn, 1, 2), not "
                "launch(fn()), which calls it in the kernel.",
                got=got,
            )
        )


def refuse_options(world_size: Any, nodes: Any, timeout: Any, live: Any, trace: Any) -> None:
    """Say what an option must be, before anything starts."""
    for name, value in (("world_size", world_size), ("nodes", nodes)):
        is_whole_number = isinstance(value, Integral) and not isinstance(value, bool)
        if not is_whole_number or value < 1:
            raise ValueError(
                _(
                    "{name} must be a whole number of at least 1, got {value!r}.",
                    name=name,
                    value=value,
                )
            )
    if world_size % nodes:
        raise ValueError(
            _(
                "{world_size} ranks cannot be laid out as {nodes} equal nodes: make world_size a "
                "multiple of nodes.",
                world_size=world_size,
                nodes=nodes,
            )
        )
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ValueError(
            _("timeout must be a number of seconds above 0, got {timeout!r}.", timeout=timeout)
        )
    for name, value in (("live", live), ("trace", trace)):
        if value not in (True, False):
            raise ValueError(
                _("{name} must be True or False, got {value!r}.", name=name, value=value)
            )


def refuse_arguments(fn: Callable[..., Any], args: tuple) -> None:
    """Refuse arguments that the function doesn't take, and a function that would run nothing."""
    message = _misfit(fn, args) or _runs_nothing(fn)
    if message:
        raise TypeError(message)


def _runs_nothing(fn: Callable[..., Any]) -> str:
    """A message about a function that, when called, only makes an object which would run it."""
    name = getattr(fn, "__name__", type(fn).__name__)
    method = getattr(fn, "__call__", None)  # noqa: B004, for an object its method
    for called in (fn, method):
        if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
            return _(
                "{name} is an async function, so calling it runs nothing of it: write a plain "
                "def, and call asyncio.run() in it.",
                name=name,
            )
    return ""


def _misfit(fn: Callable[..., Any], args: tuple) -> str:
    """A message about arguments that don't fit; a function written in C may not tell what does."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        problem = _(
            "{name}{signature} does not fit the arguments given to launch ({count} of them): "
            "{error}.",
            name=name,
            signature=signature,
            count=len(args),
            error=error,
        )
        return sentences(problem, _hint(name, args, signature))
    return ""


def _hint(name: str, args: tuple, signature: inspect.Signature) -> str:
    """How to write the call, if the parameters tell what was meant."""
    if len(args) == 1 and isinstance(args[0], int) and not signature.parameters:
        return _(
            "To run it on {ranks} ranks, write launch({name}, world_size={ranks}).",
            ranks=args[0],
            name=name,
        )
    answers = []
    for parameter in signature.parameters:
        if parameter in _ASKED_FOR:
            answer = _("{call} for {name}", call=_ASKED_FOR[parameter], name=parameter)
            answers.append(answer)
    if not answers:
        return ""
    return _("A rank asks {answers}: nobody hands it in.", answers=_(" and ").join(answers))


def _explain_error(result: Any) -> None:
    """After a cell that failed in one of two ways which nobody sees through at first."""
    error = result.error_in_exec
    message = ""
    if isinstance(error, ValueError):
        message = _of_call_in_no_rank(error)
    elif isinstance(error, ProcessExitedException):
        message = _of_spawn(error)
    if message:
        print(message)


def _of_call_in_no_rank(error: ValueError) -> str:
    """A message to who asked for the group that only ranks have, as `launch(fn())` does."""
    if "Default process group has not been init" not in str(error):
        return ""
    names = []  # of the notebook's functions that were running, the cell itself first
    for frame, _line in walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "__main__":
            names.append(frame.f_code.co_name)
    name = names[1] if len(names) > 1 else "fn"
    return _(
        "This ran in the notebook itself, which is no rank. launch calls it in every rank: write "
        "launch({name}), not launch({name}()).",
        name=name,
    )


def _of_spawn(error: ProcessExitedException) -> str:
    """A message to who gave a function of the notebook to `torch.multiprocessing.spawn`."""
    for frame, _line in walk_tb(error.__traceback__):
        if frame.f_code is not start_processes.__code__:
            continue
        spawned = frame.f_locals
        fn = spawned["fn"]
        is_of_a_cell = getattr(fn, "__globals__", None) is shell.user_ns
        if is_of_a_cell and spawned["start_method"] == "spawn" and error.exit_code == 1:
            return _(
                "spawn starts new Pythons, which cannot import a function that a cell defines. "
                "launch forks, so its ranks know it: write launch({name}, world_size={ranks}).",
                name=fn.__name__,
                ranks=spawned["nprocs"],
            )
    return ""


def _show_error(
    shell: Any, kind: type, error: Exception, trace: Any, tb_offset: int | None = None
) -> None:
    """IPython's traceback, but for two that say it in fewer words."""
    if isinstance(error, NameError):
        _say_what_to_run_first(error, trace)
    else:
        _end_at_the_call_of_launch(trace)
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _say_what_to_run_first(error: NameError, trace: Any) -> None:
    """In place of a traceback, where a cell compares a prediction whose own cell was not run.

    What failed before that, such as a launch that hangs on purpose, is told first.
    """
    frames = extract_tb(trace)
    if frames and f"{error.name}.measured(" in str(frames[-1].line):
        lines = []
        failure = error.__context__
        if isinstance(failure, WorkerError):
            lines = failure._render_traceback_()
        message = _(
            "{name} is a prediction, and its cell has not run yet. It stands further up: run it, "
            "then this cell once more.",
            name=error.name,
        )
        lines.append(f"\n{message}")
        error._render_traceback_ = lambda: lines


def _end_at_the_call_of_launch(trace: Any) -> None:
    """Where launch has refused what it was given, cut its own frames off the traceback."""
    links = []
    while trace:
        links.append(trace)
        trace = trace.tb_next
    if not links or links[-1].tb_frame.f_globals.get("__name__") not in _REFUSE:
        return
    for caller, called in pairwise(links):
        if called.tb_frame.f_code is launch.__code__:
            caller.tb_next = None
            return


prepare.watch()
shell = get_ipython()
if shell:
    shell.events.register("post_run_cell", _explain_error)
    shell.set_custom_exc((NameError, TypeError, ValueError), _show_error)
