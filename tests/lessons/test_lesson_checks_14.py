"""Chapter 14: its checks reject what people write, and let pass what is right."""

import re

import labs
import pytest

from course_lessons import chapter_14
from course_lessons import chapter_14_pictures as pictures
from course_material.recordings import recording
from course_tools.notebooks import build
from course_utils import check

SOURCE = build.ROOT / "source/lessons/14_on_a_gpu_who_waits.py"


@pytest.fixture(scope="module")
def answers():
    """The answers that the lesson folds, by name."""
    names = {}
    text = re.sub(r"^# ?", "", SOURCE.read_text(), flags=re.M)
    for number, code in enumerate(re.findall(r"<pre>\n(.*?)</pre>", text, re.S)):
        labs.run(code, f"<answer {number}>", names)
    return names


def stopwatch_us(rows):
    """Merges what touches, and adds up the lengths."""
    spans = []
    for row in sorted(rows, key=lambda row: row.start_us):
        if spans and row.start_us <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], row.end_us)
        else:
            spans.append([row.start_us, row.end_us])
    return sum(end_us - start_us for start_us, end_us in spans)


def of_kind(rows, *kinds):
    return [row for row in rows if row.kind in kinds]


def exposed_us(compute, collectives):
    return stopwatch_us(compute + collectives) - stopwatch_us(compute)


def in_microseconds(rows):
    return exposed_us(of_kind(rows, "compute"), of_kind(rows, "collective"))


def all_communication(rows):
    return stopwatch_us(of_kind(rows, "collective")) / 1000


def the_hidden_part(rows):
    return all_communication(rows) - in_microseconds(rows) / 1000


def durations_added_up(rows):
    compute_us = sum(row.us for row in of_kind(rows, "compute"))
    collective_us = sum(row.us for row in of_kind(rows, "collective"))
    return max(0, collective_us - compute_us) / 1000


def copies_hide_it(rows):
    return exposed_us(of_kind(rows, "compute", "copy"), of_kind(rows, "collective")) / 1000


def copies_communicate(rows):
    return exposed_us(of_kind(rows, "compute"), of_kind(rows, "collective", "copy")) / 1000


def one_compute_stream(rows):
    compute = [row for row in of_kind(rows, "compute") if row.lane == "stream 7"]
    return exposed_us(compute, of_kind(rows, "collective")) / 1000


def each_collective_alone(rows):
    compute, collectives = of_kind(rows, "compute"), of_kind(rows, "collective")
    return sum(exposed_us(compute, [each]) for each in collectives) / 1000


def hidden_as_soon_as_it_touches(rows):
    exposed = []
    for talk in of_kind(rows, "collective"):
        touching = [
            row
            for row in of_kind(rows, "compute")
            if row.start_us < talk.end_us and talk.start_us < row.end_us
        ]
        if not touching:
            exposed.append(talk)
    return stopwatch_us(exposed) / 1000


def all_time_without_compute(rows):
    steps_us = sum(row.us for row in of_kind(rows, "step"))
    return (steps_us - stopwatch_us(of_kind(rows, "compute"))) / 1000


def the_last_end_is_that_of_the_row_before(rows):
    total_us, until_us = 0, float("-inf")
    for row in sorted(of_kind(rows, "compute", "collective"), key=lambda row: row.start_us):
        total_us += max(0, row.end_us - max(row.start_us, until_us))
        until_us = row.end_us
    return (total_us - stopwatch_us(of_kind(rows, "compute"))) / 1000


def by_subtracting_spans(rows):
    """Takes every compute kernel out of what is left of the collectives."""
    merged = []
    for row in sorted(of_kind(rows, "collective"), key=lambda row: row.start_us):
        start_us = max(row.start_us, merged[-1][1] if merged else row.start_us)
        if row.end_us > start_us:
            merged.append((start_us, row.end_us))
    compute, total_us = sorted(of_kind(rows, "compute"), key=lambda row: row.start_us), 0
    for start_us, end_us in merged:
        at_us = start_us
        for row in compute:
            if row.start_us >= end_us:
                break
            if row.end_us > at_us:
                total_us += max(0, row.start_us - at_us)
                at_us = row.end_us
        total_us += max(0, end_us - at_us)
    return total_us / 1000


def inside(call, item):
    return item.start_us <= call.start_us and call.end_us <= item.end_us


def of_items(rows):
    return [row for row in rows if row.name == "aten::item"]


def of_cuda(rows):
    return [row for row in rows if row.name.startswith("cuda")]


def longest_of(rows):
    longest = max(rows, key=lambda row: row.us, default=None)
    return longest and (longest.name, longest.us)


def the_longest_call_anywhere(rows):
    return longest_of(of_cuda(rows))


def the_item_itself(rows):
    return longest_of(of_items(rows))


def the_longest_within_any_thread(rows):
    return longest_of([c for c in of_cuda(rows) if any(inside(c, i) for i in of_items(rows))])


def only_synchronize(rows):
    calls = [row for row in of_cuda(rows) if "Synchronize" in row.name]
    found = [c for c in calls if any(inside(c, i) and c.lane == i.lane for i in of_items(rows))]
    return longest_of(found)


def within_the_longest_item(rows):
    item = max(of_items(rows), key=lambda row: row.us, default=None)
    if item is None:
        return None
    return longest_of([c for c in of_cuda(rows) if inside(c, item) and c.lane == item.lane])


def the_time_of_the_item(rows):
    for item in sorted(of_items(rows), key=lambda row: -row.us):
        calls = [c for c in of_cuda(rows) if inside(c, item) and c.lane == item.lane]
        if calls:
            return max(calls, key=lambda row: row.us).name, item.us
    return None


def any_row_within(rows):
    found = []
    for item in of_items(rows):
        found += [r for r in rows if r != item and inside(r, item) and r.lane == item.lane]
    return longest_of(found)


def the_first_that_has_one(rows):
    for item in of_items(rows):
        calls = [c for c in of_cuda(rows) if inside(c, item) and c.lane == item.lane]
        if calls:
            return longest_of(calls)
    return None


def a_comprehension(rows):
    items, calls = of_items(rows), of_cuda(rows)
    return longest_of(
        [c for c in calls for i in items if c.lane == i.lane and inside(c, i)],
    )


CHECKS = {"exposed_ms": chapter_14.EXPOSED, "blocked_in_item": chapter_14.BLOCKED}
WRONG = {
    "exposed_ms": [
        in_microseconds, all_communication, the_hidden_part, durations_added_up, copies_hide_it,
        copies_communicate, one_compute_stream, each_collective_alone,
        hidden_as_soon_as_it_touches, all_time_without_compute,
        the_last_end_is_that_of_the_row_before,
    ],
    "blocked_in_item": [
        the_longest_call_anywhere, the_item_itself, the_longest_within_any_thread,
        only_synchronize, within_the_longest_item, the_time_of_the_item, any_row_within,
        the_first_that_has_one,
    ],
}  # fmt: skip
RIGHT = {"exposed_ms": by_subtracting_spans, "blocked_in_item": a_comprehension}
PAIRS = [(name, wrong) for name, all_wrong in WRONG.items() for wrong in all_wrong]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wrong"), PAIRS, ids=[wrong.__name__ for _, wrong in PAIRS])
def test_a_wrong_answer_is_rejected(name, wrong):
    assert check(wrong, **CHECKS[name]).state == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_our_own_answer_passes_and_one_in_another_style(answers, name):
    for right in (answers[name], RIGHT[name]):
        assert check(right, **CHECKS[name] | labs.PATIENT).require()


def test_what_the_library_knows_is_no_answer():
    def borrowed(rows):
        compute, talk = of_kind(rows, "compute"), of_kind(rows, "collective")
        total_us = chapter_14.covered_us(compute + talk)
        return (total_us - chapter_14.covered_us(compute)) / 1000

    assert check(borrowed, **chapter_14.EXPOSED).state == "wrong"


def test_stubs_promise_about_as_many_lines_as_our_own_answers_have():
    text = SOURCE.read_text()
    for answer in re.findall(r"# <pre>\n(.*?)# </pre>", text, re.S):
        name = re.findall(r"^# def (\w+)", answer, re.M)[-1]
        stub = text.partition(f"# %%\ndef {name}(")[2].partition("# %%")[0]
        given = 1 + stub.partition("raise")[0].count(" = ")
        lines = len([line for line in answer.splitlines() if line != "#"]) - given
        promised = int(re.search(r'"about (\d+) lines"', stub)[1])
        assert abs(lines - promised) <= 2, (name, lines)


def test_a_learners_own_answer_is_drawn_right_or_wrong_or_not_at_all(answers, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(chapter_14, "show", lambda figure, text, *_: shown.append(text))
    rows = chapter_14.made_up(5, 5, 2, 20, 20)
    trainings = {"one": rows, "the same": rows}
    for answer in (answers["exposed_ms"], in_microseconds):
        chapter_14.draw_exposed(answer, trainings)
    assert len(shown) == 2

    def nothing_yet(rows):
        raise NotImplementedError("about 10 lines")

    chapter_14.draw_exposed(nothing_yet, trainings)
    assert capsys.readouterr().out.startswith("No picture yet")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (the_longest_call_anywhere, "Your function returns ('cuda"),
        (lambda rows: ("cudaLaunchKernel", 5.0), "5.0), which is not in this .item()"),
        (lambda rows: 17, "Your function returns 17, which is not in this .item()"),
        (lambda rows: None, "cudaStreamSynchronize 5 µs.\n"),
        (lambda rows: 1 / 0, "Nothing is marked yet: ZeroDivisionError"),
    ],
)
def test_what_an_item_contains_is_drawn_with_any_answer(answer, words, capsys):
    rows = recording("recommender_8xA100")
    longest = max(of_items(rows), key=lambda row: row.us)
    pictures.draw_inside(rows, longest, answer)
    assert words in capsys.readouterr().out


def test_the_right_call_is_marked(answers, capsys):
    rows = recording("recommender_8xA100")
    longest = max(of_items(rows), key=lambda row: row.us)
    pictures.draw_inside(rows, longest, answers["blocked_in_item"])
    assert "returns ('cudaMemcpyAsync', 3991.0), which is marked." in capsys.readouterr().out


def test_what_a_profiler_costs_is_said_behind_about(capsys):
    pictures.draw_watched({False: [1e-6], True: [2e-6]})
    assert "A view: about 1.0 µs; recorded, about 2.0 times as long." in capsys.readouterr().out
