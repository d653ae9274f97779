"""Time, speed-up and cost at any worker count with 95 % intervals, the model's error, and what to take."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from statistics import mean, median

import numpy as np

from mlbench.analysis.published import load
from mlbench.config import compose
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.record import cost, format
from mlbench.wings.prediction.model import Array, FittedPart, Measurements, Model, NetworkCost, fit

DRAWS = 1000  # refits; the ends of a 95 % interval then move by about 3 % between seeds
SEED = 20200908  # any constant: equal runs give equal intervals
TAILS = (2.5, 97.5)  # percent; what lies between is the 95 % interval
WIDE = 3.0  # ratio of an interval's ends from which it is no advice
PUBLISHED_ON = {"V100": "aws_p3_2xlarge", "A100": "aws_p4d_24xlarge"}  # profiles that state the peaks
SAME_NODE = {"DGX-1, 8 V100": "V100", "8 V100": "V100", "DGX A100, 8 A100": "A100", "8 A100": "A100"}
MEASURED = ("throughput", "time_to_accuracy")  # of two the first counts: it has no luck with the epochs
HOPELESS = 20.0  # interruptions expected in one attempt; of 500 million attempts one then succeeds
MANY = 10**6  # interruptions that are no longer drawn one by one, 8 bytes each
PRICE_DAYS = 365  # d; an older price is no basis for advice
FURTHEST = 8  # times the largest measured count: beyond it nothing is predicted unless asked


@dataclass(frozen=True)
class PredictedInterval:
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
    time_s: PredictedInterval
    time_ratio: PredictedInterval | None  # to the next smaller count of the forecast; None for the first
    speedup: PredictedInterval  # against one worker on the same hardware and network
    cost_usd: PredictedInterval | None
    epochs: float
    step_s: float
    communication_share: float  # exposed, of a step


@dataclass(frozen=True)
class Spot:
    """Nodes that are taken away now and then; the run then goes on from its last checkpoint, on as many.

    - per_hour: interruptions of a node, a Poisson process.
    - restart_s: from an interruption until it trains again; the next one may come before that.
    - checkpoints: of a run, evenly.
    """

    per_hour: float
    restart_s: float
    checkpoints: int

    @np.errstate(over="ignore")  # a run that never ends
    def mean(self, seconds: Array, nodes: Array) -> Array:
        """Return the expected s of runs that take `seconds` undisturbed.

        Daly 2006, A Higher Order Estimate of the Optimum Checkpoint Interval for Restart Dumps.
        """
        rate = self.per_hour * nodes / 3600  # of the run, a second
        work = np.expm1(rate * seconds / self.checkpoints) / rate
        return self.checkpoints * np.exp(rate * self.restart_s) * work

    def draw(self, seconds: float, nodes: int, rng: np.random.Generator) -> float:
        """Return the s of one run, interrupted at random."""
        rate, part_s = self.per_hour * nodes / 3600, seconds / self.checkpoints
        interrupted = int(rng.binomial(self.checkpoints, -math.expm1(-rate * part_s)))
        again_s = self.restart_s + part_s
        if rate * again_s > HOPELESS:
            return float(self.mean(np.array([seconds]), np.array([nodes]))[0])
        # An attempt after the first succeeds where nothing happens in restart and work.
        more = int(rng.negative_binomial(interrupted, math.exp(-rate * again_s))) if interrupted else 0
        lost = [_until(rate, limit, some, rng) for limit, some in ((part_s, interrupted), (again_s, more))]
        return seconds + sum(lost) + interrupted * self.restart_s


def _until(rate: float, limit: float, some: int, rng: np.random.Generator) -> float:
    """Return the sum of the times of so many interruptions, each before `limit`."""
    if some > MANY:  # the sum is as good as normal, of these mean and variance of a truncated exponential
        before = limit / math.expm1(rate * limit)
        mean, variance = 1 / rate - before, 1 / rate**2 - before * (before + limit)
        return float(some * mean + math.sqrt(some * max(variance, 0.0)) * rng.standard_normal())
    return float(-np.log1p(rng.random(some) * math.expm1(-rate * limit)).sum() / rate)


@dataclass(frozen=True)
class Target:
    """On what the prediction is made; None: as measured, and on demand."""

    hardware: Hardware | None = None
    network: NetworkCost | None = None
    spot: Spot | None = None


@dataclass(frozen=True)
class ProcessorPair:
    """The same software on two processors, published: what their peaks predict, and what was measured."""

    task: str
    label: str
    workers: int
    peaks: float  # ratio of the stated peaks
    speedup: float  # ratio of the measured speeds

    @property
    def error(self) -> float:
        """By what power of the peaks' ratio the time was off: 0 where speed is proportional to the peak."""
        return math.log(self.peaks / self.speedup) / math.log(self.peaks)


@dataclass(frozen=True)
class Transfer:
    """The error of a prediction for another processor, in logarithms of time for each e-fold of the peak.

    Student's t around 0. Pairs of a task err alike, so tasks are what is counted: one degree of freedom less
    than tasks (Cameron and Miller 2015, A Practitioner's Guide to Cluster-Robust Inference).
    """

    scale: float
    dof: int
    least: float  # the smallest logarithm of a peaks' ratio among the pairs; no other processor errs less

    def draw(self, peaks: float, size: int, rng: np.random.Generator) -> Array:
        """Return errors in logarithms of time for this ratio of peaks, (size,): quantiles in random order."""
        from scipy.stats import t

        quantiles = (np.arange(size) + 0.5) / size  # drawn at random, tails this heavy move with the seed
        return rng.permutation(t.ppf(quantiles, self.dof)) * self.scale * self.distance(peaks)

    def factor(self, peaks: float) -> float:
        """Return the factor by which the ends of the 95 % interval of a time are off its middle."""
        from scipy.stats import t

        return math.exp(float(t.ppf(0.975, self.dof)) * self.scale * self.distance(peaks))

    def distance(self, peaks: float) -> float:
        """Return for how many e-folds of the peak the error counts."""
        return max(abs(math.log(peaks)), self.least)


@cache
def pairs() -> tuple[ProcessorPair, ...]:
    """Return every pair of the shipped tables: one software, task, precision and count on V100 and on A100.

    NVIDIA's FP32 goes with TF32, the precision that replaced it in the same code; MLPerf's code is fp16.
    """
    speeds: dict[tuple[str, str, str | None, int | None], dict[str, dict[str, tuple[float, str]]]] = {}
    for row in load(publisher="peer"):
        if row.study == "nvidia-examples" and row.metric == "throughput":
            model, label = str(row.hardware), row.label or ""
        elif row.study.startswith("mlperf-training") and "v0.7" in str(row.software):
            model, label = SAME_NODE.get(str(row.hardware), ""), "AMP"
        else:
            continue
        if model in PUBLISHED_ON and row.metric in MEASURED:
            kind = "AMP" if label == "AMP" else "FP32 to TF32"
            values = speeds.setdefault((row.task or "", str(row.software), kind, row.workers), {})
            speed = row.value if row.metric == "throughput" else 1 / row.value
            values.setdefault(row.metric, {})[model] = (speed, {"AMP": "fp16"}.get(label, label.lower()))
    out = []
    for (task, software, kind, workers), metrics in speeds.items():
        both = [metrics[name] for name in MEASURED if len(metrics.get(name, {})) == len(PUBLISHED_ON)]
        if both:
            (old, before), (new, after) = both[0]["V100"], both[0]["A100"]
            peaks = peak(profile(PUBLISHED_ON["A100"]), after) / peak(profile(PUBLISHED_ON["V100"]), before)
            out.append(ProcessorPair(task, f"{software}, {kind}", workers or 1, peaks, new / old))
    return tuple(sorted(out, key=lambda pair: (pair.task, pair.label, pair.workers)))


def transfer(of: Sequence[ProcessorPair] | None = None) -> Transfer:
    """Return the error fitted on these pairs, or all: a root mean square in which each task counts once."""
    of = pairs() if of is None else of
    tasks = sorted({pair.task for pair in of})
    squares = [mean(pair.error**2 for pair in of if pair.task == task) for task in tasks]
    least = min(math.log(pair.peaks) for pair in of)
    return Transfer(math.sqrt(mean(squares)), max(1, len(tasks) - 1), least)


def profile(name: str) -> Hardware:
    """Return a hardware profile by its name; UserError for a name that there is none of."""
    if "," in name:
        raise UserError(f"hardware={name}: a prediction is for one profile", hint="hardware=all for every")
    return compose.hardware(name)


@dataclass(frozen=True)
class Noise:
    """Relative residuals of the runs' seconds and epochs, scaled for few runs."""

    seconds: Array
    epochs: Array
    dof: int
    epochs_dof: int

    @property
    def has_spread(self) -> bool:
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
    faster = speed_ratio(measurements, target.hardware)
    expected = model.predict(counts, faster=faster, hardware=target.hardware, network=target.network)
    one_run, means = _drawn(model, counts, faster=faster, target=target)
    nodes = np.array([cost.nodes(hardware, int(k)) for k in counts])
    times = expected.time
    if spot := target.spot:
        rng = np.random.default_rng(SEED)
        times, means = spot.mean(times, nodes), spot.mean(means, nodes)
        each = [[spot.draw(s, int(n), rng) for s, n in zip(row, nodes, strict=True)] for row in one_run]
        one_run = np.array(each).reshape(one_run.shape)
        if not (np.isfinite(one_run).all() and np.isfinite(times).all()):
            hint = "a lower spot=, or fewer workers"
            raise UserError("with so many interruptions between two checkpoints no run ends", hint=hint)
    forecasts = []
    for i, k in enumerate(workers, start=1):
        time = _interval(times[i], one_run[:, i])
        ratio = _interval(times[i] / times[i - 1], means[:, i] / means[:, i - 1])
        measured = target == Target() and k in measurements.counts
        forecasts.append(
            Forecast(
                workers=k,
                measured_s=median(measurements.times(k)) if measured else None,
                extrapolated=not measurements.counts[0] <= k <= measurements.counts[-1],
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
    """Return what the runs show of their noise.

    A run's residual is the mean of its parts', weighted by their time: a slow run is slow in all of them.
    """
    runs = model.measurements.runs
    epochs = model.parts["epochs"]
    timed = [(part, name) for name, part in model.parts.items() if name != "epochs" and part.dof]
    weights = np.array([sum(getattr(run, f"{name}_s") for run in runs) for _, name in timed])
    if not weights.sum():
        return Noise(np.zeros(0), _scaled(epochs, epochs.dof), 0, epochs.dof)
    weights /= weights.sum()
    dof = max(1, round(sum(w * part.dof for w, (part, _) in zip(weights, timed, strict=True))))
    seconds = sum(w * _scaled(part, dof) for w, (part, _) in zip(weights, timed, strict=True))
    return Noise(np.asarray(seconds), _scaled(epochs, epochs.dof), dof, epochs.dof)


def leave_one_out(measurements: Measurements) -> list[HoldoutError]:
    """Return how well each measured worker count is predicted from the others; empty for fewer than three."""
    errors = []
    for left in measurements.counts if len(measurements.counts) > 2 else ():
        rest = measurements.only([k for k in measurements.counts if k != left])
        if any(run.reached for run in rest.runs):
            errors.append(compare(fit(rest), measurements.only([left])))
    return [error for error in errors if math.isfinite(error.measured_s)]


def held_out(model: Model, everything: Measurements) -> list[HoldoutError]:
    """Return how well the model predicts worker counts that were measured but not fitted."""
    unseen = [k for k in everything.counts if k not in model.measurements.counts]
    errors = [compare(model, everything.only([k])) for k in unseen]
    return [error for error in errors if math.isfinite(error.measured_s)]


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


def other_processor(measured: Hardware, hardware: Hardware | None) -> bool:
    """Whether the target computes with another processor than the runs, so that the transfer error counts."""
    if hardware is None or hardware.name == measured.name:
        return False
    return hardware.gpu_model is None or hardware.gpu_model != measured.gpu_model


def _drawn(model: Model, counts: Array, *, faster: float, target: Target) -> tuple[Array, Array]:
    """Return (draws, counts) times to accuracy of one further run, and of the mean of many.

    A bootstrap of residuals (Efron and Tibshirani 1993, An Introduction to the Bootstrap, 9.5). What another
    processor is off (Transfer) changes its computing, and for a further run its whole time, as in the pairs.
    """
    shown = noise(model)
    if not shown.has_spread:
        return np.zeros((0, len(counts))), np.zeros((0, len(counts)))
    rng = np.random.default_rng(SEED)
    runs = model.measurements.runs
    reached = sum(run.reached for run in runs)
    beyond = np.maximum(0.0, np.log2(counts / model.measurements.counts[-1]))
    drift = extrapolation_error(model.measurements) * beyond
    # The goal is met at a validation, so epochs are known no better than their distance.
    granularity = median(1 / run.validations for run in runs)
    moved = other_processor(model.measurements.hardware, target.hardware)
    errors = transfer().draw(faster, DRAWS, rng) if moved else np.zeros(DRAWS)
    one_run, means = [], []
    links = {"hardware": target.hardware, "network": target.network}
    for error in errors:
        forms = {tier: str(rng.choice(list(several))) for tier, several in model.allreduce.items()}
        again = model.refitted(_draw(shown.seconds, len(runs), rng), _draw(shown.epochs, reached, rng), forms)
        off = np.exp(drift * rng.standard_normal())
        means.append(off * again.predict(counts, faster=faster * math.exp(-error), **links).time)
        whole = (
            off * again.predict(counts, faster=faster, **links).time * math.exp(error) if error else means[-1]
        )
        chance = _draw(shown.seconds, 1, rng) + _draw(shown.epochs, 1, rng)
        one_run.append(whole * np.exp(chance + granularity * (rng.random() - 0.5)))
    return np.array(one_run), np.array(means)


def _draw(residuals: Array, size: int, rng: np.random.Generator) -> Array:
    """Return residuals drawn with replacement, either sign alike likely."""
    return rng.choice(residuals, size) * rng.choice((-1.0, 1.0), size)


def _scaled(part: FittedPart, dof: int) -> Array:
    """Return residuals scaled up for the fitted coefficients, and by Student's t for few runs."""
    from scipy.stats import norm, t

    if not part.dof:
        return np.zeros(0)
    student = float(t.ppf(0.975, dof) / norm.ppf(0.975))
    return part.residuals * math.sqrt(len(part.residuals) / part.dof) * student


def _interval(value: float, drawn: Array) -> PredictedInterval:
    if not len(drawn):
        return PredictedInterval(float(value))
    low, high = np.percentile(drawn, TAILS)
    return PredictedInterval(float(value), float(min(low, value)), float(max(high, value)))


def speed_ratio(measurements: Measurements, hardware: Hardware | None) -> float:
    """Return by what factor the other hardware's stated peak exceeds the measured one's, a worker."""
    if hardware is None or hardware.name == measurements.hardware.name:
        return 1.0
    measured, other = (peak(node, measurements.precision) for node in (measurements.hardware, hardware))
    return other / measured


def peak(hardware: Hardware, precision: str) -> float:
    """Return the peak in FLOP/s of one worker: a GPU, or its part of a node's CPUs."""
    peak = getattr(hardware.peak, precision) if hardware.peak else None
    if peak is None:
        raise UserError(
            f"hardware={hardware.name} states no peak in {precision}, so speed cannot be scaled",
            hint="choose hardware that states one, or measure on it",
        )
    return peak if hardware.gpus else peak / (hardware.workers_per_node or 1)


def _cost(
    hardware: Hardware, workers: int, time: PredictedInterval, *, spot: bool
) -> PredictedInterval | None:
    """Return the price from the first access to data to the goal; None without a price."""
    if hardware.price is None:
        return None
    an_hour = hardware.price.usd_per_hour_spot if spot else hardware.price.usd_per_hour
    count = cost.nodes(hardware, workers)
    if an_hour is None:
        raise UserError(f"hardware={hardware.name} has no spot price", hint="leave spot= out")
    ends = [None if s is None else cost.usd(s, count, an_hour) for s in (time.low, time.high)]
    return PredictedInterval(cost.usd(time.value, count, an_hour), *ends)


@dataclass(frozen=True)
class Advice:
    """The answer to one question: a worker count, None where there is none, and the sentence."""

    question: str
    workers: int | None
    sentence: str


@dataclass(frozen=True)
class Offer:
    """What a number of workers on a profile is predicted to take and to cost."""

    hardware: str
    forecast: Forecast
    price_date: str
    dominated: bool  # another offer is predicted to be as fast and cheaper, or as cheap and faster


def frontier(
    model: Model, counts: Sequence[int], target: Target, today: date
) -> tuple[list[Offer], dict[str, str]]:
    """Return the offers of all profiles with a price of the last year, by time, and why others have none.

    With target.spot on demand and on spot nodes. Of a profile with an unknown link, the counts that need
    none. Raises nothing for a profile.
    """
    candidates: list[tuple[str, Forecast, str]] = []
    refused = {}
    for name in compose.choices("hardware"):
        try:
            node = profile(name)
            if node.price is None:
                raise UserError("it has no price")
            if old := old_price(node, today):
                raise UserError(f"its {old}")
            here = replace(target, hardware=node, spot=None)
            possible = [k for k in counts if not _refusal(model, k, here)]
            if refusal := _refusal(model, counts[-1], here):
                shown = f"; up to {format.counted(max(possible), 'worker')} shown" if possible else ""
                refused[name] = f"{str(refusal).partition(' (')[0]}{shown}"
            for spot in dict.fromkeys((None, target.spot)):
                label = f"{name}, spot" if spot else name
                if spot and node.price.usd_per_hour_spot is None:
                    refused[label] = "it has no spot price"
                elif possible:
                    predicted = forecast(model, possible, replace(here, spot=spot))
                    candidates += [(label, row, node.price.date) for row in predicted]
        except UserError as refusal:
            refused[name] = str(refusal).partition(" (")[0]
    candidates.sort(key=lambda candidate: (candidate[1].time_s.value, _usd(candidate[1])))
    offers, least = [], math.inf
    for name, row, dated in candidates:
        offers.append(Offer(name, row, dated, dominated=_usd(row) >= least))
        least = min(least, _usd(row))
    return offers, refused


def old_price(hardware: Hardware, today: date) -> str | None:
    """Return that a profile's price is too old for advice; None where it is not."""
    dated = hardware.price.date if hardware.price else None
    if dated is None or (today - date.fromisoformat(dated)).days <= PRICE_DAYS:
        return None
    return f"price is of {dated}, older than a year"


def _refusal(model: Model, workers: int, target: Target) -> UserError | None:
    try:
        faster = speed_ratio(model.measurements, target.hardware)
        model.predict(
            np.array([float(workers)]), faster=faster, hardware=target.hardware, network=target.network
        )
    except UserError as refusal:
        return refusal
    return None


def advise(
    forecasts: Sequence[Forecast], *, deadline: float | None, budget: float | None, old: str | None = None
) -> list[Advice]:
    """Return the fastest and the cheapest, and an answer for a deadline (s) and a budget (USD) if given.

    Only supported counts are advised: going up, each must be shown to be faster than the one before. Nothing
    is said of money where `old` says that the price is. Raises UserError for a budget without a price.
    """
    supported, reason, slower = _supported(forecasts)
    priced = not old and all(row.cost_usd for row in forecasts)
    if budget is not None and not priced and not old:
        raise UserError("a budget needs a price, and the hardware has none", hint="hardware=gcp_n1_t4, say")
    options = [(in_words(row), row) for row in supported]
    more = reason or "no larger count was predicted"
    answers = [_best("fastest", options, _time, more=more)]
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
    options = [(f"{offer.hardware}, {in_words(offer.forecast)}", offer.forecast) for offer in offers]
    answers = [] if deadline is None else [_best("deadline", options, _usd, limit=deadline)]
    answers += [] if budget is None else [_best("budget", options, _time, limit=budget)]
    return answers or [_best("fastest", options, _time), _best("cheapest", options, _usd)]


def _best(
    question: str,
    options: Sequence[tuple[str, Forecast]],
    order: Callable[[Forecast], float],
    *,
    limit: float | None = None,
    more: str = "",
) -> Advice:
    """Return the best option within the limit, or that its interval is too wide for advice.

    It says, too, which option keeps the limit with its whole interval.
    """
    value, text = (_usd, format.usd) if question == "budget" else (_time, format.duration)
    title = question.capitalize() + (f" of {text(limit)}" if limit is not None else "")
    within = [(label, row) for label, row in options if limit is None or value(row) <= limit]
    if not within:
        closest = min(options, key=lambda option: value(option[1]), default=None)
        closest = f"; closest is {closest[0]}" if closest else ""
        return Advice(question, None, f"{title}: none of these is predicted to keep it{closest}.")
    label, best = min(within, key=lambda option: order(option[1]))
    if limit is not None:
        safe = [option for option in within if (_high(option[1], question) or math.inf) <= limit]
        more = "no count keeps it with its whole interval"
        if safe:
            safest = min(safe, key=lambda option: order(option[1]))[0].partition(" (")[0]
            more = f"with the whole interval, {safest}"
        if best in [row for _, row in safe]:
            more = "its whole interval keeps it"
    sentence = f"{title}: {label}{f'; {more}' if more else ''}"
    low, high = best.time_s.low, best.time_s.high
    if low is not None and high is not None and high > WIDE * low:
        wide = f"an interval wider than a factor of {WIDE:g} is no advice"
        return Advice(question, None, f"{sentence}; {wide}.")
    return Advice(question, best.workers, f"{sentence}.")


def in_words(row: Forecast) -> str:
    """Return e.g. 8 workers, 7 h 00 min, 31.32 USD; with intervals."""
    parts = [format.counted(row.workers, "worker"), _with_ends(row.time_s, format.duration)]
    return ", ".join([*parts, *([_with_ends(row.cost_usd, format.usd)] if row.cost_usd else [])])


def _supported(forecasts: Sequence[Forecast]) -> tuple[list[Forecast], str, bool]:
    """Return the counts up to which each is shown to be faster than the one before, and why it ends there.

    The last value is whether the next count is shown to be slower, rather than not shown to be faster.
    """
    supported = [forecasts[0]]
    for row in forecasts[1:]:
        ratio = row.time_ratio or PredictedInterval(math.nan)
        if ratio.high is None or ratio.high >= 1:
            slower = ratio.low is not None and ratio.low > 1
            verb = "are slower" if slower else "are not shown to be faster"
            before = format.counted(supported[-1].workers, "worker")
            ends = _with_ends(ratio, lambda value: f"{value:.2f}")
            return supported, f"{row.workers:,} {verb} than {before} (ratio of the times {ends})", slower
        supported.append(row)
    return supported, "", False


def _with_ends(estimate: PredictedInterval, text: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return text(estimate.value)
    return f"{text(estimate.value)} ({text(estimate.low)} to {text(estimate.high)})"


def _time(row: Forecast) -> float:
    return row.time_s.value


def _usd(row: Forecast) -> float:
    return row.cost_usd.value if row.cost_usd else math.inf


def _high(row: Forecast, question: str) -> float | None:
    return (row.cost_usd.high if row.cost_usd else None) if question == "budget" else row.time_s.high
