"""The model of a network needs nothing but Python: it shall also run in a browser."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_network import one_collective

from course_utils import Network
from course_utils.network.trace import Trace

ROOM = Path(__file__).resolve().parents[2] / "course_utils"
NEEDED = ["record/event.py", "launcher/language.py", "launcher/stacks.py"]
REPLAY = """
import sys
for absent in ("torch", "numpy", "IPython", "matplotlib"):
    sys.modules[absent] = None
from course_utils.network.network import Network
from course_utils.network.trace import Event, Trace
trace = Trace.load("saved.json")
network = Network(latency_us=0.1, gbit_s=7, nodes=3, between=(1.7, 0.3))
print(trace.replay(network).finish_us, trace.traffic("tree").bytes)
"""


@pytest.fixture
def saved(tmp_path) -> Trace:
    trace = one_collective("all_reduce", 6, 1234)
    trace.save(tmp_path / "saved.json")
    return trace


@pytest.fixture
def only_these_files(tmp_path) -> Path:
    """The room and the file below it, below packages that are empty."""
    package = tmp_path / "alone" / "course_utils"
    for room in ("record", "launcher"):
        (package / room).mkdir(parents=True)
    for name in NEEDED:
        shutil.copy(ROOM / name, package / name)
    shutil.copytree(ROOM / "network", package / "network")
    for folder in (package, *(package / room for room in ("record", "launcher", "network"))):
        (folder / "__init__.py").write_text("")
    return package.parent


@pytest.mark.parametrize("alone", [False, True])
def test_a_recording_is_replayed_where_there_is_only_python(
    alone, saved, only_these_files, tmp_path
):
    path = only_these_files if alone else ROOM.parent
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(path)!r})\n{REPLAY}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    network = Network(latency_us=0.1, gbit_s=7, nodes=3, between=(1.7, 0.3))
    wanted = f"{saved.replay(network).finish_us} {saved.traffic('tree').bytes}\n"
    assert (done.stdout, done.stderr) == (wanted, "")


def test_the_room_imports_the_standard_library_and_what_a_call_is():
    ours = {name.removesuffix(".py").replace("/", ".") for name in NEEDED}
    for file in (ROOM / "network").glob("*.py"):
        for module in re.findall(r"^\s*(?:from|import) ([\w.]+)", file.read_text(), re.MULTILINE):
            top, _, rest = module.partition(".")
            assert top in sys.stdlib_module_names or rest in ours or rest.startswith("network.")
