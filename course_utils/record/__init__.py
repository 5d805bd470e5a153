"""What ranks write down while they run, and the kernel afterwards reads.

`record.Record` makes the memory and reads it. In a rank, `hooks.Recorder` writes one row before
each call is issued. `event.meetings` lets the calls meet: a rank's k-th collective in a group
meets the k-th of every other member, and the k-th send to a rank its k-th receive. So a call that
one rank leaves out shows up later, as a different one: the rank's next call takes its number.
"""
