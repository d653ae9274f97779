"""The runs that a prediction is made from, and the machine and network that it is made for."""

import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median

from mlbench.config.errors import UserError
from mlbench.plugins.prediction import model, processors, published_runs
from mlbench.plugins.prediction.model import Measurements, Model, NetworkCost, Target
from mlbench.record import reader, run_folders
from mlbench.record.format import counted
from mlbench.record.record import Record
from mlbench.terminal.args import seconds, warn

PUBLISHED, STUDY = "published:", "study:"
FILTERS = {"task": "task", "backend": "backend", "on": "hardware"}  # setting: group of the experiment
RATES = [f"{tier}_{field}" for tier in (model.NODE, model.BETWEEN) for field in model.FIELDS]


def measurements(names: Sequence[str], output_root: Path, settings: Mapping[str, str]) -> Measurements:
    """Return the runs of a study, the named runs, or a task's published runs, as FILTERS select them."""
    first = names[0]
    if first.startswith(PUBLISHED):
        if len(names) > 1:
            raise UserError(f"{first} cannot be put together with {names[1]}", hint="give one of them")
        task = first.removeprefix(PUBLISHED)
        for setting, only in (("task", task), ("on", published_runs.HARDWARE)):
            if settings[setting] not in ("", only):
                raise UserError(f"{setting}={settings[setting]}: {first} has runs of {only} alone")
        return published_runs.measurements(task, backend=settings["backend"] or "nccl")
    records = _records(names, output_root)
    title = " ".join(names)
    if not records:
        raise UserError(f"{title} has no finished run", hint=run_folders.results_command("list", output_root))
    for setting, group in FILTERS.items():
        if name := settings[setting]:
            there = {getattr(record.experiment, group).name for record in records}
            records = [record for record in records if getattr(record.experiment, group).name == name]
            if not records:
                sentence = f"{setting}={name}: {title} has only runs of {', '.join(sorted(there))}"
                raise UserError(sentence, hint="choose one of them")
    return model.from_records(records, title=title)


def to_fit(everything: Measurements, counts: str) -> Measurements:
    """Return the measurements at these worker counts, e.g. "1,2,4", or all if none are given."""
    if not counts:
        return everything
    chosen = [count("workers", word) for word in counts.split(",")]
    if missing := [k for k in chosen if k not in everything.counts]:
        sentence = f"{counted(missing[0], 'worker')} was not measured"
        raise UserError(sentence, hint=f"measured: {', '.join(map(str, everything.counts))}")
    return everything.only(chosen)


def target(settings: Mapping[str, str], fitted: Measurements, output_root: Path) -> Target:
    """Return the target: node with overridden fields, network as stated or measured, and spot nodes."""
    spot, name, network = _spot(settings, fitted), settings["hardware"], settings["network"]
    node = None if name in ("", "all") else processors.profile(name)
    texts = {rate: text for rate in RATES if (text := settings[f"hardware.{rate}"])}
    rates = {rate: positive(f"hardware.{rate}", text) for rate, text in texts.items()}
    if rates and name == "all":
        raise UserError("hardware=all takes no fields of a profile", hint="name a profile")
    tiers = [] if fitted.moved(node) else [t for t, runs in model.tier_runs(fitted).items() if runs.any()]
    reasons = dict.fromkeys(tiers, f"the runs measured it on {fitted.hardware.name}")
    reasons |= {model.BETWEEN: f"network={network} includes it"} if network else {}
    for tier, rate in product(reasons, rates):
        if rate.startswith(tier):
            link = f"hardware.{rate}={texts[rate]} states a link {model.TIERS[tier][0]}"
            hint = "remove it, network=1gbit,50us or hardware=NAME predicts for other links"
            raise UserError(f"{link}, but {reasons[tier]}", hint=hint)
    if rates:
        node = (node or fitted.hardware).model_copy(update=rates)
    if not network:
        return Target(node, spot=spot)
    if any(output_root.glob(f"*{network}*/record.json")):
        return Target(node, NetworkCost.of_table(network, _run(network, output_root).table), spot)
    return Target(node, NetworkCost.stated(network), spot)


def _spot(settings: Mapping[str, str], fitted: Measurements) -> model.Spot | None:
    if not settings["spot"]:
        if settings["restart"]:
            raise UserError("restart= needs spot=", hint="e.g. spot=0.05")
        return None
    per_hour, restart_s = positive("spot", settings["spot"]), fitted.startup_s
    if settings["restart"]:
        restart_s = seconds("restart", settings["restart"])
    if restart_s is None:
        raise UserError("no run measured the duration of a restart", hint="e.g. restart=3min")
    checkpoints = math.ceil(median(run.epochs for run in fitted.runs if run.reached))  # one ends each epoch
    return model.Spot(per_hour, restart_s, checkpoints)


def worker_counts(fit: Model, everything: Measurements, most: int) -> list[int]:
    """Return powers of two and the measured counts, up to `most` and to one sample a worker."""
    most = int(min(most, fit.most_workers))
    powers = {2**i for i in range(most.bit_length()) if 2**i <= most}
    return sorted(powers | {k for k in everything.counts if k <= most} | {most})


def _records(names: Sequence[str], output_root: Path) -> list[Record]:
    """Return the records of a study if there is one word that names it, else of the named runs."""
    word = names[0]
    if len(names) == 1:
        try:
            return run_folders.study(output_root, word.removeprefix(STUDY), complain=warn)
        except UserError:
            if word.startswith(STUDY) or run_folders.is_study(output_root, word):
                raise
    return [_run(name, output_root) for name in names]


def _run(word: str, output_root: Path) -> Record:
    return reader.load(run_folders.folder(output_root, word) / "record.json")


def count(name: str, word: str) -> int:
    if not word.isdecimal() or int(word) == 0:
        raise UserError(f"{name}={word} is not a number of workers", hint=f"e.g. {name}=16")
    return int(word)


def positive(name: str, text: str, kind: str = "a number above 0") -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise UserError(f"{name}={text} is not {kind}", hint=f"e.g. {name}=25")
    return value
