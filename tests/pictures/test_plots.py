"""What a figure leaves in a notebook: a picture, and a sentence that a test can compare."""

import io
import struct

import matplotlib.pyplot as plt

from course_utils import show
from course_utils.pictures.style import OKABE_ITO, plain_style, rank_style


def draw(text, width_inches=4):
    figure, axes = plt.subplots(figsize=(width_inches, 2))
    axes.plot([0, 1], [1, 0], **rank_style(0))
    show(figure, text)


def test_a_figure_is_closed_so_that_the_notebook_does_not_draw_it_again(shown):
    left_by_other_tests = plt.get_fignums()
    draw("a line falls")
    assert plt.get_fignums() == left_by_other_tests


def test_the_picture_carries_its_sentence_as_text_and_again_in_a_line_below(shown):
    draw("a line falls")
    (picture, _), (below, _) = shown
    assert picture["text/plain"] == "Figure: a line falls"
    assert below["text/plain"] == "a line falls"
    assert ">a line falls</p>" in below["text/html"]


def test_with_a_caption_the_whole_text_is_only_heard_and_the_caption_is_seen(shown):
    figure, _ = plt.subplots()
    show(figure, "all of it in words", "what to look for")
    (picture, _), (below, _) = shown
    assert picture["text/plain"] == "Figure: all of it in words"
    assert below["text/plain"] == "what to look for"
    heard, seen = below["text/html"].removesuffix("</p>").split("</p>")
    assert "clip-path" in heard
    assert heard.endswith(">all of it in words")
    assert "clip-path" not in seen
    assert seen.endswith(">what to look for")


def test_a_script_prints_the_sentence_and_no_bytes(capsys):
    draw("a line falls")
    assert capsys.readouterr().out == "a line falls\n"


def test_the_sentence_below_is_text_and_never_markup(shown):
    draw("loss < 1 & falls")
    assert "loss &lt; 1 &amp; falls" in shown[1][0]["text/html"]


def test_the_picture_is_an_opaque_png_shown_at_half_its_size(shown):
    draw("a line falls")
    data, metadata = shown[0]
    pixels, _ = struct.unpack(">II", data["image/png"][16:24])
    corner = plt.imread(io.BytesIO(data["image/png"]))[0, 0]
    assert data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["width"] == pixels // 2
    assert corner.tolist() == [1, 1, 1, 1]


def test_eight_ranks_differ_in_colour_and_in_marker():
    styles = [rank_style(rank) for rank in range(8)]
    assert {style["color"] for style in styles} == set(OKABE_ITO)
    assert len({style["marker"] for style in styles}) == 8
    assert styles[0]["linestyle"] != styles[1]["linestyle"]


def test_a_rank_past_the_palette_still_has_a_style():
    assert rank_style(9) == rank_style(9) != rank_style(8)


def test_what_is_no_rank_has_no_ranks_colour_and_each_its_own_line():
    styles = [plain_style(number) for number in range(3)]
    assert not {style["color"] for style in styles} & set(OKABE_ITO)
    assert len({style["linestyle"] for style in styles}) == 3
