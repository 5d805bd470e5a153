"""Two hosts: what runs on them, how they are told apart, and that nothing of them is left."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from census import gone_within
from deadline import within

from course_cluster import hosts
from course_cluster.host import WATCHERS
from course_cluster.hosts import two_hosts

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def no_namespaces() -> str:
    """Why this machine has none, or nothing."""
    try:
        with two_hosts(form="namespaces"):
            return ""
    except RuntimeError as error:
        return str(error)


WHY_NOT = no_namespaces()
SLEEPERS = "sh -c 'ps -o stat= -C sleep || :'"  # killed before it was called so, there is none
REAL = pytest.param(
    "namespaces", marks=pytest.mark.skipif(bool(WHY_NOT), reason=f"namespaces: {WHY_NOT}")
)
FORMS = pytest.mark.parametrize("form", [REAL, "loopback"])


def network() -> str:
    """Namespaces that have a name, and the interfaces of this one."""
    if WHY_NOT:
        return ""
    commands = [["ip", "netns", "list"], ["ip", "-o", "link"]]
    return "".join(subprocess.run(c, capture_output=True, text=True).stdout for c in commands)


def of_kernel(number: int) -> set[int]:
    """Processes on the hosts that a process has made."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"COURSE_HOST={number}.".encode() in entry.read_bytes():
                found.add(int(entry.parent.name))
    return found


def namespaces(numbers: Iterable[str | int]) -> set[str]:
    """The network namespaces that processes are in."""
    found = set()
    for number in numbers:
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{number}/ns/net"))
    return found


@pytest.fixture
def disk(nothing_left, tmp_path):
    before = network()
    yield tmp_path
    assert of_kernel(os.getpid()) == set()
    assert network() == before


def test_namespaces_that_are_asked_for_and_not_allowed_are_an_error(disk, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: None)  # as on Debian, for who is not root
    with pytest.raises(RuntimeError, match="root on Linux"), two_hosts(form="namespaces"):
        pass


def test_without_root_the_hosts_are_loopback_addresses_and_one_line_says_why(
    disk, monkeypatch, capsys
):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    hosts._say_once.cache_clear()
    for _ in range(2):
        with two_hosts(disk) as both:
            assert both.form == "loopback"
    line = "hosts: two addresses of this machine's loopback interface (namespaces: they need root"
    assert capsys.readouterr().out == f"{line} on Linux)\n"


@FORMS
def test_each_host_runs_commands_in_its_folder_with_its_environment(disk, form):
    (disk / "who.py").write_text("import os; print(os.environ['GLOO_SOCKET_IFNAME'], os.getcwd())")
    with two_hosts(disk, form) as both:
        said = both.run("who.py", "python who.py")
        assert said == [f"{host.interface} {disk.resolve()}\n" for host in both]
        assert both[1].run("sh -c 'echo $PLACE'", {"PLACE": "here"}) == "here\n"


@FORMS
def test_what_one_host_serves_the_other_one_reaches(disk, form):
    serve = "import socket, sys; s = socket.create_server((sys.argv[1], int(sys.argv[2])))\n"
    serve += "print('ready', flush=True); s.accept()[0].sendall(b'hello')"
    ask = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2])))\n"
    (disk / "serve.py").write_text(serve)
    (disk / "ask.py").write_text(ask + "print(s.recv(9).decode())")
    with two_hosts(disk, form) as both:
        place = f"{both[0].address} {both.port}"
        both[0].start(f"serve.py {place}").wait_for("ready")
        assert both[1].run(f"ask.py {place}") == "hello\n"


@FORMS
def test_a_command_that_fails_is_an_error_with_what_it_said_and_nobody_is_waited_for(disk, form):
    with within(200), two_hosts(disk, form) as both:
        with pytest.raises(RuntimeError, match=r"host 1: sh .*\" ended with 3:\nout\nerr\n"):
            both.run("sleep 300", "sh -c 'echo out; echo err >&2; exit 3'")
        with pytest.raises(RuntimeError, match="ended with 0"):
            both[0].start("echo no").wait_for("yes")
        with pytest.raises(TimeoutError, match=r"took over 0.1 s"):
            both[0].run("sleep 300", timeout_s=0.1)


@FORMS
def test_after_a_failure_in_the_middle_nothing_is_left(disk, form):
    stubborn = "sh -c 'trap : TERM; setsid sleep 300 & echo on; while :; do sleep 1; done'"
    programs = []
    with contextlib.suppress(ZeroDivisionError), two_hosts(disk, form) as both:
        programs = [host.start(stubborn) for host in both]
        for program in programs:
            program.wait_for("on")
        _ = 1 / 0
    assert of_kernel(os.getpid()) == set()
    assert [program.output for program in programs] == ["on\n", "on\n"]


@FORMS
def test_when_the_second_host_cannot_be_made_nothing_is_left_of_the_first(disk, form, monkeypatch):
    made = hosts.Host

    def fail(number, *rest):
        if number:
            raise RuntimeError("no room")
        return made(number, *rest)

    monkeypatch.setattr(hosts, "Host", fail)
    with pytest.raises(RuntimeError, match="no room"), two_hosts(disk, form):
        pass


@LINUX
@FORMS
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_kernel_is_killed_nothing_is_left(disk, form, end, script):
    kernel = script(f"""
        import time
        from course_cluster import two_hosts
        with two_hosts({str(disk)!r}, {form!r}) as both:
            for host in both:
                host.start("sh -c 'setsid sleep 300 & echo on; sleep 300'").wait_for("on")
            print("running", flush=True)
            time.sleep(300)
        """)
    while "running" not in kernel.stdout.readline():
        assert kernel.poll() is None
    wanted, found = (8, 2) if form == "namespaces" else (6, 0), None
    last = time.monotonic() + 60
    while found != wanted and time.monotonic() < last:  # a shell says "on", then starts sleep
        begun = of_kernel(kernel.pid)
        rooms = namespaces(begun) - namespaces([os.getpid()])
        found = len(begun), len(rooms)
    assert found == wanted
    kernel.send_signal(end)
    assert gone_within(begun, 60)
    last = time.monotonic() + 60
    while rooms & namespaces(os.listdir("/proc")) and time.monotonic() < last:
        time.sleep(0.02)  # the watchers, which bear no mark, follow
    assert not rooms & namespaces(os.listdir("/proc"))


@LINUX
def test_only_processes_with_the_very_mark_of_a_host_are_ended_with_it(disk):
    with two_hosts(disk, "loopback") as both:
        programs = [host.start("sh -c 'echo on; sleep 300'") for host in both]
        for program in programs:
            program.wait_for("on")
        both[0].close()
        assert [program.process.poll() for program in programs] == [-signal.SIGKILL, None]


def test_loopback_has_no_cable_to_slow_down(disk):
    refused = pytest.raises(RuntimeError, match="no cable")
    with two_hosts(disk, "loopback") as both, refused, both.slow(mbit_s=100):
        pass


@pytest.mark.skipif(bool(WHY_NOT), reason=f"namespaces: {WHY_NOT}")
def test_each_namespace_has_its_own_interfaces_addresses_and_processes(disk):
    with two_hosts(disk, "namespaces") as both:
        for host in both:
            said = host.run("ip -4 -brief address")
            assert [line.split("@")[0].split()[0] for line in said.splitlines()] == [
                "lo", "eth0", "eth1"
            ]  # fmt: skip
            assert f"{host.address}/24" in said
            assert f"{host.outside}/24" in said
        assert "eth1" not in subprocess.run(["ip", "link"], capture_output=True, text=True).stdout
        assert len(both[0].run("ps -e").splitlines()) < 6


@pytest.mark.skipif(bool(WHY_NOT), reason=f"namespaces: {WHY_NOT}")
def test_a_slow_cable_is_slow_in_the_block_only(disk):
    with two_hosts(disk, "namespaces") as both:
        with both.slow(mbit_s=100):
            assert "tbf 8" in both[1].run("tc qdisc show dev eth0")
            assert "rate 100Mbit" in both[0].run("tc qdisc show dev eth0")
        assert "tbf" not in both[0].run("tc qdisc show dev eth0")
        with pytest.raises(ValueError, match="above 0"), both.slow(mbit_s=0):
            pass


WAITS = """
import sys, time
from datetime import timedelta
import torch
import torch.distributed as dist

place, rank = sys.argv[1], int(sys.argv[2])
timeout = timedelta(seconds=int(sys.argv[3]))
dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=timeout)
dist.all_reduce(torch.ones(1))
print("met", flush=True)
if rank == 1:
    time.sleep(300)
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    print(error, "is over", flush=True)
"""


@pytest.mark.skipif(bool(WHY_NOT), reason=f"namespaces: {WHY_NOT}")
def test_a_host_that_closes_no_connection_is_waited_for_until_the_groups_timeout(disk):
    (disk / "waits.py").write_text(WAITS)
    with within(100), two_hosts(disk, "namespaces") as both:
        place = f"tcp://{both[0].address}:{both.port}"
        programs = [host.start(f"waits.py {place} {host.number} 5") for host in both]
        programs[1].wait_for("met")
        both[1].run("ip link set eth0 down")  # to host 0 it's as if it had lost its power
        assert "Timed out waiting 5000ms" in programs[0].wait_for("is over")


@pytest.mark.skipif(bool(WHY_NOT), reason=f"namespaces: {WHY_NOT}")
def test_the_kernel_may_give_up_before_the_groups_timeout(disk):
    until_cut = 'while not os.path.exists("cut"):\n    time.sleep(0.02)\ntry:'
    (disk / "waits.py").write_text("import os" + WAITS.replace("try:", until_cut))
    with within(100), two_hosts(disk, "namespaces") as both:
        if "tcp_retries2 = 3" not in both[0].run("sysctl -w net.ipv4.tcp_retries2=3"):
            pytest.skip("the kernel's patience can't be set here")
        place = f"tcp://{both[0].address}:{both.port}"
        programs = [host.start(f"waits.py {place} {host.number} 90") for host in both]
        programs[0].wait_for("met")
        both[1].run("ip link set eth0 down")
        (disk / "cut").touch()  # so rank 0 sends what nobody will acknowledge
        said = programs[0].wait_for("is over")
        assert "Connection timed out" in said or "No route to host" in said


def test_where_no_environment_can_be_read_the_groups_that_the_watcher_was_told_of_are_ended():
    *shell, script = WATCHERS["loopback"]
    watcher = [*shell, script.replace("/proc/self/environ", "/nowhere"), "no such mark"]
    program = subprocess.Popen(["sleep", "300"], start_new_session=True)
    subprocess.run(watcher, input=f"{program.pid}\n".encode(), check=True)
    assert program.wait() == -signal.SIGTERM


@FORMS
def test_when_the_power_of_a_host_is_cut_its_processes_die_and_the_other_host_stays(disk, form):
    stubborn = "sh -c 'trap : TERM HUP; setsid sleep 300 & echo on; while :; do sleep 1; done'"
    with within(100), two_hosts(disk, form) as both:
        programs = [host.start(stubborn) for host in both]
        for program in programs:
            program.wait_for("on")
        both[1].cut_power()
        assert programs[1].process.wait(60) != 0
        assert programs[0].process.poll() is None
        both[1].cut_power()  # nobody is left: no error
        assert both[0].run("echo here") == "here\n"
        while form == "namespaces" and "S" in both[1].run(SLEEPERS):
            time.sleep(0.02)  # they are on their way


@pytest.mark.skipif(bool(WHY_NOT), reason=f"namespaces: {WHY_NOT}")
def test_where_a_host_has_no_namespace_of_its_own_nobody_is_killed(disk):
    with two_hosts(disk, "namespaces") as both:
        both[1]._enter = ["env"]  # as if nsenter had entered nothing
        with pytest.raises(subprocess.CalledProcessError):
            both[1].cut_power()
