"""Messages in the learner's language: chosen by the learner, translated where they are made."""

import ast
import dataclasses
import gettext
import os
import re
from pathlib import Path

import answers
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from course_checks.cases import CASES
from course_checks.outcome import Overview
from course_material import predictions
from course_tools import ROOT
from course_tools.i18n import catalogues, messages, zh
from course_tools.learner import workspace
from course_utils import Network, check, explain_dumps, hardware, launch, predict
from course_utils.launcher import language
from course_utils.launcher.captured_output import KEPT_BYTES, CapturedOutput, is_cut
from course_utils.launcher.language import _, english, listed, ngettext, sentences
from course_utils.launcher.stop_button import Stopped

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


def returns_its_own(tensor):
    own = tensor.clone()
    answers.right(tensor)
    return own


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
    assert language.in_chinese() == chinese


def test_tests_speak_english_on_every_machine():
    assert os.environ["COURSE_LANG"] == "en"


def test_jupyterlab_and_so_its_kernels_are_told_the_language(in_chinese, tmp_path):
    assert workspace.lab_command(tmp_path, tmp_path)[1]["COURSE_LANG"] == "zh"


def test_in_english_no_catalogue_is_looked_at(monkeypatch):
    monkeypatch.setattr(language, "_read", lambda folder: pytest.fail("it was read"))
    assert _("rank {rank}: {position}", rank=1, position="here") == "rank 1: here"


def test_what_is_compared_is_english_whatever_the_learner_reads(in_chinese):
    assert _("passed") == "通过"
    with english():
        assert _("passed") == "passed"
    assert _("passed") == "通过"


def test_a_rank_speaks_the_language_of_the_kernel(in_chinese):
    assert launch(lambda: _("passed"), backend="gloo") == ["通过", "通过"]


# How a message is filled in.


@pytest.mark.parametrize(
    ("line", "position"),
    [("train.py:3", "在 train.py:3"), ("单元格 [3]", "在单元格 [3]"), ("（3）", "在（3）")],
)
def test_a_space_stands_between_chinese_and_latin_letters_alone(in_chinese, line, position):
    assert _("at {line}", line=line) == position


@settings(max_examples=40, deadline=None)
@given(st.text(), st.integers())
def test_values_survive_whatever_is_in_them(value, number):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_LANG", "zh")
        filled = _("wanted {wanted}, got {got}", wanted=value, got=number)
    assert value in filled
    assert filled.endswith(str(number))


def test_lists_and_sentences_are_joined_as_the_language_does(in_chinese):
    assert listed([0, 1, 3]) == "0、1 和 3"
    assert sentences("一。", "", "二。", "three.", "four.") == "一。二。three. four."
    assert ngettext("{count} GPU", "{count} GPUs", 2, count=2) == "2 块 GPU"
    with english():
        assert listed([0, 1, 3]) == "0, 1 and 3"
        assert listed([2]) == "2"
        assert sentences("One.", "", "Two.") == "One. Two."
        assert ngettext("{count} GPU", "{count} GPUs", 1, count=1) == "1 GPU"


@pytest.mark.parametrize("broken", [None, b"", b"{", b"\xde\x12\x04\x95", os.urandom(300)])
def test_without_a_catalogue_everything_is_english_and_nothing_breaks(
    broken, in_chinese, tmp_path, monkeypatch
):
    path = tmp_path / "zh_CN/LC_MESSAGES/course.mo"
    if broken is not None:
        path.parent.mkdir(parents=True)
        path.write_bytes(broken)
    monkeypatch.setattr(language, "LOCALE", tmp_path)
    assert refusal(waits_alone, world_size=0).startswith("world_size must be")
    assert language.capitalized("rank 0 was stopped.") == "Rank 0 was stopped."


# What a learner meets.


def test_a_failing_check_is_told_in_chinese(in_chinese):
    wrong = checked(forgets_to_return)
    for text in (str(wrong), wrong._repr_html_()):
        assert "forgets_to_return（2 个 rank，5 个数）" in text
        assert "rank 0 和 1 的结果不对。rank 0：要的是张量，得到的是 None。" in text
        assert "是不是每条路径都会走到 `return`？" in text
        assert "得到的（got）" in text
        assert "[rank 1] rank 0 failed: It called nothing." in text  # what it printed
    assert wrong.state == "wrong"
    assert "它调用了发给 rank 1 的 send（20 字节）" in str(checked(returns_its_own))


def test_a_failing_check_is_told_in_english():
    wrong = checked(forgets_to_return)
    assert str(wrong).startswith("✗ wrong: forgets_to_return (2 ranks, 5 numbers)\n")
    assert wrong.message.startswith("Ranks 0 and 1 are wrong. Rank 0: wanted a tensor, got None.")


def test_a_passed_check_a_stub_and_the_overview_are_chinese(in_chinese):
    passed = checked(answers.right)
    stub = checked(answers.stub)
    assert str(passed) == "✓ 通过：right（2 个 rank）"
    assert str(stub) == "– 尚未作答：stub（大约 6 行）"
    assert repr(Overview([passed, stub])).split("\n") == [
        "2 道练习中通过了 1 道", "✓ right：通过", "– stub：尚未作答",
    ]  # fmt: skip


def test_a_check_that_hangs_names_work_and_advice_in_chinese(in_chinese):
    def waits(tensor):
        if dist.get_rank() == 0:
            dist.all_reduce(tensor)

    told = checked(waits).message
    assert told.startswith("rank 0 永远不会结束。\n\n")
    assert "rank 0 在等 rank 1，后者始终没到：" in told


def fails_on_rank_1():
    if dist.get_rank() == 1:
        raise ValueError("Rank 0 was stopped.\nIt called nothing.")


def waits_alone():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(3))


def refusal(fn, **options):
    with pytest.raises(Exception) as caught:  # noqa: PT011, what it is is tested
        launch(fn, **options)
    return str(caught.value)


def test_an_exception_of_a_rank_keeps_its_own_words(in_chinese):
    told = refusal(fails_on_rank_1)
    assert told.startswith("rank 1 失败：ValueError: Rank 0 was stopped.\nIt called nothing.\n\n")
    assert re.search(r"\n  test_messages.py，第 \d+ 行，函数 fails_on_rank_1\n", told)
    assert "-->" in told
    assert 'raise ValueError("Rank 0 was stopped.\\nIt called' in told
    assert told.endswith("\n\nrank 0 被停掉了。")


@pytest.mark.parametrize(
    ("ends", "words", "reason"),
    [
        (lambda: os.kill(os.getpid(), 9), "进程死于 SIGKILL", "最常见的是内存用完"),
        (lambda: os._exit(3), "进程以退出状态 3 结束了", "请改成让函数返回"),
        (lambda: (n for n in [1]), "它的结果是 generator，无法传回来", "并不会执行其中的任何内容"),
    ],
)
def test_a_likely_reason_is_found_whatever_the_learner_reads(in_chinese, ends, words, reason):
    told = refusal(ends, world_size=1)
    assert words in told
    assert "可能的原因：" in told
    assert reason in told


def test_a_hang_is_told_in_chinese_with_every_rank_and_line(in_chinese):
    told = refusal(waits_alone, timeout=1.5, backend="gloo")
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
    assert refusal(waits_alone, **options).startswith(words)


def test_who_is_guilty_is_told_in_chinese_and_programs_read_english(in_chinese):
    explanation = explain_dumps(ROOT / "tests/data/flight/absent_rank")
    who = "rank 2 始终没有来到默认组的 all_reduce #5，rank 0、1 和 3 在那里或别处等着它。"
    assert who in str(explanation)
    assert "never came to all_reduce #5 of the default group" in explanation.as_json()


def test_a_stopped_launch_says_so_in_chinese(in_chinese):
    assert Stopped()._render_traceback_() == ["已停止，没有留下任何还在运行的东西。"]


def test_a_network_that_cannot_be_is_refused_in_chinese(in_chinese):
    with pytest.raises(ValueError, match=r"^节点之间的延迟必须是不小于 0 的有限数，得到的是 -1$"):
        Network(1.0, 10.0, nodes=2, between=(-1, 5.0))


def test_a_machine_is_described_in_chinese(in_chinese):
    machine = dataclasses.replace(hardware(), cores=2, gpus=(), refusal="", gloo=True, nccl=False)
    cores, _memory, gpus, software = str(machine).split("\n")
    assert cores == "2 个核：同时能运行 2 个 rank，再多就要轮流"
    assert gpus == "没有 GPU：launch 用 gloo，在 CPU 上运行"
    assert software.endswith("（编入了 gloo）")


def test_a_prediction_is_compared_in_chinese(in_chinese, capsys, monkeypatch):
    monkeypatch.setattr(predictions, "_asked", {})
    predict("rank 3 holds", 4).measured(5)
    predict("it takes", ...).measured(5.0, about=True)
    predict()
    compared, unanswered, score = capsys.readouterr().out.splitlines()[:3]
    assert compared == "rank 3 holds：5；你的预测是 4：相差 1"
    assert unanswered == "it takes：约 5（没有预测）"
    assert score == "2 个预测里对了 0 个，1 个还没有结果。"


@pytest.mark.parametrize("spoken", ["en", "zh"])
def test_what_a_rank_printed_is_known_to_be_cut_in_either_language(spoken, monkeypatch):
    monkeypatch.setenv("COURSE_LANG", spoken)
    output = CapturedOutput()
    output.add(b"x" * KEPT_BYTES)
    assert not is_cut(output.text())
    output.add(b"x" * 1000)
    assert is_cut(output.text())
    assert ("略去 1,000 字节" in output.text()) == (spoken == "zh")


# The source and its catalogue.


def modules():
    for package in ("course_utils", "course_checks", "course_testing", "course_material"):
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_no_function_that_says_something_uses_the_name_for_what_it_throws_away():
    """Else `_` would be a number or a tuple there, and not what translates."""
    for path, tree in modules():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.Lambda):
                names = [
                    node
                    for node in ast.walk(function)
                    if isinstance(node, ast.Name | ast.arg) and name_of(node) == "_"
                ]
                calls = [node for node in names if isinstance(getattr(node, "ctx", None), ast.Load)]
                assert not calls or len(calls) == len(names), (path, function.lineno)


def name_of(node):
    return node.id if isinstance(node, ast.Name) else node.arg


def test_every_message_is_a_constant_whose_fields_are_handed_in():
    count = 0
    for path, tree in modules():
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or getattr(call.func, "id", "") not in (
                "_",
                "ngettext",
            ):
                continue
            texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
            assert not any(isinstance(a, ast.JoinedStr) for a in call.args), (path, call.lineno)
            if any(keyword.arg is None for keyword in call.keywords):
                continue  # `**facts`
            given = {keyword.arg for keyword in call.keywords}
            for text in texts:
                named = {re.split(r"\W", field)[0] for field in messages.fields(text)}
                assert named == given, (path, call.lineno)
                count += 1
    assert count > 200


def test_every_message_has_its_chinese_and_all_its_fields():
    assert len(messages.ids(ROOT)) > 300
    assert list(messages.faults(ROOT)) == []


@pytest.fixture
def course(tmp_path):
    """A course that says one thing, which is translated."""
    for folder in ("course_utils", "source/zh"):
        (tmp_path / folder).mkdir(parents=True)
    says(tmp_path, "_('{n} ranks are too many.', n=n)")
    assert run(tmp_path, "messages") == 0
    translate(tmp_path, "{n} ranks are too many.", "{n} 个 rank 太多了。")
    assert run(tmp_path) == run(tmp_path, "--check") == 0
    return tmp_path


def says(root: Path, *calls: str) -> None:
    lines = [f"    print({call})\n" for call in calls]
    (root / "course_utils/notebook.py").write_text("def f(n):\n" + "".join(lines))


def translate(root: Path, english_text: str, chinese) -> None:
    path = root / messages.CATALOGUE
    catalog = catalogues.read(path)
    catalog.get(english_text).string = chinese
    catalogues.write(catalog, path, "x")


def run(root, *words):
    return zh.main(["--root", str(root), *words])


def compiled(root: Path):
    with (root / messages.COMPILED).open("rb") as file:  # gettext.translation would keep the first
        return gettext.GNUTranslations(file)


def test_a_changed_message_turns_the_check_red_until_somebody_has_looked(course, capsys):
    changed = "{n} ranks are far too many."
    says(course, f"_('{changed}', n=n)")
    assert run(course, "--check") == 1
    assert "the English is another now (1 new, 1 gone)" in capsys.readouterr().out
    assert run(course) == 0
    assert run(course, "--check") == 1
    assert compiled(course).gettext(changed) == changed  # it is English until then
    assert run(course, "--right", "far too many") == 0
    assert run(course, "--check") == 1
    assert "course.mo is old: make zh" in capsys.readouterr().out
    assert run(course) == run(course, "--check") == 0
    assert compiled(course).gettext(changed) == "{n} 个 rank 太多了。"
    assert "messages 100 %" in capsys.readouterr().out


@pytest.mark.parametrize("call", ["_('Take less.')", "N_('Take less.')"])
def test_a_new_message_turns_the_check_red(course, call, capsys):
    says(course, "_('{n} ranks are too many.', n=n)", call)
    assert run(course, "--check") == 1
    run(course)
    assert run(course, "--check") == 1
    told = capsys.readouterr().out
    assert "messages 50 %" in told
    assert "no Chinese: Take less." in told


def test_plural_forms_have_one_chinese(course):
    call = "ngettext('{n} rank waits.', '{n} ranks wait.', n, n=n)"
    says(course, "_('{n} ranks are too many.', n=n)", call)
    assert run(course) == 0
    assert run(course, "--check") == 1
    translate(course, "{n} rank waits.", ("{n} 个 rank 在等。",))
    assert run(course) == run(course, "--check") == 0
    for count in (1, 2):
        chinese = compiled(course).ngettext("{n} rank waits.", "{n} ranks wait.", count)
        assert chinese == "{n} 个 rank 在等。"


@pytest.mark.parametrize("chinese", ["太多了。", "{m} 个太多了。", "{n:g} 个太多了。"])
def test_a_field_that_is_lost_or_unknown_is_told(course, chinese, capsys):
    translate(course, "{n} ranks are too many.", chinese)
    assert run(course) == 0
    assert run(course, "--check") == 1
    assert "fields differ: " in capsys.readouterr().out
