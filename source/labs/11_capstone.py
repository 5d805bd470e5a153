# %% [markdown]
# # Lab 11 · Capstone
#
# Three exercises on [chapter 11](../notebooks/11_capstone.ipynb), a post-mortem and a bonus, 70 minutes without the bonus, on any computer. The chapter named and proved what went wrong on Wednesday and on Thursday. Here you cure both, and build
# the bell that nobody had. Then you write the page that the team reads on Monday.
#
# `check` runs your code in real workers, and the first one has them killed. Each exercise says how difficult it is and how important for the rest of the course, from ●○○ to ●●●.

# %%
import functools
import hashlib
import itertools
import multiprocessing.util
import os
import resource
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_utils import check, progress

# %% [markdown]
# ## 1 · Killed at any moment
#
# *Difficulty ●●○ · importance ●●● · 12 minutes.* On Wednesday a job was killed while it saved, and its only checkpoint was gone. A kill can come at any moment, and no `except` or `finally` runs after it.
#
# **Goal:** write `states` with `torch.save`, so that at every moment of the save `path` has a whole checkpoint: the old one or the new one. A save that was killed may leave rubbish beside it, and must not hinder the next one. A save that was not killed
# leaves no file but `path`. (`save` is called on rank 0 only.)


# %%
def save(states, path):
    ### BEGIN SOLUTION
    part = path.with_name(f"{path.name}.part")
    torch.save(states, part)  # whoever is killed here spoils this file, which nobody loads
    # One step for the file system: the name means the old file before, the new one after.
    os.replace(part, path)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# While you write, which file must have the old checkpoint? And what may happen between the moment when the new one is complete and the moment when it is found under its name?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Write into another file of the same folder, and when it is complete, give it the name. A rename that replaces is one step: there is no moment without a file. Deleting the old one first would make such a moment.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>os.replace(part, path)</code>, or <code>part.replace(path)</code>.
# </details>

# %% [markdown]
# Against a power cut this needs one step more, an `os.fsync` of the file before the rename, which no check on a running machine can test.

# %% jupyter={"source_hidden": true}
numbers = itertools.count()


def new_disk():
    """A folder on a disk that was never used."""
    folder = Path(multiprocessing.util.get_temp_dir(), f"disk {dist.get_rank()}, {next(numbers)}")
    folder.mkdir(parents=True)
    return folder


def at_step(step, act):
    """In this process, `act` before the file system is changed, or a save begun, for the n-th time."""
    left, torch_save = itertools.count(step, -1), torch.save

    def count(event, arguments):
        changes = event in ("os.rename", "os.remove", "os.link", "os.truncate", "torch.save")
        if (changes or (event == "open" and "r" not in str(arguments[1]))) and next(left) == 0:
            act()

    def counted_save(*arguments, **options):
        count("torch.save", arguments)
        torch_save(*arguments, **options)

    torch.save = counted_save
    sys.addaudithook(count)


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(count_bytes):
    """Have the kernel kill this process when it has written that many bytes to one file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count_bytes, count_bytes))


# %% jupyter={"source_hidden": true}
def killed(save, states, path, step, act):
    """Save in a process that does something bad to itself; return whether it was killed."""
    if child := os.fork():
        return os.WIFSIGNALED(os.waitpid(child, 0)[1])
    try:
        at_step(step, act)
        save(states, path)
    finally:
        os._exit(0)


def loaded(path):
    try:
        return int(torch.load(path)["epoch"])
    except Exception as error:
        return f"{type(error).__name__}"


def survives(answer):
    """Save, then be killed in the next save at many moments, and look at what there is each time."""

    @functools.wraps(answer)
    def survived(old, new):
        path = new_disk() / "checkpoint.pt"
        answer(old, path)
        size, seen = path.stat().st_size, []
        for step in range(12):
            parts = (0, size // 2) if step else (0, size // 8, size // 2, size - 1)
            for act in [functools.partial(die_after, part) for part in parts] + [die]:
                was_killed = killed(answer, new, path, step, act)
                seen.append(loaded(path))
            if not was_killed:
                break
        bad = sorted({str(one) for one in seen if one not in (old["epoch"], new["epoch"])})
        answer(old, path)
        quiet = new_disk() / "checkpoint.pt"
        answer(old, quiet)
        answer(new, quiet)
        files = sorted(file.name for file in quiet.parent.iterdir())
        found = {"after a kill, when it is loaded": bad or "whole", "files": files}
        return found | {"saved after the kills": loaded(path), "saved": torch.load(quiet)}

    return survived


def save_spec(olds, news):
    whole = {"after a kill, when it is loaded": "whole", "files": ["checkpoint.pt"]}
    return [
        whole | {"saved after the kills": old["epoch"], "saved": new}
        for old, new in zip(olds, news)
    ]


def save_inputs(rank, world_size, case):
    sizes = {"a small model": 40, "a larger one": 20_000}
    model = [torch.randn(sizes[case]) for _ in range(2)]
    return tuple({"model": {"weight": own}, "epoch": n} for n, own in enumerate(model, 3))


save_check = {"spec": save_spec, "inputs": save_inputs, "world_sizes": (1,)}
save_check |= {"cases": ("a small model", "a larger one"), "allow": ("files", "processes")}

# %%
check(survives(save), **save_check)

# %% [markdown]
# ## 2 · One disk has it, all go on
#
# *Difficulty ●●○ · importance ●●● · 12 minutes.* On Thursday rank 0 alone could read the backup, so it alone loaded it, and DDP's replicas were four different models. **Goal:** with `model`, a DDP already, let **all** ranks go on from the checkpoint that only rank 0's `path` leads to, and return
# its epoch on every rank. The other ranks' `path` leads nowhere. If rank 0 has no file either, change nothing and return 0.
#
# The file was made by Monday's script: a dict with `model` (of the network, without the wrapper), `optimizer`, and `epoch`. What a night needs of them is judged right after `resume`, on every rank, and after two more steps.


# %%
def resume(path, model, optimizer):
    ### BEGIN SOLUTION
    states = [None]
    if dist.get_rank() == 0 and path.exists():
        states = [torch.load(path)]
    dist.broadcast_object_list(states, src=0)  # also a None: all have to know that there is none
    if states[0] is None:
        return 0
    model.module.load_state_dict(states[0]["model"])
    optimizer.load_state_dict(states[0]["optimizer"])  # momentum is no part of the model
    return states[0]["epoch"]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which three things did ranks 1 to 3 lack on Thursday night? Chi sent one of them. And who must take part in a broadcast, when there is nothing to send?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Rank 0 reads, everybody gets all of it, and then everybody loads, in the same lines. An object can be broadcast, or the file's bytes, if their number is broadcast first.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.broadcast_object_list(states, src=0)</code>, on all ranks, with a list of one entry.
# </details>


# %% jupyter={"source_hidden": true}
def make_model():
    layers = nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2)
    return nn.Sequential(*layers).double()


def sgd(model, rate=0.1):
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def steps(model, optimizer, inputs):
    for some in inputs:
        optimizer.zero_grad()
        model(some).square().mean().backward()
        optimizer.step()


def numbers_of(model):
    return torch.cat([own.detach().flatten().double() for own in model.state_dict().values()])


# %% jupyter={"source_hidden": true}
def resuming(answer):
    """Make a checkpoint on rank 0's disk, resume from it, look, and train on."""

    @functools.wraps(answer)
    def resumed(trained, fresh, inputs, epoch):
        optimizer = sgd(trained, 0.05)
        steps(trained, optimizer, inputs[:2])
        states = {"model": trained.state_dict(), "optimizer": optimizer.state_dict()}
        path = new_disk() / "checkpoint.pt"
        if dist.get_rank() == 0 and epoch:
            torch.save(states | {"epoch": epoch}, path)
        model = DistributedDataParallel(fresh)
        optimizer = sgd(model)
        found = {"epoch": answer(path, model, optimizer)}
        found["model"] = numbers_of(fresh).clone()
        steps(model, optimizer, inputs[2:])
        return found | {"two steps later": numbers_of(fresh)}

    return resumed


def resume_spec(trained, fresh, inputs, epochs):
    model, optimizer = fresh[0], sgd(fresh[0])
    if epochs[0]:
        model, optimizer = trained[0], sgd(trained[0], 0.05)
        steps(model, optimizer, inputs[0][:2])
    found = {"epoch": epochs[0], "model": numbers_of(model).clone()}
    steps(model, optimizer, inputs[0][2:])
    return [found | {"two steps later": numbers_of(model)}] * len(epochs)


# %% jupyter={"source_hidden": true}
nights = {"a checkpoint of epoch 3": 3, "no checkpoint": 0}


def resume_inputs(rank, world_size, case):
    drawn = torch.Generator().manual_seed(5)  # the same on all ranks, whose models are not
    inputs = torch.randn(4, 6, 4, generator=drawn, dtype=torch.float64)
    return make_model(), make_model(), inputs, nights[case]


resume_check = {"spec": resume_spec, "inputs": resume_inputs, "cases": list(nights)}
resume_check |= {"allow": ("files",), "rtol": 1e-9}

# %%
check(resuming(resume), **resume_check)

# %% [markdown]
# ## 3 · The bell that nobody had
#
# *Difficulty ●●○ · importance ●●○ · 15 minutes.* Thursday's replicas were apart for a whole night, and no error came. To compare all weights costs as much as a step. To find out **that** they differ costs almost nothing. **Goal:** return, on every rank, the list of the ranks whose model is not, bit for
# bit, the one that most ranks have. Whatever `model.state_dict()` holds counts: parameters and buffers. More than half of the ranks have the same. Send at most 200 bytes to each other rank.
#
# | three ranks | all alike | rank 2 has another buffer | rank 0 alone loaded the backup |
# | --- | --- | --- | --- |
# | returns | `[]` | `[2]` | `[0]` |


# %%
def parted(model):
    ### BEGIN SOLUTION
    digest = hashlib.sha256()
    for own in model.state_dict().values():
        # Bytes, not values: a digest has no tolerance, and two numbers that changed places show.
        digest.update(own.detach().contiguous().numpy().tobytes())
    mine = torch.frombuffer(bytearray(digest.digest()[:8]), dtype=torch.int64)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    every = [own.item() for own in every]
    usual = max(every, key=every.count)  # not rank 0's: it may be the odd one
    return [rank for rank, own in enumerate(every) if own != usual]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The sum of all weights is one number. Which differences does it not show? What is there that is short and differs whenever a single bit does?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A digest, such as <code>hashlib.sha256</code>, of the bytes of every tensor. Gather the digests, and find the one that occurs most often. (Python's own <code>hash</code> is another one in each process, unless they are forked from one, as here.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>digest.update(own.numpy().tobytes())</code>; <code>torch.frombuffer(bytearray(digest.digest()[:8]), dtype=torch.int64)</code> is a tensor of one number.
# </details>


# %% jupyter={"source_hidden": true}
def last_bit(tensor):
    """Change a number by as little as can be."""
    flat = tensor.view(-1).view(torch.int64)
    flat[-1] ^= 1


def swap(tensor):
    tensor.view(-1)[:2] = tensor.view(-1)[[1, 0]]


def negate(tensor):
    tensor.neg_()


def count_on(tensor):
    tensor += 1


damage = {  # which tensor of the state, what happens to it, and on which ranks
    "all alike": (0, count_on, lambda n: []),
    "a last bit on the last rank": (5, last_bit, lambda n: [n - 1]),
    "two weights of rank 1 have changed places": (0, swap, lambda n: [1]),
    "rank 0 has another sign": (4, negate, lambda n: [0]),
    "a running mean on rank 1": (8, last_bit, lambda n: [1]),
    "a buffer's count on the last rank": (10, count_on, lambda n: [n - 1]),
    "nearly half of the ranks": (2, swap, lambda n: list(range((n - 1) // 2))),
}


# %% jupyter={"source_hidden": true}
def deep_model():
    return nn.Sequential(
        nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 6), nn.BatchNorm1d(6)
    ).double()


def parted_inputs(rank, world_size, case):
    model = deep_model()
    drawn = torch.Generator().manual_seed(7)
    state = model.state_dict()
    for own in state.values():
        if own.is_floating_point():
            own.copy_(torch.randn(own.shape, generator=drawn, dtype=own.dtype))
    place, change, ranks = damage[case]
    if rank in ranks(world_size):
        change([*state.values()][place])
    return model


def parted_spec(models):
    states = [[own.numpy().tobytes() for own in model.state_dict().values()] for model in models]
    usual = max(states, key=states.count)
    return [[rank for rank, own in enumerate(states) if own != usual]] * len(models)


def parted_budget(world_size, case):
    return {"sent_bytes": 200 * (world_size - 1)}


parted_check = {"spec": parted_spec, "inputs": parted_inputs, "cases": list(damage)}
parted_check |= {"world_sizes": (3, 4, 5), "budget": parted_budget}

# %%
check(parted, **parted_check)

# %% [markdown]
# ## 4 · The post-mortem
#
# *About 30 minutes, one page.* It is Monday, and Ada, Ben and Chi are back. Write for them, and for whoever is on call next year. Blame nobody: everybody did what looked right with what they saw. A good one has
#
# 1. a **summary** in three sentences: what failed, what it cost, what is cured now;
# 2. a **timeline**, in which every line names its source: a file, a log, an experiment;
# 3. for each of the three failures its trigger, its **root cause**, the experiment that proves it, and the control; and how one led to the next;
# 4. what **misled**, and what it really said: there are five such things at least;
# 5. three **actions**, each with a check that fails as long as it is not done, and one thing that went well.

# %% [markdown] tags=["conclusion"]
# *Double-click here and write.*

# %% [markdown]
# ## Bonus · A failure for a friend
#
# *As long as you like; there is no check and no single answer.* Break `tuesday/train.py` so that no error comes, rank 0's log looks healthy, and the model is worse. Change two lines at most. Run it under `torchrun`, and hand a friend the folder, with logs and recorders, but without the
# script's old version. How many minutes does it take to name the cause?
#
# <details><summary>Where could one begin?</summary>
# At what DDP trusts in and does not look at: that weights, orders, rates and numbers of samples are what the other ranks think. Or at what a log of rank 0 cannot show.
# </details>
#
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
