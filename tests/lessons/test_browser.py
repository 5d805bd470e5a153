"""The lessons in real JupyterLab, in headless Chromium.

`make look to=FOLDER only=05` runs a lesson there and takes pictures of what a learner sees.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import nbformat
import pytest

import my

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = [path.name for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
# All that is nothing outside a browser. The rest of a lesson is strict nbval's; `make look` runs
# whole lessons here.
CELLS_WITH_WIDGETS = (
    """
    import matplotlib.pyplot as plt
    import torch
    import torch.distributed as dist
    from course_utils import Network, animate, explore, launch

    network = Network(latency_us=10, gbit_s=8)

    def steps():
        for _ in range(5):
            dist.all_reduce(torch.ones(1000))""",
    "results = launch(steps, live=True, trace=True)",
    "explore(results.trace, network)",
    "animate(results.trace, network)",
    "plt.plot([1, 2]);",
    "launch(steps, world_size=-1)",
)
pytestmark = [pytest.mark.browser, pytest.mark.slow]
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
RUN_ALL_S = 300
PICTURE = ".jp-RenderedImage img"
HEADING = ".jp-RenderedMarkdown :is(h1, h2, h3)"
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
READY = """async () => {
    const widget = window.jupyterapp.shell.currentWidget;
    await widget.sessionContext.ready;
    await widget.sessionContext.session.kernel.info;
    return widget.sessionContext.session.kernel.status === 'idle';
}"""
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
    assert BROWSER or not os.environ.get("COURSE_REQUIRE_BROWSER"), "install Chromium"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """Serve a copy of the notebooks with a JupyterLab of its own; yield its address."""
    folder = tmp_path_factory.mktemp("lab") / "notebooks"
    shutil.copytree(ROOT / "notebooks", folder)
    with _serving(folder) as server:
        yield server


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[tuple[str, str]]:
    """JupyterLab on a folder, as `make lab` starts it; yields its address and its token."""
    if not BROWSER:
        pytest.skip("no Chromium here (Debian: apt install chromium)")
    settings = folder.parent / "settings"
    file = settings / "@jupyterlab" / "notebook-extension" / "tracker.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"windowingMode": "none"}')  # all cells on the page, seen or not
    token = secrets.token_hex()
    command = my.lab_command(ROOT, folder)
    command += ["--no-browser", "--expose-app-in-browser", "--allow-root", "--port=0"]
    command += [f"--IdentityProvider.token={token}", f"--LabApp.user_settings_dir={settings}"]
    command += ["--LabApp.workspaces_dir=."]
    log = folder.parent / "log"
    with log.open("w") as out:
        server = subprocess.Popen(command, stdout=out, stderr=out, cwd=folder.parent)
    try:
        yield _address(log, server), token
    finally:
        with contextlib.suppress(OSError, AssertionError):
            _end_kernels(_address(log, server), token)
        server.kill()  # asked to end, it sometimes took more than a minute
        server.wait()


def _write_widgets(path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(dedent(source).strip()) for source in CELLS_WITH_WIDGETS]
    cells[-1].metadata["tags"] = ["raises-exception"]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}  # else Lab asks
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), path)


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
    yield page
    page.close()
    _end_kernels(*lab)


def _end_kernels(address: str, token: str) -> None:
    for kernel in _api(address, token, "kernels"):
        _api(address, token, f"kernels/{kernel['id']}", "DELETE")


def _api(address: str, token: str, path: str, method: str = "GET") -> list:
    headers = {"Authorization": f"token {token}"}
    request = urllib.request.Request(f"{address}api/{path}", headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as reply:
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
    _until(page, READY, 120)
    _until(page, CLEARED, 120)
    _until(page, STARTED, 120)
    _shoot(page, f"{name}-running", after_s=9)
    end = time.monotonic() + RUN_ALL_S
    while not _is_over(page.evaluate(CELLS)):
        if time.monotonic() > end:
            raise TimeoutError("Run All did not come to its end")
        time.sleep(0.5)
    _until(page, IDLE, 120)
    _shoot(page, name)
    return page.evaluate(CELLS)


def _is_over(cells: list[dict]) -> bool:
    """Whether every cell was run, or one failed that should not, where JupyterLab stops."""
    failed = any(cell["error"] and "raises-exception" not in cell["tags"] for cell in cells)
    return failed or all(cell["count"] for cell in cells)


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


def test_widgets_work_and_what_they_showed_is_there_tomorrow(browser, tmp_path):
    """Run, save, end the kernel and the server; then open anew, with no kernel that knows of it."""
    folder, name = tmp_path / "my", "widgets.ipynb"
    folder.mkdir()
    _write_widgets(folder / name)
    with _serving(folder) as today:
        page = browser.new_page()
        _runs_to_its_end(page, today, name)
        assert page.locator(".jupyter-widgets svg").count() >= 2
        assert page.locator(".widget-slider").count() >= 2
        _until(page, SAVED, 60)
        assert page.get_by_text("Error displaying widget").count() == 0  # nor on the page now
        page.close()
    with _serving(folder) as tomorrow:
        page = browser.new_page()
        _open(page, tomorrow, name)
        _until(page, f"() => document.querySelectorAll({PICTURE!r}).length >= 3", 60)
        _shoot(page, name)
        assert page.get_by_text("Error displaying widget").count() == 0
        assert "✓ done" in page.locator(".live-panel").inner_text()
        page.close()


@pytest.mark.soak
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_lesson_runs_to_its_end_in_jupyterlab(page, lab, notebook):
    _runs_to_its_end(page, lab, notebook)


@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_a_lesson_shows_what_was_saved_in_it(page, lab, notebook):
    cells = json.loads((ROOT / "notebooks" / notebook).read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = sum("image/png" in output.get("data", {}) for output in outputs)
    _open(page, lab, notebook)
    headings = sum(cell["source"][0][0] == "#" for cell in cells if cell["cell_type"] == "markdown")
    for selector, least in ((PICTURE, pictures), (HEADING, headings)):
        _until(page, f"() => document.querySelectorAll({selector!r}).length >= {least}", 120)
    assert page.locator(PICTURE).count() == pictures
    assert page.get_by_text("Error displaying widget").count() == 0
