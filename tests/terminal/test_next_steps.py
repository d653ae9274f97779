from pathlib import Path

import pytest
from records import record, save

from mlbench.terminal import next_steps

FOLDER = Path("/results/a run")


def test_a_database_is_opened_by_a_line_to_copy(tmp_path, monkeypatch):
    label, text = next_steps.opening("sqlite:////my results/mlflow.db")
    assert (label, text) == ("MLflow", "mlbench results mlflow 'output_root=/my results'")
    monkeypatch.chdir(tmp_path)
    _, near = next_steps.opening(f"sqlite:///{tmp_path}/runs/mlflow.db")
    assert near == "mlbench results mlflow"
    _, other = next_steps.opening("sqlite:////r/other.db")
    assert other == "mlbench results mlflow tracking_uri=sqlite:////r/other.db"
    server = next_steps.opening("https://mlflow.example.org/")
    assert server == ("MLflow", "mlbench results mlflow tracking_uri=https://mlflow.example.org/")


def test_passwords_are_never_shown():
    uri = "postgresql://me:secret@db/mlflow"
    shown = [next_steps.opening(uri), next_steps.stored(record(), folder=FOLDER, tracking_uri=uri)]
    shown += next_steps.lacking(record(), folder=FOLDER, where=None, tracking_uri=uri)
    assert "db/mlflow" in str(shown) and "secret" not in str(shown)
    command = record(command="python -m mlbench.run tracking_uri=http://me:secret@server")
    assert "secret" not in next_steps.again(command)


def test_an_unreachable_store_loses_nothing():
    uri = "http://10.0.0.3:5000"
    assert next_steps.lacking(record(), folder=FOLDER, where="4f2a91", tracking_uri=uri) == []
    first, second = next_steps.lacking(record(), folder=FOLDER, where=None, tracking_uri=uri)
    assert first.startswith(f"MLflow: {uri} could")
    assert second.strip() == "mlbench results sync output_root=/results"


def test_an_interrupted_run_does_not_call_its_store_unreachable():
    stopped = record(status="interrupted", error="stopped by the user")
    first, _ = next_steps.lacking(stopped, folder=FOLDER, where=None, tracking_uri="sqlite:////r/mlflow.db")
    assert "(interrupted)" in first


@pytest.mark.parametrize(
    ("command", "status", "repeated"),
    [
        ("python -m mlbench.run", "goal_reached", "mlbench run seed=7 force=true"),
        (
            "python -m mlbench.run seed=7 force=true task=logreg",
            "goal_not_reached",
            "mlbench run task=logreg seed=7 force=true",
        ),
        ("python -m mlbench.run workers=4", "failed", "mlbench run workers=4 seed=7"),
        (
            "python -m mlbench.run task=mine 'hydra.searchpath=['\"'\"'/my/conf'\"'\"']'",
            "failed",
            "mlbench run task=mine --config-dir /my/conf seed=7",
        ),
        (
            "python -m mlbench.run 'data_root=/my data'",
            "interrupted",
            "mlbench run 'data_root=/my data' seed=7",
        ),
    ],
)
def test_the_command_repeats_the_run_with_its_seed(command, status, repeated):
    assert next_steps.again(record(command=command, status=status)) == repeated


def test_the_full_card_is_found_by_the_shortest_unique_end_of_the_name(tmp_path):
    run = record()
    folder = tmp_path / "runs" / run.run_id
    folder.mkdir(parents=True)
    save(run, folder)
    root = f"output_root={tmp_path}/runs"
    assert next_steps.full(run, folder) == f"mlbench results show {root} 7 --full"
    twin = run.run_id.replace("w2", "w4")
    (folder.parent / twin).mkdir()
    save(run.model_copy(update={"run_id": twin}), folder.parent / twin)
    assert next_steps.full(run, folder).endswith(f"{run.run_id} --full")
