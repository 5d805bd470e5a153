"""How a result travels from a worker to the kernel.

An object is pickled with its large buffers (tensors, numpy arrays) left out of the stream. Each
large buffer is written to an anonymous file and only the file's descriptor is sent, so a tensor
of any size crosses without `/dev/shm`, however small that is, and on Linux without a copy.
"""

import mmap
import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import torch

# Kinds of messages, six bytes each. The last two come after a result or a failure.
BUFFER, RESULT, FAILED = b"buffer", b"result", b"failed"
AT_WORK, ENDED = b"atwork", b"ended."
LARGE_BYTES = 32 * 1024  # what does not fit comfortably into one datagram gets a file of its own
Unpickler: type = pickle.Unpickler  # reads all that ranks hand over; grading replaces it


def anonymous_file(name: str) -> int:
    """A descriptor of a file that has no name, takes no disk and ends with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile(prefix=name) as file:  # macOS: on disk, but as nameless
        return os.dup(file.fileno())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor with elements in it, in one dimension and without a copy.

    Contiguous means that its elements follow each other. If there is only one, its stride may still
    be any number, as of `matrix[:1, 0]`, and `view(torch.uint8)` refuses all strides but 1.
    """
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


class HoldsAPartError(TypeError):
    """A rank holds a part of this tensor, and the other ranks hold the rest."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """A plain tensor leaves as its elements: no storage behind a view, no CUDA, no graph."""
        if isinstance(value, torch.Tensor) and hasattr(value, "full_tensor"):
            raise HoldsAPartError
        if isinstance(value, torch.Tensor) and hasattr(value, "trigger_wait"):
            value = value.trigger_wait()  # the result of a functional collective, still on its way
        plain = type(value) in (torch.Tensor, torch.nn.Parameter)
        if not plain or value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        elements = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        raw = bytes_of(elements).numpy() if value.numel() else b""
        learns = value.requires_grad and value.is_leaf
        return _rebuild, (pickle.PickleBuffer(raw), value.dtype, value.shape, type(value), learns)


def _rebuild(raw: Any, dtype: torch.dtype, shape: torch.Size, kind: type, learns: bool) -> Any:
    tensor = torch.frombuffer(raw, dtype=dtype) if len(raw) else torch.empty(0, dtype=dtype)
    tensor = tensor.reshape(shape)
    made = torch.nn.Parameter(tensor, False) if kind is torch.nn.Parameter else tensor
    return made.requires_grad_(learns)


def send(channel: socket.socket, kind: bytes, value: Any) -> None:
    """Send a picklable object; tensors arrive on the CPU, detached, contiguous and writable.

    Raises whatever pickling raised, or OSError when there is no memory for the file.
    """
    large: list[pickle.PickleBuffer] = []

    def inside(buffer: pickle.PickleBuffer) -> bool:
        if buffer.raw().nbytes < LARGE_BYTES:
            return True
        large.append(buffer)
        return False

    stream = pack(value, inside)
    for buffer in large:
        _send_file(channel, BUFFER, buffer.raw())
    if len(stream) < LARGE_BYTES:
        channel.send(kind + stream)
    else:
        _send_file(channel, kind, stream)


def _send_file(channel: socket.socket, kind: bytes, data: bytes | memoryview) -> None:
    with open(anonymous_file("result"), "wb") as file:
        file.write(data)
        file.flush()
        socket.send_fds(channel, [kind], [file.fileno()])


def receive_buffer(file: int) -> Any:
    """A writable numpy array of bytes over an anonymous file, whose descriptor is closed."""
    with open(file, "rb") as source:
        size = os.fstat(file).st_size
        mmap.mmap(-1, size).close()  # is there room? torch, failing, leaks a descriptor
        if os.path.exists(path := f"/proc/self/fd/{file}"):
            return torch.from_file(path, shared=True, size=size, dtype=torch.uint8).numpy()
        data = torch.empty(size, dtype=torch.uint8).numpy()
        source.seek(0)
        source.readinto(data)
        return data


def pack(value: Any, inside: Callable[[pickle.PickleBuffer], bool] | None = None) -> bytes:
    """A picklable object as it is now, for `unpack`; with those large buffers that are `inside`."""
    _Pickler(stream := BytesIO(), protocol=5, buffer_callback=inside).dump(value)
    return stream.getvalue()


def place_of_what_fails(value: Any) -> str:
    """Where in these dicts and lists is what cannot be packed, such as `['model']['lock']`."""
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list | tuple):
        children = list(enumerate(value))
    else:
        return ""
    for key, child in children:
        try:
            pack(child)
        except Exception:
            return f"[{key!r}]{place_of_what_fails(child)}"
    return ""


def unpack(stream: Any, buffers: Iterable[Any] = ()) -> Any:
    """The object again, from its stream and its large buffers in the order in which they came."""
    return Unpickler(BytesIO(stream), buffers=buffers).load()
