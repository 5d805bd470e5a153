"""Chapters that are made for both: nothing in their ranks mixes the CPU's tensors and a GPU's.

There need be no GPU: one is pretended (tests/helpers/second_device.py).
"""

import ast
import builtins
import functools
import importlib
import re

import nbformat
import pytest
import torch
from second_device import second_device
from torch import nn

from course_lessons import chapter_13, sharding
from course_tools.measure import gpu_workers
from course_tools.notebooks import course_map
from course_tools.texts import read_toml
from course_utils import launch

WORKERS = gpu_workers.workers()
MODULES = read_toml(course_map.ROOT / "source/devices.toml")["modules"]
PREPARE = {module: table.pop("prepare", "") for module, table in MODULES.items()}
# Workers that send nothing, that have nothing for a GPU, and one whose number stays on the CPU,
# where gloo adds it up beside NCCL.
SENDS_NOTHING = {"introduce", "my_shard", "barrier", "arrivals", "chapter_12.squared_shares"}
TOUCHES_NO_GPU = {"add_up_twice", "introduce", "my_shard", "barrier"}
ON_THE_CPU = {"add_up_twice"}
ALONE = {"_read_alone", "train_gpt"}  # workers of a launch with one rank


def of_both() -> list[tuple[str, str]]:
    """Every worker of a launch that takes GPUs where there are, by chapter."""
    found = []
    for path in sorted(course_map.ROOT.glob("notebooks/[0-9]*.ipynb")):
        number = path.name[:2]
        launches = course_map.launches(gpu_workers.notebook(number))
        found += dict.fromkeys((number, fn) for fn, backend in launches if backend == "auto")
    return found


def workers_for_gpus(text: str) -> list[str]:
    """Of a module the workers of all launches that take GPUs where there are, as written."""
    tree = ast.parse(text)
    dictionaries = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            dictionaries[ast.unparse(node.targets[0])] = ast.unparse(node.value)
    workers = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "launch":
            continue
        backend = "'auto'"
        for option in node.keywords:
            if option.arg == "backend":
                backend = ast.unparse(option.value)
            elif option.arg is None:
                options = dictionaries.get(ast.unparse(option.value), "")
                backend = "'gloo'" if "'backend': 'gloo'" in options else backend
        if backend == "'auto'":
            workers.append(ast.unparse(node.args[0]))
    return workers


def launches_where_there_is_a_gpu() -> list[ast.Call]:
    """Of all lessons, those in an `if` that asks how many GPUs there are."""
    calls = []
    for path in sorted(course_map.ROOT.glob("notebooks/[0-9]*.ipynb")):
        for cell in gpu_workers.notebook(path.name[:2]).cells:
            if cell.cell_type != "code":
                continue
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.If) and re.search(r"\bgpus\b", ast.unparse(node.test)):
                    called = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
                    calls += [each for each in called if ast.unparse(each.func) == "launch"]
    return calls


def test_a_launch_for_a_gpu_says_so_since_with_one_gpu_ranks_run_on_the_cpu_by_default():
    calls = launches_where_there_is_a_gpu()
    assert len(calls) >= 5
    for call in calls:
        text = ast.unparse(call)
        assert "device='cuda'" in text or "backend='nccl'" in text, text


def test_every_worker_of_a_chapter_that_is_made_for_both_is_run_here():
    pretended, real, left = (
        {(chapter, worker) for chapter, table in tables.items() for worker in table}
        for tables in (WORKERS, gpu_workers.only_on_gpus(), gpu_workers.left_out())
    )
    assert pretended | left <= {*of_both()} <= pretended | real | left
    assert not pretended & (real | left)
    assert not real & left


def test_every_chapter_is_run_on_gpus_or_says_why_not():
    chapters = {path.name[:2] for path in course_map.ROOT.glob("notebooks/[0-9]*.ipynb")}
    run, others = gpu_workers.on_real_gpus(), gpu_workers.on_the_cpu_alone()
    assert run.keys() >= {"01", "13", "14"}
    assert run.keys() | others.keys() == chapters
    assert not run.keys() & others.keys()
    assert all(others.values())


def names_of_a_call(call: str) -> set[str]:
    """The names that an expression reads and does not bind itself."""
    nodes = [node for node in ast.walk(ast.parse(call, mode="eval")) if isinstance(node, ast.Name)]
    bound = {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return {node.id for node in nodes} - bound


@pytest.mark.parametrize("chapter", gpu_workers.only_on_gpus())
def test_what_only_real_gpus_run_has_all_names_that_it_needs(names, chapter):
    defined = names(chapter)
    for call in gpu_workers.only_on_gpus()[chapter].values():
        for name in names_of_a_call(call):
            assert name in defined or name in dir(builtins), name


def test_what_only_real_gpus_run_of_chapter_13_runs_on_a_cpu_too(names):
    defined = names("13")

    def run() -> None:
        for call in gpu_workers.only_on_gpus()["13"].values():
            eval(call, defined)

    assert launch(run, backend="gloo", device="cpu", timeout=100) == [None, None]


STARTS_BY_ANOTHER_NAME = """
from course_utils import launch
def see(call):
    return launch(call, world_size=1, backend="gloo")
def torchrun(script):
    raise ValueError("it has been started")
seen = see(int)
printed = torchrun("train.py")
defined = 7
"""


def test_what_a_chapter_defines_is_had_without_a_launch(monkeypatch):
    forks = []
    monkeypatch.setattr("os.fork", lambda: forks.append(1))
    cell = nbformat.v4.new_code_cell(STARTS_BY_ANOTHER_NAME)
    names = gpu_workers.definitions(nbformat.v4.new_notebook(cells=[cell]))
    assert forks == []
    assert names.keys() >= {"see", "torchrun", "defined"}
    assert not names.keys() & {"seen", "printed"}


def test_every_worker_that_a_lessons_module_starts_without_a_backend_is_run_here_too():
    found = set()
    for path in sorted(course_map.ROOT.glob("course_lessons/*.py")):
        for worker in workers_for_gpus(path.read_text()):
            found.add((path.stem, worker))
    assert found == {(module, worker) for module, table in MODULES.items() for worker in table}


def test_a_launch_with_options_in_a_variable_is_seen():
    with_options = "def f():\n    options = {'backend': 'gloo'}\n    launch(fn, **options)"
    assert workers_for_gpus(with_options) == []
    assert workers_for_gpus("launch(fn, **options)") == ["fn"]
    assert workers_for_gpus("launch(fn, backend='auto')") == ["fn"]


@pytest.fixture(scope="module")
def names():
    """What chapters define, each once."""
    return functools.cache(gpu_workers.prepared)


@pytest.mark.parametrize(
    ("chapter", "worker"),
    [(c, w) for c, table in WORKERS.items() for w in table],
)
def test_no_rank_mixes_devices(names, chapter, worker):
    code = compile(WORKERS[chapter][worker], f"<{worker}>", "eval")
    space = names(chapter)

    def on_a_second_device():
        with second_device() as meetings:
            eval(code, space)
        return meetings.operations, sorted({where for _, where in meetings.sent})

    world_size = 4 if "pairs" in worker or (chapter == "03" and worker == "worker") else 2
    expected = {"cuda:0"}
    if worker in ON_THE_CPU:
        expected = {"cpu"}
    if worker in SENDS_NOTHING:
        expected = set()
    for operations, sent in launch(on_a_second_device, world_size=world_size, backend="gloo"):
        assert set(sent) == expected
        assert operations > 0 or worker in TOUCHES_NO_GPU


@pytest.mark.parametrize(
    ("module", "worker"),
    [(m, w) for m, table in MODULES.items() for w, call in table.items() if call],
)
def test_no_rank_of_a_lessons_module_mixes_devices(names, module, worker):
    code = compile(MODULES[module][worker], f"<{worker}>", "eval")
    space = {module: importlib.import_module(f"course_lessons.{module}")}
    if module == "chapter_12":  # whose methods are written in its notebook
        space = names("12")

    def on_a_second_device():
        exec(PREPARE[module], space)
        with second_device() as meetings:
            eval(code, space)
        return meetings.operations, {where for _, where in meetings.sent}

    world_size = 1 if worker in ALONE else 2
    expected = set() if worker in ALONE else {"cuda:0"}
    results = launch(on_a_second_device, world_size=world_size, backend="gloo")
    for operations, sent in results:
        assert sent == expected
        assert operations > 0


@pytest.mark.parametrize("wrap", [sharding.Zero1, sharding.Zero2, sharding.Zero3])
def test_no_sharded_wrapper_mixes_devices(wrap):
    def on_a_second_device():
        with second_device() as meetings:
            chapter_13.train_stack(wrap)
            chapter_13.train_gpt(wrap)
        return meetings.operations, {where for _, where in meetings.sent}

    for operations, sent in launch(on_a_second_device, world_size=2, backend="gloo"):
        assert sent == {"cuda:0"}
        assert operations > 0


def test_the_script_to_take_home_mixes_no_devices(names, tmp_path):
    script = names("04")["train_ddp"]

    def on_a_second_device():
        with second_device() as meetings:
            script.train(tmp_path / "checkpoint.pt", 1)
            script.train(tmp_path / "checkpoint.pt", 2)  # from what it has saved
        return {where for _, where in meetings.sent}

    # Each rank is the first of its node: there is one GPU to be pretended, cuda:0.
    results = launch(on_a_second_device, nodes=2, backend="gloo")
    assert [*results] == [{"cuda:0"}, {"cuda:0"}]


MISTAKES = {  # on a GPU each is refused
    "a mean of a tensor and a number": lambda there: torch.stack([there[0], torch.tensor(3.0)]),
    "labels that stay behind": lambda there: there + torch.ones(4),
    "a batch that stays behind": lambda there: nn.Linear(4, 2)(there),
    "a plot of what is there": lambda there: there.numpy(),
    "a generator of the CPU": lambda there: torch.randn(
        4, device="cuda", generator=torch.Generator()
    ),
}
FINE = {
    "a number of the CPU": lambda there: there * torch.tensor(2.0),
    "an index of the CPU": lambda there: there[torch.tensor([0, 2])],
    "a copy": lambda there: there.copy_(torch.zeros(4)),
    "a bucket": lambda there: torch.zeros_like(there).add_(there.new_ones(4)),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_second_device_refuses_what_a_gpu_refuses(what):
    with second_device(), pytest.raises((RuntimeError, TypeError), match=r"cuda|cpu"):
        MISTAKES[what](torch.ones(4).to("cuda"))


@pytest.mark.parametrize("what", FINE)
def test_a_second_device_takes_what_a_gpu_takes(what):
    with second_device():
        assert FINE[what](torch.ones(4).to("cuda")).device == torch.device("cuda", 0)
    assert torch.ones(1).device.type == "cpu"
