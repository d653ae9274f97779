"""The table of published numbers: complete, sourced, and consistent with itself."""

import csv
from importlib.resources import files

import pytest
import yaml
from conftest import ROOT

from mlbench.analysis import published, published_costs
from mlbench.experiment import format

RUNS = published.load(study="mlbench-2021-runs", publisher="mlbench")


def cell(metric: str, task: str, workers: int, *, label: str = "all-reduce", backend: str = "nccl") -> float:
    (found,) = (
        row.value
        for row in RUNS
        if (row.metric, row.task, row.workers, row.label) == (metric, task, workers, label)
        and row.backend in (backend, "all")
    )
    return found


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


def test_every_filled_cell_becomes_one_number() -> None:
    cells = 0
    for path in files("mlbench.analysis").joinpath("tables").iterdir():
        rows = list(csv.DictReader(path.read_text().splitlines()))
        cells += sum(bool(value) for row in rows for name, value in row.items() if name.endswith("]"))
    assert len(published.load()) == cells


def test_no_row_is_there_twice() -> None:
    seen = [tuple(vars(row).values()) for row in published.load()]
    assert len(seen) == len(set(seen))


def test_the_published_totals_to_the_printed_digits() -> None:
    assert cell("train_time", "gnmt", 16) == 23526
    assert cell("communication", "transformer", 8) == 8848
    assert cell("train_time", "resnet20", 8, backend="mpi", label="ddp") == 42.0
    assert cell("validations", "awdlstm", 2) == 299
    assert (RUNS[0].software, RUNS[0].n) == ("PyTorch 1.7.0", 1)
    assert len(RUNS) == 38 * 12


@pytest.mark.parametrize("task", ["gnmt", "transformer"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16])
def test_published_phases_add_up_and_speed_ups_follow(task: str, workers: int) -> None:
    phases = sum(cell(name, task, workers) for name in ("forward", "loss", "backward", "optimizer"))
    assert phases == pytest.approx(cell("compute", task, workers), rel=2e-3)
    speed_up = cell("train_time", task, 1) / cell("train_time", task, workers)
    assert speed_up == pytest.approx(cell("speed_up", task, workers), abs=0.006)


def test_the_merged_and_the_raw_baselines_are_one_run() -> None:
    table = published.load(study="mlbench-2021-table")
    for row in table:
        if row.metric == "train_time" and row.task and row.label and row.workers:
            raw = cell("train_time", row.task, row.workers, label=row.label)
            assert raw == pytest.approx(row.value, rel=1e-3)


def test_numbers_of_charts_say_so_and_can_be_told_from_exact_ones() -> None:
    charted = published.load(study="mlbench-2020-resnet20")
    assert charted and all(row.chart for row in charted)
    assert not any(row.chart for row in RUNS)


def test_tasks_and_publishers_can_be_chosen() -> None:
    found = published.load("gnmt", publisher="peer")
    assert found and all((row.task, row.publisher) == ("gnmt", "peer") for row in found)
    assert published.load("nothing") == []


def test_every_bar_of_the_cost_chart_is_a_factor_of_sixty_too_high() -> None:
    charted = published_costs.bars()
    assert len(charted) == 15
    for bar in charted:
        usd = bar.seconds * bar.workers * bar.usd_per_hour / 3600
        assert bar.charted_usd / usd == pytest.approx(60, rel=published_costs.PRECISION)
        assert bar.usd == pytest.approx(usd)
    assert {round(bar.usd_per_hour, 3) for bar in charted} == {0.04, 0.175}
    assert "15 bars" in published_costs.verdict(charted) and "minutes for hours" in published_costs.verdict(
        charted
    )


def test_the_documentation_has_every_bar_and_every_study() -> None:
    documented = (ROOT / "docs" / "published.md").read_text()
    assert published_costs.verdict(published_costs.bars()) in documented
    for bar in published_costs.bars():
        cells = [bar.label, str(bar.workers), f"{bar.seconds:,.0f} s", f"{bar.usd_per_hour:.3f} USD"]
        cells += [f"{bar.charted_usd:g} USD", format.usd(bar.usd), f"{bar.factor:.1f}"]
        assert f"| {' | '.join(cells)} |" in documented
    assert f"{len(published.load()):,} numbers" in documented
    assert all(f"| `{row.study}` | {row.title} |" in documented for row in published.load())


def test_the_verdict_is_not_said_of_a_chart_that_is_right() -> None:
    right = published_costs.Bar("PyTorch cpu", 1, seconds=3600, usd_per_hour=1.0, charted_usd=1.0, usd=1.0)
    with pytest.raises(AssertionError):
        published_costs.verdict([right])
