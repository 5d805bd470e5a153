"""Before a fork: imports are done."""

FOUR_AT_ONCE = """
import threading
import torch.distributed as dist
from course_utils import launch

def build():
    from torch.nn import Linear
    from torch.nn.parallel import DistributedDataParallel
    DistributedDataParallel(Linear(1, 1))
    return dist.get_rank()

def first():
    print(list(launch(build, backend="gloo", timeout=30)), flush=True)

threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_first_launches_from_several_threads_do_not_fork_amid_an_import(script):
    printed = script(FOUR_AT_ONCE).stdout.read()
    assert printed.count("[0, 1]") == 4, printed
