"""Reproducible benchmarks of distributed machine learning: time to accuracy, cost and speed-up.

Imports nothing heavy, so that `python -m mlbench.run --help` answers at once. For notebooks and scripts:
`load_runs`, `summarize`, `answers`, `draw` and `compare` (mlbench.report.notebook), imported when used.
"""

from typing import TYPE_CHECKING, Any

import mlbench.experiment.clock  # noqa: F401  # so that it sees when a command began

if TYPE_CHECKING:
    from mlbench.report.notebook import answers, compare, draw, load_runs, summarize

__all__ = ["__version__", "answers", "compare", "draw", "load_runs", "summarize"]

# Results of one Major.Minor are comparable with each other (RULES.md, rule R9).
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mlbench.report import notebook

    return getattr(notebook, name)
