# %% [markdown]
# # 09 · Many machines
#
# **What changes when the ranks live on two machines: who finds whom, who else can come in, and what happens when one dies?**
#
# In 130 minutes, best in two sittings (parts 1 to 7, then 8 and 9), you will be able to
#
# 1. start one training on two hosts, by hand and with `torchrun`, and read from its error why it doesn't start;
# 2. say who can reach your training, and let fewer;
# 3. kill a rank, then a whole host, have the training go on from its checkpoint, and say how often to save;
# 4. predict a collective on a slow cable, and hand one function to Slurm and to Ray, whose jobs survive a death.
#
# **Hardware:** any computer. As root on Linux (also in a container) you get two real hosts, elsewhere two addresses of one machine; a line says which.
# With Debian's `slurmctld slurmd slurm-client munge` part 8 runs a real Slurm on them, else it shows a recording; a line says that, too.
# **Before:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb). **Next:** [10 · Keras 3 on DDP](10_keras.ipynb).
# **Lab:** [09 · Many machines](../exercises/09_many_machines.ipynb).

# %% jupyter={"source_hidden": true}
import argparse
import importlib.util
import inspect
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_cluster import slurm, two_hosts
from course_lessons import chapter_09, chapter_09_charts, chapter_09_pictures
from course_lessons.chapter_09 import listening, note, resumed, save
from course_utils import Network, check, digits, launch, plot_timeline, predict

# %% [markdown]
# ## 1 · Two hosts in one computer
#
# *Many machines, many cards*, one of the five articles behind this course ([the course map](README.md) lists them), takes two machines with a card each, and finds their
# addresses with `ifconfig`. You have one machine, so `two_hosts` makes two of it.

# %% [markdown]
# Linux can give a process a **network namespace**: interfaces, addresses and ports of its own, as a container has. Two of
# them, joined by a virtual cable, are two hosts for this chapter's purposes. (They still share the machine's disk, its memory and its name; what the shared name leads to, you'll see in part 5.) The modern command that lists addresses is `ip`.

# %% tags=["nbval-ignore-output", "row-E1"]
tools = {"ip": "ip -4 -brief address", "ifconfig": "ifconfig -a"}
addresses = next((tools[tool] for tool in tools if shutil.which(tool)), "uname -n")
with two_hosts() as hosts:
    time.sleep(1)  # a cable that was just plugged in is not up at once
    listed = [host.run(addresses) for host in hosts]
print(f"host 0, known to the other one as {hosts[0].address}:\n{listed[0]}")
chapter_09_pictures.draw_interfaces(hosts, listed)

# %% [markdown]
# On `lo` a host talks to itself. Without root you see your machine's own interfaces, and the hosts are 127.0.0.1 and 127.0.0.2: all that follows runs, but
# nothing separates them. Where that matters, the text says so.

# %% [markdown]
# At the end of the `with` block both hosts are gone, with every process on them. The two hosts share a disk, as the machines of many clusters do. Ours is a folder with the digits in it.

# %% tags=["part-slurm", "part-ray", "part-agents"]
disk = tempfile.TemporaryDirectory()

# %%
training = digits()
torch.save((training.data, training.targets), Path(disk.name, "digits.pt"))

# %% [markdown]
# ## 2 · One script per machine, by hand
#
# This is the article's training: Linear, ReLU, Linear, LogSoftmax, the NLL loss, SGD with rate 0.01, batches of 64. It runs for 100 epochs there; here that is a
# parameter.

# %% [markdown]
# For each epoch the article's script prints a loss: *the sum of batch loss × batch size, divided by the number of the sampler's samples*. We print a second figure after it, for which the ranks add up their sums and their counts.


# %%
def make_model():
    torch.manual_seed(0)
    layers = nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(dim=1)
    return DistributedDataParallel(nn.Sequential(nn.Flatten(), *layers))


def take_step(model, optimizer, images, labels):
    loss = nll_loss(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


# %%
def train(epochs):
    data, model = TensorDataset(*torch.load("digits.pt")), make_model()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2, dtype=torch.float64)  # loss, samples
        for images, labels in loader:
            loss = take_step(model, optimizer, images, labels)
            sums += torch.tensor([loss * len(labels), len(labels)])
        local = sums[0] / sums[1]
        dist.all_reduce(sums)
        print(f"epoch {epoch}: as in the article {local:.3f}, all {sums[0] / sums[1]:.3f}")


# %% [markdown]
# `by_hand` joins the group as the article's script does: it is told its own rank, and the place where the ranks meet, `tcp://ADDRESS:23456`. `write_script`, folded away, puts functions of this notebook
# into a file on the disk, as chapter 02 did. That script calls the last of them.


# %% jupyter={"source_hidden": true} tags=["part-slurm", "part-ray", "part-agents"]
IMPORTS = """
import argparse, json, os, signal, socket, sys, tempfile, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from pathlib import Path
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""


def write_script(name, *functions, imports=IMPORTS):
    """Write functions of this notebook into a script on the disk that calls the last one."""
    body = "\n\n".join(inspect.getsource(function) for function in functions)
    call = f'\n\nif __name__ == "__main__":\n    {functions[-1].__name__}()\n'
    end = (
        "    sys.stdout.flush()\n    os._exit(0)  # at once: gloo's threads dislike Python's end\n"
    )
    Path(disk.name, name).write_text(imports + body + call + end)


# %%
def by_hand():
    place, rank, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    train(epochs)
    dist.destroy_process_group()


write_script("by_hand.py", make_model, take_step, train, by_hand)

# %% [markdown]
# `hosts.run` starts the first command on host 0 and the second on host 1, as you would in two terminals, and waits for both.
#
# Two machines train one model. Watch the article's figure on either of them.

# %% tags=["row-E2", "row-E3", "row-E4", "row-E5"]
with two_hosts(disk.name) as hosts:
    place = f"tcp://{hosts[0].address}:{hosts.port}"
    outputs = hosts.run(f"by_hand.py {place} 0 3", f"by_hand.py {place} 1 3")
for number, output in enumerate(outputs):
    print(f"host {number}:\n{output}", end="")
chapter_09_charts.draw_screens(outputs)

# %% [markdown]
# Two scripts that share an address became one training. The article's figure is each rank's mean over **its own** half of the data. So both hosts miss the
# mean, in opposite directions and by the same amount (up to rounding), and whoever reads one screen sees half of the truth. The cure is to add up sums and counts over all ranks and to divide last. Then both print the same, 2.159 in epoch 0.

# %% [markdown]
# ### The address that leads nowhere
#
# We kept something from you: `two_hosts` sets `GLOO_SOCKET_IFNAME` in the environment of its programs, to the interface of the cable. On a cluster an administrator does that, or nobody does. In the next run nobody does. **Predict:** which address does a rank leave in the store, so that the others find it? (Four numbers with dots between them.)

# %%
left = predict("the address that a rank leaves for the others", ...)


# %%
def by_host_name():
    del os.environ["GLOO_SOCKET_IFNAME"]
    by_hand()


write_script("by_host_name.py", make_model, take_step, train, by_hand, by_host_name)

# %% tags=["nbval-ignore-output"]
with two_hosts(disk.name) as hosts:
    place = f"tcp://{hosts[0].address}:{hosts.port}"
    try:
        hosts.run(f"by_host_name.py {place} 0 1", f"by_host_name.py {place} 1 1")
        print("they met: on one machine, every address of a host leads to it")
    except RuntimeError as error:
        print(re.findall(r"RuntimeError: [^$\n]*", str(error))[-1])  # gloo adds $1
        address = re.findall(r"remote=\[([\d.]+)", str(error))[-1]
        left.measured(address)
        chapter_09_pictures.draw_doors(hosts, address)

# %% [markdown]
# With two hosts it fails. Read the end: *connection refused*, `remote=[127.0.0.1]`. Both ranks found the store at `tcp://…`. There each left the address that its **host name** resolves to (or the loopback address, if the name leads to none of this host's). Here that was 127.0.0.1, which means "this host", so each then knocked at its own door.

# %% [markdown]
# Where the ranks meet and which way their tensors travel are two separate settings. `GLOO_SOCKET_IFNAME`, or `NCCL_SOCKET_IFNAME` for GPUs, names the interface for the tensors. (On InfiniBand, NCCL uses that interface only to set up its connections; the tensors travel over the adapters that [`NCCL_IB_HCA`](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html) names.)

# %% [markdown]
# **Check yourself.** Why did this never happen in chapters 00 to 08?
#
# <details><summary>Answer</summary>
# All ranks were on one host, where 127.0.0.1 leads to everybody; and <code>launch</code> names the loopback interface itself.
# </details>

# %% [markdown]
# ## 3 · Who else can come in?
#
# With `tcp://`, rank 0 opens the store in which the ranks find each other. As the article says, this store listens on 0.0.0.0, which means **all** addresses of its host. Who can reach it?
# Host 0 opens two stores: the usual one, and one on a socket that is **bound** to the address on the cable. (`detach` hands over the open socket by its number, the file descriptor, and `master_listen_fd` gives that to the store.) Both hold a learning rate.


# %%
def bound_store(address, port, is_master):
    if not is_master:
        return dist.TCPStore(address, port)
    listener = socket.create_server((address, port))  # this address and no other
    options = {"wait_for_workers": False, "master_listen_fd": listener.detach()}
    return dist.TCPStore(address, port, is_master=True, **options)


# %%
def two_stores():
    address, port = sys.argv[1], int(sys.argv[2])
    usual = dist.TCPStore(address, port, is_master=True, wait_for_workers=False)
    stores = {"usual": usual, "bound": bound_store(address, port + 1, True)}
    for store in stores.values():
        store.set("learning rate", "0.01")
    print("ready", flush=True)
    usual.wait(["the stranger has gone"])
    for name, store in stores.items():
        print(f"learning rate in the {name} store:", store.get("learning rate").decode())


# %% [markdown]
# And here is a stranger: the program of a different user, who comes over the *other* network and knows the port.


# %%
def stranger():
    address, port = sys.argv[1], int(sys.argv[2])
    for name, number in {"bound": port + 1, "usual": port}.items():
        try:
            socket.create_connection((address, number), timeout=2).close()
        except OSError as error:
            print(f"the {name} store: {error.strerror}")
            continue
        store = dist.TCPStore(address, number)
        store.set("learning rate", "1000")
        store.set("the stranger has gone", "")
        print(f"the {name} store: come in")


# %%
write_script("two_stores.py", bound_store, two_stores)
write_script("stranger.py", stranger)

# %% [markdown]
# `ss -ltn` lists what listens on a host. The picture shows which learning rates host 0 finds in its two stores after the stranger's visit.


# %% tags=["row-E2"]
with two_hosts(disk.name) as hosts:
    served = hosts[0].start(f"two_stores.py {hosts[0].address} {hosts.port}")
    served.wait_for("ready")
    sockets = listening(hosts)
    answers = hosts[1].run(f"stranger.py {hosts[0].outside} {hosts.port}")
    learning_rates = served.wait_for()
print(sockets)
chapter_09_pictures.draw_stores(sockets, answers, learning_rates)

# %% [markdown]
# The star means every address, including that of `eth1`, which leads to the world outside. The stranger wrote 1000 where 0.01 had been, and nobody asked who it was: a store has no password. And it's from this same store that ranks learn where to send their tensors.

# %% [markdown]
# The bound store does not exist for the outside: *connection refused*. (Where
# loopback stands in for the networks, "outside" is 127.0.0.11; on a Mac, which has 127.0.0.1 only, the difference can't be shown.)

# %% [markdown]
# So bind the store to the cluster's own network, as `bound_store` does, and hand it over with `init_process_group(store=…)`, as part 7 will. Or put a firewall between the cluster and the world. With `torchrun` you need one anyway, because its store listens everywhere too.

# %% [markdown]
# **Check yourself.** Would an unusual port number help?
#
# <details><summary>Answer</summary>
# It hardly helps against a stranger, whose program tries all ports in turn. But it does help against an honest neighbour whose training uses the same port.
# </details>

# %% [markdown]
# ## 4 · From `-nr` to `torchrun`
#
# With more cards per machine, nobody wants to start each rank by hand. *Distributed Data Parallel, part 1*, another of the articles, has a script that is started once **per machine** and is told how many machines there
# are, how many cards each has, and which machine this is.

# %% [markdown]
# The script then computes its ranks and starts them; they meet by `env://`. (The article has `mp.spawn`; a fork spares each rank the import of `torch`.)


# %%
def one_card(gpu, args):
    rank = args.node_rank * args.gpus + gpu
    world_size = args.nodes * args.gpus
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    print(f"node {args.node_rank}, card {gpu}: rank {rank} of {world_size}, sum {total}\n", end="")
    dist.destroy_process_group()


# %%
def per_machine():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1)
    parser.add_argument("-nr", "--node-rank", type=int, default=0)
    parser.add_argument("--master", nargs=2)
    args = parser.parse_args()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = args.master
    mp.start_processes(one_card, args=(args,), nprocs=args.gpus, start_method="fork")


write_script("per_machine.py", one_card, per_machine)

# %% [markdown]
# Two machines with two cards each:

# %% tags=["row-B6", "row-B7"]
with two_hosts(disk.name) as hosts:
    command = f"per_machine.py -n 2 -g 2 --master {hosts[0].address} {hosts.port}"
    outputs = hosts.run(f"{command} -nr 0", f"{command} -nr 1")
chapter_09_pictures.draw_cards(outputs)

# %% [markdown]
# Card 0 of node 1 is rank 2: node 1 × 2 cards + card 0. You needn't write such a parser, formula and `spawn` yourself, because `torchrun` brings all three. It runs on every machine as an **agent**, which counts the ranks, sets their variables, starts them and watches them. Its simplest form has a static master: you give every agent the master's address and port, and the number of its own machine.


# %%
def under_torchrun():
    env = os.environ
    place = f"node {env['GROUP_RANK']}, card {env['LOCAL_RANK']}"
    print(f"{place}: rank {env['RANK']} of {env['WORLD_SIZE']}\n", end="")


write_script("under_torchrun.py", under_torchrun, imports="import os, sys\n")

# %%
with two_hosts(disk.name) as hosts:
    command = "torchrun --nnodes=2 --nproc-per-node=2 "
    command += f"--master-addr={hosts[0].address} --master-port={hosts.port}"
    outputs = hosts.run(*[f"{command} --node-rank={n} under_torchrun.py" for n in (0, 1)])
print(*sorted("".join(outputs).splitlines()), sep="\n")

# %% [markdown]
# The same four ranks, and no arithmetic of ours. There is no `torch` in this script: `torchrun` sets variables, and `init_process_group` reads them. (`python -m torch.distributed.launch`, in older
# articles, is the deprecated form of this command. [Chapter 02](02_process_groups.ipynb) has all forms, and the table of backends by device: with GPUs write `nccl`, and take the card by `LOCAL_RANK`.)

# %% [markdown]
# What remains is `--node-rank`: a number that somebody must give to every machine, no two the same.

# %% [markdown]
# ## 5 · A rank dies
#
# The second way to meet, besides the static master, is a **rendezvous**. All machines get the same command, with one machine's address as `--rdzv-endpoint`. Each machine that comes is given a number, and whenever one leaves or joins, all of them meet again. That's how the agents can restart ranks by themselves, with nobody awake at night.

# %% [markdown]
# A restart alone begins from scratch. To continue instead, `train_on` saves a **checkpoint** after each epoch (chapter 04), and looks for one when it begins. Its batches have 128 samples **for all ranks together**, however many ranks there are. `accident` is called in every step: you will see what for.

# %% [markdown]
# (`save` and `resumed`, imported, work like those of chapter 04: rank 0 writes the file next to the old one and renames it. That's enough if a process is killed. If the disk's own host may lose its power, an `os.fsync` of the file has to come before the rename, as lab 11 says.)


# %%
def train_on(checkpoint, accident):
    model, data = make_model(), TensorDataset(*torch.load("digits.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler, share = DistributedSampler(data), 128 // dist.get_world_size()
    loader = DataLoader(data, batch_size=share, sampler=sampler)
    for epoch in range(resumed(checkpoint, model, optimizer), 4):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader, epoch * len(loader)):
            accident(step)
            loss = take_step(model, optimizer, images, labels)
            note(f"{checkpoint}.losses", step, loss)
        save(checkpoint, epoch + 1, model.state_dict(), optimizer.state_dict())


# %% [markdown]
# Rank 0 notes the mean loss of every step. The accident is this: in step 28 of 48, rank 1 kills itself with SIGKILL, the signal that the kernel sends when memory runs out. There's no exception, and no goodbye. It does so only in its first life: `TORCHELASTIC_RESTART_COUNT` says how often its agent has restarted it after a failure.


# %%
def kill(step):
    first_life = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if step == 28 and dist.get_rank() == 1 and first_life:
        os.kill(os.getpid(), signal.SIGKILL)


# %%
def a_rank_dies():
    dist.init_process_group("gloo")
    train_on("killed.pt", accident=kill)
    dist.destroy_process_group()


TRAINING = make_model, take_step, resumed, save, note, train_on
write_script("a_rank_dies.py", *TRAINING, kill, a_rank_dies)

# %% [markdown]
# First the control: the same `train_on`, undisturbed, from this notebook with `launch`.


# %%
def undisturbed():
    os.chdir(disk.name)
    train_on("undisturbed.pt", accident=lambda step: None)


def read_losses(name):
    lines = Path(disk.name, f"{name}.pt.losses").read_text().splitlines()
    return [(int(step), float(loss)) for step, loss in map(str.split, lines)]


launch(undisturbed, backend="gloo")
print("steps noted:", len(read_losses("undisturbed")))

# %% [markdown]
# Now on two hosts. `--rdzv-id` is the training's name: agents with the same endpoint and the same name meet. Two trainings could share an endpoint, but its store belongs to the one that came first: when that one ends, the other fails. So give each training its own.

# %% [markdown]
# An agent with a misspelt name
# meets nobody, and [gives up after ten minutes](https://docs.pytorch.org/docs/stable/elastic/rendezvous.html) with a `RendezvousTimeoutError` (`--rdzv-conf=join_timeout=...` sets the seconds). Under Slurm, the job's number is a good name.

# %% [markdown]
# The folded cell has what our hosts need and real ones don't. Only host 0 is told to open the rendezvous (`is_host=1`). Real hosts find that out by comparing the endpoint with their own names and addresses, but ours share a name. `--local-addr` is the address under which an agent is known to the others.


# %% jupyter={"source_hidden": true}
fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # a new store for every life, see below
talkative = {"LOGLEVEL": "INFO"}  # an agent logs when it meets others: pictures are drawn of that


def start_agents(hosts, command):
    """Start the command on both hosts, with what hosts that share a name have to be told."""
    agents = []
    for host in hosts:
        torchrun = f"torchrun --rdzv-endpoint={hosts[0].address}:{hosts.port} --nproc-per-node=1"
        options = f"--local-addr={host.address} --rdzv-conf=is_host={1 - host.number},{QUICK}"
        agents.append(host.start(f"{torchrun} {options} {command}", fresh | talkative))
    return agents


# For part 6: two times in seconds, and how many signs of life may be missed.
QUICK = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5"

# %% [markdown]
# **Predict.** An epoch has 12 steps. Rank 1 dies in step 28. How many steps will have been noted in the end, 48 or more?

# %%
steps = predict("steps noted in the end", ...)

# %% tags=["row-E5"]
command = "--nnodes=2 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=night-7"
with two_hosts(disk.name) as hosts:
    agents = start_agents(hosts, f"{command} a_rank_dies.py")
    for agent in agents:
        agent.wait_for()
print("host 1:", re.search(r"failed \(exitcode: -9\) local_rank: 0", agents[1].errors)[0])
noted = read_losses("killed")
steps.measured(len(noted))
chapter_09_pictures.draw_agents(agents, noted)

# %% [markdown]
# *exitcode: −9*: a signal ended the rank, number 9, SIGKILL. *local_rank: 0*: the card, not the rank. That line is on **host 1's** screen. Host 0's screen, which we don't print, shows at most rank 0's traceback, about a connection that was reset by its peer, and that is only an echo. So on a cluster, look for the agent that reports a signal.

# %% [markdown]
# 52 steps, and we did nothing to restart it. The agents met again and started two new ranks, which found the checkpoint of step 24. So the steps 24 to 27 were done twice.

# %% [markdown]
# Are their losses equal to those of the control, or only close to them? The eye can't tell, so we also compare every loss, and the parameters at the end, for equality.

# %% tags=["row-E5"]
control = read_losses("undisturbed")
chapter_09_charts.draw_lives(control, noted, killed_in=28)
states = [torch.load(Path(disk.name, f"{name}.pt"))[1] for name in ("undisturbed", "killed")]
pairs = [(state, states[1][name]) for name, state in states[0].items()]
print("losses of the first life: ", noted[:28] == control[:28])
print("losses of the second life:", noted[28:] == control[24:])
print("parameters at the end:    ", all(torch.equal(*pair) for pair in pairs))

# %% [markdown]
# They agree bit for bit: two forked ranks of this notebook on one side, four processes on two hosts with a death in the middle on the other. That works only if everything that the next step depends on is in the checkpoint or follows from the epoch, as the sampler's order does. Add momentum, dropout or a schedule, and their states must be in it too.

# %% [markdown]
# `fresh`, in the folded cell, makes the ranks of every life open a new store, instead of sharing that of their agents. With a shared one, ranks [have read addresses of an earlier life](https://github.com/pytorch/pytorch/issues/135712).

# %% [markdown]
# **Check yourself.** The checkpoint is on the shared disk. What if each host had its own?
#
# <details><summary>Answer</summary>
# Rank 0 saves, on its host only. After a restart the ranks may be numbered differently: a new rank that finds no file begins at epoch 0 while the other one begins at
# epoch 2. And "rank 0 loads and broadcasts" doesn't cure that: if rank 0 is now on the host without a file, it sends epoch 0 to everybody. So save on every node, and let the ranks agree on the newest file that all of them have ([lab 11](../exercises/11_capstone.ipynb)).
# </details>

# %% [markdown]
# ## 6 · A host dies
#
# When a rank dies, its agent is there to tell. When a host dies, agent and rank are gone, and with `--nnodes=2` the other host would wait for it in vain. `--nnodes=1:2` means *one is enough, two are
# better*: the training is **elastic**.

# %% [markdown]
# In step 28 rank 1 stops, says so, and waits for its end. The other new lines handle the start: the first host to arrive may be started on its own. Its rank simply waits, because the agents restart all ranks
# when the second host joins.


# %%
def stall(step):
    if step == 28 and dist.get_rank() == 1:
        print("step 28", flush=True)
        time.sleep(600)


# %%
def a_host_dies():
    dist.init_process_group("gloo")
    if dist.get_world_size() == 1 and not os.path.exists("elastic.pt"):
        time.sleep(600)
    train_on("elastic.pt", accident=stall)
    dist.destroy_process_group()


write_script("a_host_dies.py", *TRAINING, stall, a_host_dies)

# %% [markdown]
# `hosts[1].cut_power()` ends every process on host 1 at once. What becomes of the training?

# %% tags=["row-E5"]
command = "--nnodes=1:2 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=night-8"
with two_hosts(disk.name) as hosts:
    agents = start_agents(hosts, f"{command} a_host_dies.py")
    agents[1].wait_for("step 28")
    cut_s = time.time()
    hosts[1].cut_power()
    agents[0].wait_for()
noted = read_losses("elastic")
chapter_09_pictures.draw_agents(agents, noted, cut={1: cut_s})

# %% [markdown]
# Host 0's agent met with whoever was left, which was nobody: its new rank is rank 0 of 1. It goes on from epoch 2, with all 128 samples of each batch. Does one rank compute what two would have?

# %% tags=["row-E5"]
alone = noted[28:]
gap = max(abs(loss - other) for (_, loss), (_, other) in zip(alone, control[24:], strict=True))
print(f"steps noted: {len(noted)}; alone from step {alone[0][0]} to step {alone[-1][0]}")
print(f"largest difference to the losses of two ranks: about {gap:.0e}")
print("equal to the last bit:", alone == control[24:])
chapter_09_charts.draw_apart(control, noted, alone_from=28)

# %% [markdown]
# Some losses are equal to the last bit, the others differ by less than a millionth, because one rank
# adds 128 numbers in a different order from two ranks, which add 64 each. That's a continuation only because the *global* batch stayed the same. If each rank always took 64 samples, whatever the number of ranks, it would be a different training from here on.

# %% [markdown]
# Our host died politely: the kernel closed its connections, so rank 0 soon ended with an error. A machine without power closes nothing. Then rank 0 waits until the timeout of its group, which
# `init_process_group(timeout=…)` sets, or until the kernel gives up on what it has sent: after [about 15 minutes](https://docs.kernel.org/networking/ip-sysctl.html) by Linux's defaults.

# %% [markdown]
# ### The host of the rendezvous dies
#
# One host was special: the rendezvous' store is on host 0. Here the ranks only wait, and the power of **host 0** is cut. **Predict:** does host 1 go on alone?

# %%
goes_on = predict("host 1 goes on without the host of the rendezvous", ..., choices=(True, False))


# %%
def waiting():
    print("here", flush=True)
    time.sleep(600)


write_script("waiting.py", waiting, imports="import os, sys, time\n")

# %% tags=["row-E5"]
with two_hosts(disk.name) as hosts:
    agents = start_agents(hosts, f"{command} waiting.py")
    for agent in agents:
        agent.wait_for("here")
    cut_s = time.time()
    hosts[0].cut_power()
    agents[1].process.wait(timeout=240)
print(re.findall(r"Rendezvous\w*Error: .*", agents[1].errors)[-1])
goes_on.measured(agents[1].process.returncode == 0)
chapter_09_pictures.draw_agents(agents, cut={0: cut_s})

# %% [markdown]
# The agent on host 1 ends, and takes its healthy rank along: `--nnodes=1:2` protects against the death of every host but one. So the endpoint belongs on a machine that does no training and
# rarely dies. If it dies all the same, somebody has to start the agents again, and that's the work of a scheduler (part 8).

# %% [markdown]
# **Check yourself.** `--nnodes=1:2`, and after an hour host 1 is repaired and runs the command again. What happens?
#
# <details><summary>Answer</summary>
# It comes to the rendezvous, the agent on host 0 notices, stops its rank, and two new ranks go on from the last checkpoint. The same happens at the start when one host comes late.
# </details>

# %% [markdown]
# ### How often to save
#
# Every death throws away the work since the last checkpoint, and every checkpoint costs time. Meta counted 419 unexpected interruptions in 54 days of training Llama 3 on 16,384 GPUs, one in three hours
# ([section 3.3.4 of its report](https://arxiv.org/abs/2407.21783)). So how often should a job save?

# %% [markdown]
# Take a job that fails every four hours on average, at random. A save takes five minutes, and a restart ten. What counts is **goodput**: the share of its time in which the job does work that isn't lost. **Predict:** of 10, 25, 50, 100 and 200 minutes between two saves, which gives the most?

# %%
best_min = predict("of 10, 25, 50, 100 and 200 minutes between saves, the best is", ...)

# %% [markdown]
# Waiting for real failures would take weeks, so the *clock* is a number that each piece of work moves on. All else is real: `one_life` is a process, its checkpoint a file, and its end a SIGKILL, which finds it anywhere between two saves or within one.


# %%
def one_life(checkpoint, interval_min, now_min, dies_at_min):
    done_min = 0
    if checkpoint.exists():
        done_min, _ = json.loads(checkpoint.read_text())
    while done_min < WORK_MIN:
        now_min += interval_min + SAVE_MIN
        if now_min > dies_at_min:
            os.kill(os.getpid(), signal.SIGKILL)
        done_min += interval_min
        part = checkpoint.with_suffix(".part")
        part.write_text(json.dumps([done_min, now_min]))
        part.rename(checkpoint)


# %% [markdown]
# `whole_job` starts one life after the other until the work is done, and returns its minutes and deaths. The times between failures are drawn from an exponential distribution, which is what *at random* means.


# %%
def whole_job(interval_min):
    checkpoint = Path(f"{interval_min}.json")
    draw = random.Random(1)  # the same luck for every interval
    now_min, deaths, died = 0, 0, True
    while died:
        dies_at_min = now_min + draw.expovariate(1 / MTBF_MIN)
        child = os.fork()
        if child == 0:
            one_life(checkpoint, interval_min, now_min, dies_at_min)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        died = status != 0
        deaths += died
        now_min = dies_at_min + RESTART_MIN
    return json.loads(checkpoint.read_text())[1], deaths


# %% [markdown]
# The job needs 8,000 minutes of work. A script runs it, so that what is forked and killed is a small process and not this kernel.


# %%
def all_intervals():
    print(json.dumps([whole_job(interval_min) for interval_min in INTERVALS_MIN]))


SAVE_MIN, RESTART_MIN, MTBF_MIN, WORK_MIN = 5, 10, 240, 8000
INTERVALS_MIN = [10, 25, 50, 100, 200]
FIGURES = f"""import json, os, random, signal, sys
from pathlib import Path
SAVE_MIN, RESTART_MIN, MTBF_MIN, WORK_MIN = {SAVE_MIN}, {RESTART_MIN}, {MTBF_MIN}, {WORK_MIN}
INTERVALS_MIN = {INTERVALS_MIN}
"""

# %%
write_script("lives.py", one_life, whole_job, all_intervals, imports=FIGURES)
ran = subprocess.run([sys.executable, "lives.py"], cwd=disk.name, capture_output=True, check=True)
jobs = json.loads(ran.stdout)
goodputs = [WORK_MIN / total_min for total_min, deaths in jobs]
chapter_09_charts.draw_causes(INTERVALS_MIN, jobs, (SAVE_MIN, RESTART_MIN, WORK_MIN))
best_min.measured(INTERVALS_MIN[goodputs.index(max(goodputs))])

# %% [markdown]
# Save too often, and the saves eat the time; too rarely, and the deaths do. A save that takes *C* minutes in every *T* costs *C* / *T* of the time. A death that comes every *M* minutes costs half an interval on average, which is *T* / 2*M* of the time. The sum is least where both are equal, at *T* = √(2*CM*). That is [Young's formula of 1974](https://doi.org/10.1145/361147.361115).

# %%
chapter_09_charts.draw_goodput(INTERVALS_MIN, goodputs, SAVE_MIN, MTBF_MIN, RESTART_MIN)

# %% [markdown]
# The grey line is the complete model of [Daly, 2006](https://doi.org/10.1016/j.future.2004.11.016), which also counts deaths during saves and restarts. The minimum is flat, so the formula needn't be met exactly; being wrong by a factor of four is what hurts.

# %% [markdown]
# **Write** (4 minutes). Return the seconds between two saves, given the seconds for one save, the hours between failures of **one** machine, and the number of machines.


# %%
def save_interval(save_s, machine_mtbf_h, machines):
    raise NotImplementedError("about 2 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A hundred machines fail a hundred times as often as one.
# </details>
# <details><summary>Hint 2: the code</summary>
# The job's mean time between failures in seconds is <code>machine_mtbf_h * 3600 / machines</code>. Then it's Young's formula.
# </details>

# %%
check(save_interval, **chapter_09.INTERVAL)

# %% [markdown]
# Our answer, folded up:


# %% jupyter={"source_hidden": true}
def save_interval_done(save_s, machine_mtbf_h, machines):
    job_mtbf_s = machine_mtbf_h * 3600 / machines
    return (2 * save_s * job_mtbf_s) ** 0.5


check(save_interval_done, **chapter_09.INTERVAL)

# %% [markdown]
# A save takes a minute here, and a machine fails once in 50 days. Your function is drawn; until it returns a number, ours is.

# %%
chapter_09_charts.draw_intervals(save_interval, save_interval_done, save_s=60, machine_mtbf_h=1200)

# %% [markdown]
# With four times as many machines, the interval is half as long. A save that takes a quarter of the time halves it as well, but then goodput rises. That's why large jobs save [asynchronously](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html): the training waits only for a copy into the host's memory.

# %% [markdown]
# ### Before the run: is everybody healthy?
#
# A machine that computes slowly holds up all others, and one that computes wrongly spoils all. Both are cheaper to find before the first step. So each rank does a small piece of work with a known answer, and the ranks compare.


# %%
def health(sick):
    rank = dist.get_rank()
    numbers = torch.arange(256.0).repeat(256, 1)
    begun_s = time.perf_counter()
    product = numbers @ torch.ones(256, 1)
    if (rank, "slow") == sick:
        time.sleep(1.5)  # a card that has throttled itself
    if (rank, "wrong") == sick:
        product[7] += 1  # a bit that flipped
    took_s = time.perf_counter() - begun_s
    right = bool((product == 255 * 128).all())
    reports = [None] * dist.get_world_size()
    dist.all_gather_object(reports, (took_s, right))
    return reports


# %%
def unfit(reports):
    times_s = sorted(took_s for took_s, _ in reports)
    usual_s = times_s[len(times_s) // 2]
    verdicts = []
    for rank, (took_s, right) in enumerate(reports):
        if not right:
            verdicts.append(f"rank {rank} computes wrongly")
        if took_s > usual_s + 1:
            verdicts.append(f"rank {rank} is slow")
    return verdicts or "all are fit"


checks = []
for sick in [None, (1, "slow"), (2, "wrong")]:
    reports = launch(health, sick, world_size=4, backend="gloo")[0]
    checks.append((sick, reports, unfit(reports)))
chapter_09_charts.draw_health(checks)

# %% [markdown]
# `unfit` calls a rank slow if it needs a whole second more than the usual time. That's generous, because on one computer all ranks share the cores. On a cluster compare by a factor. And on GPUs the same idea has ready tools: [`dcgmi diag`](https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html) tests the cards of a node, and [nccl-tests](https://github.com/NVIDIA/nccl-tests) the paths between them. A scheduler can run them before each job and put an unfit node aside.

# %% [markdown]
# ## 7 · A slow cable
#
# Cables between machines are slower than what is inside them, and that is where communication hurts. [Chapter 06](06_what_communication_costs.ipynb)
# predicted times from a recording and a `Network`. Now the prediction is put to a test: `hosts.slow` sets a **token bucket filter** on the cable, which lets only as many bits through per second as we say.


# %%
def exchange(megabytes):
    dist.all_reduce(torch.ones(int(megabytes * 250_000)))


# %%
sizes, predicted_ms = (1, 2, 4), []
for megabytes in sizes:
    trace = launch(exchange, megabytes, backend="gloo", trace=True).trace
    replay = trace.replay(Network(latency_us=50, gbit_s=0.1))
    predicted_ms.append(max(replay.finish_us) / 1000)
    print(f"{megabytes} MB at 100 Mbit/s, by Network: {predicted_ms[-1]:.1f} ms")
plot_timeline(replay)

# %% [markdown]
# The same `exchange`, measured between the hosts, three times each, by a folded script. Its ranks meet in a bound store, as promised in part 3.


# %% jupyter={"source_hidden": true}
def timed_exchange(megabytes):
    dist.barrier()
    begun = time.perf_counter()
    exchange(megabytes)
    return 1000 * (time.perf_counter() - begun)


def measure():
    address, port, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    store = bound_store(address, port, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    exchange(1)  # the first one opens connections
    print(json.dumps([sorted(timed_exchange(mb) for _ in range(3)) for mb in (1, 2, 4)]))
    dist.barrier()
    dist.destroy_process_group()


# %% tags=["nbval-ignore-output"]
write_script("measure.py", bound_store, exchange, timed_exchange, measure)
measured_ms = [[None] * 3] * 3
with two_hosts(disk.name) as hosts:
    if hosts.form == "namespaces":
        with hosts.slow(mbit_s=100):
            place = f"measure.py {hosts[0].address} {hosts.port}"
            measured_ms = json.loads(hosts.run(f"{place} 0", f"{place} 1")[0])
            cable = json.loads(hosts[0].run("ip -s -j link show eth0"))[0]["stats64"]["tx"]
        for mb, times, predicted in zip(sizes, measured_ms, predicted_ms):
            print(f"{mb} MB: {times[0]:.0f} to {times[2]:.0f} ms", end=", ")
            print(f"median / predicted {times[1] / predicted:.2f}")
        print(f"bytes on the cable / bytes of tensors: {cable['bytes'] / 22e6:.2f}")
    else:
        print("there is no cable between two loopback addresses: nothing was measured")

# %%
chapter_09_charts.draw_cable(sizes, predicted_ms, measured_ms)

# %% [markdown]
# The cable takes somewhat longer than predicted, at all sizes, and a busy machine adds to it. Still, the prediction came from a recording that was made without any cable.

# %% [markdown]
# The cable's own count explains part of the difference: host 0 has sent more bytes than the 22 MB of its tensors, since packets have headers and are acknowledged. (The 22 MB, `22e6` in the cell, are each size three times, and one megabyte to open the connections: 3 × (1 + 2 + 4) + 1.)

# %% [markdown]
# At this speed bytes decide, and they can be counted, which is why this course argues with replays. What a latency costs cannot be seen here: in the recording the smallest message has half a megabyte and takes 40 ms, 800 times the latency.

# %% [markdown]
# *This is the end of the first sitting.*

# %% [markdown]
# ## 8 · One function, four launchers
#
# A cluster is shared, so a **scheduler** hands out its machines, and starts the ranks. It need not change what they do.

# %% [markdown]
# Here is a function that asks `torch.distributed` for its rank and knows nothing else of where it runs. Where checkpoints go is not its affair either: it asks `load` where to begin, and gives every fourth step to `save`.


# %% tags=["part-slurm", "part-ray", "part-agents"]
def train(load, save):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(dim=1))
    inputs, labels = torch.randn(1280, 64), torch.randint(10, (1280,))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)  # it has no state of its own
    for step in range(load(network), 20):
        rows = slice(64 * step + rank, 64 * (step + 1), world_size)
        optimizer.zero_grad()
        nll_loss(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
        if step % 4 == 3:
            save(step + 1, network)
    return nn.utils.parameters_to_vector(network.parameters()).square().sum().item()


# %% [markdown]
# `train` returns the sum of all squared weights. What it returns under `launch`, without checkpoints and without deaths, is the reference for the other launchers:


# %% tags=["part-slurm", "part-ray", "part-agents"]
def load_nothing(network):
    return 0


def save_nothing(step, network):
    pass


for world_size in (1, 2):
    by_launch = launch(train, load_nothing, save_nothing, world_size=world_size, backend="gloo")[0]
    print(f"by launch, world size {world_size}: {by_launch:.4f}")

# %% [markdown]
# One rank gets the same four decimals, because the 64 samples of a step are the same 64, whoever takes them.

# %% [markdown]
# ### Slurm: `srun` starts the ranks
#
# On a **Slurm** cluster you write a *batch script* and hand it over with `sbatch`. Its `#SBATCH` comments say what you want. When the machines are free, Slurm runs the
# script on the first of them.

# %% [markdown]
# Inside the script, `srun` runs a command on all of them. Each process that it starts is called a **task**, and each of our tasks will be one rank. A task learns who it is from **Slurm's own names**, which `torch` does not know. (How it finds its GPU, [`train_ddp.py`](train_ddp.py) shows.)

# %% [markdown]
# `slurm.two_nodes` starts a real Slurm on our two hosts, if its packages are here; if not, `job.log` is what such a job wrote when this chapter was made. The line that it prints says which.

# %% [markdown]
# The script below wants two nodes, two tasks on each, two CPUs for each task, and prints four of Slurm's names: from the script itself, which no `srun` has started, then from the tasks. Mind the quotes: between single quotes a `$` is left as it is. So `names` holds names, not values, and each `bash -c` fills in what it finds where it runs.

# %% tags=["part-slurm", "row-E5"]
WHO = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=2 --error=/dev/null
names='$SLURM_PROCID $SLURM_LOCALID $SLURM_NTASKS ${SLURM_STEP_NUM_TASKS-none}'
bash -c "echo script: $names"
srun bash -c "echo task: $names"
cpus='scontrol show step --oneliner $SLURM_JOB_ID.$SLURM_STEP_ID | grep --only-matching CPUs=.'
srun --exact bash -c "$cpus" | uniq
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --exact bash -c "$cpus" | uniq
echo over
"""

# %% tags=["part-slurm", "row-E5"]
Path(disk.name, "who.sh").write_text(WHO)
with slurm.two_nodes(disk.name) as cluster:
    script, *tasks, short, enough, _ = cluster.submit("who.sh").wait_for("over").splitlines()
chapter_09_pictures.draw_names(script, tasks, (short, enough))
print("CPUs for four tasks:", short, "without SRUN_CPUS_PER_TASK,", enough, "with it")

# %% [markdown]
# The script has `PROCID` 0, `LOCALID` 0 and `NTASKS` 4, as if it were rank 0 of 4. A program that believes this joins a group and waits for three ranks that nobody has started. What tells a task from the
# script is `SLURM_STEP_NUM_TASKS`: only `srun` sets it, for the **step** that it starts.

# %% [markdown]
# The last line of the output is a trap of its own: since version 22.05 `srun` no longer takes [`--cpus-per-task`](https://slurm.schedmd.com/srun.html#OPT_cpus-per-task) over from `sbatch`, so the script hands it on.

# %% [markdown]
# ### A job that is told to end, and a node that dies
#
# A job has a time limit. Slurm can send a signal some time before it: [`--signal=TERM@60`](https://slurm.schedmd.com/sbatch.html#OPT_signal) sends SIGTERM to all tasks a minute before the end (sometimes two). A task can save then, and the script can put the job back into the queue.

# %% [markdown]
# Our ranks look for the signal in `save`, every fourth step, so four steps have to fit into that minute:

# %% tags=["part-slurm", "row-E5"]
NIGHT = """#!/bin/bash
#SBATCH --nodes=1-2 --cpus-per-task=2
#SBATCH --time=10 --signal=TERM@60 --requeue --open-mode=append
export MASTER_ADDR=$(scontrol show hostnames | head --lines=1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 50000))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
echo "life ${SLURM_RESTART_COUNT-0}, nodes: $SLURM_JOB_NUM_NODES"
srun --ntasks-per-node=1 python night.py
status=$?
echo "exit status $status"
[ $status = 75 ] && scontrol requeue $SLURM_JOB_ID
exit $status
"""

# %% [markdown]
# `--nodes=1-2` is Slurm's version of elasticity. With `--open-mode=append` each life writes behind the last one's log instead of over it. `${SLURM_RESTART_COUNT-0}` is the number of restarts, or 0 where Slurm sets none, and `scontrol show hostnames` lists the job's machines, one a line. (`--ntasks-per-node=1` is given to `srun`, not to the job.) Rank 0 runs on the first machine of the job's list, and the port follows from the job's number, so two jobs that share a machine get two different ports.

# %% [markdown]
# 75 is an exit code of our own: *saved, please start me again*. Any other failure ends the job.

# %% [markdown]
# The script's last line matters: Slurm takes [the script's exit status](https://slurm.schedmd.com/job_exit_code.html) for the job's. If the script ended with
# `[ $status = 75 ] && ...`, that test would be its status, so a training that had succeeded would count as FAILED, and no job with `--dependency=afterok` would start.

# %% [markdown]
# When a **node** fails, Slurm puts the job back into the queue by itself, which is what `--requeue` allows.

# %% [markdown]
# `save_file` ends all ranks together. One of them may hear the signal a moment before the others, so they ask each other. (`accident`, which it calls, comes two cells further on.)


# %% tags=["part-slurm", "part-agents", "row-E5"]
def load_file(network):
    step, state = torch.load("night.pt") if os.path.exists("night.pt") else (0, {})
    network.load_state_dict(state, strict=bool(step))
    return step


# %% tags=["part-slurm", "row-E5"]
def save_file(step, network):
    if dist.get_rank() == 0:
        torch.save((step, network.state_dict()), "night.part")
        os.rename("night.part", "night.pt")
    accident(step)
    signals = torch.tensor(len(SIGNALS))
    dist.all_reduce(signals)
    if signals:
        os._exit(75)


SIGNALS = []  # those that came


# %% tags=["part-slurm", "row-E5"]
def under_slurm():
    rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_STEP_NUM_TASKS"])
    signal.signal(signal.SIGTERM, lambda *_: SIGNALS.append("to end"))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    weights = train(load_file, save_file)
    if rank == 0:
        print(f"20 steps by {world_size} ranks: {weights:.4f}", flush=True)
    dist.destroy_process_group()


# %% [markdown]
# There will be two accidents, each at a fixed step so that every run is the same. In its first life, after step 8, the job waits for SIGTERM. We do not wait nine minutes but send it ourselves, by `scancel`, to the
# tasks as Slurm does.

# %% [markdown]
# In its second life, after step 16, rank 1 waits for the end of its node.


# %% tags=["part-slurm"]
def accident(step):
    life = os.environ.get("SLURM_RESTART_COUNT", "0")
    last = dist.get_rank() == dist.get_world_size() - 1
    if last and (life, step) in [("0", 8), ("1", 16)]:
        print("saved after step", step, flush=True)
    while life == "0" and step == 8 and not SIGNALS:
        time.sleep(0.05)
    if last and life == "1" and step == 16:
        time.sleep(600)


# %% tags=["part-slurm"]
IN_THE_NIGHT = train, load_file, save_file, accident, under_slurm
write_script("night.py", *IN_THE_NIGHT, imports=f"{IMPORTS}SIGNALS = []\n")
_ = Path(disk.name, "night.sh").write_text(NIGHT)

# %% [markdown]
# **Predict.** On how many nodes does the job run in its first, its second and its third life?

# %% tags=["part-slurm", "part-ray", "part-agents"]
on_nodes = predict("nodes in the first, second and third life", ..., count=3)


# %% tags=["part-slurm", "row-E5"]
def run_night():
    Path(disk.name, "night.pt").unlink(missing_ok=True)
    with slurm.two_nodes(disk.name) as cluster:
        job = cluster.submit("night.sh")
        job.wait_for("saved after step 8")
        cluster.run(f"scancel --signal=TERM {job.number}")
        job.wait_for("saved after step 16")
        cluster.nodes[1].cut_power()
        log = job.wait_for("exit status 0")
    lines = r"^life.*|^saved.*|^exit status (?:75|0)$|Node failure on .*|^20 steps.*"
    events = re.findall(lines, log, re.MULTILINE)
    return list(dict.fromkeys(events))


# %% tags=["part-slurm", "row-E5"]
night = run_night()
print(*night, sep="\n")
on_nodes.measured([int(nodes) for nodes in re.findall(r"nodes: (\d)", "".join(night))])
chapter_09_charts.draw_night(night)

# %% [markdown]
# Three lives, one training. The signal came, both ranks left after step 8 with their work on the disk, and the job went back into the queue by its own wish.

# %% [markdown]
# Then a node died, and its daemon did not answer any more. After ten seconds here ([five minutes with Slurm's defaults](https://slurm.schedmd.com/slurm.conf.html#OPT_SlurmdTimeout)) Slurm took the node for *down* and queued the job again. In its third life there was one node, so one rank did the last four steps, and the weights are `launch`'s.

# %% [markdown]
# The queue is also the cure for the death of the rendezvous' host: a job that starts anew chooses a new first machine.

# %% [markdown]
# **Check yourself.** Why do the ranks exit with 75 and let the *script* requeue the job, instead of calling `scontrol` themselves?
#
# <details><summary>Answer</summary>
# They could. But then each rank would do it, and a requeue ends the other ranks wherever they are. Exit codes are collected by <code>srun</code> instead, once all ranks have left.
# </details>

# %% [markdown]
# ### `srun` starts agents, and they start the ranks
#
# You can join both: `srun` starts one `torchrun` on each machine. Then dead ranks are the agents' affair, and dead machines Slurm's. This is a whole script; with GPUs write `--nproc-per-node=gpu`.

# %% [markdown]
# Three
# settings are easily forgotten. Without `--ntasks-per-node=1` each task would be an agent. Without `--max-restarts` no rank is ever restarted, since 0 is the default ([source](https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py)). And `TORCH_DISABLE_SHARE_RDZV_TCP_STORE` gives each
# life a new store, as `fresh` did in part 5.

# %% tags=["part-slurm", "part-agents", "row-E5"]
AGENTS = """#!/bin/bash
#SBATCH --nodes=2 --cpus-per-task=2 --error=agents.err
export MASTER_ADDR=$(scontrol show hostnames | head --lines=1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 50000))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
srun --nodes=$SLURM_NNODES --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES \\
    --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID \\
    --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT agents.py
"""

# %% [markdown]
# The ranks run `train`, too. Once, after step 12, rank 1 is killed.


# %% jupyter={"source_hidden": true} tags=["part-slurm", "part-agents", "row-E5"]
def save_and_die(step, network):
    if dist.get_rank() == 0:
        torch.save((step, network.state_dict()), "night.part")
        os.rename("night.part", "night.pt")
    dist.barrier()
    if step == 12 and dist.get_rank() == 1 and not os.path.exists("died"):
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)


# %% jupyter={"source_hidden": true} tags=["part-slurm", "part-agents", "row-E5"]
def under_an_agent():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        saved_step = torch.load("night.pt")[0] if os.path.exists("night.pt") else 0
        print("a life begins at step", saved_step, flush=True)
    weights = train(load_file, save_and_die)
    if rank == 0:
        print(f"20 steps by {world_size} ranks: {weights:.4f}", flush=True)
    dist.destroy_process_group()


# %% tags=["part-slurm", "part-agents", "row-E5"]
write_script("agents.py", train, load_file, save_and_die, under_an_agent)
Path(disk.name, "agents.sh").write_text(AGENTS)
for name in ("night.pt", "died"):
    Path(disk.name, name).unlink(missing_ok=True)
with slurm.two_nodes(disk.name) as cluster:
    log = cluster.submit("agents.sh").wait_for("20 steps by")
chapter_09_charts.draw_restarted(log, killed_after=12)
print(log, end="")

# %% [markdown]
# The agents noticed the death, met again, and their ranks went on from the file: `launch`'s weights once more, and Slurm never heard of it.

# %% [markdown]
# (`agents.err` has what the agents said. Our hosts
# share a name, so our small Slurm tells each task its host's address, and which of the two opens the rendezvous. Real hosts find that out by their names.)

# %% [markdown]
# ### Ray Train: an engine starts the ranks
#
# **Ray** keeps processes of its own on every machine, and places work on them. Its part for training is *Ray Train*. A `TorchTrainer` takes our function, starts a worker for each rank,
# makes the process group, and calls it.

# %% [markdown]
# These lines are what you write on a real cluster. `FailureConfig(max_failures=1)` forgives one death, and `STRICT_SPREAD` refuses to put both ranks on one node.


# %% tags=["part-ray", "row-E5"]
def under_ray(folder):
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        lambda: train(load_from_ray, save_to_ray),
        scaling_config=ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD"),
        run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=1)),
    )
    return trainer.fit().return_value


# %% [markdown]
# Ray Train also keeps checkpoints: what rank 0 gives to `ray.train.report`, the workers of the next life get from `get_checkpoint`. All ranks have to call `report`. The file `lives` is ours, not Ray's: in it rank 0 notes where each life begins.


# %% tags=["part-ray", "row-E5"]
def load_from_ray(network):
    from ray.train import get_checkpoint

    step, checkpoint = 0, get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as kept:
            step, state = torch.load(f"{kept}/state.pt")
        network.load_state_dict(state)
    if dist.get_rank() == 0:
        with open(f"{os.environ['RAY_TMPDIR']}/lives", "a") as lives:
            lives.write(f"a life from step {step}\n")
    return step


# %% [markdown]
# Rank 1 kills itself in its first life, when step 12 is done and not yet reported.


# %% tags=["part-ray", "row-E5"]
def save_to_ray(step, network):
    from ray.train import Checkpoint, report

    lives = Path(os.environ["RAY_TMPDIR"], "lives").read_text().splitlines()
    if step == 12 and dist.get_rank() == 1 and len(lives) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if dist.get_rank() == 0:
            torch.save((step, network.state_dict()), f"{folder}/state.pt")
            checkpoint = Checkpoint.from_directory(folder)
        report({"step": step}, checkpoint=checkpoint)


# %% [markdown]
# The folded cells make the cluster: `Cluster` is Ray's tool for tests, which plays two nodes on one machine.

# %% [markdown]
# Ray listens on many ports, and by
# default on the machine's own address; the settings keep it on loopback, in one folder, and silent: no usage reports, no dashboard. One port is beyond these settings: that of torch's store, which rank 0 opens on
# every interface, as it does under `torchrun`.


# %% jupyter={"source_hidden": true} tags=["part-ray"]
def on_a_cluster():
    import ray
    from ray.cluster_utils import Cluster

    folder, cluster = sys.argv[1], Cluster()
    try:
        for _ in range(2):  # a cluster, as it were: two nodes of one CPU
            limits = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
            quiet = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
            cluster.add_node(node_ip_address="127.0.0.1", **limits, **quiet)
        ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
        print(len({node["NodeID"] for node in ray.nodes()}), "nodes of Ray")
        weights = under_ray(folder)
        print(open(f"{folder}/lives").read() + f"20 steps: {weights:.4f}")
    finally:
        ray.shutdown()
        cluster.shutdown()


# %% jupyter={"source_hidden": true} tags=["part-ray"]
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its effect on Linux: loopback will do
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_prestart_worker_first_driver": "0",  # Pythons for tasks that never come
}
FUNCTIONS = train, load_from_ray, save_to_ray, under_ray, on_a_cluster


def run_ray(folder, timeout_s=270):
    """Ray's script on a host of its own, and what it printed."""
    write_script(f"{folder}/job.py", *FUNCTIONS)
    # Each of Ray's twelve processes would import this for a second, and none needs it.
    Path(folder, "rfc3987_syntax.py").write_text("raise ImportError\n")
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    env = RAY_SETTINGS | {"RAY_TMPDIR": folder, "PYTHONPATH": paths}
    with two_hosts(folder) as hosts:
        printed = hosts[0].run(f"job.py {folder}", env, timeout_s=timeout_s)
    return re.sub(r"^.*\(raylet\).*\n", "", printed, flags=re.MULTILINE)


# %% [markdown]
# By the time rank 1 dies, both ranks will have reported steps 4 and 8, but step 12 at most rank 0. The second life begins at step 4 or 8: that varies from run to run, hence the word *about*.

# %% tags=["part-ray", "row-E5"]
if importlib.util.find_spec("ray") is None:
    print("Ray is not installed; this brings it: pip install 'ddp-course[cluster]' ray==2.60.0")
else:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: it will hold sockets
        printed = run_ray(folder)
    log = re.sub(r"step (?=[1-9])", "step about ", printed)
    print(log, end="")
    chapter_09_charts.draw_restarted(log, killed_after=12, vague=True)

# %% [markdown]
# That's the same function for the fourth time, now on two nodes and through a death, and it ends with the same weights. A checkpoint counts only once **all** ranks have reported it, so the second life can't begin at step 12. Whether it is 8 or 4 is a matter of luck: `report` hands the checkpoint over and returns, and the
# last one may not be registered yet when a worker dies.

# %% [markdown]
# All that is lost is time. And time is Ray's price: before the first step it starts processes of its own, for placing, watching and cleaning up. For 20
# steps that is absurd; for a night on 64 machines it is nothing.

# %% [markdown]
# **On a real cluster** ([Ray's page](https://docs.ray.io/en/latest/train/getting-started-pytorch.html)) `Cluster` goes, and Ray is started on each machine before (`ray start --head` on the first, `ray start --address=HEAD:6379` on the others) or by a cloud's or Kubernetes's own Ray operator.
# `storage_path` must be a place that all nodes reach, `use_gpu=True` gives each rank a GPU and takes NCCL, and `prepare_data_loader` deals the samples.

# %% [markdown]
# Ray's ports are then open to the whole network, and [whoever reaches them can run code](https://docs.ray.io/en/latest/ray-security/index.html). So keep a cluster behind a firewall.

# %% [markdown]
# **Check yourself.** Slurm, Ray, `torchrun`, `launch`: which of them averages the gradients?
#
# <details><summary>Answer</summary>
# None. They start processes and tell each its rank. What is sent during training is DDP's affair, which is why one function runs under all four.
# </details>

# %% [markdown]
# ### The pager, part 2
#
# The job of chapter 08's last cell runs again. Two nights later a scheduler needs the job's nodes for something else, and requeues the job. Since then it doesn't start: all four ranks say that the checkpoint cannot be read. Below are the scheduler's log of that night, and the disk.

# %% [markdown]
# **Predict.** Whose fault is it: the disk's, the scheduler's, the script's? The capstone, [chapter 11](11_capstone.ipynb), answers.

# %%
incident = Path("incident")
print(*re.findall("Wed .*", (incident / "scheduler.log").read_text()), sep="\n")
print((incident / "wednesday/ls.txt").read_text())
at_fault = "?"  # the disk, the scheduler, or the script

# %% [markdown] tags=["row-B9"]
# ## 9 · Where to go next
#
# You now know what is below all of these:
#
# | when | look at | it gives you | it does not spare you |
# | --- | --- | --- | --- |
# | the model or its optimiser does not fit on one card | FSDP2, `fully_shard` ([chapter 13](13_hold_less.ipynb)) | parameters, gradients and optimiser states in shards, gathered when needed | more communication than DDP: predict it first |
# | one layer is too large, or cards are joined very fast | tensor parallel, `parallelize_module` ([chapter 17](17_cut_the_layer.ipynb)) | matrices cut across the cards of a node | collectives within every layer |
# | the model has many equal layers and the cables are slow | pipeline parallel, `torch.distributed.pipelining` ([chapter 18](18_cut_the_stack.ipynb)) | few bytes between stages | idle time at both ends of a batch |
# | a cluster that starts, watches and retries for you | Ray Train | agents, restarts, storage | knowing what a rank is |
# | a training loop that you do not want to write | Lightning | loops, logging, checkpoints, DDP by a flag | reading it when numbers disagree |
# | a dead rank must not stop the others | [torchft](https://github.com/meta-pytorch/torchft) | DDP whose living replicas go on, and take a repaired one back | steps with fewer samples |
# | your loop, on whatever machine there is | Accelerate | a few lines around your own loop | the choices behind them |

# %% [markdown]
# ## What you know now
#
# Two hosts need an address to meet at and an interface to talk over, and these are two settings. A store listens to everybody unless it is bound. `torchrun` counts, sets
# variables and starts; with a rendezvous it also starts anew, and a checkpoint makes that a continuation, to the last bit.

# %% [markdown]
# An elastic training outlives a host, but not the one that holds the rendezvous;
# then a scheduler starts it again, and the checkpoint is all that counts. Bytes predict a cable.

# %% [markdown]
# Before you go on, your predictions:

# %%
disk.cleanup()
predict()

# %% [markdown]
# Practise in [lab 09](../exercises/09_many_machines.ipynb).
#
# Next, another framework on top of all this: [10 · Keras 3 on DDP](10_keras.ipynb).
