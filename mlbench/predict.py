"""More workers than were measured: `python -m mlbench.predict STUDY` says how long, how dear, how sure."""

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from pydantic import ValidationError

from mlbench.experiment import attempts, format, record, run_folders, study
from mlbench.experiment.config import CONF, Hardware, choices
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import Record
from mlbench.prediction import advice, explain, forecast, holdout, model, network, published
from mlbench.prediction.forecast import Forecast, Target
from mlbench.prediction.holdout import LeftOut
from mlbench.prediction.runs import Measurements, check, from_records
from mlbench.terminal import command

PUBLISHED = "published:"
PUBLISHED_ON = "gcp_n1_t4"  # the profile of the node of the published runs
SETTINGS = {
    "workers": (
        "",
        "fit these measured worker counts only, e.g. 1,2,4; the others show how far off the model is",
    ),
    "max_workers": ("1024", "predict 1, 2, 4, ... up to this many"),
    "hardware": ("", "predict for another profile of conf/hardware: speed by stated peaks, and its price"),
    "network": ("", "predict for another network: 10gbit,50us, or the name of a run of task allreduce"),
    "deadline": ("", "which workers reach the goal in time, at least cost, e.g. 8h, 90min"),
    "budget": ("", "which workers reach the goal soonest for so many USD"),
    "task": ("", "of a study of several tasks, this one"),
    "backend": ("", "of a study of several backends, this one; published runs: nccl, gloo, mpi"),
    "on": ("", "of a study of several hardware profiles, this one"),
    "plot": ("", "write the curve with its band to this PNG file"),
    "output_root": ("runs", "where the runs and studies lie"),
}
HELP = f"""
STUDY is the name of a study below output_root, the names of runs, or published:TASK with TASK one of
{", ".join(published.SHAPES)}: the runs that MLBench published in 2021.

A model is fitted to each phase of the measured runs: compute over the samples of a worker, an all-reduce of
latency and bandwidth, what hides behind backward, epochs to the goal over the global batch, and the time
outside the batches. docs/prediction.md explains it. Runs with more workers than CPUs, and runs with any other
caveat, are never fitted. An interval holds 95 % of further runs; it is wide where the runs say little.

Examples:
  python -m mlbench.predict scaling task=resnet20 deadline=8h      one task of a study of your own
  python -m mlbench.predict published:gnmt hardware=gcp_a2_highgpu_1g network=25gbit,30us
  python -m mlbench.predict published:gnmt workers=1,2,4           what the model says of 8 and 16 workers
"""


@dataclasses.dataclass(frozen=True)
class Asked:
    """The command line, read."""

    names: list[str]
    settings: dict[str, str]
    json: bool

    @property
    def output_root(self) -> Path:
        return Path(self.settings["output_root"])


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code."""

    def body() -> int:
        with command.readers_may_leave():
            _answer(_parse(arguments))
        return 0

    return command.ended(body)


def _parse(arguments: Sequence[str]) -> Asked:
    parser = argparse.ArgumentParser(
        prog="python -m mlbench.predict",
        usage="python -m mlbench.predict STUDY [name=value ...] [--json]",
        description="Predict time to accuracy, speed-up and cost from runs on a few workers.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Settings:\n"
        + "\n".join(f"  {name + '=' + default:<18} {about}" for name, (default, about) in SETTINGS.items())
        + "\n"
        + HELP,
    )
    parser.add_argument("words", nargs="*", metavar="STUDY", help="what was measured")
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    read = parser.parse_intermixed_args(arguments)  # settings may follow --json
    settings = {name: default for name, (default, _) in SETTINGS.items()}
    names = []
    for word in read.words:
        name, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif name in settings:
            settings[name] = value
        else:
            raise UserError(f"{name} is unknown", hint=f"choose from {', '.join(settings)}")
    if not names:
        raise UserError("predict takes a study", hint="python -m mlbench.predict --help")
    return Asked(names, settings, read.json)


def _answer(asked: Asked) -> None:
    """Fit, predict and print."""
    everything = _measurements(asked)
    fitted = check(_chosen(everything, asked.settings["workers"]))
    fit = model.fit(fitted)
    target = _target(asked)
    counts = _counts(fit, everything, _count("max_workers", asked.settings["max_workers"]))
    found = forecast.forecast(fit, counts, target)
    errors = holdout.leave_one_out(fitted)
    held_out = holdout.held_out(fit, everything)
    deadline, budget = asked.settings["deadline"], asked.settings["budget"]
    answers = advice.advise(
        found,
        deadline=advice.seconds(deadline) if deadline else None,
        budget=advice.dollars(budget) if budget else None,
    )
    if asked.settings["plot"]:
        as_measured = target == Target()
        unseen = [k for k in everything.counts if k not in fitted.counts]
        path = Path(asked.settings["plot"])
        chart = explain.chart(found, fitted=fitted, held_out=everything.only(unseen) if as_measured else None)
        from mlbench.report import render  # Altair is for the chart alone

        try:
            render.save([chart], path)
        except OSError as error:
            raise UserError(
                f"cannot write {path}: {error.strerror}", hint="give another plot=PATH"
            ) from error
    sentences = [*explain.basis(fit), *explain.target(fit, target), explain.left_out(errors)]
    if held_out:
        sentences.append(explain.held_out(held_out))
    if asked.json:
        print(_json(fit, found, errors=errors, held_out=held_out, answers=answers, sentences=sentences))
        return
    print(f"{everything.title}\n\n{_table(found, _measured_times(everything, fitted, target))}\n")
    print("\n".join([*(one.sentence for one in answers), "", *sentences]))


def _measurements(asked: Asked) -> Measurements:
    """Return what was measured, under the names that the user gave."""
    first = asked.names[0]
    if first.startswith(PUBLISHED):
        if len(asked.names) > 1:
            raise UserError(f"{first} cannot be put together with {asked.names[1]}", hint="give one of them")
        backend = asked.settings["backend"] or "nccl"
        return published.measurements(
            first.removeprefix(PUBLISHED), backend=backend, profile=_hardware(PUBLISHED_ON)
        )
    plan = study.load(study.folder(asked.output_root, first)) if len(asked.names) == 1 else None
    found = (
        attempts.results(study.records(plan, asked.output_root))
        if plan
        else [_run(n, asked) for n in asked.names]
    )
    wanted = {group: asked.settings[name] for group, name in _FILTERS.items() if asked.settings[name]}
    kept = [one for one in found if all(one.experiment[g]["name"] == n for g, n in wanted.items())]
    return from_records(kept, title=" ".join(asked.names))


_FILTERS = {"task": "task", "backend": "backend", "hardware": "on"}  # group of the experiment: setting


def _run(word: str, asked: Asked) -> Record:
    """Return the record of one run, by its name or by a part that no other run has."""
    paths = sorted(asked.output_root.glob("*/record.json"))
    found = [p for p in paths if p.parent.name == word] or [p for p in paths if word in p.parent.name]
    if len(found) != 1:
        what = f"{len(found)} runs are" if found else "no study and no finished run is"
        raise UserError(
            f"{what} called {word!r} below {asked.output_root}",
            hint=run_folders.results_command("list", asked.output_root),
        )
    try:
        return record.load(found[0])
    except ValueError as error:
        raise UserError(f"{found[0]} is damaged or of another version of mlbench") from error


def _chosen(everything: Measurements, counts: str) -> Measurements:
    if not counts:
        return everything
    wanted = [_count("workers", word) for word in counts.split(",")]
    missing = [k for k in wanted if k not in everything.counts]
    if missing:
        have = ", ".join(map(str, everything.counts))
        raise UserError(f"{format.counted(missing[0], 'worker')} was not measured", hint=f"measured: {have}")
    return everything.only(wanted)


def _target(asked: Asked) -> Target:
    name, over = asked.settings["hardware"], asked.settings["network"]
    hardware = _hardware(name) if name else None
    if not over:
        return Target(hardware)
    if any(asked.output_root.glob(f"*{over}*/record.json")):
        return Target(hardware, network.of_table(over, _run(over, asked).table))
    return Target(hardware, network.stated(over))


def _hardware(name: str) -> Hardware:
    known = choices("hardware")
    if name not in known:
        raise UserError(f"hardware={name} is unknown", hint=f"choose from {', '.join(known)}")
    try:
        return Hardware.model_validate(yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text()))
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
    kept = [name for name in rows[0] if any(row[name] for row in rows)]
    lines = [kept, *([row[name] for name in kept] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)
    return table + ("\n* measured, but not fitted" if any("*" in said for said in measured.values()) else "")


def _row(one: Forecast, measured: str) -> dict[str, str]:
    """Return the cells of a line by their heading; a column that is empty in all lines is left out."""
    cost = one.cost_usd
    return {
        "workers": f"{one.workers:,}",
        "measured": measured,
        "predicted": format.duration(one.time_s.value),
        "95 % of runs": _ends(one.time_s, format.duration),
        "speed-up": f"{one.speed_up.value:.2f}",
        "95 %": _ends(one.speed_up, lambda value: f"{value:.2f}"),
        "cost": format.usd(cost.value) if cost else "",
        "communication": format.percent(one.communication_share),
    }


def _ends(estimate: forecast.Estimate, said: Any) -> str:
    if estimate.low is None or estimate.high is None:
        return ""
    return f"{said(estimate.low)} to {said(estimate.high)}"


def _json(
    fit: model.Model,
    found: Sequence[Forecast],
    *,
    errors: list[LeftOut],
    held_out: list[LeftOut],
    **said: Any,
) -> str:
    values = {
        "title": fit.measurements.title,
        "fitted_workers": fit.measurements.counts,
        "predictions": [dataclasses.asdict(one) for one in found],
        "leave_one_out": [dataclasses.asdict(one) for one in errors],
        "held_out": [dataclasses.asdict(one) for one in held_out],
        "advice": [dataclasses.asdict(one) for one in said["answers"]],
        "noise": {"seconds": fit.sigma, "epochs": fit.epochs_sigma},
        "sentences": said["sentences"],
    }
    return json.dumps(_finite(values), indent=2, allow_nan=False)


def _finite(value: Any) -> Any:
    """Return JSON types, null for the infinite time of a missed goal, for which JSON has no word."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
