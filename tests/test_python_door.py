"""`import mlbench` in a program: what it offers, and that it does what the commands do."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sample
from conftest import ROOT
from records import record

import mlbench
from mlbench.api import overrides
from mlbench.api.logged import LoggedSweep
from mlbench.config.compose import compose
from mlbench.config.experiment import Experiment
from mlbench.terminal.sweep_view import PointProgress


def test_every_name_that_is_offered_is_there_and_known_to_type_checkers() -> None:
    for name in mlbench.__all__:
        assert getattr(mlbench, name) is not None
    stub = ast.parse((ROOT / "mlbench/__init__.pyi").read_text())
    named = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    named |= {ast.unparse(node.target) for node in stub.body if isinstance(node, ast.AnnAssign)}
    assert named - {None, "__all__"} == set(mlbench.__all__)


@pytest.mark.parametrize(
    "text",
    [
        "import mlbench.run; assert callable(mlbench.run) and mlbench.run.COMMAND",
        "import mlbench; assert callable(mlbench.sweep) and mlbench.sweep.COMMAND",
        "from mlbench import predict; assert callable(predict) and predict.COMMAND",
        "import mlbench; mlbench.measure; import mlbench.measure; mlbench.measure('loss')",
        "import mlbench.measure as measure; measure('loss')",
        "from mlbench.measure import COMMAND, measure; import mlbench; assert mlbench.measure is measure",
    ],
)
def test_a_command_can_be_called_whichever_of_the_two_was_imported_first(text: str) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["run", "sweep", "predict"])
def test_a_command_takes_settings(name: str) -> None:
    assert "settings" in inspect.signature(getattr(mlbench, name)).parameters


def test_the_import_brings_nothing_heavy() -> None:
    heavy = ("torch", "ray", "mlflow", "numpy", "hydra", "pydantic")
    text = f"import sys, mlbench; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", text], text=True) == "[]\n"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"task": "gnmt", "workers": 8}, ["task=gnmt", "workers=8"]),
        ({"goal": None, "force": True, "seed": 1}, ["goal=null", "force=true", "seed=1"]),
        ({"task": {"epochs": 3}}, ["task.epochs=3"]),
        ({"output_root": Path("/tmp/a b")}, ["output_root='/tmp/a b'"]),
        ({"task.dtypes": ["float32", "bfloat16"]}, ["task.dtypes=[float32,bfloat16]"]),
    ],
)
def test_settings_are_the_words_of_the_commands(settings: dict[str, Any], words: list[str]) -> None:
    assert overrides.from_settings(settings) == words


def test_a_path_with_any_character_arrives_as_it_is(tmp_path: Path) -> None:
    odd = tmp_path / "it's a, b=c {d}"
    composed = compose(overrides.from_settings({"task": "logreg", "output_root": odd}))
    assert isinstance(composed, Experiment) and composed.output_root == odd


def test_several_values_are_those_of_a_sweep() -> None:
    given = {"workers": [1, 2], "task": ("logreg", "resnet20")}
    assert overrides.from_settings(given, several=True) == ["workers=1,2", "task=logreg,resnet20"]


PROGRAM = """
import logging, sys, mlbench
logging.basicConfig(filename="log", level="INFO")
for _ in range(2):
    record = mlbench.run(
        "task.epochs=1", "division=open", "goal=none", task="logreg", workers=1, launcher="torchrun", seed=3,
        output_root="runs", data_root=sys.argv[1],
    )
    print(record.status, record.seed, record.run_id)
"""


@pytest.mark.slow
def test_a_run_returns_its_record_logs_and_prints_nothing(tmp_path: Path, data_root: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, str(data_root)]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    first, again = done.stdout.splitlines()
    status, seed, run_id = first.split()
    assert (status, seed) == ("completed", "3") and again == first  # the second is the first's record
    assert json.loads((tmp_path / "runs" / run_id / "record.json").read_text())["run_id"] == run_id
    assert "INFO:mlbench:validation " in (tmp_path / "log").read_text()


def test_a_sweep_logs_its_progress_and_draws_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "mlbench"), LoggedSweep([PointProgress("workers=1", 1)]) as view:
        view.started("workers=1 seed=3")
        view.redraw()
        view.ended("workers=1 seed=3", record("workers=1"), None)
    assert {(entry.name, entry.levelname) for entry in caplog.records} == {("mlbench", "INFO")}
    assert caplog.messages[0] == "1/1 workers=1 seed=3" and "1/1 done" in caplog.messages[-1]
    assert (view.broken, capsys.readouterr()) == (False, ("", ""))


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"task": "gnm"}, mlbench.ConfigurationError),
        ({"task": "logreg", "workers": 0}, mlbench.ConfigurationError),
        ({"task": "gpt", "scale": "official", "launcher": "torchrun"}, mlbench.DataError),
    ],
)
def test_a_mistake_has_its_kind(settings: dict[str, Any], kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        mlbench.run(**settings, output_root=tmp_path, data_root=tmp_path)
    assert isinstance(caught.value, mlbench.UserError) and [*tmp_path.iterdir()] == []


def test_runs_and_studies_that_are_not_there_have_their_kind(tmp_path: Path) -> None:
    with pytest.raises(mlbench.ResultError, match="load_study"):
        mlbench.compare("study:mine", "study:nope")  # type: ignore[arg-type]
    with pytest.raises(mlbench.ResultError, match="nowhere"):
        mlbench.load_runs(tmp_path / "nowhere")
    with pytest.raises(mlbench.ResultError, match="nope"):
        mlbench.load_study("nope", output_root=str(tmp_path))


def test_a_prediction_is_that_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    rows = mlbench.predict("published:gnmt", workers=[1, 2, 4], network="25gbit,30us")
    line = ["published:gnmt", "workers=1,2,4", "network=25gbit,30us", "--json"]
    assert mlbench.predict.main(line) == 0
    assert json.loads(capsys.readouterr().out)["predictions"] == json.loads(json.dumps(rows))


def test_records_are_compared_as_their_table_is(tmp_path: Path) -> None:
    sample.copy(tmp_path / "runs")
    runs = mlbench.load_runs(tmp_path / "runs")
    sides = [runs[(runs.task == "logreg") & (runs.workers == workers)] for workers in (1, 2)]
    records = [
        [mlbench.Record.model_validate_json((Path(f) / "record.json").read_text()) for f in side["folder"]]
        for side in sides
    ]
    assert mlbench.compare(*records).equals(mlbench.compare(*sides))
