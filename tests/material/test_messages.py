"""Messages in Chinese: where the learner chose it, with every number and name, or not at all."""

import json
import os
import re

import answers
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from course_checks.cases import CASES
from course_checks.outcome import Overview
from course_material import messages
from course_material.speaker import Speaker
from course_tools.i18n import catalogues, zh
from course_tools.i18n import message_templates as catalogue
from course_tools.learner import workspace
from course_utils import check, launch
from course_utils.launcher.worker_group import Stopped

ROWS = json.loads(messages.CATALOGUE.read_text(encoding="utf-8"))
SPEAKER = Speaker(ROWS)
HAN = re.compile("[\u4e00-\u9fff]")
LOCALE = ("COURSE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")


@pytest.fixture
def in_chinese(monkeypatch):
    monkeypatch.setenv("COURSE_LANG", "zh")


def checked(fn):
    exercise = {"spec": answers.spec, "inputs": answers.inputs}
    return check(fn, **exercise, world_sizes=(2,), cases=CASES[1:2], timeout=60.0)


def forgets_to_return(tensor):
    print("rank 0 failed: It called nothing.")
    answers.right(tensor)


# Whose language it is.


@pytest.mark.parametrize(
    ("environment", "chinese"),
    [
        ({}, False),
        ({"LANG": "en_GB.UTF-8"}, False),
        ({"COURSE_LANG": "zh"}, True),
        ({"LANG": "zh_CN.UTF-8"}, True),
        ({"LANG": "de_DE.UTF-8", "LC_ALL": "zh_TW"}, True),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, False),
        ({"LANG": "zh_CN.UTF-8", "COURSE_LANG": "en"}, False),
        ({"LANG": "zh_CN.UTF-8", "COURSE_LANG": ""}, True),  # as make exports it
        ({"COURSE_LANG": "fr"}, False),
    ],
)
def test_the_learner_chooses_before_the_locale_does(environment, chinese, monkeypatch):
    for name in LOCALE:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert messages.in_chinese() == chinese


def test_tests_speak_english_on_every_machine():
    assert os.environ["COURSE_LANG"] == "en"


def test_jupyterlab_and_so_its_kernels_are_told_the_language(in_chinese, tmp_path):
    assert workspace.lab_command(tmp_path, tmp_path)[1]["COURSE_LANG"] == "zh"


def test_in_english_no_catalogue_is_looked_at(monkeypatch):
    monkeypatch.setattr(messages, "_speaker", lambda: pytest.fail("it was loaded"))
    error = ValueError("timeout must be a number of seconds above 0, got -1.")
    messages.retell(error)
    assert messages.said("Rank 0 was stopped.") == "Rank 0 was stopped."
    assert str(error).startswith("timeout must be")


# What a learner meets.


@pytest.fixture(scope="module")
def wrong():
    return checked(forgets_to_return)


def test_a_failing_check_speaks_the_language_of_the_moment(wrong, monkeypatch):
    assert str(wrong).startswith("✗ wrong: forgets_to_return (2 ranks, 5 numbers)\n")
    monkeypatch.setenv("COURSE_LANG", "zh")
    for text in (str(wrong), wrong._repr_html_()):
        assert "forgets_to_return（2 个 rank，5 个数）" in text
        assert "rank 0 和 1 的结果不对。rank 0：要的是张量，得到的是 None。" in text
        assert "是不是每条路径都会走到 `return`？它调用了发给 rank 1 的 send（20 字节）" in text
        assert "得到的（got）" in text
        assert "[rank 1] rank 0 failed: It called nothing." in text  # what it printed
    assert wrong.state == "wrong"
    assert wrong.message.startswith("Ranks 0 and 1 are wrong.")


def test_a_passed_check_and_the_overview_are_chinese(in_chinese, wrong):
    outcome = checked(answers.right)
    assert str(outcome) == "✓ 通过：right（2 个 rank）"
    assert repr(Overview([outcome, wrong])).split("\n") == [
        "2 道练习中通过了 1 道", "✓ right：通过", "✗ forgets_to_return：不对",
    ]  # fmt: skip


def fails_on_rank_1():
    if dist.get_rank() == 1:
        raise ValueError("Rank 0 was stopped.\nIt called nothing.")


def waits_alone():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))


def shown(fn, **options):
    with pytest.raises(Exception) as caught:  # noqa: PT011, what it is is tested
        launch(fn, **options)
    return str(caught.value)


def test_an_exception_of_a_rank_keeps_its_own_words(in_chinese):
    told = shown(fails_on_rank_1)
    assert told.startswith("rank 1 失败：ValueError: Rank 0 was stopped.\nIt called nothing.\n\n")
    assert re.search(r"\n  test_messages.py，第 \d+ 行，函数 fails_on_rank_1\n", told)
    assert "-->" in told
    assert 'raise ValueError("Rank 0 was stopped.\\nIt called' in told
    assert told.endswith("\n\nrank 0 被停掉了。")


def test_a_hang_is_told_in_chinese_with_every_rank_and_line(in_chinese):
    told = shown(waits_alone, timeout=1.5, backend="gloo")
    assert told.startswith(
        "过了 1.5 s，rank 0 还没有结束。\n\n  rank 0：停在 all_reduce 里等待，位于 test_"
    )
    assert "函数 waits_alone：dist.all_reduce(torch.ones(3))\n" in told
    assert "          第 1 次集合操作，形状为 (3,) 的 float32\n  rank 1：它的函数已经返回" in told
    assert "rank 0 在等 rank 1，后者始终没到：" in told
    assert "waited" not in told


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"world_size": 0}, "world_size 必须是不小于 1 的整数，得到的是 0。"),
        ({"nodes": 2, "world_size": 3}, "3 个 rank 无法排成 2 个同样大小的节点：请让 world_size"),
        ({"backend": "mpi"}, "backend='mpi'（torch 的 wheel 里没有编入 MPI）：请选 'auto'、"),
    ],
)
def test_a_refused_argument_is_told_in_chinese(in_chinese, options, words):
    assert shown(waits_alone, **options).startswith(words)


def test_a_stopped_launch_says_so_in_chinese(in_chinese):
    stopped = Stopped()
    messages.retell(stopped)
    assert stopped._render_traceback_() == ["已停止，没有留下任何还在运行的东西。"]


# What is ours and what is not.


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Nobody has ever said this.",
        "ValueError: It called nothing. Rank 0 was stopped.",
        "    -->  15 | raise ValueError('no. Rank 0 was stopped.')",
        '  File "train.py", line 3, in train',
        "wanted 3, got 4",
        "item 3: a tensor",
        "all_reduce on rank 0",
        "\ue000Rank 0 was stopped.",
    ],
)
def test_what_is_not_said_by_the_course_stays(text):
    assert SPEAKER.text(text) == text


def test_an_unknown_sentence_stays_between_known_ones():
    told = SPEAKER.text("Rank 3 was stopped. Perhaps it rains. It called nothing.")
    assert told == "rank 3 被停掉了。Perhaps it rains. 它什么也没有调用。"


@pytest.mark.parametrize("broken", [None, "", "{", "[1]", '[["{a", "{b:c}"]]'])
def test_without_a_catalogue_everything_is_english_and_nothing_breaks(
    broken, in_chinese, tmp_path, monkeypatch
):
    path = tmp_path / "messages.json"
    if broken is not None:
        path.write_text(broken)
    monkeypatch.setattr(messages, "CATALOGUE", path)
    messages._speaker.cache_clear()
    try:
        assert shown(waits_alone, world_size=0).startswith("world_size must be")
    finally:
        messages._speaker.cache_clear()


PIECES = [word for english, *_ in ROWS for word in re.split(r"(\{\w+\})", english)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=12))
def test_any_text_at_all_can_be_handed_in(pieces):
    text = "".join(pieces)
    assert SPEAKER.text(text).count("\n") == text.count("\n")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers()), st.floats(), st.integers(0, 99))
def test_values_and_numbers_survive(wanted, got, rank):
    told = SPEAKER.text(f"Rank {rank}: element [0]: wanted {wanted}, got {got}.")
    assert told == f"rank {rank}：位置 [0] 的元素：要的是 {wanted}，得到的是 {got}。"


@pytest.mark.parametrize("text", ["a " * 9000, "x, " * 4000, "rank 1 and " * 900, ". " * 9000])
def test_long_texts_are_given_up(text):
    assert SPEAKER.text(f"It called {text}") == f"It called {text}"


# The catalogue.


def sample(row, depth=0):
    """A message of this template, of the simplest that may stand in its places."""
    english, chinese, *_ = row
    takes = dict(re.findall(r"\{(\w+)(?::([^{}]*))?\}", chinese))
    plain = {"": "x", "-": "x", "#": "3", "~": "word", "()": "(3,)", "*": "x"}

    def place(match):
        kinds = takes[match[1]].removesuffix("+")
        return plain[kinds] if kinds in plain else sample(simplest(kinds, row), depth + 1)

    assert depth < 9, f"it never ends: {english}"
    return re.sub(r"\{(\w+)\}", place, english)


def simplest(kinds, but):
    own = [kind.partition("=") for kind in kinds.rstrip("?~*").split("|")]
    fit = [
        row
        for row in ROWS
        for kind, _, begins in own
        if row is not but
        and row[0].startswith(begins)
        and any(f"{context}.".startswith(f"{kind}.") for context in row[2:])
    ]
    return min(fit, key=lambda row: (row[0].count("{"), len(row[0])))


def test_every_template_is_found_in_a_message_that_is_made_of_it():
    assert len(ROWS) > 250
    for row in ROWS:
        told = SPEAKER.text(sample(row), "|".join(row[2:]))
        assert HAN.search(told) or not HAN.search(row[1]), row


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course that says one thing, which is translated."""
    for folder in ("course_utils", "course_material", "source/zh"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / catalogue.COMPILED).write_text("[]\n")
    says(tmp_path, "{n} ranks are too many.")
    assert run(tmp_path, "messages") == 0
    path = tmp_path / "source/zh/messages.po"
    catalog = catalogues.read(path)
    catalog.get("{n} ranks are too many.").string = "{n:#} 个 rank 太多了。"
    catalogues.write(catalog, path, "x")
    assert run(tmp_path) == run(tmp_path, "--check") == 0
    return tmp_path


def says(root, text):
    (root / "course_utils/notebook.py").write_text(f'def f(n):\n    raise ValueError(f"{text}")\n')


def run(root, *words):
    return zh.main(["--root", str(root), *words])


def test_a_changed_message_turns_the_check_red_until_somebody_has_looked(course, capsys):
    says(course, "{n} ranks are far too many.")
    assert run(course, "--check") == 1
    assert "the English is another now (1 new, 1 gone)" in capsys.readouterr().out
    assert run(course) == 0
    assert run(course, "--check") == 1
    assert json.loads((course / catalogue.COMPILED).read_text()) == []  # it is English until then
    assert run(course, "--right", "far too many") == 0
    assert run(course, "--check") == 1
    assert "messages.json is old: make zh" in capsys.readouterr().out
    assert run(course) == run(course, "--check") == 0
    assert "messages 100 %" in capsys.readouterr().out


def test_a_message_without_translation_counts(course, capsys):
    says(course, '{n} ranks are too many.") or print("Take less of them.')
    run(course)
    assert run(course, "--check") == 0
    assert "messages 50 %" in capsys.readouterr().out


@pytest.mark.parametrize("chinese", ["太多了。", "{m:#} 个太多了。", "{n:nowhere} 个太多了。"])
def test_a_place_that_is_lost_or_unknown_is_told(course, chinese, capsys):
    path = course / "source/zh/messages.po"
    path.write_text(path.read_text().replace("{n:#} 个 rank 太多了。", chinese))
    assert run(course) == 0
    assert run(course, "--check") == 1
    assert "places differ: " in capsys.readouterr().out
