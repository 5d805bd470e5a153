"""What the course says to a learner while it runs: read off the source by Babel, and in Chinese.

A message is the constant text in a call of `_`, `ngettext`, `N_` or `plural`, see
`course_utils/launcher/language.py`. In Chinese they stand in `source/zh/messages.po`, of which
`course_utils/locale` has what gettext reads and what is installed.
"""

import io
import string
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog, Message
from babel.messages.extract import extract_from_file
from babel.messages.mofile import write_mo

from course_tools.i18n import catalogues
from course_tools.i18n.catalogues import Id

NAME = "messages"
CATALOGUE = f"source/zh/{NAME}.po"
COMPILED = "course_utils/locale/zh_CN/LC_MESSAGES/course.mo"
_PACKAGES = (
    "course_utils",
    "course_checks",
    "course_lessons",
    "course_testing",
    "course_material",
)
_MARKED_BY = {"_": None, "N_": None, "ngettext": (1, 2), "plural": (1, 2)}


def ids(root: Path) -> list[Id]:
    """Returns all messages in the order of the source, each once."""
    messages: dict[Id, None] = {}
    for package in _PACKAGES:
        folder = root / package
        paths = folder.rglob("*.py")
        for path in sorted(paths):
            extracted = extract_from_file("python", path, keywords=_MARKED_BY)
            for _line, message, _comments, _context in extracted:
                messages[message] = None
    return list(messages)


def text_of(message: Id) -> str:
    """Returns what a message is known by: its form for one."""
    if isinstance(message, str):
        return message
    for_one, _ = message
    return for_one


def prose(root: Path) -> list[str]:
    """Returns what is to be translated."""
    return [text_of(message) for message in ids(root)]


def known(catalog: Catalog) -> catalogues.Entries:
    """Returns the entries by their keys, each with one English and one Chinese text."""
    entries = {}
    for message in catalog:
        if not message.id:  # the header
            continue
        english = text_of(message.id)
        chinese = chinese_of(message)
        key = catalogues.key(english)
        flags = message.flags
        comments = message.user_comments
        entries[key] = Message(english, chinese, flags=flags, user_comments=comments)
    return entries


def chinese_of(message: Message) -> str:
    """Returns a message in Chinese, which has one form for all numbers; empty if nobody has it."""
    if isinstance(message.string, str):
        return message.string
    return message.string[0]


def take_up(catalog: Catalog, wanted: list[Id]) -> Catalog:
    """Returns the catalogue for these messages; see `catalogues.take_up`."""
    flat = catalogues.empty()
    entries = known(catalog)
    for message in entries.values():
        catalogues.add(flat, message.id, message.string, message)
    texts = [text_of(message) for message in wanted]
    flat = catalogues.take_up(flat, texts)
    result = catalogues.empty()
    result.creation_date = catalog.creation_date
    for message, text in zip(wanted, texts, strict=True):
        entry = flat.get(text)
        chinese = entry.string
        if not isinstance(message, str):  # a form for each number, of which Chinese has one
            chinese = (chinese,)
        catalogues.add(result, message, chinese, entry)
    return result


def compiled(root: Path) -> bytes:
    """Returns the catalogue as gettext reads it; what is fuzzy or missing is not in it."""
    catalog = catalogues.read(root / CATALOGUE)
    file = io.BytesIO()
    write_mo(file, catalog)
    return file.getvalue()


def write(root: Path) -> None:
    """Writes the catalogue that is installed."""
    path = root / COMPILED
    folder = path.parent
    folder.mkdir(parents=True, exist_ok=True)
    contents = compiled(root)
    path.write_bytes(contents)


def faults(root: Path) -> Iterator[str]:
    """Yields messages without Chinese or with other fields, and an old compiled catalogue."""
    catalog = catalogues.read(root / CATALOGUE)
    for message in catalog:
        if not message.id:  # the header
            continue
        text = text_of(message.id)
        start = text[:70]
        if not chinese_of(message):
            yield f"no Chinese: {start}"
            continue
        odd = _fields_of_one_language(message)
        if odd:
            fields_listed = " ".join(odd)
            yield f"fields differ: {fields_listed}: {start}"
    if not _is_compiled(root):
        yield f"{COMPILED} is old: make zh"


def _is_compiled(root: Path) -> bool:
    """Whether the catalogue that is installed is what would be written now."""
    path = root / COMPILED
    if not path.exists():
        return False
    installed = path.read_bytes()
    return installed == compiled(root)


def _fields_of_one_language(message: Message) -> list[str]:
    """The fields that only the Chinese has, or only one of the English forms."""
    forms = message.id
    if isinstance(forms, str):
        forms = (forms,)
    chinese = chinese_of(message)
    fields_in_chinese = fields(chinese)
    odd: set[str] = set()
    for form in forms:
        fields_in_english = fields(form)
        odd |= fields_in_english ^ fields_in_chinese
    return sorted(odd)


def fields(text: str) -> set[str]:
    """Returns the fields of a template, such as `{seconds:g}`."""
    written = set()
    try:
        parts = string.Formatter().parse(text)
        for _words, name, spec, conversion in parts:
            if name is not None:
                field = f"{name}!{conversion}:{spec}"
                written.add(field)
    except ValueError:  # braces that are no field, in a message without fields
        return set()
    return written
