"""Timelines: what is drawn, on which clock, and the words that a strict test compares."""

import itertools
import re

import matplotlib.pyplot as plt
import pytest
import torch
import torch.distributed as dist
from conftest import NARROW_PX
from matplotlib.colors import to_rgb
from recordings import NETWORK, event, one_message, ring, straggler

from course_utils import Network, launch, plot_timeline
from course_utils.hang.facts import in_short
from course_utils.network.schedule import ReplayError
from course_utils.network.simulation import Interval
from course_utils.network.trace import Trace
from course_utils.pictures.activity import Activity, activity, named, spans
from course_utils.pictures.shapes import Lines, Words, as_figure, as_svg
from course_utils.pictures.style import us
from course_utils.pictures.timeline import ARROWS, KINDS, draw


def of(trace: Trace, rank: int, what: str) -> list[tuple[float, float]]:
    """Milliseconds from when to when a rank did something."""
    bars = activity(trace).bars
    return [(b.start_us / 1e3, b.end_us / 1e3) for b in bars if (b.rank, b.what) == (rank, what)]


@pytest.mark.parametrize("wrong", [None, 3, [ring(2)], "trace"])
def test_what_is_neither_a_trace_nor_a_replay_is_refused_with_a_sentence(wrong):
    with pytest.raises(TypeError, match=r"drawn of results\.trace or of trace\.replay"):
        plot_timeline(wrong)


def test_a_message_without_partner_is_drawn_in_real_time_and_refused_on_a_network(shown):
    alone = Trace((event(0, 0, "send", 8, peer=1, tag=0, end_s=0.1),), (0.1,) * 2)
    plot_timeline(alone)
    assert shown.text == "Real time, calls of rank 0: 1 send; rank 1: no calls."
    with pytest.raises(ReplayError, match="it has no partner"):
        plot_timeline(alone.replay(NETWORK))


def test_a_hang_is_drawn_as_waiting_until_the_end(shown):
    left = {"finished": False, "end_s": 2.0}
    hang = Trace(
        (event(0, 0, "all_reduce", 8, **left), event(1, 0, "recv", 8, peer=0, tag=0, **left)),
        (2.0,) * 2,
        failed=True,
    )
    plot_timeline(hang)
    assert shown.text == "Real time, calls of rank 0: 1 all_reduce; rank 1: 1 recv."
    assert of(hang, 0, "wait") == of(hang, 1, "wait") == [(0.0, 2000.0)]
    assert {bar.what for bar in activity(hang).bars} == {"wait"}


def test_a_replay_says_who_is_done_when_and_who_waits(shown):
    plot_timeline(one_message().replay(NETWORK))
    assert shown.text == (
        "Virtual time (µs), latency 10 µs, 80 Gbit/s: rank 0 done at 1 µs, waiting for 1 µs of it; "
        "rank 1 done at 11.0 µs, waiting for 11.0 µs of it."
    )


def test_real_time_is_told_without_a_number_that_depends_on_the_clock(shown):
    plot_timeline(one_message())
    assert shown.text == "Real time, calls of rank 0: 1 send; rank 1: 1 recv."


def test_the_author_may_say_it_better(shown):
    plot_timeline(one_message(), "rank 0 waits for rank 1")
    assert shown.text == "rank 0 waits for rank 1"


def add_up() -> torch.Tensor:
    x = torch.ones(6)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.send(x, 1)
    if dist.get_rank() == 1:
        dist.recv(x, 0)
    return x


def test_four_real_ranks_give_the_same_words_in_every_run(shown):
    trace = launch(add_up, world_size=4, trace=True).trace
    plot_timeline(trace)
    assert shown.text == (
        "Real time, calls of rank 0: 1 all_reduce, 1 send; rank 1: 1 all_reduce, 1 recv; "
        "ranks 2 and 3: 1 all_reduce."
    )
    plot_timeline(trace.replay(NETWORK))
    assert shown.text == (
        "Virtual time (µs), latency 10 µs, 80 Gbit/s: ranks 0, 2 and 3 done at 60.0 µs, waiting "
        "for 60.0 µs of it; rank 1 done at 70.0 µs, waiting for 70.0 µs of it."
    )


def test_in_real_time_calls_last_from_their_start_to_their_end_and_the_rest_is_own_code():
    assert of(one_message(), 0, "send") == [pytest.approx((0.0, 7.0))]
    assert of(one_message(), 0, "send") == of(one_message(), 0, "wait")
    assert of(one_message(), 1, "receive") == [pytest.approx((5.0, 7.0))]
    assert of(one_message(), 0, "compute") == [pytest.approx((7.0, 10.0))]
    (arrow,) = activity(one_message()).arrows
    assert (arrow.rank, arrow.peer, arrow.end_us) == (0, 1, pytest.approx(7000.0))
    assert of(straggler(), 2, "compute") == [pytest.approx((0.0, 20.0))]


def test_each_message_of_a_replay_has_an_arrow_from_its_sender_to_its_receiver():
    arrows = activity(ring(3).replay(NETWORK)).arrows
    assert len(arrows) == 12
    assert {(a.rank, a.peer) for a in arrows} == {(0, 1), (1, 2), (2, 0)}
    assert all(a.end_us - a.start_us == pytest.approx(10 + 4096 / 10_000) for a in arrows)


def lightness(colour: str) -> float:
    """From 0, black, to 100, white: L* of CIELAB, as the eye sees it without colours."""
    linear = [((c + 0.055) / 1.055) ** 2.4 if c > 0.04 else c / 12.92 for c in to_rgb(colour)]
    red, green, blue = linear
    return 116 * (0.2126 * red + 0.7152 * green + 0.0722 * blue) ** (1 / 3) - 16


def test_every_kind_differs_from_every_other_in_colour_and_without_it():
    for one, other in itertools.combinations(KINDS.values(), 2):
        assert (
            max(abs(a - b) for a, b in zip(to_rgb(one.fill), to_rgb(other.fill), strict=True)) > 0.1
        )
        assert abs(lightness(one.fill) - lightness(other.fill)) > 9
        assert (one.middle, one.is_hatched) != (other.middle, other.is_hatched)
    assert [kind for kind, style in KINDS.items() if style.is_hatched] == ["wait"]


@pytest.mark.parametrize("world_size", [2, 4, 64])
def test_hatching_is_slanted_and_inside_of_its_bars_since_upright_lines_are_messages(world_size):
    drawn = draw(activity(ring(world_size).replay(NETWORK)))
    wait = KINDS["wait"]
    bars = [shape for shape in drawn.shapes if isinstance(shape, Lines)]
    bars = [shape for shape in bars if shape.colour == wait.fill]
    for bar in bars:
        hatching = drawn.shapes[drawn.shapes.index(bar) + 1]
        assert hatching.colour == wait.ink
        height = bar.width
        middles = {y for _, y, _, _ in bar.ends}
        begin = min(left for left, *_ in bar.ends) - 0.001
        end = max(right for _, _, right, _ in bar.ends) + 0.001
        for x1, y1, x2, y2 in hatching.ends:
            assert abs((x2 - x1) - (y1 - y2)) < 1e-6
            assert begin <= x1 < x2 <= end
            middle = min(middles, key=lambda y, at=y1: abs(y - at))
            assert middle + height / 2 + 0.001 >= y1 > y2 >= middle - height / 2 - 0.001
        assert hatching.ends
    assert len(bars) == 2  # the ranks' and the legend's


def test_a_bar_too_narrow_to_be_filled_is_drawn_in_ink():
    bars = [Interval(0, 0, 0.4, "send", None), Interval(0, 50, 100, "send", None)]
    drawn = draw(Activity(bars, [], (100.0,), "time"))
    in_ink, in_fill = (
        [shape for shape in drawn.shapes if isinstance(shape, Lines) and shape.colour == colour]
        for colour in (KINDS["send"].ink, KINDS["send"].fill)
    )
    assert [len(lines.ends) for lines in in_ink] == [1, 2]  # first the legend's
    assert [len(lines.ends) for lines in in_fill] == [1, 1]


def test_lanes_of_a_rank_do_not_overlap():
    middles = ((style.middle, style.height / 2) for style in KINDS.values())
    lanes = {(middle - half, middle + half) for middle, half in middles}
    assert len(lanes) == 4  # a rank does its own code or waits
    assert all(low < top for (_, low), (top, _) in itertools.pairwise(sorted(lanes)))
    assert max(low for _, low in lanes) < 1


def test_bars_closer_than_a_pixel_become_one():
    bars = [Interval(0, k / 100, k / 100 + 0.005, "send", None) for k in range(100)]
    assert len(spans(bars, 0.5)["send"]) == 2
    assert len(spans(bars, 0.0)["send"]) == 100


def test_bars_that_touch_and_are_wider_than_a_pixel_stay_whole():
    bars = [Interval(0, k, k + 1, "send", None) for k in range(3)]
    assert len(spans(bars, 0.1)["send"]) == 3


def test_the_picture_names_its_clock_its_ranks_and_what_it_shows():
    drawn = draw(activity(ring(4).replay(NETWORK)))
    said = [shape.text for shape in drawn.shapes if isinstance(shape, Words)]
    assert "virtual time (µs), latency 10 µs, 80 Gbit/s" in said
    assert [text for text in said if text.startswith("rank")] == [f"rank {r}" for r in range(4)]
    assert {"waiting in a call", "sending", "receiving", "a message"} < {*said}
    assert all(text in as_svg(drawn) for text in said)
    figure = as_figure(drawn)
    plt.close(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == said


@pytest.mark.parametrize("network", [None, NETWORK])
def test_nothing_at_all_can_be_drawn(network):
    for trace in (Trace((), (0.0,)), Trace((), (0.5,) * 3)):
        drawn = draw(activity(trace.replay(network) if network else trace))
        plt.close(as_figure(drawn))
        assert as_svg(drawn).startswith("<svg")


def test_more_messages_than_one_can_follow_are_not_drawn():
    assert "a message" in as_svg(draw(activity(ring(4).replay(NETWORK))))
    many = activity(ring(12).replay(NETWORK))
    assert len(many.arrows) > ARROWS
    assert "a message" not in as_svg(draw(many))


def test_everything_special_about_a_network_is_named():
    network = Network(
        10, 80, nodes=2, between=(50, 10), slow_links={(0, 1): 3}, slow_ranks={2: 4}
    )  # fmt: skip
    assert named(network) == (
        "latency 10 µs, 80 Gbit/s, 2 nodes with 50 µs, 10 Gbit/s between them, "
        "slow link 0 to 1, rank 2 slow"
    )


def test_words_for_numbers():
    assert [us(t) for t in (0, 0.024, 9.5, 12_345.67)] == [
        "0 µs",
        "0.024 µs",
        "9.5 µs",
        "12,345.7 µs",
    ]
    assert [in_short(r) for r in ([3], [0, 1], [0, 1, 2], [0, 2, 5])] == [
        "rank 3", "ranks 0 and 1", "ranks 0 to 2", "ranks 0, 2 and 5",
    ]  # fmt: skip


def test_a_timeline_is_readable_in_a_window_of_900_px(smallest_px):
    whole = draw(activity(ring(4).replay(NETWORK)))
    assert smallest_px(as_figure(whole)) >= 9
    cut = draw(activity(ring(4).replay(NETWORK)), end=1.0)
    assert smallest_px(as_figure(cut)) >= 9
    letters = re.search(r'font-size="(\d+)"', as_svg(cut))  # beside sliders, as wide as the page
    assert int(letters[1]) * NARROW_PX / cut.width >= 8.8
