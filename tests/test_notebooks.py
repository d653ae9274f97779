"""The notebooks run from top to bottom: on the sample records, and on records of a user's own."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
import sample
from driven import Run

import mlbench
from mlbench.config.errors import UserError
from mlbench.record import reader, study
from tools import notebooks
from tools import sample as sample_tool

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


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
    with pytest.raises(UserError, match=r"'speed_up': .*speedup\?"):
        mlbench.draw(runs, "phases", "speed_up")
    assert {picture.chart.name for picture in mlbench.draw(runs, "speedup")} == {"speedup"}


def test_a_verdict_stands_beside_the_measure_that_it_is_about(tmp_path: Path) -> None:
    """It said "no difference shown" beside 1.63 times the samples a second (1.54 to 1.67)."""
    runs: Any = mlbench.load_runs(sample.copy(tmp_path / "runs"))
    a, b = (runs[(runs.task == "resnet20") & (runs.workers == count)] for count in (1, 2))
    table: Any = mlbench.compare(a, b)
    assert list(table.measure[table.verdict != ""]) == ["time_to_accuracy"]


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_stored: Any
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
    with pytest.raises(AssertionError, check=as_stored):
        sample_tool.main(str(root))
