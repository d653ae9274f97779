"""Ray Tune for a study: one trial after the other, each the user's own command in a process of its own.

A trial is `python -m mlbench.run ...` as a subprocess that joins the sweep's Ray, and not a call inside
Tune's actor: so its record has the command that repeats it, its start-up is that of a single run, it can be
stopped as a single run can, and nothing of the trial before is left in its process. Tune's actor only waits
meanwhile. What is done is in the study's folder, so Tune's own state is thrown away.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import Searcher

from mlbench.clusters import persistent
from mlbench.experiment import clock, events, study
from mlbench.experiment.study import ENDED, STARTED, Trial
from mlbench.launch.signals import PARENT_PID

PIN = 0.001  # of the resource that Ray gives every node under its address
STOP_S = 20  # s that an interrupted run has to write what it knows before it is killed


@dataclass(frozen=True)
class Errand:
    """What Tune's actor needs to run trials; it stays in memory, as the environment may hold secrets.

    - place: words that say where results lie, the same for all trials.
    - folder: the study's; output_root: where the runs' folders are made.
    """

    trials: dict[str, Trial]
    place: tuple[str, ...]
    folder: Path
    output_root: Path
    directory: Path
    environment: dict[str, str]


class Order(Searcher):
    """Gives Tune one trial at a time, in order.

    - allowed: asked before each trial; once it says no, or `stop` was called, there are no more.
    - log: where a trial is told of that could not tell of itself.
    """

    def __init__(self, trials: Sequence[Trial], *, allowed: Callable[[Trial], bool], log: Path) -> None:
        super().__init__(metric="wall", mode="min")
        self._left = list(trials)
        self._allowed = allowed
        self._log = log
        self._running: dict[str, Trial] = {}
        self._stopped = False

    def stop(self) -> None:
        """Let the running trial be the last."""
        self._stopped = True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._running:
            return None
        if self._stopped or not self._left or not self._allowed(self._left[0]):
            self._stopped = True
            return Searcher.FINISHED
        self._running[trial_id] = self._left.pop(0)
        return {"trial": self._running[trial_id].id}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        trial = self._running.pop(trial_id, None)
        if trial is not None and error:
            lost = {"run_id": None, "status": "failed", "error": "Tune's actor died", "seconds": 0.0}
            events.append(self._log, ENDED, {"trial": trial.id} | lost, kind="INTERVAL_END")

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles it to restore a sweep; ours is restored from the study's folder

    def save(self, checkpoint_path: str) -> None: ...

    def restore(self, checkpoint_path: str) -> None: ...


class Sweep(threading.Thread):
    """Tune's blocking call in a thread, so that the main thread can show progress and hear Ctrl-C."""

    def __init__(self, errand: Errand, order: Order) -> None:
        super().__init__(name="ray-tune", daemon=True)
        self.errand, self.order = errand, order
        self.error: BaseException | None = None
        # Not join(): a Ctrl-C inside it marks a running thread as stopped (threading.py of Python 3.11).
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            with tempfile.TemporaryDirectory(prefix="mlbench-tune-") as storage:
                _fit(self.errand, self.order, storage)
        except BaseException as error:
            self.error = error
        finally:
            self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the end, at most so long; return whether it has come."""
        return self._ended.wait(seconds)

    def interrupt(self) -> None:
        """Stop the running trial as Ctrl-C stops a run, start no other, and wait for its end."""
        self.order.stop()
        self._signal(signal.SIGTERM)
        if not self.wait(STOP_S):
            self._signal(signal.SIGKILL)
            self.wait(STOP_S)

    def _signal(self, number: int) -> None:
        running: dict[str, int] = {}
        for event in events.read(self.errand.folder / study.LOG):
            if event["key"] == STARTED:
                running[event["value"]["trial"]] = event["value"]["pid"]
            elif event["key"] == ENDED:
                running.pop(event["value"]["trial"], None)
        for trial, pid in running.items():
            if trial in self.errand.trials and _is_run(pid):
                os.kill(pid, number)


def _is_run(pid: int) -> bool:
    """Return whether the process is a run: an earlier sweep that was killed leaves ids in the log."""
    import psutil

    try:
        return "mlbench.run" in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False


def _fit(errand: Errand, order: Order, storage: str) -> None:
    # Workers may need every CPU, so a trial reserves none. It runs on this node, where the folders are.
    resources = {"cpu": 0.0, f"node:{ray.util.get_node_ip_address()}": PIN}
    if set(persistent.DRIVER_RESOURCE) <= set(ray.cluster_resources()):
        resources |= persistent.DRIVER_RESOURCE  # where two sweeps share a Ray, the second waits
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(perform, errand=errand), resources),
        tune_config=tune.TuneConfig(
            search_alg=order, num_samples=-1, max_concurrent_trials=1, reuse_actors=True
        ),
        run_config=tune.RunConfig(name="tune", storage_path=storage, verbose=0),
    )
    tuner.fit()


def perform(config: dict[str, Any], *, errand: Errand) -> dict[str, Any]:
    """Run one trial to its end, inside Tune's actor, and log its start and its end."""
    trial = errand.trials[config["trial"]]
    log = errand.folder / study.LOG
    output = _output(errand.folder / "logs", trial)
    about = {"trial": trial.id, "words": list(trial.words), "repeat": trial.repeat, "seed": trial.seed}
    before = {run.run_id for run in study.attempts(trial, errand.output_root)}
    begun = clock.monotonic()
    with output.open("w") as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlbench.run", *trial.words, *errand.place],
            cwd=errand.directory,
            env=errand.environment | {PARENT_PID: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches the sweep, which stops the run
        )
        events.append(log, STARTED, about | {"pid": process.pid}, kind="INTERVAL_START")
        code = process.wait()
    found = [run for run in study.attempts(trial, errand.output_root) if run.run_id not in before]
    ended = {
        "trial": trial.id,
        "run_id": found[-1].run_id if found else None,
        "status": found[-1].status if found else "failed",
        "error": found[-1].error if found else _last_line(output, code),
        "seconds": clock.monotonic() - begun,
    }
    events.append(log, ENDED, ended, kind="INTERVAL_END")
    return {"status": ended["status"], "wall": ended["seconds"]}


def _output(folder: Path, trial: Trial) -> Path:
    """Return where an attempt's output goes: `<trial>-<attempt>.txt`, beside that of the attempts before."""
    folder.mkdir(exist_ok=True)
    return folder / f"{trial.id}-{len(list(folder.glob(f'{trial.id}-*.txt'))) + 1}.txt"


def _last_line(output: Path, code: int) -> str:
    """Return what the command said last where it left no record."""
    last = (output.read_text(errors="replace").strip().splitlines() or [""])[-1]
    if last.startswith("mlbench: "):
        return last.removeprefix("mlbench: ")
    return f"the command ended with exit code {code}" + (f", after: {last}" if last else "")
