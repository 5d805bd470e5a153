"""Chapter 02: its checks reject what people write, and what its cells print holds."""

import ast
import itertools
import os
import socket

import labs
import pytest
import torch
import torch.distributed as dist

from course_lessons import chapter_02
from course_tools.notebooks import build
from course_utils import WorkerError, check, launch

KINDS = ast.Import, ast.ImportFrom, ast.FunctionDef
CHECKS = "card_check", "row_check"


@pytest.fixture(scope="module")
def lesson():
    """What the lesson's cells define: functions, imports, and how its checks are made."""
    names = {"__name__": "__main__"}
    for number, text in enumerate(labs.sources(build.ROOT / "source/lessons/02_process_groups.py")):
        own = [line for line in ast.parse(text).body if isinstance(line, KINDS) or _makes(line)]
        labs.run("\n".join(map(ast.unparse, own)), f"<lesson 02 {number}>", names)
    return names


def _makes(line):
    targets = getattr(line, "targets", [getattr(line, "target", None)])
    return any(getattr(target, "id", "") in CHECKS for target in targets)


def by_rank(cards):
    return cards[dist.get_rank()]


def always_the_first(cards):
    return cards[0]


def by_node(cards):
    return cards[int(os.environ["GROUP_RANK"])]


def by_text(cards):
    return cards[os.environ["LOCAL_RANK"]]


def the_number_alone(cards):
    return int(os.environ["LOCAL_RANK"])


def by_turns_of_two(cards):
    return cards[dist.get_rank() // 2]


def by_remainder(cards):
    return cards[dist.get_rank() % len(cards)]


def counted_from_the_nodes_first_rank(cards):
    first_rank = int(os.environ["GROUP_RANK"]) * int(os.environ["LOCAL_WORLD_SIZE"])
    return cards[dist.get_rank() - first_rank]


def in_the_world(number, rows):
    dist.all_reduce(number)
    return number


def its_own(number, rows):
    return number


def only_members_make_groups(number, rows):
    for ranks in rows:
        if dist.get_rank() in ranks:
            dist.all_reduce(number, group=dist.new_group(ranks))
    return number


def in_the_first_row(number, rows):
    group = dist.new_group(rows[0])
    if dist.get_rank() in rows[0]:
        dist.all_reduce(number, group=group)
    return number


def neighbours(number, rows):
    for ranks in rows:
        first = min(ranks)
        group = dist.new_group(range(first, first + len(ranks)))
        if dist.get_rank() in ranks:
            dist.all_reduce(number, group=group)
    return number


def added_once_per_row(number, rows):
    for _ in rows:
        group = dist.new_group(range(dist.get_world_size()))
        dist.all_reduce(number, group=group)
    return number


def gathered_from_all(number, rows):
    every = [torch.empty_like(number) for _ in range(dist.get_world_size())]
    dist.all_gather(every, number)
    return sum(every[rank] for ranks in rows if dist.get_rank() in ranks for rank in ranks)


def in_single_precision(number, rows):
    groups = [dist.new_group(ranks) for ranks in rows]
    mine = groups[[dist.get_rank() in ranks for ranks in rows].index(True)]
    total = number.float()
    dist.all_reduce(total, group=mine)
    return total.long()


def by_enumeration(number, rows):
    mine, _ = dist.new_subgroups_by_enumeration(rows)
    dist.all_reduce(number, group=mine)
    return number


def tried(fn, options):
    sizes = [options | {"world_sizes": (size,)} for size in options["world_sizes"]]
    return next(filter(lambda one: not one, (labs.hung_or_judged(fn, one) for one in sizes)), None)


WRONG = {
    "card_check": [
        by_rank, always_the_first, by_node, by_text, the_number_alone, by_turns_of_two,
        by_remainder,
    ],
    "row_check": [
        in_the_world, its_own, only_members_make_groups, in_the_first_row, neighbours,
        added_once_per_row, gathered_from_all, in_single_precision,
    ],
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fn"), [(name, fn) for name, wrong in WRONG.items() for fn in wrong]
)
def test_a_wrong_answer_is_rejected(lesson, name, fn):
    outcome = tried(fn, lesson[name])
    assert outcome is not None
    assert outcome.state == "wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fn"),
    [("card_check", counted_from_the_nodes_first_rank), ("row_check", by_enumeration)],
)
def test_another_right_answer_passes(lesson, name, fn):
    assert check(fn, **lesson[name] | labs.PATIENT).require()


def test_hints_and_stubs_promise_about_as_many_lines_as_our_own_answers_have():
    text = (build.ROOT / "source/lessons/02_process_groups.py").read_text()
    trees = {n.name: n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)}
    for name, most in (("my_card", 1), ("row_sum", 6)):
        assert f"'about {most} line" in ast.unparse(trees[name])
        assert len(ast.unparse(trees[f"{name}_done"]).splitlines()) - 1 == most


def test_no_rank_is_in_the_group_before_the_last_has_arrived(lesson):
    results = launch(lesson["join"], "env://", world_size=4, backend=None)
    times = [result["times"] for result in results]
    last = max(arrived for _, arrived, _, _ in times)
    assert all(joined >= last for _, _, joined, _ in times)
    assert times[0][2] - times[0][0] > 0.6
    assert all(a <= b for moments in times for a, b in itertools.pairwise(moments))


def test_sums_leave_nothing_in_the_store_and_a_group_leaves_a_key_for_each_member(lesson):
    for joined, later in launch(lesson["join_and_add"], world_size=4, backend=None):
        assert joined == later
        assert [key[-2:] for key in joined] == ["/0", "/1", "/2", "/3"]
    _, new_keys = launch(lesson["make_a_group"], world_size=4, backend=None)[0]
    assert [key[-2:] for key in new_keys] == ["/0", "/1"]


def test_whoever_has_the_port_already_makes_rank_0_fail(lesson):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WorkerError, match=f"port: {port}, .*EADDRINUSE") as error:
            launch(lesson["as_published"], port, backend=None)
    assert error.value.rank == 0


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn of an answer: captions by rank, and the ranks that are wrong."""
    pictures = []
    monkeypatch.setattr(
        chapter_02,
        "draw_nodes",
        lambda captions, text, wrong: pictures.append((list(captions), list(wrong))),
    )
    return pictures


@pytest.mark.parametrize(
    ("draw", "answer", "captions", "wrong"),
    [
        ("draw_cards", by_remainder, ["card 0", "card 1"] * 2, []),
        ("draw_cards", by_rank, ["card 0", "card 1", "IndexError", "IndexError"], [2, 3]),
        ("draw_row_sums", by_enumeration, ["11", "11", "1100", "1100"], []),
        ("draw_row_sums", its_own, ["1", "10", "100", "1000"], [0, 1, 2, 3]),
    ],
)
def test_an_answer_is_drawn_right_or_wrong(drawn, draw, answer, captions, wrong):
    getattr(chapter_02, draw)(answer)
    assert drawn == [(captions, wrong)]


def test_a_picture_says_on_which_machines_an_answer_is_right(monkeypatch):
    texts = []
    monkeypatch.setattr(chapter_02, "draw_nodes", lambda captions, text, wrong: texts.append(text))
    chapter_02.draw_cards(by_remainder)
    begins = "On two nodes with two cards each, right on 4 of 4 ranks: "
    assert texts == [f"{begins}card 0, card 1, card 0, card 1."]


@pytest.mark.parametrize("name", ["my_card", "row_sum"])
def test_a_stub_has_no_picture_and_says_why(lesson, drawn, capsys, name):
    draw = {"my_card": chapter_02.draw_cards, "row_sum": chapter_02.draw_row_sums}[name]
    draw(lesson[name])
    assert drawn == []
    assert "No picture yet: NotImplementedError: about" in capsys.readouterr().out


def test_commands_print_what_was_typed_and_what_they_said(capsys):
    lines = chapter_02.run("import sys\nprint(sys.argv[1:])", "python script.py -n 2")
    assert lines == [["['-n', '2']"]]
    assert capsys.readouterr().out == "$ python script.py -n 2\n['-n', '2']\n"
