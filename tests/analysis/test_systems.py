"""Predictions of published systems: against the joint normal distribution, and in made-up worlds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlbench.analysis import published_results, systems
from mlbench.analysis.published_results import PublishedResult
from mlbench.analysis.systems import ACCELERATOR, KINDS, OTHERS, TWO_SIZES, SystemsModel
from mlbench.config.errors import UserError


def result(
    submitter: str,
    nodes: int | None,
    minutes: float = 10.0,
    *,
    chip: str = "NVIDIA H100-SXM5",
    **changes: object,
) -> PublishedResult:
    values: dict[str, object] = {
        "submitter": submitter,
        "system": f"{submitter}-{nodes}-{chip}",
        "benchmark": "llama2_70b_lora",
        "accelerator": chip,
        "nodes": nodes,
        "accelerators_per_node": 8,
        "global_batch": 8.0,
        "minutes_mean_of_middle": minutes,
        "round": "5.1",
    }
    return PublishedResult(**values | changes)  # pyright: ignore[reportArgumentType]


def test_a_forecast_is_the_conditional_mean_of_its_process() -> None:
    """Against the joint normal distribution's conditional, by Schur's complement of the precision matrix."""
    rows = [result("a", 1, 20), result("a", 2, 11), result("a", 8, 4), result("b", 1, 21), result("b", 8, 5)]
    model = SystemsModel(rows)
    i = 2
    basis = next(model.bases(i))
    assert basis.kind == TWO_SIZES and basis.known.tolist() == [True, True, False, True, True]
    order = [0, 1, 3, 4, 2]
    joint = (model.covariance + model.noise * np.eye(5))[np.ix_(order, order)]
    precision = np.linalg.inv(joint)
    samples = systems.convergence()["llama2_70b_lora"][8.0]
    costs = [math.log(row.minutes_mean_of_middle * row.accelerators / samples) for row in rows]
    centred = np.array([costs[j] - model.prior[j] for j in order[:-1]])
    mean = model.prior[i] - precision[-1, :-1] @ centred / precision[-1, -1]
    one = model.predict(i, basis)
    assert one.log_minutes == pytest.approx(mean + math.log(samples / rows[i].accelerators))
    assert one.spread == pytest.approx(1 / math.sqrt(precision[-1, -1]))


@pytest.mark.parametrize("field", ["minutes_mean_of_middle", "samples_to_goal", "throughput", "minutes_max"])
def test_no_forecast_reads_what_it_predicts(field: str) -> None:
    rows = [row for row in published_results.shipped() if row.round == "5.1"]
    model = SystemsModel(rows)
    names = ("nebius_b200_n4", "AS-8126GS-NB3RT", "tyche_ngpu512_ngc25.09_nemo")
    for i in [i for i, row in enumerate(rows) if row.system in names]:
        value = 7.0 * (getattr(rows[i], field) or 1.0)
        changed = SystemsModel([*rows[:i], replace(rows[i], **{field: value}), *rows[i + 1 :]])
        assert model.forecasts(i) == [
            replace(one, base=before.base)
            for one, before in zip(changed.forecasts(i), model.forecasts(i), strict=True)
        ]


def test_what_may_be_known_of_each_basis() -> None:
    rows = [row for row in published_results.shipped() if row.round == "5.1"]
    model = SystemsModel(rows)
    kinds = set()
    for i, row in enumerate(rows):
        mine = systems.accelerator(row.accelerator)
        for basis in model.bases(i):
            kinds.add(basis.kind)
            base = [rows[j] for j in np.flatnonzero(basis.base)]
            known = [rows[j] for j in np.flatnonzero(basis.known)]
            assert not basis.known[i]
            if basis.kind == OTHERS:
                assert all(other.submitter != row.submitter for other in known)
                continue
            own = [other for other in known if other.submitter == row.submitter]
            assert own == base and {other.benchmark for other in own} == {row.benchmark}
            if basis.kind == ACCELERATOR:
                assert mine.name not in {systems.accelerator(other.accelerator).name for other in known}
                assert {systems.accelerator(other.accelerator).maker for other in own} == {mine.maker}
            else:
                sizes = {other.accelerators for other in own}
                assert len(sizes) == (2 if basis.kind == TWO_SIZES else 1)
                assert max(sizes) < row.accelerators
    assert kinds == set(KINDS)


@pytest.mark.parametrize(
    "changes",
    [
        {"division": "open"},
        {"global_batch": None},
        {"nodes": None},
        {"accelerator": ""},
        {"round": "9.9", "accelerator": "TPU v5p"},
    ],
)
def test_what_cannot_be_predicted_is_refused(changes: dict[str, object], as_stored: Any) -> None:
    rows = [replace(result("a", 2), **changes), result("a", 1), result("b", 2)]  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, check=as_stored):
        SystemsModel(rows).forecasts(0)


def test_a_benchmark_without_reference_runs_needs_measured_samples() -> None:
    rows = [result("a", nodes, 40 / nodes, benchmark="mine", global_batch=8.0 * nodes) for nodes in (1, 2, 8)]
    with pytest.raises(UserError, match="goal of mine"):
        SystemsModel(rows).forecasts(2)
    measured = [replace(row, samples_to_goal=1000.0 * (row.nodes or 1)) for row in rows]
    one = SystemsModel(measured).forecasts(2)[0]
    same = SystemsModel([replace(row, global_batch=8.0) for row in rows]).forecasts(2)[0]
    assert one.kind == same.kind == TWO_SIZES and one.minutes > same.minutes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA Blackwell Ultra GPU (GB300)", "GB300"),
        ("NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)", "B300"),
        ("NVIDIA Blackwell GPU (B200-SXM-180GB)", "B200"),
        ("H100 NVL Tensor Core GPU (PCIe)", "H100 NVL"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100-PCIe-80GB", "H100 PCIe"),
        ("AMD Instinct MI325X 256GB HBM3E", "MI325X"),
        ("TPU-trillium", "TPU v6e"),
        ("TPU-v5p", "TPU v5p"),
    ],
)
def test_accelerators_are_found_by_their_names(text: str, name: str) -> None:
    assert systems.accelerator(text).name == name and systems.accelerator(text).figures


def test_every_accelerator_of_the_shipped_results_has_figures() -> None:
    missing = {row.accelerator for row in published_results.shipped()}
    missing = {text for text in missing if not systems.accelerator(text).figures}
    assert not missing
