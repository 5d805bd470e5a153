# %% [markdown]
# # 17 · Cut the layer
#
# **One layer no longer fits on one GPU: how do several ranks compute it together, and what do they have to send?**
#
# In 50 minutes you will be able to
#
# 1. cut a block so that one sum is enough, and say why any other cut needs more;
# 2. write tensor-parallel layers whose gradients are exact;
# 3. count what they send, and say when that is less than data parallel sends;
# 4. say why a layer is cut inside a node.
#
# **Hardware:** two cores; all ranks use gloo on the CPU.
# **Before:** [13 · Hold less](13_hold_less.ipynb). **Lab:** [17 · Cut the layer](../exercises/17_cut_the_layer.ipynb).

# %% jupyter={"source_hidden": true}
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import gelu, linear  # noqa: F401 - linear is for your layers

from course_lessons import chapter_17, tensor_parallel
from course_lessons import chapter_17_pictures as pictures
from course_lessons.finished import go_on_with, show_source
from course_lessons.tensor_parallel import share  # noqa: F401 - for your layers too
from course_utils import Network, check, launch, plot_calls, predict

# %% [markdown]
# ## 1 · Where to cut
#
# Under ZeRO-3 a rank stores a shard of each weight, but the layer is whole while it computes. That may already be too much: in [Llama 3 405B](https://arxiv.org/abs/2407.21783) the MLP of one block has 2.6 billion weights. So let's cut the *computing* instead. Our example is a small block, Y = gelu(X A) B, and a card that holds 300 KiB.

# %%
torch.manual_seed(0)
X = torch.randn(32, 64, dtype=torch.float64)
A = torch.randn(64, 256, dtype=torch.float64) / 8
B = torch.randn(256, 64, dtype=torch.float64) / 16
Y = gelu(X @ A) @ B
print(f"weights and gradients of A and B: {2 * (A.nbytes + B.nbytes) // 1024} KiB")

# %% [markdown]
# Two ranks could cut A by **columns**: each computes some hidden numbers, all of each. Or by **rows**, and X by columns: each computes a *part of the sum* for all hidden numbers. Is it right to add those parts up at the end?
#
# **Predict.** Two ranks have partial sums 3 and −3 of one hidden number, so its gelu is 0. What do their gelus add up to?

# %%
sum_of_gelus = predict("gelu(3) + gelu(−3) is about", ...)


# %%
def by_columns(activation):
    rank = dist.get_rank()
    hidden = activation(X @ A.chunk(2, dim=1)[rank])
    y = hidden @ B.chunk(2, dim=0)[rank]
    dist.all_reduce(y)
    return y


def by_rows(activation):
    rank = dist.get_rank()
    partial = X.chunk(2, dim=1)[rank] @ A.chunk(2, dim=0)[rank]
    y = activation(partial) @ B
    dist.all_reduce(y)
    return y


# %%
for cut in (by_columns, by_rows):
    for activation in (gelu, nn.Identity()):
        y = launch(cut, activation, world_size=2, backend="gloo")[0]
        difference = (y - activation(X @ A) @ B).abs().max().item()
        name = "gelu" if activation is gelu else "no gelu, as a control"
        verdict = "right" if difference < 1e-12 else "wrong"
        print(f"{cut.__name__:12}{name:23}{verdict}, differs by about {difference:.0e}")
sum_of_gelus.measured(round(gelu(torch.tensor([3.0, -3.0])).sum().item(), 2), within=0.02)
pictures.draw_block()

# %% [markdown]
# Without gelu both cuts are right, since a sum of products may be added up late. With gelu, rows would have to be summed *before* it: 256 numbers per row, where Y has 64. Columns need nothing there. Then B is cut by rows, and one sum ends the block; each rank holds 256 KiB.
#
# ## 2 · What backward needs
#
# That was forward. In backward, each rank's columns of A give only a part of the gradient of X; the whole gradient is the sum over ranks. So each end of a block gets a function.

# %% [markdown]
# ### Write both functions
#
# **Write** (6 minutes) `MyCopy`, which stands before A, and `MySum`, which stands behind B. One of them talks in forward, the other one in backward. Every rank computes the same loss of the whole Y. Leave arguments as they are: autograd may need them.


# %%
class MyCopy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise NotImplementedError("about 1 line")

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("about 3 lines")


class MySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, partial):
        raise NotImplementedError("about 3 lines")

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("about 1 line")


# %%
functions = check(chapter_17.functions(MyCopy, MySum), **chapter_17.FUNCTIONS)
functions

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# If x goes to n ranks, who has to know the gradient of each of the n uses?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Copy hands x on, and adds gradients up. Sum adds partial results up; a change of one of them changes the sum as much, so it hands the gradient on.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>total = gradient.clone(memory_format=torch.contiguous_format)</code>, then <code>dist.all_reduce(total)</code>; forward of Copy returns <code>x.view_as(x)</code>.
# </details>

# %%
Copy = go_on_with(MyCopy, functions, tensor_parallel.CopyToRanks)
Sum = go_on_with(MySum, functions, tensor_parallel.SumOverRanks)

# %% [markdown]
# What if one forgets the sum in backward, or takes an all-reduce off the shelf? We put two blocks one behind the other, and try each.
#
# **Predict.** *Without* Copy, which gradients are wrong?

# %%
choices = ["none", "all", "x and the first block", "x and the second block"]
without_copy = predict("without Copy these gradients are wrong", ..., choices=choices)


# %%
def block(x, A, B, copy, total):
    rank, n = dist.get_rank(), dist.get_world_size()
    hidden = gelu(copy(x) @ A.chunk(n, dim=1)[rank])
    return total(hidden @ B.chunk(n, dim=0)[rank])


ways = {"both functions": (Copy.apply, Sum.apply)}
ways["no Copy"] = (lambda x: x, Sum.apply)
ways["dist.all_reduce as Sum"] = (Copy.apply, chapter_17.summed_in_place)
ways["functional.all_reduce"] = (Copy.apply, chapter_17.summed_by_pytorch)
errors = chapter_17.compare_gradients(block, ways)
wrong = chapter_17.wrong_ones(errors["no Copy"])
is_first = set(wrong) == {"x", "first A", "first B"}
without_copy.measured("x and the first block" if is_first else ", ".join(wrong))
pictures.draw_errors(errors)

# %% [markdown]
# Every output is right, and without Copy nobody complains: the last block's gradients are right, all others aren't. PyTorch's functional all-reduce sums in backward too, which is right where each rank has its own loss; here all share one. A plain `dist.all_reduce` happens to be right, and PyTorch warns.

# %% [markdown]
# ## 3 · Two layers
#
# ### Write them
#
# **Write** (8 minutes) both layers, made of a whole `nn.Linear`. PyTorch keeps a weight as (outputs, inputs), so A's columns are *rows* of `whole.weight`. `share(tensor, dim)` gives this rank's part. Each layer has `self.weight` and `self.bias`; use `Copy.apply` and `Sum.apply`.


# %%
class MyColumn(nn.Module):
    def __init__(self, whole):
        super().__init__()
        raise NotImplementedError("about 2 lines")

    def forward(self, x):
        raise NotImplementedError("about 2 lines")


class MyRow(nn.Module):
    def __init__(self, whole):
        super().__init__()
        raise NotImplementedError("about 2 lines")

    def forward(self, hidden):
        raise NotImplementedError("about 2 lines")


# %%
layers = check(chapter_17.layers(MyColumn, MyRow), **chapter_17.LAYERS)
layers

# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which bias belongs to a rank's own outputs, and which would be added up n times?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Column: weight and bias are cut along dimension 0. Row: the weight is cut along dimension 1; the bias is whole, and added after the sum.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>self.weight = nn.Parameter(share(whole.weight, 1))</code>; <code>return Sum.apply(linear(hidden, self.weight)) + self.bias</code>
# </details>

# %%
Column = go_on_with(MyColumn, layers, tensor_parallel.ColumnLinear)
Row = go_on_with(MyRow, layers, tensor_parallel.RowLinear)

# %% [markdown]
# Both layers come from [Megatron-LM](https://arxiv.org/abs/1909.08053). What if the ranks don't divide the features? Then `share` refuses. Three ranks, 256 hidden features:

# %% tags=["raises-exception"]
launch(lambda: Column(nn.Linear(64, 256)), world_size=3, backend="gloo")

# %% [markdown]
# ## 4 · Count
#
# Now a step of three blocks on four ranks.
#
# **Predict.** How many all-reduces does it call, forward and backward?

# %%
all_reduces = predict("all-reduces of a step with three blocks", ...)


# %%
def tensor_parallel_step(rows, depth):
    torch.manual_seed(0)
    modules = []
    for _ in range(depth):
        modules += [Column(nn.Linear(64, 256)), nn.GELU(), Row(nn.Linear(256, 64))]
    x = torch.randn(rows, 64, requires_grad=True)
    nn.Sequential(*modules)(x).sum().backward()


for depth in (1, 3):
    run = launch(tensor_parallel_step, 32, depth, world_size=4, backend="gloo", trace=True)
    print(f"{depth} block(s), 32 rows:")
    chapter_17.count_calls(run.trace)
all_reduces.measured(len(run.trace.of_rank(0)))
plot_calls(run.trace)

# %% [markdown]
# Two for each block: one in forward, one in backward. Each carries 32 · 64 numbers of four bytes, as large as the block's output. So the bytes grow with the batch. Data parallel instead sums the gradients: 8 · 64² numbers (A and B), for any batch.
#
# **Predict.** At how many rows do both send the same?

# %%
equal_rows = predict("rows at which both send the same", ...)

# %%
rows = (64, 128, 256, 512)
tensor_kib = []
for count in rows:
    run = launch(tensor_parallel_step, count, 1, world_size=4, backend="gloo", trace=True)
    tensor_kib.append(chapter_17.sent_kib(run.trace))
run = launch(chapter_17.data_parallel_step, 64, world_size=4, backend="gloo", trace=True)
data_kib = chapter_17.sent_kib(run.trace)
for count, kib in zip(rows, tensor_kib):
    print(f"{count:4} rows, KiB: tensor parallel {kib:5.1f}, data parallel {data_kib:.1f}")
equal_rows.measured(round(rows[0] * data_kib / tensor_kib[0]), within=0.02)
pictures.draw_bytes(rows, tensor_kib, data_kib)

# %% [markdown]
# 2 · rows · 64 = 8 · 64² gives 256 rows, four times the width; with biases it's 258. In a language model rows are *tokens*: at a width of 4,096 that's eight sequences of 2,048. And data parallel can hide its sum behind backward, while here the next layer waits for each one.
#
# ## 5 · Heads
#
# Attention is cut by **heads**: each rank computes some of them. Queries, keys and values are often *one* weight, one below the other.

# %%
torch.manual_seed(0)
qkv = torch.randn(3 * 64, 64, dtype=torch.float64) / 8
whole = chapter_17.attention(X, qkv, B[:64], heads=4)


def attention_of(way):
    rank = dist.get_rank()
    if way == "by heads":
        rows = torch.cat([part.chunk(2)[rank] for part in qkv.chunk(3)])
    else:
        rows = qkv.chunk(2)[rank]
    y = chapter_17.attention(X, rows, B[:64].chunk(2, dim=1)[rank], heads=2)
    dist.all_reduce(y)
    return (y - whole).abs().max().item()


for way in ("by heads", "in the middle"):
    difference = launch(attention_of, way, world_size=2, backend="gloo")[0]
    print(f"{way:15}{'right' if difference < 1e-12 else 'wrong'}")

# %% [markdown]
# Cut in the middle, rank 0 takes queries for keys, and keys for values. All shapes fit, so nobody complains.
#
# ## 6 · Between the blocks
#
# Between blocks there are norms and dropout. Every rank computes all of them, and keeps whole activations. But an all-reduce is a reduce-scatter followed by an all-gather. **Sequence parallel** puts the norm between the two, where each rank has only its *rows*.

# %%
show_source(tensor_parallel.GatherRows)
kib = chapter_17.compare_rows()
pictures.draw_kept(kib)

# %% [markdown]
# The same 48 KiB, in four calls instead of two, and 56 KiB kept instead of 80. What's gathered stays whole, since A needs it in backward; [Korthikanti and others](https://arxiv.org/abs/2205.05198) keep only the share and gather once more. A norm's weight now sees only some rows, so its gradient needs a sum over ranks: see the lab.
#
# ## 7 · The oracle
#
# PyTorch does all this from a plan. Here every weight becomes a DTensor:


# %%
def by_pytorch():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).double()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return chapter_17.one_step(parallelize_module(model, mesh, plan))


def by_hand():
    torch.manual_seed(0)
    up, down = nn.Linear(64, 256).double(), nn.Linear(256, 64).double()
    return chapter_17.one_step(nn.Sequential(Column(up), nn.GELU(), Row(down)))


# %%
outcomes = []
for way in (by_hand, by_pytorch):
    run = launch(way, world_size=4, backend="gloo", trace=True)
    outcomes.append(run[0])
    print(f"{way.__name__}:")
    chapter_17.count_calls(chapter_17.last_step(run.trace))
for name, cut_by_hand, cut_by_plan in zip(("output", "gradient of x"), *outcomes):
    difference = (cut_by_hand - cut_by_plan).abs().max().item()
    print(f"{name} differs by about {difference:.0e}")

# %% [markdown]
# The same calls and the same numbers.
#
# ## 8 · Inside a node
#
# Eight ranks on two nodes, with fast links inside and slow ones between: a *model*, whose numbers you can change. A block of width 256 gets 2,048 rows. It may be cut among all eight ranks; among four, so that each node has a copy; or among two, with four copies.
#
# **Predict.** Whose calls take the least time?

# %%
plan = predict("ranks that cut a layer, fastest plan", ..., choices=[8, 4, 2])

# %%
network = Network(latency_us=2, gbit_s=3600, nodes=2, between=(10, 400))
prices = chapter_17.price_plans(network, plans=(8, 4, 2))
totals = {tensor: sum(by_kind.values()) for tensor, by_kind in prices.items()}
plan.measured(min(totals, key=totals.get))
pictures.draw_plans(prices)

# %% [markdown]
# Cut among eight, each all-reduce crosses the slow link, and every layer waits for two of them. Cut among four, only gradients cross, once per step. Llama 3 405B was trained so: eight ranks cut a layer, and a node has eight GPUs.
#
# **Check yourself.** A model has more heads than a node has GPUs. Why not cut it further?
#
# <details><summary>Answer</summary>
# It could be, but each block's two all-reduces would cross nodes, and the next layer waits for each. Between nodes, copies or a pipeline of layers send less.
# </details>

# %%
predict()
