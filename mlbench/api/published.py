"""Published results in a notebook: `mlbench.load_published(study="mlbench-2021-runs")` as a table."""

from datetime import date
from typing import TYPE_CHECKING

from mlbench.analysis import published
from mlbench.config import libraries, plugins

if TYPE_CHECKING:
    import pandas as pd

    from mlbench.report.notebook import Picture


def load_published(study: str | None = None) -> "pd.DataFrame":
    """Return published numbers of MLBench and of others, one row a number, with its unit and source.

    Args:
        study: only the numbers of this study, e.g. "mlbench-2021-runs"; None: all.
    """
    libraries.require("pandas", user="mlbench.load_published()")
    import pandas as pd

    return pd.DataFrame([vars(number) for number in published.load(study=study)])


def load_published_curves(task: str) -> "pd.DataFrame":
    """Return what the runs logged that MLBench published in 2020 and 2021, one row a value, in order of time.

    Columns: path (of the archive), workers, metric (the original's name), rank, time (UTC), value.

    Args:
        task: e.g. "gnmt".
    """
    libraries.require("pandas", user="mlbench.load_published_curves()")
    import pandas as pd

    rows = [
        {"path": run.path, "workers": run.workers, "metric": metric, "rank": rank, **point._asdict()}
        for run in published.archived_runs(task)
        for (metric, rank), points in published.curves(run.path).items()
        for point in points
    ]
    return pd.DataFrame(rows)


def predict_published(today: date) -> "list[tuple[str, Picture]]":
    """Return a sentence in Markdown and a chart of predicted cost over time for each published task.

    Args:
        today: the day whose prices count; a price that is older than a year is no advice.
    """
    libraries.require(*libraries.DRAWING, user="mlbench.predict_published()")
    from mlbench.report.notebook import Picture

    return [
        (f"**{part.title}.** {part.answer}", Picture(part.chart))
        for module in plugins.forecasts()
        for part in module.published(today)
    ]
