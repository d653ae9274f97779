"""Sentences beside the table: what was fitted, what the runs could not tell, how far off the model was."""

import math
from collections.abc import Sequence
from statistics import mean, median

from mlbench.analysis.chart import Axis, Chart, Trace
from mlbench.experiment import format
from mlbench.prediction.forecast import Forecast, Target
from mlbench.prediction.holdout import LeftOut, drift
from mlbench.prediction.model import Model
from mlbench.prediction.network import BITS
from mlbench.prediction.runs import Measurements

# s; what people count in
TICKS_S = (1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36_000, 86_400, 864_000, 8_640_000)
LOUD = 0.3  # relative noise; a 95 % interval then spans a factor of 3 where nothing is extrapolated
TRUSTED = 0.9  # weight of one form of communication from which the other is not worth a word


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
    counts = _list(measurements.counts)
    said = [f"Fitted on {format.counted(len(measurements.runs), 'run')} at {counts} workers."]
    said += [f"Left out: {why}." for why in measurements.left_out]
    said += [f"Note: {note}." for note in measurements.notes]
    said += _epochs(model) + _communication(model) + _noise(model)
    for k in measurements.counts:
        times = measurements.times(k)
        missed = sum(map(math.isinf, times))
        if missed:
            said.append(
                f"At {format.counted(k, 'worker')} {missed} of {format.counted(len(times), 'run')} missed "
                "the goal: what is predicted is the time of a run that reaches it."
            )
    startups = [run.startup_s for run in measurements.runs if run.startup_s is not None]
    if startups:
        said.append(f"Start-up comes on top: {format.duration(median(startups))} (median).")
    said.append(_beyond(measurements))
    return said


def target(model: Model, asked: Target) -> list[str]:
    """Return sentences on what was assumed of other hardware or another network."""
    said = []
    measured = model.measurements.hardware
    if asked.hardware is not None:
        said.append(
            f"Compute and optimizer are scaled from {measured.name} to {asked.hardware.name} by their stated "
            f"peaks ({model.measurements.precision}); "
            "the interval does not know how near each comes to its own."
        )
        if asked.network is None:
            said.append("Communication is taken as measured: say network=... for another network.")
    if asked.network is not None and not asked.network.measured:
        carried = (
            f"reached to the same share as the runs reached of {measured.network_gbit_per_s:g} Gbit/s"
            if measured.network_gbit_per_s
            else f"reached in full, as {measured.name} states no rate to compare with: a lower bound of time"
        )
        said.append(
            f"Network {asked.network.name} is stated, not measured; its line rate is {carried}. "
            "What the workers wait for each other, which the measured latency holds, is then left out."
        )
    return said


def left_out(errors: Sequence[LeftOut]) -> str:
    """Return the leave-one-out error in a sentence."""
    if not errors:
        return "Leave one out: not possible, it needs runs at 3 or more worker counts."
    each = "; ".join(error(one) for one in errors)
    size = mean(abs(one.time_error) for one in errors)
    return (
        f"Leave one out, each worker count predicted from the others: {each}; "
        f"{format.percent(size)} on average."
    )


def held_out(errors: Sequence[LeftOut]) -> str:
    """Return the error at worker counts that were measured but not fitted."""
    return f"Measured, but not fitted: {'; '.join(error(one) for one in errors)}."


def error(one: LeftOut) -> str:
    """Return e.g. 8 workers +1.6 % (seconds an epoch +4.8 %)."""
    return (
        f"{format.counted(one.workers, 'worker')} {one.time_error:+.1%} "
        f"(seconds an epoch {one.epoch_error:+.1%})".replace("%", " %")
    )


def _epochs(model: Model) -> list[str]:
    least, grows = model.epochs.theta
    if not model.measurements.grows:
        return [
            f"Epochs to the goal: {format.number(least)}; an update has the same batch for any worker count."
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
    said = []
    name, weight = max(model.weights.items(), key=lambda item: item[1])
    if weight < TRUSTED:
        shares = " and ".join(
            f"a {form} ({share:.0%})".replace("%", " %") for form, share in model.weights.items()
        )
        said.append(
            f"The runs at {_list(counts)} workers do not settle how latency grows with them: as in {shares}."
        )
    size = model.measurements.gradient_bytes
    if size:  # else the fitted seconds are of an unknown amount
        alpha, beta = model.forms[name].theta
        hop, rate = (
            format.duration(alpha),
            f", {format.number(BITS * size / beta / 1e9)} Gbit/s" if beta else "",
        )
        said.append(f"Communication as a {name}: {hop} a hop{rate}, waiting for each other included.")
    return said


def _noise(model: Model) -> list[str]:
    if not model.freedom or not model.epochs_freedom:
        what = "seconds" if not model.freedom else "epochs to the goal"
        return [f"No intervals: the runs leave nothing to tell the noise of the {what} from. Repeat them."]
    said = [
        f"Noise of a run: {format.percent(model.sigma)} of its seconds and "
        f"{format.percent(model.epochs_sigma)} of its epochs, "
        f"known from {model.freedom:.0f} and {model.epochs_freedom} degrees of freedom."
    ]
    if model.sigma > LOUD:
        said.append("The runs lie so far from the model or from each other that this tells next to nothing.")
    return said


def _beyond(measurements: Measurements) -> str:
    """Return what is done about worker counts beyond the largest that was measured."""
    off = drift(measurements)
    said = f"Everything beyond {measurements.counts[-1]:,} workers is extrapolated"
    if not off:
        return f"{said}; from fewer than 3 worker counts nothing tells how far the model drifts there."
    return (
        f"{said}; intervals are widened there by {format.percent(math.expm1(off))} a doubling, "
        f"by which the model was off at {measurements.counts[-1]:,}, predicted from fewer."
    )


def _list(counts: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in counts)
