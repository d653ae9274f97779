"""Time, speed-up and cost at any worker count with 95 % intervals, and how far off the model was."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.prediction.model import Array, Model, Network, Part, fit
from mlbench.prediction.runs import Measurements
from mlbench.record import cost

DRAWS = 1000  # refits; the ends of a 95 % interval then move by about 3 % between seeds
SEED = 20200908  # any constant: equal runs give equal intervals
TAILS = (2.5, 97.5)  # percent; what lies between is the 95 % interval
FURTHEST = 8  # times the largest measured count: beyond it nothing is predicted unless asked


@dataclass(frozen=True)
class Interval:
    """A predicted value; its interval is None where the runs say nothing about their noise."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Forecast:
    """What is predicted of one worker count."""

    workers: int
    measured_s: float | None  # median time to accuracy where it was measured; infinite if most runs missed
    extrapolated: bool
    time_s: Interval
    time_ratio: Interval | None  # to the next smaller count of the forecast; None for the first
    speedup: Interval  # against one worker on the same hardware and network
    cost_usd: Interval | None
    epochs: float
    step_s: float
    communication_share: float  # exposed, of a step


@dataclass(frozen=True)
class Target:
    """On what the prediction is made; None: as measured."""

    hardware: Hardware | None = None
    network: Network | None = None


@dataclass(frozen=True)
class Noise:
    """Relative residuals of the runs' seconds and epochs, scaled for few runs."""

    seconds: Array
    epochs: Array
    dof: int
    epochs_dof: int

    @property
    def known(self) -> bool:
        return bool(self.dof and self.epochs_dof)


@dataclass(frozen=True)
class HoldoutError:
    """One worker count predicted from all others; errors are relative to its measured median."""

    workers: int
    measured_s: float
    predicted_s: float
    time_error: float
    epoch_error: float  # of the seconds per epoch, so without the chance in the epochs to the goal


def forecast(model: Model, workers: Sequence[int], target: Target | None = None) -> list[Forecast]:
    """Return what is to be expected at each worker count, in ascending order.

    Raises UserError where the target needs what is not stated: peaks of both processors, the bytes of the
    gradients, a worker count beyond the batch.
    """
    target = target or Target()
    measurements = model.measurements
    hardware = target.hardware or measurements.hardware
    if max(workers) > model.most_workers:
        raise UserError(
            f"{max(workers):,} workers are more than the batch or the data can be shared out among",
            hint=f"max_workers={int(model.most_workers)}",
        )
    counts = np.array([1, *workers], np.float64)
    faster = _faster(measurements, target.hardware)
    expected = model.predict(counts, faster=faster, network=target.network)
    one_run, means = _drawn(model, counts, faster=faster, network=target.network)
    forecasts = []
    for i, k in enumerate(workers, start=1):
        time = _interval(expected.time[i], one_run[:, i])
        ratio = _interval(expected.time[i] / expected.time[i - 1], means[:, i] / means[:, i - 1])
        measured = target == Target() and k in measurements.counts
        forecasts.append(
            Forecast(
                workers=k,
                measured_s=median(measurements.times(k)) if measured else None,
                extrapolated=not measurements.counts[0] <= k <= measurements.counts[-1],
                time_s=time,
                time_ratio=ratio if i > 1 else None,
                speedup=_interval(expected.time[0] / expected.time[i], means[:, 0] / means[:, i]),
                cost_usd=_cost(hardware, k, time),
                epochs=float(expected.epochs[i]),
                step_s=float(expected.step[i]),
                communication_share=float(expected.exposed[i] / expected.step[i]),
            )
        )
    return forecasts


def noise(model: Model) -> Noise:
    """Return what the runs show of their noise.

    A run's residual is the mean of its parts', weighted by their time: a slow run is slow in all of them.
    """
    runs = model.measurements.runs
    epochs = model.parts["epochs"]
    timed = [(one, name) for name, one in model.parts.items() if name != "epochs" and one.dof]
    weights = np.array([sum(getattr(run, f"{name}_s") for run in runs) for _, name in timed])
    if not weights.sum():
        return Noise(np.zeros(0), _scaled(epochs, epochs.dof), 0, epochs.dof)
    weights /= weights.sum()
    dof = max(1, round(sum(w * one.dof for w, (one, _) in zip(weights, timed, strict=True))))
    seconds = sum(w * _scaled(one, dof) for w, (one, _) in zip(weights, timed, strict=True))
    return Noise(np.asarray(seconds), _scaled(epochs, epochs.dof), dof, epochs.dof)


def leave_one_out(measurements: Measurements) -> list[HoldoutError]:
    """Return how well each measured worker count is predicted from the others; empty for fewer than three."""
    errors = []
    for left in measurements.counts if len(measurements.counts) > 2 else ():
        rest = measurements.only([k for k in measurements.counts if k != left])
        if any(run.reached for run in rest.runs):
            errors.append(compare(fit(rest), measurements.only([left])))
    return [one for one in errors if math.isfinite(one.measured_s)]


def held_out(model: Model, everything: Measurements) -> list[HoldoutError]:
    """Return how well the model predicts worker counts that were measured but not fitted."""
    unseen = [k for k in everything.counts if k not in model.measurements.counts]
    errors = [compare(model, everything.only([k])) for k in unseen]
    return [one for one in errors if math.isfinite(one.measured_s)]


def compare(model: Model, measured: Measurements) -> HoldoutError:
    """Return the error at the one worker count of `measured`."""
    (workers,) = measured.counts
    expected = model.predict(np.array([workers], np.float64))
    time = median(measured.times(workers))
    an_epoch = median(run.total_s / run.epochs for run in measured.runs)
    return HoldoutError(
        workers=workers,
        measured_s=time,
        predicted_s=float(expected.time[0]),
        time_error=float(expected.time[0]) / time - 1,
        epoch_error=float(expected.time[0] / expected.epochs[0]) / an_epoch - 1,
    )


def extrapolation_error(measurements: Measurements) -> float:
    """Return the model's error, in logarithms of seconds a doubling, beyond the counts that it was fitted to.

    That is its error at the largest measured count, predicted from all smaller ones; 0 where these are fewer
    than two, since then nothing is known of it.
    """
    *fewer, most = measurements.counts
    rest = measurements.only(fewer)
    if len(fewer) < 2 or not any(run.reached for run in rest.runs):
        return 0.0
    error = compare(fit(rest), measurements.only([most])).epoch_error
    return abs(math.log1p(error)) / math.log2(most / fewer[-1])


def _drawn(model: Model, counts: Array, *, faster: float, network: Network | None) -> tuple[Array, Array]:
    """Return (draws, counts) times to accuracy of one further run, and of the mean of many.

    A bootstrap of residuals (Efron and Tibshirani 1993, An Introduction to the Bootstrap, 9.5).
    """
    shown = noise(model)
    if not shown.known:
        return np.zeros((0, len(counts))), np.zeros((0, len(counts)))
    rng = np.random.default_rng(SEED)
    runs = model.measurements.runs
    reached = sum(run.reached for run in runs)
    beyond = np.maximum(0.0, np.log2(counts / model.measurements.counts[-1]))
    drift = extrapolation_error(model.measurements) * beyond
    # The goal is met at a validation, so epochs are known no better than their distance.
    granularity = median(1 / run.validations for run in runs)
    forms = list(model.allreduce)
    one_run, means = [], []
    for _ in range(DRAWS):
        form = str(rng.choice(forms)) if forms else None
        again = model.refitted(_draw(shown.seconds, len(runs), rng), _draw(shown.epochs, reached, rng), form)
        time = again.predict(counts, faster=faster, network=network).time
        means.append(time * np.exp(drift * rng.standard_normal()))
        chance = _draw(shown.seconds, 1, rng) + _draw(shown.epochs, 1, rng)
        one_run.append(means[-1] * np.exp(chance + granularity * (rng.random() - 0.5)))
    return np.array(one_run), np.array(means)


def _draw(residuals: Array, size: int, rng: np.random.Generator) -> Array:
    """Return residuals drawn with replacement, either sign alike likely."""
    return rng.choice(residuals, size) * rng.choice((-1.0, 1.0), size)


def _scaled(one: Part, dof: int) -> Array:
    """Return residuals scaled up for the fitted coefficients, and by Student's t for few runs."""
    from scipy.stats import norm, t

    if not one.dof:
        return np.zeros(0)
    student = float(t.ppf(0.975, dof) / norm.ppf(0.975))
    return one.residuals * math.sqrt(len(one.residuals) / one.dof) * student


def _interval(value: float, drawn: Array) -> Interval:
    if not len(drawn):
        return Interval(float(value))
    low, high = np.percentile(drawn, TAILS)
    return Interval(float(value), float(min(low, value)), float(max(high, value)))


def _faster(measurements: Measurements, hardware: Hardware | None) -> float:
    """Return by what factor the other hardware's stated peak exceeds the measured one's, a worker."""
    if hardware is None or hardware.name == measurements.hardware.name:
        return 1.0
    measured, other = (_peak(one, measurements.precision) for one in (measurements.hardware, hardware))
    return other / measured


def _peak(hardware: Hardware, precision: str) -> float:
    """Return the peak in FLOP/s of one worker: a GPU, or its part of a node's CPUs."""
    peak = getattr(hardware.peak, precision) if hardware.peak else None
    if peak is None:
        raise UserError(
            f"hardware={hardware.name} states no peak in {precision}, so speed cannot be scaled",
            hint="choose hardware that states one, or measure on it",
        )
    return peak if hardware.gpus else peak / (hardware.workers_per_node or 1)


def _cost(hardware: Hardware, workers: int, time: Interval) -> Interval | None:
    """Return the price from the first access to data to the goal, on demand; None without a price."""
    if hardware.price is None:
        return None
    an_hour, count = hardware.price.usd_per_hour, cost.nodes(hardware, workers)
    ends = [None if s is None else cost.usd(s, count, an_hour) for s in (time.low, time.high)]
    return Interval(cost.usd(time.value, count, an_hour), *ends)
