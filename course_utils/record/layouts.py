"""Inside a rank: how tensors lie in memory, where gloo takes them for contiguous ones.

From a tensor that is not contiguous, such as `x[:, 0]` or `x.t()`, gloo takes as many elements as
the tensor has, one after the other from its first one, whatever lies there. It refuses such a
tensor in `send`, in `recv` and as the input of `all_to_all_single`; `all_gather` and `gather` copy
it, as they should.
"""

import contextlib
from collections.abc import Sequence

import torch

GAPS, SEVERAL = "gaps", "several"
_TAKEN_AS_CONTIGUOUS = ("all_reduce", "reduce", "broadcast")


def describe(
    kind: str, listed: bool, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> str:
    """Describe the tensors of a call that gloo wrongly takes for contiguous ones.

    Args:
        kind: Of the operation, such as "all_reduce".
        listed: Whether it is handed a list with one tensor for each rank.
        inputs: Tensors that are handed in.
        outputs: Tensors that are filled.

    Returns:
        Nothing where all are contiguous or correctly copied. Otherwise their strides, or GAPS, or
        SEVERAL where strides differ. Ranks whose tensors have the same strides and no gaps agree on
        where each element lies.
    """
    for tensor in (*inputs, *outputs):
        if tensor.layout != torch.strided:
            return ""
    tensors = _taken_as_contiguous(kind, listed, inputs, outputs)
    if all(tensor.is_contiguous() for tensor in tensors):
        return ""
    if not all(map(_is_dense, tensors)):
        return GAPS
    strides = {tensor.stride() for tensor in tensors}
    return SEVERAL if len(strides) > 1 else str(min(strides))


def _taken_as_contiguous(
    kind: str, listed: bool, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The tensors of a call whose strides gloo overlooks."""
    if kind in _TAKEN_AS_CONTIGUOUS:
        return inputs
    if kind == "reduce_scatter" and not listed:
        return [tensor for tensor in inputs if _is_dense(tensor)]
    if kind in ("scatter", "reduce_scatter"):
        return [*inputs, *outputs]
    if kind == "all_to_all" and not listed:
        return outputs
    return []


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one piece of memory, in any order, with no gap and no overlap."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two tensors that are to hold different results begin at the same address."""
    if len(tensors) < 2:
        return False
    with contextlib.suppress(RuntimeError):  # tensors without memory have no address
        addresses = [tensor.data_ptr() for tensor in tensors if tensor.nbytes]
        return len(set(addresses)) < len(addresses)
    return False
