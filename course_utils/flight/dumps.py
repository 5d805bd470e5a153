"""The dumps of all ranks as plain records, whatever version of torch or backend wrote them.

Sources: the headers in torch's wheels for the names of the fields (2.5: `NCCLUtils.hpp`; 2.6 and
2.7: `FlightRecorder.hpp`; from 2.8 on `FlightRecorderDetail.hpp` too), and dumps of torch 2.9
(NCCL) and 2.15 (gloo) for what really stands in them. These things differ from what one expects:

- The same group may have several names, so a group is known by its description and its ranks.
- `p2p_seq_id` counts all messages of a rank in a group, so the two ends of a message don't agree.
- gloo says who is in a group for the last group only, and notes no send and no receive.
- Under NCCL a call is over when its state says so; one that is only `retired` has timed out. gloo
  has no states, and there `retired` says that a call is over.
- Calls that NCCL issues together are `scheduled` for ever. The entry after them, whose name ends
  with `coalesced`, has their state.
- As JSON, a dump has the numbers of `pg_status` as texts, and no `entries` if there are none.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from course_utils.flight.unpickle import NO_DUMP, Unreadable, read

NO_RANK, TWICE, NOT_IN_GROUPS = "no rank", "twice", "not in its groups"
DEFAULT = "default_pg"
_COMPLETED = "completed"
_ENDINGS = re.compile(r"(\.(gz|json|pkl|pickle|bin|dump|pt))+$")
_RANK = re.compile(r"rank[_-]?(\d+)")
_LAST_NUMBER = re.compile(r"(\d+)\D*$")
_MESSAGE = re.compile(r"(send|recv) (\d+)(->|<-)(\d+|\?)$")
_KINDS = {  # names in the flight recorder that are not those of torch.distributed
    "_all_gather_base": "all_gather",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_single": "all_gather",
    "allgather": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
}
RawDump = dict[str, Any]  # as its file has it
RawDumps = dict[int, RawDump]  # by rank
Entry = dict[str, Any]  # of a raw dump: a call
RawStatus = dict[str, Any]  # of a raw dump: how far a group has come
CodeLine = tuple[str, int, str]  # file, number and function
MAX_RANKS = 2**20  # more than any job has: a number beyond it is a process id, or a lie


@dataclass(frozen=True, eq=False)
class Group:
    """A process group: several ranks know the same one by these.

    There is one object for each group, so it is compared and hashed as fast as any object.
    """

    desc: str  # such as "TENSOR_MODEL_PARALLEL_GROUP"
    ranks: tuple[int, ...]  # global ranks, in the group's order
    index: int = 0  # which one, of several with the same description and ranks
    known: bool = True  # False if the ranks are only those that were seen to use it

    @functools.cached_property
    def members(self) -> frozenset[int]:
        """The same ranks, to ask who is one of them."""
        return frozenset(self.ranks)

    @property
    def is_default(self) -> bool:
        """Whether it is the group that every job has."""
        return self.desc == DEFAULT


Numbers = dict[Group, int]  # by group the number of a collective


@dataclass(frozen=True, eq=False)
class Call:
    """One entry of a dump: a collective or one end of a message."""

    rank: int  # global, as are `sender` and `receiver`
    order: int  # its place among the entries of its rank
    group: Group
    kind: str  # such as "all_reduce", "send" or "recv"
    number: int  # of a collective, in its group; of a message only its rank's own count
    op_id: int
    finished: bool
    created_ns: int
    sizes: tuple[tuple[int, ...], ...] = ()  # of what the rank hands in
    dtypes: tuple[str, ...] = ()
    sender: int | None = None  # of a message; None if any rank may send
    receiver: int | None = None
    line: CodeLine | None = None  # the user's
    by_gloo: bool = False  # whose `finished` is late, and also true of a call that has failed

    @property
    def is_message(self) -> bool:
        """Whether it has one other end, and not a group."""
        return self.kind in ("send", "recv")

    @property
    def meeting(self) -> tuple[Group, int]:
        """What a collective is known by on all ranks: its group, and its number there."""
        return self.group, self.number

    @property
    def ends(self) -> list[int]:
        """Of a message the ranks at its ends, as far as they are known."""
        return [end for end in (self.sender, self.receiver) if end is not None]

    @property
    def numel(self) -> int:
        """How many numbers it hands in."""
        total = 0
        for size in self.sizes:
            product = 1
            for length in size:
                product *= length
            total += product
        return total


@dataclass(eq=False)
class RankDump:
    """What one rank has left."""

    rank: int
    file: str
    calls: tuple[Call, ...]
    last_enqueued: Numbers  # the number of its last collective in a group
    last_completed: Numbers
    now_ns: int = 0  # when the dump was written; 0 if that is unknown
    stack: str = ""  # where the rank's threads were, if it has left that too
    failed: bool = False  # whether an exception had ended it when it left this

    @property
    def has_messages(self) -> bool:
        """Whether one of its calls is an end of a message."""
        return any(call.is_message for call in self.calls)


class LeftOut(NamedTuple):
    """A file that was not used."""

    file: str
    why: str  # such as `TWICE`; `report.py` has a sentence for each
    detail: str


@dataclass(eq=False)
class Dumps:
    """What all ranks have left, and what could not be read."""

    by_rank: dict[int, RankDump]
    world: tuple[int, ...]
    left_out: list[LeftOut] = field(default_factory=list)
    # Whether there were messages that no dump has, since gloo's recorder notes none.
    has_unseen_messages: bool = False

    @property
    def missing(self) -> list[int]:
        """The ranks that have left no dump."""
        return [rank for rank in self.world if rank not in self.by_rank]


def read_folder(folder: str | Path) -> Dumps:
    """Read every dump in a folder; what cannot be read is noted in `left_out`.

    Raises:
        NotADirectoryError: There is no such folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise NotADirectoryError(str(folder))
    raw: RawDumps = {}
    files: dict[int, str] = {}
    left_out = []
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            continue
        try:
            rank, dump = _read_file(path)
            if rank in raw:
                raise Unreadable(TWICE, files[rank])
        except Unreadable as error:
            left_out.append(LeftOut(path.name, error.why, error.detail))
        else:
            raw[rank] = dump
            files[rank] = path.name
    _note_when_written(folder, raw, files)
    return from_raw(raw, files, left_out)


def _note_when_written(folder: Path, raw: RawDumps, files: dict[int, str]) -> None:
    """Torch's own dumps don't say when they were written, but their files do.

    A copy may have lost that. If a file seems to be older than a call in it, none is believed.
    """
    written_ns = {}
    for rank, file in files.items():
        written_ns[rank] = (folder / file).stat().st_mtime_ns
    for rank, dump in raw.items():
        if _newest_ns(dump) > written_ns[rank]:
            return
    for rank, dump in raw.items():
        dump.setdefault("dumped_ns", written_ns[rank])


def _newest_ns(dump: RawDump) -> int:
    """When the last of its calls was made."""
    newest_ns = 0
    for entry in dump.get("entries", []):
        if isinstance(entry, dict):
            created_ns = _integer(entry.get("time_created_ns"))
            newest_ns = max(newest_ns, created_ns)
    return newest_ns


def _read_file(path: Path) -> tuple[int, RawDump]:
    """The rank of a dump, and what is in it."""
    dump = read(path)
    rank = rank_of(path.name)
    if rank is None:
        raise Unreadable(NO_RANK)
    tables = _tables(dump)
    ranks_known = [ranks for _, ranks in tables.values() if ranks]
    if ranks_known and all(rank not in ranks for ranks in ranks_known):
        raise Unreadable(NOT_IN_GROUPS, str(rank))
    return rank, dump


def rank_of(name: str) -> int | None:
    """The rank that a file's name ends with, such as 3 for `_dump_3` or `rank3.json.gz`."""
    stem = _ENDINGS.sub("", name)
    match = _RANK.search(stem) or _LAST_NUMBER.search(stem)
    if match is None or len(match[1]) > 7:
        return None
    rank = int(match[1])
    if rank >= MAX_RANKS:
        return None
    return rank


def from_raw(
    raw: RawDumps,
    files: dict[int, str],
    left_out: list[LeftOut],
) -> Dumps:
    """Make records of dumps as they were read, by rank."""
    tables = {rank: _tables(dump) for rank, dump in raw.items()}
    world = _world(tables)
    groups = _Groups(raw, tables, world)
    by_rank = {}
    for rank, dump in sorted(raw.items()):
        try:
            by_rank[rank] = _rank_dump(rank, files[rank], dump, groups)
        except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError):
            left_out.append(LeftOut(files[rank], NO_DUMP, ""))
    has_seen_messages = any(dump.has_messages for dump in by_rank.values())
    has_unseen_messages = bool(groups.mixed) and not has_seen_messages
    return Dumps(by_rank, world, left_out, has_unseen_messages)


def _world(all_tables: dict[int, "_Tables"]) -> tuple[int, ...]:
    """All ranks that a dump speaks of."""
    highest = max(all_tables, default=-1)
    for tables in all_tables.values():
        for _desc, ranks in tables.values():
            highest = max(highest, max(ranks, default=-1))
    return tuple(range(highest + 1))


_Tables = dict[str, tuple[str, tuple[int, ...]]]


def _tables(dump: RawDump) -> _Tables:
    """By name of a group its description and its ranks, as far as the dump says them."""
    config = dump.get("pg_config")
    if not isinstance(config, dict):
        return {}
    tables = {}
    for name, group in config.items():
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks", "")
        if isinstance(ranks, list | tuple):
            ranks = str(list(ranks))
        desc = str(group.get("desc", ""))
        tables[str(name)] = (desc, _ranks_in(str(ranks)))
    return tables


@functools.lru_cache(4096)  # all ranks of a job have the same text for a group
def _ranks_in(text: str) -> tuple[int, ...]:
    """The ranks of a list such as `[0, 1, 2]`."""
    ranks = []
    for digits in re.findall(r"\d{1,7}", text):
        number = int(digits)
        if number < MAX_RANKS:
            ranks.append(number)
    return tuple(ranks)


class _Groups:
    """Which group a rank means by a name."""

    def __init__(
        self,
        raw: RawDumps,
        all_tables: dict[int, _Tables],
        world: tuple[int, ...],
    ) -> None:
        self._world = world
        self._objects: dict[tuple[object, ...], Group] = {}
        self._known: dict[tuple[int, str], Group] = {}
        self.names: dict[int, list[str]] = {}  # by rank the names in its table, in order
        self._last: dict[int, tuple[int, ...]] = {}  # the ranks of the last group, under gloo
        self._users: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.mixed: set[str] = set()  # descriptions of groups that have had messages
        self.has_batches = False  # whether messages are issued together
        for rank, dump in raw.items():
            self._note_table(rank, all_tables[rank])
            self._note_users(rank, dump)
        self._highest = self._highest_names()

    def _note_table(self, rank: int, tables: _Tables) -> None:
        self.names[rank] = sorted(tables, key=_natural)
        how_often = Counter[tuple[str, tuple[int, ...]]]()  # there was such a group
        for name in self.names[rank]:
            desc, ranks = tables[name]
            if not name:
                self._last[rank] = ranks
                continue
            index = how_often[desc, ranks]
            self._known[rank, name] = self._object(desc, ranks, index)
            how_often[desc, ranks] += 1

    def _object(self, *fields: Any, known: bool = True) -> Group:
        """The one object for a group."""
        key = (*fields, known)
        if key not in self._objects:
            self._objects[key] = Group(*fields, known=known)
        return self._objects[key]

    def _note_users(self, rank: int, dump: RawDump) -> None:
        for entry in dump.get("entries", []):
            if not isinstance(entry, dict):
                continue
            name, desc = _name_and_desc(entry)
            group = self._known.get((rank, name))
            if group is None:
                self._users[name, desc].add(rank)
            is_message = entry.get("is_p2p")
            number = entry.get("collective_seq_id", entry.get("seq_id"))
            if is_message or entry.get("op_id", number) != number:
                self.mixed.add(self._desc(name, desc, group))
            if is_message and _ends_a_batch(entry):
                self.has_batches = True

    def _desc(self, name: str, desc: str, group: Group | None) -> str:
        """The description that the group of an entry has, or will have."""
        if group is not None:
            return group.desc
        if desc == DEFAULT or name == "0":
            return DEFAULT
        return f"group {name}"

    def _highest_names(self) -> dict[int, str]:
        """By rank the name of the group that was made last, of those that it has used."""
        names_of: dict[int, list[str]] = defaultdict(list)
        for (name, _desc), users in self._users.items():
            for rank in users:
                names_of[rank].append(name)
        return {rank: max(names, key=_natural) for rank, names in names_of.items()}

    def of(self, rank: int, name: str, desc: str) -> Group:
        """The group that this rank calls so."""
        known = self._known.get((rank, name))
        if known is None:
            known = self._guessed(name, desc)
            self._known[rank, name] = known
        return known

    def _guessed(self, name: str, desc: str) -> Group:
        """A group that no table has: gloo's default group, or those who were seen to use it."""
        new_desc = self._desc(name, desc, None)
        if new_desc == DEFAULT:
            return self._object(DEFAULT, self._world, 0)
        users = self._users[name, desc]
        seen = tuple(sorted(users))
        for user in seen:
            last = self._last.get(user, ())
            if self._highest[user] == name and users <= set(last):
                return self._object(new_desc, last, 0)
        return self._object(new_desc, seen, 0, known=False)


def _natural(name: str) -> tuple[int, str]:
    """Sorts 9 before 10."""
    if name.isdigit() and len(name) < 10:
        return int(name), ""
    return 10**10, name


def _name_and_desc(entry: Entry) -> tuple[str, str]:
    group = entry.get("process_group")
    if isinstance(group, list | tuple) and len(group) == 2:
        name, desc = group
        return str(name), str(desc)
    pg_id = entry.get("pg_id", "")
    return str(pg_id), ""


def _rank_dump(rank: int, file: str, dump: RawDump, groups: _Groups) -> RankDump:
    calls = []
    group_of_id: dict[str, Group] = {}
    entries = _without_ends(dump.get("entries", []), groups.has_batches)
    for order, entry in enumerate(entries):
        name, desc = _name_and_desc(entry)
        group = groups.of(rank, name, desc)
        pg_id = str(entry.get("pg_id"))
        group_of_id[pg_id] = group
        call = _call(rank, order, group, entry)
        calls.append(call)
    status = _status(rank, dump, groups, group_of_id)
    last_enqueued, last_completed = _last_numbers(calls, status, groups.mixed)
    return RankDump(
        rank,
        file,
        tuple(calls),
        last_enqueued,
        last_completed,
        now_ns=_integer(dump.get("dumped_ns")),
        stack=str(dump.get("stack", "")),
        failed=bool(dump.get("failed", False)),
    )


def _without_ends(entries: list[Any], has_batches: bool) -> list[Entry]:
    """Entries without those that end a batch; each call of a batch has the state of its end.

    In a dump of pending calls only, a message without an end is over, since its end was left out;
    in a dump of all calls, the rank is just issuing it.
    """
    kept: list[Entry] = []
    batch: list[Entry] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise TypeError(entry)
        if entry.get("state") == _COMPLETED:
            has_batches = False
    if not has_batches and not any(map(_ends_a_batch, entries)):
        return entries
    for entry in entries:
        is_end = _ends_a_batch(entry)
        continues = bool(batch) and _batch_of(entry) == _batch_of(batch[-1])
        if not continues:
            kept += _settled(batch, None, has_batches)
            batch = []
        if continues and is_end:
            kept += _settled(batch, entry, has_batches)
            batch = []
        elif is_end and entry.get("is_p2p"):
            continue  # its messages are overwritten
        else:
            batch.append(entry)
    return kept + _settled(batch, None, has_batches)


def _settled(batch: list[Entry], end: Entry | None, has_batches: bool) -> list[Entry]:
    """The calls of a batch, with the state of the entry that ends it."""
    if not batch:
        return []
    are_messages = batch[0].get("is_p2p")
    if not are_messages:
        if end is None:
            return batch
        batch = batch[:1]  # several collectives with one number: they end together
    if end is not None:
        state = {"state": end.get("state"), "retired": end.get("retired")}
    elif has_batches:
        state = {"state": _COMPLETED, "retired": True}
    else:
        return batch
    return [entry | state for entry in batch]


def _batch_of(entry: Entry) -> tuple[Any, ...]:
    """What the calls of a batch and its end have in common."""
    number = entry.get("collective_seq_id")
    if entry.get("is_p2p"):
        number = entry.get("p2p_seq_id") or number
    return _name_and_desc(entry), number


def _ends_a_batch(entry: Entry) -> bool:
    profiling_name = str(entry.get("profiling_name", ""))
    return profiling_name.endswith("coalesced")


class _CallName(NamedTuple):
    """What the name of an entry says; of a message also its two places in the group."""

    kind: str
    sender: str = ""  # "?" for any rank
    receiver: str = ""

    @property
    def is_message(self) -> bool:
        return self.sender != ""


def _call(rank: int, order: int, group: Group, entry: Entry) -> Call:
    profiling_name = str(entry.get("profiling_name", ""))
    name = _read_name(profiling_name)
    number = _integer(entry.get("collective_seq_id", entry.get("seq_id")))
    sender = receiver = None
    if name.is_message:
        number = _integer(entry.get("p2p_seq_id"))
        sender = _global(group, name.sender)
        receiver = _global(group, name.receiver)
    return Call(
        rank=rank,
        order=order,
        group=group,
        kind=name.kind,
        number=number,
        op_id=_integer(entry.get("op_id")),
        finished=_is_finished(entry),
        created_ns=_integer(entry.get("time_created_ns")),
        sizes=_sizes(entry.get("input_sizes")),
        dtypes=tuple(map(str, entry.get("input_dtypes") or ())),
        sender=sender,
        receiver=receiver,
        line=_line(entry.get("frames")),
        by_gloo=_is_by_gloo(profiling_name),
    )


@functools.lru_cache(4096)
def _read_name(profiling_name: str) -> _CallName:
    """Such as `nccl:all_reduce`, or `nccl:send 0->1`, where the rank itself comes first."""
    _, _, name = profiling_name.rpartition(":")
    message = _MESSAGE.match(name)
    if message is None:
        kind = _KINDS.get(name, name)
        return _CallName(kind)
    kind, caller, _arrow, peer = message.groups()
    if kind == "send":
        return _CallName(kind, sender=caller, receiver=peer)
    return _CallName(kind, sender=peer, receiver=caller)


def _is_by_gloo(profiling_name: str) -> bool:
    return profiling_name.startswith("gloo:")


def _is_finished(entry: Entry) -> bool:
    """Whether the call is over: gloo only says so by `retired`."""
    profiling_name = str(entry.get("profiling_name", ""))
    if _is_by_gloo(profiling_name):
        return bool(entry.get("retired"))
    return entry.get("state") == _COMPLETED


def _integer(value: Any) -> int:
    """A number, which JSON dumps may have as a text; 0 for what is no number."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    return 0


def _global(group: Group, place: str) -> int | None:
    """The rank at a place in a group; None for any rank."""
    if place == "?":
        return None
    number = int(place)
    if number >= len(group.ranks):
        return number
    return group.ranks[number]


def _sizes(sizes: Any) -> tuple[tuple[int, ...], ...]:
    if not sizes or not isinstance(sizes, list | tuple):
        return ()
    checked = []
    for size in sizes[:64]:
        if isinstance(size, list | tuple):
            lengths = map(_integer, size[:16])
            checked.append(tuple(lengths))
    return tuple(checked)


def _line(frames: Any) -> CodeLine | None:
    """The innermost line outside of torch."""
    if not isinstance(frames, list | tuple):
        return None
    for frame in frames:
        if not isinstance(frame, dict):
            return None
        file = str(frame.get("filename", ""))
        is_ours = "/torch/" in file or "course_utils/" in file
        if file.endswith(".py") and not is_ours:
            number = _integer(frame.get("line"))
            function = str(frame.get("name", ""))
            return file, number, function
    return None


def _last_numbers(
    calls: Iterable[Call], status: dict[Group, RawStatus], mixed: set[str]
) -> tuple[Numbers, Numbers]:
    """The last collective of each group that the rank has called, and that is over.

    `pg_status` counts collectives and messages together, so it is of no use for a group that has
    had both; `mixed` has the descriptions of such groups.
    """
    enqueued: Numbers = {}
    completed: Numbers = {}
    for call in calls:
        if call.is_message:
            continue
        _raise_to(call.number, enqueued, call.group)
        if call.finished:
            _raise_to(call.number, completed, call.group)
    for group, values in status.items():
        if group.desc in mixed:
            continue
        last_enqueued = _integer(values.get("last_enqueued_collective"))
        last_completed = _integer(values.get("last_completed_collective"))
        _raise_to(last_enqueued, enqueued, group)
        _raise_to(last_completed, completed, group)
    return enqueued, completed


def _raise_to(number: int, numbers: Numbers, group: Group) -> None:
    """Note a group's number, unless a higher one is noted."""
    noted = numbers.get(group, 0)
    numbers[group] = max(noted, number)


def _status(
    rank: int, dump: RawDump, groups: _Groups, group_of_id: dict[str, Group]
) -> dict[Group, RawStatus]:
    """`pg_status` by group. It has a group's id, which only entries connect with its name.

    Both count the groups in the order in which they were made, so they can be laid side by side
    where there are as many of one as of the other.
    """
    status = dump.get("pg_status")
    if not isinstance(status, dict):
        return {}
    ids = sorted(map(str, status), key=_natural)
    names = groups.names.get(rank, [])
    side_by_side: dict[str, Group] = {}
    if len(ids) == len(names) and "" not in names:
        for pg_id, name in zip(ids, names, strict=True):
            side_by_side[pg_id] = groups.of(rank, name, "")
    by_id = side_by_side | group_of_id
    for pg_id, group in side_by_side.items():
        if by_id[pg_id] != group:  # what entries say does not agree with the order
            by_id = group_of_id
            break
    numbers = {}
    for pg_id, values in status.items():
        group = by_id.get(str(pg_id))
        if group is not None and isinstance(values, dict):
            numbers[group] = values
    return numbers
