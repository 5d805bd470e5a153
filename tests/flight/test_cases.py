"""Recorded hangs with their truth: the guilty are named, and nobody else."""

import json
import tarfile
from pathlib import Path

import pytest

import ddp_course
from course_utils import explain_dumps, plot_calls, plot_groups
from course_utils.hang.report import table

CASES = Path(__file__).parents[1] / "data" / "flight"
TRUTH = json.loads((CASES / "truth.json").read_text())
# Two hangs of sixteen ranks under NCCL, where they are at hand: see mnist_files.py.
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "flight"
LARGE = {"lock_gil_1st": [9, 14], "gpu_error_1st": [12, 14]}


@pytest.fixture(params=LARGE)
def large(request, tmp_path):
    """A folder with the dumps of a large case, and who is guilty there."""
    archive = SHARED / f"{request.param}.tar.gz"
    if not archive.exists():
        pytest.skip("these recordings lie beside the repository, and not here")
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # of Python 3.11.4
        packed.extractall(tmp_path)
    return tmp_path / request.param, LARGE[request.param]


@pytest.mark.parametrize("case", TRUTH)
def test_of_each_recorded_case_the_guilty_are_named_and_nobody_else(case):
    explanation = explain_dumps(CASES / case)
    assert explanation.guilty == TRUTH[case]
    assert not set(explanation.victims) & set(TRUTH[case])
    if not TRUTH[case]:
        assert explanation.exit_status == 3


def test_a_case_has_its_own_folder_and_each_folder_its_truth():
    assert {path.name for path in CASES.iterdir() if path.is_dir()} == set(TRUTH)


def test_two_hangs_of_sixteen_ranks_are_told(large):
    folder, guilty = large
    explanation = explain_dumps(folder)
    assert explanation.guilty == guilty
    assert explanation.sure
    assert explanation.chain[-1].waits_for in guilty
    assert "fault_injection.log was left out" in str(explanation)


@pytest.mark.parametrize("missing", [0, 3, 9, 11, 14])
def test_of_sixteen_ranks_one_may_have_left_no_dump(large, missing):
    folder, guilty = large
    (folder / f"_dump_{missing}").unlink()
    explanation = explain_dumps(folder)
    assert set(guilty) - {missing} <= set(explanation.guilty) <= {*guilty, missing}


@pytest.mark.parametrize(
    ("case", "status"), [("absent_rank", 0), ("finished", 3), ("receives_in_a_circle", 4)]
)
def test_the_command_prints_the_report_and_ends_with_what_it_found(capsys, case, status):
    assert ddp_course.main(["hang", str(CASES / case)]) == status
    printed = capsys.readouterr().out
    first = {0: "Guilty: rank 2.", 3: "Nothing hangs", 4: "Suspected: ranks 0 and 1."}[status]
    assert printed.startswith(first)


def test_the_command_prints_an_object(capsys):
    ddp_course.main(["hang", str(CASES / "pipeline_behind_all_reduce"), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["guilty"] == [3]
    assert answer["victims"] == [0, 1, 2]
    assert answer["sure"] is True
    assert [step["rank"] for step in answer["chain"]] == [1, 0, 2]


def test_a_folder_that_does_not_exist_is_told(capsys, tmp_path):
    assert ddp_course.main(["hang", str(tmp_path / "nowhere")]) == 4
    assert "There is no folder" in capsys.readouterr().err


def test_the_line_of_a_call_is_told_where_the_dump_has_it():
    assert "of make.py" in str(explain_dumps(CASES / "swapped_calls"))
    assert "of make.py" not in str(explain_dumps(CASES / "absent_rank"))


def test_calls_and_table_take_it_as_they_take_a_launchs(shown):
    explanation = explain_dumps(CASES / "absent_rank")
    plot_calls(explanation)
    assert shown.text.endswith("rank 2 never called #5.")
    assert "rank 2: has no call pending" in table(explanation)


def test_the_picture_of_groups_tells_the_chain(shown):
    plot_groups(explain_dumps(CASES / "pipeline_behind_all_reduce"))
    assert "rank 3 guilty" in shown.text
    assert "rank 1 waits for rank 0 waits for rank 2 waits for rank 3" in shown.text


def test_where_nobody_waits_there_is_nothing_to_draw():
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_groups(explain_dumps(CASES / "finished"))
