# %% [markdown]
# # 05 · DDP from scratch
#
# **What is inside `DistributedDataParallel`, and which of its parts earn their place?**
#
# In 140 minutes, best in two sittings (parts 1 to 4, then 5 to 9), you will be able to
#
# 1. write your own DDP in eight small steps, each judged by real workers;
# 2. say what each step gains on a network, from a recording of real ranks;
# 3. start messages from autograd's hooks, while backward still computes;
# 4. keep such code right when ranks take different paths.
#
# **Hardware:** two cores, or a GPU for each rank, where rounding may come out differently. **Before:** [04 · DDP training](04_ddp_training.ipynb).
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb).
# **Lab:** [05 · DDP from scratch](../exercises/05_ddp_from_scratch.ipynb).
#

# %% [markdown]
# Eight cells ask you to **write** a step, which real workers judge. The next step builds on our finished form, which appears once yours has passed. Five cells ask you to
# **predict**: put your answer in place of the three dots. Saved outputs give answers away, so clear them first: menu *Edit*, *Clear Outputs of All Cells*.

# %% jupyter={"source_hidden": true}
import functools
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import takewhile  # noqa: F401 - a help in step 6

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_05
from course_lessons import chapter_05_pictures as pictures
from course_lessons.chapter_05 import (
    Buckets,
    Equal,
    Flat,
    InOrder,
    Overlapped,
    PerParameter,
    Silent,
    Unaided,
    Wrapper,
    accumulating,
    after_backward,
    average_judged,
    batch,
    buckets_judged,
    clock,
    draw,
    drawn,
    fill,
    flat_judged,
    learning,
    my_device,
    network,
    noting,
    order_judged,
    overlap_judged,
    plain,
    same_network,
    silence_judged,
    start_judged,
    starting,
    trained,
    unaided,
    weights,
)  # fmt: skip
from course_lessons.finished import show_source, show_when_passed
from course_material.language import SmallGPT, novel
from course_utils import WorkerError, WorkerTimeout, check, launch, plot_calls, predict

# %% [markdown]
# ## 1 · Start equal
#
# Our DDP wraps a network, as PyTorch's does. This is its frame. It does nothing yet, and each of the eight steps fills in or replaces a method.


# %%
show_source(Wrapper)

# %% [markdown]
# `learning` leaves **frozen** parameters out: they never get a gradient. Here is a network with everything that wrappers stumble over: a batch norm, whose running mean is a **buffer** (part of the
# model, but without gradient), a frozen layer, and a weight that two layers share, called **tied**.


# %%
def awkward():
    body = [nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)]
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.BatchNorm1d(64), *body)
    network[1].requires_grad_(False)  # frozen
    network[5].weight = network[3].weight  # tied
    return network


# %% [markdown]
# **Predict.** Its `state_dict()` has 13 tensors. Each rank seeds itself differently and adds its rank to the running mean. How many of the 13 differ between two ranks, first without a
# wrapper, then in PyTorch's DDP? Answer with a list of two numbers. (`my_device()` is the rank's GPU if `launch` gave it one, else the CPU.)

# %%
different = predict("tensors that differ, bare and in PyTorch's DDP", ..., count=2)


# %% tags=["row-D5"]
def started(wrap):
    torch.manual_seed(dist.get_rank())
    network = awkward().to(my_device())
    network[2].running_mean += dist.get_rank()
    wrap(network)
    return network.state_dict()


states, counts = {}, []
for name, wrap in {"bare": nn.Sequential, "in DDP": DistributedDataParallel}.items():
    states[name] = state_0, state_1 = launch(started, wrap)
    counts.append(sum(not torch.equal(state_0[each], state_1[each]) for each in state_0))
different.measured(counts)
pictures.draw_copies(states)

# %% [markdown]
# Each square says whose values a copy has. Nine differ: all random weights, the frozen ones among them, and the running mean. The tensors that batch norm starts at zero or one were equal anyway (=). In DDP
# nothing differs: its constructor has sent rank 0's tensors to everybody.

# %% [markdown]
# ### Write it
#
# *About 4 minutes.* After `start`, everything that `forward` computes with is equal to rank 0's copy, on every rank. Change the network's tensors in place, because an
# optimiser may hold them already, and send each tensor once.


# %%
class MyStart(Wrapper):
    def start(self):
        raise NotImplementedError("about 2 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# An optimiser asks for parameters that learn, a checkpoint for <code>state_dict()</code>. Some buffers are in neither
# (<code>persistent=False</code>). Which two methods of a module name all tensors?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Broadcast every parameter and every buffer from rank 0, in the same order on all ranks. <code>parameters()</code> names a tied weight once.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.broadcast(tensor.detach(), src=0)</code> for each of <code>[*self.module.parameters(), *self.module.buffers()]</code>.
# </details>

# %% [markdown]
# The checks of this chapter use a still smaller network. It has a frozen layer, two tied ones, two buffers, and two layers called **experts**, of which an input may use one or both.

# %%
outcome = check(starting(MyStart), **start_judged)
outcome

# %% [markdown]
# Here are the copies that your `start` leaves on three ranks (until you have written it, ours), and how often each tensor was sent:

# %%
pictures.draw_start(MyStart, Equal)
show_when_passed(outcome, Equal)

# %% [markdown]
# **Check yourself.** `state_dict()` of `awkward` names 13 tensors, and `Equal` broadcasts 12. Which one is missing, and why is that right?
#
# <details><summary>Answer</summary>
# The tied weight has two names there, but <code>parameters()</code> yields each tensor once, however many names it has.
# </details>

# %% [markdown]
# ## 2 · Average
#
# All ranks now start with the same weights. If they also apply the same gradients, they stay equal. This is the training loop for the whole chapter: chapter 04's, with a call of
# `finish` for our own wrappers. `plain` makes the network that it trains, and `batch` the data:


# %%
show_source(plain)
show_source(batch)


# %%
def train(wrap, network, steps=10):
    torch.manual_seed(dist.get_rank())
    model = wrap(network().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        if isinstance(model, Wrapper):
            model.finish()
        optimizer.step()
    return torch.cat([each.flatten() for each in model.module.state_dict().values()])


# %% [markdown]
# ### Write it
#
# *About 4 minutes.* `finish` replaces the gradient of each parameter in `self.learning` by the mean over all ranks. Use one `all_reduce` for each parameter.


# %%
class MyAverage(Equal):
    def finish(self):
        raise NotImplementedError("about 3 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# <code>all_reduce</code> gives a sum. What turns a sum over ranks into a mean, however many ranks there are?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Divide each gradient by the number of ranks, then sum it in place. (PyTorch divides first as well: a sum of many large gradients might overflow.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>parameter.grad /= dist.get_world_size()</code>, then <code>dist.all_reduce(parameter.grad)</code>.
# </details>


# %%
outcome = check(trained(MyAverage), **average_judged)
outcome

# %% [markdown]
# From here on, your step is drawn as well. In place of real gradients, backward leaves 1 on rank 0, 4 on rank 1 and 10 on rank 2. So in the rows *then has*, every gradient should be their mean, 5. A message shows what it carries. *e1.b* is the
# bias of expert 1; *t* stands for the tied layers.

# %%
pictures.draw_step(MyAverage, PerParameter, paths=[(0, 1)] * 3)
show_when_passed(outcome, PerParameter)

# %% [markdown]
# **Predict.** We train `plain` with `PerParameter`, our finished form of this step, and with PyTorch's DDP, each on two ranks. After 10 steps, what is the largest difference between
# a weight of ours and the same weight of PyTorch's?

# %%
from_pytorch = predict("largest difference of a weight to PyTorch's", ...)


# %% tags=["row-D6"]
def apart(results, others):
    """The largest difference of a weight or buffer, on any rank."""
    return max((tensor - other).abs().max().item() for tensor, other in zip(results, others))


ddp_weights = launch(train, DistributedDataParallel, plain)
drifted = apart(launch(train, Equal, plain), ddp_weights)
print(f"without averaging, as a control: about {drifted:.2f}")
our_weights = launch(train, PerParameter, plain)
from_pytorch.measured(apart(our_weights, ddp_weights))
print("our two ranks differ by", apart([our_weights[0]], [our_weights[1]]))

# %% [markdown]
# **Bit for bit** the same, on CPUs: two lines do everything that DDP does to the numbers. (Averaging the *weights* instead would give a different model with Adam, as chapter 04 has shown.) What
# follows changes only *when* and *in what portions* gradients travel.

# %% [markdown]
# **Check yourself.** Why is a `broadcast` of the weights after every step not needed, "to be safe"?
#
# <details><summary>Answer</summary>
# Equal weights, minus equal gradients, are equal: after ten steps our two ranks differed by exactly 0.
# </details>

# %% [markdown]
# ## 3 · One flat buffer
#
# `PerParameter` sends 18 messages per step. What does that cost? Times taken between processes of one laptop would only tell us about this laptop. So we record eight ranks and **replay** the recording on a model of ordinary Ethernet: 10
# Gbit/s, with a latency of 30 µs. Each rank has a **port**, through which its bytes enter and leave the network.

# %% [markdown]
# In this model, a rank needs 1 µs of backward for each kilobyte of gradient, 9 ms in all. It copies 5 GB per second. `clock` also prints a second time, for *free copies*: the same step if copying cost nothing.
#
# `clock` records one real step. Hooks note how many gradients were there when each call began, so we don't assume what overlaps. Only the rates are our choice.

# %%
took_ms = clock(PerParameter, copies=False)
draw(
    ["PerParameter"],
    "After backward the port sends. A gap is the latency of a bias, which has few bytes.",
)

# %% [markdown]
# 29.1 ms is more than three times backward alone. It adds up from three parts. Backward takes 8.98. The bytes take 12.58, as a ring of eight passes 2 · 7/8 of them through each port. And 7.56 are
# **latency**, for 18 rings of 14 messages at 30 µs each. Latency is what we can save first, by packing all gradients into one message.

# %% [markdown]
# ### Write it
#
# *About 6 minutes.* `finish` copies all gradients into one flat tensor, averages that with a single `all_reduce`, and copies the mean back into each `.grad`.


# %%
class MyFlat(Equal):
    def finish(self):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Gradients have one or two dimensions, the buffer has one. How do you find a gradient's numbers in it again, and its shape?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Flatten and concatenate; divide; one <code>all_reduce</code>. Then split the buffer into as many numbers as each gradient has, and copy each part back in that gradient's shape.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>flat = torch.cat([p.grad.flatten() for p in self.learning])</code>; on the way back
# <code>zip(self.learning, flat.split([p.numel() for p in self.learning]))</code> and <code>p.grad.copy_(part.view_as(p))</code>.
# </details>

# %%
outcome = check(trained(MyFlat), **flat_judged)
outcome


# %%
pictures.draw_step(MyFlat, Flat)  # on two ranks: 1 and 4, so the mean is 2.5
show_when_passed(outcome, Flat)

# %%
took_ms = clock(Flat)
draw(["PerParameter", "Flat"], "Flat sends without gaps, but its port waits for both copies.")

# %% [markdown]
# Now we pay the latency of one ring instead of 18. But two copies have appeared, of 1.8 ms each, during which nothing is sent.

# %% [markdown]
# **Check yourself.** For which networks is `Flat` slower than `PerParameter`?
#
# <details><summary>Answer</summary>
# Where the 17 saved latencies of 14 messages each, 17 × 14 × *latency*, are less than the two copies, 3.6 ms: with a latency below 15 µs. With free copies, nowhere.
# </details>

# %% [markdown]
# ## 4 · Buckets
#
# Copy a part, send it, and copy the next one while the first is on its way. The parts are **buckets**: lists of parameters, closed once they hold 2 MiB (1 MiB is 1,048,576 bytes). They are filled
# from the last layer to the first, because that is the order in which gradients arrive.


# %%
show_source(fill)

# %% [markdown]
# ### Write it
#
# *About 8 minutes.* `send` starts the `all_reduce` of one bucket and returns at once. `finish` sends all buckets and then collects them one by one: it waits for the bucket, and copies it back.

# %% [markdown]
# The check notes `g` when a gradient is there, `A` when an `all_reduce` begins, and `w` when you wait. (Each `w` at the very end is left out.) Three buckets should give `gggggggAAA`,
# while waiting too early gives `gggggggAwAwA`. A `W` is a wait for a call that you have waited for before.


# %%
class MyBuckets(Equal):
    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network)
        self.buckets = fill(self.learning, limit_bytes)
        self.sent = []  # what `finish` has to know of each bucket that left

    def send(self, bucket):
        raise NotImplementedError("about 3 lines")

    def finish(self):
        raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which three things does <code>finish</code> need for each bucket that left? And what must be true of <code>self.sent</code> when the next step begins?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>send</code> packs the gradients as in <code>MyFlat</code>, starts an <code>all_reduce</code> with <code>async_op=True</code>, and notes bucket, buffer and work. <code>finish</code> sends all, then
# takes the notes in turn: wait, split, copy back. At last it empties the notes.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>self.sent.append((bucket, flat, dist.all_reduce(flat, async_op=True)))</code>, and later
# <code>for bucket, flat, work in self.sent:</code> with <code>work.wait()</code> first.
# </details>


# %%
outcome = check(trained(MyBuckets), **buckets_judged)
outcome


# %%
pictures.draw_step(MyBuckets, Buckets, limit_bytes=100)
show_when_passed(outcome, Buckets)

# %% [markdown]
# **Predict.** Buckets pay for latency four times, `Flat` once. Which of the two is faster where copies cost nothing: `"Flat"`, `"Buckets"`, or `"equal"`?

# %%
faster = predict("faster where copies are free", ..., choices=("Flat", "Buckets", "equal"))

# %%
flat_ms, buckets_ms = clock(Flat), clock(Buckets)
faster.measured("Flat" if flat_ms[1] < buckets_ms[1] else "Buckets")
draw(["Flat", "Buckets"], "Free copies: Flat has the latency of one ring.", rate="free copies")
draw(["Flat", "Buckets"], "Copies at 5 GB/s: with buckets, most go on while the port sends.")

# %% [markdown]
# The order **flips**. At 5 GB/s the buckets win, because most of their copies hide behind messages. With free copies they lose by three rings' latencies, 3 · 14 · 30 µs. So by themselves, buckets only pay where copies are slow. Their real use comes next: a bucket can leave *before backward is over*.

# %% [markdown]
# Here is a good place for a break.
#
# **Check yourself.** Why does `finish` send all buckets before it waits for the first?
#
# <details><summary>Answer</summary>
# With <code>work.wait()</code> right after each <code>all_reduce</code>, the port would idle while the next bucket is packed.
# </details>

# %% [markdown]
# ## 5 · While backward still computes
#
# In the pictures the port is idle for all of backward, though the last layer's gradients are there early. `register_post_accumulate_grad_hook` calls a function with a
# parameter as soon as its `.grad` is complete.

# %% [markdown]
# ### Write it
#
# *About 12 minutes.* When the last gradient of a bucket has come, the bucket leaves, from within backward. Never wait in a hook: `finish` collects after backward. Buckets of
# 2, 2 and 3 parameters should now give `ggAggAgggA`.


# %%
class MyOverlap(Buckets):
    def __init__(self, network, limit_bytes=2 * 2**20):
        super().__init__(network, limit_bytes)
        self.arrived = set()
        for parameter in self.learning:
            parameter.register_post_accumulate_grad_hook(self.gradient_is_here)

    def gradient_is_here(self, parameter):
        raise NotImplementedError("about 4 lines")

    def finish(self):
        raise NotImplementedError("about 2 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How do you know that a bucket is complete? And what must be forgotten before the next backward?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Note the parameter in <code>self.arrived</code>. Look for the bucket that it belongs to. If all of that bucket have arrived, send it. <code>finish</code> calls <code>self.collect()</code>, which
# the finished <code>Buckets</code> has, and empties <code>self.arrived</code>.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>if any(parameter is each for each in bucket) and self.arrived.issuperset(bucket):</code> (with <code>in</code>, torch would compare numbers).
# </details>


# %%
outcome = check(trained(MyOverlap), **overlap_judged)
outcome


# %%
pictures.draw_step(MyOverlap, Overlapped, limit_bytes=100)
show_when_passed(outcome, Overlapped)

# %% [markdown]
# **Predict.** There are 12.6 ms of sending and 9.0 ms of backward, in four buckets. How many ms does the step take, with copies at 5 GB/s?

# %%
overlapped_ms = predict("ms of a step that overlaps", ...)

# %%
took_ms = clock(Overlapped)
overlapped_ms.measured(took_ms[0], within=0.1)
forms = ["PerParameter", "Flat", "Buckets", "Overlapped"]
draw(forms, "Overlapped begins to send while backward computes; the others begin after it.")

# %% [markdown]
# The first bucket leaves when a quarter of the gradients are there. From then on the port is the bottleneck: after 2.5 ms come 12.6 for the bytes, 1.7 of latency, and 0.5 to copy
# the last bucket back. Overlap wins at *both* rates of copying, at least for this model on this Ethernet.

# %% [markdown]
# How large should a bucket be? We try five sizes, with 30 µs of latency and with ten times as much. The picture begins on the left with *alone*: each gradient is a bucket of its own.

# %%
sizes_mib = [1e-6, 1, 2, 4, 16]  # the first is less than any tensor has
sized = [functools.partial(Overlapped, limit_bytes=int(mib * 2**20)) for mib in sizes_mib]
runs = chapter_05.recorded_all(*sized)
step_ms = {}
for latency_us in (30, 300):
    slower = replace(network, latency_us=latency_us)
    step_ms[latency_us] = []
    for run in runs:
        replay, _ = chapter_05.replayed(*run, 0.2 / 1000, slower)
        step_ms[latency_us].append(chapter_05.step_ms(replay))
pictures.draw_sizes(sizes_mib, step_ms)

# %% [markdown]
# 2 MiB is best with 30 µs, and 4 MiB with 300: with more latency, each message has to carry more. One bucket of 16 MiB holds everything and is `Flat` again, to the digit. PyTorch's default is 25 MiB, but its first
# bucket is closed at 1 MiB, so something leaves early.

# %% [markdown]
# ### Can copies be free?
#
# PyTorch has an option for that, `gradient_as_bucket_view=True`. In how many pieces of memory do the 18 gradients lie after backward? And how many of them did autograd write to that very place? A hook
# that we register before DDP's own sees each gradient as autograd leaves it.


# %%
def memory_of_gradients(as_view, to_none, steps=3):
    network, written = plain().to(my_device()), {}
    for p in network.parameters():
        p.register_post_accumulate_grad_hook(lambda p: written.update({p: p.grad.data_ptr()}))
    model = DistributedDataParallel(network, bucket_cap_mb=2, gradient_as_bucket_view=as_view)
    for step in range(steps):
        model.zero_grad(set_to_none=to_none)
        images, labels = batch(step)
        cross_entropy(model(images), labels).backward()
    places = []
    for parameter in network.parameters():
        piece = parameter.grad.untyped_storage().data_ptr()
        places.append((piece, parameter.grad.data_ptr() == written[parameter]))
    return places


# %%
places = {}
for as_view, to_none in ((False, True), (True, True), (True, False)):
    name = f"as_bucket_view={as_view}\nset_to_none={to_none}"
    places[name] = launch(memory_of_gradients, as_view, to_none)[0]
pictures.draw_memory(places)

# %% [markdown]
# Without the option autograd writes each gradient to memory of its own, where it stays: DDP copies it into a bucket, and the mean back. With the option, each `.grad` *is* a part of its bucket after backward. So the mean isn't copied back, and no memory is needed for a second copy of all gradients.

# %% [markdown]
# But `zero_grad()` drops these parts. In the next step autograd writes to new memory again, and DDP copies each gradient *into* the bucket. Only `set_to_none=False` keeps the parts: then autograd writes where the
# message is read, and nothing is copied. The [documentation](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html) names the price of the option: such a `.grad` can't be detached in place.

# %% [markdown]
# **Check yourself.** The last layer of a language model holds half of all weights. What does that mean for overlap?
#
# <details><summary>Answer</summary>
# That layer is the first bucket, as parameters are not split. Its message starts early, with all of the remaining backward to hide behind. If it were the first layer instead, its message would leave last, with nothing
# to hide behind.
# </details>

# %% [markdown]
# ## 6 · When the ranks disagree
#
# So far we haven't asked what happens when gradients arrive in **a different order** on one of the ranks. Autograd goes back
# through what forward computed last, so the order is up to forward.

# %% [markdown]
# `TwoExperts` takes a path: `(0, 1)` uses expert 0 first, `(1, 0)` expert 1, and `(0,)` leaves
# expert 1 out. `fate`, below, runs a few backward passes and compares each rank's gradients with the mean of what the ranks get on their own, without a wrapper.

# %% [markdown]
# **Predict.** Rank 0 takes `(0, 1)`, rank 1 takes `(1, 0)`. The two experts are equally large, and each is a bucket. What becomes of `Overlapped`: `"right"`, `"wrong sums"`, `"crash"` or `"hang"`?

# %%
fates = ("right", "wrong sums", "crash", "hang")
another_order = predict("Overlapped, in a different order on rank 1", ..., choices=fates)


# %%
def passes(wrap, paths, steps):
    """Gradients after the last of some backward passes; a rank's path may be one for each."""
    experts, path_of_rank = same_network(), paths[dist.get_rank()]
    model = wrap(experts)
    torch.manual_seed(dist.get_rank())
    for step in range(steps):
        path = path_of_rank[step] if isinstance(path_of_rank, list) else path_of_rank
        inputs, targets, path = drawn(path)
        model.zero_grad()
        mse_loss(model(inputs, path), targets).backward()
        if isinstance(model, Wrapper):
            model.finish()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in learning(experts)]


# %%
def fate(wrap, paths, steps=3):
    """What becomes of gradients when rank 0 goes the first path and rank 1 the second."""
    # How ranks that disagree end is up to the backend: here it is gloo.
    alone = launch(passes, lambda network: network, paths, steps, backend="gloo")
    try:
        results = launch(passes, wrap, paths, steps, backend="gloo", timeout=6)
    except WorkerTimeout:
        return "hang"
    except WorkerError as error:
        return "crash: " + error.failures[0].headline.partition(": ")[2]
    means = [sum(each) / 2 for each in zip(*alone)]
    right = all(torch.allclose(a, b) for gradients in results for a, b in zip(gradients, means))
    return "right" if right else "wrong sums"


# %%
def overlapped(network):
    return Overlapped(network, limit_bytes=100)


def pytorch(network, **options):
    return DistributedDataParallel(network, bucket_cap_mb=1e-4, **options)


# %%
another_order.measured(fate(overlapped, [(0, 1), (1, 0)]))
print("PyTorch's DDP, in a different order:", fate(pytorch, [(0, 1), (1, 0)]))
print("Overlapped, in one order:", fate(overlapped, [(0, 1), (0, 1)]))
pictures.draw_step(Overlapped, paths=[(0, 1), (1, 0)], limit_bytes=100)

# %% [markdown]
# No hang, no crash, no error: just averages of one expert's gradients with the other's. Gloo pairs the *n*-th call of one rank with the *n*-th of the other, and since both carry 144 bytes, nothing shows. PyTorch's DDP gets it right.

# %% [markdown]
# Now expert 1 is not used on rank 1. That happens in a mixture of experts when no token is sent to one of them. The next cell fails on purpose, after three seconds. Which rank waits, and in which line?

# %% tags=["raises-exception"]
try:  # as above, it ends as gloo does
    launch(passes, Overlapped, [(0, 1), (0,)], 1, backend="gloo", timeout=3)
except WorkerTimeout as hang:
    plot_calls(hang)
    raise

# %% [markdown]
# *Rank 0 waits in `collect`*, for the bucket that it has sent. *Rank 1's function has returned*: its bucket (here one holds everything) never filled, and nobody noticed.
#
# ### And PyTorch's?
#
# Here are the same two paths with PyTorch's DDP, for one backward and for three:

# %%
print("one backward:", fate(pytorch, [(0, 1), (0,)], steps=1))
error_text = fate(pytorch, [(0, 1), (0,)], steps=3)
sentences = " ".join(error_text.split()).replace("e.g. ", "").split(". ")
print("three backwards:", *sentences, sep="\n    ")

# %% [markdown]
# The error begins with **Expected to have finished reduction in the prior iteration**. Read it from the end: on rank 1, the parameters with these two indices got no gradient. So in the first backward a bucket never left, and *rank 1* says so at its *second* forward. Without
# a second forward nobody notices, and rank 0 hangs, as with our own wrapper.

# %% [markdown]
# Which parameters are they? At the debug levels `INFO` and `DETAIL` the error names them. In a script you set `TORCH_DISTRIBUTED_DEBUG=DETAIL` in the environment; `launch` has
# imported torch already, so here the worker sets the level itself.


# %%
def in_detail(network):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    return pytorch(network)


print(*[line for line in fate(in_detail, [(0, 1), (0,)]).splitlines() if "for rank" in line])

# %% [markdown]
# There are two cures in the constructor. `find_unused_parameters=True` walks through the graph after each forward. `static_graph=True` believes that every step uses what the first one used. We try both on a
# model whose expert 1 always rests, and on one whose experts take turns.

# %%
always, in_turn = [(0,), (0,)], [[(0,), (1,), (0,)], [(1,), (0,), (1,)]]
for options in ({}, {"find_unused_parameters": True}, {"static_graph": True}):
    print(options or "as it is")
    for name, paths in {"always the same": always, "in turn": in_turn}.items():
        ending = fate(lambda network: pytorch(network, **options), paths)
        print(f"    {name:16}{ending[:74]}")

# %% [markdown]
# `find_unused_parameters` is right in both cases, but its walk costs time in each step. `static_graph` [never
# walks](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.cpp): it notes in the first backward which gradients came, and refuses a graph that changes.
# If no parameter ever rests, you need neither option. If one always rests, freeze it or take it out of the model.

# %% [markdown]
# ### Write it
#
# *About 12 minutes.* Both faults have one cure: **every rank sends the same buckets in the same order, whatever has come.** A full bucket waits until the one before it has left, and then follows at
# the same hook. After backward, `finish` sends those that remain, with zeros for gradients that are `None`. You may change `gradient_is_here`, `send` and `finish`.


# %%
class MyOrder(Overlapped):
    def gradient_is_here(self, parameter):
        raise NotImplementedError("about 3 lines")

    def finish(self):
        raise NotImplementedError("about 7 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many buckets have left so far? So which one is next? And can several leave at once?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The next bucket is <code>self.buckets[len(self.sent)]</code>. As long as there is one and it is complete, send it. <code>finish</code> gives zeros to whoever has no gradient, sends the remaining buckets, and goes on as
# before. Zeros are right: this rank has nothing to add to the sum.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for bucket in takewhile(self.arrived.issuperset, self.buckets[len(self.sent):]):</code>, and
# <code>parameter.grad = torch.zeros_like(parameter)</code> if there is none.
# </details>


# %%
outcome = check(trained(MyOrder), **order_judged)
outcome


# %%
pictures.draw_step(MyOrder, InOrder, paths=[(0, 1), (0,)], limit_bytes=100)
show_when_passed(outcome, InOrder)

# %%
took_ms = clock(InOrder)

# %% [markdown]
# The gradients are right, and the step is not a microsecond slower. (An expert that *no* rank used gets a gradient of zeros here, where PyTorch leaves `None`. So an optimiser with weight decay would still move its weights. The lab repairs that.)

# %% [markdown]
# **Check yourself.** Rank 1 does not use the *last* layer of a deep network. What does that cost?
#
# <details><summary>Answer</summary>
# The overlap: that bucket is the first in the order, so on rank 1 all the others wait behind it until backward is over, and rank 0 has to wait for rank 1.
# </details>

# %% [markdown]
# ### A weight in two places
#
# Language models often **tie** the embedding, their first layer, and the head, their last one. The head's gradient is computed first of all.

# %% [markdown]
# The course's `SmallGPT` ties them. Without the tie, a model of one block has 17 parameters, and none of the other 16 gradients is complete before the head's. With it the head *is* the
# embedding, so there are 16. How many of the other 15 gradients are complete before the shared weight's?

# %%
tokens, alphabet = novel()  # letters of Pride and Prejudice, as numbers


def windows_of(count):
    starts = torch.randint(len(tokens) - 32, (count, 1))
    return tokens[starts + torch.arange(33)].to(my_device())


def arrivals(tied):
    model, came = SmallGPT(len(alphabet), depth=1, tied=tied).to(my_device()), []
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    model(tokens[None, :64].to(my_device())).sum().backward()
    return came


# %%
came = {}
for name, tied in {"not tied": False, "tied": True}.items():
    came[name] = launch(arrivals, tied, world_size=1)[0]
pictures.draw_arrivals(came)

# %% [markdown]
# All of them: the shared weight's gradient comes last. Its hook is called once, when both uses have been added up, and the embedding's use is the last that backward reaches. So nothing has to be repaired, but the tied weight leaves when backward is over, and its message has nothing to hide behind.

# %% [markdown]
# ## 7 · Not a word
#
# Two things are left. The **buffers** change in every forward, on each rank in its own way, so PyTorch sends rank 0's. And **`no_sync`**: when gradients of several small batches
# accumulate, only the last backward needs to average them. Which of the forwards send buffers then?

# %% [markdown]
# Here are two steps of PyTorch's DDP, each in three parts, the first two within `no_sync`.


# %%
def what_it_sends(model, parts):
    sent_by_part = []
    for number in range(parts):
        sent = set()
        averages = nullcontext() if number % 3 == 2 else model.no_sync()
        with averages, noting(lambda size, name: sent.add(name)):
            model(batch(number)[0]).sum().backward()
        sent_by_part.append(" and ".join(sorted(sent)) or "nothing")
    return sent_by_part


sent = launch(lambda: what_it_sends(DistributedDataParallel(awkward().to(my_device())), 6))[0]
pictures.draw_sent(sent)

# %% [markdown]
# The **first** part of a step sends the buffers, although it's within `no_sync`. The last part, which averages the gradients, doesn't. As long as you only train, PyTorch's rule is this: a
# forward takes over rank 0's buffers if it is the first of all, or if the forward before it was outside `no_sync`. So buffers travel once, as a step begins.

# %% [markdown]
# ### Write it
#
# *About 9 minutes.* `forward` takes over rank 0's buffers by PyTorch's rule. Within `no_sync` no gradients are sent. They only add up, although the loop calls `finish` there as well. After `no_sync`,
# even after an error in it, the wrapper talks again.


# %%
class MySilence(InOrder):
    syncs_gradients = True  # PyTorch: require_backward_grad_sync
    shares_buffers = True  # in the next forward; PyTorch: require_forward_param_sync

    def forward(self, *inputs):
        raise NotImplementedError("about 5 lines")

    @contextmanager
    def no_sync(self):
        raise NotImplementedError("about 5 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which methods of <code>InOrder</code> talk? What does a forward have to know of the one before it? And where does the switch stand if someone stops the cell inside of <code>no_sync</code>?
# </details>
# <details><summary>Hint 2: the approach</summary>
# <code>gradient_is_here</code> and <code>finish</code> talk only if <code>self.syncs_gradients</code>. <code>no_sync</code> sets it to false, yields, and sets it back whatever happens. <code>forward</code> sends buffers if
# <code>self.shares_buffers</code>, and then notes there whether it talks itself. The gradients of silent parts stay in <code>.grad</code>, so the mean of the last part is that of all.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>try: yield</code>, <code>finally: self.syncs_gradients = True</code>, on lines of their own; <code>if self.syncs_gradients: super().finish()</code>; in <code>forward</code> a
# <code>dist.broadcast(buffer, src=0)</code> for each of <code>self.module.buffers()</code>, then <code>self.shares_buffers = self.syncs_gradients</code>.
# </details>


# %%
outcome = check(accumulating(MySilence), **silence_judged)
outcome

# %%
pictures.draw_parts(MySilence, Silent)
show_when_passed(outcome, Silent)

# %% [markdown]
# ## 8 · Nobody calls finish
#
# One difference from PyTorch is left: your loop calls `finish`. A loop written for DDP doesn't, and yet `loss.backward()` returns with averages. So something has to wait *inside* backward, but after its last gradient.

# %% [markdown]
# Autograd's engine has a queue of callbacks for that. It calls them when the pass that is running is over, before `backward()` returns. `after_backward(callback)` puts one there; PyTorch's own name for it is
# `Variable._execution_engine.queue_callback`, which is private, so the course keeps it in one place. You may ask for a callback only during backward, which means from a hook:


# %%
def when_it_is_called():
    calls = []
    number = torch.ones(1, requires_grad=True)
    number.register_post_accumulate_grad_hook(lambda _: calls.append("hook"))
    doubled = 2 * number
    doubled.register_hook(lambda _: after_backward(lambda: calls.append("callback")))
    doubled.backward()
    calls.append("backward returns")
    try:
        after_backward(list)
    except RuntimeError as error:
        calls.append(str(error).split(".")[0])
    return calls


# %%
# How autograd orders its calls has nothing to do with devices.
print(*launch(when_it_is_called, world_size=1, backend="gloo")[0], sep="\n")

# %% [markdown]
# ### Write it
#
# *About 6 minutes.* Let backward itself call `self.finish`, once in each pass that talks. `Silent` is our finished form of step 7. The check trains as before, with a loop that never calls `finish`.


# %%
class MyUnaided(Silent):
    def gradient_is_here(self, parameter):
        raise NotImplementedError("about 3 lines")


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Your hook is called for each gradient. In which of these calls do you ask for the callback? What happens to a bucket if <code>finish</code> runs twice?
# </details>
# <details><summary>Hint 2: the approach</summary>
# The first gradient of a pass is the one that finds <code>self.arrived</code> empty, and <code>finish</code> empties it again. Within <code>no_sync</code> there is nothing to wait for.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>if self.syncs_gradients and not self.arrived:</code>, and then <code>super().gradient_is_here(parameter)</code> in any case.
# </details>

# %%
outcome = check(unaided(MyUnaided), **silence_judged)
outcome

# %%
pictures.draw_step(MyUnaided, Unaided, limit_bytes=100, calls_finish=False)
show_when_passed(outcome, Unaided)

# %% [markdown]
# **Check yourself.** On one rank the loss is that of a different network, and uses none of the wrapped one's parameters. What happens?
#
# <details><summary>Answer</summary>
# No hook is called there, so nobody asks for the callback and no bucket leaves. The other ranks wait.
# </details>

# %% [markdown]
# ## 9 · The whole of it
#
# All eight steps are in `Unaided` and the classes that it's built on:
#
# | lines | what asked for them |
# | --- | --- |
# | `start`, `shares_buffers` | tensors that differed (part 1), a batch norm's buffers (7) |
# | `/ world_size`, `all_reduce` | equal to PyTorch, bit for bit (2) |
# | `cat`, `split` | fewer latencies (3) |
# | `fill`, the hook, `async_op` | buckets that leave while backward computes (4, 5) |
# | `takewhile`, zeros, the first loop of `finish` | wrong sums, and a hang (6) |
# | `syncs_gradients` | silence where nobody needs to talk (7) |
# | `after_backward` | a loop that calls nothing but `backward()` (8) |

# %% [markdown]
# Now the final test, against PyTorch's DDP with buckets of the same size: 10 steps of both networks on two ranks, and 3 on four. Both run in the same loop, chapter 04's, which knows nothing of our wrapper.


# %%
def train_as_is(wrap, network, steps=10):
    torch.manual_seed(dist.get_rank())
    model = wrap(network().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps):
        images, labels = batch(step)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    return torch.cat([each.flatten() for each in model.module.state_dict().values()])


# %%
PyTorchs = functools.partial(DistributedDataParallel, bucket_cap_mb=2)


def train_both(network, steps):
    return [train_as_is(wrap, network, steps) for wrap in (Unaided, PyTorchs)]


# %%
of_ddp = {}
for form in (plain, awkward):
    for size, steps in ((2, 10), (4, 3)):
        ours, of_ddp[form, size] = zip(*launch(train_both, form, steps, world_size=size))
        away = apart(ours, of_ddp[form, size])
        print(f"{form.__name__:8}{size} ranks:", "exactly 0" if away == 0 else f"about {away:.0e}")

drifted = apart(launch(train_as_is, Silent, plain), of_ddp[plain, 2])
print(f"step 7 in the same loop, as a control: about {drifted:.2f}")

# %% [markdown]
# On two ranks both models are the same to the last bit, running means, tied and frozen weights included; on GPUs two trainings may differ by rounding. With four, a sum depends on the order of its terms, and so on where the buckets are cut:
# PyTorch's first step has one bucket, until it has seen in which order gradients come.
#
# The control never calls `finish`: nobody waits, as `launch` says.

# %% [markdown]
# In these trainings each step had only one part. Now each step gets three, two of them within `no_sync`:


# %%
def train_in_parts(wrap, steps=3):
    torch.manual_seed(dist.get_rank())
    model = wrap(awkward().to(my_device()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for number in range(3 * steps):
        images, labels = batch(number)
        silent = number % 3 < 2
        with model.no_sync() if silent else nullcontext():
            (cross_entropy(model(images), labels) / 3).backward()
        if not silent:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat([each.flatten() for each in model.module.state_dict().values()])


# %%
away = apart(*(launch(train_in_parts, ddp) for ddp in (Unaided, PyTorchs)))
print("awkward, 3 steps in 3 parts:", "exactly 0" if away == 0 else f"about {away:.0e}")

# %% [markdown]
# Again they are the same (on CPUs), running means included, though the later parts of a step change them on each rank in its own way.
#
# Finally, we train as people train language models: the small GPT with its tied weight, AdamW, gradients of two small batches that add up, and a limit on their norm.


# %%
def train_gpt(wrap, steps=10):
    torch.manual_seed(dist.get_rank())
    model = wrap(SmallGPT(len(alphabet), depth=1, context=32).to(my_device()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for _ in range(steps):
        optimizer.zero_grad()
        for talking in (model.no_sync, nullcontext):
            windows = windows_of(8)
            with talking():
                (cross_entropy(model(windows[:, :-1]).mT, windows[:, 1:]) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1)
        optimizer.step()
    return weights(model)


# %%
four_buckets = functools.partial(Unaided, limit_bytes=60_000)
ddp_weights = launch(train_gpt, PyTorchs)
one_less = apart(launch(train_gpt, four_buckets, 9), ddp_weights)
away = apart(launch(train_gpt, four_buckets), ddp_weights)
print("10 steps of the GPT:", "exactly 0" if away == 0 else f"about {away:.0e}")
print(f"ours after 9, as a control: about {one_less:.0e}")

# %% [markdown]
# Bit for bit again, on CPUs. Clipping needs nothing from us: it comes after `backward()`, which has left averages already, so both ranks find the same norm.

# %% [markdown]
# **Check yourself.** You freeze a layer *after* wrapping it in `Unaided`. What happens?
#
# <details><summary>Answer</summary>
# The layer's gradient never comes, so its bucket and all behind it leave at the end of backward: the overlap is lost. Worse, the layer gets a gradient of zeros, and an optimiser with weight decay would still move it.
# So freeze first, then wrap. For PyTorch's DDP, too, <a href="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html">parameters mustn't change after wrapping</a>.
# </details>

# %% [markdown]
# ## What you know now
#
# DDP is a broadcast, some hooks and an `all_reduce` per bucket. What makes it fast is *when* messages leave. What makes it right is that all ranks send the same ones, in the same
# order, whatever happened to their gradients. You can now read PyTorch's own [reducer](https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/reducer.hpp): it has
# these parts and more.

# %%
predict()

# %% [markdown]
# Compare two of the five with your own guess. Two calls in a different order neither crash nor hang: the sums are silently wrong. And buckets are not faster by themselves: with free copies they lose.

# %% [markdown]
# Practise in [lab 05](../exercises/05_ddp_from_scratch.ipynb).
#
# **Next:** [06 · What communication costs](06_what_communication_costs.ipynb) opens the `all_reduce` itself. As a side trip,
# [14 · On a GPU: who waits?](14_on_a_gpu_who_waits.ipynb) looks at DDP on real GPUs.
