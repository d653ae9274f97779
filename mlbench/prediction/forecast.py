"""Time, speed-up and cost at any worker count with 95 % intervals, and how far off such predictions are."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlbench import cost
from mlbench.config import Hardware
from mlbench.errors import UserError
from mlbench.prediction import fitting
from mlbench.prediction.fitting import Array
from mlbench.prediction.measured import Measurements
from mlbench.prediction.model import DRAWS, PHASES, SEED, Model, communication_terms, fit
from mlbench.prediction.network import Network

TAILS = (2.5, 97.5)  # percent; what lies between is the 95 % interval
COMPUTING = ("compute", "optimizer")  # what another processor changes


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


@dataclass(frozen=True)
class LeftOut:
    """One worker count predicted from all others; errors are relative to its measured median."""

    workers: int
    measured_s: float
    predicted_s: float
    time_error: float
    epoch_error: float  # of the seconds an epoch, so without the luck in the epochs to the goal


@dataclass(frozen=True)
class _Coefficients:
    """Coefficients as the model's, each (draws, 2); one draw for the best estimate."""

    phases: dict[str, Array]
    forms: dict[str, Array]
    weights: Array  # (draws, forms)
    outside: Array
    epochs: Array


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
            f"an update has {model.most_workers:,.0f} samples, fewer than {counts.max():,.0f} workers",
            hint=f"max_workers={model.most_workers:.0f}",
        )
    faster = _faster(measurements, target.hardware)
    everywhere = np.concatenate([[1.0], counts])
    best = _Evaluated(model, _best(model), everywhere, faster=faster, network=target.network)
    value = best.time[0]
    rng = np.random.default_rng(SEED)
    drawn = _drawn(model, rng)
    low = high = ratio_low = ratio_high = np.full_like(value, np.nan)
    if drawn is not None:
        coefficients, sigma, epochs_sigma = drawn
        other = _Evaluated(model, coefficients, everywhere, faster=faster, network=target.network)
        # One further run: its epochs and its speed have luck of their own.
        luck = epochs_sigma * rng.standard_normal(DRAWS) + sigma * rng.standard_normal(DRAWS)
        low, high = np.percentile(other.time * np.exp(luck)[:, None], TAILS, axis=0)
        ratio_low, ratio_high = np.percentile(other.time[:, :1] / other.time, TAILS, axis=0)
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
                epochs=float(best.epochs[0, index]),
                update_s=float(best.update[0, index]),
                communication_share=float(best.exposed[0, index] / best.update[0, index]),
            )
        )
    return found


def leave_one_out(measurements: Measurements) -> list[LeftOut]:
    """Return how well each measured worker count is predicted from the others; empty for fewer than three."""
    errors = []
    for left in measurements.counts if len(measurements.counts) > 2 else ():
        rest = measurements.only([k for k in measurements.counts if k != left])
        if any(run.reached for run in rest.runs):
            errors.append(compare(fit(rest), measurements.only([left])))
    return [one for one in errors if math.isfinite(one.measured_s)]


def compare(model: Model, measured: Measurements) -> LeftOut:
    """Return the error at the one worker count of `measured`, which the model has not seen."""
    (workers,) = measured.counts
    (one,) = forecast(model, [workers])
    time = median(measured.times(workers))
    an_epoch = median(run.total_s / run.epochs for run in measured.runs)
    return LeftOut(
        workers=workers,
        measured_s=time,
        predicted_s=one.time_s.value,
        time_error=one.time_s.value / time - 1,
        epoch_error=one.time_s.value / one.epochs / an_epoch - 1,
    )


class _Evaluated:
    """Times at each worker count for each draw of the coefficients, all (draws, counts)."""

    def __init__(
        self, model: Model, drawn: _Coefficients, workers: Array, *, faster: float, network: Network | None
    ) -> None:
        batch = model.global_batch(workers)
        share = batch / workers

        def total(theta: Array, terms: Array) -> Array:
            return theta @ terms.T

        one = np.ones_like(workers)
        shared = np.stack([one, share], axis=1)
        seconds = {name: total(drawn.phases[name], shared) for name in PHASES}
        for name in COMPUTING:
            seconds[name] = seconds[name] / faster
        several = "ring" in model.forms or network is not None
        forms = communication_terms(workers, several=several)
        coefficients = drawn.forms
        weights = drawn.weights
        if network is not None:
            coefficients = _replaced(model, drawn, network)
            weights = np.full((1, len(forms)), 1 / len(forms)) if "ring" not in model.forms else weights
        all_reduce = np.zeros_like(seconds["compute"])
        for index, (name, terms) in enumerate(forms.items()):
            all_reduce = all_reduce + weights[:, index : index + 1] * total(coefficients[name], terms)
        hidden = np.minimum(
            model.hidden_of_communication * all_reduce, model.hidden_of_compute * seconds["compute"]
        )
        self.exposed = all_reduce - hidden
        self.update = sum(seconds.values(), np.zeros_like(all_reduce)) + self.exposed
        grown = np.stack([one, batch if model.measurements.grows else 0 * one], axis=1)
        self.epochs = total(drawn.epochs, grown)
        outside = total(drawn.outside, np.stack([one, 1 / workers], axis=1))
        self.time = self.epochs * (model.epoch_samples / batch * self.update + outside)


def _best(model: Model) -> _Coefficients:
    return _Coefficients(
        phases={name: one.theta[None] for name, one in model.phases.items()},
        forms={name: one.theta[None] for name, one in model.forms.items()},
        weights=np.array([list(model.weights.values())]),
        outside=model.outside.theta[None],
        epochs=model.epochs.theta[None],
    )


def _drawn(model: Model, rng: np.random.Generator) -> tuple[_Coefficients, Array, Array] | None:
    """Return coefficients as the noise may have made them, each draw with one form of communication."""
    if not model.freedom or not model.epochs_freedom:
        return None
    sigma = fitting.drawn_sigma(model.sigma**2 * model.freedom, model.freedom, DRAWS, rng)
    freedom = model.epochs_freedom
    epochs_sigma = fitting.drawn_sigma(model.epochs_sigma**2 * freedom, freedom, DRAWS, rng)
    names = list(model.weights)
    chosen = (
        rng.choice(len(names), size=DRAWS, p=list(model.weights.values())) if names else np.zeros(DRAWS, int)
    )
    drawn = _Coefficients(
        phases={name: fitting.noisy(one, sigma, rng) for name, one in model.phases.items()},
        forms={name: fitting.noisy(one, sigma, rng) for name, one in model.forms.items()},
        weights=np.eye(len(names))[chosen] if names else np.zeros((DRAWS, 0)),
        outside=fitting.noisy(model.outside, sigma, rng),
        epochs=fitting.noisy(model.epochs, epochs_sigma, rng),
    )
    return drawn, sigma, epochs_sigma


def _replaced(model: Model, drawn: _Coefficients, network: Network) -> dict[str, Array]:
    """Return alpha and beta of another network: its latency; its bandwidth with the measured efficiency.

    A stated line rate is reached to the share to which the runs reached that of their own hardware, where
    its profile states one, and never exceeded.
    """
    size = model.measurements.gradient_bytes
    if size is None:
        raise UserError(
            "the runs do not say how many bytes of gradients an update sums, "
            "so another network cannot be predicted",
            hint="leave network=... out, or measure again: new records say it",
        )
    line = size * network.s_per_byte
    own = model.measurements.hardware.network_gbit_per_s
    replaced = {}
    for name in ("ring", "tree"):
        fitted = drawn.forms[name][:, 1] if name in drawn.forms else drawn.forms["bandwidth"][:, 1]
        beta = np.full_like(fitted, line)
        if own is not None and not network.measured:
            beta = np.maximum(line, fitted * own / network.gbit_per_s)
        replaced[name] = np.stack([np.full_like(beta, network.latency_s), beta], axis=1)
    return replaced


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
