"""List the files of one run, the same in MLflow and in an archive. None of them holds a password.

- record.json, events.jsonl: from these two the run is imported again.
- config.yaml: the resolved configuration.
- result.txt: the result line that MLBench (2018-2021) put into its downloads.
"""

import json

import yaml

from mlbench.config.credentials import without_credentials
from mlbench.record import events
from mlbench.record.build_record import Log
from mlbench.record.phases import exposed
from mlbench.record.record import Record

RECORD, CONFIG = "record.json", "config.yaml"
RESULTS = ("official_result.txt", "result.txt")  # the first in archives of before 2026-11-23
_TASK_RESULT = {
    "top1_accuracy": "{target:g}% Top 1 Validation Accuracy",
    "accuracy": "{target:g}% Top 1 Validation Accuracy",
    "perplexity": "Validation Perplexity of {target:g}",
    "bleu": "Validation BLEU-Score of {target:g}",
}


def texts(original: Record, log: Log) -> dict[str, str]:
    """Return the files' texts by name."""
    clean = Record.model_validate(without_credentials(original.model_dump(mode="json")))
    cleaned = events.resealed(log, [without_credentials(event) for event in log])
    lines = [json.dumps(event, allow_nan=False) + "\n" for event in cleaned]
    files = {
        RECORD: clean.model_dump_json(indent=2),
        events.NAME: "".join(lines),
        CONFIG: yaml.safe_dump(clean.experiment.plain(), sort_keys=False),
    }
    result = result_file(clean)
    return files if result is None else files | {result[0]: result[1] + "\n"}


def result_file(record: Record) -> tuple[str, str] | None:
    """Return name and text of the file with the result line, or None if no goal was reached.

    No single run is official, so the file is not the original's `official_result.txt` but `result.txt`. Its
    line has scale, division and why it is not official.
    """
    line = official_result(record)
    if line is None:
        return None
    experiment = record.experiment
    about = f"scale={experiment.scale} division={experiment.division.name}"
    why = "imported" if record.imported else "; ".join(record.official_reasons)
    trust = "one run of an official point's five" if record.eligible else f"not official: {why}"
    return "result.txt", f"{line} ({about}, {trust})"


def official_result(record: Record) -> str | None:
    """Return the original's result line, or None if no goal was reached, as in the original.

    - The seconds are `time_to_accuracy`, the wall clock. The original's were its training time, which left
      out loading and validation. That number is the record's `train_time`.
    - The parts are means over the ranks, with exposed communication only, and data_wait as pre-processing.
      The original's were rank 0's. Without phase clocks (phase_timing=false) there are no parts.
    """
    if record.status != "goal_reached" or record.goal is None or record.time_to_accuracy is None:
        return None
    metric, target = record.goal.metric, record.goal.target
    text = _TASK_RESULT.get(metric, f"Validation {metric} of {{target:g}}").format(target=target)
    parts = [f"{text} reached in {record.time_to_accuracy:.3f} seconds"]
    mean = {phase: spread.mean for phase, spread in record.phases.items()}
    if "backward" in mean:  # a compiled step has no separate parts
        compute = sum(mean[phase] for phase in ("forward", "loss", "backward", "optimizer"))
        parts += [
            f"Compute: {compute} seconds",
            f"Communication: {exposed(mean)} seconds",
            f"Metrics Computation: {mean['metrics']} seconds",
            f"Pre-processing: {mean['data_wait']} seconds",
        ]
    return ", ".join(parts)
