"""What builds, checks, grades and measures the course.

Each command runs as `python -m course_tools.ROOM.NAME`. Nothing here is needed to run a notebook:
what notebooks import is `course_utils`, `course_checks`, `course_material`, `course_cluster` and
`course_challenge`.
"""

from pathlib import Path

PACKAGES = Path(__file__).resolve().parents[1]  # the folder of course_utils and its sisters
INSTALLED = PACKAGES / "course_tools" / "files"  # setup.py makes it, in wheels alone
# The folder with notebooks/ and source/: the project's own, or what a wheel has of it.
ROOT = INSTALLED if INSTALLED.is_dir() else PACKAGES
