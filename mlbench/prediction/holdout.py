"""How far off the model is at worker counts that it has not seen."""

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlbench.prediction.evaluation import best, evaluate
from mlbench.prediction.model import Model, fit
from mlbench.prediction.runs import Measurements


@dataclass(frozen=True)
class LeftOut:
    """One worker count predicted from all others; errors are relative to its measured median."""

    workers: int
    measured_s: float
    predicted_s: float
    time_error: float
    epoch_error: float  # of the seconds an epoch, so without the luck in the epochs to the goal


def leave_one_out(measurements: Measurements) -> list[LeftOut]:
    """Return how well each measured worker count is predicted from the others; empty for fewer than three."""
    errors = []
    for left in measurements.counts if len(measurements.counts) > 2 else ():
        rest = measurements.only([k for k in measurements.counts if k != left])
        if any(run.reached for run in rest.runs):
            errors.append(compare(fit(rest), measurements.only([left])))
    return _reached(errors)


def held_out(model: Model, everything: Measurements) -> list[LeftOut]:
    """Return how well the model predicts worker counts that were measured but not fitted."""
    unseen = [k for k in everything.counts if k not in model.measurements.counts]
    return _reached([compare(model, everything.only([k])) for k in unseen])


def compare(model: Model, measured: Measurements) -> LeftOut:
    """Return the error at the one worker count of `measured`, which the model has not seen."""
    (workers,) = measured.counts
    expected = evaluate(model, best(model), np.array([workers], np.float64))
    predicted, epochs = float(expected.time[0, 0]), float(expected.epochs[0, 0])
    time = median(measured.times(workers))
    an_epoch = median(run.total_s / run.epochs for run in measured.runs)
    return LeftOut(
        workers=workers,
        measured_s=time,
        predicted_s=predicted,
        time_error=predicted / time - 1,
        epoch_error=predicted / epochs / an_epoch - 1,
    )


def drift(measurements: Measurements) -> float:
    """Return by how much, in logarithms of seconds a doubling, the model was off beyond what it had seen.

    Beyond means at the largest measured worker count, predicted from all smaller ones; 0 where these are
    fewer than two, since then nothing is known of it.
    """
    *fewer, most = measurements.counts
    rest = measurements.only(fewer)
    if len(fewer) < 2 or not any(run.reached for run in rest.runs):
        return 0.0
    off = compare(fit(rest), measurements.only([most])).epoch_error
    return abs(math.log1p(off)) / math.log2(most / fewer[-1])


def _reached(errors: list[LeftOut]) -> list[LeftOut]:
    """Return those with a time to compare with: where most runs missed the goal there is none."""
    return [one for one in errors if math.isfinite(one.measured_s)]
