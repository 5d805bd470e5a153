"""The launcher's documentation opens with a launcher of twenty lines, which works."""

import itertools
import os
import re
import textwrap
from pathlib import Path

from warm_kernels import NURSERY

from course_utils import launcher
from course_utils.launcher import rendezvous

DOCUMENTATION = launcher.__doc__
FOLDER = Path(launcher.__file__).parent


def core() -> str:
    """The program at the beginning: all indented lines before the next paragraph."""
    begins_at = DOCUMENTATION.index("    import os\n")
    lines = DOCUMENTATION[begins_at:].splitlines()
    program = itertools.takewhile(lambda line: not line or line.startswith("    "), lines)
    return textwrap.dedent("\n".join(program))


def test_the_core_forks_joins_runs_and_brings_results_home(tmp_path):
    # In a process of its own: here, a rank that fails would go on as a second pytest. And by
    # loopback: the name of this host may lead nowhere.
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": rendezvous._INTERFACE}
    assert NURSERY.run(core(), env=environment, cwd=tmp_path) == "[3.0, 3.0]\n"


def test_the_core_is_about_twenty_lines():
    function = core().partition("def launch")[2].partition("def total")[0]
    assert len(function.strip().splitlines()) <= 22


def test_every_file_of_the_launcher_says_what_it_adds():
    described = re.findall(r"^    (\w+) {3,}[A-Z]", DOCUMENTATION, re.MULTILINE)
    files = [path.stem for path in FOLDER.glob("*.py") if path.stem != "__init__"]
    assert sorted(described) == sorted(files)
