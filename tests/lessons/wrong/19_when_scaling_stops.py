"""Wrong answers to what a learner writes in chapter 19, and for each exercise right ones.

What people write: an all-reduce's two turns instead of three; no (n - 1)/n; a rank's share instead
of what goes around; bits for bytes; chips for tokens; 2 FLOPs per weight; Adam's states that only
ZeRO-3 shares; stages that are forgotten; copies that cut the model without ZeRO; an all-reduce
that is a single turn, or pays latency once; the fastest plan of all, which fits nowhere.
"""

import functools

from lesson_answers import Exercise

from course_lessons import chapter_19, scaling
from course_lessons.scaling import CLUSTER, Plan, step_time

EXERCISES = {
    "bytes": Exercise(functools.cache(chapter_19.bytes_check)),
    "tokens": Exercise(chapter_19.TOKENS_CHECK),
    "states": Exercise(chapter_19.STATE_CHECK),
    "tensor": Exercise(functools.cache(chapter_19.tensor_check)),
    "fastest": Exercise(chapter_19.FASTEST_CHECK),
}


# ---- bytes ---------------------------------------------------------------------------------------


def two_turns(weights, ranks, bytes_per_weight):
    return 2 * (ranks - 1) / ranks * bytes_per_weight * weights


def all_reduce_and_two_gathers(weights, ranks, bytes_per_weight):
    return 4 * (ranks - 1) / ranks * bytes_per_weight * weights


def for_many_ranks_only(weights, ranks, bytes_per_weight):
    return 3 * bytes_per_weight * weights


def of_a_share(weights, ranks, bytes_per_weight):
    return 3 * bytes_per_weight * weights / ranks


def to_every_other_rank(weights, ranks, bytes_per_weight):
    return 3 * (ranks - 1) * bytes_per_weight * weights


def numbers_for_bytes(weights, ranks, bytes_per_weight):
    return 3 * (ranks - 1) / ranks * weights


def always_two_bytes(weights, ranks, bytes_per_weight):
    return 3 * (ranks - 1) / ranks * 2 * weights


def by_shares(weights, ranks, bytes_per_weight):
    share = weights * bytes_per_weight / ranks
    gathers = 2 * (ranks - 1) * share
    scatter = (ranks - 1) * share
    return gathers + scatter


# ---- tokens --------------------------------------------------------------------------------------


def forward_only(flops_s, bytes_s):
    return 3 * flops_s / bytes_s


def all_reduce_only(flops_s, bytes_s):
    return 2 / 3 * flops_s / bytes_s


def four_bytes(flops_s, bytes_s):
    return 2 * flops_s / bytes_s


def upside_down(flops_s, bytes_s):
    return bytes_s / flops_s


def bits_for_bytes(flops_s, bytes_s):
    return 8 * flops_s / bytes_s


def one_gather(flops_s, bytes_s):
    return flops_s / (3 * bytes_s)


def in_two_lines(flops_s, bytes_s):
    computing_s_per_token = 6 / flops_s
    return 3 * 2 / bytes_s / computing_s_per_token


# ---- states --------------------------------------------------------------------------------------


def copies_cut_the_model(weights, dp, tp, pp, zero):
    return 16 * weights / (dp * tp * pp)


def nobody_shards(weights, dp, tp, pp, zero):
    return 16 * weights / (tp * pp)


def zero_1_as_zero_3(weights, dp, tp, pp, zero):
    return 16 * weights / (tp * pp) / (dp if zero else 1)


def zero_3_as_zero_1(weights, dp, tp, pp, zero):
    mine = weights / (tp * pp)
    return (4 + 12 / dp) * mine if zero else 16 * mine


def zero_1_as_zero_2(weights, dp, tp, pp, zero):
    mine = weights / (tp * pp)
    return {0: 16, 1: 2 + 14 / dp, 3: 16 / dp}[zero] * mine


def stages_forgotten(weights, dp, tp, pp, zero):
    return {0: 16, 1: 4 + 12 / dp, 3: 16 / dp}[zero] * weights / tp


def no_master_weights(weights, dp, tp, pp, zero):
    return {0: 12, 1: 4 + 8 / dp, 3: 12 / dp}[zero] * weights / (tp * pp)


def part_by_part(weights, dp, tp, pp, zero):
    over = dp if zero == 3 else 1
    total = 2 * weights / over + 2 * weights / over
    total += 12 * weights / (dp if zero else 1)
    return total / tp / pp


# ---- cutting layers ------------------------------------------------------------------------------


def _rings_s(calls, turns, latency_s, seconds):
    return calls * turns * (latency_s + seconds)


def two_for_each_layer(layers, hidden, tokens, tp, latency_s, bytes_s):
    return _rings_s(2 * layers, 2 * (tp - 1), latency_s, 2 * tokens * hidden / tp / bytes_s)


def gather_only(layers, hidden, tokens, tp, latency_s, bytes_s):
    return _rings_s(4 * layers, tp - 1, latency_s, 2 * tokens * hidden / tp / bytes_s)


def whole_tensor_in_each_step(layers, hidden, tokens, tp, latency_s, bytes_s):
    return _rings_s(4 * layers, 2 * (tp - 1), latency_s, 2 * tokens * hidden / bytes_s)


def latency_once(layers, hidden, tokens, tp, latency_s, bytes_s):
    size = 2 * tokens * hidden
    return 4 * layers * (latency_s + 2 * (tp - 1) / tp * size / bytes_s)


def no_latency(layers, hidden, tokens, tp, latency_s, bytes_s):
    return 4 * layers * 2 * (tp - 1) / tp * 2 * tokens * hidden / bytes_s


def one_byte(layers, hidden, tokens, tp, latency_s, bytes_s):
    return _rings_s(4 * layers, 2 * (tp - 1), latency_s, tokens * hidden / tp / bytes_s)


def n_steps(layers, hidden, tokens, tp, latency_s, bytes_s):
    return _rings_s(4 * layers, 2 * tp, latency_s, 2 * tokens * hidden / tp / bytes_s)


def call_by_call(layers, hidden, tokens, tp, latency_s, bytes_s):
    seconds = 0.0
    for _layer in range(layers):
        for _call in ("attention", "MLP", "backward of the MLP", "backward of attention"):
            seconds += 2 * (tp - 1) * latency_s
            seconds += 2 * (tp - 1) / tp * (2 * tokens * hidden) / bytes_s
    return seconds


# ---- the fastest plan ----------------------------------------------------------------------------


def fits_nowhere(model, cluster, chips):
    return min(step_time(model, cluster, plan).step_s for plan in scaling.plans(model, chips))


def first_that_fits(model, cluster, chips):
    for plan in scaling.plans(model, chips):
        if step_time(model, cluster, plan).fits:
            return step_time(model, cluster, plan).step_s
    return None


def slowest(model, cluster, chips):
    scores = [step_time(model, cluster, plan) for plan in scaling.plans(model, chips)]
    return max(score.step_s for score in scores if score.fits)


def on_our_cluster(model, cluster, chips):
    return chapter_19.fastest_s(model, CLUSTER, chips)


def fewest_bytes(model, cluster, chips):
    scores = [step_time(model, cluster, plan) for plan in scaling.plans(model, chips)]
    return min(scores, key=lambda score: score.bytes).step_s


def copies_alone(model, cluster, chips):
    return step_time(model, cluster, Plan(dp=chips, zero=3)).step_s


def computing_only(model, cluster, chips):
    scores = [step_time(model, cluster, plan) for plan in scaling.plans(model, chips)]
    return min(score.compute_s for score in scores if score.fits)


def by_mfu(model, cluster, chips):
    best = None
    for plan in scaling.plans(model, chips):
        score = step_time(model, cluster, plan)
        if score.fits and (best is None or score.mfu > best.mfu):
            best = score
    return best.step_s


WRONG = {
    "bytes": [
        two_turns, all_reduce_and_two_gathers, for_many_ranks_only, of_a_share,
        to_every_other_rank, numbers_for_bytes, always_two_bytes,
    ],
    "tokens": [
        forward_only, all_reduce_only, four_bytes, upside_down, bits_for_bytes, one_gather,
    ],
    "states": [
        copies_cut_the_model, nobody_shards, zero_1_as_zero_3, zero_3_as_zero_1, zero_1_as_zero_2,
        stages_forgotten, no_master_weights,
    ],
    "tensor": [
        two_for_each_layer, gather_only, whole_tensor_in_each_step, latency_once, no_latency,
        one_byte, n_steps,
    ],
    "fastest": [
        fits_nowhere, first_that_fits, slowest, on_our_cluster, fewest_bytes, copies_alone,
        computing_only,
    ],
}  # fmt: skip
RIGHT = {
    "bytes": [by_shares, chapter_19.fsdp_bytes],
    "tokens": [in_two_lines, chapter_19.tokens_to_hide],
    "states": [part_by_part, chapter_19.state_bytes],
    "tensor": [call_by_call, chapter_19.tensor_s],
    "fastest": [by_mfu, chapter_19.fastest_s],
}
STOPS: set[str] = set()  # none of them crashes or hangs
