"""Who waits where, for whom, and why: the report of a hang.

The launcher calls a listener, and everything begins there. In a notebook that is `live.Early`, a
`HangReport` that knows how long a silence is (5 s, or 0.5 s where a rank has returned) and shows
where the ranks are. So most hangs are reported long before a timeout:

    WorkerGroup._poll               about ten times a second, while ranks run
      HangReport.on_poll            has anybody called anything, returned, or ended since?
        _ask                        after a silence, asks each rank for its stack
        _judge                      once all have answered, or some seconds later
          wait_graph                puts together what is known of all ranks
            whereabouts.locate      of one rank: its stack, and what it has called (`Record.logs`)
            WaitGraph               of all: their calls meet, and who has missed one is waited for
              gpu_queues.stuck      of calls that are only queued: which ones hold up the others
          on_silence                returns `WaitGraph.hangs_for_ever`, and True ends the launch

    WorkerGroup._error              a hang was proven, or time is up
      HangReport.on_error           puts better words into the launcher's error
        wait_graph                  as above, of stacks that were asked for just now
        rules.diagnose              the first rule that applies names the pattern and says why
          facts                     what its sections ask of the graph
        table                       a row for each rank

Each rank is in one of these states (`Whereabouts.state`):

    | state      | the rank                                 | known by                          |
    | ---------- | ---------------------------------------- | --------------------------------- |
    | "waiting"  | waits for other ranks, in a call         | its stack stands in a collective  |
    | "held"     | waits for something of its own process   | its stack stands at a lock, say   |
    | "running"  | computes                                 | its stack stands elsewhere        |
    | "silent"   | gives no answer                          | it was asked, and wrote no stack  |
    | "returned" | is done with its function                | the kernel has its result         |

So "waiting" and "held" are told by names in a stack, and which call it is by the record: the last
call, provided that it was made in the line in which the stack stands. A rank is absent if others
wait for it and it waits for nobody. Nothing is guessed: where calls are forgotten, or several of
them may hold a rank, a hang isn't taken for proven.

Beside that, `report.why_aborted` explains why gloo has ended a rank, and `silent_mistakes` looks at
launches that ended well, for mistakes that torch lets pass. `course_utils.flight` answers the same
questions for jobs that no notebook has launched, by their dumps.
"""
