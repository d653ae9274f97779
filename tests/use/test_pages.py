"""Every block of README and of the newcomer's ten pages as a reader types it, page by page.

A page's blocks are typed in one folder, in order. A comment before a block, in the page's source, says how it
is typed otherwise, or why not at all (tests/doc_pages.py).
"""

from importlib.util import find_spec
from pathlib import Path

import doc_pages
import pytest
from conftest import ROOT
from installed import Answer, Place

pytestmark = pytest.mark.use
PAGES = doc_pages.newcomers_pages()
WITH_BLOCKS = [page for page in PAGES if doc_pages.typed_blocks(page)]
AROUND = ROOT / "tests" / "use" / "pages"
DDP = "tests/script/scripts/ddp.py"
# What a page says that the reader has: by the name in the reader's folder the file of this repository.
FILES = {
    "your-own-script.md": {"ddp.py": DDP, "train.py": "tests/use/pages/train.py"},
}


def test_every_block_is_typed_or_says_why_not() -> None:
    assert len(PAGES) == 14
    assert len([block for page in PAGES for block in doc_pages.typed_blocks(page)]) >= 20
    for page in PAGES:
        found = sum(len(doc_pages.blocks(page, name)) for name in ("console", "bash", "python"))
        assert found == len(doc_pages.typed_blocks(page)), page
        for block in doc_pages.typed_blocks(page):
            assert block.how in doc_pages.HOW and (block.about or not block.how), (page, block)
        commands = [
            text for text in doc_pages.blocks(page, "text") if text.startswith(("python ", "mlbench "))
        ]
        assert commands == [], f"{page}: make it a bash block"


@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.name)
def test_the_blocks_of_a_page_can_be_typed(place: Place, page: Path) -> None:
    for name, source in FILES.get(page.name, {}).items():
        (place.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (place.folder / name).write_bytes((ROOT / source).read_bytes())
    (place.folder / ".venv").symlink_to(place.environment["VIRTUAL_ENV"])
    for block in doc_pages.typed_blocks(page):
        if block.how != "not typed":
            {"bash": shell, "console": console, "python": python}[block.language](place, block)


def shell(place: Place, block: doc_pages.Block) -> None:
    """Type the lines of a block, up to the first that fails."""
    if block.how == "ends with Ctrl-C":
        place.type_until(block.text.strip(), block.about)
        return
    end = " --dry-run" if block.how == "planned" else ""
    lines = block.text.replace("\\\n", " ").splitlines()
    refused = block.how == "may be refused"
    answer = place.type("\n".join(["set -e", *(line + end for line in lines)]), codes=[0, 2][: 1 + refused])
    if answer.code and block.about not in answer.text:
        answer.fail(f"refused, and not by: {block.about}")


def console(place: Place, block: doc_pages.Block) -> None:
    """Type the command of a block; what it prints has a line for each that the page shows."""
    command, *shown = block.text.removeprefix("$ ").splitlines()
    if block.how == "planned":
        place.type(f"{command} --dry-run")
        return
    answer = place.type(command)
    # A card that is full of doubts leaves bars out.
    labels = {line.split()[0] for line in shown if line[:1].strip(" .") and " #" not in line}
    if lacking := labels - set(first_words(answer)):
        answer.fail(f"no line begins with {sorted(lacking)}")


def first_words(answer: Answer) -> list[str]:
    lines = (answer.stdout + answer.stderr).splitlines()
    return [line.split()[0] for line in lines if line[:1].strip()]


def python(place: Place, block: doc_pages.Block) -> None:
    """Run a block, within the file that its comment names."""
    whole = (AROUND / block.about).read_text() if block.how == "within" else "import mlbench\n# the block\n"
    if "transformers" in whole and find_spec("transformers") is None:
        return
    assert whole.count("# the block\n") == 1
    (place.folder / "block.py").write_text(whole.replace("# the block\n", block.text))
    place.type("python block.py")
