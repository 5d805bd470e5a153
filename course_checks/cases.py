"""Inputs that an exercise is tried on, and the seeds that they are drawn from."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Inputs = Callable[[int, int, Any], Any]


class Misuse(Exception):
    """The exercise itself is wrong, not the answer to it."""


_SIZES = torch.tensor([1, 1, 1, 1, 10, 1000, 10_000])


class Case(NamedTuple):
    """A kind of tensor that an answer has to cope with."""

    name: str  # what a learner reads
    number: int  # its place among the cases, such as to choose another root in each
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    every: int = 1  # only each so many-th element of a longer tensor, then not contiguous

    def __str__(self) -> str:
        return self.name

    def tensor(self) -> torch.Tensor:
        """A new tensor of whole units, few of them large: sums are exact, whatever their order.

        The unit is 1 where float32 is wanted, and elsewhere one that float32 cannot hold.
        """
        longer = (*self.shape[:-1], self.shape[-1] * self.every)
        unit = {torch.int64: 10_000_001, torch.float64: 1 + 2**-30}.get(self.dtype, 1)
        size = _SIZES[torch.randint(len(_SIZES), longer)]  # so that no narrow bound holds them all
        units = size * torch.randint(-9, 10, longer)
        return (units.to(self.dtype) * unit)[..., :: self.every]


CASES = (
    Case("1 number", 0, (1,)),
    Case("5 numbers", 1, (5,)),
    Case("4 whole numbers (int64)", 2, (4,), torch.int64),
    Case("2 x 3 numbers", 3, (2, 3)),
    Case("300 numbers in double precision", 4, (300,), torch.float64),
    Case("no numbers at all", 5, (0,)),
    Case("every other one of 6 numbers", 6, (3,), every=2),
)


def draw(inputs: Inputs, rank: int, world_size: int, case: Any, seed: int) -> tuple:
    """One rank's arguments, from `inputs` and torch's random numbers; raises Misuse if it fails."""
    seed_cpu(seed)
    try:
        made = inputs(rank, world_size, case)
    except Exception as error:
        message = f"inputs({rank}, {world_size}, {case}) failed: {type(error).__name__}: {error}"
        raise Misuse(message) from error
    return made if isinstance(made, tuple) else (made,)


def seed_cpu(seed: int) -> None:
    """As `torch.manual_seed`, which spends a millisecond on devices that no check uses."""
    torch.default_generator.manual_seed(seed)


def public_seed(rank: int, world_size: int, number: int) -> int:
    """The seed of a case that a learner may see: the same in every run."""
    return 1_000_003 * rank + 1_009 * number + world_size
