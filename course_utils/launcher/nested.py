"""A rank launches no ranks: neither by `launch` nor by what is built on torch's own launcher."""

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from course_utils.launcher import torch_private
from course_utils.launcher.language import N_, _

_LAUNCHER = "torch.distributed.launcher.api"  # accelerate's notebook_launcher and torchrun use it
REFUSAL = N_(
    "launch was called inside a worker. A rank cannot launch ranks: call launch from the cell, "
    "with a larger world_size."
)


def refuse_launchers() -> None:
    """In a rank: have torch's launcher refuse at once, where two agents would take one port.

    Two uses are allowed: several ranks may act as the hosts of one job, and a process that a rank
    has started is no rank. Torch's function is private: if it gets a different name, it isn't
    refused, and fails or hangs.
    """
    rank_pid = os.getpid()
    if _LAUNCHER in sys.modules:
        _put_refusal_into(sys.modules[_LAUNCHER], rank_pid)
    else:
        sys.meta_path.insert(0, _Finder(rank_pid))


def _put_refusal_into(module: ModuleType, rank_pid: int) -> None:
    launch_agent = torch_private.find(f"{_LAUNCHER}:launch_agent")
    if launch_agent is None:
        return

    def refuse(config: Any, *args: Any, **options: Any) -> Any:
        max_nodes = getattr(config, "max_nodes", 1)
        acts_as_host = max_nodes > 1
        is_the_rank = os.getpid() == rank_pid  # and no process that it has started
        if is_the_rank and not acts_as_host:
            raise RuntimeError(_(REFUSAL))
        return launch_agent(config, *args, **options)

    module.launch_agent = refuse


class _Finder(importlib.abc.MetaPathFinder):
    """Puts the refusal into torch's launcher when it is imported, which itself would be slow."""

    def __init__(self, rank_pid: int) -> None:
        self._rank_pid = rank_pid

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != _LAUNCHER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def execute_and_refuse(module: ModuleType) -> None:
                execute(module)
                _put_refusal_into(module, self._rank_pid)

            spec.loader.exec_module = execute_and_refuse
        return spec
