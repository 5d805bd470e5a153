"""Answers stay on the device of what they are given: no solution mixes devices on its own account.

`check` itself judges on CPUs. What an answer is given is moved to a pretended GPU here.
"""

import ast
import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from deadline import long_enough
from second_device import second_device
from torch import nn
from torch.utils._pytree import tree_map

import course_utils
from course_checks.cases import CASES
from course_tools.measure import gpu_workers
from course_tools.notebooks import build
from course_utils import launch

LABS = sorted(path.stem[:2] for path in build.ROOT.glob("source/labs/[0-9]*.py"))
LABS.remove("10")  # Keras is set up for the CPU
# Answers that cannot be tried so, and why.
LEFT_OUT = {
    "meet": "it makes the group itself",
    "train": "its samples are dealt by a loader, or its ranks are started by an agent",
    "Stoppable": "its samples are dealt by a loader",
    "train_from": "its samples are dealt by a loader",
    "save": "its job is built on a mesh of CPUs",
    "resume": "its job is built on a mesh of CPUs",
    "report": "it reads recordings, which a launch makes",
    "parted": "it flips a bit of a number by NumPy, which a GPU's tensor has no part in",
}


def exercises(lab: str) -> list[tuple[Callable, dict[str, Any]]]:
    """All answers of a solved lab, each with the options of its check."""
    noted: list[tuple[Callable, dict[str, Any]]] = []
    (target,) = (t for t in build.targets(build.ROOT, [lab]) if t.built.parent.name == "solutions")
    code = [cell.source for cell in build.plan(target).cells if cell.cell_type == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    note = mock.Mock(side_effect=lambda answer, **options: noted.append((answer, options)))
    with mock.patch.object(course_utils, "check", note, create=True):
        for node in (node for text in code for node in ast.parse(text).body):
            defines = isinstance(node, gpu_workers.DEFINES)
            assigns = isinstance(node, gpu_workers.ASSIGNS) and not gpu_workers.does(node)
            checks = ast.unparse(node).startswith("check(")
            if defines or assigns or checks:
                # Some need a recording, which a launch would have made.
                with contextlib.suppress(NameError, OSError):
                    exec(compile(ast.Module([node], []), f"<lab {lab}>", "exec"), names)
    return noted


def moved(thing: Any) -> Any:
    return thing.to("cuda") if isinstance(thing, torch.Tensor | nn.Module) else thing


@pytest.mark.parametrize("lab", LABS)
def test_no_answer_mixes_devices(lab):
    tried = 0
    for answer, options in exercises(lab):
        sizes = list(options.get("world_sizes", (2,)))
        world_size = 2 if 2 in sizes else sizes[-1]
        if answer.__name__ in LEFT_OUT:
            continue

        def on_a_second_device(answer=answer, options=options, world_size=world_size):
            rank, case = dist.get_rank(), options.get("cases", CASES)[0]
            torch.manual_seed(rank)
            arguments = options["inputs"](rank, world_size, case)
            if not isinstance(arguments, tuple):
                arguments = (arguments,)
            with second_device():
                answer(*tree_map(moved, arguments))

        how = {"world_size": world_size, "nodes": options.get("nodes", 1), "backend": "gloo"}
        launch(on_a_second_device, timeout=long_enough(30), **how)
        tried += 1
    assert tried or lab == "08"  # whose answers need what a launch has recorded
