"""What the controller writes of the ranks' reports, and what the record makes of it."""

from pathlib import Path
from typing import Any

from mlbench.launch.ray_hooks import EventLogCallback
from mlbench.record import events


def report(rank: int, *steps: int, system: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a rank's report of the validations at `steps`; ranks stamp their own start."""
    parts = [
        {
            "validation": {"step": step, "elapsed": step + rank / 10},
            "phase_times": {"samples": 100 * step + rank},
        }
        for step in steps
    ]
    return {
        "rank": rank,
        "started_at": 50.0 + rank,
        "parts": parts,
        "system": system or [],
        "unit": "rows",
        "hostname": f"n{rank}",
    }


def test_a_report_of_several_validations_is_an_event_each_with_all_ranks_times_and_samples_once(
    tmp_path: Path,
) -> None:
    log = EventLogCallback(tmp_path / events.NAME)
    here, there = {"wall": 51.0, "node": "node_0"}, {"wall": 52.0, "node": "node_1"}
    log.after_report(None, [report(1, 10, 20, system=[there]), report(0, 10, 20, system=[here])], None)
    log.after_report(None, [report(0), report(1, system=[there])], None)
    log.after_report(None, [report(1, 30), report(0, 30)], None)
    begun, *validations = events.read(tmp_path / events.NAME)
    assert (begun["key"], begun["value"], begun["metadata"]) == ("run_start", 50.0, {"hostname": "n0"})
    assert [event["key"] for event in validations] == ["validation"] * 3
    assert [event["value"] for event in validations] == [
        {"step": step, "elapsed": float(step)} for step in (10, 20, 30)
    ], "rank 0's"
    times = [[rank["samples"] for rank in event["metadata"]["phase_times"]] for event in validations]
    assert times == [[1000, 1001], [2000, 2001], [3000, 3001]]
    assert [event["metadata"]["system"] for event in validations] == [[here, there], [], []]
    assert [event["metadata"]["started_at"] for event in validations] == [50.0] * 3


def test_failures_are_numbered_and_a_restart_begins_no_second_run(tmp_path: Path) -> None:
    log = EventLogCallback(tmp_path / events.NAME)
    for number in (1, 2):
        log.after_report(None, [report(0, 10)], None)
        log.after_exception(None, {0: RuntimeError(f"died {number}")})
    written = events.read(tmp_path / events.NAME)
    keys = [event["key"] for event in written]
    assert keys == ["run_start", "validation", "worker_failure", "validation", "worker_failure"]
    failures = [event for event in written if event["key"] == "worker_failure"]
    assert [(event["value"], event["metadata"]["count"]) for event in failures] == [
        ({"0": "died 1"}, 1), ({"0": "died 2"}, 2),
    ]  # fmt: skip
