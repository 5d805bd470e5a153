"""Wrong answers to what a learner writes in chapter 18, and for each exercise right ones.

What people write: a loss that isn't divided by the number of microbatches; only the last x and y
kept, or all of them for ever; the gradient of y sent in place of that of x; a received tensor that
needs no gradient; inputs on every stage. Schedules with a warm-up that is one too long, the same on
all stages, or of all microbatches; with a pause after as many microbatches as there are stages; in
an order that differs from stage to stage. Bubbles in place of which the work was counted.
"""

import functools

import torch
from lesson_answers import Exercise

from course_lessons import chapter_18
from course_lessons.pipeline import Neighbours, Stage, gpipe, one_f_one_b

# ---- stage ---------------------------------------------------------------------------------------


class SumOfMeans(Stage):
    def forward(self, k):
        super().forward(k)
        if self.is_last:
            x, y = self.held[k]
            self.held[k] = x, y * self.count


class DividedOnEveryStage(Stage):
    def backward(self, k):
        x, y = self.held[k]
        self.held[k] = x, y / self.count
        super().backward(k)


class OnlyTheLatest(Stage):
    def forward(self, k):
        super().forward(k)
        self.latest = self.held[k]

    def backward(self, k):
        self.held[k] = self.latest
        super().backward(k)


class NothingReleased(Stage):
    def backward(self, k):
        held = self.held[k]
        super().backward(k)
        self.held[k] = held


class GradientOfY(Stage):
    def backward(self, k):
        x, y = self.held.pop(k)
        gradient = None if self.is_last else self.receive(self.rank + 1)
        y.backward(gradient)
        if not self.is_first:
            self.send(torch.ones_like(x) if gradient is None else gradient, self.rank - 1)


class NoGradientReceived(Stage):
    def backward(self, k):
        x, y = self.held.pop(k)
        if not self.is_last:
            self.receive(self.rank + 1)
        y.sum().backward()
        if not self.is_first:
            self.send(x.grad, self.rank - 1)


class XItselfIsSent(Stage):
    def backward(self, k):
        x, y = self.held.pop(k)
        y.backward(None if self.is_last else self.receive(self.rank + 1))
        if not self.is_first:
            self.send(x, self.rank - 1)


class InputsEverywhere(Stage):
    def forward(self, k):
        if not self.is_first:
            self.receive(self.rank - 1)
        x = self.inputs[k].requires_grad_()
        y = self.layers(x)
        if self.is_last:
            y = self.loss(y, k) / self.count
        else:
            self.send(y, self.rank + 1)
        self.held[k] = x, y


class LossOfTheFirst(Stage):
    def loss(self, y, k):
        return super().loss(y, 0)


class NoGradientForX(Stage):
    """What it receives has no history and asks for none, so `x.grad` is None."""

    def receive(self, source):
        return super().receive(source).clone()

    def forward(self, k):
        super().forward(k)
        x, y = self.held[k]
        self.held[k] = x.detach(), y


class FirstStageInTheOtherOrder(Stage):
    def backward(self, k):
        super().backward(self.count - 1 - k if self.is_first else k)


class SendsTwice(Stage):
    def forward(self, k):
        super().forward(k)
        if not self.is_last:
            _, y = self.held[k]
            self.send(torch.zeros_like(y), self.rank + 1)


class InOneDict(Neighbours):
    """Right: the loss scaled by its gradient, and two lists in place of a pair."""

    def forward(self, k):
        x = self.inputs[k] if self.is_first else self.receive(self.rank - 1)
        x = x.clone().requires_grad_()
        output = self.layers(x)
        if not self.is_last:
            self.send(output.detach().clone(), self.rank + 1)
        self.held[k] = {"input": x, "output": output}

    def backward(self, k):
        kept = self.held[k]
        if self.is_last:
            loss = self.loss(kept["output"], k)
            loss.backward(torch.tensor(1 / self.count, dtype=loss.dtype))
        else:
            kept["output"].backward(self.receive(self.rank + 1))
        if self.rank > 0:
            self.send(kept["input"].grad, self.rank - 1)
        del self.held[k]


class ByAutogradGrad(Stage):
    """Right: gradients asked for, and added up by hand."""

    def backward(self, k):
        x, y = self.held.pop(k)
        gradient = None if self.is_last else self.receive(self.rank + 1)
        weights = list(self.layers.parameters())
        wanted = weights if self.is_first else [*weights, x]
        gradients = torch.autograd.grad(y, wanted, gradient)
        for weight, part in zip(weights, gradients, strict=False):
            weight.grad = part if weight.grad is None else weight.grad + part
        if not self.is_first:
            self.send(gradients[-1], self.rank - 1)


# ---- schedules -----------------------------------------------------------------------------------


def _forwards(numbers):
    return [("F", k) for k in numbers]


def _backwards(numbers):
    return [("B", k) for k in numbers]


def one_after_the_other(stage, stages, count):
    actions = []
    for k in range(count):
        actions += [("F", k), ("B", k)]
    return actions


def from_one(stage, stages, count):
    return _forwards(range(1, count + 1)) + _backwards(range(1, count + 1))


def backwards_forgotten(stage, stages, count):
    return _forwards(range(count))


def one_too_few(stage, stages, count):
    return _forwards(range(count - 1)) + _backwards(range(count - 1))


def backwards_first(stage, stages, count):
    return _backwards(range(count)) + _forwards(range(count))


def first_stage_in_reverse(stage, stages, count):
    numbers = range(count)
    return _forwards(numbers) + _backwards(reversed(numbers) if stage == 0 else numbers)


def all_of_them_twice(stage, stages, count):
    return 2 * gpipe(stage, stages, count)


def in_reverse(stage, stages, count):
    """Right for GPipe: backward from the last microbatch to the first, on every stage."""
    numbers = list(range(count))
    return _forwards(numbers) + _backwards(numbers[::-1])


def by_appending(stage, stages, count):
    """Right for GPipe."""
    actions = []
    for kind in "FB":
        for k in range(count):
            actions.append((kind, k))
    return tuple(actions)


def _with_warm_up(warm_up, count):
    warm_up = min(warm_up, count)
    actions = _forwards(range(warm_up))
    for k in range(count - warm_up):
        actions += [("F", warm_up + k), ("B", k)]
    return actions + _backwards(range(count - warm_up, count))


def warm_up_too_long(stage, stages, count):
    return _with_warm_up(stages - stage, count)


def warm_up_too_short(stage, stages, count):
    return _with_warm_up(max(stages - stage - 2, 0), count)


def same_warm_up_everywhere(stage, stages, count):
    return _with_warm_up(stages - 1, count)


def warm_up_of_the_first(stage, stages, count):
    return _with_warm_up(stage, count)


def warm_up_without_limit(stage, stages, count):
    warm_up = stages - stage - 1
    actions = _forwards(range(warm_up))
    for k in range(count - warm_up):
        actions += [("F", warm_up + k), ("B", k)]
    return actions + _backwards(range(max(count - warm_up, 0), count))


def no_cool_down(stage, stages, count):
    return _with_warm_up(stages - stage - 1, count)[: count + max(count - stages + stage + 1, 0)]


def pauses_after_each_group(stage, stages, count):
    actions, group = [], stages - stage
    for first in range(0, count, group):
        numbers = range(first, min(first + group, count))
        actions += _forwards(numbers) + _backwards(numbers)
    return actions


def by_counting(stage, stages, count):
    """Right: go forward while fewer than the limit are held."""
    actions, forwards, backwards = [], 0, 0
    while backwards < count:
        if forwards < count and forwards - backwards < stages - stage:
            actions.append(("F", forwards))
            forwards += 1
        else:
            actions.append(("B", backwards))
            backwards += 1
    return actions


def backward_first_in_turn(stage, stages, count):
    """Right: a warm-up that is one longer, and then backward before forward."""
    warm_up = min(stages - stage, count)
    actions = _forwards(range(warm_up))
    for k in range(count):
        actions.append(("B", k))
        if warm_up + k < count:
            actions.append(("F", warm_up + k))
    return actions


# ---- bubble --------------------------------------------------------------------------------------


def share_of_the_work(stages, count):
    return (stages - 1) / count


def one_stage_more(stages, count):
    return stages / (count + stages)


def without_minus_one(stages, count):
    return (stages - 1) / (count + stages)


def what_is_worked(stages, count):
    return count / (count + stages - 1)


def as_with_one_batch(stages, count):
    return (stages - 1) / stages


def both_ends(stages, count):
    return 2 * (stages - 1) / (count + 2 * (stages - 1))


def in_percent(stages, count):
    return 100 * (stages - 1) / (count + stages - 1)


def turns(stages, count):
    return stages - 1


def from_the_work(stages, count):
    return 1 - count / (count + stages - 1)


def as_ranks_and_turns(stages, count):
    every_turn = stages * (stages + count - 1)
    return (every_turn - stages * count) / every_turn


def _stages(*kinds):
    return [chapter_18.stage(kind) for kind in kinds]


def _schedules(*all_actions_of):
    return [chapter_18.schedule(actions_of) for actions_of in all_actions_of]


EXERCISES = {
    "stage": Exercise(chapter_18.STAGE),
    "gpipe": Exercise(chapter_18.GPIPE),
    "bubble": Exercise(functools.cache(lambda: chapter_18.bubble_check(Stage, gpipe))),
    "one_f_one_b": Exercise(chapter_18.ONE_F_ONE_B),
}
WRONG = {
    "stage": _stages(
        SumOfMeans, DividedOnEveryStage, OnlyTheLatest, NothingReleased, GradientOfY,
        NoGradientReceived, XItselfIsSent, InputsEverywhere, LossOfTheFirst, NoGradientForX,
        FirstStageInTheOtherOrder, SendsTwice,
    ),
    "gpipe": _schedules(
        one_after_the_other, from_one, backwards_forgotten, one_too_few, backwards_first,
        first_stage_in_reverse, all_of_them_twice, one_f_one_b,
    ),
    "bubble": [
        share_of_the_work, one_stage_more, without_minus_one, what_is_worked, as_with_one_batch,
        both_ends, in_percent, turns,
    ],
    "one_f_one_b": _schedules(
        gpipe, one_after_the_other, warm_up_too_long, warm_up_too_short, same_warm_up_everywhere,
        warm_up_of_the_first, warm_up_without_limit, no_cool_down, pauses_after_each_group,
    ),
}  # fmt: skip
RIGHT = {
    "stage": _stages(InOneDict, ByAutogradGrad),
    "gpipe": _schedules(in_reverse, by_appending),
    "bubble": [from_the_work, as_ranks_and_turns],
    "one_f_one_b": _schedules(by_counting, backward_first_in_turn),
}
STOPS = {
    *("NoGradientReceived", "NoGradientForX", "SendsTwice"),
    *("from_one", "backwards_forgotten", "one_too_few", "backwards_first", "all_of_them_twice"),
    *("warm_up_of_the_first", "warm_up_without_limit", "no_cool_down"),
}
