# %% [markdown]
# # Lab 17 · Cut the layer
#
# Three exercises on [chapter 17](../notebooks/17_cut_the_layer.ipynb), 45 minutes, on any computer. A language model has two more large layers, at its beginning and at its end, and both are cut along the *vocabulary*. `check` runs your function in real workers and compares what they return with a **specification**, which one process computes.

# %%
import functools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.functional import cross_entropy

from course_lessons.tensor_parallel import SumOverRanks
from course_utils import check, progress

# %% [markdown]
# ## 1 · Who knows this word?
#
# *Difficulty ●●○ · importance ●●● · 12 minutes.* The first layer, the **embedding**, is a table with a row for each word of the vocabulary. This rank has the rows in `shard`, from word number `first` on; ranks may have different numbers of rows. `ids`, of any shape, are the same on all ranks.

# %% [markdown]
# **Goal:** return the rows of all words, with one more dimension than `ids`. Hand in only as many numbers as you return, in one sum. Backward has to give `shard` its gradient, if all ranks compute the same loss. The specification:


# %%
def embed_spec(all_shards, all_first, all_ids):
    shards = [shard.requires_grad_() for shard in all_shards]
    table = torch.cat(shards)
    rows = table[all_ids[0]]
    rows.square().sum().backward()
    return [{"rows": rows.detach(), "gradient of shard": shard.grad} for shard in shards]


# %%
def embed(shard, first, ids):
    ### BEGIN SOLUTION # return a tensor of shape ids.shape + (shard.shape[1],)
    local = ids - first
    is_here = (local >= 0) & (local < len(shard))
    rows = shard[local.clamp(0, len(shard) - 1)]
    rows = rows * is_here.unsqueeze(-1)
    return SumOverRanks.apply(rows)
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# What can a rank hand in for a word that it doesn't know, so that the sum over ranks is right?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Subtract <code>first</code>, note which words are here, look up something harmless for all others, and multiply their rows by zero. <code>SumOverRanks</code> of the chapter adds up.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>rows = shard[local.clamp(0, len(shard) - 1)] * is_here.unsqueeze(-1)</code>
# </details>


# %% jupyter={"source_hidden": true}
WORDS, ROWS = 61, 6


def words_of(rank, world_size):
    """The words of a rank: as equally many as possible, so not always the same number."""
    return torch.arange(WORDS).tensor_split(world_size)[rank]


def embedding(answer):
    """Let the answer look words up, and run backward."""

    @functools.wraps(answer)
    def embedded(shard, first, ids):
        shard.requires_grad_()
        rows = answer(shard, first, ids)
        if rows.requires_grad:
            rows.square().sum().backward()
        gradient = torch.zeros_like(shard) if shard.grad is None else shard.grad
        return {"rows": rows.detach(), "gradient of shard": gradient}

    return embedded


word_ids = {
    "words of all ranks": torch.tensor([0, 20, 21, 30, 31, 60]),
    "words of the last rank": torch.tensor([60, 59, 60, 58, 57, 59]),
    "two sentences": torch.tensor([[1, 1, 40], [0, 20, 40]]),
}


def embed_inputs(rank, world_size, case):
    words = words_of(rank, world_size)
    shard = torch.randn(len(words), 3, dtype=torch.float64)
    return shard, int(words[0]), word_ids[case].clone()


def ring_bytes(numbers, ranks):
    """What a rank sends in a ring's all-reduce of float64 numbers."""
    return 2 * (ranks - 1) / ranks * 8 * numbers


def embed_budget(world_size, case):
    return {"sent_bytes": ring_bytes(3 * ROWS, world_size)}


embed_options = {"cases": list(word_ids), "budget": embed_budget, "rtol": 1e-12}

# %%
check(embedding(embed), spec=embed_spec, inputs=embed_inputs, **embed_options)

# %% [markdown]
# ## 2 · The loss, without gathering
#
# *Difficulty ●●● · importance ●●● · 18 minutes.* The last layer gives a logit for each word. With 128,000 words and 8,192 tokens, that's 4 GB in float32, too much to gather. This rank has `logits` of its words, (rows, words), from word `first` on. `targets` has a word per row, equal on all ranks.

# %% [markdown]
# **Goal:** return each row's cross entropy, and the gradient of their sum with respect to this rank's `logits`. Logits may be as large as 1,000, where exp is infinite. Hand in no more than three numbers per row, in all your collectives together. The specification:


# %%
def vocabulary_loss_spec(all_logits, all_first, all_targets):
    parts = [logits.requires_grad_() for logits in all_logits]
    losses = cross_entropy(torch.cat(parts, dim=1), all_targets[0], reduction="none")
    losses.sum().backward()
    return [(losses.detach(), part.grad) for part in parts]


# %%
def vocabulary_loss(logits, first, targets):
    ### BEGIN SOLUTION # return losses of shape (rows,), and a gradient of the shape of logits
    highest = logits.max(dim=1).values
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    shifted = logits - highest.unsqueeze(1)
    exponentials = shifted.exp()
    local = (targets - first).unsqueeze(1)
    is_target = torch.arange(logits.shape[1], device=logits.device) == local
    at_target = (shifted * is_target).sum(dim=1)
    sums = torch.stack([exponentials.sum(dim=1), at_target])
    dist.all_reduce(sums)
    losses = sums[0].log() - sums[1]
    softmax = exponentials / sums[0].unsqueeze(1)
    gradient = softmax - is_target.to(softmax.dtype)
    return losses, gradient
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# A row's loss is log Σ exp(logit) minus the target's logit. Which three numbers in it need all ranks? (One of them is there so that exp stays finite.)
# </details>
# <details><summary>Hint 2: the approach</summary>
# The maximum over all ranks comes first, and is subtracted. Then sum up the exponentials, and the target's logit, which only one rank has; all others hand in zero. The gradient is softmax, minus one at the target.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>dist.all_reduce(highest, op=dist.ReduceOp.MAX)</code>, and
# <code>is_target = torch.arange(logits.shape[1], device=logits.device) == (targets - first).unsqueeze(1)</code>
# </details>


# %% jupyter={"source_hidden": true}
target_words = torch.tensor([0, 15, 30, 31, 45, 60])
loss_cases = ["small logits", "logits around 1,000", "one rank far above the others"]


def vocabulary_loss_inputs(rank, world_size, case):
    words = words_of(rank, world_size)
    logits = torch.randn(ROWS, len(words), dtype=torch.float64)
    if case == "logits around 1,000":
        logits += 1000
    if case == "one rank far above the others":
        logits += 900 if rank == 0 else -900
    targets = target_words % len(words_of(0, world_size)) if "far" in case else target_words
    return logits, int(words[0]), targets.clone()


def vocabulary_loss_budget(world_size, case):
    return {"sent_bytes": ring_bytes(3 * ROWS, world_size)}


loss_options = {"cases": loss_cases, "budget": vocabulary_loss_budget, "rtol": 1e-9, "atol": 1e-11}

# %%
check(
    vocabulary_loss,
    spec=vocabulary_loss_spec,
    inputs=vocabulary_loss_inputs,
    **loss_options,
)

# %% [markdown]
# ## 3 · Which group reduces which gradient?
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* `ways` neighbouring ranks share a copy of the model: the first `ways` ranks the first copy, the next the second, and so on. Each copy gets its own part of the batch. By name, a rank has gradients of three `kinds`:

# %% [markdown]
# | kind | whose gradient it is |
# | --- | --- |
# | `"cut"` | of this rank's own part of a weight |
# | `"whole"` | of a weight that every rank has. It's complete, and the same on all ranks of a copy: a bias after the sum, say |
# | `"rows"` | of a weight that every rank has. It comes from this rank's rows only: a norm's in sequence parallel, say |

# %% [markdown]
# **Goal:** return a dict with the mean over copies of each copy's gradient. For `"cut"` and `"whole"`, send nothing inside a copy. The specification:


# %%
def reduce_gradients_spec(all_gradients, all_kinds, all_ways):
    ways, world_size = all_ways[0], len(all_gradients)
    copies, outcomes = world_size // ways, []
    for rank in range(world_size):
        reduced = {}
        for name, kind in all_kinds[0].items():
            same_part = range(rank % ways, world_size, ways)
            summed = range(world_size) if kind == "rows" else same_part
            reduced[name] = sum(all_gradients[other][name] for other in summed) / copies
        outcomes.append(reduced)
    return outcomes


# %%
def reduce_gradients(gradients, kinds, ways):
    ### BEGIN SOLUTION # return a dict with the names of gradients
    copies = dist.get_world_size() // ways
    mesh = init_device_mesh("cpu", (copies, ways), mesh_dim_names=("data", "tensor"))
    reduced = {}
    for name, gradient in gradients.items():
        total = gradient.clone()
        if kinds[name] == "rows":
            dist.all_reduce(total, group=mesh["tensor"].get_group())
        dist.all_reduce(total, group=mesh["data"].get_group())
        reduced[name] = total / copies
    return reduced
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Which ranks have the same part of a cut weight? And is a sum over a copy's ranks a mean, or a sum?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Make a mesh of copies and tensor-parallel ranks. Gradients of rows are summed inside a copy first. All of them are then summed over copies, and divided by how many copies there are.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>mesh = init_device_mesh("cpu", (copies, ways), mesh_dim_names=("data", "tensor"))</code>, and <code>mesh["data"].get_group()</code>
# </details>


# %% jupyter={"source_hidden": true}
gradient_kinds = {"up.weight": "cut", "down.bias": "whole", "norm.weight": "rows"}
other_kinds = {"norm.bias": "whole", "up.bias": "cut", "down.bias": "rows"}  # in its own order


def ways_of(world_size, case):
    """How many ranks cut a layer."""
    in_two = min(2, world_size)
    known = {"nothing is cut": 1, "cut in two": in_two, "cut in two, other names": in_two}
    return known.get(case, world_size)


def reduce_gradients_inputs(rank, world_size, case):
    ways = ways_of(world_size, case)
    of_copy = torch.Generator().manual_seed(rank // ways)  # equal on all ranks of a copy
    of_kind = {
        "cut": torch.randn(4, 6, dtype=torch.float64),
        "whole": torch.randn(24, dtype=torch.float64, generator=of_copy),
        "rows": torch.randn(12, dtype=torch.float64),
    }
    kinds = other_kinds if case == "cut in two, other names" else gradient_kinds
    gradients = {name: of_kind[kind] for name, kind in kinds.items()}
    return gradients, dict(kinds), ways


def reduce_gradients_budget(world_size, case):
    ways = ways_of(world_size, case)
    across = ring_bytes(24 + 24 + 12, world_size // ways)
    return {"sent_bytes": across + ring_bytes(12, ways)}


gradient_cases = ["nothing is cut", "cut in two", "cut in two, other names", "one copy"]
gradient_options = {"cases": gradient_cases, "world_sizes": (1, 2, 4), "rtol": 1e-12}
gradient_options["budget"] = reduce_gradients_budget

# %%
check(
    reduce_gradients,
    spec=reduce_gradients_spec,
    inputs=reduce_gradients_inputs,
    **gradient_options,
)

# %% [markdown]
# ## Bonus · Three ranks, 256 features
#
# *No minutes, no check.* The chapter's `share` refuses a size that the number of ranks doesn't divide. Write one that cuts unequal shares, and both layers with it. Which of the chapter's calls stay as they are? And if the number of *rows* can't be divided by three either, which calls of sequence parallel need a different form?
#
# <details><summary>Answer</summary>
# Both all-reduces stay: they carry the whole Y, whatever each rank's share was. <code>all_gather_into_tensor</code> and <code>reduce_scatter_tensor</code> want equal shares of the rows. With unequal ones you'd pad the rows, or use lists of tensors.
# </details>

# %%
my_share = None

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [18 · Cut the stack](../notebooks/18_cut_the_stack.ipynb), for a model that one node can't hold.

# %%
progress("embed", "vocabulary_loss", "reduce_gradients")
