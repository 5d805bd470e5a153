"""The versions of three functions that lab 16 tries tests on; reading them spoils the lab.

Each wrong version is a mistake that people make, with a clue for whoever lets it pass. The right
ones differ in how they compute, so in their last bits, and in nothing that their contract names.
"""

import random
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lessons.chapter_16 import Version


def _right(function: Callable) -> Version:
    return Version(lambda: function)


def _wrong(function: Callable, clue: str, from_ranks: int = 2) -> Version:
    return Version(lambda: function, clue, from_ranks)


# 1 · my_indices


def _shuffled(samples: int, seed: int) -> list[int]:
    indices = list(range(samples))
    random.Random(seed).shuffle(indices)
    return indices


def _padded(indices: list[int]) -> list[int]:
    """With its first ones again at the end, so that each rank gets equally many."""
    missing = -len(indices) % dist.get_world_size()
    return indices + indices[:missing]


def every_nth(samples: int, epoch: int) -> list[int]:
    """Take each n-th index of an order that all ranks shuffle alike."""
    indices = _padded(_shuffled(samples, epoch))
    return indices[dist.get_rank() :: dist.get_world_size()]


def in_blocks(samples: int, epoch: int) -> list[int]:
    """Right as well: neighbours in the order, and another order."""
    indices = _padded(_shuffled(samples, 1000 - 7 * epoch))
    length = len(indices) // dist.get_world_size()
    start = dist.get_rank() * length
    return indices[start : start + length]


def repeats_the_last(samples: int, epoch: int) -> list[int]:
    """Right as well: the last index is what fills up, and the order is torch's."""
    generator = torch.Generator().manual_seed(epoch)
    indices = torch.randperm(samples, generator=generator).tolist()
    missing = -samples % dist.get_world_size()
    indices += indices[-1:] * missing
    return indices[dist.get_rank() :: dist.get_world_size()]


def _all_on_every_rank(samples: int, epoch: int) -> list[int]:
    return _shuffled(samples, epoch)


def _without_the_tail(samples: int, epoch: int) -> list[int]:
    length = samples // dist.get_world_size()
    indices = _shuffled(samples, epoch)[: length * dist.get_world_size()]
    return indices[dist.get_rank() :: dist.get_world_size()]


def _not_filled_up(samples: int, epoch: int) -> list[int]:
    return _shuffled(samples, epoch)[dist.get_rank() :: dist.get_world_size()]


def _always_in_this_order(samples: int, epoch: int) -> list[int]:
    return _padded(_shuffled(samples, 0))[dist.get_rank() :: dist.get_world_size()]


def _each_rank_its_order(samples: int, epoch: int) -> list[int]:
    indices = _padded(_shuffled(samples, 100 * epoch + dist.get_rank()))
    return indices[dist.get_rank() :: dist.get_world_size()]


def _another_order_each_time() -> Callable:
    calls = []

    def my_indices(samples: int, epoch: int) -> list[int]:
        calls.append(epoch)
        seed = 1000 * epoch + len(calls)
        return _padded(_shuffled(samples, seed))[dist.get_rank() :: dist.get_world_size()]

    return my_indices


def _a_round_too_many(samples: int, epoch: int) -> list[int]:
    indices = _shuffled(samples, epoch)
    missing = dist.get_world_size() - samples % dist.get_world_size()
    indices += indices[:missing]
    return indices[dist.get_rank() :: dist.get_world_size()]


def _shuffled_after_sharing(samples: int, epoch: int) -> list[int]:
    shard = _padded(list(range(samples)))[dist.get_rank() :: dist.get_world_size()]
    random.Random(epoch).shuffle(shard)
    return shard


INDICES = {
    "every n-th": _right(every_nth),
    "in blocks": _right(in_blocks),
    "repeats the last": _right(repeats_the_last),
    "all on every rank": _wrong(_all_on_every_rank, "gives every rank all samples"),
    "without the tail": _wrong(
        _without_the_tail, "loses samples where the ranks don't divide their number"
    ),
    "not filled up": _wrong(
        _not_filled_up, "gives ranks different numbers of samples where they don't divide them"
    ),
    "always in this order": _wrong(_always_in_this_order, "has the same order in each epoch"),
    "each rank its order": _wrong(
        _each_rank_its_order, "shuffles differently on each rank, so some samples never come"
    ),
    "another order each time": Version(
        _another_order_each_time, "gives something else when it is asked for one epoch again", 1
    ),
    "a round too many": _wrong(
        _a_round_too_many, "repeats samples although the ranks divide their number"
    ),
    "shuffled after sharing": _wrong(
        _shuffled_after_sharing, "gives each rank the same samples in every epoch, reordered"
    ),
}


# 2 · mean_of_all


def _reduced(*numbers: float) -> Tensor:
    totals = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(totals)
    return totals


def sum_and_count(numbers: Tensor) -> float:
    """One all-reduce of a sum and a count."""
    total, count = _reduced(numbers.sum().item(), len(numbers))
    return (total / count).item()


def in_two_calls(numbers: Tensor) -> float:
    """Right as well: the count first."""
    count = _reduced(len(numbers))
    total = (numbers / count).sum()
    dist.all_reduce(total)
    return total.item()


def from_gathered(numbers: Tensor) -> float:
    """Right as well: each rank computes the mean of everything."""
    shards: list = [None] * dist.get_world_size()
    dist.all_gather_object(shards, numbers.tolist())
    everything = sorted(number for shard in shards for number in shard)
    return sum(everything) / len(everything)


def _mean_of_means(numbers: Tensor) -> float:
    own_mean = numbers.mean().item() if len(numbers) else 0.0
    return (_reduced(own_mean) / dist.get_world_size()).item()


def _by_own_count(numbers: Tensor) -> float:
    total = _reduced(numbers.sum().item())
    return (total / max(1, len(numbers)) / dist.get_world_size()).item()


def _on_rank_0_alone(numbers: Tensor) -> float:
    totals = torch.tensor([numbers.sum().item(), len(numbers)], dtype=torch.float64)
    dist.reduce(totals, dst=0)
    return (totals[0] / totals[1]).item()


def _in_place(numbers: Tensor) -> float:
    count = _reduced(len(numbers))
    numbers /= count
    total = numbers.sum()
    dist.all_reduce(total)
    return total.item()


def _in_single_precision(numbers: Tensor) -> float:
    totals = torch.stack([numbers.float().sum(), torch.tensor(float(len(numbers)))])
    dist.all_reduce(totals)
    return (totals[0] / totals[1]).item()


def _leaves_if_empty(numbers: Tensor) -> float:
    if len(numbers) == 0:
        return 0.0
    return sum_and_count(numbers)


def _nan_if_empty(numbers: Tensor) -> float:
    weighted = numbers.mean().item() * len(numbers)
    total, count = _reduced(weighted, len(numbers))
    return (total / count).item()


def _without_the_odd_rank(numbers: Tensor) -> float:
    parts: list = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (numbers.sum().item(), len(numbers)))
    total = count = 0.0
    for first, second in zip(parts[::2], parts[1::2], strict=False):
        total += first[0] + second[0]
        count += first[1] + second[1]
    return total / max(count, 1.0)


def _remembers_the_count() -> Callable:
    counts = []

    def mean_of_all(numbers: Tensor) -> float:
        if not counts:
            counts.append(_reduced(len(numbers)))
        return (_reduced(numbers.sum().item()) / counts[0]).item()

    return mean_of_all


MEANS = {
    "sum and count": _right(sum_and_count),
    "in two calls": _right(in_two_calls),
    "from gathered": _right(from_gathered),
    "mean of means": _wrong(_mean_of_means, "is wrong where ranks have different counts"),
    "by own count": _wrong(_by_own_count, "divides by its own count times the number of ranks"),
    "on rank 0 alone": _wrong(_on_rank_0_alone, "is right on rank 0, and nowhere else"),
    "in place": _wrong(_in_place, "changes the numbers it was given"),
    "in single precision": _wrong(_in_single_precision, "is right to seven digits"),
    "leaves if empty": _wrong(_leaves_if_empty, "hangs where a rank has no numbers"),
    "NaN if empty": _wrong(_nan_if_empty, "returns nan where a rank has no numbers"),
    "without the odd rank": _wrong(
        _without_the_odd_rank, "leaves out the last of three ranks", from_ranks=3
    ),
    "remembers the count": Version(
        _remembers_the_count, "is wrong when it is called again, with other counts"
    ),
}


# 3 · average_gradients


def _trained(parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.requires_grad]


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad


def _set(parameters: list[nn.Parameter], flat: Tensor) -> None:
    start = 0
    for parameter in parameters:
        part = flat[start : start + parameter.numel()]
        parameter.grad = part.view_as(parameter).clone()
        start += parameter.numel()


def _flattened(parameters: list[nn.Parameter]) -> Tensor:
    return torch.cat([_gradient(parameter).flatten() for parameter in parameters])


def flat_sum(parameters: list[nn.Parameter]) -> None:
    """One all-reduce of all gradients in a row."""
    trained = _trained(parameters)
    flat = _flattened(trained)
    dist.all_reduce(flat)
    _set(trained, flat / dist.get_world_size())


def divided_first(parameters: list[nn.Parameter]) -> None:
    """Right as well: divided before it is added up, from the last parameter to the first."""
    trained = _trained(parameters)[::-1]
    flat = _flattened(trained) / dist.get_world_size()
    dist.all_reduce(flat)
    _set(trained, flat)


def by_torchs_mean(parameters: list[nn.Parameter]) -> None:
    """Right as well: torch divides, and gradients are written where they are."""
    trained = _trained(parameters)
    flat = _flattened(trained)
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    parts = flat.split([parameter.numel() for parameter in trained])
    for parameter, part in zip(trained, parts, strict=True):
        if parameter.grad is None:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(part.view_as(parameter))


def _one_call_each(parameters: list[nn.Parameter]) -> None:
    for parameter in _trained(parameters):
        gradient = _gradient(parameter)
        dist.all_reduce(gradient)
        parameter.grad = gradient / dist.get_world_size()


def _sums(parameters: list[nn.Parameter]) -> None:
    trained = _trained(parameters)
    flat = _flattened(trained)
    dist.all_reduce(flat)
    _set(trained, flat)


def _skips_who_has_none(parameters: list[nn.Parameter]) -> None:
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    flat = _flattened(with_gradient)
    dist.all_reduce(flat)
    _set(with_gradient, flat / dist.get_world_size())


def _leaves_none(parameters: list[nn.Parameter]) -> None:
    trained = _trained(parameters)
    had_none = [parameter for parameter in trained if parameter.grad is None]
    flat_sum(parameters)
    for parameter in had_none:
        parameter.grad = None


def _in_double(parameters: list[nn.Parameter]) -> None:
    trained = _trained(parameters)
    flat = _flattened(trained).double()
    dist.all_reduce(flat)
    _set(trained, (flat / dist.get_world_size()).float())


def _rounded(parameters: list[nn.Parameter]) -> None:
    trained = _trained(parameters)
    rounded = _flattened(trained).bfloat16().float()
    dist.all_reduce(rounded)
    _set(trained, rounded / dist.get_world_size())


def _frozen_as_well(parameters: list[nn.Parameter]) -> None:
    flat = _flattened(parameters)
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, flat.split(sizes), strict=True):
        if parameter.requires_grad:
            parameter.grad = part.view_as(parameter).clone()


def _behind_a_barrier(parameters: list[nn.Parameter]) -> None:
    dist.barrier()
    flat_sum(parameters)


def _divides_by_who_has_one(parameters: list[nn.Parameter]) -> None:
    trained = _trained(parameters)
    present = []
    for parameter in trained:
        present.append(0.0 if parameter.grad is None else 1.0)
    flat = torch.cat([_flattened(trained), torch.tensor(present)])
    dist.all_reduce(flat)
    counts = flat[-len(trained) :].clamp(min=1.0)
    _set(trained, flat[: -len(trained)])
    for parameter, count in zip(trained, counts, strict=True):
        parameter.grad /= count


def _steps_as_well(parameters: list[nn.Parameter]) -> None:
    flat_sum(parameters)
    with torch.no_grad():
        for parameter in _trained(parameters):
            parameter -= 0.001 * parameter.grad


GRADIENTS = {
    "flat sum": _right(flat_sum),
    "divided first": _right(divided_first),
    "by torch's mean": _right(by_torchs_mean),
    "one call each": _wrong(_one_call_each, "calls all_reduce once for each parameter", 1),
    "sums": _wrong(_sums, "leaves sums, not averages"),
    "skips who has none": _wrong(
        _skips_who_has_none, "sends nothing for a parameter that has no gradient on this rank"
    ),
    "leaves None": _wrong(_leaves_none, "gives no average to the rank that had no gradient itself"),
    "in double": _wrong(_in_double, "sends twice as many bytes as it has to", 1),
    "rounded": _wrong(_rounded, "rounds gradients to three digits on the way", 1),
    "frozen as well": _wrong(_frozen_as_well, "sends zeros for frozen parameters as well", 1),
    "behind a barrier": _wrong(_behind_a_barrier, "has a barrier that nobody needs", 1),
    "divides by who has one": _wrong(
        _divides_by_who_has_one, "averages over those ranks only that have a gradient"
    ),
    "steps as well": _wrong(_steps_as_well, "changes the weights too", 1),
}
