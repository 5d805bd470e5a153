"""Sliders and the animation: they redraw, and are alive without a browser."""

import re
from xml.etree import ElementTree

import pytest
from recordings import NETWORK, one_message, ring, straggler

from course_utils import Network, animate, explore
from course_utils.network.trace import Trace
from course_utils.pictures.activity import activity
from course_utils.pictures.shapes import Corners, as_svg
from course_utils.pictures.timeline import ARROWS, draw


def widgets(panel):
    """Latency, bandwidth, slow rank, by how much; and the picture."""
    (latency, speed), (slow, how) = panel.children[0].children, panel.children[1].children
    return latency, speed, slow, how, panel.children[2]


@pytest.mark.parametrize("wrong", [None, 3, ring(2).replay(NETWORK)])
def test_only_a_recording_can_be_explored(wrong):
    with pytest.raises(TypeError, match="explore needs a recording"):
        explore(wrong)


def test_what_sent_nothing_or_is_no_recording_cannot_be_animated():
    with pytest.raises(ValueError, match="these ranks sent no message"):
        animate(Trace((), ((0.0, 0.0),) * 2))
    with pytest.raises(TypeError, match="not of 'trace'"):
        animate("trace")


def test_a_slider_redraws_from_the_recording():
    latency, speed, _, _, picture = widgets(explore(one_message()))
    assert "rank 1 done at 11.0 us" in picture.value
    latency.value = 100.0
    assert "latency 100 us, 80 Gbit/s: rank 0 done at 1 us" in picture.value
    assert "rank 1 done at 101.0 us" in picture.value
    speed.value = 8.0
    assert "rank 1 done at 110.0 us" in picture.value


def test_a_slow_rank_begins_late_where_nobody_computes():
    _, _, slow, how, picture = widgets(explore(straggler()))
    slow.value, how.value = 2, 30.0
    assert how.description == "late by (us)"
    assert activity(straggler().replay(NETWORK, [0, 0, 30.0])).end > 60
    assert ">own code</text>" in picture.value
    slow.value = None
    assert ">own code</text>" not in picture.value


def test_a_slow_rank_computes_more_slowly_where_ranks_compute():
    network = Network(10, 80, slow_ranks={0: 2})
    _, _, slow, how, picture = widgets(explore(straggler(), network, lambda event: 20.0))
    slow.value, how.value = 1, 5.0
    assert how.description == "times slower"
    assert "rank 0 slow, rank 1 slow" in picture.value


def test_the_picture_of_very_many_bars_is_drawn_in_a_few_strokes():
    slider, *_, picture = widgets(explore(ring(64)))
    before = picture.value
    slider.value = slider.options[0][1]
    assert picture.value != before
    root = ElementTree.fromstring(re.search("<svg.*</svg>", picture.value)[0])
    assert len(list(root.iter())) < 200
    assert len(picture.value) < 1_000_000


def test_every_setting_of_the_sliders_can_be_drawn():
    for network in (NETWORK, Network(0, 1e-3), Network(1e5, 1e5), Network(12.34, 56.78)):
        latency, speed, _, _, picture = widgets(explore(ring(2), network))
        assert (latency.value, speed.value) == (network.latency_us, network.gbit_s)
        for slider in (latency, speed):
            for _, value in slider.options:
                slider.value = value
        ElementTree.fromstring(re.search("<svg.*</svg>", picture.value)[0])


def test_a_saved_notebook_keeps_a_picture_and_the_same_words_in_every_run():
    wanted = (
        "Explore 2 ranks: Virtual time (us), latency 10 us, 80 Gbit/s: rank 0 done at 1 us, "
        "waiting for 1 us of it; rank 1 done at 11.0 us, waiting for 11.0 us of it."
    )
    panel = explore(one_message())
    data, metadata = panel._repr_mimebundle_()
    assert repr(panel) == wanted
    assert data["text/plain"] == f"Figure: {wanted}"
    assert data["image/png"].startswith(b"\x89PNG")
    assert set(metadata) == {"image/png"}


def test_the_animation_steps_through_the_messages_one_by_one():
    panel = animate(ring(3))
    step, picture = panel.children[0].children[1], panel.children[1]
    assert "message 1 of 12</b>: rank 0 to 1, 4.1 KB, from 0 us to 10.4 us" in picture.value
    assert picture.value.count("+ 4.1 KB") == 1
    step.value = 12
    assert "message 12 of 12" in picture.value
    assert picture.value.count("+ 16.4 KB") == 3  # every rank has all that was sent to it
    assert repr(panel).startswith("12 messages among 3 ranks: rank 0 to 1, 4.1 KB; rank 1 to 2,")


def test_a_replay_can_be_animated_as_well():
    assert "from 0 us to 11.0 us" in animate(one_message().replay(NETWORK)).children[1].value


def test_of_very_many_messages_the_last_ones_are_animated():
    what = activity(ring(40).replay(NETWORK))
    drawn = draw(what, step=3000)
    heads = [shape for shape in drawn.shapes if isinstance(shape, Corners)]
    assert len(heads) == ARROWS + 3  # the legend has one, and the last message two


def test_every_picture_is_well_formed_and_opaque():
    what = activity(ring(5).replay(NETWORK))
    for drawn in (draw(what), draw(what, step=3), draw(activity(ring(40).replay(NETWORK)), step=3)):
        assert 'fill="#fff"' in as_svg(drawn)
        ElementTree.fromstring(as_svg(drawn))


def test_a_bar_says_what_it_is_and_how_many_it_stands_for():
    what = activity(one_message().replay(NETWORK))
    assert "<title>send 10000 bytes to rank 1</title>" in as_svg(draw(what))
    one = what.bars[0]._replace(start_us=0.0, end_us=0.001)
    many = what._replace(bars=[one, one._replace(start_us=0.002, end_us=0.003), *what.bars[1:]])
    assert ", and 1 more</title>" in as_svg(draw(many))


def test_what_a_learner_wrote_is_text_and_never_markup():
    what = activity(one_message().replay(NETWORK))
    bars = [bar._replace(peer="<script>" if bar.what == "send" else bar.peer) for bar in what.bars]
    drawn = as_svg(draw(what._replace(bars=bars, clock="<b>")))
    assert "&lt;script&gt;" in drawn
    assert not {"<script>", "<b>"} & set(drawn.replace(">", "> ").split())
