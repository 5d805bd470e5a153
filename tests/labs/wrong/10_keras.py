"""Wrong answers to lab 10, and for each exercise other right ones.

Published: a model wrapped before it is built; `.train()`, which Keras layers do not hear; the loss
of one rank; means of means; every rank writes the checkpoint; a collective that rank 0 alone calls;
all non-trainable variables averaged, integers and frozen weights among them (a review of Keras's
pull request 22638 asks for just this to be mended).
"""

import random
import time

import labs
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

lab = labs.cells("10_keras")
keras, gradients = lab.keras, lab.gradients


def _step(network, images, labels, **mode):
    cross_entropy(network(images, **mode), labels).backward()


def wrapped_before_built(model, images, labels):
    ddp = DistributedDataParallel(model)
    _step(ddp, images, labels, training=True)
    return gradients(model)


def half_built(model, images, labels):
    model.norm.build(images.shape)
    return wrapped_before_built(model, images, labels)


def built_by_its_build(model, images, labels):
    model.build(images.shape)  # of a class with a `call` only, it builds none of the layers
    return wrapped_before_built(model, images, labels)


def without_training(model, images, labels):
    model(images[:1])
    _step(DistributedDataParallel(model), images, labels)
    return gradients(model)


def told_by_train(model, images, labels):
    model(images[:1])
    ddp = DistributedDataParallel(model).train()
    _step(ddp, images, labels)
    return gradients(model)


def past_the_wrapper(model, images, labels):
    model(images[:1])
    _step(DistributedDataParallel(model).module, images, labels, training=True)
    return gradients(model)


def never_wrapped(model, images, labels):
    _step(model, images, labels, training=True)
    return gradients(model)


def wrapped_but_not_used(model, images, labels):
    model(images[:1])
    DistributedDataParallel(model)
    _step(model, images, labels, training=True)
    return gradients(model)


def averaged_from_unequal_starts(model, images, labels):
    _step(model, images, labels, training=True)
    for gradient in (found := gradients(model)):
        dist.all_reduce(gradient, op=dist.ReduceOp.AVG)
    return found


def by_hand(model, images, labels):
    model(images[:1])
    for variable in model.variables:
        dist.broadcast(variable.value.detach(), src=0)
    _step(model, images, labels, training=True)
    found = gradients(model)
    for gradient in found:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return found


def _mean(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def all_that_is_not_trainable(model):
    for variable in model.non_trainable_variables:
        dist.all_reduce(variable.value.detach(), op=dist.ReduceOp.AVG)


def all_floats_that_are_not_trainable(model):
    for variable in model.non_trainable_variables:
        if variable.value.is_floating_point():
            _mean(variable.value.detach())


def all_variables(model):
    for variable in model.variables:
        if variable.value.is_floating_point():
            _mean(variable.value.detach())


def the_buffers(model):
    for tensor in model.buffers():
        _mean(tensor)


def rank_0s(model):
    for variable in model.non_trainable_variables:
        if "moving" in variable.name:
            dist.broadcast(variable.value.detach(), src=0)


def layers_at_the_top(model):
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            _mean(layer.moving_mean.value.detach())
            _mean(layer.moving_variance.value.detach())


def means_only(model):
    for variable in model.non_trainable_variables:
        if "mean" in variable.name:
            _mean(variable.value.detach())


def sums(model):
    for variable in model.non_trainable_variables:
        if "moving" in variable.name:
            dist.all_reduce(variable.value.detach())


def in_copies(model):
    for variable in model.non_trainable_variables:
        if "moving" in variable.name:
            _mean(variable.value.detach().clone())


def on_rank_0_only(model):
    if dist.get_rank() == 0:
        lab.average_statistics(model)


def wrapped_again(model):
    DistributedDataParallel(model)


def one_tensor_for_all(model):
    layers = [x for x in model._flatten_layers() if isinstance(x, keras.layers.BatchNormalization)]
    found = [v for layer in layers for v in (layer.moving_mean, layer.moving_variance)]
    flat = torch.cat([variable.value.detach() for variable in found])
    _mean(flat)
    for variable, part in zip(found, flat.split([len(v.value) for v in found]), strict=True):
        variable.assign(part)


def _states(model):
    return [v for v in model.non_trainable_variables if v.name == "seed_generator_state"]


def nothing_at_all(model, seed):
    pass


def torchs_seed_only(model, seed):
    torch.manual_seed(seed + dist.get_rank())


def kerass_seed_only(model, seed):
    keras.utils.set_random_seed(seed + dist.get_rank())


def states_only(model, seed):
    for state in _states(model):
        state.assign(torch.tensor([seed + 1_000_000 * dist.get_rank(), 0]))


def plus_rank(model, seed):
    torch.manual_seed(seed + dist.get_rank())
    for state in _states(model):
        state.assign(state.value + torch.tensor([dist.get_rank(), 0]))


def times_rank(model, seed):
    torch.manual_seed(seed + dist.get_rank())
    for state in _states(model):
        state.assign(torch.tensor([seed * (1 + dist.get_rank()), 0]))


def counter_moved(model, seed):
    torch.manual_seed(seed + dist.get_rank())
    for state in _states(model):
        state.assign(torch.tensor([seed, dist.get_rank()]))


def one_seed_for_all(model, seed):
    torch.manual_seed(seed)
    for state in _states(model):
        state.assign(torch.tensor([seed, 0]))


def by_the_clock(model, seed):
    torch.manual_seed(time.time_ns() % 2**31 + dist.get_rank())
    for state in _states(model):
        state.assign(torch.tensor([random.SystemRandom().randrange(2**30), 0]))


def python_is_seeded(model, seed):
    random.seed(seed + dist.get_rank())
    for state in _states(model):
        state.assign(torch.tensor([random.randrange(2**30), 0]))


def drawn_from_torch(model, seed):
    torch.manual_seed(seed + dist.get_rank())
    for state in _states(model):
        state.assign(torch.stack([torch.randint(2**30, ()), torch.tensor(0)]))


def _global_loss(change):
    def on_epoch_end(self, epoch, logs=None):
        change(self, logs)

    kind = type(change.__name__, (lab.GlobalLoss,), {"on_epoch_end": on_epoch_end})
    return lab.fitting(kind)


@_global_loss
def loss_of_one_rank(self, logs):
    pass


@_global_loss
def mean_of_means(self, logs):
    loss = torch.tensor(logs["loss"])
    dist.all_reduce(loss, op=dist.ReduceOp.AVG)
    logs["loss"] = loss.item()


@_global_loss
def sum_of_means(self, logs):
    loss = torch.tensor(logs["loss"])
    dist.all_reduce(loss)
    logs["loss"] = loss.item()


@_global_loss
def sum_of_sums(self, logs):
    loss = torch.tensor(logs["loss"] * self.samples)
    dist.all_reduce(loss)
    logs["loss"] = loss.item()


@_global_loss
def divided_by_own_samples(self, logs):
    loss = torch.tensor(logs["loss"] * self.samples)
    dist.all_reduce(loss)
    logs["loss"] = loss.item() / (self.samples * dist.get_world_size())


@_global_loss
def logs_of_its_own(self, logs):
    both = torch.tensor([logs["loss"] * self.samples, self.samples])
    dist.all_reduce(both)
    logs = logs | {"loss": (both[0] / both[1]).item()}


@_global_loss
def rank_0_alone(self, logs):
    if dist.get_rank() == 0:
        both = torch.tensor([logs["loss"] * self.samples, self.samples])
        dist.all_reduce(both)
        logs["loss"] = (both[0] / both[1]).item()


@_global_loss
def reduced_to_rank_0(self, logs):
    both = torch.tensor([logs["loss"] * self.samples, self.samples])
    dist.reduce(both, dst=0)
    if dist.get_rank() == 0:
        logs["loss"] = (both[0] / both[1]).item()


@_global_loss
def rank_0s_loss(self, logs):
    loss = torch.tensor(logs["loss"])
    dist.broadcast(loss, src=0)
    logs["loss"] = loss.item()


@_global_loss
def gathered(self, logs):
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, (logs["loss"], self.samples))
    logs["loss"] = sum(loss * n for loss, n in pairs) / sum(n for _, n in pairs)


def _save_best(end):
    def on_epoch_end(self, epoch, logs=None):
        end(self, epoch, logs["loss"])

    kind = type(end.__name__, (lab.SaveBest,), {"on_epoch_end": on_epoch_end})
    return lab.saving(kind)


def _reduced(loss):
    loss = torch.tensor(loss, dtype=torch.float64)
    _mean(loss)
    return loss.item()


@_save_best
def collective_on_rank_0(self, epoch, loss):
    if dist.get_rank() == 0 and (mean := _reduced(loss)) < self.best:
        self.best = mean
        self.save(epoch)
    dist.barrier()


@_save_best
def barrier_on_rank_0(self, epoch, loss):
    mean = _reduced(loss)
    if mean < self.best:
        self.best = mean
        if dist.get_rank() == 0:
            self.save(epoch)
            dist.barrier()


@_save_best
def everybody_saves(self, epoch, loss):
    mean = _reduced(loss)
    if mean < self.best:
        self.best = mean
        self.save(epoch)
    dist.barrier()


@_save_best
def nobody_waits(self, epoch, loss):
    mean = _reduced(loss)
    if mean < self.best:
        self.best = mean
        if dist.get_rank() == 0:
            self.save(epoch)


@_save_best
def waits_before(self, epoch, loss):
    mean = _reduced(loss)
    dist.barrier()
    if mean < self.best:
        self.best = mean
        if dist.get_rank() == 0:
            self.save(epoch)


@_save_best
def its_own_loss(self, epoch, loss):
    if loss < self.best:
        self.best = loss
        if dist.get_rank() == 0:
            self.save(epoch)
    dist.barrier()


@_save_best
def meets_when_its_own_loss_fell(self, epoch, loss):
    if loss < self.best:
        self.best = loss
        if dist.get_rank() == 0:
            self.save(epoch)
        dist.barrier()


@_save_best
def saves_each_epoch(self, epoch, loss):
    if dist.get_rank() == 0:
        self.save(epoch)
    dist.barrier()


@_save_best
def best_not_kept(self, epoch, loss):
    if _reduced(loss) < self.best and dist.get_rank() == 0:
        self.save(epoch)
    dist.barrier()


@_save_best
def last_one_compared(self, epoch, loss):
    mean = _reduced(loss)
    if mean < self.best and dist.get_rank() == 0:
        self.save(epoch)
    self.best = mean
    dist.barrier()


@_save_best
def rank_0_decides(self, epoch, loss):
    losses = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(loss, losses)
    if losses and sum(losses) / len(losses) < self.best:
        self.best = sum(losses) / len(losses)
        self.save(epoch)
    dist.broadcast(torch.zeros(1), src=0)


@lab.saving
class SaveThenSleep(lab.SaveBest):
    def on_epoch_end(self, epoch, logs=None):
        loss = torch.tensor(logs["loss"], dtype=torch.float64)
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if loss < self.best:
            self.best = loss
            if dist.get_rank() == 0:
                self.save(epoch)
        time.sleep(0.1)


def _gathered(mine):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def all_batches_on_every_rank(model, images, labels):
    model(images[:1])
    for variable in model.variables:
        dist.broadcast(variable.value.detach(), src=0)
    every = _gathered((images, labels))
    for own_images, own_labels in every:
        loss = cross_entropy(model(own_images, training=True), own_labels)
        (loss / len(every)).backward()
    return gradients(model)


def built_without_gradients(model, images, labels):
    with torch.no_grad():
        model(images)
    ddp = DistributedDataParallel(model, broadcast_buffers=False)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    loss(labels, ddp(images, training=True)).backward()
    dist.barrier()
    return tuple(gradients(model))


def one_model_in_another(model):
    for layer in model.layers:
        for own in getattr(layer, "layers", [layer]):
            if isinstance(own, keras.layers.BatchNormalization):
                _mean(own.moving_mean.value.detach())
                _mean(own.moving_variance.value.detach())


def by_their_paths(model):
    for variable in model.variables:
        if "moving" in variable.path:
            _mean(variable.value.detach())


def layers_that_train(model):
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            _mean(layer.moving_mean.value.detach())
            _mean(layer.moving_variance.value.detach())


def all_that_frozen_ones_have(model):
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            for variable in layer.non_trainable_variables:
                _mean(variable.value.detach())


def halved_again_and_again(model):
    for variable in model.non_trainable_variables:
        if "moving" in variable.name:
            tensor = variable.value.detach()
            dist.all_reduce(tensor)
            tensor /= 2 ** (dist.get_world_size() - 1)


def sent_as_objects(model):
    names = ("moving_mean", "moving_variance")
    every = _gathered({v.path: v.numpy() for v in model.variables if v.name in names})
    for variable in model.variables:
        if variable.name in names:
            variable.assign(sum(own[variable.path] for own in every) / len(every))


def _seeded(torchs, state):
    @lab.dropping
    def own_seeds(model, seed):
        torch.manual_seed(torchs(seed, dist.get_rank()))
        for variable in _states(model):
            variable.assign(torch.tensor([state(seed, dist.get_rank()), 0]))

    return own_seeds


SEEDS_THAT_FAIL = [
    _seeded(lambda seed, rank: 1234 + rank, lambda seed, rank: 1_000_000 * rank),
    _seeded(lambda seed, rank: seed + rank, lambda seed, rank: 1_000_000 * rank),
    _seeded(lambda seed, rank: 99 + rank, lambda seed, rank: seed + 1_000_000 * rank),
    _seeded(lambda seed, rank: seed * (1 + rank), lambda seed, rank: seed * 1000 * (1 + rank)),
    _seeded(lambda seed, rank: seed + rank % 2, lambda seed, rank: seed + 1000 * (rank % 2)),
]


def seeded_by_keras(model, seed):
    keras.utils.set_random_seed(seed * 997 + dist.get_rank())
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout) and layer.seed is not None:
            layer.seed_generator.state.assign([seed + 10_000 * (1 + dist.get_rank()), 0])


def _mean_over_all(self, logs):
    both = torch.tensor([logs["loss"] * self.samples, self.samples])
    dist.all_reduce(both)
    return (both[0] / both[1]).item()


@_global_loss
def the_first_epochs_loss(self, logs):
    if not hasattr(self, "first"):
        self.first = _mean_over_all(self, logs)
    logs["loss"] = self.first


@_global_loss
def mean_over_the_epochs(self, logs):
    self.epochs = [*getattr(self, "epochs", []), _mean_over_all(self, logs)]
    logs["loss"] = sum(self.epochs) / len(self.epochs)


@_global_loss
def under_another_name(self, logs):
    logs["mean loss"] = _mean_over_all(self, logs)


@_global_loss
def reduced_then_broadcast(self, logs):
    both = torch.tensor([logs["loss"] * self.samples, float(self.samples)])
    dist.reduce(both, 0)
    dist.broadcast(both, 0)
    logs["loss"] = both[0].numpy() / both[1].numpy()


def _saves_if(better, reduce=_reduced):
    @_save_best
    def saves_if(self, epoch, loss):
        mean = reduce(loss)
        if better(mean, self.best):
            self.best = mean
            if dist.get_rank() == 0:
                self.save(epoch)
        dist.barrier()

    return saves_if


def _lowest(loss):
    lowest = torch.tensor(loss)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return lowest.item()


BESTS_THAT_FAIL = [
    _saves_if(lambda mean, best: mean <= best),
    _saves_if(lambda mean, best: mean < (best or float("inf"))),
    _saves_if(lambda mean, best: abs(mean) < abs(best)),
    _saves_if(lambda mean, best: mean < best, reduce=_lowest),
]


@_save_best
def met_in_another_call(self, epoch, loss):
    losses = _gathered(loss)
    if sum(losses) >= self.best:
        return
    self.best = sum(losses)
    if dist.get_rank() == 0:
        self.save(epoch)
    dist.all_reduce(torch.ones(1))


WRONG = {
    "first_step": [
        wrapped_before_built, half_built, built_by_its_build, without_training, told_by_train,
        past_the_wrapper, never_wrapped, wrapped_but_not_used, averaged_from_unequal_starts,
        all_batches_on_every_rank,
    ],
    "average_statistics": [*map(lab.with_contents, (
        all_that_is_not_trainable, all_floats_that_are_not_trainable, all_variables, the_buffers,
        rank_0s, layers_at_the_top, means_only, sums, in_copies, on_rank_0_only, wrapped_again,
        one_model_in_another, by_their_paths, layers_that_train, all_that_frozen_ones_have,
        halved_again_and_again,
    ))],
    "own_dropout": [*map(lab.dropping, (
        nothing_at_all, torchs_seed_only, kerass_seed_only, states_only, plus_rank, times_rank,
        counter_moved, one_seed_for_all, by_the_clock, python_is_seeded,
    )), *SEEDS_THAT_FAIL],
    "GlobalLoss": [
        loss_of_one_rank, mean_of_means, sum_of_means, sum_of_sums, divided_by_own_samples,
        logs_of_its_own, rank_0_alone, reduced_to_rank_0, rank_0s_loss, the_first_epochs_loss,
        mean_over_the_epochs, under_another_name,
    ],
    "SaveBest": [
        SaveThenSleep,
        collective_on_rank_0, barrier_on_rank_0, everybody_saves, nobody_waits, waits_before,
        its_own_loss, meets_when_its_own_loss_fell, saves_each_epoch, best_not_kept,
        last_one_compared, *BESTS_THAT_FAIL,
    ],
}  # fmt: skip
RIGHT = {
    "first_step": [by_hand, built_without_gradients],
    "average_statistics": [*map(lab.with_contents, (one_tensor_for_all, sent_as_objects))],
    "own_dropout": [*map(lab.dropping, (drawn_from_torch, seeded_by_keras))],
    "GlobalLoss": [gathered, reduced_then_broadcast],
    "SaveBest": [rank_0_decides, met_in_another_call],
}
