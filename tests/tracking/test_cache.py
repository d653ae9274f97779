"""A finished run stands for another only with the same code and libraries on the same machine."""

from typing import Any

import pytest
from records import record

from mlbench.clusters import node
from mlbench.experiment import provenance
from mlbench.experiment.record import Node
from mlbench.tracking import cache

GPU = {"name": "NVIDIA T4"}


def here(**software: Any):
    return record(nodes=[node.describe()], software=provenance.software().model_copy(update=software))


def test_a_run_of_this_code_on_this_machine_stands() -> None:
    assert cache.obstacle(here()) is None


@pytest.mark.parametrize(
    ("software", "reason"),
    [
        ({"sources": "other"}, "other sources"),
        ({"sources": None}, "other sources"),
        ({"python": "3.0"}, "another Python"),
        ({"packages": provenance.software().packages | {"ray": "1.0"}}, "ray 1.0"),
        ({"packages": {}}, "None"),
    ],
)
def test_other_code_or_libraries_do_not(software: dict[str, Any], reason: str) -> None:
    assert reason in (cache.obstacle(here(**software)) or "")


@pytest.mark.parametrize(
    "other", [{"hostname": "other"}, {"cpu_model": "Z80"}, {"usable_cpus": 4711}, {"gpus": [GPU]}]
)
def test_another_machine_does_not(other: dict[str, Any]) -> None:
    plain = node.describe().model_dump()
    nodes = [Node.model_validate(values) for values in (plain, plain | other)]
    assert cache.obstacle(here().model_copy(update={"nodes": nodes})) == "it ran on another machine"
    assert cache.obstacle(here().model_copy(update={"nodes": []})) == "it ran on another machine"


def test_sources_are_hashed_by_content() -> None:
    assert len(provenance.sources()) == 64
