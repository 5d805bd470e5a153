"""Sliders: they redraw, and are alive without a browser."""

import re
from xml.etree import ElementTree

import pytest
from recordings import NETWORK, one_message, ring, straggler

from course_utils import Network, explore
from course_utils.pictures.activity import activity
from course_utils.pictures.shapes import as_svg
from course_utils.pictures.timeline import draw


def widgets(panel):
    """Latency, bandwidth, slow rank, by how much; and the picture."""
    (latency, speed, _), (slow, how) = (row.children for row in panel.children[:2])
    return latency, speed, slow, how, panel.children[2]


def ticks(picture):
    """The numbers below the axis."""
    return re.findall(r'text-anchor="middle" fill="#222222">([\d,.]+)<', picture.value)


@pytest.fixture
def clock(monkeypatch):
    """The time that widgets go by: `clock[0]`, in seconds."""
    now = [0.0]
    monkeypatch.setattr("course_utils.pictures.widgets.time.monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("wrong", [None, 3, ring(2).replay(NETWORK)])
def test_only_a_recording_can_be_explored(wrong):
    with pytest.raises(TypeError, match="explore needs a recording"):
        explore(wrong)


def test_a_slider_redraws_from_the_recording():
    latency, speed, _, _, picture = widgets(explore(one_message()))
    assert "rank 1 done at 11.0 µs" in picture.value
    latency.value = 100.0
    assert "latency 100 µs, 80 Gbit/s: rank 0 done at 1 µs" in picture.value
    assert "rank 1 done at 101.0 µs" in picture.value
    speed.value = 8.0
    assert "rank 1 done at 110.0 µs" in picture.value


def test_the_axis_stays_and_what_it_cannot_show_is_cut_and_marked_until_one_presses_fit():
    panel = explore(one_message())
    (latency, _, fit), picture = panel.children[0].children, panel.children[2]
    before = ticks(picture)
    assert before[-1] == "12"
    assert "▸" not in picture.value
    latency.value = 100.0
    assert ticks(picture) == before
    assert ">▸ 101.0 µs</text>" in picture.value
    assert "The axis ends at 12.0 µs: press <b>fit</b>" in picture.value
    xs = [float(x) for x in re.findall(r"[ML](\d+\.\d) ", picture.value)]
    assert max(xs) == 680  # where the axis ends
    fit.click()
    assert ticks(picture)[-1] == "120"
    assert "▸" not in picture.value
    latency.value = 0.1
    assert ticks(picture)[-1] == "120"


def test_an_outline_and_a_sentence_keep_the_state_before_this_drag(clock):
    latency, speed, _, _, picture = widgets(explore(one_message()))
    assert "<b>All are done at 11.0 µs</b>.<" in picture.value
    assert "#D55E00" not in picture.value
    for value in (12.0, 15.0, 20.0):
        latency.value = value
    assert "<b>All are done at 21.0 µs</b>; before, at 11.0 µs (outlined)" in picture.value
    assert picture.value.count("#D55E00") == 2  # a rank each
    clock[0] += 10
    latency.value = 25.0  # later, so a drag of its own
    assert "<b>All are done at 26.0 µs</b>; before, at 21.0 µs (outlined)" in picture.value
    speed.value = 8.0  # another slider
    assert "<b>All are done at 35.0 µs</b>; before, at 26.0 µs (outlined)" in picture.value


def test_eight_ranks_leave_room_for_sliders_on_a_small_screen():
    assert draw(activity(ring(8).replay(NETWORK))).height < 450


def test_a_slow_rank_begins_late_where_nobody_computes():
    _, _, slow, how, picture = widgets(explore(straggler()))
    slow.value, how.value = 2, 30.0
    assert how.description == "late by (µs)"
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
        "Explore 2 ranks: Virtual time (µs), latency 10 µs, 80 Gbit/s: rank 0 done at 1 µs, "
        "waiting for 1 µs of it; rank 1 done at 11.0 µs, waiting for 11.0 µs of it."
    )
    panel = explore(one_message())
    data, metadata = panel._repr_mimebundle_()
    assert repr(panel) == wanted
    assert data["text/plain"] == f"Figure: {wanted}"
    assert data["image/png"].startswith(b"\x89PNG")
    assert set(metadata) == {"image/png"}


def test_every_picture_is_well_formed_and_opaque():
    what = activity(ring(5).replay(NETWORK))
    for drawn in (draw(what), draw(what, 40.0, [70.0, 0.0, 1e9] * 2)):
        assert 'fill="#fff"' in as_svg(drawn)
        ElementTree.fromstring(as_svg(drawn))


def test_what_the_clock_is_called_is_text_and_never_markup():
    what = activity(one_message().replay(NETWORK))
    assert "<b>" not in as_svg(draw(what._replace(clock="<b>")))
