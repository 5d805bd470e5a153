"""The linter: what it finds, what it leaves alone, and that what it points to is there."""

import inspect
import json
import textwrap
from pathlib import Path

import pytest

from course_lint import rules
from course_lint.command import lint, main
from course_museum import EXHIBITS

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
HEAD = """
import os, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, random_split
"""

WRONG = {
    "a barrier of one rank": ("meets-under-rank", """
        if dist.get_rank() == 0:
            dist.barrier()
        """),
    "a rank by its own name": ("meets-under-rank", """
        me = int(os.environ["RANK"])
        first = me == 0
        if first:
            dist.all_reduce(loss)
        """),
    "a rank by its key": ("meets-under-rank", """
        if config["local_rank"] == 0:
            dist.barrier()
        """),
    "an early return": ("meets-under-rank", """
        def save(rank):
            if rank != 0:
                return
            torch.save(model, "m.pt")
            dist.barrier()
        """),
    "a helper that meets": ("meets-under-rank", """
        def mean(x):
            dist.all_reduce(x)
            return x / dist.get_world_size()
        if rank == 0:
            print(mean(loss))
        """),
    "validation on rank 0": ("meets-under-rank", """
        model = DDP(net)
        if is_main_process():
            for x, y in val_loader:
                out = model(x)
        """),
    "one branch meets once more": ("meets-under-rank", """
        if rank == 0:
            dist.broadcast_object_list([plan], src=0)
            dist.barrier()
        else:
            dist.broadcast_object_list(box, src=0)
        """),
    "a sharded state": ("meets-under-rank", """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        model = FSDP(net)
        if rank == 0:
            torch.save(model.state_dict(), "m.pt")
        """),
    "a batch that is skipped": ("meets-under-data", """
        model = DDP(net)
        for x, y in loader:
            loss = model(x)
            if torch.isnan(loss):
                continue
            loss.backward()
        """),
    "an early stop": ("meets-under-data", """
        for epoch in range(9):
            dist.all_reduce(gradient)
            if val_loss < 0.1:
                break
        """),
    "out of memory": ("meets-under-exception", """
        model = DDP(net)
        for x, y in loader:
            try:
                loss = model(x)
                loss.backward()
            except RuntimeError:
                torch.cuda.empty_cache()
        """),
    "a barrier for survivors": ("meets-under-exception", """
        try:
            download()
        except OSError:
            dist.barrier()
        """),
    "a loop of one's own length": ("meets-in-uneven-loop", """
        mine = files[dist.get_rank() :: dist.get_world_size()]
        for file in mine:
            dist.all_reduce(score(file))
        """),
    "no epoch": ("no-set-epoch", """
        sampler = DistributedSampler(data)
        loader = DataLoader(data, sampler=sampler)
        for epoch in range(3):
            for x in loader:
                train(x)
        """),
    "a device by rank": ("device-by-global-rank", """
        rank = dist.get_rank()
        model = DDP(net.cuda(rank), device_ids=[rank])
        """),
    "noise that is the same": ("same-random-numbers", """
        dist.init_process_group("nccl")
        torch.manual_seed(0)
        for x in train_loader:
            noise = torch.randn(4)
            loss = model(x + noise)
            loss.backward()
        """),
    "a split of one's own": ("unseeded-split", """
        dist.init_process_group("nccl")
        train, held_out = random_split(data, [80, 20])
        """),
    "everybody saves": ("every-rank-saves", """
        dist.init_process_group("nccl")
        for epoch in range(3):
            torch.save(model.state_dict(), "last.pt")
        """),
    "past the wrapper": ("past-the-wrapper", """
        model = DDP(net, device_ids=[gpu]).module
        """),
}  # fmt: skip

RIGHT = {
    "all ranks meet, one prints": """
        dist.all_reduce(loss)
        if dist.get_rank() == 0:
            print(loss)
        """,
    "a pair of barriers": """
        if args.local_rank not in [-1, 0]:
            dist.barrier()
        data = download()
        if args.local_rank == 0:
            dist.barrier()
        """,
    "is there a group at all": """
        if args.local_rank != -1:
            dist.barrier()
        if rank is not None:
            dist.all_reduce(loss)
        if rank >= 0:
            dist.all_reduce(loss)
        """,
    "both branches meet": """
        if rank == 0:
            dist.broadcast_object_list([plan], src=0)
        else:
            dist.broadcast_object_list(box, src=0)
        """,
    "one sends what the others await": """
        def ask():
            if rank == 0:
                dist.broadcast(go_on, src=0)
            dist.all_reduce(loss)
        if rank == 0:
            solver.run(ask)
            dist.broadcast(go_on, src=0)
        else:
            while True:
                dist.broadcast(go_on, src=0)
                if not go_on:
                    break
                ask()
        """,
    "a meeting that failed everywhere": """
        try:
            dist.barrier()
        except RuntimeError:
            dist.all_reduce(nothing)
        """,
    "what no rank has": """
        try:
            import fast
        except (ImportError, AttributeError):
            dist.barrier()
        """,
    "a sampler for each epoch": """
        for epoch in range(9):
            sampler = DistributedSampler(data, seed=7 + epoch)
            train(sampler)
        """,
    "a group of its own": """
        if rank in (0, 1):
            dist.all_reduce(loss, group=pair)
        """,
    "an early return that meets": """
        def run():
            if dist.get_rank() == 1:
                dist.all_reduce(number)
                return
            work = dist.all_reduce(number, async_op=True)
        """,
    "all decide together": """
        model = DDP(net)
        for x, y in loader:
            loss = model(x)
            bad = torch.isnan(loss).float()
            dist.all_reduce(bad)
            if torch.isfinite(bad):
                loss.backward()
        """,
    "an exception that ends the run": """
        model = DDP(net)
        for x, y in loader:
            try:
                model(x).backward()
            except RuntimeError:
                print("failed")
                raise
        """,
    "the epoch is told": """
        sampler = DistributedSampler(data)
        for epoch in range(3):
            sampler.set_epoch(epoch)
        """,
    "a sampler for validation": """
        val_sampler = DistributedSampler(val_data)
        for epoch in range(3):
            validate()
        """,
    "a local device": """
        model = DDP(net, device_ids=[int(os.environ["LOCAL_RANK"])])
        model = DDP(net, device_ids=[dist.get_rank() % torch.cuda.device_count()])
        """,
    "seeds by rank": """
        dist.init_process_group("nccl")
        torch.manual_seed(7 + dist.get_rank())
        for x in train_loader:
            model(x + torch.randn(4)).backward()
        """,
    "a split from a seed": """
        dist.init_process_group("nccl")
        a, b = random_split(data, [80, 20], generator=torch.Generator().manual_seed(1))
        """,
    "rank 0 saves": """
        dist.init_process_group("nccl")
        args.saves = args.logs and is_master(args)
        def save(model):
            torch.save(model.state_dict(), "last.pt")
        if args.saves:
            save(model)
        """,
    "each its own file": """
        dist.init_process_group("nccl")
        torch.save(model.state_dict(), f"part{dist.get_rank()}.pt")
        """,
    "no ranks at all": """
        for epoch in range(3):
            torch.save(model.state_dict(), "last.pt")
        """,
    "the inner module is only saved": """
        def train():
            model = DDP(net)
            inner = model.module
            model(x).backward()
            print(inner.state_dict())
        """,
}  # fmt: skip


def findings(source: str) -> list[str]:
    return [finding.rule for finding in lint(HEAD + textwrap.dedent(source))]


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_found_once_and_by_its_own_rule(name):
    rule, source = WRONG[name]
    assert findings(source) == [rule]


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_left_alone(name):
    assert findings(RIGHT[name]) == []


def test_the_line_is_that_of_the_call():
    source = HEAD + "\nif dist.get_rank() == 0:\n    x = 1\n    dist.barrier()\n"
    (finding,) = lint(source)
    assert source.splitlines()[finding.line - 1].strip() == "dist.barrier()"


CELLS = {name: value for name, value in vars(rules).items() if isinstance(value, rules.Cell)}


@pytest.mark.parametrize("name", CELLS)
def test_the_cell_that_shows_it_is_below_that_heading(name):
    cell = CELLS[name]
    notebook = json.loads((NOTEBOOKS / f"{cell.chapter}.ipynb").read_text(encoding="utf-8"))
    heading, below = "", []
    for each in notebook["cells"]:
        source = "".join(each["source"])
        if each["cell_type"] == "code":
            below.append((heading, source))
        for line in source.splitlines():
            if each["cell_type"] == "markdown" and line.startswith("#"):
                heading = line.lstrip("#").strip()
    shown = [source for above, source in below if above == cell.section]
    assert any(cell.code in source for source in shown)


# The others are wrong by their arithmetic, or by data that a script's text doesn't hold.
FOUND_IN_THE_MUSEUM = {
    "stops_on_its_own": ["meets-under-data"],
    "model_without_its_wrapper": ["past-the-wrapper"],
    "the_same_epoch_again": ["no-set-epoch"],
}


@pytest.mark.parametrize("name", EXHIBITS)
def test_of_the_museum_it_finds_what_the_text_tells_and_nothing_in_a_cure(name):
    exhibit = EXHIBITS[name]
    whole = inspect.getsource(inspect.getmodule(exhibit.bug))
    head = whole[: whole.index("from course_museum")]
    bug, cure = inspect.getsource(exhibit.bug), inspect.getsource(exhibit.cure)
    assert [each.rule for each in lint(head + bug)] == FOUND_IN_THE_MUSEUM.get(name, [])
    assert lint(head + cure) == []


def test_the_command_says_line_sentence_and_cell(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\nif rank == 0:\n    dist.barrier()\n")
    assert main([str(script)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{script}:3: meets-under-rank: barrier needs every rank")
    assert lines[1] == "    See it happen: chapter 08, “2 · Who never arrived?”"


def test_what_cannot_be_read_is_said_and_the_others_are_read_all_the_same(tmp_path, capsys):
    (tmp_path / "a.py").write_text("if rank ==")
    (tmp_path / "b.py").write_text("import torch.distributed as dist\nif rank: dist.barrier()\n")
    assert main([str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert "a.py: cannot be read" in out
    assert "b.py:2: meets-under-rank" in out


def test_a_clean_script_gives_no_output(tmp_path, capsys):
    (tmp_path / "a.py").write_text("print('hello')\n")
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == ""
