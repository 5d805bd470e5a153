# %% [markdown]
# # 19 · When scaling stops
#
# **You get more chips: until when does the training get faster, and which plan uses them best?**
#
# In 60 minutes you will be able to
#
# 1. see the calls of a thousand ranks on your laptop, and say what that shows and what it doesn't;
# 2. work out what a step sends, and how many tokens a chip needs to hide it;
# 3. say what a chip must hold under a plan of copies, cut layers and stages;
# 4. choose a plan for 70 billion weights, and say how far to trust a model of its speed.
#
# **Hardware:** two cores; all ranks use gloo on the CPU, or only pretend.
# **Before:** [06 · What communication costs](06_what_communication_costs.ipynb), [17 · Cut the layer](17_cut_the_layer.ipynb) and [18 · Cut the stack](18_cut_the_stack.ipynb).

# %% jupyter={"source_hidden": true}
from course_lessons import chapter_19, scaling  # noqa: F401 - scaling is for your search
from course_lessons import chapter_19_pictures as pictures
from course_lessons.chapter_19 import cut_step, sharded_step
from course_lessons.finished import go_on_with, show_source
from course_lessons.scaling import CLUSTER, MODELS, TOKENS, Plan, step_time
from course_utils import check, dry_run, predict

# %% [markdown]
# ## 1 · A thousand ranks in one process
#
# A rank's *calls* need no GPU, and often no other rank. PyTorch has a process group called `fake`, which says that every call is done and sends nothing. `dry_run` tells a process that it's rank 700 of 1,024, lets it join that group, and records its calls.

# %% [markdown]
# Can you trust that? Where there are real ranks, we can compare. The step is FSDP2's from [chapter 13](13_hold_less.ipynb), over four blocks of two weights each.

# %%
show_source(sharded_step)
chapter_19.compare(world_sizes=(2, 4))

# %% [markdown]
# Real and pretended ranks make the same calls, in the same order, in the same groups and of the same bytes. So let's go where we have no real ranks.

# %% [markdown]
# **Predict.** A unit of FSDP2 is gathered before its forward, freed, and gathered once more before its backward. Then its gradients are scattered. How many calls does each of 1,024 ranks make in a step of four blocks?

# %%
calls_of_step = predict("calls of each rank in a step of four blocks", ...)

# %%
narrow = chapter_19.timed(lambda: dry_run(sharded_step, 4, 64, world_size=1024))
calls_of_step.measured(len(chapter_19.calls(narrow.of_rank(0))))
wide = dry_run(sharded_step, 4, 1024, world_size=1024, ranks=[1023])  # 134 MB of weights
pictures.draw_order({"1,024 wide": wide, "64 wide": narrow}, rank=1023)
narrow

# %% [markdown]
# To a gather, a rank hands in its share of a block's weights; to a scatter, its gradients of the whole block. And in backward, FSDP2 gathers the weights of the next block before it scatters the gradients of this one. So there are two gathers before the first scatter.
#
# Of the 1,024 ranks only four were run: the first two, the middle one and the last. We *assume* that all others do the same. And read the last sentences of the output: the values are wrong, and nobody waits for anybody. A dry run shows calls and bytes. It can't show a hang, a loss or a slow rank.

# %% [markdown]
# It can show surprises, though. A block that's 64 wide has 32,768 weights, so a rank's share is 32 weights, or 128 bytes. But to each gather a rank hands in 1,280.
#
# **Check yourself.** Why is that ten times as much?
#
# <details><summary>Answer</summary>
# FSDP2 cuts every weight along its first dimension. 256 rows, or 64, can't be shared among 1,024 ranks, so both weights are padded to one row per rank. A row of the first has 64 numbers and one of the second 256, which makes 320 numbers of four bytes. Most of what is sent is padding.
# </details>

# %% [markdown]
# ## 2 · What a step sends
#
# Each call is a ring here, as in [chapter 06](06_what_communication_costs.ipynb): to gather S bytes, or to scatter their sum, a rank sends (n − 1)/n · S of them.

# %% [markdown]
# ### Write it
#
# **Write** (4 minutes) what a rank sends in a step of FSDP, in bytes. The check compares with steps of two and four real ranks, and of 32 pretended ones. (They have three blocks, and not four as in part 1.)


# %%
def my_fsdp_bytes(weights, ranks, bytes_per_weight):
    """Bytes that each rank sends in a step, in which every weight belongs to one unit."""
    raise NotImplementedError("about 1 line")


# %%
sent = check(my_fsdp_bytes, **chapter_19.bytes_check())
sent

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How often does each weight go around the ring, as a weight or as a gradient?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Three times: gathered in forward, gathered in backward, scattered as a gradient. Each time a rank sends (n − 1)/n of all bytes.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return 3 * (ranks - 1) / ranks * bytes_per_weight * weights</code>
# </details>

# %%
fsdp_bytes = go_on_with(my_fsdp_bytes, sent, chapter_19.fsdp_bytes)
pictures.draw_sent(my_fsdp_bytes, chapter_19.fsdp_bytes)

# %% [markdown]
# ## 3 · When computing hides it
#
# From here on we need a cluster, so we **describe** one. How fast a chip computes and sends, and how much it holds, is that of an [H100 cluster](https://jax-ml.github.io/scaling-book/gpus). Three numbers are **assumptions of ours**, for which we have no source: both latencies, 2 and 5 µs, and the 60% of its peak that a chip *reaches*. Part 7 looks at what the 60% is worth.

# %%
chapter_19.describe(CLUSTER)
for name, model in MODELS.items():
    print(f"{name}: {model.weights / 1e9:.1f} billion weights in {model.layers} layers")
print(f"a batch of {TOKENS:,} tokens")

# %% [markdown]
# FSDP can send while a chip computes. So at best all of its sending is hidden, if it takes no longer than computing. A weight costs 6 FLOPs for each token ([PaLM, appendix B](https://arxiv.org/abs/2204.02311)): two in forward and four in backward. And a ring through many nodes may use all eight cards of each node, so we let it send 8 · 50, or 400 GB/s.

# %% [markdown]
# **Predict.** The 70B model sends ten times as many bytes as the 7B model. How many tokens per chip does it need to hide them, compared with the 7B model?

# %%
choices = ["a tenth", "as many", "three times as many", "ten times as many"]
tokens_of_70b = predict("tokens per chip, 70B compared with 7B", ..., choices=choices)

# %%
crossings = chapter_19.find_crossings(fsdp_bytes, chips=1024)
times = crossings["70B"].tokens / crossings["7B"].tokens
words = dict(zip((0.1, 1, 3, 10), choices))
tokens_of_70b.measured(words.get(round(times, 1), f"{times:.1f} times as many"))
pictures.draw_crossings(crossings)

# %% [markdown]
# Ten times as many weights mean ten times as many bytes, but also ten times as much computing to hide them behind. So the model's size doesn't matter here: what counts is the chip and its network.

# %% [markdown]
# ### Write it
#
# **Write** (5 minutes) how many tokens each chip needs in a step, so that both take equally long. Weights and gradients are sent in bfloat16, with two bytes. Take (n − 1)/n as 1, and leave out latency and attention.


# %%
def my_tokens_to_hide(flops_s, bytes_s):
    """Tokens per chip; it computes flops_s FLOPs per second, and sends bytes_s bytes."""
    raise NotImplementedError("about 1 line")


# %%
hide = check(my_tokens_to_hide, **chapter_19.TOKENS_CHECK)
hide

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Write down both times for W weights and t tokens. What do they have in common?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Computing takes 6 · W · t / flops_s, and sending 3 · 2 · W / bytes_s. Set them equal, and solve for t.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>return flops_s / bytes_s</code>: both sixes, and W, are gone.
# </details>

# %%
tokens_to_hide = go_on_with(my_tokens_to_hide, hide, chapter_19.tokens_to_hide)
pictures.draw_tokens(my_tokens_to_hide, chapter_19.tokens_to_hide)
reached = CLUSTER.chip.peak_flops_s * CLUSTER.chip.reached
_, bytes_s = CLUSTER.link(ranks=1024, apart=1)  # apart=1: each rank sends to the next one
needed = tokens_to_hide(reached, bytes_s)
print(f"by the formula {needed:,.0f} tokens per chip, so {TOKENS:,} are")
print(f"enough for {TOKENS / needed:,.0f} chips")

# %% [markdown]
# (Above it was 1,482 tokens, since there (n − 1)/n was 1,023/1,024 and not 1.) By this formula 2,827 chips are fine, but it knows only bytes. The replay of [chapter 06](06_what_communication_costs.ipynb) knows latency too. So we take the calls of a dry run with as many blocks as the model has layers, give each call the bytes of a 7B model's layer, and replay them.
#
# From here on, computing includes attention too. That's 12 · layers · hidden · sequence FLOPs for each token, with sequences of 4,096 tokens. For 7B it makes computing 16% longer.

# %% [markdown]
# **Predict.** Up to how many chips does computing hide these calls?

# %%
counts = [256, 512, 1024, 2048]
hidden = predict("7B: chips up to which it's hidden", ..., choices=counts)

# %%
model = MODELS["7B"]
replayed_s = {chips: chapter_19.fsdp_seconds(model, chips) for chips in counts}
hidden.measured(chapter_19.hidden_until("7B", replayed_s))
pictures.draw_hiding("7B", replayed_s)

# %% [markdown]
# The bytes hardly grow with the chips. But each of the 96 rings (three for each of 32 layers) has n − 1 steps, and every step pays its latency. With 2,048 chips that's 2,047 · 5 µs, or 10 ms, 96 times. A step takes at least as long as the longer of *computing* and *replayed*. With 512 chips that's 0.65 s, with 1,024 still 0.59 s, and with 2,048 it's *longer*.

# %% [markdown]
# That's for a ring, with the latency of 5 µs that we assumed. Real libraries have ways around so many steps: NCCL, for example, has [trees for such calls](https://arxiv.org/abs/2506.20252). But at a fixed batch, a chip's computing shrinks with every chip you add, and its communication doesn't. **A larger batch would hide the communication, if the optimiser can make use of such a batch.**

# %% [markdown]
# ## 4 · What a chip must hold
#
# A **plan** says how chips share the work. `dp` copies share the batch. `tp` ranks cut each layer, as in chapter 17. `pp` stages form a pipeline, as in chapter 18. So it takes dp · tp · pp chips.

# %% [markdown]
# ### Write it
#
# **Write** (6 minutes) the bytes of weights, gradients and Adam's states on one chip. A weight takes 2 bytes, its gradient 2, and Adam 12 ([ZeRO](https://arxiv.org/abs/1910.02054)): a mean, a square and a copy of the weight, each in float32. With `zero=1`, the `dp` copies divide what Adam holds among themselves. With `zero=3`, they divide everything.


# %%
def my_state_bytes(weights, dp, tp, pp, zero):
    """Bytes on one chip; zero is 0, 1 or 3."""
    raise NotImplementedError("about 6 lines")


# %%
state = check(my_state_bytes, **chapter_19.STATE_CHECK)
state

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which of the three numbers dp, tp, pp cut the model, whatever ZeRO does?
# </details>
# <details><summary>Hint 2: the approach</summary>
# A chip's part has weights / (tp · pp) weights. Each of them takes 16 bytes, or 4 + 12 / dp, or 16 / dp.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>own = weights / (tp * pp)</code>, and <code>if zero == 1: return (4 + 12 / dp) * own</code>
# </details>

# %%
state_bytes = go_on_with(my_state_bytes, state, chapter_19.state_bytes)
pictures.draw_state(my_state_bytes, chapter_19.state_bytes)

# %% [markdown]
# Activations come on top. A layer keeps about 34 bytes for each token and hidden number ([Korthikanti and others](https://arxiv.org/abs/2205.05198)), if it doesn't keep attention's scores. The `tp` ranks divide that among themselves, if they also cut the rows between layers, as in [chapter 17](17_cut_the_layer.ipynb)'s sequence parallel.
#
# A copy cuts its share of the batch into microbatches, and holds only those that have gone forward and not yet backward. Without a pipeline that's one at a time, so the more microbatches there are, the less it has to hold. With one, the first stage holds up to `pp` of them, as in [chapter 18](18_cut_the_stack.ipynb)'s 1F1B. So there, cutting the batch further saves memory only once there are more microbatches than stages.

# %% [markdown]
# ## 5 · What cutting costs
#
# Now we look at `tp`. Here are the layers of chapter 17 in a world of 1,024 ranks. Each layer is cut among eight neighbours.

# %%
cut = dry_run(cut_step, 4, 8, world_size=1024, nodes=128)
for rank in (0, 1023):
    print(f"rank {rank:,}:")
    chapter_19.count_calls(cut.of_rank(rank))

# %% [markdown]
# That's eight calls for four blocks, each in a group of eight ranks. A transformer's layer has two such blocks, attention and the MLP, and the next block waits for each call.

# %% [markdown]
# ### Write it
#
# **Write** (6 minutes) the seconds that all these calls take in a step. Each call sums `tokens` rows of `hidden` numbers, two bytes each, over `tp` ranks. The check replays calls of real and pretended ranks. So you need chapter 06's price of a ring: 2(n − 1) steps, each with its latency and an n-th of the bytes.


# %%
def my_tensor_s(layers, hidden, tokens, tp, latency_s, bytes_s):
    """Seconds of the all-reduces that cut layers; a message costs latency_s + bytes / bytes_s."""
    raise NotImplementedError("about 3 lines")


# %%
cutting = check(my_tensor_s, **chapter_19.tensor_check())
cutting

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# How many all-reduces does a layer of two blocks have, in forward and backward together?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Four for each layer. Each takes 2(tp − 1) steps, of latency_s + size / tp / bytes_s, where the size is 2 · tokens · hidden bytes.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>ring_s = 2 * (tp - 1) * (latency_s + size / tp / bytes_s)</code>
# </details>

# %%
tensor_s = go_on_with(my_tensor_s, cutting, chapter_19.tensor_s)
pictures.draw_tensor(my_tensor_s, chapter_19.tensor_s)

# %% [markdown]
# Each doubling of `tp` halves the copies, so a copy gets twice the tokens. Of their bytes a rank sends 2(tp − 1)/tp, and this share grows too, so each rank sends more than twice as much. The diamonds in the picture come from `step_time`, a model of whole plans that we'll use from here on. Can a dry run check which calls and bytes that model counts?

# %%
scored = step_time(MODELS["7B"], CLUSTER, Plan(dp=1024, zero=3))
sent_s = scored.hidden_s + scored.data_s  # what computing hides, and what it doesn't
print(f"7B, 1,024 copies: they send for {sent_s:.4f} s by step_time")
print(f"                            and {replayed_s[1024]:.4f} s by dry run and replay")

# %% [markdown]
# The two lines agree, so `step_time` counts the calls and bytes of the dry run. About latency and bandwidth this says nothing, since both lines take them from our description. `step_time` adds it all up for a plan: computing, these all-reduces, what the copies send as far as it isn't hidden, and the waiting in a pipeline. Its file, `course_lessons/scaling.py`, names the sources of its formulas. **It's a model, not a measurement.**
#
# A plan's **MFU** is what the step computes usefully, as a share of what all chips could compute at their peak. We assume that a chip reaches 60% of its peak, so no plan can have a higher MFU.

# %% [markdown]
# **Predict.** 512 chips train the 70B model, with a batch of 4 million tokens. For each `tp` the computer tries all plans that fit. Which `tp` has the fastest plan?

# %%
fastest_tp = predict("tp of the fastest plan for 70B on 512 chips", ..., choices=[1, 2, 4, 8, 16])

# %%
best = chapter_19.best_by_tp("70B", chips=512)
fitting = {tp: score for tp, score in best.items() if score}
fastest_tp.measured(min(fitting, key=lambda tp: fitting[tp].step_s))
pictures.draw_steps({f"tp {tp}": score for tp, score in best.items()})

# %% [markdown]
# Without cutting, the activations of a single sequence don't fit: 34 · 4,096 · 8,192 bytes for each of 80 layers are 91 GB. A pipeline doesn't help, since its first stage has a `pp`-th of the layers but holds up to `pp` microbatches.
#
# So cut, but no more than memory asks for: each doubling of `tp` costs more. Sixteen ranks are spread over two nodes, so messages take longer. And our model is kind to such a plan: its ring may use all eight network cards of each node, as if nobody else needed them.

# %% [markdown]
# ## 6 · Choose a plan
#
# **Write** (8 minutes) a plan for 70B on 512 chips. But this time your framework has no ZeRO-3. The plan below is a bad one. Change it, run the cell again, and read the score. Can you reach an MFU of 50%?

# %%
my_plan = Plan(dp=4, tp=8, pp=16, microbatches=16, zero=1)
my_score = chapter_19.score_plan("70B", my_plan)
pictures.draw_steps({"yours": my_score})
pictures.draw_plans("70B", my_plan, my_score)

# %% [markdown]
# Every grey dot is a plan that you could have chosen without ZeRO-3. Nearly all of the fast ones are too large.
#
# ### Let the computer search
#
# **Write** (6 minutes) the seconds of the fastest step among all plans that fit. `scaling.plans(model, chips)` goes through all plans, and `step_time(model, cluster, plan)` has `.fits` and `.step_s`.


# %%
def my_fastest_s(model, cluster, chips):
    """Seconds of the shortest step on so many chips of that cluster."""
    raise NotImplementedError("about 6 lines")


# %%
search = check(my_fastest_s, **chapter_19.FASTEST_CHECK)
search

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What's the fastest of all plans worth, if it needs 1,000 GB?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Start with an empty list. For each plan, ask <code>step_time</code>, and note the seconds if it fits. The smallest of them is the answer.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for plan in scaling.plans(model, chips):</code>, then <code>scored = step_time(model, cluster, plan)</code>, and <code>if scored.fits:</code>
# </details>

# %%
fastest_s = go_on_with(my_fastest_s, search, chapter_19.fastest_s)
counts = (256, 512, 1024, 2048, 4096, 8192)
pictures.draw_speed(my_fastest_s, chapter_19.fastest_s, counts=counts)

# %% [markdown]
# What a chip is worth is its speed relative to that with 256 chips. Each point is for the best of all plans. (So 7B on 1,024 chips takes 0.34 s here. In part 3 it took at least 0.59 s, as there every chip was a copy with ZeRO-3.)
#
# In this picture the step never stops getting shorter, but chips are worth less and less. The last doubling of the chips makes it only about 1.4 times as fast, and with 8,192 a chip is worth less than half. The batch is still the same, so only 512 tokens are left for each chip. The larger model loses less at first: with 2,048 tokens a chip is worth 70% for 7B, and 89% for 70B.
#
# So there's no number of chips, or of tokens for each, at which scaling stops. Each further chip just buys less, and you have to say when that's too little.

# %% [markdown]
# On the course's web site, the page *Choose a plan* has sliders for this, and ten tasks. You don't need to run anything for it.

# %% [markdown]
# **Check yourself.** With `pp=16` and 16 microbatches, what does the pipeline cost?
#
# <details><summary>Answer</summary>
# Almost half of the step. A pipeline of p stages with m microbatches waits (p − 1)/m of the time in which it works, <a href="https://arxiv.org/abs/2104.04473">Narayanan and others</a> say. That's 15/16 here. More microbatches help, until there are no sequences left to cut.
# </details>

# %% [markdown]
# ## 7 · What others have measured
#
# Is any of this true? We give `step_time` the plans and batches of others: four rows of [Megatron-LM's table 1](https://arxiv.org/abs/2104.04473), with A100s, and two of [Llama 3's table 4](https://arxiv.org/abs/2407.21783), with H100s.

# %% [markdown]
# (Megatron repeats the forward pass during backward and counts it twice, so we multiply its numbers by 3/4. Llama has 126 layers, but we take 128, which can be divided by its 16 stages.)

# %%
both = chapter_19.compare_with_published()
pictures.draw_published()

# %% [markdown]
# No row is further off than a third, and that's all we can say. The 60% is a guess, so a model that's right in one row proves nothing. We learn more from where it goes *wrong*.

# %% [markdown]
# Megatron's MFU rises with the size of its model, from about 32% to 39%, while ours stays. A likely reason is that larger matrices come closer to the peak, and we took 60% for all. In both rows of Llama we're too low. There, our pipeline waits for a third of the step in one row and for half of it in the other.

# %% [markdown]
# **Check yourself.** Llama gives each rank several short stages instead of a long one, which is called **interleaving**. ([Lab 18](../exercises/18_cut_the_stack.ipynb) has such a schedule.) Why does a pipeline wait less then, and why would Megatron's runs need it less?
#
# <details><summary>Answer</summary>
# A stage that's a v-th as long hands on its microbatch after a v-th of the time. So the pipeline fills and empties faster, and the waiting shrinks to a v-th; but more is sent. Megatron's runs interleave too (<a href="https://arxiv.org/abs/2104.04473">section 5.1</a>). But those with a pipeline have 8 to 14 microbatches for each stage, and Llama has two or one, so their (p − 1)/m is small anyway.
# </details>

# %% [markdown]
# So what's a model good for? It says which plans are hopeless, what limits the others, and what to try first. Then measure. And when a measurement differs from the model, you've learned something about one of the two.
#
# That was the last chapter. [The course map](README.md) shows what you have left out, and chapter [09](09_many_machines.ipynb) ends with what lies beyond DDP.

# %%
predict()
