"""Sliders and the animation: quick enough to drag, and alive without a browser."""

import re
import time
from xml.etree import ElementTree

import pytest
from recordings import NETWORK, one_message, ring, straggler

from course_utils import Network, Trace, animate, explore
from course_utils.pictures.activity import activity
from course_utils.pictures.circle import circle_svg
from course_utils.pictures.svg import timeline_svg


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
    assert activity(straggler().replay(NETWORK, [0, 0, 30.0]), NETWORK).end > 60
    assert ">own code</text>" in picture.value
    slow.value = None
    assert ">own code</text>" not in picture.value


def test_a_slow_rank_computes_more_slowly_where_ranks_compute():
    network = Network(10, 80, slow_ranks={0: 2})
    _, _, slow, how, picture = widgets(explore(straggler(), network, lambda event: 20.0))
    slow.value, how.value = 1, 5.0
    assert how.description == "times slower"
    assert "rank 0 slow, rank 1 slow" in picture.value


@pytest.mark.parametrize("trace", [ring(8), ring(16), straggler()], ids=["8", "16", "collective"])
def test_a_redraw_takes_less_than_a_tenth_of_a_second(trace):
    slider, _, _, _, picture = widgets(explore(trace))
    times = []
    for _, value in slider.options[:6]:
        before, start = picture.value, time.perf_counter()
        slider.value = value
        times.append(time.perf_counter() - start)
        assert picture.value != before
    assert min(times) < 0.1


def test_the_picture_of_very_many_bars_is_drawn_in_a_few_strokes():
    slider, *_, picture = widgets(explore(ring(64)))
    times = []
    for _, value in slider.options[:6]:
        start = time.process_time()
        slider.value = value
        times.append(time.process_time() - start)
    root = ElementTree.fromstring(re.search("<svg.*</svg>", picture.value)[0])
    assert len(list(root.iter())) < 200
    assert len(picture.value) < 1_000_000
    assert min(times) < 0.2  # about 0.09 s of one core


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
    assert not re.search(r"\d", repr(explore(ring(2), compute="measured")).split(":", 1)[1])


def test_the_animation_steps_through_the_messages_one_by_one():
    panel = animate(ring(3))
    step, picture = panel.children[0].children[1], panel.children[1]
    assert "message 1 of 12" in picture.value
    step.value = 12
    assert "message 12 of 12" in picture.value
    assert picture.value.count("got 16.4 KB") == 3  # every rank has all that was sent to it
    assert repr(panel).startswith("12 messages among 3 ranks: rank 0 to 1, 4.1 KB; rank 1 to 2,")


def test_a_replay_and_real_time_can_be_animated_as_well():
    assert "from 0 us to 11.0 us" in animate(one_message().replay(NETWORK)).children[1].value
    assert "from 0.00 ms to 7.00 ms" in circle_svg(activity(one_message()), 0)


def test_every_picture_is_well_formed_and_opaque():
    what = activity(ring(5), NETWORK)
    for drawn in (timeline_svg(what), circle_svg(what, 0), circle_svg(activity(ring(40)), 3)):
        assert 'fill="#fff"' in drawn
        ElementTree.fromstring(drawn)


def test_what_a_learner_wrote_is_text_and_never_markup():
    what = activity(one_message(), NETWORK)
    bars = [bar._replace(source="<script>") for bar in what.bars]
    drawn = timeline_svg(what._replace(bars=bars, clock="<b>"))
    assert "&lt;script&gt;" in drawn
    assert not {"<script>", "<b>"} & set(drawn.replace(">", "> ").split())
