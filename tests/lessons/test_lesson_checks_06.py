"""The four formulas that a learner writes in chapter 06: what their checks reject, and the model.

What is right is no formula of the course: recordings of real ranks are replayed.
"""

import functools
import math

import labs
import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_lessons import chapter_06, finished
from course_lessons import chapter_06_pictures as pictures
from course_material.recordings import recording
from course_utils import Network, check, launch

LESSON = labs.ROOT / "source/lessons/06_what_communication_costs.py"
WANTED = ("import numpy", "def fit(", "def longer_ms", "def percent_longer", "def step_ms")
WANTED = (*WANTED, "def direct", "def hierarchical", "def all_reduce_us", "def crossing_us")
WANTED = (*WANTED, "def hiding_batch")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercise and of the last part define."""
    return labs.defined(LESSON, WANTED)


@pytest.fixture(scope="module")
def judged(lesson):
    """The options of each check, by the name of the exercise."""
    return {
        "all_reduce_us": chapter_06.price_check(lesson["direct"]),
        "fit": chapter_06.fit_check,
        "crossing_us": chapter_06.crossing_check(lesson["hierarchical"]),
        "hiding_batch": chapter_06.hiding_check(lesson["direct"]),
    }


def _line(sizes, times_us, weights):
    b, a = np.polyfit(sizes, times_us, 1, w=weights)
    return a, b


def absolute_errors(sizes, times_us):
    return _line(sizes, times_us, np.ones(len(sizes)))


def weights_by_the_root(sizes, times_us):
    return _line(sizes, times_us, times_us**-0.5)


def weights_squared_twice(sizes, times_us):
    return _line(sizes, times_us, times_us**-2)


def weighted_by_size(sizes, times_us):
    return _line(sizes, times_us, 1 / sizes)


def first_and_last(sizes, times_us):
    b = (times_us[-1] - times_us[0]) / (sizes[-1] - sizes[0])
    return times_us[0] - b * sizes[0], b


def latency_of_the_smallest(sizes, times_us):
    return times_us[0], ((times_us - times_us[0]) / sizes)[-1]


def errors_of_the_logarithm(sizes, times_us):
    a, b = first_and_last(sizes, times_us)
    for _ in range(50):  # Gauss and Newton
        line = a + b * sizes
        rows = np.stack([1 / line, sizes / line], axis=1)
        da, db = np.linalg.lstsq(rows, np.log(times_us / line), rcond=None)[0]
        a, b = a + da, b + db
    return a, b


def the_other_way_round(sizes, times_us):
    return _line(sizes, times_us, 1 / times_us)[::-1]


def gbit_for_beta(sizes, times_us):
    a, b = _line(sizes, times_us, 1 / times_us)
    return a, 8 / b / 1000


def through_the_origin(sizes, times_us):
    shares = sizes / times_us
    return 0.0, shares.sum() / (shares @ shares)


def relative_to_the_line(sizes, times_us):
    a, b = _line(sizes, times_us, 1 / times_us)
    for _ in range(50):
        a, b = _line(sizes, times_us, 1 / (a + b * sizes))
    return a, b


def by_polyfit(sizes, times_us):
    return _line(sizes, times_us, 1 / times_us)


def by_normal_equations_in_torch(sizes, times_us):
    line = torch.stack([torch.tensor(1 / times_us), torch.tensor(sizes / times_us)])
    return torch.linalg.solve(line @ line.T, line.sum(dim=1)).tolist()


def _price(direct, tree, ring):
    def all_reduce_us(algorithm, n, size, alpha, beta):
        if algorithm == "direct":
            return direct(n, size, alpha, beta)
        if algorithm == "tree":
            return tree(n, size, alpha, beta)
        return ring(n, size, alpha, beta)

    return all_reduce_us


def _direct(n, size, alpha, beta):
    return 2 * alpha + 2 * (n - 1) * size * beta


def _tree(n, size, alpha, beta):
    return (alpha + size * beta) * 2 * math.log2(n)


def _ring(n, size, alpha, beta):
    return (n - 1) * (2 * alpha + 2 * size * beta / n)


PRICES = {
    "each tensor pays the latency": lambda n, size, a, b: 2 * (n - 1) * (a + size * b),
    "only in": lambda n, size, a, b: a + (n - 1) * size * b,
    "n tensors": lambda n, size, a, b: 2 * (a + n * size * b),
    "all at once": lambda n, size, a, b: 2 * (a + size * b),
    "bits": lambda n, size, a, b: 2 * (a + (n - 1) * size * 8 * b),
}
WRONG_PRICES = [_price(price, _tree, _ring) for price in PRICES.values()] + [
    _price(_direct, lambda n, size, a, b: math.log2(n) * (a + size * b), _ring),
    _price(_direct, lambda n, size, a, b: 2 * (n - 1) * (a + size * b), _ring),
    _price(_direct, lambda n, size, a, b: 2 * math.log(n) * (a + size * b), _ring),
    _price(_direct, lambda n, size, a, b: 2 * math.log2(n) * (a + size / n * b), _ring),
    _price(_direct, _tree, lambda n, size, a, b: 2 * (n - 1) * (a + size * b)),
    _price(_direct, _tree, lambda n, size, a, b: 2 * n * (a + size / n * b)),
    _price(_direct, _tree, lambda n, size, a, b: 2 * a + 2 * (n - 1) / n * size * b),
    _price(_direct, _tree, lambda n, size, a, b: (n - 1) * (a + size / n * b)),
    _price(_direct, _tree, lambda n, size, a, b: 2 * (n - 1) / n * size * b),
    _price(_direct, _ring, _tree),
]


def price_by_a_table(algorithm, n, size, alpha, beta):
    steps = {"direct": 2, "tree": 2 * (n.bit_length() - 1), "ring": 2 * n - 2}
    tensors = {"direct": n - 1, "tree": 1, "ring": 1 / n}
    return steps[algorithm] * (alpha + tensors[algorithm] * size * beta)


def _crossing(one, several, two):
    def crossing_us(way, nodes, per_node, size, beta):
        share = {"one ring": one, "several rings": several, "two levels": two}[way]
        return share(nodes, per_node) * size * beta

    return crossing_us


def _one(nodes, k):
    return 2 - 2 / (nodes * k)


def _several(nodes, k):
    return (2 - 2 / (nodes * k)) / k


def _two(nodes, k):
    return (2 - 2 / nodes) / k


WRONG_CROSSINGS = [
    _crossing(lambda nodes, k: 2 - 2 / nodes, _several, _two),
    _crossing(lambda nodes, k: 1 - 1 / (nodes * k), _several, _two),
    _crossing(lambda nodes, k: 2, _several, _two),
    _crossing(_one, _one, _two),
    _crossing(_one, lambda nodes, k: (2 - 2 / (nodes * k)) / nodes, _two),
    _crossing(_one, _two, _two),
    _crossing(_one, _several, _several),
    _crossing(_one, _several, lambda nodes, k: 2 - 2 / nodes),
    _crossing(_one, _several, lambda nodes, k: (2 - 2 / k) / nodes),
    _crossing(_one, _several, lambda nodes, k: (1 - 1 / nodes) / k),
]


def one_latency_for_all(n, size, buckets, backward_us, alpha, beta):
    return 2 * (n - 1) * (alpha + size / n * beta) / backward_us


def without_latency(n, size, buckets, backward_us, alpha, beta):
    return 2 * (n - 1) / n * size * beta / backward_us


def each_bucket_sends_everything(n, size, buckets, backward_us, alpha, beta):
    return buckets * 2 * (n - 1) * (alpha + size / n * beta) / backward_us


def for_many_ranks(n, size, buckets, backward_us, alpha, beta):
    return (2 * n * buckets * alpha + 2 * size * beta) / backward_us


def half_a_ring(n, size, buckets, backward_us, alpha, beta):
    return (n - 1) * (buckets * alpha + size / n * beta) / backward_us


def upside_down(n, size, buckets, backward_us, alpha, beta):
    return backward_us / (2 * (n - 1) * (buckets * alpha + size / n * beta))


def rounded_up(n, size, buckets, backward_us, alpha, beta):
    return math.ceil(2 * (n - 1) * (buckets * alpha + size / n * beta) / backward_us)


def bucket_by_bucket(n, size, buckets, backward_us, alpha, beta):
    total_us = 0.0
    for _ in range(buckets):
        total_us += 2 * (n - 1) * alpha + 2 * (n - 1) / n * size / buckets * beta
    return total_us / backward_us


WRONG_BATCHES = [
    one_latency_for_all, without_latency, each_bucket_sends_everything, for_many_ranks,
    half_a_ring, upside_down, rounded_up,
]  # fmt: skip
WRONG_FITS = [
    absolute_errors, weights_by_the_root, weights_squared_twice, weighted_by_size, first_and_last,
    latency_of_the_smallest, errors_of_the_logarithm, the_other_way_round, gbit_for_beta,
    through_the_origin, relative_to_the_line,
]  # fmt: skip
WRONG = {
    "all_reduce_us": WRONG_PRICES, "fit": WRONG_FITS, "crossing_us": WRONG_CROSSINGS,
    "hiding_batch": WRONG_BATCHES,
}  # fmt: skip
RIGHT = {
    "all_reduce_us": [_price(_direct, _tree, _ring), price_by_a_table],
    "fit": [by_polyfit, by_normal_equations_in_torch],
    "crossing_us": [_crossing(_one, _several, _two)],
    "hiding_batch": [bucket_by_bucket],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_formulas_are_rejected(judged, name):
    assert len(WRONG[name]) >= 5
    for number, answer in enumerate(WRONG[name]):
        outcome = check(answer, **judged[name])
        assert outcome.state == "wrong", (number, outcome)
        assert outcome.message


@pytest.mark.parametrize("name", RIGHT)
def test_right_formulas_in_a_different_form_pass(judged, name):
    for answer in (*RIGHT[name], getattr(chapter_06, name)):
        assert check(answer, **judged[name]).require()


@pytest.mark.parametrize("name", RIGHT)
def test_a_stub_is_not_attempted(lesson, judged, name):
    assert check(lesson[name], **judged[name]).state == "not attempted"


@pytest.mark.parametrize("name", ["all_reduce_us", "hiding_batch"])
def test_formulas_are_judged_at_eight_rank_counts(judged, name):
    counts = set()
    for case in judged[name]["cases"]:
        counts.update(int(word) for word in case.replace(",", "").split() if word.isdigit())
    assert counts >= set(chapter_06.RANK_COUNTS)
    assert len(chapter_06.RANK_COUNTS) == 8


def test_a_finished_form_is_printed_when_the_answer_has_passed_or_on_demand(capsys):
    go_on_with = finished.go_on_with
    assert go_on_with(half_a_ring, False, bucket_by_bucket) is bucket_by_bucket
    assert "total_us" not in capsys.readouterr().out
    assert go_on_with(half_a_ring, False, bucket_by_bucket, show=True) is bucket_by_bucket
    assert "total_us" in capsys.readouterr().out
    assert go_on_with(half_a_ring, True, bucket_by_bucket) is half_a_ring
    assert "total_us" in capsys.readouterr().out


def test_the_last_bucket_is_never_hidden_and_all_of_them_are_without_a_backward_pass(lesson):
    ready, megabytes = lesson["resnet_ready"], lesson["resnet_mb"]
    options = {"n": 8, "gbit_s": 80, "alpha_us": 0}
    ms = [2 * 7 / 8 * mb / 10 for mb in megabytes]  # 80 Gbit/s are 10 MB per ms
    assert lesson["longer_ms"](ready, megabytes, 1e6, **options) == pytest.approx(ms[-1])
    assert lesson["longer_ms"](ready, megabytes, 0.0, **options) == pytest.approx(sum(ms))


@pytest.mark.parametrize("model", ["ResNet-50", "GPT, 124 M"])
def test_gradients_add_up_to_the_model_and_larger_batches_hide_more(lesson, model):
    ready, megabytes, _ = lesson["models"][model]
    parameters = {"ResNet-50": 25.557, "GPT, 124 M": 124.4}[model]
    assert sum(megabytes) == pytest.approx(4 * parameters, rel=0.01)
    assert ready == sorted(ready)
    assert ready[-1] == 1.0
    assert len(ready) == len(megabytes)
    longer = [lesson["percent_longer"](model, batch, 64) for batch in (1, 4, 16, 64, 256)]
    assert longer == sorted(longer, reverse=True)


@pytest.mark.parametrize("model", ["ResNet-50", "GPT, 124 M"])
@pytest.mark.parametrize("n", [2, 16, 128, 1024])
def test_the_batch_that_hides_is_where_a_step_gets_5_percent_longer(lesson, model, n):
    batch = lesson["hidden_from"](model, n)
    assert lesson["percent_longer"](model, batch, n) == pytest.approx(5, abs=0.05)


@pytest.mark.parametrize("nodes", [2, 3])
def test_four_rings_add_up_and_use_every_card_between_nodes_alike(nodes):
    four_rings = functools.partial(chapter_06.several_rings, per_node=4)
    calls = chapter_06.add_up, four_rings, 16 * nodes * 20
    trace = launch(*calls, world_size=4 * nodes, backend="gloo", trace=True).trace
    crossing = [0] * (4 * nodes)
    for event in trace:
        if event.kind == "send" and event.peer // 4 != event.rank // 4:
            crossing[event.rank] += event.bytes
    assert len(set(crossing)) == 1
    assert crossing[0] > 0


def test_buckets_of_the_recorded_total_are_one_all_reduce_after_the_backward_pass(lesson):
    total = sum(lesson["resnet_mb"])
    whole = lesson["longer_ms"]([1.0], [total], 64, 16, 10)
    assert lesson["step_ms"](200, 10) == pytest.approx(97 + whole)


@pytest.mark.parametrize("backward_ms", [0.0, 10.0, 60.0])
def test_the_model_of_a_step_is_the_replay_of_real_ranks(lesson, backward_ms):
    megabytes = [8.0, 32.0, 24.0, 28.0, 12.0]  # of which each rank sums a thousandth
    ready = lesson["resnet_ready"]

    def worker():
        boxes = [torch.ones(round(250 * mb)) for mb in megabytes]
        for work in [dist.all_reduce(box, async_op=True) for box in boxes]:
            work.wait()

    def computing_us(event):
        gap = ready[event.index] - (ready[event.index - 1] if event.index else 0)
        return 1000 * backward_ms * gap

    trace = launch(worker, world_size=4, backend="gloo", trace=True).trace
    calls = Network(latency_us=3, gbit_s=0.1)  # a thousandth of the bandwidth for such bytes
    replay = trace.replay(calls, lambda e: computing_us(e) if e.kind == "all_reduce" else 0.0)
    longer = lesson["longer_ms"](ready, megabytes, backward_ms, 4)
    assert max(replay.finish_us) / 1000 - backward_ms == pytest.approx(longer, rel=1e-6)


def test_resnets_buckets_and_shares_are_those_of_the_recording(lesson):
    rows = recording("resnet50_2xA100")
    launches = {row.launch: row for row in rows if row.kind == "launch"}
    for step in (row for row in rows if row.kind == "step"):
        inside = [row for row in rows if step.start_us <= row.start_us < step.end_us]
        backward = [row for row in inside if row.kind == "host" and "Backward0" in row.name]
        begin_us, end_us = backward[0].start_us, max(row.end_us for row in backward)
        work = [row for row in inside if row.kind == "compute" and row.launch in launches]
        own = [row for row in work if begin_us <= launches[row.launch].start_us <= end_us]
        assert sum(row.us for row in own) == pytest.approx(
            2 / 3 * sum(r.us for r in work), rel=0.03
        )
        for share, mb, row in zip(
            lesson["resnet_ready"],
            lesson["resnet_mb"],
            [row for row in inside if "AllReduce" in row.name and row.kind == "collective"],
            strict=True,
        ):
            done = sum(other.us for other in own if other.end_us <= row.start_us)
            assert done / sum(other.us for other in own) == pytest.approx(share, abs=0.011)
            assert mb == pytest.approx(row.bytes / 1e6, abs=0.06)


@pytest.mark.parametrize("name", ["all_reduce_us", "crossing_us", "hiding_batch"])
def test_formulas_are_drawn_case_by_case_also_wrong_ones(judged, texts, name):
    ours = getattr(chapter_06, name)
    cases = len(judged[name]["cases"])
    pictures.draw_formula(judged[name], ours)
    pictures.draw_formula(judged[name], lambda *given: 2 * ours(*given))
    assert f"{cases} of {cases} are 1." in texts[0]
    assert f"0 of {cases} are 1. Not so" in texts[1]
    assert texts[1].count(": 2;") == 7  # eight cases are named, and the last ends in a full stop


def test_a_fit_is_drawn_with_its_errors(texts):
    for answer in (chapter_06.fit, absolute_errors):
        pictures.draw_fit(answer)
    ours, wrong = (float(text.split()[-1].strip(".")) for text in texts)
    assert ours < wrong


def test_in_place_of_a_formula_that_is_not_written_ours_is_drawn(judged, texts, capsys):
    def stub(*given):
        raise NotImplementedError("about 5 lines")

    pictures.draw_formula(judged["hiding_batch"], stub, chapter_06.hiding_batch)
    assert texts[0].startswith("hiding_batch divided by")
    said = "No picture yet of stub: NotImplementedError: about 5 lines"
    assert capsys.readouterr().out.splitlines()[-1] == said
