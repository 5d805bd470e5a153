"""What moves on the site: Pyodide, a wheel of the modules it runs, recordings, and their frames."""

import ast
import html
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from course_tools import ROOT
from course_tools.i18n.site_languages import labelled
from course_tools.notebooks.course_map import Say
from course_tools.site import npm
from course_tools.texts import read_toml

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
    source = path.read_text(encoding="utf-8")
    paths = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if not node.module.startswith("course_utils."):
            continue
        paths.append(_file_of(node.module))
        for imported in node.names:
            path_if_module = _file_of(f"{node.module}.{imported.name}")
            paths.append(path_if_module)
    return paths


def _file_of(module: str) -> Path:
    """Where a module's file is, if it is no package."""
    place = module.replace(".", "/")
    return ROOT / f"{place}.py"


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
    texts[record] = ""
    names = list(texts)
    texts[record] = "".join(f"{name},,\n" for name in names)
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(texts.items()):
            without_date = zipfile.ZipInfo(name)
            archive.writestr(without_date, text, zipfile.ZIP_DEFLATED)
    return to


def recordings() -> dict[str, str]:
    """Returns what `record` has written, by place."""
    texts = {}
    paths = (SITE / "recordings").glob("*.json")
    for path in sorted(paths):
        texts[path.stem] = path.read_text(encoding="utf-8")
    return texts


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


def _links(world_size: int, say: Say) -> Iterator[tuple[str, str]]:
    """What may be the slow link: none, or one between two ranks; each with its value."""
    yield say("none"), ""
    for rank in range(world_size):
        for other in range(world_size):
            if rank != other:
                name = say("{0} to {1}").format(rank, other)
                yield name, f"{rank},{other}"


def _slow_ranks(world_size: int, say: Say) -> Iterator[tuple[str, str]]:
    """Who may be slow: none, or a rank; each with its value."""
    yield say("none"), ""
    for rank in range(world_size):
        yield str(rank), str(rank)


def block(name: str, place: Place, say: Say = str) -> str:
    """Returns a place's frame: what is compared, sliders, the picture before they move."""
    recording = json.loads(place.recording)
    cases = recording["cases"]
    drawn = place.drawn
    compared = drawn["took"]
    runs_of_first_case = next(iter(recording["runs"].values()))
    first_run = next(iter(runs_of_first_case.values()))
    world_size = len(first_run["ranks"])
    choices = ""
    for choice in compared:
        choices += _choice(name, drawn, choice, say)
    fields = {
        "place": name,
        "title": html.escape(say(place.entry["title"])),
        "text": html.escape(say(place.entry["text"])),
        "cases": _options((case, case) for case in cases),
        "case_is": "" if len(cases) > 1 else "hidden",
        "choices": choices,
        "single": "single" if len(compared) == 1 else "",
        "links": _options(_links(world_size, say)),
        "ranks": _options(_slow_ranks(world_size, say)),
        "slow": say("slow rank") if drawn["unit_us"] is None else say("late rank"),
        "unit_us": drawn["unit_us"] or "",
    }
    text = (SITE / "live.html").read_text(encoding="utf-8")
    frame = Template(labelled(text, say))
    return frame.substitute(drawn | fields)


def _choice(place: str, drawn: dict[str, Any], choice: str, say: Say) -> str:
    """One of those that are compared, with its bar; the first is drawn, the fastest stands out."""
    compared = drawn["took"]
    times_us = [duration_us for duration_us, _ in compared.values()]
    duration_us, duration = compared[choice]
    width = 100 * duration_us / max(times_us)
    label = "label"
    if duration_us == min(times_us):
        label = "label class=wins"
    first_choice = next(iter(compared))
    checked = " checked" if choice == first_choice else ""
    value = html.escape(choice)
    name = html.escape(say(choice)) or say("all are done at")
    percent = drawn["percent"].get(choice, "")
    return (
        f'<{label}><input type="radio" name="{place}" value="{value}"{checked}>'
        f'<span>{name}</span><span class="bar"><i style="width:{width:.0f}%"></i></span>'
        f"<output>{duration} {percent}</output></label>"
    )


def _options(values: Iterable[tuple[str, str]]) -> str:
    """Choices of a list in HTML, of their names and values."""
    options = ""
    for name, value in values:
        options += f'<option value="{value}">{name}</option>'
    return options


def places() -> dict[str, dict[str, str]]:
    """Returns what places.toml says, by the place's name."""
    return read_toml(SITE / "places.toml")
