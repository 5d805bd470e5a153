"""Where pictures land in tests."""

import pytest
from recordings import Shown


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What would be displayed in a notebook."""
    shown = Shown()
    monkeypatch.setattr("course_utils.pictures.style.display", shown)
    monkeypatch.setattr("course_utils.pictures.style.get_ipython", object)
    return shown
