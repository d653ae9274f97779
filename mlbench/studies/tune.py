"""Ray Tune runs the trials of a study, one after the other. Each is a command in a separate process.

A trial is `mlbench run ...` as a subprocess that joins the sweep's Ray, not a call inside Tune's
actor. Its record has the command that repeats it. It starts and stops as a single run does, and nothing of
the previous trial is left in its process. Tune's limit of concurrency gives one trial at a time. What was
done is in the study's folder, whose log StudyMonitor follows. Tune's state is thrown away.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from mlbench import clock
from mlbench.clusters import persistent
from mlbench.config.errors import UserError
from mlbench.config.experiment import Experiment
from mlbench.launch import execute
from mlbench.launch.signals import PARENT_PID
from mlbench.record import events, format, study, temporary_folder
from mlbench.record.record import FINISHED
from mlbench.record.study import ENDED, REFUSED, STARTED, STOPPED, WAITING, Trial
from mlbench.studies.budget import Budget
from mlbench.terminal.sweep_view import SweepView

PIN = 0.001  # of the resource that Ray gives every node under its address
STOP_S = 20  # s that an interrupted run has to write its record before it is killed
POLL_S = 0.5  # s between two looks at the log while the running trial ends


@dataclass(frozen=True)
class TrialContext:
    """What Tune's actor needs to run trials. It stays in memory, as the environment may hold secrets.

    - trials: by id, in the order in which they run. Those that are planned later are added.
    - experiments: by key, of all points of the study, whose runs share the budget.
    - output_settings: overrides that set the results' paths, the same for all trials.
    - folder: the study's. output_root: the parent of the runs' folders.
    - sweep: an id of this call, so that a stop is not taken for that of an earlier one.
    - limits: max_usd, expires and ends, as a Budget has them.
    """

    trials: dict[str, Trial]
    experiments: Mapping[str, Experiment]
    output_settings: tuple[str, ...]
    folder: Path
    output_root: Path
    directory: Path
    environment: Mapping[str, str]
    sweep: str
    limits: Mapping[str, float | None]

    @property
    def log(self) -> Path:
        return self.folder / study.LOG


class TuneThread(threading.Thread):
    """Tune's blocking call in a thread, so that the main thread can show progress and hear Ctrl-C."""

    def __init__(self, context: TrialContext, more: Callable[[], Sequence[Trial]] = tuple) -> None:
        super().__init__(name="ray-tune", daemon=True)
        self.context, self._more = context, more
        self.error: BaseException | None = None
        self.trial_errors: list[str] = []  # of trials that Tune could not carry out
        # Not join(): a Ctrl-C inside it marks a running thread as stopped (threading.py of Python 3.11).
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self.trial_errors = _fit(self.context, self._more)
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

    def interrupt(self, *, limit_s: float = STOP_S) -> None:
        """Stop the running trial as Ctrl-C stops a run, start no other, and wait for the end."""
        events.append(self.context.log, STOPPED, {"sweep": self.context.sweep})
        signalled: set[int] = set()
        end = clock.monotonic() + limit_s
        while clock.monotonic() < end:
            signalled |= self._signal(signal.SIGTERM, but=signalled)
            if self.ended.wait(POLL_S):
                return
        self._signal(signal.SIGKILL)
        self.ended.wait(limit_s)

    def _signal(self, number: int, *, but: Collection[int] = ()) -> set[int]:
        """Signal the running trials. Return their process ids."""
        pids = {
            started["pid"]
            for trial, started in running(self.context.log).items()
            if trial in self.context.trials and started["pid"] not in but and _is_run(started["pid"])
        }
        for pid in pids:
            os.kill(pid, number)
        return pids


def running(log: Path) -> dict[str, dict[str, Any]]:
    """Return what the log has on the trials that have started and not ended, by trial."""
    values: dict[str, dict[str, Any]] = {}
    for event in events.read(log) if log.exists() else ():
        if event["key"] == STARTED:
            values[event["value"]["trial"]] = event["value"]
        elif event["key"] == ENDED:
            values.pop(event["value"]["trial"], None)
    return values


def _is_run(pid: int) -> bool:
    """Return whether the process is a run: an earlier sweep that was killed leaves ids in the log."""
    import psutil

    try:
        return "mlbench.run" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


class NextTrial(Searcher):
    """Proposes one trial after the other, those that `more` plans when no other is left, too."""

    def __init__(self, context: TrialContext, more: Callable[[], Sequence[Trial]]) -> None:
        super().__init__()
        self._context, self._more = context, more
        self._proposed: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next trial, FINISHED without one."""
        left = [trial for trial in self._context.trials if trial not in self._proposed]
        if not left and not _stopped(self._context):
            planned = {trial.id: trial for trial in self._more()}
            self._context.trials.update(planned)
            left = list(planned)
        if not left:
            return Searcher.FINISHED
        self._proposed.add(left[0])
        return {"trial": left[0]}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Its result is in the folder of runs."""

    def save(self, checkpoint_path: str) -> None:
        """The study's plan has all that there is to save."""

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune writes its searcher to disk, and the environment may hold secrets."""
        return {}


def _fit(context: TrialContext, more: Callable[[], Sequence[Trial]]) -> list[str]:
    """Run all trials. Return the errors of Tune itself."""
    # Workers may need every CPU, so a trial reserves none. It runs on this node, which has the folders.
    resources = {"cpu": 0.0, f"node:{ray.util.get_node_ip_address()}": PIN}
    if set(persistent.DRIVER_RESOURCE) <= set(ray.cluster_resources()):
        resources |= persistent.DRIVER_RESOURCE  # if two sweeps share a Ray, the second waits
    before = set(running(context.log))  # of a sweep that was killed
    with temporary_folder.folder() as storage:
        grid = tune.Tuner(
            tune.with_resources(tune.with_parameters(run_trial, context=context), resources),
            tune_config=tune.TuneConfig(
                search_alg=NextTrial(context, more),
                num_samples=-1,
                max_concurrent_trials=1,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(name="tune", storage_path=str(storage), verbose=0),
        ).fit()
    for trial in set(running(context.log)) - before:
        lost = {"run_id": None, "status": "failed", "error": "Tune's actor died", "seconds": 0.0}
        events.append(context.log, ENDED, {"trial": trial} | lost, kind="INTERVAL_END")
    return [format.last_line(str(error)) for error in grid.errors]


def run_trial(config: dict[str, Any], *, context: TrialContext) -> dict[str, Any]:
    """Run one trial to its end, inside Tune's actor, and log its start and its end, or why it may not run."""
    trial = context.trials.get(config["trial"]) or _planned(context, config["trial"])
    if _stopped(context):
        return {"status": "stopped"}
    refusal = _refusal(trial, context)
    if refusal is not None:
        events.append(context.log, REFUSED, {"trial": trial.id, "reason": refusal})
        return {"status": "refused"}
    output = _output(context.folder / "logs", trial)
    about = {
        "trial": trial.id,
        "overrides": list(trial.overrides),
        "repeat": trial.repeat,
        "seed": trial.seed,
    }
    before = {run.run_id for run in study.attempts([trial], context.output_root)[trial.id]}
    begun = clock.monotonic()
    with output.open("w") as target:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlbench.run", *trial.overrides, *context.output_settings],
            cwd=context.directory,
            env={**context.environment, PARENT_PID: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=target,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the sweep, which stops the run
        )
        try:
            events.append(context.log, STARTED, about | {"pid": process.pid}, kind="INTERVAL_START")
        except UserError:  # a full disk. A run that the log does not name would be lost
            process.terminate()
            raise
        code = process.wait()
    runs = [run for run in study.attempts([trial], context.output_root)[trial.id] if run.run_id not in before]
    if runs:
        result = {"run_id": runs[-1].run_id, "status": runs[-1].status, "error": runs[-1].error}
    elif _stopped(context):  # while it waited for another run, for example
        result = {"run_id": None, "status": "interrupted", "error": execute.STOPPED}
    else:
        result = {"run_id": None, "status": "failed", "error": _last_line(output, code)}
    seconds = clock.monotonic() - begun - _waited_s(context.log, process.pid)
    ended = {"trial": trial.id, **result, "seconds": seconds}
    events.append(context.log, ENDED, ended, kind="INTERVAL_END")
    return {"status": ended["status"], "wall": ended["seconds"]}


def _planned(context: TrialContext, trial: str) -> Trial:
    """Return a trial that was planned after this actor got its context."""
    plan = study.load(context.folder)
    return next(candidate for candidate in (study.trials(plan) if plan else ()) if candidate.id == trial)


def _waited_s(log: Path, pid: int) -> float:
    """Return how long the run of this process waited for another one, in s."""
    waits = (event["value"] for event in events.read(log) if event["key"] == WAITING)
    return sum(wait.get("waited_s", 0.0) for wait in waits if wait["pid"] == pid)


def _stopped(context: TrialContext) -> bool:
    log = events.read(context.log) if context.log.exists() else []
    return any(e["key"] == STOPPED and e["value"]["sweep"] == context.sweep for e in log)


def _refusal(trial: Trial, context: TrialContext) -> str | None:
    """Return why money or time do not allow one more run, from the records of all runs so far."""
    if all(limit is None for limit in context.limits.values()):
        return None
    plan = study.load(context.folder)
    runs = study.records(plan, context.output_root) if plan else []
    return Budget(context.experiments, runs, **context.limits).refusal(trial.point.key)


def _output(folder: Path, trial: Trial) -> Path:
    """Return the path of an attempt's output: `<trial>-<attempt>.txt`, next to that of earlier attempts."""
    folder.mkdir(exist_ok=True)
    return folder / f"{trial.id}-{len(list(folder.glob(f'{trial.id}-*.txt'))) + 1}.txt"


def _last_line(output: Path, code: int) -> str:
    """Return the last line that the command printed if it left no record."""
    text = output.read_text(errors="replace")
    last = format.last_line(text) if text.strip() else ""
    if last.startswith("mlbench: "):
        return last.removeprefix("mlbench: ")
    return f"the command ended with exit code {code}" + (f", after: {last}" if last else "")


class RunProgress:
    """Reads from its log how far the run of a seed is. A folder with a record is an earlier attempt's."""

    def __init__(self, output_root: Path, seed: int) -> None:
        self._logs = output_root, f"*-{seed:x}/{events.NAME}"
        self._follower: events.LogFollower | None = None
        self._epoch = self._epochs = 0.0

    def update(self) -> tuple[float, float] | None:
        """Return the epochs that were trained and the most that may be. None while they are unknown."""
        if self._follower is None:
            root, pattern = self._logs
            running = [log for log in root.glob(pattern) if not (log.parent / "record.json").exists()]
            if not running:
                return None
            self._follower = events.LogFollower(max(running))
        for event in self._follower.take():
            if event["key"] == "run_configuration":
                self._epochs = event["value"]["experiment"]["task"].get("epochs") or 0.0
            elif event["key"] == "validation":
                self._epoch = event["value"]["epoch"]
        return (self._epoch, self._epochs) if self._epochs else None


class StudyMonitor:
    """Reads what the log of a study gains, and shows it.

    - trials: by id. Some may be added while others run.
    - remaining: the trials that have not ended, by id.
    - unmeasured: a sentence for every trial that ended without a result.
    - refusal: why the budget allowed no further trial. Empty: it did.
    """

    def __init__(
        self, trials: Mapping[str, Trial], budget: Budget, *, folder: Path, progress: SweepView
    ) -> None:
        self._trials, self._ended_trials = trials, set[str]()
        self._shown = set(trials)
        self.unmeasured: list[str] = []
        self.refusal = ""
        self._budget, self._folder, self._progress = budget, folder, progress
        self._follower = events.LogFollower(folder / study.LOG)
        self._follower.take()
        self._run: RunProgress | None = None  # of the run in progress
        self._pid: int | None = None  # its process

    @property
    def remaining(self) -> dict[str, Trial]:
        return {name: trial for name, trial in list(self._trials.items()) if name not in self._ended_trials}

    def update(self) -> None:
        """Process the new events."""
        for name, trial in self.remaining.items():
            if name not in self._shown:
                self._shown.add(name)
                self._progress.planned(shlex.join(trial.point.overrides))
        for event in self._follower.take():
            value = event["value"]
            if event["key"] == WAITING and value["pid"] == self._pid:
                self._progress.waiting("waited_s" not in value)
            trial = self.remaining.get(value.get("trial", ""))
            if trial is None:
                continue
            if event["key"] == STARTED:
                self._progress.started(shlex.join(trial.overrides))
                self._run = RunProgress(self._folder.parent.parent, trial.seed)
                self._pid = value["pid"]
                self._forecast(trial)
            elif event["key"] == REFUSED:
                self.refusal = value["reason"]
            elif event["key"] == ENDED:
                self._ended_trials.add(trial.id)
                self._run = None
                self._ended(trial, value)
        if self._run is not None and (epochs := self._run.update()) is not None:
            self._progress.advanced(*epochs)
        self._progress.redraw()

    def _ended(self, trial: Trial, value: dict[str, Any]) -> None:
        overrides = shlex.join(trial.overrides)
        runs = study.attempts([trial], self._folder.parent.parent)[trial.id]
        run = next((run for run in runs if run.run_id == value["run_id"]), None)
        if run is not None:
            self._budget.add(run, seconds=value["seconds"])
        if value["status"] not in FINISHED:
            error = format.last_line(value["error"] or "")
            self.unmeasured.append(f"{overrides}: {value['status']}: {error}")
        self._progress.spent = self._budget.spent
        self._forecast(None)
        self._progress.ended(overrides, run, value["error"], value["status"])

    def _forecast(self, running: Trial | None) -> None:
        """Show how long the trial in progress takes, and the others that are left."""
        seconds = 0.0 if running is None else self._budget.seconds(running.point.key)
        others = [trial.point.key for trial in self.remaining.values() if trial != running]
        self._progress.run_s = seconds or 0.0
        self._progress.left = None if seconds is None else self._budget.left(others)
