# %% [markdown]
# # Lab 10 · Keras statistics and callbacks
#
# Five exercises on [chapter 10](../notebooks/10_keras.ipynb), 45 minutes, on any computer. You write the body of a
# function or of a callback; `check` runs it in real workers and compares what it does with a **specification** of one process.
# All models are tiny, and on the CPU.

# %%
import functools
import os
import time
from multiprocessing.util import get_temp_dir
from pathlib import Path

import torch
import torch.distributed as dist
from IPython import get_ipython
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_utils import check, progress

os.environ["KERAS_BACKEND"] = "torch"
os.environ["KERAS_TORCH_DEVICE"] = "cpu"
try:
    import keras
except ModuleNotFoundError:
    print("Needs Keras: pip install -c constraints.txt -e '.[keras]', then restart the kernel.")
    get_ipython().input_transformers_post.append(lambda lines: [])  # other cells do nothing

# %% [markdown]
# ## 1 · Ready for DDP
#
# *●○○, 8 minutes.* `model` comes from a class of its own and is not yet built; its weights differ from rank to rank. **Goal:** wrap it in DDP, do one
# forward in training mode and one backward of `cross_entropy` on this rank's batch, and return `gradients(model)`: the average over all
# ranks, with rank 0's weights.

# %%
L = keras.layers


class Net(keras.Model):
    def __init__(self, start):
        super().__init__()
        self.norm = L.BatchNormalization(momentum=0.5)
        self.dense = L.Dense(3, kernel_initializer=lambda shape, dtype=None: start.clone())

    def call(self, inputs, training=None):
        return self.dense(self.norm(inputs, training=training))


def gradients(model):
    return [variable.value.grad.clone() for variable in model.trainable_variables]


def first_step_spec(models, images, labels):
    for own_images, own_labels in zip(images, labels):
        loss = cross_entropy(models[0](own_images, training=True), own_labels)
        (loss / len(images)).backward()
    return [gradients(models[0])] * len(images)


# %%
def first_step(model, images, labels):
    ### BEGIN SOLUTION
    model(images[:1])
    ddp = DistributedDataParallel(model)
    loss = cross_entropy(ddp(images, training=True), labels)
    loss.backward()
    return gradients(model)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which weights does the model have before it has seen an input? And who tells its batch norm that this is training?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Call the model once, so that it builds itself; wrap it; call the wrapper, in training mode.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>ddp(images, training=True)</code>, after <code>model(images[:1])</code> and the wrapping.
# </details>


# %%
def first_step_inputs(rank, world_size, case):
    return Net(torch.randn(4, 3)), torch.randn(case, 4) * 2 + rank, torch.randint(3, (case,))


options = {"cases": (8, 5), "work": 1.5}
check(first_step, spec=first_step_spec, inputs=first_step_inputs, **options)

# %% [markdown]
# ## 2 · One model again
#
# *●●○, 8 minutes.* The ranks have trained, and their batch norms' moving statistics have drifted. **Goal:** replace each moving mean and
# moving variance by its average over the ranks, on all ranks, and touch nothing else. The model may hold other models, which hold others,
# frozen layers, and dropout with a state of whole numbers.


# %%
def average_statistics_spec(models):
    for variables in zip(*(model.variables for model in models)):
        if variables[0].name in ("moving_mean", "moving_variance"):
            mean = torch.stack([variable.value.detach() for variable in variables]).mean(dim=0)
            for variable in variables:
                variable.assign(mean)
    return [contents(model) for model in models]


# %%
def average_statistics(model):
    ### BEGIN SOLUTION
    for variable in model.non_trainable_variables:
        if "moving" in variable.name:
            dist.all_reduce(variable.value.detach(), op=dist.ReduceOp.AVG)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Print <code>v.path</code> of all <code>model.non_trainable_variables</code>. Which ones do you want, and how do you know them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The list reaches into inner models. Pick variables by their names, and average each one's tensor in place.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_reduce(variable.value.detach(), op=dist.ReduceOp.AVG)</code>: a detached tensor shares its memory with the variable.
# </details>


# %%
def contents(model):
    return {variable.path: variable.value.detach().clone() for variable in model.variables}


def with_contents(answer):
    """Call the answer and return all that is in the model then."""

    @functools.wraps(answer)
    def wrapped(model):
        answer(model)
        return contents(model)

    return wrapped


def drifted(case):
    """A model all of whose variables, trainable or not, differ from rank to rank."""
    keras.utils.clear_session()
    body = [L.Dense(2, trainable=False, name="not_moving"), L.Dropout(0.5, seed=1)]
    body += [L.BatchNormalization(), L.BatchNormalization(trainable=False)]
    if case == "models in models":
        inmost = keras.Sequential([keras.Input((2,)), L.Dense(2), L.BatchNormalization()])
        body.append(keras.Sequential([keras.Input((2,)), inmost, L.BatchNormalization()]))
    model = keras.Sequential([keras.Input((3,)), L.BatchNormalization(), *body])
    for variable in model.variables:
        variable.assign(torch.randint(100, variable.shape))
    return model


def average_statistics_inputs(rank, world_size, case):
    return drifted(case)


cases, options = ("some layers", "models in models"), {"world_sizes": (1, 2, 3)}
answer = with_contents(average_statistics)
check(
    answer, spec=average_statistics_spec, inputs=average_statistics_inputs, cases=cases, **options
)

# %% [markdown]
# ## 3 · Dropout of its own
#
# *●●○, 8 minutes.* `model`, in DDP already, has a dropout layer with a seed and one without. **Goal:** with the whole number `seed`, see to it that in 20
# calls no two ranks ever drop the same units, and that the same seed gives the same run again, and another seed another run.


# %%
def own_dropout_spec(models, seeds):
    wanted = {"with a seed": 0, "without a seed": 0, "repeatable": True, "as with seed + 1": False}
    return [wanted for _ in models]


# %%
def own_dropout(model, seed):
    ### BEGIN SOLUTION
    rank = dist.get_rank()
    torch.manual_seed(seed + rank)
    for variable in model.non_trainable_variables:
        if variable.name == "seed_generator_state":
            variable.assign(torch.tensor([seed + 1_000_000 * rank, 0]))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What does a layer without a seed draw from? And what does a layer with one add to its state in each call?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Seed torch by rank. Then give each variable called <code>seed_generator_state</code> a new first number, so far from the other ranks' that 20 calls
# do not bridge it.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>variable.assign(torch.tensor([seed + 1_000_000 * rank, 0]))</code>
# </details>


# %%
def masks(model, calls=20):
    ones = torch.ones(1, 48)
    return [
        torch.cat([layer(ones, training=True) for _ in range(calls)]) > 0
        for layer in model.layers
        if isinstance(layer, L.Dropout)
    ]


def dropping(answer):
    """Call the answer on three new models; count masks that more than one rank drew."""

    @functools.wraps(answer)
    def wrapped(model, seed):
        runs = []
        for one in (seed, seed, seed + 1):
            again = keras.models.clone_model(model)
            ddp = DistributedDataParallel(again)
            answer(ddp.module, one)
            runs.append(masks(again))
        same, other = ([*map(torch.equal, runs[0], run)] for run in runs[1:])
        report = {"repeatable": all(same), "as with seed + 1": any(other)}
        for name, drawn in zip(("with a seed", "without a seed"), runs[0]):
            every = [torch.empty_like(drawn) for _ in range(dist.get_world_size())]
            dist.all_gather(every, drawn)
            rows = torch.cat(every)
            report[name] = len(rows) - len(rows.unique(dim=0))
        return report

    return wrapped


def own_dropout_inputs(rank, world_size, case):
    layers = [L.Dropout(0.5, seed=case), L.Dropout(0.5), L.Dense(1), L.BatchNormalization()]
    return keras.Sequential([keras.Input((48,)), *layers]), case


check(dropping(own_dropout), spec=own_dropout_spec, inputs=own_dropout_inputs, cases=(0, 5))

# %% [markdown]
# ## 4 · A log that is true
#
# *●●○, 8 minutes.* `fit()` logs the loss of one rank's samples. If a learning rate or an early stop depends on it, ranks part ways. **Goal:** at the end of
# each epoch, put the mean loss over **all ranks' samples** into `logs["loss"]`, on all ranks. `self.samples` is how many this rank has; ranks
# have unequal numbers.


# %%
def global_loss_spec(models, images, labels):
    outputs = torch.cat([model(own) for model, own in zip(models, images)])
    epochs = [cross_entropy(outputs * k, torch.cat(labels)).item() for k in (1, 2)]
    return [epochs] * len(models)


# %%
class GlobalLoss(keras.callbacks.Callback):
    def __init__(self, samples):
        super().__init__()
        self.samples = samples

    def on_epoch_end(self, epoch, logs=None):
        ### BEGIN SOLUTION
        sums = torch.tensor([logs["loss"] * self.samples, self.samples], dtype=torch.float64)
        dist.all_reduce(sums)
        logs["loss"] = (sums[0] / sums[1]).item()
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Means cannot be added up. What can?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make a sum of the mean; reduce it together with the number of samples; divide; write the result back into the same <code>logs</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sums = torch.tensor([logs["loss"] * self.samples, self.samples])</code>
# </details>


# %%
class Doubling(keras.callbacks.Callback):
    """In place of learning: the second epoch begins with other weights."""

    def on_epoch_begin(self, epoch, logs=None):
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel * (1 + epoch))


def fitting(kind):
    """Two epochs of fit() with a learning rate of 0; return what the history says of the loss."""

    @functools.wraps(kind, updated=())
    def fitted(model, images, labels):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.0), loss)
        options = {"callbacks": [Doubling(), kind(len(images))], "epochs": 2, "verbose": 0}
        return model.fit(images, labels, batch_size=3, **options).history["loss"]

    return fitted


def global_loss_inputs(rank, world_size, case):
    samples = 6 if case == "equal shares" else 2 + 5 * rank
    start = torch.randn(4, 3) * (rank + 1)
    model = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    model.layers[0].kernel.assign(start)
    return model, torch.randn(samples, 4), torch.randint(3, (samples,))


options = {"cases": ("equal shares", "unequal shares"), "rtol": 1e-4}
check(fitting(GlobalLoss), spec=global_loss_spec, inputs=global_loss_inputs, **options)

# %% [markdown]
# ## 5 · A checkpoint by rank 0
#
# *●●●, 13 minutes.* After each epoch the best model so far is to be on disk. Best is: the mean of all ranks' `logs["loss"]` (shares are equal here) is lower than ever
# before. **Goal:** when that is so, rank 0, and nobody else, calls `self.save(epoch)`; and no rank leaves `on_epoch_end` before the file is written. All ranks keep
# in step.


# %%
def save_best_spec(losses):
    world_size, best, reports = len(losses), float("inf"), [[] for _ in losses]
    for epoch, each in enumerate(zip(*losses)):
        mean = sum(each) / world_size
        if mean < best:
            best, on_disk = mean, epoch
        for rank in range(world_size):
            reports[rank].append({"saved": rank == 0 and on_disk == epoch, "on disk": on_disk})
    return reports


# %%
class SaveBest(keras.callbacks.Callback):
    def __init__(self, save):
        super().__init__()
        self.save, self.best = save, float("inf")

    def on_epoch_end(self, epoch, logs=None):
        ### BEGIN SOLUTION
        loss = torch.tensor(logs["loss"], dtype=torch.float64)
        dist.all_reduce(loss, op=dist.ReduceOp.AVG)
        if loss < self.best:
            self.best = loss
            if dist.get_rank() == 0:
                self.save(epoch)
        dist.barrier()
        ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which calls concern all ranks, and which one concerns rank 0? Which rank knows what "best" is?
# </details>
# <details><summary>Hint 2: the approach</summary>
# All ranks reduce the loss and so decide alike. Only the call of <code>save</code> stands under <code>if dist.get_rank() == 0</code>. Behind it all meet.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.barrier()</code> as the last line, under no <code>if</code>.
# </details>


# %%
def saving(kind):
    """End some epochs; return for each whether this rank saved, and what is on disk then."""

    @functools.wraps(kind, updated=())
    def saved(losses):
        place, mine, reports = [os.path.join(get_temp_dir(), "best")], [], []
        dist.broadcast_object_list(place)  # rank 0's
        file = Path(place[0])
        file.unlink(missing_ok=True)
        dist.barrier()

        def save(epoch):
            mine.append(epoch)
            time.sleep(0.02)  # a large model takes its time
            file.write_text(str(epoch))

        callback = kind(save)
        for epoch, loss in enumerate(losses):
            callback.on_epoch_end(epoch, {"loss": loss})
            on_disk = int(file.read_text()) if file.exists() else None
            reports.append({"saved": epoch in mine, "on disk": on_disk})
            dist.barrier()
        return reports

    return saved


def save_best_inputs(rank, world_size, case):
    losses = torch.rand(6, dtype=torch.float64) - 0.5 * (case == "some losses below zero")
    losses[0] *= case != "zero at first"
    return losses.repeat_interleave(1 + (case == "each loss twice")).tolist()


cases = ("six epochs", "each loss twice", "zero at first", "some losses below zero")
check(saving(SaveBest), spec=save_best_spec, inputs=save_best_inputs, cases=cases)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
