"""A process from which nothing gets out: Linux namespaces, entered after a fork, without a package.

What runs inside is the first process of its own: no signal from inside stops it, and when it ends,
everything it has started ends. It sees Python, the course and folders of its own in memory, can
write nowhere else, and has no network but a loopback of its own. It is nobody (started by root) or
its user without any right (started by a user, where the system lets users make namespaces).

It guards against what Python code can do, and is no virtual machine: the kernel is the teacher's.
"""

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import stat
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import psutil

LIBC = ctypes.CDLL(None, use_errno=True)
NEW_NS = 0x00020000
NEW_USER = 0x10000000
NEW_HOST_NAMES = 0x04000000
NEW_SHARED = 0x08000000  # what processes share, such as memory
NEW_PROCESSES = 0x20000000
NEW_NETWORK = 0x40000000
NEW_CONTROL_GROUPS = 0x02000000
NEW_REST = NEW_HOST_NAMES | NEW_SHARED | NEW_PROCESSES | NEW_NETWORK | NEW_CONTROL_GROUPS
# Of mount(2).
READ_ONLY = 1
NO_SUID = 2
NO_DEVICE = 4
BIND = 1 << 12
RECURSIVE = 1 << 14
PRIVATE = 1 << 18
NO_RIGHTS = NO_SUID | NO_DEVICE  # no program or device there gives rights
# Of mount_setattr(2) and umount2(2).
MOUNT_SETATTR = 442  # the number of that call
CURRENT_FOLDER = -100
ALL_BELOW = 0x8000
DETACH = 2
# Of prctl(2).
SET_PARENT_DEATH = 1
SET_DUMPABLE = 4
DROP_BOUND = 24
NO_NEW_PRIVILEGES = 38
# Of netdevice(7).
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
NOBODY = 61184  # the first of the numbers that systemd keeps for users who are nobody
DEVICES = ["null", "zero", "full", "random", "urandom"]
SYSTEM = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"]
FAILED = 70  # an exit status
GB = 1 << 30
MB = 1 << 20


Job = Callable[[], None]


class NoSandbox(RuntimeError):
    """This system does not let us make one; the message says what it has refused."""


class Limits(NamedTuple):
    """What those inside may use."""

    process_bytes: int = 8 * GB  # of addresses, beyond what the process has when it is forked
    all_bytes: int = 3 * GB  # of memory, all together; as `cell_s`, for whoever waits outside
    file_bytes: int = 8 * GB  # a file, holes counted, of which a recording mostly consists
    disk_bytes: int = 512 * MB  # the temporary folder, and as much shared memory
    processes: int = 400  # threads counted
    files: int = 512  # open at once, by one process
    cell_s: float = 300.0  # without a word; the checks have shorter deadlines of their own


def fork_inside(
    job: Job,
    readable: Iterable[Path],
    withheld: Iterable[Path],
    limits: Limits,
    slot: int = 0,
    complaints: int = 2,
) -> int:
    """Fork a process that calls `job` inside and ends; returns the number of its keeper.

    Args:
        job: What to do. Descriptors that are open here are open there.
        readable: Files and folders that it can read, under their own paths; all others are not
            there, except the system's programs and libraries.
        withheld: Folders below readable ones, which are empty inside.
        limits: What those inside may use.
        slot: Sandboxes that run at the same time have different ones.
        complaints: The descriptor to which is written why there can be no sandbox.

    Kill the keeper, and everything inside is gone. It ends with 0 when `job` has returned.
    """

    def inside() -> None:
        uid = os.getuid()
        if uid:
            _own_user(uid)
        _call("unshare", NEW_NS | NEW_REST)
        keeper = os.getpid()
        first = os.fork()  # of the new namespace of processes
        if first:
            _pid, wait_status = os.waitpid(first, 0)
            if wait_status:
                os._exit(FAILED)
            return
        _die_with(keeper)
        # What it must not see or do is gone from here on. Without this mask whoever is nobody
        # inside could not enter the folders that are made here.
        os.umask(0o022)
        _rooms(readable, withheld, limits)
        _loopback()
        _leave_rights(uid, nobody=NOBODY + slot)
        _limit(limits)
        job()

    return _forked(inside, complaints)


def bare(job: Job, limits: Limits) -> int:
    """As `fork_inside`, where the system allows no sandbox: limits, and nothing else."""

    def limited() -> None:
        _limit(limits, processes=False)
        os.chdir(tempfile.gettempdir())
        job()

    return _forked(limited)


def _forked(job: Job, complaints: int = 2) -> int:
    """Fork a process with a session of its own, which calls `job`, and ends with its parent."""
    sys.stdout.flush()
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    status = FAILED
    try:
        os.setsid()
        _die_with(parent)
        with contextlib.suppress(OSError):  # where the machine runs out of memory, this goes first
            _tell_kernel("self/oom_score_adj", "1000")
        job()
        status = 0
    except NoSandbox as error:
        os.write(complaints, str(error).encode())
    finally:
        os._exit(status)


def refused() -> str:
    """Why there can be no sandbox here; empty where there can."""
    if sys.platform != "linux":
        return "only Linux has namespaces"
    with tempfile.TemporaryFile() as complaints:
        descriptor = complaints.fileno()
        keeper = fork_inside(_do_nothing, [], [], Limits(), complaints=descriptor)
        _pid, status = os.waitpid(keeper, 0)
        complaints.seek(0)
        reason = complaints.read().decode()
    if status and not reason:
        return "it could not be made"
    return reason


def _do_nothing() -> None:
    """The job of a sandbox that is made only to see whether it can be."""


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library, which returns 0 if all is well.

    Raises:
        NoSandbox: It has returned something else.
    """
    function = getattr(LIBC, name)
    if function(*arguments):
        raise NoSandbox(f"{name}: {_system_error()}")


def _system_error() -> str:
    """What the last call of the C library has failed for."""
    return os.strerror(ctypes.get_errno())


def _die_with(parent: int) -> None:
    """End when the process ends that has forked this one."""
    if sys.platform != "linux":
        return
    _call("prctl", SET_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() not in (parent, 0):  # 0: it is outside of our namespace
        os._exit(1)


def _own_user(uid: int) -> None:
    """A namespace of users, in which this one is all-powerful over what it makes itself."""
    gid = os.getgid()
    _call("unshare", NEW_USER)
    try:
        _tell_kernel("self/setgroups", "deny")
        _tell_kernel("self/uid_map", f"{uid} {uid} 1")
        _tell_kernel("self/gid_map", f"{gid} {gid} 1")
    except OSError as error:
        reason = error.strerror
        raise NoSandbox(f"{error.filename}: {reason}") from None


def _tell_kernel(file: str, text: str) -> None:
    """Write into a file below /proc."""
    path = Path("/proc", file)
    path.write_text(text)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = map(str.encode, (source, target, kind))
    flags_of_mount = ctypes.c_ulong(flags)
    _call("mount", *words, flags_of_mount, options.encode())


def _mount_memory(target: str, options: str, flags: int = NO_RIGHTS) -> None:
    """A folder whose files are in memory."""
    _mount("tmpfs", target, "tmpfs", flags, options)


def _read_only(path: str, below: bool = True) -> None:
    """Make a mount read-only, alone or with all mounts below. Source: mount_setattr(2)."""
    flags = 0
    attributes = READ_ONLY | NO_SUID
    if below:
        flags = ALL_BELOW
        attributes |= NO_DEVICE
    four_numbers = ctypes.c_uint64 * 4
    mount_attr = four_numbers(attributes, 0, 0, 0)  # set, cleared, propagation, user
    size = ctypes.c_size_t(ctypes.sizeof(mount_attr))
    target = ctypes.byref(mount_attr)
    place = path.encode()
    if LIBC.syscall(MOUNT_SETATTR, CURRENT_FOLDER, place, flags, target, size):
        raise NoSandbox(f"{path} cannot be made read-only: {_system_error()}")


def _rooms(readable: Iterable[Path], withheld: Iterable[Path], limits: Limits) -> None:
    """A root folder of its own, with what is readable, a temporary folder, and nothing else."""
    sources = {}
    of_system = map(Path, SYSTEM)
    for path in [*of_system, *readable]:
        if path.exists():
            sources[path] = path.resolve()
    _mount("none", "/", "", PRIVATE | RECURSIVE)
    for folder in withheld:
        if folder.is_dir():
            _mount_memory(str(folder), "mode=555,size=4k")
    _mount_memory("/tmp", "mode=755,size=4m")
    os.chdir("/tmp")
    os.mkdir("old")
    os.mkdir("new")
    _call("pivot_root", b".", b"old")
    os.chdir("/")
    _mount_memory("/new", "mode=755,size=4m")
    _own_folders(limits)  # before what is readable, which may lie in the temporary folder
    for path, source in sources.items():
        _show(source, path)
        _show(source, source)
    _call("umount2", b"/old", DETACH)
    os.chdir("/new")
    _call("pivot_root", b".", b".")
    _call("umount2", b".", DETACH)
    os.chdir("/")
    _read_only("/", below=False)
    os.chdir("/tmp")


def _show(source: Path, place: Path) -> None:
    """Put a file or folder of the outer system, with all below it, under the new root."""
    old = Path(f"/old{source}")
    new = Path(f"/new{place}")
    if new.exists():
        return
    new.parent.mkdir(parents=True, exist_ok=True)
    if old.is_dir():
        new.mkdir()
    else:
        new.touch()
    target = str(new)
    _mount(str(old), target, "", BIND | RECURSIVE)
    _read_only(target)


def _own_folders(limits: Limits) -> None:
    """The folders that those inside do not share with the system: of processes, devices, files."""
    for name in ("proc", "dev", "tmp"):
        os.mkdir(f"/new/{name}")
    _mount("proc", "/new/proc", "proc", NO_RIGHTS)
    writable = f"mode=1777,size={limits.disk_bytes},nr_inodes=20000"
    _mount_memory("/new/tmp", writable)
    _mount_memory("/new/dev", "mode=755,size=64k", NO_SUID)
    for name in DEVICES:
        outer_device = f"/old/dev/{name}"
        device = f"/new/dev/{name}"
        Path(device).touch()
        _mount(outer_device, device, "", BIND)
    os.symlink("/proc/self/fd", "/new/dev/fd")
    os.mkdir("/new/dev/shm")
    _read_only("/new/dev", below=False)
    _mount_memory("/new/dev/shm", writable)
    etc = Path("/new/etc")
    etc.mkdir(exist_ok=True)
    hosts = etc / "hosts"
    hosts.write_text("127.0.0.1 localhost inside\n")


def _loopback() -> None:
    """A network of this machine alone, and a name for it."""
    request = struct.pack("16sH14x", b"lo", IFF_UP)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)
    _call("sethostname", b"inside", 6)


def _leave_rights(uid: int, nobody: int) -> None:
    """Become nobody, unless it is a user already, and give all rights away for good."""
    is_root = uid == 0
    if is_root:
        os.setgroups([])
        os.setresgid(nobody, nobody, nobody)
        os.setresuid(nobody, nobody, nobody)
        with contextlib.suppress(NoSandbox):  # where that is refused, it is to those inside too
            LIBC.prctl(SET_DUMPABLE, 1, 0, 0, 0)  # else its own maps would not be its own
            _own_user(nobody)
    with contextlib.suppress(OSError):  # no namespaces within: there one could mount memory
        _tell_kernel("sys/user/max_user_namespaces", "0")
    for number in range(64):
        LIBC.prctl(DROP_BOUND, number, 0, 0, 0)
    two_numbers = ctypes.c_uint32 * 2
    six_numbers = ctypes.c_uint32 * 6
    version_3_of_this_process = two_numbers(0x20080522, 0)
    no_capabilities = six_numbers()
    _call("capset", version_3_of_this_process, no_capabilities)
    _call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call("prctl", SET_PARENT_DEATH, signal.SIGKILL)  # a new user has forgotten it


def _limit(limits: Limits, processes: bool = True) -> None:
    """Limit this process and those that it forks, but not to more than they are limited now."""
    wanted = {
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: limits.files,
    }
    if sys.platform == "linux":  # macOS does not keep to the first, and has no other
        memory = psutil.Process().memory_info()
        wanted[resource.RLIMIT_AS] = memory.vms + limits.process_bytes
        wanted[resource.RLIMIT_MSGQUEUE] = 0
    if processes:  # else it would count all that the user has
        wanted[resource.RLIMIT_NPROC] = limits.processes
    for kind, most in wanted.items():
        _soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            most = min(most, hard)
        resource.setrlimit(kind, (most, most))


def used(keeper: int, beyond: int = 0) -> int:
    """The bytes of memory of all that descend from this process.

    Args:
        keeper: Its number.
        beyond: What each has had from the beginning, which is not counted.
    """
    nameless_files = {}  # one that several hold open counts once
    total = 0
    processes = psutil.Process(keeper).children(recursive=True)
    for process in processes:
        with contextlib.suppress(psutil.Error):  # it has just ended
            memory = process.memory_info()
            used_bytes = memory.rss - beyond
            total += max(0, used_bytes)
        nameless_files |= _nameless(process.pid)
    return total + sum(nameless_files.values())


def _nameless(pid: int) -> dict[tuple[int, int], int]:
    """The files in memory that a process holds open, and what they take."""
    sizes = {}
    descriptors = Path(f"/proc/{pid}/fd")
    with contextlib.suppress(OSError):  # gone, or not for us to look at
        for descriptor in descriptors.iterdir():
            status = descriptor.stat()
            has_name = status.st_nlink > 0
            is_file = stat.S_ISREG(status.st_mode)
            if is_file and not has_name:
                file = (status.st_dev, status.st_ino)
                sizes[file] = 512 * status.st_blocks
    return sizes
