"""Every data set that tasks can prepare here is described in valid Croissant."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mlbench.config import compose
from mlbench.datasets import arrow, croissant
from mlbench.tasks import registry

MANIFEST = {"name": "small", "source": "made here (https://example.org/data)", "licence": "CC0-1.0"}


def splits(writer: arrow.DatasetWriter) -> None:
    columns = {"x": np.zeros((4, 2, 3), np.float32), "y": np.arange(4)}
    writer.write("train", [arrow.record_batch(columns)])
    texts = pa.record_batch({"text": pa.array(["a", "b"], pa.large_string())})
    writer.write("test", [texts])


def valid(path: Path) -> dict[str, Any]:
    """Return a description that MLCommons' own validator accepts."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="pip install mlcroissant")
    metadata = mlcroissant.Dataset(jsonld=str(path)).metadata
    assert metadata.issues.errors == set() or list(metadata.issues.errors) == []
    return json.loads(path.read_text())


@pytest.mark.filterwarnings("ignore")  # of mlcroissant's own dependencies
def test_a_prepared_data_set_has_a_valid_description(tmp_path: Path) -> None:
    folder = arrow.write_dataset(tmp_path / "small", splits, manifest=MANIFEST)
    described = valid(folder / croissant.NAME)
    manifest = arrow.read_manifest(folder)
    files = {file["name"]: file["sha256"] for file in described["distribution"]}
    assert files == {split["file"]: split["sha256"] for split in manifest["splits"].values()}
    assert described["url"] == "https://example.org/data" and described["license"] == "CC0-1.0"
    train, test = described["recordSet"]
    kinds = {
        field["name"]: (field["dataType"], field.get("repeated")) for field in train["field"] + test["field"]
    }
    assert kinds == {"x": ("sc:Float", True), "y": ("sc:Integer", None), "text": ("sc:Text", None)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["logreg", "resnet20"])
def test_a_task_s_mini_data_have_one(tmp_path: Path, task: str) -> None:
    config = compose.compose([f"task={task}"]).task
    data = registry.part(task, "data")
    assert data is not None
    folder = data.prepare_dataset(config, tmp_path)
    assert valid(folder / croissant.NAME)["name"] == arrow.read_manifest(folder)["name"]


def test_the_description_does_not_change_what_identifies_the_data(tmp_path: Path) -> None:
    folder = arrow.write_dataset(tmp_path / "small", splits, manifest=MANIFEST)
    before = arrow.manifest_hash(folder)
    (folder / croissant.NAME).unlink()
    assert arrow.manifest_hash(folder) == before
    arrow.verify(folder)
