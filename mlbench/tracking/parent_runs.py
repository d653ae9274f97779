"""Write a study to MLflow: a parent run with the study's runs as its children.

The parent has the aggregates as metrics whose step is the number of workers, so that MLflow's charts draw
them over workers. It has the report as artifacts. The first writer makes the parent, which is the first
child's upload or the sweep. MLflow cannot take a metric back. If aggregates have changed, because the study
was extended, the parent is deleted and created again.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from mlbench import clock
from mlbench.config.credentials import without_credentials
from mlbench.record import study
from mlbench.record.record import Record
from mlbench.record.study import Study
from mlbench.tracking import mapping, ui
from mlbench.tracking.client import ARTIFACTS, TrackingClient, open_client
from mlbench.tracking.mapping import COMPLETE, RUN_ID, Metric

PARENT = "mlflow.parentRunId"  # tag by which MLflow nests runs


class Summary(NamedTuple):
    """What MLflow shows of a study in addition to its runs.

    - metrics: name, value and step (the number of workers) of each aggregate.
    - tags: what all its runs share, and how many there are. note: Markdown.
    """

    metrics: Sequence[tuple[str, float, int]]
    tags: Mapping[str, str]
    note: str


def parent(client: TrackingClient, output_root: Path, name: str) -> str:
    """Return MLflow's id of a study's parent run, which is made if need be."""
    plan = study.load(study.folder(output_root, name))
    identity = run_id(plan, name)
    tags = {RUN_ID: identity, "study": name, **mapping.source_tags("mlbench.sweep")}
    start_time = 0.0
    if plan is not None:
        start_time = datetime.fromisoformat(plan.created).timestamp()
        tags["mlflow.note.content"] = plan.question
    return client.open_run(identity, name=f"study {name}", start_time=start_time, tags=tags)


def write(
    plan: Study,
    records: Sequence[Record],
    summary: Summary,
    *,
    output_root: Path,
    uri: str,
    status: str,
) -> str:
    """Write the parent: aggregates, tags, and the report's files. Return its MLflow id.

    `status` is FINISHED, FAILED or KILLED. Raises what MLflow raises, and may then be called again.
    """
    client = open_client(uri, artifacts=output_root.absolute() / ARTIFACTS)
    assert client is not None
    ended = max((run.end_time for run in records), default=0.0)
    metrics = [Metric(name, value, round(ended * 1000), step) for name, value, step in summary.metrics]
    run = parent(client, output_root, plan.name)
    if _written(client, run) - {(m.name, m.step, m.value) for m in metrics}:
        client.mlflow.delete_run(run)
        run = parent(client, output_root, plan.name)
    report = ui.link("", client.experiment_id, run, file="report.html")
    note = f"[All runs]({ui.link('', client.experiment_id)}) | [Report]({report})\n\n{summary.note}"
    tags = {**summary.tags, "study": plan.name, "mlbench": plan.mlbench, ui.NOTE: note}
    client.log(run, metrics=metrics, tags=tags)
    folder = study.folder(output_root, plan.name)
    client.mlflow.log_text(run, without_credentials((folder / study.PLAN).read_text()), study.PLAN)
    if (folder / study.REPORT).is_dir():
        client.mlflow.log_artifacts(run, str(folder / study.REPORT))
    ours = {record.run_id for record in records}
    for child in client.search(f"tags.study = '{plan.name}'"):
        if child.data.tags.get(RUN_ID) in ours and child.data.tags.get(PARENT) != run:
            client.mlflow.set_tag(child.info.run_id, PARENT, run)
    client.mlflow.set_terminated(run, status=status, end_time=round(ended * 1000))
    client.mlflow.set_tag(run, COMPLETE, "true")
    return run


def write_answer(
    name: str,
    sentence: str,
    metrics: Mapping[str, float | None],
    folder: Path,
    *,
    output_root: Path,
    uri: str,
) -> None:
    """Write the answer of a study without a plan, and its folder's files, into the parent of its runs.

    Raises what MLflow raises.
    """
    client = open_client(uri, artifacts=output_root.absolute() / ARTIFACTS)
    assert client is not None
    run, now = parent(client, output_root, name), clock.wall()
    points = [Metric(key, value, round(now * 1000), 0) for key, value in metrics.items() if value is not None]
    client.log(run, metrics=points, tags={"study": name, ui.NOTE: sentence})
    client.close_run(run, folder=folder, status="completed", ended=now)


def kill(plan: Study, *, output_root: Path, uri: str) -> None:
    """Set the status of an interrupted sweep's parent to KILLED, if any of its runs has made one.

    Raises what MLflow raises.
    """
    client = open_client(uri, artifacts=output_root.absolute() / ARTIFACTS)
    assert client is not None
    run = client.find(run_id(plan, plan.name))
    if run is not None:
        client.mlflow.set_terminated(run.info.run_id, status="KILLED")


def _written(client: TrackingClient, run: str) -> set[tuple[str, int, float]]:
    """Return the aggregates that a parent has: name, step and value."""
    return {
        (metric.key, metric.step, metric.value)
        for name in client.mlflow.get_run(run).data.metrics
        for metric in client.mlflow.get_metric_history(run, name)
    }


def run_id(plan: Study | None, name: str) -> str:
    """Return the parent's run id, as two output folders may have studies of one name."""
    return f"study-{name}-{plan.created}" if plan else f"study-{name}"
