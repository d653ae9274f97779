"""More workers than were measured: `python -m mlbench.predict STUDY` gives time, cost and their intervals."""

import dataclasses
import math
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from pydantic import ValidationError

from mlbench.experiment import format, plugins, record, run_folders, study
from mlbench.experiment.config import Hardware, choices
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.prediction import advice, explain, forecast, model
from mlbench.prediction.forecast import FURTHEST, Forecast, HoldoutError, Target
from mlbench.prediction.model import Network
from mlbench.prediction.published import PUBLISHED_TASKS, published_runs
from mlbench.prediction.runs import Measurements, check, from_records
from mlbench.terminal import tables
from mlbench.terminal.args import JSON, OK, Args, Command, Verb, paragraph, run_command

WIDEST = 110  # columns of a sentence; longer lines are hard to read
PUBLISHED = "published:"
PUBLISHED_ON = "gcp_n1_t4"  # the profile of the node of the published runs
SETTINGS = {
    "workers": ("", "fit only these measured worker counts, e.g. 1,2,4; the others show the model's error"),
    "max_workers": (
        "",
        f"predict 1, 2, 4, ... up to this many; without it {FURTHEST} x the most measured",
    ),
    "hardware": ("", "predict for another profile of conf/hardware: speed by stated peaks, and its price"),
    "network": ("", "predict for another network: 10gbit,50us, or the name of a run of task allreduce"),
    "deadline": ("", "the cheapest number of workers that reaches the goal in time, e.g. 8h, 90min"),
    "budget": ("", "the fastest number of workers for this many USD"),
    "task": ("", "of a study of several tasks, this one"),
    "backend": ("", "of a study of several backends, this one; published runs: nccl, gloo, mpi"),
    "on": ("", "of a study of several hardware profiles, this one"),
    "plot": ("", "write the curve with its band to this PNG file"),
    "output_root": ("runs", "the folder that has the runs and studies"),
}


def main(argv: Sequence[str]) -> int:
    """Run the command line; return its exit code."""
    return run_command(COMMAND, argv)


def _predict(args: Args) -> int:
    """Fit, predict and print."""
    if not args.words:
        raise UserError("predict takes a study", hint="python -m mlbench.predict --help")
    everything = _measurements(args)
    fitted = check(_chosen(everything, args.settings["workers"]))
    fit = model.fit(fitted)
    target = _target(args)
    most = args.settings["max_workers"]
    furthest = _count("max_workers", most) if most else FURTHEST * fitted.counts[-1]
    counts = _counts(fit, everything, furthest)
    found = forecast.forecast(fit, counts, target)
    errors = forecast.leave_one_out(fitted)
    held_out = forecast.held_out(fit, everything)
    deadline, budget = args.settings["deadline"], args.settings["budget"]
    answers = advice.advise(
        found,
        deadline=advice.parse_deadline(deadline) if deadline else None,
        budget=advice.parse_budget(budget) if budget else None,
    )
    if args.settings["plot"]:
        as_measured = target == Target()
        unseen = [k for k in everything.counts if k not in fitted.counts]
        chart = explain.chart(found, fitted=fitted, held_out=everything.only(unseen) if as_measured else None)
        from mlbench.report import render  # Altair is for the chart alone

        render.save([chart], Path(args.settings["plot"]))
    sentences = [*explain.basis(fit), *explain.target(fit, target), explain.left_out(errors)]
    if held_out:
        sentences.append(explain.held_out(held_out))
    if args.json:
        print(_json(fit, found, errors=errors, held_out=held_out, answers=answers, sentences=sentences))
        return OK
    print(f"{everything.title}\n\n{_table(found, _measured_times(everything, fitted, target))}\n")
    width = min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else sys.maxsize
    for sentence in (*(one.sentence for one in answers), "", *sentences):
        print(textwrap.fill(sentence, width, break_on_hyphens=False))
    return OK


def _measurements(args: Args) -> Measurements:
    """Return what was measured, under the names that the user gave."""
    first = args.words[0]
    if first.startswith(PUBLISHED):
        if len(args.words) > 1:
            raise UserError(f"{first} cannot be put together with {args.words[1]}", hint="give one of them")
        backend = args.settings["backend"] or "nccl"
        task = first.removeprefix(PUBLISHED)
        return published_runs(task, backend=backend, profile=_hardware(PUBLISHED_ON))
    plan = study.load(study.folder(args.output_root, first)) if len(args.words) == 1 else None
    found = study.records(plan, args.output_root) if plan else [_run(n, args) for n in args.words]
    wanted = {group: args.settings[name] for group, name in _FILTERS.items() if args.settings[name]}
    kept = [one for one in found if all(getattr(one.experiment, g).name == n for g, n in wanted.items())]
    return from_records(kept, title=" ".join(args.words))


_FILTERS = {"task": "task", "backend": "backend", "hardware": "on"}  # group of the experiment: setting


def _run(word: str, args: Args) -> Record:
    """Return the record of one run, by its name or by a part that no other run has."""
    return record.load(run_folders.folder(args.output_root, word) / "record.json")


def _chosen(everything: Measurements, counts: str) -> Measurements:
    if not counts:
        return everything
    wanted = [_count("workers", word) for word in counts.split(",")]
    missing = [k for k in wanted if k not in everything.counts]
    if missing:
        have = ", ".join(map(str, everything.counts))
        raise UserError(f"{format.counted(missing[0], 'worker')} was not measured", hint=f"measured: {have}")
    return everything.only(wanted)


def _target(args: Args) -> Target:
    name, over = args.settings["hardware"], args.settings["network"]
    hardware = _hardware(name) if name else None
    if not over:
        return Target(hardware)
    if any(args.output_root.glob(f"*{over}*/record.json")):
        return Target(hardware, Network.of_table(over, _run(over, args).table))
    return Target(hardware, Network.stated(over))


def _hardware(name: str) -> Hardware:
    known = choices("hardware")
    if name not in known:
        raise UserError(f"hardware={name} is unknown", hint=f"choose from {', '.join(known)}")
    try:
        return Hardware.model_validate(yaml.safe_load(plugins.files("hardware")[name].read_text()))
    except (yaml.YAMLError, ValidationError) as error:
        raise UserError(f"conf/hardware/{name}.yaml is not a hardware profile") from error


def _count(name: str, word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise UserError(f"{name}={word} is not a number of workers", hint=f"e.g. {name}=16")
    return int(word)


def _counts(fit: model.Model, everything: Measurements, most: int) -> list[int]:
    """Return powers of two and the measured counts, up to `most` and to one sample a worker."""
    most = int(min(most, fit.most_workers))
    powers = {2**i for i in range(most.bit_length()) if 2**i <= most}
    return sorted(powers | {k for k in everything.counts if k <= most} | {most})


def _measured_times(everything: Measurements, fitted: Measurements, target: Target) -> dict[int, str]:
    """Return the measured medians, starred where not fitted; none where the target was not measured."""
    if target != Target():
        return {}
    said = {k: median(everything.times(k)) for k in everything.counts}
    return {
        k: (format.duration(s) if math.isfinite(s) else "missed") + ("" if k in fitted.counts else " *")
        for k, s in said.items()
    }


def _table(found: Sequence[Forecast], measured: dict[int, str]) -> str:
    rows = [_row(one, measured.get(one.workers, "")) for one in found]
    shown = [name for name in rows[0] if any(row[name] for row in rows)]
    table = tables.table(shown, [[row[name] for name in shown] for row in rows], right=[True] * len(shown))
    return table + ("\n* measured, but not fitted" if any("*" in cell for cell in measured.values()) else "")


def _row(one: Forecast, measured: str) -> dict[str, str]:
    """Return the cells of a line by their heading; a column that is empty in all lines is left out."""
    cost = one.cost_usd
    return {
        "workers": f"{one.workers:,}",
        "measured": measured,
        "predicted": format.duration(one.time_s.value),
        "95 % of runs": _ends(one.time_s, format.duration),
        "speed-up": f"{one.speedup.value:.2f}",
        "95 %": _ends(one.speedup, lambda value: f"{value:.2f}"),
        "cost": format.usd(cost.value) if cost else "",
        "communication": format.percent(one.communication_share),
    }


def _ends(estimate: forecast.Interval, text: Callable[[float], str]) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{text(estimate.low)} to {text(estimate.high)}"


def _json(
    fit: model.Model,
    found: Sequence[Forecast],
    *,
    errors: list[HoldoutError],
    held_out: list[HoldoutError],
    **said: Any,
) -> str:
    values = {
        "title": fit.measurements.title,
        "fitted_workers": fit.measurements.counts,
        "predictions": [dataclasses.asdict(one) for one in found],
        "leave_one_out": [dataclasses.asdict(one) for one in errors],
        "held_out": [dataclasses.asdict(one) for one in held_out],
        "advice": [dataclasses.asdict(one) for one in said["answers"]],
        "sentences": said["sentences"],
    }
    return format.json_text(values)


def _sections() -> Iterator[tuple[str, str]]:
    yield (
        "STUDY",
        paragraph(
            "The name of a study in output_root, the names of runs, or published:TASK with TASK one of "
            f"{', '.join(PUBLISHED_TASKS)}: the runs that MLBench published in 2021.",
            indent=2,
        ),
    )
    yield (
        "model",
        paragraph(
            "A model is fitted to each phase of the measured runs: compute over the samples per worker, an "
            "all-reduce of latency and bandwidth, what overlaps with backward, epochs to the goal over the "
            "global batch, and the time outside the batches. docs/prediction.md explains it. Runs with more "
            "workers than CPUs, or with any other caveat, are never fitted. An interval is a 95 % prediction "
            "interval; it is wide where the runs say little.",
            indent=2,
        ),
    )


PROGRAM = "python -m mlbench.predict"
COMMAND = Command(
    "predict",
    "Predict time to accuracy, speedup and cost on more workers from runs on a few.",
    {
        "": Verb(
            _predict,
            "prediction",
            words="STUDY",
            settings=SETTINGS,
            options=JSON,
            examples=(
                (f"{PROGRAM} scaling task=resnet20 deadline=8h", "One task of a study of your own."),
                (f"{PROGRAM} published:gnmt hardware=gcp_a2_highgpu_1g \\\n      network=25gbit,30us", ""),
                (f"{PROGRAM} published:gnmt workers=1,2,4", "What the model says of 8 and 16 workers."),
            ),
        )
    },
    sections=_sections,
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
