"""Compute reference convergence points (RCP): epochs that a task needs, and runs with too few.

Files and formula are MLPerf's (mlcommons/logging 4.1.68, rcp_checker). If its rules and its code differ, the
code is followed. The standard deviation is that of all runs, and the mean leaves out fastest and slowest.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from mlbench.analysis.bootstrap import olympic_mean

EPOCHS = "Epochs to converge"  # key of MLPerf's files
P = 0.05  # one-sided
FEWEST = 3  # runs of a reference point: two are left out of its mean


def record(
    benchmark: str,
    epochs: Sequence[float],
    *,
    hyperparameters: Mapping[str, Any],
    missed: int,
    when: str,
    platform: str,
) -> dict[str, Any]:
    """Return one reference point as MLPerf's files have it. `missed` runs reached no goal."""
    values = dict(hyperparameters)
    return {
        "Benchmark": benchmark,
        "Creator": "mlbench",
        "When": when,
        "Platform": platform,
        "BS": values.pop("global_batch_size"),
        "Hyperparams": values,
        EPOCHS: list(epochs),
        "Not converged": missed,
    }


def fewest_epochs(reference: Sequence[float], *, runs: int) -> float:
    """Return the least mean of epochs that MLPerf's test accepts of `runs` runs.

    - reference: the epochs of the reference's runs, three or more.
    - runs: two of them, the extremes, are left out of the mean if there are three or more.

    The formula is m - t * s * sqrt(1/n1 + 1/n2). m is the olympic mean of the reference, and s the standard
    deviation of all its runs. n1 and n2 are the runs that are left, and t is Student's 95 % quantile for n1 +
    n2 - 2.
    """
    from scipy.stats import t

    if len(reference) < FEWEST:
        raise ValueError(f"a reference needs {FEWEST} runs, got {len(reference)}")
    mean, spread = fmean(sorted(reference)[1:-1]), pstdev(reference)
    n1, n2 = len(reference) - 2, runs - 2 if runs >= FEWEST else runs
    if not spread or n1 + n2 <= 2:
        return mean
    return mean - float(t.ppf(1 - P, n1 + n2 - 2)) * spread * math.sqrt(1 / n1 + 1 / n2)


def implausible(
    epochs: Sequence[float],
    *,
    hyperparameters: Mapping[str, Any],
    references: Mapping[str, Mapping[str, Any]],
) -> str | None:
    """Return why these runs of one configuration converged too fast to be true, or None if not.

    - epochs: of the runs that reached the goal.
    - hyperparameters: with global_batch_size. A reference with others does not apply to these runs.
    """
    for name, reference in references.items():
        values = reference["Hyperparams"] | {"global_batch_size": reference["BS"]}
        if not epochs or values != hyperparameters:
            continue
        mean = olympic_mean(epochs) or fmean(epochs)
        least = fewest_epochs(reference[EPOCHS], runs=len(epochs))
        if mean < least:
            return (
                f"{mean:.3g} epochs to the goal are fewer than the {least:.3g} that the reference runs "
                f"({name}, {len(reference[EPOCHS])} runs) make plausible: "
                "compare code, data and goal with theirs"
            )
    return None
