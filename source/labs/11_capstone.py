# %% [markdown]
# # Lab 11 · Capstone
#
# Four exercises on [chapter 11](../notebooks/11_capstone.ipynb), a post-mortem and a bonus, 80 minutes without the bonus, on any computer. The chapter proved what went wrong on each night. Here you cure Tuesday's and Wednesday's saves, and Thursday's resume. Then you write the page that the team reads on Monday.

# %% [markdown]
# `check` runs your code in real workers; in the first exercise it also kills them. Each exercise says how difficult it is and how important for the rest of the course, from ●○○ to ●●●.

# %%
import contextlib
import functools
import itertools
import multiprocessing.util
import os
import re
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

# %% [markdown]
# **Goal:** write `states` with `torch.save`, so that at every moment of the save `path` has a whole checkpoint: the old one or the new one (in a first save none or the new one).

# %% [markdown]
# A save that was killed may leave rubbish next to `path`, and must not hinder the next one. A save that was not killed
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
# Write into a different file in the same folder. When that is complete, rename it to the old one's name. A rename that replaces is one step: there is no moment without a file. Deleting the old one first would make such a moment.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>os.replace(part, path)</code>, or <code>part.replace(path)</code>.
# </details>

# %% [markdown]
# To survive a power cut this needs one more step, an `os.fsync` of the file before the rename. Its effect shows only when the power goes, so no check here asks for it.

# %% jupyter={"source_hidden": true}
numbers, guarded = itertools.count(), []


def own_disk_only(rank, event, arguments):
    """Python tells of each file that is to be opened; on another rank's disk there is none."""
    place = re.search(r"/disk (\d+), ", str(arguments[0])) if event == "open" else None
    if place and int(place[1]) != rank:
        raise FileNotFoundError(f"rank {rank} cannot reach the disk of rank {place[1]}")


def new_disk():
    """A folder on a disk that was never used, and that no other rank can reach."""
    if not guarded:
        guarded.append(sys.addaudithook(functools.partial(own_disk_only, dist.get_rank())))
    folder = Path(multiprocessing.util.get_temp_dir(), f"disk {dist.get_rank()}, {next(numbers)}")
    folder.mkdir(parents=True)
    return folder


def at_step(step, act):
    """`act` before this process changes the file system, or begins a save, for the n-th time."""
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


def loaded(path, *states):
    """The epoch of the one that it is in every number, or what is wrong with it."""
    try:
        checkpoint = torch.load(path)
        (saved,) = [state for state in states if state["epoch"] == checkpoint["epoch"]]
        same = torch.equal(checkpoint["model"]["weight"], saved["model"]["weight"])
        return saved["epoch"] if same else "numbers of both"
    except Exception as error:
        return type(error).__name__


def survives(answer):
    """Save, be killed in the next save at many moments, and look each time at what there is."""

    @functools.wraps(answer)
    def survived(old, new):
        path, quiet = (new_disk() / "checkpoint.pt" for _ in range(2))
        answer(old, path)
        if not path.exists():
            return "after the first save there is no file"
        seen, seen_first = kills(answer, old, new, path)
        bad = ", ".join(sorted({str(outcome) for outcome in seen if outcome not in (3, 4)}))
        result = {"after a kill, when it is loaded": bad or "whole"}
        good = {4: "whole or none", "FileNotFoundError": "whole or none"}
        result["after a kill in the first save"] = good.get(seen_first, seen_first)
        result["saved after the kills"] = []
        for states in (new, old):
            answer(states, path)
            result["saved after the kills"].append(loaded(path, states))
            answer(states, quiet)
        result["files"] = sorted(file.name for file in quiet.parent.iterdir())
        return result | {"saved": torch.load(quiet)}

    return survived


def kills(save, old, new, path):
    """What is found after each kill: in a save over another one, and in a first save."""
    size, seen = path.stat().st_size, []
    for step in range(12):
        parts = (0, size // 2) if step else (0, size // 8, size // 2, size - 1)
        for number, act in enumerate(
            [functools.partial(die_after, part) for part in parts] + [die]
        ):
            was_killed = killed(save, (new, old)[number % 2], path, step, act)
            seen.append(loaded(path, old, new))
        if not was_killed:
            break
    first = new_disk() / "checkpoint.pt"
    killed(save, new, first, 0, functools.partial(die_after, size // 2))
    return seen, loaded(first, new)


def save_spec(olds, news):
    expected = {"after a kill, when it is loaded": "whole"}
    expected |= {"after a kill in the first save": "whole or none", "files": ["checkpoint.pt"]}
    return [expected | {"saved after the kills": [4, 3], "saved": old} for old in olds]


def save_inputs(rank, world_size, case):
    sizes = {"a small model": 40, "a larger one": 20_000}
    model = [torch.randn(sizes[case]) for _ in range(2)]
    both = [{"model": {"weight": weight}, "epoch": n} for n, weight in enumerate(model, 3)]
    return tuple(states | {"optimizer": {"rate": 0.1 * states["epoch"]}} for states in both)


save_check = {"spec": save_spec, "inputs": save_inputs, "world_sizes": (1,)}
save_check |= {"cases": ("a small model", "a larger one"), "allow": ("files", "processes")}
save_check["timeout"] = 30  # about fifty processes, which take their time on a busy machine

# %%
check(survives(save), **save_check)

# %% [markdown]
# ## 2 · One disk has it, all go on
#
# *Difficulty ●●○ · importance ●●● · 12 minutes.* On Thursday the backup lay on node-a's own disk, which node-b can't reach. So only rank 0 loaded it, and DDP's replicas were different models.

# %% [markdown]
# **Goal:** let **all** ranks go on from a checkpoint that only rank 0's `path` leads to, and return its epoch on every rank. `model` is a DDP already. The other ranks' `path` leads nowhere. If rank 0 has no file either, change nothing and return 0.

# %% [markdown]
# The file was made by Monday's script: a dict with `model` (of the network, without the wrapper), `optimizer`, and `epoch`. The check compares every rank's model with that of a training that never stopped, right after `resume` and again after two more steps.


# %%
def resume(path, model, optimizer):
    ### BEGIN SOLUTION
    states = [None]
    if dist.get_rank() == 0 and path.exists():
        states = [torch.load(path)]
    # Also a None: all have to know that there is none. The whole file travels as one pickle, which
    # is fine for kilobytes; gigabytes go tensor by tensor.
    dist.broadcast_object_list(states, src=0)
    if states[0] is None:
        return 0
    model.module.load_state_dict(states[0]["model"])
    optimizer.load_state_dict(states[0]["optimizer"])  # momentum is no part of the model
    return states[0]["epoch"]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which three things does a rank need to go on? Chi sent one of them. And who must take part in a broadcast when there is nothing to send?
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
    return torch.cat([tensor.detach().flatten().double() for tensor in model.state_dict().values()])


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
        result = {"epoch": answer(path, model, optimizer)}
        result["rank 0's file is there"] = path.exists() if dist.get_rank() == 0 else epoch > 0
        result["model"] = numbers_of(fresh).clone()
        steps(model, optimizer, inputs[2:])
        return result | {"two steps later": numbers_of(fresh)}

    return resumed


def resume_spec(trained, fresh, inputs, epochs):
    model, optimizer = fresh[0], sgd(fresh[0])
    if epochs[0]:
        model, optimizer = trained[0], sgd(trained[0], 0.05)
        steps(model, optimizer, inputs[0][:2])
    expected = {"epoch": epochs[0], "rank 0's file is there": epochs[0] > 0}
    expected["model"] = numbers_of(model).clone()
    steps(model, optimizer, inputs[0][2:])
    return [expected | {"two steps later": numbers_of(model)}] * len(epochs)


# %% jupyter={"source_hidden": true}
nights = {"a checkpoint of epoch 3": 3, "a checkpoint of epoch 12": 12, "no checkpoint": 0}


def resume_inputs(rank, world_size, case):
    drawn = torch.Generator().manual_seed(5)  # the same on all ranks, whose models are not
    inputs = torch.randn(4, 6, 4, generator=drawn, dtype=torch.float64)
    return make_model(), make_model(), inputs, nights[case]


resume_check = {"spec": resume_spec, "inputs": resume_inputs, "cases": list(nights)}
resume_check |= {"allow": ("files",), "rtol": 1e-9}

# %%
check(resuming(resume), **resume_check)

# %% [markdown]
# ## 3 · The newest that all have
#
# *Difficulty ●●○ · importance ●●○ · 12 minutes.* Now every node keeps checkpoints on a disk of its own, as `epoch-7.pt`. A save may be killed on one node, and old files are cleared away, so disks differ. A rank that resumes from its own newest file repeats Thursday's mistake.

# %% [markdown]
# **Goal:** return on every rank the newest epoch of which **all** ranks have a file `epoch-N.pt` in `folder` that loads, or 0 if there is none. Other files may lie there. No rank may fail because of what it finds.
#
# | | rank 0 | rank 1 | returns |
# | --- | --- | --- | --- |
# | whole | 2, 3, 5 | 2, 4, 5 | 5 |
# | whole, and (spoiled) | 2, 3, (5) | 2, 4, 5 | 2 |


# %%
def newest(folder):
    ### BEGIN SOLUTION
    loadable = set()
    for path in folder.glob("epoch-*.pt"):
        with contextlib.suppress(Exception):  # an empty file raises another error than a cut one
            torch.load(path)
            loadable.add(int(path.stem.removeprefix("epoch-")))
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, loadable)
    # Not the least of the newest: that one may be missing somewhere else.
    return max(set.intersection(*every), default=0)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Rank 0's newest is 3, rank 1's is 4. Can they go on from 3? What does rank 0 need to know about rank 1's files?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Each rank finds out which of its files load. Then they exchange what they found: lists can be gathered as objects, or each rank makes a vector with a 1 for each epoch that loads, long enough for the newest file of all ranks, and MIN reduces them. What is left on every rank is the same, and so is its maximum.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_gather_object(every, loadable)</code> with a set from each rank, then <code>max(set.intersection(*every), default=0)</code>.
# </details>

# %% jupyter={"source_hidden": true}
shelves = {  # by rank, of each of four: the epochs that are whole, and those that are spoiled
    "all have all": [([1, 2, 3], [])] * 4,
    "the newest are spoiled on rank 0": [([1, 2], [3, 4, 5, 6])] + [([1, 2, 3, 4, 5, 6], [])] * 3,
    "rank 1 lacks what is newest on rank 0": [
        ([2, 3], []),
        ([2, 4], []),
        ([2, 3, 4], []),
        ([2], []),
    ],
    "10 is newer than 9": [([8, 9, 10], []), ([9, 10], [11]), ([9, 10], [8]), ([10, 9], [])],
    "1,200 is newer than 300": [([300, 1200], [])] * 2 + [([1200, 300], [])] * 2,
    "numbered by date and time": [
        ([9, 2026_11_27_07_30], []),
        ([2026_11_27_07_30, 9], [2026_11_28_07_30]),
        ([9, 2026_11_27_07_30, 2026_11_28_07_30], []),
        ([2026_11_27_07_30, 9], []),
    ],
    "nothing in common": [([1, 3], []), ([2], [3]), ([4], []), ([3, 4], [1])],
    "an empty disk": [([1], []), ([], []), ([], [1]), ([1], [])],
}


def spoil(path, damage):
    """Leave nothing of it, the first half, all but the last byte, or all but some in the middle."""
    size = path.stat().st_size
    if damage % 4 < 3:
        return os.truncate(path, [0, size // 2, size - 1][damage % 4])
    with open(path, "r+b") as file:
        file.seek(64)
        file.write(bytes(size // 2))


OTHERS = ["epoch-12.pt.part", "model-14.pt", "notes.txt"]


def looking(answer):
    """Fill this rank's disk as the case says, and ask for the newest."""

    @functools.wraps(answer)
    def looked(whole_epochs, spoiled_epochs):
        folder = new_disk()
        oldest_first = [*spoiled_epochs, *whole_epochs]
        for number, epoch in enumerate(oldest_first):
            path = folder / f"epoch-{epoch}.pt"
            torch.save({"epoch": epoch, "model": torch.arange(50)}, path)
            if epoch in spoiled_epochs:
                spoil(path, number + dist.get_rank())
        (folder / OTHERS[0]).write_bytes(b"PK")
        torch.save({"epoch": 14}, folder / OTHERS[1])
        (folder / OTHERS[2]).write_text("epoch-13.pt is on the other disk")
        newest_epoch = answer(folder)
        return {"newest": newest_epoch, "files": sorted(path.name for path in folder.iterdir())}

    return looked


# %% jupyter={"source_hidden": true}
def newest_spec(wholes, spoileds):
    together = set.intersection(*map(set, wholes))
    newest_epoch, specs = max(together, default=0), []
    for whole_epochs, spoiled_epochs in zip(wholes, spoileds):
        files = [f"epoch-{epoch}.pt" for epoch in [*whole_epochs, *spoiled_epochs]]
        specs.append({"newest": newest_epoch, "files": sorted([*files, *OTHERS])})
    return specs


def newest_inputs(rank, world_size, case):
    return shelves[case][rank]


newest_check = {"spec": newest_spec, "inputs": newest_inputs, "cases": list(shelves)}
newest_check |= {"world_sizes": (1, 2, 4), "allow": ("files",)}

# %%
check(looking(newest), **newest_check)

# %% [markdown]
# ## 4 · In the middle of an epoch
#
# *Difficulty ●●○ · importance ●●○ · 10 minutes.* Tuesday's script saved in the middle of an epoch, and its checkpoint only named the epoch. So whoever resumed trained on the first batches twice.

# %% [markdown]
# **Goal:** train until `epochs` epochs are done, and however often the job dies, let every batch count **exactly once**.

# %% [markdown]
# `place` is what `save` was last called with, or `(0, 0)` if it never was. `batches(epoch)` has an epoch's batches, always in the same order. Call `take_step(batch)` for each one, and `save(place)` after every fifth step of an epoch and at its end, with whatever place lets you go on.
#
# | `save` was last called | then the job dies in | and goes on with |
# | --- | --- | --- |
# | after batch 4 of epoch 2 | batch 7 of epoch 2 | batch 5 of epoch 2 |
# | at the end of epoch 2 | batch 3 of epoch 3 | batch 0 of epoch 3 |


# %%
def train_on(place, epochs, batches, take_step, save):
    ### BEGIN SOLUTION
    first_epoch, done = place
    for epoch in range(first_epoch, epochs):
        for step, batch in enumerate(batches(epoch)):
            if epoch == first_epoch and step < done:
                continue  # the weights have had this batch
            take_step(batch)
            if step % 5 == 4:
                save((epoch, step + 1))
        save((epoch + 1, 0))
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# In which epoch may batches be left out, and in which not? And is the place in a checkpoint the step that was done, or the one that comes next?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A place is an epoch and the number of its batches that are done. Leave out that many in the first epoch after a start. At the end of an epoch, the place is the beginning of the next one.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>if epoch == first_epoch and step < done: continue</code>
# </details>


# %% jupyter={"source_hidden": true}
class Death(Exception):
    """Ends a life of the job, as a kill does."""


def dying(answer):
    """Let the job die and start again; return the batches that its weights have had in the end."""

    @functools.wraps(answer)
    def lives(lengths, deaths):
        saved = {"place": (0, 0), "batches": []}
        lost = 0
        for death in [*deaths, None]:
            weights = list(saved["batches"])
            taken = []

            def take_step(batch):
                if len(taken) == death:
                    raise Death
                taken.append(batch)
                weights.append(batch)

            def save(place):
                saved.update(place=place, batches=list(weights))

            names = [[f"epoch {n}, batch {k}" for k in range(m)] for n, m in enumerate(lengths)]
            with contextlib.suppress(Death):
                answer(saved["place"], len(lengths), names.__getitem__, take_step, save)
            lost = max(lost, len(weights) - len(saved["batches"]))
        return {"batches in the weights": saved["batches"], "lost at most": lost}

    return lives


def train_on_spec(lengths, deaths):
    reports = []
    for epochs, moments in zip(lengths, deaths):
        names = [f"epoch {n}, batch {k}" for n, count in enumerate(epochs) for k in range(count)]
        reports.append({"batches in the weights": names, "lost at most": lost_by(epochs, moments)})
    return reports


# %% jupyter={"source_hidden": true}
def lost_by(lengths, deaths):
    """How many steps are lost at most, if every fifth of an epoch and its last are saved."""
    places = [step for length in lengths for step in range(length)]
    ends = {sum(lengths[: number + 1]) for number in range(len(lengths))}
    begun, lost = 0, 0
    for death in deaths:
        last = min(begun + death, len(places))
        kept = [n for n in range(begun, last + 1) if n in ends or (n and places[n - 1] % 5 == 4)]
        kept_until = max(kept, default=begun)
        lost, begun = max(lost, last - kept_until), kept_until
    return lost


jobs = {  # how many batches each epoch has, and after how many steps each life ends
    "nobody dies": lambda: ([7, 7], []),
    "it dies in the middle of an epoch": lambda: ([9, 9, 9], [drawn_from(6, 9)]),
    "it dies before the first save": lambda: ([8, 8], [drawn_from(1, 5), drawn_from(1, 5)]),
    "it dies in the second epoch": lambda: ([6, 13, 12], [6 + drawn_from(6, 10)]),
    "it dies right after a save": lambda: ([12, 6, 11], [5, 5, drawn_from(1, 3)]),
    "it dies after an epoch": lambda: ([10, 5, 8], [10, drawn_from(0, 5)]),
    "it dies five times": lambda: ([20, 19, 20], [drawn_from(6, 16) for _ in range(5)]),
}


def drawn_from(low, high):
    return int(torch.randint(low, high, ()))


def train_on_inputs(rank, world_size, case):
    return jobs[case]()


train_on_check = {"spec": train_on_spec, "inputs": train_on_inputs, "cases": list(jobs)}
train_on_check["world_sizes"] = (1,)

# %%
check(dying(train_on), **train_on_check)

# %% [markdown]
# ## 5 · The post-mortem
#
# *About 30 minutes, one page.* It is Monday, and Ada, Ben and Chi are back. Write for them, and for whoever is on call next year. Blame nobody: people did what looked right with what they saw.

# %% [markdown]
# A good post-mortem has
#
# 1. a **summary** in three sentences: what failed, what it cost, what is cured now;
# 2. a **timeline**, in which every line names its source: a file, a log, an experiment;
# 3. for each of the three failures its trigger (what set it off that night), its **root cause** (what would let it happen again), the experiment that proves it, and the control; and how one led to the next;
# 4. what **misled** people, and what it really said: there are at least five such things;
# 5. three **actions**, each with a check that fails as long as it is not done, and one thing that went well.

# %% [markdown] tags=["conclusion", "points-20"]
# *Double-click here and write.*

# %% [markdown]
# ## Bonus · A failure for a friend
#
# *As long as you like; there is no check and no single answer.* Break `tuesday/train.py` so that no error comes, rank 0's log looks healthy, and the model is worse. Change two lines at most. Run it under `torchrun`, and hand a friend the folder, with logs and recorders, but without the
# script's old version (ask the friend not to open `notebooks/incident`). How many minutes does it take to name the cause?
#
# <details><summary>Where could one begin?</summary>
# With what DDP takes for granted and never checks: that weights, orders, rates and numbers of samples are what the other ranks think they are. Or with what a log of rank 0 can't show.
# </details>
#
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [12 · Send less](../notebooks/12_send_less.ipynb), or any of the chapters up to 19: [the course map](../notebooks/README.md) has their questions.

# %%
progress("save", "resume", "newest", "train_on")
