"""The charts of a study: from the points of one task, scale, goal and data set to traces and words."""

from mlbench.report.chart import Chart
from mlbench.report.charts.collectives import measured, message_bandwidth, message_times
from mlbench.report.charts.convergence import convergence
from mlbench.report.charts.cost import cost
from mlbench.report.charts.phases import communication, phases
from mlbench.report.charts.speedup import speedup, time_to_accuracy
from mlbench.report.grouping import Group

__all__ = ["NAMES", "charts"]

DRAWN = (speedup, time_to_accuracy, phases, communication, cost, convergence)
NAMES = tuple(draw.__name__ for draw in DRAWN)


def charts(group: Group) -> list[Chart]:
    """Return all charts of a group, also those that can only say why there is nothing to draw.

    A group of task 0 has those of its messages in front.
    """
    first = (message_times, message_bandwidth) if measured(group) else ()
    return [draw(group) for draw in (*first, *DRAWN)]
