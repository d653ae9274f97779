"""Code blocks of the documentation, and the site that it becomes."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from commands import PATIENCE_S
from conftest import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


# A comment before a block says how it is typed, and why not as it is.
MARKED = re.compile(r"(?:<!-- ([\w -]+): ([^>]*) -->\n+)?```(console|bash|python)\n(.*?)^```", re.M | re.S)
HOW = {
    "not typed": "not typed",  # the reason: a cloud, a GPU, half an hour
    "planned": "planned with --dry-run",  # the reason
    "may be refused": "typed",  # the sentence that a busy machine or a small one gets
    "ends with Ctrl-C": "typed",  # what it prints before
    "within": "typed",  # the file of tests/use/pages whose line "# the block" it stands for
    "": "typed",
}


@dataclass(frozen=True)
class Block:
    """A block of a page, and how it is typed."""

    language: str
    text: str
    how: str
    about: str


def newcomers_pages() -> list[Path]:
    """Return the pages of the first table of docs/index.md."""
    index = ROOT / "docs" / "index.md"
    table = index.read_text().partition("**Reference**")[0]
    return [(index.parent / link).resolve() for link in re.findall(r"\]\(([^)]+\.md)\)", table)]


def typed_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page that a reader would type."""
    found = MARKED.findall(page.read_text())
    return [Block(language, text, how, " ".join(about.split())) for how, about, language, text in found]


def counts() -> str:
    """Return how many blocks of the newcomer's pages are typed, how many are not, and why."""
    every = [block for page in newcomers_pages() for block in typed_blocks(page)]
    numbers = Counter(HOW[block.how] for block in every)
    lines = [f"blocks of README and the newcomer's pages: {len(every)}"]
    lines += [f"  {how}: {number}" for how, number in numbers.items()]
    reasons = [block for block in every if block.how in ("not typed", "planned")]
    return "\n".join([*lines, *(f"  {block.how}: {block.about}" for block in reasons)])


def blocks(page: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in this language; `text` blocks are output or need a cluster."""
    return [text for name, text in FENCE.findall(page.read_text()) if name == language]


def commands(page: Path) -> list[str]:
    """Return the command lines of a page's bash blocks."""
    lines = "\n".join(blocks(page, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def build(to: Path) -> subprocess.CompletedProcess[str]:
    """Build the site; a warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "docs", ".", str(to)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
