"""More workers than were measured: `python -m mlbench.predict STUDY` gives time, cost and their intervals."""

import dataclasses
import math
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

from mlbench.analysis.chart import Axis, Chart, Trace
from mlbench.analysis.points import MedianEstimate
from mlbench.config.errors import UserError
from mlbench.record import format, reader, run_folders
from mlbench.record.format import counted, duration, percent, usd
from mlbench.record.record import Record
from mlbench.report.charts.frontier import TICKS_S, FrontierPoint
from mlbench.report.charts.frontier import frontier as frontier_chart
from mlbench.terminal import tables
from mlbench.terminal.args import JSON, OK, OUTPUT_ROOT, Args, Command, seconds, warn
from mlbench.wings.prediction import forecast, model, processors, published_runs
from mlbench.wings.prediction.forecast import FURTHEST, WIDE, Forecast, HoldoutError, Offer, PredictedInterval
from mlbench.wings.prediction.model import AS_MEASURED, Measurements, Model, NetworkCost, Target

WIDEST = 110  # columns of a sentence; longer lines are hard to read
LOUD = 0.3  # relative noise; a 95 % interval then spans a factor of 3 where nothing is extrapolated
MOST_REASONS = 4  # that one sentence names
POOR_FIT = 0.1  # relative error at a fitted count from which it is reported
PUBLISHED, STUDY = "published:", "study:"
FILTERS = {"task": "task", "backend": "backend", "on": "hardware"}  # setting: group of the experiment
RATES = [f"{tier}_{field}" for tier in (model.NODE, model.BETWEEN) for field in model.FIELDS]
MEANINGS = {
    "workers": "fit only these measured worker counts, e.g. 1,2,4; the others show the model's error",
    "max_workers": f"predict 1, 2, 4, ... up to this many; without it {FURTHEST} x the most measured",
    "hardware": "predict for another profile of conf/hardware, by stated peaks, links and price; "
    "all: cost over time",
    "network": "predict for another network: 10gbit,50us, or the name of a run of task allreduce",
    "deadline": "the cheapest number of workers that reaches the goal in time, e.g. 8h, 90min",
    "spot": "on spot nodes, of which each is interrupted so many times an hour, e.g. 0.05",
    "restart": "from an interruption until training goes on, e.g. 3min; default: the runs' start-up",
    "budget": "the fastest number of workers for this many USD",
    "task": "of a study of several tasks, this one",
    "backend": "of a study of several backends, this one; published runs: nccl, gloo, mpi",
    "on": "of a study of several hardware profiles, this one",
    "plot": "write the curve with its band to this PNG file; with hardware=all cost over time",
}
ELSEWHERE = ("hardware", "network", "spot", "restart", *(f"hardware.{name}" for name in RATES))
SETTINGS = {name: ("", meaning) for name, meaning in MEANINGS.items()} | OUTPUT_ROOT
SETTINGS |= {
    f"hardware.{name}": ("", "this field of the profile, where it states none or another") for name in RATES
}
# The columns by importance: a narrow terminal gets the first ones.
ORDER = ("workers", "predicted", "95 % interval", "measured")
ORDER += ("cost", "speed-up", "speed-up interval", "communication")
OFFER = ("hardware", "workers", "predicted", "95 % interval", "cost", "cost interval", "dominated")


# --- what a prediction is made from, and for what


def measurements(names: Sequence[str], output_root: Path, settings: Mapping[str, str]) -> Measurements:
    """Return the runs of a study, of these names, or those published of a task, as FILTERS select them."""
    first = names[0]
    if first.startswith(PUBLISHED):
        if len(names) > 1:
            raise UserError(f"{first} cannot be put together with {names[1]}", hint="give one of them")
        task = first.removeprefix(PUBLISHED)
        for setting, only in (("task", task), ("on", published_runs.HARDWARE)):
            if settings[setting] not in ("", only):
                raise UserError(f"{setting}={settings[setting]}: {first} has runs of {only} alone")
        return published_runs.measurements(task, backend=settings["backend"] or "nccl")
    records = _records(names, output_root)
    title = " ".join(names)
    if not records:
        raise UserError(f"{title} has no finished run", hint=run_folders.results_command("list", output_root))
    for setting, group in FILTERS.items():
        if name := settings[setting]:
            there = {getattr(record.experiment, group).name for record in records}
            records = [record for record in records if getattr(record.experiment, group).name == name]
            if not records:
                sentence = f"{setting}={name}: {title} has runs of {', '.join(sorted(there))} alone"
                raise UserError(sentence, hint="choose one of them")
    return model.from_records(records, title=title)


def to_fit(everything: Measurements, counts: str) -> Measurements:
    """Return the measurements at these worker counts, e.g. "1,2,4"; all without any."""
    if not counts:
        return everything
    chosen = [_count("workers", word) for word in counts.split(",")]
    if missing := [k for k in chosen if k not in everything.counts]:
        sentence = f"{counted(missing[0], 'worker')} was not measured"
        raise UserError(sentence, hint=f"measured: {', '.join(map(str, everything.counts))}")
    return everything.only(chosen)


def target(settings: Mapping[str, str], fitted: Measurements, output_root: Path) -> Target:
    """Return the node, with the fields given, the network as stated or as a run measured it, and spot."""
    spot, name, network = _spot(settings, fitted), settings["hardware"], settings["network"]
    node = None if name in ("", "all") else processors.profile(name)
    texts = {rate: text for rate in RATES if (text := settings[f"hardware.{rate}"])}
    rates = {rate: _positive(f"hardware.{rate}", text) for rate, text in texts.items()}
    if rates and name == "all":
        raise UserError("hardware=all takes no fields of a profile", hint="name a profile")
    tiers = [] if fitted.moved(node) else [t for t, runs in model.tier_runs(fitted).items() if runs.any()]
    reasons = dict.fromkeys(tiers, f"the runs measured it on {fitted.hardware.name}")
    reasons |= {model.BETWEEN: f"network={network} says it"} if network else {}
    for tier, rate in product(reasons, rates):
        if rate.startswith(tier):
            link = f"hardware.{rate}={texts[rate]} states a link {model.TIERS[tier][0]}"
            hint = "leave it out; network=1gbit,50us or hardware=NAME predicts for other links"
            raise UserError(f"{link}, but {reasons[tier]}", hint=hint)
    if rates:
        node = (node or fitted.hardware).model_copy(update=rates)
    if not network:
        return Target(node, spot=spot)
    if any(output_root.glob(f"*{network}*/record.json")):
        return Target(node, NetworkCost.of_table(network, _run(network, output_root).table), spot)
    return Target(node, NetworkCost.stated(network), spot)


def _spot(settings: Mapping[str, str], fitted: Measurements) -> model.Spot | None:
    if not settings["spot"]:
        if settings["restart"]:
            raise UserError("restart= is of spot nodes, and spot= is not given", hint="e.g. spot=0.05")
        return None
    per_hour, restart_s = _positive("spot", settings["spot"]), fitted.startup_s
    if settings["restart"]:
        restart_s = seconds("restart", settings["restart"])
    if restart_s is None:
        raise UserError("the runs do not say how long a restart takes", hint="restart=3min, as measured")
    checkpoints = math.ceil(median(run.epochs for run in fitted.runs if run.reached))  # one ends an epoch
    return model.Spot(per_hour, restart_s, checkpoints)


def worker_counts(fit: Model, everything: Measurements, most: int) -> list[int]:
    """Return powers of two and the measured counts, up to `most` and to one sample a worker."""
    most = int(min(most, fit.most_workers))
    powers = {2**i for i in range(most.bit_length()) if 2**i <= most}
    return sorted(powers | {k for k in everything.counts if k <= most} | {most})


def _records(names: Sequence[str], output_root: Path) -> list[Record]:
    """Return the records of the study that a single word names, else of the runs that the words name."""
    word = names[0]
    if len(names) == 1:
        try:
            return run_folders.study(output_root, word.removeprefix(STUDY), complain=warn)
        except UserError:
            if word.startswith(STUDY) or run_folders.is_study(output_root, word):
                raise
    return [_run(name, output_root) for name in names]


def _run(word: str, output_root: Path) -> Record:
    return reader.load(run_folders.folder(output_root, word) / "record.json")


def _count(name: str, word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise UserError(f"{name}={word} is not a number of workers", hint=f"e.g. {name}=16")
    return int(word)


def _positive(name: str, text: str, kind: str = "a number above 0") -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise UserError(f"{name}={text} is not {kind}", hint=f"e.g. {name}=25")
    return value


# --- table, chart and sentences


def table(forecasts: Sequence[Forecast], measured: Mapping[int, str], width: int) -> str:
    """Return one line per number of workers; columns that `width` has no room for are left out, and named."""
    rows = [_cells(row) | {"measured": measured.get(row.workers, "")} for row in forecasts]
    filled = [name for name in ORDER if any(row[name] for row in rows)]
    shown = filled[: tables.fitting(filled, [[row[name] for row in rows] for name in filled], width)]
    text = _table([name for name in rows[0] if name in shown], rows)
    if hidden := filled[len(shown) :]:
        text += f"\n{width} columns have no room for: {', '.join(hidden)} (--json has all)"
    return text + ("\n* measured, but not fitted" if any("*" in cell for cell in measured.values()) else "")


def medians(everything: Measurements, fitted: Measurements) -> dict[int, str]:
    """Return the measured medians by number of workers, starred where they were not fitted."""
    texts = {}
    for k in everything.counts:
        time = median(everything.times(k))
        texts[k] = duration(time) if math.isfinite(time) else "missed"
        texts[k] += "" if k in fitted.counts else " *"
    return texts


def _cells(row: Forecast) -> dict[str, str]:
    return {
        "workers": f"{row.workers:,}",
        "measured": "",
        "predicted": duration(row.time_s.value),
        "95 % interval": row.time_s.ends(duration),
        "speed-up": f"{row.speedup.value:.2f}",
        "speed-up interval": row.speedup.ends("{:.2f}".format),
        "cost": usd(row.cost_usd.value) if row.cost_usd else "",
        "cost interval": row.cost_usd.ends(usd) if row.cost_usd else "",
        "communication": percent(row.communication_share),
    }


def _table(headings: Sequence[str], rows: Sequence[Mapping[str, str]]) -> str:
    cells = [[row[name] for name in headings] for row in rows]
    return tables.table(headings, cells, right=[name not in ("hardware", "dominated") for name in headings])


def chart(
    forecasts: Sequence[Forecast], *, fitted: Measurements, held_out: Measurements, conditions: str = ""
) -> Chart:
    """Return the predicted time over workers with its band; the runs, too, unless `conditions` are others."""
    workers, times = [row.workers for row in forecasts], [row.time_s for row in forecasts]
    values, texts = [time.value for time in times], _texts(workers, [time.value for time in times])
    traces = [Trace("predicted", workers, values, texts=texts, small=True)]
    if times[0].low:
        low, high = [time.low for time in times], [time.high for time in times]
        band = Trace("95 % of further runs", workers, values, "band", style=5, low=low, high=high)
        traces.insert(0, band)
    shown = () if conditions else ((fitted, "measured"), (held_out, "measured, not fitted"))
    for several, label in shown:
        runs = [run for run in several.runs if run.reached]
        xs, ys = [run.workers for run in runs], [run.total_s for run in runs]
        traces.append(Trace(label, xs, ys, "marks", 1, secondary=several is held_out, texts=_texts(xs, ys)))
    drawn = [y for trace in traces for y in (*trace.y, *trace.low, *trace.high) if y]
    ticks = [y for y in TICKS_S if min(drawn) / 10 < y < max(drawn) * 10]
    limits = min([*drawn, *ticks]), max([*drawn, *ticks])
    about = f"{fitted.title}, fitted at {_list(fitted.counts)} workers"
    return Chart.of(
        "prediction",
        f"Predicted time to accuracy of {fitted.task}",
        about=f"{about}; predicted for {conditions}" if conditions else about,
        x=Axis("workers", "log", tuple((float(k), f"{k:,}") for k in workers)),
        y=Axis("time to accuracy", "log", tuple((y, duration(y)) for y in ticks), limits),
        traces=traces,
    )


def points(offers: Sequence[Offer]) -> list[FrontierPoint]:
    """Return what a chart of cost over time shows of the offers, in their order."""
    return [
        FrontierPoint(offer.hardware, row.workers, _estimate(row.time_s), _estimate(row.cost_usd))
        for offer in offers
        if (row := offer.forecast).cost_usd
    ]


def _estimate(interval: PredictedInterval) -> MedianEstimate:
    return MedianEstimate(interval.value, interval.low, interval.high, n=0)


def refusals(refused: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason for which profiles are not shown."""
    names: dict[str, list[str]] = {}
    for name, why in refused.items():
        names.setdefault(why, []).append(name)
    return [f"Not shown: {', '.join(some)}: {why}." for why, some in names.items()]


def first(fit: Model, other: Target, *, most: int, wanted: int) -> list[str | None]:
    """Return what comes first: emulated hosts, runs that scatter, a table that ends early."""
    runs, shown = fit.measurements, forecast.noise(fit)
    emulated = doubt = ends = None
    if runs.network:
        what = "The prediction is of such hosts, and says nothing of a real network."
        if other.network is not None:
            what = f"Computing shared that machine's CPUs; only the network becomes {other.network.name}."
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
    """Return sentences on what the model is fitted to and what follows from it."""
    runs, counts, shown = fit.measurements, fit.measurements.counts, forecast.noise(fit)
    sentences = [f"Fitted on {counted(len(runs.runs), 'run')} at {_list(counts)} workers."]
    sentences += [f"Left out: {why}." for why in runs.left_out]
    sentences += [f"Note: {note}." for note in runs.notes]
    errors = [forecast.compare(fit, runs.only([k])) for k in counts]
    worst = max(errors, key=lambda holdout: abs(holdout.epoch_error))
    if abs(worst.epoch_error) >= POOR_FIT:
        sentences.append(f"The fit is off where it was fitted: {error(worst)}.")
    for forms in fit.allreduce.values():
        if len(forms) > 1:
            alike = f"do not tell {' and '.join(forms)} apart, which count half each"
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
    why = "from fewer than 3 worker counts nothing shows how far the model drifts there"
    if drift := forecast.extrapolation_error(runs):
        why = f"intervals are widened there by {percent(math.expm1(drift))} per doubling, by which the model "
        why += f"was off at {most}, predicted from fewer"
    return [*sentences, noise, f"Everything {outside} workers is extrapolated; {why}."]


def assumptions(fit: Model, other: Target) -> list[str]:
    """Return sentences on what was assumed of other hardware, of another network and of spot nodes."""
    sentences, runs, hardware, network = [], fit.measurements, other.hardware, other.network
    if runs.moved(hardware):
        ratio, transfer = runs.speed_ratio(hardware), processors.transfer()
        sentences.append(
            f"Compute and optimizer are scaled from {runs.hardware.name} to {hardware.name} by their stated "
            f"peaks ({runs.precision}), {ratio:.3g} to 1."
        )
        if runs.other_processor(hardware):
            sentences.append(
                f"How far such a ratio was off in {len(processors.pairs())} published pairs of processors is "
                f"part of the interval: a factor of {transfer.factor(ratio):.2g} either way "
                f"(Student's t, df = {transfer.dof})."
            )
        if network is None:
            links = ", ".join(f"{where} {_rate_share(fit, tier)}" for tier, (where, _) in model.TIERS.items())
            sentences.append(f"Communication is what its profile states of its links, reached {links}.")
    if spot := other.spot:
        sentences.append(
            f"Each spot node is interrupted {spot.per_hour:g} times an hour; the run goes on from the last "
            f"of {spot.checkpoints:,} checkpoints after {duration(spot.restart_s)}. As many nodes are "
            "paid all the time."
        )
    if network is not None and not network.measured:
        sentences.append(
            f"Network {network.name} is stated, not measured; its line rate is reached "
            f"{_rate_share(fit, model.BETWEEN)}. What the workers wait for each other, which the measured "
            "latency holds, is then left out."
        )
    return sentences


def _rate_share(fit: Model, tier: str) -> str:
    """Return how much of its stated rate a link of another network is taken to reach, and why."""
    hardware, why = fit.measurements.hardware, "no run used such a link"
    if tier in fit.allreduce:
        if rate := getattr(hardware, f"{tier}_{model.FIELDS[0]}"):
            return f"to the same share as the runs reached of {rate:g} Gbit/s"
        why = f"{hardware.name} states no rate to compare with"
    return f"in full, as {why} (a lower bound of time)"


def holdouts(left_out: Sequence[HoldoutError], held_out: Sequence[HoldoutError]) -> list[str]:
    """Return the leave-one-out error, and that at counts that were measured but not fitted, in sentences."""
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
    # Where half of the runs or more missed the goal there is no time to be off from.
    text = f"{holdout.time_error:+.1%} {epoch}" if math.isfinite(holdout.measured_s) else epoch
    return f"{counted(holdout.workers, 'worker')} {text}".replace("%", " %")


def _sigma(residuals: model.Array) -> float:
    return math.sqrt(mean(value**2 for value in residuals))


def _list(counts: Sequence[int]) -> str:
    return ", ".join(f"{k:,}" for k in counts)


def _texts(workers: Sequence[int], seconds: Sequence[float]) -> list[str]:
    return [f"{k:,} workers: {duration(s)}" for k, s in zip(workers, seconds, strict=True)]


# --- the command


SECTIONS = (
    (
        "STUDY",
        "The name of a study in output_root, the names of runs, or published:TASK with TASK one of "
        f"{', '.join(published_runs.TASKS)}: the runs that MLBench published in 2021.",
    ),
    (
        "model",
        "A model is fitted to each phase of the measured runs: compute over the samples per worker, an "
        "all-reduce of latency and bandwidth inside and between nodes, what overlaps with backward, epochs "
        "to the goal over the global batch, and the time outside the batches; see docs/prediction.md. "
        "Runs with more workers than CPUs, or with any other caveat, are never fitted. An interval is a 95 % "
        "prediction interval; it is wide where the runs say little, and where it is wider than a factor of "
        f"{WIDE:g} nothing is advised.",
    ),
)
COMMAND = Command("predict", sections=lambda: SECTIONS)


@COMMAND.verb("", "STUDY ...", settings=SETTINGS, options=JSON)
def _predict(args: Args) -> int:
    r"""Predict time to accuracy, speed-up and cost on more workers from runs on a few.

    examples:
      python -m mlbench.predict scaling task=resnet20 deadline=8h
          One task of a study of your own.
      python -m mlbench.predict published:gnmt hardware=gcp_a2_highgpu_1g \
          network=25gbit,30us
      python -m mlbench.predict published:gnmt workers=1,2,4
          What the model says of 8 and 16 workers.
    """
    if not args.arguments:
        raise UserError("predict takes a study", hint="python -m mlbench.predict --help")
    settings = args.settings
    if settings["plot"] and Path(settings["plot"]).suffix != ".png":
        raise UserError(f"plot={settings['plot']} is no PNG file", hint="write e.g. plot=prediction.png")
    everything = measurements(args.arguments, args.output_root, settings)
    fitted = model.check(to_fit(everything, settings["workers"]))
    fit = model.fit(fitted)
    other = target(settings, fitted, args.output_root)
    most = settings["max_workers"]
    wanted = _count("max_workers", most) if most else FURTHEST * fitted.counts[-1]
    counts = worker_counts(fit, everything, wanted)
    deadline, budget = settings["deadline"], settings["budget"]
    limits = {
        "deadline": seconds("deadline", deadline) if deadline else None,
        "budget": _positive("budget", budget, "an amount of USD") if budget else None,
    }
    if settings["hardware"] == "all":
        return _frontier(args, fit, counts, other, limits)
    forecasts = forecast.forecast(fit, counts, other)
    left_out, held_out = forecast.leave_one_out(fitted), forecast.held_out(fit, everything)
    old = forecast.old_price(other.hardware or fitted.hardware, date.today())
    answers = forecast.advise(forecasts, **limits, old=old)
    unseen = everything.only([k for k in everything.counts if k not in fitted.counts])
    conditions = " ".join(f"{name}={settings[name]}" for name in ELSEWHERE if settings[name])
    _draw(args, lambda: chart(forecasts, fitted=fitted, held_out=unseen, conditions=conditions))
    emulated, doubt, ends = first(fit, other, most=counts[-1], wanted=wanted)
    rest = [*basis(fit), *assumptions(fit, other), *holdouts(left_out, held_out)]
    if args.json:
        plain = {"title": everything.title, "fitted_workers": fitted.counts}
        plain["sentences"] = [*filter(None, [emulated, doubt, ends]), *rest]
        return _print_json(
            plain, predictions=forecasts, leave_one_out=left_out, held_out=held_out, advice=answers
        )
    width = min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else sys.maxsize
    lines = table(forecasts, medians(everything, fitted) if other == AS_MEASURED else {}, width)
    answered = [answer.sentence for answer in answers]
    for part in (everything.title, emulated, doubt, "", lines, ends, "", *answered, "", *rest):
        if part is not None:
            print(part if part is lines else textwrap.fill(part, width, break_on_hyphens=False))
    return OK


def _frontier(
    args: Args, fit: Model, counts: Sequence[int], other: Target, limits: dict[str, float | None]
) -> int:
    """Print cost against time over all profiles with a price."""
    offers, refused = forecast.frontier(fit, counts, other, date.today())
    if not offers:
        reasons = Counter(refused.values()).most_common(MOST_REASONS)
        why = "; ".join(f"{reason} ({counted(number, 'profile')})" for reason, number in reasons)
        raise UserError(f"hardware=all: no profile can be predicted: {why}", hint="measure on one of them")
    answers, runs = forecast.pick(offers, **limits), fit.measurements
    ahead = [*filter(None, first(fit, other, most=0, wanted=0))]
    rest = [*basis(fit), *assumptions(fit, other)]
    about = f"{runs.title}, fitted at {_list(runs.counts)} workers; bars are 95 % intervals"
    title = f"Predicted cost and time to accuracy of {runs.task}"
    _draw(args, lambda: frontier_chart(points(offers), title=title, about=about))
    if args.json:
        plain = {"title": runs.title, "refused": refused, "sentences": [*ahead, *rest]}
        return _print_json(plain, offers=offers, advice=answers)
    rows = [
        {"hardware": offer.hardware, "dominated": "yes" if offer.dominated else ""} | _cells(offer.forecast)
        for offer in offers
    ]
    print("\n".join([runs.title, *ahead, "", _table(OFFER, rows), ""]))
    print("\n".join([*(answer.sentence for answer in answers), "", *refusals(refused), "", *rest]))
    return OK


def _draw(args: Args, drawn: Callable[[], Chart]) -> None:
    if args.settings["plot"]:
        from mlbench.report import render  # Altair is for the chart alone

        render.save([drawn()], Path(args.settings["plot"]))


def _print_json(plain: dict[str, Any], **values: Sequence[Any]) -> int:
    rows = {name: [dataclasses.asdict(value) for value in some] for name, some in values.items()}
    print(format.json_text(plain | rows))
    return OK
