"""What the plugin refuses once tests run, in the learner's language."""

import pytest

from course_utils.launcher.language import _


def without_mark(fixture: str) -> None:
    """Fail: this fixture is asked for by a test that has no mark."""
    pytest.fail(
        _(
            "The fixture {fixture} is for tests that run in ranks: write @pytest.mark.ranks(2) "
            "above.",
            fixture=fixture,
        ),
        pytrace=False,
    )


def kind_of_test(kind: str) -> None:
    """Fail: pytest runs this test in a way that ranks have no part in."""
    pytest.fail(
        _(
            "ranks: pytest runs this test as a {kind}, which cannot run in ranks. Write a plain "
            "function, or a method of a class that is no unittest.TestCase.",
            kind=kind,
        ),
        pytrace=False,
    )


def without_fork() -> None:
    """Fail: this system cannot fork."""
    pytest.fail(_("ranks: ranks are forked: use Linux, macOS, or WSL on Windows."), pytrace=False)
