"""Wrong answers to lab 09, and for each exercise another right one.

Wrong checkpoints are those of published tutorials: the model alone, written by every rank, written
in place, at the end only. "As the article prints it" is the mean of one rank's sampler.
"""

import io
import os
import pickle
import shutil
import uuid

import labs
import numpy as np
import torch
import torch.distributed as dist

lab = labs.cells("09_many_machines")


def _read(environment, names):
    return tuple(int(environment[name]) for name in names)


@lab.asking
def torchrun_only(environment):
    return _read(environment, lab.NAMES["torchrun"])


@lab.asking
def slurms_names_first(environment):
    for launcher in ("srun", "mpirun", "torchrun"):
        if lab.NAMES[launcher][0] in environment:
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
        if names[0] in environment:
            return tuple(environment[name] for name in names)
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
    for names in lab.NAMES.values():
        if names[0] in environment:
            return _read(environment, names)


def right_by_asking(environment):
    defaults = 0, 0, 1, 1
    launcher = next((name for name, own in lab.NAMES.items() if own[0] in environment), None)
    if launcher is None:
        return defaults
    return tuple(int(environment[name]) for name in lab.NAMES[launcher])


@lab.asking
def numpys_by_the_step(environment):
    """Slurm's own rule: only in a step there is a number of its tasks."""
    known = {"RANK": "torchrun", "SLURM_STEP_NUM_TASKS": "srun", "OMPI_COMM_WORLD_RANK": "mpirun"}
    launcher = next((own for name, own in known.items() if name in environment), None)
    return np.array(_read(environment, lab.NAMES[launcher]) if launcher else (0, 0, 1, 1))


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
def in_one_string(hosts, per_host, endpoint, job):
    return " ".join(_command(hosts, per_host, endpoint, job))


@lab.on_all_hosts
def numbers_among_the_words(hosts, per_host, endpoint, job):
    options = {"--nnodes": hosts, "--nproc-per-node": per_host, "--rdzv-backend": "c10d"}
    options |= {"--rdzv-endpoint": endpoint, "--rdzv-id": job, "--max-restarts": 3}
    return ("torchrun", *(word for pair in options.items() for word in pair), "train.py")


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


def _total(losses, sizes):
    return sum(loss * size for loss, size in zip(losses, sizes, strict=True))


def as_the_article_prints_it(losses, sizes):
    return _total(losses, sizes) / max(sum(sizes), 1)


def _added(*numbers):
    sums = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def mean_of_the_hosts_means(losses, sizes):
    (total,) = _added(as_the_article_prints_it(losses, sizes))
    return total / dist.get_world_size()


def mean_of_the_batches(losses, sizes):
    total, count = _added(sum(losses), len(losses))
    return total / count


def sizes_forgotten(losses, sizes):
    total, count = _added(sum(losses), sum(sizes))
    return total / count


def by_the_first_batchs_size(losses, sizes):
    total, count = _added(sum(losses) * 4, 4 * len(losses))
    return total / count


def by_its_own_count(losses, sizes):
    (total,) = _added(_total(losses, sizes))
    return total / (sum(sizes) * dist.get_world_size() or 1)


def on_rank_0_only(losses, sizes):
    sums = torch.tensor([_total(losses, sizes), sum(sizes)]).double()
    dist.reduce(sums, 0)
    return (sums[0] / sums[1]).item()


def averaged_with_avg(losses, sizes):
    mean = torch.tensor(as_the_article_prints_it(losses, sizes), dtype=torch.float64)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    return mean.item()


def in_single_precision(losses, sizes):
    sums = torch.tensor([_total(losses, sizes), sum(sizes)])
    dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def one_number_after_the_other(losses, sizes):
    return _added(_total(losses, sizes))[0] / _added(sum(sizes))[0]


def by_the_store(losses, sizes):
    store, world_size = dist.distributed_c10d._get_default_store(), dist.get_world_size()
    store.set(str(dist.get_rank()), f"{_total(losses, sizes)} {sum(sizes)}")
    own = [map(float, store.get(str(rank)).split()) for rank in range(world_size)]
    total, count = map(sum, zip(*own, strict=True))
    return total / count


def added_by_numpy_between_barriers(losses, sizes):
    dist.barrier()
    sums = torch.from_numpy(np.array([np.dot(losses, sizes), np.sum(sizes)], dtype=np.float64))
    dist.all_reduce(sums, async_op=True).get_future().wait()
    dist.barrier()
    return np.float64(sums[0].item()) / sums[1].item()


def all_losses_sent(losses, sizes):
    pairs = [None] * dist.get_world_size()
    dist.all_gather_object(pairs, list(zip(losses, sizes, strict=True)))
    flat = [pair for own in pairs for pair in own]
    return sum(loss * size for loss, size in flat) / sum(size for _, size in flat)


def as_a_product_of_vectors(losses, sizes):
    own = torch.tensor([losses, sizes], dtype=torch.float64)
    sums = torch.stack([own[0] @ own[1], own[1].sum()])
    dist.all_reduce(sums)
    total, count = sums.tolist()
    return total / count


WRONG = {
    "ranks_of": [
        torchrun_only, slurms_names_first, slurm_by_its_number_of_tasks, text_as_it_is,
        local_rank_by_division, node_for_rank, ranks_and_sizes_in_pairs, of_the_worker_that_asks,
        nobody_is_alone, hosts_of_equal_size, the_first_rank_that_is_not_0, who_has_company,
        place_that_the_check_knows,
    ],
    "command": [
        without_an_id, an_id_of_its_own, each_host_its_own_endpoint, a_fixed_port, a_static_master,
        node_rank_0_everywhere, without_the_number_of_hosts, world_size_as_hosts,
        one_process_per_host, world_size_on_each_host, options_behind_the_script, standalone,
        two_hosts, hosts_by_asking, one_host_is_enough, two_ranks_on_each, always_here,
        always_the_same_job, as_a_module, in_one_string,
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
        _named("written_in_place_by_rank_1", _trainer(_in_place_by_rank_1)),
        _named("copied_over", _trainer(_copied_over)), six_steps, all_again_in_secret,
    ],
    "epoch_loss": [
        as_the_article_prints_it, mean_of_the_hosts_means, mean_of_the_batches, sizes_forgotten,
        by_the_first_batchs_size, by_its_own_count, on_rank_0_only, averaged_with_avg,
        in_single_precision, all_losses_sent, one_number_after_the_other, by_the_store,
    ],
}  # fmt: skip
RIGHT = {
    "ranks_of": [lab.asking(right_by_asking), numpys_by_the_step],
    "command": [in_words_of_their_own, numbers_among_the_words],
    "train": [
        pickled_with_random_states_as_a_tensor,
        _named("renamed_by_rank_1", _trainer(_renamed_by_rank_1)),
    ],
    "epoch_loss": [as_a_product_of_vectors, added_by_numpy_between_barriers],
}
