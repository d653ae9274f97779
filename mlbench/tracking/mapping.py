"""Map a run to MLflow: its name, params, tags and metrics, made from the event log and the record.

The names are chosen for MLflow's run table and its compare view. What identifies a run is a tag, short and
without a prefix, so that it makes a column. The resolved configuration is params, named as on the command
line. Headline numbers have the names of the record, seconds with `_s` behind them, like those of a study.

Series have a prefix, by which the charts are grouped. `validation/`, `training/` and `interval/` grow while
the run goes on. The last has seconds and bytes sent between two validations, mean over the ranks. `phase/`,
`share/`, `startup/`, `outside/`, `batch/`, `cost/` and `energy/` are written at its end.
"""

import getpass
import json
import math
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from mlbench.config.credentials import without_credentials
from mlbench.config.identity import flatten
from mlbench.record import fields, format
from mlbench.record.build_record import intervals
from mlbench.record.phases import PhaseTimes
from mlbench.record.record import Record, RunStart

RUN_ID = "mlbench.run_id"  # tag: the run folder's name, by which a run is found again
COMPLETE = "mlbench.complete"  # tag: "true" once everything has been written
IMPORTED = "mlbench.imported"  # tag: "true" for a run that was read from a zip, and is never reused
MLFLOW_STATUS = {  # else FINISHED
    "diverged": "FAILED",
    "failed": "FAILED",
    "interrupted": "KILLED",
    "preempted": "KILLED",
}


class Metric(NamedTuple):
    """One number of a run at a time (ms since 1970) and a step."""

    name: str
    value: float
    time_ms: int
    step: int


def run_name(start: RunStart) -> str:
    """Return the name a person sees first."""
    experiment = start.experiment
    task, backend = experiment.task.name, experiment.backend.name
    return f"{task} {experiment.scale} {experiment.workers}w {backend} {start.seed:x}"


def params(start: RunStart) -> dict[str, str]:
    """Return the resolved configuration, flat, under the names of the command line, with the drawn seed.

    Fields without a value are left out. So are the division's rules, which its name implies and the run's
    config.yaml has.
    """
    values = flatten(without_credentials(start.experiment.plain() | {"seed": start.seed}))
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value is not None and (not name.startswith("division.") or name == "division.name")
    }


def start_tags(start: RunStart) -> dict[str, str]:
    """Return the tags that are known when the run begins."""
    experiment = start.experiment
    settings = {field.name: field.value(start) for field in fields.FIELDS if field.setting}
    tags = {name: str(value) for name, value in settings.items() if value is not None} | {
        RUN_ID: start.run_id,
        "status": "running",
        "source": start.source,
        "goal": str(experiment.goal),
        "seed": str(start.seed),
        "key": start.key,
        "command": without_credentials(start.command),
    }
    if start.imported:
        tags[IMPORTED] = "true"
    return tags | source_tags("mlbench.run")


def source_tags(program: str) -> dict[str, str]:
    """Return MLflow's tags of the source, and of the user if there is a name (getpass.getuser)."""
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": program}  # shown from its last slash on
    with suppress(OSError, KeyError, ImportError):
        tags["mlflow.user"] = getpass.getuser()
    return tags


def end_tags(record: Record) -> dict[str, str]:
    """Return the tags that are known when the run has ended."""
    values = fields.flat(record, (field for field in fields.FIELDS if field.tag))
    tags = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in values.items()
        if value not in (None, "")
    }
    tags["mlflow.note.content"] = _note(record)
    if record.goal:
        tags["target"] = str(record.goal)
    if git := record.software.git:
        tags["mlflow.source.git.commit"] = git.sha  # MLflow's Version column
    return without_credentials(tags)


def _note(record: Record) -> str:
    """Return the Markdown text at the top of the run's page."""
    lines = [f"**{record.status.replace('_', ' ')}**" + (f": {record.goal}" if record.goal else "")]
    if record.time_to_accuracy is not None:
        lines.append(f"time to accuracy {format.duration(record.time_to_accuracy)}")
    lines += [f"caveat: {caveat}" for caveat in record.caveats]
    lines += [f"error: {record.error}"] if record.error else []
    return "\n\n".join([*lines, f"```\n{record.command}\n```"])


def validation_metrics(log: Iterable[dict[str, Any]], *, samples: int = 0) -> tuple[list[Metric], int]:
    """Return the metrics of the log's validations, with the nodes' system metrics, and the samples.

    - samples: trained on before this part of the log. Those of epochs that a restart repeats count again.
    """
    metrics = []
    for event in log:
        if event["key"] == "validation":
            samples += sum(times["samples"] for times in event["metadata"]["phase_times"])
            metrics += _validation(event["value"], event["metadata"], samples=samples)
            metrics += _system(event["metadata"])
    return metrics, samples


def _validation(validation: dict[str, Any], metadata: dict[str, Any], *, samples: int) -> list[Metric]:
    """Return one validation's metrics: when they were measured, at the step they belong to."""
    values = {f"validation/{name}": value for name, value in validation["metrics"].items()}
    values |= {"training/epoch": validation["epoch"], "training/elapsed_s": validation["elapsed"]}
    values["training/loss"] = validation["train_loss"]
    values["training/samples"] = samples or None
    ranks = [PhaseTimes.from_plain(times) for times in metadata["phase_times"]]
    busy = max((math.fsum(times.phases.values()) for times in ranks), default=0.0)
    if busy > 0:
        (interval,) = intervals([[times] for times in ranks])
        values["training/samples_per_s"] = interval.samples / busy
        values |= {f"interval/{phase}_s": stats.mean for phase, stats in interval.phases.items()}
        overlapped = interval.overlapped_communication
        values["interval/overlapped_communication_s"] = overlapped.mean if overlapped else None
        values["interval/bytes_sent"] = interval.bytes_sent.mean if interval.bytes_sent else None
    return _at(values, wall=validation["wall"], step=validation["step"])


def _system(metadata: dict[str, Any]) -> list[Metric]:
    """Return the nodes' samples under MLflow's names. A step is a second since the clock's start."""
    metrics = []
    for sample in metadata.get("system", ()):
        prefix = f"system/{sample['node']}/" if sample["node"] else "system/"
        values = {prefix + name: v for name, v in sample.items() if name not in ("wall", "node")}
        step = round(sample["wall"] - metadata["started_at"])
        metrics += _at(values, wall=sample["wall"], step=step)
    return metrics


def end_metrics(record: Record, *, ended: float) -> list[Metric]:
    """Return the record's numbers, as of its end (wall clock, s).

    They have step 0, for which MLflow draws labelled bars: of a single number at a later step it draws a dot.
    """
    values = {
        name if field.unit != "s" or "seconds" in name else f"{name}_s": value
        for field in fields.METRICS
        for name, value in fields.flat(record, [field]).items()
    }
    return _at(values, wall=ended, step=0)


def _at(values: dict[str, Any], *, wall: float, step: int) -> list[Metric]:
    """Return the finite numbers among `values` as metrics of one moment."""
    return [
        Metric(name, float(value), round(wall * 1000), step)
        for name, value in values.items()
        if value is not None and math.isfinite(value)
    ]
