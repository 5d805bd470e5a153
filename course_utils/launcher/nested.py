"""A rank launches no ranks: neither by `launch` nor by what stands on torch's own launcher."""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

_LAUNCHER = "torch.distributed.launcher.api"  # accelerate's notebook_launcher and torchrun use it
REFUSAL = """launch was called inside a worker. A rank cannot launch ranks: call launch from the \
cell, with a larger world_size."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(REFUSAL)


def refuse_launchers() -> None:
    """In a rank: have torch's launcher refuse at once, where two agents would take one port.

    Its function is private. Under a different name it is not refused, and fails or hangs.
    """
    if _LAUNCHER in sys.modules:
        sys.modules[_LAUNCHER].launch_agent = _refuse
    else:
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Puts the refusal into the launcher when it is imported: to import it takes a while."""

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
                module.launch_agent = _refuse

            spec.loader.exec_module = execute_and_refuse
        return spec
