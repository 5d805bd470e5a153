"""How JupyterLab ends, whoever ends it: `make lab` tells it to."""

import os
import signal

import psutil

KERNEL_S = 3.0  # a kernel has half of it to end by itself, and half after a first signal


def leave_nothing() -> None:
    """End what a kernel of this server has left, and say so; called when the server has ended.

    Not a browser or a terminal's programs, which the server may have started as well.
    """
    server = psutil.Process()
    descendants = server.children(recursive=True)
    left = [process for process in descendants if is_ours(process)]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:  # it has just ended
            continue
    psutil.wait_procs(left)
    print("JupyterLab has ended, and its kernels with it: nothing is left running.", flush=True)


def is_ours(process: psutil.Process) -> bool:
    """Whether this server's Jupyter has started it, as a kernel or within one."""
    server_pid = str(os.getpid())
    try:
        started_by = process.environ().get("JPY_PARENT_PID")
    except psutil.Error:  # it has just ended, or is a program of more rights
        return False
    return started_by == server_pid


def end_with_the_terminal() -> None:
    """A terminal that is closed, or Ctrl-C without one, asks for an orderly end as SIGTERM does."""

    def ask_for_an_orderly_end(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, ask_for_an_orderly_end)
