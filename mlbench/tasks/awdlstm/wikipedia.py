"""Articles of Wikipedia: the pages of a dump without their markup, as words, held out by article.

What is left of a page is its prose: templates, tables, lists, headings, references and formulas go. It is no
parser of wikitext. What MediaWiki would expand (a template inside a sentence) is missing from the sentence.
"""

import bz2
import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

from mlbench.config.errors import UserError
from mlbench.datasets import packages

PACKAGE = packages.wheel(
    "gensim",
    "4.4.0",
    "cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64",
    sha256="91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
    size=27_809_988,  # bytes
)
FOLDER = "gensim/test/test_data"
FILE = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
ORIGIN = {
    "source": "106 articles of the English Wikipedia (https://en.wikipedia.org), a part of the dump of 2016, "
    f"{FILE} in the Python package gensim 4.4.0",
    "licence": "CC-BY-SA-3.0",
}
NAMESPACE = "{http://www.mediawiki.org/xml/export-0.10/}"

COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
NO_PROSE = "ref math gallery nowiki pre code syntaxhighlight source timeline score imagemap hiero"
ELEMENT = re.compile(
    rf"<({NO_PROSE.replace(' ', '|')})\b[^>]*?(?:/>|>.*?</\1\s*>)", re.DOTALL | re.IGNORECASE
)
TEMPLATE = re.compile(r"\{\{[^{}]*\}\}")  # the innermost ones, as the two below
TABLE = re.compile(r"\{\|(?:(?!\{\|).)*?\n\s*\|\}", re.DOTALL)
LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
# Pictures, categories and the article in other languages, with the links in their captions.
NO_TEXT = re.compile(
    r"\[\[(?:File|Image|Category|[a-z-]{2,12}):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.IGNORECASE
)
ADDRESS = re.compile(r"\[(?:https?:)?//\S+\s*([^\]]*)\]")
TAG = re.compile(r"</?[a-zA-Z][^>]*>")
SWITCH = re.compile(r"__[A-Z]+__|'{2,}")  # bold, italics and words that switch something on
NO_LINE = tuple("*#:;=|!{}[")  # lists, indented lines, headings, and what is left of tables and templates
WORD = re.compile(r"\d+(?:[.,]\d+)*|\w+|[^\w\s]")
SHORTEST = 8  # words of a paragraph


class Article(NamedTuple):
    """An article: its title, the revision that it is of, and its paragraphs as words."""

    title: str
    revision: int
    paragraphs: list[list[str]]

    @property
    def words(self) -> int:
        """How many words it has."""
        return sum(map(len, self.paragraphs))


def articles(dump: bytes, *, progress: Callable[[int], None] = lambda _: None) -> Iterator[Article]:
    """Yield the articles of a compressed dump. Redirects and pages of other kinds are none.

    Raises UserError if it is no dump. `progress` is called with the pages read.
    """
    try:
        root = ElementTree.fromstring(bz2.decompress(dump))
    except (ElementTree.ParseError, OSError, ValueError) as error:
        raise UserError(
            f"{FILE} is not a Wikipedia dump: {error}", hint="remove the package and download it again"
        ) from error
    for number, page in enumerate(root.iter(f"{NAMESPACE}page"), 1):
        progress(number)
        revision = page.find(f"{NAMESPACE}revision")
        if page.findtext(f"{NAMESPACE}ns") != "0" or page.find(f"{NAMESPACE}redirect") is not None:
            continue
        if revision is not None:
            text = revision.findtext(f"{NAMESPACE}text") or ""
            number = int(revision.findtext(f"{NAMESPACE}id") or 0)
            yield Article(page.findtext(f"{NAMESPACE}title") or "", number, paragraphs(text))


def paragraphs(wikitext: str) -> list[list[str]]:
    """Return the paragraphs of prose in a page's markup, each as its words and marks."""
    lines = [line.strip() for line in prose(wikitext).splitlines()]
    candidates = [WORD.findall(line) for line in lines if not line.startswith(NO_LINE)]
    return [words for words in candidates if len(words) >= SHORTEST]


def prose(wikitext: str) -> str:
    """Return a page without its markup. Lists and headings are still in it."""
    text = ELEMENT.sub("", COMMENT.sub("", wikitext))
    for nested in (TEMPLATE, TABLE):
        text = _repeated(nested, "", text)
    text = _repeated(LINK, r"\1", NO_TEXT.sub("", text))
    text = SWITCH.sub("", TAG.sub("", ADDRESS.sub(r"\1", text)))
    return html.unescape(text)


def _repeated(pattern: re.Pattern[str], replacement: str, text: str) -> str:
    """Replace until nothing fits any more: from the inside of nested markup to its outside."""
    count = 1
    while count:
        text, count = pattern.subn(replacement, text)
    return text
