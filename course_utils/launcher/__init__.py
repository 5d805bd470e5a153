"""From the kernel to the ranks and back: fork, watch, carry results home, stop.

What happens between `launch(fn)` and `results[0]`, read downwards:

    launch.launch               refuses what cannot work, chooses backend and devices (placement)
      listener.before           whoever listens gets ready; see listener.py for all five points
      Team.fork                 opens the meeting point (rendezvous), then for each rank:
        Member.open, os.fork    a channel, a pipe for output, a file for its stack
          Worker.run            in the rank: one thread, streams and signals of its own
            Worker._work        joins the group, runs fn(*args), sends its result (parcel)
            Worker._leave       holds its connections until all ranks are done
      Team.results              polls all members; Member.read takes in output, messages, the end
        errors.worker_error     a rank failed: the root cause; stacks tells the learner's lines
        errors.worker_timeout   time is up: where every rank is; listener.explain says why
        Team._farewell          lets the ranks go
      Team.close                stops whoever is left, gives everything back
    Results                     results[0] is what rank 0 returned, results.output[0] its prints
"""
