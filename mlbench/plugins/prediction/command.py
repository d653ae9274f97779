"""Predict beyond the measured workers: `mlbench predict STUDY` gives time, cost and intervals."""

import dataclasses
import math
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mlbench.analysis import published_records
from mlbench.config.errors import UserError
from mlbench.plugins.prediction import (
    charts,
    forecast,
    model,
    published_runs,
    published_systems,
    sentences,
    source,
)
from mlbench.plugins.prediction.forecast import FURTHEST, WIDE, Forecast, Offer
from mlbench.plugins.prediction.model import AS_MEASURED, Measurements, Model, Target
from mlbench.record import format
from mlbench.record.format import counted, duration, percent, usd
from mlbench.terminal import tables
from mlbench.terminal.args import CONFIG_DIR, JSON, OK, OUTPUT_ROOT, Args, Command, parse, seconds, warn

if TYPE_CHECKING:  # Altair is for the charts alone
    import altair as alt


WIDEST = 110  # columns of a sentence; longer lines are hard to read
MOST_REASONS = 4  # that one sentence names
MEANINGS = {
    "workers": "fit only these measured worker counts, e.g. 1,2,4: the others show the model's error",
    "max_workers": f"predict 1, 2, 4, ... up to this many (default: {FURTHEST} x the most measured)",
    "hardware": "predict for another profile of conf/hardware, by its peaks, links and price "
    "(all: cost over time)",
    "network": "predict for another network: 10gbit,50us, or the name of a run of task allreduce",
    "deadline": "the cheapest number of workers that reaches the goal in time, e.g. 8h, 90min",
    "spot": "on spot nodes with this many interruptions an hour each, e.g. 0.05",
    "restart": "time from an interruption until training resumes, e.g. 3min (default: the runs' start-up)",
    "budget": "the fastest number of workers for this many USD",
    "task": "the task, if a study has several",
    "backend": "the backend, if a study has several (published runs: nccl, gloo, mpi)",
    "on": "the hardware profile, if a study has several",
    "plot": "write the curve with its band to this PNG file (hardware=all: cost over time)",
}
ELSEWHERE = ("hardware", "network", "spot", "restart", *(f"hardware.{name}" for name in source.RATES))
SETTINGS = {name: ("", meaning) for name, meaning in MEANINGS.items()} | OUTPUT_ROOT
SETTINGS |= {f"hardware.{name}": ("", "sets this field of the profile") for name in source.RATES}
# The columns by importance. A narrow terminal gets the first ones.
ORDER = ("workers", "predicted", "95 % interval", "measured")
ORDER += ("cost", "speed-up", "speed-up interval", "communication")
OFFER = ("hardware", "workers", "predicted", "95 % interval", "cost", "cost interval", "dominated")


def table(forecasts: Sequence[Forecast], measured: Mapping[int, str], width: int) -> str:
    """Return one line per worker count. Columns that do not fit into `width` are left out and named."""
    rows = [_cells(row) | {"measured": measured.get(row.workers, "")} for row in forecasts]
    filled = [name for name in ORDER if any(row[name] for row in rows)]
    shown = filled[: tables.fitting(filled, [[row[name] for row in rows] for name in filled], width)]
    text = _table([name for name in rows[0] if name in shown], rows)
    if hidden := filled[len(shown) :]:
        text += f"\n{width} columns have no room for: {', '.join(hidden)} (--json has all)"
    return text + ("\n* measured, but not fitted" if any("*" in cell for cell in measured.values()) else "")


def medians(everything: Measurements, fitted: Measurements) -> dict[int, str]:
    """Return the measured medians by worker count, starred if they were not fitted."""
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


SECTIONS = (
    (
        "STUDY",
        "The name of a study in output_root, the names of runs, or published:TASK with TASK one of "
        f"{', '.join(published_runs.TASKS)}: the runs that MLBench published in 2021. published:TABLE is a "
        "table or folder of others' results, published:imported those in output_root, published:mlperf the "
        "shipped ones: task= is then the benchmark, on= the system, hardware= another accelerator.",
    ),
    (
        "model",
        "A model is fitted to each phase of the measured runs: compute over the samples per worker, an "
        "all-reduce of latency and bandwidth inside and between nodes, what overlaps with backward, epochs "
        "to the goal over the global batch, and the time outside the batches. See docs/prediction.md. "
        "Runs with more workers than CPUs, or with any other caveat, are never fitted. An interval is a 95 % "
        f"prediction interval. If it is wider than a factor of {WIDE:g}, it is never advice.",
    ),
)
COMMAND = Command("predict", sections=lambda: SECTIONS, options=CONFIG_DIR)


@COMMAND.verb("", "STUDY ...", settings=SETTINGS, options=JSON)
def _predict(args: Args) -> int:
    r"""Predict time to accuracy, speed-up and cost on more workers from runs on a few.

    examples:
      mlbench predict scaling task=resnet20 deadline=8h
          Predicts one task of your study.
      mlbench predict published:gnmt hardware=gcp_a2_highgpu_1g \
          network=25gbit,30us
      mlbench predict published:gnmt workers=1,2,4
          Compares predictions with the runs of 8 and 16 workers.
    """
    if not args.arguments:
        raise UserError(
            "predict takes a study",
            hint="e.g. mlbench predict published:gnmt (mlbench results list prints yours)",
        )
    settings, name = args.settings, args.arguments[0].removeprefix(source.PUBLISHED)
    if args.arguments == [source.PUBLISHED + name] and published_records.is_source(name):
        found = published_records.results(name, args.output_root, warn)
        title, rows = published_systems.forecasts(found, settings, source.count)
        text = f"{title}\n\n{_table(published_systems.HEADINGS, rows)}"
        print(format.json_text({"title": title, "predictions": rows}) if args.json else text)
        return OK
    if settings["plot"] and Path(settings["plot"]).suffix != ".png":
        raise UserError(f"plot={settings['plot']} is not a PNG file", hint="write e.g. plot=prediction.png")
    everything, fit, other, wanted = _fitted(args)
    fitted = fit.measurements
    counts = source.worker_counts(fit, everything, wanted)
    deadline, budget = settings["deadline"], settings["budget"]
    limits = {
        "deadline": seconds("deadline", deadline) if deadline else None,
        "budget": source.positive("budget", budget, "an amount of USD") if budget else None,
    }
    if settings["hardware"] == "all":
        return _frontier(args, fit, counts, other, limits)
    forecasts = forecast.forecast(fit, counts, other)
    left_out, held_out = forecast.leave_one_out(fitted), forecast.held_out(fit, everything)
    old = forecast.old_price(other.hardware or fitted.hardware, date.today())
    answers = forecast.advise(forecasts, **limits, old=old)
    unseen = everything.only([k for k in everything.counts if k not in fitted.counts])
    conditions = " ".join(f"{name}={settings[name]}" for name in ELSEWHERE if settings[name])
    _draw(args, lambda: charts.chart(forecasts, fitted=fitted, held_out=unseen, conditions=conditions))
    emulated, doubt, ends = sentences.leading(fit, other, most=counts[-1], wanted=wanted)
    rest = [
        *sentences.basis(fit),
        *sentences.assumptions(fit, other),
        *sentences.holdouts(left_out, held_out),
    ]
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


def _fitted(args: Args) -> tuple[Measurements, Model, Target, int]:
    """Return all measurements, the model, for what it predicts, and up to how many workers."""
    settings = args.settings
    everything = source.measurements(args.arguments, args.output_root, settings)
    fitted = model.check(source.to_fit(everything, settings["workers"]))
    most = settings["max_workers"]
    wanted = source.count("max_workers", most) if most else FURTHEST * fitted.counts[-1]
    return everything, model.fit(fitted), source.target(settings, fitted, args.output_root), wanted


def rows(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the predictions of a command line, in the form of `--json`."""
    args = parse(COMMAND, words)
    if not args.arguments or args.settings["hardware"] == "all":
        raise UserError("mlbench.predict() takes a study and one profile", hint="hardware='gcp_n1_t4'")
    everything, fit, other, wanted = _fitted(args)
    forecasts = forecast.forecast(fit, source.worker_counts(fit, everything, wanted), other)
    return [dataclasses.asdict(row) for row in forecasts]


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
    ahead = [*filter(None, sentences.leading(fit, other, most=0, wanted=0))]
    rest = [*sentences.basis(fit), *sentences.assumptions(fit, other)]
    about = f"{runs.title}, fitted at {sentences.listed(runs.counts)} workers, bars are 95 % intervals"
    _draw(args, lambda: _frontier_chart(offers, f"Predicted cost and time to accuracy of {runs.task}", about))
    if args.json:
        plain = {"title": runs.title, "refused": refused, "sentences": [*ahead, *rest]}
        return _print_json(plain, offers=offers, advice=answers)
    rows = [
        {"hardware": offer.hardware, "dominated": "yes" if offer.dominated else ""} | _cells(offer.forecast)
        for offer in offers
    ]
    print("\n".join([runs.title, *ahead, "", _table(OFFER, rows), ""]))
    print("\n".join([*(answer.sentence for answer in answers), "", *sentences.refusals(refused), "", *rest]))
    return OK


def _frontier_chart(offers: Sequence[Offer], title: str, about: str) -> "alt.LayerChart":
    from mlbench.report.charts.frontier import frontier

    return frontier(charts.points(offers), title=title, about=about)


def _draw(args: Args, drawn: "Callable[[], alt.LayerChart]") -> None:
    if args.settings["plot"]:
        from mlbench.report import render  # Altair is for the chart alone

        render.save([drawn()], Path(args.settings["plot"]))


def _print_json(plain: dict[str, Any], **values: Sequence[Any]) -> int:
    rows = {name: [dataclasses.asdict(value) for value in some] for name, some in values.items()}
    print(format.json_text(plain | rows))
    return OK
