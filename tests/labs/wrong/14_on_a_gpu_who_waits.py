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
    parts = {"GPU": compute_us, "network": any_us - compute_us, "host": sum(steps) - any_us}
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


def added_up_but_not_more_than_all(rows):
    compute, talk = ([row.us for row in own] for own in _kernels(rows))
    any_us = busy_us([row for own in _kernels(rows) for row in own])
    compute_us, talk_us = min(sum(compute), any_us), min(sum(talk), any_us)
    share = (compute_us + talk_us - any_us) / talk_us if talk_us else 0
    helps = {"GPU": compute_us, "network": any_us - compute_us, "host": sum(_steps(rows)) - any_us}
    return _sent(rows) / len(_steps(rows)), max(share, 0), _largest(**helps)


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
    neither_us = sum(_steps(rows)) - compute_us - talk_us + both_us
    helps = _largest(GPU=compute_us, network=talk_us - both_us, host=neither_us)
    return [_sent(rows) / len(_steps(rows)), both_us / talk_us if talk_us else 0, helps]


def by_cumulative_sums(rows):
    """A column for each moment at which something starts or ends, with torch."""
    own, talk = map(list, _kernels(rows))
    moments = torch.tensor(
        sorted({at for row in own + talk for at in (row.start_us, row.end_us)}),
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

    computes, talks = covered(own), covered(talk)
    times = [computes, talks & ~computes, talks & computes, talks]
    compute_us, only_us, both_us, talk_us = (float(lengths[which].sum()) for which in times)
    host_us = sum(_steps(rows)) - compute_us - only_us
    share = both_us / talk_us if talk else 0.0
    return (
        _sent(rows) / len(_steps(rows)),
        share,
        _largest(GPU=compute_us, network=only_us, host=host_us),
    )


WRONG = {
    "read": [
        all_collectives_are_all_reduces,
        copies_are_sent_too,
        bytes_of_all_steps,
        kernels_are_added_up,
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
    ]
}
RIGHT = {"read": [merged_intervals, by_cumulative_sums]}
