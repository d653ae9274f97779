"""Summarise a study for MLflow: aggregates, what the runs share, and the answer."""

from collections.abc import Sequence
from pathlib import Path

from mlbench.record import study
from mlbench.record.record import Record
from mlbench.record.study import Study
from mlbench.report import aggregates, answers, grouping
from mlbench.report.grouping import Group
from mlbench.tracking.parent_runs import Summary

FIELDS = ("task", "scale", "recipe", "backend", "sync", "hardware", "goal")


def summary(
    plan: Study, records: Sequence[Record], output_root: Path, *, groups: Sequence[Group] | None = None
) -> Summary:
    """Return the summary of a study. `groups` are its records' groups, if the caller has them."""
    if groups is None:
        groups = grouping.groups(records, histories=study.histories(output_root))
    commands = "\n".join(study.commands(plan))
    paragraphs = ["\n\n".join([f"**{group.heading}**", *answers.answer(group)]) for group in groups]
    note = "\n\n".join([plan.question, *paragraphs, f"```\n{commands}\n```"])
    return Summary([*aggregates.metrics(groups)], _tags(plan, records, groups), note)


def _tags(plan: Study, records: Sequence[Record], groups: Sequence[Group]) -> dict[str, str]:
    """Return the tags of the parent, which all its runs share, so that two studies compare side by side."""
    all_points = [point for group in groups for point in group.points]
    values = {field: {str(getattr(point, field) or "") for point in all_points} for field in FIELDS}
    shared = {field: ", ".join(sorted(texts)) for field, texts in values.items() if any(texts)}
    return shared | {
        "runs": str(sum(point.n for point in all_points)),
        "attempts": str(len(records)),
        "official": ", ".join(str(point.workers) for point in all_points if not point.unofficial) or "no",
        "reached": str(sum(point.reached for point in all_points)),
        "points": str(len(plan.points)),
        "workers": ", ".join(map(str, sorted({point.workers for point in all_points}))),
    }
