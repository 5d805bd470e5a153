"""The tree as a whole: sizes, leaks, commands, pins, and what strict nbval really compares."""

import ast
import contextlib
import functools
import importlib.metadata
import io
import os
import re
import runpy
import shutil
import subprocess
import tomllib
from pathlib import Path
from statistics import median

import nbformat
import pytest
from nbval.plugin import find_comment_markers, find_metadata_tags, get_sanitize_patterns
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from course_tools.child_process import in_child_process
from course_tools.notebooks import build, cells

ROOT = Path(__file__).resolve().parents[2]
# Pieced together so that these lines do not find themselves.
LEAK = re.compile(
    r"(?<![\w.])/(?:work|root|home/\w+|tmp)/[\w./-]+"
    r"|index[-]url\S*|https?://\S+/simple\b|\"resolved\": \"http\S+",
    re.I,
)


def files(suffixes: str = "") -> list[Path]:
    """Returns the files that are in the repository or would be added to it."""
    listing = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    found = sorted({ROOT / line for line in listing.stdout.splitlines()})
    return [p for p in found if p.is_file() and (not suffixes or p.suffix in suffixes.split())]


@functools.cache
def notebooks() -> dict[str, nbformat.NotebookNode]:
    """Returns every built notebook by its place in the tree."""
    return {str(p.relative_to(ROOT)): nbformat.read(p, as_version=4) for p in files(".ipynb")}


def pins() -> dict[str, str]:
    """Returns the version of every package in constraints.txt, by canonical name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines if line[0] != "#"]
    assert all(found), "every line is name==version"
    return {re.sub(r"[-_.]+", "-", pin[1]).lower(): pin[2] for pin in found}


def sanitized(text: str) -> str:
    """Returns what strict nbval compares of a text."""
    for regex, replace in get_sanitize_patterns((ROOT / "tests/nbval_sanitize.cfg").read_text()):
        text = re.sub(regex, replace, text)
    return text


def is_compared(cell: nbformat.NotebookNode) -> bool:
    """Whether strict nbval would notice if a cell's output were another one."""
    options = dict(find_metadata_tags(cell.metadata)) | dict(find_comment_markers(cell.source))
    if options.get("skip") or options.get("check") is False or cell.execution_count is None:
        return False
    seen = []
    for output in cell.outputs:
        data = output.get("data", {})
        seen += [text for kind, text in data.items() if not kind.startswith("image/")]
        seen += [output.get("text", ""), output.get("ename", ""), output.get("evalue", "")]
    return any(sanitized(str(text)).strip() for text in seen)


def test_no_file_names_a_path_of_a_machine_or_a_registry():
    found = []
    for path in files():
        with contextlib.suppress(UnicodeDecodeError):
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in LEAK.finditer(text)]
    assert found == []


@pytest.mark.parametrize("leak", ["work/main/x", "home/ada/x", "tmp/ipykernel_7/8.py", "root/a"])
def test_a_path_of_a_machine_would_be_found(leak):
    assert LEAK.search(f"see /{leak}")


@pytest.mark.slow
def test_every_notebook_is_what_its_source_says_and_was_run_in_order():
    assert build.check(ROOT) == []


@pytest.mark.slow
def test_taking_back_any_notebook_as_it_is_would_lose_nothing():
    for target in (target for target in build.targets(ROOT) if not target.cut):
        cells.write_percent(build.plan(target))  # reads it again, and refuses if a cell differs


def test_no_line_of_code_in_a_lesson_is_over_100_columns():
    wide = [
        f"{name} cell {number}: {line}"
        for name, notebook in notebooks().items()
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "code"
        for line in cell.source.splitlines()
        if len(line) > 100
    ]
    assert wide == []


def shown_lines(notebook: nbformat.NotebookNode) -> list[list[str]]:
    """Returns the lines of each code cell that is not folded."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [c for c in cells if not c.metadata.get("jupyter", {}).get("source_hidden")]
    return [cell.source.splitlines() for cell in shown]


@pytest.mark.parametrize(
    "number", ["00", "01", "02", "03", "04", "05", "07", "08", "10", "11", "12", "13"]
)
def test_a_cell_of_these_chapters_is_short(number):
    (name,) = (name for name in notebooks() if name.startswith(f"notebooks/{number}_"))
    cells = shown_lines(notebooks()[name])
    assert [lines[0] for lines in cells if len(lines) > 15] == []
    assert median(sum(map(bool, map(str.strip, lines))) for lines in cells) <= 5


def verdicts_unseen(notebook: nbformat.NotebookNode) -> list[str]:
    """Returns the calls of `check` whose outcome Jupyter shows to nobody: not a cell's last."""
    unseen = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            *earlier, _ = ast.parse(cell.source).body or [None]
            lines = [ast.unparse(node) for node in earlier if isinstance(node, ast.Expr)]
            unseen += [line for line in lines if line.startswith("check(")]
    return unseen


@pytest.mark.parametrize("number", [f"{n:02}" for n in range(20)])
def test_the_verdict_of_every_check_is_seen(number):
    for name, notebook in notebooks().items():
        if Path(name).name.startswith(f"{number}_"):
            assert verdicts_unseen(notebook) == [], name


def test_a_check_before_the_end_of_its_cell_is_found():
    cell = nbformat.v4.new_code_cell("check(mine)\ndraw(mine)")
    assert verdicts_unseen(nbformat.v4.new_notebook(cells=[cell])) == ["check(mine)"]


def test_strict_nbval_compares_at_least_four_in_five_cells_with_output(capsys):
    for name, notebook in notebooks().items():
        shown = [cell for cell in notebook.cells if cell.get("outputs")]
        compared = sum(map(is_compared, shown))
        share = compared / max(len(shown), 1)
        with capsys.disabled():
            print(f"\n{name}: {compared} of {len(shown)} outputs compared ({share:.0%})", end="")
        assert not shown or share >= 0.8, name


@pytest.mark.parametrize(
    ("source", "tags", "text", "compared"),
    [
        ("f()", ["nbval-ignore-output"], "42\n", False),
        ("# NBVAL_IGNORE_OUTPUT\nf()", [], "42\n", False),
        ("f()", ["nbval-skip"], "42\n", False),
        ("f()", [], "launch: gloo on the CPU (no GPU here)\n", False),
        ("f()", [], "launch: gloo on the CPU (no GPU here)\n42\n", True),
        ("f()", ["raises-exception"], "42\n", True),
    ],
)
def test_what_counts_as_compared(source, tags, text, compared):
    output = nbformat.v4.new_output("stream", name="stdout", text=text)
    cell = nbformat.v4.new_code_cell(source, execution_count=1, outputs=[output])
    cell.metadata.tags = tags
    assert is_compared(cell) is compared


def test_the_line_that_names_the_hardware_vanishes_and_no_other_does():
    before, after = "rank 0: re-launch: no\n", "launched\nlaunch without a colon\n"
    assert sanitized(before + "launch: NCCL, one GPU per rank\n" + after) == before + after
    assert sanitized("launch: gloo on the CPU") == ""


def test_the_number_of_a_cell_is_not_compared_and_its_line_is():
    assert sanitized("at cell [15], line 3, in f") == "at cell [N], line 3, in f"


def test_a_port_that_the_system_chose_is_shown_and_not_compared():
    assert sanitized("address. port: 40123, code: -98") == "address. port: N, code: -98"


@pytest.mark.parametrize("number", ["3", "0.87", "-0.5", "1,234,567.8", "3e-05"])
def test_a_number_behind_about_is_not_compared_and_any_other_is(number):
    assert sanitized(f"it is about {number} times, 7") == "it is about N times, 7"
    assert sanitized(f"it is {number} times, 7") == f"it is {number} times, 7"


def test_a_number_behind_about_is_one_word_and_what_follows_is_compared():
    assert sanitized("about 0.87 times") == sanitized("about 1,204 times") == "about N times"
    assert sanitized("about 3 ms, 5 calls") == "about N ms, 5 calls"
    assert sanitized("roundabout 7, about seven") == "roundabout 7, about seven"


def test_every_make_command_that_a_document_names_exists():
    makefile = (ROOT / "Makefile").read_text() + (ROOT / "source/targets.mk").read_text()
    known = set(re.findall(r"^([a-z]+):", makefile, re.M))
    for path in files(".md .py .ipynb"):
        command = r"(?:`|^    )make ([a-z]+)" if path.suffix == ".md" else r"`make ([a-z]+)"
        named = set(re.findall(command, path.read_text(), re.M))
        assert named <= known, path
        assert named >= {"lab", "test"} or path != ROOT / "README.md"


def test_make_has_all_that_it_needs_for_each_command_as_a_document_shows_it():
    shown = set()
    for path in files(".md"):
        for line in re.findall(r"^    make [^#\n]+", path.read_text(), re.M):
            shown.add(line.strip())
    assert len(shown) > 10
    for command in sorted(shown):
        dry = command.replace("make", "make --dry-run", 1)
        done = subprocess.run(dry, cwd=ROOT, shell=True, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)


def test_make_without_a_suitable_python_says_what_to_install(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    command = ["make", "-C", str(tmp_path), "lab", "PYTHON=false"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "The course needs Python 3.11, 3.12, 3.13 or 3.14" in done.stderr
    assert not (tmp_path / ".venv").exists()


PIP = """#!/bin/sh
echo "  Downloading small-1.0-py3-none-any.whl (9.1 MB)"
echo "  Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.1 MB)"
echo "The conflict is caused by:"
echo "    beautifulsoup4 4.15.0 depends on soupsieve>=1.6.1"
echo "    The user requested (constraint) soupsieve==4.1.1"
echo "ERROR: ResolutionImpossible" >&2
exit %d
"""


@pytest.mark.parametrize("status", [0, 1])
def test_an_installation_shows_what_is_large_and_one_that_fails_why_and_what_to_do(
    tmp_path, status
):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP % status)
    python.chmod(0o755)
    command = ["make", "-C", str(tmp_path), ".venv/.ready"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (
        "Downloading torch-2.15.0-cp311-cp311-manylinux_2_28_x86_64.whl (526.1 MB)\n" in done.stdout
    )
    assert "depends on soupsieve>=1.6.1\n    The user requested (constraint)" in done.stdout
    assert "small" not in done.stdout
    assert (done.returncode == 0) == (status == 0) == (tmp_path / ".venv/.ready").exists()
    advice = "Not installed, for the reason above. It needs a network; the same command goes on"
    assert (advice in done.stderr) == (status == 1)


def test_continuous_integration_can_start_its_script():
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_every_link_to_a_file_in_a_document_leads_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in files(".md")
        if "source/site" not in path.as_posix()  # these are links of the built site
        for link in re.findall(r"\]\((?!http|#)([^)#]+)", path.read_text())
        if not (path.parent / link).exists()
    ]
    assert broken == []


def test_every_package_that_the_project_asks_for_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    asked = [Requirement(text) for group in [project["dependencies"], *extras] for text in group]
    assert [str(need) for need in asked if pins().get(need.name, "0") not in need.specifier] == []


def test_no_pin_refuses_the_first_release_of_a_python_that_is_promised():
    promised = [f"3.{minor}.0" for minor in (11, 12, 13, 14)]  # Debian 12 has 3.11.2, for years
    refused = []
    for name, version in pins().items():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            about = importlib.metadata.metadata(name)
            wanted = SpecifierSet(about["Requires-Python"] or "")
            if about["Version"] == version and not all(map(wanted.contains, promised)):
                refused.append(f"{name} {version} wants Python {wanted}")
    assert refused == []


def test_the_changelog_knows_the_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_librarys_example_prints_what_it_says(tmp_path):
    page = (ROOT / "course_utils/README.md").read_text()
    code, wanted = re.search(r"```python\n(.*?)```\s+```text\n(.*?)```", page, re.S).groups()
    (tmp_path / "example.py").write_text(code)

    def example() -> str:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(tmp_path / "example.py"), run_name="__main__")
        return out.getvalue()

    assert sanitized(in_child_process(example)) == sanitized(wanted)
