"""How many predictions were right, kept over all chapters in a file of the learner's own.

`make lab` names the file in the environment's COURSE_SCORES. Elsewhere, as in a test, nothing is
kept.
"""

import contextlib
import json
import os
import re
from pathlib import Path

FILE = "COURSE_SCORES"  # in the environment: the path of the file
_CHAPTER = re.compile(r"lesson_(\d\d)_")  # in the name of a learner's copy


def note(question: str, right: bool) -> None:
    """Keep whether the answer to a question of this kernel's chapter was right."""
    chapter = _chapter_of_this_kernel()
    path = os.environ.get(FILE)
    if not path or not chapter:
        return
    scores = read(Path(path))
    scores.setdefault(chapter, {})[question] = right
    _replace(Path(path), json.dumps(scores, indent=1, sort_keys=True, ensure_ascii=False))


def read(path: Path) -> dict[str, dict[str, bool]]:
    """Whether each answer was right, by chapter (such as "03") and question; empty if unread."""
    with contextlib.suppress(OSError, ValueError):
        scores = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(scores, dict):
            return scores
    return {}


def _chapter_of_this_kernel() -> str | None:
    """The number of the notebook's chapter, from the name that Jupyter's server gives a kernel."""
    match = _CHAPTER.search(os.environ.get("JPY_SESSION_NAME", ""))
    return match[1] if match else None


def _replace(path: Path, text: str) -> None:
    """Write a file so that whoever reads meanwhile sees the old or the new one, whole."""
    with contextlib.suppress(OSError):  # a score is not worth an error in the middle of a lesson
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
