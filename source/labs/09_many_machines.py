# %% [markdown]
# # Lab 09 · Many machines
#
# Four exercises on [chapter 09](../notebooks/09_many_machines.ipynb) and a bonus, 45 minutes without the bonus, on any computer. You write a function; `check` runs it in real workers, which play hosts here, and compares it with a **specification** of one process. Exercises 3 and 4 send signals, and only to processes of their own.

# %% [markdown]
# Each exercise says how difficult it is and how important for the course, from ●○○ to ●●●.

# %%
import contextlib
import functools
import io
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import run as torchrun
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

from course_cluster import slurm
from course_utils import check, progress

# %% [markdown]
# ## 1 · Who am I, and who started me?
#
# *Difficulty ●●○ · importance ●●○ · 8 minutes.* A script that runs everywhere has to read the names that each launcher sets. Launchers can also be nested. Under `srun torchrun`, Slurm's names describe the agent, so `torchrun`'s are the ones that count. And within a Slurm job `mpirun` [starts its helpers through Slurm](https://docs.open-mpi.org/en/v5.0.x/launching-apps/slurm.html), so Slurm's names are there as well.

# %% [markdown]
# A Slurm job also sets names where `srun` has started nobody (chapter 09, part 8). A script that believes them waits for ranks that don't exist.

# %% [markdown]
# **Goal:** return `(rank, local_rank, world_size, local_world_size)` as whole numbers; with no launcher, one rank alone.
#
# | | `torchrun` | `srun` | Open MPI's `mpirun` |
# | --- | --- | --- | --- |
# | rank | `RANK` | `SLURM_PROCID` | `OMPI_COMM_WORLD_RANK` |
# | local rank | `LOCAL_RANK` | `SLURM_LOCALID` | `OMPI_COMM_WORLD_LOCAL_RANK` |
# | world size | `WORLD_SIZE` | `SLURM_STEP_NUM_TASKS` | `OMPI_COMM_WORLD_SIZE` |
# | local world size | `LOCAL_WORLD_SIZE` | how many numbers `SLURM_GTIDS` lists | `OMPI_COMM_WORLD_LOCAL_SIZE` |

# %% [markdown]
# `SLURM_GTIDS` has the ranks of this host, such as `8,9,10,11`. (`SLURM_NTASKS_PER_NODE` is there only if somebody asked for `--ntasks-per-node`; `srun --ntasks=8` does not set it, and may put 7 tasks on one host and 1 on the next.)
#
# | the environment has | returns |
# | --- | --- |
# | `RANK=5 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=4`, and a task's names of Slurm | `(5, 1, 8, 4)` |
# | what a batch script finds: `SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_GTIDS=0 SLURM_NTASKS=64 SLURM_NTASKS_PER_NODE=8` | `(0, 0, 1, 1)` |


# %%
NAMES = {
    "torchrun": ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_GTIDS"),
    "mpirun": [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "LOCAL_RANK", "SIZE", "LOCAL_SIZE")],
}


def ranks_of(environment):
    ### BEGIN SOLUTION
    for names in (NAMES["torchrun"], NAMES["mpirun"], NAMES["srun"]):  # the innermost first
        # A batch script has all of Slurm's names but the number of tasks of a step.
        if names[2] in environment:
            rank, local_rank, world_size = (int(environment[name]) for name in names[:3])
            local_world_size = environment[names[3]]
            if names[3] == "SLURM_GTIDS":  # Slurm lists the ranks of a host, others count them
                local_world_size = len(local_world_size.split(","))
            return rank, local_rank, world_size, int(local_world_size)
    return 0, 0, 1, 1
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of Slurm's names is there in every task that <code>srun</code> started, and not in the batch script?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Look for each launcher's world size, the innermost launcher first. The first that is there says which column to read. An environment holds nothing but text, so make numbers of it. For the local world size Slurm gives a list of ranks, and its length is what's wanted.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>int(environment[name])</code> for the first three of one of the lists in <code>NAMES</code>; and for Slurm <code>len(environment["SLURM_GTIDS"].split(","))</code>.
# </details>


# %% jupyter={"source_hidden": true}
def ranks_of_spec(environments, places):
    return places  # which the inputs have drawn; an answer sees its environment alone


def asking(answer):
    """Tell the answer its environment alone, which is all that a process has."""

    @functools.wraps(answer)
    def asked(environment, place):
        return answer(environment)

    return asked


# %% jupyter={"source_hidden": true}
def ranks_of_inputs(rank, world_size, case):
    """Environments as a Slurm 22.05 sets them, with numbers drawn."""
    environment = {"PATH": "bin", "MASTER_ADDR": "10.0.0.1"}
    launchers, _, which = case.partition(", ")
    if "Slurm" in case or "srun" in case:
        environment |= {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "64", "SLURM_NTASKS_PER_NODE": "8"}
    if "batch" in case or "srun" in case:
        environment |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
        environment |= {"SLURM_GTIDS": "0"}
    place = 0, 0, 1, 1
    for launcher in launchers.split(" of "):  # the innermost last
        if launcher in NAMES:
            sizes = [int(n) for n in (torch.randint(9, 65, ()), torch.randint(2, 9, ()))]
            place = (*(int(torch.randint(size, ())) for size in sizes), *sizes)
            if launcher != "srun":
                place = {"rank 0": (0, 0, *sizes), "alone": (0, 0, 1, 1)}.get(which, place)
            environment |= zip(NAMES[launcher], map(str, place))
            environment |= of_srun(*place) if launcher == "srun" else {}
    if which == "--ntasks=...":  # nobody has asked for so many on each node
        environment.pop("SLURM_NTASKS_PER_NODE")
    return environment, place


def of_srun(rank, local_rank, world_size, local_world_size):
    """What a task has besides: the ranks of its host, which need not be neighbours."""
    ranks = [other for other in torch.randperm(world_size).tolist() if other != rank]
    ranks = ranks[: local_world_size - 1]
    ranks.insert(local_rank, rank)
    per_node = {"SLURM_NTASKS": str(world_size), "SLURM_NTASKS_PER_NODE": str(local_world_size)}
    return per_node | {"SLURM_GTIDS": ",".join(map(str, ranks))}


cases = ("torchrun", "srun", "mpirun", "a shell in a Slurm job", "the batch script of a Slurm job")
cases += ("srun of torchrun", "mpirun of torchrun", "srun of mpirun", "srun of torchrun, rank 0")
cases += ("srun of mpirun, rank 0", "srun of torchrun, alone", "srun, --ntasks=...")
ranks_of_check = {"spec": ranks_of_spec, "inputs": ranks_of_inputs, "cases": cases}

# %%
check(asking(ranks_of), **ranks_of_check, world_sizes=(1, 3))

# %% [markdown]
# ## 2 · One command for all hosts
#
# *Difficulty ●●○ · importance ●●○ · 10 minutes.* With a c10d rendezvous all hosts run the same command, and no host is told its number.

# %% [markdown]
# **Goal:** return that command as a list of words, from
# `"torchrun"` to `"train.py"`: `per_host` processes on each of `hosts` hosts, which meet at `endpoint` (such as `127.0.0.1:29400`) under the name `job`. The check lets `torchrun` parse the command. Once it also runs it, on two hosts that are only processes here.


# %% jupyter={"source_hidden": true}
def command_spec(hosts, per_host, endpoints, jobs):
    """What torchrun's agents understand, and which ranks two of them start with 2 on each host."""
    started = {"started": [0, 1, 2, 3]}
    plans = zip(hosts, per_host, endpoints, jobs)
    return [to_understand(*plan) | started for plan in plans]


def to_understand(hosts, per_host, endpoint, job):
    understood = {"hosts": hosts, "ranks per host": per_host, "endpoint": endpoint, "name": job}
    return understood | {"rendezvous": "c10d", "runs": ["train.py"]}


# %%
def command(hosts, per_host, endpoint, job):
    ### BEGIN SOLUTION
    options = {"nnodes": hosts, "nproc-per-node": per_host, "rdzv-backend": "c10d"}
    options |= {"rdzv-endpoint": endpoint, "rdzv-id": job}
    return ["torchrun", *(f"--{name}={value}" for name, value in options.items()), "train.py"]
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What must an agent know before it can ask the others anything? How many there are, how many ranks it starts, and three things about the meeting.
# </details>
# <details><summary>Hint 2: the approach</summary>
# Options come before the script; what comes after it goes to the script. The meeting's options all begin with <code>--rdzv-</code>. Two agents that have different endpoints or
# different names do not meet, and give up with an error after ten minutes at the latest.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>--nnodes</code>, <code>--nproc-per-node</code>, <code>--rdzv-backend=c10d</code>, <code>--rdzv-endpoint</code>, <code>--rdzv-id</code>.
# </details>


# %% jupyter={"source_hidden": true}
TRAIN = """
import os
open("{RANK}-of-{WORLD_SIZE}".format_map(os.environ), "w").close()
"""


def as_understood(words):
    """What torchrun makes of a command: by its own parser, and without starting anything."""
    understood = {}

    def agent(config, entrypoint):
        hosts = {config.min_nodes, config.max_nodes}
        understood["hosts"] = hosts.pop() if len(hosts) == 1 else sorted(hosts)
        understood["ranks per host"] = config.nproc_per_node
        understood["endpoint"], understood["name"] = config.rdzv_endpoint, config.run_id
        understood["rendezvous"] = config.rdzv_backend
        return lambda *words: understood.update(runs=[word for word in words if word != "-u"])

    with mock.patch.object(torchrun, "elastic_launch", agent):
        torchrun.run(torchruns_options(words))
    return understood


def torchruns_options(words):
    if isinstance(words, str) or list(words)[:1] != ["torchrun"]:
        raise TypeError(f"a list of words is wanted, of which 'torchrun' is the first: {words}")
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            return torchrun.parse_args([str(word) for word in words[1:]])
    except SystemExit:
        message = complaint.getvalue().rpartition("error: ")[2].strip()
        raise ValueError(f"torchrun: {message}") from None


# %% jupyter={"source_hidden": true}
def on_two_hosts(answer):
    """Run the command on both ranks as if they were hosts; return which ranks were started."""
    endpoint, ranks, commands = [f"127.0.0.1:{free_port()}"], [None] * 2, [None] * 2
    dist.broadcast_object_list(endpoint)
    words = answer(2, 2, endpoint[0], "rehearsal")
    options = torchruns_options(words)
    dist.all_gather_object(commands, [str(word) for word in words])
    if commands[0] != commands[1]:
        raise ValueError(f"all hosts run the same command, not {commands[0]} and {commands[1]}")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("train.py").write_text(TRAIN)
        torchrun.run(options)
        dist.all_gather_object(ranks, [path.name for path in Path().glob("*-of-4")])
    return sorted(int(name.removesuffix("-of-4")) for names in ranks for name in names)


def free_port():
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        return port.getsockname()[1]


def on_all_hosts(answer):
    """Let torchrun read the command; and once, when everybody's is right so far, run it."""
    started = []

    @functools.wraps(answer)
    def read(hosts, per_host, endpoint, job):
        understood = as_understood(answer(hosts, per_host, endpoint, job))
        right = [None] * dist.get_world_size()
        dist.all_gather_object(right, understood == to_understand(hosts, per_host, endpoint, job))
        if all(right) and not started:
            started[:] = on_two_hosts(answer)
        return understood | {"started": started}

    return read


# %% jupyter={"source_hidden": true}
def command_inputs(rank, world_size, case):
    """Each rank is told of a job of its own."""
    hosts, per_host, node, job = torch.randint(2, 100, (4,)).tolist()
    hosts, per_host = {"one host": 1}.get(case, hosts), {"one rank each": 1}.get(case, per_host)
    return hosts, per_host, f"node{node}:{29000 + job + node}", f"night-{job}"


command_check = {"cases": ("many hosts", "one rank each", "one host", "other hosts")}
command_check |= {"world_sizes": (2,), "timeout": 20}
command_check["allow"] = ("sockets", "processes", "files", "folder", "environment")

# %%
check(on_all_hosts(command), spec=command_spec, inputs=command_inputs, **command_check)

# %% [markdown]
# ## 3 · Killed, and going on
#
# *Difficulty ●●● · importance ●●● · 17 minutes.* Two ranks train. One of them is killed in the middle, perhaps while it's writing, and then both are started again.

# %% [markdown]
# **Goal:** train until `steps` steps are done, saving after each to
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
    weight_gradient = gradient(model, step, dist.get_rank(), torch.randn(4, 3))
    dist.all_reduce(weight_gradient)
    for watch in watchers:
        watch(step)  # here the check may end this process
    optimizer.step()


# %% [markdown]
# The specification has both ranks in one process, draws the noise of each, and nobody dies.


# %%
def train_spec(plans, steps, seeds):
    model, optimizer = start(seeds[0])
    generators = [torch.Generator().manual_seed(seeds[0] + rank) for rank in range(2)]
    for step in range(steps[0]):
        both = [
            gradient(model, step, rank, torch.randn(4, 3, generator=generator)).clone()
            for rank, generator in enumerate(generators)
        ]
        model.weight.grad = sum(both)
        optimizer.step()
    weights = [model.weight.detach()] * 2
    return [{"steps done twice for nothing": 0, "in secret": 0, "weights": weights}]


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
# Besides the weights, what changes from step to step in the optimiser, on each rank and in the loop? And what does a reader find in a file that is half written?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Gather the random states of all ranks; rank 0 writes everything to a different file and then renames it. A rename happens completely or not at all. At the start, if the file is
# there, take everything back, each rank its own random state.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>torch.save(..., f"{path}.new")</code>, then <code>os.replace(f"{path}.new", path)</code>; <code>torch.get_rng_state()</code> and
# <code>torch.set_rng_state(state)</code>.
# </details>

# %% [markdown]
# The check starts two processes, and starts both again when one was killed, as `torchrun`'s agent would. To kill a process in the middle of writing it uses `SIGXFSZ`, which the system sends when a file grows beyond a limit.


# %% jupyter={"source_hidden": true}
def one_rank(answer, folder, rank, steps, seed, number, death):
    """Run the answer as one of two ranks; `death` says how to die, which ranks, in which step."""
    store = dist.FileStore(f"{folder}/store-{number}", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    cause, doomed, last = death
    taken, path = [], Path(folder, "checkpoint")

    def watch(step):
        taken.append(-2)  # for the forward pass that was, and the optimizer's step to come
        with open(f"{folder}/steps", "a") as file:
            print(number, step, file=file)
        if rank in doomed and step == last:
            Path(folder, f"death-{number}").touch()
            die(cause, path)

    watchers.append(watch)
    model, optimizer = start(seed)
    register_module_forward_hook(lambda *_: taken.append(1))  # of any model and optimizer
    register_optimizer_step_post_hook(lambda *_: taken.append(1))
    torch.manual_seed(seed + rank)
    answer(path, model, optimizer, steps)
    torch.save((sum(taken), model.weight.detach()), f"{folder}/end-{rank}")
    Path(folder, f"left-{rank}-{number}").touch()
    while not Path(folder, f"left-{1 - rank}-{number}").exists():
        time.sleep(0.002)  # who leaves first would close connections that are being made


def die(cause, path):
    if cause == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif cause == "renaming":
        sys.addaudithook(
            lambda event, _: event == "os.rename" and os.kill(os.getpid(), signal.SIGKILL)
        )
    elif cause == "overwriting":
        sys.addaudithook(functools.partial(dies_overwriting, path, []))
    else:  # when it has written 600 bytes to a file
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))


def dies_overwriting(path, dying, event, arguments):
    """Python tells of each call on a file. Who opens the checkpoint to write, removes it, or moves
    it away, dies when that is done."""
    if not arguments or str(arguments[0]) != str(path) or dying:
        return
    if event in ("os.remove", "os.rename"):
        dying.append(event)  # the calls below are told of as well
        os.remove(path) if event == "os.remove" else os.rename(path, arguments[1])
    elif event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR):
        os.truncate(path, 0)
    else:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def start_both(answer, folder, *arguments):
    """Fork two ranks and wait for both; if one ends badly, kill the other."""
    running = set()
    for rank in range(2):
        if not (pid := os.fork()):
            try:
                one_rank(answer, folder, rank, *arguments)
            except BaseException as error:
                message = f"rank {rank}, start {arguments[2]}: {type(error).__name__}: {error}"
                with contextlib.suppress(FileExistsError), open(f"{folder}/error", "x") as file:
                    file.write(message)  # the other's error often follows from the first one's
                os._exit(1)
            os._exit(0)
        running.add(pid)
    while running:
        pid, status = os.wait()
        running.remove(pid)
        time.sleep(0.05 if status and running else 0)  # the other one goes on as far as it can
        for other in running if status else ():
            os.kill(other, signal.SIGKILL)


# %% jupyter={"source_hidden": true}
def starting_again(answer):
    """Start the answer's ranks again after each death of a plan, and once more to the end."""

    @functools.wraps(answer)
    def run(plan, steps, seed):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "steps").touch()
            for number, death in enumerate([*plan, ("never", (), None)]):
                start_both(answer, folder, steps, seed, number, death)
                error = Path(folder, "error")
                if error.exists() and not Path(folder, f"death-{number}").exists():
                    message = error.read_text()
                    if "NotImplementedError" in message:  # there is no answer yet
                        raise NotImplementedError(message.rpartition("Error: ")[2])
                    raise RuntimeError(message)
                error.unlink(missing_ok=True)  # of the one that was left
            secret, weights = zip(*(torch.load(f"{folder}/end-{rank}") for rank in range(2)))
            again = {"steps done twice for nothing": repeated(folder), "in secret": sum(secret)}
            return again | {"weights": weights}

    return run


def repeated(folder):
    """How many steps were done again beside those in which a rank died."""
    lines = set(Path(folder, "steps").read_text().splitlines())
    again = 0
    for (start, last), (later, first) in pairwise(sorted(map(str.split, lines))):
        died = later > start and Path(folder, f"death-{start}").exists()
        again += max(0, int(last) - int(first) + 1 - died)
    return again


plans = {  # how many steps, and who dies when
    "nobody is killed": (4, []),
    "all is done, and it is started again": (2, [("never", (), None)]),
    "rank 1 is killed in step 2": (6, [("killed", (1,), 2)]),
    "killed in step 1, and when renaming a file in step 4": (
        6, [("killed", (0,), 1), ("renaming", (1,), 4)]
    ),
    "dies while writing in step 1, then when overwriting in step 3": (
        5, [("writing", (0, 1), 1), ("overwriting", (0, 1), 3)]
    ),
}  # fmt: skip


def train_inputs(rank, world_size, case):
    steps, plan = plans[case]
    return plan, steps, int(torch.randint(1000, ()))


train_check = {"cases": list(plans), "world_sizes": (1,), "backend": None, "rtol": 0.0, "atol": 0.0}
train_check["allow"] = ("processes", "files")
train_check |= {"spec": train_spec, "inputs": train_inputs, "timeout": 20}

# %%
check(starting_again(train), **train_check)

# %% [markdown]
# ## 4 · Told to end
#
# *Difficulty ●●○ · importance ●●○ · 10 minutes.* A job that asked for it (`--signal=TERM@60`) gets SIGTERM before its time is up. Slurm sends it to every task, and it reaches the ranks
# at different moments, some perhaps not at all. A rank that leaves alone leaves the others hanging.

# %% [markdown]
# **Goal:** call `take_step(0)`, `take_step(1)`, ... until `steps` are done or **any** rank has got SIGTERM; then call `save(done)` once on every rank and return `done`, the number of
# steps, the same on all ranks. The step in which the signal comes is the last.
#
# | of 6 steps; SIGTERM comes to | every rank saves and returns |
# | --- | --- |
# | nobody | 6 |
# | rank 1, in step 3 | 4 |
# | rank 0 in step 5, rank 1 in step 2 | 3 |


# %%
def run_until_told(steps, take_step, save):
    ### BEGIN SOLUTION
    notes = []  # of this call: another job may have been told before
    signal.signal(signal.SIGTERM, lambda *_: notes.append(True))
    for step in range(steps):
        take_step(step)
        anybody = torch.tensor(len(notes))
        dist.all_reduce(anybody)  # one rank's signal ends all, and in the same step
        if anybody:
            break
    save(step + 1)
    return step + 1
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What happens to a rank by default when SIGTERM comes? And how do the others learn that somebody was told?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A handler only takes a note. After each step the ranks add up their notes, so that all of them see the same number, and leave the loop together.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>signal.signal(signal.SIGTERM, lambda *_: notes.append(True))</code>, and after each step <code>dist.all_reduce(anybody)</code> of <code>anybody = torch.tensor(len(notes))</code>.
# </details>


# %% jupyter={"source_hidden": true}
def telling(answer):
    """Run the answer with steps in which ranks send SIGTERM to themselves, as Slurm would."""

    @functools.wraps(answer)
    def run(steps, signals):
        did = []

        def take_step(step):
            dist.all_reduce(torch.ones(1))
            did.append(f"step {step}")
            for _ in range(signals.count(step)):
                os.kill(os.getpid(), signal.SIGTERM)

        before = signal.getsignal(signal.SIGTERM)
        try:
            done = answer(steps, take_step, lambda done: did.append(f"saved {done}"))
        finally:
            signal.signal(signal.SIGTERM, before)
        return {"done": done, "calls": ", ".join(did)}

    return run


def run_until_told_spec(steps, signals):
    done = min([steps[0], *(step + 1 for rank_signals in signals for step in rank_signals)])
    calls = ", ".join([*(f"step {step}" for step in range(done)), f"saved {done}"])
    return [{"done": done, "calls": calls}] * len(steps)


# %% jupyter={"source_hidden": true}
def drawn(below):
    return int(torch.randint(below, ()))


moments = {  # how many steps, and in which of them a rank is told
    "nobody is told": (6, lambda rank, size: ()),
    "the last rank is told": (9, lambda rank, size: (drawn(8),) * (rank == size - 1)),
    "rank 0 is told": (8, lambda rank, size: (drawn(7),) * (rank == 0)),
    "all are told, each in a step of its own": (9, lambda rank, size: (drawn(9),)),
    "told twice": (7, lambda rank, size: (drawn(3), 5) * (rank == 0)),
    "all are told in one step, rank 0 twice": (6, lambda rank, size: (3,) * (1 + (rank == 0))),
    "told in the first step": (4, lambda rank, size: (0,) * (rank == size // 2)),
    "told in the last step": (5, lambda rank, size: (4,) * (rank == 0)),
}


def run_until_told_inputs(rank, world_size, case):
    steps, signals_of = moments[case]
    return steps, signals_of(rank, world_size)


run_until_told_check = {"spec": run_until_told_spec, "inputs": run_until_told_inputs}
run_until_told_check |= {"cases": list(moments), "world_sizes": (1, 2, 3), "timeout": 8}

# %%
check(telling(run_until_told), **run_until_told_check, allow=("processes",))

# %% [markdown]
# ## Bonus · A night that loses little
#
# *As long as you like; there is no check and no single answer.* With a real Slurm (see chapter 09), `tried` hands over your batch script and `night.py`, waits until the log says `working`, cuts the power of one of two nodes, and prints the log up to `done` and the seconds since the cut.

# %% [markdown]
# In the chapter the whole job goes back into the queue, which takes a quarter of a minute. Can a job of two nodes go on with one, without the queue? (`srun --no-kill`, `--wait` and `torchrun` with `--nnodes=1:2` are worth a look; the node whose script runs is not the one that dies.)


# %% jupyter={"source_hidden": true}
def tried(script, program):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, slurm.two_nodes(folder) as cluster:
        if type(cluster) is slurm.Recording:
            return print("there is no Slurm here")
        Path(folder, "job.sh").write_text(script)
        Path(folder, "night.py").write_text(program)
        job = cluster.submit("job.sh")
        job.wait_for("working")
        cluster.nodes[1].cut_power()
        begun = time.monotonic()
        print(job.wait_for("done"))
        print(f"about {time.monotonic() - begun:.0f} s after the cut")


# %%
script = """#!/bin/bash
#SBATCH --nodes=2
srun python night.py
"""
program = "print('working')"  # and what else?
# tried(script, program)

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [10 · Keras 3 on DDP](../notebooks/10_keras.ipynb), another framework on top of all this.

# %%
progress("ranks_of", "command", "train", "run_until_told")
