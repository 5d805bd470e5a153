"""A finished form of an exercise: for whoever has passed it, and for whoever asks."""

import inspect
from collections.abc import Callable


def go_on_with(answer: Callable, passed: object, form: Callable, show: bool = False) -> Callable:
    """Choose what a chapter goes on with, and print our own form once it gives nothing away.

    Args:
        answer: What the learner wrote.
        passed: The outcome of its check, which is true if the answer has passed.
        form: The finished form, a function or a class of a module of the course.
        show: Print `form` although the answer has not passed.

    Returns:
        The answer if it has passed, and `form` if not.
    """
    name = answer.__name__
    if passed:
        print(f"Your {name} has passed, so the chapter goes on with it. Ours, to compare:\n")
    elif show:
        print(f"The chapter goes on with our {name}:\n")
    else:
        print(f"The chapter goes on with our {name}, since yours hasn't passed yet.")
        print("To read ours now, add show=True to the call above.")
    if passed or show:
        show_source(form)
    return answer if passed else form


def show_when_passed(passed: object, form: Callable, show: bool = False) -> None:
    """Print our own form of an exercise if the learner's has passed, or with show=True."""
    if passed or show:
        show_source(form)
        return
    name = form.__name__
    print(f"Our {name}, on which the next step builds, appears here once yours has passed.")
    print("To read it now, add show=True to the call above.")


def show_source(form: Callable) -> None:
    """Print a function or a class of a module as it is written there."""
    print(inspect.getsource(form).rstrip())
