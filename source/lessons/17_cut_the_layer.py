# %% [markdown]
# # 17 · Cut the layer
#
# **One layer no longer fits on one GPU: how do several ranks compute it together, and what do they have to send?**
#
# In 60 minutes you will be able to
#
# 1. cut a block so that one sum is enough, and say why it isn't if A is cut the other way;
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
# Under ZeRO-3 a rank stores a shard of each weight, but every layer is whole while it computes. In [Llama 3 405B](https://arxiv.org/abs/2407.21783) the MLP of one block has 2.6 billion weights. In bfloat16 that's 5 GB, and 5 more for its gradients. The next layer may be gathered ahead, and activations, which ZeRO doesn't divide, grow with the length of the text. Sooner or later it's too much.
#
# So let's cut the *computing* as well: this is **tensor parallelism**. Our example is a small block, Y = gelu(X A) B, and a card that has 300 KiB for weights and gradients.

# %%
torch.manual_seed(0)
X = torch.randn(32, 64, dtype=torch.float64)
A = torch.randn(64, 256, dtype=torch.float64) / 8
B = torch.randn(256, 64, dtype=torch.float64) / 16
Y = gelu(X @ A) @ B
print(f"weights and gradients of A and B: {2 * (A.nbytes + B.nbytes) // 1024} KiB")

# %% [markdown]
# Two ranks could cut A by **columns**: each rank then computes half of the hidden numbers H, and computes them completely. H B = H₀ B₀ + H₁ B₁: a rank's columns of H meet only the same rows of B, and the two products are added up. Or they could cut A by **rows**, and X by columns: each rank then computes a *part of the sum* for all hidden numbers. Is it right to add those parts up at the end?
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
# Without gelu both cuts are right: everything is a sum, and it doesn't matter when you add. With gelu, partial sums have to be added *before* it. That's 256 numbers for each row of X, and Y has only 64. Columns need nothing there. Then B is cut by rows, and one sum ends the block. Each rank holds 256 KiB of weights and gradients, so it fits. (With A by rows, B stays whole: 384 KiB.)
#
# ## 2 · What backward needs
#
# That was forward. Autograd on a rank knows only what that rank has computed. So where the ranks part, before A, and where they meet again, after B, we have to tell it what backward means. Take X: each rank's columns of A give only a part of its gradient.

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
# Copy hands x on, and adds gradients up. Sum adds partial results up; a change of one of them changes the sum as much, so it hands the gradient on.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>total = gradient.clone(memory_format=torch.contiguous_format)</code>, then <code>dist.all_reduce(total)</code>; forward of Copy returns <code>x.view_as(x)</code>, a view, so that x itself stays as it is. (A gradient may arrive transposed. <code>contiguous_format</code> puts its numbers in the same order on all ranks.)
# </details>

# %%
Copy = go_on_with(MyCopy, functions, tensor_parallel.CopyToRanks)
Sum = go_on_with(MySum, functions, tensor_parallel.SumOverRanks)

# %% [markdown]
# What if one forgets the sum in backward, or takes an all-reduce off the shelf? We put one block after the other, and try each.
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
wrong = chapter_17.wrong_ones(errors["no Copy"])
as_expected = set(wrong) == {"x", "first A", "first B"}
without_copy.measured("x and the first block" if as_expected else ", ".join(wrong))
pictures.draw_errors(errors)

# %% [markdown]
# Every output is right, and without Copy nobody complains. The loss is whole on every rank, so the last block's gradients are right. But what it hands back to the first block is only this rank's part of a sum, so everything before it is wrong.
#
# PyTorch's functional all-reduce sums in backward too. That's right where each rank has a loss of its own, and all of them are meant to be added. Here all ranks have the same loss, so two ranks double the gradient at each Sum: off by 100% after one, by 300% after two.
#
# A plain `dist.all_reduce` changes a tensor behind autograd's back, and autograd hands the gradient on as if nothing had happened. By chance that's what Sum has to do. It's right here because a matrix product doesn't need its own result in backward. After an exp, which keeps its result, you couldn't rely on it. PyTorch warns.

# %% [markdown]
# ## 3 · Two layers
#
# ### Write them
#
# **Write** (8 minutes) both layers, built from a whole `nn.Linear`. PyTorch keeps a weight as (outputs, inputs), so A's columns are *rows* of `full_layer.weight`. `share(tensor, dim)` gives this rank's part. Each layer has `self.weight` and `self.bias`; use `Copy.apply` and `Sum.apply`. (Here each rank has the whole layer for a moment, so that you can compare. A real one is built on the `meta` device, and each rank fills only its share.)


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

# %% [markdown]
# Both layers come from [Megatron-LM](https://arxiv.org/abs/1909.08053). Every rank has the whole bias of Row. Its gradient is the same on all ranks, so the copies stay equal without a call. What happens with three ranks and 256 hidden features? (The next cell is meant to fail.)

# %% tags=["raises-exception"]
launch(lambda: Column(nn.Linear(64, 256)), world_size=3, backend="gloo")

# %% [markdown]
# In practice one picks sizes that divide, or pads them. The lab's bonus cuts unequal shares.
#
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
# Two for each block: one in forward, one in backward. (If x were data, without a gradient, the very first Copy would have nothing to do, and there'd be five.) The picture shows the four calls of *two* blocks. Sum's two come first, in forward; then Copy's two, in backward. All ranks call them in the same order.
#
# Each carries 32 · 64 numbers of four bytes, as large as the block's output. So the bytes grow with the batch. Data parallel, where each rank has the whole block and a part of the rows, instead sums the gradients: 8 · 64² numbers (A and B), for any batch.
#
# **Predict.** How many rows does the whole batch have when both send the same? (Both are all-reduces, in which a ring of n ranks sends 2(n − 1)/n times what's handed in. So n doesn't matter.)

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
# 2 · rows · 64 = 8 · 64² gives 256 rows, four times the width; biases make it 258.5. In a language model rows are *tokens*: for an MLP of width 4,096 that's eight sequences of 2,048, in the whole batch. Beyond that, cutting sends more. It also hides less: data parallel can sum behind backward, while here the next layer waits for each all-reduce.
#
# ## 5 · Heads
#
# Attention is cut by **heads**. A head's softmax mixes only that head's numbers, so heads are to attention what hidden numbers are to gelu: nothing has to be added up before it. The output weight is then cut by its inputs, like B, and one sum ends the layer. Queries, keys and values are often *one* weight, one below the other. Is it right to cut that weight in the middle?

# %%
torch.manual_seed(0)
qkv = torch.randn(3 * 64, 64, dtype=torch.float64) / 8
out = B[:64]  # (64, 64): any numbers will do as the output weight
expected = chapter_17.attention(X, qkv, out, heads=4)


def attention_of(cut):
    rank = dist.get_rank()
    if cut == "by heads":
        qkv_share = torch.cat([part.chunk(2)[rank] for part in qkv.chunk(3)])
    else:
        qkv_share = qkv.chunk(2)[rank]
    y = chapter_17.attention(X, qkv_share, out.chunk(2, dim=1)[rank], heads=2)
    dist.all_reduce(y)
    return (y - expected).abs().max().item()


for cut in ("by heads", "in the middle"):
    difference = launch(attention_of, cut, world_size=2, backend="gloo")[0]
    print(f"{cut:15}{'right' if difference < 1e-12 else 'wrong'}")

# %% [markdown]
# Cut in the middle, rank 0 takes queries for keys, and keys for values. All shapes fit, so nobody complains.
#
# ## 6 · Between the blocks
#
# Between blocks there are norms and dropout. With whole rows every rank computes the same there, keeps the same whole activations, and even has to draw the same dropout mask. But a norm looks at one row at a time, so rows can be shared out. And an all-reduce is a reduce-scatter followed by an all-gather. **Sequence parallel** puts the norm between the two, where each rank has only its *rows*.

# %%
show_source(tensor_parallel.GatherRows)
# Now a norm and a block on four ranks, once with whole rows and once with cut ones.
kib = chapter_17.compare_rows()
pictures.draw_kept(kib)

# %% [markdown]
# With whole rows a rank keeps five tensors of 16 KiB: what goes into the norm and what comes out of it, its hidden numbers before and after gelu, and the end of the block, where a tanh stands for dropout. With cut rows the first and the last shrink to 4 KiB. That makes 56 KiB instead of 80, and the same 48 KiB are sent, in four calls instead of two.
#
# What comes out of the norm is gathered and stays whole, since A needs it in backward. [Korthikanti and others](https://arxiv.org/abs/2205.05198) keep only the share, and gather once more. A norm's weight now sees only some rows, so its gradient needs a sum over ranks: see the lab.
#
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
# The same calls, and the same numbers up to rounding.
#
# ## 8 · Inside a node
#
# Eight ranks on two nodes, on a *model* of a network whose numbers you can change. Inside a node a message takes 2 µs and then 3,600 Gbit/s; between nodes it takes 10 µs and then 400 Gbit/s. A block of width 256 gets a batch of 2,048 rows. It can be cut among all eight ranks. It can be cut among four, so that each node has a copy. Or it can be cut among two, with two copies on each node. Copies share the rows.
#
# **Predict.** A step has calls that cut the layer, and calls that sum gradients over copies. With which plan do they take the least time, all added up?

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
# Cut among eight, every all-reduce crosses the slow link, and the next layer waits for each: 169 µs. Cut among four or two, only gradients cross, once per step. Among two the layer's own calls are cheaper, 10 µs instead of 31. But each rank then holds half of the layer instead of a quarter, so twice as many gradients cross, and four copies share them instead of two: 56 µs instead of 31.
#
# It's a close race, and if the sum of gradients hides behind backward, two is even ahead. So memory decides: cut a layer among as many ranks as it needs, but not beyond the node. Llama 3 405B was trained this way: eight ranks cut a layer, and a node has eight GPUs.
#
# **Check yourself.** A model has more heads than a node has GPUs. Why not cut it further?
#
# <details><summary>Answer</summary>
# It could be, but each block's two all-reduces would cross nodes, and the next layer waits for each. Copies may well send more bytes, but only once per step, and that can hide behind backward. If the model doesn't fit in one node, a pipeline of layers sends only activations, from one node to the next: see [chapter 18](18_cut_the_stack.ipynb).
# </details>

# %%
predict()
