"""Pictures of the documentation, made by the tests that prove what they show.

`SCREENSHOTS=docs/images python -m pytest -n 0 tests/tracking/test_ui.py` writes them anew; without the
variable nothing is written.
"""

import os
from pathlib import Path

import chromium
from rich.text import Text


def save(page: chromium.Page, name: str) -> None:
    """Write what the browser shows now as a PNG of few colours."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        from PIL import Image

        path = Path(folder) / f"{name}.png"
        page.screen(path)
        Image.open(path).convert("P", palette=Image.Palette.ADAPTIVE, colors=64).save(path, optimize=True)


def terminal(text: Text, name: str, columns: int) -> None:
    """Write what a terminal showed, with its colours, as an SVG."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        from rich.console import Console

        with Path(os.devnull).open("w") as nowhere:
            console = Console(record=True, width=columns, file=nowhere, force_terminal=True)
            console.print(text, overflow="fold")
        svg = console.export_svg(title="", unique_id=name)
        (Path(folder) / f"{name}.svg").write_text(svg)
