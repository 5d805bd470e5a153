"""What a learner writes in chapter 19, what its checks reject, and what its model is judged by."""

from dataclasses import replace

import labs
import lesson_answers
import pytest

from course_lessons import chapter_19, scaling
from course_lessons import chapter_19_pictures as pictures
from course_lessons.scaling import CLUSTER, MODELS, Plan, step_time
from course_utils import dry_run, launch

pytestmark = pytest.mark.slow
ANSWERS = lesson_answers.answers_of("19")


@pytest.mark.parametrize("world_size", [2, 4])
def test_bytes_are_counted_as_the_traffic_of_real_ranks(world_size):
    run = launch(chapter_19.sharded_step, 2, world_size=world_size, backend="gloo", trace=True)
    for rank, sent in enumerate(run.trace.traffic().sent_bytes):
        assert chapter_19.sent_bytes(run.trace.of_rank(rank)) == pytest.approx(sent)


@pytest.mark.parametrize("world_size", [2, 4])
def test_cut_layers_make_the_calls_of_real_ranks(world_size):
    options = {"world_size": world_size}
    run = launch(chapter_19.cut_step, 2, 2, backend="gloo", trace=True, **options)
    pretended = dry_run(chapter_19.cut_step, 2, 2, **options)
    for rank in range(world_size):
        real = chapter_19.calls(run.trace.of_rank(rank))
        assert chapter_19.calls(pretended.of_rank(rank)) == real


@pytest.mark.parametrize("chips", [64, 512, 1024])
def test_what_copies_send_takes_as_long_by_the_model_as_by_dry_run_and_replay(chips):
    scored = step_time(MODELS["7B"], CLUSTER, Plan(dp=chips, zero=3))
    replayed_s = chapter_19.fsdp_seconds(MODELS["7B"], chips)
    assert scored.data_s + scored.hidden_s == pytest.approx(replayed_s, rel=1e-4)


def test_cut_layers_send_what_the_model_says():
    width, rows, blocks, tensor = 64, 32, 4, 8
    run = dry_run(chapter_19.cut_step, blocks, tensor, width, rows, world_size=1024)
    sent = chapter_19.sent_bytes(run.of_rank(700 if 700 in run.ranks else 0))
    model = scaling.Transformer(blocks // 2, width, 4 * width, 2, 1.0, 1000, 1, rows)
    no_latency = replace(CLUSTER, inside_s=0.0, between_s=0.0)
    plan = Plan(tp=tensor)
    scored = step_time(model, no_latency, plan, tokens=rows)
    in_bfloat16 = sent / 2  # the dry run sends float32
    assert scored.tensor_s * CLUSTER.inside_bytes_s == pytest.approx(in_bfloat16)


def test_models_have_as_many_weights_as_their_names_say():
    assert MODELS["7B"].weights == pytest.approx(6.74e9, rel=0.01)
    assert MODELS["70B"].weights == pytest.approx(70.6e9, rel=0.01)
    names = {"18B": 18.4e9, "76B": 76.1e9, "146B": 145.6e9, "1008B": 1008e9}
    for run in chapter_19.PUBLISHED:
        billions = run.name.split()[-1]
        if billions in names:
            assert run.model.weights == pytest.approx(names[billions], rel=0.01)


def test_a_plan_that_cannot_be_laid_out_says_why():
    with pytest.raises(ValueError, match="80 layers can't be cut into 32 equal stages"):
        step_time(MODELS["70B"], CLUSTER, Plan(pp=32))
    with pytest.raises(ValueError, match="1024 sequences are too few for 512 copies x 4"):
        step_time(MODELS["70B"], CLUSTER, Plan(dp=512, microbatches=4))


def test_a_slower_card_is_never_faster_and_more_microbatches_never_hold_more():
    slow = replace(CLUSTER, between_bytes_s=5e9)
    for plan in scaling.plans(MODELS["7B"], 64):
        scored = step_time(MODELS["7B"], CLUSTER, plan)
        assert step_time(MODELS["7B"], slow, plan).step_s >= scored.step_s
        assert 0 < scored.mfu < CLUSTER.chip.reached + 1e-9
        finer = replace(plan, microbatches=2 * plan.microbatches)
        if not scaling.problem(MODELS["7B"], finer):
            assert step_time(MODELS["7B"], CLUSTER, finer).bytes <= scored.bytes


def test_the_exercise_with_a_plan_can_be_won_and_is_not_won_at_first(capsys):
    text = (labs.ROOT / "source/lessons/19_when_scaling_stops.py").read_text(encoding="utf-8")
    assert "my_plan = Plan(dp=4, tp=8, pp=16, microbatches=16, zero=1)" in text
    assert not chapter_19.score_plan("70B", Plan(4, 8, 16, 16, 1)).fits
    won = chapter_19.score_plan("70B", Plan(64, 4, 2, 16, 1))
    assert won.fits
    assert won.mfu >= 0.5
    assert "0 of the 50 plans without ZeRO-3 that fit are faster" in capsys.readouterr().out


@pytest.mark.parametrize(("zero", "counted"), [(1, "1 of the 22 plans"), (3, "4 of the 31 plans")])
def test_plans_with_zero_3_are_drawn_only_beside_such_a_plan(texts, zero, counted):
    plan = Plan(4, 8, 16, 16, zero)
    pictures.draw_plans("70B", plan, step_time(MODELS["70B"], CLUSTER, plan))
    assert counted in texts[0]


def not_written(*_):
    raise NotImplementedError("about 1 line")


COUNTS = (64, 128)
DRAWINGS = {
    "fsdp_bytes": pictures.draw_sent,
    "tokens_to_hide": pictures.draw_tokens,
    "state_bytes": pictures.draw_state,
    "tensor_s": pictures.draw_tensor,
    "fastest_s": lambda *searches: pictures.draw_speed(*searches, counts=COUNTS),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_in_place_of_a_formula_that_is_not_written_ours_is_drawn(texts, capsys, name):
    DRAWINGS[name](not_written, getattr(chapter_19, name))
    assert name in texts[0]
    assert capsys.readouterr().out == "No picture yet of not_written: about 1 line\n"


def only_without_zero(weights, dp, tp, pp, zero):
    return 16 * weights / tp / pp if zero == 0 else None


def endless(flops_s, bytes_s):
    return float("inf")


@pytest.mark.parametrize(
    ("name", "answer", "reason"),
    [("state_bytes", only_without_zero, "NoneType"), ("tokens_to_hide", endless, "returns inf")],
)
def test_a_formula_that_returns_no_number_now_and_then_is_not_drawn(
    texts, capsys, name, answer, reason
):
    DRAWINGS[name](answer)
    assert texts == []
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("draw", "answer", "words"),
    [
        ("fsdp_bytes", "two_turns", "From the recorded steps it's 33% off."),
        ("tokens_to_hide", "one_gather", "The times cross at 11,868, 5,934, 2,967, 1,484, 742."),
        ("state_bytes", "stages_forgotten", "dp 64, tp 8, ZeRO-1: 36.9"),
        ("state_bytes", "nobody_shards", "dp 512, tp 1, ZeRO-3: 1,128.8"),
        ("tensor_s", "two_for_each_layer", "tp 8: 0.67 s, step_time 1.35"),
    ],
)
def test_a_wrong_formula_is_drawn_beside_what_is_right(texts, draw, answer, words):
    DRAWINGS[draw](ANSWERS.names[answer])
    assert words in texts[0]


def test_both_models_need_as_many_tokens(texts):
    crossings = chapter_19.find_crossings(chapter_19.fsdp_bytes, chips=1024)
    pictures.draw_crossings(crossings)
    for crossing in crossings.values():
        assert crossing.computing_s(crossing.tokens) == pytest.approx(crossing.sending_s)
    assert texts[0].endswith("7B at 1,482, 70B at 1,482.")


def test_calls_are_drawn_in_their_order(texts):
    run = dry_run(chapter_19.sharded_step, 2, world_size=64)
    pictures.draw_order({"64 wide": run}, rank=63)
    assert "4 × all_gather of 2,048, 2 × reduce_scatter of 131,072" in texts[0]
