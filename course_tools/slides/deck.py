"""A chapter's cells as slides: which words, code and outputs are in sight; the rest is notes.

The rule needs no tags but those that are there. A heading begins a slide, so does code, and so does
a picture. Of a paragraph the first sentence is in sight, and the first with bold words; all of it
is in the notes. What is folded goes, but not what it drew. Checks go. A prediction is a vote, and
what was measured stands on a later slide.
"""

import re
from collections.abc import Callable, Iterable

from nbformat import NotebookNode

from course_tools.notebooks.predictions import Question, questions
from course_tools.slides.markup import (
    MOST,
    WHOLE,
    Slide,
    in_sight,
    listing,
    measured,
    outputs,
    vote,
    words,
)

BLOCK = r"(?s)<details>.*?</details>|```.*?\n```|(?:(?!<details>|```)\S).*?(?=\n\n|\n<details>|\Z)"
PICTURE_PX = 330
# What begins a question for neighbours, and one for all, in either language.
DISCUSS = re.compile(r"\*\*(?:Check yourself\.|自测。)\*\* ?")
PREDICT = re.compile(r"\*\*(?:Predict|预测)[.。]\*\* ?")


class Deck:
    """Reads cells one after the other; `parts` has the slides of each part."""

    def __init__(self, cells: Iterable[NotebookNode], say: Callable[[str], str] = str) -> None:
        self.say = say
        first, *cells = cells
        title, *blocks = re.findall(BLOCK, first.source)
        self.title, self.setting = title.removeprefix("# "), ""
        self.waiting: list[str] = []  # paragraphs that no slide shows yet
        self.told: Slide | None = None  # what the next paragraph is about: an output, a question
        self.open: Slide | None = None  # has code, and no output yet
        self.parts: list[list[Slide]] = [[]]
        self.show(*map(words, blocks[:3])).notes += blocks[3:]
        asked = [(id(cell), question) for cell, question in questions(cells)]
        self.asked = {question.text: question.number for _, question in asked}
        for cell in cells:
            if cell.cell_type == "markdown":
                self.read(cell.source)
            elif own := [question for one, question in asked if one == id(cell)]:
                for question in own:
                    self.vote(question)
            elif cell.source.startswith("check("):
                self.open = None
            elif not re.search(r"(?m)\Aimport |\Afrom |^predict\(\)", cell.source):
                self.run(cell)
        self.end()

    def read(self, text: str) -> None:
        """Headings begin slides; paragraphs wait for the next code, or speak of the last output."""
        for block in re.findall(BLOCK, text):
            self.setting = self.setting if block.startswith(("#", "<")) else block
            if found := re.match(r"(#+) (.*)", block):
                self.end()
                self.title = found[2]
                self.parts += [[] for _ in "#"[: len(found[1]) < 3]]
            elif DISCUSS.search(block):
                self.end()
                self.told = self.show(words(DISCUSS.sub("", block)), label=self.say("Discuss"))
            elif block.startswith("<details>"):  # an answer, or a hint
                slide, plain = self.parts[-1][-1], re.sub(r"</?(details|summary)>", "", block)
                slide.notes.append(plain)
                if slide.label == self.say("Discuss"):
                    slide.add(words(re.sub("^(Answer|答案)", "", plain), later=True))
                    self.told = None
            elif self.told:
                self.told.notes.append(block)
                question = self.told.label == self.say("Discuss")
                self.told.add(words(block if question else in_sight(block), later=not question))
                self.told = self.told if question else None
            else:
                self.waiting.append(block)

    def show(self, *pieces: tuple[str, int], label: str = "") -> Slide:
        """A new slide, with the last of the words that wait."""
        *self.waiting, last = self.waiting or [""]
        slide = Slide(self.title, label, notes=self.flush() + [last] * bool(last))
        for piece in [*[words(in_sight(last))] * bool(last), *pieces]:
            slide.add(piece)
        self.parts[-1].append(slide)
        self.told = self.open = None
        return slide

    def flush(self) -> list[str]:
        """Slides of nothing but words, if they stress any; returns those that stress none."""
        blocks, self.waiting = self.waiting, []
        if not any(WHOLE.match(block) or "**" in block for block in blocks):
            return blocks
        slide = None
        for block in blocks:
            if not slide or not slide.add(words(in_sight(block))):
                slide = self.show(words(in_sight(block)))
            slide.notes.append(block)
        return []

    def end(self) -> None:
        """Words that stress nothing go to the notes of the last slide, if there is one."""
        left, own = self.flush(), self.parts[-1]
        if left and not own:
            self.show(*(words(in_sight(block)) for block in left))
        if left:
            own[-1].notes += left
        self.told = self.open = None

    def vote(self, question: Question) -> None:
        """The question as its paragraph asks it; without one, what the last paragraph is about."""
        asks = bool(PREDICT.search(self.setting))
        about = self.setting if asks or len(self.setting) < 350 else in_sight(self.setting)
        if self.waiting[-1:] == [self.setting]:
            self.waiting.pop()
        asked = vote(question, self.say("Write it down first."))
        slide = self.show(words(PREDICT.sub("", about)), asked, label=self.say("Vote"))
        slide.notes.append(self.setting)

    def run(self, cell: NotebookNode) -> None:
        """Code if it is in sight, each picture on its own, and what was printed."""
        slide, (pictures, printed, told) = None, outputs(cell)
        code = re.sub(r"(?m)^\w+\.measured\(.*\)\n?", "", cell.source).strip()
        if not cell.metadata.get("jupyter", {}).get("source_hidden") and code:
            slide = self.code(code)
        for picture, caption in pictures:
            slide = self.show((picture, PICTURE_PX))
            slide.notes.append(caption)
        pieces = [listing(printed, "output")] if printed else []
        for line in told:
            (number,) = (self.asked[text] for text in self.asked if line.startswith(f"{text}: "))
            pieces.append(measured(number, line))
        for piece in pieces:
            if not slide or not slide.add(piece):
                slide = self.show(piece)
        if pieces or pictures:
            slide.notes += [f"```\n{printed}\n```"] * (printed.count("\n") >= MOST)
            self.told, self.open = slide, None

    def code(self, code: str) -> Slide:
        """A slide with code, or more code on the one before."""
        piece = listing(re.sub(r"\n{3,}", "\n\n", code), "code")
        if self.waiting or not self.open or not self.open.add(piece):
            stub = "raise NotImplementedError" in code
            self.open = self.show(piece, label=self.say("In pairs") if stub else "")
        return self.open
