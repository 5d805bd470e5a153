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
_FIRST = {
    "": "The cells above run first: this kernel hasn't run them as they stand.",
    "zh": "先运行上面的单元格：这个内核还没有运行过它们现在的内容。",
}


def cells_above_run_first(environment: Mapping[str, str]) -> str:
    """What a lab's button says in a kernel that misses what the check needs."""
    return _FIRST[_language(environment)]


def _language(environment: Mapping[str, str]) -> str:
    """`zh`, or nothing for English."""
    chosen = environment.get("COURSE_LANG", "").strip().lower()
    return "zh" if chosen == "zh" else ""


def notices(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """A notice for each name in COURSE_NEWER, in the language of COURSE_LANG.

    Each has a message, the label of a button, and the command that this runs in a terminal.
    """
    message, label = _WORDS[_language(environment)]
    course = shlex.quote(str(COURSE))
    names = environment.get("COURSE_NEWER", "").split()
    offers = []
    for name in names:
        merge = [sys.executable, "-m", "course_tools.learner.workspace", "--fresh", name]
        command = f"(cd {course} && {shlex.join(merge)})"
        offer = {"message": message.format(name), "label": label, "command": command}
        offers.append(offer)
    return offers
