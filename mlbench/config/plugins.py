"""Tasks, sync strategies, clusters, commands and YAML files by name: those of mlbench and of packages.

A package adds plugins by entry points. docs/extending.md shows them, and describes the contents of such a
module and its YAML. The folders of mlbench/plugins are found in the same way: pyproject.toml has their entry
points, and nothing else names them. A user's custom YAML files are in ~/.config/mlbench, or in the folder
that MLBENCH_CONFIG_DIR names.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

import mlbench
from mlbench.config import strict_yaml
from mlbench.config.errors import ConfigurationError

OWN = {"task": "mlbench.tasks", "sync": "mlbench.training.sync", "cluster": "mlbench.clusters"}
ENTRY_POINTS = {"task": "mlbench.tasks", "sync": "mlbench.syncs", "cluster": "mlbench.clusters"}
EMULATORS = "mlbench.networks"  # to the module that emulates networks. At most one package has it
FINDINGS = "mlbench.findings"  # to the module that reports on studies over emulated networks, likewise
EXTRAS = "mlbench.extras"  # to a module whose `rows(record)` returns what its package added to a record
LIBRARIES = "mlbench.backends"  # to a module that describes what a backend's library takes
TORCH = "torch"  # the framework of the core. A framework's name is that of its package
FRAMEWORKS = "mlbench.frameworks"  # to a module with the needs and limits of another framework
# Their modules run while something is measured.
DECISIVE = (*ENTRY_POINTS.values(), LIBRARIES, EMULATORS, FRAMEWORKS)
CONTRACT = {
    "task": ("Config", "prepare"),
    "sync": ("Config",),
    "cluster": ("shares_files", "connect or submit"),
}
IMPLEMENTATION = {"task": ("build", "measure"), "sync": ("synchronise",)}  # one of these, in `torch`
EXTENDING = "see docs/extending.md"
CONF_PACKAGES = "mlbench.conf"  # entry points to packages of YAML files
VERBS = "mlbench.verbs"  # by command, to a module whose `add(command)` adds sub-commands to those of mlbench
CHECKS = "mlbench.checks"  # to a module whose `checks()` reports what of its package this machine can run
FORECASTS = "mlbench.forecasts"  # to a module that predicts other hardware for pages: `part`, `published`
COMMANDS = "mlbench.commands"  # to a module with the `COMMAND` that `python -m mlbench.NAME` runs
OWN_CONF = f"pkg://{mlbench.__name__}."  # Hydra's addresses of the plugins' YAML files
AGAIN = "install that package again"
GROUPS = ("task", "hardware", "backend", "cluster", "sync", "network", "division")
FOLDERS = (*GROUPS, "study")  # of YAML files
_MORE_FOLDERS: ContextVar[tuple[str, ...]] = ContextVar("folders of --config-dir", default=())
USER_CONF = "MLBENCH_CONFIG_DIR"  # environment variable. Empty: no custom folder


def load(group: str, name: str) -> ModuleType:
    """Import the module of a task, sync strategy or cluster.

    Raises UserError if there is none, if two packages have one of that name, or if it lacks a part of its
    contract.
    """
    own = f"{OWN[group]}.{name}"
    places = [own] if name.isidentifier() and find_spec(own) else []
    places += [point.value for point in _points(ENTRY_POINTS[group]) if point.name == name]
    if not places:
        raise ConfigurationError(
            f"unknown {group} {name!r} in mlbench or an installed package", hint=EXTENDING
        )
    module = _imported(places, f"{group} {name!r}")
    missing = [
        part for part in CONTRACT[group] if not any(hasattr(module, each) for each in part.split(" or "))
    ]
    if missing:
        raise ConfigurationError(f"{group} {name!r} lacks {', '.join(missing)}", hint=EXTENDING)
    return module


def name(group: str, given: str) -> str:
    """Return the name of a plugin that is given by its name or its module, e.g. my_package.my_task."""
    return next((point.name for point in _points(ENTRY_POINTS[group]) if point.value == given), given)


def implementation(group: str, name: str, framework: str = TORCH) -> ModuleType:
    """Import the part of a task or sync strategy that needs a framework.

    It is the module `torch` in its folder. Of a task in another framework, it is named by an entry point.
    """
    own = load(group, name)
    module = import_module(f"{own.__name__}.torch" if framework == TORCH else trained_by(framework)[name])
    if not any(hasattr(module, part) for part in IMPLEMENTATION[group]):
        parts = " or ".join(IMPLEMENTATION[group])
        raise ConfigurationError(f"{module.__name__} lacks {parts}", hint=EXTENDING)
    return module


def frameworks() -> list[str]:
    """Return the names of all frameworks, torch first."""
    return [TORCH, *sorted({point.name for point in _points(FRAMEWORKS)} - {TORCH})]


def framework(name: str) -> ModuleType:
    """Import the module of a framework other than torch, which imports nothing of it.

    - require(): raises UserError if its package is not installed.
    - faults(experiment): yields a sentence for each value that it cannot have.

    Raises UserError if two packages have one of that name, or its package is gone.
    """
    values = [point.value for point in _points(FRAMEWORKS) if point.name == name]
    return _imported(values, f"framework={name}")


def trained_by(framework: str) -> dict[str, str]:
    """Return the modules of the tasks that a framework other than torch trains, by the task's name."""
    return {point.name: point.value for point in _points(f"{FRAMEWORKS}.{framework}")}


def library(backend: str) -> ModuleType | None:
    """Import the module that a backend's package has for its library. None if there is none.

    It may have ALGORITHMS, the names of all-reduce's, and VARIABLES: the environment variable by field of
    `Backend`. It does not import the library, which workers alone may have.
    """
    values = [point.value for point in _points(LIBRARIES) if point.name == backend]
    return import_module(values[0]) if values and _is_there(values[0]) else None


def network_findings() -> ModuleType:
    """Import the module that reports on emulated networks. Raises UserError if not exactly one is there.

    - findings(records, folder, about): writes and draws a study over such networks; returns lines.
    """
    return _of_networks(FINDINGS)


def emulator() -> ModuleType:
    """Import the module that emulates networks. Raises UserError if not exactly one package has it.

    - connect(experiment): a context manager that yields the Connection to a Ray on emulated hosts.
    - resources(experiment): the WorkerResources that a worker gets of its host.
    - faults(experiment): yields a sentence for each value that they cannot have.
    """
    return _of_networks(EMULATORS)


def _of_networks(group: str) -> ModuleType:
    values = [point.value for point in _points(group)]
    if len(values) != 1:
        several = f"{' and '.join(values)} all emulate" if values else "no installed package emulates"
        raise ConfigurationError(f"{several} networks", hint="network=host is the machines' network")
    return _imported(values, "network emulation")


def extra(name: str) -> ModuleType | None:
    """Import the module for a part of a record's extras. None if its package is not installed."""
    values = [point.value for point in _points(EXTRAS) if point.name == name]
    return import_module(values[0]) if values and _is_there(values[0]) else None


def command(name: str) -> ModuleType:
    """Import the module of a command that a package brings. Raises UserError if none does, or it is gone."""
    values = [point.value for point in _points(COMMANDS) if point.name == name]
    if not values:
        hint = f"install a package with an entry point {name!r} of {COMMANDS}"
        raise ConfigurationError(f"no installed package has the command {name}", hint=hint)
    return _imported(values[:1], f"the command {name}")


def extend(command: Any) -> None:
    """Add the sub-commands that installed packages have for one of mlbench's commands."""
    for point in _points(VERBS):
        if point.name == command.name and _is_there(point.value):
            import_module(point.value).add(command)


def checks() -> list[ModuleType]:
    """Import the modules that show `mlbench doctor` what their packages can run here."""
    return [import_module(point.value) for point in _points(CHECKS) if _is_there(point.value)]


def forecasts() -> list[ModuleType]:
    """Import the modules whose predictions appear in reports and on sites.

    - part(records, title): a report.page.PagePart from the runs of one curve, or None.
    - published(today): those from what others published, at prices that are current on that day.
    """
    return [import_module(point.value) for point in _points(FORECASTS) if _is_there(point.value)]


def absent() -> str:
    """Return how a sentence ends if YAML files of an installed package are gone, else nothing."""
    gone = [point.value for point in _points(CONF_PACKAGES) if not _is_there(point.value)]
    return f" ({_absence(gone)}: {AGAIN})" if gone else ""


def _imported(modules: Sequence[str], what: str) -> ModuleType:
    """Import the module of a plugin. Raises UserError if it is gone, or several packages have one."""
    if gone := [module for module in modules if not _is_there(module)]:
        raise ConfigurationError(f"{what}: {_absence(gone)}", hint=AGAIN)
    if len(modules) != 1:
        raise ConfigurationError(f"{what} is in {' and in '.join(modules)}", hint="uninstall one package")
    return import_module(modules[0])


def _absence(modules: Sequence[str]) -> str:
    return f"{' and '.join(modules)}: module not found, required by an installed package"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def packages() -> tuple[Path, ...]:
    """Return the folders (of a package that is one file: the file) that bring plugins which decide numbers.

    Of mlbench's packages that is a plugin's folder, of other packages the whole.
    """
    modules = [point.module.split(".") for group in DECISIVE for point in _points(group)]
    names = {".".join(parts[: 3 if parts[0] == mlbench.__name__ else 1]) for parts in modules}
    specs = [spec for name in sorted(names) if (spec := find_spec(name))]
    places = [spec.submodule_search_locations or [spec.origin] for spec in specs]
    return tuple(Path(location) for several in places for location in several if location)


def own_conf() -> Path:
    """Return the folder of mlbench's YAML files; in a checkout it is a link to the one at its top."""
    return Path(mlbench.__file__).parent / "conf"


def shipped(group: str, name: str) -> Path | None:
    """Return the YAML file of a shipped choice. None for another package's or the user's."""
    folders = (own_conf(), *(folder(address) for address in conf_packages() if address.startswith(OWN_CONF)))
    paths = (root / group / f"{name}.yaml" for root in folders)
    return next((path for path in paths if path.is_file()), None)


@cache
def conf_packages() -> tuple[str, ...]:
    """Return Hydra's addresses of the YAML files of installed packages, e.g. pkg://my_package.conf."""
    return tuple(f"pkg://{point.value}" for point in _points(CONF_PACKAGES) if _is_there(point.value))


def user_conf() -> tuple[str, ...]:
    """Return the folder of the user's custom YAML files, if there is one with one of FOLDERS."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    path = os.environ.get(USER_CONF, os.path.join(config, "mlbench"))
    if os.environ.get(USER_CONF) and not os.path.isdir(path):
        raise ConfigurationError(
            f"{USER_CONF}={path} is not a folder", hint="unset it, or name a folder of YAML files"
        )
    # There may be other files, e.g. the user's prices.
    return (os.path.abspath(path),) if path and _has_groups(Path(path)) else ()


@contextmanager
def searching(address: str | None) -> Iterator[None]:
    """Read the YAML files of one more folder. Raises UserError if it is none. None: of no other folder."""
    token = _MORE_FOLDERS.set(() if address is None else (str(folder(address)),))
    try:
        yield
    finally:
        _MORE_FOLDERS.reset(token)


def search_folders(searchpath: Sequence[str] = ()) -> tuple[Path, ...]:
    """Return the folders of YAML files of packages, of the user, and of the search path."""
    return tuple(
        dict.fromkeys(map(folder, (*conf_packages(), *user_conf(), *_MORE_FOLDERS.get(), *searchpath)))
    )


def folder(address: str) -> Path:
    """Return the folder that an address of Hydra's search path names. Raises UserError if there is none.

    It is pkg://package.conf, file:///folder, or a folder with at least one of FOLDERS.
    """
    if address.startswith("pkg://"):
        spec = find_spec(address.removeprefix("pkg://"))
        places = list(spec.submodule_search_locations or ()) if spec else []
        path = Path(places[0]) if places else None
    else:
        path = Path(address.removeprefix("file://")).absolute()
    hint = "--config-dir FOLDER takes a folder with folders such as hardware, task or study"
    if path is None or not path.is_dir():
        raise ConfigurationError(f"{address} is not a folder to search", hint=hint)
    if not _has_groups(path):
        raise ConfigurationError(f"{address} has none of the folders {', '.join(FOLDERS)}", hint=hint)
    return path


def _has_groups(path: Path) -> bool:
    return any((path / group).is_dir() for group in FOLDERS)


def files(group: str, searchpath: Sequence[str] = ()) -> dict[str, Path]:
    """Return the YAML files of a configuration group by name. Raises UserError if two have one name."""
    paths: dict[str, Path] = {}
    for root in (own_conf(), *search_folders(searchpath)):
        for path in sorted((root / group).glob("*.yaml")):
            if path.stem in paths:
                both = f"{paths[path.stem]} and {path}"
                raise ConfigurationError(f"{group}={path.stem} is both {both}", hint="rename one")
            paths[path.stem] = path
    return dict(sorted(paths.items()))


def values(path: Path) -> dict[str, Any]:
    """Return what a YAML file holds. Raises UserError with file and line if it cannot be read."""
    try:
        content = strict_yaml.load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigurationError(f"{path}{line}: invalid YAML: {reason}", hint="correct the file") from error
    if content is not None and not isinstance(content, dict):
        raise ConfigurationError(
            f"{path} must be a mapping of names to values", hint="the files in conf/ show how it is written"
        )
    return content or {}


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=group))
