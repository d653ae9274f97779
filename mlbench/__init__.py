"""Reproducible benchmarks of distributed machine learning: time to accuracy, cost and speed-up.

Imports nothing heavy, so that `python -m mlbench.run --help` answers at once. For notebooks and scripts:
`load_runs`, `summarize`, `answers`, `draw` and `compare` (mlbench.report.notebook), and for a training loop
of one's own `measure` and `synchronise` (docs/your-own-script.md), imported when used.
"""

from importlib import import_module
from typing import Any

import mlbench.clock  # noqa: F401  # so that it sees when a command began

_HOMES = {"measure": "mlbench.measure", "synchronise": "mlbench.training.synchronise"}
_HOMES |= dict.fromkeys(("answers", "compare", "draw", "load_runs", "summarize"), "mlbench.report.notebook")

# Results of one Major.Minor are comparable with each other (RULES.md, rule R9).
__version__ = "0.3.0.dev0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The function `measure`, also after the import of its module has put the module in its place.
    globals()[name] = function = getattr(import_module(_HOMES[name]), name)
    return function
