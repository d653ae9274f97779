"""A study of many runs: what `python -m mlbench.sweep` and the pipelines call.

The way of a sweep: `__main__` reads the words (request.py, grid.py), `measure` plans (mlbench/study.py),
validates every point, and has Ray Tune run what is missing (trials.py) while watch.py follows; `publish`
(outcome.py) writes the report and the parent run in MLflow.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlbench.clusters import connection, persistent, placement, ray_env
from mlbench.experiment import config, events, format, identity, study
from mlbench.experiment.attempts import Attempts
from mlbench.experiment.config import Experiment
from mlbench.experiment.errors import UserError
from mlbench.experiment.record import FINISHED, Record
from mlbench.experiment.study import Study, Trial
from mlbench.launch import execute, signals
from mlbench.studies.budget import Budget
from mlbench.studies.outcome import Outcome, publish
from mlbench.studies.spec import Request
from mlbench.studies.watch import Watch
from mlbench.tasks import registry
from mlbench.terminal.sweep_view import PointProgress, SweepView
from mlbench.tracking import uploader

__all__ = ["Outcome", "Request", "measure", "measured", "prepare", "publish"]

POLL_S = 0.5  # s between two looks at the study's log


def measure(request: Request) -> Outcome:
    """Measure what the study lacks; UserError lists every fault before anything runs."""
    experiments, grids = _composed(request)
    outcome = measured(request)
    with study.locked(outcome.folder):
        plan = study.load(outcome.folder) or outcome.study
        known_before = {trial.id for trial in study.trials(plan)}
        for (asked, line), points in zip(request.grids, grids, strict=True):
            plan = study.extended(plan, points, asked=line, seeds=asked.seeds)
        known = {point.key: _compose(point.words, request) for point in plan.points}
        study.check_versions(plan, known)
        wanted = experiments or known
        _check(wanted, request)
        data = {name: execute.check_data(one) for name, one in wanted.items()}
        study.check_data(plan, data, output_root=outcome.output_root)
        outcome.study = plan
        study.save(plan, outcome.folder)
        given = {seed for asked, _ in request.grids for seed in asked.seeds or ()}
        drawn = {t.id for t in study.trials(plan) if t.id not in known_before and t.seed not in given}
        old = {t.id for t in study.trials(plan) if t.point.key in wanted} - drawn
        runs = _attempts(plan, known, outcome.output_root, old=old)
        _run_missing(outcome, wanted, known, runs=runs, request=request)
        outcome.records = study.records(plan, outcome.output_root)
    return outcome


def measured(request: Request) -> Outcome:
    """Return what the study on disk has; one that was not begun has nothing."""
    sample = config.compose(list(request.place.values()))
    output_root = sample.output_root.absolute()
    folder = study.folder(output_root, request.name)
    plan = study.load(folder) or study.new(request.name, question=request.question)
    return Outcome(plan, folder, sample.store, study.records(plan, output_root))


def prepare(request: Request) -> None:
    """Make the data sets of all points, official ones too; UserError for what cannot be measured."""
    experiments, _ = _composed(request)
    plan = measured(request).study
    wanted = experiments or {point.key: _compose(point.words, request) for point in plan.points}
    _check(wanted, request)
    for one in wanted.values():
        if one.task.dataset != registry.NO_DATASET:
            registry.load(one.task.name).prepare(one.task, one.data_root.absolute())


def _run_missing(
    outcome: Outcome,
    wanted: Mapping[str, Experiment],
    known: Mapping[str, Experiment],
    *,
    runs: Mapping[str, Sequence[Record]],
    request: Request,
) -> None:
    """Run the trials of the wanted points that have no finished run yet; `runs` are all attempts by trial."""
    plan = outcome.study
    asked = [trial for trial in study.trials(plan) if trial.point.key in wanted]
    results = {trial.id: Attempts(tuple(runs[trial.id])).result for trial in asked}
    missing = [trial for trial in asked if results[trial.id] is None]
    outcome.unmeasured += [
        f"{shlex.join(trial.words)}: failed: {format.last_line(run.error or '')} "
        f"({run.run_id}; it counts as missed, also if the seed is run again)"
        for trial in asked
        if (run := results[trial.id]) is not None and run.status == "failed"
    ]
    budget = Budget(known, (one for some in runs.values() for one in some), max_usd=request.max_usd)
    rows: dict[str, PointProgress] = {}
    for trial in asked:
        point = rows.setdefault(trial.point.key, PointProgress(shlex.join(trial.point.words), runs=0))
        point.runs += 1
        if (one := results[trial.id]) is not None and one.status in FINISHED:
            point.records.append(one)
    with SweepView(list(rows.values())) as tally:
        tally.say(f"study {plan.name}: {plan.question}")
        runs_in_all = format.counted(len(asked), "run")
        tally.say(f"{format.counted(len(wanted), 'point')}, {runs_in_all}, {tally.done} of them finished")
        tally.spent = budget.spent
        if missing:
            sample = wanted[missing[0].point.key]
            tally.say(f"starting Ray ({sample.cluster.name})")
            with connection.join(sample) as host:
                missing = _fitting(missing, wanted, host=host, outcome=outcome, tally=tally)
                _run(missing, budget, place=request.place, outcome=outcome, tally=tally)


def _run(
    missing: Sequence[Trial],
    budget: Budget,
    *,
    place: Mapping[str, str],
    outcome: Outcome,
    tally: SweepView,
) -> None:
    """Let Tune run the trials; on Ctrl-C the running one ends as a single run does."""
    ray_env.configure_tune()
    import ray

    from mlbench.studies import tune as trials

    watch = Watch(missing, budget, folder=outcome.folder, tally=tally)
    address = ray.get_runtime_context().gcs_address
    errand = trials.Errand(
        trials={trial.id: trial for trial in missing},
        place=(*place.values(), f"study={outcome.study.name}"),
        folder=outcome.folder,
        output_root=outcome.output_root,
        directory=Path.cwd(),
        environment={**os.environ, persistent.ADDRESS: address, "RAY_ADDRESS": address},
    )
    order = trials.Order(missing, allowed=watch.allowed, log=outcome.folder / study.LOG)
    tune = trials.Sweep(errand, order)
    try:
        with signals.interruptible():
            tune.start()
            while not tune.wait(POLL_S):
                watch.look()
    except KeyboardInterrupt:
        tally.say("stopping the current run")
        outcome.interrupted = True
        tune.interrupt()
    watch.look()
    outcome.unmeasured += watch.unmeasured
    if tune.error is not None:
        raise UserError(f"Ray Tune ended: {tune.error}", hint="the same command goes on") from tune.error
    if watch.refused:
        tally.say(f"stopped: {watch.refused}")
        outcome.unmeasured += [f"{shlex.join(t.words)}: {watch.refused}" for t in watch.left.values()]


def _fitting(
    missing: Sequence[Trial],
    wanted: Mapping[str, Experiment],
    *,
    host: str,
    outcome: Outcome,
    tally: SweepView,
) -> list[Trial]:
    """Return the trials that the cluster has room for; tell of the others, and of those that must share."""
    fits: dict[str, bool] = {}
    for point in {trial.point.key: trial.point for trial in missing}.values():
        words = shlex.join(point.words)
        try:
            room = placement.reserve(wanted[point.key], host=host)
        except UserError as error:
            fits[point.key] = False
            tally.say(f"refused: {words}: {error}")
            outcome.unmeasured.append(f"{words}: {error}")
            continue
        fits[point.key] = True
        if room.oversubscribed:
            tally.say(f"oversubscribed: {words}: it runs, and is kept out of every speed-up")
    return [trial for trial in missing if fits[trial.point.key]]


def _composed(request: Request) -> tuple[dict[str, Experiment], list[dict[str, tuple[str, ...]]]]:
    """Compose every point of the grids, or tell every fault at once.

    Returns all experiments by key, and for each grid its points' words by key.
    """
    experiments: dict[str, Experiment] = {}
    grids: list[dict[str, tuple[str, ...]]] = []
    faults: dict[str, str] = {}  # by their text: a fault of all points is told once
    for asked, _ in request.grids:
        words: dict[str, tuple[str, ...]] = {}
        grids.append(words)
        for point in asked.points:
            try:
                experiment = _compose(point, request)
            except UserError as error:
                faults.setdefault(error.message, f"{shlex.join(point)}: {error}")
                continue
            key = identity.key(experiment)
            experiments[key] = experiment
            words.setdefault(key, point)
    if faults:
        raise UserError("\n         ".join(faults.values()))
    return experiments, grids


def _compose(words: Sequence[str], request: Request) -> Experiment:
    return config.compose([*words, *request.place.values(), f"study={request.name}"])


def _check(wanted: Mapping[str, Experiment], request: Request) -> None:
    """Refuse what would fail in every run."""
    if not wanted:
        raise UserError(f"study {request.name} has no points", hint="say what it measures")
    if request.max_usd is not None:
        free = {one.hardware.name for one in wanted.values() if one.hardware.price is None}
        if free:
            raise UserError(
                f"max_usd= needs a price, hardware={', '.join(sorted(free))} has none",
                hint="choose hardware with a price, or leave max_usd out",
            )
    if any(one.force for one in wanted.values()):
        raise UserError("a study measures a seed once", hint="raise repeats= instead of force=true")


def _attempts(
    plan: Study, known: Mapping[str, Experiment], output_root: Path, *, old: set[str]
) -> dict[str, list[Record]]:
    """Return all runs of every trial.

    What a killed sweep left half-done is concluded first. A finished run that only the store has, because it
    was measured elsewhere or its folder is gone, is brought here. The store is asked for the `old` trials: a
    seed that has just been drawn is nobody's.
    """
    found = {}
    for trial in study.trials(plan):
        experiment = known[trial.point.key]
        for log in output_root.glob(f"*-{trial.seed:x}/{events.NAME}"):
            if not (log.parent / "record.json").exists():
                uploader.bring(log.parent, log.parent.name, experiment.store)
        found[trial.id] = study.attempts(trial, output_root)
        finished = any(one.status in FINISHED for one in found[trial.id])
        if not finished and trial.id in old:
            found[trial.id] += _from_store(trial, experiment, output_root)
    return found


def _from_store(trial: Trial, experiment: Experiment, output_root: Path) -> list[Record]:
    there = execute.already_measured(experiment.model_copy(update={"seed": trial.seed}))
    if there is None:
        return []
    uploader.restore(there, output_root / there.run_id, experiment.store)
    return [there]
