"""From the kernel to the ranks and back: fork, join, run, bring results home.

Four words mean one thing in all of the course's code:

- The kernel is Jupyter's: the notebook's process, which forks the ranks. Linux is "the system".
- A rank is a process that a launch has forked, and its number. A worker is the same process:
  `WorkerHandle` is what the kernel has of it, `WorkerMain` what it is to itself.
- A group is one of torch.distributed. Processes that the system signals together are a "process
  group of the system", and `WorkerGroup` is all ranks of a launch.
- A rank is settled once its function has returned or failed. It's over once it has shut down as a
  program does, or is dead.

This is all that a launcher has to do. `tests/launcher/test_core.py` runs it as it stands here:

    import os
    import pickle
    import tempfile

    import torch
    import torch.distributed as dist


    def launch(fn, world_size):
        ranks, results = [], []
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world_size):
                reader, writer = os.pipe()
                pid = os.fork()  # the rank has all that this process has: functions, tensors, files
                if pid == 0:
                    torch.set_num_threads(1)  # a fork inherits no threads to compute with
                    store = dist.FileStore(f"{folder}/store", world_size)
                    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
                    os.write(writer, pickle.dumps(fn()))
                    os._exit(0)  # what follows is for the parent alone
                os.close(writer)
                ranks.append((pid, reader))
            for pid, reader in ranks:
                with open(reader, "rb") as pipe:
                    results.append(pickle.load(pipe))
                os.waitpid(pid, 0)
        return results


    def total():
        number = torch.tensor(dist.get_rank() + 1.0)
        dist.all_reduce(number)
        return number.item()


    print(launch(total, world_size=2))  # [3.0, 3.0]

The files of this folder do the same, and each adds what the core lacks:

    launch            Prints come home in rank order, and nobody launches from within a rank.
    stop_button       A press stops all ranks and leaves none behind. In the core each press hits
                      every rank as well, wherever that is.
    worker_group      All ranks are watched together, until a deadline, and none is left behind.
                      The core waits forever for the first one, even if the second has failed.
    worker_handle     The kernel's ends of one rank: its process, its messages, its output.
    worker            A rank has streams and signals of its own, ends with the kernel, and reports
                      its failure. In the core, a rank that fails goes on as a second notebook.
    captured_output   What a rank prints is kept, but not without limit: a flood of it would fill
                      the notebook.
    transport         Results of any size travel through memory. A pipe copies every byte twice,
                      and a pickled view of a tensor carries the whole storage behind it.
    rendezvous        No file that others could write to, nothing beyond loopback, torchrun's
                      environment, and an address for groups that the learner makes.
    shutdown          A rank ends as a program does: threads, `atexit`, queues, open files. After
                      `os._exit` in the core, what they still held is lost.
    drained_queues    A rank can't end before what it has put into the cell's queue is read.
    descendants       What a rank has started ends with it, such as a DataLoader's workers.
    nested            Another launcher, called inside a rank, is refused instead of hanging.
    stack_writer      A rank tells where it is without being disturbed, even in compiled code.
    stacks            Its stack is shown in cells and lines of the learner's own code.
    errors            Of several failures the root cause is named, with its rank and its line.
    echoes            An exception that only says that a peer is gone isn't that cause.
    reasons           The likely reason, for failures whose own words don't say it.
    ports             Of ranks that wanted one port, which of them got it.
    torch_private     Private names of torch, each with what happens where it is missing.
    language          Messages in the learner's language, which is the kernel's.
    words             Ranks in words: `ranks 0, 1 and 3`.
    libc              The system's C library, for what Python has no function for.
    deadlines         A limit that only says "long enough" grows with how slow the machine is.
    listener          Recording, the report of a hang, and the live panel come in here. The
                      launcher knows none of them.

How they work together, from `launch(fn)` to `results[0]`:

    launch.launch                   carries out what `course_utils.launch`, in `notebook.py`, has
                                    checked and chosen
      WorkerGroup.start             listeners get ready, the rendezvous opens; then for all ranks:
        WorkerHandle.open, os.fork  a channel, a pipe for output, a file for its stack; a process
          WorkerMain.run            in the rank: one thread, streams and signals of its own
            _run_function           joins the group, runs fn(*args), sends its result
            _park_until_killed      shuts down as a program does, but holds its connections
      WorkerGroup.results           waits; WorkerHandle.read takes in output, messages and the end
        Listener.on_poll            looks at all ranks; it may end the launch by proving a hang
        errors.worker_error         a rank failed
        errors.worker_timeout       time is up, or a hang is proven; a listener may say why
      WorkerGroup.close             stops all ranks and their descendants, gives everything back
    Results                         results[0] is what rank 0 returned, results.output[0] its prints
"""
