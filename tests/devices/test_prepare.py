"""Before a fork: imports are done, and memory lies in large pages; nothing else changes."""

import platform
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from kernels import Kernel

from course_utils import launch
from course_utils.devices import prepare

NEW = sys.platform == "linux" and tuple(map(int, platform.release().split(".")[:2])) >= (6, 1)
SETUP = """
import re
from course_utils.devices import prepare
numbers, words = torch.arange(10_000_000), [str(n) for n in range(100_000)]

def after(ranks, before):
    prepare._ranks_started = before
    launch(total, world_size=ranks)
    large = re.search("AnonHugePages: +(.*) kB", open("/proc/self/smaps_rollup").read())
    return int(large[1]) // 1024
"""
SAME = "numbers.sum().item() == 49_999_995_000_000, words == [str(n) for n in range(100_000)]"


@pytest.mark.slow
@pytest.mark.skipif(not NEW, reason="needs Linux 6.1")
def test_from_the_sixty_fourth_rank_on_pages_are_large_and_memory_holds_what_it_did():
    kernel = Kernel()
    try:
        kernel.run(SETUP, 30)
        mb = int(kernel.run("after(2, 0)", 60).value)
        more_mb = int(kernel.run("after(2, 62)", 60).value)
        assert kernel.run(SAME, 30).value == "(True, True)"
    finally:
        kernel.close()
    assert more_mb > mb + 100


MAPS = """\
5600000ff000-560000500000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000400000 r-xp 00000000 fe:00 77 /lib/libc.so.6
7f0000400000-7f0000800000 rw-p 00400000 fe:00 77 /lib/libc.so.6
7f0000800000-7f00009ff000 rw-p 00000000 00:00 0
7f0000a00000-7f0080a00000 rw-p 00000000 00:00 0
7f0080a00000-7f0080e00000 rw-s 00000000 00:01 5 /memfd:pyarrow (deleted)
7f0080e00000-7f0081200000 rw-p 00000000 00:00 0
7f0090000000-7f0090400000 ---p 00000000 00:00 0
7ffc00000000-7ffc00400000 rw-p 00000000 00:00 0 [stack]
"""


def test_memory_of_no_file_is_enlarged_and_no_large_data_of_a_learner(monkeypatch, tmp_path):
    asked, maps = [], tmp_path / "maps"
    maps.write_text(MAPS)
    monkeypatch.setattr(prepare, "LIBC", SimpleNamespace(madvise=lambda *what: asked.append(what)))
    monkeypatch.setattr(prepare, "_MAPS", maps)
    monkeypatch.setattr(prepare, "_ranks_started", 0)
    for count, so_far in ((24, 0), (24, 0), (24, 3), (24, 3), (64, 6)):
        prepare.collapse_pages(count)
        assert len(asked) == so_far  # at the 64th rank and the 128th
    assert [(hex(begin.value), size.value, how) for begin, size, how in asked[3:]] == [
        ("0x5600000ff000", 0x401000, 25),
        ("0x7f0000800000", 0x1FF000, 25),  # of no large page, which Linux declines
        ("0x7f0080e00000", 4 << 20, 25),
    ]


NCCL_OF_A_RANK = """
import os
from torch.distributed import Backend

def creator():
    Backend._ensure_backend_registered("nccl")
    return Backend._plugins["NCCL"].creator_fn.__name__

launch(creator)[0]
"""


@pytest.mark.skipif(not dist.is_nccl_available(), reason="this torch was built without NCCL")
def test_which_nccl_a_cell_asks_for_still_counts_in_ranks_after_a_launch():
    kernel = Kernel(is_warm=True)
    try:
        before = kernel.run(NCCL_OF_A_RANK, 60).value
        kernel.run("os.environ['TORCH_DIST_USE_NCCL2'] = '0'", 30)
        after = kernel.run("launch(creator)[0]", 60).value
    finally:
        kernel.close()
    assert (before, after) == ("'_create_nccl2_process_group'", "'_create_nccl_process_group'")


@pytest.mark.parametrize(("level", "times"), [("DETAIL", 1), ("INFO", 0)])
def test_a_debug_level_that_no_rank_can_have_is_said_once(level, times, monkeypatch, capfd):
    monkeypatch.setattr(prepare, "_notices_given", set())
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", level)
    for _launch in range(2):
        launch(int, world_size=1, backend="gloo")
    assert capfd.readouterr().out.count("TORCH_DISTRIBUTED_DEBUG=DETAIL counts as INFO") == times


def test_without_proc_a_launch_goes_on(monkeypatch):
    monkeypatch.setattr(prepare, "_ranks_started", 63)
    monkeypatch.setattr(prepare, "_MAPS", Path("no such folder"))
    assert launch(lambda: 7, world_size=2, backend="gloo") == [7, 7]
    assert prepare._ranks_started == 65


FOUR_AT_ONCE = """
import threading
import torch.distributed as dist
from course_utils import launch

def build():
    from torch.nn import Linear
    from torch.nn.parallel import DistributedDataParallel
    DistributedDataParallel(Linear(1, 1))
    return dist.get_rank()

def first():
    print(list(launch(build, backend="gloo", timeout=30)), flush=True)

threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.slow
def test_first_launches_from_several_threads_do_not_fork_amid_an_import(script):
    printed = script(FOUR_AT_ONCE).stdout.read()
    assert printed.count("[0, 1]") == 4, printed


def test_without_what_torch_keeps_private_imports_are_made_all_the_same(monkeypatch):
    prepare.import_what_ranks_need()
    monkeypatch.delattr("torch._dynamo.trace_rules.clear_lru_cache")
    prepare.import_what_ranks_need()
