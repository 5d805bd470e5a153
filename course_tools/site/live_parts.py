"""What moves on the site: Pyodide, a wheel of the modules it runs, recordings, and their frames."""

import ast
import html
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from course_tools import ROOT
from course_tools.i18n.site_languages import labelled
from course_tools.notebooks.course_map import Say
from course_tools.site import npm

SITE = ROOT / "source/site"
PYODIDE = "314.0.7"
INTEGRITY = (  # sha512, as npm publishes it
    "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
)
NEEDED = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
LIVE = ("network.trace", "pictures.timeline")  # what live.py imports, and all that these import
WHEEL = "course_live-1-py3-none-any.whl"


def pyodide(parts: Path) -> Path | None:
    """Returns the folder with Pyodide's files, after fetching them if need be; None without npm."""
    folder = npm.fetched(parts, f"pyodide@{PYODIDE}", INTEGRITY, NEEDED)
    if not folder:
        print("the pictures will not move", file=sys.stderr)
    return folder


def modules() -> list[Path]:
    """Returns the files of course_utils that live.py needs, as following imports shows."""
    needed: set[Path] = set()
    left = [_file_of(f"course_utils.{name}") for name in LIVE]
    while left:
        path = left.pop()
        if path not in needed and path.exists():
            needed.add(path)
            left += _imported_by(path)
    return sorted(needed)


def _imported_by(path: Path) -> list[Path]:
    """The files of course_utils that a file may import; not every name is that of a module."""
    paths = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.startswith("course_utils."):
            paths.append(_file_of(node.module))
            paths += [_file_of(f"{node.module}.{name.name}") for name in node.names]
    return paths


def _file_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def wheel(to: Path) -> Path:
    """Packs live.py and what it needs; packages are empty, so that nothing imports torch."""
    info = "course_live-1.dist-info"
    texts = {
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: course-live\nVersion: 1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "live.py": (SITE / "live.py").read_text(encoding="utf-8"),
    }
    for path in modules():
        place = path.relative_to(ROOT)
        texts[str(place)] = path.read_text(encoding="utf-8")
        for package in place.parents[:-1]:  # the last is the folder of the course
            texts[f"{package}/__init__.py"] = ""
    record = f"{info}/RECORD"
    texts[record] = "".join(f"{name},,\n" for name in [*texts, record])
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return to


def recordings() -> dict[str, str]:
    """Returns what `record` has written, by place."""
    paths = sorted((SITE / "recordings").glob("*.json"))
    return {path.stem: path.read_text(encoding="utf-8") for path in paths}


def redrawn(packed: Path, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Redraws places with settings, by the wheel in a CPython of its own; returns JSON of each."""
    wanted = [(place, json.dumps(settings)) for place, settings in asked]
    request = json.dumps({"recordings": recordings(), "asked": wanted})
    run = subprocess.run(
        [sys.executable, "-P", "-m", "live"],
        input=request,
        env=os.environ | {"PYTHONPATH": str(packed)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


class Place(NamedTuple):
    """Where sliders stand below a cell."""

    entry: dict[str, str]  # as places.toml has it
    drawn: dict[str, Any]  # its picture, and what it says, before a slider moves
    recording: str  # as JSON


def block(name: str, place: Place, say: Say = str) -> str:
    """Returns a place's frame: what is compared, sliders, the picture before they move."""
    recording = json.loads(place.recording)
    drawn = place.drawn
    runs_of_first_case = next(iter(recording["runs"].values()))
    first_run = next(iter(runs_of_first_case.values()))
    ranks = range(len(first_run["ranks"]))
    none = (say("none"), "")
    links, slow_ranks = [none], [none]
    for rank in ranks:
        slow_ranks.append((str(rank), str(rank)))
        for other in ranks:
            if rank != other:
                links.append((say("{0} to {1}").format(rank, other), f"{rank},{other}"))
    choices = ""
    for choice in drawn["took"]:
        choices += _choice(name, drawn, choice, say)
    fields = {
        "place": name,
        "title": html.escape(say(place.entry["title"])),
        "text": html.escape(say(place.entry["text"])),
        "cases": _options((case, case) for case in recording["cases"]),
        "case_is": "" if len(recording["cases"]) > 1 else "hidden",
        "choices": choices,
        "single": "single" if len(drawn["took"]) == 1 else "",
        "links": _options(links),
        "ranks": _options(slow_ranks),
        "slow": say("slow rank") if drawn["unit_us"] is None else say("late rank"),
        "unit_us": drawn["unit_us"] or "",
    }
    frame = labelled((SITE / "live.html").read_text(encoding="utf-8"), say)
    return Template(frame).substitute(drawn | fields)


def _choice(place: str, drawn: dict[str, Any], choice: str, say: Say) -> str:
    """One of those that are compared, with its bar; the first is drawn, the fastest stands out."""
    compared = drawn["took"]
    times_us = [duration_us for duration_us, _ in compared.values()]
    duration_us, duration = compared[choice]
    width = 100 * duration_us / max(times_us)
    label = "label class=wins" if duration_us == min(times_us) else "label"
    is_first = choice == next(iter(compared))
    checked = " checked" if is_first else ""
    name = html.escape(say(choice)) or say("all are done at")
    percent = drawn["percent"].get(choice, "")
    return (
        f'<{label}><input type="radio" name="{place}" value="{html.escape(choice)}"{checked}>'
        f'<span>{name}</span><span class="bar"><i style="width:{width:.0f}%"></i></span>'
        f"<output>{duration} {percent}</output></label>"
    )


def _options(values: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<option value="{value}">{name}</option>' for name, value in values)


def places() -> dict[str, dict[str, str]]:
    """Returns what places.toml says, by the place's name."""
    return tomllib.loads((SITE / "places.toml").read_text(encoding="utf-8"))
