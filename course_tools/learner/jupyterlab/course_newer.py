"""What JupyterLab tells of copies whose original is newer, with a button that merges them."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

COURSE = Path(__file__).resolve().parents[3]
_WORDS = {
    "": ("{} has a newer original.", "Take my answers over to it"),
    "zh": ("{} 的原件有更新。", "把我的答案带过去"),
}


def notices(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """A notice for each name in COURSE_NEWER, in the language of COURSE_LANG.

    Each has a message, the label of a button, and the command that this runs in a terminal.
    """
    is_chinese = environment.get("COURSE_LANG", "").strip().lower() == "zh"
    message, label = _WORDS["zh" if is_chinese else ""]
    offers = []
    for name in environment.get("COURSE_NEWER", "").split():
        merge = [sys.executable, "-m", "course_tools.learner.workspace", "--fresh", name]
        command = f"(cd {shlex.quote(str(COURSE))} && {shlex.join(merge)})"
        offers.append({"message": message.format(name), "label": label, "command": command})
    return offers
