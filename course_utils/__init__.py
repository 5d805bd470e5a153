"""Real workers from a notebook cell: launch them, see what they do, hear why they failed.

Each name is imported from its room when it is first used, so nobody pays for rooms without need.
"""

import importlib
import os
from typing import Any

# With this, torch.cuda.is_available() asks NVML: opening CUDA would spoil every later fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
# ipykernel asks programs for colours, and from 3.13 on Python's tracebacks obey, in files as well.
os.environ.setdefault("PYTHON_COLORS", "0")

_ROOMS = {
    "Network": ".network.network",
    "WorkerError": ".launcher.errors",
    "WorkerTimeout": ".launcher.errors",
    "check": "course_checks.check",
    "digits": "course_material.digits",
    "dry_run": ".dry_run",
    "explain_dumps": ".flight.explanation",
    "explain_hangs": ".flight.live",
    "explore": ".pictures.widgets",
    "hardware": ".devices.hardware",
    "launch": ".notebook",
    "plot_calls": ".pictures.calls",
    "plot_groups": ".pictures.groups",
    "plot_ranks": ".pictures.squares",
    "plot_timeline": ".pictures.timeline",
    "predict": "course_material.predictions",
    "progress": "course_checks.outcome",
    "report": ".live",
    "show": ".pictures.style",
}
__all__ = sorted(_ROOMS)
# What draws and slides; `launch` and `check` do without.
_FOR_LABS = ("matplotlib", "ipywidgets")


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "launch" and not hasattr(os, "fork"):
        from course_utils.launcher.language import _

        raise RuntimeError(_("launch needs fork: use Linux, macOS, or WSL on Windows."))
    try:
        room = importlib.import_module(_ROOMS[name], __name__)
    except ModuleNotFoundError as error:
        if error.name not in _FOR_LABS:
            raise
        from course_utils.launcher.language import _

        message = _(
            "{name} needs {package}, which is not installed: pip install 'ddp-course[lab]'",
            name=name,
            package=error.name,
        )
        raise ModuleNotFoundError(message, name=error.name) from None
    value = getattr(room, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
