# %% [markdown]
# # 12 · Send less
#
# **Your network is the limit: what can ranks leave unsaid, and what does it cost you?**
#
# In 50 minutes you will be able to
#
# 1. write hooks that send fewer bytes, and say what each of them loses;
# 2. let ranks talk every sixteenth step only, and say what that breaks;
# 3. choose a method for a given network and number of ranks, by bytes and time per unit of progress.
#
# **Hardware:** two cores. Where there is a GPU for each of four ranks, they train on the GPUs. **Before:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb) and
# [06 · What communication costs](06_what_communication_costs.ipynb). **Next:** [13 · Hold less](13_hold_less.ipynb).
# **Lab:** [12 · Send less](../exercises/12_send_less.ipynb).
#
# Some cells ask you to **predict**: put your answer in place of the three dots. Others ask you to **write** a function. A check judges it in real workers, and a finished form follows, folded up.
# If you see saved outputs, they give answers away: *Edit*, *Clear Outputs of All Cells*.

# %% jupyter={"source_hidden": true}
import copy
import functools
import time
from dataclasses import replace

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from course_material.language import SmallGPT, novel
from course_utils import Network, check, digits, launch, predict, show
from course_utils.network.trace import Trace
from course_utils.pictures.style import OKABE_ITO

# %% [markdown]
# ## 1 · What the network costs
#
# One training for the whole chapter: four ranks teach the small GPT to continue *Pride and Prejudice*. A **method** says what they tell each other. Each gets a row in one
# table: bytes per step, time per step on three networks, and the loss after 48 steps.


# %%
networks = {
    "1 Gbit/s": Network(latency_us=50, gbit_s=1),
    "25 Gbit/s": Network(latency_us=10, gbit_s=25),
    "NVLink-like": Network(latency_us=2, gbit_s=2400),
}
COMPUTE_MS = 1  # of a step; this number and the networks' are ours

# %% jupyter={"source_hidden": true}
tokens, alphabet = novel()
text, held_out = tokens[:-4000], tokens[-3960:].view(120, 33)


def my_device():  # in a rank, "cuda" is the GPU that launch gave it
    return "cuda" if torch.cuda.is_available() else "cpu"


def small_gpt():
    return SmallGPT(len(alphabet), depth=1, context=32)


def batch(draw, size=4):
    """Sequences of 32 letters, and what follows each letter."""
    starts = torch.randint(len(text) - 32, (size, 1), generator=draw)
    drawn = text[starts + torch.arange(33)].to(my_device())
    return drawn[:, :-1], drawn[:, 1:]


def loss_of(network, mine):
    """On some of the text that nobody trains on."""
    with torch.inference_mode():
        return cross_entropy(network(mine[:, :-1]).mT, mine[:, 1:]).item()


def beginning(steps=60):
    """Where all methods start from: a GPT that has read for a while, alone; and its loss."""
    torch.manual_seed(0)
    network, draw = small_gpt().to(my_device()), torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.003)
    for _ in range(steps):
        inputs, targets = batch(draw, size=16)
        optimizer.zero_grad()
        cross_entropy(network(inputs).mT, targets).backward()
        optimizer.step()
    return network.state_dict(), loss_of(network, held_out.to(my_device()))


begun = small_gpt()
((state, loss_before),) = launch(beginning, world_size=1)
_ = begun.load_state_dict(state)

# %% [markdown]
# A method gets the network and returns two things: what a step calls, and what happens after it. `ddp` is the first: PyTorch's DDP, with a **communication hook** if you like. DDP calls it
# with a bucket of gradients, in place of its own `all_reduce`. It returns a future of their mean.


# %%
def ddp(hook=None, state=None):
    def method(network):
        model = DistributedDataParallel(network)
        if hook:
            model.register_comm_hook(state() if callable(state) else state, hook)
        return model, lambda step: None

    return method


# %% jupyter={"source_hidden": true}
def train(method, seed=0, steps=48, rate=0.003, look=16):
    """Returns losses before and after every `look` steps, on a quarter of text, and weights."""
    device = my_device()
    network, quarter = copy.deepcopy(begun).to(device), held_out[dist.get_rank() :: 4].to(device)
    model, after_step = method(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, fused=True)
    draw = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    losses = [loss_before]
    for step in range(1, steps + 1):
        inputs, targets = batch(draw)
        optimizer.zero_grad()
        cross_entropy(model(inputs).mT, targets).backward()
        optimizer.step()
        after_step(step)
        if step % look == 0:
            losses.append(loss_of(network, quarter))
    return losses, nn.utils.parameters_to_vector(network.parameters()).detach()


# %% [markdown]
# `train`, folded, is the usual loop. The folded `measure` trains with two seeds, which differ in what is read, replays 16 recorded steps, and prints a row. The number after ± is half the distance between the two seeds. In this model nothing overlaps: a step computes for 1 ms, then its
# messages travel.


# %% jupyter={"source_hidden": true}
SEEDS, PERIOD = (0, 1), 16
rows = {}  # by method: KB and ms per step, losses by seed and look, the recording


def marked(method):
    """The method, with a barrier before and after 16 of its steps."""

    def wrapped(network):
        model, after_step = method(network)

        def afterwards(step):
            after_step(step)
            if step in (2, 2 + PERIOD):
                dist.barrier()

        return model, afterwards

    return wrapped


def between_barriers(trace):
    kept = []
    for rank in range(trace.world_size):
        own = trace.of_rank(rank)
        first, last = [i for i, event in enumerate(own) if event.kind == "barrier"][:2]
        kept += own[first + 1 : last]
    return replace(trace, events=tuple(kept))


def train_all(method, rate):
    methods = [marked(method)] + [method] * (len(SEEDS) - 1)
    return torch.tensor([train(one, seed, rate=rate)[0] for one, seed in zip(methods, SEEDS)])


def trained(method, rate=0.003):
    """Losses by seed and look, over all held-out text; and the recording."""
    results = launch(train_all, method, rate, world_size=4, timeout=120, trace=True)
    return torch.stack(list(results)).mean(dim=0), between_barriers(results.trace)


def half_apart(values):
    """Half the distance between the two seeds, which are the first dimension."""
    return (values[0] - values[1]).abs() / 2


def told(losses):
    last = losses[:, -1]
    return f"about {last.mean():.3f} ± {half_apart(last):.3f}"


def ms_per_step(trace, network, steps=PERIOD):
    return COMPUTE_MS + max(trace.replay(network).finish_us) / 1000 / steps


def print_rows(names):
    titles = "".join(f"{name:>12}" for name in networks)
    print(f"{'of a step':24}{'KB':>6}{titles}  loss (two seeds)")
    for name in names:
        row = rows[name]
        times = "".join(f"{ms:9.2f} ms" for ms in row["ms"].values())
        print(f"{name:24}{row['kb']:6.1f}{times}  {told(row['losses'])}")


def measure(name, method):
    losses, trace = trained(method)
    kb = max(trace.traffic("ring").sent_bytes) / PERIOD / 1000
    ms = {each: ms_per_step(trace, network) for each, network in networks.items()}
    rows[name] = {"kb": kb, "ms": ms, "losses": losses, "trace": trace}
    print_rows([name])


# %% [markdown]
# **Predict.** The gradients are 227 KB. Of each step at 1 Gbit/s, how many percent does a rank spend on messages?

# %%
percent = predict("% of a step that messages take at 1 Gbit/s", ...)

# %%
measure("DDP", ddp())
percent.measured(round(100 - 100 * COMPUTE_MS / rows["DDP"]["ms"]["1 Gbit/s"]), within=0.06)
print(f"before the first step the loss is about {rows['DDP']['losses'][0, 0]:.3f}")

# %% [markdown]
# Three quarters at 1 Gbit/s, a seventh at 25, and on the fast network next to nothing. Whoever sends less can gain at most that.
#
# ## 2 · Half the bytes
#
# Gradients need not travel in float32. Two types have 16 bits: **float16** keeps three decimal digits, up to 65,504; **bfloat16** keeps two, with the range of float32.

# %%
numbers = torch.tensor([1e-8, 1e-3, 1.001, 1e5])
short = {"float16": numbers.half(), "bfloat16": numbers.bfloat16()}
short["float16, scaled by 1024"] = (1024 * numbers).half().float() / 1024
for name, row in short.items():
    print(f"{name:24}", *(f"{number:12.5g}" for number in row.tolist()))

# %% [markdown]
# float16 loses both ends, bfloat16 the third decimal of 1.001. Scaling up saves the small number, and makes large ones overflow earlier: trainings in float16 have to adapt their scale.
#
# ### Write it
#
# *About 4 minutes.* A hook that sends the bucket in another type, which is its state. Divide by the number of ranks first, in the bucket's own precision. Then cast, sum, and cast back.


# %%
def my_half(dtype, bucket):
    raise NotImplementedError("about 4 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>bucket.buffer()</code> is one flat tensor. Which mean of four float16 numbers fits, though their sum does not?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Divide, cast, start an <code>all_reduce</code> with <code>async_op=True</code>. Its future, and a <code>then</code> that casts the sum back, is what to return. Without <code>then</code> DDP ends with an
# internal error about a <code>PyObject</code>: that future's value is a list of tensors, and DDP wants one tensor.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return work.get_future().then(lambda done: done.value()[0].to(bucket.buffer().dtype))</code>.
# </details>


# %% jupyter={"source_hidden": true}
class Given(nn.Module):
    """A network whose gradients are what it is given."""

    def __init__(self, gradients):
        super().__init__()
        self.weights = nn.ParameterList(torch.ones_like(own) for own in gradients)

    def forward(self, gradients):
        return sum((own * given).sum() for own, given in zip(self.weights, gradients))


def under_ddp(hook):
    """Let DDP call the hook; return the mean gradients of each step, and what was sent."""

    @functools.wraps(hook)
    def run(steps, state, limit_mb):
        network, sent = Given(steps[0]), set()
        model = DistributedDataParallel(network, bucket_cap_mb=limit_mb)
        model.register_comm_hook(state, hook)

        def note(call):
            if "BROADCAST" not in call.name.name:  # DDP's own, when it fills buckets anew
                sent.update(str(own.dtype).removeprefix("torch.") for own in call.input_tensors)

        dist.group.WORLD.register_pre_hook(5, note)
        means = []
        for gradients in steps:
            model.zero_grad()
            model(gradients).backward()
            means.append(torch.cat([own.grad.flatten() for own in network.weights]))
        dist.group.WORLD.unregister_pre_hook(5)
        means = means[1:]  # after its first step DDP fills its buckets anew
        return {"means": torch.stack(means), "sent": ", ".join(sorted(sent))}

    return run


def flat(gradients):
    return torch.cat([own.flatten() for own in gradients])


def half_spec(all_steps, dtypes, limits_mb):
    n = len(all_steps)
    means = [sum((flat(own) / n).to(dtypes[0]).float() for own in step) for step in zip(*all_steps)]
    told = {"means": torch.stack(means[1:]), "sent": str(dtypes[0]).removeprefix("torch.")}
    return [told] * n


half_cases = {  # dtype, size of buckets in MB, and what gradients are like
    "bfloat16": (torch.bfloat16, 25, lambda rank: 1.0),
    "float16, many buckets": (torch.float16, 1e-4, lambda rank: 1.0),
    "bfloat16, very large gradients": (torch.bfloat16, 25, lambda rank: 1e7),
    "float16, a sum that does not fit": (torch.float16, 25, lambda rank: 4e4),
    "float16, only a mean that fits": (torch.float16, 25, lambda rank: 7e4 if rank == 0 else 0.1),
}


def half_inputs(rank, world_size, case):
    dtype, limit_mb, size = half_cases[case]
    drawn = [[size(rank) * (0.95 + torch.rand(s) / 20) for s in ((4, 5), (7,))] for _ in "123"]
    return drawn, dtype, limit_mb


half_judged = {"spec": half_spec, "inputs": half_inputs, "cases": list(half_cases)}
half_judged |= {"world_sizes": (2, 3), "rtol": 0.02, "timeout": 30}

# %%
check(under_ddp(my_half), **half_judged)


# %% jupyter={"source_hidden": true}
def half(dtype, bucket):
    """The finished hook."""
    short = (bucket.buffer() / dist.get_world_size()).to(dtype)
    work = dist.all_reduce(short, async_op=True)
    return work.get_future().then(lambda done: done.value()[0].to(bucket.buffer().dtype))


check(under_ddp(half), **half_judged)


# %% [markdown]
# PyTorch has `bf16_compress_hook` and `fp16_compress_hook` ([documentation](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)). They cast first and divide then. Here rank 0's gradient is 70,000, and rank 1's is 0:


# %% jupyter={"source_hidden": true}
def mean_by(hook, state):
    """What a hook makes of a gradient that is 70,000 on rank 0, and 0 on rank 1."""
    large = torch.full((3,), 70_000.0 * (dist.get_rank() == 0), device=my_device())
    gradients = [[large]] * 2
    return under_ddp(hook)(gradients, state, 25)["means"][0, 0].item()


def apart(*methods, steps=8):
    """The largest difference of a weight after so many steps with one method or the other."""

    def differ():
        one, other = (train(method, steps=steps)[1] for method in methods)
        return (one - other).abs().max().item()

    return launch(differ, world_size=4)[0]


# %%
for hook, state in ((half, torch.float16), (fp16_compress_hook, None)):
    print(f"{hook.__name__:18} in float16: {launch(mean_by, hook, state)[0]:,.0f}")

# %% [markdown]
# The mean fits into float16, and what rank 0 has does not. In bfloat16, with four ranks, the order does not matter:

# %%
print("ours and PyTorch's differ by", apart(ddp(half, torch.bfloat16), ddp(bf16_compress_hook)))
measure("bfloat16", ddp(half, torch.bfloat16))

# %% [markdown]
# Half the bytes for the same loss. At 25 Gbit/s the step gains little: half of what is left there is latency.
#
# ## 3 · The largest hundredth
#
# **Top-k** sends the *k* largest entries of a gradient by absolute value, each with its place ([Lin and others, 2018](https://arxiv.org/abs/1712.01887), send one in a thousand). Every rank chooses places of its own, so nothing can be
# added on the way: all ranks gather all places and values.
#
# ### Write it
#
# *About 6 minutes.* The state is the share to send; *k* is at least 1. Places travel as int32, half of what `topk` returns. Return a future of the mean, where what was not sent counts as 0. `ready(tensor)` makes a future that is done.


# %%
def ready(tensor):
    future = torch.futures.Future()
    future.set_result(tensor)
    return future


def my_top_k(share, bucket):
    raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Two ranks have chosen the same place. What must become of their two values?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>topk</code> of the absolute values gives places; the values are the bucket's own, with their signs. Two <code>all_gather_into_tensor</code>, then add all values into zeros.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>torch.zeros_like(flat).index_add_(0, all_places.long(), all_values / n)</code>; plain assignment by places would keep one value of two.
# </details>


# %% jupyter={"source_hidden": true}
def largest(flat, share):
    return flat.abs().topk(max(1, int(share * len(flat))), sorted=False).indices


def top_k_spec(all_steps, shares, limits_mb):
    means = []
    for step in zip(*all_steps):
        total = 0
        for gradients in step:
            whole = [gradients] if limits_mb[0] > 1 else [[own] for own in gradients]
            sent = []
            for bucket in map(flat, whole):
                kept = torch.zeros_like(bucket)
                places = largest(bucket, shares[0])
                kept[places] = bucket[places]
                sent.append(kept)
            total = total + torch.cat(sent)
        means.append(total / len(step))
    return [{"means": torch.stack(means[1:]), "sent": "float64, int32"}] * len(all_steps)


top_k_cases = {  # share, size of buckets in MB
    "three tenths": (0.3, 25),
    "less than one number": (0.01, 25),
    "everything": (1.0, 25),
    "a tenth, many buckets": (0.1, 1e-5),
}


def top_k_inputs(rank, world_size, case):
    shapes = ((4, 5), (7,), (3, 3))
    drawn = [[torch.randn(s, dtype=torch.float64) for s in shapes] for _ in "123"]
    for step in drawn:  # some places are large on all ranks
        step[0][1] += 5
        step[2][0] -= 5
    return drawn, *top_k_cases[case]


def top_k_budget(world_size, case):
    share, limit_mb = top_k_cases[case]
    sizes = (36,) if limit_mb > 1 else (20, 7, 9)
    sent = sum(max(1, int(share * size)) for size in sizes) * (4 + 8)
    start = 8 * (world_size - 1) + 36 * 8 + 130  # DDP's own: checks, weights, buckets made anew
    return {"sent_bytes": 3 * (world_size - 1) * sent + start}


top_k_judged = {"spec": top_k_spec, "inputs": top_k_inputs, "cases": list(top_k_cases)}
top_k_judged |= {"budget": top_k_budget, "world_sizes": (2, 3), "rtol": 1e-9, "timeout": 30}

# %%
check(under_ddp(my_top_k), **top_k_judged)


# %% jupyter={"source_hidden": true}
def top_k(share, bucket):
    """The finished hook."""
    flat, n = bucket.buffer(), dist.get_world_size()
    places = largest(flat, share)
    all_places = places.new_empty(n * len(places), dtype=torch.int32)
    all_values = flat.new_empty(n * len(places))
    dist.all_gather_into_tensor(all_places, places.int())
    dist.all_gather_into_tensor(all_values, flat[places])
    return ready(torch.zeros_like(flat).index_add_(0, all_places.long(), all_values / n))


check(under_ddp(top_k), **top_k_judged)


# %% [markdown]
# Why *k* of them, and not all whose absolute value is above some limit? That would need no sorting. Rank 0 has the gradient (9, −7, 1), rank 1 (8, 2, 0), and the limit is 5. This is meant to fail:


# %%
def all_above(limit, bucket):
    large = bucket.buffer()[bucket.buffer().abs() > limit]
    from_all = large.new_empty(dist.get_world_size() * len(large))
    dist.all_gather_into_tensor(from_all, large)
    return ready(bucket.buffer())  # the mean would come here


def step_above(gradients):
    return under_ddp(all_above)([[gradients[dist.get_rank()]]] * 2, 5, 25)


# %% tags=["raises-exception"]
# How ranks end that send pieces of unlike sizes is gloo's matter.
launch(step_above, torch.tensor([[9.0, -7, 1], [8, 2, 0]]), backend="gloo", timeout=5)

# %% [markdown]
# Rank 0 sends two numbers, rank 1 one: *shape (2,)* and *shape (1,)* in the same collective. Other sizes hang or lie instead (chapter 08). A hook runs on each rank's own gradients, so **how much it sends must not depend on them.** *k* does not. Whoever wants a limit has to agree on the largest count first.

# %%
measure("top 1 %", ddp(top_k, 0.01))

# %% [markdown]
# A 25th of the bytes, and half of the progress. What was not sent is lost. How bad that can be shows in a model of two weights. Rank 0's gradient is always (10.5, 1), rank 1's (−10.5, 1): they disagree about the first weight and **agree** about the second.
#
# **Predict.** SGD makes 25 steps with a rate of 0.1, and each rank sends the larger of its two numbers. DDP moves the second weight to −2.5. Where does top-1 move it?

# %%
second_weight = predict("the second weight after 25 steps of top-1", ...)


# %% jupyter={"source_hidden": true}
class Remembering:
    """Error feedback around `top_k`: what was not sent is added to the next gradient."""

    def __init__(self, share):
        # One rest for all, since this network has one bucket; with several, each needs its own.
        self.share, self.left_over, self.steps = share, 0, 0

    def hook(self, state, bucket):
        flat, self.steps = bucket.buffer().add_(self.left_over), self.steps + 1
        if self.steps > 1:  # after its first step DDP fills the bucket in another order
            self.left_over = flat.clone()
            self.left_over[largest(flat, self.share)] = 0
        return top_k(self.share, bucket)


def remembering(share):
    return lambda network: ddp(Remembering(share).hook)(network)


# %% jupyter={"source_hidden": true}
def two_weights(method):
    network = nn.Linear(2, 1, bias=False, device=my_device())
    nn.init.zeros_(network.weight)
    model, _ = method(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    first = 10.5 if dist.get_rank() == 0 else -10.5
    gradient = torch.tensor([first, 1.0], device=my_device())
    for _ in range(25):
        optimizer.zero_grad()
        model(gradient).backward()
        optimizer.step()
    return [round(weight, 3) + 0.0 for weight in network.weight[0].tolist()]


# %%
methods = {"DDP": ddp(), "top-1": ddp(top_k, 0.5), "with error feedback": remembering(0.5)}
found = launch(lambda: {name: two_weights(m) for name, m in methods.items()})[0]
print(*(f"{name:20} {weights}" for name, weights in found.items()), sep="\n")
second_weight.measured(found["top-1"][1])

# %% [markdown]
# Nowhere: numbers that cancel crowd out the one that counts. **Error feedback** keeps what was not sent and adds it to the next gradient
# ([Seide and others, 2014](https://www.microsoft.com/en-us/research/publication/1-bit-stochastic-gradient-descent-and-application-to-data-parallel-distributed-training-of-speech-dnns/)). The second weight is sent late, but nothing of it is lost. With it, top-k
# converges at the rate of SGD ([Stich and others, 2018](https://arxiv.org/abs/1809.07599)). And our GPT?

# %%
measure("top 1 %, error feedback", remembering(0.01))

# %% [markdown]
# Nothing gained that two seeds would show. But with one number in a hundred sent, most of what was kept back is still waiting after 48 steps. Four times as many, with two ranks to save time:


# %% jupyter={"source_hidden": true}
def last_losses(method, steps=192):
    return [train(method, seed, steps, look=steps)[0][-1] for seed in SEEDS]


def after_192(method):
    results = launch(last_losses, method, world_size=2, timeout=120)
    return torch.tensor(list(results)).mean(dim=0)[:, None]


# %%
for name, method in {"top 1 %": ddp(top_k, 0.01), "with feedback": remembering(0.01)}.items():
    print(f"{name:14} loss {told(after_192(method))}")

# %% [markdown]
# What is sent late helps late. The proof is for SGD; Adam divides by the size of past gradients, and [Tang and others (2021)](https://arxiv.org/abs/2102.02888) say that
# error feedback does not work with it unchanged. Our AdamW gains all the same, in this one model.
#
# ### On 64 ranks
#
# `stretched`, folded, takes the recording of one rank's step and lets 64 ranks make the same calls. That is a model: no 64 ranks ran.
#
# **Predict.** With top-k, how many times fewer bytes than DDP does a rank send on 64 ranks?

# %%
fewer = predict("times fewer bytes on 64 ranks", ...)


# %% jupyter={"source_hidden": true}
EXCHANGES = {}  # by method, how often ranks talk in 16 steps, where it is not 16 times


def stretched(name, world_size):
    """One exchange of a method's recording, as so many ranks would make it."""
    own = rows[name]["trace"].of_rank(0)
    own = own[: len(own) // EXCHANGES.get(name, PERIOD)]
    ranks = tuple(range(world_size))
    events = [replace(event, rank=rank, group=ranks) for rank in ranks for event in own]
    return Trace(tuple(events), ((0.0,),) * world_size)


# %%
print("KB that a rank sends in a step   DDP   top 1 %   ratio")
for n in (4, 16, 64):
    kb = [max(stretched(each, n).traffic("ring").sent_bytes) / 1000 for each in ("DDP", "top 1 %")]
    print(f"{n:22} ranks{kb[0]:9.0f}{kb[1]:10.1f}{kb[0] / kb[1]:8.1f}")
fewer.measured(round(kb[0] / kb[1], 1), within=0.1)

# %% [markdown]
# A ring's sum stays below twice the gradients, however many ranks there are; what `all_gather` brings grows with their number. **What cannot be added on the way does not scale.**
#
# ## 4 · Low rank
#
# The gradient of a linear layer is a matrix. **PowerSGD** ([Vogels and others, 2019](https://arxiv.org/abs/1905.13727)) sends two thin ones of *r* columns, whose product comes near it, and which can be added on the way. This *r* is called the
# **rank** of the product, a word that has nothing to do with our processes.
# How near? Here is the gradient of the GPT's 256 × 64 layer.


# %% jupyter={"source_hidden": true}
def shares():
    inputs, targets = batch(torch.Generator().manual_seed(0))
    network = copy.deepcopy(begun).to(my_device())
    cross_entropy(network(inputs).mT, targets).backward()
    squares = torch.linalg.svdvals(network.blocks[0].linear1.weight.grad) ** 2
    return (squares.cumsum(0) / squares.sum()).tolist()


# %%
found = launch(shares, world_size=1)[0]
for rank in (1, 2, 4, 8):
    print(f"rank {rank}: about {100 * found[rank - 1]:.0f} % of the squared norm")

# %% [markdown]
# ### Write it
#
# *About 5 minutes.* One step of the power method, on the **mean** *M* of all ranks' matrices, which nobody has. `q` has *r* columns, equal on all ranks. *P* is *Mq*, made orthonormal; *Q* is *M*ᵀ*P*. Return *PQ*ᵀ and *Q*. Send only what has *r* columns, in two
# `all_reduce`.


# %%
def my_low_rank(matrix, q):
    raise NotImplementedError("about 6 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# The mean of all <i>M q</i> is the mean matrix times <i>q</i>. Why must <i>P</i> be made orthonormal after the sum, not before?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Multiply, sum over ranks, orthonormalise with <code>torch.linalg.qr</code>. Multiply the transposed matrix with that, sum, divide by the number of ranks.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>p = matrix @ q</code>, <code>dist.all_reduce(p)</code>, <code>p = torch.linalg.qr(p).Q</code>; the same way back with <code>matrix.T @ p</code>. Only the second sum needs a division.
# </details>


# %% jupyter={"source_hidden": true}
ROUNDS = 3


def again_and_again(answer):
    """Call the answer with what it returned last, a warm start; return all approximations."""

    @functools.wraps(answer)
    def run(matrix, q):
        found = []
        for _ in range(ROUNDS):
            near, q = answer(matrix, q)
            found.append(near)
        return torch.stack(found)

    return run


def low_rank_spec(matrices, qs):
    mean, q, found = sum(matrices) / len(matrices), qs[0], []
    for _ in range(ROUNDS):
        span = mean @ q
        p = span @ torch.linalg.inv(torch.linalg.cholesky(span.T @ span)).T
        q = mean.T @ p
        found.append(p @ q.T)
    return [torch.stack(found)] * len(matrices)


def low_rank_inputs(rank, world_size, case):
    rows, columns, r = case
    matrix = torch.randn(rows, columns, dtype=torch.float64)
    start = torch.arange(columns * r, dtype=torch.float64).add(1).sqrt().cos()  # alike on all
    return matrix, start.view(columns, r)


def low_rank_budget(world_size, case):
    rows, columns, r = case
    sent = 2 * (world_size - 1) / world_size * (rows + columns) * r * 8
    return {"sent_bytes": ROUNDS * sent}


low_rank_judged = {"spec": low_rank_spec, "inputs": low_rank_inputs, "budget": low_rank_budget}
low_rank_judged |= {"cases": [(12, 5, 1), (5, 14, 2), (30, 20, 3)], "rtol": 1e-6}

# %%
check(again_and_again(my_low_rank), **low_rank_judged)


# %% jupyter={"source_hidden": true}
def low_rank(matrix, q):
    """The finished step."""
    p = matrix @ q
    dist.all_reduce(p)
    p = torch.linalg.qr(p).Q
    q = matrix.T @ p
    dist.all_reduce(q)
    q /= dist.get_world_size()
    return p @ q.T, q


check(again_and_again(low_rank), **low_rank_judged)

# %% [markdown]
# The check handed back your `q` twice. With this **warm start** the power method goes on from step to step. PyTorch's `powerSGD_hook` does that for each matrix of a bucket, with error feedback. `start_powerSGD_iter` is how many steps are plain DDP before: at least two,
# since DDP fills its buckets anew after the first.

# %%
state = functools.partial(PowerSGDState, None, 4, start_powerSGD_iter=2)
measure("PowerSGD, rank 4", ddp(powerSGD_hook, state))

# %% [markdown]
# A tenth of the bytes, and most of the progress. But look at 25 Gbit/s: PowerSGD is **slower** than DDP. It makes three calls instead of one, and their latency costs more than its bytes save.
#
# ### Where it does not pay
#
# Compressing takes time, too: here, of one core of this machine. What a GPU's kernels would take cannot be said here.


# %% jupyter={"source_hidden": true}
def compress_ms(work, rounds=30):
    gradient, seconds = torch.randn(56_768), []
    for _ in range(rounds):
        begin = time.perf_counter()
        work(gradient)
        seconds.append(time.perf_counter() - begin)
    return 1000 * sorted(seconds)[rounds // 2]


def thin(gradient):
    """The products of all matrices, without messages."""
    for parameter in begun.parameters():
        if parameter.ndim == 2:
            matrix = gradient[: parameter.numel()].view(parameter.shape)
            p = torch.linalg.qr(matrix @ matrix[:4].T).Q
            p @ (matrix.T @ p).T


work = {"bfloat16": torch.Tensor.bfloat16, "top 1 %": lambda g: largest(g, 0.01)}
work["PowerSGD, rank 4"] = thin
for name, compress in work.items():
    # The clock is one for CPUs: it does not wait for a GPU.
    took_ms = launch(compress_ms, compress, world_size=1, backend="gloo")[0]
    saved = [rows["DDP"]["ms"][each] - rows[name]["ms"][each] for each in networks]
    savings = ", ".join(f"{ms:5.2f}" for ms in saved)
    print(f"{name:18} saves {savings} ms on the three networks, takes about {took_ms:.2f} ms")

# %% [markdown]
# On the fast network there is nothing to save. **Compression pays where it takes less time than it saves**, and it saves bytes, not latency.
#
# ## 5 · Send less often
#
# **Local SGD** ([Stich, 2018](https://arxiv.org/abs/1805.09767)): each rank trains by itself for *H* steps, then all take the mean of their **weights**. Here *H* is 16.


# %%
def every(period):
    def method(network):
        def average(step):
            if step % period == 0:
                flat = nn.utils.parameters_to_vector(network.parameters()).detach()
                dist.all_reduce(flat)
                nn.utils.vector_to_parameters(flat / dist.get_world_size(), network.parameters())

        return network, average

    return method


# %%
EXCHANGES["every 16 steps"] = EXCHANGES["DiLoCo, every 16 steps"] = 1
measure("every 16 steps", every(16))

# %% [markdown]
# A 16th of the bytes **and** of the latencies. **DiLoCo** ([Douillard and others, 2023](https://arxiv.org/abs/2311.08105)) makes more of an exchange. The mean over ranks of (weights at the last exchange minus weights now) is taken for a gradient, and an **outer** optimiser makes a step with it: SGD with
# Nesterov momentum 0.9 and a rate of 0.7. (Rate 1 and no momentum would be the plain mean.) The inner optimiser is AdamW, as here. Leave its cell folded: lab 12 asks you to write it.


# %% jupyter={"source_hidden": true}
def diloco(period, rate=0.7, momentum=0.9):
    def method(network):
        anchor = nn.utils.parameters_to_vector(network.parameters()).detach().clone()
        speed = torch.zeros_like(anchor)

        def outer_step(step):
            if step % period == 0:
                way = anchor - nn.utils.parameters_to_vector(network.parameters()).detach()
                dist.all_reduce(way)
                way /= dist.get_world_size()
                speed.mul_(momentum).add_(way)
                anchor.sub_(rate * (way + momentum * speed))
                nn.utils.vector_to_parameters(anchor.clone(), network.parameters())

        return network, outer_step

    return method


# %%
measure("DiLoCo, every 16 steps", diloco(16))

# %% [markdown]
# No gain over the mean here, in three outer steps. In the paper eight ranks, with hundreds of inner steps each time, come as far as DDP with 500 times fewer exchanges. But much depends on the inner **learning rate**, here 0.003. With a third of it:

# %%
for name, method in {"every 16 steps": every(16), "DiLoCo, every 16 steps": diloco(16)}.items():
    print(f"{name:24} inner rate 0.001: loss {told(trained(method, 0.001)[0])}")

# %% [markdown]
# Now DiLoCo is ahead, not because it has gained, but because the mean has lost: with small steps it does not come as far. DiLoCo's outer step carries on along the common way. Three outer steps and two seeds are a hint and no proof. **Whoever exchanges less often has to tune again**, both rates together.
# (PyTorch has the plain mean of local SGD as `PeriodicModelAverager` and `PostLocalSGDOptimizer`, in `torch.distributed.algorithms.model_averaging` and `torch.distributed.optim`.)
#
# ### What the mean forgets
#
# Batch norm keeps its running mean and variance in **buffers**, which are no parameters. Two ranks train a small network, one on even digits and one on odd ones, and take the mean of their parameters. Do they then say the same of the same images?


# %% jupyter={"source_hidden": true}
def after_averaging(buffers):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)).to(my_device())
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    data, targets = training.data.to(my_device()), training.targets.to(my_device())
    for images, labels in zip(data.split(32), targets.split(32)[:8]):
        mine = labels % 2 == dist.get_rank()  # even digits here, odd ones there
        cross_entropy(network(images[mine]), labels[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for own in [*network.parameters(), *(network.buffers() if buffers else [])]:
        if own.is_floating_point():  # one buffer counts batches
            dist.all_reduce(own.detach(), op=dist.ReduceOp.AVG)
    return network.eval()(data[:100]).detach()


training = digits(train=True)

# %%
for buffers in (False, True):
    one, other = launch(after_averaging, buffers)
    apart_by = (one - other).abs().max().item()
    print(f"buffers averaged: {buffers}, two ranks' answers differ by about {apart_by:.2g}")

# %% [markdown]
# Equal parameters, and two models. DDP sends rank 0's buffers at the beginning of every step, so they never differ by more than one step (chapter 07). Who averages parameters has to average buffers as well.
#
# ### What stragglers gain
#
# A step takes 1 ms, but in each step one rank needs 4. First the ranks take turns. Then it is always rank 2. On the fast network 16 steps of DDP take 64 ms, both times.
#
# **Predict.** How many ms do 16 steps take with one exchange at their end? Answer with a list of two numbers.

# %%
straggling_ms = predict("ms with hiccups in turn, with a slow rank 2", ...)

# %% jupyter={"source_hidden": true}
slow = {
    "in turn": lambda rank, step: 4 if step % 4 == rank else 1,
    "always rank 2": lambda rank, step: 4 if rank == 2 else 1,
}


def with_stragglers(name, who):
    exchanges, seen = EXCHANGES.get(name, PERIOD), {}

    def computing_us(event):
        if event.kind != "all_reduce":
            return 0
        first = seen[event.rank] = seen.get(event.rank, -PERIOD // exchanges) + PERIOD // exchanges
        return 1000 * sum(slow[who](event.rank, first + k) for k in range(PERIOD // exchanges))

    replay = rows[name]["trace"].replay(networks["NVLink-like"], computing_us)
    return round(max(replay.finish_us) / 1000, 1)


# %%
for name in ("DDP", "every 16 steps"):
    found = [with_stragglers(name, who) for who in slow]
    print(f"{name:16} in turn {found[0]:5} ms, always rank 2 {found[1]:5} ms")
straggling_ms.measured([round(ms) for ms in found])

# %% [markdown]
# Taking turns, each rank pays for its own four slow steps, 12 · 1 + 4 · 4 = 28 ms, where DDP pays for everybody's. A rank that is **always** slow holds up all others as before. It would need fewer steps, not fewer exchanges.
#
# ## 6 · Bytes per unit of progress
#
# Now the whole table, without the time of compressing, and the loss against what a rank has sent, and against virtual time.

# %%
print_rows(rows)

# %% jupyter={"source_hidden": true}
PLAIN = {"PowerSGD, rank 4": 2}  # its first steps, which are DDP's


def total(name, unit, steps=48):
    """What so many steps take, of a unit per step such as `kb_of`."""
    plain = PLAIN.get(name, 0)
    return (steps - plain) * unit(name) + plain * unit("DDP")


def kb_of(name):
    return rows[name]["kb"]


def us_of(name):
    return 1000 * rows[name]["ms"]["1 Gbit/s"]


figure, both = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
for (name, row), color, mark in zip(rows.items(), OKABE_ITO, "os^DvPX*"):
    mean, spread = row["losses"].mean(dim=0)[1:], half_apart(row["losses"])[1:]
    for axes, unit in zip(both, (kb_of, us_of)):
        until = [total(name, unit, steps) / 1000 for steps in (16, 32, 48)]
        axes.errorbar(until, mean, spread, color=color, marker=mark, capsize=3, label=name)
for axes, xlabel, ticks in zip(
    both,
    ("sent by each of four ranks (MB)", "virtual time at 1 Gbit/s (ms)"),
    ((0.2, 0.5, 1, 2, 5, 10), (20, 50, 100, 200)),
):
    axes.set(xscale="log", xlabel=xlabel)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
both[0].set_ylabel("loss on held-out text")
legend = {"loc": "outside upper center", "ncols": 4, "fontsize": "small"}
legend["title"] = "bars: from one seed to the other"
figure.legend(*both[0].get_legend_handles_labels(), **legend)
words = "Lower and further left is better. By bytes, from right to left: DDP, bfloat16, PowerSGD, "
words += "the two that talk every 16 steps, and top-k furthest left and highest. "
words += "By time the two that talk every 16 steps are furthest left, and DDP is furthest right."
show(figure, words)


# %% jupyter={"source_hidden": true}
def hundredths(name):
    """By how many hundredths the loss has fallen, by seed."""
    losses = rows[name]["losses"]
    return 100 * (losses[:, 0] - losses[:, -1])


def each_hundredth(name, unit):
    each = total(name, unit) / hundredths(name)
    return f"about {each.mean():.0f} ± {half_apart(each):.0f}"


print(f"{'to lower the loss by 0.01':27}{'KB per rank':22}µs at 1 Gbit/s")
for name in rows:
    print(f"{name:27}{each_hundredth(name, kb_of):22}{each_hundredth(name, us_of)}")

# %% [markdown]
# Per byte, top-k and a mean every 16 steps are alike, and more than twelve times as good as DDP. Per µs the mean leads: beside top-k its steps take less time and bring more. All this is of 48 steps, the beginning of a training: error feedback had hardly begun to pay, and DiLoCo had made three outer steps.
#
# ### 25 Gbit/s, 64 ranks, this model: which?
#
# Bytes are no goal, time is. Two models enter here: recordings stretched to 64 ranks, and the assumption that a step brings as much progress on 64 ranks as on 4. It favours those who exchange rarely, since more ranks drift further apart.
#
# **Predict.** Which of the rows above takes the least time to lower the loss?

# %%
methods = "DDP", "bfloat16", "top 1 %", "top 1 %, error feedback", "PowerSGD, rank 4"
methods += "every 16 steps", "DiLoCo, every 16 steps"
fastest = predict("fastest at 25 Gbit/s on 64 ranks", ..., choices=methods)


# %% jupyter={"source_hidden": true}
def ms_of_64(name):
    steps = PERIOD // EXCHANGES.get(name, PERIOD)  # from one exchange to the next
    return ms_per_step(stretched(name, 64), networks["25 Gbit/s"], steps)


# %%
took_ms, step_ms = {}, {name: ms_of_64(name) for name in rows}
for name in rows:
    took_ms[name] = (total(name, step_ms.get) / hundredths(name)).mean().item()
    text = f"{step_ms[name]:.2f} ms per step, about {took_ms[name]:.1f} ms per hundredth of loss"
    print(f"{name:26}{text}")
fastest.measured(min(took_ms, key=took_ms.get))

# %% [markdown]
# Fewer bytes hardly help: a ring of 64 has 126 latencies of 10 µs, whatever it carries, and PowerSGD has three rings. Talking **less often** wins, because in a small model latency is the cost. In a large one bytes are, and the answer may be another: the lab asks for that choice.
#
# **Check yourself.** Your ranks sit in one machine, on NVLink. A colleague proposes PowerSGD. What do you say?
#
# <details><summary>Answer</summary>
# Measure which share of a step waits for messages. Here it is about one percent: no method can gain more, and this one pays with progress and with the time of compressing.
# </details>

# %%
predict()
