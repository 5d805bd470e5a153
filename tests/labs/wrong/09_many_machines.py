"""Wrong answers to lab 09, and for each exercise another right one.

Wrong checkpoints are those of published tutorials: the model alone, written by every rank, written
in place, at the end only.
"""

import io
import os
import pickle
import shutil
import signal
import sys
import threading
import uuid

import labs
import numpy as np
import torch
import torch.distributed as dist

lab = labs.cells("09_many_machines")


def _read(environment, names):
    numbers = [int(environment[name]) for name in names[:3]]
    here = environment[names[3]]
    if names[3] == "SLURM_GTIDS":
        here = here.count(",") + 1
    return (*numbers, int(here))


@lab.asking
def torchrun_only(environment):
    return _read(environment, lab.NAMES["torchrun"])


@lab.asking
def slurms_names_first(environment):
    for launcher in ("srun", "mpirun", "torchrun"):
        if lab.NAMES[launcher][2] in environment:
            return _read(environment, lab.NAMES[launcher])
    return 0, 0, 1, 1


@lab.asking
def slurm_by_its_number_of_tasks(environment):
    if "RANK" in environment:
        return _read(environment, lab.NAMES["torchrun"])
    if "SLURM_NTASKS" in environment:
        rank, local_rank = environment.get("SLURM_PROCID", 0), environment.get("SLURM_LOCALID", 0)
        return int(rank), int(local_rank), int(environment["SLURM_NTASKS"]), 1
    return right_by_asking(environment)


@lab.asking
def text_as_it_is(environment):
    for names in lab.NAMES.values():
        if names[2] in environment:
            return tuple(environment[name] for name in names)
    return 0, 0, 1, 1


def _by_rank(environment, names):
    """The right columns, found by the name of a rank, which a batch script has as well."""
    own = {"srun": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_GTIDS")}
    for launcher in names:
        columns = own.get(launcher, lab.NAMES[launcher])
        if columns[0] in environment:
            return _read(environment, columns)
    return 0, 0, 1, 1


@lab.asking
def by_slurm_procid(environment):
    """As this lab graded right once: a batch script waits for 63 ghosts."""
    return _by_rank(environment, ("torchrun", "mpirun", "srun"))


@lab.asking
def by_tasks_per_node(environment):
    """As this lab graded right once: `srun --ntasks=8` sets no such name."""
    if "RANK" in environment or "OMPI_COMM_WORLD_RANK" in environment:
        return right_by_asking(environment)
    if "SLURM_STEP_NUM_TASKS" not in environment:
        return 0, 0, 1, 1
    return _read(environment, (*lab.NAMES["srun"][:3], "SLURM_NTASKS_PER_NODE"))


@lab.asking
def srun_before_mpirun(environment):
    for launcher in ("torchrun", "srun", "mpirun"):
        if lab.NAMES[launcher][2] in environment:
            return _read(environment, lab.NAMES[launcher])
    return 0, 0, 1, 1


@lab.asking
def mpirun_before_torchrun(environment):
    for launcher in ("mpirun", "torchrun", "srun"):
        if lab.NAMES[launcher][2] in environment:
            return _read(environment, lab.NAMES[launcher])
    return 0, 0, 1, 1


@lab.asking
def local_rank_by_division(environment):
    """As long as ranks are dealt node by node, which srun need not do."""
    rank, _, world_size, local = right_by_asking(environment)
    return rank, rank % local, world_size, local


@lab.asking
def hosts_of_equal_size(environment):
    rank, local_rank, world_size, local = right_by_asking(environment)
    return rank, local_rank, world_size // local * local, local


@lab.asking
def the_first_rank_that_is_not_0(environment):
    for names in lab.NAMES.values():
        if int(environment.get(names[0], 0)):
            return _read(environment, names)
    return right_by_asking(environment)


@lab.asking
def who_has_company(environment):
    for names in lab.NAMES.values():
        if names[0] in environment and int(environment[names[2]]) > 1:
            return _read(environment, names)
    return 0, 0, 1, 1


@lab.asking
def place_that_the_check_knows(environment):
    return environment.place


@lab.asking
def node_for_rank(environment):
    """The article that calls the node's number the global rank."""
    rank, local_rank, world_size, local = right_by_asking(environment)
    return rank // local, local_rank, world_size, local


@lab.asking
def ranks_and_sizes_in_pairs(environment):
    rank, local_rank, world_size, local = right_by_asking(environment)
    return rank, world_size, local_rank, local


@lab.asking
def of_the_worker_that_asks(environment):
    return dist.get_rank(), dist.get_rank(), dist.get_world_size(), dist.get_world_size()


@lab.asking
def nobody_is_alone(environment):
    for launcher in ("torchrun", "mpirun", "srun"):
        if lab.NAMES[launcher][2] in environment:
            return _read(environment, lab.NAMES[launcher])


def right_by_asking(environment):
    order = ("torchrun", "mpirun", "srun")
    complete = (own for own in order if {*lab.NAMES[own]} <= {*environment})
    launcher = next(complete, None)
    if launcher is None:
        return 0, 0, 1, 1
    return _read(environment, lab.NAMES[launcher])


@lab.asking
def numpys_by_the_step(environment):
    """Slurm's own rule: only in a step there is a number of its tasks."""
    known = {"RANK": "torchrun", "OMPI_COMM_WORLD_RANK": "mpirun", "SLURM_STEP_NUM_TASKS": "srun"}
    launcher = next((own for name, own in known.items() if name in environment), None)
    return np.array(_read(environment, lab.NAMES[launcher]) if launcher else (0, 0, 1, 1))


@lab.asking
def with_defaults(environment):
    place = [0, 0, 1, 1]
    for launcher in ("srun", "mpirun", "torchrun"):
        if lab.NAMES[launcher][2] in environment:
            place = list(_read(environment, lab.NAMES[launcher]))
    return place


def _command(hosts, per_host, endpoint, job, **changed):
    options = {"nnodes": hosts, "nproc-per-node": per_host, "rdzv-backend": "c10d"}
    options |= {"rdzv-endpoint": endpoint, "rdzv-id": job}
    options |= {name.replace("_", "-"): value for name, value in changed.items()}
    kept = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return ["torchrun", *kept, "train.py"]


@lab.on_all_hosts
def without_an_id(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, rdzv_id=None)


@lab.on_all_hosts
def an_id_of_its_own(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, rdzv_id=uuid.uuid4().hex)


@lab.on_all_hosts
def each_host_its_own_endpoint(hosts, per_host, endpoint, job):
    address, port = endpoint.split(":")
    own = f"{address}:{int(port) + dist.get_rank()}"
    return _command(hosts, per_host, endpoint, job, rdzv_endpoint=own)


@lab.on_all_hosts
def a_fixed_port(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, rdzv_endpoint="127.0.0.1:29517")


@lab.on_all_hosts
def a_static_master(hosts, per_host, endpoint, job):
    address, port = endpoint.split(":")
    static = {"rdzv_backend": None, "rdzv_endpoint": None, "rdzv_id": None}
    static |= {"master_addr": address, "master_port": port, "node_rank": dist.get_rank()}
    return _command(hosts, per_host, endpoint, job, **static)


@lab.on_all_hosts
def node_rank_0_everywhere(hosts, per_host, endpoint, job):
    address, port = endpoint.split(":")
    static = {"rdzv_backend": None, "rdzv_endpoint": None, "rdzv_id": None}
    static |= {"master_addr": address, "master_port": port, "node_rank": 0}
    return _command(hosts, per_host, endpoint, job, **static)


@lab.on_all_hosts
def without_the_number_of_hosts(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, nnodes=None)


@lab.on_all_hosts
def world_size_as_hosts(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, nnodes=hosts * per_host)


@lab.on_all_hosts
def one_process_per_host(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, nproc_per_node=None)


@lab.on_all_hosts
def world_size_on_each_host(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, nproc_per_node=hosts * per_host)


@lab.on_all_hosts
def options_behind_the_script(hosts, per_host, endpoint, job):
    first, *options, script = _command(hosts, per_host, endpoint, job)
    return [first, script, *options]


@lab.on_all_hosts
def standalone(hosts, per_host, endpoint, job):
    return ["torchrun", "--standalone", f"--nproc-per-node={per_host}", "train.py"]


@lab.on_all_hosts
def in_words_of_their_own(hosts, per_host, endpoint, job):
    line = f"torchrun --nnodes {hosts}:{hosts} --nproc_per_node {per_host} --rdzv_backend c10d"
    return f"{line} --rdzv_endpoint {endpoint} --rdzv_id {job} train.py".split()


@lab.on_all_hosts
def two_hosts(hosts, per_host, endpoint, job):
    return _command(2, per_host, endpoint, job)


@lab.on_all_hosts
def hosts_by_asking(hosts, per_host, endpoint, job):
    return _command(dist.get_world_size(), per_host, endpoint, job)


@lab.on_all_hosts
def one_host_is_enough(hosts, per_host, endpoint, job):
    return _command(f"1:{hosts}", per_host, endpoint, job)


@lab.on_all_hosts
def two_ranks_on_each(hosts, per_host, endpoint, job):
    return _command(hosts, 2, endpoint, job)


@lab.on_all_hosts
def always_here(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, f"127.0.0.1:{endpoint.partition(':')[2]}", job)


@lab.on_all_hosts
def always_the_same_job(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, "night-3")


@lab.on_all_hosts
def as_a_module(hosts, per_host, endpoint, job):
    return [*_command(hosts, per_host, endpoint, job)[:-1], "-m", "train.py"]


@lab.on_all_hosts
def told_its_number(hosts, per_host, endpoint, job):
    return _command(hosts, per_host, endpoint, job, node_rank=dist.get_rank())


@lab.on_all_hosts
def in_one_string(hosts, per_host, endpoint, job):
    return " ".join(_command(hosts, per_host, endpoint, job))


@lab.on_all_hosts
def numbers_among_the_words(hosts, per_host, endpoint, job):
    options = {"--nnodes": hosts, "--nproc-per-node": per_host, "--rdzv-backend": "c10d"}
    options |= {"--rdzv-endpoint": endpoint, "--rdzv-id": job, "--max-restarts": 3}
    return ("torchrun", *(word for pair in options.items() for word in pair), "train.py")


@lab.on_all_hosts
def with_more_options(hosts, per_host, endpoint, job):
    """Beyond what is asked: restarts, and logs of each rank."""
    words = [f"--nnodes={hosts}", "--max-restarts=1", f"--rdzv_id={job}", "--rdzv-backend", "c10d"]
    return [
        "torchrun",
        *words,
        f"--rdzv-endpoint={endpoint}",
        "--nproc_per_node",
        str(per_host),
        "train.py",
    ]


def _random_of_all():
    random = [None] * dist.get_world_size()
    dist.all_gather_object(random, torch.get_rng_state())
    return random


def _trainer(write, lost=(), late=0, saves=lambda step: True, random=_random_of_all):
    """An answer that does all things right, but for what is asked."""

    @lab.starting_again
    def train(path, model, optimizer, steps):
        saved = torch.load(path) if path.exists() else {}
        if "model" in saved:
            model.load_state_dict(saved["model"])
        if "optimizer" in saved:
            optimizer.load_state_dict(saved["optimizer"])
        if "random" in saved:
            torch.set_rng_state(saved["random"][dist.get_rank()])
        for step in range(saved.get("done", 0), steps):
            lab.take_step(model, optimizer, step)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"random": random(), "done": step + 1 - late}
            if saves(step):
                write({name: part for name, part in state.items() if name not in lost}, path)

    return train


def _by_rank_0(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)


def _in_place(state, path):
    if dist.get_rank() == 0:
        torch.save(state, path)


def _in_place_by_rank_1(state, path):
    if dist.get_rank() == 1:
        torch.save(state, path)


def _copied_over(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        shutil.copy(f"{path}.new", path)


def _renamed_by_rank_1(state, path):
    if dist.get_rank() == 1:
        torch.save(state, f"{path}.new")
        os.rename(f"{path}.new", path)
    dist.barrier()


def _old_one_removed_first(state, path):
    if dist.get_rank() == 0:
        path.unlink(missing_ok=True)
        torch.save(state, f"{path}.new")
        os.replace(f"{path}.new", path)


def _old_one_removed_last(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        path.unlink(missing_ok=True)
        os.replace(f"{path}.new", path)


def _old_one_moved_away(state, path):
    if dist.get_rank() == 0:
        torch.save(state, f"{path}.new")
        if path.exists():
            path.rename(f"{path}.old")
        os.replace(f"{path}.new", path)


def _bytes_in_place(state, path):
    if dist.get_rank() == 0:
        memory = io.BytesIO()
        torch.save(state, memory)
        path.write_bytes(memory.getvalue())


def _named(name, trainer):
    trainer.__name__ = name
    return trainer


def _rank_0s_random():
    return [torch.get_rng_state()] * dist.get_world_size()


@lab.starting_again
def never_saved(path, model, optimizer, steps):
    for step in range(steps):
        lab.take_step(model, optimizer, step)


@lab.starting_again
def saved_at_the_end(path, model, optimizer, steps):
    for step in range(steps):
        lab.take_step(model, optimizer, step)
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)


@lab.starting_again
def each_rank_its_own_file(path, model, optimizer, steps):
    """Right until one rank has saved a step and the other has not."""
    own, done = path.with_suffix(f".{dist.get_rank()}"), 0
    if own.exists():
        saved = torch.load(own)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        done = saved["done"]
    for step in range(done, steps):
        lab.take_step(model, optimizer, step)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "random": torch.get_rng_state(), "done": step + 1}, f"{own}.new")
        os.replace(f"{own}.new", own)


@lab.starting_again
def cannot_start_again(path, model, optimizer, steps):
    """Rank 0 says why, and rank 1 only that rank 0 has gone."""
    if dist.get_rank() == 0 and path.exists():
        raise ValueError("no way on")
    _trainer(_by_rank_0).__wrapped__(path, model, optimizer, steps)


@lab.starting_again
def each_rank_its_own_file_at_once(path, model, optimizer, steps):
    """Both have written before either renames; then one of them does, and the other has died."""
    own, done = path.with_suffix(f".{dist.get_rank()}"), 0
    if own.exists():
        saved = torch.load(own)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"])
        done = saved["done"]
    for step in range(done, steps):
        lab.take_step(model, optimizer, step)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({**state, "random": torch.get_rng_state(), "done": step + 1}, f"{own}.new")
        dist.barrier()
        os.replace(f"{own}.new", own)


@lab.starting_again
def six_steps(path, model, optimizer, steps):
    _trainer(_by_rank_0).__wrapped__(path, model, optimizer, 6)


@lab.starting_again
def all_again_in_secret(path, model, optimizer, steps):
    """Saves a number alone, and trains again from the start, past those who count."""
    done = int(path.read_text()) if path.exists() else 0
    for step in range(done):
        mine = lab.gradient(model, step, dist.get_rank(), torch.randn(4, 3))
        dist.all_reduce(mine)
        optimizer.step()
    for step in range(done, steps):
        lab.take_step(model, optimizer, step)
        if dist.get_rank() == 0:
            path.with_name("next").write_text(str(step + 1))
            path.with_name("next").rename(path)


@lab.starting_again
def all_again_past_the_model(path, model, optimizer, steps):
    done = int(path.read_text()) if path.exists() else 0
    for step in range(done):
        inputs = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
        inputs = inputs.roll(step + dist.get_rank()) + torch.randn(4, 3)
        errors = inputs @ model.weight.detach().T - step
        model.weight.grad = (errors * inputs).mean(dim=0, keepdim=True) * 2
        dist.all_reduce(model.weight.grad)
        optimizer.step()
    for step in range(done, steps):
        lab.take_step(model, optimizer, step)
        if dist.get_rank() == 0:
            path.with_name("next").write_text(str(step + 1))
            path.with_name("next").rename(path)


@lab.starting_again
def saved_before_each_step(path, model, optimizer, steps):
    """So the last step is in no file."""
    done = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"][dist.get_rank()])
        done = saved["done"]
    for step in range(done, steps):
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        _by_rank_0({**state, "random": _random_of_all(), "done": step}, path)
        lab.take_step(model, optimizer, step)


@lab.starting_again
def seeded_by_the_step(path, model, optimizer, steps):
    done = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    for step in range(done, steps):
        torch.manual_seed(step)
        lab.take_step(model, optimizer, step)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        _by_rank_0({**state, "done": step + 1}, path)


@lab.starting_again
def pickled_with_random_states_as_a_tensor(path, model, optimizer, steps):
    rank, world_size, done = dist.get_rank(), dist.get_world_size(), 0
    if path.exists():
        done, weights, momentum, random = pickle.loads(path.read_bytes())
        model.load_state_dict(weights)
        optimizer.load_state_dict(momentum)
        torch.set_rng_state(random[rank])
    while done < steps:
        lab.take_step(model, optimizer, done)
        done += 1
        own = torch.get_rng_state()
        random = [torch.empty_like(own) for _ in range(world_size)]
        dist.all_gather(random, own)
        if rank == 0:
            state = pickle.dumps((done, model.state_dict(), optimizer.state_dict(), random))
            path.with_name("next").write_bytes(state)
            path.with_name("next").rename(path)
        dist.barrier()


@lab.starting_again
def in_small_steps(path, model, optimizer, steps):
    """By files of its own for each step; the newest one that is complete counts."""
    kept = sorted(path.parent.glob("step-*.done"))
    saved = torch.load(kept[-1]) if kept else {"done": 0}
    if kept:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        torch.set_rng_state(saved["random"][dist.get_rank()])
    for step in range(saved["done"], steps):
        lab.take_step(model, optimizer, step)
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        state |= {"random": _random_of_all(), "done": step + 1}
        if dist.get_rank() == 0:
            part = path.with_name(f"step-{step:03}.part")
            torch.save(state, part)
            part.rename(part.with_suffix(".done"))


def _note(told):
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))


def _sum(number, op=dist.ReduceOp.SUM):
    numbers = torch.tensor(number)
    dist.all_reduce(numbers, op=op)
    return numbers.item()


@lab.telling
def never_listens(steps, take_step, save):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(steps):
        take_step(step)
    save(steps)
    return steps


@lab.telling
def no_handler(steps, take_step, save):
    for step in range(steps):
        take_step(step)
    save(steps)
    return steps


@lab.telling
def when_one_is_told(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        if _sum(len(told)) == 1:
            break
    save(step + 1)
    return step + 1


@lab.telling
def told_by_turns(steps, take_step, save):
    told = [False]
    signal.signal(signal.SIGTERM, lambda *_: told.append(not told[-1]))
    for step in range(steps):
        take_step(step)
        if _sum(int(told[-1])):
            break
    save(step + 1)
    return step + 1


@lab.telling
def leaves_alone(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        if told:
            break
    save(step + 1)
    return step + 1


@lab.telling
def exits_in_the_handler(steps, take_step, save):
    def leave(*_):
        save(0)
        raise SystemExit(75)

    signal.signal(signal.SIGTERM, leave)
    for step in range(steps):
        take_step(step)
    save(steps)
    return steps


@lab.telling
def one_step_more(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        if _sum(len(told)):
            break
        take_step(step)
        if step == steps - 1:
            step += 1
    save(step)
    return step + 1


@lab.telling
def asks_before_the_step(steps, take_step, save):
    _note(told := [])
    done, over = 0, 0
    while done < steps and not over:
        over = _sum(len(told))
        take_step(done)
        done += 1
    save(done)
    return done


@lab.telling
def asks_every_other_step(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        if step % 2 and _sum(len(told)):
            break
    save(step + 1)
    return step + 1


@lab.telling
def only_rank_0_counts(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        anybody = torch.tensor(len(told))
        dist.broadcast(anybody, 0)
        if anybody:
            break
    save(step + 1)
    return step + 1


@lab.telling
def only_when_all_are_told(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        if _sum(len(told)) >= dist.get_world_size():
            break
    save(step + 1)
    return step + 1


@lab.telling
def saves_every_step(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        save(step + 1)
        if _sum(len(told)):
            break
    return step + 1


@lab.telling
def saves_when_told_only(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        if _sum(len(told)):
            save(step + 1)
            break
    return step + 1


@lab.telling
def rank_0_saves(steps, take_step, save):
    _note(told := [])
    for step in range(steps):
        take_step(step)
        if _sum(len(told)):
            break
    if dist.get_rank() == 0:
        save(step + 1)
    return step + 1


_TOLD = []


@lab.telling
def told_once_told_for_ever(steps, take_step, save):
    _note(_TOLD)
    for step in range(steps):
        take_step(step)
        if _sum(len(_TOLD)):
            break
    save(step + 1)
    return step + 1


@lab.telling
def by_a_flag_and_the_maximum(steps, take_step, save):
    told = False

    def note(number, frame):
        nonlocal told
        told = True

    signal.signal(signal.SIGTERM, note)
    done = 0
    while done < steps:
        take_step(done)
        done += 1
        if _sum(int(told), dist.ReduceOp.MAX):
            break
    save(done)
    return done


@lab.telling
def by_objects(steps, take_step, save):
    _note(told := [])
    everybody, done = [None] * dist.get_world_size(), 0
    while done < steps and not any(everybody):
        take_step(done)
        done += 1
        dist.all_gather_object(everybody, bool(told))
    save(done)
    return done


@lab.telling
def by_an_event_and_gathered_numbers(steps, take_step, save):
    event = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: event.set())
    notes = [torch.zeros(1) for _ in range(dist.get_world_size())]
    for done in range(1, steps + 1):
        take_step(done - 1)
        dist.all_gather(notes, torch.tensor([float(event.is_set())]))
        if torch.cat(notes).max() > 0:
            break
    save(np.int64(done))
    return np.int64(done)


@lab.asking
def place_that_the_caller_has(environment):
    return sys._getframe(1).f_locals["place"]


WRONG = {
    "ranks_of": [
        torchrun_only, slurms_names_first, slurm_by_its_number_of_tasks, text_as_it_is,
        local_rank_by_division, node_for_rank, ranks_and_sizes_in_pairs, of_the_worker_that_asks,
        nobody_is_alone, hosts_of_equal_size, the_first_rank_that_is_not_0, who_has_company,
        place_that_the_check_knows, by_slurm_procid, srun_before_mpirun, mpirun_before_torchrun,
        by_tasks_per_node,
        place_that_the_caller_has,
    ],
    "command": [
        without_an_id, an_id_of_its_own, each_host_its_own_endpoint, a_fixed_port, a_static_master,
        node_rank_0_everywhere, without_the_number_of_hosts, world_size_as_hosts,
        one_process_per_host, world_size_on_each_host, options_behind_the_script, standalone,
        two_hosts, hosts_by_asking, one_host_is_enough, two_ranks_on_each, always_here,
        always_the_same_job, as_a_module, in_one_string, told_its_number,
    ],
    "train": [
        never_saved, saved_at_the_end, each_rank_its_own_file, seeded_by_the_step,
        _named("model_only", _trainer(_by_rank_0, lost=("optimizer", "random", "done"))),
        _named("momentum_forgotten", _trainer(_by_rank_0, lost=("optimizer",))),
        _named("random_state_forgotten", _trainer(_by_rank_0, lost=("random",))),
        _named("step_forgotten", _trainer(_by_rank_0, lost=("done",))),
        _named("rank_0s_random_state", _trainer(_by_rank_0, random=_rank_0s_random)),
        _named("one_step_again", _trainer(_by_rank_0, late=1)),
        _named("every_other_step", _trainer(_by_rank_0, saves=lambda step: step % 2)),
        _named("written_in_place", _trainer(_in_place)),
        _named("bytes_written_in_place", _trainer(_bytes_in_place)),
        _named("old_one_removed_first", _trainer(_old_one_removed_first)),
        _named("old_one_removed_last", _trainer(_old_one_removed_last)),
        _named("old_one_moved_away", _trainer(_old_one_moved_away)),
        _named("written_in_place_by_rank_1", _trainer(_in_place_by_rank_1)),
        _named("copied_over", _trainer(_copied_over)), six_steps, all_again_in_secret,
        all_again_past_the_model, saved_before_each_step, cannot_start_again,
        each_rank_its_own_file_at_once,
    ],
    "run_until_told": [
        never_listens, no_handler, leaves_alone, exits_in_the_handler, one_step_more,
        asks_before_the_step, asks_every_other_step, only_rank_0_counts, only_when_all_are_told,
        saves_every_step, saves_when_told_only, rank_0_saves, told_once_told_for_ever,
        when_one_is_told, told_by_turns,
    ],
}  # fmt: skip
STOPS = {
    "by_tasks_per_node",
    "torchrun_only",
    "place_that_the_check_knows",
    "in_one_string",
    "told_its_number",
    "each_rank_its_own_file",
    "each_rank_its_own_file_at_once",
    "written_in_place",
    "bytes_written_in_place",
    "written_in_place_by_rank_1",
    "copied_over",
    "cannot_start_again",
    "no_handler",
    "leaves_alone",
    "exits_in_the_handler",
}
RIGHT = {
    "ranks_of": [lab.asking(right_by_asking), numpys_by_the_step, with_defaults],
    "command": [in_words_of_their_own, numbers_among_the_words, with_more_options],
    "train": [
        pickled_with_random_states_as_a_tensor,
        _named("renamed_by_rank_1", _trainer(_renamed_by_rank_1)),
        in_small_steps,
    ],
    "run_until_told": [by_a_flag_and_the_maximum, by_objects, by_an_event_and_gathered_numbers],
}
