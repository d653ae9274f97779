"""The record's numbers against an independent computation from made-up times in an event log."""

import json
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import pytest
from driven import sealed
from syrupy.assertion import SnapshotAssertion

from mlbench.config.compose import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.record.build_record import accuracy_after, build_record
from mlbench.record.official import FrozenReference, PublishedDataset, reference
from mlbench.record.phases import PHASES, duration_bin
from mlbench.record.record import Record, Validation

Event = dict[str, Any]
MS = 1000


def phase_times(scale: float, *, samples: int = 64) -> dict[str, Any]:
    """Two batches of one rank; phase number i lasts scale * (i + 1) seconds."""
    phases = {phase: scale * (i + 1) for i, phase in enumerate(PHASES)}
    total = sum(phases.values())
    return {
        "phases": phases,
        "overlapped_communication": scale / 2,
        "outside": {"validation": scale},
        "steps": 2,
        "samples": samples,
        "step_s": {str(duration_bin(total * 0.25)): 1, str(duration_bin(total * 0.75)): 1},
    }


def validation(epoch: float, elapsed: float, value: float | None) -> dict[str, Any]:
    return {
        "epoch": epoch,
        "step": int(epoch * 10),
        "elapsed": elapsed,
        "wall": 0.0,
        "train_loss": 0.1,
        "metrics": {"top1_accuracy": value, "loss": 0.5},
        "goal_reached": value is not None and value >= 97,
    }


def event(key: str, value: Any, *, at: float = 200.0, **metadata: Any) -> Event:
    return {
        "time_ms": at * MS,
        "event_type": "POINT_IN_TIME",
        "key": key,
        "value": value,
        "metadata": metadata,
    }


def validated(epoch: float, elapsed: float, value: float | None, *scales: float) -> Event:
    """Return the event of a validation; `scales` are those of each rank's times."""
    times = [phase_times(scale) for scale in scales]
    return event("validation", validation(epoch, elapsed, value), started_at=112.0, phase_times=times)


NODE = {"hostname": "n", "usable_cpus": 2, "warnings": ["turbo is on"], "sources": "5" * 64}
RESULT: dict[str, Any] = {
    "status": "goal_reached",
    "sample_unit": "images",
    "flops_per_sample": 1e6,
    "nodes": [NODE],
    "started_at": 112.0,
    "entered": 111.0,
    "calibrated": 111.5,
    "data_hash": "d",
    "data_rows": {"train": 520, "test": 2},  # 8 steps of 2 x 32 images, or 2 of 2 x 128
    "data_inputs": {"a": "1"},
    "data_files": {"train": "2"},
}
GROUP = {"backend_begin": 109.0, "imports_end": 109.5, "group_end": 110.5}
SOFTWARE = {"mlbench": "0.2.0", "sources": "5" * 64, "git": {"sha": "a", "dirty": False}}
FROZEN = FrozenReference(  # of a release that has these sources, and of a published data set of eight rows
    version="0.2.0",
    sources="5" * 64,
    measuring={},
    recipes=reference().recipes,
    datasets={
        "cifar10": PublishedDataset(
            rows={"train": 520, "test": 2}, inputs={"a": "1"}, prepared={"train": "2"}
        )
    },
)
END = {
    "status": None,
    "ended": 200.0,
    "hostname": "n",
    "stamps": {"connect_begin": 101.0, "connect_end": 104.0},
}
MEASURED = (validated(1, 40.0, 60.0, 1.0, 1.05), validated(2, 80.0, 98.0, 1.0, 1.08))


def log(
    experiment: Experiment,
    measured: Sequence[Event] = MEASURED,
    *,
    result: Any = RESULT,
    begun: Any = MappingProxyType({}),
    **end: Any,
) -> list[Event]:
    """Return a whole log, as it is read back from its file; it agrees with itself unless `end` says not."""
    start = {"run_id": "r", "key": "k", "command": "c", "mlbench": "0.2.0", "seed": 1, "begun": 100.0}
    start |= {"experiment": experiment.plain(), "software": SOFTWARE} | begun
    start["deviations"] = [deviation.model_dump(mode="json") for deviation in experiment.deviations]
    whole = [event("run_configuration", start, at=100.0), event("startup", GROUP, at=110.5, hostname="n")]
    whole += [event("run_start", 112.0, at=112.0, hostname="n"), *measured]
    whole.append(event("run_result", END | {"result": result} | end))
    whole = json.loads(json.dumps(whole))
    complete(whole, experiment)
    return sealed(whole)


def complete(whole: list[Event], experiment: Experiment) -> None:
    """Fill in what follows from the rest: steps, samples, wall clocks, and how long each rank loaded."""
    batch = getattr(experiment.task, "batch_size", 1)
    count = RESULT["data_rows"]["train"] // (batch * experiment.workers) or 1  # steps of an epoch
    before, epochs, failed = {"epoch": 0.0, "elapsed": 0.0}, [0.0], False
    for entry in whole:
        failed |= entry["key"] == "worker_failure"
        if entry["key"] != "validation":
            continue
        value, ranks = entry["value"], entry["metadata"]["phase_times"]
        if failed:  # it goes on after the last epoch before
            before |= {"epoch": max(epoch for epoch in epochs if epoch < value["epoch"])}
            failed = False
        value |= {"step": round(value["epoch"] * count), "wall": 112.0 + value["elapsed"]}
        goal, metric = experiment.target, value["metrics"]["top1_accuracy"]
        value["goal_reached"] = goal is not None and metric is not None and goal.reached(metric)
        for rank in ranks:
            inside = sum(rank["phases"].values())
            rank["steps"] = value["step"] - round(before["epoch"] * count)
            rank |= {"seconds": inside, "elapsed": value["elapsed"], "samples": batch * rank["steps"]}
            rank["stamped_steps"] = 2
            rest = value["elapsed"] - before["elapsed"] - inside - sum(rank["outside"].values())
            rank["outside"]["loading"] = rest
        ranks += json.loads(json.dumps(ranks[-1:] * (experiment.workers - len(ranks))))
        before = {name: value[name] for name in before}
        epochs.append(value["epoch"])


def built(*overrides: str, frozen: FrozenReference | None = None, **run: Any) -> Record:
    """Return the record of a run; `run` is what `log` takes, FROZEN the reference that it is held against."""
    return build_record(log(compose(overrides), **run), frozen or FROZEN)


def test_totals_are_sums_over_segments_and_spreads_over_ranks() -> None:
    record = built()
    for i, phase in enumerate(PHASES):
        low, high = 2.0 * (i + 1), 2.13 * (i + 1)
        spread = record.phases[phase]
        assert (spread.min, spread.max) == (pytest.approx(low), pytest.approx(high))
        assert spread.mean == pytest.approx((low + high) / 2)
    batches = [2.0 * 36, 2.13 * 36]
    busy = batches[0]  # the clock less what lies outside the steps
    assert record.train_time == pytest.approx(batches[1] - 2.13 * 1)  # without data_wait, the slowest rank's
    assert record.samples == 2 * 8 * 64
    assert record.samples_per_s == pytest.approx(1024 / busy)
    assert record.samples_per_s_per_worker == pytest.approx(512 / busy)
    # wait and transfer are phases number 5 and 6 of 36 parts on both ranks
    assert record.exposed_communication_share == pytest.approx(11 / 36)
    assert record.outside["validation"].max == pytest.approx(2.13)
    # of eight steps, 36 times 0.25 (twice), 0.2625, 0.27, 0.75 (twice), 0.7875 and 0.81 s
    expected = {"p50": 36 * 0.75, "p95": 36 * 0.81, "p99": 36 * 0.81}
    assert record.step_s == pytest.approx(expected, rel=0.00501)
    assert record.model_flops_per_s == pytest.approx(1e6 * 1024 / busy)
    assert record.mfu is None, "no peak is stated for this machine"


def test_the_parts_of_the_start_up_add_up() -> None:
    record = built()
    assert record.startup_time == pytest.approx(12.0)
    assert sum(record.startup.parts().values()) == pytest.approx(12.0)
    assert record.startup.scheduling == pytest.approx(5.0)
    assert record.startup.calibration == record.startup.data_opening == pytest.approx(0.5)


def test_clocks_of_two_hosts_are_never_subtracted() -> None:
    """Rank 0's clock is an hour ahead: its parts are its own differences, and the step between is unknown."""
    ahead = RESULT | {"entered": 3711.0, "calibrated": 3711.5, "started_at": 3712.0}
    whole = log(compose([]), result=ahead)
    (first,) = [event for event in whole if event["key"] == "run_start"]
    first |= {"value": 3712.0, "metadata": {"hostname": "other"}}
    record = build_record(whole)
    assert record.startup.entering is None and record.startup.process_group == pytest.approx(1.0)
    assert record.startup.calibration == record.startup.data_opening == pytest.approx(0.5)
    assert record.startup_time == pytest.approx(12.0 - 0.5)  # less the call to the worker
    assert record.time_to_accuracy == 80.0


def test_a_restart_s_stamps_are_not_the_run_s() -> None:
    again = RESULT | {"entered": 300.0, "calibrated": 301.0}
    died = event("worker_failure", {"0": "died"}, count=1)
    record = built(measured=[died, *MEASURED], result=again)
    assert len(record.restarts) == 1 and record.startup_time == pytest.approx(12.0)
    assert list(record.startup.parts()) == ["command", "cluster", "scheduling", "imports", "process_group"]


@pytest.mark.plugin("emulation")
def test_energy_is_all_nodes_unless_the_meters_began_anew_or_count_one_machine_several_times() -> None:
    nodes = [
        NODE | {"energy_j": {"cpu_packages": 30.0, "gpus": 50.0}},
        NODE | {"energy_j": {"cpu_packages": 12.0}},
    ]
    result = RESULT | {"nodes": nodes}
    whole = built(result=result).energy
    assert whole is not None and whole.parts == {"cpu_packages": 42.0}
    assert whole.joules == whole.goal_joules == 42.0 and whole.joules_per_sample == 42.0 / 1024
    missed = built(result=result | {"status": "goal_not_reached"}, measured=MEASURED[:1]).energy
    assert missed is not None and (missed.joules, missed.goal_joules) == (42.0, None)
    died = event("worker_failure", {"0": "died"}, count=1)
    assert built(measured=[MEASURED[0], died, MEASURED[1]], result=result).energy is None
    assert built("network=1gbit_1ms", result=result).energy is None
    # On a GPU the energy of its processors alone is not what the run took.
    assert built("backend=nccl", "hardware=gcp_n1_t4", result=result).energy is None


@pytest.mark.parametrize(
    ("gpus", "nodes", "devices", "transport", "expected"),
    [
        (8, 2, [], {}, "went through TCP sockets"),
        (8, 2, ["rdmap0s6"], {}, "does not show that none went"),
        (8, 2, ["rdmap0s6"], {"network": "Socket"}, "went through TCP sockets"),  # a pod sees its host's
        (8, 2, ["rdmap0s6"], {"network": "AWS Libfabric", "provider": "tcp"}, "went through TCP sockets"),
        (8, 2, ["rdmap0s6"], {"network": "AWS Libfabric", "provider": "efa"}, None),
        (8, 2, ["mlx5_0"], {"network": "IB"}, None),
        (1, 2, ["mlx5_0"], {"network": "Socket"}, "went through TCP sockets"),
        (8, 2, None, {}, None),
        (8, 1, [], {"network": "Socket"}, None),
        (1, 2, [], {"network": "Socket"}, None),
    ],
)
def test_messages_that_went_past_the_fabric_make_a_caveat(
    gpus: int, nodes: int, devices: list[str] | None, transport: dict[str, str], expected: str | None
) -> None:
    node = NODE | {"gpus": [{"name": "NVIDIA H100 80GB HBM3"}] * gpus, "rdma_devices": devices}
    node |= {"transport": transport}
    result = RESULT | {"nodes": [node | {"hostname": f"host-{n}"} for n in range(nodes)]}
    record = built("backend=nccl", result=result)
    told = [caveat for caveat in record.caveats if "TCP sockets" in caveat]
    assert len(told) == (expected is not None)
    assert expected is None or (expected in told[0] and not record.eligible)


@pytest.mark.parametrize(
    ("watts", "sentence"),
    [
        (700.0, None),
        (None, None),
        (350.0, "states GPUs of 700 W, n has one of 350 W"),
    ],
)
def test_a_card_of_another_form_has_neither_the_price_nor_the_peak(
    watts: float | None, sentence: str | None
) -> None:
    """NVIDIA sells the H100 as SXM, PCIe and NVL, and a name may have none of the three."""
    gpus = [{"name": "NVIDIA H100", "power_limit_max_w": watts}] * 8
    nodes = [NODE | {"hostname": "n", "gpus": gpus, "usable_cpus": 190}]
    record = built("backend=nccl", "hardware=aws_p5_48xlarge", "workers=8", result=RESULT | {"nodes": nodes})
    assert any("another form" in caveat for caveat in record.caveats) == (sentence is not None)
    told = " ".join(record.caveats)
    assert sentence is None or (record.cost is None and sentence in told)


@pytest.mark.plugin("emulation")
def test_an_emulated_network_is_a_reason(snapshot: SnapshotAssertion) -> None:
    record = built("scale=official", "network=1gbit_1ms")
    assert record.official_reasons == snapshot


HOT = {"index": 1, "seconds": 90.0, "throttled_s": {"software_thermal": 30.0}}
BUSY = {"seconds": 90.0, "cpus": 2.0, "others": 1.5, "steal": 0.0}


@pytest.mark.parametrize(
    ("node", "end"),
    [
        ({"interference": BUSY}, {}),
        ({"machine_shared": True}, {}),
        ({}, {"interference": BUSY, "hostname": "n"}),
        ({}, {"machine_shared": True, "hostname": "n"}),
        ({"interference": BUSY | {"others": 0.1}}, {}),
        ({"gpu_use": [HOT]}, {}),
        ({"gpu_use": [HOT | {"throttled_s": {"power_cap": 90.0, "software_thermal": 1.5}}]}, {}),
    ],
)
def test_a_busy_machine_is_a_caveat(node: dict, end: dict, snapshot: SnapshotAssertion) -> None:
    record = built(result=RESULT | {"nodes": [NODE | node]}, **end)
    assert record.caveats == record.disturbances
    assert record.disturbances == snapshot


def test_the_load_before_a_run_is_told_unless_it_was_measured_what_ran_beside_it(
    snapshot: SnapshotAssertion,
) -> None:
    begun = {"warnings": ["the load average was 30.0 on 2 CPUs before the run began"]}
    quiet = built("scale=official", begun=begun)
    assert quiet.warnings == begun["warnings"] + ["turbo is on"]
    assert quiet.official_reasons == snapshot
    busy = built("scale=official", begun=begun, result=RESULT | {"nodes": [NODE | {"interference": BUSY}]})
    assert busy.warnings == ["turbo is on"]
    assert busy.official_reasons == [f"caveat: {busy.disturbances[0]}"]


def test_what_a_restart_repeats_counts_once() -> None:
    """A run that died after its second validation went on from the checkpoint of the first."""
    died = event("worker_failure", {"1": "killed"}, count=1)
    first, second = MEASURED
    again = validated(2, 84.0, 98.0, 1.0, 1.08)
    record = built("max_failures=1", measured=[first, validated(2, 42.0, 94.0, 0.02, 0.02), died, again])
    assert [v.metrics["top1_accuracy"] for v in record.validations] == [60.0, 98.0]
    whole = built()
    assert record.phases == whole.phases and record.samples == whole.samples
    assert record.contradictions == []
    assert len(record.intervals) == 2 and record.restarts[0].failures == {1: "killed"}


def test_what_workers_train_after_the_goal_or_their_result_is_no_part_of_the_run() -> None:
    """A worker that died while its node was described had all of them started again."""
    died = event("worker_failure", {"1": "killed"}, count=1)
    again = [died, validated(2, 86.0, 94.0, 0.1, 0.1)]
    missed = RESULT | {"status": "goal_not_reached"}
    after_the_goal = built("max_failures=1", measured=[*MEASURED, *again], result=missed)
    reported = [event("worker_result", RESULT), *again, event("worker_result", missed)]
    after_the_result = built("max_failures=1", measured=[*MEASURED, *reported])
    for record in (after_the_goal, after_the_result):
        assert (record.status, record.time_to_accuracy, record.contradictions) == ("goal_reached", 80.0, [])
        assert record.samples == built().samples and len(record.restarts) == 1


@pytest.mark.parametrize("events", [(), (validated(1, 40.0, 70.0, 1.0, 1.05),)])
def test_workers_that_claim_a_goal_which_the_log_does_not_show_have_failed(
    events: Sequence[Event], snapshot: SnapshotAssertion
) -> None:
    record = built("scale=official", measured=events)
    assert (record.status, record.time_to_accuracy, record.eligible) == ("failed", None, False)
    assert record.error == snapshot


def test_the_goal_keeps_all_its_digits() -> None:
    record = built("goal=95.1234567", measured=[validated(2, 80.0, 98.0, 1.0, 1.08)])
    again = Record.model_validate_json(record.model_dump_json())
    assert again == record and again.goal is not None and again.goal.target == 95.1234567
    assert str(again.goal) == "top1_accuracy >= 95.1234567"


def test_a_task_s_own_fields_are_read_back_without_its_package() -> None:
    values = json.loads(built().model_dump_json())
    values["experiment"]["task"] |= {"name": "somebody_s_task", "temperature": 0.5}
    values["experiment"]["sync"] |= {"name": "somebody_s_sync", "period": 8}
    values["experiment"]["cluster"] |= {"name": "somebody_s_cluster", "region": "x"}
    record = Record.model_validate_json(json.dumps(values))
    assert record.experiment.plain()["task"]["temperature"] == 0.5
    assert json.loads(record.model_dump_json()) == values


T4 = NODE | {"usable_cpus": 3, "gpus": [{"name": "Tesla T4"}]}


@pytest.mark.parametrize(("cpus", "expected"), [(2, True), (3, False), (4, False), (64, True)])
def test_a_node_that_is_not_the_profile_s_has_neither_its_price_nor_its_peak(
    cpus: int, expected: bool
) -> None:
    result = RESULT | {"nodes": [T4 | {"usable_cpus": cpus}] * 2}
    record = built("hardware=gcp_n1_t4", "backend=nccl", "workers=2", result=result, oversubscribed=True)
    assert ("states 3 CPUs" in record.caveats[0]) == expected, "the heaviest caveat is the first"
    assert (record.cost is None) == (record.mfu is None) == expected
    rate = record.model_flops_per_s
    assert rate is not None and record.mfu in (None, pytest.approx(rate / (2 * 8.1e12)))


def test_mfu_is_over_gpus_and_cost_over_nodes_where_a_node_has_eight() -> None:
    """Eight workers on one node of eight GPUs: eight peaks, one price."""
    node = {"hostname": "n", "usable_cpus": 96, "gpus": [{"name": "NVIDIA A100-SXM4-40GB"}] * 8}
    record = built(
        "hardware=aws_p4d_24xlarge", "backend=nccl", "workers=8", result=RESULT | {"nodes": [node]}
    )
    hardware, rate = record.experiment.hardware, record.model_flops_per_s
    assert rate is not None and hardware.price is not None
    assert hardware.peak is not None and hardware.peak.fp32 is not None
    assert record.mfu == pytest.approx(rate / (8 * hardware.peak.fp32))
    assert record.cost is not None and record.cost.nodes == 1
    assert record.cost.wall_usd == pytest.approx(100 / 3600 * hardware.price.usd_per_hour)
    two = built(
        "hardware=aws_p4d_24xlarge", "backend=nccl", "workers=16", result=RESULT | {"nodes": [node] * 2}
    )
    assert two.cost is not None and two.cost.nodes == 2
    assert two.mfu == pytest.approx(rate / (16 * hardware.peak.fp32))


@pytest.mark.parametrize(
    ("gpus", "nodes"),
    [
        ([], 2),
        (["Tesla T4"], 2),
        (["Tesla T4", "NVIDIA T400 4GB"], 2),
        (["NVIDIA H200"], 2),
        (["Tesla T4"], 1),
    ],
)
def test_other_gpus_or_nodes_than_the_profile_states_make_caveats(
    gpus: list[str], nodes: int, snapshot: SnapshotAssertion
) -> None:
    node = NODE | {"usable_cpus": 3, "warnings": [], "gpus": [{"name": name} for name in gpus]}
    result = RESULT | {"nodes": [node] * nodes}
    record = built("scale=official", "hardware=gcp_n1_t4", "backend=nccl", "workers=2", result=result)
    assert record.caveats == snapshot and record.eligible == (not record.caveats)


def test_a_run_that_returned_nothing_has_all_that_its_log_holds() -> None:
    died = event("worker_failure", {"0": "died"}, count=1)
    record = built(measured=[MEASURED[0], died], result=None, status="failed", error="rank 0 died")
    assert record.status == "failed" and record.error == "rank 0 died"
    assert record.epochs == 1 and record.samples == 512 and record.time_to_accuracy is None
    assert record.step_s and record.phases, "an interrupted run's times are as whole as a finished one's"
    assert record.restarts == [], "the failure ended the run"
    went_on = built(measured=[died, *MEASURED])
    assert [restart.failures for restart in went_on.restarts] == [{0: "died"}]


def test_a_worker_that_dies_after_the_goal_takes_nothing_from_what_was_measured() -> None:
    """Nobody could tell any more what its nodes were, so it is neither official nor in a speed-up."""
    record = built("scale=official", result=None, status="failed", error="rank 1 died")
    assert (record.status, record.error, record.time_to_accuracy) == ("goal_reached", None, 80.0)
    (caveat,) = record.caveats
    assert "rank 1 died" in caveat and not record.eligible
    before_the_goal = built(measured=MEASURED[:1], result=None, status="failed", error="rank 1 died")
    assert (before_the_goal.status, before_the_goal.caveats) == ("failed", [])


def killed_driver(*events: Event, overrides: Sequence[str] = ()) -> Record:
    """Return the record of a run whose log ends with these events."""
    whole = [*log(compose(overrides), [])[:-1], *json.loads(json.dumps(events))]
    complete(whole, compose(overrides))
    return build_record(whole, FROZEN)


def test_a_killed_driver_s_log_gives_an_interrupted_run_that_ended_with_it() -> None:
    record = killed_driver(MEASURED[0])
    assert (record.status, record.wall, record.epochs) == ("interrupted", 100.0, 1)
    assert record.time_to_accuracy is None and record.caveats == []


@pytest.mark.parametrize(
    "with_result", [True, False], ids=["its workers had finished", "it reached its goal"]
)
def test_a_driver_that_is_killed_after_the_goal_takes_nothing_from_what_was_measured(
    with_result: bool,
    snapshot: SnapshotAssertion,
) -> None:
    last = [event("worker_result", RESULT)] if with_result else []
    record = killed_driver(*MEASURED, *last, overrides=["scale=official"])
    assert (record.status, record.error, record.time_to_accuracy) == ("goal_reached", None, 80.0)
    assert record.phases == built().phases and len(record.nodes) == with_result
    assert record.caveats == snapshot and not record.eligible


def test_a_driver_that_is_killed_after_the_workers_missed_their_goal_leaves_a_finished_run(
    snapshot: SnapshotAssertion,
) -> None:
    record = killed_driver(MEASURED[0], event("worker_result", RESULT | {"status": "goal_not_reached"}))
    assert (record.status, record.error, record.time_to_accuracy) == ("goal_not_reached", None, None)
    assert record.caveats == snapshot


@pytest.mark.parametrize("start", [None, {}, {"run_id": "r"}])
def test_a_damaged_log_is_one_sentence(start: Any, as_stored: Any) -> None:
    with pytest.raises(UserError, check=as_stored):
        build_record([event("run_configuration", start)])


@pytest.mark.parametrize(
    ("budget", "ended", "expected"),
    [(50, False, 90.0), (80, False, 96.0), (100, False, None), (100, True, 96.0), (10, True, None)],
)
def test_accuracy_after_time_is_the_best_within_the_budget(budget: float, ended: bool, expected: Any) -> None:
    values = [(1, 40.0, 90.0), (2, 60.0, None), (3, 80.0, 96.0)]
    validations = [Validation.model_validate(validation(*value)) for value in values]
    task = compose().task.model_copy(update={"time_budget_s": budget})
    accuracy = accuracy_after(validations, task, "completed" if ended else "failed")
    assert accuracy == expected


def test_a_run_on_a_cluster_is_billed_from_its_submission() -> None:
    """100 s of command and 500 s between submission and command are ten minutes of five parts."""
    overrides = ("hardware=gcp_n1_standard_4", "cluster=attached", "workers=3")
    result = RESULT | {"nodes": [NODE | {"usable_cpus": 4}] * 3}
    submitted = built(*overrides, begun={"submitted": -400.0}, result=result)
    assert submitted.cost is not None and submitted.cost.whole is not None
    assert submitted.cost.whole.provisioning_s == 500
    assert submitted.cost.whole.parts["head"] == pytest.approx(0.19 * 600 / 3600)
    assert submitted.cost.whole.parts["workers"] == pytest.approx(3 * 0.19 * 600 / 3600)
    there = built(*overrides, result=result)
    assert there.cost is not None and there.cost.whole is not None
    assert there.cost.whole.provisioning_s is None and there.cost.whole.billed_s == 100
    assert there.cost.wall_usd == submitted.cost.wall_usd == pytest.approx(3 * 0.19 * 100 / 3600)
    alone = built("hardware=gcp_n1_standard_4", "cluster=local", "workers=3", result=result)
    assert alone.cost is not None and alone.cost.whole is None
    assert Record.model_validate_json(submitted.model_dump_json()) == submitted
