"""The page on which one chooses a plan: a table of what all plans come to, and tasks.

All numbers are those of `course_lessons.scaling`, so the page computes nothing: its script looks
plans up. Tasks and hints stand in `source/site/tasks.toml`.
"""

import html
import json
from pathlib import Path
from typing import Any

from course_lessons import scaling
from course_lessons.scaling import CLUSTER, MODELS, Plan, Score
from course_tools.notebooks.course_map import Say
from course_tools.site.live_parts import SITE, frame
from course_tools.texts import read_toml

MOST_CHIPS = 1024
# Of each plan, in this order.
PARTS = ("step_s", "compute_s", "tensor_s", "bubble_s", "data_s", "gb", "mfu")
START = Plan(dp=4, tp=8, pp=16, microbatches=16, zero=1)  # as plan.html begins


def numbers(scored: Score) -> list[float]:
    """What the page knows of a plan, to four digits."""
    rounded = []
    for name in PARTS:
        if name == "gb":
            number = scored.bytes / 1e9
        else:
            number = getattr(scored, name)
        four_digits = f"{number:.4g}"
        rounded.append(float(four_digits))
    return rounded


def key(plan: Plan) -> str:
    """A plan's name in the table."""
    return f"{plan.dp} {plan.tp} {plan.pp} {plan.microbatches} {plan.zero}"


def scores(model: str) -> dict[str, list[float]]:
    """What all plans on up to 1,024 chips come to."""
    shape = MODELS[model]
    table = {}
    chips = 1
    while chips <= MOST_CHIPS:
        for plan in scaling.plans(shape, chips):
            name = key(plan)
            scored = scaling.step_time(shape, CLUSTER, plan)
            table[name] = numbers(scored)
        chips *= 2
    return table


def write_table(to: Path) -> None:
    """Writes the table as a script."""
    by_model = {model: scores(model) for model in MODELS}
    table = {"parts": PARTS, "scores": by_model}
    text = json.dumps(table, separators=(",", ":"))
    to.write_text(f"const PLANS = {text};\n", encoding="utf-8")


def tasks() -> list[dict[str, Any]]:
    """What tasks.toml says."""
    return read_toml(SITE / "tasks.toml")["tasks"]


def _row(number: int, task: dict[str, Any], say: Say) -> str:
    """A task with its button, which the script reads its bounds from, and its hints."""
    button = _button(number, task)
    text = _in_html(task["text"], say)
    hints = ""
    for count, hint in enumerate(task["hints"], start=1):
        summary = say("Hint {0}").format(count)
        hint_text = _in_html(hint, say)
        hints += f"<details><summary>{summary}</summary>{hint_text}</details>"
    return f"<div><label>{button} {text}</label> <output></output>{hints}</div>"


def _button(number: int, task: dict[str, Any]) -> str:
    """The button of a task, of which the first is chosen."""
    bounds = {}
    for name in ("model", "least", "most"):
        if name in task:
            bounds[name] = task[name]
    bounds_json = html.escape(json.dumps(bounds))
    checked = ""
    if number == 1:
        checked = " checked"
    return f'<input type="radio" name="task" value="{number}" data-bounds="{bounds_json}"{checked}>'


def _in_html(text: str, say: Say) -> str:
    """A text of tasks.toml in a language, as HTML."""
    translated = say(text)
    return html.escape(translated)


def block(say: Say = str) -> str:
    """Returns sliders, score and tasks in a language."""
    rows = []
    for number, task in enumerate(tasks(), start=1):
        row = _row(number, task, say)
        rows.append(row)
    joined_rows = "\n".join(rows)
    return frame("plan.html", say).substitute(tasks=joined_rows)
