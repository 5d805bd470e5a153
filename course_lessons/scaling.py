"""A model of how long a training step takes on a cluster, and of what each chip must hold.

It is a model: every number comes from a formula below, none from a clock. Three things are left
out on purpose: kernels that wait for the CPU, a network that somebody else uses too, and ranks
that are slower than others. Where each formula comes from:

    training takes 6 FLOPs per weight and token, and attention 12 * layers * hidden * sequence per
        token: A. Chowdhery and others, PaLM, arXiv:2204.02311, appendix B, which defines MFU too
    states of mixed-precision Adam, 16 bytes per weight, and what ZeRO shards: S. Rajbhandari and
        others, ZeRO, arXiv:1910.02054
    activations of a layer, 34 * tokens * hidden / tp bytes: V. Korthikanti and others,
        arXiv:2205.05198 (rows are cut between layers, and attention's scores are not kept)
    a pipeline of p stages and m microbatches adds (p - 1) / m, and keeps min(p, m) microbatches:
        D. Narayanan and others, arXiv:2104.04473
    rings: course_utils/network/collectives.py; several ranks of a group in one node use all
        their cards: How To Scale Your Model, jax-ml.github.io/scaling-book/gpus
"""

from collections.abc import Iterator
from dataclasses import dataclass

WEIGHT_BYTES = 2  # bfloat16, for weights, gradients and activations that are sent
ADAM_BYTES = 12  # a weight, a mean and a square of float32
LAYER_BYTES = 34  # kept for backward, per token and hidden number of a layer


@dataclass(frozen=True)
class Chip:
    """A chip: what it computes at best in FLOP/s, how much of that it reaches, its bytes."""

    peak_flops_s: float
    reached: float
    memory_bytes: float


@dataclass(frozen=True)
class Cluster:
    """Nodes of chips.

    Attributes:
        chip: What each of them is.
        per_node: Chips in a node.
        inside_bytes_s: What a chip sends to others of its node, in bytes per second.
        between_bytes_s: What a chip's network card sends to other nodes.
        inside_s, between_s: Seconds until the first byte arrives (alpha).
    """

    chip: Chip
    per_node: int
    inside_bytes_s: float
    between_bytes_s: float
    inside_s: float
    between_s: float

    def link(self, ranks: int, apart: int) -> tuple[float, float]:
        """Seconds of latency, and bytes per second, of a ring of ranks that are so far apart.

        Args:
            ranks: How many ranks the group has.
            apart: The distance of neighbours: 1 if they are the next rank.
        """
        if ranks * apart <= self.per_node:
            return self.inside_s, self.inside_bytes_s
        cards = max(1, self.per_node // apart)  # of each node, those of its ranks in the group
        return self.between_s, min(self.inside_bytes_s, cards * self.between_bytes_s)


@dataclass(frozen=True)
class Transformer:
    """A transformer, by its sizes.

    Attributes:
        layers, hidden: How many layers, and how wide.
        mlp: How many numbers the MLP has inside.
        mlp_matrices: 3 for a gated MLP, 2 for a plain one.
        kv_share: Key and value heads per query head.
        vocabulary: Tokens that it knows.
        vocabularies: 2 if input and output have matrices of their own, 1 if they share one.
        sequence: Tokens in a sequence.
    """

    layers: int
    hidden: int
    mlp: int
    mlp_matrices: int
    kv_share: float
    vocabulary: int
    vocabularies: int
    sequence: int

    @property
    def layer_weights(self) -> float:
        """Weights of one layer; norms and biases are left out."""
        attention = (2 + 2 * self.kv_share) * self.hidden**2
        return attention + self.mlp_matrices * self.hidden * self.mlp

    @property
    def weights(self) -> float:
        """All weights."""
        embeddings = self.vocabularies * self.vocabulary * self.hidden
        return self.layers * self.layer_weights + embeddings

    @property
    def flops_per_token(self) -> float:
        """FLOPs of forward and backward per token."""
        attention = 12 * self.layers * self.hidden * self.sequence
        return 6 * self.weights + attention


@dataclass(frozen=True)
class Plan:
    """How a training is laid out.

    Attributes:
        dp: Copies that share the batch.
        tp: Ranks that cut a layer; neighbours in a node come first.
        pp: Stages of a pipeline.
        microbatches: Parts into which a copy cuts its share of the batch.
        zero: 0, 1 (Adam's states are sharded over the copies) or 3 (weights and gradients too).
        recompute: Whether all activations are computed again in backward.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    microbatches: int = 1
    zero: int = 0
    recompute: bool = False

    @property
    def chips(self) -> int:
        """How many chips it takes."""
        return self.dp * self.tp * self.pp


@dataclass(frozen=True)
class Score:
    """What a plan comes to, on one chip: seconds of a step by part, bytes, and MFU.

    Attributes:
        compute_s: Computing.
        tensor_s: All-reduces that cut layers; the next layer waits for them.
        bubble_s: Waiting in the pipeline, and handing over.
        data_s: Collectives over the copies, as far as they don't hide behind computing.
        hidden_s: And as far as they do.
        state_bytes: Weights, gradients, Adam's states.
        activation_bytes: What is kept for backward.
        mfu: Useful FLOPs per second, as a share of the peak of all chips.
        fits: Whether it all fits into a chip.
    """

    compute_s: float
    tensor_s: float
    bubble_s: float
    data_s: float
    hidden_s: float
    state_bytes: float
    activation_bytes: float
    mfu: float
    fits: bool

    @property
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.compute_s + self.tensor_s + self.bubble_s + self.data_s

    @property
    def bytes(self) -> float:
        """What a chip must hold."""
        return self.state_bytes + self.activation_bytes


# Peak, memory, and bytes per second are those of How To Scale Your Model,
# https://jax-ml.github.io/scaling-book/gpus. What a chip reaches and both latencies are assumptions
# of ours, round numbers without a source.
H100 = Chip(peak_flops_s=989e12, reached=0.6, memory_bytes=80e9)
CLUSTER = Cluster(H100, 8, 450e9, 50e9, inside_s=2e-6, between_s=5e-6)
MODELS = {
    "7B": Transformer(32, 4096, 11008, 3, 1.0, 32000, 2, 4096),
    "70B": Transformer(80, 8192, 28672, 3, 1 / 8, 128256, 2, 4096),
}
TOKENS = 2**22  # in the batch of a step: 1,024 sequences of 4,096


def problem(model: Transformer, plan: Plan, tokens: int = TOKENS) -> str:
    """Why a plan can't be laid out; nothing if it can."""
    sequences = tokens // model.sequence
    if model.layers % plan.pp:
        return f"{model.layers} layers can't be cut into {plan.pp} equal stages"
    if sequences % (plan.dp * plan.microbatches):
        return f"{sequences} sequences are too few for {plan.dp} copies x {plan.microbatches}"
    return ""


def step_time(model: Transformer, cluster: Cluster, plan: Plan, tokens: int = TOKENS) -> Score:
    """What a plan comes to on a cluster, with a batch of so many tokens.

    Raises:
        ValueError: The plan can't be laid out.
    """
    message = problem(model, plan, tokens)
    if message:
        raise ValueError(message)
    chip = cluster.chip
    useful = tokens * model.flops_per_token / plan.chips
    computed = useful * (4 / 3 if plan.recompute else 1)
    compute_s = computed / (chip.peak_flops_s * chip.reached)
    tensor_s = _tensor_s(model, cluster, plan, tokens)
    hand_over_s = _hand_over_s(model, cluster, plan, tokens)
    busy_s = compute_s + tensor_s + plan.microbatches * hand_over_s
    waiting_s = (plan.pp - 1) / plan.microbatches * busy_s
    bubble_s = plan.microbatches * hand_over_s + waiting_s
    sent_s = _data_s(model, cluster, plan)
    hidden_s = min(sent_s, compute_s)
    state = state_bytes(model.weights, plan)
    kept = activation_bytes(model, plan, tokens)
    step_s = compute_s + tensor_s + bubble_s + sent_s - hidden_s
    return Score(
        compute_s,
        tensor_s,
        bubble_s,
        sent_s - hidden_s,
        hidden_s,
        state,
        kept,
        mfu=useful / step_s / chip.peak_flops_s,
        fits=state + kept <= chip.memory_bytes,
    )


def ring_s(turns: int, ranks: int, size: float, link: tuple[float, float]) -> float:
    """Seconds of a ring over `size` bytes: 1 turn to gather or reduce-scatter, 2 for both."""
    latency_s, bytes_s = link
    return turns * (ranks - 1) * (latency_s + size / ranks / bytes_s)


def _tensor_s(model: Transformer, cluster: Cluster, plan: Plan, tokens: int) -> float:
    """Two all-reduces of a layer's output in forward and two in backward, for each microbatch."""
    size = WEIGHT_BYTES * model.hidden * tokens / plan.dp / plan.microbatches
    link = cluster.link(plan.tp, apart=1)
    calls = (6 if plan.recompute else 4) * model.layers / plan.pp * plan.microbatches
    return calls * ring_s(2, plan.tp, size, link)


def _hand_over_s(model: Transformer, cluster: Cluster, plan: Plan, tokens: int) -> float:
    """A microbatch's activations to the next stage, and their gradients back."""
    if plan.pp == 1:
        return 0.0
    size = WEIGHT_BYTES * model.hidden * tokens / plan.dp / plan.microbatches / plan.tp
    latency_s, bytes_s = cluster.link(plan.pp, apart=plan.tp * plan.dp)
    return 2 * (latency_s + size / bytes_s)


def _data_s(model: Transformer, cluster: Cluster, plan: Plan) -> float:
    """Gradients summed over the copies; with ZeRO-3 weights gathered twice, per microbatch."""
    link = cluster.link(plan.dp, apart=plan.tp)
    layers = model.layers / plan.pp
    size = WEIGHT_BYTES * model.weights / plan.tp / plan.pp / layers
    turns = 3 * plan.microbatches if plan.zero == 3 else 2
    return layers * ring_s(turns, plan.dp, size, link)


def state_bytes(weights: float, plan: Plan) -> float:
    """Weights, gradients and Adam's states that a chip holds."""
    copies_of = {0: (1, 1), 1: (1, plan.dp), 3: (plan.dp, plan.dp)}
    weights_over, adam_over = copies_of[plan.zero]
    part = weights / plan.tp / plan.pp
    return part * (2 * WEIGHT_BYTES / weights_over + ADAM_BYTES / adam_over)


def activation_bytes(model: Transformer, plan: Plan, tokens: int = TOKENS) -> float:
    """What the first stage keeps for backward, of all microbatches that are on their way."""
    microbatch = tokens / plan.dp / plan.microbatches
    per_number = WEIGHT_BYTES if plan.recompute else LAYER_BYTES
    layer = per_number * microbatch * model.hidden / plan.tp
    on_their_way = min(plan.pp, plan.microbatches)
    return layer * model.layers / plan.pp * on_their_way


def plans(model: Transformer, chips: int, tokens: int = TOKENS) -> Iterator[Plan]:
    """All plans of powers of two that can be laid out on so many chips; tp and pp up to 16."""
    for tp in (1, 2, 4, 8, 16):
        for pp in (1, 2, 4, 8, 16):
            if chips % (tp * pp):
                continue
            for microbatches in (1, 2, 4, 8, 16, 32, 64):
                for zero in (0, 1, 3):
                    plan = Plan(chips // tp // pp, tp, pp, microbatches, zero)
                    if not problem(model, plan, tokens):
                        yield plan


def ranked(
    model: Transformer, cluster: Cluster, chips: int, tokens: int = TOKENS
) -> list[tuple[Score, Plan]]:
    """All plans that fit, with their scores, the fastest first."""
    scored = []
    for plan in plans(model, chips, tokens):
        score = step_time(model, cluster, plan, tokens)
        if score.fits:
            scored.append((score, plan))
    return sorted(scored, key=lambda pair: pair[0].step_s)
