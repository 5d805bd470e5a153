"""Inside a rank: how tensors lie in memory, where gloo takes them for contiguous ones.

Of a tensor that is not contiguous, such as `x[:, 0]` or `x.t()`, gloo takes as many elements from
its first one on as it has, whatever lies there. It refuses such a tensor in `send`, `recv` and as
the input of `all_to_all_single`; `all_gather` and `gather` copy it as they should.
"""

import contextlib
from collections.abc import Sequence

import torch

GAPS, SEVERAL = "gaps", "several"
_AS_IT_LIES = ("all_reduce", "reduce", "broadcast")


def of(
    kind: str, listed: bool, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> str:
    """Nothing where all is contiguous, or copied as it should be; else strides, GAPS or SEVERAL.

    Ranks whose tensors have the same strides, without gaps, agree on where each element lies.
    """
    if any(tensor.layout != torch.strided for tensor in (*inputs, *outputs)):
        return ""
    if kind in _AS_IT_LIES:
        tensors = inputs
    elif kind == "reduce_scatter" and not listed:
        tensors = [tensor for tensor in inputs if _is_dense(tensor)]
    elif kind in ("scatter", "reduce_scatter"):
        tensors = [*inputs, *outputs]
    elif kind == "all_to_all" and not listed:
        tensors = outputs
    else:
        return ""
    if all(tensor.is_contiguous() for tensor in tensors):
        return ""
    if not all(map(_is_dense, tensors)):
        return GAPS
    strides = {tensor.stride() for tensor in tensors}
    return SEVERAL if len(strides) > 1 else str(min(strides))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie beside each other, in whatever order, each in a place of its own."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two of these, which are to hold different results, begin at one place."""
    if len(tensors) < 2:
        return False
    with contextlib.suppress(RuntimeError):  # tensors without memory have no place
        places = [tensor.data_ptr() for tensor in tensors if tensor.nbytes]
        return len(set(places)) < len(places)
    return False
