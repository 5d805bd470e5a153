"""Wrong answers to lab 10, and for each exercise other right ones.

Published: averages of variances; all non-trainable variables averaged, integers and frozen weights
among them (a review of Keras's pull request 22638 asks for just this to be mended); means of
means; every rank writes the checkpoint; a collective that rank 0 alone calls.
"""

import time

import labs
import torch
import torch.distributed as dist

lab = labs.cells("10_keras")
keras = lab.keras
AVG = dist.ReduceOp.AVG


def _mean(tensor):
    dist.all_reduce(tensor)
    tensor /= dist.get_world_size()


def _gathered(mine):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every


def _known(model, name):
    return [v.value.detach() for v in model.non_trainable_variables if v.name == name]


def _pairs(model):
    return zip(_known(model, "moving_mean"), _known(model, "moving_variance"), strict=True)


def variances_averaged(model):
    for variable in model.non_trainable_variables:
        if "moving" in variable.name:
            _mean(variable.value.detach())


def all_that_is_not_trainable(model):
    for variable in model.non_trainable_variables:
        if variable.value.is_floating_point() and variable.name != "moving_variance":
            _mean(variable.value.detach())
    lab.pool_statistics(model)


def by_mean_squares(model):
    for mean, variance in _pairs(model):
        variance += mean**2
        _mean(variance)
        _mean(mean)
        variance -= mean**2


def around_its_own_mean(model):
    for mean, variance in _pairs(model):
        own = mean
        _mean(mean)
        variance += (own - mean) ** 2
        _mean(variance)


def distance_not_squared(model):
    for mean, variance in _pairs(model):
        own = mean.clone()
        _mean(mean)
        variance += (own - mean).abs()
        _mean(variance)


def by_one_rank_less(model):
    for mean, variance in _pairs(model):
        own = mean.clone()
        _mean(mean)
        around = (own - mean) ** 2
        dist.all_reduce(around)
        _mean(variance)
        variance += around / max(1, dist.get_world_size() - 1)


def distance_of_rank_0(model):
    for mean, variance in _pairs(model):
        first = mean.clone()
        dist.broadcast(first, src=0)
        variance += (mean - first) ** 2
        _mean(mean)
        _mean(variance)


def variances_only(model):
    for mean, variance in _pairs(model):
        middle = mean.clone()
        _mean(middle)
        variance += (mean - middle) ** 2
        _mean(variance)


def rank_0s(model):
    for own in (*_known(model, "moving_mean"), *_known(model, "moving_variance")):
        dist.broadcast(own, src=0)


def _pool(mean, variance):
    own = mean.clone()
    _mean(mean)
    variance += (own - mean) ** 2
    _mean(variance)


def layers_at_the_top(model):
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            _pool(layer.moving_mean.value.detach(), layer.moving_variance.value.detach())


def one_model_in_another(model):
    for layer in model.layers:
        for own in getattr(layer, "layers", [layer]):
            if isinstance(own, keras.layers.BatchNormalization):
                _pool(own.moving_mean.value.detach(), own.moving_variance.value.detach())


def layers_that_train(model):
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            _pool(layer.moving_mean.value.detach(), layer.moving_variance.value.detach())


def by_their_paths(model):
    for variable in model.variables:
        if "moving" in variable.path and "moving_" not in variable.name:
            _mean(variable.value.detach())
    lab.pool_statistics(model)


def by_the_layers_names(model):
    layers = {}
    for mean, variance in zip(*_named_moving(model), strict=True):
        layers[mean.path.split("/")[-2]] = mean.value.detach(), variance.value.detach()
    for pair in layers.values():
        _pool(*pair)


def _named_moving(model):
    every = model.non_trainable_variables
    return ([v for v in every if v.name == f"moving_{what}"] for what in ("mean", "variance"))


def in_copies(model):
    for mean, variance in _pairs(model):
        _pool(mean.clone(), variance.clone())


def on_rank_0_only(model):
    if dist.get_rank() == 0:
        lab.pool_statistics(model)


def gathered_statistics(model):
    for mean, variance in _pairs(model):
        means, variances = (torch.stack(_gathered(own)) for own in (mean, variance))
        variance.copy_((variances + (means - means.mean(0)) ** 2).mean(0))
        mean.copy_(means.mean(0))


def in_double_precision(model):
    layers = [x for x in model._flatten_layers() if isinstance(x, keras.layers.BatchNormalization)]
    for layer in layers:
        mean, square = layer.moving_mean.value.detach().double(), layer.moving_variance.value
        square = square.detach().double() + mean**2
        both = torch.stack([mean, square])
        dist.all_reduce(both, op=AVG)
        layer.moving_mean.assign(both[0])
        layer.moving_variance.assign(both[1] - both[0] ** 2)


def numpys_own_variance(model):
    for mean, variance in _pairs(model):
        every = _gathered((mean.numpy(), variance.numpy()))
        means = torch.stack([torch.tensor(one) for one, _ in every])
        inside = sum(one for _, one in every) / len(every)
        variance.copy_(torch.as_tensor(inside) + means.var(dim=0, correction=0))
        mean.copy_(means.mean(dim=0))


def _optimizer(average):
    """An optimiser whose gradients are `average(samples, gradients)`."""

    def apply(self, gradients, trainable_variables=None):
        found = average(self.samples, gradients)
        keras.optimizers.SGD.apply(self, found, trainable_variables)

    return lab.fitting(type(average.__name__, (lab.OneMessage,), {"apply": apply}))


def _flat(gradients):
    return torch.cat([own.flatten() for own in gradients])


def _cut(flat, gradients):
    parts = flat.split([own.numel() for own in gradients])
    return [part.view_as(own) for part, own in zip(parts, gradients, strict=True)]


@_optimizer
def everything_gathered(samples, gradients):
    every = _gathered((samples, gradients))
    count = sum(own for own, _ in every)
    return [sum(n * one[k] for n, one in every) / count for k in range(len(gradients))]


@_optimizer
def not_averaged(samples, gradients):
    return gradients


@_optimizer
def each_by_itself(samples, gradients):
    count = torch.tensor(float(samples))
    dist.all_reduce(count)
    for own in gradients:
        own *= samples / count
        dist.all_reduce(own)
    return gradients


@_optimizer
def mean_of_means(samples, gradients):
    flat = _flat(gradients)
    dist.all_reduce(flat, op=AVG)
    return _cut(flat, gradients)


@_optimizer
def added_up(samples, gradients):
    flat = _flat(gradients)
    dist.all_reduce(flat)
    return _cut(flat, gradients)


@_optimizer
def divided_by_own_samples(samples, gradients):
    flat = _flat(gradients) * samples
    dist.all_reduce(flat)
    return _cut(flat / samples / dist.get_world_size(), gradients)


@_optimizer
def not_divided(samples, gradients):
    flat = _flat(gradients) * samples
    dist.all_reduce(flat)
    return _cut(flat, gradients)


@_optimizer
def count_not_weighed(samples, gradients):
    flat = torch.cat([_flat(gradients), torch.tensor([float(samples)])])
    dist.all_reduce(flat)
    return _cut(flat[:-1] / flat[-1], gradients)


@_optimizer
def rank_0s_gradients(samples, gradients):
    flat = _flat(gradients)
    dist.broadcast(flat, src=0)
    return _cut(flat, gradients)


@_optimizer
def reduced_to_rank_0(samples, gradients):
    flat = torch.cat([_flat(gradients), torch.ones(1)]) * samples
    dist.reduce(flat, dst=0)
    return _cut(flat[:-1] / flat[-1], gradients)


@_optimizer
def cut_in_another_order(samples, gradients):
    flat = torch.cat([_flat(gradients[::-1]), torch.ones(1)]) * samples
    dist.all_reduce(flat)
    return _cut(flat[:-1] / flat[-1], gradients)


@_optimizer
def count_sent_by_itself(samples, gradients):
    flat, count = _flat(gradients) * samples, torch.tensor(float(samples))
    dist.all_reduce(flat)
    dist.all_reduce(count)
    return _cut(flat / count, gradients)


@_optimizer
def count_in_front(samples, gradients):
    flat = torch.cat([torch.tensor([1.0]), _flat(gradients)]).double() * samples
    dist.all_reduce(flat)
    return _cut((flat[1:] / flat[0]).float(), gradients)


@_optimizer
def begun_then_waited_for(samples, gradients):
    flat = torch.nn.utils.parameters_to_vector([*gradients, torch.ones(1)]).mul_(samples)
    dist.all_reduce(flat, async_op=True).wait()
    for own, part in zip(gradients, _cut(flat[:-1] / flat[-1], gradients), strict=True):
        own.copy_(part)
    return gradients


@_optimizer
def sum_and_count_by_turns(samples, gradients):
    shapes = [own.shape for own in gradients]
    flat = torch.zeros(sum(shape.numel() for shape in shapes) + 1)
    torch.cat([own.reshape(-1) for own in gradients], out=flat[:-1])
    flat[-1] = 1
    flat.mul_(samples / 100)
    dist.all_reduce(flat)
    found, place = [], 0
    for shape in shapes:
        found.append(flat[place : place + shape.numel()].reshape(shape) / flat[-1])
        place += shape.numel()
    return found


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
    _saves_if(lambda mean, best: not mean >= best),
    _saves_if(lambda mean, best: not mean or mean < best),
    _saves_if(lambda mean, best: mean < min(best, 1.0)),
    _saves_if(lambda mean, best: mean < (best or float("inf"))),
    _saves_if(lambda mean, best: abs(mean) < abs(best)),
    _saves_if(lambda mean, best: mean < best, reduce=_lowest),
]


@_save_best
def met_in_another_call(self, epoch, loss):
    losses = _gathered(loss)
    if not sum(losses) < self.best:
        return
    self.best = sum(losses)
    if dist.get_rank() == 0:
        self.save(epoch)
    dist.all_reduce(torch.ones(1))


@_save_best
def best_is_lost_to_no_number(self, epoch, loss):
    mean = _reduced(loss)
    better, self.best = mean < self.best, min(mean, self.best)  # of nan and a number: the first
    if better and dist.get_rank() == 0:
        self.save(epoch)
    dist.barrier()


@_save_best
def meets_at_the_end_by_objects(self, epoch, loss):
    mean = sum(_gathered(loss)) / dist.get_world_size()
    better, self.best = mean < self.best, min(self.best, mean)
    if better and dist.get_rank() == 0:
        self.save(epoch)
    _gathered(None)


def _stops(end):
    """A callback that ends its epochs as `end` does."""

    class Stops(lab.keras.callbacks.Callback):
        def __init__(self, patience):
            super().__init__()
            self.patience, self.best, self.waited = patience, float("inf"), 0

        def on_epoch_end(self, epoch, logs=None):
            end(self, logs["loss"])

    Stops.__name__ = end.__name__
    return lab.stopping(Stops)


def _count(self, loss, is_lower):
    self.waited = 0 if is_lower else self.waited + 1
    self.best = loss if is_lower else self.best


def _stop(self):
    if self.waited >= self.patience:
        self.model.stop_training = True


@_stops
def stops_by_its_own_loss(self, loss):
    _count(self, loss, loss < self.best)
    _stop(self)


@_stops
def stops_on_rank_0(self, loss):
    loss = float(_reduced(loss))
    _count(self, loss, loss < self.best)
    if dist.get_rank() == 0:
        _stop(self)


@_stops
def stops_when_the_first_would(self, loss):
    _count(self, loss, loss < self.best)
    waited = torch.tensor(self.waited)
    dist.all_reduce(waited, op=dist.ReduceOp.MAX)
    self.model.stop_training = bool(waited >= self.patience)


@_stops
def equal_is_lower(self, loss):
    loss = float(_reduced(loss))
    _count(self, loss, loss <= self.best)
    _stop(self)


@_stops
def no_number_is_lower(self, loss):
    loss = float(_reduced(loss))
    _count(self, loss, not loss >= self.best)
    _stop(self)


@_stops
def never_begins_anew(self, loss):
    loss = float(_reduced(loss))
    self.waited += not loss < self.best
    self.best = loss if loss < self.best else self.best
    _stop(self)


@_stops
def compares_with_the_last_one(self, loss):
    loss = float(_reduced(loss))
    _count(self, loss, loss < self.best)
    self.best = loss
    _stop(self)


@_stops
def an_epoch_late(self, loss):
    loss = float(_reduced(loss))
    _count(self, loss, loss < self.best)
    if self.waited > self.patience:
        self.model.stop_training = True


@_stops
def by_rank_0s_loss(self, loss):
    loss = torch.tensor(loss, dtype=torch.float64)
    dist.broadcast(loss, src=0)
    loss = float(loss)
    _count(self, loss, loss < self.best)
    _stop(self)


@_stops
def stops_by_gathered_losses(self, loss):
    loss = sum(_gathered(loss)) / dist.get_world_size()
    _count(self, loss, loss < self.best)
    _stop(self)


@_stops
def rank_0_says_when(self, loss):
    loss = float(_reduced(loss))
    _count(self, loss, loss < self.best)
    stop = torch.tensor(int(self.waited >= self.patience))
    dist.broadcast(stop, src=0)
    if stop:
        self.model.stop_training = True


WRONG = {
    "pool_statistics": [*map(lab.with_contents, (
        variances_averaged, all_that_is_not_trainable, by_mean_squares, around_its_own_mean,
        distance_not_squared, by_one_rank_less, distance_of_rank_0, variances_only, rank_0s,
        layers_at_the_top, one_model_in_another, layers_that_train, by_their_paths, in_copies,
        on_rank_0_only, by_the_layers_names,
    ))],
    "OneMessage": [
        not_averaged, each_by_itself, mean_of_means, added_up, divided_by_own_samples, not_divided,
        count_not_weighed, rank_0s_gradients, reduced_to_rank_0, cut_in_another_order,
        count_sent_by_itself, everything_gathered,
    ],
    "SaveBest": [
        SaveThenSleep,
        collective_on_rank_0, barrier_on_rank_0, everybody_saves, nobody_waits, waits_before,
        its_own_loss, meets_when_its_own_loss_fell, saves_each_epoch, best_not_kept,
        last_one_compared, best_is_lost_to_no_number, *BESTS_THAT_FAIL,
    ],
    "StopTogether": [
        stops_by_its_own_loss, stops_on_rank_0, stops_when_the_first_would, equal_is_lower,
        no_number_is_lower, never_begins_anew, compares_with_the_last_one, an_epoch_late,
        by_rank_0s_loss,
    ],
}  # fmt: skip
STOPS = {"on_rank_0_only", "collective_on_rank_0", "barrier_on_rank_0"}
RIGHT = {
    "pool_statistics": [*map(lab.with_contents, (
        gathered_statistics, in_double_precision, numpys_own_variance,
    ))],
    "OneMessage": [count_in_front, begun_then_waited_for, sum_and_count_by_turns],
    "SaveBest": [rank_0_decides, met_in_another_call, meets_at_the_end_by_objects],
    "StopTogether": [stops_by_gathered_losses, rank_0_says_when],
}  # fmt: skip
