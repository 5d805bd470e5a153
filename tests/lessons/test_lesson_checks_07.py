"""What a learner writes in chapter 07, what its checks reject, and who fetches a file."""

from contextlib import suppress
from itertools import islice

import labs
import pytest
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from course_lessons import chapter_07
from course_lessons.chapter_07 import fetch_judged, fetching, stream_judged, streaming
from course_utils import check, launch

LESSON = labs.ROOT / "source/lessons/07_data_batches_numerics.py"
WANTED = "import random", "class Stream(", "class MyStream", "def fetch_once"
WANTED = (*WANTED, "def fetch_on_each_node", "def impatient")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercises define."""
    return labs.defined(LESSON, WANTED)


class Read(IterableDataset):
    """As the lesson's Stream begins; `own` yields what this reader takes."""

    def __init__(self, length):
        self.length = length
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    def worker(self):
        worker = get_worker_info()
        return (worker.id, worker.num_workers) if worker else (0, 1)


class EverybodyReadsAll(Read):
    def __iter__(self):
        return iter(range(self.length))


class ByRank(Read):
    def __iter__(self):
        return iter(range(self.rank, self.length, self.world_size))


class ByWorker(Read):
    def __iter__(self):
        number, workers = self.worker()
        return iter(range(number, self.length, workers))


class RankByRank(Read):
    """Samples left over go to the workers of rank 0 first."""

    def __iter__(self):
        number, workers = self.worker()
        reader = self.rank * workers + number
        return iter(range(reader, self.length, workers * self.world_size))


class AddsTheTwo(Read):
    def __iter__(self):
        number, workers = self.worker()
        return iter(range(self.rank + number, self.length, workers * self.world_size))


class AStrideOfRanksForTheWorkers(Read):
    def __iter__(self):
        number, _ = self.worker()
        mine = range(self.rank, self.length, self.world_size)
        return iter(mine[number :: self.world_size])


class NeverWithoutWorkers(Read):
    def __iter__(self):
        worker = get_worker_info()
        reader = worker.id * self.world_size + self.rank
        return iter(range(reader, self.length, worker.num_workers * self.world_size))


class BlocksWithoutTheRest(Read):
    def __iter__(self):
        number, workers = self.worker()
        size = self.length // (workers * self.world_size)
        first = size * (number * self.world_size + self.rank)
        return iter(range(first, first + size))


class OneEpochOnly(Read):
    def __init__(self, length):
        super().__init__(length)
        self.seen = False

    def __iter__(self):
        if self.seen:
            return
        self.seen = get_worker_info() is None
        number, workers = self.worker()
        reader = number * self.world_size + self.rank
        yield from range(reader, self.length, workers * self.world_size)


class RankZeroReadsTheRest(Read):
    def __iter__(self):
        number, workers = self.worker()
        readers = workers * self.world_size
        even = self.length - self.length % readers
        yield from range(number * self.world_size + self.rank, even, readers)
        if self.rank == number == 0:
            yield from range(even, self.length)


class CountsTheReaders(Read):
    """Neighbours in the deal sit on different ranks: worker 0 of each, then worker 1 of each."""

    def __iter__(self):
        number, workers = self.worker()
        reader = number * self.world_size + self.rank
        return iter(range(reader, self.length, workers * self.world_size))


class ByModulo(Read):
    def __iter__(self):
        number, workers = self.worker()
        own = [n for n in range(self.length) if n % self.world_size == self.rank]
        return (n for place, n in enumerate(own) if place % workers == number)


class BySlices(Read):
    def __iter__(self):
        number, workers = self.worker()
        mine = islice(range(self.length), dist.get_rank(), None, dist.get_world_size())
        return islice(mine, number, None, workers)


class BlockOfTheRank(Read):
    """Neighbours stay together: each rank takes a block, its workers take turns."""

    def __iter__(self):
        number, workers = self.worker()
        first = self.length * self.rank // self.world_size
        end = self.length * (self.rank + 1) // self.world_size
        return iter(range(first + number, end, workers))


WRONG_STREAMS = [
    EverybodyReadsAll, ByRank, ByWorker, RankByRank, AddsTheTwo, AStrideOfRanksForTheWorkers,
    NeverWithoutWorkers, BlocksWithoutTheRest, OneEpochOnly, RankZeroReadsTheRest,
]  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_STREAMS)
def test_a_wrong_stream_is_rejected(kind):
    outcome = check(streaming(kind), **stream_judged)
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("kind", [CountsTheReaders, ByModulo, BySlices, BlockOfTheRank])
def test_another_right_stream_passes(kind):
    assert check(streaming(kind), **stream_judged).require()


class FinishedStream(Read):
    """What the hints lead to."""

    def __iter__(self):
        mine, info = range(self.rank, self.length, self.world_size), get_worker_info()
        return iter(mine[info.id :: info.num_workers] if info else mine)


def test_the_finished_stream_passes_and_the_stub_is_not_attempted(lesson):
    assert check(streaming(FinishedStream), **stream_judged).require()
    assert check(streaming(lesson["MyStream"]), **stream_judged).state == "not attempted"


@pytest.mark.parametrize(
    ("kind", "often"), [(FinishedStream, "[1]"), (EverybodyReadsAll, "[4]"), (ByRank, "[2]")]
)
def test_a_right_and_a_wrong_stream_are_drawn(kind, often, capsys):
    chapter_07.draw_stream(kind)
    assert f"A sample is read this often: {often}." in capsys.readouterr().out


def test_a_stream_that_fails_is_no_picture_and_says_why(capsys):
    class Fails(Read):
        def __iter__(self):
            raise ValueError("no such stride")

    chapter_07.draw_stream(Fails)
    assert "No picture yet: ValueError: no such stride" in capsys.readouterr().out


def fetched_under_another_name(disk, fetch):
    if disk.has("data"):
        return None
    try:
        fetch("part")
        disk.rename("part", "data")
    except OSError as error:
        return str(error)
    return None


def with_else(disk, fetch):
    trouble = None
    if not disk.has("data"):
        try:
            fetch("part")
        except OSError as error:
            trouble = f"could not fetch: {error}"
        else:
            disk.rename("part", "data")
    return trouble


def under_a_name_of_its_own(disk, fetch):
    if disk.has("data"):
        return None
    try:
        fetch("data.tmp")
    except Exception as error:
        return repr(error)
    disk.rename("data.tmp", "data")
    return None


def straight_to_its_name(disk, fetch):
    if not disk.has("data"):
        try:
            fetch("data")
        except OSError as error:
            return str(error)
    return None


def at_every_start(disk, fetch):
    try:
        fetch("part")
        disk.rename("part", "data")
    except OSError as error:
        return str(error)
    return None


def trusts_what_is_left_over(disk, fetch):
    if disk.has("data"):
        return None
    try:
        if not disk.has("part"):
            fetch("part")
        disk.rename("part", "data")
    except OSError as error:
        return str(error)
    return None


def raises(disk, fetch):
    if not disk.has("data"):
        fetch("part")
        disk.rename("part", "data")


def keeps_the_error_to_itself(disk, fetch):
    if not disk.has("data"):
        with suppress(OSError):
            fetch("part")
            disk.rename("part", "data")


def renames_what_failed(disk, fetch):
    if disk.has("data"):
        return None
    trouble = None
    try:
        fetch("part")
    except OSError as error:
        trouble = str(error)
    disk.rename("part", "data")
    return trouble


def never_renames(disk, fetch):
    if disk.has("data"):
        return None
    try:
        fetch("part")
    except OSError as error:
        return str(error)
    return None


WRONG_FETCHES = [
    straight_to_its_name, at_every_start, trusts_what_is_left_over, raises,
    keeps_the_error_to_itself, renames_what_failed, never_renames,
]  # fmt: skip


@pytest.mark.parametrize("answer", WRONG_FETCHES)
def test_a_wrong_fetch_is_rejected(answer):
    outcome = check(fetching(answer), **fetch_judged)
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("answer", [fetched_under_another_name, with_else, under_a_name_of_its_own])
def test_a_right_fetch_passes(answer):
    assert check(fetching(answer), **fetch_judged).require()


def test_an_unwritten_fetch_is_not_attempted(lesson):
    assert check(fetching(lesson["fetch_once"]), **fetch_judged).state == "not attempted"


def test_what_was_fetched_is_not_fetched_again_and_what_was_interrupted_is(lesson, tmp_path):
    def fetch(path):
        with (tmp_path / "fetched").open("a") as log:
            log.write("once\n")
        path.write_text("sample\n" * 100)

    failed = launch(lesson["fetch_on_each_node"], tmp_path, chapter_07.no_server, backend="gloo")
    assert list(failed) == [["rank 0: the server is down"]] * 2
    for _ in range(2):
        complete = launch(lesson["fetch_on_each_node"], tmp_path, fetch, backend="gloo")
        assert list(complete) == [True, True]
    assert (tmp_path / "fetched").read_text() == "once\n"


def test_a_group_with_too_little_patience_gives_up_during_a_download(lesson, tmp_path):
    answers = launch(lesson["impatient"], tmp_path, backend="gloo")
    assert list(answers) == ["rank 0 gave up", "rank 1 gave up"]
