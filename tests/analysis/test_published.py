"""The table of published numbers: complete, sourced, and consistent with itself."""

import csv
import math
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

from mlbench.analysis import published

RUNS = published.load(study="mlbench-2021-runs", publisher="mlbench")


def cell(metric: str, task: str, workers: int, *, label: str = "all-reduce", backend: str = "nccl") -> float:
    (value,) = (
        row.value
        for row in RUNS
        if (row.metric, row.task, row.workers, row.label) == (metric, task, workers, label)
        and row.backend in (backend, "all")
    )
    return value


def test_every_table_has_its_study_and_every_study_its_table() -> None:
    folder = files("mlbench.analysis")
    studies = yaml.safe_load(folder.joinpath("published_studies.yaml").read_text())
    tables = {path.name.removesuffix(".csv") for path in folder.joinpath("tables").iterdir()}
    assert set(studies) == tables == {row.study for row in published.load()}


def test_every_number_says_where_it_is_from_and_what_is_wrong_with_it() -> None:
    for row in published.load():
        assert row.source and row.caveat and row.title and row.unit
        assert row.publisher in ("mlbench", "peer")
        assert row.n is None or row.n >= 1


def test_the_published_totals_to_the_printed_digits() -> None:
    assert cell("train_time", "gnmt", 16) == 23526
    assert cell("communication", "transformer", 8) == 8848
    assert cell("train_time", "resnet20", 8, backend="mpi", label="ddp") == 42.0
    assert cell("validations", "awdlstm", 2) == 299
    assert (RUNS[0].software, RUNS[0].n) == ("PyTorch 1.7.0", 1)
    assert len(RUNS) == 38 * 12


def test_numbers_of_charts_say_so_and_can_be_told_from_exact_ones() -> None:
    charted = published.load(study="mlbench-2020-resnet20")
    assert charted and all(row.chart for row in charted)
    assert not any(row.chart for row in RUNS)


def test_the_documentation_has_every_study() -> None:
    documented = (ROOT / "docs" / "measurements" / "published.md").read_text()
    assert f"{len(published.load()):,} numbers" in documented
    assert all(f"| `{row.study}` | {row.title} |" in documented for row in published.load())


COLUMNS = {  # of tables/mlbench-2021-runs.csv, with the original's names of the steps that they add up
    "compute": ("fwd_pass", "comp_loss", "backprop", "opt_step"),
    "communication": ("agg",),
    "metrics": ("comp_metrics",),
    "load": ("batch_load",),
    "forward": ("fwd_pass",),
    "loss": ("comp_loss",),
    "backward": ("backprop",),
    "optimizer": ("opt_step",),
}


def archived_row(run: published.ArchivedRun) -> dict[str, float]:
    """Return a row of the published table, computed from the curves of an archive."""
    curves = published.curves(run.path)

    def last(metric: str) -> float:
        points = curves.get((metric, 0))
        return points[-1].value if points else 0.0

    row = {name: sum(last(f"global_cum_{step}") for step in steps) for name, steps in COLUMNS.items()}
    row["train_time"] = last("TotalCumulativeTrainTime")
    row["final_metric"] = last(f"val_global_{run.goal_metric}")
    row["validations"] = len(curves[f"val_global_{run.goal_metric}", 0])
    return row


@pytest.mark.slow
def test_the_published_totals_follow_from_the_archived_curves_to_the_printed_digit() -> None:
    text = (published.FOLDER / "tables" / "mlbench-2021-runs.csv").read_text()
    checked = 0
    archived = {
        (run.task, run.sync, run.backend, run.workers): archived_row(run)
        for run in published.archived_runs()
        if run.task != "allreduce"
    }
    for printed in csv.DictReader(text.splitlines()):
        backend = "gloo" if printed["backend"] == "all" else printed["backend"]
        of_backend = printed["task"], printed["label"], backend
        row = archived[*of_backend, int(printed["workers"])]
        row["speed_up"] = archived[*of_backend, 1]["train_time"] / row["train_time"]
        for column, cell_text in printed.items():
            name, bracket, _ = column.partition(" [")
            if bracket and cell_text:
                digits = len(cell_text.partition(".")[2])
                assert f"{row[name]:.{digits}f}" == cell_text, (printed, column)
                checked += 1
    assert checked == 38 * 12


def test_all_reduce_times_are_means_over_ranks_and_not_of_one() -> None:
    means: dict[tuple, list[float]] = {}
    for run in published.archived_runs("allreduce"):
        curves = published.curves(run.path)
        for rank in range(run.workers):
            columns = (curves[f"val_{name}", rank] for name in ("dtype", "tensor_size", "avg_time"))
            for dtype, size, seconds in zip(*columns, strict=True):
                key = (run.backend, run.device, f"float{dtype.value:.0f}", run.workers, f"{size.value:.1e}")
                means.setdefault(key, []).append(seconds.value)
    text = (published.FOLDER / "tables" / "mlbench-2020-allreduce.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == 168
    for row in rows:
        size = f"{float(row['elements']):.1e}"
        values = means[row["backend"], row["device"], row["dtype"], int(row["workers"]), size]
        printed = row["mean_time [ms]"]
        mean_ms = 1000 * math.fsum(values) / len(values)
        assert f"{mean_ms:.{len(printed.partition('.')[2])}f}" == printed
    assert all("over all ranks" in row.caveat for row in published.load(study="mlbench-2020-allreduce"))


def test_every_archive_has_its_caveats_and_copies_are_known() -> None:
    runs = published.archived_runs()
    assert len(runs) == len({run.path for run in runs}) == 57
    assert all(run.caveats for run in runs)
    copies = {run.path for run in runs if "published again" in " ".join(run.caveats)}
    assert len(copies) == 6 and all(path.endswith("-1.zip") for path in copies)
    size = sum(path.stat().st_size for path in Path(published.FOLDER / "archives").iterdir())
    assert size < 3e6
