"""Tables and formats of MLflow that a new release may change."""

import base64
import json
import sqlite3
import zlib
from pathlib import Path

import mlflow
import pytest

from mlbench.tracking import mlflow_private


def test_tags_read_from_the_tables_are_those_that_mlflow_answers_with(tmp_path: Path) -> None:
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    experiments = [client.create_experiment(name) for name in ("ours", "others")]
    for n in range(6):
        run = client.create_run(
            experiments[n // 5], tags={"id": str(n), "done": "true" if n != 1 else "false"}
        )
        if n == 2:
            client.delete_run(run.info.run_id)
    values = mlflow_private.tag_values(tmp_path / "mlflow.db", experiments[0], tag="id", where="done")
    answer = client.search_runs(experiments[:1], "tags.done = 'true'", run_view_type=3)  # deleted runs, too
    assert values == {run.data.tags["id"] for run in answer} == {"0", "2", "3", "4"}


def test_a_database_with_other_tables_is_an_error_and_is_not_written_to(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        mlflow_private.tag_values(tmp_path / "no.db", "0", tag="id", where="done")
    assert not (tmp_path / "no.db").exists()


def test_a_saved_view_has_its_state_compressed() -> None:
    view = json.loads(mlflow_private.view("Results", {"orderByAsc": True}, created_ms=5))
    scheme, _, packed = view.pop("state").partition(";")
    assert (scheme, json.loads(zlib.decompress(base64.b64decode(packed)))) == (
        "deflate",
        {"orderByAsc": True},
    )
    assert view == {"name": "Results", "createdAt": 5, "updatedAt": 5}
