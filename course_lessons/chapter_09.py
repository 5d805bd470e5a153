"""What chapter 09 judges with: how often to save; and helpers of its scripts."""

import math
import os
import shutil
from typing import Any

import torch
import torch.distributed as dist

CASES = (
    "a save of 1 minute, a machine that fails once in 50 days, 100 machines",
    "the same, and a save of 4 minutes",
    "the same, and 400 machines",
    "one machine",
)
_FIGURES = ((60.0, 1200.0, 100), (240.0, 1200.0, 100), (60.0, 1200.0, 400), (30.0, 5000.0, 1))


def interval_inputs(rank: int, world_size: int, case: str) -> tuple[float, float, int]:
    """Return seconds for a save, hours between failures of one machine, number of machines."""
    return _FIGURES[CASES.index(case)]


def interval_spec(save_s: list, machine_mtbf_h: list, machines: list) -> list[float]:
    """Return the interval in seconds after Young (1974): the root of 2 x cost x time to failure."""
    intervals = []
    for cost_s, mtbf_h, number in zip(save_s, machine_mtbf_h, machines, strict=True):
        job_mtbf_s = mtbf_h * 3600 / number
        intervals.append(math.sqrt(2 * cost_s * job_mtbf_s))
    return intervals


INTERVAL = {
    "spec": interval_spec,
    "inputs": interval_inputs,
    "cases": CASES,
    "world_sizes": (1,),
    "rtol": 1e-3,
}


def expected_goodput(interval: float, save: float, mtbf: float, restart: float) -> float:
    """Return the share of useful time, if failures come at random, by Daly's complete formula.

    Args:
        interval: Work between two saves; all four are in the same unit of time.
        save: What a save costs.
        mtbf: Mean time between two failures of the job.
        restart: From a failure until the job works again.
    """
    needed = mtbf * math.exp(restart / mtbf) * (math.exp((interval + save) / mtbf) - 1)
    return interval / needed


# The chapter writes these three into scripts as they stand, so they need what scripts import.
def resumed(checkpoint, model, optimizer):
    """Return the epoch to begin with; what was saved is in model and optimizer then."""
    if not os.path.exists(checkpoint):
        return 0
    epoch, of_model, of_optimizer = torch.load(checkpoint)
    model.load_state_dict(of_model)
    optimizer.load_state_dict(of_optimizer)
    return epoch


def save(checkpoint, *state):
    """Let rank 0 write a checkpoint next to the old one and rename it."""
    if dist.get_rank() == 0:
        torch.save(state, f"{checkpoint}.part")
        os.rename(f"{checkpoint}.part", checkpoint)  # whole or not there, whoever is killed


def note(file, step, loss):
    """Let rank 0 note the mean of all ranks' losses."""
    mean = loss / dist.get_world_size()
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        with open(file, "a") as losses:
            losses.write(f"{step} {mean.item()}\n")


def listening(hosts: Any) -> str:
    """List who listens on the first host, with address and port as in the chapter's text.

    Args:
        hosts: As `course_cluster.two_hosts` gives them.
    """
    if not shutil.which("ss"):
        return "(no ss here)"
    lines = hosts[0].run("ss -Hltn").replace("0.0.0.0:", "*:").splitlines()
    sockets = [line.split()[3].replace(hosts[0].address, "ADDRESS") for line in lines]
    for number in range(2):
        name = str(23456 + number)
        sockets = [s.replace(f":{hosts.port + number}", f":{name} ") for s in sockets]
    return "\n".join(sorted(f"listening on {s}" for s in sockets if s.endswith(" ")))
