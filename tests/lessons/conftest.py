"""What several tests of lessons share."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture
def texts(monkeypatch, request):
    """The words of all that the test module's `pictures` draw."""
    shown = []

    def show(figure, text, caption=""):
        shown.append(text)
        plt.close(figure)

    monkeypatch.setattr(request.module.pictures, "show", show)
    return shown
