"""What decides a measurement, and what a key may not depend on."""

from pathlib import Path

import pytest

from mlbench.config import identity
from mlbench.config.compose import compose
from mlbench.config.identity import IDENTITY, LOCATION, OPERATION, PRESENTATION, flatten, key, role

T4 = "hardware=gcp_n1_t4"
PRICE = ["usd_per_hour=0.5", "usd_per_hour_spot=0.1", "date=2026-11-20", "source=quote"]


def test_every_field_is_in_one_list() -> None:
    for overrides in ([], [T4, "cluster=attached", "backend=nccl"]):
        for field in flatten(compose(overrides).plain()):
            lists = [group for group in (IDENTITY, PRESENTATION, OPERATION) if identity.listed(field, group)]
            lists += [LOCATION] if identity.listed(field, LOCATION) and not lists else []
            assert len(lists) == 1, field


@pytest.mark.parametrize(
    "overrides",
    [
        ["workers=3"],
        ["goal=light"],
        ["goal=none"],
        ["scale=official"],
        ["task=logreg"],
        ["task.recipe=mlbench2018"],
        ["task.weight_decay=0", "division=open"],
        ["backend=nccl"],
        ["sync.bucket_cap_mb=1", "division=open"],
        ["cluster=attached"],
        ["launcher=torchrun"],
        ["phase_timing=false"],
        ["profile=3"],
        ["compile=eager"],
        ["backend.interface=eth1"],
        ["backend.sockets=4"],
        pytest.param(["network=1gbit_1ms"], marks=pytest.mark.plugin("emulation")),
        pytest.param(["network=1gbit_1ms", "network.loss_percent=1"], marks=pytest.mark.plugin("emulation")),
        ["hardware.threads_per_worker=3"],
        ["hardware.cpus=3"],
        ["hardware.gpus=1"],
        ["hardware.gpu_model=T4"],
        ["hardware.workers_per_node=1"],
    ],
)
def test_what_decides_a_measurement_is_in_the_key(overrides: list[str]) -> None:
    assert key(compose(overrides)) != key(compose())


@pytest.mark.parametrize(
    ("backend", "word"),
    [
        ("nccl", "backend.algorithm=ring"),
        ("nccl", "backend.threads=4"),
    ],
)
def test_a_way_to_communicate_is_in_the_key(backend: str, word: str) -> None:
    """A ring and a tree were one point, and a run of the one was shown for the other."""
    assert key(compose([f"backend={backend}", word])) != key(compose([f"backend={backend}"]))


def test_versions_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(compose())
    monkeypatch.setattr(identity, "version", lambda package: "0.0.0")
    assert key(compose()) != before
    monkeypatch.undo()
    monkeypatch.setattr(identity.mlbench, "__version__", "99.0.0")
    assert key(compose()) != before


def test_price_labels_paths_and_operation_are_not_in_the_key(tmp_path: Path) -> None:
    priced = [T4, *(f"hardware.price.{setting}" for setting in PRICE), "hardware.description=another"]
    more = ["seed=3", "verbose=true", "force=true", "max_failures=2", "backend.timeout_s=5", "study=s"]
    more += [f"data_root={tmp_path}", f"output_root={tmp_path}", "tracking_uri=http://x"]
    assert key(compose([*priced, *more])) == key(compose([T4]))
    assert key(compose(["division=open"])) == key(compose())


def test_an_unknown_field_separates_runs() -> None:
    assert role("hardware.colour") == "identity"


def test_nested_values_have_dotted_names() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": [1]}}, "e": {}}) == {"a.b": 1, "a.c.d": [1], "e": {}}
