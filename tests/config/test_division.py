"""One case a rule (RULES.md)."""

import pytest
from conftest import ROOT

from mlbench.config.division import RULES, Division, deviations

DIVISION = Division(
    name="closed", free=("workers", "hardware.price"), declared=("hardware.*",), fixed=("task.dataset",)
)

REFERENCE = {
    "task": {"lr": 0.1, "dataset": "a", "metric": "m", "goals": {"light": 1}},
    "sync": {"name": "ddp"},
    "workers": 1,
    "hardware": {"gpus": 0, "price": 1},
    "other": 1,
}


@pytest.mark.parametrize(
    ("change", "field", "rule", "fixed"),
    [
        ({"task": {**REFERENCE["task"], "lr": 1}}, "task.lr", "R1", False),
        ({"task": {**REFERENCE["task"], "dataset": "b"}}, "task.dataset", "R2", True),
        ({"task": {**REFERENCE["task"], "metric": "n"}}, "task.metric", "R2", False),
        ({"task": {**REFERENCE["task"], "goals": {"light": 2}}}, "task.goals.light", "R2", False),
        ({"sync": {"name": "local"}}, "sync.name", "R3", False),
        ({"other": 2}, "other", "R4", False),
    ],
)
def test_a_deviation_names_its_rule(change: dict, field: str, rule: str, fixed: bool) -> None:
    (deviation,) = deviations({**REFERENCE, **change}, REFERENCE, DIVISION)
    assert (deviation.field, deviation.rule, deviation.fixed) == (field, rule, fixed)


def test_free_fields_may_differ() -> None:
    ours = {**REFERENCE, "workers": 9, "hardware": {"gpus": 0, "price": 2}}
    assert deviations(ours, REFERENCE, DIVISION) == ()


def test_a_declared_field_may_differ_and_says_so() -> None:
    (deviation,) = deviations({**REFERENCE, "hardware": {"gpus": 8, "price": 1}}, REFERENCE, DIVISION)
    assert (deviation.field, deviation.rule, deviation.declared, deviation.fixed) == (
        "hardware.gpus",
        "R14",
        True,
        False,
    )


def test_a_field_that_only_one_side_has_is_a_deviation() -> None:
    more = {**REFERENCE, "sync": {"name": "ddp", "rank": 4}}
    assert [d.field for d in deviations(more, REFERENCE, DIVISION)] == ["sync.rank"]
    assert [d.field for d in deviations(REFERENCE, more, DIVISION)] == ["sync.rank"]


def test_every_rule_that_is_printed_is_explained() -> None:
    page = (ROOT / "RULES.md").read_text()
    assert all(f"| {rule} |" in page for _, rule in RULES)
