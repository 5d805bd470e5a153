"""From the kernel to the ranks and back: fork, watch, carry results home, stop.

What happens between `launch(fn)` and `results[0]`, read downwards:

    launch.launch                   carries out what `course_utils.launch` has checked and chosen
      WorkerGroup.start             listeners get ready, the rendezvous opens; then for all ranks:
        WorkerHandle.open, os.fork  a channel, a pipe for output, a file for its stack; a process
          WorkerMain.run            in the rank: one thread, streams and signals of its own
            _run_function           joins the group, runs fn(*args), sends its result (transport)
            _park_until_killed      shuts down as a program does, but holds its connections
      WorkerGroup.results           waits; WorkerHandle.read takes in output, messages and the end
        errors.worker_error         a rank failed: the root cause; stacks gives the learner's lines,
                                    echoes who only noticed, reasons why it is likely
        errors.worker_timeout       time is up: where every rank is (stack_writer); listeners'
                                    on_error says why
        WorkerGroup._let_end        waits until all ranks have ended, reading their queues (queues)
      WorkerGroup.close             stops all ranks and their descendants, gives everything back
    Results                         results[0] is what rank 0 returned, results.output[0] its prints
"""
