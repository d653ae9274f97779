"""Time, speed-up and cost at any worker count, with 95 % intervals, the model's own error, and advice."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from mlbench.experiment import cost, format
from mlbench.experiment.config import Hardware
from mlbench.experiment.errors import UserError
from mlbench.prediction.model import Array, Model, Network, Part, Times, fit
from mlbench.prediction.runs import Measurements

DRAWS = 1000  # refits; the ends of a 95 % interval then move by about 3 % between seeds
SEED = 20200908  # any constant: equal runs give equal intervals
TAILS = (2.5, 97.5)  # percent; what lies between is the 95 % interval
LARGEST = 1.0  # relative; noise by a factor of e either way would be no measurement
FURTHEST = 8  # times the largest measured count: beyond it nothing is predicted unless asked
DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|min|h|d)")
UNITS_S = {"s": 1, "min": 60, "h": 3600, "d": 86400}  # seconds


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
    """What the runs say of their own noise: relative residuals of seconds and epochs, scaled for few runs."""

    seconds: Array
    epochs: Array
    dof: int
    epochs_dof: int


@dataclass(frozen=True)
class HoldoutError:
    """One worker count predicted from all others; errors are relative to its measured median."""

    workers: int
    measured_s: float
    predicted_s: float
    time_error: float
    epoch_error: float  # of the seconds an epoch, so without the chance in the epochs to the goal


@dataclass(frozen=True)
class Advice:
    """The answer to one question: a worker count, None where there is none, and the sentence."""

    question: str
    workers: int | None
    sentence: str


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
    options = {"faster": _faster(measurements, target.hardware), "network": target.network}
    expected = model.predict(counts, **options)
    one_run, means = _drawn(model, counts, options)
    measured = {k: median(measurements.times(k)) for k in measurements.counts}
    found: list[Forecast] = []
    for i, k in enumerate(workers, start=1):
        time = _interval(expected.time[i], one_run[:, i])
        ratio = None
        if found:
            ratio = _interval(expected.time[i] / expected.time[i - 1], means[:, i] / means[:, i - 1])
        found.append(
            Forecast(
                workers=k,
                measured_s=measured.get(k) if target == Target() else None,
                extrapolated=not measurements.counts[0] <= k <= measurements.counts[-1],
                time_s=time,
                time_ratio=ratio,
                speedup=_interval(expected.time[0] / expected.time[i], means[:, 0] / means[:, i]),
                cost_usd=_cost(hardware, k, time),
                epochs=float(expected.epochs[i]),
                step_s=float(expected.step[i]),
                communication_share=float(expected.exposed[i] / expected.step[i]),
            )
        )
    return found


def noise(model: Model) -> Noise:
    """Return what the runs tell of their noise.

    A run's residual is the mean of its parts', weighted by their time: a slow run is slow in all of them.
    Residuals are scaled up for the fitted coefficients, and by Student's t for few degrees of freedom.
    """
    runs = model.measurements.runs
    parts = [*model.step.values(), model.outside]
    seconds = [sum(getattr(run, f"{name}_s") for run in runs) for name in (*model.step, "outside")]
    weights = [total if part.dof else 0.0 for part, total in zip(parts, seconds, strict=True)]
    if not sum(weights):
        return Noise(np.zeros(0), _scaled(model.epochs), 0, model.epochs.dof)
    pooled = np.sum([w * _inflated(part) for part, w in zip(parts, weights, strict=True)], axis=0) / sum(
        weights
    )
    dof = max(1, round(sum(w * part.dof for part, w in zip(parts, weights, strict=True)) / sum(weights)))
    return Noise(pooled * _student(dof), _scaled(model.epochs), dof, model.epochs.dof)


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


def advise(found: Sequence[Forecast], *, deadline: float | None, budget: float | None) -> list[Advice]:
    """Return an answer for the least time, the least cost, and a deadline (s) and a budget (USD) if given.

    Only supported counts are advised: going up, each must be shown to be faster than the one before.
    Raises UserError for a budget where the hardware has no price.
    """
    supported, reason, slower = _supported(found)
    fastest = supported[-1]
    more = f"; {reason}" if reason else "; more were not asked for"
    answers = [Advice("least time", fastest.workers, f"Least time: {_text(fastest)}{more}.")]
    if reason and len(supported) == 1 and not slower:
        answers = [Advice("least time", None, f"Least time: no advice, {reason}.")]
    priced = [one for one in supported if one.cost_usd]
    if priced and answers[0].workers:
        cheapest = min(priced, key=_usd)
        answers.append(Advice("least cost", cheapest.workers, f"Least cost: {_text(cheapest)}."))
    if deadline is not None:
        question = f"Deadline of {format.duration(deadline)}"
        answers.append(_within(question, supported, deadline, _time, _usd if priced else _workers))
    if budget is not None:
        if not priced:
            hint = "hardware=gcp_n1_t4, say"
            raise UserError("a budget needs a price, and the hardware has none", hint=hint)
        answers.append(_within(f"Budget of {format.usd(budget)}", supported, budget, _usd, _time))
    return answers


def parse_deadline(text: str) -> float:
    """Return the seconds of a deadline such as 8h, 90min, 2d or 5400s."""
    found = DURATION.fullmatch(text)
    if not found:
        raise UserError(f"deadline={text} is not a duration", hint="write e.g. 8h, 90min, 2d or 5400s")
    return float(found[1]) * UNITS_S[found[2]]


def parse_budget(text: str) -> float:
    """Return a budget in USD."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UserError(f"budget={text} is not an amount of USD", hint="write e.g. budget=25")
    return value


def in_words(estimate: Interval, text: Callable[[float], str]) -> str:
    """Return a value with its interval, or alone where it has none."""
    if estimate.low is None or estimate.high is None:
        return text(estimate.value)
    return f"{text(estimate.value)} ({text(estimate.low)} to {text(estimate.high)})"


def _drawn(model: Model, counts: Array, options: dict) -> tuple[Array, Array]:
    """Return (draws, counts) times to accuracy of one further run, and of the mean of many."""
    told = noise(model)
    if not told.dof or not told.epochs_dof:
        return np.zeros((0, len(counts))), np.zeros((0, len(counts)))
    rng = np.random.default_rng(SEED)
    runs = model.measurements.runs
    beyond = np.maximum(0.0, np.log2(counts / model.measurements.counts[-1]))
    further = extrapolation_error(model.measurements) * beyond
    # The goal is met at a validation, so epochs are known no better than their distance.
    step = median(run.epochs / run.validations / run.epochs for run in runs)
    forms = [name for name, weight in model.weights.items() if weight]
    one_run, means = [], []
    for _ in range(DRAWS):
        form = str(rng.choice(forms)) if forms else None
        slow, epochs = (
            _draw(told.seconds, len(runs), rng),
            _draw(told.epochs, sum(r.reached for r in runs), rng),
        )
        times: Times = model.refit(slow, epochs, form).predict(counts, **options)
        means.append(times.time * np.exp(further * rng.standard_normal()))
        chance = _draw(told.seconds, 1, rng) + _draw(told.epochs, 1, rng) + step * (rng.random() - 0.5)
        one_run.append(means[-1] * np.exp(chance))
    return np.array(one_run), np.array(means)


def _draw(residuals: Array, size: int, rng: np.random.Generator) -> Array:
    """Return residuals drawn with replacement, either sign alike likely."""
    return rng.choice(residuals, size) * rng.choice((-1.0, 1.0), size)


def _inflated(one: Part) -> Array:
    return one.residuals * math.sqrt(len(one.residuals) / one.dof) if one.dof else 0 * one.residuals


def _scaled(one: Part) -> Array:
    return _inflated(one) * _student(one.dof) if one.dof else np.zeros(0)


def _student(dof: int) -> float:
    """Return how much wider Student's 95 % interval is than that of a known noise, at most by LARGEST."""
    from scipy.stats import norm, t

    return float(t.ppf(0.975, dof) / norm.ppf(0.975))


def _interval(value: float, drawn: Array) -> Interval:
    if not len(drawn):
        return Interval(float(value))
    low, high = np.percentile(drawn, TAILS)
    return Interval(float(value), float(min(low, value)), float(max(high, value)))


def _supported(found: Sequence[Forecast]) -> tuple[list[Forecast], str, bool]:
    """Return the counts up to which each is shown to be faster than the one before, and why it ends there.

    The last value is whether the next count is shown to be slower, rather than not shown to be faster.
    """
    supported = [found[0]]
    for one in found[1:]:
        ratio = one.time_ratio
        if ratio is None or ratio.high is None or ratio.high >= 1:
            slower = ratio is not None and ratio.low is not None and ratio.low > 1
            verb = "are slower" if slower else "are not shown to be faster"
            before = format.counted(supported[-1].workers, "worker")
            ends = in_words(ratio, lambda value: f"{value:.2f}") if ratio else "unknown"
            reason = f"{one.workers:,} {verb} than {before} (ratio of the times {ends})"
            return supported, reason, slower
        supported.append(one)
    return supported, "", False


def _within(
    question: str,
    found: Sequence[Forecast],
    limit: float,
    quantity: Callable[[Forecast], float],
    order: Callable[[Forecast], float],
) -> Advice:
    """Return the best count that is predicted to stay within the limit, and whether its interval does."""
    name = question.split()[0].lower()
    kept = [one for one in found if quantity(one) <= limit]
    if not kept:
        closest = min(found, key=quantity)
        sentence = (
            f"{question}: no advised worker count is predicted to keep it; closest is {_text(closest)}."
        )
        return Advice(name, None, sentence)
    chosen = min(kept, key=order)
    sure = [one for one in kept if _high(one, quantity) <= limit]
    safe = min(sure, key=order, default=None)
    surely = "no count keeps it with its whole interval"
    if safe is not None:
        surely = f"with the whole interval, {format.counted(safe.workers, 'worker')}"
    if safe is chosen:
        surely = "its whole interval keeps it"
    return Advice(name, chosen.workers, f"{question}: {_text(chosen)}; {surely}.")


def _high(one: Forecast, quantity: Callable[[Forecast], float]) -> float:
    estimate = one.time_s if quantity is _time else one.cost_usd
    return estimate.high if estimate and estimate.high is not None else math.inf


def _text(one: Forecast) -> str:
    """Return e.g. 8 workers, 7 h 00 min, 31.32 USD; with intervals."""
    parts = [format.counted(one.workers, "worker"), in_words(one.time_s, format.duration)]
    return ", ".join([*parts, *([in_words(one.cost_usd, format.usd)] if one.cost_usd else [])])


def _time(one: Forecast) -> float:
    return one.time_s.value


def _usd(one: Forecast) -> float:
    return one.cost_usd.value if one.cost_usd else math.inf


def _workers(one: Forecast) -> float:
    return one.workers


def _faster(measurements: Measurements, hardware: Hardware | None) -> float:
    """Return by what factor the other hardware's stated peak exceeds the measured one's, a worker."""
    if hardware is None or hardware.name == measurements.hardware.name:
        return 1.0
    peaks = list(_peaks((measurements.hardware, hardware), measurements.precision))
    return peaks[1] / peaks[0]


def _peaks(profiles: Sequence[Hardware], precision: str) -> Iterator[float]:
    """Yield each profile's peak in FLOP/s of one worker: a GPU, or its part of a node's CPUs."""
    for one in profiles:
        peak = getattr(one.peak, precision) if one.peak else None
        if peak is None:
            raise UserError(
                f"hardware={one.name} states no peak in {precision}, so speed cannot be scaled",
                hint="choose hardware that states one, or measure on it",
            )
        yield peak if one.gpus else peak / (one.workers_per_node or 1)


def _cost(hardware: Hardware, workers: int, time: Interval) -> Interval | None:
    """Return the price from the first touch of data to the goal, on demand; None without a price."""
    price = hardware.price
    if price is None:
        return None
    count = cost.nodes(hardware, workers)
    ends = [s if s is None else cost.usd(s, count, price.usd_per_hour) for s in (time.low, time.high)]
    return Interval(cost.usd(time.value, count, price.usd_per_hour), *ends)
