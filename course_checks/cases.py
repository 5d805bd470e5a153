"""Inputs that an exercise is tried on, and the seeds that they are drawn from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from course_utils.launcher.language import N_, _

Inputs = Callable[[int, int, Any], Any]


class Misuse(Exception):
    """The exercise itself is wrong, not the answer to it."""


_SIZES = torch.tensor([1, 1, 1, 1, 10, 1000, 10_000])  # so that no narrow bound holds for all
_UNITS = {torch.int64: 10_000_001, torch.float64: 1 + 2**-30}


class Case(NamedTuple):
    """A kind of tensor that an answer has to cope with."""

    name: str  # what a learner reads, in English
    number: int  # its place among the cases; with it, each case can have a different root
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    every: int = 1  # 2 for every second element of a longer tensor, which is not contiguous then

    def __str__(self) -> str:
        return _(self.name)

    def tensor(self) -> torch.Tensor:
        """A new tensor of whole units, few of them large: sums are exact in any order.

        The unit is 1 for float32; for other dtypes it is one that float32 cannot hold.
        """
        *outer, last = self.shape
        length = last * self.every
        shape = (*outer, length)
        choices = torch.randint(len(_SIZES), shape)
        sizes = _SIZES[choices]
        factors = torch.randint(-9, 10, shape)
        units = sizes * factors
        unit = _UNITS.get(self.dtype, 1)
        numbers = units.to(self.dtype) * unit
        return numbers[..., :: self.every]


CASES = (
    Case(N_("1 number"), 0, (1,)),
    Case(N_("5 numbers"), 1, (5,)),
    Case(N_("4 whole numbers (int64)"), 2, (4,), torch.int64),
    Case(N_("2 x 3 numbers"), 3, (2, 3)),
    Case(N_("300 numbers in double precision"), 4, (300,), torch.float64),
    Case(N_("no numbers at all"), 5, (0,)),
    Case(N_("every other one of 6 numbers"), 6, (3,), every=2),
)


def draw(inputs: Inputs, rank: int, world_size: int, case: Any, seed: int) -> tuple:
    """One rank's arguments, from `inputs` and torch's random numbers; raises Misuse if it fails."""
    seed_cpu(seed)
    try:
        arguments = inputs(rank, world_size, case)
    except Exception as error:
        message = _(
            "inputs({rank}, {world_size}, {case}) failed: {kind}: {error}",
            rank=rank,
            world_size=world_size,
            case=case,
            kind=type(error).__name__,
            error=error,
        )
        raise Misuse(message) from error
    if isinstance(arguments, tuple):
        return arguments
    return (arguments,)


def seed_cpu(seed: int) -> None:
    """Seed as `torch.manual_seed` does, without the millisecond that it spends on other devices."""
    torch.default_generator.manual_seed(seed)


def public_seed(rank: int, world_size: int, number: int) -> int:
    """The seed of the numbers that a learner may see: the same each time."""
    return 1_000_003 * rank + 1_009 * number + world_size
