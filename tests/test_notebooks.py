"""The notebooks run from top to bottom: on the sample records, and on records of a user's own."""

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
import sample
from commands import PATIENCE_S
from driven import Run
from nbclient import NotebookClient
from records import record, save

import mlbench
from mlbench.config.errors import UserError
from mlbench.record import reader, study
from tools import notebooks
from tools import sample as sample_tool

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def executed(path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook in a kernel of its own; return all that it printed and showed as text."""
    monkeypatch.setenv("MLBENCH_RUNS", str(runs))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=PATIENCE_S, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no figure was drawn"
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs)
    return os.linesep.join(texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:Proactor:RuntimeWarning", "ignore::DeprecationWarning")
def test_the_outputs_of_a_notebook_are_those_of_the_sample_records(path: Path) -> None:
    """What the documentation shows is what the code of today prints; else run tools/notebooks.py."""
    stored, fresh = (nbformat.read(path, as_version=4), notebooks.execute(path))
    assert notebooks.texts(stored) == notebooks.texts(fresh)
    assert "picture" in notebooks.texts(stored)
    shown = "\n".join(notebooks.texts(stored))
    assert ("gnmt" if path.stem == "published_results" else "resnet20") in shown


def test_a_chart_that_does_not_exist_is_named_and_not_left_out(tmp_path: Path) -> None:
    runs = mlbench.load_runs(sample.copy(tmp_path / "runs"))
    with pytest.raises(UserError, match=r"no chart 'speed_up': did you mean speedup\?"):
        mlbench.draw(runs, "phases", "speed_up")
    assert {picture.chart.name for picture in mlbench.draw(runs, "speedup")} == {"speedup"}


def test_a_verdict_stands_beside_the_measure_that_it_is_about(tmp_path: Path) -> None:
    """It said "no difference shown" beside 1.63 times the samples a second (1.54 to 1.67)."""
    runs: Any = mlbench.load_runs(sample.copy(tmp_path / "runs"))
    a, b = (runs[(runs.task == "resnet20") & (runs.workers == count)] for count in (1, 2))
    table: Any = mlbench.compare(a, b)
    assert list(table.measure[table.verdict != ""]) == ["time_to_accuracy"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_notebook_runs_on_the_users_own_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for workers in (1, 2):
        for seed in (1, 2, 3):
            run = f"run-{workers}-{seed}"
            (tmp_path / run).mkdir()
            seconds = 90 / workers + seed
            made = record(f"workers={workers}", run_id=run, key=f"{workers}" * 16, seed=seed)
            made = made.model_copy(update={"time_to_accuracy": seconds})
            save(made, tmp_path / run)
    path = next(path for path in NOTEBOOKS if path.stem == "compare_runs")
    assert "B is faster" in executed(path, tmp_path, monkeypatch)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs_name_no_path_of_a_machine_and_are_small(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    assert book.metadata == notebooks.METADATA and path.stat().st_size < 1e6  # bytes
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
    texts = "\n".join(notebooks.texts(book))
    assert str(path.parent.parent) not in texts and "Traceback" not in texts and "/home/" not in texts


def test_the_sample_s_records_are_as_logged() -> None:
    """Also where a later version reads them: what a release measured can still be checked."""
    paths = [*sample.SAMPLE.glob("*/record.json")]
    records = [reader.load(path) for path in paths]
    assert {reader.verdict(path.parent)[0] for path in paths} == {"as logged"}
    assert [run.contradictions for run in records] == [[]] * len(records)


def test_a_sample_ships_logs_from_which_its_records_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, to = tmp_path / "runs", tmp_path / "sample"
    run = Run(root, "study=two-cores", f"data_root={tmp_path}/data")
    run.validate(90.0)
    run.end("goal_reached")
    made = run.seal()
    point = study.StudyPoint(key=made.key, overrides=(), seeds=(made.seed,))
    plan = study.new("two-cores", question="?").model_copy(update={"points": (point,)})
    study.save(plan, study.folder(root, "two-cores"))
    (study.folder(root, "two-cores") / study.LOG).write_text("")
    monkeypatch.setattr(sample_tool, "SAMPLE", to)
    sample_tool.main(str(root))
    assert reader.verdict(to / "run-7") == ("as logged", "")
    assert reader.load(to / "run-7" / "record.json").contradictions == []
    assert not [path for path in to.rglob("*.*") if str(tmp_path) in path.read_text()]
    busy = made.model_copy(update={"disturbances": ["other processes used 1 of the 2 CPUs"]})
    busy.save(run.folder)
    with pytest.raises(AssertionError, match="measured on a machine that did something else"):
        sample_tool.main(str(root))
