"""The lessons in real JupyterLab, in headless Chromium.

`make look to=FOLDER only=05` runs a lesson there and takes pictures of what a learner sees.
"""

import base64
import contextlib
import io
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest
import upstream
from PIL import Image

from course_tools.learner import copies, workspace
from course_tools.notebooks.cells import WIDGET_VIEW

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [path.name for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
# Pages of each kind: with the live panel, with sliders and most pictures, long, from a GPU.
KINDS = [name for name in NOTEBOOKS if name.startswith(("00", "03", "07", "14"))]
# All that is nothing outside a browser. The rest of a lesson is strict nbval's; `make look` runs
# whole lessons here.
CELLS_WITH_WIDGETS = (
    """
    import matplotlib.pyplot as plt
    import torch
    import torch.distributed as dist
    from course_utils import Network, explore, launch

    network = Network(latency_us=10, gbit_s=8)

    def steps():
        for _ in range(5):
            dist.all_reduce(torch.ones(1000))""",
    "results = launch(steps, world_size=8, live=True, trace=True)",
    "explore(results.trace, network)",
    "plt.plot([1, 2]);",
    "launch(steps, world_size=-1)",
)
pytestmark = [pytest.mark.browser, pytest.mark.slow]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
RUN_ALL_S = 900
PATIENCE_MS = 120_000  # for what a page shall show; playwright's 30 s are few beside other tests
PICTURE = ".jp-RenderedImage img"
HEADING = ".jp-RenderedMarkdown :is(h1, h2, h3)"
SETTINGS = """
c.ServerApp.open_browser = False
c.ServerApp.port = 0
c.IdentityProvider.token = "{token}"
c.LabApp.expose_app_in_browser = True
c.LabApp.user_settings_dir = "{folder}"
c.LabApp.workspaces_dir = "{folder}"
"""
# Without these a browser in a closed network spends its start looking for its maker.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SHOWN = """async () => {
    const widget = window.jupyterapp?.shell.currentWidget;
    if (!widget?.context) return false;
    await widget.context.ready;
    return true;
}"""
INSTEAD = """async path => {
    const {commands, shell} = window.jupyterapp;
    const before = [...shell.widgets('main')], {sessionContext} = shell.currentWidget;
    await sessionContext.ready;
    const kernel = {id: sessionContext.session?.kernel.id};  // unless it was ended: a new one
    const widget = await commands.execute('docmanager:open', {path, kernel});
    // a command to close one is not always heard
    before.filter(old => old !== widget).forEach(old => old.dispose());
    shell.activateById(widget.id);
}"""
READY = """async () => {
    const widget = window.jupyterapp.shell.currentWidget;
    await widget.sessionContext.ready;
    await widget.sessionContext.session.kernel.info;
    return widget.sessionContext.session.kernel.status === 'idle';
}"""
# The server writes errors into its log when a page goes while its kernel is still saying something.
ENDED = "() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown().then(() => true)"
# Both commands are dropped in silence while the page is still settling: ask until they are heard.
CLEARED = """async () => {
    const {commands, shell} = window.jupyterapp;
    if (!commands.hasCommand('notebook:run-all-cells')) return false;
    const cells = [...shell.currentWidget.content.model.sharedModel.cells];
    if (cells.every(cell => !cell.execution_count)) return true;
    await commands.execute('notebook:clear-all-cell-outputs');
    return false;
}"""
STARTED = """async () => {
    const widget = window.jupyterapp.shell.currentWidget;
    const cells = [...widget.content.model.sharedModel.cells];
    if (cells.some(cell => cell.execution_count || cell.executionState === 'running')) return true;
    window.jupyterapp.commands.execute('notebook:run-all-cells');
    await new Promise(resolve => setTimeout(resolve, 3000));
    return false;
}"""
IDLE = """() =>
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'"""
SAVED = """async () => {
    const {commands, shell} = window.jupyterapp;
    await commands.execute('docmanager:save');
    return !shell.currentWidget.context.model.dirty;
}"""
CELLS = """() => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells
    .filter(cell => cell.cell_type === 'code' && cell.source.trim())
    .map(cell => ({source: cell.source, count: cell.execution_count,
                   tags: cell.getMetadata('tags') || [],
                   error: cell.getOutputs().filter(output => output.output_type === 'error')
                        .map(output => output.evalue).join()}))"""


def test_a_browser_is_there_where_one_is_required():
    assert BROWSER or not os.environ.get("COURSE_SKIPS_NOTHING"), "install Chromium"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Serve a copy of the notebooks with a JupyterLab of its own; yield its address."""
    folder = tmp_path_factory.mktemp("lab") / "notebooks"
    shutil.copytree(ROOT / "notebooks", folder)
    with _serving(folder) as server:
        yield server


@contextlib.contextmanager
def _serving(folder: Path, *start: str, **environment: str) -> Iterator[tuple[str, str]]:
    """JupyterLab on a folder, as `make lab` starts it, or by it; yields its address and its token.

    Its log is beside the folder.
    """
    if not BROWSER:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    settings = folder.parent / "settings"
    file = settings / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"windowingMode": "none"}')  # all cells on the page, seen or not
    token = secrets.token_hex()
    (settings / "jupyter_lab_config.py").write_text(SETTINGS.format(token=token, folder=settings))
    command = [*start]
    if not start:
        command, environment = workspace.lab_command(ROOT, folder)
    paths = [environment.get("JUPYTER_CONFIG_PATH"), str(settings)]
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    log = folder.parent / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, cwd=folder.parent, env=environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield _address(log, server), token
    finally:
        with contextlib.suppress(OSError, AssertionError):
            _end_kernels(_address(log, server), token)
        os.killpg(server.pid, signal.SIGKILL)  # asked to end, it sometimes took more than a minute
        server.wait()


def _rewrite(lesson: Path) -> None:
    """As a learner may: after the first cell it goes on with every kind of widget, and ends."""
    notebook = nbformat.read(lesson, as_version=4)
    sources = [dedent(source).strip() for source in CELLS_WITH_WIDGETS]
    notebook.cells[1:] = map(nbformat.v4.new_code_cell, sources)
    notebook.cells[-1].metadata["tags"] = ["raises-exception"]
    _write_signed(notebook, lesson)


def _write_signed(notebook: nbformat.NotebookNode, path: Path) -> None:
    """As a browser writes it: Lab asks before a button acts in a file that isn't signed."""
    nbformat.write(notebook, path)
    copies.notary().sign(notebook)


def _address(log: Path, server: subprocess.Popen) -> str:
    end = time.monotonic() + 180
    while time.monotonic() < end and server.poll() is None:
        if found := re.search(r"http://127\.0\.0\.1:\d+/", log.read_text()):
            return found[0]
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text()}")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    if not BROWSER:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(lab, browser):
    """Open a browser page; at the end, end the kernels that it used."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    yield page
    page.close()
    _end_kernels(*lab)


def _end_kernels(address: str, token: str) -> None:
    for kernel in _kernels(address, token):
        _api(address, token, f"kernels/{kernel['id']}", "DELETE")


def _kernels(address: str, token: str) -> list[dict]:
    """Those that run, all started: while one starts, the server answers error 500 to the question.

    https://github.com/jupyter-server/enterprise_gateway/issues/1395 shows the same.
    """
    end = time.monotonic() + 120
    while True:
        try:
            return _api(address, token, "kernels")
        except urllib.error.HTTPError as error:
            if error.code != 500 or time.monotonic() > end:
                raise
        time.sleep(0.2)


def _api(address: str, token: str, path: str, method: str = "GET") -> list:
    headers = {"Authorization": f"token {token}"}
    request = urllib.request.Request(f"{address}api/{path}", headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read() or "[]")


def _open(page, lab, name: str) -> None:
    """Show a notebook as it was saved; its kernel may still be starting."""
    address, token = lab
    # A workspace of its own, else Lab opens the notebooks of earlier tests beside this one.
    page.goto(f"{address}lab/workspaces/{Path(name).stem}/tree/{name}?token={token}")
    _until(page, SHOWN, 120)


def _run_all(page, lab, name: str) -> list[dict]:
    """Open a notebook, run all of it, and return its code cells."""
    _open(page, lab, name)
    return _run(page, Path(name).stem)


def _run(page, name: str) -> list[dict]:
    """Run all of the notebook that is open, and return its code cells."""
    _until(page, READY, 120)
    _until(page, CLEARED, 120)
    _until(page, STARTED, 120)
    _shoot(page, f"{name}-running", after_s=9)
    end = time.monotonic() + RUN_ALL_S
    while not _is_over(cells := page.evaluate(CELLS)):
        if time.monotonic() > end:
            ran = sum(bool(cell["count"]) for cell in cells)
            raise TimeoutError(f"Run All did not come to its end: {ran} of {len(cells)} cells ran")
        time.sleep(0.5)
    _until(page, IDLE, 120)
    _shoot(page, name)
    return page.evaluate(CELLS)


def _is_over(cells: list[dict]) -> bool:
    """Whether every cell was run, or one failed that should not, where JupyterLab stops."""
    failed = any(cell["error"] and "raises-exception" not in cell["tags"] for cell in cells)
    return failed or all(cell["count"] for cell in cells)


def _open_instead(page, name: str) -> None:
    """Show another notebook in the place of the one that is open, with the same kernel if any."""
    page.evaluate(INSTEAD, name)
    _until(page, SHOWN, 120)


def _end_kernel(page) -> None:
    """Answers once the kernel is gone, so that nothing is said any more to a page that goes."""
    _until(page, READY, 120)
    _until(page, ENDED, 120)


def _until(page, predicate: str, seconds: float) -> None:
    """Wait until a function of the page, which may be asynchronous, returns true."""
    end = time.monotonic() + seconds
    while not page.evaluate(predicate):
        if time.monotonic() > end:
            raise TimeoutError(f"not true after {seconds} s: {predicate}")
        time.sleep(0.2)


def _shoot(page, name: str, after_s: float = 1) -> None:
    """Take pictures of the whole notebook, a screen at a time, if somebody wants to look."""
    folder = os.environ.get("COURSE_SCREENSHOTS")
    if not folder:
        return
    time.sleep(after_s)
    height = page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollHeight")
    for number, top in enumerate(range(0, height, 900)):
        page.evaluate(f"() => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, {top})")
        time.sleep(0.2)
        page.screenshot(path=Path(folder) / f"{name}-{number:02d}.png")


def _runs_to_its_end(page, lab, notebook: str) -> None:
    """Run a notebook; nothing fails in it that should not, and nothing is missing on the page."""
    cells = _run_all(page, lab, notebook)
    for cell in cells:
        assert bool(cell["error"]) == ("raises-exception" in cell["tags"]), cell
    assert [cell["count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert page.locator(PICTURE).count() >= 1
    panels = sum("live=True" in cell["source"] for cell in cells)
    assert page.locator(".live-panel table").count() >= panels
    assert page.get_by_text("Error displaying widget").count() == 0


ANSWERS = {
    "rank_of": "def rank_of(node, local, processes):\n    return sum(processes[:node], local)",
    "place_of": "def place_of(processes):\n    return 0, dist.get_rank()",
}
LESSON, LAB = "chapter_03_collective_primitives.ipynb", "lab_02_process_groups.ipynb"
LAB_TOO = "lab_02_process_groups_too.ipynb"
CUT = """() => [...document.querySelectorAll('.jp-DirListing-itemText')]
    .filter(name => name.scrollWidth > name.clientWidth).map(name => name.innerText)"""
WRITE = """([name, text]) => window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells
    .find(cell => cell.cell_type === 'code' && cell.source.startsWith(`def ${name}(`))
    .setSource(text)"""


def test_what_a_learner_wrote_and_saw_is_there_on_the_second_day_after_an_update(browser, tmp_path):
    """Day one: run a lesson and a lab, save. The course changes. Day two: all is there."""
    source = upstream.published(tmp_path / "upstream")
    course = upstream.cloned(source, tmp_path / "day" / "course")
    own = course / "my"
    make, environment = upstream.make(course, "-C", "course", "lab")

    with _serving(course, *make, **environment) as one:
        _rewrite(own / LESSON)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        _runs_to_its_end(page, one, f"my/{LESSON}")
        assert page.locator(".jupyter-widgets svg").count() >= 1
        assert page.locator(".widget-slider").count() >= 2
        _names_are_readable(page)
        _sliders_and_picture_fit_and_move(page)
        _until(page, SAVED, 60)
        assert page.get_by_text("Error displaying widget").count() == 0  # nor on the page now
        _end_kernel(page)
        _open_instead(page, f"my/{LAB}")
        for answer in ANSWERS.items():
            page.evaluate(WRITE, answer)
        _run(page, Path(LAB).stem)
        _until(page, SAVED, 60)
        _our_answer_is_unpacked_by_its_button(page)
        _end_kernel(page)
        page.close()
    _nothing_is_warned_of(course)
    _the_files_alone_have_all(own)

    lab = (own / LAB).read_bytes()
    upstream.improve_a_stub(source)
    upstream.git(course, "pull", "--quiet")
    with _serving(course, *make, **environment) as two:
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)
        _open(page, two, f"my/{LESSON}")
        _until(page, f"() => document.querySelectorAll({PICTURE!r}).length >= 2", 60)
        _shoot(page, f"{LESSON}-day-two")
        assert page.get_by_text("Error displaying widget").count() == 0
        assert "✓ done" in page.locator(".live-panel").inner_text()
        _end_kernel(page)
        _open_instead(page, f"my/{LAB}")
        _shoot(page, f"{LAB}-day-two")
        page.get_by_text("✓ passed: rank_of").first.wait_for()
        page.get_by_text("✗ wrong: place_of").first.wait_for()
        _end_kernel(page)
        page.close()
    log = (course.parent / "log").read_text()
    newer = "has a newer original: make fresh only="
    assert f"{LAB} {newer}{Path(LAB).stem}" in log
    assert f"{LESSON} {newer}" not in log
    _nothing_is_warned_of(course)
    _fresh_takes_the_answers_along(course, own, environment)
    assert (own / LAB).read_bytes() == lab
    assert upstream.git(course, "status", "--porcelain") == ""  # so `make check` is green as before


def _our_answer_is_unpacked_by_its_button(page) -> None:
    page.get_by_role("button", name="Our answer").last.click()
    code = page.locator("details.course-answer[open] code").last
    code.wait_for()
    assert "dist." in code.inner_text()


def _names_are_readable(page) -> None:
    """No name in the file browser is cut, and nothing pops up, in a large window and a small."""
    for width, height in ((1400, 900), (1000, 700)):
        page.set_viewport_size({"width": width, "height": height})
        page.locator(".jp-DirListing-itemText", has_text=LAB).wait_for()
        assert page.evaluate(CUT) == []
    assert page.locator(".Toastify__toast").count() == 0


def _sliders_and_picture_fit_and_move(page) -> None:
    """All of eight ranks is in view beside the sliders, which redraw it and keep the axis."""
    explored = page.locator(".jupyter-widgets.widget-vbox:has(svg)").first
    # Without the file browser the page is wide, and the picture as high as it gets.
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.wait_for_function("() => !document.querySelector('.jp-FileBrowser')?.offsetParent")
    room = page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').clientHeight")
    assert explored.bounding_box()["height"] < room
    ticks = explored.locator("text[text-anchor=middle]")
    axis = ticks.all_inner_texts()[:-1]  # the last says what the axis is
    explored.locator(".noUi-handle").first.press("ArrowRight")
    explored.get_by_text("before, at").wait_for()
    assert ticks.all_inner_texts()[:-1] == axis


def _nothing_is_warned_of(course: Path) -> None:
    """But for what a busy machine brings: a kernel that starts slowly is asked again, a list of
    the folder names the file .~NAME which the server is just about to rename to NAME, and a kernel
    still speaks when its page is closed.
    """
    lines = (course.parent / "log").read_text().splitlines()
    warned = [line for line in lines if re.search(r"\[[WEC] |WARNING|ERROR|Warning:", line)]
    brought = r"Nudge: |Timeout waiting for|/\.~\S+ doesn't exist|Got events for closed stream"
    assert [line for line in warned if not re.search(brought, line)] == []


def _the_files_alone_have_all(own: Path) -> None:
    """What GitHub and VS Code show needs neither kernel nor trust: no output is a widget only."""
    shown = {}
    for name in (LESSON, LAB):
        cells = nbformat.read(own / name, as_version=4).cells
        for cell in (cell for cell in cells if cell.cell_type == "code"):
            shown[cell.source] = {
                kind for output in cell.outputs for kind in output.get("data", {})
            }
    wanted = {"live=True": "text/html", "check(": "text/html"}
    wanted |= dict.fromkeys(("explore(", "plt.plot("), "image/png")
    for call, kind in wanted.items():
        assert kind in next(kinds for text, kinds in shown.items() if call in text), call
    assert WIDGET_VIEW not in set.union(*shown.values())


def _make(course: Path, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        ["make", *words], cwd=course, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _fresh_takes_the_answers_along(course: Path, own: Path, environment: dict[str, str]) -> None:
    _make(course, environment, "fresh", "only=lab_02")
    (new,) = own.glob(f"{Path(LAB).stem}_*.ipynb")
    texts = [cell.source for cell in nbformat.read(new, as_version=4).cells]
    assert set(ANSWERS.values()) <= set(texts)
    stub = next(text for text in texts if text.startswith(upstream.NEW_STUB))
    assert texts.index(stub) + 1 == texts.index(ANSWERS["place_of"])


ASKS, EXPERIMENT, RAISES, DRAWS, GOES_ON = range(1, 6)  # code cells of a lesson with one question
ASKING, ASKING_TOO = "chapter_03_asks.ipynb", "chapter_04_asks.ipynb"  # each keeps its own answers
MIDDLE = "chapter_05_middle.ipynb"  # in which one may begin in the middle
LESSON_TO_BEGIN_IN = [
    "## 1 · The sum",
    """
    import torch
    import torch.distributed as dist
    from course_utils import check
    def total(tensor):
        dist.all_reduce(tensor)
        return tensor""",
    "## 2 · Judged",
    """
    check(total, spec=lambda xs: [sum(xs)] * len(xs), inputs=lambda *_: torch.ones(2), cases=(1,),
          world_sizes=(1, 2))""",
    "print('drawn of', total.__name__)",
]
FAILS = "chapter_06_fails.ipynb"  # of cells that fail without those above
LESSON_THAT_FAILS = [
    "## 1 · Counts",
    """
    def count():
        return 3
    print("counting\\n" * 60)""",
    "nobody_needs = 1",
    "unguarded = count()",
    "guarded = unguarded + 1\nprint('guarded is', guarded)",
    "The end." + 60 * "\n\nOf the page.",
]
LESSON_THAT_ASKS = [
    "from course_utils import predict",
    'guilty = predict("the guilty rank is", ..., choices=(1, 2))',
    'print("rank 2 has not called")',
    """
    try:
        raise RuntimeError("rank 2 failed")
    except RuntimeError:
        guilty.measured(2)
        raise""",
    'print("drawn: rank 2")',
    'print("the lesson goes on")',
]
PICTURED = "chapter_07_pictured.ipynb"  # with a picture that is wider than a page
CODE_CELL = ".jp-Notebook .jp-CodeCell"
ACTIVE_CELL = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
RESTARTED = "() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()"
NOTE_NAME_ERRORS = """() => {
    const {model} = window.jupyterapp.shell.currentWidget.content;
    window.nameErrors = 0;
    model.contentChanged.connect(() => {
        const outputs = model.sharedModel.cells.flatMap(cell => cell.getOutputs?.() ?? []);
        window.nameErrors += outputs.filter(output => output.ename === 'NameError').length;
    });
}"""


@pytest.fixture(scope="module")
def own_copies(tmp_path_factory):
    """Serve a lesson with one question and a lab with its buttons; yield the server's address."""
    folder = tmp_path_factory.mktemp("own") / "my"
    folder.mkdir()
    kernel = {"name": "python3", "display_name": "Python 3"}  # else Lab asks which
    lesson = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for source in LESSON_THAT_ASKS:
        lesson.cells.append(nbformat.v4.new_code_cell(dedent(source).strip()))
    lesson.cells[RAISES].metadata["tags"] = ["raises-exception"]
    lesson.cells.insert(GOES_ON, nbformat.v4.new_markdown_cell("It was rank 2."))
    for name in (ASKING, ASKING_TOO):
        _write_signed(lesson, folder / name)
    middle = _notebook(LESSON_TO_BEGIN_IN, kernel)
    middle.cells.append(nbformat.v4.new_code_cell(f"long = {'-' * 200}1"))
    middle.cells[-1].metadata["jupyter"] = {"source_hidden": True}
    _write_signed(middle, folder / MIDDLE)
    _write_signed(_notebook(LESSON_THAT_FAILS, kernel), folder / FAILS)
    pictured = _notebook(["picture"], kernel)
    pictured.cells[0].outputs = [_wide_picture()]
    _write_signed(pictured, folder / PICTURED)
    lab = copies.copied(ROOT / "exercises" / "02_process_groups.ipynb", ROOT, folder)
    for cell in lab.cells:
        if cell.source.startswith("def rank_of("):
            cell.source = ANSWERS["rank_of"]
    for name in (LAB, LAB_TOO):
        _write_signed(lab, folder / name)
    copies.lay_out_map(ROOT, folder)
    with _serving(folder) as server:
        yield server


def _wide_picture() -> nbformat.NotebookNode:
    """The output of a cell: a white picture of 2,000 pixels in width."""
    png = io.BytesIO()
    Image.new("L", (2000, 300), "white").save(png, format="png")
    data = {"image/png": base64.b64encode(png.getvalue()).decode()}
    shown_at = {"image/png": {"width": 2000}}
    return nbformat.v4.new_output("display_data", data=data, metadata=shown_at)


def _notebook(sources: list[str], kernel: dict[str, str]) -> nbformat.NotebookNode:
    """What begins with a heading or a capital is text."""
    notebook = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
    for source in sources:
        is_text = re.match("#|[A-Z]", source)
        kind = nbformat.v4.new_markdown_cell if is_text else nbformat.v4.new_code_cell
        notebook.cells.append(kind(dedent(source).strip()))
    return notebook


@pytest.fixture
def own_page(browser, own_copies):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(PATIENCE_MS)
    yield page
    _end_kernel(page)
    page.close()


def test_what_answers_an_open_question_is_held_back_even_where_a_cell_raises(own_copies, own_page):
    page = own_page
    _run_all(page, own_copies, ASKING)
    shown = page.locator(f"{CODE_CELL} .jp-OutputArea")
    explained = page.locator(".jp-RenderedMarkdown").get_by_text("It was rank 2.")
    shown.nth(RAISES).get_by_role("button", name="just show me").wait_for()
    shown.nth(GOES_ON).get_by_text("the lesson goes on").wait_for()
    assert not shown.nth(EXPERIMENT).get_by_text("rank 2 has not called").is_visible()
    assert not shown.nth(RAISES).get_by_text("RuntimeError: rank 2 failed").is_visible()
    assert not shown.nth(DRAWS).get_by_text("drawn: rank 2").is_visible()
    assert not explained.is_visible()
    shown.nth(EXPERIMENT).click(position={"x": 100, "y": 10})
    shown.nth(EXPERIMENT).get_by_text("rank 2 has not called").wait_for()
    assert not shown.nth(RAISES).get_by_text("RuntimeError: rank 2 failed").is_visible()

    shown.nth(RAISES).get_by_role("button", name="1", exact=True).click()
    shown.nth(RAISES).get_by_text("the guilty rank is: 2; predicted 1: not so").wait_for()
    shown.nth(RAISES).get_by_text("RuntimeError: rank 2 failed").wait_for()
    shown.nth(ASKS).get_by_text("Noted: 1").wait_for()
    shown.nth(DRAWS).get_by_text("drawn: rank 2").wait_for()
    explained.wait_for()


def test_a_prediction_is_taken_up_again_after_a_restart(own_copies, own_page):
    page = own_page
    _run_all(page, own_copies, ASKING_TOO)
    shown = page.locator(f"{CODE_CELL} .jp-OutputArea")
    shown.nth(ASKS).get_by_role("button", name="1", exact=True).click()
    shown.nth(ASKS).get_by_text("Noted: 1").wait_for()
    _until(page, "() => document.activeElement !== document.body", 30)
    assert page.evaluate(ACTIVE_CELL) == EXPERIMENT
    page.keyboard.press("Shift+Enter")
    _until(page, f"{ACTIVE_CELL} === {EXPERIMENT + 1}", 30)  # it has run, and hands on
    page.evaluate(RESTARTED)
    _run(page, Path(ASKING_TOO).stem)
    shown.nth(ASKS).get_by_text("You predicted 1 today, and that still stands.").wait_for()
    shown.nth(ASKS).get_by_role("button", name="answer anew").wait_for()
    shown.nth(RAISES).get_by_text("the guilty rank is: 2; predicted 1: not so").wait_for()
    shown.nth(EXPERIMENT).get_by_text("rank 2 has not called").wait_for()
    shown.nth(ASKS).get_by_role("button", name="answer anew").click()
    _until(
        page, "() => document.activeElement.matches('.course-form button:not(.course-anew)')", 30
    )
    assert page.evaluate("() => document.activeElement.innerText") == "1"
    assert page.get_by_role("button", name="just show me").count() == 0


def test_check_in_a_new_kernel_runs_what_it_needs_first_and_shows_no_error(own_copies, own_page):
    page = own_page
    _open(page, own_copies, LAB)
    _until(page, READY, 120)
    page.evaluate(NOTE_NAME_ERRORS)
    page.get_by_role("button", name="▶ Check").nth(1).click()  # of rank_of
    page.get_by_text("What it needs runs first").first.wait_for()
    page.get_by_text("✓ passed: rank_of").first.wait_for()
    assert page.evaluate("() => window.nameErrors") == 0
    _until(page, "() => !window.jupyterapp.shell.currentWidget.context.model.dirty", 30)  # saved


RUN_ONE = """async index => {
    const {commands, shell} = window.jupyterapp;
    shell.currentWidget.content.activeCellIndex = index;
    await commands.execute('notebook:run-cell');
}"""
# As where a kernel still handles the error of a cell when the page asks what has run.
ABORT_THE_NEXT_QUESTION = """() => {
    const {kernel} = window.jupyterapp.shell.currentWidget.sessionContext.session;
    const ask = kernel.requestExecute.bind(kernel);
    kernel.requestExecute = (content, ...others) => {
        if (!content.silent) return ask(content, ...others);
        delete kernel.requestExecute;
        return {done: Promise.resolve({content: {status: 'aborted'}})};
    };
}"""
CHANGE = """index => {
    const cell = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells[index];
    cell.setSource(`${cell.source}\\n`);
}"""
LETTERS = """() => {
    const line = [...document.querySelectorAll('.jp-OutputArea-output pre')].at(-1);
    const ruler = line.appendChild(document.createElement('span'));
    ruler.textContent = 'x'.repeat(10);
    return 10 * line.clientWidth / ruler.getBoundingClientRect().width;
}"""
IS_AS_WIDE_AS_THE_PAGE = """() => {
    const page = document.querySelector('.jp-WindowedPanel-outer');
    return page.scrollWidth <= page.clientWidth;
}"""
COUNTS, GUARDS = 3, 4  # cells of LESSON_THAT_FAILS
# Where a cell stands in the window in each frame that is painted, until it runs.
NOTE_PLACES = """index => {
    const {node} = window.jupyterapp.shell.currentWidget.content.widgets[index];
    window.places = [];
    const note = () => {
        if (node.querySelector('.jp-InputPrompt').innerText.includes('*')) return;
        new IntersectionObserver(([{boundingClientRect}], observer) => {
            window.places.push(boundingClientRect.top);
            observer.disconnect();
        }).observe(node);
        requestAnimationFrame(note);
    };
    note();
}"""
IS_IN_VIEW = """() => {
    const {content} = window.jupyterapp.shell.currentWidget;
    const {top, bottom} = content.activeCell.node.getBoundingClientRect();
    const page = document.querySelector('.jp-WindowedPanel-outer').getBoundingClientRect();
    return page.top <= top && bottom <= page.bottom;
}"""
# How far to the right of a line its second row begins, and the line below it.
INDENTED = """() => {
    const output = [...document.querySelectorAll('.jp-OutputArea-output pre')].at(-1);
    output.innerHTML = `${'word '.repeat(60)}\\n<span>below</span>`;
    const range = document.createRange();
    range.selectNodeContents(output.firstChild);
    const [first, second] = [...range.getClientRects()].map(row => row.left);
    const below = output.querySelector('span').getBoundingClientRect().left;
    return [second - first, below - first];
}"""
SIGN = """() => {
    const output = document.querySelector('.course-outdated .jp-OutputArea');
    return getComputedStyle(output, '::before').content;
}"""
SCROLLED = "() => document.querySelector('.jp-WindowedPanel-outer').scrollTop"


def test_an_explanation_is_held_back_before_its_question_is_asked(own_copies, own_page):
    page = own_page
    _open(page, own_copies, ASKING)
    _until(page, READY, 120)
    page.evaluate(RUN_ONE, GOES_ON)  # as Run All Above does at once, before the kernel is there
    page.locator(".jp-RenderedMarkdown p").wait_for(state="hidden")
    page.locator(".jp-MarkdownCell.course-held").wait_for()


def test_who_begins_in_the_middle_is_told_what_is_missing_and_what_to_click(own_copies, own_page):
    page = own_page
    _open(page, own_copies, MIDDLE)
    _until(page, READY, 120)
    page.evaluate(RUN_ONE, 4)
    told = page.locator(".Toastify__toast")
    told.get_by_text("total comes from a cell further up").wait_for()
    assert "“1 · The sum”" in told.inner_text()
    assert "Run All Above Selected Cell" in told.inner_text()
    told.get_by_role("button", name="Run what it needs").click()
    page.get_by_text("drawn of total").first.wait_for()


def test_what_failed_is_run_again_by_who_needs_it_and_nothing_else_is_and_the_page_stays(
    own_copies, own_page
):
    page = own_page
    _open(page, own_copies, FAILS)
    _until(page, READY, 120)
    told = page.locator(".Toastify__toast")
    page.evaluate(ABORT_THE_NEXT_QUESTION)
    page.evaluate(RUN_ONE, COUNTS)
    told.get_by_text("count comes from a cell further up").wait_for()
    for _ in range(2):  # and the second time again
        page.evaluate(RUN_ONE, GUARDS)
        told.get_by_text("unguarded comes from a cell further up").last.wait_for()
    assert page.locator(".Toastify__progress-bar--animated").count() == 0  # no time is running out

    page.evaluate(NOTE_PLACES, GUARDS)
    missing = told.filter(has_text="unguarded")
    missing.get_by_role("button", name="Run what it needs").last.click()  # one may still fade
    page.get_by_text("guarded is 4", exact=True).wait_for()
    places = page.evaluate("() => window.places")
    assert len(places) > 1
    assert max(places) - min(places) < 2  # pixels
    _until(page, f"{ACTIVE_CELL} === {GUARDS}", 30)
    _until(page, IS_IN_VIEW, 30)
    counts = {cell["source"]: cell["count"] for cell in page.evaluate(CELLS)}
    assert counts["nobody_needs = 1"] is None
    _until(page, "() => !document.querySelector('.Toastify__toast')", 30)


def test_what_a_cell_needs_runs_to_its_end_whatever_tab_is_in_front(own_copies, own_page):
    page = own_page
    _open(page, own_copies, MIDDLE)
    _until(page, READY, 120)
    notebook = page.evaluate("() => window.jupyterapp.shell.currentWidget.id")
    page.evaluate(RUN_ONE, 4)
    page.get_by_role("button", name="Run what it needs").click()
    page.evaluate("() => window.jupyterapp.commands.execute('launcher:create')")
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.id") != notebook
    page.get_by_text("drawn of total").first.wait_for(state="attached")
    assert page.evaluate("() => window.jupyterapp.shell.currentWidget.id") != notebook
    page.evaluate("id => window.jupyterapp.shell.activateById(id)", notebook)
    page.get_by_text("drawn of total").first.wait_for()


def test_a_verdict_and_a_picture_are_of_the_answer_before_once_it_is_edited(own_copies, own_page):
    page = own_page
    _open(page, own_copies, MIDDLE)
    _until(page, READY, 120)
    _run(page, Path(MIDDLE).stem)
    assert page.evaluate(IS_AS_WIDE_AS_THE_PAGE)  # a folded cell with a long first line as well
    assert page.evaluate(LETTERS) >= 100  # of a row of a hang report, beside the list of files
    outdated = page.locator(".course-outdated")
    page.evaluate(RUN_ONE, 3)  # the same answer, judged again
    _until(page, IDLE, 60)
    assert outdated.count() == 0
    page.evaluate(CHANGE, 1)
    outdated.get_by_text("passed: total").wait_for()
    outdated.get_by_text("drawn of total").wait_for()
    page.evaluate(RUN_ONE, 1)
    page.evaluate(RUN_ONE, 3)
    outdated.get_by_text("passed: total").wait_for(state="detached")
    assert outdated.count() == 1
    assert page.evaluate(SIGN).startswith('"This is of your previous answer.')  # not to be unfolded
    page.evaluate(RUN_ONE, 4)
    _until(page, "() => !document.querySelector('.course-outdated')", 60)
    second_row, next_line = page.evaluate(INDENTED)
    assert second_row > 60  # pixels: below the words of a hang report's row
    assert next_line == 0


def test_a_check_that_passes_in_a_lesson_is_saved_at_once(own_copies, own_page):
    page = own_page
    _open(page, own_copies, MIDDLE)
    _until(page, READY, 120)
    page.evaluate(RUN_ONE, 1)
    page.evaluate(RUN_ONE, 3)
    _until(page, "() => !window.jupyterapp.shell.currentWidget.context.model.dirty", 30)
    saved = _api(*own_copies, f"contents/{MIDDLE}")["content"]
    (output,) = saved["cells"][3]["outputs"]
    assert output["data"]["text/plain"].startswith("✓ passed: total")


def test_what_is_old_is_told_by_the_order_of_runs_not_by_the_counts_of_two_kernels(
    own_copies, own_page
):
    page = own_page
    _open(page, own_copies, MIDDLE)
    _until(page, READY, 120)
    _run(page, Path(MIDDLE).stem)
    page.evaluate(RUN_ONE, 3)
    page.evaluate(RUN_ONE, 4)
    page.evaluate(RESTARTED)
    page.evaluate(RUN_ONE, 1)
    page.evaluate(RUN_ONE, 4)  # [2], below the [5] of the kernel before
    page.get_by_text("drawn of total").first.wait_for()
    outdated = page.locator(".course-outdated")
    assert outdated.count() == 0

    page.evaluate(RUN_ONE, 1)  # unchanged
    assert outdated.count() == 0
    page.evaluate(CHANGE, 1)
    page.evaluate(RUN_ONE, 1)
    outdated.get_by_text("drawn of total").wait_for()  # before its check has run
    page.evaluate(RUN_ONE, 3)
    page.evaluate(RUN_ONE, 4)
    _until(page, "() => !document.querySelector('.course-outdated')", 60)


def test_after_the_last_hint_our_answer_is_offered_and_can_be_closed(own_copies, own_page):
    page = own_page
    _open(page, own_copies, LAB)
    _until(page, READY, 120)
    hint = page.get_by_role("button", name="Hint", exact=True).nth(1)  # of rank_of
    for _ in range(3):
        hint.click()
    assert page.get_by_text("There are no more hints.").count() == 0
    hint.click()
    told = page.locator(".Toastify__toast", has_text="There are no more hints.")
    told.get_by_role("button", name="Our answer").click()
    answer = page.locator("details.course-answer[open]")
    answer.get_by_text("def rank_of").wait_for()
    page.get_by_role("button", name="Our answer").nth(1).click()
    answer.wait_for(state="hidden")


def test_a_picture_is_as_large_as_it_was_drawn_after_a_click(own_copies, own_page):
    _open(own_page, own_copies, PICTURED)
    picture = own_page.locator(PICTURE)
    assert picture.bounding_box()["width"] < 1500  # all of it is seen
    picture.click()
    assert picture.bounding_box()["width"] == 2000
    picture.click()
    assert picture.bounding_box()["width"] < 1500


def test_a_picture_is_dark_in_a_dark_theme(own_copies, own_page):
    _open(own_page, own_copies, PICTURED)
    own_page.locator(PICTURE).wait_for()
    looks = f"() => getComputedStyle(document.querySelector({PICTURE!r})).filter"
    assert own_page.evaluate(looks) == "none"
    in_the_dark = "{theme: 'JupyterLab Dark'}"
    own_page.evaluate(f"window.jupyterapp.commands.execute('apputils:change-theme', {in_the_dark})")
    try:
        _until(own_page, f"() => ({looks})().startsWith('invert(')", 60)
    finally:
        in_the_light = in_the_dark.replace("Dark", "Light")
        change = f"window.jupyterapp.commands.execute('apputils:change-theme', {in_the_light})"
        own_page.evaluate(change)
    _until(own_page, f"() => ({looks})() === 'none'", 60)


def test_progress_is_told_where_one_is_and_its_list_leads_to_the_exercises(own_copies, own_page):
    page = own_page
    _open(page, own_copies, LAB)
    _until(page, READY, 120)
    button = page.get_by_role("button", name="Progress").nth(1)
    button.scroll_into_view_if_needed()
    before = page.evaluate(SCROLLED)
    button.click()
    told = page.locator(".Toastify__toast", has_text="exercises pass")
    told.get_by_text("grid_sums").wait_for()  # the last: nothing is cut
    assert page.evaluate(SCROLLED) == before
    told.get_by_role("button", name="Go to the list").click()
    page.locator(".course-list td code", has_text="rank_of").click()
    active = "window.jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.source"
    assert page.evaluate(f"() => {active}").startswith("def rank_of(")


def test_progress_counts_what_passed_before_a_restart_until_the_answer_is_changed(
    own_copies, own_page
):
    page = own_page
    _open(page, own_copies, LAB_TOO)  # LAB's saved page may say "passed" before this check has run
    _until(page, READY, 120)
    page.get_by_role("button", name="▶ Check").nth(1).click()  # of rank_of
    page.get_by_text("✓ passed: rank_of").first.wait_for()
    page.evaluate(RESTARTED)
    _until(page, READY, 120)
    told = page.locator(".Toastify__toast", has_text="exercises pass")
    page.get_by_role("button", name="Progress").nth(1).click()
    told.get_by_text("✓ rank_of").wait_for()

    told.get_by_role("button", name="All labs").click()
    course_map = page.locator(".jp-MarkdownViewer")
    row = course_map.get_by_role("row").filter(has=page.get_by_role("link", name="lab_02"))
    row.get_by_text("1 / 5").wait_for()
    page.locator(".lm-TabBar-tab", has_text=LAB_TOO).click()

    page.evaluate(WRITE, ["rank_of", ANSWERS["rank_of"] + "  # changed"])
    page.get_by_role("button", name="Progress").nth(1).click()
    told.get_by_text("– rank_of").wait_for()
    page.evaluate(WRITE, ["rank_of", ANSWERS["rank_of"]])


@pytest.mark.soak
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_lesson_runs_to_its_end_in_jupyterlab(page, lab, notebook):
    _runs_to_its_end(page, lab, notebook)


@pytest.mark.parametrize(
    "notebooks", [KINDS, pytest.param(NOTEBOOKS, marks=pytest.mark.soak)], ids=["kinds", "all"]
)
def test_a_lesson_shows_what_was_saved_in_it(page, lab, subtests, notebooks):
    _open(page, lab, NOTEBOOKS[0])
    for notebook in notebooks:
        _open_instead(page, notebook)
        with subtests.test(notebook):
            _shows_what_was_saved(page, ROOT / "notebooks" / notebook)


def _shows_what_was_saved(page, lesson: Path) -> None:
    cells = nbformat.read(lesson, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    headings = sum(cell.source[0] == "#" for cell in cells if cell.cell_type == "markdown")
    for selector, least in ((PICTURE, pictures), (HEADING, headings)):
        _until(page, f"() => document.querySelectorAll({selector!r}).length >= {least}", 120)
    assert page.locator(PICTURE).count() == pictures
    assert page.get_by_text("Error displaying widget").count() == 0
