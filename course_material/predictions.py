"""What a learner expects, asked before, and shown next to what real workers then did."""

from collections.abc import Callable, Sequence
from math import isclose
from typing import Any

from course_material import prediction_forms, scores
from course_material.answers import is_number, miscounted, number_in, parsed
from course_material.prediction_forms import NO_ANSWER
from course_utils.launcher.language import _, ngettext

_asked: dict[str, "Prediction"] = {}  # by question, in the order of the chapter


class Prediction:
    """A learner's answer to a question; `...` stands for none.

    Args:
        question: The beginning of a sentence that the answer ends.
        answer: A number, a word, a truth, or a list of these.
        choices: The possible answers, if the learner chooses from a list.
        count: How many answers are wanted, if it is more than one.
    """

    def __init__(
        self, question: str, answer: Any, choices: Sequence[Any] = (), count: int = 0
    ) -> None:
        self.question = question
        self.answer = answer
        self.choices = tuple(choices)
        self.count = count
        self.right: bool | None = None  # None until it is answered and measured
        self.is_partly_right = False  # some of several answers are, but not all
        self._is_skipped = False
        self._listeners: list[Callable[[], None]] = []

    def take(self, answer: Any) -> None:
        """Take an answer that was given by a form, and keep it for the kernels to come."""
        self.answer = answer
        scores.keep_answer(self.question, str(answer))
        self._tell_forms()

    def skip(self) -> None:
        """The learner wants to see what was measured without an answer, and isn't asked again."""
        self._is_skipped = True
        self._tell_forms()

    def when_settled(self, listener: Callable[[], None]) -> None:
        """Call a function whenever there is an answer, or the question is skipped."""
        self._listeners.append(listener)

    def _tell_forms(self) -> None:
        for listener in self._listeners:
            listener()

    def measured(self, value: Any, within: float = 0.0, about: bool = False) -> None:
        """Print what was measured next to the answer, and by how much they differ.

        Where a person runs the cell and hasn't answered yet, it asks once more, and shows what was
        measured when the answer is there.

        Args:
            value: A number, a word or a truth, or a list of these; a tensor counts as one. Of a
                set the order does not matter.
            within: How far off a right number may be, as a share of the measured one.
            about: Whether the value varies from run to run: it is printed behind this word then,
                and tests do not compare it.
        """

        def compare() -> str:
            return self._compare(value, within, about)

        is_open = self.answer is NO_ANSWER and not self._is_skipped
        if is_open and prediction_forms.a_person_looks():
            prediction_forms.ask_before_showing(self, compare)
        else:
            print(compare())

    def _compare(self, value: Any, within: float, about: bool) -> str:
        """The line that is shown; it also notes whether the answer was right."""
        measured = _many(value)
        value_in_words = _written(measured)
        if about:
            value_in_words = _("about {value}", value=value_in_words)
        shown = _("{question}: {value}", question=self.question, value=value_in_words)
        if self.answer is NO_ANSWER:
            return _("{shown} (no prediction)", shown=shown)
        predicted = _many(self.answer)
        if isinstance(self.answer, str):
            if is_number(value):
                predicted = [number_in(self.answer)]  # such as in "400 keys"
            elif len(measured) > 1:
                predicted = list(parsed(self.answer, len(measured)))  # such as "0 1 0 1"
        if isinstance(value, set):
            matches = [_is_in(number, predicted, within) for number in measured]
        else:
            pairs = zip(measured, predicted, strict=False)
            matches = [_same(number, guess, within) for number, guess in pairs]
        same_length = len(matches) == len(measured) == len(predicted)
        self.right = same_length and all(matches)
        self.is_partly_right = not self.right and any(matches) and len(measured) > 1
        scores.note(self.question, self.right)
        if self.choices and not self.right:
            verdict = _("not so")  # a choice is a name, even if it is a number: never "off by"
        else:
            verdict = _verdict(measured, predicted, sum(matches))
        return _(
            "{shown}; predicted {answer}: {verdict}",
            shown=shown,
            answer=_written(predicted),
            verdict=verdict,
        )


def predict(
    question: str = "",
    answer: Any = NO_ANSWER,
    choices: Sequence[Any] = (),
    count: int = 0,
) -> Any:
    """Take a learner's answer, for which `...` stands until there is one.

    In a notebook that a person runs, a question without an answer shows a form: the learner clicks
    a choice or types a number. Whoever prefers writes the answer into the cell instead.

    Without arguments it prints the score of all predictions of this kernel.

    Args:
        question: The beginning of a sentence that the answer ends, such as "rank 3 holds".
        answer: A number, a word, a truth, or a list of these.
        choices: Where it must be one of these.
        count: How many answers are wanted, where it is more than one: numbers or words with
            spaces or commas between them, or a list.

    Returns:
        The prediction, whose `measured(value)` compares it; None without arguments.
    """
    if not question:
        return _show_score()
    if choices and answer is not NO_ANSWER and answer not in choices:
        known = ", ".join(map(str, choices))
        print(
            _(
                "{question}: {answer!r} is not one of the answers. They are: {known}.",
                question=question,
                answer=answer,
                known=known,
            )
        )
        answer = NO_ANSWER
    if count and answer is not NO_ANSWER:
        answer = _counted(question, answer, count)
    prediction = Prediction(question, answer, choices, count)
    _asked[question] = prediction
    if answer is NO_ANSWER and prediction_forms.a_person_looks():
        prediction_forms.ask(prediction)
    return prediction


def _counted(question: str, answer: Any, count: int) -> Any:
    """An answer that stands in the cell; none, below a line that says why, if it doesn't fit."""
    answers = parsed(answer, count) if isinstance(answer, str) else tuple(_many(answer))
    problem = miscounted(answers, count)
    if not problem:
        return answers
    print(f"{question} {_written(list(answers))}: {problem}")
    return NO_ANSWER


def _show_score() -> None:
    if not prediction_forms.a_person_looks():
        return print(_score(str))

    def score_and_open() -> tuple[str, str]:
        texts = []
        for name in (str, prediction_forms.link_to):
            texts.append("\n".join([_score(name), *_open(name)]))
        return texts[0], texts[1]

    show_again = prediction_forms.show_text(*score_and_open())
    for prediction in _asked.values():
        prediction.when_settled(lambda: show_again(*score_and_open()))


def _open(name: Callable[[str], str]) -> list[str]:
    """Lines with what has not been measured next to an answer; none if all has."""
    lines = []
    for prediction in _asked.values():
        if prediction.right is None:
            lines.append(f"  {name(prediction.question)}")
    return [_("Open:"), *lines] if lines else []


def _score(name: Callable[[str], str]) -> str:
    """The score; `name` writes a question, as text or as a link to its cell."""
    measured = [prediction for prediction in _asked.values() if prediction.right is not None]
    right = [prediction for prediction in measured if prediction.right]
    wrong = [prediction for prediction in measured if not prediction.right]
    still_open = len(_asked) - len(measured)
    partly = [prediction for prediction in wrong if prediction.is_partly_right]
    score = _("{right} of {count} predictions were right", right=len(right), count=len(_asked))
    if partly:
        score = _("{score} in every part, {count} in some", score=score, count=len(partly))
    if still_open:
        score = ngettext(
            "{score}, {count} is open",
            "{score}, {count} are open",
            still_open,
            score=score,
            count=still_open,
        )
    lines = [_("{score}.", score=score)]
    if wrong:
        lines.append(_("Worth another look:"))
    for prediction in wrong:
        lines.append(f"  {name(prediction.question)}")
    return "\n".join(lines)


def _many(value: Any) -> list:
    """A list of plain values; a single value becomes a list of one."""
    if hasattr(value, "tolist"):  # torch's tensors and numpy's arrays
        value = value.tolist()
    if isinstance(value, set):
        return sorted(value)
    if isinstance(value, list | tuple):
        return list(value)
    return [value]


def _same(measured: Any, predicted: Any, within: float) -> bool:
    if is_number(measured) and is_number(predicted):
        return isclose(measured, predicted, rel_tol=1e-9, abs_tol=within * abs(measured))
    return str(measured).strip().lower() == str(predicted).strip().lower()


def _is_in(measured: Any, predicted: list, within: float) -> bool:
    return any(_same(measured, guess, within) for guess in predicted)


def _verdict(measured: list, predicted: list, matches: int) -> str:
    if len(measured) > 1 or len(predicted) != 1:
        return _verdict_of_many(measured, predicted, matches)
    number, guess = measured[0], predicted[0]
    if matches:
        return _("right")
    if not (is_number(number) and is_number(guess)):
        return _("not so")
    if number and guess and not 0.1 < guess / number < 10:
        return _("{factor} times as much", factor=_written([guess / number]))
    return _("off by {difference}", difference=_written([abs(guess - number)]))


def _verdict_of_many(measured: list, predicted: list, matches: int) -> str:
    too_many = len(predicted) - len(measured)
    if matches == len(measured) and too_many <= 0:
        return _("right")
    verdict = _("{matches} of {count} right", matches=matches, count=len(measured))
    if too_many > 0:
        return _("{verdict}, and {count} too many", verdict=verdict, count=too_many)
    if too_many < 0:
        return _("{verdict}, and {count} missing", verdict=verdict, count=-too_many)
    return verdict


def _written(values: list) -> str:
    """Values as a reader writes them."""
    words = ", ".join(_written_value(value) for value in values)
    if len(values) == 1:
        return words
    return f"[{words}]"


def _written_value(value: Any) -> str:
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.3g}"
    if is_number(value):
        return f"{value:,.0f}"
    return str(value)
