"""What the course says while it runs, in the learner's language: by Python's own gettext.

A message is a constant template with named fields, which are filled in after the lookup:

    _("rank {rank} failed: {reason}", rank=1, reason="ValueError: boom")

So Babel can read all of them off the source (`course_tools.i18n.messages`), and a translation may
put its fields in a different order. A field that is a message itself has been translated before.
Who learns in English loads no catalogue. A rank is forked from the kernel, so it has the kernel's
environment, and with it the kernel's language.
"""

import functools
import gettext
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

LOCALE = Path(__file__).parents[1] / "locale"
DOMAIN = "course"
CHINESE = "zh_CN"
_SETTINGS = ("COURSE_LANG", "LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set decides
_FIELD = re.compile(r"( ?)(\{[^{}]+\})( ?)")
_HAN = re.compile("[\u4e00-\u9fff]")
_WIDE = re.compile("[\u3000-\u303f\uff00-\uffef]")  # punctuation that brings its own space
_for_comparison: ContextVar[bool] = ContextVar("_for_comparison", default=False)


def in_chinese() -> bool:
    """Whether the learner has chosen it: by COURSE_LANG, else by the kernel's locale."""
    for name in _SETTINGS:
        chosen = os.environ.get(name, "").strip()
        if chosen:
            language = chosen.lower()
            return language.startswith("zh")
    return False


@contextmanager
def english() -> Iterator[None]:
    """Inside of it, messages are made in English whatever the learner reads.

    For a text that is compared, searched or kept, rather than shown.
    """
    token = _for_comparison.set(True)
    try:
        yield
    finally:
        _for_comparison.reset(token)


def in_two_languages(say: Callable[..., str], *args: Any) -> tuple[str, str]:
    """What `say(*args)` says to the learner, and the same in English."""
    for_the_learner = say(*args)
    with english():
        return for_the_learner, say(*args)


def _(message: str, /, **fields: Any) -> str:
    """A message in the learner's language.

    Args:
        message: A template, which is also the key in the catalogue. Without fields it is taken as
            it is.
        **fields: Values for its places, as `str.format` takes them.
    """
    catalogue = _catalogue()
    if catalogue is None or not message:  # gettext has its header under the empty text
        return _filled_in_english(message, fields)
    return _filled(catalogue.gettext(message), fields)


def ngettext(for_one: str, for_many: str, count: int, /, **fields: Any) -> str:
    """A message that depends on a number: `for_one` if `count` is 1, else `for_many`."""
    catalogue = _catalogue()
    if catalogue is not None:
        translation = catalogue.ngettext(for_one, for_many, count)
        return _filled(translation, fields)
    template = for_many
    if count == 1:
        template = for_one
    return _filled_in_english(template, fields)


def N_(message: str) -> str:
    """The template itself: marks a message in a table, which `_` translates when it is said."""
    return message


def listed(items: Iterable[Any]) -> str:
    """Such as `0`, `0 and 1`, or `0, 1 and 3`."""
    texts = [str(item) for item in items]
    last = texts.pop()
    if not texts:
        return last
    return _("{items} and {last}", items=separated(texts), last=last)


def separated(texts: Iterable[str]) -> str:
    """Such as `rank 0, rank 1, rank 3`."""
    return _(", ").join(texts)


def sentences(*parts: str) -> str:
    """Sentences one after the other; a Chinese full stop is followed by no space."""
    text = ""
    for part in parts:
        if text and part and not _WIDE.match(text[-1]):
            text += " "
        text += part
    return text


def capitalized(text: str) -> str:
    """With a capital letter, as an English sentence begins; Chinese leaves words as they are."""
    if _catalogue() is not None:
        return text
    return text[:1].upper() + text[1:]


def _catalogue() -> gettext.NullTranslations | None:
    """The catalogue of the learner's language, or None for English."""
    if _for_comparison.get() or not in_chinese():
        return None
    return _read(LOCALE)


@functools.cache
def _read(folder: Path) -> gettext.NullTranslations | None:
    try:
        return gettext.translation(DOMAIN, folder, [CHINESE])
    except Exception:  # it is missing or broken: better English than no message
        return None


def _filled_in_english(template: str, fields: dict[str, Any]) -> str:
    if not fields:
        return template
    return template.format(**fields)


def _filled(template: str, fields: dict[str, Any]) -> str:
    """A translation with its fields filled in; a space stands between Chinese and Latin letters.

    Whether a field begins or ends with Chinese, a template cannot know: `rank 3` does not,
    and a place in the learner's code may do either.

    `See {a} {b}.` is split into `See`, then a space, `{a}`, a space and no words, then no space,
    `{b}`, no space and `.`: the space between the two fields counts as one after the first.
    """
    if not fields:
        return template
    text, *parts = _FIELD.split(template)
    space = ""  # after the last field, if the next one follows at once
    for first in range(0, len(parts), 4):
        before, field, after, words = parts[first : first + 4]
        value = field.format(**fields)
        text = _joined(text, value, before or space)
        text = _joined(text, words, after)
        space = after
        if words:
            space = ""
    return text


def _joined(text: str, other: str, space: str) -> str:
    """Two parts of a message, of which one is a field, with a space in between if need be."""
    if not text or not other:
        return text + other
    edges = text[-1], other[0]
    for edge in edges:
        if _WIDE.match(edge) or edge.isspace():
            return text + other
    chinese = [edge for edge in edges if _HAN.match(edge)]
    if len(chinese) == 1:
        return f"{text} {other}"
    if chinese:
        return text + other
    return text + space + other
