"""Compose an experiment from conf/ and `name=value` overrides, once a run."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

import mlbench
from mlbench.config import checks, field_errors, overrides, plugins
from mlbench.config.division import Deviation, Division, deviations
from mlbench.config.errors import ConfigurationError, UserError
from mlbench.config.experiment import (
    Cluster,
    Experiment,
    FrozenModel,
    Hardware,
    SyncConfig,
    TaskConfig,
    TrainingConfig,
)
from mlbench.config.identity import flatten
from mlbench.config.store_uri import check_store

PLUGIN_GROUPS: dict[str, type[FrozenModel]] = {"task": TaskConfig, "sync": SyncConfig, "cluster": Cluster}


def data_fields(task: str) -> tuple[str, ...]:
    """Return the fields that determine what runs of a task train and validate on, e.g. task.dataset.

    Of a task that is not installed, only those that every task has.
    """
    try:
        config = plugins.load("task", task).Config
    except (UserError, ImportError):
        config = TaskConfig
    return tuple(f"task.{name}" for name in ("dataset", *config.OWN_DATA, *config.DATA_FIELDS))


def choices(group: str) -> list[str]:
    """Return the names one may give to a configuration group, e.g. every task."""
    return list(plugins.files(group))


def hardware(name: str) -> Hardware:
    """Return a profile with the user's price by its name. Raises UserError if it is unknown or not valid."""
    profiles = plugins.files("hardware")
    if name not in profiles:
        raise ConfigurationError(overrides.unknown("hardware", name, profiles))
    composed, _ = overrides.values(overrides.Overrides({"hardware": name}))
    try:
        return Hardware.model_validate(composed["hardware"])
    except ValidationError as error:
        sentences = field_errors.sentences([("hardware.", error)], composed, {"hardware": name})
        raise ConfigurationError("; ".join(sentences)) from error


def compose(arguments: Sequence[str] = ()) -> Experiment:
    """Turn `name=value` words into an Experiment with its deviations from the closed reference.

    Raises a UserError that lists every mistake: unknown names, wrong types, values out of range, and values
    that the chosen division does not allow.
    """
    parsed = overrides.parse(arguments)
    _choose_division(parsed)
    composed, reference = overrides.values(parsed)
    experiment = _validated(composed, parsed.errors, parsed.choices)
    if experiment is not None and not isinstance(experiment.task, TrainingConfig):
        chosen = [f"sync={parsed.choices['sync']}"] if parsed.choices.get("sync", "ddp") != "ddp" else []
        chosen += [name for name in parsed.values if name.startswith("sync.")]
        if chosen:
            parsed.errors.append(
                f"{', '.join(chosen)}: task={experiment.task.name} trains no model that workers could "
                "combine: leave sync out"
            )
    if parsed.errors or experiment is None:
        lost = any(error.endswith(" is unknown") for error in parsed.errors)  # the others name the way out
        hint = "`mlbench run --help` lists all names" if lost else ""
        raise ConfigurationError("; ".join(parsed.errors), hint=hint)
    if experiment.tracking_uri is not None:
        check_store(experiment.tracking_uri)
    complete = getattr(plugins.load("cluster", experiment.cluster.name), "complete", None)
    experiment = complete(experiment) if complete else experiment
    varied = (*_foreign(parsed, experiment), *_varied(parsed, reference))
    return experiment.model_copy(update={"deviations": (*varied, *_deviations(experiment, reference))})


def _choose_division(parsed: overrides.Overrides) -> None:
    """Choose the open division for a task that has no reference."""
    path = plugins.files("task", parsed.searchpath).get(parsed.choices.get("task", ""))
    name = plugins.values(path).get("name") if path else None
    try:
        always = isinstance(name, str) and getattr(plugins.load("task", name).Config, "OPEN", False)
    except (UserError, ImportError):  # the fault is reported when the file is composed
        return
    if always and parsed.choices.setdefault("division", "open") == "closed":
        parsed.errors.append(f"task={name} has no reference, so division=closed cannot hold it: leave it out")


def _foreign(parsed: overrides.Overrides, experiment: Experiment) -> Iterator[Deviation]:
    """Yield the choices whose files, and the framework whose modules, are not mlbench's.

    They are allowed, but no result of them is official.
    """
    foreign = {group: name for group, name in parsed.choices.items() if not plugins.shipped(group, name)}
    name = experiment.framework
    if name != plugins.TORCH:
        modules = (plugins.framework(name).__name__, plugins.trained_by(name)[experiment.task.name])
        if not all(module.startswith(f"{mlbench.__name__}.") for module in modules):
            foreign["framework"] = name
    for field, given in foreign.items():
        yield Deviation(
            field=field,
            given=given,
            reference=f"a {'framework' if field == 'framework' else 'choice'} that mlbench ships",
            rule="R14" if field == "hardware" else "R4",
            fixed=False,
            declared=True,
        )


def undeclared(recorded: Mapping[str, Any], declared: Sequence[Deviation]) -> list[str]:
    """Return the fields in which a recorded configuration differs silently from today's closed reference.

    A choice that is unknown here, and not declared as a custom one, is such a field.
    """
    fields = {deviation.field for deviation in declared}
    task = recorded["task"]
    beside = {"cluster", "network"}  # groups whose fields are all free in the closed division
    try:
        if not plugins.load("sync", recorded["sync"]["name"]).Config.CLOSED:
            beside |= {"sync"}  # the reference has another
        values = [f"{group}={recorded[group]['name']}" for group in plugins.GROUPS if group not in beside]
        layers = {"scale": recorded["scale"], "task.recipe": task["recipe"], "task.dataset": task["dataset"]}
        reference = compose([*values, *(f"{name}={value}" for name, value in layers.items())])
    except UserError as error:
        return [] if fields & set(plugins.GROUPS) else [f"a choice: {error}"]
    differences = deviations(recorded, reference.plain(), _of_task(reference))
    return [deviation.field for deviation in differences if deviation.field not in fields]


def _of_task(experiment: Experiment) -> Division:
    """Return the division of an experiment, with the fields that its task frees."""
    free = (*experiment.division.free, *(f"task.{field}" for field in type(experiment.task).FREE))
    return experiment.division.model_copy(update={"free": free})


def _deviations(experiment: Experiment, composed: dict[str, Any]) -> tuple[Deviation, ...]:
    """Return what differs from the closed reference. UserError for what the division does not allow."""
    reference = _validated(composed, faults := [])
    if reference is None:
        raise ConfigurationError("; ".join(faults), hint="a file in conf/ is not valid")
    division = reference.division
    differences = deviations(experiment.plain(), reference.plain(), _of_task(reference))
    if division.name == "closed":
        refused = [deviation for deviation in differences if not deviation.declared]
        hint = "restore the reference value, or use division=open, which lists it in the result"
        if any(deviation.rule == "R2" for deviation in refused):  # no division allows these
            hint = "goal=NUMBER sets another goal, other data need a custom task: docs/extending.md"
    else:
        refused = [deviation for deviation in differences if deviation.fixed]
        hint = "write a custom task: docs/extending.md"
    if any(deviation.field == "sync.name" for deviation in refused):  # its fields add nothing
        refused = [
            deviation
            for deviation in refused
            if deviation.field == "sync.name" or not deviation.field.startswith("sync.")
        ]
    if refused:
        raise ConfigurationError("; ".join(map(str, refused)), hint=hint)
    return differences


def _validated(
    composed: dict[str, Any], errors: list[str], choices: Mapping[str, str] = MappingProxyType({})
) -> Experiment | None:
    """Validate with the Config of the chosen task, sync strategy and cluster. Add one sentence an error."""
    parts: dict[str, Any] = dict(composed)
    problems: list[tuple[str, ValidationError]] = []
    for group, base in PLUGIN_GROUPS.items():
        module = plugins.load(group, composed[group]["name"])
        try:
            parts[group] = getattr(module, "Config", base).model_validate(composed[group])
        except ValidationError as error:
            problems.append((f"{group}.", error))
    try:
        experiment = Experiment.model_validate(parts)
    except ValidationError as error:
        problems.append(("", error))
        experiment = None
    if experiment is not None:
        errors += _not_numbers(composed, experiment)
        errors += (sentence for check in checks.CHECKS for sentence in check(experiment))
        experiment = _with_precision(experiment)
    wrong = field_errors.sentences(problems, composed, choices)
    errors += [sentence for sentence in wrong if sentence not in errors]
    return experiment if not problems else None


def _not_numbers(composed: dict[str, Any], experiment: Experiment) -> Iterator[str]:
    plain = flatten(experiment.plain())
    for name, value in flatten(composed).items():
        if isinstance(value, bool) and not isinstance(plain.get(name), bool):
            yield f"{name}={str(value).lower()}: not a number"


def _with_precision(experiment: Experiment) -> Experiment:
    task = experiment.task
    if not isinstance(task, TrainingConfig):
        return experiment
    task = task.model_copy(update={"precision": checks.precision(experiment, task)})
    return experiment.model_copy(update={"task": task})


def _varied(parsed: overrides.Overrides, reference: dict[str, Any]) -> Iterator[Deviation]:
    """Yield in what a file of the user's differs from the task of mlbench's that it varies."""
    shipped = overrides.shipped_task(reference["task"]["name"], parsed)
    if shipped is None:
        return
    varied, own = (_validated(reference | {"task": task}, []) for task in (reference["task"], shipped))
    if varied is not None and own is not None:
        for deviation in deviations(varied.plain(), own.plain(), own.division):
            yield deviation.model_copy(update={"declared": True})
