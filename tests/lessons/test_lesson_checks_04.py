"""What a learner writes in chapter 04: what its checks reject and what they accept."""

import importlib
import os
from contextlib import contextmanager
from functools import partial

import labs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from course_lessons import chapter_04, ddp_exercises
from course_material.digits import digits
from course_utils import check, launch

LESSON = labs.ROOT / "source/lessons/04_ddp_training.py"
EXERCISES = ("train", "train_with_ddp", "spread", "finished_spread", "join", "train_epoch", "save")
MAX, MIN = dist.ReduceOp.MAX, dist.ReduceOp.MIN
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of the exercises define, stubs and finished answers."""
    names = {
        "__name__": "__main__", "torch": torch, "dist": dist, "DataLoader": DataLoader,
        "DistributedSampler": DistributedSampler, "cross_entropy": cross_entropy,
        "DistributedDataParallel": DistributedDataParallel, "my_device": lambda: "cpu",
        "print_loss": lambda *_: None,
    }  # fmt: skip
    for number, source in enumerate(labs.sources(LESSON)):
        if any(f"def {name}(" in source for name in EXERCISES):
            labs.run(source, f"<lesson 04 {number}>", names)
    return names


@pytest.fixture(scope="module")
def script():
    """The script to take home, whose functions are our answers to the three steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(labs.ROOT / "notebooks"))
        yield importlib.import_module("train_ddp")


def judged(answer, **options):
    return check(ddp_exercises.keeping_weights(answer), **ddp_exercises.SPREAD | options)


def reduced(row, operator):
    copy = row.clone()
    dist.all_reduce(copy, operator)
    return copy


def without_copies(mine):
    largest, smallest = mine, mine
    dist.all_reduce(largest, MAX)
    dist.all_reduce(smallest, MIN)
    return (largest - smallest).max()


def with_one_copy(mine):
    smallest = reduced(mine, MIN)
    dist.all_reduce(mine, MAX)
    return (mine - smallest).max()


def to_rank_0(mine):
    first = mine.clone()
    dist.broadcast(first, src=0)
    return (mine - first).abs().max()


def to_rank_0_on_all_ranks(mine):
    return reduced(to_rank_0(mine), MAX)


def to_the_mean(mine):
    mean = reduced(mine, dist.ReduceOp.SUM) / dist.get_world_size()
    return reduced((mine - mean).abs().max(), MAX)


def of_the_sums(mine):
    return reduced(mine.sum(), MAX) - reduced(mine.sum(), MIN)


def of_the_norms(mine):
    return reduced(mine.norm(), MAX) - reduced(mine.norm(), MIN)


def of_the_largest_weights(mine):
    return reduced(mine.max(), MAX) - reduced(mine.max(), MIN)


def on_the_root_alone(mine):
    found = (reduced(mine, MAX) - reduced(mine, MIN)).max()
    return found if dist.get_rank() == 0 else torch.tensor(0.0)


def a_row_and_no_number(mine):
    return reduced(mine, MAX) - reduced(mine, MIN)


def a_mean_and_no_maximum(mine):
    return (reduced(mine, MAX) - reduced(mine, MIN)).mean()


def all_is_well(mine):
    return torch.tensor(0.0)


def without_asking_for_nan(mine):
    return (reduced(mine, MAX) - reduced(mine, MIN)).max()


def asking_only_its_own_weights(mine):
    if mine.isnan().any():
        return torch.tensor(float("nan"))
    return without_asking_for_nan(mine)


def called_by_rank_0_alone(mine):
    if dist.get_rank() == 0:
        dist.all_reduce(mine.clone(), MAX)
    return torch.tensor(0.0)


WRONG = [
    without_copies, with_one_copy, to_rank_0, to_rank_0_on_all_ranks, to_the_mean, of_the_sums,
    of_the_norms, of_the_largest_weights, on_the_root_alone, a_row_and_no_number,
    a_mean_and_no_maximum, all_is_well, called_by_rank_0_alone,
    without_asking_for_nan, asking_only_its_own_weights,
]  # fmt: skip


def by_all_gather(mine):
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, mine)
    return torch.stack([(row - other).abs().max() for row in rows for other in rows]).max()


def by_negation(mine):
    both = reduced(torch.cat([mine, -mine]), MAX)
    has_nan = reduced(mine.sum(), dist.ReduceOp.SUM).isnan()
    return float("nan") if has_nan else both.view(2, -1).sum(dim=0).max().item()


@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_comparison_is_rejected(answer):
    outcome = judged(answer, **labs.HUNG)
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("answer", [by_all_gather, by_negation])
def test_another_right_comparison_passes(answer):
    assert judged(answer, **labs.PATIENT).require()


def test_our_own_answer_passes_and_the_stub_is_not_attempted(lesson):
    assert judged(lesson["finished_spread"], **labs.PATIENT).require()
    assert judged(lesson["spread"]).state == "not attempted"


# ---- six lines -----------------------------------------------------------------------------------


def loop(model, loader, epochs, before_epoch=lambda epoch: None, between=lambda: None, rate=0.001):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for epoch in range(epochs):
        before_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            between()
            optimizer.step()
    return model


def dealt(data, batch_size):
    sampler = DistributedSampler(data)
    return DataLoader(data, batch_size=batch_size, sampler=sampler), sampler.set_epoch


def share(global_batch):
    return global_batch // dist.get_world_size()


def without_ddp(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, share(global_batch))
    return loop(model, loader, epochs, set_epoch)


def without_a_sampler(model, data, global_batch, epochs):
    loader = DataLoader(data, batch_size=share(global_batch), shuffle=True)
    return loop(DistributedDataParallel(model), loader, epochs).module


def one_sampler_for_all(model, data, global_batch, epochs):
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    loader = DataLoader(data, batch_size=global_batch, sampler=sampler)
    return loop(DistributedDataParallel(model), loader, epochs, sampler.set_epoch).module


def batch_not_divided(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, global_batch)
    return loop(DistributedDataParallel(model), loader, epochs, set_epoch).module


def without_set_epoch(model, data, global_batch, epochs):
    loader, _ = dealt(data, share(global_batch))
    return loop(DistributedDataParallel(model), loader, epochs).module


def returns_the_wrapper(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, share(global_batch))
    return loop(DistributedDataParallel(model), loader, epochs, set_epoch)


def returns_nothing(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, share(global_batch))
    loop(DistributedDataParallel(model), loader, epochs, set_epoch)


def rate_times_world_size(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, share(global_batch))
    rate = 0.001 * dist.get_world_size()
    return loop(DistributedDataParallel(model), loader, epochs, set_epoch, rate=rate).module


def each_from_its_own_beginning(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, share(global_batch))
    return loop(DistributedDataParallel(model, init_sync=False), loader, epochs, set_epoch).module


def divided_by_two(model, data, global_batch, epochs):
    loader, set_epoch = dealt(data, global_batch // 2)
    return loop(DistributedDataParallel(model), loader, epochs, set_epoch).module


WRONG_TRAININGS = [
    without_ddp, without_a_sampler, one_sampler_for_all, batch_not_divided, without_set_epoch,
    returns_the_wrapper, returns_nothing, rate_times_world_size, each_from_its_own_beginning,
    divided_by_two,
]  # fmt: skip


def with_gradients_averaged_by_hand(model, data, global_batch, epochs):
    """Deals and averages by itself, without DDP and without a sampler."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(global_batch):
            images, labels = data[batch[rank::world_size]]
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            optimizer.step()
    return model


@pytest.mark.parametrize("answer", WRONG_TRAININGS)
def test_a_wrong_training_is_rejected(answer):
    outcome = check(ddp_exercises.by_weights(answer), **ddp_exercises.SIX_LINES)
    assert outcome.state == "wrong", outcome
    assert outcome.message


def in_the_wrapper_without_set_epoch(model, data, global_batch, epochs):
    loader, _ = dealt(data, share(global_batch))
    return loop(DistributedDataParallel(model), loader, epochs)


def wrapped_and_nothing_else(model, data, global_batch, epochs):
    loader = DataLoader(data, batch_size=global_batch, shuffle=True)
    return loop(DistributedDataParallel(model), loader, epochs)


def unchanged(model, data, global_batch, epochs):
    return loop(model, DataLoader(data, batch_size=global_batch, shuffle=True), epochs)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (without_set_epoch, "by `set_epoch(epoch)`"),
        (in_the_wrapper_without_set_epoch, "by `set_epoch(epoch)`"),
        (returns_the_wrapper, "what is returned is the wrapper"),
        (batch_not_divided, "each rank takes its share of the global batch"),
        (without_ddp, "who averages the gradients?"),
        (without_a_sampler, "each rank reads all digits, in an order of its own"),
        (wrapped_and_nothing_else, "each rank reads all digits, in an order of its own"),
        (unchanged, "each rank reads all digits, in an order of its own"),
    ],
)
def test_a_training_is_told_which_mistake_was_made(answer, sentence):
    outcome = check(ddp_exercises.by_weights(answer), **ddp_exercises.SIX_LINES)
    assert sentence in outcome.message


def test_digits_say_no_mistake_that_was_not_made():
    outcome = check(ddp_exercises.by_weights(rate_times_world_size), **ddp_exercises.SIX_LINES)
    assert "These are the weights" not in outcome.message


def test_another_right_training_passes():
    answer = ddp_exercises.by_weights(with_gradients_averaged_by_hand)
    assert check(answer, **ddp_exercises.SIX_LINES | labs.PATIENT).require()


def test_our_own_training_passes_and_the_stub_is_not_attempted(lesson):
    finished = ddp_exercises.by_weights(lesson["train_with_ddp"])
    assert check(finished, **ddp_exercises.SIX_LINES | labs.PATIENT).require()
    stub = ddp_exercises.by_weights(lesson["train"])
    assert check(stub, **ddp_exercises.SIX_LINES).state == "not attempted"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (with_gradients_averaged_by_hand, "0 of 16 digits are read by nobody and 0 twice"),
        (one_sampler_for_all, "0 of 16 digits are read by nobody and 16 twice"),
        (without_set_epoch, "epoch 1 has the same order again"),
        (each_from_its_own_beginning, "with different weights, not those of one process"),
        (batch_not_divided, "with equal weights, not those of one process"),
    ],
)
def test_a_training_is_drawn_right_or_wrong(answer, sentence, capsys):
    chapter_04.draw_training(answer)
    assert sentence in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "left", "right"),
    [
        (by_all_gather, "0.25, 0.25, 0.25", "nan, nan, nan"),
        (without_asking_for_nan, "0.25, 0.25, 0.25", "0, 0, 0"),
        (on_the_root_alone, "0.25, 0, 0", "0, 0, 0"),
    ],
)
def test_a_comparison_is_drawn_with_what_is_wanted(answer, left, right, capsys):
    chapter_04.draw_spread(answer)
    text = capsys.readouterr().out
    assert f"Left, wanted on every rank 0.25; yours: {left}." in text
    assert f"Right, wanted on every rank nan; yours: {right}." in text


def test_what_cannot_be_drawn_says_why(lesson, capsys):
    chapter_04.draw_training(lesson["train"])
    chapter_04.draw_spread(lesson["spread"])
    assert capsys.readouterr().out.count("No picture yet: NotImplementedError: about") == 2


# ---- the script ----------------------------------------------------------------------------------


def joins_always():
    dist.init_process_group()
    return torch.device("cpu")


def knows_torchrun_alone():
    if not dist.is_initialized():
        dist.init_process_group()
    return torch.device("cpu")


def returns_no_device():
    _names_from_slurm()
    if not dist.is_initialized():
        dist.init_process_group()


def _names_from_slurm():
    if "RANK" not in os.environ:
        os.environ["RANK"] = os.environ["SLURM_PROCID"]
        os.environ["WORLD_SIZE"] = os.environ["SLURM_STEP_NUM_TASKS"]


def two_ranks_for_ever():
    _names_from_slurm()
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=2)
    return torch.device("cpu")


def joins_nothing():
    return torch.device("cpu")


def in_reverse():
    _names_from_slurm()
    if not dist.is_initialized():
        world_size = int(os.environ["WORLD_SIZE"])
        rank = world_size - 1 - int(os.environ["RANK"])
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
    return torch.device("cpu")


def by_arguments():
    if not dist.is_initialized():
        rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
        size = os.environ.get("WORLD_SIZE") or os.environ["SLURM_STEP_NUM_TASKS"]
        dist.init_process_group("gloo", rank=int(rank), world_size=int(size))
    return torch.device("cpu")


def epoch_of(step_of, mean_of):
    """A way to write `train_epoch`, put together from its parts."""

    def train_epoch(model, loader, optimizer, clip, device):
        losses = []
        for inputs, labels in loader:
            loss = cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            step_of(model, loss, optimizer, clip)
            losses.append((loss.detach(), len(labels)))
        return mean_of(losses)

    return train_epoch


def clipped_step(model, loss, optimizer, clip):
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def step_without_clipping(model, loss, optimizer, clip):
    loss.backward()
    optimizer.step()


def step_clipped_too_early(model, loss, optimizer, clip):
    nn.utils.clip_grad_norm_(model.parameters(), clip)
    step_without_clipping(model, loss, optimizer, clip)


def mean_over_samples(losses):
    total = torch.zeros(2, dtype=torch.float64)
    for loss, count in losses:
        total += torch.tensor([loss.item() * count, count])
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def mean_by_gathering(losses):
    numbers = [None] * dist.get_world_size()
    dist.all_gather_object(numbers, [(loss.item(), count) for loss, count in losses])
    pairs = [pair for pairs_of_rank in numbers for pair in pairs_of_rank]
    return sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs)


def mean_over_batches(losses):
    mean = torch.stack([loss for loss, _ in losses]).mean()
    dist.all_reduce(mean)
    return (mean / dist.get_world_size()).item()


def mean_of_this_rank(losses):
    return sum(loss.item() * count for loss, count in losses) / sum(count for _, count in losses)


def sum_of_losses(losses):
    return mean_over_samples(losses) * len(losses)


def last_loss(losses):
    return losses[-1][0].item()


WRONG_EPOCHS = {
    "without clipping": epoch_of(step_without_clipping, mean_over_samples),
    "clipped too early": epoch_of(step_clipped_too_early, mean_over_samples),
    "mean over batches": epoch_of(clipped_step, mean_over_batches),
    "one rank's mean": epoch_of(clipped_step, mean_of_this_rank),
    "a sum": epoch_of(clipped_step, sum_of_losses),
    "the last loss": epoch_of(clipped_step, last_loss),
}


DIFFERENT_NAMES = "net", "sgd", "done"


def parts_of(model, optimizer, epoch, names=ddp_exercises.PARTS):
    return dict(zip(names, (model.state_dict(), optimizer.state_dict(), epoch), strict=True))


def loads(path, model, optimizer, names=ddp_exercises.PARTS):
    if not path.exists():
        return 0
    of_model, of_optimizer, epoch = map(torch.load(path).get, names)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    return epoch


def saves(path, model, optimizer, epoch):
    if dist.get_rank() == dist.get_world_size() - 1:
        torch.save(parts_of(model, optimizer, epoch), f"{path}.part")
        os.rename(f"{path}.part", path)
    dist.all_reduce(torch.zeros(1))  # nobody goes on before all have come


def saves_by_every_rank(path, model, optimizer, epoch):
    draft = f"{path}.{dist.get_rank()}"
    torch.save(parts_of(model, optimizer, epoch), draft)
    os.replace(draft, path)
    dist.barrier()


def saves_over_the_old_file(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(parts_of(model, optimizer, epoch), path)
    dist.barrier()


def saves_and_nobody_waits(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(parts_of(model, optimizer, epoch), f"{path}.part")
        os.replace(f"{path}.part", path)


def saves_and_leaves_a_draft(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(parts_of(model, optimizer, epoch), f"{path}.part")
        path.unlink(missing_ok=True)
        os.link(f"{path}.part", path)
    dist.barrier()


def saves_no_optimizer(path, model, optimizer, epoch):
    saves(path, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), epoch)


def saves_the_next_epoch(path, model, optimizer, epoch):
    saves(path, model, optimizer, epoch + 1)


def saves_under_different_names(path, model, optimizer, epoch):
    if dist.get_rank() == 0:
        torch.save(parts_of(model, optimizer, epoch, DIFFERENT_NAMES), f"{path}.part")
        os.replace(f"{path}.part", path)
    dist.barrier()


def loads_under_different_names(path, model, optimizer):
    return loads(path, model, optimizer, DIFFERENT_NAMES)


def loads_on_rank_0_alone(path, model, optimizer):
    return loads(path, model, optimizer) if dist.get_rank() == 0 else 2 * path.exists()


def loads_and_forgets_the_optimizer(path, model, optimizer):
    other = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return loads(path, model, other)


WRONG_PAIRS = [
    (saves_by_every_rank, loads), (saves_over_the_old_file, loads), (saves_and_nobody_waits, loads),
    (saves_and_leaves_a_draft, loads), (saves_no_optimizer, loads), (saves_the_next_epoch, loads),
    (saves, loads_on_rank_0_alone), (saves, loads_and_forgets_the_optimizer),
    (saves_under_different_names, loads_under_different_names),
]  # fmt: skip


@pytest.mark.parametrize(
    "join",
    [
        *(joins_always, knows_torchrun_alone, returns_no_device, two_ranks_for_ever),
        *(joins_nothing, in_reverse),
    ],
)
def test_a_wrong_way_to_join_is_rejected(join):
    outcome = check(ddp_exercises.joining(join), **ddp_exercises.JOIN | labs.HUNG)
    assert outcome.state == "wrong", outcome


@pytest.mark.parametrize("name", WRONG_EPOCHS)
def test_a_wrong_epoch_is_rejected(name):
    answer = ddp_exercises.over_an_epoch(WRONG_EPOCHS[name])
    assert check(answer, **ddp_exercises.EPOCH).state == "wrong"


@pytest.mark.parametrize(("save", "load"), WRONG_PAIRS)
def test_a_wrong_checkpoint_is_rejected(save, load):
    outcome = check(ddp_exercises.stopping(save, load), **ddp_exercises.STOPPING | labs.HUNG)
    assert outcome.state == "wrong", outcome


def test_the_scripts_own_functions_pass(script):
    for answer, options in [
        (ddp_exercises.joining(script.join), ddp_exercises.JOIN),
        (ddp_exercises.over_an_epoch(script.train_epoch), ddp_exercises.EPOCH),
        (ddp_exercises.stopping(script.save, script.load), ddp_exercises.STOPPING),
    ]:
        assert check(answer, **options | labs.PATIENT).require()


def test_functions_in_a_different_style_pass():
    gathering = epoch_of(clipped_step, mean_by_gathering)
    for answer, options in [
        (ddp_exercises.joining(by_arguments), ddp_exercises.JOIN),
        (ddp_exercises.over_an_epoch(gathering), ddp_exercises.EPOCH),
        (ddp_exercises.stopping(saves, loads), ddp_exercises.STOPPING),
    ]:
        assert check(answer, **options | labs.PATIENT).require()


def test_the_stubs_of_the_script_are_not_attempted(lesson):
    for answer, options in [
        (ddp_exercises.joining(lesson["join"]), ddp_exercises.JOIN),
        (ddp_exercises.over_an_epoch(lesson["train_epoch"]), ddp_exercises.EPOCH),
        (ddp_exercises.stopping(lesson["save"], lesson["load"]), ddp_exercises.STOPPING),
    ]:
        assert check(answer, **options).state == "not attempted"


def test_a_file_with_different_names_is_told_which_parts_are_wanted():
    # `same_tensors` reads the part "model" of the file that the script writes.
    pair = saves_under_different_names, loads_under_different_names
    outcome = check(ddp_exercises.stopping(*pair), **ddp_exercises.STOPPING | labs.HUNG)
    assert "parts in the file" in outcome.message, outcome


@pytest.mark.parametrize("first", [23, 30], ids=["after an epoch", "in the middle of an epoch"])
def test_a_run_in_two_pieces_is_the_undisturbed_run(first, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(labs.ROOT / "notebooks"))  # the lesson imports train_ddp
    own = labs.definitions("04_ddp_training")
    own["training"] = digits(True)  # an epoch has 23 steps
    undisturbed = launch(own["train_on"], tmp_path / "undisturbed.pt", 34, backend="gloo")
    launch(own["train_on"], tmp_path / "stopped.pt", first, backend="gloo")
    continued = launch(own["train_on"], tmp_path / "stopped.pt", 34 - first, backend="gloo")
    for whole, in_pieces in zip(undisturbed, continued, strict=True):
        assert torch.equal(whole["weights"], in_pieces["weights"])


def test_ways_are_timed_by_turns_and_none_is_always_the_first():
    def ordered():
        taken = []

        @contextmanager
        def note(name):
            taken.append(name)
            yield

        model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(4, 10)))
        model.module.register_forward_hook(lambda _, images, scores: taken.append(len(scores)))
        batch = torch.zeros(6, 1, 2, 2), torch.zeros(6, dtype=torch.long)
        ways = {name: partial(note, name) for name in ("no messages", "DDP")}
        return taken, chapter_04.images_per_second(model, batch, ways, steps=4)

    for rank, (taken, rates) in enumerate(launch(ordered, backend="gloo")):
        alone = [6][rank:]  # rank 0 takes all six images, and rank 1 waits
        there, back = ["DDP", 3, "no messages", 3, *alone], [*alone, "no messages", 3, "DDP", 3]
        assert taken == (there + back) * 2
        assert set(rates) == {"one rank", "no messages", "DDP"}
        assert min(rates.values()) > 0


def test_the_more_a_rank_computes_the_less_talking_weighs(monkeypatch):
    monkeypatch.syspath_prepend(str(labs.ROOT / "notebooks"))  # the lesson imports train_ddp
    own = labs.definitions("04_ddp_training")
    own["training"] = digits(True)
    for _ in range(10):  # a busy machine blurs times
        of_control = []
        for global_batch in (64, 1024):
            rates = launch(own["measure"], global_batch, backend="gloo")[0]
            of_control.append(rates["DDP"] / rates["no messages"])
        if of_control[0] < of_control[1]:
            return
    raise AssertionError(of_control)


def join():
    return "written by a learner"


def test_functions_that_are_written_take_the_place_of_the_scripts_own(lesson, tmp_path):
    original = labs.ROOT / "notebooks/train_ddp.py"
    copy = tmp_path / "mine.py"

    def train_epoch():
        raise NotImplementedError("about 12 lines")

    assert chapter_04.write_script(copy, original, join, train_epoch) == ["join"]
    text = copy.read_text()
    assert "written by a learner" in text
    assert "init_process_group" not in text
    assert text.count("def train_epoch(") == text.count("def join(") == 1
