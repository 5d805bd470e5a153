"""Wrong answers to lab 14, and for its exercise other right ones.

Most are readings of a profile that people really make: times of kernels are added up though the
kernels overlap, the time of a collective is taken for what a faster network would save, and a copy
for computing.
"""

import labs
import torch

lab = labs.cells("14_on_a_gpu_who_waits")
busy_us = lab.busy_us


def _kernels(rows):
    return ([row for row in rows if row.kind == kind] for kind in ("compute", "collective"))


def _sent(rows):
    return sum(row.bytes for row in rows if "AllReduce" in row.name)


def _steps(rows):
    return [row.us for row in rows if row.kind == "step"]


def _largest(**parts):
    return max(parts, key=parts.get)


def _told(rows, sent=None, compute=None, talk=None, none=0.0, over=None, helps=None, busy=busy_us):
    """The solution, with a mistake put in: an argument that is given replaces its part."""
    own, others = _kernels(rows)
    compute, talk = own if compute is None else compute, others if talk is None else talk
    compute_us, talk_us, any_us = busy(compute), busy(talk), busy([*compute, *talk])
    beside_us, steps = compute_us + talk_us - any_us, _steps(rows)
    share = beside_us / (over or talk_us) if talk_us else none
    with_copies_us = busy([*compute, *talk, *[row for row in rows if row.kind == "copy"]])
    parts = {"GPU": compute_us, "network": any_us - compute_us}
    parts |= {"copies": with_copies_us - any_us, "host": sum(steps) - with_copies_us}
    parts |= helps(compute_us, talk_us, any_us, sum(steps)) if helps else {}
    sent = _sent(rows) / len(steps) if sent is None else sent
    return sent, share, _largest(**parts)


def all_collectives_are_all_reduces(rows):
    sent = sum(row.bytes for row in rows if row.kind == "collective") / len(_steps(rows))
    return _told(rows, sent=sent)


def copies_are_sent_too(rows):
    sent = sum(row.bytes for row in rows if row.kind != "collective" or "AllReduce" in row.name)
    return _told(rows, sent=sent / len(_steps(rows)))


def bytes_of_all_steps(rows):
    return _told(rows, sent=_sent(rows))


def kernels_are_added_up(rows):
    return _told(rows, busy=lambda own: sum(row.us for row in own))


def computing_is_added_up_for_the_verdict(rows):
    compute_us = sum(row.us for row in rows if row.kind == "compute")
    return _told(rows, helps=lambda *_: {"GPU": compute_us})


def copies_are_added_up_for_the_verdict(rows):
    copies_us = sum(row.us for row in rows if row.kind == "copy")
    return _told(rows, helps=lambda *_: {"copies": copies_us})


def added_up_but_not_more_than_all(rows):
    compute, talk = ([row.us for row in own] for own in _kernels(rows))
    any_us = busy_us([row for own in _kernels(rows) for row in own])
    compute_us, talk_us = min(sum(compute), any_us), min(sum(talk), any_us)
    share = (compute_us + talk_us - any_us) / talk_us if talk_us else 0
    return _sent(rows) / len(_steps(rows)), max(share, 0), _told(rows)[2]


def copies_compute(rows):
    return _told(rows, compute=[row for row in rows if row.kind in ("compute", "copy")])


def one_compute_stream(rows):
    own, _ = _kernels(rows)
    return _told(rows, compute=[row for row in own if row.lane == "stream 7"])


def only_all_reduces_communicate(rows):
    _, talk = _kernels(rows)
    return _told(rows, talk=[row for row in talk if "AllReduce" in row.name])


def share_of_the_computing(rows):
    own, _ = _kernels(rows)
    return _told(rows, over=busy_us(own))


def all_of_nothing_lies_beside(rows):
    return _told(rows, none=1.0)


def beside_if_it_starts_beside(rows):
    own, talk = map(list, _kernels(rows))
    hidden = [t for t in talk if any(c.start_us <= t.start_us < c.end_us for c in own)]
    share = busy_us(hidden) / busy_us(talk) if talk else 0
    sent, _, helps = _told(rows)
    return sent, share, helps


def percent(rows):
    sent, share, helps = _told(rows)
    return sent, 100 * share, helps


def the_network_is_all_communication(rows):
    return _told(rows, helps=lambda compute, talk, busy, steps: {"network": talk})


def the_host_is_whatever_does_not_compute(rows):
    return _told(rows, helps=lambda compute, talk, busy, steps: {"host": steps - compute})


def copies_are_the_hosts(rows):
    return _told(rows, helps=lambda compute, talk, busy, steps: {"copies": 0, "host": steps - busy})


def never_the_host(rows):
    return _told(rows, helps=lambda compute, talk, busy, steps: {"host": 0})


def the_host_is_never_more_than_the_gap_at_the_end(rows):
    own = [row for kernels in _kernels(rows) for row in kernels]
    begun, over = (min(r.start_us for r in own), max(r.end_us for r in own)) if own else (0, 0)
    return _told(rows, helps=lambda compute, talk, busy, steps: {"host": over - begun - busy})


def one_step_against_all_kernels(rows):
    step_us = _steps(rows)[0]
    return _told(rows, helps=lambda compute, talk, busy, steps: {"host": step_us - busy})


def always_the_host(rows):
    return *_told(rows)[:2], "host"


def merged_intervals(rows):
    """Merges each kind to intervals that do not touch, and cuts them with each other."""

    def merged(kind):
        spans = []
        for row in sorted((r for r in rows if r.kind == kind), key=lambda r: r.start_us):
            if spans and row.start_us <= spans[-1][1]:
                spans[-1][1] = max(spans[-1][1], row.end_us)
            else:
                spans.append([row.start_us, row.end_us])
        return spans

    compute, talk = merged("compute"), merged("collective")
    compute_us, talk_us = (sum(b - a for a, b in spans) for spans in (compute, talk))
    both_us, k = 0.0, 0
    for start_us, end_us in talk:
        while k < len(compute) and compute[k][1] <= start_us:
            k += 1
        for a, b in compute[k:]:
            if a >= end_us:
                break
            both_us += min(b, end_us) - max(a, start_us)
    host_us = sum(_steps(rows)) - busy_us([row for row in rows if row.kind != "step"])
    copies_us = sum(_steps(rows)) - compute_us - talk_us + both_us - host_us
    most = _largest(GPU=compute_us, network=talk_us - both_us, copies=copies_us, host=host_us)
    return [_sent(rows) / len(_steps(rows)), both_us / talk_us if talk_us else 0, most]


def by_cumulative_sums(rows):
    """A column for each moment at which something starts or ends, with torch."""
    own, talk = map(list, _kernels(rows))
    copied = [row for row in rows if row.kind == "copy"]
    moments = torch.tensor(
        sorted({at for row in own + talk + copied for at in (row.start_us, row.end_us)}),
        dtype=torch.float64,
    )
    lengths = moments.diff()

    def covered(kernels):
        change = torch.zeros(len(moments) + 1, dtype=torch.int64)
        for row in kernels:
            at = torch.tensor([row.start_us, row.end_us], dtype=torch.float64)
            first, end = torch.searchsorted(moments, at).tolist()
            change[first] += 1
            change[end] -= 1
        return change.cumsum(0)[: len(lengths)] > 0

    computes, talks, copies = covered(own), covered(talk), covered(copied)
    only_copies = copies & ~computes & ~talks
    times = [computes, talks & ~computes, talks & computes, talks, only_copies]
    seconds = [float(lengths[which].sum()) for which in times]
    compute_us, only_us, both_us, talk_us, copies_us = seconds
    host_us = sum(_steps(rows)) - compute_us - only_us - copies_us
    share = both_us / talk_us if talk else 0.0
    return (
        _sent(rows) / len(_steps(rows)),
        share,
        _largest(GPU=compute_us, network=only_us, copies=copies_us, host=host_us),
    )


def _bills(ranks):
    """What each rank made the others wait, collective by collective."""
    bills = [[] for _ in ranks]
    for kernels in zip(*ranks, strict=True):
        took_us = [kernel.us for kernel in kernels]
        shortest_us = min(took_us)
        late = took_us.index(shortest_us)
        for rank, bill in enumerate(bills):
            bill.append(sum(took_us) - len(ranks) * shortest_us if rank == late else 0.0)
    return bills


def _highest(values):
    values = list(values)
    return values.index(max(values)), max(values)


def the_longest_kernels(ranks):
    totals_us = [sum(kernel.us for kernel in kernels) for kernels in ranks]
    rank, _ = _highest(totals_us)
    return rank, sum(totals_us[rank] - total_us for total_us in totals_us)


def the_last_to_start(ranks):
    """Compares clocks that begin at different moments."""
    rank, _ = _highest(sum(kernel.start_us for kernel in kernels) for kernels in ranks)
    return rank, sum(_bills(ranks)[rank])


def late_most_often(ranks):
    bills = _bills(ranks)
    rank, _ = _highest(sum(us > 0 for us in bill) for bill in bills)
    return rank, sum(bills[rank]) / len(ranks)


def the_longest_wait_of_one(ranks):
    return _highest(max(bill) for bill in _bills(ranks))


def only_the_first_collective(ranks):
    return _highest(bill[0] for bill in _bills(ranks))


def the_spread_of_totals(ranks):
    totals_us = [sum(kernel.us for kernel in kernels) for kernels in ranks]
    return totals_us.index(min(totals_us)), sum(totals_us) - len(ranks) * min(totals_us)


def charged_with_the_longest_only(ranks):
    charged = [0.0] * len(ranks)
    for kernels in zip(*ranks, strict=True):
        took_us = [kernel.us for kernel in kernels]
        charged[took_us.index(min(took_us))] += max(took_us) - min(took_us)
    rank, us = _highest(charged)
    return rank, us if len(ranks) > 2 else 2 * us


def with_a_tensor(ranks):
    took_us = torch.tensor(
        [[kernel.us for kernel in kernels] for kernels in ranks], dtype=torch.float64
    )
    shortest_us, late = took_us.min(0)
    waited_us = (took_us - shortest_us).sum(0)
    bills_us = torch.zeros(len(ranks), dtype=torch.float64).index_add(0, late, waited_us)
    return [int(bills_us.argmax()), float(bills_us.max())]


def _call(rows):
    return max((row for row in rows if row.name.startswith("cuda")), key=lambda row: row.us)


def _around(rows, call):
    operators = [row for row in rows if row.name.startswith("aten::")]
    return [r for r in operators if r.start_us <= call.start_us and call.end_us <= r.end_us]


def _threads_own(rows, call):
    return [row for row in _around(rows, call) if row.lane == call.lane]


def _shortest(rows):
    inner = min(rows, key=lambda row: row.us, default=None)
    return inner and inner.name


def the_outermost(rows):
    call = _call(rows)
    outer = max(_threads_own(rows, call), key=lambda row: row.us, default=None)
    return outer and outer.name, call.us


def the_longest_operator(rows):
    operators = [row for row in rows if row.name.startswith("aten::")]
    return max(operators, key=lambda row: row.us).name, _call(rows).us


def of_any_thread(rows):
    call = _call(rows)
    return _shortest(_around(rows, call)), call.us


def only_in_item(rows):
    call = _call(rows)
    inside = any(row.name == "aten::item" for row in _threads_own(rows, call))
    return "aten::item" if inside else None, call.us


def only_synchronizing(rows):
    calls = [row for row in rows if "Synchronize" in row.name]
    call = max(calls, key=lambda row: row.us, default=None)
    return call and (_shortest(_threads_own(rows, call)), call.us)


def the_operators_own_time(rows):
    around = _threads_own(rows, _call(rows))
    inner = min(around, key=lambda row: row.us, default=None)
    return inner and (inner.name, inner.us)


def the_last_to_begin(rows):
    """The operator that began last before the call, though it may be over already."""
    call = _call(rows)
    begun = [r for r in rows if r.name.startswith("aten::") and r.start_us <= call.start_us]
    last = max(begun, key=lambda row: row.start_us, default=None)
    return last and last.name, call.us


def by_sorting(rows):
    ordered = sorted(rows, key=lambda row: row.us)
    call = [row for row in ordered if row.name.startswith("cuda")][-1]
    names = [row.name for row in _threads_own(ordered, call)]
    return [names[0] if names else None, call.us]


def _reduced(rows):
    found = [row for row in rows if row.kind == "collective" and "AllReduce" in row.name]
    return sorted(found, key=lambda row: row.start_us)


def _compute(rows):
    return [row for row in rows if row.kind == "compute"]


def _exposed(rows, compute, reduced):
    alone_us = busy_us(compute)
    return _highest(round(busy_us([*compute, row]) - alone_us, 3) for row in reduced)


def the_longest_all_reduce(rows):
    number, _ = _highest(row.us for row in _reduced(rows))
    return number, _exposed(rows, _compute(rows), [_reduced(rows)[number]])[1]


def any_collective(rows):
    talk = [row for row in rows if row.kind == "collective"]
    return _exposed(rows, _compute(rows), sorted(talk, key=lambda row: row.start_us))


def counted_among_collectives(rows):
    number, us = _exposed(rows, _compute(rows), _reduced(rows))
    talk = sorted((r for r in rows if r.kind == "collective"), key=lambda row: row.start_us)
    return talk.index(_reduced(rows)[number]), us


def hidden_if_touched(rows):
    def touched(talk):
        return any(r.start_us < talk.end_us and talk.start_us < r.end_us for r in _compute(rows))

    return _highest(0.0 if touched(row) else row.us for row in _reduced(rows))


def the_last_of_equals_from_1(rows):
    number, us = _exposed(rows, _compute(rows), _reduced(rows))
    return number + 1, us


def computing_of_one_stream(rows):
    compute = [row for row in _compute(rows) if row.lane == "stream 7"]
    return _exposed(rows, compute[::2], _reduced(rows))


def copies_hide(rows):
    busy = [row for row in rows if row.kind in ("compute", "copy")]
    return _exposed(rows, busy, _reduced(rows))


def span_by_span(rows):
    """Walks through the compute kernels that touch each all-reduce."""
    compute, found = sorted(_compute(rows), key=lambda row: row.start_us), []
    for talk in _reduced(rows):
        at_us, alone_us = talk.start_us, 0.0
        for row in compute:
            if row.end_us > at_us and row.start_us < talk.end_us:
                alone_us += max(0.0, row.start_us - at_us)
                at_us = row.end_us
        found.append(round(alone_us + max(0.0, talk.end_us - at_us), 3))
    return _highest(found)


WRONG = {
    "read": [
        all_collectives_are_all_reduces,
        copies_are_sent_too,
        bytes_of_all_steps,
        kernels_are_added_up,
        computing_is_added_up_for_the_verdict,
        copies_are_added_up_for_the_verdict,
        added_up_but_not_more_than_all,
        copies_compute,
        one_compute_stream,
        only_all_reduces_communicate,
        share_of_the_computing,
        all_of_nothing_lies_beside,
        beside_if_it_starts_beside,
        percent,
        the_network_is_all_communication,
        the_host_is_whatever_does_not_compute,
        never_the_host,
        the_host_is_never_more_than_the_gap_at_the_end,
        one_step_against_all_kernels,
        always_the_host,
        copies_are_the_hosts,
    ],
    "straggler": [
        the_longest_kernels,
        the_last_to_start,
        late_most_often,
        the_longest_wait_of_one,
        only_the_first_collective,
        the_spread_of_totals,
        charged_with_the_longest_only,
    ],
    "blocking": [
        the_outermost,
        the_longest_operator,
        of_any_thread,
        only_in_item,
        only_synchronizing,
        the_operators_own_time,
        the_last_to_begin,
    ],
    "most_exposed": [
        the_longest_all_reduce,
        any_collective,
        counted_among_collectives,
        hidden_if_touched,
        the_last_of_equals_from_1,
        computing_of_one_stream,
        copies_hide,
    ],
}
RIGHT = {
    "read": [merged_intervals, by_cumulative_sums],
    "straggler": with_a_tensor,
    "blocking": by_sorting,
    "most_exposed": span_by_span,
}
