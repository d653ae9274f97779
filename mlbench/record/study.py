"""Store a study: its question, the points it measures, how often, with which seeds, and its progress.

`study.yaml` is the plan. It is written before anything starts, so a sweep that was killed goes on with the
same seeds. Progress follows from the records of the runs alone. `trials.jsonl` is the log of all attempts,
appended as they happen.
"""

import secrets
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from filelock import FileLock, Timeout
from pydantic import AliasChoices, Field

import mlbench
from mlbench import clock
from mlbench.config import strict_yaml
from mlbench.config.errors import ResultError, UserError, unreadable
from mlbench.config.experiment import Experiment, FrozenModel
from mlbench.config.identity import key
from mlbench.config.overrides import typed
from mlbench.record import events, format, reader
from mlbench.record.attempts import History
from mlbench.record.record import FINISHED, Record

PLAN = "study.yaml"
LOG = "trials.jsonl"
# Keys of the log: of a trial's attempts, of a trial that the budget refused, and of a sweep's stop.
STARTED, ENDED, REFUSED, STOPPED = "trial_started", "trial_ended", "trial_refused", "sweep_stopped"
WAITING = "trial_waits"  # for another run on this machine: by its process id, at the end with waited_s
RUN = "trial_run"  # the folder that a run of the trial has begun to fill, however it ends
REPORT = "report"  # folder of the figures and the page
LOCK_S = 10  # s that a killed sweep's last processes have to let go of the study
SEEDS = 2**31  # as Experiment.seed allows
# Plans of before 2026-11-25 call them words.
Overrides = Annotated[tuple[str, ...], Field(validation_alias=AliasChoices("overrides", "words"))]


class StudyPoint(FrozenModel):
    """One experiment. Every seed is one run of it. The overrides are those of mlbench.run."""

    key: str
    overrides: Overrides
    seeds: tuple[int, ...]
    drawn: tuple[int, ...] = ()  # those of them that the sweep drew, as opposed to given ones

    def extended(self, repeats: int, given: Sequence[int] | None = None) -> "StudyPoint":
        """Return the point with the `given` seeds as well, by default with new ones drawn up to `repeats`."""
        seeds = [*self.seeds, *(seed for seed in given or () if seed not in self.seeds)]
        while given is None and len(seeds) < repeats:
            seed = secrets.randbelow(SEEDS)
            if seed not in seeds:
                seeds.append(seed)
        new = seeds[len(self.seeds) :] if given is None else ()
        return self.model_copy(update={"seeds": tuple(seeds), "drawn": (*self.drawn, *new)})


class Invocation(FrozenModel):
    """One command line that made or extended the study."""

    at: str  # ISO 8601, UTC
    overrides: Overrides
    repeats: Annotated[int, Field(gt=0)]


class Study(FrozenModel):
    """The plan. `order_seed` decides the order of the trials within each repeat."""

    name: str
    question: str
    created: str  # ISO 8601, UTC
    mlbench: str  # version
    order_seed: int
    invocations: tuple[Invocation, ...]
    points: tuple[StudyPoint, ...]


class Trial(NamedTuple):
    """One run that a study plans."""

    point: StudyPoint
    repeat: int  # counted from 0
    seed: int

    @property
    def id(self) -> str:
        return trial_id(self.point.key, self.seed)

    @property
    def overrides(self) -> tuple[str, ...]:
        return (*self.point.overrides, f"seed={self.seed}")


def trial_id(key: str, seed: int) -> str:
    """Return the name that a study's log has for a point's run with a seed."""
    return f"{key}-{seed:x}"


def folder(output_root: Path, name: str) -> Path:
    """Return the folder of a study's plan, log and report."""
    return output_root / "studies" / name


def new(name: str, *, question: str) -> Study:
    """Return a study without points."""
    return Study(
        name=name,
        question=question,
        created=clock.iso(clock.wall()),
        mlbench=mlbench.__version__,
        order_seed=secrets.randbelow(SEEDS),
        invocations=(),
        points=(),
    )


def load(path: Path) -> Study | None:
    """Return the study in a folder, None if there is none. Raises UserError if it cannot be read."""
    values = None
    try:
        values = strict_yaml.load((path / PLAN).read_text())
        return Study.model_validate(values)
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, ValueError) as error:
        raise unreadable(path / PLAN, values, hint="restore it, or give another study=NAME") from error


def save(study: Study, path: Path) -> None:
    """Write the plan atomically: a reader finds the old one or the new one, never a part."""
    path.mkdir(parents=True, exist_ok=True)
    part = path / f"{PLAN}.part"
    part.write_text(yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, width=110))
    part.replace(path / PLAN)


def extended(
    study: Study,
    points: Mapping[str, Sequence[str]],
    *,
    invocation: Invocation,
    seeds: Sequence[int] | None = None,
) -> Study:
    """Return the study with these points (overrides by key) measured at least `invocation.repeats` times.

    Points and seeds that it has stay as they are. New seeds are drawn, unless `seeds` are given: then every
    point has these as well.
    """
    by_key = {point.key: point for point in study.points}
    for name, overrides in points.items():
        point = by_key.get(name) or StudyPoint(key=name, overrides=tuple(overrides), seeds=())
        by_key[name] = point.extended(invocation.repeats, seeds)
    if tuple(by_key.values()) == study.points:
        return study
    return study.model_copy(
        update={"invocations": (*study.invocations, invocation), "points": tuple(by_key.values())},
    )


def with_another_seed(study: Study, keys: Collection[str]) -> Study:
    """Return the study with one more drawn seed for each of these points."""
    points = (point.extended(len(point.seeds) + 1) if point.key in keys else point for point in study.points)
    return study.model_copy(update={"points": tuple(points)})


def trials(study: Study) -> list[Trial]:
    """Return all trials, point by point. `studies.session` has the order in which they run."""
    return [Trial(point, repeat, seed) for point in study.points for repeat, seed in enumerate(point.seeds)]


def commands(study: Study) -> tuple[str, ...]:
    """Return the command lines that made the study, with the seeds it drew they make it again."""
    return tuple(
        shlex.join(["mlbench", "sweep", *typed(invocation.overrides)]) for invocation in study.invocations
    )


def attempts(trials: Iterable[Trial], output_root: Path) -> dict[str, list[Record]]:
    """Return the records of all runs of each trial by its id, oldest first."""
    ids = {(trial.point.key, trial.seed): trial.id for trial in trials}
    return {ids[trial]: runs for trial, runs in reader.find_all(output_root, ids).items()}


def records(study: Study, output_root: Path) -> list[Record]:
    """Return every attempt at every trial, points in order. `attempts.results` selects those that count."""
    return [run for runs in attempts(trials(study), output_root).values() for run in runs]


def lost_attempts(path: Path, records: Sequence[Record]) -> list[str]:
    """Return a sentence for each attempt in a study's log whose run is not among `records`.

    Its command ended before there was a run, or the run was deleted.
    """
    run_ids = {run.run_id for run in records}
    return [
        f"{value['trial']}: {value['status']}: "
        + ("its run was deleted" if value["run_id"] else format.last_line(value["error"] or ""))
        for value in (event["value"] for event in attempts_log(path) if event["key"] == ENDED)
        if value["run_id"] not in run_ids
    ]


def histories(output_root: Path, *, runs: Collection[str] | None = None) -> dict[str, History]:
    """Return the histories of points in all readable studies, by key.

    `runs`: the names of all existing runs (default: those in output_root, except for unreadable records).
    """
    result: dict[str, History] = {}
    for path in sorted((output_root / "studies").glob(f"*/{PLAN}")):
        with suppress(UserError, LookupError, TypeError):
            plan = load(path.parent)
            log = attempts_log(path.parent)
            begun = {(e["value"]["trial"], e["value"]["run_id"]) for e in log if e["key"] in (RUN, ENDED)}
            lost = [pair for pair in begun if pair[1] and not _is_there(output_root, *pair, runs)]
            unfinished = {run for _, run in lost if runs is None and _is_unfinished(output_root / run)}
            with_attempts = logged_trials(log)
            for point in plan.points if plan else ():
                own = frozenset(run for trial, run in lost if str(trial).startswith(f"{point.key}-"))
                result[point.key] = result.get(point.key, History()) | History(
                    planned=frozenset(point.seeds),
                    drawn=frozenset(point.drawn),
                    logged=frozenset(s for s in point.seeds if trial_id(point.key, s) in with_attempts),
                    deleted=own - unfinished,
                    unfinished=own & unfinished,
                )
    return result


def _is_there(output_root: Path, trial: str, run: str, runs: Collection[str] | None) -> bool:
    """Return whether a run has a record, as that of this trial which was measured here."""
    if runs is not None:
        return run in runs
    with suppress(FileNotFoundError, UserError):
        record = reader.load(output_root / run / "record.json")
        return record.run_id == run and trial_id(record.key, record.seed) == trial and not record.imported
    return False


def _is_unfinished(folder: Path) -> bool:
    """Return whether a run goes on, or was killed and is not concluded yet."""
    log = folder / events.NAME
    return log.exists() and all(event["key"] != "run_stop" for event in events.read(log))


def attempts_log(path: Path) -> list[dict[str, Any]]:
    """Return the events of the log in a study's folder, or none if there is no log."""
    return events.read(path / LOG) if (path / LOG).is_file() else []


def logged_trials(log: Iterable[dict[str, Any]]) -> set[str]:
    """Return the ids of the trials of which a log has an attempt."""
    values = (event.get("value") for event in log if event["key"] in (STARTED, RUN, ENDED))
    return {str(value["trial"]) for value in values if isinstance(value, dict) and "trial" in value}


def check_versions(study: Study, experiments: Mapping[str, Experiment]) -> None:
    """Raise UserError if a point's words give another key today, as experiments are found by key."""
    stale = [name for name, experiment in experiments.items() if key(experiment) != name]
    if stale:
        raise ResultError(
            f"study {study.name} was planned with mlbench {study.mlbench}, another torch or other files in "
            f"conf/: {len(stale)} of its points have a different meaning",
            hint="give another study=NAME: results of two versions are not comparable (rule R9)",
        )


def check_data(study: Study, data: Mapping[str, str | None], *, output_root: Path) -> None:
    """Raise UserError if finished runs of the study used other data than the current data.

    `data` are the hashes of the manifests by the points' keys. None, or no entry: unknown.
    """
    stale = [
        run.run_id
        for run in records(study, output_root)
        if run.status in FINISHED and data.get(run.key) not in (None, run.data_hash)
    ]
    if stale:
        raise ResultError(
            f"study {study.name} has runs on other data than the current data, e.g. {stale[-1]}: results on "
            "different data are not comparable",
            hint="restore the data, or give another output_root",
        )


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the study for this process. Raises UserError if another has it. A kill -9 frees it, too."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(path / ".lock", timeout=LOCK_S).acquire()
    except Timeout as error:
        raise ResultError(
            f"study {path.name} is being measured by another process", hint="wait for it"
        ) from error
    with lock:
        yield
