"""A learner's own copies: notebooks without outputs, but for the first picture, and the course map.

A copy knows its original: the notebook's metadata holds, for every cell, the digest of the text
that was copied, so a cell that the learner has edited is known by its text. No file that a person
has written into is ever replaced. Chinese copies are made of the English notebooks, in zh/, and a
cell's id is the English one's: answers that were written in one language are cells of the other.
"""

import datetime
import functools
import hashlib
import os
import re
import sys
from pathlib import Path

import nbformat
from jupyter_core.paths import jupyter_data_dir
from nbformat import NotebookNode
from nbformat.sign import NotebookNotary

from course_tools.learner import scoreboard
from course_tools.learner.buttons import add_buttons, is_buttons

FOLDERS = {"chapter": "notebooks", "lab": "exercises"}  # in the order of the list of files
MAP = "README.md"
MY_MAP = "course_map.md"
SIGNATURE = "\n<!-- "  # below the map: behind it stands the digest of what the course wrote
ADVICE = Path(__file__).with_name("AGENTS.md")  # for assistants, in a learner's folder
SCORES = ".predictions.json"  # what `course_material.scores` keeps
LONGEST_ID = 64  # of a cell, in a notebook's format
LINK = re.compile(
    r"""
    (\]\(|href=["'])  # as a link begins in Markdown, or in the HTML of folded answers
    (?:\.\./(notebooks|exercises|solutions)/)?  # the folder, where it is another one
    ([0-9]+_\w+\.ipynb|README\.md)  # the file
    """,
    re.VERBOSE,
)
DATE_AND_NUMBER = re.compile(r"[\d_-]*")
LINK_TO_COPY = re.compile(r"\]\(((?:chapter|lab)_\w+)\.ipynb\)")
LINK_TO_LESSON = re.compile(r"\]\((chapter_(\d\d)\w+\.ipynb)\)")  # its file, and its number
DIAGRAM = re.compile(r"```mermaid\n.*?```", re.DOTALL)  # of the map
SUBGRAPH = re.compile(r"subgraph \w+\[([^]]+)\](.*?)\n +end", re.DOTALL)  # of the map's diagram
BOX = re.compile(r"(\d\d)\[([^]]+)\]")  # its number, and its label


def language() -> str:
    """`zh` if the environment's COURSE_LANG says so, or nothing, which is English."""
    setting = os.environ.get("COURSE_LANG", "")
    chosen = setting.strip().lower()
    if chosen not in ("", "en", "zh"):
        raise SystemExit(f"COURSE_LANG is {chosen}, and the course is there in en and in zh")
    return chosen.removeprefix("en")


def home(root: Path) -> Path:
    """The folder of the copies."""
    folder = root / "my"
    chosen = os.environ.get("COURSE_MY")
    if chosen:
        folder = Path(chosen)
    in_language = folder / language()
    return in_language.expanduser().resolve()


def _original(path: Path, root: Path) -> NotebookNode:
    """An original notebook in the learner's language."""
    if not language():
        return nbformat.read(path, as_version=4)
    from course_tools.i18n.chinese import in_memory

    return in_memory(path, root)


def _document(path: Path, root: Path) -> str:
    """A document of the course in the learner's language."""
    if not language():
        return path.read_text(encoding="utf-8")
    from course_tools.i18n.chinese import document

    return document(path, root)


def originals(root: Path) -> dict[str, Path]:
    """The original of every copy, by its name: `chapter_03_...`, `lab_03_...`, `challenge`."""
    by_name = {}
    for kind, name_of_folder in FOLDERS.items():
        folder = root / name_of_folder
        paths = folder.glob("[0-9]*_*.ipynb")
        for path in sorted(paths):
            name = f"{kind}_{path.stem}"
            by_name[name] = path
    folder_of_labs = root / FOLDERS["lab"]
    challenge = folder_of_labs / "challenge.ipynb"
    if challenge.exists():
        by_name[challenge.stem] = challenge
    return by_name


def newest(folder: Path, name: str) -> Path | None:
    """The youngest copy of that name; fresh ones have a date, and perhaps a number, behind it."""
    copies = {}
    for path in folder.glob(f"{name}*.ipynb"):
        date_and_number = path.stem.removeprefix(name)
        if DATE_AND_NUMBER.fullmatch(date_and_number):
            copies[path.stem] = path
    if not copies:
        return None
    youngest = max(copies)
    return copies[youngest]


def labs_in(root: Path, folder: Path) -> dict[str, Path]:
    """A learner's newest copy of each lab, by the lab's name without `lab_`."""
    labs = {}
    for name in originals(root):
        if not name.startswith("lab_"):
            continue
        copy = newest(folder, name)
        if copy is not None:
            lab = copy.stem.removeprefix("lab_")
            labs[lab] = copy
    return labs


def last_used(folder: Path) -> Path | None:
    """The copy that was saved last among those in which a cell has been run, if there is one."""
    notebooks = folder.glob("*.ipynb")
    used = filter(_has_been_run, notebooks)
    return max(used, key=_saved_at, default=None)


def _saved_at(path: Path) -> float:
    """When a file was saved last, in seconds."""
    return path.stat().st_mtime


def _has_been_run(path: Path) -> bool:
    """Whether a cell of a notebook has been run."""
    notebook = read(path)
    if notebook is None:
        return False
    return any(cell.get("execution_count") for cell in notebook.cells)


def relinked(text: str, original: Path, root: Path, folder: Path) -> str:
    """Returns a text whose links lead to the copies."""
    folder_of_original = original.parent.name

    def link(match: re.Match[str]) -> str:
        opening, linked_folder, file = match.groups()
        if linked_folder is None:
            linked_folder = folder_of_original
        address = _address_of_copy(linked_folder, file)
        if address is None:  # such as a solution, of which there is no copy
            target = root / linked_folder / file
            place = os.path.relpath(target, folder)
            address = Path(place).as_posix()
        return opening + address

    return LINK.sub(link, text)


def _address_of_copy(linked_folder: str, file: str) -> str | None:
    """The name of the copy of a file of the course, or None if that folder is not copied."""
    for kind, name in FOLDERS.items():
        if name != linked_folder:
            continue
        if file == MAP:
            return MY_MAP
        return f"{kind}_{file}"
    return None


def copied(original: Path, root: Path, folder: Path) -> NotebookNode:
    """Returns a notebook without outputs, but for a welcome, whose links lead to the other copies.

    A cell tagged `keep-output` keeps what it shows: a page begins with a picture, not with text.
    """
    notebook = _original(original, root)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, original, root, folder)
        else:
            _forget_run(cell)
    fold_explanations(notebook)
    is_lab = original.parent.name == FOLDERS["lab"]
    if is_lab:
        solution = _solution(original, root)
        add_buttons(notebook, solution, language())
    texts = {}
    for cell in notebook.cells:
        texts[cell.id] = digest(cell.source)
    notebook.metadata["language_info"] = language_of_kernel()
    notebook.metadata["course"] = {"original": original.name, "texts": texts}
    return notebook


def _forget_run(cell: NotebookNode) -> None:
    """Takes a code cell's number away, and its outputs unless a tag says to keep them."""
    cell.execution_count = None
    tags = cell.metadata.get("tags", [])
    if "keep-output" not in tags:
        cell.outputs = []


def _solution(original: Path, root: Path) -> NotebookNode | None:
    """The solved form of an exercise notebook, where learners have one."""
    path = root / "solutions" / original.name
    if not path.exists():
        return None
    return nbformat.read(path, as_version=4)


def fold_explanations(notebook: NotebookNode) -> None:
    """Fold what explains a measurement, so that it doesn't answer the question above it.

    That is the first Markdown cell behind a measuring cell; code between them draws what was
    measured. One click opens it. A cell that begins with a heading opens the next section, and
    stays. `answeringOne` in course.js keeps to the same rule.
    """
    is_explained_next = False
    for cell in notebook.cells:
        if cell.cell_type == "code":
            is_explained_next |= ".measured(" in cell.source
            continue
        is_heading = cell.source.startswith("#")
        if is_explained_next and not is_heading:
            cell.metadata["jupyter"] = {"source_hidden": True}
        is_explained_next = False


def language_of_kernel() -> dict[str, object]:
    """What a kernel says of its language, as it stands in a notebook's metadata.

    Where it is missing JupyterLab fills it in, and then asks whether to save a notebook that nobody
    has touched.
    """
    return {
        "codemirror_mode": {"name": "ipython", "version": sys.version_info.major},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
        "version": sys.version.split()[0],
    }


def merged(old: NotebookNode, new: NotebookNode) -> int:
    """Moves what the learner wrote in `old` into `new`; returns how many cells that were.

    An edited cell takes the place of its original. Where that has changed as well, or where the
    learner added a cell, it stands before the cell that it stood before: behind the new stub. The
    buttons of the new stub come below both.
    """
    course = old.metadata["course"]
    texts = course["texts"]  # by a cell's id, the digest of what the course wrote there
    moved = 0
    at = len(new.cells)
    for cell in reversed(old.cells):
        ids = [other.id for other in new.cells]
        is_in_new = cell.id in ids
        if is_in_new:
            at = ids.index(cell.id)
        if not _is_by_learner(cell, texts):
            continue
        moved += 1
        if is_in_new:
            moved_cell = new.cells[at]
            moved_cell.source = cell.source
        else:
            was_a_stub = cell.id in texts
            is_below_buttons = at > 0 and is_buttons(new.cells[at - 1])
            if was_a_stub and is_below_buttons:
                at -= 1
            new_id = _id_of_mine(cell)
            moved_cell = NotebookNode(cell, id=new_id)
            new.cells.insert(at, moved_cell)
        if cell.cell_type == "code":
            moved_cell.outputs = []
            moved_cell.execution_count = None
    return moved


def _is_by_learner(cell: NotebookNode, texts: dict[str, str]) -> bool:
    """Whether a learner wrote what stands in a cell; `texts` are digests of what the course did."""
    if not cell.source.strip():
        return False
    digest_of_course = texts.get(cell.id)
    return digest(cell.source) != digest_of_course


def _id_of_mine(cell: NotebookNode) -> str:
    """The id of a cell of the learner's, moved to where the original no longer has that cell."""
    long_id = f"mine-{cell.id}"
    return long_id[:LONGEST_ID]


def lay_out(root: Path, folder: Path, again: str = "make fresh only=") -> list[str]:
    """Makes the copies that are missing; returns what there is to say."""
    notices = []
    new_copies = 0
    for name, original in originals(root).items():
        copy = newest(folder, name)
        if copy is None:
            notebook = copied(original, root, folder)
            path = folder / f"{name}.ipynb"
            _write(notebook, path)
            new_copies += 1
        elif has_newer_original(root, folder, name):
            notices.append(f"{copy.name} has a newer original: {again}{name}")
    if new_copies:
        place = _name_of_folder(folder)
        where_to_write = f"{new_copies} notebooks of your own are in {place}/: write there."
        notices.insert(0, where_to_write)
    lay_out_advice(folder)
    notices += lay_out_scripts(root, folder)
    notices += lay_out_map(root, folder)
    return notices


def _name_of_folder(folder: Path) -> str:
    """What a learner knows the folder of the copies by: `my`, or `my/zh`."""
    if not language():
        return folder.name
    return f"{folder.parent.name}/{folder.name}"


def lay_out_advice(folder: Path) -> None:
    """Copies what assistants of a learner are asked to keep to, unless it is there already."""
    copy = folder / ADVICE.name
    if copy.exists():
        return
    advice = ADVICE.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(advice)


def has_newer_original(root: Path, folder: Path, name: str) -> bool:
    """Whether the newest copy of that name was made of another original than there is now."""
    copy = newest(folder, name)
    if copy is None:
        return False
    original = originals(root)[name]
    my_copy = read(copy)
    new_copy = copied(original, root, folder)
    return _cells_of_original(my_copy) != _cells_of_original(new_copy)


def lay_out_scripts(root: Path, folder: Path) -> list[str]:
    """Copies the scripts and folders that lessons use, where they are missing."""
    notices = []
    lessons = root / FOLDERS["chapter"]
    scripts = lessons.glob("*.py")
    evidence = lessons.glob("incident/**/*")
    paths = [*scripts, *evidence]
    for original in sorted(paths):
        if not original.is_file():
            continue
        if "__pycache__" in original.parts:
            continue
        name = original.relative_to(lessons)
        copy = folder / name
        data = original.read_bytes()
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists():
            copy.write_bytes(data)
        elif copy.read_bytes() != data:
            notices.append(f"{name} differs from its original: move it away to get that")
    return notices


def lay_out_map(root: Path, folder: Path) -> list[str]:
    """Copies the course map, again after an update; one that somebody wrote into stays.

    The digest in its last line tells which it is.
    """
    original = root / FOLDERS["chapter"] / MAP
    copy = folder / MY_MAP
    if not original.exists():
        return []
    text = _text_of_map(original, root, folder)
    wanted = _signed(text)
    if copy.exists():
        present = copy.read_text(encoding="utf-8")
        if present == wanted:
            return []
        without_signature, _, _ = present.rpartition(SIGNATURE)
        is_untouched = present == _signed(without_signature)
        if not is_untouched and present.endswith(_signature(text)):
            return []
        if not is_untouched:
            return [f"{MY_MAP} is yours, and has a newer original: move it away to get that"]
    copy.write_text(wanted, encoding="utf-8")
    return []


def _text_of_map(original: Path, root: Path, folder: Path) -> str:
    """The course map with links to a learner's copies, and with the learner's predictions."""
    text = _document(original, root)
    text = relinked(text, original, root, folder)
    text = with_links_for_boxes(text)
    text = _to_newest(text, folder)
    scores_file = folder / SCORES
    labs = labs_in(root, folder)
    sections = scoreboard.sections(scores_file, labs.values(), language())
    return text + sections


def _signed(text: str) -> str:
    """A text with its signature."""
    return text + _signature(text)


def _signature(text: str) -> str:
    """The last line of a text, which has its digest."""
    return f"{SIGNATURE}{digest(text)} -->\n"


def with_links_for_boxes(text: str) -> str:
    """The map with a list of links in place of its diagram, in whose boxes nobody can click.

    A subgraph of the diagram becomes a line, and a dotted arrow a detour in brackets.
    """
    lessons = {}
    for file, number in LINK_TO_LESSON.findall(text):
        lessons[number] = file

    def as_list(diagram: re.Match[str]) -> str:
        lines = []
        subgraphs = SUBGRAPH.findall(diagram[0])
        for title, inside in subgraphs:
            boxes = _linked_boxes(inside, lessons)
            lines.append(f"- **{title}:** {boxes}")
        return "\n".join(lines)

    return DIAGRAM.sub(as_list, text)


def _linked_boxes(subgraph: str, lessons: dict[str, str]) -> str:
    """The boxes of a subgraph on a line, each with a link to its lesson, if there is one."""

    def linked_box(match: re.Match[str]) -> str:
        number, label = match.groups()
        lesson = lessons.get(number)
        if lesson is None:
            return label
        return f"[{label}]({lesson})"

    parts = []
    inside = subgraph.strip()
    for line in inside.split("\n"):
        row = line.strip()
        if row.startswith("direction"):
            continue
        linked = BOX.sub(linked_box, row)
        _before, dotted_arrow, detour = linked.partition("-.->")
        if dotted_arrow:
            detour = detour.strip()
            linked = f"({detour})"
        part = linked.replace(" --> ", " → ")
        parts.append(part)
    return " ".join(parts)


def _to_newest(text: str, folder: Path) -> str:
    """The text with links to the newest copies; notebooks go on naming those of the first day."""

    def link(match: re.Match[str]) -> str:
        newest_copy = newest(folder, match[1])
        if newest_copy is None:
            return match[0]
        return f"]({newest_copy.name})"

    return LINK_TO_COPY.sub(link, text)


def fresh(root: Path, folder: Path, name: str, today: datetime.date) -> str:
    """Puts a new copy, dated, beside the newest one, with the learner's answers in it.

    None is made where the newest one has all that the original has. Returns what there is to say.
    """
    original = originals(root)[name]
    notebook = copied(original, root, folder)
    my_copy = None
    old = newest(folder, name)
    if old:
        my_copy = read(old)
    changes = _changes(my_copy, notebook)
    if my_copy and not changes:
        return f"{old.name} is up to date."
    moved = 0
    if my_copy and "course" in my_copy.metadata:
        moved = merged(my_copy, notebook)
    path = _free_path(folder, name, today)
    _write(notebook, path)
    notice = f"New: {path.name}, with {_cells(moved)} that you wrote."
    if old and my_copy:
        notice += f" Your {old.name} is as it was."
    elif old:
        notice += f" Your {old.name} could not be read, and is as it was."
    return "\n".join([notice, *changes])


def _free_path(folder: Path, name: str, today: datetime.date) -> Path:
    """Where nothing lies yet: without a date, with today's, or with a number behind that."""
    path = folder / f"{name}.ipynb"
    date = str(today)
    number = 1
    while path.exists():
        path = folder / f"{name}_{date}.ipynb"
        number += 1
        date = f"{today}_{number}"
    return path


def _cells(count: int) -> str:
    """A number of cells in words."""
    if count == 1:
        return "1 cell"
    return f"{count} cells"


def _changes(my_copy: NotebookNode | None, wanted: NotebookNode) -> list[str]:
    """A line for each cell of the original that is new to a learner's copy, or gone from it."""
    if my_copy is None:
        return []
    known = _cells_of_original(my_copy)
    taken_away = {cell_id for cell_id, _digest in known}
    ids_of_mine = {cell.id for cell in my_copy.cells}
    lines = []
    for cell in wanted.cells:
        taken_away.discard(cell.id)
        if is_buttons(cell):  # changes with the cell above it
            continue
        first_line, _, _ = cell.source.partition("\n")
        shown = first_line[:70]
        digest_of_original = digest(cell.source)
        cell_of_original = (cell.id, digest_of_original)
        possible_ids = {cell.id, _id_of_mine(cell)}
        if cell_of_original not in known:
            lines.append(f"  new or changed: {shown}")
        elif ids_of_mine.isdisjoint(possible_ids):
            lines.append(f"  back again: {shown}")
    if taken_away and not lines:
        count = len(taken_away)
        lines.append(f"  gone: {_cells(count)}")
    return lines


def _cells_of_original(copy: NotebookNode | None) -> set[tuple[str, str]]:
    """The cells from which a copy was made: each one's id, and the digest of its text."""
    if copy is None:
        return set()
    course = copy.metadata.get("course", {})
    texts = course.get("texts", {})
    return set(texts.items())


def read(path: Path) -> NotebookNode | None:
    """A notebook, or None if the file is none."""
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, nbformat.ValidationError):  # such as a file with a merge's marks in it
        return None


def _write(notebook: NotebookNode, path: Path) -> None:
    """Writes a new notebook, and signs it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = nbformat.writes(notebook)
    with path.open("x", encoding="utf-8") as file:  # never over a file that is there
        file.write(text + "\n")
    notary().sign(notebook)  # else Jupyter warns that it is not trusted


@functools.cache
def notary() -> NotebookNotary:
    """Who signs what this user trusts; its folder is made where Jupyter has never run."""
    # It could ask for its folder itself: by an application, which closes all handlers of logging.
    folder = jupyter_data_dir()
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return NotebookNotary(data_dir=folder)


def digest(text: str) -> str:
    """What a text is known by."""
    encoded = text.encode()
    hashed = hashlib.sha256(encoded)
    digits = hashed.hexdigest()
    return digits[:12]
