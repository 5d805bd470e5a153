"""Chapter 14: what must hold of what its ranks record, and of how it reads a recording."""

import nbformat
import pytest
import torch

from course_lessons import chapter_14
from course_material.recordings import Row, recording
from course_tools.notebooks import build
from course_utils import launch
from course_utils.devices.placement import gpu_count


@pytest.fixture(scope="module")
def lesson():
    """What the chapter's cells define that begin with a definition, after its imports."""
    names = {"__name__": "__main__"}
    cells = build.plan(build.targets(build.ROOT, ["14"])[0]).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINETO_LOG_LEVEL", "99")
        for text in code[:1] + [text for text in code if text.startswith("def ")]:
            exec(compile(text, "<chapter 14>", "exec"), names)
    return names


def made_up(seed):
    """Kernels at whole microseconds, of which many overlap, within one step of 100."""
    torch.manual_seed(seed)
    rows = [Row("step", "step", "main thread", 0, 100, 0, 0)]
    for number in range(12):
        start, us = torch.randint(0, 80, ()).item(), torch.randint(0, 20, ()).item()
        kind = ("compute", "collective", "copy")[number % 3]
        rows.append(Row(kind, "x", "stream 7", start, us, 0, 0))
    return rows


def covered(rows, kind):
    """The oracle: the microseconds at which a kernel of a kind runs, one by one."""
    return {at for row in rows for at in range(row.start_us, row.end_us) if row.kind == kind}


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_what_counting_microseconds_gives(seed):
    rows = made_up(seed)
    compute, talk = covered(rows, "compute"), covered(rows, "collective")
    copies = covered(rows, "copy") - compute - talk
    wanted_us = [len(compute), len(talk - compute), len(copies)]
    wanted_us.append(100 - sum(wanted_us))
    assert [*chapter_14.shares(rows).values()] == pytest.approx([us / 100 for us in wanted_us])
    assert chapter_14.share_hidden(rows) == pytest.approx(len(talk & compute) / len(talk))


def test_the_shares_of_a_step_are_those_of_its_pieces_together():
    rows = recording("resnet50_2xA100")
    end_us = sum(row.us for row in rows if row.kind == "step")
    edges = [end_us * k / 4 for k in range(5)]
    pieces = [chapter_14.shares([*chapter_14.cut_out(rows, *edges[k : k + 2])]) for k in range(4)]
    together = {part: sum(piece[part] for piece in pieces) / 4 for part in pieces[0]}
    assert together == pytest.approx(chapter_14.shares(rows), abs=0.001)


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_call_is_over_before_the_late_rank_has_come(lesson, world_size):
    before, after = launch(lesson["joins_late"], True, world_size=world_size, backend="gloo")[0]
    assert (before, after) == (1, world_size)


def test_the_all_reduces_that_ranks_record_are_their_gradients_each_begun_within_its_step(lesson):
    for rows in launch(lesson["recorded"], 4, backend="gloo", timeout=100):
        steps = [row for row in rows if row.kind == "step"]
        begun = {
            name: [
                sum(row.name == name and s.start_us <= row.start_us < s.end_us for row in rows)
                for s in steps
            ]
            for name in ("c10d::allreduce_", "gloo:all_reduce")
        }
        assert set(map(tuple, begun.values())) == {(1, 2, 2, 2)}
        sent_bytes = sum(row.bytes for row in rows if row.name == "gloo:all_reduce")
        assert sent_bytes == 4 * 8 * (512 * 512 + 512) * 4
        assert 0 <= chapter_14.share_hidden(rows) <= 1


def test_the_cost_of_looking_is_told_with_the_profiler_and_without(lesson):
    costs = launch(lesson["cost"], 2, 10, world_size=1, backend="gloo", timeout=100)[0]
    assert costs.keys() == {False, True}
    assert min(costs[False] + costs[True]) > 0


def test_where_there_is_no_gpu_the_live_cells_say_what_they_would_print():
    cells = nbformat.read(build.ROOT / "notebooks/14_on_a_gpu_who_waits.ipynb", 4).cells
    live = [c for c in cells if "nbval-ignore-output" in c.metadata.get("tags", [])]
    assert len(live) == 3
    assert all("this would print" in cell.outputs[0].text for cell in live)


@pytest.mark.gpu
@pytest.mark.skipif(gpu_count() < 1, reason="no GPU on this machine")
def test_on_one_gpu_launches_are_over_before_their_kernels(lesson):
    launched_ms, ran_ms = launch(lesson["products"], world_size=1, device="cuda")[0]
    assert 0 < launched_ms < ran_ms


@pytest.mark.gpu
@pytest.mark.skipif(gpu_count() < 1, reason="no GPU on this machine")
def test_two_ranks_share_a_gpu_by_gloo(lesson):
    for at_ms in launch(lesson["all_reduce_times"], 16, backend="gloo", device="cuda"):
        assert at_ms == sorted(at_ms)


@pytest.mark.gpu
@pytest.mark.nccl
@pytest.mark.skipif(gpu_count() < 1, reason="no GPU on this machine")
def test_on_gpus_the_call_is_over_first_and_synchronize_last(lesson):
    shares = gpu_count() < 2
    for at_ms in launch(lesson["all_reduce_times"], 16, backend="nccl", share_gpus=shares):
        assert at_ms == sorted(at_ms)
        assert len(at_ms) == 3


@pytest.mark.parametrize("name", ["resnet50_2xA100", "per_gradient_2xV100", "recommender_8xA100"])
def test_collectives_of_the_recordings_have_a_stream_that_computes_nothing(name):
    lanes = {"compute": set(), "collective": set()}
    for row in recording(name):
        if row.kind in lanes:
            lanes[row.kind].add(row.lane)
    assert lanes["collective"]
    assert not lanes["compute"] & lanes["collective"]
