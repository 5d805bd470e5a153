"""Messages in Chinese: the templates that they were made of in English, looked for and replaced.

What fits none stays as it is, and so does a learner's own text. The catalogue next to this file,
which course_tools.i18n.zh makes, says in Chinese what may stand in a place:

    {value}         anything; it stays as it is
    {rank:#}        digits
    {kind:~}        one word
    {shape:()}      what stands in round brackets
    {said:a|b.c}    what a module `a`, or `c` in a module `b`, says: that in Chinese
    {said:a=of}     likewise, if that begins with `of`
    {said:a?}       likewise, or anything; {said:a~}: likewise, or one word
    {tag:a*}        likewise, or nothing
    {by:a+}         several, with a comma or `and` between them
    {was:-}         anything; it is not shown
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

# The contexts of templates that are a sentence, or a whole line, of a message.
SENTENCE, LINE = "sentence", "line"
_PLACE = re.compile(r"( ?)\{(\w+)(?::([^{}]*))?\}( ?)")
_WORD, _DIGITS = re.compile(r"\S*[^\s,;]"), re.compile(r"-?\d[\d.,%e+-]*")
_BRACKETS, _STOP, _LIST = map(re.compile, (r"\([^()]*\)", r"(?<=[.?!]) ", r", |; | and "))
_FAILED = re.compile("ranks? [0-9, and-]+ failed: ", re.IGNORECASE)  # until there is an empty line
_EDGE = re.compile("[\ue000\ue001]+")  # of a place, with a space and without one
_HAN, _WIDE = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3000-\u303f\uff00-\uffef]")
_LOOKS = 20_000  # at places, for one line: whatever it says, it takes a moment


class Template(NamedTuple):
    """A message: words and places by turns, what each place takes, and all of it in Chinese."""

    words: list[str]
    places: list[str]
    takes: dict[str, str]
    chinese: str
    contexts: list[str]


class TooLongError(Exception):
    """A line that fits in too many ways."""


class Speaker:
    """All templates, those with most words first."""

    def __init__(self, rows: list[list[str]]) -> None:
        known = [_template(*row) for row in rows]
        self._known = sorted(known, key=lambda one: -len("".join(one.words)))
        self._of: dict[str, list[Template]] = {}  # by contexts

    def text(self, text: str, contexts: str = "") -> str:
        """A message, line by line; of what a learner's exception says, no line is touched."""
        if _EDGE.search(text):  # signs that stand for edges of places here
            return text
        told, theirs = [], False
        for row in text.split("\n"):
            own = row.lstrip()
            if own and not (theirs and own == row):
                row = row.removesuffix(own) + self.line(own, contexts)
            theirs = bool(own) and (theirs or bool(_FAILED.match(own)))
            told.append(row)
        return "\n".join(told)

    def line(self, text: str, contexts: str) -> str:
        """One line of a message; it begins with a template, else it is no line of ours."""
        self._left, self._found = _LOOKS, {}
        try:
            return self._sequence(text, contexts or f"{SENTENCE}|{LINE}", not contexts) or text
        except (TooLongError, RecursionError):
            return text

    def _sequence(self, text: str, contexts: str, loose: bool = False) -> str | None:
        """A text as one template after another; if loose, what is between them stays English."""
        begun: dict[int, tuple[int, str] | None] = {len(text): (0, "")}

        def begin(at: int) -> tuple[int, str] | None:
            """How many characters stay English from there on, and what is said."""
            if at in begun:
                return begun[at]
            found = []
            for end, said in self._sentences(text, at, contexts, loose):
                if rest := begin(min(end + 1, len(text))):
                    found.append((rest[0], _joined(said, rest[1])))
                    if not rest[0]:
                        break
            if loose and at and not (found and min(found)[0] == 0):
                stop = _STOP.search(text, at)
                end = stop.start() if stop else len(text)
                cost, said = begin(min(end + 1, len(text)))
                found.append((cost + end - at, _joined(text[at:end], said)))
            begun[at] = min(found, default=None)
            return begun[at]

        result = begin(0)
        return result and result[1]

    def _sentences(
        self, text: str, at: int, contexts: str, loose: bool
    ) -> Iterator[tuple[int, str]]:
        """What may be said from there on, and where it ends."""
        if contexts not in self._of:
            self._of[contexts] = [one for one in self._known if _is_of(one, contexts.split("|"))]
        for one in self._of[contexts]:
            first = one.words[0]  # its first letter may be a capital
            head = text[at : at + len(first)]
            if head[1:] != first[1:] or head[:1].lower() != first[:1].lower():
                continue
            whole = loose and LINE in one.contexts
            for end, said in self._fits(one, text, at + len(first), {}):
                ends = text[end - 1 : end + 1] in (". ", "? ", "! ") and not whole
                if end > at and (ends or end == len(text)) and not (whole and at):
                    yield end, _filled(one.chinese, said)

    def _fits(
        self, one: Template, text: str, at: int, said: dict[str, str]
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Every way in which the places that are left may be filled."""
        number = len(said)
        if number == len(one.places):
            yield at, said
            return
        name, word = one.places[number], one.words[number + 1]
        takes, is_last = one.takes[name], number + 1 == len(one.places)
        for end in _ends(text, at, word, is_last, takes.endswith(("~", "#"))):
            self._left -= 1
            if self._left < 0:
                raise TooLongError
            if (told := self._place(takes, text[at:end])) is not None:
                yield from self._fits(one, text, end + len(word), {**said, name: told})

    def _place(self, takes: str, value: str) -> str | None:
        """What stands in a place, in Chinese; None where it cannot stand there."""
        if takes.endswith("+"):
            return self._list(takes[:-1], value)
        kinds, own = takes.rstrip("?~*"), value.lstrip()
        if takes == "-" or (takes.endswith("*") and not own):
            return ""
        if takes in ("#", "()"):
            return value if {"#": _DIGITS, "()": _BRACKETS}[takes].fullmatch(value) else None
        said = None
        if kinds and own:
            if (kinds, own) not in self._found:
                self._found[kinds, own] = None  # until it is known: a template may hold itself
                self._found[kinds, own] = self._sequence(own, kinds)
            said = self._found[kinds, own]
        may = _WORD.fullmatch(value) if "~" in takes else own and (not kinds or "?" in takes)
        return value if said is None and may else said

    def _list(self, takes: str, value: str) -> str | None:
        """Several of a kind; the first is as short as it can be."""
        if (key := (f"{takes}+", value)) in self._found:
            return self._found[key]
        self._found[key] = None
        for stop in _LIST.finditer(value):
            first = self._place(takes, value[: stop.start()])
            if first is not None and (rest := self._list(takes, value[stop.end() :])) is not None:
                self._found[key] = f"{first}{'；' if stop[0] == '; ' else '、'}{rest}"
                return self._found[key]
        self._found[key] = self._place(takes, value)
        return self._found[key]


def _template(english: str, chinese: str, *contexts: str) -> Template:
    words = re.split(r"\{(\w+)\}", english)
    takes = {place[2]: place[3] or "" for place in _PLACE.finditer(chinese)}
    return Template(words[::2], words[1::2], takes, chinese, list(contexts))


def _is_of(one: Template, kinds: list[str]) -> bool:
    return any(
        own == context or own.startswith(f"{context}.")
        for context, _, begins in (kind.partition("=") for kind in kinds)
        if one.words[0].startswith(begins)
        for own in one.contexts
    )


def _ends(text: str, at: int, word: str, is_last: bool, is_word: bool) -> Iterator[int]:
    """Where a place that begins there may end: before the next words, or before the next place."""
    if is_last and not word:
        yield len(text)
        return
    if not word:
        yield from range(at, len(text) + 1)[:: -1 if is_word else 1]
    while word and (at := text.find(word, at)) >= 0:
        yield at
        at += 1


def _filled(chinese: str, said: dict[str, str]) -> str:
    """A Chinese template with its places filled; a space stands between Chinese and Latin."""

    def edge(spaces: re.Match[str]) -> str:
        sides = spaces.string[: spaces.start()][-1:], spaces.string[spaces.end() :][:1]
        if "" in sides or any(map(_WIDE.match, sides)):
            return ""
        chinese = sum(bool(_HAN.match(side)) for side in sides)
        return " " if chinese == 1 or (not chinese and "\ue000" in spaces[0]) else ""

    mark = {"": "\ue001", " ": "\ue000"}
    text = _PLACE.sub(lambda place: mark[place[1]] + said[place[2]] + mark[place[4]], chinese)
    return _EDGE.sub(edge, text)


def _joined(one: str, other: str) -> str:
    return f"{one}{' ' * bool(other and not _WIDE.match(one[-1:]))}{other}"
