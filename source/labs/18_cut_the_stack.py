# %% [markdown]
# # Lab 18 · Cut the stack
#
# Three exercises on [chapter 18](../notebooks/18_cut_the_stack.ipynb), 45 minutes, on any computer. In a real model some layers are slower, one weight is used at both ends, and the norm of all gradients needs all stages. `check` runs your function in real workers and compares what they return with a **specification**, which one process computes.

# %%
import functools
import itertools

import torch
import torch.distributed as dist

from course_utils import check, progress

# %% [markdown]
# ## 1 · Which layers for which stage?
#
# *Difficulty ●●○ · importance ●●○ · 18 minutes.* A pipeline is as fast as its slowest stage. The layer that turns numbers into words may take as long as several others. `layer_us` says what each layer takes, in the model's order. A stage gets neighbouring layers, and at least one.

# %% [markdown]
# **Goal:** return how many layers each stage gets, such that the slowest stage takes as little time as possible. There are at most ten layers; any best split will do.
#
# | `layer_us` | `stages` | best split | slowest stage |
# | --- | --- | --- | --- |
# | [1, 1, 1, 1, 4] | 2 | [4, 1] | 4 |
# | [2, 3, 4] | 2 | [2, 1] | 5 |


# %%
def split_layers(layer_us, stages):
    ### BEGIN SOLUTION # return a list of whole numbers
    count = len(layer_us)
    best, best_us = None, float("inf")
    for cuts in itertools.combinations(range(1, count), stages - 1):
        edges = [0, *cuts, count]
        slowest_us = max(sum(layer_us[a:b]) for a, b in itertools.pairwise(edges))
        if slowest_us < best_us:
            best = [b - a for a, b in itertools.pairwise(edges)]
            best_us = slowest_us
    return best
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Between ten layers there are nine places to cut. How many ways are there to choose three of them?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Try all of them: choose the places to cut, add up each stage's layers, note the slowest, and keep the split whose slowest stage is fastest. (With hundreds of layers you'd remember best splits of the first few layers instead.)
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>for cuts in itertools.combinations(range(1, len(layer_us)), stages - 1):</code> and <code>edges = [0, *cuts, len(layer_us)]</code>
# </details>


# %% jupyter={"source_hidden": true}
def splitting(answer):
    """Let the answer split the layers; return how slow its slowest stage is."""

    @functools.wraps(answer)
    def split(layer_us, stages):
        counts = [int(count) for count in answer(list(layer_us), stages)]
        ends = list(itertools.accumulate(counts))
        starts = [end - count for end, count in zip(ends, counts)]
        stage_us = [sum(layer_us[start:end]) for start, end in zip(starts, ends)]
        return {
            "stages": len(counts),
            "layers": sum(counts),
            "every stage has a layer": min(counts) > 0,
            "slowest stage (µs)": max(stage_us),
        }

    return split


def least_us(layer_us, stages):
    """The slowest stage of the best split: of all sizes of the last stage, the best."""
    if stages == 1:
        return sum(layer_us)
    possible = []
    for last in range(1, len(layer_us) - stages + 2):
        others_us = least_us(layer_us[:-last], stages - 1)
        possible.append(max(others_us, sum(layer_us[-last:])))
    return min(possible)


def split_layers_spec(all_layer_us, all_stages):
    outcomes = []
    for layer_us, stages in zip(all_layer_us, all_stages):
        outcome = {"stages": stages, "layers": len(layer_us), "every stage has a layer": True}
        outcomes.append(outcome | {"slowest stage (µs)": least_us(layer_us, stages)})
    return outcomes


def split_layers_inputs(rank, world_size, case):
    stages = {"one stage": 1, "one layer each": 6, "four stages": 4}.get(case, 3)
    count = 6 if case == "one layer each" else 10
    layer_us = torch.randint(1, 30, (count,)).tolist()
    if case == "a slow last layer":
        layer_us[-1] = 90
    if case == "slow layers at both ends":
        layer_us[0], layer_us[-1] = 60, 80
    return layer_us, stages


split_cases = ["one stage", "three stages", "a slow last layer", "slow layers at both ends"]
split_cases += ["four stages", "one layer each"]
split_options = {"cases": split_cases, "world_sizes": (1, 3), "hide": (least_us,)}

# %%
check(splitting(split_layers), spec=split_layers_spec, inputs=split_layers_inputs, **split_options)

# %% [markdown]
# ## 2 · One weight at both ends
#
# *Difficulty ●●○ · importance ●●● · 12 minutes.* Models often use one weight twice: the first layer looks words up in it, the last computes logits with it. In a pipeline the first and the last stage each have a copy, and each backward gives only part of the gradient, so the two copies would drift apart.

# %% [markdown]
# **Goal:** return the whole gradient on the first and the last stage, and `None` in between, where `gradient` is `None` too. Stages in between send nothing. If there's one stage, autograd has already added up both parts. The specification:


# %%
def tied_gradient_spec(all_gradients):
    last = len(all_gradients) - 1
    if last == 0:
        return all_gradients
    total = all_gradients[0] + all_gradients[last]
    return [total if rank in (0, last) else None for rank in range(last + 1)]


# %%
def tied_gradient(gradient):
    ### BEGIN SOLUTION # return a tensor, or None
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if last == 0:
        return gradient
    ends = dist.new_group([0, last])  # which every rank has to call
    if rank not in (0, last):
        return None
    total = gradient.clone()
    dist.all_reduce(total, group=ends)
    return total
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Who has to call <code>dist.new_group</code>: its members, or everybody?
# </details>
# <details><summary>Hint 2: the approach</summary>
# All ranks make a group of the first and the last stage. Both of these sum their parts in it; it's a sum, not a mean, since the weight is used twice in one model.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>ends = dist.new_group([0, last])</code>, and <code>dist.all_reduce(total, group=ends)</code> on the two of them
# </details>


# %% jupyter={"source_hidden": true}
def tying(answer):
    """Let the answer do its work; then all ranks make a group, as programs go on to do."""

    @functools.wraps(answer)
    def tied(gradient):
        result = answer(gradient)
        dist.new_group(list(range(dist.get_world_size())))
        return result

    return tied


def tied_gradient_inputs(rank, world_size, case):
    rows = {"a small vocabulary": 6, "a larger one": 31}[case]
    gradient = torch.randn(rows, 4, dtype=torch.float64)
    return gradient if rank in (0, world_size - 1) else None


def tied_gradient_budget(world_size, case):
    numbers = 4 * {"a small vocabulary": 6, "a larger one": 31}[case]
    return {"sent_bytes": 8 * numbers if world_size > 1 else 0}


tied_options = {"cases": ["a small vocabulary", "a larger one"], "budget": tied_gradient_budget}
tied_options |= {"world_sizes": (1, 2, 3, 4), "rtol": 1e-12, "timeout": 5}

# %%
check(tying(tied_gradient), spec=tied_gradient_spec, inputs=tied_gradient_inputs, **tied_options)

# %% [markdown]
# ## 3 · One norm over all stages
#
# *Difficulty ●●○ · importance ●●● · 15 minutes.* If the norm of *all* gradients is above `max_norm`, each is multiplied by `max_norm` / norm. But a stage has only its own: `gradients` is a dict by name. On both ends, `"tied"` is the whole gradient of one weight, as in exercise 2.

# %% [markdown]
# **Goal:** return the norm over the whole model and a dict with this stage's clipped gradients. Hand in a single number, in one collective. The specification:


# %%
def clip_stages_spec(all_gradients, all_max_norm):
    numbers = []
    for rank, gradients in enumerate(all_gradients):
        for name, gradient in gradients.items():
            if name != "tied" or rank == 0:
                numbers.append(gradient.flatten())
    norm = torch.cat(numbers).norm()
    scale = min(1.0, all_max_norm[0] / norm.item())
    outcomes = []
    for gradients in all_gradients:
        clipped = {name: gradient * scale for name, gradient in gradients.items()}
        outcomes.append((norm, clipped))
    return outcomes


# %%
def clip_stages(gradients, max_norm):
    ### BEGIN SOLUTION # return the norm, and a dict with the names of gradients
    squares = []
    for name, gradient in gradients.items():
        if name != "tied" or dist.get_rank() == 0:
            squares.append(gradient.square().sum())
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    norm = total.sqrt()
    scale = min(1.0, max_norm / norm.item())
    clipped = {name: gradient * scale for name, gradient in gradients.items()}
    return norm, clipped
    ### END SOLUTION


# %% [markdown]
# <details><summary>Hint 1: a nudge</summary>
# Norms of two parts don't add up to the norm of both. What does?
# </details>
# <details><summary>Hint 2: the approach</summary>
# Add up the squares of this stage's gradients, sum over stages, and take the root. The tied weight's squares are added on one of its stages only, but its gradient is clipped on both.
# </details>
# <details><summary>Hint 3: the code</summary>
# <code>if name != "tied" or dist.get_rank() == 0:</code>, then <code>dist.all_reduce(total)</code> and <code>scale = min(1.0, max_norm / norm.item())</code>
# </details>


# %% jupyter={"source_hidden": true}
norms = {"far below the limit": 1000.0, "above it": 1.0, "one stage far above": 2.0}


def clip_stages_inputs(rank, world_size, case):
    gradients = {
        f"layer {rank}, weight": torch.randn(4, 4, dtype=torch.float64),
        f"layer {rank}, bias": torch.randn(4, dtype=torch.float64),
    }
    if case == "one stage far above" and rank == world_size // 2:
        gradients[f"layer {rank}, weight"] *= 50
    if rank in (0, world_size - 1):
        of_both = torch.Generator().manual_seed(18)  # equal on both stages
        gradients["tied"] = torch.randn(6, 4, dtype=torch.float64, generator=of_both)
    return gradients, norms[case]


def clip_stages_budget(world_size, case):
    return {"sent_bytes": 2 * (world_size - 1) / world_size * 8}


clip_options = {"cases": list(norms), "budget": clip_stages_budget, "rtol": 1e-5, "atol": 1e-12}
clip_options["world_sizes"] = (1, 2, 3, 4)

# %%
check(clip_stages, spec=clip_stages_spec, inputs=clip_stages_inputs, **clip_options)

# %% [markdown]
# ## Bonus · Two small stages instead of a large one
#
# *No minutes, no check.* Two ranks share the chapter's eight layers, once as two stages (0 to 3, 4 to 7), once as four (rank 0 has 0, 1, 4 and 5). Then a microbatch visits each rank twice. What happens to the bubble, and to the messages?
#
# <details><summary>Answer</summary>
# With v small stages per rank, the pipeline fills in steps that are v times as short, so the bubble shrinks to (p − 1) / (v m + p − 1). But a microbatch now crosses from rank to rank three times on its way forward, instead of once. <a href="https://arxiv.org/abs/2104.04473">Narayanan and others</a> call this schedule <em>interleaved</em>; PyTorch has it as <code>ScheduleInterleaved1F1B</code>.
# </details>

# %%
my_interleaved = None

# %% [markdown]
# ## Which exercises pass?
#
# Each exercise as you last checked it in this notebook. `make progress` tells you the same about all labs.
#
# **Next:** [19 · When scaling stops](../notebooks/19_when_scaling_stops.ipynb), which chooses among all these cuts.

# %%
progress("split_layers", "tied_gradient", "clip_stages")
