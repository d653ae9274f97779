"""The chart of a prediction, and sentences on what was fitted and how far off the model was."""

import math
from collections.abc import Sequence
from statistics import mean, median

from mlbench.analysis.chart import Axis, Chart, Trace
from mlbench.prediction.forecast import Forecast, HoldoutError, Target, compare, extrapolation_error, noise
from mlbench.prediction.model import Model
from mlbench.prediction.runs import Measurements
from mlbench.record import format

# s; what people count in
TICKS_S = (1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)
LOUD = 0.3  # relative noise; a 95 % interval then spans a factor of 3 where nothing is extrapolated
POOR_FIT = 0.1  # relative error at a fitted count from which it is reported


def chart(
    forecasts: Sequence[Forecast], *, fitted: Measurements, held_out: Measurements | None = None
) -> Chart:
    """Return the predicted time over workers with its 95 % band, and the measured runs."""
    workers, times = [one.workers for one in forecasts], [one.time_s.value for one in forecasts]
    known = [one for one in forecasts if one.time_s.low and one.time_s.high]
    traces = [
        Trace(
            "95 % of further runs",
            [one.workers for one in known],
            [one.time_s.value for one in known],
            "band",
            style=5,
            low=[one.time_s.low for one in known],
            high=[one.time_s.high for one in known],
        ),
        Trace("predicted", workers, times, texts=_texts(workers, times), small=True),
    ]
    for measurements, label in ((fitted, "measured"), (held_out, "measured, not fitted")):
        runs = [run for run in measurements.runs if run.reached] if measurements else []
        xs, ys = [run.workers for run in runs], [run.total_s for run in runs]
        traces.append(
            Trace(label, xs, ys, "marks", 1, secondary=measurements is held_out, texts=_texts(xs, ys))
        )
    drawn = [y for trace in traces for y in (*trace.y, *trace.low, *trace.high) if y]
    ticks = [y for y in TICKS_S if min(drawn) / 10 < y < max(drawn) * 10]
    limits = min([*drawn, *ticks]), max([*drawn, *ticks])
    return Chart.of(
        "prediction",
        f"Predicted time to accuracy of {fitted.task}",
        about=f"{fitted.title}, fitted at {_list(fitted.counts)} workers",
        x=Axis("workers", "log", tuple((float(k), f"{k:,}") for k in workers)),
        y=Axis("time to accuracy", "log", tuple((y, format.duration(y)) for y in ticks), limits),
        traces=traces,
    )


def basis(model: Model) -> list[str]:
    """Return sentences on what the model is fitted to and what follows from it."""
    runs, counts = model.measurements, model.measurements.counts
    sentences = [f"Fitted on {format.counted(len(runs.runs), 'run')} at {_list(counts)} workers."]
    sentences += [f"Left out: {why}." for why in runs.left_out]
    sentences += [f"Note: {note}." for note in runs.notes]
    errors = [compare(model, runs.only([k])) for k in counts]
    worst = max(errors, key=lambda one: abs(one.epoch_error))
    if abs(worst.epoch_error) >= POOR_FIT:
        sentences.append(f"The fit is off where it was fitted: {error(worst)}.")
    if len(model.allreduce) > 1:
        forms = " and ".join(model.allreduce)
        sentences.append(f"Communication: the runs do not tell {forms} apart, which count half each.")
    for k in counts:
        times = runs.times(k)
        missed = sum(map(math.isinf, times))
        if missed:
            sentences.append(
                f"At {format.counted(k, 'worker')} {missed} of {format.counted(len(times), 'run')} missed "
                "the goal: what is predicted is the time of a run that reaches it."
            )
    startups = [run.startup_s for run in runs.runs if run.startup_s is not None]
    if startups:
        sentences.append(f"Start-up comes on top: {format.duration(median(startups))} (median).")
    return [*sentences, *_noise(model), _beyond(runs)]


def emulated(model: Model, other: Target) -> str | None:
    """Return that no real network was measured, and what the prediction is of; None where one was."""
    network = model.measurements.network
    if network is None:
        return None
    hosts = f"Emulated: the runs used hosts that one machine emulates, linked by {network}"
    if other.network is None:
        return f"{hosts}. The prediction is of such hosts, and says nothing of a real network."
    shared = f"Computing shared that machine's CPUs; only the network becomes {other.network.name}."
    return f"{hosts}. {shared}"


def target(model: Model, other: Target) -> list[str]:
    """Return sentences on what was assumed of other hardware or another network."""
    sentences = []
    measured = model.measurements.hardware
    if other.hardware is not None:
        sentences.append(
            f"Compute and optimizer are scaled from {measured.name} to {other.hardware.name} by their stated "
            f"peaks ({model.measurements.precision}); "
            "the interval does not know how near each comes to its own."
        )
        if other.network is None:
            sentences.append("Communication is taken as measured: say network=... for another network.")
    if other.network is not None and not other.network.measured:
        carried = (
            f"reached to the same share as the runs reached of {measured.network_gbit_per_s:g} Gbit/s"
            if measured.network_gbit_per_s
            else f"reached in full, as {measured.name} states no rate to compare with: a lower bound of time"
        )
        sentences.append(
            f"Network {other.network.name} is stated, not measured; its line rate is {carried}. "
            "What the workers wait for each other, which the measured latency holds, is then left out."
        )
    return sentences


def left_out(errors: Sequence[HoldoutError]) -> str:
    """Return the leave-one-out error in a sentence."""
    if not errors:
        return "Leave one out: not possible, it needs runs at 3 or more worker counts."
    each = "; ".join(error(one) for one in errors)
    size = format.percent(mean(abs(one.time_error) for one in errors))
    return f"Leave one out, each worker count predicted from the others: {each}; {size} on average."


def held_out(errors: Sequence[HoldoutError]) -> str:
    """Return the error at worker counts that were measured but not fitted."""
    return f"Measured, but not fitted: {'; '.join(error(one) for one in errors)}."


def error(one: HoldoutError) -> str:
    """Return e.g. 8 workers +1.6 % (seconds per epoch +4.8 %)."""
    epoch = f"(seconds per epoch {one.epoch_error:+.1%})"
    # Where half of the runs or more missed the goal there is no time to be off from.
    text = f"{one.time_error:+.1%} {epoch}" if math.isfinite(one.measured_s) else epoch
    return f"{format.counted(one.workers, 'worker')} {text}".replace("%", " %")


def _noise(model: Model) -> list[str]:
    shown = noise(model)
    if not shown.known:
        what = "epochs to the goal" if shown.dof else "seconds"
        return [f"No intervals: the runs do not show the noise of the {what}. Repeat them."]
    sigma, epochs = (math.sqrt(mean(one**2)) for one in (shown.seconds, shown.epochs))
    return [
        f"Residual noise: {format.percent(sigma)} of a run's seconds (df = {shown.dof}) and "
        f"{format.percent(epochs)} of its epochs (df = {shown.epochs_dof})."
    ]


def warning(model: Model) -> str | None:
    """Return that a prediction is unreliable, and why; None where it is not."""
    shown = noise(model)
    if not shown.known:
        return None
    sigma = math.sqrt(mean(one**2 for one in shown.seconds))
    if sigma <= LOUD:
        return None
    return (
        f"Unreliable: the runs are {format.percent(sigma)} from the model or from each other, so intervals "
        "span a factor of 3 and more. Repeat the runs on a quiet machine."
    )


def limit(model: Model, *, most: int, wanted: int) -> str | None:
    """Return why a table ends at `most` workers although `wanted` were to be predicted; None if not."""
    if most >= wanted:
        return None
    runs = model.measurements
    if runs.grows:
        epoch = f"{model.epoch_samples:,.0f} samples per epoch, {model.batch:,.0f} per worker and step"
        return f"The table ends at {most:,} workers: an epoch then has one step ({epoch})."
    return f"The table ends at {most:,} workers: a step then has one sample per worker."


def _beyond(runs: Measurements) -> str:
    """Return what is done about worker counts beyond the largest that was measured."""
    drift, most = extrapolation_error(runs), f"{runs.counts[-1]:,}"
    sentence = f"Everything beyond {most} workers is extrapolated"
    if not drift:
        return f"{sentence}; from fewer than 3 worker counts nothing shows how far the model drifts there."
    return (
        f"{sentence}; intervals are widened there by {format.percent(math.expm1(drift))} per doubling, "
        f"by which the model was off at {most}, predicted from fewer."
    )


def _list(counts: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in counts)


def _texts(workers: Sequence[int], seconds: Sequence[float]) -> list[str]:
    return [f"{k:,} workers: {format.duration(s)}" for k, s in zip(workers, seconds, strict=True)]
