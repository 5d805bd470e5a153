"""What learners read is marked for translation: a sentence outside of `_()` stays English."""

import ast
import re

import pytest

from course_tools import ROOT

PACKAGES = ("course_utils", "course_checks", "course_testing", "course_material")
MARKS = {"_", "N_", "ngettext", "plural"}
# Methods and functions whose arguments are compared with the words of torch or Python.
COMPARES = {"compile", "search", "findall", "startswith", "endswith", "removeprefix", "addoption"}
# In a picture letters are English, and so is what a blind reader hears of it. Who raises there
# speaks to the learner all the same.
PICTURES = "course_utils/pictures/"
WORDS_BESIDE_PICTURES = {f"{PICTURES}widgets.py"}  # what it says stands above its picture
FEWEST_WORDS = 3
WORD = re.compile(r"[(\"'`]?[A-Za-z][A-Za-z']*[\"'`).,;:!?]*")
TAG = re.compile(r"<[^<>]*>")

# Files whose sentences stay English, and why.
FILES = {
    "course_utils/launcher/torch_private.py": "for whoever admits a new torch; no learner sees it",
    "course_utils/launcher/stacks.py": "what Python and torch write into a stack",
    "course_utils/launcher/stack_writer.py": "likewise",
    "course_utils/flight/__main__.py": "the help of a command, to which argparse adds English",
    "course_testing/plugin.py": "every run of pytest imports it, with nothing of the course",
}
# The beginnings of single sentences that stay English, and why.
SENTENCES = {
    "module {} has no attribute": "Python's own words, which `hasattr` and tools rely on",
    "initialize CUDA in forked subprocess": "torch's words",
    "data size doesn't match": "torch's words",
    "mark a variable ready only once": "torch's words",
    "Unable to find address for": "torch's words",
    "RuntimeError: Connection closed by peer": "torch's words",
    "Fatal Python error": "Python's words",
    "a thread's end": "compared only; it's marked where it is shown",
    "not in its groups": "a key; `flight/report.py` has the sentence",
    "exec 3<&0;": "a program for the shell",
    "stdout of rank": "a section's title in a report of pytest, which says `Captured stdout`",
}


def unmarked(text, everywhere=True):
    """The sentences of a module that nobody translates, with their lines.

    Args:
        text: The module.
        everywhere: Whether all its texts count, or those in a `raise` only.
    """
    tree = ast.parse(text)
    skipped = set()
    for node in ast.walk(tree):
        skipped.update(map(id, never_shown(node)))
    roots = [tree]
    if not everywhere:
        roots = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    sentences = []
    for root in roots:
        for node in ast.walk(root):
            words = words_of(node)
            if id(node) not in skipped and is_sentence(words):
                sentences.append((node.lineno, words))
    return sentences


def never_shown(node):
    """Texts in this node that are marked, or that no learner reads."""
    if isinstance(node, ast.Expr):  # a docstring
        yield from [node.value]
    if isinstance(node, ast.JoinedStr):  # its parts, which count together
        yield from node.values
    if isinstance(node, ast.Dict):
        yield from filter(None, node.keys)
    if isinstance(node, ast.Compare):
        yield from [node.left, *node.comparators]
    if isinstance(node, ast.Call) and name_of(node.func) in MARKS | COMPARES:
        for argument in node.args:
            yield from ast.walk(argument)


def name_of(function):
    """The name by which a function or a method is called."""
    return getattr(function, "attr", getattr(function, "id", ""))


def words_of(node):
    """A text, with `{}` for what is filled in; empty for all else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [words_of(part) or "{}" for part in node.values]
        return "".join(parts)
    return ""


def is_sentence(text):
    tokens = TAG.sub("", text).split()
    words = [token for token in tokens if WORD.fullmatch(token)]
    return len(words) >= FEWEST_WORDS


def of_course():
    """Every unmarked sentence of the packages, with its file and line."""
    sentences = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            everywhere = not name.startswith(PICTURES) or name in WORDS_BESIDE_PICTURES
            for line, sentence in unmarked(path.read_text(encoding="utf-8"), everywhere):
                sentences.append((name, line, sentence))
    return sentences


def test_what_a_learner_reads_is_marked_for_translation():
    missed = []
    for name, line, sentence in of_course():
        stays_english = name in FILES or sentence.startswith(tuple(SENTENCES))
        if not stays_english:
            missed.append(f"{name}:{line}: {sentence}")
    assert missed == [], "mark it by _(), or say in FILES or SENTENCES why it stays English"


def test_every_exception_is_still_needed():
    sentences = of_course()
    names = {name for name, *_ in sentences}
    assert [name for name in FILES if name not in names] == []
    texts = [sentence for *_, sentence in sentences]
    unneeded = [start for start in SENTENCES if not any(text.startswith(start) for text in texts)]
    assert unneeded == []


@pytest.mark.parametrize(
    "line",
    [
        'raise ValueError("it waits for ever")',
        'raise ValueError(f"{rank} waits for ever")',
        'raise ValueError("it waits " "for ever")',
        'text = "it waits for ever"',
        'return f"<b>it waits for</b> {rank}"',
        'print(rank, "it waits for ever")',
        '_("{why}", why="it waits for ever")',
    ],
)
def test_a_sentence_without_a_mark_is_found(line):
    assert len(unmarked(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        '"""It waits for ever."""',
        'raise ValueError(_("it waits for ever"))',
        'TABLE = {"words of torch": N_("it waits for ever")}',
        'ngettext("it waits for ever", "they wait for ever", count)',
        'if "waits for ever" in text: pass',
        'PATTERN = re.compile("it waits for ever")',
        'raise ValueError(f"{name}: {reason}")',
        'style = "display:block;font-size:9px;color:red"',
    ],
)
def test_what_is_marked_or_never_shown_is_not_found(line):
    assert unmarked(line) == []


def test_in_a_picture_what_is_raised_is_found_alone():
    picture = 'axes.set_title("all ranks wait here")\nraise ValueError("no rank waits here")'
    assert unmarked(picture, everywhere=False) == [(2, "no rank waits here")]
