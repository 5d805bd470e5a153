"""A linter for training scripts: what some ranks do and others don't, before it hangs.

It reads a script's syntax tree and runs nothing. Each rule is a function in `rules`; what they ask
of a script is in `script`. A rule that isn't certain stays silent: a false alarm costs more trust
than a silence.

    ddp-course lint train.py
    python -m course_lint train.py
"""
