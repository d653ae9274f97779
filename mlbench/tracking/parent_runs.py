"""A study in MLflow: a parent run with the study's runs as its children.

The parent has the aggregates as metrics whose step is the number of workers, so that MLflow's own charts
draw them over workers, and the report as artifacts. Who writes first, the first child's upload or the sweep,
makes the parent. MLflow cannot take a metric back: where aggregates have changed, because the study was
extended, the parent is deleted and made anew.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mlbench.record import study
from mlbench.record.record import Record
from mlbench.record.study import Study
from mlbench.tracking.client import TrackingClient, open_client
from mlbench.tracking.mapping import COMPLETE, RUN_ID, Metric

if TYPE_CHECKING:
    from mlbench.report.grouping import Group

PARENT = "mlflow.parentRunId"  # tag by which MLflow nests runs
FIELDS = ("task", "scale", "recipe", "backend", "sync", "hardware", "goal")


def parent(client: TrackingClient, output_root: Path, name: str) -> str:
    """Return MLflow's id of a study's parent run, which is made if need be."""
    plan = study.load(study.folder(output_root, name))
    identity = _identity(plan, name)
    tags = {
        RUN_ID: identity,
        "study": name,
        "mlflow.source.type": "LOCAL",
        "mlflow.source.name": "mlbench.sweep",
    }
    start_time = 0.0
    if plan is not None:
        start_time = datetime.fromisoformat(plan.created).timestamp()
        tags["mlflow.note.content"] = plan.question
    return client.open_run(identity, name=f"study {name}", start_time=start_time, tags=tags)


def write(
    plan: Study,
    records: Sequence[Record],
    *,
    output_root: Path,
    uri: str,
    status: str,
    groups: "Sequence[Group] | None" = None,
) -> str:
    """Write the parent: aggregates, tags, and the report's files; return its MLflow id.

    - status: FINISHED, FAILED or KILLED.
    - groups: the records' groups (report.writer.groups), where the caller has them.

    Raises what MLflow raises, and may then be called again.
    """
    from mlbench.report import writer  # numpy is for the aggregates alone; a run's upload needs none

    client = open_client(uri, artifacts=output_root.absolute() / "artifacts")
    assert client is not None
    ended = max((run.end_time for run in records), default=0.0)
    histories = study.histories(output_root)
    groups = writer.groups(records, histories=histories) if groups is None else groups
    metrics = [Metric(*one[:2], round(ended * 1000), one[2]) for one in writer.metrics(groups)]
    run = parent(client, output_root, plan.name)
    if _written(client, run) - {(m.name, m.step, m.value) for m in metrics}:
        client.mlflow.delete_run(run)
        run = parent(client, output_root, plan.name)
    client.log(run, metrics=metrics, tags=tags(plan, records, groups))
    place = study.folder(output_root, plan.name)
    client.mlflow.log_artifact(run, str(place / study.PLAN))
    if (place / study.REPORT).is_dir():
        client.mlflow.log_artifacts(run, str(place / study.REPORT))
    ours = {record.run_id for record in records}
    for child in client.search(f"tags.study = '{plan.name}'"):
        if child.data.tags.get(RUN_ID) in ours and child.data.tags.get(PARENT) != run:
            client.mlflow.set_tag(child.info.run_id, PARENT, run)
    client.mlflow.set_terminated(run, status=status, end_time=round(ended * 1000))
    client.mlflow.set_tag(run, COMPLETE, "true")
    return run


def kill(plan: Study, *, output_root: Path, uri: str) -> None:
    """Give the parent of a sweep that was interrupted the status KILLED, if any of its runs has made one.

    Raises what MLflow raises.
    """
    client = open_client(uri, artifacts=output_root.absolute() / "artifacts")
    assert client is not None
    run = client.find(_identity(plan, plan.name))
    if run is not None:
        client.mlflow.set_terminated(run.info.run_id, status="KILLED")


def tags(plan: Study, records: Sequence[Record], groups: "Sequence[Group]") -> dict[str, str]:
    """Return the parent's tags: what all its runs share, so that two studies compare side by side."""
    values_by_field: dict[str, set[str]] = {field: set() for field in FIELDS}
    all_points = [point for group in groups for point in group.points]
    for point in all_points:
        for field in FIELDS:
            values_by_field[field].add(str(getattr(point, field) or ""))
    shared = {field: ", ".join(sorted(values)) for field, values in values_by_field.items() if any(values)}
    counts = {
        "runs": str(sum(point.n for point in all_points)),
        "attempts": str(len(records)),
        "official": ", ".join(str(point.workers) for point in all_points if not point.unofficial) or "no",
        "reached": str(sum(point.reached for point in all_points)),
        "points": str(len(plan.points)),
        "workers": ", ".join(map(str, sorted({point.workers for point in all_points}))),
    }
    commands = "\n".join(study.commands(plan))
    answers = [_answer(group) for group in groups]
    note = "\n\n".join([plan.question, *answers, f"```\n{commands}\n```"])
    return shared | counts | {"study": plan.name, "mlbench": plan.mlbench, "mlflow.note.content": note}


def _answer(group: "Group") -> str:
    """Return a group's answer as Markdown."""
    from mlbench.report import summary

    network = f", {group.network}" if group.network else ""
    title = f"**{group.task} {group.scale}, goal {group.goal or 'none'}{network}**"
    return "\n\n".join([title, *summary.answer(group)])


def _written(client: TrackingClient, run: str) -> set[tuple[str, int, float]]:
    """Return the aggregates that a parent has: name, step and value."""
    names = client.mlflow.get_run(run).data.metrics
    return {
        (metric.key, metric.step, metric.value)
        for name in names
        for metric in client.mlflow.get_metric_history(run, name)
    }


def _identity(plan: Study | None, name: str) -> str:
    """Return the parent's run id; two output folders may have studies of one name."""
    return f"study-{name}-{plan.created}" if plan else f"study-{name}"
