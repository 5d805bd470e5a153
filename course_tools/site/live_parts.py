"""What moves on the site: Pyodide, a wheel of the modules it runs, recordings, and their frames."""

import ast
import html
import itertools
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
# What live.py imports; the wheel has all that these import, too.
LIVE = ("course_utils.network.trace", "course_utils.pictures.timeline")
WHEEL = "course_live-1-py3-none-any.whl"
INFO = "course_live-1.dist-info"  # a folder in it
RECORD = f"{INFO}/RECORD"  # the list of its files
CHOICE_AS_HTML = (
    '<{label}><input type="radio" name="{place}" value="{value}"{checked}>'
    '<span>{name}</span><span class="bar"><i style="width:{width:.0f}%"></i></span>'
    "<output>{duration} {percent}</output></label>"
)
OPTION_AS_HTML = '<option value="{value}">{name}</option>'
Entry = dict[str, str]  # a place as places.toml has it
Places = dict[str, Entry]  # by name
Json = dict[str, Any]
Option = tuple[str, str]  # of a list: its name and its value


def site_text(name: str) -> str:
    """Returns the text of a file in source/site."""
    path = SITE / name
    return path.read_text(encoding="utf-8")


def frame(name: str, say: Say) -> Template:
    """Returns a frame of source/site, with its words in a language, for others to fill in."""
    text = site_text(name)
    in_language = labelled(text, say)
    return Template(in_language)


def pyodide(parts: Path) -> Path | None:
    """Returns the folder with Pyodide's files, after fetching them if need be; None without npm."""
    package = f"pyodide@{PYODIDE}"
    folder = npm.fetched(parts, package, INTEGRITY, NEEDED)
    if not folder:
        print("the pictures will not move", file=sys.stderr)
    return folder


def modules() -> list[Path]:
    """Returns the files of course_utils that live.py needs, as following imports shows."""
    needed: set[Path] = set()
    left = list(map(_file_of, LIVE))
    while left:
        path = left.pop()
        if path not in needed and path.exists():
            needed.add(path)
            left += _imported_by(path)
    return sorted(needed)


def _imported_by(path: Path) -> list[Path]:
    """The files of course_utils that a file may import; not every name is that of a module."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    paths = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if not module.startswith("course_utils."):
            continue
        names = [module]
        for imported in node.names:
            name_if_module = f"{module}.{imported.name}"
            names.append(name_if_module)
        paths += map(_file_of, names)
    return paths


def _file_of(module: str) -> Path:
    """Where a module's file is, if it is no package."""
    place = module.replace(".", "/")
    return ROOT / f"{place}.py"


def wheel(to: Path) -> Path:
    """Packs live.py and what it needs; packages are empty, so that nothing imports torch."""
    texts = _files_of_wheel()
    record = ""
    for name in (*texts, RECORD):
        record += f"{name},,\n"
    texts[RECORD] = record
    names_and_texts = sorted(texts.items())
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in names_and_texts:
            without_date = zipfile.ZipInfo(name)
            archive.writestr(without_date, text, zipfile.ZIP_DEFLATED)
    return to


def _files_of_wheel() -> dict[str, str]:
    """The texts that the wheel packs, but the list of their names."""
    texts = {
        f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: course-live\nVersion: 1\n",
        f"{INFO}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "live.py": site_text("live.py"),
    }
    for path in modules():
        place = path.relative_to(ROOT)
        name = str(place)
        texts[name] = path.read_text(encoding="utf-8")
        for package in place.parents[:-1]:  # the last is the folder of the course
            texts[f"{package}/__init__.py"] = ""
    return texts


def recordings() -> dict[str, str]:
    """Returns what `record` has written, by place."""
    texts = {}
    folder = SITE / "recordings"
    paths = folder.glob("*.json")
    for path in sorted(paths):
        place = path.stem
        texts[place] = path.read_text(encoding="utf-8")
    return texts


def redrawn(packed: Path, asked: Sequence[tuple[str, Json]]) -> list[str]:
    """Redraws places with settings, by the wheel in a CPython of its own; returns JSON of each."""
    wanted = []
    for place, settings in asked:
        settings_json = json.dumps(settings)
        wanted.append((place, settings_json))
    request = {"recordings": recordings(), "asked": wanted}
    request_json = json.dumps(request)
    environment = os.environ | {"PYTHONPATH": str(packed)}
    command = [sys.executable, "-P", "-m", "live"]
    run = subprocess.run(
        command,
        input=request_json,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(run.stdout)


class Place(NamedTuple):
    """Where sliders stand below a cell."""

    entry: Entry
    drawn: Json  # its picture, and what it says, before a slider moves
    recording: str  # as JSON


def _links(world_size: int, say: Say) -> Iterator[Option]:
    """What may be the slow link: none, or one between two ranks; each with its value."""
    yield say("none"), ""
    form = say("{0} to {1}")
    for rank, other in itertools.permutations(range(world_size), 2):
        name = form.format(rank, other)
        value = f"{rank},{other}"
        yield name, value


def _slow_ranks(world_size: int, say: Say) -> Iterator[Option]:
    """Who may be slow: none, or a rank; each with its value."""
    yield say("none"), ""
    for rank in range(world_size):
        number = str(rank)
        yield number, number


def block(name: str, place: Place, say: Say = str) -> str:
    """Returns a place's frame: what is compared, sliders, the picture before they move."""
    drawn = place.drawn
    compared = drawn["took"]
    single = ""
    if len(compared) == 1:
        single = "single"
    entry = place.entry
    title = say(entry["title"])
    text = say(entry["text"])
    fields = {
        "place": name,
        "title": html.escape(title),
        "text": html.escape(text),
        "choices": _choices(name, drawn, say),
        "single": single,
        "unit_us": drawn["unit_us"] or "",
    }
    fields |= _lists(place, say)
    empty = frame("live.html", say)
    return empty.substitute(drawn | fields)


def _lists(place: Place, say: Say) -> dict[str, str]:
    """The lists of a frame: cases, links that may be slow, ranks that may be slow or late."""
    recording = json.loads(place.recording)
    cases = recording["cases"]
    case_is = ""
    if len(cases) == 1:
        case_is = "hidden"
    slow = say("slow rank")
    if place.drawn["unit_us"] is not None:
        slow = say("late rank")
    runs_of_first_case, *_ = recording["runs"].values()
    first_run, *_ = runs_of_first_case.values()
    world_size = len(first_run["ranks"])
    links = _links(world_size, say)
    slow_ranks = _slow_ranks(world_size, say)
    return {
        "cases": _options(zip(cases, cases, strict=True)),
        "case_is": case_is,
        "links": _options(links),
        "ranks": _options(slow_ranks),
        "slow": slow,
    }


def _choices(place: str, drawn: Json, say: Say) -> str:
    """Those that are compared, each with its bar; the first is drawn, the fastest stands out."""
    compared = drawn["took"]
    percents = drawn["percent"]
    times_us = [duration_us for duration_us, _ in compared.values()]
    longest_us = max(times_us)
    shortest_us = min(times_us)
    choices = ""
    checked = " checked"
    for choice, (duration_us, duration) in compared.items():
        label = "label"
        if duration_us == shortest_us:
            label = "label class=wins"
        name = say(choice)
        shown_name = html.escape(name)
        if not shown_name:
            shown_name = say("all are done at")
        width = 100 * duration_us / longest_us
        percent = percents.get(choice, "")
        choices += CHOICE_AS_HTML.format(
            label=label,
            place=place,
            value=html.escape(choice),
            checked=checked,
            name=shown_name,
            width=width,
            duration=duration,
            percent=percent,
        )
        checked = ""
    return choices


def _options(values: Iterable[Option]) -> str:
    """Choices of a list in HTML, of their names and values."""
    options = ""
    for name, value in values:
        options += OPTION_AS_HTML.format(name=name, value=value)
    return options


def places() -> Places:
    """Returns what places.toml says."""
    return read_toml(SITE / "places.toml")
