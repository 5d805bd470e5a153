"""The command: read scripts, print findings."""

import argparse
import ast
from collections.abc import Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from course_lint.rules import RULES, Finding
from course_lint.script import Script


def lint(text: str) -> list[Finding]:
    """What is wrong with a script, in the order of its lines.

    Args:
        text: the script's source.

    Raises:
        SyntaxError: it is no Python.
    """
    script = Script(ast.parse(text))
    findings = {}  # by line and rule, the first one
    for rule in RULES:
        for finding in rule(script):
            place = finding.line, finding.rule
            findings.setdefault(place, finding)
    return sorted(findings.values(), key=attrgetter("line"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each finding, and return 1 if there is any, 2 if a file can't be read."""
    parser = argparse.ArgumentParser("ddp-course lint", description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="a script, or a folder of scripts")
    asked = parser.parse_args(arguments)
    status = 0
    for path in _scripts(asked.files):
        try:
            findings = lint(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
            print(f"{path}: cannot be read: {error}")
            status = 2
            continue
        for finding in findings:
            place = f"{path}:{finding.line}"
            print(f"{place}: {finding.rule}: {finding.sentence}")
            print(f"    See it happen: {finding.shown}")
            status = status or 1
    return status


def _scripts(names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = Path(name)
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        else:
            yield path
