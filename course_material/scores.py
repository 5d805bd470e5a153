"""What a learner predicted, and whether it was right, kept in a file of the learner's own.

`make lab` names the file in the environment's COURSE_SCORES. Elsewhere, as in a test, nothing is
kept. The file outlives the kernel, so a prediction is taken up again on the next day. It holds, by
chapter (such as "03") and question, the answer as text, the day of the answer, and, once it has
been measured, whether it was right. What checks said in labs stands there as well: see `verdicts`.
"""

import contextlib
import datetime
import json
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

FILE = "COURSE_SCORES"  # in the environment: the path of the file
_CHAPTER = re.compile(r"chapter_(\d\d)_")  # in the name of a learner's copy


class KeptAnswer(NamedTuple):
    """An answer of an earlier run of the question's cell."""

    text: str
    day: datetime.date


def note(question: str, right: bool) -> None:
    """Keep whether the answer to a question of this kernel's chapter was right."""
    update(_chapter_of_this_kernel(), question, {"right": right})


def keep_answer(question: str, text: str) -> None:
    """Keep an answer that was given just now; it takes the place of an earlier one."""
    today = datetime.date.today().isoformat()
    news = {"answer": text, "day": today, "right": None}
    update(_chapter_of_this_kernel(), question, news)


def kept_answer(question: str) -> KeptAnswer | None:
    """The answer that was given last to a question of this kernel's chapter, if any was."""
    entry = entry_of(_chapter_of_this_kernel(), question)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return KeptAnswer(str(entry["answer"]), datetime.date.fromisoformat(entry["day"]))
    return None


def read(path: Path) -> dict[str, dict[str, bool]]:
    """Whether each measured answer was right, by chapter and question; empty if unread."""
    rights: dict[str, dict[str, bool]] = {}
    for chapter, questions in entries(path).items():
        for question, entry in questions.items():
            if entry.get("right") is not None:
                rights.setdefault(chapter, {})[question] = entry["right"]
    return rights


def entry_of(place: str | None, name: str) -> dict[str, Any]:
    """What is kept of a name, such as a question, in one place, such as a chapter."""
    path = os.environ.get(FILE)
    if not path or not place:
        return {}
    return entries(Path(path)).get(place, {}).get(name, {})


def update(place: str | None, name: str, news: dict[str, Any]) -> None:
    """Keep news of a name; nothing is kept where there is no file or no place."""
    path = os.environ.get(FILE)
    if not path or not place:
        return
    kept = entries(Path(path))
    entry = kept.setdefault(place, {}).setdefault(name, {})
    entry.update(news)
    _replace(Path(path), json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False))


def entries(path: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """All that the file holds, by place and name; nothing if it can't be read."""
    kept = None
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(kept, dict):
        return {}
    by_place = {}
    for place, names in kept.items():
        if isinstance(names, dict):
            by_place[place] = {name: _entry(value) for name, value in names.items()}
    return by_place


def _entry(value: Any) -> dict[str, Any]:
    """What is kept of a question; files of November 2026 hold only whether it was right."""
    return value if isinstance(value, dict) else {"right": bool(value)}


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
