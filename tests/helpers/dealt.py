"""Variants of a lab's exercises, brought before their checks: each answer and whose it is."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import labs

import cells
import course_utils
import handout
import variants
from course_checks.cases import CASES, draw, public_seed
from course_checks.outcome import Outcome

Version = Mapping[str, str]  # the name of a variant, by exercise; none for what is published
ALONE = {  # they cannot share a launch with others, or would do on each rank what takes long on one
    "09_many_machines": ("command", "train"), "11_capstone": ("save",),
    "14_on_a_gpu_who_waits": ("read",),
}  # fmt: skip


def versions(slug: str) -> list[Version]:
    """A lab as it is published, and with the first and the second variant of each exercise."""
    known = variants.known(labs.ROOT, slug)
    return [{}, *({name: sorted(own)[n] for name, own in known.items()} for n in range(2))]


def code(slug: str, version: Version) -> list[str]:
    """The code cells of a version of a lab."""
    text = (labs.ROOT / f"source/labs/{slug}.py").read_text(encoding="utf-8")
    made = cells.read_percent(variants.varied(labs.ROOT, slug, text, version)).cells
    return [cell.source for cell in made if cell.cell_type == "code"]


def judged(slug: str, number: int) -> dict[tuple[str, int], labs.Exercise]:
    """What one version hands to check, by exercise, with the answer of each version."""
    texts = [code(slug, version) for version in versions(slug)]
    left, found, names = set(variants.known(labs.ROOT, slug)), {}, {"__name__": "__main__"}
    caught: list[labs.Exercise] = []

    def catch(fn: Callable, **options: Any) -> None:
        caught.append(labs.Exercise(fn, options))

    with mock.patch.object(course_utils, "check", catch):
        for place, source in enumerate(texts[number]):
            labs.run(source, f"<{slug} {number} {place}>", names)
            if (name := handout.checked(source)) not in left:
                continue
            left.remove(name)
            found[name, number] = caught[-1]
            for whose, own in enumerate(texts):
                if whose != number:
                    (answer,) = (cell for cell in own if answers(cell, name))
                    theirs = dict(names)
                    labs.run(answer, f"<{slug} {number} {whose} {place}, answer>", theirs)
                    labs.run(source, f"<{slug} {number} {whose} {place}>", theirs)
                    found[name, whose] = caught[-1]
            if not left:
                break
    return found


def answers(cell: str, name: str) -> bool:
    """Is that the cell in which an exercise is answered?"""
    return "### BEGIN SOLUTION" in cell and bool(re.search(rf"(?m)^(def|class) {name}\b", cell))


@labs.one_thread()
def told_apart(judge: labs.Exercise, other: labs.Exercise) -> bool:
    """Does one want something else than another, of what the first one draws? Without a launch."""
    size = size_of(judge)
    for number, case in enumerate(judge.options.get("cases", CASES)):
        said = set()
        for spec in (judge.options["spec"], other.options["spec"]):
            drawn = [
                draw(judge.options["inputs"], rank, size, case, public_seed(rank, size, number))
                for rank in range(size)
            ]
            said.add(str(spec(*map(list, zip(*drawn, strict=True)))))
        if len(said) == 2:
            return True
    return False


def size_of(one: labs.Exercise) -> int:
    """The smallest number of ranks of its check over two, or else the largest."""
    sizes = labs.sizes(one.options)
    return min((size for size in sizes if size > 2), default=max(sizes))


def in_one_launch(found: Mapping[str, labs.Exercise]) -> Outcome:
    """Check many answers on three ranks at once: each, with its last case, is a case of it."""
    last = {name: one.options.get("cases", CASES)[-1] for name, one in found.items()}

    def inputs(rank, size, name):
        drawn = found[name].options["inputs"](rank, size, last[name])
        return name, drawn if isinstance(drawn, tuple) else (drawn,)

    def answer(name, arguments):
        return found[name].fn(*arguments)

    def spec(names, arguments):
        return found[names[0]].options["spec"](*map(list, zip(*arguments, strict=True)))

    def budget(size, name):
        own = found[name].options.get("budget", {})
        own = own(size, last[name]) if callable(own) else own
        return {key: most for key, most in own.items() if key != "finish_us"}

    allowed = {word for one in found.values() for word in one.options.get("allow", ())}
    rtol = max(one.options.get("rtol", 1e-6) for one in found.values())
    options = {"allow": sorted(allowed | {"files"}), "rtol": rtol, "atol": 1e-5, "budget": budget}
    options |= {"cases": list(found), "world_sizes": (3,)} | labs.PATIENT
    return labs.check_here(answer, spec=spec, inputs=inputs, **options)
