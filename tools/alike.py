"""Which answers are too much alike? `make alike in=FOLDER`: a report to look at, not a verdict.

    python tools/alike.py FOLDER --only 02

Compared is what is left of an answer without names, remarks and layout: the runs of five nodes of
its syntax tree. Short answers all look alike and are left out, and so are those that are the
published solution, which two learners may both have read; they stand in a list of their own.
"""

import argparse
import ast
import itertools
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import build
import cells
import grade
import variants

ALIKE, LEAST, RUN = 0.9, 50, 5  # share of runs in common; nodes of an answer; nodes of a run


def shape(text: str) -> Counter[tuple[str, ...]]:
    """An answer's runs of nodes; none if it is short or no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return Counter()
    words = [_word(node) for node in ast.walk(tree) if not isinstance(node, ast.expr_context)]
    runs = (tuple(words[at : at + RUN]) for at in range(len(words) - RUN + 1))
    return Counter(runs) if len(words) >= LEAST else Counter()


def _word(node: ast.AST) -> str:
    own = getattr(node, "attr", None) or getattr(node, "value", "")
    kept = own if isinstance(node, ast.Attribute | ast.Constant) else ""
    return f"{type(node).__name__} {kept!r}"


def likeness(one: Counter, other: Counter) -> float:
    """From 0, nothing in common, to 1."""
    return (one & other).total() / max(1, (one | other).total())


def as_published(answers: Mapping[str, str], published: str) -> list[str]:
    """Who has handed in the published solution, perhaps under other names."""
    wanted = shape(published)
    return [who for who, text in answers.items() if likeness(shape(text), wanted) >= ALIKE]


def pairs(answers: Mapping[str, str], published: str) -> list[tuple[float, str, str]]:
    """Whose answers are alike, the likest first."""
    known = set(as_published(answers, published))
    shapes = {
        who: own for who, text in answers.items() if (own := shape(text)) and who not in known
    }
    found = [
        (likeness(shapes[one], shapes[other]), one, other)
        for one, other in itertools.combinations(shapes, 2)
    ]
    return sorted((one for one in found if one[0] >= ALIKE), reverse=True)


def groups(found: list[tuple[float, str, str]]) -> list[list[str]]:
    """Whose answers are alike directly or by way of others: a line instead of many pairs."""
    made: list[set[str]] = []
    for _, one, other in found:
        joined = [group for group in made if group & {one, other}]
        made = [group for group in made if group not in joined]
        made.append({one, other}.union(*joined))
    return sorted(sorted(group) for group in made)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path, help="where submitted/ is")
    parser.add_argument("--only", nargs="*", default=[], help="labs, such as 02; all if none")
    parser.add_argument("--root", type=Path, default=build.HERE, help="the project's folder")
    args = parser.parse_args(argv)
    try:
        targets = grade.labs_of(args.root.resolve(), args.only)
        works = grade.submissions(args.folder, targets, variants.secret(args.folder), None)
    except (cells.BuildError, OSError) as error:
        print(f"nothing compared: {error}", file=sys.stderr)
        return 1
    for target in targets:
        mine = [work for work in works if work.lab.slug == target.built.stem]
        handed_in = {work.who: _texts(work) for work in mine}
        for name, published in grade.lab(target, "", None).models.items():
            answers = {who: own[name] for who, own in handed_in.items() if name in own}
            what = f"{target.built.stem} {name.removeprefix('answer-')}"
            for group in groups(pairs(answers, published)):
                print(f"{what}: alike: {', '.join(group)}")
            if who := as_published(answers, published):
                print(f"{what}: as published: {', '.join(who)}")
    print(f"{len(works)} submissions compared; answers of a few lines are left out.")
    return 0


def _texts(work: grade.Work) -> dict[str, str]:
    try:
        return grade.texts(work.notebook, work.lab)
    except ValueError:
        return {}


if __name__ == "__main__":
    sys.exit(main())
