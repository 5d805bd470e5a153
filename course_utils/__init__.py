"""Real workers from a notebook cell: launch them, see what they do, hear why they failed."""

import os

# torch.cuda.is_available() shall ask NVML: opening CUDA would spoil every later fork.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

from course_utils.check import check
from course_utils.checking.cases import CASES
from course_utils.checking.overview import progress
from course_utils.data import digits
from course_utils.errors import WorkerError, WorkerTimeout
from course_utils.hardware import hardware
from course_utils.launching.rank import report
from course_utils.machines.hosts import two_hosts
from course_utils.network import Network
from course_utils.pictures.animation import animate
from course_utils.pictures.calls import plot_calls
from course_utils.pictures.explorer import explore
from course_utils.pictures.matrix import plot_traffic
from course_utils.pictures.squares import plot_ranks
from course_utils.pictures.timeline import plot_timeline
from course_utils.plots import rank_style, show
from course_utils.trace import Trace
from course_utils.workers import launch

__all__ = [
    "CASES",
    "Network",
    "Trace",
    "WorkerError",
    "WorkerTimeout",
    "animate",
    "check",
    "digits",
    "explore",
    "hardware",
    "launch",
    "plot_calls",
    "plot_ranks",
    "plot_timeline",
    "plot_traffic",
    "progress",
    "rank_style",
    "report",
    "show",
    "two_hosts",
]
