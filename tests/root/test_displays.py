"""What ranks display stands below the cell: pictures, tables and text, by rank."""

import sys
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
from kernels import Kernel, warm_kernel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernels' census reads /proc"),
]
SETUP = """
import ipywidgets
import matplotlib.pyplot as plt
from IPython.display import HTML, clear_output, display
%matplotlib inline

def two(show):
    launch(lambda: show(dist.get_rank()), world_size=2)
two(lambda rank: None)
"""


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with warm_kernel(SETUP) as kernel:
        yield kernel


def shown(kernel: Kernel, cell: str) -> list[str | dict[str, str]]:
    """The outputs of a cell: text as it was printed, of displays what they consist of."""
    kernel.run(cell, 60)
    found = []
    for output in kernel.book.cells[-1].outputs:
        found.append(output.get("text") or output.get("data") or output.ename)
        if [type(one) for one in found[-2:]] == [str, str]:  # sent in two messages
            found[-2:] = ["".join(found[-2:])]
    return found


def test_a_picture_of_a_rank_is_a_picture(kernel):
    head, data = shown(kernel, "two(lambda rank: rank and (plt.plot([1, 2]), plt.show()))")
    assert head == "[rank 1]\n"
    assert data["image/png"].startswith("iVBOR")
    assert "Figure" in data["text/plain"]


def test_displays_stand_among_the_prints_in_rank_order(kernel):
    cell = """
    def show(rank):
        time.sleep(0.2 * (1 - rank))
        print("printed")
        display({"rank": rank})
        display(HTML("<b>bold</b>"))
    two(show)
    """
    prints, *displays = shown(kernel, cell)
    assert prints == "[rank 0] printed\n[rank 0]\n"
    html = {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>bold</b>"}
    first, second = ({"text/plain": f"{{'rank': {rank}}}"} for rank in (0, 1))
    assert displays == [first, html, "[rank 1] printed\n[rank 1]\n", second, html]


def texts(kernel: Kernel, cell: str) -> list[str]:
    """The outputs of a cell, of each its text."""
    return [one if isinstance(one, str) else one["text/plain"] for one in shown(kernel, cell)]


def test_first_a_print_then_a_display_then_a_print_come_in_that_order(kernel):
    cell = """
    def show(rank):
        print("first")
        display("second")
        print("third", end="", flush=True)
        os.system("echo fourth")
        display("fifth")
    results = launch(lambda: show(dist.get_rank()), world_size=2)
    """
    each = ["[rank {}] first\n[rank {}]\n", "'second'", "[rank {}] thirdfourth\n[rank {}]\n"]
    lines = [text.format(rank, rank) for rank in (0, 1) for text in [*each, "'fifth'"]]
    assert texts(kernel, cell) == lines
    assert kernel.run("results.output", 60).value == str(["first\nthirdfourth\n"] * 2)


def test_of_very_many_displays_the_first_and_the_last_stand_there(kernel):
    cell = """
    def show(rank):
        for number in range(1000 + rank):
            print(number)
            display(number)
    two(show)
    """
    outputs = "".join(f"{text}\n" for text in texts(kernel, cell))
    assert outputs.startswith("[rank 0] 0\n[rank 0]\n\n0\n[rank 0] 1\n")
    assert "[rank 0] [... 800 displays left out ...]\n[rank 0]\n\n900\n901\n" in outputs
    assert "[rank 1] [... 801 displays left out ...]\n[rank 1]\n\n901\n902\n" in outputs
    assert outputs.endswith("\n999\n1000\n")


def test_of_very_many_lines_a_page_has_the_first_and_the_last_and_says_where_the_others_are(kernel):
    cell = """
    results = launch(lambda: [print(line) for line in range(20_000)], world_size=2)
    print(results.output[1].count("\\n"))
    """
    (text,) = texts(kernel, cell)
    lines = text.splitlines()
    kept = "`results = launch(...)` keeps them in results.output[1]"
    gap = f"[rank 1] [... 19,600 lines left out; {kept} ...]"
    assert lines[401:403] == ["[rank 1] 0", "[rank 1] 1"]
    assert lines[600:603] == ["[rank 1] 199", gap, "[rank 1] 19800"]
    assert lines[-2:] == ["[rank 1] 19999", "20000"]


def test_displays_of_very_many_bytes_are_cut_and_an_update_is_not_lost(kernel):
    cell = """
    def show(rank):
        handle = display(0, display_id=True)
        for number in range(30):
            display(HTML("x" * 1_000_000))
        handle.update(7)
    launch(lambda: show(0), world_size=1);
    """
    outputs = texts(kernel, cell)
    assert outputs[:2] == ["[rank 0]\n", "7"]
    assert "[rank 0] [... 18 displays left out ...]\n[rank 0]\n" in outputs


def test_what_a_rank_clears_again_and_again_does_not_pile_up(kernel):
    cell = """
    def show(rank):
        for number in range(30):
            clear_output(wait=True)
            display(HTML("x" * 1_000_000))
            display(number)
    launch(lambda: show(0), world_size=1);
    """
    assert texts(kernel, cell)[-2:] == ["<IPython.core.display.HTML object>", "29"]


def test_of_a_display_that_is_updated_the_last_one_stands_where_the_first_stood(kernel):
    cell = """
    def show(rank):
        handle = display(0, display_id="one name in all ranks")
        display("after")
        for number in range(1, 50):
            handle.update(number + 100 * rank)
    two(show)
    """
    texts = [one if isinstance(one, str) else one["text/plain"] for one in shown(kernel, cell)]
    assert texts == ["[rank 0]\n", "49", "'after'", "[rank 1]\n", "149", "'after'"]


def test_nothing_is_lost_where_ranks_display_at_the_same_time(kernel):
    cell = """
    def show():
        dist.barrier()
        for number in range(50):
            display(number)
    launch(show, world_size=4);
    """
    texts = [one if isinstance(one, str) else one["text/plain"] for one in shown(kernel, cell)]
    assert texts == [text for r in range(4) for text in (f"[rank {r}]\n", *map(str, range(50)))]


def test_what_a_rank_clears_is_gone_and_not_what_others_show(kernel):
    cell = """
    def show(rank):
        display("first")
        rank or clear_output(wait=True)
        rank and display("second")
    two(show)
    """
    texts = [one if isinstance(one, str) else one["text/plain"] for one in shown(kernel, cell)]
    assert texts == ["[rank 1]\n", "'first'", "'second'"]


def test_in_an_output_of_a_rank_only_that_output_is_cleared(kernel):
    cell = """
    def show():
        display("stays")
        area = ipywidgets.Output()
        display(area)
        for step in range(3):
            with area:
                area.clear_output(wait=True)
                display(f"step {step}")
        display("as well")
    launch(show, world_size=1)
    """
    displays = [output["text/plain"] for output in shown(kernel, cell)[1:-1]]
    assert displays == ["'stays'", "'step 2'", "'as well'"]


def test_an_error_inside_of_an_output_is_that_of_its_rank(kernel):
    cell = """
    def work():
        with ipywidgets.Output():
            if dist.get_rank() == 1:
                raise ValueError("amid the output")
        dist.barrier()
    launch(work)
    """
    ((_, message),) = kernel.run(cell, 60).errors
    assert "rank 1 failed: ValueError: amid the output" in message
    assert "-->   4 |             raise ValueError" in message


@pytest.mark.skipif(not find_spec("rich"), reason="needs rich")
def test_a_bar_of_rich_is_shown_in_its_last_state(kernel):
    cell = """
    from rich.progress import track
    launch(lambda: [step for step in track(range(3), description="train")], world_size=1)
    """
    (bar,) = [text for text in map(str, shown(kernel, cell)) if "train" in text]
    assert "100%" in bar


def test_a_bar_of_tqdm_in_each_rank_is_shown_in_its_last_state(kernel):
    cell = """
    from tqdm.auto import tqdm
    launch(lambda: [step for step in tqdm(range(30), desc="train")])
    """
    before_0, bar_0, before_1, bar_1, _results = shown(kernel, cell)
    assert [before_0, before_1] == ["[rank 0]\n", "[rank 1]\n"]
    for bar in (bar_0, bar_1):
        assert bar["text/plain"].startswith("train: 100%|")
        assert "| 30/30 [" in bar["text/plain"]


def test_of_a_widget_which_ends_with_its_rank_the_text_is_shown(kernel):
    slider = "ipywidgets.IntSlider(3)"
    _, data = shown(kernel, f"two(lambda rank: rank and display({slider}))")
    assert data == {"text/plain": "IntSlider(value=3)"}


def test_a_widget_is_shown_as_it_was_in_the_end_and_a_closed_one_not_at_all(kernel):
    cell = """
    def show():
        slider, closed = ipywidgets.IntSlider(3), ipywidgets.IntSlider(4)
        display(slider)
        display(closed)
        display("between")
        slider.value = 7
        closed.close()
    launch(show, world_size=1)
    """
    displays = [output["text/plain"] for output in shown(kernel, cell)[1:-1]]
    assert displays == ["IntSlider(value=7)", "'between'"]


def test_a_bar_whose_words_nobody_can_ask_any_more_is_shown_by_its_parts(kernel):
    """As that of `tqdm.auto`: its words belong to an object that is gone when its loop is over."""
    cell = """
    class Bar(ipywidgets.HBox):
        def _repr_pretty_(self, printer, cycle):
            printer.text(self.ask())
    def show():
        begun, rest = ipywidgets.HTML("0%"), ipywidgets.HTML(" 0/30")
        bar = Bar(children=[begun, ipywidgets.FloatProgress(0), rest])
        bar.ask = lambda: "0% 0/30"
        display(bar)
        del bar.ask
        begun.value, rest.value = "100%", " 30/30 [00:00&lt;00:00]"
    launch(show, world_size=1)
    """
    displays = [output["text/plain"] for output in shown(kernel, cell)[1:-1]]
    assert displays == ["100% 30/30 [00:00<00:00]"]


@pytest.mark.parametrize(
    ("ends", "error"),
    [
        ("1 / 0", "WorkerError"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "WorkerError"),
        ("time.sleep(100)", "WorkerTimeout"),
    ],
)
def test_what_was_shown_before_an_error_is_not_lost(kernel, ends, error):
    cell = f"""
    def show():
        display("before")
        {ends}
    launch(show, world_size=1, timeout=4)
    """
    assert shown(kernel, cell)[-3:] == ["[rank 0]\n", {"text/plain": "'before'"}, error]


def test_what_no_notebook_can_keep_is_told_in_words_and_half_a_line_is_left_out(kernel):
    cell = """
    class Odd:
        def _repr_mimebundle_(self, **_):
            return {"text/plain": "odd", "image/png": b"png", "application/json": {1j: object}}
    def show(rank):
        get_ipython().display_pub._file.write(b'[0, null, {"text/')
        display(Odd())
    launch(lambda: show(0), world_size=1);
    """
    _, data = shown(kernel, cell)
    assert data == {"text/plain": "odd", "image/png": "cG5n", "application/json": {}}


def test_nothing_is_left_and_the_kernel_displays_as_ever(kernel):
    before = kernel.census()
    [data] = shown(kernel, "display('in the kernel')")
    assert data == {"text/plain": "'in the kernel'"}
    assert shown(kernel, "two(display)")[0] == "[rank 0]\n"
    assert not kernel.left_since(before)
