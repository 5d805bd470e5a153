"""Chapters that are made for both: nothing in their ranks mixes the CPU's tensors and a GPU's.

There need be no GPU: one is pretended (tests/helpers/second_device.py).
"""

import chapters
import pytest
import torch
from second_device import second_device
from torch import nn

import course_map
from course_utils import launch

# Of each chapter every worker of a launch that may use GPUs, as it is written there, and how it is
# called here. `loss_before` and `how` are what such a launch or a loop there provides.
WORKERS = {
    "00": {
        "introduce": "introduce()",
        "add_up": "add_up()",
        "train": "train(1)",
        "careless": "None",  # it fails on purpose
    },
    "01": {"with_data_parallel": "None", "with_ddp": "None"},  # tests/lessons: several real GPUs
    "03": {
        "hand_over": "hand_over()",
        "batched_exchange": "batched_exchange()",
        "worker": "[call(mine()) for call in (broadcast, scatter, reduce, reduce_scatter)]",
        "barrier": "barrier()",
        "sum_of_a_copy": "sum_of_a_copy()",
        "two_pairs": "two_pairs()",
        "on_my_device": "reduce_and_broadcast(torch.ones(8).to(my_device()))",
        "train": "train(0.0)",
    },
    "04": {
        "seeded": "[seeded(train_alone, 1), seeded(train, 1)]",
        "my_shard": "my_shard()",
        "on_a_gpu": "None",  # LOCAL_RANK is a real GPU's number
        "follow": "follow(DistributedDataParallel, 2)",
        "watch": "watch()",
        "by_hand": "[by_hand(torch.optim.Adam, what) for what in ('DDP', 'gradients', 'weights')]",
        "mistaken": "[mistaken(mistake, 2) for mistake in mistakes]",
        "read": "read([0, 1], steps=2)",
        "accumulate": "[accumulate(where, 2, 2) for where in ('inside', 'outside')]",
        "mixed": "[mixed(compressed, 2) for compressed in (False, True)]",
        "measure": "measure()",
    },
    "05": {
        "started": "[started(wrap) for wrap in (nn.Sequential, DistributedDataParallel)]",
        "train": "[train(kind, awkward, 2) for kind in (PerParameter, OurDDP, PyTorchs)]",
        "lambda: [one_step(kind) for kind in kinds]": (
            "[one_step(kind) for kind in (PerParameter, Flat, Buckets, Overlapped, InOrder)]"
        ),
        "memory_of_gradients": "memory_of_gradients(True, False, 2)",
        "arrivals": "[arrivals(tied) for tied in (False, True)]",
        "lambda: what_it_sends(DistributedDataParallel(awkward().to(my_device())), 6)": (
            "what_it_sends(DistributedDataParallel(awkward().to(my_device())), 3)"
        ),
        "train_in_parts": "[train_in_parts(kind, 1) for kind in (OurDDP, PyTorchs)]",
        "train_gpt": "[train_gpt(kind, 1) for kind in (OurDDP, PyTorchs)]",
    },
    "12": {
        "beginning": "beginning(1)",
        "train_all": "[train(kind, steps=2, look=1) for kind in kinds]",
        "differ": "train(ddp(half, torch.bfloat16), steps=2, look=1)",
        "mean_by": "[mean_by(*way) for way in ((half, torch.float16), (fp16_compress_hook, None))]",
        "lambda: {name: two_weights(m) for name, m in methods.items()}": (
            "[two_weights(method) for method in (ddp(top_k, 0.5), remembering(0.5))]"
        ),
        "last_losses": "train(remembering(0.01), steps=3, look=3)",
        "shares": "shares()",
        "after_averaging": "after_averaging(True)",
    },
    "13": {
        # FSDP2 asks CUDA for streams, which are not pretended.
        "train_stack": "[train_stack(wrap) for wrap in (OurDDP, Zero1, Zero2, Sharded)]",
        "train_gpt": "[train_gpt(wrap) for wrap in (None, OurDDP, Zero1, Zero2, Sharded)]",
        "train_all": "None",  # calls train_gpt
    },
    "14": {"on_gpus": "None"},  # measures streams: tests/lessons/test_on_a_gpu.py
}
EXTRAS = {
    "03": "def mine(): return torch.arange(4, device=my_device())",
    "12": "loss_before, kinds = 0.0, (ddp(), remembering(0.01), every(1), diloco(1))",
}
SENDS_NOTHING = {"introduce", "my_shard", "barrier", "arrivals", "beginning", "shares"}
# What the launch of the first chapter adds up stays where it is: gloo carries it there too.
ON_THE_CPU = {"add_up"}
TOUCHES_NO_GPU = {"add_up", "introduce", "my_shard", "barrier"}


def of_both() -> list[tuple[str, str]]:
    """Every worker of a launch that takes GPUs where there are, by chapter."""
    found = []
    for path in sorted(course_map.ROOT.glob("notebooks/[0-9]*.ipynb")):
        number = path.name[:2]
        launches = course_map.launches(chapters.notebook(number))
        found += dict.fromkeys((number, fn) for fn, backend in launches if backend == "auto")
    return found


def test_every_worker_of_a_chapter_that_is_made_for_both_is_run_here():
    listed = [(chapter, worker) for chapter, workers in WORKERS.items() for worker in workers]
    assert sorted(of_both()) == sorted(listed)


@pytest.fixture(scope="module")
def names():
    """What chapters define, each once."""
    defined = {}

    def of(chapter: str) -> dict:
        if chapter not in defined:
            defined[chapter] = chapters.definitions(chapter)
            exec(EXTRAS.get(chapter, ""), defined[chapter])
        return defined[chapter]

    return of


@pytest.mark.parametrize(
    ("chapter", "worker"),
    [(c, w) for c, workers in WORKERS.items() for w, call in workers.items() if call != "None"],
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
