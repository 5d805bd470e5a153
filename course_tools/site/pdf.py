"""Prints the whole course into one PDF: Sphinx makes one page of it, Chromium prints that.

`website --pdf` calls this. What is folded, and the addresses of links, stand at the end.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from course_tools.site.live_parts import site_text

FOOTER = """<div style="font-size:8px;width:100%;text-align:center">
<span class="pageNumber"></span> / <span class="totalPages"></span></div>"""


def one_page(built: Path) -> Path:
    """Makes one page of what `website` has prepared."""
    to = built / "one"
    cache = built / "cache-of-one"
    pages = built / "pages"
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "singlehtml"]
    command += ["-d", cache, pages, to]
    subprocess.run(command, check=True)
    return to / "index.html"


def print_page(page: Path, to: Path) -> dict[str, Any]:
    """Prints a page; returns how much was folded, how many links, and pictures that are lost."""
    from playwright.sync_api import sync_playwright

    browser_at = shutil.which("chromium") or shutil.which("google-chrome")
    script = site_text("print.js")
    sides = ("top", "bottom", "left", "right")
    margin = dict.fromkeys(sides, "15mm")
    address = page.as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_at, args=["--no-sandbox"])
        shown = browser.new_page(color_scheme="light")
        shown.set_default_timeout(300_000)
        shown.goto(address)
        contents = shown.evaluate(script)
        shown.pdf(
            path=to,
            format="A4",
            scale=0.8,
            print_background=True,
            margin=margin,
            display_header_footer=True,
            header_template="<i></i>",
            footer_template=FOOTER,
        )
        browser.close()
    return contents


def printed(built: Path) -> Path:
    """Prints the site that is in `built`; returns the PDF, and tells what is in it."""
    to = built / "html/ddp-course.pdf"
    page = one_page(built)
    contents = print_page(page, to)
    lost = contents["lost"]
    assert not lost, lost
    status = to.stat()
    megabytes = status.st_size / 1e6
    folded = contents["folded"]
    links = contents["links"]
    print(f"{to}: {megabytes:.1f} MB, {folded} folded parts and {links} links at its end")
    return to
