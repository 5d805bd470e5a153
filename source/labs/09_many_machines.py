# %% [markdown]
# # Lab 09 · Many machines
#
# Four exercises on [chapter 09](../notebooks/09_many_machines.ipynb), 45 minutes, on any computer. You write the body of a function;
# `check` runs it in real workers, which play hosts here, and compares what they return with a **specification** of one process.
# Exercise 3 kills processes, and only its own.

# %%
import functools
import os
import resource
import signal
import socket
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import run as torchrun

from course_utils import check, progress

# %% [markdown]
# ## 1 · Who am I, and who started me?
#
# *●●○, 8 minutes.* A script that runs everywhere has to read the names of each launcher. They may mix: under `srun torchrun`, Slurm's names are the agent's, so
# `torchrun`'s count. And in a shell inside a Slurm job `SLURM_NTASKS` is set, though `srun` has started nobody. **Goal:** return `(rank, local_rank, world_size,
# local_world_size)` as whole numbers; with no launcher, one rank alone.
#
# | | `torchrun` | `srun` | Open MPI's `mpirun` |
# | --- | --- | --- | --- |
# | rank | `RANK` | `SLURM_PROCID` | `OMPI_COMM_WORLD_RANK` |
# | local rank | `LOCAL_RANK` | `SLURM_LOCALID` | `OMPI_COMM_WORLD_LOCAL_RANK` |
# | world size | `WORLD_SIZE` | `SLURM_NTASKS` | `OMPI_COMM_WORLD_SIZE` |
# | local world size | `LOCAL_WORLD_SIZE` | `SLURM_NTASKS_PER_NODE` | `OMPI_COMM_WORLD_LOCAL_SIZE` |


# %%
NAMES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
    "mpirun": [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")],
}


class Environment(dict):
    """A process's environment; the specification also knows its place."""

    place = (0, 0, 1, 1)


def ranks_of_spec(environments):
    return [environment.place for environment in environments]


# %%
def ranks_of(environment):
    ### BEGIN SOLUTION
    for names in (NAMES["torchrun"], NAMES["srun"], NAMES["mpirun"]):
        if names[0] in environment:
            return tuple(int(environment[name]) for name in names)
    return 0, 0, 1, 1
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of a launcher's names is there in every process that it started, and in no other?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Look for each launcher's name of the rank, <code>torchrun</code>'s first. The first that is there says which column to read. What an environment holds is text.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>tuple(int(environment[name]) for name in names)</code>, where <code>names</code> is one of the lists in <code>NAMES</code>.
# </details>


# %%
def ranks_of_inputs(rank, world_size, case):
    environment = Environment(PATH="bin", MASTER_ADDR="10.0.0.1", SLURM_NTASKS="64")
    for launcher in case.split(" of "):  # the innermost last
        nodes, local_world_size, node = (int(n) for n in torch.randint(2, 9, (3,)))
        local_rank = int(torch.randint(local_world_size, ()))
        place = (node % nodes) * local_world_size + local_rank, local_rank
        place += (nodes * local_world_size, local_world_size)
        if launcher in NAMES:
            environment.update(zip(NAMES[launcher], map(str, place)))
            environment.place = place
    return environment


cases = ("torchrun", "srun", "mpirun", "a shell in a Slurm job", "srun of torchrun")
cases += ("mpirun of torchrun",)
check(ranks_of, spec=ranks_of_spec, inputs=ranks_of_inputs, cases=cases, world_sizes=(1, 3))

# %% [markdown]
# ## 2 · One command for all hosts
#
# *●●○, 10 minutes.* With a c10d rendezvous all hosts run the same command, and none is told its number. **Goal:** return it as a list of words, from
# `"torchrun"` to `"train.py"`: `per_host` processes on each of `hosts` hosts, which meet at `endpoint` (such as `127.0.0.1:29400`) under the name `job`. The check runs
# it, on two hosts that are processes here.


# %%
def command_spec(per_host, jobs):
    ranks = list(range(sum(per_host)))
    met = {"rendezvous": "c10d", "at the endpoint": True, "name": jobs[0]}
    return [met | {"world size": len(ranks), "ranks": ranks}] * len(per_host)


# %%
def command(hosts, per_host, endpoint, job):
    ### BEGIN SOLUTION
    options = {"nnodes": hosts, "nproc-per-node": per_host, "rdzv-backend": "c10d"}
    options |= {"rdzv-endpoint": endpoint, "rdzv-id": job}
    return ["torchrun", *(f"--{name}={value}" for name, value in options.items()), "train.py"]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What has an agent to know before it can ask the others anything? How many they are, how many ranks it starts, and three things about the meeting.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Options stand before the script; what stands after it goes to the script. The meeting's options all begin with <code>--rdzv-</code>. Two agents that have different endpoints or
# different names wait for each other for ever.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>--nnodes</code>, <code>--nproc-per-node</code>, <code>--rdzv-backend=c10d</code>, <code>--rdzv-endpoint</code>, <code>--rdzv-id</code>.
# </details>


# %%
TRAIN = """
import os
names = "TORCHELASTIC_RUN_ID", "WORLD_SIZE", "RANK"
print(*(os.environ[name] for name in names), file=open(f"started-{os.getpid()}", "w"))
"""


def free_endpoint():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        endpoint = [f"127.0.0.1:{port.getsockname()[1]}"]
    dist.broadcast_object_list(endpoint)
    return endpoint[0]


def run_on_this_host(words):
    """Run torchrun's agent here; return its options, and what the processes found out."""
    if words[0] != "torchrun" or "train.py" not in words:
        raise ValueError("the first word is to be torchrun, and train.py is to be among them")
    options = torchrun.parse_args(words[1:])
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("train.py").write_text(TRAIN)
        torchrun.run(options)
        return options, [path.read_text().split() for path in Path().glob("started-*")]


# %%
def on_all_hosts(answer):
    """Run the answer's command on every rank, as if that were a host."""

    @functools.wraps(answer)
    def run(per_host, job):
        endpoint, hosts = free_endpoint(), dist.get_world_size()
        options, started = run_on_this_host(answer(hosts, per_host, endpoint, job))
        everywhere = [None] * hosts
        dist.all_gather_object(everywhere, started)
        jobs, sizes, ranks = zip(*(process for host in everywhere for process in host))
        where = options.rdzv_endpoint == endpoint
        met = {"rendezvous": options.rdzv_backend, "at the endpoint": where, "name": min(jobs)}
        return met | {"world size": int(min(sizes)), "ranks": sorted(map(int, ranks))}

    return run


def command_inputs(rank, world_size, case):
    return case, f"night-{case}"


options = {"cases": (3,), "world_sizes": (2,), "timeout": 30}
check(on_all_hosts(command), spec=command_spec, inputs=command_inputs, **options)

# %% [markdown]
# ## 3 · Killed, and going on
#
# *●●●, 20 minutes.* Two ranks train; a rank is killed in the middle, perhaps while it writes; all are started again. **Goal:** train until `steps` steps are done, saving after each to
# the file `path`, so that at most the step of the death is done twice, and the weights come out **bit for bit** as if nothing had happened. Both ranks see the same files, and each
# draws its own noise from torch's random numbers.


# %%
def start(seed):
    """What every start begins with."""
    torch.manual_seed(seed)
    model = nn.Linear(3, 1, bias=False, dtype=torch.float64)
    nn.init.ones_(model.weight)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def gradient(model, step, rank, noise):
    inputs = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3).roll(step + rank) + noise
    model.zero_grad()
    (model(inputs) - step).square().mean().backward()
    return model.weight.grad


watchers = []


def take_step(model, optimizer, step):
    mine = gradient(model, step, dist.get_rank(), torch.randn(4, 3))
    dist.all_reduce(mine)
    for watch in watchers:
        watch(step)  # here the check may end this process
    optimizer.step()


# %% [markdown]
# The specification has both ranks in one process, draws the noise of each, and nobody dies.


# %%
def train_spec(plans, seeds):
    model, optimizer = start(seeds[0])
    generators = [torch.Generator().manual_seed(seeds[0] + rank) for rank in range(2)]
    for step in range(6):
        both = [
            gradient(model, step, rank, torch.randn(4, 3, generator=own)).clone()
            for rank, own in enumerate(generators)
        ]
        model.weight.grad = sum(both)
        optimizer.step()
    return [{"steps done twice for nothing": 0, "weights": [model.weight.detach()] * 2}]


# %%
def train(path, model, optimizer, steps):
    ### BEGIN SOLUTION
    done = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"][dist.get_rank()])
        done = saved["done"]
    for step in range(done, steps):
        take_step(model, optimizer, step)
        random = [None] * dist.get_world_size()
        dist.all_gather_object(random, torch.get_rng_state())
        if dist.get_rank() == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "random": random, "done": step + 1}, f"{path}.new")
            os.replace(f"{path}.new", path)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Beside the weights, what changes from step to step: in the optimiser, in each rank, in the loop? And what does a reader find in a file that is half written?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Gather the random states of all ranks; rank 0 writes everything to another file and then renames it. A rename happens completely or not at all. At the start, if the file is
# there, take everything back, each rank its own random state.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>torch.save(..., f"{path}.new")</code>, then <code>os.replace(f"{path}.new", path)</code>; <code>torch.get_rng_state()</code> and
# <code>torch.set_rng_state(state)</code>.
# </details>

# %% [markdown]
# The check starts two processes, and again when one was killed, like `torchrun`'s agent. `SIGXFSZ` kills a process in the middle of writing: the system sends it when a file grows over a limit.


# %%
def one_rank(answer, folder, rank, seed, number, death):
    """Run the answer as one of two ranks; `death` says how to die, which rank, in which step."""
    store = dist.FileStore(f"{folder}/store-{number}", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    how, doomed, last = death

    def watch(step):
        with open(f"{folder}/steps", "a") as file:
            print(number, step, file=file)
        if (rank, step) == (doomed, last):
            Path(folder, f"death-{number}").touch()
            die(how)

    watchers.append(watch)
    model, optimizer = start(seed)
    torch.manual_seed(seed + rank)
    answer(Path(folder, "checkpoint"), model, optimizer, 6)
    torch.save(model.weight.detach(), f"{folder}/weights-{rank}")


def die(how):
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # dies when it has written 600 bytes to a file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))


def start_both(answer, folder, *arguments):
    """Fork two ranks and wait for both; if one ends badly, kill the other."""
    running = set()
    for rank in range(2):
        if not (pid := os.fork()):
            try:
                one_rank(answer, folder, rank, *arguments)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
                Path(folder, "error").write_text(f"rank {rank}, start {arguments[1]}: {said}")
                os._exit(1)
            os._exit(0)
        running.add(pid)
    while running:
        pid, status = os.wait()
        running.remove(pid)
        for other in running if status else ():
            os.kill(other, signal.SIGKILL)


# %%
def starting_again(answer):
    """Start the answer's ranks again after each death of a plan, and once more to the end."""

    @functools.wraps(answer)
    def run(plan, seed):
        with tempfile.TemporaryDirectory() as folder:
            for number, death in enumerate([*plan, ("never", None, None)]):
                start_both(answer, folder, seed, number, death)
                error = Path(folder, "error")
                if error.exists() and not Path(folder, f"death-{number}").exists():
                    said = error.read_text()
                    if "NotImplementedError" in said:  # there is no answer yet
                        raise NotImplementedError(said.rpartition("Error: ")[2])
                    raise RuntimeError(said)
                error.unlink(missing_ok=True)  # of the one that was left
            weights = [torch.load(f"{folder}/weights-{rank}") for rank in range(2)]
            return {"steps done twice for nothing": repeated(folder), "weights": weights}

    return run


def repeated(folder):
    """How many steps were done again beside those in which a rank died."""
    lines = sorted(set(Path(folder, "steps").read_text().splitlines()))
    steps = [int(line.split()[1]) for line in lines]
    return sum(max(0, last - first) for last, first in pairwise(steps))


plans = {
    "nobody is killed": [],
    "rank 1 is killed in step 2": [("killed", 1, 2)],
    "rank 0 dies while it saves step 3": [("writing", 0, 3)],
    "killed in step 1, then while saving step 4": [("killed", 0, 1), ("writing", 0, 4)],
}


def train_inputs(rank, world_size, case):
    return plans[case], int(torch.randint(1000, ()))


options = {"cases": list(plans), "world_sizes": (1,), "backend": None, "rtol": 0.0, "atol": 0.0}
check(starting_again(train), spec=train_spec, inputs=train_inputs, timeout=20, **options)

# %% [markdown]
# ## 4 · The loss of an epoch, over all hosts
#
# *●○○, 6 minutes.* A published script prints, on each host, the sum of its batches' losses times their sizes, divided by the samples that its own sampler dealt: a **local**
# mean. Here hosts have unequal shares, and the last batch of each is small. **Goal:** return the mean loss over all samples of all hosts, as a `float`, on every rank, with
# one `all_reduce` of two numbers in double precision.


# %%
def epoch_loss_spec(losses, sizes):
    pairs = [pair for own in zip(losses, sizes) for pair in zip(*own)]
    mean = sum(loss * size for loss, size in pairs) / sum(size for _, size in pairs)
    return [mean] * len(losses)


# %%
def epoch_loss(losses, sizes):
    ### BEGIN SOLUTION
    total = sum(loss * size for loss, size in zip(losses, sizes))
    sums = torch.tensor([total, sum(sizes)], dtype=torch.float64)
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# One host has a mean loss of 1 over 10 samples, another of 2 over 1000. What would one host have, with all of them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A mean of means counts hosts, not samples. Add up what can be added: the losses of all samples, and their number. Divide last.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>sums = torch.tensor([total, count], dtype=torch.float64)</code>, one <code>all_reduce</code>, and a division.
# </details>

# %%
shares = {
    "equal shares, a short last batch": lambda rank: [4, 4, 2],
    "unequal shares": lambda rank: [4] * (2 * rank + 1) + [rank + 1],
    "nothing for rank 0": lambda rank: [4] * rank + [3] * (rank > 0),
}


def epoch_loss_inputs(rank, world_size, case):
    sizes = shares[case](rank if world_size > 1 else 1)
    return (torch.rand(len(sizes), dtype=torch.float64) + rank).tolist(), sizes


def epoch_loss_budget(world_size, case):
    return {"sent_bytes": 32 * (world_size - 1) / world_size}


options = {"cases": list(shares), "world_sizes": (1, 2, 3), "budget": epoch_loss_budget}
check(epoch_loss, spec=epoch_loss_spec, inputs=epoch_loss_inputs, **options)

# %% [markdown]
# ## Which exercises pass?
#
# The last word on each, as it was last checked in this notebook. `make progress` says the same of all labs.

# %%
progress()
