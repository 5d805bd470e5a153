"""How many floating-point operations a piece of code computes, forward and backward."""

import contextlib
import importlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch


@contextlib.contextmanager
def flops(counts: bool) -> Iterator[Callable[[], int]]:
    """Count the operations within; yields a function that gives their number, or 0 if not `counts`.

    Counting takes time.
    """
    if not counts:
        yield lambda: 0
        return
    # Imported late, since it imports triton, which must come after `launch` has imported _dynamo.
    counter = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    with counter(display=False, custom_mapping=_PRODUCTS) as mode:
        yield mode.get_total_flops


def _of_vectors(*shapes: Any, out_shape: torch.Size, **_: Any) -> int:
    """Of a matrix and a vector, or of two vectors: two for each number of the larger one."""
    sizes = [math.prod(shape) for shape in shapes if isinstance(shape, torch.Size)]
    return 2 * max(sizes)


def _of_elements(*shapes: Any, out_shape: torch.Size, **_: Any) -> int:
    """Of a product of elements, as if it stood in a matrix product; scaling costs nothing."""
    factors = [shape for shape in shapes if isinstance(shape, torch.Size) and math.prod(shape) > 1]
    if len(factors) < 2:
        return 0
    return 2 * math.prod(out_shape)


_ATEN = torch.ops.aten
# What torch's counter leaves out: it knows products of matrices only.
_PRODUCTS = dict.fromkeys((_ATEN.mv, _ATEN.addmv, _ATEN.dot, _ATEN.vdot, _ATEN.prod), _of_vectors)
_PRODUCTS |= dict.fromkeys((_ATEN.mul, _ATEN.mul_, _ATEN.div, _ATEN.div_), _of_elements)
_PRODUCTS |= dict.fromkeys((_ATEN.addcmul, _ATEN.addcmul_), _of_elements)
_PRODUCTS |= dict.fromkeys((_ATEN.addcdiv, _ATEN.addcdiv_), _of_elements)
