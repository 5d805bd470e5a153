"""What a learner typed, read as a number, a truth, a word, or several of these."""

import ast
import re
from typing import Any

from course_utils.launcher.language import _

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+")  # as measurements are printed: 203,530
_THOUSANDS_AMONG_OTHERS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\w,])")
# A number that is no part of a word or of a longer number, such as in `400 keys`.
_NUMBER = re.compile(
    r"(?<![\w.,])[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\d.,]*\d)"
)
_BRACKET = re.compile(r"[\[\](){}]")
_COMMA = re.compile(r"[,;，、；]")
_COMMA_OR_SPACE = re.compile(r"[,;，、；\s]+")
_QUOTES = " '\""


def parsed(text: str, count: int = 0) -> Any:
    """What a text says: a number, a truth or several where it does, a word otherwise.

    Args:
        text: As a learner types it; several stand between spaces, commas or both, with brackets
            or without.
        count: How many are wanted, where it is more than one.

    Returns:
        A tuple where several are wanted; it may have fewer or more of them.
    """
    if count > 1:
        return _several(text, count)
    if _THOUSANDS.fullmatch(text.strip()):  # Python would read 1,000 as two numbers
        return int(text.replace(",", ""))
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        pass
    try:
        return float(text)
    except ValueError:
        pass
    pieces = _pieces(_without_thousands(text))
    if len(pieces) > 1 and all(map(is_number, pieces)):
        return pieces
    return text.strip()


def number_in(text: str) -> Any:
    """The number in a text that has one, such as `400 keys`; else the text."""
    numbers = _numbers_in(text)
    if len(numbers) != 1:
        return text
    return numbers[0]


def is_number(value: Any) -> bool:
    """Whether it is a number; a truth is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def miscounted(answers: tuple, count: int) -> str:
    """How many there are, if another number of them is wanted; else nothing."""
    if len(answers) == count:
        return ""
    return _("that makes {given}, and {count} are wanted.", given=len(answers), count=count)


def _several(text: str, count: int) -> tuple:
    """The first reading of a text that has as many values as are wanted; else the first of all."""
    inner = _BRACKET.sub(" ", text)
    likely = _pieces(_without_thousands(inner))  # 1,000 is one number here, and two in the next
    readings = [likely, _pieces(inner)]
    for pieces in readings:
        if len(pieces) == count and len(set(map(is_number, pieces))) == 1:
            return pieces
    words = tuple(_value(piece) for piece in _COMMA.split(inner) if piece.strip())
    for pieces in (_numbers_in(inner), words):  # 32 and 96 bytes; ring, two trees
        if len(pieces) == count:
            return pieces
    return _numbers_in(inner) or likely


def _pieces(text: str) -> tuple:
    """What stands between commas and spaces."""
    inner = _BRACKET.sub(" ", text)
    return tuple(_value(piece) for piece in _COMMA_OR_SPACE.split(inner) if piece)


def _without_thousands(text: str) -> str:
    """The same numbers without commas of their own."""
    return _THOUSANDS_AMONG_OTHERS.sub(lambda number: number[0].replace(",", ""), text)


def _numbers_in(text: str) -> tuple:
    return tuple(_value(number.replace(",", "")) for number in _NUMBER.findall(text))


def _value(piece: str) -> Any:
    """A number, a truth or a word."""
    word = piece.strip(_QUOTES)
    if word in ("True", "False"):
        return word == "True"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            pass
    return word
