"""That the bonus of lab 07 can be done as well as its text says."""

import functools

import labs

lab = labs.cells("07_data_batches_numerics")
LIMITS = range(200, 1500, 50)  # units of a micro-batch at most


def cut(lengths, order, limit):
    """Consecutive sentences to a micro-batch, in the least time of all together."""

    @functools.cache
    def least(end):
        if not end:
            return 0, ()
        found = []
        for begin in range(end):
            units = lab.units(lengths, order[begin:end])
            if units <= limit or end - begin == 1:
                before, micros = least(begin)
                found.append((before + units, (*micros, order[begin:end])))
        return min(found)

    return least(len(order))[1]


def dealt(lengths, micros):
    """The longest first, to whoever has least to do."""
    hands, busy = [[] for _ in range(4)], [0] * 4
    for units, micro in sorted(((lab.units(lengths, own), own) for own in micros), reverse=True):
        rank = busy.index(min(busy))
        hands[rank].append(micro)
        busy[rank] += units
    return max(busy), hands


def ours(lengths):
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    tried = [dealt(lengths, cut(lengths, order, limit)) for limit in LIMITS]
    return min(one for one in tried if all(one[1]))[1]


def test_sentences_are_divided_as_well_as_the_text_of_lab_07_says():
    assert f"{lab.well_used(lab.plain):.0%}" == "28%"
    assert f"{lab.well_used(ours):.0%}" == "73%"
