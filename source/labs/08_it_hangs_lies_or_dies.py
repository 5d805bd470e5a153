# %% [markdown]
# # Lab 08 · It hangs, lies or dies
#
# Eight exercises on [chapter 08](../notebooks/08_it_hangs_lies_or_dies.ipynb), 90 minutes, on any computer. Each has a program that is
# broken as real ones are: four hang, two lie, two die. It is run once, and the launcher says what it saw. You **name** what is wrong, then you
# **repair** it, and `check` verifies both: what you name by what happened in that run, the repair by new runs in real workers, on several numbers of ranks.
#
# To name it takes three words, above the repair:
#
# - `rank`: the rank that does otherwise than the others, that dies, or that returns what is wrong. Where several do, any of them.
# - `line`: a line of the program, as a text: the call that this rank makes otherwise or not at all, or the line that raises.
# - `pattern`: one of these, most of them as in the hang report.
#
# | pattern | what happens |
# | --- | --- |
# | `"uneven"` | one rank goes round a loop less often than another |
# | `"returned"` | one rank never makes a call that the others wait in |
# | `"missing"` | one rank is busy elsewhere, and has not come yet |
# | `"order"` | the ranks make the same calls, in another order |
# | `"groups"` | the ranks wait for each other in different groups |
# | `"root"` | the ranks name different roots, or read a result that only the root has |
# | `"shape"` | what the ranks hand in differs in shape or dtype |
# | `"send/send"` | all send first, and nobody receives |
# | `"recv/recv"` | all receive first, and nobody sends |
# | `"evaluation"` | one rank alone evaluates the DDP model |
# | `"backward"` | one rank leaves out a backward pass |
# | `"exception"` | one rank raises an exception, the others are bystanders |

# %%
import functools
import hashlib
import os
from collections import Counter

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_utils import WorkerError, WorkerTimeout, check, launch, progress

# %% [markdown]
# The next two cells are to be run, and need not be read. The first finds by which rank, line and pattern a run can be named: from the fields of the
# launcher's error, from what a dying rank printed, or, where a program lies, from its recording.


# %%
def rarest(values):
    """Who does otherwise than most: the places of the rarest values."""
    counts = Counter(values)
    return [n for n, value in enumerate(values) if counts[value] == min(counts.values())]


def of_hang(error):
    lines = [one.line and one.line.code for _, one in sorted(error.waiting.items())]
    return {"rank": rarest(lines), "line": [*filter(None, lines)], "pattern": [error.pattern]}


def of_death(error):
    line = [frame.code for frame in error.failures[0].frames if frame.is_learners][-1]
    gloo_says_so = "data size doesn't match" in error.output[error.rank]
    pattern = "shape" if gloo_says_so else "exception"
    return {"rank": [error.rank], "line": [line], "pattern": [pattern]}


def of_lie(trace, wrong):
    for calls in zip(*map(trace.of_rank, range(trace.world_size))):
        lines = [call.code for call in calls]
        if len(set(lines)) > 1:
            ranks = rarest(lines)
            return {"rank": ranks, "line": [lines[rank] for rank in ranks], "pattern": ["order"]}
    reads = [call for call in trace if call.rank in wrong and call.root not in (None, call.rank)]
    lines = [call.code for call in reads]
    return {"rank": wrong, "line": lines, "pattern": ["root"]}


# %% [markdown]
# `provoke` runs a broken program once and prints what comes of it. `found` stands above a repair: it runs the repair if the three words are right, and
# says which are wrong if not. The right words are kept sealed, so that nothing but the run tells them.


# %%
SALT = os.urandom(8)


def seal(name, word):
    return hashlib.sha256(SALT + f"{name} {word}".encode()).hexdigest()[:6]


RIGHTLY = f"named rightly ({seal('named', 'rightly')})"


def provoke(broken, spec, inputs, case, world_size=3):
    """Run a broken program once, show what comes of it, and return sealed what names it."""
    happened = what_happens(broken, spec, inputs, case, world_size)
    return {seal(name, word) for name, words in happened.items() for word in words}


def what_happens(broken, spec, inputs, case, world_size):
    def drawn(rank):
        torch.manual_seed(rank)
        return inputs(rank, world_size, case)

    def run():
        return broken(*drawn(dist.get_rank()))

    try:
        results = launch(run, world_size=world_size, backend="gloo", timeout=2, trace=True)
    except WorkerTimeout as error:
        print(error)
        return of_hang(error)
    except WorkerError as error:
        print(error)
        return of_death(error)
    ranks = range(world_size)
    wanted = spec(*map(list, zip(*map(drawn, ranks))))
    for rank in ranks:
        print(f"rank {rank} returned {results[rank]:.4f}, and {wanted[rank]:.4f} is right")
    wrong = [rank for rank in ranks if abs(results[rank] - wanted[rank]) > 1e-9]
    return of_lie(results.trace, wrong)


def found(happened, rank, line, pattern):
    words = {"rank": rank, "line": line, "pattern": pattern}

    def above(repair):
        @functools.wraps(repair)
        def answer(*arguments):
            if rank is None:
                raise NotImplementedError("name rank, line and pattern, then repair it")
            wrong = [name for name, word in words.items() if seal(name, word) not in happened]
            if wrong:
                return "named wrongly: " + ", ".join(wrong), None
            try:
                return RIGHTLY, repair(*arguments)
            except NotImplementedError as stub:
                raise NotImplementedError(f"named rightly; the repair is {stub}") from None

        return answer

    return above


def named(spec):
    @functools.wraps(spec)
    def named_spec(*columns):
        return [(RIGHTLY, own) for own in spec(*columns)]

    return named_spec


# %% [markdown]
# ## 1 · It ran for an epoch, then stopped
#
# *●○○, 8 minutes.* The loss of every batch is averaged over all ranks. The first epoch went well, up to the end of its last batch; ten hours later
# the log still ended there. **Goal:** return the mean of all ranks' `losses`, a vector with one number per batch, on every rank, as a
# `float`, however many batches each rank has.


# %%
def epoch_loss_spec(losses):
    return [torch.cat(losses).mean().item()] * len(losses)


def epoch_loss_broken(losses):
    total = torch.zeros(2, dtype=torch.float64)
    for loss in losses:
        batch = torch.stack([loss, torch.ones_like(loss)])
        dist.all_reduce(batch)
        total += batch
    return (total[0] / total[1]).item()


# %% [markdown]
# Before you run it: the last rank has one batch fewer. Who will wait for whom, and in which line?

# %%
batches = {
    "3 batches each": lambda rank, world_size: 3,
    "one batch fewer on the last rank": lambda rank, world_size: 3 - (rank == world_size - 1),
    "no batch on rank 0": lambda rank, world_size: 2 * rank + (world_size == 1),
}


def epoch_loss_inputs(rank, world_size, case):
    losses = torch.rand(batches[case](rank, world_size), dtype=torch.float64) + rank
    losses[:1] = 0.0  # a loss of zero is one as well
    return (losses,)


case = "one batch fewer on the last rank"
run_1 = provoke(epoch_loss_broken, epoch_loss_spec, epoch_loss_inputs, case)


# %%
### BEGIN SOLUTION @found(run_1, rank=None, line="", pattern="")
@found(run_1, rank=2, line="dist.all_reduce(batch)", pattern="uneven")
### END SOLUTION
def epoch_loss(losses):
    ### BEGIN SOLUTION
    total = torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How often does each rank come to the call that two of them wait in? Which of these numbers is the odd one?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The number of calls must not depend on the number of batches. Add up this rank's losses first, and meet once, after the last of them.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>torch.tensor([losses.sum(), len(losses)], dtype=torch.float64)</code> is all that a rank has to say; divide after the sum.
# </details>

# %%
options = {"cases": list(batches), "timeout": 5}
check(epoch_loss, spec=named(epoch_loss_spec), inputs=epoch_loss_inputs, **options)

# %% [markdown]
# ## 2 · Whose fault is it?
#
# *●○○, 8 minutes.* Two of three logs ended with a closed connection, and the network was searched for a day. The third log was not read. **Goal:** return
# the highest of all ranks' `log_probs` for which `keep` is true, on every rank, as a `float`. Some rank may have nothing to keep, never all. They may be
# very low, and few of many are kept: the others are not to be sent.


# %%
def best_spec(log_probs, keeps):
    kept = torch.cat([own[keep] for own, keep in zip(log_probs, keeps)])
    return [kept.max().item()] * len(keeps)


def best_broken(log_probs, keep):
    candidates = log_probs[keep]
    best = candidates.max()
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    return best.item()


# %% [markdown]
# Before you run it: rank 1 has nothing to keep. What will ranks 0 and 2 be doing when it fails?

# %%
kept = {  # whether a rank keeps anything, and about how high what it keeps is
    "something on every rank": (lambda rank, world_size: True, 1.0),
    "nothing on rank 1": (lambda rank, world_size: rank != 1, 1.0),
    "something on the last rank only": (lambda rank, world_size: rank == world_size - 1, 1.0),
    "very low, and nothing on rank 0": (lambda rank, world_size: rank > 0 or world_size == 1, 1e6),
}


def best_inputs(rank, world_size, case):
    keeps, scale = kept[case]
    log_probs = -1 - torch.rand(2000, dtype=torch.float64)
    keep = torch.rand(2000) < 0.002 * keeps(rank, world_size)
    keep[torch.randint(2000, ())] = keeps(rank, world_size)
    return scale * (log_probs - 2.0 * keep), keep


run_2 = provoke(best_broken, best_spec, best_inputs, "nothing on rank 1")


# %%
### BEGIN SOLUTION @found(run_2, rank=None, line="", pattern="")
@found(run_2, rank=1, line="best = candidates.max()", pattern="exception")
### END SOLUTION
def best(log_probs, keep):
    ### BEGIN SOLUTION
    nothing = log_probs.new_tensor([-torch.inf])
    best = torch.cat([log_probs[keep], nothing]).max()
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    return best.item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# One rank failed, the others were stopped. And what would they do if you caught the exception, and left?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A rank that has nothing must come to the call as well, with a number that changes no maximum. Zero does: a log probability is
# below it.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>-torch.inf</code> is lower than any number. Put it beside the candidates, then take the maximum.
# </details>

# %%
options = {"cases": list(kept), "timeout": 5, "budget": {"sent_bytes": 10_000}}
check(best, spec=named(best_spec), inputs=best_inputs, **options)

# %% [markdown]
# ## 3 · The log was right
#
# *●○○, 6 minutes.* Each rank has a part of a large gradient, and scales it by the norm of the whole. The norm in the log, which rank 0 writes, was right at every step;
# the model was useless. **Goal:** return the norm of all ranks' parts put together, on **every** rank, as a `float`. Parts may differ in length, and be empty;
# they are too long to be sent.


# %%
def global_norm_spec(parts):
    return [torch.cat(parts).norm().item()] * len(parts)


def global_norm_broken(part):
    total = part.square().sum()
    dist.reduce(total, dst=0)
    return total.sqrt().item()


# %% [markdown]
# Before you run it: on which ranks will the norm be right?

# %%
parts = {
    "4,000 numbers each": lambda rank: 4000,
    "4,000, 6,000, 8,000 numbers": lambda rank: 4000 + 2000 * rank,
    "nothing on rank 1": lambda rank: 3000 * (rank != 1),
}


def global_norm_inputs(rank, world_size, case):
    return (torch.randn(parts[case](rank), dtype=torch.float64),)


case = "4,000, 6,000, 8,000 numbers"
run_3 = provoke(global_norm_broken, global_norm_spec, global_norm_inputs, case)


# %%
### BEGIN SOLUTION @found(run_3, rank=None, line="", pattern="")
@found(run_3, rank=1, line="dist.reduce(total, dst=0)", pattern="root")
### END SOLUTION
def global_norm(part):
    ### BEGIN SOLUTION
    total = part.square().sum()
    dist.all_reduce(total)
    return total.sqrt().item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who has the result of a <code>reduce</code>? And what is in the tensor of the others?
# </details>
# <details><summary>Hint 2: the approach</summary>
# What all ranks go on with, all ranks must have: from a collective that leaves its result everywhere, or from one more that sends it to all.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_reduce(total)</code>, or after the <code>reduce</code> a <code>dist.broadcast(total, src=0)</code>.
# </details>

# %%
options = {"cases": list(parts), "world_sizes": (1, 2, 3, 4), "timeout": 5}
options["budget"] = {"sent_bytes": 10_000}
check(global_norm, spec=named(global_norm_spec), inputs=global_norm_inputs, **options)

# %% [markdown]
# ## 4 · After you
#
# *●●○, 12 minutes.* The ranks stand in a ring, each with a strip of numbers, and before each step it needs the last number of its left neighbour. On paper all
# is well: send to the right, receive from the left. The first step has not ended yet. **Goal:** return that number, then `strip`, as one tensor.
# Each rank sends one message, and no collective is called.


# %%
def with_border_spec(strips):
    return [torch.cat([strips[rank - 1][-1:], strips[rank]]) for rank in range(len(strips))]


def with_border_broken(strip):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    edge, border = strip[-1:], torch.empty(1)
    dist.send(edge, dst=right)
    dist.recv(border, src=left)
    return torch.cat([border, strip])


# %% [markdown]
# Before you run it: of three ranks in a ring, which one receives first?

# %%
lengths = {"5 numbers": 5, "1 number": 1}


def with_border_inputs(rank, world_size, case):
    return (torch.randn(lengths[case]),)


run_4 = provoke(with_border_broken, with_border_spec, with_border_inputs, "5 numbers")


# %%
### BEGIN SOLUTION @found(run_4, rank=None, line="", pattern="")
@found(run_4, rank=0, line="dist.send(edge, dst=right)", pattern="send/send")
### END SOLUTION
def with_border(strip):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    edge, border = strip[-1:], torch.empty(1)
    sending = dist.isend(edge, dst=right)
    dist.recv(border, src=left)
    sending.wait()
    return torch.cat([border, strip])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# When does a <code>send</code> end, and who is in the other line at that moment?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Begin to send, receive, then wait for what you have begun. Or let some ranks receive first: one is enough, and in a large ring slow.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sending = dist.isend(edge, dst=right)</code>, and after the <code>recv</code> comes <code>sending.wait()</code>.
# </details>

# %%
options = {"cases": list(lengths), "world_sizes": (2, 3, 4), "timeout": 5}
options |= {"forbid": ("collectives",), "budget": {"sent_messages": 1}}
check(with_border, spec=named(with_border_spec), inputs=with_border_inputs, **options)

# %% [markdown]
# ## 5 · Since we validate
#
# *●●○, 12 minutes.* The training ran for weeks. Then it got a validation, which only rank 0 does, as only rank 0 writes the log; it has not written
# since. **Goal:** take one step with DDP, SGD and a rate of 0.1, on the mean loss of all ranks. Then return the model's outputs for rank 0's
# `validation` on rank 0, and `None` on the others.


# %%
class Centred(nn.Module):
    """A linear layer that knows the mean of its data, as a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1, dtype=torch.float64)
        self.register_buffer("mean", torch.rand(3, dtype=torch.float64))

    def forward(self, inputs):
        return self.linear(inputs - self.mean)


def validate_spec(nets, inputs, targets, validations):
    optimizer = torch.optim.SGD(nets[0].parameters(), lr=0.1)
    mse_loss(nets[0](torch.cat(inputs)), torch.cat(targets)).backward()
    optimizer.step()
    return [nets[0](validations[0])] + [None] * (len(nets) - 1)


# %% [markdown]
# The broken program. Before you run it: rank 0 calls the model once more than the others. Does that need anybody?


# %%
def validate_broken(net, inputs, targets, validation):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mse_loss(model(inputs), targets).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            return model(validation)


counts = {"4 samples each": 4, "1 sample each": 1}


def validate_inputs(rank, world_size, case):
    inputs = torch.rand(2 * counts[case], 3, dtype=torch.float64)
    return Centred(), inputs[::2], inputs[::2].sum(1, keepdim=True), inputs[1::2]


run_5 = provoke(validate_broken, validate_spec, validate_inputs, "4 samples each")


# %%
### BEGIN SOLUTION @found(run_5, rank=None, line="", pattern="")
@found(run_5, rank=0, line="return model(validation)", pattern="evaluation")
### END SOLUTION
def validate(net, inputs, targets, validation):
    ### BEGIN SOLUTION
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mse_loss(model(inputs), targets).backward()
    optimizer.step()
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            return model.module(validation)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Nothing is trained in evaluation. What does DDP send all the same, before a forward pass? Two ranks never came: are they to blame?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Before each forward pass DDP broadcasts the buffers, and so every rank has to call it. Either all evaluate, or one does without DDP.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>model.module</code> is the model inside DDP, with the same parameters and buffers.
# </details>

# %%
options = {"cases": list(counts), "timeout": 5, "work": 1.5}
check(validate, spec=named(validate_spec), inputs=validate_inputs, **options)

# %% [markdown]
# ## 6 · A loss that nobody has
#
# *●●○, 10 minutes.* Nothing hung, nothing was printed in red. In the report the losses of three ranks were two numbers, and none was true. **Goal:**
# return the sum of all ranks' `loss`, divided by the sum of all ranks' `count`, on every rank, as a `float`. Both are tensors with one number; some rank may have none of the samples.


# %%
def per_sample_spec(losses, counts):
    return [(sum(losses) / sum(counts)).item()] * len(losses)


def per_sample_broken(loss, count):
    if dist.get_rank() == 0:  # which wants to log the number of samples first
        dist.all_reduce(count)
        dist.all_reduce(loss)
    else:
        dist.all_reduce(loss)
        dist.all_reduce(count)
    return (loss / count).item()


# %% [markdown]
# Before you run it: which sums can come out, and can you see from the numbers alone that something is wrong?

# %%
sizes = {
    "5 samples each": lambda rank: 5.0,
    "more on higher ranks": lambda rank: 3.0 + 4 * rank,
    "none on rank 1": lambda rank: 4.0 * (rank != 1),
}


def per_sample_inputs(rank, world_size, case):
    count = torch.tensor(sizes[case](rank), dtype=torch.float64)
    return count * (1 + torch.rand((), dtype=torch.float64)), count


run_6 = provoke(per_sample_broken, per_sample_spec, per_sample_inputs, "more on higher ranks")


# %%
### BEGIN SOLUTION @found(run_6, rank=None, line="", pattern="")
@found(run_6, rank=0, line="dist.all_reduce(count)", pattern="order")
### END SOLUTION
def per_sample(loss, count):
    ### BEGIN SOLUTION
    dist.all_reduce(count)
    dist.all_reduce(loss)
    return (loss / count).item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# By what does a collective know its partners on other ranks: by the name of a tensor, or by their order? Multiply the two numbers that were returned.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Two calls of one kind and one shape meet whatever they are about, so nothing can hang. All ranks must make them in one order; whatever
# rank 0 does besides is done around them.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_reduce(count)</code>, then <code>dist.all_reduce(loss)</code>, and no <code>if</code> around either.
# </details>

# %%
options = {"cases": list(sizes), "world_sizes": (1, 2, 3, 4), "timeout": 5}
check(per_sample, spec=named(per_sample_spec), inputs=per_sample_inputs, **options)

# %% [markdown]
# ## 7 · It died of a rare class
#
# *●●○, 10 minutes.* How often is each class predicted? With large shards it worked; one small shard, and a process is gone without a traceback of Python.
# `outputs` has a row for each of a rank's samples, and a column for each class. **Goal:** return how many of all ranks' samples are predicted to be
# of each class, as a tensor with one whole number per class, on every rank. A rank may have no sample at all, and `outputs` are too many to be sent.


# %%
def class_counts_spec(outputs):
    predicted = torch.cat(outputs).argmax(dim=1)
    return [torch.bincount(predicted, minlength=outputs[0].shape[1])] * len(outputs)


def class_counts_broken(outputs):
    predicted = outputs.argmax(dim=1)
    counts = torch.bincount(predicted)
    dist.all_reduce(counts)
    return counts


# %% [markdown]
# Before you run it: there are five classes, and rank 1 has only the first three. How long are the `counts` of each rank?

# %% tags=["nbval-ignore-output"]
shards = {  # how many classes there are, and how many of them a rank has
    "every class on every rank": (5, lambda rank, classes: classes),
    "the last two classes on rank 0 only": (5, lambda rank, classes: classes - 2 * (rank > 0)),
    "the last of seven classes on no rank": (7, lambda rank, classes: classes - 1),
    "ten classes, no sample on rank 1": (10, lambda rank, classes: classes * (rank != 1)),
}


def class_counts_inputs(rank, world_size, case):
    classes, has = shards[case]
    seen = has(rank, classes)
    predicted = torch.cat([torch.arange(seen), torch.randint(seen, (600,))]) if seen else ()
    chosen = nn.functional.one_hot(torch.as_tensor(predicted, dtype=torch.long), classes)
    return (0.4 * chosen + 0.3 * torch.rand(len(predicted), classes),)


case = "the last two classes on rank 0 only"
run_7 = provoke(class_counts_broken, class_counts_spec, class_counts_inputs, case, world_size=2)


# %%
### BEGIN SOLUTION @found(run_7, rank=None, line="", pattern="")
@found(run_7, rank=1, line="dist.all_reduce(counts)", pattern="shape")
### END SOLUTION
def class_counts(outputs):
    ### BEGIN SOLUTION
    predicted = outputs.argmax(dim=1)
    counts = torch.bincount(predicted, minlength=outputs.shape[1])
    dist.all_reduce(counts)
    return counts
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How long is <code>torch.bincount(torch.tensor([0, 1, 0]))</code>, and how long if there is a 4 among them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A shape that depends on the data differs from rank to rank. Take it from something that is the same everywhere: the number of classes.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>torch.bincount(predicted, minlength=outputs.shape[1])</code>
# </details>

# %%
options = {"cases": list(shards), "timeout": 5, "budget": {"sent_bytes": 12_000}}
check(class_counts, spec=named(class_counts_spec), inputs=class_counts_inputs, **options)

# %% [markdown]
# ## 8 · We only skip bad batches
#
# *●●●, 15 minutes.* One batch in many thousand has a loss that is no number. Since such batches are skipped, the training hangs about twice a day.
# **Goal:** take one step with DDP, SGD and a rate of 0.1, on the mean loss of all ranks, unless **some** rank's loss is not finite: then no rank takes
# the step. Return the `weights` afterwards, on every rank.


# %%
def weights(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def careful_step_spec(nets, inputs, targets):
    optimizer = torch.optim.SGD(nets[0].parameters(), lr=0.1)
    loss = mse_loss(nets[0](torch.cat(inputs)), torch.cat(targets))
    if loss.isfinite():
        loss.backward()
        optimizer.step()
    return [weights(nets[0])] * len(nets)


def careful_step_broken(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    if loss.isfinite():
        loss.backward()
        optimizer.step()
    return weights(net)


# %% [markdown]
# Before you run it: the loss of rank 1 is `nan`. Which line does it leave out, and who misses it?

# %%
bad = {
    "good batches": lambda rank, world_size: 0.0,
    "nan on rank 1": lambda rank, world_size: torch.nan if rank == 1 else 0.0,
    "infinity on rank 0": lambda rank, world_size: torch.inf if rank == 0 else 0.0,
    "nan on every rank": lambda rank, world_size: torch.nan,
}


def careful_step_inputs(rank, world_size, case):
    inputs = torch.rand(4, 3, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    inputs[0, 0] += bad[case](rank, world_size)
    return Centred(), inputs, targets


run_8 = provoke(careful_step_broken, careful_step_spec, careful_step_inputs, "nan on rank 1")


# %%
### BEGIN SOLUTION @found(run_8, rank=None, line="", pattern="")
@found(run_8, rank=1, line="loss.backward()", pattern="backward")
### END SOLUTION
def careful_step(net, inputs, targets):
    ### BEGIN SOLUTION
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    finite = loss.isfinite().int()
    dist.all_reduce(finite, op=dist.ReduceOp.MIN)
    if finite:
        loss.backward()
        optimizer.step()
    return weights(net)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which rank never came to the pass that two ranks wait in, and what did it know that they did not?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Whether to skip is a decision of all. Let them meet before it is taken: every rank hands in whether its own loss is finite, and all
# go on only if all are.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>finite = loss.isfinite().int()</code>, then <code>dist.all_reduce(finite, op=dist.ReduceOp.MIN)</code>.
# </details>

# %%
options = {"cases": list(bad), "timeout": 5}
options["work"] = lambda world_size, case: 1.5 if case == "good batches" else 3.0  # or backward
check(careful_step, spec=named(careful_step_spec), inputs=careful_step_inputs, **options)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
