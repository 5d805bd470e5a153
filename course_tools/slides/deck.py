"""A chapter's cells as slides: which words, code and outputs are in sight; the rest is notes.

The rule needs no tags but those that are there. A heading begins a slide, so does code, and so does
a picture. Of a paragraph the first sentence is in sight, and the first with bold words; all of it
is in the notes. What is folded goes, but not what it drew. Checks go. A prediction is a vote, and
what was measured stands on a later slide.
"""

import re
from collections.abc import Iterable

from nbformat import NotebookNode

from course_tools.notebooks.course_map import Say
from course_tools.notebooks.predictions import Question, questions
from course_tools.slides.markup import (
    MOST,
    Piece,
    Slide,
    code_listing,
    in_brief,
    in_sight,
    measured,
    output_listing,
    outputs,
    stresses,
    vote,
    words,
)

BLOCK = re.compile(
    r"""
    <details>.*?</details>  # an answer or a hint
    | ```.*?\n```  # a listing
    | (?!<details>|```) \S .*? (?=\n\n|\n<details>|\Z)  # a heading, a paragraph, a list or a table
    """,
    re.DOTALL | re.VERBOSE,
)
HEADING = re.compile(r"(#+) (.*)")
NOT_SHOWN = re.compile(r"\Aimport |\Afrom |^predict\(\)", re.MULTILINE)  # code
MEASURED = re.compile(r"^\w+\.measured\(.*\)\n?", re.MULTILINE)  # answers a prediction
PICTURE_PX = 330
# What begins a question for neighbours, and one for all, in either language.
DISCUSS = re.compile(r"\*\*(?:Check yourself\.|自测。)\*\* ?")
PREDICT = re.compile(r"\*\*(?:Predict|预测)[.。]\*\* ?")


class Deck:
    """Reads cells one after the other; `parts` has the slides of each part."""

    def __init__(self, cells: Iterable[NotebookNode], say: Say = str) -> None:
        self.say = say
        self.discuss = say("Discuss")  # the label of a question for neighbours
        self.setting = ""  # the last paragraph, which a question may be about
        self.waiting: list[str] = []  # paragraphs that no slide shows yet
        self.subject: Slide | None = None  # of the next paragraph: an output, or a question
        self.open: Slide | None = None  # has code, and no output yet
        self.parts: list[list[Slide]] = [[]]
        self.numbers: dict[str, int] = {}  # of the questions, by their texts
        self.questions: dict[int, list[Question]] = {}  # by the id of the cell that asks
        first, *cells = cells
        self.show_title(first)
        self.find_questions(cells)
        for cell in cells:
            self.read_cell(cell)
        self.end()

    def find_questions(self, cells: list[NotebookNode]) -> None:
        """Takes in which cells ask for predictions."""
        for cell, question in questions(cells):
            text = question.text
            self.numbers[text] = question.number
            questions_of_cell = self.questions.setdefault(id(cell), [])
            questions_of_cell.append(question)

    def show_title(self, cell: NotebookNode) -> None:
        """The first slide: the title, and the three paragraphs below it."""
        title, *blocks = BLOCK.findall(cell.source)
        self.title = title.removeprefix("# ")
        paragraphs = blocks[:3]
        pieces = map(words, paragraphs)
        slide = self.show(*pieces)
        slide.notes += blocks[3:]

    def read_cell(self, cell: NotebookNode) -> None:
        """Shows a cell, unless it imports, checks, or asks how predictions went."""
        questions_of_cell = self.questions.get(id(cell))
        if cell.cell_type == "markdown":
            self.read(cell.source)
        elif questions_of_cell:
            for question in questions_of_cell:
                self.vote(question)
        elif cell.source.startswith("check("):
            self.open = None
        elif not NOT_SHOWN.search(cell.source):
            self.run(cell)

    def read(self, text: str) -> None:
        """Headings begin slides; paragraphs wait for the next code, or speak of the last output."""
        for block in BLOCK.findall(text):
            if not block.startswith(("#", "<")):
                self.setting = block
            heading = HEADING.match(block)
            if heading:
                self.heading(*heading.groups())
            elif DISCUSS.search(block):
                self.end()
                question = DISCUSS.sub("", block)
                piece = words(question)
                self.subject = self.show(piece, label=self.discuss)
            elif block.startswith("<details>"):
                self.folded(block)
            elif self.subject:
                self.about_subject(block)
            else:
                self.waiting.append(block)

    def heading(self, signs: str, title: str) -> None:
        """Begins a slide, and with the largest headings a part."""
        self.end()
        self.title = title
        if len(signs) < 3:
            self.parts.append([])

    def folded(self, block: str) -> None:
        """An answer to what is discussed, or a hint, which only the notes have."""
        slides = self.parts[-1]
        slide = slides[-1]
        plain = re.sub(r"</?(details|summary)>", "", block)
        slide.notes.append(plain)
        if slide.label == self.discuss:
            answer = re.sub("^(Answer|答案)", "", plain)
            piece = words(answer, later=True)
            slide.add(piece)
            self.subject = None

    def about_subject(self, block: str) -> None:
        """A paragraph about an output, or more of a question that is discussed."""
        slide = self.subject
        slide.notes.append(block)
        if slide.label == self.discuss:
            piece = words(block)
            slide.add(piece)
            return
        piece = in_brief(block, later=True)
        slide.add(piece)
        self.subject = None

    def show(self, *pieces: Piece, label: str = "") -> Slide:
        """A new slide, with the last of the words that wait."""
        last = ""
        if self.waiting:
            last = self.waiting.pop()
        notes = self.flush()
        slide = Slide(self.title, label, notes=notes)
        if last:
            slide.notes.append(last)
            beginning = in_brief(last)
            slide.add(beginning)
        for piece in pieces:
            slide.add(piece)
        slides = self.parts[-1]
        slides.append(slide)
        self.subject = None
        self.open = None
        return slide

    def flush(self) -> list[str]:
        """Slides of nothing but words, if they stress any; returns those that stress none."""
        blocks = self.waiting
        self.waiting = []
        if not any(map(stresses, blocks)):
            return blocks
        slide = None
        for block in blocks:
            piece = in_brief(block)
            slide = self.add_or_show(slide, piece)
            slide.notes.append(block)
        return []

    def add_or_show(self, slide: Slide | None, piece: Piece) -> Slide:
        """Adds a piece to a slide, or shows a new one if there is none with room; returns it."""
        if slide and slide.add(piece):
            return slide
        return self.show(piece)

    def end(self) -> None:
        """Words that stress nothing go to the notes of the last slide, if there is one."""
        left = self.flush()
        slides = self.parts[-1]
        if left and not slides:
            pieces = map(in_brief, left)
            self.show(*pieces)
        if left:
            last_slide = slides[-1]
            last_slide.notes += left
        self.subject = None
        self.open = None

    def vote(self, question: Question) -> None:
        """The question as its paragraph asks it; without one, what the last paragraph is about."""
        subject = self.setting
        is_asked = PREDICT.search(subject) is not None
        is_long = len(subject) >= 350
        if is_long and not is_asked:
            subject = in_sight(subject)
        last_paragraph = self.waiting[-1:]
        if last_paragraph == [self.setting]:
            self.waiting.pop()
        without_mark = PREDICT.sub("", subject)
        asked = words(without_mark)
        invitation = self.say("Write it down first.")
        ballot = vote(question, invitation)
        label = self.say("Vote")
        slide = self.show(asked, ballot, label=label)
        slide.notes.append(self.setting)

    def run(self, cell: NotebookNode) -> None:
        """Code if it is in sight, each picture on its own, and what was printed."""
        slide = None
        pictures, text, answers = outputs(cell)
        code = MEASURED.sub("", cell.source)
        code = code.strip()
        jupyter = cell.metadata.get("jupyter", {})
        is_folded = jupyter.get("source_hidden", False)
        if code and not is_folded:
            slide = self.code(code)
        for picture, caption in pictures:
            piece = Piece(picture, PICTURE_PX)
            slide = self.show(piece)
            slide.notes.append(caption)
        if text:
            printed = output_listing(text)
            slide = self.add_or_show(slide, printed)
        for line in answers:
            number = self.number_of(line)
            answer = measured(number, line)
            slide = self.add_or_show(slide, answer)
        if not (pictures or text or answers):
            return
        if text.count("\n") >= MOST:  # the slide has not all of it
            listing = f"```\n{text}\n```"
            slide.notes.append(listing)
        self.subject = slide
        self.open = None

    def number_of(self, line: str) -> int:
        """The number of the question that a line answers."""
        matching = []
        for text, number in self.numbers.items():
            beginning = f"{text}: "
            if line.startswith(beginning):
                matching.append(number)
        (only_match,) = matching
        return only_match

    def code(self, code: str) -> Slide:
        """A slide with code, or more code on the one before."""
        with_less_room = re.sub(r"\n{3,}", "\n\n", code)
        piece = code_listing(with_less_room)
        goes_on = self.open and not self.waiting
        if goes_on and self.open.add(piece):
            return self.open
        label = ""
        if "raise NotImplementedError" in code:  # an exercise
            label = self.say("In pairs")
        self.open = self.show(piece, label=label)
        return self.open
