"""The command on a table that it has not seen, as it is typed."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import published_predictions
import pytest

from mlbench.analysis import published_results, systems
from mlbench.analysis.systems import SPREADS, SystemsModel

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "mlbench" / "analysis" / "results" / "mlperf-training-v5.1-part.csv"


def printed(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "benchmarks/published_predictions.py", *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def rates(text: str) -> dict[str, tuple[int, float, float]]:
    found = re.findall(
        r"^(.*?): (\d+) predictions?, median error ([\d.]+) %, .* hold ([\d.]+) %$", text, re.M
    )
    return {name: (int(count), float(error), float(share)) for name, count, error, share in found}


def test_the_shipped_part_of_v5_1_is_predicted_as_the_page_states() -> None:
    done = printed(TABLE)
    assert done.returncode == 0, done.stderr
    found = rates(done.stdout)
    assert found["two sizes"][1] <= 15 and found["accelerator"][1] <= 25
    assert 76 <= found["all"][2] <= 84
    page = (ROOT / "docs" / "measurements" / "published-predictions.md").read_text()
    assert rates(page) == found
    assert "nebius_h200_n64 cannot be" in done.stdout


def test_a_table_of_hidden_rows_alone_is_predicted_from_what_ships(tmp_path: Path) -> None:
    lines = TABLE.read_text().splitlines()
    hidden = [
        line.replace("Nebius,nebius_b200_n4", "Hidden,box") for line in lines if "nebius_b200_n4" in line
    ]
    path = tmp_path / "hidden.csv"
    path.write_text("\n".join([lines[0], *hidden]) + "\n")
    done = printed(path)
    assert done.returncode == 0, done.stderr
    assert rates(done.stdout)["other submitters"][0] == len(hidden) == 3


def test_a_wrong_table_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "wrong.csv"
    path.write_text(TABLE.read_text().replace("global_batch", "batch_size", 1))
    done = printed(path)
    assert done.returncode == 2 and not done.stdout
    assert "line 1: " in done.stderr and "unknown column 'batch_size'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert printed().returncode == 2
    assert printed(tmp_path / "none.csv").returncode == 2


def test_the_shipped_spreads_are_those_that_the_command_fits() -> None:
    model = SystemsModel(published_results.shipped())
    assert published_predictions.fitted(range(len(model.rows)), model) == pytest.approx(SPREADS, abs=0.002)


def test_the_spreads_of_a_made_up_world_are_found_again() -> None:
    rows = [row for row in published_results.shipped() if row.benchmark in systems.convergence()]
    spreads = SPREADS | {"noise": 0.2, "system": 0.3}
    model = SystemsModel(rows, spreads)
    rng = np.random.default_rng(0)
    drawn = rng.multivariate_normal(model.prior, model.covariance + model.noise * np.eye(len(rows)))
    made = []
    for i, row in enumerate(rows):
        (samples,) = model.samples(i, [i])
        minutes = float(np.exp(drawn[i] + samples) / row.accelerators)
        made.append(replace(row, minutes_mean_of_middle=minutes))
    again = published_predictions.fitted(range(len(made)), SystemsModel(made))
    assert again["noise"] == pytest.approx(0.2, rel=0.25) and again["system"] == pytest.approx(0.3, rel=0.3)


def test_leaving_a_submitter_out_of_the_spreads_changes_little() -> None:
    table = [row for row in published_results.shipped() if row.submitter == "Nebius"]
    plain, _ = published_predictions.predictions(table)
    nested, _ = published_predictions.predictions(table, nested=True)
    assert [one.forecast.minutes for one in nested] == pytest.approx(
        [one.forecast.minutes for one in plain], rel=0.05
    )
    assert nested != plain
