"""Sphinx's settings; `course_tools.site.website` puts this file beside the pages that it has prepared."""

import itertools
import re

from docutils import nodes
from sphinx import addnodes
from sphinx.search.en import SearchEnglish

from course_tools.site import glossary

CHINESE = TONGUE == "zh"  # noqa: F821  its first line is written by course_tools.site.website

project = "Distributed data parallel training"
author = "the course authors"
copyright = "the course authors, MIT license"
extensions = ["myst_nb", "sphinx_copybutton"]
html_theme = "furo"
language = "zh_CN" if CHINESE else "en"
locale_dirs = ["locale"]
html_title = "DDP 课程" if CHINESE else "DDP course"
templates_path = ["templates"]
html_use_index = False
html_static_path = ["_static"]
html_extra_path = ["extra"]
html_favicon = "_static/icon.svg"
html_css_files = ["site.css"]
html_js_files = [
    (name, {"defer": "defer"})
    for name in ("say.js", "predict.js", "live.js", "tongue.js", "reach.js")
]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#00598c", "color-brand-content": "#00598c"},
    "dark_css_variables": {"color-brand-primary": "#7cc4f2", "color-brand-content": "#7cc4f2"},
}
exclude_patterns = ["extra", "_static", "templates", "locale"]
nb_execution_mode = "off"  # what is shown was run by course_tools.notebooks.build
nb_code_prompt_show = "展开 {type}" if CHINESE else "Show the {type}"
nb_code_prompt_hide = "收起 {type}" if CHINESE else "Hide the {type}"
nb_merge_streams = True
myst_heading_anchors = 3
myst_links_external_new_tab = False
copybutton_selector = "div.cell_input div.highlight pre, div.highlight-bash pre"
suppress_warnings = ["misc.highlighting_failure"]  # the messages of a launch are no tracebacks


class Pairs(SearchEnglish):
    """Chinese words without a dictionary: each two neighbours, and each sign, can be found.

    Sphinx's own search for Chinese finds nothing in a text unless jieba is installed, and with it
    finds a word only where jieba has cut the text as the reader has cut the question.
    """

    lang = "zh"
    js_splitter_code = """
var splitQuery = (query) =>
  (query.match(/[\\u4e00-\\u9fff]+|[\\p{Letter}\\p{Number}_]+?(?=[\\u4e00-\\u9fff]|[^\\p{Letter}\\p{Number}_]|$)/gu) ?? [])
    .flatMap((run) => /[\\u4e00-\\u9fff]{2}/.test(run) ? [...run].slice(1).map((sign, k) => run[k] + sign) : [run]);
"""

    def split(self, text: str) -> list[str]:
        """Returns words, signs, and pairs of signs."""
        found: list[str] = []
        for run in re.findall(r"[\u4e00-\u9fff]+|[^\W\u4e00-\u9fff]+", text):
            chinese = run[0] >= "\u4e00"
            found += [*map("".join, itertools.pairwise(run)), *run] if chinese else [run]
        return found

    def stem(self, word: str) -> str:
        """Returns an English word's stem; only they have one."""
        return word if word[0] >= "\u4e00" else super().stem(word)


def anchors(app, doctree: nodes.document) -> None:
    """Gives headings and cells anchors that are the same in both languages."""
    if app.builder.name != "html":
        return
    for number, section in enumerate(doctree.findall(nodes.section)):
        section["ids"].append(f"part-{number}")
    for cell in doctree.findall(nodes.container):
        for name in [name for name in cell["classes"] if name.startswith("tag_cell-")]:
            cell["ids"].append(name.removeprefix("tag_"))
            cell["classes"].remove(name)


# Terms are not looked for in links and code.
NOT_PROSE = (nodes.reference, nodes.literal, nodes.math, nodes.raw, addnodes.pending_xref)
# Where a Latin word ends. Chinese has no blanks between words.
NO_LETTER_BEFORE, NO_LETTER_AFTER = r"(?<![A-Za-z0-9_-])", r"(?![A-Za-z0-9_-])"


def explain_terms(app, doctree: nodes.document) -> None:
    """Link the first use of each term on a lesson's or a lab's page to the glossary."""
    in_a_book = re.match(r"(notebooks|exercises)/\d", app.env.docname)
    if app.builder.name != "html" or not in_a_book:
        return
    left = {}  # terms not yet met on this page, by each of their words
    for term in glossary.terms(TONGUE):  # noqa: F821
        for word in term.words:
            left[word.lower()] = term
    longest_first = sorted(map(re.escape, left), key=len, reverse=True)
    any_word = re.compile(
        f"{NO_LETTER_BEFORE}(?:{'|'.join(longest_first)}){NO_LETTER_AFTER}", re.IGNORECASE
    )
    for paragraph in doctree.findall(nodes.paragraph):
        for text in list(paragraph.findall(nodes.Text)):
            if not _is_in(text, NOT_PROSE):
                text.parent.replace(text, _with_links(text.astext(), any_word, left))


def _is_in(node: nodes.Node, kinds: tuple[type, ...]) -> bool:
    """Whether a node lies in one of these kinds, below its paragraph."""
    while not isinstance(node, nodes.paragraph):
        node = node.parent
        if isinstance(node, kinds):
            return True
    return False


def _with_links(text: str, any_word: re.Pattern[str], left: dict) -> list[nodes.Node]:
    """A text, in which terms that are still `left` have become links; they leave `left`."""
    parts, end = [], 0
    for match in any_word.finditer(text):
        term = left.get(match[0].lower())
        if term is None:
            continue
        for word in term.words:
            left.pop(word.lower(), None)
        link = nodes.reference(
            "", match[0], refuri=f"../glossary.html#{term.anchor}", internal=True,
            reftitle=term.means.replace("`", ""), classes=["term"],
        )  # fmt: skip
        parts += [nodes.Text(text[end : match.start()]), link]
        end = match.end()
    return [*parts, nodes.Text(text[end:])]


def setup(app) -> None:
    """Sphinx calls this."""
    app.connect("doctree-read", anchors)
    app.connect("doctree-read", explain_terms)
    if CHINESE:
        app.add_search_language(Pairs)
