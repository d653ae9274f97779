from pathlib import Path

import pytest
from records import record

from mlbench.terminal import next_steps

FOLDER = Path("/results/a run")


def lines(uri, where: str | None = "4f2a91"):
    return dict(next_steps.links(record(), folder=FOLDER, where=where, tracking_uri=uri))


def test_a_database_is_opened_by_a_line_to_copy():
    text = lines("sqlite:////my results/mlflow.db")
    assert text["MLflow run"] == "4f2a91"
    assert text["MLflow UI"] == "mlflow ui --backend-store-uri 'sqlite:////my results/mlflow.db'"
    assert text["files"] == str(FOLDER)


@pytest.mark.parametrize("uri", ["http://10.0.0.3:5000", "https://mlflow.example.org/"])
def test_a_server_is_opened_by_its_address(uri):
    assert lines(uri)["MLflow UI"] == uri


@pytest.mark.parametrize("where", ["4f2a91", None])
def test_passwords_are_never_shown(where):
    text = str(lines("postgresql://me:secret@db/mlflow", where))
    assert "db/mlflow" in text
    assert "secret" not in text
    command = record(command="python -m mlbench.run tracking_uri=http://me:secret@server")
    assert "secret" not in next_steps.again(command)


def test_an_unreachable_store_loses_nothing():
    text = lines("http://10.0.0.3:5000", None)
    assert text["MLflow"].startswith("http://10.0.0.3:5000 could not be reached; nothing is lost")
    assert text[""] == "python -m mlbench.results sync output_root=/results"
    assert "MLflow run" not in text


@pytest.mark.parametrize(
    ("command", "status", "repeated"),
    [
        ("python -m mlbench.run", "goal_reached", "python -m mlbench.run seed=7 force=true"),
        (
            "python -m mlbench.run seed=7 force=true task=logreg",
            "goal_not_reached",
            "python -m mlbench.run task=logreg seed=7 force=true",
        ),
        ("python -m mlbench.run workers=4", "failed", "python -m mlbench.run workers=4 seed=7"),
        (
            "python -m mlbench.run 'data_root=/my data'",
            "interrupted",
            "python -m mlbench.run 'data_root=/my data' seed=7",
        ),
    ],
)
def test_the_command_repeats_the_run_with_its_seed(command, status, repeated):
    assert next_steps.again(record(command=command, status=status)) == repeated


def test_a_run_of_the_past_names_its_folder_and_the_store():
    text = dict(next_steps.stored(record(), folder=FOLDER, tracking_uri="sqlite:////r/mlflow.db"))
    assert text.keys() == {"run again", "files", "MLflow UI"}
