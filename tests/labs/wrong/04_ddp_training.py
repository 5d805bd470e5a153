"""Wrong answers to lab 04, and for each exercise another right one.

Published: no set_epoch, or inside the loop; no sampler; a sampler that never shuffles; a rate times
the world size; gradients that are summed; one rank's loss; `reduce` read off its root; model-only
checkpoints, written by every rank; parts that are not divided, or divided though they are unequal;
`no_sync` around the backward only.
"""

import contextlib
import os

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

lab = labs.cells("04_ddp_training")


def _descend(loss, optimizer, between=lambda: None):
    optimizer.zero_grad()
    loss.backward()
    between()
    optimizer.step()


def _share(global_batch):
    return global_batch // dist.get_world_size()


def _train(
    model, epochs, batch, sampler=None, rate=0.05, inside=False, between=lambda: None, told=True
):
    loader = DataLoader(lab.sixty_digits, batch, sampler=sampler, shuffle=not sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        if sampler and told and not inside:
            sampler.set_epoch(epoch)
        for images, labels in loader:
            if inside:
                sampler.set_epoch(epoch)
            _descend(cross_entropy(model(images), labels), optimizer, between)
    return lab.weights(model)


def without_set_epoch(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.sixty_digits)
    return _train(model, epochs, _share(global_batch), sampler, told=False)


def set_epoch_inside_the_loop(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.sixty_digits)
    return _train(model, epochs, _share(global_batch), sampler, inside=True)


def without_a_sampler(model, global_batch, epochs):
    return _train(DistributedDataParallel(model), epochs, _share(global_batch))


def never_shuffled(model, global_batch, epochs):
    model, sampler = (
        DistributedDataParallel(model),
        DistributedSampler(lab.sixty_digits, shuffle=False),
    )
    return _train(model, epochs, _share(global_batch), sampler)


def batch_not_divided(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.sixty_digits)
    return _train(model, epochs, global_batch, sampler)


def rate_times_world_size(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.sixty_digits)
    rate = 0.05 * dist.get_world_size()
    return _train(model, epochs, _share(global_batch), sampler, rate=rate)


def without_ddp(model, global_batch, epochs):
    return _train(model, epochs, _share(global_batch), DistributedSampler(lab.sixty_digits))


def each_from_its_own_beginning(model, global_batch, epochs):
    model, sampler = (
        DistributedDataParallel(model, init_sync=False),
        DistributedSampler(lab.sixty_digits),
    )
    return _train(model, epochs, _share(global_batch), sampler)


def gradients_summed(model, global_batch, epochs):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)

    def add_up():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    sampler = DistributedSampler(lab.sixty_digits)
    return _train(model, epochs, _share(global_batch), sampler, between=add_up)


def the_wrapper_itself(model, global_batch, epochs):
    model = DistributedDataParallel(model)
    _train(model, epochs, _share(global_batch), DistributedSampler(lab.sixty_digits))
    return list(model.parameters())


def dealt_by_hand(model, global_batch, epochs):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(global_batch):
            mine = batch[rank::world_size]
            _descend(cross_entropy(model(lab.images[mine]), lab.labels[mine]), optimizer)
    return lab.weights(model)


def _losses(model, inputs, targets, seen=lambda loss: loss.detach(), after=False):
    model, losses = DistributedDataParallel(model), []
    optimizer = lab.sgd(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        loss = mse_loss(model(some_inputs), some_targets)
        _descend(loss, optimizer)
        if after:
            with torch.no_grad():
                loss = mse_loss(model.module(some_inputs), some_targets)
        losses.append(seen(loss))
    return torch.stack(losses)


def _mean(losses):
    dist.all_reduce(losses)
    return losses / dist.get_world_size()


def ones_own_loss(model, inputs, targets):
    return _losses(model, inputs, targets)


def losses_of_rank_0(model, inputs, targets):
    losses = _losses(model, inputs, targets)
    dist.broadcast(losses, src=0)
    return losses


def losses_summed(model, inputs, targets):
    return _mean(_losses(model, inputs, targets)) * dist.get_world_size()


def read_off_root(model, inputs, targets):
    losses = _losses(model, inputs, targets)
    dist.reduce(losses, dst=0)
    return losses / dist.get_world_size()


def one_message_per_step(model, inputs, targets):
    return _losses(model, inputs, targets, seen=lambda loss: _mean(loss.detach()))


def measured_after_the_step(model, inputs, targets):
    return _mean(_losses(model, inputs, targets, after=True))


def one_number_for_all_steps(model, inputs, targets):
    return _mean(_losses(model, inputs, targets).mean())


def divided_by_two(model, inputs, targets):
    losses = _losses(model, inputs, targets)
    dist.all_reduce(losses)
    return losses / 2


def with_a_model_each(model, inputs, targets):
    optimizer, losses = lab.sgd(model), []
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        losses.append(mse_loss(model(some_inputs), some_targets))
        _descend(losses[-1], optimizer)
    return _mean(torch.stack(losses).detach())


def gathered(model, inputs, targets):
    losses = _losses(model, inputs, targets)
    every = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
    dist.all_gather(every, losses)
    return torch.stack(every).mean(dim=0)


def written_into_one_tensor(model, inputs, targets):
    """The results go into memory that was allocated before the first step."""
    losses = torch.zeros(len(inputs), dtype=torch.float64)
    model = DistributedDataParallel(model)
    optimizer = lab.sgd(model)
    for step in range(len(inputs)):
        losses[step] = lab.take_step(model, optimizer, inputs[step], targets[step])
    dist.all_reduce(losses)
    losses /= dist.get_world_size()
    return losses


class ModelAlone(lab.Stoppable):
    def save(self, path):
        if dist.get_rank() == 0:
            torch.save({"model": self.model.module.state_dict()}, path)

    def resume(self, path):
        self.model.module.load_state_dict(torch.load(path)["model"])


def _states(self):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, self.generator.get_state())
    return states


def _parts(self):
    parts = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
    return parts | {"generators": _states(self), "steps": self.steps}


def _on_rank_0(parts, path):
    if dist.get_rank() == 0:
        torch.save(parts, path)


class EveryRankWrites(lab.Stoppable):
    def save(self, path):
        torch.save(_parts(self), path)


class BesideTheFileElsewhere(lab.Stoppable):
    def save(self, path):
        torch.save(_parts(self), path if dist.get_rank() == 0 else path.with_suffix(".rank"))


class DraftLeftBehind(lab.Stoppable):
    def save(self, path):
        parts = _parts(self)
        _on_rank_0(parts, path.with_suffix(".tmp"))
        _on_rank_0(parts, path)


class StatesInTheWorkingFolder(lab.Stoppable):
    def save(self, path):
        torch.save(self.generator.get_state(), f"generator of rank {dist.get_rank()}.pt")
        super().save(path)


class StateOfTheWrapper(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self) | {"model": self.model.state_dict()}, path)

    def resume(self, path):
        saved = torch.load(path)
        _fill(self, saved, but="model")
        self.model.load_state_dict(saved["model"])


class TheModelAsAnObject(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self) | {"model": self.model.module}, path)


class OneGeneratorForAll(lab.Stoppable):
    def save(self, path):
        states = [self.generator.get_state()] * dist.get_world_size()
        _on_rank_0(_parts(self) | {"generators": states}, path)


class TorchsGenerator(lab.Stoppable):
    def save(self, path):
        states = [None] * dist.get_world_size()
        dist.all_gather_object(states, torch.get_rng_state())
        _on_rank_0(_parts(self) | {"generators": states}, path)

    def resume(self, path):
        saved = torch.load(path)
        _fill(self, saved, but="generator")
        torch.set_rng_state(saved["generators"][dist.get_rank()])


class CollectedByRank0Alone(lab.Stoppable):
    def save(self, path):
        if dist.get_rank() == 0:
            torch.save(_parts(self), path)


class ANewOptimizerSaved(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self) | {"optimizer": lab.sgd(self.model).state_dict()}, path)


class OneStepFurther(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self) | {"steps": self.steps + 1}, path)


class AlwaysStep2(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self) | {"steps": 2}, path)


class KeptInMemory(lab.Stoppable):
    """New processes have nothing of it."""

    def save(self, path):
        type(self).kept = _parts(self)
        _on_rank_0(self.kept, path)

    def resume(self, path):
        _fill(self, self.kept)


def _fill(self, saved, but=""):
    if but != "model":
        self.model.module.load_state_dict(saved["model"])
    if but != "optimizer":
        self.optimizer.load_state_dict(saved["optimizer"])
    if but != "generator":
        self.generator.set_state(saved["generators"][dist.get_rank()])
    if but != "steps":
        self.steps = saved["steps"]


class UnderANameOfItsOwn(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self), "checkpoint.pt")


class InTheWorkingFolder(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self), path.name)


class UnderANameOfItsOwnThere(lab.Stoppable):
    def save(self, path):
        _on_rank_0(_parts(self), path.with_name("checkpoint.pt"))


class ReadFromTheWorkingFolder(lab.Stoppable):
    def resume(self, path):
        _fill(self, torch.load(path.name))


class GeneratorsInMemory(lab.Stoppable):
    """By the number of steps, at which another training may be saved as well."""

    kept = {}  # noqa: RUF012

    def save(self, path):
        self.kept[self.steps] = self.generator.get_state()
        super().save(path)

    def resume(self, path):
        super().resume(path)
        self.generator.set_state(self.kept[self.steps])


class UnwrappedToBeSaved(lab.Stoppable):
    """And never wrapped again: from now on each rank trains alone."""

    def save(self, path):
        super().save(path)
        self.model = self.model.module


class SeededToBeSaved(lab.Stoppable):
    def save(self, path):
        super().save(path)
        self.generator.manual_seed(0)


class MomentumForgottenToBeSaved(lab.Stoppable):
    def save(self, path):
        super().save(path)
        self.optimizer = lab.sgd(self.model)


class OnlyOnRank0(lab.Stoppable):
    def resume(self, path):
        saved = torch.load(path)
        self.steps = saved["steps"]
        if dist.get_rank() == 0:
            _fill(self, saved)


class NotStrict(lab.Stoppable):
    def resume(self, path):
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"], strict=False)  # no key fits, and nobody says so
        _fill(self, saved, but="model")


class IntoTheWrapper(lab.Stoppable):
    def resume(self, path):
        saved = torch.load(path)
        self.model.load_state_dict(saved["model"])
        _fill(self, saved, but="model")


class WithoutTheOptimizer(lab.Stoppable):
    def resume(self, path):
        _fill(self, torch.load(path), but="optimizer")


class WithoutTheGenerator(lab.Stoppable):
    def resume(self, path):
        _fill(self, torch.load(path), but="generator")


class WithoutTheSteps(lab.Stoppable):
    def resume(self, path):
        _fill(self, torch.load(path), but="steps")


class GeneratorOfRank0(lab.Stoppable):
    def resume(self, path):
        saved = torch.load(path)
        _fill(self, saved)
        self.generator.set_state(saved["generators"][0])


class GeneratorOfTheLastRank(lab.Stoppable):
    def resume(self, path):
        saved = torch.load(path)
        _fill(self, saved)
        self.generator.set_state(saved["generators"][-1])


class IntoANewOptimizer(lab.Stoppable):
    def resume(self, path):
        saved = torch.load(path)
        _fill(self, saved, but="optimizer")
        lab.sgd(self.model).load_state_dict(saved["optimizer"])


class GatheredAsTensors(lab.Stoppable):
    """Rank 0 gathers, and when there are new ranks it reads and tells the others."""

    def save(self, path):
        own, is_root = self.generator.get_state(), dist.get_rank() == 0
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())] if is_root else None
        dist.gather(own, every, dst=0)
        parts = {"model": self.model.module.state_dict(), "all": self.optimizer.state_dict()}
        if is_root:
            torch.save(parts | {"random": torch.stack(every), "at": self.steps}, path)

    def resume(self, path):
        found = [torch.load(path)] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(found, src=0)
        (saved,) = found
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["all"])
        own = saved["random"][dist.get_rank()]
        self.generator.set_state(own.clone())  # torch dies of a row that is not the first
        self.steps = saved["at"]


class WrittenAndThenNamed(lab.Stoppable):
    def save(self, path):
        draft = path.with_suffix(".tmp")
        _on_rank_0(_parts(self) | {"torch": torch.__version__[:4]}, draft)
        if dist.get_rank() == 0:
            os.replace(draft, path)
        dist.barrier()

    def resume(self, path):
        saved = torch.load(str(path), map_location="cpu")
        _fill(self, saved, but="model")
        self.model.load_state_dict({f"module.{name}": w for name, w in saved["model"].items()})


def _accumulate(
    model, inputs, targets, parts, weigh, talks=lambda part, parts: part == parts, each=(),
    backward_only=False,
):  # fmt: skip
    optimizer = lab.sgd(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        pairs = list(zip(some_inputs.chunk(parts), some_targets.chunk(parts), strict=True))
        for part, (few, answers) in enumerate(pairs, 1):
            if "zero_grad" in each:
                optimizer.zero_grad()
            quiet = contextlib.nullcontext if talks(part, len(pairs)) else model.no_sync
            with contextlib.nullcontext() if backward_only else quiet():
                loss = mse_loss(model(few), answers) * weigh(len(few), len(some_inputs), parts)
                with quiet():
                    loss.backward()
            if "step" in each:
                optimizer.step()
        if "step" not in each:
            optimizer.step()
    return lab.weights(model)


def _rightly(size, whole, parts):
    return size / whole


@lab.accumulating
def not_divided(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, lambda size, whole, parts: 1)


@lab.accumulating
def divided_by_unequal_parts(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, lambda size, whole, parts: 1 / parts)


@lab.accumulating
def no_sync_around_backward_only(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, _rightly, backward_only=True)


@lab.accumulating
def without_no_sync(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, _rightly, talks=lambda part, parts: True)


@lab.accumulating
def no_sync_to_the_end(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, _rightly, talks=lambda part, parts: False)


@lab.accumulating
def the_first_part_talks(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, _rightly, talks=lambda part, parts: part == 1)


@lab.accumulating
def a_step_for_each_part(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, _rightly, each=("step",))


@lab.accumulating
def zero_grad_for_each_part(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, parts, _rightly, each=("zero_grad",))


@lab.accumulating
def divided_by_the_world_as_well(model, inputs, targets, parts):
    weigh = lambda size, whole, parts: size / whole / dist.get_world_size()  # noqa: E731
    return _accumulate(model, inputs, targets, parts, weigh)


@lab.accumulating
def added_up_by_hand(model, inputs, targets, parts):
    network = model.module
    optimizer = lab.sgd(network)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        pairs = zip(some_inputs.chunk(parts), some_targets.chunk(parts), strict=True)
        for few, answers in pairs:
            (mse_loss(network(few), answers, reduction="sum") / some_targets.numel()).backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in network.parameters()])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        for parameter in network.parameters():
            parameter.grad.copy_(flat[: parameter.numel()].view_as(parameter))
            flat = flat[parameter.numel() :]
        optimizer.step()
    return lab.weights(network)


def all_of_it_past_ddp(model, global_batch, epochs):
    return lab.train_alone(DistributedDataParallel(model).module, global_batch, epochs)


def whole_batch_on_each_rank(model, global_batch, epochs):
    return lab.train_alone(DistributedDataParallel(model), global_batch, epochs)


def trained_on_rank_0_alone(model, global_batch, epochs):
    rank = dist.get_rank()
    found = lab.train_alone(model, global_batch, epochs) if rank == 0 else lab.weights(model)
    dist.broadcast(found, src=0)
    return found


def batches_of_12(model, global_batch, epochs):
    return dealt_by_hand(model, 12, epochs)


def one_epoch(model, global_batch, epochs):
    return dealt_by_hand(model, global_batch, 1)


def _data_of_all(*tensors):
    for mine in tensors:
        every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(every, mine.contiguous())
        yield torch.cat(every, dim=1)


def data_gathered_and_trained_alone(model, inputs, targets):
    """The specification, on everything."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer, losses = lab.sgd(model), []
    for some_inputs, some_targets in zip(*_data_of_all(inputs, targets), strict=True):
        losses.append(mse_loss(model(some_inputs), some_targets))
        _descend(losses[-1], optimizer)
    return torch.stack(losses).detach()


def largest_loss(model, inputs, targets):
    losses = _losses(model, inputs, targets)
    dist.all_reduce(losses, op=dist.ReduceOp.MAX)
    return losses


def losses_as_objects(model, inputs, targets):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, _losses(model, inputs, targets).tolist())
    return np.mean(every, axis=0)


@lab.accumulating
def all_of_it_at_once(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, 1, _rightly)


@lab.accumulating
def everybodys_in_parts(model, inputs, targets, parts):
    """Each rank does all of the work, in as many parts more."""
    return _accumulate_past_ddp(
        model, *_data_of_all(inputs, targets), parts * dist.get_world_size()
    )


def _accumulate_past_ddp(model, inputs, targets, parts):
    optimizer = lab.sgd(model.module)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        for few, answers in zip(some_inputs.chunk(parts), some_targets.chunk(parts), strict=True):
            loss = mse_loss(model.module(few), answers, reduction="sum") / some_targets.numel()
            loss.backward()
        optimizer.step()
    return lab.weights(model)


@lab.accumulating
def talks_at_the_number_asked_for(model, inputs, targets, parts):
    """`chunk` may give fewer, and then nobody ever talks."""
    talks = lambda part, parts_made: part == parts  # noqa: E731
    return _accumulate(model, inputs, targets, parts, _rightly, talks=talks)


@lab.accumulating
def one_backward_for_all_parts(model, inputs, targets, parts):
    """Every part's graph is kept."""
    optimizer = lab.sgd(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        pairs, total = list(zip(some_inputs.chunk(parts), some_targets.chunk(parts))), 0  # noqa: B905
        for number, (few, answers) in enumerate(pairs, 1):
            with contextlib.nullcontext() if number == len(pairs) else model.no_sync():
                total = total + mse_loss(model(few), answers) * len(few) / len(some_inputs)
        _descend(total, optimizer)
    return lab.weights(model)


@lab.accumulating
def outputs_put_together(model, inputs, targets, parts):
    optimizer = lab.sgd(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        outputs = torch.cat([model(few) for few in some_inputs.chunk(parts)])
        _descend(mse_loss(outputs, some_targets), optimizer)
    return lab.weights(model)


@lab.accumulating
def two_parts_at_a_time(model, inputs, targets, parts):
    """Their graphs do not fit beside each other."""
    optimizer = lab.sgd(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        optimizer.zero_grad()
        total, pairs = 0, list(zip(some_inputs.chunk(parts), some_targets.chunk(parts)))  # noqa: B905
        for number, (few, answers) in enumerate(pairs, 1):
            with contextlib.nullcontext() if number == len(pairs) else model.no_sync():
                total = total + mse_loss(model(few), answers) * len(few) / len(some_inputs)
                if number % 2 == 0 or number == len(pairs):
                    total = total.backward() or 0
        optimizer.step()
    return lab.weights(model)


@lab.accumulating
def without_a_context(model, inputs, targets, parts):
    """All parts but the last past DDP, and a look at the loss without a graph."""
    optimizer = lab.sgd(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        model.zero_grad()
        *pairs, last = zip(some_inputs.chunk(parts), some_targets.chunk(parts))  # noqa: B905
        for few, answers in pairs:
            loss = mse_loss(model.module(few), answers, reduction="sum")
            (loss / some_targets.numel()).backward()
        with torch.no_grad():
            model.module(last[0])
        loss = mse_loss(model(last[0]), last[1], reduction="sum") / some_targets.numel()
        loss.backward()
        optimizer.step()
    return lab.weights(model).numpy()


@lab.accumulating
def sample_by_sample(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, inputs.shape[1], _rightly)


def everybodys_by_elements(model, global_batch, epochs):
    """All digits on every rank, in products that no matrix product shows."""
    layer = model[1]
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    for epoch in range(epochs):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(global_batch):
            rows = lab.images[batch].flatten(1)
            scores = (rows[:, None] * weight).sum(-1) + bias
            wrong = scores.softmax(1)
            wrong[torch.arange(len(batch)), lab.labels[batch]] -= 1
            slope = (wrong[:, :, None] * rows[:, None]).mean(0)
            weight -= 0.05 * slope
            bias -= 0.05 * wrong.mean(0)
    return torch.cat([weight.flatten(), bias])


def _reduced(tensor, operator):
    copy = tensor.clone()
    dist.all_reduce(copy, operator)
    return copy


def _first(bad_steps):
    numbers = bad_steps.nonzero().flatten().tolist()
    return numbers[0] if numbers else -1


def _differs(history):
    largest = _reduced(history, dist.ReduceOp.MAX)
    return (largest != _reduced(history, dist.ReduceOp.MIN)).any(dim=1)


def fork_without_asking_for_nan(history):
    return _first(_differs(history))


def fork_that_asks_itself_alone(history):
    return _first(_differs(history) | history.isnan().any(dim=1))


def fork_from_rank_0(history):
    first = history.clone()
    dist.broadcast(first, src=0)
    return _first((history != first).any(dim=1))


def fork_from_the_mean(history):
    """On three ranks a mean of equal numbers is rounded."""
    mean = _reduced(history, dist.ReduceOp.SUM) / dist.get_world_size()
    is_bad = (history != mean).any(dim=1).int()
    return _first(_reduced(is_bad, dist.ReduceOp.MAX))


def last_fork(history):
    everybodys = [torch.empty_like(history) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, history)
    bad_steps = (torch.stack(everybodys) != everybodys[0]).any(dim=2).any(dim=0)
    numbers = bad_steps.nonzero().flatten().tolist()
    return numbers[-1] if numbers else -1


def fork_counted_from_one(history):
    return by_gathered_histories(history) + 1


def how_many_forks(history):
    everybodys = [torch.empty_like(history) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, history)
    return int((torch.stack(everybodys) != everybodys[0]).any(dim=2).any(dim=0).sum())


def fork_of_sums(history):
    return _first(_differs(history.sum(dim=1, keepdim=True)))


def fork_at_the_end_alone(history):
    is_bad = _differs(history[-1:])
    return len(history) - 1 if is_bad.any() else -1


def zero_if_never(history):
    return max(0, by_gathered_histories(history))


def by_gathered_histories(history):
    everybodys = [None] * dist.get_world_size()
    dist.all_gather_object(everybodys, history)
    for step in range(len(history)):
        for other in everybodys:
            if not torch.equal(other[step], everybodys[0][step]):
                return step
    return -1


def by_flags_from_rank_0(history):
    """Compares with rank 0 and adds up flags; a nan is unequal to everything."""
    first = history.clone()
    dist.broadcast(first, src=0)
    flags = (history != first).any(dim=1).float()
    dist.all_reduce(flags)
    return _first(flags)


WRONG = {
    "train": [
        whole_batch_on_each_rank, trained_on_rank_0_alone, batches_of_12, one_epoch,
        all_of_it_past_ddp,
        without_set_epoch, set_epoch_inside_the_loop, without_a_sampler, never_shuffled,
        batch_not_divided, rate_times_world_size, without_ddp, each_from_its_own_beginning,
        gradients_summed, the_wrapper_itself,
        everybodys_by_elements,
    ],
    "global_losses": [
        data_gathered_and_trained_alone, largest_loss,
        ones_own_loss, losses_of_rank_0, losses_summed, read_off_root, one_message_per_step,
        measured_after_the_step, one_number_for_all_steps, divided_by_two, with_a_model_each,
    ],
    "Stoppable": [
        ModelAlone, EveryRankWrites, BesideTheFileElsewhere, DraftLeftBehind,
        StatesInTheWorkingFolder, StateOfTheWrapper, TheModelAsAnObject, OneGeneratorForAll,
        TorchsGenerator, CollectedByRank0Alone, ANewOptimizerSaved, OneStepFurther, AlwaysStep2,
        KeptInMemory, OnlyOnRank0, NotStrict, IntoTheWrapper, WithoutTheOptimizer,
        WithoutTheGenerator, WithoutTheSteps, GeneratorOfRank0, GeneratorOfTheLastRank,
        IntoANewOptimizer, UnderANameOfItsOwn, InTheWorkingFolder, UnderANameOfItsOwnThere,
        ReadFromTheWorkingFolder, GeneratorsInMemory, UnwrappedToBeSaved, SeededToBeSaved,
        MomentumForgottenToBeSaved,
    ],
    "accumulate": [
        all_of_it_at_once, everybodys_in_parts,
        not_divided, divided_by_unequal_parts, no_sync_around_backward_only, without_no_sync,
        no_sync_to_the_end, the_first_part_talks, a_step_for_each_part, zero_grad_for_each_part,
        divided_by_the_world_as_well, talks_at_the_number_asked_for, one_backward_for_all_parts,
        outputs_put_together, two_parts_at_a_time,
    ],
    "first_fork": [
        fork_without_asking_for_nan, fork_that_asks_itself_alone, fork_from_rank_0, last_fork,
        fork_from_the_mean, fork_counted_from_one, how_many_forks, fork_of_sums,
        fork_at_the_end_alone, zero_if_never,
    ],
}  # fmt: skip
STOPS = {
    "StateOfTheWrapper",
    "TheModelAsAnObject",
    "CollectedByRank0Alone",
    "IntoTheWrapper",
    "UnderANameOfItsOwn",
    "InTheWorkingFolder",
    "UnderANameOfItsOwnThere",
    "ReadFromTheWorkingFolder",
    "all_of_it_at_once",
    "one_backward_for_all_parts",
    "outputs_put_together",
    "two_parts_at_a_time",
}
RIGHT = {
    "train": dealt_by_hand,
    "global_losses": [gathered, losses_as_objects, written_into_one_tensor],
    "Stoppable": [GatheredAsTensors, WrittenAndThenNamed],
    "accumulate": [added_up_by_hand, sample_by_sample, without_a_context],
    "first_fork": [by_gathered_histories, by_flags_from_rank_0],
}
for answers in (WRONG, RIGHT):
    answers["Stoppable"] = [*map(lab.stopping, answers["Stoppable"])]
