"""How the runs came to their goal."""

import altair as alt

from mlbench.analysis import marks
from mlbench.report.grouping import Group, workers


def convergence(group: Group) -> alt.LayerChart:
    """Return the goal's metric over time, one line a run; a run that missed its goal ends in a cross."""
    task = group.records[0].experiment.task
    metric = task.metric
    rows: list[marks.Row] = []
    crossed: list[marks.Row] = []
    looks: dict[str, marks.Look] = {}
    points = [(curve, point) for curve in group.curves for point in curve.points]
    for style, (curve, point) in enumerate(points):
        for record in point.records:
            missed = record.run_id in point.missed
            series = f"{curve.prefix}{workers(point)}" + (", missed the goal" if missed else "")
            looks.setdefault(series, marks.look(style, hollow=missed))
            course = [
                {
                    "series": series,
                    "trace": record.run_id,
                    "x": validation.elapsed,
                    "y": value,
                    "text": record.run_id,
                }
                for validation in record.validations
                if (value := validation.metrics.get(metric)) is not None
            ]
            rows += course
            crossed += course[-1:] if missed else []
    longest = max((row["x"] for row in rows), default=0.0)
    reference = []
    if group.goal and longest:
        goal = f"goal: {group.goal}"
        looks[goal] = marks.REFERENCE
        reference = [{"series": goal, "x": x, "y": group.goal.target} for x in (0, longest)]
    unit = f" / {task.metric_unit}" if task.metric_unit else ""
    return marks.chart(
        "convergence",
        "Convergence of single runs",
        [*marks.line(rows, small=True), *marks.crosses(crossed), *marks.plain_line(reference)],
        looks=looks,
        x=marks.time_axis("time since the first access to data", longest, (0, None)),
        y=marks.axis(f"{metric.replace('_', ' ')} in validation{unit}"),
        about=group.about,
        notes=[] if longest else ["No run validated."],
    )
