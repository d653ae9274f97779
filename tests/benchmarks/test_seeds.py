"""The table of seeds says what its runs were trained on."""

from importlib import import_module
from typing import Any

import pytest
import studies

seeds: Any = import_module("seeds")


CHANGES = {
    "resnet20": {},
    "resnet20 on fashion_mnist": {"dataset": "fashion_mnist"},
    "resnet20 in bf16": {"precision": "bf16"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_heading_names_other_data_and_another_precision(name: str) -> None:
    one = studies.run(1, 0, time=9)
    software = one.software.model_dump() | {"packages": {"torch": "2.13.0"}}
    experiment = {"task": one.experiment.plain()["task"] | CHANGES[name]}
    runs = [studies.run(1, seed, time=9, experiment=experiment, software=software) for seed in (1, 2)]
    assert seeds.table(runs).startswith(f"### {name}, mini, goal top1_accuracy >= 95\n")
