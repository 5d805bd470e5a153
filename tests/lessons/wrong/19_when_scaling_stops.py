"""Wrong answers to what a learner writes in chapter 19, and for each exercise right ones.

What people write: an all-reduce's two turns instead of three; no (n - 1)/n; a rank's share instead
of what goes around; bits for bytes; chips for tokens; 2 FLOPs per weight; Adam's states that only
ZeRO-3 shares; tp that is forgotten; copies that cut the model without ZeRO.
"""

from course_lessons import chapter_19

STEPS = {
    "bytes": chapter_19.bytes_check(),
    "tokens": chapter_19.TOKENS_CHECK,
    "states": chapter_19.STATE_CHECK,
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
}  # fmt: skip
RIGHT = {
    "bytes": [by_shares, chapter_19.fsdp_bytes],
    "tokens": [in_two_lines, chapter_19.tokens_to_hide],
    "states": [part_by_part, chapter_19.state_bytes],
}
STOPS: set[str] = set()  # none of them crashes or hangs
