"""What a learner writes in chapter 17, what its checks reject, and what it shows."""

import ast
import inspect
import re
import textwrap

import labs
import lesson_answers
import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lessons import chapter_17, tensor_parallel
from course_lessons import chapter_17_pictures as pictures
from course_lessons.tensor_parallel import (
    ColumnLinear,
    CopyToRanks,
    GatherRows,
    RowLinear,
    ScatterRows,
    SumOverRanks,
    share,
)
from course_utils import WorkerError, launch

SOURCE = labs.ROOT / "source/lessons/17_cut_the_layer.py"
pytestmark = pytest.mark.slow
ANSWERS = lesson_answers.answers_of("17")


def test_stubs_promise_about_as_many_lines_as_our_own_forms_have():
    text = SOURCE.read_text(encoding="utf-8")
    forms = {"MyCopy": "CopyToRanks", "MySum": "SumOverRanks", "MyRow": "RowLinear"}
    for name, form in (forms | {"MyColumn": "ColumnLinear"}).items():
        stub = re.search(rf"^class {name}\(.*?(?=^class |^# %%)", text, re.M | re.S)[0]
        promised = [int(lines) for lines in re.findall(r'"about (\d+) line', stub)]
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(tensor_parallel, form))))
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for body, lines in zip(bodies, promised, strict=True):
            # Our forms know of groups, and an __init__ begins with that of nn.Module.
            written = [
                line for line in body if not re.search(r"super|\.group = ", ast.unparse(line))
            ]
            assert abs(len(written) - lines) <= 1, (name, lines)


def test_uneven_features_are_refused_on_every_rank_with_both_numbers():
    def worker():
        return ColumnLinear(nn.Linear(4, 8))

    with pytest.raises(WorkerError, match="8 features can't be cut into 3 equal shares"):
        launch(worker, world_size=3, backend="gloo")


def rows_between():
    """Rows cut and whole again: values, and gradients of both functions."""
    x = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    rows = share(x, 0).requires_grad_()
    whole = GatherRows.apply(rows)
    back = ScatterRows.apply(whole * (1 + dist.get_rank()))
    back.square().sum().backward()
    return whole.detach(), back.detach(), rows.grad


def test_rows_are_gathered_and_scattered_with_exact_gradients():
    ranks = launch(rows_between, world_size=2, backend="gloo")
    x = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    assert all(torch.equal(whole, x) for whole, _, _ in ranks)
    assert torch.equal(torch.cat([back for _, back, _ in ranks]), 3 * x)
    assert torch.equal(torch.cat([gradient for _, _, gradient in ranks]), 18 * x)


def cut_in_groups():
    """Two copies of a block, each cut among two of four ranks."""
    rank = dist.get_rank()
    group = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])][rank // 2]
    torch.manual_seed(0)
    up, down = nn.Linear(6, 8).double(), nn.Linear(8, 6).double()
    x = torch.full((2, 6), 1.0 + rank // 2, dtype=torch.float64)
    cut = RowLinear(down, group)(torch.relu(ColumnLinear(up, group)(x)))
    return (cut - down(torch.relu(up(x)))).abs().max().item()


def test_layers_are_cut_inside_a_group_and_copied_across():
    assert max(launch(cut_in_groups, world_size=4, backend="gloo")) < 1e-12


def three_blocks_of_data():
    """A step whose x needs no gradient, as data doesn't."""
    modules = []
    for _ in range(3):
        modules += [ColumnLinear(nn.Linear(4, 8)), nn.GELU(), RowLinear(nn.Linear(8, 4))]
    nn.Sequential(*modules)(torch.ones(2, 4)).sum().backward()


def test_if_x_is_data_three_blocks_call_five_all_reduces_since_the_first_copy_has_nothing_to_do():
    run = launch(three_blocks_of_data, world_size=2, backend="gloo", trace=True)
    assert [event.kind for event in run.trace.of_rank(0)] == ["all_reduce"] * 5


def test_tensor_parallel_and_data_parallel_send_equally_much_at_four_times_the_width():
    run = launch(chapter_17.data_parallel_step, 64, world_size=2, backend="gloo", trace=True)
    biases = chapter_17.HIDDEN + chapter_17.WIDTH
    numbers = 2 * chapter_17.WIDTH * chapter_17.HIDDEN + biases
    assert chapter_17.sent_kib(run.trace) * 1024 == 4 * numbers
    assert numbers - biases == 2 * (4 * chapter_17.WIDTH) * chapter_17.WIDTH


class NotWritten(torch.autograd.Function):
    """As the stub."""

    @staticmethod
    def forward(ctx, x):
        raise NotImplementedError("about 1 line")


class NothingInBackward(SumOverRanks):
    """Copy in forward, and no sum in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)


def test_both_functions_are_drawn_right_or_wrong_or_ours(texts, capsys):
    pictures.draw_functions((NotWritten, SumOverRanks), (CopyToRanks, SumOverRanks))
    pictures.draw_functions((NothingInBackward, SumOverRanks))
    assert "of x 4 and 4" in texts[0]
    assert "of x 1 and 3" in texts[1]
    assert capsys.readouterr().out.count("No picture yet") == 1


def test_layers_are_drawn_with_what_each_rank_holds_and_whether_they_are_right(texts, capsys):
    pictures.draw_layers((ColumnLinear, RowLinear))
    pictures.draw_layers((ANSWERS.names["NoSumInBackward"], RowLinear))
    pictures.draw_layers((ColumnLinear, ANSWERS.names["DividedBias"]))
    pictures.draw_layers((NotWritten, RowLinear))
    assert "output right, gradient of x right, gradients of A and B right" in texts[0]
    assert "A's weight 16 and 16 of 32" in texts[0]
    assert "output right, gradient of x wrong" in texts[1]
    assert "output right, gradient of x right, gradients of A and B wrong" in texts[2]
    assert len(texts) == 3
    assert "No picture yet" in capsys.readouterr().out


def test_rows_that_a_rank_takes_for_others_are_named(texts):
    rows = torch.arange(24)
    pictures.draw_heads({"in the middle": rows.chunk(2), "alike": rows.chunk(2)})
    assert "rank 0 0–3, 4–7, 8–11; rank 1 12–15, 16–19, 20–23" in texts[0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "none"),
        ("x, first A, first B", "x and the first block"),
        ("x, second A, second B", "x and the second block"),
        ("x, first A, first B, second A, second B", "all"),
        ("x, first A", "x, first A"),
    ],
)
def test_wrong_gradients_have_the_words_of_the_choices(wrong, words):
    names = ("x", "first A", "first B", "second A", "second B")
    gradients = {name: float(name in wrong.split(", ")) for name in names}
    assert chapter_17.where_wrong(chapter_17.Errors(0.0, gradients, False)) == words
