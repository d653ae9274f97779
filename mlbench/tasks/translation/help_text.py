"""LibreOffice's help in English and German: pages with the same paragraphs, held out by page.

A paragraph has the same id in every language, by which its translations find each other.
"""

import html
import re
from pathlib import Path
from typing import Any

from mlbench.config.errors import UserError
from mlbench.datasets import packages
from mlbench.datasets.arrow import DatasetWriter
from mlbench.tasks.translation.lines import Pair

VERSION = "4:7.4.7-1+deb12u14"
PACKAGES = {
    "en": packages.debian(
        "libreoffice-help-en-us",
        VERSION,
        sha256="8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712",
        sha1="d4ccd840972b4de88129de9268cfdde5fa039296",
        size=1_753_504,  # bytes
    ),
    "de": packages.debian(
        "libreoffice-help-de",
        VERSION,
        sha256="00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f",
        sha1="6a62f9640b0a2745fbcebeb2c1a9e448d3388138",
        size=3_293_908,  # bytes
    ),
}
ORIGIN = {
    "source": "LibreOffice 7.4.7 Help (https://help.libreoffice.org), Debian packages libreoffice-help-en-us "
    f"and libreoffice-help-de {VERSION}",
    "licence": "MPL-2.0",
    "attribution": "Copyright 2000, 2010 Oracle and/or its affiliates, and LibreOffice contributors and/or "
    "their affiliates",
}
FOLDERS = {"en": "usr/share/libreoffice/help/en-US/text", "de": "usr/share/libreoffice/help/de/text"}
# - every: of the pages in the order of their names, one in so many is for testing, from the middle one on.
# - shortest, longest: words between blanks on each side.
SELECTION = {"every": 30, "shortest": 3, "longest": 20}

PARAGRAPH = re.compile(r'<(p|h[1-6])\s[^>]*?\bid="([^"]+)"[^>]*>(.*?)</\1>', re.DOTALL)
BREAK, TAG = re.compile(r"<br\s*/?>"), re.compile(r"<[^>]+>")
HIDDEN = 'hidden="true"'  # the other variant of a sentence, for another operating system


def text(selection: dict[str, Any], writer: DatasetWriter) -> tuple[list[Pair], list[Pair]]:
    """Fetch both packages and return the pairs to train and to test on. No pair comes twice.

    What the test has of the training text, on either side, is left out of the test.
    """
    fetched = {side: writer.fetch(archive) for side, archive in PACKAGES.items()}
    sides = {side: _pages(path, FOLDERS[side], writer) for side, path in fetched.items()}
    names = sorted(set(sides["en"]) & set(sides["de"]))
    if len(names) < selection["every"]:
        raise UserError("the packages have no pages in common", hint="remove them from data_root/downloads")
    return split({name: (sides["en"][name], sides["de"][name]) for name in names}, **selection)


def split(
    pages: dict[str, tuple[dict[str, str], dict[str, str]]], *, every: int, shortest: int, longest: int
) -> tuple[list[Pair], list[Pair]]:
    """Return training and test pairs of pages, which have paragraphs by id in both languages."""
    held_out = set(sorted(pages)[every // 2 :: every])
    train, test = dict[Pair, None](), dict[Pair, None]()
    for name in sorted(pages):
        source, target = pages[name]
        for pair in ((text, target[number]) for number, text in source.items() if number in target):
            lengths = [len(side.split()) for side in pair]
            if pair[0] != pair[1] and shortest <= min(lengths) and max(lengths) <= longest:
                (test if name in held_out else train)[pair] = None
    texts = [{plain(pair[side]) for pair in train} for side in (0, 1)]
    unseen = [pair for pair in test if not any(plain(pair[side]) in texts[side] for side in (0, 1))]
    return list(train), unseen


def plain(line: str) -> str:
    """Return a line without case and with all numbers alike, to find whether training has a sentence."""
    return re.sub(r"\d+", "0", line.casefold())


def paragraphs(page: str) -> dict[str, str]:
    """Return the text of a page's paragraphs and headings by their ids. Of an id that comes twice, the first.

    Those with a hidden variant are left out.
    """
    texts: dict[str, str] = {}
    for _, number, content in PARAGRAPH.findall(page):
        if HIDDEN not in content:
            texts.setdefault(number, " ".join(html.unescape(TAG.sub("", BREAK.sub(" ", content))).split()))
    return texts


def _pages(package: Path, folder: str, writer: DatasetWriter) -> dict[str, dict[str, str]]:
    """Return the paragraphs of each page."""
    pages = {}
    for number, (name, content) in enumerate(packages.files(package, below=folder), 1):
        pages[name] = paragraphs(content.decode("utf-8", errors="replace"))
        writer.progress(f"read {package.name}", number, None, "rows")
    return pages
