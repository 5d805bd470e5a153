"""The line that a learner fits in chapter 06: what its check rejects, and what its model says."""

import labs
import numpy as np
import pytest
import torch
import torch.distributed as dist

from course_material.recordings import recording
from course_utils import Network, check, launch

LESSON = labs.ROOT / "source/lessons/06_what_communication_costs.py"
WANTED = ("import numpy", "def fit(", "def fit_spec", "def finished_fit", "def longer_ms")
WANTED = (*WANTED, "def percent_longer", "def step_ms", "def add_up(", "def four_rings")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercise and of the last part define."""
    return labs.defined(LESSON, WANTED)


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


WRONG = [
    absolute_errors, weights_by_the_root, weights_squared_twice, weighted_by_size, first_and_last,
    latency_of_the_smallest, errors_of_the_logarithm, the_other_way_round, gbit_for_beta,
    through_the_origin, relative_to_the_line,
]  # fmt: skip


@pytest.mark.parametrize("fit", WRONG)
def test_a_wrong_fit_is_rejected(lesson, fit):
    outcome = check(fit, **lesson["judged"])
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("fit", [by_polyfit, by_normal_equations_in_torch])
def test_another_right_fit_passes(lesson, fit):
    assert check(fit, **lesson["judged"]).require()


def test_the_finished_fit_passes_and_a_stub_is_not_attempted(lesson):
    assert check(lesson["finished_fit"], **lesson["judged"]).require()
    assert check(lesson["fit"], **lesson["judged"]).state == "not attempted"


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
def test_four_rings_add_up_and_use_every_card_between_nodes_alike(lesson, nodes):
    calls = lesson["add_up"], lesson["four_rings"], 16 * nodes * 20
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
