"""The list of a run's fields: what the full card says of each, and that each is shown somewhere."""

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from records import nothing_measured, record, save
from syrupy.assertion import SnapshotAssertion

from mlbench.analysis import run_index
from mlbench.record import fields, format, reader
from mlbench.record.cost import cost
from mlbench.record.energy import Energy
from mlbench.record.fields import FIELDS
from mlbench.record.noise import GpuUse
from mlbench.record.record import Gpu, Node, NumaBinding, RankStats, Record
from mlbench.report import notebook, provenance_section
from mlbench.terminal import full_card, run_table
from mlbench.tracking import mapping


def rows(*overrides: str, **changes: Any) -> dict[str, str]:
    return fields.rows(record(*overrides, **changes))


def complete() -> Record:
    """Return a record in which nothing is missing that a field may show."""
    hardware = record("hardware=gcp_n1_t4").experiment.hardware
    bill = cost(hardware, 2, wall_s=72.0, time_to_accuracy_s=48.0, clustered=True, provisioning_s=60.0)
    node = Node(
        hostname="here",
        usable_cpus=2,
        threads_per_worker=1,
        data_cached=0.5,
        gpus=[Gpu(name="Tesla T4", power_limit_w=70.0)],
        gpu_use=[
            GpuUse(
                index=0,
                seconds=60.0,
                sm_clock_mean_mhz=1204.6,
                throttled_s={"power_cap": 42.0},
                process_memory_bytes=13_000_000_000,
            ),
        ],
        transport={"library": "gloo", "algorithms": "NVLS (4 B)"},
        numa=[NumaBinding(rank=0, node=1, cpus="4-7")],
    )
    parts = {"gpus": 2e3, "cpu_packages": 1e3}
    run = record(
        "hardware=gcp_n1_t4",
        "study=a",
        cost=vars(bill),
        energy=vars(Energy(parts, 3e3, 3e3, 1.0, 0.4, "a grid")),
        nodes=[node],
        mfu=0.35,
        peak={"flops_per_s": 989e12, "devices": 2, "precision": "bf16", "source": "its data sheet"},
        flops_lacking="too few steps",
        tokens_per_s=512.0,
        bytes_sent_per_step=RankStats(min=2e6, mean=3e6, max=4e6),
        gradient_bytes=2_000_000,
        peak_memory_bytes=12_000_000_000,
        warm_up={"steps": 9, "samples": 72, "seconds": 31.2, "compilation_s": 30.0, "observation_s": 0.1},
        unsteady=True,
        ranks=[{"phases": {}, "peak_memory_bytes": 12_000_000_000}],
        data_rows={"train": 1500},
        data_hash="d" * 64,
        software={
            "git": {"sha": "a" * 40, "dirty": False},
            "script_git": {"sha": "b" * 40, "dirty": True},
        },
        caveats=["a caveat"],
        warnings=["a warning"],
        error="an error",
        deviations=[
            {"field": "task.lr", "given": 1, "reference": 2, "rule": "R1", "fixed": False, "declared": False}
        ],
    )
    changes = {"framework": "jax", "compile": "eager"}
    return run.model_copy(update={"experiment": run.experiment.model_copy(update=changes)})


def test_names_are_unique_in_every_place():
    for names in ([field.name for field in FIELDS], [field.column for field in FIELDS]):
        assert [name for name, count in Counter(names).items() if count > 1] == []
    headings = [field.heading for field in FIELDS if field.heading]
    assert len(set(headings)) == len(headings)
    values = fields.flat(complete(), FIELDS)
    assert len({name.replace("/", "_") for name in values}) == len(values)


def test_every_field_is_shown_on_the_card_in_the_listing_in_mlflow_or_on_the_page():
    run, script = complete(), record("task=script", "task.path=train.py")
    lines = dict(full_card.rows(run))
    metrics = {metric.name for metric in mapping.end_metrics(run, ended=0.0)}
    tags = mapping.end_tags(run).keys()
    page = [text for _, texts in provenance_section.provenance([run]) for text in texts]
    for field in FIELDS:
        value = field.value(script if field.name == "script" else run)
        assert value not in (None, "", {}, []), f"{field.name}: `complete` has no value of it"
        names = {name for name in metrics if re.fullmatch(rf"{field.name}(_s|/.*)?", name)}
        shown = [
            field.row in lines,
            field.heading in {column.heading for column in run_table.COLUMNS} - {""},
            bool(names),
            field.name in tags,
            field.page and str(value) in page,
        ]
        assert any(shown), field.name
        assert bool(names) == (field in fields.METRICS), field.name


def test_a_measured_number_has_a_unit_and_reaches_mlflow_and_notebooks_unchanged(tmp_path: Path):
    run = complete().model_copy(update={"run_id": "a"})
    numbers = {m.name: m.value for m in mapping.end_metrics(run, ended=0.0)}
    assert numbers["time_to_accuracy_s"] == 48.25 and numbers["startup/cluster_s"] == 5.4
    assert numbers["phase/backward_s"] == 18.0 and numbers["share/backward"] == pytest.approx(0.45)
    assert math.fsum(v for name, v in numbers.items() if name.startswith("share/")) == pytest.approx(1.0)
    assert run.cost is not None and numbers["cost/goal_usd"] == run.cost.goal_usd
    assert numbers["energy/gpus_joules"] == 2e3 and numbers["bytes_sent_per_step"] == 3e6
    (tmp_path / "a").mkdir()
    save(record(run_id="a"), tmp_path / "a")
    saved = reader.load(tmp_path / "a" / "record.json")
    frame = notebook.load_runs(tmp_path)
    for field in FIELDS:
        if field.name != "run" and not isinstance(field.value(saved), dict):
            (value,) = frame[field.column]
            expected = fields.flat(saved, [field])[field.name]
            assert value == expected or (value != value or value is None) and expected is None, field.name
    assert frame["phase_backward"].item() == 18.0 and frame["task.batch_size"].item()


def test_a_listing_has_each_column_s_value_under_its_name():
    run = complete()
    row = run_index.shared_values(run) | run_index.own_values(run)
    summary = run_table.summary(row)
    assert summary["samples_per_s"] == 71.9 and summary["sample_unit"] == "images"
    assert run.cost is not None and summary["cost_wall_usd"] == run.cost.wall_usd
    wide = run_table.text([row], wide=True)
    assert "71.9 images/s" in wide and "48.2 s" in wide and "95.28 %" in wide and "11-21 03:45" in wide


def test_a_script_has_no_scale_strategy_division_and_epochs_of_the_suite():
    names = ("scale", "sync", "division", "epochs")
    run, script = (run_table.summary(run_index.shared_values(each) | run_index.own_values(each))
                   for each in (record(), record("task=script", "task.path=train.py")))  # fmt: skip
    assert [script[name] for name in names] == [None] * 4 and None not in [run[name] for name in names]


def test_a_terminal_lists_scripts_with_their_arguments_and_no_column_without_a_value(
    monkeypatch: pytest.MonkeyPatch,
):
    long = "--data /datasets/imagenet/arrow --token=s3cr3t --epochs 90"
    study = "a-study-with-a-name-that-is-longer-than-a-script-s"
    runs = [record("task=script", "task.path=train.py", f"task.args={args}", f"study={study}", best=None)
            for args in ("--lr 0.1", f"{long} --lr 0.2")]  # fmt: skip
    table = [run_index.shared_values(run) | run_index.own_values(run) for run in runs]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "300")
    heading, first, second = run_table.text(table).splitlines()
    assert heading.split()[3:6] == ["script", "w", "status"] and "best" not in heading
    assert " train.py --lr 0.1 " in first and first.index(" 2 ") == second.index(" 2 ")
    assert re.search(r" train.py --[^ ]*\.\.\.\S* .*--epochs 90 --lr 0.2 ", second)
    assert f" {study} " in first
    whole = run_table.text(table, wide=True).splitlines()
    assert " train.py --data /datasets/imagenet/arrow --token=*** --epochs 90 --lr 0.2 " in whole[2]
    assert "best" in whole[0]


CARD = {
    "time breakdown": "48.2 s from clock start to the last validation: "
    "batches 40.0 s, validation 6.2 s (6.0 to 6.4), report 750 ms, rest 1.3 s",
    "train time": "39.9 s as MLBench counts it",
    "start-up": "12.7 s from the command to clock start: "
    "command 1.2 s, cluster 5.4 s, scheduling 2.2 s, imports 3.9 s",
    "communication": "exposed 12.5 % of the batch (wait and transfer), "
    "overlapped with backward 7.5 % (5.0 to 10.0)",
    "throughput": "71.9 images/s, 36 images/s per worker",
    "batch": "p50 152 ms, p95 181 ms, p99 250 ms",
    "trained": "2 epochs, 24.1 s per epoch, 46 steps, 2,876 images",
    "arithmetic": "model FLOP/s (all workers) 4.39 GFLOP/s, 61 MFLOP a sample",
}


def test_the_card_has_every_number_with_its_unit(snapshot: SnapshotAssertion):
    text = rows()
    assert {name: text[name] for name in CARD} == CARD
    assert text["phases"] == snapshot


@pytest.mark.parametrize(
    ("changes", "row", "end"),
    [
        ({"time_to_accuracy": None}, "time to accuracy", None),
        ({"time_to_accuracy": None}, "time breakdown", ", rest 1.3 s"),
        ({"startup": {"command": 1.2, "cluster": 5.4}}, "start-up", "cluster 5.4 s, rest 6.1 s"),
        (
            {"phases": {"forward": RankStats.of([1.0]), "backward": RankStats.of([3.0])}},
            "phases",
            "forward 25.0 %, backward 75.0 %",
        ),
        (
            {"bytes_sent_per_step": RankStats(min=2e6, mean=3e6, max=4e6), "gradient_bytes": 2_000_000},
            "bytes sent",
            "3 MB (2 to 4) per step and worker, 1.5 x its gradients",
        ),
        ({}, "bytes sent", None),
        ({"workers": 1}, "communication", None),
        ({"workers": 1}, "throughput", "71.9 images/s"),
        ({"mfu": 0.3512}, "arithmetic", "MFU 35.1 %, 61 MFLOP a sample"),
        ({"model_flops_per_s": None, "flops_per_sample": None}, "arithmetic", None),
        ({"epochs": 1.0, "steps": 1}, "trained", "1 epoch, 48.2 s per epoch, 1 step, 2,876 images"),
    ],
)
def test_a_line_is_there_if_its_number_is(changes: dict[str, Any], row: str, end: str | None):
    text = rows(**changes).get(row)
    assert text == end or (text is not None and end is not None and text.endswith(end))


def test_a_run_without_phase_clocks_shows_none(snapshot: SnapshotAssertion):
    text = rows(
        phases={},
        overlapped_communication=None,
        exposed_communication_share=None,
        train_time=None,
        step_s={},
    )
    assert not {"phases", "communication", "batch", "train time"} & text.keys()
    assert text["time breakdown"] == snapshot


def test_a_run_that_never_trained_shows_how_far_it_came():
    text = fields.rows(nothing_measured())
    assert text.keys() == {"what", "trained", "start-up", "whole command", "mlbench"}
    assert text["start-up"] == "command 1.2 s, cluster 5.4 s"
    assert text["whole command"] == "1 min 12 s" and text["trained"] == "0 epochs, 0 steps, 0 images"


def test_provisioning_that_nobody_measured_is_named_as_missing_from_the_bill():
    hardware = record("hardware=gcp_n1_t4").experiment.hardware
    bill = cost(hardware, 2, wall_s=72.0, time_to_accuracy_s=48.0, clustered=True)
    assert "provisioning (not measured)" in rows(cost=vars(bill))["whole cluster"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (72.333, "s", "1 min 12 s"),
        (0.25, "share", "25.0 %"),
        (2.5, "USD", "2.50 USD"),
        (1.0004, "ratio", "1.0004"),
        (3e6, "B", "3 MB"),
        (1, "epochs", "1 epoch"),
        (1, "images/s", "1 images/s"),
        (2876, "images", "2,876 images"),
        (2.0, "", "2"),
        ("2026-11-21T03:45:01", "date", "11-21 03:45"),
    ],
)
def test_a_unit_has_one_form(value: Any, unit: str, text: str):
    assert format.quantity(value, unit) == text


def test_the_card_has_what_a_gpu_was_allowed_and_what_lowered_its_clock(snapshot: SnapshotAssertion):
    assert fields.rows(complete())["GPUs"] == snapshot
    assert "GPUs" not in fields.rows(record())
