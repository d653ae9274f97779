"""What a prediction is made from, and for what: the words of the command line as measurements and target."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from mlbench.config import overrides, plugins
from mlbench.config.errors import UserError
from mlbench.config.experiment import Hardware
from mlbench.prediction import model
from mlbench.prediction.forecast import FURTHEST, Target
from mlbench.prediction.model import Network
from mlbench.prediction.published import published_runs
from mlbench.prediction.runs import Measurements, from_records
from mlbench.record import format, reader, run_folders, study
from mlbench.record.record import Record

PUBLISHED, STUDY = "published:", "study:"
PUBLISHED_ON = "gcp_n1_t4"  # the profile of the node of the published runs
FILTERS = {"task": "task", "backend": "backend", "on": "hardware"}  # setting: group of the experiment


def measurements(names: Sequence[str], output_root: Path, settings: Mapping[str, str]) -> Measurements:
    """Return the runs of a study, of these names, or those published of a task, as FILTERS select them."""
    first = names[0]
    if first.startswith(PUBLISHED):
        if len(names) > 1:
            raise UserError(f"{first} cannot be put together with {names[1]}", hint="give one of them")
        task, backend = first.removeprefix(PUBLISHED), settings["backend"] or "nccl"
        for setting, only in (("task", task), ("on", PUBLISHED_ON)):
            if settings[setting] not in ("", only):
                raise UserError(f"{setting}={settings[setting]}: {first} has runs of {only} alone")
        return published_runs(task, backend=backend, profile=profile(PUBLISHED_ON))
    records = _study(first, output_root) if len(names) == 1 else None
    records = [_run(name, output_root) for name in names] if records is None else records
    for setting, group in FILTERS.items():
        if settings[setting]:
            records = [one for one in records if getattr(one.experiment, group).name == settings[setting]]
    return from_records(records, title=" ".join(names))


def to_fit(everything: Measurements, counts: str) -> Measurements:
    """Return the measurements at these worker counts, e.g. "1,2,4"; all without any."""
    if not counts:
        return everything
    wanted = [_count("workers", word) for word in counts.split(",")]
    missing = [k for k in wanted if k not in everything.counts]
    if missing:
        measured = ", ".join(map(str, everything.counts))
        sentence = f"{format.counted(missing[0], 'worker')} was not measured"
        raise UserError(sentence, hint=f"measured: {measured}")
    return everything.only(wanted)


def target(hardware: str, network: str, output_root: Path) -> Target:
    """Return the node of a profile, and the network as stated or as a run of task allreduce measured it."""
    node = profile(hardware) if hardware else None
    if not network:
        return Target(node)
    if any(output_root.glob(f"*{network}*/record.json")):
        return Target(node, Network.of_table(network, _run(network, output_root).table))
    return Target(node, Network.stated(network))


def worker_counts(fit: model.Model, everything: Measurements, max_workers: str) -> list[int]:
    """Return powers of two and the measured counts, up to `max_workers` and to one sample a worker."""
    most = int(min(wanted(fit, max_workers), fit.most_workers))
    powers = {2**i for i in range(most.bit_length()) if 2**i <= most}
    return sorted(powers | {k for k in everything.counts if k <= most} | {most})


def wanted(fit: model.Model, max_workers: str) -> int:
    """Return up to how many workers are to be predicted."""
    return _count("max_workers", max_workers) if max_workers else FURTHEST * fit.measurements.counts[-1]


def _study(name: str, output_root: Path) -> list[Record] | None:
    """Return the records of the study that a word names; None where it names none."""
    if name.startswith(STUDY):
        return run_folders.study(output_root, name.removeprefix(STUDY))
    try:
        return run_folders.study(output_root, name)
    except UserError:
        if study.load(study.folder(output_root, name)) is not None:
            raise
        return None


def _run(word: str, output_root: Path) -> Record:
    return reader.load(run_folders.folder(output_root, word) / "record.json")


def profile(name: str) -> Hardware:
    if "," in name or name == "all":
        raise UserError(f"hardware={name}: a prediction is for one profile", hint="predict once for each")
    file = plugins.files("hardware").get(name)
    if file is None:
        raise UserError(overrides.unknown("hardware", name, plugins.files("hardware")))
    try:
        return Hardware.model_validate(plugins.values(file))
    except ValidationError as error:
        fields = ", ".join(str(one["loc"][0]) for one in error.errors() if one["loc"])
        raise UserError(f"{file} is not a hardware profile: {fields}", hint="docs/extending.md") from error


def _count(name: str, word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise UserError(f"{name}={word} is not a number of workers", hint=f"e.g. {name}=16")
    return int(word)
