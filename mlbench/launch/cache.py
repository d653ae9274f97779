"""Find cached records of identical finished runs, in output_root and in the MLflow store."""

from contextlib import suppress
from pathlib import Path

from mlbench.clusters import node
from mlbench.config.experiment import Experiment
from mlbench.config.identity import key
from mlbench.record import attempts, consistency, events, provenance, reader
from mlbench.record.record import FINISHED, Node, Record
from mlbench.tracking.client import open_client


def find_cached(experiment: Experiment, *, data: str | None) -> Record | None:
    """Return the cached record of an identical finished run, if there is one.

    It has the same key, seed, division and deviations, and `data` as the hash of its data's manifest (None:
    any). It ran with the same code and libraries on this machine, or was submitted in the same image. The
    folders below output_root come first: the store may be down, or behind.
    """
    assert experiment.seed is not None
    if experiment.profile or not experiment.task.REUSED:
        return None  # its traces are needed, which a record lacks, or what decides it is unknown
    image = getattr(experiment.cluster, "image", None)

    def stands(record: Record) -> bool:
        return (
            record.status in FINISHED
            and not record.contradictions
            and data in (None, record.data_hash)
            and record.experiment.division.name == experiment.division.name
            and [*map(str, record.deviations)] == [*map(str, experiment.deviations)]
            and obstacle(record, image=image) is None
        )

    trial = (key(experiment), experiment.seed)
    counts = attempts.middle(filter(stands, reader.find_all(experiment.output_root, [trial])[trial]))
    if counts is not None:
        return counts
    with suppress(Exception):  # a dead or unreadable store costs a repetition, not the run
        client = open_client(experiment.store, artifacts=None)
        if client is not None:
            for text in client.records(key=key(experiment), seed=experiment.seed, statuses=FINISHED):
                record = Record.model_validate_json(text)
                if consistency.contradiction(record) is None and stands(record):
                    return record
    return None


def obstacle(record: Record, *, image: str | None = None) -> str | None:
    """Return why the record of a run with the same key cannot be reused in this process, or None if it can.

    - image: in which the run would be submitted, with its digest: it holds the code, Python and libraries,
      and the cluster chooses the machines. None: the run would be measured here.

    Compares the hash of the code that decides a measurement, Python, every library, the environment's
    settings, and, on each node of the run, the host's name, CPU model, usable CPUs and GPUs. A value that is
    missing in a record counts as different.
    """
    if image is not None:
        same = record.submission is not None and record.submission.image == image
        return None if same else "it ran in another image"
    then, now = record.software, provenance.software()
    if then.code != now.code:
        return "it ran with other code of mlbench or of a plugin"
    if then.python != now.python:
        return "it ran with another Python"
    for name, version in now.packages.items():
        if then.packages.get(name) != version:
            return f"it ran with {name} {then.packages.get(name)}, here is {version}"
    a, b = (provenance.settings(software).items() for software in (then, now))
    if a != b:
        return f"it ran with another {min(a ^ b)[0]} in its environment"
    here = _machine(node.describe())
    if not record.nodes or any(_machine(machine) != here for machine in record.nodes):
        return "it ran on another machine"
    return None


def _machine(machine: Node) -> tuple[str | int | None, ...]:
    return machine.hostname, machine.cpu_model, machine.usable_cpus, *(gpu.kind for gpu in machine.gpus)


def restore(run: Record, folder: Path, uri: str) -> None:
    """Make the folder of a run that the store has, with its record and, if it can be had, its event log."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / events.NAME).exists():
        with suppress(Exception):  # whatever MLflow raises: the record is what counts
            client = open_client(uri, artifacts=None)
            if client is not None:
                client.fetch(run.run_id, events.NAME, folder)
    run.save(folder)
