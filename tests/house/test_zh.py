"""The Chinese edition: nothing in it drifts from English unseen, and nothing of it is run."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest

import ddp_course
from course_tools.i18n import catalogues, proofread, zh
from course_tools.learner import copies, workspace
from course_tools.notebooks import build, cells

ROOT = build.ROOT
LESSON = """\
# %% [markdown]
# # 00 · Sums
#
# Two ranks add up 1 and 2.
# They hold `3` in the [lab](../exercises/00_sums.ipynb), see [the script](sums.py).
#
# - the first item;
# - the second item.

# %%
print(1 + 2)
"""
CHINESE = {
    "# 00 · Sums": "# 00 · 求和",
    "Two ranks add up 1 and 2.": (
        "两个 rank 把 1 和 2 相加。在[实验](../exercises/00_sums.ipynb)里得到 `3`，"
        "见[脚本](sums.py)。"
    ),
    "- the first item;": "- 第一项；",
    "- the second item.": "- 第二项。",
}


def write_lesson(root: Path, text: str) -> None:
    """A source, and the notebook that a run of it would have left."""
    (root / "source/lessons/00_sums.py").write_text(text, encoding="utf-8")
    notebook = cells.read_percent(text)
    notebook.cells[-1].outputs = [nbformat.v4.new_output("stream", text="3\n")]
    notebook.cells[-1].execution_count = 1
    nbformat.write(notebook, root / "notebooks/00_sums.ipynb")


@pytest.fixture
def course(tmp_path, monkeypatch, capsys):
    """A course of one translated lesson."""
    for name in ("COURSE_MY", "COURSE_LANG"):
        monkeypatch.delenv(name, raising=False)
    root = tmp_path / "course"
    for folder in ("source/lessons", "source/labs", "notebooks", "exercises", "solutions"):
        (root / folder).mkdir(parents=True)
    write_lesson(root, LESSON)
    for folder in ("exercises", "solutions"):
        shutil.copy(root / "notebooks/00_sums.ipynb", root / folder)
    (root / "source/labs/00_sums.py").write_text(LESSON)
    assert zh.main(["--root", str(root), "00"]) == 0
    fill(root, CHINESE)
    assert zh.main(["--root", str(root)]) == 0
    capsys.readouterr()
    return root


def fill(root: Path, said: dict[str, str]) -> None:
    """Translate, as an editor of the catalogue does."""
    path = root / "source/zh/lessons/00_sums.po"
    catalog = catalogues.read(path)
    for message in catalog:
        found = [text for start, text in said.items() if str(message.id).startswith(start)]
        if message.id and found:
            message.string = found[0]
    catalogues.write(catalog, path, "source/lessons/00_sums.py")
    chinese_again()


def chinese_again() -> None:
    """Catalogues are read once in a process; here they change."""
    zh.chinese._known.cache_clear()


def run(root: Path, *words: str) -> int:
    chinese_again()
    return zh.main(["--root", str(root), *words])


def first(root: Path) -> nbformat.NotebookNode:
    return nbformat.read(root / "notebooks/zh/00_sums.ipynb", as_version=4)


def test_a_changed_paragraph_turns_the_check_red_until_somebody_has_looked(course, capsys):
    assert run(course, "--check") == 0
    write_lesson(course, LESSON.replace("add up 1 and 2", "add 1 and 2 up"))
    assert run(course, "--check") == 1
    assert "the English is another now (1 new, 1 gone): make zh" in capsys.readouterr().out
    assert run(course) == 0  # takes it up, but nobody has looked
    assert run(course, "--check") == 1
    assert "changed in English, and nobody has looked: Two ranks" in capsys.readouterr().out
    assert "Two ranks add 1 and 2 up" in first(course).cells[0].source
    run(course, "--todo", "lessons/00")
    assert "-up -2. +2 +up." in capsys.readouterr().out
    assert run(course, "--right", "ranks add 1") == 0
    assert run(course, "--check") == 0
    assert run(course) == 0
    assert "两个 rank 把 1 和 2 相加" in first(course).cells[0].source


def test_a_paragraph_that_changes_twice_still_knows_what_was_translated(course, capsys):
    for text in ("Two ranks sum up 1 and 2", "Two ranks sum 1 and 2"):
        write_lesson(course, LESSON.replace("Two ranks add up 1 and 2", text))
        run(course)
    path = course / "source/zh/lessons/00_sums.po"
    assert "# was: Two ranks add up 1 and 2." in path.read_text(encoding="utf-8")
    assert run(course, "--check") == 1


@pytest.mark.parametrize("words", ["no such words", "ranks"])
def test_right_marks_one_paragraph_that_was_changed_and_no_other(course, capsys, words):
    assert run(course, "--right", words) == 1
    assert "0 changed paragraphs have these words" in capsys.readouterr().err


def test_a_paragraph_whose_lines_are_broken_elsewhere_is_the_same(course):
    write_lesson(course, LESSON.replace("and 2.\n# They", "and\n# 2. They"))
    assert run(course, "--check") == 0


def test_a_new_paragraph_is_english_and_both_reader_and_machine_are_told(course, capsys):
    new = "# # 00 · Sums\n#\n# Nobody has ever translated any of this.\n"
    write_lesson(course, LESSON.replace("# # 00 · Sums\n", new))
    assert run(course, "--check") == 1
    assert run(course) == 0
    assert run(course, "--check") == 0
    assert "lessons/00 80 %" in capsys.readouterr().out
    cell = first(course).cells[0]
    assert "Nobody has ever" in cell.source
    assert cell.source.endswith(catalogues.PARTLY_ENGLISH.format(missing=1))
    assert cell.metadata["tags"] == ["english"]


def test_what_nobody_translated_says_so_once(course):
    lab = nbformat.read(course / "exercises/zh/00_sums.ipynb", as_version=4)
    assert lab.cells[0].source.endswith(catalogues.ALL_ENGLISH)


def test_a_translation_that_lost_something_is_not_in_order(course, capsys):
    fill(course, {"Two ranks": "两个 rank 把 1 和 2 相加。"})
    assert run(course, "--check") == 1
    said = capsys.readouterr().out
    assert "code differ: 3: Two ranks" in said
    assert "links differ: ../exercises/00_sums.ipynb sums.py: Two ranks" in said


@pytest.mark.parametrize(
    ("english", "chinese", "slip"),
    [
        ("Call `wait()`.", "调用它。", "code differ: wait()"),
        ("Call `wait()`.", "调用 `await()`。", "code differ: wait()"),
        ("See [it](a.md).", "见[它](b.md)。", "links differ: a.md +b.md"),
        ("1,442 digits", "1,424 个数字", "numbers differ: 1,442"),
        ("<details><summary>Answer</summary>\nNo.\n</details>", "<details>不。</details>", "tags"),
        ("No, not at all.", "不,一点也不。", "a sign of half width"),
        ("a node (a machine)", "节点(机器)", "a sign of half width"),
        ("One line, two lines.", "第一行\n第二行。", "a line end"),
        ("**Predict.** How many?", "**预测。**有几个？", "** that does not make bold"),
    ],
)
def test_a_slip_of_a_translation_is_found(english, chinese, slip):
    message = catalogues.Message(english, chinese)
    assert slip in " ".join(proofread.slips(message))


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("Call `wait()`, then `wait()`.", "调用两次 `wait()`。"),
        ("**Predict.** It is 1,442.", "**预测。** 有 1,442 个，即 2 × 721 个。"),
        ("It waits in `f(a, b)` (twice).", "它停在 `f(a, b)`（两次）。"),
        ("| `a` | the whole |", "| `a` | **全部** |"),
        ("a [node](a.md), not a rank", "一个[节点](a.md)，不是 rank"),
        ("See [it](a.md).", "见[它](a.md)，中文另有[一页](b.md)。"),
        ("<code>(a - b) ** 2</code> is", "<code>(a - b) ** 2</code> 是"),
    ],
)
def test_a_translation_may_say_it_in_its_own_way(english, chinese):
    assert list(proofread.slips(catalogues.Message(english, chinese))) == []


@pytest.mark.parametrize(
    ("english", "chinese", "odd"),
    [
        ("Average the gradients.", "对坡度取平均。", "gradient is 梯度, which is missing"),
        ("It hangs.", "它挂起了。", "hang is 卡死, not 挂起"),
        ("Each rank waits.", "每个等级都在等。", "rank is rank, not 等级"),
        ("Communication costs.", "通讯的代价。", "communication is 通信, not 通讯"),
        ("Call `gradient`.", "调用 `gradient`。", None),
        ("Average the gradients.", "对梯度取平均。", None),
    ],
)
def test_a_term_has_one_name(english, chinese, odd):
    found = proofread.terms_at_odds(proofread.glossary(ROOT), catalogues.Message(english, chinese))
    assert list(found)[:1] == ([odd] if odd else [])


def test_a_number_at_the_begin_of_a_line_is_no_item_of_a_list():
    text = "It holds\n111. Then\n- a\n- b\n  and c\n\n1. x\n2. y\n| a |\n| b |\nend"
    parts = ["It holds\n111. Then", "- a", "- b\n  and c", "", "1. x", "2. y", "| a |", "| b |"]
    assert catalogues.units(text) == [*parts, "end"]


def test_code_between_fences_is_not_translated_and_a_drawing_is():
    text = "See:\n\n```python\nnot prose\n\n# nor this\n```\n\n```mermaid\na[here] --> b\n```"
    assert catalogues.prose_of(text) == ["See:", "```mermaid\na[here] --> b\n```"]


def test_an_unknown_chapter_is_refused_with_the_names_there_are(course, capsys):
    assert run(course, "99") == 1
    assert "nothing is called 99; there are: lessons/00_sums" in capsys.readouterr().err


def test_a_broken_catalogue_is_told(course, capsys):
    (course / "source/zh/lessons/00_sums.po").write_text("msgid no quotes\n")
    assert run(course, "--check") == 1
    assert "zh failed:" in capsys.readouterr().err


# The course itself.


@pytest.fixture(scope="module")
def edition():
    """Every Chinese file of the course, by its place."""
    return {path.relative_to(ROOT).as_posix(): text for path, text in zh.edition(ROOT)}


@pytest.mark.slow
def test_every_translation_is_of_the_english_as_it_is_now(capsys):
    assert zh.check(ROOT) == 0, capsys.readouterr().out


@pytest.mark.slow
def test_code_outputs_and_ids_are_the_english_ones(edition):
    """So strict comparison of the English notebooks is that of the Chinese ones, run once."""
    names = [name for name in edition if name.endswith(".ipynb")]
    assert len(names) == len(build.targets(ROOT))
    for name in names:
        there = nbformat.reads(edition[name], as_version=4)
        here = nbformat.read(ROOT / name.replace("/zh/", "/"), as_version=4)
        assert [cell.id for cell in there.cells] == [cell.id for cell in here.cells], name
        for mine, english in zip(there.cells, here.cells, strict=True):
            assert mine == english or mine.cell_type == "markdown", name


def linked(path: Path, text: str) -> set[Path]:
    """The files to which a notebook or a document leads."""
    if path.suffix == ".ipynb":
        cells = nbformat.reads(text, as_version=4).cells
        text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = [to for _, to in catalogues.LINK.findall(re.sub("`[^`]*`", "", text))]
    return {(path.parent / link).resolve() for link in links}


def test_links_that_lead_somewhere_in_english_do_so_from_the_deeper_folders(edition):
    known = {ROOT / name for name in edition}
    for name, text in edition.items():
        english = ROOT / name.replace("/zh/", "/").replace("README.zh.md", "README.md")
        lost = {p for p in linked(ROOT / name, text) - known if not p.exists()}
        lost_there = {p for p in linked(english, english.read_text("utf-8")) if not p.exists()}
        assert len(lost) <= len(lost_there), f"{name}: {lost}"


def test_equal_headings_have_the_anchors_that_myst_gives_them():
    anchors = []
    for heading in ("1 · Write it", "Write it", "Write it", "Write it"):
        anchors.append(catalogues.anchor(heading, anchors))
    assert anchors == ["1--write-it", "write-it", "write-it-1", "write-it-2"]


def test_git_has_catalogues_and_the_readme_and_nothing_else_that_is_built():
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert {"/notebooks/zh/", "/exercises/zh/", "/solutions/zh/"} <= set(ignored)


def test_chinese_copies_lie_beside_english_ones_and_lead_to_each_other(course, monkeypatch, capsys):
    workspace.main([], course)
    monkeypatch.setenv("COURSE_LANG", "zh")
    assert workspace.main([], course) == 0
    assert "2 notebooks of your own are in my/zh/: write there." in capsys.readouterr().out
    lesson = nbformat.read(course / "my/zh/chapter_00_sums.ipynb", as_version=4)
    assert "在[实验](lab_00_sums.ipynb)里得到" in lesson.cells[0].source
    english = nbformat.read(course / "my/chapter_00_sums.ipynb", as_version=4)
    assert "Two ranks add up" in english.cells[0].source
    assert english.cells[0].id == lesson.cells[0].id


def test_a_better_translation_is_a_newer_original(course, monkeypatch, capsys):
    monkeypatch.setenv("COURSE_LANG", "zh")
    workspace.main([], course)
    fill(course, {"- the first item;": "- 头一项；"})
    capsys.readouterr()
    workspace.main([], course)
    said = capsys.readouterr().out
    assert said == (
        "chapter_00_sums.ipynb has a newer original: make fresh lang=zh only=chapter_00_sums\n"
    )


def test_a_language_that_is_not_there_is_refused(course, monkeypatch):
    monkeypatch.setenv("COURSE_LANG", "fr")
    with pytest.raises(SystemExit, match="COURSE_LANG is fr"):
        copies.home(course)


def test_ddp_course_takes_the_language_by_an_option(tmp_path, monkeypatch, capsys):
    for name in ("COURSE_MY", "COURSE_LANG"):
        monkeypatch.setenv(name, "")  # and put back what the command sets
    assert ddp_course.main(["--my", str(tmp_path), "--lang", "zh", "fresh", "chapter_00"]) == 0
    assert "New: chapter_00_start_here.ipynb" in capsys.readouterr().out
    copy = nbformat.read(tmp_path / "zh/chapter_00_start_here.ipynb", as_version=4)
    assert copy.cells[0].source.startswith("# 00 · 从这里开始")
    assert any("](course_map.md)" in cell.source for cell in copy.cells)
