"""Whether wrong results are only a factor off, such as a sum where an average is wanted."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from course_checks.compare import leaves
from course_utils.launcher.language import _

_RELATIVE = 1e-4  # wider than any dtype's rounding but bfloat16's, narrower than any two factors


def factor_in_words(wanted: Sequence[Any], got: Sequence[Any]) -> str:
    """Such as `What each rank got is 2 times what is wanted.`; empty where there's no such factor.

    Args:
        wanted: What each rank is to return.
        got: What each rank has returned.
    """
    wanted_numbers = _numbers(list(wanted))
    numbers = _numbers(list(got))
    if wanted_numbers is None or numbers is None:
        return ""
    if wanted_numbers.shape != numbers.shape:
        return ""
    factor = _factor(wanted_numbers, numbers, most=len(wanted))
    if factor is None:
        return ""
    if factor < 1:
        return _("What each rank got is {factor} of what is wanted.", factor=factor)
    return _("What each rank got is {factor} times what is wanted.", factor=factor)


def _factor(wanted: Tensor, got: Tensor, most: int) -> Fraction | None:
    """The factor, if it's a fraction of numbers up to `most`, as those are that ranks divide by."""
    square = wanted.dot(wanted).item()
    product = wanted.dot(got).item()
    if square == 0:
        return None
    if not math.isfinite(square) or not math.isfinite(product):
        return None
    share = product / square
    factor = Fraction(share).limit_denominator(most)
    if factor == 1:
        return None
    if not 0 < factor <= most:
        return None
    multiple = wanted * float(factor)
    largest = wanted.abs().max().item()
    absolute = _RELATIVE * largest
    is_close = torch.isclose(got, multiple, rtol=_RELATIVE, atol=absolute)
    if not is_close.all():
        return None
    return factor


def _numbers(values: Any) -> Tensor | None:
    """All floating-point numbers of nested results in one row; None if anything else is in them."""
    rows = []
    for leaf in leaves(values):
        if isinstance(leaf, float):
            leaf = torch.tensor(leaf)
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return None
        if leaf.layout != torch.strided or leaf.is_meta:
            return None
        row = leaf.detach().flatten().double()
        rows.append(row)
    if not rows:
        return None
    return torch.cat(rows)
