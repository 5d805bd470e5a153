# %% [markdown]
# # 18 · Cut the stack
#
# **A stack of layers no longer fits on one GPU: if each rank has some of the layers, how do you keep all of them busy?**
#
# In 70 minutes you will be able to
#
# 1. write a stage of a pipeline whose gradients are exact;
# 2. write two schedules, GPipe and 1F1B, and say what each of them costs;
# 3. predict the bubble, and check the formula by a replay of real ranks;
# 4. say who waits when a text, or a layer of experts, is shared out instead.
#
# **Hardware:** two cores; all ranks use gloo on the CPU.
# **Before:** [17 · Cut the layer](17_cut_the_layer.ipynb). **Lab:** [18 · Cut the stack](../exercises/18_cut_the_stack.ipynb).

# %% jupyter={"source_hidden": true}
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss

from course_lessons import chapter_18, pipeline
from course_lessons import chapter_18_pictures as pictures
from course_lessons.chapter_18 import attend, gather, pass_on
from course_lessons.finished import go_on_with, show_source
from course_utils import Network, WorkerTimeout, check, launch, predict

# %% [markdown]
# ## 1 · One after the other
#
# Chapter 17 cut each layer, and paid with two all-reduces per block. There's a cut that sends far less: *whole* layers go to different ranks. Our model has eight layers, and an imaginary GPU has 10 KiB for weights and gradients.

# %%
layers = chapter_18.make_layers()
X, targets = chapter_18.make_batch()
layer_bytes = sum(weight.nbytes for weight in layers[0].parameters())
print(f"weights and gradients of 8 layers: {8 * 2 * layer_bytes / 1024:.0f} KiB")
print(f"of 2 layers: {2 * 2 * layer_bytes / 1024:.1f} KiB; a batch: {list(X.shape)}")

# %% [markdown]
# So four ranks get two layers each. Such a part is called a **stage**. A stage receives activations from the stage before it, computes its layers, and sends what comes out to the next one. In backward, gradients come back the same way. Only neighbours talk, by `send` and `recv`.

# %% [markdown]
# **Predict.** The whole batch passes through four stages, forward and backward. For what share of the step does a stage idle? (All stages are equally fast, and messages take no time.)

# %%
one_batch = predict("share of the step in which a stage idles", ...)

# %% [markdown]
# Real ranks do the step, and the recording is replayed as in [chapter 06](06_what_communication_costs.ipynb). Since our layers are tiny, we *say* what computing takes: 100 µs for a stage's forward and 200 µs for its backward. The prediction takes messages as free. In the picture each takes 10 µs, plus its bytes at 100 Gbit/s, so that you can see it.

# %%
network = Network(latency_us=10, gbit_s=100)
whole_batch = chapter_18.train(pipeline.Stage, pipeline.gpipe, stages=4, count=1)
print("gradients differ from one process by", chapter_18.how_far(whole_batch.gradients))
one_batch.measured(round(whole_batch.idle_share(), 2), within=0.02)
pictures.draw_whole_batch(whole_batch, network)

# %% [markdown]
# The model fits, and every number is right. But four GPUs work only as fast as one: each of them idles for three quarters of the step.

# %% [markdown]
# ## 2 · Microbatches
#
# The first stage could begin with something else while the others work. So the batch is cut into **microbatches**: as soon as the first microbatch has left a stage, that stage may begin with the second. The weights don't change within the batch, so all gradients are added up, as in [chapter 04](04_ddp_training.ipynb)'s gradient accumulation.

# %% [markdown]
# ### Write a stage
#
# **Write** (10 minutes) what a stage does with microbatch number k. The stages together have to compute the gradients of the *whole* batch's mean loss. What's no longer needed must not be held. You have

# %% [markdown]
# | name | what it is |
# | --- | --- |
# | `self.layers`, `self.inputs[k]` | this stage's layers; the model's input (only the first stage's is right) |
# | `self.loss(y, k)`, `self.count` | the mean loss of a microbatch (only right on the last stage); how many there are |
# | `self.rank`, `self.is_first`, `self.is_last` | which stage this is |
# | `self.send(tensor, to)`, `self.receive(source)` | messages; `receive` returns the tensor |
# | `self.held` | a dict, empty at first: what backward will need of each microbatch |


# %%
class MyStage(pipeline.Neighbours):
    def forward(self, k):
        raise NotImplementedError("about 10 lines")

    def backward(self, k):
        raise NotImplementedError("about 5 lines")


# %%
stage = check(chapter_18.stage(MyStage), **chapter_18.STAGE)
stage

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A tensor that has come from a different process has no history. Whose gradient does the stage before you need, and where does autograd put it?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Forward: get x, which needs a gradient unless it's the model's input; compute y; on the last stage, turn y into this microbatch's part of the loss, elsewhere send it. Hold x and y. Backward: take both out again, get the gradient of y (the last stage needs none), run backward, and send the gradient of x unless this is the first stage.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>x = self.receive(self.rank - 1).requires_grad_()</code>; <code>self.loss(y, k) / self.count</code>; <code>y.backward(gradient)</code>, where <code>gradient</code> may be <code>None</code>; <code>self.send(x.grad, self.rank - 1)</code>
# </details>

# %%
Stage = go_on_with(MyStage, stage, pipeline.Stage)
pictures.draw_stage(MyStage, pipeline.Stage)

# %% [markdown]
# Three stages, two microbatches, all forwards first. (If your stage raises an error or hangs, ours is drawn.) `held` has an entry for each microbatch that has gone forward and not yet backward. With such an entry a stage holds all that autograd keeps for that microbatch, so part 4 will count them.

# %% [markdown]
# What's still missing is a **schedule**, which says *when* a stage does what. The simplest one is [GPipe](https://arxiv.org/abs/1811.06965)'s: all forwards, then all backwards. Now take the same 48 rows in four microbatches of 12. (Each still counts as 100 and 200 µs, so there's four times as much computing as above.)
#
# **Predict.** For what share of the step does a stage idle now?

# %%
four_microbatches = predict("share of the step, four microbatches", ...)

# %% [markdown]
# ### Write GPipe
#
# **Write** (3 minutes) what this stage does, in order, as a list such as `[("F", 0), ("B", 0)]`. Microbatches are counted from 0.


# %%
def my_gpipe(stage, stages, count):
    raise NotImplementedError("about 3 lines")


# %%
gpipe_passed = check(chapter_18.schedule(my_gpipe), **chapter_18.GPIPE)
gpipe_passed

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Does the list depend on the stage at all?
# </details>
# <details><summary>Hint 2: the approach</summary>
# ("F", 0), ("F", 1) and so on, and behind them the same numbers with "B". All stages must keep the same order, since the k-th message that a rank sends meets the k-th that its neighbour receives.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>forwards = [("F", k) for k in range(count)]</code>
# </details>

# %%
gpipe = go_on_with(my_gpipe, gpipe_passed, pipeline.gpipe)
pictures.draw_actions(my_gpipe, pipeline.gpipe, stages=3, count=2)

# %% [markdown]
# That's the list on paper, for three stages and two microbatches. And here four real ranks do it, with four microbatches:

# %%
step = chapter_18.train(Stage, gpipe, stages=4, count=4)
print("gradients differ from one process by", chapter_18.how_far(step.gradients))
four_microbatches.measured(round(step.idle_share(), 2), within=0.02)
pictures.draw_schedules({"GPipe, 4 microbatches": step})

# %% [markdown]
# All that's white is called the **bubble**. At first the last stage waits for the first microbatch. Then the first stage waits until a gradient comes back. And in the end the last stage has nothing left to do.

# %% [markdown]
# ## 3 · The bubble
#
# ### Write the formula
#
# **Write** (3 minutes) the share of the step in which a stage idles, for any number of stages and microbatches. The check compares it with replays of real ranks.


# %%
def my_bubble(stages, count):
    raise NotImplementedError("about 1 line")


# %%
bubble_passed = check(my_bubble, **chapter_18.bubble_check(Stage, gpipe))
bubble_passed

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Call one forward and one backward together a turn. How many turns does a stage work, and how many does the whole step take?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A stage works for as many turns as there are microbatches. The last stage begins when the others have each done one forward; and when it's done, each of the others has one backward left. So the step takes one more turn for every other stage.
# </details>
# <details><summary>Hint 3: the code</summary>
# The step takes <code>count + stages - 1</code> turns.
# </details>

# %%
bubble = go_on_with(my_bubble, bubble_passed, chapter_18.bubble)

# %% [markdown]
# With p stages and m microbatches that's (p − 1) / (m + p − 1). In the formula, messages are free. The last column below is for a network on which each takes 10 µs and more.

# %%
counts = (1, 2, 4, 8, 24)
replayed = {2: [], 4: []}
print("stages  microbatches  formula   replay  difference   with 10 µs a message")
for p, shares in replayed.items():
    for m in counts:
        step = chapter_18.train(Stage, gpipe, stages=p, count=m)
        shares.append(step.idle_share())
        difference = round(shares[-1] - bubble(p, m), 4)
        row = f"{p:6}{m:14}{bubble(p, m):9.1%}{shares[-1]:9.1%}{difference:12.1%}"
        print(f"{row}{step.idle_share(network):15.1%}")
print(f"by the formula, 4 stages and 27 microbatches: {bubble(4, 27):.1%}")
pictures.draw_bubble(counts, replayed, my_bubble, bubble)

# %% [markdown]
# More microbatches shrink the bubble: four stages need 27 to idle for a tenth of the step. Messages add less than two points, because they only delay a stage while the pipeline fills and empties; in between, the next microbatch is there. (Some papers give (p − 1) / m: idle time divided by *working* time.)

# %% [markdown]
# So why not take a thousand microbatches? A GPU computes small ones less efficiently, which our model doesn't know: [Narayanan and others](https://arxiv.org/abs/2104.04473) have measured it. And there's a price that we can count.

# %% [markdown]
# ## 4 · One forward, one backward
#
# Under GPipe a stage holds *all* microbatches before the first one goes backward. The last stage, however, could start the backward pass of a microbatch as soon as its forward pass is done. So could the stage before it, when that gradient comes.

# %% [markdown]
# This is **1F1B**, [one forward, one backward](https://arxiv.org/abs/2104.04473):
#
# - warm-up: as many forwards as there are stages *behind* this one;
# - then one forward and one backward in turn, until no forward is left;
# - in the end: the backwards that are still missing, in order.

# %% [markdown]
# **Predict.** Compared with GPipe, the bubble of 1F1B is

# %%
compared = predict("the bubble of 1F1B is", ..., choices=["smaller", "equally large", "larger"])

# %% [markdown]
# ### Write 1F1B
#
# **Write** (8 minutes) the list of a stage. There may be fewer microbatches than stages.


# %%
def my_one_f_one_b(stage, stages, count):
    raise NotImplementedError("about 6 lines")


# %%
one_f_one_b_passed = check(chapter_18.schedule(my_one_f_one_b), **chapter_18.ONE_F_ONE_B)
one_f_one_b_passed

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What does the last stage do? It has no warm-up. And what does the stage before it do first?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Let <code>warm_up</code> be the number of stages behind this one, but at most <code>count</code>. Forward number <code>warm_up + k</code> is followed by backward number <code>k</code>. In the end, <code>warm_up</code> backwards are left.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>warm_up = min(stages - stage - 1, count)</code>; <code>for k in range(count - warm_up):</code> <code>actions += [("F", warm_up + k), ("B", k)]</code>
# </details>

# %%
one_f_one_b = go_on_with(my_one_f_one_b, one_f_one_b_passed, pipeline.one_f_one_b)
pictures.draw_actions(my_one_f_one_b, pipeline.one_f_one_b)

# %% [markdown]
# That's the list on paper again, with fewer microbatches than stages. And now real ranks do eight microbatches, first by GPipe and then by 1F1B:

# %%
steps = {}
for name, schedule in (("GPipe", gpipe), ("1F1B", one_f_one_b)):
    steps[name] = chapter_18.train(Stage, schedule, stages=4, count=8)
    how_far = chapter_18.how_far(steps[name].gradients)
    print(f"{name:6}gradients differ from one process by {how_far}")
difference = round(steps["1F1B"].idle_share() - steps["GPipe"].idle_share(), 6)
compared.measured({-1: "smaller", 0: "equally large", 1: "larger"}[chapter_18.sign(difference)])
pictures.draw_schedules(steps)

# %% [markdown]
# The last stage begins as late as before, and the first one still has to wait for the last gradient. So the bubble is just as large: 3 of 11 turns, where a turn is one forward and one backward. 1F1B isn't faster. What does it save?

# %%
pictures.draw_held(steps)
many = chapter_18.train(Stage, one_f_one_b, stages=4, count=24)
print(f"1F1B with 24 microbatches holds {many.most_held}")
print("share of the step in which a stage idles:")
for name, step in steps.items():
    free, slow = step.idle_share(), step.idle_share(network)
    print(f"{name:6}{free:.1%} if messages take no time, {slow:.1%} with 10 µs a message")

# %% [markdown]
# A stage holds at most as many microbatches as there are stages from it to the end: 4, 3, 2 and 1, instead of 8 each. With 24 microbatches it's still 4. So you can take many microbatches, and *that* makes the bubble small.

# %% [markdown]
# With real messages 1F1B idles more. A stage now waits for a gradient before each next forward, so it can't run ahead, and a late message is felt in each turn. The replay knows this, but the formula doesn't.

# %% [markdown]
# ### Who sends first?
#
# Our `send` doesn't wait: it starts an `isend`, and the stage waits for all of them at the end of the step. What if you use `dist.send` instead, which returns only when the other side has received?
#
# **Predict.** Two stages, four microbatches. Which schedule hangs with blocking sends?

# %%
hanging = predict(
    "with blocking sends", ..., choices=["none hangs", "GPipe hangs", "1F1B hangs", "both hang"]
)

# %%
hangs = []
for name, schedule in (("GPipe", gpipe), ("1F1B", one_f_one_b)):
    worker = chapter_18.train_with, pipeline.BlockingStage, schedule, 4
    try:  # a blocking send that waits is gloo's
        launch(*worker, world_size=2, backend="gloo", timeout=8)
        print(f"{name} is done")
    except WorkerTimeout as error:
        hangs.append(name)
        print(f"{name} hangs:", error)
        pictures.draw_waiting(error)
words = ["none hangs", f"{''.join(hangs)} hangs", "both hang"]
hanging.measured(words[len(hangs)])

# %% [markdown]
# Under GPipe, all messages go one way, and then all go back. Under 1F1B they cross: stage 0 sends its second activation while stage 1 sends its first gradient. Both are in `send`, and nobody receives.

# %% [markdown]
# With gloo, `isend` is enough. NCCL keeps the order of messages between two ranks, as [chapter 03](03_collective_primitives.ipynb) said, so there a send and the receive that crosses it go into one `batch_isend_irecv`.

# %% [markdown]
# ## 5 · Check it against PyTorch
#
# PyTorch has both schedules. A `PipelineStage` wraps a rank's layers; the schedule cuts the batch, and `step` does the rest. The first stage gets the input, the last one the targets.


# %%
def by_pytorch(schedule_class):
    rank, stages = dist.get_rank(), dist.get_world_size()
    mine = chapter_18.part_of(chapter_18.make_layers(), rank, stages)
    wrapped = PipelineStage(mine, rank, stages, torch.device("cpu"))
    schedule = schedule_class(wrapped, n_microbatches=8, loss_fn=mse_loss)
    first = [X] if rank == 0 else []
    last = {"target": targets} if rank == stages - 1 else {}
    schedule.step(*first, **last)
    return chapter_18.gradients_of(mine)


# %%
for name, schedule_class in (("GPipe", ScheduleGPipe), ("1F1B", Schedule1F1B)):
    run = launch(by_pytorch, schedule_class, world_size=4, backend="gloo", trace=True)
    theirs = [gradient for of_rank in run for gradient in of_rank]
    how_far = chapter_18.how_far(theirs, steps[name].gradients)
    microbatch_bytes = X.nbytes // 8
    counted = [
        chapter_18.count_messages(trace.of_rank(1), microbatch_bytes)
        for trace in (run.trace, steps[name].trace)
    ]
    print(f"{name:6}gradients differ by {how_far}")
    print(
        f"      messages of {microbatch_bytes} bytes from rank 1: {counted[0]}, ours {counted[1]}"
    )

# %% [markdown]
# PyTorch gets the same gradients, and rank 1 sends as many messages as ours: eight activations and eight gradients.

# %% [markdown]
# ## 6 · Cut the text
#
# What if the *text* is too long? Then each rank gets some of its rows: **context parallel**. Everything but attention treats a row by itself. In attention, each row asks all others. So keys and values travel around in a ring ([Liu and others](https://arxiv.org/abs/2310.01889)), and each rank works on the part that it has at that moment.

# %% [markdown]
# But a softmax divides by a sum over *all* rows. Can it be computed part by part?

# %%
show_source(attend)


# %%
def merge(first, second):
    highest = torch.maximum(first[0], second[0])
    scale_first = (first[0] - highest).exp()
    scale_second = (second[0] - highest).exp()
    total = scale_first * first[1] + scale_second * second[1]
    mixed = scale_first * first[2] + scale_second * second[2]
    return highest, total, mixed


def ring(q, k, v):
    result = attend(q, k, v)
    for _ in range(dist.get_world_size() - 1):
        k, v = pass_on(k), pass_on(v)
        result = merge(result, attend(q, k, v))
    return result[2] / result[1]


def gathered(q, k, v):
    result = attend(q, gather(k), gather(v))
    return result[2] / result[1]


# %%
attended = {}
for rows, world_size in ((64, 4), (128, 8)):
    text = f"{rows} rows,\n{world_size} ranks"
    attended[text] = chapter_18.compare_attention([ring, gathered], rows, world_size)
pictures.draw_attention(attended)

# %% [markdown]
# Both are right, and both send equally much. But after gathering, a rank has all keys, and computes scores of its 16 rows against all 64. In the ring it's 16 against 16 at a time. With a text twice as long on twice as many ranks, the largest tensor doubles where keys are gathered, and stays as it is in the ring. (This is forward only.)

# %% [markdown]
# ## 7 · Experts
#
# The last cut depends on the data. A layer of **experts** has several weights, and a *router* chooses one of them for each token. Each rank has one expert. So tokens travel to their experts, and outputs back, by `all_to_all` (which you wrote in [lab 03](../exercises/03_collective_primitives.ipynb)).


# %%
def expert_layer(tokens, choice, expert):
    order = choice.argsort(stable=True)
    sent = choice.bincount(minlength=dist.get_world_size())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)  # first, how many will come
    sent, received = sent.tolist(), received.tolist()
    arrived = tokens.new_empty(sum(received), tokens.shape[1])
    dist.all_to_all_single(arrived, tokens[order], received, sent)
    outputs = torch.tanh(arrived @ expert)
    returned = torch.empty_like(tokens)
    dist.all_to_all_single(returned, outputs, sent, received)
    in_place = torch.empty_like(tokens)
    in_place[order] = returned
    return in_place, len(arrived)


# %% [markdown]
# Four ranks have 64 tokens each. We play the router. First each expert gets a quarter of all tokens; then expert 0 gets half of them, and the others share the rest. An expert takes 1 µs for a token.
#
# **Predict.** How many times as long does the layer take with half of the tokens at expert 0?

# %%
times_as_long = predict("times as long as when balanced", ...)

# %%
finish_us, layers_of_experts = [], {}
for name in ("balanced", "half to expert 0"):
    routed = layers_of_experts[name] = chapter_18.route(expert_layer, name)
    finish_us.append(max(routed.replay.finish_us))
    waits = ", ".join(f"{us:.0f}" for us in chapter_18.waits_us(routed.replay))
    verdict = "right" if routed.is_right else "wrong"
    print(f"{name:18}{verdict}, tokens of each expert {routed.received}, µs waited: {waits}")
times_as_long.measured(round(finish_us[1] / finish_us[0], 2))
pictures.draw_experts(layers_of_experts)

# %% [markdown]
# Both times there are as many tokens and as many calls, and all outputs are right. But everybody waits for the busiest expert. That's why routers get an extra loss that asks for balance, or why an expert takes only so many tokens ([Switch Transformers](https://arxiv.org/abs/2101.03961) have both).

# %% [markdown]
# **Check yourself.** A node has eight GPUs, and there are sixteen nodes. Which cut would you place inside a node, and which between nodes: layers (chapter 17) or stages?
#
# <details><summary>Answer</summary>
# Cut layers inside a node: each block has two all-reduces that everybody waits for. Put stages on different nodes: a stage sends one activation per microbatch to one neighbour, however many layers it has, and with enough microbatches the next activation is already there when it's needed.
# </details>
#
# Practise in [lab 18](../exercises/18_cut_the_stack.ipynb).
#
# **Next:** [19 · When scaling stops](19_when_scaling_stops.ipynb), which chooses among all these cuts.

# %%
predict()
