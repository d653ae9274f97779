"""Sentences of a prediction: what it was fitted on, what it assumes, how far it was off."""

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from mlbench.plugins.prediction import forecast, model, processors
from mlbench.plugins.prediction.forecast import HoldoutError
from mlbench.plugins.prediction.model import Model, Target
from mlbench.record.format import counted, duration, percent

LOUD = 0.3  # relative noise; a 95 % interval then spans a factor of 3 even at measured counts
POOR_FIT = 0.1  # relative error at a fitted count; from here on it is reported


def refusals(refused: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason why profiles are not shown."""
    names: dict[str, list[str]] = {}
    for name, why in refused.items():
        names.setdefault(why, []).append(name)
    return [f"Not shown: {', '.join(some)}: {why}." for why, some in names.items()]


def leading(fit: Model, other: Target, *, most: int, wanted: int) -> list[str | None]:
    """Return the leading sentences: emulated hosts, scattered runs, a table that ends early."""
    runs, shown = fit.measurements, forecast.noise(fit)
    emulated = doubt = ends = None
    if runs.network:
        what = "The prediction is for such hosts, not for a real network."
        if other.network is not None:
            what = f"Computing shared that machine's CPUs. Only the network becomes {other.network.name}."
        hosts = f"hosts that one machine emulates, linked by {runs.network}"
        emulated = f"Emulated: the runs used {hosts}. {what}"
    if shown.has_spread and (sigma := _sigma(shown.seconds)) > LOUD:
        doubt = f"Unreliable: the runs are {percent(sigma)} from the model or from each other, so "
        doubt += "intervals span a factor of 3 and more. Repeat the runs on a quiet machine."
    if most < wanted:
        why = "a step then has one sample per worker"
        if runs.grows:
            epoch = f"{fit.epoch_samples:,.0f} samples per epoch, {fit.batch:,.0f} per worker and step"
            why = f"an epoch then has one step ({epoch})"
        ends = f"The table ends at {most:,} workers: {why}."
    return [emulated, doubt, ends]


def basis(fit: Model) -> list[str]:
    """Return sentences on the fitted data and what follows from it."""
    runs, counts, shown = fit.measurements, fit.measurements.counts, forecast.noise(fit)
    sentences = [f"Fitted on {counted(len(runs.runs), 'run')} at {listed(counts)} workers."]
    sentences += [f"Left out: {why}." for why in runs.left_out]
    sentences += [f"Note: {note}." for note in runs.notes]
    errors = [forecast.compare(fit, runs.only([k])) for k in counts]
    worst = max(errors, key=lambda holdout: abs(holdout.epoch_error))
    if abs(worst.epoch_error) >= POOR_FIT:
        sentences.append(f"The fit is off where it was fitted: {error(worst)}.")
    for forms in fit.allreduce.values():
        if len(forms) > 1:
            alike = f"do not tell {' and '.join(forms)} apart, so each counts half"
            sentences.append(f"Communication: the runs {alike}.")
    for k in counts:
        times = runs.times(k)
        if missed := sum(map(math.isinf, times)):
            some = f"At {counted(k, 'worker')} {missed} of {counted(len(times), 'run')} missed the goal"
            sentences.append(f"{some}: what is predicted is the time of a run that reaches it.")
    if runs.startup_s is not None:
        sentences.append(f"Start-up comes on top: {duration(runs.startup_s)} (median).")
    if shown.has_spread:
        noise = f"Residual noise: {percent(_sigma(shown.seconds))} of a run's seconds (df = {shown.dof})"
        if shown.communication is not shown.seconds:
            noise += f", {percent(_sigma(shown.communication))} of its communication"
        noise += f" and {percent(_sigma(shown.epochs))} of its epochs (df = {shown.epochs_dof})."
    else:
        what = "epochs to the goal" if shown.dof else "seconds"
        noise = f"No intervals: the runs do not show the noise of the {what}. Repeat them."
    most = f"{counts[-1]:,}"
    outside = f"beyond {most}" if counts[0] == 1 else f"outside {counts[0]:,} to {most}"
    why = "fewer than 3 worker counts cannot show how far the model drifts there"
    if drift := forecast.extrapolation_error(runs):
        why = f"intervals are widened there by {percent(math.expm1(drift))} per doubling, by which the model "
        why += f"was off at {most}, predicted from fewer"
    return [*sentences, noise, f"Everything {outside} workers is extrapolated: {why}."]


def assumptions(fit: Model, other: Target) -> list[str]:
    """Return the assumptions about other hardware, another network and spot nodes, in sentences."""
    sentences, runs, hardware, network = [], fit.measurements, other.hardware, other.network
    if runs.moved(hardware):
        ratio = runs.speed_ratio(hardware)
        sentences.append(
            f"Compute and optimizer are scaled from {runs.hardware.name} to {hardware.name} by their stated "
            f"peaks ({runs.precision}), {ratio:.3g} to 1."
        )
        if runs.other_processor(hardware):
            sentences.append(
                "How far such a ratio is off in MLPerf's published results is part of the interval: a factor "
                f"of {processors.factor(ratio):.2g} either way (Student's t, df = {processors.dof()})."
            )
        if network is None:
            links = ", ".join(f"{where} {_rate_share(fit, tier)}" for tier, (where, _) in model.TIERS.items())
            sentences.append(f"Communication is what its profile states of its links, reached {links}.")
    if spot := other.spot:
        sentences.append(
            f"Each spot node is interrupted {spot.per_hour:g} times an hour. The run resumes from the last "
            f"of {spot.checkpoints:,} checkpoints after {duration(spot.restart_s)}. As many nodes are "
            "paid all the time."
        )
    if network is not None and not network.measured:
        sentences.append(
            f"Network {network.name} is stated, not measured. Its line rate is reached "
            f"{_rate_share(fit, model.BETWEEN)}. What the workers wait for each other, which the measured "
            "latency holds, is then left out."
        )
    return sentences


def _rate_share(fit: Model, tier: str) -> str:
    """Return the assumed share of another network's stated rate, and the reason."""
    hardware, why = fit.measurements.hardware, "no run used such a link"
    if tier in fit.allreduce:
        if rate := getattr(hardware, f"{tier}_{model.FIELDS[0]}"):
            return f"to the same share as the runs reached of {rate:g} Gbit/s"
        why = f"{hardware.name} states no rate to compare with"
    return f"in full, as {why} (a lower bound of time)"


def holdouts(left_out: Sequence[HoldoutError], held_out: Sequence[HoldoutError]) -> list[str]:
    """Return the leave-one-out error and the error at measured but unfitted counts, in sentences."""
    sentence = "Leave one out: not possible, it needs runs at 3 or more worker counts."
    if left_out:
        each = "; ".join(error(holdout) for holdout in left_out)
        size = percent(mean(abs(holdout.time_error) for holdout in left_out))
        sentence = f"Leave one out, each worker count predicted from the others: {each}; {size} on average."
    errors = "; ".join(error(holdout) for holdout in held_out)
    return [sentence, *([f"Measured, but not fitted: {errors}."] if held_out else [])]


def error(holdout: HoldoutError) -> str:
    """Return e.g. 8 workers +1.6 % (seconds per epoch +4.8 %)."""
    epoch = f"(seconds per epoch {holdout.epoch_error:+.1%})"
    # If half of the runs or more missed the goal, there is no measured time to compare with.
    text = f"{holdout.time_error:+.1%} {epoch}" if math.isfinite(holdout.measured_s) else epoch
    return f"{counted(holdout.workers, 'worker')} {text}".replace("%", " %")


def _sigma(residuals: model.Array) -> float:
    return math.sqrt(mean(value**2 for value in residuals))


def listed(counts: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in counts)
