"""The table of seeds says what its runs were trained on, and the page's medians are those of its rows."""

import re
import statistics
from importlib import import_module
from typing import Any

import pytest
import studies
from conftest import ROOT

seeds: Any = import_module("seeds")


CHANGES = {
    "resnet20": ({}, {}),
    "resnet20 on fashion_mnist": ({}, {"dataset": "fashion_mnist"}),
    "resnet20 in bf16": ({}, {"precision": "bf16"}),
    "resnet20 in jax and bf16": ({"framework": "jax"}, {"precision": "bf16"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_heading_names_other_data_another_framework_and_another_precision(name: str) -> None:
    record, (changes, of_task) = studies.run(1, 0, time=9), CHANGES[name]
    software = record.software.model_dump() | {"packages": {"torch": "2.13.0", "jax": "0.11.0"}}
    experiment = changes | {"task": record.experiment.plain()["task"] | of_task}
    runs = [studies.run(1, seed, time=9, experiment=experiment, software=software) for seed in (1, 2)]
    table = seeds.table(runs)
    assert table.startswith(f"### {name}, mini, goal top1")
    assert ("jax 0.11.0," if "jax" in name else "torch 2.13.0,") in table


def test_a_missed_goal_counts_as_infinite_time() -> None:
    software = studies.run(1, 0, time=9).software.model_dump() | {"packages": {"torch": "2.13.0"}}
    runs = [studies.run(1, n, time=9 + 2 * n, epochs=3 + n, software=software) for n in (1, 2)]
    runs.append(studies.run(1, 3, time=30, epochs=9, software=software, status="goal_not_reached"))
    table = seeds.table(runs)
    assert "n = 3, 2 reached the goal" in table and "| median | | 5 | 13.0 | |" in table


def test_every_median_of_the_page_is_that_of_its_rows_and_the_same_in_every_table() -> None:
    page = (ROOT / "docs" / "measurements" / "results.md").read_text()
    medians = {}
    for heading, table in re.findall(
        r"^#{3,4} (\S+(?: in [a-z0-9 ]+)?), mini,.*?$(.*?\| median \|.*?)$", page, re.M | re.S
    ):
        cells = [
            [cell.strip() for cell in row.split("|")] for row in table.splitlines() if "goal_reached" in row
        ]
        medians[heading] = re.findall(r"median .*", table)[0].split("|")[3].strip()
        assert abs(statistics.median(float(row[4]) for row in cells) - float(medians[heading])) < 0.1, heading
    summary = re.findall(
        r"^\| (\w+) \| [^|]* \| [^|]* \| (\S+) \([^|]* \| (\S+) \([^|]* \| [\d.]+ \|$", page, re.M
    )
    assert len(summary) == 7
    for task, fp32, bf16 in summary:
        assert (fp32, bf16) == (medians[task], medians[f"{task} in bf16"]), task
