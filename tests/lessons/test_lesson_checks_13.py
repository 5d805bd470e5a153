"""What a learner writes in chapter 13, and what the check of each rejects."""

import ast
import inspect
import re
import textwrap

import labs
import lesson_answers
import pytest
import torch
import torch.distributed as dist

from course_lessons import chapter_13, sharding
from course_lessons import chapter_13_pictures as pictures

SOURCE = labs.ROOT / "source/lessons/13_hold_less.py"
pytestmark = pytest.mark.slow
ANSWERS = lesson_answers.answers_of("13")


def test_stubs_promise_about_as_many_lines_as_our_own_forms_have():
    text = SOURCE.read_text(encoding="utf-8")
    forms = {
        "bytes_per_rank": [chapter_13.bytes_per_rank],
        "MyZero1": [sharding.Zero1.gather, sharding.Zero1.reduce],
        "MyZero2": [sharding.Zero2.gradient_is_ready],
        "MyZero3": [getattr(sharding.Zero3, name) for name in ("read", "free", "pack", "unpack")],
        "MyRecompute": [sharding.Recompute.forward, sharding.Recompute.backward],
    }
    for name, functions in forms.items():
        stub = re.search(rf"^(?:def|class) {name}\(.*?(?=^# %%)", text, re.M | re.S)[0]
        promised = [int(lines) for lines in re.findall(r'"about (\d+) lines', stub)]
        tree = [ast.parse(textwrap.dedent(inspect.getsource(function))) for function in functions]
        for module, lines in zip(tree, promised, strict=True):
            body = [
                line
                for line in module.body[0].body
                if not isinstance(line, ast.Expr) or not isinstance(line.value, ast.Constant)
            ]
            written = sum(line.end_lineno - line.lineno + 1 for line in body)
            assert abs(written - lines) <= 1, (name, written)


def test_the_papers_3_is_no_right_prediction_where_2_875_is_sent():
    text = SOURCE.read_text(encoding="utf-8")
    within = float(re.search(r"zero3_sends\.measured\(rows\[.*\]\.sent, within=(.*)\)", text)[1])
    assert within * 2.875 < 3 - 2.875


def test_a_learners_own_stage_is_drawn_right_or_wrong_or_not_at_all(monkeypatch, capsys):
    captions = []
    monkeypatch.setattr(pictures, "show", lambda figure, text, *_: captions.append(text))
    pictures.draw_pieces(sharding.Zero1)
    pictures.draw_pieces(ANSWERS.names["AddedUp"])
    pictures.draw_alive(sharding.Zero1)
    pictures.draw_alive(sharding.Zero2)
    pictures.draw_memory(ANSWERS.names["all_by_the_stage"])
    assert "in their places" in captions[0]
    assert "not there yet" in captions[1]
    assert "all 4 full gradients" in captions[2]
    assert "two full gradients" in captions[3]
    assert "70B on 64: stages 1, 2, 3" in captions[4]
    pictures.draw_pieces(sharding.Shards)
    assert capsys.readouterr().out.startswith("No picture yet")


def not_written(*given):
    raise NotImplementedError("about 3 lines")


class NotWritten(sharding.Shards):
    """As the stub: it has neither half."""


def test_in_place_of_what_is_not_written_ours_is_drawn(texts, capsys):
    pictures.draw_memory(not_written, chapter_13.bytes_per_rank)
    pictures.draw_pieces(NotWritten, sharding.Zero1)
    pictures.draw_alive(NotWritten, sharding.Zero3)
    pictures.draw_units(not_written, chapter_13.train_sharded)
    assert texts[0].startswith("By bytes_per_rank, 80 GB")
    assert texts[1].startswith("Zero1: ")
    assert texts[2] == "Zero3: at most two full weights and two full gradients exist at once."
    assert texts[3].endswith("12 all_gather, 3 reduce_scatter, 1 all_reduce.")
    assert capsys.readouterr().out.count("No picture yet") == 4


def test_a_training_without_units_gathers_all_at_once(texts):
    pictures.draw_units(ANSWERS.names["only_the_network_is_a_unit"])
    assert "1 reduce_scatter" in texts[0]


def test_blocks_that_are_recorded_at_once_and_kept_are_drawn_as_such(texts):
    wrong = {answer.__name__: answer for answer in ANSWERS.wrong["recompute"]}
    pictures.draw_recomputing(wrong["recorded_and_kept"])
    pictures.draw_recomputing(sharding.Recompute)
    assert "0 recorded" in texts[0]
    assert "Autograd keeps 288 bytes for backward; the inputs of the blocks are 288." in texts[1]


def test_a_change_of_ranks_in_mid_epoch_is_drawn_with_every_sample_once(texts):
    data = torch.randn(36, 4)

    def batches(step):
        while True:
            for batch in torch.arange(36).view(3, 12)[step:]:
                yield data[batch[dist.get_rank() :: dist.get_world_size()]]

    def from_the_beginning(step):
        return batches(0)

    for dealt in (batches, from_the_beginning):
        pictures.draw_dealing(dealt, data, [(4, 0, 2), (3, 2, 1)])
    assert [text.split()[-2:] for text in texts] == [["read", "once."], ["not", "once."]]
