"""What the plugin and its runner share: how a failure reaches pytest, and where the size stands."""

from typing import Any

SIZE = "_number_of_ranks"  # the fixture that a marked test is parametrized by


class RankFailed(Exception):
    """A test failed in its ranks.

    Attributes:
        shown: what pytest shows instead of this exception, in pytest's own form; None for text.
    """

    def __init__(self, message: str, shown: Any = None) -> None:
        super().__init__(message)
        self.shown = shown
