"""Code blocks of the documentation, and the site that it becomes."""

import re
import subprocess
import sys
from pathlib import Path

from commands import PATIENCE_S
from conftest import ROOT

FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.M | re.S)


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
