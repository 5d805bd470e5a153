"""From the kernel to the ranks and back: fork, watch, carry results home, stop.

What happens between `launch(fn)` and `results[0]`, read downwards:

    launch.launch               what `course_utils.launch` has looked at and chosen is carried out
      Team.start                has listeners get ready, opens the rendezvous, and for all ranks:
        Member.open, os.fork    a channel, a pipe for output, a file for its stack; then the forks
          Worker.run            in the rank: one thread, streams and signals of its own
            Worker._work        joins the group, runs fn(*args), sends its result (parcel)
            Worker._stay        ends as a program does (ending), but holds its connections
      Team.results              waits; Member.read takes in output, messages and the end
        errors.worker_error     a rank failed: the root cause; stacks tells the learner's lines,
                                echoes who only noticed, reasons why it is likely
        errors.worker_timeout   time is up: where every rank is (asking); listener.explain says why
        Team._let_end           waits until all ranks have ended, reading their queues (queues)
      Team.close                stops all ranks and what they started (family), gives all back
    Results                     results[0] is what rank 0 returned, results.output[0] its prints
"""
