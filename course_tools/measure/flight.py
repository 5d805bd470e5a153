"""How well and how fast hangs are explained from dumps: a table beside torch's own `torchfrtrace`.

    python -m course_tools.measure.flight [FOLDER...] [--ranks=1024] [--document=FILE]

Each FOLDER has dumps, or folders with dumps; default: the recorded cases of the tests. Who is
guilty stands in `truth.json` of the folder above, or in `fault_injection.log` beside the dumps.
At last a job of very many ranks is made up, in which one does not come, and read from its files.
"""

import contextlib
import functools
import gzip
import io
import json
import pickle
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from course_tools import ROOT
from course_tools.commands import parser_of
from course_utils.flight.explanation import explain_dumps

CASES = ROOT / "tests" / "data" / "flight"
TENSOR = 8  # ranks of such a group in the job that is made up
PIPELINE = 4
BLAME = re.compile(r"missing ranks: \{([\d, ]+)|Culprit rank (\d+)")  # as torch's tool says it


class Row(NamedTuple):
    """One case."""

    case: str
    truth: list[int] | None
    guilty: list[int]
    outcome: str
    outcome_of_torch: str
    seconds: float
    seconds_of_torch: float


def rows(folders: list[Path]) -> Iterator[Row]:
    """A row for every folder with dumps."""
    for folder in folders:
        yield measure(folder)


def folders_below(folder: Path) -> list[Path]:
    """The folder itself, or those in it that have files."""
    inner = [path for path in folder.iterdir() if path.is_dir()]
    if not inner:
        return [folder]
    return sorted(inner)


def measure(folder: Path) -> Row:
    """Explain one case by both, and look at the clock."""
    begun_s = time.perf_counter()
    explanation = explain_dumps(folder)
    seconds = time.perf_counter() - begun_s
    _their_tool()  # its import is not counted
    begun_s = time.perf_counter()
    outcome_of_torch = torchfrtrace(folder)
    seconds_of_torch = time.perf_counter() - begun_s
    verdict = explanation.verdict
    return Row(
        case=folder.name,
        truth=truth(folder),
        guilty=explanation.guilty,
        outcome=f"{verdict.outcome}, {verdict.certainty}",
        outcome_of_torch=outcome_of_torch,
        seconds=seconds,
        seconds_of_torch=seconds_of_torch,
    )


def truth(folder: Path) -> list[int] | None:
    """Who is guilty in truth; None if nobody has written it down."""
    log = folder / "fault_injection.log"
    if log.exists():
        ranks = re.findall(r"^Rank (\d+)", log.read_text(), re.MULTILINE)
        return sorted(map(int, ranks))
    known = folder.parent / "truth.json"
    if known.exists():
        guilty_by_case = json.loads(known.read_text())
        return guilty_by_case.get(folder.name)
    return None


def torchfrtrace(folder: Path) -> str:
    """What torch's own tool says of a case, in short.

    gloo's dumps have no table of groups, at which it stops, so the default group is added.
    """
    fr_trace, heard = _their_tool()
    heard.seek(0)
    heard.truncate()
    with tempfile.TemporaryDirectory() as copies:
        for file in sorted(folder.iterdir()):
            match = re.search(r"(\d+)(\.json\.gz)?$", file.name)
            if match is None:
                continue
            dump = _as_torch_wants(file, folder)
            copy = Path(copies, f"dump_{match[1]}")
            copy.write_bytes(dump)
        arguments = [copies, "--prefix=dump_", "--allow-incomplete-ranks"]
        try:
            fr_trace.main(arguments)
        except (Exception, SystemExit) as error:
            kind = type(error).__name__
            words = str(error)[:60]
            return f"stops: {kind}: {words}"
    return _summary(heard.getvalue())


@functools.cache
def _their_tool() -> tuple[Any, io.StringIO]:
    """The module behind `torchfrtrace`, and where its words go: to the stream of its import."""
    heard = io.StringIO()
    with contextlib.redirect_stderr(heard):
        from torch.distributed.flight_recorder import fr_trace
    return fr_trace, heard


def _as_torch_wants(file: Path, folder: Path) -> bytes:
    """A dump in pickle's form, with a table of groups."""
    data = file.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if data.startswith(b"{"):
        dump = json.loads(data)
    else:
        dump = pickle.loads(data)  # only of this repository
    if "0" not in dump["pg_config"]:
        ranks_with_dump = map(_rank_of, folder.iterdir())
        highest = max(ranks_with_dump)
        ranks = list(range(highest + 1))
        default_group = {"name": "0", "desc": "default_pg", "ranks": str(ranks)}
        dump["pg_config"] = {"0": default_group}
    return pickle.dumps(dump)


def _rank_of(file: Path) -> int:
    """The rank in the name of a dump."""
    rank = re.search(r"\d+", file.name)
    return int(rank[0])


def _summary(text: str) -> str:
    """The ranks that it blames, or nobody."""
    blamed = set()
    for missing, culprit in BLAME.findall(text):
        ranks = re.findall(r"\d+", missing or culprit)
        blamed.update(map(int, ranks))
    if not blamed:
        return "nobody"
    return str(sorted(blamed))


def make_up(folder: Path, ranks: int) -> int:
    """Leave dumps of a job in which one rank does not come; return that rank."""
    absent = ranks - ranks // 3
    stages = ranks // PIPELINE
    for rank in range(ranks):
        groups = {
            "default_pg": list(range(ranks)),
            "tensor": list(tensor_of(rank)),
            "pipeline": list(range(rank % stages, ranks, stages)),
        }
        config = {}
        for desc, members in groups.items():
            name = str(len(config))
            config[name] = {"name": name, "desc": desc, "ranks": str(members)}
        entries = _entries(rank, absent)
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        data = pickle.dumps(dump, protocol=2)
        path = folder / f"_dump_{rank}"
        path.write_bytes(data)
    return absent


def _entries(rank: int, absent: int) -> list[dict]:
    """What a rank has called: its tensor group a hundred times, and then the whole job.

    The absent rank leaves out the last three calls, so the others of its tensor group wait there.
    """
    waits_for_absent = rank in tensor_of(absent)
    entries = []
    for number in range(1, 101):
        is_late = number >= 98
        if is_late and rank == absent:
            break
        entry = _entry((1, "tensor"), "nccl:_all_gather_base", number)
        if not is_late or not waits_for_absent:
            entry |= {"state": "completed", "retired": True}
        entries.append(entry)
    if not waits_for_absent:
        whole_job = (0, "default_pg")
        last_call = _entry(whole_job, "nccl:all_reduce", 7)
        entries.append(last_call)
    return entries


def tensor_of(rank: int) -> range:
    """The tensor group of a rank of the job that is made up."""
    first = rank - rank % TENSOR
    return range(first, first + TENSOR)


def _entry(group: tuple[int, str], kind: str, number: int) -> dict:
    """A call that is not over yet, as a flight recorder notes it."""
    group_number, group_name = group
    created_ns = 10**18 + number * 10**6
    return {
        "process_group": (str(group_number), group_name),
        "pg_id": group_number,
        "profiling_name": kind,
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "time_created_ns": created_ns,
        "input_sizes": [[4096]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        "retired": False,
        "is_p2p": False,
    }


def large(ranks: int) -> str:
    """Make up a job of so many ranks, read it, and say how long that took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        absent = make_up(folder, ranks)
        size = sum(file.stat().st_size for file in folder.iterdir())
        megabytes = size / 1e6
        begun_s = time.perf_counter()
        begun_cpu_s = time.process_time()
        explanation = explain_dumps(folder)
        text = str(explanation)
        seconds = time.perf_counter() - begun_s
        cpu_seconds = time.process_time() - begun_cpu_s
    verdict = "right"
    if explanation.guilty != [absent]:
        verdict = f"WRONG, {explanation.guilty}"
    lines = len(text.splitlines())
    return (
        f"{ranks} made-up ranks, {megabytes:.0f} MB: read and explained in {seconds:.1f} s "
        f"({cpu_seconds:.1f} s of CPU time), {verdict}; the report has {lines} lines"
    )


def table(measured: list[Row]) -> str:
    """The rows in Markdown."""
    lines = [
        "| case | truth | ours | how sure | torchfrtrace | seconds, ours | theirs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in measured:
        line = f"| {row.case} | {row.truth} | {row.guilty} | {row.outcome} "
        line += f"| {row.outcome_of_torch} | {row.seconds:.2f} | {row.seconds_of_torch:.2f} |"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Print the table; end with 1 if a case is not right."""
    parser = parser_of(__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=[CASES])
    parser.add_argument("--ranks", type=int, default=1024)
    options = parser.parse_args()
    folders = []
    for folder in options.folders:
        folders += folders_below(folder)
    measured = list(rows(folders))
    print(table(measured))
    print(large(options.ranks))
    wrong = []
    for row in measured:
        if row.truth not in (None, row.guilty):
            wrong.append(row.case)
    if wrong:
        cases = ", ".join(wrong)
        sys.exit(f"wrong: {cases}")


if __name__ == "__main__":
    main()
