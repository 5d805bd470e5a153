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

Task = dict[str, Any]  # as tasks.toml has it
MOST_CHIPS = 1024
# Of each plan, in this order.
PARTS = ("step_s", "compute_s", "tensor_s", "bubble_s", "data_s", "gb", "mfu")
START = Plan(dp=4, tp=8, pp=16, microbatches=16, zero=1)  # as plan.html begins
HINT_AS_HTML = "<details><summary>{title}</summary>{hint}</details>"
BUTTON_AS_HTML = '<input type="radio" name="task" value="{number}" data-bounds="{bounds}"{checked}>'
TASK_AS_HTML = "<div><label>{button} {text}</label> <output></output>{hints}</div>"


def numbers(scored: Score) -> list[float]:
    """What the page knows of a plan, to four digits."""
    rounded = []
    for name in PARTS:
        if name == "gb":
            number = scored.bytes / 1e9
        else:
            number = getattr(scored, name)
        written = f"{number:.4g}"
        four_digits = float(written)
        rounded.append(four_digits)
    return rounded


def key(plan: Plan) -> str:
    """A plan's name in the table."""
    parts = (plan.dp, plan.tp, plan.pp, plan.microbatches, plan.zero)
    words = map(str, parts)
    return " ".join(words)


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
    by_model = {}
    for model in MODELS:
        by_model[model] = scores(model)
    table = {"parts": PARTS, "scores": by_model}
    table_json = json.dumps(table, separators=(",", ":"))
    script = f"const PLANS = {table_json};\n"
    to.write_text(script, encoding="utf-8")


def tasks() -> list[Task]:
    """What tasks.toml says."""
    source = read_toml(SITE / "tasks.toml")
    return source["tasks"]


def _row(number: int, task: Task, say: Say) -> str:
    """A task with its button, which the script reads its bounds from, and its hints."""
    button = _button(number, task)
    english_text = task["text"]
    text = _in_html(english_text, say)
    english_hints = task["hints"]
    hints = _hints(english_hints, say)
    return TASK_AS_HTML.format(button=button, text=text, hints=hints)


def _hints(texts: list[str], say: Say) -> str:
    """The hints of a task, each of them folded."""
    hints = ""
    form = say("Hint {0}")
    for number, text in enumerate(texts, start=1):
        title = form.format(number)
        hint = _in_html(text, say)
        hints += HINT_AS_HTML.format(title=title, hint=hint)
    return hints


def _button(number: int, task: Task) -> str:
    """The button of a task, of which the first is chosen."""
    bounds = {}
    for name in ("model", "least", "most"):
        if name in task:
            bounds[name] = task[name]
    bounds_json = json.dumps(bounds)
    checked = ""
    if number == 1:
        checked = " checked"
    return BUTTON_AS_HTML.format(
        number=number,
        bounds=html.escape(bounds_json),
        checked=checked,
    )


def _in_html(text: str, say: Say) -> str:
    """A text of tasks.toml in a language, as HTML."""
    translated = say(text)
    return html.escape(translated)


def block(say: Say = str) -> str:
    """Returns sliders, score and tasks in a language."""
    rows = []
    all_tasks = tasks()
    for number, task in enumerate(all_tasks, start=1):
        row = _row(number, task, say)
        rows.append(row)
    joined_rows = "\n".join(rows)
    page = frame("plan.html", say)
    return page.substitute(tasks=joined_rows)
