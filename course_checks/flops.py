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
    flop_counter = importlib.import_module("torch.utils.flop_counter")
    counting = flop_counter.FlopCounterMode(display=False, custom_mapping=_PRODUCTS)
    with counting as mode:
        yield mode.get_total_flops


def _of_vectors(*shapes: Any, out_shape: torch.Size, **_: Any) -> int:
    """Of a matrix and a vector, or of two vectors: two for each number of the larger one."""
    largest = 0
    for shape in shapes:
        if isinstance(shape, torch.Size):
            size = math.prod(shape)
            largest = max(largest, size)
    return 2 * largest


def _of_elements(*shapes: Any, out_shape: torch.Size, **_: Any) -> int:
    """Of a product of elements, as if it stood in a matrix product; scaling costs nothing."""
    factors = 0
    for shape in shapes:
        if isinstance(shape, torch.Size) and math.prod(shape) > 1:
            factors += 1
    if factors < 2:
        return 0
    return 2 * math.prod(out_shape)


_ATEN = torch.ops.aten
# What torch's counter leaves out: it knows products of matrices only.
_PRODUCTS = {
    _ATEN.mv: _of_vectors,
    _ATEN.addmv: _of_vectors,
    _ATEN.dot: _of_vectors,
    _ATEN.vdot: _of_vectors,
    _ATEN.prod: _of_vectors,
    _ATEN.mul: _of_elements,
    _ATEN.mul_: _of_elements,
    _ATEN.div: _of_elements,
    _ATEN.div_: _of_elements,
    _ATEN.addcmul: _of_elements,
    _ATEN.addcmul_: _of_elements,
    _ATEN.addcdiv: _of_elements,
    _ATEN.addcdiv_: _of_elements,
}
