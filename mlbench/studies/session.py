"""A study of many runs: what `mlbench sweep` and the pipelines call.

`measure` has three steps. It composes and validates every point once (spec.py), then extends the plan
(record/study.py), and has Ray Tune run what is missing (tune.py). `publish` writes the report and the parent
run in MLflow.
"""

import hashlib
import os
import platform
import secrets
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mlbench import clock
from mlbench.analysis.bootstrap import LEVEL
from mlbench.clusters import connection, persistent, placement, ray_env
from mlbench.config import compose, libraries
from mlbench.config.credentials import without_credentials
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import cache, execute, remote_run, signals
from mlbench.launch.watch import SERVERS_POLL_S, starting
from mlbench.record import events, format, run_folders, study
from mlbench.record.attempts import trial_result
from mlbench.record.record import FINISHED, Record
from mlbench.record.study import Study, Trial
from mlbench.studies import sequential
from mlbench.studies.budget import Budget
from mlbench.studies.spec import (
    Points,
    SweepSpec,
    compose_points,
    plan_experiments,
    require_measurable,
    require_same_study,
    sample_of,
)
from mlbench.tasks import registry
from mlbench.terminal import show
from mlbench.terminal.sweep_view import PointProgress, SweepView
from mlbench.tracking import parent_runs, sync

if TYPE_CHECKING:
    from mlbench.report import writer

POLL_S = 0.5  # s between two looks at the study's log
LOST_S = 15.0  # s that the current run has to end without Ray, which ends this process after a minute


@dataclass
class StudyResult:
    """How a sweep ended. `unmeasured` has a sentence for every trial without a result."""

    study: Study
    folder: Path
    store: str  # tracking URI
    records: list[Record] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def output_root(self) -> Path:
        return self.folder.parent.parent


@dataclass(frozen=True)
class _Sweep:
    """One call of `measure`: `wanted` and `experiments`, which are those of the whole plan, are by key."""

    spec: SweepSpec
    result: StudyResult
    wanted: Mapping[str, Experiment]
    experiments: Mapping[str, Experiment]
    progress: SweepView


View = Callable[[Sequence[PointProgress]], SweepView]


def measure(spec: SweepSpec, *, view: View = SweepView) -> StudyResult:
    """Measure what the study lacks. UserError lists every fault before anything runs.

    `view`: returns what shows the progress of the points.
    """
    libraries.require("ray", *libraries.DRAWING, user="a sweep")
    composed = compose_points(spec)
    result = load_results(spec)
    with study.locked(result.folder):
        before = study.load(result.folder) or result.study
        plan, wanted, every = extended_plan(spec, before, composed)
        data = {name: execute.check_data(experiment) for name, experiment in wanted.items()}
        study.check_data(plan, data, output_root=result.output_root)
        result.study = plan
        study.save(plan, result.folder)
        known_before = {trial.id for trial in study.trials(before)}
        drawn = {t.id for t in study.trials(plan) if t.id not in known_before and t.seed in t.point.drawn}
        old = {t.id for t in study.trials(plan) if t.point.key in wanted} - drawn
        runs = _attempts(result, every, old=old)
        new = plan.points[len(before.points) :] if before.points else ()
        added = [shlex.join(point.overrides) for point in new]
        _run_missing(result, wanted, every, runs=runs, spec=spec, added=added, view=view)
        result.records = study.records(result.study, result.output_root)
        # At the level of the page, whose answer is shown next to the note.
        ended = spec.auto and not result.interrupted
        if ended and (left := sequential.undecided(result.records, level=LEVEL)):
            points = format.counted(len(left), "point")
            why = "max_usd= or max_time= is spent, a seed of theirs has no result, or they have the "
            why += f"{sequential.MOST} seeds of repeats=auto"
            result.notes.append(f"the order of {points} is undecided: {why}")
        if result.interrupted:
            with _mlflow_may_fail(result):
                parent_runs.kill(result.study, output_root=result.output_root, uri=result.store)
    return result


def extended_plan(
    spec: SweepSpec, before: Study, composed: Points
) -> tuple[Study, dict[str, Experiment], dict[str, Experiment]]:
    """Return the plan with what the spec adds to it, the experiments that it needs, and all of the plan.

    The experiments are by key. `composed` is what `compose_points` made of the spec. UserError lists every
    fault. Nothing is written.
    """
    experiments, grids = composed
    plan = before
    for (parsed, invocation), points in zip(spec.grids, grids, strict=True):
        plan = study.extended(plan, points, invocation=invocation, seeds=parsed.seeds)
    every = plan_experiments(plan, experiments, spec)
    study.check_versions(plan, every)
    wanted = experiments or every
    require_measurable(wanted, spec)
    require_same_study(before, wanted, every, spec)
    return plan, wanted, every


def load_results(spec: SweepSpec) -> StudyResult:
    """Return what the study on disk has. One that was not begun has nothing."""
    sample = sample_of(spec.output_settings)
    output_root = sample.output_root.absolute()
    folder = study.folder(output_root, spec.name)
    plan = study.load(folder) or study.new(spec.name, question=spec.question)
    return StudyResult(plan, folder, sample.store, study.records(plan, output_root))


def prepare(spec: SweepSpec) -> None:
    """Make the data sets of all points, official ones too. Raises UserError for what cannot be measured."""
    _, wanted, _ = extended_plan(spec, load_results(spec).study, compose_points(spec))
    for experiment in wanted.values():
        if experiment.task.dataset != registry.NO_DATASET:
            registry.load(experiment.task.name).prepare(experiment.task, experiment.data_root.absolute())


def ordered_trials(plan: Study) -> list[Trial]:
    """Return all trials in the order in which they run.

    Every repeat is a block that has all points once, in a random order. So a slow drift of the machine
    favours no point, and a study that stops early is balanced. The order is that of a hash of order_seed,
    repeat and key: random, the same after a restart, and unmoved by points that come later.
    """

    def order(trial: Trial) -> tuple[int, bytes]:
        text = f"{plan.order_seed}/{trial.repeat}/{trial.point.key}"
        return trial.repeat, hashlib.sha256(text.encode()).digest()

    return sorted(study.trials(plan), key=order)


def _run_missing(
    result: StudyResult,
    wanted: Mapping[str, Experiment],
    experiments: Mapping[str, Experiment],
    *,
    runs: Mapping[str, Sequence[Record]],
    spec: SweepSpec,
    added: Sequence[str],
    view: View,
) -> None:
    """Run the trials of the wanted points that have no finished run yet. `runs` are all attempts by trial."""
    plan = result.study
    planned = [trial for trial in ordered_trials(plan) if trial.point.key in wanted]
    results = {trial.id: trial_result(runs[trial.id]) for trial in planned}
    missing = [trial for trial in planned if results[trial.id] is None]
    if spec.auto and not missing:
        missing = _more_seeds(wanted, experiments, {"max_usd": spec.max_usd}, result)
        planned, results = [*planned, *missing], results | {trial.id: None for trial in missing}
    result.unmeasured += [
        f"{shlex.join(trial.overrides)}: failed: {format.last_line(run.error or '')} "
        f"({run.run_id}; it counts as missed, even if the seed runs again)"
        for trial in planned
        if (run := results[trial.id]) is not None and run.status == "failed"
    ]
    budget = Budget(experiments, (run for some in runs.values() for run in some), max_usd=spec.max_usd)
    rows: dict[str, PointProgress] = {}
    for trial in planned:
        point = rows.setdefault(trial.point.key, PointProgress(shlex.join(trial.point.overrides), runs=0))
        point.runs += 1
        if (record := results[trial.id]) is not None and record.status in FINISHED:
            point.records.append(record)
    with view(list(rows.values())) as progress:
        sweep = _Sweep(spec, result, wanted, experiments, progress)
        progress.say(f"study {plan.name}: {plan.question}")
        if added:
            progress.say(f"adds {format.counted(len(added), 'point')} to the study: {'; '.join(added)}")
        runs_in_all = format.counted(len(planned), "run")
        points = format.counted(len(wanted), "point")
        progress.say(f"{points}, {runs_in_all}, {progress.done} of them finished")
        progress.spent = budget.spent
        keys = dict.fromkeys(trial.point.key for trial in missing)
        never = {key: why for key in keys if (why := refusal(wanted[key])) is not None}  # Ray is not needed
        missing = _feasible(missing, never, sweep)
        if missing:
            sample = wanted[missing[0].point.key]
            cluster = _submitting if remote_run.takes(sample.cluster.name) else _joined
            with cluster(missing, sweep) as (missing, sweep):
                if missing:
                    _run(missing, sweep, budget)


@contextmanager
def _joined(missing: Sequence[Trial], sweep: _Sweep) -> Iterator[tuple[list[Trial], _Sweep]]:
    """Join the cluster. Yield the trials that fit on it."""
    sample = sweep.wanted[missing[0].point.key]
    sweep.progress.say(connection.beginning(sample))
    with ExitStack() as cluster:
        with starting(partial(_give_up, sweep.progress)):
            host = cluster.enter_context(connection.join(sample))
        yield _feasible(missing, _refusals_there(missing, sweep, host=host), sweep), sweep


def _give_up(progress: SweepView, why: str) -> None:
    """End this process from a thread: the main thread waits in Ray and never returns."""
    progress.say(f"stopped: {why}. The same command resumes")
    os._exit(1)


@contextmanager
def _submitting(missing: Sequence[Trial], sweep: _Sweep) -> Iterator[tuple[list[Trial], _Sweep]]:
    """Join a Ray on this machine, which submits one run after the other and measures nothing.

    Runs on nodes of one shape share a Ray cluster, which grows. So the trials are yielded sorted by their
    size, and random only within one size. The Ray clusters are deleted at the end.
    """
    spec, result, wanted = sweep.spec, sweep.result, sweep.wanted
    sample = wanted[missing[0].point.key]
    cluster = connection.load(sample.cluster.name)
    location = f"{platform.node()}:{result.folder.absolute()}"  # a resumed sweep has it, and no other sweep
    digest = hashlib.sha256(location.encode()).hexdigest()[:8]
    shared = getattr(sample.cluster, "shared", None) or f"mlb-sweep-{digest}"
    settings = dict(spec.output_settings) | {"cluster.shared": f"cluster.shared={shared}"}
    sweep.progress.say(f"submitting to {sample.cluster.name}. The runs share Ray clusters named {shared}-*")
    here = sample.model_copy(update={"cluster": compose.compose(["cluster=local"]).cluster})
    try:
        with connection.join(here):
            ordered = sorted(missing, key=lambda trial: cluster.sweep_order(wanted[trial.point.key]))
            yield ordered, replace(sweep, spec=replace(spec, output_settings=settings))
    finally:
        fields = sample.cluster.model_copy(update={"shared": shared})
        try:
            cluster.end_sweep(sample.model_copy(update={"cluster": fields}))
        except Exception as error:  # whatever the cluster answers, what was measured is measured
            result.notes.append(f"the Ray clusters {shared}-* may still exist: {error}")


def _more_seeds(
    wanted: Collection[str],
    experiments: Mapping[str, Experiment],
    limits: Mapping[str, float | None],
    result: StudyResult,
) -> list[Trial]:
    """Plan a seed more for each wanted point whose rank among the others is undecided. Return its trials.

    A point with a seed that has no result gets none, nor one whose next run would exceed a limit.
    """
    planned = study.trials(result.study)
    attempts = study.attempts(planned, result.output_root)
    budget = Budget(experiments, (run for some in attempts.values() for run in some), **limits)
    closed = {trial.point.key for trial in planned if trial_result(attempts[trial.id]) is None}
    closed |= {point.key for point in result.study.points if len(point.seeds) >= sequential.MOST}
    undecided = sequential.undecided(run for some in attempts.values() for run in some)
    keys = [key for key in undecided if key in wanted and key not in closed and not budget.refusal(key)]
    if keys:
        result.study = study.with_another_seed(result.study, keys)
        study.save(result.study, result.folder)
    before = {trial.id for trial in planned}
    return [trial for trial in ordered_trials(result.study) if trial.id not in before]


def _run(missing: Sequence[Trial], sweep: _Sweep, budget: Budget) -> None:
    """Let Tune run the trials. On Ctrl-C the running one ends as a single run does."""
    ray_env.configure_tune()
    import ray

    from mlbench.studies.tune import StudyMonitor, TrialContext, TuneThread

    spec, result, experiments, progress = sweep.spec, sweep.result, sweep.experiments, sweep.progress
    address = ray.get_runtime_context().gcs_address
    sample = experiments[missing[0].point.key]
    cluster = connection.load(sample.cluster.name)
    limits = {
        "max_usd": spec.max_usd,
        "expires": cluster.expires(sample) if remote_run.takes(sample.cluster.name) else None,
        "ends": None if spec.max_time_s is None else clock.wall() + spec.max_time_s,
    }
    context = TrialContext(
        trials={trial.id: trial for trial in missing},
        experiments=experiments,
        output_settings=(*spec.output_settings.values(), f"study={result.study.name}"),
        folder=result.folder,
        output_root=result.output_root,
        directory=Path.cwd(),
        environment={**os.environ, persistent.ADDRESS: address, "RAY_ADDRESS": address},
        sweep=secrets.token_hex(8),
        limits=limits,
    )
    more = partial(_more_seeds, sweep.wanted, experiments, limits, result) if spec.auto else tuple
    monitor = StudyMonitor(context.trials, budget, folder=result.folder, progress=progress)
    thread = TuneThread(context, more)
    servers = connection.Servers.find()
    lost: str | None = None
    with signals.interruptible():
        try:
            thread.start()
            next_look = clock.monotonic() + SERVERS_POLL_S
            while lost is None and not thread.ended.wait(POLL_S):
                monitor.update()
                if clock.monotonic() >= next_look:
                    lost = servers.lost()
                    next_look = clock.monotonic() + SERVERS_POLL_S
        except KeyboardInterrupt:
            progress.say("stopping the current run")
            result.interrupted = True
            thread.interrupt()
        if lost is not None:
            thread.interrupt(limit_s=LOST_S)
    monitor.update()
    if lost is not None:
        raise UserError(lost, hint="the same command resumes")
    result.unmeasured += monitor.unmeasured
    if thread.error is not None:
        raise UserError(f"Ray Tune ended: {thread.error}", hint="the same command resumes") from thread.error
    error = next(iter(thread.trial_errors), "Ray Tune gives no reason")
    why = monitor.refusal or f"it did not start: {error}"
    if monitor.refusal:
        progress.say(f"stopped: {monitor.refusal}")
    if monitor.refusal or not result.interrupted:
        result.unmeasured += [f"{shlex.join(t.overrides)}: {why}" for t in monitor.remaining.values()]


def _feasible(missing: Sequence[Trial], refusals: Mapping[str, str], sweep: _Sweep) -> list[Trial]:
    """Return the trials whose points are not refused. Report the others."""
    for point in {trial.point.key: trial.point for trial in missing}.values():
        if point.key in refusals:
            sentence = f"{shlex.join(point.overrides)}: {refusals[point.key]}"
            sweep.progress.say(f"refused: {sentence}")
            sweep.result.unmeasured.append(sentence)
    return [trial for trial in missing if trial.point.key not in refusals]


def refusal(experiment: Experiment) -> str | None:
    """Return why this experiment can never run on this machine or its cluster. None if it may."""
    try:
        if connection.shares_files(experiment):
            placement.require_room(experiment)
        elif remote_run.takes(experiment.cluster.name):
            connection.load(experiment.cluster.name).check(experiment)
    except UserError as error:
        return str(error)
    return None


def _refusals_there(missing: Sequence[Trial], sweep: _Sweep, *, host: str) -> dict[str, str]:
    """Return why points do not fit on the cluster, by key. Report those whose workers share CPUs."""
    refusals: dict[str, str] = {}
    for point in {trial.point.key: trial.point for trial in missing}.values():
        try:
            room = placement.reserve(sweep.wanted[point.key], host=host)
        except UserError as error:
            refusals[point.key] = str(error)
            continue
        if room.oversubscribed:
            overrides = shlex.join(point.overrides)
            sweep.progress.say(f"oversubscribed: {overrides}: it runs but is excluded from every speed-up")
    return refusals


def _attempts(
    result: StudyResult, experiments: Mapping[str, Experiment], *, old: set[str]
) -> dict[str, list[Record]]:
    """Return all runs of every trial.

    What a killed sweep left half-done is concluded first. A note names each run for which that fails. A
    finished run that only the store has, because it was measured elsewhere or its folder is gone, is brought
    here. The store is searched for the `old` trials only, as a seed that has just been drawn has no runs.
    """
    trials = ordered_trials(result.study)
    stores = {f"{trial.seed:x}": experiments[trial.point.key].store for trial in trials}
    for log in result.output_root.glob(f"*-*/{events.NAME}"):
        store = stores.get(log.parent.name.rpartition("-")[2])
        if store is not None and not (log.parent / "record.json").exists():
            note = _conclude(log.parent, store)
            result.notes += [note] if note else []
    by_trial = study.attempts(trials, result.output_root)
    for trial in trials:
        finished = any(run.status in FINISHED for run in by_trial[trial.id])
        if finished or trial.id not in old:
            continue
        experiment = experiments[trial.point.key]
        there = execute.find_cached(experiment.model_copy(update={"seed": trial.seed}))
        if there is not None:
            cache.restore(there, result.output_root / there.run_id, experiment.store)
            by_trial[trial.id].append(there)
    return by_trial


def _conclude(folder: Path, store: str) -> str | None:
    """Conclude a run that was killed, and send it to MLflow. Return a sentence if either fails."""
    uploaded = sync.upload(folder, folder.name, store, draw=show.Terminal().figures)
    if uploaded.outcome == "running":
        return f"{folder.name} is still running: it counts after it ends"
    if uploaded.outcome != "failed":
        return None
    later = run_folders.results_command("sync", folder.parent)
    if (folder / "record.json").exists():
        return f"{folder.name} is not in MLflow ({uploaded.why}): {later}"
    return f"{folder.name} was interrupted and does not count, as it has no record ({uploaded.why}): {later}"


def compared(result: StudyResult) -> "list[writer.Group]":
    """Return what the report compares. Its bootstraps take seconds."""
    from mlbench.report import writer

    return writer.groups(result.records, histories=study.histories(result.output_root))


def publish(result: StudyResult, groups: "Sequence[writer.Group]") -> None:
    """Write the report of what `compared` returned, and the parent run with it into MLflow."""
    from mlbench.report import mlflow_study, writer

    folder = result.folder / study.REPORT
    try:
        writer.write(result.records, folder, study=_text(result), grouped=groups)
    except OSError as error:
        sentence = f"the report in {folder} cannot be written: {error.strerror or error}"
        raise UserError(sentence, hint="the runs are complete, the same command writes it again") from error
    status = "FAILED" if result.unmeasured else "FINISHED"
    arguments = {"output_root": result.output_root, "uri": result.store}
    with _mlflow_may_fail(result):
        summary = mlflow_study.summary(result.study, result.records, result.output_root, groups=groups)
        parent_runs.write(result.study, result.records, summary, **arguments, status=status)


@contextmanager
def _mlflow_may_fail(result: StudyResult) -> Iterator[None]:
    """Make a note of whatever MLflow and what lies below it raise: the study has lost nothing."""
    try:
        yield
    except Exception as error:
        reason = without_credentials(str(error)).splitlines()[0]
        later = run_folders.results_command("sync", result.output_root)
        result.notes.append(f"MLflow could not be reached ({reason}): {later}")


def _text(result: StudyResult) -> "writer.StudyText":
    """Return what the report has of the study in addition to its runs."""
    from mlbench.report import writer

    plan, log = result.study, result.folder / study.LOG
    ended = (e["value"] for e in (events.read(log) if log.exists() else ()) if e["key"] == study.ENDED)
    errors = {value["trial"]: value["error"] for value in ended}
    planned = tuple(
        writer.Planned(
            without_credentials(shlex.join(trial.point.overrides)),
            trial.point.key,
            trial.seed,
            why=errors.get(trial.id) or "",
        )
        for trial in ordered_trials(plan)
    )
    lost = tuple(study.lost_attempts(result.folder, result.records))
    return writer.StudyText(plan.name, plan.question, study.commands(plan), planned, lost)
