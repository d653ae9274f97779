"""Reproducible benchmarks of distributed machine learning: time to accuracy, cost and speed-up.

Imports nothing heavy, so that `python -m mlbench.run --help` answers at once.
"""

import mlbench.experiment.clock  # noqa: F401  # so that it sees when a command began

# Results of one Major.Minor are comparable with each other (RULES.md, rule R9).
__version__ = "0.1.0"
