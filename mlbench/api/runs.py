"""One run from Python: `mlbench.run(task="gnmt", workers=8)`."""

from collections.abc import Sequence
from typing import Any

from mlbench import clock
from mlbench.api import overrides as words_of
from mlbench.api.logged import Logged
from mlbench.config import compose
from mlbench.config.experiment import Experiment
from mlbench.launch import execute, remote_run
from mlbench.launch.output import Output
from mlbench.record.record import Record


def run(*overrides: str, **settings: Any) -> Record:
    """Train one task on several workers until it reaches its goal, and return its record.

    An identical finished run is returned instead of measured again, unless `force=True`. Progress goes to the
    logger `mlbench`.

    Args:
        overrides: words as of the command, e.g. "task.epochs=3".
        settings: the same by name, e.g. task="gnmt", workers=8, backend={"timeout_s": 60}.

    Returns:
        The record: `status`, `time_to_accuracy` (s), `phases`, `cost_usd` and what else was measured.

    Raises:
        UserError: a mistake in the settings, or a machine that is too small; no worker has started.
        KeyboardInterrupt: the run was interrupted; its record is in its folder.
    """
    begun = clock.wall()
    words = [*overrides, *words_of.from_settings(settings)]
    record = measure(compose.compose(words), words, begun=begun, output=Logged())
    assert record is not None  # it is not detached
    if record.status == "interrupted":
        raise KeyboardInterrupt(record.run_id)
    return record


def measure(
    experiment: Experiment,
    overrides: Sequence[str],
    *,
    begun: float,
    output: Output,
    submitted: remote_run.SubmitSettings | None = None,
) -> Record | None:
    """Measure an experiment here, or on a cluster that takes whole runs; None for a run that is detached.

    Args:
        experiment: what is measured.
        overrides: the words that gave it, for its record.
        begun: when the command started (Unix seconds).
        output: what shows the run.
        submitted: how the run is submitted; the defaults if None.
    """
    if not remote_run.takes(experiment.cluster.name):
        return execute.execute(experiment, begun=begun, overrides=overrides, output=output)
    settings = submitted or remote_run.SubmitSettings()
    return remote_run.execute(experiment, begun=begun, overrides=overrides, settings=settings, output=output)
