"""The census itself: does it see what a launch could leave behind?"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
from census import beyond, census

from course_utils.launcher import transport


def leak_a_process(stack):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    stack.append(lambda: (child.kill(), child.wait()))


def leak_an_orphan(stack):
    reads, writes = os.pipe()
    if (middle := os.fork()) == 0:
        if (orphan := os.fork()) == 0:
            time.sleep(60)
        os.write(writes, str(orphan).encode())
        os._exit(0)
    os.waitpid(middle, 0)
    orphan = int(os.read(reads, 20))
    os.close(reads)
    os.close(writes)
    stack.append(lambda: os.kill(orphan, 9))


def leak_a_zombie(stack):
    if (child := os.fork()) == 0:
        os._exit(0)
    stack.append(lambda: os.waitpid(child, 0))


def leak_a_thread(stack):
    end = threading.Event()
    threading.Thread(target=end.wait, name="leaked").start()
    stack.append(end.set)


def leak_a_socket(stack):
    stack.append(socket.socket().close)


def leak_a_mapping(stack):
    file = transport.anonymous_file("leaked")
    os.ftruncate(file, 4096)
    kept = [transport.receive_buffer(file)]
    stack.append(kept.clear)


def leak_a_segment(stack):
    kept = [torch.ones(1000).share_memory_()]
    stack.append(kept.clear)


def leak_a_file(stack):
    file, path = tempfile.mkstemp()
    stack += [lambda: os.close(file), lambda: os.remove(path)]


def leak_a_variable(stack):
    os.environ["LEAKED"] = "1"
    stack.append(lambda: os.environ.pop("LEAKED"))


@pytest.mark.skipif(sys.platform != "linux", reason="the census is complete on Linux only")
@pytest.mark.parametrize(
    ("leak", "kind"),
    [
        (leak_a_process, "processes"),
        (leak_an_orphan, "processes"),
        (leak_a_zombie, "processes"),
        (leak_a_thread, "threads"),
        (leak_a_socket, "descriptors"),
        (leak_a_mapping, "mapped files"),
        (leak_a_segment, "mapped files"),
        (leak_a_file, "temporary files"),
        (leak_a_variable, "environment"),
    ],
)
def test_the_census_sees(leak, kind, nothing_left):
    before, undo = census(nothing_left), []
    leak(undo)
    seen = beyond(before, census(nothing_left))
    for step in undo:
        step()
    assert kind in seen
