"""What builds, checks, grades and measures the course.

Each command runs as `python -m course_tools.ROOM.NAME`. Nothing here is needed to run a notebook:
what notebooks import is `course_utils`, `course_checks`, `course_material`, `course_cluster` and
`course_challenge`.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the project's folder, with notebooks/ and source/
