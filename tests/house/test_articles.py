"""The five articles' pages: made of one source, held against drift, every row with its place."""

import functools
import re
from pathlib import Path

import nbformat
import pytest

from course_tools.i18n import articles, chinese, proofread, zh
from course_tools.notebooks import course_map

ROOT = zh.build.ROOT
V4 = nbformat.v4
PAGES = sorted((ROOT / "articles").glob("*.md"))
ROWS = [(k, row) for k, own in course_map.rows().items() for row in own if row != "title"]
TERMS = {"rank": {"zh": "rank", "never": ["等级"], "loose": True}}
SENTENCES = """\
page = "# {title}\\n\\n{teaches}\\n\\n{rows}\\n\\n{mends}\\n\\n{others}\\n"
[A]
teaches = "一个小例子。"
A1 = "其实是和。"
"""


def of_course(root: Path, text: str = "adds up", number: int = 3, said: str = SENTENCES) -> Path:
    """A course with one chapter, whose second "Write it" does the one row of the one article."""
    for folder in ("source/zh", "source/lessons", "notebooks", "solutions"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "source/articles.toml").write_text(f'[A]\ntitle = "The guide"\nA1 = "{text}"\n')
    (root / "source/zh/articles.toml").write_text(said, encoding="utf-8")
    cells = [
        V4.new_markdown_cell("# 00 · Sums\n\n## 1 · What?\n\n### Write it\n\n### Write it"),
        V4.new_code_cell("1 + 2", execution_count=number, outputs=[V4.new_output("stream")]),
        V4.new_code_cell("not run"),
    ]
    for cell in cells[1:]:
        cell.metadata["tags"] = ["row-A1"]
    nbformat.write(V4.new_notebook(cells=cells), root / "notebooks/00_sums.ipynb")
    chinese._known.cache_clear()
    return root


def write(root: Path) -> Path:
    """Write the pages; returns the one page."""
    (root / "articles").mkdir(exist_ok=True)
    ((path, text),) = articles.pages(root)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("change", [{"text": "adds"}, {"number": 4}, {"said": "一个小例子"}, {}])
def test_a_page_is_old_when_a_row_a_cell_or_a_sentence_changes_or_the_page(
    tmp_path, capsys, change
):
    page = write(of_course(tmp_path))
    assert zh.check(tmp_path) == 0
    if said := change.get("said"):
        change = {"said": SENTENCES.replace(said, said + "，很小")}
    of_course(tmp_path, **change)
    if not change:
        page.write_text("mine", encoding="utf-8")
    assert zh.check(tmp_path) == 1
    assert "articles/A.md is old: make zh" in capsys.readouterr().out
    write(tmp_path)
    assert zh.check(tmp_path) == 0


def test_a_page_that_is_missing_is_old(tmp_path, capsys):
    write(of_course(tmp_path)).unlink()
    assert zh.check(tmp_path) == 1
    assert "articles/A.md is old: make zh" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (SENTENCES + 'A2 = "多余。"\n', "A2: no such row"),
        (SENTENCES + '[B]\nteaches = "另一篇。"\n', "B is in one of the two files alone"),
        (SENTENCES.replace("其实是和。", "其实,是和。"), "A1: a sign of half width"),
        (SENTENCES.replace("其实是和。", "**其实。**是和。"), "A1: ** that does not make bold"),
        (SENTENCES.replace("其实是和。", "等级 0 求和。"), "A1: rank is rank, not 等级"),
    ],
)
def test_a_sentence_that_is_not_in_order_is_told(tmp_path, said, fault):
    assert fault in " ".join(articles.faults(of_course(tmp_path, said=said), TERMS))


def test_an_article_without_sentences_is_told(tmp_path):
    said = SENTENCES.partition("[A]")[0]
    told = list(articles.faults(of_course(tmp_path, said=said + "[B]\n"), TERMS))
    assert told == [f"source/zh/articles.toml: {k} is in one of the two files alone" for k in "AB"]


def test_a_course_that_came_without_its_sources_has_no_pages(tmp_path):
    assert list(articles.pages(tmp_path)) == list(articles.faults(tmp_path, TERMS)) == []


def test_a_row_leads_to_the_part_and_the_number_of_the_cell_that_was_run(tmp_path):
    text = write(of_course(tmp_path)).read_text(encoding="utf-8")
    link = "第 00 章 [Write it](../notebooks/00_sums.ipynb#write-it-1) [3]"
    assert f"| A1 | adds up | {link} |" in text
    assert f"- **A1。** 其实是和。（{link}）" in text


@functools.cache
def anchors(path: Path) -> set[str]:
    return {anchor for _, anchor in articles.parts(nbformat.read(path, as_version=4))}


# The course itself. That its pages are not old, test_zh.py asks, and the site's test follows links.


def test_each_of_the_five_articles_has_its_page_with_something_to_mend():
    assert [page.stem for page in PAGES] == list(course_map.rows()) == list("ABCDE")
    assert list(articles.faults(ROOT, proofread.glossary(ROOT))) == []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall(rf"^- \*\*{page.stem}\d+。\*\*", text, re.M)) >= 3
        assert set(re.findall(r"\]\((\w)\.md\)", text)) >= set("ABCDE") - {page.stem}


@pytest.mark.parametrize(("article", "row"), ROWS, ids=[row for _, row in ROWS])
def test_a_row_has_its_links_in_the_page_and_they_lead_to_headings(article, row):
    page = ROOT / "articles" / f"{article}.md"
    (line,) = re.findall(rf"^\| {row} \|.*$", page.read_text(encoding="utf-8"), re.M)
    links = re.findall(r"\]\(([^)#]+)#([^)]+)\)", line)
    assert links
    assert re.search(r"[\u4e00-\u9fff]", line)
    for file, anchor in links:
        assert anchor in anchors(page.parent / file), line


def test_anchors_are_those_of_the_site():
    slugs = pytest.importorskip("myst_parser.slugs")
    for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"):
        for text, anchor in articles.parts(nbformat.read(path, as_version=4)):
            assert anchor.startswith(slugs.github_slugify(text)), text
