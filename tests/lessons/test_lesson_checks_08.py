"""What a learner writes in chapter 08: a roll call that names who is missing, a reader of logs."""

import inspect
import itertools
import re
import subprocess
import time
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import labs
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.nn.parallel import DistributedDataParallel

from course_lessons import chapter_08
from course_lessons import chapter_08_job_pictures as job_pictures
from course_lessons import chapter_08_pictures as pictures
from course_lessons.chapter_08 import in_a_roll_call
from course_utils import WorkerTimeout, check, launch

LESSON = labs.ROOT / "source/lessons/08_it_hangs_lies_or_dies.py"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lesson():
    """What the cells of both exercises define."""
    wanted = ("import torch\n", "def who_is_missing", "def suspects")
    return labs.defined(LESSON, wanted)


def _ranks():
    return range(dist.get_world_size())


def _here(store, name):
    store.set(f"{name}/{dist.get_rank()}", "here")


def _misses(store, name, rank, seconds):
    try:
        store.wait([f"{name}/{rank}"], timedelta(seconds=seconds))
    except RuntimeError:
        return True
    return False


def looks_at_once(store, name, patience_s):
    _here(store, name)
    return [rank for rank in _ranks() if not store.check([f"{name}/{rank}"])]


def forgets_the_name(store, name, patience_s):
    _here(store, "roll call")
    return [rank for rank in _ranks() if _misses(store, "roll call", rank, patience_s)]


def all_or_nobody(store, name, patience_s):
    _here(store, name)
    try:
        store.wait([f"{name}/{rank}" for rank in _ranks()], timedelta(seconds=patience_s))
    except RuntimeError:
        return [rank for rank in _ranks() if rank != dist.get_rank()]
    return []


def stops_at_the_first(store, name, patience_s):
    _here(store, name)
    for rank in _ranks():
        if _misses(store, name, rank, patience_s):
            return [rank]
    return []


def only_rank_0_looks(store, name, patience_s):
    _here(store, name)
    if dist.get_rank() > 0:
        return []
    return [rank for rank in _ranks() if _misses(store, name, rank, patience_s)]


def never_signs_itself(store, name, patience_s):
    deadline = time.monotonic() + patience_s
    return [
        rank
        for rank in _ranks()
        if _misses(store, name, rank, max(0.001, deadline - time.monotonic()))
    ]


def counts_only(store, name, patience_s):
    _here(store, name)
    time.sleep(patience_s)
    here = sum(store.check([f"{name}/{rank}"]) for rank in _ranks())
    return list(range(here, dist.get_world_size()))


def by_monitored_barrier(store, name, patience_s):
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=patience_s), wait_all_ranks=True)
    except RuntimeError as error:
        found = re.search(r"Ranks? ([\d, ]+) failed", str(error))
        return [int(rank) for rank in found[1].split(",")] if found else []
    return []


def by_a_collective(store, name, patience_s):
    dist.barrier()
    return []


def by_polling(store, name, patience_s):
    _here(store, name)
    end = time.monotonic() + patience_s
    missing = set(_ranks())
    while missing and time.monotonic() < end:
        missing = {rank for rank in missing if not store.check([f"{name}/{rank}"])}
        time.sleep(0.02)
    return sorted(missing)


def with_a_counter_of_time(store, name, patience_s):
    store.set(f"{name}, {dist.get_rank()}", "1")
    left_s, missing = patience_s, []
    for rank in _ranks():
        begun = time.monotonic()
        try:
            store.wait([f"{name}, {rank}"], timedelta(seconds=max(left_s, 0.01)))
        except dist.DistError:
            missing += [rank]
        except RuntimeError:
            missing += [rank]
        left_s -= time.monotonic() - begun
    return missing


def full_patience_for_each(store, name, patience_s):
    _here(store, name)
    missing = []
    for rank in _ranks():
        try:
            store.wait([f"{name}/{rank}"], timedelta(seconds=patience_s))
        except RuntimeError:
            missing.append(rank)
    return missing


def asks_without_a_limit(store, name, patience_s):
    _here(store, name)
    time.sleep(patience_s / 2)
    return [rank for rank in _ranks() if not store.get(f"{name}/{rank}")]


def waits_without_a_limit(store, name, patience_s):
    _here(store, name)
    store.wait([f"{name}/{rank}" for rank in _ranks()])
    return []


WRONG_CALLS = [
    full_patience_for_each, asks_without_a_limit, waits_without_a_limit,
    looks_at_once, forgets_the_name, all_or_nobody, stops_at_the_first,
    only_rank_0_looks, never_signs_itself, counts_only, by_monitored_barrier, by_a_collective,
]  # fmt: skip


@pytest.mark.parametrize("answer", WRONG_CALLS)
def test_a_wrong_roll_call_is_rejected(answer):
    options = chapter_08.ROLL_CALL | labs.HUNG | {"world_sizes": (4,)}
    outcome = check(in_a_roll_call(answer), **options)
    assert outcome.state == "wrong", outcome
    assert outcome.message


@pytest.mark.parametrize("answer", [by_polling, with_a_counter_of_time])
def test_a_roll_call_in_a_different_style_passes(answer):
    assert check(in_a_roll_call(answer), **chapter_08.ROLL_CALL | labs.PATIENT).require()


def test_the_chapters_own_roll_call_passes_and_its_stub_is_not_attempted(lesson):
    roll_call = chapter_08.ROLL_CALL
    done = in_a_roll_call(lesson["who_is_missing_done"])
    assert check(done, **roll_call | labs.PATIENT).require()
    assert check(in_a_roll_call(lesson["who_is_missing"]), **roll_call).state == "not attempted"


def test_the_roll_call_is_drawn_right_or_wrong(lesson, capsys):
    pictures.draw_roll_call(lesson["who_is_missing_done"])
    assert "name: [[2], [2], [2]]" in capsys.readouterr().out
    pictures.draw_roll_call(only_rank_0_looks)
    assert "name: [[2], [], []]" in capsys.readouterr().out
    pictures.draw_roll_call(lambda store, name, patience_s: None)
    assert "name: [None, None, None]" in capsys.readouterr().out
    pictures.draw_roll_call(lesson["who_is_missing"])
    assert "No picture yet: NotImplementedError" in capsys.readouterr().out


ECHO = re.compile("by peer|Timed out")


def _is_error(log):
    return "Error" in log


def the_first_error(logs, exit_codes):
    return [rank for rank, log in enumerate(logs) if _is_error(log)][:1]


def torchruns_exit_code_1(logs, exit_codes):
    return [rank for rank, code in enumerate(exit_codes) if code == 1]


def all_with_errors(logs, exit_codes):
    return [rank for rank, log in enumerate(logs) if _is_error(log)]


def no_echoes_only(logs, exit_codes):
    return [rank for rank, log in enumerate(logs) if _is_error(log) and not ECHO.search(log)]


def the_silent(logs, exit_codes):
    return [rank for rank, log in enumerate(logs) if not log]


def errors_or_the_silent(logs, exit_codes):
    return no_echoes_only(logs, exit_codes) or the_silent(logs, exit_codes)


def any_signal(logs, exit_codes):
    killed = [rank for rank, code in enumerate(exit_codes) if code < 0]
    return no_echoes_only(logs, exit_codes) or killed


def no_timeouts_alone(logs, exit_codes):
    found = [r for r, log in enumerate(logs) if _is_error(log) and "Timed out" not in log]
    return found or [rank for rank, code in enumerate(exit_codes) if code == -9]


def every_runtime_error_is_an_echo(logs, exit_codes):
    own = [r for r, log in enumerate(logs) if _is_error(log) and "RuntimeError" not in log]
    killed = [rank for rank, code in enumerate(exit_codes) if code == -9]
    return own or killed or (the_silent(logs, exit_codes) if any(logs) else [])


def always_rank_2(logs, exit_codes):
    return [2] if any(logs) else []


def by_last_lines(logs, exit_codes):
    last = {rank: log.splitlines()[-1] for rank, log in enumerate(logs) if log}
    if not last:
        return []
    for rank, line in last.items():
        if "closed by peer" not in line and "waiting" not in line:
            return [rank]
    if -9 in exit_codes:
        return [exit_codes.index(-9)]
    return sorted(set(range(len(logs))) - set(last))


WRONG_READERS = [
    the_first_error, torchruns_exit_code_1, all_with_errors, no_echoes_only, the_silent,
    errors_or_the_silent, any_signal, no_timeouts_alone, every_runtime_error_is_an_echo,
    always_rank_2,
]  # fmt: skip


@pytest.mark.parametrize("answer", WRONG_READERS)
def test_a_wrong_reader_of_logs_is_rejected(answer):
    outcome = check(answer, **chapter_08.SUSPECTS)
    assert outcome.state == "wrong", outcome
    assert outcome.message


def test_readers_of_logs_that_are_right_pass(lesson):
    for answer in (by_last_lines, lesson["suspects_done"]):
        assert check(answer, **chapter_08.SUSPECTS | labs.PATIENT).require()
    assert check(lesson["suspects"], **chapter_08.SUSPECTS).state == "not attempted"


def test_no_two_recorded_jobs_look_alike():
    places = itertools.product([job for job in chapter_08.JOBS if job != "nothing"], range(4))
    seen = [str(chapter_08.raw_logs(*place)) for place in places]
    assert len(set(seen)) == len(seen)


def test_suspects_are_drawn_right_or_wrong(lesson, capsys):
    pictures.draw_suspects(lesson["suspects_done"])
    assert "Right in 6 of 6 jobs" in capsys.readouterr().out
    pictures.draw_suspects(no_echoes_only)
    assert "Right in 4 of 6 jobs" in capsys.readouterr().out
    pictures.draw_suspects(lesson["suspects"])
    assert "No picture yet: NotImplementedError" in capsys.readouterr().out


def _hang(printed):
    error = WorkerTimeout(["not done"], printed)
    states = ["waiting", "returned", "waiting"]
    error.waiting = {rank: SimpleNamespace(state=state) for rank, state in enumerate(states)}
    return error


def test_wrong_averages_are_named_by_rank_and_step(capsys):
    printed = ["step 0: average 0.00\nstep 1: average 1.50", "step 0: average 0.00", ""]
    pictures.draw_averages(_hang(printed))
    assert "Wrong are: rank 0: 1.5 in step 1." in capsys.readouterr().out


def test_the_oracle_says_what_two_ranks_should_have(capsys):
    pictures.draw_oracle({"a": [1.0], "b": [2.0, 3]}, {"a": [2.0], "b": [4.0, 5]})
    words = capsys.readouterr().out
    assert "a: wanted 2, and two ranks have 2. b: wanted 4, 6, and two ranks have 4, 5." in words


def test_what_varies_of_a_picture_is_said_behind_about(capsys):
    pictures.draw_signal(1, 2.97, timeout_s=3)
    assert "heard after about 3 s" in capsys.readouterr().out
    job_pictures.draw_costs({"OFF": [1e-4, 2e-4], "DETAIL": [4e-4, 5e-4]})
    assert "takes about 3.0 times as long" in capsys.readouterr().out


def test_looks_at_a_job_say_whether_its_log_grows(capsys):
    places = ("dist.all_reduce(gradient)", "time.sleep(0.1)")
    jobs = SimpleNamespace(
        seen={"hung": [places] * 2, "slow": [places] * 2},
        steps={"hung": [[3, 3], [3, 3]], "slow": [[1, 1], [2, 2]]},
    )
    job_pictures.draw_looks(jobs, ("hung", "slow"))
    words = capsys.readouterr().out
    assert "hung: from look to look the log stays" in words
    assert "slow: from look to look the log grows" in words


def test_the_watchdogs_lines_say_who_is_stuck_where(capsys):
    job_pictures.draw_watchdog(chapter_08.WATCHDOG)
    words = capsys.readouterr().out
    assert "rank 0 in call 1516: stuck for 600 s, 25,427,968 numbers" in words
    assert "rank 1 in call 1517: stuck for 600 s, 1 number." in words


def evaluate_on_one_without_buffers(steps):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    for _ in range(steps):
        model(torch.ones(4, 3)).sum().backward()
        if dist.get_rank() == 0:
            model(torch.ones(4, 3))
    return "done"


def test_without_buffers_an_evaluation_on_one_rank_hangs_after_a_single_step_only():
    assert [*launch(evaluate_on_one_without_buffers, 2, backend="gloo")] == ["done"] * 2
    with pytest.raises(WorkerTimeout) as hang:
        launch(evaluate_on_one_without_buffers, 1, backend="gloo", timeout=2)
    assert "Rank 0 waited for rank 1" in str(hang.value)


def test_torch_is_as_patient_as_the_chapter_says():
    agent = inspect.signature(LocalElasticAgent.__init__).parameters
    assert agent["shutdown_timeout"].default == 30  # from SIGTERM to SIGKILL
    assert dist.constants.default_pg_timeout == timedelta(minutes=30)
    assert dist.constants.default_pg_nccl_timeout in (None, timedelta(minutes=10))


def test_torchruns_shutdown_timeout_is_not_used_after_a_rank_has_failed():
    agent = Mock(spec=LocalElasticAgent, _shutdown_timeout=3)
    LocalElasticAgent._stop_workers(agent, Mock())
    agent._shutdown.assert_called_once_with()
    assert inspect.signature(LocalElasticAgent._shutdown).parameters["timeout"].default == 30


def test_a_shell_calls_the_death_by_sigkill_137():
    script = "sh -c 'kill -9 $$'; echo $?"
    run = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout == "137\n"
