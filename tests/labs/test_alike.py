"""Answers that are too alike: whom a teacher is told of, and whom not."""

import alike

LONG = """
def total(tensor):
    rank, others = dist.get_rank(), []
    for step in range(1, dist.get_world_size()):
        received = torch.empty_like(tensor)
        dist.recv(received, (rank + step) % dist.get_world_size())
        others.append(received)
    return tensor + sum(others)
"""
RENAMED = LONG.replace("received", "got").replace("others", "all_of_them").replace(
    "    return", "    # mine\n    return"
)  # fmt: skip
OTHER = """
def total(x):
    parts = list(x.tensor_split(dist.get_world_size()))
    while parts:
        last = parts.pop()
        dist.all_reduce(last, op=dist.ReduceOp.SUM)
        if not last.numel():
            break
    return torch.cat([x, x, x])[: len(x)].clone()
"""


def test_answers_that_differ_in_names_and_remarks_alone_are_alike():
    found = alike.pairs({"ada": LONG, "bob": OTHER, "eve": RENAMED}, published="")
    assert [(one, other) for _, one, other in found] == [("ada", "eve")]


def test_short_answers_and_the_published_one_say_nothing():
    short = "def f(x):\n    return x"
    assert alike.pairs({"ada": short, "bob": short}, published="") == []
    assert alike.pairs({"ada": LONG, "bob": RENAMED}, published=LONG) == []
    assert alike.as_published({"ada": RENAMED, "bob": OTHER, "eve": "def f("}, LONG) == ["ada"]


def test_many_pairs_are_told_as_one_group():
    found = [(1.0, "ada", "bob"), (0.95, "eve", "dan"), (0.9, "bob", "cy")]
    assert alike.groups(found) == [["ada", "bob", "cy"], ["dan", "eve"]]
