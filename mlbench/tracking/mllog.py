"""A run as lines of MLPerf's log format, `:::MLLOG {json}`, for tools that read it.

Keys and fields are those of mlcommons/logging (mlperf_logging.mllog.constants, 4.1). The first line says that
this is no MLPerf submission: our tasks, goals and clock are not MLPerf's, and our `division` is another one.
"""

import json
from datetime import datetime
from typing import Any

from mlbench.experiment.record import Record

NOTICE = "# Written by mlbench. This is not an MLPerf submission and follows none of its benchmarks' rules."


def text(record: Record, log: list[dict[str, Any]]) -> str:
    """Return the lines in the order of their times.

    - init: from the command to the first touch of data, where mlbench's clock starts; run: from there to the
      last validation. MLPerf's run_start is the first touch of data, too.
    - An epoch here is the part between two validations, with epoch_num the epochs done at its end.
    """
    begun = datetime.fromisoformat(record.started_at).timestamp()
    ended = datetime.fromisoformat(record.ended_at).timestamp()
    validations = [event for event in log if event["key"] == "validation"]
    first = next((e["metadata"]["started_at"] for e in validations), begun + (record.startup_time or 0.0))
    lines = [_line(begun, "submission_benchmark", f"mlbench {record.experiment['task']['name']}")]
    lines += [_line(begun, "submission_status", "not submitted"), _line(begun, "seed", record.seed)]
    batch = record.experiment["task"].get("batch_size")
    if batch is not None:
        lines.append(_line(begun, "global_batch_size", _global_batch(record.experiment["task"], record)))
    lines.append(_line(begun, "init_start", None, "INTERVAL_START"))
    lines.append(_line(first, "init_stop", None, "INTERVAL_END"))
    lines.append(_line(first, "run_start", None, "INTERVAL_START"))
    since = first
    for event in validations:
        lines += _validated(record, event, since=since)
        since = event["value"]["wall"]
    status = "success" if record.status == "goal_reached" else "aborted"  # MLPerf knows no other
    stopped = since if validations else ended
    lines.append(
        _line(stopped, "run_stop", None, "INTERVAL_END", status=status, mlbench_status=record.status)
    )
    return "\n".join([NOTICE, *lines]) + "\n"


def _global_batch(task: dict[str, Any], record: Record) -> int:
    """Return samples an update over all workers; some tasks fix that, or bound it, whatever their number."""
    if task.get("update_size"):
        return task["update_size"]
    batch, most = task["batch_size"], task.get("largest_global_batch")
    return (batch if most is None else min(batch, most // record.workers)) * record.workers


def _validated(record: Record, event: dict[str, Any], *, since: float) -> list[str]:
    """Return the lines of one validation and of the training before it."""
    validation = event["value"]
    stop, epoch = validation["wall"], validation["epoch"]
    spent = max((s["outside"].get("validation", 0.0) for s in event["metadata"]["segments"]), default=0.0)
    begin = max(since, stop - spent)
    value = validation["metrics"].get(record.experiment["task"]["metric"])
    lines = [
        _line(since, "epoch_start", None, "INTERVAL_START", epoch_num=epoch),
        _line(begin, "epoch_stop", None, "INTERVAL_END", epoch_num=epoch),
        _line(begin, "eval_start", None, "INTERVAL_START", epoch_num=epoch),
    ]
    if value is not None:
        lines.append(_line(stop, "eval_accuracy", value, epoch_num=epoch))
    return [*lines, _line(stop, "eval_stop", None, "INTERVAL_END", epoch_num=epoch)]


def _line(wall: float, key: str, value: Any, kind: str = "POINT_IN_TIME", **metadata: Any) -> str:
    entry = {
        "namespace": "mlbench",
        "time_ms": round(wall * 1000),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": {"file": "mlbench/tracking/mllog.py", "lineno": 0} | metadata,
    }
    return f":::MLLOG {json.dumps(entry, allow_nan=False)}"
