"""The charts of a study: from the points of one task, scale, goal and data set to traces and notes."""

from mlbench.analysis.chart import Chart
from mlbench.report.charts.convergence import convergence
from mlbench.report.charts.cost import cost
from mlbench.report.charts.phases import communication, phases
from mlbench.report.charts.speedup import speedup, time_to_accuracy
from mlbench.report.grouping import Group, tables
from mlbench.tasks import registry

__all__ = ["NAMES", "charts"]

DRAWN = (speedup, time_to_accuracy, phases, communication, cost, convergence)
NAMES = tuple(draw.__name__ for draw in DRAWN)


def charts(group: Group) -> list[Chart]:
    """Return all charts of a group, also those that can only say why there is nothing to draw.

    A task that measures a table may draw it (`report.charts`); those charts come first.
    """
    report = registry.report(group.task)
    first = report.charts(tables(group), about=group.about) if report else []
    return [*first, *(draw(group) for draw in DRAWN)]
