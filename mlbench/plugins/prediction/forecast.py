"""Predict time, speed-up and cost at any worker count with 95 % intervals, the model's error, and advice."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache, partial
from statistics import median
from typing import NamedTuple

import numpy as np

from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.plugins.prediction.model import (
    AS_MEASURED,
    Array,
    Measurements,
    Model,
    Target,
    fit,
    tier_runs,
)
from mlbench.plugins.prediction.processors import dof, profile, spread
from mlbench.record import cost, format

DRAWS = 1000  # refits; the ends of a 95 % interval then move by about 3 % between seeds
SEED = 20200908  # any constant: equal runs give equal intervals
TAILS = (2.5, 97.5)  # percent; what lies between is the 95 % interval
WIDE = 3.0  # ratio of an interval's ends; from here on it is too wide for advice
PRICE_DAYS = 365  # d; an older price is no basis for advice
FURTHEST = 8  # times the largest measured count: no prediction beyond it unless requested


@dataclass(frozen=True)
class PredictedInterval:
    """A predicted value. Its interval is None if the runs do not show their noise."""

    value: float
    low: float | None = None
    high: float | None = None

    def ends(self, text: Callable[[float], str]) -> str:
        """Return e.g. 2 h 40 min to 6 h 00 min, or an empty string without an interval."""
        return "" if self.low is None or self.high is None else f"{text(self.low)} to {text(self.high)}"

    def text(self, text: Callable[[float], str]) -> str:
        """Return the value, and its interval in brackets."""
        return f"{text(self.value)} ({ends})" if (ends := self.ends(text)) else text(self.value)


@dataclass(frozen=True)
class Forecast:
    """The prediction for one worker count."""

    workers: int
    measured_s: float | None  # median time to accuracy if it was measured; infinite if most runs missed
    extrapolated: bool
    time_s: PredictedInterval
    time_ratio: PredictedInterval | None  # to the next smaller count of the forecast; None for the first
    speedup: PredictedInterval  # against one worker on the same hardware and network
    cost_usd: PredictedInterval | None
    epochs: float
    step_s: float
    communication_share: float  # exposed, of a step

    def __str__(self) -> str:
        """Return e.g. 8 workers, 7 h 00 min, 31.32 USD, with intervals."""
        bill = f", {self.cost_usd.text(format.usd)}" if self.cost_usd else ""
        return f"{format.counted(self.workers, 'worker')}, {self.time_s.text(format.duration)}{bill}"


class Noise(NamedTuple):
    """Relative residuals of the runs, scaled for few runs, with one value of each field per run."""

    seconds: Array  # of the parts but communication
    communication: Array
    epochs: Array
    dof: int
    epochs_dof: int

    @property
    def has_spread(self) -> bool:
        return bool(self.dof and self.epochs_dof)


@dataclass(frozen=True)
class HoldoutError:
    """One worker count predicted from all others. Errors are relative to its measured median."""

    workers: int
    measured_s: float
    predicted_s: float
    time_error: float
    epoch_error: float  # of the seconds per epoch, so without the random number of epochs to the goal


class Resample(NamedTuple):
    """One draw of the bootstrap, independent of any profile."""

    model: Model
    student: float  # a quantile of Student's t for another processor, else 0
    drift: float  # of a standard normal distribution: the model's error beyond the measured counts
    chance: Array  # logarithm of a further run's deviation from the mean of many
    communication: Array  # logarithm of its communication's additional deviation


def forecast(model: Model, workers: Sequence[int], target: Target = AS_MEASURED) -> list[Forecast]:
    """Return the forecast at each worker count, in ascending order.

    Raises UserError if a value that the target needs is missing (peaks of both processors, the bytes of the
    gradients) or if a worker count exceeds the batch.
    """
    runs, hardware = model.measurements, target.hardware or model.measurements.hardware
    if max(workers) > model.most_workers:
        sentence = f"{max(workers):,} workers are more than the batch or the data can be shared out among"
        raise UserError(sentence, hint=f"max_workers={int(model.most_workers)}")
    counts = np.array([1, *workers], np.float64)
    expected = model.predict(counts, target)
    one_run, means = _drawn(counts, target, model)
    nodes = np.array([cost.nodes(hardware, int(k)) for k in counts])
    times = expected.time
    if spot := target.spot:
        draw = np.vectorize(spot.draw, otypes=[float], excluded={2})
        times, means = spot.mean(times, nodes), spot.mean(means, nodes)
        one_run = draw(one_run, nodes, np.random.default_rng(SEED))
        if not (np.isfinite(one_run).all() and np.isfinite(times).all()):
            hint = "a lower spot=, or fewer workers"
            raise UserError("no run ends with so many interruptions between two checkpoints", hint=hint)
    forecasts = []
    for i, k in enumerate(workers, start=1):
        time = _interval(times[i], one_run[:, i])
        ratio = _interval(times[i] / times[i - 1], means[:, i] / means[:, i - 1])
        measured = target == AS_MEASURED and k in runs.counts
        forecasts.append(
            Forecast(
                workers=k,
                measured_s=median(runs.times(k)) if measured else None,
                extrapolated=not runs.counts[0] <= k <= runs.counts[-1],
                time_s=time,
                time_ratio=ratio if i > 1 else None,
                speedup=_interval(times[0] / times[i], means[:, 0] / means[:, i]),
                cost_usd=_cost(hardware, k, time, spot=target.spot is not None),
                epochs=float(expected.epochs[i]),
                step_s=float(expected.step[i]),
                communication_share=float(expected.exposed[i] / expected.step[i]),
            )
        )
    return forecasts


def noise(model: Model) -> Noise:
    """Return the noise of the runs.

    A run's residual is the mean of its parts' residuals, weighted by their time: a slow run is slow in all of
    them. Communication has a separate residual, since others on the network slow it down as well.
    """
    runs, epochs = model.measurements.runs, model.parts["epochs"]
    timed = [(part, name) for name, part in model.parts.items() if name != "epochs" and part.dof]
    weights = np.array([sum(getattr(run, f"{name}_s") for run in runs) for _, name in timed])
    if not weights.sum():
        return Noise(np.zeros(0), np.zeros(0), epochs.spread(epochs.dof), 0, epochs.dof)
    weights /= weights.sum()
    dof = max(1, round(sum(w * part.dof for w, (part, _) in zip(weights, timed, strict=True))))
    seconds = sum(w * part.spread(dof) for w, (part, _) in zip(weights, timed, strict=True))
    seconds = np.asarray(seconds)
    return Noise(seconds, _of_communication(model, seconds), epochs.spread(epochs.dof), dof, epochs.dof)


def _of_communication(model: Model, otherwise: Array) -> Array:
    """Return a residual of each run's communication: measured, else of another run, else all `otherwise`."""
    residuals = np.full(len(otherwise), np.nan)
    for tier, mask in tier_runs(model.measurements).items():
        forms = [form.spread(form.dof) for form in model.allreduce.get(tier, {}).values() if form.dof]
        if forms:
            residuals[mask] = np.mean(forms, axis=0)
    missing = np.isnan(residuals)
    if missing.all():
        return otherwise
    residuals[missing] = np.resize(residuals[~missing], missing.sum())
    return residuals


def leave_one_out(measurements: Measurements) -> list[HoldoutError]:
    """Return the errors of predicting each measured count from the others, or none below three counts."""
    errors = [_left_out(measurements, left) for left in measurements.counts]
    return [error for error in errors if error and math.isfinite(error.measured_s)]


def _left_out(measurements: Measurements, left: int) -> HoldoutError | None:
    """Return the error at this count, predicted from the others, or None if that is impossible."""
    rest = measurements.only([k for k in measurements.counts if k != left])
    if len(rest.counts) < 2 or not any(run.reached for run in rest.runs):
        return None
    return compare(fit(rest), measurements.only([left]))


def held_out(model: Model, everything: Measurements) -> list[HoldoutError]:
    """Return the model's errors at worker counts that were measured but not fitted."""
    unseen = [k for k in everything.counts if k not in model.measurements.counts]
    errors = [compare(model, everything.only([k])) for k in unseen]
    return [error for error in errors if math.isfinite(error.measured_s)]


def compare(model: Model, measured: Measurements) -> HoldoutError:
    """Return the error at the one worker count of `measured`."""
    (workers,) = measured.counts
    expected = model.predict(np.array([workers], np.float64))
    predicted, time = float(expected.time[0]), median(measured.times(workers))
    predicted_epoch = float(expected.time[0] / expected.epochs[0])
    an_epoch = median(run.total_s / run.epochs for run in measured.runs)
    return HoldoutError(workers, time, predicted, predicted / time - 1, predicted_epoch / an_epoch - 1)


def extrapolation_error(measurements: Measurements) -> float:
    """Return the model's error beyond the fitted counts, in logarithms of seconds a doubling.

    It is the error at the largest measured count, predicted from all smaller ones. It is 0 if there are fewer
    than two smaller counts, since the error is then unknown.
    """
    *fewer, most = measurements.counts
    error = _left_out(measurements, most)
    return abs(math.log1p(error.epoch_error)) / math.log2(most / fewer[-1]) if error else 0.0


@lru_cache(maxsize=2)
def resamples(model: Model, elsewhere: bool) -> list[Resample]:
    """Return the draws of a bootstrap of residuals, with another processor or without. Empty without noise.

    Efron and Tibshirani 1993, An Introduction to the Bootstrap, 9.5. Forecasts for several profiles share
    them.
    """
    from scipy.stats import t

    shown = noise(model)
    if not shown.has_spread:
        return []
    rng = np.random.default_rng(SEED)
    runs = model.measurements.runs
    of_runs = np.stack([shown.seconds, shown.communication])  # (2, runs): a run is slow in both
    reached = sum(run.reached for run in runs)
    # A run meets its goal at a validation, so epochs are known no better than the distance of validations.
    granularity = median(1 / run.validations for run in runs)
    students = np.zeros(DRAWS)
    if elsewhere:  # quantiles in random order: drawn at random, tails this heavy move with the seed
        students = rng.permutation(t.ppf((np.arange(DRAWS) + 0.5) / DRAWS, dof()))
    draws = []
    for student in students:
        forms = {tier: str(rng.choice(list(several))) for tier, several in model.allreduce.items()}
        seconds, communication = _draw(of_runs, len(runs), rng)
        again = model.refitted(seconds, communication, _draw(shown.epochs, reached, rng), forms)
        drift = rng.standard_normal()
        seconds, communication = _draw(of_runs, 1, rng)
        chance = seconds + _draw(shown.epochs, 1, rng) + granularity * (rng.random() - 0.5)
        draws.append(Resample(again, student, drift, chance, communication - seconds))
    return draws


def _drawn(counts: Array, target: Target, model: Model) -> tuple[Array, Array]:
    """Return (draws, counts) times to accuracy of one further run, and of the mean of many.

    The error of another processor changes its computing and, for a further run, its whole time, as in pairs.
    """
    runs, draws = model.measurements, resamples(model, model.measurements.other_processor(target.hardware))
    drift = extrapolation_error(runs) * np.maximum(0.0, np.log2(counts / runs.counts[-1]))
    errors = np.array([draw.student for draw in draws])
    if errors.any():
        errors = spread(runs.speed_ratio(target.hardware)) * errors
    one_run, means = np.zeros((len(draws), len(counts))), np.zeros((len(draws), len(counts)))
    for i, (draw, error) in enumerate(zip(draws, errors, strict=True)):
        speed = np.array([[math.exp(-error)], [1.0]])
        expected = draw.model.predict(counts, target, speed=speed)
        further = expected.time + expected.communication * np.expm1(draw.communication)
        beyond = np.exp(drift * draw.drift)
        means[i] = beyond * expected.time[0]
        one_run[i] = beyond * further[1] * math.exp(error) * np.exp(draw.chance)
    return one_run, means


def _draw(residuals: Array, size: int, rng: np.random.Generator) -> Array:
    """Return residuals (..., runs) drawn with replacement and with random signs, (..., size)."""
    return rng.choice(residuals, size, axis=-1) * rng.choice((-1.0, 1.0), size)


def _interval(value: float, drawn: Array) -> PredictedInterval:
    if not len(drawn):
        return PredictedInterval(float(value))
    low, high = np.percentile(drawn, TAILS)
    return PredictedInterval(float(value), float(min(low, value)), float(max(high, value)))


def _cost(
    hardware: Hardware, workers: int, time: PredictedInterval, *, spot: bool
) -> PredictedInterval | None:
    """Return the price from the first access to data to the goal, or None without a price."""
    if hardware.price is None or hardware.workers_per_node is None:  # the number of nodes is unknown
        return None
    an_hour = hardware.price.usd_per_hour_spot if spot else hardware.price.usd_per_hour
    if an_hour is None:
        raise UserError(f"hardware={hardware.name} has no spot price", hint="leave spot= out")
    of = partial(cost.usd, nodes=cost.nodes(hardware, workers), usd_per_hour=an_hour)
    ends = [None if s is None else of(s) for s in (time.low, time.high)]
    return PredictedInterval(of(time.value), *ends)


@dataclass(frozen=True)
class Advice:
    """The answer to one question: a worker count, or None, and the sentence."""

    question: str
    workers: int | None
    sentence: str


@dataclass(frozen=True)
class Offer:
    """The predicted time and cost of a worker count on a profile."""

    hardware: str
    forecast: Forecast
    price_date: str
    dominated: bool  # another offer is as fast and cheaper, or as cheap and faster, by prediction


def frontier(
    model: Model, counts: Sequence[int], target: Target, today: date
) -> tuple[list[Offer], dict[str, str]]:
    """Return the offers of all profiles with a price of the last year, by time, and why others have none.

    With target.spot there are offers on demand and on spot nodes. If a link is unknown, only the counts that
    do not need it are offered.
    """
    offers: list[Offer] = []
    refused = {}
    for name in compose.choices("hardware"):
        try:
            node = profile(name)
            if node.price is None or node.workers_per_node is None:
                raise UserError("it has no price")
            if old := old_price(node, today):
                raise UserError(f"its {old}")
            here = replace(target, hardware=node, spot=None)
            refusals = {k: _refusal(model, k, here) for k in counts}
            possible = [k for k, refusal in refusals.items() if not refusal]
            if refusal := refusals[counts[-1]]:
                more = f" with more than {format.counted(max(possible), 'worker')}" if possible else ""
                refused[f"{name}{more}"] = refusal
            for spot in dict.fromkeys((None, target.spot)):
                label = f"{name}, spot" if spot else name
                if spot and node.price.usd_per_hour_spot is None:
                    refused[label] = "it has no spot price"
                elif possible:
                    rows = forecast(model, possible, replace(here, spot=spot))
                    offers += [Offer(label, row, node.price.date, dominated=False) for row in rows]
        except UserError as error:
            refused[name] = str(error).partition(" (")[0]
    offers.sort(key=lambda offer: (_time(offer.forecast), _usd(offer.forecast)))
    least = math.inf  # USD of offers that are as fast
    for i, offer in enumerate(offers):
        offers[i] = replace(offer, dominated=_usd(offer.forecast) >= least)
        least = min(least, _usd(offer.forecast))
    return offers, refused


def old_price(hardware: Hardware, today: date) -> str | None:
    """Return a sentence if a profile's price is too old for advice, else None."""
    dated = hardware.price.date if hardware.price else None
    if dated is None or (today - date.fromisoformat(dated)).days <= PRICE_DAYS:
        return None
    return f"price is of {dated}, older than a year"


def _refusal(model: Model, workers: int, target: Target) -> str:
    """Return why a worker count cannot be predicted, or an empty string if it can."""
    try:
        model.predict(np.array([float(workers)]), target)
    except UserError as refusal:
        return str(refusal).partition(" (")[0]
    return ""


def advise(
    forecasts: Sequence[Forecast], *, deadline: float | None, budget: float | None, old: str | None = None
) -> list[Advice]:
    """Return the fastest and the cheapest, and an answer for a deadline (s) and a budget (USD) if given.

    Only supported counts are advised: in ascending order, each must be shown to be faster than the one
    before.
    If `old` describes an outdated price, no advice on money is given. Raises UserError for a budget without a
    price.
    """
    supported, reason, slower = _supported(forecasts)
    priced = not old and all(row.cost_usd for row in forecasts)
    if budget is not None and not priced and not old:
        raise UserError("a budget needs a price, but the hardware has none", hint="e.g. hardware=gcp_n1_t4")
    options = [(str(row), row) for row in supported]
    answers = [_best("fastest", options, _time, more=reason or "no larger count was predicted")]
    if reason and len(supported) == 1 and not slower:
        answers = [Advice("fastest", None, f"Fastest: no advice, {reason}.")]
    elif priced:
        answers.append(_best("cheapest", options, _usd))
    elif old:
        answers.append(Advice("cheapest", None, f"Cheapest: no advice, the {old}."))
    if deadline is not None:
        order = _usd if priced else (lambda row: row.workers)
        answers.append(_best("deadline", options, order, limit=deadline))
    if budget is not None and old:
        answers.append(Advice("budget", None, f"Budget of {format.usd(budget)}: no advice, the {old}."))
    elif budget is not None:
        answers.append(_best("budget", options, _time, limit=budget))
    return answers


def pick(offers: Sequence[Offer], *, deadline: float | None, budget: float | None) -> list[Advice]:
    """Return the fastest and the cheapest offer, or the cheapest in time and the fastest for the money."""
    options = [(f"{offer.hardware}, {offer.forecast}", offer.forecast) for offer in offers]
    answers = [] if deadline is None else [_best("deadline", options, _usd, limit=deadline)]
    answers += [] if budget is None else [_best("budget", options, _time, limit=budget)]
    return answers or [_best("fastest", options, _time), _best("cheapest", options, _usd)]


def _best(
    question: str,
    options: Sequence[tuple[str, Forecast]],
    order: Callable[[Forecast], float],
    *,
    limit: float = math.inf,
    more: str = "",
) -> Advice:
    """Return the best option within the limit, or a sentence that its interval is too wide for advice.

    The answer also names the option that keeps the limit with its whole interval.
    """
    value, text = (_usd, format.usd) if question == "budget" else (_time, format.duration)
    title = question.capitalize() + (f" of {text(limit)}" if limit < math.inf else "")
    within = [(label, row) for label, row in options if value(row) <= limit]
    if not within:
        closest = min(options, key=lambda option: value(option[1]), default=None)
        closest = f"; closest is {closest[0]}" if closest else ""
        return Advice(question, None, f"{title}: none of these is predicted to keep it{closest}.")
    within.sort(key=lambda option: order(option[1]))
    label, best = within[0]
    if limit < math.inf:
        safe = [label for label, row in within if _high(row, question) <= limit]
        more = "no count keeps it with its whole interval"
        if safe:
            more = f"with the whole interval, {safe[0].partition(' (')[0]}"
        if label in safe:
            more = "its whole interval keeps it"
    sentence = f"{title}: {label}{f'; {more}' if more else ''}"
    low, high = best.time_s.low, best.time_s.high
    if low is not None and high is not None and high > WIDE * low:
        wide = f"an interval wider than a factor of {WIDE:g} is never advice"
        return Advice(question, None, f"{sentence}; {wide}.")
    return Advice(question, best.workers, f"{sentence}.")


def _supported(forecasts: Sequence[Forecast]) -> tuple[list[Forecast], str, bool]:
    """Return the leading counts that are each shown to be faster than the one before, and why they end.

    The last value is true if the next count is shown to be slower, rather than not shown to be faster.
    """
    supported = [forecasts[0]]
    for row in forecasts[1:]:
        ratio = row.time_ratio or PredictedInterval(math.nan)
        if ratio.high is None or ratio.high >= 1:
            slower = ratio.low is not None and ratio.low > 1
            verb = "are slower" if slower else "are not shown to be faster"
            before = format.counted(supported[-1].workers, "worker")
            ends = ratio.text("{:.2f}".format)
            return supported, f"{row.workers:,} {verb} than {before} (ratio of the times {ends})", slower
        supported.append(row)
    return supported, "", False


def _time(row: Forecast) -> float:
    return row.time_s.value


def _usd(row: Forecast) -> float:
    return row.cost_usd.value if row.cost_usd else math.inf


def _high(row: Forecast, question: str) -> float:
    interval = row.cost_usd if question == "budget" else row.time_s
    return (interval.high if interval else None) or math.inf
