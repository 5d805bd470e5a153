"""Slides: a vote before each answer, nothing that overflows, and nobody else is asked."""

import re
from pathlib import Path

import conftest
import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_output

from course_tools.notebooks import course_map, predictions
from course_tools.site.notebook_pages import pictures_to_files
from course_tools.slides import build as slides
from course_tools.slides.deck import BLOCK, Deck

OVERFLOWS = """() => {
    const style = document.createElement("style");
    style.textContent = ".reveal .slides section { display: block !important }";
    document.head.append(style);
    return [...document.querySelectorAll(".page")].flatMap((page) => {
        const own = page.getBoundingClientRect(), scale = own.height / 720;
        const wrong = [...page.children].filter((child) => {
            const { top, bottom, height } = child.getBoundingClientRect();
            const small = child.tagName === "IMG" && height < 200 * scale;
            return bottom > own.bottom || child.scrollWidth > 1160 || small;
        });
        return wrong.map((child) => `${page.innerText.slice(0, 40)}: ${child.outerHTML}`);
    });
}"""

IN_SIGHT = """() => {
    const own = Reveal.getCurrentSlide();
    const marks = [...own.querySelectorAll("[data-asks], [data-tells]")];
    const shown = marks.filter((mark) => getComputedStyle(mark).visibility !== "hidden");
    const named = ({ asks, tells }) => asks ? `asks ${asks}` : `tells ${tells}`;
    return [JSON.stringify(Reveal.getIndices()), shown.map((mark) => named(mark.dataset))];
}"""


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    to = tmp_path_factory.mktemp("slides")
    if slides.main(["--to", str(to)]):
        conftest._skip("no reveal.js here: npm fetches it")
    return to


@pytest.fixture(scope="module")
def chinese(built) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_LANG", "zh")
        assert slides.main(["--to", str(built)]) == 0
    return built / "zh"


@pytest.fixture(scope="module")
def texts(built) -> dict[Path, str]:
    return {path: (built / f"{path.stem}.html").read_text() for path in course_map.chapters()}


def test_every_prediction_is_a_vote_and_its_answer_comes_later(texts):
    for chapter, text in texts.items():
        cells = nbformat.read(chapter, as_version=4).cells
        answered = predictions.answers(cells)
        shown = text.split("<section><div")
        for _, question in predictions.questions(cells):
            place = [n for n, own in enumerate(shown) if f'data-asks="{question.number}"' in own]
            told = [n for n, own in enumerate(shown) if f'data-tells="{question.number}"' in own]
            assert len(place) == 1, question
            assert len(told) == (question.name in answered), question
            assert place < (told or [len(shown)]), question
            choices = re.findall("<li>(.*?)</li>", shown[place[0]].split('class="ask"')[1])
            assert choices[: len(question.choices)] == question.choices
        assert "no prediction)" not in text
        assert not re.search(r'<p class="measured', text), "it is there from the start"


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("language", ["built", "chinese"])
def test_no_slide_overflows_and_no_request_leaves(request, language, texts, chromium):
    built = request.getfixturevalue(language)
    browser, wrong = chromium.new_context(viewport={"width": 1280, "height": 720}), []
    page = browser.new_page()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda one: None if one.url[:5] in ("file:", "data:") else wrong.append(one.url)
    )
    for chapter in texts:
        page.goto(f"file://{built}/{chapter.stem}.html")
        page.wait_for_function("Reveal.isReady()")
        wrong += page.evaluate(OVERFLOWS)
    assert wrong == []
    page.evaluate("document.querySelector('.page').append('much '.repeat(2000))")
    page.evaluate("document.querySelector('.page').firstChild.style.minHeight = '800px'")
    assert len(page.evaluate(OVERFLOWS)) > 0, "it would be found"
    browser.close()


def test_slides_in_chinese_have_the_same_votes_and_discussions(texts, chinese):
    for chapter, text in texts.items():
        translated = (chinese / f"{chapter.stem}.html").read_text()
        assert '<html lang="zh">' in translated
        for english, word in (("Vote", "表决"), ("Discuss", "讨论"), ("In pairs", "两人一组")):
            assert translated.count(f">{word}<") == text.count(f">{english}<"), chapter
            assert f'class="label">{english}<' not in translated


def test_the_first_page_lists_what_there_is(built, texts):
    links = re.findall(r'href="(\d\d)_', (built / "index.html").read_text())
    assert links == [path.name[:2] for path in texts]
    assert slides.main(["--to", str(built), "03"]) == 0
    assert re.findall(r'href="(\d\d)_', (built / "index.html").read_text()) == links


@pytest.mark.browser
@pytest.mark.slow
def test_who_presses_one_key_sees_each_vote_and_then_its_answer(built, chromium):
    page, seen = chromium.new_page(), []
    page.goto(f"file://{built}/00_start_here.html")
    page.wait_for_function("Reveal.isReady()")
    while not seen or seen[-1] != page.evaluate(IN_SIGHT):
        seen.append(page.evaluate(IN_SIGHT))
        page.keyboard.press("ArrowRight")
    steps = [step for _, step in seen]
    first = {mark: n for n, marks in reversed([*enumerate(steps)]) for mark in marks}
    assert sorted(first, key=first.get) == [
        f"{what} {number}" for number in range(5) for what in ("asks", "tells")
    ]
    assert len(set(first.values())) == len(first), "each takes a step of its own"
    page.close()


def test_what_a_chapter_says_is_in_the_notes_and_no_slide_has_two_pictures(tmp_path):
    for notebook in course_map.chapters().values():
        pictures_to_files(notebook.cells, tmp_path, "")
        made = [slide for part in Deck(notebook.cells).parts for slide in part]
        assert max("".join(slide.shown).count("<img") for slide in made) <= 1
        notes = {note for slide in made for note in slide.notes}
        said = "\n\n".join(c.source for c in notebook.cells[1:] if c.cell_type == "markdown")
        aside = "#", "<details>", "**Check yourself.**"  # headings, hints and answers, questions
        blocks = [one for one in re.findall(BLOCK, said) if not one.startswith(aside)]
        assert [one for one in blocks if one not in notes] == []


def cell(source: str, *outputs, **metadata):
    return new_code_cell(source, outputs=list(outputs), metadata=metadata)


def made(*cells) -> list:
    """Slides of a chapter with these cells, as text; the first is its title."""
    title = new_markdown_cell("# 99 · Made up\n\n**Why?**")
    deck = Deck(
        [title, *(new_markdown_cell(one) if isinstance(one, str) else one for one in cells)]
    )
    return [slide for part in deck.parts for slide in part]


def printed(text: str):
    return new_output("stream", text=text)


FOLDED = {"jupyter": {"source_hidden": True}}
PICTURE = new_output("display_data", {"text/html": '<img src="a.png">', "text/plain": ""})
CAPTION = new_output("display_data", {"text/html": "<p>Down.</p>", "text/plain": "Down."})


def test_what_is_folded_goes_and_what_it_drew_stays():
    *_, slide = made("## One", cell("machinery()", PICTURE, CAPTION, **FOLDED))
    assert slide.shown == ['<img src="a.png">']
    assert slide.notes == ["Down."]


def test_a_sentence_stays_in_sight_and_the_paragraph_is_in_the_notes():
    text = "Ranks send all that they have to others. Nobody waits for the last of them all. "
    text += "The **ring** is next."
    _, slide = made(f"## One\n\n{text}", cell("send()"))
    assert slide.notes == [text]
    assert "Nobody waits" not in "".join(slide.shown)
    assert "<strong>ring</strong>" in slide.shown[0]
    assert "send" in slide.shown[1]


def test_each_picture_has_a_slide_of_its_own_and_a_word_after_it_comes_later():
    _, code, first, second = made("## One", cell("draw()", PICTURE, PICTURE), "It falls.")
    assert [len(one.shown) for one in (code, first, second)] == [1, 1, 2]
    assert 'class="fragment' in second.shown[1]


def test_an_answer_to_a_checkpoint_question_comes_later_and_hints_are_notes():
    fold = "<details><summary>{}</summary>\nBoth.\n</details>"
    _, write, ask = made(
        "## Write it",
        cell('def f():\n    raise NotImplementedError("about 2 lines")'),
        fold.format("Hint 1: a nudge"),
        cell("check(f)", printed("not attempted")),
        f"**Check yourself.** Who?\n\n{fold.format('Answer')}",
    )
    assert (write.label, ask.label) == ("In pairs", "Discuss")
    assert "Both" in write.notes[-1]
    assert [("Both" in one, "fragment" in one) for one in ask.shown] == [
        (False, False),
        (True, True),
    ]


def test_long_output_is_cut_and_all_of_it_is_in_the_notes():
    _, slide = made("## One", cell("go()", printed("\n".join(map(str, range(40))))))
    assert "\n12\n…" in slide.shown[-1]
    assert "\n39\n" in slide.notes[-1]


def test_an_error_is_shown_alone_and_checks_imports_and_scores_are_not():
    error = new_output("error", ename="E", evalue="", traceback=["\x1b[31mIt hangs\x1b[0m"])
    _, slide = made(
        "## One", cell("import torch"), cell("go()", printed("1\n2"), error),
        cell("check(go)", printed("wrong")), cell("predict()", printed("0 of 3")),
    )  # fmt: skip
    assert "It hangs</pre>" in slide.shown[-1]
    assert not re.search("wrong|0 of 3|import|\x1b", "".join(slide.shown))


def test_a_reveal_that_is_not_what_was_published_is_refused(tmp_path):
    (tmp_path / f"{slides.REVEAL.replace('@', '-')}.tgz").write_bytes(b"something else")
    with pytest.raises(SystemExit, match="not what was published"):
        slides.main(["--parts", str(tmp_path), "--to", str(tmp_path / "to")])
    assert not (tmp_path / "to").exists()


def test_without_npm_there_are_no_slides_and_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slides.main(["--parts", str(tmp_path / "parts"), "--to", str(tmp_path / "to")]) == 1
    said = capsys.readouterr().err
    assert "npm is not installed" in said
    assert f"put reveal.js-6.0.2.tgz into {tmp_path / 'parts'}" in said
    assert "reveal.js, which npm brings" in said
    assert not (tmp_path / "to").exists()
