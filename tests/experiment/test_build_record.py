"""The record's numbers against an independent computation from made-up segments."""

from typing import Any

import pytest

from mlbench.experiment.build_record import accuracy_after, conclude
from mlbench.experiment.config import compose
from mlbench.experiment.phases import PHASES, duration_bin


def segment(scale: float, *, samples: int = 64) -> dict[str, Any]:
    """A segment of two batches; phase number i lasts scale * (i + 1) seconds."""
    phases = {phase: scale * (i + 1) for i, phase in enumerate(PHASES)}
    total = sum(phases.values())
    return {
        "phases": phases,
        "overlapped_communication": scale / 2,
        "outside": {"validation": scale},
        "steps": 2,
        "samples": samples,
        "step_s": {duration_bin(total * 0.25): 1, duration_bin(total * 0.75): 1},
    }


def validation(epoch: float, elapsed: float, value: float | None) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "step": int(epoch * 10),
        "elapsed": elapsed,
        "wall": 0.0,
        "train_loss": 0.1,
        "metrics": {"top1_accuracy": value, "loss": 0.5},
        "goal_reached": value is not None and value >= 95,
    }


START = {"command": "c", "seed": 1, "begun": 100.0, "key": "k", "run_id": "r", "deviations": [],
         "warnings": [], "software": {}}  # fmt: skip
STAMPS = {"connect_begin": 101.0, "connect_end": 104.0}
RETURNED: dict[str, Any] = {
    "status": "goal_reached",
    "validations": [validation(1, 40.0, 90.0), validation(2, 80.0, 96.0)],
    "segments": [[segment(1.0), segment(1.0)], [segment(1.1), segment(1.2)]],
    "time_to_accuracy": 80.0,
    "unit": "images",
    "flops_per_sample": 1e6,
    "nodes": [{"hostname": "n", "usable_cpus": 2, "warnings": ["turbo is on"]}],
    "entered": 111.0,
    "started_at": 112.0,
    "stamps": {"backend_begin": 109.0, "imports_end": 109.5, "group_end": 110.5},
}


def measured(**changes: Any) -> dict[str, Any]:
    values = {"status": None, "error": None, "stamps": STAMPS, "returned": RETURNED, "ended": 200.0}
    return values | {"oversubscribed": False, "ray": {}} | changes


def test_totals_are_sums_over_segments_and_spreads_over_ranks() -> None:
    record = conclude(compose(), start=START, measured=measured(), log=[])
    for i, phase in enumerate(PHASES):
        one, other = 2.0 * (i + 1), 2.3 * (i + 1)
        spread = record.phases[phase]
        assert (spread.min, spread.max) == (pytest.approx(one), pytest.approx(other))
        assert spread.mean == pytest.approx((one + other) / 2)
    batches = [2.0 * 36, 2.3 * 36]
    busy = 80.0 - 2.3  # the clock less what lies outside the steps
    assert record.train_time == pytest.approx(batches[1] - 2.3 * 1)  # without data_wait, the slowest rank's
    assert record.samples == 4 * 64
    assert record.samples_per_s == pytest.approx(256 / busy)
    assert record.samples_per_s_per_worker == pytest.approx(128 / busy)
    # wait and transfer are phases number 5 and 6 of 36 parts on both ranks
    assert record.exposed_communication_share == pytest.approx(11 / 36)
    assert record.outside["validation"].max == pytest.approx(2.3)
    # of eight steps, 36 times 0.25 (twice), 0.275, 0.3, 0.75 (twice), 0.825 and 0.9 s
    expected = {"p50": 36 * 0.75, "p95": 36 * 0.9, "p99": 36 * 0.9}
    assert record.step_s == pytest.approx(expected, rel=0.00501)
    assert record.model_flops_per_s == pytest.approx(1e6 * 256 / busy)
    assert record.mfu is None, "no peak is stated for this machine"


def test_the_parts_of_the_start_up_add_up() -> None:
    record = conclude(compose(), start=START, measured=measured(), log=[])
    assert record.startup_time == pytest.approx(12.0)
    assert sum(record.startup.values()) == pytest.approx(12.0)
    assert record.startup["scheduling"] == pytest.approx(5.0)
    assert record.startup["data_opening"] == pytest.approx(1.0)


def test_a_restart_s_stamps_are_not_the_run_s() -> None:
    again = RETURNED | {"started_at": 112.0, "entered": 300.0, "stamps": {"backend_begin": 290.0}}
    log = [{"key": "worker_failure", "value": {"0": "died"}, "metadata": {"count": 1}}]
    record = conclude(compose(), start=START, measured=measured(returned=again), log=log)
    assert len(record.restarts) == 1 and record.startup_time == pytest.approx(12.0)
    assert record.startup == {"command": pytest.approx(1.0), "cluster": pytest.approx(3.0)}


def test_noise_is_no_caveat_and_oversubscription_is() -> None:
    quiet = conclude(compose(["scale=official"]), start=START, measured=measured(), log=[])
    assert quiet.official and quiet.caveats == [] and quiet.warnings == ["turbo is on"]
    shared = conclude(
        compose(["scale=official"]), start=START, measured=measured(oversubscribed=True), log=[]
    )
    assert not shared.official and "no speed-up" in shared.caveats[0]


@pytest.mark.parametrize("words", [["scale=mini"], ["goal=light"], ["goal=50"], ["division=open"]])
def test_only_closed_official_runs_that_reached_the_official_goal_are_official(words: list[str]) -> None:
    everything = ["scale=official", *words]
    assert not conclude(compose(everything), start=START, measured=measured(), log=[]).official


def test_a_profile_that_this_node_is_not_makes_a_caveat_and_a_stated_peak_an_mfu() -> None:
    experiment = compose(["hardware=gcp_n1_t4", "backend=nccl"])
    record = conclude(experiment, start=START, measured=measured(), log=[])
    assert any("states 3 CPUs" in caveat for caveat in record.caveats)
    rate = record.model_flops_per_s
    assert rate is not None and experiment.hardware.peak is not None
    assert record.mfu == pytest.approx(rate / (2 * 8.1e12))
    assert record.cost is not None


@pytest.mark.parametrize(
    ("gpus", "nodes", "told"),
    [
        ([], 2, ["states T4 GPUs, n has none"]),
        (["Tesla T4"], 2, []),
        (["Tesla T4", "NVIDIA T400 4GB"], 2, ["states T4 GPUs, n has NVIDIA T400 4GB"]),
        (["NVIDIA H200"], 2, ["states T4 GPUs, n has NVIDIA H200"]),
        (["Tesla T4"], 1, ["puts 2 worker(s) on 2 node(s), they ran on 1"]),
    ],
)
def test_other_gpus_or_nodes_than_the_profile_states_make_caveats(
    gpus: list[str], nodes: int, told: list[str]
) -> None:
    node = {"hostname": "n", "usable_cpus": 3, "gpus": [{"name": name} for name in gpus]}
    returned = RETURNED | {"nodes": [node] * nodes}
    words = ["scale=official", "hardware=gcp_n1_t4", "backend=nccl", "workers=2"]
    record = conclude(compose(words), start=START, measured=measured(returned=returned), log=[])
    assert len(record.caveats) == len(told) and record.official == (not told)
    assert all(sentence in caveat for sentence, caveat in zip(told, record.caveats, strict=True))


def test_the_peak_of_a_gpu_says_nothing_about_the_cpu_beside_it() -> None:
    record = conclude(compose(["hardware=gcp_n1_t4"]), start=START, measured=measured(), log=[])
    assert record.model_flops_per_s is not None and record.mfu is None
    assert any("backend=gloo left idle" in caveat for caveat in record.caveats)


def test_a_run_that_returned_nothing_is_made_from_its_log() -> None:
    plain = {k: v for k, v in segment(1.0).items() if k != "step_s"}
    log = [
        {"key": "validation", "value": validation(1, 40.0, 90.0),
         "metadata": {"started_at": 112.0, "segments": [plain, plain]}},
        {"key": "worker_failure", "value": {"0": "died"}, "metadata": {"count": 1}},
    ]  # fmt: skip
    told = measured(status="failed", error="rank 0 died", returned=None)
    record = conclude(compose(), start=START, measured=told, log=log)
    assert record.status == "failed" and record.error == "rank 0 died"
    assert record.epochs == 1 and record.samples == 128 and record.time_to_accuracy is None
    assert record.restarts == [], "the failure ended the run"
    went_on = conclude(compose(), start=START, measured=measured(), log=log)
    assert went_on.restarts == [{"0": "died"}]


@pytest.mark.parametrize(
    ("budget", "ended", "expected"),
    [(50, False, 90.0), (80, False, 96.0), (100, False, None), (100, True, 96.0), (10, True, None)],
)
def test_accuracy_after_time_is_the_best_within_the_budget(budget: float, ended: bool, expected: Any) -> None:
    validations = [validation(1, 40.0, 90.0), validation(2, 60.0, None), validation(3, 80.0, 96.0)]
    found = accuracy_after(validations, metric="top1_accuracy", budget=budget, direction="max", ended=ended)
    assert found == expected
