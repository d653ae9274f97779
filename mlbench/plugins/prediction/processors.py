"""Estimate the error of a ratio of stated peaks, taken as a ratio of speeds, from published results."""

import math

from mlbench.analysis.systems import SPREADS, convergence
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware


def spread(peaks: float) -> float:
    """Return the standard deviation of ln of a time that was scaled by this ratio of stated peaks.

    It is the one of analysis.systems for two accelerators whose memories differ as their peaks do.
    """
    slope = math.hypot(SPREADS["peak"], SPREADS["memory"])
    return math.hypot(slope * math.log(peaks), math.sqrt(2) * SPREADS["accelerator"])


def dof() -> int:
    """Return the degrees of freedom of a spread: the number of benchmarks less 1.

    Results of one benchmark have correlated errors, so benchmarks count and not results.
    Cameron and Miller 2015, A Practitioner's Guide to Cluster-Robust Inference.
    """
    return len(convergence()) - 1


def factor(peaks: float) -> float:
    """Return the ratio of an end of a time's 95 % interval to its middle."""
    from scipy.stats import t

    return math.exp(spread(peaks) * float(t.ppf(0.975, dof())))


def profile(name: str) -> Hardware:
    """Return a hardware profile by its name. Raises UserError for an unknown name."""
    if "," in name:
        raise UserError(
            f"hardware={name}: a prediction takes one profile", hint="hardware=all predicts for every profile"
        )
    return compose.hardware(name)
