"""Wrong answers to lab 11, and for each exercise right ones written otherwise.

Among the wrong ones are what the team of chapter 11 did, and the usual repairs of it.
"""

import contextlib
import io
import os
import shutil
import tempfile
import zipfile
from collections import Counter

import labs
import torch
import torch.distributed as dist

lab = labs.cells("11_capstone")

# --- save ---


def save_nothing(states, path):
    pass


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


def save_in_place_uncut(states, path):
    buffer = io.BytesIO()
    torch.save(states, buffer)
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(file, buffer.getvalue())
    os.ftruncate(file, buffer.tell())
    os.close(file)


def save_leaves_it_to_the_other(states, path):
    part = path.with_suffix(".part")
    if not part.exists():
        torch.save(states, part)
        os.replace(part, path)


def save_first_one_in_place(states, path):
    part = path.with_suffix(".part") if path.exists() else path
    torch.save(states, part)
    os.replace(part, path)


def save_what_it_knows(states, path):
    part = path.with_suffix(".part")
    torch.save({"model": states["model"], "epoch": states["epoch"]}, part)
    os.replace(part, path)


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


def resume_always_at_3(path, model, optimizer):
    states = sent(path)
    return 0 if states is None else load(states, model, optimizer) and 3


def resume_from_rank_0s_disk(path, model, optimizer):
    there = [path]
    dist.broadcast_object_list(there, src=0)
    return load(torch.load(there[0]), model, optimizer) if there[0].exists() else 0


def resume_copied_to_the_others(path, model, optimizer):
    paths = every(path)
    if dist.get_rank() == 0 and path.exists():
        for other in paths[1:]:
            shutil.copy(path, other)
    dist.barrier()
    return load(torch.load(path), model, optimizer) if path.exists() else 0


def resume_uses_it_up(path, model, optimizer):
    states = sent(path)
    path.unlink(missing_ok=True)
    return 0 if states is None else load(states, model, optimizer)


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


# --- newest ---


def whole_in(folder):
    found = []
    for path in folder.iterdir():
        if path.name.startswith("epoch-") and path.suffix == ".pt":
            with contextlib.suppress(Exception):
                found.append(torch.load(path)["epoch"])
    return found


def every(mine):
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def newest_of_its_own(folder):
    return max(whole_in(folder), default=0)


def newest_of_rank_0(folder):
    return every(max(whole_in(folder), default=0))[0]


def newest_least_of_the_newest(folder):
    return min(every(max(whole_in(folder), default=0)))


def newest_of_anybody(folder):
    return max(every(max(whole_in(folder), default=0)))


def newest_by_name(folder):
    names = {int(path.stem.removeprefix("epoch-")) for path in folder.glob("epoch-*.pt")}
    return max(set.intersection(*every(names)), default=0)


def newest_by_size(folder):
    found = {int(path.stem[6:]) for path in folder.glob("epoch-*.pt") if path.stat().st_size > 900}
    return max(set.intersection(*every(found)), default=0)


def newest_by_zip(folder):
    found = {int(path.stem[6:]) for path in folder.glob("epoch-*.pt") if zipfile.is_zipfile(path)}
    return max(set.intersection(*every(found)), default=0)


def newest_of_whatever_loads(folder):
    found = set()
    for path in folder.glob("*.pt"):
        with contextlib.suppress(Exception):
            found.add(torch.load(path)["epoch"])
    return max(set.intersection(*every(found)), default=0)


def newest_below_100(folder):
    found = {epoch for epoch in whole_in(folder) if epoch < 100}
    return max(set.intersection(*every(found)), default=0)


def newest_by_time(folder):
    paths = sorted(folder.glob("epoch-*.pt"), key=lambda path: path.stat().st_mtime_ns)
    return min(every(int(paths[-1].stem[6:]) if paths else 0))


def newest_of_words(folder):
    found = {f"{epoch}" for epoch in whole_in(folder)}
    return int(max(set.intersection(*every(found)), default=0))


def newest_without_default(folder):
    return max(set.intersection(*every(set(whole_in(folder)))))


def newest_catches_one_kind(folder):
    found = set()
    for path in folder.glob("epoch-*.pt"):
        with contextlib.suppress(RuntimeError):
            found.add(torch.load(path)["epoch"])
    return max(set.intersection(*every(found)), default=0)


def newest_loads_anything(folder):
    found = {torch.load(path)["epoch"] for path in folder.iterdir()}
    return max(set.intersection(*every(found)), default=0)


def newest_on_rank_0(folder):
    found = max(set.intersection(*every(set(whole_in(folder)))), default=0)
    return found if dist.get_rank() == 0 else 0


def newest_clears_away(folder):
    found = max(set.intersection(*every(set(whole_in(folder)))), default=0)
    for path in folder.glob("epoch-*.pt"):
        if path.stem != f"epoch-{found}":
            path.unlink()
    return found


def newest_by_min(folder):
    has = torch.zeros(10_000, dtype=torch.int64)
    has[whole_in(folder)] = 1
    has[0] = 1
    dist.all_reduce(has, op=dist.ReduceOp.MIN)
    return has.nonzero().max().item()


def newest_counted(folder):
    seen = Counter(epoch for own in every(whole_in(folder)) for epoch in own)
    common = [epoch for epoch, count in seen.items() if count == dist.get_world_size()]
    return sorted([0, *common])[-1]


def newest_by_rank_0(folder):
    gathered = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(whole_in(folder), gathered)
    told = [0]
    if dist.get_rank() == 0:
        told = [max(set(gathered[0]).intersection(*gathered[1:]), default=0)]
    dist.broadcast_object_list(told)
    return told[0]


def _shelf(folder, room):
    shelf = torch.zeros(room, dtype=torch.int8)
    for epoch in whole_in(folder):
        if epoch < len(shelf):
            shelf[epoch] = 1
    dist.all_reduce(shelf, op=dist.ReduceOp.MIN)
    return int(shelf.nonzero().max()) if shelf.any() else 0


def newest_of_ten_thousand(folder):
    return _shelf(folder, 10_000)


def newest_of_three_million(folder):
    return _shelf(folder, 3_000_000)


# --- train_on ---


def train_on_as_ben(place, epochs, batches, take_step, save):
    for epoch in range(place[0], epochs):
        for step, batch in enumerate(batches(epoch)):
            take_step(batch)
            if step % 5 == 4:
                save((epoch, 0))
        save((epoch + 1, 0))


def _train_on(skips, comes_next=lambda epoch, step: (epoch, step + 1), ends=True, fifth=True):
    """An answer that leaves out what `skips` says, and saves as the rest says."""

    def train_on(place, epochs, batches, take_step, save):
        for epoch in range(place[0], epochs):
            for step, batch in enumerate(batches(epoch)):
                if skips(place, epoch, step):
                    continue
                take_step(batch)
                if fifth and step % 5 == 4:
                    save(comes_next(epoch, step))
            if ends:
                save((epoch + 1, 0))

    return train_on


def _rightly(place, epoch, step):
    return (epoch, step) < tuple(place)


def _named(name, train_on):
    train_on.__name__ = name
    return train_on


def train_on_counting_all_steps(place, epochs, batches, take_step, save):
    count = 0
    for epoch in range(place[0], epochs):
        for step, batch in enumerate(batches(epoch)):
            if _rightly(place, epoch, step):
                continue
            take_step(batch)
            count += 1
            if count % 5 == 0:
                save((epoch, step + 1))
        save((epoch + 1, 0))


def train_on_saving_first(place, epochs, batches, take_step, save):
    for epoch in range(place[0], epochs):
        for step, batch in enumerate(batches(epoch)):
            if _rightly(place, epoch, step):
                continue
            if step % 5 == 4:
                save((epoch, step + 1))
            take_step(batch)
        save((epoch + 1, 0))


def train_on_from_the_next_epoch(place, epochs, batches, take_step, save):
    begin = place[0] + (place[1] > 0)
    for epoch in range(begin, epochs):
        for step, batch in enumerate(batches(epoch)):
            take_step(batch)
            if step % 5 == 4:
                save((epoch, step + 1))
        save((epoch + 1, 0))


def train_on_by_slices(place, epochs, batches, take_step, save):
    epoch, done = place
    while epoch < epochs:
        for batch in batches(epoch)[done:]:
            take_step(batch)
            done += 1
            if done % 5 == 0:
                save([epoch, done])
        epoch, done = epoch + 1, 0
        save([epoch, done])


def train_on_by_counts(place, epochs, batches, take_step, save):
    for epoch in range(epochs):
        left = list(enumerate(batches(epoch), 1))
        left = [(n, batch) for n, batch in left if (epoch, n) > tuple(place)]
        for number, batch in left:
            take_step(batch)
            if number % 5 == 0:
                save((epoch, number))
        if epoch >= place[0]:
            save((epoch + 1, 0))


WRONG_TRAINS = [
    train_on_as_ben,
    train_on_counting_all_steps,
    train_on_saving_first,
    train_on_from_the_next_epoch,
    _named("in_every_epoch", _train_on(lambda place, epoch, step: step < place[1])),
    _named("one_too_many", _train_on(lambda place, epoch, step: (epoch, step) <= tuple(place))),
    _named("the_step_done", _train_on(_rightly, comes_next=lambda epoch, step: (epoch, step))),
    _named("no_ends", _train_on(_rightly, ends=False)),
    _named("ends_only", _train_on(_rightly, fifth=False)),
    _named("leaves_out_nothing", _train_on(lambda place, epoch, step: False)),
]


WRONG = {
    "save": list(map(lab.survives, [
        save_over_the_only_one, save_delete_then_rename, save_move_the_old_one_away,
        save_backup_beside, save_copy_over, save_restore_if_it_raises, save_in_memory_first,
        save_rename_too_soon, save_refuses_rubbish, save_keeps_the_part, save_once,
        save_without_the_model, save_in_place_uncut, save_leaves_it_to_the_other,
        save_first_one_in_place, save_what_it_knows, save_nothing,
    ])),
    "resume": list(map(lab.resuming, [
        resume_as_chi, resume_as_on_monday, resume_everybody_reads, resume_weights_only,
        resume_without_momentum, resume_without_the_model, resume_without_buffers,
        resume_without_the_rate, resume_epoch_on_rank_0, resume_sends_only_what_is_there,
        resume_one_epoch_more, resume_always_at_3, resume_from_rank_0s_disk,
        resume_copied_to_the_others, resume_uses_it_up,
    ])),
    "newest": list(map(lab.looking, [
        newest_of_its_own, newest_of_rank_0, newest_least_of_the_newest, newest_of_anybody,
        newest_by_name, newest_by_size, newest_by_time, newest_of_words, newest_without_default,
        newest_catches_one_kind, newest_loads_anything, newest_on_rank_0, newest_clears_away,
        newest_by_zip, newest_of_whatever_loads, newest_below_100,
        newest_of_ten_thousand, newest_of_three_million,
    ])),
    "train_on": list(map(lab.dying, WRONG_TRAINS)),
}  # fmt: skip
STOPS = {
    "save",  # about fifty processes for each answer
    "save_refuses_rubbish",
    "resume_everybody_reads",
    "resume_sends_only_what_is_there",
    "resume_from_rank_0s_disk",
    "resume_copied_to_the_others",
    "newest_without_default",
    "newest_catches_one_kind",
    "newest_loads_anything",
}
RIGHT = {
    "save": list(map(lab.survives, [save_by_buffer, save_by_a_temporary_file, save_synced])),
    "resume": list(map(lab.resuming, [resume_by_bytes, resume_copies_the_file, resume_gathers])),
    "newest": list(map(lab.looking, [newest_by_min, newest_counted, newest_by_rank_0])),
    "train_on": list(map(lab.dying, [train_on_by_slices, train_on_by_counts])),
}
