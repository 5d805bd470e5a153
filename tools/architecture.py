"""The house: its rooms, their files and lines, and which room imports which.

Fails on a circle of imports, on an arrow that the table below does not allow, on a file, a room's
package or a list of public names that has grown too long. An import counts wherever it stands, in
a function or under TYPE_CHECKING as well: what needs a name of another room knows that room.

    python tools/architecture.py
"""

import argparse
import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "course_utils"
HOUSE = "root"  # the modules that lie in no room
# From below: what a room may import, a whole room or single modules of it.
ALLOWED = {
    "launcher": (),
    "record": ("launcher",),
    "hang": ("record", "launcher"),
    "network": ("record.event",),
    "pictures": ("network", "hang", "record", "launcher"),
    "checks": ("network", "hang", "record", "devices", "launcher"),
    "devices": ("launcher",),
    HOUSE: ("launcher", "record", "hang", "network", "pictures", "checks", "devices"),
}
# What must be importable where nothing but Python is installed, and what with torch alone.
OUTSIDE = {"launcher": {"torch"}, "network": set(), "record.event": set()}
MATERIAL = "course_material"  # beside the package: what lessons work on, which knows nothing of it
FILE_LINES, PUBLIC_NAMES = 200, 16
LINES = {PACKAGE: 6485, "launcher": 1145}  # 6,000 is the aim: what can go goes


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its name below the package: `launcher.team`, `data`, `launcher`."""
    package = root / PACKAGE
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts) or PACKAGE] = path
    return found


def room(module: str, known: dict[str, Path]) -> str:
    """The room in which a module lies."""
    first = module.split(".")[0]
    return first if known[first].name == "__init__.py" and first != PACKAGE else HOUSE


def imported(tree: ast.AST) -> Iterator[str]:
    """The full name of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)


def arrows(known: dict[str, Path]) -> dict[str, set[str]]:
    """By module, the modules of this package that it imports."""
    found: dict[str, set[str]] = {}
    for module, path in known.items():
        names = [
            name.removeprefix(PACKAGE).lstrip(".")
            for name in imported(ast.parse(path.read_text(encoding="utf-8")))
            if name.split(".")[0] == PACKAGE
        ]
        longest = [name if name in known else name.rpartition(".")[0] for name in names]
        found[module] = {name or PACKAGE for name in longest} - {module}
    return found


def between_rooms(known: dict[str, Path]) -> dict[str, set[str]]:
    """By room, the rooms that it imports."""
    found = defaultdict(set)
    for module, others in arrows(known).items():
        here = room(module, known)
        found[here] |= {room(other, known) for other in others} - {here}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The first circle of a graph, in a line, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return [f"a circle: {' <- '.join(error.args[1])}"]
    return []


def lines(path: Path) -> int:
    """How long a file is."""
    return len(path.read_text(encoding="utf-8").splitlines())


def upwards(known: dict[str, Path]) -> Iterator[str]:
    """Every arrow that the table does not allow."""
    for module, others in arrows(known).items():
        here = room(module, known)
        for other in sorted(others):
            may = (here, *ALLOWED.get(here, ()))
            if room(other, known) not in may and other not in may:
                yield f"an arrow up: {module} imports {other}"


def from_outside(known: dict[str, Path]) -> Iterator[str]:
    """Every package beside the standard library that a room must do without."""
    for module, path in known.items():
        may = OUTSIDE.get(module, OUTSIDE.get(room(module, known)))
        if may is not None:
            tops = {name.split(".")[0] for name in imported(ast.parse(path.read_text("utf-8")))}
            for name in sorted(tops - sys.stdlib_module_names - may - {PACKAGE}):
                yield f"a package from outside: {module} imports {name}"


def too_long(known: dict[str, Path]) -> Iterator[str]:
    """Files, rooms and the list of public names that are longer than they may be."""
    for path in known.values():
        if lines(path) > FILE_LINES:
            yield f"{path.relative_to(ROOT)}: {lines(path)} lines, at most {FILE_LINES}"
    sizes = {PACKAGE: sum(map(lines, known.values()))}
    sizes["launcher"] = sum(lines(p) for m, p in known.items() if room(m, known) == "launcher")
    for name, limit in LINES.items():
        if sizes[name] > limit:
            yield f"{name}: {sizes[name]} lines, at most {limit}"
    if len(public(known)) > PUBLIC_NAMES:
        yield f"{len(public(known))} public names, at most {PUBLIC_NAMES}"


def from_material() -> Iterator[str]:
    """Every import of this package in the material."""
    for path in (ROOT / MATERIAL).rglob("*.py"):
        names = imported(ast.parse(path.read_text(encoding="utf-8")))
        if any(name.split(".")[0] == PACKAGE for name in names):
            yield f"an arrow up: {path.relative_to(ROOT)} imports {PACKAGE}"


def public(known: dict[str, Path]) -> list[str]:
    """The names that the package offers: the keys of its lazy table."""
    for node in ast.parse(known[PACKAGE].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return [ast.literal_eval(key) for key in node.value.keys if key]
    return []


def problems(known: dict[str, Path]) -> list[str]:
    """All that is wrong with the house."""
    found = circle(between_rooms(known)) + circle(arrows(known))
    return [*found, *upwards(known), *from_outside(known), *from_material(), *too_long(known)]


def picture(known: dict[str, Path]) -> str:
    """Rooms with their files and lines, and below which rooms they stand."""
    rows, into = ["room       files  lines  imports"], between_rooms(known)
    for name in dict.fromkeys([*ALLOWED, *(room(module, known) for module in known)]):
        paths = [path for module, path in known.items() if room(module, known) == name]
        size = sum(map(lines, paths))
        rows.append(f"{name:10} {len(paths):5}  {size:5}  {', '.join(sorted(into[name]))}".rstrip())
    rows.append(f"{'all':10} {len(known):5}  {sum(map(lines, known.values())):5}")
    beside = list((ROOT / MATERIAL).rglob("*.py"))
    rows.append(f"beside it, {MATERIAL}: {len(beside)} files, {sum(map(lines, beside))} lines")
    return "\n".join([*rows, f"{len(public(known))} public names: {', '.join(public(known))}"])


def main() -> None:
    """Print the house; end with 1 if something is wrong with it."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    known = modules()
    print(picture(known))
    wrong = problems(known)
    print("\n".join(wrong), file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
