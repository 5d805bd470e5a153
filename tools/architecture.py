"""The house: its rooms, their size, and which room imports which.

Fails on a circle of imports, on an arrow that the table below does not allow, on a room, a package
or a list of public names that has grown too large. Size is counted in nodes of the syntax tree:
lines can be saved without anything becoming simpler. An import counts wherever it stands, in
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
JUDGE = "course_checks"  # a package of its own, which stands on all this
# From below: what a room may import, a whole room or single modules of it.
ALLOWED = {
    "launcher": (),
    "record": ("launcher",),
    "hang": ("record", "launcher"),
    "network": ("record.event",),
    "pictures": ("network", "hang", "record", "launcher"),
    "devices": ("launcher",),
    HOUSE: ("launcher", "record", "hang", "network", "pictures", "devices"),
    JUDGE: (HOUSE, "network", "hang", "record", "devices", "launcher"),
}
# What must be importable where nothing but Python is installed, and what with torch alone.
OUTSIDE = {"launcher": {"torch"}, "network": set(), "record.event": set()}
MATERIAL = "course_material"  # beside the package: what lessons work on, which knows nothing of it
PUBLIC_NAMES = 16
# Nodes of the syntax tree, at most. A feature that needs more raises its room's number, and says
# what for: a rank that ends as a program, blame by place and likely reasons have doubled launcher;
# CUDA's events, which time what is only queued, stand in record; limits are multiples of what
# the machine needs at that moment; the panel draws the loss of a training while it runs.
NODES = {
    "launcher": 11300,
    "record": 5900,
    "hang": 7900,
    "network": 3800,
    "pictures": 7150,
    "devices": 3000,
    PACKAGE: 42500,
    JUDGE: 9250,  # results as plain data, and what an answer reaches beside its arguments
}


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its name below the package: `launcher.launch`; but `course_checks.check`."""
    found = {}
    for path in sorted([*(root / PACKAGE).rglob("*.py"), *(root / JUDGE).rglob("*.py")]):
        parts = path.relative_to(root).with_suffix("").parts
        found[below(".".join(parts[:-1] if parts[-1] == "__init__" else parts))] = path
    return found


def below(name: str) -> str:
    """A module's name without the package's, which stands for itself alone."""
    return name.removeprefix(f"{PACKAGE}.")


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
            below(name)
            for name in imported(ast.parse(path.read_text(encoding="utf-8")))
            if name.split(".")[0] in (PACKAGE, JUDGE)
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


def nodes(path: Path) -> int:
    """How large a file is: nodes of its syntax tree, docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    counted = 0
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            counted -= 2  # the statement and its string
        if not isinstance(node, ast.expr_context):
            counted += 1
    return counted


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


def too_large(known: dict[str, Path]) -> Iterator[str]:
    """Rooms, packages and the list of public names that are larger than they may be."""
    sizes = dict.fromkeys(NODES, 0)
    for module, path in known.items():
        module_room = room(module, known)
        package = JUDGE if module_room == JUDGE else PACKAGE
        for name in {module_room, package} & set(NODES):
            sizes[name] += nodes(path)
    for name, limit in NODES.items():
        if sizes[name] > limit:
            yield f"{name}: {sizes[name]} nodes, at most {limit}"
    if len(public(known)) > PUBLIC_NAMES:
        yield f"{len(public(known))} public names, at most {PUBLIC_NAMES}"


def from_material() -> Iterator[str]:
    """Every import of this package in the material."""
    for path in (ROOT / MATERIAL).rglob("*.py"):
        names = imported(ast.parse(path.read_text(encoding="utf-8")))
        for name in {name.split(".")[0] for name in names} & {PACKAGE, JUDGE}:
            yield f"an arrow up: {path.relative_to(ROOT)} imports {name}"


def public(known: dict[str, Path]) -> list[str]:
    """The names that the package offers: the keys of its lazy table."""
    for node in ast.parse(known[PACKAGE].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            return [ast.literal_eval(key) for key in node.value.keys if key]
    return []


def problems(known: dict[str, Path]) -> list[str]:
    """All that is wrong with the house."""
    found = circle(between_rooms(known)) + circle(arrows(known))
    return [*found, *upwards(known), *from_outside(known), *from_material(), *too_large(known)]


def picture(known: dict[str, Path]) -> str:
    """Rooms with their files and nodes, and below which rooms they stand."""
    rows, into = ["room          files  nodes  imports"], between_rooms(known)
    for name in dict.fromkeys([*ALLOWED, *(room(module, known) for module in known)]):
        paths = [path for module, path in known.items() if room(module, known) == name]
        size = sum(map(nodes, paths))
        rows.append(f"{name:13} {len(paths):5}  {size:5}  {', '.join(sorted(into[name]))}".rstrip())
    own = [path for module, path in known.items() if room(module, known) != JUDGE]
    rows.append(f"{PACKAGE:13} {len(own):5}  {sum(map(nodes, own)):5}")
    beside = list((ROOT / MATERIAL).rglob("*.py"))
    rows.append(f"beside it, {MATERIAL}: {len(beside)} files, {sum(map(nodes, beside))} nodes")
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
