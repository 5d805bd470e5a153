"""What JupyterLab's page tells, in the learner's language.

Copies whose original is newer have a notice, with a button that merges them.
"""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

COURSE = Path(__file__).resolve().parents[3]
_WORDS = {
    "": ("{} has a newer original.", "Take my answers over to it"),
    "zh": ("{} 的原件有更新。", "把我的答案带过去"),
}
# Of a lab's buttons, and of a cell that misses a name; the page fills in `{name}` and `{heading}`.
_SAID = {
    "courseFirst": {
        "": "What it needs runs first, which may take a minute or two: {count} of the cells above.",
        "zh": "先运行它所需要的，可能要一两分钟：上面的 {count} 个单元格。",
    },
    "courseNoMoreHints": {
        "": "There are no more hints.",
        "zh": "没有更多提示了。",
    },
    "courseToTheList": {"": "Go to the list", "zh": "到列表去"},
    "courseToTheMap": {"": "All labs", "zh": "所有实验"},
    # JupyterLab cuts a notice after 140 letters.
    "courseMissing": {
        "": "{name} comes from a cell further up, below “{heading}”. Run it first: "
        "Run > Run All Above Selected Cell.",
        "zh": "{name} 来自上面“{heading}”之下的单元格。请先运行它："
        "Run > Run All Above Selected Cell。",
    },
    "courseAbove": {"": "Run what it needs", "zh": "运行它所需要的"},
}


def texts_of_page(environment: Mapping[str, str]) -> dict[str, str]:
    """What the page says, by the name that `course.js` knows it by."""
    language = _language(environment)
    return {name: texts[language] for name, texts in _SAID.items()}


def _language(environment: Mapping[str, str]) -> str:
    """`zh`, or nothing for English."""
    chosen = environment.get("COURSE_LANG", "").strip().lower()
    if chosen == "zh":
        return "zh"
    return ""


def notices(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """A notice for each name in COURSE_NEWER, in the language of COURSE_LANG.

    Each has a message, the label of a button, and the command that this runs in a terminal.
    """
    language = _language(environment)
    message, label = _WORDS[language]
    course = shlex.quote(str(COURSE))
    names = environment.get("COURSE_NEWER", "").split()
    offers = []
    for name in names:
        merge = [sys.executable, "-m", "course_tools.learner.workspace", "--fresh", name]
        command = f"(cd {course} && {shlex.join(merge)})"
        offer = {"message": message.format(name), "label": label, "command": command}
        offers.append(offer)
    return offers
