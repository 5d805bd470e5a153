"""How failures become words: cells and lines, echoes, diagnoses, nothing that changes by itself."""

import linecache
import os
import re
import site
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from course_utils import WorkerError, WorkerTimeout, launch
from course_utils.launcher import errors, stacks
from course_utils.launcher.errors import Failure
from course_utils.launcher.stacks import Frame
from course_utils.launcher.words import ranks_named

CELL = "/tmp" + "/ipykernel_7/123.py"
SOURCE = "def train(x):\n    y = x\n\n    dist.barrier()\n    return y\n"
TORCH = os.path.dirname(torch.__file__)
LIBRARY = f"{TORCH}/distributed/distributed_c10d.py"


@pytest.fixture
def cell(monkeypatch):
    """A notebook in which `In [5]` holds SOURCE."""
    shell = SimpleNamespace(compile=SimpleNamespace(_filename_map={CELL: 5}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    linecache.cache[CELL] = (len(SOURCE), None, SOURCE.splitlines(True), CELL)
    yield CELL
    del linecache.cache[CELL]


def waiting() -> list[Frame]:
    """A rank whose line 4 of the cell called something of torch."""
    return [Frame(CELL, 4, "train"), Frame(LIBRARY, 80, "wrapper"), Frame(LIBRARY, 90, "barrier")]


ECHO = "RuntimeError: Connection closed by peer"


@pytest.mark.parametrize("kind", [ConnectionRefusedError, ConnectionResetError, BrokenPipeError])
def test_what_a_socket_of_the_learner_says_is_left_as_it_is(kind):
    failure = errors.from_exception(0, kind(1, "Connection refused, reset by peer"))
    assert failure.headline == f"{kind.__name__}: [Errno 1] Connection refused, reset by peer"


def test_an_echo_that_came_first_is_not_the_cause():
    cause = Failure(1, 2.0, "ValueError: boom")
    error = errors.worker_error([Failure(0, 1.0, ECHO, echo="lost"), cause], 3, ["", "", ""])
    assert error.rank == 1
    assert error.failures[0] is cause
    assert str(error) == "rank 1 failed: ValueError: boom\n\nRanks 0 and 2 were stopped."


def test_ranks_that_failed_alike_but_for_numbers_are_named_together_in_every_order():
    first = Failure(0, 1.0, "ValueError: rank 0 has 3, 4")
    second = Failure(1, 2.0, "ValueError: rank 1 has 7")
    told = {str(errors.worker_error([first, second], 2, ["", ""]))}
    first.when = 3.0
    told.add(str(errors.worker_error([second, first], 2, ["", ""])))
    assert told == {
        "ranks 0 and 1 failed: ValueError: rank 0 has 3, 4\n\n"
        "These are the words of rank 0. Those of rank 1 differ in numbers only."
    }


def test_a_rank_that_failed_by_itself_is_never_told_as_stopped():
    failures = [Failure(0, 1.0, "ValueError: x"), Failure(1, 1.1, "KeyError: 'y'")]
    assert errors.worker_error(failures, 3, [""] * 3).parts[2] == (
        "Rank 1 failed as well: KeyError: 'y'\nRank 2 was stopped."
    )


def test_of_what_torch_raises_again_the_first_words_come_first(cell):
    trace = f'  File "{LIBRARY}", line 3, in fetch\n    get()\n  File "{CELL}", line 3, in f\n'
    words = (
        "Caught ValueError in DataLoader worker process 0.\n"
        f"Original Traceback (most recent call last):\n{trace}    x = 1\nKeyError: 'label'\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        f"Traceback (most recent call last):\n{trace}ValueError: bad\n  indented\n\nand more\n"
    )
    failure = errors.from_exception(0, ValueError(words))
    assert failure.headline == "ValueError: bad\n  indented\n\nand more"
    here, before = failure.details
    assert here.startswith("in DataLoader worker process 0, cell [")
    assert before.startswith("caused by KeyError: 'label', cell [")


def test_a_collective_in_a_worker_of_a_loader_is_told_in_our_words_first():
    class Reduces(Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(WorkerError) as caught:
        launch(lambda: next(iter(DataLoader(Reduces(), num_workers=1))), world_size=1)
    first, second, *_ = str(caught.value).split("\n")
    assert "RuntimeError: a DataLoader worker of rank 0 called all_reduce (" in first
    assert second.startswith("  in DataLoader worker process 0, test_errors.py, line ")
    assert "Traceback" not in str(caught.value)


def test_causes_contexts_notes_and_members_of_a_group_are_told(cell):
    group = ExceptionGroup("two", [ValueError("a"), KeyError("b")])
    group.add_note("sample 3")
    group.__cause__ = OSError("disk")
    group.__cause__.__context__ = EOFError()
    assert raised(group).story().splitlines()[:6] == [
        "ExceptionGroup: two (2 sub-exceptions)",
        "  sample 3",
        "  one of them: ValueError: a",
        "  one of them: KeyError: 'b'",
        "  caused by OSError: disk",
        "  while handling EOFError",
    ]


def test_a_circle_of_causes_is_told_once():
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first
    assert raised(first).details == ["caused by KeyError: 'b'"]


@pytest.mark.parametrize("notes", [None, 3, "a text", {"sample": 3}])
def test_notes_that_are_no_list_are_told_as_they_are_written(notes):
    error = ValueError("boom")
    error.__notes__ = notes
    failure = raised(error)
    assert failure.headline == "ValueError: boom"
    assert failure.details == [repr(notes)]


def test_of_a_group_that_holds_another_many_times_over_the_first_lines_are_told():
    error: Exception = ValueError("a")
    for _level in range(40):
        error = ExceptionGroup("x", [error, error])
    details = raised(error).details
    assert len(details) == 4 * errors._MAX_EXCEPTIONS
    assert details[:3] == ["one of them: ExceptionGroup: x (2 sub-exceptions)"] * 2 + [
        "  one of them: ExceptionGroup: x (2 sub-exceptions)"
    ]


def test_an_exception_of_the_learners_with_the_name_of_one_of_torchs_is_told_as_it_is():
    class CheckpointException(Exception):
        pass

    error = CheckpointException("boom")
    error.failures = {"a": 1}
    assert raised(error).headline == "CheckpointException: boom"


def test_ranks_whose_loaders_worker_has_left_are_named_together():
    ended = "DataLoader worker (pid 71) exited unexpectedly with exit code 3. Details are lost."
    with_details = raised(RuntimeError(ended))
    without = raised(RuntimeError("DataLoader worker (pid(s) 72) exited unexpectedly"))
    without.rank = 1
    first, second, *_ = str(errors.worker_error([without, with_details], 2, ["", ""])).split("\n")
    assert first == "ranks 0 and 1 failed: RuntimeError: DataLoader worker exited unexpectedly"
    assert second == "  with exit code 3. Details are lost."


def test_lines_that_a_library_has_made_up_are_left_out_where_there_are_others(cell):
    """As of a frozen dataclass, whose methods have no text."""
    made_up = Frame("<string>", 4, "__setattr__")
    told = Failure(0, 0.0, "FrozenInstanceError: x", [Frame(cell, 2, "<module>"), made_up]).story()
    assert "cell [5], line 2" in told
    assert "<string>" not in told
    assert "<string>, line 4, in __setattr__" in Failure(0, 0.0, "E: x", [made_up]).story()


def test_the_lines_that_led_to_a_failure_are_told_by_cell(cell):
    failure = Failure(0, 0.0, "ValueError: boom", [Frame(cell, 2, "<module>"), *waiting()])
    error = errors.worker_error([failure], 2, ["", ""])
    assert str(error).splitlines() == [
        "rank 0 failed: ValueError: boom",
        "",
        "  cell [5], line 2: y = x",
        "  cell [5], line 4, in train",
        "          2 |     y = x",
        "    -->   4 |     dist.barrier()",
        "          5 |     return y",
        "",
        "Rank 1 was stopped.",
    ]


def raised(error: BaseException) -> Failure:
    try:
        raise error
    except BaseException as caught:
        return errors.from_exception(0, caught)


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("<object object at 0x7f5e9c0d1430> is wrong", "<object object> is wrong"),
        ("bound to [127.0.0.1]:34567.", "bound to."),
        ("[/src/third_party/gloo/pair.cc:561] Enforce failed", "Enforce failed"),
        ("[enforce fail at /src/device.cc:84] no eth9", "[enforce fail] no eth9"),
        ('File "/a/b/data.py", line 7, in read', "data.py, line 7, in read"),
        ("DataLoader worker (pid 4711) is killed", "DataLoader worker is killed"),
        ("workers (pid(s) 12, 13) exited", "workers exited"),
        ("Timed out waiting 1983ms for recv operation", "Timed out waiting for recv operation"),
    ],
)
def test_what_changes_from_run_to_run_is_left_out(words, left):
    assert raised(RuntimeError(words)).headline == f"RuntimeError: {left}"


def test_an_error_without_words_is_its_name():
    assert raised(KeyError()).headline == "KeyError"


def test_very_long_words_are_cut():
    assert len(raised(ValueError("x" * 10**6)).headline) == errors._MAX_CHARACTERS


def test_a_very_deep_stack_is_cut_to_its_innermost_part():
    def deeper(n: int) -> None:
        deeper(n - 1) if n else 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        deeper(500)
    assert len(errors.from_exception(0, caught.value).frames) == 40


def test_an_error_in_a_notebook_is_shown_without_the_frames_of_the_launcher():
    error = errors.worker_error([Failure(0, 0.0, "ValueError: boom")], 1, [""])
    assert error._render_traceback_() == [
        "\x1b[0;31mWorkerError\x1b[0m: rank 0 failed: ValueError: boom"
    ]
    error.add_note("Early could not explain it: KeyError: 3")
    assert error._render_traceback_()[1:] == ["Early could not explain it: KeyError: 3"]
    assert issubclass(WorkerTimeout, WorkerError)
    assert issubclass(WorkerError, RuntimeError)


def dump(*frames: str, title: str = "Current thread 0x00007f01 (most recent call first):") -> str:
    return "\n".join([title, *frames]) + "\n"


def test_a_dump_is_read_outermost_first_and_ends_at_the_launcher():
    launcher = errors.__file__
    text = dump(
        f'  File "{LIBRARY}", line 90 in barrier',
        f'  File "{CELL}", line 4 in train',
        f'  File "{launcher}", line 70 in _run_function',
        f'  File "{CELL}", line 9 in <module>',
    )
    assert stacks.from_dump(text) == [
        Frame(launcher, 70, "_run_function"),
        Frame(CELL, 4, "train"),
        Frame(LIBRARY, 90, "barrier"),
    ]


def test_where_a_rank_is_while_its_exception_is_told_no_line_of_the_kernel_is_named():
    launcher = os.path.dirname(errors.__file__)
    stack = stacks.from_dump(
        dump(
            '  File "/lab/train.py", line 5 in __str__',
            f'  File "{launcher}/errors.py", line 7 in _words',
            f'  File "{launcher}/worker.py", line 8 in _report_failure',
            f'  File "{launcher}/worker.py", line 9 in run',
            '  File "/lab/train.py", line 90 in <module>',
        )
    )
    assert [frame.line for frame in stack] == [8, 7, 5]


def test_the_stack_of_compiled_code_that_python_3_14_adds_hides_no_line():
    title = "Thread 0x00007f01 [python] (most recent call first):"  # not the one that crashed
    rows = (
        f'  File "{CELL}", line 4 in train',
        f'  File "{errors.__file__}", line 70 in _run_function',
    )
    below = "\nCurrent thread's C stack trace (most recent call first):"
    added = dump("  Binary file, at abort+0x24 [0x7f]", title=below)
    text = dump(*rows, title=title) + added
    assert stacks.from_dump(text) == [
        Frame(errors.__file__, 70, "_run_function"),
        Frame(CELL, 4, "train"),
    ]


def test_a_rank_that_has_returned_is_not_told_at_the_cell_that_launched_it():
    rows = (
        f'  File "{errors.__file__}", line 9 in _park_until_killed',
        f'  File "{CELL}", line 9 in <module>',
    )
    assert stacks.from_dump(dump(*rows)) == [Frame(errors.__file__, 9, "_park_until_killed")]


def test_a_folder_beside_the_package_with_a_name_that_begins_like_it_is_the_learners():
    package = os.path.dirname(os.path.dirname(errors.__file__))
    beside = Frame(f"{package}_lab/train.py", 3, "train")
    assert beside.is_learners
    assert not Frame(f"{package}/live.py", 3, "tick").is_learners
    assert stacks.learners_frame([beside, Frame(errors.__file__, 70, "launch")]) == beside
    text = dump(
        f'  File "{beside.file}", line 3 in _run_function', f'  File "{CELL}", line 9 in train'
    )
    assert stacks.from_dump(text) == [
        Frame(CELL, 9, "train"),
        Frame(beside.file, 3, "_run_function"),
    ]


def test_code_that_torch_compile_has_generated_is_no_learners(monkeypatch):
    """As what a rank waits in while it compiles, which was told as the learner's line."""
    folder = "/tmp" + "/torchinductor_ada/c5"
    assert not Frame(f"{folder}/c5oouqbg33ab6.py", 628, "<module>").is_learners
    assert not Frame("<eval_with_key>.3", 5, "forward").is_learners
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/cache")
    assert not Frame("/cache/c5/c5oouqbg33ab6.py", 628, "<module>").is_learners
    assert Frame("/elsewhere/c5/train.py", 628, "<module>").is_learners


def test_names_that_are_not_ascii_are_read_as_they_are():
    """faulthandler writes `张` as `\\u5f20`."""
    home = "/home/张é😀"
    names = {f"{home}/训练.py": "训练", f"{home}/lib/torch.py": "wait"}
    rows = [f'  File "{file}", line 3 in {name}' for file, name in names.items()]
    text = dump(*(row.encode("ascii", "backslashreplace").decode() for row in rows))
    assert stacks.from_dump(text) == [
        Frame(*one) for one in reversed([(file, 3, name) for file, name in names.items()])
    ]


def test_a_library_that_a_user_has_installed_for_himself_is_no_learners_file():
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        assert not Frame(f"{folder}/torch/__init__.py", 3, "wait").is_learners


@pytest.mark.parametrize(
    ("rows", "written"),
    [
        (['  File "a.py", line 3 in wait'], False),
        (['  File "a.py", line 3 in wait', '  File "b.py", line 9 in _run_function'], True),
        (['  File "b.py", line 9 in _report_failure'], True),
        (['  File "b.py", line 9 in _park_until_killed'], True),  # it has returned a moment ago
        (['  File "a.py", line 3 in deeper'] * 99, False),
        (['  File "a.py", line 3 in deeper'] * 100, True),  # faulthandler stops there
    ],
)
def test_it_is_seen_when_a_stack_has_been_written(rows, written):
    assert bool(stacks.WRITTEN.search(dump(*rows))) == written


@pytest.mark.parametrize("text", ["", "\0" * 50, "Fatal Python error: Segmentation fault\n", "?!"])
def test_a_dump_that_says_nothing_has_no_frames(text):
    assert stacks.from_dump(text) == []


def test_a_dump_cut_short_or_with_spaces_in_names_is_read_as_far_as_it_goes():
    text = dump('  File "/a b/my cell.py", line 3 in <lambda>', "  ...", '  File "/a b/my c')
    assert stacks.from_dump(text) == [Frame("/a b/my cell.py", 3, "<lambda>")]


def test_a_crash_is_read_after_the_words_of_faulthandler():
    text = "Fatal Python error: Segmentation fault\n\n" + dump(f'  File "{CELL}", line 4 in train')
    text += "\nExtension modules: numpy._core (total: 1)\n"
    assert stacks.from_dump(text) == [Frame(CELL, 4, "train")]


def test_a_file_is_told_by_its_name_alone():
    assert Frame("/somewhere/deep/train.py", 3, "step").place == "train.py, line 3, in step"


def test_no_timeout_holds_a_path_a_process_id_or_an_address(cell):
    stands = {0: waiting(), 1: [Frame(CELL, 2, "train")], 2: [Frame(LIBRARY, 3, "join")], 3: None}
    text = str(errors.worker_timeout(stands, [""] * 4, 2.5, 0.0))
    assert text.startswith("ranks 0, 1 and 2 were not done after 2.5 s.\n")
    assert "  rank 3: its function has returned" in text
    assert not re.search(r"0x[0-9a-f]+|/\w+/|pid", text)


@pytest.mark.parametrize(
    ("numbers", "name"),
    [([3], "rank 3"), ([1, 0], "ranks 0 and 1"), ({0, 1, 3}, "ranks 0, 1 and 3")],
)
def test_ranks_are_named_in_order(numbers, name):
    assert ranks_named(numbers) == name


def shown(*parts: str) -> list[str]:
    """The lines that a notebook shows, without their colour."""
    rows = "\n".join(WorkerError(parts)._render_traceback_()).split("\n")
    return [re.sub(r"\x1b\[[\d;]*m", "", row) for row in rows]


def test_a_long_sentence_is_shown_on_lines_that_break_between_words():
    sentence = "which has returned, never called all_reduce in that line. " * 5
    rows = shown("rank 0 was not done after 5 s.", sentence.strip())
    assert max(map(len, rows)) <= 95
    assert " ".join(rows[2:]) == sentence.strip()


def test_a_learners_line_is_shown_as_it_was_written():
    code = "  rank 0: waiting in barrier at cell [3], line 5, in work: " + "some_name + " * 20
    assert code in shown("rank 0 was not done after 5 s.", code)


def test_a_word_that_is_longer_than_a_line_stays_whole():
    assert "x" * 200 in shown("rank 0 failed: ValueError: " + "x" * 200)


def test_what_is_wrapped_to_be_shown_is_no_other_message():
    sentence = "a word and " * 20
    assert str(WorkerError([sentence])) == sentence
