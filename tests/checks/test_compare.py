"""What counts as the same, in whatever style it is written, and how a difference is told."""

from collections import Counter, OrderedDict, defaultdict, deque, namedtuple

import numpy as np
import pytest
import torch
from torch import tensor

from course_checks.compare import brief, difference, dtypes_of, leaves

double, single, whole = torch.float64, torch.float32, torch.int64
RECORD = {"loss": 0.5, "rank": 2}
SAME = [
    (torch.tensor(1 / 3, dtype=torch.float64), 1 / 3),
    (0.5, np.float64(0.5)),
    (0.5, np.float32(0.5)),
    (0.1, np.float32(0.1)),
    (2.0, 2),
    (2.0, np.int64(2)),
    (2.0, tensor(2)),
    (0.1, tensor(0.1)),
    (0.1, np.array(0.1)),
    (3, np.int32(3)),
    (3, tensor(3)),
    (True, np.bool_(True)),
    (True, tensor(True)),
    (float("nan"), float("nan")),
    ([1, 2], (1, 2)),
    ((1, 2), [1, 2]),
    ([(1, [2])], ([1, (2,)],)),
    ([0, 1], range(2)),
    ([1, 2], deque([1, 2])),
    ([1, 2], np.array([1, 2])),
    ([1, 2], tensor([1, 2])),
    ([[1.0], [2.0]], tensor([[1.0], [2.0]])),
    ([tensor([1, 2]), tensor([3, 4])], tensor([[1, 2], [3, 4]])),
    ((1, tensor([2.0])), [np.int64(1), np.array([2.0], np.float32)]),
    ([], ()),
    ([1], torch.Size([1])),
    (tensor([1.0, 2.0]), np.array([1, 2], np.float32)),
    (tensor([1.0, 2.0]), tensor([[1.0, 2.0]] * 2)[0]),
    (tensor([1.0, 2.0]), torch.nn.Parameter(tensor([1.0, 2.0]))),
    (tensor(0.1), 0.1),
    (tensor(3), np.int64(3)),
    (tensor([0.1]), tensor([0.1], dtype=double)),
    (tensor([0.1], dtype=double), tensor([0.1])),
    (tensor([1.0]), tensor([1])),
    (tensor([3]), tensor([3], dtype=torch.int32)),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": 2, "b": 1}, Counter("aba")),
    ({"a": [1]}, defaultdict(list, a=(1,))),
    (RECORD, RECORD | {"seconds": 3}),
    ({"send": 4}, {"send": 4, "recv": 0}),
    ([RECORD], (RECORD | {"x": None},)),
    ("a", np.str_("a")),
    (None, None),
    (1e20, 10**20),
    ({1, 2}, {2, 1}),
]
OTHER = [
    (2, 2.0, "wanted int 2, got float 2"),
    (1, True, "wanted int 1, got bool True"),
    (True, 1, "wanted bool True, got int 1"),
    (0.0, False, "wanted float 0, got bool False"),
    (2, tensor([2]), "wanted int 2, got a tensor"),
    (2, tensor(2.0), "wanted int 2, got float 2"),
    (3.13767, 3.13768, "wanted 3.13767, got 3.13768"),
    (0.5, "0.5", "wanted float 0.5, got str '0.5'"),
    (0.5, None, "wanted float 0.5, got None"),
    (None, 0.5, "wanted None, got float 0.5"),
    ([1, 2], [1, 2, 3], "wanted 2 items, got 3"),
    ([1], [], "wanted 1 item, got 0"),
    ([1, 2], {1, 2}, "wanted list [1, 2], got set {1, 2}"),
    (["ab"], "ab", "wanted list ['ab'], got str 'ab'"),
    ([1], 1, "wanted list [1], got int 1"),
    (tensor([1.0]), [1.0], "wanted a tensor, got list [1]"),
    (tensor([1.0]), 1.0, "wanted a tensor, got float 1"),
    (tensor(1.0), tensor([1.0]), "wanted shape (), got (1,)"),
    (
        tensor([15.0]),
        tensor(30.0),
        "wanted shape (1,), got (), and the number is wrong as well: wanted 15, got 30",
    ),
    (tensor(True), 1, "wanted dtype bool"),
    (tensor([3]), tensor([3.0]), "wanted dtype int64, got float32"),
    (tensor([True]), tensor([1]), "wanted dtype bool"),
    ({"a": 1}, {"a": 1, "b": 2}, "wanted the keys ['a'], got ['a', 'b']"),
    ({"a": 1}, {}, "wanted the keys ['a']"),
    (RECORD, {"loss": 0.5, "x": 2}, "wanted the keys ['loss', 'rank']"),
    ({"a": 1.0}, {"a": 1.0, "b": 2.0}, "keys"),
    (RECORD, RECORD | {"rank": 1}, "item 'rank': wanted 2, got 1"),
    (10**16, 10**16 + 1, "got 10000000000000001"),
]


@pytest.mark.parametrize("got", [tensor(1.0 + 1e-7), tensor([[1.0]]), tensor([1.0, 2.0])])
def test_of_a_wrong_shape_the_numbers_are_told_only_where_one_is_wrong_too(got):
    assert "the number is wrong" not in difference(tensor([1.0]), got)


@pytest.mark.parametrize(("wanted", "got"), SAME, ids=repr)
def test_a_right_result_is_right_in_any_style(wanted, got):
    assert difference(wanted, got) is None


@pytest.mark.parametrize(("wanted", "got", "said"), OTHER, ids=repr)
def test_another_result_is_told_from_what_is_wanted(wanted, got, said):
    assert said in difference(wanted, got)


@pytest.mark.parametrize("of", [single, double, whole, torch.float16])
def test_a_result_keeps_the_dtype_of_what_was_given(of):
    for other in {single, double, whole, torch.float16} - {of}:
        said = difference(torch.ones(2, dtype=of), torch.ones(2, dtype=other), given={of})
        assert said.startswith("wanted dtype ")


def test_in_double_precision_float32_is_not_enough_and_the_order_of_a_sum_does_not_matter():
    numbers = torch.rand(1000, dtype=double)
    assert difference(numbers.sum(), numbers.flip(0).cumsum(0)[-1]) is None
    assert "element [" in difference(numbers, numbers.float().double(), given={double})


def test_dtypes_are_found_in_models_and_at_any_depth():
    assert dtypes_of([(torch.nn.Linear(1, 1),), {"a": tensor(1)}, 3]) == {single, whole}


@pytest.mark.parametrize(
    ("wanted", "got", "said"),
    [
        (3.13767, 3.1376749, "wanted 3.13767, got 3.1376749"),
        (tensor([3.13767]), tensor([3.13769]), "element [0]: wanted 3.13767, got 3.13769"),
        (tensor([3.137671], dtype=double), tensor([3.137672], dtype=double),
         "element [0]: wanted 3.137671, got 3.137672"),
        ("x" * 90 + "abc" + "y" * 90, "x" * 90 + "abd" + "y" * 90, "wanted ... xxxxxxabcyy"),
    ],
)  # fmt: skip
def test_what_looks_alike_is_shown_where_it_differs(wanted, got, said):
    told = difference(wanted, got)
    assert said in told
    one, other = told.partition("wanted ")[2].split(", got ")
    assert one != other


class Strange:
    """Nothing can be done with it."""

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None
    __repr__ = __eq__


def test_no_result_is_so_strange_that_it_cannot_be_told():
    loop = []
    loop.append(loop)
    for got in (Strange(), loop, torch.ones(2).to_sparse(), np.array([None]), np.longdouble(1), 1j,
                torch.ones(2, device="meta"), 10**400, object, (n for n in ())):  # fmt: skip
        for wanted in (tensor([1.0]), 1.5, 2, "a", [[1]], {"a": 1}, None):
            assert "\n" not in difference(wanted, got)
        assert len(brief(got)) <= 72


def test_the_leaves_of_a_result_are_what_is_in_it_at_any_depth():
    pair = namedtuple("Pair", "first second")
    value = {"a": [1, (2.0, None)], "b": deque([pair("c", {4})]), "d": {}}
    assert leaves(value) == [1, 2.0, None, "c", {4}]
    assert leaves(7) == [7]
