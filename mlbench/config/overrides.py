"""`name=value` words of the command line over Hydra's YAML files, with a sentence for each mistake.

Nothing past this module sees Hydra or OmegaConf. Hydra parses the words, finds the files and merges the
groups. Here a task's recipe and scale override its values, before single values do.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbench.config import plugins, price_file
from mlbench.config.errors import FEW, ConfigurationError, suggest
from mlbench.config.experiment import Peak, Price
from mlbench.config.identity import flatten

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

GROUPS = plugins.GROUPS
SEARCH_PATH = "hydra.searchpath"  # the one setting of Hydra that is read: more folders of YAML files
# Names of 0.1 and of other tools, and what they are called here.
RENAMED = {"instrument": "phase_timing", "rerun": "force", "unit": "task.metric_unit", "task.rate": "task.lr"}
RENAMED |= {"threads": "hardware.threads_per_worker", "log_dir": "output_root", "mlflow": "tracking_uri"}
ELSEWHERE = {  # what is not a field of a run, and what to write for it
    **dict.fromkeys(("repeats", "n"), "mlbench sweep takes repeats=N"),
    **dict.fromkeys(("max_usd", "question", "extend"), "it is a word of mlbench sweep"),
    "parallel": "runs are measured one after the other, or each would slow the others down",
    "name": "study=NAME names a study, a run is named by its time, task and seed",
    "nodes": "workers=N sets the workers, cluster=attached has nodes, hardware=NAME the workers on each",
    **dict.fromkeys(("gpu", "gpus", "device"), "backend=nccl trains on GPUs, one for each worker"),
    **dict.fromkeys(
        ("official", "eligible"), "scale=official chooses the official data and model (RULES.md)"
    ),
    **dict.fromkeys(
        ("model", "task.model"), "a task has its model: give task=NAME or a custom task (docs/extending.md)"
    ),
}
LONGEST = 200  # characters of a word that a sentence repeats
LAYERS = {"task.recipe": "recipes", "scale": "scales"}  # overrides that choose a part of the task's file
NOT_VALUES = ("defaults", "name", "recipe")  # of a task's file: they choose, and are not laid over
DATASETS = "datasets"  # the part, if there is one, with other data sets of mini scale: task.dataset=NAME

VERBATIM = ("task.args", "task.metric", "task.path")  # custom text, which Hydra's grammar refuses
NAMES = ("study", "data_root", "output_root")  # text, also if it looks like a number, e.g. study=2026
ONE = re.compile(r"""("[^"]+"|'[^']+')""")  # of them in quotes
SEVERAL = re.compile(r"""("[^"]*"|'[^']*')(,("[^"]*"|'[^']*'))+""")  # of them, for a sweep
_require_readable = cache(plugins.values)  # names a file with mistakes, once a process: it is composed once


@dataclass
class Overrides:
    """Parsed words: choices by group, values by dotted name, further folders, and a sentence a mistake."""

    choices: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    searchpath: tuple[str, ...] = ()
    errors: list[str] = field(default_factory=list)


def parse(arguments: Sequence[str]) -> Overrides:
    """Split words into group choices and values. What is neither becomes a sentence in `errors`."""
    from hydra.errors import HydraException

    parsed: list[tuple[str, Override]] = []
    result = Overrides()
    for word in arguments:
        try:
            parsed.append((word, _override(word)))
        except (HydraException, RecursionError):
            result.errors.append(_unreadable(word))
    for _, override in parsed:
        if override.key_or_group == SEARCH_PATH and not override.is_delete():
            value = override.value()
            result.searchpath += tuple(map(str, value if isinstance(value, list) else [value]))
    for word, override in parsed:
        name = override.key_or_group
        if override.is_add() or override.is_force_add() or override.is_delete():
            result.errors.append(f"{word!r}: keys cannot be added or removed, write name=value")
        elif override.package is not None:
            result.errors.append(
                f"{word!r}: '@' (Hydra package override) is not supported, write {name}=NAME"
            )
        elif name == SEARCH_PATH:
            continue
        elif name.startswith("hydra."):
            result.errors.append(f"{word!r}: of Hydra's settings only {SEARCH_PATH} is supported")
        elif override.is_sweep_override():
            result.errors.append(f"{word!r} names several values, a run takes one: use mlbench sweep")
        elif name in GROUPS:
            value, files = str(override.value()), plugins.files(name, result.searchpath)
            if value in files:
                result.choices[name] = value
            else:
                result.errors.append(unknown(name, value, files))
        else:
            result.values[name] = deepcopy(override.value())
    return result


def unknown(group: str, choice: str, files: Mapping[str, Path]) -> str:
    """Return that a choice is unknown, with those whose name or description has the word."""
    like = [
        name
        for name, path in files.items()
        if choice and choice.lower() in f"{name} {plugins.values(path).get('description')}".lower()
    ]
    near = suggest(choice, like if 0 < len(like) < FEW else list(files))
    return f"{group}={choice} is unknown{near}{plugins.absent()}"


@lru_cache(maxsize=1024)  # the points of a study share most words
def _override(word: str) -> "Override":
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(quoted(word))


def shortened(word: str) -> str:
    """Return a word as a sentence repeats it."""
    return word if len(word) <= LONGEST else f"{word[:LONGEST]}..."


def quoted(word: str) -> str:
    """Return the word as Hydra's grammar, which is ASCII only, takes it, e.g. with ü in a path."""
    name, _, value = word.partition("=")
    if name in VERBATIM and value not in ("", "null") and not SEVERAL.fullmatch(value):
        value = value[1:-1] if ONE.fullmatch(value) else value  # as each of several is written
        # Hydra reads a backslash as itself, but before a quote.
        value = re.sub(r"(\\*)('|\Z)", lambda match: match[1] * 2 + (match[2] and "\\'"), value)
        return f"{name}='{value}'"
    text = not value.isascii() or name in NAMES and value not in ("", "null")
    plain = text and all(character.isalnum() or character in "_-./:+@% " for character in value)
    return f"{name}='{value}'" if plain else word


def _unreadable(word: str) -> str:
    """Return why Hydra's grammar does not take a word, and how it is written."""
    word = shortened(word)
    name, equals, value = word.partition("=")
    if not equals or not name:
        return f"{word!r} is not of the form name=value"
    if f",{name}=" in value:
        return f"{word!r} holds several values: write {name}={value.replace(f',{name}=', ',')}"
    if value.endswith(","):
        return f"{word!r} ends in a comma"
    if value.startswith("~/"):
        return f"{word!r}: '~' is not expanded, write {name}=$HOME{value[1:]}"
    value = "'" + value.replace("'", "\\'") + "'"
    twice = shlex.quote(value) if re.search(r'["$`\\!]', value) else f'"{value}"'
    return f"{word!r}: the value cannot be read: quote it twice: {name}={twice}"


def search_word(folder: str) -> str:
    """Return the override that adds a folder of YAML files."""
    quoted = str(plugins.folder(folder)).replace("\\", "\\\\").replace("'", "\\'")
    return f"{SEARCH_PATH}=['{quoted}']"


def typed(words: Sequence[str]) -> list[str]:
    """Return words as a person types them: a folder of YAML files is an option."""
    result: list[str] = []
    for word in words:
        folders = parse([word]).searchpath if word.startswith(f"{SEARCH_PATH}=") else ()
        result += [part for folder in folders for part in ("--config-dir", folder)] or [word]
    return result


def values(overrides: Overrides) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the composed values, and those of the closed reference: the same without single values.

    Mistakes are added to `overrides.errors`.
    """
    composed = _layered(overrides)
    overrides.errors += _without_origin(composed["hardware"], overrides.values)
    reference = json.loads(json.dumps(composed))
    if not plugins.load("sync", composed["sync"]["name"]).Config.CLOSED:
        reference["sync"] = json.loads(_compose(folders=plugins.search_folders()))["sync"]
    _leave_out(composed["hardware"], overrides.values)
    for name, value in overrides.values.items():
        _assign(composed, name, value, overrides.errors)
    return composed, reference


def shipped_task(name: str, overrides: Overrides) -> dict[str, Any] | None:
    """Return the values of the shipped task if a file of another name chose it. None otherwise."""
    if overrides.choices.get("task") in (None, name) or plugins.shipped("task", name) is None:
        return None
    layers = {name: value for name, value in overrides.values.items() if name in (*LAYERS, "task.dataset")}
    shipped = Overrides(overrides.choices | {"task": name}, layers, overrides.searchpath)
    return _layered(shipped)["task"]


@cache
def _compose(*choices: str, folders: tuple[Path, ...] = ()) -> str:
    """Return the composed groups as JSON. Cached, because the points of a study share most choices."""
    # Imported here: hydra costs 0.2 s, and workers that receive a ready Experiment never need it.
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    more = [f"{SEARCH_PATH}={json.dumps([f'file://{folder}' for folder in folders])}"] if folders else []
    try:
        with initialize_config_dir(str(plugins.own_conf()), version_base="1.3"):
            composed = compose("config", overrides=[*choices, *more])
        return json.dumps(OmegaConf.to_container(composed, resolve=True))
    except (HydraException, OmegaConfBaseException, RecursionError) as error:
        circle = isinstance(error, RecursionError)
        reason = " ".join(str(error).partition("Config search path")[0].split()).rstrip(".")
        reason = "its files name each other as defaults" if circle else reason
        raise ConfigurationError(
            f"{' '.join(choices) or 'the configuration'} cannot be composed: {reason}"
        ) from error


def _without_origin(hardware: dict[str, Any], values: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for a price or a peak of the user's that would go under the shipped one's origin.

    Such values are taken out of `values`. A profile without a price needs the price itself, too.
    """
    price = ("usd_per_hour",) if hardware.get("price") is None else ()
    needed = {"hardware.price": (*price, "date", "source"), "hardware.peak": ("source",)}
    for group, fields in needed.items():
        own = [name for name in values if name.startswith(f"{group}.")]
        lacking = [f"{group}.{field}=..." for field in fields if f"{group}.{field}" not in values]
        if own and lacking:
            yield f"{own[0]} needs its origin (rule R13): add {' '.join(lacking)}"
            for name in own:
                del values[name]


def _leave_out(hardware: dict[str, Any], values: dict[str, Any]) -> None:
    """Remove from a profile the spot price and rates that would appear under the origin of the user's price.

    A profile without a price or a peak, e.g. `local`, gets an empty one for them.
    """
    for part, model in (("price", Price), ("peak", Peak)):
        if hardware.get(part) is None and any(name.startswith(f"hardware.{part}.") for name in values):
            hardware[part] = dict.fromkeys(model.model_fields)
    price, peak = hardware.get("price"), hardware.get("peak")
    if isinstance(price, dict) and "hardware.price.usd_per_hour" in values:
        price["usd_per_hour_spot"] = None
    if isinstance(peak, dict):
        rates = peak.keys() - {"source"}
        if any(f"hardware.peak.{name}" in values for name in rates):
            peak.update(dict.fromkeys(rates))


def _layered(overrides: Overrides) -> dict[str, Any]:
    """Compose the groups, then lay the task's recipe and scale over its default values."""
    choices = (f"{group}={choice}" for group, choice in overrides.choices.items())
    files = {
        group: plugins.files(group, overrides.searchpath)[choice]
        for group, choice in overrides.choices.items()
    }
    for path in files.values():
        _require_readable(path)
    composed = json.loads(_compose(*choices, folders=plugins.search_folders(overrides.searchpath)))
    for group, path in files.items():
        _require_parts(group, composed.get(group), path)
    for group in GROUPS:
        _require_shipped(group, overrides.choices.get(group) or composed[group]["name"], composed[group])
    if own := price_file.read().get(composed["hardware"]["name"]):  # the user's price overrides it
        composed["hardware"]["price"] = own.model_dump()
    task = composed["task"]
    before = deepcopy(task)
    defaults = {"task.recipe": task["recipe"], "scale": composed["scale"]}
    for name, part in LAYERS.items():
        layers = task.pop(part)
        chosen = str(overrides.values.get(name, defaults[name]))
        if chosen in layers:
            task.update(layers[chosen])
        else:
            overrides.errors.append(f"{name}={chosen} is unknown{suggest(chosen, list(layers))}")
            overrides.values.pop(name, None)
        parent = task if name == "task.recipe" else composed
        parent[name.removeprefix("task.")] = chosen if chosen in layers else defaults[name]
    _choose_dataset(task, composed["scale"], overrides)
    layers = {part: composed["scale"] if part == "scales" else task["recipe"] for part in LAYERS.values()}
    layers[DATASETS] = task.get("dataset")
    for written in _variants(overrides.choices.get("task", ""), plugins.files("task", overrides.searchpath)):
        own = {name for part, chosen in layers.items() for name in written.get(part, {}).get(chosen, {})}
        kept = {name: value for name, value in written.items() if name not in (*NOT_VALUES, *layers, *own)}
        _keep(kept, task, before)
    return composed


def _variants(choice: str, files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return what the files of a user's variant of a task hold, the one it is made of first."""
    path = files.get(choice)
    if path is None or plugins.shipped("task", choice) is not None:
        return []
    written = plugins.values(path)
    bases = [name for name in written.get("defaults", ()) if isinstance(name, str) and name != "_self_"]
    return [file for base in bases for file in _variants(base, files)] + [written] * bool(bases)


def _keep(written: Mapping[str, Any], task: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Put values that a variant's file writes back over the inherited recipe, scale and data set."""
    for name, value in written.items():
        if isinstance(value, dict) and isinstance(task.get(name), dict) and isinstance(before[name], dict):
            _keep(value, task[name], before[name])
        else:
            task[name] = before[name]


def _choose_dataset(task: dict[str, Any], scale: str, overrides: Overrides) -> None:
    """Lay the values of another data set that the task offers at mini scale over its values."""
    offered, chosen = task.pop(DATASETS, {}), overrides.values.get("task.dataset")
    if "dataset" not in task or chosen == task["dataset"] or chosen is None or not offered:
        return
    if str(chosen) not in offered:
        datasets = [task["dataset"], *(offered if scale == "mini" else ())]
        overrides.errors.append(
            f"task.dataset={chosen} is unknown: {task['name']} has {', '.join(datasets)} at {scale} scale"
        )
        overrides.values.pop("task.dataset")
    elif scale != "mini":
        overrides.errors.append(f"task.dataset={chosen} is a data set of mini scale: leave out scale={scale}")
    else:
        task.update(offered[chosen], dataset=chosen)


def _require_shipped(group: str, choice: str, composed: dict[str, Any]) -> None:
    """Raise UserError if a shipped choice was not composed from its file."""
    path = plugins.shipped(group, choice)
    if path and any(composed.get(name) != value for name, value in _shipped(path).items()):
        raise ConfigurationError(
            f"{group}={choice} does not have the values of {path}: "
            "a Hydra plugin overrides it with another file",
            hint="uninstall the package that has a folder hydra_plugins",
        )


@cache
def _shipped(path: Path) -> dict[str, Any]:
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(values, dict)
    return {str(name): value for name, value in values.items() if name != "defaults"}


def _require_parts(group: str, composed: Any, path: Path) -> None:
    """Raise UserError if the values of a choice lack what is needed to compose and validate them."""
    needed = ("name", "recipe", *LAYERS.values()) if group == "task" else ("name",)
    missing = [name for name in needed if not isinstance(composed, dict) or name not in composed]
    layers = {*LAYERS.values(), *({DATASETS} & {*composed} if isinstance(composed, dict) else ())}
    wrong = [name for name in layers if group == "task" and not missing and not _named(composed[name])]
    label = "" if missing or group != "hardware" else str(composed["name"])
    if label not in ("", path.stem):  # prices and results are found by it
        raise ConfigurationError(
            f"{path} has name: {label}", hint=f"write name: {path.stem}, the file's name"
        )
    if missing or wrong:
        fault = f"it lacks {', '.join(missing)}" if missing else f"{wrong[0]} is not a group of named values"
        raise ConfigurationError(f"{path}: {fault}", hint=plugins.EXTENDING)


def _named(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(value, dict) for value in values.values())


def _assign(composed: dict[str, Any], name: str, value: Any, errors: list[str]) -> None:
    """Put one value at its dotted place. A place that does not exist is an error."""
    *parents, last = name.split(".")
    node: Any = composed
    for index, parent in enumerate(parents):
        node = node.get(parent, "") if isinstance(node, dict) else ""
        if node is None:
            group = ".".join(parents[: index + 1])
            errors.append(f"{name} cannot be set: {parents[0]}={composed[parents[0]]['name']} has no {group}")
            return
    if not isinstance(node, dict) or last not in node:
        names = {
            candidate for candidate in (*flatten(composed), *composed) if not candidate.endswith(".name")
        }
        meant = RENAMED.get(name) or next(
            (candidate for candidate in sorted(names) if candidate.endswith(f".{name}")), None
        )
        near = f": did you mean {meant}?" if meant else suggest(name, sorted(names))
        errors.append(f"{name} is unknown{f': {ELSEWHERE[name]}' if name in ELSEWHERE else near}")
    elif parents and last == "name":
        errors.append(f"{name} cannot be set: {parents[0]}=NAME chooses all values of that name")
    elif isinstance(node[last], dict) and not isinstance(value, dict):
        inner = ", ".join(f"{name}.{field}" for field in node[last])
        errors.append(f"{name} is a group of values: set one of {inner}")
    else:
        node[last] = value
