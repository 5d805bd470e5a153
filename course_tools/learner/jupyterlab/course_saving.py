"""What JupyterLab does when it saves one of the course's notebooks: `make lab` tells it to."""

import os
from pathlib import Path
from typing import Any

_VIEW = "application/vnd.jupyter.widget-view+json"


def keep_pictures(model: dict[str, Any], **_: Any) -> None:
    """Leave the views of widgets out of the file where a picture or text in HTML stands beside.

    A widget ends with its kernel, and Lab then shows an error in its place; the picture stays.
    Source: Jupyter Server's `ContentsManager.pre_save_hook`, whose arguments these are.
    """
    if model["type"] != "notebook":
        return
    notebook = model["content"]
    if not notebook:
        return
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if data.keys() & {"image/png", "text/html"}:
                data.pop(_VIEW, None)


def renew_course_map(os_path: str, **_: Any) -> None:
    """Let the course map count what passed or was predicted since it was written.

    Source: Jupyter Server's `ContentsManager.post_save_hook`, whose arguments these are.
    """
    scores_file = Path(os.environ.get("COURSE_SCORES", ""))
    folder = scores_file.parent
    if Path(os_path).parent != folder or not scores_file.is_file():
        return
    from course_tools import ROOT  # a second, so only for a learner who has done something
    from course_tools.learner import copies

    course_map = folder / copies.MY_MAP
    if not course_map.is_file():
        return
    written_at = course_map.stat().st_mtime
    scored_at = scores_file.stat().st_mtime
    if scored_at > written_at:
        copies.lay_out_map(ROOT, folder)
