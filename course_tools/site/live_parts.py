"""What moves on the site: Pyodide, a wheel of the modules it runs, recordings, and their frames."""

import ast
import html
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any

from course_tools import ROOT
from course_tools.i18n.site_languages import labelled
from course_tools.site import npm

SITE = ROOT / "source/site"
PYODIDE = "314.0.7"
INTEGRITY = (  # sha512, as npm publishes it
    "0YvXxEhfEdpLfb/XkM2BFAeMROq0iMUX2bzzH9pOttyMcWkwq+HbE5uyuGD82LN7y2q+SNvi/6V5JEsOlD2R1A=="
)
NEEDED = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
NEEDED += ("pyodide-lock.json",)
LIVE = ("network.trace", "pictures.timeline")  # what live.py imports, and all that these import
WHEEL = "course_live-1-py3-none-any.whl"


def pyodide(parts: Path) -> Path | None:
    """Returns the folder with Pyodide's files, after fetching them if need be; None without npm."""
    found = npm.fetched(parts, f"pyodide@{PYODIDE}", INTEGRITY, NEEDED)
    if not found:
        print("the pictures will not move", file=sys.stderr)
    return found


def modules() -> list[Path]:
    """Returns the files of course_utils that live.py needs, found by following imports."""
    found: list[Path] = []
    left = [ROOT / f"course_utils/{name.replace('.', '/')}.py" for name in LIVE]
    while left:
        path = left.pop()
        if path in found or not path.exists():
            continue
        found.append(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_utils."):
                names = [node.module, *(f"{node.module}.{name.name}" for name in node.names)]
                left += [ROOT / f"{name.replace('.', '/')}.py" for name in names]
    return sorted(found)


def wheel(to: Path) -> Path:
    """Packs live.py and what it needs; packages are empty, so that nothing imports torch."""
    info = "course_live-1.dist-info"
    texts = {f"{info}/METADATA": "Metadata-Version: 2.1\nName: course-live\nVersion: 1\n"}
    texts[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts["live.py"] = (SITE / "live.py").read_text(encoding="utf-8")
    for path in modules():
        own = path.relative_to(ROOT)
        texts[str(own)] = path.read_text(encoding="utf-8")
        texts |= {f"{folder}/__init__.py": "" for folder in own.parents if folder != Path(".")}
    texts[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*texts, f"{info}/RECORD"])
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return to


def recordings() -> dict[str, str]:
    """Returns what `record` has written, by place."""
    found = sorted((SITE / "recordings").glob("*.json"))
    return {path.stem: path.read_text(encoding="utf-8") for path in found}


def redrawn(packed: Path, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[str]:
    """Redraws places with settings, by the wheel in a CPython of its own; returns JSON of each."""
    told = [(place, json.dumps(settings)) for place, settings in asked]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "live"],
        input=json.dumps({"recordings": recordings(), "asked": told}),
        env=os.environ | {"PYTHONPATH": str(packed)},
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


def block(
    place: str,
    told: dict[str, str],
    drawn: dict[str, Any],
    text: str,
    say: Callable[[str], str] = str,
) -> str:
    """Returns a place's frame: what is compared, sliders, the picture before they move."""
    recording = json.loads(text)
    size = len(next(iter(next(iter(recording["runs"].values())).values()))["ranks"])
    none, to = (say("none"), ""), say("{0} to {1}")
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    facts = {
        "place": place,
        "title": _safe(say(told["title"])),
        "text": _safe(say(told["text"])),
        "cases": _options((case, case) for case in recording["cases"]),
        "case_is": "" if len(recording["cases"]) > 1 else "hidden",
        "choices": "".join(_choice(place, drawn, one, say) for one in drawn["took"]),
        "single": "single" * (len(drawn["took"]) == 1),
        "links": _options([none, *((to.format(a, b), f"{a},{b}") for a, b in pairs)]),
        "ranks": _options([none, *((str(rank), str(rank)) for rank in range(size))]),
        "slow": say("slow rank") if drawn["unit_us"] is None else say("late rank"),
        "unit_us": drawn["unit_us"] or "",
    }
    frame = labelled((SITE / "live.html").read_text(encoding="utf-8"), say)
    return Template(frame).substitute(drawn | facts)


def _choice(place: str, drawn: dict[str, Any], one: str, say: Callable[[str], str]) -> str:
    """One of those that are compared, with its bar; the first is drawn, the fastest stands out."""
    took, (us, said) = drawn["took"], drawn["took"][one]
    slowest, fastest = (pick(took.values())[0] for pick in (max, min))
    box = f'name="{place}" value="{_safe(one)}"{" checked" * (one == next(iter(took)))}'
    alone = say("all are done at")
    wide = f'<span class="bar"><i style="width:{100 * us / slowest:.0f}%"></i></span>'
    return (
        f'<label{" class=wins" * (us == fastest)}><input type="radio" {box}>'
        f"<span>{_safe(say(one)) or alone}</span>{wide}"
        f"<output>{said} {drawn['percent'].get(one, '')}</output></label>"
    )


def _options(values: Iterable[tuple[str, str]]) -> str:
    return "".join(f'<option value="{value}">{name}</option>' for name, value in values)


def _safe(text: str) -> str:
    return html.escape(text, quote=True)


def places() -> dict[str, dict[str, str]]:
    """Returns what places.toml says, by the place's name."""
    return tomllib.loads((SITE / "places.toml").read_text(encoding="utf-8"))
