"""Wrong answers to lab 01, and for each exercise other right ones.

Each is checked by what a small function of the lab makes of the answer.
"""

import copy
import functools
import math
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.pool import ThreadPool

import labs
import numpy as np
import torch
from torch.func import functional_call

lab = labs.cells("01_data_parallel_and_the_gil")
told, and_back = lab.telling, lab.and_back


def as_even_as_can_be(batch, devices):
    return list(batch.tensor_split(devices))


def even_without_empty_ones(batch, devices):
    return [part for part in batch.tensor_split(devices) if len(part)]


def the_size_rounded_down(batch, devices):
    return list(batch.split(max(1, len(batch) // devices)))


def the_rest_left_out(batch, devices):
    size = max(1, len(batch) // devices)
    return [batch[i * size : (i + 1) * size] for i in range(min(devices, len(batch)))]


def dealt_out_like_a_sampler(batch, devices):
    return [batch[i::devices] for i in range(min(devices, len(batch)))]


def along_the_last_dimension(batch, devices):
    return list(batch.chunk(devices, dim=-1))


def so_many_samples_each(batch, devices):
    return list(batch.split(devices))


def the_whole_batch_for_each(batch, devices):
    return [batch] * devices


def scatter_by_slices(batch, devices):
    size = -(-len(batch) // devices)
    return tuple(batch[i : i + size] for i in range(0, len(batch), size))


def _run(works, start=threading.Thread.start, join=threading.Thread.join):
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        start(thread)
    for thread in threads:
        join(thread)


def _in_threads(replicas, parts, training, put):
    def work(i):
        with torch.set_grad_enabled(training):
            put(i, replicas[i](parts[i]))

    _run([functools.partial(work, i) for i in range(len(parts))])


@told
def one_after_the_other(replicas, parts):
    return [replica(part) for replica, part in zip(replicas, parts, strict=True)]


@told
def joined_at_once(replicas, parts):
    outputs = [None] * len(parts)
    for i in range(len(parts)):
        with ThreadPoolExecutor(1) as pool:
            outputs[i] = pool.submit(replicas[i], parts[i]).result()
    return outputs


@told
def errors_lost(replicas, parts):
    outputs = [None] * len(parts)
    _in_threads(replicas, parts, torch.is_grad_enabled(), outputs.__setitem__)
    return outputs


def _with_errors(replicas, parts, training, which=min):
    outputs, errors = [None] * len(parts), {}

    def work(i):
        try:
            with torch.set_grad_enabled(training):
                outputs[i] = replicas[i](parts[i])
        except Exception as error:
            errors[i] = error

    _run([functools.partial(work, i) for i in range(len(parts))])
    if errors:
        raise errors[which(errors)]
    return outputs


@told
def always_with_gradients(replicas, parts):
    return _with_errors(replicas, parts, True)


@told
def never_with_gradients(replicas, parts):
    return _with_errors(replicas, parts, False)


@told
def the_first_error_in_time(replicas, parts):
    return _with_errors(replicas, parts, torch.is_grad_enabled(), which=lambda e: next(iter(e)))


@told
def as_they_are_done(replicas, parts):
    outputs, errors, training = [], {}, torch.is_grad_enabled()

    def work(i):
        try:
            with torch.set_grad_enabled(training):
                outputs.append(replicas[i](parts[i]))
        except Exception as error:
            errors[i] = error

    _run([functools.partial(work, i) for i in range(len(parts))])
    if errors:
        raise errors[min(errors)]
    return outputs


@told
def never_joined(replicas, parts):
    outputs = [None] * len(parts)
    training = torch.is_grad_enabled()

    def work(i):
        with torch.set_grad_enabled(training):
            outputs[i] = replicas[i](parts[i])

    _run([functools.partial(work, i) for i in range(len(parts))], join=lambda thread: None)
    return outputs


@told
def run_for_start(replicas, parts):
    outputs = [None] * len(parts)

    def work(i):
        outputs[i] = replicas[i](parts[i])

    _run(
        [functools.partial(work, i) for i in range(len(parts))],
        start=threading.Thread.run, join=lambda thread: None,
    )  # fmt: skip
    return outputs


@told
def the_last_number_for_all(replicas, parts):
    outputs, training = [None] * len(parts), torch.is_grad_enabled()
    works = []
    for i in range(len(parts)):

        def work():
            with torch.set_grad_enabled(training):
                outputs[i] = replicas[i](parts[i])  # noqa: B023

        works.append(work)
    _run(works)
    return outputs


@told
def apply_by_a_pool(replicas, parts):
    training = torch.is_grad_enabled()

    def work(replica, part):
        with torch.set_grad_enabled(training):
            return replica(part)

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(work, replicas, parts))


def _outputs(replicas, parts):
    return _with_errors(replicas, parts, torch.is_grad_enabled())


@and_back
def with_deep_copies(model, batch, devices):
    parts = batch.chunk(devices)
    return torch.cat(_outputs([copy.deepcopy(model) for _ in parts], parts))


@and_back
def the_model_alone(model, batch, devices):
    return model(batch)


@and_back
def part_after_part(model, batch, devices):
    return torch.cat([model(part) for part in batch.chunk(devices)])


@and_back
def even_parts(model, batch, devices):
    parts = batch.tensor_split(devices)
    return torch.cat(_outputs([model] * len(parts), parts))


@and_back
def samples_left_out(model, batch, devices):
    size = len(batch) // devices
    parts = [batch[i * size : (i + 1) * size] for i in range(devices)]
    return torch.cat(_outputs([model] * devices, parts))


@and_back
def without_gradients(model, batch, devices):
    parts = batch.chunk(devices)
    return torch.cat(_with_errors([model] * len(parts), parts, False))


@and_back
def gathered_backwards(model, batch, devices):
    parts = batch.chunk(devices)
    return torch.cat(_outputs([model] * len(parts), parts)[::-1])


@and_back
def averaged(model, batch, devices):
    parts = batch.chunk(devices)
    outputs = [output.mean(dim=0, keepdim=True) for output in _outputs([model] * len(parts), parts)]
    return torch.cat(outputs).mean(dim=0, keepdim=True)


@and_back
def a_thread_for_every_device(model, batch, devices):
    size = math.ceil(len(batch) / devices)
    parts = [batch[i * size : (i + 1) * size] for i in range(devices)]
    return torch.cat(_outputs([model] * devices, parts))


@and_back
def data_parallel_with_replicas(model, batch, devices):
    """Differentiable copies, as the real one makes.

    Each has a module of its own: functional_call swaps the weights of one, which no two threads
    may do at the same time.
    """
    parts = batch.chunk(devices)

    def replica(own, part):
        weights = {name: weight.clone() for name, weight in model.named_parameters()}
        return functional_call(own, weights, (part,))

    replicas = [functools.partial(replica, copy.deepcopy(model)) for _ in parts]
    return torch.cat(_outputs(replicas, parts))


def _first(widths, free_us, held, layers, threads, gain, took):
    for width, free in sorted(zip(widths, free_us, strict=True)):
        if threads * layers * (held + free) >= gain * took(held, free, layers, threads):
            return width
    return None


def _model(held, free, layers, threads):
    wide = (threads - 1) * held + layers * (held + free)
    return max(wide, threads * layers * held + free)


def the_gil_forgotten(*given):
    return _first(*given, took=lambda held, free, layers, threads: layers * (held + free))


def nothing_overlaps(*given):
    """Amdahl's law: all that is held, one after the other, and then what is free."""
    return _first(*given, took=lambda h, f, layers, threads: layers * (threads * h + f))


def only_the_gil_counts(*given):
    return _first(*given, took=lambda held, free, layers, threads: threads * layers * held)


def nobody_waits_at_first(*given):
    return _first(*given, took=lambda h, f, layers, n: max(layers * (h + f), n * layers * h))


def wide_layers_only(*given):
    return _first(*given, took=lambda h, f, layers, n: (n - 1) * h + layers * (h + f))


def narrow_layers_only(*given):
    return _first(*given, took=lambda h, f, layers, n: n * layers * h + f)


def as_soon_as_anything_is_gained(*given):
    return _first(*given[:-1], 1 + 1e-9, took=_model)


def always_one_and_a_half(*given):
    return _first(*given[:-1], 1.5, took=_model)


def the_first_in_the_table(widths, free_us, *given):
    for pair in zip(widths, free_us, strict=True):
        if found := _first(*([own] for own in pair), *given, took=_model):
            return found


def where_most_of_the_time_is_free(widths, free_us, held_us, layers, threads, gain):
    found = [w for w, free in zip(widths, free_us, strict=True) if free >= held_us]
    return min(found, default=None)


def the_widest_for_none(*given):
    found = _first(*given, took=_model)
    return max(given[0]) if found is None else found


def crossover_solved_for_free(widths, free_us, held_us, layers, threads, gain):
    """Both conditions are linear in the time without the GIL: the least one that meets them."""
    if threads <= gain:
        return None
    both, fixed = threads * layers, gain * (threads - 1 + layers)
    narrow = both * held_us * (gain - 1) / (both - gain)
    wide = (fixed - both) * held_us / (layers * (threads - gain))
    table = zip(widths, free_us, strict=True)
    return min((width for width, free in table if free >= max(narrow, wide)), default=None)


@told
def joins_the_first_thread_only(replicas, parts):
    outputs, errors, training = [None] * len(parts), {}, torch.is_grad_enabled()

    def work(i):
        try:
            with torch.set_grad_enabled(training):
                outputs[i] = replicas[i](parts[i])
        except Exception as error:
            errors[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(parts))]
    for thread in threads:
        thread.start()
    threads[0].join()
    if errors:
        raise errors[min(errors)]
    return outputs


def with_empty_parts(batch, devices):
    parts = list(batch.chunk(devices))
    return parts + [batch[:0]] * (devices - len(parts))


def even_in_as_many_parts(batch, devices):
    size = math.ceil(len(batch) / devices)
    return list(batch.tensor_split(math.ceil(len(batch) / size)))


def rows_of_numbers(batch, devices):
    return list(batch.reshape(len(batch), -1).chunk(devices))


def four_devices_always(batch, devices):
    return list(batch.chunk(4))


def scatter_by_numpy(batch, devices):
    size = -(-len(batch) // devices)
    return np.split(batch.numpy(), range(size, len(batch), size))


def scatter_sample_by_sample(batch, devices):
    size = math.ceil(len(batch) / devices)
    starts = range(0, len(batch), size)
    return [torch.stack(list(batch[i : i + size])) for i in starts]


@told
def only_value_errors(replicas, parts):
    outputs, errors, training = [None] * len(parts), {}, torch.is_grad_enabled()

    def work(i):
        try:
            with torch.set_grad_enabled(training):
                outputs[i] = replicas[i](parts[i])
        except ValueError as error:
            errors[i] = error

    _run([functools.partial(work, i) for i in range(len(parts))])
    if errors:
        raise errors[min(errors)]
    return outputs


@told
def another_error_with_its_words(replicas, parts):
    try:
        return _with_errors(replicas, parts, torch.is_grad_enabled())
    except Exception as error:
        raise ValueError(str(error)) from None


@told
def a_sleep_for_a_join(replicas, parts):
    outputs = [None] * len(parts)
    training = torch.is_grad_enabled()

    def work(i):
        with torch.set_grad_enabled(training):
            outputs[i] = replicas[i](parts[i])

    _run([functools.partial(work, i) for i in range(len(parts))], join=lambda t: time.sleep(0.01))
    return outputs


@told
def a_pool_of_six(replicas, parts):
    with ThreadPoolExecutor(6) as pool:
        return list(pool.map(lambda replica, part: replica(part), replicas, parts))


@told
def the_errors_of_a_thread_pool(replicas, parts):
    """Whose map raises the first error in time."""
    training = torch.is_grad_enabled()

    def work(pair):
        with torch.set_grad_enabled(training):
            return pair[0](pair[1])

    with ThreadPool(len(parts)) as pool:
        return pool.map(work, zip(replicas, parts, strict=True))


@told
def raises_before_all_are_done(replicas, parts):
    outputs, training, done = [], torch.is_grad_enabled(), [queue.Queue() for _ in parts]

    def work(i):
        try:
            with torch.set_grad_enabled(training):
                done[i].put((replicas[i](parts[i]), None))
        except Exception as error:
            done[i].put((None, error))

    _run([functools.partial(work, i) for i in range(len(parts))], join=lambda thread: None)
    for one in done:
        output, error = one.get()
        if error:
            raise error
        outputs.append(output)
    return outputs


@told
def computed_past_the_replicas(replicas, parts):
    if errors := [replica.error for replica in replicas if replica.error]:
        raise errors[0]
    return [replica.factor * part for replica, part in zip(replicas, parts, strict=True)]


@told
def apply_by_a_pool_that_stays(replicas, parts):
    training = torch.is_grad_enabled()

    def work(replica, part):
        torch.set_grad_enabled(training)
        return replica(part)

    pool = ThreadPoolExecutor(len(parts))
    futures = [pool.submit(work, *pair) for pair in zip(replicas, parts, strict=True)]
    wait(futures)
    return tuple(future.result() for future in futures)


@told
def apply_by_a_class_of_threads(replicas, parts):
    class Work(threading.Thread):
        output = error = None

        def __init__(self, replica, part, training):
            super().__init__()
            self.given = replica, part, training

        def run(self):
            replica, part, training = self.given
            torch.set_grad_enabled(training)
            try:
                self.output = replica(part)
            except BaseException as error:
                self.error = error

    pairs = zip(replicas, parts, strict=True)
    threads = [Work(*pair, torch.is_grad_enabled()) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in (thread.error for thread in threads if thread.error):
        raise error
    return [thread.output for thread in threads]


@and_back
def past_forward(model, batch, devices):
    return torch.cat([model.centred(part) for part in batch.chunk(devices)])


@and_back
def past_forward_in_threads(model, batch, devices):
    parts = batch.chunk(devices)
    return torch.cat(_outputs([model.centred] * len(parts), parts))


@and_back
def copies_that_share_the_weight(model, batch, devices):
    parts = batch.chunk(devices)
    copies = [copy.deepcopy(model) for _ in parts]
    for one in copies:
        one.weight = model.weight
    return torch.cat(_outputs(copies, parts))


@and_back
def data_parallel_with_shallow_copies(model, batch, devices):
    parts = batch.split(math.ceil(len(batch) / devices))
    with ThreadPoolExecutor(len(parts)) as pool:
        return torch.vstack(list(pool.map(lambda part: copy.copy(model)(part), parts)))


def step_by_step(*given):
    """As the specification does, whose text this is."""
    return _first(*given, took=lab.threads_us)


def the_specification(*given):
    return lab.crossover_spec(*[[own] for own in given])[0]


def gain_taken_for_less(*given):
    return _first(*given[:-1], given[-1] - 0.05, took=_model)


def crossover_by_numpy(widths, free_us, held_us, layers, threads, gain):
    widths, free_us = np.array(widths), np.array(free_us)
    wide = (threads - 1) * held_us + layers * (held_us + free_us)
    took = np.maximum(wide, threads * layers * held_us + free_us)
    found = widths[threads * layers * (held_us + free_us) / took >= gain]
    return found.min() if len(found) else None


CHECKED_AS = {
    "scatter": lab.in_one_batch, "apply": lambda answer: answer,
    "data_parallel": lambda answer: answer, "crossover": lab.in_few_lines,
}  # fmt: skip
WRONG = {
    "scatter": [
        as_even_as_can_be, even_without_empty_ones, the_size_rounded_down, the_rest_left_out,
        dealt_out_like_a_sampler, along_the_last_dimension, so_many_samples_each,
        the_whole_batch_for_each, with_empty_parts, even_in_as_many_parts, rows_of_numbers,
        four_devices_always,
    ],
    "apply": [
        joins_the_first_thread_only,
        one_after_the_other, joined_at_once, errors_lost, always_with_gradients,
        never_with_gradients, the_first_error_in_time, as_they_are_done, never_joined,
        run_for_start, the_last_number_for_all, only_value_errors, another_error_with_its_words,
        a_sleep_for_a_join, a_pool_of_six, the_errors_of_a_thread_pool, raises_before_all_are_done,
        computed_past_the_replicas,
    ],
    "data_parallel": [
        with_deep_copies, the_model_alone, part_after_part, even_parts, samples_left_out,
        without_gradients, gathered_backwards, averaged, a_thread_for_every_device,
        past_forward, past_forward_in_threads, copies_that_share_the_weight,
    ],
    "crossover": [
        the_gil_forgotten, nothing_overlaps, only_the_gil_counts, nobody_waits_at_first,
        wide_layers_only, narrow_layers_only, as_soon_as_anything_is_gained, always_one_and_a_half,
        the_first_in_the_table, where_most_of_the_time_is_free, the_widest_for_none,
        step_by_step, the_specification, gain_taken_for_less,
    ],
}  # fmt: skip
RIGHT = {
    "scatter": [scatter_by_slices, scatter_by_numpy, scatter_sample_by_sample],
    "apply": [apply_by_a_pool, apply_by_a_pool_that_stays, apply_by_a_class_of_threads],
    "data_parallel": [data_parallel_with_replicas, data_parallel_with_shallow_copies],
    "crossover": [crossover_solved_for_free, crossover_by_numpy],
}
for answers in (WRONG, RIGHT):
    answers |= {name: [*map(CHECKED_AS[name], fns)] for name, fns in answers.items()}
