"""What sync strategies send, and their time to the goal: `python pipelines/sync.py run --study sync`."""

import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import stages
from metaflow.parameters import Parameter
from study_flow import StudyFlow, main

from mlbench.analysis.compare import strategy_labels
from mlbench.analysis.points import MedianEstimate, Point, estimate, points
from mlbench.record import format, study
from mlbench.record.record import Record

STUDY = "sync"
HEADINGS = ("task", "workers", "network", "sync", "reached", "sent a step", "steps to goal", "time to goal")


class SyncFlow(StudyFlow):
    """Sweeps sync strategies over networks and tabulates bytes, steps and time with 95 % intervals."""

    study: Any = Parameter("study", default=STUDY, help="a study of conf/study, or a begun one")

    def findings(self) -> list[str]:
        """Write the table as Markdown beside the report."""
        result = stages.load_results(self.study, [])
        self.table = table(points(result.records))
        folder = Path(result.folder) / study.REPORT
        folder.mkdir(exist_ok=True)
        (folder / "sync.md").write_text(self.table)
        return [str(folder / "sync.md")]


def table(measured: Sequence[Point]) -> str:
    """Return a Markdown table, one row a point; a goal that half of the runs missed is never reached."""
    networks = {name for point in measured for name, _ in point.series if name.startswith("network.")}
    labels = strategy_labels(measured, but=networks)  # the network has a column of its own
    rows = sorted(map(_row, measured, labels), key=lambda row: row[:4])
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def _row(point: Point, label: str) -> tuple[str, ...]:
    steps = [run.steps if run.status == "goal_reached" else math.inf for run in point.records]
    return (
        point.task,
        str(point.workers),
        point.network,
        label,
        f"{point.reached} of {point.n}",
        _sent(point.records),
        _estimate(estimate(steps), lambda value: f"{value:,.0f}"),
        _estimate(point.time_to_accuracy, format.duration),
    )


def _sent(records: Iterable[Record]) -> str:
    sent = [run.bytes_sent_per_step.mean for run in records if run.bytes_sent_per_step is not None]
    return format.with_prefix(sum(sent) / len(sent), "B") if sent else "unknown"


def _estimate(value: MedianEstimate | None, shown: Any) -> str:
    if value is None:
        return "no goal"
    if math.isinf(value.value):
        return "not reached"
    if value.low is None or value.high is None:
        return shown(value.value)
    high = "never" if math.isinf(value.high) else shown(value.high)
    return f"{shown(value.value)} ({shown(value.low)} to {high})"


if __name__ == "__main__":
    sys.exit(main(SyncFlow, study=STUDY))
