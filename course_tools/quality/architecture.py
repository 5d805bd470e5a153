"""The house: its packages and rooms, their size, and which room imports which.

Fails on a circle of imports, on an import that the table below does not allow, on an import of the
tests, and on a room, a package or a list of public names that has grown too large. Size is counted
in nodes of the syntax tree: lines can be saved without anything becoming simpler. An import counts
wherever it stands, in a function or under TYPE_CHECKING as well: what needs a name of a room knows
that room.

    python -m course_tools.quality.architecture
"""

import argparse
import ast
import functools
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from course_tools import ROOT

# Its modules are called `launcher.launch`; those of the other packages by their full names.
PACKAGE = "course_utils"
HOUSE = "root"  # the modules of the library that are in no room
JUDGE = "course_checks"
CLUSTER = "course_cluster"
CHALLENGE = "course_challenge"
TOOLS = "course_tools"
LESSONS = "course_lessons"
TESTING = "course_testing"
LINT = "course_lint"
MUSEUM = "course_museum"
PACKAGES = (PACKAGE, JUDGE, CLUSTER, CHALLENGE, LESSONS, TESTING, LINT, MUSEUM, TOOLS)
LIBRARY = ("launcher", "record", "hang", "flight", "network", "pictures", "devices", HOUSE)
Modules = dict[str, Path]  # every module's file, by the module's name
Graph = dict[str, set[str]]  # by module or room, those that it imports
Complaints = Iterator[str]  # a sentence for each thing that is wrong
# From below: what a room may import, a whole room or single modules of it.
ALLOWED = {
    "launcher": (),
    "record": ("launcher",),
    "hang": ("record", "launcher"),
    "network": ("record.event", "launcher.language"),
    "flight": ("hang", "record", "launcher"),
    "pictures": ("network", "flight", "hang", "record", "launcher"),
    "devices": ("launcher",),
    HOUSE: ("launcher", "record", "hang", "flight", "network", "pictures", "devices"),
    JUDGE: (HOUSE, "network", "hang", "record", "devices", "launcher"),
    CLUSTER: ("launcher.deadlines",),
    CHALLENGE: (HOUSE, "network", JUDGE),
    TESTING: (HOUSE, "network", "hang", "record", "devices", "launcher"),
    LINT: (),
    MUSEUM: (JUDGE,),
    LESSONS: (HOUSE, "pictures", "network", "launcher"),
    TOOLS: ("launcher",),
    "course_tools.notebooks": (TOOLS,),
    "course_tools.i18n": (TOOLS, "course_tools.notebooks"),
    "course_tools.learner": (TOOLS, "course_tools.i18n", CHALLENGE),
    "course_tools.site": (
        TOOLS,
        "course_tools.notebooks",
        "course_tools.i18n",
        CHALLENGE,
        "course_lessons.scaling",
        *LIBRARY,
    ),
    "course_tools.slides": (
        TOOLS,
        "course_tools.notebooks",
        "course_tools.i18n",
        "course_tools.learner.copies",
        "course_tools.site",
    ),
    "course_tools.grading": (
        TOOLS,
        "course_tools.notebooks",
        "course_tools.learner.copies",
        JUDGE,
        *LIBRARY,
    ),
    "course_tools.measure": (
        TOOLS,
        "course_tools.notebooks",
        *LIBRARY,
    ),
    "course_tools.quality": (TOOLS, "course_tools.notebooks", JUDGE, *LIBRARY),
    "course_tools.material": (TOOLS,),
}
# What must be importable where nothing but Python is installed, and what with torch alone.
OUTSIDE = {
    "launcher": {"torch"},
    "network": set(),
    "record.event": set(),
    # What both say is in the learner's language, and names lines.
    LINT: {LINT},  # it reads scripts where nothing of theirs is installed
    "course_testing.plugin": {"pytest", TESTING},  # every run of pytest imports it
    "launcher.language": set(),
    "launcher.stacks": set(),
    # It says what is missing; jupyter_client is asked only where it is installed.
    "course_tools.learner.doctor": {TOOLS, "jupyter_client"},
}
MATERIAL = "course_material"  # what lessons work on; it knows nothing of the packages,
LANGUAGE = "course_utils.launcher.language"  # but for the language that it speaks to learners
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
TESTS = "tests/helpers"  # on sys.path in tests alone
PUBLIC_NAMES = 19
# Nodes of the syntax tree, at most. A feature that needs more raises its room's number, and says
# what for: a rank that ends as a program, blame by place and likely reasons have doubled launcher;
# CUDA's events, which time what is only queued, stand in record; limits are multiples of what
# the machine needs at that moment; the panel draws the loss of a training while it runs;
# in launcher each step has a name, which costs a node or two; a message is a call with named
# fields, which has more nodes than an f-string, and no engine has to read f-strings any more;
# every private name of torch has what happens without it, and its uses do without.
NODES = {
    "launcher": 15640,  # statuses nobody heard, forks that return; each step is named
    "record": 7680,  # timers; what becomes of DDP's models; keys and entries whose parts have names
    "hang": 9950,  # the known call proves a hang; dataclasses of facts; loops in no_sync()
    "flight": 12300,  # dumps of any torch, read safely; evidence for nine kinds of guilt; a watcher
    "network": 4380,  # what a ring of a thousand ranks costs, by formula; a name for each step
    "pictures": 9480,  # each mark has a name; captions; both broadcasts that DDP's forward awaits
    "devices": 3120,  # a name for each step, here as elsewhere
    # Hangs told from dumps, dry runs, a panel that comes by itself, silence that ends a launch.
    # Models that ranks have changed, or changed differently; a curve from its first step; captions.
    # What is told to who spawns a function of a cell; tracebacks of refused calls in one frame.
    PACKAGE: 69700,
    # Results as plain data; what an answer reaches beside its arguments: frames, memory, copies;
    # likely mistakes by their results, results that are a factor off, and what a rank was given
    # that raises; an answer that lacks a name of a cell which has not run, and a limit of calls.
    JUDGE: 12990,  # what one line did has a name for each of its steps, 5.5 nodes a line
    CLUSTER: 2200,  # likewise, as in the next two
    CHALLENGE: 4480,
    # By chapter: checks of what learners write, pictures, also of what they wrote, right or wrong,
    # by notes of real ranks and logs of hosts and jobs; cut layers and stacks, a model of plans.
    LESSONS: 98000,
    TESTING: 3270,
    LINT: 4800,
    MUSEUM: 2250,
    # Hangs beside torchfrtrace, the buttons of a lab, what changed in an original, a count of labs,
    # README's pictures, what a wheel has elsewhere than a checkout, a page with plans, what to do
    # where an installation, a download or a first cell went wrong, what the page says to a learner;
    # what was nested has a name; what make gpu ends, leaves out and lists.
    TOOLS: 65700,
}


def modules(root: Path = ROOT) -> Modules:
    """Every module by its name: `launcher.launch` in the library, else `course_checks.check`."""
    known = {}
    for package in PACKAGES:
        paths = (root / package).rglob("*.py")
        for path in sorted(paths):
            place = path.relative_to(root)
            name = module_in(place)
            known[name] = path
    return known


def module_in(file: Path) -> str:
    """The name of the module that a file holds; a folder is called so in its `__init__.py`."""
    place = file.with_suffix("")
    if place.name == "__init__":
        place = place.parent
    name = ".".join(place.parts)
    return below(name)


def below(name: str) -> str:
    """A module's name without that of the library, which stands for itself alone."""
    return name.removeprefix(f"{PACKAGE}.")


def is_package(name: str, known: Modules) -> bool:
    """Whether this is the name of a folder of modules."""
    if name not in known:
        return False
    return known[name].name == "__init__.py"


def room(module: str, known: Modules) -> str:
    """The room that a module is in: a package of its own, or a folder of the library or tools."""
    package, *parts = module.split(".")
    if package == TOOLS and parts:
        inner = f"{package}.{parts[0]}"
        if is_package(inner, known):
            return inner
    if package != PACKAGE and is_package(package, known):
        return package
    return HOUSE


def package_of(module: str) -> str:
    """The package that a module is in."""
    package = top(module)
    if package in PACKAGES:
        return package
    return PACKAGE


def parsed(path: Path) -> ast.Module:
    """A file's syntax tree."""
    source = path.read_text(encoding="utf-8")
    return ast.parse(source)


@functools.cache  # each file is asked five times
def imported(path: Path) -> list[str]:
    """The full name of everything that a file imports."""
    names = []
    tree = parsed(path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names.append(alias.name)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                names.append(name)
    return names


def imported_packages(path: Path) -> set[str]:
    """The packages from which a file imports anything."""
    names = imported(path)
    return set(map(top, names))


def top(name: str) -> str:
    """The first part of a module's name."""
    first, *_ = name.split(".")
    return first


def arrows(known: Modules) -> Graph:
    """By module, the modules of these packages that it imports."""
    graph: Graph = {}
    for module, path in known.items():
        targets = set()
        for name in imported(path):
            package = top(name)
            if package in PACKAGES:
                target = module_of(name, known)
                targets.add(target)
        targets.discard(module)
        graph[module] = targets
    return graph


def module_of(name: str, known: Modules) -> str:
    """The module that an imported name is, or else that defines it."""
    target = below(name)
    if target in known:
        return target
    module, _dot, _defined = target.rpartition(".")
    return module or PACKAGE


def between_rooms(known: Modules) -> Graph:
    """By room, the rooms that it imports."""
    graph = defaultdict(set)
    by_module = arrows(known)
    for module, others in by_module.items():
        importing_room = room(module, known)
        imported_rooms = graph[importing_room]
        for other in others:
            other_room = room(other, known)
            imported_rooms.add(other_room)
        imported_rooms.discard(importing_room)
    return graph


def circle(graph: Graph) -> list[str]:
    """The first circle of a graph, in a line, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        _, members = error.args
        line = " <- ".join(members)
        return [f"a circle: {line}"]
    return []


@functools.cache
def nodes(path: Path) -> int:
    """How large a file is, in nodes of its syntax tree."""
    tree = parsed(path)
    counted = syntax_nodes(tree)
    return len(list(counted))


def syntax_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that count, here and for `density`.

    Docstrings don't, nor do nodes without a text of their own: the module, and load or store.
    """
    not_counted = set()
    for docstring in docstrings(tree):
        not_counted.update([docstring, docstring.value])
    for node in ast.walk(tree):
        has_text = not isinstance(node, ast.Module | ast.expr_context)
        if has_text and node not in not_counted:
            yield node


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """The statements that are docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            yield node.body[0]


def upwards(known: Modules) -> Complaints:
    """Every arrow that the table does not allow."""
    by_module = arrows(known)
    for module, others in by_module.items():
        importing_room = room(module, known)
        in_table = ALLOWED.get(importing_room, ())
        allowed = {importing_room, *in_table}
        for other in sorted(others):
            other_room = room(other, known)
            is_allowed = other in allowed or other_room in allowed
            if not is_allowed:
                yield f"an arrow up: {module} imports {other}"


def from_outside(known: Modules) -> Complaints:
    """Every package beside the standard library that a room must do without."""
    always_there = sys.stdlib_module_names | {PACKAGE}
    for module, path in known.items():
        importing_room = room(module, known)
        if module in OUTSIDE:
            allowed = OUTSIDE[module]
        elif importing_room in OUTSIDE:
            allowed = OUTSIDE[importing_room]
        else:
            continue
        packages = imported_packages(path)
        outsiders = packages - always_there - allowed
        for name in sorted(outsiders):
            yield f"a package from outside: {module} imports {name}"


def from_tests(known: Modules, root: Path) -> Complaints:
    """Every import of the tests: what both need belongs in a package."""
    helpers = {"conftest", "tests"}
    folder = root / TESTS
    for path in folder.glob("*.py"):
        helpers.add(path.stem)
    for module, path in known.items():
        packages = imported_packages(path)
        parts_of_tests = packages & helpers
        for name in sorted(parts_of_tests):
            yield f"a part of the tests: {module} imports {name}"


def from_material(root: Path) -> Complaints:
    """Every import of these packages in the material, but for the learner's language."""
    folder = root / MATERIAL
    for path in folder.rglob("*.py"):
        place = path.relative_to(root)
        names = imported(path)
        packages = {top(name) for name in names if not name.startswith(f"{LANGUAGE}.")}
        packages_of_house = packages.intersection(PACKAGES)
        for name in sorted(packages_of_house):
            yield f"an arrow up: {place} imports {name}"


def too_large(known: Modules) -> Complaints:
    """Rooms, packages and the list of public names that are larger than they may be."""
    _, sizes = files_and_sizes(known)
    for name, limit in NODES.items():
        size = sizes[name]
        if size > limit:
            yield f"{name}: {size} nodes, at most {limit}"
    public_names = public(known)
    count = len(public_names)
    if count > PUBLIC_NAMES:
        yield f"{count} public names, at most {PUBLIC_NAMES}"


def files_and_sizes(known: Modules) -> tuple[Counter, Counter]:
    """By each room and package, how many files it has, and how many nodes."""
    files = Counter()
    sizes = Counter()
    for module, path in known.items():
        size = nodes(path)
        names = {room(module, known), package_of(module)}
        for name in names:
            files[name] += 1
            sizes[name] += size
    return files, sizes


def public(known: Modules) -> list[str]:
    """The names that the library offers: the keys of its lazy table."""
    tree = parsed(known[PACKAGE])
    for node in tree.body:
        if not isinstance(node, ast.Assign):
            continue
        table = node.value
        if isinstance(table, ast.Dict):
            keys = filter(None, table.keys)
            return list(map(ast.literal_eval, keys))
    return []


def problems(known: Modules, root: Path = ROOT) -> list[str]:
    """All that is wrong with the house."""
    return [
        *circle(between_rooms(known)),
        *circle(arrows(known)),
        *upwards(known),
        *from_outside(known),
        *from_tests(known, root),
        *from_material(root),
        *too_large(known),
    ]


def picture(known: Modules) -> str:
    """Rooms with their files and nodes, and below which rooms they stand."""
    head = "room".ljust(22)
    rows = [f"{head}  files  nodes  imports"]
    graph = between_rooms(known)
    files, sizes = files_and_sizes(known)
    with_repetitions = [*ALLOWED, *graph, PACKAGE]
    names = dict.fromkeys(with_repetitions)
    for name in names:
        count = files[name]
        size = sizes[name]
        imported_rooms = sorted(graph[name])
        imports = ", ".join(imported_rooms)
        line = f"{name:22}  {count:5}  {size:5}  {imports}"
        row = line.rstrip()
        rows.append(row)
    row_of_material = line_of_material()
    rows.append(row_of_material)
    public_names = public(known)
    count = len(public_names)
    listed = ", ".join(public_names)
    rows.append(f"{count} public names: {listed}")
    return "\n".join(rows)


def line_of_material() -> str:
    """How many files the material has, and how many nodes."""
    folder = ROOT / MATERIAL
    paths = list(folder.rglob("*.py"))
    count = len(paths)
    size = sum(map(nodes, paths))
    return f"beside them, {MATERIAL}: {count} files, {size} nodes"


def main() -> None:
    """Print the house; end with 1 if something is wrong with it."""
    first_line, *_ = __doc__.splitlines()
    parser = argparse.ArgumentParser(description=first_line)
    parser.parse_args()
    known = modules()
    text = picture(known)
    print(text)
    wrong = problems(known)
    complaints = "\n".join(wrong)
    print(complaints, file=sys.stderr)
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
