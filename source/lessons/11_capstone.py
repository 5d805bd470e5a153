# %% [markdown]
# # 11 · Capstone: a week on call
#
# **On three nights of one week a training fails, each time in a different way. What happened, how do you prove it, and what would have prevented it?**
#
# In 85 minutes you will be able to
#
# 1. name the cause of a failure from logs, dumps and metrics that nobody prepared for you;
# 2. prove it: an experiment with real workers that leaves the same traces, beside one that does not;
# 3. judge a fix that only hides the cause, and write one that cures it;
# 4. test a model of 64 ranks against something that the model does not contain.
#
# **Hardware:** two cores; all ranks use gloo on the CPU. **Before:** [10 · Keras](10_keras.ipynb).
# **Lab:** [11 · Capstone](../exercises/11_capstone.ipynb), where you cure Wednesday and Thursday, and write the post-mortem.
#
# Nine cells ask you to **predict**: put your answer in place of the three dots, and a later cell shows it beside what was found. One asks you to **write**. Saved outputs give answers away.
# Clear them first: *Edit*, *Clear Outputs of All Cells*.

# %% jupyter={"source_hidden": true}
import difflib
import functools
import importlib.util
import io
import json
import os
import pickle
import re
import resource
import signal
import string
import sys
import time
from contextlib import chdir, redirect_stdout
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

from course_material.language import novel
from course_utils import Network, WorkerError, WorkerTimeout, check, launch, predict, show
from course_utils.pictures.style import rank_style

# %% [markdown]
# It is Friday, 8 o'clock. A team of three trains a small model every night on the text of the week: two nodes, two ranks on each, under plain `torchrun`. You have their notes, and a folder.

# %%
week = Path("incident").resolve()
print((week / "notes.txt").read_text())
print((week / "scheduler.log").read_text())

# %% [markdown]
# The folder `incident` has what the jobs left (its `README.md` says what is where): logs, error files, the recorders of Monday, the scripts, the text. It is real. Four ranks ran these scripts and failed; only the notes are invented, the scheduler was
# played by a program, and the nights follow each other faster than in life.
#
# Work as one does on call. **Raw first**: open the files, in JupyterLab or with a cell of your own, before you read on. Then **name** a cause, **prove** it with real workers, and only then **cure** it. Mind that a
# folder is called by its *local* rank: `node-b/0` is rank 2.
#
# ## 1 · The script
#
# Monday's script has 116 lines. This is its loop. `batches` shuffles the windows of this rank's part of the text, anew in each epoch, and cuts them into batches of 32.


# %%
def lines_of(day, first, last):
    """The lines of that day's script from one text to the next."""
    text = (week / day / "train.py").read_text()
    return text[text.index(first) : text.index(last)].rstrip()


print(lines_of("monday", "def batches", "def make_model"))
print()
print(lines_of("monday", "def evaluate", "def save"))
print()
print(lines_of("monday", "def train", "def leave"))

# %% [markdown]
# ## 2 · Monday: it hangs
#
# The job ended with a timeout. This is what the agent of each node says last:


# %%
def root_cause(node):
    """The end of what `torchrun` said, without the lines that lie inside of torch."""
    said = (week / "monday" / node / "torchrun.txt").read_text().partition("Root Cause")
    return "Root Cause" + re.sub(r' +File "torch/.*\n(?: {6,}.*\n)+', "", said[2])


print(root_cause("node-a"), root_cause("node-b"))

# %% [markdown]
# *About 10 minutes.* Now it is your turn. The folder has four `stderr.log`, `stdout.log` and `error.json`, and `calls0` to `calls3`, which chapter 08 unpickled.

# %%
# Your own search. To begin with:
print(*sorted(str(path.relative_to(week)) for path in week.glob("monday/*/*/*")), sep="\n")

# %%
culprit = predict("the rank that did otherwise than the rest is rank", ...)
stands_in = predict("it stood in the function", ..., choices=("train", "evaluate", "save"))

# %% [markdown]
# The flight recorder has each rank's last calls, with the lines that made them. We take from each the number of the last call, and the innermost line of `train.py`.


# %%
def last_call(rank):
    (file,) = (week / "monday").glob(f"*/calls{rank}")
    entry = pickle.loads(file.read_bytes())["entries"][-1]
    own = next(frame for frame in entry["frames"] if frame["filename"] == "train.py")
    code = (week / "monday/train.py").read_text().splitlines()[own["line"] - 1].strip()
    return f"call {entry['collective_seq_id']}, in {own['name']}: {code}"


last_calls = [last_call(rank) for rank in range(4)]
for rank, call in enumerate(last_calls):
    print(f"rank {rank}: {call}")

# %%
(odd,) = (rank for rank in range(4) if last_calls.count(last_calls[rank]) == 1)
culprit.measured(odd)
stands_in.measured(re.search(r"in (\w+)", last_calls[odd])[1])

# %% [markdown]
# The agents accuse two ranks that did nothing wrong. Rank 0's error is an echo: somebody else had closed the connection. Rank 2's error only says that its ten-second timeout ran out. *First observed failure* means just that. In truth **all four wait**, three for rank
# 3's gradients, and rank 3 for their losses. It made as many calls as the others, 25, but its last is a different one.
#
# So rank 3 believes that the epoch is over. Why? Look at its data before you answer.

# %%
for path in sorted(week.glob("delivery/*")):
    print(f"{path.stat().st_size:6} {path.name}")
counted = predict("batches of 32 windows in the four parts", ...)


# %% jupyter={"source_hidden": true}
def job(day):
    """The script of that day as a module, under a name of its own."""
    spec = importlib.util.spec_from_file_location(f"train_{day}", week / day / "train.py")
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


monday, tuesday, thursday = (job(day) for day in ("monday", "tuesday", "thursday"))

# %%
parts = [week / f"delivery/part-{rank}.txt" for rank in range(4)]
for rank, part in enumerate(parts):
    text = part.read_text("utf-8")
    unusual = "".join(sorted(set(text) - set(string.printable)))
    print(f"part {rank}: {len(text):,} characters {unusual}")
counted.measured([len(monday.batches(monday.read(part), epoch=2)) for part in parts])

# %% [markdown]
# The parts are cut by bytes, 10,400 each, but part 3 comes from another edition, with typographic quotes. A “ is one character and three bytes. So this part has fewer characters, fewer windows, and 19 batches instead of 20.
#
# ### Prove it
#
# So far this is a story that fits. An experiment can refute it. `tonight` runs Monday's script on four real ranks and a few batches; `counts` says how many batches each rank has, and rank `stops`
# never comes to its last one, as if its disk did not answer.


# %%
def tonight(counts=(3, 3, 3, 3), stops=None):
    script, rank = job("monday"), dist.get_rank()
    windows = script.read(parts[0])[: 32 * counts[rank]]
    script.read = lambda path: windows

    def stopping(windows, epoch):
        for number, batch in enumerate(windows.split(32), 1):
            if rank == stops and number == counts[rank]:
                time.sleep(600)
            yield batch

    script.batches = stopping
    script.train(Path(), Path("checkpoint.pt"), 1)


# %% [markdown]
# Change `suspect` until the ranks stand where they stood on Monday. Then try to find another suspect that fits as well.


# %% jupyter={"source_hidden": true}
def at_night(fn, *arguments, **options):
    """Run it on four ranks, in a folder that is gone afterwards; return what it raised, or None."""
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        try:
            launch(lambda: fn(*arguments, **options), world_size=4, backend="gloo", timeout=6)
        except WorkerTimeout as error:
            return error


def stand(error):
    """Where each rank of a launch that hung stood: its line."""
    lines = [error.waiting[rank].line for rank in range(4)] if error else []
    return [line.code if line else "nowhere" for line in lines]


# %%
suspect = {"counts": (3, 3, 3, 3), "stops": None}
print(stand(at_night(tonight, **suspect)) or "no hang")

# %%
fits = predict("the suspect that leaves Monday's traces is number", ...)
suspects = {
    "1: rank 0 stops (torchrun on node-a)": {"stops": 0},
    "2: rank 2 stops (torchrun on node-b)": {"stops": 2},
    "3: rank 3 stops": {"stops": 3},
    "4: rank 3 has a batch less": {"counts": (3, 3, 3, 2)},
    "5: rank 3 has a batch more": {"counts": (3, 3, 3, 4)},
}

# %%
on_monday = [call.partition(": ")[2] for call in last_calls]
errors = {name: at_night(tonight, **suspect) for name, suspect in suspects.items()}
for name, error in errors.items():
    same = stand(error) == on_monday
    print(f"{'as on Monday' if same else 'other traces'}  {name}")
    if same:
        fits.measured(int(name[0]))
print(*stand(errors["5: rank 3 has a batch more"]), sep="\n")

# %% [markdown]
# Only one of these five. Its control is in the table as well: with a batch *more*, rank 3 waits in `backward`, and the others for the losses, as its four lines say. (A rank 3 that skips a batch somewhere in the middle, as in chapter 08, would
# leave the same traces as the fourth. Against that one speaks the count of its windows, which is enough to explain everything.)
#
# This course's own report comes last, since no cluster has it. It says the same of the fourth run:

# %%
print(errors["4: rank 3 has a batch less"].parts[-1])

# %% [markdown]
# ## 3 · Tuesday: it works
#
# Ben changed the script, and the night went well. What did he change?


# %%
def changes(before, after):
    old, new = ((week / day / "train.py").read_text().splitlines() for day in (before, after))
    return [line for line in difflib.unified_diff(old, new, n=0, lineterm="") if line[0] in "+-"][
        2:
    ]


print(*changes("monday", "tuesday"), sep="\n")

# %% [markdown]
# **Predict.** The next delivery has again one part with fewer batches than the others. Does Tuesday's script work or hang, if that part has 18, and if it has 14? Answer with a list of two words.

# %%
ends = predict("with 18 batches, and with 14, it works or hangs", ...)


# %%
def shorter(count):
    script, rank = job("tuesday"), dist.get_rank()
    windows = script.read(parts[0])[: 32 * (count if rank == 3 else 20)]
    script.read = lambda path: windows
    script.train(Path(), Path("checkpoint.pt"), 1)


ends.measured(["hangs" if at_night(shorter, count) else "works" for count in (18, 14)])

# %% [markdown]
# It hides the cause as long as no part is shorter than 15 batches. And what does it cost? We count, for the 20 batches of part 0, which windows the two epochs of Tuesday night have used:

# %%
windows, used = torch.arange(len(monday.read(parts[0]))), set()
for epoch in (2, 3):
    in_15_batches = torch.cat(monday.batches(windows, epoch)[:15]).tolist()
    used.update(in_15_batches)
    print(f"epoch {epoch}: {len(windows) - len(in_15_batches)} of {len(windows)} windows left out")
print("left out in both:", len(windows) - len(used))

# %% [markdown]
# A fifth of the text in each epoch. Since `batches` shuffles before the script cuts, the next epoch leaves out others, and few windows are never seen at all: the night costs steps more than text. Nobody noticed, since validation went down: it does that with fewer steps, too.
#
# The script has a second fault, which nobody has met yet. What it saves in the middle of an epoch says `epoch`, so whoever resumes from it begins that epoch again, with weights that have had up to 15 of its steps.
#
# ### Write the cure
#
# *About 12 minutes.* `my_epoch` trains one epoch, whatever the deliveries are. `own` has this rank's batches; ranks may have different numbers of them, and of windows in them, or none at all. **All** are used. In step *k* every window that any rank has in its *k*-th batch
# weighs the same, as if one process had them together, and there are as many steps as the longest rank has batches. A batch has the shape (windows, 17), `model` is a DDP, and `loss_of(model, batch, reduction="sum")` is the script's. DDP divides the sum of gradients by the world size.


# %%
def my_epoch(model, optimizer, own):
    raise NotImplementedError("about 10 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What must all ranks know before the first step? And what can a rank do in a step for which it has no window, so that the others need not wait?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Agree on the number of steps (MAX), then on the number of windows of each step (SUM of a vector). A rank that has run out takes an empty batch, <code>torch.empty(0, 17, dtype=torch.long)</code>: forward and backward work, its gradients are zero, and DDP meets the others. The loss is a
# sum, times the world size, divided by the windows of all.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>loss = loss_of(model, batch, reduction="sum") * dist.get_world_size() / sizes[step]</code>, with <code>sizes</code> from one <code>all_reduce</code> before the loop.
# </details>

# %% jupyter={"source_hidden": true}
loss_of = monday.loss_of
hands = {  # how many windows each batch of a rank has
    "equal batches": lambda rank, world_size: [3, 3],
    "a batch less on the last rank": lambda rank, world_size: [4, 4, 2][
        : 3 - (rank == world_size - 1)
    ],
    "unequal batches, nothing on rank 0": lambda rank, world_size: (
        [2 + rank, 1] * (rank + (world_size == 1))
    ),
}


def small_model():
    layers = nn.Embedding(104, 2), nn.Flatten(), nn.Linear(32, 3), nn.Tanh(), nn.Linear(3, 104)
    return nn.Sequential(*layers).double()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)


def epoch_spec(models, owns):
    optimizer = sgd(models[0])
    for step in range(max(map(len, owns))):
        loss = loss_of(models[0], torch.cat([own[step] for own in owns if step < len(own)]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [parameters_to_vector(models[0].parameters()).detach()] * len(models)


def training(answer):
    """Wrap the model in DDP, train it by the answer, and return its weights."""

    @functools.wraps(answer)
    def trained(model, own):
        wrapped = DistributedDataParallel(model)
        answer(wrapped, sgd(wrapped), own)
        return parameters_to_vector(model.parameters()).detach()

    return trained


def epoch_inputs(rank, world_size, case):
    return small_model(), [
        torch.randint(1, 104, (size, 17)) for size in hands[case](rank, world_size)
    ]


def busiest(world_size, case):
    own = [sum(hands[case](rank, world_size)) for rank in range(world_size)]
    return 1.3 * world_size * max(own) / sum(own)


epoch_judged = {"spec": epoch_spec, "inputs": epoch_inputs, "cases": list(hands), "timeout": 5}
epoch_judged |= {"work": busiest, "rtol": 1e-6}

# %%
check(training(my_epoch), **epoch_judged)


# %% jupyter={"source_hidden": true}
def epoch(model, optimizer, own):
    """The finished cure."""
    steps = torch.tensor(len(own))
    dist.all_reduce(steps, op=dist.ReduceOp.MAX)
    sizes = torch.zeros(int(steps))
    sizes[: len(own)] = torch.tensor([len(batch) for batch in own])
    dist.all_reduce(sizes)
    own = [*own, *[torch.empty(0, 17, dtype=torch.long)] * (int(steps) - len(own))]
    for batch, size in zip(own, sizes):
        loss = loss_of(model, batch, reduction="sum") * dist.get_world_size() / size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


check(training(epoch), **epoch_judged)

# %% [markdown]
# **Check yourself.** A colleague proposes `steps` with MIN instead of MAX: simpler, and it cannot hang. What does it cost, and when would you take it?
#
# <details><summary>Answer</summary>
# With 19 batches, each of the longer parts leaves out its twentieth, which is three windows here. <code>batches</code> shuffles anew in each epoch before it cuts, so other windows are left out each time, and it does little harm. It would do harm if the order were
# the same in every epoch, since then the same windows would never be seen, or if one part were much shorter than the rest: all ranks would make as few steps as that one.
# </details>
#
# ## 4 · Wednesday: it dies
#
# The job was preempted at 02:00:11, requeued, and died at once. All four ranks say the same:

# %%
found = json.loads((week / "wednesday/node-b/1/error.json").read_text())["message"]["message"]
print(found.partition(" This can")[0])
print((week / "wednesday/ls.txt").read_text())

# %%
reasons = {1: "the shared disk has an error", 2: "another version of torch wrote the file"}
reasons |= {3: "two ranks wrote it at once", 4: "its writer was killed in the middle"}
print(*(f"{number}: {reason}" for number, reason in reasons.items()), sep="\n")
spoiled = predict("the checkpoint does not load because", ..., choices=tuple(reasons))

# %% [markdown]
# The file ends after 1,252 bytes, and it was last written to at 02:00:11.218. What does the scheduler's log say of that moment? And who calls `save`, and how often since Tuesday?
#
# An experiment: a real worker writes such a file, and the kernel kills it after 1,252 bytes. (`RLIMIT_FSIZE` is meant for quotas; who writes more gets the signal SIGXFSZ, which Python ignores unless told not to.) Its control is killed too, but after the save.


# %%
def dies_in_save(path, limit_bytes):
    model = tuesday.make_model()
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limit_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))
    tuesday.save(path, model, torch.optim.SGD(model.parameters()), 4)
    os.kill(os.getpid(), signal.SIGKILL)


# %%
def after_death(limit_bytes):
    """How a worker died that was saving, and what its file says when somebody loads it."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "checkpoint.pt")
        try:
            launch(dies_in_save, path, limit_bytes, world_size=1, backend="gloo")
        except WorkerError as error:
            died = re.search(r"SIG\w+", str(error))[0]
        try:
            return died, f"epoch {torch.load(path)['epoch']}"
        except RuntimeError as error:
            return died, f"RuntimeError: {error}"


# %%
for limit_bytes in (1252, None):
    died, said = after_death(limit_bytes)
    print(f"{died}: as on Wednesday: {said == found}; {said[:48]}")

# %% [markdown]
# The same words, to the last letter. Is that a proof? Try the next suspect: nobody is killed, and a whole file of a different model is cut after 1,252 bytes, as a disk with an error might.


# %%
def cut_by_nobody(path, size_bytes):
    torch.save({"model": nn.Linear(100, 100).state_dict(), "epoch": 4}, path)
    os.truncate(path, size_bytes)
    try:
        torch.load(path)
    except RuntimeError as error:
        return f"RuntimeError: {error}"


with TemporaryDirectory() as folder:
    said = cut_by_nobody(Path(folder, "checkpoint.pt"), 1252)
print(f"nobody was killed: as on Wednesday: {said == found}; {said[:48]}")

# %% [markdown]
# So the words say only that the file is short, and not who cut it. Two other traces decide. The file was written last at 02:00:11.218, and its writer was killed at 02:00:11.228: a disk's error would have had to meet these ten milliseconds. And the experiment shows that
# a kill is enough. Which save was it? The torn file has begun to say which epoch it is of:

# %%
torn = (week / "wednesday/checkpoint.pt").read_bytes()
print("epoch", re.search(rb"epoch.*?K(.)", torn, re.DOTALL)[1][0])  # K: a small number follows
spoiled.measured(4)

# %% [markdown]
# Preemption did not spoil the file, and nor did the disk: **`save` writes over the only good checkpoint**. Between the first byte and the last there is none. Monday's script does that once in an epoch,
# Tuesday's four times, so a kill has four times as many chances to meet a save. But this one was not one of the new saves. `metrics.csv` has no row for Wednesday, which is written just after the save at an
# epoch's end, and that save says 5. So it was the one at the end of the night's first epoch, and it could have happened to Monday's script as well.
#
# The cure is the lab's first exercise.
#
# ## 5 · Thursday: it lies
#
# No error, exit codes 0, and a worse model. Chi's change, and what rank 0 noted:

# %%
print(*changes("tuesday", "thursday"), sep="\n")
print((week / "metrics.csv").read_text())

# %% [markdown]
# *About 5 minutes.* Tuesday and Thursday began with the same backup, epoch 2, and the same text. Compare what their ranks printed; there are four `stdout.log` for each night.

# %%
# Your own search. To begin with:
print((week / "thursday/node-a/0/stdout.log").read_text())

# %%
causes = {1: "the learning rate is too high", 2: "the momentum was lost", 3: "it overfits"}
causes |= {4: "the ranks train different models", 5: "the epochs have the same order"}
print(*(f"{number}: {cause}" for number, cause in causes.items()), sep="\n")
worse = predict("validation is worse because", ..., choices=tuple(causes))


# %%
def first_losses(day):
    logs = [week / day / f"node-{node}" / local / "stdout.log" for node in "ab" for local in "01"]
    return [float(re.search("epoch 2 step 0 loss (.*)", log.read_text())[1]) for log in logs]


for day in ("tuesday", "thursday"):
    print(f"{day:9} first losses of ranks 0 to 3:", *first_losses(day))

# %% [markdown]
# Rank 0 begins with 2.568 both times: it has the backup. If you looked at rank 0 alone, you saw a checkpoint that loads. The others begin at 4.7, which is what an untrained model has: ln 104 is 4.64.
#
# ### Prove it
#
# We need a backup like Sunday's: two epochs of the healthy script. From there one night with each `resume`, on the real delivery. `one_night` also says how far the ranks' weights are apart in the end, and which loss each rank's model has on **all** of the testing text.
#
# **Predict.** Our backup is not Sunday's. Which ranks print Thursday's first loss all the same, to three digits? Answer with a set.

# %%
again = predict("ranks that print Thursday's first loss", ...)


# %%
def one_night(script, epochs):
    model = script.train(parts[0].parent, Path("backup.pt"), epochs)
    own = parameters_to_vector(model.parameters()).detach()
    first = own.clone()
    dist.broadcast(first, src=0)
    apart = (own - first).abs().max()
    dist.all_reduce(apart, op=dist.ReduceOp.MAX)
    with torch.no_grad():
        alone = script.loss_of(model.module, script.read(parts[0].parent / "testing.txt"))
    return apart.item(), f"{alone:.3f}"


# %%
def nights(**scripts):
    """The same night from the same backup, once with each script."""
    with TemporaryDirectory() as folder, chdir(folder), redirect_stdout(io.StringIO()):
        on_four(one_night, tuesday, 2)
        backup, runs = Path("backup.pt").read_bytes(), {}
        for name, script in scripts.items():
            Path("backup.pt").write_bytes(backup)
            runs[name] = on_four(one_night, script, 3)
    return runs


# %% jupyter={"source_hidden": true}
def on_four(fn, *arguments):
    return launch(fn, *arguments, world_size=4, backend="gloo")


def printed(run, pattern):
    """The numbers that the ranks of a launch printed behind a text."""
    return [
        float(number) for own in run.output for number in re.findall(pattern + r" ([\d.]+)", own)
    ]


# %%
for name, run in nights(tuesday=tuesday, thursday=thursday).items():
    losses = printed(run, "epoch 2 step 0 loss")
    print(f"{name:9}first losses {losses}, validation {printed(run, 'validation')[0]}")
    apart, _ = run[0]
    print(f"{'':9}largest difference between two ranks' weights: {apart:.3f}")
    print(f"{'':9}each rank's model alone:", *[alone for _, alone in run])
worse.measured(4 if apart > 0 else 0)
again.measured({rank for rank in range(4) if losses[rank] == first_losses("thursday")[rank]})

# %% [markdown]
# Ranks 1 to 3, digit for digit: they never saw any backup. And the weights are apart for good. DDP hands out rank 0's weights **once**, when it is made; `resume` comes later. From then on DDP averages gradients and trusts that the weights are equal.
# Here there are two models, rank 0's and that of the other three. All get the same averaged gradients, and only rank 0 has the backup's momentum. For rank 0, three quarters of each gradient are meant for a different model.
#
# And Thursday's validation is the loss of **no** model. `evaluate` lets each rank judge its share of the text by its own model, so the figure mixes two, as in chapter 10. Rank 0's, which was saved, is worse than the figure says; the other three's is better.
#
# Nothing in DDP looks, so nothing complains. (Lab 08's last exercise is the bell that would have rung.) The second exercise of this chapter's lab cures `resume`.
#
# **Check yourself.** Tuesday's model, with validation 2.94: may the team use it?
#
# <details><summary>Answer</summary>
# It is sound, and poorer than it could be: in each epoch it took 15 steps where 20 were possible. Thursday's is not: three quarters of its gradients were those of a different model, and nobody has measured the one that was saved.
# </details>
#
# ## 6 · Monday next: 64 ranks
#
# The team is promised 64 ranks. Will they be worth it? The model of chapter 06 says: a step computes for 32 windows, which take 100 µs each, and then averages 99,488 bytes of gradients in a ring. On this network:

# %%
network, gradient_bytes, window_us = Network(latency_us=3, gbit_s=100), 99_488, 100


def model_says(ranks):
    """The share of a step in which a rank computes."""
    turn_us = network.latency_us + gradient_bytes / ranks * 8 / 1000 / network.gbit_s
    return 32 * window_us / (32 * window_us + 2 * (ranks - 1) * turn_us)


print(", ".join(f"{n} ranks {model_says(n):.1%}" for n in (4, 8, 64)))

# %% [markdown]
# The model says what it was told: equal ranks, each with its 32 windows in every step. It does not know that text comes in files. Deliveries for 64 ranks will be articles, dealt in turn: file *k* to rank *k* mod *n*. We take the paragraphs of the novel for articles.
# `record_epoch` runs your cure of Monday (its finished form) on real ranks, and replays the recording with what **each** rank has to compute.

# %% jupyter={"source_hidden": true}
numbers, alphabet = novel()
paragraphs = "".join(alphabet[number] for number in numbers).split("\n\n")
files = [len(paragraph) // 17 for paragraph in paragraphs]  # windows


def in_turn(files, ranks):
    """How many windows each rank gets."""
    return [sum(files[rank::ranks]) for rank in range(ranks)]


def train_files(shares):
    model, share = monday.make_model(), shares[dist.get_rank()]
    epoch(model, sgd(model), numbers.unfold(0, 17, 17)[:share].split(32))


def record_epoch(shares):
    """The share of time in which real ranks compute, replayed with each rank's own windows."""
    ranks, cost_us, events = len(shares), {}, []
    trace = launch(train_files, shares, world_size=ranks, backend="gloo", trace=True).trace
    for rank, share in enumerate(shares):
        own = trace.of_rank(rank)
        steps = [e.index for e in own if e.kind == "all_reduce" and e.bytes == gradient_bytes]
        events += [event for event in own if event.index >= steps[0]]
        for number, index in enumerate(steps):
            cost_us[rank, index] = window_us * min(32, max(0, share - 32 * number))
    step_by_step = replace(trace, events=tuple(events))
    replay = step_by_step.replay(network, lambda event: cost_us.get((event.rank, event.index), 0))
    return sum(cost_us.values()) / ranks / max(replay.finish_us)


# %%
on_8 = predict("efficiency replayed from 8 real ranks, in %", ...)
on_64 = predict("efficiency of 64 ranks, in %", ...)

# %%
real = {ranks: record_epoch(in_turn(files, ranks)) for ranks in (4, 8)}
for ranks, share in real.items():
    print(f"{ranks} ranks: the model {model_says(ranks):.1%}, replayed {share:.1%}")
on_8.measured(round(100 * real[8]), within=0.05)

# %% [markdown]
# The model is too good by 8 points, and by 17, and the network has no part in that. The rank with the most windows sets the number of steps, and the others compute nothing while it goes on. What the model lacks is one number, the **balance**: the mean share divided by the largest.
# It can be counted from a listing of files, for any number of ranks. With it the model has to pass the same test again:


# %%
def balance(shares):
    return sum(shares) / len(shares) / max(shares)


def with_balance(ranks, deal=in_turn):
    return model_says(ranks) * balance(deal(files, ranks))


for ranks, share in real.items():
    print(f"{ranks} ranks: model and balance {with_balance(ranks):.1%}, replayed {share:.1%}")
on_64.measured(round(100 * with_balance(64)), within=0.1)

# %% [markdown]
# Now it may speak of 64: more than half of what the team is promised would wait. Is that the number of ranks, or how files are dealt? Give the longest file to whoever has least, then the next.


# %%
def by_size(files, ranks):
    shares = [0] * ranks
    for file in sorted(files, reverse=True):
        shares[shares.index(min(shares))] += file
    return shares


dealt_better = predict("efficiency of 64 ranks, files dealt by size, in %", ...)

# %%
dealt_better.measured(round(100 * with_balance(64, by_size)), within=0.05)
print(f"replayed from 8 real ranks: {record_epoch(by_size(files, 8)):.1%}")

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
ranks = [2**k for k in range(1, 7)]
curves = {"the model": [model_says(n) for n in ranks]}
curves["and balance, files by size"] = [with_balance(n, by_size) for n in ranks]
curves["and balance, files in turn"] = [with_balance(n) for n in ranks]
for number, (name, curve) in enumerate(curves.items()):
    style = rank_style(number)
    axes.plot(ranks, [100 * share for share in curve], label=name, **style)
axes.plot(
    real.keys(),
    [100 * share for share in real.values()],
    "kx",
    ms=9,
    label="replayed from real ranks",
)
axes.set(xscale="log", xlabel="ranks", ylabel="efficiency (%)", ylim=(0, 102))
axes.set_xticks(ranks, map(str, ranks))
axes.minorticks_off()
axes.legend(loc="lower left")
show(
    figure, "With files dealt in turn, what the model leaves out costs more than what it contains."
)

# %% [markdown]
# What would refute the new number? A slow node, a network that others use, a first epoch that compiles: none of them is in it either. It is a bound from above. Say so when you report it.
#
# ## 7 · The post-mortem
#
# Three failures, three cures, and changes that led from one to the next. A post-mortem is a page that finds out which did, [without blame](https://sre.google/sre-book/postmortem-culture/): people did what looked right with what they saw. It has
#
# 1. a **summary** in three sentences: what failed, what it cost, what is cured;
# 2. a **timeline**, each line with its source;
# 3. **causes**: for each failure the trigger, the root cause, and the experiment that proves it with its control; and how one led to the next;
# 4. what **misled**: whose words were believed, and what they really said;
# 5. **actions**, each with an owner and a check that fails if it is not done.
#
# You write it at the end of [lab 11](../exercises/11_capstone.ipynb), after the cures. Before you do:
#
# **Check yourself.** Which change of this week made which later failure possible?
#
# <details><summary>Answer</summary>
# Another edition has fewer characters in as many bytes, so one rank had a batch less, and the job hung. The fix for that saved four times as often, over the only copy, so it raised the risk that a kill meets a save. It is no cause of Wednesday all the same: the save that was torn was one that Monday's script makes, too. The repair of Wednesday put the
# backup on one node's disk, so one rank loaded it.
# </details>

# %%
predict()

# %% [markdown]
# ## What you can do now
#
# You can start workers, make them talk, and find out why they stop, lie or die, with the tools that every cluster has. You know what DDP does and what it trusts in. You believe a cause when an experiment leaves its traces and a control does not, a fix
# when a check would fail without it, and a model only once it has been tested against something that it leaves out.
#
# Take the next failure that is *yours*, and do the same. Chapter [09](09_many_machines.ipynb) ends with the systems beyond DDP and what each is for. The question stays the one of [the first page](00_start_here.ipynb): what do the ranks really do, and how do you know?
