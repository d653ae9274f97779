"""Zip files, and an MLflow store that is ready at once."""

import shutil
import zipfile
from pathlib import Path


def with_store(output_root: Path, empty_store: Path) -> Path:
    """Make a folder of runs with an MLflow store that is empty, and return it; MLflow takes seconds."""
    output_root.mkdir(exist_ok=True)
    shutil.copy(empty_store, output_root / "mlflow.db")
    return output_root


def write(path: Path, files: dict[str, str]) -> Path:
    """Write the zip file and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, text in files.items():
            target.writestr(name, text)
    return path
