"""Files that anybody may have written: refused with a sentence, and nothing in them is run."""

import gzip
import json
import os
import pickle

import pytest
from flight_dumps import Job

from course_utils import explain_dumps
from course_utils.flight.unpickle import LIMIT_BYTES, Unreadable, plain


class Harmful:
    """Its pickle makes a folder when it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("harmed",)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Dumps of four ranks, the last of which is absent, and the present working folder."""
    monkeypatch.chdir(tmp_path)
    job = Job(4)
    job.call("all_reduce", 0, 1, 2)
    job.write(tmp_path)
    return tmp_path


def sentence(folder) -> str:
    explanation = explain_dumps(folder)
    assert explanation.guilty == [3]  # the others' dumps are read all the same
    (line,) = [line for line in str(explanation).split("\n") if "was left out" in line]
    return line


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(folder, protocol):
    (folder / "_dump_0").write_bytes(pickle.dumps({"entries": [Harmful()]}, protocol))
    assert "_dump_0 was left out" in sentence(folder)
    assert not (folder / "harmed").exists()


@pytest.mark.parametrize(
    "instruction",
    [b"cos\nsystem\n", b"\x8c\x02os\x8c\x06system\x93", b"ios\nsystem\n", b"Pevil\n", b"\x82\x01"],
)
def test_every_instruction_that_leads_to_a_class_is_refused(instruction):
    with pytest.raises(Unreadable) as refused:
        plain(b"\x80\x04(" + instruction + b".")
    assert refused.value.why == "code"


def test_a_sparse_file_of_two_gigabytes_is_not_read(folder):
    with (folder / "_dump_0").open("wb") as file:
        file.truncate(2 * 2**30)
    assert "larger than any dump" in sentence(folder)


def test_a_small_file_that_unpacks_to_gigabytes_is_not_read(folder):
    (folder / "_dump_0").unlink()
    with gzip.open(folder / "_dump_0.gz", "wb") as file:
        for _ in range(LIMIT_BYTES // 2**20 + 2):
            file.write(bytes(2**20))
    assert "larger than any dump" in sentence(folder)


def test_a_number_that_would_take_all_memory_takes_none():
    with pytest.raises(Unreadable):
        plain(b"\x80\x02}r\xff\xff\xff\xffX\xff\xff\xff\x7fabc.")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("form", ["pickle", "json", "gzip"])
def test_a_file_that_is_cut_off_is_left_out(folder, form, part):
    dump = Job(4).dump(0)
    whole = pickle.dumps(dump, 2) if form == "pickle" else json.dumps(dump).encode()
    if form == "gzip":
        whole = gzip.compress(whole)
    (folder / "_dump_0").write_bytes(whole[: int(len(whole) * part)])
    assert "cut off" in sentence(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"hello", "no dump"),
        (b"\x7fELF\x02\x01\x01" + bytes(99), "no dump"),
        (pickle.dumps([1, 2, 3]), "no dump"),
        (pickle.dumps({"loss": 0.5}), "no dump"),
        (pickle.dumps({"entries": 7, "pg_config": {}}), "no dump"),
        (pickle.dumps({"entries": [[1], 2]}), "no dump"),
        (b"[]", "no dump"),
        (b'{"a": ' * 100_000, "no dump"),
    ],
)
def test_what_is_no_dump_is_named_and_left_out(folder, content, words):
    (folder / "_dump_0").write_bytes(content)
    assert words in sentence(folder)


def test_two_files_of_one_rank_and_a_name_without_a_rank_are_left_out(folder):
    content = (folder / "_dump_0").read_bytes()
    (folder / "other_0").write_bytes(content)
    assert "_dump_0 is from the same rank" in sentence(folder)
    (folder / "other_0").rename(folder / "dump")
    assert "does not say which rank" in sentence(folder)


def test_a_rank_that_none_of_its_groups_has_is_no_rank(folder):
    (folder / "_dump_9").write_bytes((folder / "_dump_0").read_bytes())
    assert "no group in it has such a rank" in sentence(folder)


def test_a_pipe_in_the_folder_is_not_waited_for(folder):
    (folder / "_dump_0").unlink()
    os.mkfifo(folder / "_dump_0")
    assert "cannot be read as a file" in sentence(folder)


def test_of_nothing_but_bad_files_nothing_is_known(tmp_path):
    (tmp_path / "_dump_0").write_bytes(b"")
    explanation = explain_dumps(tmp_path)
    assert explanation.exit_status == 4
    assert "no dump in this folder" in str(explanation)
