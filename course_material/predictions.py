"""What a learner expects, asked before, and shown beside what real workers then did."""

from collections.abc import Sequence
from math import isclose
from typing import Any

_asked: dict[str, "Prediction"] = {}  # by question, in the order of the chapter


class Prediction:
    """A learner's answer to a question; `...` stands for none."""

    def __init__(self, question: str, answer: Any, is_choice: bool = False) -> None:
        self.question, self.answer = question, answer
        self.is_choice = is_choice  # then even a number is a name, and there is no "off by"
        self.right: bool | None = None  # None as long as it is open or not measured

    def measured(self, value: Any, within: float = 0.0, about: bool = False) -> None:
        """Print what was measured beside the answer, and by how much they differ.

        Args:
            value: A number, a word or a truth, or a list of these; a tensor counts as one. Of a
                set the order does not matter.
            within: How far off a right number may be, as a share of the measured one.
            about: Whether the value varies from run to run: it is printed behind this word then,
                and tests do not compare it.
        """
        wanted, got = _many(value), _many(self.answer)
        told = f"{self.question}: {'about ' * about}{_told(wanted)}"
        if self.answer is ...:
            return print(f"{told} (no prediction)")
        found = [_same(*pair, within) for pair in zip(wanted, got, strict=False)]
        if isinstance(value, set):
            found = [any(_same(one, own, within) for own in got) for one in wanted]
        self.right = all(found) and len(found) == len(wanted) == len(got)
        verdict = _verdict(wanted, got, sum(found))
        if self.is_choice and not self.right:
            verdict = "not so"
        print(f"{told}; predicted {_told(got)}: {verdict}")


def predict(question: str = "", answer: Any = ..., choices: Sequence[Any] = ()) -> Any:
    """Take a learner's answer, for which `...` stands until there is one.

    Without arguments it prints the score of all predictions of this kernel.

    Args:
        question: The beginning of a sentence that the answer ends, such as "rank 3 holds".
        answer: A number, a word, a truth, or a list of these.
        choices: Where it must be one of these.

    Returns:
        The prediction, whose `measured(value)` compares it; None without arguments.
    """
    if not question:
        return print(_score())
    if choices and answer is not ... and answer not in choices:
        known = ", ".join(map(str, choices))
        print(f"{question}: {answer!r} is not one of the answers. They are: {known}.")
        answer = ...
    _asked[question] = Prediction(question, answer, is_choice=bool(choices))
    return _asked[question]


def _score() -> str:
    known = [one for one in _asked.values() if one.right is not None]
    score = f"{sum(one.right for one in known)} of {len(_asked)} predictions were right"
    if missing := len(_asked) - len(known):
        score += f", {missing} {'is' if missing == 1 else 'are'} open"
    wrong = [f"  {one.question}" for one in known if not one.right]
    return "\n".join([f"{score}.", *["Worth another look:"] * bool(wrong), *wrong])


def _many(value: Any) -> list:
    """A list of plain values, of one where it is only one."""
    value = value.tolist() if hasattr(value, "tolist") else value  # torch's and numpy's
    if isinstance(value, set):
        return sorted(value)
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(wanted: Any, got: Any, within: float) -> bool:
    if _is_number(wanted) and _is_number(got):
        return isclose(wanted, got, rel_tol=1e-9, abs_tol=within * abs(wanted))
    return str(wanted).strip().lower() == str(got).strip().lower()


def _verdict(wanted: list, got: list, hits: int) -> str:
    if len(wanted) > 1 or len(got) != 1:
        more = f", and {len(got) - len(wanted)} too many" * (len(got) > len(wanted))
        right = hits == len(wanted) and not more
        return "right" if right else f"{hits} of {len(wanted)} right{more}"
    (wanted,), (got,) = wanted, got
    if hits:
        return "right"
    if not (_is_number(wanted) and _is_number(got)):
        return "not so"
    if wanted and got and not 0.1 < got / wanted < 10:
        return f"{_told([got / wanted])} times as much"
    return f"off by {_told([abs(got - wanted)])}"


def _told(values: list) -> str:
    """Values as a reader writes them; a float to three digits."""

    def one(value: Any) -> str:
        if isinstance(value, float) and abs(value) < 1000:
            return f"{value:.3g}"
        return f"{value:,.0f}" if _is_number(value) else str(value)

    words = ", ".join(map(one, values))
    return words if len(values) == 1 else f"[{words}]"
