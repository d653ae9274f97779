"""Reference convergence points: the shipped ones, and runs that needed too few epochs to be true."""

import json
from importlib.metadata import EntryPoint
from itertools import pairwise
from typing import Any

import pytest
import records
import studies
from syrupy.assertion import SnapshotAssertion

from mlbench import results
from mlbench.analysis import rcp
from mlbench.config import plugins
from mlbench.config.compose import choices
from mlbench.record import study
from mlbench.record.record import Record
from mlbench.report import writer
from mlbench.tasks import rcp as task_rcp
from mlbench.tasks import registry
from mlbench.terminal import full_card
from tools import rcp_from_results

MLPERF = [39, 42, 40, 41, 39, 40, 41, 39, 40, 39]  # rcps_resnet.json, BS 4096, of mlcommons/logging 4.1.68


ABOUT: dict[str, Any] = {"missed": 0, "when": "", "platform": ""}


def checker(benchmark: str, references: dict[str, object], path: str):
    """Return MLPerf's own checker of reference convergence points, over our references."""
    real = pytest.importorskip("mlperf_logging.rcp_checker.rcp_checker")
    real.submission_runs["training"][benchmark] = 5
    with open(path, "w") as file:
        json.dump(references, file)
    with open(path) as file:
        return real.RCP_Checker("training", "4.0.0", benchmark, False, file)


def reference(epochs: list[float], batch: int = 64) -> dict[str, object]:
    return rcp.record(
        "x", epochs, hyperparameters={"global_batch_size": batch}, missed=0, when="", platform=""
    )


@pytest.mark.parametrize("epochs", [MLPERF, [11, 8, 7, 9, 8, 7, 7, 11, 13, 9], [2.3, 2.6, 2.3], [4.0] * 5])
def test_the_least_number_of_epochs_is_that_of_mlperf_s_code(epochs: list[float], tmp_path) -> None:
    theirs = checker("x", {"x_ref_64": reference(epochs)}, str(tmp_path / "rcps_x.json"))
    least = theirs.rcp_data["x_ref_64"]["Min Epochs"]
    assert rcp.fewest_epochs(epochs, runs=5) == pytest.approx(least, abs=2 * theirs.tolerance)


def test_the_standard_deviation_is_that_of_all_runs_as_in_mlperf_s_code() -> None:
    """MLPerf's rules leave the extremes out of it, which would give 39.49 here."""
    assert rcp.fewest_epochs(MLPERF, runs=5) == pytest.approx(38.634, abs=5e-4)


@pytest.mark.parametrize("task", [task for task in choices("task") if registry.reference_convergence(task)])
def test_the_shipped_references_are_the_tables_of_the_documentation(task: str) -> None:
    """If a recipe or a table changed: PYTHONPATH=. python tools/rcp_from_results.py TASK."""
    assert registry.reference_convergence(task) == rcp_from_results.references()[task]


def made(workers: int, seed: int, epochs: float, **changes) -> Record:
    return studies.run(workers, seed, time=10, epochs=int(epochs), **changes).model_copy(
        update={"epochs": float(epochs)}
    )


def test_the_task_of_a_package_has_no_name_of_mlperf_s(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_task").mkdir()
    (tmp_path / "their_task" / "__init__.py").write_text("Config = prepare = None\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = EntryPoint("theirs", "their_task", "mlbench.tasks")
    monkeypatch.setattr(plugins, "_points", lambda group: (point,) if group == "mlbench.tasks" else ())
    assert registry.mlperf("theirs") is None
    assert task_rcp.benchmark({"task": {"name": "theirs"}, "scale": "mini"}) == "theirs_mini"
    assert task_rcp.benchmark({"task": {"name": "resnet50"}, "scale": "official"}) == "resnet"


@pytest.mark.slow
def test_too_few_epochs_are_told_in_card_and_report(
    tmp_path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    good, bad = made(2, 1, 9), made(2, 2, 2)
    point = rcp.record(
        "resnet20_mini",
        [11, 8, 7, 9, 8, 7, 7, 11, 13, 9],
        hyperparameters=task_rcp.hyperparameters(good),
        **ABOUT,
    )
    monkeypatch.setattr(registry, "reference_convergence", lambda task: {"resnet20_mini_ref_64": point})
    assert task_rcp.warning([good]) is None
    told = task_rcp.warning([bad])
    assert told == snapshot
    shown = " ".join(" ".join(line.plain for line in full_card.full(bad, 400)).split())
    assert str(told) in shown
    writer.write([bad], tmp_path, study=writer.StudyText("s", "?", ()))
    assert told in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "changes",
    [{"workers": 4}, {"experiment": {"goal": 90.0}}, {"status": "goal_not_reached"}, {"source": "other"}],
)
def test_a_reference_says_nothing_about_other_runs(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    point = rcp.record("x", [9.0] * 5, hyperparameters=task_rcp.hyperparameters(made(2, 1, 9)), **ABOUT)
    monkeypatch.setattr(registry, "reference_convergence", lambda task: {"x": point})
    assert task_rcp.warning([made(2, 1, 2)]) is not None
    values = {"workers": 2} | changes
    assert task_rcp.warning([made(values.pop("workers"), 1, 2, **values)]) is None


def test_a_study_becomes_mlperf_s_file(tmp_path) -> None:
    runs = [made(2, seed, 8 + seed % 3) for seed in range(6)] + [made(4, seed, 9) for seed in range(3)]
    runs += [made(2, 7, 3, status="goal_not_reached"), made(1, 1, 9), made(1, 2, 9)]
    ((name, points),) = task_rcp.files(runs).items()
    assert name == "resnet20_mini" and list(points) == ["resnet20_mini_ref_64", "resnet20_mini_ref_128"]
    first = points["resnet20_mini_ref_64"]
    assert first[rcp.EPOCHS] == [8, 9, 10, 8, 9, 10] and first["Not converged"] == 1
    theirs = checker(name, points, str(tmp_path / "rcps.json"))
    assert [entry["BS"] for entry in theirs.rcp_data.values()] == [64, 128]
    assert all(a["BS"] < b["BS"] for a, b in pairwise(theirs.rcp_data.values()))


def test_the_command_writes_the_file(tmp_path, capsys) -> None:
    runs = [made(2, seed, 8) for seed in range(3)]
    plan = study.new("s", question="?").model_copy(
        update={"points": (study.StudyPoint(key=runs[0].key, overrides=(), seeds=(0, 1, 2)),)}
    )
    study.save(plan, study.folder(tmp_path, "s"))
    for run in runs:
        folder = tmp_path / f"run-{run.seed}"
        folder.mkdir()
        records.save(run.model_copy(update={"run_id": folder.name}), folder)
    assert results.main(["rcp", "s", f"to={tmp_path / 'rcps'}", f"output_root={tmp_path}"]) == 0
    path = tmp_path / "rcps" / "rcps_resnet20_mini.json"
    assert capsys.readouterr().out.split() == [str(path)]
    assert json.loads(path.read_text())["resnet20_mini_ref_64"][rcp.EPOCHS] == [8, 8, 8]
    assert results.main(["rcp", f"output_root={tmp_path}"]) == 2
