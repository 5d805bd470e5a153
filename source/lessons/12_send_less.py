# %% [markdown]
# # 12 · Send less
#
# **Your network is the limit: what can ranks leave unsaid, and what does it cost you?**
#
# In 85 minutes you will be able to
#
# 1. write hooks that send fewer bytes, and say what each of them loses;
# 2. let ranks talk every sixteenth step only, and say what that breaks;
# 3. decide on a method for 64 ranks, by time per unit of progress, with and without overlap.
#
# **Hardware:** two cores. If there's a GPU for each of four ranks, training runs on them. **Before:** [05 · DDP from scratch](05_ddp_from_scratch.ipynb) and
# [06 · What communication costs](06_what_communication_costs.ipynb). **Next:** [13 · Hold less](13_hold_less.ipynb).
# **Lab:** [12 · Send less](../exercises/12_send_less.ipynb).
#
# Five cells ask you to **predict**: replace the three dots with your answer. Four ask you to **write** a function. A check runs it in real workers. When it passes, or when you ask, you'll see our version.

# %% jupyter={"source_hidden": true}
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as post_local_sgd
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_12
from course_lessons import chapter_12_pictures as pictures
from course_lessons.chapter_12 import Table, again_and_again, diloco, ready, trained, under_ddp
from course_lessons.finished import go_on_with
from course_utils import Network, check, launch, predict

# %% [markdown]
# ## 1 · What the network costs
#
# Here four ranks teach the small GPT to continue *Pride and Prejudice*. A **method** says what they tell each other, and gets a row in one table: the KB (1,000 bytes) that
# a rank sends in a step, the time of a step on three networks, and the loss after 48 steps, on text that no rank trains on. All methods start from the same GPT. It has already read for 60 steps, alone, so its loss is lower than the 4.3 of a blind guess (chapter 04).


# %%
networks = {
    "1 Gbit/s": Network(latency_us=50, gbit_s=1),
    "25 Gbit/s": Network(latency_us=10, gbit_s=25),
    "NVLink-like": Network(latency_us=2, gbit_s=2400),
}
# How long a step computes: chosen by us, like the networks' numbers, not measured.
table = Table(networks, compute_ms=1)

# %% [markdown]
# A method is a function that gets the neural network and returns two functions. A step calls the first one with its inputs, as it would the network itself. After the optimiser's step, the second one is called with the step's number. The first method is `ddp`: PyTorch's DDP, with a **communication hook** if you like. DDP calls it
# with a state and a bucket of gradients, in place of its own `all_reduce`. If `state` is a function, each training calls it for a fresh state.
#
# The hook returns a **future** of the gradients' mean: an object for a result that may not be there yet. A collective with `async_op=True` has one, `work.get_future()`. And `.then(f)` makes a new future: once the first is done, it's given to `f`, and what `f` returns is the result of the new one.


# %%
def ddp(hook=None, state=None):
    def method(network):
        model = DistributedDataParallel(network)
        if hook:
            model.register_comm_hook(state() if callable(state) else state, hook)
        return model, lambda step: None

    return method


# %% [markdown]
# `table.measure` trains with two seeds, which decide what text is read. It also replays 16 recorded steps, and prints a row. The number after ± is half the distance between the two seeds. In this model nothing overlaps: a step computes for 1 ms, then its
# messages travel. Part 6 has a model that overlaps.

# %% [markdown]
# **Predict.** The gradients are 227 KB, and four ranks sum them in a ring (chapter 06): six turns, each with 50 µs of latency. A step computes for 1 ms. At 1 Gbit/s, what percentage of the whole step do messages take?

# %%
percent = predict("% of a step that messages take at 1 Gbit/s", ...)

# %%
table.measure("DDP", ddp())
step_ms = table.rows["DDP"].ms["1 Gbit/s"]
percent.measured(round(100 - 100 * table.compute_ms / step_ms), within=0.06)
print(f"loss on held-out text before the first step: about {table.rows['DDP'].losses[0, 0]:.3f}")

# %%
pictures.draw_step_times(table)

# %% [markdown]
# Three quarters at 1 Gbit/s, a seventh at 25, and on the fast network next to nothing. That's the most you can save by sending less.

# %% [markdown]
# ## 2 · Half the bytes
#
# Gradients need not travel in float32. Two types have 16 bits: **float16** keeps three decimal digits, up to 65,504; **bfloat16** keeps two, with the range of float32.

# %%
numbers = torch.tensor([1e-8, 1e-3, 1.001, 1e3, 1e5])
short = {"float16": numbers.half(), "bfloat16": numbers.bfloat16()}
short["float16, scaled by 1024"] = (1024 * numbers).half().float() / 1024
print(f"{'float32':24}", *(f"{number:12.5g}" for number in numbers.tolist()))
for name, row in short.items():
    print(f"{name:24}", *(f"{number:12.5g}" for number in row.tolist()))

# %% [markdown]
# float16 loses both ends, bfloat16 the third decimal of 1.001. Scaling up saves the small number and makes large ones overflow earlier, here already 1,000. That's why training in float16 adapts its scale as it goes, with [`GradScaler`](https://docs.pytorch.org/docs/stable/amp.html).

# %% [markdown]
# ### Write it
#
# *About 4 minutes.* Write a hook that sends the bucket in a different type. That type is the hook's first argument, its state; `bucket.buffer()` is one flat tensor. Divide by the number of ranks first, in the bucket's own precision. Then cast, sum, and cast back.


# %%
def my_half(dtype, bucket):
    raise NotImplementedError("about 4 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# When does the mean of four float16 numbers fit into float16, though their sum doesn't?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Divide, cast, start an <code>all_reduce</code> with <code>async_op=True</code>. Its future, and a <code>then</code> that casts the sum back, is what to return. Without <code>then</code> DDP ends with an
# internal error about a <code>PyObject</code>: that future's value is a list of tensors, and DDP wants one tensor.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return work.get_future().then(lambda done: done.value()[0].to(bucket.buffer().dtype))</code>.
# </details>


# %%
halved = check(under_ddp(my_half), **chapter_12.HALF)
halved

# %%
half = go_on_with(my_half, halved, chapter_12.half)
pictures.draw_half(my_half, half)

# %% [markdown]
# PyTorch has `bf16_compress_hook` and `fp16_compress_hook` ([documentation](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)). They cast first, and then divide. Here rank 0's gradient is 70,000, and rank 1's is 0:


# %%
for hook, state in ((half, torch.float16), (fp16_compress_hook, None)):
    mean = launch(chapter_12.mean_of_large, hook, state)[0]
    print(f"{hook.__name__:18} in float16: {mean:,.0f}")

# %% [markdown]
# The mean, 35,000, fits into float16, whose numbers are 32 apart there. Rank 0's 70,000 doesn't. In bfloat16 none of these numbers overflows, and dividing by 4 changes only the exponent. So with four ranks the order can't matter there:

# %%
apart = chapter_12.weights_apart(ddp(half, torch.bfloat16), ddp(bf16_compress_hook))
print("ours and PyTorch's differ by", apart)
table.measure("bfloat16", ddp(half, torch.bfloat16))

# %% [markdown]
# Half the bytes for the same loss. At 25 Gbit/s the step gains little: half of what's left there is latency. But a ring rounds the sum at every rank that it passes: three times here, 63 times with 64 ranks. We haven't measured what that costs.

# %% [markdown]
# ## 3 · The largest hundredth
#
# **Top-k** sends the *k* largest entries of a gradient by absolute value, each with its place ([Lin and others, 2018](https://arxiv.org/abs/1712.01887), send one in a thousand). Every rank chooses places of its own, so nothing can be
# added on the way: all ranks gather all places and values.

# %% [markdown]
# ### Write it
#
# *About 6 minutes.* The state is the share to send; *k* is at least 1. Places travel as int32, half of what `topk` returns. Return a future of the mean, where what was not sent counts as 0. `ready(tensor)` makes a future that is done.


# %%
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


# %%
topped = check(under_ddp(my_top_k), **chapter_12.TOP_K)
topped

# %%
top_k = go_on_with(my_top_k, topped, chapter_12.top_k)
pictures.draw_top_k(my_top_k, top_k)

# %% [markdown]
# Why exactly *k* of them? If a rank sent all entries whose absolute value is above some limit, it wouldn't have to sort. Rank 0 has the gradient (9, −7, 1), rank 1 (8, 2, 0), and the limit is 5. This is meant to fail:


# %%
def all_above(limit, bucket):
    large = bucket.buffer()[bucket.buffer().abs() > limit]
    from_all = large.new_empty(dist.get_world_size() * len(large))
    dist.all_gather_into_tensor(from_all, large)
    return ready(bucket.buffer())  # the mean would come here


def step_above(gradients):
    gradient = gradients[dist.get_rank()]
    two_steps = [[gradient], [gradient]]  # of a network with one parameter
    return under_ddp(all_above)(two_steps, 5, 25)  # the limit, and MB of a bucket


# %% tags=["raises-exception"]
# On gloo, so that it fails alike on every machine.
launch(step_above, torch.tensor([[9.0, -7, 1], [8, 2, 0]]), backend="gloo", timeout=5)

# %% [markdown]
# Rank 0 sends two numbers, rank 1 one: *shape (2,)* and *shape (1,)* in the same collective. With other sizes it may hang or return nonsense instead (chapter 08). A hook sees its own rank's gradients only, so **how much it sends must not depend on them.** *k* doesn't. If you want a limit, agree on the largest count first.

# %%
table.measure("top 1 %", ddp(top_k, 0.01))

# %% [markdown]
# A 25th of the bytes, and the loss falls little more than half as far. What wasn't sent is lost. Two weights show how bad that can be. Rank 0's gradient is always (10.5, 1), rank 1's (−10.5, 1): they disagree about the first weight and **agree** about the second.

# %% [markdown]
# **Predict.** SGD makes 25 steps with a rate of 0.1, and each rank sends one of its two numbers, the larger one by absolute value. DDP moves the second weight to −2.5. Where does top-1 move it?

# %%
second_weight = predict("the second weight after 25 steps of top-1", ...)


# %%
def remembering(share):  # error feedback: what top_k doesn't send is added to the next gradient
    return lambda network: ddp(chapter_12.Remembering(share).hook)(network)


methods = {"DDP": ddp(), "top-1": ddp(top_k, 0.5), "with error feedback": remembering(0.5)}
paths = {}
for name, method in methods.items():
    paths[name] = launch(chapter_12.two_weights, method)[0]
    print(f"{name:20} {paths[name][-1]}")
second_weight.measured(paths["top-1"][-1][1])
pictures.draw_second_weight(paths)

# %% [markdown]
# Nowhere: numbers that cancel crowd out the one that counts. **Error feedback** keeps what wasn't sent and adds it to the next gradient
# ([Seide and others, 2014](https://www.microsoft.com/en-us/research/publication/1-bit-stochastic-gradient-descent-and-application-to-data-parallel-distributed-training-of-speech-dnns/)). So the second weight's gradients are sent late: those of steps 2 to 12 together in step 12, those of the next eleven steps in step 23. The last two are still held back. Only step 1's is lost: our memory begins with step 2, since DDP fills its buckets anew after the first. After enough steps top-k then
# converges at the rate of SGD ([Stich and others, 2018](https://arxiv.org/abs/1809.07599)). And our GPT?

# %%
table.measure("top 1 %, error feedback", remembering(0.01))

# %% [markdown]
# Two seeds don't show any gain. But feedback can only give back what was held back before, and that takes time. So let's send less, three numbers in a thousand, and train longer, 128 steps, with two ranks to save time:


# %%
methods = {"DDP": ddp(), "top 0.3 %": ddp(top_k, 0.003), "with feedback": remembering(0.003)}
chapter_12.print_after_128(methods)

# %% [markdown]
# Both seeds end lower with feedback: what's sent late makes up for a part of what was lost. Stich's proof is for SGD. Adam divides by the size of past gradients, and [Tang and others (2021)](https://arxiv.org/abs/2102.02888) say that
# error feedback doesn't work with it unchanged. Our AdamW gains all the same, in this one model.

# %% [markdown]
# ### On 64 ranks
#
# `table.stretched` takes the recording of one rank's step and lets 64 ranks make the same calls. That is a model: no 64 ranks ran.

# %% [markdown]
# **Predict.** With the top 1 %, how many times fewer bytes than DDP does a rank send on 64 ranks?

# %%
fewer = predict("times fewer bytes on 64 ranks", ...)


# %%
ratio = pictures.draw_bytes_by_ranks(table, ("DDP", "top 1 %"), (4, 16, 64))
fewer.measured(round(ratio, 1), within=0.1)

# %% [markdown]
# To sum in a ring, a rank sends less than twice the gradients, however many ranks there are. But what `all_gather` sends grows with the number of ranks. Among *n* ranks DDP sends 2 (*n* − 1)/*n* times the gradients, and the top 1 % sends 0.02 (*n* − 1) times: a hundredth of values and as many places. So above 100 ranks the top 1 % takes more bytes. **What can't be added on the way doesn't scale.**

# %% [markdown]
# ## 4 · Low rank
#
# The gradient of a linear layer is a matrix. **PowerSGD** ([Vogels and others, 2019](https://arxiv.org/abs/1905.13727)) sends two thin matrices of *r* columns instead, whose product comes near it. Unlike top-k's choices, they can be added on the way. This *r* is called the
# **rank** of the product, a word that has nothing to do with our processes.

# %% [markdown]
# How near can it come? For the GPT's 256 × 64 layer, here's how much of one process's gradient the best product of each rank holds, as a share of its squared norm. One step of the power method, which you'll write, comes less near, and a mean over many ranks may need more columns.


# %%
shares = launch(chapter_12.squared_shares, world_size=1)[0]
for rank in (1, 2, 4, 8):
    print(
        f"rank {rank}: at best about {100 * shares[rank - 1]:.0f} % of the gradient's squared norm"
    )
pictures.draw_shares(shares, (1, 2, 4, 8))

# %% [markdown]
# The **power method** multiplies a matrix *M* by a few columns *q*: each product leans toward the directions in which *M* is strongest. Made **orthonormal**, these columns have length 1 and stand at right angles to each other, so they can't all lean the same way; we call them *P*. Then *M*ᵀ*P* says how much of each of them is in every column of *M*, and the product *P* (*M*ᵀ*P*)ᵀ is that part of *M* which lies in these directions.

# %% [markdown]
# ### Write it
#
# *About 5 minutes.* Make one step of the power method on *M*, the **mean** of all ranks' matrices, which nobody has. `q` has *r* columns and is equal on all ranks. *P* is *Mq*, made orthonormal; *Q* is *M*ᵀ*P*. Return *PQ*ᵀ and *Q*. Use two `all_reduce` calls, and send only tensors with *r* columns.


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


# %%
thinned = check(again_and_again(my_low_rank), **chapter_12.LOW_RANK)
thinned

# %%
low_rank = go_on_with(my_low_rank, thinned, chapter_12.low_rank)
pictures.draw_low_rank(my_low_rank, low_rank)

# %% [markdown]
# The check calls your function three times: the second and the third time with the *Q* just returned. With this **warm start** the power method goes on from step to step. PyTorch's `powerSGD_hook` does that for each matrix of a bucket that shrinks to less than half, with error feedback. The first `start_powerSGD_iter` steps are plain DDP: at least two,
# since DDP fills its buckets anew after the first. `plain_steps=2` tells the table to count them as DDP's.

# %%
state = partial(power_sgd.PowerSGDState, None, 4, start_powerSGD_iter=2)
table.measure("PowerSGD, rank 4", ddp(power_sgd.powerSGD_hook, state), plain_steps=2)

# %% [markdown]
# A tenth of the bytes, and the loss falls nearly nine tenths as far as DDP's. But look at 25 Gbit/s: PowerSGD is **slower** than DDP. It makes three calls instead of one: for all *P*, for all *Q*, and for biases and norms, which it leaves as they are. The two extra calls pay twelve more latencies, which is 120 µs, while the saved bytes would take only 98 µs.

# %% [markdown]
# ### Where it does not pay
#
# Compressing takes time, too. Here's what it takes on one core of this machine, without unpacking, next to the time that a step saves, which is the difference of unrounded times. A GPU would be faster; by how much, this machine can't tell.


# %%
compared = chapter_12.compressing(table)
pictures.draw_compressing(compared, list(networks))

# %% [markdown]
# At 25 Gbit/s only bfloat16 saves more than it takes, and on the fast network no method does. **Compression pays where it takes less time than it saves**, and it saves bytes, not latency. Part 6 leaves this time out: keep it in mind there.

# %% [markdown]
# ## 5 · Send less often
#
# **Local SGD** ([Stich, 2018](https://arxiv.org/abs/1805.09767)): each rank trains by itself for *H* steps, then all take the mean of their **weights**. Here *H* is 16, so the 16 steps that the table records hold one exchange: `exchanges=1`.


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
table.measure("every 16 steps", every(16), exchanges=1)

# %% [markdown]
# A 16th of the bytes **and** of the latencies. PyTorch ships this as [PeriodicModelAverager](https://docs.pytorch.org/docs/stable/distributed.optim.html); `PostLocalSGDOptimizer` calls it after each step of your optimiser.

# %% [markdown]
# It averages at call `warmup_steps` + 1, then every `period` calls, so `warmup_steps=period - 1` gives our rhythm. Here are 8 steps of the averager next to `every(4)`:


# %%
def pytorchs_averager(period, warm_up):
    def method(network):
        averager = PeriodicModelAverager(period, warmup_steps=warm_up)
        return network, lambda step: averager.average_parameters(network.parameters())

    return method


apart = chapter_12.weights_apart(every(4), pytorchs_averager(4, warm_up=3))
print("ours and PyTorch's differ by", apart)

# %% [markdown]
# With a real warm-up, let DDP average gradients meanwhile, or the ranks drift apart. That's **post-local SGD** ([Lin and others, 2018](https://arxiv.org/abs/1808.07217)). `post_localSGD_hook` does it, with `start_localSGD_iter` equal to `warmup_steps`. After the warm-up it goes on averaging gradients within each node, unless its state has `post_local_gradient_allreduce=False`. Here four ranks play two nodes:


# %%
def post_local(period, warm_up, **options):
    def method(network):
        node, _ = dist.new_subgroups(2)  # two ranks are a node
        state = post_local_sgd.PostLocalSGDState(None, node, warm_up, **options)
        model = DistributedDataParallel(network)
        model.register_comm_hook(state, post_local_sgd.post_localSGD_hook)
        _, average = pytorchs_averager(period, warm_up)(network)
        return model, average

    return method


# %% [markdown]
# We warm up for 4 steps and then take the mean of the weights every 4 steps. After each of 9 steps we count how many different models the four ranks have:

# %%
no_mean_in_nodes = {"post_local_gradient_allreduce": False}
methods = {
    "averager without hook": pytorchs_averager(4, warm_up=4),
    "averager and hook": post_local(4, warm_up=4),
    "hook, no mean in nodes": post_local(4, warm_up=4, **no_mean_in_nodes),
}
chapter_12.print_models(methods)

# %% [markdown]
# Without the hook, all four drift apart during the warm-up. With it they stay one model up to the mean at step 5. From then on there are two models, one for each node, or four without a mean in nodes, where each rank trains alone. The mean at step 9 makes them one again.

# %% [markdown]
# **DiLoCo** ([Douillard and others, 2023](https://arxiv.org/abs/2311.08105)) treats an exchange as a step. Its gradient is the mean over ranks of (weights at the last exchange − weights now). An **outer** optimiser steps along it: SGD with Nesterov momentum 0.9 and rate 0.7. With rate 1 and no momentum you'd get the plain mean. You'll write it in lab 12, as `outer_step`.


# %%
table.measure("DiLoCo, every 16 steps", diloco(16), exchanges=1)

# %% [markdown]
# In three outer steps it gains nothing over the mean here. In the paper, eight ranks make hundreds of inner steps between exchanges and come as far as DDP, with 500 times fewer exchanges. But much depends on the inner **learning rate**, here 0.003. With a third of it:

# %%
slower = {"DDP": ddp(), "every 16 steps": every(16), "DiLoCo, every 16 steps": diloco(16)}
for name, method in slower.items():
    print(f"{name:24} inner rate 0.001: loss {chapter_12.format_loss(trained(method, 0.001)[0])}")

# %% [markdown]
# All three end with a higher loss than before, and DiLoCo's has risen least. Its outer steps are longer: for three equal displacements, rate 0.7 and momentum 0.9 make them 1.3, 1.9 and 2.4 times as long as the mean's. That helps where the inner rate is too small. Two seeds are a hint and no proof. **If you exchange less often, tune both rates again.**

# %% [markdown]
# ### What the mean forgets
#
# Batch norm keeps its running mean and variance in **buffers**, which aren't parameters. Two ranks train a small network, one on even digits and one on odd ones, and take the mean of their parameters. Do they then say the same of the same images?


# %%
means = {}
for buffers, title in ((False, "own buffers"), (True, "averaged")):
    (first, first_mean), (second, second_mean) = launch(chapter_12.after_averaging, buffers)
    difference = (first - second).abs().max().item()
    print(f"buffers averaged: {buffers}, scores of an image differ by up to about {difference:.2g}")
    means[f"rank 0, {title}"] = first_mean
    means[f"rank 1, {title}"] = second_mean
pictures.draw_running_means(means)

# %% [markdown]
# Equal parameters, and yet two models. DDP sends rank 0's buffers at the start of each step, so they never differ by more than one step (chapter 05). If you average parameters, average the buffers too.

# %% [markdown]
# AdamW's moments stay apart, too. Each rank keeps its own, in `every` and in `diloco`, and in the DiLoCo paper as well. To average them, you'd send three times the bytes. So put each rank's moments into your checkpoint, or you won't resume the same training.

# %% [markdown]
# ### What stragglers gain
#
# A step takes 1 ms, but in each step one rank is slow and needs 4. In a first run the ranks take turns at that, in a second it's always rank 2. On the fast network 16 steps of DDP take 64 ms, both times.

# %% [markdown]
# **Predict.** How many ms do 16 steps take with one exchange at their end? Answer with a list of two numbers.

# %%
straggling_ms = predict("ms with hiccups in turn, with a slow rank 2", ..., count=2)

# %%
for name in ("DDP", "every 16 steps"):
    both = [chapter_12.straggling_ms(table, name, who) for who in ("in turn", "always rank 2")]
    print(f"{name:16} in turn {both[0]:5} ms, always rank 2 {both[1]:5} ms")
straggling_ms.measured([round(ms) for ms in both])
pictures.draw_straggling()

# %% [markdown]
# Taking turns, each rank pays for its own four slow steps, 12 · 1 + 4 · 4 = 28 ms, where DDP pays for everybody's. A rank that's **always** slow still holds everyone up. It needs fewer steps, not fewer exchanges: that's exercise 2 of the lab.

# %% [markdown]
# ## 6 · Bytes per unit of progress
#
# Here's the whole table, without the time that compressing takes. The figure below shows the loss against what a rank has sent, and against time at 1 Gbit/s.

# %%
table.print()

# %%
pictures.draw_progress(table)

# %%
table.print_price()

# %% [markdown]
# Compare at equal loss. DDP's loss is known after 0, 16, 32 and 48 steps, and we draw straight lines in between: its steps to the same loss are estimates. To get as far as top-k or the mean every 16 steps, DDP sends about ten times as many bytes. In time, the mean every 16 steps leads: it takes half as long as DDP. Top-k saves only a sixth, and bfloat16 gets to top-k's loss sooner.

# %% [markdown]
# All this is of 48 steps: error feedback has hardly begun to pay, and DiLoCo has made three outer steps.

# %% [markdown]
# ### 25 Gbit/s, 64 ranks, this model: you decide
#
# Two things are modelled here, not measured: we stretch the recordings to 64 ranks, and we assume that a step there brings as much progress as on 4. **Progress** is how many of DDP's steps one step is worth: if DDP gets to the same loss in 30 steps instead of 48, it's 0.6.

# %% [markdown]
# We round progress to tenths, because two seeds can't show more. And the assumption flatters methods that exchange rarely. More ranks average away more noise, but not what drifting apart costs: in Stich's proof, four times the ranks need exchanges twice as often. We leave out error feedback and DiLoCo, which 48 steps can't judge.

# %%
left_out = ("top 1 %, error feedback", "DiLoCo, every 16 steps")
candidates = table.candidates("25 Gbit/s", world_size=64, without=left_out)
print(*chapter_12.lines_of(candidates), sep="\n")

# %% [markdown]
# **Overlap.** DDP calls a hook as soon as a bucket is full, so messages can travel while backward computes the rest. We take backward to be two thirds of a step's computing. Whatever fits into it is hidden, and you pay for the rest. An exchange after a step has nothing to hide behind. Our `top_k` hides nothing either, because it waits for its gathers inside the hook.

# %% [markdown]
# That's **the most** that overlap can hide. Our small model has a single bucket, which is full only when backward is over: it would hide nothing. With more buckets, each would pay its own latencies, of which a ring of 64 has 1.26 ms. A neural network with many large buckets comes close to this upper limit.

# %% [markdown]
# **Predict.** A step computes for 10 ms, and nothing overlaps. Which method takes the least time per progress?

# %%
methods = ("DDP", "bfloat16", "top 1 %", "PowerSGD, rank 4", "every 16 steps")
best = predict("fastest at 25 Gbit/s on 64 ranks", ..., choices=methods)

# %% [markdown]
# ### Write the decision
#
# *About 8 minutes.* `candidates[name]` has three fields: `messages_ms` and `progress`, both per step, and `in_backward`, which says whether its messages can overlap. `overlap` says whether any do. Return the name with the least time per progress.


# %%
def my_fastest(candidates, compute_ms, overlap):
    raise NotImplementedError("about 8 lines")


# %%
decided = check(my_fastest, **chapter_12.FASTEST)
decided

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Messages of 3 ms meet a backward of 2 ms. How long is the step, if it computes for 3 ms?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Hidden is the smaller one of messages and 2/3 of computing, and nothing without overlap. A step takes computing plus messages minus what is hidden; divide that by its progress.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>hidden_ms = min(candidate.messages_ms, 2 / 3 * compute_ms)</code>, and at the end <code>min(times, key=times.get)</code>.
# </details>

# %%
fastest = go_on_with(my_fastest, decided, chapter_12.fastest)
computing_ms = (0.5, 3, 10, 30)
chapter_12.print_decisions(fastest, candidates, computing_ms)
best.measured(fastest(candidates, 10, False))

# %%
pictures.draw_decision(candidates, list(candidates), computing_ms, my_fastest)

# %% [markdown]
# With overlap, DDP and bfloat16 hide all their messages from 3 ms on and are equally fast: our function names DDP because it comes first in `candidates`. With 0.5 ms, fewer bytes hardly help: our ring of 64 pays 126 latencies of 10 µs, whatever it carries, and PowerSGD runs three rings. So talking **less often** wins. But that's the ring. Halving (chapter 06) pays 12 latencies. Here's the decision again, by its formula:

# %%
by_halving = table.candidates("25 Gbit/s", 64, without=left_out, algorithm="halving")
print(*chapter_12.lines_of(by_halving), sep="\n")
chapter_12.print_decisions(fastest, by_halving, computing_ms)

# %% [markdown]
# DDP's messages take 0.26 ms instead of 1.40. Now bfloat16 wins. With overlap DDP is as good, since both hide all their messages. Talking less often wins nowhere. **Before you change the method, change the algorithm.** For small messages like ours, NCCL has trees (chapter 06).

# %% [markdown]
# In a larger model bytes are the cost, and the answer may be different again: the lab asks for that choice.

# %% [markdown]
# **Check yourself.** Your ranks sit in one machine, on NVLink. A colleague proposes PowerSGD. What do you say?
#
# <details><summary>Answer</summary>
# Measure what share of a step waits for messages. In our NVLink column it's about one percent, so no method can gain more. PowerSGD would make three calls instead of one, compute more, and lose progress. Say no, kindly, and show the number.
# </details>
#
# Practise in [lab 12](../exercises/12_send_less.ipynb).
#
# **Next:** [13 · Hold less](13_hold_less.ipynb), where ranks share what a model needs in memory.

# %%
predict()
