"""Convert published results to records: each run, or each row of a table, marked as not measured here."""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import mlbench
from mlbench.analysis import published_results, systems
from mlbench.analysis.published_results import Evaluation, Published, PublishedResult, PublishedRun
from mlbench.config import compose
from mlbench.config.errors import ResultError
from mlbench.config.experiment import Experiment
from mlbench.config.goal import Goal
from mlbench.record import run_folders
from mlbench.record.record import Record, RecordedTask, Validation

BY = "published by "  # begins the source of such records
EXTRA = "published"  # the part of a record that holds the result
TASK = "script"  # a task without a reference: the recipe is the benchmark
UNKNOWN = "unknown"
SHIPPED, IMPORTED = "mlperf", "imported"  # in the place of a file or folder


def records(published: Published) -> list[Record]:
    """Return a record a run, or one with the mean time for a result without known runs."""
    result = published.result
    mean = PublishedRun("mean", 60 * result.minutes_mean_of_middle, True, samples=result.samples_to_goal)
    return [_record(result, run, known=bool(published.runs)) for run in published.runs or (mean,)]


def result_of(record: Record) -> PublishedResult | None:
    """Return the published result that a record is of, or None if the run was measured."""
    values = record.extras.get(EXTRA)
    return PublishedResult(**values) if values and record.source.startswith(BY) else None


def is_source(name: str) -> bool:
    """Return whether `results` finds something under this name."""
    return name in (SHIPPED, IMPORTED) or bool(name) and Path(name).exists()


def results(name: str, output_root: Path, complain: Callable[[str], object]) -> list[PublishedResult]:
    """Return the results of a file or folder, those below output_root, or the shipped ones, by name."""
    if name == SHIPPED:
        return list(published_results.shipped())
    if name == IMPORTED:
        found = map(result_of, run_folders.readable(output_root, complain))
        return list(dict.fromkeys(row for row in found if row))
    paths = published_results.paths([Path(name)])
    return [one.result for path in paths for one in published_results.read(path)]


def write(record: Record, output_root: Path) -> str:
    """Write a record's folder. Return "imported", or "present" if it was there."""
    folder = output_root / record.run_id
    if (folder / "record.json").exists():
        return "present"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResultError(
            f"cannot write {folder}: {error.strerror}", hint="give another output_root"
        ) from error
    record.save(folder)
    return "imported"


def _record(result: PublishedResult, run: PublishedRun, *, known: bool) -> Record:
    workers = max(1, result.accelerators)
    reached = "goal_reached" if run.reached else "goal_not_reached"
    caveats = [f"{BY}{result.submitter}, not measured here: {result.source}; licence: {result.licence}"]
    if not known:
        of = f"{result.runs} of {result.of} runs" if result.of > 1 else "one run"
        caveats.append(f"its time is the published mean of {of}")
    values = {name: None for name in Record.model_fields}
    values |= dict.fromkeys(("deviations", "warnings", "intervals", "restarts", "nodes", "table"), [])
    values |= dict.fromkeys(("startup", "phases", "outside", "step_s", "ray", "software"), {})
    values |= {name: field.default for name, field in Record.model_fields.items() if not field.is_required()}
    key = _digest(*asdict(replace(result, source="", licence="")).values())
    begun = datetime.fromtimestamp(run.begun, UTC)
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{result.benchmark}-{result.system}")
    values |= {
        "source": f"{BY}{result.submitter}",
        "run_id": f"{begun:%Y-%m-%dT%H%M%S}-published-{name}-w{workers}-{_digest(key, run.name)[:6]}",
        "key": key,
        "mlbench": mlbench.__version__,
        "command": "",
        "experiment": _experiment(result, workers),
        "eligible": False,
        "official_reasons": caveats[:1],
        "status": reached,
        "goal": _goal(result),
        "seed": 0,
        "workers": workers,
        "oversubscribed": False,
        "caveats": caveats,
        "started_at": begun.isoformat(timespec="milliseconds"),
        "ended_at": datetime.fromtimestamp(run.begun + run.seconds, UTC).isoformat(timespec="milliseconds"),
        "wall": run.seconds,
        "time_to_accuracy": run.seconds if run.reached else None,
        "best": float(run.reached),
        "epochs": 0.0,
        "steps": 0,
        "samples": round(run.samples or 0),
        "sample_unit": "samples",
        "samples_per_s": run.samples / run.seconds if run.samples else None,
        "validations": _validations(run, _goal(result).metric),
        "extras": {EXTRA: asdict(result)},
    }
    return Record.model_validate(values)


def _goal(result: PublishedResult) -> Goal:
    """Return the goal of a result's publisher: a metric that is 1 once it was reached."""
    return Goal(f"goal of {result.benchmark}", 1.0, "max")


def _experiment(result: PublishedResult, workers: int) -> Experiment:
    """Return the known part of the configuration, in the form of a script's."""
    experiment = compose.compose([f"task={TASK}", "task.path=none", f"workers={workers}", "goal=none"])
    task = experiment.task.model_dump()
    task |= {"recipe": result.benchmark, "dataset": result.benchmark, "metric": _goal(result).metric}
    node = result.accelerators_per_node
    hardware = experiment.hardware.model_copy(
        update={
            "name": systems.accelerator(result.accelerator).name.replace(" ", "_") or UNKNOWN,
            "description": f"{result.system} of {result.submitter}",
            "gpus": node or 0,
            "gpu_model": result.accelerator or None,
            "workers_per_node": node,
        }
    )
    unknown = {"name": UNKNOWN}
    parts = {name: getattr(experiment, name).model_copy(update=unknown) for name in ("backend", "sync")}
    parts |= {"task": RecordedTask(**task), "hardware": hardware, "scale": "official"}
    return experiment.model_copy(update=parts)


def _validations(run: PublishedRun, goal: str) -> list[Validation]:
    """Return the evaluations that the log has, at least the one that ended the run."""
    evaluations = run.evaluations or (Evaluation(run.seconds, None, None),)
    return [
        Validation(
            epoch=0.0,
            step=0,
            elapsed=run.seconds if one is evaluations[-1] else one.seconds,
            wall=run.begun + one.seconds,
            train_loss=None,
            metrics={goal: float(run.reached and one is evaluations[-1]), "evaluation": one.value},
            goal_reached=run.reached and one is evaluations[-1],
        )
        for one in evaluations
    ]


def _digest(*values: object) -> str:
    return hashlib.sha256(json.dumps(list(map(str, values))).encode()).hexdigest()[:16]
