"""Define the interface of a cluster that takes whole runs: `submit` and `attach` instead of `connect`.

- `submit(experiment, overrides, *, seed)` starts a run there and returns a Submission. It raises UserError
  for a run that the cluster would refuse, before anything is created.
- `attach(config, name)` returns the Submission of a run that was submitted before.
- `check(experiment)` raises UserError for a run that could never start, and creates nothing.
- `sweep_order(experiment)` returns the key by which a sweep sorts its runs.
- `end_sweep(experiment)` deletes the objects that they shared under `cluster.shared`.
- `expires(experiment)` returns when the cluster ends (s since 1970), or None.
- `remains(experiment)` returns what still costs after a run and the word that ends it, or None.
- `down(experiment, report)` deletes it.
- `complete(experiment)`, optional, returns a composed experiment with the files that the cluster sends.
- `manifest(experiment, overrides)` returns the objects that a run would create, for `--cfg manifest`.

The run in the cluster prints its event log (mlbench/record/stream.py), which the Submission passes on.
"""

from collections.abc import Iterator
from typing import Any, Protocol

from mlbench.config.experiment import Experiment


class SubmissionLost(Exception):
    """Why a run cannot be followed to its end, in one sentence.

    - preempted: its nodes were taken, so it shows nothing about the experiment.
    - goes_on: only this command has lost it, so it must not be deleted.
    """

    def __init__(self, sentence: str, *, preempted: bool = False, goes_on: bool = False) -> None:
        super().__init__(sentence)
        self.preempted = preempted
        self.goes_on = goes_on


class ClusterJob(Protocol):
    """A run in a cluster."""

    name: str
    experiment: Experiment
    seed: int
    arguments: list[str]  # of the command

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages of its event stream, every event once, until it has ended.

        An event comes with its number in the log, from 0. Raises SubmissionLost.
        """
        ...

    def last_messages(self) -> Iterator[dict[str, Any]]:
        """Yield the rest of the stream before the run is deleted, perhaps with the last event again.

        Raises SubmissionLost if the deletion would lose a result.
        """
        ...

    def description(self) -> dict[str, Any]:
        """Return the fields of record.JobSubmission that the cluster provides."""
        ...

    def delete(self) -> None:
        """End the run and delete all that was created for it. Return when it is gone."""
        ...
