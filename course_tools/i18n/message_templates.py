"""What the course says to a learner while it runs: templates, read off the source, and in Chinese.

An f-string is a template: its words stay, an expression in it is a place, such as {rank}. Every
string that has words in it counts, unless NOT_SAID names it, so nobody has to keep a list. In
Chinese they stand in `source/zh/messages.po`; `course_material/messages.json` is made of both and
is installed. What may stand in a place, the Chinese says: see `course_material/speaker.py`.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from babel.messages.catalog import Message

from course_tools import ROOT

NAME, COMPILED = "messages", "course_material/messages.json"
FILES = (
    "course_checks/*.py", "course_utils/hang/*.py", "course_utils/launcher/*.py",
    "course_utils/notebook.py", "course_utils/li[fv]e.py", "course_utils/devices/[fnp]*.py",
    "course_utils/record/event.py", "course_utils/network/schedule.py",
    "course_tools/notebooks/cells.py",
)  # fmt: skip
PLACE = re.compile(r"\\\d|\{([\w.\[\]]*)(?:![rs])?(?::[^{}]*)?\}")  # of str.format and of re.sub
NAMED = re.compile(r"\{(\w+)(?::[^{}]*)?\}")
SENTENCE = re.compile(r"(?<=[.?!]) +(?=[A-Z{])")
CODE = re.compile(r"[<|\\]|\dpx|rgba|^\.\.\.$")  # what has words, but says nothing
# What is no message: it goes to whoever writes an exercise, or is a part of a page or of a message.
NOT_SAID = re.compile(
    r"cases\.draw|check\.check: check |rules\.(Rules|_over_budget: .*(budget|Network))|"
    r"verdict\.(_draw_again|_wanted)|transit\.Transit|watch\.(_EVENTS|WORDS)|watch\..*: "
    r"(random numbers|grad mode)|nccl\.small_shm|live\.(render|Panel|_row|_state|_bar)|"
    r"event\.KINDS|"
    r"placement\.(place|_notice)|nccl\._settings|"
    r"outcome\.Outcome: \[rank|attempt\..*bytes left out|"
    r"report\..*: data size|notebook\..*Default process|launch\.named|"
    r"stacks\.(STACK|THREAD|_TITLE_END|_RAISED|from_dump|_other_threads)|"
    r".*: in _run_function|worker_group\.WorkerGroup: \{name\}|stack_writer\.|"
    r"facts\._(place|cell_and_line): , in|torch_private\.|"
    r"errors\._LOST|nccl\._MORE|"
    r"errors\.from_ex(ception: (RuntimeError|connect to)|it: Fatal)|echoes\.|captured_output\.|"
    r"reasons\.(_UNKNOWN|of_start: temporary|of_failure: Unable)|"
    r"compare\.brief: item|check\._message: (\{were|would)|attempt\.attempt: \(more|"
    r"rules\._(ARRIVED|BUFFERS)|cells\.(?!cut_solution: about)"
)
# Templates of one word, or of none, in which others stand together.
SHORT = {
    "passed", "wrong", "rank", "given", "wanted", "got", "It", "once", "twice", "running",
    "received", "sent", "receive", "send", "from", "to", "receives", "sends",
    "dtype", "shape", "layout", "{kind}{size}{root}", "{head}{data}{root}{queued}",
    ", {content}", "{content}{place}",
    "{ranks_named}: {row}", "({where})", "{SIGNS_self_state} {state}: {name}{where}",
    "{SIGNS_outcome_state} {outcome_name}: {outcome_state}", "{many}, {self_runs_number}",
    "{place}: {code}",
    "{frame_place}: {frame_code}", "{call_kind}, {content}", "{call_kind}{place}", "({place})",
    "({call_place})",
    "({ranks_named})", "{type_error___name}: {words}", "{counts} ({no_gpu})",
}  # fmt: skip
# Where a template is a whole line of a message though it is no sentence.
LINES = re.compile(
    r"errors\.(worker_|_about|_details|_what_led|Failure: \{frame)|"
    r"stacks\.Frame: .*line|report\._rows|"
    r"placement\._refuse: (backend|device|NCCL)|verdict\._judge_run: [A-Z]|"
    r"whereabouts\.described: \{head|check\._outcome|notebook\._misfit: \{problem"
)


class Reader:
    """The templates of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.constants: dict[str, ast.expr] = {}
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        for node in assigned:
            if isinstance(node.targets[0], ast.Name) and self.forms(node.value):
                self.constants[node.targets[0].id] = node.value

    def forms(self, node: ast.AST) -> list[str] | None:
        """All that a string expression may say; None if it is no such expression."""
        match node:
            case ast.Constant(value=str(text)):
                return [PLACE.sub(lambda place: f"{{{_name(place[1] or '')}}}", text)]
            case ast.JoinedStr(values=values):
                return ["".join(one) for one in product(*map(self._piece, values))]
            case ast.Name(id=name) if name in self.constants:
                return self.forms(self.constants[name])
            case ast.IfExp(body=one, orelse=other):
                return self._both(one, other, lambda own, others: own + others)
            case ast.BinOp(left=one, op=ast.Add(), right=other):
                return self._both(one, other, lambda *own: list(map("".join, product(*own))))
            case ast.BinOp(left=one, op=ast.Mult(), right=other):
                said = self.forms(one) or self.forms(other)
                return said and ["", *said]
        return None

    def _both(self, one: ast.AST, other: ast.AST, how: Callable) -> list[str] | None:
        said = self.forms(one), self.forms(other)
        return how(said[0] or [_place(one)], said[1] or [_place(other)]) if any(said) else None

    def _piece(self, node: ast.AST) -> list[str]:
        if not isinstance(node, ast.FormattedValue):
            return [node.value]
        return self.forms(node.value) or [_place(node.value)]

    def walk(self, node: ast.AST) -> Iterator[str]:
        """Every template in a statement."""
        if forms := self.forms(node):
            yield from map(_numbered, forms)
        for child in self._places(node) if forms else _below(node):
            yield from self.walk(child)

    def _places(self, node: ast.AST) -> Iterator[ast.AST]:
        """What stands in the places of a string expression."""
        match node:
            case ast.JoinedStr(values=values):
                inner = [one.value for one in values if isinstance(one, ast.FormattedValue)]
            case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
                inner = [one, other]
            case _:
                inner = []
        for one in inner:
            yield from self._places(one) if self.forms(one) else (one,)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """What may say something below a node: no docstring, no key, no pattern, no type."""
    for field, value in ast.iter_fields(node):
        if field in ("keys", "annotation", "returns", "format_spec", "ops", "comparators"):
            continue
        for child in value if isinstance(value, list) else [value]:
            docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not docstring:
                yield child


def _name(words: str) -> str:
    return re.sub(r"\W+", "_", words).strip("_")[:24].strip("_") or "x"


def _place(node: ast.AST) -> str:
    """A name for what stands there: that of the variable, or of the function that is called."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=inner, attr="capitalize" | "get" | "split" | "join")
        ):
            return _place(inner)
        case ast.Call(func=inner) | ast.Subscript(value=ast.Call() as inner):
            return _place(inner)
        case ast.Constant():
            return "{x}"
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return f"{{{_name(name)}}}"
    return f"{{{_name(ast.unparse(node))}}}"


def _numbered(text: str) -> str:
    """The template with no two places of one name."""
    seen: dict[str, int] = {}

    def numbered(place: re.Match[str]) -> str:
        count = seen[place[1]] = seen.get(place[1], 0) + 1
        return f"{{{place[1]}{count if count > 1 else ''}}}"

    return NAMED.sub(numbered, text)


def templates(root: Path) -> dict[str, dict[str, str]]:
    """By template where it is said, such as `facts._times`, and as what: a sentence, or a line."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted({path for glob in FILES for path in root.glob(glob)}):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        reader = Reader(tree)
        for node in _below(tree):
            target = getattr(node, "targets", [getattr(node, "target", None)])[0]
            context = f"{path.stem}.{getattr(node, 'name', '') or getattr(target, 'id', '')}"
            for text in (one for whole in reader.walk(node) for one in whole.split("\n")):
                for one in map(str.strip, SENTENCE.split(text)):
                    if _is_said(context, one):
                        found.setdefault(one, {})[context] = _kind(context, one)
    return found


def _is_said(context: str, text: str) -> bool:
    if text in SHORT:
        return True
    words = re.search("[A-Za-z]{2}", NAMED.sub("", text)) and " " in text
    return bool(words) and not CODE.search(text) and not NOT_SAID.match(f"{context}: {text}")


def _kind(context: str, text: str) -> str:
    if text[-1] in ".?!" or (text[-1] == ":" and (text[0].isupper() or text[0] == "{")):
        return "sentence"
    return "line" * bool(LINES.match(f"{context}: {text}"))


def prose(root: Path) -> list[str]:
    """What is to be translated."""
    return list(templates(root))


def compiled(root: Path, known: dict[str, Message]) -> str:
    """The catalogue that is installed: English, Chinese, where it is said, where as a line."""
    rows = []
    for text, contexts in templates(root).items():
        message = known.get(text)
        if message and message.string and not message.fuzzy:
            rows.append([text, message.string, *contexts, *sorted({*contexts.values()} - {""})])
    return "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"


def faults(root: Path, known: dict[str, Message]) -> Iterator[str]:
    """What Chinese templates have lost, or have too much, of the places of the English ones."""
    contexts = {context for where in templates(root).values() for context in where}
    for message in (one for one in known.values() if one.string):
        mine, theirs = (set(NAMED.findall(text)) for text in (message.id, message.string))
        takes = re.findall(r"\{\w+:([a-z][^{}]*)\}", message.string)
        kinds = {kind.partition("=")[0] for one in takes for kind in one.rstrip("?~*+").split("|")}
        odd = {
            kind for kind in kinds if not any(f"{own}.".startswith(f"{kind}.") for own in contexts)
        }
        if mine != theirs or odd:
            yield f"places differ: {' '.join(sorted((mine ^ theirs) | odd))}: {message.id[:70]}"


if __name__ == "__main__":
    for english, where in templates(ROOT).items():
        print(f"{max(where.values()):8} {english}   @ {' '.join(where)}")
