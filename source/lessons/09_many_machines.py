# %% [markdown]
# # 09 · Many machines
#
# **What changes when the ranks live on two machines: who finds whom, who else can come in, and what happens when one dies?**
#
# In 95 minutes you will be able to
#
# 1. start one training on two hosts, by hand and with `torchrun`, and read why it does not start;
# 2. say who can reach your training, and let fewer;
# 3. kill a rank and have the training go on as if nothing had happened, to the last bit;
# 4. predict a collective on a slow cable, and hand the same function to Slurm and Ray.
#
# **Hardware:** any computer. As root on Linux (also in a container) you get two real hosts, elsewhere two addresses of one machine; a line says which.
# **Before:** [08 · It hangs, lies or dies](08_it_hangs_lies_or_dies.ipynb). **Next:** [10 · Keras 3 on DDP](10_keras.ipynb).
# **Lab:** [09 · Many machines](../exercises/09_many_machines.ipynb).

# %%
import argparse
import importlib.util
import inspect
import json
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course_utils import Network, digits, launch, show
from course_utils.machines.hosts import two_hosts
from course_utils.pictures.style import rank_style

# %% [markdown]
# ## 1 · Two hosts in one computer
#
# One of our articles takes two machines with a card each, and finds their addresses with `ifconfig`. You have one machine, so `two_hosts` makes
# two of it. Linux can give a process a **network namespace**: interfaces, addresses and ports of its own, as a container has. Two of
# them, joined by a virtual cable, are two hosts for all that `torch.distributed` can see. Today's command for the address is `ip`.

# %% tags=["nbval-ignore-output", "row-E1"]
tools = {"ip": "ip -4 -brief address", "ifconfig": "ifconfig -a"}
addresses = next((tools[tool] for tool in tools if shutil.which(tool)), "uname -n")
with two_hosts() as hosts:
    time.sleep(1)  # a cable that was just plugged in is not up at once
    for host in hosts:
        print(f"host {host.number}, known to the other one as {host.address}")
        print(host.run(addresses))

# %% [markdown]
# With namespaces each host shows three interfaces: `lo`, on which it talks to itself, `eth0`, the cable to the other host, and `eth1`, a second network
# to the world outside. Without root you see your machine's own interfaces twice, and the hosts are 127.0.0.1 and 127.0.0.2: all that follows runs, but
# nothing separates them. Where that matters, the text says so.
#
# At the end of the `with` block both hosts are gone, with every process on them. What they share is a disk, as the machines of many clusters do: a folder,
# with the digits in it.

# %%
disk = tempfile.TemporaryDirectory()
training = digits()
torch.save((training.data, training.targets), Path(disk.name, "digits.pt"))

# %% [markdown]
# ## 2 · One script per machine, by hand
#
# This is the article's training: Linear, ReLU, Linear, LogSoftmax, the NLL loss, SGD with rate 0.01, batches of 64. It runs for 100 epochs there; here that is a
# parameter. As the loss of an epoch it prints *the sum of batch loss × batch size, divided by the number of the sampler's samples*; after it we print a second
# figure, for which the ranks add up sums and counts.


# %%
def make_model():
    torch.manual_seed(0)
    layers = nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(dim=1)
    return DistributedDataParallel(nn.Sequential(nn.Flatten(), *layers))


def train(epochs):
    data = TensorDataset(*torch.load("digits.pt"))
    sampler = DistributedSampler(data)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        sums = torch.zeros(2, dtype=torch.float64)  # loss, samples
        for images, labels in DataLoader(data, batch_size=64, sampler=sampler):
            loss = nll_loss(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sums += torch.tensor([loss.item() * len(labels), len(labels)])
        local = sums[0] / sums[1]
        dist.all_reduce(sums)
        print(f"epoch {epoch}: as in the article {local:.3f}, all {sums[0] / sums[1]:.3f}")


# %% [markdown]
# `by_hand` joins as the article does: it is told the place, `tcp://ADDRESS:23456`, and its own rank. `write_script`, folded away, puts functions of this notebook
# into a file on the disk, as in chapter 02; the last one is called.


# %% jupyter={"source_hidden": true}
IMPORTS = """
import argparse, json, os, signal, socket, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
"""


def write_script(name, *functions):
    """Write functions of this notebook into a script on the disk that calls the last one."""
    body = "\n\n".join(inspect.getsource(function) for function in functions)
    call = (
        f'\n\nif __name__ == "__main__":\n    {functions[-1].__name__}()\n    sys.stdout.flush()\n'
    )
    end = "    os._exit(0)  # at once: gloo's threads do not like to see Python go\n"
    Path(disk.name, name).write_text(IMPORTS + body + call + end)


# %%
def by_hand():
    place, rank, epochs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    train(epochs)
    dist.destroy_process_group()


write_script("by_hand.py", make_model, train, by_hand)

# %% [markdown]
# `hosts.run` starts the first command on host 0 and the second on host 1, as you would in two terminals, and waits for both.
#
# **Predict.** Two machines train one model. Will the article's figure be the same on both?

# %% tags=["row-E2", "row-E3", "row-E4", "row-E5"]
predicted_same = "?"

with two_hosts(disk.name) as hosts:
    place = f"tcp://{hosts[0].address}:{hosts.port}"
    outputs = hosts.run(f"by_hand.py {place} 0 3", f"by_hand.py {place} 1 3")
print("predicted:", predicted_same)
for number, output in enumerate(outputs):
    print(f"host {number}:\n{output}", end="")

# %% [markdown]
# Two scripts that share an address became one training. The article's figure differs: 2.153 on one host, 2.164 on the other. It is each rank's mean over
# **its own** half of the data. Reading it off one screen, as people do, you see half of the truth. Reduce sum and count, divide last: 2.159 on both.
#
# ### The address that leads nowhere
#
# We kept something from you: `two_hosts` sets `GLOO_SOCKET_IFNAME` in the environment of its programs, to the interface of the cable. An administrator
# does that for a cluster, or nobody does. Here nobody does. **Predict:** which address does a rank leave for the others to find it?


# %%
def by_host_name():
    del os.environ["GLOO_SOCKET_IFNAME"]
    by_hand()


write_script("by_host_name.py", make_model, train, by_hand, by_host_name)

# %% tags=["nbval-ignore-output"]
predicted_address = "?"

with two_hosts(disk.name) as hosts:
    place = f"tcp://{hosts[0].address}:{hosts.port}"
    try:
        hosts.run(f"by_host_name.py {place} 0 1", f"by_host_name.py {place} 1 1")
        print("they met: on one machine, every address of a host leads to it")
    except RuntimeError as error:
        print("\n".join(re.findall(r"RuntimeError: .*|remote=\S*", str(error))[-1:]))

# %% [markdown]
# With two hosts it fails, as many first runs on a cluster do. Read the end: *connection refused*, `remote=[127.0.0.1]`. Both ranks found the
# store at `tcp://…`; there each left the address that its **host name** resolves to, and that was 127.0.0.1: "here". Each then knocked at its own door.
#
# The place of meeting and the way the tensors travel are two things. `GLOO_SOCKET_IFNAME`, and for GPUs `NCCL_SOCKET_IFNAME`, name the interface for the
# second. (On InfiniBand, NCCL only makes acquaintance over that interface; the tensors take the cards that `NCCL_IB_HCA` names.)
#
# **Check yourself.** Why did this never happen in chapters 00 to 08?
#
# <details><summary>Answer</summary>
# All ranks were on one host, where 127.0.0.1 leads to everybody; and <code>launch</code> names the loopback interface itself.
# </details>
#
# ## 3 · Who else can come in?
#
# Rank 0 serves the store of `tcp://`, and as the article says it listens on 0.0.0.0: on **all** addresses of its host. Who can reach it there?
# Below host 0 opens two stores: the usual one, and one on a socket that is **bound** to the address on the cable. Both hold a learning rate.


# %%
def bound_store(address, port, is_master):
    if not is_master:
        return dist.TCPStore(address, port)
    listener = socket.create_server((address, port))  # this address and no other
    options = {"wait_for_workers": False, "master_listen_fd": listener.detach()}
    return dist.TCPStore(address, port, is_master=True, **options)


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
# And here is a stranger: another program, of another user, who comes over the *other* network and knows the port, which many tutorials print.


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


write_script("two_stores.py", bound_store, two_stores)
write_script("stranger.py", stranger)

# %% [markdown]
# `ss -ltn` lists who listens on a host. **Predict:** which of the two learning rates will host 0 find changed, by somebody without any password?


# %% jupyter={"source_hidden": true}
def listening(hosts):
    """List who listens on the first host, with its address and port as in this chapter's text."""
    if not shutil.which("ss"):
        return "(no ss here)"
    lines = hosts[0].run("ss -Hltn").replace("0.0.0.0:", "*:").splitlines()
    sockets = [line.split()[3].replace(hosts[0].address, "ADDRESS") for line in lines]
    for number in range(2):
        name = str(23456 + number)
        sockets = [s.replace(f":{hosts.port + number}", f":{name} ") for s in sockets]
    return "\n".join(sorted(f"listening on {s}" for s in sockets if s.endswith(" ")))


# %% tags=["row-E2"]
predicted_changed = "?"

with two_hosts(disk.name) as hosts:
    served = hosts[0].start(f"two_stores.py {hosts[0].address} {hosts.port}")
    served.wait_for("ready")
    print(listening(hosts))
    print("the stranger:", hosts[1].run(f"stranger.py {hosts[0].outside} {hosts.port}"))
    print("predicted:", predicted_changed)
    print(served.wait_for().removeprefix("ready\n"))

# %% [markdown]
# The star means every address, `eth1` to the world outside included. The stranger wrote 1000 where 0.01 had been, and nobody asked who it was: a store has no
# password. Through the same store ranks are told where to send their tensors. The bound store does not exist for the outside: *connection refused*. (Where
# loopback stands in for the networks, "outside" is 127.0.0.11; on a Mac, which has 127.0.0.1 only, the difference cannot be shown.)
#
# So bind the store to the cluster's own network, as `bound_store` does, and hand it over with `init_process_group(store=…)`, as part 6 will. Or have a
# firewall between the cluster and the world: you need it for `torchrun`, whose store listens everywhere too.
#
# **Check yourself.** Would an unusual port number help?
#
# <details><summary>Answer</summary>
# Against a stranger hardly: programs try all ports in turn. Against an honest neighbour's training on the same port it does help.
# </details>
#
# ## 4 · From `-nr` to `torchrun`
#
# With more cards per machine, nobody wants to start each rank by hand. Another article's script is started once **per machine** and is told how many machines there
# are, how many cards each has, and which machine this is. It then computes its ranks and spawns them; they meet by `env://`.


# %%
def one_card(gpu, args):
    rank = args.node_rank * args.gpus + gpu
    world_size = args.nodes * args.gpus
    dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
    total = torch.tensor(rank + 1)
    dist.all_reduce(total)
    print(f"node {args.node_rank}, card {gpu}: rank {rank} of {world_size}, sum {total}\n", end="")
    dist.destroy_process_group()


def per_machine():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", "--nodes", type=int, default=1)
    parser.add_argument("-g", "--gpus", type=int, default=1)
    parser.add_argument("-nr", "--node-rank", type=int, default=0)
    parser.add_argument("--master", nargs=2)
    args = parser.parse_args()
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = args.master
    mp.spawn(one_card, args=(args,), nprocs=args.gpus)


write_script("per_machine.py", one_card, per_machine)

# %% [markdown]
# **Predict.** Two machines with two cards each: which rank has card 0 of node 1?

# %% tags=["row-B6", "row-B7"]
predicted_rank = "?"


def print_sorted(outputs):
    print("\n".join(sorted("".join(outputs).splitlines())))


with two_hosts(disk.name) as hosts:
    command = f"per_machine.py -n 2 -g 2 --master {hosts[0].address} {hosts.port}"
    print_sorted(hosts.run(f"{command} -nr 0", f"{command} -nr 1"))
print("card 0 of node 1, predicted: rank", predicted_rank)

# %% [markdown]
# Rank 2 = 1 × 2 + 0. Parser, formula and `spawn` are what `torchrun` is for. It runs on every machine, as an **agent**: it counts, sets
# the variables, starts the ranks, watches them. Its simplest form has a static master: an address, a port, and each machine's number.


# %%
def under_torchrun():
    dist.init_process_group("gloo")
    total = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(total)
    place = f"node {os.environ['GROUP_RANK']}, card {os.environ['LOCAL_RANK']}"
    size = dist.get_world_size()
    print(f"{place}: rank {dist.get_rank()} of {size}, sum {total}\n", end="")
    dist.destroy_process_group()


write_script("under_torchrun.py", under_torchrun)

with two_hosts(disk.name) as hosts:
    command = "torchrun --nnodes=2 --nproc-per-node=2 "
    command += f"--master-addr={hosts[0].address} --master-port={hosts.port}"
    print_sorted(hosts.run(*[f"{command} --node-rank={n} under_torchrun.py" for n in (0, 1)]))

# %% [markdown]
# The same four lines, and no arithmetic of ours. (`python -m torch.distributed.launch`, in older articles, is the deprecated form of this command.
# [Chapter 02](02_process_groups.ipynb) has all forms, and the table of backends by device: with GPUs write `nccl` here, and take the card by `LOCAL_RANK`.)
#
# What remains is `--node-rank`: a number that somebody must give to every machine, no two the same.
#
# ## 5 · A rank dies
#
# The second way to meet is a **rendezvous**. All machines get the same command, with the address of one of them. Whoever comes is given a number, and when the crew changes, all
# meet again. So the agents can start the ranks anew, and nobody has to be there at night.
#
# Starting anew is not continuing. For that the function saves a **checkpoint** after each epoch (chapter 04), and looks for one when it begins. Rank 0 also
# notes the mean loss of every step.


# %%
def train_on(checkpoint, epochs=4, dies_at=None):
    model, data = make_model(), TensorDataset(*torch.load("digits.pt"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler, begin = DistributedSampler(data), 0
    if os.path.exists(checkpoint):
        begin, of_model, of_optimizer = torch.load(checkpoint)
        model.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    for epoch in range(begin, epochs):
        sampler.set_epoch(epoch)
        for step, (images, labels) in enumerate(loader, epoch * len(loader)):
            loss = nll_loss(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            note(f"{checkpoint}.losses", step, loss, dies_at)
        if dist.get_rank() == 0:
            state = epoch + 1, model.state_dict(), optimizer.state_dict()
            torch.save(state, f"{checkpoint}.part")
            os.rename(f"{checkpoint}.part", checkpoint)  # complete, or not there


# %% [markdown]
# `note` writes the loss down. It also has rank 1 shoot itself in step 28 of 48, with the signal that the kernel sends when memory runs out: SIGKILL, no exception, no
# goodbye. Only in its first life: `TORCHELASTIC_RESTART_COUNT` says how often the agent has started it anew.


# %%
def note(file, step, loss, dies_at):
    if step == dies_at and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    mean = loss.detach() / 2
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        with open(file, "a") as losses:
            losses.write(f"{step} {mean.item()}\n")


def elastic():
    dist.init_process_group("gloo")
    train_on("killed.pt", dies_at=28)
    dist.destroy_process_group()


write_script("elastic.py", make_model, note, train_on, elastic)

# %% [markdown]
# First the control: the same `train_on`, undisturbed, from this notebook with `launch`.


# %%
def undisturbed():
    os.chdir(disk.name)
    train_on("undisturbed.pt")


def read_losses(name):
    lines = Path(disk.name, f"{name}.pt.losses").read_text().splitlines()
    return [(int(step), float(loss)) for step, loss in map(str.split, lines)]


launch(undisturbed, backend="gloo")
print("steps noted:", len(read_losses("undisturbed")))

# %% [markdown]
# Now on two hosts. Only host 0 is told to open the rendezvous (`is_host=1`): real hosts find that out by comparing their name with the endpoint's, and ours share a name.
# `--local-addr` is the address under which an agent is known to the others.
#
# **Predict.** An epoch has 12 steps. Rank 1 dies in step 28. How many steps will have been noted in the end, 48 or more?

# %% tags=["row-E5"]
predicted_steps = "?"

command = "torchrun --nnodes=2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d"
fresh = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # a new store for every life, see below
with two_hosts(disk.name) as hosts:
    agents = []
    for host in hosts:
        meet = f"--rdzv-endpoint={hosts[0].address}:{hosts.port} --local-addr={host.address}"
        role = f"--rdzv-conf=is_host={1 - host.number}"
        agents.append(host.start(f"{command} {meet} {role} elastic.py", fresh))
    for agent in agents:
        agent.wait_for()
print("predicted:", predicted_steps)
print("measured: ", len(read_losses("killed")))
print("host 1:", re.search(r"failed \(exitcode: -9\) local_rank: 0", agents[1].errors)[0])

# %% [markdown]
# Read it aloud. *exitcode: −9*: a signal ended the rank, number 9, SIGKILL. *local_rank: 0*: the card, not the rank. That line stands on **host 1's** screen. Host 0's
# shows, if anything, rank 0's traceback, of a connection reset by its peer: an echo. On a cluster look for the agent that reports a signal.
#
# 52 steps, and we did nothing to restart it. Rank 0 had lost its partner; the agents stopped what was left, met again, and started two new ranks, which found the checkpoint of step
# 24. The steps 24 to 27 were done twice.

# %% tags=["row-E5"]
whole, noted = read_losses("undisturbed"), read_losses("killed")
first_life, second_life = noted[:28], noted[28:]
figure, axes = plt.subplots(figsize=(8.4, 3.6), layout="constrained")
axes.plot(*zip(*whole), color="#bbbbbb", lw=7, solid_capstyle="round", label="undisturbed")
for life, losses in enumerate([first_life, second_life]):
    style = rank_style(life) | {"linestyle": "none", "markersize": (7, 3)[life]}
    axes.plot(*zip(*losses), label=["until the kill", "after the restart"][life], **style)
axes.axvline(27.5, color="black", ls=":", lw=1)
axes.annotate("rank 1 is killed", (27.5, whole[4][1]), (28.2, whole[4][1]))
axes.set(xlabel="step", ylabel="mean loss of both ranks", xticks=range(0, 49, 12))
axes.legend()
axes.spines[["top", "right"]].set_visible(False)
show(figure, "Both lives lie on the undisturbed curve; steps 24 to 27 were done twice.")

# %% [markdown]
# Lies on, or lies near? We compare every loss, and the parameters at the end, for equality.

# %% tags=["row-E5"]
states = [torch.load(Path(disk.name, f"{name}.pt"))[1] for name in ("undisturbed", "killed")]
pairs = [(state, states[1][name]) for name, state in states[0].items()]
print("losses of the first life: ", first_life == whole[:28])
print("losses of the second life:", second_life == whole[24:])
print("parameters at the end:    ", all(torch.equal(*pair) for pair in pairs))

# %% [markdown]
# Bit for bit: two forked ranks in this notebook, and four processes on two hosts with a death in the middle. It needs everything that the next step depends
# on to be in the checkpoint or to follow from the epoch, like the sampler's order. Add momentum, dropout or a schedule, and their states must be in it too.
#
# `fresh` is there for a reason. By default the agents keep one store for all lives; new ranks then sometimes read an address that a dead rank left there, and knock
# in vain. We saw it happen in some runs with torch 2.15; it [has been reported](https://github.com/pytorch/pytorch/issues/135712) before.
#
# **Check yourself.** The checkpoint is on the shared disk. What if each host had its own?
#
# <details><summary>Answer</summary>
# Rank 0 saves, on its host only. After a restart the ranks may be numbered otherwise: a new rank that finds no file begins at epoch 0 while the other one begins at
# epoch 2. So let rank 0 load and broadcast, or save on every node.
# </details>
#
# ## 6 · A slow cable
#
# Cables between machines are slower than what is inside them, and that is where communication hurts. [Chapter 06](06_what_communication_costs.ipynb)
# predicted times from a recording and a `Network`. Now the prediction is put to a test: `hosts.slow` sets a **token bucket filter** on the cable, which lets so many
# bits through per second.
#
# **Predict.** An all-reduce of 4 MB between two ranks at 100 Mbit/s: how many milliseconds?


# %%
def exchange(megabytes):
    dist.all_reduce(torch.ones(int(megabytes * 250_000)))


your_prediction_ms = "?"
sizes, speeds = (1, 2, 4), (100, 200)
predicted_ms = {}
for megabytes in sizes:
    trace = launch(exchange, megabytes, backend="gloo", trace=True).trace
    for speed in speeds:
        replay = trace.replay(Network(latency_us=50, gbit_s=speed / 1000))
        predicted_ms[speed, megabytes] = max(replay.finish_us) / 1000
print("4 MB at 100 Mbit/s, predicted by you:", your_prediction_ms)
for speed in speeds:
    times = ", ".join(f"{mb} MB {predicted_ms[speed, mb]:.1f} ms" for mb in sizes)
    print(f"by Network, at {speed} Mbit/s: {times}")

# %% [markdown]
# The same `exchange`, measured between the hosts, three times each. The ranks meet in a bound store, as promised in part 3.


# %%
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
    measured_ms = {mb: [timed_exchange(mb) for _ in range(3)] for mb in (1, 2, 4)}
    print(json.dumps(list(measured_ms.values())))
    dist.barrier()
    dist.destroy_process_group()


write_script("measure.py", bound_store, exchange, timed_exchange, measure)

# %% tags=["nbval-ignore-output"]
measured_ms = {}
with two_hosts(disk.name) as hosts:
    for speed in speeds if hosts.form == "namespaces" else ():
        with hosts.slow(mbit_s=speed):
            place = f"measure.py {hosts[0].address} {hosts.port}"
            lists = json.loads(hosts.run(f"{place} 0", f"{place} 1")[0])
        measured_ms |= {(speed, mb): sorted(times) for mb, times in zip(sizes, lists)}
ratios = {case: times[1] / predicted_ms[case] for case, times in measured_ms.items()}
for (speed, megabytes), ratio in ratios.items():
    times = measured_ms[speed, megabytes]
    print(f"{megabytes} MB at {speed} Mbit/s: {times[0]:.0f} to {times[-1]:.0f} ms", end=", ")
    print(f"median / predicted {ratio:.2f}")
if not ratios:
    print("there is no cable between two loopback addresses: nothing was measured")

# %% [markdown]
# The cell below draws both, and checks the tolerance unless other programs keep this machine busy.

# %%
if os.getloadavg()[0] < os.cpu_count():
    assert all(0.95 < times[0] / predicted_ms[case] < 1.25 for case, times in measured_ms.items())
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for number, speed in enumerate(speeds):
    color = rank_style(number)["color"]
    line = [predicted_ms[speed, mb] for mb in sizes]
    axes.plot(sizes, line, color=color, label=f"{speed} Mbit/s, predicted")
    measured = [(mb, ms) for mb in sizes for ms in measured_ms.get((speed, mb), ())]
    axes.plot(
        *zip(*measured or [(None, None)]), "os"[number], mfc="none", color=color, label="measured"
    )
axes.set(xlabel="all-reduced (MB)", ylabel="time (ms)", xticks=sizes, ylim=0)
axes.legend()
axes.spines[["top", "right"]].set_visible(False)
show(figure, "Lines: predicted from a recording; marks, if there is a cable: measured on it.")

# %% [markdown]
# On a quiet machine the cable takes 5 to 15 % longer than predicted, at both speeds and all sizes, and the prediction came from a recording made without any cable. The
# rest is what travels beside the numbers: headers of packets, acknowledgements. At these speeds bytes decide, and they can be
# counted, which is why this course argues with replays. What a latency costs cannot be seen here: a message of a megabyte takes 40 ms and more.
#
# ## 7 · One function, three launchers
#
# A cluster is shared, so a **scheduler** hands out its machines, and starts the ranks. It need not change what they do. Here is a function that
# asks `torch.distributed` for its rank and knows nothing else of where it runs:


# %% tags=["part-slurm", "part-ray"]
def train():
    """Twenty steps; what any rank returns, the ranks all have."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10), nn.LogSoftmax(dim=1))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, labels = torch.randn(1280, 64), torch.randint(10, (1280,))
    for step in range(20):
        mine = slice(64 * step + rank, 64 * (step + 1), world_size)
        optimizer.zero_grad()
        nll_loss(model(inputs[mine]), labels[mine]).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(network.parameters()).tolist()


by_launch = launch(train, backend="gloo")[0]

# %% [markdown]
# `launch`'s result is the reference; a list, because Ray refuses tensors as results. They start scripts, so the function goes into one as it stands.
# Both run on host 0 of `two_hosts`: at the end of the `with` block the host is gone, and with it all that they started, whatever happens.

# %% tags=["part-slurm", "part-ray"]
SCRIPT = f"""
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel


{inspect.getsource(train)}
"""


def same(weights):
    return torch.allclose(torch.tensor(weights), torch.tensor(by_launch), rtol=0, atol=1e-6)


# %% [markdown]
# ### Slurm: `srun` starts the ranks
#
# On a **Slurm** cluster you write a *batch script* and hand it over with `sbatch`. Comments say what is wanted; when the machines are free, Slurm runs the
# script on the first of them. `srun`, inside it, runs a command on all: one task, one rank.

# %% tags=["part-slurm", "row-E5"]
JOB = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 50000))
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
srun --label python train.py
"""

# %% [markdown]
# Rank 0 runs on the first machine of the job's list, and the port follows from the job's number: two jobs that share a machine get two. Since version 22.05 `srun` no
# longer takes over [`--cpus-per-task`](https://slurm.schedmd.com/srun.html#OPT_cpus-per-task) from `sbatch`, so the script hands it on. With GPUs, `--ntasks-per-node` and `--gpus-per-node`
# are the same number. A task learns who it is from **Slurm's own names**, which `torch` does not know:

# %% tags=["part-slurm", "row-E5"]
JOINING = """
rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world_size)
node, local_rank = os.environ["SLURM_NODEID"], os.environ["SLURM_LOCALID"]
print(f"rank {rank} of {world_size}: node {node}, local rank {local_rank}", flush=True)
torch.save(train(), f"weights_{rank}.pt")
dist.destroy_process_group()
os._exit(0)  # at once: gloo's threads do not like to see Python go
"""

# %% [markdown]
# Here is no Slurm. So two **stand-ins** take the place of its commands: they start the tasks on this machine, in the environment that Slurm would give them. The batch script and
# `train.py` run as they are; what the stand-ins cannot show is the waiting, and a network.

# %% tags=["part-slurm"]
SRUN = """#!/bin/bash
[ "$1" = --label ] && shift
set -o pipefail
for ((task = 0; task < SLURM_NTASKS; task++)); do
    SLURM_PROCID=$task SLURM_NODEID=$task SLURM_LOCALID=0 "$@" | sed "s/^/$task: /" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || exit 1; done
"""
SCONTROL = """#!/bin/bash
seq -f "127.0.0.%g" 1 "$SLURM_JOB_NUM_NODES"
"""

# %% [markdown]
# Then Slurm's part for a job of two nodes with one task each, done by hand: its names are set, and its commands found before all others.


# %% tags=["part-slurm", "row-E5"]
def run_job(folder):
    """Write the job's files; run the batch script as `sbatch` would."""
    texts = {"srun": SRUN, "scontrol": SCONTROL, "job.sh": JOB, "train.py": SCRIPT + JOINING}
    for name, text in texts.items():
        Path(folder, name).write_text(text)
        Path(folder, name).chmod(0o700)
    slurm = {"SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "127.0.0.[1-2]"}
    slurm["PATH"] = f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with two_hosts(folder) as hosts:
        slurm |= {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(hosts.port - 10_000)}
        said = hosts[0].run("./job.sh", slurm)
    return said, [torch.load(path) for path in sorted(Path(folder).glob("weights_*.pt"))]


# %% [markdown]
# **Predict.** Which local ranks do the two ranks have, and are their weights `launch`'s?

# %% tags=["part-slurm", "row-E5"]
predicted_slurm = "?"

print("predicted:", predicted_slurm)
with tempfile.TemporaryDirectory() as folder:
    said, by_slurm = run_job(folder)
print(*sorted(said.splitlines()), sep="\n")
print("both ranks have launch's weights, to 1e-6:", [same(weights) for weights in by_slurm])
print("one rank alone has them:", same(launch(train, world_size=1, backend="gloo")[0]))

# %% [markdown]
# Two nodes of one task: both are local rank 0, as on any cluster with one GPU per machine. Each rank took every second sample of a batch, DDP averaged, and the weights are
# `launch`'s. The last line is the surprise: one rank has them as well, since equal shares of one global batch are the same training.
#
# Many clusters run `srun torchrun` instead, with one task per node: then `srun` starts an agent on each machine, `torchrun` starts the ranks, and restarts them when one dies.
#
# ### Ray Train: an engine starts the ranks
#
# **Ray** keeps processes of its own on every machine, and places work on them. Its part for training is *Ray Train*. A `TorchTrainer` takes our function, starts a worker for each rank,
# makes the process group, and calls it. It comes with the extra `cluster`, so the chapter asks first.

# %% tags=["part-ray", "row-E5"]
RAY = """
import ray
from ray.cluster_utils import Cluster
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

folder = sys.argv[1]
cluster = Cluster()
try:
    for _ in range(2):  # a cluster, as it were: two nodes of one CPU
        limits = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
        quiet = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        cluster.add_node(node_ip_address="127.0.0.1", **limits, **quiet)
    ray.init(cluster.address, log_to_driver=False, logging_level="ERROR")
    print(len({node["NodeID"] for node in ray.nodes()}), "nodes of Ray")
    scaling = ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
    storage = RunConfig(storage_path=folder)
    result = TorchTrainer(train, scaling_config=scaling, run_config=storage).fit()
    torch.save(result.return_value, f"{folder}/weights.pt")
finally:
    ray.shutdown()
    cluster.shutdown()
"""

# %% [markdown]
# Only the middle is yours on a real cluster: `ray.init`, a `ScalingConfig`, a `TorchTrainer`. `Cluster` is Ray's tool for tests, which plays two nodes on one machine. `STRICT_SPREAD` refuses to
# put both ranks on one node.
#
# Ray listens on many ports, and by default on the machine's own address. The settings below keep it on loopback, in one folder, and silent: no usage reports, no dashboard. One port they do not reach: torch's store, which rank 0 opens on every interface, as
# it does under `torchrun`.

# %% tags=["part-ray"]
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its effect on Linux: loopback will do
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


def run_ray(folder, timeout_s=120):
    """Ray's script on a host of its own, and what rank 0 returned."""
    Path(folder, "job.py").write_text(SCRIPT + RAY)
    # Each of Ray's twelve processes would import this for a second, and none needs it.
    Path(folder, "rfc3987_syntax.py").write_text("raise ImportError\n")
    paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    own = RAY_SETTINGS | {"RAY_TMPDIR": folder, "PYTHONPATH": paths}
    with two_hosts(folder) as hosts:
        said = hosts[0].run(f"job.py {folder}", own, timeout_s=timeout_s)
    return said, torch.load(Path(folder, "weights.pt"))


# %% [markdown]
# **Predict.** The result under Ray: equal to `launch`'s, or not?

# %% tags=["part-ray", "row-E5"]
predicted_ray = "?"

print("predicted:", predicted_ray)
if importlib.util.find_spec("ray") is None:
    print("Ray is not installed; this brings it: pip install -c constraints.txt -e '.[cluster]'")
else:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: it will hold sockets
        said, by_ray = run_ray(folder)
    print(said, end="")
    print("rank 0 has launch's weights, to 1e-6:", same(by_ray))

# %% [markdown]
# The same function, the third time, on two nodes, and the same weights. The price is time: Ray starts a dozen processes, for placing, watching and cleaning up, before the first step. For 20 steps that is absurd; for a night
# on 64 machines it is nothing.
#
# **On a real cluster** `Cluster` goes, and Ray is started on each machine before (`ray start --head` on the first, `ray start --address=HEAD:6379` on the others) or by a cloud's or Kubernetes's own Ray operator.
# `storage_path` must then be a place that all nodes reach, `use_gpu=True` gives each rank a GPU and takes NCCL, and `prepare_data_loader` deals the samples. In return Ray restarts lost workers
# (`FailureConfig`), from the last checkpoint that the function gave to `ray.train.report`. Ports are open to the whole network, and whoever reaches them can run code: keep a cluster behind a firewall.
#
# **Check yourself.** Slurm, Ray, `torchrun`, `launch`: which of them averages the gradients?
#
# <details><summary>Answer</summary>
# None. They start processes and tell each its rank. What is sent during training is DDP's affair, which is why one function runs under all four.
# </details>

# %% [markdown]
# ### The pager, part 2
#
# The job of chapter 08's last cell runs again. Two nights later a scheduler needs its nodes, and requeues it. It does not start any more: all four ranks say that the checkpoint cannot be read. Below are the scheduler's log of that night, and the disk.
#
# **Predict.** Whose fault is it: the disk's, the scheduler's, the script's? The capstone, [chapter 11](11_capstone.ipynb), answers.

# %%
incident = Path("incident")
print(*re.findall("Wed .*", (incident / "scheduler.log").read_text()), sep="\n")
print((incident / "wednesday/ls.txt").read_text())
at_fault = "?"  # the disk, the scheduler, or the script

# %% [markdown] tags=["row-B9"]
# ## 8 · Where to go next
#
# You now know what is below all of these. One honest line each:
#
# | when | look at | it gives you | it does not spare you |
# | --- | --- | --- | --- |
# | the model or its optimiser does not fit on one card | FSDP2, `fully_shard` | parameters, gradients and optimiser states in shards, gathered when needed | more communication than DDP: predict it first |
# | one layer is too large, or cards are joined very fast | tensor parallel, `parallelize_module` | matrices cut across the cards of a node | collectives within every layer |
# | the model has many equal layers and the cables are slow | pipeline parallel, `torch.distributed.pipelining` | few bytes between stages | idle time at both ends of a batch |
# | a cluster that starts, watches and retries for you | Ray Train | agents, restarts, storage | knowing what a rank is |
# | a training loop that you do not want to write | Lightning | loops, logging, checkpoints, DDP by a flag | reading it when numbers disagree |
# | your loop, on whatever machine there is | Accelerate | a few lines around your own loop | the choices behind them |
#
# ## What you know now
#
# Two hosts need an address to meet at and an interface to talk over, and these are two settings. A store listens to everybody unless it is bound. `torchrun` counts, sets
# variables and starts; with a rendezvous it also starts anew, and a checkpoint makes that a continuation, to the last bit. Bytes predict a cable.
#
# Next, another framework on top of all this: [10 · Keras 3 on DDP](10_keras.ipynb).
