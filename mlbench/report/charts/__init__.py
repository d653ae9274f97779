"""The charts of a study: from the points of one task, scale, goal and data set to marks and notes."""

from dataclasses import replace

import altair as alt

from mlbench.report.charts import convergence, cost, phases, speedup
from mlbench.report.grouping import Group, tables
from mlbench.tasks import registry

__all__ = ["NAMES", "charts"]

DRAWN = (
    speedup.speedup,
    speedup.time_to_accuracy,
    phases.phases,
    phases.communication,
    cost.cost,
    convergence.convergence,
)
NAMES = tuple(draw.__name__ for draw in DRAWN)
MOST_CURVES = 12  # in one chart; the marks of more cannot be told apart


def charts(group: Group) -> list[alt.LayerChart]:
    """Return all charts of a group, also those that only have the reason why there is nothing to draw.

    A task that measures a table may draw it (`report.charts`); those charts come first. Of more than
    MOST_CURVES curves the fastest are drawn, and a note says so.
    """
    report = registry.report(group.task)
    first = report.charts(tables(group), about=group.about) if report else []
    notes: tuple[str, ...] = ()
    if (count := len(group.curves)) > MOST_CURVES:
        fastest = {id(curve) for curve in sorted(group.curves, key=lambda curve: curve.fastest)[:MOST_CURVES]}
        which = "those that reach the goal first" if group.goal else "the first ones"
        notes = (f"{MOST_CURVES} of {count} curves are drawn, {which}. The table has all of them.",)
        group = replace(group, curves=tuple(curve for curve in group.curves if id(curve) in fastest))
    drawn = [draw(group) for draw in DRAWN]
    for chart in drawn:
        chart.usermeta["notes"][:0] = notes
    return [*first, *drawn]
