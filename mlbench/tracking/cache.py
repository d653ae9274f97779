"""Finished runs that stand for one that would be measured now: in output_root, and in the MLflow store."""

from contextlib import suppress
from pathlib import Path

from mlbench.experiment import attempts, events, record, reuse
from mlbench.experiment.config import Experiment
from mlbench.experiment.identity import key
from mlbench.experiment.record import FINISHED, Record
from mlbench.tracking.client import open_client


def find_cached(experiment: Experiment, *, data: str | None) -> Record | None:
    """Return the record of a finished run that stands for this experiment, if there is one.

    It has the same key, seed and division, and `data` as the hash of its data's manifest (None: any); it ran
    with the same code and libraries on this machine. The folders below output_root come first: the store may
    be down, or behind.
    """
    assert experiment.seed is not None

    def stands(one: Record) -> bool:
        return (
            one.status in FINISHED
            and data in (None, one.data_hash)
            and one.experiment.division.name == experiment.division.name
            and reuse.obstacle(one) is None
        )

    here = record.find(experiment.output_root, key=key(experiment), seed=experiment.seed)
    counts = attempts.middle(filter(stands, here))
    if counts is not None:
        return counts
    with suppress(Exception):  # a dead or unreadable store costs a repetition, not the run
        client = open_client(experiment.store, artifacts=None)
        if client is not None:
            for text in client.records(key=key(experiment), seed=experiment.seed, statuses=FINISHED):
                one = Record.model_validate_json(text)
                if stands(one):
                    return one
    return None


def restore(found: Record, folder: Path, uri: str) -> None:
    """Make the folder of a run that the store has, with its record and, if it can be had, its event log."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / events.NAME).exists():
        with suppress(Exception):  # whatever MLflow raises: the record is what counts
            client = open_client(uri, artifacts=None)
            if client is not None:
                client.fetch(found.run_id, events.NAME, folder)
    found.save(folder)
