"""The page with plans: its numbers are those of the chapter, and each of its tasks can be won."""

import pytest

from course_lessons import scaling
from course_lessons.scaling import CLUSTER, MODELS, Plan
from course_tools.site import plans

TABLE = {model: plans.scores(model) for model in MODELS}
NAMES = ("dp", "tp", "pp", "microbatches", "zero")


def known(model: str, key: str) -> dict[str, float]:
    """What the page knows of a plan, by name."""
    numbers = dict(zip(plans.PARTS, TABLE[model][key], strict=True))
    plan = dict(zip(NAMES, map(int, key.split()), strict=True))
    return numbers | plan | {"chips": plan["dp"] * plan["tp"] * plan["pp"]}


def wins(task: dict, model: str, plan: dict[str, float]) -> bool:
    """Whether a plan wins a task."""
    if model != task["model"] or plan["gb"] > 80:
        return False
    enough = all(plan[name] >= bound for name, bound in task.get("least", {}).items())
    return enough and all(plan[name] <= bound for name, bound in task.get("most", {}).items())


@pytest.mark.parametrize("task", plans.tasks(), ids=lambda task: task["text"])
def test_a_task_can_be_won_and_not_by_many_plans_nor_at_the_start(task):
    table = TABLE[task["model"]]
    winners = [key for key in table if wins(task, task["model"], known(task["model"], key))]
    assert 1 <= len(winners) <= len(table) / 50, len(winners)
    assert plans.key(plans.START) not in winners
    assert len(task["hints"]) == 2


def test_there_are_ten_tasks_and_their_bounds_are_things_that_the_page_knows():
    tasks = plans.tasks()
    assert len(tasks) == 10
    for task in tasks:
        bounds = task.get("least", {}) | task.get("most", {})
        assert bounds.keys() <= {*plans.PARTS, *NAMES, "chips"}
        assert task["model"] in MODELS


def test_the_page_says_of_every_plan_what_the_chapter_says():
    for model, table in TABLE.items():
        for key, numbers in list(table.items())[::25]:
            plan = Plan(*map(int, key.split()))
            assert numbers == plans.numbers(scaling.step_time(MODELS[model], CLUSTER, plan))


def test_the_frame_starts_where_the_tests_think_it_does():
    text = plans.block()
    for name in ("dp", "tp", "pp", "microbatches"):
        power = getattr(plans.START, name).bit_length() - 1
        assert f'name="{name}"' in text
        (slider,) = [line for line in text.splitlines() if f'name="{name}"' in line]
        assert f'value="{power}"' in slider
    assert "<option selected>1</option>" in text
    assert text.count('type="radio"') == 10
