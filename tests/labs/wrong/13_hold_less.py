"""Wrong answers to lab 13's part on sharding, and for each exercise other right ones.

What people write: a gather when it is needed; everything gathered at the start; weights that stay
because forward never lets go; the last layer freed and gathered again at once; reduce-scatters all
at the end, or each waited for. Plans that shard over everything, over a node whatever fits, over
as few ranks as fit, or that forget what is whole while computing.
"""

import labs

lab = labs.cells("13_hold_less")


def _scheduled(units, x, target, **how):
    """The schedule as it should be, but for what `how` says."""
    ahead, back = how.get("ahead", 1), how.get("back", how.get("ahead", 1))
    units[0].gather()
    for number, unit in enumerate(units):
        last = number == len(units) - 1
        if ahead:
            _gather(units, number + 1, number + 1 + ahead)
        x = unit.forward(x)
        if not last or how.get("frees_the_last"):
            unit.free()
        if not ahead:
            _gather(units, number + 1, number + 2)
    if how.get("frees_the_last"):
        units[-1].gather()
    gradient, done = how.get("sign", 1) * (x - target), []
    for number, unit in reversed(list(enumerate(units))):
        if back:
            _gather(units, max(0, number - back), number)
        gradient = unit.backward(gradient)
        if how.get("reduces_first"):
            unit.reduce()
        unit.free()
        if not how.get("reduces_last") and not how.get("reduces_first"):
            unit.reduce()
        if how.get("waits"):
            done.append(unit.finish())
        if not back:
            _gather(units, number - 1, number)
    if how.get("reduces_last"):
        for unit in units:
            unit.reduce()
    return done[::-1] or [unit.finish() for unit in units]


def _gather(units, first, end):
    for unit in units[max(0, first) : end]:
        if not unit.work:
            unit.gather()


def when_it_is_needed(units, x, target):
    return _scheduled(units, x, target, ahead=0)


def ahead_in_forward_only(units, x, target):
    return _scheduled(units, x, target, back=0)


def ahead_in_backward_only(units, x, target):
    return _scheduled(units, x, target, ahead=0, back=1)


def two_ahead(units, x, target):
    return _scheduled(units, x, target, ahead=2)


def two_ahead_in_backward(units, x, target):
    return _scheduled(units, x, target, back=2)


def the_last_freed_and_gathered_again(units, x, target):
    return _scheduled(units, x, target, frees_the_last=True)


def each_sum_waited_for(units, x, target):
    return _scheduled(units, x, target, waits=True)


def all_sums_at_the_end(units, x, target):
    return _scheduled(units, x, target, reduces_last=True)


def the_wrong_way_round(units, x, target):
    return _scheduled(units, x, target, sign=-1)


def all_gathered_at_the_start(units, x, target):
    for unit in units:
        unit.gather()
    for unit in units:
        x = unit.forward(x)
    gradient = x - target
    for unit in reversed(units):
        gradient = unit.backward(gradient)
        unit.free()
        unit.reduce()
    return [unit.finish() for unit in units]


def never_freed(units, x, target):
    _gather(units, 0, 1)
    for number, unit in enumerate(units):
        _gather(units, number + 1, number + 2)
        x = unit.forward(x)
    gradient = x - target
    for unit in reversed(units):
        gradient = unit.backward(gradient)
        unit.reduce()
    return [unit.finish() for unit in units]


def the_first_stays_whole(units, x, target):
    units[0].gather()
    _gather(units, 1, 2)
    x = units[0].forward(x)
    for number, unit in enumerate(units[1:], 1):
        x = unit.forward(x)
        if number < len(units) - 1:
            unit.free()
            units[number + 1].gather()
    gradient = x - target
    for number, unit in reversed(list(enumerate(units))):
        gradient = unit.backward(gradient)
        if number:
            unit.free()
        _gather(units, number - 1, number)
        unit.reduce()
    return [unit.finish() for unit in units]


def freed_before_backward(units, x, target):
    for unit in units:
        unit.gather()
        x = unit.forward(x)
        unit.free()
    gradient = x - target
    for unit in reversed(units):
        gradient = unit.backward(gradient)
        unit.reduce()
    return [unit.finish() for unit in units]


def backwards_from_the_front(units, x, target):
    units[0].gather()
    for number, unit in enumerate(units):
        _gather(units, number + 1, number + 2)
        x = unit.forward(x)
        unit.free()
    gradient = x - target
    for unit in units:
        unit.gather()
        gradient = unit.backward(gradient)
        unit.free()
        unit.reduce()
    return [unit.finish() for unit in units]


def by_places(units, x, target):
    """The next gather is noted as a place; the gradient is reduced before the weight is freed."""
    return _scheduled(units, x, target, reduces_first=True)


def as_one_list(units, x, target):
    """A step is one list of layers, forward and back, and what is gathered next is next in it."""
    count = len(units)
    way = [*range(count), *reversed(range(count))]
    units[0].gather()
    value = x
    for place, number in enumerate(way):
        unit = units[number]
        following = units[way[place + 1]] if place + 1 < len(way) else None
        if following is not None and following is not unit:
            following.gather()
        if place == count:
            value = value - target
        value = unit.forward(value) if place < count else unit.backward(value)
        if following is not unit:
            unit.free()
        if place >= count:
            unit.reduce()
    return tuple(unit.finish() for unit in units)


# 2 · plan


def _needed(layers, layer_bytes, shard):
    return 4 * layers * layer_bytes / shard + 2 * layer_bytes * (shard > 1)


def _planned(
    network, ranks, layers, layer_bytes, memory_bytes, needed=_needed, among=None, by=None
):
    sizes = among or [s for s in range(1, ranks + 1) if ranks % s == 0]
    fits = [s for s in sizes if needed(layers, layer_bytes, s) <= memory_bytes]
    price = by or (lambda s: lab.step_us(network, ranks, s, layers, layer_bytes))
    return (lambda s: (s, ranks // s))(min(fits, key=price)) if fits else None


def over_all_ranks(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=[ranks])


def over_a_node(network, ranks, layers, layer_bytes, memory_bytes):
    among = [ranks // network.nodes]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def over_a_node_or_all(network, ranks, layers, layer_bytes, memory_bytes):
    among = [ranks // network.nodes, ranks]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def over_as_few_as_fit(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, by=lambda s: s)


def over_as_many_as_there_are(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, by=lambda s: -s)


def only_inside_a_node(network, ranks, layers, layer_bytes, memory_bytes):
    per_node = ranks // network.nodes
    among = [s for s in range(1, per_node + 1) if per_node % s == 0]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def powers_of_two(network, ranks, layers, layer_bytes, memory_bytes):
    among = [2**k for k in range(ranks.bit_length()) if ranks % 2**k == 0]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def always_sharded(network, ranks, layers, layer_bytes, memory_bytes):
    among = [s for s in range(2, ranks + 1) if ranks % s == 0] or [1]
    return _planned(network, ranks, layers, layer_bytes, memory_bytes, among=among)


def without_whole_layers(network, ranks, layers, layer_bytes, memory_bytes):
    def needed(layers, layer_bytes, shard):
        return 4 * layers * layer_bytes / shard

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, needed=needed)


def whole_layers_without_sharding(network, ranks, layers, layer_bytes, memory_bytes):
    def needed(layers, layer_bytes, shard):
        return 4 * layers * layer_bytes / shard + 2 * layer_bytes

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, needed=needed)


def weights_alone(network, ranks, layers, layer_bytes, memory_bytes):
    def needed(layers, layer_bytes, shard):
        return layers * layer_bytes / shard + 2 * layer_bytes * (shard > 1)

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, needed=needed)


def less_than_the_memory(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes - 1)


def the_fastest_whatever_fits(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, float("inf"))


def the_slowest(network, ranks, layers, layer_bytes, memory_bytes):
    def by(shard):
        return -lab.step_us(network, ranks, shard, layers, layer_bytes)

    return _planned(network, ranks, layers, layer_bytes, memory_bytes, by=by)


def the_other_way_round(network, ranks, layers, layer_bytes, memory_bytes):
    found = _planned(network, ranks, layers, layer_bytes, memory_bytes)
    return found and found[::-1]


def nothing_fits_is_all_ranks(network, ranks, layers, layer_bytes, memory_bytes):
    return _planned(network, ranks, layers, layer_bytes, memory_bytes) or (ranks, 1)


def as_if_on_one_level(network, ranks, layers, layer_bytes, memory_bytes):
    flat = lab.Network(latency_us=network.latency_us, gbit_s=network.gbit_s)
    return _planned(flat, ranks, layers, layer_bytes, memory_bytes)


def by_a_loop(network, ranks, layers, layer_bytes, memory_bytes):
    """Right: the best so far."""
    best, best_us = None, float("inf")
    for copies in range(1, ranks + 1):
        shard, rest = divmod(ranks, copies)
        if rest:
            continue
        held = 4 * layers * layer_bytes // shard
        held += 0 if shard == 1 else 2 * layer_bytes
        took_us = lab.step_us(network, ranks, shard, layers, layer_bytes)
        if held <= memory_bytes and took_us < best_us:
            best, best_us = [shard, copies], took_us
    return best


def of_one_layer(network, ranks, layers, layer_bytes, memory_bytes):
    """Right: layers are alike, so that one decides."""
    return _planned(
        network, ranks, layers, layer_bytes, memory_bytes,
        by=lambda shard: lab.step_us(network, ranks, shard, 1, layer_bytes),
    )  # fmt: skip


def _stepping(*answers):
    return [lab.stepping(answer) for answer in answers]


class Kept:
    """A unit that seems to let go of its weight."""

    def __init__(self, unit):
        self.unit = unit
        self.weights = []

    def __getattr__(self, name):
        return getattr(self.unit, name)

    def gather(self):
        if not self.weights:
            self.unit.gather()
            self.weights.append((self.unit.whole, self.unit.work))
        self.unit.whole, self.unit.work = self.weights[0]

    def free(self):
        self.unit.whole = self.unit.work = None


def kept_in_secret(units, x, target):
    return _scheduled([Kept(unit) for unit in units], x, target)


WRONG = {
    "step": _stepping(
        when_it_is_needed, ahead_in_forward_only, ahead_in_backward_only, two_ahead,
        two_ahead_in_backward, the_last_freed_and_gathered_again, each_sum_waited_for,
        all_sums_at_the_end, the_wrong_way_round, all_gathered_at_the_start, never_freed,
        the_first_stays_whole, freed_before_backward, backwards_from_the_front, kept_in_secret,
    ),
    "plan": [
        over_all_ranks, over_a_node, over_a_node_or_all, over_as_few_as_fit,
        over_as_many_as_there_are, only_inside_a_node, powers_of_two, always_sharded,
        without_whole_layers, whole_layers_without_sharding, weights_alone, less_than_the_memory,
        the_fastest_whatever_fits, the_slowest, the_other_way_round, nothing_fits_is_all_ranks,
        as_if_on_one_level,
    ],
}  # fmt: skip
STOPS = {"freed_before_backward", "backwards_from_the_front"}
RIGHT = {"step": _stepping(by_places, as_one_list), "plan": [by_a_loop, of_one_layer]}
