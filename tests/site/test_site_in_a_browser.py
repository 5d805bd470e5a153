"""The site in Chromium, with nobody to ask but this machine."""

import json
import re
from itertools import chain

import pytest

from course_tools.site import live_parts, npm, website

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.usefixtures("pyodide")]
SETTINGS = [
    {"latency": -7, "gbit": 3},
    {"latency": 20, "gbit": -20, "link": [0, 1], "link_by": 7},
    {"latency": 1, "rank": 1, "rank_by": 3, "before": [1.5, 2.5], "axis_us": 777.0},
]
PLACES = {
    "index.html": 1,
    "notebooks/03_collective_primitives.html": 4,
    "notebooks/05_ddp_from_scratch.html": 1,
    "notebooks/06_what_communication_costs.html": 5,
    "notebooks/12_send_less.html": 1,
    "exercises/challenge.html": 1,
}
KEEP_THE_WORKER = """const Other = Worker;
window.Worker = class extends Other {
    constructor(...given) { super(...given); window.theWorker = this; }
};"""
REDRAW = """async (asked) => {
    const found = [];
    for (const [place, settings] of asked) {
        found.push(await new Promise((resolve) => {
            theWorker.addEventListener("message", ({ data }) => resolve(data), { once: true });
            theWorker.postMessage({ number: -1, place, settings: JSON.stringify(settings) });
        }));
    }
    return found.map((reply) => reply.drawn ?? reply.error);
}"""
AXE = "axe-core@4.14.1"
AXE_INTEGRITY = (  # sha512, as npm publishes it
    "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
)
WCAG = "axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'] })"
SEEN_BY_AXE = (
    "index.html",
    "glossary.html",
    "plan.html",
    "notebooks/README.html",
    "notebooks/03_collective_primitives.html",
    "exercises/03_collective_primitives.html",
    "zh/notebooks/00_start_here.html",
)
MOVES = (
    lambda live: live.locator("[name=latency]").press("ArrowRight"),
    lambda live: live.locator("[name=gbit]").press("ArrowLeft"),
    lambda live: live.locator("[name=rank]").select_option("1"),
    lambda live: live.locator("[name=rank_by]").press("ArrowRight"),
    lambda live: live.locator("[name=link]").select_option("0,1"),
)


def asked() -> list[tuple[str, dict]]:
    """Every recording of every place, on networks near and far."""
    found = []
    for place, text in live_parts.recordings().items():
        told = json.loads(text)
        every = [{"case": case, "choice": one} for case in told["cases"] for one in told["choices"]]
        for k, own in enumerate(every):  # of very many cases one after the other
            chosen = SETTINGS[k % 3 :][:1] if len(told["cases"]) > 1 else SETTINGS
            found += [(place, own | settings) for settings in chosen]
    return found


def test_every_slider_moves_its_picture_and_its_digits_are_those_of_cpython(page, site, tmp_path):
    """All frames on one page, since Python's start in a page is what costs."""
    text = (site / "index.html").read_text(encoding="utf-8")
    others = [(site / path).read_text(encoding="utf-8") for path in list(PLACES)[1:]]
    frames = [re.findall(r'(?s)<section class="live".*?</section>', other) for other in others]
    text = text.replace("</article>", "".join(chain(*frames)) + "</article>")
    page.route("**/all.html", lambda route: route.fulfill(body=text, content_type="text/html"))
    page.add_init_script(KEEP_THE_WORKER)
    page.goto("all.html")
    assert page.locator("section.live").count() == sum(PLACES.values())
    for live in page.locator("section.live").all():
        _moves(live)

    wanted = live_parts.redrawn(live_parts.wheel(tmp_path / live_parts.WHEEL), asked())
    got = page.evaluate(REDRAW, asked())
    assert len(got) == len(wanted) > 100
    for (place, settings), one, other in zip(asked(), got, wanted, strict=True):
        assert one == other, (place, settings)


def _moves(live) -> None:
    for move in MOVES:
        before = live.locator(".drawing").inner_html()
        count = int(live.get_attribute("data-redrawn") or 0)
        move(live)
        expect(live).to_have_attribute("data-redrawn", str(count + 1), timeout=120_000)
        assert live.locator(".drawing").inner_html() != before, move
    assert "done at" in live.locator(".said").inner_text()


def test_python_comes_with_the_first_touch_and_not_before(page):
    asked_for = []
    page.on("request", lambda request: asked_for.append(request.url))
    page.goto("zh/exercises/challenge.html")  # whose recordings lie in the English site
    live, case = page.locator("section.live"), "slow link, 6 ranks, 1 MiB"
    assert not [url for url in asked_for if "/live/" in url]
    live.locator("[name=case]").select_option(case)
    expect(live).to_have_attribute("data-redrawn", "1", timeout=120_000)
    assert [url for url in asked_for if "pyodide.asm.wasm" in url]
    assert live.locator("output", has_text="%").count() == 5
    _moves(live)
    assert live.locator("output", has_text="%").count() == 0
    live.locator(".fit").click()
    expect(live.locator(".note")).to_be_empty(timeout=120_000)


@pytest.mark.parametrize("missing", ["WebAssembly", "Worker"])
def test_where_python_cannot_come_the_picture_stays_with_a_sentence(page, missing):
    page.add_init_script(f"delete globalThis.{missing}")
    page.goto("index.html")
    before = page.locator(".live .drawing").inner_html()
    page.locator("[name=latency]").press("ArrowRight")
    page.get_by_text("This picture stays as it is").wait_for()
    assert page.locator(".live .drawing").inner_html() == before
    assert page.locator("[name=gbit]").is_disabled()


def test_a_prediction_unfolds_its_answer_and_is_there_on_the_next_day(page):
    page.goto("notebooks/00_start_here.html")
    form, fold = page.locator("form.ask").nth(1), page.locator(".tag_tells-1 details").first
    assert not fold.evaluate("fold => fold.open")
    form.locator("[type=text]").fill("40 9")
    form.locator("[type=text]").press("Enter")
    form.get_by_text("Read as 40, 9: that makes 2, and 4 are wanted.").wait_for()
    assert not fold.evaluate("fold => fold.open")
    form.locator("[type=text]").fill("40 40, 40 9")
    form.locator("[type=text]").press("Enter")
    form.get_by_text("3 of 4 right").wait_for()
    assert fold.evaluate("fold => fold.open")
    for form in page.locator("form.ask:has([type=radio])").all():
        form.locator("[type=radio]").nth(1).check()
        form.locator("button").click()
    assert "5 of 5 predictions made on this page, 1 of them right" in page.inner_text(".score")
    page.reload()
    assert page.locator(".tag_tells-1 details").first.evaluate("fold => fold.open")
    assert page.locator("form.ask [type=text]").first.input_value() == "40 40, 40 9"
    _the_map_knows_and_forgets(page)


@pytest.fixture(scope="module")
def axe() -> str:
    """The script of axe-core, which finds what keeps people from using a page."""
    fetched = npm.fetched(website.PARTS, AXE, AXE_INTEGRITY, ("axe.min.js",))
    if not fetched:
        pytest.skip("no axe-core here: npm fetches it")
    return (fetched / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_people_out(page, axe, scheme):
    page.emulate_media(color_scheme=scheme)
    faults = []
    for address in SEEN_BY_AXE:
        page.goto(address)
        page.evaluate(axe)
        for violation in page.evaluate(WCAG)["violations"]:
            places = [node["target"] for node in violation["nodes"]]
            faults.append((address, violation["id"], places[:3]))
    assert faults == []


def test_axe_would_find_a_pale_text_and_a_field_without_a_name(page, axe):
    page.goto("glossary.html")
    page.evaluate("""document.querySelector("article").insertAdjacentHTML(
        "beforeend", "<p style='color: #ccc; background: #fff'>pale</p><input type='text'>")""")
    page.evaluate(axe)
    found = {violation["id"] for violation in page.evaluate(WCAG)["violations"]}
    assert {"color-contrast", "label"} <= found


def test_a_term_is_explained_where_it_stands_also_to_the_keyboard(page):
    page.goto("notebooks/02_process_groups.html")
    term = page.locator("a.term", has_text=re.compile("^ranks?$")).first
    explanation = "getComputedStyle(document.activeElement, '::after').content"
    term.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert "number among all workers" in page.evaluate(explanation)
    page.keyboard.press("Enter")
    page.wait_for_url("**/glossary.html#term-rank")
    expect(page.locator("section", has=page.locator("#term-rank")).last).to_be_in_viewport()


def test_what_was_predicted_can_be_kept_as_a_report(page, tmp_path):
    page.goto("notebooks/00_start_here.html")
    form = page.locator("form.ask:has([type=text])").first
    question, measured = (form.get_attribute(f"data-{name}") for name in ("question", "measured"))
    form.locator("[type=text]").fill("<b>40</b>, 40, 40, 40")
    form.locator("[type=text]").press("Enter")
    page.goto("notebooks/README.html")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Report").click()
    report = tmp_path / "report.html"
    saved.value.save_as(report)
    page.set_content(report.read_text(encoding="utf-8"))
    text = page.inner_text("body")
    assert "1 of 5 predictions made, 0 of them right." in text
    row = page.locator("tr", has_text=question)
    assert row.locator("td").nth(1).inner_text() == "<b>40</b>, 40, 40, 40"
    assert row.locator("td").nth(2).inner_text() == measured != ""
    assert page.locator("h2").count() == page.locator("h2", has_text=re.compile(r"^\d\d ")).count()


def _the_map_knows_and_forgets(page) -> None:
    page.goto("notebooks/README.html")
    ticks = page.locator(".tick").all_inner_texts()
    assert ticks[0] == "✓"
    assert ticks[1] == "0 of 4"
    with page.expect_download() as saved:
        page.get_by_text("Export").click()
    told = json.loads(saved.value.path().read_text(encoding="utf-8"))
    assert told["00"]["1"]["answer"] == "40 40, 40 9"
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_text("Reset").click()
    assert page.locator(".tick").first.inner_text() == "0 of 5"


WON = {  # by number of a task: model, ZeRO, and powers of two of dp, tp, pp, microbatches
    3: ("70B", "3", 5, 1, 0, 5),
    4: ("70B", "1", 6, 2, 1, 4),
    5: ("7B", "1", 9, 1, 0, 0),
}


def _choose(page, model: str, zero: str, *powers: int) -> None:
    """Set a plan by the keyboard alone."""
    page.locator("[name=model]").select_option(model)
    page.locator("[name=zero]").select_option(zero)
    for name, power in zip(("dp", "tp", "pp", "microbatches"), powers, strict=True):
        slider = page.locator(f"[name={name}]")
        slider.press("Home")
        for _ in range(power):
            slider.press("ArrowRight")


def test_a_plan_is_scored_without_python_and_a_task_once_won_stays_won(page):
    asked_for = []
    page.on("request", lambda request: asked_for.append(request.url))
    page.goto("plan.html")
    expect(page.locator(".won")).to_have_text("0 of 10 tasks won.")
    for number, plan in WON.items():
        page.locator(f"[name=task][value='{number}']").check()
        expect(page.locator(".won")).to_have_text(f"{list(WON).index(number)} of 10 tasks won.")
        _choose(page, *plan)
        expect(page.locator(".told")).to_contain_text("It fits.")
        expect(page.locator(".won")).to_have_text(f"{list(WON).index(number) + 1} of 10 tasks won.")
    page.reload()
    expect(page.locator(".won")).to_have_text("3 of 10 tasks won.")
    assert not [url for url in asked_for if "/live/" in url]


def test_what_is_no_plan_says_why(page):
    page.goto("plan.html")
    _choose(page, "7B", "0", 10, 1, 0, 0)
    expect(page.locator(".told")).to_have_text("2,048 chips: the cluster has 1,024.")
    _choose(page, "7B", "0", 9, 1, 0, 6)
    expect(page.locator(".told")).to_contain_text("too few for 512 copies with 64 microbatches")


def _found(page, address: str) -> list[str]:
    """The links on a page of search, when the last is there: they come one after the other."""
    page.goto(address)
    page.locator("#search-results li a").first.wait_for()
    page.wait_for_function("Search.status.innerText")  # "Search finished": its dots go on for ever
    return [link.get_attribute("href") for link in page.locator("#search-results li a").all()]


def test_search_finds_a_lab_and_no_solution(page):
    found = _found(page, "search.html?q=lab+03+collective+primitives")
    assert any("exercises/03" in link for link in found), found
    assert not [link for link in found if "solutions" in link]


def test_search_finds_chinese_words_of_one_sign_or_more(page, subtests):
    for words, chapter in ("梯度", "04"), ("梯度累积", "04"), ("桶", "05"), ("all-reduce 环", "06"):
        with subtests.test(words):
            found = _found(page, f"zh/search.html?q={words}")
            assert any(link.startswith(f"notebooks/{chapter}") for link in found), found


def test_the_switch_leads_to_the_cell_that_is_read_and_back(page):
    page.goto("notebooks/03_collective_primitives.html")
    cell = page.locator(".cell[id]").nth(20)
    name = cell.get_attribute("id")
    cell.evaluate("cell => cell.scrollIntoView()")
    for language, folder in (("zh-CN", "/zh/notebooks/"), ("en", "/notebooks/")):
        page.wait_for_function(f"""Math.abs(
            document.getElementById("{name}").getBoundingClientRect().top - 90) < 2""")
        page.locator("a.tongue:visible").click()
        page.wait_for_url(f"**{folder}03_collective_primitives.html#{name}")
        assert page.locator("html").get_attribute("lang") == language
    page.goto("zh/notebooks/03_collective_primitives.html")
    page.set_viewport_size({"width": 390, "height": 800})
    page.locator("header a.tongue").click()
    page.wait_for_url("**/notebooks/03_collective_primitives.html")  # from the top to the top


def test_in_chinese_a_prediction_is_answered_in_chinese(page):
    page.goto("zh/notebooks/00_start_here.html")
    form = page.locator("form.ask:has([type=text])").first
    form.locator("[type=text]").fill("1 1 1 1")
    form.locator("button").click()
    assert "你的预测：1 1 1 1。实测：" in form.locator("output").inner_text()


def test_no_page_is_wider_than_its_window(page):
    others = ("notebooks/README.html", "start.html", "plan.html")
    for path in (*PLACES, *others, "zh/index.html", "zh/start.html", "zh/plan.html"):
        page.goto(path)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
