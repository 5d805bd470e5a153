"""The recordings that come with the course: what their rows say, and that they come along."""

import tomllib
from pathlib import Path
from statistics import median

import pytest

import course_material.recordings as room
from course_material.recordings import KINDS, recording

HERE = Path(room.__file__).parent
NAMES = ("per_gradient_2xV100", "recommender_8xA100", "resnet50_2xA100")


def test_an_unknown_name_is_told_with_those_there_are():
    with pytest.raises(ValueError, match=f"no recording is called 'x'; .*: {', '.join(NAMES)}$"):
        recording("x")


@pytest.mark.parametrize("name", ["../recordings/resnet50_2xA100", ""])
def test_a_name_is_no_path(name):
    with pytest.raises(ValueError, match="no recording is called"):
        recording(name)


def test_an_installed_copy_has_them_with_their_license_in_less_than_300_kb():
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["course_material.recordings"]
    carried = {path.name: path.stat().st_size for each in patterns for path in HERE.glob(each)}
    assert set(carried) == {f"{name}.json.gz" for name in NAMES} | {"LICENSE", "README.md"}
    assert sum(carried.values()) < 300_000


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_in_order_and_each_piece_of_work_has_one_launch_before_it(name):
    rows = recording(name)
    assert rows == sorted(rows, key=lambda row: row.start_us)
    assert {row.kind for row in rows} == set(KINDS)
    launches = {row.launch: row for row in rows if row.kind == "launch"}
    work = [row for row in rows if row.lane.startswith("stream")]
    assert sorted(row.launch for row in work) == sorted(launches)
    assert all(launches[row.launch].start_us <= row.start_us for row in work)
    assert {row.launch for row in rows if row.kind in ("host", "step")} == {0}


@pytest.mark.parametrize(
    ("name", "steps", "all_reduces", "sent_bytes"),
    [
        ("resnet50_2xA100", 3, 5, 4 * 25_557_032),  # each gradient of ResNet-50 once
        ("per_gradient_2xV100", 1, 404, 1_075_010_640),
        ("recommender_8xA100", 2, 3, 200_037_204),
    ],
)
def test_what_is_all_reduced_per_step(name, steps, all_reduces, sent_bytes):
    rows = recording(name)
    assert sum(row.kind == "step" for row in rows) == steps
    found = [row for row in rows if row.kind == "collective" and "AllReduce" in row.name]
    assert len(found) == all_reduces * steps
    assert sum(row.bytes for row in found) == sent_bytes * steps


def test_the_inferred_sizes_of_single_gradients_agree_with_how_long_they_take():
    talks = [row for row in recording("per_gradient_2xV100") if row.kind == "collective"]
    large = [row for row in talks if row.bytes > 1_000_000]
    speeds = [row.bytes / row.us for row in large]  # bytes per microsecond
    assert len(large) > 100
    assert 0.8 * median(speeds) < min(speeds)
    assert max(speeds) < 1.1 * median(speeds)
    assert max(row.us for row in talks if row.bytes < 100_000) < min(row.us for row in large)
    assert sum(row.bytes == 0 for row in talks) == 16  # of which the trace says no size


def test_every_call_of_a_single_gradient_is_followed_by_one_wait():
    rows = recording("per_gradient_2xV100")
    host = [row for row in rows if row.name in ("c10d::allreduce_", "cudaStreamWaitEvent")]
    inside = [row for row in host if row.name == "c10d::allreduce_"]
    outer = [
        row
        for row in host
        if row in inside or not any(c.start_us <= row.start_us <= c.end_us for c in inside)
    ]
    assert [row.name for row in outer] == ["c10d::allreduce_", "cudaStreamWaitEvent"] * 404
