"""What the course says while it runs, in the language that a learner has chosen.

Messages are made in English, and are put into Chinese where they are shown, see `speaker.py`. Who
learns in English loads nothing of that.
"""

import functools
import importlib
import json
import os
from pathlib import Path
from typing import Any

CATALOGUE = Path(__file__).with_name("messages.json")


def in_chinese() -> bool:
    """Whether the learner has chosen it: by COURSE_LANG, else by the kernel's locale."""
    names = ("COURSE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    chosen = next(filter(None, (os.environ.get(name, "").strip() for name in names)), "")
    return chosen.lower().startswith("zh")


def said(text: str, contexts: str = "") -> str:
    """A message in the learner's language, line by line.

    Args:
        text: In English. A line that does not begin with a template is none of ours, and stays.
        contexts: Where its templates are made, such as "outcome.Outcome"; any sentences if empty.
    """
    if not in_chinese():
        return text
    try:
        return _speaker().text(text, contexts)
    except Exception:  # such as of a catalogue that is not there: better English than no message
        return text


@functools.cache
def _speaker() -> Any:
    rows = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return importlib.import_module("course_material.speaker").Speaker(rows)


def retell(error: Any) -> None:
    """Put an error into the learner's language, before it is shown; it never fails."""
    if not in_chinese():
        return
    if hasattr(error, "parts"):
        error.parts[:] = map(said, error.parts)
    elif error.args and isinstance(error.args[0], str):
        error.args = said(error.args[0]), *error.args[1:]
    elif render := getattr(error, "_render_traceback_", None):
        lines = [*map(said, render())]
        error._render_traceback_ = lambda: lines
