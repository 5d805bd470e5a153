"""Chapter 13's wrappers as another course would ask of them: the same as one process, always.

Every case trains in each rank twice: the module itself on all of the batch, and wrapped on this
rank's part of it. All cases of a number of ranks share one launch.
"""

import copy
import re
import sys
import traceback

import labs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

from course_material.language import SmallGPT
from course_utils import WorkerTimeout, launch

pytestmark = pytest.mark.slow
STEPS, BATCH = 3, 12
WRAPPERS = "Zero1", "Zero2", "Zero3"


@pytest.fixture(scope="module", autouse=True)
def heavy_modules():
    """Loaded when these tests begin: FSDP has 40 MB, which other forks do without."""
    global MixedPrecisionPolicy, Zero3, chapter_13, fully_shard, sharding
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from course_lessons import chapter_13, sharding
    from course_lessons.sharding import Zero3


class Mixture(nn.Module):
    """Layers within layers, one used twice, loose parameters, a scalar, a layer that rests."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.randn(5))
        self.twice = nn.Sequential(nn.Linear(5, 5), nn.Tanh())
        self.loose = nn.ParameterList([nn.Parameter(torch.randn(5, 5)) for _ in range(2)])
        self.rests = nn.Linear(3, 3)

    def forward(self, x):
        x = self.twice(self.twice(x * self.scale + self.shift))
        return x @ self.loose[0] @ self.loose[1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def norms():
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.GELU(), nn.Linear(7, 9, bias=False))


def frozen_in_the_middle():
    module = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 5), nn.Linear(5, 3))
    module[1].requires_grad_(False)
    module[2].bias.requires_grad_(False)
    return module


def tied():
    module = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))
    module[2].weight = module[0].weight
    return module


def gpt():
    return SmallGPT(11, width=8, depth=1, context=6)


def embedding():
    return nn.Sequential(nn.Embedding(7, 5, padding_idx=2), nn.Linear(5, 3))


def floats(*shape):
    return lambda: torch.randn(BATCH, *shape)


def tokens(length, letters):
    return lambda: torch.randint(letters, (BATCH, length))


MODULES = {
    "one layer": (lambda: nn.Linear(5, 3), floats(5)),
    "less numbers than ranks": (lambda: nn.Linear(1, 1), floats(1)),
    "norms and odd sizes": (norms, floats(6)),
    "embedding": (embedding, tokens(4, 7)),
    "a convolution": (lambda: nn.Conv1d(3, 5, 3), floats(3, 7)),
    "layers within layers, twice, loose, at rest": (Mixture, floats(5)),
    "attention": (Attention, floats(3, 6)),
    "an LSTM": (Recurrent, floats(4, 3)),
    "frozen": (frozen_in_the_middle, floats(4)),
    "all frozen but the first": (lambda: _only_first(frozen_in_the_middle()), floats(4)),
    "tied": (tied, floats(5)),
    "a GPT with a tied weight": (gpt, tokens(5, 11)),
}


def _only_first(module):
    module.requires_grad_(False)
    module[0].requires_grad_(True)
    return module


def part(whole):
    """This rank's part of a batch."""
    return whole.chunk(dist.get_world_size())[dist.get_rank()]


def apart(ones, others):
    """The largest difference of two dicts of tensors, in which None is unlike a tensor."""
    assert ones.keys() == others.keys(), ones.keys() ^ others.keys()
    missing = [name for name in ones if (ones[name] is None) != (others[name] is None)]
    assert missing == []
    pairs = [(ones[name], others[name]) for name in ones if ones[name] is not None]
    assert all(mine.shape == its.shape for mine, its in pairs)
    return max((mine - its).abs().max().item() for mine, its in pairs)


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def train_both(wrap, make, draw, parts=1, optimizer=momentum, zeros=False):
    """Differences of gradients and of weights after some steps, and whether weights moved."""
    torch.manual_seed(3)
    alone = make().double()
    before = copy.deepcopy(alone.state_dict())
    torch.manual_seed(100 + dist.get_rank())  # the wrapper has to make ranks equal
    own = copy.deepcopy(alone) if dist.get_rank() == 0 else make().double()
    for mine, its in zip(own.parameters(), alone.parameters(), strict=True):
        mine.requires_grad_(its.requires_grad)
    model = wrap(own)
    optimizers = [optimizer(net.parameters(), lr=0.05) for net in (alone, model)]
    torch.manual_seed(4)
    for _ in range(STEPS):
        for each in optimizers:
            each.zero_grad(set_to_none=not zeros)
        for batch in [draw() for _ in range(parts)]:
            batch = batch.double() if batch.is_floating_point() else batch
            alone(batch).square().mean().backward()
            model(part(batch)).square().mean().backward()
            if not isinstance(model, Zero3):
                model.finish()
        if isinstance(model, Zero3):  # once, for all backward passes
            model.finish()
        gradients = {name: p.grad for name, p in alone.named_parameters()}
        found = apart(model.full_gradients(), gradients)
        for each in optimizers:
            each.step()
    state = model.full_state_dict()
    moved = apart(state, before)
    return max(found, apart(state, alone.state_dict())), moved


def or_error(function, *args, **options):
    try:
        return function(*args, **options)
    except Exception:
        return traceback.format_exc()


def all_cases(wrap):
    return {name: or_error(train_both, wrap, *how) for name, how in MODULES.items()}


@pytest.fixture(scope="module")
def trained():
    known = {}

    def find(wrapper, world_size):
        if (wrapper, world_size) not in known:
            how = {"world_size": world_size, "backend": "gloo"}
            known[wrapper, world_size] = launch(all_cases, getattr(sharding, wrapper), **how)
        return known[wrapper, world_size]

    return find


@pytest.mark.parametrize("case", MODULES)
@pytest.mark.parametrize(
    ("wrapper", "world_size"),
    [("Zero1", 2), ("Zero2", 3), ("Zero3", 1), ("Zero3", 3)],
)
def test_gradients_and_weights_are_those_of_one_process(trained, wrapper, world_size, case):
    for told in trained(wrapper, world_size):
        assert isinstance(told[case], tuple), told[case]
        difference, moved = told[case]
        assert difference < 1e-12
        assert moved > 0.001


def run(function, *args, world_size=2, **options):
    return launch(function, *args, world_size=world_size, backend="gloo", **options)


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_several_backward_passes_add_up(wrapper):
    for difference, moved in run(train_both, getattr(sharding, wrapper), *MODULES["tied"], 3):
        assert difference < 1e-12 < moved


def test_gradients_may_be_set_to_zeros_and_the_optimiser_may_be_adam():
    how = 1, torch.optim.AdamW, True
    for difference, moved in run(train_both, Zero3, *MODULES["embedding"], *how):
        assert difference < 1e-12 < moved


def test_two_copies_of_two_shards_are_one_model():
    def hybrid(module):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "shard"))
        return Zero3(module, None, mesh["shard"].get_group(), mesh["copy"].get_group())

    for difference, moved in run(train_both, hybrid, *MODULES["norms and odd sizes"], world_size=4):
        assert difference < 1e-12 < moved


def test_a_rank_holds_its_share_and_nothing_whole_remains():
    def held():
        model = Zero3(gpt())
        model(torch.randint(11, (2, 5))).mean().backward()
        model.finish()
        left = len(model.full), len(model.shard_of), len(model.pending)
        return left, sum(p.numel() for p in model.parameters())

    sizes = [p.numel() for p in gpt().parameters()]
    for left, numbers in run(held, world_size=3):
        assert left == (0, 0, 0)
        assert numbers == sum(-(-size // 3) for size in sizes)


def test_names_are_those_of_the_module():
    def names():
        model = Zero3(gpt())
        return [name for name, _ in model.module.named_parameters()]

    assert run(names)[0] == [name for name, _ in gpt().named_parameters()]


# Mixed precision


def low(kind, steps=4):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5))
    if kind == "ours":
        model = Zero3(module, torch.bfloat16)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        model = fully_shard(module, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        result = model(part(torch.randn(8, 16)))
        assert result.dtype == torch.bfloat16
        result.float().square().sum().backward()
        if kind == "ours":
            model.finish()
            assert {p.dtype for p in model.parameters()} == {torch.float32}
            assert {p.grad.dtype for p in model.parameters()} == {torch.float32}
        optimizer.step()
    if kind == "ours":
        return model.full_state_dict()
    return {name: own.full_tensor() for name, own in model.state_dict().items()}


def test_bf16_weights_and_fp32_sums_are_bit_for_bit_those_of_fsdp2():
    ours, theirs = run(low, "ours")[0], run(low, "theirs")[0]
    assert apart(ours, theirs) == 0
    assert {own.dtype for own in ours.values()} == {torch.float32}
    assert any((own != own.bfloat16()).any() for own in ours.values()), "not rounded on the way"


def test_in_half_precision_half_as_much_is_gathered_and_sums_are_single():
    trace = run(low, "ours", trace=True).trace
    dtypes = {kind: {e.dtype for e in trace if e.kind == kind} for kind in ("reduce_scatter",)}
    assert dtypes == {"reduce_scatter": {"float32"}}
    gathered = [e.dtype for e in trace.of_rank(0) if e.kind == "all_gather"]
    assert gathered.count("float32") == 6  # for the state_dict
    assert set(gathered) == {"float32", "bfloat16"}


def test_a_gpt_computes_in_half_precision():
    def losses():
        torch.manual_seed(0)
        model = Zero3(gpt(), torch.float16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        data, found = torch.randint(11, (6, 6)), []
        for _ in range(8):
            optimizer.zero_grad()
            scores = model(data[:, :-1])
            assert scores.dtype == torch.float16
            loss = nn.functional.cross_entropy(scores.float().mT, data[:, 1:])
            loss.backward()
            model.finish()
            optimizer.step()
            found.append(loss.item())
        return found

    told = run(losses)[0]
    assert told[-1] < told[0] - 0.3


# Without gradients, with buffers, after failures


def test_without_gradients_and_in_eval_mode_the_output_is_the_modules():
    def outputs():
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5))
        twin, data = copy.deepcopy(module), torch.randn(3, 4)
        model = Zero3(module).eval()
        with torch.no_grad():
            same = torch.equal(model(data), twin.eval()(data))
        return same, model(data).requires_grad, len(model.full)

    assert set(run(outputs)) == {(True, True, 0)}


def test_buffers_are_rank_0s():
    def buffers():
        module = nn.Sequential(nn.BatchNorm1d(3))
        module.register_buffer("flags", torch.tensor([True, dist.get_rank() == 0]))
        model = Zero3(module)
        for _ in range(2):
            model(torch.randn(5, 3) + dist.get_rank())
        state = model.full_state_dict()
        return state["flags"].tolist(), state["0.num_batches_tracked"].item()

    assert run(buffers) == [([True, True], 2)] * 2


def test_a_forward_that_fails_leaves_nothing_stale():
    def failing():
        torch.manual_seed(2)
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
        alone, model = copy.deepcopy(module), Zero3(module)
        optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in (alone, model)]
        with pytest.raises(RuntimeError):
            model(torch.randn(3, 5))
        for _ in range(2):
            data = torch.randn(6, 4)
            alone(data).square().mean().backward()
            model(part(data)).square().mean().backward()
            model.finish()
            for each in optimizers:
                each.step()
                each.zero_grad()
        return apart(model.full_state_dict(), alone.state_dict())

    assert max(run(failing)) < 1e-6


class TwoPaths(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(4, 4, bias=False) for _ in range(2)])

    def forward(self, x, path):
        return torch.stack([self.experts[number](x) for number in path])


def on_paths(paths):
    module, path, data = TwoPaths(), paths[dist.get_rank()], torch.ones(1, 4)
    for own in module.parameters():
        dist.broadcast(own.detach(), src=0)
    wanted = module(data, path).detach()
    return torch.equal(Zero3(module)(data, path), wanted)


def test_ranks_on_other_paths_get_other_layers_numbers_or_wait_for_ever():
    assert run(on_paths, [(0, 1), (0, 1)]) == [True, True]
    assert run(on_paths, [(0, 1), (1, 0)]) == [False, False]
    with pytest.raises(WorkerTimeout):
        run(on_paths, [(0, 1), (0,)], timeout=3)


# The whole state


def test_a_state_dict_is_the_modules_and_comes_back_on_other_numbers_of_ranks():
    torch.manual_seed(5)
    module = SmallGPT(11, width=8, depth=1, context=6)
    wanted = copy.deepcopy(module.state_dict())
    state = run(lambda: Zero3(module).full_state_dict(), world_size=2)[0]
    assert list(state) == list(wanted)
    assert apart(state, wanted) == 0

    def load():
        model = Zero3(SmallGPT(11, width=8, depth=1, context=6))
        model.load_full_state_dict(state)
        return model.full_state_dict()

    for back in run(load, world_size=3):
        assert apart(back, wanted) == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("bias"), "Missing key"),
        (lambda state: state.update(more=torch.ones(2)), "Unexpected key"),
        (lambda state: state.update(weight=torch.ones(5, 3)), r"weight is \(3, 5\), not \(5, 3\)"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, said):
    def load():
        model = Zero3(nn.Linear(5, 3))
        state = model.full_state_dict()
        change(state)
        with pytest.raises((RuntimeError, ValueError), match=said):
            model.load_full_state_dict(state)

    run(load)


def test_a_rank_may_also_save_and_load_its_own_shards():
    def back():
        model, other = Zero3(nn.Linear(5, 3)), Zero3(nn.Linear(5, 3))
        other.load_state_dict(model.state_dict())
        return apart(other.full_state_dict(), model.full_state_dict())

    assert max(run(back)) == 0


def test_activations_may_be_computed_again_in_backward():
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 5))

        def forward(self, x):
            again = checkpoint(self.inner, x, use_reentrant=False)
            return checkpoint(self.inner, again, use_reentrant=False)

    for difference, moved in run(train_both, Zero3, Again, floats(5)):
        assert difference < 1e-12 < moved


# What is sent


@pytest.mark.parametrize(
    ("wrapper", "times"), [("OurDDP", 2), ("Zero1", 2), ("Zero2", 2), ("Zero3", 2.75)]
)
def test_bytes_are_those_of_the_formula(wrapper, times):
    def step():
        layers = [nn.Linear(8, 8, bias=False) for _ in range(4)]
        model = getattr(sharding, wrapper)(nn.Sequential(*layers))
        dist.barrier()
        model(torch.randn(2, 8)).sum().backward()
        model.finish()

    trace = run(step, world_size=4, trace=True).trace
    start = 4 * 256  # the ring's broadcast, from rank 0
    wanted = [start * (rank < 3) + times * 3 / 4 * 1024 for rank in range(4)]
    assert list(trace.traffic().sent_bytes) == wanted


# What the chapter prints behind "about"


def test_each_stage_has_a_lower_peak_and_the_last_one_is_not_far_above_its_share():
    stages = "OurDDP", *WRAPPERS

    def trained():
        return [chapter_13.train_stack(getattr(sharding, stage)).peak for stage in stages]

    peaks = [max(told) for told in zip(*run(trained, world_size=4), strict=True)]
    assert peaks == sorted(peaks, reverse=True)
    assert 2 < peaks[-1] < 4 < peaks[-2]


def test_a_gpt_in_double_precision_is_that_of_one_process_and_of_fsdp2():
    def fsdp2(network):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in network.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(network, mesh=mesh)

    ((_, alone),) = run(chapter_13.train_gpt, None, world_size=1)
    less, ours = zip(*run(chapter_13.train_gpt, Zero3), strict=True)
    _, theirs = zip(*run(chapter_13.train_gpt, fsdp2), strict=True)
    assert max(chapter_13.apart(ours, other) for other in (alone, theirs[0])) < 1e-9
    assert chapter_13.apart(less, alone) > 1e-4


def test_the_adapter_for_another_course_in_contributing_works(monkeypatch):
    text = (labs.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.setattr(sys, "path", [*sys.path])
    names = {}
    exec(block, names)

    def step():
        module = nn.Linear(5, 3)
        model = names["get_fsdp"](module, torch.bfloat16)
        model(torch.ones(2, 5)).float().sum().backward()
        names["fsdp_on_after_backward"](model)
        full = names["fsdp_gather_full_params"](model)
        return {name: tuple(whole.shape) for name, whole in full.items()}

    assert run(step) == [{"weight": (3, 5), "bias": (3,)}] * 2
