"""The site, built once, and a browser that may ask nobody but this machine."""

import functools
import importlib.util
import io
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from course_tools.child_process import in_child_process
from course_tools.site import website

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def _skip(reason: str) -> None:
    if os.environ.get("COURSE_SKIPS_NOTHING"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; warnings of Sphinx are errors. A fork builds it, which imports less."""
    if not importlib.util.find_spec("sphinx"):
        _skip("no Sphinx here: make site installs it")
    to = tmp_path_factory.mktemp("site")

    def build() -> tuple[int, str]:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
            return website.main(["--to", str(to)]), out.getvalue()

    assert in_child_process(build, timeout=380) == (0, "")
    return to / "html"


@pytest.fixture(scope="session")
def pyodide(site: Path) -> None:
    """Skips where npm is missing, so that the pictures stay still."""
    if not (site / "live/pyodide").exists():
        _skip("no Pyodide here: npm fetches it")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    from playwright.sync_api import sync_playwright

    if not BROWSER:
        _skip("no Chromium here (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(chromium, address: str) -> Iterator:
    """An empty page; it fails a test that asked another host, or had an error in its console."""
    context, wrong = chromium.new_context(base_url=address), []
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)

    def only_here(route) -> None:
        if route.request.url.startswith(address):
            return route.continue_()
        wrong.append(f"asks {route.request.url}")
        return route.abort()

    context.route("**", only_here)
    yield page
    context.close()
    assert wrong == []
