"""Runs the notebooks on the sample records and stores their outputs: `python tools/notebooks.py`."""

import base64
import io
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

FOLDER = Path(__file__).parents[1] / "notebooks"
COLOURS = 64  # of a stored picture
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},  # without the version of the kernel that wrote the outputs
}


def execute(path: Path) -> NotebookNode:
    """Return a notebook with the outputs of a kernel of its own, of this checkout and the sample records."""
    book = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    env = {**os.environ, "PYTHONPATH": str(FOLDER.parent), "MLBENCH_RUNS": "sample"}
    env["JUPYTER_PLATFORM_DIRS"] = "1"
    NotebookClient(book, timeout=900, resources=resources, record_timing=False).execute(env=env)
    return book


def outputs(book: NotebookNode) -> list[NotebookNode]:
    return [output for cell in book.cells for output in cell.get("outputs", [])]


def texts(book: NotebookNode) -> list[str]:
    """Return what a notebook printed and showed as text; of a picture that there is one."""
    shown = (output.get("data", {}) for output in outputs(book))
    plain = (data.get("text/markdown") or data.get("text/plain", "") for data in shown)
    return [
        "picture" if "image/png" in output.get("data", {}) else output.get("text") or text
        for output, text in zip(outputs(book), plain, strict=True)
    ]


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        book = execute(path)
        for output in outputs(book):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = _small(output.data["image/png"])
        book.metadata = nbformat.from_dict(METADATA)
        nbformat.write(book, path)
        print(path)


def _small(png: str) -> str:
    """Return a picture of few colours, in base64 like the given one."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(COLOURS).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


if __name__ == "__main__":
    main()
