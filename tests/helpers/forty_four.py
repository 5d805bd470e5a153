"""A class of forty-four, each of whom hands a lab in as people do: by mistake, or with intent.

`hand_in` writes the folder and returns what a teacher should find: the share of exercises that
counts as right, or what submissions.csv says instead. `FIRST` is what stands in place of the first
answer, and costs that one only.
"""

import copy
import json
import os
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from course_tools.grading.submissions import MISSING, NOT_GRADED

FIRST = {
    "syntax error": "def NAME(:",
    "endless loop": "import threading\ndef NAME(*given): threading.Event().wait()",
    "prints a lot": "def NAME(*given):\n    for _ in range(10): print('x' * 10_000_000)",
    "kills its parent": "import os\ndef NAME(*given): os.kill(os.getppid(), 9)",
    "forks": "import os\ndef NAME(*given):\n    for _ in range(9): os.fork()\n    os._exit(0)",
    "reads a neighbour": "def NAME(*given): return open('/class/submitted/bob/lab.ipynb').read()",
    "reads a secret": "def NAME(*given): return open('/class/marks.csv').read()",
    "reads passwords": "def NAME(*given): return open('/etc/passwd').read()",
    "reads solutions": "def NAME(*given): return open('ROOT/solutions/README.md').read()",
    "phones out": "import socket\ndef NAME(*given): socket.create_connection(('1.1.1.1', 53), 5)",
    "deletes the course": "import shutil\ndef NAME(*given): shutil.rmtree('ROOT/notebooks')",
}
Models = dict[str, str]  # by exercise, a right answer
BASE = 1_700_000_000  # seconds


class Class:
    """Hands in; `wanted` has by learner what should be found."""

    def __init__(self, folder: Path, slug: str, blank: NotebookNode, models: Models) -> None:
        self.submitted, self.slug, self.blank, self.models = (
            folder / "submitted",
            slug,
            blank,
            models,
        )
        self.wanted: dict[str, float | str] = {}

    def notebook(self, **instead: str) -> NotebookNode:
        """A notebook with right answers, but for these; an empty one leaves the stub."""
        notebook = copy.deepcopy(self.blank)
        for cell in notebook.cells:
            name = cell.source.partition("(")[0].removeprefix("def ")
            if cell.cell_type == "code" and cell.source.startswith("def ") and name in self.models:
                cell.source = (self.models | instead)[name] or cell.source
        return notebook

    def place(self, who: str, data: bytes, wanted: float | str, file: str = "") -> Path:
        """Write a learner's file."""
        path = self.submitted / who / (file or f"lab_{self.slug}.ipynb")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.wanted[who] = wanted
        return path

    def hand_in(self, who: str, wanted: float | str, file: str = "", **instead: str) -> Path:
        """Write a learner's notebook."""
        return self.place(who, as_bytes(self.notebook(**instead)), wanted, file)

    def changed(self, who: str, wanted: float | str, change: Callable[[dict], None]) -> None:
        """Write a notebook that some other program has changed, as plain JSON."""
        notebook = json.loads(as_bytes(self.notebook()))
        change(notebook)
        self.place(who, json.dumps(notebook).encode(), wanted)


def as_bytes(notebook: NotebookNode) -> bytes:
    return nbformat.writes(notebook).encode()


def hand_in(
    folder: Path, slug: str, blank: NotebookNode, models: Models, root: Path
) -> dict[str, float | str]:
    """Hand in forty-four times; returns by learner what should be found.

    Args:
        folder: The teacher's.
        slug: The lab's.
        blank: Its exercise.
        models: By exercise, a right answer, which is a function.
        root: The course's folder, which some of them are after.
    """
    these = Class(folder, slug, blank, models)
    first, *others = models
    but_one = len(others) / len(models)
    right = as_bytes(these.notebook())
    for who in ("right", "李 明", "$(rm -rf $HOME)", "=cmd|calc"):
        these.hand_in(who, 1)
    these.place("bom", b"\xef\xbb\xbf" + right, 1)
    these.place("utf-16", right.decode().encode("utf-16"), 1)
    these.hand_in("blank", 0, **dict.fromkeys(models, ""))
    these.hand_in("half", but_one, **{first: ""})
    these.hand_in("wrong", but_one, **{first: f"def {first}(*given): return given[0]"})
    for who, text in FIRST.items():
        text = text.replace("NAME", first).replace("ROOT", str(root))
        these.hand_in(who, but_one, **{first: text})
    check = "check = lambda *given, **options: print('passed')"
    cheat = dict.fromkeys(models, "")
    these.hand_in("edits checks", 0, **cheat | {first: f"{check}\ndef {first}(*given): pass"})
    these.place("50 MB", right + b" " * (50 << 20), 1)
    these.place("merge", right.replace(b'"cells"', b'<<<<<<< HEAD\n"cells"', 1), NOT_GRADED)
    link = these.place("link", b"", NOT_GRADED)
    link.unlink()
    os.symlink(these.submitted / "right" / link.name, link)
    forms(these, first)
    names(these)
    packed(these, right)
    learners = [*these.wanted, "nobody"]
    these.wanted["nobody"] = MISSING
    (folder / "class.txt").write_text("\ufeff" + "\n".join(learners), encoding="utf-8")
    return these.wanted


def forms(these: Class, first: str) -> None:
    """Forms that other programs give to a notebook."""

    def without_ids(notebook: dict) -> None:
        notebook["nbformat_minor"] = 0
        for cell in notebook["cells"]:
            del cell["id"]

    def colab(notebook: dict) -> None:
        without_ids(notebook)
        notebook["metadata"]["colab"] = {"provenance": []}
        for number, cell in enumerate(notebook["cells"]):
            cell["metadata"] = {"id": f"colab{number}"}

    def new_cell(notebook: dict) -> None:
        for cell in notebook["cells"]:
            if "".join(cell["source"]).startswith(f"def {first}"):
                cell["id"] = "somewhere-else"

    def helper(notebook: dict) -> None:
        own = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
        notebook["cells"].insert(1, own | {"id": "help", "source": "def helped(f):\n    return f"})
        for cell in notebook["cells"]:
            if "".join(cell["source"]).startswith(f"def {first}"):
                cell["source"] = ["@helped\n", *cell["source"]]

    def nbformat_3(notebook: dict) -> None:
        without_ids(notebook)
        notebook["nbformat"] = 3
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                cell["input"] = cell.pop("source")
        notebook["worksheets"] = [{"cells": notebook.pop("cells")}]

    these.changed("nbformat 4.0", 1, without_ids)
    these.changed("colab", 1, colab)
    these.changed("new cell", 1, new_cell)
    these.changed("helper", 1, helper)
    these.changed("nbformat 3", 1, nbformat_3)
    cells = these.notebook()
    cells.cells[0].source = "# François"
    these.place("latin-1", as_bytes(cells).decode().encode("latin-1", "replace"), 1)


def names(these: Class) -> None:
    """Names of files and folders; what is listed may be written in other letters."""
    for who, file in (
        ("browser", "lab_{} (1).ipynb"), ("copied", "lab_{}-Copy1.ipynb"),
        ("own name", "my homework.ipynb"),
        ("capitals", "Lab_{}.IPYNB"), ("canvas", "capitals_123_456_lab_{}.ipynb"),
    ):  # fmt: skip
        these.hand_in(who, 1, file.format(these.slug))
    wrong = dict.fromkeys(these.models, "")
    for file, answers, time_s in (("attempt10/lab", {}, BASE + 60), ("attempt2/lab", wrong, BASE)):
        path = these.hand_in("attempts", 1, f"{file}_{these.slug}.ipynb", **answers)
        os.utime(path, (time_s, time_s))
    these.hand_in("Ada", 1)
    these.wanted["ada"] = these.wanted.pop("Ada")
    decomposed = unicodedata.normalize("NFD", "françois")
    these.hand_in(decomposed, 1)
    these.wanted["françois"] = these.wanted.pop(decomposed)


def packed(these: Class, right: bytes) -> None:
    """What is no notebook, and what is in a zip."""
    these.place("script", b"def f(): pass", MISSING, "answers.py")
    these.place("pdf", b"%PDF", MISSING, "lab.pdf")
    (these.submitted / "empty").mkdir()
    these.wanted["empty"] = MISSING
    path = these.place("zip", b"", 1, "work.zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"work/lab_{these.slug}.ipynb", right)
        archive.writestr(f"../../right/lab_{these.slug}.ipynb", "nothing")
    with zipfile.ZipFile(these.submitted / "submissions.zip", "w") as archive:
        archive.writestr(f"lovelace_LATE_1_2_lab_{these.slug}-2.ipynb", right)
        archive.writestr(f"Zoe Zet_3_assignsubmission_file_/lab_{these.slug}.ipynb", right)
    these.wanted |= {"lovelace": 1, "Zoe Zet": 1}
