"""What a run of the tests leaves in the folder for temporary files: nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
# As torchrun, lessons and killed kernels do.
LITTERS = """
import tempfile

def test_that_leaves_a_folder_and_fails():
    print("left in", tempfile.mkdtemp())
    assert False
"""


@pytest.mark.slow
def test_what_tests_leave_in_it_goes_with_them_and_what_pytest_keeps_stays(tmp_path):
    temporary, kept = tmp_path / "temporary", tmp_path / "kept"
    temporary.mkdir()
    kept.mkdir()
    litters = tmp_path / "test_litters.py"
    litters.write_text(LITTERS)
    folders = {"TMPDIR": str(temporary), "PYTEST_DEBUG_TEMPROOT": str(kept)}
    paths = {"PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}"}
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-c", "pyproject.toml", litters]
    done = subprocess.run(
        command, cwd=TESTS.parent, env=os.environ | folders | paths, capture_output=True, text=True
    )
    assert "1 failed" in done.stdout, done.stdout + done.stderr
    assert f"left in {temporary}" in done.stdout
    assert os.listdir(temporary) == []
