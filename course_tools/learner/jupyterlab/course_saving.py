"""What JupyterLab does when it saves one of the course's notebooks: `make lab` tells it to."""

from typing import Any

_VIEW = "application/vnd.jupyter.widget-view+json"


def keep_pictures(model: dict[str, Any], **_: Any) -> None:
    """Leave the views of widgets out of the file where a picture or text in HTML stands beside.

    A widget ends with its kernel, and Lab then shows an error in its place; the picture stays.
    Source: Jupyter Server's `ContentsManager.pre_save_hook`, whose arguments these are.
    """
    if model["type"] != "notebook" or not model["content"]:
        return
    for cell in model["content"]["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if data.keys() & {"image/png", "text/html"}:
                data.pop(_VIEW, None)
