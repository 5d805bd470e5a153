# %% [markdown]
# # 17 · Cut the layer
#
# **One layer no longer fits on one GPU: how do several ranks compute it together, and what do they have to send?**
#
# In 60 minutes you will be able to
#
# 1. cut a block among ranks so that one sum is enough;
# 2. write tensor-parallel layers whose gradients are exact;
# 3. count what they send, and say when that is less than data parallel sends;
# 4. say among which ranks to cut a layer.
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
# Under ZeRO-3 a rank stores a shard of each weight, but every layer is whole while it computes. In [Llama 3 405B](https://arxiv.org/abs/2407.21783) the MLP of one block has 2.6 billion weights: 5 GB in bfloat16, and 5 more for its gradients. Activations, which ZeRO doesn't divide, come on top.

# %% [markdown]
# So let's cut the *computing* as well: this is **tensor parallelism**. Our example is a small block, Y = gelu(X A) B, on an imaginary GPU that has 300 KiB for weights and gradients.

# %%
torch.manual_seed(0)
X = torch.randn(32, 64, dtype=torch.float64)
A = torch.randn(64, 256, dtype=torch.float64) / 8
B = torch.randn(256, 64, dtype=torch.float64) / 16
Y = gelu(X @ A) @ B
print(f"weights and gradients of A and B: {2 * (A.nbytes + B.nbytes) // 1024} KiB")

# %% [markdown]
# Two ranks could cut A by **columns**. Each rank then has half of the hidden numbers H = gelu(X A), and has them completely. In the product H B, a column of H meets only the row of B that has the same number. So H B = H₀ B₀ + H₁ B₁: a rank computes one of the two products, and an all-reduce adds them up.

# %% [markdown]
# Or they could cut A by **rows**, and X by columns. Each rank then has *part of a sum* for every hidden number. May it go on with that, and add up at the end?
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
        expected = activation(X @ A) @ B
        difference = (y - expected).abs().max().item()
        largest = expected.abs().max().item()
        name = "gelu" if activation is gelu else "no gelu, as a control"
        verdict = "right" if difference < 1e-12 else "wrong"
        distance = f"differs by about {difference:.0e}, numbers are up to {largest:.1f}"
        print(f"{cut.__name__:12}{name:23}{verdict}, {distance}")
sum_of_gelus.measured(round(gelu(torch.tensor([3.0, -3.0])).sum().item(), 2), within=0.02)
pictures.draw_block()

# %% [markdown]
# Without gelu both cuts are right, since it doesn't matter when you add. With gelu, a cut by rows would have to add up the parts *before* gelu, and there a row has 256 numbers, while a row of Y has only 64. A cut by columns needs no sum before gelu. And each rank holds half of A and B with gradients, 256 KiB, so they fit.

# %% [markdown]
# ## 2 · What backward needs
#
# Autograd on a rank knows only what that rank has computed. So where the ranks part, before A, and where they meet again, after B, we have to tell it what backward means. Take X: each rank's columns of A give only a part of X's gradient.

# %% [markdown]
# ### Write both functions
#
# **Write** (6 minutes) `MyCopy`, which stands before A, and `MySum`, which stands after B. One of them communicates in forward, the other in backward. Every rank computes the same loss from the whole Y. Don't change the arguments in place, since autograd may still need them.


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
# x is used n times, once on each rank. What's the gradient of something that's used n times?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Copy hands x on, and adds gradients up. Sum adds partial results up; a change in one of them changes the sum by as much, so Sum hands the gradient on.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>total = gradient.clone(memory_format=torch.contiguous_format)</code>, then <code>dist.all_reduce(total)</code>; forward of Copy returns <code>x.view_as(x)</code>, a view, so that x itself stays as it is. (A gradient may arrive transposed. <code>contiguous_format</code> puts its numbers in the same order on all ranks.)
# </details>

# %% [markdown]
# And here both functions stand around a product in two ranks, which multiply the same x by 1 and by 3. (As long as yours raise an error, ours are drawn.)

# %%
Copy = go_on_with(MyCopy, functions, tensor_parallel.CopyToRanks)
Sum = go_on_with(MySum, functions, tensor_parallel.SumOverRanks)
ours = tensor_parallel.CopyToRanks, tensor_parallel.SumOverRanks
pictures.draw_functions((MyCopy, MySum), ours)

# %% [markdown]
# What if you forget the sum in backward, or use one of PyTorch's own all-reduces as Sum? There are two of them: `dist.all_reduce`, and the one of `torch.distributed._functional_collectives`, here called `functional`.

# %%
show_source(chapter_17.summed_in_place)
print()
show_source(chapter_17.summed_by_pytorch)

# %% [markdown]
# We put two blocks in a row, and try each of these.
#
# **Predict.** *Without* Copy, which gradients are wrong?

# %%
choices = ["none", "all", "x and the first block", "x and the second block"]
without_copy = predict("without Copy these gradients are wrong", ..., choices=choices)


# %%
def block(x, A, B, copy, sum_up):
    rank, n = dist.get_rank(), dist.get_world_size()
    hidden = gelu(copy(x) @ A.chunk(n, dim=1)[rank])
    return sum_up(hidden @ B.chunk(n, dim=0)[rank])


ways = {"both functions": (Copy.apply, Sum.apply)}
ways["no Copy"] = (lambda x: x, Sum.apply)
ways["dist.all_reduce as Sum"] = (Copy.apply, chapter_17.summed_in_place)
ways["functional.all_reduce"] = (Copy.apply, chapter_17.summed_by_pytorch)
errors = chapter_17.compare_gradients(block, ways)
without_copy.measured(chapter_17.where_wrong(errors["no Copy"]))
pictures.draw_errors(errors)

# %% [markdown]
# Every output is right, and without Copy nobody complains. The loss is whole on every rank, so the last block's gradients are right. But what the last block hands back to the first is only this rank's part of a sum, so everything before the last block is wrong.

# %% [markdown]
# PyTorch's functional all-reduce sums in backward too. That's right where each rank has a loss of its own, and all of them are meant to be added. Here all ranks have the same loss, so two ranks double the gradient at each Sum: off by 100% after one, by 300% after two.

# %% [markdown]
# A plain `dist.all_reduce` changes a tensor behind autograd's back, and autograd hands the gradient on as if nothing had happened. By chance that's what Sum has to do. And a matrix product doesn't need its own result in backward, as exp would, so no change is noticed. Don't rely on it: PyTorch warns.

# %% [markdown]
# ## 3 · Two layers
#
# ### Write them
#
# **Write** (8 minutes) both layers, built from a whole `nn.Linear`. PyTorch keeps a weight as (outputs, inputs), so A's columns are *rows* of `full_layer.weight`. `share(tensor, dim)` gives this rank's part. Each layer has `self.weight` and `self.bias`; use `Copy.apply` and `Sum.apply`.


# %%
class MyColumn(nn.Module):
    def __init__(self, full_layer):
        super().__init__()
        raise NotImplementedError("about 2 lines")

    def forward(self, x):
        raise NotImplementedError("about 2 lines")


class MyRow(nn.Module):
    def __init__(self, full_layer):
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
# <code>self.weight = nn.Parameter(share(full_layer.weight, 1))</code>; <code>return Sum.apply(linear(hidden, self.weight)) + self.bias</code>
# </details>

# %%
Column = go_on_with(MyColumn, layers, tensor_parallel.ColumnLinear)
Row = go_on_with(MyRow, layers, tensor_parallel.RowLinear)
ours = tensor_parallel.ColumnLinear, tensor_parallel.RowLinear
pictures.draw_layers((MyColumn, MyRow), ours)

# %% [markdown]
# Both layers come from [Megatron-LM](https://arxiv.org/abs/1909.08053). Every rank has the whole bias of Row. Its gradient is the same on all ranks, so the copies stay equal without any communication. What happens with three ranks and 256 hidden features? (The next cell is meant to fail.)

# %% tags=["raises-exception"]
launch(lambda: Column(nn.Linear(64, 256)), world_size=3, backend="gloo")

# %% [markdown]
# In practice, people choose sizes that the number of ranks divides, or pad them. The lab's bonus cuts unequal shares.

# %% [markdown]
# ## 4 · Count
#
# Now a step of three blocks on four ranks. Its x needs a gradient too, as if other layers came before.
#
# **Predict.** How many all-reduces does *each rank* call, in forward and backward together?

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


traces = {}
for depth in (1, 2, 3):
    run = launch(tensor_parallel_step, 32, depth, world_size=4, backend="gloo", trace=True)
    traces[depth] = run.trace
    print(f"{depth} block(s), 32 rows:")
    chapter_17.count_calls(run.trace)
all_reduces.measured(len(traces[3].of_rank(0)))
plot_calls(traces[2])

# %% [markdown]
# Two for each block: one in forward, one in backward. The picture shows the four calls of *two* blocks: first Sum's two, in forward, then Copy's two, in backward. All ranks call them in the same order.

# %% [markdown]
# Each carries 32 · 64 numbers of four bytes, as large as the block's output. So the bytes grow with the batch. In data parallel each rank has the whole block and a part of the rows, and the ranks sum the gradients instead: 8 · 64² numbers (A and B), for any batch.

# %% [markdown]
# **Predict.** How many rows does the whole batch have when both send the same? (Both send by all-reduces alone, so the number of ranks doesn't matter: what a ring sends is what's handed in, times the same [2(n − 1)/n](06_what_communication_costs.ipynb).)

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
print("KiB sent by each rank:")
for count, kib in zip(rows, tensor_kib):
    print(f"{count:4} rows: tensor parallel {kib:5.1f}, data parallel {data_kib:.1f}")
equal_rows.measured(round(rows[0] * data_kib / tensor_kib[0]), within=0.02)
pictures.draw_bytes(rows, tensor_kib, data_kib)

# %% [markdown]
# 2 · rows · 64 = 8 · 64² gives 256 rows, four times the width; biases make it 258.5. In a language model rows are *tokens*: for an MLP of width 4,096 that's eight sequences of 2,048, in the whole batch. Beyond that, cutting sends more.

# %% [markdown]
# It also hides less: data parallel can sum [behind backward](04_ddp_training.ipynb), while here the next layer waits for each all-reduce.

# %% [markdown]
# ## 5 · Heads
#
# Attention is cut by **heads**. A head's softmax mixes only that head's numbers, so no sum over ranks is needed before the softmax. The output weight is cut by its inputs, like B, so one sum ends the layer. The weights for queries, keys and values are often stored as *one*, one below the other. May you cut that weight in the middle?

# %%
torch.manual_seed(0)
qkv = torch.randn(3 * 64, 64, dtype=torch.float64) / 8
out = B[:64]  # (64, 64): any numbers will do as the output weight
expected = chapter_17.attention(X, qkv, out, heads=4)


def share_of(weight, cut):
    rank = dist.get_rank()
    if cut == "by heads":
        return torch.cat([part.chunk(2)[rank] for part in weight.chunk(3)])
    return weight.chunk(2)[rank]


def attention_of(cut):
    out_share = out.chunk(2, dim=1)[dist.get_rank()]
    y = chapter_17.attention(X, share_of(qkv, cut), out_share, heads=2)
    dist.all_reduce(y)
    rows = share_of(torch.arange(len(qkv)), cut)
    return (y - expected).abs().max().item(), rows


# %%
rows_of = {}
for cut in ("by heads", "in the middle"):
    results = launch(attention_of, cut, world_size=2, backend="gloo")
    differences, rows_of[cut] = zip(*results)
    print(f"{cut:15}{'right' if max(differences) < 1e-12 else 'wrong'}")
pictures.draw_heads(rows_of)

# %% [markdown]
# Cut in the middle, rank 0 takes queries for keys, and keys for values. All shapes fit, so nobody complains.

# %% [markdown]
# ## 6 · Between the blocks
#
# Between blocks there are norms and dropout. As long as each rank has all rows, all ranks compute the same there and keep the same activations. They even have to draw the same dropout mask. But a norm looks at one row at a time, so the rows can be shared out.

# %% [markdown]
# And an all-reduce is a reduce-scatter followed by an all-gather. **Sequence parallel** puts the norm between the two, where each rank has only its *rows*. Here are a norm and a block on four ranks, once with all rows on every rank ("whole rows") and once with shares ("cut rows").

# %%
show_source(tensor_parallel.GatherRows)
kib = chapter_17.compare_rows()
pictures.draw_kept(kib)

# %% [markdown]
# With whole rows a rank keeps five tensors of 16 KiB: what goes into the norm and what comes out of it, its hidden numbers before and after gelu, and the end of the block, where a tanh stands for dropout. With cut rows the first and the last shrink to 4 KiB. That makes 56 KiB instead of 80.

# %% [markdown]
# What comes out of the norm is gathered and stays whole, since A needs it in backward. [Korthikanti and others](https://arxiv.org/abs/2205.05198) keep only the share, and gather once more. A norm's weight now sees only some rows, so its gradient needs a sum over ranks: see the lab.

# %% [markdown]
# ## 7 · Check it against PyTorch
#
# PyTorch cuts layers from a plan: you name layers, and it makes their weights DTensors. (A plan can cut rows between layers too, with `SequenceParallel`.)


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
for step in (by_hand, by_pytorch):
    run = launch(step, world_size=4, backend="gloo", trace=True)
    outcomes.append(run[0])
    print(f"{step.__name__}:")
    chapter_17.count_calls(chapter_17.last_step(run.trace))
for name, cut_by_hand, cut_by_plan in zip(("output", "gradient of x"), *outcomes):
    difference = (cut_by_hand - cut_by_plan).abs().max().item()
    print(f"{name} differs by about {difference:.0e}")

# %% [markdown]
# PyTorch makes the same calls, and gets the same numbers up to rounding.

# %% [markdown]
# ## 8 · Among which ranks?
#
# Take eight ranks on two nodes, on a *model* of a network whose numbers you can change. A message inside a node takes 2 µs, plus its bytes at 3,600 Gbit/s. Between nodes it takes 10 µs, plus its bytes at 400 Gbit/s. A block of width 256 gets a batch of 2,048 rows.

# %% [markdown]
# The block can be cut among all eight ranks; among four, so that each node has a copy; or among two, with two copies on each node. The copies divide the rows among themselves.
#
# **Predict.** A step has calls that belong to the cut layer, and calls that sum gradients over copies. With which plan do all these calls together take the least time?

# %%
plan = predict("ranks that cut a layer, fastest plan", ..., choices=[8, 4, 2])

# %%
between = (10, 400)  # µs, Gbit/s
network = Network(latency_us=2, gbit_s=3600, nodes=2, between=between)
prices = chapter_17.price_plans(network, plans=(8, 4, 2))
totals = {tensor: sum(by_kind.values()) for tensor, by_kind in prices.items()}
plan.measured(min(totals, key=totals.get))
pictures.draw_plans(prices)

# %% [markdown]
# If the layer is cut among eight, every all-reduce crosses the slow link, and the next layer waits for each: 169 µs. If it's cut among four or two, only gradients cross, once. With two, the layer's own calls are cheaper. But each rank holds half of the layer instead of a quarter, so twice as many gradients cross, between four copies instead of two.

# %% [markdown]
# It's a close race, and if the sum of gradients hides behind backward, two is even ahead. So memory decides: cut a layer among as many ranks as it needs, but not beyond the node. [Llama 3 405B](https://arxiv.org/abs/2407.21783) was trained this way: eight ranks cut a layer, and a node has eight GPUs.

# %% [markdown]
# **Check yourself.** A model has more heads than a node has GPUs. Why not cut it further?
#
# <details><summary>Answer</summary>
# You could, but each block's two all-reduces would cross nodes, and the next layer waits for each. Copies may well send more bytes, but only once per step, and that can hide behind backward. If the model doesn't fit in one node, a pipeline of layers sends only activations, from one node to the next: see chapter 18.
# </details>
#
# Practise in [lab 17](../exercises/17_cut_the_layer.ipynb).
#
# **Next:** [18 · Cut the stack](18_cut_the_stack.ipynb), for a model that one node can't hold.

# %%
predict()
