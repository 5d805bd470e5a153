"""A real Slurm on two nodes of this machine, from Debian's packages; elsewhere what it once said.

    apt install slurmctld slurmd slurm-client munge      as root; or unpacked somewhere, on PATH

Its nodes are the hosts of `two_hosts`, so nothing of it outlives them, and `nodes[1].cut_power()`
is a node that dies. Source: slurm.conf(5).
"""

import contextlib
import functools
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from course_cluster.hosts import Hosts, two_hosts
from course_utils.launcher.deadlines import Deadline

RECORDED = Path(__file__).with_suffix(".json")  # what jobs wrote, by the name of their script
SBIN = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
PATIENCE_S = 30.0  # until a Slurm has to be up
LONGEST = 80  # of a folder's path; that of a socket, such as node1/node1_1.4294967291, has 107
MUNGE = ("key", "pid", "seed", "log")
CONF = """
ClusterName=course
SlurmctldHost={host}({addresses[0]})
SlurmUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdTimeout=5
ReturnToService=2
KillWait=1
TaskProlog={folder}/prolog
NodeName=node1 NodeHostname={host} NodeAddr={addresses[0]} CPUs=8
NodeName=node2 NodeHostname={host} NodeAddr={addresses[1]} CPUs=8
PartitionName=all Nodes=ALL Default=YES
{plugins}
"""
# Slurm runs it before each task, and sets what it prints. Torchrun takes options from variables
# that begin with PET_: real nodes know these two by their names, and ours share a name.
PROLOG = """#!/bin/sh
echo export PET_LOCAL_ADDR=$SLURMD_NODENAME
echo export PET_RDZV_CONF=is_host=$((1 - SLURM_NODEID))
"""


def program(name: str) -> str:
    """Where a daemon is; Debian calls it slurmd-wlm until it is installed.

    Raises:
        RuntimeError: It is not here.
    """
    for installed in (name, f"{name}-wlm"):
        path = shutil.which(installed, path=SBIN)
        if path is not None:
            return path
    raise RuntimeError(f"no {name} here")


_say_once = functools.cache(print)


class Job:
    """A batch script that was handed over; `log` is what it has written up to now."""

    def __init__(self, number: str, path: Path, why: Callable[[], str] = str) -> None:
        self.number = number
        self._path = path
        self._why = why

    @property
    def log(self) -> str:
        """What the script and its tasks have written."""
        if not self._path.exists():
            return ""
        return self._path.read_text()

    def wait_for(self, text: str, timeout_s: float = 120.0) -> str:
        """Return the log once it contains `text`.

        Raises:
            TimeoutError: It took longer than `timeout_s`, or as many times longer as this machine
                is slow.
        """
        deadline = Deadline(timeout_s)
        while text not in self.log:
            if deadline.is_over():
                problem = f"no {text!r} after {timeout_s:g} s"
                why = self._why()
                raise TimeoutError(f"{problem}:\n{self.log}\n{why}")
            time.sleep(0.05)
        return self.log


class Recording:
    """Where there is no Slurm: commands do nothing, and a job's log is that of a real one."""

    def __init__(self, nodes: Hosts) -> None:
        self.nodes = nodes

    def run(self, command: str) -> str:
        """Do nothing."""
        return ""

    def submit(self, script: str) -> Job:
        """Take the job as done, with the log that it had under a real Slurm."""
        log = self._log_of(script)
        recorded = json.loads(RECORDED.read_text())
        log.write_text(recorded[script])
        return Job("1", log)

    def _log_of(self, script: str) -> Path:
        """Where a batch script and its tasks write."""
        first = self.nodes[0]
        return first.disk / f"{script}.log"


class Slurm(Recording):
    """Commands go to a real Slurm; `nodes` are its two nodes."""

    def __init__(self, nodes: Hosts, folder: str) -> None:
        super().__init__(nodes)
        if nodes.form != "namespaces":
            raise RuntimeError("it needs hosts that are namespaces")
        if len(folder) > LONGEST:
            raise RuntimeError("its sockets need a shorter TMPDIR")
        control, daemon, munged = map(program, ("slurmctld", "slurmd", "munged"))
        installed = Path(control).parents[1]
        plugins = next(installed.glob("lib/*/slurm-wlm"), None)
        programs = [Path(sys.executable).parent, os.environ["PATH"]]
        programs += [Path(control).parent, installed / "bin"]
        self._env = {
            "PATH": os.pathsep.join(map(str, programs)),
            "SLURM_CONF": f"{folder}/slurm.conf",
        }
        line_with_plugins = ""
        if plugins:
            self._env["LD_LIBRARY_PATH"] = f"{plugins}{os.pathsep}{plugins.parent}"
            line_with_plugins = f"PluginDir={plugins}"
        self._configure(folder, line_with_plugins)
        munge = f"{munged} --foreground --force --socket={folder}/munge.socket"
        for name in MUNGE:
            munge += f" --{name}-file={folder}/munge.{name}"
        first = nodes[0]
        first.start(munge, self._env)
        first.start(f"{control} -D", self._env)
        stepd = daemon.replace("slurmd", "slurmstepd")
        for number, node in enumerate(nodes, 1):
            node.run(f"mount --bind {folder}/hosts /etc/hosts")
            node.start(f"{daemon} -D -N node{number} -d {stepd}", self._env)
        self._wait_until_idle()

    def _configure(self, folder: str, plugins: str) -> None:
        addresses = [node.address for node in self.nodes]
        host = socket.gethostname()
        settings = CONF.format(addresses=addresses, folder=folder, host=host, plugins=plugins)
        Path(folder, "slurm.conf").write_text(settings)
        prolog = Path(folder, "prolog")
        prolog.write_text(PROLOG)
        prolog.chmod(0o755)
        hosts = "127.0.0.1 localhost\n"
        for number, address in enumerate(addresses, 1):
            hosts += f"{address} node{number}\n"
        Path(folder, "hosts").write_text(hosts)
        key = Path(folder, "munge.key")
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))

    def _wait_until_idle(self) -> None:
        deadline = Deadline(PATIENCE_S)
        while True:
            with contextlib.suppress(RuntimeError):
                if self.run("sinfo --noheader --format=%T:%D").strip() == "idle:2":
                    return
            if deadline.is_over():
                raise RuntimeError(f"its nodes are not idle after {PATIENCE_S:g} s")
            time.sleep(0.05)

    def run(self, command: str) -> str:
        """Run a command on the first node and return its output; raises as `Host.run` does."""
        return self.nodes[0].run(command, self._env)

    def submit(self, script: str) -> Job:
        """Hand a batch script over by `sbatch`."""
        log = self._log_of(script)
        log.unlink(missing_ok=True)
        printed = self.run(f"sbatch --parsable --output={log.name} {script}")
        number = printed.strip()
        return Job(number, log, self._queue)

    def _queue(self) -> str:
        """What waits and why, and how the nodes are."""
        jobs = self.run("squeue --noheader --format=%i:%T:%r")
        nodes = self.run("sinfo --noheader -N --format=%N:%T:%E")
        return jobs + nodes


@contextlib.contextmanager
def two_nodes(disk: str | Path = ".") -> Iterator[Recording]:
    """Give a Slurm of two nodes that share a disk, or its recording; a line says which.

    Args:
        disk: Where batch scripts are, and where jobs work and write their logs.
    """
    with TemporaryDirectory(prefix="slurm-") as folder, two_hosts(disk) as nodes:
        try:
            slurm: Recording = Slurm(nodes, folder)
            version = slurm.run("sinfo --version").strip()
            _say_once(f"slurm: two nodes of a real one, {version}")
        except RuntimeError as error:
            slurm = Recording(nodes)
            reason, *_further_lines = str(error).splitlines()
            _say_once(f"slurm: a recording ({reason})")
        yield slurm
