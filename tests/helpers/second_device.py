"""A GPU where there is none: tensors on it are the CPU's, but refuse to meet those of the CPU.

Within `second_device()` torch says that CUDA is there. What goes to "cuda" stays in the CPU's
memory and is marked, by its storage; each operation looks at the marks of what it is given, and
raises what torch raises on a machine with a GPU when they differ. So a function that forgets to
move something is found on any machine. It says nothing of kernels, streams and times.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

CPU, GPU, UNDECIDED = "cpu", "cuda:0", "undecided"
MOVES = ("aten.copy_", "aten._to_copy", "aten.set_", "aten._local_scalar_dense")
# A tensor on the GPU takes an index of the CPU.
INDEXES = ("aten.index.", "aten.index_put", "aten._index_put", "aten._unsafe_index")
DEVICE = torch.Tensor.device.__get__
SAYS = {torch.Tensor.is_cuda.__get__: GPU, torch.Tensor.is_cpu.__get__: CPU}
FOLLOW = (torch.Tensor.__deepcopy__, torch.Tensor.new_tensor)
HOST_ONLY = (torch.Tensor.numpy, torch.Tensor.__array__)

_places: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # by storage


def place(tensor: torch.Tensor) -> str:
    """Where this tensor is said to be; what nobody has placed is on the CPU."""
    return _places.get(tensor.untyped_storage(), CPU)


def put(tensor: torch.Tensor, where: str) -> torch.Tensor:
    """Mark a tensor and all that share its storage."""
    _places[tensor.untyped_storage()] = where
    return tensor


@contextlib.contextmanager
def second_device() -> Iterator["_Meetings"]:
    """Pretend that this process has one GPU; yields what counts the meetings of tensors."""
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "is_bf16_supported": lambda: True,
    }
    unasked = {"_accelerator_graph_capture_health_check": lambda optimizer: None}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **cuda))
        stack.enter_context(mock.patch.multiple(torch.optim.Optimizer, **unasked))
        stack.enter_context(mock.patch.object(torch, "load", _loading(torch.load)))
        meetings = stack.enter_context(_Meetings())
        stack.enter_context(_Calls())
        yield meetings


def _loading(load: Any) -> Any:
    """`torch.load`, which puts what it reads where `map_location` says."""

    def load_to(path: Any, map_location: Any = "cpu", **options: Any) -> Any:
        parts = load(path, map_location="cpu", **options)
        if _where(map_location) == CPU:
            return parts
        return tree_map(lambda x: put(x, GPU) if isinstance(x, torch.Tensor) else x, parts)

    return load_to


class _Calls(TorchFunctionMode):
    """What is written in Python: where something is to go, and where it says that it is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == DEVICE:
            where = place(args[0])
            return torch.device(CPU if where == UNDECIDED else where)
        if func in SAYS:
            return place(args[0]) == SAYS[func]
        if func in HOST_ONLY and place(args[0]) == GPU:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        if func is torch.Tensor.cuda:
            return _Move.apply(args[0], GPU)
        if func is torch.Tensor.cpu:
            return _Move.apply(args[0], CPU) if place(args[0]) == GPU else args[0]
        if func is torch.Tensor.to:
            return _to(func, args, kwargs)
        return _make(func, args, kwargs)


def _to(func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """`tensor.to(...)`: the type as always, and then the place."""
    tensor, *words = args
    if isinstance(words[0] if words else None, torch.Tensor):
        device, dtype, words = torch.device(place(words[0])), words[0].dtype, []
    else:
        copy = {"copy": kwargs.pop("copy", False)}
        device, dtype, _, _ = torch._C._nn._parse_to(*words, **kwargs)
        kwargs = copy
    typed = func(tensor, dtype or tensor.dtype, **kwargs)
    where = place(tensor) if device is None else _where(device)
    return typed if where == place(typed) else _Move.apply(typed, where)


def _make(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Any other call, which may make a tensor on a device."""
    where = CPU
    if kwargs.get("device") is not None:
        where = _where(kwargs["device"])
        kwargs["device"] = torch.device(CPU)
        if where == GPU and kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
    before, _Meetings.makes = _Meetings.makes, where
    try:
        result = func(*args, **kwargs)
    finally:
        _Meetings.makes = before
    if func in FOLLOW:
        where = place(args[0])
    if where == GPU and isinstance(result, torch.Tensor):
        put(result, GPU)
    return result


def _where(device: Any) -> str:
    if isinstance(device, int):
        return GPU
    return GPU if torch.device(device).type == "cuda" else CPU


class _Move(torch.autograd.Function):
    """A copy in the other place, whose gradient comes back from there."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, where: str) -> torch.Tensor:
        ctx.came_from = place(tensor)
        with torch.utils._python_dispatch._disable_current_modes():
            copied = tensor.detach().clone()
        return put(copied, where)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        with torch.utils._python_dispatch._disable_current_modes():
            copied = gradient.clone()
        return put(copied, ctx.came_from), None


class _Meetings(TorchDispatchMode):
    """Every operation, autograd's and DDP's too: who meets whom, and where the result is.

    Attributes:
        operations: how many had something of the GPU.
        sent: where the tensors of collectives and messages were, by operation.
    """

    makes: str | None = None  # the place of what a call in Python makes of nothing

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.sent = 0, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(func)
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        where = self._meet(name, tensors)
        result = func(*args, **kwargs)
        if name.startswith(MOVES[1]):
            where = place(args[0])
        if not tensors:  # torch itself makes what no call in Python has asked for
            where = self.makes or UNDECIDED

        storages = [tensor.untyped_storage() for tensor in tensors]

        def mark(made: Any) -> Any:
            if isinstance(made, torch.Tensor):
                storage = made.untyped_storage()
                shared = any(storage is its for its in storages)
                if storage not in _places and not shared:
                    put(made, where)
            return made

        tree_map(mark, result)
        return result

    def _meet(self, name: str, tensors: list[torch.Tensor]) -> str:
        """Refuse what does not go together; say where it is."""
        places = [place(tensor) for tensor in tensors]
        if GPU not in places:
            if name.startswith("c10d.") and CPU in places:
                self.sent.append((name, CPU))
            return CPU if CPU in places else UNDECIDED
        self.operations += 1
        for tensor, where in zip(tensors, places, strict=True):
            if where == UNDECIDED:
                put(tensor, GPU)
        if name.startswith(MOVES):
            return GPU
        strangers = [x for x, where in zip(tensors, places, strict=True) if where == CPU]
        goes_along = not name.startswith(("c10d.", "aten.cat", "aten.stack"))
        if name.startswith(INDEXES) and places[0] == GPU:
            strangers = []
        if any(tensor.dim() or not goes_along for tensor in strangers):
            what = "Expected all tensors to be on the same device, but found at least two devices"
            raise RuntimeError(f"{what}, cuda:0 and cpu! ({name})")
        if name.startswith("c10d."):
            self.sent.append((name, GPU))
        return GPU
