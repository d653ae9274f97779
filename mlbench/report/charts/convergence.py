"""How the runs came to their goal."""

from mlbench.analysis.chart import Axis, Chart, Trace, time_axis
from mlbench.report.grouping import Group, workers


def convergence(group: Group) -> Chart:
    """Return the goal's metric over time, one line a run; a run that missed its goal ends in a cross."""
    task = group.records[0].experiment.task
    metric = task.metric
    traces: list[Trace] = []
    named: set[str] = set()
    points = [(curve, point) for curve in group.curves for point in curve.points]
    for style, (curve, point) in enumerate(points):
        for record in point.records:
            course = [
                (validation.elapsed, value)
                for validation in record.validations
                if (value := validation.metrics.get(metric)) is not None
            ]
            missed = record.run_id in point.missed
            name = f"{curve.prefix}{workers(point)}" + (", missed the goal" if missed else "")
            traces.append(
                Trace(
                    name if course and name not in named else "",
                    [elapsed for elapsed, _ in course],
                    [value for _, value in course],
                    "line",
                    style,
                    secondary=missed,
                    small=True,
                    texts=[record.run_id] * len(course),
                )
            )
            named |= {name} if course else set()
            if missed and course:
                last = [course[-1][0]], [course[-1][1]]
                traces.append(Trace("", *last, "marks", style, excluded=True, texts=[record.run_id]))
    longest = max((x for trace in traces for x in trace.x), default=0.0)
    if group.goal and longest:
        target = group.goal.target
        traces.append(Trace(f"goal: {group.goal}", [0, longest], [target, target], "reference_line"))
    unit = f" / {task.metric_unit}" if task.metric_unit else ""
    return Chart.of(
        "convergence",
        "Convergence of single runs",
        x=time_axis("time since the first access to data", longest, (0, None)),
        y=Axis(f"{metric.replace('_', ' ')} in validation{unit}"),
        traces=traces,
        notes=[] if longest else ["No run validated."],
    )
