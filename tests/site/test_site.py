"""The site's files: every link leads somewhere, no page is large, no answer is in sight."""

import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import nbformat
import pytest

from course_tools.i18n import site_languages
from course_tools.notebooks import predictions
from course_tools.site import glossary, live_parts, website

ROOT = Path(__file__).resolve().parents[2]
CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
LARGE_BYTES = 1_500_000
pytestmark = pytest.mark.slow


class Page(HTMLParser):
    """What a page points to, what it loads, and what is in it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loads, self.ids, self.tags = [], [], set(), []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list) -> None:
        own = dict(attributes)
        self.tags.append((tag, own))
        self.ids |= {own["id"]} if "id" in own else set()
        if tag == "a" and own.get("href"):
            self.links.append(own["href"])
        loads = tag == "link" and own.get("rel") in ("stylesheet", "icon", "shortcut icon")
        if loads or "src" in own:
            self.loads.append(own.get("src") or own["href"])


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def to(page: Path, link: str) -> Path:
    return (page.parent / unquote(urlparse(link).path)).resolve() if urlparse(link).path else page


def test_every_link_leads_to_a_file_and_to_a_place_in_it(site, pages):
    broken, outside = [], set()
    for path, page in pages.items():
        for link in page.links:
            if urlparse(link).scheme:
                outside.add(link)
                continue
            file, place = to(path, link), urldefrag(link)[1]
            known = pages[file].ids if file in pages else {""}
            if not file.is_file() or (place and unquote(place) not in known):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []
    print(f"\n{len(outside)} links to other hosts, not fetched:", *sorted(outside), sep="\n")


def test_llms_txt_leads_to_every_chapter_and_lab_and_to_no_solution(site):
    text = (site / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[[^]]+\]\(([^)]+)\): .+$", text, re.M)
    assert [link for link in links if not (site / link).is_file()] == []
    for path in (*CHAPTERS, *(ROOT / "exercises").glob("[0-9]*.ipynb")):
        assert f"{path.parent.name}/{path.stem}.html" in links
    assert "solutions" not in text
    assert text.startswith("# ")
    assert "\n> " in text
    assert "`check(...)` is the only judge" in text


def test_no_page_loads_anything_from_another_host_or_is_large(site, pages):
    for path, page in pages.items():
        files = {to(path, link.split("?")[0]) for link in page.loads if "data:" not in link}
        assert all(file.is_file() for file in files), path
        assert not [link for link in page.loads if urlparse(link).netloc], path
        size = path.stat().st_size + sum(file.stat().st_size for file in files)
        assert size < LARGE_BYTES, (path.name, size)


def test_every_picture_has_words_and_every_page_one_first_heading(pages):
    for path, page in pages.items():
        assert path.name == "search.html" or sum(tag == "h1" for tag, _ in page.tags) == 1, path
        assert all(own.get("alt", "").strip() for tag, own in page.tags if tag == "img"), path


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem[:2])
def test_every_prediction_has_a_form_and_what_answers_it_is_folded(chapter, site):
    cells = nbformat.read(chapter, as_version=4).cells
    text = (site / "notebooks" / f"{chapter.stem}.html").read_text(encoding="utf-8")
    wanted = [question for _, question in predictions.questions(cells)]
    assert len(wanted) == sum(len(re.findall(r"= predict\(", cell.source)) for cell in cells)
    forms = re.findall(r'data-number="(\d+)" data-question="[^"]*" data-measured="([^"]*)"', text)
    assert [int(number) for number, _ in forms] == [question.number for question in wanted]
    answered = predictions.answers(cells)
    open_ones = [question.number for question in wanted if question.name not in answered]
    assert [int(number) for number, measured in forms if not measured] == open_ones
    for said in re.findall(r"\(no prediction\)", re.sub(r"(?s)<details.*?</details>", "", text)):
        pytest.fail(f"an answer is in sight: {said}")
    assert not re.search(r"\d of \d+ predictions were right", text)


def test_the_first_use_of_a_term_leads_to_its_explanation_in_both_languages(site, pages):
    explained = set()
    for path, page in pages.items():
        links = [own["href"] for tag, own in page.tags if own.get("class", "").startswith("term ")]
        assert len(links) == len(set(links)), path
        is_chinese = path.relative_to(site).parts[0] == "zh"
        explained |= {(is_chinese, urldefrag(link)[1]) for link in links}
    for is_chinese, code in ((False, "en"), (True, "zh")):
        anchors = {term.anchor for term in glossary.terms(code)}
        never_explained = {anchor for anchor in anchors if (is_chinese, anchor) not in explained}
        assert never_explained == set()


def test_the_chinese_glossary_uses_the_terms_of_the_edition():
    path = ROOT / "source/zh/glossary.toml"
    edition = tomllib.loads(path.read_text(encoding="utf-8"))
    chinese = {term.anchor: term for term in glossary.terms("zh")}
    differing = []
    for term in glossary.terms("en"):
        rule = edition["terms"].get(term.title, {})
        allowed = [rule["zh"], *rule.get("also", [])] if rule else []
        if term.title in edition["english"]:
            allowed = [term.title]
        title = chinese[term.anchor].title
        if allowed and not any(word in title for word in allowed):
            differing.append((term.title, title, allowed))
    assert differing == []


def test_the_code_needs_at_most_25_terms_of_its_own():
    _head, _line, *rows = glossary.table().splitlines()
    titles = [row.split(" | ")[0] for row in rows]
    terms = ", ".join(titles).split(", ")
    assert len(terms) <= 25


def test_the_words_of_contributing_are_those_of_the_glossary(monkeypatch, tmp_path, capsys):
    assert glossary.main(["--check"]) == 0
    changed = tmp_path / "CONTRIBUTING.md"
    text = glossary.CONTRIBUTING.read_text(encoding="utf-8")
    changed.write_text(text.replace("| wait graph |", "| graph |"), encoding="utf-8")
    monkeypatch.setattr(glossary, "CONTRIBUTING", changed)
    assert glossary.main(["--check"]) == 1
    assert "source/glossary.toml" in capsys.readouterr().out
    assert glossary.main([]) == 0
    assert changed.read_text(encoding="utf-8") == text


def test_what_a_lesson_folds_is_folded(site):
    source = nbformat.read(CHAPTERS[3], as_version=4).cells
    hidden = sum(bool(cell.metadata.get("jupyter", {}).get("source_hidden")) for cell in source)
    text = (site / "notebooks" / f"{CHAPTERS[3].stem}.html").read_text(encoding="utf-8")
    assert text.count("Show the source") + text.count("Show the content") == hidden > 0


def test_every_chapter_and_lab_can_be_downloaded(site):
    for chapter in CHAPTERS:
        assert (site / "download" / chapter.name).read_bytes() == chapter.read_bytes()
        chinese = nbformat.read(site / "zh/download" / chapter.name, as_version=4)
        assert [cell.id for cell in chinese.cells] == [
            cell.id for cell in nbformat.read(chapter, as_version=4).cells
        ]


def test_every_page_leads_to_itself_in_the_other_language_and_to_the_same_cells(site, pages):
    own = {path.relative_to(site).as_posix(): path for path in pages}
    english = {name for name in own if not name.startswith("zh/")}
    chinese = {name.removeprefix("zh/") for name in own if name.startswith("zh/")}
    assert chinese - english == {f"articles/{letter}.html" for letter in "ABCDE"}
    assert english <= chinese
    for name in english:
        one, other = own[name], own[f"zh/{name}"]
        assert switches(one, pages) == {other}
        assert switches(other, pages) == {one}
        assert anchors(pages[one]) == anchors(pages[other]), name
    for name in chinese - english:
        assert switches(own[f"zh/{name}"], pages) == {site / "notebooks/README.html"}
    assert sum(len(anchors(pages[own[name]])) for name in english) > 1000


def switches(path: Path, pages: dict[Path, Page]) -> set[Path]:
    links = [own for tag, own in pages[path].tags if tag == "a" and own.get("class") == "tongue"]
    assert len(links) == 2  # in the sidebar and in the header
    return {to(path, own["href"]) for own in links}


def anchors(page: Page) -> set[str]:
    return {name for name in page.ids if name.startswith(("cell-", "part-"))}


def test_in_chinese_page_theme_and_scripts_speak_it_and_the_pictures_are_not_there_twice(site):
    text = (site / "zh/notebooks/00_start_here.html").read_text(encoding="utf-8")
    for words in ('lang="zh-CN"', "展开代码", "展开输出", "先预测：", "本页内容", "下载这份"):
        assert words in text
    for words in ("Show the", "Predict first", "On this page", "Download", "Toggle", ">Compare"):
        assert words not in text
    script = (site / "zh/_static/say.js").read_text(encoding="utf-8")
    assert '"Reset": "清除"' in script
    assert "const WORDS = {};" in (site / "_static/say.js").read_text(encoding="utf-8")
    assert not (site / "zh/live").exists()
    assert not (site / "zh/_static/pictures").exists()


def test_what_is_english_only_stands_among_the_chinese_pages_with_a_mark(site):
    for name, mark in (("teaching/README", True), ("README", False), ("start", False)):
        text = (site / f"zh/{name}.html").read_text(encoding="utf-8")
        assert ("本页尚未译成中文" in text) == mark, name


def test_a_page_that_only_the_site_has_is_a_link_in_the_chapter_that_names_it(site):
    for folder in ("", "zh/"):
        page = site / f"{folder}notebooks/19_when_scaling_stops.html"
        assert 'href="../plan.html"' in page.read_text(encoding="utf-8").split("<article", 1)[1]


def test_a_word_that_nobody_translated_stays_english_and_a_lost_heading_is_no_link():
    chinese = site_languages.in_chinese()
    assert chinese.say("Nobody has said this before") == "Nobody has said this before"
    link = "[x](../notebooks/02_process_groups.ipynb#{})"
    found = site_languages._to_headings(link.format("1--is-there-a-master"), ROOT / "articles")
    assert found == link.format("1--有没有-master")
    with pytest.raises(KeyError, match="no-such-heading"):
        site_languages._to_headings(link.format("no-such-heading"), ROOT / "articles")


def test_with_a_repository_each_chapter_opens_elsewhere(tmp_path, site):
    website.stage(tmp_path / "pages", website.PARTS, "ada/course", pdf=True)
    text = (tmp_path / "pages/notebooks/00_start_here.ipynb").read_text(encoding="utf-8")
    for host in ("colab.research.google.com", "kaggle.com", "mybinder.org"):
        assert host in text
        assert host not in (site / "notebooks/00_start_here.html").read_text(encoding="utf-8")
    assert "ada/course" in (tmp_path / "pages/start.md").read_text(encoding="utf-8")
    assert "ddp-course.pdf" in (tmp_path / "pages/index.md").read_text(encoding="utf-8")


def test_a_wheel_has_what_it_needs_and_nothing_more():
    names = {str(path.relative_to(ROOT / "course_utils")) for path in live_parts.modules()}
    assert {"network/simulation.py", "pictures/timeline.py", "record/event.py"} <= names
    of_launcher = {Path(name).stem for name in names if name.startswith("launcher/")}
    assert of_launcher <= {"language", "stacks", "torch_private", "words"}


PRINTED = {  # by chapter, in its cells' outputs
    "03-at-once": ("03", lambda took: f"[{took[0]:.0f}, {took[1]:.0f}]"),
    "03-reduce": ("03", lambda took: f"ring{took[0]:6.0f} /{took[1]:5.0f}"),
    "06-ports": ("06", lambda took: f"[{took[0]:.0f}, {took[1]:.0f}]"),
    "06-nodes": ("06", lambda took: f"{took[1]:9.0f}{took[0]:15.0f}"),
    "12-methods": ("12", lambda took: f"340.6{took[0] / 16_000:9.2f} ms"),
}


@pytest.mark.parametrize("place", PRINTED)
def test_a_place_begins_with_the_numbers_of_its_chapter(place, tmp_path):
    packed = live_parts.wheel(tmp_path / live_parts.WHEEL)
    (drawn,) = live_parts.redrawn(packed, [(place, {})])
    chapter, printed = PRINTED[place]
    text = next((ROOT / "notebooks").glob(f"{chapter}_*")).read_text(encoding="utf-8")
    assert printed([us for us, _ in json.loads(drawn)["took"].values()]) in text


def test_a_pyodide_that_is_not_what_was_published_is_refused(tmp_path):
    (tmp_path / f"pyodide-{live_parts.PYODIDE}.tgz").write_bytes(b"something else")
    with pytest.raises(SystemExit, match="not what was published"):
        live_parts.pyodide(tmp_path)
    assert not (tmp_path / f"pyodide-{live_parts.PYODIDE}").exists()


def test_without_npm_the_site_has_no_pyodide_and_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert live_parts.pyodide(tmp_path) is None
    assert "pictures will not move" in capsys.readouterr().err
