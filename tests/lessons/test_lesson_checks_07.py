"""What a learner writes in chapter 07, what its checks reject, and who fetches a file."""

from itertools import islice

import labs
import pytest
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from course_utils import check, launch

LESSON = labs.ROOT / "source/lessons/07_data_batches_numerics.py"
WANTED = "import functools", "class Stream(", "class MyStream", "stream_judged =", "class Shard("
WANTED = (*WANTED, "def own_path", "def fetch_once_per_node")
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
def test_a_wrong_stream_is_rejected(lesson, kind):
    outcome = check(lesson["streaming"](kind), **lesson["stream_judged"])
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("kind", [CountsTheReaders, ByModulo, BySlices, BlockOfTheRank])
def test_another_right_stream_passes(lesson, kind):
    assert check(lesson["streaming"](kind), **lesson["stream_judged"]).require()


def test_the_finished_stream_passes_and_the_stub_is_not_attempted(lesson):
    stream = lesson["streaming"]
    assert check(stream(lesson["Shard"]), **lesson["stream_judged"]).require()
    stub = check(stream(lesson["MyStream"]), **lesson["stream_judged"])
    assert stub.state == "not attempted"


def test_what_was_fetched_is_not_fetched_again_at_the_next_start(lesson, tmp_path):
    def fetch(path):
        with (tmp_path / "fetched").open("a") as log:
            log.write("once\n")
        path.write_text("sample\n" * 100)

    for _ in range(2):
        told = launch(lesson["fetch_once_per_node"], tmp_path, fetch, backend="gloo")
        assert list(told) == [True, True]
    assert (tmp_path / "fetched").read_text() == "once\n"
