"""What a learner expects, asked before, and shown beside what real workers then did."""

from collections.abc import Sequence
from math import isclose
from typing import Any

_asked: dict[str, "Prediction"] = {}  # by question, in the order of the chapter
_OPEN = "..."


class Prediction:
    """A learner's answer to a question, until it is measured."""

    def __init__(self, question: str, answer: Any) -> None:
        self.question, self.answer = question, answer
        self.right: bool | None = None  # None as long as it is open or not measured

    def measured(self, value: Any, within: float = 0.0, about: bool = False) -> None:
        """Print what was measured beside the answer, and by how much they differ.

        Args:
            value: A number, a word or a truth, or a list or dict of these; a tensor counts as one.
            within: How far off a right number may be, as a share of the measured one.
            about: Whether the value varies from run to run: it is then printed behind this word,
                and the learner's own number is not compared by tests.
        """
        wanted, got = _plain(value), _plain(self.answer)
        told = f"{self.question}: {'about ' * about}{_told(wanted)}"
        if self.answer is ...:
            return print(f"{told} (no prediction)")
        pairs = list(_pairs(wanted, got))
        hits = [_same(one, other, within) for one, other in pairs]
        self.right = all(hits)
        print(f"{told}; predicted {_told(got)}: {_verdict(pairs, hits)}")


def predict(question: str = "", answer: Any = ..., choices: Sequence[Any] = ()) -> Any:
    """Take a learner's answer, for which `...` stands until there is one.

    Without arguments it prints the score of all predictions of this kernel.

    Args:
        question: The beginning of a sentence that the answer ends, such as "rank 3 holds".
        answer: A number, a word, a truth, or a list or dict of these.
        choices: Where it must be one of these.

    Returns:
        The prediction, whose `measured(value)` compares it; None without arguments.
    """
    if not question:
        return print(_score())
    if choices and answer is not ... and answer not in choices:
        print(
            f"{question}: one of {', '.join(map(_told, choices))}, please; {_told(answer)} is none."
        )
        answer = ...
    _asked[question] = Prediction(question, answer)
    return _asked[question]


def _score() -> str:
    known = [one for one in _asked.values() if one.right is not None]
    score = f"{sum(one.right for one in known)} of {len(_asked)} predictions were right"
    if missing := len(_asked) - len(known):
        score += f", {missing} {'is' if missing == 1 else 'are'} open"
    wrong = [f"  {one.question}" for one in known if not one.right]
    return "\n".join([f"{score}.", *["Worth another look:"] * bool(wrong), *wrong])


def _plain(value: Any) -> Any:
    """Numbers of torch and numpy as Python's; tuples as lists."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


def _pairs(wanted: Any, got: Any) -> Any:
    """Measured beside predicted, one by one; what is missing counts as open."""
    if isinstance(wanted, dict):
        own = got if isinstance(got, dict) else {}
        return [(one, own.get(name, ...)) for name, one in wanted.items()]
    if isinstance(wanted, list):
        own = got if isinstance(got, list) else [got]
        return list(zip(wanted, [*own, *[...] * len(wanted)], strict=False))
    return [(wanted, got)]


def _same(wanted: Any, got: Any, within: float) -> bool:
    if isinstance(wanted, int | float) and isinstance(got, int | float):
        return isclose(wanted, got, rel_tol=1e-9) or abs(wanted - got) <= within * abs(wanted)
    return str(wanted).strip().lower() == str(got).strip().lower()


def _verdict(pairs: list, hits: list[bool]) -> str:
    if all(hits):
        return "right"
    (wanted, got), several = pairs[0], len(pairs) > 1
    if several:
        return f"{sum(hits)} of {len(hits)} right"
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in pairs[0])
    if not numbers:
        return "not so"
    if wanted and 0.1 < got / wanted < 10:
        return f"off by {_told(abs(got - wanted))}"
    return f"{_told(got / wanted)} times as much" if wanted else f"off by {_told(got)}"


def _told(value: Any) -> str:
    """A value as a reader writes it; a float to three digits."""
    if value is ...:
        return _OPEN
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_told(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_told, value))}]"
    return str(value)
