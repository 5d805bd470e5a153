"""Submissions that want points without the work, and a lab of one exercise for each of them.

Every exercise wants the sum over all ranks, by messages only. All cheats are handed in together, so
that each has the others' help.
"""

from nbformat import NotebookNode

HEAD = """\
# %%
import torch
import torch.distributed as dist

from course_utils import check
from course_checks.cases import CASES


# %%
def total_spec(tensors):
    return [sum(tensors)] * len(tensors)


def total_inputs(rank, world_size, case):
    return case.tensor()

"""
EXERCISE = """
# %%
def NAME(tensor):
    ### BEGIN SOLUTION
    rank, world_size, other = dist.get_rank(), dist.get_world_size(), torch.empty_like(tensor)
    for source in range(1, world_size) if rank == 0 else ():
        dist.recv(other, source)
        tensor += other
    if rank > 0:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
    for target in range(1, world_size) if rank == 0 else ():
        dist.send(tensor, target)
    return tensor
    ### END SOLUTION


# %% tags=["points-2"]
options = {"cases": CASES[1:2], "world_sizes": (2,), "forbid": ("collectives",)}
check(NAME, spec=total_spec, inputs=total_inputs, **options)
"""
PASSED = "✓ passed: {} (2 ranks)"
CHEATS = {
    "edits_the_check": "",
    "deletes_the_check": "",
    "prints_the_pass_line": """
def prints_the_pass_line(tensor):
    print("✓ passed: prints_the_pass_line (2 ranks)")
print("✓ passed: prints_the_pass_line (2 ranks)")
""",
    "returns_a_constant": "def returns_a_constant(tensor): return torch.ones(5)",
    "returns_what_it_got": """
total_spec = lambda tensors: tensors
def returns_what_it_got(tensor): return tensor
""",
    "patches_the_course": """
import sys
import course_utils
from course_checks.outcome import Outcome
for module in ("check", "verdict"):
    sys.modules["course_checks." + module].judge = lambda *args: None
Outcome.__bool__, Outcome.require = (lambda self: True), (lambda self: self)
course_utils.check = check = lambda fn, **options: Outcome(fn.__name__, "passed")
def patches_the_course(tensor): return tensor
""",
    "patches_the_kernel": """
get_ipython().showtraceback = lambda *args, **options: None
get_ipython().set_custom_exc((BaseException,), lambda *args, **options: None)
get_ipython().events.register("pre_run_cell", lambda info: sys.exit())
def patches_the_kernel(tensor): return tensor
raise SystemExit
""",
    "knows_the_seeds": """
from course_checks.cases import draw, public_seed
def knows_the_seeds(tensor):
    n = dist.get_world_size()
    return sum(draw(total_inputs, r, n, CASES[1], public_seed(r, n, 0))[0] for r in range(n))
""",
    "reads_the_frames": """
import sys
def reads_the_frames(tensor):
    frame = sys._getframe()
    while frame := frame.f_back:
        own = frame.f_locals
        for name in ("wanted", "expected"):
            if name in own: return own[name][dist.get_rank()]
        if "arguments" in own and "number" in own:  # all that this rank is ever given
            return sum(torch.stack([mine[0] for mine in own["arguments"]]))
    return tensor
""",
    "calls_it_by_another_name": """
add_up = getattr(dist, "all" + "_reduce")
def calls_it_by_another_name(tensor):
    add_up(tensor)
    return tensor
""",
    "calls_what_is_beneath": """
def calls_what_is_beneath(tensor):
    dist.distributed_c10d._get_default_group().allreduce([tensor]).wait()
    return tensor
""",
    "brings_code": """
class Brought:
    def __reduce__(self):
        return exec, ("import course_checks.verdict as v; v.difference = lambda *a: None",)
def brings_code(tensor): return Brought()
""",
    "brings_code_in_the_recording": """
import gc
class Recorded:
    def __reduce__(self):
        return exec, ("import course_checks.verdict as v; v.difference = lambda *a: None",)
def brings_code_in_the_recording(tensor):
    for found in gc.get_objects():
        if type(found).__name__ == "Recorder":
            found.writer._describe({"anything": Recorded()})
    dist.all_reduce(tensor)
    return tensor
""",
    "changes_a_class": """
import course_utils.launcher.transport
def changes_a_class(tensor):
    # as text, for pickle: setattr(Outcome, "__bool__", set), after which no outcome is wrong
    text = b"ccourse_checks.outcome\\nOutcome\\n(N(dV__bool__\\ncbuiltins\\nset\\nstb."
    course_utils.launcher.transport.pack = lambda value, *inside: text
    return tensor
""",
    "equals_everything": """
import numpy
class Equal(numpy.ndarray):
    def __eq__(self, other): return True
def equals_everything(tensor): return tensor.numpy().view(Equal)
""",
    "reads_the_teachers_text": """
import gc
def reads_the_teachers_text(tensor):
    here, found = "def reads_the_teachers_text", []
    for one in gc.get_objects():
        texts = one.values() if type(one) is dict else one if type(one) in (list, tuple) else ()
        found += [t for t in texts if type(t) is str and here in t and "dist." + "recv(other" in t]
    if not found: return tensor
    own = {"dist": dist, "torch": torch}
    exec(found[0][found[0].rindex(here):].rpartition("'")[0].replace("\\\\n", "\\n"), own)
    return own["reads_the_teachers_text"](tensor)
""",
    "knows_two_ranks_only": """
def knows_two_ranks_only(tensor):
    rank, other = dist.get_rank(), torch.zeros_like(tensor)
    if rank < 2 <= dist.get_world_size():
        waiting = dist.isend(tensor, 1 - rank)
        dist.recv(other, 1 - rank)
        waiting.wait()
    return tensor + other
""",
}
LAB = HEAD + "".join(EXERCISE.replace("NAME", name) for name in CHEATS)
LAB = '"points-2", "hidden-3"'.join(LAB.rsplit('"points-2"', 1))  # the last is for two ranks only
KILLER = """
import os, signal
def place_of(processes):
    os.kill(os.getppid(), signal.SIGKILL)
"""


def edit(notebook: NotebookNode) -> None:
    """Do to a hand-out what a cheat does outside of the answers' cells."""
    by_name = {cell.metadata.get("nbgrader", {}).get("grade_id"): cell for cell in notebook.cells}
    by_name["check-edits_the_check"].source = f"print({PASSED.format('edits_the_check')!r})"
    notebook.cells.remove(by_name["check-deletes_the_check"])
    first = type(by_name["check-edits_the_check"])(by_name["check-edits_the_check"])
    first.source, first.id = CHEATS["patches_the_course"] + CHEATS["patches_the_kernel"], "first"
    first.metadata = {}
    notebook.cells.insert(0, first)
