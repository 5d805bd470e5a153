"""From the kernel to the ranks and back: fork, watch, carry results home, stop.

What happens between `launch(fn)` and `results[0]`, read downwards:

    launch.launch               what `course_utils.launch` has looked at and chosen is carried out
      Team.start                has listeners get ready, opens the rendezvous, and for all ranks:
        Member.open, os.fork    a channel, a pipe for output, a file for its stack; then the forks
          Worker.run            in the rank: one thread, streams and signals of its own
            Worker._work        joins the group, runs fn(*args), sends its result (parcel)
            Worker._stay        holds its connections until all ranks are done
      Team.results              waits; Member.read takes in output, messages and the end
        errors.worker_error     a rank failed: the root cause; stacks tells the learner's lines,
                                echoes who only noticed, reasons why it is likely
        errors.worker_timeout   time is up: where every rank is; listener.explain says why
      Team.close                stops all ranks, gives everything back
    Results                     results[0] is what rank 0 returned, results.output[0] its prints
"""
