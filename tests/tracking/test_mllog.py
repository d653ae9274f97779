"""The exported log under MLPerf's own checker (mlperf-logging)."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from driven import Run
from mlperf_logging.compliance_checker import mlp_compliance as compliance
from records import record
from test_archive import exported

from mlbench.datasets import arrow
from mlbench.report import mllog

OURS = Path(__file__).parent / "mlperf_ruleset.yaml"
GOALS = {"gnmt": 24.1, "transformer": 25.2, "resnet50": 76.0}


def log_of(folder: Path, *overrides: str, values: tuple[float, ...]) -> Path:
    """Return the exported log of a run whose validations had these values."""
    run = Run(folder / "runs", *overrides)
    for value in values:
        run.validate(value)
    target = run.experiment.target
    reached = target is not None and target.reached(values[-1])
    run.end("goal_reached" if reached else "goal_not_reached")
    path = folder / "mllog.txt"
    path.write_text(exported(run, folder)["mllog.txt"])
    return path


def complaints(path: Path, config: str = "training_0.7.0/common.yaml") -> list[str]:
    """Return what MLPerf's checker says of a log; nothing is SUCCESS."""
    compliance.enqueued_configs.clear()
    checker = compliance.make_checker("training", "0.7.0", quiet=False, werror=True)
    valid = checker.check_file(str(path), config)
    said = [*checker.overwritable.values(), *checker.not_overwritable]
    assert valid == (not said)
    return said


def values(path: Path) -> dict[str, Any]:
    lines = (json.loads(line.removeprefix(":::MLLOG ")) for line in path.read_text().splitlines()[1:])
    return {line["key"]: line for line in lines}


@pytest.mark.parametrize("task", sorted(GOALS))
def test_official_logs_pass_mlperf_s_rules(task: str, tmp_path: Path) -> None:
    path = log_of(tmp_path, f"task={task}", "scale=official", values=(15.0, GOALS[task]))
    assert complaints(path) == []
    entries = values(path)
    assert entries["eval_accuracy"]["value"] == GOALS[task] / 100
    begin, end = (entries[key]["time_ms"] for key in ("eval_start", "eval_stop"))
    assert end - begin == 500 and entries["epoch_stop"]["time_ms"] == begin  # a validation of driven.Run
    division = entries["submission_division"]
    if task == "resnet50":
        assert division["value"] == "open" and "cosine" in division["metadata"]["reasons"][0]
        closed = path.read_text().replace('"value": "open"', '"value": "closed"')
        path.write_text(closed)
        assert any("sgd_opt_end_learning_rate" in said for said in complaints(path)), "why it is open"
    else:
        assert division["value"] == "closed"
        longest = entries["max_sequence_length"]  # with the marks of begin and end
        assert longest["value"] == {"gnmt": 75, "transformer": 80}[task]
        assert longest["metadata"]["method"] == "discard"


def test_samples_are_rows_of_what_trains_and_validates_in_however_many_files(tmp_path: Path) -> None:
    """ImageNet's splits have several, and a vocabulary is neither."""

    def write(writer: arrow.DatasetWriter) -> None:
        for split, rows in (("train-0000", 3), ("train-0001", 2), ("val-0000", 4), ("vocabulary", 9)):
            writer.write(split, [pa.record_batch({"row": pa.array(range(rows))})])

    manifest = {"name": "made up", "source": "this test", "licence": "CC0-1.0", "parameters": {}}
    run = record(f"data_root={tmp_path}")
    folder = arrow.write_dataset(tmp_path / run.experiment.task.dataset, write, manifest=manifest)
    run = run.model_copy(update={"data_hash": arrow.manifest_hash(folder)})
    (tmp_path / "mllog.txt").write_text(mllog.text(run, []))
    entries = values(tmp_path / "mllog.txt")
    assert (entries["train_samples"]["value"], entries["eval_samples"]["value"]) == (5, 4)


@pytest.mark.parametrize(
    ("overrides", "course"),
    [
        (("task=resnet20", "scale=official"), (60.0, 81.0)),
        (("task=resnet20",), (60.0, 96.0)),
        (("task=logreg",), (60.0, 89.5)),
        (("task=logreg", "goal=light"), (60.0, 70.0)),
        (("task=awdlstm",), (30.0, 16.0)),
        (("task=gnmt",), (30.0, 81.0)),
        (("task=resnet50",), (30.0, 50.0)),
    ],
)
def test_the_other_logs_pass_our_rules(
    overrides: tuple[str, ...], course: tuple[float, ...], tmp_path: Path
) -> None:
    path = log_of(tmp_path, *overrides, values=course)
    assert complaints(path, str(OURS)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"status": "aborted"', '"status": "success"'),
        ('"key": "global_batch_size"', '"key": "batch"'),
        ('"key": "epoch_stop"', '"key": "epoch_end"'),
        ('"key": "run_start"', '"key": "start"'),
    ],
)
def test_our_rules_can_fail(old: str, new: str, tmp_path: Path) -> None:
    path = log_of(tmp_path, "task=logreg", values=(60.0, 70.0))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert complaints(path, str(OURS)) != []
