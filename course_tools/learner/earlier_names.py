"""Copies that an earlier edition of the course called `lesson_03_...`, under today's names.

`lab_` comes before `lesson_`, so that in the list of files every lab stood above its lesson.
Today a copy of a lesson is called `chapter_03_...`.
"""

import os
import re
from pathlib import Path

import nbformat

from course_tools.learner import copies

WORKSPACES = ".workspaces"  # which tabs JupyterLab had open on this folder
_NAME = re.compile(r"\blesson_(?=\d\d_)")
_LINK = re.compile(r"""(\]\(|href=["'])lesson_(?=\d\d_)""")


def rename(folder: Path) -> list[str]:
    """Rename a learner's copies, and what leads to them; return what there is to say.

    A copy keeps its name where there is one of the new name already.
    """
    renamed = 0
    earlier_copies = folder.glob("lesson_[0-9][0-9]_*.ipynb")
    for path in sorted(earlier_copies):
        new_name = _NAME.sub("chapter_", path.name)
        target = path.with_name(new_name)
        if not target.exists():
            path.rename(target)
            renamed += 1
    if not renamed:
        return []
    for path in folder.glob("*.ipynb"):
        _lead_to_chapters(path)
    for path in folder.glob(f"{WORKSPACES}/*"):
        text = path.read_text(encoding="utf-8")
        text = _NAME.sub("chapter_", text)
        path.write_text(text, encoding="utf-8")
    return [f"{renamed} notebooks are called chapter_... now, no longer lesson_..."]


def _lead_to_chapters(path: Path) -> None:
    """Let a notebook's links lead to the new names; its time and its signature stay what they are.

    A cell that the learner has not edited counts as not edited afterwards, too.
    """
    notebook = copies.read(path)
    if notebook is None:
        return
    was_trusted = copies.notary().check_signature(notebook)
    course = notebook.metadata.get("course", {})
    texts = course.get("texts", {})
    has_changed = False
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        source = _LINK.sub(r"\1chapter_", cell.source)
        if source == cell.source:
            continue
        digest_of_course = texts.get(cell.id)
        is_unedited = copies.digest(cell.source) == digest_of_course
        cell.source = source
        has_changed = True
        if is_unedited:
            texts[cell.id] = copies.digest(source)
    if not has_changed:  # a file of the learner's stays as it was written
        return
    times = path.stat()
    text = nbformat.writes(notebook)
    draft = path.with_suffix(".draft")
    draft.write_text(text + "\n", encoding="utf-8")
    draft.replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    if was_trusted:
        copies.notary().sign(notebook)
