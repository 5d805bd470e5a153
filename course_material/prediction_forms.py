"""Forms that ask for a prediction in a notebook: buttons for choices, a field for the rest.

They appear only where a person runs the cell. A run that compares outputs sees none of this.
"""

import datetime
import html
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from course_material import scores
from course_material.answers import miscounted, parsed
from course_utils.launcher.language import _

if TYPE_CHECKING:
    from course_material.predictions import Prediction

# Classes of a form, by which the page knows it: see `labextensions/ddp-course` and `custom.css`.
_SETTLED = "course-form"
_OPEN = "course-form course-open"
NO_ANSWER = ...  # what stands in a cell until the learner has written an answer


def a_person_looks() -> bool:
    """Whether a person runs this cell; the kernel of a test may not ask for input."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", False))


def ask(prediction: "Prediction") -> None:
    """Show the form below the question; a click or Enter takes the answer.

    An answer of an earlier run is taken up again, unless the learner wants to answer anew.
    """
    from IPython.display import HTML, display
    from ipywidgets import HTML as Text

    noted = Text(value="")
    question = html.escape(prediction.question)

    def say_what_is_noted() -> None:
        if prediction.answer is NO_ANSWER:
            noted.value = _("Shown without a prediction.")
            form.keep(_("{question}: shown without a prediction", question=question))
            return
        answered = f"<b>{html.escape(_written(prediction.answer))}</b>"
        noted.value = _("Noted: {answer}. Run the next cells to see.", answer=answered)
        form.keep(_("{question}: you predicted {answer}", question=question, answer=answered))

    # A link leads here; the question stands above, and is to be in sight as well.
    display(HTML(f'<a id="{anchor(prediction.question)}" style="scroll-margin-top:14em"></a>'))
    earlier = _taken_up(prediction)
    inputs = _form(prediction, noted)
    if earlier is None:
        form = _show(inputs, noted, prediction.question)
    else:
        form = _show([_anew(inputs)], noted, prediction.question)
        say_what_is_noted()
        answered = f"<b>{html.escape(_written(prediction.answer))}</b>"
        noted.value = _(
            "You predicted {answer} {when}, and that still stands.",
            answer=answered,
            when=_when(earlier.day),
        )
    prediction.when_settled(say_what_is_noted)


def _taken_up(prediction: "Prediction") -> scores.KeptAnswer | None:
    """Give a question its answer of an earlier run; None if there is none that fits."""
    earlier = scores.kept_answer(prediction.question)
    if earlier is None:
        return None
    if not prediction.choices:
        answer = parsed(earlier.text, prediction.count)
        if prediction.count and miscounted(answer, prediction.count):
            return None
        prediction.answer = answer
        return earlier
    for choice in prediction.choices:
        if str(choice) == earlier.text:
            prediction.answer = choice
            return earlier
    return None


def _when(day: datetime.date) -> str:
    days_ago = (datetime.date.today() - day).days
    if days_ago == 0:
        return _("today")
    if days_ago == 1:
        return _("yesterday")
    return _("on {day}", day=day)


def _anew(inputs: list[Any]) -> Any:
    """A button that gives its place to the inputs; until one is used, the answer stands."""
    from ipywidgets import HBox, Layout

    anew = _plain_button(_("answer anew"))
    anew.add_class("course-anew")  # so that the page gives the keyboard to what takes its place
    place = HBox([anew], layout=Layout(flex_flow="row wrap"))

    def show_inputs(button: Any) -> None:
        place.children = inputs

    anew.on_click(show_inputs)
    return place


def ask_before_showing(prediction: "Prediction", compare: Callable[[], str]) -> None:
    """Ask once more, and show what was measured when there is an answer, or when it is wanted.

    Args:
        prediction: The question.
        compare: Returns the line that shows what was measured next to the answer.
    """
    from ipywidgets import HTML as Text

    line = Text(value="")
    show_anyway = _plain_button(_("just show me"))

    def show() -> None:
        line.value = f"<pre>{html.escape(compare())}</pre>"
        form.keep(line.value)

    show_anyway.on_click(lambda button: prediction.skip())
    inputs = [*_form(prediction, line), show_anyway]
    form = _show(inputs, line, prediction.question)
    prediction.when_settled(show)


def _form(prediction: "Prediction", told: Any) -> list[Any]:
    """Buttons for the choices, or a field; `told` is where it says what it could not take."""
    if prediction.choices:
        return [_button(choice, prediction.take) for choice in prediction.choices]
    return [_field(prediction, told)]


def _button(choice: Any, take: Callable[[Any], None]) -> Any:
    button = _plain_button(str(choice))
    button.on_click(lambda clicked: take(choice))
    return button


def _plain_button(word: str) -> Any:
    from ipywidgets import Button, Layout

    as_wide_as_its_word = Layout(width="auto", min_width="4em")
    return Button(description=word, layout=as_wide_as_its_word)


def _field(prediction: "Prediction", told: Any) -> Any:
    from ipywidgets import Text

    count = prediction.count
    placeholder = _("your prediction, then Enter")
    if count:
        placeholder = _("{count} answers, spaces between, then Enter", count=count)
    field = Text(placeholder=placeholder, continuous_update=False)

    def answer_changed(change: dict[str, Any]) -> None:
        if not change["new"].strip():
            return
        answer = parsed(change["new"], count)
        problem = miscounted(answer, count) if count else ""
        if problem:
            told.value = _(
                "Read as <b>{answer}</b>: {problem}",
                answer=html.escape(_written(answer)),
                problem=problem,
            )
        else:
            prediction.take(answer)

    field.observe(answer_changed, "value")
    return field


def _written(answer: Any) -> str:
    """An answer as it may be typed."""
    if isinstance(answer, list | tuple):
        return ", ".join(map(str, answer))
    return str(answer)


def _show(inputs: list[Any], result: Any, question: str) -> Any:
    """Display a form: a widget whose `keep(text)` says what is left of it in a saved notebook.

    A widget ends with its kernel, and JupyterLab then shows an error in its place. The text in HTML
    stands beside it, so the file can do without the widget (`course_saving.keep_pictures`). While
    it says that the question is open, the page holds back what the cells show that would answer it
    (`course.js`).
    """
    from IPython.display import display
    from ipywidgets import HBox, Label, Layout, VBox

    unanswered = _("{question}: run this cell to answer", question=html.escape(question))

    class Form(VBox):
        left = f'<div class="{_OPEN}">{unanswered}</div>'

        def keep(self, text: str) -> None:
            self.left = f'<div class="{_SETTLED}">{text}</div>'
            display(self, display_id=self.model_id, update=True)

        def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
            return {**super()._repr_mimebundle_(**options), "text/html": self.left}

    label = Label(f"{question}:")
    row = HBox([label, *inputs], layout=Layout(flex_flow="row wrap"))
    form = Form([row, result])
    form.add_class(_SETTLED)
    display(form, display_id=form.model_id)
    return form


def anchor(question: str) -> str:
    """The name of a question's place in the page."""
    return "predict-" + re.sub(r"\W+", "-", question.lower()).strip("-")


def link_to(question: str) -> str:
    """A link to the question's place, as HTML."""
    return f'<a href="#{anchor(question)}">{html.escape(question)}</a>'


def show_text(text: str, as_html: str) -> Callable[[str, str], None]:
    """Show a text, with links where the page can follow them.

    Returns:
        What puts a new text and its HTML into the place of these.
    """
    from IPython.display import display

    def data(text: str, as_html: str) -> dict[str, str]:
        return {"text/plain": text, "text/html": f"<pre>{as_html}</pre>"}

    shown = display(data(text, as_html), raw=True, display_id=True)

    def show_again(text: str, as_html: str) -> None:
        shown.update(data(text, as_html), raw=True)

    return show_again
