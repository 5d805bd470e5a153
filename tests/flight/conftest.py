"""Where pictures land in tests."""

from recordings import shown  # noqa: F401, a fixture
