"""Sentences beside the table: what was fitted, what the runs could not tell, how far off the model was."""

import math
from collections.abc import Sequence
from statistics import mean, median

from mlbench.analysis.chart import Axis, Chart, Trace
from mlbench.experiment import format
from mlbench.prediction.forecast import (
    Forecast,
    HoldoutError,
    Target,
    compare,
    extrapolation_error,
    noise,
)
from mlbench.prediction.model import BITS, Model
from mlbench.prediction.runs import Measurements

# s; what people count in
TICKS_S = (1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)
LOUD = 0.3  # relative noise; a 95 % interval then spans a factor of 3 where nothing is extrapolated
POOR_FIT = 0.1  # relative error at a fitted count from which it is said


def chart(found: Sequence[Forecast], *, fitted: Measurements, held_out: Measurements | None) -> Chart:
    """Return the predicted time over workers with its 95 % band, and the measured runs."""
    workers = [one.workers for one in found]
    times = [one.time_s for one in found]
    texts = [f"{k:,} workers: {format.duration(time.value)}" for k, time in zip(workers, times, strict=True)]
    known = [(k, time) for k, time in zip(workers, times, strict=True) if time.low and time.high]
    band = Trace(
        "95 % of further runs",
        [k for k, _ in known],
        [time.value for _, time in known],
        "band",
        style=5,
        low=[time.low for _, time in known],
        high=[time.high for _, time in known],
    )
    traces = [band, Trace("predicted", workers, [time.value for time in times], texts=texts, small=True)]
    for runs, secondary, label in ((fitted, False, "measured"), (held_out, True, "measured, not fitted")):
        points = [(run.workers, run.total_s) for run in runs.runs if run.reached] if runs else []
        xs, ys = [x for x, _ in points], [y for _, y in points]
        said = [f"{x:,} workers: {format.duration(y)}" for x, y in points]
        traces.append(Trace(label, xs, ys, "marks", 1, secondary=secondary, texts=said))
    drawn = [y for trace in traces for y in (*trace.y, *trace.low, *trace.high) if y]
    ticks = [y for y in TICKS_S if min(drawn) / 10 < y < max(drawn) * 10]
    limits = min([*drawn, *ticks]), max([*drawn, *ticks])
    return Chart.of(
        "prediction",
        f"Predicted time to accuracy of {fitted.task}",
        about=f"{fitted.title}, fitted at {', '.join(map(str, fitted.counts))} workers",
        x=Axis("workers", "log", tuple((float(k), f"{k:,}") for k in workers)),
        y=Axis("time to accuracy", "log", tuple((y, format.duration(y)) for y in ticks), limits),
        traces=traces,
    )


def basis(model: Model) -> list[str]:
    """Return sentences on what the model is fitted to and what follows from it."""
    measurements = model.measurements
    sentences = [
        f"Fitted on {format.counted(len(measurements.runs), 'run')} at {_list(measurements.counts)} workers."
    ]
    sentences += [f"Left out: {why}." for why in measurements.left_out]
    sentences += [f"Note: {note}." for note in measurements.notes]
    sentences += _fit(model) + _epochs(model) + _communication(model) + _noise(model)
    for k in measurements.counts:
        times = measurements.times(k)
        missed = sum(map(math.isinf, times))
        if missed:
            sentences.append(
                f"At {format.counted(k, 'worker')} {missed} of {format.counted(len(times), 'run')} missed "
                "the goal: what is predicted is the time of a run that reaches it."
            )
    startups = [run.startup_s for run in measurements.runs if run.startup_s is not None]
    if startups:
        sentences.append(f"Start-up comes on top: {format.duration(median(startups))} (median).")
    sentences.append(_beyond(measurements))
    return sentences


def _fit(model: Model) -> list[str]:
    """Return the largest error of the model at the counts that it was fitted to, where it is large."""
    counts = model.measurements.counts
    errors = [compare(model, model.measurements.only([k])).epoch_error for k in counts]
    worst = max(errors, key=abs)
    if abs(worst) < POOR_FIT:
        return []
    at = format.counted(counts[errors.index(worst)], "worker")
    return [f"The fit itself is off by {worst:+.0%} in the seconds of an epoch at {at}.".replace("%", " %")]


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
    size = mean(abs(one.time_error) for one in errors)
    return (
        f"Leave one out, each worker count predicted from the others: {each}; "
        f"{format.percent(size)} on average."
    )


def held_out(errors: Sequence[HoldoutError]) -> str:
    """Return the error at worker counts that were measured but not fitted."""
    return f"Measured, but not fitted: {'; '.join(error(one) for one in errors)}."


def error(one: HoldoutError) -> str:
    """Return e.g. 8 workers +1.6 % (seconds an epoch +4.8 %)."""
    return (
        f"{format.counted(one.workers, 'worker')} {one.time_error:+.1%} "
        f"(seconds an epoch {one.epoch_error:+.1%})".replace("%", " %")
    )


def _epochs(model: Model) -> list[str]:
    least, grows = model.epochs.theta
    if not model.measurements.grows:
        return [
            f"Epochs to the goal: {format.number(least)}; a step has the same batch for any worker count."
        ]
    if grows == 0 or least == 0:
        growth = (
            "does not grow with the global batch" if grows == 0 else "grows in proportion to the global batch"
        )
        return [f"The number of epochs to the goal {growth}, as far as the runs tell."]
    return [
        f"Epochs to the goal: {format.number(least)} x (1 + global batch / {format.number(least / grows)})."
    ]


def _communication(model: Model) -> list[str]:
    counts = [k for k in model.measurements.counts if k > 1]
    if len(counts) == 1:
        return [
            f"Communication was measured at {format.counted(counts[0], 'worker')} only, which does not tell "
            "latency from bandwidth: either may be all of it, and they count half each."
        ]
    forms = [name for name, weight in model.weights.items() if weight]
    if len(forms) > 1:
        return [
            f"The runs at {_list(counts)} workers do not settle how latency grows with them: "
            f"{' and '.join(forms)} count half each."
        ]
    size = model.measurements.gradient_bytes
    if not forms or not size:  # else the fitted seconds are of an unknown amount
        return []
    alpha, beta = model.allreduce[forms[0]].theta
    rate = f", {format.number(BITS * size / beta / 1e9)} Gbit/s" if beta else ""
    hop = format.duration(alpha)
    return [f"Communication as a {forms[0]}: {hop} a hop{rate}, waiting for each other included."]


def _noise(model: Model) -> list[str]:
    told = noise(model)
    if not told.dof or not told.epochs_dof:
        what = "seconds" if not told.dof else "epochs to the goal"
        return [f"No intervals: the runs do not show the noise of the {what}. Repeat them."]
    sigma, epochs = (math.sqrt(sum(one * one) / len(one)) for one in (told.seconds, told.epochs))
    sentences = [
        f"Noise of a run, allowing for few runs: {format.percent(sigma)} of its seconds and "
        f"{format.percent(epochs)} of its epochs ({told.dof} and {told.epochs_dof} degrees of freedom)."
    ]
    if sigma > LOUD:
        sentences.append("The runs are so far from the model or from each other that little follows.")
    return sentences


def _beyond(measurements: Measurements) -> str:
    """Return what is done about worker counts beyond the largest that was measured."""
    off = extrapolation_error(measurements)
    said = f"Everything beyond {measurements.counts[-1]:,} workers is extrapolated"
    if not off:
        return f"{said}; from fewer than 3 worker counts nothing tells how far the model drifts there."
    return (
        f"{said}; intervals are widened there by {format.percent(math.expm1(off))} a doubling, "
        f"by which the model was off at {measurements.counts[-1]:,}, predicted from fewer."
    )


def _list(counts: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in counts)
