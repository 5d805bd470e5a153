"""Which exercises of a notebook pass."""

import html
from collections.abc import Sequence

from course_utils.checks.outcome import COLOURS, PASSED, SIGNS, Outcome

_outcomes: dict[str, Outcome] = {}  # of this kernel, by the answer's name; the last one counts


def note(outcome: Outcome) -> Outcome:
    """Remember an outcome, and return it."""
    _outcomes[outcome.name] = outcome
    return outcome


class Overview:
    """One line per exercise."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)

    def __repr__(self) -> str:
        lines = [f"{SIGNS[own.state]} {own.name}: {own.state}" for own in self.outcomes]
        return "\n".join([self._total(), *lines])

    def _total(self) -> str:
        passed = sum(own.state == PASSED for own in self.outcomes)
        return f"{passed} of {len(self.outcomes)} exercises pass"

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><td style="color:{COLOURS[own.state]};font-weight:bold">{SIGNS[own.state]}</td>'
            f'<td style="text-align:left"><code>{html.escape(own.name)}</code></td>'
            f'<td style="text-align:left">{own.state}</td></tr>'
            for own in self.outcomes
        )
        return f"<b>{self._total()}</b><table>{rows}</table>"


def progress() -> Overview:
    """Show which of the answers that were checked in this notebook pass, as they were last."""
    return Overview(list(_outcomes.values()))
