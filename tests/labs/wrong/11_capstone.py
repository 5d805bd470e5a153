"""Wrong answers to lab 11, and for each exercise right ones written otherwise.

Among the wrong ones are what the team of chapter 11 did, and the usual repairs of it.
"""

import hashlib
import io
import os
import shutil
import tempfile
import zlib
from collections import Counter

import labs
import numpy as np
import torch
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector

lab = labs.cells("11_capstone")

# --- save ---


def save_over_the_only_one(states, path):
    torch.save(states, path)


def save_delete_then_rename(states, path):
    part = path.with_suffix(".part")
    torch.save(states, part)
    if path.exists():
        path.unlink()
    part.rename(path)


def save_move_the_old_one_away(states, path):
    part, old = path.with_suffix(".part"), path.with_suffix(".old")
    torch.save(states, part)
    if path.exists():
        path.rename(old)
    part.rename(path)
    old.unlink(missing_ok=True)


def save_backup_beside(states, path):
    backup = path.with_suffix(".backup")
    if path.exists():
        shutil.copy(path, backup)
    torch.save(states, path)
    backup.unlink(missing_ok=True)


def save_copy_over(states, path):
    part = path.with_suffix(".part")
    torch.save(states, part)
    shutil.copyfile(part, path)
    part.unlink()


def save_restore_if_it_raises(states, path):
    old = path.read_bytes() if path.exists() else b""
    try:
        torch.save(states, path)
    except BaseException:
        path.write_bytes(old)
        raise


def save_in_memory_first(states, path):
    buffer = io.BytesIO()
    torch.save(states, buffer)
    path.write_bytes(buffer.getvalue())


def save_rename_too_soon(states, path):
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        os.replace(part, path)
        torch.save(states, file)


def save_refuses_rubbish(states, path):
    part = path.with_suffix(".part")
    with open(part, "xb") as file:
        torch.save(states, file)
    os.replace(part, path)


def save_keeps_the_part(states, path):
    part = path.with_suffix(".part")
    torch.save(states, part)
    extra = path.with_suffix(".extra")
    shutil.copyfile(part, extra)
    os.replace(extra, path)


def save_once(states, path):
    if not path.exists():
        torch.save(states, path)


def save_without_the_model(states, path):
    part = path.with_suffix(".part")
    torch.save({"epoch": states["epoch"]}, part)
    os.replace(part, path)


def save_by_buffer(states, path):
    buffer = io.BytesIO()
    torch.save(states, buffer)
    part = path.parent / "new.tmp"
    part.write_bytes(buffer.getvalue())
    part.replace(path)


def save_by_a_temporary_file(states, path):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        torch.save(states, file)
    os.rename(file.name, path)


def save_synced(states, path):
    part = f"{path}.tmp"
    with open(part, "wb") as file:
        torch.save(states, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, str(path))


# --- resume ---


def load(states, model, optimizer):
    model.module.load_state_dict(states["model"])
    optimizer.load_state_dict(states["optimizer"])
    return states["epoch"]


def sent(path, src=0):
    states = [torch.load(path) if dist.get_rank() == 0 and path.exists() else None]
    dist.broadcast_object_list(states, src=src)
    return states[0]


def resume_as_chi(path, model, optimizer):
    epoch = torch.zeros((), dtype=torch.long)
    if dist.get_rank() == 0 and path.exists():
        epoch += load(torch.load(path), model, optimizer)
    dist.broadcast(epoch, src=0)
    return epoch.item()


def resume_as_on_monday(path, model, optimizer):
    return load(torch.load(path), model, optimizer) if path.exists() else 0


def resume_everybody_reads(path, model, optimizer):
    return load(torch.load(path), model, optimizer)


def resume_weights_only(path, model, optimizer):
    epoch = resume_as_chi(path, model, optimizer)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    return epoch


def resume_without_momentum(path, model, optimizer):
    epoch = resume_as_chi(path, model, optimizer)
    for own in model.state_dict().values():
        dist.broadcast(own, src=0)
    return epoch


def resume_without_the_model(path, model, optimizer):
    if (states := sent(path)) is None:
        return 0
    optimizer.load_state_dict(states["optimizer"])
    return states["epoch"]


def resume_without_buffers(path, model, optimizer):
    if (states := sent(path)) is None:
        return 0
    for name, parameter in model.module.named_parameters():
        parameter.data.copy_(states["model"][name])
    optimizer.load_state_dict(states["optimizer"])
    return states["epoch"]


def resume_without_the_rate(path, model, optimizer):
    if (states := sent(path)) is None:
        return 0
    model.module.load_state_dict(states["model"])
    now = optimizer.state_dict()
    optimizer.load_state_dict(states["optimizer"] | {"param_groups": now["param_groups"]})
    return states["epoch"]


def resume_epoch_on_rank_0(path, model, optimizer):
    states = sent(path)
    if states is not None:
        load(states, model, optimizer)
    return states["epoch"] if states and dist.get_rank() == 0 else 0


def resume_sends_only_what_is_there(path, model, optimizer):
    states = [None]
    if dist.get_rank() == 0:
        if not path.exists():
            return 0
        states = [torch.load(path)]
    dist.broadcast_object_list(states, src=0)
    return load(states[0], model, optimizer)


def resume_one_epoch_more(path, model, optimizer):
    states = sent(path)
    return 0 if states is None else load(states, model, optimizer) + 1


def resume_by_bytes(path, model, optimizer):
    data = path.read_bytes() if dist.get_rank() == 0 and path.exists() else b""
    length = torch.tensor(len(data))
    dist.broadcast(length, 0)
    if length == 0:
        return 0
    buffer = torch.empty(int(length), dtype=torch.uint8)
    if data:
        buffer.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    dist.broadcast(buffer, 0)
    return load(torch.load(io.BytesIO(buffer.numpy().tobytes())), model, optimizer)


def resume_copies_the_file(path, model, optimizer):
    data = [path.read_bytes() if path.exists() else None]
    dist.broadcast_object_list(data, src=0)
    if data[0] is None:
        return 0
    path.write_bytes(data[0])
    return load(torch.load(path), model, optimizer)


def resume_gathers(path, model, optimizer):
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, torch.load(path) if path.exists() else {})
    return load(every[0], model, optimizer) if every[0] else 0


# --- parted ---


def every(mine):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def unlike_most(found):
    (usual, _), *_ = Counter(found).most_common()
    return [rank for rank, own in enumerate(found) if own != usual]


def state(model):
    return [own.detach() for own in model.state_dict().values()]


def digest_of(tensors):
    return hashlib.sha256(b"".join(own.numpy().tobytes() for own in tensors)).hexdigest()


def parted_sum(model):
    return unlike_most(every(sum(own.double().sum().item() for own in state(model))))


def parted_norm(model):
    return unlike_most(every(sum(own.double().square().sum().item() for own in state(model))))


def parted_mean_in_float32(model):
    numbers = torch.cat([own.flatten().float() for own in state(model)])
    weight = torch.arange(1, len(numbers) + 1)
    return unlike_most(every((numbers * weight).sum().item()))


def parted_parameters_only(model):
    return unlike_most(every(digest_of([own.detach() for own in model.parameters()])))


def parted_first_layer(model):
    return unlike_most(every(digest_of(state(model)[:2])))


def parted_without_whole_numbers(model):
    return unlike_most(every(digest_of([o for o in state(model) if o.is_floating_point()])))


def parted_from_rank_0(model):
    found = every(digest_of(state(model)))
    return [rank for rank, own in enumerate(found) if own != found[0]]


def parted_from_the_left(model):
    found = every(digest_of(state(model)))
    return [rank for rank, own in enumerate(found) if own != found[rank - 1]]


def parted_told_to_rank_0(model):
    found = every(digest_of(state(model)))
    return unlike_most(found) if dist.get_rank() == 0 else []


def parted_only_the_first(model):
    return unlike_most(every(digest_of(state(model))))[:1]


def parted_sends_everything(model):
    return unlike_most(every(b"".join(own.numpy().tobytes() for own in state(model))))


def parted_bytes_added_up(model):
    data = b"".join(own.numpy().tobytes() for own in state(model))
    return unlike_most(every(sum(data)))


def parted_rounded(model):
    vector = parameters_to_vector(model.parameters()).detach()
    buffers = torch.cat([own.flatten().double() for own in model.buffers()])
    return unlike_most(every(digest_of([torch.cat([vector, buffers]).round(decimals=6)])))


def parted_by_objects(model):
    return unlike_most(every(digest_of(state(model))))


def parted_by_crc(model):
    crc = 0
    for own in state(model):
        crc = zlib.crc32(own.numpy().tobytes(), crc)
    found = torch.zeros(dist.get_world_size(), dtype=torch.int64)
    found[dist.get_rank()] = crc
    dist.all_reduce(found)
    usual = found.mode().values
    return (found != usual).nonzero().flatten().tolist()


def parted_by_products(model):
    """Each bit pattern, times an odd number of its place; sums wrap around."""
    whole = np.concatenate([np.frombuffer(own.numpy().tobytes(), np.uint8) for own in state(model)])
    places = np.random.default_rng(0).integers(1, 2**63, len(whole), dtype=np.uint64)
    with np.errstate(over="ignore"):
        mine = int((whole.astype(np.uint64) * places).sum())
    return unlike_most(every(mine))


WRONG = {
    "save": list(map(lab.survives, [
        save_over_the_only_one, save_delete_then_rename, save_move_the_old_one_away,
        save_backup_beside, save_copy_over, save_restore_if_it_raises, save_in_memory_first,
        save_rename_too_soon, save_refuses_rubbish, save_keeps_the_part, save_once,
        save_without_the_model,
    ])),
    "resume": list(map(lab.resuming, [
        resume_as_chi, resume_as_on_monday, resume_everybody_reads, resume_weights_only,
        resume_without_momentum, resume_without_the_model, resume_without_buffers,
        resume_without_the_rate, resume_epoch_on_rank_0, resume_sends_only_what_is_there,
        resume_one_epoch_more,
    ])),
    "parted": [
        parted_sum, parted_norm, parted_mean_in_float32, parted_parameters_only,
        parted_first_layer, parted_without_whole_numbers, parted_from_rank_0,
        parted_from_the_left, parted_told_to_rank_0, parted_only_the_first,
        parted_sends_everything, parted_bytes_added_up, parted_rounded,
    ],
}  # fmt: skip
RIGHT = {
    "save": list(map(lab.survives, [save_by_buffer, save_by_a_temporary_file, save_synced])),
    "resume": list(map(lab.resuming, [resume_by_bytes, resume_copies_the_file, resume_gathers])),
    "parted": [parted_by_objects, parted_by_crc, parted_by_products],
}
