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

# Kinds of messages, six bytes each. The last two come after a result or a failure: the rank still
# waits for something, and the rank has shut down as a program does.
BUFFER, RESULT, FAILED = b"buffer", b"result", b"failed"
PENDING, SHUT_DOWN = b"waits.", b"ended."
_KIND_BYTES = 6
LARGE_BYTES = 32 * 1024  # what doesn't fit comfortably into one datagram gets a file of its own
_DEEPEST_PLACE = 16  # entries of entries; a list in lists beyond that has no place worth telling
Unpickler: type = pickle.Unpickler  # reads all that ranks hand over; grading replaces it


def anonymous_file(name: str) -> int:
    """A descriptor of a file that has no path, takes no disk and ends with its last descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile(prefix=name) as file:  # macOS: on disk, but without a path as well
        return os.dup(file.fileno())


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor with elements in it, in one dimension and without a copy.

    Contiguous means that its elements follow each other. If there is only one, its stride may still
    be any number, as of `matrix[:1, 0]`, and `view(torch.uint8)` refuses all strides but 1.
    """
    in_one_dimension = tensor.as_strided((tensor.numel(),), (1,))
    return in_one_dimension.view(torch.uint8)


class IsDistributedTensorError(TypeError):
    """A DTensor: a rank holds a part of it, and the other ranks hold the rest."""


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """A plain tensor leaves as its elements: no storage behind a view, no CUDA, no graph."""
        if not isinstance(value, torch.Tensor):
            return NotImplemented
        if hasattr(value, "full_tensor"):
            raise IsDistributedTensorError
        if hasattr(value, "trigger_wait"):  # the result of a functional collective, on its way
            value = value.trigger_wait()
        kind = type(value)
        if kind not in (torch.Tensor, torch.nn.Parameter):
            return NotImplemented
        if value.layout != torch.strided or value.is_quantized:
            return NotImplemented
        on_cpu = value.detach().cpu()
        elements = on_cpu.resolve_conj().resolve_neg().contiguous()
        raw = b""
        if value.numel():
            raw = bytes_of(elements).numpy()
        requires_grad = value.requires_grad and value.is_leaf
        buffer = pickle.PickleBuffer(raw)
        return _rebuild, (buffer, value.dtype, value.shape, kind, requires_grad)


def _rebuild(
    raw: Any, dtype: torch.dtype, shape: torch.Size, kind: type, requires_grad: bool
) -> Any:
    if len(raw):
        elements = torch.frombuffer(raw, dtype=dtype)
    else:
        elements = torch.empty(0, dtype=dtype)
    tensor = elements.reshape(shape)
    if kind is torch.nn.Parameter:
        tensor = torch.nn.Parameter(tensor, False)
    return tensor.requires_grad_(requires_grad)


def send(channel: socket.socket, kind: bytes, value: Any) -> None:
    """Send a picklable object; tensors arrive on the CPU, detached, contiguous and writable.

    Raises whatever pickling raised, or OSError when there is no memory for the file.
    """
    large: list[pickle.PickleBuffer] = []

    def keep_small(buffer: pickle.PickleBuffer) -> bool:
        """Whether a buffer stays in the stream; notes it among the large ones if not."""
        is_small = buffer.raw().nbytes < LARGE_BYTES
        if not is_small:
            large.append(buffer)
        return is_small

    stream = pack(value, keep_small)
    for buffer in large:
        _send_file(channel, BUFFER, buffer.raw())
    if len(stream) < LARGE_BYTES:
        channel.send(kind + stream)
    else:
        _send_file(channel, kind, stream)


def _send_file(channel: socket.socket, kind: bytes, data: bytes | memoryview) -> None:
    descriptor = anonymous_file("result")
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        socket.send_fds(channel, [kind], [descriptor])


def kind_and_content(message: bytes) -> tuple[bytes, bytes]:
    """The kind of a message, and its content; empty if that came as a file."""
    return message[:_KIND_BYTES], message[_KIND_BYTES:]


def receive_buffer(descriptor: int) -> Any:
    """A writable numpy array of bytes over an anonymous file, whose descriptor is closed."""
    with open(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        _refuse_if_no_memory(size)
        path = f"/proc/self/fd/{descriptor}"
        if os.path.exists(path):
            shared = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
            return shared.numpy()
        copy = torch.empty(size, dtype=torch.uint8).numpy()
        file.seek(0)
        file.readinto(copy)
        return copy


def _refuse_if_no_memory(size: int) -> None:
    """Raise OSError if so many bytes cannot be mapped: torch would leak a descriptor instead."""
    trial = mmap.mmap(-1, size)
    trial.close()


def pack(
    value: Any, stays_in_the_stream: Callable[[pickle.PickleBuffer], bool] | None = None
) -> bytes:
    """A picklable object as it is now, for `unpack`.

    Args:
        value: The object.
        stays_in_the_stream: Is asked of each buffer. Without it, all buffers stay.
    """
    stream = BytesIO()
    pickler = _Pickler(stream, protocol=5, buffer_callback=stays_in_the_stream)
    pickler.dump(value)
    return stream.getvalue()


def place_of_what_fails(value: Any) -> str:
    """Where in these dicts and lists is what cannot be packed, such as `['model']['lock']`.

    Empty if it is the object itself, or something deeper than anybody would look. May raise what
    looking into the object raises.
    """
    place = ""
    for _level in range(_DEEPEST_PLACE):
        for key, entry in _entries(value):
            if not _can_be_packed(entry):
                place += f"[{key!r}]"
                value = entry
                break
        else:
            return place
    return ""


def _entries(value: Any) -> Iterable[tuple[Any, Any]]:
    """What stands in a dict or a list, by key or number; nothing of anything else.

    The type is asked, not the object: a proxy hands on such a question, and raises if it can't.
    """
    if issubclass(type(value), dict):
        return value.items()
    if issubclass(type(value), list | tuple):
        return enumerate(value)
    return ()


def _can_be_packed(value: Any) -> bool:
    try:
        pack(value)
    except Exception:
        return False
    return True


def unpack(stream: Any, buffers: Iterable[Any] = ()) -> Any:
    """The object again, from its stream and its large buffers in the order in which they came."""
    unpickler = Unpickler(BytesIO(stream), buffers=buffers)
    return unpickler.load()
