# %% [markdown]
# # Lab 08 · It hangs, lies or dies
#
# Six exercises on [chapter 08](../notebooks/08_it_hangs_lies_or_dies.ipynb) and a bonus, 70 minutes without the bonus, on any computer. You are on call. Four programs are broken: one dies, one lies, two hang. For the fifth trouble you write a tool, for the sixth you read what a whole cluster has left.

# %% [markdown]
# Each broken program is run once, and you get what a cluster would give you: **the logs of its ranks**, with a traceback where a rank died, and the stack of a rank that is still busy after two seconds, as `py-spy dump` shows it. Lines of this notebook are counted within their cell.

# %% [markdown]
# First you **name** the cause:
#
# - `rank`: the rank that behaves differently, dies first, or goes on with a wrong result. If there are several, name any one.
# - `line`: a line of the program, as a text: the call that this rank makes otherwise or not at all, or the line that raises.

# %% [markdown]
# Then you **repair** it. `check` compares the names with that run, and tries the repair in new ones. Stuck with the names? `print(run_1.report)` shows what the course's launcher says of the run. Take it as the last hint: a cluster has none.
#
# Each exercise says how difficult it is and how important for the course, from ●○○ to ●●●.

# %%
import functools
import hashlib
import inspect
import json
import os
import sys
import tempfile
import threading
import traceback
import zlib
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_lessons import stuck_jobs
from course_utils import WorkerError, WorkerTimeout, check, explain_dumps, launch, progress

# %% [markdown]
# The folded cells run a broken program, write its logs, and find by which names it can be called. They need not be read.


# %% jupyter={"source_hidden": true}
def calls_and_files(stack):
    """Its calls, each with its place, but those of the course's recorder."""
    calls = []
    for frame in stack:
        path = Path(frame.filename)
        if "course_utils" not in frame.filename:
            calls.append((frame, path.name if "torch" in path.parts else "this notebook"))
    return calls


def tell_where(thread):
    """What py-spy would show of a rank, the innermost call first."""
    print("after 2 s it is in")
    stack = traceback.extract_stack(sys._current_frames()[thread])
    for frame, file in reversed(calls_and_files(stack)):
        if frame.name == "in_a_rank":
            break
        print(f"    {frame.name} ({file}, line {frame.lineno})")


def tell_death(error):
    """Its traceback, without folders and addresses."""
    print("Traceback (most recent call last):")
    for frame, file in calls_and_files(traceback.extract_tb(error.__traceback__))[1:]:
        print(f'  File "{file}", line {frame.lineno}, in {frame.name}\n    {frame.line}')
    lost = any(words in str(error) for words in ("by peer", "Connection", "Broken pipe", "error:"))
    print(f"{type(error).__name__}: {'Connection closed by peer' if lost else error}")


# %% jupyter={"source_hidden": true}
def rarest(values):
    """Who does otherwise than most: the places of the rarest values."""
    counts = Counter(values)
    return [n for n, value in enumerate(values) if counts[value] == min(counts.values())]


def of_hang(error):
    lines = [call.line and call.line.code for _, call in sorted(error.waiting.items())]
    return {"rank": rarest(lines), "line": [*filter(None, lines)]}


def of_death(error):
    lines = [frame.code for frame in error.failures[0].frames if frame.is_learners]
    return {"rank": [error.rank], "line": lines[-1:]}


def of_lie(trace):
    """Who reads what only the root has."""
    reads = [call for call in trace if call.root not in (None, call.rank)]
    return {"rank": [call.rank for call in reads], "line": [call.code for call in reads]}


# %% jupyter={"source_hidden": true}
SALT = os.urandom(8)


def seal(name, word):
    return hashlib.sha256(SALT + f"{name} {word}".encode()).hexdigest()[:6]


RIGHTLY = f"named rightly ({seal('named', 'rightly')})"


class Run(NamedTuple):
    """A run of a broken program: sealed, what names it, and the launcher's report."""

    names: frozenset
    lines: list
    report: str


def provoke(broken, inputs, case, world_size=3):
    """Runs a broken program once and prints its ranks' logs."""

    def in_a_rank():
        torch.manual_seed(dist.get_rank())
        arguments = inputs(dist.get_rank(), world_size, case)
        looking = threading.Timer(2, tell_where, [threading.get_ident()])
        looking.start()
        dist.monitored_barrier()  # all are connected before one can leave
        try:
            broken(*arguments)
            print("done")
        except Exception as error:
            tell_death(error)
            dist.destroy_process_group()  # so that the others lose it
            raise
        finally:
            looking.cancel()

    options = {"world_size": world_size, "backend": "gloo", "timeout": 8, "trace": True}
    report = "No rank failed, and none waits."
    try:
        words = of_lie(launch(in_a_rank, **options).trace)
    except WorkerTimeout as error:
        words, report = of_hang(error), str(error)
    except WorkerError as error:
        words, report = of_death(error), str(error)
    names = frozenset(seal(name, word) for name in words for word in words[name])
    return Run(names, [line.strip() for line in inspect.getsource(broken).splitlines()], report)


# %% jupyter={"source_hidden": true}
causes = {}  # by the name of the repair, the run and the words that name its cause


def found(run, rank, line):
    """Stands above a repair, and says what is to be repaired."""

    def above(repair):
        causes[repair.__name__] = run, {"rank": rank, "line": str(line).strip()}
        return repair

    return above


def and_named(answer):
    """Run the repair if rank and line are those of the run; it never hears which are right."""

    @functools.wraps(answer)
    def repaired(*arguments):
        run, words = causes.get(answer.__name__, (None, {"rank": None}))
        if words["rank"] is None:
            raise NotImplementedError("name rank and line, then repair it")
        wrong = [name for name, word in words.items() if seal(name, word) not in run.names]
        if wrong:
            message = f"your repair was not tried, since these names are wrong: {', '.join(wrong)}"
            if "line" in wrong and words["line"] not in run.lines:
                message += " (the program has no such line)"
            raise ValueError(message)
        try:
            return RIGHTLY, answer(*arguments)
        except NotImplementedError as stub:
            raise NotImplementedError(f"named rightly; the repair is {stub}") from None

    return repaired


def named(spec):
    @functools.wraps(spec)
    def named_spec(*columns):
        return [(RIGHTLY, result) for result in spec(*columns)]

    return named_spec


# %% [markdown]
# ## 1 · Whose fault is it?
#
# *Difficulty ●○○ · importance ●●○ · 8 minutes.* A search keeps some of its candidates and wants the best of all ranks. Two logs of three end with a closed connection, so the network was searched for a day.

# %% [markdown]
# **Goal:** return the highest of all ranks' `log_probs` for which `keep` is true, on every rank. Some rank may have nothing to keep, never all. The values may be very low. Few of many are kept, and the others are not to be sent.
#
# | | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | `log_probs` | `[-2.5, -7.0]` | `[-1.0, -1.5]` | `[-9.0, -4.0]` |
# | `keep` | `[True, True]` | `[False, False]` | `[False, True]` |
# | returns | -2.5 | -2.5 | -2.5 |


# %%
def best_broken(log_probs, keep):
    candidates = log_probs[keep]
    print(f"{len(candidates)} of {len(keep)} kept")
    best = candidates.max()
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    return best.item()


# %% jupyter={"source_hidden": true}
kept = {  # whether a rank keeps anything, and about how high what it keeps is
    "something on every rank": (lambda rank, world_size: True, 1.0),
    "nothing on rank 1": (lambda rank, world_size: rank != 1, 1.0),
    "something on the last rank only": (lambda rank, world_size: rank == world_size - 1, 1.0),
    "very low, and nothing on rank 0": (lambda rank, size: rank > 0 or size == 1, 4e307),
}


def best_spec(log_probs, keeps):
    kept = torch.cat([values[keep] for values, keep in zip(log_probs, keeps)])
    return [kept.max().item()] * len(keeps)


def best_inputs(rank, world_size, case):
    keeps, scale = kept[case]
    log_probs = -1 - torch.rand(2000, dtype=torch.float64)
    keep = torch.rand(2000) < 0.002 * keeps(rank, world_size)
    keep[torch.randint(2000, ())] = keeps(rank, world_size)
    return scale * (log_probs - 2.0 * keep), keep


# %%
run_1 = provoke(best_broken, best_inputs, "nothing on rank 1")


# %%
### BEGIN SOLUTION @found(run_1, rank=None, line="")
@found(run_1, rank=1, line="best = candidates.max()")
### END SOLUTION
def best(log_probs, keep):
    ### BEGIN SOLUTION
    # Who has nothing comes to the call as well, with a number that changes no maximum.
    nothing = log_probs.new_tensor([-torch.inf])
    best = torch.cat([log_probs[keep], nothing]).max()
    dist.all_reduce(best, op=dist.ReduceOp.MAX)
    return best.item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Leave out what only says that a peer is gone. Which log is left? And what would the other ranks do if that rank caught its error and went on without the call?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A rank that has nothing must come to the call as well, with a number that changes no maximum. Zero would change it: a log probability is
# below it.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>-torch.inf</code> is lower than any number. Put it next to the candidates, then take the maximum.
# </details>

# %% jupyter={"source_hidden": true}
best_check = {"spec": named(best_spec), "inputs": best_inputs, "cases": list(kept)}
best_check |= {"timeout": 5, "budget": {"sent_bytes": 10_000}}

# %%
check(and_named(best), **best_check)

# %% [markdown]
# ## 2 · The log was right
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* A large gradient is cut into one `part` per rank, and too long gradients are to be shortened. Rank 0's log shows the right factor at every step, and the model is useless.

# %% [markdown]
# **Goal:** return this rank's part, shortened by the factor that makes the norm of **the whole** gradient equal to `limit`. A gradient that is no longer than `limit` stays as it is. Parts may differ in length and be empty; they are too long to be sent.
#
# | | rank 0 | rank 1 |
# | --- | --- | --- |
# | `part` | `[3, 0]` | `[4]` |
# | returns, with `limit` 1 | `[0.6, 0]` | `[0.8]` |
# | returns, with `limit` 7 | `[3, 0]` | `[4]` |


# %%
def clip_broken(part, limit):
    total = part.square().sum()
    dist.reduce(total, dst=0)
    factor = limit / total.sqrt()
    print(f"factor {factor.item():.5f}")
    return part * factor.clamp(max=1)


# %% jupyter={"source_hidden": true}
parts = {  # how many numbers a rank has, how large they are about, and the limit
    "4,000 numbers each": (lambda rank: 4000, 1.0, 1.0),
    "4,000, 6,000, 8,000 numbers": (lambda rank: 4000 + 2000 * rank, 1.0, 1.0),
    "nothing on rank 1": (lambda rank: 3000 * (rank != 1), 1.0, 5.0),
    "a short gradient": (lambda rank: 3000, 0.001, 1.0),
    "nothing but zeros": (lambda rank: 3000, 0.0, 1.0),
}


def clip_spec(parts, limits):
    norm = torch.cat(parts).norm()
    return [part * (limits[0] / norm if norm > limits[0] else 1) for part in parts]


def clip_inputs(rank, world_size, case):
    length, scale, limit = parts[case]
    return torch.randn(length(rank), dtype=torch.float64) * scale, limit


# %%
run_2 = provoke(clip_broken, clip_inputs, "4,000, 6,000, 8,000 numbers")


# %%
### BEGIN SOLUTION @found(run_2, rank=None, line="")
@found(run_2, rank=1, line="dist.reduce(total, dst=0)")
### END SOLUTION
def clip(part, limit):
    ### BEGIN SOLUTION
    total = part.square().sum()
    dist.all_reduce(total)  # all go on with it, so all must have it
    factor = limit / total.sqrt()  # infinite where the gradient is zero
    return part * factor.clamp(max=1)
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

# %% jupyter={"source_hidden": true}
clip_check = {"spec": named(clip_spec), "inputs": clip_inputs, "cases": list(parts)}
clip_check |= {
    "timeout": 5,
    "rtol": 1e-5,
    "budget": {"sent_bytes": 10_000},
    "world_sizes": (1, 2, 3, 5),
}

# %%
check(and_named(clip), **clip_check)

# %% [markdown]
# ## 3 · After you
#
# *Difficulty ●●○ · importance ●○○ · 10 minutes.* The ranks stand in a ring, each with a strip of numbers, and before each step it needs the last number of its left neighbour. On paper all
# is well: send to the right, receive from the left. The first step has not ended yet.

# %% [markdown]
# **Goal:** return the left neighbour's last number, then `strip`, as one tensor.
# Each rank sends one message, and no collective is called.
#
# | | rank 0 | rank 1 | rank 2 |
# | --- | --- | --- | --- |
# | `strip` | `[1, 2]` | `[3, 4]` | `[5, 6]` |
# | returns | `[6, 1, 2]` | `[2, 3, 4]` | `[4, 5, 6]` |


# %%
def with_border_broken(strip):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    edge, border = strip[-1:], torch.empty(1)
    dist.send(edge, dst=right)
    dist.recv(border, src=left)
    return torch.cat([border, strip])


# %% jupyter={"source_hidden": true}
lengths = {"5 numbers": 5, "1 number": 1}


def with_border_spec(strips):
    return [torch.cat([strips[rank - 1][-1:], strips[rank]]) for rank in range(len(strips))]


def with_border_inputs(rank, world_size, case):
    return (torch.randn(lengths[case]),)


# %%
run_3 = provoke(with_border_broken, with_border_inputs, "5 numbers")


# %%
### BEGIN SOLUTION @found(run_3, rank=None, line="")
@found(run_3, rank=0, line="dist.send(edge, dst=right)")
### END SOLUTION
def with_border(strip):
    ### BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    edge, border = strip[-1:], torch.empty(1)
    sending = dist.isend(edge, dst=right)  # only begun: nobody has to be there yet
    dist.recv(border, src=left)
    sending.wait()  # until then `edge` must stay as it is
    return torch.cat([border, strip])
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# When does a <code>send</code> end, and who is in the other line at that moment?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Begin to send, receive, then wait for what you have begun. Or let some ranks receive first: one is enough, and in a large ring slow. (On GPUs, NCCL wants both in one call: <code>dist.batch_isend_irecv</code>.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sending = dist.isend(edge, dst=right)</code>, and after the <code>recv</code> comes <code>sending.wait()</code>.
# </details>

# %% jupyter={"source_hidden": true}
with_border_check = {"spec": named(with_border_spec), "inputs": with_border_inputs}
with_border_check |= {"cases": list(lengths), "world_sizes": (2, 3, 4), "timeout": 5}
with_border_check |= {"forbid": ("collectives",), "budget": {"sent_messages": 1}}

# %%
check(and_named(with_border), **with_border_check)

# %% [markdown]
# ## 4 · We only skip bad batches
#
# *Difficulty ●●● · importance ●●● · 14 minutes.* One batch in many thousand has a loss that is no number. Since its rank skips it, the training hangs about twice a day. To skip the step everywhere would waste the other ranks' good batches.

# %% [markdown]
# **Goal:** take one step with DDP, SGD and a rate of 0.1, on the mean of the losses that are finite. Where no rank's is, nobody takes a step. Return the `weights` afterwards, on every rank. Each rank computes with its own batch only.
#
# | losses of ranks 0, 1, 2 | the step is taken on |
# | --- | --- |
# | 0.3, 0.6, 0.9 | 0.6, their mean |
# | 0.3, nan, 0.9 | 0.6, the mean of ranks 0 and 2 |
# | nan, nan, inf | nothing: the weights stay |


# %%
def weights(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def careful_step_broken(net, inputs, targets):
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    print(f"loss {loss.item():.4f}")
    if loss.isfinite():
        loss.backward()
        optimizer.step()
    return weights(net)


# %% jupyter={"source_hidden": true}
class Centred(nn.Module):
    """A linear layer that knows the mean of its data, as a buffer."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1, dtype=torch.float64)
        self.register_buffer("mean", torch.rand(3, dtype=torch.float64))

    def forward(self, inputs):
        return self.linear(inputs - self.mean)


def careful_step_spec(nets, inputs, targets):
    optimizer = torch.optim.SGD(nets[0].parameters(), lr=0.1)
    losses = [mse_loss(nets[0](batch), wanted) for batch, wanted in zip(inputs, targets)]
    if good := [loss for loss in losses if loss.isfinite()]:
        (sum(good) / len(good)).backward()
        optimizer.step()
    return [weights(nets[0])] * len(nets)


# %% jupyter={"source_hidden": true}
bad = {
    "good batches": lambda rank, world_size: 0.0,
    "nan on rank 1": lambda rank, world_size: torch.nan if rank == 1 else 0.0,
    "infinity on rank 0": lambda rank, world_size: torch.inf if rank == 0 else 0.0,
    "nan on all but the last rank": lambda rank, n: torch.nan if rank < n - 1 else 0.0,
    "nan on every rank": lambda rank, world_size: torch.nan,
}


def careful_step_inputs(rank, world_size, case):
    inputs = torch.rand(4, 3, dtype=torch.float64)
    targets = inputs.sum(1, keepdim=True)
    inputs[0, 0] += bad[case](rank, world_size)
    return Centred(), inputs, targets


# %%
run_4 = provoke(careful_step_broken, careful_step_inputs, "nan on rank 1")


# %%
### BEGIN SOLUTION @found(run_4, rank=None, line="")
@found(run_4, rank=1, line="loss.backward()")
### END SOLUTION
def careful_step(net, inputs, targets):
    ### BEGIN SOLUTION
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = mse_loss(model(inputs), targets)
    good = loss.isfinite().long()
    dist.all_reduce(good)  # how many ranks are: known to all before anybody decides
    if good:
        if not loss.isfinite():  # it comes to backward too; nan times 0 would be nan
            loss = 0 * sum(parameter.sum() for parameter in net.parameters())
        (loss * dist.get_world_size() / good).backward()  # DDP divides by the world size
        optimizer.step()
    return weights(net)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which line did one rank never come to, and what did it know that the others did not? What should it bring to that line, so that the average is right?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Before <code>backward</code> all ranks add up how many losses are finite. Then all go backward, or none. A bad rank brings gradients of zero, from a loss that is made of the parameters alone. DDP divides the sum by the world size, where the number of good ranks is wanted.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>loss = 0 * sum(parameter.sum() for parameter in net.parameters())</code> on a bad rank; <code>0 * loss</code> would be no number again. Then
# <code>(loss * dist.get_world_size() / good).backward()</code> on all.
# </details>

# %% jupyter={"source_hidden": true}
careful_step_check = {"spec": named(careful_step_spec), "inputs": careful_step_inputs}
careful_step_check |= {"cases": list(bad), "timeout": 5, "rtol": 1e-5, "atol": 1e-7}
careful_step_check["work"] = lambda world_size, case: 1.5 if case == "good batches" else 3.0

# %%
check(and_named(careful_step), **careful_step_check)

# %% [markdown]
# ## 5 · Who has parted?
#
# *Difficulty ●●○ · importance ●●● · 10 minutes.* The loss is a little worse than last week. No rank hangs, none dies, and no two ranks have been compared for a month. You want a test that any training can afford every hundred steps.

# %% [markdown]
# **Goal:** return the names of those tensors in `model.state_dict()`, parameters and buffers,
# that are not the same **in every bit** on all ranks: a list in the order of `state_dict()`, the same on every rank. The tensors are too large to be sent, but about a hundred bytes for each may travel.
#
# | | rank 0 | rank 1 | |
# | --- | --- | --- | --- |
# | `weight` | `[1.0, 2.0]` | `[2.0, 1.0]` | has parted, though the sums are equal |
# | `bias` | `[0.0]` | `[-0.0]` | has parted, by one bit |
# | `mean` | `[nan]` | `[nan]` | is the same, by its bits |


# %%
def parted(model):
    ### BEGIN SOLUTION
    state = model.state_dict()
    # A checksum of the bytes. Python's own hash() would be another in each new process.
    sums = torch.tensor([zlib.crc32(tensor.numpy().tobytes()) for tensor in state.values()])
    lowest, highest = sums.clone(), sums.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return [name for name, same in zip(state, lowest == highest) if not same]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What small number stands for all bytes of a tensor, and changes when one of them does? And how do many ranks find out that they all have the same number?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A checksum, such as that of <code>zlib.crc32</code>, of each tensor's bytes. All ranks have the same number just when the lowest of them is the highest. Put the checksums of all tensors into one tensor of whole numbers.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>zlib.crc32(tensor.numpy().tobytes())</code>, and <code>dist.all_reduce</code> of two copies, with <code>dist.ReduceOp.MIN</code> and <code>MAX</code>.
# </details>


# %% jupyter={"source_hidden": true}
def replica():
    """A model that is the same on every rank."""
    net = {"embed": nn.Embedding(50, 8), "norm": nn.BatchNorm1d(8), "head": nn.Linear(8, 50)}
    model, generator = nn.ModuleDict(net), torch.Generator().manual_seed(7)
    model["head"].double()
    for tensor in model.state_dict().values():
        tensor.copy_(torch.randint(1, 100, tensor.shape, generator=generator))
    return model


def next_number(tensor):
    """Changes the last bit of one of its numbers."""
    place = torch.randint(tensor.numel(), ())
    number = tensor.view(-1)[place]
    number.copy_(torch.nextafter(number, number + 1))


# %% jupyter={"source_hidden": true}
def a_bit(state, rank, last):
    if rank == last:
        next_number(state["embed.weight"])


def bits_of_doubles(state, rank, last):
    next_number(state["head.weight"])
    if rank == 0:
        next_number(state["norm.bias"])


def another_order(state, rank, last):
    if rank == 0:
        state["embed.weight"][[3, 40]] = state["embed.weight"][[40, 3]]
    state["head.bias"][0] = torch.nan  # on all ranks


def another_sign(state, rank, last):
    state["norm.running_mean"][5] = -0.0 if rank == last else 0.0
    state["norm.num_batches_tracked"] += rank << 32


def low_bits_of_a_checksum(state, rank, last):
    """Of zlib.crc32, which alone would show it, two bits: too few for single precision."""
    state["norm.num_batches_tracked"] ^= 30_156_459 * (rank == last)


def a_bit_to_and_fro(state, rank, last):
    state["norm.running_var"][2] += {0: 1, last: -1}.get(rank, 0)
    state["head.weight"][7] = state["head.weight"][7].roll(rank)
    state["embed.weight"][9] += rank


partings = {
    "a bit of one number": a_bit,
    "nothing": lambda state, rank, last: None,
    "bits of doubles": bits_of_doubles,
    "another order, and nan everywhere": another_order,
    "another sign of a zero, and a counter": another_sign,
    "a counter, whose checksums are close": low_bits_of_a_checksum,
    "one more here, one less there": a_bit_to_and_fro,
}


# %% jupyter={"source_hidden": true}
def parted_spec(models):
    states = [model.state_dict() for model in models]
    kinds = {name: {state[name].numpy().tobytes() for state in states} for name in states[0]}
    return [[name for name, kind in kinds.items() if len(kind) > 1]] * len(models)


def bytes_of(model):
    return [tensor.numpy().tobytes() for tensor in model.state_dict().values()]


def started_apart(answer):
    """Python's hash of bytes is another on each rank, as in new processes; the model stays."""

    usual = hash

    def salted(key):
        return usual((dist.get_rank(), key) if isinstance(key, (str, bytes, memoryview)) else key)

    @functools.wraps(answer)
    def asked(model):
        before = bytes_of(model)
        with mock.patch("builtins.hash", salted):
            names = answer(model)
        return names if bytes_of(model) == before else "the model is not as it was"

    return asked


def parted_inputs(rank, world_size, case):
    model = replica()
    partings[case](model.state_dict(), rank, world_size - 1)
    return model


def parted_budget(world_size, case):
    return {"sent_bytes": 1000 * (world_size - 1)}  # for 8 tensors, which have 5,600


parted_check = {"spec": parted_spec, "inputs": parted_inputs, "cases": list(partings)}
parted_check |= {"budget": parted_budget}

# %%
check(started_apart(parted), **parted_check)

# %% [markdown]
# ## 6 · Name the two
#
# *Difficulty ●●● · importance ●●● · 20 minutes.* A job of many ranks stands still. Each rank is in three groups: one shares its layers (tensor parallel), one has copies of them (data parallel), and the third is the group of all.

# %% [markdown]
# In some jobs the second is a pipeline: ranks receive from the one before them, and send to the next. Two ranks hold up everybody else. Each has been killed, or is busy in its own code and waits for nobody. **Goal:** return these two, sorted, from the flight recorders' dumps.
#
# | in `dumps[rank]` | |
# | --- | --- |
# | `"entries"` | the rank's calls in order; if it waits, it waits in the last one |
# | `entry["process_group"][0]` | the name of the call's group |
# | `entry["collective_seq_id"]` | the number of this collective in this group, from 1 |
# | `entry["is_p2p"]` | whether it's a message instead |
# | `entry["state"]` | `"completed"`, or `"scheduled"` as long as somebody hasn't come |
#
# `members(dump, name)` gives the ranks of a group, and `partner(dump, entry)` the rank at the other end of a message. A waiting rank has left a dump, a killed one hasn't. The last rank has made all its calls, so nobody waits for it.


# %%
def members(dump, name):
    return json.loads(dump["pg_config"][name]["ranks"])


def partner(dump, entry):
    if not entry["is_p2p"]:
        return None
    ends = entry["profiling_name"].replace("<-", "->")  # such as "nccl:recv 1<-0"
    place = int(ends.rpartition("->")[2])  # in the group
    return members(dump, entry["process_group"][0])[place]


# %%
def name_the_two(dumps):
    ### BEGIN SOLUTION
    last = {rank: dump["entries"][-1] for rank, dump in dumps.items()}
    waiting = {rank for rank, entry in last.items() if entry["state"] == "scheduled"}
    counts = Counter()
    for rank, dump in dumps.items():
        for entry in dump["entries"]:
            counts[rank, entry["process_group"][0], partner(dump, entry)] += 1
    missed = set()
    for rank in waiting:
        name, other = last[rank]["process_group"][0], partner(dumps[rank], last[rank])
        if other is not None:
            if counts[other, name, rank] < counts[rank, name, other]:
                missed.add(other)
            continue
        for member in members(dumps[rank], name):
            if counts[member, name, None] < counts[rank, name, None]:
                missed.add(member)
    return sorted(missed - waiting)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Take one rank that waits. Who hasn't come to its call? And if that rank waits as well, in a call of a different group, is it to blame?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Collect the ranks that haven't come to the call in which somebody waits. To a collective: their highest number in that group is lower. To a message: only the partner can be missing, and it is if it has had fewer messages with this rank than this rank with it. From all these, take away everybody who waits.
# </details>
# <details><summary>Hint 3: the code</summary>
# A <code>Counter</code> says 0 for what it doesn't know. Count all entries in <code>counts[rank, name, partner(dump, entry)]</code>; then <code>if counts[other, name, rank] &lt; counts[rank, name, other]: missed.add(other)</code> for a message, the same with <code>None</code> for every member of a collective, and at last <code>sorted(missed - waiting)</code>.
# </details>
#
# The specification goes from one waiting rank to the next until it meets one that doesn't wait. The jobs are made up anew each time.


# %% jupyter={"source_hidden": true}
def name_the_two_spec(jobs):
    return [ends_of_all_chains(dumps) for dumps in jobs]


def ends_of_all_chains(dumps):
    ends = set()
    for rank in dumps:
        visited, to_visit = set(), [rank]
        while to_visit:
            rank = to_visit.pop()
            next_ones = who_has_not_come(dumps, rank)
            if visited and not next_ones:
                ends.add(rank)
            visited.add(rank)
            to_visit += [other for other in next_ones if other not in visited]
    return sorted(ends)


def who_has_not_come(dumps, rank):
    """To the call in which this rank waits; nobody, if it doesn't wait."""
    entry = dumps[rank]["entries"][-1] if rank in dumps else {"state": "unknown"}
    if entry["state"] != "scheduled":
        return []
    other = partner(dumps[rank], entry)
    if other is not None:
        is_there = messages(dumps, other, rank) >= messages(dumps, rank, other)
        return [] if is_there else [other]
    place = (entry["process_group"], entry["collective_seq_id"], False)
    came = []
    for other, dump in dumps.items():
        places = []
        for call in dump["entries"]:
            places.append((call["process_group"], call["collective_seq_id"], call["is_p2p"]))
        came += [other] * (place in places)
    return [other for other in members(dumps[rank], place[0][0]) if other not in came]


def messages(dumps, rank, other):
    """How many a rank has had with another one, as far as its dump says."""
    if rank not in dumps:
        return 0
    return [partner(dumps[rank], entry) for entry in dumps[rank]["entries"]].count(other)


def two_inputs(rank, world_size, case):
    dumps, _ = stuck_jobs.stuck_job(stuck_jobs.CASES[case])
    return dumps


# %%
check(
    name_the_two,
    spec=name_the_two_spec,
    inputs=two_inputs,
    cases=list(stuck_jobs.CASES),
    world_sizes=(1, 2),
)

# %% [markdown]
# Does the course's own tool say the same? Here is a small job, and how the tool gets there. It also takes the dumps of your own jobs.

# %%
torch.manual_seed(4)
dumps, _ = stuck_jobs.stuck_job(stuck_jobs.CASES["two rows, four columns"])
with tempfile.TemporaryDirectory() as folder:
    stuck_jobs.write(dumps, folder)
    explanation = explain_dumps(folder)
explanation

# %% [markdown]
# ## Bonus · Where did they part?
#
# *As long as you like; there is no check and no single answer.* Four ranks have each recorded 4,096 calls. Up to some call the recordings are the same, from there on they are not on all ranks. Which is that call?

# %% [markdown]
# `plain` gathers all recordings, and rank 0 sends 270 kB for each search. It can be done with 300 bytes. `tried` runs your function on three recordings and counts.


# %%
def plain(calls):
    """The number of the first call that is not the same on all ranks."""
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, calls)
    return next(n for n, met in enumerate(zip(*every)) if len(set(met)) > 1)


# %% jupyter={"source_hidden": true}
PLACES = (17, 2100, 4095)


def recorded(place, rank):
    """Calls, which on rank 2 are late by one from this place on."""
    late = rank == 2
    return [f"line {10 + (n - (late and n >= place)) % 7}: all_reduce" for n in range(4096)]


def tried(search):
    def in_a_rank():
        return [search(recorded(place, dist.get_rank())) for place in PLACES]

    run = launch(in_a_rank, world_size=4, backend="gloo", trace=True)
    assert all(tuple(places) == PLACES for places in run), run[0]
    print(f"{run.trace.traffic().sent_bytes[0] // len(PLACES):,} bytes for each search")


# %%
tried(plain)

# %% [markdown]
# <details><summary>Where could one begin?</summary>
# Are the first 2,048 calls the same on all ranks? One small number of each rank answers that.
# </details>
#
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [09 · Many machines](../notebooks/09_many_machines.ipynb), or first [16 · Test before you scale](../notebooks/16_test_before_you_scale.ipynb): how do you find such mistakes beforehand?

# %%
progress("best", "clip", "with_border", "careful_step", "parted", "name_the_two")
