"""Forms that ask for a prediction in a notebook: buttons for choices, a field for the rest.

They appear only where a person runs the cell. A run that compares outputs sees none of this.
"""

import ast
import html
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_material.predictions import Prediction

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")  # as measurements are printed: 203,530


def a_person_looks() -> bool:
    """Whether a person runs this cell; the kernel of a test may not ask for input."""
    try:
        from IPython import get_ipython
    except ImportError:
        return False
    kernel = getattr(get_ipython(), "kernel", None)
    return bool(getattr(kernel, "_allow_stdin", False))


def ask(prediction: "Prediction") -> None:
    """Show the form below the question; a click or Enter takes the answer."""
    from IPython.display import HTML, display
    from ipywidgets import HTML as Text

    noted = Text(value="")

    def take(answer: Any) -> None:
        prediction.answer = answer
        answered = f"<b>{html.escape(str(answer))}</b>"
        noted.value = f"Noted: {answered}. Run the next cells to see."
        form.keep(f"{html.escape(prediction.question)}: you predicted {answered}")

    display(HTML(f'<a id="{anchor(prediction.question)}"></a>'))
    form = _show(_form(prediction, take), noted, prediction.question)


def ask_before_showing(prediction: "Prediction", compare: Callable[[], str]) -> None:
    """Ask once more, and show what was measured when there is an answer, or when it is wanted.

    Args:
        prediction: The question.
        compare: Returns the line that shows what was measured next to the answer.
    """
    from ipywidgets import HTML as Text
    from ipywidgets import Button

    line = Text(value="")
    show_anyway = Button(description="just show me")

    def show(*_: object) -> None:
        line.value = f"<pre>{html.escape(compare())}</pre>"
        form.keep(line.value)

    def take(answer: Any) -> None:
        prediction.answer = answer
        show()

    show_anyway.on_click(show)
    inputs = [*_form(prediction, take), show_anyway]
    form = _show(inputs, line, prediction.question)


def _form(prediction: "Prediction", take: Callable[[Any], None]) -> list[Any]:
    """Buttons for the choices, or a field; `take` is called with the answer."""
    if prediction.choices:
        return [_button(choice, take) for choice in prediction.choices]
    return [_field(take)]


def _button(choice: Any, take: Callable[[Any], None]) -> Any:
    from ipywidgets import Button, Layout

    as_wide_as_its_word = Layout(width="auto", min_width="4em")
    button = Button(description=str(choice), layout=as_wide_as_its_word)
    button.on_click(lambda _: take(choice))
    return button


def _field(take: Callable[[Any], None]) -> Any:
    from ipywidgets import Text

    field = Text(placeholder="your prediction, then Enter", continuous_update=False)

    def answer_changed(change: dict[str, Any]) -> None:
        if change["new"].strip():
            take(parsed(change["new"]))

    field.observe(answer_changed, "value")
    return field


def parsed(text: str) -> Any:
    """What a learner typed: a number, a truth or a list where it is one, a word otherwise."""
    if _THOUSANDS.fullmatch(text.strip()):  # Python would read 1,000 as two numbers
        return int(text.replace(",", ""))
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        pass
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _show(inputs: list[Any], result: Any, question: str) -> Any:
    """Display a form: a widget whose `keep(text)` says what is left of it in a saved notebook.

    A widget ends with its kernel, and JupyterLab then shows an error in its place. The text in HTML
    stands beside it, so the file can do without the widget (`course_saving.keep_pictures`).
    """
    from IPython.display import display
    from ipywidgets import HBox, Label, Layout, VBox

    class Form(VBox):
        left = f"{html.escape(question)}: run this cell to answer"

        def keep(self, text: str) -> None:
            self.left = text
            display(self, display_id=self.model_id, update=True)

        def _repr_mimebundle_(self, **options: Any) -> dict[str, Any]:
            return {**super()._repr_mimebundle_(**options), "text/html": self.left}

    label = Label(f"{question}:")
    row = HBox([label, *inputs], layout=Layout(flex_flow="row wrap"))
    form = Form([row, result])
    display(form, display_id=form.model_id)
    return form


def anchor(question: str) -> str:
    """The name of a question's place in the page."""
    return "predict-" + re.sub(r"\W+", "-", question.lower()).strip("-")


def link_to(question: str) -> str:
    """A link to the question's place, as HTML."""
    return f'<a href="#{anchor(question)}">{html.escape(question)}</a>'


def show_text(text: str, as_html: str) -> None:
    """Show a text, with links where the page can follow them."""
    from IPython.display import display

    display({"text/plain": text, "text/html": f"<pre>{as_html}</pre>"}, raw=True)
