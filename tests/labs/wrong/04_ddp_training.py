"""Wrong answers to lab 04, and for each exercise another right one.

Published: no set_epoch, or inside the loop; no sampler; a sampler that never shuffles; a rate times
the world size; gradients that are summed; weights averaged instead; one rank's loss; `reduce` read
off its root; model-only checkpoints, written by every rank; parts that are not divided, or divided
though they are unequal; `no_sync` around the backward only.
"""

import contextlib
import os

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
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
    loader = DataLoader(lab.part, batch, sampler=sampler, shuffle=not sampler)
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
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.part)
    return _train(model, epochs, _share(global_batch), sampler, told=False)


def set_epoch_inside_the_loop(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.part)
    return _train(model, epochs, _share(global_batch), sampler, inside=True)


def without_a_sampler(model, global_batch, epochs):
    return _train(DistributedDataParallel(model), epochs, _share(global_batch))


def never_shuffled(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.part, shuffle=False)
    return _train(model, epochs, _share(global_batch), sampler)


def batch_not_divided(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.part)
    return _train(model, epochs, global_batch, sampler)


def rate_times_world_size(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model), DistributedSampler(lab.part)
    rate = 0.05 * dist.get_world_size()
    return _train(model, epochs, _share(global_batch), sampler, rate=rate)


def without_ddp(model, global_batch, epochs):
    return _train(model, epochs, _share(global_batch), DistributedSampler(lab.part))


def each_from_its_own_beginning(model, global_batch, epochs):
    model, sampler = DistributedDataParallel(model, init_sync=False), DistributedSampler(lab.part)
    return _train(model, epochs, _share(global_batch), sampler)


def gradients_summed(model, global_batch, epochs):
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)

    def add_up():
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)

    sampler = DistributedSampler(lab.part)
    return _train(model, epochs, _share(global_batch), sampler, between=add_up)


def the_wrapper_itself(model, global_batch, epochs):
    model = DistributedDataParallel(model)
    _train(model, epochs, _share(global_batch), DistributedSampler(lab.part))
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
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
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        losses.append(mse_loss(model(some_inputs), some_targets))
        _descend(losses[-1], optimizer)
    return _mean(torch.stack(losses).detach())


def gathered(model, inputs, targets):
    losses = _losses(model, inputs, targets)
    every = [torch.empty_like(losses) for _ in range(dist.get_world_size())]
    dist.all_gather(every, losses)
    return torch.stack(every).mean(dim=0)


def _fit(model, inputs, targets, start="all", between=lambda model: None, after=lambda model: None):
    for parameter in model.parameters():
        if start == "all" or (start == "learning" and parameter.requires_grad):
            dist.broadcast(parameter.data, src=0)
    optimizer = lab.adam(model)
    for some_inputs, some_targets in zip(inputs, targets, strict=True):
        loss = mse_loss(model(some_inputs), some_targets)
        _descend(loss, optimizer, lambda: between(model))
        after(model)
    return lab.weights(model)


def _gradients(model):
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _average(tensors, divisor=None):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= divisor or dist.get_world_size()


def _average_gradients(model):
    _average(_gradients(model))


def without_the_broadcast(model, inputs, targets):
    return _fit(model, inputs, targets, "none", _average_gradients)


def only_what_learns_is_broadcast(model, inputs, targets):
    return _fit(model, inputs, targets, "learning", _average_gradients)


def gradients_added_up(model, inputs, targets):
    return _fit(model, inputs, targets, between=lambda model: _average(_gradients(model), 1))


def gradients_halved(model, inputs, targets):
    return _fit(model, inputs, targets, between=lambda model: _average(_gradients(model), 2))


def weights_averaged(model, inputs, targets):
    after = lambda model: _average([p.data for p in model.parameters()])  # noqa: E731
    return _fit(model, inputs, targets, after=after)


def averaged_after_the_step(model, inputs, targets):
    return _fit(model, inputs, targets, after=_average_gradients)


def no_average(model, inputs, targets):
    return _fit(model, inputs, targets)


def average_thrown_away(model, inputs, targets):
    copied = lambda model: _average([own.clone() for own in _gradients(model)])  # noqa: E731
    return _fit(model, inputs, targets, between=copied)


def frozen_ones_as_well(model, inputs, targets):
    every = lambda model: _average([p.grad for p in model.parameters()])  # noqa: E731
    return _fit(model, inputs, targets, between=every)


def with_ddp(model, inputs, targets):
    return _fit(DistributedDataParallel(model), inputs, targets, "none")


def in_one_flat_buffer(model, inputs, targets):
    every = lab.weights(model)
    dist.broadcast(every, src=0)
    nn.utils.vector_to_parameters(every, model.parameters())

    def average(model):
        flat = torch.cat([gradient.flatten() for gradient in _gradients(model)])
        dist.all_reduce(flat, op=dist.ReduceOp.AVG)
        for gradient in _gradients(model):
            gradient.copy_(flat[: gradient.numel()].view_as(gradient))
            flat = flat[gradient.numel() :]

    return _fit(model, inputs, targets, "none", average)


def _states(generator):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, generator.get_state())
    return states


def _parts(model, optimizer, step, generators):
    states = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
    return states | {"step": step, "generators": generators}


def _on_rank_0(parts, path):
    if dist.get_rank() == 0:
        torch.save(parts, path)


@lab.saving
def model_only_on_every_rank(path, model, optimizer, step, generator):
    torch.save(model.state_dict(), path)


@lab.saving
def all_of_it_on_every_rank(path, model, optimizer, step, generator):
    torch.save(_parts(model, optimizer, step, _states(generator)), path)


@lab.saving
def model_alone(path, model, optimizer, step, generator):
    _on_rank_0({"model": model.module.state_dict()}, path)


@lab.saving
def state_of_the_wrapper(path, model, optimizer, step, generator):
    parts = _parts(model, optimizer, step, _states(generator))
    _on_rank_0(parts | {"model": model.state_dict()}, path)


@lab.saving
def the_model_as_an_object(path, model, optimizer, step, generator):
    _on_rank_0(_parts(model, optimizer, step, _states(generator)) | {"model": model.module}, path)


@lab.saving
def one_generator_for_all(path, model, optimizer, step, generator):
    states = [generator.get_state()] * dist.get_world_size()
    _on_rank_0(_parts(model, optimizer, step, states), path)


@lab.saving
def torchs_generator(path, model, optimizer, step, generator):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, torch.get_rng_state())
    _on_rank_0(_parts(model, optimizer, step, states), path)


@lab.saving
def collected_by_rank_0_alone(path, model, optimizer, step, generator):
    if dist.get_rank() == 0:
        torch.save(_parts(model, optimizer, step, _states(generator)), path)


@lab.saving
def a_new_optimizer(path, model, optimizer, step, generator):
    _on_rank_0(_parts(model, lab.sgd(model), step, _states(generator)), path)


@lab.saving
def the_step_after_the_next(path, model, optimizer, step, generator):
    _on_rank_0(_parts(model, optimizer, step + 1, _states(generator)), path)


@lab.saving
def gathered_as_tensors(path, model, optimizer, step, generator):
    own, is_root = generator.get_state(), dist.get_rank() == 0
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())] if is_root else None
    dist.gather(own, every, dst=0)
    if is_root:
        torch.save(_parts(model, optimizer, step, every), path)


def _fill(saved, model, optimizer, generator, but=""):
    if but != "model":
        model.module.load_state_dict(saved["model"])
    if but != "optimizer":
        optimizer.load_state_dict(saved["optimizer"])
    if but != "generator":
        generator.set_state(saved["generators"][dist.get_rank()])
    return saved["step"]


@lab.resuming
def only_on_rank_0(path, model, optimizer, generator):
    saved = torch.load(path)
    if dist.get_rank() == 0:
        _fill(saved, model, optimizer, generator)
    return saved["step"]


@lab.resuming
def not_strict(path, model, optimizer, generator):
    saved = torch.load(path)
    model.load_state_dict(saved["model"], strict=False)  # no key fits, and nobody says so
    return _fill(saved, model, optimizer, generator, but="model")


@lab.resuming
def into_the_wrapper(path, model, optimizer, generator):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    return _fill(saved, model, optimizer, generator, but="model")


@lab.resuming
def without_the_optimizer(path, model, optimizer, generator):
    return _fill(torch.load(path), model, optimizer, generator, but="optimizer")


@lab.resuming
def without_the_generator(path, model, optimizer, generator):
    return _fill(torch.load(path), model, optimizer, generator, but="generator")


@lab.resuming
def generator_of_rank_0(path, model, optimizer, generator):
    saved = torch.load(path)
    generator.set_state(saved["generators"][0])
    return _fill(saved, model, optimizer, generator, but="generator")


@lab.resuming
def into_a_new_optimizer(path, model, optimizer, generator):
    return _fill(torch.load(path), model, lab.sgd(model), generator)


@lab.resuming
def one_step_further(path, model, optimizer, generator):
    return _fill(torch.load(path), model, optimizer, generator) + 1


@lab.resuming
def read_by_rank_0(path, model, optimizer, generator):
    found = [torch.load(path)] if dist.get_rank() == 0 else [None]
    dist.broadcast_object_list(found, src=0)
    return _fill(found[0], model, optimizer, generator)


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


def all_data_to_everybody(model, inputs, targets):
    n = dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    whole = []
    for mine in (inputs, targets):
        every = [mine.clone() for _ in range(n)]
        for rank, one in enumerate(every):
            dist.broadcast(one, src=rank)
        whole.append(torch.cat(every, dim=1))
    return lab.fit_alone(model, *whole)


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
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
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


def only_the_last_layer_averaged(model, inputs, targets):
    return _fit(model, inputs, targets, between=lambda model: _average(_gradients(model[2])))


def averaged_on_rank_0(model, inputs, targets):
    def between(model):
        for gradient in _gradients(model):
            dist.reduce(gradient, 0)
            gradient /= dist.get_world_size()

    return _fit(model, inputs, targets, between=between)


def averaged_in_hooks(model, inputs, targets):
    def average(parameter):
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, async_op=True).get_future().wait()

    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(average)
    return _fit(model, inputs, targets, between=lambda model: dist.barrier()).numpy()


@lab.saving
def always_step_2(path, model, optimizer, step, generator):
    _on_rank_0(_parts(model, optimizer, 2, _states(generator)), path)


@lab.saving
def beside_the_file_elsewhere(path, model, optimizer, step, generator):
    own = path if dist.get_rank() == 0 else path.with_suffix(".rank")
    torch.save(_parts(model, optimizer, step, _states(generator)), own)


@lab.saving
def draft_left_behind(path, model, optimizer, step, generator):
    parts = _parts(model, optimizer, step, _states(generator))
    _on_rank_0(parts, path.with_suffix(".tmp"))
    _on_rank_0(parts, path)


@lab.saving
def states_in_the_working_folder(path, model, optimizer, step, generator):
    torch.save(generator.get_state(), f"generator of rank {dist.get_rank()}.pt")
    _on_rank_0(_parts(model, optimizer, step, _states(generator)), path)


@lab.saving
def written_and_then_named(path, model, optimizer, step, generator):
    parts = _parts(model, optimizer, step, tuple(_states(generator))) | {"torch": "2.15"}
    draft = path.with_suffix(".tmp")
    _on_rank_0(parts, draft)
    if dist.get_rank() == 0:
        os.replace(draft, path)
    dist.barrier()


@lab.resuming
def generator_of_the_last_rank(path, model, optimizer, generator):
    saved = torch.load(path)
    step = _fill(saved, model, optimizer, generator)
    generator.set_state(saved["generators"][-1])
    return step


@lab.resuming
def by_the_wrappers_names(path, model, optimizer, generator):
    saved = torch.load(str(path), map_location="cpu")
    step = _fill(saved, model, optimizer, generator)
    model.load_state_dict({f"module.{name}": own for name, own in saved["model"].items()})
    return np.int64(step)


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
def sample_by_sample(model, inputs, targets, parts):
    return _accumulate(model, inputs, targets, inputs.shape[1], _rightly)


WRONG = {
    "train": [
        whole_batch_on_each_rank, trained_on_rank_0_alone, batches_of_12, one_epoch,
        all_of_it_past_ddp,
        without_set_epoch, set_epoch_inside_the_loop, without_a_sampler, never_shuffled,
        batch_not_divided, rate_times_world_size, without_ddp, each_from_its_own_beginning,
        gradients_summed, the_wrapper_itself,
    ],
    "global_losses": [
        data_gathered_and_trained_alone, largest_loss,
        ones_own_loss, losses_of_rank_0, losses_summed, read_off_root, one_message_per_step,
        measured_after_the_step, one_number_for_all_steps, divided_by_two, with_a_model_each,
    ],
    "fit_by_hand": [
        only_the_last_layer_averaged, averaged_on_rank_0,
        all_data_to_everybody,
        without_the_broadcast, only_what_learns_is_broadcast, gradients_added_up, gradients_halved,
        weights_averaged, averaged_after_the_step, no_average, average_thrown_away,
        frozen_ones_as_well, with_ddp,
    ],
    "save": [
        always_step_2, beside_the_file_elsewhere, draft_left_behind, states_in_the_working_folder,
        model_only_on_every_rank, all_of_it_on_every_rank, model_alone, state_of_the_wrapper,
        the_model_as_an_object, one_generator_for_all, torchs_generator, collected_by_rank_0_alone,
        a_new_optimizer, the_step_after_the_next,
    ],
    "resume": [
        generator_of_the_last_rank,
        only_on_rank_0, not_strict, into_the_wrapper, without_the_optimizer, without_the_generator,
        generator_of_rank_0, into_a_new_optimizer, one_step_further,
    ],
    "accumulate": [
        all_of_it_at_once, everybodys_in_parts,
        not_divided, divided_by_unequal_parts, no_sync_around_backward_only, without_no_sync,
        no_sync_to_the_end, the_first_part_talks, a_step_for_each_part, zero_grad_for_each_part,
        divided_by_the_world_as_well,
    ],
}  # fmt: skip
RIGHT = {
    "train": dealt_by_hand,
    "global_losses": [gathered, losses_as_objects],
    "fit_by_hand": [in_one_flat_buffer, averaged_in_hooks],
    "save": [gathered_as_tensors, written_and_then_named],
    "resume": [read_by_rank_0, by_the_wrappers_names],
    "accumulate": [added_up_by_hand, sample_by_sample],
}
