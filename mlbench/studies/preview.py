"""What a command would measure and about what that takes, as lines for people. Nothing is started."""

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from mlbench.clusters import connection, node, placement
from mlbench.config.division import task_title
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment, TrainingConfig
from mlbench.config.overrides import typed
from mlbench.datasets import arrow
from mlbench.launch import cache, execute
from mlbench.record import format, run_folders, study
from mlbench.record.attempts import trial_result
from mlbench.record.study import Study, StudyPoint
from mlbench.studies import sequential, session
from mlbench.studies.estimate import RunEstimate, estimates
from mlbench.studies.spec import SweepSpec, compose_points
from mlbench.tasks import registry
from mlbench.terminal import tables
from mlbench.terminal.result_card import WIDTH, wrapped

LABEL = 12  # columns of the first column
BY_FIRST_RUN = "made by the first run"
OWN_FILES = "your files, read when the run begins"
NOTHING = "dry run: no run was started, no file was written"


@dataclass(frozen=True)
class PointPlan:
    """One point of a study, how many of its runs exist, and about what one of the others takes."""

    point: StudyPoint
    finished: int
    estimate: RunEstimate
    refusal: str | None

    @property
    def missing(self) -> int:
        return 0 if self.refusal else len(self.point.seeds) - self.finished


def run(experiment: Experiment, overrides: Sequence[str]) -> list[str]:
    """Return the plan of one run. UserError for what `mlbench.run` would refuse."""
    if (refusal := session.refusal(experiment)) is not None:
        raise UserError(refusal)
    _check(experiment)
    (forecast,) = estimates([experiment], run_folders.readable(experiment.output_root))
    rows = [
        ("run", _headline(experiment)),
        ("goal", _goal(experiment)),
        ("data", _data(experiment)),
        *(("deviation", str(deviation)) for deviation in experiment.deviations),
        ("reused", _reused(experiment)),
        (
            "results",
            f"{experiment.output_root}, MLflow {experiment.plain()['tracking_uri'] or 'in the same folder'}",
        ),
        ("estimate", _total([(1, forecast)], experiment.hardware.name)),
        ("basis", forecast.basis),
    ]
    every = shlex.join(["mlbench", "run", *typed(overrides), "--cfg", "job"])
    lines = [line for label, text in rows for line in _row(label, text)]
    return [*lines, f"{'all values':{LABEL}}{every}", NOTHING]


def sweep(spec: SweepSpec) -> tuple[list[str], bool]:
    """Return the plan of a sweep, and whether a point is refused. Raises UserError like `mlbench.sweep`."""
    composed = compose_points(spec)
    result = session.load_results(spec)
    plan, wanted, _ = session.extended_plan(spec, result.study, composed)
    for experiment in wanted.values():
        _check(experiment)
    hashes = {key: _prepared(experiment) for key, experiment in wanted.items()}
    study.check_data(plan, hashes, output_root=result.output_root)
    points = _points(plan, wanted, result)
    hardware = ", ".join(sorted({experiment.hardware.name for experiment in wanted.values()}))
    lines = wrapped(f"study {plan.name}: {plan.question}", WIDTH)
    every = [each.point.overrides for each in points]
    shared = [word for word in every[0] if len(every) > 1 and all(word in overrides for overrides in every)]
    if shared:
        lines += wrapped(f"every point: {shlex.join(shared)}", WIDTH)
    lines += _table(points, shared)
    for each in points:
        if each.refusal:
            lines += wrapped(f"refused: {shlex.join(each.point.overrides)}: {each.refusal}", WIDTH)
    lines += _row("estimate", _total([(each.missing, each.estimate) for each in points], hardware))
    if spec.auto:
        more = f"repeats=auto adds seeds while the order is undecided, up to {sequential.MOST} a point"
        lines += _row("not in it", more)
    if spec.max_usd is not None:
        lines += _row("limit", f"max_usd={spec.max_usd:g}: no run starts that would exceed it")
    if spec.max_time_s is not None:
        lines += _row("limit", f"max_time={spec.max_time_s:g}s: no run starts that would end later")
    lines += _row("data", "; ".join(dict.fromkeys(map(_data, wanted.values()))))
    lines += _row("results", str(result.folder))
    return [*lines, NOTHING], any(each.refusal for each in points)


def _check(experiment: Experiment) -> None:
    """Raise UserError for what the command itself refuses before a worker starts. Write nothing."""
    execute.check_launcher(experiment)
    execute.check(experiment)
    execute.check_folder("output_root", experiment.output_root)
    if connection.shares_files(experiment) and _data(experiment).endswith((BY_FIRST_RUN, OWN_FILES)):
        execute.check_folder("data_root", experiment.data_root)


def configurations(spec: SweepSpec) -> Iterator[str]:
    """Yield the resolved configuration of every point as a YAML document."""
    composed = compose_points(spec)
    plan, wanted, _ = session.extended_plan(spec, session.load_results(spec).study, composed)
    for point in plan.points:
        if point.key in wanted:
            values = yaml.safe_dump(wanted[point.key].plain(), sort_keys=False)
            yield f"---\n# {shlex.join(point.overrides)}\n{values}"


def _points(plan: Study, wanted: Mapping[str, Experiment], result: session.StudyResult) -> list[PointPlan]:
    trials = [trial for trial in session.ordered_trials(plan) if trial.point.key in wanted]
    runs = study.attempts(trials, result.output_root)
    done = (trial for trial in trials if trial_result(runs[trial.id]) is not None)
    finished = Counter(trial.point.key for trial in done)
    points = [point for point in plan.points if point.key in wanted]
    measured = run_folders.readable(result.output_root)
    every = estimates((wanted[point.key] for point in points), measured)
    return [
        PointPlan(point, finished[point.key], estimate, session.refusal(wanted[point.key]))
        for point, estimate in zip(points, every, strict=True)
    ]


def _table(points: Sequence[PointPlan], shared: Sequence[str]) -> list[str]:
    """Return a row a point, and below it what the estimates are known from."""
    bases = list(dict.fromkeys(each.estimate.basis for each in points))
    rows = []
    for each in points:
        overrides = each.point.overrides
        label = shlex.join([word for word in overrides if word not in shared] or overrides)
        counts = map(str, (len(each.point.seeds), each.finished, each.missing))
        seconds = "?" if each.estimate.seconds is None else format.whole(each.estimate.seconds)
        rows.append([label, *counts, f"{seconds} [{bases.index(each.estimate.basis) + 1}]"])
    headings = ("point", "runs", "reused", "to measure", "one run about")
    right = [False, True, True, True, True]
    notes = [line for number, basis in enumerate(bases, start=1)
             for line in wrapped(f"[{number}] {basis}", WIDTH)]  # fmt: skip
    return [*tables.table(headings, rows, right=right).splitlines(), *notes]


def _total(runs: Sequence[tuple[int, RunEstimate]], hardware: str) -> str:
    """Return time and money of so many runs of each estimate, one after the other."""
    left = [(count, estimate) for count, estimate in runs if count]
    number = sum(count for count, _ in left)
    if not number:
        return "every run is finished"
    unknown = sum(count for count, estimate in left if estimate.seconds is None)
    seconds = math.fsum(count * (estimate.seconds or 0.0) for count, estimate in left)
    many = f" for {format.counted(number, 'run')}, one after the other" if number > 1 else ""
    text = f"about {format.whole(seconds)}{many}" if seconds else "unknown"
    if unknown and seconds:
        text += f", without {format.counted(unknown, 'run')} with unknown duration"
    costs = [count * estimate.usd for count, estimate in left if estimate.usd is not None]
    if costs:
        return f"{text}, about {format.usd(math.fsum(costs))} at the on-demand price"
    return f"{text}, not priced (hardware={hardware} has no price)" if seconds else text


def _headline(experiment: Experiment) -> str:
    workers = format.counted(experiment.workers, "worker")
    shared = ""
    if connection.shares_files(experiment) and experiment.backend.device == "cpu":
        cpus = node.usable_cpus()
        room = placement.worker_resources(experiment, [{"CPU": float(cpus)}])
        shared = f" x {format.counted(room.threads, 'thread')} on {format.counted(cpus, 'CPU')}"
        shared += " (oversubscribed: excluded from speed-ups)" if room.oversubscribed else ""
    seed = "a fresh seed" if experiment.seed is None else f"seed={experiment.seed}"
    groups = ("hardware", "cluster", "sync", "network")
    named = ", ".join(f"{group}={getattr(experiment, group).name}" for group in groups)
    named += f", launcher={experiment.launcher}" if experiment.launcher != "ray" else ""
    named += f", compile={experiment.compile}" if experiment.compile else ""
    task = experiment.task
    return (
        f"{task_title(task.name, experiment.deviations)} {experiment.scale}, recipe {task.recipe}, division "
        f"{experiment.division.name}, {workers}{shared}, {experiment.backend.name}, {named}, {seed}"
    )


def _goal(experiment: Experiment) -> str:
    task, goal = experiment.task, experiment.target
    text = f"{goal.metric} {format.target(goal, task.metric_unit)}" if goal else "none"
    if isinstance(task, TrainingConfig):
        text += f", at most {format.counted(task.epochs, 'epoch')}"
        text += f"; global batch {task.global_batch(experiment.workers):,}"
    return text


def _data(experiment: Experiment) -> str:
    task = experiment.task
    if task.dataset == registry.NO_DATASET:
        return (
            f"none: {'the script reads its data' if task.name == 'script' else 'every element is generated'}"
        )
    if registry.own_data(task):
        return OWN_FILES
    folder = experiment.data_root / task.dataset
    if not connection.shares_files(experiment):
        source = getattr(connection.load(experiment.cluster.name), "data_source", None)
        return source(experiment) if source else f"{folder} on every node"
    return f"{folder}, {'prepared' if _prepared(experiment) else BY_FIRST_RUN}"


def _prepared(experiment: Experiment) -> str | None:
    """Return the hash of the data set's manifest. None if it is not prepared, or not here."""
    task = experiment.task
    folder = experiment.data_root / task.dataset
    if (
        registry.own_data(task)
        or not connection.shares_files(experiment)
        or not (folder / arrow.MANIFEST).is_file()
    ):
        return None
    return arrow.manifest_hash(folder)


def _reused(experiment: Experiment) -> str:
    if experiment.force:
        return "none: force=true measures again"
    if experiment.seed is None:
        return "none: without seed=N every run is a new one"
    record = cache.find_cached(experiment, data=_prepared(experiment))
    if record is None:
        return f"none: no finished run has this configuration and seed={experiment.seed}"
    return f"{record.run_id} of {record.started_at[:16]} would be shown (force=true measures again)"


def _row(label: str, text: str) -> list[str]:
    lines = wrapped(text, WIDTH - LABEL)
    return [f"{'' if number else label:{LABEL}}{line}" for number, line in enumerate(lines)]
