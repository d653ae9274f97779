"""Time, speed-up and cost at any worker count, with 95 % intervals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlbench.experiment import cost
from mlbench.experiment.config import Hardware
from mlbench.experiment.errors import UserError
from mlbench.prediction.evaluation import best, drawn, evaluate
from mlbench.prediction.holdout import drift
from mlbench.prediction.model import DRAWS, SEED, Model
from mlbench.prediction.network import Network
from mlbench.prediction.runs import Measurements

TAILS = (2.5, 97.5)  # percent; what lies between is the 95 % interval


@dataclass(frozen=True)
class Estimate:
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
    time_s: Estimate
    speed_up: Estimate  # against one worker on the same hardware and network
    cost_usd: Estimate | None
    epochs: float
    update_s: float
    communication_share: float  # exposed, of an update


@dataclass(frozen=True)
class Target:
    """On what the prediction is made; None: as measured."""

    hardware: Hardware | None = None
    network: Network | None = None


def forecast(model: Model, workers: Sequence[int], target: Target | None = None) -> list[Forecast]:
    """Return what is to be expected at each worker count, of which one is enough to be 1 or more.

    Raises UserError where the target needs what is not stated: peaks of both processors, the bytes of the
    gradients, a worker count beyond the batch.
    """
    target = target or Target()
    measurements = model.measurements
    hardware = target.hardware or measurements.hardware
    counts = np.array(workers, np.float64)
    if counts.max() > model.most_workers:
        raise UserError(
            f"{counts.max():,.0f} workers are more than the batch or the data can be shared out among",
            hint=f"max_workers={int(model.most_workers)}",
        )
    faster = _faster(measurements, target.hardware)
    everywhere = np.concatenate([[1.0], counts])
    expected = evaluate(model, best(model), everywhere, faster=faster, network=target.network)
    value = expected.time[0]
    rng = np.random.default_rng(SEED)
    plausible = drawn(model, rng)
    low = high = ratio_low = ratio_high = np.full_like(value, np.nan)
    if plausible is not None:
        coefficients, sigma, epochs_sigma = plausible
        other = evaluate(model, coefficients, everywhere, faster=faster, network=target.network)
        # What the model is off by grows with the distance from what was measured.
        beyond = np.maximum(0.0, np.log2(everywhere / measurements.counts[-1]))
        time = other.time * np.exp(drift(measurements) * beyond * rng.standard_normal((DRAWS, 1)))
        # One further run: its epochs and its speed have luck of their own.
        luck = epochs_sigma * rng.standard_normal(DRAWS) + sigma * rng.standard_normal(DRAWS)
        low, high = np.percentile(time * np.exp(luck)[:, None], TAILS, axis=0)
        ratio_low, ratio_high = np.percentile(time[:, :1] / time, TAILS, axis=0)
    measured = {k: median(measurements.times(k)) for k in measurements.counts}
    found = []
    for index, k in enumerate(workers, start=1):
        time = _estimate(value[index], low[index], high[index])
        found.append(
            Forecast(
                workers=k,
                measured_s=measured.get(k) if target == Target() else None,
                extrapolated=not measurements.counts[0] <= k <= measurements.counts[-1],
                time_s=time,
                speed_up=_estimate(value[0] / value[index], ratio_low[index], ratio_high[index]),
                cost_usd=_cost(hardware, k, time),
                epochs=float(expected.epochs[0, index]),
                update_s=float(expected.update[0, index]),
                communication_share=float(expected.exposed[0, index] / expected.update[0, index]),
            )
        )
    return found


def _faster(measurements: Measurements, hardware: Hardware | None) -> float:
    """Return by what factor the other hardware's stated peak exceeds the measured one's, a worker."""
    if hardware is None or hardware.name == measurements.hardware.name:
        return 1.0
    peaks = [_peak(one, measurements.precision) for one in (measurements.hardware, hardware)]
    for one, peak in zip((measurements.hardware, hardware), peaks, strict=True):
        if peak is None:
            raise UserError(
                f"hardware={one.name} states no peak in {measurements.precision}, so speed cannot be scaled",
                hint="choose hardware that states one, or measure on it",
            )
    old, new = peaks
    assert old is not None and new is not None
    return new / old


def _peak(hardware: Hardware, precision: str) -> float | None:
    """Return a worker's share of the peak in FLOP/s: a GPU, or its part of a node's CPUs."""
    peak = getattr(hardware.peak, precision) if hardware.peak else None
    if peak is None:
        return None
    return peak if hardware.gpus else peak / (hardware.workers_per_node or 1)


def _cost(hardware: Hardware, workers: int, time: Estimate) -> Estimate | None:
    """Return the price from the first touch of data to the goal, on demand; None without a price."""
    price = hardware.price
    if price is None:
        return None
    count = cost.nodes(hardware, workers)
    usd = [s if s is None else cost.usd(s, count, price.usd_per_hour) for s in (time.low, time.high)]
    return Estimate(cost.usd(time.value, count, price.usd_per_hour), *usd)


def _estimate(value: float, low: float, high: float) -> Estimate:
    if math.isnan(low):
        return Estimate(float(value))
    return Estimate(float(value), float(min(low, value)), float(max(high, value)))
